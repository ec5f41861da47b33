//! Rules for the nodes in `node_states` of an upstream.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use super::{Object, problem, word};
use sigma_schema::node_address::{split_address, split_node};
use sigma_schema::problem::{Problem, member};

const FIELD: &str = "node_states";

fn named(upstream: &Object) -> impl Iterator<Item = &str> {
    upstream.get(FIELD).and_then(Value::as_object).into_iter().flatten().map(|(node, _)| node.as_str())
}

/// Reports invalid node names: a name needs a port, unless it is a path.
pub(super) fn rules(upstream: &Object) -> Vec<Problem> {
    let breach = |node: &str| {
        let message = match split_address(node) {
            Ok((host, None)) if !host.starts_with("unix:") => {
                format!("`{node}` has no port; the name of a node includes the port")
            }
            Ok(_) => return None,
            Err(message) => message,
        };
        let hint = "write host:port, ip:port, [ipv6]:port or unix:/path as `GET /v1/nodes` shows it";
        Some(problem(member(FIELD, node), "node", message, hint))
    };
    named(upstream).filter_map(breach).collect()
}

/// Returns the names that match no configured node. Empty if names are resolved, or nodes come from a registry, because
/// their addresses are unknown here.
pub(crate) fn strangers(upstream: &Object) -> Vec<String> {
    let port_of_scheme = match word(upstream, "scheme") {
        Some("https" | "grpcs") => 443,
        Some("fcgi") => 9000,
        _ => 80,
    };
    let full = |host: &str, port: Option<u16>| match host.starts_with("unix:") {
        true => host.to_owned(),
        false => format!("{host}:{}", port.unwrap_or(port_of_scheme)),
    };
    let one = |node: &Value| {
        let port = node.get("port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        let (host, port) = split_node(node.get("host")?.as_str()?, port).ok()?;
        is_fixed(&host).then(|| full(&host, port))
    };
    let nodes: Option<BTreeSet<String>> = match upstream.get("nodes") {
        Some(Value::Array(list)) => list.iter().map(one).collect(),
        Some(Value::Object(weights)) => weights
            .keys()
            .map(|key| {
                let (host, port) = split_address(key).ok()?;
                is_fixed(&host).then(|| full(&host, port))
            })
            .collect(),
        _ => None,
    };
    let Some(nodes) = nodes else { return Vec::new() };
    named(upstream).filter(|node| !nodes.contains(*node)).map(str::to_owned).collect()
}

/// Returns whether a host is an address.
fn is_fixed(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.starts_with("unix:") || bare.parse::<IpAddr>().is_ok()
}
