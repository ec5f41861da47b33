//! The workers and their mailboxes: how a snapshot comes into force.
//!
//! Everything that can fail happens in [`Gateway::prepare`]; [`Gateway::commit`] only sends.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sigma_config::settings::{ListenAddress, Listener};
use sigma_net::listen::{Claim, Occupant, SocketFile};
use sigma_net::worker::kept_up;
use sigma_net::{BoundSocket, deadline};
use sigma_observe::counters::WorkerCounters;
use sigma_observe::log_buffer::{LogSink, LogWriter};
use sigma_plugin::{Local, Node};
use sigma_upstream::health::HealthReporter;
use tokio::sync::{Notify, mpsc};

use crate::listen::accept_loop;
use crate::snapshot::Snapshot;
use crate::worker::Worker;

/// Ticks between two looks at idle upstream connections.
const SWEEP_TICKS: u32 = (1_000 / deadline::TICK_MS) as u32;

/// A change of listening sockets for one worker.
#[derive(Debug, Default)]
struct Listeners {
    /// Sockets to accept from.
    open: Vec<(ListenAddress, BoundSocket, Option<String>)>,
    /// Addresses to accept from no longer.
    close: Vec<ListenAddress>,
}

/// What comes into force together with a snapshot whose settings differ.
struct SettingsChange {
    listeners: Listeners,
    log: Option<LogSink>,
}

enum Message {
    Publish { snapshot: Arc<Snapshot>, change: Option<Box<SettingsChange>> },
    Drain { deadline_ms: u64 },
}

struct WorkerHandle {
    mailbox: mpsc::UnboundedSender<Message>,
    counters: Arc<WorkerCounters>,
    thread: JoinHandle<()>,
}

/// An error that names the listener, and what may be done.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}{remedy}")]
pub struct BindError {
    address: String,
    source: io::Error,
    remedy: String,
}

impl BindError {
    fn new(address: impl std::fmt::Display, tcp: Option<SocketAddr>, source: io::Error) -> BindError {
        let remedy = match (source.kind(), tcp) {
            (io::ErrorKind::AddrInUse, Some(addr)) => match sigma_net::listen::occupant(addr) {
                Some(Occupant { pid, name }) => format!(
                    "; pid {pid} ({name}) listens there: end it, choose another port, or set `shared: true` on the listeners of both if they are to share it"
                ),
                None => "; another program listens there: end it or choose another port".to_owned(),
            },
            (io::ErrorKind::PermissionDenied, Some(addr)) if addr.port() < 1_024 => format!(
                "; ports below 1024 need a right: `setcap cap_net_bind_service=+ep` on the program, `AmbientCapabilities=CAP_NET_BIND_SERVICE` in its unit, or a port such as {}",
                u32::from(addr.port()) + 8_000
            ),
            _ => String::new(),
        };
        BindError { address: address.to_string(), source, remedy }
    }
}

/// The running data plane.
pub struct Gateway {
    workers: Vec<WorkerHandle>,
    /// Kept so that their files are removed when they are closed.
    unix_files: HashMap<ListenAddress, SocketFile>,
    listening: Vec<Listener>,
    log: Option<LogWriter>,
    drain_ms: u64,
    /// What plugins of all workers share.
    node: Arc<Node>,
    /// Snapshots that are in force no longer, until no worker holds them: to free a large one
    /// takes time that a worker does not have.
    retired: Vec<Arc<Snapshot>>,
    current: Option<Arc<Snapshot>>,
}

/// A snapshot with all it needs, ready to come into force.
pub struct Prepared {
    snapshot: Arc<Snapshot>,
    listeners: Vec<Listeners>,
    log: Option<LogWriter>,
    unix_files: HashMap<ListenAddress, SocketFile>,
    closed: Vec<ListenAddress>,
}

