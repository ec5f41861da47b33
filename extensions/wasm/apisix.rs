//! Plugins of APISIX's section `wasm`: each entry is its own plugin.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::{Build, Kind, Phase, PhaseSet, Plugin};
use sigma_plugin_kit::tallies::counted;
use sigma_schema::described::schema_of;
use sigma_schema::plugins::PluginScope;

use crate::config::{ApisixConfig, RequestPhase, inline};
use crate::descriptor::PHASES;
use crate::plugin::WasmPlugin;
use crate::usage::{ModuleReference, Shared, services, vm_use};
use crate::vm_data::VmParts;

/// The section.
#[derive(Deserialize)]
struct Section {
    plugins: Vec<Entry>,
}

/// A plugin.
#[derive(Debug, Clone, Deserialize)]
struct Entry {
    name: String,
    priority: i32,
    file: PathBuf,
    #[serde(default = "access")]
    http_request_phase: RequestPhase,
}

fn access() -> RequestPhase {
    RequestPhase::Access
}

/// Returns the plugins of a section.
///
/// # Errors
/// Returns an error message if the section is invalid.
pub fn kinds(section: &Value) -> Result<Vec<Arc<dyn Kind>>, String> {
    let section = Section::deserialize(section).map_err(|error| format!("wasm: {error}"))?;
    Ok(section.plugins.into_iter().map(|entry| Arc::new(entry) as Arc<dyn Kind>).collect())
}

impl Kind for Entry {
    fn name(&self) -> &str {
        &self.name
    }

    fn group(&self) -> &str {
        "wasm"
    }

    fn priority(&self) -> i32 {
        self.priority
    }

    fn phases(&self) -> PhaseSet {
        match self.http_request_phase {
            RequestPhase::Access => PHASES,
            RequestPhase::Rewrite => PHASES.and(PhaseSet::of(&[Phase::Rewrite])),
        }
    }

    fn documentation(&self) -> Cow<'_, str> {
        format!("The WebAssembly module `{}`.", self.file.display()).into()
    }

    fn guards(&self) -> bool {
        true
    }

    fn identifies(&self) -> bool {
        true
    }

    fn schema(&self, scope: PluginScope) -> Option<Value> {
        (scope == PluginScope::Http).then(schema_of::<ApisixConfig>)
    }

    fn check(&self, _: PluginScope, conf: &Value) -> Result<(), String> {
        sigma_plugin::descriptor::parsed::<ApisixConfig>(conf).map(drop)
    }

    fn has_upstreams(&self, scope: PluginScope) -> bool {
        scope == PluginScope::Http
    }

    fn upstreams(&self, _: PluginScope, conf: &Value, _: &Value) -> Vec<InlineUpstream> {
        ApisixConfig::deserialize(conf).map(|config| inline(&config.upstreams)).unwrap_or_default()
    }

    fn build(&self, build: &Build<'_>) -> Result<Arc<dyn Plugin>, String> {
        let config: ApisixConfig = build.config()?;
        let parts = VmParts {
            root_id: self.name.as_str().into(),
            configuration: config.conf.bytes(),
            services: services(build, &config.upstreams),
            ..VmParts::default()
        };
        let vm_use =
            vm_use(build, ModuleReference { name: &self.name, file: &self.file, sha256: None, parts })?;
        let shared = Shared {
            vm_use,
            fail_open: false,
            allow_on_headers_stop_iteration: false,
            is_apisix: true,
            counted: counted(build.node, build.resource),
        };
        Ok(Arc::new(WasmPlugin { shared: Arc::new(shared), phase: self.http_request_phase }))
    }
}
