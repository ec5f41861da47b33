//! The workers and their orders: how a snapshot becomes active.
//!
//! Everything that can fail happens in [`Gateway::prepare`]; [`Gateway::commit`] only sends.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sigma_config::process::Sandbox;
use sigma_config::settings::{ListenPlace, Settings};
use sigma_net::latest::{Taker, Teller, latest};
use sigma_net::listen::Opened;
use sigma_net::quic::Endpoint;
use sigma_net::uring::Sizes;
use sigma_net::worker::{Io, Started, kept_up};
use sigma_net::{BoundSocket, deadline};
use sigma_observe::counters::WorkerCounters;
use sigma_observe::log_buffer::{LogSink, LogWriter};
use sigma_plugin::Local;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::edge::listen::{accept_loop, quic};
use crate::edge::quic_state::QuicShared;
use crate::flow::udp::{Hall, Passing, go_on, receive_loop};
use crate::snapshot::Snapshot;
use crate::worker::inheritance::{BindError, Bound, Inheritance, Listeners};
use crate::worker::{Worker, WorkerParts};

/// How long workers may take to give their sessions away.
const PASSING: Duration = Duration::from_secs(1);

/// Ticks between two looks at idle upstream connections.
const SWEEP_TICKS: u64 = 1_000 / deadline::TICK_MS;

/// The changes that become active together with a snapshot whose settings differ.
struct SettingsChange {
    listeners: Listeners,
    log: Option<LogSink>,
}

/// The pending orders of a worker: all orders since it last looked.
#[derive(Default)]
struct Orders {
    /// The newest snapshot; those between it and the active one are skipped.
    snapshot: Option<Arc<Snapshot>>,
    change: Option<SettingsChange>,
    /// Sessions over UDP to continue before anything is received.
    going_on: Option<Vec<Passing>>,
    /// Give all sessions over UDP away, and receive no more.
    passing: Option<mpsc::Sender<Vec<Passing>>>,
    /// Let open exchanges finish, then end.
    ending: Option<Ending>,
}

/// The end of a worker.
#[derive(Debug, Clone, Copy)]
struct Ending {
    /// How long open exchanges may take to finish.
    deadline: Duration,
    /// How long idle connections may bring a last request.
    idle: Duration,
}

impl Orders {
    fn publish(&mut self, snapshot: &Arc<Snapshot>, later: Option<SettingsChange>) {
        self.snapshot = Some(Arc::clone(snapshot));
        let Some(later) = later else { return };
        match &mut self.change {
            Some(change) => {
                change.listeners.then(later.listeners);
                change.log = later.log;
            }
            None => self.change = Some(later),
        }
    }
}

/// Returns the settings of the workers' connections.
fn io_of(settings: &Settings) -> Io {
    let sizes = Sizes {
        entries: settings.io_uring.entries,
        // No larger than 2^15.
        buffers: settings.io_uring.buffers.next_power_of_two(),
        buffer_bytes: settings.io_uring.buffer_bytes,
        is_restricted: settings.process.sandbox == Sandbox::Full,
    };
    match settings.io {
        sigma_config::io::Io::Auto => Io::Auto(sizes),
        sigma_config::io::Io::Epoll => Io::Epoll,
        sigma_config::io::Io::IoUring => Io::Uring(sizes),
    }
}

struct WorkerHandle {
    orders: Teller<Orders>,
    thread: Started,
}

/// When a started gateway begins to receive datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receiving {
    /// At once.
    AtOnce,
    /// With [`Gateway::go_on_with`]: another process may have sessions for it.
    Later,
}

/// The running data plane.
pub struct Gateway {
    workers: Vec<WorkerHandle>,
    /// The state that a successor would take over.
    inheritance: Inheritance,
    log: Option<LogWriter>,
    /// Another process has taken over.
    is_handed_over: bool,
    /// Snapshots that are no longer active, until no worker holds them: freeing a large one takes time that a worker
    /// does not have.
    retired: Vec<Arc<Snapshot>>,
    current: Arc<Snapshot>,
}

/// A snapshot with all it needs, ready to become active.
pub struct Prepared {
    snapshot: Arc<Snapshot>,
    bound: Bound,
    log: Option<LogWriter>,
}

