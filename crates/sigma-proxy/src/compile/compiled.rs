//! The compiled form of one resource: its plugin instances, upstreams, identities and certificate.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use sigma_config::Config;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::plugins::unknown_plugin;
use sigma_config::resources::{self, Plugins, SslType};
use sigma_config::stored::wrong_ssl_type;
use sigma_plugin::descriptor::{InlineUpstream, inline_upstream_key};
use sigma_plugin::roster::{Lookup, unresolved};
use sigma_plugin::scripts::SCRIPT;
use sigma_plugin::{Consumer, Entry, FlowPlugin, Identity, Residents, Resource};
use sigma_schema::Problem;
use sigma_schema::id::Id;
use sigma_schema::plugins::{NO_SCRIPTS, PluginSchemas, PluginScope, ScriptForm};
use sigma_schema::problem::{element, member};

use super::certificates::Certificate;
use super::node_tls::NodeTls;
use super::sources::SecretSource;
use super::{Failure, State, Task};
use crate::snapshot::{Snapshot, Upstream};

/// The compiled form of one resource.
#[derive(Default)]
pub(super) struct Compiled {
    /// Its plugins.
    pub(super) entries: Box<[Arc<Entry>]>,
    /// Its upstreams: itself, an inline one, and those inside plugins.
    pub(super) upstreams: Box<[Arc<Upstream>]>,
    /// For a consumer or credential: its identifying keys.
    pub(super) identities: Box<[KeyOfIdentity]>,
    /// The regular expression of a route's path rewriting.
    pub(super) rewrite: Option<regex::bytes::Regex>,
    /// The plugins of a stream route, including its service's.
    pub(super) flows: Box<[Arc<Entry<dyn FlowPlugin>>]>,
    /// For an ssl: its certificate.
    pub(super) certificate: Option<Arc<Certificate>>,
}

/// An identifying key, before its consumer is known.
#[derive(Clone)]
pub(super) struct KeyOfIdentity {
    pub(super) kind: Arc<dyn sigma_plugin::Kind>,
    pub(super) key: Box<str>,
    pub(super) data: Arc<dyn std::any::Any + Send + Sync>,
}

impl KeyOfIdentity {
    /// Returns the identity of a consumer, by itself or by a credential.
    pub(super) fn of(&self, consumer: &Arc<Consumer>, credential: Option<&str>) -> Identity {
        Identity {
            consumer: Arc::clone(consumer),
            credential: credential.map(Box::from),
            data: Arc::clone(&self.data),
        }
    }
}

