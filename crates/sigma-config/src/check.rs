//! Rules across fields (in APISIX: references, exclusive fields). They check the value, not the types, so that they
//! also find problems in an item with schema problems.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::file::include::Parts;
use crate::plugins::{BUILD_HINT, EnabledPlugins, unknown_plugin};
use crate::resources::kind::Kind;
use crate::resources::{EnabledPlugin, SECTIONS, split_credential};
use crate::rules::Object;
use crate::settings::crypt::Keyring;
use crate::settings::discovery::{self, Registry};
use crate::settings::profile::Profile;
use crate::settings::{RouterKind, UnknownFields};
use crate::stored::{self, duplicate_global_plugin, nested_members, references, wrong_ssl_type};
use crate::{ParseOptions, Surroundings, schema};
use sigma_schema::document::Document;
use sigma_schema::id::{Id, text_of_id};
use sigma_schema::plugins::{PluginSchemas, PluginScope};
use sigma_schema::problem::{Problem, closest, element, join, member};
use sigma_schema::validation;

/// The problems found so far.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Problems that stop the configuration.
    pub(crate) errors: Vec<Problem>,
    /// Problems that are only warnings.
    pub(crate) warnings: Vec<Problem>,
    /// Number of listeners in the document, before a listener for both address families becomes two.
    pub(crate) written_listeners: usize,
    /// The original format of a translated document.
    pub(crate) format: Option<&'static str>,
    /// The files that were joined to the document.
    pub(crate) parts: Parts,
}

/// Checks every rule of `document`, whose short forms are already expanded.
pub(crate) fn check(document: &Document, options: &ParseOptions<'_>, found: &mut Findings) {
    let Some(root) = document.value.as_object() else { return };
    let (list, streams) = (list_of::<EnabledPlugin>(root, "plugins"), list_of(root, "stream_plugins"));
    let plugins = EnabledPlugins::new(options.plugins, list.as_deref(), streams.as_deref());
    let plugins = &plugins.with_profile(Profile::of_document(root));
    let unknown = unknown_fields(document);
    let mut rules = Rules { document, options, plugins, unknown, found, root, known: known(root) };
    rules.settings();
    let acme = crate::rules::acme::of_document(root)
        .into_iter()
        .chain(crate::rules::listeners::of_document(root))
        .chain(crate::settings::of_document(root))
        .map(|problem| document.located(problem));
    rules.found.errors.extend(acme);
    rules.enabled_plugins(options.plugins);
    rules.attributes();
    for section in SECTIONS {
        rules.unique_ids(section);
        for (pointer, item) in items(root, section) {
            rules.item(kind_of(section, item), &pointer, item);
        }
    }
    rules.global_rules();
    rules.identities();
}

/// Returns the kind of an item of a section; credentials are among the consumers.
pub(crate) fn kind_of(section: &str, item: &Value) -> Kind {
    let kind = Kind::ALL.into_iter().find(|kind| kind.section() == section && *kind != Kind::Credential);
    let is_credential = || split_credential(item.get("id")?.as_str()?);
    match kind {
        Some(Kind::Consumer) if is_credential().is_some() => Kind::Credential,
        // The list has all sections.
        kind => kind.unwrap_or(Kind::Route),
    }
}

/// Returns the document's setting for unknown fields.
fn unknown_fields(document: &Document) -> UnknownFields {
    let word = document.value.get("compat").and_then(|compat| compat.get("unknown_fields"));
    // The schema refuses any other word.
    word.and_then(|word| UnknownFields::deserialize(word).ok()).unwrap_or_default()
}

/// Returns a list of enabled plugins if the file has it.
fn list_of<T: DeserializeOwned>(root: &Object, setting: &str) -> Option<Vec<T>> {
    let list = root.get(setting)?.as_array()?;
    Some(list.iter().filter_map(|item| serde_json::from_value(item.clone()).ok()).collect())
}

