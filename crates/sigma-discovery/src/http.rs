//! The HTTP client for registries: it follows no redirects and limits responses.

use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Identity, Method, Response, StatusCode, redirect};
use serde_json::Value;
use sigma_config::discovery::RegistryAddress;
use sigma_schema::Confidential;

use crate::source::{Env, Trouble};
use crate::tally::Tally;

/// The size of a text that takes about a millisecond to parse.
const LARGE: usize = 128 * 1024;

/// The limit of a token, which is part of every request.
const TOKEN_MAX: usize = 16 * 1024;

/// The limit of files with tokens and certificates.
const FILE_MAX: u64 = 1 << 20;

/// The trusted certificates.
#[derive(Debug, Clone)]
pub(crate) enum Trust {
    /// The system's authorities
    System,
    /// The authorities in this PEM
    Authorities(Vec<u8>),
    /// Any certificate
    Anybody,
}

/// Sends requests to registries. Built on first use: a machine without certificate authorities still serves. A registry
/// at a Unix socket has no other address.
pub(crate) struct Http {
    connect: Duration,
    /// The limit of a response in bytes.
    most: usize,
    /// The setting with this limit.
    limit: &'static str,
    tally: Arc<Tally>,
    trust: Trust,
    /// The client certificate and its key in PEM.
    identity: Option<Vec<u8>>,
    trusting: OnceLock<Result<reqwest::Client, Trouble>>,
    verifying: OnceLock<Result<reqwest::Client, Trouble>>,
}

/// A request without its address.
pub(crate) struct RegistryRequest<'q> {
    pub(crate) method: Method,
    /// Path and query, after the address.
    pub(crate) target: &'q str,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<String>,
    /// The total timeout.
    pub(crate) within: Duration,
}

impl<'q> RegistryRequest<'q> {
    pub(crate) fn get(target: &'q str, within: Duration) -> RegistryRequest<'q> {
        RegistryRequest { method: Method::GET, target, headers: HeaderMap::new(), body: None, within }
    }

    /// Adds a header with a secret value, unless that is empty.
    pub(crate) fn secret(mut self, name: HeaderName, value: &str) -> Result<RegistryRequest<'q>, Trouble> {
        if !value.is_empty() {
            let mut value = HeaderValue::from_str(value).map_err(|_| {
                Trouble(format!(
                    "the secret for `{name}` contains characters that a header field cannot carry"
                ))
            })?;
            value.set_sensitive(true);
            self.headers.insert(name, value);
        }
        Ok(self)
    }
}

/// A whole response.
#[derive(Debug)]
pub(crate) struct RegistryResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl RegistryResponse {
    /// Returns the body, if the status is a success.
    pub(crate) async fn json(self, from: &RegistryAddress) -> Result<Value, Trouble> {
        if self.status != 200 {
            return Err(Trouble(format!("{from} responded with status {}", self.status)));
        }
        let parsed = parsed(self.body).await;
        parsed.map_err(|error| Trouble(format!("{from} did not return JSON: {error}")))
    }
}

impl Http {
    pub(crate) fn new(connect: Duration, trust: Trust, env: &Env) -> Http {
        let (most, tally) = (env.limits.answer_bytes as usize, Arc::clone(&env.tally));
        let limit = "discovery.limits.answer_bytes";
        let (trusting, verifying) = (OnceLock::new(), OnceLock::new());
        Http { connect, most, limit, tally, trust, identity: None, trusting, verifying }
    }

    /// Adds a client certificate with its key, in PEM.
    pub(crate) fn identified(self, pem: Vec<u8>) -> Http {
        Http { identity: Some(pem), ..self }
    }

    /// Names another setting as the limit of a response.
    pub(crate) fn limited_by(self, limit: &'static str) -> Http {
        Http { limit, ..self }
    }

