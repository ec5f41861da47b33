//! The places of fields in an encoder's dynamic table, and the fields that it has seen.
//!
//! Hashes use a few bytes of a text. Two texts with one hash are compared where it matters; elsewhere a field just
//! enters the table early.

use super::table::{Table, TableField};

const SETS: usize = 16;
const WAYS: usize = 4;
const NOTICED_SETS: usize = 32;
const NOTICED_WAYS: usize = 2;

/// The positions of fields in the dynamic table, and recently seen fields.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    /// By a part of the hash, the last few entries with it: another part of the hash, and the entry's number.
    places: [[(u16, u16); WAYS]; SETS],
    /// By a part of the hash, the recently seen hashes: another part of each.
    noticed: [[u16; NOTICED_WAYS]; NOTICED_SETS],
    /// A counter of first sightings; it selects the entry of a set to replace. It rotates, so that fields of one set
    /// do not replace each other in every block.
    turn: u8,
    /// The number of entries ever added, which is the number of the last one.
    added: u16,
    /// The entry to try first for the next field. Heads of one kind have their fields in one order, in which they
    /// entered the table, so most are found without a look-up.
    next: u16,
    /// The entry of the first field of an earlier block.
    first: u16,
    /// No field of this block has had an entry.
    is_first: bool,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            places: [[(0, 0); WAYS]; SETS],
            noticed: [[0; NOTICED_WAYS]; NOTICED_SETS],
            turn: 0,
            added: 0,
            next: 0,
            first: 0,
            is_first: true,
        }
    }
}

impl Memory {
    /// Starts a block.
    pub(crate) fn begin(&mut self) {
        self.next = self.first;
        self.is_first = true;
    }

    /// Counts a new entry.
    pub(crate) fn count_added(&mut self) {
        self.added = self.added.wrapping_add(1);
    }

    /// Returns the age of the entry after the last used one, if it matches.
    #[inline]
    pub(crate) fn guess<T: Copy>(
        &mut self,
        table: &Table<T>,
        fits: impl FnOnce(TableField<'_, T>) -> bool,
    ) -> Option<usize> {
        let age = usize::from(self.added.wrapping_sub(self.next));
        if !fits(table.get(age)?) {
            return None;
        }
        self.follow(age);
        Some(age)
    }

    /// Makes the entry after this one the first to try.
    #[inline]
    pub(crate) fn follow(&mut self, age: usize) {
        let number = self.added.wrapping_sub(age as u16);
        if self.is_first {
            self.first = number;
            self.is_first = false;
        }
        self.next = number.wrapping_add(1);
    }

    /// Returns the age of an entry with this hash that matches.
    pub(crate) fn find<T: Copy>(
        &self,
        hash: u32,
        table: &Table<T>,
        fits: impl Fn(TableField<'_, T>) -> bool,
    ) -> Option<usize> {
        let (set, tag) = split(hash);
        for &(own, number) in &self.places[set] {
            if own != tag {
                continue;
            }
            // An old number gives a large age, or the age of another entry, which does not match.
            let age = usize::from(self.added.wrapping_sub(number));
            if table.get(age).is_some_and(&fits) {
                return Some(age);
            }
        }
        None
    }

    /// Registers the last entry; it replaces one with the same hash or the oldest.
    pub(crate) fn register(&mut self, hash: u32) {
        let (set, tag) = split(hash);
        let added = self.added;
        let rank = |place: &(u16, u16)| if place.0 == tag { u16::MAX } else { added.wrapping_sub(place.1) };
        if let Some(place) = self.places[set].iter_mut().max_by_key(|place| rank(place)) {
            *place = (tag, added);
        }
    }

    /// Returns true if this hash was seen recently; records it.
    pub(crate) fn notice(&mut self, hash: u32) -> bool {
        let (_, tag) = split(hash);
        let set = &mut self.noticed[hash as usize / SETS % NOTICED_SETS];
        if set.contains(&tag) {
            return true;
        }
        // Not one after the other: three fields of one set would never be seen twice.
        self.turn = self.turn.wrapping_mul(5).wrapping_add(3);
        set[usize::from(self.turn >> 6) % NOTICED_WAYS] = tag;
        false
    }
}

fn split(hash: u32) -> (usize, u16) {
    (hash as usize % SETS, (hash >> 16) as u16 | 1)
}

/// Hashes a name, in any case.
pub(crate) fn hash_of_name(name: &[u8]) -> u32 {
    const SMALL: u64 = u64::from_ne_bytes([0x20; 8]);
    mix(0, sample(name, SMALL))
}

/// Samples a few bytes of a text and its length; all bytes of a text up to 16. `set` is set in every eight bytes.
pub(crate) fn sample(text: &[u8], set: u64) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let length = text.len() as u64;
    let (first, last) = match (text.first_chunk(), text.last_chunk()) {
        (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        _ => match (text.first_chunk(), text.last_chunk()) {
            (Some(first), Some(last)) => {
                (u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into())
            }
            _ => (text.iter().fold(0, |bytes, &byte| bytes << 8 | u64::from(byte)), 0),
        },
    };
    let mut hash = (first | set).wrapping_mul(FACTOR).rotate_left(29) ^ (last | set) ^ length << 56;
    if let Some(rest) = text.get(8..)
        && rest.len() > 8
        && let Some(middle) = rest[rest.len() / 2 - 4..].first_chunk()
    {
        hash = hash.wrapping_mul(FACTOR).rotate_left(29) ^ (u64::from_le_bytes(*middle) | set);
    }
    hash
}

pub(crate) fn mix(seed: u32, hash: u64) -> u32 {
    const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;
    let mixed = (hash ^ u64::from(seed) << 17).wrapping_mul(FACTOR);
    (mixed >> 32 ^ mixed >> 13) as u32
}
