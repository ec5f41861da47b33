//! The life of the process: start, reload, stop.
//!
//! A reload is check → compile → prepare → commit; whatever fails before the commit leaves the
//! running configuration as it is.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sigma_config::Checked;
use sigma_config::Config;
use sigma_config::crypt::Keyring;
use sigma_config::settings::{Settings, Workers};
use sigma_observe::counters::WorkerCounters;
use sigma_observe::log_buffer::{LogError, LogTarget, LogWriter};
use sigma_plugin::{Descriptor, Node, Roster};
use sigma_proxy::gateway::BindError;
use sigma_proxy::{Compiler, Failure, Gateway, Snapshot};
use sigma_upstream::health::{REPORT_QUEUE, passive_channel};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use super::examine;
use crate::operators::inspect::{Knowledge, Question};
use crate::operators::{self, niubix, status};
use crate::serving::desired::{Batch, Desired};
use crate::serving::publisher::{Publisher, problems};
use crate::serving::secret::{Limits, Secrets};
use crate::serving::source::{LoadError, Source};
use crate::store::{Event, Store, StoreError, Watch};

/// How often `--watch` looks at the file.
const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// How long what plugins have buffered may take to leave at the end.
const ENDING_TIMEOUT: Duration = Duration::from_secs(5);
/// By how much of `secret_lookup.refresh_ms` the pauses differ at random, so that gateways which started
/// together do not ask together.
const SECRETS_JITTER: f64 = 0.2;
/// Full log buffers that may wait for the writer.
const LOG_QUEUE_BLOCKS: usize = 256;

/// How to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration file.
    pub source: Source,
    /// Reload when the file changes.
    pub watch: bool,
    /// The plugins of this build.
    pub plugins: &'static [&'static Descriptor],
}

/// The error log, as far as it changes while the process runs; the binary owns it.
pub trait LogControl {
    /// Puts another filter into force.
    ///
    /// # Errors
    /// The filter is not understood.
    fn set_level(&self, filter: &str) -> Result<(), String>;
    /// Opens the file anew, after it was renamed.
    fn reopen(&self);
    /// Tells whoever asked for a reload how it went.
    fn reloaded(&mut self, result: &Result<(), String>);
}

