//! The parent of gateways: it holds their sockets, starts them, and replaces one that dies.
//!
//! It serves nothing itself, so there is little in it that could fail. It never reads what clients send.
//!
//! | a gateway | what happens |
//! |---|---|
//! | ends before it has ever served | the parent ends, with its exit status |
//! | dies | another one starts at once, on the sockets that the parent holds; after a pause if it dies soon again |
//! | has lost a worker, or one of its workers is stuck | another one replaces it, and it drains |
//! | says nothing for `process.silence_ms` | it is killed, and replaced |
//! | serves that is of another program | the parent goes on as that program, too: see `renewal` |

mod child;
mod link;
mod outbox;
mod re_exec;
mod renewal;

pub(crate) use link::Link;
pub use renewal::Renewal;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use sigma_config::process::Process;
use sigma_config::settings::{ErrorLog, Settings};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use self::child::{Child, Event};
use self::link::Word;
use self::outbox::Outbox;
use self::renewal::ProgramFile;
use super::handover::{self, Channel, Estate, Origin, State};
use super::log_control::{LIFE, LogControl};
use super::pid_file::{PidFile, PidFileLocation};
use super::program::Program;
use super::start::{Signals, StartError};
use super::systemd::Systemd;
use super::upgrade;

/// One that has served for so long has not died soon.
const SETTLED: Duration = Duration::from_secs(10);
/// How often signs of life are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Events that may wait for the parent.
const EVENTS: usize = 64;
/// A signal counts as another one only after this long, as with a gateway.
const APART: Duration = Duration::from_secs(1);

/// Why a gateway is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// There was none.
    First,
    /// The one before has died.
    Death,
    /// The one before has requested it.
    Replacement,
    /// An operator's order to restart the program.
    Upgrade,
}

/// An operator's order by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Stop,
    Reload,
    Reopen,
    Upgrade,
}

/// The parent.
pub struct Parent {
    program: Program,
    settings: Process,
    logs: ParentLogs,
    /// It has started as the successor of another process, or for one that waits.
    has_predecessor: bool,
    files: ProgramFiles,
    pid_file: Option<PidFile>,
    systemd: Systemd,
    signals: Option<Signals>,
    events: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
    gateways: ChildGateways,
    restarts: RestartDelay,
    exit: ParentExit,
    /// The process that waits for the first gateway to serve.
    launcher: Option<Channel>,
}

/// The error log of a parent.
struct ParentLogs {
    settings: ErrorLog,
    control: Box<dyn LogControl>,
    /// Lines of the log, for the serving gateway to ship.
    lines: Outbox,
}

/// The end of a parent.
struct ParentExit {
    /// When the parent was ordered to stop.
    stopping: Option<Instant>,
    /// The exit status of a gateway that has ended last.
    status: i32,
}

/// The program files of the parent and its gateway.
struct ProgramFiles {
    /// The one that the parent runs.
    file: Option<ProgramFile>,
    /// That of a gateway that serves, and that the parent is to continue as.
    renewed_by: Option<ProgramFile>,
}

impl ProgramFiles {
    fn new() -> ProgramFiles {
        ProgramFiles { file: ProgramFile::of_this_process(), renewed_by: None }
    }
}

/// The gateways that a parent has started.
struct ChildGateways {
    /// The gateway that serves.
    current: Option<Child>,
    /// The starting one, and the task that acts as its predecessor if no gateway serves.
    next: Option<(Child, Why, Option<JoinHandle<()>>)>,
    /// Signals for the starting one when it serves: it may have read the configuration before.
    owed: Vec<Signal>,
    /// Those that drain.
    retired: Vec<Child>,
    /// The sockets that the gateway listens on.
    held: Vec<OwnedFd>,
}

impl ChildGateways {
    /// Returns the state before the first gateway, with the sockets to listen on.
    fn new(held: Vec<OwnedFd>) -> ChildGateways {
        ChildGateways { current: None, next: None, owed: Vec::new(), retired: Vec::new(), held }
    }
}

/// The delay before another gateway, after one that has died.
struct RestartDelay {
    /// Gateways that died soon, one after the other.
    deaths: u32,
    /// When another one is to be started.
    start_at: Option<Instant>,
}

/// The parent's possessions for a gateway without a predecessor.
pub(crate) struct Orphanage(pub(crate) Vec<OwnedFd>);

impl Estate for Orphanage {
    async fn give(&mut self) -> io::Result<(Vec<OwnedFd>, Option<State>)> {
        Ok((std::mem::take(&mut self.0), None))
    }

    async fn take_back(&mut self) {}
}

