//! Resources that hold plugins only.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::optional::Optional;
use super::shared::{Labels, Plugins, UnixTime};
use sigma_schema::described::without_defaults;
use sigma_schema::id::Id;

resource! {
    /// Plugins that routes refer to.
    #[schemars(extend("required" = ["id", "plugins"]), transform = without_defaults("plugins"))]
    pub struct PluginConfig {
        /// Identity; unset in a file: the position (`arr_1`, …).
        #[serde(skip_serializing_if = "Id::is_empty")]
        pub id: Id,
        /// Name for people.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        pub name: Option<Box<str>>,
    } [about times] {
        /// Plugins by name.
        pub plugins: Plugins,
    }
}

resource! {
    /// Plugins that run for every request, before those of the route.
    #[schemars(extend("required" = ["id", "plugins"]), transform = without_defaults("plugins"))]
    pub struct GlobalRule [id times] {
        /// Plugins by name; each may stand in one global rule only.
        pub plugins: Plugins,
    }
}

/// Settings that all uses of one plugin share.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = without_defaults("id"))]
pub struct PluginMetadata {
    /// The name of the plugin; required.
    #[schemars(with = "String")]
    pub id: Box<str>,
    /// The settings, as the plugin defines them.
    #[serde(flatten)]
    pub settings: Arc<Map<String, Value>>,
}

/// One name of the list of enabled plugins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnabledPlugin {
    /// The name of the plugin.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Whether it serves stream routes rather than HTTP.
    #[serde(default)]
    pub stream: bool,
}