impl Gateway {
    /// Starts the workers of `inheritance` with an active `snapshot`. They accept from the inherited sockets; the
    /// other listeners of the snapshot are bound. With `cpus`, if not empty, each worker is pinned to one in turn.
    ///
    /// # Errors
    /// Returns an error if a listener cannot be bound, or a thread cannot be started.
    pub fn start(
        snapshot: Arc<Snapshot>,
        mut inheritance: Inheritance,
        cpus: &[usize],
        log: Option<LogWriter>,
        receiving: Receiving,
    ) -> Result<Gateway, BindError> {
        let bound = inheritance.bind(&snapshot.settings.listeners)?;
        inheritance.take_over(bound, &snapshot);
        if receiving == Receiving::AtOnce {
            inheritance.steer();
        }
        let listeners = inheritance.handles()?;
        let mut gateway = Gateway {
            workers: Vec::new(),
            inheritance,
            log,
            is_handed_over: false,
            retired: Vec::new(),
            current: Arc::clone(&snapshot),
        };
        for (number, listeners) in listeners.into_iter().enumerate() {
            let cpu = (!cpus.is_empty()).then(|| cpus[number % cpus.len()]);
            let handle = gateway
                .spawn_worker(number, cpu, &snapshot, listeners, receiving)
                .map_err(|source| BindError::new(format!("worker {number}"), None, source))?;
            gateway.workers.push(handle);
        }
        Ok(gateway)
    }

    fn spawn_worker(
        &self,
        number: usize,
        cpu: Option<usize>,
        snapshot: &Arc<Snapshot>,
        listeners: Listeners,
        receiving: Receiving,
    ) -> io::Result<WorkerHandle> {
        let (orders, inbox) = latest();
        let counters = Arc::clone(&self.inheritance.counters()[number]);
        let log = sink(self.log.as_ref(), snapshot, &counters);
        let (snapshot, health) = (Arc::clone(snapshot), self.inheritance.health().clone());
        let seed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(std::process::id());
        let node = Arc::clone(self.inheritance.node());
        let (live, taps) = (self.inheritance.live().clone(), self.inheritance.taps().orders());
        let (name, io) = (format!("sigma-worker-{number}"), io_of(&snapshot.settings));
        let is_filtered = snapshot.settings.process.sandbox == Sandbox::Full;
        let workers = self.inheritance.counters().len();
        let datagram_share = sigma_net::limits::datagram_share(workers);
        QuicShared::of(&node).set_workers(workers);
        let thread = sigma_net::worker::spawn(name, cpu, io, is_filtered, move || async move {
            let local = Local::new(number, seed).among(workers);
            let parts = WorkerParts { snapshot, counters, log, health, node, local, live, taps, seed };
            let worker = Worker::new(parts);
            worker.datagrams.admission.set_share(datagram_share);
            run(worker, inbox, listeners, receiving).await;
        })?;
        Ok(WorkerHandle { orders, thread })
    }

    /// Binds the listeners of `snapshot` that this gateway does not have yet.
    ///
    /// # Errors
    /// Returns an error if a listener cannot be bound; nothing has changed then.
    pub fn prepare(&self, snapshot: &Arc<Snapshot>, log: Option<LogWriter>) -> Result<Prepared, BindError> {
        let bound = self.inheritance.bind(&snapshot.settings.listeners)?;
        Ok(Prepared { snapshot: Arc::clone(snapshot), bound, log })
    }

    /// Activates a snapshot that differs from the one before in its resources only.
    pub fn publish(&mut self, snapshot: &Arc<Snapshot>) {
        for worker in &self.workers {
            worker.tell(|orders| orders.publish(snapshot, None));
        }
        self.retire(snapshot);
    }

    fn retire(&mut self, snapshot: &Arc<Snapshot>) {
        self.retired.push(std::mem::replace(&mut self.current, Arc::clone(snapshot)));
    }

    /// Frees snapshots that no worker holds any more; call it now and then.
    pub fn sweep(&mut self) {
        self.retired.retain(|snapshot| Arc::strong_count(snapshot) > 1);
    }

    /// Activates a prepared snapshot; cannot fail.
    pub fn commit(&mut self, prepared: Prepared) {
        let Prepared { snapshot, mut bound, log } = prepared;
        let changes = std::mem::take(&mut bound.changes);
        self.inheritance.take_over(bound, &snapshot);
        self.inheritance.steer();
        for ((worker, listeners), counters) in
            self.workers.iter().zip(changes).zip(self.inheritance.counters())
        {
            let log = sink(log.as_ref(), &snapshot, counters);
            worker.tell(|orders| orders.publish(&snapshot, Some(SettingsChange { listeners, log })));
        }
        // The old writer ends once the workers have dropped their sinks.
        self.log = log;
        self.retire(&snapshot);
    }

