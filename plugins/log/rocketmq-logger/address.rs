//! Where name servers and brokers are: `host:port`.

use std::fmt;

use serde::Deserialize;

use sigma_plugin_kit::server::Host;

/// A host and its port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Address {
    pub(super) host: Host,
    pub(super) port: u16,
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Address, String> {
        let refused = || format!("`{text}` is not `host:port`");
        let (host, port) = text.rsplit_once(':').ok_or_else(refused)?;
        // A colon of an address without brackets would end it anywhere.
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(refused());
        }
        let host = Host::try_from(host.to_owned()).map_err(|_| refused())?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(refused)?;
        Ok(Address { host, port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host.to_string();
        match host.contains(':') {
            true => write!(f, "[{host}]:{}", self.port),
            false => write!(f, "{host}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_written() {
        for text in ["127.0.0.1:9876", "names.test:1", "[::1]:65535"] {
            assert_eq!(
                Address::try_from(text.to_owned()).map(|place| place.to_string()),
                Ok(text.to_owned())
            );
        }
        for text in ["", "h", "h:", "h:0", "h:65536", ":1", "::1:1", "a b:1", "h:x"] {
            let refused = Address::try_from(text.to_owned()).unwrap_err();
            assert_eq!(refused, format!("`{text}` is not `host:port`"));
        }
    }
}
