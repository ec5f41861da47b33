//! The driver: it moves datagrams between the socket and the connections, and keeps their time.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::{ConnectionHandle, ConnectionStats, DatagramEvent, Transmit};
use tokio::time::Sleep;

use super::counts::EndpointCounts;
use super::flood::{self, FloodGuard};
use super::ids::{ConnectionOwner, Id, QuicKeys, destination, short_destination};
use super::late::LeftIds;
use super::neighbours::{Neighbours, Strays};
use super::path::Path;
use super::socket::{Batch, Packet, QuicSocket};
use super::state::{Drive, HalfOpen, Inner, Queue, Shared};
use super::succession::{Forwarded, Forwarding, Predecessors};
use super::{ConnectionLost, code};

/// Batches that the driver receives before other tasks run.
const BATCHES_PER_TURN: usize = 4;

/// The time after which no further batch is received before other tasks run.
const TURN: Duration = Duration::from_millis(1);

/// Forwarded packets that the driver handles before other tasks run.
const FORWARDED_PER_TURN: usize = 64;

/// Datagrams in one send: more would delay other connections, and the kernel allows 64.
const SEGMENTS_MAX: usize = 16;

/// Sends of one connection before the next connection has its turn.
const SENDS_PER_TURN: usize = 4;

/// The pause after a full socket. Its buffer holds some milliseconds of a fast link.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// Clients that wait to be admitted. The acceptor takes them in the same turn; more come only in a flood.
pub(super) const ARRIVALS_MAX: usize = 256;

thread_local! {
    /// The receive buffers of the worker: a driver uses them only within one poll.
    static BATCH: RefCell<Batch> = RefCell::default();
}

/// An endpoint on its worker.
pub(super) struct Driver {
    pub(super) socket: QuicSocket,
    pub(super) queue: Rc<Queue>,
    pub(super) core: RefCell<Core>,
    pub(super) half_open: Rc<Cell<u32>>,
    pub(super) counts: Cell<EndpointCounts>,
}

/// The part of an endpoint that its driver changes.
pub(super) struct Core {
    pub(super) endpoint: quinn_proto::Endpoint,
    /// By their handles, which are small numbers.
    connections: Vec<Option<Rc<Shared>>>,
    timeouts: BTreeSet<(Instant, usize)>,
    pub(super) clients: ArrivalQueue,
    /// A datagram that the socket had no room for.
    unsent: Option<(Transmit, Vec<u8>)>,
    out: Vec<u8>,
    pub(super) bounds: EndpointBounds,
    /// Tasks of connections that have ended while datagrams were handled.
    woken: Vec<Waker>,
    left_ids: LeftIds,
    keys: Rc<Routing>,
    strays: Option<Strays>,
    sleep: Option<Pin<Box<Sleep>>>,
    /// Another process reads the socket, and forwards the packets of this one.
    forwarded: Option<Forwarded>,
}

/// The clients before their admission.
#[derive(Default)]
pub(super) struct ArrivalQueue {
    pub(super) arrivals: VecDeque<quinn_proto::Incoming>,
    /// The task that admits them.
    pub(super) acceptor: Option<Waker>,
    /// New clients are refused.
    pub(super) is_closing: bool,
}

impl ArrivalQueue {
    /// Adds a client, and wakes the task that admits it.
    fn push(&mut self, incoming: quinn_proto::Incoming) {
        self.arrivals.push_back(incoming);
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.wake();
        }
    }
}

/// The bounds of an endpoint against floods.
pub(super) struct EndpointBounds {
    /// Handshakes under way from which on clients have to prove their address.
    pub(super) retry_above: u32,
    /// The largest number of handshakes under way.
    pub(super) half_open_max: u32,
    /// Control frames of a connection.
    controls_per_second: u32,
}

/// Finds the owners of packets.
pub(super) struct Routing {
    pub(super) keys: std::sync::Arc<QuicKeys>,
    pub(super) place: ConnectionOwner,
    pub(super) neighbours: std::sync::Arc<Neighbours>,
    /// The address of the socket.
    pub(super) addr: Option<SocketAddr>,
    /// Made with the first packet for a process before this one.
    pub(super) predecessors: OnceCell<Option<Predecessors>>,
}

