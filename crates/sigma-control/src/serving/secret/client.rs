//! The HTTP client that asks secret managers.

use std::sync::OnceLock;
use std::time::Duration;

use reqwest::{Method, Url, redirect};
use sigma_net::tls::reason::causes;

use super::Failure;

/// Largest response. AWS allows 64 KiB for a secret, Vault 1 MiB for a request.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Whether the certificate of the other side must be valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verify {
    Certificate,
    Nothing,
}

/// Built when it is first needed: a machine without any certificate authority serves all the same.
pub(super) struct Client {
    timeout: Duration,
    verifying: OnceLock<Result<reqwest::Client, Failure>>,
    trusting: OnceLock<Result<reqwest::Client, Failure>>,
}

/// A request with everything that it is sent with.
pub(super) struct Request<'a> {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: &'a [(&'a str, &'a str)],
    pub(super) body: String,
    pub(super) verify: Verify,
}

pub(super) struct SecretResponse {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Client {
    pub(super) fn new(timeout: Duration) -> Client {
        Client { timeout, verifying: OnceLock::new(), trusting: OnceLock::new() }
    }

    fn built(&self, verify: Verify) -> Result<&reqwest::Client, Failure> {
        let (cell, trusting) = match verify {
            Verify::Certificate => (&self.verifying, false),
            Verify::Nothing => (&self.trusting, true),
        };
        let build = || {
            reqwest::Client::builder()
                .timeout(self.timeout)
                // A token is for the address that it was configured with, and for no other.
                .redirect(redirect::Policy::none())
                .no_proxy()
                .user_agent(concat!("sigma/", env!("CARGO_PKG_VERSION")))
                .tls_danger_accept_invalid_certs(trusting)
                .build()
                .map_err(|error| {
                    Failure::Refused(format!("cannot use TLS on this machine: {}", causes(&error)))
                })
        };
        cell.get_or_init(build).as_ref().map_err(Failure::clone)
    }

    /// Sends the request and reads the whole response. Any status is a response.
    pub(super) async fn ask(&self, request: Request<'_>) -> Result<SecretResponse, Failure> {
        let client = match request.url.scheme() {
            // There is no certificate, so the ones of this machine need not be read.
            "http" => self.built(Verify::Nothing)?,
            _ => self.built(request.verify)?,
        };
        let host = request.url.host_str().unwrap_or_default().to_owned();
        let failed = |error: reqwest::Error| failure(&host, error);
        let mut builder = client.request(request.method, request.url).body(request.body);
        for (name, value) in request.headers {
            builder = builder.header(*name, *value);
        }
        let mut response = builder.send().await.map_err(failed)?;
        let status = response.status().as_u16();
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(failed)? {
            if body.len() + part.len() > MAX_ANSWER_BYTES {
                let reason = format!("the response of `{host}` exceeds {MAX_ANSWER_BYTES} bytes");
                return Err(Failure::Refused(reason));
            }
            body.extend_from_slice(&part);
        }
        Ok(SecretResponse { status, body })
    }
}

/// Reads an address of the configuration.
pub(super) fn address(text: &str) -> Result<Url, Failure> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    // Not shown: it may hold a user and a password.
    url.ok_or_else(|| {
        Failure::Refused(
            "an address of the secret resource does not begin with http:// or https://".to_owned(),
        )
    })
}

/// `base` with segments behind its path. A segment that would lead elsewhere is refused, so that a reference
/// stays within its access.
pub(super) fn below<'a>(mut base: Url, segments: impl IntoIterator<Item = &'a str>) -> Result<Url, Failure> {
    {
        let no_path = |()| Failure::Refused("the address may not have a path".to_owned());
        let mut path = base.path_segments_mut().map_err(no_path)?;
        path.pop_if_empty();
        for segment in segments {
            if segment.is_empty() || segment == "." || segment == ".." {
                let reason = "a key may not contain empty, `.` or `..` segments".to_owned();
                return Err(Failure::Refused(reason));
            }
            path.push(segment);
        }
    }
    Ok(base)
}

/// A response that is neither the secret nor known to mean anything special.
pub(super) fn unexpected(what: &str, status: u16) -> Failure {
    let reason = format!("{what} responded with status {status}");
    // Too many requests, and any error of the other side, pass with time.
    if status == 429 || status >= 500 { Failure::Unreachable(reason) } else { Failure::Refused(reason) }
}

fn failure(host: &str, error: reqwest::Error) -> Failure {
    if error.is_timeout() {
        return Failure::Unreachable(format!("`{host}` did not respond in time"));
    }
    let refused = error.is_builder();
    // The address may hold a user and a password.
    let error = error.without_url();
    let reason = format!("`{host}`: {}", causes(&error));
    if refused { Failure::Refused(reason) } else { Failure::Unreachable(reason) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_their_base() {
        let check = |base: &str, segments: &[&str], expected: Option<&str>| {
            let url = address(base).and_then(|base| below(base, segments.iter().copied()));
            assert_eq!(url.ok().as_ref().map(Url::as_str), expected, "{base} {segments:?}");
        };
        check("http://h:8200", &["v1", "kv", "a"], Some("http://h:8200/v1/kv/a"));
        check("http://h/base/", &["v1"], Some("http://h/base/v1"));
        check("http://h", &["a?b", "c#d", "%2e%2e", "e f"], Some("http://h/a%3Fb/c%23d/%252e%252e/e%20f"));
        check("http://h", &["a", "..", "b"], None);
        check("http://h", &["."], None);
        check("http://h", &[""], None);
        check("ftp://h", &["a"], None);
        check("h:1", &["a"], None);
    }
}
