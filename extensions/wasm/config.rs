//! The configuration of a module.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::Configuration;
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::Service;

/// Runs a WebAssembly module with the ABI of proxy-wasm (0.1.0, 0.2.0 or 0.2.1) or of http-wasm.
///
/// Modules are built with the SDKs for Rust, Go, C++ or AssemblyScript, as for Envoy. Each worker has its own
/// instance, without files and sockets. A module sees its exchanges only, and can call only the services in
/// `upstreams`. If it is aborted, one exchange fails with 503, and a new instance starts.
///
/// A module cannot change the fields that frame a message, or request fields that another plugin of the route sets.
/// Such changes have no effect and are counted as `wasm_events_total{event="mutation_rejected"}`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct Config {
    /// The file of the module, in the binary format. It is read when the configuration is loaded.
    #[schemars(length(min = 1, max = 4096))]
    pub(crate) file: PathBuf,
    /// The SHA-256 of the file, hexadecimal. Another file is refused.
    #[schemars(regex(pattern = "^[0-9a-fA-F]{64}$"))]
    pub(crate) sha256: Option<String>,
    /// The configuration for the module: a text, or an object that the module gets as JSON.
    pub(crate) conf: Option<Text>,
    /// The name of the plugin in a module that contains several.
    #[schemars(extend("default" = ""))]
    pub(crate) root_id: String,
    /// The name of the shared data and queues. Modules with the same name share them; without a name, configurations of
    /// the same file do.
    #[schemars(extend("default" = ""))]
    pub(crate) vm_id: String,
    /// The configuration of the instance, which `proxy_on_vm_start` gets.
    pub(crate) vm_conf: Option<Text>,
    /// Environment variables of the module.
    #[schemars(extend("default" = {}))]
    pub(crate) env: BTreeMap<String, String>,
    /// The phase in which the module gets the request.
    #[schemars(extend("default" = "access"))]
    pub(crate) http_request_phase: RequestPhase,
    /// The services that the module calls, by the names that it uses.
    #[schemars(extend("default" = {}))]
    pub(crate) upstreams: BTreeMap<String, Target>,
    /// Whether exchanges continue without a module that fails. Otherwise they get 503.
    #[schemars(extend("default" = false))]
    pub(crate) fail_open: bool,
    /// Whether a module that pauses in the callback of a head gets the body meanwhile. Otherwise the message waits until
    /// the module continues it, as in Envoy.
    #[schemars(extend("default" = false))]
    pub(crate) allow_on_headers_stop_iteration: bool,
}

/// The configuration of a module for sessions over TCP.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct StreamConfig {
    /// The file of the module, in the binary format. It is read when the configuration is loaded.
    #[schemars(length(min = 1, max = 4096))]
    pub(crate) file: PathBuf,
    /// The SHA-256 of the file, hexadecimal. Another file is refused.
    #[schemars(regex(pattern = "^[0-9a-fA-F]{64}$"))]
    pub(crate) sha256: Option<String>,
    /// The configuration for the module: a text, or an object that the module gets as JSON.
    pub(crate) conf: Option<Text>,
    /// The name of the plugin in a module that contains several.
    #[schemars(extend("default" = ""))]
    pub(crate) root_id: String,
    /// The name of the shared data and queues.
    #[schemars(extend("default" = ""))]
    pub(crate) vm_id: String,
    /// The configuration of the instance, which `proxy_on_vm_start` gets.
    pub(crate) vm_conf: Option<Text>,
    /// Environment variables of the module.
    #[schemars(extend("default" = {}))]
    pub(crate) env: BTreeMap<String, String>,
    /// The services that the module calls, by the names that it uses.
    #[schemars(extend("default" = {}))]
    pub(crate) upstreams: BTreeMap<String, Target>,
    /// Whether sessions continue without a module that fails. Otherwise they are closed.
    #[schemars(extend("default" = false))]
    pub(crate) fail_open: bool,
}

/// A text, or an object.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Text {
    /// A text.
    Text(String),
    /// An object, as JSON.
    Object(serde_json::Map<String, Value>),
}

