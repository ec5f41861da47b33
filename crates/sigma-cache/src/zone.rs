//! A zone: memory for responses, by key.

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
use crate::disk_cache::{DiskCache, Erasure, PendingRemoval, Stream};
use crate::label::VARIANTS_MAX;
use crate::purge::Purge;
use crate::single_flight::SingleFlight;
use crate::stored::Stored;

/// The separately locked parts of a zone, and the least memory of each: a response must fit into one.
const SHARDS_MAX: u64 = 16;
const SHARD_BYTES: u64 = 8 << 20;

/// The assumed average size of a response, for the size of tables.
const GUESSED_BYTES: u64 = 8 << 10;

/// The number of keys whose requests are not collapsed, and for how many seconds.
const PASSED_KEYS: usize = 10_000;
const PASSED_S: u64 = 120;
/// The same after a failure of a node: the next response may be shareable.
const PASSED_FAILED_S: u64 = 1;

/// The parts of the table of flights, each with its own lock.
const STRIPES: usize = 64;
/// Counters of purges. Keys that share one invalidate each other's arriving responses: those are not stored.
const COUNTERS: usize = 4096;

/// The limit of purge orders that are remembered for later zones. Above it, such a zone starts empty.
const ORDERS_MAX: usize = 1_000;

/// Gives a zone of this name and size a place on a disk.
type MakeDiskCache = dyn Fn(&str, u64, &CacheDisk) -> Arc<DiskCache> + Send + Sync;

/// All zones of a gateway; a part of the node.
#[derive(Default)]
pub struct Zones {
    zones: Mutex<HashMap<Box<str>, Arc<Zone>>>,
    disk_caches: OnceLock<Box<MakeDiskCache>>,
    orders: Mutex<Vec<Purge>>,
}

impl std::fmt::Debug for Zones {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zones").field("zones", &self.zones).finish_non_exhaustive()
    }
}

impl Zones {
    /// Returns the zone of this name. A new one has this size, and a place on a disk if one is named and available.
    pub fn zone(&self, name: &str, bytes: u64, disk: Option<&CacheDisk>) -> Arc<Zone> {
        let mut zones = self.lock();
        if let Some(zone) = zones.get(name) {
            return Arc::clone(zone);
        }
        let disk_cache = disk.zip(self.disk_caches.get()).map(|(disk, give)| give(name, bytes, disk));
        let zone = Arc::new(Zone::with_disk_cache(bytes, disk_cache));
        zones.insert(name.into(), Arc::clone(&zone));
        zone
    }

    /// Sets the function that gives zones a place on a disk, once; it must not wait.
    pub fn make_disk_caches_by(
        &self,
        give: impl Fn(&str, u64, &CacheDisk) -> Arc<DiskCache> + Send + Sync + 'static,
    ) {
        // The first call counts: there is one gateway in a process.
        let _ = self.disk_caches.set(Box::new(give));
    }

    /// Returns all orders that a new zone of this name has missed: they may match responses on its disk.
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

