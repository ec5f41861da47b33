//! The check of plugin configurations: enabled plugins, `_meta`, and the order of checks.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::OnceLock;

use serde_json::{Value, json};
use sigma_schema::plugins::{NamedFile, PluginRefusal, PluginSchemas, PluginScope, ScriptForm, Standing};

use crate::resources::kind::Kind;
use crate::rules::before_body;
use crate::settings::profile::Profile;
use sigma_schema::Problem;
use sigma_schema::expr::Expr;
use sigma_schema::validation::{self, Unread};

/// The enabled plugins of a build; the others are unknown.
pub struct EnabledPlugins<'a> {
    all: &'a dyn PluginSchemas,
    profile: Option<Profile>,
    http: Option<BTreeSet<&'a str>>,
    stream: Option<BTreeSet<&'a str>>,
}

/// Returns the names of the plugins enabled for requests and for sessions; None for all. `plugins` and `stream_plugins`
/// are the settings of these names.
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
    /// Creates the roster of the plugins in `all` that these settings enable.
    pub fn new(
        all: &'a dyn PluginSchemas,
        plugins: Option<&'a [crate::resources::EnabledPlugin]>,
        stream_plugins: Option<&'a [String]>,
    ) -> Self {
        let [http, stream] = enabled(plugins, stream_plugins);
        EnabledPlugins { all, profile: None, http, stream }
    }

    /// Sets the profile, whose defaults then apply.
    #[must_use]
    pub fn with_profile(self, profile: Option<Profile>) -> Self {
        EnabledPlugins { profile, ..self }
    }

    /// Returns a configuration with the defaults of the profile.
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
            // A plugin that is not enabled may already have metadata.
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

    fn files(&self, name: &str) -> Vec<NamedFile<'_>> {
        self.all.files(name)
    }

    fn left_out(&self, name: &str) -> Option<&str> {
        self.all.left_out(name)
    }

    fn check_script(&self, form: ScriptForm, text: &str) -> Result<(), String> {
        self.all.check_script(form, text)
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

/// Returns the scope that a plugin of a resource is checked in.
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

/// The reason to refuse one plugin of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// A stable code for programs.
    pub(crate) code: &'static str,
    /// APISIX's text.
    pub(crate) message: String,
}

fn refused(code: &'static str, message: String) -> Result<(), Refused> {
    Err(Refused { code, message })
}

/// The remedy for a plugin that the build excludes.
pub(crate) const BUILD_HINT: &str = "build the program with this group, or remove the plugin";

/// Returns the message for a plugin that does not exist, or that the build excludes.
pub fn unknown_plugin(name: &str, plugins: &dyn PluginSchemas) -> String {
    match plugins.left_out(name) {
        Some(group) => {
            format!("plugin [{name}] belongs to the group `{group}`, which this build lacks")
        }
        None => format!("unknown plugin [{name}]"),
    }
}

/// Checks one plugin of a resource, including `_meta`, in APISIX's order.
pub(crate) fn check_plugin(
    name: &str,
    conf: &Value,
    scope: PluginScope,
    plugins: &dyn PluginSchemas,
) -> Result<(), Refused> {
    // In Lua the empty list equals the empty object.
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
    // A disabled configuration may be invalid: it is in preparation, or kept for reference.
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
            // Plugins are selected before the body may be read.
            Ok(condition) => before_body(&condition).map(|reason| ("body_condition", reason)),
        };
        if let Some((code, reason)) = wrong {
            return refused(code, format!("failed to validate the 'vars' expression: {reason}"));
        }
    }
    if let Some(text) = member("pre_function").and_then(Value::as_str)
        && let Err(reason) = plugins.check_script(ScriptForm::PreFunction, text)
    {
        return refused("script", format!("failed to load _meta.pre_function in plugin {name}: {reason}"));
    }
    Ok(())
}

/// Returns the mistakes that schemas find in a plugin's configuration, including `_meta`; pointers begin in it.
pub(crate) fn mistakes_of_plugin(
    name: &str,
    conf: &Value,
    scope: PluginScope,
    plugins: &dyn PluginSchemas,
) -> Vec<Problem> {
    if !conf.is_object() && !conf.as_array().is_some_and(Vec::is_empty) {
        let message = "the configuration of a plugin must be an object";
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

/// Returns whether a configuration is disabled. A disabled one may be invalid.
pub(crate) fn is_disabled(conf: &Value) -> bool {
    conf.get("_meta").and_then(|meta| meta.get("disable")) == Some(&Value::Bool(true))
}

/// Returns the schema of `_meta`, which every plugin has.
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

fn meta_checker() -> &'static validation::Schema {
    static SCHEMA: OnceLock<validation::Schema> = OnceLock::new();
    // It is the one above, which the tests compile.
    SCHEMA
        .get_or_init(|| validation::Schema::of_program(&meta_schema()).expect("the schema of _meta is valid"))
}
