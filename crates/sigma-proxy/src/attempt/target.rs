//! The connection that a request needs to a node: from settings to a target to dial.

use std::num::NonZeroU32;

use sigma_config::resources::ProxyProtocolVersion;
use sigma_http::RequestHead;
use sigma_http::proxy_protocol::{self, Header, Transport};
use sigma_net::Peer;
use sigma_net::tls::is_server_name;
use sigma_plugin::address::NodeAddr;
use sigma_plugin::variables::host_name;
use sigma_upstream::dial::{Dial, DialQuic, DialTls, Owner, Protocol};
use sigma_upstream::endpoint::{Address, Endpoint};
use sigma_upstream::pool::{PoolLimits, Target};

use crate::edge::connection::Origin;
use crate::snapshot::{Snapshot, Upstream};

/// The demands of a request on a connection, besides its upstream.
#[derive(Debug)]
pub(crate) struct Demands {
    /// The timeout of the connection, until a request may be sent.
    pub(crate) connect_ms: u64,
    /// The timeout of the transport alone, if that has less time.
    pub(crate) link_ms: Option<NonZeroU32>,
    /// The connection is to change its protocol.
    pub(crate) upgrade: bool,
    /// The protocol.
    pub(crate) protocol: Protocol,
    /// The name that the node is requested over TLS; empty in cleartext.
    pub(crate) name: Box<str>,
    /// The client whose requests alone the connection serves.
    pub(crate) owner: Owner<Box<[u8]>>,
}

impl Demands {
    /// The demands of a session with `origin` to `upstream`, whose node is requested `name` over TLS.
    pub(crate) fn of_session(upstream: &Upstream, origin: Origin, name: &str) -> Demands {
        let name = if upstream.over_tls().is_some() { name.into() } else { Box::default() };
        Demands {
            connect_ms: 0,
            link_ms: None,
            upgrade: false,
            protocol: upstream.config.scheme.into(),
            name,
            owner: owner(upstream, origin, None),
        }
    }

    /// The demands of a request to `upstream` that has its Host already; `number` belongs to a client connection that
    /// needs connections of its own.
    pub(crate) fn of(
        request: &RequestHead,
        upstream: &Upstream,
        origin: Origin,
        number: Option<u64>,
    ) -> Demands {
        let mut demands = Demands {
            connect_ms: 0,
            link_ms: None,
            upgrade: false,
            protocol: upstream.config.scheme.into(),
            name: Box::default(),
            owner: owner(upstream, origin, number),
        };
        if upstream.over_tls().is_some() {
            let host = request.headers.get(sigma_http::HeaderId::Host).unwrap_or_default();
            demands.name = server_name(host).into();
        }
        demands
    }
}

/// Returns the address of a node, for logs and metrics.
pub(crate) fn node_addr(address: &Address) -> NodeAddr {
    match address {
        Address::Tcp(addr) => NodeAddr::Tcp(*addr),
        Address::Unix(path) => NodeAddr::Unix(path.clone()),
    }
}

/// Returns the owner of connections to `upstream`: a PROXY header names the client to nodes.
fn owner(upstream: &Upstream, origin: Origin, number: Option<u64>) -> Owner<Box<[u8]>> {
    let mut header = Vec::new();
    match (upstream.config.proxy_protocol, number) {
        (Some(version), _) => introduce(version, origin, &mut header),
        (None, Some(number)) => return Owner::Numbered(number),
        (None, None) => {}
    }
    Owner::Introduced(header.into())
}

/// Returns the connection to `endpoint` of `upstream` that fits `demands`.
pub(crate) fn target<'t>(
    snapshot: &'t Snapshot,
    upstream: &'t Upstream,
    endpoint: &'t Endpoint,
    demands: &'t Demands,
) -> Target<'t> {
    let tls = upstream.over_tls().map(|tls| {
        // Neither leads anywhere over HTTP/2 or HTTP/3.
        let is_for_http1 = demands.upgrade || demands.protocol == Protocol::Dubbo;
        let client = if is_for_http1 { &tls.upgradable } else { &tls.any };
        let http3 = tls.http3.as_ref().filter(|_| !is_for_http1);
        let quic = http3.map(|http3| DialQuic {
            client: &http3.tls,
            when: http3.when,
            recorded: endpoint.quic_port,
        });
        DialTls { client, name: &demands.name, quic }
    });
    let dial = Dial {
        protocol: demands.protocol,
        timeout_ms: demands.connect_ms,
        link_ms: demands.link_ms,
        limits: &snapshot.dial_limits,
        tls,
        owner: demands.owner.as_ref(),
        linked: None,
    };
    let burst_ms = u64::from(snapshot.settings.timeouts.upstream_burst_ms);
    Target { endpoint, dial, limits: PoolLimits { burst_ms, ..upstream.transport.pool } }
}

/// Returns true if a node can be asked over TLS for the host of `authority`.
pub(crate) fn can_be_named(authority: &[u8]) -> bool {
    is_server_name(&server_name(authority))
}

/// Returns the host that the node is requested, as TLS names it.
fn server_name(authority: &[u8]) -> String {
    let host = host_name(authority);
    let host = host.strip_prefix(b"[").and_then(|host| host.strip_suffix(b"]")).unwrap_or(&host);
    String::from_utf8_lossy(host).into_owned()
}

fn introduce(version: ProxyProtocolVersion, origin: Origin, out: &mut Vec<u8>) {
    let header = match (origin.peer, origin.local) {
        (Peer::Ip(source), Some(destination)) => {
            Header::Ip { source, destination, transport: Transport::Stream }
        }
        _ => Header::Own,
    };
    match version {
        ProxyProtocolVersion::V1 => proxy_protocol::encode_v1(&header, out),
        ProxyProtocolVersion::V2 => proxy_protocol::encode_v2(&header, out),
    }
}