impl Task<'_> {
    /// Compiles all resources with plugins, upstreams, identities or a certificate.
    pub(super) fn compile_all(&mut self, before: &State) -> HashMap<ResourceKey, Arc<Compiled>> {
        let keys = self.config.resources.keys().into_iter();
        keys.filter_map(|key| Some((key.clone(), self.compile_one(&key, before)?))).collect()
    }

    /// Makes the process-wide parts of plugins; those with unchanged metadata are taken from `before`.
    pub(super) fn residents(&mut self, before: Option<&Snapshot>) -> Residents {
        let before = before.map(|before| &*before.residents);
        let (config, secrets) = (self.config, self.sources.secrets);
        let metadata_of = |plugin: &str| metadata(config, secrets, plugin);
        let made = Residents::new(self.roster, before, &metadata_of, self.node);
        made.unwrap_or_else(|refused| {
            self.failures.extend(refused.into_iter().map(|(plugin, reason)| {
                let key = ResourceKey { kind: Kind::PluginMetadata, id: plugin };
                let problem = Problem::new(key.to_string(), "plugin", reason);
                Failure { key: Some(key), problem }
            }));
            Residents::default()
        })
    }

    /// Compiles the rest of a closed resource: consumers still authenticate if possible, so that they get the right
    /// error.
    fn compile_closed(&mut self, key: &ResourceKey) -> Option<Arc<Compiled>> {
        let resources = &self.config.resources;
        let plugins = match key.kind {
            Kind::Consumer => &resources.consumers.get(&key.id)?.plugins,
            Kind::Ssl => return self.refused_names(key),
            _ => return None,
        };
        let failed = self.failures.len();
        let mut building = Building { key, old: None, upstreams: Vec::new(), task: self };
        let identities: Vec<KeyOfIdentity> = plugins
            .iter()
            .filter_map(|(name, conf)| {
                let kind =
                    building.task.roster.get(name).filter(|kind| kind.identifying_field().is_some())?;
                building.identity(&Arc::clone(kind), conf)
            })
            .collect();
        // Its error is known.
        self.failures.truncate(failed);
        Some(Arc::new(Compiled { identities: identities.into_boxed_slice(), ..Compiled::default() }))
    }

    /// Compiles one resource. Returns None if it does not exist or has nothing to compile. Unchanged parts are
    /// reused.
    pub(super) fn compile_one(&mut self, key: &ResourceKey, before: &State) -> Option<Arc<Compiled>> {
        if self.config.resources.is_closed(key) {
            return self.compile_closed(key);
        }
        if key.kind == Kind::Ssl {
            let old = before.compiled.get(key).and_then(|old| old.certificate.as_ref());
            let certificate = Some(self.certificate(key, old)?);
            return Some(Arc::new(Compiled { certificate, ..Compiled::default() }));
        }
        if key.kind == Kind::StreamRoute {
            return self.compile_flow(key, before);
        }
        let resources = &self.config.resources;
        let id = key.id.as_str();
        let (plugins, upstream): (Option<&Plugins>, Option<&Arc<resources::Upstream>>) = match key.kind {
            Kind::Route => resources.routes.get(id).map(|r| (Some(&r.plugins), r.upstream.as_ref()))?,
            Kind::Service => resources.services.get(id).map(|s| (Some(&s.plugins), s.upstream.as_ref()))?,
            Kind::Upstream => (None, Some(resources.upstreams.get(id)?)),
            Kind::PluginConfig => (Some(&resources.plugin_configs.get(id)?.plugins), None),
            Kind::ConsumerGroup => (Some(&resources.consumer_groups.get(id)?.plugins), None),
            Kind::GlobalRule => (Some(&resources.global_rules.get(id)?.plugins), None),
            Kind::Consumer => (Some(&resources.consumers.get(id)?.plugins), None),
            Kind::Credential => (Some(&resources.credentials.get(id)?.plugins), None),
            _ => return None,
        };
        let old = before.compiled.get(key);
        let mut building = Building { key, old: old.map(|old| &**old), upstreams: Vec::new(), task: self };
        if let Some(upstream) = upstream {
            let place = if key.kind == Kind::Upstream { String::new() } else { ".upstream".to_owned() };
            building.upstream(key.to_string(), &place, upstream);
        }
        let (mut entries, identities) = plugins.map(|plugins| building.plugins(plugins)).unwrap_or_default();
        entries.extend(building.script());
        let rewrite = building.rewrite();
        let upstreams = building.upstreams.into_boxed_slice();
        if entries.is_empty() && upstreams.is_empty() && identities.is_empty() && rewrite.is_none() {
            return None;
        }
        let identities = identities.into_boxed_slice();
        Some(Arc::new(Compiled {
            entries: entries.into_boxed_slice(),
            upstreams,
            identities,
            rewrite,
            ..Compiled::default()
        }))
    }
}

/// Returns the plugins of an existing resource.
fn plugins_of<'r>(resources: &'r resources::Resources, key: &ResourceKey) -> Option<&'r Plugins> {
    let id = key.id.as_str();
    match key.kind {
        Kind::Route => resources.routes.get(id).map(|route| &route.plugins),
        Kind::Service => resources.services.get(id).map(|service| &service.plugins),
        Kind::PluginConfig => resources.plugin_configs.get(id).map(|config| &config.plugins),
        Kind::ConsumerGroup => resources.consumer_groups.get(id).map(|group| &group.plugins),
        Kind::GlobalRule => resources.global_rules.get(id).map(|rule| &rule.plugins),
        Kind::Consumer => resources.consumers.get(id).map(|consumer| &consumer.plugins),
        Kind::Credential => resources.credentials.get(id).map(|credential| &credential.plugins),
        _ => None,
    }
}

/// Returns true if a plugin is disabled by its own configuration.
pub(super) fn is_off(conf: &Value) -> bool {
    conf.pointer("/_meta/disable") == Some(&Value::Bool(true))
}

