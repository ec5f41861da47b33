//! Nodes as operators see them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sigma_plugin::facts::Measure;
use sigma_upstream::endpoint::{Endpoint, EndpointSet};
use sigma_upstream::health::{Standing, State};

/// The status of a node that nothing checks.
const UNCHECKED: &str = "unchecked";

/// An upstream in force with its nodes, as operators see it.
#[derive(Debug)]
pub struct UpstreamNodes {
    /// The resource that holds the upstream.
    pub key: String,
    /// The first path of a route that holds it.
    pub uri: Option<String>,
    /// An object for each node.
    pub nodes: Vec<Value>,
    /// Why there is no node.
    pub reason: Option<String>,
}

impl UpstreamNodes {
    /// Returns the state of an upstream with these nodes.
    pub(crate) fn of(key: &str, set: &EndpointSet, is_checked: bool) -> UpstreamNodes {
        let none = || match set.unresolved {
            Some(fault) => fault.to_string(),
            None => "the upstream has no node".to_owned(),
        };
        UpstreamNodes {
            key: key.to_owned(),
            uri: None,
            nodes: set.endpoints.iter().map(|node| node_of(node, is_checked)).collect(),
            reason: set.endpoints.is_empty().then(none),
        }
    }

    /// It as JSON.
    pub(crate) fn shown(self) -> Value {
        let mut shown = json!({"upstream": self.key, "nodes": self.nodes});
        if let Some(uri) = self.uri {
            shown["uri"] = uri.into();
        }
        if let Some(reason) = self.reason {
            shown["reason"] = reason.into();
        }
        shown
    }
}

/// A node as operators see it. `is_checked` says whether checks or outlier detection judge it. A node without such
/// checks can have failures all the same: broken connections count with any `checks`.
pub(super) fn node_of(endpoint: &Endpoint, is_checked: bool) -> Value {
    let standing = endpoint.health.standing();
    let is_judged = is_checked || standing.ejected.is_some() || standing.state != State::Healthy;
    let mut node = json!({
        "node": endpoint.name(),
        "address": endpoint.addr.to_string(),
        "weight": standing.weighed(endpoint.weight),
        "priority": endpoint.priority,
        "state": standing.wanted.name(),
        "status": if is_judged { status_name(standing) } else { UNCHECKED },
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
    let help = "Ejections that a rule skipped because of its enforcing_… percentage";
    Measure { name: "upstream_outliers_not_ejected_total", help, is_counter: true, series }
}

/// APISIX has no word for a node that no check has found unhealthy.
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
