//! Single resources from a store or the Admin API: values without lines.
//!
//! [`check`] reports errors in the words of APISIX's Admin API, [`read`] converts to the types. [`references`] returns
//! the references of a resource; only a store can check that their targets exist.

mod any;
mod files;
mod outline;
mod references;
#[cfg(test)]
pub(crate) mod tests;
mod warnings;

use std::collections::HashSet;
use std::sync::OnceLock;

use serde_json::Value;

pub(crate) use any::typed;
pub use any::{AnyResource, of_checked, read, skipped_plugins};
pub use files::AllowedFiles;
pub use outline::{has_place, may_stand_in, outline, tells_whom};
pub use references::{Reference, nested_members, references, wrong_ssl_type};
use sigma_schema::conform::conform;
pub use warnings::{TRUSTS_ANY_PEER, warnings, warnings_of_change, warnings_together};

use crate::bundled::{self, OfKinds};
use crate::plugins::{BUILD_HINT, check_plugin, mistakes_of_plugin, scope_of, unknown_plugin};
use crate::resources::kind::Kind;
use crate::resources::{SecretProvider, apisix_schema, apisix_secret_schema};
use crate::rules::{self, Object};
use crate::settings::UnknownFields;
use sigma_schema::id::text_of_id;
use sigma_schema::plugins::{PluginRefusal, PluginSchemas, PluginScope};
use sigma_schema::problem::{Problem, member};
use sigma_schema::synonyms::nearest_plugin;
use sigma_schema::validation;

/// Returns APISIX's schema of a kind with Sigma's own fields and their descriptions, for readers. The schema of a
/// secret is a choice between the managers' schemas.
pub fn schema(kind: Kind) -> &'static Value {
    static SCHEMAS: OfKinds<Value> = OfKinds::new();
    SCHEMAS.get_or_init(kind, || apisix_schema(kind))
}

/// Returns APISIX's schema of one secret manager's configuration.
pub fn secret_schema(manager: SecretProvider) -> &'static Value {
    static SCHEMAS: OnceLock<[Value; 3]> = OnceLock::new();
    let [vault, aws, gcp] = SCHEMAS.get_or_init(|| SecretProvider::ALL.map(apisix_secret_schema));
    match manager {
        SecretProvider::Vault => vault,
        SecretProvider::Aws => aws,
        SecretProvider::Gcp => gcp,
    }
}

/// The checker of a kind, or of an access to a secret manager.
fn checker(kind: Kind, manager: Option<SecretProvider>) -> &'static validation::Schema {
    static CHECKERS: OfKinds<validation::Schema> = OfKinds::new();
    static SECRETS: OnceLock<[validation::Schema; 3]> = OnceLock::new();
    if let Some(manager) = manager {
        let secrets = || SecretProvider::ALL.map(|manager| compiled(bundled::of_secret(manager)));
        let [vault, aws, gcp] = SECRETS.get_or_init(secrets);
        return match manager {
            SecretProvider::Vault => vault,
            SecretProvider::Aws => aws,
            SecretProvider::Gcp => gcp,
        };
    }
    CHECKERS.get_or_init(kind, || compiled(bundled::of_kind(kind)))
}

fn compiled(schema: &Value) -> validation::Schema {
    // All schemas stand in this crate, and the tests compile each.
    validation::Schema::of_program(schema).expect("the schema of a resource is valid")
}

/// Checks a resource like the Admin API on a write, without its references. `id` is the id from the path, if there is
/// one: for a credential the plain id, for a secret `<manager>/<id>`, for plugin metadata the plugin's name. Private
/// keys are not encrypted. `unknown` decides the treatment of unknown fields.
///
/// # Errors
/// Returns the whole error text.
pub fn check(
    kind: Kind,
    id: Option<&str>,
    value: &Value,
    plugins: &dyn PluginSchemas,
    unknown: UnknownFields,
) -> Result<(), String> {
    let held;
    let value = match (id, table(value)) {
        // A consumer only has a name, and metadata has the fields of its plugin.
        (Some(id), Value::Object(object)) if !matches!(kind, Kind::Consumer | Kind::PluginMetadata) => {
            let mut object = object.clone();
            object.insert("id".to_owned(), id.into());
            held = Value::Object(object);
            &held
        }
        (_, value) => value,
    };
    let subject = Subject { kind, id, value, plugins, is_of_file: false };
    subject.verify()?;
    if unknown == UnknownFields::Refuse {
        warnings::refuse_unknown(&subject)?;
    }
    any::typed(kind, subject.id().unwrap_or_default(), value).map(drop).map_err(invalid)
}

