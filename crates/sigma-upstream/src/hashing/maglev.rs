//! Maglev hashing (Eisenbud and others): a table in which every node has an equal part; a pick is one look-up, O(1).
//!
//! Shares are more even than on a ring, and the table is built faster; when a node comes or leaves, a few keys of
//! other nodes move as well. The table contains unusable nodes too: a key that hits one tries further positions,
//! which depend on the key alone. So a change of health moves only the keys of its node.

use std::sync::Arc;

use super::hash_nodes::Change;
use super::{HashNode, HashNodes, MadeAhead, Table, mix, note};

/// The size of a table: a prime, and Envoy's default. 256 KiB.
const PLACES: usize = 65_537;

/// Positions that a key tries before it scans the nodes.
const LOOKS: u64 = 16;

/// A free position.
const FREE: u32 = u32::MAX;

/// Maglev's table.
#[derive(Debug)]
pub struct Maglev {
    hash_nodes: HashNodes,
    /// Hashes of the names, by number.
    hashes: Vec<u64>,
    /// Numbers.
    places: Box<[u32]>,
}

impl Table for Maglev {
    const FINDS_SHARELESS: bool = true;

    fn share_out(_nodes: &mut [HashNode]) {}

    fn of(nodes: &[HashNode], name: &dyn Fn(usize) -> String, former: Option<&Maglev>) -> Maglev {
        let Change { hash_nodes, new, .. } =
            HashNodes::changed(former.map(|former| &former.hash_nodes), nodes, name);
        let mut hashes = former.map(|former| former.hashes.clone()).unwrap_or_default();
        for &number in &new {
            let number = number as usize;
            hashes.resize(hashes.len().max(number + 1), 0);
            hashes[number] = Maglev::hash(hash_nodes.name(number as u32).as_bytes());
        }
        let places = fill(&hash_nodes, &hashes);
        note(new.len(), places.len());
        Maglev { hash_nodes, hashes, places }
    }

    fn made_ahead(tables: &MadeAhead) -> &[Arc<Maglev>] {
        if let MadeAhead::Maglev(tables) = tables { tables } else { &[] }
    }

    fn hash_nodes(&self) -> &HashNodes {
        &self.hash_nodes
    }

    /// FNV-1a, with mixed bits.
    fn hash(bytes: &[u8]) -> u64 {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, step), 0)
    }

    /// Nodes without weight are only used if there is no other.
    fn find(&self, key: u64, may: &dyn Fn(u32) -> bool) -> Option<u32> {
        let places = self.places.len() as u64;
        let looks = (0..LOOKS).map(|look| if look == 0 { key } else { mix(key, look) });
        let mut found = looks.map(|look| self.places[(look % places) as usize]);
        found.find(|&number| may(number)).or_else(|| {
            // The highest hash of key and node: the same on every gateway.
            let left = self.hash_nodes.iter().filter(|(number, _)| may(*number));
            let score =
                |(number, has_weight): &(u32, bool)| (*has_weight, mix(key, self.hashes[*number as usize]));
            left.map(|(number, listed)| (number, listed.node.share > 0))
                .max_by_key(score)
                .map(|(number, _)| number)
        })
    }
}

/// A node that takes positions: those in its own permutation, in order.
struct Taker {
    number: u32,
    place: u32,
    step: u32,
    /// Positions that it may still take by its weight.
    quota: u32,
}

/// Positions, and their taken bits, which all fit into the first-level cache.
struct Places {
    taken: Box<[u64]>,
    by: Box<[u32]>,
}

impl Places {
    #[inline]
    fn give(&mut self, taker: &mut Taker) {
        let mut place = taker.place;
        while self.taken[place as usize / 64] >> (place % 64) & 1 == 1 {
            place += taker.step;
            place -= if place >= PLACES as u32 { PLACES as u32 } else { 0 };
        }
        self.taken[place as usize / 64] |= 1 << (place % 64);
        self.by[place as usize] = taker.number;
        taker.place = place;
    }
}

/// Builds the table of nodes; there is at least one. Nodes take positions in turns until each has its part; the
/// rounding rest goes round once more. Nodes without weight get none unless no node has weight.
fn fill(hash_nodes: &HashNodes, hashes: &[u64]) -> Box<[u32]> {
    let weightless = hash_nodes.iter().all(|(_, listed)| listed.node.share == 0);
    let weight = |share: u32| if weightless { 1 } else { u64::from(share) };
    let total: u64 = hash_nodes.iter().map(|(_, listed)| weight(listed.node.share)).sum();
    let taker = |(number, weight): (u32, u64)| {
        let hash = hashes[number as usize];
        Taker {
            number,
            place: (mix(hash, 1) % PLACES as u64) as u32,
            step: (mix(hash, 2) % (PLACES as u64 - 1)) as u32 + 1,
            // At most the number of positions.
            quota: (u128::from(weight) * PLACES as u128 / u128::from(total)) as u32,
        }
    };
    let weights = hash_nodes.iter().map(|(number, listed)| (number, weight(listed.node.share)));
    let mut takers: Vec<Taker> = weights.filter(|(_, weight)| *weight > 0).map(taker).collect();
    // So that the configured order does not matter.
    takers.sort_unstable_by_key(|taker| hashes[taker.number as usize]);
    let mut places = Places {
        taken: vec![0; PLACES.div_ceil(64)].into_boxed_slice(),
        by: vec![FREE; PLACES].into_boxed_slice(),
    };
    let mut left = PLACES;
    let mut turns: Vec<usize> = (0..takers.len()).collect();
    loop {
        turns.retain(|&turn| takers[turn].quota > 0);
        if turns.is_empty() {
            break;
        }
        for &turn in &turns {
            places.give(&mut takers[turn]);
            takers[turn].quota -= 1;
            left -= 1;
        }
    }
    takers.iter_mut().take(left).for_each(|taker| places.give(taker));
    places.by
}
