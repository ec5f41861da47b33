//! KrakenD: `krakend.json`, version 3.
//!
//! An endpoint with one backend becomes a route. Endpoints that join several backends are closed: their calls are
//! written with the plugin compose.

#[cfg(test)]
mod tests;

use std::collections::HashSet;

use serde_json::{Map, Value, json};
use sigma_schema::problem::Problem;

use super::Translated;
use super::build;
use super::decision::{Decision, Listener, Path, Plan, Target};
use super::nodes::{self, Lines, Node};
use super::probe::Probe;
use super::report::{Report, Verdict};
use super::source::{Input, SourceLine, Sources};

/// Converts a krakend.json.
pub(super) fn translate(input: &Input<'_>) -> Result<Translated, Vec<Problem>> {
    let mut sources = Sources::default();
    let mut translation = Translation {
        input,
        lines: Lines::of(input),
        plan: Plan::default(),
        report: Report::default(),
        probes: Vec::new(),
        told: HashSet::new(),
    };
    for file in input.files {
        let problem = |message: String| vec![Problem::new(file.name.clone(), "too_large", message)];
        let index = sources.add(&file.name, &file.text).map_err(problem)?;
        if file.text.contains("{{") {
            let message = "the file is a template of Go";
            let hint = "render it first: `krakend check -c FILE` with FC_OUT writes the result";
            return Err(vec![Problem::new(file.name.clone(), "syntax", message).hint(hint)]);
        }
        let located = |problem: Problem| Problem { pointer: file.name.clone(), ..problem };
        let roots = nodes::read(&file.text, index)
            .map_err(|problems| problems.into_iter().map(located).collect::<Vec<_>>())?;
        for root in &roots {
            translation.root(root);
        }
    }
    translation.rest();
    let Translation { plan, mut report, probes, .. } = translation;
    report.finish(sources);
    Ok(Translated { plan, report, probes })
}

struct Translation<'t, 's> {
    input: &'t Input<'s>,
    lines: Lines<'s>,
    plan: Plan,
    report: Report,
    probes: Vec<Probe>,
    told: HashSet<SourceLine>,
}

/// Defaults of the root for its endpoints.
struct Defaults {
    hosts: Vec<String>,
    timeout: f64,
    plugins: Map<String, Value>,
}

impl Translation<'_, '_> {
    fn tell(&mut self, place: SourceLine, verdict: Verdict, text: impl Into<String>) {
        let source = self.source(place);
        self.told.insert(place);
        self.report.add(place, &source, verdict, text);
    }

    fn tell_guard(&mut self, place: SourceLine, text: impl Into<String>) {
        let source = self.source(place);
        self.told.insert(place);
        self.report.add_guard(place, &source, Verdict::NotPossible, text);
    }

    fn source(&self, place: SourceLine) -> String {
        self.lines.at(place).to_owned()
    }

    fn root(&mut self, root: &Node) {
        let port = root.get("port").and_then(Node::number).unwrap_or(8080.0) as u16;
        let address = format!("{}:{port}", root.text_of("listen_ip").unwrap_or_default());
        let mut listener = Listener { address, port, ..Listener::default() };
        if let Some(tls) = root.get("tls") {
            let pair = json!([{"cert": tls.text_of("public_key"), "key": tls.text_of("private_key")}]);
            listener.fields.insert("tls".to_owned(), json!({"certificates": pair}));
            if tls.get("enable_mtls").and_then(Node::boolean) == Some(true) {
                self.tell_guard(tls.place, "Write `client` of an ssl for client certificates.");
            }
        }
        self.plan.listeners.push(listener);
        let mut plugins = Map::new();
        let mut closed = None;
        for (name, node) in root.get("extra_config").map(Node::members).unwrap_or_default() {
            match name.as_str() {
                "security/cors" => drop(plugins.insert("cors".to_owned(), cors(node))),
                "telemetry/logging" | "telemetry/metrics" | "router" | "documentation/openapi" => {
                    self.tell(
                        node.place,
                        Verdict::NoEffect,
                        "Logs, metrics and documentation have their own settings.",
                    );
                }
                "security/http" => self.tell(
                    node.place,
                    Verdict::Differs,
                    "Write the plugin security-headers for these fields.",
                ),
                name if name.starts_with("telemetry/") => {
                    self.tell(node.place, Verdict::NoEffect, "Write the plugin for this service.");
                }
                other => {
                    let text = format!(
                        "`{other}` of the root is not converted and may guard access: all routes are closed."
                    );
                    self.tell_guard(node.place, text.clone());
                    closed.get_or_insert(text);
                }
            }
        }
        let defaults = Defaults {
            hosts: root.texts_of("host"),
            timeout: root.text_of("timeout").and_then(|text| seconds(&text)).unwrap_or(2.0),
            plugins,
        };
        for endpoint in root.get("endpoints").map(Node::elements).unwrap_or_default() {
            self.endpoint(endpoint, &defaults, closed.as_deref());
        }
    }

