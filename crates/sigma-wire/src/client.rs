//! One connection to a node, whatever protocol it speaks.
//!
//! The exchange loop sees heads and frames only; this is the edge towards nodes, where they become
//! bytes.

use std::rc::Rc;
use std::task::{Context, Poll};

use sigma_http::dubbo::Call;
use sigma_http::h1::HeadLimits;
use sigma_http::{BodyLength, Chunk, Fault, Frame, Method, RequestHead, ResponseHead};
use sigma_net::{Deadline, Stream};

use crate::dubbo;
use crate::fcgi;
use crate::h1;
use crate::h2::{ClientStream, Reused, SharedConnection};
use crate::rest::Rest;
use crate::rules;

/// What a node that speaks no HTTP is told of a request beside its head.
#[derive(Debug)]
pub enum Terms {
    /// The parameters of an application.
    Fcgi(fcgi::Terms),
    /// What of a provider is called.
    Dubbo(Call),
}

/// A connection with a request on it.
#[derive(Debug)]
pub enum Connection {
    /// HTTP/1.1
    H1(Box<h1::Client>),
    /// One stream of an HTTP/2 connection that others share.
    H2(Box<ClientStream>),
    /// FastCGI
    Fcgi(Box<fcgi::Client>),
    /// Dubbo
    Dubbo(Box<dubbo::Client>),
}

macro_rules! each {
    ($self:ident, $c:ident => $call:expr) => {
        match $self {
            Connection::H1($c) => $call,
            Connection::H2($c) => $call,
            Connection::Fcgi($c) => $call,
            Connection::Dubbo($c) => $call,
        }
    };
}

impl Connection {
    /// A fresh connection for one exchange at a time.
    pub fn single(stream: Stream, deadline: Deadline) -> Connection {
        Connection::H1(Box::new(h1::Client::new(stream, deadline)))
    }

    /// A fresh connection to an application that speaks FastCGI, which logs call `node`.
    pub fn fcgi(stream: Stream, deadline: Deadline, node: &str) -> Connection {
        Connection::Fcgi(Box::new(fcgi::Client::new(stream, deadline, node)))
    }

    /// A fresh connection to a provider of Dubbo, which logs call `node`.
    pub fn dubbo(stream: Stream, deadline: Deadline, node: &str) -> Connection {
        Connection::Dubbo(Box::new(dubbo::Client::new(stream, deadline, node)))
    }

    /// A place for one exchange on a connection that has room for it.
    pub fn on(shared: &Rc<SharedConnection>, reused: Reused) -> Connection {
        Connection::H2(Box::new(ClientStream::new(Rc::clone(shared), reused)))
    }

    /// Says of the next request what its head does not, for a node that wants to know.
    pub fn describe(&mut self, terms: Terms) {
        match (self, terms) {
            (Connection::Fcgi(c), Terms::Fcgi(terms)) => c.describe(terms),
            (Connection::Dubbo(c), Terms::Dubbo(call)) => c.describe(call),
            // It is a node of another kind; one that had to be told refuses the request.
            _ => {}
        }
    }

    /// Queues a request head. `rewritten` is what to ask for in place of the head's own target;
    /// `length` frames the body that follows, `upgrade` is the protocol to change to. The fields of
    /// the head that say so are replaced.
    #[inline]
    pub fn send_head(
        &mut self,
        head: &mut RequestHead,
        rewritten: Option<&[u8]>,
        length: BodyLength,
        upgrade: Option<&[u8]>,
    ) {
        match self {
            Connection::H1(c) => c.send_head(head, rewritten, length, upgrade),
            Connection::H2(c) => c.send_head(head, rewritten, length, upgrade),
            // These know no other protocol to change to.
            Connection::Fcgi(c) => c.send_head(head, rewritten, length),
            Connection::Dubbo(c) => c.send_head(head, length),
        }
    }

    /// Whether another frame may be queued.
    #[inline]
    pub fn has_room(&self) -> bool {
        each!(self, c => c.has_room())
    }

    /// Queues a frame of the request's body. To be called only while there is room.
    #[inline]
    pub fn send(&mut self, frame: Frame) {
        each!(self, c => c.send(frame))
    }