impl Gateway {
    /// Starts a worker thread for each of `counters`, which it counts in, with `snapshot` in force.
    /// `cpus`, if not empty, are pinned to in turn.
    ///
    /// # Errors
    /// A listener that cannot be bound, or a thread that cannot be started.
    pub fn start(
        snapshot: Arc<Snapshot>,
        counters: &[Arc<WorkerCounters>],
        cpus: &[usize],
        log: Option<LogWriter>,
        health: &HealthReporter,
        node: Arc<Node>,
    ) -> Result<Gateway, BindError> {
        let mut gateway = Gateway {
            workers: Vec::new(),
            unix_files: HashMap::new(),
            listening: Vec::new(),
            log: None,
            drain_ms: 0,
            node,
            retired: Vec::new(),
            current: None,
        };
        let mut prepared = gateway.prepare_for(&snapshot, counters.len(), log)?;
        gateway.log = prepared.log.take();
        let listeners = std::mem::take(&mut prepared.listeners);
        for (number, (listeners, counters)) in listeners.into_iter().zip(counters).enumerate() {
            let cpu = (!cpus.is_empty()).then(|| cpus[number % cpus.len()]);
            let counters = Arc::clone(counters);
            let handle = gateway
                .spawn_worker(number, cpu, &snapshot, listeners, counters, health.clone())
                .map_err(|source| BindError::new(format!("worker {number}"), None, source))?;
            gateway.workers.push(handle);
        }
        gateway.adopt(prepared);
        Ok(gateway)
    }

    fn spawn_worker(
        &self,
        number: usize,
        cpu: Option<usize>,
        snapshot: &Arc<Snapshot>,
        listeners: Listeners,
        counters: Arc<WorkerCounters>,
        health: HealthReporter,
    ) -> io::Result<WorkerHandle> {
        let (mailbox, inbox) = mpsc::unbounded_channel();
        let log = self.sink(self.log.as_ref(), snapshot, &counters);
        let (snapshot, own_counters) = (Arc::clone(snapshot), Arc::clone(&counters));
        let seed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(std::process::id());
        let node = Arc::clone(&self.node);
        let thread = sigma_net::worker::spawn(format!("sigma-worker-{number}"), cpu, move || async move {
            let worker =
                Worker::new(snapshot, own_counters, log, health, (node, Local::new(number, seed)), seed);
            run(worker, inbox, listeners).await;
        })?;
        Ok(WorkerHandle { mailbox, counters, thread })
    }

    fn sink(
        &self,
        log: Option<&LogWriter>,
        snapshot: &Snapshot,
        counters: &Arc<WorkerCounters>,
    ) -> Option<LogSink> {
        let buffer = snapshot.settings.access_log.buffer_bytes as usize;
        log.map(|writer| writer.sink(buffer, Arc::clone(counters)))
    }

    /// Binds what `snapshot` listens on and this gateway does not yet.
    ///
    /// # Errors
    /// The first listener that cannot be bound; nothing has changed then.
    pub fn prepare(&self, snapshot: &Arc<Snapshot>, log: Option<LogWriter>) -> Result<Prepared, BindError> {
        self.prepare_for(snapshot, self.workers.len(), log)
    }

    fn prepare_for(
        &self,
        snapshot: &Arc<Snapshot>,
        workers: usize,
        log: Option<LogWriter>,
    ) -> Result<Prepared, BindError> {
        let wanted = &snapshot.settings.listeners;
        let mut listeners: Vec<Listeners> = (0..workers).map(|_| Listeners::default()).collect();
        let mut unix_files = HashMap::new();
        // Unix sockets first: whoever gets through to a port may count on them.
        let mut missing: Vec<&Listener> = wanted.iter().filter(|l| !self.listening.contains(l)).collect();
        missing.sort_by_key(|listener| matches!(listener.address, ListenAddress::Tcp(_)));
        for listener in missing {
            let error = |source| BindError::new(&listener.address, tcp_of(&listener.address), source);
            let sockets = bind(listener, self.claim(listener), workers).map_err(error)?;
            if let ListenAddress::Unix(path) = &listener.address {
                unix_files.insert(listener.address.clone(), SocketFile::bound(path));
            }
            for (worker, socket) in listeners.iter_mut().zip(sockets) {
                worker.open.push((listener.address.clone(), socket, listener.name.clone()));
            }
        }
        let gone = self.listening.iter().filter(|l| !wanted.contains(l));
        let closed: Vec<ListenAddress> = gone.map(|l| l.address.clone()).collect();
        for worker in &mut listeners {
            worker.close.clone_from(&closed);
        }
        Ok(Prepared { snapshot: Arc::clone(snapshot), listeners, log, unix_files, closed })
    }

    /// Whether this gateway is to be the only one on a listener's port. Where it listens already, with
    /// other terms or on another address, its own sockets would be in the way of the new ones.
    fn claim(&self, listener: &Listener) -> Claim {
        let port = tcp_of(&listener.address).map(|addr| addr.port());
        let is_own = self.listening.iter().any(|own| tcp_of(&own.address).map(|addr| addr.port()) == port);
        if listener.shared || is_own { Claim::Further } else { Claim::First }
    }

