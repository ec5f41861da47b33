//! A connection to a node that several exchanges share, in any protocol.

use std::rc::Rc;

use crate::client::Connection;
use crate::h2::{self, Reused};
use crate::h3;

/// A connection with room for several exchanges of its worker.
#[derive(Debug, Clone)]
pub enum MultiplexedConnection {
    /// HTTP/2
    H2(Rc<h2::SharedConnection>),
    /// HTTP/3
    H3(Rc<h3::SharedConnection>),
}

macro_rules! each {
    ($self:ident, $c:ident => $call:expr) => {
        match $self {
            MultiplexedConnection::H2($c) => $call,
            MultiplexedConnection::H3($c) => $call,
        }
    };
}

impl MultiplexedConnection {
    /// Returns true if there is room for one more exchange. `requests_max` is the limit of requests on one
    /// connection.
    pub fn has_room(&self, requests_max: u32) -> bool {
        each!(self, c => c.has_room(requests_max))
    }

    /// Returns true if it is no longer usable.
    pub fn is_spent(&self, requests_max: u32) -> bool {
        each!(self, c => c.is_spent(requests_max))
    }

    /// Returns true if it has no exchange.
    pub fn is_idle(&self) -> bool {
        each!(self, c => c.is_idle())
    }

    /// Returns true if it is a connection over QUIC.
    pub fn is_http3(&self) -> bool {
        matches!(self, MultiplexedConnection::H3(_))
    }

    /// Takes a stream for one exchange; the connection has room for it.
    pub fn begin(&self, reused: Reused) -> Connection {
        match self {
            MultiplexedConnection::H2(c) => Connection::on(c, reused),
            MultiplexedConnection::H3(c) => Connection::on_h3(c, reused),
        }
    }

    /// Calls `notice` when the node allows further exchanges after it allowed none, unless the node's limit is known
    /// in advance.
    pub fn on_room(&self, notice: impl Fn() + 'static) {
        match self {
            MultiplexedConnection::H2(_) => {}
            MultiplexedConnection::H3(c) => c.on_room(notice),
        }
    }
}
