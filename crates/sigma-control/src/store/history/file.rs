//! The file of the history: versions, how each object was before, and how all of them are now.
//!
//! A version keeps only the former state of its objects. The state after it is in the next version that has
//! them, or in the present state; so every value is stored once, and all queries start from the newest end,
//! which is complete even when old versions are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use redb::backends::{FileBackend, InMemoryBackend};
use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata, Table,
    TableDefinition,
};
use rustix::fs::OFlags;

use super::version::{Author, Difference, KEYS_NAMED, Operation, Outcome, State, Summary, Version};
use super::{Limits, SETTINGS};

/// Version → its description, in JSON.
const VERSIONS: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("versions");
/// Version and key → the value before; None if the key did not exist.
const BEFORE: TableDefinition<'static, (u64, &str), Option<&[u8]>> = TableDefinition::new("before");
/// Key and version: in which versions a key is.
const BY_KEY: TableDefinition<'static, (&str, u64), ()> = TableDefinition::new("by_key");
/// Key → the revision in which it was written, and its value: how everything is after the newest version.
const NOW: TableDefinition<'static, &str, (u64, &[u8])> = TableDefinition::new("now");
/// The numbers that belong to the whole.
const NUMBERS: TableDefinition<'static, &str, u64> = TableDefinition::new("numbers");
/// The texts.
const TEXTS: TableDefinition<'static, &str, &str> = TableDefinition::new("texts");

const LAYOUT: &str = "layout";
const LAYOUT_HERE: u64 = 1;
/// The size of former values.
const BYTES: &str = "bytes";
/// The newest version that there ever was: numbers are not given out again.
const NEWEST: &str = "newest";
/// The subject of the history.
const SUBJECT: &str = "subject";
/// The overhead of a row.
const ROW_BYTES: u64 = 64;
/// Pages that are kept in memory, in bytes.
const CACHE_BYTES: usize = 1 << 20;

/// How an object is now.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) key: String,
    pub(super) modified: u64,
    /// None if it is gone.
    pub(super) value: Option<Arc<[u8]>>,
}

/// A version that is to be written.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) author: Author,
    pub(super) revision: u64,
    pub(super) time_ms: u64,
    pub(super) rollback_to: Option<u64>,
    pub(super) note: Option<String>,
    pub(super) result: Outcome,
    /// It is written even if it changes nothing.
    pub(super) always: bool,
}

/// The objects that a version changes.
#[derive(Debug, Default)]
struct Changes {
    summary: Summary,
    keys: Vec<String>,
    operations: Vec<Operation>,
    /// Room that their former values take.
    bytes: u64,
}

/// The changes that restore objects to their state after a version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Target {
    /// Objects that are different now; None for objects to delete.
    pub(crate) objects: BTreeMap<String, Option<Vec<u8>>>,
    /// Settings of the file that are different, which no store holds.
    pub(crate) settings: Vec<String>,
    /// Objects that would come back but had expired.
    pub(crate) expired: Vec<String>,
}

/// Why the file cannot be opened.
pub(super) enum Refused {
    /// Another process has it open.
    Busy,
    /// It cannot be read; the text says why.
    Damaged(String),
    /// The system refuses.
    Failed(String),
}

/// The open file.
pub(super) struct HistoryFile(Database);

type Result<T> = std::result::Result<T, redb::Error>;

