//! The copy of etcd's records on local disk, for a gateway that starts while etcd is away.
//!
//! A thread follows what the watches tell, and writes the whole a moment after a change: to a new
//! file that replaces the old one, so that there is always one that is complete.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::etcd::Etcd;
use super::{
    Change, Contents, Event, Pending, Record, Store, StoreError, StoreStatus, Transaction, WATCH_QUEUE, Watch,
};

/// Changes within this time go to disk together.
const SETTLE: Duration = Duration::from_secs(1);

/// Writing takes no more than one part in this many of the time.
const SHARE: u32 = 10;

/// Pause between attempts to reach etcd at start.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// First bytes of the file, with the version of its layout.
const MAGIC: &[u8; 8] = b"SIGCOPY1";

/// A store in etcd with a copy of its records on local disk.
///
/// The first [`Store::load`] falls back to the copy; everything else needs etcd. [`StoreStatus::copied`] is
/// set from such a load until etcd is back, and the watch then begins with [`Event::Reloaded`].
pub struct Mirrored {
    etcd: Arc<Etcd>,
    file: CopyFile,
    startup_retry: u16,
    /// Something has been loaded: whoever asks again wants to know what is in etcd.
    started: AtomicBool,
    copied: Arc<Mutex<Option<SystemTime>>>,
    /// None only while it is dropped.
    keeper: Option<Sender<Event>>,
    thread: Option<JoinHandle<()>>,
}

/// A copy, read from disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalCopy {
    /// When it was written.
    pub written: SystemTime,
    /// What was in etcd.
    pub contents: Contents,
}

/// The place of a copy, and the prefix in etcd that it is of.
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
            .spawn(move || Keeper { file: place, revision: 0, records: BTreeMap::new() }.run(&events))
            .map_err(|error| {
                StoreError::Unavailable(format!("the thread of the copy does not start: {error}"))
            })?;
        Ok(Mirrored {
            etcd: Arc::new(etcd),
            file,
            startup_retry,
            started: AtomicBool::new(false),
            copied: Arc::default(),
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
                    self.keep(Event::Reloaded(contents.clone()));
                    return Ok(contents);
                }
                Err(error) => failed = Some(error),
            }
        }
        let error = failed.unwrap_or(StoreError::Conflict);
        let file = self.file.clone();
        let copy = tokio::task::spawn_blocking(move || file.read()).await;
        match copy.unwrap_or_else(|_| Err(self.file.damaged("reading it panicked"))) {
            Ok(Some(copy)) => {
                tracing::warn!(%error, revision = copy.contents.revision, "started from the local copy");
                set(&self.copied, Some(copy.written));
                self.etcd.saw_revision(copy.contents.revision);
                self.keep(Event::Reloaded(copy.contents.clone()));
                Ok(copy.contents)
            }
            Ok(None) => Err(StoreError::Unavailable(format!(
                "{error}; and there is no local copy yet at {}",
                self.file.path.display()
            ))),
            Err(unreadable) => Err(StoreError::Unavailable(format!("{error}; and {unreadable}"))),
        }
    }

    fn keep(&self, event: Event) {
        if let Some(keeper) = &self.keeper {
            // Without its thread there is no copy, of which it has told.
            let _ = keeper.send(event);
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
        // A watch has a sender of its own and may outlive the store.
        if let Some(thread) = self.thread.take().filter(|_| Arc::strong_count(&self.copied) == 1) {
            // It has told of a panic on stderr by itself.
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

    fn next_id(&self) -> Pending<'_, u64> {
        self.etcd.next_id()
    }

    fn watch(self: Arc<Self>, revision: u64) -> Watch {
        // What a copy holds may come from a history that etcd no longer has.
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
                    let _ = keeper.send(event.clone());
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

    fn status(&self) -> StoreStatus {
        StoreStatus { copied: self.copied(), ..self.etcd.status() }
    }
}

/// Knows what etcd holds, and writes it down.
struct Keeper {
    file: CopyFile,
    revision: u64,
    records: BTreeMap<String, Record>,
}

impl Keeper {
    fn run(mut self, events: &Receiver<Event>) {
        let mut complained = false;
        while let Ok(event) = events.recv() {
            if !self.apply(event) {
                continue;
            }
            let mut ended = self.settle(events, SETTLE);
            let began = Instant::now();
            match self.file.write(self.revision, self.records.values()) {
                Ok(()) => complained = false,
                Err(error) if !complained => {
                    let path = self.file.path.display();
                    tracing::warn!(%error, %path, "the local copy of etcd cannot be written");
                    complained = true;
                }
                Err(_) => {}
            }
            ended = ended || self.settle(events, began.elapsed() * SHARE);
            if ended {
                // A change during the rest is still to be written; nothing is lost if that fails
                // but the time that etcd takes to tell of it again.
                let _ = self.file.write(self.revision, self.records.values());
                return;
            }
        }
    }

    /// Takes in events for a time; true if there will be no more.
    fn settle(&mut self, events: &Receiver<Event>, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(event) => drop(self.apply(event)),
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
    }

    /// Takes part in an event; true if it changed anything. With several watches the same comes
    /// several times.
    fn apply(&mut self, event: Event) -> bool {
        match event {
            Event::Reloaded(contents) => {
                let records: BTreeMap<_, _> =
                    contents.records.into_iter().map(|record| (record.key.clone(), record)).collect();
                let same = self.revision == contents.revision && self.records == records;
                (self.revision, self.records) = (contents.revision, records);
                !same
            }
            Event::Changed { revision, changes } if revision > self.revision => {
                for change in changes {
                    match change {
                        Change::Put(record) => drop(self.records.insert(record.key.clone(), record)),
                        Change::Delete { key, .. } => drop(self.records.remove(&key)),
                    }
                }
                self.revision = revision;
                true
            }
            Event::Changed { .. } | Event::Lost(_) | Event::Regained { .. } => false,
        }
    }
}

impl CopyFile {
    /// The copy in directory `dir` of what etcd has below `prefix`.
    #[must_use]
    pub fn new(dir: &Path, prefix: &str) -> CopyFile {
        CopyFile { path: dir.join("etcd.copy"), prefix: prefix.to_owned() }
    }

    /// Writes a copy in place of the one that is there. Blocks on the disk.
    fn write<'a>(&self, revision: u64, records: impl ExactSizeIterator<Item = &'a Record>) -> io::Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let new = self.path.with_extension("copy.new");
        // Whoever made a file of this name might be able to read it.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Private keys are in there: nobody else may read it.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let mut out = Sealed { inner: BufWriter::new(&file), sum: crc32fast::Hasher::new() };
        let written = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        out.write_all(MAGIC)?;
        out.bytes(self.prefix.as_bytes())?;
        // Milliseconds since 1970 fit into 64 bits for as long as anybody will ask.
        out.number(u64::try_from(written.as_millis()).unwrap_or(u64::MAX))?;
        out.number(revision)?;
        out.number(records.len() as u64)?;
        for record in records {
            out.number(record.created)?;
            out.number(record.modified)?;
            out.bytes(record.key.as_bytes())?;
            out.bytes(&record.value)?;
        }
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
        let whole = match std::fs::read(&self.path) {
            Ok(whole) => Bytes::from(whole),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let path = self.path.display();
                return Err(StoreError::Unavailable(format!(
                    "the local copy {path} cannot be read: {error}"
                )));
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
            let text = format!("the local copy {path} is of `{prefix}`, not of `{}`", self.prefix);
            return Err(StoreError::Corrupt(text));
        }
        Ok(Some(copy))
    }

    fn damaged(&self, reason: &str) -> StoreError {
        StoreError::Corrupt(format!("the local copy {} is damaged: {reason}", self.path.display()))
    }
}

