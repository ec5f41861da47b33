//! The copy of etcd's records on local disk, for a gateway that starts while etcd is away.
//!
//! A thread follows the watches' events, and writes the whole a moment after a change: to a new file that
//! replaces the old one, so that there is always one that is complete. If a record's new form is not known to
//! be good, it keeps the former one, so that a restart during a mistake does not lose the served form.

use std::collections::{BTreeMap, HashSet};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rustix::fs::OFlags;

use super::etcd::Etcd;
use super::{
    Change, Contents, Event, Pending, REPORTS, Record, Store, StoreError, StoreStatus, Transaction,
    WATCH_QUEUE, Watch,
};

/// Changes within this time go to disk together.
const SETTLE: Duration = Duration::from_secs(1);

/// Writing takes no more than one part in this many of the time.
const SHARE: u32 = 10;

/// Pause between attempts to reach etcd at start.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// First bytes of the file, with the version of its layout.
const MAGIC: &[u8; 8] = b"SIGCOPY2";

/// Copies in the former layout, in which no record has an earlier form.
const MAGIC_BEFORE: &[u8; 8] = b"SIGCOPY1";

/// A store in etcd with a copy of its records on local disk.
///
/// The first [`Store::load`] falls back to the copy; everything else needs etcd. [`StoreStatus::copied`] is
/// set from such a load until etcd is reachable again, and the watch then begins with [`Event::Reloaded`].
pub struct Mirrored {
    etcd: Arc<Etcd>,
    file: CopyFile,
    startup_retry: u16,
    /// Something has been loaded: a further load needs the content of etcd.
    started: AtomicBool,
    copied: Arc<Mutex<Option<SystemTime>>>,
    /// The copy's forms of records that are different now, from the first load until they are taken.
    earlier: Mutex<Vec<Record>>,
    /// None only while it is dropped.
    keeper: Option<Sender<CopyMessage>>,
    thread: Option<JoinHandle<()>>,
}

/// A copy, read from disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalCopy {
    /// When it was written.
    pub written: SystemTime,
    /// The content of etcd.
    pub contents: Contents,
    /// The form before, of records that were not known to be good. In the order of their keys.
    pub good: Vec<Record>,
}

/// The path of a copy, and its prefix in etcd.
#[derive(Debug, Clone)]
pub struct CopyFile {
    path: PathBuf,
    prefix: String,
}

impl Mirrored {
    /// Keeps the copy of `etcd` in `file`. The first load makes 1 + `startup_retry` attempts to
    /// reach etcd before it takes the copy.
    pub fn new(etcd: Etcd, file: CopyFile, startup_retry: u16) -> Result<Mirrored, StoreError> {
        let (keeper, events) = channel();
        let place = file.clone();
        let thread = std::thread::Builder::new()
            .name("sigma-copy".into())
            .spawn(move || Keeper::new(place).run(&events))
            .map_err(|error| {
                StoreError::Unavailable(format!("cannot start the thread of the local copy: {error}"))
            })?;
        Ok(Mirrored {
            etcd: Arc::new(etcd),
            file,
            startup_retry,
            started: AtomicBool::new(false),
            copied: Arc::default(),
            earlier: Mutex::default(),
            keeper: Some(keeper),
            thread: Some(thread),
        })
    }

