//! Slow start: a node that has just become usable gets a share that grows to its full one over a
//! window, so that it can fill its caches and pools.
//!
//! The share of a warming node is its weight × max(min, (age / window)^(1 / aggression)), as in
//! Envoy. It is not a changed weight: a node whose turn it is, or that is drawn, lets a part of its
//! turns pass to others. So nothing is rebuilt while nodes warm up. The shares count against that of
//! the oldest node: where all have come together, none is held back.

use sigma_config::resources;

use super::kept::Kept;
use super::{Member, below};
use crate::endpoint::EndpointSet;
use crate::identity::EndpointId;

/// The rule of an upstream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SlowStart {
    window_ms: u64,
    /// 1 / aggression.
    exponent: f64,
    /// The least share, of 1.
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
    /// Of the full share, the part that a node has which became usable at `since_ms`.
    fn part(&self, since_ms: Option<u64>, now_ms: u64) -> f64 {
        let age_ms = since_ms.map_or(u64::MAX, |since_ms| now_ms.saturating_sub(since_ms));
        if age_ms >= self.window_ms {
            return 1.0;
        }
        (age_ms as f64 / self.window_ms as f64).powf(self.exponent).max(self.min)
    }
}

/// Since when nodes are usable, as one worker has seen it.
#[derive(Debug)]
pub(super) struct Ages {
    rule: SlowStart,
    since: Kept<Since>,
    /// Some node was usable.
    known: bool,
}

/// What is known of a node that is usable.
#[derive(Debug, Clone, Copy, Default)]
enum Since {
    #[default]
    Unknown,
    /// Warm, or there from the beginning.
    Long,
    At(u64),
}

impl Ages {
    pub(super) fn new(rule: SlowStart) -> Ages {
        Ages { rule, since: Kept::default(), known: false }
    }

    /// Takes note of the nodes that are usable now. Where none was before, all begin together, and
    /// none of them slowly.
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

    /// When a node became usable; None if it is warm or not usable.
    pub(super) fn of(&mut self, id: EndpointId) -> Option<u64> {
        match self.since.of(id) {
            Some(Since::At(at)) => Some(*at),
            _ => None,
        }
    }
}

/// A group of which some members were not warm when it was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Warming {
    rule: SlowStart,
    /// When the last of them is warm.
    until_ms: u64,
    /// When the oldest became usable; None if it was from the beginning.
    oldest_ms: Option<u64>,
}

impl Warming {
    /// None if there is no rule, or no member is warming.
    pub(super) fn of(rule: Option<SlowStart>, members: &[Member]) -> Option<Warming> {
        let rule = rule?;
        let newest_ms = members.iter().filter_map(|m| m.since_ms).max()?;
        // None goes before all others.
        let oldest_ms = members.iter().map(|m| m.since_ms).min()?;
        Some(Warming { rule, until_ms: newest_ms.saturating_add(rule.window_ms), oldest_ms })
    }

    /// Whether a member whose turn it is takes it, by chance. All take them once they are warm.
    pub(super) fn takes(&self, member: &Member, now_ms: u64, random: u64) -> bool {
        if now_ms >= self.until_ms || member.since_ms.is_none() {
            return true;
        }
        let part = self.rule.part(member.since_ms, now_ms) / self.rule.part(self.oldest_ms, now_ms);
        // 32 bits of chance are enough for a percentage.
        (below(random, 1 << 32) as f64) < part * (1u64 << 32) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_as_envoy_says() {
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
