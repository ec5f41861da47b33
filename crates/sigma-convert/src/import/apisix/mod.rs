//! `config.yaml` of APISIX with its `apisix.yaml`: resources keep their form, settings get their names here.

use serde_json::{Map, Value, json};
use sigma_schema::document::Document;
use sigma_schema::problem::Problem;

use super::Translated;
use super::decision::{Listener, Plan};
use super::nginx::{milliseconds, size};
use super::report::{Report, Verdict};
use super::source::{FILE_BYTES, Input, SourceLine, Sources};

/// Kinds of resources in `apisix.yaml`.
const RESOURCES: &[&str] = &[
    "routes",
    "services",
    "upstreams",
    "consumers",
    "consumer_groups",
    "plugin_configs",
    "global_rules",
    "plugin_metadata",
    "ssls",
    "protos",
    "secrets",
    "stream_routes",
];

/// Converts the files: those with resources, and those with settings.
pub(super) fn translate(input: &Input<'_>) -> Result<Translated, Vec<Problem>> {
    let (mut plan, mut report, mut sources) = (Plan::default(), Report::default(), Sources::default());
    let mut problems = Vec::new();
    for file in input.files {
        let added = sources.add(&file.name, &file.text);
        let index = match added {
            Ok(index) => index,
            Err(message) => return Err(vec![Problem::new(&file.name, "limit", message)]),
        };
        // The end marker of APISIX is a comment of YAML.
        match Document::parse(&file.text, FILE_BYTES) {
            Ok(document) => {
                let mut reader =
                    Reader { plan: &mut plan, report: &mut report, document: &document, file: index };
                reader.whole();
            }
            Err(found) => problems.extend(
                found
                    .into_iter()
                    .map(|problem| Problem::new(&file.name, problem.code, problem.message).at(problem.line)),
            ),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    report.finish(sources);
    Ok(Translated { plan, report, probes: Vec::new() })
}

struct Reader<'r> {
    plan: &'r mut Plan,
    report: &'r mut Report,
    document: &'r Document,
    file: u16,
}

impl Reader<'_> {
    fn whole(&mut self) {
        let root = self.document.value.as_object().cloned().unwrap_or_default();
        for (key, value) in &root {
            match key.as_str() {
                key if RESOURCES.contains(&key) => self.resources(key, value),
                "apisix" => self.members(key, value, Self::apisix),
                "nginx_config" => self.members(key, value, Self::nginx_config),
                "deployment" => self.members(key, value, Self::deployment),
                "plugins" | "stream_plugins" | "plugin_attr" | "discovery" | "ext-plugin" => {
                    self.plan.settings.insert(key.clone(), value.clone());
                    self.remark(key, value, Verdict::Done, "");
                }
                _ => self.remark(
                    key,
                    value,
                    Verdict::NotPossible,
                    "this section is unknown and was not converted",
                ),
            }
        }
    }

    fn resources(&mut self, key: &str, value: &Value) {
        let list = value.as_array().cloned().unwrap_or_default();
        for (at, item) in list.iter().enumerate() {
            self.remark(&format!("{key}[{at}]"), item, Verdict::Done, "");
        }
        match self.plan.resources.entry(key).or_insert_with(|| json!([])) {
            Value::Array(known) => known.extend(list),
            other => *other = Value::Array(list),
        }
    }

    fn members(&mut self, section: &str, value: &Value, read: fn(&mut Self, &str, &str, &Value)) {
        for (key, value) in value.as_object().into_iter().flatten() {
            read(self, key, &format!("{section}.{key}"), value);
        }
    }

    fn apisix(&mut self, key: &str, pointer: &str, value: &Value) {
        match key {
            "node_listen" => self.node_listen(pointer, value),
            "ssl" => self.ssl(pointer, value),
            "router" => {
                if let Some(kind) = value["http"].as_str() {
                    self.setting("router", "http", kind.into());
                }
                self.remark(pointer, value, Verdict::Done, "");
            }
            "stream_proxy" => self.stream_proxy(pointer, value),
            "delete_uri_tail_slash" | "normalize_uri_like_servlet" | "match_uri_encoded_slash" => {
                self.setting("router", key, value.clone());
                self.remark(pointer, value, Verdict::Done, "");
            }
            "data_encryption" => {
                self.plan.settings.insert(key.to_owned(), value.clone());
                self.remark(pointer, value, Verdict::Done, "");
            }
            "enable_admin"
            | "proxy_mode"
            | "enable_dev_mode"
            | "enable_reuseport"
            | "enable_ipv6"
            | "enable_http2"
            | "enable_server_tokens"
            | "extra_lua_path"
            | "extra_lua_cpath"
            | "show_upstream_status_in_response_header"
            | "lru"
            | "events"
            | "tracing" => self.remark(pointer, value, Verdict::NoEffect, ""),
            "enable_control" | "control" => {
                let text = "write `control: { address: 127.0.0.1:9090 }` if you use the Control API";
                self.remark(pointer, value, Verdict::NotPossible, text);
            }
            "proxy_cache" => {
                let text = "set `cache.disk` for zones on disk";
                self.remark(pointer, value, Verdict::NotPossible, text);
            }
            "dns_resolver" => {
                self.setting("dns", "servers", value.clone());
                self.remark(pointer, value, Verdict::Done, "");
            }
            "resolver_timeout" | "dns_resolver_valid" => self.remark(pointer, value, Verdict::NoEffect, ""),
            "trusted_addresses" => {
                self.plan.settings.insert(key.to_owned(), value.clone());
                self.remark(pointer, value, Verdict::Done, "");
            }
            _ => self.remark(
                pointer,
                value,
                Verdict::NotPossible,
                "this setting is unknown and was not converted",
            ),
        }
    }

    /// `node_listen`: a port, ports, or objects.
    fn node_listen(&mut self, pointer: &str, value: &Value) {
        for item in items(value) {
            let (ip, port) = match item {
                Value::Object(fields) => {
                    (fields.get("ip").and_then(Value::as_str), fields.get("port").and_then(Value::as_u64))
                }
                item => (None, item.as_u64()),
            };
            self.listen(ip, port, Map::new());
        }
        self.remark(pointer, value, Verdict::Done, "");
    }

    fn ssl(&mut self, pointer: &str, value: &Value) {
        if value["enable"] != json!(false) {
            let mut tls = Map::new();
            if let Some(text) = value["ssl_protocols"].as_str() {
                let known: Vec<&str> =
                    text.split_whitespace().filter(|it| matches!(*it, "TLSv1.2" | "TLSv1.3")).collect();
                if known.len() == 1 {
                    tls.insert("protocols".to_owned(), json!(known));
                }
            }
            let tls = if tls.is_empty() { Value::Bool(true) } else { Value::Object(tls) };
            let listens = match &value["listen"] {
                Value::Null => vec![json!({"port": 9443})],
                listens => items(listens).cloned().collect(),
            };
            for listen in listens {
                let mut fields = Map::new();
                fields.insert("tls".to_owned(), tls.clone());
                self.listen(listen["ip"].as_str(), listen["port"].as_u64(), fields);
            }
            if let Some(name) = value["fallback_sni"].as_str() {
                self.setting("tls", "fallback_sni", name.into());
            }
            if let Some(path) = value["ssl_trusted_certificate"].as_str().filter(|path| *path != "system") {
                self.setting("tls", "trusted_certificates", path.into());
            }
        }
        self.remark(pointer, value, Verdict::Done, "");
    }

    fn stream_proxy(&mut self, pointer: &str, value: &Value) {
        for (kind, key) in [("tcp", "tcp"), ("udp", "udp")] {
            for item in items(&value[key]) {
                let (address, is_tls) = match item {
                    Value::Object(fields) => {
                        (fields.get("addr").cloned(), fields.get("tls") == Some(&json!(true)))
                    }
                    item => (Some(item.clone()), false),
                };
                let address = address
                    .map(|address| address.as_str().map_or_else(|| address.to_string(), str::to_owned));
                let Some(address) = address else { continue };
                let (ip, port) = match address.rsplit_once(':') {
                    Some((ip, port)) => (Some(ip.to_owned()), port.parse().ok()),
                    None => (None, address.parse().ok()),
                };
                let mut fields = Map::new();
                fields.insert("stream".to_owned(), if is_tls { "tls" } else { kind }.into());
                self.listen(ip.as_deref(), port, fields);
            }
        }
        self.remark(pointer, value, Verdict::Done, "");
    }

    fn listen(&mut self, ip: Option<&str>, port: Option<u64>, fields: Map<String, Value>) {
        let Some(port) = port.and_then(|port| u16::try_from(port).ok()) else { return };
        let address = format!("{}:{port}", ip.unwrap_or_default());
        self.plan.listeners.push(Listener { address, port, fields });
    }

    fn nginx_config(&mut self, key: &str, pointer: &str, value: &Value) {
        match key {
            "worker_processes" => {
                self.plan.settings.insert("workers".to_owned(), value.clone());
                self.remark(pointer, value, Verdict::Done, "");
            }
            "error_log" => {
                if let Some(path) = value.as_str() {
                    let path = if path.starts_with('/') { path } else { "stderr" };
                    self.setting("error_log", "path", path.into());
                }
                self.remark(pointer, value, Verdict::Done, "");
            }
            "error_log_level" => {
                let level = match value.as_str() {
                    Some("notice" | "info") => "info",
                    Some("debug") => "debug",
                    Some("error" | "crit" | "alert" | "emerg") => "error",
                    _ => "warn",
                };
                self.setting("error_log", "level", level.into());
                self.remark(pointer, value, Verdict::Done, "");
            }
            "http" => self.members(pointer, value, Self::http),
            "event"
            | "worker_rlimit_nofile"
            | "worker_rlimit_core"
            | "worker_shutdown_timeout"
            | "max_pending_timers"
            | "max_running_timers"
            | "enable_cpu_affinity"
            | "user"
            | "envs"
            | "stream"
            | "meta"
            | "main_configuration_snippet" => {
                let is_snippet =
                    key.ends_with("snippet") && value.as_str().is_some_and(|text| !text.trim().is_empty());
                match is_snippet {
                    true => self.remark(pointer, value, Verdict::NotPossible, SNIPPET),
                    false => self.remark(pointer, value, Verdict::NoEffect, ""),
                }
            }
            key if key.ends_with("_snippet") => self.remark(pointer, value, Verdict::NotPossible, SNIPPET),
            _ => self.remark(
                pointer,
                value,
                Verdict::NotPossible,
                "this setting is unknown and was not converted",
            ),
        }
    }

    fn http(&mut self, key: &str, pointer: &str, value: &Value) {
        let duration =
            || value.as_str().and_then(milliseconds).or_else(|| value.as_u64().map(|seconds| seconds * 1000));
        match key {
            "access_log" => self.setting("access_log", "path", value.clone()),
            "enable_access_log" if *value == json!(false) => self.setting("access_log", "path", "off".into()),
            "access_log_format" => self.setting("access_log", "format", value.clone()),
            "keepalive_timeout" => self.milliseconds("keepalive_ms", duration()),
            "client_header_timeout" => self.milliseconds("request_head_ms", duration()),
            "client_body_timeout" => self.milliseconds("request_body_ms", duration()),
            "send_timeout" => self.milliseconds("response_send_ms", duration()),
            "client_max_body_size" => {
                let bytes = value.as_u64().or_else(|| value.as_str().and_then(size)).unwrap_or(0);
                self.setting("limits", "request_body_bytes", bytes.into());
            }
            "underscores_in_headers" => {
                let word = if *value == json!("off") || *value == json!(false) { "drop" } else { "keep" };
                self.plan.settings.insert(key.to_owned(), word.into());
            }
            "real_ip_from" => _ = self.plan.settings.insert("trusted_addresses".to_owned(), value.clone()),
            "real_ip_header" => self.setting("client_address", "field", value.clone()),
            "real_ip_recursive"
            | "enable_access_log"
            | "access_log_buffer"
            | "access_log_format_escape"
            | "proxy_ssl_server_name"
            | "upstream"
            | "charset"
            | "variables_hash_max_size"
            | "lua_shared_dict"
            | "custom_lua_shared_dict"
            | "lua_shared_dicts" => {
                return self.remark(pointer, value, Verdict::NoEffect, "");
            }
            _ => {
                return self.remark(
                    pointer,
                    value,
                    Verdict::NotPossible,
                    "this setting is unknown and was not converted",
                );
            }
        }
        self.remark(pointer, value, Verdict::Done, "");
    }

    fn milliseconds(&mut self, key: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.setting("timeouts", key, value.into());
        }
    }

    fn deployment(&mut self, key: &str, pointer: &str, value: &Value) {
        match key {
            "role" | "role_data_plane" | "role_traditional" | "role_control_plane" => {
                self.remark(pointer, value, Verdict::NoEffect, "");
            }
            "etcd" => {
                let mut store = json!({"kind": "etcd"});
                store["endpoints"] = value["host"].clone();
                store["prefix"] = value.get("prefix").cloned().unwrap_or_else(|| "/apisix".into());
                let text = "with a store, resources are not in the file: write the resources of `apisix.yaml` to the store with `sigma ctl apply`, and set `store: { kind: etcd, … }`";
                self.remark(pointer, value, Verdict::NotPossible, text);
            }
            "admin" => {
                let text = "set `admin` with your own keys: the keys in the file of APISIX are public";
                self.remark(pointer, value, Verdict::NotPossible, text);
            }
            _ => self.remark(pointer, value, Verdict::NoEffect, ""),
        }
    }

    fn setting(&mut self, section: &str, key: &str, value: Value) {
        let fields = self.plan.settings.entry(section).or_insert_with(|| json!({}));
        fields[key] = value;
    }

    fn remark(&mut self, pointer: &str, value: &Value, verdict: Verdict, text: &str) {
        let line = self.document.line(pointer).unwrap_or(0);
        let shown = match value {
            Value::Object(_) | Value::Array(_) => String::new(),
            value => format!(" {value}"),
        };
        self.report.add(SourceLine { file: self.file, line }, &format!("{pointer}:{shown}"), verdict, text);
    }
}

