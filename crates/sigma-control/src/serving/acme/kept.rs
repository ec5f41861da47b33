//! The folder in which accounts, certificates and attempts last.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sigma_config::resources::CertificateKey;
use sigma_discovery::kept_file;
use sigma_net::tls::certificate::{self, Validity};
use sigma_net::tls::pem::{Pair, parse_chain};
use sigma_schema::Confidential;

use super::CertificateSpec;

/// A larger file is not valid.
const FILE_MAX: u64 = 1 << 20;

/// The layout of the files.
const VERSION: u32 = 1;

/// One ssl: its certificate, and its attempts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    pub(super) version: u32,
    pub(super) ssl: String,
    /// Where the certificate was ordered, for which names and with which key.
    pub(super) directory: String,
    pub(super) names: Vec<String>,
    pub(super) key_type: CertificateKey,
    /// The chain, in PEM; empty without a certificate.
    pub(super) cert: String,
    pub(super) key: Confidential,
    /// When it is renewed, and when its authority is queried again whether that is right; in Unix seconds.
    pub(super) renew_at: i64,
    pub(super) ask_at: i64,
    /// Failed orders since the last successful one, one that is under way among them.
    pub(super) failures: u32,
    /// No order is made before, in Unix seconds.
    pub(super) not_before: i64,
    /// The target of the failed orders: another one need not wait.
    pub(super) tried_directory: String,
    pub(super) tried_names: Vec<String>,
    pub(super) last_error: Option<String>,
}

impl Record {
    pub(super) fn new(ssl: &str) -> Record {
        Record { version: VERSION, ssl: ssl.to_owned(), ..Record::default() }
    }

    /// Whether its layout is the one that is written here.
    pub(super) fn is_known(&self) -> bool {
        self.version == VERSION
    }

    /// The certificate with its key, if there is one.
    pub(super) fn pair(&self) -> Result<Option<Pair>, String> {
        if self.cert.is_empty() {
            return Ok(None);
        }
        Pair::parse(&self.cert, self.key.reveal(), None).map(Some).map_err(|error| error.to_string())
    }

    /// Whether what failed last was an order like this.
    pub(super) fn was_tried(&self, wanted: &CertificateSpec, directory: &str) -> bool {
        self.tried_names == wanted.names && self.tried_directory == directory
    }

    /// Returns the validity of the certificate.
    pub(super) fn validity(&self) -> Option<Validity> {
        let chain = parse_chain(&self.cert).ok()?;
        certificate::validity(chain.first()?)
    }
}

/// A private folder.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(super) fn new(path: &Path) -> Folder {
        Folder { path: path.to_owned() }
    }

    /// Reads the records of all ssls, by their ids. A file that cannot be read is as if it were not there,
    /// and the log says so.
    pub(super) async fn read_all(&self) -> BTreeMap<String, Record> {
        let folder = self.certificates();
        let read = tokio::task::spawn_blocking(move || read_folder(&folder)).await;
        let read = read.unwrap_or_else(|error| Err(io::Error::other(error)));
        read.unwrap_or_else(|error| {
            let path = self.path.display();
            tracing::error!(%path, %error, "cannot read the stored certificates; they are ordered again");
            BTreeMap::new()
        })
    }

    /// Writes the record of an ssl.
    pub(super) async fn write(&self, record: &Record) -> io::Result<()> {
        self.write_file(self.certificates().join(format!("{}.json", record.ssl)), record).await
    }

    /// Removes the record of an ssl.
    pub(super) async fn remove(&self, ssl: &str) -> io::Result<()> {
        let path = self.certificates().join(format!("{ssl}.json"));
        let removed = tokio::task::spawn_blocking(move || std::fs::remove_file(&path)).await;
        removed.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// The account at a directory.
    pub(super) async fn account<T: DeserializeOwned + Send + 'static>(
        &self,
        directory: &str,
    ) -> io::Result<Option<T>> {
        let path = self.account_file(directory);
        let read = tokio::task::spawn_blocking(move || read_file(&path)).await;
        read.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Keeps the account at a directory.
    pub(super) async fn write_account(&self, directory: &str, account: &impl Serialize) -> io::Result<()> {
        self.write_file(self.account_file(directory), account).await
    }

    fn certificates(&self) -> PathBuf {
        self.path.join("certificates")
    }

    fn account_file(&self, directory: &str) -> PathBuf {
        self.path.join(format!("{}.json", account_name(directory)))
    }

    async fn write_file(&self, path: PathBuf, content: &impl Serialize) -> io::Result<()> {
        let content = serde_json::to_vec(content)?;
        let written = tokio::task::spawn_blocking(move || kept_file::write(&path, &content)).await;
        written.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

/// The name under which the account at a directory is kept.
pub(super) fn account_name(directory: &str) -> String {
    let digest = digest::digest(&digest::SHA256, directory.as_bytes());
    let name: String = digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("account-{name}")
}

fn read_folder(folder: &Path) -> io::Result<BTreeMap<String, Record>> {
    let mut records = BTreeMap::new();
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(records),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let Some(ssl) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")) else {
            continue;
        };
        match read_file::<Record>(&path) {
            Ok(Some(record)) if record.is_known() && record.ssl == ssl => {
                records.insert(ssl.to_owned(), record);
            }
            Ok(_) => {
                let path = path.display();
                tracing::error!(%path, "this file was not written by Sigma; its certificate is ordered again");
            }
            Err(error) => {
                let path = path.display();
                tracing::error!(%path, %error, "cannot read a stored certificate; it is ordered again");
            }
        }
    }
    Ok(records)
}

fn read_file<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let Some(text) = kept_file::read(path, FILE_MAX)? else { return Ok(None) };
    Ok(Some(serde_json::from_slice(&text)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn written_records_are_read_and_damage_costs_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(&dir.path().join("acme"));
        assert_eq!(folder.read_all().await, BTreeMap::new());
        let mut one = Record::new("a.b-c_1");
        (one.failures, one.not_before, one.last_error) = (3, 77, Some("no".into()));
        folder.write(&one).await.unwrap();
        folder.write(&Record::new("2")).await.unwrap();
        let path = |name: &str| dir.path().join("acme/certificates").join(name);
        for (name, content) in
            [("3.json", "{"), ("4.json", "{\"version\":2,\"ssl\":\"4\"}"), ("5.txt", "x"), ("6.json", "")]
        {
            std::fs::write(path(name), content).unwrap();
        }
        std::fs::copy(path("2.json"), path("7.json")).unwrap();
        let read = folder.read_all().await;
        assert_eq!(read.keys().collect::<Vec<_>>(), ["2", "a.b-c_1"]);
        assert_eq!(read["a.b-c_1"], one);
        assert!(one.pair().unwrap().is_none());
    }

    #[tokio::test]
    async fn an_account_belongs_to_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path());
        folder.write_account("https://a/", &"first").await.unwrap();
        assert_eq!(folder.account::<String>("https://a/").await.unwrap().as_deref(), Some("first"));
        assert_eq!(folder.account::<String>("https://b/").await.unwrap(), None);
        // Where a file has to be there is a folder.
        let nowhere = Folder::new(&dir.path().join("x"));
        std::fs::write(dir.path().join("x"), "").unwrap();
        assert!(nowhere.write(&Record::new("1")).await.is_err());
    }
}
