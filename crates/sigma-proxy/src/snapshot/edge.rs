//! The edge of one configuration: the demands of listeners on a connection, the shown certificates, and the required
//! client certificates.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sigma_config::settings::{Http3, ListenPlace};
use sigma_config::tls::ListenerProxyProtocol;
use sigma_net::tls::{AcceptOptions, Certificates, Demand, ServerIdentity};
use sigma_schema::id::Id;
use sigma_schema::validation::pcre::Pattern;

/// The demands of a listener on a connection before its first request.
#[derive(Debug)]
pub(crate) struct ListenerOptions {
    pub(crate) place: ListenPlace,
    pub(crate) proxy_protocol: Option<ListenerProxyProtocol>,
    pub(crate) tls: Option<TlsOptions>,
    /// Its connections are sessions, which stream routes serve.
    pub(crate) is_stream: bool,
    /// Its connections were redirected by the kernel.
    pub(crate) original_destination: bool,
    /// Its UDP port serves HTTP/3.
    pub(crate) http3: Option<Http3>,
    /// The limits of its connections, over all workers.
    pub(crate) connections: ConnectionLimits,
}

/// The limits of a listener's connections, over all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ConnectionLimits {
    /// Open connections.
    pub(crate) most: Option<u32>,
    /// New connections in a second.
    pub(crate) per_second: Option<u32>,
}

/// TLS on a listener.
#[derive(Debug)]
pub(crate) struct TlsOptions {
    pub(crate) options: AcceptOptions,
    /// The certificates of the listener itself, for names that no ssl has.
    pub(crate) own: Option<Arc<ServerIdentity>>,
}

/// The certificates that clients are shown, by name, and what clients are requested.
#[derive(Debug, Default)]
pub(crate) struct ServerCertificates {
    pub(crate) by_name: Certificates,
    /// Whether any of them requests certificates of clients, or refuses; without, no request is looked at.
    asks: bool,
    /// By the id of the ssl.
    by_id: Box<[(Id, Arc<ServerIdentity>)]>,
    /// The addresses of identities, which are held in `by_id` or `by_name`, whose names are not served without TLS.
    over_tls_only: HashSet<usize>,
    /// The paths that are served without a certificate, by the address of the identity, which is held here.
    exempt: HashMap<usize, (Arc<ServerIdentity>, Exempt)>,
}

/// Paths that are served to clients without a certificate.
pub(crate) type Exempt = Arc<[Pattern]>;

/// One identity, the names that it is shown for, and the paths that it serves without a client certificate.
pub(crate) struct Entry<'e> {
    pub(crate) id: &'e Id,
    pub(crate) names: &'e [Box<str>],
    pub(crate) identity: &'e Arc<ServerIdentity>,
    pub(crate) exempt: Option<&'e Exempt>,
    /// Requests without TLS are refused.
    pub(crate) over_tls_only: bool,
}

impl ServerCertificates {
    /// Makes the table of `entries`. `fallback` is the name that a client which gives none is taken to request.
    pub(crate) fn new(entries: &[Entry<'_>], fallback: Option<&str>) -> ServerCertificates {
        let named =
            entries.iter().flat_map(|entry| entry.names.iter().map(move |name| (name, entry.identity)));
        let exempt = entries.iter().filter_map(|entry| {
            let rule = (Arc::clone(entry.identity), Arc::clone(entry.exempt?));
            Some((place(entry.identity), rule))
        });
        let over_tls_only = entries.iter().filter(|entry| entry.over_tls_only);
        ServerCertificates {
            over_tls_only: over_tls_only.map(|entry| place(entry.identity)).collect(),
            by_name: Certificates::new(named.map(|(name, id)| (&**name, Arc::clone(id))), fallback),
            asks: entries
                .iter()
                .any(|entry| entry.identity.client_auth().is_some() || entry.identity.refuses()),
            by_id: entries.iter().map(|entry| (entry.id.clone(), Arc::clone(entry.identity))).collect(),
            exempt: exempt.collect(),
        }
    }

    /// The identities by the id of their ssl.
    pub(crate) fn by_id(&self) -> &[(Id, Arc<ServerIdentity>)] {
        &self.by_id
    }

    /// Returns true if any request has to be checked.
    pub(crate) fn asks(&self) -> bool {
        self.asks
    }

    /// Returns true if a request for `host` and `path` may come without TLS.
    pub(crate) fn admits_cleartext(&self, host: &str, path: &str) -> bool {
        self.by_name
            .guard(host)
            .is_none_or(|guard| !self.over_tls_only.contains(&place(guard)) || self.exempts(guard, path))
    }

    /// Returns true if `identity` serves `path` to clients without a certificate.
    pub(crate) fn exempts(&self, identity: &Arc<ServerIdentity>, path: &str) -> bool {
        let rule = self.exempt.get(&place(identity));
        rule.is_some_and(|(_, patterns)| patterns.iter().any(|pattern| pattern.is_match(path)))
    }
}

/// Returns the demand on clients: with exemptions, a client without a trusted certificate is admitted, and its
/// requests are checked.
pub(crate) fn demand(has_exemptions: Option<&Exempt>) -> Demand {
    if has_exemptions.is_some() { Demand::Optional } else { Demand::Required }
}

fn place(identity: &Arc<ServerIdentity>) -> usize {
    Arc::as_ptr(identity).addr()
}
