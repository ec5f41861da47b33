//! Rules across the fields of one resource that a schema cannot express.
//!
//! They check the value, not the types, so that they also find problems in an item with other problems. Each rule
//! returns violations in APISIX's order; a file reports all of them, the Admin API the first one.

pub(crate) mod acme;
mod balancing;
mod cache;
mod fastcgi;
pub(crate) mod hosts;
pub(crate) mod listeners;
mod node_http3;
mod node_states;
mod resilience;
pub(crate) mod ssl_pair;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::pem;
use crate::resources::DiscoveryArgs;
use crate::resources::reference::is_reference;
use crate::settings::discovery::{Registry, check_service};
use sigma_schema::cidr::Cidr;
use sigma_schema::expr::Expr;
use sigma_schema::node_address::{split_address, split_node};
use sigma_schema::path_regex::Written;
use sigma_schema::plugins::{PluginSchemas, ScriptForm};
use sigma_schema::problem::{Problem, closest, element, member};
use sigma_schema::proto;

pub(crate) use node_states::strangers;

pub(crate) type Object = Map<String, Value>;

fn problem(
    place: impl Into<String>,
    code: &'static str,
    message: impl Into<String>,
    hint: &'static str,
) -> Problem {
    Problem::new(place, code, message).hint(hint)
}

fn word<'a>(object: &'a Object, key: &str) -> Option<&'a str> {
    object.get(key).and_then(Value::as_str)
}

/// The remedy for an invalid condition.
pub(crate) const EXPRESSION_HINT: &str = "a condition is [[variable, operator, value], …] with one of ==, ~=, >, >=, <, <=, ~~, ~*, in, has, ipmatch";

/// Returns the violations that APISIX checks before the schema, for a route.
pub(crate) fn route_before_schema(route: &Object) -> Vec<Problem> {
    let mut found = Vec::new();
    for (one, several) in [("host", "hosts"), ("remote_addr", "remote_addrs")] {
        if route.contains_key(one) && route.contains_key(several) {
            let message = format!("only one of {one} or {several} is allowed");
            found.push(problem(several, "conflict", message, "keep one of the two"));
        }
    }
    found
}

/// Rewords a violation for the writer of a file; the rules have APISIX's Admin API texts.
pub(crate) fn in_plain_words(mut problem: Problem) -> Problem {
    let text = problem.message.strip_prefix("invalid configuration: ").unwrap_or(&problem.message);
    let is_url = problem.code == "node" && problem.pointer.contains("://");
    let plain = match problem.code {
        "expression" | "body_condition" | "plugin" => {
            let reason = text.strip_prefix("failed to validate the 'vars' expression: ");
            reason.map(|reason| format!("the condition is not valid: {reason}"))
        }
        "certificate" | "private_key" => {
            text.split_once("() failed: ").map(|(_, reason)| format!("not usable: {reason}"))
        }
        "missing" if text == "missing key" => Some("`key` is required with this `type`".to_owned()),
        "pattern" if text.contains(HASH_VARS_PATTERN) => Some("no variable to hash".to_owned()),
        _ if is_url => Some("a node has no scheme".to_owned()),
        _ => None,
    };
    let plain = plain.unwrap_or_else(|| text.to_owned());
    if problem.code == "plugin" && plain.starts_with("the condition is not valid") {
        problem.hint = Some(EXPRESSION_HINT.to_owned());
    } else if is_url {
        problem.hint = Some("write host:port; the scheme goes into `scheme`".to_owned());
    } else if text.contains(HASH_VARS_PATTERN) {
        let hint = "write remote_addr, uri, host, server_name, … or arg_NAME, without `$`";
        problem.hint = Some(hint.to_owned());
    }
    problem.message = plain;
    problem
}

/// Checks the inline upstream of a route or service.
pub(crate) fn inline_upstream(item: &Object) -> Vec<Problem> {
    let Some(upstream) = item.get("upstream").and_then(Value::as_object) else { return Vec::new() };
    self::upstream(upstream).into_iter().map(|problem| problem.within("upstream")).collect()
}

/// Returns the violations that APISIX checks last, for a route.
pub(crate) fn route_conditions(route: &Object, plugins: &dyn PluginSchemas) -> Vec<Problem> {
    let mut found = Vec::new();
    found.extend(route.get("vars").and_then(vars));
    if let Some(pattern) = route.get("rewrite").and_then(|rewrite| rewrite.get("regex")?.as_str())
        && let Err(error) = regex::Regex::new(pattern)
    {
        let message = format!("invalid regex: {error}");
        found.push(problem("rewrite.regex", "regex", message, "see the syntax of the Rust crate `regex`"));
    }
    found.extend(path_expressions(route));
    found.extend(set_names(route));
    found.extend(resilience::breaches(route));
    found.extend(cache::breaches(route));
    found.extend(script(route, "filter_func", ScriptForm::Condition, plugins));
    found.extend(script(route, "script", ScriptForm::Script, plugins));
    found
}

