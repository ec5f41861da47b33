//! Which answers are on a disk, by their keys: without a disk, a thread or a clock.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use sigma_http::Headers;

use super::entry::{Entry, Errand};
use crate::label::{Label, VARIANTS_MAX};

/// Parts of the table, each with a lock of its own.
const PARTS: usize = 16;

/// Entries that a sweep looks at under one lock.
const SWEPT_AT_ONCE: usize = 256;

/// When an entry was last used, and its file: the order of eviction.
type Place = (u32, u128);

#[derive(Debug, Default)]
struct Part {
    kept: HashMap<Arc<[u8]>, Vec<Arc<Entry>>, RandomState>,
    order: BTreeMap<Place, Arc<Entry>>,
    /// Those that are being written, by their files.
    drafts: HashMap<u128, Arc<Entry>, RandomState>,
}

/// The table of what is on a disk.
#[derive(Debug)]
pub(crate) struct Index {
    parts: Box<[Mutex<Part>]>,
    hasher: RandomState,
    /// Bytes of the disk that are taken or set aside.
    size: AtomicU64,
    /// Bytes of memory that the table takes, about.
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

    /// Bytes of the disk that are taken or set aside.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    pub(crate) fn weight(&self) -> u64 {
        self.weight.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The newest answer under a key to a request with these fields.
    pub(crate) fn find(&self, key: &[u8], request: &Headers) -> Option<Arc<Entry>> {
        let part = self.part(key);
        let fitting = part.kept.get(key)?.iter().filter(|entry| entry.label.fits(request));
        fitting.max_by_key(|entry| entry.date).cloned()
    }

    /// The entry of this file, if it is kept under this key.
    pub(crate) fn of_file(&self, key: &[u8], id: u128) -> Option<Arc<Entry>> {
        self.part(key).kept.get(key)?.iter().find(|entry| entry.id.0 == id).cloned()
    }

    /// Whether an answer is being written whose place one with this label would take.
    pub(crate) fn is_writing(&self, key: &[u8], label: &Label) -> bool {
        let part = self.part(key);
        part.drafts.values().any(|draft| *draft.key == *key && label.replaces(&draft.label))
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.part(key).kept.contains_key(key)
    }

    /// An answer is going to be written. Returns those on the disk whose place it takes: they are forgotten.
    pub(crate) fn begin(&self, draft: &Arc<Entry>) -> Vec<Arc<Entry>> {
        let mut part = self.part(&draft.key);
        let gone = self.take(&mut part, &draft.key, None, |entry| draft.label.replaces(&entry.label));
        self.add_size(draft.size());
        part.drafts.insert(draft.id.0, Arc::clone(draft));
        gone
    }

    /// An answer is going to be written that takes the place of others when it is there.
    pub(crate) fn begin_beside(&self, draft: &Arc<Entry>) {
        let mut part = self.part(&draft.key);
        self.add_size(draft.size());
        part.drafts.insert(draft.id.0, Arc::clone(draft));
    }

    /// It is written. False if it was forgotten meanwhile. Those on the disk that go for it are returned.
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

    /// One was found on the disk; false if something newer is known. Those on the disk that go for it are returned.
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

    /// A draft is not written after all.
    pub(crate) fn give_up(&self, draft: &Entry) {
        draft.forget();
        self.part(&draft.key).drafts.remove(&draft.id.0);
    }

    /// Sets so much of the disk aside for a draft.
    pub(crate) fn set_aside(&self, draft: &Entry, size: u64) {
        let before = draft.size.swap(size, Ordering::Relaxed);
        self.add_size(size.saturating_sub(before));
        self.free(before.saturating_sub(size));
    }

    /// So much of the disk is free again.
    pub(crate) fn free(&self, bytes: u64) {
        self.size.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn add_size(&self, bytes: u64) {
        self.size.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Forgets what is under a key, and returns those that are on the disk. Those that are being written hold `errand`
    /// until there is nothing of them.
    pub(crate) fn forget(&self, key: &[u8], errand: Option<&Errand>) -> Vec<Arc<Entry>> {
        self.take(&mut self.part(key), key, errand, |_| true)
    }

    /// Forgets those under a key whose place one with this label takes.
    pub(crate) fn forget_replaced(&self, key: &[u8], label: &Label) -> Vec<Arc<Entry>> {
        self.take(&mut self.part(key), key, None, |entry| label.replaces(&entry.label))
    }

    /// Forgets those that `is_meant`, a few at a time: nobody waits long for the table. Returns those that are on the disk,
    /// and how many are being written.
    pub(crate) fn sweep(
        &self,
        is_meant: &dyn Fn(&[u8], &Label) -> bool,
        errand: Option<&Errand>,
    ) -> (Vec<Arc<Entry>>, usize) {
        let (mut gone, mut unwritten) = (Vec::new(), 0);
        for part in &self.parts {
            let mut swept = held(part);
            let drafts: Vec<Arc<Entry>> = swept.drafts.values().cloned().collect();
            for draft in drafts.iter().filter(|draft| is_meant(&draft.key, &draft.label)) {
                self.remove(&mut swept, draft, errand);
                unwritten += 1;
            }
            drop(swept);
            let mut last = Bound::Unbounded;
            loop {
                let mut part = held(part);
                let next = part.order.range((last, Bound::Unbounded)).take(SWEPT_AT_ONCE);
                let next: Vec<(Place, Arc<Entry>)> =
                    next.map(|(place, entry)| (*place, Arc::clone(entry))).collect();
                let Some((place, _)) = next.last() else { break };
                last = Bound::Excluded(*place);
                for (_, entry) in next.into_iter().filter(|(_, entry)| is_meant(&entry.key, &entry.label)) {
                    self.remove(&mut part, &entry, errand);
                    gone.push(entry);
                }
            }
        }
        (gone, unwritten)
    }

    /// Forgets one, if it is known still; whether it was.
    pub(crate) fn drop_one(&self, entry: &Arc<Entry>) -> bool {
        let mut part = self.part(&entry.key);
        let was_known = !entry.is_gone();
        if was_known {
            self.remove(&mut part, entry, None);
        }
        was_known
    }

    /// Takes out the one that was not used for the longest time, if that was before `before`.
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

    /// Takes out the oldest under a key if there are too many.
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

    /// Takes out those under a key that are meant; returns those that are on the disk.
    fn take(
        &self,
        part: &mut Part,
        key: &[u8],
        errand: Option<&Errand>,
        is_meant: impl Fn(&Entry) -> bool,
    ) -> Vec<Arc<Entry>> {
        let kept = part.kept.get(key).into_iter().flatten();
        let drafts = part.drafts.values().filter(|draft| *draft.key == *key);
        let mut meant: Vec<Arc<Entry>> =
            kept.chain(drafts).filter(|entry| is_meant(entry)).cloned().collect();
        meant.retain(|entry| self.remove(part, entry, errand));
        meant
    }

    /// Takes one out; whether it is on the disk. What is being written is left to its writer, who sees that it is
    /// forgotten.
    fn remove(&self, part: &mut Part, entry: &Arc<Entry>, errand: Option<&Errand>) -> bool {
        entry.forget();
        if part.drafts.remove(&entry.id.0).is_some() {
            entry.hold(errand);
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
    // Nothing that holds one of these locks can leave its value half changed.
    part.lock().unwrap_or_else(PoisonError::into_inner)
}
