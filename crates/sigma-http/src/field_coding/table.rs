//! The dynamic table (RFC 7541 §2.3.2 and §4) of either side.

use std::collections::VecDeque;

/// Overhead of an entry besides its name and value (RFC 7541 §4.1).
pub(crate) const OVERHEAD: usize = 32;
/// The initial memory of a table's texts.
const LEAST_BYTES: usize = 256;

/// Fields by age. `T` is a side's note about each field.
///
/// The texts are one run of bytes in the order of the fields. Eviction moves the start of the live part. The live
/// part moves to the front only when room is needed after it.
#[derive(Debug, Clone)]
pub(crate) struct Table<T> {
    entries: VecDeque<Entry<T>>,
    bytes: Vec<u8>,
    /// The bytes removed at the front, so that positions stay valid.
    moved: u32,
    size: u32,
    limit: u32,
}

#[derive(Debug, Clone, Copy)]
struct Entry<T> {
    /// The position of the name, among all bytes ever added. The value follows it.
    start: u32,
    name: u32,
    value: u32,
    note: T,
}

/// A field of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableField<'t, T> {
    /// In lower case.
    pub(crate) name: &'t [u8],
    pub(crate) value: &'t [u8],
    pub(crate) note: T,
}

impl<T> Entry<T> {
    fn length(&self) -> usize {
        self.name as usize + self.value as usize
    }
}

/// Returns the counted size of a field.
pub(crate) fn size(name: &[u8], value: &[u8]) -> usize {
    name.len() + value.len() + OVERHEAD
}

impl<T: Copy> Table<T> {
    pub(crate) fn new(limit: u32) -> Table<T> {
        Table { entries: VecDeque::new(), bytes: Vec::new(), moved: 0, size: 0, limit }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the field of an entry; the last one added has the age zero.
    #[inline]
    pub(crate) fn get(&self, age: usize) -> Option<TableField<'_, T>> {
        let at = self.entries.len().checked_sub(age + 1)?;
        let entry = self.entries.get(at)?;
        let start = entry.start.wrapping_sub(self.moved) as usize;
        let (name, value) = self.bytes[start..start + entry.length()].split_at(entry.name as usize);
        Some(TableField { name, value, note: entry.note })
    }

    /// Sets the total size of the entries, and evicts the excess.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        self.evict(limit as usize);
        if self.entries.is_empty() {
            *self = Table::new(limit);
        }
    }

    /// Adds a field and evicts the oldest ones as needed, even if the field is too large to be added (RFC 7541 §4.4).
    /// The name is kept in lower case. Returns true if it was added.
    pub(crate) fn add(&mut self, name: &[u8], value: &[u8], note: T) -> bool {
        let size = size(name, value);
        let Some(others) = (self.limit as usize).checked_sub(size) else {
            self.evict(0);
            return false;
        };
        self.evict(others);
        self.make_room(name.len() + value.len());
        let at = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes[at..].make_ascii_lowercase();
        self.bytes.extend_from_slice(value);
        self.size += size as u32;
        self.entries.push_back(Entry {
            start: self.moved.wrapping_add(at as u32),
            name: name.len() as u32,
            value: value.len() as u32,
            note,
        });
        true
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns how many of the oldest entries leave for a new field of this size.
    pub(crate) fn leaving_for(&self, size: usize) -> usize {
        let mut total = self.size as usize + size;
        let leaves = |entry: &&Entry<T>| {
            let is_over = total > self.limit as usize;
            total -= entry.length() + OVERHEAD;
            is_over
        };
        self.entries.iter().take_while(leaves).count()
    }

    fn evict(&mut self, most: usize) {
        while self.size as usize > most {
            let Some(oldest) = self.entries.pop_front() else { return };
            self.size -= (oldest.length() + OVERHEAD) as u32;
        }
    }

    /// Makes room for `more` bytes after the last text.
    fn make_room(&mut self, more: usize) {
        if self.bytes.len() + more <= self.bytes.capacity() {
            return;
        }
        let end = self.bytes.len();
        let dead = match self.entries.front() {
            Some(oldest) => oldest.start.wrapping_sub(self.moved) as usize,
            None => end,
        };
        self.bytes.drain(..dead);
        self.moved = self.moved.wrapping_add(dead as u32);
        // Half as much again as the live part, so that not every field needs a move.
        let needed = self.bytes.len() + more;
        let most = self.limit as usize + self.limit as usize / 2;
        let wanted = (needed + needed / 2).next_power_of_two().max(LEAST_BYTES).min(most.max(needed));
        if self.bytes.capacity() < wanted {
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
    }
}

#[cfg(test)]
impl<T: Copy> Table<T> {
    /// Returns names and values, the newest first.
    pub(crate) fn entries(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let all = (0..self.entries.len()).filter_map(|age| self.get(age));
        all.map(|field| (field.name.to_vec(), field.value.to_vec())).collect()
    }

    /// Returns the counted size of the entries, and the memory of their texts.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.size as usize, self.bytes.capacity())
    }
}
