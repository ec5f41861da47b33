//! A connection: the state machine, its streams' state, and the handle of its user.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldhash::fast::RandomState;
use quinn_proto::{ConnectionHandle, Dir, Event, Side, StreamEvent, StreamId, VarInt, WriteError};
use sigma_buffer::held::Account;

use super::driver::Queue;
use super::stream::{RecvStream, SendStream};
use super::{ConnectionLost, code};
use crate::stream::Peer;
use crate::tls::Facts;

/// The code for streams and connections that are dropped without one: HTTP/3's H3_REQUEST_CANCELLED.
const DEFAULT_CODE: u64 = 0x10c;

/// A connection for the driver and for its user.
pub(super) struct Shared {
    pub(super) handle: ConnectionHandle,
    pub(super) queue: Rc<Queue>,
    /// It is in the queue of the driver.
    pub(super) is_queued: Cell<bool>,
    /// Its next timeout in the driver's list.
    pub(super) timeout: Cell<Option<Instant>>,
    pub(super) default_code: Cell<u64>,
    pub(super) inner: RefCell<Inner>,
}

/// The state of a connection.
pub(super) struct Inner {
    pub(super) machine: quinn_proto::Connection,
    pub(super) streams: HashMap<StreamId, StreamState, RandomState>,
    /// Accepted streams of the peer, by direction.
    accepted: [u64; 2],
    /// Bytes of chunks that no window takes yet.
    held: usize,
    /// Streams with such bytes.
    waiting: Vec<StreamId>,
    /// The account for bytes that the peer has not acknowledged.
    pub(super) account: Rc<Account>,
    pub(super) lost: Option<ConnectionLost>,
    pub(super) is_established: bool,
    /// The handshake, while it counts as half-open.
    pub(super) half_open: Option<HalfOpen>,
    accept: [Option<Waker>; 2],
    /// Several tasks may wait to open streams.
    open: [Vec<Waker>; 2],
    closed: Option<Waker>,
    shaken: Option<Waker>,
}

/// The state of a stream besides the machine's.
#[derive(Default)]
pub(super) struct StreamState {
    pub(super) read: Option<Waker>,
    pub(super) write: Option<Waker>,
    pub(super) stop: Option<Waker>,
    /// Bytes that no window takes yet.
    pub(super) held: VecDeque<Bytes>,
    /// The end follows the held bytes.
    pub(super) finishes: bool,
    /// Its place among others: a higher one goes first.
    pub(super) priority: i32,
    /// The peer wants no more, with this code.
    pub(super) stopped: Option<u64>,
    /// The peer has acknowledged everything.
    pub(super) is_acknowledged: bool,
    /// Handles of the user: of the sending and the receiving half.
    pub(super) handles: u8,
}

/// Counts a handshake that is not complete.
pub(super) struct HalfOpen(Rc<Cell<u32>>);

impl HalfOpen {
    pub(super) fn new(count: &Rc<Cell<u32>>) -> HalfOpen {
        count.set(count.get() + 1);
        HalfOpen(Rc::clone(count))
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Which half of an array a direction has.
fn place(dir: Dir) -> usize {
    match dir {
        Dir::Bi => 0,
        Dir::Uni => 1,
    }
}

/// Keeps the newest waker.
pub(super) fn register(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}

impl Inner {
    pub(super) fn new(machine: quinn_proto::Connection, half_open: Option<HalfOpen>) -> Inner {
        Inner {
            machine,
            streams: HashMap::default(),
            accepted: [0; 2],
            held: 0,
            waiting: Vec::new(),
            account: Rc::default(),
            lost: None,
            is_established: false,
            half_open,
            accept: [None, None],
            open: [Vec::new(), Vec::new()],
            closed: None,
            shaken: None,
        }
    }

    /// Takes the events of the machine; the wakers of concerned tasks go to `wakers`.
    pub(super) fn take_events(&mut self, wakers: &mut Vec<Waker>) {
        let mut is_writable = false;
        while let Some(event) = self.machine.poll() {
            match event {
                Event::Connected => {
                    self.is_established = true;
                    self.half_open = None;
                    wakers.extend(self.shaken.take());
                }
                Event::ConnectionLost { reason } => self.lose(ConnectionLost::of(&reason), wakers),
                Event::Stream(event) => {
                    is_writable |= matches!(event, StreamEvent::Writable { .. });
                    self.take_stream_event(event, wakers);
                }
                Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {}
            }
        }
        if is_writable {
            self.flush_above(None, wakers);
        }
    }

    fn take_stream_event(&mut self, event: StreamEvent, wakers: &mut Vec<Waker>) {
        match event {
            StreamEvent::Opened { dir } => wakers.extend(self.accept[place(dir)].take()),
            StreamEvent::Available { dir } => wakers.append(&mut self.open[place(dir)]),
            StreamEvent::Readable { id } => {
                wakers.extend(self.streams.get_mut(&id).and_then(|stream| stream.read.take()));
            }
            StreamEvent::Writable { id } => {
                // Streams with held bytes go by their priority, after all events.
                if let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.held.is_empty()) {
                    wakers.extend(stream.write.take());
                }
            }
            StreamEvent::Finished { id } => {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.is_acknowledged = true;
                    wakers.extend(stream.stop.take());
                }
            }
            StreamEvent::Stopped { id, error_code } => {
                // RFC 9000 §3.5: the response is a reset with the same code.
                let _ = self.machine.send_stream(id).reset(error_code);
                let is_new = id.initiator() != self.machine.side() && !self.was_accepted(id);
                let stream = match is_new {
                    true => Some(self.streams.entry(id).or_default()),
                    false => self.streams.get_mut(&id),
                };
                if let Some(stream) = stream {
                    stream.stopped = Some(error_code.into_inner());
                    self.held -= stream.held.drain(..).map(|bytes| bytes.len()).sum::<usize>();
                    wakers.extend(stream.stop.take());
                    wakers.extend(stream.write.take());
                }
            }
        }
    }

