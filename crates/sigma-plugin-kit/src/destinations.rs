//! Hosts that no configuration names: a client or a script chooses them.
//!
//! Names are resolved on the control thread. Each resolved address is checked each time, so a name that changes its
//! address does not lead into a network that is not allowed.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use sigma_net::tls::is_server_name;
use sigma_plugin::Node;
use sigma_schema::cidr::{Cidr, CidrSet};
use tokio::sync::oneshot;

/// Networks for special use (RFC 6890 and its registries): this machine, private and link-local networks, groups, and
/// forms of IPv6 that lead to addresses of IPv4. 168.63.129.16 is public, but the metadata service of each machine in
/// Azure. A setting has to open them.
const SPECIAL: &[&str] = &[
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/96",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "100::/64",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
];

/// The most name lookups of one worker at a time: each may hold a thread for as long as the resolver waits.
const LOOKUPS: usize = 32;

/// The addresses that may be reached: all but those for special use, unless they are allowed.
pub struct Reachable {
    special: CidrSet,
    allowed: CidrSet,
}

impl Reachable {
    /// Returns the addresses outside networks for special use, and those in `allowed`.
    pub fn new(allowed: CidrSet) -> Reachable {
        let special = SPECIAL.iter().filter_map(|network| network.parse::<Cidr>().ok()).collect();
        Reachable { special, allowed }
    }

    /// Returns true if an address was allowed explicitly.
    pub fn allows(&self, ip: IpAddr) -> bool {
        self.allowed.contains(ip.to_canonical())
    }

    /// Returns true if an address is one of them.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.allowed.contains(ip) || !self.special.contains(ip)
    }
}

/// The reason why a host has no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unresolved {
    /// The name is invalid or unknown
    Unknown,
    /// The worker has too many lookups under way
    Busy,
}

/// The lookups of a worker.
#[derive(Debug, Clone, Default)]
pub struct Lookups(Arc<()>);

impl Lookups {
    /// Returns the addresses of a host with this port, at least one.
    ///
    /// # Errors
    /// Returns an error if the host has no address.
    pub async fn addresses(&self, node: &Node, host: &str, port: u16) -> Result<Vec<SocketAddr>, Unresolved> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        if !is_server_name(host) {
            return Err(Unresolved::Unknown);
        }
        if Arc::strong_count(&self.0) > LOOKUPS {
            return Err(Unresolved::Busy);
        }
        let (found, result) = oneshot::channel();
        let (name, place) = (host.to_owned(), Arc::clone(&self.0));
        // A lookup blocks a thread, so it is no work for a worker.
        node.spawn(async move {
            let addresses = tokio::net::lookup_host((name.as_str(), port)).await;
            // The caller may have gone.
            let _ = found.send(addresses.map(Iterator::collect::<Vec<_>>).unwrap_or_default());
            drop(place);
        });
        match result.await {
            Ok(addresses) if !addresses.is_empty() => Ok(addresses),
            _ => Err(Unresolved::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_networks_need_a_setting() {
        assert!(SPECIAL.iter().all(|network| network.parse::<Cidr>().is_ok()));
        let closed = Reachable::new(CidrSet::EMPTY);
        let open = Reachable::new(["127.0.0.0/8".parse().unwrap()].into_iter().collect());
        for (address, is_closed, is_open) in [
            ("127.0.0.1", false, true),
            ("::ffff:127.0.0.1", false, true),
            ("10.1.2.3", false, false),
            ("169.254.169.254", false, false),
            ("168.63.129.16", false, false),
            ("168.63.129.17", true, true),
            ("fd00:ec2::254", false, false),
            ("100.100.100.200", false, false),
            ("192.168.0.1", false, false),
            ("100.64.0.1", false, false),
            ("0.0.0.0", false, false),
            ("255.255.255.255", false, false),
            ("::1", false, false),
            ("::", false, false),
            ("::127.0.0.1", false, false),
            ("fe80::1", false, false),
            ("fd00::1", false, false),
            ("64:ff9b::7f00:1", false, false),
            ("2002:7f00:1::", false, false),
            ("::ffff:10.0.0.1", false, false),
            ("8.8.8.8", true, true),
            ("172.32.0.1", true, true),
            ("2606:4700::1", true, true),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!((closed.contains(address), open.contains(address)), (is_closed, is_open), "{address}");
        }
    }
}
