//! The list of plugins of a build, with the functions that the rest of the gateway calls on them.

mod children;
mod known;
mod lookup;
mod newer;
mod off;
mod secrets;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use sigma_schema::Problem;
use sigma_schema::plugins::{NO_SCRIPTS, PluginRefusal, PluginSchemas, PluginScope, ScriptForm, Standing};
use sigma_schema::problem::json_pointer;
use sigma_schema::validation::Unread;

use self::children::Children;
use self::known::{Checked, RosterEntry};
pub use self::lookup::Lookup;
use self::off::{Off, early_filter, is_off, switched_off};
pub use self::secrets::unresolved;
use self::secrets::{empty_secret, hidden, secrets_of, unknown_secret};
use crate::credentials::Credentials;
use crate::descriptor::{Child, Data, InlineUpstream};
use crate::meta::Meta;
use crate::variable_fields::{Missing, Unknown, missing};
use crate::{Build, Entry, FileMember, FlowPlugin, Kind, Node, OwnedFields, Plugin, Scripts};

/// Writes defaults into the configuration of the plugin of this name, where it says nothing of them.
pub type Defaults = Arc<dyn Fn(&str, &mut Value) + Send + Sync>;

/// The plugins that are enabled.
pub struct Roster {
    plugins: BTreeMap<Box<str>, Arc<RosterEntry>>,
    /// All plugins, enabled or not.
    all: Arc<[Arc<dyn Kind>]>,
    /// Names of plugins that may be missing.
    ignored: Box<[String]>,
    /// Defaults that replace the schemas' defaults.
    defaults: Option<Defaults>,
    /// The plugins allowed for requests, and those for sessions; None for all.
    allowed: [Option<BTreeSet<Box<str>>>; 2],
    /// Plugins missing in this build, with their groups.
    left_out: BTreeMap<Box<str>, Box<str>>,
    /// The engine for scripts in resources.
    scripts: Option<Arc<dyn Scripts>>,
    /// The roster that has replaced this one.
    newer: OnceLock<Arc<Roster>>,
}

impl Roster {
    /// Returns a roster of all plugins of `kinds`, or only of those in `enabled`. Of two with one name the last
    /// counts.
    pub fn new(kinds: impl IntoIterator<Item = Arc<dyn Kind>>, enabled: Option<&[String]>) -> Roster {
        let (all, absent): (Vec<_>, Vec<_>) = kinds.into_iter().partition(|kind| kind.left_out().is_none());
        let all: Arc<[Arc<dyn Kind>]> = all.into();
        let absent = absent.iter().filter_map(|kind| Some((kind.name().into(), kind.left_out()?.into())));
        let is_enabled = |name: &str| enabled.is_none_or(|names| names.iter().any(|other| other == name));
        let plugins = all.iter().filter(|kind| is_enabled(kind.name())).map(Arc::clone);
        let plugins = plugins.map(|kind| (kind.name().into(), Arc::new(RosterEntry::new(kind)))).collect();
        let left_out = absent.collect();
        let scripts = all.iter().find_map(|kind| kind.scripts());
        Roster {
            plugins,
            all,
            ignored: Box::default(),
            defaults: None,
            allowed: [None, None],
            left_out,
            scripts,
            newer: OnceLock::new(),
        }
    }

    /// Adds the defaults of a profile.
    #[must_use]
    pub fn with_defaults(self, defaults: Option<Defaults>) -> Roster {
        Roster { defaults, ..self }
    }

    /// Adds the defaults of the profile to a configuration.
    fn fill_profile(&self, name: &str, scope: PluginScope, conf: &mut Value) {
        if let Some(defaults) = self.newest().defaults.as_ref().filter(|_| scope == PluginScope::Http) {
            defaults(name, conf);
        }
    }

    /// Limits the plugins for requests, and for sessions, to these names; None for all.
    #[must_use]
    pub fn limited(mut self, names: &[Option<BTreeSet<&str>>; 2]) -> Roster {
        let owned = |names: &BTreeSet<&str>| names.iter().map(|name| Box::from(*name)).collect();
        self.allowed = names.each_ref().map(|names| names.as_ref().map(owned));
        let mut plugins = std::mem::take(&mut self.plugins);
        let scopes = [PluginScope::Http, PluginScope::Stream];
        plugins.retain(|name, _| scopes.iter().any(|scope| self.is_for(name, *scope)));
        self.plugins = plugins;
        self
    }

