//! Documents that authorities publish: fetched within limits, and kept over a restart.
//!
//! They are not secret, and not trusted because of their source, neither the network nor the folder: each
//! user checks signatures and times.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use sigma_discovery::kept_file;
use sigma_net::tls::reason::innermost;

/// A file that was not written for so long is not in use any more.
const FORGOTTEN: Duration = Duration::from_secs(90 * 86_400);

/// The folder of this process.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A folder; it need not be there yet. Old files in it are deleted. Blocks.
    pub(crate) fn open(path: &Path) -> Folder {
        let folder = Folder { path: path.to_owned() };
        folder.sweep(SystemTime::now());
        folder
    }

    /// Returns the stored document of a kind under a name. Blocks.
    pub(crate) fn read(&self, kind: &str, name: &[u8], most_bytes: u64) -> Option<Vec<u8>> {
        let path = self.file(kind, name);
        match kept_file::read(&path, most_bytes) {
            Ok(found) => found,
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "cannot read a stored OCSP response or revocation list; check tls.storage");
                None
            }
        }
    }

    /// Keeps it.
    pub(crate) async fn write(&self, kind: &str, name: &[u8], content: Vec<u8>) {
        let path = self.file(kind, name);
        let shown = path.display().to_string();
        let written = tokio::task::spawn_blocking(move || kept_file::write(&path, &content)).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            tracing::warn!(path = shown, %error, "cannot store an OCSP response or revocation list; check tls.storage");
        }
    }

    fn file(&self, kind: &str, name: &[u8]) -> PathBuf {
        let name: String = digest(&SHA256, name).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        self.path.join(format!("{name}.{kind}"))
    }

    fn sweep(&self, now: SystemTime) {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return };
        for entry in entries.flatten() {
            let is_ours = entry.path().extension().is_some_and(|kind| kind == "ocsp" || kind == "crl");
            let written = entry.metadata().and_then(|found| found.modified());
            let age = written.ok().and_then(|written| now.duration_since(written).ok());
            if is_ours && age.is_some_and(|age| age > FORGOTTEN) {
                // One that stays does no harm.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// One question, and the bounds of its response.
pub(crate) struct Request<'r> {
    pub(crate) url: &'r str,
    /// A body with its media type; None to get.
    pub(crate) body: Option<(&'static str, Vec<u8>)>,
    pub(crate) timeout: Duration,
    pub(crate) max_bytes: usize,
}

impl Request<'_> {
    /// The body of the response.
    pub(crate) async fn ask(self) -> Result<Vec<u8>, String> {
        static CLIENT: OnceLock<Result<reqwest::Client, String>> = OnceLock::new();
        let build = || {
            let client = reqwest::Client::builder()
                // The URL was configured, or is part of a certificate.
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .user_agent(concat!("sigma/", env!("CARGO_PKG_VERSION")));
            client.build().map_err(|error| format!("no HTTP client: {error}"))
        };
        let client = CLIENT.get_or_init(build).as_ref().map_err(String::clone)?;
        let failed = |error: reqwest::Error| format!("cannot request the URL: {}", innermost(&error));
        let request = match self.body {
            None => client.get(self.url),
            Some((kind, body)) => {
                client.post(self.url).header(reqwest::header::CONTENT_TYPE, kind).body(body)
            }
        };
        let mut answer = request.timeout(self.timeout).send().await.map_err(failed)?;
        if answer.status() != reqwest::StatusCode::OK {
            return Err(format!("the URL responds with {}", answer.status().as_u16()));
        }
        let mut bytes = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(failed)? {
            if bytes.len() + part.len() > self.max_bytes {
                return Err(format!("the response is larger than `max_bytes`, {}", self.max_bytes));
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }
}

/// A URL without what may be a secret in it.
pub(crate) fn shown(url: &str) -> String {
    let Ok(mut url) = reqwest::Url::parse(url) else { return "a URL".to_owned() };
    // Neither fails for a URL with a host, which these have.
    let _ = url.set_password(None);
    let _ = url.set_username("");
    url.set_query(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_of_a_url_is_not_said() {
        assert_eq!(shown("http://user:pass@h.test/a.crl?token=1"), "http://h.test/a.crl");
    }

    #[tokio::test]
    async fn stored_documents_last_until_they_are_unwritten_for_long() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("tls");
        let folder = Folder::open(&path);
        assert_eq!(folder.read("ocsp", b"a", 9), None);
        folder.write("ocsp", b"a", b"one".to_vec()).await;
        folder.write("crl", b"a", b"two".to_vec()).await;
        let other = path.join("other.txt");
        std::fs::write(&other, "theirs").expect("a file");
        assert_eq!(folder.read("ocsp", b"a", 9).as_deref(), Some(&b"one"[..]));
        assert_eq!(folder.read("crl", b"a", 2).as_deref(), Some(&b"tw"[..]));
        folder.sweep(SystemTime::now() + FORGOTTEN / 2);
        assert!(folder.read("crl", b"a", 9).is_some());
        folder.sweep(SystemTime::now() + FORGOTTEN * 2);
        assert!(folder.read("crl", b"a", 9).is_none() && other.exists());
    }
}
