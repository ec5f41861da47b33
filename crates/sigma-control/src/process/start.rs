//! Inputs of a start besides the parts that it puts together, and its errors.

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use sigma_config::crypt::Keyring;
use sigma_config::settings::{Settings, Workers};
use sigma_config::tls::TicketPlace;
use sigma_config::{Checked, Config};
use sigma_net::Sockets;
use sigma_net::tls::SharedKey;
use sigma_observe::counters::WorkerCounters;
use sigma_observe::log_buffer::{LogError, LogTarget, LogWriter};
use sigma_plugin::Node;
use sigma_plugin::cloud::CloudIdentities;
use sigma_plugin::system::Host;
use sigma_proxy::{BindError, Gateway, Inheritance, Receiving, Snapshot};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::examine;
use super::handover::{self, Links, Origin, State};
use super::process_history::ProcessHistory;
use crate::operators::OpenError;
use crate::operators::running::fault_names;
use crate::serving::acme::Keeper;
use crate::serving::desired::{Batch, Desired};
use crate::serving::endpoints::Endpoints;
use crate::serving::expiry;
use crate::serving::files::Files;
use crate::serving::health_events;
use crate::serving::health_file::HealthFile;
use crate::serving::plugins::Plugins;
use crate::serving::publisher::Publisher;
use crate::serving::secret::{Limits, Secrets};
use crate::serving::source::{LoadError, Source};
use crate::serving::ticket_keys::TicketKeeper;
use crate::store::{Store, StoreError};

/// Full log buffers that may wait for the writer.
const LOG_QUEUE_BLOCKS: usize = 256;

/// Why the process cannot start, or a reload was refused.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A listener.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The access log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The store of resources.
    #[error("cannot use the store: {0}")]
    Store(#[from] StoreError),
    /// The followed documents.
    #[error("cannot use `config_sources`: {0}")]
    Documents(String),
    /// A listener for operators.
    #[error(transparent)]
    Operators(#[from] OpenError),
    /// The readers of secrets.
    #[error("{0}")]
    Secrets(String),
    /// A change of a node.
    #[error("{0}")]
    Edit(String),
    /// The possessions of the previous process.
    #[error("cannot take over from the previous process: {0}")]
    Handover(std::io::Error),
    /// The gateway in the background.
    #[error("cannot go to the background: {0}")]
    Background(String),
    /// The pid file.
    #[error("cannot write the pid file {path}: {source}")]
    PidFile {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The sandbox.
    #[error("{0}")]
    Sandbox(String),
    /// Signals.
    #[error("cannot receive signals: {0}")]
    Signals(std::io::Error),
}

pub(super) fn keyring(settings: &Settings) -> Result<Keyring, StartError> {
    Keyring::try_from(&settings.data_encryption).map_err(|error| StartError::Secrets(error.to_string()))
}

/// The store, if resources are kept in one.
pub(super) async fn open_store(config: &Config) -> Result<Option<Arc<dyn Store>>, StartError> {
    let settings = match (&config.settings.store, &config.settings.admin) {
        (Some(store), _) => store.clone(),
        (None, Some(_)) => sigma_config::store::Store::default(),
        (None, None) => return Ok(None),
    };
    Ok(Some(crate::store::open(&settings).await?))
}

/// Begins to write the access log, if there is to be one.
pub(super) fn access_log(settings: &Settings) -> Result<Option<LogWriter>, LogError> {
    let target = match settings.access_log.path.as_str() {
        "off" => return Ok(None),
        "stdout" => LogTarget::Stdout,
        path => LogTarget::File(path.into()),
    };
    LogWriter::start(target, LOG_QUEUE_BLOCKS).map(Some)
}

pub(super) fn worker_count(settings: &Settings, cpus: usize) -> usize {
    match settings.workers {
        Workers::Auto => cpus.max(1),
        Workers::Count(count) => usize::from(count.get()),
    }
}

/// Warns of changed settings that a reload does not put into force; returns their names.
pub(super) fn warn_of_restart(old: &Settings, new: &Settings) -> Vec<&'static str> {
    let changed = [
        ("workers", old.workers != new.workers),
        ("pin_workers", old.pin_workers != new.pin_workers),
        ("io", old.io != new.io),
        ("io_uring", old.io_uring != new.io_uring),
        ("status", old.status != new.status),
        ("operators", old.operators != new.operators),
        ("niubix_admin", old.niubix_admin != new.niubix_admin),
        ("admin", old.admin != new.admin),
        ("control", old.control != new.control),
        ("store", old.store != new.store),
        ("config_sources", old.config_sources != new.config_sources),
        ("profile", old.profile != new.profile),
        ("plugins", old.plugins != new.plugins),
        ("compat.ignored_plugins", old.compat.ignored_plugins != new.compat.ignored_plugins),
        ("plugin_attr", old.plugin_attr != new.plugin_attr),
        ("ext-plugin", old.ext_plugin != new.ext_plugin),
        ("wasm", old.wasm != new.wasm),
        ("secret_lookup", old.secret_lookup != new.secret_lookup),
        ("discovery", old.discovery != new.discovery),
        ("cloud_identity", old.cloud_identity != new.cloud_identity),
        ("registration", old.registration != new.registration),
        ("health_events", old.health_events != new.health_events),
        ("acme", old.acme != new.acme),
        ("health_file", old.health_file != new.health_file),
        ("history", old.history != new.history),
        ("audit_log", old.audit_log != new.audit_log),
        ("health_sharing", old.health_sharing != new.health_sharing),
        ("members", old.members != new.members),
        ("tap", old.tap != new.tap),
        ("tls.ticket_keys", old.tls.ticket_keys != new.tls.ticket_keys),
        ("tls.storage", old.tls.storage != new.tls.storage),
        ("dns.servers", old.dns.servers != new.dns.servers),
        ("dns.ipv6", old.dns.ipv6 != new.dns.ipv6),
        ("pid_file", old.pid_file != new.pid_file),
        ("process", old.process != new.process),
        ("error_log.path", old.error_log.path != new.error_log.path),
    ];
    let changed: Vec<&str> =
        changed.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name).collect();
    for name in &changed {
        tracing::warn!("`{name}` has changed; the change takes effect at the next start");
    }
    changed
}