    /// Puts a snapshot into force that differs from the one before in its resources only.
    pub fn publish(&mut self, snapshot: &Arc<Snapshot>) {
        for worker in &self.workers {
            let message = Message::Publish { snapshot: Arc::clone(snapshot), change: None };
            if worker.mailbox.send(message).is_err() {
                tracing::error!("a worker thread has ended; its connections are served no more");
            }
        }
        self.retire(snapshot);
    }

    fn retire(&mut self, snapshot: &Arc<Snapshot>) {
        self.retired.extend(self.current.replace(Arc::clone(snapshot)));
    }

    /// Frees snapshots that no worker holds any more; to be called now and then.
    pub fn sweep(&mut self) {
        self.retired.retain(|snapshot| Arc::strong_count(snapshot) > 1);
    }

    /// Puts a prepared snapshot into force; cannot fail.
    pub fn commit(&mut self, mut prepared: Prepared) {
        for (worker, listeners) in self.workers.iter().zip(std::mem::take(&mut prepared.listeners)) {
            let log = self.sink(prepared.log.as_ref(), &prepared.snapshot, &worker.counters);
            let message = Message::Publish {
                snapshot: Arc::clone(&prepared.snapshot),
                change: Some(Box::new(SettingsChange { listeners, log })),
            };
            if worker.mailbox.send(message).is_err() {
                tracing::error!("a worker thread has ended; its connections are served no more");
            }
        }
        // The old writer ends once the workers have dropped their sinks.
        self.log = prepared.log.take();
        self.adopt(prepared);
    }

    fn adopt(&mut self, prepared: Prepared) {
        for address in &prepared.closed {
            self.unix_files.remove(address);
        }
        self.unix_files.extend(prepared.unix_files);
        self.retire(&prepared.snapshot);
        self.listening.clone_from(&prepared.snapshot.settings.listeners);
        self.drain_ms = prepared.snapshot.settings.timeouts.drain_ms.into();
    }

    /// Counters of all workers.
    pub fn counters(&self) -> Vec<Arc<WorkerCounters>> {
        self.workers.iter().map(|worker| Arc::clone(&worker.counters)).collect()
    }

    /// Whether a worker thread has ended.
    pub fn has_lost_a_worker(&self) -> bool {
        self.workers.iter().any(|worker| worker.thread.is_finished())
    }

    /// Opens the access log anew, after it was renamed.
    pub fn reopen_log(&self) {
        if let Some(log) = &self.log {
            log.reopen();
        }
    }

