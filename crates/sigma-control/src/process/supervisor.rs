//! The life of the process: start, reload, stop.
//!
//! A reload is check → compile → prepare → commit; whatever fails before the commit leaves the
//! running configuration as it is. Changes come into force one after the other, in the order in which
//! they came. One that waits, for names or for secrets, keeps nobody else waiting: signals are
//! followed meanwhile, operators are answered, and it is left behind when the process stops.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sigma_config::Checked;
use sigma_config::crypt::Keyring;
use sigma_config::kind::ResourceKey;
use sigma_plugin::{Kind, Node, Roster};
use sigma_proxy::{Failure, Gateway, Inheritance, Snapshot};
use sigma_upstream::health::{REPORT_QUEUE, passive_channel};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use super::examine;
use super::start::{
    StartError, access_log, keyring, open_store, warn_of_restart, worker_count, write_pid_file,
};
use super::usage::Usage;
use crate::operators;
use crate::operators::running::{Command, Running, STOPPING};
use crate::serving::acme::{Keeper, Ordered};
use crate::serving::desired::{Batch, Desired};
use crate::serving::edit::Edit;
use crate::serving::endpoints::Endpoints;
use crate::serving::expiry;
use crate::serving::files::Files;
use crate::serving::health_file::HealthFile;
use crate::serving::health_sharing::HealthSharing;
use crate::serving::plugins::Plugins;
use crate::serving::publisher::{Part, Publisher, Whole, problems};
use crate::serving::secret::{Limits, Secrets};
use crate::serving::source::Source;
use crate::serving::ticket_keys::TicketKeeper;
use crate::serving::webhook;
use crate::store::{Event, Store, Watch};

/// How often `--watch` looks at the file.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// Periods after which nothing of the start runs any more.
const SETTLING_PERIODS: u32 = 5;

/// How long what plugins have buffered may take to leave at the end.
const ENDING_TIMEOUT: Duration = Duration::from_secs(5);
/// By how much of `secret_lookup.refresh_ms` the pauses differ at random, so that gateways which started
/// together do not ask together.
const SECRETS_JITTER: f64 = 0.2;
/// Commands of operators that may wait for their turn; more wait with whoever gives them.
const COMMANDS: usize = 16;

/// How to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration file.
    pub source: Source,
    /// Reload when the file changes.
    pub watch: bool,
    /// The plugins of this build.
    pub plugins: Vec<Arc<dyn Kind>>,
}

/// The error log, as far as it changes while the process runs; the binary owns it.
pub trait LogControl {
    /// Puts another filter into force.
    ///
    /// # Errors
    /// Returns an error if the filter is not understood.
    fn set_level(&self, filter: &str) -> Result<(), String>;
    /// Opens the file anew, after it was renamed.
    fn reopen(&self);
    /// Tells whoever asked for a reload how it went.
    fn reloaded(&mut self, result: &Result<(), String>);
}

/// The target of the few lines of the life of the process: started, reloaded, stopping. They are said at
/// the default level too.
pub const LIFE: &str = "sigma::life";

/// A worker thread has ended by itself, and its part of the connections with it.
#[derive(Debug, thiserror::Error)]
#[error("a worker thread has ended by itself; the error log says why")]
pub struct WorkerLost;

/// A change that is to come into force.
enum Change {
    /// What the publisher has taken in of the store.
    Resources,
    /// Secrets that may have changed at their manager.
    Secrets,
    /// Databases of addresses that have changed.
    Places,
    /// Certificates that were ordered for these ssls.
    Certificates(Vec<ResourceKey>),
    /// What the file says.
    File(Asker),
    /// Nodes, in memory only.
    Edit(Edit, Asker),
}

/// Who waits for the outcome of a change.
type Asker = Option<oneshot::Sender<Result<(), String>>>;

/// What a change comes to before it is put into force.
enum Outcome {
    Part(Option<Part>),
    File(Result<Whole, StartError>, Asker),
    Edit(Result<Whole, StartError>, Asker),
}

/// A change on its way.
type UnderWay = Pin<Box<dyn Future<Output = Outcome>>>;