impl Routing {
    /// Forwards a packet of another worker or process; returns None for it.
    fn keep(&self, packet: Packet, counts: &Cell<EndpointCounts>) -> Option<Packet> {
        let owner = destination(&packet.bytes).and_then(|id| self.keys.open(id));
        let Some(owner) = owner.filter(|owner| *owner != self.place) else { return Some(packet) };
        let forwarding = match owner.generation == self.place.generation {
            true if self.neighbours.forward(owner.worker, &packet) => Forwarding::Done,
            true => Forwarding::Lost,
            false => self.forward_back(owner, &packet),
        };
        EndpointCounts::change(counts, |counts| match forwarding {
            Forwarding::Done => counts.forwarded += 1,
            Forwarding::Lost | Forwarding::Gone => counts.dropped += 1,
        });
        // A process that is gone has left its connections: they get a stateless reset.
        (forwarding == Forwarding::Gone).then_some(packet)
    }

    fn forward_back(&self, owner: ConnectionOwner, packet: &Packet) -> Forwarding {
        let predecessors = self.predecessors.get_or_init(|| Predecessors::open().ok());
        match (predecessors, self.addr) {
            (Some(predecessors), Some(addr)) => predecessors.forward(&self.keys, owner, addr, packet),
            // Without a socket for it, nothing is known of the owner.
            _ => Forwarding::Lost,
        }
    }
}