    /// Returns true if this scope may use a plugin. Metadata are for both.
    fn is_for(&self, name: &str, scope: PluginScope) -> bool {
        let allowed = &self.newest().allowed;
        let names = match scope {
            PluginScope::Http | PluginScope::Consumer => &allowed[0],
            PluginScope::Stream => &allowed[1],
            PluginScope::Metadata => &None,
        };
        names.as_ref().is_none_or(|names| names.contains(name))
    }

    /// Returns this roster with `kinds` added; they replace plugins with the same names. Schemas of the other plugins
    /// are shared.
    #[must_use]
    pub fn with(&self, kinds: impl IntoIterator<Item = Arc<dyn Kind>>) -> Roster {
        let mut plugins = self.plugins.clone();
        let (mut all, mut added) = (self.all.to_vec(), Vec::<Box<str>>::new());
        for kind in kinds {
            all.retain(|known| known.name() != kind.name());
            all.push(Arc::clone(&kind));
            added.push(kind.name().into());
            plugins.insert(kind.name().into(), Arc::new(RosterEntry::new(kind)));
        }
        // Plugins added at run time are for requests.
        let mut allowed = self.allowed.clone();
        allowed[0].iter_mut().for_each(|names| names.extend(added.iter().cloned()));
        Roster {
            plugins,
            all: all.into(),
            ignored: self.ignored.clone(),
            defaults: self.defaults.clone(),
            allowed,
            left_out: self.left_out.clone(),
            scripts: self.scripts.clone(),
            newer: OnceLock::new(),
        }
    }

    /// Sets the names of plugins that may be missing.
    #[must_use]
    pub fn ignoring(mut self, names: &[String]) -> Roster {
        self.ignored = names.into();
        self
    }

    /// Returns the engine for scripts in resources; None if the build has no engine.
    pub fn scripts(&self) -> Option<&Arc<dyn Scripts>> {
        self.newest().scripts.as_ref()
    }

