//! Plugins of Kong as plugins of Sigma.

use serde_json::{Map, Value, json};

use super::super::nodes::Node;
use super::super::report::Verdict;
use super::{Translation, is_set, number};

/// The plugins of a route, service, or of all.
#[derive(Debug, Clone, Default)]
pub(super) struct Plugins {
    pub fields: Map<String, Value>,
    /// Why the routes are closed.
    pub closed: Option<String>,
    /// Whether a plugin responds by itself.
    pub responds: bool,
}

impl Plugins {
    /// Adds the plugins of an outer place that the inner one does not have.
    pub(super) fn inherit(&mut self, outer: &Plugins) {
        for (name, fields) in &outer.fields {
            self.fields.entry(name.clone()).or_insert_with(|| fields.clone());
        }
        self.closed = self.closed.take().or_else(|| outer.closed.clone());
        self.responds |= outer.responds;
    }
}

/// The result of a plugin: name and fields, or why it has no counterpart.
enum ConvertedPlugin {
    Plugin(&'static str, Value),
    Differs(&'static str, Value, &'static str),
    Missing(String),
    Guard(String),
}

/// Plugins that guard access.
const GUARDS: [&str; 14] = [
    "acl",
    "basic-auth",
    "bot-detection",
    "hmac-auth",
    "ip-restriction",
    "jwt",
    "key-auth",
    "ldap-auth",
    "oauth2",
    "rate-limiting",
    "request-size-limiting",
    "request-termination",
    "session",
    "response-ratelimiting",
];

impl Translation<'_, '_> {
    /// Converts a list of plugins.
    pub(super) fn plugins_of(&mut self, list: &[&Node]) -> Plugins {
        let mut plugins = Plugins::default();
        let empty = Node::null(super::SourceLine::default());
        for node in list {
            let name = node.text_of("name").unwrap_or_default();
            if node.get("enabled").and_then(Node::boolean) == Some(false) {
                self.tell(node.place, Verdict::NoEffect, "It is switched off.");
                continue;
            }
            let is_of_some = ["consumer", "consumer_group"].iter().any(|key| is_set(node.get(key)));
            let has_place = ["service", "route"].iter().any(|key| is_set(node.get(key)));
            if is_of_some && has_place {
                let text = format!("`{name}` of single consumers at one place is not converted.");
                match GUARDS.contains(&name.as_str()) {
                    true => {
                        self.tell_guard(node.place, format!("{text} Its routes answer 503."));
                        plugins.closed.get_or_insert(text);
                    }
                    false => self.tell(node.place, Verdict::NotPossible, text),
                }
                continue;
            }
            let config = node.get("config").unwrap_or(&empty);
            plugins.responds |= matches!(
                name.as_str(),
                "request-termination" | "redirect" | "aws-lambda" | "azure-functions"
            );
            match convert(&name, config) {
                ConvertedPlugin::Plugin(ours, fields) => {
                    self.tell(node.place, Verdict::Done, "");
                    plugins.fields.insert(ours.to_owned(), fields);
                }
                ConvertedPlugin::Differs(ours, fields, text) => {
                    self.tell(node.place, Verdict::Differs, text);
                    plugins.fields.insert(ours.to_owned(), fields);
                }
                ConvertedPlugin::Missing(text) => self.tell(node.place, Verdict::NotPossible, text),
                ConvertedPlugin::Guard(text) => {
                    self.tell_guard(node.place, format!("{text} Its routes answer 503."));
                    plugins.closed.get_or_insert(text);
                }
            }
        }
        plugins
    }
}

fn convert(name: &str, config: &Node) -> ConvertedPlugin {
    match name {
        "acl" => {
            let (allow, deny) = (config.texts_of("allow"), config.texts_of("deny"));
            let field = if allow.is_empty() { "deny_labels" } else { "allow_labels" };
            let groups = if allow.is_empty() { deny } else { allow };
            ConvertedPlugin::Plugin("acl", json!({field: {"group": groups}}))
        }
        "basic-auth" => ConvertedPlugin::Plugin(
            "basic-auth",
            json!({"hide_credentials": flag(config, "hide_credentials")}),
        ),
        "key-auth" => key_auth(config),
        "jwt" => jwt(config),
        "cors" => cors(config),
        "ip-restriction" => {
            let networks = |name: &str| -> Vec<String> {
                config.texts_of(name).iter().filter_map(|text| super::super::words::network(text)).collect()
            };
            let (allow, deny) = (networks("allow"), networks("deny"));
            match (allow.is_empty(), deny.is_empty()) {
                (false, true) => ConvertedPlugin::Plugin("ip-restriction", json!({"whitelist": allow})),
                (true, false) => ConvertedPlugin::Plugin("ip-restriction", json!({"blacklist": deny})),
                _ => ConvertedPlugin::Guard("A list cannot both allow and deny addresses.".to_owned()),
            }
        }
        "bot-detection" => {
            let deny = config.texts_of("deny");
            let allow = config.texts_of("allow");
            let mut fields = Map::new();
            if !allow.is_empty() {
                fields.insert("allowlist".to_owned(), json!(allow));
            }
            if !deny.is_empty() {
                fields.insert("denylist".to_owned(), json!(deny));
            }
            if fields.is_empty() {
                return ConvertedPlugin::Guard(
                    "Kong's own list of bots is not available: use ua-restriction.".to_owned(),
                );
            }
            ConvertedPlugin::Differs(
                "ua-restriction",
                Value::Object(fields),
                "Kong's own list of bots is not converted.",
            )
        }
        "rate-limiting" => rate_limit(config),
        "request-size-limiting" => {
            let unit = match config.text_of("size_unit").as_deref() {
                Some("kilobytes") => 1000.0,
                Some("bytes") => 1.0,
                _ => 1_000_000.0,
            };
            let size = (number(config, "allowed_payload_size", 128.0) * unit) as u64;
            ConvertedPlugin::Plugin("client-control", json!({"max_body_size": size}))
        }
        "request-termination" => {
            let status = number(config, "status_code", 503.0) as u16;
            let body = config
                .text_of("body")
                .or_else(|| config.text_of("message").map(|text| json!({"message": text}).to_string()));
            let mut abort = json!({"http_status": status});
            if let Some(body) = body {
                abort["body"] = body.replace('$', "\\$").into();
                abort["headers"] = json!({"Content-Type": config.text_of("content_type").unwrap_or_else(|| "application/json; charset=utf-8".to_owned())});
            }
            ConvertedPlugin::Plugin("fault-injection", json!({"abort": abort}))
        }
        "request-transformer" => request_transformer(config),
        "response-transformer" => response_transformer(config),
        "correlation-id" => {
            let header = config.text_of("header_name").unwrap_or_else(|| "Kong-Request-ID".to_owned());
            ConvertedPlugin::Plugin(
                "request-id",
                json!({"header_name": header, "include_in_response": flag(config, "echo_downstream")}),
            )
        }
        "prometheus" => ConvertedPlugin::Plugin("prometheus", json!({})),
        _ => further(name, config),
    }
}

fn further(name: &str, config: &Node) -> ConvertedPlugin {
    let text = |name: &str| config.text_of(name).unwrap_or_default();
    match name {
        "http-log" => ConvertedPlugin::Plugin("http-logger", json!({"uri": text("http_endpoint")})),
        "tcp-log" => ConvertedPlugin::Plugin(
            "tcp-logger",
            json!({"host": text("host"), "port": number(config, "port", 0.0) as u16}),
        ),
        "udp-log" => ConvertedPlugin::Plugin(
            "udp-logger",
            json!({"host": text("host"), "port": number(config, "port", 0.0) as u16}),
        ),
        "file-log" => ConvertedPlugin::Plugin("file-logger", json!({"path": text("path")})),
        "grpc-web" => ConvertedPlugin::Plugin("grpc-web", json!({})),
        "zipkin" => ConvertedPlugin::Plugin(
            "zipkin",
            json!({"endpoint": text("http_endpoint"), "sample_ratio": number(config, "sample_ratio", 0.001)}),
        ),
        "redirect" => ConvertedPlugin::Differs(
            "redirect",
            json!({"ret_code": number(config, "status_code", 301.0) as u16, "uri": text("location")}),
            "The path of the request is not kept.",
        ),
        "proxy-cache" => ConvertedPlugin::Missing("Write `cache` of the route.".to_owned()),
        "pre-function" | "post-function" => ConvertedPlugin::Guard(
            "Functions for Kong may guard access: write them as serverless functions.".to_owned(),
        ),
        name if GUARDS.contains(&name)
            || name.contains("auth")
            || name.contains("openid")
            || name.contains("limit") =>
        {
            ConvertedPlugin::Guard(format!("`{name}` has no counterpart."))
        }
        "opentelemetry" | "datadog" | "statsd" | "syslog" | "loggly" | "acme" => {
            ConvertedPlugin::Missing(format!("Write the plugin or setting of Sigma for `{name}`."))
        }
        name => ConvertedPlugin::Guard(format!("`{name}` is unknown and may guard access.")),
    }
}

fn flag(config: &Node, name: &str) -> bool {
    config.get(name).and_then(Node::boolean).unwrap_or(false)
}

fn key_auth(config: &Node) -> ConvertedPlugin {
    let mut names = config.texts_of("key_names");
    if names.is_empty() {
        names.push("apikey".to_owned());
    }
    let in_header = config.get("key_in_header").and_then(Node::boolean).unwrap_or(true);
    let in_query = config.get("key_in_query").and_then(Node::boolean).unwrap_or(true);
    let list = |is_on: bool| if is_on { names.clone() } else { Vec::new() };
    if flag(config, "key_in_body") {
        return ConvertedPlugin::Guard("Keys in request bodies are not supported.".to_owned());
    }
    ConvertedPlugin::Plugin(
        "key-auth",
        json!({"headers": list(in_header), "queries": list(in_query), "hide_credentials": flag(config, "hide_credentials")}),
    )
}

fn jwt(config: &Node) -> ConvertedPlugin {
    let claim = config.text_of("key_claim_name").unwrap_or_else(|| "iss".to_owned());
    let mut fields = json!({"key_claim_name": claim, "header": "authorization"});
    if let Some(name) = config.texts_of("uri_param_names").first() {
        fields["query"] = name.clone().into();
    }
    if let Some(name) = config.texts_of("cookie_names").first() {
        fields["cookie"] = name.clone().into();
    }
    ConvertedPlugin::Plugin("jwt-auth", fields)
}

fn cors(config: &Node) -> ConvertedPlugin {
    let joined = |name: &str, default: &str| {
        let list = config.texts_of(name);
        if list.is_empty() { default.to_owned() } else { list.join(",") }
    };
    let credentials = flag(config, "credentials");
    let origins = joined("origins", "*");
    let mut fields = json!({
        "allow_methods": joined("methods", "GET,HEAD,PUT,PATCH,POST,DELETE,OPTIONS,TRACE,CONNECT"),
        "allow_headers": joined("headers", "**"),
        "allow_credential": credentials,
    });
    let is_regex = config
        .texts_of("origins")
        .iter()
        .any(|origin| origin.contains(['\\', '^', '$', '(']) || origin.contains(".*"));
    if is_regex {
        let list: Vec<String> =
            config.texts_of("origins").iter().map(|text| format!("^(?:{text})$")).collect();
        fields["allow_origins_by_regex"] = json!(list);
        fields["allow_origins"] = "https://none.invalid".into();
    } else {
        fields["allow_origins"] = if origins == "*" && credentials { "**".into() } else { origins.into() };
    }
    let exposed = config.texts_of("exposed_headers");
    if !exposed.is_empty() {
        fields["expose_headers"] = exposed.join(",").into();
    }
    if let Some(age) = config.get("max_age").and_then(Node::number) {
        fields["max_age"] = (age as u64).into();
    }
    ConvertedPlugin::Plugin("cors", fields)
}

fn rate_limit(config: &Node) -> ConvertedPlugin {
    let windows = [
        ("second", 1),
        ("minute", 60),
        ("hour", 3600),
        ("day", 86_400),
        ("month", 2_592_000),
        ("year", 31_536_000),
    ];
    let by = config.text_of("limit_by").unwrap_or_else(|| "consumer".to_owned());
    let key = match by.as_str() {
        "consumer" | "credential" => "${consumer_name ?? $remote_addr}".to_owned(),
        "ip" => "$remote_addr".to_owned(),
        "header" => {
            match config.text_of("header_name").map(|name| super::super::words::header_variable(&name)) {
                Some(Ok(variable)) => format!("${variable}"),
                _ => return ConvertedPlugin::Guard("The header of the limit has no name.".to_owned()),
            }
        }
        "service" => "$service_id".to_owned(),
        "path" => "$uri".to_owned(),
        _ => return ConvertedPlugin::Guard(format!("A limit by `{by}` is not supported.")),
    };
    let key = if key.starts_with("${consumer") { "$consumer_name$remote_addr".to_owned() } else { key };
    let rules: Vec<Value> = windows
        .iter()
        .filter_map(|(name, seconds)| {
            let count = config.get(name)?.number().filter(|count| *count > 0.0)? as u64;
            Some(json!({"count": count, "time_window": seconds, "key": key, "header_prefix": name}))
        })
        .collect();
    if rules.is_empty() {
        return ConvertedPlugin::Guard("The limit has no number.".to_owned());
    }
    let mut fields = json!({"rules": rules, "rejected_code": number(config, "error_code", 429.0) as u16,
        "allow_degradation": config.get("fault_tolerant").and_then(Node::boolean).unwrap_or(true)});
    if config.text_of("policy").as_deref() == Some("redis") {
        let redis = config.get("redis").unwrap_or(config);
        let text = |name: &str| redis.text_of(name).or_else(|| config.text_of(&format!("redis_{name}")));
        fields["policy"] = "redis".into();
        fields["redis_host"] = text("host").unwrap_or_else(|| "127.0.0.1".to_owned()).into();
        fields["redis_port"] = text("port").and_then(|text| text.parse::<u16>().ok()).unwrap_or(6379).into();
        if let Some(password) = text("password") {
            fields["redis_password"] = password.into();
        }
    }
    ConvertedPlugin::Differs(
        "limit-count",
        fields,
        "The names of the response fields differ, and with several gateways `policy: redis` shares the counters.",
    )
}

/// Pairs of `name:value`.
fn pairs(config: &Node, rule: &str, kind: &str) -> Vec<(String, String)> {
    let list = config.get(rule).map(|node| node.texts_of(kind)).unwrap_or_default();
    list.iter()
        .map(|text| {
            text.split_once(':').map_or((text.clone(), String::new()), |(name, value)| {
                (name.trim().to_owned(), value.trim().to_owned())
            })
        })
        .collect()
}

fn request_transformer(config: &Node) -> ConvertedPlugin {
    let text = |value: &str| value.replace('$', "\\$");
    let templates = ["remove", "rename", "replace", "add", "append"];
    let has_template = templates.iter().any(|rule| {
        config.get(rule).is_some_and(|node| {
            ["headers", "querystring", "uri"]
                .iter()
                .any(|kind| node.texts_of(kind).iter().any(|it| it.contains("$(")))
        })
    });
    let has_body =
        templates.iter().any(|rule| config.get(rule).is_some_and(|node| !node.texts_of("body").is_empty()));
    if has_template || has_body {
        return ConvertedPlugin::Missing(
            "Templates and changes of bodies are not converted: write proxy-rewrite or body-transformer."
                .to_owned(),
        );
    }
    let (mut set, mut add, mut remove) = (Map::new(), Map::new(), Vec::new());
    remove.extend(pairs(config, "remove", "headers").into_iter().map(|(name, _)| name));
    for (from, to) in pairs(config, "rename", "headers") {
        if let Ok(variable) = super::super::words::header_variable(&from) {
            set.insert(to, format!("${{{variable}}}").into());
            remove.push(from);
        }
    }
    for (name, value) in
        pairs(config, "replace", "headers").into_iter().chain(pairs(config, "add", "headers"))
    {
        set.insert(name, text(&value).into());
    }
    for (name, value) in pairs(config, "append", "headers") {
        add.insert(name, text(&value).into());
    }
    let mut headers = Map::new();
    for (name, map) in [("set", set), ("add", add)] {
        if !map.is_empty() {
            headers.insert(name.to_owned(), Value::Object(map));
        }
    }
    if !remove.is_empty() {
        headers.insert("remove".to_owned(), json!(remove));
    }
    let mut args = Map::new();
    let removed: Vec<String> =
        pairs(config, "remove", "querystring").into_iter().map(|(name, _)| name).collect();
    let of = |rule: &str| -> Map<String, Value> {
        pairs(config, rule, "querystring")
            .into_iter()
            .map(|(name, value)| (name, text(&value).into()))
            .collect()
    };
    let mut replaced = of("replace");
    replaced.extend(of("add"));
    for (name, map) in [("rename", of("rename")), ("set", replaced), ("add", of("append"))] {
        if !map.is_empty() {
            args.insert(name.to_owned(), Value::Object(map));
        }
    }
    if !removed.is_empty() {
        args.insert("remove".to_owned(), json!(removed));
    }
    let mut fields = Map::new();
    if !headers.is_empty() {
        fields.insert("headers".to_owned(), Value::Object(headers));
    }
    if !args.is_empty() {
        fields.insert("args".to_owned(), Value::Object(args));
    }
    if let Some(uri) = config.get("replace").and_then(|node| node.text_of("uri")) {
        fields.insert("uri".to_owned(), uri.into());
    }
    if let Some(method) = config.text_of("http_method") {
        fields.insert("method".to_owned(), method.into());
    }
    ConvertedPlugin::Differs(
        "proxy-rewrite",
        Value::Object(fields),
        "`add` and `replace` both set the field, whether or not it exists.",
    )
}

fn response_transformer(config: &Node) -> ConvertedPlugin {
    let (mut set, mut add) = (Map::new(), Vec::new());
    let remove: Vec<String> = pairs(config, "remove", "headers").into_iter().map(|(name, _)| name).collect();
    for (name, value) in
        pairs(config, "replace", "headers").into_iter().chain(pairs(config, "add", "headers"))
    {
        set.insert(name, value.replace('$', "\\$").into());
    }
    for (name, value) in pairs(config, "append", "headers") {
        add.push(format!("{name}: {value}"));
    }
    let mut headers = Map::new();
    if !set.is_empty() {
        headers.insert("set".to_owned(), Value::Object(set));
    }
    if !add.is_empty() {
        headers.insert("add".to_owned(), json!(add));
    }
    if !remove.is_empty() {
        headers.insert("remove".to_owned(), json!(remove));
    }
    if headers.is_empty() {
        return ConvertedPlugin::Missing(
            "Changes of bodies are not converted: write body-transformer or response-shaping.".to_owned(),
        );
    }
    ConvertedPlugin::Differs(
        "response-rewrite",
        json!({"headers": headers}),
        "`add` and `replace` both set the field.",
    )
}