    fn copied(&self) -> Option<SystemTime> {
        *self.copied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn load_or_copy(&self) -> Result<Contents, StoreError> {
        let mut failed = None;
        for attempt in 0..=self.startup_retry {
            if attempt > 0 {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            match self.etcd.load().await {
                Ok(contents) => {
                    set(&self.copied, None);
                    match self.read_file().await {
                        Ok(Some(copy)) => self.compare(copy, &contents),
                        Ok(None) => {}
                        Err(error) => tracing::warn!(%error, "the changes before this are unknown"),
                    }
                    self.keep(CopyMessage::Event(Event::Reloaded(contents.clone())));
                    return Ok(contents);
                }
                Err(error) => failed = Some(error),
            }
        }
        let error = failed.unwrap_or(StoreError::Conflict);
        match self.read_file().await {
            Ok(Some(copy)) => {
                tracing::warn!(%error, revision = copy.contents.revision, "started from the local copy");
                set(&self.copied, Some(copy.written));
                self.etcd.saw_revision(copy.contents.revision);
                let contents = copy.contents.clone();
                self.compare(copy, &contents);
                Ok(contents)
            }
            Ok(None) => Err(StoreError::Unavailable(format!(
                "{error}; and there is no local copy yet at {}",
                self.file.path.display()
            ))),
            Err(unreadable) => Err(StoreError::Unavailable(format!("{error}; and {unreadable}"))),
        }
    }

    async fn read_file(&self) -> Result<Option<LocalCopy>, StoreError> {
        let file = self.file.clone();
        let copy = tokio::task::spawn_blocking(move || file.read()).await;
        copy.unwrap_or_else(|_| Err(self.file.damaged("reading it panicked")))
    }

    /// Notes the forms of the copy that differ from the loaded ones, and keeps them.
    fn compare(&self, copy: LocalCopy, loaded: &Contents) {
        let present: BTreeMap<&str, &Record> =
            loaded.records.iter().map(|record| (record.key.as_str(), record)).collect();
        let mut earlier: Vec<Record> = copy.good.clone();
        let changed = copy.contents.records.iter().filter(|record| present.get(&*record.key) != Some(record));
        earlier.extend(changed.cloned());
        // Deleted records stay deleted.
        earlier.retain(|record| present.contains_key(record.key.as_str()));
        *self.earlier.lock().unwrap_or_else(PoisonError::into_inner) = earlier;
        self.keep(CopyMessage::Copy(copy));
    }

    fn keep(&self, told: CopyMessage) {
        if let Some(keeper) = &self.keeper {
            // Without its thread there is no copy, which it has logged.
            let _ = keeper.send(told);
        }
    }
}

fn set(copied: &Mutex<Option<SystemTime>>, value: Option<SystemTime>) {
    *copied.lock().unwrap_or_else(PoisonError::into_inner) = value;
}

impl Drop for Mirrored {
    /// Waits until the last change is in the copy, unless a watch is still open.
    fn drop(&mut self) {
        self.keeper = None;
        // A watch has its own sender and may outlive the store.
        if let Some(thread) = self.thread.take().filter(|_| Arc::strong_count(&self.copied) == 1) {
            // It has printed a panic on stderr by itself.
            let _ = thread.join();
        }
    }
}

impl Store for Mirrored {
    fn load(&self) -> Pending<'_, Contents> {
        Box::pin(async {
            if self.started.load(Ordering::Relaxed) {
                return self.etcd.load().await;
            }
            let contents = self.load_or_copy().await?;
            self.started.store(true, Ordering::Relaxed);
            Ok(contents)
        })
    }

    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Record>> {
        self.etcd.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Pending<'a, Vec<Record>> {
        self.etcd.list(prefix)
    }

    fn commit(&self, transaction: Transaction) -> Pending<'_, u64> {
        self.etcd.commit(transaction)
    }

