//! Lists of `allow` and `deny` as one set of networks: the first match wins, the rest is allowed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};

/// Consecutive addresses of one family, as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AddressRange {
    first: u128,
    /// Included.
    last: u128,
}

/// Ranges in order.
type Ranges = Vec<AddressRange>;

/// Addresses of one family.
#[derive(Debug, Clone, Default)]
struct Family {
    allowed: Ranges,
    denied: Ranges,
}

/// The rules read so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Addresses {
    v4: Family,
    v6: Family,
}

impl Addresses {
    /// Adds a rule; returns whether its address could be read.
    pub(super) fn add(&mut self, is_allowed: bool, text: &str) -> bool {
        if text == "all" {
            self.v4.add(is_allowed, AddressRange { first: 0, last: u128::from(u32::MAX) });
            self.v6.add(is_allowed, AddressRange { first: 0, last: u128::MAX });
            return true;
        }
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, length.parse::<u32>().ok()),
            None => (text, Some(128)),
        };
        let (Ok(address), Some(length)) = (address.parse::<IpAddr>(), length) else { return false };
        match address {
            IpAddr::V4(address) => self.v4.add(is_allowed, range(u128::from(u32::from(address)), 32, length)),
            IpAddr::V6(address) => self.v6.add(is_allowed, range(u128::from(address), 128, length)),
        }
        true
    }

    /// Returns the allowed networks.
    pub(super) fn allowed(&self) -> Vec<String> {
        let v4 = self.v4.rest_denied(u128::from(u32::MAX));
        let v6 = self.v6.rest_denied(u128::MAX);
        let mut networks: Vec<String> = v4.iter().flat_map(|range| networks(*range, 32)).collect();
        networks.extend(v6.iter().flat_map(|range| networks_of_v6(*range)));
        networks
    }

    /// Returns the configuration of ip-restriction; None if all addresses are allowed.
    pub(super) fn plugin(&self) -> Option<Value> {
        let mut denied: Vec<String> =
            merged(&self.v4.denied).iter().flat_map(|range| networks(*range, 32)).collect();
        denied.extend(merged(&self.v6.denied).iter().flat_map(|range| networks_of_v6(*range)));
        if denied.is_empty() {
            return None;
        }
        let allowed = self.allowed();
        match allowed.is_empty() || denied.len() < allowed.len() {
            true => Some(json!({"blacklist": denied})),
            false => Some(json!({"whitelist": allowed})),
        }
    }
}

impl Family {
    /// Adds the part of a range that no rule before has.
    fn add(&mut self, is_allowed: bool, range: AddressRange) {
        let known: Ranges = self.allowed.iter().chain(&self.denied).copied().collect();
        let free = without(range, &known);
        if is_allowed { self.allowed.extend(free) } else { self.denied.extend(free) }
    }

    /// Returns everything that is not denied.
    fn rest_denied(&self, last: u128) -> Ranges {
        without(AddressRange { first: 0, last }, &self.denied)
    }
}

/// Returns the networks of a range such as `10.0.0.1-10.0.0.9`.
pub(super) fn of_range(text: &str) -> Option<Vec<String>> {
    let (first, last) = text.split_once('-')?;
    let (first, last): (Ipv4Addr, Ipv4Addr) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let range = AddressRange { first: u128::from(u32::from(first)), last: u128::from(u32::from(last)) };
    (range.first <= range.last).then(|| networks(range, 32))
}

fn range(address: u128, width: u32, length: u32) -> AddressRange {
    let free = width.saturating_sub(length.min(width));
    let mask = if free == 128 { u128::MAX } else { (1u128 << free) - 1 };
    AddressRange { first: address & !mask, last: address | mask }
}

/// Ranges in order, without gaps of no address between them.
fn merged(ranges: &Ranges) -> Ranges {
    let mut sorted = ranges.clone();
    sorted.sort_unstable();
    let mut merged: Ranges = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(before) if before.last == u128::MAX || range.first <= before.last + 1 => {
                before.last = before.last.max(range.last);
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// The parts of a range outside of others.
fn without(range: AddressRange, others: &Ranges) -> Ranges {
    let mut rest = range;
    let mut parts = Vec::new();
    for other in merged(others) {
        if other.last < rest.first || other.first > rest.last {
            continue;
        }
        if other.first > rest.first {
            parts.push(AddressRange { first: rest.first, last: other.first - 1 });
        }
        if other.last >= rest.last {
            return parts;
        }
        rest.first = other.last + 1;
    }
    parts.push(rest);
    parts
}

/// The networks of a range.
fn networks(range: AddressRange, width: u32) -> Vec<String> {
    let AddressRange { first: mut start, last: end } = range;
    let mut networks = Vec::new();
    loop {
        let aligned = if start == 0 { width } else { start.trailing_zeros().min(width) };
        let mut free = aligned;
        while free > 0
            && (free == 128 || start + ((1u128 << free) - 1) > end)
            && !(free == 128 && end == u128::MAX)
        {
            free -= 1;
        }
        let size_less_one = if free == 128 { u128::MAX } else { (1u128 << free) - 1 };
        networks.push(network(start, width, width - free));
        let last = start + size_less_one;
        if last >= end {
            return networks;
        }
        start = last + 1;
    }
}

/// The networks of a range of IPv6, of which `::/0` is the usual one.
fn networks_of_v6(range: AddressRange) -> Vec<String> {
    networks(range, 128)
}

fn network(address: u128, width: u32, length: u32) -> String {
    let address = match width {
        32 => IpAddr::V4(Ipv4Addr::from(u32::try_from(address).unwrap_or(u32::MAX))),
        _ => IpAddr::V6(Ipv6Addr::from(address)),
    };
    if length == width { address.to_string() } else { format!("{address}/{length}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rules: &str, expected: &Value) {
        let mut addresses = Addresses::default();
        for rule in rules.split(';') {
            let (word, address) = rule.trim().split_once(' ').expect("a rule");
            assert!(addresses.add(word == "allow", address), "{rule}");
        }
        assert_eq!(addresses.plugin().unwrap_or_default(), *expected, "{rules}");
    }

    #[test]
    fn the_first_rule_wins() {
        check("deny 127.0.0.9", &json!({"blacklist": ["127.0.0.9"]}));
        check("allow 10.0.0.0/8; deny all", &json!({"whitelist": ["10.0.0.0/8"]}));
        check("deny all", &json!({"blacklist": ["0.0.0.0/0", "::/0"]}));
        check("allow all; deny 10.0.0.1", &Value::Null);
        check(
            "allow 127.0.0.0/30; deny 127.0.0.5; allow 127.0.0.4/31; deny all",
            &json!({"whitelist": ["127.0.0.0/30", "127.0.0.4"]}),
        );
        check("allow ::1; allow 192.168.1.1; deny all", &json!({"whitelist": ["192.168.1.1", "::1"]}));
        check(
            "deny 10.0.0.1; allow 10.0.0.0/30; deny all",
            &json!({"whitelist": ["10.0.0.0", "10.0.0.2/31"]}),
        );
    }

    #[test]
    fn unreadable_addresses_are_not_rules() {
        let mut addresses = Addresses::default();
        for text in ["", "x", "10.0.0.1/x", "10.0.0/8"] {
            assert!(!addresses.add(true, text), "{text}");
        }
    }
}
