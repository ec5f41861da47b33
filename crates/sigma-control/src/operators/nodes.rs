//! Nodes as operators see them.

use serde_json::{Value, json};
use sigma_upstream::endpoint::Endpoint;
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
    node
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
