//! `_meta`: what every plugin's configuration may say besides its own fields.

use serde::Deserialize;
use serde_json::{Value, json};
use sigma_config::expr::{Expr, VarName};

/// The `_meta` object of a plugin's configuration.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Meta {
    /// The plugin is left out.
    pub disable: bool,
    /// Replaces the plugin's priority.
    pub priority: Option<i32>,
    /// The plugin runs only for requests for which this holds.
    pub filter: Expr,
    /// Replaces the body when the plugin answers with a status from 400.
    pub error_response: Option<Value>,
    /// The filter asks about the response.
    #[serde(skip)]
    pub asks_response: bool,
}

/// Whether a variable has its value from the response, or from what came of the request.
fn is_of_response(name: &VarName) -> bool {
    const NAMES: [&str; 7] = [
        "status",
        "bytes_sent",
        "body_bytes_sent",
        "request_time",
        "request_completion",
        "resp_body",
        "response_source",
    ];
    /// What is known of the upstream before it is asked.
    const BEFORE: [&str; 4] =
        ["upstream_uri", "upstream_host", "upstream_scheme", "upstream_unresolved_host"];
    let VarName::Other(name) = name else { return false };
    let is_later = ["upstream_", "sent_http_", "balancer_"].iter().any(|prefix| name.starts_with(prefix));
    NAMES.contains(&name.as_str()) || is_later && !BEFORE.contains(&name.as_str())
}

impl Meta {
    /// Reads `_meta` out of a plugin's configuration.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if `_meta` is wrong.
    pub fn of(conf: &Value) -> Result<Meta, String> {
        match conf.get("_meta") {
            None => Ok(Meta::default()),
            Some(meta) => {
                let mut meta = Meta::deserialize(meta).map_err(|error| format!("_meta: {error}"))?;
                meta.asks_response =
                    meta.filter.wrong(|name| is_of_response(name).then(String::new)).is_some();
                Ok(meta)
            }
        }
    }

    /// Its schema.
    pub fn schema() -> Value {
        json!({
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "disable": {"type": "boolean", "description": "Leaves the plugin out."},
                "error_response": {
                    "oneOf": [{"type": "string"}, {"type": "object"}],
                    "description": "Replaces the body when the plugin answers with a status from 400."
                },
                "priority": {"type": "integer", "description": "Replaces the plugin's place in the order."},
                "filter": {
                    "type": "array",
                    "description": "Conditions on variables; the plugin runs only where they hold."
                },
                "pre_function": {"type": "string", "description": "Lua run before each phase."}
            }
        })
    }
}
