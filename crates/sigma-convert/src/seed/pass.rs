//! The upstream side of `sigma.json`: proxy passes, their upstreams, and `rewrite-path`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::keys::{Report, SourceValue, Unknown};
use super::{is_id, rewrite};

/// Returns the nodes of each upstream by its id, as `(host, port)`. `scheme` applies to all of them.
pub(super) fn upstreams(
    root: &SourceValue<'_>,
    scheme: &str,
    report: &mut Report<'_>,
) -> BTreeMap<String, Vec<(String, u16)>> {
    let mut upstreams = BTreeMap::new();
    for upstream in report.objects(root, "upstream") {
        report.unknown(
            &upstream,
            &["id", "desc", "discovery", "rule-strategy", "nodes", "plugin"],
            Unknown::Refused,
        );
        report.inert(&upstream, &["desc", "plugin"]);
        for (key, only) in [("discovery", "static-config"), ("rule-strategy", "round-robin")] {
            if let Some(word) = report.text(&upstream, key).filter(|word| word != only) {
                let message = format!("`{key}` `{word}` is accepted, without effect: it is always {only}");
                report.warn(&upstream.pointer_of(key), "without_effect", message, format!("write `{only}`"));
            }
        }
        let mut nodes = Vec::new();
        for (text, pointer) in report.texts(&upstream, "nodes") {
            match parse_node(&text) {
                Ok(node) => nodes.push(node),
                Err(reason) => {
                    report.error(&pointer, "node", format!("`{text}`: {reason}"), "write http://host:port");
                    continue;
                }
            }
            if scheme == "http" && text.starts_with("https://") {
                let message =
                    format!("the scheme of `{text}` has no effect: requests to the node are cleartext");
                report.warn(
                    &pointer,
                    "without_effect",
                    message,
                    "write http://, with the port that answers cleartext HTTP, or set `proxy-client.ssl`",
                );
            }
        }
        if nodes.is_empty() && upstream.get("nodes").is_none_or(|nodes| *nodes.value == json!([])) {
            report.error(
                &upstream.pointer_of("nodes"),
                "missing",
                "the upstream has no nodes",
                "add a node such as http://host:port",
            );
        }
        let Some(id) = report.required_text(&upstream, "id") else { continue };
        if upstreams.insert(id.clone(), nodes).is_some() {
            let message = format!("a second upstream `{id}` replaces the first");
            report.warn(&upstream.pointer_of("id"), "duplicate", message, "give each upstream its own id");
        }
    }
    upstreams
}

/// `[http://|https://]host[:port][/...]`.
fn parse_node(text: &str) -> Result<(String, u16), &'static str> {
    let (rest, default_port) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (_, Some(rest)) => (rest, 443),
        (Some(rest), None) => (rest, 80),
        (None, None) => (text, 80),
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let (host, port) = match authority.split_once(':') {
        None => (authority, default_port),
        Some((_, port)) if port.contains(':') => return Err("IPv6 addresses are not supported here"),
        Some((host, port)) => match port.parse() {
            Ok(port) if port > 0 => (host, port),
            _ => return Err("the port is not a number from 1 to 65535"),
        },
    };
    if host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        return Err("the host is not a name or an IPv4 address");
    }
    Ok((host.to_owned(), port))
}

/// Maximum number of requests that wait for a connection; Vert.x has no limit.
const QUEUE_LENGTH: u32 = 100_000;

/// The default connect timeout of Vert.x.
const CONNECT_TIMEOUT_S: u32 = 60;

/// Settings of connections to nodes.
pub(super) struct Client {
    pub(super) scheme: &'static str,
    /// Connections per node.
    pub(super) pool_size: u64,
    /// Whether the file sets this number.
    pub(super) is_bounded: bool,
}

/// A proxy pass: an upstream, and a rewrite of the path.
pub(super) struct Pass {
    pub(super) id: String,
    name: String,
    nodes: Vec<(String, u16)>,
    pub(super) rewrite: Option<Value>,
}

