//! Upstreams whose node is the destination that the client has connected to.

use std::net::{IpAddr, SocketAddr};

use sigma_config::resources::OriginalDestination;
use sigma_http::{Fault, FaultKind};
use sigma_schema::cidr::Cidr;

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

/// The destinations that sessions of an upstream may reach.
#[derive(Debug)]
pub(crate) struct Destinations {
    config: OriginalDestination,
    closed: Box<[Cidr]>,
}

impl Destinations {
    /// Returns the destinations of `config`.
    pub(crate) fn new(config: &OriginalDestination) -> Destinations {
        let closed = CLOSED.iter().filter_map(|network| network.parse().ok()).collect();
        Destinations { config: config.clone(), closed }
    }

    /// Returns the node of a session.
    ///
    /// # Errors
    /// Returns an error if the connection has no original destination, or one that is not allowed.
    pub(crate) fn of(&self, origin: &Origin) -> Result<SocketAddr, Fault> {
        let original = origin.local.filter(|_| origin.is_redirected);
        let none = "the connection has no original destination: its listener needs `original_destination`";
        let destination = original.ok_or(Fault::new(FaultKind::NoNode, none))?;
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

    fn is_allowed(config: &Value, destination: &str) -> bool {
        let config = serde_json::from_value(config.clone()).expect("destinations");
        Destinations::new(&config).of(&origin(destination, true)).is_ok()
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
        let config = serde_json::from_value(json!({"networks": ["10.0.0.0/8"]})).expect("destinations");
        let refused = Destinations::new(&config).of(&origin("10.0.0.1:80", false)).expect_err("a refusal");
        assert!(refused.reason.contains("has no original destination"), "{refused}");
    }
}