    fn was_accepted(&self, id: StreamId) -> bool {
        id.index() < self.accepted[place(id.dir())]
    }

    /// Ends the connection for its user.
    pub(super) fn lose(&mut self, lost: ConnectionLost, wakers: &mut Vec<Waker>) {
        self.lost.get_or_insert(lost);
        self.half_open = None;
        wakers.extend(self.accept.iter_mut().filter_map(Option::take));
        self.open.iter_mut().for_each(|open| wakers.append(open));
        wakers.extend([&mut self.closed, &mut self.shaken].into_iter().filter_map(Option::take));
        for stream in self.streams.values_mut() {
            let all = [&mut stream.read, &mut stream.write, &mut stream.stop];
            wakers.extend(all.into_iter().filter_map(Option::take));
            stream.held.clear();
        }
        self.held = 0;
    }

    /// Passes held bytes of the streams above a priority, or of all, to the machine, the highest first: a window of
    /// the whole connection serves urgent streams before others. Wakers of drained streams go to `wakers`.
    pub(super) fn flush_above(&mut self, priority: Option<i32>, wakers: &mut Vec<Waker>) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_by_cached_key(|id| Reverse(self.streams.get(id).map(|stream| stream.priority)));
        waiting.retain(|id| {
            let Some(stream) = self.streams.get(id) else { return false };
            if priority.is_some_and(|priority| stream.priority <= priority) {
                return !stream.held.is_empty();
            }
            // An error is seen by the next call of the user.
            let _ = self.flush(*id);
            let Some(stream) = self.streams.get_mut(id) else { return false };
            if !stream.held.is_empty() {
                return true;
            }
            wakers.extend(stream.write.take());
            if stream.handles == 0 {
                self.streams.remove(id);
            }
            false
        });
        self.waiting = waiting;
    }

    /// Returns true if a stream above a priority has held bytes.
    pub(super) fn is_any_above(&self, priority: i32) -> bool {
        let is_above = |id| self.streams.get(id).is_some_and(|stream| stream.priority > priority);
        self.waiting.iter().any(is_above)
    }

    /// Queues bytes of a stream behind those that are held back.
    pub(super) fn hold(&mut self, id: StreamId, bytes: Bytes) {
        if let Some(stream) = self.streams.get_mut(&id) {
            if stream.held.is_empty() {
                self.waiting.retain(|waiting| *waiting != id);
                self.waiting.push(id);
            }
            self.held += bytes.len();
            stream.held.push_back(bytes);
        }
    }

    /// Passes held bytes to the machine, then the end if it is due; returns true if nothing is held back.
    ///
    /// # Errors
    /// Returns an error if the stream was stopped, finished or reset.
    pub(super) fn flush(&mut self, id: StreamId) -> Result<bool, WriteError> {
        let Some(stream) = self.streams.get_mut(&id) else { return Err(WriteError::ClosedStream) };
        while !stream.held.is_empty() {
            let written = self.machine.send_stream(id).write_chunks(stream.held.make_contiguous());
            match written {
                Ok(written) => {
                    self.held -= written.bytes;
                    stream.held.drain(..written.chunks);
                }
                Err(WriteError::Blocked) => return Ok(false),
                Err(error) => {
                    self.held -= stream.held.drain(..).map(|bytes| bytes.len()).sum::<usize>();
                    return Err(error);
                }
            }
        }
        if std::mem::take(&mut stream.finishes) {
            let _ = self.machine.send_stream(id).finish();
        }
        Ok(true)
    }

    /// Drops the held bytes of a stream.
    pub(super) fn drop_held(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            self.held -= stream.held.drain(..).map(|bytes| bytes.len()).sum::<usize>();
            stream.finishes = false;
        }
    }

    /// Adds a handle of a stream.
    fn add_handle(&mut self, id: StreamId) {
        self.streams.entry(id).or_default().handles += 1;
    }
}

