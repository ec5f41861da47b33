//! Compilation of a checked configuration to a [`Snapshot`], as a whole or as a change.
//!
//! A change has two steps. The first makes everything fallible: plugin instances, upstreams, consumers; it changes
//! nothing. The second places them in a copy of the previous snapshot, which shares all unchanged parts. So the cost
//! depends on the change, and a failure leaves no trace.
//!
//! | file | content |
//! |---|---|
//! | `compiled` | plugins and upstreams of one resource |
//! | `routes` | routes: merged parts, and their place |
//! | `flows` | the same of stream routes |
//! | `certificates` | server certificates, and the demands of listeners |
//! | `revocation` | revocation checks of client certificates |
//! | `node_tls` | TLS towards the nodes of an upstream |
//! | `consumers` | consumers and their identities |
//! | `sources` | the inputs from outside |
//! | `trial` | trial compilation of one resource |

pub(crate) mod cache;
mod certificates;
mod compiled;
mod consumers;
mod flows;
pub(crate) mod node_tls;
mod revocation;
mod routes;
mod sources;
#[cfg(test)]
pub(crate) mod tests;
mod trial;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::settings::{AccessLog, ListenAddress, Listener, Settings, variables};
use sigma_config::{Config, resources};
use sigma_observe::access::{AccessFormat, FormatError};
use sigma_observe::field::Field;
use sigma_plugin::{Chain, Consumers, Node, Roster, credentials};
use sigma_schema::Problem;
use sigma_schema::expr::VarName;
use sigma_schema::expr::known::Subject;

use crate::edge::connection::dial_limits;
use crate::route::Router;
use crate::route::normalize::UriOptions;
use crate::snapshot::slots::{Numbers, Slots};
use crate::snapshot::{Snapshot, Untrusted, Upstream};

use compiled::Compiled;
use routes::Placed;

pub(crate) use certificates::Sessions;
pub(crate) use routes::route_inputs;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use sources::NoFiles;
pub use sources::{
    CertificateSource, EndpointSource, FileSource, NoCertificates, NoSecrets, SecretSource, Sources,
    StapleWish, key_passphrases,
};
pub use trial::try_out;

/// The reason why a resource is rejected. The key names the resource that must stay unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The resource; None for the settings.
    pub key: Option<ResourceKey>,
    /// The problem.
    pub problem: Problem,
}

/// Compiles one configuration after another, and keeps the parts that the next one can share.
#[derive(Clone)]
pub struct Compiler {
    roster: Arc<Roster>,
    node: Arc<Node>,
    sessions: Option<Arc<Sessions>>,
    state: State,
    /// The plugins have changed since the last snapshot, so its instances are not reused.
    is_renewed: bool,
}

/// The identity of a consumer: the plugin, and the key there.
type Recognised = (Arc<dyn sigma_plugin::Kind>, Box<str>);

/// The compiler's state after the last snapshot.
#[derive(Clone, Default)]
struct State {
    /// Compiled forms of resources with plugins or inline upstreams, including routes.
    compiled: HashMap<ResourceKey, Arc<Compiled>>,
    /// By id.
    routes: HashSet<Placed>,
    route_numbers: Numbers,
    /// Numbers of upstreams by key.
    upstreams: HashMap<Box<str>, u32>,
    upstream_numbers: Numbers,
    /// The numbers of routes that name a service, an upstream or a plugin config.
    referrers: HashMap<ResourceKey, BTreeSet<u32>>,
    /// The stream routes, by id.
    flows: HashMap<Box<str>, flows::PlacedFlow>,
    /// The plugins and keys of each consumer.
    recognised: HashMap<Box<str>, Vec<Recognised>>,
    /// The shared chain of all routes without plugins.
    no_plugins: Arc<Chain>,
    snapshot: Option<Arc<Snapshot>>,
}

/// A snapshot, and the parts that were removed.
#[derive(Debug)]
pub struct Changed {
    /// The snapshot.
    pub snapshot: Arc<Snapshot>,
    /// Keys of removed upstreams; None after a full compilation.
    pub gone: Option<Vec<String>>,
}

/// The inputs of one compilation, and the failures so far.
struct Task<'a> {
    config: &'a Config,
    roster: &'a Arc<Roster>,
    node: &'a Arc<Node>,
    sessions: Arc<Sessions>,
    sources: Sources<'a>,
    failures: Vec<Failure>,
    /// Instances of the last snapshot are not reused.
    is_renewed: bool,
}

