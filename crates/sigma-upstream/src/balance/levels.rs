//! Priority levels: the level that serves a request, and panic mode.
//!
//! Without rules it works as in APISIX: the highest level with a usable node serves, and all nodes serve if none is
//! usable. With `overprovisioning_factor` it works as in Envoy: a level whose usable nodes, times the factor, are
//! fewer than all of its nodes passes the rest of its load to lower levels. With `panic_threshold`, a level with
//! fewer usable nodes uses all of them, or rejects requests, if the levels together cannot carry the load.

use sigma_config::resources;

use super::{Group, Member, PickContext, Policy, below, mix, zones};

/// The whole load, and the whole health of a level.
const WHOLE: u64 = 10_000;

/// The rules of an upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct LevelRules {
    /// In percent
    overprovisioning_factor: Option<u16>,
    /// In percent
    panic_threshold: Option<u8>,
    fail_traffic_on_panic: bool,
}

impl LevelRules {
    /// Returns true if a single node may be rejected for its health.
    pub(super) fn judge_panic(&self) -> bool {
        self.panic_threshold.is_some()
    }
}

impl From<&resources::Upstream> for LevelRules {
    fn from(config: &resources::Upstream) -> LevelRules {
        LevelRules {
            overprovisioning_factor: config.overprovisioning_factor,
            panic_threshold: config.panic_threshold,
            fail_traffic_on_panic: config.fail_traffic_on_panic,
        }
    }
}

/// The levels of an upstream, the highest first.
#[derive(Debug, Default)]
pub(super) struct Levels {
    levels: Vec<Level>,
    /// The level with the whole load, if there is one.
    only: Option<usize>,
}

#[derive(Debug)]
struct Level {
    /// The sum of the loads up to and including this level.
    upto: u64,
    /// It is in panic, and does not use unusable nodes.
    refuses: bool,
    /// Its groups; empty without a usable node.
    zones: Vec<Zone>,
}

/// A group's part of a level.
#[derive(Debug)]
struct Zone {
    /// The sum of the parts up to and including this one.
    upto: u64,
    /// The number of the group.
    group: usize,
}

impl Level {
    /// Returns the group's node chosen by `bits`; if the group has no untried node, a node of another group.
    #[inline]
    fn pick(
        &self,
        policy: &mut dyn Policy,
        bits: impl FnOnce() -> u64,
        context: &PickContext<'_>,
    ) -> Option<usize> {
        if let [all] = &self.zones[..] {
            return policy.pick(all.group, context);
        }
        let at = below(mix(bits(), ZONE), zones::ALL);
        let chosen = self.zones.iter().find(|zone| at < zone.upto)?;
        policy
            .pick(chosen.group, context)
            .or_else(|| self.zones.iter().find_map(|zone| policy.pick(zone.group, context)))
    }
}

/// Makes the choices of level, zone and node independent.
const LEVEL: u64 = 1 << 40;
const ZONE: u64 = 1 << 41;

/// The load and panic state of a level, given the health of its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    load: u64,
    panics: bool,
}

impl Levels {
    /// Judges the levels of `members`, sorted by priority, and adds levels with a usable node to `groups`: whole, or
    /// split by `split`.
    pub(super) fn new(
        members: &[Member],
        rules: &LevelRules,
        split: impl Fn(Group) -> Vec<(u64, Group)>,
        groups: &mut Vec<Group>,
    ) -> Levels {
        let is_served = |level: &&[Member]| level.iter().any(|m| m.in_service);
        let levels = members.chunk_by(|a, b| a.priority == b.priority).filter(is_served);
        let levels: Vec<Group> = levels.map(<[Member]>::to_vec).collect();
        let standings = judge(&levels.iter().map(counted).collect::<Vec<_>>(), rules);
        let mut upto = 0;
        let mut level = |(mut members, standing): (Group, &Standing)| {
            upto += standing.load;
            let refuses = standing.panics && rules.fail_traffic_on_panic;
            let mut parts = Vec::new();
            if standing.panics && !refuses {
                members.iter_mut().for_each(|m| m.usable = m.in_service);
                parts.push((zones::ALL, members));
            } else if !refuses && members.iter().any(|m| m.usable) {
                parts = split(members);
            }
            let mut part_upto = 0;
            let mut zone = |(part, members)| {
                part_upto += part;
                groups.push(members);
                Zone { upto: part_upto, group: groups.len() - 1 }
            };
            Level { upto, refuses, zones: parts.into_iter().map(&mut zone).collect() }
        };
        let levels: Vec<Level> = levels.into_iter().zip(&standings).map(&mut level).collect();
        let only = standings.iter().position(|standing| standing.load == WHOLE);
        Levels { levels, only }
    }

