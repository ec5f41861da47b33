//! A configuration that is looked at and not served.

use std::sync::Arc;

use serde_json::Value;
use sigma_config::{Config, Problem};
use sigma_plugin::Roster;
use sigma_proxy::{Compiler, Snapshot};

use crate::fleet::Fleet;
use crate::publisher;
use crate::references::References;
use crate::secret::{Limits, Secrets, Unresolved};

/// Compiles a configuration that is not to be served, for tools that look at it. `plugins` are
/// those of the build. What a start would look up is looked up: the environment, and the secret
/// managers that the configuration names. Blocks meanwhile; not to be called within a runtime.
///
/// # Errors
/// Everything that the check of the document could not see.
pub fn compile_only(config: &Config, plugins: &Arc<Roster>) -> Result<Arc<Snapshot>, Vec<Problem>> {
    let mut fleet = Fleet::default();
    let unresolved = learn_secrets(config, &mut fleet);
    let compiler = Compiler::new(Arc::clone(plugins), Arc::default());
    let compiled = compiler.compile(config, 0, &mut fleet);
    compiled.map(|(_, snapshot)| snapshot).map_err(|failures| {
        let explained = |mut problem: Problem| {
            let told = unresolved.iter().find(|secret| problem.message.contains(&secret.reference));
            problem.hint = problem.hint.or(told.map(|secret| secret.reason.clone()));
            problem
        };
        publisher::problems(failures).into_iter().map(explained).collect()
    })
}

/// Looks up the references in `config`; returns those without an answer.
fn learn_secrets(config: &Config, fleet: &mut Fleet) -> Vec<Unresolved> {
    let mut references = References::default();
    references.note(config, &config.resources.keys());
    let names: Vec<String> = references.all().into_iter().collect();
    if names.is_empty() {
        return Vec::new();
    }
    let Ok(secrets) =
        Secrets::new(Limits::of(&config.settings.secret_lookup), |name| std::env::var(name).ok());
    secrets.set_accesses(config.resources.secrets.iter().cloned());
    let mut values = Value::from(names.clone());
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let reason = format!("nothing can be looked up: {error}");
            let unanswered =
                |reference| Unresolved { pointer: String::new(), reference, reason: reason.clone() };
            return names.into_iter().map(unanswered).collect();
        }
    };
    let unresolved = runtime.block_on(secrets.resolve(&mut values));
    let found = values.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    fleet.learn(names.into_iter().zip(found));
    unresolved
}
