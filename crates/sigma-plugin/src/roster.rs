//! The list of plugins of a build, and what the rest of the gateway asks of it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use sigma_config::Problem;
use sigma_config::described::take_confidential;
use sigma_config::plugins::{PluginRefusal, PluginSchemas, PluginScope, Standing};
use sigma_config::problem::json_pointer;
use sigma_config::stored::conform;
use sigma_config::wording::{Schema, Unread, is_secret_reference};

use crate::descriptor::{Child, Data, Family};
use crate::meta::Meta;
use crate::places::{Missing, Unknown, missing};
use crate::{Build, Descriptor, Entry, Node};

/// A schema as people read it, and as it is checked.
struct Checked {
    value: Value,
    compiled: Schema,
    /// The paths of the fields that are encrypted at rest.
    secret: Vec<String>,
}

impl Checked {
    /// A configuration as the plugin reads it: with defaults, and in the forms of its types where
    /// Lua knows one form only, such as 5.0 for 5.
    fn filled(&self, conf: Value) -> Value {
        let conformed = match conform(&conf, &self.value) {
            Cow::Owned(conformed) => Some(conformed),
            Cow::Borrowed(_) => None,
        };
        let mut filled = conformed.unwrap_or(conf);
        self.compiled.fill_defaults(&mut filled);
        countable(&mut filled);
        filled
    }
}

/// Whole numbers that 64 bits do not hold, which Lua takes for as long as it likes, become the
/// nearest that they do: what the schema accepts must not be refused by a type.
fn countable(value: &mut Value) {
    match value {
        Value::Number(number) if number.as_i64().is_none() => {
            if let Some(whole) = number.as_f64().filter(|float| float.fract() == 0.0) {
                // The conversion stops at the ends of the range.
                *value = Value::from(whole as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(countable),
        Value::Object(members) => members.values_mut().for_each(countable),
        _ => {}
    }
}

/// A schema that is made when it is first asked for: a gateway uses few of the plugins that it has.
struct Lazy {
    make: fn() -> Value,
    /// Fields that are encrypted at rest, besides those that it marks.
    secret: &'static [&'static str],
    made: OnceLock<Checked>,
}

impl Lazy {
    fn new(make: fn() -> Value, secret: &'static [&'static str]) -> Lazy {
        Lazy { make, secret, made: OnceLock::new() }
    }

    fn get(&self) -> &Checked {
        self.made.get_or_init(|| {
            let mut value = (self.make)();
            let mut secret = take_confidential(&mut value);
            secret.extend(self.secret.iter().map(|field| (*field).to_owned()));
            if let Some(schema) = value.as_object_mut().filter(|_| !secret.is_empty()) {
                // APISIX tells them there.
                schema.insert("encrypt_fields".to_owned(), secret.clone().into());
            }
            // Nothing but the build decides over it; the test of each list of plugins makes them all.
            let compiled = Schema::compile(&value).expect("the schema of a plugin is one");
            Checked { value, compiled, secret }
        })
    }
}

struct Known {
    descriptor: &'static Descriptor,
    schema: Lazy,
    consumer: Option<Lazy>,
    metadata: Option<Lazy>,
}

/// The plugins that are enabled.
pub struct Roster {
    plugins: BTreeMap<&'static str, Known>,
    /// Enabled or not.
    all: &'static [&'static Descriptor],
    /// What may be left out where it is not among the plugins.
    ignored: Box<[String]>,
}

