//! The tables by which a key finds its node: a ring of points, and Maglev's.
//!
//! A table never changes: a change of the nodes makes another one, of what the former has already. So a
//! table can be made by the control side, and shared by all workers.

mod maglev;
mod ring;
mod roll;

use std::sync::Arc;

use crate::identity::EndpointId;

pub(crate) use maglev::Maglev;
pub(crate) use ring::Ring;
pub use ring::crc32;
pub(crate) use roll::{NONE, Roll};

/// A node that a table is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HashNode {
    pub(crate) id: EndpointId,
    /// It is named by its address, not by its host.
    pub(crate) by_address: bool,
    /// Its weight, or what a table makes of it.
    pub(crate) share: u32,
}

/// Finds nodes by the hashes of keys.
pub(crate) trait Table: Sized {
    /// Whether a node without a share is found where all others are out.
    const FINDS_SHARELESS: bool;

    /// Turns weights into the shares that the table is made by.
    fn share_out(nodes: &mut [HashNode]);

    /// A table of nodes with their shares. `name` is asked for the name of the node at a position if the
    /// `former` table does not have it.
    fn of(nodes: &[HashNode], name: &dyn Fn(usize) -> String, former: Option<&Self>) -> Self;

    /// The tables of this kind among those that were made ahead.
    fn made_ahead(tables: &MadeAhead) -> &[Arc<Self>];

    /// Its nodes.
    fn roll(&self) -> &Roll;

    fn hash(key: &[u8]) -> u64;

    /// The number of the first node that `may` be used, in an order that depends on the hash of a key.
    fn find(&self, hash: u64, may: &dyn Fn(u32) -> bool) -> Option<u32>;
}

/// The tables of a set of nodes that the control side has made, one for each priority.
#[derive(Debug, Clone, Default)]
pub enum MadeAhead {
    /// None is needed, or worth it.
    #[default]
    None,
    /// For `chash`.
    Rings(Vec<Arc<Ring>>),
    /// For `maglev`.
    Maglev(Vec<Arc<Maglev>>),
}

/// The table of nodes, given with their weights, and where in `nodes` each number of the table is: one
/// of the `candidates`, if it is of just these nodes, else one that is made of the likest.
pub(crate) fn table<'t, T: Table + 't>(
    mut nodes: Vec<HashNode>,
    name: &dyn Fn(usize) -> String,
    candidates: impl Iterator<Item = &'t Arc<T>> + Clone,
) -> (Arc<T>, Box<[u32]>) {
    T::share_out(&mut nodes);
    if let Some(found) =
        candidates.clone().find_map(|table| Some((Arc::clone(table), table.roll().places(&nodes)?)))
    {
        return found;
    }
    let likest = candidates.map(|table| (table.roll().likeness(&nodes), table)).max_by_key(|(like, _)| *like);
    let former = likest.filter(|(like, _)| *like > 0).map(|(_, table)| &**table);
    let table = T::of(&nodes, name, former);
    let places = table.roll().places(&nodes).unwrap_or_default();
    (Arc::new(table), places)
}

/// Greatest common divisor; 0 is neutral.
pub(crate) fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Other random bits made of `random`: each `salt` gives others (SplitMix64).
#[inline]
pub(crate) fn mix(random: u64, salt: u64) -> u64 {
    let mut bits = random.wrapping_add(salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
thread_local! {
    /// How often picks of this thread have looked at something.
    pub(crate) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// What making tables has cost this thread: points or names hashed, and points or places written.
    pub(crate) static WORK: std::cell::Cell<(usize, usize)> = const { std::cell::Cell::new((0, 0)) };
}

/// A pick looks at a node or at a place of a table; counted in tests only.
#[inline(always)]
pub(crate) fn look() {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
}

/// Work was done on a table; counted in tests only.
#[inline(always)]
#[cfg_attr(not(test), expect(unused_variables, reason = "counted in tests only"))]
fn note(hashed: usize, written: usize) {
    #[cfg(test)]
    WORK.set((WORK.get().0 + hashed, WORK.get().1 + written));
}
