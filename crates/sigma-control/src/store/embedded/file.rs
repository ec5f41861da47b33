//! The file of the embedded store: its place, its content, and its problems.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, StorageError, TableDefinition,
};
use rustix::fs::OFlags;

#[cfg(not(test))]
use redb::backends::FileBackend as Backend;

#[cfg(test)]
use super::fault::Faulty as Backend;

use crate::store::{Record, StoreError};

/// Key → created, modified, expires (Unix milliseconds, 0 for never), value.
const RECORDS: TableDefinition<'static, &str, (u64, u64, u64, &[u8])> = TableDefinition::new("records");

/// The numbers that belong to the whole.
const NUMBERS: TableDefinition<'static, &str, u64> = TableDefinition::new("numbers");

const REVISION: &str = "revision";

/// The layout of the tables above, so that a later one is recognised.
const LAYOUT: &str = "layout";
const LAYOUT_HERE: u64 = 1;

/// Pages that redb keeps in memory, in bytes. The records are in memory anyway.
const CACHE_BYTES: usize = 2 << 20;

/// A record and when it expires, in Unix milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Kept {
    pub(super) record: Record,
    pub(super) expires: Option<u64>,
}

/// All that is in the file.
#[derive(Debug, Default)]
pub(super) struct Everything {
    pub(super) revision: u64,
    pub(super) records: BTreeMap<String, Kept>,
}

/// The open file.
#[derive(Debug)]
pub(super) struct StoreFile {
    path: PathBuf,
    database: Database,
}

impl StoreFile {
    /// Opens the file in `dir`, or makes it, and checks all its pages.
    pub(super) fn open(dir: &Path) -> Result<StoreFile, StoreError> {
        let path = dir.join("store.redb");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|error| unavailable(dir, &error))?;
        warn_of_strangers(dir);
        if !exists(&path)? {
            make(dir, &path).map_err(|error| unavailable(&path, &error))?;
        }
        let file = open_regular(&path).map_err(|error| unavailable(&path, &error))?;
        let length = file.metadata().map_err(|error| unavailable(&path, &error))?.len();
        if length == 0 {
            return Err(empty(&path));
        }
        let own = file.try_clone().map_err(|error| unavailable(&path, &error))?;
        let database = database(file).map_err(|error| refused(&path, error))?;
        // Private keys are in there: no other user may read it, also after it was copied here.
        let private = own.set_permissions(Permissions::from_mode(0o600));
        private.map_err(|error| unavailable(&path, &error))?;
        Ok(StoreFile { path, database })
    }

    /// Reads everything; a new file is at revision 0.
    pub(super) fn read(&self) -> Result<Everything, StoreError> {
        self.read_tables().map_err(|error| match error {
            redb::Error::TableDoesNotExist(name) => damaged(&self.path, format!("it has no table {name}")),
            redb::Error::Corrupted(text) => damaged(&self.path, text),
            error => self.failed(&error),
        })?
    }

    /// The outer error is one of the database, the inner one is about its content.
    fn read_tables(&self) -> Result<Result<Everything, StoreError>, redb::Error> {
        let reading = self.database.begin_read()?;
        let mut everything = Everything::default();
        let numbers = match reading.open_table(NUMBERS) {
            Ok(numbers) => numbers,
            // The first commit makes both tables.
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Ok(everything)),
            Err(error) => return Err(error.into()),
        };
        let number = |name| Ok::<_, redb::Error>(numbers.get(name)?.map_or(0, |value| value.value()));
        let layout = number(LAYOUT)?;
        if layout != LAYOUT_HERE {
            let path = self.path.display();
            let text = format!(
                "{path} has format version {layout}, but this build reads {LAYOUT_HERE}; run the newer version"
            );
            return Ok(Err(StoreError::Corrupt(text)));
        }
        everything.revision = number(REVISION)?;
        for entry in reading.open_table(RECORDS)?.iter()? {
            let (key, value) = entry?;
            let (created, modified, expires, value) = value.value();
            let key = key.value().to_owned();
            let record = Record { key: key.clone(), value: value.into(), created, modified };
            everything.records.insert(key, Kept { record, expires: (expires != 0).then_some(expires) });
        }
        Ok(Ok(everything))
    }

    /// Writes what changed (None is gone) and the revision; on disk permanently when it returns.
    pub(super) fn write(
        &self,
        revision: u64,
        changed: &BTreeMap<String, Option<Kept>>,
    ) -> Result<(), StoreError> {
        self.write_tables(revision, changed).map_err(|error| self.failed(&error))
    }

    fn write_tables(
        &self,
        revision: u64,
        changed: &BTreeMap<String, Option<Kept>>,
    ) -> Result<(), redb::Error> {
        let mut writing = self.database.begin_write()?;
        writing.set_durability(Durability::Immediate)?;
        {
            let mut records = writing.open_table(RECORDS)?;
            for (key, kept) in changed {
                match kept {
                    Some(Kept { record, expires }) => {
                        let expires = expires.unwrap_or(0);
                        let row = (record.created, record.modified, expires, record.value.as_ref());
                        records.insert(key.as_str(), row)?;
                    }
                    None => drop(records.remove(key.as_str())?),
                }
            }
            let mut numbers = writing.open_table(NUMBERS)?;
            numbers.insert(REVISION, revision)?;
            numbers.insert(LAYOUT, LAYOUT_HERE)?;
        }
        writing.commit()?;
        Ok(())
    }

    fn failed(&self, error: &redb::Error) -> StoreError {
        let path = self.path.display();
        StoreError::Unavailable(format!("{path}: {error}; check the disk"))
    }
}