/// The running process.
pub struct Supervisor {
    options: Options,
    /// All plugins of the build, to check files with.
    all_plugins: Arc<Roster>,
    publisher: Arc<Publisher>,
    /// Certificates that the gateway orders itself, if it does.
    ordered: Option<Arc<Ordered>>,
    gateway: Gateway,
    /// What the process uses of what it has.
    usage: Usage,
    /// What plugins share.
    node: Arc<Node>,
    current: Arc<Snapshot>,
    store: Option<Arc<dyn Store>>,
    /// What the store tells.
    watch: Option<Watch>,
    log: Box<dyn LogControl>,
    running: Arc<Running>,
    commands: mpsc::Receiver<Command>,
    pid_file: Option<PathBuf>,
    health_file: Option<HealthFile>,
    health_sharing: Option<HealthSharing>,
    /// Something was read since memory was last given back.
    has_changed: bool,
    /// Periods until the start counts as over; 0 when it is.
    until_settled: u32,
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

/// The endpoints of upstreams, whose health a webhook is told of if there is one. They begin with what the file
/// says of them. Within a runtime.
async fn endpoints(
    settings: &sigma_config::settings::Settings,
    workers: usize,
    file: Option<&HealthFile>,
) -> Endpoints {
    let mut endpoints = Endpoints::of(settings, workers);
    if let Some(webhook) = &settings.health_events.webhook {
        let (events, teller) = webhook::queue(webhook);
        tokio::spawn(teller.run());
        endpoints = endpoints.telling(events);
    }
    if let Some(file) = file {
        endpoints.begin_with_health(file.read().await);
    }
    endpoints
}

/// Looks secrets up as the settings say.
fn secrets(settings: &sigma_config::settings::Settings) -> Secrets {
    let limits = Limits::of(&settings.secret_lookup);
    let Ok(secrets) = Secrets::new(limits, |name| std::env::var(name).ok());
    secrets
}

/// Refuses a file whose plugins this build cannot serve.
fn must_fit(source: &Source, checked: &Checked, plugins: &Plugins) -> Result<(), StartError> {
    let unfit = examine::unfit(&checked.config, &plugins.enabled);
    if unfit.is_empty() { Ok(()) } else { Err(source.invalid(unfit).into()) }
}

/// What the configuration names beside its text; some of it is kept up to date until the process ends.
async fn files(
    settings: &sigma_config::settings::Settings,
    store: Option<&Arc<dyn Store>>,
    keyring: &Keyring,
) -> Files {
    let (keys, keeper) = TicketKeeper::begin(&settings.tls, store, keyring).await.unzip();
    if let Some(keeper) = keeper {
        tokio::spawn(keeper.run());
    }
    Files::followed_on(Handle::current(), &settings.tls).with_ticket_keys(keys)
}

/// Begins what goes on beside the traffic until the process ends.
fn look_after(publisher: &Arc<Publisher>, health_file: Option<&HealthFile>, keeper: Option<Keeper>) {
    if let Some(file) = health_file {
        tokio::spawn(file.clone().keep(Arc::clone(publisher)));
    }
    tokio::spawn(expiry::watch(Arc::clone(publisher)));
    if let Some(keeper) = keeper {
        tokio::spawn(keeper.run());
    }
}

/// What is desired with what the store has, if there is one, and what an earlier process had of it.
async fn with_stored(mut desired: Desired, store: Option<&Arc<dyn Store>>) -> Result<Desired, StartError> {
    if let Some(store) = store {
        let contents = store.load().await?;
        desired.remember(&store.earlier());
        desired.reload(&contents, &mut Batch::default());
    }
    Ok(desired)
}

impl Supervisor {
    /// Starts everything. Must be called within a runtime.
    ///
    /// # Errors
    /// Returns an error if the process cannot start; nothing keeps running then.
    pub async fn start(
        options: Options,
        checked: Checked,
        log: Box<dyn LogControl>,
    ) -> Result<Supervisor, StartError> {
        // Before anything listens: whoever sees the gateway accept may signal it.
        let signals = Signals::receive().map_err(StartError::Signals)?;
        let plugins = Plugins::new(&options.plugins, &checked.config.settings);
        let keyring = keyring(&checked.config.settings)?;
        must_fit(&options.source, &checked, &plugins)?;
        let store = open_store(&checked.config).await?;
        let settings = &checked.config.settings;
        let secrets = secrets(settings);
        let (reporter, inbox) = passive_channel(REPORT_QUEUE);
        tokio::spawn(inbox.run());
        let cpus = sigma_net::limits::usable_cpus();
        let workers = worker_count(settings, cpus.len());
        let inheritance = Inheritance::new(workers, reporter, Arc::clone(&plugins.node));
        let compiler = inheritance.compiler(Arc::clone(&plugins.enabled));
        let desired = |checked| Desired::new(checked, Arc::clone(&plugins.enabled) as _, keyring.clone());
        let health_file = HealthFile::of(&settings.health_file);
        let endpoints = endpoints(settings, workers, health_file.as_ref()).await;
        let (ordered, keeper) = Ordered::of(settings, store.as_ref(), &keyring).await;
        let nothing = desired(Checked::default());
        let files = files(settings, store.as_ref(), &keyring).await;
        let publisher = Publisher::new(nothing, endpoints, compiler, secrets, ordered.clone(), files);
        let publisher = Arc::new(publisher);
        let desired = with_stored(desired(checked), store.as_ref()).await?;
        let closes = store.is_some() || options.source.skip_invalid;
        let whole = publisher.compile(desired, closes).await;
        let whole = whole.map_err(|failures| options.source.invalid(problems(failures)))?;
        let (current, settings) = (Arc::clone(&whole.snapshot), Arc::clone(&whole.snapshot.settings));
        publisher.adopt(whole);
        let writer = access_log(&settings)?;
        let pinned: &[usize] = if settings.pin_workers { &cpus } else { &[] };
        let (tell, commands) = mpsc::channel(COMMANDS);
        let (counters, node) = (inheritance.counters().to_vec(), Arc::clone(&plugins.node));
        let running = Arc::new(Running::new(counters, node, Arc::clone(&publisher), store.clone(), tell));
        // Before anything accepts traffic: whoever sees the gateway up may ask how it is.
        operators::serve(&settings, &running, store.as_ref(), &plugins, keyring).await?;
        let gateway = Gateway::start(Arc::clone(&current), inheritance, pinned, writer)?;
        running.set_unready(None);
        let pid_file = write_pid_file(&settings)?;
        look_after(&publisher, health_file.as_ref(), keeper);
        let sharing = settings.health_sharing.zip(store.as_ref());
        let health_sharing = sharing.map(|(how, store)| HealthSharing::begin(how, store, &publisher));
        let revision = publisher.state().desired.revision();
        let supervisor = Supervisor {
            usage: Usage::of(&plugins.node),
            options,
            all_plugins: plugins.all,
            publisher,
            ordered,
            gateway,
            node: plugins.node,
            current,
            watch: store.as_ref().map(|store| Arc::clone(store).watch(revision)),
            store,
            log,
            running,
            commands,
            pid_file,
            health_file,
            health_sharing,
            has_changed: true,
            until_settled: SETTLING_PERIODS,
            signals: Some(signals),
        };
        supervisor.tell_store();
        Ok(supervisor)
    }

