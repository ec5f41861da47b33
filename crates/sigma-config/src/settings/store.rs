//! Settings of the store for resources that change while the gateway runs.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The location of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// A file on local disk.
    #[default]
    Embedded,
    /// An etcd cluster, in APISIX's layout.
    Etcd,
}

/// The access of the gateway to an etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoreAccess {
    /// Read and write.
    #[default]
    ReadWrite,
    /// Read only, as for a data plane.
    ReadOnly,
}

/// TLS to etcd. All paths are PEM files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoreTls {
    /// The CA certificates for etcd; unset: the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// The client certificate of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// Private key of `cert`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Name in etcd's certificate, if it is not the host of the endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sni: Option<String>,
}

/// The store of resources.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Store {
    /// `embedded` or `etcd`.
    pub kind: StoreKind,
    /// Directory of the embedded store, or of the local copy that a gateway starts from while etcd is unavailable.
    pub path: PathBuf,
    /// Members of the etcd cluster, `http://host:port` or `https://host:port`.
    pub endpoints: Vec<String>,
    /// The prefix of all keys in etcd.
    pub prefix: String,
    /// The etcd user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Password of `user`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// TLS to etcd, for `https` endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<StoreTls>,
    /// `read_only` for a gateway that reads its configuration from etcd and never writes.
    pub access: StoreAccess,
    /// Timeout of one request to etcd in milliseconds.
    #[schemars(range(min = 100))]
    pub timeout_ms: u32,
    /// Milliseconds without a sign of life after which a watch is replaced.
    #[schemars(range(min = 100))]
    pub watch_timeout_ms: u32,
    /// Pause in milliseconds after etcd has refused the gateway; up to half of it is added at random.
    pub resync_delay_ms: u32,
    /// Milliseconds between two comparisons of the known keys with those in etcd; up to half of it is added at random,
    /// 0 for never. After a difference, which a lost change would leave, everything is read again. The keys of 100,000
    /// routes take about 6 MB each time.
    pub compare_interval_ms: u32,
    /// Number of further attempts to reach etcd at the start, before the local copy is used.
    pub startup_retry: u16,
}

impl Default for Store {
    fn default() -> Self {
        Store {
            kind: StoreKind::default(),
            path: "./data".into(),
            endpoints: Vec::new(),
            prefix: "/apisix".into(),
            user: None,
            password: None,
            tls: None,
            access: StoreAccess::default(),
            timeout_ms: 5_000,
            watch_timeout_ms: 10_000,
            resync_delay_ms: 5_000,
            compare_interval_ms: 300_000,
            startup_retry: 2,
        }
    }
}

/// The password must not appear in a log.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("kind", &self.kind)
            .field("path", &self.path)
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("user", &self.user)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

/// A violated rule across fields.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Breach {
    /// The field.
    pub(crate) field: &'static str,
    pub(crate) message: String,
    pub(crate) hint: &'static str,
}

