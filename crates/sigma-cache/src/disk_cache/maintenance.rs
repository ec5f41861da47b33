//! Background work: the scan of the folder at the start, and the removal of unused responses.

use std::collections::HashSet;
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foldhash::fast::RandomState;

use super::entry::Entry;
use super::format::{Read, decode};
use super::port::{Disk, ScannedFile, Trouble};
use super::{Counts, DiskCache, held};
use crate::mark::seconds;
use crate::purge::Purge;

/// Files scanned in one step, with pauses in between: requests read from the same disk.
const FOUND_AT_ONCE: usize = 64;
const SCAN_PAUSE_MS: u64 = 2;

/// Unused entries removed in one step.
const INACTIVE_AT_ONCE: usize = 256;

/// The pause without work.
const PAUSE_MS: u64 = 1_000;

/// The limit of orders and keys that are remembered until the scan is complete. Above it, no response found by the
/// scan is used.
const ORDERS_MAX: usize = 1_000;
const OUTDATED_MAX: usize = 1 << 20;

/// The purges and changes that exclude responses found by the scan.
#[derive(Debug, Default)]
pub(super) struct Scan {
    orders: Vec<Purge>,
    /// Keys, by their hashes: a collision only loses a usable response.
    outdated: HashSet<u64>,
    hasher: RandomState,
    /// The limit is exceeded: no found response is used.
    is_void: bool,
}

impl Scan {
    fn believes(&self, entry: &Entry) -> bool {
        !self.is_void
            && !self.outdated.contains(&self.hasher.hash_one(&entry.key))
            && !self.orders.iter().any(|order| order.means(&entry.key, &entry.label))
    }
}

/// The progress of a scan; it belongs to the caller of [`DiskCache::maintain`].
#[derive(Debug, Default)]
pub struct Maintenance {
    part: usize,
    found: Vec<ScannedFile>,
}

impl DiskCache {
    /// Excludes responses found under a key.
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

    /// Excludes found responses that match an order.
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

    /// Does a part of the work, and returns the milliseconds until the next call. Call it repeatedly on one thread
    /// that may wait for the disk.
    pub fn maintain(self: &Arc<DiskCache>, maintenance: &mut Maintenance, now: u64) -> u64 {
        let Some(disk) = self.disk() else { return PAUSE_MS };
        if !self.is_known()
            && let Some(pause) = self.look_through(&*disk, maintenance, now)
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

    /// Scans a few files, and returns the pause before the next ones; None at the end.
    fn look_through(
        self: &Arc<DiskCache>,
        disk: &dyn Disk,
        maintenance: &mut Maintenance,
        now: u64,
    ) -> Option<u64> {
        if maintenance.found.is_empty() {
            if maintenance.part >= disk.parts() {
                *held(&self.scan) = None;
                self.is_scanning.store(false, Ordering::Release);
                return None;
            }
            match disk.list(maintenance.part) {
                Ok(found) => maintenance.found = found,
                // It is gone.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    // Its files must not be skipped: a later process would find responses purged by this one.
                    self.fail(Trouble::Read, Some(&error));
                    return Some(PAUSE_MS);
                }
            }
            maintenance.part += 1;
        }
        let first = maintenance.found.len().saturating_sub(FOUND_AT_ONCE);
        for found in maintenance.found.split_off(first) {
            self.look_at(disk, found, now);
        }
        Some(SCAN_PAUSE_MS)
    }

    fn look_at(self: &Arc<DiskCache>, disk: &dyn Disk, found: ScannedFile, now: u64) {
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
                // The file is removed: a later process would find responses purged by this one.
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

    /// Returns true if this process has written it: it is in the table, or purged.
    fn is_of_now(&self, found: ScannedFile) -> bool {
        let names = self.names.prefix();
        found.id.0 >> 64 == u128::from(names)
    }

    /// Adds a found response to the table; returns false if it must not be used.
    fn believe(self: &Arc<DiskCache>, disk: &dyn Disk, entry: Entry) -> bool {
        let entry = Arc::new(entry);
        // Held until it is in the table: a concurrent purge of its key is seen here, or finds it there.
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

    /// Removes responses beyond the limits, which may be lower than before.
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

/// Reads the entry of a file; None if its head is invalid.
fn read_entry(disk: &dyn Disk, found: ScannedFile, now: u64) -> io::Result<Option<Entry>> {
    let file = disk.open(found.id)?;
    let Some((layout, beginning)) = super::read::beginning(&*file, found.id)? else { return Ok(None) };
    let read = layout.head(&beginning).and_then(|head| decode(head.text));
    Ok(read.map(|Read { key, stored, body_length }| {
        Entry::new(found.id, key, &stored, layout.size(body_length), now)
    }))
}
