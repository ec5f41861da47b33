//! A table by text that generations of a configuration share.
//!
//! It is split into shards by hash. A clone shares all of them; a change copies one. A look-up among a hundred
//! thousand entries reads a few lines of memory: one of the shard's tags, the entry, its key.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// The average number of entries in a shard that doubles the shards; a change copies about this many.
const SHARD_LEN: usize = 256;

/// Values by text.
pub(crate) struct Index<V> {
    /// A power of two; empty for an empty table.
    shards: Box<[Arc<Shard<V>>]>,
    len: usize,
    hasher: RandomState,
}

type Shard<V> = HashTable<Keyed<V>>;

#[derive(Clone)]
struct Keyed<V> {
    hash: u64,
    key: Arc<str>,
    value: V,
}

impl<V> Default for Index<V> {
    fn default() -> Self {
        Index { shards: Box::default(), len: 0, hasher: RandomState::default() }
    }
}

impl<V> Clone for Index<V> {
    fn clone(&self) -> Self {
        Index { shards: self.shards.clone(), len: self.len, hasher: self.hasher.clone() }
    }
}

impl<V> fmt::Debug for Index<V> {
    /// Omits keys, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<V> Index<V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&V> {
        let hash = self.hasher.hash_one(key);
        let shard = self.shards.get(at(hash, self.shards.len()))?;
        shard.find(hash, |keyed| *keyed.key == *key).map(|keyed| &keyed.value)
    }

    /// Returns all values, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.shards.iter().flat_map(|shard| shard.iter()).map(|keyed| &keyed.value)
    }
}

impl<V: Clone> Index<V> {
    /// Inserts a value; it replaces one with the same key.
    pub(crate) fn insert(&mut self, key: &str, value: V) {
        if self.len >= self.shards.len() * SHARD_LEN {
            self.grow();
        }
        let hash = self.hasher.hash_one(key);
        let shard = Arc::make_mut(&mut self.shards[at(hash, self.shards.len())]);
        match shard.find_mut(hash, |keyed| *keyed.key == *key) {
            Some(keyed) => keyed.value = value,
            None => {
                shard.insert_unique(hash, Keyed { hash, key: key.into(), value }, |keyed| keyed.hash);
                self.len += 1;
            }
        }
    }

    /// Removes a value, if there is one.
    pub(crate) fn remove(&mut self, key: &str) {
        let hash = self.hasher.hash_one(key);
        let is_it = |keyed: &Keyed<V>| *keyed.key == *key;
        let Some(shard) = self.shards.get_mut(at(hash, self.shards.len())) else { return };
        if shard.find(hash, is_it).is_some()
            && let Ok(entry) = Arc::make_mut(shard).find_entry(hash, is_it)
        {
            entry.remove();
            self.len -= 1;
        }
    }

    /// Doubles the shards.
    fn grow(&mut self) {
        let count = (self.shards.len() * 2).max(1);
        let mut shards: Vec<Shard<V>> = (0..count).map(|_| HashTable::new()).collect();
        for shard in std::mem::take(&mut self.shards) {
            for keyed in Arc::unwrap_or_clone(shard) {
                shards[at(keyed.hash, count)].insert_unique(keyed.hash, keyed, |keyed| keyed.hash);
            }
        }
        self.shards = shards.into_iter().map(Arc::new).collect();
    }
}

/// Returns the shard of a hash, by middle bits: the tables use the lowest and the highest.
fn at(hash: u64, shards: usize) -> usize {
    (hash >> 32) as usize & shards.wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn generations_share_unchanged_shards() {
        let (mut index, mut expected) = (Index::default(), HashMap::new());
        assert_eq!((index.get("0"), index.is_empty()), (None, true));
        let mut generations = Vec::new();
        for number in 0..2000_u32 {
            let key = (number * 7 % 1500).to_string();
            match number % 5 {
                0 => {
                    index.remove(&key);
                    expected.remove(&key);
                }
                _ => {
                    index.insert(&key, number);
                    expected.insert(key, number);
                }
            }
            if number % 400 == 0 {
                generations.push((index.clone(), expected.clone()));
            }
        }
        generations.push((index, expected));
        for (index, expected) in &generations {
            (0..1500).map(|key: u32| key.to_string()).for_each(|key| {
                assert_eq!(index.get(&key), expected.get(&key), "{key}");
            });
            assert_eq!((index.len, index.values().count()), (expected.len(), expected.len()));
        }
        let (before, _) = &generations[5];
        let mut after = before.clone();
        after.insert("new", 1);
        let shared = before.shards.iter().zip(&after.shards).filter(|(one, other)| Arc::ptr_eq(one, other));
        assert!(before.shards.len() > 1);
        assert_eq!(shared.count(), before.shards.len() - 1);
    }
}
