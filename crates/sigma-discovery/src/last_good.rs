//! The last good lists, in a file: a start uses them while its registries are down.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sigma_config::discovery::{Dump, LastGood};
use sigma_config::resources::Node;
use tokio::sync::OnceCell;

use crate::kept_file;
use crate::node::node;
use crate::source::Listing;
use crate::tally::unix_now;

/// Changes within this time are written together.
const SETTLE: Duration = Duration::from_millis(500);

/// The limit of the file.
const FILE_MAX: u64 = 1 << 30;

/// Lists without followers are dropped after this time.
const FORGOTTEN: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The layout of the file.
const VERSION: u32 = 1;

/// The file with the last good lists of all topics.
#[derive(Debug)]
pub(crate) struct LastLists {
    path: Option<PathBuf>,
    /// A start reads it.
    reads: bool,
    expire: Option<Duration>,
    wait: Duration,
    loaded: OnceCell<()>,
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    topics: BTreeMap<String, TopicLists>,
    /// A write task is scheduled.
    is_writing: bool,
    /// There was a change since the start of that task.
    is_dirty: bool,
}

/// The lists of one topic.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct TopicLists {
    /// The time of the last change, in Unix seconds.
    at: u64,
    services: Arc<Listing>,
}

/// The whole file.
#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    topics: BTreeMap<String, TopicLists>,
}

impl LastLists {
    /// Returns a file that is neither read nor written before it is needed.
    pub(crate) fn new(settings: &LastGood) -> Arc<LastLists> {
        Arc::new(LastLists {
            path: settings.file().cloned(),
            reads: true,
            expire: (settings.expire > 0).then(|| Duration::from_secs(settings.expire.into())),
            wait: Duration::from_millis(settings.wait_ms.into()),
            loaded: OnceCell::new(),
            lists: Mutex::default(),
        })
    }

    /// Returns the separate file of a registry.
    pub(crate) fn of(dump: &Dump, settings: &LastGood) -> Arc<LastLists> {
        let settings = LastGood { path: dump.path.clone(), expire: dump.expire, ..settings.clone() };
        let whole = LastLists::new(&settings);
        match Arc::try_unwrap(whole) {
            Ok(lists) => Arc::new(LastLists { reads: dump.load_on_init, ..lists }),
            Err(shared) => shared,
        }
    }

    /// Returns the lists that the file has now for topics selected by `is_wanted`, and the time of the last change.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub(crate) async fn stored(
        &self,
        is_wanted: impl Fn(&str) -> bool,
    ) -> io::Result<(Listing, Option<u64>)> {
        let Some(path) = self.path.clone() else { return Ok(Default::default()) };
        let read = tokio::task::spawn_blocking(move || read_file(&path)).await;
        let mut topics = read.unwrap_or_else(|error| Err(io::Error::other(error)))?;
        topics.retain(|topic, _| is_wanted(topic));
        let changed = topics.values().map(|kept| kept.at).max();
        let lists = topics.into_values().flat_map(|kept| Arc::unwrap_or_clone(kept.services));
        Ok((lists.collect(), changed))
    }

    /// Returns true if there is a file.
    pub(crate) fn has_file(&self) -> bool {
        self.path.is_some()
    }

    /// Returns the time after which a start no longer uses the file.
    pub(crate) fn expire(&self) -> Option<Duration> {
        self.expire
    }

    /// Returns how long a start waits for the registry before it uses the file.
    pub(crate) fn wait(&self) -> Duration {
        self.wait
    }

    /// Returns the lists of a topic from the previous process. Call it within a runtime.
    pub(crate) async fn read(self: &Arc<Self>, topic: &str) -> Option<Listing> {
        self.loaded.get_or_init(|| Arc::clone(self).load()).await;
        let kept = self.lists().topics.get(topic).cloned()?;
        let age = Duration::from_secs(unix_now().saturating_sub(kept.at));
        if self.expire.is_some_and(|expire| age > expire) {
            tracing::warn!(topic, age_s = age.as_secs(), "the last good lists of the file are too old");
            return None;
        }
        Some(Listing::clone(&kept.services))
    }

    async fn load(self: Arc<Self>) {
        let Some(path) = self.path.clone().filter(|_| self.reads) else { return };
        let shown = path.display().to_string();
        let read = tokio::task::spawn_blocking(move || read_file(&path)).await;
        match read.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(topics) => self.lists().topics = topics,
            Err(error) => {
                tracing::warn!(path = shown, %error, "cannot read the last good lists: without registries, services have no nodes");
            }
        }
    }

    /// Sets the lists of a topic; they are written soon. Call it within a runtime.
    pub(crate) fn note(self: &Arc<Self>, topic: &str, listing: &Arc<Listing>) {
        let Some(path) = self.path.clone() else { return };
        let mut lists = self.lists();
        let kept = TopicLists { at: unix_now(), services: Arc::clone(listing) };
        lists.topics.insert(topic.to_owned(), kept);
        lists.is_dirty = true;
        if !std::mem::replace(&mut lists.is_writing, true) {
            tokio::spawn(Arc::clone(self).write(path));
        }
    }

    /// Writes until there are no more changes.
    async fn write(self: Arc<Self>, path: PathBuf) {
        let mut pause = SETTLE;
        loop {
            tokio::time::sleep(pause).await;
            let topics = {
                let mut lists = self.lists();
                if !std::mem::take(&mut lists.is_dirty) {
                    lists.is_writing = false;
                    return;
                }
                let oldest = unix_now().saturating_sub(FORGOTTEN.as_secs());
                lists.topics.retain(|_, kept| kept.at >= oldest);
                lists.topics.clone()
            };
            let place = path.clone();
            let began = Instant::now();
            let written = tokio::task::spawn_blocking(move || write_file(&place, topics)).await;
            // A registry that changes all the time uses at most a tenth of the disk's time.
            pause = SETTLE.max(began.elapsed() * 9);
            if let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) {
                let path = path.display().to_string();
                tracing::warn!(path, %error, "cannot write the last good lists; see `discovery.last_good`");
            }
        }
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until everything is on disk.
    #[cfg(test)]
    pub(crate) async fn written(&self) {
        while self.lists().is_writing {
            tokio::task::yield_now().await;
        }
    }
}

