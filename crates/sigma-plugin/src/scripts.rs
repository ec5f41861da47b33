//! Scripts of users in resources, besides plugins of their own: conditions of routes, scripts that replace a route's
//! plugins, and functions before the hooks of a plugin.

use std::fmt::Debug;
use std::sync::Arc;

use sigma_schema::expr::Variables;
use sigma_schema::plugins::ScriptForm;

use crate::{Entry, Plugin};

/// An engine for scripts. A plugin kind brings it; see [`crate::Descriptor::scripts`].
pub trait Scripts: Send + Sync {
    /// Checks a text.
    ///
    /// # Errors
    /// Returns the whole error message, with the line if the text does not compile.
    fn check(&self, form: ScriptForm, text: &str) -> Result<(), String>;

    /// Returns the condition of a route. A text that does not compile is a condition that never holds.
    fn condition(&self, route: &str, text: &str) -> Arc<dyn RouteCondition>;

    /// Returns the entry that runs a script. It replaces the plugins of its resource.
    fn script(&self, resource: &str, text: &str) -> Entry;

    /// Returns a plugin that runs a function before each hook of `plugin`, with the configuration of its entry.
    fn before(
        &self,
        plugin: Arc<dyn Plugin>,
        place: &str,
        text: &str,
        conf: &serde_json::Value,
    ) -> Arc<dyn Plugin>;
}

/// A condition of a route in code.
pub trait RouteCondition: Send + Sync + Debug {
    /// Returns true if the route may serve a request with these variables. An error is false.
    fn holds(&self, variables: &dyn Variables) -> bool;
}

/// The name of the entry that [`Scripts::script`] makes. No plugin has it.
pub const SCRIPT: &str = "script";
