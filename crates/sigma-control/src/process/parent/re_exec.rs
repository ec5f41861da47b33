//! Re-exec of a parent as another program: the state that it leaves, and how the next image continues.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use sigma_net::descriptors;
use tokio::sync::mpsc;

use super::child::Child;
use super::outbox::Outbox;
use super::renewal::{KeptChild, LeftOpen, ParentState, Renewal, become_program};
use super::{
    ChildGateways, EVENTS, Order, Parent, ParentExit, ParentLogs, ProgramFiles, RestartDelay, listened,
    number,
};
use crate::process::handover::{Channel, Origin};
use crate::process::log_control::{LIFE, LogControl};
use crate::process::pid_file::PidFile;
use crate::process::start::{Incoming, Signals, StartError};
use crate::process::systemd::Systemd;

/// The time for children to send their last messages, before the parent executes another program.
const LAST_WORDS: Duration = Duration::from_millis(1);

impl Parent {
    /// Continues from the state that a former image of this process has left. Must be called within a
    /// runtime, while signals are held back.
    ///
    /// # Errors
    /// Returns an error if it is not there.
    pub fn go_on(renewal: Renewal, log: Box<dyn LogControl>, origin: &Origin) -> Result<Parent, StartError> {
        let lines = Outbox::of_log();
        let has_predecessor = renewal.has_predecessor();
        let ParentState { version, settings, error_log, pid_file, held, children, deaths, status, .. } =
            renewal.0;
        lines.begin_with(renewal.0.lines, renewal.0.lines_lost);
        let held = held.into_iter().map(descriptors::adopt).collect::<io::Result<Vec<OwnedFd>>>();
        let pid_file = pid_file.map(|(path, file)| Ok(PidFile::kept(path, descriptors::adopt(file)?)));
        let mut parent = Parent {
            program: origin.program.clone(),
            settings,
            logs: ParentLogs { settings: error_log, control: log, lines },
            has_predecessor,
            files: ProgramFiles::new(),
            pid_file: pid_file.transpose().map_err(StartError::Handover)?,
            signals: Some(listened().map_err(StartError::Signals)?),
            events: mpsc::channel(EVENTS),
            gateways: ChildGateways::new(held.map_err(StartError::Handover)?),
            systemd: Systemd::of_environment(has_predecessor),
            restarts: RestartDelay { deaths, start_at: None },
            exit: ParentExit { stopping: None, status },
            launcher: None,
        };
        for kept in children {
            let is_current = kept.is_current;
            let child = parent.taken_up(kept).map_err(StartError::Handover)?;
            match is_current {
                true => parent.gateways.current = Some(child),
                false => parent.gateways.retired.push(child),
            }
        }
        let now = env!("CARGO_PKG_VERSION");
        tracing::info!(target: LIFE, from = version, to = now, "the parent process executes the new program");
        Ok(parent)
    }

    fn taken_up(&self, kept: KeptChild) -> io::Result<Child> {
        let none = || io::Error::new(io::ErrorKind::InvalidData, "a gateway without an id");
        let pid = Pid::from_raw(kept.pid).ok_or_else(none)?;
        let link = Channel::over(descriptors::adopt(kept.link)?)?;
        let child = Child::of(pid, link, &self.events.0)?;
        let started = Instant::now().checked_sub(Duration::from_millis(kept.runs_for_ms));
        Ok(Child { started: started.unwrap_or(child.started), takes_lines: kept.takes_lines, ..child })
    }

    /// Whether a gateway serves that is of another program, and nothing else is under way.
    pub(super) fn is_to_renew(&self) -> bool {
        self.files.renewed_by.is_some()
            && self.gateways.current.is_some()
            && self.gateways.next.is_none()
            && self.exit.stopping.is_none()
            && self.launcher.is_none()
            // The first half of a message is known to this image only.
            && self.children().all(|child| child.telling.is_empty())
    }

