//! The questions that the check of a configuration asks about plugins. The plugins themselves live
//! above this crate; the binary passes their roster down.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::Problem;
use crate::expr::Expr;
use crate::kind::Kind;
use crate::profile::Profile;
use crate::rules::before_body;
use crate::wording::{self, Unread};

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

/// The plugins of a build that an operator enabled; the others are unknown.
pub struct EnabledPlugins<'a> {
    all: &'a dyn PluginSchemas,
    profile: Option<Profile>,
    http: Option<BTreeSet<&'a str>>,
    stream: Option<BTreeSet<&'a str>>,
}

/// The names of the plugins that requests may use, and of those that sessions may; None for all. `plugins` and
/// `stream_plugins` are the settings of these names.
pub fn enabled<'a>(
    plugins: Option<&'a [crate::resources::EnabledPlugin]>,
    stream_plugins: Option<&'a [String]>,
) -> [Option<BTreeSet<&'a str>>; 2] {
    let marked = |stream: bool| {
        let names = move |list: &'a [crate::resources::EnabledPlugin]| {
            list.iter().filter(move |plugin| plugin.stream == stream).map(|plugin| plugin.name.as_str())
        };
        plugins.map(names)
    };
    let own = stream_plugins.map(|names| names.iter().map(String::as_str));
    let of_sessions = match (marked(true), own) {
        (None, None) => None,
        (marked, own) => Some(marked.into_iter().flatten().chain(own.into_iter().flatten()).collect()),
    };
    [marked(false).map(Iterator::collect), of_sessions]
}

impl<'a> EnabledPlugins<'a> {
    /// Of `all`, those that the settings of these names allow.
    pub fn new(
        all: &'a dyn PluginSchemas,
        plugins: Option<&'a [crate::resources::EnabledPlugin]>,
        stream_plugins: Option<&'a [String]>,
    ) -> Self {
        let [http, stream] = enabled(plugins, stream_plugins);
        EnabledPlugins { all, profile: None, http, stream }
    }

    /// The same, with the defaults of a profile.
    #[must_use]
    pub fn with_profile(self, profile: Option<Profile>) -> Self {
        EnabledPlugins { profile, ..self }
    }

    /// A configuration as the plugin reads it under the profile.
    fn filled<'v>(&self, name: &str, scope: PluginScope, conf: &'v Value) -> Cow<'v, Value> {
        match self.profile.filter(|_| scope == PluginScope::Http) {
            None => Cow::Borrowed(conf),
            Some(profile) => {
                let mut filled = conf.clone();
                profile.fill_plugin(name, &mut filled);
                Cow::Owned(filled)
            }
        }
    }

    fn is_enabled(&self, name: &str, scope: PluginScope) -> bool {
        match scope {
            PluginScope::Stream => self.stream.as_ref().is_none_or(|names| names.contains(name)),
            // A plugin that is not enabled may have metadata already.
            PluginScope::Metadata => true,
            PluginScope::Http | PluginScope::Consumer => {
                self.http.as_ref().is_none_or(|names| names.contains(name))
            }
        }
    }
}

impl PluginSchemas for EnabledPlugins<'_> {
    fn names(&self) -> Vec<&str> {
        let mut names = self.all.names();
        names.retain(|name| {
            self.is_enabled(name, PluginScope::Http) || self.schema(name, PluginScope::Stream).is_some()
        });
        names
    }

    fn schema(&self, name: &str, scope: PluginScope) -> Option<&Value> {
        self.all.schema(name, scope).filter(|_| self.is_enabled(name, scope))
    }

    fn left_out(&self, name: &str) -> Option<&str> {
        self.all.left_out(name)
    }

    fn is_auth(&self, name: &str) -> bool {
        self.all.is_auth(name)
    }

    fn identifies(&self, name: &str) -> bool {
        self.all.identifies(name)
    }

    fn names_persons(&self, name: &str) -> bool {
        self.all.names_persons(name)
    }

    fn check(&self, name: &str, scope: PluginScope, conf: &Value) -> Result<(), PluginRefusal> {
        match self.is_enabled(name, scope) {
            true => self.all.check(name, scope, &self.filled(name, scope, conf)),
            false => Err(PluginRefusal::Unknown),
        }
    }

    fn mistakes(&self, name: &str, scope: PluginScope, conf: &Value) -> Vec<Problem> {
        match self.is_enabled(name, scope) {
            true => self.all.mistakes(name, scope, &self.filled(name, scope, conf)),
            false => Vec::new(),
        }
    }

    fn unread(&self, name: &str, scope: PluginScope, conf: &Value) -> Vec<Unread> {
        self.all.unread(name, scope, conf)
    }

    fn warnings(&self, name: &str, scope: PluginScope, conf: &Value) -> Vec<Problem> {
        self.all.warnings(name, scope, &self.filled(name, scope, conf))
    }

    fn show_defaults(&self, name: &str, scope: PluginScope, conf: &mut Value) {
        self.all.show_defaults(name, scope, conf);
    }

    fn unique_attribute(&self, name: &str) -> Option<&str> {
        self.all.unique_attribute(name)
    }

    fn secret_fields(&self, name: &str, scope: PluginScope) -> Vec<&str> {
        self.all.secret_fields(name, scope)
    }

    fn children(&self, name: &str, scope: PluginScope, conf: &Value) -> Vec<(String, String)> {
        self.all.children(name, scope, conf)
    }

    fn attributes(&self, name: &str) -> Option<Value> {
        self.all.attributes(name)
    }

    fn standing(&self, name: &str) -> Option<Standing<'_>> {
        self.all.standing(name)
    }

    fn is_ignored(&self, name: &str) -> bool {
        self.all.is_ignored(name)
    }
}

