//! Nodes by rendezvous hashing, also called highest random weight (Thaler, Ravishankar 1998).
//!
//! Each node gets a score from the hash of key and node, and the highest score wins. A node that leaves moves its own
//! keys only, evenly over the others, and the shares are exact for any weights. There is no table, so a pick costs
//! one score a node.

use crate::endpoint::EndpointSet;
use crate::hashing::{look, mix};
use crate::identity::EndpointId;

use super::bounded::Bounded;
use super::{Group, Member, Outcome, PickContext, Policy};

/// Chooses the node with the highest score.
#[derive(Debug)]
pub(super) struct Rendezvous {
    bounded: Option<Bounded>,
    groups: Vec<Scored>,
}

#[derive(Debug)]
struct Scored {
    members: Vec<Member>,
    /// Hashes of the names of the members, the same on every gateway.
    names: Box<[u64]>,
}

impl Rendezvous {
    /// Returns a policy, optionally with bounded loads in percent of the mean.
    pub(super) fn new(bounded_load: Option<u16>) -> Rendezvous {
        Rendezvous { bounded: bounded_load.map(Bounded::new), groups: Vec::new() }
    }
}

impl Policy for Rendezvous {
    fn rebuild(&mut self, set: &EndpointSet, groups: &[Group]) {
        let name = |member: &Member| hash(set.endpoints[member.index].hash_name().as_bytes());
        let scored =
            |group: &Group| Scored { members: group.clone(), names: group.iter().map(name).collect() };
        self.groups = groups.iter().map(scored).collect();
        if let Some(bounded) = &mut self.bounded {
            bounded.rebuild(groups);
        }
    }

    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let scored = self.groups.get(group)?;
        let hash = hash(context.key.unwrap_or_default());
        let at = scored.find(hash, context)?;
        let at = match &self.bounded {
            Some(bounded) => bounded.settle(group, &scored.members, hash, at, context),
            None => at,
        };
        Some(scored.members[at].index)
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

impl Scored {
    /// Returns the usable, untried member with the highest score for a key. A member without weight is found if all
    /// others are out.
    fn find(&self, hash: u64, context: &PickContext<'_>) -> Option<usize> {
        let mut best = None;
        for (at, (member, name)) in self.members.iter().zip(&self.names).enumerate() {
            look();
            if !member.usable || context.tried.contains(member.id) {
                continue;
            }
            let rank = (member.weight > 0, score(mix(hash, *name), member.weight.max(1)));
            if best.is_none_or(|(_, highest)| rank > highest) {
                best = Some((at, rank));
            }
        }
        best.map(|(at, _)| at)
    }
}

/// The score of a node: `-weight / ln(u)` of a uniform `u` in (0, 1) wins as often as the weight says.
fn score(bits: u64, weight: u32) -> f64 {
    /// The bits of a fraction that an `f64` holds.
    const FRACTION_BITS: u32 = 53;
    let uniform = ((bits >> (u64::BITS - FRACTION_BITS)) as f64 + 0.5) / (1u64 << FRACTION_BITS) as f64;
    -f64::from(weight) / uniform.ln()
}

/// FNV-1a, with its bits spread.
fn hash(bytes: &[u8]) -> u64 {
    let each = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, each), 1)
}
