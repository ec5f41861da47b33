//! A store that lives as long as the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use super::{
    Change, Condition, Contents, Event, Pending, Record, Store, StoreError, StoreStatus, Transaction,
    WATCH_QUEUE, Watch, Write,
};

/// Keeps records in memory; times to live are not counted.
#[derive(Debug, Default)]
pub struct Memory {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    revision: u64,
    records: BTreeMap<String, Record>,
    watchers: Vec<mpsc::Sender<Event>>,
}

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held leaves whole records behind: each write is one insert.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn holds(&self, condition: &Condition) -> bool {
        match condition {
            Condition::Absent { key } => !self.records.contains_key(key),
            Condition::ModifiedAt { key, revision } => {
                self.records.get(key).is_some_and(|record| record.modified == *revision)
            }
        }
    }

    fn carry_out(&mut self, write: Write) -> Option<Change> {
        let revision = self.revision;
        match write {
            Write::Put { key, value, ttl: _ } => {
                let created = self.records.get(&key).map_or(revision, |record| record.created);
                let record = Record { key: key.clone(), value, created, modified: revision };
                self.records.insert(key, record.clone());
                Some(Change::Put(record))
            }
            Write::Delete { key } => self.records.remove(&key).map(|_| Change::Delete { key, revision }),
        }
    }

    fn tell(&mut self, changes: Vec<Change>) {
        let event = Event::Changed { revision: self.revision, changes };
        // A watcher that does not keep up loses its place rather than hold the writers back.
        self.watchers.retain(|watcher| watcher.try_send(event.clone()).is_ok());
    }
}

impl Store for Memory {
    fn load(&self) -> Pending<'_, Contents> {
        let state = self.state();
        let contents =
            Contents { revision: state.revision, records: state.records.values().cloned().collect() };
        Box::pin(std::future::ready(Ok(contents)))
    }

    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Record>> {
        let record = self.state().records.get(key).cloned();
        Box::pin(std::future::ready(Ok(record)))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Pending<'a, Vec<Record>> {
        let state = self.state();
        let from = state.records.range(prefix.to_owned()..);
        let records = from.take_while(|(key, _)| key.starts_with(prefix)).map(|(_, r)| r.clone()).collect();
        Box::pin(std::future::ready(Ok(records)))
    }

    fn commit(&self, transaction: Transaction) -> Pending<'_, u64> {
        let mut state = self.state();
        let result = if transaction.conditions.iter().all(|condition| state.holds(condition)) {
            state.revision += 1;
            let changes: Vec<Change> =
                transaction.writes.into_iter().filter_map(|write| state.carry_out(write)).collect();
            state.tell(changes);
            Ok(state.revision)
        } else {
            Err(StoreError::Conflict)
        };
        Box::pin(std::future::ready(result))
    }

    fn next_id(&self) -> Pending<'_, u64> {
        let mut state = self.state();
        state.revision += 1;
        Box::pin(std::future::ready(Ok(state.revision)))
    }

    fn watch(self: Arc<Self>, _revision: u64) -> Watch {
        let (sender, receiver) = mpsc::channel(WATCH_QUEUE);
        self.state().watchers.push(sender);
        receiver
    }

    fn status(&self) -> StoreStatus {
        StoreStatus { kind: "memory", revision: self.state().revision, lost: None }
    }
}