impl Text {
    /// Returns the bytes that the module gets.
    pub(crate) fn bytes(&self) -> Box<[u8]> {
        match self {
            Text::Text(text) => text.as_bytes().into(),
            Text::Object(object) => Value::Object(object.clone()).to_string().into_bytes().into(),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Text::Text(text) => text.is_empty(),
            Text::Object(object) => object.is_empty(),
        }
    }
}

/// The phase of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RequestPhase {
    /// After authentication
    Access,
    /// Before authentication
    Rewrite,
}

/// A service that a module calls.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Target {
    /// Its URL, without a path: the module names the path.
    pub(crate) uri: Service,
    /// Whether its certificate is verified.
    #[schemars(extend("default" = true))]
    #[serde(default = "yes")]
    pub(crate) ssl_verify: bool,
    /// Whether the module calls it by gRPC. Otherwise it calls it by HTTP.
    #[schemars(extend("default" = false))]
    #[serde(default)]
    pub(crate) grpc: bool,
}

impl Target {
    fn upstream(&self) -> Value {
        let mut upstream = self.uri.upstream(self.ssl_verify, CONNECT_MS);
        if self.grpc {
            upstream["scheme"] = if &*self.uri.scheme == "https" { "grpcs" } else { "grpc" }.into();
        }
        upstream
    }
}

fn yes() -> bool {
    true
}

/// The most services of a module.
const UPSTREAMS_MAX: usize = 64;

/// Milliseconds for connecting to a service. The module has its own limit for the whole call.
const CONNECT_MS: u64 = 60_000;

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        check_vm(&self.vm_id, &self.env)?;
        check_upstreams(&self.upstreams)
    }
}

impl Configuration for StreamConfig {
    fn check(&self) -> Result<(), String> {
        check_vm(&self.vm_id, &self.env)?;
        check_upstreams(&self.upstreams)
    }
}

fn check_vm(vm_id: &str, env: &BTreeMap<String, String>) -> Result<(), String> {
    let wrong = |(name, value): (&String, &String)| {
        name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
    };
    if env.iter().any(wrong) {
        return Err("env: a name is empty or contains `=`, or a text contains a NUL".to_owned());
    }
    if vm_id.contains('\0') {
        return Err("vm_id: it contains a NUL".to_owned());
    }
    Ok(())
}

fn check_upstreams(upstreams: &BTreeMap<String, Target>) -> Result<(), String> {
    if upstreams.len() > UPSTREAMS_MAX {
        return Err(format!("upstreams: at most {UPSTREAMS_MAX} services are allowed"));
    }
    match upstreams.iter().find(|(_, target)| &*target.uri.target != "/") {
        Some((name, target)) => {
            Err(format!("upstreams.{name}.uri: the module sets the path: remove `{}`", target.uri.target))
        }
        None => Ok(()),
    }
}

/// The part of a configuration that contains upstreams.
#[derive(Default, Deserialize)]
pub(crate) struct Services {
    #[serde(default)]
    pub(crate) upstreams: BTreeMap<String, Target>,
}

/// Returns the services as upstreams.
pub(crate) fn inline(upstreams: &BTreeMap<String, Target>) -> Vec<InlineUpstream> {
    let inline = |(name, target): (&String, &Target)| InlineUpstream {
        name: name.clone(),
        upstream: target.upstream(),
    };
    upstreams.iter().map(inline).collect()
}

/// The configuration of a plugin in APISIX's `wasm` section.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ApisixConfig {
    /// The configuration for the module: a text, or an object that the module gets as JSON.
    pub(crate) conf: Text,
    /// The services that the module calls, by the names that it uses.
    #[schemars(extend("default" = {}))]
    #[serde(default)]
    pub(crate) upstreams: BTreeMap<String, Target>,
}

impl Configuration for ApisixConfig {
    fn check(&self) -> Result<(), String> {
        if self.conf.is_empty() {
            return Err("property \"conf\" validation failed: it is empty".to_owned());
        }
        check_upstreams(&self.upstreams)
    }
}
