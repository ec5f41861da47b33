//! Upstreams whose node is the destination that the client has connected to.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use sigma_config::resources::{OriginalDestination, Scheme};
use sigma_http::{Fault, FaultKind};
use sigma_schema::cidr::Cidr;
use sigma_upstream::endpoint::{Endpoint, EndpointSet, LocalSet};
use sigma_upstream::identity::EndpointIds;

use crate::edge::connection::Origin;

/// Networks that a larger network of the configuration does not open: this machine, neighbours on a link, groups, and
/// metadata services of clouds.
const CLOSED: [&str; 11] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/128",
    "::1/128",
    "fd00:ec2::254/128",
    "fe80::/10",
    "ff00::/8",
];

/// The destinations that clients of an upstream may reach.
#[derive(Debug)]
pub(crate) struct Destinations {
    config: OriginalDestination,
    closed: Box<[Cidr]>,
    scheme: Scheme,
    ids: Arc<EndpointIds>,
}

impl Destinations {
    /// Returns the destinations of `config`. Their nodes get identities from `ids`.
    pub(crate) fn new(config: &OriginalDestination, scheme: Scheme, ids: Arc<EndpointIds>) -> Destinations {
        let closed = CLOSED.iter().filter_map(|network| network.parse().ok()).collect();
        Destinations { config: config.clone(), closed, scheme, ids }
    }

    /// Returns the node of a client.
    ///
    /// # Errors
    /// Returns an error if the connection has no original destination, or one that is not allowed.
    pub(crate) fn of(&self, origin: &Origin) -> Result<SocketAddr, Fault> {
        let none = "the connection has no original destination: its listener needs `original_destination`";
        let destination = origin.original_destination().ok_or(Fault::new(FaultKind::NoNode, none))?;
        let destination = SocketAddr::new(destination.ip().to_canonical(), destination.port());
        if self.allows(destination) {
            return Ok(destination);
        }
        let closed = "`original_destination` of the upstream does not allow the destination of the client";
        Err(Fault::new(FaultKind::NoNode, closed))
    }

    fn allows(&self, destination: SocketAddr) -> bool {
        let (ip, port) = (destination.ip(), destination.port());
        let ports = &self.config.ports;
        let is_port = port > 0 && (ports.is_empty() || ports.iter().any(|range| range.contains(port)));
        is_port && self.config.networks.iter().any(|network| network.contains(ip) && self.opens(network, ip))
    }

    /// Returns true if a network that contains an address opens it: a closed network needs one within it.
    fn opens(&self, network: &Cidr, ip: IpAddr) -> bool {
        self.closed.iter().all(|closed| !closed.contains(ip) || network.prefix() >= closed.prefix())
    }
}

/// The most nodes of [`ChosenNodes`].
const CHOSEN_MAX: usize = 1_000;

/// The nodes that the clients of a worker have chosen last. While a node is here, its connections are pooled.
#[derive(Debug, Default)]
pub(crate) struct ChosenNodes {
    nodes: HashMap<SocketAddr, ChosenNode>,
    /// How often a node was chosen.
    choices: u64,
}

#[derive(Debug)]
struct ChosenNode {
    /// The node alone.
    set: LocalSet,
    /// The number of its last choice.
    last: u64,
}