impl HistoryFile {
    /// Opens the file, or makes it; None for one in memory. Its content of another subject is dropped.
    pub(super) fn open(path: Option<&Path>, subject: &str) -> std::result::Result<HistoryFile, Refused> {
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES);
        let opened = match path {
            None => builder.create_with_backend(InMemoryBackend::new()),
            Some(path) => {
                let file = open_regular(path).map_err(|error| Refused::Failed(error.to_string()))?;
                FileBackend::new(file).and_then(|backend| builder.create_with_backend(backend))
            }
        };
        let mut database = opened.map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => Refused::Busy,
            error => Refused::Damaged(error.to_string()),
        })?;
        // Frees the space of removed versions. Without it the file only stays as large as it was.
        let _ = database.compact();
        let file = HistoryFile(database);
        file.prepare(subject).map_err(|error| Refused::Damaged(error.to_string()))?;
        Ok(file)
    }

    fn prepare(&self, subject: &str) -> Result<()> {
        let writing = self.0.begin_write()?;
        {
            let is_other = {
                let (numbers, texts) = (writing.open_table(NUMBERS)?, writing.open_table(TEXTS)?);
                let layout = numbers.get(LAYOUT)?.map(|number| number.value());
                let known = texts.get(SUBJECT)?.map(|text| text.value().to_owned());
                layout != Some(LAYOUT_HERE) || known.as_deref() != Some(subject)
            };
            if is_other {
                writing.delete_table(VERSIONS)?;
                writing.delete_table(BEFORE)?;
                writing.delete_table(BY_KEY)?;
                writing.delete_table(NOW)?;
                writing.delete_table(NUMBERS)?;
            }
            writing.open_table(VERSIONS)?;
            writing.open_table(BEFORE)?;
            writing.open_table(BY_KEY)?;
            writing.open_table(NOW)?;
            writing.open_table(NUMBERS)?.insert(LAYOUT, LAYOUT_HERE)?;
            writing.open_table(TEXTS)?.insert(SUBJECT, subject)?;
        }
        writing.commit()?;
        Ok(())
    }

    /// Whether no version was ever written.
    pub(super) fn is_new(&self) -> Result<bool> {
        Ok(self.0.begin_read()?.open_table(NUMBERS)?.get(NEWEST)?.is_none())
    }

    /// Records the present state as the beginning of the history.
    pub(super) fn begin(&self, items: &[Item], draft: Draft) -> Result<Version> {
        let mut writing = self.0.begin_write()?;
        writing.set_durability(Durability::Immediate)?;
        let version = {
            let mut tables = Tables::of(&writing)?;
            tables.fill(items)?;
            tables.add(draft, Changes::default())?
        };
        writing.commit()?;
        Ok(version)
    }

    /// Takes in how these are, without a version.
    pub(super) fn fill(&self, items: &[Item]) -> Result<()> {
        let writing = self.0.begin_write()?;
        Tables::of(&writing)?.fill(items)?;
        writing.commit()?;
        Ok(())
    }

    /// Whether anything is known of the settings of a file.
    pub(super) fn has_settings(&self) -> Result<bool> {
        let now = self.0.begin_read()?.open_table(NOW)?;
        let first = now.range(SETTINGS..)?.next().transpose()?;
        Ok(first.is_some_and(|(key, _)| key.value().starts_with(SETTINGS)))
    }

    /// Writes a version; None if nothing has changed.
    pub(super) fn record(&self, items: &[Item], draft: Draft, limits: &Limits) -> Result<Option<Version>> {
        let mut writing = self.0.begin_write()?;
        writing.set_durability(Durability::Immediate)?;
        let version = {
            let mut tables = Tables::of(&writing)?;
            let number = tables.newest()? + 1;
            let mut changes = Changes::default();
            for item in items {
                let Some((operation, added)) = tables.change(number, item)? else { continue };
                changes.bytes += added;
                changes.summary.add(operation);
                if changes.keys.len() < KEYS_NAMED {
                    changes.keys.push(item.key.clone());
                    changes.operations.push(operation);
                }
            }
            let now = draft.time_ms;
            let version = match changes.summary.objects() > 0 || draft.always {
                true => Some(tables.add(draft, changes)?),
                false => None,
            };
            tables.trim(now, limits)?;
            version
        };
        writing.commit()?;
        Ok(version)
    }

    /// Returns the differences from the known state, and the known keys that are missing. `is_own` selects
    /// the keys of the compared part.
    pub(super) fn differences(&self, found: Vec<Item>, is_own: impl Fn(&str) -> bool) -> Result<Vec<Item>> {
        let reading = self.0.begin_read()?;
        let now = reading.open_table(NOW)?;
        let present: BTreeSet<&str> = found.iter().map(|item| item.key.as_str()).collect();
        let mut gone = Vec::new();
        for row in now.iter()? {
            let (key, _) = row?;
            let key = key.value();
            if is_own(key) && !present.contains(key) {
                gone.push(Item { key: key.to_owned(), modified: 0, value: None });
            }
        }
        drop(present);
        let mut different = Vec::new();
        for item in found {
            let known = now.get(item.key.as_str())?;
            let same = known.is_some_and(|known| {
                let (modified, value) = known.value();
                modified == item.modified && item.value.as_deref() == Some(value)
            });
            if !same {
                different.push(item);
            }
        }
        different.extend(gone);
        Ok(different)
    }

    /// Changes the description of a version, if it is still there.
    pub(super) fn amend(&self, number: u64, change: impl FnOnce(&mut Version)) -> Result<()> {
        let writing = self.0.begin_write()?;
        {
            let mut versions = writing.open_table(VERSIONS)?;
            let found = versions.get(number)?.and_then(|row| serde_json::from_slice(row.value()).ok());
            if let Some(mut version) = found {
                change(&mut version);
                versions.insert(number, &*text(&version))?;
            }
        }
        writing.commit()?;
        Ok(())
    }

    /// Whether a version has a key.
    pub(super) fn holds(&self, number: u64, key: &str) -> Result<bool> {
        Ok(self.0.begin_read()?.open_table(BY_KEY)?.get((key, number))?.is_some())
    }

    /// The newest versions whose result is not known yet.
    pub(super) fn pending(&self) -> Result<Vec<(u64, u64)>> {
        let mut pending = Vec::new();
        for row in self.0.begin_read()?.open_table(VERSIONS)?.iter()?.rev() {
            let (_, row) = row?;
            let Ok(version) = serde_json::from_slice::<Version>(row.value()) else { continue };
            if version.result.state != State::Pending {
                break;
            }
            pending.push((version.version, version.revision));
        }
        Ok(pending)
    }

    /// Versions before `before`, the newest first; of one key, if one is named.
    pub(super) fn list(&self, limit: usize, before: Option<u64>, key: Option<&str>) -> Result<Vec<Version>> {
        let reading = self.0.begin_read()?;
        let versions = reading.open_table(VERSIONS)?;
        let end = before.unwrap_or(u64::MAX);
        let mut found = Vec::new();
        match key {
            None => {
                for row in versions.range(..end)?.rev().take(limit) {
                    found.extend(serde_json::from_slice(row?.1.value()).ok());
                }
            }
            Some(key) => {
                for row in reading.open_table(BY_KEY)?.range((key, 0)..(key, end))?.rev().take(limit) {
                    let number = row?.0.value().1;
                    let row = versions.get(number)?;
                    found.extend(row.and_then(|row| serde_json::from_slice(row.value()).ok()));
                }
            }
        }
        Ok(found)
    }

    /// A version, if it is kept.
    pub(super) fn version(&self, number: u64) -> Result<Option<Version>> {
        let row = self.0.begin_read()?.open_table(VERSIONS)?.get(number)?;
        Ok(row.and_then(|row| serde_json::from_slice(row.value()).ok()))
    }

    /// Returns the differences between the states after two versions, in the order of keys: as many as have
    /// room, and how many there are. `of` leaves all others out.
    pub(super) fn between(
        &self,
        from: u64,
        to: u64,
        of: Option<&str>,
        limits: super::DifferenceLimits,
    ) -> Result<(Vec<Difference>, usize)> {
        let (low, high) = (from.min(to), from.max(to));
        let reading = self.0.begin_read()?;
        let before = reading.open_table(BEFORE)?;
        let mut touched = BTreeSet::new();
        for row in before.range((low + 1, "")..(high + 1, ""))? {
            let (key, _) = row?;
            let (_, key) = key.value();
            if of.is_none_or(|of| of == key) && !touched.contains(key) {
                touched.insert(key.to_owned());
            }
        }
        let after = After { before, by_key: reading.open_table(BY_KEY)?, now: reading.open_table(NOW)? };
        let (mut found, mut total, mut bytes) = (Vec::new(), 0, 0);
        for key in touched {
            let (before, after) = (after.version(from, &key)?, after.version(to, &key)?);
            if before == after {
                continue;
            }
            total += 1;
            bytes += before.as_ref().map_or(0, Vec::len) + after.as_ref().map_or(0, Vec::len);
            if found.len() < limits.objects && (bytes <= limits.bytes || found.is_empty()) {
                found.push(Difference { key, before, after });
            }
        }
        Ok((found, total))
    }

    /// Returns the changes that restore objects to their state right after a version. None if the known
    /// present differs from `present`: keys with the revisions in which they were written.
    pub(super) fn target(&self, number: u64, present: &BTreeMap<String, u64>) -> Result<Option<Target>> {
        let reading = self.0.begin_read()?;
        let now = reading.open_table(NOW)?;
        let mut known = 0;
        for row in now.iter()? {
            let (key, value) = row?;
            if key.value().starts_with(SETTINGS) {
                continue;
            }
            known += 1;
            if present.get(key.value()) != Some(&value.value().0) {
                return Ok(None);
            }
        }
        if known != present.len() {
            return Ok(None);
        }
        let before = reading.open_table(BEFORE)?;
        let mut touched: BTreeMap<String, u64> = BTreeMap::new();
        for row in before.range((number + 1, "")..)? {
            let (key, _) = row?;
            let (version, key) = key.value();
            touched.insert(key.to_owned(), version);
        }
        let versions = reading.open_table(VERSIONS)?;
        let has_expired = |version: u64| -> Result<bool> {
            let row = versions.get(version)?;
            let version = row.and_then(|row| serde_json::from_slice::<Version>(row.value()).ok());
            Ok(version.is_some_and(|version| version.author.by == super::By::Expiry))
        };
        let after = After { before, by_key: reading.open_table(BY_KEY)?, now };
        let mut target = Target::default();
        for (key, last) in touched {
            let (wanted, is) = (after.version(number, &key)?, after.present(&key)?);
            if wanted == is {
                continue;
            }
            if key.starts_with(SETTINGS) {
                target.settings.push(key);
            } else if is.is_none() && has_expired(last)? {
                target.expired.push(key);
            } else {
                target.objects.insert(key, wanted);
            }
        }
        Ok(Some(target))
    }
}

