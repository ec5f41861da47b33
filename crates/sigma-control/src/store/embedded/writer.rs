//! The thread that writes: all that waits in one commit, then the times to live that have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;

use super::file::{Everything, Kept, StoreFile};
use super::{Shared, State};
use crate::store::feed::Feed;
use crate::store::{Change, Condition, Record, StoreError, Transaction, Write};

/// Transactions that go into one commit at most.
const BATCH: usize = 4096;

/// An order, and its caller.
#[derive(Debug)]
pub(super) enum Order {
    /// Carry out a transaction, and tell its revision.
    Write(Ordered),
    /// Close the file: another process opens it.
    Release(oneshot::Sender<()>),
    /// Open it again: the other process has ended.
    TakeBack(oneshot::Sender<Result<(), StoreError>>),
}

/// A transaction and who waits for its revision.
#[derive(Debug)]
pub(super) struct Ordered {
    pub(super) transaction: Transaction,
    pub(super) reply: oneshot::Sender<Result<u64, StoreError>>,
}

/// Owns the file.
#[derive(Debug)]
pub(super) struct Writer {
    dir: PathBuf,
    /// None after a failed write: redb then has to open the file again.
    file: Option<StoreFile>,
    /// Another process has the file.
    is_released: bool,
    shared: Arc<Shared>,
    deadlines: Deadlines,
}

/// One moment on both clocks.
#[derive(Debug, Clone, Copy)]
struct Moment {
    /// Times on disk count from here: Unix milliseconds.
    unix_ms: u64,
    /// Lifetimes while the store is open are measured from here: this clock cannot be set.
    at: Instant,
}

impl Moment {
    fn now() -> Moment {
        Moment { unix_ms: unix_ms(), at: Instant::now() }
    }
}

/// When records expire.
#[derive(Debug, Default)]
struct Deadlines {
    /// In Unix milliseconds, as on disk, and on the monotonic clock; None for beyond its end.
    of: BTreeMap<String, (u64, Option<Instant>)>,
    order: BTreeSet<(Instant, String)>,
}

impl Deadlines {
    /// `expires` is in Unix milliseconds, as seen from a moment.
    fn set(&mut self, key: &str, expires: Option<u64>, from: Moment) {
        if let Some((_, Some(at))) = self.of.remove(key) {
            self.order.remove(&(at, key.to_owned()));
        }
        if let Some(expires) = expires {
            let left = Duration::from_millis(expires.saturating_sub(from.unix_ms));
            let at = from.at.checked_add(left);
            self.of.insert(key.to_owned(), (expires, at));
            self.order.extend(at.map(|at| (at, key.to_owned())));
        }
    }

    /// In Unix milliseconds.
    fn expires(&self, key: &str) -> Option<u64> {
        self.of.get(key).map(|(expires, _)| *expires)
    }

    fn ended(&self, now: Instant) -> Vec<String> {
        self.order.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| key.clone()).collect()
    }

    fn next(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }
}

/// The changes of a commit; they are invisible before they are on disk.
struct Draft<'a> {
    state: &'a State,
    now: Moment,
    revision: u64,
    changed: BTreeMap<String, Option<Kept>>,
    /// The changes of each revision.
    told: Vec<(u64, Vec<Change>)>,
}

impl Draft<'_> {
    fn record(&self, key: &str) -> Option<&Record> {
        match self.changed.get(key) {
            Some(kept) => kept.as_ref().map(|kept| &kept.record),
            None => self.state.records.get(key),
        }
    }

    fn apply(&mut self, transaction: Transaction) -> Result<u64, StoreError> {
        let holds = |condition: &Condition| condition.holds(self.record(condition.key()));
        if !transaction.conditions.iter().all(holds) {
            return Err(StoreError::Conflict);
        }
        self.revision += 1;
        let changes = transaction.writes.into_iter().filter_map(|write| self.carry_out(write)).collect();
        self.told.push((self.revision, changes));
        Ok(self.revision)
    }

    fn carry_out(&mut self, write: Write) -> Option<Change> {
        let revision = self.revision;
        match write {
            Write::Put { key, value, ttl } => {
                let created = self.record(&key).map_or(revision, |record| record.created);
                let record =
                    Record { key: key.clone(), value: Arc::from(&*value), created, modified: revision };
                let expires = ttl.map(|ttl| self.now.unix_ms.saturating_add(milliseconds(ttl)).max(1));
                self.changed.insert(key, Some(Kept { record: record.clone(), expires }));
                Some(Change::Put(record))
            }
            Write::Delete { key } => {
                self.record(&key)?;
                self.changed.insert(key.clone(), None);
                Some(Change::Delete { key, revision })
            }
        }
    }
}

