//! The address of a registry.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use sigma_schema::node_address::split_address;

/// `http://host:port` or `https://host:port`, without a path, optionally with user and password, which logs do not
/// show. Docker's may be a Unix socket.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistryAddress {
    text: Box<str>,
    base: Box<str>,
    user: Option<(Box<str>, Box<str>)>,
    socket: Option<Box<Path>>,
}

impl RegistryAddress {
    /// Returns the address of a server at a Unix socket.
    pub(super) fn of_socket(path: &Path) -> RegistryAddress {
        RegistryAddress {
            text: format!("unix://{}", path.display()).into(),
            base: "http://localhost".into(),
            user: None,
            socket: Some(path.into()),
        }
    }

    /// Returns the Unix socket of the server, if it has one; then `base` only fills the `Host` field.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Returns scheme, host and port, without user and without a slash at the end.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Returns user and password.
    #[must_use]
    pub fn user(&self) -> Option<(&str, &str)> {
        self.user.as_ref().map(|(user, password)| (&**user, &**password))
    }
}

impl FromStr for RegistryAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<RegistryAddress, String> {
        // The text is not shown, because it may contain a password.
        let wrong = || "an address of a registry is http://host:port or https://host:port".to_owned();
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let scheme = scheme.to_ascii_lowercase();
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, rest),
        };
        let visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let of_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
        if !matches!(scheme.as_str(), "http" | "https")
            || place.is_empty()
            || !place.bytes().all(of_host)
            || split_address(place).is_err()
        {
            return Err(wrong());
        }
        let user = match user {
            Some(user) => {
                let (user, password) = user
                    .split_once(':')
                    .ok_or_else(|| "the part before `@` of an address must be user:password".to_owned())?;
                if user.is_empty() || !visible(user) || !visible(password) {
                    return Err("user and password of an address are visible ASCII".to_owned());
                }
                Some((user.into(), password.into()))
            }
            None => None,
        };
        Ok(RegistryAddress {
            text: text.into(),
            base: format!("{scheme}://{place}").into(),
            user,
            socket: None,
        })
    }
}

impl fmt::Display for RegistryAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.socket.is_some() { &self.text } else { &self.base })
    }
}

impl fmt::Debug for RegistryAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Serialize for RegistryAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RegistryAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for RegistryAddress {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "RegistryAddress".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": 2, "maxLength": 512 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_a_place_and_maybe_a_user() {
        let check = |text: &str, want: Option<(&str, Option<(&str, &str)>)>| {
            let read = text.parse::<RegistryAddress>();
            let got = read.as_ref().ok().map(|address| (address.base(), address.user()));
            assert_eq!(got, want, "{text}");
        };
        check("http://127.0.0.1:8500", Some(("http://127.0.0.1:8500", None)));
        check("https://[::1]:8500", Some(("https://[::1]:8500", None)));
        check("HTTP://eureka", Some(("http://eureka", None)));
        check("http://u:p@s:w@h:1", Some(("http://h:1", Some(("u", "p@s:w")))));
        for wrong in [
            "",
            "h:1",
            "ftp://h:1",
            "http://",
            "http://h:1/",
            "http://h:1/v1",
            "http://h:0",
            "http://h:x",
            "http://h?a",
            "http://u@h:1",
            "http://:p@h:1",
            "http://u:p\n@h:1",
            "unix:///s",
            "http://h\r\n:1",
        ] {
            check(wrong, None);
        }
        assert_eq!(format!("{:?}", "http://u:hush@h:1".parse::<RegistryAddress>()), "Ok(\"http://h:1\")");
    }
}