/// Returns the targets of references by kind and id. The map is built once, so that the check of a large file takes
/// linear time.
fn known(root: &Object) -> HashMap<Kind, HashMap<String, &Value>> {
    let mut known: HashMap<Kind, HashMap<String, &Value>> = HashMap::new();
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Credential) {
        let named = items(root, kind.section()).filter_map(|(_, item)| Some((id_of(item)?, item)));
        known.insert(kind, named.collect());
    }
    known
}

/// Returns the id of an item as text: 1 and "1" are equal. The id of a consumer is its name.
pub(crate) fn id_of(item: &Value) -> Option<String> {
    text_of_id(item.get("id").or_else(|| item.get("username"))?)
}

fn items<'a>(root: &'a Object, section: &str) -> impl Iterator<Item = (String, &'a Value)> {
    let list = root.get(section).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let section = section.to_owned();
    list.iter().enumerate().map(move |(index, item)| (element(&section, index), item))
}

fn objects<'a>(root: &'a Object, section: &str) -> impl Iterator<Item = (String, &'a Object)> {
    items(root, section).filter_map(|(pointer, item)| Some((pointer, item.as_object()?)))
}

struct Rules<'a> {
    document: &'a Document,
    options: &'a ParseOptions<'a>,
    /// The enabled plugins.
    plugins: &'a dyn PluginSchemas,
    /// The treatment of unknown fields.
    unknown: UnknownFields,
    found: &'a mut Findings,
    root: &'a Object,
    known: HashMap<Kind, HashMap<String, &'a Value>>,
}

