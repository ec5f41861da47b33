//! Changes of the states of nodes, which the Admin API and the Control API accept.

use http::StatusCode;
use serde_json::{Value, json};
use sigma_upstream::health::NodeState;

use crate::operators::control_api::Inspect;

/// Puts a node of an upstream into the state that a body names. Returns the body of the response.
///
/// # Errors
/// Returns status and message of the refusal.
pub(crate) fn set(
    inspect: &dyn Inspect,
    upstream: &str,
    node: &str,
    body: Option<&Value>,
) -> Result<Value, (StatusCode, String)> {
    let Some(wanted) = body.and_then(|wanted| wanted.get("state")?.as_str()) else {
        let message = "the body must be an object such as {\"state\": \"drain\"}";
        return Err((StatusCode::BAD_REQUEST, message.to_owned()));
    };
    let Some(wanted) = NodeState::named(wanted) else {
        let message = format!("there is no state {wanted}: write ready, drain or maintenance");
        return Err((StatusCode::BAD_REQUEST, message));
    };
    match inspect.set_node_state(upstream, node, wanted) {
        Ok(held) if held == wanted => Ok(json!({"node": node, "state": held.name()})),
        Ok(held) => {
            let note = "`node_states` in the configuration of the upstream says so; change it there";
            Ok(json!({"node": node, "state": held.name(), "note": note}))
        }
        Err(message) => Err((StatusCode::NOT_FOUND, message)),
    }
}
