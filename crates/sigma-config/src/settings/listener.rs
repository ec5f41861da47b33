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
    pub tls: Option<crate::tls::ListenerTls>,
    /// HTTP/3 on the UDP port with the same number: `true` or a table. It needs `tls`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http3: Option<super::Http3>,
    /// The PROXY protocol of connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<crate::tls::ListenerProxyProtocol>,
}

impl Listener {
    /// Returns its TLS settings, or None if its connections are not encrypted.
    #[must_use]
    pub fn over_tls(&self) -> Option<Cow<'_, crate::tls::ListenerTls>> {
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
            shared: false,
            name: None,
            stream: None,
            tls: None,
            http3: None,
            proxy_protocol: None,
        }
    }
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
