//! Consistent hashing on a ring of CRC-32 points, with the same points as
//! APISIX, so that keys stay with their nodes when a gateway is replaced.
//!
//! A pick is a binary search, O(log points). The ring holds unhealthy nodes too: skipping them
//! moves only their own keys.

use super::{Group, Member, PickContext, Policy, gcd};

/// Points of a node per unit of reduced weight.
const POINTS: u64 = 160;

/// Most points on a ring: 8 MiB per worker and upstream. Weights that ask for more are scaled
/// down, which moves keys only on such rings.
const MAX_POINTS: u64 = 1 << 20;

/// Consistent hashing.
#[derive(Debug, Default)]
pub(super) struct ConsistentHash {
    groups: Vec<Ring>,
}

#[derive(Debug)]
struct Ring {
    members: Vec<Member>,
    /// Hash and member position, ascending.
    points: Vec<(u32, u32)>,
}

impl Policy for ConsistentHash {
    fn rebuild(&mut self, groups: &[Group]) {
        let mut old = std::mem::take(&mut self.groups);
        self.groups = groups
            .iter()
            .map(|group| {
                // Building is the expensive part; a health flip leaves the points as they are.
                match old.iter().position(|ring| ring.fits(group)) {
                    Some(at) => Ring { members: group.clone(), points: old.swap_remove(at).points },
                    None => Ring::new(group.clone()),
                }
            })
            .collect();
    }

    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let ring = self.groups.get(group)?;
        let left = |m: &Member| m.usable && !context.tried.contains(m.id);
        // Seen from the nodes, which are few, before the points are walked, which may be a million.
        if !context.tried.is_empty() && !ring.members.iter().any(|m| m.weight > 0 && left(m)) {
            return None;
        }
        let hash = crc32(context.key.unwrap_or_default());
        let start = ring.points.partition_point(|&(point, _)| point < hash);
        let (before, after) = ring.points.split_at(start);
        after
            .iter()
            .chain(before)
            .map(|&(_, at)| &ring.members[at as usize])
            .find(|m| left(m))
            .map(|m| m.index)
    }
}

impl Ring {
    fn new(members: Vec<Member>) -> Ring {
        let divisor = members.iter().fold(0, |d, m| gcd(d, m.weight)).max(1);
        let shares = members.iter().map(|m| u64::from(m.weight / divisor));
        let wanted = POINTS * shares.clone().sum::<u64>();
        let mut points = Vec::with_capacity(wanted.min(MAX_POINTS) as usize);
        for (at, (member, share)) in members.iter().zip(shares).enumerate() {
            let mut count = POINTS * share;
            if wanted > MAX_POINTS && count > 0 {
                count = (u128::from(count) * u128::from(MAX_POINTS) / u128::from(wanted)).max(1) as u64;
            }
            let base = update(!0, member.name.bytes().map(|b| if b == b':' { 0 } else { b }));
            // The state after the name, not finalised, is where each point continues from.
            let mut point = 0u32;
            for _ in 0..count {
                point = !update(base, point.to_le_bytes());
                points.push((point, at as u32));
            }
        }
        // Equal points are ordered by name, so that the configured order does not matter.
        points.sort_unstable_by(|a, b| {
            let name = |at: u32| &members[at as usize].name;
            a.0.cmp(&b.0).then_with(|| name(a.1).cmp(name(b.1)))
        });
        Ring { members, points }
    }

    /// Whether the points of this ring are right for `group`.
    fn fits(&self, group: &Group) -> bool {
        let alike = |(a, b): (&Member, &Member)| a.weight == b.weight && a.name == b.name;
        self.members.len() == group.len() && self.members.iter().zip(group).all(alike)
    }
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
