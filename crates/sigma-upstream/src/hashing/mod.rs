//! Hash tables that map keys to nodes: a ring of points, and Maglev's.
//!
//! A table never changes: a change of the nodes makes another table, from parts of the former one. So the control
//! side can build a table for all workers.

mod hash_nodes;
mod maglev;
mod ring;

use std::sync::Arc;

use crate::identity::EndpointId;

pub(crate) use hash_nodes::{HashNodes, NONE};
pub(crate) use maglev::Maglev;
pub(crate) use ring::Ring;
pub use ring::crc32;

/// A node in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HashNode {
    pub(crate) id: EndpointId,
    /// Its name is its address, not its host.
    pub(crate) by_address: bool,
    /// Its weight, or the table's share derived from it.
    pub(crate) share: u32,
}

/// A map from hashes of keys to nodes.
pub(crate) trait Table: Sized {
    /// A node without a share is found if all others are out.
    const FINDS_SHARELESS: bool;

    /// Turns weights into the shares of the table.
    fn share_out(nodes: &mut [HashNode]);

    /// Builds a table of nodes with their shares. `name` returns the name of the node at a position if the `former`
    /// table does not have it.
    fn of(nodes: &[HashNode], name: &dyn Fn(usize) -> String, former: Option<&Self>) -> Self;

    /// Returns the tables of this kind among those built in advance.
    fn made_ahead(tables: &MadeAhead) -> &[Arc<Self>];

    /// Returns its nodes.
    fn hash_nodes(&self) -> &HashNodes;

    fn hash(key: &[u8]) -> u64;

    /// Returns the number of the first node accepted by `may`, in an order that depends on the hash of a key.
    fn find(&self, hash: u64, may: &dyn Fn(u32) -> bool) -> Option<u32>;
}

/// The tables of a set of nodes, built by the control side, one for each priority.
#[derive(Debug, Clone, Default)]
pub enum MadeAhead {
    /// No table is needed, or worth it
    #[default]
    None,
    /// For `chash`
    Rings(Vec<Arc<Ring>>),
    /// For `maglev`
    Maglev(Vec<Arc<Maglev>>),
}

/// Returns the table of nodes with weights, and the position in `nodes` of each number of the table. It is one of the
/// `candidates` with exactly these nodes, or else made from the most similar one.
pub(crate) fn table<'t, T: Table + 't>(
    mut nodes: Vec<HashNode>,
    name: &dyn Fn(usize) -> String,
    candidates: impl Iterator<Item = &'t Arc<T>> + Clone,
) -> (Arc<T>, Box<[u32]>) {
    T::share_out(&mut nodes);
    if let Some(found) =
        candidates.clone().find_map(|table| Some((Arc::clone(table), table.hash_nodes().places(&nodes)?)))
    {
        return found;
    }
    let likest =
        candidates.map(|table| (table.hash_nodes().likeness(&nodes), table)).max_by_key(|(like, _)| *like);
    let former = likest.filter(|(like, _)| *like > 0).map(|(_, table)| &**table);
    let table = T::of(&nodes, name, former);
    let places = table.hash_nodes().places(&nodes).unwrap_or_default();
    (Arc::new(table), places)
}

/// Greatest common divisor; 0 is neutral.
pub(crate) fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Derives other random bits from `random`: each `salt` gives others (SplitMix64).
#[inline]
pub(crate) fn mix(random: u64, salt: u64) -> u64 {
    let mut bits = random.wrapping_add(salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
thread_local! {
    /// The number of look-ups by picks of this thread.
    pub(crate) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// The cost of building tables on this thread: points or names hashed, and points or places written.
    pub(crate) static WORK: std::cell::Cell<(usize, usize)> = const { std::cell::Cell::new((0, 0)) };
}

/// Counts a look-up of a pick at a node or a table position; in tests only.
#[inline(always)]
pub(crate) fn look() {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
}

/// Counts work on a table; in tests only.
#[inline(always)]
#[cfg_attr(not(test), expect(unused_variables, reason = "counted in tests only"))]
fn note(hashed: usize, written: usize) {
    #[cfg(test)]
    WORK.set((WORK.get().0 + hashed, WORK.get().1 + written));
}