/// Returns the topics in a file; empty without a file.
fn read_file(path: &Path) -> io::Result<BTreeMap<String, TopicLists>> {
    let Some(text) = kept_file::read(path, FILE_MAX)? else { return Ok(BTreeMap::new()) };
    let mut document: Document = serde_json::from_slice(&text)?;
    if document.version != VERSION {
        return Err(io::Error::other(format!(
            "the file has format version {}; expected {VERSION}",
            document.version
        )));
    }
    // The file may have been edited: it has the limits of a registry.
    let is_told = |known: &Node| node(&known.host, known.port, known.weight).is_some();
    for kept in document.topics.values_mut() {
        for nodes in Arc::make_mut(&mut kept.services).values_mut() {
            *nodes = nodes.iter().filter(|node| is_told(node)).cloned().collect();
        }
    }
    Ok(document.topics)
}

fn write_file(path: &Path, topics: BTreeMap<String, TopicLists>) -> io::Result<()> {
    kept_file::write(path, &serde_json::to_vec(&Document { version: VERSION, topics })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web(host: &str) -> Arc<Listing> {
        let node = Node { host: host.into(), port: Some(80), weight: 1, ..Node::default() };
        Arc::new(Listing::from([("web".into(), Arc::from([node]))]))
    }

    #[tokio::test]
    async fn lists_survive_a_restart_unless_they_are_too_old() {
        let dir = tempfile::tempdir().expect("a folder");
        let settings = LastGood { path: dir.path().join("a/lists.json"), expire: 60, wait_ms: 0 };
        let lists = LastLists::new(&settings);
        assert_eq!(lists.read("consul web").await, None);
        lists.note("consul web", &web("10.0.0.1"));
        lists.note("consul api", &web("10.0.0.2"));
        lists.written().await;
        let again = || LastLists::new(&settings);
        assert_eq!(again().read("consul web").await.as_ref(), Some(&*web("10.0.0.1")));
        assert_eq!(again().read("nacos web").await, None);

        // The lists of other topics stay when one changes.
        let next = again();
        next.read("consul web").await;
        next.note("consul web", &web("10.0.0.3"));
        next.written().await;
        assert_eq!(again().read("consul api").await.as_ref(), Some(&*web("10.0.0.2")));

        let text = std::fs::read_to_string(&settings.path).expect("the file");
        let old = text.replace(&format!("\"at\":{}", &unix_now().to_string()[..3]), "\"at\":100");
        std::fs::write(&settings.path, old).expect("an old file");
        assert_eq!(again().read("consul web").await, None);
        let unlimited = LastLists::new(&LastGood { expire: 0, ..settings.clone() });
        assert!(unlimited.read("consul web").await.is_some());
        let dump = |load_on_init| Dump { path: settings.path.clone(), load_on_init, expire: 0 };
        assert!(LastLists::of(&dump(true), &settings).read("consul web").await.is_some());
        assert!(LastLists::of(&dump(false), &settings).read("consul web").await.is_none());
    }

    #[tokio::test]
    async fn a_damaged_or_edited_file_has_the_limits_of_a_registry() {
        let dir = tempfile::tempdir().expect("a folder");
        let settings = LastGood { path: dir.path().join("lists.json"), expire: 0, wait_ms: 0 };
        for damaged in ["", "{}", "{\"version\":2,\"topics\":{}}", "\u{0}"] {
            std::fs::write(&settings.path, damaged).expect("a file");
            assert_eq!(LastLists::new(&settings).read("t").await, None, "{damaged:?}");
        }
        let edited = r#"{"version":1,"topics":{"t":{"at":1,"services":{"web":[{"host":"unix:/s","weight":1},{"host":"h","weight":1}]}}}}"#;
        std::fs::write(&settings.path, edited).expect("a file");
        let read = LastLists::new(&settings).read("t").await.expect("lists");
        assert_eq!(read["web"].iter().map(|node| &*node.host).collect::<Vec<_>>(), ["h"]);
    }
}
