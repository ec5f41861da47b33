//! The interface of plugins for the check of a configuration. Plugins are in other crates; the program passes their
//! roster to the check.

use serde_json::Value;

use crate::problem::Problem;
use crate::validation::Unread;

/// The kind of resource with a plugin's configuration, which selects the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PluginScope {
    /// Route, service, plugin config, consumer group, global rule; also a consumer, for plugins without a consumer
    /// schema.
    Http,
    /// A consumer or credential: the data that identifies the consumer.
    Consumer,
    /// A stream route.
    Stream,
    /// Plugin metadata.
    Metadata,
}

/// The reason to refuse a plugin's configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PluginRefusal {
    /// The plugin does not exist or is not enabled.
    #[error("unknown plugin")]
    Unknown,
    /// The configuration is invalid; the text is in APISIX's words.
    #[error("{0}")]
    Invalid(String),
}

/// Version and priority of a plugin, for lists of plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing<'a> {
    /// The version that APISIX gives the plugin.
    pub version: &'a str,
    /// Plugins with a higher number run first.
    pub priority: i32,
}

/// A member of a plugin's configuration that names a file or folder of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedFile<'a> {
    /// The member's name.
    pub name: &'a str,
    /// The plugin writes or runs it.
    pub is_written: bool,
    /// Clients get its content.
    pub is_served: bool,
}

/// A script in a resource. Scripts in plugin configurations have no form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptForm {
    /// `filter_func` of a route: a function that is the route's condition.
    Condition,
    /// `script` of a route or service: a chunk that returns a table of functions by phase.
    Script,
    /// `_meta.pre_function` of a plugin: a chunk that returns a function.
    PreFunction,
}

/// The error of a script in a build without an engine.
pub const NO_SCRIPTS: &str = "it needs the Lua engine, which this build lacks";

/// The plugins of this build, as far as a check needs them.
pub trait PluginSchemas: Send + Sync {
    /// Returns the names of all HTTP plugins, sorted.
    fn names(&self) -> Vec<&str>;

    /// Returns the schema for a scope, without `_meta`, or None if the plugin or the scope does not exist.
    fn schema(&self, name: &str, scope: PluginScope) -> Option<&Value>;

    /// Returns the members of a configuration that name files of the machine.
    fn files(&self, _name: &str) -> Vec<NamedFile<'_>> {
        Vec::new()
    }

    /// Returns the group of a plugin if the build excludes that group.
    fn left_out(&self, _name: &str) -> Option<&str> {
        None
    }

    /// Checks a script in a resource.
    ///
    /// # Errors
    /// Returns the whole error message.
    fn check_script(&self, _form: ScriptForm, _text: &str) -> Result<(), String> {
        Err(NO_SCRIPTS.to_owned())
    }

    /// Returns whether the plugin authenticates. Such plugins are allowed in credentials.
    fn is_auth(&self, name: &str) -> bool;

    /// Returns whether the plugin identifies users, whose responses a cache must separate.
    fn identifies(&self, _name: &str) -> bool {
        false
    }

    /// Returns whether the plugin names those users. Without names a cache stores public responses only.
    fn names_persons(&self, _name: &str) -> bool {
        true
    }

    /// Checks a configuration, including the plugin's own rules. `_meta` is already checked and still in `conf`.
    ///
    /// # Errors
    /// Returns the first reason to refuse the configuration.
    fn check(&self, name: &str, scope: PluginScope, conf: &Value) -> Result<(), PluginRefusal>;

    /// Returns the mistakes that the schema finds in a configuration, including inner plugins, in words for the writer
    /// of a file. Pointers begin in `conf`. The list may be empty although [`PluginSchemas::check`] refuses the
    /// configuration.
    fn mistakes(&self, _name: &str, _scope: PluginScope, _conf: &Value) -> Vec<Problem> {
        Vec::new()
    }

    /// Returns the fields without effect in a configuration that [`PluginSchemas::check`] accepts. `_meta` never
    /// counts.
    fn unread(&self, _name: &str, _scope: PluginScope, _conf: &Value) -> Vec<Unread> {
        Vec::new()
    }

    /// Returns the plugin's warnings about a configuration that [`PluginSchemas::check`] accepts. Pointers begin in
    /// `conf`.
    fn warnings(&self, _name: &str, _scope: PluginScope, _conf: &Value) -> Vec<Problem> {
        Vec::new()
    }

    /// Adds the defaults that APISIX also has to a configuration for a view. A configuration that
    /// [`PluginSchemas::check`] refuses is not changed.
    fn show_defaults(&self, _name: &str, _scope: PluginScope, _conf: &mut Value) {}

    /// Returns the field that names a group. All configurations of a group must be equal.
    fn group_field(&self, _name: &str) -> Option<&str> {
        None
    }

    /// Returns a configuration that names a group, with defaults and without `_meta`, or None without a group.
    fn group(&self, _name: &str, _conf: &Value) -> Option<Value> {
        None
    }

    /// Returns the attribute of the consumer's data that must be unique among consumers, e.g. `key`.
    fn unique_attribute(&self, name: &str) -> Option<&str>;

    /// Returns the paths of the fields that are encrypted at rest, e.g. `redis_password` or `auth.header`.
    fn secret_fields(&self, name: &str, scope: PluginScope) -> Vec<&str>;

    /// Returns the plugins inside a configuration, which may be invalid: JSON pointers and names.
    fn children(&self, _name: &str, _scope: PluginScope, _conf: &Value) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Returns the schema of the plugin's `plugin_attr` settings, or None if no settings exist.
    fn attributes(&self, _name: &str) -> Option<Value> {
        None
    }

    /// Returns version and priority, or None if they are unknown.
    fn standing(&self, _name: &str) -> Option<Standing<'_>> {
        None
    }

    /// Returns whether the operator allows this plugin to be ignored where it is unknown or not enabled.
    fn is_ignored(&self, _name: &str) -> bool {
        false
    }
}

/// An empty roster, for tools that do not check plugins.
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