/// Returns the remedy for a missing plugin.
fn unknown_plugin_hint(is_built_in: bool) -> &'static str {
    match is_built_in {
        true => "add it to `plugins`, or to `compat.ignored_plugins` if the route works without it",
        false => "this build lacks it; add it to `compat.ignored_plugins` if the route works without it",
    }
}

fn same_tls(a: &Option<Arc<NodeTls>>, b: &Option<Arc<NodeTls>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}

/// Returns the pointer of the upstream `wanted` within `value`, which is at `pointer`; the upstream may have
/// additional defaults.
fn place_in(value: &Value, wanted: &Value, pointer: &str) -> Option<String> {
    let names_nodes = ["nodes", "service_name"].iter().any(|name| value.get(name).is_some());
    if names_nodes && is_part(value, wanted) {
        return Some(pointer.to_owned());
    }
    match value {
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(at, item)| place_in(item, wanted, &element(pointer, at)))
        }
        Value::Object(map) => {
            map.iter().find_map(|(name, inner)| place_in(inner, wanted, &member(pointer, name)))
        }
        _ => None,
    }
}

/// Returns true if `whole` has all parts of `part`.
fn is_part(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            part.iter().all(|(name, value)| whole.get(name).is_some_and(|other| is_part(value, other)))
        }
        (Value::Array(part), Value::Array(whole)) => {
            part.len() == whole.len() && part.iter().zip(whole).all(|(part, whole)| is_part(part, whole))
        }
        (part, whole) => part == whole,
    }
}

pub(super) struct Building<'b, 't> {
    pub(super) key: &'b ResourceKey,
    pub(super) old: Option<&'b Compiled>,
    pub(super) upstreams: Vec<Arc<Upstream>>,
    pub(super) task: &'b mut Task<'t>,
}

impl Building<'_, '_> {
    pub(super) fn fail(&mut self, problem: Problem) {
        self.task.failures.push(Failure { key: Some(self.key.clone()), problem });
    }

    /// Compiles an upstream at `place` in the resource.
    pub(super) fn upstream(&mut self, key: String, place: &str, config: &Arc<resources::Upstream>) {
        let known = self.old.and_then(|old| old.upstreams.iter().find(|upstream| upstream.key == key));
        // Code that finds a problem knows the upstream's key, not its position.
        let own = self.key.to_string();
        let placed = |problem: Problem| match problem.pointer.strip_prefix(&key) {
            Some(within) => Problem { pointer: format!("{own}{place}{within}"), ..problem },
            None => problem,
        };
        let tls = match self.node_tls(&key, config, known) {
            Ok(tls) => tls,
            Err(problem) => return self.fail(placed(problem)),
        };
        let zone = self.task.config.settings.zone.as_deref();
        if let Some(same) =
            known.filter(|known| known.is_of(config, zone) && same_tls(&known.transport.tls, &tls))
        {
            return self.upstreams.push(Arc::clone(same));
        }
        match Upstream::compile(&key, config, tls, zone, self.task.sources.endpoints) {
            Ok(upstream) => self.upstreams.push(Arc::new(upstream.succeeding(known.map(|known| &**known)))),
            Err(problem) => self.fail(placed(problem)),
        }
    }

    fn node_tls(
        &mut self,
        key: &str,
        config: &resources::Upstream,
        known: Option<&Arc<Upstream>>,
    ) -> Result<Option<Arc<NodeTls>>, Problem> {
        let tls = config.tls.as_deref();
        let named = tls.and_then(|tls| tls.client_cert_id.as_ref());
        let client = named.map(|id| self.shown_to_nodes(id.as_str())).transpose();
        let client = client
            .map_err(|reason| Problem::new(format!("{key}.tls.client_cert_id"), "reference", reason))?;
        let settings = &self.task.config.settings;
        let before = known.and_then(|known| known.transport.tls.as_ref());
        NodeTls::compile(config, client.as_ref(), settings, before, &mut self.task.sources)
            .map_err(|reason| Problem::new(format!("{key}.tls"), "tls", reason))
    }

    /// Returns the ssl with the client certificate for nodes. An error is better than no certificate or an old one.
    fn shown_to_nodes(&self, id: &str) -> Result<Arc<resources::Ssl>, String> {
        let resources = &self.task.config.resources;
        let ssl =
            resources.ssls.get(id).ok_or_else(|| format!("the ssl `{id}` does not exist: create it"))?;
        if resources.is_closed(&ResourceKey::new(Kind::Ssl, id)) {
            return Err(format!("the ssl `{id}` is invalid itself"));
        }
        if ssl.kind != SslType::Client {
            return Err(wrong_ssl_type(id));
        }
        Ok(Arc::clone(ssl))
    }

