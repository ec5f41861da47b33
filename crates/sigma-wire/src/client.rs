//! One connection to a node, in any protocol.
//!
//! The exchange loop handles only heads and frames; this module converts them to bytes of the node's protocol.

use std::rc::Rc;
use std::task::{Context, Poll};

use sigma_http::dubbo::Call;
use sigma_http::h1::HeadLimits;
use sigma_http::{BodyLength, CarriedBytes, Chunk, Fault, Frame, Method, RequestHead, ResponseHead, Version};
use sigma_net::{Deadline, Stream};

use crate::dubbo;
use crate::fcgi;
use crate::h1;
use crate::h2::{ClientStream, Reused, SharedConnection};
use crate::h3;
use crate::rest::Rest;
use crate::rules;

/// Request data besides the head, for a node without HTTP.
#[derive(Debug)]
pub enum Terms {
    /// The parameters of an application
    Fcgi(fcgi::Terms),
    /// The call to a provider
    Dubbo(Call),
}

/// A connection with a request on it.
#[derive(Debug)]
pub enum Connection {
    /// HTTP/1.1
    H1(Box<h1::Client>),
    /// One stream of a shared HTTP/2 connection
    H2(Box<ClientStream>),
    /// One stream of a shared HTTP/3 connection
    H3(Box<h3::ClientStream>),
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
            Connection::H3($c) => $call,
            Connection::Fcgi($c) => $call,
            Connection::Dubbo($c) => $call,
        }
    };
}

impl Connection {
    /// Returns a new connection for one exchange at a time.
    pub fn single(stream: Stream, deadline: Deadline) -> Connection {
        Connection::H1(Box::new(h1::Client::new(stream, deadline)))
    }

    /// Returns a new connection to a FastCGI application, named `node` in logs.
    pub fn fcgi(stream: Stream, deadline: Deadline, node: &str) -> Connection {
        Connection::Fcgi(Box::new(fcgi::Client::new(stream, deadline, node)))
    }

    /// Returns a new connection to a Dubbo provider, named `node` in logs.
    pub fn dubbo(stream: Stream, deadline: Deadline, node: &str) -> Connection {
        Connection::Dubbo(Box::new(dubbo::Client::new(stream, deadline, node)))
    }

    /// Takes a stream for one exchange on a shared connection with room for it.
    pub fn on(shared: &Rc<SharedConnection>, reused: Reused) -> Connection {
        Connection::H2(Box::new(ClientStream::new(Rc::clone(shared), reused)))
    }

    /// Takes a stream for one exchange on a shared HTTP/3 connection with room for it.
    pub fn on_h3(shared: &Rc<h3::SharedConnection>, reused: Reused) -> Connection {
        Connection::H3(Box::new(h3::ClientStream::new(Rc::clone(shared), reused)))
    }

    /// Sets the request data besides the next head, for a node that needs them.
    pub fn describe(&mut self, terms: Terms) {
        match (self, terms) {
            (Connection::Fcgi(c), Terms::Fcgi(terms)) => c.describe(terms),
            (Connection::Dubbo(c), Terms::Dubbo(call)) => c.describe(call),
            // The node is of another kind; a node that needs the data rejects the request.
            _ => {}
        }
    }

    /// Returns the version of HTTP; None for another protocol.
    pub fn version(&self) -> Option<Version> {
        match self {
            Connection::H1(_) => Some(Version::Http11),
            Connection::H2(_) => Some(Version::Http2),
            Connection::H3(_) => Some(Version::Http3),
            Connection::Fcgi(_) | Connection::Dubbo(_) => None,
        }
    }