    /// Returns an enabled plugin.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Kind>> {
        self.newest().plugins.get(name).map(|known| &known.kind)
    }

    /// Returns the enabled plugins, in the order of their names.
    pub fn kinds(&self) -> impl Iterator<Item = &Arc<dyn Kind>> {
        self.newest().plugins.values().map(|known| &known.kind)
    }

    /// Returns true if this plugin exists, enabled or not.
    pub fn is_built_in(&self, name: &str) -> bool {
        self.newest().all.iter().any(|kind| kind.name() == name)
    }

    /// Makes an instance for a route.
    ///
    /// # Errors
    /// Returns an error message if the plugin is not enabled or rejects the configuration.
    pub fn build(
        &self,
        name: &str,
        conf: &Arc<Value>,
        resolved: Value,
        resource: &str,
        lookup: &dyn Lookup,
        node: &Arc<Node>,
    ) -> Result<Entry, String> {
        let written = Written { name, conf, resolved, resource };
        let build = &|kind: &dyn Kind, build: &Build<'_>| self.with_pre_function(kind.build(build)?, build);
        self.make(PluginScope::Http, written, lookup, node, build, || Arc::new(Off))
    }

    /// Returns an instance that runs the function of its `_meta.pre_function` first.
    fn with_pre_function(
        &self,
        plugin: Arc<dyn Plugin>,
        build: &Build<'_>,
    ) -> Result<Arc<dyn Plugin>, String> {
        let Some(text) = build.written.pointer("/_meta/pre_function").and_then(Value::as_str) else {
            return Ok(plugin);
        };
        let scripts = self.scripts().ok_or(NO_SCRIPTS)?;
        scripts.check(ScriptForm::PreFunction, text)?;
        Ok(scripts.before(plugin, &format!("{} of {}", build.plugin, build.resource), text, build.conf))
    }

    /// Makes an instance for a stream route.
    ///
    /// # Errors
    /// Returns an error message if the plugin is not enabled, not for stream routes, or rejects the configuration.
    pub fn build_flow(
        &self,
        name: &str,
        conf: &Arc<Value>,
        resolved: Value,
        resource: &str,
        lookup: &dyn Lookup,
        node: &Arc<Node>,
    ) -> Result<Entry<dyn FlowPlugin>, String> {
        let written = Written { name, conf, resolved, resource };
        let build = &|kind: &dyn Kind, build: &Build<'_>| kind.build_flow(build);
        self.make(PluginScope::Stream, written, lookup, node, build, || Arc::new(Off))
    }

    fn make<P: ?Sized>(
        &self,
        scope: PluginScope,
        Written { name, conf, resolved, resource }: Written<'_>,
        lookup: &dyn Lookup,
        node: &Arc<Node>,
        make: &Make<'_, P>,
        off: fn() -> Arc<P>,
    ) -> Result<Entry<P>, String> {
        let metadata = lookup.metadata(name);
        let known = self.newest().plugins.get(name).filter(|_| self.is_for(name, scope));
        let known = known.ok_or_else(|| format!("unknown plugin [{name}]"))?;
        if is_off(conf) {
            return Ok(switched_off(&known.kind, conf, metadata, off()));
        }
        if let Some(field) = unresolved(&resolved) {
            return Err(unknown_secret(&field));
        }
        let secrets = secrets_of(conf, &resolved);
        if !secrets.is_empty() {
            // The schema accepted any text as a reference.
            let checked = self.check(name, scope, &resolved);
            checked.map_err(|refusal| hidden(refusal.to_string(), &secrets))?;
        }
        let mut filled = resolved;
        let meta = take_meta(&mut filled);
        self.fill_profile(name, scope, &mut filled);
        let mut filled = match known.checked(scope) {
            Some(schema) => schema.filled(filled),
            None => filled,
        };
        if let (Some(fields), Some(meta)) = (filled.as_object_mut(), meta) {
            fields.insert("_meta".to_owned(), meta);
        }
        self.check_metadata(name, metadata.as_deref())?;
        let meta_value = self.filled_metadata(name, metadata.as_deref());
        let children =
            Children { roster: self, lookup, made: RefCell::default(), protos: RefCell::default() };
        let build = Build {
            plugin: name,
            conf: &filled,
            resource,
            metadata: &meta_value,
            node,
            written: conf,
            family: &children,
        };
        let plugin = make(&*known.kind, &build).map_err(|reason| hidden(reason, &secrets))?;
        let (meta, conf) = (Meta::of(conf)?, Arc::clone(conf));
        let (children, protos) = (children.made.take(), children.protos.take());
        let own = if scope == PluginScope::Http { known.kind.owned_fields(&filled) } else { Vec::new() };
        let inner = children.iter().flat_map(|child| child.owned.iter().cloned());
        let owned = OwnedFields::new(own.into_iter().chain(inner));
        let own = if scope == PluginScope::Http { known.kind.credentials(&filled) } else { Vec::new() };
        let inner = children.iter().flat_map(|child| child.credentials.iter());
        let credentials = Credentials::new(own.into_iter().chain(inner));
        let kind = Arc::clone(&known.kind);
        Ok(Entry { kind, meta, conf, metadata, protos, plugin, children, owned, credentials })
    }

    /// Checks metadata after references are resolved: with an unresolved secret, a plugin might protect less than
    /// configured.
    ///
    /// # Errors
    /// Returns an error message if a secret is unknown, or the schema rejects it.
    pub(crate) fn check_metadata(&self, name: &str, metadata: Option<&Value>) -> Result<(), String> {
        let Some(metadata) = metadata else { return Ok(()) };
        if let Some(field) = unresolved(metadata) {
            return Err(format!("its metadata: {}", unknown_secret(&field)));
        }
        // The schema accepted any text as a reference. Its message could show the secret.
        let checked = self.check(name, PluginScope::Metadata, metadata);
        checked.map_err(|_| format!("the metadata does not match the schema of plugin {name}"))
    }

    /// Returns the metadata of a plugin with defaults filled in; `null` if missing.
    pub(crate) fn filled_metadata(&self, name: &str, metadata: Option<&Value>) -> Value {
        // Defaults only complete existing metadata: without metadata no schema need be made.
        let Some(metadata) = metadata.cloned() else { return Value::Null };
        match self.checked(name, PluginScope::Metadata) {
            Some(schema) => schema.filled(metadata),
            None => metadata,
        }
    }

    /// Parses a consumer's or credential's configuration for an authenticating plugin; also returns the identifying
    /// attribute. Returns None for plugins that do not authenticate.
    ///
    /// # Errors
    /// Returns an error message if the configuration is invalid or lacks its attribute.
    pub fn identity(&self, name: &str, conf: &Value) -> Option<Result<(String, Data), String>> {
        let known = self.newest().plugins.get(name)?;
        let field = known.kind.identifying_field()?;
        let schema = self.checked(name, PluginScope::Consumer)?;
        let mut own = conf.clone();
        take_meta(&mut own);
        let filled = schema.filled(own);
        let Some(key) = filled.get(field).and_then(Value::as_str) else {
            return Some(Err(format!("`{field}` of plugin {name} is missing")));
        };
        if let Some(field) = unresolved(&filled) {
            return Some(Err(unknown_secret(&field)));
        }
        // Resolved references are checked now; other values were checked before, and a second check is cheap.
        if schema.compiled.check(&filled).is_err() {
            return Some(Err(format!("it does not match the schema of plugin {name}")));
        }
        if let Some(reason) = empty_secret(&schema.secret, &filled) {
            return Some(Err(reason));
        }
        Some(known.kind.identity(&filled).map(|data| (key.to_owned(), data)))
    }

    /// Returns the upstreams inside a configuration of this scope; empty if it is invalid.
    pub fn upstreams(&self, name: &str, scope: PluginScope, conf: Value) -> Vec<InlineUpstream> {
        self.upstreams_with(name, scope, conf, Value::Null)
    }

    /// Returns the same, with the upstreams that the plugin's metadata (`null` if missing) add.
    pub fn upstreams_with(
        &self,
        name: &str,
        scope: PluginScope,
        mut conf: Value,
        metadata: Value,
    ) -> Vec<InlineUpstream> {
        let (Some(kind), Some(schema)) = (self.get(name), self.checked(name, scope)) else {
            return Vec::new();
        };
        take_meta(&mut conf);
        self.fill_profile(name, scope, &mut conf);
        let metadata = match self.checked(name, PluginScope::Metadata) {
            Some(schema) if !metadata.is_null() => schema.filled(metadata),
            _ => Value::Null,
        };
        kind.upstreams(scope, &schema.filled(conf), &metadata)
    }

    fn checked(&self, name: &str, scope: PluginScope) -> Option<&Checked> {
        self.newest().plugins.get(name).filter(|_| self.is_for(name, scope))?.checked(scope)
    }
}

