//! The two forms of an upstream's nodes: a map `host[:port]` → weight, or a
//! list of objects. Both become a list; it is written back as a list.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use sigma_schema::node_address::{split_address, split_bare, split_node};

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

/// Puts brackets around IPv6 addresses. Old stores contain addresses without brackets, which APISIX refuses today.
/// Returns None if nothing changes.
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
