//! The state of a connection: the machine, its streams, and the queue of the driver.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use foldhash::fast::RandomState;
use quinn_proto::{ConnectionHandle, Dir, Event, StreamEvent, StreamId, WriteError};
use sigma_buffer::held::Account;

use super::flood::FloodGuard;
use super::ids::Id;
use super::path::Path;
use super::unread::Unread;
use super::{ConnectionLost, code};
use crate::tls::EarlyHandshake;

/// The driver, from the view of a connection.
pub(super) trait Drive {
    /// Sends the last packet of a connection at once, if the driver is not at work.
    fn send_last(&self, shared: &Rc<Shared>);
}

/// Connections that need a turn of the driver.
pub(super) struct Queue {
    pub(super) list: RefCell<Vec<Rc<Shared>>>,
    pub(super) waker: RefCell<Option<Waker>>,
    driver: Weak<dyn Drive>,
}

impl Queue {
    pub(super) fn new(driver: Weak<dyn Drive>) -> Queue {
        Queue { list: RefCell::default(), waker: RefCell::default(), driver }
    }

    /// Adds a connection, and wakes the driver.
    pub(super) fn add(&self, shared: &Rc<Shared>) {
        if shared.is_queued.replace(true) {
            return;
        }
        self.list.borrow_mut().push(Rc::clone(shared));
        self.wake();
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Sends the last packet of a connection at once: its worker may end before the driver's next turn.
    fn send_last(&self, shared: &Rc<Shared>) {
        self.add(shared);
        if let Some(driver) = self.driver.upgrade() {
            driver.send_last(shared);
        }
    }
}

/// A connection for the driver and for its user.
pub(super) struct Shared {
    pub(super) handle: ConnectionHandle,
    pub(super) queue: Rc<Queue>,
    /// It is in the queue of the driver.
    pub(super) is_queued: Cell<bool>,
    /// Its next timeout in the driver's list.
    pub(super) timeout: Cell<Option<Instant>>,
    pub(super) default_code: Cell<u64>,
    /// The connection id of the peer's last packet.
    pub(super) used_id: Cell<Option<Id>>,
    pub(super) path: RefCell<Path>,
    pub(super) flood: RefCell<FloodGuard>,
    pub(super) inner: RefCell<Inner>,
}

/// The state of a connection.
pub(super) struct Inner {
    pub(super) machine: quinn_proto::Connection,
    pub(super) streams: HashMap<StreamId, StreamState, RandomState>,
    /// Accepted streams of the peer, by direction.
    pub(super) accepted: [u64; 2],
    /// Bytes of chunks that no window takes yet.
    pub(super) held: usize,
    /// Streams whose bytes no window has taken, by the time of their first such byte.
    pub(super) waiting: Vec<StreamId>,
    /// The account for bytes that the peer has not acknowledged.
    pub(super) account: Rc<Account>,
    /// Bytes of the peer that were not read.
    pub(super) unread: Unread,
    pub(super) lost: Option<ConnectionLost>,
    pub(super) is_established: bool,
    /// The handshake, if the connection was accepted before its end.
    pub(super) early: Option<Arc<EarlyHandshake>>,
    /// The handshake, while it counts as half-open.
    pub(super) half_open: Option<HalfOpen>,
    pub(super) wakers: EventWakers,
}

/// The tasks that wait for events of a connection.
#[derive(Default)]
pub(super) struct EventWakers {
    /// For new streams of the peer, by direction.
    pub(super) accept: [Option<Waker>; 2],
    /// For room to open streams, by direction: several tasks may wait.
    pub(super) open: [Vec<Waker>; 2],
    pub(super) closed: Option<Waker>,
    pub(super) datagram: Option<Waker>,
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
    /// It is in the list of waiting streams.
    is_waiting: bool,
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
pub(super) fn place(dir: Dir) -> usize {
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
            unread: Unread::default(),
            lost: None,
            is_established: false,
            early: None,
            half_open,
            wakers: EventWakers::default(),
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
                    if let Some(early) = self.early.take() {
                        early.complete();
                    }
                    wakers.extend(self.wakers.shaken.take());
                }
                // Early data may be accepted now.
                Event::HandshakeDataReady => wakers.extend(self.wakers.shaken.take()),
                Event::ConnectionLost { reason } => self.lose(ConnectionLost::of(&reason), wakers),
                Event::Stream(event) => {
                    is_writable |= matches!(event, StreamEvent::Writable { .. });
                    self.take_stream_event(event, wakers);
                }
                Event::DatagramReceived => wakers.extend(self.wakers.datagram.take()),
                // The oldest ones are dropped, so none waits for room.
                Event::DatagramsUnblocked => {}
            }
        }
        if is_writable {
            self.flush_above(None, wakers);
        }
    }

    fn take_stream_event(&mut self, event: StreamEvent, wakers: &mut Vec<Waker>) {
        match event {
            StreamEvent::Opened { dir } => wakers.extend(self.wakers.accept[place(dir)].take()),
            StreamEvent::Available { dir } => wakers.append(&mut self.wakers.open[place(dir)]),
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
                // RFC 9000 §3.5: the response is a reset with the same code. The machine counts a new stream when it is
                // accepted, and must not free it earlier.
                let is_new = id.initiator() != self.machine.side() && !self.was_accepted(id);
                if !is_new {
                    let _ = self.machine.send_stream(id).reset(error_code);
                }
                let stream = match is_new {
                    true => Some(self.streams.entry(id).or_default()),
                    false => self.streams.get_mut(&id),
                };
                if let Some(stream) = stream {
                    stream.stopped = Some(error_code.into_inner());
                    wakers.extend(stream.stop.take());
                    wakers.extend(stream.write.take());
                }
                self.drop_held(id);
                // Nothing else ends a stream that its user has left to its held bytes.
                if !is_new && self.streams.get(&id).is_some_and(|stream| stream.handles == 0) {
                    self.forget(id);
                }
            }
        }
    }

    /// Returns the PATH_RESPONSE frames received.
    pub(super) fn path_responses(&self) -> u64 {
        self.machine.stats().frame_rx.path_response
    }

    fn was_accepted(&self, id: StreamId) -> bool {
        id.index() < self.accepted[place(id.dir())]
    }

    /// Ends the connection for its user.
    pub(super) fn lose(&mut self, lost: ConnectionLost, wakers: &mut Vec<Waker>) {
        self.lost.get_or_insert(lost);
        self.half_open = None;
        wakers.extend(self.wakers.accept.iter_mut().filter_map(Option::take));
        self.wakers.open.iter_mut().for_each(|open| wakers.append(open));
        let all = [&mut self.wakers.closed, &mut self.wakers.shaken, &mut self.wakers.datagram];
        wakers.extend(all.into_iter().filter_map(Option::take));
        for stream in self.streams.values_mut() {
            let all = [&mut stream.read, &mut stream.write, &mut stream.stop];
            wakers.extend(all.into_iter().filter_map(Option::take));
            stream.held.clear();
            stream.is_waiting = false;
        }
        self.waiting.clear();
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
                return true;
            }
            // An error is seen by the next call of the user.
            let _ = self.flush(*id);
            let Some(stream) = self.streams.get_mut(id).filter(|stream| !stream.is_waiting) else {
                return true;
            };
            wakers.extend(stream.write.take());
            if stream.handles == 0 {
                self.forget(*id);
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

    /// Queues bytes of a stream behind its held bytes; a flush has to follow.
    pub(super) fn hold(&mut self, id: StreamId, bytes: Bytes) {
        if let Some(stream) = self.streams.get_mut(&id) {
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
                Err(WriteError::Blocked) => {
                    if !std::mem::replace(&mut stream.is_waiting, true) {
                        self.waiting.push(id);
                    }
                    return Ok(false);
                }
                Err(error) => {
                    self.drop_held(id);
                    return Err(error);
                }
            }
        }
        let finishes = std::mem::take(&mut stream.finishes);
        self.end_wait(id);
        if finishes {
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
        self.end_wait(id);
    }

    /// Takes a stream without held bytes from the list of waiting ones.
    fn end_wait(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if std::mem::take(&mut stream.is_waiting) {
            self.waiting.retain(|waiting| *waiting != id);
        }
    }

    /// Forgets a stream without handles.
    pub(super) fn forget(&mut self, id: StreamId) {
        self.streams.remove(&id);
        // The streams of the connection itself last as long as it.
        if self.streams.keys().all(|id| id.dir() == Dir::Uni) {
            self.unread.clear();
        }
    }

    /// Adds a handle of a stream.
    pub(super) fn add_handle(&mut self, id: StreamId) {
        self.streams.entry(id).or_default().handles += 1;
    }
}

impl Shared {
    /// Makes the driver look at the connection in its next turn.
    pub(super) fn touch(self: &Rc<Self>) {
        self.queue.add(self);
    }

    /// Registers for the end of the handshake, or the acceptance of early data.
    pub(super) fn poll_shaken(&self, cx: &Context<'_>) -> Poll<Result<(), ConnectionLost>> {
        let mut inner = self.inner.borrow_mut();
        if let Some(lost) = inner.lost {
            return Poll::Ready(Err(lost));
        }
        if inner.is_established {
            return Poll::Ready(Ok(()));
        }
        if inner.machine.side().is_server() && inner.machine.has_0rtt() {
            // It is a connection from now on: the limits of connections hold, not the limit of handshakes.
            inner.half_open = None;
            return Poll::Ready(Ok(()));
        }
        register(&mut inner.wakers.shaken, cx);
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
