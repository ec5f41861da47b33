//! The table of responses on a disk, by key: without I/O, threads and clocks.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use sigma_http::Headers;

use super::entry::{Entry, PendingRemoval};
use crate::label::{Label, VARIANTS_MAX};

/// The parts of the table, each with its own lock.
const PARTS: usize = 16;

/// Entries that a sweep handles under one lock.
const SWEPT_AT_ONCE: usize = 256;

/// The last use of an entry, and its file: the order of eviction.
type EvictionKey = (u32, u128);

#[derive(Debug, Default)]
struct Part {
    kept: HashMap<Arc<[u8]>, Vec<Arc<Entry>>, RandomState>,
    order: BTreeMap<EvictionKey, Arc<Entry>>,
    /// Entries that are being written, by their files.
    drafts: HashMap<u128, Arc<Entry>, RandomState>,
}

/// The table of responses on a disk.
#[derive(Debug)]
pub(crate) struct Index {
    parts: Box<[Mutex<Part>]>,
    hasher: RandomState,
    /// Disk space in use or reserved, in bytes.
    size: AtomicU64,
    /// The approximate memory of the table in bytes.
    weight: AtomicU64,
    count: AtomicU64,
}

impl Index {
    pub(crate) fn new() -> Index {
        Index {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::default(),
            size: AtomicU64::new(0),
            weight: AtomicU64::new(0),
            count: AtomicU64::new(0),
        }
    }

    /// Returns the disk space in use or reserved, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    pub(crate) fn weight(&self) -> u64 {
        self.weight.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the newest response under a key for a request with these fields.
    pub(crate) fn find(&self, key: &[u8], request: &Headers) -> Option<Arc<Entry>> {
        let part = self.part(key);
        let fitting = part.kept.get(key)?.iter().filter(|entry| entry.label.fits(request));
        fitting.max_by_key(|entry| entry.date).cloned()
    }

    /// Returns the entry of this file, if it is stored under this key.
    pub(crate) fn of_file(&self, key: &[u8], id: u128) -> Option<Arc<Entry>> {
        self.part(key).kept.get(key)?.iter().find(|entry| entry.id.0 == id).cloned()
    }

    /// Returns true if a response is being written that one with this label would replace.
    pub(crate) fn is_writing(&self, key: &[u8], label: &Label) -> bool {
        let part = self.part(key);
        part.drafts.values().any(|draft| *draft.key == *key && label.replaces(&draft.label))
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.part(key).kept.contains_key(key)
    }

    /// Adds a response that will be written. Returns those on the disk that it replaces: they are removed from the
    /// table.
    pub(crate) fn begin(&self, draft: &Arc<Entry>) -> Vec<Arc<Entry>> {
        let mut part = self.part(&draft.key);
        let gone = self.take(&mut part, &draft.key, None, |entry| draft.label.replaces(&entry.label));
        self.add_size(draft.size());
        part.drafts.insert(draft.id.0, Arc::clone(draft));
        gone
    }

    /// Adds a response that will be written, and that replaces others once it is complete.
    pub(crate) fn begin_beside(&self, draft: &Arc<Entry>) {
        let mut part = self.part(&draft.key);
        self.add_size(draft.size());
        part.drafts.insert(draft.id.0, Arc::clone(draft));
    }

    /// Marks a response as written. Returns false if it was purged meanwhile. Also returns those on the disk that it
    /// replaces.
    pub(crate) fn finish(&self, draft: &Arc<Entry>) -> (bool, Vec<Arc<Entry>>) {
        let mut part = self.part(&draft.key);
        part.drafts.remove(&draft.id.0);
        if draft.is_gone() {
            return (false, Vec::new());
        }
        let gone = self.take(&mut part, &draft.key, None, |entry| draft.label.replaces(&entry.label));
        self.insert(&mut part, draft);
        let oldest = self.beyond_variants(&mut part, &draft.key);
        (true, gone.into_iter().chain(oldest).collect())
    }

    /// Adds a response found on the disk; returns false if a newer one is known. Also returns those on the disk that
    /// it replaces.
    pub(crate) fn found(&self, entry: &Arc<Entry>) -> (bool, Vec<Arc<Entry>>) {
        let mut part = self.part(&entry.key);
        let known = part.kept.get(&entry.key).into_iter().flatten();
        let drafts = part.drafts.values().filter(|draft| draft.key == entry.key);
        let mut others = known.chain(drafts).filter(|other| entry.label.replaces(&other.label));
        if others.any(|other| other.date >= entry.date) {
            return (false, Vec::new());
        }
        let gone = self.take(&mut part, &entry.key, None, |other| entry.label.replaces(&other.label));
        self.add_size(entry.size());
        self.insert(&mut part, entry);
        let oldest = self.beyond_variants(&mut part, &entry.key);
        (true, gone.into_iter().chain(oldest).collect())
    }

    /// Drops a draft that is not written after all.
    pub(crate) fn give_up(&self, draft: &Entry) {
        draft.forget();
        self.part(&draft.key).drafts.remove(&draft.id.0);
    }

    /// Reserves disk space for a draft.
    pub(crate) fn set_aside(&self, draft: &Entry, size: u64) {
        let before = draft.size.swap(size, Ordering::Relaxed);
        self.add_size(size.saturating_sub(before));
        self.free(before.saturating_sub(size));
    }