    /// Goes on as the program of the gateway that serves. Returns if there is no other one, if something has to be done
    /// before, or if it cannot be: then the log says so.
    pub(super) async fn renew(&mut self, signals: &mut Signals) {
        let Some((own, told)) = self.files.file.zip(self.files.renewed_by.take()) else { return };
        if !own.is_outdated_by(told, self.program.path()) {
            return;
        }
        if let Err(error) = sigma_net::signals::hold_back() {
            tracing::error!(%error, "the parent process keeps its program");
            return;
        }
        self.hear_out(signals).await;
        self.files.renewed_by = Some(told);
        // An incoming message may be more important, and comes first.
        if self.is_to_renew() {
            self.files.renewed_by = None;
            let error = self.become_it();
            tracing::error!(
                program = %self.program.path().display(),
                %error,
                "the parent process cannot execute the program of its gateway: it keeps its version until the next start"
            );
        }
        if let Err(error) = sigma_net::signals::let_through() {
            tracing::error!(%error, "cannot unblock signals");
        }
    }

    /// Reads all messages, and the signals that came before they were held back: they are known to this image
    /// alone.
    async fn hear_out(&mut self, signals: &mut Signals) {
        loop {
            // Tasks that wait for a channel, a process or a signal get a turn.
            tokio::time::sleep(LAST_WORDS).await;
            let mut is_quiet = true;
            while let Ok(event) = self.events.1.try_recv() {
                self.take_in(event);
                is_quiet = false;
            }
            for order in came(signals) {
                self.follow(order);
                is_quiet = false;
            }
            if is_quiet {
                return;
            }
        }
    }

    /// Executes the program. No task gets a turn from here on, so new messages wait in the channels.
    fn become_it(&self) -> io::Error {
        self.logs.control.flush();
        let mut left = LeftOpen::default();
        match self.kept(&mut left) {
            Ok(kept) => {
                let error = become_program(self.program.path(), self.program.arguments(), &kept);
                self.logs.lines.begin_with(kept.lines, kept.lines_lost);
                error
            }
            Err(error) => error,
        }
    }

    fn kept<'p>(&'p self, left: &mut LeftOpen<'p>) -> io::Result<ParentState> {
        let mut children = Vec::new();
        let current = self.gateways.current.iter().map(|child| (child, true));
        for (child, is_current) in current.chain(self.gateways.retired.iter().map(|child| (child, false))) {
            children.push(KeptChild {
                pid: number(child.pid),
                link: left.leave(&*child.link)?,
                is_current,
                takes_lines: child.takes_lines,
                runs_for_ms: u64::try_from(child.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            });
        }
        let mut held = Vec::new();
        for socket in &self.gateways.held {
            held.push(left.leave(socket)?);
        }
        let pid_file = match &self.pid_file {
            Some(file) => Some((file.path().to_owned(), left.leave(file)?)),
            None => None,
        };
        let outcome = self.logs.control.outcome().map(|outcome| left.leave_borrowed(outcome)).transpose()?;
        // The last, so that nothing is lost if there is an error.
        let (lines, lines_lost) = self.logs.lines.take();
        Ok(ParentState {
            protocol: ParentState::PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            settings: self.settings.clone(),
            error_log: self.logs.settings.clone(),
            pid_file,
            outcome,
            held,
            children,
            deaths: self.restarts.deaths,
            status: self.exit.status,
            has_predecessor: self.has_predecessor,
            lines,
            lines_lost,
        })
    }
}

/// The orders that have come already.
fn came(signals: &mut Signals) -> Vec<Order> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut has_come = |signal: &mut Incoming| signal.poll_recv(&mut cx).is_ready();
    let Signals { hangup, terminate, interrupt, reopen, upgrade } = signals;
    let all = [
        (terminate, Order::Stop),
        (interrupt, Order::Stop),
        (hangup, Order::Reload),
        (reopen, Order::Reopen),
        (upgrade, Order::Upgrade),
    ];
    all.into_iter().filter_map(|(signal, order)| has_come(signal).then_some(order)).collect()
}
