//! The plugin `wasm`.

use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::{Descriptor, FileAccess, FileMember, Flow, Phase, PhaseSet};
use sigma_plugin_kit::service::{cleartext, unverified};
use sigma_schema::described::schema_of;

use crate::config::{Config, Services, StreamConfig, inline};
#[cfg(feature = "engine")]
use crate::plugin::build;
use crate::settings::Settings;
#[cfg(feature = "engine")]
use crate::tcp::build as build_flow;

/// The plugin.
pub(crate) static WASM: Descriptor = Descriptor {
    name: "wasm",
    priority: 1980,
    example: include_str!("example.md"),
    phases: PHASES.and(PhaseSet::of(&[Phase::Rewrite])),
    guards: true,
    identifies: true,
    attributes: Some(schema_of::<Settings>),
    files: &[FileMember { name: "file", access: FileAccess::ReadFile }],
    warnings: Some(|_, conf| {
        let targets = conf.get("upstreams").and_then(Value::as_object).into_iter().flatten();
        targets.flat_map(|(name, target)| warnings(name, target)).collect()
    }),
    upstreams: Some(|conf| {
        Services::deserialize(conf).map(|config| inline(&config.upstreams)).unwrap_or_default()
    }),
    flow: Some(Flow::of::<StreamConfig>(build_flow)),
    build,
    ..Descriptor::of::<Config>()
};

/// The hooks besides the one for the request.
pub(crate) const PHASES: PhaseSet =
    PhaseSet::of(&[Phase::Access, Phase::RequestFilter, Phase::HeaderFilter, Phase::BodyFilter, Phase::Log]);

fn warnings(name: &str, target: &Value) -> Vec<sigma_schema::Problem> {
    let clear = cleartext(target, "uri", "the module calls the service in cleartext");
    let unverified = unverified(target, "another server can impersonate the service");
    let in_place = |mut problem: sigma_schema::Problem| {
        problem.pointer = format!("upstreams/{name}/{}", problem.pointer);
        problem
    };
    clear.into_iter().chain(unverified).map(in_place).collect()
}

#[cfg(not(feature = "engine"))]
const NO_ENGINE: &str = "this build has no engine for WebAssembly";

#[cfg(not(feature = "engine"))]
fn build(_: &sigma_plugin::Build<'_>) -> Result<std::sync::Arc<dyn sigma_plugin::Plugin>, String> {
    Err(NO_ENGINE.to_owned())
}

#[cfg(not(feature = "engine"))]
fn build_flow(_: &sigma_plugin::Build<'_>) -> Result<std::sync::Arc<dyn sigma_plugin::FlowPlugin>, String> {
    Err(NO_ENGINE.to_owned())
}