impl Writer {
    /// Opens the file, reads it, and deletes what expired while it was closed.
    pub(super) fn open(dir: &Path) -> Result<(Writer, Arc<Shared>), StoreError> {
        let file = StoreFile::open(dir)?;
        let everything = file.read()?;
        let feed = Feed::new(everything.revision);
        let shared = Arc::new(Shared { state: RwLock::default(), feed });
        let mut writer = Writer {
            dir: dir.to_owned(),
            file: Some(file),
            is_released: false,
            shared: Arc::clone(&shared),
            deadlines: Deadlines::default(),
        };
        writer.take_in(everything);
        writer.expire();
        Ok((writer, shared))
    }

    /// Serves orders until the store is dropped.
    pub(super) fn run(mut self, orders: &Receiver<Order>) {
        loop {
            let next = self.deadlines.next().filter(|_| !self.is_released);
            let wait = next.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            match orders.recv_timeout(wait) {
                Ok(first) => {
                    self.carry_out(std::iter::once(first).chain(orders.try_iter()).take(BATCH));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !self.expire() {
                // The disk refuses; trying at once again would only keep a core busy.
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }

    /// Carries out orders in their sequence; all writes between two other orders in one commit.
    fn carry_out(&mut self, orders: impl Iterator<Item = Order>) {
        let mut batch = Vec::new();
        for order in orders {
            match order {
                Order::Write(write) => batch.push(write),
                // The caller may have gone.
                Order::Release(reply) => {
                    self.commit(std::mem::take(&mut batch));
                    (self.file, self.is_released) = (None, true);
                    let _ = reply.send(());
                }
                Order::TakeBack(reply) => {
                    self.commit(std::mem::take(&mut batch));
                    self.is_released = false;
                    let _ = reply.send(self.reopen());
                }
            }
        }
        self.commit(batch);
    }

    fn commit(&mut self, batch: Vec<Ordered>) {
        if batch.is_empty() {
            return;
        }
        let (transactions, replies): (Vec<Transaction>, Vec<_>) =
            batch.into_iter().map(|order| (order.transaction, order.reply)).unzip();
        let results = match self.write(transactions) {
            Ok(results) => results,
            Err(error) => replies.iter().map(|_| Err(error.clone())).collect(),
        };
        for (reply, result) in replies.into_iter().zip(results) {
            // The caller may have gone; the write counts nevertheless.
            let _ = reply.send(result);
        }
    }

    /// Deletes expired records; false if the disk refuses.
    fn expire(&mut self) -> bool {
        if self.is_released {
            return true;
        }
        let ended = self.deadlines.ended(Instant::now());
        if ended.is_empty() {
            return true;
        }
        let writes = ended.into_iter().map(|key| Write::Delete { key }).collect();
        self.write(vec![Transaction { conditions: Vec::new(), writes }]).is_ok()
    }

    /// Carries out all transactions in one commit; the inner results are in their order.
    fn write(&mut self, transactions: Vec<Transaction>) -> Result<Vec<Result<u64, StoreError>>, StoreError> {
        if self.is_released {
            let text = "another process replaces this one; repeat the call";
            return Err(StoreError::Unavailable(text.to_owned()));
        }
        if self.file.is_none() {
            self.reopen()?;
        }
        let (state, now) = (self.shared.read(), Moment::now());
        let mut draft = Draft {
            state: &state,
            now,
            revision: state.revision,
            changed: BTreeMap::new(),
            told: Vec::new(),
        };
        let results: Vec<_> = transactions.into_iter().map(|one| draft.apply(one)).collect();
        let Draft { revision, changed, told, .. } = draft;
        drop(state);
        if told.is_empty() {
            return Ok(results);
        }
        // No other thread changes the state, so it is still the one that the draft was made from.
        let written = self.file.as_ref().map_or(Ok(()), |file| file.write(revision, &changed));
        if let Err(error) = written {
            self.lose(&error);
            // At once: a refused write must not be there when the process ends before the next write. If that
            // fails as well, it is tried again then, and has been logged.
            let _ = self.reopen();
            return Err(error);
        }
        self.show(revision, changed, told, now);
        Ok(results)
    }

    fn show(
        &mut self,
        revision: u64,
        changed: BTreeMap<String, Option<Kept>>,
        told: Vec<(u64, Vec<Change>)>,
        now: Moment,
    ) {
        let mut state = self.shared.write();
        state.revision = revision;
        state.lost = None;
        let mut put = Vec::new();
        for (key, kept) in changed {
            self.deadlines.set(&key, kept.as_ref().and_then(|kept| kept.expires), now);
            match kept {
                Some(kept) => put.push(kept.record),
                None => drop(state.records.remove(&key)),
            }
        }
        state.records.put_all(put);
        // Under the lock, so that no load sees a revision that the feed does not know.
        for (revision, changes) in told {
            self.shared.feed.push(revision, changes);
        }
    }

    fn lose(&mut self, error: &StoreError) {
        tracing::error!(%error, "cannot write the store");
        self.file = None;
        self.shared.write().lost.get_or_insert_with(|| (SystemTime::now(), error.to_string()));
    }

    /// Opens the file again after a failed write, whose result is unknown, and makes it the readers' view:
    /// acknowledged writes, and no refused one.
    fn reopen(&mut self) -> Result<(), StoreError> {
        let opened = StoreFile::open(&self.dir).and_then(|file| {
            self.undo(&file)?;
            Ok(file)
        });
        match opened {
            Ok(file) => {
                self.file = Some(file);
                Ok(())
            }
            Err(error) => {
                self.lose(&error);
                Err(error)
            }
        }
    }

    fn undo(&self, file: &StoreFile) -> Result<(), StoreError> {
        let (found, state) = (file.read()?, self.shared.read());
        let surplus = found.records.keys().filter(|key| state.records.get(key).is_none());
        let mut changed: BTreeMap<String, Option<Kept>> = surplus.map(|key| (key.clone(), None)).collect();
        for record in state.records.iter() {
            let key = &record.key;
            let kept = Kept { record: record.clone(), expires: self.deadlines.expires(key) };
            if found.records.get(key) != Some(&kept) {
                changed.insert(key.clone(), Some(kept));
            }
        }
        // The revision of a refused write was not published, and is given to the next write.
        if changed.is_empty() && found.revision == state.revision {
            return Ok(());
        }
        tracing::warn!(records = changed.len(), "a refused write is removed from the store");
        file.write(state.revision, &changed)
    }

    fn take_in(&mut self, everything: Everything) {
        let now = Moment::now();
        self.deadlines = Deadlines::default();
        let mut state = self.shared.write();
        state.revision = everything.revision;
        state.records.clear();
        let deadlines = &mut self.deadlines;
        let records = everything.records.into_iter().map(|(key, kept)| {
            deadlines.set(&key, kept.expires, now);
            kept.record
        });
        state.records.put_all(records.collect());
        self.shared.feed.restart(everything.revision);
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn unix_ms() -> u64 {
    // A clock before 1970 is taken for 1970; nothing expires then.
    milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::fault::FAILING;
    use super::*;

    fn put(key: &str, value: &'static str) -> Vec<Transaction> {
        let writes = vec![Write::Put { key: key.into(), value: value.into(), ttl: None }];
        vec![Transaction { conditions: Vec::new(), writes }]
    }

    fn keys(dir: &Path) -> (u64, Vec<String>) {
        let everything = StoreFile::open(dir).unwrap().read().unwrap();
        (everything.revision, everything.records.into_keys().collect())
    }

    /// fsync fails though the bytes got to the disk.
    #[test]
    fn refused_writes_are_gone_after_opening_again() {
        for failures in [1, u32::MAX] {
            let dir = tempfile::tempdir().unwrap();
            let (mut writer, shared) = Writer::open(dir.path()).unwrap();
            writer.write(put("routes/1", "{}")).unwrap();
            FAILING.set(failures);
            let refused = writer.write(put("routes/2", "{}"));
            assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
            assert!(writer.write(put("routes/1", "[]")).is_err() == (failures > 1));
            FAILING.set(0);
            if failures > 1 {
                assert!(shared.read().lost.is_some());
                // The next write that succeeds has the disk agree with what readers have seen.
                writer.write(put("routes/3", "{}")).unwrap();
            }
            let shown: Vec<String> = shared.read().records.iter().map(|record| record.key.clone()).collect();
            let revision = shared.read().revision;
            assert!(!shown.contains(&"routes/2".to_owned()), "{shown:?}");
            assert!(shared.read().lost.is_none());
            drop(writer);
            assert_eq!(keys(dir.path()), (revision, shown));
        }
        // Nor if the process ends right after the refusal.
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, _shared) = Writer::open(dir.path()).unwrap();
        writer.write(put("routes/1", "{}")).unwrap();
        FAILING.set(1);
        assert!(writer.write(put("routes/2", "{}")).is_err());
        drop(writer);
        assert_eq!(keys(dir.path()), (1, vec!["routes/1".to_owned()]));
    }

    #[test]
    fn times_to_live_are_measured_on_a_monotonic_clock() {
        let from = Moment { unix_ms: 1_000, at: Instant::now() };
        let after = |ms| from.at + Duration::from_millis(ms);
        let mut deadlines = Deadlines::default();
        deadlines.set("late", Some(9_000), from);
        deadlines.set("soon", Some(3_000), from);
        deadlines.set("past", Some(10), from);
        deadlines.set("never", Some(u64::MAX), from);
        assert_eq!(deadlines.ended(after(0)), ["past"]);
        assert_eq!(deadlines.ended(after(2_000)), ["past", "soon"]);
        assert_eq!(deadlines.ended(after(1_999)), ["past"]);
        deadlines.set("past", None, from);
        assert_eq!((deadlines.next(), deadlines.expires("soon")), (Some(after(2_000)), Some(3_000)));
        deadlines.set("soon", Some(4_000), from);
        assert_eq!(deadlines.next(), Some(after(3_000)));
    }
}
