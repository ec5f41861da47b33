//! Blocks `upstream`, and the upstreams that `proxy_pass` and its relatives name.

use serde_json::{Map, Value, json};

use super::super::report::Verdict;
use super::access::option;
use super::converter::Converter;
use super::level::{Level, milliseconds};
use super::parse::Directive;

/// A block `upstream`.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    nodes: Vec<Value>,
    fields: Map<String, Value>,
}

impl Group {
    /// Returns `host:port` of the first node.
    pub(super) fn first_node(&self) -> Option<String> {
        let node = self.nodes.first()?;
        Some(format!("{}:{}", node["host"].as_str()?, node["port"].as_u64().unwrap_or(80)))
    }
}

/// The kind of an upstream and the settings of its location.
pub(super) struct UpstreamSpec<'w> {
    /// `http`, `https`, `grpc`, `grpcs`, `fcgi`.
    pub(super) scheme: &'w str,
    /// A name of a block, or `host:port`.
    pub(super) authority: &'w str,
    /// The prefix of directives: `proxy`, `fastcgi`, `grpc`.
    pub(super) family: &'w str,
    /// Further fields of the upstream.
    pub(super) fields: Map<String, Value>,
}

impl<'a> Converter<'a> {
    /// Reads a block `upstream`.
    pub(super) fn group(&mut self, block: &Directive) {
        let mut group = Group::default();
        let servers: Vec<&Directive> =
            block.children().iter().filter(|child| child.name == "server").collect();
        let has_backup = servers.iter().any(|server| server.args.iter().any(|arg| arg == "backup"));
        let mut states = Map::new();
        let (mut fails, mut fail_ms) = (None, 10_000);
        for server in &servers {
            let is_backup = server.args.iter().any(|arg| arg == "backup");
            let weight: u64 = option(server, "weight").and_then(|text| text.parse().ok()).unwrap_or(1);
            let mut node = node(server.arg(0), 80);
            node["weight"] = weight.into();
            if has_backup && !is_backup {
                node["priority"] = 1.into();
            }
            if server.args.iter().any(|arg| arg == "down") {
                states.insert(name(&node), "maintenance".into());
            }
            if let Some(limit) =
                option(server, "max_conns").and_then(|text| text.parse::<u64>().ok()).filter(|it| *it > 0)
            {
                group.fields.insert("limits".to_owned(), json!({"max_requests_per_node": limit}));
            }
            if let Some(window) = option(server, "slow_start").and_then(milliseconds).filter(|it| *it > 0) {
                group.fields.insert("slow_start".to_owned(), json!({"window": window.div_ceil(1000)}));
            }
            let own = option(server, "max_fails").and_then(|text| text.parse::<u64>().ok()).unwrap_or(1);
            fails = Some(fails.map_or(own, |before: u64| before.max(own)));
            fail_ms = option(server, "fail_timeout").and_then(milliseconds).unwrap_or(fail_ms);
            if option(server, "service").is_some() {
                let text = "service names need `discovery`: write `service_name` by hand";
                self.remark(server, Verdict::NotPossible, text);
            }
            group.nodes.push(node);
        }
        if !states.is_empty() {
            group.fields.insert("node_states".to_owned(), Value::Object(states));
        }
        if let Some(fails) = fails.filter(|fails| *fails > 0 && servers.len() > 1) {
            let fails = fails.min(254);
            let unhealthy = json!({"tcp_failures": fails, "timeouts": fails, "http_failures": 0});
            let passive = json!({"fail_timeout": seconds(fail_ms.max(1)), "unhealthy": unhealthy});
            group.fields.insert("checks".to_owned(), json!({"passive": passive}));
        }
        self.balance(block, &mut group);
        self.blocks.groups.insert(block.arg(0).to_owned(), group);
    }

