//! Tests of single resources: accepted values, the exact text of every error, and the results.

mod bounds;
mod everywhere;

use serde_json::json;

use super::*;
use crate::Surroundings;
use crate::resources::kind::ResourceKey;
use crate::resources::*;
use crate::settings::RouterKind;
use sigma_schema::Problem;
use sigma_schema::plugins::NoPlugins;
use sigma_schema::validation::Unread;

/// Five plugins: `limit-count` requires `count`, `key-auth` authenticates, `mqtt-proxy` serves streams, `cors` and
/// `consumer-restriction` accept anything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TestPlugins;

/// The plugins of requests.
const OF_REQUESTS: [&str; 7] = [
    "cors",
    "key-auth",
    "limit-count",
    "consumer-restriction",
    "grpc-transcode",
    "traffic-split",
    "redirect",
];

impl PluginSchemas for TestPlugins {
    fn names(&self) -> Vec<&str> {
        vec!["cors", "key-auth", "limit-count"]
    }

    fn schema(&self, name: &str, scope: PluginScope) -> Option<&Value> {
        static ANY: Value = Value::Bool(true);
        let known = match scope {
            PluginScope::Http => OF_REQUESTS.contains(&name),
            PluginScope::Consumer => name == "key-auth",
            PluginScope::Stream => name == "mqtt-proxy",
            PluginScope::Metadata => name == "cors",
        };
        known.then_some(&ANY)
    }

    fn is_auth(&self, name: &str) -> bool {
        name == "key-auth"
    }

    fn check(&self, name: &str, scope: PluginScope, conf: &Value) -> Result<(), PluginRefusal> {
        let wants = |field: &str| match conf.get(field) {
            Some(_) => Ok(()),
            None => Err(PluginRefusal::Invalid(format!("property \"{field}\" is required"))),
        };
        match (name, scope) {
            ("limit-count", PluginScope::Http) => wants("count"),
            ("key-auth", PluginScope::Consumer) => wants("key"),
            ("mqtt-proxy", PluginScope::Stream) => wants("protocol_name"),
            ("cors", PluginScope::Metadata) => wants("allow_origins"),
            (name, PluginScope::Http) if OF_REQUESTS.contains(&name) => Ok(()),
            ("key-auth" | "limit-count", PluginScope::Metadata) => Ok(()),
            _ => Err(PluginRefusal::Unknown),
        }
    }

    fn unread(&self, name: &str, scope: PluginScope, conf: &Value) -> Vec<Unread> {
        let known = ["count", "time_window", "rejected_code"];
        let names = conf.as_object().into_iter().flat_map(|conf| conf.keys());
        let unread = names.filter(|field| name == "limit-count" && !known.contains(&field.as_str()));
        match scope {
            PluginScope::Http => {
                unread.map(|field| Unread::unknown(field, known.map(str::to_owned).into())).collect()
            }
            _ => Vec::new(),
        }
    }

    fn attributes(&self, name: &str) -> Option<Value> {
        let schema = json!({ "type": "object", "properties": {
            "port": { "type": "integer" },
            "old": { "type": "integer", "description": "Without effect: it is gone." },
        } });
        (name == "cors").then_some(schema)
    }

    fn warnings(&self, name: &str, _: PluginScope, conf: &Value) -> Vec<Problem> {
        let advised = name == "cors" && conf.get("odd").is_some();
        advised.then(|| Problem::new("odd", "odd", "this is odd")).into_iter().collect()
    }

    fn unique_attribute(&self, name: &str) -> Option<&str> {
        (name == "key-auth").then_some("key")
    }

    fn secret_fields(&self, name: &str, scope: PluginScope) -> Vec<&str> {
        match (name, scope) {
            ("key-auth", PluginScope::Consumer) => vec!["key"],
            _ => Vec::new(),
        }
    }
}

/// Returns the smallest DER sequence with content, as PEM that is long enough for the schemas.
pub(crate) fn pem(label: &str) -> String {
    let body = format!("MIGQ{}", "A".repeat(192));
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}

