//! Removal of the fields that a client may not send, before anything else sees the request.
//!
//! Later is too late: routes, conditions and plugins read fields, and a client must neither forge nor remove the
//! fields that plugins and the gateway add.

use std::net::IpAddr;
use std::sync::Arc;

use sigma_config::settings::Underscores;
use sigma_http::header::{hyphenated, is_same_variable};
use sigma_http::{HeaderId, HeaderIds, Headers};
use sigma_plugin::{Chain, Context};

use super::stage::{Stage, chains};
use super::{Exchange, upgrade};
use crate::snapshot::Snapshot;

/// Fields that the gateway or its plugins set for nodes, in lower case, in addition to the fields of [`is_forwarding`].
const OWNED: [&str; 6] = [
    "x-authenticated-groups",
    "x-consumer-username",
    "x-consumer-custom-id",
    "x-consumer-groups",
    "x-credential-identifier",
    "x-request-id",
];

/// Fields that only trusted clients may send. A node that believes fields about a client certificate would believe
/// any identity in them.
const FORGED: HeaderIds = HeaderIds::of(&[
    HeaderId::Forwarded,
    HeaderId::XForwardedClientCert,
    HeaderId::ClientCert,
    HeaderId::ClientCertChain,
]);

impl Exchange<'_, '_> {
    /// Removes the fields that the client may not send.
    pub(super) fn enter(&mut self, snapshot: &Snapshot) {
        let head = &mut self.scratch.ctx.request;
        self.asks_upgrade = upgrade::is_asked_for(head, self.down.body_length());
        head.headers.remove_nominated();
        let drops_all = snapshot.settings.underscores_in_headers == Underscores::Drop;
        head.headers.remove_varied(|name, twin| {
            (drops_all && name.contains(&b'_')) || is_owned(HeaderId::of(twin), twin)
        });
        head.headers.mark_received();
        self.sanitize_forwarded(snapshot);
        self.learn_client_address(snapshot);
    }

    /// Removes the fields that plugins of the active chains set for nodes, and reserves them for these plugins. Without
    /// such plugins it costs a look at each chain.
    pub(super) fn clear_owned(&mut self) {
        let Stage::Guided { merged, .. } = &self.stage else { return };
        let ctx = &mut self.scratch.ctx;
        let chains = chains(&self.view, self.stage.route_number(), merged.as_deref());
        for owned in chains.filter_map(Chain::owned) {
            owned.clear(&mut ctx.request.headers);
            // For trailers, and for plugins that run code from users: they may not set these fields.
            ctx.owned.push(Arc::clone(owned));
        }
    }

    /// Removes the fields that a plugin should have checked and replaced, and has not.
    pub(super) fn clear_judged(&mut self) {
        let Stage::Guided { merged, .. } = &self.stage else { return };
        let headers = &mut self.scratch.ctx.request.headers;
        let chains = chains(&self.view, self.stage.route_number(), merged.as_deref());
        chains.filter_map(Chain::owned).for_each(|owned| owned.clear_judged(headers));
    }

    pub(super) fn peer_is_trusted(&self, snapshot: &Snapshot) -> bool {
        self.down.origin().peer.ip().is_some_and(|ip| snapshot.trusted().contains(ip))
    }

