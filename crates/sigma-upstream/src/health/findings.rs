//! Findings that gateways share: nodes that their requests have shown to be bad. Probe results are not shared, as
//! each gateway probes for itself.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::kept::NodeIdentity;

/// The limit of nodes in one gateway's findings, over all upstreams: they are one value in a store.
const NODES_MAX: usize = 5_000;

/// The nodes that one gateway has taken out, by upstream.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Findings {
    upstreams: BTreeMap<String, BTreeSet<FoundNode>>,
}

/// A node found to be bad.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FoundNode {
    /// Its configured host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Its address.
    pub address: String,
}

impl From<NodeIdentity> for FoundNode {
    fn from(identity: NodeIdentity) -> FoundNode {
        let NodeIdentity { host, port, address } = identity;
        FoundNode { host, port, address }
    }
}

/// The rules for other gateways' findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// The number of other gateways that must have found a node.
    pub gateways: usize,
    /// The largest part of an upstream's nodes to take out by findings, in percent; at least one node, and never all.
    /// A gateway with more findings has its own fault: its findings for the upstream do not count.
    pub max_percent: u8,
}

impl Findings {
    /// Returns the findings of all upstreams. Findings beyond the limit are omitted, from the last upstreams by name.
    pub(super) fn of(upstreams: impl Iterator<Item = (String, BTreeSet<FoundNode>)>) -> Findings {
        let sorted: BTreeMap<_, _> = upstreams.filter(|(_, found)| !found.is_empty()).collect();
        let mut room = NODES_MAX;
        let fits = |(_, found): &(String, BTreeSet<FoundNode>)| {
            room = room.saturating_sub(found.len());
            room > 0
        };
        Findings { upstreams: sorted.into_iter().take_while(fits).collect() }
    }

    /// Returns true without findings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.upstreams.is_empty()
    }

    /// Returns the findings for one upstream, if there are any.
    pub(super) fn of_upstream(&self, key: &str) -> Option<&BTreeSet<FoundNode>> {
        self.upstreams.get(key)
    }
}

/// Returns the subset of an upstream's `nodes` that `others` have taken out, as far as `agreement` allows: first the
/// nodes with the most findings, then by name, so that all gateways choose the same.
pub(super) fn agreed<'n>(
    nodes: &BTreeSet<&'n FoundNode>,
    others: &[&BTreeSet<FoundNode>],
    agreement: &Agreement,
) -> BTreeSet<&'n FoundNode> {
    let most = (nodes.len() * usize::from(agreement.max_percent) / 100).max(1);
    let most = most.min(nodes.len().saturating_sub(1));
    let mut votes: BTreeMap<&FoundNode, usize> = BTreeMap::new();
    for found in others {
        let known: Vec<_> = found.iter().filter_map(|node| nodes.get(node)).collect();
        if known.len() <= most {
            known.into_iter().for_each(|node| *votes.entry(*node).or_default() += 1);
        }
    }
    let mut found: Vec<_> = votes.into_iter().filter(|(_, count)| *count >= agreement.gateways).collect();
    found.sort_by_key(|(node, count)| (std::cmp::Reverse(*count), *node));
    found.into_iter().take(most).map(|(node, _)| node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u16) -> FoundNode {
        FoundNode { host: "h".to_owned(), port: n, address: format!("10.0.0.1:{n}") }
    }

    #[test]
    fn gateways_agree_within_bounds() {
        let check = |count: u16, others: &[&[u16]], gateways: usize, max_percent: u8, want: &[u16]| {
            let nodes: Vec<FoundNode> = (0..count).map(node).collect();
            let others: Vec<BTreeSet<_>> =
                others.iter().map(|found| found.iter().copied().map(node).collect()).collect();
            let agreement = Agreement { gateways, max_percent };
            let out = agreed(&nodes.iter().collect(), &others.iter().collect::<Vec<_>>(), &agreement);
            let out: Vec<u16> = out.into_iter().map(|node| node.port).collect();
            assert_eq!(out, want, "{count} {others:?} {agreement:?}");
        };
        check(10, &[], 1, 30, &[]);
        check(10, &[&[3]], 1, 30, &[3]);
        check(10, &[&[3], &[4]], 1, 30, &[3, 4]);
        // One gateway alone does not count.
        check(10, &[&[3], &[3, 4]], 2, 30, &[3]);
        check(10, &[&[3], &[4]], 2, 30, &[]);
        // A node unknown to this gateway does not count.
        check(10, &[&[3, 10, 11, 12, 13]], 1, 30, &[3]);
        // All together take out only a part: the nodes with the most findings.
        check(10, &[&[1, 2], &[3, 4], &[4, 5]], 1, 30, &[1, 2, 4]);
        // A gateway with more findings has lost its own connection.
        check(10, &[&[0, 1, 2, 3]], 1, 30, &[]);
        check(10, &[&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], &[5]], 1, 30, &[5]);
        // Of few nodes one may be taken out, of one none.
        check(3, &[&[0]], 1, 10, &[0]);
        check(3, &[&[0, 1]], 1, 10, &[]);
        check(2, &[&[1]], 1, 30, &[1]);
        check(1, &[&[0]], 1, 100, &[]);
        check(3, &[&[0, 1, 2]], 1, 100, &[]);
        check(0, &[&[0]], 1, 30, &[]);
    }

    #[test]
    fn findings_are_bounded() {
        let upstream = |n: usize| (format!("upstreams/{n}"), (0..1_000).map(node).collect());
        let told = Findings::of((0..10).map(upstream));
        assert_eq!(told.upstreams.len(), 4);
        assert!(serde_json::to_vec(&told).expect("text").len() < 1 << 20);
        assert!(Findings::of([("upstreams/1".to_owned(), BTreeSet::new())].into_iter()).is_empty());
    }
}
