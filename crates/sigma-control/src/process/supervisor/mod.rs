//! The life of the process: start, reload, stop.
//!
//! A reload is check → compile → prepare → commit; whatever fails before the commit leaves the running
//! configuration as it is. Changes come into force one after the other, in the order in which they came. One
//! that waits, for names or for secrets, delays nothing else: signals are handled meanwhile, operators get
//! answers, and it is abandoned when the process stops.

mod begin;
mod changes;
mod history;
mod residents;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sigma_cache::Zones;
use sigma_config::kind::ResourceKey;
use sigma_discovery::DocumentFollower;
use sigma_plugin::Node;
use sigma_proxy::{Gateway, Snapshot};
use tokio::sync::mpsc;

use self::changes::{Change, Outcome, UnderWay, outcome_of};
use super::handover::{self, Channel};
use super::log_control::{LIFE, LogControl};
use super::parent::Link;
use super::pid_file::PidFile;
use super::process_history::{ProcessHistory, Trigger};
use super::program::Program;
use super::sandbox::Sandbox;
use super::start::{Signals, StartError, access_log, reload_note, warn_of_restart};
use super::systemd::Systemd;
use super::upgrade::{Starter, Successor};
use super::usage::Usage;
use super::watch_over::{ENDED, WatchOver};
use crate::operators::audit::Audit;
use crate::operators::entrances::Entrances;
use crate::operators::running::{Command, Running, STOPPING};
use crate::serving::acme::Ordered;
use crate::serving::health_file::HealthFile;
use crate::serving::health_sharing::HealthSharing;
use crate::serving::plugin_files::AllPlugins;
use crate::serving::plugins::Rosters;
use crate::serving::publisher::{Part, Publisher, Whole};
use crate::serving::source::Source;
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
/// Commands of operators that may wait for their turn; further senders wait.
const COMMANDS: usize = 16;

/// How to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration file.
    pub source: Source,
    /// Reload when the file changes.
    pub watch: bool,
    /// The plugins of this build, and those in files.
    pub plugins: AllPlugins,
    /// The sandbox of this process.
    pub sandbox: Sandbox,
}

/// A worker thread has ended by itself, and its part of the connections with it.
#[derive(Debug, thiserror::Error)]
#[error("a worker thread ended unexpectedly; the error log has the reason")]
pub struct WorkerLost;

/// The running process.
pub struct Supervisor {
    options: Options,
    /// The plugins, to check files with.
    rosters: Rosters,
    /// The state of the files of plugins, for `--watch`; None without files.
    files_stamp: Option<u64>,
    publisher: Arc<Publisher>,
    /// Certificates that the gateway orders itself, if it does.
    ordered: Option<Arc<Ordered>>,
    gateway: Gateway,
    /// The process's use of its resources.
    usage: Usage,
    /// What plugins share.
    node: Arc<Node>,
    current: Arc<Snapshot>,
    store: Option<Arc<dyn Store>>,
    /// The followed documents, if the settings name some.
    follower: Option<Arc<DocumentFollower>>,
    process_history: Option<ProcessHistory>,
    audit: Option<Arc<Audit>>,
    /// Events of the store.
    watch: Option<Watch>,
    log: Box<dyn LogControl>,
    running: Arc<Running>,
    commands: mpsc::Receiver<Command>,
    pid_file: Option<PidFile>,
    /// The listening sockets for operators.
    entrances: Arc<Entrances>,
    /// The program of a successor.
    program: Program,
    starter: Starter,
    /// The parent of this process.
    parent: Option<Link>,
    /// The service manager, which a parent tells itself.
    systemd: Option<Systemd>,
    watch_over: WatchOver,
    health_file: Option<HealthFile>,
    health_sharing: Option<HealthSharing>,
    /// Something was read since memory was last given back.
    has_changed: bool,
    /// Periods until the start counts as over; 0 when it is.
    until_settled: u32,
    /// Taken by [`Supervisor::run`].
    signals: Option<Signals>,
}