    /// Runs until told to stop, then drains.
    ///
    /// # Errors
    /// Returns an error if a worker has ended by itself: the others serve their open exchanges to the
    /// end, and whoever watches the process is to start it anew.
    pub async fn run(mut self) -> Result<(), WorkerLost> {
        let Some(mut signals) = self.signals.take() else { return Ok(()) };
        sigma_net::worker::yield_to_workers();
        let mut stamp = self.options.source.stamp();
        let mut watch = tokio::time::interval(WATCH_PERIOD);
        let mut secrets = Box::pin(self.look_ahead());
        let mut are_secrets_due = false;
        let mut under_way: Option<UnderWay> = None;
        let result = loop {
            let is_idle = under_way.is_none();
            if is_idle && std::mem::take(&mut are_secrets_due) {
                under_way = Some(self.begin(Change::Secrets));
                secrets.set(self.look_ahead());
                continue;
            }
            tokio::select! {
                _ = signals.terminate.recv() => break Ok(()),
                _ = signals.interrupt.recv() => break Ok(()),
                () = self.running.is_to_stop() => break Ok(()),
                _ = signals.reopen.recv() => {
                    self.gateway.reopen_log();
                    self.node.reopen_logs();
                    self.log.reopen();
                }
                outcome = outcome_of(&mut under_way), if !is_idle => {
                    under_way = None;
                    self.finish(outcome);
                }
                () = &mut secrets, if !are_secrets_due => are_secrets_due = true,
                ssls = fresh(self.ordered.as_ref()), if is_idle => {
                    under_way = Some(self.begin(Change::Certificates(ssls)));
                }
                _ = signals.hangup.recv(), if is_idle => under_way = Some(self.begin(Change::File(None))),
                event = next_event(&mut self.watch), if is_idle => {
                    self.absorb(event);
                    under_way = Some(self.begin(Change::Resources));
                }
                Some(command) = self.commands.recv(), if is_idle => {
                    under_way = Some(self.begin(match command {
                        Command::Reload(asker) => Change::File(asker),
                        Command::Edit(edit, asker) => Change::Edit(edit, Some(asker)),
                    }));
                }
                _ = watch.tick() => {
                    if self.gateway.has_lost_a_worker() {
                        tracing::error!("a worker thread has ended; the process ends, to be started anew");
                        break Err(WorkerLost);
                    }
                    self.tidy();
                    if is_idle && self.options.watch && self.options.source.has_changed(&mut stamp) {
                        under_way = Some(self.begin(Change::File(None)));
                    } else if is_idle && self.publisher.has_new_places() {
                        under_way = Some(self.begin(Change::Places));
                    }
                }
            }
        };
        drop(under_way);
        let reason = if result.is_ok() { STOPPING } else { "a worker thread has ended" };
        self.stop(reason).await;
        result
    }

