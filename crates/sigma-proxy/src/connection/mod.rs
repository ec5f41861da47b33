//! Facts about a client's connection that hold for all of its requests.

mod limits;
mod tls;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use sigma_config::settings::Timeouts;
use sigma_net::tls::Facts;
use sigma_net::{Peer, Stream, deadline};
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
    /// The time at which it takes no further request, in milliseconds of the worker's wheel; [`u64::MAX`] for never.
    pub(crate) ends_ms: u64,
}

impl Origin {
    /// Returns the origin of a new connection, in the worker of this clock.
    pub(crate) fn new(peer: Peer, local: Option<SocketAddr>, connection: u64, clock: &Clock) -> Origin {
        let opened = tick(clock.unix_ms());
        Origin { peer, local, listener: 0, connection, opened, is_proxied: false, ends_ms: u64::MAX }
    }

    /// Sets the end of its age, by the settings and a random number.
    #[must_use]
    pub(crate) fn aging(self, timeouts: &Timeouts, random: u64) -> Origin {
        let ends_ms = match age_ms(timeouts, random) {
            0 => u64::MAX,
            age_ms => deadline::now_ms().saturating_add(age_ms),
        };
        Origin { ends_ms, ..self }
    }

    /// Returns the time that is left until the end of its age; None without one.
    pub(crate) fn left_ms(&self) -> Option<u64> {
        (self.ends_ms != u64::MAX).then(|| self.ends_ms.saturating_sub(deadline::now_ms()))
    }

    /// Returns true if it has reached its age.
    pub(crate) fn is_old(&self) -> bool {
        self.left_ms() == Some(0)
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

/// Returns the age that a connection may reach: the setting, less a random part of the spread; 0 for no limit.
fn age_ms(timeouts: &Timeouts, random: u64) -> u64 {
    let age_ms = u64::from(timeouts.connection_age_ms);
    let spread_ms = age_ms * u64::from(timeouts.connection_age_spread_percent.min(100)) / 100;
    // At least a millisecond: 0 is no limit.
    age_ms.min(1).max(age_ms - random % (spread_ms + 1))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_spread_below_the_setting() {
        let age = |connection_age_ms: u32, connection_age_spread_percent: u8, random: u64| {
            age_ms(
                &Timeouts { connection_age_ms, connection_age_spread_percent, ..Timeouts::default() },
                random,
            )
        };
        assert_eq!([age(0, 10, 7), age(0, 0, 0)], [0, 0]);
        assert_eq!([age(1_000, 0, 77), age(1_000, 10, 0), age(1_000, 10, 100)], [1_000, 1_000, 900]);
        assert_eq!([age(1_000, 10, 101), age(1_000, 100, 1_000), age(1, 100, 1)], [1_000, 1, 1]);
        assert_eq!(age(u32::MAX, 100, u64::MAX) >> 32, 0);
    }
}
