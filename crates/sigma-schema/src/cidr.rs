//! Addresses and networks, and sets of them that are looked up in logarithmic time.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The error for a text that is neither an address nor a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an IP address nor a network such as 10.0.0.0/8")]
pub struct InvalidCidr(String);

/// An address or a network. Host bits are cleared; IPv4-mapped IPv6 is kept as IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

/// Returns whether `ip` is the address of one host: not a group, and not the unspecified address, which leads to this
/// machine.
#[must_use]
pub fn is_of_one_host(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    !ip.is_unspecified() && !ip.is_multicast() && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
}

impl Cidr {
    /// Returns whether `ip` lies in this network. An IPv4-mapped IPv6 address counts as IPv4.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.bounds(), ip.to_canonical()) {
            (Bounds::V4(low, high), IpAddr::V4(ip)) => (low..=high).contains(&u32::from(ip)),
            (Bounds::V6(low, high), IpAddr::V6(ip)) => (low..=high).contains(&u128::from(ip)),
            _ => false,
        }
    }

    /// Returns the network of this length around an address. An IPv4-mapped IPv6 address counts as IPv4; a length above
    /// the address's own counts as the own.
    #[must_use]
    pub fn around(ip: IpAddr, prefix: u8) -> Cidr {
        match ip.to_canonical() {
            IpAddr::V4(ip) => masked_v4(ip, prefix.min(32)),
            IpAddr::V6(ip) => {
                let prefix = prefix.min(128);
                Cidr { address: Ipv6Addr::from(u128::from(ip) & !host_bits_v6(prefix)).into(), prefix }
            }
        }
    }

    /// Returns the length of the prefix.
    #[must_use]
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    fn bounds(&self) -> Bounds {
        match self.address {
            IpAddr::V4(ip) => Bounds::V4(u32::from(ip), u32::from(ip) | host_bits_v4(self.prefix)),
            IpAddr::V6(ip) => Bounds::V6(u128::from(ip), u128::from(ip) | host_bits_v6(self.prefix)),
        }
    }
}

enum Bounds {
    V4(u32, u32),
    V6(u128, u128),
}

fn host_bits_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0)
}

fn host_bits_v6(prefix: u8) -> u128 {
    u128::MAX.checked_shr(u32::from(prefix)).unwrap_or(0)
}

impl FromStr for Cidr {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Self, InvalidCidr> {
        let invalid = || InvalidCidr(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let widest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => widest,
            // `parse` alone would take "+8".
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().map_err(|_| invalid())?
            }
            Some(_) => return Err(invalid()),
        };
        if prefix > widest {
            return Err(invalid());
        }
        Ok(match address {
            IpAddr::V4(ip) => masked_v4(ip, prefix),
            IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
                Some(v4) if prefix >= 96 => masked_v4(v4, prefix - 96),
                _ => Cidr { address: Ipv6Addr::from(u128::from(ip) & !host_bits_v6(prefix)).into(), prefix },
            },
        })
    }
}

fn masked_v4(ip: Ipv4Addr, prefix: u8) -> Cidr {
    Cidr { address: Ipv4Addr::from(u32::from(ip) & !host_bits_v4(prefix)).into(), prefix }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = if self.address.is_ipv4() { 32 } else { 128 };
        match self.prefix == widest {
            true => write!(f, "{}", self.address),
            false => write!(f, "{}/{}", self.address, self.prefix),
        }
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A set of addresses and networks. Overlaps are merged, so that a lookup is one binary search.
#[derive(Debug, Clone, Default)]
pub struct CidrSet {
    /// The entries as written, for serialisation.
    listed: Vec<Cidr>,
    /// Disjoint inclusive ranges in ascending order.
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl CidrSet {
    /// The empty set.
    pub const EMPTY: CidrSet = CidrSet { listed: Vec::new(), v4: Vec::new(), v6: Vec::new() };

    /// Returns whether `ip` lies in one of the networks. An IPv4-mapped IPv6 address counts as IPv4.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        match ip.to_canonical() {
            IpAddr::V4(ip) => within(&self.v4, u32::from(ip)),
            IpAddr::V6(ip) => within(&self.v6, u128::from(ip)),
        }
    }

    /// Returns whether the set has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Returns the entries in the order they were written.
    #[must_use]
    pub fn as_slice(&self) -> &[Cidr] {
        &self.listed
    }
}

impl PartialEq for CidrSet {
    fn eq(&self, other: &Self) -> bool {
        self.listed == other.listed
    }
}

impl Eq for CidrSet {}

impl FromIterator<Cidr> for CidrSet {
    fn from_iter<I: IntoIterator<Item = Cidr>>(networks: I) -> Self {
        let listed: Vec<Cidr> = networks.into_iter().collect();
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in &listed {
            match network.bounds() {
                Bounds::V4(low, high) => v4.push((low, high)),
                Bounds::V6(low, high) => v6.push((low, high)),
            }
        }
        CidrSet { listed, v4: merged(v4), v6: merged(v6) }
    }
}

fn within<T: Ord + Copy>(ranges: &[(T, T)], ip: T) -> bool {
    let after = ranges.partition_point(|(low, _)| *low <= ip);
    after > 0 && ip <= ranges[after - 1].1
}

fn merged<T: Ord + Copy>(mut ranges: Vec<(T, T)>) -> Vec<(T, T)> {
    ranges.sort_unstable();
    let mut disjoint: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (low, high) in ranges {
        match disjoint.last_mut() {
            Some(last) if low <= last.1 => last.1 = last.1.max(high),
            _ => disjoint.push((low, high)),
        }
    }
    disjoint
}

impl Serialize for CidrSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.listed)
    }
}

impl<'de> Deserialize<'de> for CidrSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<Cidr>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_strictly_and_written_canonically() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(text.parse::<Cidr>().ok().map(|c| c.to_string()).as_deref(), expected, "{text}");
        };
        check("1.2.3.4", Some("1.2.3.4"));
        check("10.1.2.3/8", Some("10.0.0.0/8"));
        check("0.0.0.0/0", Some("0.0.0.0/0"));
        check("2001:db8::1/32", Some("2001:db8::/32"));
        check("::1", Some("::1"));
        check("::ffff:10.0.0.1/104", Some("10.0.0.0/8"));
        for bad in [
            "",
            "1.2.3",
            "1.2.3.4/33",
            "::/129",
            "1.2.3.4/",
            "1.2.3.4/+8",
            "1.2.3.4/-1",
            "host",
            "1.2.3.4/8/8",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn sets_contain_what_one_of_their_networks_contains() {
        let set: CidrSet = ["10.0.0.0/8", "10.1.0.0/16", "192.168.0.1", "2001:db8::/32", "0.0.0.0/32"]
            .iter()
            .map(|text| text.parse::<Cidr>().unwrap())
            .collect();
        let check = |ip: &str, expected: bool| {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(set.contains(ip), expected, "{ip}");
            assert_eq!(set.as_slice().iter().any(|network| network.contains(ip)), expected, "{ip}");
        };
        for inside in [
            "10.0.0.0",
            "10.255.255.255",
            "10.1.2.3",
            "192.168.0.1",
            "2001:db8::9",
            "::ffff:10.2.3.4",
            "0.0.0.0",
        ] {
            check(inside, true);
        }
        for outside in
            ["9.255.255.255", "11.0.0.0", "192.168.0.2", "2001:db9::", "::", "255.255.255.255", "0.0.0.1"]
        {
            check(outside, false);
        }
        assert!(CidrSet::default().is_empty() && !CidrSet::default().contains("10.0.0.1".parse().unwrap()));
    }
}