/// Returns all reasons why [`check`] refuses a resource of a file, each mistake once, in words for the writer of a
/// file, with place and remedy. Rules check values, so that they also find problems in a resource that the schema
/// refuses.
pub(crate) fn problems(
    kind: Kind,
    value: &Value,
    plugins: &dyn PluginSchemas,
    unknown: UnknownFields,
) -> Vec<Problem> {
    let subject = Subject { kind, id: None, value, plugins, is_of_file: true };
    let (before, after) = rules_of(kind);
    let mut found: Vec<Problem> = subject.violated(before).map(rules::in_plain_words).collect();
    // Adds only problems at new places.
    fn add(found: &mut Vec<Problem>, more: impl Iterator<Item = Problem>) {
        let told: HashSet<String> = found.iter().map(|problem| problem.pointer.clone()).collect();
        found.extend(more.filter(|problem| problem.pointer.is_empty() || !told.contains(&problem.pointer)));
    }
    let schema = subject.checker().map(|checker| checker.mistakes(value, &warnings::KEPT_WITH_ALL));
    let mut refused = schema.unwrap_or_default();
    if let (Kind::Ssl, Value::Object(ssl)) = (kind, value) {
        refused = rules::ssl_pair::instead_of(refused, ssl);
    }
    add(&mut found, refused.into_iter());
    add(&mut found, subject.violated(after).map(rules::in_plain_words));
    if unknown == UnknownFields::Refuse {
        let fields = warnings::unknown(&subject, &found);
        add(&mut found, fields.into_iter().map(|field| field.refused()));
    }
    for problem in found.iter_mut().filter(|problem| problem.code == "unknown_key") {
        // The name of a plugin outside `plugins`.
        let name = problem.pointer.replace('_', "-");
        if plugins.names().contains(&name.as_str()) {
            problem.hint = Some(format!("did you mean `plugins.{name}`?"));
        }
        // A credential, which belongs to a consumer.
        let field = problem.pointer.strip_prefix("plugins.").and_then(|place| place.split_once('.'));
        let Some((plugin, field)) = field.filter(|_| !matches!(kind, Kind::Consumer | Kind::Credential))
        else {
            continue;
        };
        let of_consumer = plugins.schema(plugin, PluginScope::Consumer);
        if of_consumer.is_some_and(|schema| schema["properties"].get(field).is_some())
            && plugins.unique_attribute(plugin).is_some()
        {
            problem.hint = Some(format!("`{field}` belongs to `plugins.{plugin}` of a consumer"));
        }
    }
    found
}

/// Returns `value`, or the empty object for the empty list, which is the same in Lua.
fn table(value: &Value) -> &Value {
    static EMPTY: OnceLock<Value> = OnceLock::new();
    match value {
        Value::Array(items) if items.is_empty() => EMPTY.get_or_init(|| Value::Object(Object::new())),
        value => value,
    }
}

fn invalid(text: String) -> String {
    format!("invalid configuration: {text}")
}

/// A resource to check.
struct Subject<'a> {
    kind: Kind,
    /// The id, if it is not from the value.
    id: Option<&'a str>,
    value: &'a Value,
    plugins: &'a dyn PluginSchemas,
    /// Whether the result is for the writer of a file, and not for a client of the Admin API, which gets APISIX's
    /// texts.
    is_of_file: bool,
}

