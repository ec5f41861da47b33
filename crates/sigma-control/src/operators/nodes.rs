//! Nodes as operators see them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sigma_plugin::facts::Measure;
use sigma_upstream::endpoint::{Endpoint, EndpointSet};
use sigma_upstream::health::{Standing, State};

/// A node as operators see it.
pub(super) fn node_of(endpoint: &Endpoint) -> Value {
    let standing = endpoint.health.standing();
    let mut node = json!({
        "node": endpoint.name(),
        "address": endpoint.addr.to_string(),
        "weight": standing.weighed(endpoint.weight),
        "priority": endpoint.priority,
        "state": standing.wanted.name(),
        "status": status_name(standing),
        "in_use": standing.usable(),
    });
    add_reason(&mut node, standing, endpoint.health.ejected_until_ms());
    let spared = endpoint.health.spared();
    if !spared.is_empty() {
        let count = |(rule, count): (&str, u32)| (rule.to_owned(), Value::from(count));
        node["not_ejected"] = spared.into_iter().map(count).collect::<Map<_, _>>().into();
    }
    node
}

/// How often rules of outlier detection have found nodes that they do not eject.
pub(super) fn measure<'e>(upstreams: impl Iterator<Item = (&'e str, Arc<EndpointSet>)>) -> Measure {
    let mut series = Vec::new();
    for (upstream, set) in upstreams {
        // A node that an upstream names twice is one series.
        let nodes: BTreeMap<_, _> = set.endpoints.iter().map(|node| (node.addr.to_string(), node)).collect();
        for (address, node) in nodes {
            for (rule, count) in node.health.spared() {
                let labels = [("upstream", upstream), ("node", &address), ("rule", rule)];
                series.push((labels.map(|(name, value)| (name, value.to_owned())).into(), count.into()));
            }
        }
    }
    let help = "How often a rule has found a node that it does not eject, since its enforcing_… says so";
    Measure { name: "upstream_outliers_not_ejected_total", help, is_counter: true, series }
}

/// APISIX's words have none for a node that no check has found unhealthy.
pub(super) fn status_name(standing: Standing) -> &'static str {
    if standing.ejected.is_some() { State::Unhealthy.name() } else { standing.state.name() }
}

/// Says why a node is kept out, and until when.
pub(super) fn add_reason(node: &mut Value, standing: Standing, ejected_until_ms: Option<u64>) {
    if let Some(reason) = standing.reason() {
        node["reason"] = reason.into();
    }
    if let Some(until_ms) = ejected_until_ms {
        node["ejected_until"] = (until_ms / 1000).into();
    }
}
