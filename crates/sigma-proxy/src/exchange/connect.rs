//! CONNECT (RFC 9110 §9.3.6): a tunnel to a target that the client names. A plugin opens it, on a route that allows it.
//!
//! The target becomes the authority of a request for `/`, as it comes in HTTP/2, so that routes select by host and
//! method. No such request reaches a node.

use sigma_http::{Fault, FaultKind, HeaderId, Method};

use super::Exchange;
use super::local_reply::Draft;
use crate::snapshot::Route;

/// The name of the tunnel in a route's `upgrade_protocols`.
const NAME: &str = "connect";

/// The fault of a CONNECT that no route allows.
pub(super) const REFUSED: Fault = Fault::new(FaultKind::MethodRefused, "CONNECT is not served");

/// Returns true if a route allows tunnels.
pub(super) fn is_allowed(route: &Route) -> bool {
    route.upgrades().iter().any(|name| name.eq_ignore_ascii_case(NAME))
}

impl Exchange<'_, '_> {
    /// Returns true if a success would tell the client that its tunnel is open.
    pub(super) fn wants_tunnel(&self) -> bool {
        self.down.asks_tunnel() || self.is_connect()
    }

    /// Returns true if the client requests a tunnel to a target.
    pub(super) fn is_connect(&self) -> bool {
        self.scratch.ctx.request.method == Method::Connect
    }

    /// Prepares the head of a CONNECT for routes and plugins.
    ///
    /// # Errors
    /// Returns an error if the request has a body.
    pub(super) fn begin_connect(&mut self) -> Result<(), Fault> {
        // Bytes after a refusal would be a request otherwise.
        self.down.close_after();
        if !self.down.body_length().is_empty() {
            return Err(Fault::new(FaultKind::BadRequest, "a CONNECT with a body"));
        }
        let head = &mut self.scratch.ctx.request;
        let target = head.path_and_query();
        if target.first() != Some(&b'/') {
            // HTTP/1 has the target in the first line; a different Host does not count (RFC 9112 §3.2.3).
            let target = target.to_vec();
            head.headers.set(HeaderId::Host, &target);
            head.canonicalize(b"/");
        }
        // The gateway itself is the server of this request, so credentials for it are in the field for proxies.
        head.headers.remove(HeaderId::Authorization);
        if let Some(credentials) = head.headers.get(HeaderId::ProxyAuthorization).map(<[u8]>::to_vec) {
            head.headers.remove(HeaderId::ProxyAuthorization);
            head.headers.set(HeaderId::Authorization, &credentials);
        }
        Ok(())
    }

    /// Makes the demand for credentials one of a proxy (RFC 9110 §11.7).
    pub(super) fn demand_as_proxy(&self, draft: &mut Draft) {
        if !self.is_connect() || draft.reply.status != 401 {
            return;
        }
        draft.reply.status = 407;
        for (name, _) in &mut draft.reply.headers {
            if name.eq_ignore_ascii_case("WWW-Authenticate") {
                *name = "Proxy-Authenticate".into();
            }
        }
    }
}
