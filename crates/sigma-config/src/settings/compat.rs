//! Where Sigma is stricter than APISIX, and an operator who moves from there may have it otherwise.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Leniency for configurations that come from APISIX.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Compat {
    /// Plugins that objects of a store may name although this build does not have them, or `plugins`
    /// does not enable them: they are left out, each with a warning. An object with any other such
    /// plugin is quarantined and answers 503, since what it does not do may be what guards. Name none
    /// that authenticates, authorizes or limits. Read once, at the start.
    pub ignored_plugins: Vec<String>,
}
