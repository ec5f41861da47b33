//! Changes of the states of nodes, which the Admin API and the Control API accept.

use http::StatusCode;
use serde_json::{Value, json};
use sigma_upstream::health::NodeState;

/// Puts a node of an upstream into the state that a body names, by `change`. Returns the body of the response.
///
/// # Errors
/// Returns status and message of the refusal.
pub(crate) fn set(
    change: &dyn Fn(&str, &str, NodeState) -> Result<NodeState, String>,
    upstream: &str,
    node: &str,
    body: Option<&Value>,
) -> Result<Value, (StatusCode, String)> {
    let Some(wanted) = body.and_then(|wanted| wanted.get("state")?.as_str()) else {
        let message = "the body must be a JSON object such as {\"state\": \"drain\"}";
        return Err((StatusCode::BAD_REQUEST, message.to_owned()));
    };
    let Some(wanted) = NodeState::named(wanted) else {
        let message = format!("there is no state {wanted}: write ready, drain or maintenance");
        return Err((StatusCode::BAD_REQUEST, message));
    };
    match change(upstream, node, wanted) {
        Ok(held) if held == wanted => Ok(json!({"node": node, "state": held.name()})),
        Ok(held) => {
            let note = "`node_states` in the configuration of the upstream says so; change it there";
            Ok(json!({"node": node, "state": held.name(), "note": note}))
        }
        Err(message) => Err((StatusCode::NOT_FOUND, message)),
    }
}