impl Roster {
    /// All plugins of `list`, or only those that `enabled` names.
    pub fn new(list: &'static [&'static Descriptor], enabled: Option<&[String]>) -> Roster {
        let is_enabled = |name| enabled.is_none_or(|names| names.iter().any(|other| other == name));
        let known = |descriptor: &'static Descriptor| Known {
            descriptor,
            schema: Lazy::new(descriptor.schema, descriptor.secret_fields),
            consumer: descriptor.auth.map(|auth| Lazy::new(auth.schema, auth.secret_fields)),
            metadata: descriptor.metadata_schema.map(|schema| Lazy::new(schema, &[])),
        };
        let plugins = list.iter().filter(|descriptor| is_enabled(descriptor.name));
        let plugins = plugins.map(|descriptor| (descriptor.name, known(descriptor))).collect();
        Roster { plugins, all: list, ignored: Box::default() }
    }

    /// The same, with the names of plugins that may be left out where they are not among these.
    #[must_use]
    pub fn ignoring(mut self, names: &[String]) -> Roster {
        self.ignored = names.into();
        self
    }

    /// Makes every schema of every plugin. One that is not a schema is a mistake in the build, which
    /// would otherwise show when the plugin is first used; for the test of a list of plugins.
    ///
    /// # Panics
    /// A schema is none.
    pub fn make_schemas(&self) {
        for known in self.plugins.values() {
            for schema in [Some(&known.schema), known.consumer.as_ref(), known.metadata.as_ref()] {
                schema.map(Lazy::get);
            }
        }
    }

    /// The descriptor of an enabled plugin.
    pub fn descriptor(&self, name: &str) -> Option<&'static Descriptor> {
        self.plugins.get(name).map(|known| known.descriptor)
    }

    /// The descriptors of enabled plugins, in the order of their names.
    pub fn descriptors(&self) -> impl Iterator<Item = &'static Descriptor> {
        self.plugins.values().map(|known| known.descriptor)
    }

    /// Whether the build has this plugin, enabled or not.
    pub fn is_built_in(&self, name: &str) -> bool {
        self.all.iter().any(|descriptor| descriptor.name == name)
    }

    /// Makes an instance.
    ///
    /// # Errors
    /// The plugin is not enabled, or refuses the configuration; a sentence.
    pub fn build(
        &self,
        name: &str,
        conf: &Arc<Value>,
        resolved: Value,
        resource: &str,
        metadata_of: &dyn Fn(&str) -> Option<Arc<Value>>,
        node: &Arc<Node>,
    ) -> Result<Entry, String> {
        let metadata = metadata_of(name);
        let known = self.plugins.get(name).ok_or_else(|| format!("unknown plugin [{name}]"))?;
        if let Some(field) = unresolved(&resolved) {
            return Err(unknown_secret(&field));
        }
        let secrets = secrets_of(conf, &resolved);
        if !secrets.is_empty() {
            // The schema took any text for a reference.
            let checked = self.check(name, PluginScope::Http, &resolved);
            checked.map_err(|refusal| hidden(refusal.to_string(), &secrets))?;
        }
        let mut filled = resolved;
        let meta = take_meta(&mut filled);
        let mut filled = known.schema.get().filled(filled);
        if let (Some(fields), Some(meta)) = (filled.as_object_mut(), meta) {
            fields.insert("_meta".to_owned(), meta);
        }
        let mut meta_value = metadata.as_deref().cloned().unwrap_or(Value::Null);
        if let Some(schema) = &known.metadata {
            meta_value = schema.get().filled(meta_value);
        }
        node.know_enabled(self.descriptors());
        let children = Children { roster: self, metadata_of, made: RefCell::default() };
        let build = Build { conf: &filled, resource, metadata: &meta_value, node, family: &children };
        let plugin = (known.descriptor.build)(&build).map_err(|reason| hidden(reason, &secrets))?;
        let (meta, conf, children) = (Meta::of(conf)?, Arc::clone(conf), children.made.take());
        Ok(Entry { descriptor: known.descriptor, meta, conf, metadata, plugin, children })
    }

    /// What an authenticating plugin makes of a consumer's or credential's configuration, and the
    /// attribute it is found by. None for plugins that do not authenticate.
    ///
    /// # Errors
    /// The configuration is refused, or lacks its attribute; a sentence.
    pub fn identity(&self, name: &str, conf: &Value) -> Option<Result<(String, Data), String>> {
        let known = self.plugins.get(name)?;
        let (auth, schema) = (known.descriptor.auth?, known.consumer.as_ref()?);
        let mut own = conf.clone();
        take_meta(&mut own);
        let filled = schema.get().filled(own);
        let Some(key) = filled.get(auth.attribute).and_then(Value::as_str) else {
            return Some(Err(format!("`{}` of plugin {name} is missing", auth.attribute)));
        };
        if let Some(field) = unresolved(&filled) {
            return Some(Err(unknown_secret(&field)));
        }
        // What stood elsewhere is checked now; what did not has been, and costs little.
        if schema.get().compiled.check(&filled).is_err() {
            return Some(Err(format!("the schema of plugin {name} refuses it")));
        }
        if let Some(reason) = empty_secret(&schema.get().secret, &filled) {
            return Some(Err(reason));
        }
        Some((auth.parse)(&filled).map(|data| (key.to_owned(), data)))
    }

    fn checked(&self, name: &str, scope: PluginScope) -> Option<&Checked> {
        let known = self.plugins.get(name)?;
        let schema = match scope {
            PluginScope::Http => &known.schema,
            PluginScope::Consumer => known.consumer.as_ref().unwrap_or(&known.schema),
            PluginScope::Metadata => known.metadata.as_ref()?,
            PluginScope::Stream => return None,
        };
        Some(schema.get())
    }
}