    /// Returns the counters of its requests.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    fn client(&self, address: &RegistryAddress) -> Result<&reqwest::Client, Trouble> {
        // Cleartext needs no certificates, so this machine's are not read.
        let is_clear = address.base().starts_with("http://");
        let (cell, trust) = match is_clear || matches!(self.trust, Trust::Anybody) {
            true => (&self.trusting, &Trust::Anybody),
            false => (&self.verifying, &self.trust),
        };
        cell.get_or_init(|| self.built(trust, address)).as_ref().map_err(Trouble::clone)
    }

    fn built(&self, trust: &Trust, address: &RegistryAddress) -> Result<reqwest::Client, Trouble> {
        let unusable =
            |error: reqwest::Error| Trouble(format!("cannot use TLS on this machine: {}", causes(&error)));
        let mut builder = reqwest::Client::builder()
            .connect_timeout(self.connect)
            // A token is only for its configured address.
            .redirect(redirect::Policy::none())
            .no_proxy()
            .tcp_keepalive(Duration::from_secs(15))
            .user_agent(concat!("sigma/", env!("CARGO_PKG_VERSION")));
        builder = match trust {
            Trust::System => builder,
            Trust::Anybody => builder.tls_danger_accept_invalid_certs(true),
            Trust::Authorities(pem) => {
                builder.tls_certs_only(Certificate::from_pem_bundle(pem).map_err(unusable)?)
            }
        };
        if let Some(pem) = &self.identity {
            builder = builder.identity(Identity::from_pem(pem).map_err(unusable)?);
        }
        if let Some(path) = address.socket() {
            builder = builder.unix_socket(path);
        }
        builder.build().map_err(unusable)
    }

    /// Sends a request, and returns the response before its body.
    pub(crate) async fn open(
        &self,
        address: &RegistryAddress,
        question: RegistryRequest<'_>,
    ) -> Result<Response, Trouble> {
        let url = format!("{}{}", address.base(), question.target);
        let mut request = self.client(address)?.request(question.method, url).timeout(question.within);
        if let Some((user, password)) = address.user()
            && !question.headers.contains_key(AUTHORIZATION)
        {
            request = request.basic_auth(user, Some(password));
        }
        if let Some(body) = question.body {
            request = request.body(body);
        }
        self.tally.asked();
        let sent = request.headers(question.headers).send().await;
        if sent.as_ref().map_or(true, |response| !is_answer(response.status())) {
            self.tally.unanswered();
        }
        sent.map_err(|error| trouble(address, error))
    }

    /// Sends a request, and reads the whole response.
    pub(crate) async fn ask(
        &self,
        address: &RegistryAddress,
        question: RegistryRequest<'_>,
    ) -> Result<RegistryResponse, Trouble> {
        let mut response = self.open(address, question).await?;
        let (status, headers) = (response.status().as_u16(), std::mem::take(response.headers_mut()));
        let mut body = Vec::new();
        loop {
            let failed = match response.chunk().await {
                Ok(Some(part)) if body.len() + part.len() > self.most => self.too_long(address),
                Ok(Some(part)) => {
                    body.extend_from_slice(&part);
                    continue;
                }
                Ok(None) => return Ok(RegistryResponse { status, headers, body }),
                Err(error) => trouble(address, error),
            };
            self.tally.unanswered();
            return Err(failed);
        }
    }

    fn too_long(&self, address: &RegistryAddress) -> Trouble {
        let (most, limit) = (self.most, self.limit);
        Trouble(format!("the response of {address} exceeds {most} bytes (`{limit}`)"))
    }
}

/// Parses a text; a large one on a separate thread, since this one does all control work of the gateway.
pub(crate) async fn parsed(text: Vec<u8>) -> Result<Value, serde_json::Error> {
    if text.len() < LARGE {
        return serde_json::from_slice(&text);
    }
    let parsed = tokio::task::spawn_blocking(move || serde_json::from_slice(&text)).await;
    // The thread has panicked, or the process ends.
    parsed.unwrap_or_else(|error| Err(serde::de::Error::custom(error)))
}

/// Returns the token in a response to a login.
pub(crate) fn token(given: Option<&Value>, from: &RegistryAddress) -> Result<Confidential, Trouble> {
    let token = given.and_then(Value::as_str).filter(|token| !token.is_empty() && token.len() <= TOKEN_MAX);
    let none = || Trouble(format!("{} returned no valid token for the user", from.base()));
    token.map(Confidential::from).ok_or_else(none)
}

/// Returns true if a status is a valid response: "not found" is one too.
fn is_answer(status: StatusCode) -> bool {
    status.is_success() || status == StatusCode::NOT_FOUND
}

/// Returns the error without the address, which may contain a secret.
fn trouble(address: &RegistryAddress, error: reqwest::Error) -> Trouble {
    if error.is_timeout() {
        return Trouble(format!("{address} did not respond in time"));
    }
    Trouble(format!("{address}: {}", causes(&error.without_url())))
}

/// Reads a file with a token or certificates.
pub(crate) async fn read_file(path: PathBuf) -> Result<Vec<u8>, Trouble> {
    let shown = path.display().to_string();
    let read = tokio::task::spawn_blocking(move || {
        use std::io::Read as _;
        let mut text = Vec::new();
        std::fs::File::open(path)?.take(FILE_MAX).read_to_end(&mut text).map(|_| text)
    });
    let read = read.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    read.map_err(|error| Trouble(format!("cannot read {shown}: {error}")))
}

