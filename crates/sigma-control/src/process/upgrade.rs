//! The process that replaces this one: how it is started, and its possessions.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use sigma_net::tls::SharedKey;
use sigma_plugin::Node;
use sigma_plugin::system::{Host, System};
use sigma_proxy::Gateway;
use sigma_upstream::health::StoredHealth;
use tokio::sync::oneshot;

use super::handover::{self, Channel, Estate, Heir, State};
use crate::operators::entrances::Entrances;
use crate::operators::running::{Running, fault_names};
use crate::serving::publisher::Publisher;
use crate::store::Store;

/// A thread that starts programs. They inherit its priority, the priority of workers: the control thread has
/// a lower one.
#[derive(Debug, Clone)]
pub(crate) struct Starter(mpsc::Sender<(Command, oneshot::Sender<io::Result<Child>>)>);

impl Starter {
    /// One with the priority of the calling thread.
    ///
    /// # Errors
    /// Returns the error of the operating system if there can be no thread.
    pub(crate) fn new() -> io::Result<Starter> {
        let (sender, commands) = mpsc::channel::<(Command, oneshot::Sender<io::Result<Child>>)>();
        std::thread::Builder::new().name("sigma-starter".into()).spawn(move || {
            for (mut command, reply) in commands {
                // The caller ends the started process; if the caller has ended, it ends for want of a
                // predecessor.
                let _ = reply.send(command.spawn());
            }
        })?;
        Ok(Starter(sender))
    }

    async fn start(&self, command: Command) -> io::Result<Child> {
        let stopped = || io::Error::other("the thread that starts programs ended");
        let (reply, child) = oneshot::channel();
        self.0.send((command, reply)).map_err(|_| stopped())?;
        child.await.map_err(|_| stopped())?
    }
}

/// A process that serves instead of this one.
#[derive(Debug)]
pub(crate) struct Successor {
    pub(crate) channel: Channel,
    pub(crate) version: String,
    /// It continues with sessions over UDP.
    pub(crate) takes_sessions: bool,
    /// Unknown if another process has started it.
    pub(crate) pid: Option<u32>,
}

impl Successor {
    /// Returns the result of the upgrade, for its operator.
    pub(crate) fn note(&self) -> String {
        let own = env!("CARGO_PKG_VERSION");
        let versions = match self.version == own {
            true => format!("version {own}"),
            false => format!("version {own} → {}", self.version),
        };
        match self.pid {
            Some(pid) => format!("upgraded: pid {} → {pid}, {versions}", std::process::id()),
            None => format!("upgraded: {versions}"),
        }
    }
}

/// A process that closes its channel is about to end: so often, and at such times, it is looked for that.
const LAST_LOOKS: u32 = 100;
const LOOK: Duration = Duration::from_millis(5);

/// A process that has been started and is to be ready. It is ended on drop.
struct Started(Option<Child>);

