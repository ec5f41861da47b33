//! The downstream edge: connections of clients, turned into heads and frames.
//!
//! Behind [`Downstream`] nobody knows which protocol version a request came in.

pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod secure;

use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use sigma_config::settings::{Settings, Tolerate};
use sigma_http::h1::{ParseError, Tolerance};
use sigma_http::{BodyLength, Fault, FaultKind, Frame, ResponseHead};
use sigma_net::{Deadline, Peer};
use sigma_observe::counters::Counter;
use sigma_plugin::context::Tls;

use secure::Secure;

/// Where a request came from; the same for all requests of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) peer: Peer,
    pub(crate) local: Option<SocketAddr>,
    /// Number of the listener's name; see [`crate::snapshot::Snapshot::listener_number`].
    pub(crate) listener: u16,
    /// Number of the connection, unique in its worker.
    pub(crate) connection: u64,
}

/// What a client did while its answer was awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Departure {
    /// It closed its sending side; it may still read.
    HalfClosed,
    /// It is gone.
    Gone,
}

/// The client's side of one exchange.
#[derive(Debug)]
pub(crate) enum Downstream<'c> {
    H1(&'c mut h1::Server),
    H2(&'c mut h2::ServerStream),
}

macro_rules! each {
    ($self:ident, $c:ident => $call:expr) => {
        match $self {
            Downstream::H1($c) => $call,
            Downstream::H2($c) => $call,
        }
    };
}

impl Downstream<'_> {
    pub(crate) fn origin(&self) -> Origin {
        each!(self, c => c.origin)
    }

    /// The TLS session that it came in.
    pub(crate) fn secure(&self) -> Option<&Secure> {
        each!(self, c => c.secure.as_deref())
    }

    /// What plugins and logs see of it.
    pub(crate) fn tls(&self) -> Option<Rc<Tls>> {
        self.secure().map(|secure| Rc::clone(&secure.tls))
    }

    /// How the request's body is framed.
    pub(crate) fn body_length(&self) -> BodyLength {
        each!(self, c => c.body_length())
    }

    /// The next frame of the request's body.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        each!(self, c => c.poll_frame(cx))
    }

    /// Ready when the client leaves before its answer is complete.
    pub(crate) fn poll_departure(&mut self, cx: &mut Context<'_>) -> Poll<Departure> {
        each!(self, c => c.poll_departure(cx))
    }

    /// Whether a success would tell the client that a tunnel is open (RFC 8441).
    pub(crate) fn asks_tunnel(&self) -> bool {
        match self {
            Downstream::H1(_) => false,
            Downstream::H2(c) => c.asks_tunnel(),
        }
    }

    /// Whether the head that ends the wait for an answer may be an answer to what was asked.
    pub(crate) fn check_answer(&self, head: &ResponseHead) -> Result<(), Fault> {
        match self {
            Downstream::H1(_) => Ok(()),
            Downstream::H2(c) => c.check_answer(head),
        }
    }

    /// Queues an interim response.
    pub(crate) fn send_interim(&mut self, head: &mut ResponseHead) {
        each!(self, c => c.send_interim(head))
    }

    /// Queues the final response head, with the fields that this protocol version needs.
    pub(crate) fn send_head(&mut self, head: &mut ResponseHead, length: BodyLength, date: &[u8]) {
        each!(self, c => c.send_head(head, length, date))
    }

    /// Whether another frame may be queued.
    pub(crate) fn has_room(&self) -> bool {
        each!(self, c => c.has_room())
    }

    /// Queues a frame of the response's body. To be called only while there is room.
    pub(crate) fn send(&mut self, frame: Frame) {
        each!(self, c => c.send(frame))
    }

    /// Writes what is queued; ready when all of it left.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        each!(self, c => c.poll_flush(cx))
    }

    /// After a 101: from here on the connection carries plain bytes in both directions.
    pub(crate) fn upgrade(&mut self) {
        each!(self, c => c.upgrade())
    }

    /// Where a WebSocket with this client is counted: all that were opened, and those open now.
    pub(crate) fn websocket_counters(&self) -> (Counter, Counter) {
        match self {
            Downstream::H1(_) => (Counter::WebsocketsByUpgrade, Counter::WebsocketsByUpgradeActive),
            Downstream::H2(_) => (Counter::WebsocketsByConnect, Counter::WebsocketsByConnectActive),
        }
    }

    /// The answer cannot be completed: the client must see that it is cut short.
    pub(crate) fn abort(&mut self) {
        each!(self, c => c.abort())
    }

    /// No further request is to be read from where this one came.
    pub(crate) fn close_after(&mut self) {
        match self {
            Downstream::H1(c) => c.close_after(),
            // The stream is for this request alone; what its connection goes on with does not
            // depend on it.
            Downstream::H2(_) => {}
        }
    }

    /// Bytes written to this client so far.
    pub(crate) fn bytes_written(&self) -> u64 {
        each!(self, c => c.bytes_written())
    }

    /// The deadline of waiting for this client.
    pub(crate) fn deadline(&self) -> &Deadline {
        each!(self, c => &c.deadline)
    }

    /// Bytes written for this response: all, and those of the body.
    pub(crate) fn bytes_sent(&self) -> (u64, u64) {
        each!(self, c => c.bytes_sent())
    }

    /// Bytes read of this request: its head and its body.
    pub(crate) fn bytes_received(&self) -> u64 {
        each!(self, c => c.bytes_received())
    }

    /// Which request on its connection this is, from 1.
    pub(crate) fn request_number(&self) -> u32 {
        each!(self, c => c.requests())
    }
}

/// What the settings take beyond the strict grammar.
pub(crate) fn tolerance(settings: &Settings) -> Tolerance {
    let Tolerate { lone_percent, raw_utf8, empty_host, bare_lf, equal_lengths } = settings.tolerate;
    Tolerance { lone_percent, raw_utf8, empty_host, bare_lf, equal_lengths }
}

fn body_too_large() -> Fault {
    Fault::new(FaultKind::RequestBodyTooLarge, "the request body is over its limit")
}

fn parse_fault(error: ParseError) -> Fault {
    match error {
        ParseError::Invalid(reason) => Fault::new(FaultKind::BadRequest, reason),
        ParseError::LineTooLong => Fault::new(FaultKind::UriTooLong, "the request line is over its limit"),
        ParseError::HeadTooLarge => {
            Fault::new(FaultKind::RequestHeadTooLarge, "the request head is over its limit")
        }
    }
}
