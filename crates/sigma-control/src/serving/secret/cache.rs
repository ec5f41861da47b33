//! A cache of look-ups.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A bounded map whose entries grow old. An old entry stays until its place is needed.
pub(super) struct Cache<T> {
    entries: HashMap<String, Entry<T>>,
    capacity: usize,
    ttl: Duration,
    /// Counts uses; an entry's `used` orders entries by their last use.
    uses: u64,
}

struct Entry<T> {
    value: T,
    written: Instant,
    used: u64,
}

impl<T> Cache<T> {
    pub(super) fn new(capacity: usize, ttl: Duration) -> Self {
        Cache { entries: HashMap::new(), capacity, ttl, uses: 0 }
    }

    /// The value, and whether it is younger than the time to live.
    pub(super) fn get(&mut self, key: &str, now: Instant) -> Option<(&T, bool)> {
        self.uses += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.uses;
        let fresh = now.saturating_duration_since(entry.written) < self.ttl;
        Some((&entry.value, fresh))
    }

    pub(super) fn put(&mut self, key: &str, value: T, now: Instant) {
        self.uses += 1;
        self.entries.insert(key.to_owned(), Entry { value, written: now, used: self.uses });
        if self.entries.len() > self.capacity {
            // A few hundred entries: a scan costs less than keeping them in order.
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.entries.remove(&key);
            }
        }
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.entries.remove(key);
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_grow_old() {
        let mut cache = Cache::new(2, Duration::from_secs(300));
        let start = Instant::now();
        cache.put("a", 1, start);
        let check = |cache: &mut Cache<i32>, seconds: u64, expected: Option<(i32, bool)>| {
            let found = cache.get("a", start + Duration::from_secs(seconds));
            assert_eq!(found.map(|(value, fresh)| (*value, fresh)), expected, "after {seconds} s");
        };
        check(&mut cache, 0, Some((1, true)));
        check(&mut cache, 299, Some((1, true)));
        check(&mut cache, 300, Some((1, false)));
        cache.put("a", 2, start + Duration::from_secs(300));
        check(&mut cache, 301, Some((2, true)));
        cache.remove("a");
        check(&mut cache, 301, None);
    }

    #[test]
    fn the_one_unused_for_longest_goes() {
        let mut cache = Cache::new(2, Duration::from_secs(1));
        let now = Instant::now();
        cache.put("a", 1, now);
        cache.put("b", 2, now);
        cache.get("a", now);
        cache.put("c", 3, now);
        let left: Vec<bool> = ["a", "b", "c"].iter().map(|key| cache.get(key, now).is_some()).collect();
        assert_eq!(left, [true, false, true]);
        cache.clear();
        assert!(cache.get("a", now).is_none());
    }
}
