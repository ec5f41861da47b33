//! Nodes from registries, with checks of their data.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Value};
use sigma_config::discovery::Registry;
use sigma_config::resources::Node;
use sigma_schema::cidr::is_of_one_host;

/// Returns a node at an address from a registry; None if it is invalid. An address is an IP address or a name, not
/// another form that the configuration allows, such as the path of a socket.
pub(crate) fn node(host: &str, port: Option<u16>, weight: u32) -> Option<Node> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_usable = host.parse::<IpAddr>().map_or_else(|_| is_name(host), is_of_one_host);
    (is_usable && port != Some(0)).then(|| Node { host: host.into(), port, weight, ..Node::default() })
}

fn is_name(host: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            && !label.starts_with('-')
    };
    let name = host.strip_suffix('.').unwrap_or(host);
    // A last label of digits would be read as a part of an address.
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    name.len() <= 253 && name.split('.').all(is_label) && !name.rsplit('.').next().is_none_or(is_number)
}

/// Returns the members of an object of free metadata, unless it is missing.
pub(crate) fn metadata(free: Option<&Value>) -> Option<Box<Map<String, Value>>> {
    let members = free?.as_object()?;
    (!members.is_empty()).then(|| Box::new(members.clone()))
}

/// Parses a number that a registry may write as text.
pub(crate) fn number(value: Option<&Value>) -> Option<u64> {
    match value? {
        Value::String(text) => text.trim().parse().ok(),
        value => value.as_u64(),
    }
}

/// Parses a port that a registry may write as text; None if it is invalid.
pub(crate) fn port(value: Option<&Value>) -> Option<u16> {
    number(value).and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

/// Parses a weight that a registry may write as text.
pub(crate) fn weight(value: Option<&Value>) -> Option<u32> {
    number(value).map(|weight| u32::try_from(weight).unwrap_or(u32::MAX))
}

/// Invalid entries of a response, logged in one line for any number of them.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    count: usize,
    first: String,
    /// The number of entries with a wrong form.
    malformed: usize,
}

impl LeftOut {
    /// Records an entry with a wrong form.
    pub(crate) fn note_malformed(&mut self, entry: &Value) {
        self.note(&entry.to_string());
        self.malformed += 1;
    }

    /// Returns true if a response with `kept` valid entries may be used. A response with malformed entries and no
    /// valid one is not: then the old list stays.
    pub(crate) fn admits(&self, kept: usize) -> bool {
        kept > 0 || self.malformed == 0
    }

    /// Records an entry that is omitted.
    pub(crate) fn note(&mut self, what: &str) {
        if self.count == 0 {
            self.first = what.chars().take(100).collect();
        }
        self.count += 1;
    }

    /// Logs the result.
    pub(crate) fn tell(&self, registry: Registry) {
        let LeftOut { count, first, .. } = self;
        if *count > 0 {
            tracing::warn!(%registry, count, first, "a registry lists an invalid node, which is ignored");
        }
    }
}

/// Returns the published list: each address once, at its first position, and at most `most`.
pub(crate) fn list(service: &str, nodes: Vec<Node>, most: u32) -> Arc<[Node]> {
    let mut seen = HashSet::new();
    let known = nodes.len();
    let mut kept: Vec<Node> =
        nodes.into_iter().filter(|node| seen.insert((node.host.clone(), node.port))).collect();
    if kept.len() > most as usize {
        tracing::warn!(
            service,
            known,
            used = most,
            "a service has more nodes than `discovery.limits.nodes` allows; the rest is ignored"
        );
        kept.truncate(most as usize);
    }
    kept.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts() {
        let check = |host: &str, want: Option<&str>| {
            assert_eq!(node(host, Some(1), 1).as_ref().map(|node| &*node.host), want, "{host:?}");
        };
        check("10.0.0.1", Some("10.0.0.1"));
        check("[2001:db8::1]", Some("2001:db8::1"));
        check("2001:db8::1", Some("2001:db8::1"));
        check("web-1.internal", Some("web-1.internal"));
        check("web_1.internal.", Some("web_1.internal."));
        for wrong in [
            "",
            ".",
            "unix:/run/docker.sock",
            "/run/x",
            "a b",
            "a\nb",
            "a..b",
            "0.0.0.0",
            "::",
            "::ffff:0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "10.0.0.256",
            "web:80",
            "-a",
            "http://h",
            "a/b",
            "é.test",
            "127.1",
        ] {
            check(wrong, None);
        }
        assert_eq!(node("h", Some(0), 1), None);
        assert_eq!(node("h", None, 1).and_then(|node| node.port), None);
    }

    #[test]
    fn invalid_entries_are_counted_and_the_first_is_shown() {
        let mut left_out = LeftOut::default();
        ["x".repeat(1000), "b".to_owned()].iter().for_each(|what| left_out.note(what));
        assert_eq!((left_out.count, left_out.first), (2, "x".repeat(100)));
    }

    #[test]
    fn numbers_may_be_texts() {
        let value = serde_json::json!({ "a": "80", "b": 80, "c": 65536, "d": 0, "e": "x", "f": 1e12 as u64 });
        let ports: Vec<_> = ["a", "b", "c", "d", "e"].map(|name| port(value.get(name))).into();
        assert_eq!(ports, [Some(80), Some(80), None, None, None]);
        assert_eq!(weight(value.get("f")), Some(u32::MAX));
    }

    #[test]
    fn a_list_has_each_address_once_and_a_limit() {
        let nodes = ["a", "b", "a", "c"].map(|host| node(host, Some(1), 1).expect("a node"));
        let hosts =
            |most| list("web", nodes.to_vec(), most).iter().map(|n| n.host.to_string()).collect::<Vec<_>>();
        assert_eq!(hosts(9), ["a", "b", "c"]);
        assert_eq!(hosts(2), ["a", "b"]);
    }
}