impl Started {
    /// How it has ended, if it has, or does so at once.
    async fn end(&mut self) -> Option<String> {
        let child = self.0.as_mut()?;
        for _ in 0..LAST_LOOKS {
            if let Some(status) = child.try_wait().ok()? {
                return Some(status.to_string());
            }
            tokio::time::sleep(LOOK).await;
        }
        None
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It has ended by itself, or does now.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a program and gives it what there is.
///
/// # Errors
/// Returns an error that says why there is no successor; it has ended then, and this process has all again.
pub(crate) async fn start(
    mut command: Command,
    starter: &Starter,
    estate: &mut impl Estate,
    limit: Duration,
) -> Result<Successor, String> {
    let path = PathBuf::from(command.get_program());
    let path = path.display();
    let failed = |error: io::Error| format!("cannot start {path}: {error}");
    let (channel, end) = Channel::pair().map_err(failed)?;
    handover::left_open(&mut command, Some(&end), None).map_err(failed)?;
    let child = starter.start(command).await.map_err(failed)?;
    let pid = child.id();
    let mut started = Started(Some(child));
    // Else its end would not be seen.
    drop(end);
    match give(channel, estate, limit).await {
        Ok(mut successor) => {
            started.0 = None;
            successor.pid = Some(pid);
            Ok(successor)
        }
        Err(why) => Err(match started.end().await {
            Some(status) => format!("{why} ({status})"),
            None => why,
        }),
    }
}

/// Hands the possessions over to the process at the other end.
///
/// # Errors
/// Returns an error that says why there is no successor; this process has all again.
pub(crate) async fn give(
    channel: Channel,
    estate: &mut impl Estate,
    limit: Duration,
) -> Result<Successor, String> {
    match tokio::time::timeout(limit, handover::bequeath(&channel, estate)).await {
        Ok(Ok(Heir { version, takes_sessions })) => {
            Ok(Successor { channel, version, takes_sessions, pid: None })
        }
        Ok(Err(why)) => Err(why),
        Err(_) => {
            estate.take_back().await;
            Err(format!("it was not ready within {} ms (process.upgrade_timeout_ms)", limit.as_millis()))
        }
    }
}

/// The possessions of a running gateway.
pub(crate) struct Possessions {
    sockets: Vec<OwnedFd>,
    ticket_keys: (Vec<SharedKey>, Duration),
    entrances: Arc<Entrances>,
    store: Option<Arc<dyn Store>>,
    publisher: Arc<Publisher>,
    running: Arc<Running>,
    node: Arc<Node>,
    pid_file: Option<PathBuf>,
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Possessions {
    /// Returns the possessions of `gateway` and of its process.
    ///
    /// # Errors
    /// Returns an error if there are too many open files.
    pub(crate) fn of(
        gateway: &Gateway,
        entrances: &Arc<Entrances>,
        store: Option<&Arc<dyn Store>>,
        publisher: &Arc<Publisher>,
        running: &Arc<Running>,
        node: &Arc<Node>,
        pid_file: Option<&Path>,
    ) -> io::Result<Possessions> {
        let inheritance = gateway.inheritance();
        Ok(Possessions {
            sockets: inheritance.sockets()?,
            ticket_keys: inheritance.ticket_keys(),
            entrances: Arc::clone(entrances),
            store: store.cloned(),
            publisher: Arc::clone(publisher),
            running: Arc::clone(running),
            node: Arc::clone(node),
            pid_file: pid_file.map(Path::to_owned),
        })
    }

    fn state(&self) -> State {
        let (counters, faults) = self.running.totals().by_name(&fault_names());
        let (keys, age) = &self.ticket_keys;
        State {
            counters,
            faults,
            health: self.health(),
            ticket_keys: keys.iter().map(|key| key.bytes().to_vec()).collect(),
            ticket_age_ms: ms(*age),
            legacies: self.node.inheritance(),
            // The next process may have another folder.
            pid_file: self.pid_file.as_deref().and_then(|path| std::path::absolute(path).ok()),
            uptime_ms: ms(Host.uptime()),
        }
    }

    fn health(&self) -> StoredHealth {
        self.publisher.state().endpoints.kept_health()
    }
}

impl Estate for Possessions {
    async fn give(&mut self) -> io::Result<(Vec<OwnedFd>, Option<State>)> {
        // New callers wait for the successor. So the changes of answered calls are in the store.
        self.entrances.pause().await;
        if let Some(store) = &self.store {
            store.release().await.map_err(io::Error::other)?;
        }
        let mut sockets = std::mem::take(&mut self.sockets);
        sockets.extend(self.entrances.sockets()?);
        Ok((sockets, Some(self.state())))
    }

    async fn take_back(&mut self) {
        if let Some(store) = &self.store
            && let Err(error) = store.take_back().await
        {
            tracing::error!(%error, "cannot open the store again after a failed upgrade");
        }
        self.entrances.resume();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_ends_or_hangs_is_no_successor() {
        struct Nothing;
        impl Estate for Nothing {
            async fn give(&mut self) -> io::Result<(Vec<OwnedFd>, Option<State>)> {
                Ok((Vec::new(), None))
            }
            async fn take_back(&mut self) {}
        }
        let starter = Starter::new().unwrap();
        let check = async |path: &str, arguments: &[&str], limit: Duration, word: &str| {
            let mut command = Command::new(path);
            command.args(arguments);
            let why = start(command, &starter, &mut Nothing, limit).await.unwrap_err();
            assert!(why.contains(word), "{why}");
        };
        let minute = Duration::from_secs(60);
        check("/no/such/program", &[], minute, "cannot start /no/such/program").await;
        check("/bin/sh", &["-c", "exit 3"], minute, "before it was ready").await;
        check("/bin/sh", &["-c", "exec sleep 60"], Duration::from_millis(50), "upgrade_timeout_ms").await;
    }
}