fn around(unknown: UnknownFields) -> Surroundings<'static> {
    Surroundings {
        plugins: &TestPlugins,
        unknown,
        router: RouterKind::default(),
        now: 0,
        trusts_proxies: false,
    }
}

/// An unknown field is refused by a write and by a store, or only causes a warning.
#[test]
fn fields_that_do_not_exist() {
    let check = |kind: Kind, value: Value, expected: &[&str]| {
        let key = ResourceKey::new(kind, "vault/1");
        let id = (kind == Kind::Secret).then_some("vault/1").or(Some("1"));
        let outcome = |unknown| {
            let written = super::check(kind, id, &value, &TestPlugins, unknown);
            let read = read(&key, &value, &TestPlugins, unknown).map(drop);
            assert_eq!(written, read, "{value}");
            written.err().unwrap_or_default()
        };
        let places = |unknown| -> Vec<String> {
            let warnings = warnings(kind, id, &value, &around(unknown));
            warnings.iter().map(ToString::to_string).collect()
        };
        let refusal = match expected {
            [] => String::new(),
            several => format!("invalid configuration: {}", several.join("; ")),
        };
        assert_eq!(outcome(UnknownFields::Refuse), refusal, "{value}");
        assert_eq!(outcome(UnknownFields::Warn), "", "{value}");
        assert_eq!(places(UnknownFields::Refuse), [""; 0], "{value}");
        let warned = places(UnknownFields::Warn);
        assert_eq!(warned.len(), expected.len(), "{warned:?}");
        for (warned, expected) in warned.iter().zip(expected) {
            let field = expected.split('`').nth(1).unwrap();
            assert!(warned.contains(&format!("unknown field `{field}`, without effect (")), "{warned}");
        }
    };
    let upstream = |field: &str, value: Value| json!({ "nodes": nodes(), field: value });
    let cases = [
        (
            json!({ "nodes": nodes(), "scheme": "https", "tls": { "verfy": true } }),
            "`verfy` at tls: did you mean `verify`?",
        ),
        (upstream("keepalive_pool", json!({ "sise": 1 })), "`sise` at keepalive_pool: did you mean `size`?"),
        (
            upstream("checks", json!({ "active": { "healthy": { "succeses": 1 } } })),
            "`succeses` at checks.active.healthy: did you mean `successes`?",
        ),
        (
            upstream("timeout", json!({ "connect": 1, "send": 1, "read": 1, "reed": 1 })),
            "`reed` at timeout: did you mean `read`?",
        ),
        (
            json!({ "nodes": [{ "host": "a", "weight": 1 }, { "host": "b", "weight": 1, "weigth": 1 }] }),
            "`weigth` at nodes[1]: did you mean `weight`?",
        ),
        (
            upstream("discovery_args", json!({ "zone": "a" })),
            "`zone` at discovery_args: known fields are namespace_id, group_name, metadata, datacenter, tags",
        ),
    ];
    for (upstream, text) in cases {
        check(Kind::Upstream, upstream.clone(), &[&format!("unknown field {text}")]);
        let (field, place) = text.split_once(" at ").unwrap();
        let inline = json!({ "uri": "/a", "upstream": upstream });
        check(Kind::Route, inline, &[&format!("unknown field {field} at upstream.{place}")]);
    }
    let limited = |conf: Value| json!({ "uri": "/a", "plugins": { "limit-count": conf } });
    check(
        Kind::Route,
        limited(json!({ "count": 1, "rejeted_code": 429, "windows": 1 })),
        &[
            "unknown field `rejeted_code` at plugins.limit-count: did you mean `rejected_code`?",
            "unknown field `windows` at plugins.limit-count: known fields are count, time_window, rejected_code",
        ],
    );
    // A disabled configuration is in preparation, and may be invalid.
    check(Kind::Route, limited(json!({ "_meta": { "disable": true }, "rejeted_code": 429 })), &[]);
    let secret = json!({ "uri": "http://a", "prefix": "a", "token": "a", "tokne": "a" });
    check(Kind::Secret, secret, &["unknown field `tokne`: did you mean `token`?"]);
    let ssl = json!({ "cert": pem("CERTIFICATE"), "key": pem("PRIVATE KEY"), "sni": "a",
        "client": { "ca": pem("CERTIFICATE"), "dept": 2 } });
    check(Kind::Ssl, ssl, &["unknown field `dept` at client: did you mean `depth`?"]);
}

