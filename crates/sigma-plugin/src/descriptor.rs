//! What a plugin says of itself.

use std::any::Any;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sigma_config::Problem;
use sigma_config::described::schema_of;
use sigma_config::id::Id;
use sigma_config::plugins::PluginScope;
use sigma_config::resources::Proto;

use crate::credentials::Credential;
use crate::places::VariablePlace;
use crate::{Bridge, Context, Entry, Env, Flow, Kind, Node, OwnedField, Plugin, Resident, Step};

/// A phase of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// [`Plugin::rewrite`]
    Rewrite,
    /// [`Plugin::access`]
    Access,
    /// [`Plugin::before_proxy`]
    BeforeProxy,
    /// [`Plugin::request_filter`]
    RequestFilter,
    /// [`Plugin::header_filter`]
    HeaderFilter,
    /// [`Plugin::body_filter`]
    BodyFilter,
    /// [`Plugin::log`]
    Log,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Phase; 7] = [
        Phase::Rewrite,
        Phase::Access,
        Phase::BeforeProxy,
        Phase::RequestFilter,
        Phase::HeaderFilter,
        Phase::BodyFilter,
        Phase::Log,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Rewrite => "rewrite",
            Phase::Access => "access",
            Phase::BeforeProxy => "before_proxy",
            Phase::RequestFilter => "request_filter",
            Phase::HeaderFilter => "header_filter",
            Phase::BodyFilter => "body_filter",
            Phase::Log => "log",
        }
    }
}

/// Several phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PhaseSet(u8);

impl PhaseSet {
    /// These phases.
    pub const fn of(phases: &[Phase]) -> PhaseSet {
        let mut bits = 0;
        let mut at = 0;
        while at < phases.len() {
            bits |= 1 << phases[at] as u8;
            at += 1;
        }
        PhaseSet(bits)
    }

    /// The phases of both.
    #[must_use]
    pub const fn and(self, other: PhaseSet) -> PhaseSet {
        PhaseSet(self.0 | other.0)
    }

    /// Whether a phase is among them.
    pub const fn contains(self, phase: Phase) -> bool {
        self.0 & (1 << phase as u8) != 0
    }
}

/// Whether a plugin of a global rule also runs where the route has it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RunPolicy {
    /// Both run.
    #[default]
    Both,
    /// The route's takes the place of the global rule's.
    PreferRoute,
}

/// What an authenticating plugin adds.
#[derive(Debug, Clone, Copy)]
pub struct Auth {
    /// The field of a consumer's configuration that identifies it, e.g. `key`.
    pub attribute: &'static str,
    /// The schema of a consumer's or credential's configuration.
    pub schema: fn() -> Value,
    /// Parses such a configuration, with defaults filled in, into what the plugin looks up later.
    pub parse: fn(&Value) -> Result<Data, String>,
    /// Upstreams inside such a configuration; see [`crate::Identity::upstream_key`].
    pub upstreams: Option<fn(&Value) -> Vec<InlineUpstream>>,
}

/// A handler of the plugin's own that people reach under a path: through the plugin `public-api`,
/// or through a listener of the control plane.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint {
    /// The path it has unless it is configured otherwise; see [`Endpoint::path_in`].
    pub path: &'static str,
    /// The member of the plugin's `plugin_attr` that gives it another path.
    pub path_setting: &'static str,
    /// The method it answers to.
    pub method: sigma_http::Method,
    /// Makes the answer. Called as a hook is, by a worker or beside the traffic: it must not block.
    pub answer: fn(&mut Context, &Env<'_>) -> Step,
}

impl Endpoint {
    /// The path that it has with this `plugin_attr` of its plugin.
    pub fn path_in<'a>(&'a self, attribute: &'a Value) -> &'a str {
        attribute.get(self.path_setting).and_then(Value::as_str).unwrap_or(self.path)
    }
}

