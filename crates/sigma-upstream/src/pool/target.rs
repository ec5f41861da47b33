//! Where connections lead, how they are made and how long they are kept.

use sigma_net::tls::ClientTls;

use crate::dial::{Dial, DialTls, Protocol};
use crate::endpoint::{Address, Endpoint};

/// How long and how many connections are kept.
#[derive(Debug, Clone, Copy)]
pub struct PoolLimits {
    /// Most connections per endpoint and worker that no exchange is on, whatever they were made
    /// for: clients may choose the name that a node is asked for. The least recently used gives way.
    /// It is also the most shared connections that there are, used or not.
    pub size: usize,
    /// An idle connection is closed after this.
    pub idle_timeout_ms: u64,
    /// Beyond `size`, as many as the recent peak had in use are kept, idle for no longer than this;
    /// 0 keeps none.
    pub burst_ms: u64,
    /// Requests on one connection.
    pub requests: u32,
}

/// Where a connection leads and how it is made.
#[derive(Debug, Clone, Copy)]
pub struct Target<'t> {
    /// The endpoint.
    pub endpoint: &'t Endpoint,
    /// How it is reached.
    pub dial: Dial<'t>,
    /// How long its connections are kept.
    pub limits: PoolLimits,
}

impl Target<'_> {
    /// Whether its connections are one client's own.
    pub(super) fn is_private(&self) -> bool {
        !self.dial.introduction.is_empty()
    }
}

/// The target that a connection was made for. Upstreams that share an endpoint may differ in whom they trust
/// and what they ask for, so that only the same serves again.
#[derive(Debug)]
pub(super) struct Made {
    addr: Address,
    protocol: Protocol,
    tls: Option<(ClientTls, Box<str>)>,
    introduction: Box<[u8]>,
}

impl Made {
    pub(super) fn of(target: &Target<'_>) -> Made {
        let tls = target.dial.tls.map(|tls| (tls.client.clone(), tls.name.into()));
        Made {
            addr: target.endpoint.addr.clone(),
            protocol: target.dial.protocol,
            tls,
            introduction: target.dial.introduction.into(),
        }
    }

    pub(super) fn fits(&self, target: &Target<'_>) -> bool {
        let same_tls = match (&self.tls, &target.dial.tls) {
            (None, None) => true,
            (Some((client, name)), Some(wanted)) => client.is_same(wanted.client) && **name == *wanted.name,
            _ => false,
        };
        same_tls
            && self.protocol == target.dial.protocol
            && *self.introduction == *target.dial.introduction
            && self.addr == target.endpoint.addr
    }

    /// Whether it is one client's own.
    pub(super) fn is_private(&self) -> bool {
        !self.introduction.is_empty()
    }

    /// The address and how to dial it, in the manner of `dial`.
    pub(super) fn redial<'m>(&'m self, dial: &Dial<'static>) -> (&'m Address, Dial<'m>) {
        let tls = self.tls.as_ref().map(|(client, name)| DialTls { client, name });
        (&self.addr, Dial { tls, introduction: &self.introduction, ..*dial })
    }
}