    /// Returns true if a worker thread has ended.
    pub fn has_lost_a_worker(&self) -> bool {
        self.workers.iter().any(|worker| worker.thread.is_finished())
    }

    /// Opens the access log again after it was renamed.
    pub fn reopen_log(&self) {
        if let Some(log) = &self.log {
            log.reopen();
        }
    }

    /// Returns the state that a successor takes over.
    pub fn inheritance(&self) -> &Inheritance {
        &self.inheritance
    }

    /// Hands the sockets over to another process. Clients do not notice: an idle connection may bring a last request,
    /// and its response asks the client to use another connection for the next.
    pub fn hand_over(&mut self) {
        self.inheritance.leave_files();
        self.is_handed_over = true;
    }

    /// Gives away the sessions over UDP, for a process that continues them. From now on no datagram is received.
    pub async fn pass_sessions(&self) -> Vec<Passing> {
        let (sender, mut passed) = mpsc::channel(self.workers.len().max(1));
        for worker in &self.workers {
            worker.orders.tell(|orders| orders.passing = Some(sender.clone()));
        }
        drop(sender);
        let mut all = Vec::new();
        let collected = async {
            while let Some(sessions) = passed.recv().await {
                all.extend(sessions);
            }
        };
        if tokio::time::timeout(PASSING, collected).await.is_err() {
            tracing::error!("a stuck worker keeps its UDP sessions; they end with it");
        }
        all
    }

    /// Continues sessions over UDP of the process before, and begins to receive datagrams. For a gateway that was
    /// started with [`Receiving::Later`].
    pub fn go_on_with(&mut self, sessions: Vec<Passing>) {
        self.inheritance.steer();
        let workers = self.inheritance.workers_by_socket();
        let mut parts: Vec<Vec<Passing>> = self.workers.iter().map(|_| Vec::new()).collect();
        for passing in sessions {
            // A session of a removed listener ends.
            if let Some(worker) = workers.get(&passing.session.listening) {
                parts[*worker].push(passing);
            }
        }
        for (worker, sessions) in self.workers.iter().zip(parts) {
            worker.tell(|orders| orders.going_on = Some(sessions));
        }
    }

