//! Plugins that are WebAssembly modules.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Plugins that are WebAssembly modules with the ABI of proxy-wasm. Each one is its own plugin, with APISIX's rules:
/// its configuration has the member `conf`. Read once, at the start. The plugin `wasm` runs a module without this
/// section.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wasm {
    /// The plugins.
    #[schemars(length(min = 1))]
    pub plugins: Vec<WasmPlugin>,
}

/// A plugin that is a WebAssembly module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WasmPlugin {
    /// The name of the plugin. It is not the name of another plugin.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// The file of the module.
    pub file: PathBuf,
    /// Plugins with a higher number run first.
    pub priority: i32,
    /// The phase in which the module gets the request.
    #[serde(default)]
    pub http_request_phase: WasmRequestPhase,
}

/// The phase of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WasmRequestPhase {
    /// After authentication
    #[default]
    Access,
    /// Before authentication
    Rewrite,
}
