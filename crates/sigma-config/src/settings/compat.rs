//! Leniency where Sigma is stricter than APISIX, for a migration.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The treatment of unknown fields in resources and plugin configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UnknownFields {
    /// The resource is refused; in a store it is quarantined and its last good form stays.
    #[default]
    Refuse,
    /// The field is ignored, as in APISIX, with a warning in the response of the Admin API, in the error log and in
    /// `/status`. Fields that APISIX refuses are still refused.
    Warn,
}

/// Leniency for configurations that come from APISIX.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Compat {
    /// Unknown fields in resources and plugin configurations.
    pub unknown_fields: UnknownFields,
    /// Plugins that objects of a store may use although this build lacks them, or `plugins` does not enable them. They
    /// are ignored, each with a warning. An object with any other such plugin is quarantined and responds 503, because
    /// the missing plugin may protect it. Do not list plugins that authenticate, authorise or limit. Read once, at the
    /// start.
    pub ignored_plugins: Vec<String>,
}