/// The target of the few lines of the life of the process: started, reloaded, stopping. They are said at
/// the default level too.
pub const LIFE: &str = "sigma::life";

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
    #[error("the store cannot be used: {0}")]
    Store(#[from] StoreError),
    /// The key of the Admin API.
    #[error(transparent)]
    AdminKey(#[from] crate::operators::admin::KeyFileError),
    /// The plugins of this build, or what they need.
    #[error("{0}")]
    Plugins(String),
    /// The pid file.
    #[error("cannot write the pid file {path}: {source}")]
    PidFile {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Signals cannot be received, or the status listener not be bound.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// A worker thread has ended by itself, and its part of the connections with it.
#[derive(Debug, thiserror::Error)]
#[error("a worker thread has ended by itself; the error log says why")]
pub struct WorkerLost;

/// What other parts of the control thread ask of the supervisor.
#[derive(Debug)]
pub(crate) enum Request {
    /// Read the file again; tells how it went.
    Reload {
        reply: Option<oneshot::Sender<Result<(), String>>>,
    },
    Shutdown,
    /// Tell the Control API.
    Inspect(Question),
    /// Change nodes of the running configuration; memory only.
    Edit {
        edit: niubix::Edit,
        reply: oneshot::Sender<Result<(), String>>,
    },
    Health {
        reply: oneshot::Sender<serde_json::Value>,
    },
}

/// The running process.
pub struct Supervisor {
    options: Options,
    /// All plugins of the build, to check files with.
    all_plugins: Arc<Roster>,
    publisher: Publisher,
    desired: Desired,
    gateway: Gateway,
    /// What plugins share.
    node: Arc<Node>,
    current: Arc<Snapshot>,
    store: Option<Arc<dyn Store>>,
    /// What the store tells.
    watch: Option<Watch>,
    log: Box<dyn LogControl>,
    shared: Arc<status::Shared>,
    requests: mpsc::Receiver<Request>,
    pid_file: Option<PathBuf>,
    /// Something was read since memory was last given back.
    has_changed: bool,
    /// Taken by [`Supervisor::run`].
    signals: Option<Signals>,
}

/// Signals that operators send.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    reopen: Signal,
}

impl Signals {
    fn receive() -> std::io::Result<Signals> {
        Ok(Signals {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            reopen: signal(SignalKind::user_defined1())?,
        })
    }
}

impl Supervisor {
    /// Starts everything. Must be called within a runtime.
    ///
    /// # Errors
    /// Any [`StartError`]; nothing keeps running then.
    pub async fn start(
        options: Options,
        checked: Checked,
        log: Box<dyn LogControl>,
    ) -> Result<Supervisor, StartError> {
        // Before anything listens: whoever sees the gateway accept may signal it.
        let signals = Signals::receive()
            .map_err(|source| StartError::System { what: "cannot receive signals".into(), source })?;
        let plugins = Plugins::new(&options, &checked.config.settings)?;
        let keyring = keyring(&checked.config.settings)?;
        let unfit = examine::unfit(&checked.config, &plugins.enabled);
        if !unfit.is_empty() {
            return Err(options.source.invalid(unfit).into());
        }
        let store = open_store(&checked.config).await?;
        let mut desired = Desired::new(checked, Arc::clone(&plugins.enabled) as _, keyring.clone());
        if let Some(store) = &store {
            let contents = store.load().await?;
            desired.remember(&store.earlier());
            desired.reload(&contents, &mut Batch::default());
        }
        let limits = Limits::of(&desired.config.settings.secret_lookup);
        let secrets = Secrets::new(limits, |name| std::env::var(name).ok())
            .map_err(|error| StartError::Plugins(error.to_string()))?;
        let compiler = Compiler::new(Arc::clone(&plugins.enabled), Arc::clone(&plugins.node));
        let mut publisher = Publisher::new(compiler, secrets);
        let closes = store.is_some() || options.source.skip_invalid;
        let (compiler, current) = compiled(&options, &mut publisher, &mut desired, closes).await?;
        let settings = Arc::clone(&current.settings);
        let (reporter, inbox) = passive_channel(REPORT_QUEUE);
        tokio::spawn(inbox.run());
        let writer = access_log(&settings)?;
        let cpus = sigma_net::limits::usable_cpus();
        let workers = worker_count(&settings, cpus.len());
        let pinned: &[usize] = if settings.pin_workers { &cpus } else { &[] };
        let counters: Vec<Arc<WorkerCounters>> = (0..workers).map(|_| Arc::default()).collect();
        let (ask, requests) = mpsc::channel(16);
        let shared = Arc::new(status::Shared::new(counters.clone(), Arc::clone(&plugins.node), ask));
        show_quarantine(&desired, &shared, store.as_deref());
        // Before anything accepts traffic: whoever sees the gateway up may ask how it is.
        operators::serve(&settings, &shared, store.as_ref(), &plugins, keyring).await?;
        let node = Arc::clone(&plugins.node);
        let gateway = Gateway::start(Arc::clone(&current), &counters, pinned, writer, &reporter, node)?;
        shared.set_ready(true);
        publisher.adopt(compiler, &current);
        let pid_file = write_pid_file(&settings)?;
        let watch = store.as_ref().map(|store| Arc::clone(store).watch(desired.revision()));
        Ok(Supervisor {
            options,
            all_plugins: plugins.all,
            publisher,
            desired,
            gateway,
            node: plugins.node,
            current,
            store,
            watch,
            log,
            shared,
            requests,
            pid_file,
            has_changed: true,
            signals: Some(signals),
        })
    }

    /// Runs until told to stop, then drains.
    ///
    /// # Errors
    /// A worker has ended by itself: what is left serves its open exchanges to their end, and whoever
    /// watches the process is to start it anew.
    pub async fn run(mut self) -> Result<(), WorkerLost> {
        let Some(Signals { mut hangup, mut terminate, mut interrupt, mut reopen }) = self.signals.take()
        else {
            return Ok(());
        };
        let mut result = Ok(());
        sigma_net::worker::yield_to_workers();
        let mut stamp = self.options.source.stamp();
        let mut watch = tokio::time::interval(WATCH_PERIOD);
        let period = Duration::from_millis(self.current.settings.secret_lookup.refresh_ms.into());
        let mut secrets = Box::pin(self.publisher.look_ahead(secrets_pause(period)));
        loop {
            tokio::select! {
                _ = hangup.recv() => drop(self.reload().await),
                _ = reopen.recv() => {
                    self.gateway.reopen_log();
                    self.node.reopen_logs();
                    self.log.reopen();
                }
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = watch.tick() => {
                    if self.gateway.has_lost_a_worker() {
                        tracing::error!("a worker thread has ended; the process ends, to be started anew");
                        result = Err(WorkerLost);
                        break;
                    }
                    self.gateway.sweep();
                    if std::mem::take(&mut self.has_changed) {
                        sigma_net::memory::give_back();
                    }
                    let now = self.options.source.stamp();
                    if self.options.watch && now.is_some() && now != stamp {
                        stamp = now;
                        drop(self.reload().await);
                    }
                }
                () = &mut secrets => {
                    self.refresh_secrets().await;
                    secrets.set(self.publisher.look_ahead(secrets_pause(period)));
                }
                event = next_event(&mut self.watch) => self.follow(event).await,
                Some(request) = self.requests.recv() => {
                    if self.answer(request).await.is_break() {
                        break;
                    }
                }
            }
        }
        self.stop().await;
        result
    }

    async fn answer(&mut self, request: Request) -> ControlFlow<()> {
        // Nobody waits for a reply if its connection has gone.
        match request {
            Request::Shutdown => return ControlFlow::Break(()),
            Request::Reload { reply } => {
                let result = self.reload().await;
                reply.map(|reply| reply.send(result));
            }
            Request::Inspect(question) => self.knowledge().answer(question),
            Request::Edit { edit, reply } => drop(reply.send(self.edit(&edit).await)),
            Request::Health { reply } => drop(reply.send(status::health(&self.publisher.fleet))),
        }
        ControlFlow::Continue(())
    }

    /// Applies what the store tells, all at once if several changes came together.
    async fn follow(&mut self, event: Event) {
        self.has_changed = true;
        let mut batch = Batch::default();
        self.desired.absorb(event, &mut batch);
        while let Some(event) = self.watch.as_mut().and_then(|watch| watch.try_recv().ok()) {
            self.desired.absorb(event, &mut batch);
        }
        let published = self.publisher.publish(&mut self.desired, batch, &mut self.gateway).await;
        if let Some(snapshot) = published {
            self.current = snapshot;
        }
        self.show_quarantine();
    }

    async fn refresh_secrets(&mut self) {
        let published = self.publisher.refresh(&mut self.desired, &mut self.gateway).await;
        if let Some(snapshot) = published {
            self.current = snapshot;
            self.show_quarantine();
        }
    }

    async fn stop(mut self) {
        self.shared.set_ready(false);
        // Whoever asks from now on is told that nobody answers, instead of waiting for it.
        self.requests.close();
        while self.requests.try_recv().is_ok() {}
        tracing::info!(target: LIFE, "stopping: no new connections, open exchanges may finish");
        self.gateway.drain().await;
        if tokio::time::timeout(ENDING_TIMEOUT, self.node.end()).await.is_err() {
            tracing::error!("what plugins had buffered did not leave in time, and is lost");
        }
        if let Some(path) = &self.pid_file {
            // Gone already is as good as removed.
            let _ = std::fs::remove_file(path);
        }
    }

    fn show_quarantine(&self) {
        show_quarantine(&self.desired, &self.shared, self.store.as_deref());
    }

    fn knowledge(&self) -> Knowledge<'_> {
        Knowledge {
            desired: &self.desired,
            fleet: &self.publisher.fleet,
            store: self.store.as_ref(),
            published: self.current.revision,
            workers: self.gateway.counters().iter().map(|counters| counters.revision()).collect(),
        }
    }

    /// Loads the file again. On a problem everything stays as it is, and the error log says why.
    async fn reload(&mut self) -> Result<(), String> {
        let result = match self.options.source.load(&*self.all_plugins) {
            Ok(checked) => {
                for warning in &checked.warnings {
                    tracing::warn!("{}: {warning}", self.options.source.path.display());
                }
                self.apply_file(checked).await
            }
            Err(error) => Err(error.into()),
        };
        let result = result.map_err(|error| error.to_string());
        self.shared.reloaded(result.as_ref().err().cloned());
        self.log.reloaded(&result);
        match &result {
            Ok(()) => tracing::info!(target: LIFE, "configuration reloaded"),
            Err(error) => {
                tracing::error!("the configuration was not reloaded, the old one stays in force:\n{error}")
            }
        }
        result
    }

    async fn apply_file(&mut self, checked: Checked) -> Result<(), StartError> {
        let mut next = self.desired.clone();
        match self.store.is_some() {
            true => {
                if let Some(problem) = examine::two_sources(&checked.config) {
                    return Err(self.options.source.invalid(vec![problem]).into());
                }
                next.replace_settings(checked);
            }
            false => next.replace_file(checked),
        }
        self.apply(next).await
    }

    async fn apply(&mut self, mut next: Desired) -> Result<(), StartError> {
        let closes = self.store.is_none() && self.options.source.skip_invalid;
        let (compiler, snapshot) = compiled(&self.options, &mut self.publisher, &mut next, closes).await?;
        let prepared = access_log(&snapshot.settings)
            .map_err(StartError::from)
            .and_then(|log| Ok(self.gateway.prepare(&snapshot, log)?));
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                self.publisher.fleet.discard();
                return Err(error);
            }
        };
        self.gateway.commit(prepared);
        self.publisher.adopt(compiler, &snapshot);
        self.desired = next;
        self.show_quarantine();
        warn_of_restart(&self.current.settings, &snapshot.settings);
        if let Err(error) = self.log.set_level(&snapshot.settings.error_log.level) {
            tracing::error!(%error, "the level of the error log stays as it was");
        }
        self.current = snapshot;
        self.has_changed = true;
        Ok(())
    }

    async fn edit(&mut self, edit: &niubix::Edit) -> Result<(), String> {
        let mut next = self.desired.clone();
        edit.apply(&mut next.config)?;
        self.apply(next).await.map_err(|error| error.to_string())
    }
}