/// The empty list equals the empty object in Lua, and Lua clients send it.
#[test]
fn plugins_may_be_empty_lists() {
    let value = json!({ "uri": "/a", "plugins": { "cors": [], "key-auth": [] } });
    check(Kind::Route, "1", value.clone(), "");
    let key = ResourceKey::new(Kind::Route, "1");
    let AnyResource::Route(route) = read(&key, &value, &TestPlugins, UnknownFields::Refuse).unwrap() else {
        panic!("another kind")
    };
    assert!(route.plugins.values().all(|conf| **conf == json!({})), "{:?}", route.plugins);
    check(
        Kind::Route,
        "1",
        json!({ "uri": "/a", "plugins": { "cors": null } }),
        "invalid plugin conf null for plugin [cors]",
    );
    check(Kind::Upstream, "1", json!({ "nodes": [{ "host": "127.0.0.1:1980", "weight": 1 }] }), "");
    check(Kind::Upstream, "1", json!({ "nodes": { "::1:1980": 1 } }), "");
}

/// A plugin's warning has its place, also if unknown fields are refused.
#[test]
fn warnings_of_plugins_have_a_place() {
    let value = json!({ "uri": "/a", "plugins": { "cors": { "odd": 1 } } });
    let found = warnings(Kind::Route, None, &value, &around(UnknownFields::Refuse));
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found, ["plugins.cors.odd: this is odd"]);
}

/// Checks that a value is refused or accepted, and that reading it has the same result.
fn check(kind: Kind, id: &str, value: Value, expected: &str) {
    let result =
        super::check(kind, (!id.is_empty()).then_some(id), &value, &TestPlugins, UnknownFields::Refuse);
    assert_eq!(result.err().unwrap_or_default(), expected, "{kind:?} {value}");
    if expected.is_empty() {
        let key = ResourceKey::new(kind, id);
        let read = read(&key, &value, &TestPlugins, UnknownFields::Refuse).unwrap();
        assert_eq!((read.kind(), read.key().id.as_str()), (kind, id));
    }
}

fn nodes() -> Value {
    json!({ "127.0.0.1:80": 1 })
}