/// Returns the invalid regular expressions among the path patterns of a route.
fn path_expressions(route: &Object) -> Vec<Problem> {
    let several = route.get("uris").and_then(Value::as_array).into_iter().flatten().enumerate();
    let one = route.get("uri").map(|uri| ("uri".to_owned(), uri));
    let patterns = one.into_iter().chain(several.map(|(at, uri)| (element("uris", at), uri)));
    let invalid = |(place, uri): (String, &Value)| {
        let reason = Written::of(uri.as_str()?)?.compile().err()?;
        Some(problem(place, "regex", reason, "see the syntax of the Rust crate `regex`"))
    };
    patterns.filter_map(invalid).collect()
}

/// Returns the invalid names of variables that a route sets.
fn set_names(route: &Object) -> Vec<Problem> {
    let set = route.get("set").and_then(Value::as_object).into_iter().flatten();
    let invalid = |(name, _): (&String, &Value)| {
        let message = format!("`{name}` is not a name of letters, digits and `_`");
        (!crate::settings::variables::is_name(name))
            .then(|| problem(member("set", name), "pattern", message, "it is read as $var_NAME"))
    };
    set.filter_map(invalid).collect()
}

/// Returns the violations that APISIX checks last, for a service.
pub(crate) fn service_conditions(service: &Object, plugins: &dyn PluginSchemas) -> Vec<Problem> {
    let script = script(service, "script", ScriptForm::Script, plugins).into_iter();
    script.chain(cache::breaches(service)).collect()
}

/// The remedy for a condition on the body that is evaluated before the body is read.
pub(crate) const BODY_HINT: &str = "ask for an argument, a header or a cookie; the `match` of the plugin traffic-split can ask for `post_arg_<name>`";

/// Returns the error for a condition on the body that is evaluated before the body is read.
pub(crate) fn before_body(condition: &Expr) -> Option<String> {
    let variable = condition.needs_body()?;
    Some(format!("`{variable}` is read from the request body, which has not arrived when this is decided"))
}

/// Checks the condition of a route.
fn vars(vars: &Value) -> Option<Problem> {
    // In Lua the empty object equals the empty list.
    if vars.as_object().is_some_and(Map::is_empty) {
        return None;
    }
    let (code, reason, hint) = match Expr::parse(vars) {
        Err(error) => ("expression", error.to_string(), EXPRESSION_HINT),
        Ok(_) => return None,
    };
    let message = format!("failed to validate the 'vars' expression: {reason}");
    Some(problem("vars", code, message, hint))
}

/// Checks a script.
fn script(
    item: &Object,
    field: &'static str,
    form: ScriptForm,
    plugins: &dyn PluginSchemas,
) -> Option<Problem> {
    let text = item.get(field)?.as_str()?;
    let message = plugins.check_script(form, text).err()?;
    let hint = "`[string \"…\"]:2:` names line 2 of the text";
    Some(problem(field, "script", message, hint))
}

/// Checks an upstream, separate or inline.
pub(crate) fn upstream(upstream: &Object) -> Vec<Problem> {
    let mut found = Vec::new();
    if let Some(nodes) = upstream.get("nodes") {
        found.extend(self::nodes(nodes).into_iter().map(|(place, message, hint)| {
            let place = format!("nodes{place}");
            problem(place, "node", message, hint)
        }));
    }
    found.extend(service(upstream));
    if word(upstream, "pass_host") == Some("rewrite")
        && word(upstream, "upstream_host").is_none_or(str::is_empty)
    {
        let message = "`upstream_host` can't be empty when `pass_host` is `rewrite`";
        found.push(problem("", "missing", message, "add `upstream_host`"));
    }
    if let Some(tls) = upstream.get("tls").and_then(Value::as_object) {
        let pair = (word(tls, "client_cert"), word(tls, "client_key"));
        if let (Some(cert), Some(key)) = pair {
            found.extend(certificate("tls.client_cert", cert));
            found.extend(private_key("tls.client_key", key));
        }
        found.extend(word(tls, "ca").and_then(|ca| certificate("tls.ca", ca)));
        found.extend(tls.get("starttls").into_iter().flat_map(|_| starttls(upstream)));
        found.extend(node_http3::rules(upstream, tls));
    }
    if word(upstream, "type") == Some("none") && word(upstream, "scheme") != Some("kafka") {
        let message = "`none` selects no node; use it with `scheme: kafka` only";
        found.push(problem("type", "conflict", message, "write `roundrobin`, or leave `type` out"));
    }
    if word(upstream, "type").is_some_and(hashes) {
        found.extend(hash_key(word(upstream, "hash_on").unwrap_or("vars"), word(upstream, "key")));
    }
    found.extend(balancing::rules(upstream));
    found.extend(node_states::rules(upstream));
    found.extend(fastcgi::rules(upstream));
    found.extend(resilience::breaches(upstream));
    found
}

