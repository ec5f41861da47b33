//! Stress tests: nodes that get an exact share of the requests, with any policy.
//!
//! The share is drawn before the policy is asked: a drawn request goes to one of the nodes in turn, and all others go
//! to the other nodes. Only first attempts are drawn; further ones go to other nodes while there are any.

use super::{PickContext, Tried, below};
use crate::endpoint::EndpointSet;
use crate::hashing::mix;
use crate::health::{Health, StressShare};

/// Makes the draw independent of the choice of level, zone and node.
const STRESS: u64 = 1 << 42;

/// A share that was not repeated for so long has no effect. The control side repeats it every second.
const LEASE_MS: u64 = 5_000;

/// The nodes of a stress test that is running, as one worker sees them.
#[derive(Debug)]
pub(super) struct Stress {
    share: u32,
    /// Positions in the set, at least one; all usable.
    nodes: Vec<usize>,
    /// The same nodes.
    avoided: Tried,
    /// The turn of `nodes`.
    turn: usize,
    beat: u32,
    beat_ms: u64,
}

/// The way of a request while a stress test runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drawn {
    /// It goes to the node at this position.
    Node(usize),
    /// It goes to the nodes outside of the test, if there are any.
    Others,
    /// The test has lost its lease.
    Normal,
}

impl Stress {
    /// Returns the test that nodes of `set` are in; None without one, or without a usable node of it.
    pub(super) fn of(set: &EndpointSet, now_ms: u64) -> Option<Stress> {
        let is_stressed = |health: &Health| health.stress().share > 0 && health.usable();
        let endpoints = &set.endpoints;
        let nodes: Vec<usize> =
            (0..endpoints.len()).filter(|at| is_stressed(&endpoints[*at].health)).collect();
        let StressShare { share, beat } = endpoints[*nodes.first()?].health.stress();
        let mut avoided = Tried::default();
        nodes.iter().for_each(|at| avoided.insert(endpoints[*at].id()));
        Some(Stress { share, nodes, avoided, turn: 0, beat, beat_ms: now_ms })
    }

    /// Decides on a request.
    pub(super) fn draw(&mut self, set: &EndpointSet, context: &PickContext<'_>) -> Drawn {
        let beat = set.endpoints[self.nodes[0]].health.stress().beat;
        if beat != self.beat {
            (self.beat, self.beat_ms) = (beat, context.now_ms);
        } else if context.now_ms.saturating_sub(self.beat_ms) > LEASE_MS {
            return Drawn::Normal;
        }
        let at = below(mix(context.random, STRESS), StressShare::WHOLE.into());
        if !context.tried.is_empty() || at >= self.share.into() {
            return Drawn::Others;
        }
        self.turn = (self.turn + 1) % self.nodes.len();
        Drawn::Node(self.nodes[self.turn])
    }

    /// Returns `tried` and the nodes of the test.
    pub(super) fn avoid(&self, tried: &Tried, set: &EndpointSet) -> Tried {
        if tried.is_empty() {
            return self.avoided.clone();
        }
        let mut all = tried.clone();
        self.nodes.iter().for_each(|at| all.insert(set.endpoints[*at].id()));
        all
    }
}