#[test]
fn routes() {
    let check = |value, expected| check(Kind::Route, "1", value, expected);
    let up = json!({ "nodes": nodes() });
    check(json!({ "uri": "/a", "upstream": up }), "");
    check(json!({ "uri": "/a", "upstream_id": 5, "create_time": 1, "update_time": 2.0, "labels": [] }), "");
    check(json!({ "uris": ["/a"], "service_id": "s", "plugins": {}, "vars": [["arg_a", "==", "1"]] }), "");
    check(
        json!({ "uri": "/a", "plugins": {}, "consumes": ["a/b"], "rewrite": { "regex": "a", "replacement": "" } }),
        "",
    );
    check(json!({ "uri": "/a", "host": "a", "hosts": ["b"] }), "only one of host or hosts is allowed");
    check(
        json!({ "uri": "/a", "remote_addr": "::1", "remote_addrs": ["::1"] }),
        "only one of remote_addr or remote_addrs is allowed",
    );
    check(
        json!({ "upstream": up }),
        "invalid configuration: allOf 1 failed: value should match only one schema, but matches none",
    );
    check(
        json!({ "uri": "/a", "plugin_config_id": 1 }),
        "invalid configuration: object matches none of the required: [\"plugins\",\"uri\"] or [\"upstream\",\"uri\"] or [\"upstream_id\",\"uri\"] or [\"service_id\",\"uri\"] or [\"plugins\",\"uris\"] or [\"upstream\",\"uris\"] or [\"upstream_id\",\"uris\"] or [\"service_id\",\"uris\"] or [\"script\",\"uri\"] or [\"script\",\"uris\"]",
    );
    check(
        json!({ "uri": "/a", "plugins": {}, "script": "local _M = {}" }),
        "invalid configuration: value wasn't supposed to match schema",
    );
    check(
        json!({ "uri": "/a", "plugins": {}, "methods": ["GTE"] }),
        "invalid configuration: property \"methods\" validation failed: failed to validate item 1: matches none of the enum values",
    );
    check(
        json!({ "uri": "/a", "plugins": {}, "urii": 1 }),
        "invalid configuration: additional properties forbidden, found urii",
    );
    check(
        json!({ "uri": "/a", "upstream_id": "a b" }),
        "invalid configuration: property \"upstream_id\" validation failed: object matches none of the required",
    );
    check(
        json!({ "uri": "/a", "plugins": {}, "remote_addr": "10.0.0.0/99" }),
        "invalid configuration: property \"remote_addr\" validation failed: object matches none of the required",
    );
    check(
        json!({ "uri": "/a", "plugins": {}, "labels": { "env": {} } }),
        "invalid configuration: property \"labels\" validation failed: failed to validate env (matching \".*\"): wrong type: expected string, got table",
    );
    check(
        json!({ "uri": "/a", "plugins": {}, "vars": ["arg_a", "==", "1"] }),
        "failed to validate the 'vars' expression: rule should be wrapped inside brackets",
    );
    check(
        json!({ "uri": "/a", "plugins": {}, "filter_func": "function(vars) return true end" }),
        "it needs the Lua engine, which this build lacks",
    );
    check(
        json!({ "uri": "/a", "script": "local _M = {} return _M" }),
        "it needs the Lua engine, which this build lacks",
    );
    check(json!({ "uri": "/a", "upstream": { "nodes": { "h:0": 1 } } }), "invalid port 0");
    check(
        json!({ "uri": "/a", "plugins": {}, "rewrite": { "regex": "(", "replacement": "" } }),
        "invalid regex: regex parse error:\n    (\n    ^\nerror: unclosed group",
    );
    super::tests::check(
        Kind::Route,
        "a b",
        json!({ "uri": "/a", "upstream": up }),
        "invalid configuration: property \"id\" validation failed: object matches none of the required",
    );
}

#[test]
fn plugins_of_routes() {
    let check = |plugins: Value, expected| {
        check(Kind::Route, "1", json!({ "uri": "/a", "plugins": plugins }), expected);
    };
    check(
        json!({ "limit-count": { "count": 1 }, "cors": { "_meta": { "priority": 1, "filter": [["uri", "/a"]] } } }),
        "",
    );
    check(json!({ "limit-count": { "_meta": { "disable": true } } }), "");
    check(json!({ "corse": {} }), "unknown plugin [corse]");
    check(json!({ "cors": 1 }), "invalid plugin conf 1 for plugin [cors]");
    let failed =
        "failed to check the configuration of plugin limit-count err: property \"count\" is required";
    check(json!({ "limit-count": {} }), failed);
    check(
        json!({ "cors": { "_meta": { "disabled": true } } }),
        "failed to check the configuration of plugin cors err: property \"_meta\" validation failed: additional properties forbidden, found disabled",
    );
    check(
        json!({ "cors": { "_meta": { "filter": ["uri", "==", "/a"] } } }),
        "failed to validate the 'vars' expression: rule should be wrapped inside brackets",
    );
    check(
        json!({ "cors": { "_meta": { "pre_function": "return" } } }),
        "failed to load _meta.pre_function in plugin cors: it needs the Lua engine, which this build lacks",
    );
}

#[test]
fn services() {
    let check = |value, expected| check(Kind::Service, "1", value, expected);
    check(json!({}), "");
    check(json!({ "hosts": ["*.a.com"], "upstream": { "nodes": [] }, "enable_websocket": true }), "");
    check(
        json!({ "hosts": [] }),
        "invalid configuration: property \"hosts\" validation failed: expect array to have at least 1 items",
    );
    check(json!({ "plugins": { "x": {} } }), "unknown plugin [x]");
    check(json!({ "script": "local _M = {} return _M" }), "it needs the Lua engine, which this build lacks");
}