    /// Replaces the forwarding fields of a client that is not trusted.
    fn sanitize_forwarded(&mut self, snapshot: &Snapshot) {
        let origin = self.down.origin();
        let trusted_peer = self.peer_is_trusted(snapshot);
        let scheme: &[u8] = if self.down.tls().is_some() { b"https" } else { b"http" };
        let may_have_trailers = !self.down.body_length().is_empty();
        let Context { request, owned, .. } = &mut self.scratch.ctx;
        let headers = &mut request.headers;
        if !trusted_peer {
            headers.remove_any(FORGED);
            let untrusted = &*snapshot.untrusted;
            headers.remove_any(untrusted.known);
            if untrusted.has_others {
                untrusted.all.clear(headers);
                if may_have_trailers {
                    owned.push(Arc::clone(&untrusted.in_trailers));
                }
            }
            // Without trusted addresses the chain is kept as in APISIX, where only its end is trusted.
            if !snapshot.trusted().is_empty() {
                headers.remove(HeaderId::XForwardedFor);
                headers.remove(HeaderId::XRealIp);
            }
        }
        let head = &mut self.scratch.ctx.request;
        let trusted = |headers: &Headers, id| trusted_peer && headers.get(id).is_some_and(|v| !v.is_empty());
        if !trusted(&head.headers, HeaderId::XForwardedProto) {
            head.headers.set_sound(HeaderId::XForwardedProto, scheme);
        }
        if !trusted(&head.headers, HeaderId::XForwardedHost) {
            head.tell_authority(HeaderId::XForwardedHost);
            // Only HTTP/1.0 may leave it out. Then only the address that the client connected to is known.
            if let Some(local) = origin.local.filter(|_| head.authority().is_empty()) {
                let host = match local.ip().to_canonical() {
                    IpAddr::V4(ip) => ip.to_string(),
                    IpAddr::V6(ip) => format!("[{ip}]"),
                };
                head.headers.set_sound(HeaderId::XForwardedHost, host.as_bytes());
            }
        }
        if !trusted(&head.headers, HeaderId::XForwardedPort) {
            // Not the port of the client's Host, which the client can choose.
            let mut digits = itoa::Buffer::new();
            let port = digits.format(origin.local_port()).as_bytes();
            head.headers.set_sound(HeaderId::XForwardedPort, port);
        }
    }
}

/// Removes from a request's trailers the fields that were removed from its head, those that plugins have set in it,
/// and those that only a head may have: a node that merges both would believe them.
pub(super) fn clear_trailers(trailers: &mut Headers, ctx: &Context) {
    trailers.remove_where(|id, name| {
        let twin = hyphenated(name);
        let by_twin = if id == HeaderId::Other { HeaderId::of(&twin) } else { id };
        let is_added = || ctx.request.headers.added().any(|(_, added)| is_same_variable(added, name));
        is_owned(by_twin, &twin) || is_added()
    });
    ctx.owned.iter().for_each(|owned| owned.clear_trailers(trailers));
}

/// Returns true if clients may not send it in another notation or in trailers: the name is given with `-` for `_` and
/// `.`.
fn is_owned(id: HeaderId, name: &[u8]) -> bool {
    match id {
        HeaderId::Other => OWNED.iter().any(|owned| owned.as_bytes().eq_ignore_ascii_case(name)),
        // A server that treats both notations alike would use it for framing, routing or authorization.
        HeaderId::Host
        | HeaderId::ContentLength
        | HeaderId::TransferEncoding
        | HeaderId::Connection
        | HeaderId::Authorization
        | HeaderId::ProxyAuthorization
        | HeaderId::Proxy
        | HeaderId::Cookie => true,
        id => is_forwarding(id),
    }
}

fn is_forwarding(id: HeaderId) -> bool {
    matches!(
        id,
        HeaderId::Forwarded
            | HeaderId::XForwardedFor
            | HeaderId::XForwardedProto
            | HeaderId::XForwardedHost
            | HeaderId::XForwardedPort
            | HeaderId::XRealIp
            | HeaderId::XForwardedClientCert
            | HeaderId::ClientCert
            | HeaderId::ClientCertChain
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(headers: &Headers) -> Vec<String> {
        headers.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
    }

    #[test]
    fn trailers_cannot_repeat_fields_of_the_gateway() {
        let mut trailers = Headers::default();
        for name in [
            "Grpc-Status",
            "X-Checksum",
            "X-Consumer-Username",
            "x_consumer_username",
            "X-Forwarded-For",
            "x_real_ip",
            "x_forwarded_client_cert",
            "Client-Cert",
            "Authorization",
            "Cookie",
            "X_Other",
            "x.consumer-username",
            "x~consumer!username",
            "x-real+ip",
        ] {
            trailers.append(name, b"1");
        }
        clear_trailers(&mut trailers, &Context::default());
        assert_eq!(names(&trailers), ["Grpc-Status", "X-Checksum", "X_Other"]);
        assert!(!trailers.has(HeaderId::Authorization));
    }

    #[test]
    fn names_in_another_notation_are_owned_too() {
        for name in ["x-consumer-username", "Content-Length", "X-FORWARDED-FOR", "authorization", "x-real-ip"]
        {
            assert!(is_owned(HeaderId::of(name.as_bytes()), name.as_bytes()), "{name}");
        }
        for name in ["x-custom", "user-agent", "x-consumer"] {
            assert!(!is_owned(HeaderId::of(name.as_bytes()), name.as_bytes()), "{name}");
        }
    }
}
