//! The description of a plugin.

use std::any::Any;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sigma_schema::Problem;
use sigma_schema::described::schema_of;
use sigma_schema::id::Id;
use sigma_schema::plugins::{NamedFile, PluginScope};

use crate::credentials::Credential;
use crate::variable_fields::VariableField;
use crate::{
    Bridge, Context, Entry, Env, Flow, Kind, Node, OwnedField, Plugin, Resident, Resource, Scripts, Step,
};

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

    /// Returns its name.
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

/// A set of phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PhaseSet(u8);

impl PhaseSet {
    /// Returns the set of these phases.
    pub const fn of(phases: &[Phase]) -> PhaseSet {
        let mut bits = 0;
        let mut at = 0;
        while at < phases.len() {
            bits |= 1 << phases[at] as u8;
            at += 1;
        }
        PhaseSet(bits)
    }

    /// Returns the union.
    #[must_use]
    pub const fn and(self, other: PhaseSet) -> PhaseSet {
        PhaseSet(self.0 | other.0)
    }

    /// Returns true if the set has a phase.
    pub const fn contains(self, phase: Phase) -> bool {
        self.0 & (1 << phase as u8) != 0
    }
}

/// A rule for a plugin that a global rule and the route both have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RunPolicy {
    /// Both run.
    #[default]
    Both,
    /// Only the route's plugin runs.
    PreferRoute,
}

/// Additions of an authenticating plugin.
#[derive(Debug, Clone, Copy)]
pub struct Auth {
    /// The field of a consumer's configuration that identifies the consumer, e.g. `key`.
    pub attribute: &'static str,
    /// The schema of a consumer's or credential's configuration.
    pub schema: fn() -> Value,
    /// Parses such a configuration, with defaults filled in, into the data that the plugin looks up later.
    pub parse: fn(&Value) -> Result<Data, String>,
    /// Upstreams inside such a configuration; see [`crate::Identity::upstream_key`].
    pub upstreams: Option<fn(&Value) -> Vec<InlineUpstream>>,
}

/// An HTTP endpoint of the plugin itself. Clients reach it through the plugin `public-api`, or through a listener of
/// the control plane.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint {
    /// The default path; see [`Endpoint::path_in`].
    pub path: &'static str,
    /// The member of the plugin's `plugin_attr` that sets another path.
    pub path_setting: &'static str,
    /// The method of its requests.
    pub method: sigma_http::Method,
    /// Makes the response. A worker or the control plane calls it like a hook: it must not block.
    pub answer: fn(&mut Context, &Env<'_>) -> Step,
}

impl Endpoint {
    /// Returns its path under this `plugin_attr` of its plugin.
    pub fn path_in<'a>(&'a self, attribute: &'a Value) -> &'a str {
        attribute.get(self.path_setting).and_then(Value::as_str).unwrap_or(self.path)
    }
}

/// An upstream nested in a plugin's configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct InlineUpstream {
    /// Its name within the configuration; see [`Build::upstream_key`].
    pub name: String,
    /// An upstream resource.
    pub upstream: Value,
}

/// A plugin nested in another plugin's configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Child {
    /// Its name.
    pub name: String,
    /// Its configuration.
    pub conf: Value,
    /// Its position in the outer configuration.
    pub place: String,
    /// The whole error message if there is no such plugin.
    pub unknown: String,
    /// The start of the error message if its configuration is invalid.
    pub refused: String,
    /// The whole error message if the plugin does not authenticate; None where any plugin is allowed.
    pub unauthenticating: Option<String>,
}