/// A configuration of one resource as it was written, and with its secrets.
struct Written<'b> {
    name: &'b str,
    conf: &'b Arc<Value>,
    resolved: Value,
    resource: &'b str,
}

/// Makes an instance of a kind of plugin.
type Make<'m, P> = dyn Fn(&dyn Kind, &Build<'_>) -> Result<Arc<P>, String> + 'm;

impl Roster {
    /// Checks the plugins nested in a configuration.
    fn check_children(&self, name: &str, scope: PluginScope, conf: &Value) -> Result<(), PluginRefusal> {
        for child in self.children_of(name, scope, conf) {
            let is_suited = || self.get(&child.name).is_none_or(|kind| kind.authenticates());
            if let Some(reason) = child.unauthenticating.filter(|_| !is_suited()) {
                return Err(PluginRefusal::Invalid(reason));
            }
            if child.conf.get("_meta").is_some() {
                // An ignored filter would leave a guard open, or closed.
                let reason = "`_meta` has no effect inside another plugin; remove it";
                return Err(PluginRefusal::Invalid(format!("{}{reason}", child.refused)));
            }
            match self.check(&child.name, PluginScope::Http, &child.conf) {
                Ok(()) => {}
                Err(PluginRefusal::Unknown) => return Err(PluginRefusal::Invalid(child.unknown)),
                Err(PluginRefusal::Invalid(reason)) => {
                    return Err(PluginRefusal::Invalid(format!("{}{reason}", child.refused)));
                }
            }
        }
        Ok(())
    }

    /// Returns the plugins nested in a configuration.
    fn children_of(&self, name: &str, scope: PluginScope, conf: &Value) -> Vec<Child> {
        let kind = self.get(name).filter(|kind| may_hold_plugins(&***kind, scope));
        kind.map(|kind| kind.children(conf)).unwrap_or_default()
    }

