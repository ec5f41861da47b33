//! Facts about a client's connection that hold for all of its requests.

mod limits;
mod tls;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use sigma_config::settings::Timeouts;
use sigma_net::tls::Facts;
use sigma_net::{Peer, Stream};
use sigma_observe::date::Clock;
use sigma_plugin::context::Client;
use sigma_plugin::variables::{TICK_MS, tick};

pub(crate) use limits::{answer_limits, dial_limits, h3_limits, server_limits, session_limits};
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
    /// `local` is the destination before a redirection of the kernel.
    pub(crate) is_redirected: bool,
}

impl Origin {
    /// Returns the origin of a new connection, in the worker of this clock.
    pub(crate) fn new(peer: Peer, local: Option<SocketAddr>, connection: u64, clock: &Clock) -> Origin {
        let opened = tick(clock.unix_ms());
        Origin { peer, local, listener: 0, connection, opened, is_proxied: false, is_redirected: false }
    }

    /// Returns the address of the listener, if `local` is that: a PROXY header and a redirection name others.
    pub(crate) fn listen_address(&self) -> Option<SocketAddr> {
        self.local.filter(|_| !self.is_proxied && !self.is_redirected)
    }

    /// Returns the destination of the client before a redirection of the kernel; None without one.
    pub(crate) fn original_destination(&self) -> Option<SocketAddr> {
        self.local.filter(|_| self.is_redirected)
    }

    /// Returns the milliseconds until its greatest age; None without one. `now` is a time in ticks.
    pub(crate) fn left_ms(&self, timeouts: &Timeouts, now: u32) -> Option<u32> {
        // It spreads the ages of connections, so it need not be a secret.
        let random =
            (self.connection ^ u64::from(self.opened) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let age_ms = age_ms(timeouts, random);
        // A clock that was set back can be before the start.
        let open = now.wrapping_sub(self.opened).cast_signed().max(0).cast_unsigned();
        let open_ms = u64::from(open) * TICK_MS;
        (age_ms > 0).then(|| u32::try_from(age_ms.saturating_sub(open_ms)).unwrap_or(u32::MAX))
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

    #[test]
    fn the_time_that_is_left_ends_at_the_age() {
        let timeouts = |connection_age_ms: u32| Timeouts {
            connection_age_ms,
            connection_age_spread_percent: 0,
            ..Timeouts::default()
        };
        let origin = Origin::new(Peer::Unix, None, 7, &Clock::new(1_000_000));
        let left = |age_ms: u32, after_ms: u64| origin.left_ms(&timeouts(age_ms), tick(1_000_000 + after_ms));
        assert_eq!([left(0, 0), left(0, 9_000)], [None, None]);
        assert_eq!([left(500, 0), left(500, 200)], [Some(500), Some(300)]);
        assert_eq!([left(500, 500), left(500, 60_000)], [Some(0), Some(0)]);
        // The clock was set back.
        assert_eq!(origin.left_ms(&timeouts(500), tick(900_000)), Some(500));
    }
}
