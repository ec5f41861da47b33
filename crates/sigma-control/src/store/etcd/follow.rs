//! Follows the changes in etcd, through lost connections, compaction and restored backups.
//!
//! A revision does not identify its history: a restored backup keeps the id of the cluster, goes back, and
//! the next writes take it past a gateway's last revision. So the state is trusted for as long as its
//! connection lasts. After that everything is read again, and the watcher compares it with its state. From
//! time to time the keys are compared as well, for whatever else may have gone wrong between etcd and here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::client::{Client, Watching};
use super::keys::Keys;
use super::link::{self, Connection, Link, unsigned};
use super::messages::{WatchCreateRequest, WatchEvent, WatchResponse};
use super::{Etcd, read};
use crate::store::{Change, Event, StoreError, WATCH_QUEUE, Watch};

/// Pauses between attempts to reach etcd double from the first to the second.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(32));

/// The longest pause before everything is read again from a member that responds: gateways that lost etcd together do
/// not all read at the same moment.
const SPREAD: Duration = Duration::from_millis(500);

/// Starts a task that follows etcd from after `revision` until the watch is dropped.
pub(super) fn follow(etcd: Arc<Etcd>, revision: u64) -> Watch {
    let (watcher, receiver) = mpsc::channel(WATCH_QUEUE);
    let loaded = etcd.take_loaded(revision);
    tokio::spawn(async move {
        let follower = Follower {
            etcd,
            watcher: watcher.clone(),
            at: revision,
            known_over: loaded.as_ref().map(|loaded| loaded.connection).filter(|_| revision != 0),
            keys: loaded.and_then(|loaded| loaded.keys),
            lost: false,
            proven: false,
            pause: PAUSES.0,
        };
        tokio::select! {
            () = follower.run() => {}
            () = watcher.closed() => {}
        }
    });
    receiver
}

struct Follower {
    etcd: Arc<Etcd>,
    watcher: mpsc::Sender<Event>,
    /// The watcher knows everything up to this revision; 0 for nothing.
    at: u64,
    /// The connection over which the watcher came to know it; None if that has ended.
    known_over: Option<u64>,
    /// The keys that the watcher knows, if they were counted.
    keys: Option<Keys>,
    lost: bool,
    /// The session has brought more than its beginning.
    proven: bool,
    /// Before the next attempt.
    pause: Duration,
}

/// Why a session with etcd ended.
enum Ended {
    /// Changes are missing; everything has to be read.
    Behind,
    Failed(StoreError),
    /// There are no watchers any more.
    Unheard,
}

impl From<StoreError> for Ended {
    fn from(error: StoreError) -> Self {
        Ended::Failed(error)
    }
}

impl Follower {
    async fn run(mut self) {
        loop {
            self.proven = false;
            let ended = self.session().await;
            self.known_over = None;
            match ended {
                Ended::Unheard => return,
                Ended::Behind => {}
                // A member that goes away is no event as long as another one takes over at once.
                Ended::Failed(_) if self.proven => {
                    self.pause = PAUSES.0;
                    tokio::time::sleep(SPREAD.mul_f64(fastrand::f64())).await;
                }
                Ended::Failed(error) => {
                    if self.tell_lost(&error).await.is_err() {
                        return;
                    }
                    self.rest(&error).await;
                }
            }
        }
    }

    async fn rest(&mut self, error: &StoreError) {
        let refused = error.to_string().contains("code: 401");
        let pause = if refused { self.etcd.options().resync_delay } else { self.pause };
        // Gateways that lost etcd together do not come back together.
        tokio::time::sleep(pause.mul_f64(1.0 + fastrand::f64() / 2.0)).await;
        self.pause = (self.pause * 2).min(PAUSES.1);
    }

    async fn tell_lost(&mut self, error: &StoreError) -> Result<(), Ended> {
        self.link().lost(error);
        if std::mem::replace(&mut self.lost, true) {
            return Ok(());
        }
        tracing::warn!(%error, "etcd is unreachable; the last configuration stays in force");
        self.tell(Event::Lost(error.to_string())).await
    }