fn database(file: File) -> Result<Database, DatabaseError> {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder.create_with_backend(Backend::new(file)?)
}

fn exists(path: &Path) -> Result<bool, StoreError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        // Through a link, another file would be opened, and made private, with the gateway's rights.
        Ok(_) => Err(unavailable(path, &io::Error::other("it is not a regular file"))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(unavailable(path, &error)),
    }
}

/// Makes a store under another name first: under its own there is never one that is not whole, so
/// that an empty file is known to be a damaged one.
fn make(dir: &Path, path: &Path) -> io::Result<()> {
    let new = path.with_extension("redb.new");
    let place = File::open(dir)?;
    // Of two first starts at a time one waits. Where a folder cannot be locked, one of them fails.
    let _ = place.lock();
    if path.exists() {
        return Ok(());
    }
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new)?;
    drop(database(file.try_clone()?).map_err(io::Error::other)?);
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    // The name of a new file is on disk only when its directory is.
    place.sync_all()
}

/// Opens a file, unless it is something that only looks like one.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// A user who can write into the folder can put another store there.
fn warn_of_strangers(dir: &Path) {
    if std::fs::metadata(dir).is_ok_and(|found| found.mode() & 0o002 != 0) {
        let dir = dir.display();
        tracing::warn!(%dir, "every user of this machine can write to the folder of the store; run `chmod o-w` on it");
    }
}

fn unavailable(place: &Path, error: &io::Error) -> StoreError {
    let reason = match error.kind() {
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => "it is not a directory".to_owned(),
        _ => error.to_string(),
    };
    StoreError::Unavailable(format!("{}: {reason}; set another path in `store.path`", place.display()))
}

fn empty(path: &Path) -> StoreError {
    StoreError::Corrupt(format!(
        "{} is empty, so the content of the store is lost; restore it from a backup, or remove it to start with an empty store",
        path.display()
    ))
}

fn refused(path: &Path, error: DatabaseError) -> StoreError {
    let shown = path.display();
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
            StoreError::Unavailable(format!(
                "{shown} is open in another process; stop that process, or set another path in `store.path`"
            ))
        }
        DatabaseError::Storage(StorageError::Io(error)) if error.kind() != ErrorKind::InvalidData => {
            StoreError::Unavailable(format!("{shown}: {error}; check the disk"))
        }
        error => damaged(path, error),
    }
}

/// Returns the error for a damaged file.
pub(super) fn damaged(path: &Path, reason: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(format!(
        "{} is damaged ({reason}); restore it from a backup, or move it away to start with an empty store",
        path.display()
    ))
}