    fn endpoint(&mut self, node: &Node, defaults: &Defaults, closed: Option<&str>) {
        let pattern = node.text_of("endpoint").unwrap_or_else(|| "/".to_owned());
        let method = node.text_of("method").unwrap_or_else(|| "GET".to_owned());
        let mut decision =
            Decision::new(node.place, format!("{method}-{pattern}"), Target::Closed(String::new()));
        decision.methods = vec![method.clone()];
        decision.paths = vec![path(&pattern)];
        decision.plugins = defaults.plugins.clone();
        let mut reason = closed.map(str::to_owned);
        let backends = node.get("backend").map(Node::elements).unwrap_or_default();
        for (name, config) in node.get("extra_config").map(Node::members).unwrap_or_default() {
            if let Err(text) = self.extra(name, config, &mut decision) {
                self.tell_guard(config.place, format!("{text} The route answers 503."));
                reason.get_or_insert(text);
            }
        }
        let mut probe = Probe::get(decision.name.clone(), "", pattern.replace(['{', '}'], ""));
        probe.method = method;
        self.probes.push(probe);
        match &backends[..] {
            [backend] => self.backend(node, backend, defaults, &mut decision, &mut reason),
            _ => {
                let text = "The plugin compose joins responses of several backends: configure its calls.";
                self.tell(node.place, Verdict::NotPossible, format!("{text} The route answers 503."));
                reason.get_or_insert_with(|| text.to_owned());
            }
        }
        if let Some(reason) = reason {
            decision.target = Target::Closed(reason);
        }
        self.plan.decisions.push(decision);
    }

    /// Settings of an endpoint that limit or guard it.
    fn extra(&mut self, name: &str, config: &Node, decision: &mut Decision) -> Result<(), String> {
        let number = |name: &str| config.get(name).and_then(Node::number);
        match name {
            "qos/ratelimit/router" => {
                let client = number("client_max_rate").filter(|rate| *rate > 0.0);
                let all = number("max_rate").filter(|rate| *rate > 0.0);
                let key = match config.text_of("strategy").as_deref() {
                    Some("header") => {
                        super::words::header_variable(&config.text_of("key").unwrap_or_default())?
                    }
                    _ => "remote_addr".to_owned(),
                };
                let limit = |rate: f64, burst: f64, key: &str, kind: &str| {
                    json!({"rate": rate, "burst": (burst - 1.0).max(0.0), "nodelay": true, "key": key,
                        "key_type": kind, "rejected_code": if key == "all" { 503 } else { 429 }})
                };
                match (client, all) {
                    (Some(rate), None) => {
                        let burst = number("client_capacity").unwrap_or(rate);
                        decision.plugins.insert("limit-req".to_owned(), limit(rate, burst, &key, "var"));
                    }
                    (None, Some(rate)) => {
                        let burst = number("capacity").unwrap_or(rate);
                        decision
                            .plugins
                            .insert("limit-req".to_owned(), limit(rate, burst, "all", "var_combination"));
                    }
                    _ => {
                        return Err(
                            "One route cannot have both a limit for all clients and a limit for each client."
                                .to_owned(),
                        );
                    }
                }
                self.tell(config.place, Verdict::Done, "");
                Ok(())
            }
            "auth/validator" => self.tokens(config, decision),
            "validation/json-schema" => {
                decision
                    .plugins
                    .insert("request-validation".to_owned(), json!({"body_schema": config.value()}));
                self.tell(config.place, Verdict::Done, "");
                Ok(())
            }
            "documentation/openapi" | "proxy" => {
                self.tell(config.place, Verdict::NoEffect, "It has no effect on a single backend.");
                Ok(())
            }
            other => Err(format!("`{other}` is not converted and may guard access.")),
        }
    }