    /// Frees disk space.
    pub(crate) fn free(&self, bytes: u64) {
        self.size.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn add_size(&self, bytes: u64) {
        self.size.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Removes the responses under a key, and returns those on the disk. Drafts hold `pending_removal`
    /// until they are gone.
    pub(crate) fn forget(&self, key: &[u8], pending_removal: Option<&PendingRemoval>) -> Vec<Arc<Entry>> {
        self.take(&mut self.part(key), key, pending_removal, |_| true)
    }

    /// Removes the responses under a key that one with this label replaces.
    pub(crate) fn forget_replaced(&self, key: &[u8], label: &Label) -> Vec<Arc<Entry>> {
        self.take(&mut self.part(key), key, None, |entry| label.replaces(&entry.label))
    }

    /// Removes the responses selected by `is_meant`, a few at a time, so that the table is never blocked for long.
    /// Returns those on the disk, and the number of those being written.
    pub(crate) fn sweep(
        &self,
        is_meant: &dyn Fn(&[u8], &Label) -> bool,
        pending_removal: Option<&PendingRemoval>,
    ) -> (Vec<Arc<Entry>>, usize) {
        let (mut gone, mut unwritten) = (Vec::new(), 0);
        for part in &self.parts {
            let mut swept = held(part);
            let drafts: Vec<Arc<Entry>> = swept.drafts.values().cloned().collect();
            for draft in drafts.iter().filter(|draft| is_meant(&draft.key, &draft.label)) {
                self.remove(&mut swept, draft, pending_removal);
                unwritten += 1;
            }
            drop(swept);
            let mut last = Bound::Unbounded;
            loop {
                let mut part = held(part);
                let next = part.order.range((last, Bound::Unbounded)).take(SWEPT_AT_ONCE);
                let next: Vec<(EvictionKey, Arc<Entry>)> =
                    next.map(|(place, entry)| (*place, Arc::clone(entry))).collect();
                let Some((place, _)) = next.last() else { break };
                last = Bound::Excluded(*place);
                for (_, entry) in next.into_iter().filter(|(_, entry)| is_meant(&entry.key, &entry.label)) {
                    self.remove(&mut part, &entry, pending_removal);
                    gone.push(entry);
                }
            }
        }
        (gone, unwritten)
    }

    /// Removes one entry; returns true if it was known.
    pub(crate) fn drop_one(&self, entry: &Arc<Entry>) -> bool {
        let mut part = self.part(&entry.key);
        let was_known = !entry.is_gone();
        if was_known {
            self.remove(&mut part, entry, None);
        }
        was_known
    }

    /// Removes the least recently used entry, if its last use was before `before`.
    pub(crate) fn oldest(&self, before: u32) -> Option<Arc<Entry>> {
        loop {
            let firsts = self.parts.iter().enumerate().filter_map(|(number, part)| {
                let part = held(part);
                part.order.first_key_value().map(|(place, _)| (*place, number))
            });
            let (place, number) = firsts.min().filter(|((used, _), _)| *used < before)?;
            let mut part = held(&self.parts[number]);
            let Some(entry) = part.order.get(&place).cloned() else { continue };
            let used = entry.mark.used();
            if used > place.0 {
                // It was used since.
                part.order.remove(&place);
                entry.placed.store(used, Ordering::Relaxed);
                part.order.insert((used, entry.id.0), entry);
                continue;
            }
            self.remove(&mut part, &entry, None);
            return Some(entry);
        }
    }

    fn insert(&self, part: &mut Part, entry: &Arc<Entry>) {
        self.weight.fetch_add(entry.weight(), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        part.order.insert((entry.placed.load(Ordering::Relaxed), entry.id.0), Arc::clone(entry));
        part.kept.entry(Arc::clone(&entry.key)).or_default().push(Arc::clone(entry));
    }

    /// Removes the oldest response under a key if there are too many.
    fn beyond_variants(&self, part: &mut Part, key: &[u8]) -> Vec<Arc<Entry>> {
        let Some(variants) = part.kept.get(key).filter(|variants| variants.len() > VARIANTS_MAX) else {
            return Vec::new();
        };
        let oldest = variants.iter().min_by_key(|entry| entry.date).cloned();
        if let Some(oldest) = &oldest {
            self.remove(part, oldest, None);
        }
        oldest.into_iter().collect()
    }

    /// Removes selected responses under a key; returns those on the disk.
    fn take(
        &self,
        part: &mut Part,
        key: &[u8],
        pending_removal: Option<&PendingRemoval>,
        is_meant: impl Fn(&Entry) -> bool,
    ) -> Vec<Arc<Entry>> {
        let kept = part.kept.get(key).into_iter().flatten();
        let drafts = part.drafts.values().filter(|draft| *draft.key == *key);
        let mut meant: Vec<Arc<Entry>> =
            kept.chain(drafts).filter(|entry| is_meant(entry)).cloned().collect();
        meant.retain(|entry| self.remove(part, entry, pending_removal));
        meant
    }

    /// Removes one entry; returns true if it is on the disk. An entry that is being written is left to its writer,
    /// which sees the removal.
    fn remove(&self, part: &mut Part, entry: &Arc<Entry>, pending_removal: Option<&PendingRemoval>) -> bool {
        entry.forget();
        if part.drafts.remove(&entry.id.0).is_some() {
            entry.hold(pending_removal);
            return false;
        }
        part.order.remove(&(entry.placed.load(Ordering::Relaxed), entry.id.0));
        if let Some(variants) = part.kept.get_mut(&entry.key) {
            variants.retain(|other| other.id != entry.id);
            self.weight.fetch_sub(entry.weight(), Ordering::Relaxed);
            self.count.fetch_sub(1, Ordering::Relaxed);
            if variants.is_empty() {
                part.kept.remove(&entry.key);
            }
        }
        true
    }

    fn part(&self, key: &[u8]) -> MutexGuard<'_, Part> {
        held(&self.parts[self.hasher.hash_one(key) as usize % PARTS])
    }
}

fn held(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    // No code under these locks can leave a value half changed.
    part.lock().unwrap_or_else(PoisonError::into_inner)
}