impl Drive for Driver {
    fn send_last(&self, shared: &Rc<Shared>) {
        let Ok(mut core) = self.core.try_borrow_mut() else { return };
        let mut wakers = Vec::new();
        core.drive(self, shared, Instant::now(), &mut wakers);
        drop(core);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Driver {
    pub(super) fn new(
        socket: QuicSocket,
        endpoint: quinn_proto::Endpoint,
        routing: Routing,
        strays: Option<Strays>,
        limits: &super::QuicLimits,
    ) -> Rc<Driver> {
        Rc::new_cyclic(|driver: &Weak<Driver>| Driver {
            socket,
            queue: Rc::new(Queue::new(Weak::clone(driver) as Weak<dyn Drive>)),
            core: RefCell::new(Core {
                endpoint,
                connections: Vec::new(),
                timeouts: BTreeSet::new(),
                clients: ArrivalQueue::default(),
                unsent: None,
                out: Vec::new(),
                bounds: EndpointBounds {
                    retry_above: limits.retry_above,
                    half_open_max: limits.half_open,
                    controls_per_second: limits.controls_per_second,
                },
                woken: Vec::new(),
                left_ids: LeftIds::default(),
                keys: Rc::new(routing),
                strays,
                sleep: None,
                forwarded: None,
            }),
            half_open: Rc::default(),
            counts: Cell::default(),
        })
    }

    /// Drives until the socket fails, or the last connection of a closed endpoint has ended.
    pub(super) fn poll_run(&self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        // Nothing that happens below has to wake this task.
        self.queue.waker.borrow_mut().take();
        let mut wakers = Vec::new();
        let polled = {
            let mut core = self.core.borrow_mut();
            let received = core.receive(self, cx);
            core.turn(self, &mut wakers);
            wakers.append(&mut core.woken);
            match received {
                Err(error) => Poll::Ready(Err(error)),
                Ok(_) if core.clients.is_closing && core.endpoint.open_connections() == 0 => {
                    Poll::Ready(Ok(()))
                }
                Ok(more) => {
                    if more || !self.queue.list.borrow().is_empty() {
                        cx.waker().wake_by_ref();
                    }
                    core.poll_sleep(cx);
                    Poll::Pending
                }
            }
        };
        *self.queue.waker.borrow_mut() = Some(cx.waker().clone());
        wakers.into_iter().for_each(Waker::wake);
        polled
    }
}

impl Core {
    /// Handles waiting datagrams; returns true if there may be more.
    fn receive(&mut self, driver: &Driver, cx: &mut Context<'_>) -> std::io::Result<bool> {
        let now = Instant::now();
        while let Some(Poll::Ready(Some(stray))) = self.strays.as_mut().map(|strays| strays.poll_recv(cx)) {
            let bytes = BytesMut::from(&stray.bytes[..]);
            self.handle(driver, now, Packet { from: stray.from, to: stray.to, ecn: stray.ecn, bytes });
        }
        if let Some(mut forwarded) = self.forwarded.take() {
            let more = self.receive_forwarded(driver, cx, now, &mut forwarded);
            self.forwarded = Some(forwarded);
            return more;
        }
        BATCH.with_borrow_mut(|batch| {
            for batches in 0..BATCHES_PER_TURN {
                if batches > 0 && now.elapsed() >= TURN {
                    break;
                }
                let routing = Rc::clone(&self.keys);
                let received = driver.socket.poll_receive(cx, batch, |packet| {
                    if let Some(packet) = routing.keep(packet, &driver.counts) {
                        self.handle(driver, now, packet);
                    }
                });
                match received {
                    Poll::Pending => return Ok(false),
                    Poll::Ready(Ok(())) => {}
                    // A response of ICMP to an earlier datagram: the state machine has its own timeouts.
                    Poll::Ready(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                    Poll::Ready(Err(error)) => return Err(error),
                }
            }
            Ok(true)
        })
    }

    /// Handles packets that the next process forwards; returns true if there may be more.
    fn receive_forwarded(
        &mut self,
        driver: &Driver,
        cx: &mut Context<'_>,
        now: Instant,
        forwarded: &mut Forwarded,
    ) -> std::io::Result<bool> {
        for _ in 0..FORWARDED_PER_TURN {
            match forwarded.poll_next(cx) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(Some(packet))) => self.handle(driver, now, packet),
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Leaves the socket to the next process, which forwards the packets of this one.
    pub(super) fn hand_over(&mut self) -> std::io::Result<()> {
        self.clients.is_closing = true;
        let addr = self.keys.addr.ok_or(std::io::ErrorKind::AddrNotAvailable)?;
        self.forwarded = Some(Forwarded::open(&self.keys.keys, self.keys.place, addr)?);
        Ok(())
    }

    /// Handles one datagram.
    fn handle(&mut self, driver: &Driver, now: Instant, packet: Packet) {
        let Packet { from, to, ecn, bytes } = packet;
        let (length, id) = (bytes.len() as u64, short_destination(&bytes));
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        match self.endpoint.handle(now, from, to, ecn, bytes, &mut out) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(shared) =
                    self.connection(handle).filter(|shared| !shared.flood.borrow_mut().drops())
                {
                    let mut inner = shared.inner.borrow_mut();
                    let mut path = shared.path.borrow_mut();
                    if !path.is_validated(from) {
                        path.received(from, length, inner.path_responses());
                    }
                    inner.machine.handle_event(event);
                    let stats = inner.machine.stats();
                    inner.unread.arrived(length, stats.frame_rx.stream);
                    drop((inner, path));
                    if let Some(id) = id
                        && let Some(former) = shared.used_id.replace(Some(id)).filter(|former| *former != id)
                    {
                        self.left_ids.left(former, handle);
                    }
                    self.check_flood(driver, now, &shared, &stats);
                    shared.touch();
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.arrive(driver, incoming, &mut out),
            Some(DatagramEvent::Response(_)) if id.is_some_and(|id| self.is_late(&id)) => {
                EndpointCounts::change(&driver.counts, |counts| counts.late += 1);
            }
            Some(DatagramEvent::Response(transmit)) => self.respond(driver, &transmit, &out),
            None => {}
        }
        self.out = out;
    }

    /// Returns true if an open connection has used the id before.
    fn is_late(&self, id: &Id) -> bool {
        let owner = self.left_ids.owner(id).and_then(|handle| self.connection(handle));
        owner.is_some_and(|shared| shared.inner.borrow().lost.is_none())
    }

    /// Ends a connection whose peer has sent too many frames without data.
    fn check_flood(&mut self, driver: &Driver, now: Instant, shared: &Shared, stats: &ConnectionStats) {
        let mut inner = shared.inner.borrow_mut();
        if inner.lost.is_some()
            || !shared.flood.borrow_mut().exceeds(stats, now, self.bounds.controls_per_second)
        {
            return;
        }
        EndpointCounts::change(&driver.counts, |counts| counts.floods += 1);
        tracing::info!(
            peer = %inner.machine.remote_address(),
            most = self.bounds.controls_per_second,
            "closed a QUIC connection: too many frames without data (http3.control_frames_per_second)"
        );
        inner.machine.close(now, code(flood::CODE), Bytes::from_static(flood::REASON.as_bytes()));
        inner.lose(ConnectionLost::Local(flood::CODE), &mut self.woken);
    }

    /// Takes a new client, unless there are too many.
    fn arrive(&mut self, driver: &Driver, incoming: quinn_proto::Incoming, out: &mut Vec<u8>) {
        out.clear();
        let half_open =
            driver.half_open.get() + u32::try_from(self.clients.arrivals.len()).unwrap_or(u32::MAX);
        if self.clients.is_closing {
            let transmit = self.endpoint.refuse(incoming, out);
            self.respond(driver, &transmit, out);
        } else if half_open >= self.bounds.retry_above && incoming.may_retry() {
            EndpointCounts::change(&driver.counts, |counts| counts.retried += 1);
            // It may retry, as just checked.
            if let Ok(transmit) = self.endpoint.retry(incoming, out) {
                self.respond(driver, &transmit, out);
            }
        } else if half_open >= self.bounds.half_open_max || self.clients.arrivals.len() >= ARRIVALS_MAX {
            EndpointCounts::change(&driver.counts, |counts| counts.ignored += 1);
            self.endpoint.ignore(incoming);
        } else {
            self.clients.push(incoming);
        }
    }

    /// Sends a datagram that belongs to no connection. It may be lost: the client sends again.
    pub(super) fn respond(&mut self, driver: &Driver, transmit: &Transmit, out: &[u8]) {
        if self.unsent.is_none() {
            driver.socket.send(transmit, out);
        }
    }

    fn connection(&self, handle: ConnectionHandle) -> Option<Rc<Shared>> {
        self.connections.get(handle.0).cloned().flatten()
    }

    /// Adds a connection.
    pub(super) fn add(
        &mut self,
        driver: &Driver,
        handle: ConnectionHandle,
        machine: quinn_proto::Connection,
    ) -> Rc<Shared> {
        let half_open = machine.side().is_server().then(|| HalfOpen::new(&driver.half_open));
        let shared = Rc::new(Shared {
            handle,
            queue: Rc::clone(&driver.queue),
            is_queued: Cell::new(false),
            timeout: Cell::new(None),
            default_code: Cell::new(0),
            used_id: Cell::new(None),
            path: RefCell::new(Path::new(machine.remote_address())),
            flood: RefCell::new(FloodGuard::new(Instant::now())),
            inner: RefCell::new(Inner::new(machine, half_open)),
        });
        if self.connections.len() <= handle.0 {
            self.connections.resize_with(handle.0 + 1, || None);
        }
        self.connections[handle.0] = Some(Rc::clone(&shared));
        shared.touch();
        shared
    }

    /// Forgets a connection without a word to its peer.
    pub(super) fn forget(&mut self, shared: &Rc<Shared>) {
        let is_known = self.connection(shared.handle).is_some_and(|known| Rc::ptr_eq(&known, shared));
        if is_known {
            self.endpoint.handle_event(shared.handle, quinn_proto::EndpointEvent::drained());
            self.remove(shared);
        }
        shared.inner.borrow_mut().half_open = None;
    }

    fn remove(&mut self, shared: &Shared) {
        if let Some(at) = shared.timeout.take() {
            self.timeouts.remove(&(at, shared.handle.0));
        }
        self.connections[shared.handle.0] = None;
        self.left_ids.forget(shared.handle);
    }

    /// Gives each connection that needs it a turn.
    fn turn(&mut self, driver: &Driver, wakers: &mut Vec<Waker>) {
        let now = Instant::now();
        if let Some((transmit, bytes)) = self.unsent.take()
            && !driver.socket.send(&transmit, &bytes)
        {
            self.unsent = Some((transmit, bytes));
        }
        // Connections that are added meanwhile have their turn later.
        let list = std::mem::take(&mut *driver.queue.list.borrow_mut());
        for shared in &list {
            self.drive(driver, shared, now, wakers);
        }
        let mut queue = driver.queue.list.borrow_mut();
        if queue.is_empty() {
            let mut list = list;
            list.clear();
            *queue = list;
        }
        drop(queue);
        // After the sends: a timeout of a path that the peer has just left is void by then.
        for _ in 0..self.timeouts.len() {
            let Some(&(at, handle)) = self.timeouts.first().filter(|(at, _)| *at <= now) else { break };
            self.timeouts.remove(&(at, handle));
            if let Some(shared) = self.connection(ConnectionHandle(handle)) {
                shared.timeout.set(None);
                shared.inner.borrow_mut().machine.handle_timeout(now);
                self.drive(driver, &shared, now, wakers);
            }
        }
    }

    /// Takes the events of a connection, and sends its packets.
    pub(super) fn drive(
        &mut self,
        driver: &Driver,
        shared: &Rc<Shared>,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) {
        shared.is_queued.set(false);
        let mut inner = shared.inner.borrow_mut();
        let is_known = self.connection(shared.handle).is_some_and(|known| Rc::ptr_eq(&known, shared));
        if !is_known {
            return;
        }
        let mut is_drained = false;
        let mut sends = 0;
        if self.unsent.is_none()
            && let Some((transmit, bytes)) = shared.path.borrow_mut().take_waiting()
        {
            driver.socket.send(&transmit, &bytes);
        }
        loop {
            while let Some(event) = inner.machine.poll_endpoint_events() {
                is_drained |= event.is_drained();
                if let Some(event) = self.endpoint.handle_event(shared.handle, event) {
                    inner.machine.handle_event(event);
                }
            }
            inner.take_events(wakers);
            if is_drained || self.unsent.is_some() {
                break;
            }
            self.out.clear();
            let segments = driver.socket.segments().min(SEGMENTS_MAX);
            let Some(transmit) = inner.machine.poll_transmit(now, segments, &mut self.out) else { break };
            let may_leave = {
                let mut path = shared.path.borrow_mut();
                let responses = || inner.path_responses();
                path.is_validated(transmit.destination) || path.admits(&transmit, &self.out, responses())
            };
            if may_leave && !driver.socket.send(&transmit, &self.out) {
                self.unsent = Some((transmit, std::mem::take(&mut self.out)));
            }
            sends += 1;
            if sends == SENDS_PER_TURN {
                shared.touch();
                break;
            }
        }
        if self.unsent.is_some() && !is_drained {
            shared.touch();
        }
        let timeout = if is_drained { None } else { inner.machine.poll_timeout() };
        drop(inner);
        if is_drained {
            self.remove(shared);
        } else if timeout != shared.timeout.get() {
            if let Some(before) = shared.timeout.replace(timeout) {
                self.timeouts.remove(&(before, shared.handle.0));
            }
            self.timeouts.extend(timeout.map(|at| (at, shared.handle.0)));
        }
    }

    /// Registers for the next timeout.
    fn poll_sleep(&mut self, cx: &mut Context<'_>) {
        let first = self.timeouts.first().map(|(at, _)| *at);
        let full = self.unsent.is_some().then(|| Instant::now() + FULL_PAUSE);
        let Some(next) = first.into_iter().chain(full).min() else { return };
        let next = tokio::time::Instant::from_std(next);
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(next)));
        if sleep.deadline() != next {
            sleep.as_mut().reset(next);
        }
        if sleep.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}
