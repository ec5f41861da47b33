//! Where connections of clients are accepted.

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use sigma_schema::address::{ListenAddress, ListenPlace};
use sigma_schema::forms::ListenText;

/// One place where downstream connections are accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// `host:port`, `[v6]:port`, `:port` or `unix:/path`. `:port` takes both IPv4 and IPv6, `[::]:port` IPv6 alone.
    #[schemars(with = "ListenText")]
    pub address: ListenAddress,
    /// Pending connections the kernel keeps per worker.
    #[serde(default = "default_backlog")]
    pub backlog: u32,
    /// Other processes of this user may listen on the same port and take a part of its connections or
    /// datagrams. Without it the start is refused where somebody listens already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// A label that routes of the seed formats are bound to; unset for ordinary listeners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Sessions of another protocol than HTTP, which `stream_routes` serve; unset: HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamListener>,
    /// TLS: `true`, `auto` or a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<crate::tls::ListenerTls>,
    /// The PROXY protocol in front of connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<crate::tls::ListenerProxyProtocol>,
}

impl Listener {
    /// What it does with TLS; None if its connections are not encrypted.
    #[must_use]
    pub fn over_tls(&self) -> Option<Cow<'_, crate::tls::ListenerTls>> {
        let unwritten = || (self.stream == Some(StreamListener::Tls)).then(Cow::default);
        self.tls.as_ref().map(Cow::Borrowed).or_else(unwritten)
    }

    /// The socket that it binds.
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

    /// A plain one.
    #[must_use]
    pub fn new(address: ListenAddress) -> Listener {
        Listener {
            address,
            backlog: default_backlog(),
            shared: false,
            name: None,
            stream: None,
            tls: None,
            proxy_protocol: None,
        }
    }
}

/// What the sessions of a listener begin with that `stream_routes` serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StreamListener {
    /// Bytes over TCP that the gateway does not look at.
    Tcp,
    /// TLS over TCP. The name and the protocols that the client asks for are read first; the route that
    /// they lead to says whether TLS ends here or at the node.
    Tls,
    /// Datagrams over UDP. Those between one client and one address are a session until it idles.
    Udp,
}

/// The index of the listener that was written for the one at `index`: `:port` stands for two of them.
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

/// The port of APISIX and of this gateway when none is named.
const DEFAULT_PORT: u16 = 9080;

/// The listeners of a file that names none: port 9080 on every IPv4 and IPv6 address.
#[must_use]
pub fn default_listeners() -> Vec<Listener> {
    let everywhere = [
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, DEFAULT_PORT)),
    ];
    everywhere.into_iter().map(|address| Listener::new(ListenAddress::Tcp(address))).collect()
}
