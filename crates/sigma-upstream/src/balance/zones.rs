//! Zone-aware routing: requests stay in the gateway's own zone as far as its nodes can serve them (Envoy).
//!
//! The own zone has a share of the gateways, and with it of the requests, and a share of the usable nodes. If its
//! nodes are enough for its requests, all requests stay. Otherwise the part that they can serve stays. The rest goes
//! to zones with more nodes than their own gateways need, in proportion to the surplus.

use std::collections::BTreeMap;

use sigma_config::resources::{Upstream, ZoneAware};

use super::{Group, Member};
use crate::endpoint::EndpointSet;

/// All requests.
pub(super) const ALL: u64 = 1 << 32;

/// The rule of an upstream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ZoneRule {
    own: Box<str>,
    key: Box<str>,
    min_cluster_size: usize,
    /// The gateways of each zone; empty for equal numbers.
    gateways: BTreeMap<Box<str>, u32>,
}

impl ZoneRule {
    /// Returns None without the rule, or for a gateway without a zone.
    pub(super) fn of(config: &Upstream, own: Option<&str>) -> Option<ZoneRule> {
        let ZoneAware { metadata_key, min_cluster_size, gateways } = config.zone_aware.as_deref()?;
        Some(ZoneRule {
            own: own?.into(),
            key: metadata_key.clone(),
            min_cluster_size: *min_cluster_size as usize,
            gateways: gateways.clone(),
        })
    }

    /// Returns the members of each zone, the own one first, and its part of [`ALL`] requests. One part if the rule
    /// does not apply: too few nodes, or none in the own zone or in another.
    pub(super) fn split(&self, set: &EndpointSet, members: Group) -> Vec<(u64, Group)> {
        let mut zones: BTreeMap<&str, Group> = BTreeMap::new();
        for member in &members {
            let zone = set.endpoints[member.index].metadata_text(&self.key).unwrap_or_default();
            zones.entry(zone).or_default().push(*member);
        }
        zones.retain(|_, group| group.iter().any(|m| m.usable));
        let usable = members.iter().filter(|m| m.usable).count();
        if usable < self.min_cluster_size || zones.len() < 2 {
            return vec![(ALL, members)];
        }
        let Some(own) = zones.remove(&*self.own) else { return vec![(ALL, members)] };
        let nodes: Vec<f64> = std::iter::once(&own).chain(zones.values()).map(weight).collect();
        let names = std::iter::once(&*self.own).chain(zones.keys().copied());
        let gateways: Vec<f64> = names.map(|zone| self.gateways_of(zone)).collect();
        let parts = parts(&nodes, &gateways);
        std::iter::once(own)
            .chain(zones.into_values())
            .zip(parts)
            .map(|(group, part)| (part, group))
            .collect()
    }

    fn gateways_of(&self, zone: &str) -> f64 {
        match self.gateways.get(zone) {
            Some(count) => f64::from(*count),
            None if self.gateways.is_empty() => 1.0,
            None => 0.0,
        }
    }
}

/// Returns the weight of the usable nodes of a zone.
fn weight(group: &Group) -> f64 {
    group.iter().filter(|m| m.usable).map(|m: &Member| f64::from(m.weight)).sum()
}

/// Returns the parts of [`ALL`] for zones with these nodes and gateways; the first is the own one.
fn parts(nodes: &[f64], gateways: &[f64]) -> Vec<u64> {
    let share = |of: &[f64]| -> Vec<f64> {
        let sum: f64 = of.iter().sum();
        of.iter().map(|part| if sum > 0.0 { part / sum } else { 0.0 }).collect()
    };
    let (nodes, gateways) = (share(nodes), share(gateways));
    let spare: Vec<f64> = (1..nodes.len()).map(|at| (nodes[at] - gateways[at]).max(0.0)).collect();
    let spare_sum: f64 = spare.iter().sum();
    let stays = if nodes[0] >= gateways[0] || spare_sum <= 0.0 { 1.0 } else { nodes[0] / gateways[0] };
    let rest = spare.iter().map(|spare| if stays < 1.0 { (1.0 - stays) * spare / spare_sum } else { 0.0 });
    let mut parts: Vec<u64> =
        std::iter::once(stays).chain(rest).map(|part| (part * ALL as f64) as u64).collect();
    // The rounding rest stays.
    parts[0] += ALL.saturating_sub(parts.iter().sum());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_match_envoys_rule() {
        let check = |nodes: &[f64], gateways: &[f64], want: &[u64]| {
            let parts = parts(nodes, gateways);
            assert_eq!(parts.iter().sum::<u64>(), ALL);
            let percent: Vec<u64> = parts.iter().map(|part| (part * 100 + ALL / 2) / ALL).collect();
            assert_eq!(percent, want, "{nodes:?} {gateways:?}");
        };
        check(&[5.0, 5.0], &[1.0, 1.0], &[100, 0]);
        check(&[6.0, 4.0], &[1.0, 1.0], &[100, 0]);
        // A quarter of the nodes for half of the requests.
        check(&[2.0, 6.0], &[1.0, 1.0], &[50, 50]);
        check(&[2.0, 5.0, 1.0], &[2.0, 1.0, 1.0], &[50, 50, 0]);
        check(&[2.0, 3.0, 3.0], &[2.0, 1.0, 1.0], &[50, 25, 25]);
        check(&[0.0, 4.0], &[1.0, 1.0], &[0, 100]);
        // No gateway is known in this zone.
        check(&[1.0, 4.0], &[0.0, 1.0], &[100, 0]);
    }
}
