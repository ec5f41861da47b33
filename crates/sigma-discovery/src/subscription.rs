//! The subscription of one upstream to a registry.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;
use sigma_config::resources::Node;
use sigma_schema::cidr::CidrSet;
use tokio::sync::watch;

use crate::hub::{Topic, TopicState};

/// The metadata key of the gRPC port, in Nacos and others.
const GRPC_PORT: &str = "gRPC_port";

/// The part of a topic that an upstream wants.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// The service.
    pub(crate) service: Box<str>,
    /// The required metadata of a node.
    pub(crate) metadata: BTreeMap<Box<str>, Box<str>>,
    /// Use the gRPC port of nodes that have one.
    pub(crate) grpc: bool,
    /// Networks that nodes must not be in.
    pub(crate) refused: Arc<CidrSet>,
    /// The node of a service without any.
    pub(crate) stand_in: Option<Node>,
}

impl Part {
    /// Returns the wanted part of the service's nodes.
    fn of(&self, nodes: &[Node]) -> Vec<Node> {
        let (refused, allowed): (Vec<&Node>, Vec<&Node>) =
            nodes.iter().partition(|node| self.is_refused(node));
        if let Some(first) = refused.first() {
            let (service, count, first) = (&*self.service, refused.len(), &*first.host);
            tracing::warn!(
                service,
                count,
                first,
                "a registry lists nodes in `discovery.refused_networks`; they are ignored"
            );
        }
        let mut wanted: Vec<Node> =
            allowed.into_iter().filter(|node| self.is_wanted(node)).cloned().collect();
        if self.grpc {
            for node in &mut wanted {
                let port =
                    node.metadata.as_ref().and_then(|metadata| crate::node::port(metadata.get(GRPC_PORT)));
                node.port = port.or(node.port);
            }
        }
        if wanted.is_empty() {
            wanted.extend(self.stand_in.clone());
        }
        wanted
    }

    /// Returns true if a node has a forbidden address; addresses of names are checked after resolution.
    fn is_refused(&self, node: &Node) -> bool {
        node.host.parse::<IpAddr>().is_ok_and(|ip| self.refused.contains(ip))
    }

    fn is_wanted(&self, node: &Node) -> bool {
        self.metadata.iter().all(|(name, wanted)| {
            let has =
                node.metadata.as_ref().and_then(|metadata| metadata.get(&**name)).and_then(Value::as_str);
            has == Some(&**wanted)
        })
    }
}

/// The nodes of a service, as they change.
#[derive(Debug)]
pub struct Subscription {
    topic: Arc<Topic>,
    part: Part,
    /// None until the first call.
    changes: Option<watch::Receiver<TopicState>>,
    last: Option<Last>,
    /// A failure was reported, and is not repeated.
    has_complained: bool,
}

/// The last reported list.
#[derive(Debug)]
struct Last {
    list: Vec<Node>,
    /// The service's nodes that it was made of.
    nodes: Option<Arc<[Node]>>,
}

impl Last {
    fn is_of(&self, nodes: Option<&Arc<[Node]>>) -> bool {
        match (&self.nodes, nodes) {
            (Some(known), Some(nodes)) => Arc::ptr_eq(known, nodes),
            (known, nodes) => known.is_none() && nodes.is_none(),
        }
    }
}

impl Subscription {
    pub(crate) fn new(topic: Arc<Topic>, part: Part) -> Subscription {
        Subscription { topic, part, changes: None, last: None, has_complained: false }
    }

    /// Returns the name of its source: `consul web`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.topic.name()
    }

    /// Returns the next list, when it has changed. Before the first list, the first failure is returned once; later
    /// ones are only logged, and change nothing. Call it within a runtime.
    ///
    /// # Errors
    /// Returns an error if there is no list yet, and the registry fails.
    pub async fn next(&mut self) -> Result<Vec<Node>, String> {
        let changes = self.changes.get_or_insert_with(|| {
            let mut changes = self.topic.follow();
            // A known state is new here.
            changes.mark_changed();
            changes
        });
        loop {
            if changes.changed().await.is_err() {
                return Err("the task that polls the registry ended".to_owned());
            }
            let told = changes.borrow_and_update().clone();
            match (told.listing, told.trouble) {
                (Some(listing), _) => {
                    let nodes = listing.get(&*self.part.service);
                    if self.last.as_ref().is_some_and(|last| last.is_of(nodes)) {
                        continue;
                    }
                    let list = self.part.of(nodes.map_or(&[], |nodes| &**nodes));
                    let before = self.last.replace(Last { list: list.clone(), nodes: nodes.cloned() });
                    if before.is_none_or(|before| before.list != list) {
                        return Ok(list);
                    }
                }
                (None, Some(trouble)) if !self.has_complained => {
                    self.has_complained = true;
                    return Err(trouble.0);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use sigma_config::discovery::Discovery;

    #[test]
    fn a_part_has_the_wanted_nodes() {
        let node = |host: &str, metadata: Value| Node {
            host: host.into(),
            port: Some(80),
            weight: 1,
            metadata: crate::node::metadata(Some(&metadata)),
            ..Node::default()
        };
        let nodes = [
            node("a", json!({ "version": "v1", "gRPC_port": "9090" })),
            node("b", json!({ "version": "v2" })),
            node("c", json!({})),
        ];
        let shown = |part: Part| -> Vec<String> {
            let shown = |node: &Node| format!("{}:{}", node.host, node.port.unwrap_or_default());
            let nodes = if &*part.service == "web" { &nodes[..] } else { &[] };
            part.of(nodes).iter().map(shown).collect()
        };
        let part = |service: &str, metadata: Value| Part {
            service: service.into(),
            metadata: serde_json::from_value(metadata).expect("texts"),
            ..Part::default()
        };
        assert_eq!(shown(part("web", json!({}))), ["a:80", "b:80", "c:80"]);
        assert_eq!(shown(part("web", json!({ "version": "v2" }))), ["b:80"]);
        assert_eq!(shown(Part { grpc: true, ..part("web", json!({})) }), ["a:9090", "b:80", "c:80"]);
        let stand_in = crate::node::node("d", Some(1), 1);
        assert_eq!(shown(Part { stand_in: stand_in.clone(), ..part("api", json!({})) }), ["d:1"]);
        assert_eq!(shown(Part { stand_in, ..part("web", json!({})) }), ["a:80", "b:80", "c:80"]);
        assert_eq!(shown(part("api", json!({}))), [""; 0]);
    }

    #[test]
    fn nodes_in_forbidden_networks_are_left_out() {
        let refused = Discovery::default().refused_networks;
        let part = Part { service: "web".into(), refused: Arc::new(refused), ..Part::default() };
        let hosts = [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "fe80::1",
            "fd00:ec2::254",
            "100.100.100.200",
            "10.0.0.1",
            "127.0.0.1",
            "web.test",
        ];
        let nodes = hosts.map(|host| crate::node::node(host, Some(80), 1).expect("a node"));
        let used: Vec<_> = part.of(&nodes).iter().map(|node| node.host.to_string()).collect();
        assert_eq!(used, ["10.0.0.1", "127.0.0.1", "web.test"]);
    }
}
