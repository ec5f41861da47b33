//! Smooth weighted round robin: over Σ(weights)/gcd picks every node gets exactly weight/gcd, and the picks of a node
//! are spread evenly over that period (the algorithm of nginx).
//!
//! A pick is O(1) for equal weights. Otherwise it is O(n) up to [`SMOOTH_MAX`] nodes. Beyond that, nodes take turns
//! in planes, one for each bit of the weights, which keeps the shares exact and makes a pick O(bits) for any number
//! of nodes.

use super::slow_start::{SlowStart, Warming};
use super::{Group, Member, PickContext, Policy, below, gcd, look, mix, weighted};
use crate::endpoint::EndpointSet;
use crate::identity::EndpointId;

/// The number of nodes with different weights up to which each pick scans all: a search in planes would cost more.
const SMOOTH_MAX: usize = 32;

/// Turns that a pick may lose to tried nodes, before it scans all nodes.
const TURNS: usize = 8;

/// Turns that a pick may lose to warming nodes.
const TURNS_WARMING: u64 = 64;

/// Smooth weighted round robin.
#[derive(Debug)]
pub(super) struct RoundRobin {
    seed: u64,
    slow_start: Option<SlowStart>,
    groups: Vec<Wheel>,
}

#[derive(Debug)]
struct Wheel {
    members: Vec<Member>,
    turns: Turns,
    warming: Option<Warming>,
}

/// The turns of nodes.
#[derive(Debug)]
enum Turns {
    /// One after the other, the result of the algorithm for equal weights.
    Equal(Rotation),
    /// By weight.
    Smooth(Owed),
    /// A plane by its weight, then its members one after the other.
    Planes(Owed, Vec<Plane>),
}

/// The members whose weight has a bit; each adds 2^bit to the plane's weight.
#[derive(Debug)]
struct Plane {
    bit: u32,
    rotation: Rotation,
}

/// Members that take turns.
#[derive(Debug)]
struct Rotation {
    /// Their positions.
    members: Vec<usize>,
    next: usize,
}

impl Rotation {
    fn turn(&mut self) -> usize {
        look();
        let at = self.members[self.next];
        self.next = if self.next + 1 == self.members.len() { 0 } else { self.next + 1 };
        at
    }
}

/// The debt to each member by its weight; the sum is 0 between picks.
#[derive(Debug)]
struct Owed {
    weights: Vec<i64>,
    owed: Vec<i64>,
    total: i64,
}

impl Owed {
    fn new(weights: Vec<i64>) -> Owed {
        Owed { owed: vec![0; weights.len()], total: weights.iter().sum(), weights }
    }

    /// Continues with earlier debts, for weights with the sum `total`.
    fn resume(&mut self, total: i64, owed: impl Fn(usize) -> Option<i64>) {
        for (at, own) in self.owed.iter_mut().enumerate() {
            let carried =
                i128::from(owed(at).unwrap_or(0)) * i128::from(self.total) / i128::from(total.max(1));
            *own = i64::try_from(carried).unwrap_or(0);
        }
        let count = self.owed.len() as i64;
        if count > 0 {
            let sum: i64 = self.owed.iter().sum();
            self.owed.iter_mut().for_each(|own| *own -= sum / count);
            self.owed[0] -= sum % count;
        }
    }

    /// Returns the member with the largest debt. There is at least one.
    fn turn(&mut self) -> usize {
        let mut best = 0;
        for at in 0..self.owed.len() {
            look();
            self.owed[at] += self.weights[at];
            if self.owed[at] > self.owed[best] {
                best = at;
            }
        }
        self.owed[best] -= self.total;
        best
    }

    /// As [`Owed::turn`], among some members: only they gain and pay, so that the other debts stay.
    fn turn_among(&mut self, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let mut best: Option<usize> = None;
        let mut total = 0;
        for at in (0..self.owed.len()).filter(|&at| fits(at)) {
            self.owed[at] += self.weights[at];
            total += self.weights[at];
            if best.is_none_or(|b| self.owed[at] > self.owed[b]) {
                best = Some(at);
            }
        }
        self.owed[best?] -= total;
        best
    }
}

impl RoundRobin {
    /// `seed` rotates the order, so that workers begin with different nodes.
    pub(super) fn new(seed: u64, slow_start: Option<SlowStart>) -> RoundRobin {
        RoundRobin { seed, slow_start, groups: Vec::new() }
    }
}

impl Policy for RoundRobin {
    fn rebuild(&mut self, _: &EndpointSet, groups: &[Group]) {
        let old = std::mem::take(&mut self.groups);
        let wheel = |(number, group): (usize, &Group)| {
            let mut wheel = Wheel::new(group, self.seed, self.slow_start);
            if let Some(old) = old.get(number) {
                wheel.resume(old);
            }
            wheel
        };
        self.groups = groups.iter().enumerate().map(wheel).collect();
    }