    /// Asks for all secrets after a pause, so that they need not be waited for.
    fn look_ahead(&self) -> impl Future<Output = ()> + use<> {
        let period = Duration::from_millis(self.current.settings.secret_lookup.refresh_ms.into());
        self.publisher.look_ahead(period.mul_f64(1.0 + SECRETS_JITTER * (fastrand::f64() - 0.5)))
    }

    /// Gives back what nobody needs any more.
    fn tidy(&mut self) {
        self.gateway.sweep();
        self.usage.tell(&self.current.settings.load_shedding);
        let left = self.until_settled;
        self.until_settled = left.saturating_sub(1);
        if left == 1
            && let Err(error) = sigma_net::memory::release_code()
        {
            tracing::debug!(%error, "the code of the start stays in memory");
        }
        if std::mem::take(&mut self.has_changed) {
            sigma_net::memory::give_back();
        }
    }

    /// Takes in what the store tells, all at once if several changes came together.
    fn absorb(&mut self, event: Event) {
        self.has_changed = true;
        let mut next = Some(event);
        while let Some(event) = next {
            if let Some(sharing) = &self.health_sharing {
                sharing.hear(&event);
            }
            if let Some(ordered) = &self.ordered {
                ordered.hear(&event);
            }
            self.publisher.absorb(event);
            next = self.watch.as_mut().and_then(|watch| watch.try_recv().ok());
        }
    }

    /// Begins a change; nothing has changed before it is given to [`Supervisor::finish`].
    fn begin(&self, change: Change) -> UnderWay {
        let (publisher, source) = (Arc::clone(&self.publisher), self.options.source.clone());
        let is_stored = self.store.is_some();
        match change {
            Change::Resources => Box::pin(async move { Outcome::Part(publisher.change().await) }),
            Change::Secrets => Box::pin(async move { Outcome::Part(publisher.refresh().await) }),
            Change::Places => Box::pin(async move { Outcome::Part(publisher.refresh_places().await) }),
            Change::Certificates(ssls) => Box::pin(async move { Outcome::Part(publisher.show(ssls).await) }),
            Change::File(asker) => {
                let plugins = Arc::clone(&self.all_plugins);
                Box::pin(
                    async move { Outcome::File(load(&source, &plugins, &publisher, is_stored).await, asker) },
                )
            }
            Change::Edit(edit, asker) => Box::pin(async move {
                let mut next = publisher.state().desired.clone();
                let whole = match edit.apply(&mut next.config) {
                    Ok(()) => compile(&source, &publisher, next, is_stored).await,
                    Err(reason) => Err(StartError::Edit(reason)),
                };
                Outcome::Edit(whole, asker)
            }),
        }
    }

    /// Puts a change into force, as far as it can be.
    fn finish(&mut self, outcome: Outcome) {
        let (result, asker) = match outcome {
            Outcome::Part(None) => return self.tell_store(),
            Outcome::Part(Some(part)) => return self.publish(part),
            Outcome::File(whole, asker) => {
                let result = whole.and_then(|whole| self.commit(whole)).map_err(|error| error.to_string());
                self.running.reloaded(result.as_ref().err().cloned());
                self.log.reloaded(&result);
                match &result {
                    Ok(()) => tracing::info!(target: LIFE, "configuration reloaded"),
                    Err(error) => tracing::error!(
                        "the configuration was not reloaded, the old one stays in force:\n{error}"
                    ),
                }
                (result, asker)
            }
            Outcome::Edit(whole, asker) => {
                (whole.and_then(|whole| self.commit(whole)).map_err(|error| error.to_string()), asker)
            }
        };
        // Nobody waits for a reply if its connection has gone.
        let _ = asker.map(|asker| asker.send(result));
    }

