//! WebSockets that end at the gateway (RFC 6455): the handshake, and a client's connection as messages.

use std::collections::VecDeque;
use std::task::{Context as Task, Poll};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};
use sigma_http::websocket::GOING_AWAY;
use sigma_http::websocket::messages::{self, Kind, Reader, WebsocketMessage};
use sigma_http::{Chunk, HeaderId, RequestHead};
use sigma_net::Deadline;
use sigma_plugin::Reply;

/// The constant in the response to a key (RFC 6455 §1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The only version.
const VERSION: &[u8] = b"13";

/// Responses to pings that may wait: a client that does not read them is not read either.
const WAITING_BYTES: usize = 64 << 10;

/// How long a client may take to answer the gateway's close frame.
const GOODBYE_MS: u64 = 1000;

/// Returns the response that opens a WebSocket (RFC 6455 §4.2).
///
/// # Errors
/// Returns the response to a request that is no handshake, 400.
pub fn handshake(head: &RequestHead) -> Result<Reply, Reply> {
    let fields = &head.headers;
    // The exchange shows an extended CONNECT as such a GET, too.
    if head.method_token() != b"GET" {
        return Err(Reply::new(400));
    }
    let mut keys = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"sec-websocket-key"));
    let key = match (keys.next(), keys.next()) {
        (Some((_, key)), None) if fields.has_token(HeaderId::Upgrade, b"websocket") => key,
        _ => return Err(Reply::new(400)),
    };
    if STANDARD.decode(key).map_or(0, |key| key.len()) != 16 {
        return Err(Reply::new(400));
    }
    if fields.find(b"sec-websocket-version") != Some(VERSION) {
        // RFC 6455 §4.4; as APISIX, it is a bad request.
        return Err(Reply::new(400).header("Sec-WebSocket-Version", VERSION));
    }
    let digest = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    Ok(Reply::new(101).header("Sec-WebSocket-Accept", STANDARD.encode(digest)))
}

/// A message or a sign of life from the client of a WebSocket.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A complete message.
    Message(Kind, Vec<u8>),
    /// It has answered a ping, or sent an unsolicited pong.
    Pong,
}

/// The server's side of a WebSocket: bytes on one side, messages on the other. Pings get a response, and so are close
/// frames.
pub struct Socket {
    reader: Reader,
    /// Bytes of the client that were not parsed yet.
    unread: Chunk,
    /// Frames for the client, and how much of the first one has left.
    out: VecDeque<Vec<u8>>,
    taken: usize,
    out_bytes: usize,
    end: End,
    /// The code of the client's close frame. None before one.
    farewell: Option<u16>,
}

/// The progress of closing a WebSocket.
enum End {
    Open,
    /// The gateway has sent its close frame, and the client has until then to answer.
    Leaving(Deadline),
    /// Both have, or the client's bytes are ignored now.
    Over,
}

/// The code for a close frame without one (RFC 6455 §7.1.5).
pub const NO_CODE: u16 = 1005;

impl Socket {
    /// Returns a socket whose messages have at most `limit` bytes.
    pub fn new(limit: usize) -> Socket {
        Socket {
            reader: Reader::new(limit),
            unread: Chunk::empty(),
            out: VecDeque::new(),
            taken: 0,
            out_bytes: 0,
            end: End::Open,
            farewell: None,
        }
    }

    /// Returns true if it accepts more of the client's bytes: all earlier ones are parsed, and enough of the responses
    /// have left.
    pub fn has_room(&self) -> bool {
        self.unread.is_empty() && self.out_bytes < WAITING_BYTES
    }

    /// Returns the bytes for the client that have not left.
    pub fn waiting_bytes(&self) -> usize {
        self.out_bytes
    }

    /// Returns true if messages can still be exchanged.
    pub fn is_open(&self) -> bool {
        matches!(self.end, End::Open)
    }

    /// Returns the code that the client has closed with: [`NO_CODE`] if it gave none; None if it has not closed by
    /// itself.
    pub fn farewell(&self) -> Option<u16> {
        self.farewell
    }

    /// Adds bytes of the client.
    pub fn take(&mut self, data: Chunk) {
        if matches!(self.end, End::Over) {
            return;
        }
        if self.unread.is_empty() {
            self.unread = data;
        } else {
            self.unread = Chunk::copy_of(&[&self.unread[..], &data].concat());
        }
    }