/// An upstream that stands inside a plugin's configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct InlineUpstream {
    /// Names it within the configuration; see [`Build::upstream_key`].
    pub name: String,
    /// An upstream resource.
    pub upstream: Value,
}

/// A plugin that stands inside another one's configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Child {
    /// Its name.
    pub name: String,
    /// Its configuration.
    pub conf: Value,
    /// Where that stands in the outer one.
    pub place: String,
    /// The whole reason if there is no such plugin.
    pub unknown: String,
    /// What stands before the reason if its configuration is refused.
    pub refused: String,
    /// The whole reason if the plugin does not authenticate; None where any plugin may stand.
    pub unauthenticating: Option<String>,
}

/// The type of a plugin's configuration: its fields, what they may hold and what they mean, from which
/// its schema is made (see [`sigma_config::described`]), and what it is parsed into.
pub trait Configuration: DeserializeOwned + JsonSchema {
    /// Checks what neither the schema nor parsing does.
    ///
    /// # Errors
    /// Returns an error, which is the whole reason, if the configuration is refused.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Parses a configuration with defaults filled in.
///
/// # Errors
/// Returns an error, which is the whole reason, if the configuration is refused.
pub fn parsed<C: Configuration>(conf: &Value) -> Result<C, String> {
    let parsed = C::deserialize(conf).map_err(|error| error.to_string())?;
    parsed.check().map(|()| parsed)
}

/// Checks a configuration beyond its schema; the text is the whole reason for which it is refused.
pub type Check = fn(&Value) -> Result<(), String>;

/// What an authenticating plugin has made of a consumer's configuration.
pub type Data = Arc<dyn Any + Send + Sync>;

/// A plugin that is compiled in: a [`crate::Kind`] written as a constant.
#[derive(Debug, Clone, Copy)]
pub struct Descriptor {
    /// Its name in configurations.
    pub name: &'static str,
    /// Its version, as APISIX numbers it.
    pub version: &'static str,
    /// Plugins with a higher number run first.
    pub priority: i32,
    /// What it does, for the reference: a first line, then paragraphs of Markdown. Empty if the schema's
    /// description says it.
    pub doc: &'static str,
    /// How it is used, for the reference: Markdown with a whole configuration that can be started as it
    /// stands (a block of `yaml`), then commands and their output (a block of `console`). The tests run it.
    pub example: &'static str,
    /// The hooks it has.
    pub phases: PhaseSet,
    /// The schema of its configuration, shaped as APISIX shapes it and with a `description` for
    /// every field.
    pub schema: fn() -> Value,
    /// What it adds if it authenticates.
    pub auth: Option<Auth>,
    /// Whether it authenticates by asking the plugins inside it, and so has nothing that identifies a
    /// consumer; not beside `auth`.
    pub authenticates_by_children: bool,
    /// Whether it decides who may pass without a consumer. In each phase such plugins, and those that authenticate, run
    /// before another plugin has a request body read into memory, whatever the priorities.
    pub guards: bool,
    /// Whether it lets requests in for persons; see [`crate::Kind::identifies`]. Those that authenticate do so in any
    /// case.
    pub identifies: bool,
    /// Whether it names the persons.
    pub names_persons: bool,
    /// The schema of its plugin metadata.
    pub metadata_schema: Option<fn() -> Value>,
    /// The schema of what the setting `plugin_attr` may tell it once for the process.
    pub attributes: Option<fn() -> Value>,
    /// How it gets on with a global rule.
    pub run_policy: RunPolicy,
    /// Paths that it serves itself.
    pub endpoints: &'static [Endpoint],
    /// Rules beyond the schema; the text is the whole reason.
    pub check: Option<Check>,
    /// What it has to say about a configuration that is in order, as it was written: without
    /// defaults, `_meta` included. Pointers begin in the configuration.
    pub warnings: Option<fn(PluginScope, &Value) -> Vec<Problem>>,
    /// Where its configuration and its metadata name variables.
    pub variables: &'static [VariablePlace],
    /// Members of its configuration and its metadata that name files of this machine, which a sandbox leaves open.
    pub files: &'static [FileMember],
    /// Upstreams inside its configuration, whose defaults are filled in.
    pub upstreams: Option<fn(&Value) -> Vec<InlineUpstream>>,
    /// Upstreams whose nodes stand in its metadata: made of a configuration and the metadata (`null` if there are
    /// none), so that each configuration has them as it wants them.
    pub upstreams_by_metadata: Option<fn(&Value, &Value) -> Vec<InlineUpstream>>,
    /// Plugins inside its configuration, which instances make with [`Build::child`].
    pub children: Option<fn(&Value) -> Vec<Child>>,
    /// The member of its configuration that names a group. All configurations of a group are equal.
    pub group_field: Option<&'static str>,
    /// The request fields that it sets for nodes by a configuration whose defaults are filled in; see
    /// [`crate::Kind::owned_fields`].
    pub owned_fields: Option<fn(&Value) -> Vec<OwnedField>>,
    /// The credentials that it reads or sets by such a configuration; see [`crate::Kind::credentials`].
    pub credentials: Option<fn(&Value) -> Vec<Credential>>,
    /// Makes an instance. Must neither block nor reach out.
    pub build: fn(&Build<'_>) -> Result<Arc<dyn Plugin>, String>,
    /// How it takes part in stream routes; None if it does not.
    pub flow: Option<Flow>,
    /// Makes what it does for the process as a whole; see [`crate::Kind::resident`].
    pub resident: Option<MakeResident>,
    /// The upstreams that it serves in the place of nodes; None for none.
    pub bridge: Option<Bridge>,
}

/// Makes what a plugin does for the process as a whole.
pub type MakeResident = fn(&Build<'_>) -> Result<Arc<dyn Resident>, String>;

/// A member of a configuration that names a file or a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMember {
    /// The member.
    pub name: &'static str,
    /// How the plugin uses the file.
    pub access: FileAccess,
}

/// How a file is used. A file stands for its folder: others take its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileAccess {
    /// The file is read.
    ReadFile,
    /// The folder is read.
    ReadFolder,
    /// The file is created and written.
    WriteFile,
    /// The folder is created, read and written.
    WriteFolder,
    /// The file is executed.
    Execute,
}

impl Descriptor {
    /// What most plugins have in common; to be completed with `..Descriptor::BASE`.
    pub const BASE: Descriptor = Descriptor {
        name: "",
        version: "0.1",
        priority: 0,
        doc: "",
        example: "",
        phases: PhaseSet(0),
        schema: || Value::Bool(true),
        auth: None,
        authenticates_by_children: false,
        guards: false,
        identifies: false,
        names_persons: true,
        metadata_schema: None,
        attributes: None,
        run_policy: RunPolicy::Both,
        endpoints: &[],
        check: None,
        warnings: None,
        variables: &[],
        files: &[],
        upstreams: None,
        upstreams_by_metadata: None,
        children: None,
        group_field: None,
        owned_fields: None,
        credentials: None,
        build: |_| Err("the plugin cannot be built".to_owned()),
        flow: None,
        resident: None,
        bridge: None,
    };
}

impl Auth {
    /// That of a plugin whose consumers' configurations are `C`; hooks find it as
    /// [`crate::Identity::data`].
    pub const fn of<C: Configuration + Send + Sync + 'static>(attribute: &'static str) -> Auth {
        let parse: fn(&Value) -> Result<Data, String> = |conf| Ok(Arc::new(parsed::<C>(conf)?));
        Auth { attribute, schema: schema_of::<C>, parse, upstreams: None }
    }
}