/// Returns the result of a reload, for its operator.
pub(super) fn reload_note(need_restart: &[&str]) -> String {
    match need_restart {
        [] => "reloaded".to_owned(),
        names => format!("reloaded; needs a restart: {}", names.join(", ")),
    }
}

/// A signal that operators send.
pub(super) enum Incoming {
    System(Signal),
    /// A simulated operator sends it.
    #[cfg(test)]
    Simulated(tokio::sync::mpsc::UnboundedReceiver<()>),
}

impl Incoming {
    fn of(kind: SignalKind) -> std::io::Result<Incoming> {
        #[cfg(test)]
        if let Some(received) = crate::simulation::seams::signal(kind) {
            return Ok(Incoming::Simulated(received));
        }
        signal(kind).map(Incoming::System)
    }

    /// Waits for the next one.
    pub(super) async fn recv(&mut self) -> Option<()> {
        poll_fn(|task| self.poll_recv(task)).await
    }

    /// Ready if one has come.
    pub(super) fn poll_recv(&mut self, task: &mut Context<'_>) -> Poll<Option<()>> {
        match self {
            Incoming::System(signal) => signal.poll_recv(task),
            #[cfg(test)]
            Incoming::Simulated(received) => received.poll_recv(task),
        }
    }
}

/// Signals that operators send.
pub(super) struct Signals {
    pub(super) hangup: Incoming,
    pub(super) terminate: Incoming,
    pub(super) interrupt: Incoming,
    pub(super) reopen: Incoming,
    pub(super) upgrade: Incoming,
}

impl Signals {
    pub(super) fn receive() -> std::io::Result<Signals> {
        Ok(Signals {
            hangup: Incoming::of(SignalKind::hangup())?,
            terminate: Incoming::of(SignalKind::terminate())?,
            interrupt: Incoming::of(SignalKind::interrupt())?,
            reopen: Incoming::of(SignalKind::user_defined1())?,
            upgrade: Incoming::of(SignalKind::user_defined2())?,
        })
    }
}

/// Returns the endpoints of upstreams, whose health events go to the services of the settings. Their health
/// begins with the file's content. Within a runtime. The state of the previous process is newer.
pub(super) fn endpoints(
    settings: &Settings,
    workers: usize,
    file: Option<&HealthFile>,
    before: Option<&State>,
) -> Endpoints {
    let mut endpoints = Endpoints::of(settings, workers);
    if let Some(events) = health_events::start(&settings.health_events, &settings.tls) {
        endpoints = endpoints.telling(events);
    }
    match (before, file) {
        (Some(state), _) => endpoints.begin_with_health(state.health.clone()),
        (None, Some(file)) => endpoints.begin_with_health(file.read()),
        (None, None) => {}
    }
    endpoints
}

/// The possessions of earlier processes.
pub(super) struct Before {
    pub(super) links: Links,
    /// Sockets that are bound already.
    pub(super) sockets: Arc<Sockets>,
    /// The state of the previous process.
    pub(super) state: Option<State>,
}