/// The plugins of a process.
pub(crate) struct Plugins {
    /// All of the build.
    pub(crate) all: Arc<Roster>,
    /// Those that may be used.
    pub(crate) enabled: Arc<Roster>,
    /// What their instances share.
    pub(crate) node: Arc<Node>,
}

impl Plugins {
    fn new(options: &Options, settings: &Settings) -> Result<Plugins, StartError> {
        let ignored = &settings.compat.ignored_plugins;
        let all = Arc::new(Roster::new(options.plugins, None).ignoring(ignored));
        let enabled = match &settings.plugins {
            None => Arc::clone(&all),
            Some(list) => {
                let names: Vec<String> =
                    list.iter().filter(|plugin| !plugin.stream).map(|plugin| plugin.name.clone()).collect();
                Arc::new(Roster::new(options.plugins, Some(&names)).ignoring(ignored))
            }
        };
        let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let attributes = serde_json::Value::Object(settings.plugin_attr.clone());
        let runtime = tokio::runtime::Handle::current();
        let background = move |work| drop(runtime.spawn(work));
        let node = Arc::new(Node::new(background, attributes, hostname));
        Ok(Plugins { all, enabled, node })
    }
}

fn keyring(settings: &Settings) -> Result<Keyring, StartError> {
    Keyring::try_from(&settings.data_encryption).map_err(|error| StartError::Plugins(error.to_string()))
}

