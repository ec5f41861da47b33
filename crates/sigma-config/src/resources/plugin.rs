//! Resources that only contain plugins.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::optional::Optional;
use super::shared::{Labels, Plugins, UnixTime};
use sigma_schema::described::without_defaults;
use sigma_schema::id::Id;

resource! {
    /// A set of plugins that routes refer to.
    #[schemars(extend("required" = ["id", "plugins"]), transform = without_defaults("plugins"))]
    pub struct PluginConfig {
        /// The id; unset in a file: the position (`arr_1`, …).
        #[serde(skip_serializing_if = "Id::is_empty")]
        pub id: Id,
        /// Name for display.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        pub name: Option<Box<str>>,
    } [about times] {
        /// Plugins by name.
        pub plugins: Plugins,
    }
}

resource! {
    /// Plugins that run for every request, before the plugins of the route.
    #[schemars(extend("required" = ["id", "plugins"]), transform = without_defaults("plugins"))]
    pub struct GlobalRule [id times] {
        /// Plugins by name; each plugin in at most one global rule.
        pub plugins: Plugins,
    }
}

/// Settings shared by all configurations of one plugin.
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

/// One entry of the list of enabled plugins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnabledPlugin {
    /// The name of the plugin.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Whether it is enabled for stream routes instead of HTTP.
    #[serde(default)]
    pub stream: bool,
}
