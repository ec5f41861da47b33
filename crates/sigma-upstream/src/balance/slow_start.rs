//! Slow start: a node that has just become usable gets a share that grows to the full one over a window, so that it
//! can fill its caches and pools.
//!
//! The share of a warming node is its weight × max(min, (age / window)^(1 / aggression)), as in Envoy. It is not a
//! changed weight: a node with a turn, or a drawn node, skips a part of its turns. So nothing is rebuilt during slow
//! start. The shares are relative to the oldest node's: if all have come together, none skips turns.

use sigma_config::resources;

use super::kept::PerNode;
use super::{Member, below};
use crate::endpoint::EndpointSet;
use crate::identity::EndpointId;

/// The rule of an upstream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SlowStart {
    window_ms: u64,
    /// 1 / aggression.
    exponent: f64,
    /// The smallest share, of 1.
    min: f64,
}

impl From<&resources::SlowStart> for SlowStart {
    fn from(config: &resources::SlowStart) -> SlowStart {
        SlowStart {
            window_ms: (config.window * 1000.0) as u64,
            exponent: 1.0 / config.aggression,
            min: f64::from(config.min_weight_percent) / 100.0,
        }
    }
}

impl SlowStart {
    /// Returns the part of the full share of a node that became usable at `since_ms`.
    fn part(&self, since_ms: Option<u64>, now_ms: u64) -> f64 {
        let age_ms = since_ms.map_or(u64::MAX, |since_ms| now_ms.saturating_sub(since_ms));
        if age_ms >= self.window_ms {
            return 1.0;
        }
        (age_ms as f64 / self.window_ms as f64).powf(self.exponent).max(self.min)
    }
}

/// The times at which nodes became usable, as one worker has seen them.
#[derive(Debug)]
pub(super) struct Ages {
    rule: SlowStart,
    since: PerNode<Since>,
    /// A node was usable before.
    known: bool,
}

/// The age of a usable node.
#[derive(Debug, Clone, Copy, Default)]
enum Since {
    #[default]
    Unknown,
    /// Warm, or there from the beginning
    Long,
    At(u64),
}

impl Ages {
    pub(super) fn new(rule: SlowStart) -> Ages {
        Ages { rule, since: PerNode::default(), known: false }
    }

    /// Records the nodes that are usable now. If none was usable before, all begin together, without a slow start.
    pub(super) fn learn(&mut self, set: &EndpointSet, now_ms: u64) {
        let first = !std::mem::replace(&mut self.known, false);
        self.since.begin();
        for endpoint in set.endpoints.iter().filter(|endpoint| endpoint.health.usable()) {
            self.known = true;
            let slot = self.since.stay(endpoint.id());
            let since = self.since.at_mut(slot);
            *since = match *since {
                Since::Unknown if first => Since::Long,
                Since::Unknown => Since::At(now_ms),
                Since::At(at) if self.rule.part(Some(at), now_ms) >= 1.0 => Since::Long,
                known => known,
            };
        }
        self.since.forget(|_| false, |_| {});
    }

    /// Returns the time at which a node became usable; None if it is warm or unusable.
    pub(super) fn of(&mut self, id: EndpointId) -> Option<u64> {
        match self.since.of(id) {
            Some(Since::At(at)) => Some(*at),
            _ => None,
        }
    }
}

/// A group with members that were not warm when it was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Warming {
    rule: SlowStart,
    /// The time at which the last of them is warm.
    until_ms: u64,
    /// The time at which the oldest became usable; None if it was usable from the beginning.
    oldest_ms: Option<u64>,
}

impl Warming {
    /// Returns None if there is no rule, or no member is warming.
    pub(super) fn of(rule: Option<SlowStart>, members: &[Member]) -> Option<Warming> {
        let rule = rule?;
        let newest_ms = members.iter().filter_map(|m| m.since_ms).max()?;
        // None sorts before all others.
        let oldest_ms = members.iter().map(|m| m.since_ms).min()?;
        Some(Warming { rule, until_ms: newest_ms.saturating_add(rule.window_ms), oldest_ms })
    }

    /// Decides by chance whether a member takes its turn. Warm members always do.
    pub(super) fn takes(&self, member: &Member, now_ms: u64, random: u64) -> bool {
        if now_ms >= self.until_ms || member.since_ms.is_none() {
            return true;
        }
        let part = self.rule.part(member.since_ms, now_ms) / self.rule.part(self.oldest_ms, now_ms);
        // 32 random bits are enough for a percentage.
        (below(random, 1 << 32) as f64) < part * (1u64 << 32) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_as_in_envoy() {
        let check = |aggression, min_weight_percent, age_ms: u64, want: f64| {
            let config = resources::SlowStart { window: 10.0, aggression, min_weight_percent };
            let got = SlowStart::from(&config).part(Some(1_000), 1_000 + age_ms);
            assert!((got - want).abs() < 1e-9, "{aggression} {min_weight_percent} {age_ms}: {got}");
        };
        check(1.0, 10, 0, 0.1);
        check(1.0, 10, 500, 0.1);
        check(1.0, 10, 5_000, 0.5);
        check(1.0, 10, 9_999, 0.9999);
        check(1.0, 10, 10_000, 1.0);
        check(2.0, 10, 2_500, 0.5);
        check(0.5, 1, 5_000, 0.25);
        check(1.0, 0, 0, 0.0);
    }
}
