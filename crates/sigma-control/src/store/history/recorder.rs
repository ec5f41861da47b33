//! The thread that writes versions.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;

use super::file::{Draft, HistoryFile, Item, Refused};
use super::version::{Author, By, OBJECTS_NAMED, Outcome, REASON_BYTES, State, Unserved, cleaned};
use super::{HistoryLocation, Limits, SETTINGS, Shared};

/// How often it is tried to open a file that another process still has.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// The same of one that the system refuses.
const FAILED_PAUSE: Duration = Duration::from_secs(5);
/// How often old versions are taken off while nothing changes.
const TIDY: Duration = Duration::from_secs(60 * 60);
/// Authors whose changes have not been seen yet, and versions whose author may still come.
const RECENT: usize = 1024;

/// A query of the file, which replies to its caller.
type HistoryQuery = Box<dyn FnOnce(&HistoryFile) + Send>;

/// A message to the thread.
pub(super) enum RecorderMessage {
    /// All that there is in the store.
    Everything { revision: u64, items: Vec<Item> },
    /// Changes of the store, each with its revision.
    Changes(Vec<(u64, Item)>),
    /// The author of a revision.
    Author { revision: u64, author: Author, rollback_to: Option<u64> },
    /// The content of a file that has come into force.
    File { author: Author, items: Vec<Item> },
    /// A file was refused.
    Refused { author: Author, reason: String },
    /// Writes up to this revision are in force, but for these.
    Settled { revision: u64, quarantined: Vec<Unserved> },
    /// Somebody asks.
    Query(HistoryQuery),
    /// Nothing for a long time: old versions are to go.
    Nothing,
    /// The file is to be closed.
    Close(oneshot::Sender<()>),
}

impl RecorderMessage {
    /// Returns the size of its values.
    pub(super) fn bytes(&self) -> usize {
        let of = |item: &Item| item.value.as_ref().map_or(0, |value| value.len());
        match self {
            RecorderMessage::Everything { items, .. } | RecorderMessage::File { items, .. } => {
                items.iter().map(of).sum()
            }
            RecorderMessage::Changes(items) => items.iter().map(|(_, item)| of(item)).sum(),
            _ => 0,
        }
    }
}

/// Writes versions.
pub(super) struct Recorder {
    place: HistoryLocation,
    limits: Limits,
    shared: Arc<Shared>,
    /// Authors of revisions that are still to be seen.
    authors: BTreeMap<u64, (Author, Option<u64>)>,
    /// The newest revisions that were seen, with their versions.
    seen: VecDeque<(u64, u64)>,
    /// Versions whose result is still missing, with their revisions.
    pending: Vec<(u64, u64)>,
    has_complained: bool,
}

impl Recorder {
    pub(super) fn new(place: HistoryLocation, limits: Limits, shared: Arc<Shared>) -> Recorder {
        Recorder {
            place,
            limits,
            shared,
            authors: BTreeMap::new(),
            seen: VecDeque::new(),
            pending: Vec::new(),
            has_complained: false,
        }
    }