    /// Writes what is queued; ready when all of it left.
    #[inline]
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        each!(self, c => c.poll_flush(cx))
    }

    /// The next response head, interim ones included.
    #[inline]
    pub fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        method: Method,
        limits: &HeadLimits,
        head: &mut ResponseHead,
    ) -> Poll<Result<(), Fault>> {
        match self {
            Connection::H1(c) => c.poll_head(cx, method, limits, head),
            // Its heads come with those of others: the limits of its connection hold.
            Connection::H2(c) => c.poll_head(cx, method, head),
            Connection::Fcgi(c) => c.poll_head(cx, method, limits, head),
            Connection::Dubbo(c) => c.poll_head(cx, method, limits, head),
        }
    }

    /// Ready when something of the answer has come, or none will: without taking it, so that whoever asked
    /// several nodes may wait for the first. Nothing may be left to flush.
    pub fn poll_answer(&mut self, cx: &mut Context<'_>, limits: &HeadLimits) -> Poll<Result<(), Fault>> {
        match self {
            Connection::H1(c) => c.poll_answer(cx, limits),
            Connection::H2(c) => c.poll_answer(cx),
            Connection::Fcgi(c) => c.poll_answer(cx),
            Connection::Dubbo(c) => c.poll_answer(cx),
        }
    }

    /// How the body behind the final head is framed.
    #[inline]
    pub fn body_length(&self) -> BodyLength {
        each!(self, c => c.body_length())
    }

    /// The next frame of the response's body.
    #[inline]
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        match self {
            Connection::H1(c) => c.poll_frame(cx),
            Connection::H2(c) => c.poll_frame(cx),
            Connection::Fcgi(c) => c.poll_frame(cx),
            Connection::Dubbo(c) => c.poll_frame(),
        }
    }

    /// The rest of the response, once the node has sent all of it: the connection has nothing more to do for this
    /// exchange. To be called while the client takes no more; little is read ahead for it.
    pub fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Rest> {
        match self {
            Connection::H1(c) => c.poll_rest(cx),
            Connection::H2(c) => c.poll_rest(cx),
            // The end of a response is a record of its own, which is read with the body.
            Connection::Fcgi(_) => Poll::Pending,
            Connection::Dubbo(c) => Poll::Ready(c.take_rest()),
        }
    }

    /// From here on the connection carries plain bytes in both directions.
    pub fn upgrade(&mut self) {
        match self {
            Connection::H1(c) => c.upgrade(),
            // No answer of these is a 101, so nobody gets here.
            Connection::H2(_) | Connection::Fcgi(_) | Connection::Dubbo(_) => {}
        }
    }

    /// Begins an exchange of plain bytes, after which the connection may serve again: frames with data are sent as
    /// they are. Only for a connection of its own.
    pub fn begin_bytes(&mut self) {
        match self {
            Connection::H1(c) => c.begin_bytes(),
            // Whoever asks for bytes dials no such connection; nothing comes over one.
            Connection::H2(_) | Connection::Fcgi(_) | Connection::Dubbo(_) => {}
        }
    }

    /// More bytes of the answer, at least one.
    pub fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Result<Chunk, Fault>> {
        match self {
            Connection::H1(c) => c.poll_bytes(cx),
            Connection::H2(_) | Connection::Fcgi(_) | Connection::Dubbo(_) => {
                Poll::Ready(Err(rules::bad_response("the connection carries messages and no bytes")))
            }
        }
    }

    /// The answer has come whole, and all that was asked has left: another exchange of bytes may follow.
    pub fn end_bytes(&mut self) {
        match self {
            Connection::H1(c) => c.end_bytes(),
            Connection::H2(_) | Connection::Fcgi(_) | Connection::Dubbo(_) => {}
        }
    }

    /// Whether it served a request before, and not a byte of the answer to this one has come.
    #[inline]
    pub fn may_be_stale(&self) -> bool {
        each!(self, c => c.may_be_stale())
    }

    /// Whether not a byte of the current request has left.
    #[inline]
    pub fn is_unsent(&self) -> bool {
        each!(self, c => c.is_unsent())
    }

    /// Bytes written on this connection so far.
    #[inline]
    pub fn bytes_written(&self) -> u64 {
        each!(self, c => c.bytes_written())
    }

    /// Bytes of the current request that have left, and of its answer that have come, with their heads. Over
    /// HTTP/2 heads count as they are before compression: what the codec makes of them depends on all heads before.
    #[inline]
    pub fn carried(&self) -> (u64, u64) {
        each!(self, c => c.carried())
    }

    /// The deadline of waiting for this node.
    #[inline]
    pub fn deadline(&self) -> &Deadline {
        each!(self, c => &c.deadline)
    }

    /// Whether the exchange left it fit for another.
    #[inline]
    pub fn is_reusable(&self, requests_max: u32) -> bool {
        match self {
            Connection::H1(c) => c.is_reusable(requests_max),
            // The stream is over with its exchange; the connection under it was never taken out.
            Connection::H2(_) => false,
            Connection::Fcgi(c) => c.is_reusable(requests_max),
            Connection::Dubbo(c) => c.is_reusable(requests_max),
        }
    }

    /// Whether an idle connection is open and silent.
    #[inline]
    pub fn is_quiet(&mut self) -> bool {
        match self {
            Connection::H1(c) => c.is_quiet(),
            Connection::H2(_) => false,
            Connection::Fcgi(c) => c.is_quiet(),
            Connection::Dubbo(c) => c.is_quiet(),
        }
    }
}