impl Supervisor {
    /// Runs until it is ordered to stop, then drains.
    ///
    /// # Errors
    /// Returns an error if a worker has ended by itself: the others serve their open exchanges to the end,
    /// and the parent or service manager restarts the process.
    pub async fn run(mut self) -> Result<(), WorkerLost> {
        let Some(mut signals) = self.signals.take() else { return Ok(()) };
        sigma_net::worker::yield_to_workers();
        let mut watch = tokio::time::interval(WATCH_PERIOD);
        let mut secrets = Box::pin(self.look_ahead());
        let mut are_secrets_due = false;
        let mut under_way: Option<UnderWay> = None;
        let mut successor = None;
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
                () = order_to_stop(&self.running, self.parent.as_ref()) => break Ok(()),
                _ = signals.reopen.recv() => self.reopen_logs(),
                outcome = outcome_of(&mut under_way), if !is_idle => {
                    under_way = None;
                    successor = self.finish(outcome).await;
                    if successor.is_some() {
                        break Ok(());
                    }
                }
                _ = signals.upgrade.recv(), if is_idle => under_way = self.own_successor(),
                channel = given(self.parent.as_ref(), &self.node), if is_idle => under_way = self.parents_successor(channel),
                () = &mut secrets, if !are_secrets_due => are_secrets_due = true,
                ssls = fresh(self.ordered.as_ref()), if is_idle => {
                    under_way = Some(self.begin(Change::Certificates(ssls)));
                }
                _ = signals.hangup.recv(), if is_idle => {
                    if let Some(systemd) = &self.systemd {
                        systemd.reloading();
                    }
                    under_way = Some(self.begin(Change::File(Trigger::Signal, None)));
                }
                () = newer_documents(self.follower.as_ref()), if is_idle => {
                    under_way = Some(self.begin(Change::File(Trigger::Followed, None)));
                }
                event = next_event(&mut self.watch), if is_idle => {
                    self.absorb(event);
                    under_way = Some(self.begin(Change::Resources));
                }
                Some(command) = self.commands.recv(), if is_idle => {
                    under_way = Some(self.begin(match command {
                        Command::Reload(asker) => Change::File(Trigger::Call, asker),
                        Command::Edit(edit, asker) => Change::Edit(edit, Some(asker)),
                    }));
                }
                _ = watch.tick() => {
                    if self.look_at_workers().await.is_err() {
                        tracing::error!("a worker thread ended; the process ends and is restarted");
                        break Err(WorkerLost);
                    }
                    self.tidy();
                    if is_idle {
                        under_way = self.seen();
                    }
                }
            }
        };
        drop(under_way);
        let reason = if result.is_ok() { STOPPING } else { ENDED };
        self.stop(reason, successor).await;
        result
    }

    /// Begins with a successor that was requested by a signal.
    fn own_successor(&self) -> Option<UnderWay> {
        if self.parent.is_some() {
            tracing::error!("the parent of this process starts successors: signal the parent instead");
            return None;
        }
        Some(self.begin(Change::Successor(None)))
    }

    /// Begins with a successor that the parent has started; without one the parent has gone.
    fn parents_successor(&mut self, channel: Option<Channel>) -> Option<UnderWay> {
        if channel.is_none() {
            tracing::error!("the parent process ended; this process continues without it");
            self.parent = None;
        }
        channel.map(|channel| self.begin(Change::Successor(Some(channel))))
    }

    /// Begins with the noticed change, if there is one.
    fn seen(&mut self) -> Option<UnderWay> {
        if self.options.watch && (self.options.source.has_changed() || self.plugin_files_have_changed()) {
            return Some(self.begin(Change::File(Trigger::Watch, None)));
        }
        if self.publisher.has_new_pairs() {
            return Some(self.begin(Change::Pairs));
        }
        self.publisher.has_new_places().then(|| self.begin(Change::Places))
    }

    /// Returns true if the files of plugins look different than before, once for each change.
    fn plugin_files_have_changed(&mut self) -> bool {
        let stamp = self.options.plugins.stamp();
        std::mem::replace(&mut self.files_stamp, stamp) != stamp
    }

    /// Reopens all logs.
    fn reopen_logs(&mut self) {
        self.gateway.reopen_log();
        self.node.reopen_logs();
        self.audit.iter().for_each(|audit| audit.reopen());
        self.log.reopen();
    }

    /// Requests all secrets after a pause, so that they need not be waited for.
    fn look_ahead(&self) -> impl Future<Output = ()> + use<> {
        let period = Duration::from_millis(self.current.settings.secret_lookup.refresh_ms.into());
        self.publisher.look_ahead(period.mul_f64(1.0 + SECRETS_JITTER * (fastrand::f64() - 0.5)))
    }

    /// Frees unused resources.
    fn tidy(&mut self) {
        self.gateway.sweep();
        self.usage.tell(&self.current.settings.load_shedding);
        self.mend_history();
        let left = self.until_settled;
        self.until_settled = left.saturating_sub(1);
        if left == 1
            && let Err(error) = sigma_net::memory::release_code()
        {
            tracing::debug!(%error, "cannot free the memory of the startup code");
        }
        if std::mem::take(&mut self.has_changed) {
            sigma_net::memory::give_back();
        }
    }

    /// Sends the current listening sockets to the parent.
    async fn tell_parent_of_sockets(&self) {
        let Some(parent) = &self.parent else { return };
        let sockets = self.gateway.inheritance().sockets().and_then(|mut sockets| {
            sockets.extend(self.entrances.sockets()?);
            Ok(sockets)
        });
        match sockets {
            Ok(sockets) => parent.hold(&sockets).await,
            Err(error) => tracing::error!(%error, "the parent does not hold all sockets"),
        }
    }

    /// Sees whether all workers are alive. One that is not has the parent start another gateway.
    async fn look_at_workers(&mut self) -> Result<(), WorkerLost> {
        let problem = self.watch_over.look(&self.gateway, &self.current.settings.process);
        if let Some(systemd) = self.systemd.as_mut().filter(|_| problem.is_none()) {
            systemd.alive(Instant::now());
        }
        self.running.set_unready(problem);
        let Some(parent) = &self.parent else {
            return if problem == Some(ENDED) { Err(WorkerLost) } else { Ok(()) };
        };
        parent.beat().await;
        if let Some(why) = problem
            && self.watch_over.is_to_be_told()
        {
            parent.ask_for_replacement(why).await;
        }
        Ok(())
    }

    /// Puts a change into force, as far as it can be. Returns the successor of this process, if there is one now.
    async fn finish(&mut self, outcome: Outcome) -> Option<Successor> {
        let (result, asker) = match outcome {
            Outcome::Part(None) => {
                self.tell_store();
                return None;
            }
            Outcome::Part(Some(part)) => {
                self.publish(part);
                return None;
            }
            Outcome::Successor(successor) => return self.upgraded(successor).await,
            Outcome::File(whole, trigger, asker) => {
                let result = whole.and_then(|whole| self.commit(whole)).map_err(|error| error.to_string());
                let note = reload_note(result.as_deref().unwrap_or_default());
                self.judge_documents(trigger, result.as_ref().err());
                let result = result.map(drop);
                self.running.reloaded(result.as_ref().err().cloned());
                self.tell_history_of_file(trigger, &result);
                self.carried_out(result.as_ref().map(|()| &*note).map_err(|problem| &**problem)).await;
                match &result {
                    Ok(()) => tracing::info!(target: LIFE, "configuration reloaded"),
                    Err(error) => tracing::error!(
                        "the reload failed and the old configuration stays in force:\n{error}"
                    ),
                }
                (result, asker)
            }
            Outcome::Edit(whole, asker) => {
                let result = whole.and_then(|whole| self.commit(whole)).map(drop);
                (result.map_err(|error| error.to_string()), asker)
            }
        };
        self.tell_parent_of_sockets().await;
        // A caller whose connection has gone gets no reply.
        let _ = asker.map(|asker| asker.send(result));
        None
    }

    /// Reports the result to the sender of a signal to this process, or to its parent.
    async fn carried_out(&mut self, result: Result<&str, &str>) {
        self.log.carried_out(result);
        if let Some(parent) = &self.parent {
            parent.carried_out(result).await;
        }
        if let Some(systemd) = &self.systemd {
            systemd.ready();
        }
    }

    /// Reports the result of an upgrade.
    async fn upgraded(&mut self, successor: Result<Successor, String>) -> Option<Successor> {
        match successor {
            Ok(successor) => {
                self.carried_out(Ok(&successor.note())).await;
                let (version, pid) = (&successor.version, successor.pid);
                tracing::info!(target: LIFE, version, pid, "a successor serves");
                if let Some((systemd, pid)) = self.systemd.as_ref().zip(pid) {
                    systemd.succeeded_by(pid);
                }
                Some(successor)
            }
            Err(why) => {
                tracing::error!("the upgrade failed and this process keeps serving:\n{why}");
                self.carried_out(Err(&why)).await;
                None
            }
        }
    }

    /// Puts a change of resources into force.
    fn publish(&mut self, part: Part) {
        part.snapshot.residents.prepare(Some(&self.current.residents), &self.node);
        self.go_on_with(Arc::clone(&part.snapshot));
        // First: operators' states of new nodes apply before the first request to them.
        self.publisher.adopt_part(part);
        self.gateway.publish(&self.current);
        self.tell_store();
    }

    /// Puts a whole configuration into force; on an error everything stays as it is. Returns the names of settings that
    /// need a restart.
    fn commit(&mut self, mut whole: Whole) -> Result<Vec<&'static str>, StartError> {
        let (plugins, documents) = (whole.plugins.take(), whole.documents.take());
        let snapshot = Arc::clone(&whole.snapshot);
        let log = access_log(&snapshot.settings)?;
        let prepared = self.gateway.prepare(&snapshot, log)?;
        snapshot.residents.prepare(Some(&self.current.residents), &self.node);
        if let Some((plugins, rosters)) = plugins {
            self.rosters.supersede(&rosters);
            tracing::info!(target: LIFE, files = plugins.files.kinds.len(), "read the plugins in files again");
            self.options.plugins = plugins;
        }
        // First, as in `publish`.
        self.publisher.adopt(whole);
        self.gateway.commit(prepared);
        self.tell_store();
        if let (Some(follower), Some(documents)) = (&self.follower, documents) {
            follower.accepted(&documents);
        }
        let need_restart = warn_of_restart(&self.current.settings, &snapshot.settings);
        if let Err(error) = self.log.set_level(&snapshot.settings.error_log.level) {
            tracing::error!(%error, "cannot change the level of the error log");
        }
        self.go_on_with(snapshot);
        self.has_changed = true;
        Ok(need_restart)
    }

    /// Continues with the new snapshot.
    fn go_on_with(&mut self, snapshot: Arc<Snapshot>) {
        residents::go_on(&self.node, &self.current, &snapshot);
        self.current = snapshot;
    }

    /// Lets open exchanges finish. Operators are answered until the process ends, unless a successor does; `reason` is
    /// why traffic should go elsewhere.
    async fn stop(mut self, reason: &'static str, successor: Option<Successor>) {
        residents::end(&self.node);
        if let Some(Successor { channel, takes_sessions, .. }) = &successor {
            // First: no process receives datagrams until it has them.
            if *takes_sessions {
                handover::pass(channel, self.gateway.pass_sessions().await).await;
            }
            self.running.members().fall_silent();
            self.running.registration().inspect(|registration| registration.fall_silent());
            if let Some(file) = self.pid_file.take() {
                file.leave();
            }
            self.gateway.hand_over();
            // The successor waits for them, and finds there what this process has kept.
            self.node.part(Zones::default).leave_disks();
            if let Some(process_history) = &self.process_history {
                process_history.history.close().await;
            }
            handover::leave(channel).await;
        }
        if let Some(systemd) = self.systemd.as_ref().filter(|_| successor.is_none()) {
            systemd.stopping();
        }
        self.running.set_unready(Some(reason));
        self.running.taps().close();
        // Later commands fail at once, instead of waiting.
        self.commands.close();
        while self.commands.try_recv().is_ok() {}
        tracing::info!(target: LIFE, "stopping: no new connections; open requests may finish");
        // A successor has it, and writes it.
        if successor.is_none() {
            // First: other programs send no new requests before the listeners close.
            if let Some(registration) = self.running.registration() {
                registration.leave().await;
            }
            if let Some(file) = &self.health_file {
                file.write_last(&self.publisher).await;
            }
            if let Some(sharing) = &self.health_sharing {
                sharing.leave().await;
            }
            self.running.members().leave().await;
        }
        if let Some(ordered) = &self.ordered {
            ordered.leave().await;
        }
        self.gateway.drain().await;
        if tokio::time::timeout(ENDING_TIMEOUT, self.node.end()).await.is_err() {
            tracing::error!("plugins could not send their buffered data in time; it is lost");
        }
        if let Some(file) = self.pid_file.take() {
            file.remove();
        }
    }
}

/// Waits until an operator orders the gateway to stop, and passes that on to the parent, which would start
/// another one.
async fn order_to_stop(running: &Running, parent: Option<&Link>) {
    running.is_to_stop().await;
    if let Some(parent) = parent {
        parent.stop().await;
    }
}

/// The next successor that the parent has started; never, if there is no parent. None if that has gone.
async fn given(parent: Option<&Link>, node: &Node) -> Option<Channel> {
    match parent {
        Some(parent) => parent.successor(node).await,
        None => std::future::pending().await,
    }
}

/// Waits until a followed document is newer than the one in force; forever, if none is followed.
async fn newer_documents(follower: Option<&Arc<DocumentFollower>>) {
    match follower {
        Some(follower) => follower.changed().await,
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
        tracing::error!("the store no longer reports changes");
        *watch = None;
    }
    std::future::pending().await
}
