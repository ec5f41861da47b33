//! A collector with `POST`.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use serde_json::{Map, Value};
use tokio::sync::OnceCell;

/// Bytes of a response that are read; answers of a collector are short.
const ANSWER_BYTES: usize = 16 * 1024;

/// Bytes of a response that the error log shows.
const SHOWN_BYTES: usize = 512;

/// How long a connection is kept for the next batch.
const IDLE: Duration = Duration::from_secs(5);

/// The address of a collector, and the protocol. The certificate of one with `https` is verified.
#[derive(Debug)]
pub(crate) struct Collector {
    headers: HeaderMap,
    timeout: Duration,
    /// Made with the first batch: it reads the system's certificates.
    client: OnceCell<reqwest::Client>,
}

/// The response of a collector.
#[derive(Debug)]
pub(crate) struct CollectorResponse {
    pub(crate) status: u16,
    /// How long it wants to be left alone.
    pub(crate) retry_after: Option<Duration>,
    /// The beginning of its body.
    pub(crate) body: Vec<u8>,
}

impl CollectorResponse {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// For the error log. The collector's text must not look like lines of it.
    pub(crate) fn reason(&self, url: &reqwest::Url) -> String {
        let shown = &self.body[..self.body.len().min(SHOWN_BYTES)];
        let body = String::from_utf8_lossy(shown).escape_debug().to_string();
        format!("{url} responded with status code[{}] body[{body}]", self.status)
    }
}

impl Collector {
    /// One that is sent these fields with everything, and answers within this time.
    pub(crate) fn new(headers: HeaderMap, timeout: Duration) -> Collector {
        Collector { headers, timeout, client: OnceCell::new() }
    }

    /// Sends a body.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if no response came.
    pub(crate) async fn post(
        &self,
        url: &reqwest::Url,
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<CollectorResponse, String> {
        let content_type = HeaderValue::from_static(content_type);
        let request = self.client().await?.post(url.clone()).header(CONTENT_TYPE, content_type).body(body);
        let mut response =
            request.send().await.map_err(|error| format!("failed to send to {url}: {}", causes(&error)))?;
        let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let (status, retry_after) = (response.status().as_u16(), seconds.map(Duration::from_secs));
        let mut body = Vec::new();
        // The status says enough if the body does not come.
        while body.len() < ANSWER_BYTES
            && let Ok(Some(piece)) = response.chunk().await
        {
            body.extend_from_slice(&piece[..piece.len().min(ANSWER_BYTES - body.len())]);
        }
        Ok(CollectorResponse { status, retry_after, body })
    }

    async fn client(&self) -> Result<&reqwest::Client, String> {
        let make = || async {
            reqwest::Client::builder()
                .default_headers(self.headers.clone())
                .timeout(self.timeout)
                .pool_idle_timeout(IDLE)
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .build()
                .map_err(|error| format!("cannot create the HTTP client: {}", causes(&error)))
        };
        self.client.get_or_try_init(make).await
    }
}

/// Fields that a collector is sent, set at `place`.
///
/// # Errors
/// Returns an error if one cannot be sent.
pub(crate) fn fields(place: &str, set: Option<&Map<String, Value>>) -> Result<HeaderMap, String> {
    let mut fields = HeaderMap::new();
    for (name, value) in set.into_iter().flatten() {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let wrong = || format!("{place}: `{name}` is not a valid header field");
        let field = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        let mut value = HeaderValue::from_str(&text).map_err(|_| wrong())?;
        value.set_sensitive(true);
        fields.insert(field, value);
    }
    Ok(fields)
}

/// An error with everything that led to it, without the address that the message names already.
fn causes(error: &reqwest::Error) -> String {
    let all = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let texts: Vec<String> = all.map(ToString::to_string).collect();
    if texts.is_empty() { error.to_string() } else { texts.join(": ") }
}