impl Compiler {
    /// Returns a compiler with these plugins.
    pub fn new(roster: Arc<Roster>, node: Arc<Node>) -> Compiler {
        Compiler { roster, node, sessions: None, state: State::default(), is_renewed: false }
    }

    /// Sets the sessions that clients can resume.
    pub(crate) fn resuming(self, sessions: Option<Arc<Sessions>>) -> Compiler {
        Compiler { sessions, ..self }
    }

    /// Returns a compiler with other plugins. It makes all instances of plugins again, and keeps the rest.
    #[must_use]
    pub fn with_roster(&self, roster: Arc<Roster>) -> Compiler {
        Compiler { roster, is_renewed: true, ..self.clone() }
    }

    /// Returns the plugins.
    pub fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    /// Compiles a whole configuration. Returns the compiler for later changes, once the snapshot is in force.
    /// Unchanged instances and upstreams keep all their state.
    ///
    /// # Errors
    /// Returns an error if the configuration cannot be compiled: all problems that its check could not see.
    pub fn compile(
        &self,
        config: &Config,
        revision: u64,
        mut sources: Sources<'_>,
    ) -> Result<(Compiler, Arc<Snapshot>), Vec<Failure>> {
        let given = sources.files.ticket_keys();
        let sessions = Sessions::of(&config.settings.tls, given, self.sessions.as_ref())
            .map_err(|problem| vec![Failure { key: None, problem }])?;
        let geography = sources.geography.clone();
        let mut task = self.task(config, &sessions, sources.reborrow());
        let challenges = task.sources.ordered.and_then(CertificateSource::challenges);
        let (access_format, stream_format) = formats(&config.settings, &mut task.failures);
        let listeners = task.compile_listeners();
        let residents = task.residents(self.state.snapshot.as_deref());
        let compiled = task.compile_all(&self.state);
        if !task.failures.is_empty() {
            return Err(task.failures);
        }
        let mut state = State { compiled, ..State::default() };
        let sessions_kept = Some(Arc::clone(&sessions));
        let mut snapshot = Snapshot {
            revision,
            listeners,
            sessions: sessions_kept,
            geography,
            challenges,
            residents: Arc::new(residents),
            router: Router::with_scripts(config.settings.router.http, self.roster.scripts().cloned()),
            bridges: self.roster.kinds().filter_map(|kind| kind.bridge()).collect(),
            ..empty(config, access_format, stream_format)
        };
        state.place_all(&mut snapshot, config);
        let snapshot = Arc::new(snapshot);
        state.snapshot = Some(Arc::clone(&snapshot));
        let (roster, node) = (Arc::clone(&self.roster), Arc::clone(&self.node));
        let next = Compiler { roster, node, sessions: Some(sessions), state, is_renewed: false };
        Ok((next, snapshot))
    }

    /// Compiles a configuration that differs from the previous one only in these resources.
    ///
    /// # Errors
    /// Returns an error if some of them cannot be compiled; the compiler is unchanged then.
    pub fn change(
        &mut self,
        config: &Config,
        changed: &[ResourceKey],
        revision: u64,
        mut sources: Sources<'_>,
    ) -> Result<Changed, Vec<Failure>> {
        let whole =
            changed.iter().any(|key| matches!(key.kind, Kind::PluginMetadata | Kind::Proto | Kind::Secret));
        let (before, sessions) = match (&self.state.snapshot, &self.sessions) {
            (Some(before), Some(sessions)) if !whole => (Arc::clone(before), Arc::clone(sessions)),
            _ => {
                let (next, snapshot) = self.compile(config, revision, sources)?;
                *self = next;
                return Ok(Changed { snapshot, gone: None });
            }
        };
        let changed = self.state.with_dependents(config, changed);
        let geography = sources.geography.clone();
        let mut task = self.task(config, &sessions, sources.reborrow());
        let compiled: Vec<(ResourceKey, Option<Arc<Compiled>>)> =
            changed.iter().map(|key| (key.clone(), task.compile_one(key, &self.state))).collect();
        if !task.failures.is_empty() {
            return Err(task.failures);
        }
        let mut snapshot = Snapshot::clone(&before);
        (snapshot.revision, snapshot.geography) = (revision, geography);
        let gone = self.state.place_changed(&mut snapshot, config, compiled);
        Ok(Changed { snapshot: self.keep(snapshot), gone: Some(gone) })
    }