impl Parent {
    /// A parent that has started its first gateway. Must be called within a runtime.
    ///
    /// # Errors
    /// Returns an error if that cannot be; nothing keeps running then.
    pub async fn start(
        settings: &Settings,
        default_pid_file: Option<&Path>,
        log: Box<dyn LogControl>,
        origin: &Origin,
    ) -> Result<Parent, StartError> {
        let lines = Outbox::of_log();
        let signals = listened().map_err(StartError::Signals)?;
        let mut held = origin.take_sockets();
        let launcher = origin.links().map_err(StartError::Handover)?.predecessor;
        if let Some(launcher) = &launcher {
            held.extend(handover::inherit(launcher).await.map_err(StartError::Handover)?.0);
        }
        let place = PidFileLocation::of(settings, default_pid_file);
        let pid_file = place.as_ref().map(PidFileLocation::write).transpose()?.flatten();
        let mut parent = Parent {
            program: origin.program.clone(),
            settings: settings.process.clone(),
            logs: ParentLogs { settings: settings.error_log.clone(), control: log, lines },
            has_predecessor: origin.has_predecessor(),
            files: ProgramFiles::new(),
            pid_file,
            signals: Some(signals),
            events: mpsc::channel(EVENTS),
            gateways: ChildGateways::new(held),
            systemd: Systemd::of_environment(origin.has_predecessor()),
            restarts: RestartDelay { deaths: 0, start_at: None },
            exit: ParentExit { stopping: None, status: 0 },
            launcher,
        };
        parent.begin(Why::First).map_err(StartError::Handover)?;
        Ok(parent)
    }

    /// Runs until it is ordered to stop, and until the gateways have drained. Returns the exit status.
    pub async fn run(mut self) -> i32 {
        let Some(mut signals) = self.signals.take() else { return 1 };
        let mut look = tokio::time::interval(LOOK);
        loop {
            if self.is_over() {
                break;
            }
            if let Some(current) = self.gateways.current.as_ref().filter(|current| current.takes_lines) {
                self.logs.lines.send(&current.link);
            }
            if self.is_to_renew() {
                self.renew(&mut signals).await;
                continue;
            }
            let start_at = self.restarts.start_at;
            tokio::select! {
                order = next_order(&mut signals) => self.follow(order),
                Some(event) = self.events.1.recv() => self.take_in(event),
                () = at(start_at) => {
                    self.restarts.start_at = None;
                    self.try_again();
                }
                _ = look.tick() => self.look(),
            }
        }
        if let Some(file) = self.pid_file.take() {
            file.remove();
        }
        self.exit.status
    }

    fn follow(&mut self, order: Order) {
        match order {
            Order::Stop => self.stop(),
            Order::Reload => {
                self.systemd.reloading();
                self.pass_on(Signal::HUP);
            }
            Order::Reopen => {
                self.logs.control.reopen();
                self.pass_on(Signal::USR1);
            }
            Order::Upgrade => self.upgrade(),
        }
    }

    /// Whether there is nothing left to do.
    fn is_over(&self) -> bool {
        let is_empty = self.gateways.current.is_none()
            && self.gateways.next.is_none()
            && self.gateways.retired.is_empty();
        is_empty && (self.exit.stopping.is_some() || self.restarts.start_at.is_none())
    }

    fn children(&self) -> impl Iterator<Item = &Child> {
        let next = self.gateways.next.as_ref().map(|(child, ..)| child);
        self.gateways.current.iter().chain(next).chain(&self.gateways.retired)
    }

    /// Lets all gateways drain; at the second time they are killed.
    fn stop(&mut self) {
        match self.exit.stopping {
            None => {
                tracing::info!(target: LIFE, "stopping: the gateway drains");
                self.systemd.stopping();
                self.exit.stopping = Some(Instant::now());
                self.restarts.start_at = None;
                // Otherwise clients would still connect, without a response.
                self.gateways.held.clear();
                self.children().for_each(|child| child.signal(Signal::TERM));
            }
            Some(first) if first.elapsed() >= APART => {
                self.exit.status = 128 + Signal::TERM.as_raw();
                self.children().for_each(|child| child.signal(Signal::KILL));
            }
            Some(_) => {}
        }
    }

    fn tell_current(&self, signal: Signal) {
        if let Some(current) = &self.gateways.current {
            current.signal(signal);
        }
    }

    /// Sends a signal to the serving gateway, and to the starting one.
    fn pass_on(&mut self, signal: Signal) {
        self.tell_current(signal);
        if self.gateways.next.is_some() && !self.gateways.owed.contains(&signal) {
            self.gateways.owed.push(signal);
        }
    }

