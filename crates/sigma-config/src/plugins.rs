//! What the check of a configuration asks about plugins. The plugins themselves live above this
//! crate; the binary passes their roster down.

use serde_json::Value;

/// Where a plugin's configuration stands, which decides what it is checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PluginScope {
    /// Route, service, plugin config, consumer group, global rule; also a consumer, for plugins
    /// without a schema of their own there.
    Http,
    /// A consumer or credential: the data that identifies it.
    Consumer,
    /// A stream route.
    Stream,
    /// Plugin metadata.
    Metadata,
}

/// Why a plugin's configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PluginRefusal {
    /// No such plugin, or it is not enabled.
    #[error("unknown plugin")]
    Unknown,
    /// The configuration is wrong; the text is worded as APISIX words it.
    #[error("{0}")]
    Invalid(String),
}

/// The plugins of this build, as far as a check needs to know them.
pub trait PluginSchemas: Send + Sync {
    /// Names of all plugins that serve HTTP, sorted.
    fn names(&self) -> Vec<&str>;

    /// The schema for a scope, without `_meta`; None if the plugin or the scope does not exist.
    fn schema(&self, name: &str, scope: PluginScope) -> Option<&Value>;

    /// Whether it authenticates: such plugins are allowed in credentials.
    fn is_auth(&self, name: &str) -> bool;

    /// Checks a configuration, the plugin's own rules included. `_meta` has been checked before,
    /// and is still in `conf`.
    ///
    /// # Errors
    /// The first reason for which the configuration is refused.
    fn check(&self, name: &str, scope: PluginScope, conf: &Value) -> Result<(), PluginRefusal>;

    /// The attribute of the consumer's data that must be unique among consumers, e.g. `key`.
    fn unique_attribute(&self, name: &str) -> Option<&str>;

    /// Paths of the fields that are encrypted at rest, e.g. `redis_password` or `auth.header`.
    fn secret_fields(&self, name: &str, scope: PluginScope) -> &[&str];
}

/// No plugins at all, for tools that check nothing of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPlugins;

impl PluginSchemas for NoPlugins {
    fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    fn schema(&self, _: &str, _: PluginScope) -> Option<&Value> {
        None
    }

    fn is_auth(&self, _: &str) -> bool {
        false
    }

    fn check(&self, _: &str, _: PluginScope, _: &Value) -> Result<(), PluginRefusal> {
        Err(PluginRefusal::Unknown)
    }

    fn unique_attribute(&self, _: &str) -> Option<&str> {
        None
    }

    fn secret_fields(&self, _: &str, _: PluginScope) -> &[&str] {
        &[]
    }
}