/// The type of a plugin's configuration: its fields, their allowed values and their meaning. The schema is made from
/// it (see [`sigma_schema::described`]), and configurations are parsed into it.
pub trait Configuration: DeserializeOwned + JsonSchema {
    /// Checks rules beyond the schema and parsing.
    ///
    /// # Errors
    /// Returns an error, which is the whole message, if the configuration is invalid.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Parses a configuration with defaults filled in.
///
/// # Errors
/// Returns an error, which is the whole message, if the configuration is invalid.
pub fn parsed<C: Configuration>(conf: &Value) -> Result<C, String> {
    let parsed = C::deserialize(conf).map_err(|error| error.to_string())?;
    parsed.check().map(|()| parsed)
}

/// Checks a configuration beyond its schema; the text is the whole error message.
pub type Check = fn(&Value) -> Result<(), String>;

/// Parsed configuration of a consumer, for an authenticating plugin.
pub type Data = Arc<dyn Any + Send + Sync>;

/// A plugin that is compiled in: a [`crate::Kind`] written as a constant.
#[derive(Debug, Clone, Copy)]
pub struct Descriptor {
    /// Its name in configurations.
    pub name: &'static str,
    /// The group of plugins that it belongs to. The roster of the program sets it.
    pub group: &'static str,
    /// Its version, as APISIX numbers it.
    pub version: &'static str,
    /// Plugins with a higher number run first.
    pub priority: i32,
    /// Its purpose, for the reference: a first line, then paragraphs of Markdown. Empty if the schema's description
    /// has that text.
    pub doc: &'static str,
    /// Its example, for the reference: Markdown with a whole configuration that can be started unchanged (a block of
    /// `yaml`), then commands and their output (a block of `console`). The tests run it.
    pub example: &'static str,
    /// Its hooks.
    pub phases: PhaseSet,
    /// The schema of its configuration, shaped as APISIX shapes it and with a `description` for
    /// every field.
    pub schema: fn() -> Value,
    /// Its additions for authentication.
    pub auth: Option<Auth>,
    /// True if it authenticates only through nested plugins, and so needs no identifying attribute; excludes `auth`.
    pub authenticates_by_children: bool,
    /// True if it grants or denies access without a consumer. In each phase, such plugins and the authenticating ones
    /// run before other plugins read a request body into memory, regardless of priorities.
    pub guards: bool,
    /// True if it admits requests on behalf of users; see [`crate::Kind::identifies`]. Authenticating plugins always
    /// do.
    pub identifies: bool,
    /// True if it sets the names of these users.
    pub names_persons: bool,
    /// The schema of its plugin metadata.
    pub metadata_schema: Option<fn() -> Value>,
    /// The schema of its settings for the whole process, in `plugin_attr`.
    pub attributes: Option<fn() -> Value>,
    /// Its behaviour next to the same plugin in a global rule.
    pub run_policy: RunPolicy,
    /// Its own endpoints.
    pub endpoints: &'static [Endpoint],
    /// Rules beyond the schema; the text is the whole error message.
    pub check: Option<Check>,
    /// Returns warnings about a valid configuration, as it was written: without defaults, with `_meta`. Pointers
    /// begin in the configuration.
    pub warnings: Option<fn(PluginScope, &Value) -> Vec<Problem>>,
    /// Fields of its configuration and metadata that name variables.
    pub variables: &'static [VariableField],
    /// Members of its configuration and metadata that name local files, which a sandbox must allow.
    pub files: &'static [FileMember],
    /// Upstreams nested in its configuration, with defaults filled in.
    pub upstreams: Option<fn(&Value) -> Vec<InlineUpstream>>,
    /// Upstreams whose nodes are in its metadata. They are made of a configuration and the metadata (`null` if
    /// missing), so that each configuration can adapt them.
    pub upstreams_by_metadata: Option<fn(&Value, &Value) -> Vec<InlineUpstream>>,
    /// Plugins nested in its configuration, which instances make with [`Build::child`].
    pub children: Option<fn(&Value) -> Vec<Child>>,
    /// The member of its configuration that names a group. All configurations of a group are equal.
    pub group_field: Option<&'static str>,
    /// The request fields that it sets for nodes under a configuration with defaults; see
    /// [`crate::Kind::owned_fields`].
    pub owned_fields: Option<fn(&Value) -> Vec<OwnedField>>,
    /// The credentials that it reads or sets under such a configuration; see [`crate::Kind::credentials`].
    pub credentials: Option<fn(&Value) -> Vec<Credential>>,
    /// Makes an instance. It must neither block nor access the network.
    pub build: fn(&Build<'_>) -> Result<Arc<dyn Plugin>, String>,
    /// Its part on stream routes; None if it does not support them.
    pub flow: Option<Flow>,
    /// Makes its process-wide part; see [`crate::Kind::resident`].
    pub resident: Option<MakeResident>,
    /// The upstreams that it serves instead of nodes.
    pub bridge: Option<Bridge>,
    /// Makes the engine for scripts in resources; see [`crate::Kind::scripts`].
    pub scripts: Option<fn() -> Arc<dyn Scripts>>,
}

/// Makes the process-wide part of a plugin.
pub type MakeResident = fn(&Build<'_>) -> Result<Arc<dyn Resident>, String>;

/// A member of a configuration that names a file or a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMember {
    /// The member's name.
    pub name: &'static str,
    /// How the plugin uses the file.
    pub access: FileAccess,
}

impl FileMember {
    /// Returns it for the check of a configuration.
    pub(crate) fn named(&self) -> NamedFile<'static> {
        let is_written = !matches!(self.access, FileAccess::ReadFile | FileAccess::ReadFolder);
        NamedFile { name: self.name, is_written, is_served: matches!(self.access, FileAccess::ReadFolder) }
    }
}

/// How a file is used. The sandbox allows its whole folder, as files may be replaced there.
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
    /// Defaults for most plugins; use it with `..Descriptor::BASE`.
    pub const BASE: Descriptor = Descriptor {
        name: "",
        group: "",
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
        scripts: None,
    };
}