impl Descriptor {
    /// What follows from the type of a plugin's configuration; to be completed with
    /// `..Descriptor::of::<C>()`.
    pub const fn of<C: Configuration>() -> Descriptor {
        Descriptor {
            schema: schema_of::<C>,
            check: Some(|conf| parsed::<C>(conf).map(drop)),
            ..Descriptor::BASE
        }
    }

    /// Whether it has nothing to do with requests.
    pub(crate) fn is_for_streams_only(&self) -> bool {
        self.flow.is_some() && self.phases == PhaseSet(0)
    }

    /// How the upstreams inside a configuration of this scope are found.
    pub(crate) fn upstreams_of(&self, scope: PluginScope) -> Option<fn(&Value) -> Vec<InlineUpstream>> {
        match scope {
            PluginScope::Http => self.upstreams,
            PluginScope::Stream => self.flow.and(self.upstreams),
            PluginScope::Consumer => self.auth.and_then(|auth| auth.upstreams),
            PluginScope::Metadata => None,
        }
    }

    /// How the upstreams of a configuration of this scope are made of it and the metadata.
    pub(crate) fn upstreams_by_metadata_of(
        &self,
        scope: PluginScope,
    ) -> Option<fn(&Value, &Value) -> Vec<InlineUpstream>> {
        self.upstreams_by_metadata.filter(|_| scope == PluginScope::Http)
    }