    /// Returns the next message or pong of the client, if all of its bytes are there.
    pub fn receive(&mut self) -> Option<Heard> {
        while !self.unread.is_empty() {
            let (taken, said) = match self.reader.read(&self.unread) {
                Ok(read) => read,
                Err(violation) => {
                    self.unread = Chunk::empty();
                    self.say_goodbye(violation.code(), "");
                    self.end = End::Over;
                    return None;
                }
            };
            self.unread.advance(taken);
            match said {
                Some(WebsocketMessage::Message(kind, bytes)) if self.is_open() => {
                    return Some(Heard::Message(kind, bytes));
                }
                Some(WebsocketMessage::Ping(payload)) if self.is_open() => {
                    self.push(messages::pong(&payload))
                }
                Some(WebsocketMessage::Pong(_)) => return Some(Heard::Pong),
                Some(WebsocketMessage::Close(code)) => {
                    self.unread = Chunk::empty();
                    self.hear_goodbye(code);
                }
                // After a close frame only the response counts.
                _ => {}
            }
        }
        None
    }

    fn hear_goodbye(&mut self, code: Option<u16>) {
        if let End::Leaving(_) = self.end {
            self.end = End::Over;
            return;
        }
        self.farewell = Some(code.unwrap_or(NO_CODE));
        self.say_goodbye(code.unwrap_or(1000), "");
        // A gateway that stops sends this code for the client: the client's response is still to come then, and the
        // tunnel ends it.
        if code != Some(GOING_AWAY) {
            self.end = End::Over;
        }
    }

    fn say_goodbye(&mut self, code: u16, reason: &str) {
        if self.is_open() {
            self.push(messages::close(code, reason));
            let patience = Deadline::new();
            patience.set(GOODBYE_MS);
            self.end = End::Leaving(patience);
        }
    }

    fn push(&mut self, frame: Vec<u8>) {
        self.out_bytes += frame.len();
        self.out.push_back(frame);
    }

    /// Sends a message, unless a close frame was sent.
    pub fn send(&mut self, kind: Kind, payload: &[u8]) {
        if self.is_open() {
            self.push(messages::message(kind, payload));
        }
    }

    /// Sends a ping to the client.
    pub fn ping(&mut self) {
        if self.is_open() {
            self.push(messages::ping(b""));
        }
    }

    /// Closes it, with a code and a reason.
    pub fn close(&mut self, code: u16, reason: &str) {
        self.say_goodbye(code, reason);
    }

