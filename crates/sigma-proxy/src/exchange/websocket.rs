//! WebSockets, counted while they are open and while their bytes pass: one may last for days, and the counters of
//! exchanges change only when it ends.

use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use sigma_http::websocket::{Follower, GOING_AWAY, Sender, close_frame};
use sigma_http::{Chunk, HeaderId, Headers, ResponseHead};
use sigma_observe::counters::{Counter, WorkerCounters};
use sigma_plugin::context::Tls;
use sigma_wire::Downstream;

use crate::edge::connection::{ConnectionInfo, Origin, TlsSession};

/// Returns whether a value of `Authorization` logs in the connection that it comes over.
fn logs_connection_in(value: &[u8]) -> bool {
    let scheme = value.split(|byte| *byte == b' ').next().unwrap_or_default();
    scheme.eq_ignore_ascii_case(b"NTLM") || scheme.eq_ignore_ascii_case(b"Negotiate")
}

/// The client's side of an exchange, with the traffic that it counts for once it is a WebSocket.
pub(super) struct Client<'c> {
    down: Downstream<'c>,
    info: &'c ConnectionInfo,
    counters: &'c WorkerCounters,
    /// The node has confirmed a WebSocket, and not another protocol.
    agreed: bool,
}

impl<'c> Client<'c> {
    pub(super) fn new(
        info: &'c ConnectionInfo,
        down: Downstream<'c>,
        counters: &'c WorkerCounters,
    ) -> Client<'c> {
        Client { down, info, counters, agreed: false }
    }

    /// Returns the facts that hold for all requests of the connection.
    pub(super) fn info(&self) -> &'c ConnectionInfo {
        self.info
    }

    pub(super) fn origin(&self) -> &'c Origin {
        &self.info.origin
    }

    /// Returns the number of the client's connection if its requests need connections to nodes of their own: NTLM, and
    /// Negotiate with it, log in a connection and not a request. A request of another client on that connection would
    /// be the first one's.
    pub(super) fn owner(&self, request: &Headers) -> Option<u64> {
        let mut logins = request.get_all(HeaderId::Authorization);
        if logins.any(logs_connection_in) {
            self.info.logs_in.set(true);
        }
        self.info.logs_in.get().then_some(self.info.origin.connection)
    }

    /// Returns the TLS session of the connection.
    pub(super) fn tls_session(&self) -> Option<&'c TlsSession> {
        self.info.session.as_deref()
    }

    /// Returns the TLS facts that plugins and logs see.
    pub(super) fn tls(&self) -> Option<Rc<Tls>> {
        self.tls_session().map(|session| Rc::clone(&session.tls))
    }

    /// Queues an interim response.
    pub(super) fn send_interim(&mut self, head: &mut ResponseHead) {
        self.agreed = opens_websocket(head);
        self.down.send_interim(head);
    }

    /// Begins the tunnel after a 101: from here on the connection carries plain bytes in both directions. The
    /// returned value counts a WebSocket until it is dropped; None for other protocols. Boxed, as exchanges of other
    /// kinds have room for it.
    pub(super) fn upgrade(&mut self) -> Option<Box<OpenSocket<'c>>> {
        self.down.upgrade();
        self.agreed.then(|| Box::new(OpenSocket::new(self.counters, self.opened_by())))
    }

    fn opened_by(&self) -> SocketCounters {
        match self.down.upgrades_by_connect() {
            false => SocketCounters::BY_UPGRADE,
            true => SocketCounters::BY_CONNECT,
        }
    }
}

impl<'c> Deref for Client<'c> {
    type Target = Downstream<'c>;

    fn deref(&self) -> &Downstream<'c> {
        &self.down
    }
}

impl DerefMut for Client<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.down
    }
}

/// Returns true if a node's response is the one of RFC 6455 §4.2.2.
fn opens_websocket(head: &ResponseHead) -> bool {
    let protocol = head.headers.get(HeaderId::Upgrade);
    head.status == 101 && protocol.is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"websocket"))
}

