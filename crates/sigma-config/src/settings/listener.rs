//! Listeners for client connections.

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use sigma_schema::address::{ListenAddress, ListenPlace};
use sigma_schema::forms::ListenText;

/// A listener for client connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// `host:port`, `[v6]:port`, `:port` or `unix:/path`. `:port` listens on IPv4 and IPv6, `[::]:port` on IPv6 only.
    #[schemars(with = "ListenText")]
    pub address: ListenAddress,
    /// Maximum number of pending connections in the kernel per worker.
    #[serde(default = "default_backlog")]
    pub backlog: u32,
    /// Maximum number of open connections over TCP or a Unix socket, over all workers. Further ones wait in the kernel's
    /// queue (`backlog`), and one in each worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_connections: Option<u32>,
    /// Maximum number of new connections per second, over all workers; after a pause, up to this number at once.
    /// Further ones wait likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_connections_per_second: Option<u32>,
    /// Options of its TCP sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<ListenerTcp>,
    /// Other processes of this user may listen on the same port and take a part of its connections or datagrams. Off:
    /// the start fails if another process already listens.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// A label for routes of the seed formats; unset for ordinary listeners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The protocol of sessions for `stream_routes`; unset: HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamListener>,
    /// TLS: `true`, `auto` or a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<crate::settings::tls::ListenerTls>,
    /// HTTP/3 on the UDP port with the same number: `true` or a table. It needs `tls`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http3: Option<super::Http3>,
    /// Connections come from a redirection of the kernel (`REDIRECT` of iptables or nftables): the address and port that
    /// the client has connected to are those before it. Connections without one are refused. Not with `stream: udp`,
    /// `http3` or `proxy_protocol`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub original_destination: bool,
    /// The PROXY protocol of connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<crate::settings::tls::ListenerProxyProtocol>,
}

impl Listener {
    /// Returns its TLS settings, or None if its connections are not encrypted.
    #[must_use]
    pub fn over_tls(&self) -> Option<Cow<'_, crate::settings::tls::ListenerTls>> {
        let unwritten = || (self.stream == Some(StreamListener::Tls)).then(Cow::default);
        self.tls.as_ref().map(Cow::Borrowed).or_else(unwritten)
    }

    /// Returns the socket that it binds.
    #[must_use]
    pub fn place(&self) -> ListenPlace {
        match &self.address {
            ListenAddress::Tcp(address) if self.stream == Some(StreamListener::Udp) => {
                ListenPlace::Udp(*address)
            }
            ListenAddress::Tcp(address) => ListenPlace::Tcp(*address),
            ListenAddress::Unix(path) => ListenPlace::Unix(path.clone()),
        }
    }

    /// Returns the UDP port of its HTTP/3, if it has one.
    #[must_use]
    pub fn quic_place(&self) -> Option<ListenPlace> {
        match &self.address {
            ListenAddress::Tcp(address) if self.http3.is_some() => Some(ListenPlace::Udp(*address)),
            _ => None,
        }
    }

    /// Creates a listener without options.
    #[must_use]
    pub fn new(address: ListenAddress) -> Listener {
        Listener {
            address,
            backlog: default_backlog(),
            max_connections: None,
            max_connections_per_second: None,
            tcp: None,
            shared: false,
            name: None,
            stream: None,
            tls: None,
            http3: None,
            original_destination: false,
            proxy_protocol: None,
        }
    }
}

/// Options of the TCP sockets of a listener. An unset option keeps the kernel's default, or the value of a socket that
/// another process has handed over.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ListenerTcp {
    /// Seconds without data until the kernel probes the client (`TCP_KEEPIDLE`). Any field of `keepalive_` turns probes
    /// on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32_767))]
    pub keepalive_idle_s: Option<u16>,
    /// Seconds between two probes (`TCP_KEEPINTVL`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32_767))]
    pub keepalive_interval_s: Option<u16>,
    /// Probes without a reply after which the connection is reset (`TCP_KEEPCNT`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 127))]
    pub keepalive_probes: Option<u8>,
    /// Maximum number of connections with data in their first packet (TCP Fast Open, RFC 7413) that wait for the end of
    /// their handshake. Such a packet can be replayed: take it for TLS, or for idempotent requests. It needs bit 2 of
    /// the sysctl `net.ipv4.tcp_fastopen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub fast_open: Option<u16>,
    /// Seconds for which the kernel keeps a connection back until its first data have arrived (`TCP_DEFER_ACCEPT`). Not
    /// for protocols in which the server speaks first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3_600))]
    pub defer_accept_s: Option<u16>,
    /// Milliseconds for which sent data may stay unacknowledged; then the connection is reset (`TCP_USER_TIMEOUT`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub user_timeout_ms: Option<u32>,
}

/// The protocol of sessions for `stream_routes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StreamListener {
    /// Bytes over TCP, not interpreted by the gateway.
    Tcp,
    /// TLS over TCP. The client's server name and protocols are read first; their route decides whether TLS ends at the
    /// gateway or at the node.
    Tls,
    /// Datagrams over UDP. The datagrams between a client and an address are a session until it is idle.
    Udp,
}

/// Returns the index of the configured listener for the listener at `index`: `:port` creates two.
#[must_use]
pub fn written_listener(listeners: &[Listener], index: usize) -> usize {
    let Some(second) = listeners.get(index) else { return index };
    let ListenAddress::Tcp(SocketAddr::V6(address)) = second.address else { return index };
    if !address.ip().is_unspecified() {
        return index;
    }
    let first = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
    let first = Listener { address: ListenAddress::Tcp(first), ..second.clone() };
    listeners[..index].iter().position(|listener| *listener == first).unwrap_or(index)
}

fn default_backlog() -> u32 {
    1024
}

/// The default port of APISIX and of this gateway.
const DEFAULT_PORT: u16 = 9080;

/// Returns the default listeners: port 9080 on every IPv4 and IPv6 address.
#[must_use]
pub fn default_listeners() -> Vec<Listener> {
    let everywhere = [
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, DEFAULT_PORT)),
    ];
    everywhere.into_iter().map(|address| Listener::new(ListenAddress::Tcp(address))).collect()
}
