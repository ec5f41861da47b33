//! Follows the changes in etcd, through lost connections, compaction and restored backups.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::link::{self, Link, unsigned};
use super::messages::{WatchCreateRequest, WatchEvent, WatchResponse};
use super::{Etcd, read};
use crate::store::{Change, Event, StoreError, WATCH_QUEUE, Watch};

/// Pauses between attempts to reach etcd double from the first to the second.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(32));

/// Starts a task that follows etcd from after `revision` until the watch is dropped.
pub(super) fn follow(etcd: Arc<Etcd>, revision: u64) -> Watch {
    let (watcher, receiver) = mpsc::channel(WATCH_QUEUE);
    tokio::spawn(async move {
        let follower = Follower {
            etcd,
            watcher: watcher.clone(),
            at: revision,
            cluster: None,
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
    cluster: Option<u64>,
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
    /// Nobody listens any more.
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
            match self.session().await {
                Ended::Unheard => return,
                Ended::Behind => self.at = 0,
                // A member that goes away is no event as long as another one takes over at once.
                Ended::Failed(_) if self.proven => self.pause = PAUSES.0,
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
        tracing::warn!(%error, "etcd is lost; the last configuration stays in force");
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
        // A restored backup or another cluster has a history that ours is not part of.
        let (revision, cluster) = self.link().probe().await?;
        let other = self.cluster.replace(cluster).is_some_and(|known| known != cluster);
        if self.at == 0 || other || revision < self.at {
            self.reload().await?;
        }
        let connection = self.link().connection().await?;
        let ended = self.stream(&connection).await;
        if let Err(Ended::Failed(_)) = ended {
            self.link().discard(&connection).await;
        }
        ended
    }

    async fn reload(&mut self) -> Result<(), Ended> {
        let contents = self.etcd.load_contents().await?;
        self.at = contents.revision;
        self.found_again(contents.revision).await?;
        self.tell(Event::Reloaded(contents)).await
    }

    async fn found_again(&mut self, revision: u64) -> Result<(), Ended> {
        self.link().regained();
        if !std::mem::replace(&mut self.lost, false) {
            return Ok(());
        }
        tracing::warn!(revision, "etcd is back");
        self.tell(Event::Regained { revision }).await
    }

    async fn stream(&mut self, connection: &link::Connection) -> Result<std::convert::Infallible, Ended> {
        let options = self.etcd.options();
        let (timeout, quiet) = (options.timeout, options.watch_timeout / 2);
        let key = format!("{}/", options.prefix).into_bytes();
        let start_revision = i64::try_from(self.at + 1).unwrap_or(i64::MAX);
        let request = WatchCreateRequest { range_end: read::successor(&key), key, start_revision };
        let opened = tokio::time::timeout(timeout, connection.client.watch(request)).await;
        let mut watching = opened.map_err(|_| silent(timeout))?.map_err(|error| failed(&error))?;
        let mut asked = false;
        loop {
            match tokio::time::timeout(quiet, watching.message()).await {
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
            self.found_again(link::revision(response.header.as_ref())).await?;
        } else {
            self.proven = true;
        }
        // An answer without events says how far etcd is, but up to 3.5.7 it may overtake events
        // that are still to come: only an event moves the revision.
        let prefix = &self.etcd.options().prefix;
        let (mut revision, mut changes) = (self.at, Vec::new());
        for event in response.events {
            let gone = event.kind == WatchEvent::DELETE;
            let Some(kv) = event.kv else { continue };
            let modified = unsigned(kv.mod_revision);
            revision = revision.max(modified);
            let Some(key) = read::short_key(prefix, &kv.key) else { continue };
            let put = if gone { None } else { read::record(prefix, kv) };
            // What a load would skip is gone, even if it was overwritten and not deleted.
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

fn unavailable(text: &str) -> StoreError {
    StoreError::Unavailable(text.to_owned())
}

fn failed(error: &tonic::Status) -> StoreError {
    unavailable(&format!("etcd's watch failed: {}", link::explain(error)))
}

fn silent(after: Duration) -> StoreError {
    unavailable(&format!("etcd has been silent for {after:?}"))
}
