//! Counters that all workers of this gateway share.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

/// Shards; a power of two. Workers contend for a lock only if their keys are in one shard.
const SHARDS: usize = 64;

/// A table of expiring values under byte keys, without one lock over all of it.
///
/// Times are milliseconds of a clock that the caller chooses; one table uses one clock.
#[derive(Debug)]
pub struct Shared<V> {
    shards: Box<[Mutex<Shard<V>>]>,
    hasher: RandomState,
    /// The byte limit of one shard.
    limit_bytes: usize,
}

#[derive(Debug)]
struct Shard<V> {
    slots: HashTable<Entry<V>>,
    /// The bytes of keys and values together, see [`cost`].
    bytes: usize,
    /// The number of entries that starts a sweep of expired ones.
    sweep_at: usize,
    /// The earliest expiry in the shard when it was last full; see [`Shared::with_room`].
    full_until_ms: u64,
}

/// A key with its value; the hash of the key finds shard and entry.
#[derive(Debug)]
struct Entry<V> {
    hash: u64,
    key: Box<[u8]>,
    slot: Slot<V>,
}

/// A value with its expiry time.
#[derive(Debug)]
pub struct Slot<V> {
    /// The value.
    pub value: V,
    /// From this time on, the value does not exist.
    pub expires_ms: u64,
}

/// The byte limit of a table without [`Shared::with_limit`]. It bounds a flood of keys from clients. It has room for
/// about 800,000 short keys, such as addresses on a route. That is little memory compared with the rest that so many
/// clients need.
pub const DEFAULT_LIMIT_BYTES: usize = 128 << 20;

/// Bytes of an entry besides its key and value: its share of a table that is not full, and the overhead of two
/// allocations.
const OVERHEAD: usize = 72;

fn cost<V>(key: &[u8]) -> usize {
    key.len() + size_of::<Slot<V>>() + OVERHEAD
}

impl<V: Default> Default for Shared<V> {
    fn default() -> Self {
        Shared::with_limit(DEFAULT_LIMIT_BYTES)
    }
}

impl<V: Default> Shared<V> {
    /// Returns a table of about this many bytes at most; beyond that, values with the earliest expiry are removed.
    pub fn with_limit(limit_bytes: usize) -> Shared<V> {
        let shard =
            || Mutex::new(Shard { slots: HashTable::new(), bytes: 0, sweep_at: 64, full_until_ms: 0 });
        Shared {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hasher: RandomState::new(),
            limit_bytes: limit_bytes / SHARDS,
        }
    }

    /// Runs `change` on the value of `key`. A missing or expired value becomes the default, without expiry unless
    /// `change` sets one. `change` must be quick: other keys wait.
    pub fn with<R>(&self, key: &[u8], now_ms: u64, change: impl FnOnce(&mut Slot<V>) -> R) -> R {
        let (hash, mut shard) = self.shard(key);
        if let Some(Entry { slot, .. }) = shard.slots.find_mut(hash, |entry| *entry.key == *key) {
            if slot.expires_ms <= now_ms {
                *slot = Slot { value: V::default(), expires_ms: u64::MAX };
            }
            return change(slot);
        }
        shard.make_room(now_ms, self.limit_bytes.saturating_sub(cost::<V>(key)));
        change(shard.insert(hash, key))
    }

    /// Works as [`Shared::with`], but never removes a live value for a new key. Returns None if the table is full.
    pub fn with_room<R>(&self, key: &[u8], now_ms: u64, change: impl FnOnce(&mut Slot<V>) -> R) -> Option<R> {
        let (hash, mut shard) = self.shard(key);
        if let Some(Entry { slot, .. }) = shard.slots.find_mut(hash, |entry| *entry.key == *key) {
            if slot.expires_ms <= now_ms {
                *slot = Slot { value: V::default(), expires_ms: u64::MAX };
            }
            return Some(change(slot));
        }
        let has_room = shard.has_room(now_ms, self.limit_bytes.saturating_sub(cost::<V>(key)));
        has_room.then(|| change(shard.insert(hash, key)))
    }

    /// Works as [`Shared::with`], but only for an existing value: it adds no keys.
    pub fn peek<R>(&self, key: &[u8], now_ms: u64, change: impl FnOnce(&mut Slot<V>) -> R) -> Option<R> {
        let (hash, mut shard) = self.shard(key);
        let slot = shard.slots.find_mut(hash, |entry| *entry.key == *key).map(|entry| &mut entry.slot);
        slot.filter(|slot| slot.expires_ms > now_ms).map(change)
    }

    /// Returns the hash of a key, and its shard.
    fn shard(&self, key: &[u8]) -> (u64, MutexGuard<'_, Shard<V>>) {
        let hash = self.hasher.hash_one(key);
        // Middle bits: the tables use the lowest and the highest bits.
        let shard = &self.shards[(hash >> 32) as usize % SHARDS];
        // After a panic in a change, the value is at worst outdated.
        (hash, shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes a value.
    pub fn remove(&self, key: &[u8]) {
        let (hash, mut shard) = self.shard(key);
        if let Ok(entry) = shard.slots.find_entry(hash, |entry| *entry.key == *key) {
            entry.remove();
            shard.bytes -= cost::<V>(key);
        }
    }

    /// Calls `see` with all values, expired ones included. It locks one shard at a time.
    pub fn visit(&self, mut see: impl FnMut(&[u8], &Slot<V>)) {
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.slots.iter().for_each(|entry| see(&entry.key, &entry.slot));
        }
    }

    /// Returns the number of values, expired ones included.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().unwrap_or_else(PoisonError::into_inner).slots.len()).sum()
    }