impl ChosenNodes {
    /// Returns a set of the node at `addr` alone. If there are too many nodes, the least recently chosen one is
    /// forgotten.
    pub(crate) fn node(&mut self, addr: SocketAddr, destinations: &Destinations) -> LocalSet {
        self.choices += 1;
        let last = self.choices;
        if let Some(known) = self.nodes.get_mut(&addr) {
            known.last = last;
            return Rc::clone(&known.set);
        }
        if self.nodes.len() >= CHOSEN_MAX
            && let Some(oldest) = self.nodes.iter().min_by_key(|(_, node)| node.last).map(|(addr, _)| *addr)
        {
            self.nodes.remove(&oldest);
        }
        let lease =
            destinations.ids.lease(destinations.scheme, &addr.ip().to_string(), addr.port(), Some(addr.ip()));
        let set = Rc::new(Arc::new(EndpointSet::new(vec![Endpoint::chosen(addr, lease)], Arc::default())));
        self.nodes.insert(addr, ChosenNode { set: Rc::clone(&set), last });
        set
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sigma_net::Peer;
    use sigma_observe::date::Clock;

    use super::*;

    fn origin(local: &str, is_redirected: bool) -> Origin {
        let local = Some(local.parse().expect("an address"));
        Origin { is_redirected, ..Origin::new(Peer::Unix, local, 0, &Clock::new(0)) }
    }

    fn destinations(config: &Value) -> Destinations {
        let config = serde_json::from_value(config.clone()).expect("destinations");
        Destinations::new(&config, Scheme::Http, Arc::default())
    }

    fn is_allowed(config: &Value, destination: &str) -> bool {
        destinations(config).of(&origin(destination, true)).is_ok()
    }

    #[test]
    fn networks_and_ports_are_allowed() {
        let config = json!({"networks": ["10.0.0.0/8", "2001:db8::/32"], "ports": [443, "8000-8099"]});
        for (destination, expected) in [
            ("10.1.2.3:443", true),
            ("10.1.2.3:8099", true),
            ("10.1.2.3:8100", false),
            ("11.0.0.1:443", false),
            ("[2001:db8::1]:8000", true),
            ("[2001:db9::1]:8000", false),
            ("[::ffff:10.1.2.3]:443", true),
        ] {
            assert_eq!(is_allowed(&config, destination), expected, "{destination}");
        }
        assert!(
            is_allowed(&json!({"networks": ["0.0.0.0/0"]}), "203.0.113.1:1"),
            "all ports without `ports`"
        );
        assert!(!is_allowed(&json!({"networks": ["0.0.0.0/0"]}), "203.0.113.1:0"));
    }

    #[test]
    fn closed_networks_need_their_own_entry() {
        assert!(CLOSED.iter().all(|network| network.parse::<Cidr>().is_ok()));
        let wide = json!({"networks": ["0.0.0.0/0", "::/0"]});
        let open = json!({"networks": ["0.0.0.0/0", "127.0.0.0/8", "169.254.169.254/32", "::1/128"]});
        for (destination, by_open) in [
            ("127.0.0.1:80", true),
            ("[::ffff:127.0.0.1]:80", true),
            ("169.254.169.254:80", true),
            ("169.254.1.1:80", false),
            ("[::1]:80", true),
            ("[fe80::1]:80", false),
            ("[fd00:ec2::254]:80", false),
            ("168.63.129.16:80", false),
            ("0.0.0.0:80", false),
            ("224.0.0.1:80", false),
        ] {
            assert_eq!(
                (is_allowed(&wide, destination), is_allowed(&open, destination)),
                (false, by_open),
                "{destination}"
            );
        }
        assert!(!is_allowed(&json!({"networks": ["126.0.0.0/7"]}), "127.0.0.1:80"), "a larger network");
    }

    #[test]
    fn connection_without_a_redirection_is_refused() {
        let destinations = destinations(&json!({"networks": ["10.0.0.0/8"]}));
        let refused = destinations.of(&origin("10.0.0.1:80", false)).expect_err("a refusal");
        assert!(refused.reason.contains("has no original destination"), "{refused}");
    }

    #[test]
    fn nodes_chosen_last_keep_their_identity() {
        let destinations = destinations(&json!({"networks": ["10.0.0.0/8"]}));
        let mut chosen = ChosenNodes::default();
        let addr = |n: usize| SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 80));
        let id = |chosen: &mut ChosenNodes, n| chosen.node(addr(n), &destinations).endpoints[0].id();
        let first = [0, 1].map(|n| id(&mut chosen, n));
        for n in 2..CHOSEN_MAX {
            id(&mut chosen, n);
        }
        assert_eq!(id(&mut chosen, 0), first[0]);
        id(&mut chosen, CHOSEN_MAX);
        assert_eq!((chosen.nodes.len(), destinations.ids.live()), (CHOSEN_MAX, CHOSEN_MAX));
        assert_eq!(id(&mut chosen, 0), first[0], "chosen after the other");
        assert_ne!(id(&mut chosen, 1), first[1], "forgotten, and chosen anew");
    }
}
