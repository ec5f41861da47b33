//! Where Sigma is stricter than APISIX, and an operator who moves from there may have it otherwise.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The treatment of fields that do not exist, in resources and in configurations of plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UnknownFields {
    /// The resource is refused; in a store it is quarantined and its last good form stays.
    #[default]
    Refuse,
    /// It is ignored, as in APISIX, with a warning in the Admin API's answer, in the error log and
    /// in `/status`. What APISIX refuses stays refused.
    Warn,
}

/// Leniency for configurations that come from APISIX.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Compat {
    /// Fields that do not exist, in resources and in configurations of plugins.
    pub unknown_fields: UnknownFields,
    /// Plugins that objects of a store may name although this build does not have them, or `plugins`
    /// does not enable them: they are left out, each with a warning. An object with any other such
    /// plugin is quarantined and answers 503, since what it does not do may be what guards. Name none
    /// that authenticates, authorizes or limits. Read once, at the start.
    pub ignored_plugins: Vec<String>,
}