    fn keep(&mut self, snapshot: Snapshot) -> Arc<Snapshot> {
        let snapshot = Arc::new(snapshot);
        self.state.snapshot = Some(Arc::clone(&snapshot));
        snapshot
    }

    fn task<'a>(&'a self, config: &'a Config, sessions: &Arc<Sessions>, sources: Sources<'a>) -> Task<'a> {
        let sources = Sources { passphrases: sources::key_passphrases(&config.settings.tls), ..sources };
        let sessions = Arc::clone(sessions);
        let (roster, node, is_renewed) = (&self.roster, &self.node, self.is_renewed);
        Task { config, roster, node, sessions, sources, failures: Vec::new(), is_renewed }
    }
}

impl State {
    /// Places everything in an empty snapshot.
    fn place_all(&mut self, snapshot: &mut Snapshot, config: &Config) {
        for compiled in self.compiled.values().cloned().collect::<Vec<_>>() {
            self.place_upstreams(snapshot, &compiled.upstreams);
        }
        self.place_global(snapshot, config);
        self.place_certificates(snapshot, config);
        for consumer in config.resources.consumers.iter() {
            self.place_consumer(snapshot, config, &consumer.username);
        }
        let names = Arc::clone(&snapshot.listener_names);
        snapshot.router = snapshot.router.clone().with_routes(route_inputs(config, &names));
        for (order, route) in config.resources.routes.ordered() {
            let number = self.route_numbers.take();
            self.place_route(snapshot, config, route, number, order);
        }
        // After the routes, whose numbers are their positions in the router.
        let flows: Vec<Box<str>> =
            config.resources.stream_routes.iter().map(|r| r.id.as_str().into()).collect();
        self.place_flows(snapshot, config, &flows);
    }

    /// Places the changes; returns the keys of removed upstreams.
    fn place_changed(
        &mut self,
        snapshot: &mut Snapshot,
        config: &Config,
        changed: Vec<(ResourceKey, Option<Arc<Compiled>>)>,
    ) -> Vec<String> {
        let mut gone = Vec::new();
        let mut routes: BTreeSet<Box<str>> = BTreeSet::new();
        let mut consumers: BTreeSet<Box<str>> = BTreeSet::new();
        let mut flows: BTreeSet<Box<str>> = BTreeSet::new();
        let (mut global, mut certificates) = (false, false);
        for (key, compiled) in changed {
            let before = match compiled {
                Some(compiled) => {
                    self.place_upstreams(snapshot, &compiled.upstreams);
                    self.compiled.insert(key.clone(), compiled)
                }
                None => self.compiled.remove(&key),
            };
            gone.extend(self.displace_upstreams(snapshot, &key, before.as_deref()));
            match key.kind {
                Kind::Route => drop(routes.insert(key.id.into())),
                Kind::Service | Kind::PluginConfig => {
                    let numbers = self.referrers.get(&key).into_iter().flatten();
                    routes
                        .extend(numbers.filter_map(|number| Some(snapshot.route(*number)?.facts.id.clone())));
                }
                Kind::Consumer => drop(consumers.insert(key.id.into())),
                Kind::Credential => consumers.extend(key.id.split('/').next().map(Box::from)),
                Kind::ConsumerGroup => consumers.extend(consumers::members(config, &key.id)),
                Kind::GlobalRule => global = true,
                Kind::Ssl => certificates = true,
                Kind::StreamRoute => drop(flows.insert(key.id.into())),
                _ => {}
            }
        }
        for name in consumers {
            self.place_consumer(snapshot, config, &name);
        }
        if certificates {
            self.place_certificates(snapshot, config);
        }
        if !flows.is_empty() {
            self.place_flows(snapshot, config, &Vec::from_iter(flows));
        }
        if global {
            self.place_global(snapshot, config);
            routes
                .extend(self.routes.iter().map(Placed::id).filter(|id| self.has_plugins(id)).map(Box::from));
        }
        self.replace_routes(snapshot, config, &routes);
        gone
    }

