//! Requests to services that give credentials: bounded in time and size, without redirects and proxies.

use std::net::IpAddr;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Method, Url, redirect};
use serde_json::Value;
use sigma_net::tls::reason::causes;

/// Largest response, and largest file with a token.
const MAX_BYTES: usize = 64 << 10;

/// Addresses at which services of the machine itself give credentials without TLS.
const OF_MACHINE: [&str; 5] =
    ["169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::23", "fd00:ec2::254"];

/// The client. Made when first needed.
pub(super) struct Caller {
    timeout: Duration,
    client: OnceLock<Result<reqwest::Client, String>>,
}

/// A request.
pub(super) struct CloudRequest<'q> {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) fields: &'q [(&'q str, &'q str)],
    /// The body with its content type.
    pub(super) body: Option<(&'static str, String)>,
}

impl CloudRequest<'_> {
    pub(super) fn get<'q>(url: Url, fields: &'q [(&'q str, &'q str)]) -> CloudRequest<'q> {
        CloudRequest { method: Method::GET, url, fields, body: None }
    }
}

/// A whole response with status 200.
pub(super) struct CloudResponse {
    pub(super) fields: HeaderMap,
    pub(super) body: String,
}

impl CloudResponse {
    pub(super) fn json(&self) -> Result<Value, String> {
        // The error could show a piece of a credential.
        serde_json::from_str(&self.body).map_err(|_| "the response is not JSON".to_owned())
    }
}

impl Caller {
    pub(super) fn new(timeout_ms: u32) -> Caller {
        Caller { timeout: Duration::from_millis(timeout_ms.into()), client: OnceLock::new() }
    }

    fn client(&self) -> Result<&reqwest::Client, String> {
        let made = self.client.get_or_init(|| {
            let builder = reqwest::Client::builder()
                .timeout(self.timeout)
                // A token is for the configured address only.
                .redirect(redirect::Policy::none())
                .no_proxy()
                .user_agent(concat!("sigma/", env!("CARGO_PKG_VERSION")));
            builder.build().map_err(|error| format!("cannot use TLS on this machine: {}", causes(&error)))
        });
        made.as_ref().map_err(String::clone)
    }

    /// Sends a request; any status but 200 is an error.
    ///
    /// # Errors
    /// Returns an error, which is a sentence without secrets, if no such response comes in time.
    pub(super) async fn ask(&self, question: CloudRequest<'_>) -> Result<CloudResponse, String> {
        let host = question.url.host_str().unwrap_or_default().to_owned();
        let failed = |error: reqwest::Error| match error.is_timeout() {
            true => format!("`{host}` did not respond in time"),
            false => format!("`{host}`: {}", causes(&error.without_url())),
        };
        let mut request = self.client()?.request(question.method, question.url);
        for (name, value) in question.fields {
            request = request.header(*name, *value);
        }
        if let Some((kind, body)) = question.body {
            request = request.header("content-type", kind).body(body);
        }
        let mut response = request.send().await.map_err(failed)?;
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(failed)? {
            if body.len() + part.len() > MAX_BYTES {
                return Err(format!("the response of `{host}` exceeds {MAX_BYTES} bytes"));
            }
            body.extend_from_slice(&part);
        }
        match response.status().as_u16() {
            200 => {
                let body =
                    String::from_utf8(body).map_err(|_| format!("the response of `{host}` is not UTF-8"))?;
                Ok(CloudResponse { fields: std::mem::take(response.headers_mut()), body })
            }
            status => Err(format!("`{host}` responded with status {status}")),
        }
    }
}

/// Returns `path` at a base address, which has TLS, or leads to this machine.
///
/// # Errors
/// Returns an error, which is a sentence, if the base address is invalid.
pub(super) fn at(base: &str, path: &str) -> Result<Url, String> {
    let url = Url::parse(&format!("{}{path}", base.trim_end_matches('/')));
    let url = url.map_err(|error| format!("`{base}` is not an address: {error}"))?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let is_local = host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let is_of_machine = is_local || OF_MACHINE.contains(&host) || host == "metadata.google.internal";
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_of_machine => Ok(url),
        _ => Err(format!("`{base}` is not https: credentials would be sent in cleartext")),
    }
}

/// Returns the text of a small file, without white space around it.
///
/// # Errors
/// Returns an error, which is a sentence, if the file cannot be read.
pub(super) async fn file(path: &Path) -> Result<String, String> {
    let shown = path.display().to_string();
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        use std::io::Read as _;
        let mut text = String::new();
        std::fs::File::open(path)?.take(MAX_BYTES as u64).read_to_string(&mut text).map(|_| text)
    });
    let read = read.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    let text = read.map_err(|error| format!("cannot read {shown}: {error}"))?;
    Ok(text.trim().to_owned())
}