/// Returns the contradictory settings of a store.
pub(crate) fn breaches(store: &Map<String, Value>) -> Vec<Breach> {
    let mut found = Vec::new();
    let mut breach = |field, message: String, hint| found.push(Breach { field, message, hint });
    let text = |key: &str| store.get(key).and_then(Value::as_str);
    let endpoints: Vec<&str> = store
        .get("endpoints")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    // The schema reports an unknown kind.
    let embedded = Value::from("embedded");
    let kind = store.get("kind").unwrap_or(&embedded);
    if *kind != "embedded" && *kind != "etcd" {
        return found;
    }
    if *kind == embedded {
        let defaults = serde_json::to_value(Store::default()).unwrap_or_default();
        for field in ["endpoints", "prefix", "user", "password", "tls", "access"] {
            // The full form has all defaults, so a default has no meaning here.
            if store.get(field).is_some_and(|value| defaults.get(field) != Some(value)) {
                let message = format!("`{field}` needs an etcd, but this store is embedded");
                breach(field, message, "set `kind: etcd`, or remove it");
            }
        }
        return found;
    }
    if endpoints.is_empty() {
        let hint = "write endpoints: [\"http://127.0.0.1:2379\"]";
        breach("endpoints", "a store of `kind: etcd` needs `endpoints`".into(), hint);
    }
    for endpoint in &endpoints {
        let host = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
        if !host.is_some_and(|host| !host.trim_end_matches('/').is_empty() && !host.contains('@')) {
            let message = format!("`{endpoint}` is not the address of an etcd");
            breach("endpoints", message, "write http://host:port or https://host:port");
        }
    }
    let tls = store.get("tls").and_then(Value::as_object);
    if let (Some(_), Some(plain)) = (tls, endpoints.iter().find(|endpoint| endpoint.starts_with("http://"))) {
        let message = format!("`{plain}` is not https, so `tls` has no effect on it");
        breach("tls", message, "write https:// in `endpoints`, or remove `tls`");
    }
    if tls.is_some_and(|tls| tls.contains_key("cert") != tls.contains_key("key")) {
        breach("tls", "`cert` and `key` belong together".into(), "name both, or neither");
    }
    // Each comparison makes etcd read all keys.
    let interval = store.get("compare_interval_ms").and_then(Value::as_u64);
    if let Some(interval @ 1..1_000) = interval {
        let message = format!("comparing keys every {interval} ms would overload etcd");
        breach("compare_interval_ms", message, "write 1000 or more, or 0 for never");
    }
    if store.contains_key("user") != store.contains_key("password") {
        breach("user", "`user` and `password` belong together".into(), "name both, or neither");
    }
    let prefix = text("prefix").unwrap_or("/apisix");
    if !prefix.starts_with('/') || prefix.ends_with('/') {
        let message = format!("the prefix `{prefix}` must begin with a slash and not end with one");
        breach("prefix", message, "write it like /apisix");
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contradictory_settings_are_reported_in_a_sentence() {
        let check = |store: Value, expected: &[(&str, &str)]| {
            let found = breaches(store.as_object().unwrap());
            let fields: Vec<_> = found.iter().map(|breach| breach.field).collect();
            assert_eq!(fields, expected.iter().map(|(field, _)| *field).collect::<Vec<_>>(), "{store}");
            for (breach, (_, fragment)) in found.iter().zip(expected) {
                assert!(breach.message.contains(fragment), "{}: {fragment}", breach.message);
            }
        };
        check(json!({}), &[]);
        check(json!({"kind": "embedded", "path": "./data"}), &[]);
        check(serde_json::to_value(Store::default()).unwrap(), &[]);
        check(json!({"endpoints": ["http://h:1"]}), &[("endpoints", "this store is embedded")]);
        check(
            json!({"user": "u", "password": "p"}),
            &[("user", "needs an etcd"), ("password", "needs an etcd")],
        );
        check(json!({"kind": "etcd"}), &[("endpoints", "needs `endpoints`")]);
        let etcd = |more: Value| {
            let mut store = json!({"kind": "etcd", "endpoints": ["http://127.0.0.1:2379"]});
            store.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            store
        };
        check(etcd(json!({})), &[]);
        check(etcd(json!({"endpoints": ["127.0.0.1:2379"]})), &[("endpoints", "not the address")]);
        check(etcd(json!({"endpoints": ["http://"]})), &[("endpoints", "not the address")]);
        check(etcd(json!({"tls": {}})), &[("tls", "is not https")]);
        let secure = json!({"endpoints": ["https://h:1"], "tls": {"cert": "c"}});
        check(etcd(secure), &[("tls", "belong together")]);
        check(etcd(json!({"compare_interval_ms": 999})), &[("compare_interval_ms", "every 999 ms")]);
        check(etcd(json!({"compare_interval_ms": 0})), &[]);
        check(etcd(json!({"user": "u"})), &[("user", "belong together")]);
        check(etcd(json!({"prefix": "apisix"})), &[("prefix", "slash")]);
        check(etcd(json!({"prefix": "/"})), &[("prefix", "slash")]);
    }

    #[test]
    fn a_file_names_its_store() {
        let parse = |text: &str| {
            let env = |name: &str| (name == "ETCD_PASSWORD").then(|| "hush".to_owned());
            crate::parse(text, &crate::ParseOptions { env: &env, ..crate::ParseOptions::default() })
        };
        let text = "store: { kind: etcd, endpoints: [\"http://127.0.0.1:2379\"], user: root, password: \"${{ETCD_PASSWORD}}\" }\nroutes: []\n";
        let checked = parse(text).unwrap();
        let store = checked.config.settings.store.unwrap();
        assert_eq!((store.kind, store.password.as_deref()), (StoreKind::Etcd, Some("hush")));
        assert_eq!((store.prefix.as_str(), store.path.to_str()), ("/apisix", Some("./data")));
        let embedded = parse("store: { kind: embedded, path: \"./data\" }\nroutes: []\n").unwrap();
        assert_eq!(embedded.config.settings.store, Some(Store::default()));
        // The full form is read back as the same.
        let full = parse(&embedded.normalized().to_string()).unwrap();
        assert_eq!(full.config, embedded.config);
        let problems = parse("store: { kind: file, prefix: 1 }\n").unwrap_err();
        assert_eq!(problems.len(), 2, "{problems:?}");
        let problems = parse("store: { prefix: \"/p\" }\nroutes: []\n").unwrap_err();
        assert!(problems[0].to_string().contains("this store is embedded"), "{}", problems[0]);
    }

    #[test]
    fn the_password_is_not_shown() {
        let store = Store { password: Some("hush".into()), ..Store::default() };
        assert!(!format!("{store:?}").contains("hush"));
    }
}
