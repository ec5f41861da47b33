//! A document at a URL, polled with `If-None-Match` and `If-Modified-Since`, and verified by a checksum or a signature.

use std::path::Path;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::header::{
    AUTHORIZATION, ETAG, HeaderName, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED,
};
use sigma_config::config_sources::{DocumentUrl, SourceUrl, public_key};

use super::{DocumentSource, hexadecimal};
use crate::http::{Http, RegistryRequest, RegistryResponse, Trust};
use crate::source::{Env, Trouble};

/// The largest part of `interval_ms` that is added at random, so that gateways do not request together.
const JITTER: f64 = 0.1;

/// The limit of a validator of a response.
const VALIDATOR_MAX: usize = 1024;

/// The limit of a checksum or signature.
const SIDECAR_MAX: usize = 4096;

/// The name of the limit in messages.
pub(super) const LIMIT: &str = "config_sources.document_bytes";

/// Returns the limits of an HTTP client for documents.
pub(super) fn env(document_bytes: u32) -> Env {
    let mut env = Env::default();
    env.limits.answer_bytes = document_bytes;
    env
}

/// A document at a URL.
pub(super) struct DocumentAtUrl {
    http: Http,
    settings: DocumentUrl,
    key: Option<[u8; 32]>,
    /// The headers for a conditional request: of the last valid response.
    validators: Vec<(HeaderName, HeaderValue)>,
    has_document: bool,
}

impl DocumentAtUrl {
    pub(super) async fn new(settings: &DocumentUrl, document_bytes: u32) -> Result<DocumentAtUrl, String> {
        let trust = match &settings.ca {
            Some(path) => Trust::Authorities(authorities(path).await?),
            None => Trust::System,
        };
        let timeout = Duration::from_millis(settings.timeout_ms.into());
        let key = settings.public_key.as_deref().map(|text| {
            public_key(text).ok_or_else(|| "`config_sources.urls`: `public_key` is invalid".to_owned())
        });
        Ok(DocumentAtUrl {
            http: Http::new(timeout, trust, &env(document_bytes)).limited_by(LIMIT),
            settings: settings.clone(),
            key: key.transpose()?,
            validators: Vec::new(),
            has_document: false,
        })
    }

    /// Returns a text that differs if documents are verified otherwise.
    pub(super) fn verification(&self) -> String {
        let key = self.key.map(|key| hexadecimal(&key)).unwrap_or_default();
        format!("{} {key}", self.settings.sha256.as_deref().unwrap_or_default())
    }

    async fn ask(
        &self,
        url: &SourceUrl,
        conditions: &[(HeaderName, HeaderValue)],
    ) -> Result<RegistryResponse, Trouble> {
        let within = Duration::from_millis(self.settings.timeout_ms.into());
        let mut question = RegistryRequest::get(url.target(), within);
        if !self.settings.token.reveal().is_empty() {
            question = question.secret(AUTHORIZATION, &format!("Bearer {}", self.settings.token.reveal()))?;
        }
        question.headers.extend(conditions.iter().cloned());
        self.http.ask(url.address(), question).await
    }

    /// Returns a further file of a document.
    async fn sidecar(&self, url: &SourceUrl) -> Result<Vec<u8>, Trouble> {
        let answer = self.ask(url, &[]).await?;
        if answer.status != 200 {
            return Err(Trouble(format!("{url} responded with status {}", answer.status)));
        }
        match answer.body.len() {
            0..=SIDECAR_MAX => Ok(answer.body),
            bytes => Err(Trouble(format!("{url} has {bytes} bytes, and is no checksum or signature"))),
        }
    }

    /// Requests the document; None if it has not changed since the last response, which is possible with
    /// `is_conditional`.
    async fn fetch(&mut self, is_conditional: bool) -> Result<Option<Vec<u8>>, Trouble> {
        let conditions = if is_conditional { &self.validators[..] } else { &[] };
        let answer = self.ask(&self.settings.url, conditions).await?;
        match answer.status {
            200 => {}
            304 if is_conditional => return Ok(None),
            status => {
                let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
                let redirect = if is_redirect { "; redirects are not followed" } else { "" };
                return Err(Trouble(format!(
                    "{} responded with status {status}{redirect}",
                    self.settings.url
                )));
            }
        }
        self.verify(&answer.body).await?;
        self.validators = validators(&answer);
        Ok(Some(answer.body))
    }

    async fn verify(&self, document: &[u8]) -> Result<(), Trouble> {
        let sum = || hexadecimal(digest(&SHA256, document).as_ref());
        if let Some(pinned) = &self.settings.sha256
            && !pinned.eq_ignore_ascii_case(&sum())
        {
            let reason = "the document has another SHA-256 than `sha256` of the settings";
            return Err(Trouble(reason.to_owned()));
        }
        if let Some(url) = &self.settings.sha256_url {
            let text = self.sidecar(url).await?;
            let written = text.split(u8::is_ascii_whitespace).next().unwrap_or_default();
            if !written.eq_ignore_ascii_case(sum().as_bytes()) {
                return Err(Trouble(format!("the document has another SHA-256 than {url} says")));
            }
        }
        if let (Some(key), Some(url)) = (&self.key, self.settings.signature()) {
            let signature = signature(&self.sidecar(&url).await?);
            let key = UnparsedPublicKey::new(&ED25519, key);
            if signature.is_none_or(|signature| key.verify(document, &signature).is_err()) {
                let reason = format!("{url} is not a signature of the document by `public_key`");
                return Err(Trouble(reason));
            }
        }
        Ok(())
    }
}

impl DocumentSource for DocumentAtUrl {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Trouble> {
        // After an error the whole document is requested.
        let is_conditional = std::mem::take(&mut self.has_document);
        if is_conditional {
            let interval = Duration::from_millis(self.settings.interval_ms.into());
            tokio::time::sleep(interval.mul_f64(1.0 + JITTER * fastrand::f64())).await;
        }
        let found = self.fetch(is_conditional).await?;
        self.has_document = true;
        Ok(found)
    }
}

async fn authorities(path: &Path) -> Result<Vec<u8>, String> {
    let (owned, shown) = (path.to_owned(), path.display());
    let read = tokio::task::spawn_blocking(move || std::fs::read(owned)).await;
    let read = read.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    read.map_err(|error| format!("`config_sources.urls`: cannot read `ca` {shown}: {error}"))
}

/// Returns the headers of a conditional request after a response.
fn validators(answer: &RegistryResponse) -> Vec<(HeaderName, HeaderValue)> {
    let of = |from: HeaderName, to: HeaderName| {
        let value = answer.headers.get(from).filter(|value| value.len() <= VALIDATOR_MAX)?;
        Some((to, value.clone()))
    };
    [of(ETAG, IF_NONE_MATCH), of(LAST_MODIFIED, IF_MODIFIED_SINCE)].into_iter().flatten().collect()
}

/// Returns the 64 bytes of a signature, which may be in base64.
fn signature(content: &[u8]) -> Option<[u8; 64]> {
    if let Ok(raw) = content.try_into() {
        return Some(raw);
    }
    let text: Vec<u8> = content.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    BASE64_STANDARD.decode(text).ok()?.try_into().ok()
}