    /// Starts a gateway. It gets everything from the one that serves, or the sockets from here.
    fn begin(&mut self, why: Why) -> io::Result<()> {
        let (child, predecessor) = Child::start(&self.program, &self.events.0)?;
        let mut giving = None;
        match self.gateways.current.as_ref().map(|current| std::sync::Arc::clone(&current.link)) {
            Some(link) => {
                let end = predecessor.into_end();
                // If it hears that no more, the one that starts sees its predecessor end.
                tokio::spawn(async move { link.say(&Word::Succeed, &[end]).await });
            }
            None => {
                let held = self.gateways.held.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
                giving = Some(self.give(predecessor, held));
            }
        }
        self.gateways.next = Some((child, why, giving));
        self.gateways.owed.clear();
        Ok(())
    }

    /// Plays the predecessor: gives the sockets.
    fn give(&self, channel: Channel, held: Vec<OwnedFd>) -> JoinHandle<()> {
        let limit = Duration::from_millis(self.settings.upgrade_timeout_ms.into());
        tokio::spawn(async move {
            match upgrade::give(channel, &mut Orphanage(held), limit).await {
                Ok(successor) => handover::leave(&successor.channel).await,
                Err(why) => tracing::error!("a gateway failed to start:\n{why}"),
            }
        })
    }

    /// Starts a gateway where one has died.
    fn try_again(&mut self) {
        if self.gateways.next.is_some() || self.gateways.current.is_some() || self.exit.stopping.is_some() {
            return;
        }
        if let Err(error) = self.begin(Why::Death) {
            tracing::error!(%error, "cannot start a gateway");
            self.restarts.deaths += 1;
            self.restarts.start_at = Some(Instant::now() + self.pause());
        }
    }

    fn upgrade(&mut self) {
        if self.exit.stopping.is_some() {
            return;
        }
        let problem = if self.gateways.next.is_some() || self.gateways.current.is_none() {
            Some("a gateway is already starting; try again when it serves".to_owned())
        } else {
            tracing::info!(target: LIFE, program = %self.program.path().display(), "starting a successor");
            let begun = self.begin(Why::Upgrade);
            begun.err().map(|error| format!("cannot start {}: {error}", self.program.path().display()))
        };
        if let Some(problem) = problem {
            tracing::error!("the successor failed to start: {problem}");
            self.logs.control.carried_out(Err(&problem));
        }
    }

    fn take_in(&mut self, event: Event) {
        match event {
            // A draining one may report the result of an upgrade.
            Event::Said(_, Word::CarriedOut { problem, note }, _) => {
                self.logs.control.carried_out(problem.as_deref().map_or(Ok(&*note), Err));
                self.systemd.ready();
            }
            Event::Said(pid, word, descriptors) => self.receive(pid, word, descriptors),
            Event::Ended(pid, text, code) => self.ended(pid, &text, code),
        }
    }

    fn receive(&mut self, pid: Pid, word: Word, descriptors: Vec<OwnedFd>) {
        let is_current = self.gateways.current.as_ref().is_some_and(|child| child.pid == pid);
        let next = self.gateways.next.as_mut().map(|(child, ..)| child).filter(|child| child.pid == pid);
        let Some(child) = next.or(self.gateways.current.as_mut().filter(|_| is_current)) else { return };
        child.heard = Instant::now();
        match word {
            Word::Socket => child.telling.extend(descriptors),
            Word::Sockets => {
                let told = std::mem::take(&mut child.telling);
                if self.exit.stopping.is_none() {
                    self.gateways.held = told;
                }
            }
            Word::Ready { takes_lines, program } => {
                child.takes_lines = takes_lines;
                self.files.renewed_by = program;
                self.serves(pid);
            }
            Word::Replace { why }
                if is_current && self.gateways.next.is_none() && self.exit.stopping.is_none() =>
            {
                tracing::error!("another gateway replaces process {}: {why}", number(pid));
                if let Err(error) = self.begin(Why::Replacement) {
                    tracing::error!(%error, "cannot start a gateway");
                }
            }
            Word::Stop if is_current && self.exit.stopping.is_none() => self.stop(),
            Word::Stop
            | Word::Replace { .. }
            | Word::CarriedOut { .. }
            | Word::Beat
            | Word::Succeed
            | Word::Line { .. } => {}
        }
    }

    /// The gateway that was started serves.
    fn serves(&mut self, pid: Pid) {
        let Some((child, why, _)) = self.gateways.next.take_if(|(child, ..)| child.pid == pid) else {
            return;
        };
        tracing::info!(target: LIFE, pid = number(pid), ?why, "a gateway serves");
        self.systemd.ready();
        if let Some(launcher) = self.launcher.take() {
            tokio::spawn(async move { handover::take_place(&launcher, drop).await });
        }
        // Its successor has notified the former one, which drains.
        std::mem::take(&mut self.gateways.owed).into_iter().for_each(|signal| child.signal(signal));
        self.gateways.retired.extend(self.gateways.current.replace(child));
        if self.exit.stopping.is_some() {
            self.tell_current(Signal::TERM);
        }
    }

