//! What operators want of the nodes of an upstream.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What an operator wants of a node, whatever its health.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It is used, as far as it is healthy.
    #[default]
    Ready,
    /// It gets no requests but those that are bound to it, such as by a session.
    Drain,
    /// It gets no requests, even if no other node is well.
    Maintenance,
}

impl NodeState {
    /// Every state, in order of its number: each takes more away than the one before.
    pub const ALL: [NodeState; 3] = [NodeState::Ready, NodeState::Drain, NodeState::Maintenance];

    /// The name in configurations, calls and output.
    pub fn name(self) -> &'static str {
        match self {
            NodeState::Ready => "ready",
            NodeState::Drain => "drain",
            NodeState::Maintenance => "maintenance",
        }
    }

    /// The state with this name.
    pub fn named(name: &str) -> Option<NodeState> {
        NodeState::ALL.into_iter().find(|state| state.name() == name)
    }
}
