//! The action of a decision in the syntax of routes.

use serde_json::{Map, Value, json};

use super::super::decision::Target;

/// Inserts the target, as an upstream or as a plugin.
pub(super) fn insert(route: &mut Map<String, Value>, plugins: &mut Map<String, Value>, target: &Target) {
    match target {
        Target::Upstream(id) => {
            route.insert("upstream_id".to_owned(), id.clone().into());
        }
        Target::Respond { status, body, headers } => {
            let mut abort = json!({"http_status": status});
            if let Some(body) = body {
                abort["body"] = body.clone().into();
            }
            if !headers.is_empty() {
                let fields: Map<String, Value> =
                    headers.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
                abort["headers"] = Value::Object(fields);
            }
            plugins.insert("fault-injection".to_owned(), json!({"abort": abort}));
        }
        Target::Redirect { status, to } => {
            plugins.insert("redirect".to_owned(), json!({"ret_code": status, "uri": to}));
        }
        Target::Files(files) => {
            plugins.insert("static-files".to_owned(), Value::Object(files.clone()));
        }
        Target::Drop => {
            plugins.insert(
                "ip-restriction".to_owned(),
                json!({"blacklist": ["0.0.0.0/0", "::/0"], "rejected_action": "silent-drop"}),
            );
        }
        Target::Closed(_) => {
            // No other plugin may respond before: a closed route says nothing else.
            plugins.clear();
            plugins.insert("fault-injection".to_owned(), json!({"abort": {"http_status": 503}}));
        }
    }
}
