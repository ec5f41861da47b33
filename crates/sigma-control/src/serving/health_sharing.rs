//! Shared health of nodes between gateways on one etcd: each writes its findings under its own key, which goes with
//! its lease, and heeds the others' findings.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sigma_config::health_sharing as settings;
use sigma_upstream::health::{Agreement, Findings};
use tokio::task::JoinHandle;

use super::publisher::Publisher;
use crate::store::{Change, Event, Record, Store, StoreError, Transaction, Write};

/// Where the keys are, among what gateways report.
const FOLDER: &str = "data_plane/health/";

/// How often changes are looked for.
const LOOK: Duration = Duration::from_secs(1);

/// The longest interval at which the others' findings are applied again, for nodes that have come meanwhile.
const HEED: Duration = Duration::from_secs(5);

/// Within the time that its word holds a gateway repeats it so often.
const TIMES: u32 = 3;

/// Most gateways that are listened to.
const GATEWAYS_MAX: usize = 1_000;

/// The talk of this process with the other gateways of its store.
pub(crate) struct HealthSharing {
    peers: Arc<Peers>,
    task: JoinHandle<()>,
}

/// The gateways of one store, as this one knows them.
struct Peers {
    store: Arc<dyn Store>,
    key: String,
    ttl: Duration,
    agreement: Agreement,
    heard: Mutex<Heard>,
}

/// The others' findings.
#[derive(Default)]
struct Heard {
    by_key: HashMap<String, ReceivedFindings>,
    changes: u64,
    /// Since when the store cannot be reached.
    lost: Option<Instant>,
    /// Findings from before the watch are still to be read.
    is_behind: bool,
}

struct ReceivedFindings {
    revision: u64,
    /// None if it is taken back, or cannot be read.
    findings: Option<Arc<Findings>>,
    /// It came over the watch while something was still to be read.
    is_new: bool,
}

impl HealthSharing {
    /// Begins to tell the others, and to heed them. Within a runtime.
    pub(crate) fn begin(
        settings: settings::HealthSharing,
        store: &Arc<dyn Store>,
        publisher: &Arc<Publisher>,
    ) -> HealthSharing {
        let peers = Arc::new(Peers {
            store: Arc::clone(store),
            key: format!("{FOLDER}{:016x}", fastrand::u64(..)),
            ttl: Duration::from_secs(settings.ttl.into()),
            agreement: Agreement {
                gateways: usize::try_from(settings.gateways).unwrap_or(usize::MAX),
                max_percent: settings.max_percent,
            },
            heard: Mutex::new(Heard { is_behind: true, ..Heard::default() }),
        });
        let (talking, publisher) = (Arc::clone(&peers), Arc::clone(publisher));
        let task = tokio::spawn(async move {
            tokio::join!(talking.tell(&publisher), talking.listen(&publisher));
        });
        HealthSharing { peers, task }
    }

    /// The store tells something.
    pub(crate) fn hear(&self, event: &Event) {
        self.peers.heard().hear(event, &self.peers.key);
    }

    /// Takes back what this process has said, as it ends.
    pub(crate) async fn leave(&self) {
        self.task.abort();
        // Without a response the lease ends it.
        let _ = tokio::time::timeout(LOOK, self.peers.write(&Findings::default())).await;
    }
}

impl Peers {
    async fn tell(&self, publisher: &Publisher) {
        let (mut told, mut at, mut seen, mut fails) = (Findings::default(), Instant::now(), None, false);
        loop {
            tokio::time::sleep(LOOK).await;
            let is_due = (!told.is_empty() || fails) && at.elapsed() >= self.ttl / TIMES;
            let findings = {
                let endpoints = &publisher.state().endpoints;
                let changes = endpoints.health_changes();
                if seen.replace(changes) == Some(changes) && !is_due {
                    continue;
                }
                endpoints.findings()
            };
            if findings == told && !is_due {
                continue;
            }
            at = Instant::now();
            match self.write(&findings).await {
                Ok(()) => (told, fails) = (findings, false),
                Err(error) if !fails => {
                    fails = true;
                    tracing::warn!(%error, "cannot share the health of nodes; check `health_sharing`");
                }
                Err(_) => {}
            }
        }
    }

