//! The HTTP client that asks registries: it follows no redirect and reads no more than it may.

use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Method, Response, StatusCode, redirect};
use serde_json::Value;
use sigma_config::discovery::RegistryAddress;
use sigma_schema::Confidential;

use crate::source::{Env, Trouble};
use crate::tally::Tally;

/// Bytes of a text that takes about a millisecond to parse.
const LARGE: usize = 128 * 1024;

/// Bytes of a token; it goes with every question.
const TOKEN_MAX: usize = 16 * 1024;

/// Whose certificates are believed.
#[derive(Debug, Clone)]
pub(crate) enum Trust {
    /// Those of the authorities of the system.
    System,
    /// Those of the authorities in this PEM.
    Authorities(Vec<u8>),
    /// Any.
    Anybody,
}

/// Makes requests to registries. Built when it is first needed: a machine without any certificate
/// authority serves all the same.
pub(crate) struct Http {
    connect: Duration,
    /// Bytes of an answer.
    most: usize,
    tally: Arc<Tally>,
    trust: Trust,
    trusting: OnceLock<Result<reqwest::Client, Trouble>>,
    verifying: OnceLock<Result<reqwest::Client, Trouble>>,
}

/// A request without its address.
pub(crate) struct Question<'q> {
    pub(crate) method: Method,
    /// Path and query, behind the address.
    pub(crate) target: &'q str,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<String>,
    /// The time for all of it.
    pub(crate) within: Duration,
}

impl<'q> Question<'q> {
    pub(crate) fn get(target: &'q str, within: Duration) -> Question<'q> {
        Question { method: Method::GET, target, headers: HeaderMap::new(), body: None, within }
    }

    /// With a header whose value is a secret, unless that is empty.
    pub(crate) fn secret(mut self, name: HeaderName, value: &str) -> Result<Question<'q>, Trouble> {
        if !value.is_empty() {
            let mut value = HeaderValue::from_str(value).map_err(|_| {
                Trouble(format!("the secret for `{name}` has characters that cannot be sent"))
            })?;
            value.set_sensitive(true);
            self.headers.insert(name, value);
        }
        Ok(self)
    }
}

/// The whole of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The body, if the status says that it is what was asked for.
    pub(crate) async fn json(self, from: &RegistryAddress) -> Result<Value, Trouble> {
        if self.status != 200 {
            return Err(Trouble(format!("{} answered status {}", from.base(), self.status)));
        }
        let parsed = parsed(self.body).await;
        parsed.map_err(|error| Trouble(format!("{} answered no JSON: {error}", from.base())))
    }
}

impl Http {
    pub(crate) fn new(connect: Duration, trust: Trust, env: &Env) -> Http {
        let (most, tally) = (env.limits.answer_bytes as usize, Arc::clone(&env.tally));
        Http { connect, most, tally, trust, trusting: OnceLock::new(), verifying: OnceLock::new() }
    }

    /// Where its requests are counted.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    fn client(&self, address: &RegistryAddress) -> Result<&reqwest::Client, Trouble> {
        // In the clear there is no certificate, so that those of this machine need not be read.
        let is_clear = address.base().starts_with("http://");
        let (cell, trust) = match is_clear || matches!(self.trust, Trust::Anybody) {
            true => (&self.trusting, &Trust::Anybody),
            false => (&self.verifying, &self.trust),
        };
        cell.get_or_init(|| built(self.connect, trust)).as_ref().map_err(Trouble::clone)
    }

    /// Asks, and returns the answer with its body still to come.
    pub(crate) async fn open(
        &self,
        address: &RegistryAddress,
        question: Question<'_>,
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

    /// Asks, and reads the whole answer.
    pub(crate) async fn ask(
        &self,
        address: &RegistryAddress,
        question: Question<'_>,
    ) -> Result<Answer, Trouble> {
        let mut response = self.open(address, question).await?;
        let (status, headers) = (response.status().as_u16(), std::mem::take(response.headers_mut()));
        let mut body = Vec::new();
        loop {
            let failed = match response.chunk().await {
                Ok(Some(part)) if body.len() + part.len() > self.most => too_long(address, self.most),
                Ok(Some(part)) => {
                    body.extend_from_slice(&part);
                    continue;
                }
                Ok(None) => return Ok(Answer { status, headers, body }),
                Err(error) => trouble(address, error),
            };
            self.tally.unanswered();
            return Err(failed);
        }
    }
}

/// Parses a text: a large one on a thread of its own, since this one is the gateway's for all that is not
/// traffic.
pub(crate) async fn parsed(text: Vec<u8>) -> Result<Value, serde_json::Error> {
    if text.len() < LARGE {
        return serde_json::from_slice(&text);
    }
    let parsed = tokio::task::spawn_blocking(move || serde_json::from_slice(&text)).await;
    // It can only have panicked, or the process is ending.
    parsed.unwrap_or_else(|error| Err(serde::de::Error::custom(error)))
}