#[test]
fn upstreams() {
    let check = |value, expected| check(Kind::Upstream, "1", value, expected);
    let with = |fields: Value| {
        let mut value = json!({ "nodes": nodes() });
        value.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        value
    };
    check(with(json!({ "type": "chash", "key": "arg_x", "retries": 0, "keepalive_pool": {} })), "");
    check(with(json!({ "type": "chash", "hash_on": "consumer" })), "");
    check(
        json!({ "nodes": [{ "host": "[::1]", "weight": 1, "port": 80, "metadata": { "note": "free" } }] }),
        "",
    );
    check(json!({ "nodes": [{ "host": "unix:/run/a", "weight": 1 }] }), "");
    check(
        with(json!({ "tls": { "client_cert": pem("CERTIFICATE"), "client_key": pem("PRIVATE KEY") } })),
        "",
    );
    check(with(json!({ "tls": { "client_cert_id": 1, "verify": true } })), "");
    check(json!({}), "invalid configuration: value should match only one schema, but matches none");
    check(
        with(json!({ "service_name": "a", "discovery_type": "dns" })),
        "invalid configuration: value should match only one schema, but matches both schemas 1 and 2",
    );
    check(
        json!({ "service_name": "a", "discovery_type": "zookeeper" }),
        "`zookeeper` is not a service registry",
    );
    check(
        json!({ "nodes": { "h": -1 } }),
        "invalid configuration: property \"nodes\" validation failed: object matches none of the required",
    );
    check(
        json!({ "nodes": [{ "host": "::1", "weight": 1, "port": 80 }] }),
        "invalid configuration: IPv6 address must be enclosed with '[' and ']'",
    );
    check(json!({ "nodes": { "h:65536": 1 } }), "invalid port 65536");
    check(
        with(json!({ "pass_host": "rewrite" })),
        "`upstream_host` can't be empty when `pass_host` is `rewrite`",
    );
    check(with(json!({ "type": "chash" })), "missing key");
    check(
        with(json!({ "type": "chash", "hash_on": "header", "key": "a b" })),
        "invalid configuration: failed to match pattern \"^[a-zA-Z0-9-_]+$\" with \"a b\"",
    );
    check(
        with(json!({ "checks": {} })),
        "invalid configuration: property \"checks\" validation failed: object matches none of the required: [\"active\"] or [\"passive\"] or [\"agent\"]",
    );
    check(
        with(json!({ "checks": { "active": { "healthy": { "successes": 255 } } } })),
        "invalid configuration: property \"checks\" validation failed: property \"active\" validation failed: property \"healthy\" validation failed: property \"successes\" validation failed: expected 255 to be at most 254",
    );
    check(
        with(json!({ "tls": { "client_cert": pem("CERTIFICATE") } })),
        "invalid configuration: property \"tls\" validation failed: failed to validate dependent schema for \"client_cert\": property \"client_key\" is required",
    );
    check(
        with(json!({ "tls": { "client_cert": "x".repeat(128), "client_key": pem("PRIVATE KEY") } })),
        "failed to parse cert: PEM_read_bio_X509_AUX() failed: no certificate in PEM",
    );
    check(
        with(json!({ "tls": { "client_cert": pem("CERTIFICATE"), "client_key": "x".repeat(64) } })),
        "failed to decrypt previous encrypted key",
    );
    check(
        with(json!({ "timeout": { "connect": 1, "send": 1 } })),
        "invalid configuration: property \"timeout\" validation failed: property \"read\" is required",
    );
}

