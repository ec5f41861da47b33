//! One socket of a script: connecting, reading, writing.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use super::Sockets;
use super::held::{SocketBytes, TOO_MANY};
use super::pattern::{Progress, ReadPattern};
use crate::engine::host::Host;
use crate::engine::lifetime::{Ends, Lifetime};
use crate::engine::outbound::{Connection, Worker, text_of};

/// nginx's `lua_socket_connect_timeout`, `_send_timeout` and `_read_timeout`.
const TIMEOUT_MS: u64 = 60_000;

/// The most bytes that one call of the system reads.
const READ_BYTES: usize = 16 << 10;

/// How long a connection with TLS has for its last words.
const CLOSING: Duration = Duration::from_secs(5);

/// Timeouts of a socket, in milliseconds.
#[derive(Clone, Copy)]
pub(super) struct Timeouts {
    pub(super) connect_ms: u64,
    pub(super) send_ms: u64,
    pub(super) read_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { connect_ms: TIMEOUT_MS, send_ms: TIMEOUT_MS, read_ms: TIMEOUT_MS }
    }
}

/// A socket of a script.
pub(super) struct Socket {
    pub(super) sockets: Rc<Sockets>,
    /// The exchange or timer that it belongs to.
    lifetime: Weak<Lifetime>,
    pub(super) timeouts: Cell<Timeouts>,
    connection: RefCell<Option<Connection>>,
    /// The name of its pool.
    pub(super) pool: RefCell<String>,
    /// The host that it was connected to.
    pub(super) host: RefCell<String>,
    /// The pool's size as `connect` got it.
    pub(super) pool_size: Cell<Option<usize>>,
    /// Bytes that arrived and were not read.
    unread: RefCell<SocketBytes>,
    /// The peer sends nothing more.
    is_ended: Cell<bool>,
    /// A read failed: later ones fail too.
    is_read_closed: Cell<bool>,
    connecting: Cell<bool>,
    reading: Cell<bool>,
    writing: Cell<bool>,
}

/// Operations that exclude another one, besides connecting: one light thread may read while another one writes.
#[derive(Clone, Copy)]
pub(super) enum Operations {
    Reading,
    Writing,
    All,
}

/// A read that failed: the error, and the bytes before it.
pub(super) struct Broken {
    pub(super) reason: String,
    /// None if the socket was not open for reading.
    pub(super) partial: Option<Vec<u8>>,
}

/// A mark of an operation under way; dropped when it ends or its thread is killed.
pub(super) struct Busy {
    socket: Rc<Socket>,
    mark: fn(&Socket) -> &Cell<bool>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        (self.mark)(&self.socket).set(false);
    }
}

impl Ends for Socket {
    fn end(&self) {
        // An operation under way sees that it is gone.
        drop(self.connection.take());
    }
}

impl Socket {
    pub(super) fn new(sockets: &Rc<Sockets>, lifetime: Option<Rc<Lifetime>>) -> Socket {
        Socket {
            sockets: Rc::clone(sockets),
            lifetime: lifetime.as_ref().map_or_else(Weak::new, Rc::downgrade),
            timeouts: Cell::default(),
            connection: RefCell::default(),
            pool: RefCell::default(),
            host: RefCell::default(),
            pool_size: Cell::default(),
            unread: RefCell::new(sockets.held.nothing()),
            is_ended: Cell::new(false),
            is_read_closed: Cell::new(false),
            connecting: Cell::new(false),
            reading: Cell::new(false),
            writing: Cell::new(false),
        }
    }

    /// Whether it is connected.
    pub(super) fn is_open(&self) -> bool {
        self.connection.borrow().is_some()
    }

    /// Whether it may be read.
    pub(super) fn is_readable(&self) -> bool {
        self.is_open() && !self.is_read_closed.get()
    }

    /// Fails if the socket belongs to another exchange than the one that runs.
    pub(super) fn check_owner(&self, host: &Host) -> Result<(), String> {
        let current = host.lifetime().map_or_else(Weak::new, |lifetime| Rc::downgrade(&lifetime));
        if current.ptr_eq(&self.lifetime) { Ok(()) } else { Err("bad request".to_owned()) }
    }