    async fn tell(&self, event: Event) -> Result<(), Ended> {
        self.watcher.send(event).await.map_err(|_| Ended::Unheard)
    }

    fn link(&self) -> &Link {
        &self.etcd.link
    }

    /// One watch, from its beginning to its end.
    async fn session(&mut self) -> Ended {
        match self.watch().await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    async fn watch(&mut self) -> Result<std::convert::Infallible, Ended> {
        self.etcd.prepare().await;
        loop {
            let connection = self.link().connection().await?;
            if self.known_over == Some(connection.number) {
                let ended = self.stream(&connection).await;
                if let Err(Ended::Failed(_)) = ended {
                    self.link().discard(&connection).await;
                }
                return ended;
            }
            // Over another connection, if this one ends meanwhile; then it has to be read once more.
            self.reload().await?;
        }
    }

    async fn reload(&mut self) -> Result<(), Ended> {
        let read::Everything { contents, keys, connection } = self.etcd.load_everything().await?;
        (self.at, self.keys, self.known_over) = (contents.revision, Some(keys), Some(connection));
        self.found_again(contents.revision).await?;
        self.tell(Event::Reloaded(contents)).await
    }

    async fn found_again(&mut self, revision: u64) -> Result<(), Ended> {
        self.link().regained();
        if !std::mem::replace(&mut self.lost, false) {
            return Ok(());
        }
        tracing::warn!(revision, "etcd is reachable again");
        self.tell(Event::Regained { revision }).await
    }

    async fn stream(&mut self, connection: &Connection) -> Result<std::convert::Infallible, Ended> {
        let quiet = self.etcd.options().watch_timeout / 2;
        let mut watching = self.open(&connection.client).await?;
        let (mut asked, mut patience) = (false, Instant::now() + quiet);
        let mut compare_at = self.next_comparison();
        loop {
            let heard = tokio::select! {
                heard = timeout_at(patience, watching.message()) => heard,
                () = due(compare_at) => {
                    self.compare(&connection.client).await?;
                    compare_at = self.next_comparison();
                    continue;
                }
            };
            match heard {
                Ok(Ok(Some(response))) => {
                    asked = false;
                    self.take(response).await?;
                }
                Ok(Ok(None)) => return Err(unavailable("etcd closed the watch").into()),
                Ok(Err(error)) => return Err(failed(&error).into()),
                Err(_) if asked => return Err(silent(quiet * 2).into()),
                Err(_) => {
                    asked = true;
                    watching.request_progress().await.map_err(|error| failed(&error))?;
                }
            }
            patience = Instant::now() + quiet;
        }
    }

    async fn open(&self, client: &Client) -> Result<Watching, Ended> {
        let options = self.etcd.options();
        let key = format!("{}/", options.prefix).into_bytes();
        let start_revision = i64::try_from(self.at + 1).unwrap_or(i64::MAX);
        let request = WatchCreateRequest { range_end: read::successor(&key), key, start_revision };
        let opened = timeout(options.timeout, client.watch(request)).await;
        Ok(opened.map_err(|_| silent(options.timeout))?.map_err(|error| failed(&error))?)
    }

    /// When the keys are compared next, not at the same time by all gateways; None for never.
    fn next_comparison(&self) -> Option<Instant> {
        let interval = self.etcd.options().compare_interval;
        (!interval.is_zero()).then(|| Instant::now() + interval.mul_f64(1.0 + fastrand::f64() / 2.0))
    }

    /// Compares the keys that the watcher knows with those that etcd had at the same revision.
    async fn compare(&self, client: &Client) -> Result<(), Ended> {
        let Some(known) = &self.keys else { return Err(Ended::Behind) };
        let root = &self.etcd.options().prefix;
        let mut listed = read::keys(client, root, self.at, known).await;
        if listed.as_ref().is_err_and(|refusal| refusal.message().contains("compacted")) {
            // Of now, then. If something was written since, everything is read for nothing.
            listed = read::keys(client, root, 0, known).await;
        }
        match listed {
            Ok(listed) if known.agree(&listed) => Ok(()),
            Ok(listed) => {
                let (known, etcd) = (known.count(), listed.count());
                tracing::warn!(
                    known,
                    etcd,
                    revision = self.at,
                    "the keys in etcd differ from the known keys"
                );
                Err(Ended::Behind)
            }
            Err(refusal) if refusal.message().contains("future revision") => Err(Ended::Behind),
            Err(refusal) => Err(failed(&refusal).into()),
        }
    }

    async fn take(&mut self, response: WatchResponse) -> Result<(), Ended> {
        if response.canceled {
            return match response.compact_revision {
                0 => Err(unavailable(&format!("etcd ended the watch: {}", response.cancel_reason)).into()),
                _ => Err(Ended::Behind),
            };
        }
        if response.created {
            let revision = link::revision(response.header.as_ref());
            if revision < self.at {
                return Err(Ended::Behind);
            }
            self.found_again(revision).await?;
        } else {
            self.proven = true;
        }
        // A response without events says how far etcd is, but up to 3.5.7 it may overtake events that are still to
        // come: only an event moves the revision.
        let etcd = Arc::clone(&self.etcd);
        let (mut revision, mut changes) = (self.at, Vec::new());
        for event in response.events {
            let gone = event.kind == WatchEvent::DELETE;
            let Some(kv) = event.kv else { continue };
            let modified = unsigned(kv.mod_revision);
            revision = revision.max(modified);
            let Some(key) = read::short_key(&etcd.options().prefix, &kv.key) else { continue };
            if let Some(keys) = &mut self.keys {
                if gone { keys.remove(&key) } else { keys.put(&key, modified) }
            }
            let put = if gone { None } else { read::record(key.clone(), kv) };
            // Keys that a load would skip are reported as deleted.
            changes.push(put.map_or(Change::Delete { key, revision: modified }, Change::Put));
        }
        if revision == self.at {
            return Ok(());
        }
        self.at = revision;
        self.link().saw_revision(revision);
        self.tell(Event::Changed { revision, changes }).await
    }
}

async fn due(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn unavailable(text: &str) -> StoreError {
    StoreError::Unavailable(text.to_owned())
}

fn failed(error: &tonic::Status) -> StoreError {
    unavailable(&format!("etcd's watch failed: {}", link::explain(error)))
}

fn silent(after: Duration) -> StoreError {
    unavailable(&format!("etcd has been silent for {after:?}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sigma_testkit::EtcdServer;

    use super::*;
    use crate::store::Contents;
    use crate::store::etcd::EtcdOptions;

    /// Tests with an installed etcd.
    mod installed {
        use super::*;

        /// A change that never arrived, for any reason.
        #[tokio::test]
        async fn a_missed_change_is_found_by_comparing() {
            let server = EtcdServer::start().unwrap();
            let options = EtcdOptions {
                endpoints: vec![server.endpoint()],
                compare_interval: Duration::from_millis(100),
                ..EtcdOptions::default()
            };
            let etcd = Arc::new(Etcd::new(options).unwrap());
            server.put("/apisix/routes/1", "{}").unwrap();
            let read::Everything { keys, connection, .. } = etcd.load_everything().await.unwrap();
            let at = server.delete("/apisix/routes/1").unwrap();
            let (watcher, mut receiver) = mpsc::channel(WATCH_QUEUE);
            let follower = Follower {
                etcd,
                watcher,
                at,
                known_over: Some(connection),
                keys: Some(keys),
                lost: false,
                proven: false,
                pause: PAUSES.0,
            };
            tokio::spawn(follower.run());
            let told = tokio::time::timeout(Duration::from_secs(30), receiver.recv()).await.unwrap();
            let expected = Contents { revision: at, records: Vec::new() };
            assert_eq!(told, Some(Event::Reloaded(expected)));
        }
    }
}