    /// Returns the changed keys and their dependents: resources with upstreams that use the certificate of a changed
    /// ssl, and stream routes with plugins or an upstream of a changed service.
    fn with_dependents(&self, config: &Config, changed: &[ResourceKey]) -> Vec<ResourceKey> {
        let mut all = changed.to_vec();
        for key in changed.iter().filter(|key| matches!(key.kind, Kind::Service | Kind::Upstream)) {
            let of_it = |route: &&Arc<resources::StreamRoute>| match key.kind {
                Kind::Upstream => flows::names_upstream(config, route, &key.id),
                _ => route.service_id.as_ref().is_some_and(|id| id.as_str() == key.id),
            };
            let dependents = config.resources.stream_routes.iter().filter(of_it);
            let keys = dependents.map(|route| ResourceKey::new(Kind::StreamRoute, route.id.as_str()));
            all.extend(keys.filter(|key| !changed.contains(key)));
        }
        for ssl in changed.iter().filter(|key| key.kind == Kind::Ssl) {
            let shows = |upstream: &Arc<Upstream>| {
                let tls = upstream.config.tls.as_deref();
                tls.and_then(|tls| tls.client_cert_id.as_ref()).is_some_and(|id| id.as_str() == ssl.id)
            };
            let dependents =
                self.compiled.iter().filter(|(_, compiled)| compiled.upstreams.iter().any(shows));
            all.extend(dependents.map(|(key, _)| key.clone()).filter(|key| !changed.contains(key)));
        }
        all
    }

    fn has_plugins(&self, route: &str) -> bool {
        let number = self.routes.get(route).map(|placed| placed.number);
        let before = self.snapshot.as_ref().zip(number);
        before.and_then(|(snapshot, n)| snapshot.route(n)).is_some_and(|route| !route.chain.is_empty())
    }

    fn place_global(&self, snapshot: &mut Snapshot, config: &Config) {
        let rules = config.resources.global_rules.iter();
        let compiled =
            rules.filter_map(|rule| self.compiled.get(&ResourceKey::new(Kind::GlobalRule, rule.id.as_str())));
        let mut rules_kept = config.resources.global_rules.iter();
        snapshot.closed = rules_kept
            .any(|rule| config.resources.is_closed(&ResourceKey::new(Kind::GlobalRule, rule.id.as_str())));
        snapshot.global =
            Arc::new(Chain::new(compiled.flat_map(|compiled| compiled.entries.iter().cloned())));
    }

    fn place_upstreams(&mut self, snapshot: &mut Snapshot, upstreams: &[Arc<Upstream>]) {
        for upstream in upstreams {
            let number = self.upstream_number(&upstream.key);
            snapshot.upstreams.set(number, Some(Arc::clone(upstream)));
            if !is_private(&upstream.key) {
                snapshot.upstream_numbers.insert_mut(upstream.key.as_str().into(), number);
            }
        }
    }

    /// Removes the former upstreams of a resource; returns their keys.
    fn displace_upstreams(
        &mut self,
        snapshot: &mut Snapshot,
        key: &ResourceKey,
        before: Option<&Compiled>,
    ) -> Vec<String> {
        let mut gone = Vec::new();
        let now = self.compiled.get(key);
        for upstream in before.map_or(&[][..], |compiled| &compiled.upstreams) {
            if now.is_some_and(|now| now.upstreams.iter().any(|other| other.key == upstream.key)) {
                continue;
            }
            gone.push(upstream.key.clone());
            if let Some(number) = self.upstreams.get(&*upstream.key).copied() {
                snapshot.upstreams.set(number, None);
                snapshot.upstream_numbers.remove_mut(&*upstream.key);
                // A name with references keeps its number: it may come back.
                if !self.referrers.contains_key(key) {
                    self.upstreams.remove(&*upstream.key);
                    self.upstream_numbers.give(number);
                }
            }
        }
        gone
    }

    /// Frees the number of a missing upstream without references.
    fn forget_absent_upstream(&mut self, key: &ResourceKey) {
        if key.kind == Kind::Upstream
            && !self.compiled.contains_key(key)
            && let Some(number) = self.upstreams.remove(key.to_string().as_str())
        {
            self.upstream_numbers.give(number);
        }
    }

    fn upstream_number(&mut self, key: &str) -> u32 {
        if let Some(number) = self.upstreams.get(key) {
            return *number;
        }
        let number = self.upstream_numbers.take();
        self.upstreams.insert(key.into(), number);
        number
    }
}

/// Returns true if only its route or service refers to an upstream.
fn is_private(key: &str) -> bool {
    !key.starts_with("upstreams/") && !key.contains('#')
}

