//! Facts about a client's connection that hold for all of its requests.

mod limits;
mod tls;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use sigma_net::tls::Facts;
use sigma_net::{Peer, Stream};
use sigma_observe::date::Clock;
use sigma_plugin::context::Client;
use sigma_plugin::variables::tick;

pub(crate) use limits::{answer_limits, h3_limits, server_limits, session_limits};
pub(crate) use tls::TlsSession;

/// The source and destination addresses of a request; the same for all requests of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) peer: Peer,
    pub(crate) local: Option<SocketAddr>,
    /// The number of the listener's name; see [`crate::snapshot::Snapshot::listener_number`].
    pub(crate) listener: u16,
    /// The number of the connection, unique in its worker.
    pub(crate) connection: u64,
    /// The time of the accept; see [`tick`].
    pub(crate) opened: u32,
    /// `peer` and `local` come from a PROXY header.
    pub(crate) is_proxied: bool,
}

impl Origin {
    /// Returns the origin of a new connection, in the worker of this clock.
    pub(crate) fn new(peer: Peer, local: Option<SocketAddr>, connection: u64, clock: &Clock) -> Origin {
        let opened = tick(clock.unix_ms());
        Origin { peer, local, listener: 0, connection, opened, is_proxied: false }
    }

    /// Returns the client for plugins and logs, unless a plugin trusts another address.
    pub(crate) fn client(&self) -> Client {
        let (addr, port) = (self.peer.ip(), self.peer.port().unwrap_or(0));
        Client {
            addr,
            port,
            peer: addr,
            peer_port: port,
            is_proxied: self.is_proxied,
            opened: self.opened,
            local: self.local,
            connection: self.connection,
            tls: None,
            geography: None,
        }
    }
}

/// A client's connection for its exchanges.
#[derive(Debug)]
pub(crate) struct ConnectionInfo {
    pub(crate) origin: Origin,
    /// The TLS session, if there is one; shared with subrequests.
    pub(crate) session: Option<Rc<TlsSession>>,
    /// A request has logged in the connection to its node: all later ones use connections of this client alone.
    pub(crate) logs_in: Cell<bool>,
}

impl ConnectionInfo {
    /// Returns the facts about `stream` once it may carry requests.
    pub(crate) fn new(origin: Origin, stream: &Stream) -> ConnectionInfo {
        ConnectionInfo { origin, session: TlsSession::of(stream).map(Rc::new), logs_in: Cell::new(false) }
    }

    /// Returns the facts about a connection over QUIC.
    pub(crate) fn over_quic(origin: Origin, facts: &Facts) -> ConnectionInfo {
        let session = Some(Rc::new(TlsSession::from_facts(facts.clone())));
        ConnectionInfo { origin, session, logs_in: Cell::new(false) }
    }
}