    fn balance(&mut self, block: &Directive, group: &mut Group) {
        let mut pool = Map::new();
        for child in block.children() {
            let first = child.arg(0);
            match child.name.as_str() {
                "least_conn" => _ = group.fields.insert("type".to_owned(), "least_conn".into()),
                "random" => {
                    let kind = if first == "two" { "least_request" } else { "random" };
                    group.fields.insert("type".to_owned(), kind.into());
                }
                "ip_hash" => {
                    group.fields.insert("type".to_owned(), "chash".into());
                    group.fields.insert("key".to_owned(), "remote_addr".into());
                }
                "hash" => {
                    let key = plain_key(first);
                    group.fields.insert("type".to_owned(), "chash".into());
                    group.fields.insert("hash_on".to_owned(), "vars_combinations".into());
                    group.fields.insert("key".to_owned(), key.into());
                }
                "keepalive" => {
                    if let Some(size) = first.parse::<u64>().ok().filter(|size| *size > 0) {
                        pool.insert("size".to_owned(), size.into());
                    }
                }
                "keepalive_requests" => {
                    if let Some(number) = first.parse::<u64>().ok().filter(|number| *number > 0) {
                        pool.insert("requests".to_owned(), number.into());
                    }
                }
                "keepalive_timeout" => {
                    if let Some(time) = milliseconds(first) {
                        pool.insert("idle_timeout".to_owned(), seconds(time));
                    }
                }
                "sticky" if first == "cookie" => {
                    let text = "Sigma's cookie has another value than nginx's: sessions start again after the migration.";
                    self.remark(child, Verdict::Differs, text);
                    let affinity = json!({"cookie": {"name": child.arg(1)}, "secret": "change this secret"});
                    group.fields.insert("session_affinity".to_owned(), affinity);
                }
                "sticky" | "queue" | "check" | "jvm_route" | "state" | "ntlm" => {
                    self.remark(child, Verdict::NotPossible, "write this setting of the upstream by hand");
                }
                _ => {}
            }
        }
        if !pool.is_empty() {
            group.fields.insert("keepalive_pool".to_owned(), Value::Object(pool));
        }
    }

    /// Returns the id of an upstream; the same settings have the same upstream.
    pub(super) fn upstream(&mut self, wanted: UpstreamSpec<'_>, level: &Level<'a>) -> String {
        let group = self.blocks.groups.get(wanted.authority).cloned();
        let port = match wanted.scheme {
            "https" | "grpcs" => 443,
            "fcgi" => 9000,
            _ => 80,
        };
        let Group { mut nodes, fields } = group.unwrap_or_else(|| {
            let mut node = node(wanted.authority, port);
            node["weight"] = 1.into();
            Group { nodes: vec![node], fields: Map::new() }
        });
        let mut upstream = fields;
        if wanted.scheme != "http" {
            upstream.insert("scheme".to_owned(), wanted.scheme.into());
        }
        nodes.iter_mut().for_each(|node| {
            if node.get("port").is_none()
                && node["host"].as_str().is_some_and(|host| !host.starts_with("unix:"))
            {
                node["port"] = port.into();
            }
        });
        upstream.insert("nodes".to_owned(), Value::Array(nodes));
        self.upstream_tls(&wanted, level, &mut upstream);
        self.retries(&wanted, level, &mut upstream);
        upstream.extend(wanted.fields);
        let base = super::super::build::id(&wanted.authority.replace("unix:", "unix-").replace(':', "-"));
        let value = Value::Object(upstream);
        let key = format!("{} {value}", wanted.authority);
        if let Some(id) = self.upstream_ids.get(&key) {
            return id.clone();
        }
        let mut id = base.clone();
        let mut number = 2;
        while self.plan.upstreams.iter().any(|(known, _)| *known == id) {
            let start: String = base.chars().take(58).collect();
            id = format!("{start}-{number}");
            number += 1;
        }
        self.upstream_ids.insert(key, id.clone());
        self.plan.upstreams.push((id.clone(), value));
        id
    }

    fn upstream_tls(
        &mut self,
        wanted: &UpstreamSpec<'_>,
        level: &Level<'a>,
        upstream: &mut Map<String, Value>,
    ) {
        if !matches!(wanted.scheme, "https" | "grpcs") {
            return;
        }
        let mut tls = Map::new();
        let family = wanted.family;
        tls.insert("verify".to_owned(), level.is_on(&format!("{family}_ssl_verify")).into());
        for (name, key) in
            [("trusted_certificate", "ca"), ("certificate", "client_cert"), ("certificate_key", "client_key")]
        {
            let Some(directive) = level.last(&format!("{family}_ssl_{name}")) else { continue };
            match self.access.read(&self.resolved(directive.arg(0))) {
                Ok(text) => _ = tls.insert(key.to_owned(), text.into()),
                // A route that verifies by it is closed.
                Err(_) if key == "ca" => {}
                Err(error) => {
                    let text = format!("cannot read the file ({error}); write its PEM text into `tls.{key}`");
                    self.remark(directive, Verdict::NotPossible, text);
                }
            }
        }
        if tls.contains_key("client_cert") != tls.contains_key("client_key") {
            tls.remove("client_cert");
            tls.remove("client_key");
        }
        upstream.insert("tls".to_owned(), Value::Object(tls));
    }

