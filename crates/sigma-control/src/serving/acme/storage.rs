//! Where accounts, certificates and attempts last: in a folder, or in the store of several gateways.

use std::io;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::kept::{Folder, Record};
use super::shared::Shared;

/// Where accounts, certificates and attempts last. Errors are sentences that say so.
#[derive(Clone)]
pub(super) enum Storage {
    Folder(Folder),
    /// The store of several gateways.
    Shared(Arc<Shared>),
}

impl Storage {
    /// Writes the record of an ssl.
    pub(super) async fn write(&self, record: &Record) -> Result<(), String> {
        match self {
            Storage::Folder(folder) => folder.write(record).await.map_err(in_folder),
            Storage::Shared(shared) => shared.write(record).await,
        }
    }

    /// Removes the record of an ssl. Shared records are not removed.
    pub(super) async fn remove(&self, ssl: &str) -> Result<(), String> {
        match self {
            Storage::Folder(folder) => folder.remove(ssl).await.map_err(in_folder),
            Storage::Shared(_) => Ok(()),
        }
    }

    /// The account at a directory.
    pub(super) async fn account<T: DeserializeOwned + Send + 'static>(
        &self,
        directory: &str,
    ) -> Result<Option<T>, String> {
        match self {
            Storage::Folder(folder) => folder.account(directory).await.map_err(in_folder),
            Storage::Shared(shared) => shared.account(directory).await,
        }
    }

    /// Keeps the account at a directory.
    pub(super) async fn write_account(
        &self,
        directory: &str,
        account: &impl Serialize,
    ) -> Result<(), String> {
        match self {
            Storage::Folder(folder) => folder.write_account(directory, account).await.map_err(in_folder),
            Storage::Shared(shared) => shared.write_account(directory, account).await,
        }
    }
}

fn in_folder(error: io::Error) -> String {
    format!("`acme.storage`: {error}")
}