    /// Stops accepting, lets open exchanges finish for the configured time, ends the workers.
    /// The calling thread goes on with its other tasks meanwhile.
    pub async fn drain(mut self) {
        for worker in &self.workers {
            // A worker that has ended has nothing to drain.
            let _ = worker.mailbox.send(Message::Drain { deadline_ms: self.drain_ms });
        }
        let grace = Duration::from_millis(self.drain_ms) + Duration::from_secs(1);
        let end = Instant::now() + grace;
        for worker in self.workers.drain(..) {
            while !worker.thread.is_finished() && Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        if let Some(log) = self.log.take() {
            // One that panics has lost its lines; there is nobody left to serve.
            let _ = tokio::task::spawn_blocking(move || log.close(Duration::from_secs(5))).await;
        }
    }
}

fn tcp_of(address: &ListenAddress) -> Option<SocketAddr> {
    match address {
        ListenAddress::Tcp(addr) => Some(*addr),
        ListenAddress::Unix(_) => None,
    }
}

fn bind(listener: &Listener, claim: Claim, workers: usize) -> io::Result<Vec<BoundSocket>> {
    match &listener.address {
        ListenAddress::Tcp(addr) => {
            let claims = std::iter::once(claim).chain(std::iter::repeat(Claim::Further));
            claims.take(workers).map(|claim| BoundSocket::tcp(*addr, listener.backlog, claim)).collect()
        }
        ListenAddress::Unix(path) => {
            let first = BoundSocket::unix(path)?;
            let mut sockets = (1..workers).map(|_| first.try_clone()).collect::<io::Result<Vec<_>>>()?;
            sockets.push(first);
            Ok(sockets)
        }
    }
}

/// A worker's life: follow the mailbox until drained.
async fn run(worker: Rc<Worker>, mut inbox: mpsc::UnboundedReceiver<Message>, listeners: Listeners) {
    worker.tick();
    let ticking = Rc::clone(&worker);
    // Without it no deadline would ever pass.
    tokio::task::spawn_local(kept_up("its clock", move || {
        let (ticking, mut ticks) = (Rc::clone(&ticking), 0);
        deadline::drive(move || {
            ticks += 1;
            on_tick(&ticking, ticks);
        })
    }));
    let mut accepting = HashMap::new();
    open(&worker, &mut accepting, listeners);
    while let Some(message) = inbox.recv().await {
        match message {
            Message::Publish { snapshot, change } => {
                worker.publish(snapshot);
                let Some(change) = change else { continue };
                let SettingsChange { mut listeners, log } = *change;
                worker.log.replace(log);
                for address in std::mem::take(&mut listeners.close) {
                    close(&mut accepting, &address);
                }
                open(&worker, &mut accepting, listeners);
            }
            Message::Drain { deadline_ms } => {
                drain(&worker, accepting, deadline_ms).await;
                return;
            }
        }
    }
}

/// What accepts from one listener.
struct Acceptor {
    task: tokio::task::JoinHandle<()>,
    stop: Rc<Notify>,
}

type Accepting = HashMap<ListenAddress, Acceptor>;

/// How long what the kernel has queued may wait for a worker that is full, once it stops.
const STOP_ACCEPTING: Duration = Duration::from_millis(100);

fn open(worker: &Rc<Worker>, accepting: &mut Accepting, listeners: Listeners) {
    for (address, socket, name) in listeners.open {
        match socket.into_listening() {
            Ok(listening) => {
                let (listening, stop) = (Rc::new(listening), Rc::new(Notify::new()));
                let (worker, own_address, stopping) = (Rc::clone(worker), address.clone(), Rc::clone(&stop));
                let task = tokio::task::spawn_local(kept_up("accepting", move || {
                    let (worker, listening) = (Rc::clone(&worker), Rc::clone(&listening));
                    accept_loop(worker, listening, own_address.clone(), name.clone(), Rc::clone(&stopping))
                }));
                accepting.insert(address, Acceptor { task, stop });
            }
            Err(error) => tracing::error!(%address, %error, "cannot accept from a listener"),
        }
    }
}

fn close(accepting: &mut Accepting, address: &ListenAddress) {
    if let Some(acceptor) = accepting.remove(address) {
        acceptor.stop.notify_one();
    }
}

fn on_tick(worker: &Worker, ticks: u32) {
    worker.tick();
    if ticks.is_multiple_of(SWEEP_TICKS) {
        worker.pools.borrow_mut().sweep(deadline::now_ms());
        worker.sweep_balancers();
    }
    let flush_ms = u64::from(worker.view().snapshot.settings.access_log.flush_ms).max(deadline::TICK_MS);
    if u64::from(ticks).is_multiple_of(flush_ms / deadline::TICK_MS)
        && let Some(log) = worker.log.borrow_mut().as_mut()
    {
        log.flush();
    }
}

/// Idle connections end at once, those with an exchange when it is over, all at the deadline.
async fn drain(worker: &Rc<Worker>, accepting: Accepting, deadline_ms: u64) {
    for Acceptor { mut task, stop } in accepting.into_values() {
        stop.notify_one();
        if tokio::time::timeout(STOP_ACCEPTING, &mut task).await.is_err() {
            task.abort();
        }
    }
    worker.drain();
    // Tasks that were just accepted get to begin before the idle ones are told.
    tokio::task::yield_now().await;
    deadline::wake_all();
    let over = tokio::time::sleep(Duration::from_millis(deadline_ms));
    tokio::pin!(over);
    while worker.connections() > 0 {
        tokio::select! {
            () = worker.released.notified() => {}
            () = &mut over => break,
        }
    }
    worker.log.replace(None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_address_comes_with_its_remedy() {
        fn check(addr: &str, kind: io::ErrorKind, word: &str) {
            let error = BindError::new(addr, addr.parse().ok(), kind.into()).to_string();
            assert!(error.contains(addr) && error.contains(word), "{error}");
        }
        check("0.0.0.0:80", io::ErrorKind::PermissionDenied, "cap_net_bind_service");
        check("0.0.0.0:443", io::ErrorKind::PermissionDenied, "such as 8443");
        check("127.0.0.1:1", io::ErrorKind::AddrInUse, "choose another port");
    }
}
