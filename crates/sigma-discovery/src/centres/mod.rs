//! Documents of URLs and configuration centres, which are followed.
//!
//! A source is one file, which implements [`DocumentSource`]: it returns the text of one document, and waits for the
//! next one. The rest is common: a [`DocumentFollower`] has a task for each document, keeps the last texts, and writes
//! those that were in force to a file for the next start. It does not judge documents: its owner reports the result.

mod apollo;
mod consul;
mod kept;
mod nacos;
mod url;
mod zookeeper;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use sigma_config::config_sources::ConfigSources;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::source::Trouble;
use crate::tally::unix_now;
use kept::KeptDocuments;

/// The pause after the first failure; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(500);

/// The longest pause after failures.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The pause between two documents of a source: one that changes all the time does not keep the gateway busy.
const PACE: Duration = Duration::from_millis(100);

/// A repeatable request for one document.
pub(crate) trait DocumentSource: Send + 'static {
    /// Returns the text: at once the first time and after an error, otherwise when it may have changed. None means that
    /// the source still has the last one. A missing document is an error. After an error the caller pauses.
    fn next(&mut self) -> impl Future<Output = Result<Option<Vec<u8>>, Trouble>> + Send;
}

/// A document with its name, which is for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedDocument {
    /// E.g. `https://config.example.com/gateway.yaml`, without secrets.
    pub name: Arc<str>,
    /// The content.
    pub text: Arc<str>,
}

/// All documents at one time, in the order of the settings.
pub type FollowedDocuments = Arc<[FollowedDocument]>;

/// The state of one document, for status pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentReport {
    /// The name.
    pub name: Arc<str>,
    /// SHA-256 of the newest text, in hexadecimal digits.
    pub sha256: Option<String>,
    /// The time of the last response with this document, in Unix seconds.
    pub last_success: Option<u64>,
    /// Number of different texts since the start.
    pub updates: u64,
    /// Number of failures since the start.
    pub failures: u64,
    /// Since when, in Unix seconds, and why the document cannot be followed.
    pub lost: Option<(u64, String)>,
    /// The text is the kept one, because the source has not returned any yet.
    pub is_kept: bool,
}

/// Follows all documents of the settings until it is dropped.
pub struct DocumentFollower {
    shared: Arc<Shared>,
    tasks: Vec<AbortHandle>,
}

struct Shared {
    state: Mutex<State>,
    /// Counts results of sources.
    results: watch::Sender<u64>,
    kept: Option<KeptDocuments>,
}

#[derive(Default)]
struct State {
    documents: Vec<DocumentState>,
    /// Counts changes of texts.
    version: u64,
    /// The version that the owner has.
    taken: u64,
    /// The last documents that were in force; at the start, in the process before.
    in_force: Option<FollowedDocuments>,
    refused: Option<(u64, String)>,
}

struct DocumentState {
    name: Arc<str>,
    /// The name with what decides whether a kept text may be used.
    identity: Box<str>,
    text: Option<Arc<str>>,
    is_kept: bool,
    last_success: Option<u64>,
    updates: u64,
    failures: u64,
    lost: Option<(u64, String)>,
}

