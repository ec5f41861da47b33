//! The request head for a node (APISIX: forwarding fields, `pass_host`).

use std::net::IpAddr;

use sigma_config::resources::PassHost;
use sigma_http::{HeaderId, Headers, RequestHead};
use sigma_plugin::Context;
use sigma_upstream::endpoint::Endpoint;

use super::via::add_via;
use super::{Exchange, PeerText};
use crate::snapshot::{Snapshot, Upstream};

impl Exchange<'_, '_> {
    /// Converts the client's fields to those for the upstream, all but Host.
    pub(super) fn prepare_request(&mut self, snapshot: &Snapshot) {
        let (client_addr, sender_addr) = (self.client_addr(), self.sender_addr());
        let client = PeerText::of(client_addr);
        // Two texts if a trusted proxy sends the client's address in a chain, which is rare.
        let other = (sender_addr != client_addr).then(|| PeerText::of(sender_addr));
        let sender = other.as_ref().unwrap_or(&client);
        let untouched = |id| self.scratch.ctx.untouched.contains(&id);
        let [tells_chain, tells_address] =
            [HeaderId::XForwardedFor, HeaderId::XRealIp].map(|id| !untouched(id));
        let keep_chain = snapshot.trusted().is_empty() || self.peer_is_trusted(snapshot);
        let headers = &mut self.scratch.ctx.request.headers;
        headers.remove_connection_fields();
        if tells_chain {
            forwarded_for(headers, sender.as_bytes(), keep_chain, &mut self.scratch.value);
        }
        if tells_address {
            headers.set_sound(HeaderId::XRealIp, client.as_bytes());
        }
        let version = self.scratch.ctx.request.version;
        add_via(&mut self.scratch.ctx.request.headers, version, snapshot);
    }

    /// Returns the client's address for the node: a plugin may know better than the socket. None for a peer without
    /// one.
    pub(super) fn client_addr(&self) -> Option<IpAddr> {
        match self.scratch.ctx.client.addr {
            // Without plugins, the field is left from an earlier exchange.
            Some(addr) if self.stage.is_guided() => Some(addr),
            _ => self.scratch.told.map(|told| told.addr).or_else(|| self.down.origin().peer.ip()),
        }
    }

    /// Returns the last address for `X-Forwarded-For`: the peer's, if the chain already has the client's.
    fn sender_addr(&self) -> Option<IpAddr> {
        let client = self.client_addr();
        let has_chain = self.scratch.ctx.request.headers.has(HeaderId::XForwardedFor);
        match self.scratch.told {
            Some(told) if has_chain && client == Some(told.addr) => self.down.origin().peer.ip(),
            _ => client,
        }
    }
}

fn forwarded_for(headers: &mut Headers, peer: &[u8], keep_chain: bool, value: &mut Vec<u8>) {
    if !headers.has(HeaderId::XForwardedFor) {
        headers.add_sound(HeaderId::XForwardedFor, peer);
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

/// Returns the Host for every node; None if each has its own.
pub(super) fn host_for_all<'h>(ctx: &'h Context, upstream: &'h Upstream) -> Option<&'h [u8]> {
    match upstream.host.pass {
        PassHost::Node => None,
        PassHost::Rewrite => Some(upstream.host.rewritten.as_bytes()),
        PassHost::Pass => {
            let authority = Some(ctx.request.authority()).filter(|host| !host.is_empty());
            ctx.host.as_deref().or(authority)
        }
    }
}

/// Sets Host for one node (APISIX: `pass_host`).
pub(super) fn set_host(head: &mut RequestHead, upstream: &Upstream, node: &Endpoint) {
    let node_host = &node.host_header;
    match upstream.host.pass {
        PassHost::Node => head.headers.set(HeaderId::Host, node_host.as_bytes()),
        PassHost::Rewrite => head.headers.set(HeaderId::Host, upstream.host.rewritten.as_bytes()),
        PassHost::Pass => {
            // The authority of an absolute target overrides the field (RFC 9112 §3.2.2).
            if let Some(authority) = head.target_authority().map(<[u8]>::to_vec) {
                head.headers.set(HeaderId::Host, &authority);
            } else if head.authority().is_empty() {
                // An HTTP/1.0 client may omit it; the node must get it.
                head.headers.set(HeaderId::Host, node_host.as_bytes());
            }
        }
    }
}