    fn renew<'a>(&'a self, key: &'a str, value: &'a [u8]) -> Pending<'a, bool> {
        self.etcd.renew(key, value)
    }

    fn version(&self) -> Pending<'_, Option<String>> {
        self.etcd.version()
    }

    fn next_id(&self) -> Pending<'_, u64> {
        self.etcd.next_id()
    }

    fn watch(self: Arc<Self>, revision: u64) -> Watch {
        // A copy may come from a history that etcd no longer has.
        let from = if self.copied().is_some() { 0 } else { revision };
        let mut inner = Arc::clone(&self.etcd).watch(from);
        let (watcher, receiver) = tokio::sync::mpsc::channel(WATCH_QUEUE);
        let (keeper, copied) = (self.keeper.clone(), Arc::clone(&self.copied));
        tokio::spawn(async move {
            while let Some(event) = inner.recv().await {
                if !matches!(event, Event::Lost(_)) {
                    set(&copied, None);
                }
                if let Some(keeper) = &keeper {
                    // As in `keep`.
                    let _ = keeper.send(CopyMessage::Event(event.clone()));
                }
                let heard = tokio::select! {
                    sent = watcher.send(event) => sent.is_ok(),
                    () = watcher.closed() => false,
                };
                if !heard {
                    return;
                }
            }
        });
        receiver
    }

    fn earlier(&self) -> Vec<Record> {
        std::mem::take(&mut *self.earlier.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn judged(&self, revision: u64, quarantined: &[String]) {
        self.keep(CopyMessage::Judged { revision, quarantined: quarantined.iter().cloned().collect() });
    }

    fn status(&self) -> StoreStatus {
        StoreStatus { copied: self.copied(), ..self.etcd.status() }
    }
}

/// A message to the thread of the copy.
enum CopyMessage {
    /// The content of the file, at the start.
    Copy(LocalCopy),
    Event(Event),
    /// Writes up to this revision are served, but for these.
    Judged {
        revision: u64,
        quarantined: HashSet<String>,
    },
}

/// Knows what etcd holds, and writes it down.
struct Keeper {
    file: CopyFile,
    revision: u64,
    records: BTreeMap<String, Record>,
    /// The form before, of records that are not yet known to be good.
    good: BTreeMap<String, Record>,
}

impl Keeper {
    fn new(file: CopyFile) -> Keeper {
        Keeper { file, revision: 0, records: BTreeMap::new(), good: BTreeMap::new() }
    }

    fn run(mut self, told: &Receiver<CopyMessage>) {
        let mut complained = false;
        while let Ok(one) = told.recv() {
            if !self.apply(one) {
                continue;
            }
            let mut ended = self.settle(told, SETTLE);
            let began = Instant::now();
            match self.write() {
                Ok(()) => complained = false,
                Err(error) if !complained => {
                    let path = self.file.path.display();
                    tracing::warn!(%error, %path, "cannot write the local copy of etcd");
                    complained = true;
                }
                Err(_) => {}
            }
            ended = ended || self.settle(told, began.elapsed() * SHARE);
            if ended {
                // A change during the rest is still to be written; nothing is lost if that fails
                // but the time that etcd takes to tell of it again.
                let _ = self.write();
                return;
            }
        }
    }

    fn write(&self) -> io::Result<()> {
        self.file.write(self.revision, self.records.values(), self.good.values())
    }

    /// Reads messages for a time; true if there will be no more.
    fn settle(&mut self, told: &Receiver<CopyMessage>, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            match told.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(one) => drop(self.apply(one)),
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
    }

    /// Takes in one thing; true if it changed anything that has to be written. With several watches
    /// the same comes several times.
    fn apply(&mut self, told: CopyMessage) -> bool {
        match told {
            CopyMessage::Copy(copy) => {
                let by_key = |records: Vec<Record>| {
                    records.into_iter().map(|record| (record.key.clone(), record)).collect()
                };
                self.revision = copy.contents.revision;
                (self.records, self.good) = (by_key(copy.contents.records), by_key(copy.good));
                false
            }
            CopyMessage::Event(event) => self.follow(event),
            CopyMessage::Judged { revision, quarantined } => {
                let records = &self.records;
                self.good.retain(|key, _| {
                    quarantined.contains(key) || records.get(key).is_some_and(|now| now.modified > revision)
                });
                // That there is one form too many in the file does no harm.
                false
            }
        }
    }

    fn follow(&mut self, event: Event) -> bool {
        match event {
            Event::Reloaded(contents) => {
                let present: HashSet<&str> =
                    contents.records.iter().map(|record| record.key.as_str()).collect();
                let before = self.records.len();
                self.records.retain(|key, _| present.contains(key.as_str()));
                self.good.retain(|key, _| present.contains(key.as_str()));
                let mut changed = self.revision != contents.revision || self.records.len() != before;
                for record in contents.records {
                    changed |= self.put(record);
                }
                self.revision = contents.revision;
                changed
            }
            Event::Changed { revision, changes } if revision > self.revision => {
                let is_report = |change: &Change| match change {
                    Change::Put(Record { key, .. }) | Change::Delete { key, .. } => key.starts_with(REPORTS),
                };
                let is_worth_writing = changes.is_empty() || !changes.iter().all(is_report);
                for change in changes {
                    match change {
                        Change::Put(record) => drop(self.put(record)),
                        Change::Delete { key, .. } => {
                            self.records.remove(&key);
                            self.good.remove(&key);
                        }
                    }
                }
                self.revision = revision;
                is_worth_writing
            }
            Event::Changed { .. } | Event::Lost(_) | Event::Regained { .. } => false,
        }
    }

    fn put(&mut self, record: Record) -> bool {
        let key = record.key.clone();
        // Useful while its lease lasts, and useless after a start.
        if key.starts_with(REPORTS) || self.records.get(&key) == Some(&record) {
            return false;
        }
        if let Some(before) = self.records.insert(key.clone(), record) {
            self.good.entry(key).or_insert(before);
        }
        true
    }
}

impl CopyFile {
    /// The copy in directory `dir` of what etcd has below `prefix`.
    #[must_use]
    pub fn new(dir: &Path, prefix: &str) -> CopyFile {
        CopyFile { path: dir.join("etcd.copy"), prefix: prefix.to_owned() }
    }

    /// Replaces the copy. Blocks on the disk.
    fn write<'a>(
        &self,
        revision: u64,
        records: impl ExactSizeIterator<Item = &'a Record>,
        good: impl ExactSizeIterator<Item = &'a Record>,
    ) -> io::Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let new = self.path.with_extension("copy.new");
        // The maker of a file of this name might be able to read it.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Private keys are in there: no other user may read it.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let mut out = Sealed { inner: BufWriter::new(&file), sum: crc32fast::Hasher::new() };
        let written = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        out.write_all(MAGIC)?;
        out.bytes(self.prefix.as_bytes())?;
        // Milliseconds since 1970 fit into 64 bits for a very long time.
        out.number(u64::try_from(written.as_millis()).unwrap_or(u64::MAX))?;
        out.number(revision)?;
        out.records(records)?;
        out.records(good)?;
        let sum = out.sum.clone().finalize();
        out.write_all(&sum.to_le_bytes())?;
        out.flush()?;
        drop(out);
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        File::open(dir)?.sync_all()
    }

    /// The copy, if there is one. Blocks on the disk.
    pub fn read(&self) -> Result<Option<LocalCopy>, StoreError> {
        let whole = match read_regular(&self.path) {
            Ok(whole) => Bytes::from(whole),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let path = self.path.display();
                return Err(StoreError::Unavailable(format!("cannot read the local copy {path}: {error}")));
            }
        };
        let body = whole.len().checked_sub(4).ok_or_else(|| self.damaged("it is too short"))?;
        if whole.get(body..) != Some(&crc32fast::hash(&whole[..body]).to_le_bytes()) {
            return Err(self.damaged("its checksum does not match"));
        }
        let read = Reader { rest: whole.slice(..body) }.copy();
        let (prefix, copy) = read.ok_or_else(|| self.damaged("another build wrote it"))?;
        if prefix != self.prefix {
            let path = self.path.display();
            let text = format!("the local copy {path} has the prefix `{prefix}`; expected `{}`", self.prefix);
            return Err(StoreError::Corrupt(text));
        }
        Ok(Some(copy))
    }

    fn damaged(&self, reason: &str) -> StoreError {
        StoreError::Corrupt(format!("the local copy {} is damaged: {reason}", self.path.display()))
    }
}