/// Finds how objects were after a version.
struct After {
    before: redb::ReadOnlyTable<(u64, &'static str), Option<&'static [u8]>>,
    by_key: redb::ReadOnlyTable<(&'static str, u64), ()>,
    now: redb::ReadOnlyTable<&'static str, (u64, &'static [u8])>,
}

impl After {
    fn version(&self, number: u64, key: &str) -> Result<Option<Vec<u8>>> {
        let next = self.by_key.range((key, number + 1)..=(key, u64::MAX))?.next();
        match next {
            Some(row) => {
                let next = row?.0.value().1;
                let row = self.before.get((next, key))?;
                Ok(row.and_then(|row| row.value().map(<[u8]>::to_vec)))
            }
            None => self.present(key),
        }
    }

    fn present(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.now.get(key)?.map(|row| row.value().1.to_vec()))
    }
}

/// The tables while a version is written.
struct Tables<'t> {
    versions: Table<'t, u64, &'static [u8]>,
    before: Table<'t, (u64, &'static str), Option<&'static [u8]>>,
    by_key: Table<'t, (&'static str, u64), ()>,
    now: Table<'t, &'static str, (u64, &'static [u8])>,
    numbers: Table<'t, &'static str, u64>,
}

impl<'t> Tables<'t> {
    fn of(writing: &'t redb::WriteTransaction) -> Result<Tables<'t>> {
        Ok(Tables {
            versions: writing.open_table(VERSIONS)?,
            before: writing.open_table(BEFORE)?,
            by_key: writing.open_table(BY_KEY)?,
            now: writing.open_table(NOW)?,
            numbers: writing.open_table(NUMBERS)?,
        })
    }

    fn fill(&mut self, items: &[Item]) -> Result<()> {
        for Item { key, modified, value } in items {
            if let Some(value) = value {
                self.now.insert(key.as_str(), (*modified, &**value))?;
            }
        }
        Ok(())
    }

    fn number(&self, name: &str) -> Result<u64> {
        Ok(self.numbers.get(name)?.map_or(0, |number| number.value()))
    }

    fn newest(&self) -> Result<u64> {
        self.number(NEWEST)
    }

    /// Takes in one object; returns what became of it and what its former value takes, or None if it has not changed.
    fn change(&mut self, number: u64, item: &Item) -> Result<Option<(Operation, u64)>> {
        let key = item.key.as_str();
        let former = match &item.value {
            Some(value) => self.now.insert(key, (item.modified, &**value))?,
            None => self.now.remove(key)?,
        };
        let former = former.map(|row| row.value().1.to_vec());
        let operation = match (&former, &item.value) {
            (None, None) => return Ok(None),
            (Some(former), Some(value)) if **former == **value => return Ok(None),
            (None, Some(_)) => Operation::Created,
            (Some(_), Some(_)) => Operation::Changed,
            (Some(_), None) => Operation::Deleted,
        };
        self.before.insert((number, key), former.as_deref())?;
        self.by_key.insert((key, number), ())?;
        let bytes = former.map_or(0, |former| former.len() as u64) + 2 * key.len() as u64 + ROW_BYTES;
        Ok(Some((operation, bytes)))
    }

    fn add(&mut self, draft: Draft, changes: Changes) -> Result<Version> {
        let number = self.newest()? + 1;
        let Draft { author, revision, time_ms, rollback_to, note, result, .. } = draft;
        let Changes { summary, keys, operations, bytes } = changes;
        let mut version = Version {
            version: number,
            time_ms,
            author,
            revision,
            summary,
            keys,
            operations,
            result,
            rollback_to,
            note,
            without_values: false,
            bytes,
        };
        version.bytes += text(&version).len() as u64;
        self.versions.insert(number, &*text(&version))?;
        self.numbers.insert(NEWEST, number)?;
        let bytes = self.number(BYTES)? + version.bytes;
        self.numbers.insert(BYTES, bytes)?;
        Ok(version)
    }

    /// Takes off the oldest versions until the limits hold.
    fn trim(&mut self, now: u64, limits: &Limits) -> Result<()> {
        let oldest_time = now.saturating_sub(limits.age_ms);
        let mut count = self.versions.len()?;
        loop {
            let Some((number, row)) = self.oldest()? else { return Ok(()) };
            let bytes = self.number(BYTES)?;
            let is_over = count > limits.count || row.time_ms < oldest_time || bytes > limits.bytes;
            if !is_over {
                return Ok(());
            }
            if count == 1 {
                // The newest is recorded at any size.
                return if bytes > limits.bytes { self.empty(row) } else { Ok(()) };
            }
            self.drop_values(number)?;
            self.versions.remove(number)?;
            self.numbers.insert(BYTES, bytes.saturating_sub(row.bytes))?;
            count -= 1;
        }
    }

    fn oldest(&self) -> Result<Option<(u64, Version)>> {
        let Some((number, row)) = self.versions.first()? else { return Ok(None) };
        let version = serde_json::from_slice(row.value());
        let version = version.map_err(|error| redb::Error::Corrupted(format!("a version: {error}")))?;
        Ok(Some((number.value(), version)))
    }

    /// Keeps a version without the former values.
    fn empty(&mut self, mut version: Version) -> Result<()> {
        if version.without_values {
            return Ok(());
        }
        self.drop_values(version.version)?;
        version.without_values = true;
        version.bytes = text(&version).len() as u64;
        self.versions.insert(version.version, &*text(&version))?;
        self.numbers.insert(BYTES, version.bytes)?;
        Ok(())
    }

    fn drop_values(&mut self, number: u64) -> Result<()> {
        let mut keys = Vec::new();
        for row in self.before.range((number, "")..(number + 1, ""))? {
            keys.push(row?.0.value().1.to_owned());
        }
        for key in keys {
            self.before.remove((number, key.as_str()))?;
            self.by_key.remove((key.as_str(), number))?;
        }
        Ok(())
    }
}

fn text(version: &Version) -> Vec<u8> {
    // None of its parts can fail.
    serde_json::to_vec(version).unwrap_or_default()
}

/// Opens a file for its owner alone, unless it is something that only looks like one.
fn open_regular(path: &Path) -> std::io::Result<std::fs::File> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(std::io::Error::other)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(file)
}
