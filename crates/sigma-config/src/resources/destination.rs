//! Upstreams whose node is the destination that the client has connected to, before a redirection of the kernel.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sigma_schema::cidr::Cidr;
use sigma_schema::forms::CidrText;

/// The destinations that clients may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OriginalDestination {
    /// The networks. Loopback, link-local and multicast addresses, and metadata services of clouds, need a network of
    /// their own: `0.0.0.0/0` does not contain them here.
    #[schemars(with = "Vec<CidrText>", length(min = 1, max = 1_000))]
    pub networks: Box<[Cidr]>,
    /// The ports: numbers, or ranges such as `8000-8099`; unset: all.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    #[schemars(with = "Vec<PortsForm>", length(min = 1, max = 1_000))]
    pub ports: Box<[Ports]>,
}

/// A port or a range of ports, as it is written.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes the form")]
enum PortsForm {
    /// One port
    Port(#[schemars(range(min = 1, max = 65_535))] u16),
    /// A range such as `8000-8099`
    Range(#[schemars(regex(pattern = "^[0-9]{1,5}-[0-9]{1,5}$"))] String),
}

/// A range of ports, without 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// Returns true if a port is one of them.
    pub fn contains(&self, port: u16) -> bool {
        RangeInclusive::new(self.first, self.last).contains(&port)
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Ports, String> {
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Ports { first, last }),
            _ => Err(format!("`{text}` is not a range of ports; write one such as 8000-8099")),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl Serialize for Ports {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.first == self.last {
            serializer.serialize_u16(self.first)
        } else {
            serializer.collect_str(self)
        }
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Ports, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Port(u16),
            Range(String),
        }
        let text = match Form::deserialize(deserializer)? {
            Form::Port(port) => port.to_string(),
            Form::Range(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn ports_are_numbers_and_ranges() {
        let read = |value: Value| serde_json::from_value::<Ports>(value);
        let some = read(json!("8000-8002")).expect("a range");
        assert_eq!([7999, 8000, 8002, 8003].map(|port| some.contains(port)), [false, true, true, false]);
        let one = read(json!(443)).expect("a port");
        assert_eq!((one.contains(443), one.contains(444)), (true, false));
        for value in [json!(443), json!("8000-8002"), json!("1-65535")] {
            assert_eq!(serde_json::to_value(read(value.clone()).expect("ports")).expect("JSON"), value);
        }
        for wrong in [
            json!(0),
            json!(65_536),
            json!("2-1"),
            json!("0-5"),
            json!("a"),
            json!("1-"),
            json!(-1),
            json!("1-2-3"),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
