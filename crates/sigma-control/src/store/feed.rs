//! Tells the watchers of a store in this process what changed, each at its own pace.
//!
//! The writer never waits for a watcher: it appends to a history of bounded length, and each watcher has a task that
//! reads from there. A watcher that falls behind the history, or that requests a revision before it, is handed
//! everything instead.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{mpsc, watch};

use super::{Change, Event, Store, WATCH_QUEUE, Watch};

/// Changes that are kept for watchers which are behind.
const HISTORY: usize = 8192;

/// Changes that go into one event at most, unless one revision has more.
const EVENT_CHANGES: usize = 1024;

/// A store whose watchers are served from a [`Feed`].
pub(super) trait Fed: Store {
    /// The feed.
    fn feed(&self) -> &Feed;
}

/// The recent changes, and who waits for more.
#[derive(Debug)]
pub(super) struct Feed {
    history: Mutex<History>,
    newest: watch::Sender<u64>,
}

#[derive(Debug)]
struct History {
    /// Every change after this revision is in `entries`.
    complete_after: u64,
    newest: u64,
    entries: VecDeque<Entry>,
    changes: usize,
}

#[derive(Debug)]
struct Entry {
    revision: u64,
    changes: Vec<Change>,
}

/// The next event of a watcher.
#[derive(Debug, PartialEq)]
enum Next {
    Nothing,
    Changes { revision: u64, changes: Vec<Change> },
    Missed,
}

impl Feed {
    /// A feed of a store that is at `revision`.
    pub(super) fn new(revision: u64) -> Feed {
        let history =
            History { complete_after: revision, newest: revision, entries: VecDeque::new(), changes: 0 };
        Feed { history: Mutex::new(history), newest: watch::Sender::new(revision) }
    }

    /// The store came to `revision`, the next after all before, by these changes.
    pub(super) fn push(&self, revision: u64, changes: Vec<Change>) {
        let mut history = self.history();
        history.changes += changes.len();
        history.newest = revision;
        history.entries.push_back(Entry { revision, changes });
        // Revisions without a change count too, so that they do not pile up.
        while history.changes + history.entries.len() > HISTORY {
            let Some(oldest) = history.entries.pop_front() else { break };
            history.changes -= oldest.changes.len();
            history.complete_after = oldest.revision;
        }
        drop(history);
        self.newest.send_replace(revision);
    }

    /// The store is at `revision` and it is not known how it came there: all watchers that are not
    /// at this revision are handed everything.
    pub(super) fn restart(&self, revision: u64) {
        let mut history = self.history();
        *history =
            History { complete_after: revision, newest: revision, entries: VecDeque::new(), changes: 0 };
        drop(history);
        self.newest.send_replace(revision);
    }

    /// Starts a task that tells the returned watch of everything after `revision`.
    pub(super) fn follow<S: Fed + 'static>(store: &Arc<S>, revision: u64) -> Watch {
        let (sender, receiver) = mpsc::channel(WATCH_QUEUE);
        let news = store.feed().newest.subscribe();
        tokio::spawn(tell(Arc::downgrade(store), news, revision, sender));
        receiver
    }

    fn history(&self) -> MutexGuard<'_, History> {
        // Nothing panics between the statements that change it.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn after(&self, told: u64) -> Next {
        let history = self.history();
        if told == history.newest {
            return Next::Nothing;
        }
        if told < history.complete_after || told > history.newest {
            return Next::Missed;
        }
        let (mut revision, mut changes) = (told, Vec::new());
        let from = history.entries.partition_point(|entry| entry.revision <= told);
        for entry in history.entries.range(from..) {
            if !changes.is_empty() && changes.len() + entry.changes.len() > EVENT_CHANGES {
                break;
            }
            changes.extend_from_slice(&entry.changes);
            revision = entry.revision;
        }
        Next::Changes { revision, changes }
    }
}

/// Ends when the watch or the store is dropped.
async fn tell<S: Fed>(
    store: Weak<S>,
    mut news: watch::Receiver<u64>,
    mut told: u64,
    watcher: mpsc::Sender<Event>,
) {
    loop {
        news.mark_unchanged();
        let Some(alive) = store.upgrade() else { return };
        let event = match alive.feed().after(told) {
            Next::Nothing => {
                drop(alive);
                let more = tokio::select! {
                    changed = news.changed() => changed.is_ok(),
                    () = watcher.closed() => false,
                };
                if more {
                    continue;
                }
                return;
            }
            Next::Changes { revision, changes } => {
                told = revision;
                Event::Changed { revision, changes }
            }
            Next::Missed => {
                let Ok(contents) = alive.load().await else { return };
                told = contents.revision;
                Event::Reloaded(contents)
            }
        };
        // While the queue is full the store may still be dropped.
        drop(alive);
        if watcher.send(event).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(revision: u64) -> Vec<Change> {
        vec![Change::Delete { key: format!("routes/{revision}"), revision }]
    }

    #[test]
    fn history_answers_for_the_revisions_that_it_holds() {
        let feed = Feed::new(10);
        assert_eq!(feed.after(10), Next::Nothing);
        assert_eq!(feed.after(9), Next::Missed);
        assert_eq!(feed.after(11), Next::Missed);
        for revision in 11..=14 {
            feed.push(revision, gone(revision));
        }
        let changes = (13..=14).flat_map(gone).collect();
        assert_eq!(feed.after(12), Next::Changes { revision: 14, changes });
        feed.restart(14);
        assert_eq!((feed.after(13), feed.after(14)), (Next::Missed, Next::Nothing));
    }

    #[test]
    fn history_is_bounded_and_events_keep_revisions_whole() {
        let feed = Feed::new(0);
        let last = HISTORY as u64 * 2;
        for revision in 1..=last {
            feed.push(revision, gone(revision));
        }
        assert_eq!(feed.after(1), Next::Missed);
        let Next::Changes { revision, changes } = feed.after(last - 2000) else { panic!("missed") };
        assert_eq!((revision, changes.len()), (last - 2000 + EVENT_CHANGES as u64, EVENT_CHANGES));
        let many: Vec<Change> = (0..EVENT_CHANGES * 2).flat_map(|_| gone(last + 1)).collect();
        feed.push(last + 1, many.clone());
        assert_eq!(feed.after(last), Next::Changes { revision: last + 1, changes: many });
    }
}
