//! One connection to a node, whatever protocol it speaks.
//!
//! The exchange loop sees heads and frames only; this is the upstream edge where they become
//! bytes.

mod dial;
mod h1;
pub mod h2;

use std::task::{Context, Poll};

use sigma_http::h1::{Output, ParseError};
use sigma_http::{BodyLength, Fault, FaultKind, Frame, Method, RequestHead, ResponseHead};
use sigma_net::{Deadline, Stream};

pub(crate) use dial::timed_out;
pub use dial::{Dial, DialTls, Dialled, dial};
pub use h1::Client;

/// Limits of a response head.
pub use sigma_http::h1::HeadLimits;

/// Interim responses to one request; a server that sends more is broken or hostile.
const INTERIM_MAX: u8 = 32;

/// A connection with a request on it.
#[derive(Debug)]
pub enum Connection {
    /// HTTP/1.1
    H1(Box<Client>),
    /// One stream of an HTTP/2 connection that others share.
    H2(Box<h2::ClientStream>),
}

macro_rules! each {
    ($self:ident, $c:ident => $call:expr) => {
        match $self {
            Connection::H1($c) => $call,
            Connection::H2($c) => $call,
        }
    };
}

impl Connection {
    /// Queues a request head. `rewritten` is what to ask for in place of the head's own target;
    /// `length` frames the body that follows, `upgrade` is the protocol to change to. The fields of
    /// the head that say so are replaced.
    pub fn send_head(
        &mut self,
        head: &mut RequestHead,
        rewritten: Option<&[u8]>,
        length: BodyLength,
        upgrade: Option<&[u8]>,
    ) {
        each!(self, c => c.send_head(head, rewritten, length, upgrade))
    }

    /// Whether another frame may be queued.
    pub fn has_room(&self) -> bool {
        each!(self, c => c.has_room())
    }

    /// Queues a frame of the request's body. To be called only while there is room.
    pub fn send(&mut self, frame: Frame) {
        each!(self, c => c.send(frame))
    }

    /// Writes what is queued; ready when all of it left.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        each!(self, c => c.poll_flush(cx))
    }

    /// The next response head, interim ones included.
    pub fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        method: Method,
        limits: &HeadLimits,
        head: &mut ResponseHead,
    ) -> Poll<Result<(), Fault>> {
        each!(self, c => c.poll_head(cx, method, limits, head))
    }

    /// How the body behind the final head is framed.
    pub fn body_length(&self) -> BodyLength {
        each!(self, c => c.body_length())
    }

    /// The next frame of the response's body.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        each!(self, c => c.poll_frame(cx))
    }

    /// From here on the connection carries plain bytes in both directions.
    pub fn upgrade(&mut self) {
        match self {
            Connection::H1(c) => c.upgrade(),
            // No answer of this version is a 101, so nobody gets here.
            Connection::H2(_) => {}
        }
    }

    /// Whether it served a request before, and not a byte of the answer to this one has come.
    pub fn may_be_stale(&self) -> bool {
        each!(self, c => c.may_be_stale())
    }

    /// Whether not a byte of the current request has left.
    pub fn is_unsent(&self) -> bool {
        each!(self, c => c.is_unsent())
    }

    /// Bytes written on this connection so far.
    pub fn bytes_written(&self) -> u64 {
        each!(self, c => c.bytes_written())
    }

    /// The deadline of waiting for this node.
    pub fn deadline(&self) -> &Deadline {
        each!(self, c => &c.deadline)
    }

    /// Whether the exchange left it fit for another.
    pub fn is_reusable(&self, requests_max: u32) -> bool {
        match self {
            Connection::H1(c) => c.is_reusable(requests_max),
            // The stream is over with its exchange; the connection under it was never taken out.
            Connection::H2(_) => false,
        }
    }

    /// Whether an idle connection is open and silent.
    pub fn is_quiet(&mut self) -> bool {
        match self {
            Connection::H1(c) => c.is_quiet(),
            Connection::H2(_) => false,
        }
    }
}

/// Writes `output` to `stream`; ready when it is empty.
///
/// # Errors
/// The operating system's.
pub fn flush(stream: &mut Stream, output: &mut Output, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
    while !output.is_empty() {
        let written = match output.single() {
            Some(bytes) => stream.poll_write(cx, bytes),
            None => stream.poll_write_vectored(cx, &output.slices()),
        };
        match written {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(n)) => output.advance(n),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
    }
    // What an encrypted stream took may still wait for room in its socket.
    stream.poll_flush(cx)
}

fn parse_fault(error: ParseError) -> Fault {
    match error {
        ParseError::Invalid(reason) => Fault::new(FaultKind::BadResponse, reason),
        ParseError::LineTooLong | ParseError::HeadTooLarge => {
            Fault::new(FaultKind::ResponseHeadTooLarge, "the response head is over its limit")
        }
    }
}