#[test]
fn consumers_credentials_and_groups() {
    let consumer = |value, expected| check(Kind::Consumer, "jack", value, expected);
    let names = json!({ "username": "jack", "plugins": { "key-auth": { "key": "k" } }, "group_id": "g" });
    consumer(names, "");
    consumer(json!({}), "invalid configuration: property \"username\" is required");
    consumer(
        json!({ "username": "a b" }),
        "invalid configuration: property \"username\" validation failed: failed to match pattern \"^[a-zA-Z0-9_\\\\-]+$\" with \"a b\"",
    );
    consumer(
        json!({ "username": "jack", "name": "j" }),
        "invalid configuration: additional properties forbidden, found name",
    );
    let failed = "invalid plugins configuration: failed to check the configuration of plugin key-auth err: property \"key\" is required";
    consumer(json!({ "username": "jack", "plugins": { "key-auth": {} } }), failed);
    consumer(
        json!({ "username": "jack", "plugins": { "x": {} } }),
        "invalid plugins configuration: unknown plugin [x]",
    );

    let credential = |value, expected: &str| {
        let result = super::check(Kind::Credential, Some("c1"), &value, &TestPlugins, UnknownFields::Refuse);
        assert_eq!(result.err().unwrap_or_default(), expected, "{value}");
    };
    credential(json!({ "plugins": { "key-auth": { "key": "k" } } }), "");
    credential(
        json!({ "plugins": { "key-auth": { "key": "k" }, "cors": {} } }),
        "invalid configuration: property \"plugins\" validation failed: expect object to have at most 1 properties",
    );
    credential(
        json!({ "plugins": { "cors": {} } }),
        "only supports auth type plugins in consumer credential",
    );
    credential(json!({ "plugins": { "x": {} } }), "invalid plugins configuration: unknown plugin [x]");

    for kind in [Kind::ConsumerGroup, Kind::PluginConfig, Kind::GlobalRule] {
        check(kind, "g", json!({ "plugins": { "cors": {} } }), "");
        check(kind, "g", json!({}), "invalid configuration: property \"plugins\" is required");
        check(kind, "g", json!({ "plugins": { "x": {} } }), "unknown plugin [x]");
        let without =
            super::check(kind, None, &json!({ "plugins": {} }), &TestPlugins, UnknownFields::Refuse);
        assert_eq!(without, Err("invalid configuration: property \"id\" is required".to_owned()));
    }
    check(
        Kind::GlobalRule,
        "g",
        json!({ "plugins": {}, "name": "n" }),
        "invalid configuration: additional properties forbidden, found name",
    );
}

#[test]
fn certificates() {
    let (cert, key) = (pem("CERTIFICATE"), pem("PRIVATE KEY"));
    let check = |value, expected| check(Kind::Ssl, "1", value, expected);
    check(json!({ "cert": cert, "key": key, "sni": "a.com" }), "");
    check(json!({ "cert": cert, "key": key, "snis": ["a.com"], "certs": [cert], "keys": [key] }), "");
    check(json!({ "cert": cert, "key": key, "type": "client" }), "");
    check(json!({ "cert": "$secret://vault/1/a/cert", "key": "$env://KEY", "sni": "a.com" }), "");
    check(
        json!({ "cert": cert, "key": key, "sni": "*", "client": { "ca": cert, "depth": 2, "skip_mtls_uri_regex": ["^/a"] } }),
        "",
    );
    check(json!({ "cert": cert, "key": key }), "invalid configuration: then clause did not match");
    check(json!({ "cert": cert, "type": "client" }), "invalid configuration: else clause did not match");
    check(
        json!({ "cert": "x".repeat(128), "key": key, "sni": "a" }),
        "failed to parse cert: PEM_read_bio_X509_AUX() failed: no certificate in PEM",
    );
    check(
        json!({ "cert": cert, "key": format!("---{}", "x".repeat(64)), "sni": "a" }),
        "failed to parse key: PEM_read_bio_PrivateKey() failed: no private key in PEM",
    );
    check(
        json!({ "cert": cert, "key": key, "sni": "a", "certs": [cert] }),
        "mismatched number of certs and keys",
    );
    check(
        json!({ "cert": cert, "key": key, "sni": "a", "certs": ["x".repeat(128)], "keys": [key] }),
        "failed to handle cert-key pair[1]: failed to parse cert: PEM_read_bio_X509_AUX() failed: no certificate in PEM",
    );
    check(
        json!({ "cert": cert, "key": key, "sni": "a", "client": { "ca": "x".repeat(128) } }),
        "failed to validate client_cert: failed to parse cert: PEM_read_bio_X509_AUX() failed: no certificate in PEM",
    );
}