impl Auth {
    /// Returns the `Auth` of a plugin whose consumer configuration is `C`; hooks get it by [`crate::Identity::data`].
    pub const fn of<C: Configuration + Send + Sync + 'static>(attribute: &'static str) -> Auth {
        let parse: fn(&Value) -> Result<Data, String> = |conf| Ok(Arc::new(parsed::<C>(conf)?));
        Auth { attribute, schema: schema_of::<C>, parse, upstreams: None }
    }
}

impl Descriptor {
    /// Returns the defaults for a configuration type; use it with `..Descriptor::of::<C>()`.
    pub const fn of<C: Configuration>() -> Descriptor {
        Descriptor {
            schema: schema_of::<C>,
            check: Some(|conf| parsed::<C>(conf).map(drop)),
            ..Descriptor::BASE
        }
    }

    /// Returns true if it does not handle requests.
    pub(crate) fn is_for_streams_only(&self) -> bool {
        self.flow.is_some() && self.phases == PhaseSet(0)
    }

    /// Returns the function that finds the upstreams inside a configuration of this scope.
    pub(crate) fn upstreams_of(&self, scope: PluginScope) -> Option<fn(&Value) -> Vec<InlineUpstream>> {
        match scope {
            PluginScope::Http => self.upstreams,
            PluginScope::Stream => self.flow.and(self.upstreams),
            PluginScope::Consumer => self.auth.and_then(|auth| auth.upstreams),
            PluginScope::Metadata => None,
        }
    }

    /// Returns the function that makes the upstreams of a configuration of this scope from it and the metadata.
    pub(crate) fn upstreams_by_metadata_of(
        &self,
        scope: PluginScope,
    ) -> Option<fn(&Value, &Value) -> Vec<InlineUpstream>> {
        self.upstreams_by_metadata.filter(|_| scope == PluginScope::Http)
    }

    /// Returns the defaults for a configuration that is also the instance.
    pub const fn itself<P: Configuration + Plugin + 'static>() -> Descriptor {
        Descriptor { build: |build| Ok(Arc::new(build.config::<P>()?)), ..Descriptor::of::<P>() }
    }
}

/// Input for making an instance.
#[derive(Debug)]
pub struct Build<'a> {
    /// The name of the plugin.
    pub plugin: &'a str,
    /// The configuration, checked, with defaults filled in and secrets resolved.
    pub conf: &'a Value,
    /// Its position: the key of a resource, e.g. `/apisix/routes/1`. Counters begin with it.
    pub resource: &'a str,
    /// The plugin's metadata, with defaults filled in; `null` if missing.
    pub metadata: &'a Value,
    /// State of the whole node.
    pub node: &'a Arc<Node>,
    /// The configuration as it was written: without defaults, and with references to secrets.
    pub(crate) written: &'a Value,
    /// The maker of nested plugins.
    pub(crate) family: &'a dyn Family,
}