    /// `proxy_next_upstream` and its relatives.
    fn retries(&mut self, wanted: &UpstreamSpec<'_>, level: &Level<'a>, upstream: &mut Map<String, Value>) {
        let name = |rest: &str| format!("{}_next_upstream{rest}", wanted.family);
        if let Some(tries) =
            level.text(&name("_tries")).and_then(|text| text.parse::<u64>().ok()).filter(|it| *it > 0)
        {
            upstream.insert("retries".to_owned(), (tries - 1).into());
        }
        if let Some(time) = level.text(&name("_timeout")).and_then(milliseconds).filter(|time| *time > 0) {
            upstream.insert("retry_timeout".to_owned(), seconds(time));
        }
        if upstream.get("retries").is_some_and(|retries| *retries == 0) {
            return;
        }
        let Some(directive) = level.last(&name("")) else { return };
        if directive.args.iter().any(|arg| arg == "off") {
            upstream.insert("retries".to_owned(), 0.into());
            return;
        }
        let (mut retry_on, mut statuses, mut methods) = (Vec::new(), Vec::new(), None);
        for arg in &directive.args {
            match arg.as_str() {
                "error" => retry_on.extend(["connect-failure", "reset"]),
                "timeout" | "invalid_header" => retry_on.push("reset"),
                "non_idempotent" => {
                    methods = Some(["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "POST", "PATCH"])
                }
                other => {
                    statuses.extend(other.strip_prefix("http_").and_then(|code| code.parse::<u16>().ok()))
                }
            }
        }
        // Statuses that repeat a request count as failures of the node, but for two.
        let failures: Vec<u16> =
            statuses.iter().copied().filter(|status| !matches!(status, 403 | 404)).collect();
        let unhealthy = upstream.get_mut("checks").map(|checks| &mut checks["passive"]["unhealthy"]);
        if let (Some(unhealthy), false) = (unhealthy, failures.is_empty()) {
            unhealthy["http_failures"] = unhealthy["tcp_failures"].clone();
            unhealthy["http_statuses"] = json!(failures);
        }
        retry_on.dedup();
        if retry_on == ["connect-failure", "reset"] && statuses.is_empty() && methods.is_none() {
            return;
        }
        let mut policy = json!({"retry_on": retry_on});
        if !statuses.is_empty() {
            policy["retriable_status_codes"] = json!(statuses);
        }
        if let Some(methods) = methods {
            policy["methods"] = json!(methods);
        }
        upstream.insert("retry_policy".to_owned(), policy);
    }
}

/// A node of `host:port`, `host`, `[v6]:port` or `unix:/path`.
pub(super) fn node(address: &str, port: u16) -> Value {
    if let Some(path) = address.strip_prefix("unix:") {
        return json!({"host": format!("unix:{}", path.trim_end_matches(':'))});
    }
    let (host, port) = match address.rsplit_once(':') {
        Some((host, text)) if !text.contains(']') => match text.parse::<u16>() {
            Ok(port) if port > 0 => (host, port),
            _ => (address, port),
        },
        _ => (address, port),
    };
    json!({"host": host, "port": port})
}

fn name(node: &Value) -> String {
    let host = node["host"].as_str().unwrap_or_default();
    node["port"].as_u64().map_or(host.to_owned(), |port| format!("{host}:{port}"))
}

/// The key of a hash, with the names that differ.
fn plain_key(key: &str) -> String {
    key.replace("$request_uri", "$real_request_uri").replace("$binary_remote_addr", "$remote_addr")
}

/// Milliseconds as seconds, whole where they are.
pub(super) fn seconds(milliseconds: u64) -> Value {
    match milliseconds % 1000 {
        0 => (milliseconds / 1000).into(),
        #[expect(clippy::cast_precision_loss, reason = "times of configurations are small")]
        _ => (milliseconds as f64 / 1000.0).into(),
    }
}