/// Returns an error with all its causes.
pub(crate) fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// The members of one registry, of which one is used until it fails.
pub(crate) struct Members {
    addresses: Vec<RegistryAddress>,
    at: usize,
}

impl Members {
    pub(crate) fn new(addresses: &[RegistryAddress]) -> Members {
        Members { addresses: addresses.to_vec(), at: 0 }
    }

    /// Returns them in random order, so that many gateways do not all use the same one.
    pub(crate) fn shuffled(addresses: &[RegistryAddress]) -> Members {
        let mut addresses = addresses.to_vec();
        fastrand::shuffle(&mut addresses);
        Members { addresses, at: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the member in use.
    pub(crate) fn current(&self) -> &RegistryAddress {
        &self.addresses[self.at]
    }

    /// Switches to the next member after a failure.
    pub(crate) fn turn(&mut self) {
        self.at = (self.at + 1) % self.addresses.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn texts_are_parsed_whatever_their_size() {
        for len in [1, LARGE, 4 * LARGE] {
            let text = serde_json::json!(["x".repeat(len)]);
            assert_eq!(parsed(text.to_string().into_bytes()).await.ok(), Some(text));
            assert!(parsed("[".repeat(len).into_bytes()).await.is_err(), "{len}");
        }
    }

    /// Sends these pieces as the response to every request, with pauses.
    async fn answering(pieces: Vec<Vec<u8>>, pause: Duration) -> RegistryAddress {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let pieces = pieces.clone();
                tokio::spawn(async move {
                    let _ = socket.read(&mut [0; 4096]).await;
                    let mut pace = tokio::time::interval(pause);
                    for piece in pieces {
                        pace.tick().await;
                        if socket.write_all(&piece).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address.parse().expect("an address")
    }

    async fn asked(address: &RegistryAddress, within: u64) -> Result<RegistryResponse, Trouble> {
        let http = Http::new(Duration::from_secs(20), Trust::System, &Env::of(10, 10));
        http.ask(address, RegistryRequest::get("/", Duration::from_millis(within))).await
    }

    #[test]
    fn tokens_are_bounded() {
        let address: RegistryAddress = "http://h:1".parse().expect("an address");
        let is_one = |given: &Value| token(Some(given), &address).is_ok();
        assert!(is_one(&"t".into()) && is_one(&"t".repeat(TOKEN_MAX).into()));
        assert!(!is_one(&"".into()) && !is_one(&1.into()) && !is_one(&"t".repeat(TOKEN_MAX + 1).into()));
        assert!(token(None, &address).is_err());
    }

    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\n";

    #[tokio::test]
    async fn a_response_has_limits_of_time_and_bytes() {
        // A byte now and then, without an end.
        let mut drip = vec![[HEAD, b"Content-Length: 100000\r\n\r\n"].concat()];
        drip.resize(2000, b" ".to_vec());
        let slow = answering(drip, Duration::from_millis(50)).await;
        let trouble = asked(&slow, 500).await.expect_err("an end").0;
        assert!(trouble.contains("did not respond in time"), "{trouble}");
        // More than the limit, with any declared length.
        let mut flood = vec![[HEAD, b"Connection: close\r\n\r\n"].concat()];
        flood.resize(100, vec![b' '; 4096]);
        let long = answering(flood, Duration::from_micros(1)).await;
        let trouble = asked(&long, 20_000).await.expect_err("an end").0;
        assert!(trouble.contains("exceeds 65536 bytes"), "{trouble}");
        // A head without an end.
        let mut head = vec![HEAD.to_vec()];
        head.resize(20_000, [&b"X: "[..], &[b'x'; 1000], b"\r\n"].concat());
        let heads = answering(head, Duration::from_micros(1)).await;
        assert!(asked(&heads, 20_000).await.is_err());
    }

    #[tokio::test]
    async fn compressed_responses_stay_compressed() {
        // A compressed response, which could grow a thousand times, is not decompressed.
        let head = b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n";
        let packed =
            answering(vec![[HEAD, &head[..], &[0x1f, 0x8b, 8, 0]].concat()], Duration::from_micros(1)).await;
        let answer = asked(&packed, 20_000).await.expect("an answer");
        assert_eq!(answer.body, [0x1f, 0x8b, 8, 0]);
        assert!(answer.json(&packed).await.is_err());
    }
}
