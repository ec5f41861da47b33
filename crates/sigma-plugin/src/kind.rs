//! The interface of a kind of plugin.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;

use crate::consumer::CONSUMER_FIELDS;
use crate::credentials::Credential;
use crate::descriptor::{Child, Data, Endpoint, InlineUpstream, MakeResident};
use crate::variable_fields::VariableField;
use crate::{
    Bridge, Build, Context, Descriptor, Env, FileMember, FlowPlugin, OwnedField, PhaseSet, Plugin, RunPolicy,
    Scripts, Step,
};

/// A kind of plugin: its description for the gateway, its schemas and its documentation, and the maker of its
/// instances.
///
/// Each compiled-in kind is a [`Descriptor`]. Other kinds are created at run time: a script or a module can provide
/// one value of its own type.
pub trait Kind: Send + Sync {
    /// Returns its name in configurations.
    fn name(&self) -> &str;

    /// Returns its group of plugins; empty for a plugin without a group.
    fn group(&self) -> &str {
        ""
    }

    /// Returns its group of plugins, if the build has left the group out. Such a kind makes no instances.
    fn left_out(&self) -> Option<&str> {
        None
    }

    /// Returns its version.
    fn version(&self) -> &str {
        "0.1"
    }

    /// Returns its priority; plugins with a higher number run first.
    fn priority(&self) -> i32;

    /// Returns its hooks.
    fn phases(&self) -> PhaseSet;

    /// Returns true if its body filters run after the body filters of other plugins, at any priority.
    fn filters_last(&self) -> bool {
        false
    }

    /// Returns its behaviour next to the same plugin in a global rule.
    fn run_policy(&self) -> RunPolicy {
        RunPolicy::Both
    }

    /// Returns its description: a first line, then paragraphs of Markdown.
    fn documentation(&self) -> Cow<'_, str>;

    /// Returns its example; see [`Descriptor::example`].
    fn example(&self) -> &str {
        ""
    }

    /// Returns the schema of a configuration of this scope; None if it has no such scope. Fields with
    /// [`sigma_schema::described::CONFIDENTIAL`] are encrypted at rest and never shown.
    fn schema(&self, scope: PluginScope) -> Option<Value>;

    /// Returns the schema of its `plugin_attr`; None if it has no such setting.
    fn attributes(&self) -> Option<Value> {
        None
    }

    /// Returns true if it authenticates consumers.
    fn authenticates(&self) -> bool {
        self.identifying_field().is_some()
    }

    /// Returns true if it grants or denies access; see [`Descriptor::guards`].
    fn guards(&self) -> bool {
        self.authenticates()
    }

    /// Returns true if it admits requests on behalf of users. It marks each such request by
    /// [`Context::mark_personal`], or attaches a consumer. If it does neither and does not call
    /// [`Context::mark_unknown`], caches treat the request as one of a user without a name.
    fn identifies(&self) -> bool {
        self.authenticates()
    }

    /// Returns true if it passes names to [`Context::mark_personal`].
    fn names_persons(&self) -> bool {
        true
    }

    /// Returns the field of a consumer's configuration that identifies the consumer, or None.
    fn identifying_field(&self) -> Option<&str> {
        None
    }

    /// Parses a consumer's configuration, with defaults filled in, into the data that the plugin looks up later.
    ///
    /// # Errors
    /// Returns an error, which is the whole message, if the configuration is invalid.
    fn identity(&self, _conf: &Value) -> Result<Data, String> {
        Err(format!("plugin {} does not authenticate consumers", self.name()))
    }

    /// Checks a configuration of this scope, with defaults filled in, beyond its schema. It is not called for
    /// configurations of consumers.
    ///
    /// # Errors
    /// Returns an error, which is the whole message, if the configuration is invalid.
    fn check(&self, _scope: PluginScope, _conf: &Value) -> Result<(), String> {
        Ok(())
    }

    /// Checks plugin metadata, with defaults filled in, beyond their schema.
    ///
    /// # Errors
    /// Returns an error, which is the whole message, if the metadata are invalid.
    fn check_metadata(&self, _metadata: &Value) -> Result<(), String> {
        Ok(())
    }

    /// Returns warnings about a valid configuration, as it was written.
    fn warnings(&self, _scope: PluginScope, _conf: &Value) -> Vec<Problem> {
        Vec::new()
    }