    fn plugins(&mut self, plugins: &Plugins) -> (Vec<Arc<Entry>>, Vec<KeyOfIdentity>) {
        let (mut entries, mut identities) = (Vec::new(), Vec::new());
        for (name, conf) in plugins.iter() {
            let Some(kind) = self.task.roster.get(name).cloned() else {
                if !is_off(conf) && !self.task.roster.is_ignored(name) {
                    self.refuse_unknown(name);
                }
                continue;
            };
            let personal = matches!(self.key.kind, Kind::Consumer | Kind::Credential);
            if personal && kind.identifying_field().is_some() {
                if is_off(conf) {
                    continue;
                }
                if let Some(identity) = self.identity(&kind, conf) {
                    self.plugin_upstreams(&kind, PluginScope::Consumer, conf);
                    identities.push(identity);
                }
                continue;
            }
            if !is_off(conf) {
                self.plugin_upstreams(&kind, PluginScope::Http, conf);
            }
            entries.extend(self.entry(name, conf));
        }
        (entries, identities)
    }

    /// Compiles the upstreams inside a plugin's configuration.
    pub(super) fn plugin_upstreams(
        &mut self,
        kind: &Arc<dyn sigma_plugin::Kind>,
        scope: PluginScope,
        conf: &Value,
    ) {
        if !kind.has_upstreams(scope) {
            return;
        }
        let mut revealed = conf.clone();
        self.task.sources.secrets.reveal(&mut revealed);
        let metadata = self.metadata(kind.name()).map_or(Value::Null, |metadata| Value::clone(&metadata));
        for inline in self.task.roster.upstreams_with(kind.name(), scope, revealed, metadata) {
            self.plugin_upstream(kind.name(), conf, &inline);
        }
    }

    fn plugin_upstream(&mut self, plugin: &str, conf: &Value, inline: &InlineUpstream) {
        let key = inline_upstream_key(&self.resource(), plugin, &inline.name);
        match serde_json::from_value::<resources::Upstream>(inline.upstream.clone()) {
            Ok(upstream) => {
                let plugin = member("plugins", plugin);
                // An upstream that the plugin derives from other fields has no position.
                let place = place_in(conf, &inline.upstream, &plugin).unwrap_or(plugin);
                self.upstream(key, &format!(".{place}"), &Arc::new(upstream));
            }
            Err(error) => {
                let place = format!("{}.plugins.{plugin}.{}", self.key, inline.name);
                self.fail(Problem::new(place, "invalid", error.to_string()));
            }
        }
    }

    fn entry(&mut self, name: &str, conf: &Arc<Value>) -> Option<Arc<Entry>> {
        let known = self.old.and_then(|old| old.entries.iter().find(|e| e.name() == name));
        let is_same = |known: &&Arc<Entry>| {
            let stays = |entry: &Entry| {
                let same = |(id, proto): &(Id, Option<Resource>)| self.proto(id) == *proto;
                entry.metadata == self.metadata(entry.name()) && entry.protos.iter().all(same)
            };
            known.conf == *conf
                && stays(known)
                && known.children.iter().all(|child| stays(child))
                && !self.task.sources.secrets.has_changed(conf)
        };
        if let Some(same) = known.filter(is_same).filter(|_| !self.task.is_renewed) {
            return Some(Arc::clone(same));
        }
        let mut revealed = Value::clone(conf);
        self.task.sources.secrets.reveal(&mut revealed);
        let task = &*self.task;
        match task.roster.build(name, conf, revealed, &self.resource(), self, task.node) {
            Ok(entry) => Some(Arc::new(entry)),
            Err(reason) => {
                self.refuse(name, reason);
                None
            }
        }
    }