/// The scope that a plugin of a resource is checked in.
pub(crate) fn scope_of(kind: Kind, name: &str, plugins: &dyn PluginSchemas) -> PluginScope {
    match kind {
        Kind::StreamRoute => PluginScope::Stream,
        Kind::Consumer | Kind::Credential => match plugins.schema(name, PluginScope::Consumer) {
            Some(_) => PluginScope::Consumer,
            None => PluginScope::Http,
        },
        _ => PluginScope::Http,
    }
}

/// Why one plugin of a resource is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// A stable word for programs.
    pub(crate) code: &'static str,
    /// APISIX's text.
    pub(crate) message: String,
}

fn refused(code: &'static str, message: String) -> Result<(), Refused> {
    Err(Refused { code, message })
}

/// The remedy for a plugin that is not part of the build.
pub(crate) const BUILD_HINT: &str = "build the program with this group, or remove the plugin";

/// The message for a plugin that does not exist, or that is not part of the build.
pub fn unknown_plugin(name: &str, plugins: &dyn PluginSchemas) -> String {
    match plugins.left_out(name) {
        Some(group) => {
            format!("plugin [{name}] belongs to the group `{group}`, which this build has left out")
        }
        None => format!("unknown plugin [{name}]"),
    }
}

/// Checks one plugin of a resource, `_meta` included, in the order in which APISIX does.
pub(crate) fn check_plugin(
    name: &str,
    conf: &Value,
    scope: PluginScope,
    plugins: &dyn PluginSchemas,
) -> Result<(), Refused> {
    // The empty list is the empty object to Lua.
    if !conf.is_object() && !conf.as_array().is_some_and(Vec::is_empty) {
        return refused("type", format!("invalid plugin conf {conf} for plugin [{name}]"));
    }
    let meta = conf.get("_meta");
    let member = |key: &str| meta.and_then(|meta| meta.get(key));
    let own = plugins.check(name, scope, conf);
    let shape = meta.map_or(Ok(()), |meta| meta_checker().check(meta));
    let wrong = match (own, shape) {
        (Err(PluginRefusal::Unknown), _) => {
            return refused("unknown_plugin", unknown_plugin(name, plugins));
        }
        (_, Err(text)) => Some(format!("property \"_meta\" validation failed: {text}")),
        (Err(PluginRefusal::Invalid(text)), Ok(())) => Some(text),
        (Ok(()), Ok(())) => None,
    };
    // A configuration that is disabled may be wrong: it is being prepared, or kept for reference.
    if let Some(text) = wrong
        && !is_disabled(conf)
    {
        return refused(
            "plugin",
            match scope {
                PluginScope::Stream => {
                    format!("failed to check the configuration of stream plugin [{name}]: {text}")
                }
                _ => format!("failed to check the configuration of plugin {name} err: {text}"),
            },
        );
    }
    if let Some(filter) = member("filter") {
        let wrong = match Expr::parse(filter) {
            Err(error) => Some(("expression", error.to_string())),
            // Plugins are chosen before any of them may have read the body.
            Ok(condition) => before_body(&condition).map(|reason| ("body_condition", reason)),
        };
        if let Some((code, reason)) = wrong {
            return refused(code, format!("failed to validate the 'vars' expression: {reason}"));
        }
    }
    if member("pre_function").is_some() {
        let reason = "it needs the Lua engine, which this version does not have";
        return refused(
            "not_served",
            format!("failed to load _meta.pre_function in plugin {name}: {reason}"),
        );
    }
    Ok(())
}

/// The mistakes of a plugin's configuration, `_meta` included, that schemas find; pointers begin in it.
pub(crate) fn mistakes_of_plugin(
    name: &str,
    conf: &Value,
    scope: PluginScope,
    plugins: &dyn PluginSchemas,
) -> Vec<Problem> {
    if !conf.is_object() && !conf.as_array().is_some_and(Vec::is_empty) {
        let message = "the configuration of a plugin is a map";
        return vec![Problem::new("", "type", message).hint(format!("for example {name}: {{}}"))];
    }
    if is_disabled(conf) {
        return Vec::new();
    }
    let meta = conf.get("_meta").map(|meta| meta_checker().mistakes(meta, &[])).unwrap_or_default();
    let mut found: Vec<Problem> = meta.into_iter().map(|problem| problem.within("_meta")).collect();
    found.extend(plugins.mistakes(name, scope, conf));
    found
}

/// Whether a configuration stands there for reference only: such a one may be wrong.
pub(crate) fn is_disabled(conf: &Value) -> bool {
    conf.get("_meta").and_then(|meta| meta.get("disable")) == Some(&Value::Bool(true))
}

/// The schema of `_meta`, which every plugin has.
#[must_use]
pub fn meta_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "disable": { "type": "boolean" },
            "error_response": { "oneOf": [{ "type": "string" }, { "type": "object" }] },
            "priority": { "type": "integer" },
            "filter": { "type": "array" },
            "pre_function": { "type": "string" },
        },
        "additionalProperties": false,
    })
}

fn meta_checker() -> &'static wording::Schema {
    static SCHEMA: OnceLock<wording::Schema> = OnceLock::new();
    // It is the one above, which the tests compile.
    SCHEMA.get_or_init(|| wording::Schema::of_program(&meta_schema()).expect("the schema of _meta is valid"))
}
