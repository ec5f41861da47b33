//! The thread that writes: all that waits in one commit, then the times to live that have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;

use super::file::{Everything, Kept, StoreFile};
use super::{Shared, State};
use crate::store::feed::Feed;
use crate::store::{Change, Condition, Record, StoreError, Transaction, Write};

/// Transactions that go into one commit at most.
const BATCH: usize = 4096;

/// The wall clock is looked at again after this, in case somebody sets it.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A transaction and who waits for its revision.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) transaction: Transaction,
    pub(super) reply: oneshot::Sender<Result<u64, StoreError>>,
}

/// Owns the file.
#[derive(Debug)]
pub(super) struct Writer {
    dir: PathBuf,
    /// None after a failed write: redb then has to open the file again.
    file: Option<StoreFile>,
    shared: Arc<Shared>,
    deadlines: Deadlines,
}

/// When records expire, in Unix milliseconds.
#[derive(Debug, Default)]
struct Deadlines {
    of: BTreeMap<String, u64>,
    order: BTreeSet<(u64, String)>,
}

impl Deadlines {
    fn set(&mut self, key: &str, expires: Option<u64>) {
        if let Some(old) = self.of.remove(key) {
            self.order.remove(&(old, key.to_owned()));
        }
        if let Some(expires) = expires {
            self.of.insert(key.to_owned(), expires);
            self.order.insert((expires, key.to_owned()));
        }
    }

    fn ended(&self, now: u64) -> Vec<String> {
        self.order.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| key.clone()).collect()
    }

    fn next(&self) -> Option<u64> {
        self.order.first().map(|(at, _)| *at)
    }
}

/// What a commit is going to change; nobody sees it before it is on disk.
struct Draft<'a> {
    state: &'a State,
    now: u64,
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
                let record = Record { key: key.clone(), value, created, modified: revision };
                let expires = ttl.map(|ttl| self.now.saturating_add(milliseconds(ttl)).max(1));
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
            let wait = self.deadlines.next().map_or(LONGEST_WAIT, |at| {
                Duration::from_millis(at.saturating_sub(unix_ms())).min(LONGEST_WAIT)
            });
            match orders.recv_timeout(wait) {
                Ok(first) => {
                    let batch = std::iter::once(first).chain(orders.try_iter()).take(BATCH).collect();
                    self.commit(batch);
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

    fn commit(&mut self, batch: Vec<Order>) {
        let (transactions, replies): (Vec<Transaction>, Vec<_>) =
            batch.into_iter().map(|order| (order.transaction, order.reply)).unzip();
        let results = match self.write(transactions) {
            Ok(results) => results,
            Err(error) => replies.iter().map(|_| Err(error.clone())).collect(),
        };
        for (reply, result) in replies.into_iter().zip(results) {
            // Whoever asked may have gone; the write stands all the same.
            let _ = reply.send(result);
        }
    }

    /// Deletes what has expired; false if the disk refuses.
    fn expire(&mut self) -> bool {
        let ended = self.deadlines.ended(unix_ms());
        if ended.is_empty() {
            return true;
        }
        let writes = ended.into_iter().map(|key| Write::Delete { key }).collect();
        self.write(vec![Transaction { conditions: Vec::new(), writes }]).is_ok()
    }

    /// Carries out all transactions in one commit; the inner results are in their order.
    fn write(&mut self, transactions: Vec<Transaction>) -> Result<Vec<Result<u64, StoreError>>, StoreError> {
        if self.file.is_none() {
            self.reopen()?;
        }
        let state = self.shared.read();
        let mut draft = Draft {
            state: &state,
            now: unix_ms(),
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
        // Nobody else changes the state, so it is still the one that the draft was made from.
        let written = self.file.as_ref().map_or(Ok(()), |file| file.write(revision, &changed));
        if let Err(error) = written {
            self.lose(&error);
            return Err(error);
        }
        self.show(revision, changed, told);
        Ok(results)
    }

    fn show(
        &mut self,
        revision: u64,
        changed: BTreeMap<String, Option<Kept>>,
        told: Vec<(u64, Vec<Change>)>,
    ) {
        let mut state = self.shared.write();
        state.revision = revision;
        state.lost = None;
        for (key, kept) in changed {
            self.deadlines.set(&key, kept.as_ref().and_then(|kept| kept.expires));
            match kept {
                Some(kept) => drop(state.records.insert(key, kept.record)),
                None => drop(state.records.remove(&key)),
            }
        }
        // Under the lock, so that nobody loads a revision that the feed does not know.
        for (revision, changes) in told {
            self.shared.feed.push(revision, changes);
        }
    }

    fn lose(&mut self, error: &StoreError) {
        tracing::error!(%error, "the store cannot be written");
        self.file = None;
        self.shared.write().lost.get_or_insert_with(|| (SystemTime::now(), error.to_string()));
    }

    /// Opens the file again after a failed write, of which it is not known whether it got there.
    fn reopen(&mut self) -> Result<(), StoreError> {
        let opened = StoreFile::open(&self.dir).and_then(|file| Ok((file.read()?, file)));
        match opened {
            Ok((everything, file)) => {
                self.file = Some(file);
                self.take_in(everything);
                Ok(())
            }
            Err(error) => {
                self.lose(&error);
                Err(error)
            }
        }
    }

    fn take_in(&mut self, everything: Everything) {
        self.deadlines = Deadlines::default();
        let mut state = self.shared.write();
        state.revision = everything.revision;
        state.records.clear();
        for (key, kept) in everything.records {
            self.deadlines.set(&key, kept.expires);
            state.records.insert(key, kept.record);
        }
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