    /// Puts a change of resources into force.
    fn publish(&mut self, part: Part) {
        self.current = Arc::clone(&part.snapshot);
        // First: what operators want of nodes that are new holds before anybody asks those.
        self.publisher.adopt_part(part);
        self.gateway.publish(&self.current);
        self.tell_store();
    }

    /// Puts a whole configuration into force; on an error everything stays as it is.
    fn commit(&mut self, whole: Whole) -> Result<(), StartError> {
        let snapshot = Arc::clone(&whole.snapshot);
        let log = access_log(&snapshot.settings)?;
        let prepared = self.gateway.prepare(&snapshot, log)?;
        // First, as in `publish`.
        self.publisher.adopt(whole);
        self.gateway.commit(prepared);
        self.tell_store();
        warn_of_restart(&self.current.settings, &snapshot.settings);
        if let Err(error) = self.log.set_level(&snapshot.settings.error_log.level) {
            tracing::error!(%error, "the level of the error log stays as it was");
        }
        self.current = snapshot;
        self.has_changed = true;
        Ok(())
    }

    /// Tells the store, which keeps the last good forms, what is quarantined.
    fn tell_store(&self) {
        let Some(store) = &self.store else { return };
        let state = self.publisher.state();
        let keys: Vec<String> = state.desired.quarantine().map(|one| one.key.to_string()).collect();
        store.judged(state.desired.revision(), &keys);
    }

    /// Lets open exchanges finish. Operators are answered until the process ends; `reason` is why
    /// traffic should go elsewhere.
    async fn stop(mut self, reason: &'static str) {
        self.running.set_unready(Some(reason));
        // Whoever tells something from now on learns that nobody does it, instead of waiting.
        self.commands.close();
        while self.commands.try_recv().is_ok() {}
        tracing::info!(target: LIFE, "stopping: no new connections, open exchanges may finish");
        if let Some(file) = &self.health_file {
            file.write_last(&self.publisher).await;
        }
        if let Some(sharing) = &self.health_sharing {
            sharing.leave().await;
        }
        if let Some(ordered) = &self.ordered {
            ordered.leave().await;
        }
        self.gateway.drain().await;
        if tokio::time::timeout(ENDING_TIMEOUT, self.node.end()).await.is_err() {
            tracing::error!("what plugins had buffered did not leave in time, and is lost");
        }
        if let Some(path) = &self.pid_file {
            // Gone already is as good as removed.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Reads the file again, and compiles what it says.
async fn load(
    source: &Source,
    plugins: &Arc<Roster>,
    publisher: &Publisher,
    is_stored: bool,
) -> Result<Whole, StartError> {
    let checked = source.load_aside(plugins).await?;
    for warning in &checked.warnings {
        tracing::warn!("{}: {warning}", source.path.display());
    }
    let mut next = publisher.state().desired.clone();
    if is_stored {
        if let Some(problem) = examine::two_sources(&checked.config) {
            return Err(source.invalid(vec![problem]).into());
        }
        next.replace_settings(checked);
    } else {
        next.replace_file(checked);
    }
    compile(source, publisher, next, is_stored).await
}

async fn compile(
    source: &Source,
    publisher: &Publisher,
    next: Desired,
    is_stored: bool,
) -> Result<Whole, StartError> {
    let whole = publisher.compile(next, !is_stored && source.skip_invalid).await;
    whole.map_err(|failures: Vec<Failure>| source.invalid(problems(failures)).into())
}

/// Never, if nothing is under way.
async fn outcome_of(under_way: &mut Option<UnderWay>) -> Outcome {
    match under_way {
        Some(change) => change.await,
        None => std::future::pending().await,
    }
}

/// The ssls whose certificates are not in force yet; never, if none are ordered.
async fn fresh(ordered: Option<&Arc<Ordered>>) -> Vec<ResourceKey> {
    match ordered {
        Some(ordered) => {
            ordered.fresh().await;
            ordered.take_fresh()
        }
        None => std::future::pending().await,
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
