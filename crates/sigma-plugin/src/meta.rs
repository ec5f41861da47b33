//! `_meta`: the settings that every plugin's configuration can have besides its own fields.

use serde::Deserialize;
use serde_json::{Value, json};
use sigma_schema::expr::{Expr, VarName};

/// The `_meta` object of a plugin's configuration.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Meta {
    /// The plugin is disabled.
    pub disable: bool,
    /// Replaces the plugin's priority.
    pub priority: Option<i32>,
    /// The plugin runs only for requests that match.
    pub filter: Expr,
    /// Replaces the body when the plugin replies with a status from 400.
    pub error_response: Option<Value>,
    /// A function that runs before each hook of the plugin; see [`crate::Scripts::before`].
    pub pre_function: Option<String>,
    /// The filter reads the response.
    #[serde(skip)]
    pub asks_response: bool,
}

/// Returns true if the value of a variable comes from the response or from the result of the request.
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
    /// Upstream variables that are known before the request is sent.
    const BEFORE: [&str; 4] =
        ["upstream_uri", "upstream_host", "upstream_scheme", "upstream_unresolved_host"];
    let VarName::Other(name) = name else { return false };
    let is_later = ["upstream_", "sent_http_", "balancer_"].iter().any(|prefix| name.starts_with(prefix));
    NAMES.contains(&name.as_str()) || is_later && !BEFORE.contains(&name.as_str())
}

impl Meta {
    /// Parses `_meta` from a plugin's configuration.
    ///
    /// # Errors
    /// Returns an error message if `_meta` is invalid.
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

    /// Returns its schema.
    pub fn schema() -> Value {
        json!({
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "disable": {"type": "boolean", "description": "Disables the plugin."},
                "error_response": {
                    "oneOf": [{"type": "string"}, {"type": "object"}],
                    "description": "Replaces the body of responses of the plugin with a status of 400 or more."
                },
                "priority": {"type": "integer", "description": "Replaces the priority of the plugin."},
                "filter": {
                    "type": "array",
                    "description": "Conditions on variables; the plugin runs only if they match."
                },
                "pre_function": {"type": "string", "description": "Lua run before each phase."}
            }
        })
    }
}