/// An upstream with `tls.starttls`: without TLS nothing would be encrypted, and probes of HTTP meet a database.
fn starttls(upstream: &Object) -> Vec<Problem> {
    let mut found = Vec::new();
    if word(upstream, "scheme") != Some("tls") {
        let message = "`tls.starttls` needs `scheme: tls`";
        found.push(problem("tls.starttls", "conflict", message, "write `scheme: tls`, or remove it"));
    }
    let active = upstream.get("checks").and_then(|checks| checks.get("active")?.as_object());
    if active.is_some_and(|active| word(active, "type") != Some("tcp") && !active.contains_key("port")) {
        let message = "nodes with `tls.starttls` do not respond to HTTP or gRPC probes";
        let hint = "write `type: tcp`, or set the `port` of a server that responds to them";
        found.push(problem("checks.active.type", "conflict", message, hint));
    }
    found
}

/// Whether a type hashes a key.
pub(crate) fn hashes(balance: &str) -> bool {
    matches!(balance, "chash" | "maglev" | "rendezvous")
}

/// Checks the service in which an upstream finds its nodes.
fn service(upstream: &Object) -> Option<Problem> {
    // The schema requires both.
    let word_of_type = word(upstream, "discovery_type")?;
    let Ok(registry) = word_of_type.parse::<Registry>() else {
        let words = Registry::ALL.map(Registry::word);
        let hint = match closest(word_of_type, words) {
            Some(close) => format!("did you mean `{close}`?"),
            None => format!("registries are {}", words.join(", ")),
        };
        let message = format!("`{word_of_type}` is not a service registry");
        return Some(Problem::new("discovery_type", "not_served", message).hint(hint));
    };
    let name = word(upstream, "service_name")?;
    // A value that the schema refuses has no arguments.
    let args = upstream.get("discovery_args").and_then(|args| DiscoveryArgs::deserialize(args).ok());
    let wrong = check_service(registry, name, args.as_ref()).err()?;
    Some(problem(wrong.place, "service", wrong.message, wrong.hint))
}