/// The token that an answer gives to a user.
pub(crate) fn token(given: Option<&Value>, from: &RegistryAddress) -> Result<Confidential, Trouble> {
    let token = given.and_then(Value::as_str).filter(|token| !token.is_empty() && token.len() <= TOKEN_MAX);
    let none = || Trouble(format!("{} gave no token for its user that can be sent", from.base()));
    token.map(Confidential::from).ok_or_else(none)
}

/// Whether a status says something of what was asked for: that it is not there is an answer as well.
fn is_answer(status: StatusCode) -> bool {
    status.is_success() || status == StatusCode::NOT_FOUND
}

/// More came than `discovery.limits.answer_bytes`.
fn too_long(address: &RegistryAddress, most: usize) -> Trouble {
    let base = address.base();
    Trouble(format!("{base} answered more than {most} bytes (`discovery.limits.answer_bytes`)"))
}

/// What went wrong, without the address, which may hold a secret.
fn trouble(address: &RegistryAddress, error: reqwest::Error) -> Trouble {
    let base = address.base();
    if error.is_timeout() {
        return Trouble(format!("{base} did not answer in time"));
    }
    Trouble(format!("{base}: {}", causes(&error.without_url())))
}

fn built(connect: Duration, trust: &Trust) -> Result<reqwest::Client, Trouble> {
    let unusable = |error: reqwest::Error| Trouble(format!("no TLS on this machine: {}", causes(&error)));
    let mut builder = reqwest::Client::builder()
        .connect_timeout(connect)
        // A token is for the address that it was configured with, and for no other.
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
    builder.build().map_err(unusable)
}

/// An error with everything that led to it.
pub(crate) fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// The members of one registry, of which one is asked until it fails.
pub(crate) struct Members {
    addresses: Vec<RegistryAddress>,
    at: usize,
}

impl Members {
    pub(crate) fn new(addresses: &[RegistryAddress]) -> Members {
        Members { addresses: addresses.to_vec(), at: 0 }
    }

    /// In random order: many gateways do not all ask the same one.
    pub(crate) fn shuffled(addresses: &[RegistryAddress]) -> Members {
        let mut addresses = addresses.to_vec();
        fastrand::shuffle(&mut addresses);
        Members { addresses, at: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// The one that is asked.
    pub(crate) fn current(&self) -> &RegistryAddress {
        &self.addresses[self.at]
    }

    /// It has failed: the next one is asked from now on.
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

    /// Answers every question with these pieces, so long after one another.
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

    async fn asked(address: &RegistryAddress, within: u64) -> Result<Answer, Trouble> {
        let http = Http::new(Duration::from_secs(20), Trust::System, &Env::of(10, 10));
        http.ask(address, Question::get("/", Duration::from_millis(within))).await
    }

    #[test]
    fn tokens_have_an_end() {
        let address: RegistryAddress = "http://h:1".parse().expect("an address");
        let is_one = |given: &Value| token(Some(given), &address).is_ok();
        assert!(is_one(&"t".into()) && is_one(&"t".repeat(TOKEN_MAX).into()));
        assert!(!is_one(&"".into()) && !is_one(&1.into()) && !is_one(&"t".repeat(TOKEN_MAX + 1).into()));
        assert!(token(None, &address).is_err());
    }

    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\n";

    #[tokio::test]
    async fn an_answer_has_an_end_in_time_and_in_bytes() {
        // A byte now and then, without an end.
        let mut drip = vec![[HEAD, b"Content-Length: 100000\r\n\r\n"].concat()];
        drip.resize(2000, b" ".to_vec());
        let slow = answering(drip, Duration::from_millis(50)).await;
        let trouble = asked(&slow, 500).await.expect_err("an end").0;
        assert!(trouble.contains("did not answer in time"), "{trouble}");
        // More than there may be, whatever the head says.
        let mut flood = vec![[HEAD, b"Connection: close\r\n\r\n"].concat()];
        flood.resize(100, vec![b' '; 4096]);
        let long = answering(flood, Duration::from_micros(1)).await;
        let trouble = asked(&long, 20_000).await.expect_err("an end").0;
        assert!(trouble.contains("more than 65536 bytes"), "{trouble}");
        // A head without an end.
        let mut head = vec![HEAD.to_vec()];
        head.resize(20_000, [&b"X: "[..], &[b'x'; 1000], b"\r\n"].concat());
        let heads = answering(head, Duration::from_micros(1)).await;
        assert!(asked(&heads, 20_000).await.is_err());
    }

    #[tokio::test]
    async fn what_is_compressed_stays_so() {
        // What becomes a thousand times as much is not unpacked.
        let head = b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n";
        let packed =
            answering(vec![[HEAD, &head[..], &[0x1f, 0x8b, 8, 0]].concat()], Duration::from_micros(1)).await;
        let answer = asked(&packed, 20_000).await.expect("an answer");
        assert_eq!(answer.body, [0x1f, 0x8b, 8, 0]);
        assert!(answer.json(&packed).await.is_err());
    }
}
