//! The client's side of an exchange, whatever protocol it came in.
//!
//! Behind [`Downstream`] nobody knows which version a request came in.

use std::task::{Context, Poll};

use sigma_http::{BodyLength, Fault, Frame, ResponseHead};
use sigma_net::Deadline;

use crate::h1::Server;
use crate::h2::ServerStream;
use crate::nobody::Nobody;
use crate::subrequest::Subrequest;

/// The client's side of one exchange.
#[derive(Debug)]
pub enum Downstream<'c> {
    /// A connection of HTTP/1.
    H1(&'c mut Server),
    /// One stream of a connection of HTTP/2.
    H2(&'c mut ServerStream),
    /// No client: a node is asked for the gateway's own sake.
    Nobody(&'c mut Nobody),
    /// Another exchange of this gateway.
    Subrequest(&'c mut Subrequest),
}

macro_rules! each {
    ($self:ident, $c:ident => $call:expr) => {
        match $self {
            Downstream::H1($c) => $call,
            Downstream::H2($c) => $call,
            Downstream::Nobody($c) => $call,
            Downstream::Subrequest($c) => $call,
        }
    };
}

impl Downstream<'_> {
    /// How the request's body is framed.
    #[inline]
    pub fn body_length(&self) -> BodyLength {
        each!(self, c => c.body_length())
    }

    /// The next frame of the request's body.
    #[inline]
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        each!(self, c => c.poll_frame(cx))
    }

    /// Ready when the client leaves before its answer is complete.
    #[inline]
    pub fn poll_departure(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        each!(self, c => c.poll_departure(cx))
    }

    /// Whether a success would tell the client that a tunnel is open (RFC 8441).
    #[inline]
    pub fn asks_tunnel(&self) -> bool {
        match self {
            Downstream::H1(_) | Downstream::Nobody(_) | Downstream::Subrequest(_) => false,
            Downstream::H2(c) => c.asks_tunnel(),
        }
    }

    /// Whether the head that ends the wait for an answer may be an answer to what was asked.
    ///
    /// # Errors
    /// Returns an error if it would tell the client something else.
    #[inline]
    pub fn check_answer(&self, head: &ResponseHead) -> Result<(), Fault> {
        match self {
            Downstream::H1(_) | Downstream::Nobody(_) | Downstream::Subrequest(_) => Ok(()),
            Downstream::H2(c) => c.check_answer(head),
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

    /// Whether another frame may be queued.
    #[inline]
    pub fn has_room(&self) -> bool {
        each!(self, c => c.has_room())
    }

    /// Queues a frame of the response's body. To be called only while there is room.
    #[inline]
    pub fn send(&mut self, frame: Frame) {
        each!(self, c => c.send(frame))
    }

    /// Writes what is queued; ready when all of it left.
    #[inline]
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        each!(self, c => c.poll_flush(cx))
    }

    /// After a 101: from here on the connection carries plain bytes in both directions.
    pub fn upgrade(&mut self) {
        each!(self, c => c.upgrade())
    }

    /// Whether a change of protocol is asked for by an extended CONNECT (RFC 8441) and not by a field
    /// of the request.
    pub fn upgrades_by_connect(&self) -> bool {
        match self {
            Downstream::H1(_) | Downstream::Nobody(_) | Downstream::Subrequest(_) => false,
            Downstream::H2(_) => true,
        }
    }

    /// The answer cannot be completed: the client must see that it is cut short.
    #[inline]
    pub fn abort(&mut self) {
        each!(self, c => c.abort())
    }

    /// No further request is to be read from where this one came.
    #[inline]
    pub fn close_after(&mut self) {
        match self {
            Downstream::H1(c) => c.close_after(),
            // The stream is for this request alone; what its connection goes on with does not
            // depend on it.
            Downstream::H2(_) | Downstream::Nobody(_) | Downstream::Subrequest(_) => {}
        }
    }

    /// Nobody reads what is left of the request's body. To be called before the head of the answer.
    #[inline]
    pub fn forgo_body(&mut self) {
        match self {
            Downstream::H1(c) => c.forgo_body(),
            // What is left of it ends with the stream.
            Downstream::H2(_) | Downstream::Nobody(_) | Downstream::Subrequest(_) => {}
        }
    }

    /// The exchange has `bytes` of bodies in memory from now on: they count for its share of the worker's budget.
    #[inline]
    pub fn hold(&mut self, bytes: usize) {
        each!(self, c => c.hold(bytes));
    }

    /// Lowers the limit of the request's body to `bytes`; 0 leaves it as it is.
    #[inline]
    pub fn limit_body(&mut self, bytes: u64) {
        each!(self, c => c.limit_body(bytes));
    }

    /// Bytes written to this client so far.
    #[inline]
    pub fn bytes_written(&self) -> u64 {
        each!(self, c => c.bytes_written())
    }

    /// The deadline of waiting for this client.
    #[inline]
    pub fn deadline(&self) -> &Deadline {
        each!(self, c => &c.deadline)
    }

    /// Bytes written for this response: all, and those of the body.
    #[inline]
    pub fn bytes_sent(&self) -> (u64, u64) {
        each!(self, c => c.bytes_sent())
    }

    /// Bytes read of this request: its head and its body.
    #[inline]
    pub fn bytes_received(&self) -> u64 {
        each!(self, c => c.bytes_received())
    }

    /// Which request on its connection this is, from 1.
    #[inline]
    pub fn request_number(&self) -> u32 {
        each!(self, c => c.requests())
    }
}
