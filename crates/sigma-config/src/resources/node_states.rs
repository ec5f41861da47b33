//! States of nodes that operators set.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The state of a node that an operator sets, independent of its health.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// The node is used if it is healthy.
    #[default]
    Ready,
    /// The node gets no new requests, except those bound to it, for example by a session.
    Drain,
    /// The node gets no requests, even if no other node is healthy.
    Maintenance,
}

impl NodeState {
    /// Every state by its number: each one is stricter than the one before.
    pub const ALL: [NodeState; 3] = [NodeState::Ready, NodeState::Drain, NodeState::Maintenance];

    /// Returns the name in configurations, calls and output.
    pub fn name(self) -> &'static str {
        match self {
            NodeState::Ready => "ready",
            NodeState::Drain => "drain",
            NodeState::Maintenance => "maintenance",
        }
    }

    /// Returns the state with this name.
    pub fn named(name: &str) -> Option<NodeState> {
        NodeState::ALL.into_iter().find(|state| state.name() == name)
    }
}
