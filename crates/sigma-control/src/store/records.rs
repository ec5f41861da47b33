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

    /// Adds a record, and replaces one with its key.
    pub(super) fn put(&mut self, record: Record) {
        self.0.replace(ByKey(record));
    }

    /// Puts records in, whose keys ascend. Many of them at a time are packed more densely than one after the
    /// other.
    pub(super) fn put_all(&mut self, records: Vec<Record>) {
        if records.len() < self.0.len() / 8 {
            return records.into_iter().for_each(|record| self.put(record));
        }
        for record in &records {
            self.0.remove(&*record.key);
        }
        self.0.append(&mut records.into_iter().map(ByKey).collect());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_by_their_keys() {
        let record =
            |key: &str, modified| Record { key: key.into(), value: b"{}"[..].into(), created: 1, modified };
        let all = |prefix: &str, records: &Records| -> Vec<(String, u64)> {
            records.with_prefix(prefix).into_iter().map(|record| (record.key, record.modified)).collect()
        };
        let mut records = Records::default();
        records.put_all(vec![record("routes/1", 1), record("routes/2", 1), record("ssls/1", 1)]);
        // As many as there are, then one among many: each replaces the one with its key.
        records.put_all(vec![record("routes/2", 2), record("routes/3", 2), record("upstreams/1", 2)]);
        records.put_all((10..50).map(|n| record(&format!("zones/{n}"), 3)).collect());
        records.put_all(vec![record("routes/3", 4)]);
        let routes = [("routes/1", 1), ("routes/2", 2), ("routes/3", 4)].map(|(key, n)| (key.to_owned(), n));
        assert_eq!(all("routes/", &records), routes);
        assert_eq!(
            (records.iter().count(), records.get("ssls/1").map(|record| record.modified)),
            (45, Some(1))
        );
        assert!(records.remove("ssls/1") && !records.remove("ssls/1") && records.get("ssls/1").is_none());
    }
}
