//! Valid example values of common fields, for hints.

use super::node::JsonType;

/// Valid values of common fields, by field name.
const EXAMPLES: &[(&str, &str)] = &[
    ("access_log", "{ path: /var/log/sigma/access.log }"),
    ("acme", "{ terms_agreed: true, email: ops@shop.example }"),
    ("active", "{ http_path: /health, healthy: {}, unhealthy: {} }"),
    ("admin", "{ address: \"127.0.0.1:9180\" }"),
    ("cache", "{ valid: [{ statuses: [200], seconds: 30 }] } at a route"),
    ("certificates", "[{ cert: /etc/sigma/shop.crt, key: /etc/sigma/shop.key }]"),
    ("certs", "[\"-----BEGIN CERTIFICATE-----…\"]"),
    ("checks", "{ active: { http_path: /health, healthy: {}, unhealthy: {} } }"),
    ("consumers", "[{ username: jack, plugins: { key-auth: { key: … } } }]"),
    ("control", "{ address: \"127.0.0.1:9090\" }"),
    ("count", "100"),
    ("global_rules", "[{ id: 1, plugins: { prometheus: {} } }]"),
    ("header", "X-Api-Key"),
    ("headers", "{ X-Team: shop }"),
    ("hosts", "[shop.example, \"*.shop.example\"]"),
    ("http_statuses", "[200, 302]"),
    ("keepalive_pool", "{ size: 320, idle_timeout: 60, requests: 1000 }"),
    ("labels", "{ team: shop }"),
    ("listeners", "[\":80\"]"),
    ("methods", "[GET, POST]"),
    ("nodes", "{ \"127.0.0.1:8080\": 1 }"),
    ("passive", "{ unhealthy: { http_failures: 3 } }"),
    ("plugin_configs", "[{ id: 1, plugins: { cors: {} } }]"),
    ("plugins", "{ key-auth: {} }"),
    ("process", "{ user: sigma }"),
    ("regex_uri", "[\"^/shop/(.*)\", \"/$1\"]"),
    ("remote_addrs", "[10.0.0.0/8]"),
    ("routes", "[{ uri: \"/*\", upstream: \"http://127.0.0.1:8080\" }]"),
    ("services", "[{ id: shop, upstream: \"http://127.0.0.1:8080\" }]"),
    ("session_affinity", "{ cookie: { name: node }, secret: … }"),
    ("snis", "[shop.example]"),
    ("ssls", "[{ snis: [shop.example], cert: …, key: … }]"),
    ("store", "{ kind: embedded, path: ./data }"),
    ("stream_routes", "[{ server_port: 5432, upstream: { nodes: { \"127.0.0.1:5432\": 1 } } }]"),
    ("time_window", "60"),
    ("timeout", "{ connect: 5, send: 60, read: 60 }"),
    ("upstream", "{ nodes: { \"127.0.0.1:8080\": 1 } }"),
    ("upstreams", "[{ id: web, nodes: { \"127.0.0.1:8080\": 1 } }]"),
    ("types", "[text/html, application/json]"),
    ("uri", "\"/shop/*\""),
    ("uris", "[/shop, \"/shop/*\"]"),
    ("username", "jack"),
    ("valid", "[{ statuses: [200], seconds: 30 }]"),
    ("vars", "[[arg_version, ==, \"2\"]]"),
    ("weight", "1"),
];

/// Returns an example for a common field whose value is an object or a list.
pub(super) fn inner_example(field: &str) -> Option<String> {
    let (_, value) = EXAMPLES.iter().find(|(name, _)| *name == field)?;
    value.starts_with(['{', '[']).then(|| format!("{field}: {value}"))
}

/// Returns the hint with a valid value of a common field, if one of the types accepts it: plugins have fields with the
/// same names and other values.
pub(super) fn typed_example(field: &str, types: &[JsonType]) -> Option<String> {
    let (_, value) = EXAMPLES.iter().find(|(name, _)| *name == field)?;
    let fits = |kind: &JsonType| match value.chars().next() {
        Some('{') => matches!(kind, JsonType::Object | JsonType::Table),
        Some('[') => matches!(kind, JsonType::Array | JsonType::Table),
        _ => !matches!(kind, JsonType::Object | JsonType::Array | JsonType::Table),
    };
    // An item of `listeners` may be an address, which its schema does not know. No plugin has such a field.
    let is_fit = field == "listeners" || types.iter().any(fits);
    is_fit.then(|| format!("for example {field}: {value}"))
}

/// Returns the hint with a valid value of a common field.
pub(super) fn example(field: &str) -> Option<String> {
    let (_, value) = EXAMPLES.iter().find(|(name, _)| *name == field)?;
    Some(format!("for example {field}: {value}"))
}