    pub(super) fn run(mut self, told: &Receiver<RecorderMessage>) {
        // The state at a start is reported once the gateway serves; to open a file before would delay that.
        let Ok(first) = told.recv() else { return };
        if let RecorderMessage::Close(reply) = first {
            let _ = reply.send(());
            return;
        }
        let Some(file) = self.open() else { return };
        self.pending = file.pending().unwrap_or_default();
        let mut next = Some(first);
        loop {
            let one = match next.take().map_or_else(|| told.recv_timeout(TIDY), Ok) {
                Ok(one) => one,
                Err(RecvTimeoutError::Timeout) => RecorderMessage::Nothing,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.shared.queued.fetch_sub(one.bytes(), Ordering::AcqRel);
            if let RecorderMessage::Close(reply) = one {
                drop(file);
                // The caller may have gone.
                let _ = reply.send(());
                return;
            }
            match self.take_in(&file, one) {
                Ok(()) => self.has_complained = false,
                Err(error) => {
                    if !std::mem::replace(&mut self.has_complained, true) {
                        tracing::error!(%error, "cannot write the history; changes come into force without a version");
                    }
                    self.shared.has_missed.store(true, Ordering::Release);
                }
            }
        }
    }

    /// Opens the file, as soon as no other process has it; None once there are no callers any more.
    fn open(&self) -> Option<HistoryFile> {
        let path = self.place.file.as_deref();
        let mut told: Option<String> = None;
        loop {
            // Callers have a handle too.
            if Arc::strong_count(&self.shared) == 1 {
                return None;
            }
            let (reason, pause) = match HistoryFile::open(path, &self.place.subject) {
                Ok(file) => {
                    self.set_problem(None);
                    return Some(file);
                }
                Err(Refused::Busy) => ("another process has it open".to_owned(), BUSY_PAUSE),
                Err(Refused::Damaged(reason)) => match path.map(set_aside) {
                    Some(Ok(kept)) => {
                        let kept = kept.display();
                        tracing::error!(reason, %kept, "the history is damaged and starts empty");
                        continue;
                    }
                    Some(Err(error)) => {
                        (format!("cannot remove the damaged key ({reason}): {error}"), FAILED_PAUSE)
                    }
                    None => (reason, FAILED_PAUSE),
                },
                Err(Refused::Failed(reason)) => (reason, FAILED_PAUSE),
            };
            let place = path.unwrap_or(Path::new("memory")).display();
            let text = format!("{place}: {reason}");
            if pause == FAILED_PAUSE && told.as_ref() != Some(&text) {
                tracing::error!("the history is off: {text}; set another folder in `history.path`");
            }
            self.set_problem(Some(text.clone()));
            told = Some(text);
            std::thread::sleep(pause);
        }
    }

    fn set_problem(&self, problem: Option<String>) {
        *self.shared.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    fn take_in(&mut self, file: &HistoryFile, told: RecorderMessage) -> Result<(), redb::Error> {
        match told {
            RecorderMessage::Everything { revision, items } => self.everything(file, revision, items),
            RecorderMessage::Changes(items) => self.changes(file, items),
            RecorderMessage::Author { revision, author, rollback_to } => {
                self.author(file, revision, author, rollback_to)
            }
            RecorderMessage::File { author, items } => self.file(file, author, items),
            RecorderMessage::Refused { author, reason } => {
                let result = Outcome { reason: Some(reason), ..Outcome::of(State::Refused) };
                let draft = Draft { always: true, ..draft(author, 0, result) };
                file.record(&[], draft, &self.limits).map(drop)
            }
            RecorderMessage::Settled { revision, quarantined } => self.settled(file, revision, &quarantined),
            RecorderMessage::Query(question) => {
                question(file);
                Ok(())
            }
            RecorderMessage::Nothing => {
                let nothing = draft(Author::default(), 0, Outcome::of(State::InForce));
                file.record(&[], nothing, &self.limits).map(drop)
            }
            RecorderMessage::Close(_) => Ok(()),
        }
    }

    /// Compares the present with the known state.
    fn everything(&mut self, file: &HistoryFile, revision: u64, items: Vec<Item>) -> Result<(), redb::Error> {
        if file.is_new()? {
            return self.start(file, Author::of(By::Unknown), revision, &items);
        }
        let items = file.differences(items, |key| !key.starts_with(SETTINGS))?;
        let by = if self.place.others == By::Etcd { By::Etcd } else { By::Unknown };
        let draft = Draft {
            note: Some("found by comparison: changed while this gateway did not watch the store".to_owned()),
            ..draft(Author::of(by), revision, Outcome::of(State::Pending))
        };
        self.write(file, &items, draft)
    }

    /// The first version: how everything is when the history begins.
    fn start(
        &mut self,
        file: &HistoryFile,
        author: Author,
        revision: u64,
        items: &[Item],
    ) -> Result<(), redb::Error> {
        let objects = items.iter().filter(|item| !item.key.starts_with(SETTINGS)).count();
        let note = Some(format!("start of the history, with {objects} objects"));
        let draft = Draft { note, ..draft(author, revision, Outcome::of(State::InForce)) };
        file.begin(items, draft).map(drop)
    }

    /// A version for each revision.
    fn changes(&mut self, file: &HistoryFile, items: Vec<(u64, Item)>) -> Result<(), redb::Error> {
        let mut rest = items.into_iter().peekable();
        while let Some((revision, first)) = rest.next() {
            let mut of_revision = vec![first];
            while let Some((_, item)) = rest.next_if(|(at, _)| *at == revision) {
                of_revision.push(item);
            }
            // An author who comes later takes it over.
            let (author, rollback_to) = self.authors.remove(&revision).unwrap_or_else(|| {
                let only_deletes = of_revision.iter().all(|item| item.value.is_none());
                let by = match self.place.others {
                    By::Expiry if !only_deletes => By::Unknown,
                    others => others,
                };
                (Author::of(by), None)
            });
            let draft = Draft { rollback_to, ..draft(author, revision, Outcome::of(State::Pending)) };
            self.write(file, &of_revision, draft)?;
        }
        Ok(())
    }

    fn write(&mut self, file: &HistoryFile, items: &[Item], draft: Draft) -> Result<(), redb::Error> {
        let Some(version) = file.record(items, draft, &self.limits)? else { return Ok(()) };
        self.pending.push((version.version, version.revision));
        self.seen.push_back((version.revision, version.version));
        if self.seen.len() > RECENT {
            self.seen.pop_front();
        }
        Ok(())
    }

    fn author(
        &mut self,
        file: &HistoryFile,
        revision: u64,
        author: Author,
        rollback_to: Option<u64>,
    ) -> Result<(), redb::Error> {
        let seen = self.seen.iter().rev().find(|(at, _)| *at == revision);
        if let Some((_, version)) = seen {
            return file.amend(*version, |version| {
                (version.author, version.rollback_to) = (author, rollback_to);
            });
        }
        self.authors.insert(revision, (author, rollback_to));
        if self.authors.len() > RECENT {
            self.authors.pop_first();
        }
        Ok(())
    }

    fn file(&mut self, file: &HistoryFile, author: Author, items: Vec<Item>) -> Result<(), redb::Error> {
        // Next to a store a file has settings only.
        let has_resources = self.place.others == By::File;
        if !has_resources && !file.has_settings()? {
            return file.fill(&items);
        }
        if has_resources && file.is_new()? {
            return self.start(file, author, 0, &items);
        }
        let items = file.differences(items, |key| has_resources || key.starts_with(SETTINGS))?;
        file.record(&items, draft(author, 0, Outcome::of(State::InForce)), &self.limits).map(drop)
    }

    fn settled(
        &mut self,
        file: &HistoryFile,
        revision: u64,
        quarantined: &[Unserved],
    ) -> Result<(), redb::Error> {
        let (settled, pending) =
            std::mem::take(&mut self.pending).into_iter().partition(|(_, at)| *at <= revision);
        self.pending = pending;
        for (number, _) in settled {
            let mut objects = Vec::new();
            for one in quarantined {
                if objects.len() < OBJECTS_NAMED && file.holds(number, &one.key)? {
                    let reason = cleaned(&one.reason, REASON_BYTES);
                    objects.push(Unserved { reason, ..one.clone() });
                }
            }
            let state = if objects.is_empty() { State::InForce } else { State::Quarantined };
            file.amend(number, |version| version.result = Outcome { objects, ..Outcome::of(state) })?;
        }
        Ok(())
    }
}

fn draft(author: Author, revision: u64, result: Outcome) -> Draft {
    // A clock before 1970 is taken for 1970.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    Draft { author, revision, time_ms, rollback_to: None, note: None, result, always: false }
}

/// Moves a file out of the way that cannot be read.
fn set_aside(path: &Path) -> std::io::Result<PathBuf> {
    let kept = path.with_extension("redb.damaged");
    std::fs::rename(path, &kept)?;
    Ok(kept)
}
