//! Which keys there are and when each was written: enough to tell whether two know the same.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// The keys below the prefix with the revision in which each was last written.
///
/// A key is stored as a hash, so that a hundred thousand of them take three megabytes. That two keys have the
/// same one is less likely than a broken disk, and would hide a difference at worst.
#[derive(Debug, Clone, Default)]
pub(super) struct Keys {
    hasher: RandomState,
    written: HashMap<u64, u64>,
}

impl Keys {
    /// None yet, and comparable with these.
    pub(super) fn like(&self) -> Keys {
        Keys { hasher: self.hasher.clone(), written: HashMap::new() }
    }

    pub(super) fn put(&mut self, key: &str, revision: u64) {
        self.written.insert(self.hasher.hash_one(key), revision);
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.written.remove(&self.hasher.hash_one(key));
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.written.len()
    }

    /// Whether both have the same keys, written in the same revisions.
    pub(super) fn agree(&self, other: &Keys) -> bool {
        self.written == other.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_a_further_and_a_rewritten_key_are_a_difference() {
        let mut known = Keys::default();
        let listed = |keys: &[(&str, u64)]| {
            let mut listed = known.like();
            keys.iter().for_each(|(key, revision)| listed.put(key, *revision));
            listed
        };
        let same = listed(&[("routes/2", 7), ("routes/1", 5)]);
        let others = [
            listed(&[("routes/1", 5)]),
            listed(&[("routes/1", 5), ("routes/2", 7), ("routes/3", 7)]),
            listed(&[("routes/1", 5), ("routes/2", 8)]),
            listed(&[("routes/1", 5), ("routes/3", 7)]),
        ];
        known.put("routes/1", 4);
        known.put("routes/1", 5);
        known.put("routes/2", 7);
        known.put("routes/3", 7);
        known.remove("routes/3");
        known.remove("routes/none");
        assert!(known.agree(&same) && same.agree(&known));
        assert!(others.iter().all(|other| !known.agree(other)));
        assert_eq!(known.count(), 2);
    }
}
