//! The control plane: from a file to a snapshot in force, and what operators ask for.
//!
//! One thread with its own runtime. It reaches the workers only through
//! [`sigma_proxy::Gateway`], and never touches a request.

pub mod admin;
pub mod control_api;
mod desired;
mod endpoints;
mod fleet;
mod inspect;
mod niubix;
mod operators;
mod publisher;
mod references;
pub mod secret;
pub mod source;
mod status;
pub mod store;
pub mod supervisor;

pub use desired::Quarantined;
pub use fleet::Fleet;
pub use source::{LoadError, Source};
pub use supervisor::{LogControl, Options, StartError, Supervisor};

/// Compiles a configuration that is not to be served, for tools that look at it. `plugins` are
/// those of the build.
///
/// # Errors
/// Everything that the check of the document could not see.
pub fn compile_only(
    config: &sigma_config::Config,
    plugins: &std::sync::Arc<sigma_plugin::Roster>,
) -> Result<std::sync::Arc<sigma_proxy::Snapshot>, Vec<sigma_config::Problem>> {
    let compiler = sigma_proxy::Compiler::new(std::sync::Arc::clone(plugins), std::sync::Arc::default());
    let compiled = compiler.compile(config, 0, &mut Fleet::default());
    compiled.map(|(_, snapshot)| snapshot).map_err(publisher::problems)
}