/// A rule across the fields of a resource.
type Rule = fn(&Subject<'_>, &Object) -> Vec<Problem>;

/// Returns the rules of a kind that APISIX checks before the schema, and those after it, in its order.
fn rules_of(kind: Kind) -> (&'static [Rule], &'static [Rule]) {
    const PLUGINS: Rule = |subject, _| subject.wrong_plugins();
    const UPSTREAM: Rule = |_, object| rules::inline_upstream(object);
    match kind {
        Kind::Route => (
            &[|_, object| rules::route_before_schema(object)],
            &[UPSTREAM, PLUGINS, |subject, object| rules::route_conditions(object, subject.plugins)],
        ),
        Kind::Service => {
            (&[], &[UPSTREAM, PLUGINS, |subject, object| rules::service_conditions(object, subject.plugins)])
        }
        Kind::Upstream => (&[], &[|_, object| rules::upstream(object)]),
        Kind::Consumer | Kind::ConsumerGroup | Kind::GlobalRule | Kind::PluginConfig => (&[], &[PLUGINS]),
        Kind::Credential => (&[], &[PLUGINS, |subject, _| subject.not_authenticating()]),
        Kind::PluginMetadata => {
            (&[|subject, _| subject.metadata_of_nobody()], &[|subject, _| subject.wrong_metadata()])
        }
        Kind::Ssl => (&[], &[|_, object| rules::ssl(object)]),
        Kind::Proto => (&[], &[|_, object| rules::proto(object).into_iter().collect()]),
        Kind::StreamRoute => {
            (&[], &[PLUGINS, |subject, object| rules::stream_route(object, subject.text_of_id().as_deref())])
        }
        Kind::Secret => (&[|subject, _| subject.without_provider()], &[]),
    }
}

impl Subject<'_> {
    fn id(&self) -> Option<&str> {
        self.id.or_else(|| self.value.get("id")?.as_str())
    }

    /// Returns the id, which may be written as a number.
    fn text_of_id(&self) -> Option<String> {
        self.id.map(str::to_owned).or_else(|| text_of_id(self.value.get("id")?))
    }

    /// Returns the violations of the rules; none if the value is not an object, which the schema refuses.
    fn violated(&self, rules: &'static [Rule]) -> impl Iterator<Item = Problem> {
        let object = self.value.as_object().into_iter();
        object.flat_map(|object| rules.iter().flat_map(|rule| rule(self, object)))
    }

    /// The checker of its schema; None if there is no such secret manager.
    fn checker(&self) -> Option<&'static validation::Schema> {
        match self.kind {
            Kind::Secret => Some(checker(self.kind, Some(provider_of(self.id()?).ok()?))),
            kind => Some(checker(kind, None)),
        }
    }

    /// Checks a value before its conversion to a type, up to the first error.
    fn verify(&self) -> Result<(), String> {
        let (before, after) = rules_of(self.kind);
        let first = |rules| self.violated(rules).next().map_or(Ok(()), |problem| Err(problem.message));
        if let (Kind::Ssl, Some(ssl)) = (self.kind, self.value.as_object()) {
            rules::ssl_pair::without_files(ssl).map_err(invalid)?;
        }
        first(before)?;
        self.checker().map_or(Ok(()), |checker| checker.check(self.value).map_err(invalid))?;
        first(after)
    }

    fn plugins(&self) -> impl Iterator<Item = (&str, &Value)> {
        let plugins = self.value.get("plugins").and_then(Value::as_object);
        plugins.into_iter().flatten().map(|(name, conf)| (name.as_str(), conf))
    }

    fn wrong_plugins(&self) -> Vec<Problem> {
        let prefix = match self.kind {
            Kind::Consumer | Kind::Credential => "invalid plugins configuration: ",
            _ => "",
        };
        if self.is_of_file {
            return self.plugins().flat_map(|(name, conf)| self.mistakes_of_plugin(name, conf)).collect();
        }
        let wrong = |(name, conf)| {
            let scope = scope_of(self.kind, name, self.plugins);
            let refused = check_plugin(name, conf, scope, self.plugins).err()?;
            let message = format!("{prefix}{}", refused.message);
            Some(Problem::new(member("plugins", name), refused.code, message))
        };
        self.plugins().filter_map(wrong).collect()
    }

    /// Returns the mistakes of a plugin's configuration for the writer of a file.
    fn mistakes_of_plugin(&self, name: &str, conf: &Value) -> Vec<Problem> {
        let place = member("plugins", name);
        let scope = scope_of(self.kind, name, self.plugins);
        if self.plugins.check(name, scope, conf) == Err(PluginRefusal::Unknown) {
            let message = unknown_plugin(name, self.plugins);
            return vec![Problem::new(place, "unknown_plugin", message).hint(self.instead_of(name))];
        }
        let found = mistakes_of_plugin(name, conf, scope, self.plugins);
        if !found.is_empty() {
            return found.into_iter().map(|problem| problem.within(&place)).collect();
        }
        let Err(refused) = check_plugin(name, conf, scope, self.plugins) else { return Vec::new() };
        let hint = match refused.code {
            "expression" => rules::EXPRESSION_HINT.to_owned(),
            "body_condition" => rules::BODY_HINT.to_owned(),
            "not_served" => "remove it".to_owned(),
            _ => reference_hint(name),
        };
        // The place names the plugin.
        let (_, message) = refused.message.split_once(" err: ").unwrap_or_default();
        let message = if refused.code == "plugin" { message } else { &refused.message };
        let (field, message) = validation::unfolded(message);
        vec![rules::in_plain_words(Problem::new(field, refused.code, message).hint(hint).within(&place))]
    }

    /// Returns the remedy for an unknown plugin.
    fn instead_of(&self, name: &str) -> String {
        if self.plugins.left_out(name).is_some() {
            return BUILD_HINT.to_owned();
        }
        let mut names = self.plugins.names();
        if names.contains(&name) && self.kind == Kind::StreamRoute {
            return "remove it; stream routes have no such plugin".to_owned();
        }
        names.retain(|other| *other != name);
        match nearest_plugin(name, &names) {
            Some(close) => format!("did you mean `{close}`?"),
            None => "remove it; this version has no such plugin, or it is not enabled".to_owned(),
        }
    }

    fn not_authenticating(&self) -> Vec<Problem> {
        let others = self.plugins().filter(|(name, _)| !self.plugins.is_auth(name));
        let message = "only supports auth type plugins in consumer credential";
        let hint = "name a plugin that authenticates, such as key-auth";
        others.map(|(name, _)| Problem::new(member("plugins", name), "plugin", message).hint(hint)).collect()
    }

    fn metadata_of_nobody(&self) -> Vec<Problem> {
        let Some(name) = self.id().filter(|name| !name.is_empty()) else {
            let hint = "add `id`, the name of the plugin";
            return vec![Problem::new("", "missing", "missing plugin name").hint(hint)];
        };
        match self.plugins.check(name, PluginScope::Metadata, self.value) {
            Err(PluginRefusal::Unknown) => {
                let problem = Problem::new("id", "unknown_plugin", "invalid plugin name");
                vec![problem.hint(self.instead_of(name))]
            }
            _ => Vec::new(),
        }
    }

    fn wrong_metadata(&self) -> Vec<Problem> {
        let name = self.id().unwrap_or_default();
        if self.is_of_file {
            let found = self.plugins.mistakes(name, PluginScope::Metadata, self.value);
            if !found.is_empty() {
                return found;
            }
        }
        match self.plugins.check(name, PluginScope::Metadata, self.value) {
            Err(PluginRefusal::Invalid(text)) => {
                let (field, message) = if self.is_of_file {
                    validation::unfolded(&text)
                } else {
                    (String::new(), invalid(text))
                };
                vec![Problem::new(field, "plugin", message).hint(reference_hint(name))]
            }
            _ => Vec::new(),
        }
    }

    fn without_provider(&self) -> Vec<Problem> {
        let Some(id) = self.id() else {
            return vec![Problem::new("", "missing", "no secret id").hint("add `id`, as in vault/1")];
        };
        let hint = "begin it with vault, aws or gcp, as in vault/1";
        let unknown = provider_of(id).err();
        unknown.map(|text| Problem::new("id", "secret", text).hint(hint)).into_iter().collect()
    }
}

fn reference_hint(plugin: &str) -> String {
    format!("`sigma plugins {plugin}` shows all fields")
}

fn provider_of(id: &str) -> Result<SecretProvider, String> {
    let name = id.split('/').next().unwrap_or_default();
    SecretProvider::of_name(name).ok_or_else(|| format!("invalid secret manager: {name}"))
}

/// Returns the text for a plugin that is already in another global rule.
#[must_use]
pub fn duplicate_global_plugin(plugin: &str, rule: &str) -> String {
    format!("plugin '{plugin}' already exists in global rule with id '{rule}'")
}