impl Shared {
    /// Makes the driver look at the connection in its next turn.
    pub(super) fn touch(self: &Rc<Self>) {
        self.queue.add(self);
    }

    /// Registers for the end of the handshake.
    pub(super) fn poll_shaken(&self, cx: &Context<'_>) -> Poll<Result<(), ConnectionLost>> {
        let mut inner = self.inner.borrow_mut();
        if let Some(lost) = inner.lost {
            return Poll::Ready(Err(lost));
        }
        if inner.is_established {
            return Poll::Ready(Ok(()));
        }
        register(&mut inner.shaken, cx);
        Poll::Pending
    }

    /// Closes the connection with a code of the application.
    pub(super) fn close(self: &Rc<Self>, error_code: u64, reason: &'static str) {
        let mut wakers = Vec::new();
        {
            let mut inner = self.inner.borrow_mut();
            if inner.lost.is_some() {
                return;
            }
            inner.machine.close(Instant::now(), code(error_code), Bytes::from_static(reason.as_bytes()));
            inner.lose(ConnectionLost::Local(error_code), &mut wakers);
        }
        wakers.into_iter().for_each(Waker::wake);
        self.queue.send_last(self);
    }
}

/// A stream that the peer has opened.
pub struct IncomingStream {
    /// Its id.
    pub id: StreamId,
    /// The bytes of the peer.
    pub recv: RecvStream,
    /// The bytes for the peer, on a bidirectional stream.
    pub send: Option<SendStream>,
    /// It was opened before the handshake was complete.
    pub is_early: bool,
}

/// The facts of a connection, and its end: the last handle closes it.
struct Owner {
    shared: Rc<Shared>,
    facts: Option<Rc<Facts>>,
    peer: Peer,
    local: Option<SocketAddr>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.close(self.shared.default_code.get(), "");
    }
}