    /// Purges matching responses, and all that are arriving. Returns the number of responses, each counted once, and
    /// the pending removals from disks. It scans everything, a few responses at a time, without blocking others. Call
    /// it on a thread that others do not wait for.
    pub fn purge(&self, purge: &Purge) -> (usize, Erasure) {
        let (mut count, mut erasure) = (0, Erasure::nothing());
        // Later zones get the order from this list.
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

    /// Hands all disks to another process.
    pub fn leave_disks(&self) {
        let zones = self.all();
        zones.iter().filter_map(|(_, zone)| zone.disk_cache.as_ref()).for_each(DiskCache::close);
    }

    /// Returns all used zones, by name.
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

/// All responses under one key.
type Variants = Arc<[Arc<Stored>]>;

#[derive(Debug, Clone)]
struct Weigh;

impl Weighter<Arc<[u8]>, Variants> for Weigh {
    fn weight(&self, key: &Arc<[u8]>, variants: &Variants) -> u64 {
        key.len() as u64 + variants.iter().map(|stored| stored.weight()).sum::<u64>()
    }
}

type SingleFlights = HashMap<Arc<[u8]>, Arc<SingleFlight>>;

/// Storage for responses, shared by all workers. Popular responses stay longest.
pub struct Zone {
    answers: Cache<Arc<[u8]>, Variants, Weigh>,
    /// The end of the time in which requests for a key are not collapsed.
    passed: Cache<Arc<[u8]>, u64>,
    /// The number of requests for responses that are not stored, by the hash of the key.
    uses: Cache<u64, u32>,
    hasher: RandomState,
    /// Running flights. A stripe's lock is also held while a response joins the others under its key, or they are
    /// removed.
    stripes: Box<[Mutex<SingleFlights>]>,
    /// Counts of purges by the hash of a key, and of purges of many keys.
    forgotten: Box<[AtomicU64]>,
    swept: AtomicU64,
    bytes: u64,
    /// Bytes of arriving responses.
    coming: AtomicU64,
    /// The disk storage, if this zone has one.
    disk_cache: Option<Arc<DiskCache>>,
}

/// The purge counts at the time of a request: a response to a request from before a purge is not stored.
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
    // No code under these locks can leave a value half changed.
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Zone {
    /// Returns a zone of this size, in memory alone.
    pub fn new(bytes: u64) -> Zone {
        Zone::with_disk_cache(bytes, None)
    }

    /// Returns a zone with this memory size, and a disk cache.
    pub fn with_disk_cache(bytes: u64, disk_cache: Option<Arc<DiskCache>>) -> Zone {
        let shards = (bytes / SHARD_BYTES).clamp(1, SHARDS_MAX);
        let guess = usize::try_from(bytes / GUESSED_BYTES).unwrap_or(usize::MAX).max(16);
        let answers = OptionsBuilder::new()
            .shards(shards as usize)
            .estimated_items_capacity(guess)
            .weight_capacity(bytes)
            .build();
        let answers = match answers {
            Ok(options) => Cache::with_options(options, Weigh, Default::default(), Default::default()),
            // Both sizes are set, which are the only requirements.
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
            disk_cache,
        }
    }

    /// Returns the largest body of one response in memory.
    pub fn largest(&self) -> u64 {
        self.answers.shard_capacity() / 2
    }

    /// Returns the largest body of one response at all.
    pub(crate) fn largest_of_all(&self) -> u64 {
        self.disk_cache.as_ref().map_or(0, |disk_cache| disk_cache.largest()).max(self.largest())
    }

    /// Returns the disk storage, if this zone has one.
    pub fn disk_cache(&self) -> Option<&Arc<DiskCache>> {
        self.disk_cache.as_ref()
    }

    /// Returns the number of keys with a response.
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Returns true if the zone is empty.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Returns the approximate size of all responses in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.answers.weight()
    }

    /// Returns the newest response in memory under a key for a request with these fields, fresh or not.
    pub fn find(&self, key: &[u8], request: &Headers) -> Option<Arc<Stored>> {
        let variants = self.answers.get(key)?;
        let fitting = variants.iter().filter(|stored| stored.fits(request));
        fitting.max_by_key(|stored| stored.date()).cloned()
    }

    /// Returns true if there is a response under a key.
    pub fn has(&self, key: &[u8]) -> bool {
        self.answers.contains_key(key)
            || self.disk_cache.as_ref().is_some_and(|disk_cache| disk_cache.has(key))
    }

    /// Returns the purge counts that concern a key.
    pub fn epoch(&self, key: &[u8]) -> Epoch {
        self.epoch_at(self.hasher.hash_one(key))
    }

    /// Returns the current counts of a key, combined with the purges of many keys since `asked`: for a response under
    /// a key that was unknown at the time of the request.
    pub fn epoch_since(&self, key: &[u8], asked: Epoch) -> Epoch {
        Epoch { of_all: asked.of_all, ..self.epoch(key) }
    }

    fn epoch_at(&self, hash: u64) -> Epoch {
        let of_key = self.forgotten[hash as usize % COUNTERS].load(Ordering::Acquire);
        Epoch { of_key, of_all: self.swept.load(Ordering::Acquire) }
    }

    /// Stores a response, unless there was a purge since its request.
    pub fn insert(&self, key: &[u8], mut stored: Stored, epoch: Epoch, now: u64) {
        let hash = self.hasher.hash_one(key);
        let _writing = self.stripe(hash);
        if self.epoch_at(hash) != epoch {
            return;
        }
        let key: Arc<[u8]> = key.into();
        let Some(disk_cache) = &self.disk_cache else {
            return self.remember(&key, Arc::new(stored));
        };
        // A node has revalidated it: the body stays where it is.
        let known = stored.mark.take_if(|mark| !mark.is_gone());
        let is_in_memory = matches!(stored.body, Body::Whole(_));
        let is_new = known.is_none() && is_in_memory;
        let entry = is_new.then(|| disk_cache.expect(&key, &stored, now)).flatten();
        let is_known = known.is_some();
        stored.mark = known.or_else(|| entry.as_ref().map(|entry| Arc::clone(&entry.mark)));
        let stored = Arc::new(stored);
        if is_in_memory {
            self.remember(&key, Arc::clone(&stored));
        }
        match entry {
            Some(entry) => disk_cache.write(entry, stored, now),
            None if is_known => disk_cache.renew(&key, stored, now),
            None => {}
        }
    }

    /// Starts to write a response whose body is too large for memory, unless there was a purge since its request;
    /// None if it cannot be written.
    pub(crate) fn stream(&self, key: &Arc<[u8]>, stored: &Stored, epoch: Epoch, now: u64) -> Option<Stream> {
        let disk_cache = self.disk_cache.as_ref()?;
        let hash = self.hasher.hash_one(&key[..]);
        let _writing = self.stripe(hash);
        // Otherwise concurrent requests for a slow response would restart each other's writes, and none would
        // complete.
        if self.epoch_at(hash) != epoch || disk_cache.is_writing(key, stored) {
            return None;
        }
        disk_cache.stream(key, stored, now)
    }

    /// Handles the end of a response that is not in memory: older ones in memory are removed.
    pub(crate) fn supersede(&self, key: &Arc<[u8]>, stored: &Stored) {
        let _writing = self.stripe(self.hasher.hash_one(&key[..]));
        self.retain(key, |other| !stored.replaces(other));
    }

    /// Adds a response read from the disk to memory, unless there was a purge since the read began, or it is too
    /// large.
    pub(crate) fn promote(&self, key: &Arc<[u8]>, stored: &Arc<Stored>, epoch: Epoch) {
        let hash = self.hasher.hash_one(&key[..]);
        let _writing = self.stripe(hash);
        let is_known = || {
            let known = self.answers.peek(&key[..]);
            known.is_some_and(|known| known.iter().any(|other| stored.replaces(other)))
        };
        // One that is being written to replace it is newer, and may be in use already. After that write this one is
        // removed, so the write is checked first.
        let is_newest = || {
            let is_replaced =
                self.disk_cache.as_ref().is_some_and(|disk_cache| disk_cache.is_writing(key, stored));
            !is_replaced && stored.is_kept()
        };
        if matches!(stored.body, Body::Whole(_)) && self.epoch_at(hash) == epoch && !is_known() && is_newest()
        {
            self.remember(key, Arc::clone(stored));
        }
    }

    /// Adds a response to memory; its stripe is held.
    fn remember(&self, key: &Arc<[u8]>, stored: Arc<Stored>) {
        let known = self.answers.peek(&key[..]);
        let others =
            known.iter().flat_map(|variants| variants.iter()).filter(|other| !stored.replaces(other));
        let mut variants: Vec<Arc<Stored>> = others.cloned().collect();
        if variants.len() >= VARIANTS_MAX
            && let Some(oldest) = (0..variants.len()).min_by_key(|at| variants[*at].freshness.born)
        {
            variants.swap_remove(oldest);
        }
        variants.push(stored);
        self.answers.insert(Arc::clone(key), variants.into());
    }

    /// Removes the responses under a key in memory that `stays` rejects; returns them. Its stripe is held.
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

    /// Purges all responses under a key, also arriving ones; returns true if there were any. Later requests get a
    /// response that was requested later.
    pub fn purge(&self, key: &[u8]) -> bool {
        self.forget(key, None)
    }

    /// As [`Zone::purge`], for a caller that waits for the removal from the disk.
    pub fn erase(&self, key: &[u8]) -> (bool, Erasure) {
        let (erasure, pending_removal) = Erasure::begin();
        (self.forget(key, Some(&pending_removal)), erasure)
    }

    fn forget(&self, key: &[u8], pending_removal: Option<&PendingRemoval>) -> bool {
        let hash = self.hasher.hash_one(key);
        let mut flights = self.stripe(hash);
        self.forgotten[hash as usize % COUNTERS].fetch_add(1, Ordering::AcqRel);
        // Waiting requests were made before.
        flights.remove(key);
        let was_on_disk =
            self.disk_cache.as_ref().is_some_and(|disk_cache| disk_cache.forget(key, pending_removal));
        self.answers.remove(key).is_some() || was_on_disk
    }

    /// Purges all responses that match an order, and all arriving ones, as their properties are not known yet.
    /// Returns their number, and the pending removals from a disk.
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
            // Responses that are on a disk too are counted there.
            count += gone.iter().filter(|gone| gone.mark.as_ref().is_none_or(|mark| mark.is_gone())).count();
        }
        let Some(disk_cache) = &self.disk_cache else { return (count, Erasure::nothing()) };
        let (erasure, pending_removal) = Erasure::begin();
        (count + disk_cache.sweep(order, Some(&pending_removal)), erasure)
    }

    /// Starts a flight for all requests with this key. A flight of others is respected for `most_s` seconds, if that
    /// is not 0.
    ///
    /// # Errors
    /// Returns the running flight if there is one.
    pub fn lead(self: &Arc<Zone>, key: &[u8], now: u64, most_s: u32) -> Result<Lead, Arc<SingleFlight>> {
        let mut flights = self.stripe(self.hasher.hash_one(key));
        if let Some(flight) = flights.get(key).filter(|flight| !flight.is_late(now, most_s)) {
            return Err(Arc::clone(flight));
        }
        let (key, flight): (Arc<[u8]>, _) = (key.into(), Arc::new(SingleFlight::new(now)));
        flights.insert(Arc::clone(&key), Arc::clone(&flight));
        drop(flights);
        Ok(Lead { zone: Arc::clone(self), key, flight })
    }

    /// Starts a fetch that no other request waits for.
    pub fn lead_apart(self: &Arc<Zone>, key: &[u8], now: u64) -> Lead {
        Lead { zone: Arc::clone(self), key: key.into(), flight: Arc::new(SingleFlight::new(now)) }
    }

    /// Returns the arriving response under this key, if all may share it.
    pub fn coming(&self, key: &[u8]) -> Option<Arc<Stored>> {
        self.stripe(self.hasher.hash_one(key)).get(key)?.coming()
    }

    /// Counts a request, and returns the number of requests so far, as far as it is remembered.
    pub fn count_use(&self, key: &[u8]) -> u32 {
        let hash = self.hasher.hash_one(key);
        let uses = self.uses.get(&hash).unwrap_or(0).saturating_add(1);
        self.uses.insert(hash, uses);
        uses
    }

    /// Returns true if responses under this key are known to be unshareable.
    pub fn is_passed(&self, key: &[u8], now: u64) -> bool {
        self.passed.get(key).is_some_and(|until| now < until)
    }

    fn let_pass(&self, key: &Arc<[u8]>, until: u64) {
        self.passed.insert(Arc::clone(key), until);
    }

    pub(crate) fn end_flight(&self, key: &[u8], flight: &Arc<SingleFlight>) {
        let mut flights = self.stripe(self.hasher.hash_one(key));
        if flights.get(key).is_some_and(|known| Arc::ptr_eq(known, flight)) {
            flights.remove(key);
        }
    }

    /// Counts bytes of arriving responses; returns false above the limit.
    pub(crate) fn hold(&self, bytes: u64) -> bool {
        let before = self.coming.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.bytes {
            self.coming.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Releases bytes of responses that have arrived, or were cancelled.
    pub(crate) fn let_go(&self, bytes: u64) {
        self.coming.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn stripe(&self, hash: u64) -> MutexGuard<'_, SingleFlights> {
        held(&self.stripes[hash as usize % STRIPES])
    }
}

/// The leader of a flight. A drop ends the flight, and waiting requests look for themselves.
#[derive(Debug)]
pub struct Lead {
    zone: Arc<Zone>,
    key: Arc<[u8]>,
    flight: Arc<SingleFlight>,
}

impl Lead {
    /// Shares an arriving response with all.
    pub(crate) fn share(&self, stored: Arc<Stored>) {
        self.flight.complete(stored);
    }

    /// Marks the response as unshareable: for a while requests for the key are not collapsed.
    pub fn part(self, now: u64) {
        self.zone.let_pass(&self.key, now + PASSED_S);
    }

    /// Handles a failure of the node: waiting requests fetch for themselves, and later ones start a new flight.
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
    fn responses_by_their_varying_fields() {
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
        // No more than that.
        (0..100).for_each(|n| put(&format!("l{n}"), b"x"));
        assert_eq!(zone.answers.get(&b"k"[..]).unwrap().len(), VARIANTS_MAX);
        // A response with other `Vary` fields replaces all.
        zone.insert(b"k", stored(&[], &[]).unwrap(), zone.epoch(b"k"), 0);
        assert_eq!(zone.answers.get(&b"k"[..]).unwrap().len(), 1);
        assert_eq!(kept(&zone, &[]).as_deref(), Some(&b"body"[..]));
        assert!(zone.purge(b"k") && !zone.purge(b"k"));
        assert_eq!(kept(&zone, &[]), None);
    }

    #[test]
    fn requests_from_before_a_purge_are_not_stored() {
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
    fn arriving_responses_are_not_for_requests_after_a_purge() {
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
            // The end of the old flight does not end the new one.
            drop(old);
            assert!(zone.lead(b"k", 0, 0).unwrap_err().coming().is_none());
            drop(new);
        }
    }

    #[test]
    fn a_late_leader_is_replaced() {
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
    fn a_sweep_removes_matching_responses() {
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
    fn memory_has_a_limit() {
        let zone = zone();
        for n in 0..10_000u32 {
            let mut one = stored(&[], &[]).unwrap();
            one.body = crate::Body::of(&[0; 1000]);
            zone.insert(&n.to_be_bytes(), one, zone.epoch(&n.to_be_bytes()), 0);
        }
        assert!(zone.held_bytes() <= 1 << 20 && zone.len() > 300, "{zone:?}");
        // Arriving bytes have their own limit.
        assert!(zone.hold(1 << 20) && !zone.hold(1) && zone.hold(0));
        zone.let_go(1 << 20);
        assert!(zone.hold(1));
    }

    #[test]
    fn one_request_fetches_for_all() {
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