    /// Compiles the script of a route or service.
    fn script(&mut self) -> Option<Arc<Entry>> {
        let resources = &self.task.config.resources;
        let script = match self.key.kind {
            Kind::Route => resources.routes.get(&self.key.id).map(|route| &route.script)?,
            Kind::Service => resources.services.get(&self.key.id).map(|service| &service.script)?,
            _ => return None,
        };
        let text = (!script.is_unset()).then(|| script.text())?;
        let known = self.old.and_then(|old| old.entries.iter().find(|entry| entry.name() == SCRIPT));
        if let Some(same) = known.filter(|known| *known.conf == *text) {
            return Some(Arc::clone(same));
        }
        let Some(scripts) = self.task.roster.scripts() else {
            let place = format!("{}.script", self.key);
            self.fail(Problem::new(place, "script", NO_SCRIPTS));
            return None;
        };
        if let Err(reason) = scripts.check(ScriptForm::Script, text) {
            let place = format!("{}.script", self.key);
            self.fail(Problem::new(place, "script", reason));
            return None;
        }
        Some(Arc::new(scripts.script(&self.resource(), text)))
    }

    /// Compiles an identity; a failing one is omitted, so that it grants no access.
    fn identity(&mut self, kind: &Arc<dyn sigma_plugin::Kind>, conf: &Arc<Value>) -> Option<KeyOfIdentity> {
        let mut revealed = Value::clone(conf);
        self.task.sources.secrets.reveal(&mut revealed);
        match self.task.roster.identity(kind.name(), &revealed)? {
            Ok((key, data)) => Some(KeyOfIdentity { kind: Arc::clone(kind), key: key.into(), data }),
            // Its manager does not return the secret (any more); the look-up has reported that. The old value must
            // not be kept: a revoked key would still give access.
            Err(_) if unresolved(&revealed).is_some() => None,
            Err(reason) => {
                self.refuse(kind.name(), reason);
                None
            }
        }
    }

    /// Rejects a plugin that is unknown; it may be a guard.
    pub(super) fn refuse_unknown(&mut self, plugin: &str) {
        let place = format!("{}.plugins.{plugin}", self.key);
        let hint = unknown_plugin_hint(self.task.roster.is_built_in(plugin));
        let message = unknown_plugin(plugin, &**self.task.roster);
        self.fail(Problem::new(place, "unknown_plugin", message).hint(hint));
    }

    pub(super) fn refuse(&mut self, plugin: &str, reason: String) {
        let place = format!("{}.plugins.{plugin}", self.key);
        let text = format!("failed to check the configuration of plugin {plugin} err: {reason}");
        self.fail(Problem::new(place, "plugin", text));
    }

    /// Returns the prefix of its plugins' counters: the key in APISIX's store.
    fn resource(&self) -> String {
        format!("/apisix/{}", self.key)
    }

    fn rewrite(&mut self) -> Option<regex::bytes::Regex> {
        if self.key.kind != Kind::Route {
            return None;
        }
        let route = self.task.config.resources.routes.get(&self.key.id)?;
        let rewrite = route.rewrite.as_ref()?;
        match regex::bytes::Regex::new(&rewrite.regex) {
            Ok(regex) => Some(regex),
            Err(error) => {
                let place = format!("{}.rewrite.regex", self.key);
                self.fail(Problem::new(place, "regex", error.to_string()));
                None
            }
        }
    }
}

impl Lookup for Building<'_, '_> {
    fn metadata(&self, plugin: &str) -> Option<Arc<Value>> {
        metadata(self.task.config, self.task.sources.secrets, plugin)
    }

    fn proto(&self, id: &Id) -> Option<Resource> {
        self.task.config.resources.protos.get(id.as_str()).cloned().map(Resource::new)
    }

    fn written(&self, resource: &str, plugin: &str) -> Option<Arc<Value>> {
        let key = ResourceKey::parse(resource.strip_prefix("/apisix/")?)?;
        let resources = &self.task.config.resources;
        if resources.is_closed(&key) {
            return None;
        }
        plugins_of(resources, &key)?
            .iter()
            .find(|(name, _)| &***name == plugin)
            .map(|(_, conf)| Arc::clone(conf))
    }
}

/// Returns the metadata of a plugin, with resolved secrets.
pub(super) fn metadata(config: &Config, secrets: &dyn SecretSource, plugin: &str) -> Option<Arc<Value>> {
    let metadata = config.resources.plugin_metadata.get(plugin)?;
    let mut revealed = Value::Object(metadata.settings.as_ref().clone());
    secrets.reveal(&mut revealed);
    Some(Arc::new(revealed))
}