    /// Tokens that the keys of a URL verify.
    fn tokens(&mut self, config: &Node, decision: &mut Decision) -> Result<(), String> {
        let text = |name: &str| config.text_of(name);
        let url = text("jwk_url").ok_or("Keys in a file are not supported: configure jwt-auth.")?;
        let issuer =
            text("issuer").ok_or("Without `issuer`, the consumer is unknown: configure jwt-auth.")?;
        let has_rules = ["roles", "scopes", "audience"].iter().any(|name| !config.texts_of(name).is_empty());
        if has_rules {
            return Err("Rules on roles, scopes and audiences are not converted: configure openid-connect with `claim_schema`.".to_owned());
        }
        let algorithm = text("alg").unwrap_or_else(|| "RS256".to_owned());
        let id = build::id(&issuer).replace(['-', '.'], "_");
        if !self.plan.consumers.iter().any(|it| it["username"] == id.as_str()) {
            self.plan.consumers.push(json!({"username": id,
                "plugins": {"jwt-auth": {"key": issuer, "algorithm": algorithm, "jwks_uri": url}}}));
        }
        decision.plugins.insert("jwt-auth".to_owned(), json!({"key_claim_name": "iss"}));
        if config.get("propagate_claims").is_some() {
            self.tell(config.place, Verdict::Differs, "Claims are not sent as header fields.");
        } else {
            self.tell(config.place, Verdict::Done, "");
        }
        Ok(())
    }