/// An established connection. Copies are handles of the same one; the drop of the last one closes it.
///
/// Each `poll` method keeps one waker: the newest wins. Only streams may be opened by several tasks.
#[derive(Clone)]
pub struct Connection(Rc<Owner>);

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("peer", &self.0.peer).finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) fn new(
        shared: Rc<Shared>,
        facts: Option<Facts>,
        peer: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Connection {
        shared.default_code.set(DEFAULT_CODE);
        let facts = facts.map(Rc::new);
        Connection(Rc::new(Owner { shared, facts, peer: Peer::from_tcp(peer), local }))
    }

    fn shared(&self) -> &Rc<Shared> {
        &self.0.shared
    }

    /// Returns the result of the handshake; None on the side of the client.
    pub fn facts(&self) -> Option<&Rc<Facts>> {
        self.0.facts.as_ref()
    }

    /// Returns the address of the peer that the handshake validated.
    pub fn peer(&self) -> Peer {
        self.0.peer
    }

    /// Returns the local address of the handshake.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.local
    }

    /// Sets the code for streams and the connection when they are dropped without one.
    pub fn set_default_code(&self, code: u64) {
        self.shared().default_code.set(code);
    }

    /// Returns the next stream that the peer has opened in this direction.
    ///
    /// # Errors
    /// Returns an error at the end of the connection.
    pub fn poll_accept(
        &self,
        cx: &mut Context<'_>,
        dir: Dir,
    ) -> Poll<Result<IncomingStream, ConnectionLost>> {
        let shared = self.shared();
        let mut inner = shared.inner.borrow_mut();
        if let Some(lost) = inner.lost {
            return Poll::Ready(Err(lost));
        }
        let Some(id) = inner.machine.streams().accept(dir) else {
            register(&mut inner.accept[place(dir)], cx);
            return Poll::Pending;
        };
        inner.accepted[place(dir)] = id.index() + 1;
        inner.add_handle(id);
        if dir == Dir::Bi {
            inner.add_handle(id);
        }
        let is_early = inner.machine.is_handshaking();
        drop(inner);
        // The peer may open another stream later; the limit rises as streams end.
        shared.touch();
        let send = (dir == Dir::Bi).then(|| SendStream::new(Rc::clone(shared), id));
        Poll::Ready(Ok(IncomingStream { id, recv: RecvStream::new(Rc::clone(shared), id), send, is_early }))
    }

    /// Opens a stream to the peer; pending while the peer allows no more.
    ///
    /// # Errors
    /// Returns an error at the end of the connection.
    pub fn poll_open_uni(&self, cx: &mut Context<'_>) -> Poll<Result<SendStream, ConnectionLost>> {
        self.poll_open(cx, Dir::Uni).map_ok(|id| SendStream::new(Rc::clone(self.shared()), id))
    }

    /// Opens a stream in both directions; pending while the peer allows no more.
    ///
    /// # Errors
    /// Returns an error at the end of the connection.
    pub fn poll_open_bidi(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(SendStream, RecvStream), ConnectionLost>> {
        self.poll_open(cx, Dir::Bi).map_ok(|id| {
            let shared = self.shared();
            shared.inner.borrow_mut().add_handle(id);
            (SendStream::new(Rc::clone(shared), id), RecvStream::new(Rc::clone(shared), id))
        })
    }

    fn poll_open(&self, cx: &mut Context<'_>, dir: Dir) -> Poll<Result<StreamId, ConnectionLost>> {
        let mut inner = self.shared().inner.borrow_mut();
        if let Some(lost) = inner.lost {
            return Poll::Ready(Err(lost));
        }
        let Some(id) = inner.machine.streams().open(dir) else {
            let open = &mut inner.open[place(dir)];
            if !open.iter().any(|waker| waker.will_wake(cx.waker())) {
                open.push(cx.waker().clone());
            }
            return Poll::Pending;
        };
        inner.add_handle(id);
        Poll::Ready(Ok(id))
    }

    /// Returns the number of streams that the peer has open in a direction.
    pub fn remote_streams(&self, dir: Dir) -> u64 {
        self.shared().inner.borrow_mut().machine.streams().remote_open_streams(dir)
    }

    /// Sets how many streams the peer may have open in a direction; a lower limit holds for later streams.
    pub fn set_streams_limit(&self, dir: Dir, count: u32) {
        let shared = self.shared();
        shared.inner.borrow_mut().machine.set_max_concurrent_streams(dir, VarInt::from_u32(count));
        shared.touch();
    }

    /// Closes the connection; all its polls end. Queued data of streams is dropped.
    pub fn close(&self, code: u64, reason: &'static str) {
        self.shared().close(code, reason);
    }

    /// Ready when the connection has ended.
    pub fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<ConnectionLost> {
        let mut inner = self.shared().inner.borrow_mut();
        if let Some(lost) = inner.lost {
            return Poll::Ready(lost);
        }
        register(&mut inner.closed, cx);
        Poll::Pending
    }

    /// Returns why the connection has ended, if it has.
    pub fn lost(&self) -> Option<ConnectionLost> {
        self.shared().inner.borrow().lost
    }

    /// Returns true until the handshake is complete: streams that come before may be a replay.
    pub fn is_early(&self) -> bool {
        self.shared().inner.borrow().machine.is_handshaking()
    }

    /// Returns the estimated round-trip time.
    pub fn rtt(&self) -> Duration {
        self.shared().inner.borrow().machine.rtt()
    }

    /// Counts bytes of later calls in an account until the peer has acknowledged them.
    pub fn count_in(&self, account: Rc<Account>) {
        self.shared().inner.borrow_mut().account = account;
    }

    /// Returns the bytes for the peer that no window takes yet.
    pub fn held_bytes(&self) -> usize {
        self.shared().inner.borrow().held
    }

    /// Returns the bytes of all datagrams received.
    pub fn bytes_received(&self) -> u64 {
        self.shared().inner.borrow().machine.stats().udp_rx.bytes
    }

    /// Returns the bytes of all datagrams sent.
    pub fn bytes_sent(&self) -> u64 {
        self.shared().inner.borrow().machine.stats().udp_tx.bytes
    }

    /// Returns true on the side that opened the connection.
    pub fn is_client(&self) -> bool {
        self.shared().inner.borrow().machine.side() == Side::Client
    }
}
