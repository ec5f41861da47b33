//! Changes of nodes of the running configuration, which no file and no store knows.

use std::sync::Arc;

use serde_json::Value;
use sigma_config::Config;
use sigma_config::resources::{Node, Upstream};

/// A change of one backend of the running configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    /// The name or the identity of its upstream.
    pub(crate) app: String,
    /// Its host, with the port if it has one.
    pub(crate) host: String,
    /// The change.
    pub(crate) change: Change,
}

/// A change of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// It gets no requests, or gets them again.
    Down(bool),
    /// It gets its share by this weight.
    Weight(u32),
}

impl Edit {
    /// Makes the change.
    ///
    /// # Errors
    /// Returns a sentence if there is no such backend.
    pub(crate) fn apply(&self, config: &mut Config) -> Result<(), String> {
        let upstreams = &mut config.resources.upstreams;
        let is_app = |u: &Upstream| u.name.as_deref() == Some(self.app.as_str()) || u.id.as_str() == self.app;
        let found = upstreams.ordered().find(|(_, u)| is_app(u));
        let (order, app) = found.ok_or("no app has this name")?;
        let mut app = Upstream::clone(app);
        let mut nodes = app.nodes.iter_mut();
        let node = nodes.find(|node| is_at(node, &self.host)).ok_or("no backend of the app has this host")?;
        change(node, self.change);
        upstreams.put(order.created(), Arc::new(app));
        Ok(())
    }
}

fn is_at(node: &Node, host: &str) -> bool {
    node.port.map_or_else(|| node.host.to_string(), |port| format!("{}:{port}", node.host)) == host
}

/// A backend that is down has weight 0 and remembers its own, as the translation writes it.
fn change(node: &mut Node, change: Change) {
    let mut metadata = node.metadata.take().map(|metadata| *metadata).unwrap_or_default();
    let down = metadata.get("down") == Some(&Value::Bool(true));
    let kept = metadata.get("weight").and_then(Value::as_u64).and_then(|w| u32::try_from(w).ok());
    let own = if down { kept.unwrap_or(1) } else { node.weight };
    let (down, own) = match change {
        Change::Down(down) => (down, own),
        Change::Weight(weight) => (down, weight),
    };
    node.weight = if down { 0 } else { own };
    if down {
        metadata.insert("down".into(), Value::Bool(true));
        metadata.insert("weight".into(), own.into());
    } else {
        metadata.remove("down");
        metadata.remove("weight");
    }
    node.metadata = (!metadata.is_empty()).then(|| Box::new(metadata));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn down_and_up_again_keeps_the_weight() {
        let mut node = Node { host: "127.0.0.1".into(), port: Some(80), weight: 5, ..Node::default() };
        let mut check = |what, weight| {
            change(&mut node, what);
            assert_eq!(node.weight, weight, "{what:?}");
        };
        check(Change::Down(true), 0);
        check(Change::Weight(7), 0);
        check(Change::Down(true), 0);
        check(Change::Down(false), 7);
        check(Change::Weight(2), 2);
        assert!(node.metadata.is_none());
        assert!(is_at(&node, "127.0.0.1:80") && !is_at(&node, "127.0.0.1"));
    }
}
