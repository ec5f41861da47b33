//! What objects of Kubernetes say of endpoints.

use serde_json::{Map, Value};
use sigma_config::resources::Node;

use crate::eureka::ZONE;
use crate::node;

/// The label that tells the service of an EndpointSlice.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Which objects are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Endpoints: one object for each service.
    Endpoints,
    /// EndpointSlices: any number for each service.
    Slices,
}

/// What is known of one object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Object {
    /// `namespace/service`.
    pub(super) service: Box<str>,
    /// Each port's name with the endpoints there.
    pub(super) ports: Vec<(Box<str>, Vec<Endpoint>)>,
}

/// One address at one port.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Endpoint {
    pub(super) node: Node,
    /// Else it terminates, and serves meanwhile.
    pub(super) is_ready: bool,
}

/// Namespace and name of an object.
pub(super) fn names(object: &Value) -> Option<(&str, &str)> {
    let metadata = object.get("metadata")?;
    Some((metadata.get("namespace")?.as_str()?, metadata.get("name")?.as_str()?))
}

/// Reads an object; None if it is none, or is of no service.
pub(super) fn read(form: Form, object: &Value, weight: u32) -> Option<Object> {
    let (namespace, name) = names(object)?;
    match form {
        Form::Endpoints => {
            let service = format!("{namespace}/{name}").into();
            Some(Object { service, ports: subsets(object, weight) })
        }
        Form::Slices => {
            let service = object.get("metadata")?.get("labels")?.get(SERVICE_NAME)?.as_str()?;
            let service = format!("{namespace}/{service}").into();
            Some(Object { service, ports: slice(object, weight) })
        }
    }
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The name of a port and its number. A port without a name goes by its target's, else by its number.
fn port(port: &Value) -> Option<(Box<str>, u16)> {
    let number = node::port(port.get("port"))?;
    let text = |name: &str| match port.get(name)? {
        Value::String(text) if !text.is_empty() => Some(text.as_str().into()),
        Value::Number(number) => Some(number.to_string().into()),
        _ => None,
    };
    Some((text("name").or_else(|| text("targetPort")).unwrap_or_else(|| number.to_string().into()), number))
}

fn endpoint(host: &str, port: u16, weight: u32, about: &Value, is_ready: bool) -> Option<Endpoint> {
    let mut metadata = Map::new();
    for (known, name) in [(ZONE, "zone"), ("node", "nodeName")] {
        if let Some(Value::String(text)) = about.get(name) {
            metadata.insert(known.to_owned(), text.as_str().into());
        }
    }
    let metadata = (!metadata.is_empty()).then(|| Box::new(metadata));
    let Some(node) = node::node(host, Some(port), weight) else {
        tracing::warn!(host, "Kubernetes names an address that is none; it is left out");
        return None;
    };
    Some(Endpoint { node: Node { metadata, ..node }, is_ready })
}

fn subsets(object: &Value, weight: u32) -> Vec<(Box<str>, Vec<Endpoint>)> {
    let mut ports = Vec::new();
    for subset in list(object, "subsets") {
        for (name, number) in list(subset, "ports").iter().filter_map(port) {
            let at = |address: &Value| endpoint(address.get("ip")?.as_str()?, number, weight, address, true);
            ports.push((name, list(subset, "addresses").iter().filter_map(at).collect()));
        }
    }
    ports
}

fn slice(object: &Value, weight: u32) -> Vec<(Box<str>, Vec<Endpoint>)> {
    let is = |endpoint: &Value, condition: &str| endpoint.get("conditions")?.get(condition)?.as_bool();
    let mut ports = Vec::new();
    for (name, number) in list(object, "ports").iter().filter_map(port) {
        let mut endpoints = Vec::new();
        for about in list(object, "endpoints") {
            // What is not said counts as ready.
            let is_ready = is(about, "ready").unwrap_or(true);
            let serves = is(about, "serving") == Some(true) && is(about, "terminating") == Some(true);
            if is_ready || serves {
                let addresses = list(about, "addresses").iter().filter_map(Value::as_str);
                endpoints
                    .extend(addresses.filter_map(|host| endpoint(host, number, weight, about, is_ready)));
            }
        }
        ports.push((name, endpoints));
    }
    ports
}
