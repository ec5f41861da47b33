//! The head that a node gets (APISIX: forwarding fields, `pass_host`).

use sigma_config::resources::PassHost;
use sigma_http::{HeaderId, Headers, RequestHead};
use sigma_plugin::Context;

use super::{Exchange, PeerText, wants_upgrade};
use crate::snapshot::{Snapshot, Upstream};

impl Exchange<'_, '_> {
    /// Turns the client's fields into those sent upstream, all but Host; returns whether an
    /// upgrade is asked for.
    pub(super) fn prepare_request(&mut self, snapshot: &Snapshot, websocket: bool) -> bool {
        if !self.opened {
            self.sanitize_forwarded(snapshot);
        }
        let client = self.client_text();
        let trusted_peer = self.peer_is_trusted(snapshot);
        let untouched = |id| self.scratch.cx.untouched.contains(&id);
        let tells = [HeaderId::XForwardedFor, HeaderId::XRealIp].map(|id| !untouched(id));
        let head = &mut self.scratch.cx.request;
        let upgrade = websocket && wants_upgrade(head);
        let protocol = if upgrade { head.headers.get(HeaderId::Upgrade).map(<[u8]>::to_vec) } else { None };
        head.headers.remove_hop_by_hop();
        if let Some(protocol) = &protocol {
            head.headers.add(HeaderId::Connection, b"upgrade");
            head.headers.add(HeaderId::Upgrade, protocol);
        }
        let keep_chain = trusted_peer || snapshot.trusted().is_empty();
        let [tells_chain, tells_address] = tells;
        if tells_chain {
            forwarded_for(&mut head.headers, client.as_bytes(), keep_chain, &mut self.scratch.value);
        }
        if tells_address {
            head.headers.set(HeaderId::XRealIp, client.as_bytes());
        }
        upgrade
    }

    fn peer_is_trusted(&self, snapshot: &Snapshot) -> bool {
        self.down.origin().peer.ip().is_some_and(|ip| snapshot.trusted().contains(ip))
    }

    /// The client's address as the node is told it: a plugin may know better than the socket.
    pub(super) fn client_text(&self) -> PeerText {
        let client = &self.scratch.cx.client;
        match client.addr {
            Some(addr) if self.opened => PeerText::of_addr(addr),
            _ => PeerText::new(self.down.origin().peer),
        }
    }

    /// Replaces what the client says of itself in forwarding fields, unless it is trusted. Done
    /// before plugins see the request.
    pub(super) fn sanitize_forwarded(&mut self, snapshot: &Snapshot) {
        let origin = self.down.origin();
        let trusted_peer = self.peer_is_trusted(snapshot);
        let scheme: &[u8] = if self.down.tls().is_some() { b"https" } else { b"http" };
        let head = &mut self.scratch.cx.request;
        if !trusted_peer {
            head.headers.remove(HeaderId::Forwarded);
        }
        self.scratch.value.clear();
        self.scratch.value.extend_from_slice(head.authority());
        let host = &self.scratch.value;
        let trusted = |headers: &Headers, id| trusted_peer && headers.get(id).is_some_and(|v| !v.is_empty());
        if !trusted(&head.headers, HeaderId::XForwardedProto) {
            head.headers.set(HeaderId::XForwardedProto, scheme);
        }
        if !trusted(&head.headers, HeaderId::XForwardedHost) {
            match host.is_empty() {
                // A client of HTTP/1.0 names no host, and then nothing is said of one.
                true => head.headers.remove(HeaderId::XForwardedHost),
                false => head.headers.set(HeaderId::XForwardedHost, host),
            }
        }
        if !trusted(&head.headers, HeaderId::XForwardedPort) {
            match port_of(host) {
                Some(port) => head.headers.set(HeaderId::XForwardedPort, port),
                None => {
                    let mut digits = itoa::Buffer::new();
                    head.headers.set(HeaderId::XForwardedPort, digits.format(origin.local_port()).as_bytes());
                }
            }
        }
    }
}

fn forwarded_for(headers: &mut Headers, peer: &[u8], keep_chain: bool, value: &mut Vec<u8>) {
    if !headers.has(HeaderId::XForwardedFor) {
        headers.add(HeaderId::XForwardedFor, peer);
        return;
    }
    value.clear();
    if keep_chain {
        for part in headers.get_all(HeaderId::XForwardedFor).filter(|part| !part.is_empty()) {
            value.extend_from_slice(part);
            value.extend_from_slice(b", ");
        }
    }
    value.extend_from_slice(peer);
    headers.set(HeaderId::XForwardedFor, value);
}

/// The Host that is sent to whichever node; None where each has its own.
pub(super) fn host_for_all<'h>(cx: &'h Context, upstream: &'h Upstream) -> Option<&'h [u8]> {
    match upstream.pass_host {
        PassHost::Node => None,
        PassHost::Rewrite => Some(upstream.upstream_host.as_bytes()),
        PassHost::Pass => {
            let own = || cx.request.target_authority().or_else(|| cx.request.headers.get(HeaderId::Host));
            cx.host.as_deref().or_else(own)
        }
    }
}

/// Sets Host for one node (APISIX: `pass_host`).
pub(super) fn set_host(head: &mut RequestHead, upstream: &Upstream, node_host: &str) {
    match upstream.pass_host {
        PassHost::Node => head.headers.set(HeaderId::Host, node_host.as_bytes()),
        PassHost::Rewrite => head.headers.set(HeaderId::Host, upstream.upstream_host.as_bytes()),
        PassHost::Pass => {
            // An absolute target says the host whatever the field says (RFC 9112 §3.2.2).
            if let Some(authority) = head.target_authority().map(<[u8]>::to_vec) {
                head.headers.set(HeaderId::Host, &authority);
            } else if !head.headers.has(HeaderId::Host) {
                // An HTTP/1.0 client may leave it out; the node must not miss it.
                head.headers.add(HeaderId::Host, node_host.as_bytes());
            }
        }
    }
}

fn port_of(authority: &[u8]) -> Option<&[u8]> {
    let at = authority.iter().rposition(|b| *b == b':')?;
    let port = &authority[at + 1..];
    (!port.is_empty() && port.iter().all(u8::is_ascii_digit)).then_some(port)
}