impl Rules<'_> {
    fn error(
        &mut self,
        pointer: &str,
        code: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let problem = self.document.problem(pointer, code, message).hint(hint);
        self.found.errors.push(problem);
    }

    /// Reports an error, except in a standalone file, where APISIX accepts it.
    fn error_unless_standalone(&mut self, problem: Problem) {
        match self.options.standalone_mode {
            true => self.found.warnings.push(problem),
            false => self.found.errors.push(problem),
        }
    }

    fn settings(&mut self) {
        self.found.errors.extend(schema::problems(self.document));
        let mut taken: HashMap<String, String> = HashMap::new();
        let listeners: Vec<(String, &Object)> = objects(self.root, "listeners").collect();
        let single = |key: &str| Some((key.to_owned(), self.root.get(key)?.as_object()?));
        let singles = ["status", "admin", "control", "niubix_admin"].into_iter().filter_map(single);
        for (pointer, place) in listeners.into_iter().chain(singles.collect::<Vec<_>>()) {
            let Some(address) = place.get("address").and_then(Value::as_str) else { continue };
            // Port 0 is a different port each time.
            let parsed = address.parse::<SocketAddr>();
            if parsed.as_ref().is_ok_and(|address| address.port() == 0) {
                continue;
            }
            let mut canonical = parsed.map_or_else(|_| address.to_owned(), |address| address.to_string());
            if place.get("stream").and_then(Value::as_str) == Some("udp") {
                // UDP ports are separate from TCP ports.
                canonical.push_str("/udp");
            }
            // HTTP/3 has the UDP port of the same number.
            let quic = place.contains_key("http3").then(|| format!("{canonical}/udp"));
            let pointer = member(&pointer, "address");
            for canonical in std::iter::once(canonical).chain(quic) {
                if let Some(first) = taken.get(&canonical) {
                    let message = format!("{canonical} is already the address of {first}");
                    self.error(&pointer, "duplicate_address", message, "give each its own address");
                    continue;
                }
                taken.insert(canonical, pointer.clone());
            }
        }
        if self.root.get("listeners").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            self.error("listeners", "length", "the list is empty", "name a listener, or remove `listeners`");
        }
        let store = self.root.get("store").and_then(Value::as_object);
        for breach in store.map(crate::settings::store::breaches).unwrap_or_default() {
            self.error(&member("store", breach.field), "conflict", breach.message, breach.hint);
        }
        let discovery = self.root.get("discovery").and_then(Value::as_object);
        for (place, message, hint) in discovery.map(discovery::breaches).unwrap_or_default() {
            self.error(&join("discovery", &place), "conflict", message, hint);
        }
        let names_proxies = self.names_proxies();
        let client_address = self.root.get("client_address").and_then(Value::as_object);
        let breaches = client_address
            .map(|section| crate::settings::client_address_breaches(section, names_proxies))
            .unwrap_or_default();
        for (place, message, hint) in breaches {
            self.error(&join("client_address", place), "conflict", message, hint);
        }
        let level = self.root.get("error_log").and_then(|log| log.get("level")?.as_str());
        if let Some(wrong) = level.and_then(crate::settings::wrong_directive) {
            let message = format!("`{wrong}` is not a level");
            let words = crate::settings::LEVELS.join(", ");
            let hint = match closest(wrong, crate::settings::LEVELS) {
                Some(close) => format!("did you mean `{close}`?"),
                None if wrong.contains('/') => format!("write a file name to `path`; levels are {words}"),
                None => {
                    format!("levels are {words}, also for a part of the program: warn,sigma_upstream=debug")
                }
            };
            self.error("error_log.level", "enum", message, hint);
        }
        let keys = self.root.get("data_encryption").and_then(|part| part.get("keyring")?.as_array());
        for (index, key) in keys.into_iter().flatten().enumerate() {
            if let Some(Err(error)) = key.as_str().map(|key| Keyring::new(&[key.to_owned()])) {
                let place = element("data_encryption.keyring", index);
                self.error(&place, "length", error.to_string(), "openssl rand -hex 16 makes one of 32");
            }
        }
        for problem in crate::settings::variables::of_document(self.root) {
            self.found.errors.push(self.document.located(problem));
        }
        self.access_log();
        self.load_shedding();
        self.health_sharing();
        self.members();
        self.ticket_keys();
        let limit = |name| self.root.get("limits")?.get(name)?.as_u64();
        let defaults = crate::settings::Limits::default();
        let line = limit("request_line_bytes").unwrap_or(defaults.request_line_bytes.into());
        let head = limit("request_head_bytes").unwrap_or(defaults.request_head_bytes.into());
        if line > head {
            let message = format!("a request line of {line} bytes does not fit into a head of {head} bytes");
            self.error("limits.request_line_bytes", "conflict", message, "raise `request_head_bytes`");
        }
    }

    /// Refuses switches, which would be names of files.
    fn access_log(&mut self) {
        let path = self.root.get("access_log").and_then(|log| log.get("path")?.as_str()).unwrap_or_default();
        let hint = match path.to_ascii_lowercase().as_str() {
            "on" | "yes" | "true" | "enabled" => "write `stdout`, or the path of a file",
            "off" | "no" | "false" | "disabled" if path != "off" => "write `off`, which is the default",
            _ => return,
        };
        self.error("access_log.path", "enum", format!("`{path}` is not a path"), hint);
    }

    /// Without an etcd that the gateway may write to, the setting would have no effect.
    fn health_sharing(&mut self) {
        if self.root.get("health_sharing").is_none_or(Value::is_null) {
            return;
        }
        let store = |name| self.root.get("store")?.get(name)?.as_str();
        if store("kind") != Some("etcd") {
            let message = "gateways share node health through an etcd, and the store is not an etcd";
            self.error("health_sharing", "conflict", message, "set `store.kind: etcd`, or remove it");
        } else if store("access") == Some("read_only") {
            let message =
                "gateways share node health through the store, and this gateway may not write to it";
            self.error("health_sharing", "conflict", message, "set `store.access: read_write`, or remove it");
        }
    }

    /// The same for `report` and `ttl`; the id is also used without an etcd.
    fn members(&mut self) {
        let members = self.root.get("members");
        let says = |name: &str| members.and_then(|members| members.get(name)).cloned();
        let store = |name| self.root.get("store")?.get(name)?.as_str();
        let is_shared = store("kind") == Some("etcd") && store("access") != Some("read_only");
        if is_shared {
            return;
        }
        let message =
            "gateways register in an etcd, and the store is not an etcd that this gateway may write to";
        if says("report") == Some(Value::Bool(true)) {
            self.error("members.report", "conflict", message, "set `store.kind: etcd`, or remove it");
        }
        if says("ttl").is_some() {
            self.error("members.ttl", "conflict", message, "set `store.kind: etcd`, or remove it");
        }
    }

    /// Keys in a file or a store must be encrypted with a key that is not public.
    fn ticket_keys(&mut self) {
        let place = self.root.get("tls").and_then(|tls| tls.get("ticket_keys")?.as_str());
        let Some(place) = place.filter(|place| *place != "process") else { return };
        let field = "tls.ticket_keys";
        let store = |name| self.root.get("store")?.get(name)?.as_str();
        let keyring =
            self.root.get("data_encryption").and_then(|found| found.get("keyring")?.get(0)?.as_str());
        if keyring.is_none_or(|key| crate::settings::crypt::DEFAULT_KEYRING.contains(&key)) {
            let message = "ticket keys are encrypted with the first key of the keyring, which is public";
            self.error(field, "conflict", message, "set `data_encryption.keyring` to a key of your own");
        }
        let resumption = self.root["tls"].get("resumption").and_then(Value::as_str).map(str::to_owned);
        if resumption.is_some_and(|resumption| resumption != "tickets") {
            let message = "`tls.storage` has no effect: tickets are off";
            self.error(field, "conflict", message, "set `tls.resumption: tickets`, or remove it");
        }
        if place == "store" && store("kind") != Some("etcd") {
            let message = "gateways share ticket keys through an etcd, and the store is not an etcd";
            self.error(field, "conflict", message, "set `store.kind: etcd`, or `file`");
        } else if place == "store" && store("access") == Some("read_only") {
            let message = "this gateway may not write to its store, so it cannot store new keys there";
            self.error(field, "conflict", message, "set `store.access: read_write`, or `file`");
        } else if place == "file" && self.root["tls"].get("storage").and_then(Value::as_str) == Some("off") {
            let message = "there is no folder for the ticket keys";
            self.error(field, "conflict", message, "set `tls.storage` to a folder");
        }
    }

    /// A class must not be refused before a less important one.
    fn load_shedding(&mut self) {
        let defaults = crate::settings::LoadShedding::default();
        let written = |name| self.root.get("load_shedding")?.get(name)?.as_u64();
        let fields = [
            ("sheddable_percent", defaults.sheddable_percent),
            ("sheddable_plus_percent", defaults.sheddable_plus_percent),
            ("critical_percent", defaults.critical_percent),
        ];
        let values = fields.map(|(name, default)| (name, written(name).unwrap_or(default.into())));
        let Some([(lower, low), (higher, high)]) = values
            .windows(2)
            .filter_map(|pair| <[_; 2]>::try_from(pair).ok())
            .find(|[low, high]| low.1 > high.1)
        else {
            return;
        };
        let message = format!("`{lower}` is {low}, above `{higher}`, which is {high}");
        self.error("load_shedding", "conflict", message, "let the less important requests go first");
    }

    fn unique_ids(&mut self, section: &str) {
        let mut seen: HashMap<String, String> = HashMap::new();
        for (pointer, item) in items(self.root, section) {
            let Some(id) = id_of(item) else { continue };
            if let Some(first) = seen.get(&id) {
                let place = member(&pointer, "id");
                let message = format!("the id {id} is already used by {first}");
                let problem =
                    self.document.problem(&place, "duplicate_id", message).hint("choose another id");
                self.error_unless_standalone(problem);
            }
            seen.insert(id, pointer);
        }
    }

    /// Checks one item, by itself and among the others.
    fn item(&mut self, kind: Kind, pointer: &str, item: &Value) {
        let refused = stored::problems(kind, item, self.plugins, self.unknown);
        let refused = refused.into_iter().map(|problem| self.document.located(problem.within(pointer)));
        self.found.errors.extend(refused.collect::<Vec<_>>());
        let empty = Object::new();
        let object = item.as_object().unwrap_or(&empty);
        match kind {
            Kind::Route => self.listeners(pointer, object),
            Kind::Consumer => self.name(pointer, object),
            Kind::Credential => self.owner(pointer, object),
            Kind::Secret => self.identity(pointer, object),
            _ => {}
        }
        self.registry(kind, pointer, item);
        self.references(kind, pointer, item);
        self.warnings(kind, pointer, item);
    }

    /// Checks that the registry of an upstream has settings.
    fn registry(&mut self, kind: Kind, pointer: &str, item: &Value) {
        let (place, upstream) = match kind {
            Kind::Upstream => (pointer.to_owned(), Some(item)),
            _ => (member(pointer, "upstream"), item.get("upstream")),
        };
        let word = upstream.and_then(|upstream| upstream.get("discovery_type")?.as_str());
        let Some(Ok(registry)) = word.map(str::parse::<Registry>) else { return };
        let has_settings = self.root.get("discovery").and_then(|all| all.get(registry.word())).is_some();
        if registry != Registry::Dns && !has_settings {
            let message = format!("the registry `{registry}` has no settings");
            let hint = format!("write them at `discovery.{registry}`");
            self.error(&member(&place, "discovery_type"), "registry", message, hint);
        }
    }

    fn listeners(&mut self, pointer: &str, route: &Object) {
        if !route.contains_key("listeners") {
            return;
        }
        let known: HashSet<&str> = objects(self.root, "listeners")
            .filter_map(|(_, listener)| listener.get("name")?.as_str())
            .collect();
        let place = member(pointer, "listeners");
        let wanted = route.get("listeners").and_then(Value::as_array).into_iter().flatten().enumerate();
        for (index, name) in wanted {
            let Some(name) = name.as_str().filter(|name| !known.contains(name)) else { continue };
            let hint = match closest(name, known.iter().copied()) {
                Some(close) => format!("did you mean `{close}`?"),
                None => "give a listener this `name`".to_owned(),
            };
            self.error(&element(&place, index), "reference", format!("unknown listener `{name}`"), hint);
        }
    }

    /// Checks the references of one item.
    fn references(&mut self, kind: Kind, pointer: &str, item: &Value) {
        for reference in references(kind, item) {
            let known = self.known.get(&reference.kind);
            if known.is_some_and(|known| known.contains_key(&reference.id)) {
                let target = known.and_then(|known| known.get(&reference.id)).copied();
                let place = join(pointer, &reference.field);
                if reference.kind == Kind::Ssl
                    && target.and_then(|ssl| ssl.get("type")?.as_str()) != Some("client")
                {
                    let message = wrong_ssl_type(&reference.id);
                    self.error(&place, "reference", message, "name an ssl with `type: client`");
                }
                if reference.is_to_member() && target.is_some_and(|other| other.get("members").is_some()) {
                    let message = nested_members(&reference.id);
                    self.error(&place, "reference", message, "list the members of that upstream instead");
                }
                continue;
            }
            let section = reference.kind.section();
            // Sorted, so that the suggestion is always the same if two names are equally close.
            let mut known: Vec<&str> =
                known.into_iter().flat_map(|known| known.keys()).map(String::as_str).collect();
            known.sort_unstable();
            let hint = match closest(&reference.id, known) {
                Some(close) => format!("did you mean `{close}`?"),
                None => format!("add it to `{section}`, or use an existing one"),
            };
            let message = format!("there is no {} `{}`", reference.kind.word(), reference.id);
            let place = join(pointer, &reference.field);
            let problem = self.document.problem(&place, "reference", message).hint(hint);
            self.error_unless_standalone(problem);
        }
    }

    /// Collects the warnings about an item.
    fn warnings(&mut self, kind: Kind, pointer: &str, item: &Value) {
        let router = self.root.get("router").and_then(|router| router.get("http"));
        let around = Surroundings {
            plugins: self.plugins,
            unknown: self.unknown,
            // The schema refuses any other value.
            router: router.and_then(|router| RouterKind::deserialize(router).ok()).unwrap_or_default(),
            now: self.options.now,
            trusts_proxies: self.names_proxies(),
        };
        let found = stored::warnings(kind, id_of(item).as_deref(), item, &around);
        let found = found.into_iter().map(|problem| self.document.located(problem.within(pointer)));
        self.found.warnings.extend(found.collect::<Vec<_>>());
    }

    /// Returns whether `trusted_addresses` has entries.
    fn names_proxies(&self) -> bool {
        let list = self.root.get("trusted_addresses").and_then(Value::as_array);
        list.is_some_and(|list| !list.is_empty())
    }

    /// Checks process-wide settings of plugins, which may already be set for a plugin that is not enabled.
    fn attributes(&mut self) {
        let all = self.options.plugins;
        for (name, value) in self.root.get("plugin_attr").and_then(Value::as_object).into_iter().flatten() {
            let here = member("plugin_attr", name);
            let Some(schema) = all.attributes(name) else {
                let known: Vec<&str> =
                    all.names().into_iter().filter(|name| all.attributes(name).is_some()).collect();
                let hint = match closest(name, known.iter().copied()) {
                    Some(close) => format!("did you mean `{close}`?"),
                    None => "remove it; `sigma plugins` lists the plugins, and their pages list the settings"
                        .to_owned(),
                };
                self.error(&here, "unknown_key", format!("the plugin `{name}` has no `plugin_attr`"), hint);
                continue;
            };
            // Not written by users, but by plugins, whose tests compile it.
            let schema = validation::Schema::of_program(&schema).expect("the schema of attributes is one");
            let mistakes = schema.mistakes(value, &[]);
            if !mistakes.is_empty() {
                let located =
                    mistakes.into_iter().map(|problem| self.document.located(problem.within(&here)));
                self.found.errors.extend(located.collect::<Vec<_>>());
                continue;
            }
            for field in schema.unread(value, &[]) {
                let is_unknown = field.is_unknown();
                let problem = if is_unknown { field.refused() } else { field.ignored() };
                let problem = self.document.located(problem.within(&here));
                let list = if is_unknown { &mut self.found.errors } else { &mut self.found.warnings };
                list.push(problem);
            }
        }
    }

    fn name(&mut self, pointer: &str, consumer: &Object) {
        let id = consumer.get("id").and_then(Value::as_str);
        let name = consumer.get("username").and_then(Value::as_str);
        if name.is_some() && id.is_some() && id != name {
            self.error(&member(pointer, "id"), "conflict", "wrong username", "leave `id` out");
        }
    }

    fn owner(&mut self, pointer: &str, credential: &Object) {
        let id = credential.get("id").and_then(Value::as_str).unwrap_or_default();
        let Some((owner, _)) = split_credential(id) else { return };
        if !self.known.get(&Kind::Consumer).is_some_and(|known| known.contains_key(owner)) {
            let message = format!("consumer not found: {owner}");
            let problem = self.document.problem(&member(pointer, "id"), "reference", message);
            self.error_unless_standalone(problem.hint("add a consumer with this `username`"));
        }
    }

    /// Checks the id of a secret: a manager, and a name.
    fn identity(&mut self, pointer: &str, secret: &Object) {
        let Some(id) = secret.get("id").and_then(Value::as_str) else { return };
        if id.split_once('/').is_none_or(|(_, own)| own.parse::<Id>().is_err()) {
            let hint = "write `<manager>/<id>`, as in vault/1";
            self.error(&member(pointer, "id"), "pattern", format!("invalid secret id: {id}"), hint);
        }
    }

    /// Checks that a plugin is in at most one global rule; otherwise it would be unclear which one applies.
    fn global_rules(&mut self) {
        let mut seen: HashMap<&str, String> = HashMap::new();
        for (pointer, rule) in objects(self.root, "global_rules") {
            let id = rule.get("id").and_then(text_of_id).unwrap_or_default();
            for name in rule.get("plugins").and_then(Value::as_object).into_iter().flat_map(|p| p.keys()) {
                if let Some(first) = seen.get(name.as_str()) {
                    let place = member(&member(&pointer, "plugins"), name);
                    let message = duplicate_global_plugin(name, first);
                    self.error(&place, "duplicate_plugin", message, "keep one of the two");
                } else {
                    seen.insert(name, id.clone());
                }
            }
        }
    }

    /// Checks that consumers have different credentials.
    fn identities(&mut self) {
        let mut owners: HashMap<(&str, &str), (String, String)> = HashMap::new();
        for (pointer, item) in objects(self.root, "consumers") {
            let Some(id) = item.get("username").or_else(|| item.get("id")).and_then(text_of_id) else {
                continue;
            };
            let (owner, whose) = match split_credential(&id) {
                Some((owner, own)) => (owner.to_owned(), format!("credential: {own} of consumer: {owner}")),
                None => (id.clone(), format!("consumer: {id}")),
            };
            for (plugin, conf) in item.get("plugins").and_then(Value::as_object).into_iter().flatten() {
                let Some(attribute) = self.plugins.unique_attribute(plugin) else { continue };
                let value = conf.get(attribute).and_then(Value::as_str);
                let Some(value) = value.filter(|value| !validation::is_secret_reference(value)) else {
                    continue;
                };
                let known = owners.get(&(plugin.as_str(), value));
                if let Some((_, other)) = known.filter(|(other, _)| *other != owner) {
                    let place = member(&member(&member(&pointer, "plugins"), plugin), attribute);
                    let message = format!("duplicate {attribute} of plugin {plugin} found with {other}");
                    let problem = self.document.problem(&place, "duplicate_credential", message);
                    self.error_unless_standalone(problem.hint("give each consumer its own"));
                    continue;
                }
                owners.entry((plugin, value)).or_insert_with(|| (owner.clone(), whose.clone()));
            }
        }
    }

    /// Checks the lists of enabled plugins.
    fn enabled_plugins(&mut self, roster: &dyn PluginSchemas) {
        for (pointer, plugin) in objects(self.root, "plugins") {
            let Some(name) = plugin.get("name").and_then(Value::as_str) else { continue };
            let stream = plugin.get("stream") == Some(&Value::Bool(true));
            let scope = if stream { PluginScope::Stream } else { PluginScope::Http };
            self.enabled_plugin(&member(&pointer, "name"), name, scope, roster);
        }
        for (pointer, name) in items(self.root, "stream_plugins") {
            if let Some(name) = name.as_str() {
                self.enabled_plugin(&pointer, name, PluginScope::Stream, roster);
            }
        }
    }

    fn enabled_plugin(&mut self, place: &str, name: &str, scope: PluginScope, roster: &dyn PluginSchemas) {
        if roster.schema(name, scope).is_some() {
            return;
        }
        let mut others = roster.names();
        others.retain(|other| roster.schema(other, scope).is_some());
        let is_for_http = scope == PluginScope::Stream && roster.names().contains(&name);
        let hint = match closest(name, others) {
            _ if roster.left_out(name).is_some() => BUILD_HINT.to_owned(),
            Some(close) => format!("did you mean `{close}`?"),
            None if is_for_http => "remove it; stream routes have no such plugin".to_owned(),
            None => "remove it; this version has no such plugin".to_owned(),
        };
        let problem = self.document.problem(place, "unknown_plugin", unknown_plugin(name, roster));
        self.error_unless_standalone(problem.hint(hint));
    }
}
