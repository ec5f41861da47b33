//! The rules that go across fields (resources.md). They look at the value, not at the types, so
//! that they find what is wrong in an item whose schema problems are reported at the same time.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use serde_json::{Map, Value};

use crate::ParseOptions;
use crate::document::Document;
use crate::expr::Expr;
use crate::nodes::{check_host, split_address};
use crate::problem::{Problem, element, member};
use crate::schema::closest;

/// What was found so far.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Each stops the configuration.
    pub(crate) errors: Vec<Problem>,
    /// These stop nothing.
    pub(crate) warnings: Vec<Problem>,
}

/// Checks every rule of `document`, whose short forms are expanded.
pub(crate) fn check(document: &Document, options: &ParseOptions<'_>, found: &mut Findings) {
    let Some(root) = document.value.as_object() else { return };
    // Once for all references, so that a large file is checked in linear time.
    let ids_of = |section: &str| items(root, section).filter_map(|(_, item)| id_of(item)).collect();
    let (services, upstreams) = (ids_of("services"), ids_of("upstreams"));
    let mut rules = Rules { document, options, found, root, services, upstreams };
    rules.settings();
    for section in ["routes", "services", "upstreams"] {
        rules.unique_ids(section);
    }
    for (pointer, upstream) in objects(root, "upstreams") {
        rules.upstream(&pointer, upstream);
    }
    for (pointer, service) in objects(root, "services") {
        rules.target(&pointer, service);
    }
    for (pointer, route) in objects(root, "routes") {
        rules.route(&pointer, route);
    }
}

/// The id of an item as text: 1 and "1" are the same.
pub(crate) fn id_of(item: &Value) -> Option<String> {
    text_of_id(item.get("id")?)
}

fn text_of_id(id: &Value) -> Option<String> {
    match id {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

type Object = Map<String, Value>;

fn items<'a>(root: &'a Object, section: &str) -> impl Iterator<Item = (String, &'a Value)> {
    let list = root.get(section).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let section = section.to_owned();
    list.iter().enumerate().map(move |(index, item)| (element(&section, index), item))
}

fn objects<'a>(root: &'a Object, section: &str) -> impl Iterator<Item = (String, &'a Object)> {
    items(root, section).filter_map(|(pointer, item)| Some((pointer, item.as_object()?)))
}

struct Rules<'a> {
    document: &'a Document,
    options: &'a ParseOptions<'a>,
    found: &'a mut Findings,
    root: &'a Object,
    services: HashSet<String>,
    upstreams: HashSet<String>,
}