    /// Returns the fields of its configuration and metadata that name variables.
    fn variables(&self) -> &[VariableField] {
        &[]
    }

    /// Returns true if its configurations of this scope can contain upstreams.
    fn has_upstreams(&self, _scope: PluginScope) -> bool {
        false
    }

    /// Returns the upstreams inside a configuration of this scope, with those that its metadata (`null` if missing)
    /// add; both have defaults filled in.
    fn upstreams(&self, _scope: PluginScope, _conf: &Value, _metadata: &Value) -> Vec<InlineUpstream> {
        Vec::new()
    }

    /// Returns the members of its configuration and metadata that name local files.
    fn files(&self) -> &[FileMember] {
        &[]
    }

    /// Returns the plugins inside a configuration, which may be invalid.
    fn children(&self, _conf: &Value) -> Vec<Child> {
        Vec::new()
    }

    /// Returns the member of its configuration that names a group; see [`Descriptor::group_field`].
    fn group_field(&self) -> Option<&str> {
        None
    }

    /// Returns the request fields that it sets for nodes under a route's configuration with defaults. The gateway
    /// removes such fields of clients. Fields unknown in advance are claimed by [`Context::claim`].
    fn owned_fields(&self, _conf: &Value) -> Vec<OwnedField> {
        Vec::new()
    }

    /// Returns the credentials that it reads from requests, or sets in requests or responses, under a route's
    /// configuration with defaults. Logs and traces hide them. `Authorization`, `Proxy-Authorization` and cookies are
    /// always hidden.
    fn credentials(&self, _conf: &Value) -> Vec<Credential> {
        Vec::new()
    }

    /// Returns its own endpoints, always the same ones.
    fn endpoints(&self) -> &[Endpoint] {
        &[]
    }

    /// Handles a request for one of its endpoints. Like a hook, it must not block.
    fn respond(&self, endpoint: &Endpoint, ctx: &mut Context, env: &Env<'_>) -> Step {
        (endpoint.answer)(ctx, env)
    }

    /// Returns its endpoints on the Control API, always the same ones.
    fn control_endpoints(&self) -> &[Endpoint] {
        &[]
    }

    /// Handles a request for one of its endpoints on the Control API, on a thread for this request alone.
    fn respond_control(&self, endpoint: &Endpoint, ctx: &mut Context, env: &Env<'_>) -> Step {
        (endpoint.answer)(ctx, env)
    }

    /// Makes an instance. It must neither block nor access the network.
    ///
    /// # Errors
    /// Returns an error message if the configuration is still invalid.
    fn build(&self, build: &Build<'_>) -> Result<Arc<dyn Plugin>, String>;

    /// Makes an instance for a stream route, if the kind has a schema for that scope.
    ///
    /// # Errors
    /// Returns an error message if the configuration is still invalid.
    fn build_flow(&self, _build: &Build<'_>) -> Result<Arc<dyn FlowPlugin>, String> {
        Err(format!("plugin {} is not for stream routes", self.name()))
    }

    /// Returns the upstreams that it serves instead of nodes.
    fn bridge(&self) -> Option<Bridge> {
        None
    }

    /// Returns the engine for scripts in resources, if it brings one.
    fn scripts(&self) -> Option<Arc<dyn Scripts>> {
        None
    }

    /// Returns the maker of its process-wide part. The maker gets the metadata with defaults filled in (`null` if
    /// missing). Returns None if there is no such part; then the metadata are not read. The maker must neither block
    /// nor access the network. It returns an error message if the metadata are still invalid.
    fn resident(&self) -> Option<MakeResident> {
        None
    }
}

impl std::fmt::Debug for dyn Kind + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kind").field(&self.name()).finish()
    }
}

impl Kind for Descriptor {
    fn name(&self) -> &str {
        self.name
    }

    fn version(&self) -> &str {
        self.version
    }

    fn priority(&self) -> i32 {
        self.priority
    }

    fn phases(&self) -> PhaseSet {
        self.phases
    }

    fn group(&self) -> &str {
        self.group
    }

    fn run_policy(&self) -> RunPolicy {
        self.run_policy
    }