impl State {
    /// Returns all documents; None while one has no text.
    fn all(&self) -> Option<FollowedDocuments> {
        let one = |state: &DocumentState| {
            Some(FollowedDocument { name: Arc::clone(&state.name), text: state.text.clone()? })
        };
        self.documents.iter().map(one).collect()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics between the statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a valid response, with a text if that may have changed.
    fn fetched(&self, index: usize, text: Option<&[u8]>) -> Result<(), Trouble> {
        let text = text.map(content).transpose()?;
        let mut state = self.state();
        let document = &mut state.documents[index];
        if let Some((_, reason)) = document.lost.take() {
            tracing::info!(document = &*document.name, reason, "the document is reachable again");
        }
        document.last_success = Some(unix_now());
        let Some(text) = text else { return Ok(()) };
        document.is_kept = false;
        if document.text.as_deref() != Some(text) {
            document.text = Some(text.into());
            document.updates += 1;
            state.version += 1;
        }
        Ok(())
    }

    fn failed(&self, index: usize, trouble: &Trouble) {
        let mut state = self.state();
        let document = &mut state.documents[index];
        document.failures += 1;
        match &mut document.lost {
            Some((_, reason)) if *reason == trouble.0 => {}
            lost => {
                let since = lost.as_ref().map_or_else(unix_now, |(since, _)| *since);
                *lost = Some((since, trouble.0.clone()));
                let name = &*document.name;
                tracing::warn!(document = name, %trouble, "cannot follow a document; its last text stays in force");
            }
        }
    }

    /// Reads the kept texts, if there are some of all documents.
    async fn read_kept(&self) -> Option<FollowedDocuments> {
        let texts = self.kept.as_ref()?.read().await?;
        let state = self.state();
        let one = |document: &DocumentState| {
            let text = Arc::clone(texts.get(&*document.identity)?);
            Some(FollowedDocument { name: Arc::clone(&document.name), text })
        };
        state.documents.iter().map(one).collect()
    }
}

impl DocumentFollower {
    /// Starts to follow the documents, and waits until each has a text: the source's, or after failures the kept one.
    /// Call it within a runtime.
    ///
    /// # Errors
    /// Returns an error if a document has neither.
    pub async fn begin(settings: &ConfigSources) -> Result<Arc<DocumentFollower>, String> {
        let kept = settings.kept_file.clone().map(KeptDocuments::new);
        let shared = Shared { state: Mutex::default(), results: watch::Sender::new(0), kept };
        let mut follower = DocumentFollower { shared: Arc::new(shared), tasks: Vec::new() };
        let results = follower.shared.results.subscribe();
        follower.follow_all(settings).await?;
        follower.wait_for_first(results, settings).await?;
        Ok(Arc::new(follower))
    }

    async fn follow_all(&mut self, settings: &ConfigSources) -> Result<(), String> {
        for document in &settings.urls {
            let source = url::DocumentAtUrl::new(document, settings.document_bytes).await?;
            self.follow(document.url.to_string(), &source.verification(), source);
        }
        if let Some(consul) = &settings.consul {
            for key in &consul.keys {
                let source = consul::ConsulDocument::new(consul, key, settings.document_bytes);
                self.follow(format!("consul {key}"), "", source);
            }
        }
        if let Some(nacos) = &settings.nacos {
            for document in &nacos.documents {
                let name = format!("nacos {}/{}", document.group, document.data_id);
                let source = nacos::NacosConfiguration::new(nacos, document, settings.document_bytes);
                self.follow(name, &nacos.namespace, source);
            }
        }
        if let Some(apollo) = &settings.apollo {
            for namespace in &apollo.namespaces {
                let source = apollo::ApolloNamespace::new(apollo, namespace, settings.document_bytes);
                self.follow(format!("apollo {}/{namespace}", apollo.app_id), &apollo.cluster, source);
            }
        }
        if let Some(zookeeper) = &settings.zookeeper {
            for path in &zookeeper.paths {
                let source = zookeeper::ZookeeperNode::new(zookeeper, path, settings.document_bytes);
                self.follow(format!("zookeeper {path}"), "", source);
            }
        }
        Ok(())
    }

    fn follow<S: DocumentSource>(&mut self, name: String, more: &str, source: S) {
        let mut state = self.shared.state();
        let index = state.documents.len();
        state.documents.push(DocumentState {
            identity: format!("{name} {more}").into(),
            name: name.into(),
            text: None,
            is_kept: false,
            last_success: None,
            updates: 0,
            failures: 0,
            lost: None,
        });
        drop(state);
        self.tasks.push(tokio::spawn(follow(Arc::clone(&self.shared), index, source)).abort_handle());
    }

    async fn wait_for_first(
        &self,
        mut results: watch::Receiver<u64>,
        settings: &ConfigSources,
    ) -> Result<(), String> {
        let most = u64::from(settings.startup_retry);
        let is_settled = || {
            let state = self.shared.state();
            state.documents.iter().all(|document| document.text.is_some() || document.failures > most)
        };
        // The tasks, which this one aborts, have the sender.
        let _ = results.wait_for(|_| is_settled()).await;
        let kept = self.shared.read_kept().await;
        let mut state = self.shared.state();
        for (index, document) in state.documents.iter_mut().enumerate().filter(|(_, one)| one.text.is_none())
        {
            let reason = document.lost.as_ref().map_or("", |(_, reason)| reason);
            let Some(kept) = &kept else {
                let copy = match &settings.kept_file {
                    Some(path) => format!("{} has no copy of all documents", path.display()),
                    None => "`config_sources.kept_file` is not set".to_owned(),
                };
                return Err(format!("cannot read {}: {reason}; and {copy}", document.name));
            };
            let name = &*document.name;
            tracing::warn!(document = name, reason, "the start uses the kept document");
            (document.text, document.is_kept) = (Some(Arc::clone(&kept[index].text)), true);
        }
        state.in_force = kept;
        state.version += 1;
        Ok(())
    }

