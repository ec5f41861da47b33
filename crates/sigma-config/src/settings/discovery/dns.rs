//! Settings of DNS as a service registry.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::settings::dns::NameServer;
use sigma_schema::node_address::split_address;

/// DNS as a service registry: set one of `servers` and `resolv_conf`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DnsDiscovery {
    /// Name servers, `ip` or `ip:port`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(min = 1))]
    pub servers: Vec<NameServer>,
    /// A file in the format of `/etc/resolv.conf` with name servers, search domains and options.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolv_conf: Option<PathBuf>,
    /// Record types in the order of the queries; the first type with records provides the nodes. Unset: SRV, then A and
    /// AAAA together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 5))]
    pub order: Option<Vec<DnsRecords>>,
}

/// A record type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DnsRecords {
    /// The type that provided the nodes last time.
    #[serde(rename = "last")]
    Last,
    /// Services with their ports, weights and priorities.
    #[serde(rename = "SRV")]
    Srv,
    /// IPv4 addresses.
    #[serde(rename = "A")]
    A,
    /// IPv6 addresses.
    #[serde(rename = "AAAA")]
    Aaaa,
    /// Aliases. They are always followed, so this entry causes no query.
    #[serde(rename = "CNAME")]
    Cname,
}

/// Returns the contradictions in `discovery`: place, message and remedy.
pub(crate) fn breaches(discovery: &Map<String, Value>) -> Vec<(String, &'static str, &'static str)> {
    let Some(dns) = discovery.get("dns").and_then(Value::as_object) else { return Vec::new() };
    let mut found = Vec::new();
    match (dns.contains_key("servers"), dns.contains_key("resolv_conf")) {
        (true, true) => {
            let message = "only one of `servers` and `resolv_conf` can be";
            found.push(("dns".to_owned(), message, "keep one of the two"));
        }
        (false, false) => {
            let hint =
                "add servers: [\"10.0.0.2\"], or leave `dns` out to use the servers of the setting `dns`";
            found.push(("dns".to_owned(), "`dns` needs `servers` or `resolv_conf`", hint));
        }
        _ => {}
    }
    let order = dns.get("order").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if order.iter().enumerate().any(|(at, kind)| order[..at].contains(kind)) {
        found.push(("dns.order".to_owned(), "a record type is listed twice", "list each once"));
    }
    found
}

/// Splits the name and the port of a DNS service: `host` or `host:port`.
///
/// # Errors
/// Returns a sentence if the text does not name a service.
pub fn split_dns_service(text: &str) -> Result<(&str, Option<u16>), String> {
    let (host, port) = split_address(text)?;
    let label = |label: &str| !label.is_empty() && label.len() <= 63;
    let host = &text[..host.len().min(text.len())];
    let name = host.strip_suffix('.').unwrap_or(host);
    if host.starts_with("unix:") || host.starts_with('[') || name.len() > 253 || !name.split('.').all(label) {
        return Err(format!("`{text}` is not a DNS name; write host or host:port"));
    }
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_of_services_are_split() {
        let check = |text: &str, want: Option<(&str, Option<u16>)>| {
            assert_eq!(split_dns_service(text).ok(), want, "{text}");
        };
        check("web.internal", Some(("web.internal", None)));
        check("web.internal.:81", Some(("web.internal.", Some(81))));
        check("_http._tcp.web.internal", Some(("_http._tcp.web.internal", None)));
        for wrong in ["", "web:0", "web:x", "a..b", "unix:/s", "[::1]:80", "web:1:2", &"a".repeat(64)] {
            check(wrong, None);
        }
    }

    #[test]
    fn one_source_of_name_servers() {
        let check = |dns: Value, want: &[&str]| {
            let discovery = json!({ "dns": dns });
            let found = breaches(discovery.as_object().expect("an object"));
            let places: Vec<&str> = found.iter().map(|found| &*found.0).collect();
            assert_eq!(places, want, "{discovery}");
        };
        check(json!({ "servers": ["10.0.0.2"] }), &[]);
        check(json!({ "resolv_conf": "/r", "order": ["last", "A"] }), &[]);
        check(json!({}), &["dns"]);
        check(json!({ "servers": ["10.0.0.2"], "resolv_conf": "/r" }), &["dns"]);
        check(json!({ "resolv_conf": "/r", "order": ["A", "A"] }), &["dns.order"]);
    }
}