    fn documentation(&self) -> Cow<'_, str> {
        if !self.doc.is_empty() {
            return Cow::Borrowed(self.doc);
        }
        let schema = (self.schema)();
        let described = schema.get("description").and_then(Value::as_str);
        Cow::Owned(described.unwrap_or_default().to_owned())
    }

    fn example(&self) -> &str {
        self.example
    }

    fn schema(&self, scope: PluginScope) -> Option<Value> {
        match scope {
            PluginScope::Http if self.is_for_streams_only() => None,
            PluginScope::Http => Some((self.schema)()),
            PluginScope::Consumer => self.auth.map(|auth| (auth.schema)()),
            PluginScope::Metadata => self.metadata_schema.map(|schema| schema()),
            PluginScope::Stream => self.flow.map(|flow| (flow.schema)()),
        }
    }

    fn attributes(&self) -> Option<Value> {
        self.attributes.map(|attributes| attributes())
    }

    fn authenticates(&self) -> bool {
        self.auth.is_some() || self.authenticates_by_children
    }

    fn guards(&self) -> bool {
        self.guards || self.authenticates()
    }

    fn identifies(&self) -> bool {
        self.identifies || self.authenticates()
    }

    fn names_persons(&self) -> bool {
        self.names_persons
    }

    fn identifying_field(&self) -> Option<&str> {
        self.auth.map(|auth| auth.attribute)
    }

    fn identity(&self, conf: &Value) -> Result<Data, String> {
        let auth =
            self.auth.ok_or_else(|| format!("plugin {} does not authenticate consumers", self.name))?;
        (auth.parse)(conf)
    }

    fn check(&self, scope: PluginScope, conf: &Value) -> Result<(), String> {
        let check = if scope == PluginScope::Stream { self.flow.map(|flow| flow.check) } else { self.check };
        check.map_or(Ok(()), |check| check(conf))
    }

    fn warnings(&self, scope: PluginScope, conf: &Value) -> Vec<Problem> {
        self.warnings.map(|warnings| warnings(scope, conf)).unwrap_or_default()
    }

    fn variables(&self) -> &[VariableField] {
        self.variables
    }

    fn has_upstreams(&self, scope: PluginScope) -> bool {
        self.upstreams_of(scope).is_some() || self.upstreams_by_metadata_of(scope).is_some()
    }

    fn upstreams(&self, scope: PluginScope, conf: &Value, metadata: &Value) -> Vec<InlineUpstream> {
        let mut all = self.upstreams_of(scope).map(|upstreams| upstreams(conf)).unwrap_or_default();
        if let Some(upstreams) = self.upstreams_by_metadata_of(scope) {
            all.extend(upstreams(conf, metadata));
        }
        all
    }

    fn files(&self) -> &[FileMember] {
        self.files
    }

    fn children(&self, conf: &Value) -> Vec<Child> {
        self.children.map(|children| children(conf)).unwrap_or_default()
    }

    fn group_field(&self) -> Option<&str> {
        self.group_field
    }

    fn owned_fields(&self, conf: &Value) -> Vec<OwnedField> {
        let mut fields = self.owned_fields.map(|fields| fields(conf)).unwrap_or_default();
        if self.authenticates() {
            fields.extend(CONSUMER_FIELDS.map(OwnedField::sole));
        }
        fields
    }

    fn credentials(&self, conf: &Value) -> Vec<Credential> {
        self.credentials.map(|credentials| credentials(conf)).unwrap_or_default()
    }

    fn endpoints(&self) -> &[Endpoint] {
        self.endpoints
    }

    fn bridge(&self) -> Option<Bridge> {
        self.bridge
    }

    fn scripts(&self) -> Option<Arc<dyn Scripts>> {
        self.scripts.map(|scripts| scripts())
    }

    fn build(&self, build: &Build<'_>) -> Result<Arc<dyn Plugin>, String> {
        (self.build)(build)
    }

    fn resident(&self) -> Option<MakeResident> {
        self.resident
    }

    fn build_flow(&self, build: &Build<'_>) -> Result<Arc<dyn FlowPlugin>, String> {
        let flow = self.flow.ok_or_else(|| format!("plugin {} is not for stream routes", self.name))?;
        (flow.build)(build)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_schema::plugins::PluginSchemas;

    use super::*;
    use crate::{Consumers, Local, Node, Phase, Reply, Resident, Residents, Roster};

    /// A kind from a script that is loaded at run time: nothing of it is known in advance.
    struct Script {
        name: String,
        status: u16,
    }

    impl Kind for Script {
        fn name(&self) -> &str {
            &self.name
        }

        fn priority(&self) -> i32 {
            10
        }

        fn phases(&self) -> PhaseSet {
            PhaseSet::of(&[Phase::Access])
        }

        fn documentation(&self) -> Cow<'_, str> {
            format!("Answers {}.", self.status).into()
        }

        fn schema(&self, scope: PluginScope) -> Option<Value> {
            let schema = json!({"type": "object", "properties": {"status": {
                "type": "integer", "minimum": 100, "default": self.status, "description": "The status."}}});
            (scope == PluginScope::Http).then_some(schema)
        }

        fn build(&self, build: &Build<'_>) -> Result<Arc<dyn Plugin>, String> {
            assert_eq!((build.plugin, build.kinds().len()), (&*self.name, 1));
            Ok(Arc::new(Answer(build.conf["status"].as_u64().unwrap_or_default() as u16)))
        }
    }

    struct Answer(u16);

    impl Plugin for Answer {
        fn access(&self, _: &mut Context, _: &Env<'_>) -> Step {
            Reply::new(self.0).into()
        }
    }

    /// A new roster has kinds that were added while the old roster stays in use.
    #[test]
    fn kinds_can_be_added_at_run_time() {
        let script = |status| Arc::new(Script { name: format!("script-{}", 1), status }) as Arc<dyn Kind>;
        let none = Roster::new([], None);
        let first = none.with([script(418)]);
        let second = first.with([script(451)]);
        assert!(!none.is_built_in("script-1") && none.names().is_empty());
        let run = |roster: &Roster, conf: Value| {
            roster.check("script-1", PluginScope::Http, &conf).map_err(|refusal| refusal.to_string())?;
            let (node, local, consumers) =
                (Arc::new(Node::default()), std::rc::Rc::new(Local::default()), Consumers::default());
            let entry =
                roster.build("script-1", &Arc::new(conf.clone()), conf, "r", &|_: &str| None, &node)?;
            let (env, mut ctx) = (Env::new(&node, &local, &consumers), Context::default());
            assert_eq!(entry.name(), "script-1");
            match entry.plugin.access(&mut ctx, &env) {
                Step::Reply(reply) => Ok(reply.status),
                _ => Err("no reply".to_owned()),
            }
        };
        assert_eq!(run(&first, json!({})), Ok(418));
        assert_eq!(run(&second, json!({})), Ok(451));
        assert_eq!(run(&second, json!({"status": 200})), Ok(200));
        assert!(run(&second, json!({"status": 1})).is_err());
        assert!(run(&none, json!({})).is_err());
        assert!(crate::docs::reference(&*second.kinds().next().unwrap().clone()).contains("Answers 451."));
    }

    struct Stays;

    impl Resident for Stays {}

    /// Every start asks all kinds for their process-wide part, and clients may wait for it. So no schema of metadata
    /// is made if there are no metadata.
    #[test]
    fn the_schema_of_metadata_waits_for_metadata() {
        const UNTOLD: Descriptor = Descriptor {
            name: "untold",
            metadata_schema: Some(|| panic!("nobody has written any")),
            build: |build| {
                build.metadata.is_null().then(|| Arc::new(Answer(200)) as _).ok_or_else(String::new)
            },
            ..Descriptor::BASE
        };
        const STAYS: Descriptor = Descriptor {
            name: "stays",
            resident: Some(|build| {
                build.metadata.is_null().then(|| Arc::new(Stays) as _).ok_or_else(String::new)
            }),
            ..UNTOLD
        };
        let roster = Roster::new([UNTOLD, STAYS].map(|kind| Arc::new(kind) as Arc<dyn Kind>), None);
        let node = Arc::new(Node::default());
        let residents = Residents::new(&roster, None, &|_| None, &node).unwrap();
        assert_eq!(format!("{residents:?}"), r#"["stays"]"#);
        let conf = Arc::new(json!({}));
        assert!(roster.build("untold", &conf, json!({}), "r", &|_: &str| None, &node).is_ok());
    }
}
