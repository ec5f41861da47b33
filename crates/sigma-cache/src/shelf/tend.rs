//! What is done beside all requests: looking through the folder at the start, and forgetting what nobody uses.

use std::collections::HashSet;
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foldhash::fast::RandomState;

use super::entry::Entry;
use super::format::{Read, decode};
use super::port::{Disk, Found, Trouble};
use super::{Counts, Shelf, held};
use crate::mark::seconds;
use crate::purge::Purge;

/// Files that are looked at in one go, and the pauses between two: requests read from the same disk.
const FOUND_AT_ONCE: usize = 64;
const SCAN_PAUSE_MS: u64 = 2;

/// Entries that go in one go because nobody used them.
const INACTIVE_AT_ONCE: usize = 256;

/// The pause when there is nothing to do.
const PAUSE_MS: u64 = 1_000;

/// Orders, and keys, that are remembered until all is looked through. Behind them nothing that is found is believed.
const ORDERS_MAX: usize = 1_000;
const OUTDATED_MAX: usize = 1 << 20;

/// What must not be believed of what is found, as it was forgotten or is known better.
#[derive(Debug, Default)]
pub(super) struct Scan {
    orders: Vec<Purge>,
    /// Keys, by their hashes: one too many costs an answer that could have been used.
    outdated: HashSet<u64>,
    hasher: RandomState,
    /// Too much of it: nothing is believed.
    is_void: bool,
}

impl Scan {
    fn believes(&self, entry: &Entry) -> bool {
        !self.is_void
            && !self.outdated.contains(&self.hasher.hash_one(&entry.key))
            && !self.orders.iter().any(|order| order.means(&entry.key, &entry.label))
    }
}

/// How far a folder is looked through; belongs to who calls [`Shelf::tend`].
#[derive(Debug, Default)]
pub struct Tending {
    part: usize,
    found: Vec<Found>,
}

impl Shelf {
    /// What was found under a key is outdated.
    pub(super) fn outdate(&self, key: &[u8]) {
        if self.is_known() {
            return;
        }
        if let Some(scan) = &mut *held(&self.scan) {
            let hash = scan.hasher.hash_one(key);
            scan.is_void |= scan.outdated.len() >= OUTDATED_MAX;
            if !scan.is_void {
                scan.outdated.insert(hash);
            }
        }
    }

    /// What an order means must not be found.
    pub(super) fn distrust(&self, order: &Purge) {
        if self.is_known() {
            return;
        }
        if let Some(scan) = &mut *held(&self.scan) {
            scan.is_void |= scan.orders.len() >= ORDERS_MAX || order.all;
            if !scan.is_void {
                scan.orders.push(order.clone());
            }
        }
    }

    /// Does some of what is to be done, and returns for how many milliseconds there is nothing more. To be called again
    /// and again by one thread that may wait for the disk.
    pub fn tend(self: &Arc<Shelf>, tending: &mut Tending, now: u64) -> u64 {
        let Some(disk) = self.disk() else { return PAUSE_MS };
        if !self.is_known()
            && let Some(pause) = self.look_through(&*disk, tending, now)
        {
            return pause;
        }
        let stuck = std::mem::take(&mut held(&self.doomed).stuck);
        for entry in &stuck {
            self.remove(&*disk, entry);
        }
        let before = seconds(now).saturating_sub(self.bounds.inactive_s);
        for _ in 0..INACTIVE_AT_ONCE {
            let Some(oldest) = self.index.oldest(before) else { return PAUSE_MS };
            Counts::add(&self.counts.inactive);
            self.remove(&*disk, &oldest);
        }
        SCAN_PAUSE_MS
    }

    /// Looks at a few files, and returns the pause before the next ones; None if there are no more.
    fn look_through(self: &Arc<Shelf>, disk: &dyn Disk, tending: &mut Tending, now: u64) -> Option<u64> {
        if tending.found.is_empty() {
            if tending.part >= disk.parts() {
                *held(&self.scan) = None;
                self.is_scanning.store(false, Ordering::Release);
                return None;
            }
            match disk.list(tending.part) {
                Ok(found) => tending.found = found,
                // It is gone.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    // What is in it must not be passed over: a later process would find what this one had to forget.
                    self.fail(Trouble::Read, Some(&error));
                    return Some(PAUSE_MS);
                }
            }
            tending.part += 1;
        }
        let first = tending.found.len().saturating_sub(FOUND_AT_ONCE);
        for found in tending.found.split_off(first) {
            self.look_at(disk, found, now);
        }
        Some(SCAN_PAUSE_MS)
    }

    fn look_at(self: &Arc<Shelf>, disk: &dyn Disk, found: Found, now: u64) {
        if self.is_of_now(found) {
            return;
        }
        let entry = match found.is_draft {
            true => Ok(None),
            false => read_entry(disk, found, now),
        };
        let entry = match entry {
            Ok(None) if !found.is_draft => {
                self.fail(Trouble::Corrupt, None);
                None
            }
            Ok(entry) => entry,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                // It goes: a later process would find what this one had to forget.
                self.fail(Trouble::Read, Some(&error));
                None
            }
        };
        if entry.is_none_or(|entry| !self.believe(disk, entry))
            && let Err(error) = disk.remove(found)
        {
            self.fail(Trouble::Remove, Some(&error));
        }
    }

    /// Whether this process has written it: it is in the table, or forgotten.
    fn is_of_now(&self, found: Found) -> bool {
        let names = self.names.get().copied().unwrap_or_default();
        found.id.0 >> 64 == u128::from(names)
    }

    /// Puts one into the table; false if it must not be used.
    fn believe(self: &Arc<Shelf>, disk: &dyn Disk, entry: Entry) -> bool {
        let entry = Arc::new(entry);
        // Held until it is in the table: whoever forgets its key meanwhile is seen here, or finds it there.
        let scan = held(&self.scan);
        if !scan.as_ref().is_some_and(|scan| scan.believes(&entry)) {
            return false;
        }
        let (is_newest, gone) = self.index.found(&entry);
        drop(scan);
        for other in &gone {
            self.remove(disk, other);
        }
        if is_newest {
            Counts::add(&self.counts.found);
            self.fit(disk);
        }
        is_newest
    }

    /// Forgets as much as is too much: the bounds may be others than they were.
    fn fit(&self, disk: &dyn Disk) {
        while self.index.size() > self.bounds.disk_bytes || self.index.weight() > self.bounds.table_bytes {
            let Some(oldest) = self.index.oldest(u32::MAX) else { return };
            Counts::add(&self.counts.evicted);
            if !self.remove(disk, &oldest) {
                return;
            }
        }
    }
}

/// What a file is of; None if it is not as it was written, as far as its head shows.
fn read_entry(disk: &dyn Disk, found: Found, now: u64) -> io::Result<Option<Entry>> {
    let file = disk.open(found.id)?;
    let Some((layout, beginning)) = super::read::beginning(&*file, found.id)? else { return Ok(None) };
    let read = layout.head(&beginning).and_then(|head| decode(head.text));
    Ok(read.map(|Read { key, stored, body_length }| {
        Entry::new(found.id, key, &stored, layout.size(body_length), now)
    }))
}
