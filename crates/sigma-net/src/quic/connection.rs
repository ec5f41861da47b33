//! A connection, from the view of its user.

use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use quinn_proto::{Dir, Side, StreamId, VarInt};
use sigma_buffer::held::Account;

use super::state::{Shared, place, register};
use super::stream::{RecvStream, SendStream};
use super::{ConnectionLost, code};
use crate::stream::Peer;
use crate::tls::Facts;

/// The code for streams and connections that are dropped without one: HTTP/3's H3_REQUEST_CANCELLED.
const DEFAULT_CODE: u64 = 0x10c;

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

    pub(super) fn shared(&self) -> &Rc<Shared> {
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
            register(&mut inner.wakers.accept[place(dir)], cx);
            return Poll::Pending;
        };
        inner.accepted[place(dir)] = id.index() + 1;
        inner.add_handle(id);
        if dir == Dir::Bi {
            inner.add_handle(id);
            if let Some(stopped) = inner.streams.get(&id).and_then(|stream| stream.stopped) {
                let _ = inner.machine.send_stream(id).reset(code(stopped));
            }
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
            let open = &mut inner.wakers.open[place(dir)];
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

    /// Returns the next datagram of the peer (RFC 9221).
    ///
    /// # Errors
    /// Returns an error at the end of the connection.
    pub fn poll_datagram(&self, cx: &mut Context<'_>) -> Poll<Result<Bytes, ConnectionLost>> {
        let mut inner = self.shared().inner.borrow_mut();
        if let Some(lost) = inner.lost {
            return Poll::Ready(Err(lost));
        }
        if let Some(datagram) = inner.machine.datagrams().recv() {
            return Poll::Ready(Ok(datagram));
        }
        register(&mut inner.wakers.datagram, cx);
        Poll::Pending
    }

    /// Returns true if the peer takes datagrams.
    pub fn takes_datagrams(&self) -> bool {
        self.shared().inner.borrow_mut().machine.datagrams().max_size().is_some()
    }

    /// Sends a datagram, which may be lost. Returns false if the peer or the path takes none of this size.
    pub fn send_datagram(&self, datagram: Vec<u8>) -> bool {
        let shared = self.shared();
        let sent = shared.inner.borrow_mut().machine.datagrams().send(datagram.into(), true).is_ok();
        shared.touch();
        sent
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
        register(&mut inner.wakers.closed, cx);
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

    /// Sends a packet that the peer must acknowledge, which shows that it is alive.
    pub fn ping(&self) {
        self.shared().inner.borrow_mut().machine.ping();
        self.shared().touch();
    }

    /// Counts bytes of later calls in an account until the peer has acknowledged them.
    pub fn count_in(&self, account: Rc<Account>) {
        self.shared().inner.borrow_mut().account = account;
    }

    /// Counts the bytes of the client that were not read in an account.
    pub fn count_unread_in(&self, account: Account) {
        self.shared().inner.borrow_mut().unread.count_in(account);
    }

    /// Returns true if the account of unread bytes was revoked.
    pub fn is_unread_revoked(&self) -> bool {
        self.shared().inner.borrow().unread.is_revoked()
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
