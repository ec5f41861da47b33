//! The facts about a client's connection that hold for all of its requests.

mod limits;
mod tls;

use std::net::SocketAddr;

use sigma_net::{Peer, Stream};

pub(crate) use limits::{answer_limits, server_limits, session_limits};
pub(crate) use tls::TlsSession;

/// The addresses that a request came from and to; the same for all requests of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) peer: Peer,
    pub(crate) local: Option<SocketAddr>,
    /// Number of the listener's name; see [`crate::snapshot::Snapshot::listener_number`].
    pub(crate) listener: u16,
    /// Number of the connection, unique in its worker.
    pub(crate) connection: u64,
}

/// A client's connection as its exchanges know it.
#[derive(Debug)]
pub(crate) struct ConnectionInfo {
    pub(crate) origin: Origin,
    /// The TLS session, if there is one. Boxed, so that plain connections do not pay its size.
    pub(crate) session: Option<Box<TlsSession>>,
}

impl ConnectionInfo {
    /// The facts about `stream` once it may carry requests.
    pub(crate) fn new(origin: Origin, stream: &Stream) -> ConnectionInfo {
        ConnectionInfo { origin, session: TlsSession::of(stream).map(Box::new) }
    }
}
