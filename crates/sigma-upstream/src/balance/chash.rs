//! Consistent hashing on a ring of CRC-32 points, with the same points as
//! APISIX, so that keys stay with their nodes when a gateway is replaced.
//!
//! A pick is a binary search, O(log points). The ring holds unhealthy nodes too: skipping them
//! moves only their own keys.

use super::bounded::Bounded;
use super::names::Names;
use super::{Group, Member, Outcome, PickContext, Policy, gcd, look};
use crate::endpoint::EndpointSet;
use crate::identity::EndpointId;

/// Points of a node per unit of reduced weight.
const POINTS: u64 = 160;

/// Most points on a ring: 8 MiB per worker and upstream. Weights that ask for more are scaled
/// down, which moves keys only on such rings.
const MAX_POINTS: u64 = 1 << 20;

/// Points in a stretch of the ring, on average: a pick looks through one stretch, however long the
/// ring is.
const STRETCH: usize = 8;

/// Consistent hashing.
#[derive(Debug)]
pub(super) struct ConsistentHash {
    bounded: Option<Bounded>,
    /// Of the set that the rings were made for.
    generation: u64,
    groups: Vec<Ring>,
}

#[derive(Debug)]
struct Ring {
    members: Vec<Member>,
    /// By member.
    names: Vec<String>,
    /// Hash and member position, ascending.
    points: Vec<(u32, u32)>,
    /// Where each stretch of hashes begins in `points`; stretches are equally long, and there are
    /// 2^`bits` of them.
    stretches: Vec<u32>,
    bits: u32,
}

impl ConsistentHash {
    /// With bounds on loads, in percent of the mean, if wanted.
    pub(super) fn new(bounded_load: Option<u16>) -> ConsistentHash {
        let bounded = bounded_load.map(Bounded::new);
        ConsistentHash { bounded, generation: 0, groups: Vec::new() }
    }
}

impl Policy for ConsistentHash {
    fn rebuild(&mut self, set: &EndpointSet, groups: &[Group]) {
        let mut old = std::mem::take(&mut self.groups);
        let same_set = std::mem::replace(&mut self.generation, set.generation) == set.generation;
        let names = std::cell::OnceCell::new();
        let ring = |group: &Group| {
            // Building is the expensive part; a health flip leaves the points as they are.
            if same_set && let Some(at) = old.iter().position(|ring| ring.is_of(group)) {
                return Ring { members: group.clone(), ..old.swap_remove(at) };
            }
            let names = names.get_or_init(|| Names::new(set));
            let names: Vec<String> = group.iter().map(|m| names.of(m)).collect();
            match old.iter().position(|ring| ring.fits(group, &names)) {
                Some(at) => Ring { members: group.clone(), ..old.swap_remove(at) },
                None => Ring::new(group.clone(), names),
            }
        };
        self.groups = groups.iter().map(ring).collect();
        if let Some(bounded) = &mut self.bounded {
            bounded.rebuild(groups);
        }
    }

    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let ring = self.groups.get(group)?;
        let left = |m: &Member| {
            look();
            m.usable && !context.tried.contains(m.id)
        };
        // Seen from the nodes, which are few, before the points are walked, which may be a million.
        if !context.tried.is_empty() && !ring.members.iter().any(|m| m.weight > 0 && left(m)) {
            return None;
        }
        let hash = crc32(context.key.unwrap_or_default());
        let (before, after) = ring.points.split_at(ring.first_from(hash));
        let at =
            after.iter().chain(before).map(|&(_, at)| at as usize).find(|&at| left(&ring.members[at]))?;
        let at = match &self.bounded {
            Some(bounded) => bounded.settle(group, &ring.members, (hash.into(), at), context),
            None => at,
        };
        Some(ring.members[at].index)
    }

    fn start(&mut self, id: EndpointId) {
        if let Some(bounded) = &mut self.bounded {
            bounded.start(id);
        }
    }

    fn end(&mut self, id: EndpointId, _outcome: Outcome) {
        if let Some(bounded) = &mut self.bounded {
            bounded.end(id);
        }
    }
}

impl Ring {
    fn new(members: Vec<Member>, names: Vec<String>) -> Ring {
        let divisor = members.iter().fold(0, |d, m| gcd(d, m.weight)).max(1);
        let shares = members.iter().map(|m| u64::from(m.weight / divisor));
        let wanted = POINTS * shares.clone().sum::<u64>();
        let mut points = Vec::with_capacity(wanted.min(MAX_POINTS) as usize);
        for (at, share) in shares.enumerate() {
            let mut count = POINTS * share;
            if wanted > MAX_POINTS && count > 0 {
                count = (u128::from(count) * u128::from(MAX_POINTS) / u128::from(wanted)).max(1) as u64;
            }
            let base = update(!0, names[at].bytes().map(|b| if b == b':' { 0 } else { b }));
            // The state after the name, not finalised, is where each point continues from.
            let mut point = 0u32;
            for _ in 0..count {
                point = !update(base, point.to_le_bytes());
                points.push((point, at as u32));
            }
        }
        // Equal points are ordered by name, so that the configured order does not matter.
        points.sort_unstable_by(|a, b| {
            let name = |at: u32| &names[at as usize];
            a.0.cmp(&b.0).then_with(|| name(a.1).cmp(name(b.1)))
        });
        let bits = (points.len() / STRETCH).max(1).ilog2();
        let first = |stretch: u32| points.partition_point(|&(point, _)| stretch_of(point, bits) < stretch);
        let stretches = (0..1 << bits).map(|stretch| first(stretch) as u32).collect();
        Ring { members, names, points, stretches, bits }
    }

    /// Where the first point is that is not before `hash`; behind the last one if there is none.
    fn first_from(&self, hash: u32) -> usize {
        let stretch = stretch_of(hash, self.bits);
        let begin = self.stretches[stretch as usize] as usize;
        let end = self.stretches.get(stretch as usize + 1).map_or(self.points.len(), |&next| next as usize);
        let is_before = |&(point, _): &(u32, u32)| {
            look();
            point < hash
        };
        begin + self.points[begin..end].partition_point(is_before)
    }

    /// Whether this is the ring of `group`, whose set is the one of before.
    fn is_of(&self, group: &Group) -> bool {
        let alike = |(a, b): (&Member, &Member)| a.id == b.id && a.weight == b.weight;
        self.members.len() == group.len() && self.members.iter().zip(group).all(alike)
    }

    /// Whether the points of this ring are right for `group` with these names.
    fn fits(&self, group: &Group, names: &[String]) -> bool {
        let alike = |(a, b): (&Member, &Member)| a.weight == b.weight;
        self.names == names && self.members.iter().zip(group).all(alike)
    }
}

/// The stretch of the ring that a hash is in, of 2^`bits`.
fn stretch_of(hash: u32, bits: u32) -> u32 {
    (u64::from(hash) >> (32 - bits)) as u32
}

/// CRC-32 (IEEE 802.3, reflected).
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