    fn ended(&mut self, pid: Pid, text: &str, code: i32) {
        if let Some((_, why, giving)) = self.gateways.next.take_if(|(child, ..)| child.pid == pid) {
            if let Some(giving) = giving {
                giving.abort();
            }
            return self.has_not_started(why, text, code);
        }
        if let Some(place) = self.gateways.retired.iter().position(|child| child.pid == pid) {
            self.gateways.retired.swap_remove(place);
            tracing::debug!(pid = number(pid), text, "a gateway has drained");
            return;
        }
        let Some(child) = self.gateways.current.take_if(|child| child.pid == pid) else { return };
        self.exit.status = code;
        if self.exit.stopping.is_some() {
            return;
        }
        if code == 0 && self.gateways.next.is_some() {
            // Its successor ordered it to drain, and has not yet reported to the parent that it serves.
            tracing::debug!(pid = number(pid), text, "a gateway has drained");
            return;
        }
        self.restarts.deaths = if child.started.elapsed() >= SETTLED { 0 } else { self.restarts.deaths + 1 };
        if self.gateways.next.is_none() {
            self.start_after(self.pause());
        }
        // Clients wait for the other one; the log does not.
        tracing::error!("the gateway, process {}, ended ({text}); starting another", number(pid));
    }

    /// A gateway has ended before it served.
    fn has_not_started(&mut self, why: Why, text: &str, code: i32) {
        match why {
            // It has said why.
            Why::First => self.exit.status = if code == 0 { 1 } else { code },
            Why::Death => {
                self.restarts.deaths += 1;
                let pause = self.pause();
                tracing::error!(
                    "the gateway cannot start ({text}); the next attempt is in {} ms",
                    pause.as_millis()
                );
                self.restarts.start_at = Some(Instant::now() + pause);
            }
            // The serving one logs the reason, and has reported to the caller.
            Why::Upgrade | Why::Replacement if self.gateways.current.is_some() => {}
            Why::Upgrade | Why::Replacement => self.start_after(self.pause()),
        }
    }

    /// Starts a gateway that replaces a dead one: at once, if there is no pause to keep.
    fn start_after(&mut self, pause: Duration) {
        match pause.is_zero() {
            true => self.try_again(),
            false => self.restarts.start_at = Some(Instant::now() + pause),
        }
    }

    /// The pause before the next start.
    fn pause(&self) -> Duration {
        let (least, most) = (self.settings.restart_pause_ms, self.settings.restart_pause_max_ms);
        pause(self.restarts.deaths, least.into(), most.into())
    }

    /// Looks for signs of life.
    fn look(&mut self) {
        // It does its own work, with or without gateways.
        self.systemd.alive(Instant::now());
        let limit = Duration::from_millis(self.settings.silence_ms.into());
        if let Some(current) = self.gateways.current.as_ref().filter(|_| !limit.is_zero())
            && current.heard.elapsed() > limit
        {
            tracing::error!("the gateway, process {}, does not respond: killing it", number(current.pid));
            current.signal(Signal::KILL);
        }
    }
}

/// Receives signals, also those that were held back so far.
fn listened() -> io::Result<Signals> {
    let signals = Signals::receive()?;
    sigma_net::signals::let_through()?;
    Ok(signals)
}

/// The next order.
async fn next_order(signals: &mut Signals) -> Order {
    tokio::select! {
        _ = signals.terminate.recv() => Order::Stop,
        _ = signals.interrupt.recv() => Order::Stop,
        _ = signals.hangup.recv() => Order::Reload,
        _ = signals.reopen.recv() => Order::Reopen,
        _ = signals.upgrade.recv() => Order::Upgrade,
    }
}

/// The pause after so many early deaths in a row: none after the first, then twice as long each time.
fn pause(deaths: u32, least_ms: u64, most_ms: u64) -> Duration {
    let Some(doublings) = deaths.checked_sub(2) else { return Duration::ZERO };
    let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
    Duration::from_millis(least_ms.saturating_mul(factor).min(most_ms))
}

fn number(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_deaths_have_longer_and_longer_pauses() {
        let pauses: Vec<u64> = (0..8).map(|deaths| pause(deaths, 50, 1_000).as_millis() as u64).collect();
        assert_eq!(pauses, [0, 0, 50, 100, 200, 400, 800, 1_000]);
        assert_eq!(pause(u32::MAX, 50, 1_000), Duration::from_secs(1));
    }
}