    /// The same for a configuration that is the instance itself.
    pub const fn itself<P: Configuration + Plugin + 'static>() -> Descriptor {
        Descriptor { build: |build| Ok(Arc::new(build.config::<P>()?)), ..Descriptor::of::<P>() }
    }
}

/// What an instance is made from.
#[derive(Debug)]
pub struct Build<'a> {
    /// The name of the plugin.
    pub plugin: &'a str,
    /// The configuration, checked, with defaults filled in and secrets resolved.
    pub conf: &'a Value,
    /// Where it stands: the key of a resource, e.g. `/apisix/routes/1`. Counters begin with it.
    pub resource: &'a str,
    /// The plugin's metadata, with defaults filled in; `null` if there is none.
    pub metadata: &'a Value,
    /// What all instances share.
    pub node: &'a Arc<Node>,
    /// The configuration as it was written: without defaults, and with references to secrets.
    pub(crate) written: &'a Value,
    /// Who makes the plugins that stand inside the configuration.
    pub(crate) family: &'a dyn Family,
}

/// Makes plugins that stand inside others.
pub(crate) trait Family {
    fn child(&self, name: &str, conf: &Value, resource: &str, node: &Arc<Node>)
    -> Result<Arc<Entry>, String>;

    fn kinds(&self) -> Vec<Arc<dyn Kind>>;

    fn proto(&self, id: &Id) -> Option<Arc<Proto>>;

    fn written(&self, resource: &str, plugin: &str) -> Option<Arc<Value>>;
}

/// Has no plugins.
struct Childless;

impl Family for Childless {
    fn child(&self, name: &str, _: &Value, _: &str, _: &Arc<Node>) -> Result<Arc<Entry>, String> {
        Err(format!("unknown plugin [{name}]"))
    }

    fn kinds(&self) -> Vec<Arc<dyn Kind>> {
        Vec::new()
    }

    fn proto(&self, _: &Id) -> Option<Arc<Proto>> {
        None
    }

    fn written(&self, _: &str, _: &str) -> Option<Arc<Value>> {
        None
    }
}

impl std::fmt::Debug for dyn Family + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Family")
    }
}