/// The counters of WebSockets that were opened in one way.
#[derive(Clone, Copy)]
struct SocketCounters {
    /// Counts all of them.
    opened: Counter,
    /// Counts those that are open now.
    active: Counter,
}

impl SocketCounters {
    const BY_UPGRADE: SocketCounters =
        SocketCounters { opened: Counter::WebsocketsByUpgrade, active: Counter::WebsocketsByUpgradeActive };
    const BY_CONNECT: SocketCounters =
        SocketCounters { opened: Counter::WebsocketsByConnect, active: Counter::WebsocketsByConnectActive };
}

/// A WebSocket that is open as long as this lives.
pub(super) struct OpenSocket<'c> {
    counters: &'c WorkerCounters,
    active: Counter,
    to_node: Direction,
    to_client: Direction,
}

impl<'c> OpenSocket<'c> {
    fn new(counters: &'c WorkerCounters, of: SocketCounters) -> OpenSocket<'c> {
        let SocketCounters { opened, active } = of;
        counters.add(opened, 1);
        counters.add(active, 1);
        let [to_node, to_client] = [Sender::Client, Sender::Server].map(Direction::new);
        OpenSocket { counters, active, to_node, to_client }
    }

    fn direction(&mut self, sender: Sender) -> &mut Direction {
        match sender {
            Sender::Client => &mut self.to_node,
            Sender::Server => &mut self.to_client,
        }
    }

    /// Records the bytes that `sender` has sent; returns the part to forward.
    pub(super) fn pass(&mut self, sender: Sender, data: Chunk) -> Chunk {
        let counter = match sender {
            Sender::Client => Counter::WebsocketBytesIn,
            Sender::Server => Counter::WebsocketBytesOut,
        };
        self.counters.add(counter, data.len() as u64);
        self.direction(sender).pass(data)
    }

    /// Begins to close the WebSocket with both sides, as the gateway stops. `mask` is for the node, to which the
    /// gateway is a client.
    pub(super) fn say_goodbye(&mut self, mask: [u8; 4]) {
        self.to_node.end(Some(mask));
        self.to_client.end(None);
    }

    /// Returns the gateway's own close frame, when it may be sent in the direction of `sender`'s frames.
    pub(super) fn last_word(&mut self, sender: Sender) -> Option<Chunk> {
        self.direction(sender).last_word()
    }

    /// Returns true if the gateway has sent its close frame and received the reply.
    pub(super) fn has_taken_leave(&self) -> bool {
        self.to_node.is_over() && self.to_client.is_over()
    }
}

/// The frames of one direction.
struct Direction {
    frames: Follower,
    word: Word,
}

/// The gateway's own close frame in a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// There is no close frame.
    None,
    /// It follows the current frame.
    Waits(Option<[u8; 4]>),
    /// It is ready to be sent.
    Due(Option<[u8; 4]>),
    /// The receiver has a close frame, the gateway's or the sender's: nothing may follow it.
    Said,
}

impl Direction {
    fn new(sender: Sender) -> Direction {
        Direction { frames: Follower::new(sender), word: Word::None }
    }

    fn end(&mut self, mask: Option<[u8; 4]>) {
        if self.word == Word::None {
            self.word = Word::Waits(mask);
            self.look();
        }
    }

    /// Checks whether a frame has just ended, or none has begun.
    fn look(&mut self) {
        if let Word::Waits(mask) = self.word
            && self.frames.is_between()
        {
            self.word = if self.frames.is_closed() { Word::Said } else { Word::Due(mask) };
        }
    }

    fn pass(&mut self, mut data: Chunk) -> Chunk {
        match self.word {
            Word::None => {
                self.frames.pass(&data);
                data
            }
            Word::Waits(_) => {
                let goes_on = data.split_to(self.frames.pass_frame(&data));
                self.look();
                // The following bytes are not forwarded, but may contain the reply.
                self.frames.pass(&data);
                goes_on
            }
            Word::Due(_) | Word::Said => {
                self.frames.pass(&data);
                Chunk::empty()
            }
        }
    }

    fn last_word(&mut self) -> Option<Chunk> {
        let Word::Due(mask) = self.word else { return None };
        self.word = Word::Said;
        Some(Chunk::copy_of(&close_frame(GOING_AWAY, mask)))
    }