    /// Queues a request head. `rewritten` replaces the head's own target; `length` frames the body that follows,
    /// `upgrade` is the requested protocol. The framing and upgrade fields of the head are replaced.
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
            Connection::H3(c) => c.send_head(head, rewritten, length, upgrade),
            // These protocols have no upgrade.
            Connection::Fcgi(c) => c.send_head(head, rewritten, length),
            Connection::Dubbo(c) => c.send_head(head, length),
        }
    }

    /// Returns true if another frame may be queued.
    #[inline]
    pub fn has_room(&self) -> bool {
        each!(self, c => c.has_room())
    }

    /// Queues a frame of the request body. Call it only while there is room.
    #[inline]
    pub fn send(&mut self, frame: Frame) {
        each!(self, c => c.send(frame))
    }

    /// Writes the queue; ready when it is empty.
    #[inline]
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        each!(self, c => c.poll_flush(cx))
    }

    /// Returns the next response head, interim ones included.
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
            // Its heads share the limits of the whole connection.
            Connection::H2(c) => c.poll_head(cx, method, head),
            Connection::H3(c) => c.poll_head(cx, method, head),
            Connection::Fcgi(c) => c.poll_head(cx, method, limits, head),
            Connection::Dubbo(c) => c.poll_head(cx, method, limits, head),
        }
    }

    /// Ready when a part of the response has arrived, or none will. It takes no bytes, so that a caller with several
    /// nodes can wait for the first. The queue must be empty.
    pub fn poll_answer(&mut self, cx: &mut Context<'_>, limits: &HeadLimits) -> Poll<Result<(), Fault>> {
        match self {
            Connection::H1(c) => c.poll_answer(cx, limits),
            Connection::H2(c) => c.poll_answer(cx),
            Connection::H3(c) => c.poll_answer(cx),
            Connection::Fcgi(c) => c.poll_answer(cx),
            Connection::Dubbo(c) => c.poll_answer(cx),
        }
    }

    /// Returns the framing of the body after the final head.
    #[inline]
    pub fn body_length(&self) -> BodyLength {
        each!(self, c => c.body_length())
    }

    /// Returns the next frame of the response body.
    #[inline]
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        match self {
            Connection::H1(c) => c.poll_frame(cx),
            Connection::H2(c) => c.poll_frame(cx),
            Connection::H3(c) => c.poll_frame(cx),
            Connection::Fcgi(c) => c.poll_frame(cx),
            Connection::Dubbo(c) => c.poll_frame(),
        }
    }

    /// Returns the rest of the response once the node has sent all of it, so that the connection is free. Call it
    /// while the client cannot take more; it reads little ahead.
    pub fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Rest> {
        match self {
            Connection::H1(c) => c.poll_rest(cx),
            Connection::H2(c) => c.poll_rest(cx),
            Connection::H3(c) => c.poll_rest(cx),
            // The end of a response is its own record, which is read with the body.
            Connection::Fcgi(_) => Poll::Pending,
            Connection::Dubbo(c) => Poll::Ready(c.take_rest()),
        }
    }

    /// Switches the connection to plain bytes in both directions.
    pub fn upgrade(&mut self) {
        match self {
            Connection::H1(c) => c.upgrade(),
            // A response in these protocols is never a 101, so this is unreachable.
            Connection::H2(_) | Connection::H3(_) | Connection::Fcgi(_) | Connection::Dubbo(_) => {}
        }
    }

    /// Starts an exchange of plain bytes, after which the connection may be reused: frames with data are sent
    /// unchanged. Only for an unshared connection.
    pub fn begin_bytes(&mut self) {
        match self {
            Connection::H1(c) => c.begin_bytes(),
            // A caller that needs bytes dials no such connection, so no bytes arrive.
            Connection::H2(_) | Connection::H3(_) | Connection::Fcgi(_) | Connection::Dubbo(_) => {}
        }
    }

    /// Returns more bytes of the response, at least one.
    pub fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Result<Chunk, Fault>> {
        match self {
            Connection::H1(c) => c.poll_bytes(cx),
            Connection::H2(_) | Connection::H3(_) | Connection::Fcgi(_) | Connection::Dubbo(_) => {
                Poll::Ready(Err(rules::bad_response("the connection carries messages, not a byte stream")))
            }
        }
    }

    /// Ends an exchange of bytes: the response is complete and the request was sent. Another one may follow.
    pub fn end_bytes(&mut self) {
        match self {
            Connection::H1(c) => c.end_bytes(),
            Connection::H2(_) | Connection::H3(_) | Connection::Fcgi(_) | Connection::Dubbo(_) => {}
        }
    }

    /// Returns true if the connection served a request before, and no byte of the current response has arrived.
    #[inline]
    pub fn may_be_stale(&self) -> bool {
        each!(self, c => c.may_be_stale())
    }

    /// Returns true if no byte of the current request was sent.
    #[inline]
    pub fn is_unsent(&self) -> bool {
        each!(self, c => c.is_unsent())
    }

    /// Returns the bytes written on this connection so far.
    #[inline]
    pub fn bytes_written(&self) -> u64 {
        each!(self, c => c.bytes_written())
    }

    /// Returns the bytes of the current request that were sent, and of its response that were received, with their
    /// heads. In HTTP/2, heads count before compression: their compressed size depends on all earlier heads.
    #[inline]
    pub fn carried(&self) -> CarriedBytes {
        each!(self, c => c.carried())
    }

    /// Returns the deadline of waiting for this node.
    #[inline]
    pub fn deadline(&self) -> &Deadline {
        each!(self, c => &c.deadline)
    }

    /// Returns true if the connection can serve another exchange.
    #[inline]
    pub fn is_reusable(&self, requests_max: u32) -> bool {
        match self {
            Connection::H1(c) => c.is_reusable(requests_max),
            // The stream ends with its exchange; the connection under it stays in the pool.
            Connection::H2(_) | Connection::H3(_) => false,
            Connection::Fcgi(c) => c.is_reusable(requests_max),
            Connection::Dubbo(c) => c.is_reusable(requests_max),
        }
    }

    /// Returns true if an idle connection is open and has no bytes to read.
    #[inline]
    pub fn is_quiet(&mut self) -> bool {
        match self {
            Connection::H1(c) => c.is_quiet(),
            Connection::H2(_) | Connection::H3(_) => false,
            Connection::Fcgi(c) => c.is_quiet(),
            Connection::Dubbo(c) => c.is_quiet(),
        }
    }
}