/// Makes the plugins that stand inside one that is being made.
struct Children<'b> {
    roster: &'b Roster,
    metadata_of: &'b dyn Fn(&str) -> Option<Arc<Value>>,
    made: RefCell<Vec<Arc<Entry>>>,
}

impl Family for Children<'_> {
    fn child(
        &self,
        name: &str,
        conf: &Value,
        resource: &str,
        node: &Arc<Node>,
    ) -> Result<Arc<Entry>, String> {
        let written = Arc::new(conf.clone());
        let entry = self.roster.build(name, &written, conf.clone(), resource, self.metadata_of, node)?;
        let entry = Arc::new(entry);
        self.made.borrow_mut().push(Arc::clone(&entry));
        Ok(entry)
    }
}

impl Roster {
    /// Checks the plugins that stand inside a configuration.
    fn check_children(&self, name: &str, scope: PluginScope, conf: &Value) -> Result<(), PluginRefusal> {
        for child in self.children_of(name, scope, conf) {
            if child.conf.get("_meta").is_some() {
                // A filter that nobody asks would leave a guard open, or closed.
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

    /// The plugins that stand inside a configuration.
    fn children_of(&self, name: &str, scope: PluginScope, conf: &Value) -> Vec<Child> {
        let descriptor = self.descriptor(name).filter(|descriptor| may_hold_plugins(descriptor, scope));
        let children = descriptor.and_then(|descriptor| descriptor.children);
        children.map(|children| children(conf)).unwrap_or_default()
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
        self.plugins.keys().copied().collect()
    }

    fn schema(&self, name: &str, scope: PluginScope) -> Option<&Value> {
        self.checked(name, scope).map(|schema| &schema.value)
    }

    fn is_auth(&self, name: &str) -> bool {
        self.descriptor(name).is_some_and(Descriptor::authenticates)
    }

    fn check(&self, name: &str, scope: PluginScope, conf: &Value) -> Result<(), PluginRefusal> {
        let Some(known) = self.plugins.get(name) else { return Err(PluginRefusal::Unknown) };
        let Some(schema) = self.checked(name, scope) else {
            // Metadata of a plugin without a schema for it may be any object.
            return if scope == PluginScope::Metadata { Ok(()) } else { Err(PluginRefusal::Unknown) };
        };
        if scope == PluginScope::Consumer && known.descriptor.authenticates_by_children {
            let reason = "the plugin identifies nobody by itself; give the consumer the configurations of \
                the plugins that it asks";
            return Err(PluginRefusal::Invalid(reason.to_owned()));
        }
        let mut filled = conf.clone();
        take_meta(&mut filled);
        schema.compiled.check(&filled).map_err(PluginRefusal::Invalid)?;
        let filled = schema.filled(filled);
        let auth = known.descriptor.auth.filter(|_| scope == PluginScope::Consumer);
        let own = match (auth, known.descriptor.check) {
            (Some(auth), _) => match empty_secret(&schema.secret, &filled) {
                Some(reason) => Err(reason),
                None => (auth.parse)(&filled).map(|_| ()),
            },
            (None, Some(check)) if scope != PluginScope::Metadata => check(&filled),
            _ => Ok(()),
        };
        match own {
            // What a reference stands for is not known here; it is checked when it is.
            Err(_) if unresolved(&filled).is_some() => {}
            own => own.map_err(PluginRefusal::Invalid)?,
        }
        self.check_children(name, scope, conf)?;
        match missing(known.descriptor.variables, conf, Unknown::Refused).into_iter().next() {
            Some(Missing { pointer, reason }) => {
                Err(PluginRefusal::Invalid(format!("{reason} (at {pointer})")))
            }
            None => Ok(()),
        }
    }

    fn unread(&self, name: &str, scope: PluginScope, conf: &Value) -> Vec<Unread> {
        // What stores and clients add to every resource; a plugin's metadata is one.
        let also =
            if scope == PluginScope::Metadata { &["id", "create_time", "update_time"][..] } else { &[] };
        if let Some(schema) = self.checked(name, scope) {
            let mut conf = conf.clone();
            take_meta(&mut conf);
            let mut unread = schema.compiled.unread(&conf, also);
            unread.extend(self.unread_of_children(name, scope, &conf));
            return unread;
        }
        if scope != PluginScope::Metadata || !self.plugins.contains_key(name) {
            return Vec::new();
        }
        // It has no metadata at all.
        let names = conf.as_object().into_iter().flat_map(|conf| conf.keys());
        let unread = names.filter(|name| !also.contains(&name.as_str()) && *name != "_meta");
        unread.map(|name| Unread::unknown(name, Vec::new())).collect()
    }

    fn warnings(&self, name: &str, scope: PluginScope, conf: &Value) -> Vec<Problem> {
        let Some(descriptor) = self.descriptor(name) else { return Vec::new() };
        let mut all = descriptor.warnings.map(|warnings| warnings(scope, conf)).unwrap_or_default();
        for child in self.children_of(name, scope, conf) {
            let found = self.warnings(&child.name, PluginScope::Http, &child.conf).into_iter();
            all.extend(found.map(|problem| problem.within(&child.place)));
        }
        let variables = missing(descriptor.variables, conf, Unknown::Warned).into_iter();
        all.extend(variables.map(|Missing { pointer, reason }| Problem::new(pointer, "variable", reason)));
        all
    }

    fn unique_attribute(&self, name: &str) -> Option<&str> {
        self.descriptor(name)?.auth.map(|auth| auth.attribute)
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
        // Enabled or not: a plugin may be prepared before it is used.
        let descriptor = self.all.iter().find(|descriptor| descriptor.name == name)?;
        descriptor.attributes.map(|attributes| attributes())
    }

    fn standing(&self, name: &str) -> Option<Standing> {
        self.descriptor(name).map(|known| Standing { version: known.version, priority: known.priority })
    }

    fn is_ignored(&self, name: &str) -> bool {
        self.ignored.iter().any(|ignored| ignored == name)
    }
}

/// Whether what stands in this place may have plugins inside: it is not what identifies a consumer.
fn may_hold_plugins(descriptor: &Descriptor, scope: PluginScope) -> bool {
    match scope {
        PluginScope::Http => true,
        PluginScope::Consumer => descriptor.auth.is_none(),
        PluginScope::Metadata | PluginScope::Stream => false,
    }
}

/// Takes `_meta` out of a configuration: every plugin has it, it is checked on its own, and no
/// plugin's schema knows it, least of all one that admits no unknown field.
fn take_meta(conf: &mut Value) -> Option<Value> {
    conf.as_object_mut()?.remove("_meta")
}

/// The place of the first text that still refers to a secret. Whoever knew the text of the reference
/// could pass as the consumer if it counted as the secret.
pub fn unresolved(conf: &Value) -> Option<String> {
    match conf {
        Value::String(text) => is_secret_reference(text).then(String::new),
        Value::Array(items) => {
            let mut found = items.iter().enumerate();
            found.find_map(|(index, item)| Some(format!("{index}/{}", unresolved(item)?)))
        }
        Value::Object(members) => {
            let mut found = members.iter();
            found.find_map(|(name, member)| Some(format!("{name}/{}", unresolved(member)?)))
        }
        _ => None,
    }
    .map(|place| place.trim_end_matches('/').to_owned())
}

fn unknown_secret(field: &str) -> String {
    format!("the secret that `{field}` refers to is not known")
}

/// A secret that is empty is known to everybody.
fn empty_secret(fields: &[String], conf: &Value) -> Option<String> {
    let is_empty = |field: &&String| {
        let place = field.split('.').try_fold(conf, |value, key| value.get(key));
        place.and_then(Value::as_str) == Some("")
    };
    fields.iter().find(is_empty).map(|field| format!("`{field}` is empty: give it a secret"))
}

/// The references in a configuration and what they stand for.
fn secrets_of<'c>(conf: &'c Value, resolved: &Value) -> Vec<(&'c str, String)> {
    match (conf, resolved) {
        (Value::String(reference), Value::String(secret)) if reference != secret => {
            vec![(reference, secret.clone())]
        }
        (Value::Array(conf), Value::Array(resolved)) => {
            conf.iter().zip(resolved).flat_map(|(conf, resolved)| secrets_of(conf, resolved)).collect()
        }
        (Value::Object(conf), Value::Object(resolved)) => {
            let members = conf.iter().filter_map(|(name, conf)| Some((conf, resolved.get(name)?)));
            members.flat_map(|(conf, resolved)| secrets_of(conf, resolved)).collect()
        }
        _ => Vec::new(),
    }
}

/// A reason that shows references in the place of secrets: it reaches logs.
fn hidden(reason: String, secrets: &[(&str, String)]) -> String {
    secrets.iter().fold(reason, |reason, (reference, secret)| match secret.is_empty() {
        true => reason,
        false => reason.replace(secret.as_str(), reference),
    })
}

impl std::fmt::Debug for Roster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.plugins.keys()).finish()
    }
}
