//! The questions that the check of a configuration asks about plugins. The plugins themselves live in crates above;
//! the program passes their roster down.

use serde_json::Value;

use crate::problem::Problem;
use crate::wording::Unread;

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

/// Where a plugin stands among the others, for lists of plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing<'a> {
    /// Its version, as APISIX numbers it.
    pub version: &'a str,
    /// Plugins with a higher number run first.
    pub priority: i32,
}

/// The plugins of this build, as far as a check needs to know them.
pub trait PluginSchemas: Send + Sync {
    /// Names of all plugins that serve HTTP, sorted.
    fn names(&self) -> Vec<&str>;

    /// The schema for a scope, without `_meta`; None if the plugin or the scope does not exist.
    fn schema(&self, name: &str, scope: PluginScope) -> Option<&Value>;

    /// The group that a plugin belongs to, if the build has left the group out.
    fn left_out(&self, _name: &str) -> Option<&str> {
        None
    }

    /// Whether it authenticates: such plugins are allowed in credentials.
    fn is_auth(&self, name: &str) -> bool;

    /// Whether it lets requests in for persons, whose responses a cache has to keep apart.
    fn identifies(&self, _name: &str) -> bool {
        false
    }

    /// Whether it names those persons. Without names a cache stores only what is for all.
    fn names_persons(&self, _name: &str) -> bool {
        true
    }

    /// Checks a configuration, the plugin's own rules included. `_meta` has been checked before,
    /// and is still in `conf`.
    ///
    /// # Errors
    /// Returns the first reason for which the configuration is refused.
    fn check(&self, name: &str, scope: PluginScope, conf: &Value) -> Result<(), PluginRefusal>;

    /// The mistakes of a configuration, or of the plugins within, that its schema finds, for the writer of a file;
    /// pointers begin in `conf`. There may be none where [`PluginSchemas::check`] refuses the configuration.
    fn mistakes(&self, _name: &str, _scope: PluginScope, _conf: &Value) -> Vec<Problem> {
        Vec::new()
    }

    /// The fields of a configuration, which [`PluginSchemas::check`] accepts, that nobody reads.
    /// `_meta` is none of them.
    fn unread(&self, _name: &str, _scope: PluginScope, _conf: &Value) -> Vec<Unread> {
        Vec::new()
    }

    /// The warnings of the plugin about a configuration that [`PluginSchemas::check`] accepts. They
    /// stop nothing; pointers begin in `conf`.
    fn warnings(&self, _name: &str, _scope: PluginScope, _conf: &Value) -> Vec<Problem> {
        Vec::new()
    }

    /// Adds the defaults to a configuration that a view shows: those that APISIX has too. A configuration that
    /// [`PluginSchemas::check`] refuses stays as it is.
    fn show_defaults(&self, _name: &str, _scope: PluginScope, _conf: &mut Value) {}

    /// The member of its configuration that names a group. All configurations of a group are equal.
    fn group_field(&self, _name: &str) -> Option<&str> {
        None
    }

    /// A configuration that names a group, with defaults filled in and without `_meta`; None if it names none.
    fn group(&self, _name: &str, _conf: &Value) -> Option<Value> {
        None
    }

    /// The attribute of the consumer's data that must be unique among consumers, e.g. `key`.
    fn unique_attribute(&self, name: &str) -> Option<&str>;

    /// Paths of the fields that are encrypted at rest, e.g. `redis_password` or `auth.header`.
    fn secret_fields(&self, name: &str, scope: PluginScope) -> Vec<&str>;

    /// The plugins that stand inside a configuration, which may be wrong: where, as a JSON pointer, and their names.
    fn children(&self, _name: &str, _scope: PluginScope, _conf: &Value) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The schema of what the setting `plugin_attr` may say for a plugin; None if that is nothing.
    fn attributes(&self, _name: &str) -> Option<Value> {
        None
    }

    /// Its place among the others; None where that is not known.
    fn standing(&self, _name: &str) -> Option<Standing<'_>> {
        None
    }

    /// Whether the operator allows a plugin to be left out where it is not known or not enabled.
    fn is_ignored(&self, _name: &str) -> bool {
        false
    }
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

    fn secret_fields(&self, _: &str, _: PluginScope) -> Vec<&str> {
        Vec::new()
    }
}