#[test]
fn other_kinds() {
    check(Kind::Proto, "1", json!({ "content": "syntax = \"proto3\";" }), "");
    check(Kind::Proto, "1", json!({}), "invalid configuration: property \"content\" is required");

    let stream = |value, expected| check(Kind::StreamRoute, "1", value, expected);
    stream(json!({ "server_port": 1, "sni": "a", "upstream": { "nodes": nodes() } }), "");
    stream(json!({ "plugins": { "mqtt-proxy": { "protocol_name": "MQTT" } } }), "");
    stream(json!({ "plugins": { "cors": {} } }), "unknown plugin [cors]");
    stream(
        json!({ "plugins": { "mqtt-proxy": {} } }),
        "failed to check the configuration of stream plugin [mqtt-proxy]: property \"protocol_name\" is required",
    );
    stream(json!({ "protocol": { "name": "redis" } }), "unknown protocol [redis]");
    stream(
        json!({ "protocol": { "name": "redis", "superior_id": 1 } }),
        "stream route can not set itself as superior_id",
    );

    let secret = |id, value, expected| check(Kind::Secret, id, value, expected);
    let vault = json!({ "uri": "http://127.0.0.1:8200", "prefix": "kv/apisix", "token": "$ENV://TOKEN" });
    secret("vault/1", vault.clone(), "");
    secret("other/1", vault, "invalid secret manager: other");
    secret(
        "aws/1",
        json!({}),
        "invalid configuration: object matches none of the required: [\"access_key_id\",\"secret_access_key\"] or [\"machine_identity\"]",
    );
    secret("gcp/1", json!({}), "invalid configuration: value should match only one schema, but matches none");

    check(Kind::PluginMetadata, "cors", json!({ "allow_origins": {} }), "");
    check(
        Kind::PluginMetadata,
        "cors",
        json!({}),
        "invalid configuration: property \"allow_origins\" is required",
    );
    check(Kind::PluginMetadata, "none", json!({}), "invalid plugin name");
    check(Kind::PluginMetadata, "", json!({}), "missing plugin name");
}

#[test]
fn references_of_resources() {
    let check = |kind, value, expected: &[(&str, Kind, &str, &str)]| {
        let found = references(kind, &value);
        let found: Vec<_> = found
            .iter()
            .map(|found| (found.field.as_str(), found.kind, found.id.as_str(), found.message_prefix.as_str()))
            .collect();
        assert_eq!(found, expected);
    };
    check(
        Kind::Route,
        json!({ "plugin_config_id": 3, "upstream_id": "u", "upstream": { "tls": { "client_cert_id": 1 } } }),
        &[
            ("upstream.tls.client_cert_id", Kind::Ssl, "1", "failed to fetch ssl info by ssl id [1]"),
            ("upstream_id", Kind::Upstream, "u", "failed to fetch upstream info by upstream id [u]"),
            (
                "plugin_config_id",
                Kind::PluginConfig,
                "3",
                "failed to fetch plugin config info by plugin config id [3]",
            ),
        ],
    );
    check(
        Kind::Consumer,
        json!({ "group_id": "g" }),
        &[(
            "group_id",
            Kind::ConsumerGroup,
            "g",
            "failed to fetch consumer group info by consumer group id [g]",
        )],
    );
    check(
        Kind::StreamRoute,
        json!({ "protocol": { "superior_id": "s" } }),
        &[("protocol.superior_id", Kind::StreamRoute, "s", "failed to fetch stream routes[s]")],
    );
    check(Kind::Proto, json!({}), &[]);
}