impl Before {
    /// Requests the possessions of the process that started this one. To be called when only an error there
    /// can stop a start any more.
    pub(super) async fn ask(origin: &Origin) -> Result<Before, StartError> {
        let links = origin.links().map_err(StartError::Handover)?;
        let (mut sockets, mut state) = (Sockets::default(), None);
        sockets.add(origin.take_sockets());
        if let Some(predecessor) = &links.predecessor {
            let (found, known) = handover::inherit(predecessor).await.map_err(StartError::Handover)?;
            sockets.add(found);
            state = known;
        }
        Ok(Before { links, sockets: Arc::new(sockets), state })
    }

    /// Goes on with what plugins of the process before have left.
    pub(super) fn go_on_with_plugins(&mut self, node: &Node) {
        if let Some(state) = &mut self.state {
            Host::go_on_from(Duration::from_millis(state.uptime_ms));
            node.find_inherited(std::mem::take(&mut state.legacies));
        }
    }

    /// Goes on with the numbers of the process before.
    pub(super) fn count_on(&self, counters: &[Arc<WorkerCounters>]) {
        if let (Some(state), Some(first)) = (&self.state, counters.first()) {
            first.begin_with(&state.counters, &state.faults, &fault_names());
        }
    }

    /// Goes on with the sessions of the process before, unless their keys come from elsewhere.
    pub(super) fn resume_tickets(&self, snapshot: &Snapshot) {
        let Some(state) = &self.state else { return };
        if snapshot.settings.tls.ticket_keys == TicketPlace::Process {
            let keys: Vec<SharedKey> =
                state.ticket_keys.iter().filter_map(|bytes| SharedKey::read(bytes)).collect();
            Inheritance::resume_tickets(snapshot, &keys, Duration::from_millis(state.ticket_age_ms));
        }
    }

    /// Returns when this process receives datagrams: the previous one may have sessions for it.
    pub(super) fn receiving(&self) -> Receiving {
        if self.links.predecessor.is_some() { Receiving::Later } else { Receiving::AtOnce }
    }

    /// The process serves: the one before leaves.
    pub(super) async fn take_place(self, gateway: &mut Gateway) -> Links {
        if let Some(predecessor) = &self.links.predecessor {
            handover::take_place(predecessor, |sessions| gateway.go_on_with(sessions)).await;
        }
        self.links
    }
}

/// Looks secrets up as the settings say.
pub(super) fn secrets(settings: &Settings, node: &Node) -> Secrets {
    let limits = Limits::of(&settings.secret_lookup);
    let Ok(secrets) = Secrets::new(limits, |name| std::env::var(name).ok());
    secrets.use_identities(node.part(CloudIdentities::default));
    secrets
}

/// Refuses a file whose plugins this build cannot serve.
pub(super) fn must_fit(source: &Source, checked: &Checked, plugins: &Plugins) -> Result<(), StartError> {
    let unfit = examine::unfit(&checked.config, &plugins.enabled);
    if unfit.is_empty() { Ok(()) } else { Err(source.invalid(unfit).into()) }
}

/// Loads the files and other sources that the configuration names; some are kept up to date until the process
/// ends.
pub(super) async fn files(settings: &Settings, store: Option<&Arc<dyn Store>>, keyring: &Keyring) -> Files {
    let (keys, keeper) = TicketKeeper::begin(&settings.tls, store, keyring).await.unzip();
    if let Some(keeper) = keeper {
        tokio::spawn(keeper.run());
    }
    Files::followed_on(Handle::current(), &settings.tls).with_ticket_keys(keys)
}

/// Starts the background tasks of the process.
pub(super) fn look_after(
    publisher: &Arc<Publisher>,
    health_file: Option<&HealthFile>,
    keeper: Option<Keeper>,
) {
    if let Some(file) = health_file {
        tokio::spawn(file.clone().keep(Arc::clone(publisher)));
    }
    tokio::spawn(expiry::watch(Arc::clone(publisher)));
    if let Some(keeper) = keeper {
        tokio::spawn(keeper.run());
    }
}

/// Returns the desired configuration with the store's content, if there is a store, and an earlier process's
/// copy of it.
pub(super) async fn with_stored(
    mut desired: Desired,
    store: Option<&Arc<dyn Store>>,
    process_history: Option<&ProcessHistory>,
) -> Result<Desired, StartError> {
    if let Some(store) = store {
        let contents = store.load().await?;
        if let Some(process_history) = process_history {
            process_history.loaded(&**store, &contents);
        }
        desired.remember(&store.earlier());
        desired.reload(&contents, &mut Batch::default());
    }
    Ok(desired)
}