/// The store, if resources are kept in one.
async fn open_store(config: &Config) -> Result<Option<Arc<dyn Store>>, StartError> {
    let settings = match (&config.settings.store, &config.settings.admin) {
        (Some(store), _) => store.clone(),
        (None, Some(_)) => sigma_config::store::Store::default(),
        (None, None) => return Ok(None),
    };
    Ok(Some(crate::store::open(&settings).await?))
}

/// Tells operators what is quarantined, and the store, which keeps the last good forms.
fn show_quarantine(desired: &Desired, shared: &status::Shared, store: Option<&dyn Store>) {
    let quarantined: Vec<_> = desired.quarantine().cloned().collect();
    if let Some(store) = store {
        let keys: Vec<String> = quarantined.iter().map(|one| one.key.to_string()).collect();
        store.judged(desired.revision(), &keys);
    }
    shared.set_quarantine(quarantined.into());
}

/// Compiles everything. If it `closes`, what cannot be compiled is closed; else it stops all.
async fn compiled(
    options: &Options,
    publisher: &mut Publisher,
    desired: &mut Desired,
    closes: bool,
) -> Result<(Compiler, Arc<Snapshot>), StartError> {
    loop {
        let failures = match publisher.compile(&desired.config, desired.revision()).await {
            Ok(compiled) => return Ok(compiled),
            Err(failures) => failures,
        };
        if !closes || failures.iter().any(|failure| failure.key.is_none()) {
            return Err(options.source.invalid(problems(failures)).into());
        }
        let mut changed = false;
        for Failure { key, problem } in &failures {
            changed |= key.as_ref().is_some_and(|key| desired.keep_out(key, problem.to_string()));
        }
        // Each round closes something, so that there is an end to them.
        if !changed {
            return Err(options.source.invalid(problems(failures)).into());
        }
    }
}