const SNIPPET: &str = "nginx directives are not converted here: use `sigma import nginx`";

/// One item, or the items of a list.
fn items(value: &Value) -> impl Iterator<Item = &Value> {
    let (list, one) = match value {
        Value::Array(list) => (Some(list), None),
        Value::Null => (None, None),
        one => (None, Some(one)),
    };
    list.into_iter().flatten().chain(one)
}

#[cfg(test)]
mod tests {
    use super::super::source::{MemoryFiles, SourceFile};
    use super::super::{Format, import};
    use super::*;

    #[test]
    fn settings_and_resources_become_one_file() {
        let config = "apisix:\n  node_listen:\n    - 9080\n    - { ip: 127.0.0.2, port: 9081 }\n  ssl:\n    listen: [{ port: 9443 }]\n\
                      nginx_config:\n  worker_processes: 2\n  http:\n    client_max_body_size: 1m\n    keepalive_timeout: 60s\n\
                      deployment:\n  role: data_plane\n  admin: { admin_key: [] }\nodd: 1\n";
        let resources =
            "routes:\n  - id: a\n    uri: /a\n    upstream: { nodes: { \"127.0.0.1:80\": 1 } }\n#END\n";
        let file = |name: &str, text: &str| SourceFile { name: name.to_owned(), text: text.to_owned() };
        let files = [file("config.yaml", config), file("apisix.yaml", resources)];
        let imported = import(Format::Apisix, &Input { files: &files, access: &MemoryFiles::default() });
        let imported = imported.expect("a configuration");
        let document = &imported.document;
        assert_eq!(document["listeners"][0]["address"], ":9080");
        assert_eq!(document["listeners"][1]["address"], "127.0.0.2:9081");
        assert_eq!(document["listeners"][2]["tls"], true);
        assert_eq!(document["workers"], 2);
        assert_eq!(document["limits"]["request_body_bytes"], 1 << 20);
        assert_eq!(document["timeouts"]["keepalive_ms"], 60_000);
        assert_eq!(document["routes"][0]["uri"], "/a");
        assert!(document.get("router").is_none());
        assert_eq!(imported.report.count(Verdict::NotPossible), 2, "{}", imported.report.text());
    }

    #[test]
    fn broken_files_have_a_place() {
        let files = [SourceFile { name: "config.yaml".to_owned(), text: "a: [\n".to_owned() }];
        let problems = import(Format::Apisix, &Input { files: &files, access: &MemoryFiles::default() });
        assert_eq!(problems.expect_err("a problem")[0].pointer, "config.yaml");
    }
}