    /// Stops accepting, lets open exchanges finish for the configured time, ends the workers. The calling thread
    /// continues with its other tasks meanwhile.
    pub async fn drain(mut self) {
        // The kernel rejects clients once the workers have closed their handles.
        self.inheritance.release_sockets();
        let timeouts = &self.current.settings.timeouts;
        let idle_ms = if self.is_handed_over { timeouts.drain_idle_ms } else { 0 };
        let ending = Ending {
            deadline: Duration::from_millis(timeouts.drain_ms.into()),
            idle: Duration::from_millis(idle_ms.into()),
        };
        for worker in &self.workers {
            // A worker that has ended has nothing to drain.
            worker.orders.tell(|orders| orders.ending = Some(ending));
        }
        let grace = ending.deadline + Duration::from_secs(1);
        let end = Instant::now() + grace;
        for worker in self.workers.drain(..) {
            while !worker.thread.is_finished() && Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        if let Some(log) = self.log.take() {
            // If it panics, its lines are lost; no client is left.
            let _ = tokio::task::spawn_blocking(move || log.close(Duration::from_secs(5))).await;
        }
    }
}

impl WorkerHandle {
    fn tell(&self, add: impl FnOnce(&mut Orders)) {
        if !self.orders.tell(add) {
            tracing::error!("a worker thread ended; its connections are lost");
        }
    }
}

fn sink(log: Option<&LogWriter>, snapshot: &Snapshot, counters: &Arc<WorkerCounters>) -> Option<LogSink> {
    let buffer = snapshot.settings.access_log.buffer_bytes as usize;
    log.map(|writer| writer.sink(buffer, Arc::clone(counters)))
}

/// Runs a worker: follows orders until it is drained.
async fn run(worker: Rc<Worker>, mut inbox: Taker<Orders>, mut listeners: Listeners, receiving: Receiving) {
    worker.tick(0);
    let waking = Rc::downgrade(&worker);
    deadline::when_roused(move || {
        if let Some(worker) = waking.upgrade() {
            worker.look_at_clock();
        }
    });
    let ticking = Rc::clone(&worker);
    // Without it no deadline would ever pass.
    tokio::task::spawn_local(kept_up("its clock", move || {
        let (ticking, mut ticks) = (Rc::clone(&ticking), 0);
        deadline::drive(move |turn| {
            let before = ticks;
            ticks += turn.ticks;
            on_tick(&ticking, before..ticks, turn.late_ms)
        })
    }));
    let mut accepting = HashMap::new();
    let mut later = match receiving {
        Receiving::AtOnce => Listeners::default(),
        Receiving::Later => listeners.split_datagrams(),
    };
    open(&worker, &mut accepting, listeners);
    while let Some(orders) = inbox.take().await {
        let Orders { snapshot, change, going_on, passing, ending } = orders;
        if let Some(sessions) = going_on {
            open(&worker, &mut accepting, std::mem::take(&mut later));
            take_in(&worker, &accepting, sessions);
        }
        if let Some(snapshot) = snapshot {
            worker.publish(snapshot);
        }
        if let Some(SettingsChange { mut listeners, log }) = change {
            worker.log.replace(log);
            for place in std::mem::take(&mut listeners.close) {
                close(&mut accepting, &place);
            }
            open(&worker, &mut accepting, listeners);
        }
        if let Some(passing) = passing {
            pass(&accepting, &passing);
        }
        if let Some(ending) = ending {
            drain(&worker, accepting, ending).await;
            return;
        }
    }
}

/// An acceptor of one listener.
struct Acceptor {
    task: tokio::task::JoinHandle<()>,
    stop: Rc<Notify>,
    /// For datagrams: the sessions.
    hall: Option<Rc<Hall>>,
    /// For HTTP/3: its socket.
    endpoint: Option<Endpoint>,
}

/// Mostly one for each listener; more where the process before had more workers.
type Accepting = HashMap<ListenPlace, Vec<Acceptor>>;

/// How long connections that the kernel has queued may wait for a full worker, once it stops.
const STOP_ACCEPTING: Duration = Duration::from_millis(100);

fn open(worker: &Rc<Worker>, accepting: &mut Accepting, listeners: Listeners) {
    for (place, socket, name) in listeners.open {
        let stop = Rc::new(Notify::new());
        if has_http3(worker, &place) {
            accepting.entry(place.clone()).or_default().extend(open_quic(worker, place, socket, name, stop));
            continue;
        }
        let (worker, own_place, stopping) = (Rc::clone(worker), place.clone(), Rc::clone(&stop));
        let (task, hall) = match socket.open() {
            Ok(Opened::Connections(listening)) => {
                let listening = Rc::new(listening);
                let task = tokio::task::spawn_local(kept_up("accepting", move || {
                    let (worker, listening) = (Rc::clone(&worker), Rc::clone(&listening));
                    accept_loop(worker, listening, own_place.clone(), name.clone(), Rc::clone(&stopping))
                }));
                (task, None)
            }
            Ok(Opened::Datagrams(socket)) => {
                let Some(bound) = place.ip() else { continue };
                let hall = Hall::new(&worker, socket, bound);
                let own = Rc::clone(&hall);
                let task = tokio::task::spawn_local(kept_up("receiving datagrams", move || {
                    receive_loop(Rc::clone(&worker), Rc::clone(&own), Rc::clone(&stopping))
                }));
                (task, Some(hall))
            }
            Err(error) => {
                tracing::error!(%place, %error, "cannot accept connections on a listener");
                continue;
            }
        };
        accepting.entry(place).or_default().push(Acceptor { task, stop, hall, endpoint: None });
    }
}

/// Returns true if a place is the UDP port of a listener with HTTP/3.
fn has_http3(worker: &Worker, place: &ListenPlace) -> bool {
    let ListenPlace::Udp(addr) = place else { return false };
    let view = worker.view();
    view.snapshot.listener(&ListenPlace::Tcp(*addr)).is_some_and(|listener| listener.http3.is_some())
}

/// Starts the endpoint of a listener with HTTP/3.
fn open_quic(
    worker: &Rc<Worker>,
    place: ListenPlace,
    socket: BoundSocket,
    name: Option<String>,
    stop: Rc<Notify>,
) -> Option<Acceptor> {
    let addr = place.ip()?;
    let endpoint = quic::open_endpoint(worker, &place, socket)?;
    let (driven, own) = (endpoint.clone(), endpoint.clone());
    let driving = Rc::clone(worker);
    tokio::task::spawn_local(kept_up("driving HTTP/3", move || {
        quic::drive(Rc::clone(&driving), driven.clone())
    }));
    let (worker, stopping) = (Rc::clone(worker), Rc::clone(&stop));
    let task = tokio::task::spawn_local(kept_up("accepting HTTP/3", move || {
        quic::quic_loop(Rc::clone(&worker), endpoint.clone(), addr, name.clone(), Rc::clone(&stopping))
    }));
    Some(Acceptor { task, stop, hall: None, endpoint: Some(own) })
}

fn close(accepting: &mut Accepting, place: &ListenPlace) {
    for acceptor in accepting.remove(place).into_iter().flatten() {
        acceptor.stop.notify_one();
    }
}

/// Continues sessions that are over sockets of this worker.
fn take_in(worker: &Rc<Worker>, accepting: &Accepting, sessions: Vec<Passing>) {
    let halls = accepting.values().flatten().filter_map(|acceptor| acceptor.hall.as_ref());
    let halls: HashMap<u64, &Rc<Hall>> = halls.filter_map(|hall| Some((hall.number()?, hall))).collect();
    for passing in sessions {
        if let Some(hall) = halls.get(&passing.session.listening) {
            go_on(worker, hall, passing);
        }
    }
}

/// Gives all sessions away, unless the receiver has stopped waiting.
fn pass(accepting: &Accepting, passing: &mpsc::Sender<Vec<Passing>>) {
    if passing.is_closed() {
        return;
    }
    let mut sessions = Vec::new();
    for acceptor in accepting.values().flatten() {
        if let Some(hall) = &acceptor.hall {
            acceptor.stop.notify_one();
            hall.pass(&mut sessions);
        }
        if let Some(endpoint) = &acceptor.endpoint {
            acceptor.stop.notify_one();
            endpoint.hand_over();
        }
    }
    // There is room for one of each worker.
    let _ = passing.try_send(sessions);
}

/// Handles the ticks that have passed. Returns how many more connections an idle worker can accept at once.
fn on_tick(worker: &Worker, ticks: Range<u64>, late_ms: u64) -> u64 {
    let is_due = |each: u64| ticks.start / each != ticks.end / each;
    worker.tick(late_ms);
    worker.counters.beat();
    if is_due(SWEEP_TICKS) {
        worker.pools.borrow_mut().sweep(deadline::now_ms());
        worker.sweep_balancers();
        worker.sweep_scratch();
        worker.live.report();
        worker.taps.report();
    }
    let flush_ms = u64::from(worker.view().snapshot.settings.access_log.flush_ms).max(deadline::TICK_MS);
    let flush_ticks = flush_ms / deadline::TICK_MS;
    let mut log = worker.log.borrow_mut();
    let Some(log) = log.as_mut().filter(|log| !log.is_empty()) else {
        return if worker.is_watched() { 1 } else { deadline::REST_TICKS };
    };
    if is_due(flush_ticks) {
        log.flush();
    }
    flush_ticks - ticks.end % flush_ticks
}

/// How long connections that are open at the deadline have for their last bytes.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The pause between two looks at whether the work of plugins is done.
const WORK_POLL: Duration = Duration::from_millis(5);

/// Ends idle connections when their time has ended, those with an exchange after it, and all at the deadline.
async fn drain(worker: &Rc<Worker>, accepting: Accepting, ending: Ending) {
    // Before the listeners go: the idle connections of one that a reload takes away end at once, these do not.
    worker.drain.begin(&worker.view().snapshot.settings.timeouts);
    for Acceptor { mut task, stop, .. } in accepting.into_values().flatten() {
        stop.notify_one();
        if tokio::time::timeout(STOP_ACCEPTING, &mut task).await.is_err() {
            task.abort();
        }
    }
    let end = Instant::now() + ending.deadline;
    // Newly accepted tasks begin before the idle ones are notified.
    tokio::task::yield_now().await;
    if !ending.idle.is_zero() {
        // HTTP/2 notifies its clients at once.
        deadline::wake_all();
        all_gone(worker, ending.idle.min(ending.deadline)).await;
    }
    worker.drain.close_idle();
    deadline::wake_all();
    if !all_gone(worker, end.saturating_duration_since(Instant::now())).await {
        worker.drain.end();
        deadline::wake_all();
        all_gone(worker, LAST_WORDS).await;
    }
    // Work of plugins that no exchange waits for: it gets a moment for its last words.
    worker.local.end();
    let done = async {
        while worker.local.has_work() {
            tokio::time::sleep(WORK_POLL).await;
        }
    };
    let _ = tokio::time::timeout(LAST_WORDS, done).await;
    worker.log.replace(None);
}

/// Waits until nothing is open; returns false if that takes too long.
async fn all_gone(worker: &Worker, patience: Duration) -> bool {
    let gone = async {
        while worker.is_busy() {
            worker.released.notified().await;
        }
    };
    tokio::time::timeout(patience, gone).await.is_ok()
}
