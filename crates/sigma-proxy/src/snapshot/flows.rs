//! Stream routes, and which of them serves a session.
//!
//! As in APISIX: routes with a server name come first, the longest name before the others, where the session requests
//! one; then those without, in the order of the store. All conditions have to hold; the first route serves. A route
//! that cannot be served as it was written keeps its rank and serves no session.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use sigma_config::resources::{StreamRoute, StreamTls, StreamUdp};
use sigma_plugin::flow::{FlowFacts, TlsHello};
use sigma_plugin::{Client, FlowChain};
use sigma_schema::cidr::Cidr;

use super::Target;

/// A compiled stream route.
#[derive(Debug)]
pub(crate) struct FlowRoute {
    pub(crate) facts: Arc<FlowFacts>,
    pub(crate) target: Target,
    pub(crate) chain: FlowChain,
    /// The client's TLS ends at the node.
    pub(crate) passes_tls: bool,
    /// The protocols above TLS of which the client offers one, the preferred first.
    pub(crate) alpn: Box<[Vec<u8>]>,
    /// When sessions over UDP end before they idle.
    pub(crate) udp: StreamUdp,
    conditions: Conditions,
}

/// The conditions of a route on the addresses of a session.
#[derive(Debug)]
struct Conditions {
    /// In lower case.
    sni: Option<Box<str>>,
    remote: Option<Cidr>,
    server: Option<Cidr>,
    port: Option<u16>,
}

/// A session that looks for its route.
pub(crate) struct Approach<'a> {
    pub(crate) client: &'a Client,
    pub(crate) asked: Option<&'a TlsHello>,
}

impl FlowRoute {
    /// The route `config`, which leads to `target` past `chain`.
    pub(crate) fn new(config: &StreamRoute, facts: FlowFacts, target: Target, chain: FlowChain) -> FlowRoute {
        FlowRoute {
            facts: Arc::new(facts),
            target,
            chain,
            passes_tls: config.tls == Some(StreamTls::Passthrough),
            alpn: config.alpn.iter().map(|name| name.as_bytes().to_vec()).collect(),
            udp: config.udp.unwrap_or_default(),
            conditions: Conditions {
                sni: config.sni.as_deref().map(|name| name.to_ascii_lowercase().into()),
                remote: config.remote_addr,
                server: config.server_addr,
                port: config.server_port,
            },
        }
    }

    fn serves(&self, approach: &Approach<'_>) -> bool {
        let Conditions { remote, server, port, .. } = &self.conditions;
        let lies_in = |network: &Option<Cidr>, ip: Option<IpAddr>| {
            network.is_none_or(|network| ip.is_some_and(|ip| network.contains(ip)))
        };
        let local = approach.client.local;
        let offers =
            |asked: &TlsHello| asked.alpn.iter().any(|offered| self.alpn.iter().any(|own| own == offered));
        lies_in(remote, approach.client.addr)
            && lies_in(server, local.map(|local| local.ip()))
            && port.is_none_or(|port| local.is_some_and(|local| local.port() == port))
            && (self.alpn.is_empty() || approach.asked.is_some_and(offers))
    }
}

/// All stream routes.
#[derive(Debug, Default)]
pub(crate) struct FlowRouter {
    /// By name; for a pattern by the part after the `*`.
    exact: HashMap<Box<str>, Vec<Arc<FlowRoute>>>,
    beneath: HashMap<Box<str>, Vec<Arc<FlowRoute>>>,
    nameless: Vec<Arc<FlowRoute>>,
}

impl FlowRouter {
    /// The router of these routes, in the order of the store.
    pub(crate) fn new(routes: impl IntoIterator<Item = Arc<FlowRoute>>) -> FlowRouter {
        let mut router = FlowRouter::default();
        for route in routes {
            let place = match route.conditions.sni.as_deref() {
                None => &mut router.nameless,
                Some(name) => match name.strip_prefix('*') {
                    None => router.exact.entry(name.into()).or_default(),
                    Some(beneath) => router.beneath.entry(beneath.into()).or_default(),
                },
            };
            place.push(route);
        }
        router
    }

    /// All of them, in the order of their identities.
    #[cfg(test)]
    pub(crate) fn routes(&self) -> Vec<&Arc<FlowRoute>> {
        let named = self.exact.values().chain(self.beneath.values());
        let mut all: Vec<&Arc<FlowRoute>> = named.chain([&self.nameless]).flatten().collect();
        all.sort_by_key(|route| &route.facts.id);
        all
    }

