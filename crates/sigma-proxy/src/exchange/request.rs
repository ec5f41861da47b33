//! A request as conditions and templates see it: variables by name.

use std::borrow::Cow;
use std::io::Write;
use std::net::IpAddr;

use sigma_config::Config;
use sigma_config::expr::{VarName, VarValue, Variables};
use sigma_http::{HeaderId, Method, RequestHead};
use sigma_net::Peer;
use sigma_plugin::variables::{argument, cookie, host_name, joined};

use crate::downstream::Origin;
use crate::route::normalize::NormalPath;
use crate::route::{Explanation, Request};
use crate::snapshot::Snapshot;

/// A peer's address as text, formatted once per use on the stack.
pub(crate) struct PeerText {
    bytes: [u8; 46],
    len: usize,
}

impl PeerText {
    /// `unix:` for a peer without an address, as nginx shows it.
    pub(crate) fn new(peer: Peer) -> PeerText {
        let mut text = PeerText { bytes: [0; 46], len: 0 };
        let mut room = &mut text.bytes[..];
        // The longest IPv6 text is 45 bytes.
        let _ = match peer {
            Peer::Ip(addr) => write!(room, "{}", addr.ip()),
            Peer::Unix => write!(room, "unix:"),
        };
        let left = room.len();
        text.len = text.bytes.len() - left;
        text
    }

    /// An address that is not the peer's own.
    pub(crate) fn of_addr(addr: IpAddr) -> PeerText {
        PeerText::new(Peer::Ip((addr, 0).into()))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A request before or while it is routed.
pub(super) struct RequestView<'r> {
    pub(super) head: &'r RequestHead,
    path: &'r NormalPath<'r>,
    host: Cow<'r, [u8]>,
    origin: Origin,
}

impl<'r> RequestView<'r> {
    pub(super) fn new(head: &'r RequestHead, path: &'r NormalPath<'r>, origin: Origin) -> RequestView<'r> {
        RequestView { head, path, host: host_name(head.authority()), origin }
    }
}

impl Request for RequestView<'_> {
    fn method(&self) -> Method {
        self.head.method
    }

    fn path(&self) -> &[u8] {
        self.path.matched()
    }

    fn host(&self) -> &[u8] {
        if self.host.is_empty() { b"_" } else { &self.host }
    }

    fn raw_host(&self) -> &[u8] {
        self.head.authority()
    }

    fn remote_addr(&self) -> Option<IpAddr> {
        self.origin.peer.ip()
    }

    fn listener(&self) -> u16 {
        self.origin.listener
    }

    fn content_type(&self) -> Option<&[u8]> {
        self.head.headers.get(HeaderId::ContentType)
    }

    fn accept(&self) -> Option<&[u8]> {
        self.head.headers.get(HeaderId::Accept)
    }

    fn variables(&self) -> &dyn Variables {
        self
    }
}

impl Variables for RequestView<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        let text = |bytes: &[u8]| Some(VarValue::Text(Cow::Owned(bytes.to_vec())));
        let number = |n: u16| Some(VarValue::Text(Cow::Owned(n.to_string().into_bytes())));
        match name {
            VarName::Method => Some(VarValue::Text(Cow::Borrowed(self.head.method_token()))),
            VarName::Uri => Some(VarValue::Text(Cow::Borrowed(&self.path.uri))),
            VarName::RequestUri => {
                let mut uri = self.path.uri.to_vec();
                if let Some(query) = self.head.query() {
                    uri.push(b'?');
                    uri.extend_from_slice(query);
                }
                Some(VarValue::Text(Cow::Owned(uri)))
            }
            VarName::RealRequestUri => Some(VarValue::Text(Cow::Borrowed(self.head.path_and_query()))),
            VarName::Args => self.head.query().map(|q| VarValue::Text(Cow::Borrowed(q))),
            VarName::IsArgs => self.head.query().map(|_| VarValue::Text(Cow::Borrowed(b"?"))),
            VarName::Host => Some(VarValue::Text(Cow::Borrowed(Request::host(self)))),
            VarName::Scheme => Some(VarValue::Text(Cow::Borrowed(b"http"))),
            VarName::RemoteAddr | VarName::RealipRemoteAddr => {
                text(PeerText::new(self.origin.peer).as_bytes())
            }
            VarName::RemotePort => match self.origin.peer {
                Peer::Ip(addr) => number(addr.port()),
                Peer::Unix => None,
            },
            VarName::ServerAddr => text(self.origin.local?.ip().to_canonical().to_string().as_bytes()),
            VarName::ServerPort => number(self.origin.local_port()),
            VarName::ServerProtocol => {
                Some(VarValue::Text(Cow::Borrowed(self.head.version.as_str().as_bytes())))
            }
            VarName::Arg(name) => argument(self.head.query()?, name),
            VarName::Cookie(name) => {
                cookie(&self.head.headers, name).map(|v| VarValue::Text(Cow::Borrowed(v)))
            }
            VarName::Http(name) => joined(&self.head.headers, name).map(VarValue::Text),
            VarName::Hostname
            | VarName::RequestId
            | VarName::RouteId
            | VarName::RouteName
            | VarName::ServiceId
            | VarName::ServiceName
            | VarName::ConsumerName
            | VarName::UriParam(_)
            | VarName::Other(_) => None,
        }
    }
}

/// Why each route does or does not serve the request with this head.
///
/// # Errors
/// The path of its target is invalid.
pub(crate) fn explain(
    head: &RequestHead,
    snapshot: &Snapshot,
    config: &Config,
) -> Result<Vec<(String, Explanation)>, &'static str> {
    let path = super::normal_path(head, snapshot).map_err(|fault| fault.reason)?;
    let peer = Peer::Ip(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
    let origin = Origin { peer, local: None, listener: 0, connection: 0 };
    Ok(snapshot.explain(config, &RequestView::new(head, &path, origin)))
}

/// The number of the route for the request with this head.
#[cfg(test)]
pub(crate) fn find(snapshot: &Snapshot, head: &RequestHead) -> Option<u32> {
    let path = super::normal_path(head, snapshot).ok()?;
    let peer = Peer::Ip(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
    let origin = Origin { peer, local: None, listener: 0, connection: 0 };
    match snapshot.router.find(&RequestView::new(head, &path, origin), &mut Default::default()) {
        crate::route::Outcome::Route(number) => Some(number),
        _ => None,
    }
}