/// Returns a snapshot that serves nothing yet.
fn empty(
    config: &Config,
    access_format: Option<Arc<AccessFormat>>,
    stream_format: Option<Arc<AccessFormat>>,
) -> Snapshot {
    Snapshot {
        revision: 0,
        settings: Arc::new(config.settings.clone()),
        dial_limits: Arc::new(dial_limits(&config.settings)),
        router: Router::compile(config.settings.router.http, []),
        uri_options: UriOptions::from(&config.settings.router),
        routes: Slots::default(),
        upstreams: Slots::default(),
        upstream_numbers: rpds::HashTrieMapSync::default(),
        global: Arc::default(),
        closed: false,
        consumers: Consumers::default(),
        access_format,
        stream_format,
        flows: Arc::default(),
        listener_names: listener_names(&config.settings),
        https_port: https_port(&config.settings),
        listeners: Arc::default(),
        certificates: Arc::default(),
        challenges: None,
        sessions: None,
        geography: None,
        definitions: variables::definitions(&config.settings.variables),
        residents: Arc::default(),
        bridges: Arc::default(),
        untrusted: Arc::new(Untrusted::new(&config.settings)),
    }
}

fn listener_names(settings: &Settings) -> Arc<[String]> {
    let names: BTreeSet<String> = settings.listeners.iter().filter_map(|l| l.name.clone()).collect();
    names.into_iter().collect()
}

fn https_port(settings: &Settings) -> Option<u16> {
    let serves = |listener: &&Listener| listener.tls.is_some() && listener.stream.is_none();
    let secure = settings.listeners.iter().filter(serves);
    let ports = secure.filter_map(|listener| match &listener.address {
        ListenAddress::Tcp(address) => Some(address.port()),
        ListenAddress::Unix(_) => None,
    });
    ports.min()
}

/// Returns true if an exchange may have a variable of this name that is not a field of the access log.
fn is_variable(name: &str) -> bool {
    // Loggers that collect the response body have it.
    name != "resp_body" && VarName::parse(name).unknown().is_none()
}

/// Returns true if the access log has a field of this name, which need not be a variable elsewhere.
fn is_field(name: &VarName) -> bool {
    Field::from_name(&name.to_string()).is_some()
}

/// Returns true if a session may have a variable of this name.
fn is_session_variable(name: &str) -> bool {
    VarName::parse(name).unknown_of(Subject::Session).is_none()
}

/// Returns the formats of the access log: for exchanges, and for sessions.
fn formats(
    settings: &Settings,
    failures: &mut Vec<Failure>,
) -> (Option<Arc<AccessFormat>>, Option<Arc<AccessFormat>>) {
    let AccessLog { path, format, stream_format, condition, stream_if, log_credentials, .. } =
        &settings.access_log;
    if path == "off" {
        return (None, None);
    }
    let of_exchanges = |name: &VarName| name.unknown().filter(|_| !is_field(name));
    let of_sessions = |name: &VarName| name.unknown_of(Subject::Session);
    for (field, wrong) in [
        ("if", condition.as_ref().and_then(|condition| condition.wrong(of_exchanges))),
        ("stream_if", stream_if.as_ref().and_then(|condition| condition.wrong(of_sessions))),
    ] {
        let problem = wrong.map(|reason| Problem::new(format!("access_log.{field}"), "condition", reason));
        failures.extend(problem.map(|problem| Failure { key: None, problem }));
    }
    let mut kept = |field: &str, format: Result<AccessFormat, FormatError>| {
        let format = format.map_err(|error| {
            let problem = Problem::new(format!("access_log.{field}"), "format", error.to_string());
            failures.push(Failure { key: None, problem });
        });
        format.ok().map(Arc::new)
    };
    let compiled = AccessFormat::compile(format, is_variable);
    let compiled =
        if *log_credentials { compiled } else { compiled.map(|format| format.hiding(is_credential)) };
    let exchanges = kept("format", compiled);
    let sessions =
        stream_format.as_deref().map(|format| AccessFormat::of_sessions(format, is_session_variable));
    (exchanges, sessions.and_then(|format| kept("stream_format", format)))
}

/// Returns true if a value of an access line is a credential on all routes.
fn is_credential(field: &Field) -> bool {
    match field {
        Field::HttpHeader(name) | Field::SentHttpHeader(name) | Field::UpstreamHeader(name) => {
            credentials::is_credential(name.as_bytes())
        }
        Field::Variable(name) => &**name == "cookie" || name.starts_with("cookie_"),
        _ => false,
    }
}