    /// Returns a node of the level chosen by `bits` and load; if the level has no untried node, a node of the next
    /// levels.
    #[inline]
    pub(super) fn pick(
        &self,
        policy: &mut dyn Policy,
        bits: impl Fn() -> u64,
        context: &PickContext<'_>,
    ) -> Option<usize> {
        let chosen = self.only.unwrap_or_else(|| {
            let at = below(mix(bits(), LEVEL), WHOLE);
            self.levels.iter().position(|level| at < level.upto).unwrap_or(0)
        });
        let level = self.levels.get(chosen)?;
        if level.refuses {
            return None;
        }
        let mut of = |level: &Level| level.pick(policy, &bits, context);
        of(level).or_else(|| self.levels.iter().find_map(of))
    }

    /// Returns true if requests are rejected for the health of nodes.
    pub(super) fn refuses(&self) -> bool {
        let empty = self.levels.iter().all(|level| level.zones.is_empty());
        !self.levels.is_empty() && (empty || self.levels.iter().any(|level| level.refuses))
    }
}

/// Returns the weight of the usable nodes of a level, and of all. Nodes without weight, which get requests only if
/// all others are down, count only then.
fn counted(group: &Group) -> (u64, u64) {
    let weighty = group.iter().any(|m| m.usable && m.weight > 0);
    let counts = |m: &&Member| m.in_service && (m.weight > 0 || !weighty);
    let all = group.iter().filter(counts);
    (all.clone().filter(|m| m.usable).count() as u64, all.count() as u64)
}

/// Returns the standings of levels from their (usable, all) counts.
fn judge(counts: &[(u64, u64)], rules: &LevelRules) -> Vec<Standing> {
    let factor = u64::from(rules.overprovisioning_factor.unwrap_or(100));
    let health: Vec<u64> = counts
        .iter()
        .map(|(usable, all)| (usable * factor * WHOLE / 100 / (*all).max(1)).min(WHOLE))
        .collect();
    let total = health.iter().sum::<u64>().min(WHOLE);
    let panics: Vec<bool> = match rules.panic_threshold {
        None => vec![total == 0; counts.len()],
        // All load goes to the highest level.
        Some(threshold) if total == 0 => (0..counts.len()).map(|at| at == 0 && threshold > 0).collect(),
        Some(threshold) => {
            let few = |(usable, all): &(u64, u64)| usable * 100 < u64::from(threshold) * all;
            counts.iter().map(|counts| total < WHOLE && few(counts)).collect()
        }
    };
    let loads = match rules.overprovisioning_factor {
        None => in_order(&health),
        Some(_) if total > 0 && panics.iter().all(|panics| *panics) => {
            shared(&counts.iter().map(|(_, all)| *all).collect::<Vec<_>>())
        }
        Some(_) => distributed(&health, total),
    };
    loads.into_iter().zip(panics).map(|(load, panics)| Standing { load, panics }).collect()
}

/// Gives all load to the highest level with a usable node.
fn in_order(health: &[u64]) -> Vec<u64> {
    let first = health.iter().position(|health| *health > 0).unwrap_or(0);
    (0..health.len()).map(|at| if at == first { WHOLE } else { 0 }).collect()
}

