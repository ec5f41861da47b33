//! The file with the documents that were in force, for starts without their sources.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::kept_file;

/// The limit of the file.
const FILE_MAX: u64 = 1 << 30;

/// The layout of the file.
const VERSION: u32 = 1;

/// Reads and writes the file.
pub(super) struct KeptDocuments {
    path: PathBuf,
    writing: Mutex<()>,
}

/// The texts by the identity of their documents.
type Texts = BTreeMap<Box<str>, Arc<str>>;

#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    documents: Texts,
}

impl KeptDocuments {
    pub(super) fn new(path: PathBuf) -> KeptDocuments {
        KeptDocuments { path, writing: Mutex::default() }
    }

    /// Reads the file; None without a readable one.
    pub(super) async fn read(&self) -> Option<Texts> {
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || {
            let Some(content) = kept_file::read(&path, FILE_MAX)? else { return Ok(None) };
            let content: Content = serde_json::from_slice(&content)?;
            match content.version {
                VERSION => Ok(Some(content.documents)),
                other => Err(io::Error::other(format!("the layout {other} is unknown"))),
            }
        });
        match read.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(texts) => texts,
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(%path, %error, "cannot read the kept documents");
                None
            }
        }
    }

    /// Writes the newest texts, which are read when it is this call's turn. It blocks.
    pub(super) fn write(&self, texts: impl FnOnce() -> Texts) {
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let content = Content { version: VERSION, documents: texts() };
        let written = serde_json::to_vec(&content).map_err(io::Error::other);
        if let Err(error) = written.and_then(|content| kept_file::write(&self.path, &content)) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "cannot write the kept documents: the next start needs their sources");
        }
    }
}