    /// An operation under way that another one has to wait for, in nginx's words.
    pub(super) fn busy(&self, with: Operations) -> Option<&'static str> {
        match with {
            _ if self.connecting.get() => Some("socket busy connecting"),
            Operations::All | Operations::Reading if self.reading.get() => Some("socket busy reading"),
            Operations::All | Operations::Writing if self.writing.get() => Some("socket busy writing"),
            _ => None,
        }
    }

    fn begin(self: &Rc<Self>, mark: fn(&Socket) -> &Cell<bool>) -> Busy {
        mark(self).set(true);
        Busy { socket: Rc::clone(self), mark }
    }

    pub(super) fn begin_connecting(self: &Rc<Self>) -> Busy {
        self.begin(|socket| &socket.connecting)
    }

    pub(super) fn begin_reading(self: &Rc<Self>) -> Busy {
        self.begin(|socket| &socket.reading)
    }

    pub(super) fn begin_writing(self: &Rc<Self>) -> Busy {
        self.begin(|socket| &socket.writing)
    }

    /// Takes a new connection.
    fn open(self: &Rc<Self>, connection: Connection) {
        // The request may have ended meanwhile.
        if let Some(lifetime) = self.lifetime.upgrade() {
            lifetime.add(self);
            *self.connection.borrow_mut() = Some(connection);
        }
        drop(self.unread.borrow_mut().take());
        self.is_ended.set(false);
        self.is_read_closed.set(false);
    }

    /// Connects, from the pool if it has a connection.
    pub(super) async fn connect(self: Rc<Self>, host: String, port: u16, busy: Busy) -> Result<(), String> {
        let pool = self.pool.borrow().clone();
        let connected = match self.sockets.pools.take(&pool) {
            Some(mut known) => {
                known.reuses = known.reuses.saturating_add(1);
                known
            }
            None => {
                let outbound = &self.sockets.outbound;
                if outbound.is_full() {
                    self.sockets.pools.give_way();
                }
                let Some((node, local)) = self.sockets.worker() else {
                    return Err("no worker runs this script".to_owned());
                };
                let dialled = outbound.connect(Worker { node: &node, local: &local }, &host, port);
                within(self.timeouts.get().connect_ms, dialled).await??
            }
        };
        drop(busy);
        *self.host.borrow_mut() = host;
        self.open(connected);
        Ok(())
    }

    /// Runs the handshake of TLS.
    pub(super) async fn shake(
        self: Rc<Self>,
        name: Option<String>,
        verify: bool,
        busy: Busy,
    ) -> Result<(), String> {
        let name = name.unwrap_or_else(|| self.host.borrow().clone());
        let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        let Some(connection) = self.connection.take() else { return Err("closed".to_owned()) };
        if connection.stream.tls().is_some() {
            // A pool may hold connections of scripts that verify nothing.
            if verify && connection.verified.as_deref() != Some(name.as_str()) {
                return Err(format!("the certificate of the pooled connection was not verified for {name}"));
            }
            *self.connection.borrow_mut() = Some(connection);
            return Ok(());
        }
        let Some((node, _)) = self.sockets.worker() else {
            return Err("no worker runs this script".to_owned());
        };
        let shaken = self.sockets.outbound.encrypt(&node, connection, &name, verify);
        let encrypted = within(self.timeouts.get().connect_ms, shaken).await??;
        drop(busy);
        self.open(encrypted);
        Ok(())
    }

    /// Sends all bytes.
    pub(super) async fn send(self: Rc<Self>, bytes: SocketBytes, _busy: Busy) -> Result<usize, String> {
        let send_ms = self.timeouts.get().send_ms;
        let (bytes, mut sent) = (bytes.as_slice(), 0);
        while sent < bytes.len() {
            let written = poll_fn(|cx| match self.connection.borrow_mut().as_mut() {
                Some(connection) => connection.stream.poll_write(cx, &bytes[sent..]).map_ok(Some),
                None => Poll::Ready(Ok(None)),
            });
            sent += self.after_write(within(send_ms, written).await)?;
        }
        let flushed = poll_fn(|cx| match self.connection.borrow_mut().as_mut() {
            Some(connection) => connection.stream.poll_flush(cx).map_ok(|()| Some(0)),
            None => Poll::Ready(Ok(None)),
        });
        self.after_write(within(send_ms, flushed).await)?;
        Ok(sent)
    }

    /// A write that fails closes the socket.
    fn after_write(&self, written: Result<std::io::Result<Option<usize>>, String>) -> Result<usize, String> {
        let reason = match written {
            Ok(Ok(Some(written))) => return Ok(written),
            Ok(Ok(None)) => "closed".to_owned(),
            Ok(Err(error)) => text_of(&error),
            Err(timeout) => timeout,
        };
        drop(self.connection.take());
        Err(reason)
    }

    /// Reads; also whether the text of a search was found.
    pub(super) async fn read(
        self: Rc<Self>,
        wanted: ReadPattern,
        _busy: Busy,
    ) -> Result<(Vec<u8>, bool), Broken> {
        let most = self.sockets.most_bytes;
        let read_ms = self.timeouts.get().read_ms;
        let mut progress = Progress::default();
        let mut chunk = Vec::new();
        loop {
            let found = wanted.find(self.unread.borrow().as_slice(), &mut progress);
            if let Some(found) = found {
                let bytes = self.unread.borrow_mut().cut(found.taken, found.used);
                return Ok((wanted.text_of(bytes), found.is_match));
            }
            if self.is_ended.get() {
                let partial = self.unread.borrow_mut().take();
                if matches!(wanted, ReadPattern::All) {
                    return Ok((partial, false));
                }
                self.is_read_closed.set(true);
                return Err(Broken { reason: "closed".to_owned(), partial: Some(wanted.text_of(partial)) });
            }
            if self.unread.borrow().as_slice().len() >= most {
                self.is_read_closed.set(true);
                let reason = format!("scripts may read {most} bytes at a time at most");
                return Err(Broken { reason, partial: Some(self.unread.borrow_mut().take()) });
            }
            chunk.resize(READ_BYTES, 0);
            let arrived = poll_fn(|cx| match self.connection.borrow_mut().as_mut() {
                Some(connection) => connection.stream.poll_read(cx, &mut chunk).map(Some),
                None => Poll::Ready(None),
            });
            match within(read_ms, arrived).await {
                Ok(Some(Ok(0))) => self.is_ended.set(true),
                Ok(Some(Ok(count))) => {
                    let is_held = self.unread.borrow_mut().push(&chunk[..count]);
                    if !is_held {
                        self.is_read_closed.set(true);
                        let partial = Some(self.unread.borrow_mut().take());
                        return Err(Broken { reason: TOO_MANY.to_owned(), partial });
                    }
                }
                Ok(Some(Err(error))) => {
                    self.is_read_closed.set(true);
                    return Err(Broken {
                        reason: text_of(&error),
                        partial: Some(self.unread.borrow_mut().take()),
                    });
                }
                Ok(None) => return Err(Broken { reason: "closed".to_owned(), partial: None }),
                // The socket may be read again.
                Err(reason) => return Err(Broken { reason, partial: Some(self.unread.borrow_mut().take()) }),
            }
        }
    }

    /// How often the connection came from a pool.
    pub(super) fn reuses(&self) -> Option<u32> {
        self.connection.borrow().as_ref().map(|connection| connection.reuses)
    }

    /// Closes it.
    pub(super) fn close(&self) {
        drop(self.unread.borrow_mut().take());
        let Some(mut connection) = self.connection.take() else { return };
        if !connection.stream.ends_when_dropped() {
            // The peer learns that this is the end.
            tokio::task::spawn_local(async move {
                let _ =
                    tokio::time::timeout(CLOSING, poll_fn(|cx| connection.stream.poll_shutdown(cx))).await;
            });
        }
    }

    /// Puts the connection into its pool.
    pub(super) fn keep(&self, time: Duration, size: usize) -> Result<(), &'static str> {
        if !self.unread.borrow().as_slice().is_empty() {
            return Err("unread data in buffer");
        }
        if self.is_ended.get() || self.is_read_closed.get() {
            return Err("invalid connection");
        }
        let Some(mut connection) = self.connection.take() else { return Err("closed") };
        if !connection.is_quiet() {
            return Err("connection in dubious state");
        }
        self.sockets.pools.put(&self.pool.borrow(), connection, size, time);
        Ok(())
    }
}

/// The output of a future within a time, or `timeout`.
async fn within<T>(timeout_ms: u64, future: impl Future<Output = T>) -> Result<T, String> {
    let timeout = Duration::from_millis(timeout_ms);
    tokio::time::timeout(timeout, future).await.map_err(|_| "timeout".to_owned())
}