    /// Returns true if the table has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<V: Default> Shard<V> {
    /// Adds a key that is not in the table.
    fn insert(&mut self, hash: u64, key: &[u8]) -> &mut Slot<V> {
        self.bytes += cost::<V>(key);
        let slot = Slot { value: V::default(), expires_ms: u64::MAX };
        let entry = Entry { hash, key: key.into(), slot };
        &mut self.slots.insert_unique(hash, entry, |entry| entry.hash).into_mut().slot
    }
}

impl<V> Shard<V> {
    /// Removes expired values and returns true if the rest takes at most `limit_bytes`.
    fn has_room(&mut self, now_ms: u64, limit_bytes: usize) -> bool {
        // While no value can have expired, a full shard is not swept again.
        let is_full = self.bytes > limit_bytes;
        if self.slots.len() >= self.sweep_at || is_full && now_ms >= self.full_until_ms {
            self.retain(|slot| slot.expires_ms > now_ms);
            self.sweep_at = (self.slots.len() * 2).max(64);
            self.full_until_ms = self.slots.iter().map(|entry| entry.slot.expires_ms).min().unwrap_or(0);
        }
        self.bytes <= limit_bytes
    }

    /// Removes expired values when a sweep is due, then values with the earliest expiry until the rest takes at most
    /// `limit_bytes`.
    fn make_room(&mut self, now_ms: u64, limit_bytes: usize) {
        if self.slots.len() < self.sweep_at && self.bytes <= limit_bytes {
            return;
        }
        self.retain(|slot| slot.expires_ms > now_ms);
        if self.bytes > limit_bytes && !self.slots.is_empty() {
            let mut ends: Vec<u64> = self.slots.iter().map(|entry| entry.slot.expires_ms).collect();
            // A quarter at once delays the next sweep.
            let at = ends.len() / 4;
            let bound = *ends.select_nth_unstable(at).1;
            let mut excess = at + 1;
            self.retain(|slot| {
                let goes = slot.expires_ms <= bound && excess > 0;
                excess -= usize::from(goes);
                !goes
            });
        }
        self.sweep_at = (self.slots.len() * 2).max(64);
    }

    fn retain(&mut self, mut keep: impl FnMut(&Slot<V>) -> bool) {
        let mut bytes = 0;
        self.slots.retain(|entry| {
            let kept = keep(&entry.slot);
            bytes += if kept { cost::<V>(&entry.key) } else { 0 };
            kept
        });
        self.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(table: &Shared<u64>, key: &str, now_ms: u64, ttl_ms: u64) -> u64 {
        table.with(key.as_bytes(), now_ms, |slot| {
            if slot.expires_ms == u64::MAX {
                slot.expires_ms = now_ms + ttl_ms;
            }
            slot.value += 1;
            slot.value
        })
    }

    #[test]
    fn values_expire_and_keys_are_apart() {
        let table = Shared::default();
        assert_eq!((add(&table, "a", 0, 10), add(&table, "a", 9, 10), add(&table, "b", 9, 10)), (1, 2, 1));
        assert_eq!(add(&table, "a", 10, 10), 1);
        assert_eq!(table.peek(b"a", 15, |slot| slot.value), Some(1));
        assert_eq!(
            (table.peek(b"a", 20, |slot| slot.value), table.peek(b"c", 0, |slot| slot.value)),
            (None, None)
        );
        table.remove(b"a");
        assert_eq!(add(&table, "a", 10, 10), 1);
    }

    #[test]
    fn a_flood_of_keys_stays_within_the_limit() {
        for length in [8, 256] {
            let limit = 1 << 20;
            let table = Shared::with_limit(limit);
            let key = |n: u64| format!("{n:0length$}");
            for n in 0..50_000u64 {
                add(&table, &key(n), n, 1_000_000);
            }
            let each = cost::<u64>(key(0).as_bytes());
            assert!(table.len() <= limit / each, "{} of {each} bytes", table.len());
            assert!(table.len() > limit / each / 2, "{} of {each} bytes", table.len());
            assert_eq!(add(&table, &key(49_999), 50_000, 1), 2, "the newest stay");
        }
    }

    #[test]
    fn full_table_takes_no_new_key_until_values_expire() {
        let limit = 1 << 20;
        let table = Shared::<u64>::with_limit(limit);
        let add = |key: u64, now_ms: u64| {
            table.with_room(&key.to_be_bytes(), now_ms, |slot| {
                (slot.value, slot.expires_ms) = (key, now_ms + 1000);
            })
        };
        let added: Vec<u64> = (0..50_000).filter(|key| add(*key, key / 100).is_some()).collect();
        let each = cost::<u64>(&[0; 8]);
        assert!((limit / each / 2..=limit / each).contains(&added.len()), "{} of {each} bytes", added.len());
        for key in &added {
            assert_eq!(table.peek(&key.to_be_bytes(), 500, |slot| slot.value), Some(*key));
            assert!(add(*key, 500).is_some(), "a key that is there needs no room");
        }
        assert_eq!((50_000..60_000).filter(|key| add(*key, 1499).is_some()).count(), 0);
        let later = (50_000..60_000).filter(|key| add(*key, 1500).is_some()).count();
        assert!(later > limit / each / 2, "{later}");
    }

    #[test]
    fn expired_values_make_room() {
        let table = Shared::<u64>::with_limit(64 * 1000);
        for n in 0..1000u64 {
            add(&table, &n.to_string(), n, 1_000_000);
            table.remove(n.to_string().as_bytes());
        }
        assert!(table.shards.iter().all(|shard| shard.lock().unwrap().bytes == 0));
    }

    #[test]
    fn no_count_is_lost_between_threads() {
        let table: Shared<u64> = Shared::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        add(&table, "k", 0, 10);
                    }
                });
            }
        });
        assert_eq!(add(&table, "k", 0, 10), 40_001);
    }
}
