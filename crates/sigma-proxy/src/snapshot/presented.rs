//! The certificates that the gateway shows, for checks of their expiry.

use sigma_net::tls::pem::Pair;

use super::Snapshot;

/// The side that is shown a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// Clients: the gateway is their server.
    Server,
    /// Nodes of upstreams: the gateway is their client.
    Client,
}

impl Side {
    /// Returns the `type` of an ssl.
    pub fn name(self) -> &'static str {
        match self {
            Side::Server => "server",
            Side::Client => "client",
        }
    }
}

/// A certificate that the gateway shows.
#[derive(Debug, Clone)]
pub struct Presented {
    /// The resource that contains it: the key of an ssl or upstream, or `listeners/` and the address of one with
    /// certificates of its own.
    pub place: String,
    /// The side that is shown it.
    pub side: Side,
    /// The certificate, with its chain.
    pub pair: Pair,
}

impl Snapshot {
    /// Returns all certificates that clients and nodes are shown, by their resources. One that several upstreams show
    /// is there once.
    pub fn presented(&self) -> Vec<Presented> {
        let server = |place: String| move |pair| Presented { place: place.clone(), side: Side::Server, pair };
        let mut all: Vec<Presented> = Vec::new();
        for listener in self.listeners.iter() {
            if let Some(own) = listener.tls.as_ref().and_then(|tls| tls.own.as_ref()) {
                all.extend(own.pairs().map(server(format!("listeners/{}", listener.place))));
            }
        }
        for (id, identity) in self.certificates.by_id() {
            all.extend(identity.pairs().map(server(format!("ssls/{id}"))));
        }
        let to_nodes = self.upstreams().filter_map(|upstream| {
            let (pair, ssl) = upstream.transport.tls.as_ref()?.shown()?;
            let place = ssl.map_or_else(|| upstream.key.clone(), |ssl| format!("ssls/{}", ssl.id));
            Some(Presented { place, side: Side::Client, pair: pair.clone() })
        });
        all.extend(to_nodes);
        all.sort_by(|one, other| (&one.place, one.side).cmp(&(&other.place, other.side)));
        all.dedup_by(|one, other| {
            one.place == other.place && one.side == other.side && one.pair.chain() == other.pair.chain()
        });
        all
    }
}
