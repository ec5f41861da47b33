//! The client's side of an exchange, in any protocol.
//!
//! Users of [`Downstream`] do not see the version of a request.

use std::task::{Context, Poll};

use sigma_http::{BodyLength, Fault, Frame, ResponseHead};
use sigma_net::Deadline;

use crate::h1::Server;
use crate::h2::ServerStream;
use crate::h3;
use crate::no_client::NoClient;
use crate::subrequest::Subrequest;

/// The client's side of one exchange.
#[derive(Debug)]
pub enum Downstream<'c> {
    /// A connection of HTTP/1.
    H1(&'c mut Server),
    /// One stream of a connection of HTTP/2.
    H2(&'c mut ServerStream),
    /// One stream of a connection of HTTP/3.
    H3(&'c mut h3::ServerStream),
    /// No client: the gateway itself sends the request
    NoClient(&'c mut NoClient),
    /// Another exchange of this gateway
    Subrequest(&'c mut Subrequest),
}

macro_rules! each {
    ($self:ident, $c:ident => $call:expr) => {
        match $self {
            Downstream::H1($c) => $call,
            Downstream::H2($c) => $call,
            Downstream::H3($c) => $call,
            Downstream::NoClient($c) => $call,
            Downstream::Subrequest($c) => $call,
        }
    };
}

impl Downstream<'_> {
    /// Returns the framing of the request body.
    #[inline]
    pub fn body_length(&self) -> BodyLength {
        each!(self, c => c.body_length())
    }

    /// Returns the next frame of the request body.
    #[inline]
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        each!(self, c => c.poll_frame(cx))
    }

    /// Ready when the client leaves before its response is complete.
    #[inline]
    pub fn poll_departure(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        each!(self, c => c.poll_departure(cx))
    }

    /// Returns true if a success would mean an open tunnel to the client (RFC 8441).
    #[inline]
    pub fn asks_tunnel(&self) -> bool {
        match self {
            Downstream::H1(_) | Downstream::NoClient(_) | Downstream::Subrequest(_) => false,
            Downstream::H2(c) => c.asks_tunnel(),
            Downstream::H3(c) => c.asks_tunnel(),
        }
    }

    /// Checks that the final head is a valid response to the request.
    ///
    /// # Errors
    /// Returns an error if the client would misunderstand it.
    #[inline]
    pub fn check_answer(&self, head: &ResponseHead) -> Result<(), Fault> {
        match self {
            Downstream::H1(_) | Downstream::NoClient(_) | Downstream::Subrequest(_) => Ok(()),
            Downstream::H2(c) => c.check_answer(head),
            Downstream::H3(c) => c.check_answer(head),
        }
    }

    /// Queues an interim response.
    #[inline]
    pub fn send_interim(&mut self, head: &mut ResponseHead) {
        each!(self, c => c.send_interim(head))
    }

    /// Queues the final response head, with the fields that this protocol version needs.
    #[inline]
    pub fn send_head(&mut self, head: &mut ResponseHead, length: BodyLength, date: &[u8]) {
        each!(self, c => c.send_head(head, length, date))
    }

    /// Returns true if another frame may be queued.
    #[inline]
    pub fn has_room(&self) -> bool {
        each!(self, c => c.has_room())
    }

    /// Queues a frame of the response body. Call it only while there is room.
    #[inline]
    pub fn send(&mut self, frame: Frame) {
        each!(self, c => c.send(frame))
    }

    /// Writes the queue; ready when it is empty.
    #[inline]
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        each!(self, c => c.poll_flush(cx))
    }

    /// Switches the connection to plain bytes in both directions, after a 101.
    pub fn upgrade(&mut self) {
        each!(self, c => c.upgrade())
    }

    /// Returns true if an extended CONNECT requests the upgrade (RFC 8441), not a field of the request.
    pub fn upgrades_by_connect(&self) -> bool {
        match self {
            Downstream::H1(_) | Downstream::NoClient(_) | Downstream::Subrequest(_) => false,
            Downstream::H2(_) | Downstream::H3(_) => true,
        }
    }

    /// Aborts the response: the client must see that it is truncated.
    #[inline]
    pub fn abort(&mut self) {
        each!(self, c => c.abort())
    }

    /// Makes the connection serve no further request.
    #[inline]
    pub fn close_after(&mut self) {
        match self {
            Downstream::H1(c) => c.close_after(),
            // The stream is for this request alone; later requests on its connection do not depend on it.
            Downstream::H2(_) | Downstream::H3(_) | Downstream::NoClient(_) | Downstream::Subrequest(_) => {}
        }
    }

    /// Drops the rest of the request body. Call it before the response head.
    #[inline]
    pub fn forgo_body(&mut self) {
        match self {
            Downstream::H1(c) => c.forgo_body(),
            // The rest of it ends with the stream.
            Downstream::H2(_) | Downstream::H3(_) | Downstream::NoClient(_) | Downstream::Subrequest(_) => {}
        }
    }

    /// Sets the bytes of bodies that the exchange has in memory: they count for its share of the worker's budget.
    #[inline]
    pub fn hold(&mut self, bytes: usize) {
        each!(self, c => c.hold(bytes));
    }

    /// Lowers the limit of the request body to `bytes`; 0 leaves it unchanged.
    #[inline]
    pub fn limit_body(&mut self, bytes: u64) {
        each!(self, c => c.limit_body(bytes));
    }

    /// Returns the bytes written to this client so far.
    #[inline]
    pub fn bytes_written(&self) -> u64 {
        each!(self, c => c.bytes_written())
    }

    /// Returns the deadline of waiting for this client.
    #[inline]
    pub fn deadline(&self) -> &Deadline {
        each!(self, c => &c.deadline)
    }

    /// Returns the bytes written for this response: all bytes, and the bytes of the body.
    #[inline]
    pub fn bytes_sent(&self) -> (u64, u64) {
        each!(self, c => c.bytes_sent())
    }

    /// Returns the bytes read of this request: its head and its body.
    #[inline]
    pub fn bytes_received(&self) -> u64 {
        each!(self, c => c.bytes_received())
    }

    /// Returns the number of this request on its connection, from 1.
    #[inline]
    pub fn request_number(&self) -> u32 {
        each!(self, c => c.requests())
    }
}
