//! A directory and the way to connect to it.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_net::tls::{Authorities, ClientSettings, ClientTls, Trust, is_server_name};
use sigma_schema::Problem;

use crate::cleartext::is_exposed;

/// `host[:port]`, an IPv6 address in brackets.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct DirectoryAddress {
    /// Without brackets.
    host: Box<str>,
    port: Option<u16>,
}

impl TryFrom<String> for DirectoryAddress {
    type Error = String;

    fn try_from(text: String) -> Result<DirectoryAddress, String> {
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(format!("ldap_uri: write the host and port alone, without `{scheme}://`"));
        }
        let (host, port) =
            sigma_schema::node_address::split_address(&text).map_err(|error| format!("ldap_uri: {error}"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if text.starts_with("unix:") || !is_server_name(host) {
            return Err(format!("ldap_uri: `{text}` is neither a name nor an address"));
        }
        Ok(DirectoryAddress { host: host.into(), port })
    }
}

/// The encryption of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// No encryption.
    Cleartext,
    /// From the first byte.
    Tls,
    /// Once the directory has agreed.
    StartTls,
}

/// A directory, and the way to it.
pub struct Directory {
    pub(super) host: Box<str>,
    pub(super) port: u16,
    pub(super) security: Security,
    /// For a connection that is or becomes encrypted.
    pub(super) tls: Option<ClientTls>,
    /// The name of connections that are interchangeable.
    pub(super) pool: Box<str>,
}

impl Directory {
    /// Returns the directory at an address. `pool` separates its connections from those with another name.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if certificates have to be verified and the system trusts no
    /// authority.
    pub fn new(
        place: &DirectoryAddress,
        default_port: u16,
        security: Security,
        verify: bool,
        pool: &str,
    ) -> Result<Directory, String> {
        let tls = match security {
            Security::Cleartext => None,
            Security::Tls | Security::StartTls => {
                let trust = match verify {
                    true => Trust::Authorities(Authorities::system().map_err(|error| error.to_string())?),
                    false => Trust::Anyone,
                };
                let settings = ClientSettings { trust, ..ClientSettings::default() };
                Some(ClientTls::new(settings).map_err(|error| error.to_string())?)
            }
        };
        let (host, port) = (place.host.clone(), place.port.unwrap_or(default_port));
        let pool = format!("{host}\n{port}\n{security:?}\n{verify}\n{pool}").into();
        Ok(Directory { host, port, security, tls, pool })
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Returns the warning about a directory without encryption on another machine; `field` encrypts the connection.
pub fn cleartext(conf: &Value, field: &str) -> Option<Problem> {
    let message = "passwords are sent to the directory in cleartext";
    let problem = || {
        Problem::new(field, "cleartext", message).hint("encrypt the connection unless the network is trusted")
    };
    conf.get("ldap_uri").and_then(Value::as_str).is_some_and(is_exposed).then(problem)
}

/// Returns the warning about a directory whose certificate is not verified.
pub fn unverified(field: &str) -> Problem {
    let message = "another server can impersonate the directory and receive the passwords";
    Problem::new(field, "unverified", message).hint("set it to true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let check = |text: &str, expected: Option<(&str, Option<u16>)>| {
            let place = DirectoryAddress::try_from(text.to_owned());
            assert_eq!(place.as_ref().ok().map(|place| (&*place.host, place.port)), expected, "{text}");
        };
        check("ldap.test", Some(("ldap.test", None)));
        check("127.0.0.1:1389", Some(("127.0.0.1", Some(1389))));
        check("[::1]:389", Some(("::1", Some(389))));
        check("[::1]", Some(("::1", None)));
        for wrong in ["", "ldap://a", "a:b", "a:0", "a:65536", "unix:/a", "a b", "[::1"] {
            check(wrong, None);
        }
    }
}