    async fn write(&self, findings: &Findings) -> Result<(), StoreError> {
        let key = self.key.clone();
        let write = match findings.is_empty() {
            true => Write::Delete { key },
            false => {
                let text = serde_json::to_vec(findings).map_err(|e| StoreError::Corrupt(e.to_string()))?;
                Write::Put { key, value: text.into(), ttl: Some(self.ttl) }
            }
        };
        self.store.commit(Transaction { conditions: Vec::new(), writes: vec![write] }).await.map(drop)
    }

    async fn listen(&self, publisher: &Publisher) {
        let (mut heeded, mut at) = (0, Instant::now());
        loop {
            if self.heard().is_behind {
                self.catch_up().await;
            }
            let (changes, findings) = self.heard().valid(self.ttl);
            if changes != heeded || (!findings.is_empty() && at.elapsed() >= HEED) {
                (heeded, at) = (changes, Instant::now());
                publisher.state().endpoints.heed(&findings, &self.agreement);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Reads findings from before the watch. Failed reads are tried again.
    async fn catch_up(&self) {
        let Ok(records) = self.store.list(FOLDER).await else { return };
        self.heard().catch_up(&records, &self.key);
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        // Each change of it is whole at once.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heard {
    /// The store tells something; what this gateway says has the key `own`.
    fn hear(&mut self, event: &Event, own: &str) {
        match event {
            Event::Changed { changes, .. } => {
                for change in changes {
                    match change {
                        Change::Put(record) => self.put(record, own),
                        Change::Delete { key, revision } => self.take_back(key, *revision),
                    }
                }
            }
            Event::Reloaded(contents) => {
                self.forget();
                (self.lost, self.is_behind) = (None, false);
                contents.records.iter().for_each(|record| self.put(record, own));
            }
            Event::Lost(_) => self.lost = self.lost.or_else(|| Some(Instant::now())),
            Event::Regained { .. } => (self.lost, self.is_behind) = (None, true),
        }
    }

    /// Merges findings that were read apart from the watch. The watch may have brought newer ones meanwhile.
    fn catch_up(&mut self, records: &[Record], own: &str) {
        if std::mem::take(&mut self.is_behind) {
            let read: HashSet<&str> = records.iter().map(|record| record.key.as_str()).collect();
            self.by_key.retain(|key, said| said.is_new || read.contains(key.as_str()));
            records.iter().for_each(|record| self.put(record, own));
            self.by_key.retain(|_, said| said.findings.is_some());
            self.by_key.values_mut().for_each(|said| said.is_new = false);
            self.changes += 1;
        }
    }

    fn put(&mut self, record: &Record, own: &str) {
        if !record.key.starts_with(FOLDER) || record.key == own {
            return;
        }
        let findings = match serde_json::from_slice(&record.value) {
            Ok(findings) => Some(Arc::new(findings)),
            Err(error) => {
                tracing::warn!(key = record.key, %error, "the node health that another gateway shares is unreadable");
                None
            }
        };
        self.note(
            &record.key,
            ReceivedFindings { revision: record.modified, findings, is_new: self.is_behind },
        );
    }

    fn take_back(&mut self, key: &str, revision: u64) {
        if self.is_behind && key.starts_with(FOLDER) {
            self.note(key, ReceivedFindings { revision, findings: None, is_new: true });
        } else if self.by_key.remove(key).is_some() {
            self.changes += 1;
        }
    }

    fn note(&mut self, key: &str, said: ReceivedFindings) {
        let is_known = self.by_key.get(key).map(|known| known.revision);
        if is_known.map_or(self.by_key.len() < GATEWAYS_MAX, |revision| revision <= said.revision) {
            self.by_key.insert(key.to_owned(), said);
            self.changes += 1;
        }
    }

    fn forget(&mut self) {
        self.by_key.clear();
        self.changes += 1;
    }

    /// Returns the valid findings, and a number that changes with them. While the store cannot be reached,
    /// findings cannot be withdrawn, so they are valid no longer than the store would have kept them.
    fn valid(&mut self, ttl: Duration) -> (u64, Vec<Arc<Findings>>) {
        if self.lost.is_some_and(|lost| lost.elapsed() >= ttl) && !self.by_key.is_empty() {
            self.forget();
        }
        (self.changes, self.by_key.values().filter_map(|said| said.findings.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Contents;

    const OWN: &str = "data_plane/health/own";

    fn record(name: &str, modified: u64, value: &str) -> Record {
        let key = format!("{FOLDER}{name}");
        Record { key, value: value.as_bytes().into(), created: 1, modified }
    }

    fn said(name: &str, modified: u64) -> Change {
        Change::Put(record(name, modified, r#"{"upstreams":{}}"#))
    }

    fn gone(name: &str, revision: u64) -> Change {
        Change::Delete { key: format!("{FOLDER}{name}"), revision }
    }

    /// The names of those whose word holds.
    fn names(heard: &Heard) -> Vec<&str> {
        let holds = heard.by_key.iter().filter(|(_, said)| said.findings.is_some());
        let mut names: Vec<_> = holds.filter_map(|(key, _)| key.strip_prefix(FOLDER)).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn others_are_heard_in_any_order() {
        let mut heard = Heard { is_behind: true, ..Heard::default() };
        let changed = |changes| Event::Changed { revision: 9, changes };
        // The watch brings newer findings than the list, which comes after it.
        heard.hear(
            &changed(vec![said("a", 5), said("own", 5), gone("b", 6), said("c", 7), gone("c", 8)]),
            OWN,
        );
        let listed = [("a", 3), ("b", 2), ("c", 1), ("d", 1), ("own", 5)];
        heard.catch_up(&listed.map(|(name, at)| record(name, at, r#"{"upstreams":{}}"#)), OWN);
        assert_eq!(names(&heard), ["a", "d"]);
        heard.hear(&changed(vec![gone("a", 10), said("e", 11), gone("e", 12), gone("nobody", 13)]), OWN);
        assert_eq!(names(&heard), ["d"]);
        // An unreadable record has no findings, and it removes former ones.
        let odd = ["", "[]", r#"{"upstreams":[]}"#, r#"{"upstreams":{"u":[{"port":70000}]}}"#];
        let odd = odd.map(|value| Change::Put(record("d", 14, value)));
        heard.hear(&changed(odd.to_vec()), OWN);
        assert!(names(&heard).is_empty());
        // A record that is missing in the whole list was withdrawn unseen.
        heard.hear(&changed(vec![said("d", 15)]), OWN);
        let all = Contents { revision: 20, records: vec![record("f", 16, r#"{"upstreams":{}}"#)] };
        heard.hear(&Event::Reloaded(all), OWN);
        assert_eq!(names(&heard), ["f"]);
        // A list that was requested before comes too late to count.
        heard.catch_up(&[record("g", 3, r#"{"upstreams":{}}"#)], OWN);
        assert_eq!(names(&heard), ["f"]);
        heard.hear(&Event::Regained { revision: 21 }, OWN);
        heard.catch_up(&[], OWN);
        assert!(names(&heard).is_empty());
    }

    #[test]
    fn without_the_store_nothing_holds_for_long() {
        let mut heard = Heard::default();
        heard.hear(&Event::Changed { revision: 1, changes: vec![said("a", 1)] }, OWN);
        heard.hear(&Event::Lost("away".to_owned()), OWN);
        let (changes, findings) = heard.valid(Duration::from_secs(60));
        assert_eq!(findings.len(), 1);
        let (later, findings) = heard.valid(Duration::ZERO);
        assert!(findings.is_empty() && later != changes);
    }

    #[test]
    fn a_store_full_of_gateways_is_heard_in_part() {
        let mut heard = Heard::default();
        let changes = (0..2 * GATEWAYS_MAX).map(|n| said(&n.to_string(), 1)).collect();
        heard.hear(&Event::Changed { revision: 1, changes }, OWN);
        assert_eq!(heard.by_key.len(), GATEWAYS_MAX);
        heard.hear(&Event::Changed { revision: 2, changes: vec![gone("0", 2), said("x", 2)] }, OWN);
        assert!(names(&heard).contains(&"x"));
    }
}