    fn unread_of_children(&self, name: &str, scope: PluginScope, conf: &Value) -> Vec<Unread> {
        let children = self.children_of(name, scope, conf).into_iter();
        let unread = children.flat_map(|child| {
            let unread = self.unread(&child.name, PluginScope::Http, &child.conf).into_iter();
            unread.map(move |field| field.within(&child.place))
        });
        unread.collect()
    }
}

impl PluginSchemas for Roster {
    fn names(&self) -> Vec<&str> {
        self.newest().plugins.keys().map(|name| &**name).collect()
    }

    fn schema(&self, name: &str, scope: PluginScope) -> Option<&Value> {
        self.checked(name, scope).map(|schema| &schema.value)
    }

    fn left_out(&self, name: &str) -> Option<&str> {
        self.newest().left_out.get(name).map(|group| &**group)
    }

    fn check_script(&self, form: ScriptForm, text: &str) -> Result<(), String> {
        match self.scripts() {
            Some(scripts) => scripts.check(form, text),
            None => Err(NO_SCRIPTS.to_owned()),
        }
    }

    fn files(&self, name: &str) -> Vec<sigma_schema::plugins::NamedFile<'_>> {
        self.get(name).map(|kind| kind.files().iter().map(FileMember::named).collect()).unwrap_or_default()
    }

    fn is_auth(&self, name: &str) -> bool {
        self.get(name).is_some_and(|kind| kind.authenticates())
    }

    fn group(&self, name: &str, conf: &Value) -> Option<Value> {
        let field = self.get(name)?.group_field()?;
        conf.get(field)?;
        let mut own = conf.clone();
        take_meta(&mut own);
        self.fill_profile(name, PluginScope::Http, &mut own);
        Some(self.checked(name, PluginScope::Http)?.filled(own))
    }

    fn group_field(&self, name: &str) -> Option<&str> {
        self.get(name)?.group_field()
    }

    fn identifies(&self, name: &str) -> bool {
        self.get(name).is_some_and(|kind| kind.identifies())
    }

    fn names_persons(&self, name: &str) -> bool {
        self.get(name).is_none_or(|kind| kind.names_persons())
    }

    fn check(&self, name: &str, scope: PluginScope, conf: &Value) -> Result<(), PluginRefusal> {
        let Some(known) = self.newest().plugins.get(name) else { return Err(PluginRefusal::Unknown) };
        let Some(schema) = self.checked(name, scope) else {
            // Metadata of a plugin without a schema for them may be any object.
            return if scope == PluginScope::Metadata { Ok(()) } else { Err(PluginRefusal::Unknown) };
        };
        let identifies = known.kind.identifying_field().is_some();
        if scope == PluginScope::Consumer && known.kind.authenticates() && !identifies {
            let reason = "the plugin has no credentials; configure credentials of the plugins that it calls";
            return Err(PluginRefusal::Invalid(reason.to_owned()));
        }
        let mut filled = conf.clone();
        take_meta(&mut filled);
        self.fill_profile(name, scope, &mut filled);
        schema.compiled.check_explained(&filled).map_err(PluginRefusal::Invalid)?;
        let filled = schema.filled(filled);
        let own = match scope {
            PluginScope::Consumer if identifies => match empty_secret(&schema.secret, &filled) {
                Some(reason) => Err(reason),
                None => known.kind.identity(&filled).map(|_| ()),
            },
            PluginScope::Metadata => known.kind.check_metadata(&filled),
            _ => known.kind.check(scope, &filled),
        };
        match own {
            // The value of a reference is not known here; it is checked later.
            Err(_) if unresolved(&filled).is_some() => {}
            own => own.map_err(PluginRefusal::Invalid)?,
        }
        self.check_children(name, scope, conf)?;
        match missing(known.kind.variables(), scope, conf, Unknown::Refused).into_iter().next() {
            Some(Missing { pointer, reason }) => {
                Err(PluginRefusal::Invalid(format!("{reason} (at {pointer})")))
            }
            None => Ok(()),
        }
    }

    fn mistakes(&self, name: &str, scope: PluginScope, conf: &Value) -> Vec<Problem> {
        let Some(schema) = self.checked(name, scope) else { return Vec::new() };
        let mut filled = conf.clone();
        take_meta(&mut filled);
        self.fill_profile(name, scope, &mut filled);
        let mut found = schema.compiled.mistakes(&filled, also_known(scope));
        for child in self.children_of(name, scope, conf) {
            let inner = self.mistakes(&child.name, PluginScope::Http, &child.conf).into_iter();
            found.extend(inner.map(|problem| problem.within(&child.place)));
        }
        found
    }

    fn unread(&self, name: &str, scope: PluginScope, conf: &Value) -> Vec<Unread> {
        let also = also_known(scope);
        if let Some(schema) = self.checked(name, scope) {
            let mut conf = conf.clone();
            take_meta(&mut conf);
            let mut unread = schema.compiled.unread(&conf, also);
            unread.extend(self.unread_of_children(name, scope, &conf));
            return unread;
        }
        if scope != PluginScope::Metadata || !self.newest().plugins.contains_key(name) {
            return Vec::new();
        }
        // It has no metadata at all.
        let names = conf.as_object().into_iter().flat_map(|conf| conf.keys());
        let unread = names.filter(|name| !also.contains(&name.as_str()) && *name != "_meta");
        unread.map(|name| Unread::unknown(name, Vec::new())).collect()
    }

    fn warnings(&self, name: &str, scope: PluginScope, conf: &Value) -> Vec<Problem> {
        let Some(kind) = self.get(name) else { return Vec::new() };
        let mut filled = conf.clone();
        self.fill_profile(name, scope, &mut filled);
        let mut all = kind.warnings(scope, &filled);
        all.extend(early_filter(&**kind, scope, conf));
        for child in self.children_of(name, scope, conf) {
            let found = self.warnings(&child.name, PluginScope::Http, &child.conf).into_iter();
            all.extend(found.map(|problem| problem.within(&child.place)));
        }
        let variables = missing(kind.variables(), scope, conf, Unknown::Warned).into_iter();
        all.extend(variables.map(|Missing { pointer, reason }| Problem::new(pointer, "variable", reason)));
        all
    }

    fn show_defaults(&self, name: &str, scope: PluginScope, conf: &mut Value) {
        if let Some(schema) = self.checked(name, scope) {
            schema.show_defaults(conf);
        }
    }

    fn unique_attribute(&self, name: &str) -> Option<&str> {
        self.get(name)?.identifying_field()
    }

    fn secret_fields(&self, name: &str, scope: PluginScope) -> Vec<&str> {
        let secret = self.checked(name, scope).map_or(&[][..], |schema| &schema.secret);
        secret.iter().map(String::as_str).collect()
    }

    fn children(&self, name: &str, scope: PluginScope, conf: &Value) -> Vec<(String, String)> {
        let children = self.children_of(name, scope, conf).into_iter();
        children.filter_map(|child| Some((json_pointer(&child.place)?, child.name))).collect()
    }

    fn attributes(&self, name: &str) -> Option<Value> {
        // Enabled or not: a plugin may be configured before it is used.
        self.newest().all.iter().find(|kind| kind.name() == name)?.attributes()
    }

    fn standing(&self, name: &str) -> Option<Standing<'_>> {
        let kind = self.get(name)?;
        Some(Standing { version: kind.version(), priority: kind.priority() })
    }

    fn is_ignored(&self, name: &str) -> bool {
        self.newest().ignored.iter().any(|ignored| ignored == name)
    }
}

/// Returns true if this scope allows nested plugins: the configuration does not identify a consumer.
fn may_hold_plugins(kind: &dyn Kind, scope: PluginScope) -> bool {
    match scope {
        PluginScope::Http => true,
        PluginScope::Consumer => kind.identifying_field().is_none(),
        PluginScope::Metadata | PluginScope::Stream => false,
    }
}

/// Returns the fields that stores and clients add to every resource; a plugin's metadata is one.
fn also_known(scope: PluginScope) -> &'static [&'static str] {
    if scope == PluginScope::Metadata { &["id", "create_time", "update_time"] } else { &[] }
}

/// Removes `_meta` from a configuration. Every plugin has it, and it is checked separately; no plugin's schema
/// contains it.
fn take_meta(conf: &mut Value) -> Option<Value> {
    conf.as_object_mut()?.remove("_meta")
}