/// Gives each level the load that its health can carry; the rounding rest goes to the first one.
fn distributed(health: &[u64], total: u64) -> Vec<u64> {
    if total == 0 {
        return in_order(health);
    }
    let mut left = WHOLE;
    let mut loads: Vec<u64> = health
        .iter()
        .map(|health| {
            let load = (health * WHOLE / total).min(left);
            left -= load;
            load
        })
        .collect();
    if let Some(first) = loads.iter_mut().find(|load| **load > 0) {
        *first += left;
    }
    loads
}

/// Gives each level a load by its size.
fn shared(sizes: &[u64]) -> Vec<u64> {
    let all: u64 = sizes.iter().sum();
    let mut loads: Vec<u64> = sizes.iter().map(|size| size * WHOLE / all.max(1)).collect();
    let left = WHOLE - loads.iter().sum::<u64>();
    if let Some(first) = loads.first_mut() {
        *first += left;
    }
    loads
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads in percent, with `!` for panic.
    fn check(counts: &[(u64, u64)], factor: Option<u16>, threshold: Option<u8>, want: &str) {
        let rules = LevelRules {
            overprovisioning_factor: factor,
            panic_threshold: threshold,
            fail_traffic_on_panic: false,
        };
        let standings = judge(counts, &rules);
        assert_eq!(standings.iter().map(|standing| standing.load).sum::<u64>(), WHOLE);
        let shown = |standing: &Standing| {
            format!("{}{}", standing.load * 100 / WHOLE, if standing.panics { "!" } else { "" })
        };
        let got: Vec<String> = standings.iter().map(shown).collect();
        assert_eq!(got.join(" "), want, "{counts:?} {factor:?} {threshold:?}");
    }

    #[test]
    fn loads_match_envoys_tables() {
        let envoy = Some(140);
        check(&[(100, 100), (100, 100)], envoy, None, "100 0");
        check(&[(72, 100), (72, 100)], envoy, None, "100 0");
        check(&[(71, 100), (71, 100)], envoy, None, "99 0");
        check(&[(50, 100), (50, 100)], envoy, None, "70 30");
        check(&[(25, 100), (100, 100)], envoy, None, "35 65");
        check(&[(25, 100), (25, 100)], envoy, Some(0), "50 50");
        check(&[(0, 100), (100, 100)], envoy, None, "0 100");
        check(&[(100, 100), (0, 100)], envoy, None, "100 0");
        check(&[(50, 100), (50, 100), (50, 100)], envoy, None, "70 30 0");
        check(&[(25, 100), (25, 100), (25, 100)], envoy, None, "35 35 30");
        check(&[(20, 100), (20, 100), (20, 100)], envoy, None, "33 33 33");
    }

    #[test]
    fn panic_matches_envoys_tables() {
        let (envoy, half) = (Some(140), Some(50));
        check(&[(72, 100), (72, 100)], envoy, half, "100 0");
        check(&[(71, 100), (1, 100)], envoy, half, "99 0");
        check(&[(50, 100), (60, 100)], envoy, half, "70 30");
        check(&[(25, 100), (25, 100)], envoy, half, "50! 50!");
        check(&[(25, 100), (25, 300)], envoy, half, "25! 75!");
        check(&[(5, 100), (65, 100)], envoy, half, "7! 92");
        check(&[(0, 100), (0, 100)], envoy, half, "100! 0");
        check(&[(0, 100), (0, 100)], envoy, Some(0), "100 0");
        check(&[(0, 100), (0, 100)], envoy, None, "100! 0!");
    }

    #[test]
    fn without_a_factor_levels_serve_in_their_order() {
        check(&[(1, 100), (100, 100)], None, None, "100 0");
        check(&[(0, 3), (1, 3)], None, None, "0 100");
        check(&[(0, 3), (0, 3)], None, None, "100! 0!");
        // The levels together have enough.
        check(&[(0, 3), (3, 3)], None, Some(50), "0 100");
        check(&[(1, 3), (2, 3)], None, Some(50), "100! 0");
        check(&[(1, 3)], None, Some(50), "100!");
        check(&[(2, 3)], None, Some(50), "100");
        check(&[(0, 3)], None, Some(0), "100");
    }
}