    /// Returns the next bytes for the client. None at the end.
    pub fn poll_piece(&mut self, task: &mut Task<'_>) -> Poll<Option<Chunk>> {
        while let Some(frame) = self.out.front() {
            if let Some(piece) = Chunk::next_of(frame, &mut self.taken) {
                self.out_bytes -= piece.len();
                return Poll::Ready(Some(piece));
            }
            (self.taken, _) = (0, self.out.pop_front());
        }
        match &self.end {
            End::Open => Poll::Pending,
            End::Leaving(patience) => patience.poll_expired(task).map(|()| None),
            End::Over => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn request(fields: &[(&str, &str)]) -> RequestHead {
        let mut head = RequestHead::default();
        head.set_method("GET");
        fields.iter().for_each(|(name, value)| head.headers.append(name, value.as_bytes()));
        head
    }

    const UPGRADE: (&str, &str) = ("Upgrade", "websocket");
    const KEY: (&str, &str) = ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
    const THIRTEEN: (&str, &str) = ("Sec-WebSocket-Version", "13");

    #[test]
    fn handshakes_follow_the_standard() {
        // The example of RFC 6455 §1.3.
        let reply = handshake(&request(&[UPGRADE, KEY, THIRTEEN])).unwrap();
        assert_eq!(reply.status, 101);
        assert_eq!(reply.headers[0].1, b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        for fields in [
            &[KEY, THIRTEEN][..],
            &[("Upgrade", "h2c"), KEY, THIRTEEN],
            &[UPGRADE, THIRTEEN],
            &[UPGRADE, KEY, KEY, THIRTEEN],
            &[UPGRADE, ("Sec-WebSocket-Key", "c2hvcnQ="), THIRTEEN],
            &[UPGRADE, ("Sec-WebSocket-Key", "?"), THIRTEEN],
            &[UPGRADE, KEY],
            &[UPGRADE, KEY, ("Sec-WebSocket-Version", "8")],
        ] {
            assert_eq!(handshake(&request(fields)).unwrap_err().status, 400, "{fields:?}");
        }
        let mut posted = request(&[UPGRADE, KEY, THIRTEEN]);
        posted.set_method("POST");
        assert_eq!(handshake(&posted).unwrap_err().status, 400);
    }

    /// Returns a client's frame, masked by zeros.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        [&[first, 0x80 | payload.len() as u8, 0, 0, 0, 0][..], payload].concat()
    }

    /// Returns the messages in these bytes, the bytes for the client, and whether that is the end.
    fn after(socket: &mut Socket, bytes: &[u8]) -> (Vec<Heard>, Vec<u8>, bool) {
        socket.take(Chunk::copy_of(bytes));
        let heard = std::iter::from_fn(|| socket.receive()).collect();
        let (mut said, mut task) = (Vec::new(), Task::from_waker(Waker::noop()));
        loop {
            match socket.poll_piece(&mut task) {
                Poll::Ready(Some(piece)) => said.extend_from_slice(&piece),
                Poll::Ready(None) => return (heard, said, true),
                Poll::Pending => return (heard, said, false),
            }
        }
    }

    #[test]
    fn messages_pings_and_good_byes() {
        let mut socket = Socket::new(10);
        let all = [frame(0x89, b"?"), frame(0x81, b"hi"), frame(0x8a, b"")].concat();
        let expected = vec![Heard::Message(Kind::Text, b"hi".to_vec()), Heard::Pong];
        assert_eq!(after(&mut socket, &all), (expected, b"\x8a\x01?".to_vec(), false));
        socket.send(Kind::Binary, b"yes");
        socket.ping();
        assert_eq!(socket.waiting_bytes(), 5 + 2);
        assert_eq!(after(&mut socket, b"").1, b"\x82\x03yes\x89\x00");
        assert_eq!((socket.farewell(), socket.is_open()), (None, true));
        // Bytes after a close frame are ignored.
        let bye = [frame(0x88, b"\x0f\xa0"), frame(0x81, b"no")].concat();
        assert_eq!(after(&mut socket, &bye), (vec![], b"\x88\x02\x0f\xa0".to_vec(), true));
        socket.send(Kind::Text, b"no");
        assert_eq!((socket.farewell(), after(&mut socket, b"").1), (Some(4000), vec![]));
    }

    #[test]
    fn a_good_bye_is_waited_for() {
        let mut socket = Socket::new(10);
        socket.close(1008, "too slow");
        assert_eq!(after(&mut socket, b""), (vec![], b"\x88\x0a\x03\xf0too slow".to_vec(), false));
        assert_eq!(after(&mut socket, &frame(0x81, b"hi")), (vec![], vec![], false));
        assert_eq!(after(&mut socket, &frame(0x88, b"\x03\xf0")), (vec![], vec![], true));
        assert_eq!(socket.farewell(), None);
        // The side that goes away may be the gateway itself: the tunnel ends then, not this side.
        let mut socket = Socket::new(10);
        assert_eq!(
            after(&mut socket, &frame(0x88, b"\x03\xe9")),
            (vec![], b"\x88\x02\x03\xe9".to_vec(), false)
        );
    }

    #[test]
    fn a_client_that_breaks_the_protocol_gets_a_code() {
        for (bytes, code) in
            [(b"\x81\x00".to_vec(), 1002_u16), (frame(0x81, b"\xff"), 1007), (frame(0x82, &[0; 11]), 1009)]
        {
            let mut socket = Socket::new(10);
            let [high, low] = code.to_be_bytes();
            assert_eq!(after(&mut socket, &bytes), (vec![], vec![0x88, 2, high, low], true));
        }
    }

    /// A client that pings and never reads is not read.
    #[test]
    fn answers_to_pings_are_bounded() {
        let mut socket = Socket::new(10);
        let mut given = 0;
        while socket.has_room() {
            socket.take(Chunk::copy_of(&frame(0x89, &[0; 100])));
            assert_eq!(socket.receive(), None);
            given += 1;
        }
        assert!(given < WAITING_BYTES / 100 + 2);
    }
}
