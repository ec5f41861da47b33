//! A ring of CRC-32 points, identical to APISIX's, so that keys stay with their nodes when a gateway is replaced.
//!
//! The points are in segments of the ring, which are shared with the previous ring: a node that comes or leaves costs
//! the hashes of its own points, and copies of the segments that contain them.

use std::sync::Arc;

use super::hash_nodes::Change;
use super::{HashNode, HashNodes, MadeAhead, Table, gcd, look, note};

/// Points of a node per unit of reduced weight.
const POINTS: u64 = 160;

/// The limit of points on a ring: 16 MiB per upstream. If weights need more, all nodes have half of the points, or a
/// quarter, and so on; that moves keys, on such rings only.
const MAX_POINTS: u64 = 1 << 21;

/// Points in a segment of a new ring; at most twice as many.
const STRETCH: usize = 256;

/// The factor by which segments may grow and shrink until the ring is divided again.
const SLACK: usize = 4;

/// The hash, and the number of the node.
type Point = (u32, u32);

/// Hash ring.
#[derive(Debug)]
pub struct Ring {
    hash_nodes: HashNodes,
    /// Points of the 2^`bits` equally long parts of the ring: ascending, equal hashes by name, so that the configured
    /// order does not matter.
    stretches: Box<[Arc<[Point]>]>,
    bits: u32,
}

impl Table for Ring {
    const FINDS_SHARELESS: bool = false;

    fn share_out(nodes: &mut [HashNode]) {
        let divisor = nodes.iter().fold(0, |d, node| gcd(d, node.share)).max(1);
        let wanted: u64 = nodes.iter().map(|node| POINTS * u64::from(node.share / divisor)).sum();
        let halvings = (0..u64::BITS).find(|halvings| wanted >> halvings <= MAX_POINTS).unwrap_or(0);
        for node in nodes.iter_mut().filter(|node| node.share > 0) {
            let points = (POINTS * u64::from(node.share / divisor)) >> halvings;
            // At most the limit of points on a ring.
            node.share = points.max(1) as u32;
        }
    }

    fn of(nodes: &[HashNode], name: &dyn Fn(usize) -> String, former: Option<&Ring>) -> Ring {
        let count: usize = nodes.iter().map(|node| node.share as usize).sum();
        let former = former.filter(|former| former.is_right_for(count));
        let Change { hash_nodes, gone, new } =
            HashNodes::changed(former.map(|former| &former.hash_nodes), nodes, name);
        let (bits, stretches) = match former {
            Some(former) => (former.bits, former.stretches.clone()),
            None => {
                let bits = (count / STRETCH).max(1).ilog2();
                (bits, vec![Arc::default(); 1 << bits].into_boxed_slice())
            }
        };
        let mut ring = Ring { hash_nodes, stretches, bits };
        let mut points = points(&ring.hash_nodes, &new);
        ring.sort(&mut points);
        let mut touched: Vec<u32> = points.iter().map(|(hash, _)| stretch_of(*hash, bits)).collect();
        touched.dedup();
        note(points.len(), 0);
        if let Some(former) = former {
            let gone = self::points(&former.hash_nodes, &gone);
            touched.extend(gone.iter().map(|(hash, _)| stretch_of(*hash, bits)));
            note(gone.len(), 0);
        }
        touched.sort_unstable();
        touched.dedup();
        ring.change(&touched, &gone, &points);
        ring
    }

    fn made_ahead(tables: &MadeAhead) -> &[Arc<Ring>] {
        if let MadeAhead::Rings(rings) = tables { rings } else { &[] }
    }

    fn hash_nodes(&self) -> &HashNodes {
        &self.hash_nodes
    }

    fn hash(key: &[u8]) -> u64 {
        crc32(key).into()
    }

    fn find(&self, hash: u64, may: &dyn Fn(u32) -> bool) -> Option<u32> {
        // The hash is a CRC-32.
        let hash = hash as u32;
        let first = stretch_of(hash, self.bits) as usize;
        let is_before = |&(point, _): &Point| {
            look();
            point < hash
        };
        let (before, after) =
            self.stretches[first].split_at(self.stretches[first].partition_point(is_before));
        let (around, behind) = (&self.stretches[..first], &self.stretches[first + 1..]);
        let others = behind.iter().chain(around).flat_map(|stretch| stretch.iter());
        after.iter().chain(others).chain(before).map(|&(_, number)| number).find(|&number| may(number))
    }
}

impl Ring {
    /// Returns true if its segments fit this number of points.
    fn is_right_for(&self, count: usize) -> bool {
        let mean = count >> self.bits;
        mean <= STRETCH * SLACK && (self.bits == 0 || mean >= STRETCH / SLACK)
    }

    fn sort(&self, points: &mut [Point]) {
        points.sort_unstable_by_key(|&(hash, number)| u64::from(hash) << 32 | u64::from(number));
        for same in points.chunk_by_mut(|a, b| a.0 == b.0).filter(|same| same.len() > 1) {
            same.sort_by(|a, b| self.hash_nodes.name(a.1).cmp(self.hash_nodes.name(b.1)));
        }
    }