    fn backend(
        &mut self,
        endpoint: &Node,
        node: &Node,
        defaults: &Defaults,
        decision: &mut Decision,
        reason: &mut Option<String>,
    ) {
        let mut hosts = node.texts_of("host");
        if hosts.is_empty() {
            hosts.clone_from(&defaults.hosts);
        }
        let timeout = endpoint.text_of("timeout").and_then(|text| seconds(&text)).unwrap_or(defaults.timeout);
        let mut fields = Map::new();
        let mut nodes = Vec::new();
        for host in &hosts {
            let (scheme, rest) = host.split_once("://").unwrap_or(("http", host));
            let authority = rest.split('/').next().unwrap_or_default();
            let default = if scheme == "https" { 443 } else { 80 };
            let (name, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
            nodes.push(json!({"host": name, "port": port.parse().unwrap_or(default), "weight": 1}));
            if scheme == "https" {
                fields.insert("scheme".to_owned(), "https".into());
                fields.insert("tls".to_owned(), json!({"verify": true}));
            }
        }
        fields.insert("nodes".to_owned(), Value::Array(nodes));
        fields.insert("pass_host".to_owned(), "node".into());
        fields.insert("retries".to_owned(), 0.into());
        fields.insert("timeout".to_owned(), json!({"connect": timeout, "send": timeout, "read": timeout}));
        for (name, config) in node.get("extra_config").map(Node::members).unwrap_or_default() {
            match name.as_str() {
                "qos/circuit-breaker" => {
                    let number =
                        |name: &str, default: f64| config.get(name).and_then(Node::number).unwrap_or(default);
                    let breaker = json!({"failure_rate_threshold": 100, "sliding_window": number("interval", 60.0).max(1.0),
                        "minimum_number_of_calls": number("max_errors", 1.0).max(1.0) as u64,
                        "wait_duration_in_open_state": number("timeout", 10.0).max(0.1)});
                    fields.insert("circuit_breaker".to_owned(), breaker);
                    self.tell(
                        config.place,
                        Verdict::Differs,
                        "The circuit breaker opens when all calls of the window have failed.",
                    );
                }
                "qos/http-cache" => {
                    decision.fields.insert("cache".to_owned(), json!({"methods": ["GET"]}));
                    self.tell(config.place, Verdict::Done, "");
                }
                other => {
                    let text = format!("`{other}` of a backend is not converted and may guard access.");
                    self.tell_guard(config.place, format!("{text} The route answers 503."));
                    reason.get_or_insert(text);
                }
            }
        }
        let name =
            build::id(hosts.first().map_or("backend", |host| host.split("://").last().unwrap_or(host)));
        let fields = Value::Object(fields);
        let known = self.plan.upstreams.iter().find(|(_, known)| *known == fields).map(|(id, _)| id.clone());
        let id = known.unwrap_or_else(|| {
            let id = format!("{name}-{}", self.plan.upstreams.len() + 1);
            self.plan.upstreams.push((id.clone(), fields));
            id
        });
        decision.target = Target::Upstream(id);
        self.request(endpoint, node, decision);
        self.response(endpoint, node, decision);
    }

    /// The request that the node gets: its path, and only the fields and arguments of the lists.
    fn request(&mut self, endpoint: &Node, node: &Node, decision: &mut Decision) {
        let mut rewrite = Map::new();
        let pattern = node.text_of("url_pattern").unwrap_or_else(|| "/".to_owned());
        rewrite.insert("uri".to_owned(), template(&pattern).into());
        if let Some(method) = node.text_of("method").filter(|method| !decision.methods.contains(method)) {
            rewrite.insert("method".to_owned(), method.into());
        }
        let headers = endpoint.texts_of("input_headers");
        if !headers.iter().any(|name| name == "*") {
            rewrite.insert("headers".to_owned(), json!({"pass": headers}));
        }
        let args = endpoint.texts_of("input_query_strings");
        if !args.iter().any(|name| name == "*") {
            rewrite.insert("args".to_owned(), json!({"pass": args}));
        }
        decision.plugins.insert("proxy-rewrite".to_owned(), Value::Object(rewrite));
        self.tell(endpoint.place, Verdict::Done, "");
    }

    /// The response: fields that stay or go, new names, a group and a target.
    fn response(&mut self, endpoint: &Node, node: &Node, decision: &mut Decision) {
        let encoding = endpoint.text_of("output_encoding").unwrap_or_else(|| "json".to_owned());
        let (allow, deny) = (node.texts_of("allow"), node.texts_of("deny"));
        let mut shaping = Map::new();
        if !allow.is_empty() {
            shaping.insert("allow".to_owned(), json!(allow));
        } else if !deny.is_empty() {
            shaping.insert("deny".to_owned(), json!(deny));
        }
        for name in ["target", "group"] {
            if let Some(text) = node.text_of(name) {
                shaping.insert(name.to_owned(), text.into());
            }
        }
        if let Some(mapping) = node.get("mapping") {
            shaping.insert("mapping".to_owned(), mapping.value());
        }
        if !shaping.is_empty() {
            decision.plugins.insert("response-shaping".to_owned(), Value::Object(shaping));
        }
        if encoding != "no-op" {
            let text = "The client gets the status and fields of the node; KrakenD returns 500 for errors and its own fields.";
            self.tell(endpoint.place, Verdict::Differs, text);
        }
    }

    /// Remarks for the lines that nothing was said about.
    fn rest(&mut self) {
        for (file, source) in (0u16..).zip(self.input.files) {
            for (line, text) in (1u32..).zip(source.text.lines()) {
                let place = SourceLine { file, line };
                let text = text.trim();
                let says_nothing = text.chars().all(|char| "{}[],\"".contains(char));
                if !says_nothing && self.told.insert(place) {
                    self.report.add(place, text, Verdict::Done, "");
                }
            }
        }
    }
}

/// The path of an endpoint: `{name}` is one segment, `*` the rest.
fn path(pattern: &str) -> Path {
    if let Some(base) = pattern.strip_suffix("/*").filter(|base| !base.contains('{')) {
        return Path::Segments(base.to_owned());
    }
    if !pattern.contains('{') {
        return Path::Exact(pattern.to_owned());
    }
    let mut out = "^".to_owned();
    let mut rest = pattern;
    while let Some(at) = rest.find('{') {
        let end = rest[at..].find('}').map_or(rest.len(), |end| at + end);
        out.push_str(&regex::escape(&rest[..at]));
        out.push_str(&format!("(?<{}>[^/]+)", word(rest.get(at + 1..end).unwrap_or_default())));
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    out.push_str(&regex::escape(rest));
    out.push('$');
    Path::Regex { pattern: out, ignore_case: false }
}

/// A path of a backend with the gateway's variables.
fn template(pattern: &str) -> String {
    let mut out = String::new();
    let mut rest = pattern;
    while let Some(at) = rest.find('{') {
        let end = rest[at..].find('}').map_or(rest.len(), |end| at + end);
        out.push_str(&rest[..at].replace('$', "\\$"));
        out.push_str(&format!("${{uri_param_{}}}", word(rest.get(at + 1..end).unwrap_or_default())));
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    out.push_str(&rest.replace('$', "\\$"));
    out
}

fn word(name: &str) -> String {
    name.chars().map(|char| if char.is_ascii_alphanumeric() { char } else { '_' }).collect()
}

/// A duration of Go in seconds: `2s`, `500ms`, `1m`.
fn seconds(text: &str) -> Option<f64> {
    let at = text.find(|char: char| char.is_ascii_alphabetic())?;
    let factor = match &text[at..] {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Some((text[..at].parse::<f64>().ok()? * factor).max(0.001))
}

fn cors(node: &Node) -> Value {
    let joined = |name: &str, default: &str| {
        let list = node.texts_of(name);
        if list.is_empty() { default.to_owned() } else { list.join(",") }
    };
    let credentials = node.get("allow_credentials").and_then(Node::boolean).unwrap_or(false);
    let origins = joined("allow_origins", "*");
    let mut fields = json!({
        "allow_origins": if origins == "*" && credentials { "**".to_owned() } else { origins },
        "allow_methods": joined("allow_methods", "GET,HEAD,POST"),
        "allow_headers": joined("allow_headers", "**"),
        "allow_credential": credentials,
    });
    let exposed = node.texts_of("expose_headers");
    if !exposed.is_empty() {
        fields["expose_headers"] = exposed.join(",").into();
    }
    if let Some(age) = node.text_of("max_age").and_then(|text| seconds(&text)) {
        fields["max_age"] = (age as u64).into();
    }
    fields
}