    /// Returns the newest documents. [`DocumentFollower::changed`] waits for newer ones from now on.
    #[must_use]
    pub fn take(&self) -> FollowedDocuments {
        let mut state = self.shared.state();
        state.taken = state.version;
        // All have a text since the start.
        state.all().unwrap_or_default()
    }

    /// Waits until a document is newer than the taken ones.
    pub async fn changed(&self) {
        let mut results = self.shared.results.subscribe();
        let is_newer = || {
            let state = self.shared.state();
            state.version != state.taken
        };
        if results.wait_for(|_| is_newer()).await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns the last documents that were in force. At the start these are the kept ones, if they are complete.
    #[must_use]
    pub fn in_force(&self) -> Option<FollowedDocuments> {
        self.shared.state().in_force.clone()
    }

    /// Reports that these documents are in force now. Call it within a runtime.
    pub fn accepted(&self, documents: &FollowedDocuments) {
        let mut state = self.shared.state();
        if state.all().as_ref() == Some(documents) {
            state.refused = None;
        }
        if state.in_force.as_ref() == Some(documents) {
            return;
        }
        state.in_force = Some(Arc::clone(documents));
        drop(state);
        if self.shared.kept.is_some() {
            let shared = Arc::clone(&self.shared);
            tokio::task::spawn_blocking(move || shared.write_kept());
        }
    }

    /// Reports that the newest documents are invalid, and why.
    pub fn refused(&self, reason: &str) {
        let mut state = self.shared.state();
        let since = state.refused.as_ref().map_or_else(unix_now, |(since, _)| *since);
        state.refused = Some((since, reason.to_owned()));
    }

    /// Returns since when, in Unix seconds, and why the newest documents are not in force.
    #[must_use]
    pub fn refusal(&self) -> Option<(u64, String)> {
        self.shared.state().refused.clone()
    }

    /// Returns the state of all documents.
    #[must_use]
    pub fn report(&self) -> Vec<DocumentReport> {
        let state = self.shared.state();
        let one = |document: &DocumentState| DocumentReport {
            name: Arc::clone(&document.name),
            sha256: document
                .text
                .as_deref()
                .map(|text| hexadecimal(digest(&SHA256, text.as_bytes()).as_ref())),
            last_success: document.last_success,
            updates: document.updates,
            failures: document.failures,
            lost: document.lost.clone(),
            is_kept: document.is_kept,
        };
        state.documents.iter().map(one).collect()
    }
}

impl Shared {
    /// Writes the documents in force. It blocks.
    fn write_kept(&self) {
        let Some(kept) = &self.kept else { return };
        kept.write(|| {
            let state = self.state();
            let identities = state.documents.iter().map(|document| document.identity.clone());
            let texts = state.in_force.iter().flat_map(|all| all.iter()).map(|one| Arc::clone(&one.text));
            identities.zip(texts).collect()
        });
    }
}

impl Drop for DocumentFollower {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Returns the text of a document.
fn content(bytes: &[u8]) -> Result<&str, Trouble> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Trouble(format!("the document is not UTF-8: {error}; compressed documents are not supported"))
    })?;
    if text.trim().is_empty() {
        let reason = "the document is empty; write `routes: []` to remove all resources";
        return Err(Trouble(reason.to_owned()));
    }
    Ok(text)
}

/// Follows one document.
async fn follow<S: DocumentSource>(shared: Arc<Shared>, index: usize, mut source: S) {
    let mut failures: u32 = 0;
    loop {
        let result = source.next().await.and_then(|text| shared.fetched(index, text.as_deref()));
        failures = if result.is_ok() { 0 } else { failures.saturating_add(1) };
        if let Err(trouble) = &result {
            shared.failed(index, trouble);
        }
        shared.results.send_modify(|results| *results += 1);
        tokio::time::sleep(backoff(failures)).await;
    }
}

/// Returns the pause after a number of failures in a row.
pub(crate) fn backoff(failures: u32) -> Duration {
    if failures == 0 {
        return PACE;
    }
    let pause = PAUSE_MIN.saturating_mul(1 << (failures - 1).min(10)).min(PAUSE_MAX);
    pause.mul_f64(1.0 + fastrand::f64() / 4.0)
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