async fn next_event(watch: &mut Option<Watch>) -> Event {
    if let Some(receiver) = watch {
        if let Some(event) = receiver.recv().await {
            return event;
        }
        tracing::error!("the store tells no more changes");
        *watch = None;
    }
    std::future::pending().await
}

fn secrets_pause(period: Duration) -> Duration {
    period.mul_f64(1.0 + SECRETS_JITTER * (fastrand::f64() - 0.5))
}

fn access_log(settings: &Settings) -> Result<Option<LogWriter>, LogError> {
    let target = match settings.access_log.path.as_str() {
        "off" => return Ok(None),
        "stdout" => LogTarget::Stdout,
        path => LogTarget::File(path.into()),
    };
    LogWriter::start(target, LOG_QUEUE_BLOCKS).map(Some)
}

fn worker_count(settings: &Settings, cpus: usize) -> usize {
    match settings.workers {
        Workers::Auto => cpus.max(1),
        Workers::Count(count) => usize::from(count.get()),
    }
}

fn write_pid_file(settings: &Settings) -> Result<Option<PathBuf>, StartError> {
    let Some(path) = &settings.pid_file else { return Ok(None) };
    std::fs::write(path, format!("{}\n", std::process::id()))
        .map_err(|source| StartError::PidFile { path: path.clone(), source })?;
    Ok(Some(path.clone()))
}

/// What a reload cannot change is said, not silently left.
fn warn_of_restart(old: &Settings, new: &Settings) {
    let changed = [
        ("workers", old.workers != new.workers),
        ("pin_workers", old.pin_workers != new.pin_workers),
        ("status", old.status != new.status),
        ("operators", old.operators != new.operators),
        ("niubix_admin", old.niubix_admin != new.niubix_admin),
        ("admin", old.admin != new.admin),
        ("control", old.control != new.control),
        ("store", old.store != new.store),
        ("plugins", old.plugins != new.plugins),
        ("compat.ignored_plugins", old.compat.ignored_plugins != new.compat.ignored_plugins),
        ("plugin_attr", old.plugin_attr != new.plugin_attr),
        ("secret_lookup", old.secret_lookup != new.secret_lookup),
        ("pid_file", old.pid_file != new.pid_file),
        ("error_log.path", old.error_log.path != new.error_log.path),
    ];
    for (name, _) in changed.iter().filter(|(_, changed)| *changed) {
        tracing::warn!("`{name}` has changed; that takes effect at the next start");
    }
}
