//! The health of nodes, in a file: a start begins with it. A file that cannot be read changes nothing, and
//! the log says so.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sigma_config::health_file as settings;
use sigma_discovery::kept_file;
use sigma_upstream::health::StoredHealth;

use super::publisher::Publisher;

/// How often changes are looked for.
const LOOK: Duration = Duration::from_secs(1);

/// Within its age a file is written so often, whether or not anything has changed.
const TIMES: u32 = 4;

/// A larger file is not valid.
const FILE_MAX: u64 = 64 << 20;

/// The layout of the file.
const VERSION: u32 = 1;

/// The file of this process.
#[derive(Debug, Clone)]
pub(crate) struct HealthFile {
    path: PathBuf,
    max_age: Duration,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    /// In Unix milliseconds.
    written_ms: u64,
    #[serde(flatten)]
    kept: StoredHealth,
}

impl HealthFile {
    /// None if it is switched off.
    pub(crate) fn of(settings: &settings::HealthFile) -> Option<HealthFile> {
        let path = settings.file()?.clone();
        Some(HealthFile { path, max_age: Duration::from_secs(settings.max_age.into()) })
    }

    /// Returns the content of the file; nothing if it is missing. It blocks, and is for a start: no request
    /// is served yet, and another thread would only be waited for.
    pub(crate) fn read(&self) -> StoredHealth {
        match read_file(&self.path) {
            Ok(document) => document.map(|document| self.believed(document, unix_ms())).unwrap_or_default(),
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(%path, %error, "cannot read the stored health of nodes: all count as healthy; delete the file if the key is damaged");
                StoredHealth::default()
            }
        }
    }

    /// Returns the trusted part of a file at `now_ms`.
    fn believed(&self, document: Document, now_ms: u64) -> StoredHealth {
        let age = Duration::from_millis(now_ms.saturating_sub(document.written_ms));
        if age <= self.max_age {
            return document.kept;
        }
        if !document.kept.nodes.is_empty() {
            tracing::warn!(age_s = age.as_secs(), "the stored health of nodes is too old");
        }
        StoredHealth { states: document.kept.states, ..StoredHealth::default() }
    }

    /// Keeps the file up to date until the process ends.
    pub(crate) async fn keep(self, publisher: Arc<Publisher>) {
        let (began, mut written, mut seen) = (Instant::now(), Instant::now(), None);
        let (mut last, mut fails, mut is_old) = (StoredHealth::default(), false, false);
        loop {
            tokio::time::sleep(LOOK).await;
            let is_due = written.elapsed() >= self.max_age / TIMES;
            let kept = {
                let endpoints = &mut publisher.state().endpoints;
                if !is_old && began.elapsed() > self.max_age {
                    is_old = true;
                    endpoints.forget_earlier_health();
                }
                let changes = endpoints.health_changes();
                if seen.replace(changes) == Some(changes) && !is_due {
                    continue;
                }
                endpoints.kept_health()
            };
            let is_same = kept == last;
            if is_same && (kept == StoredHealth::default() || !is_due) {
                continue;
            }
            written = Instant::now();
            match self.write_aside(kept.clone()).await {
                Ok(()) => (last, fails) = (kept, false),
                Err(error) if !fails => {
                    fails = true;
                    let path = self.path.display();
                    tracing::warn!(%path, %error, "cannot write the health of nodes; see `health_file`");
                }
                Err(_) => {}
            }
        }
    }

    /// Writes the present state, for the next process.
    pub(crate) async fn write_last(&self, publisher: &Publisher) {
        let kept = publisher.state().endpoints.kept_health();
        if kept == StoredHealth::default() && !self.path.exists() {
            return;
        }
        if let Err(error) = self.write_aside(kept).await {
            tracing::warn!(path = %self.path.display(), %error, "cannot write the health of nodes");
        }
    }

    async fn write_aside(&self, kept: StoredHealth) -> io::Result<()> {
        let (path, document) =
            (self.path.clone(), Document { version: VERSION, written_ms: unix_ms(), kept });
        let written =
            tokio::task::spawn_blocking(move || kept_file::write(&path, &serde_json::to_vec(&document)?))
                .await;
        written.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// None if there is no file.
fn read_file(path: &Path) -> io::Result<Option<Document>> {
    let Some(text) = kept_file::read(path, FILE_MAX)? else { return Ok(None) };
    let document: Document = serde_json::from_slice(&text)?;
    if document.version != VERSION {
        return Err(io::Error::other(format!(
            "the file has format version {}; expected {VERSION}",
            document.version
        )));
    }
    Ok(Some(document))
}

#[cfg(test)]
mod tests {
    use sigma_upstream::health::{KeptNode, NodeState};

    use super::*;

    fn file(path: PathBuf) -> HealthFile {
        HealthFile { path, max_age: Duration::from_secs(60) }
    }

    fn kept() -> StoredHealth {
        let node = KeptNode {
            host: "h".to_owned(),
            port: 80,
            address: "10.0.0.1:80".to_owned(),
            down: Some("timeout".to_owned()),
            ejections: None,
        };
        let state = [("h:80".to_owned(), NodeState::Drain)].into();
        StoredHealth {
            nodes: [("upstreams/1".to_owned(), vec![node])].into(),
            states: [("upstreams/1".to_owned(), state)].into(),
        }
    }

    #[tokio::test]
    async fn written_health_is_read_and_a_damaged_file_is_empty() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = file(dir.path().join("a/health.json"));
        assert_eq!(file.read(), StoredHealth::default());
        file.write_aside(kept()).await.expect("written");
        assert_eq!(file.read(), kept());
        for damaged in ["", "{}", r#"{"version":2,"written_ms":1}"#, "\u{0}", "[]"] {
            std::fs::write(&file.path, damaged).expect("a file");
            assert_eq!(file.read(), StoredHealth::default(), "{damaged:?}");
        }
        std::fs::write(&file.path, r#"{"version":1,"written_ms":1}"#).expect("a file");
        assert_eq!(file.read(), StoredHealth::default());
        let nowhere = HealthFile { path: dir.path().to_owned(), ..file };
        assert_eq!(nowhere.read(), StoredHealth::default());
    }

    #[test]
    fn an_old_file_is_believed_what_operators_have_said() {
        let check = |written_ms: u64, now_ms: u64, is_believed: bool| {
            let believed = file(PathBuf::new())
                .believed(Document { version: VERSION, written_ms, kept: kept() }, now_ms);
            assert_eq!(believed.states, kept().states);
            assert_eq!(believed.nodes.is_empty(), !is_believed, "{written_ms} {now_ms}");
        };
        check(1_000, 61_000, true);
        check(1_000, 61_001, false);
        // The clock was set back.
        check(90_000, 1_000, true);
    }
}