/// Returns place, message and remedy of every invalid node.
fn nodes(nodes: &Value) -> Vec<(String, String, &'static str)> {
    match nodes {
        Value::Object(weights) => {
            let wrong = |address: &String| {
                let reason = split_address(address).err()?;
                Some((member("", address), reason, "write host:port"))
            };
            weights
                .keys()
                .filter_map(wrong)
                .map(|(place, reason, hint)| (quoted(place), reason, hint))
                .collect()
        }
        Value::Array(list) => {
            let wrong = |(index, node): (usize, &Value)| {
                let port = node.get("port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
                let reason = split_node(node.get("host")?.as_str()?, port).err()?;
                let hint = "write a host name or an address; the port goes into `port`";
                Some((member(&element("", index), "host"), reason, hint))
            };
            list.iter().enumerate().filter_map(wrong).collect()
        }
        // The schema refuses it.
        _ => Vec::new(),
    }
}

/// Returns the pointer of a member, to be appended to the pointer of its object.
fn quoted(place: String) -> String {
    if place.starts_with('[') { place } else { format!(".{place}") }
}

/// Checks the key of consistent hashing.
fn hash_key(hash_on: &str, key: Option<&str>) -> Option<Problem> {
    let Some(key) = key else {
        let missing = problem("", "missing", "missing key", "add `key`, for example remote_addr");
        return (hash_on != "consumer").then_some(missing);
    };
    let word = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    let (valid, pattern) = match hash_on {
        "vars" => {
            (HASH_VARIABLES.contains(&key) || key.strip_prefix("arg_").is_some_and(word), HASH_VARS_PATTERN)
        }
        "header" | "cookie" => (word(key), "^[a-zA-Z0-9-_]+$"),
        _ => return None,
    };
    let message = format!("invalid configuration: failed to match pattern \"{pattern}\" with \"{key}\"");
    let hint = "choose another key or another `hash_on`";
    (!valid).then(|| problem("key", "pattern", message, hint))
}

pub(crate) const HASH_VARIABLES: [&str; 10] = [
    "uri",
    "server_name",
    "server_addr",
    "request_uri",
    "remote_port",
    "remote_addr",
    "query_string",
    "host",
    "hostname",
    "mqtt_client_id",
];

const HASH_VARS_PATTERN: &str = r"^((uri|server_name|server_addr|request_uri|remote_port|remote_addr|query_string|host|hostname|mqtt_client_id)|arg_[0-9a-zA-z_-]+)$";

const PEM_HINT: &str = "write the text of a PEM file, or a reference such as $secret://vault/1/path/key";

const DECRYPT_HINT: &str = "convert it: openssl pkcs8 -topk8 -in old.key -out new.key";

fn certificate(place: &str, text: &str) -> Option<Problem> {
    if is_reference(text) {
        return None;
    }
    let error = pem::certificates(text).err()?;
    Some(problem(
        place,
        "certificate",
        format!("failed to parse cert: PEM_read_bio_X509_AUX() failed: {error}"),
        PEM_HINT,
    ))
}

fn private_key(place: &str, text: &str) -> Option<Problem> {
    if is_reference(text) {
        return None;
    }
    if !text.starts_with("---") {
        // Fields that were encrypted in the store are already decrypted here.
        let message = "failed to decrypt previous encrypted key";
        return Some(problem(place, "private_key", message, PEM_HINT));
    }
    let error = pem::private_key(text).err()?;
    let hint = if pem::is_encrypted(text) { DECRYPT_HINT } else { PEM_HINT };
    let message = format!("failed to parse key: PEM_read_bio_PrivateKey() failed: {error}");
    Some(problem(place, "private_key", message, hint))
}

/// Checks a certificate with its key.
pub(crate) fn ssl(ssl: &Object) -> Vec<Problem> {
    let mut found = acme::of_ssl(ssl);
    found.extend(word(ssl, "cert").and_then(|cert| certificate("cert", cert)));
    found.extend(word(ssl, "key").and_then(|key| private_key("key", key)));
    let list = |key: &str| ssl.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let (certs, keys) = (list("certs"), list("keys"));
    if certs.len() != keys.len() {
        let message = "mismatched number of certs and keys";
        found.push(problem("keys", "length", message, "give each of `certs` its key in `keys`"));
    }
    for (index, (cert, key)) in certs.iter().zip(keys).enumerate() {
        let cert = cert.as_str().and_then(|cert| certificate(&element("certs", index), cert));
        let key = key.as_str().and_then(|key| private_key(&element("keys", index), key));
        found.extend(cert.into_iter().chain(key).map(|mut problem| {
            problem.message = format!("failed to handle cert-key pair[{}]: {}", index + 1, problem.message);
            problem
        }));
    }
    if let Some(ca) = ssl.get("client").and_then(|client| client.get("ca")?.as_str())
        && let Some(mut problem) = certificate("client.ca", ca)
    {
        problem.message = format!("failed to validate client_cert: {}", problem.message);
        found.push(problem);
    }
    let skipped = ssl.get("client").and_then(|client| client.get("skip_mtls_uri_regex")?.as_array());
    for (index, pattern) in skipped.into_iter().flatten().enumerate() {
        if let Some(Err(error)) = pattern.as_str().map(regex::Regex::new) {
            let place = element("client.skip_mtls_uri_regex", index);
            found.push(problem(
                place,
                "regex",
                format!("invalid regex: {error}"),
                "see the syntax of the Rust crate `regex`",
            ));
        }
    }
    found
}

/// Checks a Protocol Buffers definition.
pub(crate) fn proto(proto: &Object) -> Option<Problem> {
    let error = proto::check(word(proto, "content")?).err()?;
    let hint = "write the text of one .proto file, or the base64 of what `protoc --include_imports -o` makes";
    Some(problem("content", "proto", format!("invalid content: {error}"), hint))
}

/// Checks a stream route without its plugins, which APISIX checks first.
pub(crate) fn stream_route(route: &Object, id: Option<&str>) -> Vec<Problem> {
    let mut found = Vec::new();
    for field in ["remote_addr", "server_addr"] {
        if let Some(address) = word(route, field)
            && address.parse::<Cidr>().is_err()
        {
            let message = format!("invalid {field}: {address}");
            found.push(problem(field, "format", message, "for example 10.0.0.0/8"));
        }
    }
    if let Some(protocol) = route.get("protocol").and_then(Value::as_object) {
        let superior = protocol.get("superior_id").and_then(sigma_schema::id::text_of_id);
        if superior.is_some() && superior.as_deref() == id {
            let message = "stream route can not set itself as superior_id";
            found.push(problem("protocol.superior_id", "reference", message, "name another one"));
        }
        if let Some(name) = word(protocol, "name") {
            let message = format!("unknown protocol [{name}]");
            let hint = "remove `protocol`; this version knows none";
            found.push(problem("protocol.name", "not_served", message, hint));
        }
    }
    found.extend(inline_upstream(route));
    found
}