/// Sums up what is written.
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

    fn copy(mut self) -> Option<(String, LocalCopy)> {
        if self.take(MAGIC.len())?.as_ref() != MAGIC {
            return None;
        }
        let prefix = self.text()?;
        let written = UNIX_EPOCH.checked_add(Duration::from_millis(self.number()?))?;
        let mut contents = Contents { revision: self.number()?, records: Vec::new() };
        for _ in 0..self.number()? {
            let (created, modified) = (self.number()?, self.number()?);
            let (key, value) = (self.text()?, self.bytes()?);
            contents.records.push(Record { key, value, created, modified });
        }
        self.rest.is_empty().then_some((prefix, LocalCopy { written, contents }))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn records() -> Vec<Record> {
        let value = Bytes::from_static(b"{\"a\":\n1}");
        let one = Record { key: "routes/1".into(), value, created: 3, modified: 7 };
        let two = Record { key: "ssls/\u{fc}".into(), value: Bytes::new(), created: 9, modified: 9 };
        vec![one, two]
    }

    #[test]
    fn a_copy_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = CopyFile::new(&dir.path().join("data"), "/apisix");
        assert_eq!(file.read(), Ok(None));
        file.write(12, [].iter()).unwrap();
        file.write(13, records().iter()).unwrap();
        let copy = file.read().unwrap().unwrap();
        assert_eq!(copy.contents, Contents { revision: 13, records: records() });
        assert!(copy.written.elapsed().unwrap() < Duration::from_secs(60));
        assert_eq!(std::fs::metadata(&file.path).unwrap().permissions().mode() & 0o777, 0o600);
        let other = CopyFile::new(&dir.path().join("data"), "/other").read().unwrap_err();
        assert!(other.to_string().contains("is of `/apisix`, not of `/other`"), "{other}");
    }

    #[test]
    fn a_damaged_copy_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let file = CopyFile::new(dir.path(), "/apisix");
        file.write(13, records().iter()).unwrap();
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
}