    #[inline]
    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let wheel = self.groups.get_mut(group)?;
        let at = match wheel.warming {
            None => wheel.turn(context)?,
            Some(warming) => wheel.turn_of_warm(&warming, context)?,
        };
        Some(wheel.members[at].index)
    }
}

impl Wheel {
    fn new(group: &[Member], seed: u64, slow_start: Option<SlowStart>) -> Wheel {
        let mut members = weighted(group);
        let start = below(seed, members.len() as u64) as usize;
        members.rotate_left(start);
        let equal = members.windows(2).all(|pair| pair[0].weight == pair[1].weight);
        let turns = if equal {
            Turns::Equal(Rotation { members: (0..members.len()).collect(), next: 0 })
        } else if members.len() <= SMOOTH_MAX {
            Turns::Smooth(Owed::new(members.iter().map(|m| i64::from(m.weight)).collect()))
        } else {
            planes(&members)
        };
        Wheel { warming: Warming::of(slow_start, &members), members, turns }
    }

    /// Continues the state of `old`, as far as it has the same members.
    fn resume(&mut self, old: &Wheel) {
        match (&mut self.turns, &old.turns) {
            (Turns::Equal(own), Turns::Equal(old_turns)) => {
                own.resume(&self.members, old_turns, &old.members);
            }
            (Turns::Smooth(own), Turns::Smooth(known)) => {
                let place = |id: EndpointId| old.members.iter().position(|m| m.id == id);
                own.resume(known.total, |at| Some(known.owed[place(self.members[at].id)?]));
            }
            (Turns::Planes(own, planes), Turns::Planes(known, old_planes)) => {
                let place = |bit: u32| old_planes.iter().position(|old| old.bit == bit);
                own.resume(known.total, |at| Some(known.owed[place(planes[at].bit)?]));
                for plane in planes {
                    if let Some(at) = place(plane.bit) {
                        plane.rotation.resume(&self.members, &old_planes[at].rotation, &old.members);
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns the position with the next turn that slow start does not skip.
    fn turn_of_warm(&mut self, warming: &Warming, context: &PickContext<'_>) -> Option<usize> {
        let mut at = self.turn(context)?;
        for again in 0..TURNS_WARMING {
            if warming.takes(&self.members[at], context.now_ms, mix(context.random, again)) {
                break;
            }
            at = self.turn(context)?;
        }
        Some(at)
    }

    /// Returns the position with the next turn.
    #[inline]
    fn turn(&mut self, context: &PickContext<'_>) -> Option<usize> {
        let members = &self.members;
        let fits = |at: usize| !context.tried.contains(members[at].id);
        match &mut self.turns {
            Turns::Smooth(owed) if context.tried.is_empty() => Some(owed.turn()),
            Turns::Smooth(owed) => owed.turn_among(fits),
            Turns::Equal(rotation) => {
                (0..rotation.members.len()).map(|_| rotation.turn()).find(|&at| fits(at))
            }
            Turns::Planes(owed, planes) => {
                let mut turns = (0..TURNS).map(|_| planes[owed.turn()].rotation.turn());
                turns.find(|&at| fits(at)).or_else(|| (0..members.len()).find(|&at| fits(at)))
            }
        }
    }
}

impl Rotation {
    /// Starts with the member that was next in `old`, or with a later one.
    fn resume(&mut self, members: &[Member], old: &Rotation, old_members: &[Member]) {
        let next = old.members[old.next..].iter().chain(&old.members).take(TURNS);
        let place = |at: &usize| self.members.iter().position(|&own| members[own].id == old_members[*at].id);
        if let Some(next) = next.into_iter().find_map(place) {
            self.next = next;
        }
    }
}

/// Returns the planes of members with different weights.
fn planes(members: &[Member]) -> Turns {
    let divisor = members.iter().fold(0, |d, m| gcd(d, m.weight)).max(1);
    let has = |at: usize, bit: u32| ((members[at].weight / divisor) >> bit) & 1 == 1;
    let plane = |bit: u32| {
        let members = (0..members.len()).filter(|&at| has(at, bit)).collect();
        Plane { bit, rotation: Rotation { members, next: 0 } }
    };
    let used = members.iter().fold(0, |bits, m| bits | (m.weight / divisor));
    let planes: Vec<Plane> = (0..u32::BITS).filter(|bit| (used >> bit) & 1 == 1).map(plane).collect();
    // At most 2^31 for each member, and a set has far fewer than 2^31.
    let weight = |plane: &Plane| (plane.rotation.members.len() as i64) << plane.bit;
    Turns::Planes(Owed::new(planes.iter().map(weight).collect()), planes)
}