/// Reads a file, unless it is something that only looks like one: a pipe would be waited for.
fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut whole = Vec::new();
    file.read_to_end(&mut whole)?;
    Ok(whole)
}

/// Adds written bytes to a checksum.
struct Sealed<W> {
    inner: W,
    sum: crc32fast::Hasher,
}

impl<W: io::Write> Sealed<W> {
    fn number(&mut self, number: u64) -> io::Result<()> {
        self.write_all(&number.to_le_bytes())
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.number(bytes.len() as u64)?;
        self.write_all(bytes)
    }

    fn records<'a>(&mut self, records: impl ExactSizeIterator<Item = &'a Record>) -> io::Result<()> {
        self.number(records.len() as u64)?;
        for record in records {
            self.number(record.created)?;
            self.number(record.modified)?;
            self.bytes(record.key.as_bytes())?;
            self.bytes(&record.value)?;
        }
        Ok(())
    }
}

impl<W: io::Write> io::Write for Sealed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.sum.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Takes a file apart; None where it ends too early. Values are slices of the file.
struct Reader {
    rest: Bytes,
}

impl Reader {
    fn take(&mut self, count: usize) -> Option<Bytes> {
        (self.rest.len() >= count).then(|| self.rest.split_to(count))
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.as_ref().try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<Bytes> {
        let count = usize::try_from(self.number()?).ok()?;
        self.take(count)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    fn records(&mut self) -> Option<Vec<Record>> {
        let mut records = Vec::new();
        for _ in 0..self.number()? {
            let (created, modified) = (self.number()?, self.number()?);
            let (key, value) = (self.text()?, Arc::from(&*self.bytes()?));
            records.push(Record { key, value, created, modified });
        }
        Some(records)
    }

    fn copy(mut self) -> Option<(String, LocalCopy)> {
        let magic = self.take(MAGIC.len())?;
        if magic != MAGIC[..] && magic != MAGIC_BEFORE[..] {
            return None;
        }
        let prefix = self.text()?;
        let written = UNIX_EPOCH.checked_add(Duration::from_millis(self.number()?))?;
        let contents = Contents { revision: self.number()?, records: self.records()? };
        let good = if magic == MAGIC[..] { self.records()? } else { Vec::new() };
        self.rest.is_empty().then_some((prefix, LocalCopy { written, contents, good }))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn records() -> Vec<Record> {
        let value = Arc::from(&b"{\"a\":\n1}"[..]);
        let one = Record { key: "routes/1".into(), value, created: 3, modified: 7 };
        let two = Record { key: "ssls/\u{fc}".into(), value: Arc::default(), created: 9, modified: 9 };
        vec![one, two]
    }

    #[test]
    fn a_copy_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = CopyFile::new(&dir.path().join("data"), "/apisix");
        assert_eq!(file.read(), Ok(None));
        file.write(12, [].iter(), [].iter()).unwrap();
        let records = records();
        // The file has milliseconds.
        let before = SystemTime::now() - Duration::from_millis(1);
        file.write(13, records.iter(), records[..1].iter()).unwrap();
        let copy = file.read().unwrap().unwrap();
        assert_eq!(copy.good, records[..1]);
        assert_eq!(copy.contents, Contents { revision: 13, records });
        assert!(before <= copy.written && copy.written <= SystemTime::now(), "{:?}", copy.written);
        assert_eq!(std::fs::metadata(&file.path).unwrap().permissions().mode() & 0o777, 0o600);
        let other = CopyFile::new(&dir.path().join("data"), "/other").read().unwrap_err();
        assert!(other.to_string().contains("has the prefix `/apisix`; expected `/other`"), "{other}");
    }

    #[test]
    fn a_damaged_copy_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let file = CopyFile::new(dir.path(), "/apisix");
        file.write(13, records().iter(), [].iter()).unwrap();
        let whole = std::fs::read(&file.path).unwrap();
        for at in 0..whole.len() {
            let mut bent = whole.clone();
            bent[at] ^= 1;
            std::fs::write(&file.path, bent).unwrap();
            assert!(file.read().is_err(), "byte {at}");
            std::fs::write(&file.path, &whole[..at]).unwrap();
            assert!(file.read().is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_copy_of_the_layout_before_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = CopyFile::new(dir.path(), "/apisix");
        file.write(13, records().iter(), [].iter()).unwrap();
        let mut old = std::fs::read(&file.path).unwrap();
        // Without the count of earlier forms and the checksum of it all.
        old.truncate(old.len() - 12);
        old[..8].copy_from_slice(MAGIC_BEFORE);
        old.extend_from_slice(&crc32fast::hash(&old).to_le_bytes());
        std::fs::write(&file.path, old).unwrap();
        let copy = file.read().unwrap().unwrap();
        assert_eq!((copy.contents.records, copy.good), (records(), Vec::new()));
    }

    #[test]
    fn invalid_files_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = CopyFile::new(dir.path(), "/apisix");
        rustix::fs::mkfifoat(rustix::fs::CWD, &file.path, rustix::fs::Mode::RUSR).unwrap();
        let error = file.read().unwrap_err().to_string();
        assert!(error.contains("it is not a regular file"), "{error}");
    }

    /// Returns the former form of `routes/1` that is kept with the present one.
    fn good(keeper: &Keeper) -> Option<u64> {
        keeper.good.get("routes/1").map(|record| record.modified)
    }

    #[test]
    fn the_form_before_is_kept_until_the_new_one_is_known_to_be_good() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::new(CopyFile::new(dir.path(), "/apisix"));
        let at = |modified| Record { modified, ..records()[0].clone() };
        let put = |modified| {
            CopyMessage::Event(Event::Changed {
                revision: modified,
                changes: vec![Change::Put(at(modified))],
            })
        };
        let judged = |revision, quarantined: &[&str]| CopyMessage::Judged {
            revision,
            quarantined: quarantined.iter().map(ToString::to_string).collect(),
        };
        assert!(keeper.apply(put(7)));
        assert_eq!(good(&keeper), None);
        keeper.apply(put(8));
        assert_eq!(good(&keeper), Some(7));
        // The judged revision is older.
        keeper.apply(judged(7, &[]));
        assert_eq!(good(&keeper), Some(7));
        keeper.apply(judged(8, &[]));
        assert_eq!(good(&keeper), None);
        keeper.apply(put(9));
        keeper.apply(judged(9, &["routes/1"]));
        keeper.apply(put(10));
        keeper.apply(judged(10, &["routes/1"]));
        assert_eq!(good(&keeper), Some(8));
        // Also over a restart, and when everything is sent again.
        keeper.write().unwrap();
        let copy = keeper.file.read().unwrap().unwrap();
        let mut keeper = Keeper::new(keeper.file);
        assert!(!keeper.apply(CopyMessage::Copy(copy)));
        let contents = Contents { revision: 11, records: vec![at(11)] };
        assert!(keeper.apply(CopyMessage::Event(Event::Reloaded(contents.clone()))));
        assert!(!keeper.apply(CopyMessage::Event(Event::Reloaded(contents))));
        assert_eq!(good(&keeper), Some(8));
        keeper.apply(judged(11, &[]));
        assert_eq!(good(&keeper), None);
        // Reports of gateways are not part of it.
        let report = Record { key: "data_plane/health/1".into(), modified: 12, ..at(11) };
        let reported = Event::Changed { revision: 12, changes: vec![Change::Put(report)] };
        assert!(!keeper.apply(CopyMessage::Event(reported)) && keeper.records.len() == 1);
        let none = Contents { revision: 12, records: Vec::new() };
        assert!(keeper.apply(CopyMessage::Event(Event::Reloaded(none))));
        assert!(keeper.records.is_empty() && keeper.good.is_empty());
    }
}
