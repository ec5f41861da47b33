//! The memory in which answers are kept, by their keys.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use foldhash::fast::RandomState;
use quick_cache::sync::Cache;
use quick_cache::{OptionsBuilder, Weighter};
use sigma_http::Headers;
use sigma_plugin::cache::CacheDisk;

use crate::body::Body;
use crate::flight::Flight;
use crate::label::VARIANTS_MAX;
use crate::purge::Purge;
use crate::shelf::{Erasure, Errand, Shelf, Stream};
use crate::stored::Stored;

/// Parts of a zone that are locked for themselves, and how much memory each is to have at least: an answer must fit
/// into one.
const SHARDS_MAX: u64 = 16;
const SHARD_BYTES: u64 = 8 << 20;

/// What an answer takes on average, as a guess for the size of tables.
const GUESSED_BYTES: u64 = 8 << 10;

/// Keys whose questions everybody asks for himself, and for how many seconds.
const PASSED_KEYS: usize = 10_000;
const PASSED_S: u64 = 120;
/// The same where a node has failed: the next answer may be one for all.
const PASSED_FAILED_S: u64 = 1;

/// Parts of the table of questions under way, each with a lock of its own.
const STRIPES: usize = 64;
/// Counters of what was forgotten. Keys that share one void each other's answers that are coming: those are not kept.
const COUNTERS: usize = 4096;

/// Orders to purge that are remembered for zones that are made later. Behind them such a zone begins anew.
const ORDERS_MAX: usize = 1_000;

/// Gives a zone of this name and so much memory a place on a disk.
type GiveShelf = dyn Fn(&str, u64, &CacheDisk) -> Arc<Shelf> + Send + Sync;

/// All zones of a gateway; a part of the node.
#[derive(Default)]
pub struct Zones {
    zones: Mutex<HashMap<Box<str>, Arc<Zone>>>,
    shelves: OnceLock<Box<GiveShelf>>,
    orders: Mutex<Vec<Purge>>,
}

impl std::fmt::Debug for Zones {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zones").field("zones", &self.zones).finish_non_exhaustive()
    }
}

impl Zones {
    /// The zone of this name. If it is new it has so many bytes, and a place on a disk if one is named and disks are to
    /// be had.
    pub fn zone(&self, name: &str, bytes: u64, disk: Option<&CacheDisk>) -> Arc<Zone> {
        let mut zones = self.lock();
        if let Some(zone) = zones.get(name) {
            return Arc::clone(zone);
        }
        let shelf = disk.zip(self.shelves.get()).map(|(disk, give)| give(name, bytes, disk));
        let zone = Arc::new(Zone::with_shelf(bytes, shelf));
        zones.insert(name.into(), Arc::clone(&zone));
        zone
    }

    /// Says once how zones are given a place on a disk; it must not wait.
    pub fn shelve_by(&self, give: impl Fn(&str, u64, &CacheDisk) -> Arc<Shelf> + Send + Sync + 'static) {
        // The first counts: there is one gateway in a process.
        let _ = self.shelves.set(Box::new(give));
    }

    /// All orders so far that a zone of this name has missed if it is new: what is found on its disk may be meant.
    pub fn orders_for(&self, name: &str) -> Vec<Purge> {
        let orders = held(&self.orders);
        let meant = orders.iter().filter(|order| order.zone.as_deref().is_none_or(|zone| zone == name));
        meant.cloned().collect()
    }

    pub(crate) fn remember(&self, order: &Purge) {
        let mut orders = held(&self.orders);
        match orders.len() < ORDERS_MAX {
            true => orders.push(order.clone()),
            false => *orders = vec![Purge::everything()],
        }
    }