    /// Returns true if close frames were exchanged. Without frames there is nothing to exchange.
    fn is_over(&self) -> bool {
        match self.word {
            Word::None | Word::Due(_) => false,
            Word::Waits(_) => self.frames.is_lost(),
            Word::Said => self.frames.is_closed() || self.frames.is_lost(),
        }
    }
}

impl Drop for OpenSocket<'_> {
    fn drop(&mut self) {
        self.counters.lower(self.active, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_websockets_count_as_websockets() {
        let check = |status: u16, protocol: &str, expected: bool| {
            let mut head = ResponseHead::default();
            head.start(status);
            head.headers.append("Upgrade", protocol.as_bytes());
            assert_eq!(opens_websocket(&head), expected, "{status} {protocol:?}");
        };
        check(101, "websocket", true);
        check(101, "WebSocket ", true);
        check(101, "x", false);
        check(101, "websocket2", false);
        check(103, "websocket", false);
    }

    #[test]
    fn a_websocket_is_open_until_it_is_dropped() {
        let counters = WorkerCounters::default();
        let open = |_| OpenSocket::new(&counters, SocketCounters::BY_CONNECT);
        let [mut first, mut second] = [0, 1].map(open);
        let piece = |bytes: usize| Chunk::copy_of(&[0x81; 5][..bytes]);
        assert_eq!(first.pass(Sender::Client, piece(3)).len(), 3);
        assert_eq!(second.pass(Sender::Server, piece(5)).len(), 5);
        drop(first);
        let counts = [
            Counter::WebsocketsByConnect,
            Counter::WebsocketsByConnectActive,
            Counter::WebsocketBytesIn,
            Counter::WebsocketBytesOut,
        ];
        assert_eq!(counts.map(|counter| counters.get(counter)), [2, 1, 3, 5]);
    }

    /// Checks pieces of a sender's bytes against the bytes that the receiver gets when the gateway closes after
    /// the first piece.
    #[track_caller]
    fn check(sender: Sender, pieces: &[&[u8]], expected: &[u8], over: bool) {
        let mut direction = Direction::new(sender);
        let mask = (sender == Sender::Client).then_some([1, 2, 3, 4]);
        let mut got = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            got.extend_from_slice(&direction.pass(Chunk::copy_of(piece)));
            if at == 0 {
                direction.end(mask);
            }
            got.extend_from_slice(&direction.last_word().unwrap_or_default());
        }
        assert_eq!(got, expected, "{pieces:x?}");
        assert_eq!(direction.is_over(), over, "{pieces:x?}");
    }

    #[test]
    fn close_frame_is_sent_between_frames() {
        use Sender::{Client, Server};
        const BYE: &[u8] = &[0x88, 2, 3, 0xe9];
        // After a frame; within one, whose rest goes first; after a piece that contains more than the rest.
        check(Server, &[b"\x81\x02hi"], &[b"\x81\x02hi", BYE].concat(), false);
        check(Server, &[b"\x81\x02h", b"i"], &[b"\x81\x02hi", BYE].concat(), false);
        check(Server, &[b"\x81", b"\x02hi\x81\x02no"], &[b"\x81\x02hi", BYE].concat(), false);
        // The reply counts wherever it is, and is not forwarded.
        check(Server, &[b"\x81\x02h", b"i\x81\x02no\x88", b"\0"], &[b"\x81\x02hi", BYE].concat(), true);
        let masked = [0x88, 0x82, 1, 2, 3, 4, 3 ^ 1, 0xe9 ^ 2];
        check(Client, &[b"", b"\x88\x80abcd"], &masked, true);
        // One close frame is enough.
        check(Server, &[b"\x88\x00"], b"\x88\x00", true);
        check(Server, &[b"\x88\x02\x03", b"\xe8", b"more"], b"\x88\x02\x03\xe8", true);
        // Without frames no close frame is sent, and all bytes are forwarded.
        check(Server, &[b"garbage", b" of any kind"], b"garbage of any kind", true);
    }
}
