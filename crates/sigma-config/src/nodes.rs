//! The two forms of an upstream's nodes: a map `host[:port]` → weight, or a
//! list of objects. Both become a list; it is written back as a list.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::resources::Node;

/// The schema of the two forms.
pub(crate) struct NodesForm;

impl JsonSchema for NodesForm {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Nodes".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let weight = u32::json_schema(generator);
        let node = generator.subschema_for::<Node>();
        json_schema!({ "anyOf": [
            { "type": "object", "patternProperties": { ".*": weight } },
            { "type": "array", "items": node },
        ] })
    }
}

pub(crate) fn serialize<S: Serializer>(nodes: &[Node], serializer: S) -> Result<S::Ok, S::Error> {
    nodes.serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<[Node]>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Weights(Map<String, Value>),
        List(Vec<Node>),
    }
    let invalid = serde::de::Error::custom::<String>;
    let weights = match Form::deserialize(deserializer)? {
        Form::List(nodes) => {
            let split = |node: Node| {
                let (host, port) = split_node(&node.host, node.port).map_err(invalid)?;
                Ok(Node { host: host.into(), port, ..node })
            };
            return nodes.into_iter().map(split).collect();
        }
        Form::Weights(weights) => weights,
    };
    let node = |(key, weight): (String, Value)| {
        let weight = u32::deserialize(&weight).map_err(serde::de::Error::custom)?;
        let (host, port) = split_address(&key).map_err(invalid)?;
        Ok(Node { host: host.into(), port, weight, ..Node::default() })
    };
    weights.into_iter().map(node).collect()
}

/// Puts brackets around IPv6 addresses. Stores hold some without, from before APISIX refused them;
/// None if there are none.
pub(crate) fn bracketed(nodes: &Value) -> Option<Value> {
    let is_bare = |host: &str| host.parse::<Ipv6Addr>().is_ok() && split_bare(host).is_none();
    let wrapped = |host: &str| if is_bare(host) { format!("[{host}]") } else { host.to_owned() };
    match nodes {
        Value::Object(weights) if weights.keys().any(|key| is_bare(key)) => {
            Some(weights.iter().map(|(key, weight)| (wrapped(key), weight.clone())).collect())
        }
        Value::Array(list) => {
            let host = |node: &Value| node.get("host")?.as_str().filter(|host| is_bare(host)).map(wrapped);
            if !list.iter().any(|node| host(node).is_some()) {
                return None;
            }
            let mut list = list.clone();
            for node in &mut list {
                if let Some(host) = host(node) {
                    node["host"] = host.into();
                }
            }
            Some(Value::Array(list))
        }
        _ => None,
    }
}

/// APISIX's text.
const UNBRACKETED: &str = "invalid configuration: IPv6 address must be enclosed with '[' and ']'";

/// An IPv6 address without brackets and the port behind its last colon, as APISIX reads `::1:1980`.
fn split_bare(text: &str) -> Option<(Ipv6Addr, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    Some((host.parse().ok()?, port))
}

/// The host and the port of a node of a list: a port may stand in the host, if it stands nowhere else.
pub(crate) fn split_node(host: &str, port: Option<u16>) -> Result<(Cow<'_, str>, Option<u16>), String> {
    // An address without brackets is refused in a list, as APISIX does.
    if port.is_some() || host.matches(':').count() > 1 && !host.starts_with('[') {
        return check_host(host).map(|()| (Cow::Borrowed(host), port));
    }
    split_address(host)
}

/// Splits `host[:port]`, `[v6]:port` or `unix:/path`. Brackets stay part of the host, and are put
/// around an address that has a port but none.
pub fn split_address(text: &str) -> Result<(Cow<'_, str>, Option<u16>), String> {
    if text.starts_with("unix:") {
        return match text.strip_prefix("unix:/") {
            Some(path) if !path.is_empty() => Ok((text.into(), None)),
            _ => Err(format!("`{text}` names no absolute path, write unix:/path")),
        };
    }
    if let Some((address, port)) = split_bare(text) {
        return Ok((format!("[{address}]").into(), Some(port)));
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let end = rest.find(']').ok_or_else(|| format!("`{text}` lacks the closing `]`"))? + 2;
            (&text[..end], &text[end..])
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if !host.starts_with('[') && port.matches(':').count() > 1 {
        return Err(UNBRACKETED.to_owned());
    }
    check_host(host)?;
    match port.strip_prefix(':') {
        None if port.is_empty() => Ok((host.into(), None)),
        None => Err(format!("`{text}` has text after `]` that is no port")),
        Some(digits) => match digits.parse::<u16>() {
            Ok(port) if port > 0 && digits.bytes().all(|b| b.is_ascii_digit()) => {
                Ok((host.into(), Some(port)))
            }
            _ => Err(format!("invalid port {digits}")),
        },
    }
}

/// Checks the host of a node: a name, an IPv4 address, or an IPv6 address in brackets.
pub(crate) fn check_host(host: &str) -> Result<(), String> {
    if let Some(path) = host.strip_prefix("unix:") {
        return match path.len() > 1 && path.starts_with('/') {
            true => Ok(()),
            false => Err(format!("`{host}` names no absolute path, write unix:/path")),
        };
    }
    if let Some(inside) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return match inside.parse::<Ipv6Addr>() {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("`{host}` is not an IPv6 address")),
        };
    }
    if host.contains(':') {
        return Err(UNBRACKETED.to_owned());
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    match !host.is_empty() && host.len() <= 253 && host.bytes().all(allowed) {
        true => Ok(()),
        false => Err(format!("`{host}` is not a host name or address")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split() {
        let check = |text: &str, expected: Option<(&str, Option<u16>)>| {
            let split = split_address(text).ok();
            assert_eq!(split.as_ref().map(|(host, port)| (&**host, *port)), expected, "{text}");
        };
        check("127.0.0.1:80", Some(("127.0.0.1", Some(80))));
        check("example.com", Some(("example.com", None)));
        check("[::1]:8080", Some(("[::1]", Some(8080))));
        check("[::1]", Some(("[::1]", None)));
        check("::1:1980", Some(("[::1]", Some(1980))));
        check("2001:db8::1:80", Some(("[2001:db8::1]", Some(80))));
        check("unix:/run/app.sock", Some(("unix:/run/app.sock", None)));
        for bad in [
            "", ":80", "a:0", "a:65536", "a:+1", "a:x", "a:", "::1", "[::1", "[x]:1", "[::1]80", "unix:",
            "unix:/", "unix:a", "a b",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn nodes_of_a_list_are_split() {
        let check = |host: &str, port: Option<u16>, expected: Option<(&str, Option<u16>)>| {
            let split = split_node(host, port).ok();
            assert_eq!(split.as_ref().map(|(host, port)| (&**host, *port)), expected, "{host} {port:?}");
        };
        check("127.0.0.1:1980", None, Some(("127.0.0.1", Some(1980))));
        check("[::1]:80", None, Some(("[::1]", Some(80))));
        check("a", Some(80), Some(("a", Some(80))));
        check("unix:/run/a", None, Some(("unix:/run/a", None)));
        check("127.0.0.1:1980", Some(80), None);
        check("::1", None, None);
        check("::1:1980", None, None);
        check("a:0", None, None);
    }
}