    /// Forgets what is meant, and whatever is coming. Returns how many answers there were, each counted once, and what has
    /// yet to be removed of disks. Looks at all that is kept, a few answers at a time: nobody else waits for it, and it is
    /// not for a thread that others wait for.
    pub fn purge(&self, purge: &Purge) -> (usize, Erasure) {
        let (mut count, mut erasure) = (0, Erasure::nothing());
        // Zones that are made from here on are told by this.
        self.remember(purge);
        for (name, zone) in self.all() {
            if purge.zone.as_deref().is_none_or(|zone| zone == &*name) {
                let (gone, erased) = zone.sweep(purge);
                count += gone;
                erasure = erasure.and(erased);
            }
        }
        (count, erasure)
    }

    /// Leaves all disks to another process.
    pub fn leave_disks(&self) {
        let zones = self.all();
        zones.iter().filter_map(|(_, zone)| zone.shelf.as_ref()).for_each(Shelf::close);
    }

    /// All that have been used, by name.
    pub fn all(&self) -> Vec<(Box<str>, Arc<Zone>)> {
        let mut all: Vec<_> =
            self.lock().iter().map(|(name, zone)| (name.clone(), Arc::clone(zone))).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<Zone>>> {
        self.zones.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All answers under one key.
type Variants = Arc<[Arc<Stored>]>;

#[derive(Debug, Clone)]
struct Weigh;

impl Weighter<Arc<[u8]>, Variants> for Weigh {
    fn weight(&self, key: &Arc<[u8]>, variants: &Variants) -> u64 {
        key.len() as u64 + variants.iter().map(|stored| stored.weight()).sum::<u64>()
    }
}

type Flights = HashMap<Arc<[u8]>, Arc<Flight>>;

/// A place for answers, which all workers share. What is asked for often stays longest.
pub struct Zone {
    answers: Cache<Arc<[u8]>, Variants, Weigh>,
    /// Until when nobody waits for another one's question, by key.
    passed: Cache<Arc<[u8]>, u64>,
    /// How often somebody asked what is not kept, by the hash of its key.
    uses: Cache<u64, u32>,
    hasher: RandomState,
    /// Questions under way. A stripe's lock is held as well while an answer joins the others under its key, or they go.
    stripes: Box<[Mutex<Flights>]>,
    /// How often something was forgotten, by the hash of its key; and how often of many keys at once.
    forgotten: Box<[AtomicU64]>,
    swept: AtomicU64,
    bytes: u64,
    /// Bytes of answers that are still coming.
    coming: AtomicU64,
    /// What is on a disk, if this zone has one.
    shelf: Option<Arc<Shelf>>,
}

/// What was forgotten of a zone when a question was asked: an answer to one that was asked before is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch {
    of_key: u64,
    of_all: u64,
}

impl std::fmt::Debug for Zone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zone").field("bytes", &self.bytes).field("entries", &self.answers.len()).finish()
    }
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds one of these locks can leave its value half changed.
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Zone {
    /// One of so many bytes, in memory alone.
    pub fn new(bytes: u64) -> Zone {
        Zone::with_shelf(bytes, None)
    }

    /// One with so many bytes of memory, and a shelf.
    pub fn with_shelf(bytes: u64, shelf: Option<Arc<Shelf>>) -> Zone {
        let shards = (bytes / SHARD_BYTES).clamp(1, SHARDS_MAX);
        let guess = usize::try_from(bytes / GUESSED_BYTES).unwrap_or(usize::MAX).max(16);
        let answers = OptionsBuilder::new()
            .shards(shards as usize)
            .estimated_items_capacity(guess)
            .weight_capacity(bytes)
            .build();
        let answers = match answers {
            Ok(options) => Cache::with_options(options, Weigh, Default::default(), Default::default()),
            // Both sizes are given, which is all that it needs.
            Err(_) => Cache::with_weighter(guess, bytes, Weigh),
        };
        Zone {
            answers,
            passed: Cache::new(PASSED_KEYS),
            uses: Cache::new(guess.max(PASSED_KEYS)),
            hasher: RandomState::default(),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            forgotten: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            swept: AtomicU64::new(0),
            bytes,
            coming: AtomicU64::new(0),
            shelf,
        }
    }

    /// The most bytes that the body of one answer may have in memory.
    pub fn largest(&self) -> u64 {
        self.answers.shard_capacity() / 2
    }

    /// The most bytes that it may have at all.
    pub(crate) fn largest_of_all(&self) -> u64 {
        self.shelf.as_ref().map_or(0, |shelf| shelf.largest()).max(self.largest())
    }

    /// What is on a disk, if this zone has one.
    pub fn shelf(&self) -> Option<&Arc<Shelf>> {
        self.shelf.as_ref()
    }

    /// Keys under which something is kept.
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Bytes that answers take, about.
    pub fn held_bytes(&self) -> u64 {
        self.answers.weight()
    }

    /// The newest answer under a key to a request with these fields, fresh or not, that is in memory.
    pub fn find(&self, key: &[u8], request: &Headers) -> Option<Arc<Stored>> {
        let variants = self.answers.get(key)?;
        let fitting = variants.iter().filter(|stored| stored.fits(request));
        fitting.max_by_key(|stored| stored.date()).cloned()
    }

    /// Whether there is any answer under a key.
    pub fn has(&self, key: &[u8]) -> bool {
        self.answers.contains_key(key) || self.shelf.as_ref().is_some_and(|shelf| shelf.has(key))
    }

    /// What was forgotten so far, as far as it concerns a key.
    pub fn epoch(&self, key: &[u8]) -> Epoch {
        self.epoch_at(self.hasher.hash_one(key))
    }

    /// That of a key now, and of orders that mean many since `asked`: for what is kept under a key which was not known when
    /// it was asked for.
    pub fn epoch_since(&self, key: &[u8], asked: Epoch) -> Epoch {
        Epoch { of_all: asked.of_all, ..self.epoch(key) }
    }

    fn epoch_at(&self, hash: u64) -> Epoch {
        let of_key = self.forgotten[hash as usize % COUNTERS].load(Ordering::Acquire);
        Epoch { of_key, of_all: self.swept.load(Ordering::Acquire) }
    }

    /// Keeps an answer, unless something was forgotten since its question was asked.
    pub fn insert(&self, key: &[u8], mut stored: Stored, epoch: Epoch, now: u64) {
        let hash = self.hasher.hash_one(key);
        let _writing = self.stripe(hash);
        if self.epoch_at(hash) != epoch {
            return;
        }
        let key: Arc<[u8]> = key.into();
        let Some(shelf) = &self.shelf else {
            return self.remember(&key, Arc::new(stored));
        };
        // A node has said that it is still good: the body stays where it is.
        let known = stored.mark.take_if(|mark| !mark.is_gone());
        let is_in_memory = matches!(stored.body, Body::Whole(_));
        let is_new = known.is_none() && is_in_memory;
        let entry = is_new.then(|| shelf.expect(&key, &stored, now)).flatten();
        let is_known = known.is_some();
        stored.mark = known.or_else(|| entry.as_ref().map(|entry| Arc::clone(&entry.mark)));
        let stored = Arc::new(stored);
        if is_in_memory {
            self.remember(&key, Arc::clone(&stored));
        }
        match entry {
            Some(entry) => shelf.write(entry, stored, now),
            None if is_known => shelf.renew(&key, stored, now),
            None => {}
        }
    }

    /// Begins to write an answer whose body is too large for memory, unless something was forgotten since its question
    /// was asked; None if it cannot be written.
    pub(crate) fn stream(&self, key: &Arc<[u8]>, stored: &Stored, epoch: Epoch, now: u64) -> Option<Stream> {
        let shelf = self.shelf.as_ref()?;
        let hash = self.hasher.hash_one(&key[..]);
        let _writing = self.stripe(hash);
        // Many who ask for what takes long would else have each other's begin anew, and none come to its end.
        if self.epoch_at(hash) != epoch || shelf.is_writing(key, stored) {
            return None;
        }
        shelf.stream(key, stored, now)
    }

    /// All of an answer has come that is not in memory: what memory has in its place is older.
    pub(crate) fn supersede(&self, key: &Arc<[u8]>, stored: &Stored) {
        let _writing = self.stripe(self.hasher.hash_one(&key[..]));
        self.retain(key, |other| !stored.replaces(other));
    }

    /// Puts what was read from a disk into memory, unless something was forgotten since that began, or it is too large.
    pub(crate) fn promote(&self, key: &Arc<[u8]>, stored: &Arc<Stored>, epoch: Epoch) {
        let hash = self.hasher.hash_one(&key[..]);
        let _writing = self.stripe(hash);
        let is_known = || {
            let known = self.answers.peek(&key[..]);
            known.is_some_and(|known| known.iter().any(|other| stored.replaces(other)))
        };
        // One that is being written in its place is newer, and may be given already. When that is written this one is
        // forgotten, so that is looked at first.
        let is_newest = || {
            let is_replaced = self.shelf.as_ref().is_some_and(|shelf| shelf.is_writing(key, stored));
            !is_replaced && stored.is_kept()
        };
        if matches!(stored.body, Body::Whole(_)) && self.epoch_at(hash) == epoch && !is_known() && is_newest()
        {
            self.remember(key, Arc::clone(stored));
        }
    }

    /// Puts an answer into memory; its stripe is held.
    fn remember(&self, key: &Arc<[u8]>, stored: Arc<Stored>) {
        let known = self.answers.peek(&key[..]);
        let others =
            known.iter().flat_map(|variants| variants.iter()).filter(|other| !stored.replaces(other));
        let mut variants: Vec<Arc<Stored>> = others.cloned().collect();
        if variants.len() >= VARIANTS_MAX
            && let Some(oldest) = (0..variants.len()).min_by_key(|at| variants[*at].life.born)
        {
            variants.swap_remove(oldest);
        }
        variants.push(stored);
        self.answers.insert(Arc::clone(key), variants.into());
    }

    /// Forgets those under a key, in memory, that are not to stay; returns them. Its stripe is held.
    fn retain(&self, key: &Arc<[u8]>, stays: impl Fn(&Stored) -> bool) -> Vec<Arc<Stored>> {
        let Some(known) = self.answers.peek(&key[..]) else { return Vec::new() };
        let (stay, gone): (Vec<Arc<Stored>>, _) = known.iter().cloned().partition(|stored| stays(stored));
        match stay.is_empty() {
            true => drop(self.answers.remove(&key[..])),
            false if !gone.is_empty() => self.answers.insert(Arc::clone(key), stay.into()),
            false => {}
        }
        gone
    }

    /// Forgets all answers under a key, and those that are coming; whether there were any. Whoever asks from here on
    /// gets an answer that was asked for later.
    pub fn purge(&self, key: &[u8]) -> bool {
        self.forget(key, None)
    }

    /// As [`Zone::purge`], for one who waits until nothing of it is on a disk.
    pub fn erase(&self, key: &[u8]) -> (bool, Erasure) {
        let (erasure, errand) = Erasure::begin();
        (self.forget(key, Some(&errand)), erasure)
    }

    fn forget(&self, key: &[u8], errand: Option<&Errand>) -> bool {
        let hash = self.hasher.hash_one(key);
        let mut flights = self.stripe(hash);
        self.forgotten[hash as usize % COUNTERS].fetch_add(1, Ordering::AcqRel);
        // Those who wait for it already have asked before.
        flights.remove(key);
        let was_on_disk = self.shelf.as_ref().is_some_and(|shelf| shelf.forget(key, errand));
        self.answers.remove(key).is_some() || was_on_disk
    }

    /// Forgets all answers that an order means, and all that are coming, as what they are is not known yet. Returns how
    /// many there were, and what has yet to be removed of a disk.
    pub(crate) fn sweep(&self, order: &Purge) -> (usize, Erasure) {
        self.swept.fetch_add(1, Ordering::AcqRel);
        self.stripes.iter().for_each(|stripe| held(stripe).clear());
        let is_meant = |key: &[u8], stored: &Stored| order.means(key, &stored.label);
        let keys = self.answers.iter();
        let meant = keys.filter(|(key, variants)| variants.iter().any(|stored| is_meant(key, stored)));
        let meant: Vec<(Arc<[u8]>, Variants)> = meant.collect();
        let mut count = 0;
        for (key, _) in &meant {
            let _writing = self.stripe(self.hasher.hash_one(&key[..]));
            let gone = self.retain(key, |stored| !is_meant(key, stored));
            // Those that are on a disk as well are counted there.
            count += gone.iter().filter(|gone| gone.mark.as_ref().is_none_or(|mark| mark.is_gone())).count();
        }
        let Some(shelf) = &self.shelf else { return (count, Erasure::nothing()) };
        let (erasure, errand) = Erasure::begin();
        (count + shelf.sweep(order, Some(&errand)), erasure)
    }

    /// Begins a question for all who want the answer under this key. One that others ask is theirs for `most_s`
    /// seconds, if that is not 0.
    ///
    /// # Errors
    /// Returns the question if somebody is asking it already.
    pub fn lead(self: &Arc<Zone>, key: &[u8], now: u64, most_s: u32) -> Result<Lead, Arc<Flight>> {
        let mut flights = self.stripe(self.hasher.hash_one(key));
        if let Some(flight) = flights.get(key).filter(|flight| !flight.is_late(now, most_s)) {
            return Err(Arc::clone(flight));
        }
        let (key, flight): (Arc<[u8]>, _) = (key.into(), Arc::new(Flight::new(now)));
        flights.insert(Arc::clone(&key), Arc::clone(&flight));
        drop(flights);
        Ok(Lead { zone: Arc::clone(self), key, flight })
    }

    /// The same for nobody else: others ask for themselves.
    pub fn lead_apart(self: &Arc<Zone>, key: &[u8], now: u64) -> Lead {
        Lead { zone: Arc::clone(self), key: key.into(), flight: Arc::new(Flight::new(now)) }
    }

    /// The answer under this key that somebody has asked for and that is coming, if all may have it.
    pub fn coming(&self, key: &[u8]) -> Option<Arc<Stored>> {
        self.stripe(self.hasher.hash_one(key)).get(key)?.coming()
    }

    /// Counts a question, and says how many there were with it, as far as is remembered.
    pub fn count_use(&self, key: &[u8]) -> u32 {
        let hash = self.hasher.hash_one(key);
        let uses = self.uses.get(&hash).unwrap_or(0).saturating_add(1);
        self.uses.insert(hash, uses);
        uses
    }

    /// Whether answers under this key are not for others, as far as is known.
    pub fn is_passed(&self, key: &[u8], now: u64) -> bool {
        self.passed.get(key).is_some_and(|until| now < until)
    }

    fn let_pass(&self, key: &Arc<[u8]>, until: u64) {
        self.passed.insert(Arc::clone(key), until);
    }

    pub(crate) fn end_flight(&self, key: &[u8], flight: &Arc<Flight>) {
        let mut flights = self.stripe(self.hasher.hash_one(key));
        if flights.get(key).is_some_and(|known| Arc::ptr_eq(known, flight)) {
            flights.remove(key);
        }
    }

    /// More of what is coming is held; false if that is too much.
    pub(crate) fn hold(&self, bytes: u64) -> bool {
        let before = self.coming.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.bytes {
            self.coming.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// What was coming is there, or is not coming any more.
    pub(crate) fn let_go(&self, bytes: u64) {
        self.coming.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn stripe(&self, hash: u64) -> MutexGuard<'_, Flights> {
        held(&self.stripes[hash as usize % STRIPES])
    }
}

/// Whoever asks for all. When it is dropped, the question is over, and those who wait look for themselves.
#[derive(Debug)]
pub struct Lead {
    zone: Arc<Zone>,
    key: Arc<[u8]>,
    flight: Arc<Flight>,
}

impl Lead {
    /// An answer is coming that all may have.
    pub(crate) fn share(&self, stored: Arc<Stored>) {
        self.flight.answer(stored);
    }

    /// The answer is not one for others: for a while nobody waits for another one's question.
    pub fn part(self, now: u64) {
        self.zone.let_pass(&self.key, now + PASSED_S);
    }

    /// The node has failed: those who wait ask for themselves, and whoever comes later asks for all again.
    pub fn fail(self, now: u64) {
        self.zone.let_pass(&self.key, now + PASSED_FAILED_S);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.zone.end_flight(&self.key, &self.flight);
        self.flight.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::tests::all_of;
    use crate::stored::tests::{headers, stored};

    fn zone() -> Arc<Zone> {
        Arc::new(Zone::new(1 << 20))
    }

    fn kept(zone: &Zone, request: &[(&str, &str)]) -> Option<Vec<u8>> {
        let found = zone.find(b"k", &headers(request))?;
        all_of(found.body.read(0, found.body.length())).ok()
    }

    #[test]
    fn answers_by_what_they_vary_with() {
        let zone = zone();
        let put = |language: &str, body: &[u8]| {
            let mut one = stored(&[("Vary", "Accept-Language")], &[("Accept-Language", language)]).unwrap();
            one.body = crate::Body::of(body);
            zone.insert(b"k", one, zone.epoch(b"k"), 0);
        };
        put("de", b"hallo");
        put("en", b"hello");
        put("de", b"guten Tag");
        assert_eq!(kept(&zone, &[("accept-language", "de")]).as_deref(), Some(&b"guten Tag"[..]));
        assert_eq!(kept(&zone, &[("accept-language", "en")]).as_deref(), Some(&b"hello"[..]));
        assert_eq!(kept(&zone, &[("accept-language", "fr")]), None);
        // No more than so many.
        (0..100).for_each(|n| put(&format!("l{n}"), b"x"));
        assert_eq!(zone.answers.get(&b"k"[..]).unwrap().len(), VARIANTS_MAX);
        // One that depends on something else takes the place of all.
        zone.insert(b"k", stored(&[], &[]).unwrap(), zone.epoch(b"k"), 0);
        assert_eq!(zone.answers.get(&b"k"[..]).unwrap().len(), 1);
        assert_eq!(kept(&zone, &[]).as_deref(), Some(&b"body"[..]));
        assert!(zone.purge(b"k") && !zone.purge(b"k"));
        assert_eq!(kept(&zone, &[]), None);
    }

    #[test]
    fn what_was_asked_before_a_purge_is_not_kept() {
        let zone = zone();
        let one = stored(&[], &[]).unwrap();
        let asked = zone.epoch(b"k");
        zone.purge(b"k");
        zone.insert(b"k", one.clone(), asked, 0);
        assert!(zone.is_empty());
        let asked = zone.epoch(b"k");
        drop(zone.sweep(&Purge::default()));
        zone.insert(b"k", one.clone(), asked, 0);
        assert!(zone.is_empty());
        zone.insert(b"k", one, zone.epoch(b"k"), 0);
        assert_eq!(zone.len(), 1);
    }

    #[test]
    fn what_is_coming_is_not_for_those_who_ask_after_a_purge() {
        let zone = zone();
        for forget in
            [|zone: &Zone| usize::from(zone.purge(b"k")), |zone: &Zone| zone.sweep(&Purge::default()).0]
        {
            let old = zone.lead(b"k", 0, 0).unwrap();
            let before = zone.lead(b"k", 0, 0).unwrap_err();
            old.share(Arc::new(stored(&[], &[]).unwrap()));
            assert_eq!(forget(&zone), 0);
            assert!(before.coming().is_some(), "who has asked before may have it");
            let new = zone.lead(b"k", 0, 0).unwrap();
            // The end of the old question is not that of the new one.
            drop(old);
            assert!(zone.lead(b"k", 0, 0).unwrap_err().coming().is_none());
            drop(new);
        }
    }

    #[test]
    fn who_is_late_leads_no_longer() {
        let zone = zone();
        let old = zone.lead(b"k", 100, 5).unwrap();
        assert!(zone.lead(b"k", 104, 5).is_err() && zone.lead(b"k", 999, 0).is_err());
        let new = zone.lead(b"k", 105, 5).unwrap();
        drop(old);
        let flight = zone.lead(b"k", 106, 5).unwrap_err();
        new.share(Arc::new(stored(&[], &[]).unwrap()));
        assert!(zone.lead(b"k", 999, 5).is_err(), "what has begun to come is waited for");
        // Few may wait.
        let places = (Arc::clone(&flight).join(2), Arc::clone(&flight).join(2));
        assert!(places.0.is_some() && places.1.is_some() && Arc::clone(&flight).join(2).is_none());
        drop(places);
        assert!(Arc::clone(&flight).join(1).is_some() && flight.join(0).is_some());
        assert_eq!((zone.count_use(b"k"), zone.count_use(b"k"), zone.count_use(b"j")), (1, 2, 1));
    }

    #[test]
    fn a_sweep_takes_what_is_meant() {
        let zone = zone();
        for (key, language) in [(b"a", "de"), (b"a", "en"), (b"b", "de"), (b"c", "en")] {
            let one = stored(&[("Vary", "L"), ("Cache-Tag", language)], &[("L", language)]).unwrap();
            zone.insert(key, one, zone.epoch(key), 0);
        }
        let german = Purge { tags: [b"de"[..].into()].into(), ..Purge::default() };
        assert_eq!((zone.sweep(&german).0, zone.sweep(&german).0, zone.len()), (2, 0, 2));
        assert!(zone.find(b"a", &headers(&[("L", "en")])).is_some());
        assert_eq!((zone.sweep(&Purge::everything()).0, zone.len(), zone.held_bytes()), (2, 0, 0));
    }

    #[test]
    fn memory_has_a_bound() {
        let zone = zone();
        for n in 0..10_000u32 {
            let mut one = stored(&[], &[]).unwrap();
            one.body = crate::Body::of(&[0; 1000]);
            zone.insert(&n.to_be_bytes(), one, zone.epoch(&n.to_be_bytes()), 0);
        }
        assert!(zone.held_bytes() <= 1 << 20 && zone.len() > 300, "{zone:?}");
        // What is on its way counts for itself.
        assert!(zone.hold(1 << 20) && !zone.hold(1) && zone.hold(0));
        zone.let_go(1 << 20);
        assert!(zone.hold(1));
    }

    #[test]
    fn one_asks_for_all() {
        let zone = zone();
        let lead = zone.lead(b"k", 0, 0).unwrap();
        let flight = zone.lead(b"k", 0, 0).unwrap_err();
        assert!(zone.lead(b"other", 0, 0).is_ok());
        assert!(flight.coming().is_none());
        let one = stored(&[("Vary", "A")], &[("A", "1")]).unwrap();
        lead.share(Arc::new(one));
        let coming = flight.coming().unwrap();
        assert!(coming.fits(&headers(&[("A", "1")])) && !coming.fits(&headers(&[])));
        lead.fail(50);
        assert!(zone.is_passed(b"k", 50) && !zone.is_passed(b"k", 50 + PASSED_FAILED_S));
        let lead = zone.lead(b"k", 0, 0).unwrap();
        lead.part(100);
        assert!(zone.is_passed(b"k", 100 + PASSED_S - 1) && !zone.is_passed(b"k", 100 + PASSED_S));
        assert!(zone.lead(b"k", 0, 0).is_ok(), "the question is over");
    }
}
