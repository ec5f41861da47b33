//! The target of connections, with their settings and limits.

use sigma_net::tls::ClientTls;

use crate::dial::{Dial, DialQuic, DialTls, GeneralDial, Http3Use, Owner, Protocol};
use crate::endpoint::{Address, Endpoint};

/// The limits of kept connections.
#[derive(Debug, Clone, Copy)]
pub struct PoolLimits {
    /// The limit of idle connections per endpoint and worker, for all targets: clients may choose the requested
    /// server name. The least recently used is closed. It is also the limit of shared connections, used or not.
    pub size: usize,
    /// An idle connection is closed after this.
    pub idle_timeout_ms: u64,
    /// Beyond `size`, as many as the recent peak had in use are kept, idle for at most this time; 0 keeps none.
    pub burst_ms: u64,
    /// Requests on one connection.
    pub requests: u32,
}

/// The target of a connection, with its settings.
#[derive(Debug, Clone, Copy)]
pub struct Target<'t> {
    /// The endpoint.
    pub endpoint: &'t Endpoint,
    /// The way to connect.
    pub dial: Dial<'t>,
    /// The limits of its connections.
    pub limits: PoolLimits,
}

impl Target<'_> {
    /// Returns true if its connections belong to one client.
    pub(super) fn is_private(&self) -> bool {
        self.dial.is_private()
    }
}

/// The target that a connection was made for. Upstreams that share an endpoint may differ in trust and requested
/// name, so a connection serves only the same target again.
#[derive(Debug)]
pub(super) struct TargetIdentity {
    addr: Address,
    protocol: Protocol,
    tls: Option<MadeTls>,
    owner: Owner<Box<[u8]>>,
}

/// The TLS of a connection.
#[derive(Debug)]
struct MadeTls {
    client: ClientTls,
    name: Box<str>,
    quic: Option<MadeQuic>,
}

/// The HTTP/3 of a connection.
#[derive(Debug)]
struct MadeQuic {
    client: ClientTls,
    when: Http3Use,
    recorded: Option<u16>,
}

impl MadeTls {
    fn of(tls: &DialTls<'_>) -> MadeTls {
        let quic = tls.quic.map(|quic| MadeQuic {
            client: quic.client.clone(),
            when: quic.when,
            recorded: quic.recorded,
        });
        MadeTls { client: tls.client.clone(), name: tls.name.into(), quic }
    }

    fn fits(&self, wanted: &DialTls<'_>) -> bool {
        let same_quic = match (&self.quic, &wanted.quic) {
            (None, None) => true,
            // A new announcement does not end connections.
            (Some(made), Some(wanted)) => made.client.is_same(wanted.client) && made.when == wanted.when,
            _ => false,
        };
        same_quic && self.client.is_same(wanted.client) && *self.name == *wanted.name
    }
}

impl TargetIdentity {
    pub(super) fn of(target: &Target<'_>) -> TargetIdentity {
        let tls = target.dial.tls.as_ref().map(MadeTls::of);
        TargetIdentity {
            addr: target.endpoint.addr.clone(),
            protocol: target.dial.protocol,
            tls,
            owner: target.dial.owner.to_owned(),
        }
    }

    pub(super) fn fits(&self, target: &Target<'_>) -> bool {
        let same_tls = match (&self.tls, &target.dial.tls) {
            (None, None) => true,
            (Some(made), Some(wanted)) => made.fits(wanted),
            _ => false,
        };
        same_tls
            && self.protocol == target.dial.protocol
            && self.owner.as_ref() == target.dial.owner
            && self.addr == target.endpoint.addr
    }

    /// Returns true if it belongs to one client.
    pub(super) fn is_private(&self) -> bool {
        self.owner.as_ref() != Owner::ALL
    }

    /// Returns true if its connections may be over QUIC or over TCP.
    pub(super) fn has_http3(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.quic.is_some())
    }

    /// Returns the address and the dial settings, with the general part of `dial`.
    pub(super) fn redial<'m>(&'m self, dial: &'m GeneralDial) -> (&'m Address, Dial<'m>) {
        let tls = self.tls.as_ref().map(|tls| {
            let quic = tls.quic.as_ref().map(|made| DialQuic {
                client: &made.client,
                when: made.when,
                recorded: made.recorded,
            });
            DialTls { client: &tls.client, name: &tls.name, quic }
        });
        let dial = Dial {
            protocol: dial.protocol,
            timeout_ms: dial.timeout_ms,
            link_ms: dial.link_ms,
            limits: &dial.limits,
            tls,
            owner: self.owner.as_ref(),
            linked: None,
        };
        (&self.addr, dial)
    }
}