impl Rules<'_> {
    fn error(
        &mut self,
        pointer: &str,
        code: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let problem = self.document.problem(pointer, code, message).hint(hint);
        self.found.errors.push(problem);
    }

    /// An error, except in a standalone file, where APISIX lets it pass.
    fn error_unless_standalone(&mut self, problem: Problem) {
        match self.options.standalone_mode {
            true => self.found.warnings.push(problem),
            false => self.found.errors.push(problem),
        }
    }

    fn settings(&mut self) {
        let mut taken: HashMap<String, String> = HashMap::new();
        let listeners: Vec<(String, &Object)> = objects(self.root, "listeners").collect();
        let single = |key: &str| Some((key.to_owned(), self.root.get(key)?.as_object()?));
        let singles = ["status", "niubix_admin"].into_iter().filter_map(single);
        for (pointer, place) in listeners.into_iter().chain(singles.collect::<Vec<_>>()) {
            let Some(address) = place.get("address").and_then(Value::as_str) else { continue };
            // Port 0 is a different port each time.
            let parsed = address.parse::<SocketAddr>();
            if parsed.as_ref().is_ok_and(|address| address.port() == 0) {
                continue;
            }
            let canonical = parsed.map_or_else(|_| address.to_owned(), |address| address.to_string());
            let pointer = member(&pointer, "address");
            if let Some(first) = taken.get(&canonical) {
                let message = format!("{canonical} is already the address of {first}");
                self.error(&pointer, "duplicate_address", message, "give each its own address");
                continue;
            }
            taken.insert(canonical, pointer);
        }
        if self.root.get("listeners").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            self.error("listeners", "length", "no listener is named", "name one, or leave `listeners` out");
        }
        let limit = |name| self.root.get("limits")?.get(name)?.as_u64();
        let defaults = crate::settings::Limits::default();
        let line = limit("request_line_bytes").unwrap_or(defaults.request_line_bytes.into());
        let head = limit("request_head_bytes").unwrap_or(defaults.request_head_bytes.into());
        if line > head {
            let message = format!("a request line of {line} bytes does not fit into a head of {head} bytes");
            self.error("limits.request_line_bytes", "conflict", message, "raise `request_head_bytes`");
        }
    }

    fn unique_ids(&mut self, section: &str) {
        let mut seen: HashMap<String, String> = HashMap::new();
        for (pointer, item) in items(self.root, section) {
            let Some(id) = id_of(item) else { continue };
            if let Some(first) = seen.get(&id) {
                let place = member(&pointer, "id");
                let message = format!("the id {id} is already that of {first}");
                let problem =
                    self.document.problem(&place, "duplicate_id", message).hint("choose another id");
                self.error_unless_standalone(problem);
            }
            seen.insert(id, pointer);
        }
    }

    fn route(&mut self, pointer: &str, route: &Object) {
        let has = |key: &str| route.contains_key(key);
        for (one, several) in [("host", "hosts"), ("remote_addr", "remote_addrs"), ("uri", "uris")] {
            if has(one) && has(several) {
                let message = format!("only one of {one} or {several} is allowed");
                self.error(
                    &member(pointer, several),
                    "conflict",
                    message,
                    format!("move `{one}` into `{several}`"),
                );
            }
        }
        if !has("uri") && !has("uris") {
            self.error(pointer, "missing", "a route needs `uri` or `uris`", "add for example uri: /*");
        }
        if !["upstream", "upstream_id", "service_id", "plugins"].into_iter().any(has) {
            let message = "a route needs one of `upstream`, `upstream_id`, `service_id` or `plugins`";
            self.error(pointer, "missing", message, "add for example upstream: \"http://127.0.0.1:8888\"");
        }
        if let Some(vars) = route.get("vars")
            && let Err(error) = Expr::parse(vars)
        {
            let message = format!("failed to validate the 'vars' expression: {error}");
            let hint = "a condition is [[variable, operator, value], …]";
            self.error(&member(pointer, "vars"), "expression", message, hint);
        }
        if let Some(pattern) = route.get("rewrite").and_then(|rewrite| rewrite.get("regex")?.as_str())
            && let Err(error) = regex::Regex::new(pattern)
        {
            let place = member(&member(pointer, "rewrite"), "regex");
            self.error(
                &place,
                "regex",
                format!("invalid regex: {error}"),
                "see the syntax of the Rust crate `regex`",
            );
        }
        self.reference(pointer, route, "service_id", "service", "services");
        self.listeners(pointer, route);
        self.target(pointer, route);
    }

    /// What routes and services have in common: plugins and an upstream.
    fn target(&mut self, pointer: &str, item: &Object) {
        self.plugins(pointer, item);
        self.reference(pointer, item, "upstream_id", "upstream", "upstreams");
        if let Some(upstream) = item.get("upstream").and_then(Value::as_object) {
            self.upstream(&member(pointer, "upstream"), upstream);
        }
    }

    fn listeners(&mut self, pointer: &str, route: &Object) {
        if !route.contains_key("listeners") {
            return;
        }
        let known: HashSet<&str> = objects(self.root, "listeners")
            .filter_map(|(_, listener)| listener.get("name")?.as_str())
            .collect();
        let place = member(pointer, "listeners");
        let wanted = route.get("listeners").and_then(Value::as_array).into_iter().flatten().enumerate();
        for (index, name) in wanted {
            let Some(name) = name.as_str().filter(|name| !known.contains(name)) else { continue };
            let hint = match closest(name, known.iter().copied()) {
                Some(close) => format!("did you mean `{close}`?"),
                None => "give a listener this `name`".to_owned(),
            };
            self.error(&element(&place, index), "reference", format!("no listener is named `{name}`"), hint);
        }
    }

    fn reference(&mut self, pointer: &str, item: &Object, field: &str, kind: &str, section: &str) {
        let Some(id) = item.get(field).and_then(text_of_id) else { return };
        let known = if section == "services" { &self.services } else { &self.upstreams };
        if known.contains(&id) {
            return;
        }
        let message = format!("failed to fetch {kind} info by {kind} id [{id}], response code: 404");
        // Sorted, so that of two that are as close the same is named every time.
        let mut known: Vec<&str> = known.iter().map(String::as_str).collect();
        known.sort_unstable();
        let hint = match closest(&id, known) {
            Some(close) => format!("no such item in `{section}`; did you mean `{close}`?"),
            None => format!("no such item in `{section}`"),
        };
        let problem = self.document.problem(&member(pointer, field), "reference", message).hint(hint);
        self.error_unless_standalone(problem);
    }

    fn plugins(&mut self, pointer: &str, item: &Object) {
        let place = member(pointer, "plugins");
        for (name, conf) in item.get("plugins").and_then(Value::as_object).into_iter().flatten() {
            let here = member(&place, name);
            if !conf.is_object() {
                let message = format!("invalid plugin conf {conf} for plugin [{name}]");
                self.error(&here, "type", message, "write an object");
            } else if !self.options.known_plugins.contains(&name.as_str()) {
                let hint = match closest(name, self.options.known_plugins.iter().copied()) {
                    Some(close) => format!("did you mean `{close}`?"),
                    None => "remove it; this version has no such plugin".to_owned(),
                };
                self.error(&here, "unknown_plugin", format!("unknown plugin [{name}]"), hint);
            }
        }
    }

    fn upstream(&mut self, pointer: &str, upstream: &Object) {
        let word = |key: &str| upstream.get(key).and_then(Value::as_str);
        match upstream.get("nodes") {
            // Discovery has its own message.
            None if upstream.contains_key("service_name") => {}
            None => self.error(
                pointer,
                "missing",
                "an upstream needs `nodes`",
                "add nodes: { \"127.0.0.1:80\": 1 }",
            ),
            Some(nodes) => self.nodes(&member(pointer, "nodes"), nodes),
        }
        if word("pass_host") == Some("rewrite") && word("upstream_host").is_none_or(str::is_empty) {
            let message = "`upstream_host` can't be empty when `pass_host` is `rewrite`";
            self.error(pointer, "missing", message, "add `upstream_host`");
        }
        if word("type") == Some("chash") {
            self.hash_key(pointer, word("hash_on").unwrap_or("vars"), word("key"));
        }
    }

    fn nodes(&mut self, pointer: &str, nodes: &Value) {
        match nodes {
            Value::Object(weights) => {
                for address in weights.keys() {
                    if let Err(reason) = split_address(address) {
                        self.error(&member(pointer, address), "node", reason, "write host:port");
                    }
                }
            }
            Value::Array(list) => {
                for (index, node) in list.iter().enumerate() {
                    let Some(host) = node.get("host").and_then(Value::as_str) else { continue };
                    if let Err(reason) = check_host(host) {
                        let place = member(&element(pointer, index), "host");
                        self.error(
                            &place,
                            "node",
                            reason,
                            "write a host name or an address; the port goes into `port`",
                        );
                    }
                }
            }
            // The schema has refused it.
            _ => {}
        }
    }

    /// The key of consistent hashing.
    fn hash_key(&mut self, pointer: &str, hash_on: &str, key: Option<&str>) {
        let Some(key) = key else {
            if hash_on != "consumer" {
                self.error(pointer, "missing", "missing key", "add `key`, for example remote_addr");
            }
            return;
        };
        let word = |text: &str| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        };
        let (valid, pattern) = match hash_on {
            "vars" => (
                HASH_VARIABLES.contains(&key) || key.strip_prefix("arg_").is_some_and(word),
                HASH_VARS_PATTERN,
            ),
            "header" | "cookie" => (word(key), "^[a-zA-Z0-9-_]+$"),
            _ => return,
        };
        if !valid {
            let message =
                format!("invalid configuration: failed to match pattern \"{pattern}\" with \"{key}\"");
            self.error(
                &member(pointer, "key"),
                "pattern",
                message,
                "choose another key or another `hash_on`",
            );
        }
    }
}

const HASH_VARIABLES: [&str; 10] = [
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