    /// The route of a session.
    pub(crate) fn find(&self, approach: &Approach<'_>) -> Option<&Arc<FlowRoute>> {
        let name = approach.asked.and_then(|asked| asked.server_name.as_deref()).map(str::to_ascii_lowercase);
        let named = name.iter().flat_map(|name| {
            let dots = name.char_indices().filter(|(at, char)| *char == '.' && *at > 0);
            let beneath = dots.filter_map(|(at, _)| self.beneath.get(&name[at..]));
            self.exact.get(&**name).into_iter().chain(beneath).chain(self.beneath.get(""))
        });
        named.chain([&self.nameless]).flatten().find(|route| route.serves(approach))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(routes: &[(&str, &str)]) -> FlowRouter {
        FlowRouter::new(routes.iter().map(|(id, conditions)| {
            let config: StreamRoute = serde_json::from_str(conditions).expect("a stream route");
            let facts = FlowFacts { id: (*id).into(), ..FlowFacts::default() };
            Arc::new(FlowRoute::new(&config, facts, Target::NoUpstream, FlowChain::default()))
        }))
    }

    /// A session `from`, to a port of 10.0.0.1, that requests a name and protocols.
    fn found(router: &FlowRouter, from: &str, port: u16, asked: Option<(&str, &[&str])>) -> String {
        let client = Client {
            addr: from.parse().ok(),
            local: Some(([10, 0, 0, 1], port).into()),
            ..Client::default()
        };
        let asked = asked.map(|(name, alpn)| TlsHello {
            server_name: (!name.is_empty()).then(|| name.into()),
            alpn: alpn.iter().map(|name| name.as_bytes().to_vec()).collect(),
        });
        let approach = Approach { client: &client, asked: asked.as_ref() };
        router.find(&approach).map_or_else(|| "none".to_owned(), |route| route.facts.id.to_string())
    }

    #[test]
    fn addresses_and_ports_decide_in_the_order_of_the_store() {
        let router = router(&[
            ("port", r#"{"server_port": 5432}"#),
            ("from", r#"{"remote_addr": "192.0.2.0/24"}"#),
            ("to", r#"{"server_addr": "10.0.0.1", "remote_addr": "::1"}"#),
            ("elsewhere", r#"{"server_addr": "10.0.0.2"}"#),
        ]);
        assert_eq!(found(&router, "192.0.2.7", 5432, None), "port");
        assert_eq!(found(&router, "192.0.2.7", 1, None), "from");
        assert_eq!(found(&router, "::ffff:192.0.2.7", 1, None), "from");
        assert_eq!(found(&router, "::1", 1, None), "to");
        assert_eq!(found(&router, "198.51.100.1", 1, None), "none");
        // A peer without an address is in no network.
        assert_eq!(found(&router, "", 1, None), "none");
    }

    #[test]
    fn the_longest_name_comes_first_and_those_without_last() {
        let router = router(&[
            ("any", "{}"),
            ("wide", r#"{"sni": "*.example.com"}"#),
            ("deep", r#"{"sni": "*.a.example.com", "server_port": 1}"#),
            ("exact", r#"{"sni": "A.a.example.com", "server_port": 1}"#),
        ]);
        let asks = |name, port| found(&router, "::1", port, Some((name, &[])));
        assert_eq!(asks("a.a.example.com", 1), "exact");
        assert_eq!(asks("A.A.EXAMPLE.COM", 1), "exact");
        assert_eq!(asks("b.a.example.com", 1), "deep");
        assert_eq!(asks("a.a.example.com", 2), "wide");
        assert_eq!(asks("x.y.z.example.com", 1), "wide");
        // The pattern is for names beneath, as everywhere.
        assert_eq!(asks("example.com", 1), "any");
        assert_eq!(asks(".example.com", 1), "any");
        assert_eq!(asks("", 1), "any");
        assert_eq!(found(&router, "::1", 1, None), "any");
    }

    #[test]
    fn protocols_are_a_condition() {
        let router = router(&[("h2", r#"{"alpn": ["h2", "x"]}"#), ("rest", r#"{"sni": "a.test"}"#)]);
        assert_eq!(found(&router, "::1", 1, Some(("", &["http/1.1", "x"]))), "h2");
        assert_eq!(found(&router, "::1", 1, Some(("a.test", &["h2"]))), "rest");
        assert_eq!(found(&router, "::1", 1, Some(("", &["http/1.1"]))), "none");
        assert_eq!(found(&router, "::1", 1, None), "none");
    }
}
