//! Addresses that a listener binds.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The address that a listener binds: `ip:port`, `[v6]:port` or `unix:/path`. (`:port` in a file means two listeners,
/// one per address family.)
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// An IPv4 or IPv6 socket address, for TCP unless the listener says otherwise.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

/// A socket that a listener binds. A TCP port and the same UDP port are two sockets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListenPlace {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A UDP port.
    Udp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl ListenPlace {
    /// The address and port, if it has one.
    #[must_use]
    pub fn ip(&self) -> Option<SocketAddr> {
        match self {
            ListenPlace::Tcp(address) | ListenPlace::Udp(address) => Some(*address),
            ListenPlace::Unix(_) => None,
        }
    }
}

impl fmt::Display for ListenPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenPlace::Tcp(address) => write!(f, "{address}"),
            ListenPlace::Udp(address) => write!(f, "{address}/udp"),
            ListenPlace::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The error for a text that is not a listen address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address to listen on; write ip:port, [v6]:port or unix:/path")]
pub struct InvalidListenAddress(String);

impl FromStr for ListenAddress {
    type Err = InvalidListenAddress;

    fn from_str(text: &str) -> Result<Self, InvalidListenAddress> {
        let invalid = || InvalidListenAddress(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            // A relative path would depend on the folder that the process was started in.
            let named = path.len() > 1 && path.starts_with('/');
            return if named { Ok(ListenAddress::Unix(path.into())) } else { Err(invalid()) };
        }
        let address = text.parse().map_err(|_| invalid())?;
        Ok(ListenAddress::Tcp(address))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => write!(f, "{address}"),
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Serialize for ListenAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ListenAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_are_read_and_written() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(
                text.parse::<ListenAddress>().ok().map(|a| a.to_string()).as_deref(),
                expected,
                "{text}"
            );
        };
        check("127.0.0.1:9080", Some("127.0.0.1:9080"));
        check("[::1]:80", Some("[::1]:80"));
        check("unix:/run/sigma.sock", Some("unix:/run/sigma.sock"));
        for bad in [
            "",
            "9080",
            ":9080",
            "localhost:9080",
            "127.0.0.1",
            "127.0.0.1:99999",
            ":x",
            "unix:",
            "unix:/",
            "unix:run",
        ] {
            check(bad, None);
        }
    }
}
