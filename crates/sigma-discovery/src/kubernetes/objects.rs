//! Parsing of endpoint objects of Kubernetes.

use serde_json::{Map, Value};
use sigma_config::resources::Node;

use crate::eureka::ZONE;
use crate::node::{self, LeftOut};

/// The label with the service of an EndpointSlice.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The kind of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Endpoints: one object for each service.
    Endpoints,
    /// EndpointSlices: any number for each service.
    Slices,
}

/// The parsed form of one object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Object {
    /// `namespace/service`.
    pub(super) service: Box<str>,
    /// Each port's name with its endpoints.
    pub(super) ports: Ports,
}

type Ports = Vec<(Box<str>, Vec<Endpoint>)>;

/// One address with one port.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Endpoint {
    pub(super) node: Node,
    /// It is ready; otherwise it terminates, and serves meanwhile.
    pub(super) is_ready: bool,
}

/// Returns namespace and name of an object.
pub(super) fn names(object: &Value) -> Option<(&str, &str)> {
    let metadata = object.get("metadata")?;
    Some((metadata.get("namespace")?.as_str()?, metadata.get("name")?.as_str()?))
}

impl Object {
    /// Returns the number of endpoints, each port counted.
    pub(super) fn len(&self) -> usize {
        self.ports.iter().map(|(_, endpoints)| endpoints.len()).sum()
    }
}

/// Parses objects. A small object can define as many endpoints as the product of its ports and addresses: parsing
/// stops at `most`.
pub(super) struct Reader {
    pub(super) form: Form,
    pub(super) weight: u32,
    pub(super) most: usize,
    pub(super) left_out: LeftOut,
}

impl Reader {
    /// Parses an object; None if it is invalid, or has no service.
    pub(super) fn read(&mut self, object: &Value) -> Option<Object> {
        let (namespace, name) = names(object)?;
        match self.form {
            Form::Endpoints => {
                let service = format!("{namespace}/{name}").into();
                Some(Object { service, ports: self.subsets(object) })
            }
            Form::Slices => {
                let service = object.get("metadata")?.get("labels")?.get(SERVICE_NAME)?.as_str()?;
                let service = format!("{namespace}/{service}").into();
                Some(Object { service, ports: self.slice(object) })
            }
        }
    }

    fn subsets(&mut self, object: &Value) -> Ports {
        let (mut ports, mut room) = (Vec::new(), self.most);
        for subset in list(object, "subsets") {
            for (name, number) in list(subset, "ports").iter().filter_map(port).take(room) {
                let mut endpoints = Vec::new();
                let addresses = list(subset, "addresses");
                for address in addresses.iter().take(room) {
                    let ip = address.get("ip").and_then(Value::as_str).unwrap_or_default();
                    endpoints.extend(self.endpoint(ip, number, address, true));
                }
                room = room.saturating_sub(addresses.len().max(1));
                ports.push((name, endpoints));
            }
        }
        ports
    }

    fn slice(&mut self, object: &Value) -> Ports {
        let is = |endpoint: &Value, condition: &str| endpoint.get("conditions")?.get(condition)?.as_bool();
        let (mut ports, mut room) = (Vec::new(), self.most);
        for (name, number) in list(object, "ports").iter().filter_map(port).take(room) {
            let mut endpoints = Vec::new();
            let abouts = list(object, "endpoints");
            for about in abouts.iter().take(room) {
                // A missing condition counts as ready.
                let is_ready = is(about, "ready").unwrap_or(true);
                let serves = is(about, "serving") == Some(true) && is(about, "terminating") == Some(true);
                if is_ready || serves {
                    let hosts = list(about, "addresses").iter().filter_map(Value::as_str).take(room);
                    endpoints.extend(hosts.filter_map(|host| self.endpoint(host, number, about, is_ready)));
                }
            }
            // Skipped endpoints cost time as well.
            room = room.saturating_sub(endpoints.len().max(abouts.len()).max(1));
            ports.push((name, endpoints));
        }
        ports
    }

    fn endpoint(&mut self, host: &str, port: u16, about: &Value, is_ready: bool) -> Option<Endpoint> {
        let mut metadata = Map::new();
        for (known, name) in [(ZONE, "zone"), ("node", "nodeName")] {
            if let Some(Value::String(text)) = about.get(name) {
                metadata.insert(known.to_owned(), text.as_str().into());
            }
        }
        let metadata = (!metadata.is_empty()).then(|| Box::new(metadata));
        let Some(node) = node::node(host, Some(port), self.weight) else {
            self.left_out.note(host);
            return None;
        };
        Some(Endpoint { node: Node { metadata, ..node }, is_ready })
    }
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the name and number of a port. A port without a name uses its target's, else its number.
fn port(port: &Value) -> Option<(Box<str>, u16)> {
    let number = node::port(port.get("port"))?;
    let text = |name: &str| match port.get(name)? {
        Value::String(text) if !text.is_empty() => Some(text.as_str().into()),
        Value::Number(number) => Some(number.to_string().into()),
        _ => None,
    };
    Some((text("name").or_else(|| text("targetPort")).unwrap_or_else(|| number.to_string().into()), number))
}