impl Pass {
    pub(super) fn upstream(&self, client: &Client) -> Value {
        let nodes: Vec<Value> =
            self.nodes.iter().map(|(host, port)| json!({"host": host, "port": port, "weight": 1})).collect();
        let mut upstream = json!({
            "id": self.id,
            "name": self.name,
            "type": "roundrobin",
            "nodes": nodes,
            "retries": 0,
            "keepalive_pool": {"size": client.pool_size},
        });
        if client.is_bounded {
            // A request needs a connection, or waits for one. Vert.x has the same timeout for both.
            let queue = json!({"length": QUEUE_LENGTH, "timeout": CONNECT_TIMEOUT_S});
            upstream["limits"] = json!({"max_requests_per_node": client.pool_size, "queue": queue});
        }
        if client.scheme == "https" {
            // Vert.x verifies certificates and names by default.
            upstream["scheme"] = client.scheme.into();
            upstream["tls"] = json!({"verify": true});
        }
        upstream
    }
}

/// Returns proxy passes by their id; none for one whose error is already reported.
pub(super) fn proxy_passes(
    root: &SourceValue<'_>,
    upstreams: &BTreeMap<String, Vec<(String, u16)>>,
    used: &BTreeSet<&str>,
    report: &mut Report<'_>,
) -> BTreeMap<String, Option<Pass>> {
    let mut passes = BTreeMap::new();
    for (index, place) in report.objects(root, "proxy-pass").into_iter().enumerate() {
        report.unknown(&place, &["id", "desc", "upstream-id", "plugin"], Unknown::Refused);
        report.inert(&place, &["desc"]);
        let rewrite = rewrite_path(&place, report);
        let id = report.required_text(&place, "id");
        let upstream_id = report.required_text(&place, "upstream-id");
        let Some(id) = id else { continue };
        let Some(upstream_id) = upstream_id else {
            passes.insert(id, None);
            continue;
        };
        let Some(nodes) = upstreams.get(&upstream_id) else {
            let pointer = place.pointer_of("upstream-id");
            let message = format!("unknown upstream `{upstream_id}`");
            let hint = "use an `id` of the list `upstream`";
            if used.contains(id.as_str()) {
                report.error(&pointer, "reference", message, hint);
            } else {
                report.warn(&pointer, "reference", format!("{message}; no route uses this proxy pass"), hint);
            }
            passes.insert(id, None);
            continue;
        };
        let resource_id = if is_id(&id) { id.clone() } else { format!("proxy-pass.{}", index + 1) };
        let pass = Pass { id: resource_id, name: upstream_id, nodes: nodes.clone(), rewrite };
        if passes.insert(id.clone(), Some(pass)).is_some() {
            let message = format!("a second proxy pass `{id}` replaces the first");
            report.warn(&place.pointer_of("id"), "duplicate", message, "give each proxy pass its own id");
        }
    }
    passes
}

fn rewrite_path(pass: &SourceValue<'_>, report: &mut Report<'_>) -> Option<Value> {
    let plugin = report.object(pass, "plugin")?;
    report.unknown(&plugin, &["rewrite-path"], Unknown::Ignored);
    let rewrite = report.object(&plugin, "rewrite-path")?;
    report.unknown(&rewrite, &["enable", "regexp", "replacement"], Unknown::Ignored);
    if !report.flag(&rewrite, "enable", false) {
        return None;
    }
    let java_pattern = report.required_text(&rewrite, "regexp");
    let java_replacement = report.text(&rewrite, "replacement");
    if rewrite.get("replacement").is_none() {
        report.missing(&rewrite, "replacement");
    }
    let java_pattern = java_pattern?;
    let regex = match rewrite::pattern(&java_pattern) {
        Ok(regex) => regex,
        Err(reason) => {
            let hint = "write it without look-around, backreferences and possessive quantifiers";
            report.error(&rewrite.pointer_of("regexp"), "regex", format!("`{java_pattern}`: {reason}"), hint);
            return None;
        }
    };
    let java_replacement = java_replacement?;
    match rewrite::replacement(&java_replacement, &regex) {
        Ok(replacement) => Some(json!({"regex": java_pattern, "replacement": replacement})),
        Err(reason) => {
            let pointer = rewrite.pointer_of("replacement");
            report.error(
                &pointer,
                "regex",
                format!("`{java_replacement}`: {reason}"),
                "use `${name}` or `$1` of a group in `regexp`",
            );
            None
        }
    }
}
