//! Records in memory, in the order of their keys.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, btree_set};
use std::ops::Bound;

use super::Record;

/// Records by their keys, which stand in the records only: there may be hundreds of thousands.
#[derive(Debug, Default)]
pub(super) struct Records(BTreeSet<ByKey>);

/// A record that is found and ordered by its key alone.
#[derive(Debug)]
struct ByKey(Record);

impl Borrow<str> for ByKey {
    fn borrow(&self) -> &str {
        &self.0.key
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &ByKey) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &ByKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &ByKey) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

impl Records {
    pub(super) fn get(&self, key: &str) -> Option<&Record> {
        self.0.get(key).map(|ByKey(record)| record)
    }

    /// Puts a record in, in the place of one with its key.
    pub(super) fn put(&mut self, record: Record) {
        self.0.replace(ByKey(record));
    }

    /// Takes a record out; whether it was there.
    pub(super) fn remove(&mut self, key: &str) -> bool {
        self.0.remove(key)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// All records.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        let all: btree_set::Iter<'_, ByKey> = self.0.iter();
        all.map(|ByKey(record)| record)
    }

    /// The records whose key begins with `prefix`.
    pub(super) fn with_prefix(&self, prefix: &str) -> Vec<Record> {
        let from =
            self.0.range::<str, _>((Bound::Included(prefix), Bound::Unbounded)).map(|ByKey(record)| record);
        from.take_while(|record| record.key.starts_with(prefix)).cloned().collect()
    }
}