    /// Removes the points of the numbers `gone` from the segments `touched`, and inserts others; all lists are
    /// sorted.
    fn change(&mut self, touched: &[u32], gone: &[u32], mut points: &[Point]) {
        for &stretch in touched {
            let count = points.partition_point(|(hash, _)| stretch_of(*hash, self.bits) <= stretch);
            let (new, rest) = points.split_at(count);
            points = rest;
            let old = &self.stretches[stretch as usize];
            let next = self.merged(old.iter().filter(|point| gone.binary_search(&point.1).is_err()), new);
            note(0, next.len());
            self.stretches[stretch as usize] = next.into();
        }
    }

    /// Merges two sorted lists.
    fn merged<'p>(&self, old: impl Iterator<Item = &'p Point>, new: &[Point]) -> Vec<Point> {
        let mut all = Vec::with_capacity(old.size_hint().1.unwrap_or_default() + new.len());
        let mut new = new.iter().peekable();
        let name = |point: &Point| self.hash_nodes.name(point.1);
        for point in old {
            let is_before = |new: &&Point| new.0 < point.0 || (new.0 == point.0 && name(new) < name(point));
            while let Some(earlier) = new.next_if(is_before) {
                all.push(*earlier);
            }
            all.push(*point);
        }
        all.extend(new);
        all
    }
}

/// Returns the points of the nodes with these numbers.
fn points(hash_nodes: &HashNodes, numbers: &[u32]) -> Vec<Point> {
    let listed = || numbers.iter().filter_map(|&number| Some((number, hash_nodes.of(number)?)));
    let mut points = Vec::with_capacity(listed().map(|(_, it)| it.node.share as usize).sum());
    for (number, listed) in listed() {
        let base = update(!0, listed.name.bytes().map(|b| if b == b':' { 0 } else { b }));
        // Each point continues from the state after the name, before finalisation.
        let mut point = 0u32;
        for _ in 0..listed.node.share {
            point = !update(base, point.to_le_bytes());
            points.push((point, number));
        }
    }
    points
}

/// Returns the segment of the ring with a hash, of 2^`bits`.
fn stretch_of(hash: u32, bits: u32) -> u32 {
    (u64::from(hash) >> (32 - bits)) as u32
}

/// Computes CRC-32 (IEEE 802.3, reflected).
pub fn crc32(bytes: &[u8]) -> u32 {
    !update(!0, bytes.iter().copied())
}

fn update(state: u32, bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(state, |s, byte| TABLE[usize::from(s as u8 ^ byte)] ^ (s >> 8))
}

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut value = at as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { 0xedb8_8320 ^ (value >> 1) } else { value >> 1 };
            bit += 1;
        }
        table[at] = value;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::EndpointId;

    /// Returns the points of a ring, with names instead of numbers.
    fn named(ring: &Ring) -> Vec<(u32, &str)> {
        let points = ring.stretches.iter().flat_map(|stretch| stretch.iter());
        points.map(|&(hash, number)| (hash, ring.hash_nodes.name(number))).collect()
    }

    #[test]
    fn a_changed_ring_equals_a_new_ring() {
        let mut random = fastrand::Rng::with_seed(3);
        let name = |node: &HashNode| {
            let kind = if node.by_address { "10.0.0.1" } else { "a.test" };
            format!("{kind}:{}", node.id.index())
        };
        let mut ring = None;
        for step in 0..150 {
            // Mostly the same nodes in another order; at times many more, or fewer.
            let most = if step % 30 < 3 { 400 } else { 40 };
            let node = |at| HashNode {
                id: EndpointId::numbered(at),
                by_address: random.u8(..20) == 0,
                share: [0, 1, 1, 1, 1, 2][random.usize(..6)],
            };
            let mut nodes: Vec<HashNode> = (0..most).map(node).collect();
            random.shuffle(&mut nodes);
            nodes.truncate(random.usize(most / 2..=most));
            Ring::share_out(&mut nodes);
            let of = |former: Option<&Ring>| Ring::of(&nodes, &|at| name(&nodes[at]), former);
            let (changed, anew) = (of(ring.as_ref()), of(None));
            assert_eq!(named(&changed), named(&anew));
            assert!(changed.hash_nodes.places(&nodes).is_some());
            // The result for a key does not depend on the division of the ring.
            for key in 0..50u32 {
                let hash = Ring::hash(&key.to_le_bytes());
                let found =
                    |ring: &Ring| ring.find(hash, &|_| true).map(|at| ring.hash_nodes.name(at).to_owned());
                assert_eq!(found(&changed), found(&anew));
            }
            ring = Some(changed);
        }
    }

    #[test]
    fn points_are_halved_until_they_fit() {
        let mut nodes: Vec<HashNode> = [1 << 20, 1 << 10, 1, 0]
            .iter()
            .enumerate()
            .map(|(at, &share)| HashNode { id: EndpointId::numbered(at), by_address: false, share })
            .collect();
        Ring::share_out(&mut nodes);
        let shares: Vec<u32> = nodes.iter().map(|node| node.share).collect();
        assert_eq!(shares, [160 << 13, 160 << 3, 1, 0]);
    }
}
