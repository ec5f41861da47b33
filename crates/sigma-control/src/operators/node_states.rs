//! Changes of the states of nodes, which the Admin API and the Control API accept.

use http::StatusCode;
use serde_json::{Value, json};
use sigma_upstream::health::NodeState;

use super::refused_call::RefusedCall;

/// Puts a node of an upstream into the state that a body names, by `change`. Returns the body of the response.
///
/// # Errors
/// Returns the refusal: the body names no state, or the node does not exist.
pub(crate) fn set(
    change: &dyn Fn(&str, &str, NodeState) -> Result<NodeState, String>,
    upstream: &str,
    node: &str,
    body: Option<&Value>,
) -> Result<Value, RefusedCall> {
    let Some(wanted) = body.and_then(|wanted| wanted.get("state")?.as_str()) else {
        let message = "the body must be a JSON object such as {\"state\": \"drain\"}";
        return Err(RefusedCall::bad(message));
    };
    let Some(wanted) = NodeState::named(wanted) else {
        let message = format!("there is no state {wanted}: write ready, drain or maintenance");
        return Err(RefusedCall::bad(message));
    };
    match change(upstream, node, wanted) {
        Ok(held) if held == wanted => Ok(json!({"node": node, "state": held.name()})),
        Ok(held) => {
            let note = "`node_states` in the configuration of the upstream says so; change it there";
            Ok(json!({"node": node, "state": held.name(), "note": note}))
        }
        Err(message) => Err(RefusedCall::new(StatusCode::NOT_FOUND, message)),
    }
}
