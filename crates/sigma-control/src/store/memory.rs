//! A store that lives as long as the process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::feed::{Fed, Feed};
use super::records::Records;
use super::{
    Change, Condition, Contents, Pending, Record, Store, StoreError, StoreStatus, Transaction, Watch, Write,
};

/// Keeps records in memory; times to live are not counted.
#[derive(Debug)]
pub struct Memory {
    state: Mutex<State>,
    feed: Feed,
}

#[derive(Debug, Default)]
struct State {
    revision: u64,
    records: Records,
}

impl Default for Memory {
    fn default() -> Self {
        Memory { state: Mutex::default(), feed: Feed::new(0) }
    }
}

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held leaves whole records behind: each write is one insert.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn carry_out(&mut self, write: Write) -> Option<Change> {
        let revision = self.revision;
        match write {
            Write::Put { key, value, ttl: _ } => {
                let created = self.records.get(&key).map_or(revision, |record| record.created);
                let record = Record { key, value: Arc::from(&*value), created, modified: revision };
                self.records.put(record.clone());
                Some(Change::Put(record))
            }
            Write::Delete { key } => self.records.remove(&key).then_some(Change::Delete { key, revision }),
        }
    }
}

impl Fed for Memory {
    fn feed(&self) -> &Feed {
        &self.feed
    }
}

impl Store for Memory {
    fn load(&self) -> Pending<'_, Contents> {
        let state = self.state();
        let contents =
            Contents { revision: state.revision, records: state.records.iter().cloned().collect() };
        Box::pin(std::future::ready(Ok(contents)))
    }

    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Record>> {
        let record = self.state().records.get(key).cloned();
        Box::pin(std::future::ready(Ok(record)))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Pending<'a, Vec<Record>> {
        let records = self.state().records.with_prefix(prefix);
        Box::pin(std::future::ready(Ok(records)))
    }

    fn commit(&self, transaction: Transaction) -> Pending<'_, u64> {
        let mut state = self.state();
        let holds = |condition: &Condition| condition.holds(state.records.get(condition.key()));
        let result = if transaction.conditions.iter().all(holds) {
            state.revision += 1;
            let changes: Vec<Change> =
                transaction.writes.into_iter().filter_map(|write| state.carry_out(write)).collect();
            // Under the lock, so that the feed sends revisions in their order.
            self.feed.push(state.revision, changes);
            Ok(state.revision)
        } else {
            Err(StoreError::Conflict)
        };
        Box::pin(std::future::ready(result))
    }

    fn next_id(&self) -> Pending<'_, u64> {
        let mut state = self.state();
        state.revision += 1;
        self.feed.push(state.revision, Vec::new());
        Box::pin(std::future::ready(Ok(state.revision)))
    }

    fn watch(self: Arc<Self>, revision: u64) -> Watch {
        Feed::follow(&self, revision)
    }

    fn status(&self) -> StoreStatus {
        StoreStatus { kind: "memory", revision: self.state().revision, lost: None, copied: None }
    }
}