/// Makes nested plugins.
pub(crate) trait Family {
    fn child(&self, name: &str, conf: &Value, resource: &str, node: &Arc<Node>)
    -> Result<Arc<Entry>, String>;

    fn kinds(&self) -> Vec<Arc<dyn Kind>>;

    fn proto(&self, id: &Id) -> Option<Resource>;

    fn written(&self, resource: &str, plugin: &str) -> Option<Arc<Value>>;
}

/// A family without plugins.
struct Childless;

impl Family for Childless {
    fn child(&self, name: &str, _: &Value, _: &str, _: &Arc<Node>) -> Result<Arc<Entry>, String> {
        Err(format!("unknown plugin [{name}]"))
    }

    fn kinds(&self) -> Vec<Arc<dyn Kind>> {
        Vec::new()
    }

    fn proto(&self, _: &Id) -> Option<Resource> {
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
    /// Parses the configuration to a type.
    ///
    /// # Errors
    /// Returns an error if the type does not fit the schema.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, String> {
        T::deserialize(self.conf).map_err(|error| error.to_string())
    }

    /// Parses the plugin's metadata to a type; returns the default if missing.
    ///
    /// # Errors
    /// Returns an error if the type does not fit the schema.
    pub fn metadata_as<T: DeserializeOwned + Default>(&self) -> Result<T, String> {
        let metadata = Option::<T>::deserialize(self.metadata).map_err(|error| error.to_string())?;
        Ok(metadata.unwrap_or_default())
    }

    /// Returns the input for a configuration with defaults filled in and without nested plugins.
    pub fn new<'a>(
        plugin: &'a str,
        conf: &'a Value,
        resource: &'a str,
        metadata: &'a Value,
        node: &'a Arc<Node>,
    ) -> Build<'a> {
        Build { plugin, conf, resource, metadata, node, written: conf, family: &Childless }
    }

    /// Makes an instance of a nested plugin. `place` keeps its counters apart. The outer plugin runs it; the gateway
    /// does not.
    ///
    /// # Errors
    /// Returns an error message if the plugin is not enabled or rejects the configuration.
    pub fn child(&self, name: &str, conf: &Value, place: &str) -> Result<Arc<Entry>, String> {
        self.family.child(name, conf, &format!("{}#{place}", self.resource), self.node)
    }

    /// Returns the enabled plugins, in the order of their names.
    pub fn kinds(&self) -> Vec<Arc<dyn Kind>> {
        self.family.kinds()
    }

    /// Returns a Protocol Buffers definition that the configuration names; None if it does not exist. The instance is
    /// made again when it changes.
    pub fn proto(&self, id: &Id) -> Option<Resource> {
        self.family.proto(id)
    }

    /// Returns the configuration as it was written: without defaults, and with references to secrets.
    pub fn written(&self) -> &Value {
        self.written
    }

    /// Returns true if the current resources still have this plugin at `resource` with the configuration `written`.
    /// Instances of earlier resources live on for a while.
    pub fn is_current(&self, resource: &str, written: &Value) -> bool {
        self.family.written(resource, self.plugin).is_some_and(|now| *now == *written)
    }

    /// Returns the key of an [`InlineUpstream`], see [`crate::Context::upstream`].
    pub fn upstream_key(&self, name: &str) -> String {
        inline_upstream_key(self.resource, self.plugin, name)
    }

    /// Returns a number that changes when the configuration changes, and only then.
    pub fn conf_hash(&self) -> u64 {
        use std::hash::Hasher;
        // Not randomised: the number is part of keys that other gateways share through Redis.
        #[expect(deprecated, reason = "the one stable hash of the standard library")]
        let mut hasher = std::hash::SipHasher::new();
        hash_value(self.conf, &mut hasher);
        hasher.finish()
    }
}

/// Returns the key of an upstream inside the configuration of a plugin.
pub fn inline_upstream_key(resource: &str, plugin: &str, name: &str) -> String {
    format!("{resource}#{plugin}/{name}")
}

/// Hashes members in the order of their names, so that their order in the source has no effect.
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