#[test]
fn items_of_a_store_are_read_and_kept() {
    let key = ResourceKey::new(Kind::Route, "r");
    let value = json!({ "id": 7, "uri": "/a", "priority": 2.0, "plugins": { "gone": { "_meta": { "disable": true } }, "cors": {} },
        "upstream": { "nodes": [{ "host": "::1", "port": 80, "weight": 1.0 }] } });
    assert_eq!(skipped_plugins(Kind::Route, &value, &TestPlugins), ["gone"]);
    let AnyResource::Route(route) = read(&key, &value, &TestPlugins, UnknownFields::Refuse).unwrap() else {
        panic!("another kind")
    };
    assert_eq!(&*route.upstream.as_ref().unwrap().nodes[0].host, "[::1]");
    let value = json!({ "id": 7, "uri": "/a", "priority": 2.0, "plugins": { "gone": { "_meta": { "disable": true } }, "cors": {} },
        "upstream": { "nodes": { "::1": 1.0 } } });
    let AnyResource::Route(route) = read(&key, &value, &TestPlugins, UnknownFields::Refuse).unwrap() else {
        panic!("another kind")
    };
    assert_eq!((route.id.as_str(), route.priority, route.status.is_on()), ("r", 2, true));
    assert_eq!(route.plugins.keys().map(|name| &**name).collect::<Vec<_>>(), ["cors"]);

    let mut resources = Resources::default();
    let first = AnyResource::Route(route);
    assert_eq!(resources.put(first.clone(), 5), None);
    assert_eq!(resources.get(&key).as_ref(), Some(&first));
    assert_eq!(
        (resources.order(&key).map(crate::resources::table::Order::created), resources.keys()),
        (Some(5), vec![key.clone()])
    );
    assert_eq!(resources.remove(&key), Some(first));
    assert_eq!(resources.get(&key), None);

    let credential = ResourceKey::new(Kind::Credential, "jack/credentials/c1");
    let value = json!({ "id": "c1", "plugins": { "key-auth": { "key": "k" } } });
    let AnyResource::Credential(read) =
        read(&credential, &value, &TestPlugins, UnknownFields::Refuse).unwrap()
    else {
        panic!("another kind")
    };
    assert_eq!(read.owner_and_id(), Some(("jack", "c1")));
    let refused = super::read(&key, &json!("init_dir"), &NoPlugins, UnknownFields::Refuse).unwrap_err();
    assert_eq!(refused, "invalid item data of [routes/r], val: \"init_dir\", it should be an object");
    let metadata = ResourceKey::new(Kind::PluginMetadata, "unknown");
    assert!(super::read(&metadata, &json!({ "a": 1 }), &NoPlugins, UnknownFields::Refuse).is_ok());
}

/// Size in bytes of a route with an inline upstream and one node, without the texts.
#[test]
fn routes_are_small() {
    let fixed = size_of::<Route>() + size_of::<Upstream>() + size_of::<Node>();
    assert!(fixed <= 744, "{fixed} bytes: {} + {}", size_of::<Route>(), size_of::<Upstream>());
}

#[test]
fn every_schema_compiles() {
    for kind in Kind::ALL {
        assert!(checker(kind, None).check(&Value::Null).is_err(), "{kind:?}");
        // With all of its patterns, which the checker compiles when it needs them.
        assert_eq!(validation::Schema::compile(bundled::of_kind(kind)).err(), None, "{kind:?}");
    }
    for manager in SecretProvider::ALL {
        assert_eq!(validation::Schema::compile(bundled::of_secret(manager)).err(), None, "{manager:?}");
        assert!(checker(Kind::Secret, Some(manager)).check(&Value::Null).is_err(), "{manager:?}");
    }
}

mod generated {
    use proptest::prelude::*;

    use super::*;

    pub(super) fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-z:/$*.0-9\\[\\]-]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[a-z_]{1,8}", inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_value_makes_reading_panic(
            kind in prop::sample::select(Kind::ALL.to_vec()),
            field in "(id|uri|nodes|plugins|checks|vars|tls|upstream|username|cert|key|protocol|content|labels|timeout|client)",
            value in value(),
        ) {
            let mut whole = json!({ "uri": "/a", "username": "a", "plugins": {} });
            whole[&field] = value.clone();
            for value in [&value, &whole] {
                let accepted = super::super::check(kind, Some("vault/1"), value, &TestPlugins, UnknownFields::Refuse).is_ok();
                let read = read(&ResourceKey::new(kind, "vault/1"), value, &TestPlugins, UnknownFields::Refuse);
                let _ = references(kind, value);
                prop_assert!(!accepted || read.is_ok() || kind == Kind::Consumer, "{kind:?} {value}: {read:?}");
            }
        }
    }
}
