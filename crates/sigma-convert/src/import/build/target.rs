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
            let mut respond = json!({"status": status});
            if let Some(body) = body {
                respond["text"] = body.clone().into();
            }
            let mut fields = Map::new();
            for (name, value) in headers {
                if name.eq_ignore_ascii_case("content-type") && !value.contains('$') {
                    respond["content_type"] = value.clone().into();
                } else {
                    fields.insert(name.clone(), value.clone().into());
                }
            }
            if !fields.is_empty() {
                respond["headers"] = Value::Object(fields);
            }
            plugins.insert("respond".to_owned(), respond);
        }
        Target::Redirect { status, to } => {
            plugins.insert("respond".to_owned(), json!({"status": status, "location": to}));
        }
        Target::Files(files) => {
            plugins.insert("static-files".to_owned(), Value::Object(files.clone()));
        }
        Target::Drop => {
            plugins.insert("respond".to_owned(), json!({"close": true}));
        }
        Target::Closed(_) => {
            // No other plugin may respond before: a closed route says nothing else.
            plugins.clear();
            plugins.insert("respond".to_owned(), json!({"status": 503}));
        }
    }
}
