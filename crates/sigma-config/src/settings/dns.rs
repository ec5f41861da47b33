//! Settings of the DNS resolver.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The default port of name servers.
const PORT: u16 = 53;

/// The resolver for node names. All but the `wait` times are read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Dns {
    /// Name servers, each an IP address, with a port if it is not 53 (APISIX: `dns_resolver`). Empty: the servers of
    /// `/etc/resolv.conf`.
    #[schemars(with = "Vec<String>")]
    pub servers: Vec<NameServer>,
    /// Whether names are also resolved to IPv6 addresses. Addresses without a route from this machine are ignored if
    /// the name has another address.
    pub ipv6: bool,
    /// Milliseconds that a start, a file reload or an admin call of NiubiX waits for names. An upstream with unresolved
    /// names responds 503 until they are resolved.
    pub start_wait_ms: u32,
    /// Milliseconds that a change of the store waits for names; later changes wait for it.
    pub change_wait_ms: u32,
    /// Shortest time in seconds until records are queried again, even if their TTL is 0.
    #[schemars(range(min = 1, max = 86_400))]
    pub ttl_min_s: u32,
    /// Longest time in seconds until records are queried again, for any TTL.
    #[schemars(range(min = 1, max = 604_800))]
    pub ttl_max_s: u32,
    /// Timeout of one query in milliseconds. A shorter timeout of `/etc/resolv.conf` replaces the default.
    #[schemars(range(min = 100, max = 60_000))]
    pub query_timeout_ms: u32,
}

impl Default for Dns {
    fn default() -> Self {
        Dns {
            servers: Vec::new(),
            ipv6: true,
            start_wait_ms: 5_000,
            change_wait_ms: 1_000,
            ttl_min_s: 1,
            ttl_max_s: 3_600,
            query_timeout_ms: 2_000,
        }
    }
}

/// The address of a name server, with port 53 by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameServer(pub SocketAddr);

impl FromStr for NameServer {
    type Err = String;

    fn from_str(text: &str) -> Result<NameServer, String> {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        let address = match bare.parse::<IpAddr>() {
            Ok(ip) => Some(SocketAddr::new(ip, PORT)),
            Err(_) => text.parse().ok(),
        };
        address
            .filter(|address| address.port() > 0)
            .map(NameServer)
            .ok_or_else(|| format!("`{text}` is not a name server; write an IP address, or one with a port"))
    }
}

impl fmt::Display for NameServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for NameServer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NameServer {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_server_is_an_address_with_or_without_port() {
        let check = |text: &str, want: Option<&str>| {
            let got = text.parse::<NameServer>().ok().map(|server| server.to_string());
            assert_eq!(got.as_deref(), want, "{text}");
        };
        check("10.0.0.2", Some("10.0.0.2:53"));
        check("10.0.0.2:5353", Some("10.0.0.2:5353"));
        check("::1", Some("[::1]:53"));
        check("[::1]:54", Some("[::1]:54"));
        for wrong in ["", "dns.example", "10.0.0.2:", "10.0.0.2:0", "[::1]:99999"] {
            check(wrong, None);
        }
    }
}