impl Build<'_> {
    /// The configuration as a type.
    ///
    /// # Errors
    /// Returns an error if the type does not fit the schema.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, String> {
        T::deserialize(self.conf).map_err(|error| error.to_string())
    }

    /// The plugin's metadata as a type; its default if there is none.
    ///
    /// # Errors
    /// Returns an error if the type does not fit the schema.
    pub fn metadata_as<T: DeserializeOwned + Default>(&self) -> Result<T, String> {
        let metadata = Option::<T>::deserialize(self.metadata).map_err(|error| error.to_string())?;
        Ok(metadata.unwrap_or_default())
    }

    /// For a configuration with defaults filled in, in which no other plugins stand.
    pub fn new<'a>(
        plugin: &'a str,
        conf: &'a Value,
        resource: &'a str,
        metadata: &'a Value,
        node: &'a Arc<Node>,
    ) -> Build<'a> {
        Build { plugin, conf, resource, metadata, node, written: conf, family: &Childless }
    }

    /// An instance of a plugin that stands inside the configuration, whose counters are kept apart by
    /// `place`. For the outer plugin to run: the gateway does not.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the plugin is not enabled or refuses the
    /// configuration.
    pub fn child(&self, name: &str, conf: &Value, place: &str) -> Result<Arc<Entry>, String> {
        self.family.child(name, conf, &format!("{}#{place}", self.resource), self.node)
    }

    /// The plugins that may be used, in the order of their names.
    pub fn kinds(&self) -> Vec<Arc<dyn Kind>> {
        self.family.kinds()
    }

    /// A Protocol Buffers definition that the configuration names; None if there is none. The instance is made
    /// anew when it changes.
    pub fn proto(&self, id: &Id) -> Option<Arc<Proto>> {
        self.family.proto(id)
    }

    /// The configuration as it was written: without defaults, and with references to secrets.
    pub fn written(&self) -> &Value {
        self.written
    }

    /// Whether the resources of which this instance is made have this plugin at `resource`, written so. What was made
    /// of earlier resources lives on for a while.
    pub fn is_current(&self, resource: &str, written: &Value) -> bool {
        self.family.written(resource, self.plugin).is_some_and(|now| *now == *written)
    }

    /// The key under which an [`InlineUpstream`] is found, see [`crate::Context::upstream`].
    pub fn upstream_key(&self, name: &str) -> String {
        inline_upstream_key(self.resource, self.plugin, name)
    }

    /// A number that changes when the configuration does, and only then.
    pub fn conf_hash(&self) -> u64 {
        use std::hash::Hasher;
        // Not randomised: the number is part of keys that other gateways share through Redis.
        #[expect(deprecated, reason = "the one stable hash of the standard library")]
        let mut hasher = std::hash::SipHasher::new();
        hash_value(self.conf, &mut hasher);
        hasher.finish()
    }
}

/// The key of an upstream inside the configuration of a plugin.
pub fn inline_upstream_key(resource: &str, plugin: &str, name: &str) -> String {
    format!("{resource}#{plugin}/{name}")
}

/// Members in the order of their names: how an object was written makes no difference.
#[expect(deprecated, reason = "the one stable hash of the standard library")]
fn hash_value(value: &Value, hasher: &mut std::hash::SipHasher) {
    use std::hash::Hasher;
    match value {
        Value::Object(members) => {
            let mut names: Vec<&String> = members.keys().collect();
            names.sort();
            hasher.write_u8(b'{');
            for name in names {
                hasher.write(name.as_bytes());
                hasher.write_u8(0xff);
                hash_value(&members[name], hasher);
            }
            hasher.write_u8(b'}');
        }
        Value::Array(items) => {
            hasher.write_u8(b'[');
            items.iter().for_each(|item| hash_value(item, hasher));
            hasher.write_u8(b']');
        }
        scalar => {
            hasher.write(scalar.to_string().as_bytes());
            hasher.write_u8(0xff);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_configuration_is_its_content() {
        let node = Arc::new(Node::default());
        let hash = |text: &str| {
            let conf: Value = serde_json::from_str(text).unwrap();
            Build::new("p", &conf, "", &Value::Null, &node).conf_hash()
        };
        assert_eq!(hash(r#"{"a":1,"b":[2,"x"]}"#), hash(r#"{"b":[2,"x"],"a":1}"#));
        assert_ne!(hash(r#"{"a":1}"#), hash(r#"{"a":2}"#));
        assert_ne!(hash(r#"{"a":["b","c"]}"#), hash(r#"{"a":["bc"]}"#));
        assert_ne!(hash(r#"{"a":"1"}"#), hash(r#"{"a":1}"#));
    }
}
