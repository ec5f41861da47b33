//! The source of tokens for nodes: a server that is queried in parallel with the traffic.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_plugin::{Env, Node};
use sigma_schema::Confidential;
use tokio::sync::watch;

use super::lifetime::{Advice, Lifetime, Times};
use crate::shared::form::{Form, escaped};
use crate::shared::tokens::{Address, Reply, Web, WebRequest, WebSettings, beside, object_of};
use sigma_plugin_kit::clock::process_ms;
use sigma_plugin_kit::decisions::{Key, key};
use sigma_plugin_kit::log_throttle::LogThrottle;

/// A token endpoint, and the gateway's credentials for it.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Settings {
    /// The URL of the token endpoint.
    token_endpoint: Address,
    /// Client id of the gateway at the server.
    #[schemars(length(min = 1, max = 1024))]
    client_id: String,
    /// The secret of this client.
    #[schemars(length(min = 1))]
    client_secret: Confidential,
    /// Where id and secret are sent: in `Authorization`, or in the form.
    #[schemars(extend("default" = "client_secret_basic"))]
    client_auth: ClientAuth,
    /// The requested scopes, separated by spaces.
    #[schemars(length(min = 1, max = 4096))]
    scope: Option<String>,
    /// The audience of the token, by name.
    #[schemars(length(min = 1, max = 4096))]
    audience: Option<String>,
    /// The audience of the token, by URL (RFC 8707).
    #[schemars(length(min = 1, max = 4096))]
    resource: Option<String>,
    /// Timeout in milliseconds for the server's response.
    #[schemars(range(min = 1, max = 60_000), extend("default" = 3000))]
    timeout: u64,
    /// Whether the server's certificate is verified.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    /// Seconds before its expiry at which a token is renewed.
    #[schemars(range(min = 1, max = 3600), extend("default" = 30))]
    refresh_before: u64,
    /// Lifetime of a token in seconds, if the server does not send it.
    #[schemars(range(min = 1, max = 86_400), extend("default" = 60))]
    fallback_lifetime: u64,
    /// Milliseconds until a failed request to the server is repeated.
    #[schemars(range(min = 1, max = 60_000), extend("default" = 1000))]
    retry_interval: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ClientAuth {
    ClientSecretBasic,
    ClientSecretPost,
}

/// A token that a node gets.
pub(super) type Token = Arc<str>;

/// A token, and for how many milliseconds it is good.
pub(super) struct Granted {
    pub(super) token: Token,
    pub(super) lifetime_ms: u64,
}

/// Why there is no token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// The server refuses the client's token.
    Subject,
    /// The server cannot be reached, or refuses the gateway's request: a sentence.
    Server(String),
}

/// A server of tokens.
pub(super) struct TokenServer {
    settings: Settings,
    web: Web,
}

/// Most bytes of a token: nodes take no more in one line.
const TOKEN_BYTES: usize = 8 << 10;

/// Most seconds for which a token is believed to be good.
const LIFETIME_S: f64 = 86_400.0;

impl TokenServer {
    pub(super) fn new(settings: Settings) -> TokenServer {
        let timeout = Duration::from_millis(settings.timeout);
        let web = Web::new(WebSettings::new(timeout, settings.ssl_verify));
        TokenServer { settings, web }
    }

    /// When its tokens are used.
    pub(super) fn rule(&self) -> Lifetime {
        let Settings { refresh_before, retry_interval, .. } = self.settings;
        Lifetime { refresh_before_ms: refresh_before * 1000, pause_ms: retry_interval }
    }

    /// All that tells it from another one, and these parts.
    pub(super) fn key(&self, more: &[&[u8]]) -> Key {
        let Settings { token_endpoint, client_id, client_secret, client_auth, .. } = &self.settings;
        let Settings { scope, audience, resource, timeout, ssl_verify, .. } = &self.settings;
        let rest = format!(
            "{client_auth:?} {scope:?} {audience:?} {resource:?} {timeout} {ssl_verify} {:?} {}",
            self.rule(),
            self.settings.fallback_lifetime
        );
        let own =
            [token_endpoint.to_string().into_bytes(), client_id.clone().into_bytes(), rest.into_bytes()];
        let own = own.iter().map(Vec::as_slice).chain([client_secret.reveal().as_bytes()]);
        key(own.chain(more.iter().copied()))
    }

    /// Requests a token with these fields besides those that say who asks and what for.
    pub(super) async fn grant(&self, fields: &[(&str, &str)]) -> Result<Granted, Denied> {
        let Settings { client_id, client_secret, scope, audience, resource, .. } = &self.settings;
        let mut pairs = fields.to_vec();
        for (name, value) in [("scope", scope), ("audience", audience), ("resource", resource)] {
            pairs.extend(value.as_deref().map(|value| (name, value)));
        }
        let secret = client_secret.reveal();
        let mut fields = Vec::new();
        match self.settings.client_auth {
            ClientAuth::ClientSecretBasic => {
                // Each of them as in a form (RFC 6749 §2.3.1).
                let [id, secret] = [&**client_id, secret].map(|text| escaped(text.as_bytes()));
                let login = STANDARD.encode(format!("{id}:{secret}"));
                fields.push(("Authorization".to_owned(), format!("Basic {login}").into_bytes()));
            }
            ClientAuth::ClientSecretPost => {
                pairs.extend([("client_id", &**client_id), ("client_secret", secret)]);
            }
        }
        let form = pairs.iter().fold(Form::default(), |form, (name, value)| form.with(name, value));
        let question = WebRequest { form: Some(form.text()), fields };
        let address = &self.settings.token_endpoint;
        let reply = self.web.put(address, question).await.map_err(Denied::Server)?;
        self.read(&reply)
    }

    fn read(&self, reply: &Reply) -> Result<Granted, Denied> {
        let address = &self.settings.token_endpoint;
        let wrong = |reason: &str| Err(Denied::Server(format!("{address}: {reason}")));
        let Some(answer) = object_of(&reply.body) else { return wrong("the response is not a JSON object") };
        if reply.status != 200 {
            // Only names of the RFC, so that no text of a server appears in a log.
            let known = [
                "invalid_grant",
                "invalid_request",
                "invalid_client",
                "unauthorized_client",
                "invalid_scope",
            ];
            let code = answer.get("error").and_then(Value::as_str);
            let code = known.into_iter().find(|known| code == Some(*known)).unwrap_or("an unknown error");
            return match (reply.status, code) {
                // RFC 8693 §2.2.2 has the second for a subject token that is no good.
                (400, "invalid_grant" | "invalid_request") => Err(Denied::Subject),
                (status, code) => wrong(&format!("status {status}, {code}")),
            };
        }
        match self.granted(&answer) {
            Ok(granted) => Ok(granted),
            Err(reason) => wrong(reason),
        }
    }

    fn granted(&self, answer: &Map<String, Value>) -> Result<Granted, &'static str> {
        let token = answer.get("access_token").and_then(Value::as_str).unwrap_or_default();
        if !is_token(token.as_bytes()) {
            return Err("the response has no token that fits into a header field");
        }
        let kind = answer.get("token_type").and_then(Value::as_str);
        if kind.is_some_and(|kind| !kind.eq_ignore_ascii_case("bearer")) {
            return Err("`token_type` is not `Bearer`");
        }
        let seconds = match answer.get("expires_in") {
            None | Some(Value::Null) => self.settings.fallback_lifetime as f64,
            // Some servers write it as a text.
            Some(Value::String(text)) => text.parse().map_err(|_| "`expires_in` is not a number")?,
            Some(number) => number.as_f64().ok_or("`expires_in` is not a number")?,
        };
        if !seconds.is_finite() || seconds <= 0.0 {
            return Err("the token has already expired");
        }
        Ok(Granted { token: token.into(), lifetime_ms: (seconds.min(LIFETIME_S) * 1000.0) as u64 })
    }
}

/// Whether bytes can stand behind `Bearer` (RFC 6750 §2.1).
pub(super) fn is_token(bytes: &[u8]) -> bool {
    let is_of_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
    (1..=TOKEN_BYTES).contains(&bytes.len()) && bytes.iter().all(is_of_token)
}

/// The token of the gateway itself at a server: one for all workers, with one fetch at a time, in parallel
/// with the traffic. Equal settings have one source.
pub(super) struct TokenSource {
    server: TokenServer,
    key: Key,
    held: watch::Sender<SourceState>,
    /// Held while a token is fetched, on the control thread.
    fetching: tokio::sync::Mutex<()>,
    /// Whether a fetch runs in parallel with the traffic.
    refreshing: AtomicBool,
}

/// The state of a source.
#[derive(Clone, Default)]
struct SourceState {
    token: Option<Token>,
    times: Times,
    /// Grows with each attempt to fetch one.
    attempts: u64,
}

/// The sources of the gateway that some configuration names.
#[derive(Default)]
struct Sources(Mutex<HashMap<Key, Weak<TokenSource>>>);

/// A worker's copies of sources, so that it reads shared state only after a change.
#[derive(Default)]
struct SourceCopies(RefCell<HashMap<Key, SourceState>>);

/// Most copies of sources in a worker, before it starts again.
const MOST_SEEN: usize = 1024;

/// The result for a request.
pub(super) enum TokenLookup {
    Token(Token),
    /// A token has to be fetched; then the source is to be requested the last time.
    Waits(std::pin::Pin<Box<dyn Future<Output = ()>>>),
    None,
}

impl TokenSource {
    /// The one source with these settings. For instances to keep, not to be called per request.
    pub(super) fn of(settings: Settings, node: &Node) -> Arc<TokenSource> {
        let server = TokenServer::new(settings);
        let key = server.key(&[]);
        let sources = node.part(Sources::default);
        // A panic elsewhere leaves a table as good as before.
        let mut known = sources.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, source| source.strong_count() > 0);
        if let Some(source) = known.get(&key).and_then(Weak::upgrade) {
            return source;
        }
        let source = Arc::new(TokenSource {
            server,
            key,
            held: watch::Sender::default(),
            fetching: tokio::sync::Mutex::default(),
            refreshing: AtomicBool::new(false),
        });
        known.insert(key, Arc::downgrade(&source));
        source
    }

    /// The token for a request.
    pub(super) fn token(self: &Arc<Self>, env: &Env<'_>, is_last: bool) -> TokenLookup {
        let now_ms = process_ms();
        let seen = env.local.part(SourceCopies::default);
        if let Some(SourceState { token: Some(token), times, .. }) = seen.0.borrow().get(&self.key)
            && times.advise(now_ms) == Advice::Use
        {
            return TokenLookup::Token(Arc::clone(token));
        }
        let held = self.held.borrow().clone();
        let advice = held.times.advise(now_ms);
        let found = match (advice, &held.token) {
            (Advice::Use, Some(token)) => TokenLookup::Token(Arc::clone(token)),
            (Advice::UseAndFetch, Some(token)) => {
                self.refresh(env.node, held.attempts);
                TokenLookup::Token(Arc::clone(token))
            }
            (Advice::Wait, _) if !is_last => {
                let (source, attempts) = (Arc::clone(self), held.attempts);
                let fetched = beside(env.node, async move { source.fetch(attempts).await });
                return TokenLookup::Waits(Box::pin(async move { fetched.await.unwrap_or_default() }));
            }
            _ => return TokenLookup::None,
        };
        let mut seen = seen.0.borrow_mut();
        if seen.len() >= MOST_SEEN {
            seen.clear();
        }
        seen.insert(self.key, held);
        found
    }

    /// Fetches in parallel with the traffic, unless a fetch runs.
    fn refresh(self: &Arc<Self>, node: &Node, attempts: u64) {
        // Read first: workers must not write to memory that others read.
        if self.refreshing.load(Ordering::Relaxed) || self.refreshing.swap(true, Ordering::Relaxed) {
            return;
        }
        let source = Arc::clone(self);
        node.spawn(async move {
            source.fetch(attempts).await;
            source.refreshing.store(false, Ordering::Relaxed);
        });
    }

    /// Fetches a token, unless another caller has since `attempts` attempts were made.
    async fn fetch(&self, attempts: u64) {
        let _one = self.fetching.lock().await;
        let before = self.held.borrow().clone();
        if before.attempts != attempts {
            return;
        }
        let granted = self.server.grant(&[("grant_type", "client_credentials")]).await;
        let (rule, now_ms) = (self.server.rule(), process_ms());
        let attempts = attempts.wrapping_add(1);
        let after = match granted {
            Ok(Granted { token, lifetime_ms }) => {
                SourceState { token: Some(token), times: rule.times(now_ms, lifetime_ms), attempts }
            }
            Err(denied) => {
                complain(&match denied {
                    Denied::Subject => "the server denies the requested token".to_owned(),
                    Denied::Server(reason) => reason,
                });
                SourceState { times: rule.failed(before.times, now_ms), attempts, ..before }
            }
        };
        self.held.send_replace(after);
    }
}

/// Tells operators that a server gives no token.
pub(super) fn complain(reason: &str) {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    if let Some(left_out) = COMPLAINT.due() {
        tracing::error!(reason, left_out, "upstream-auth: cannot get a token");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn server() -> TokenServer {
        let settings = json!({"token_endpoint": "http://idp/token", "client_id": "gw", "client_secret": "s",
            "client_auth": "client_secret_basic", "timeout": 1000, "ssl_verify": true, "refresh_before": 30,
            "fallback_lifetime": 60, "retry_interval": 1000});
        TokenServer::new(Settings::deserialize(settings).unwrap())
    }

    #[test]
    fn answers_of_servers() {
        let server = server();
        let check = |status: u16, body: &str, expected: Result<(&str, u64), &str>| {
            let reply = Reply { status, body: body.as_bytes().to_vec() };
            let read = server.read(&reply);
            let read = match &read {
                Ok(granted) => Ok((&*granted.token, granted.lifetime_ms)),
                Err(Denied::Subject) => Err("subject"),
                Err(Denied::Server(reason)) => Err(reason.strip_prefix("http://idp/token: ").unwrap()),
            };
            assert_eq!(read, expected, "{status} {body}");
        };
        check(
            200,
            r#"{"access_token":"a.b-c","token_type":"Bearer","expires_in":300}"#,
            Ok(("a.b-c", 300_000)),
        );
        check(200, r#"{"access_token":"a","token_type":"bearer","expires_in":"300"}"#, Ok(("a", 300_000)));
        check(200, r#"{"access_token":"a"}"#, Ok(("a", 60_000)));
        check(200, r#"{"access_token":"a","expires_in":1e99}"#, Ok(("a", 86_400_000)));
        const NO_TOKEN: Result<(&str, u64), &str> =
            Err("the response has no token that fits into a header field");
        for body in [
            r#"{}"#,
            r#"{"access_token":""}"#,
            r#"{"access_token":7}"#,
            r#"{"access_token":"a\r\nX-Role: admin"}"#,
            r#"{"access_token":"a b"}"#,
            r#"{"access_token":"a, b"}"#,
        ] {
            check(200, body, NO_TOKEN);
        }
        check(200, &format!(r#"{{"access_token":"{}"}}"#, "a".repeat(9000)), NO_TOKEN);
        check(200, r#"{"access_token":"a","token_type":"mac"}"#, Err("`token_type` is not `Bearer`"));
        for expires in ["0", "-1", "\"-5\""] {
            let body = format!(r#"{{"access_token":"a","expires_in":{expires}}}"#);
            check(200, &body, Err("the token has already expired"));
        }
        check(200, r#"{"access_token":"a","expires_in":"NaN"}"#, Err("the token has already expired"));
        check(200, r#"{"access_token":"a","expires_in":true}"#, Err("`expires_in` is not a number"));
        check(200, r#"{"access_token":"a","access_token":"b"}"#, Err("the response is not a JSON object"));
        check(200, "<html>", Err("the response is not a JSON object"));
        check(302, r#"{"access_token":"a"}"#, Err("status 302, an unknown error"));
        check(400, r#"{"error":"invalid_grant"}"#, Err("subject"));
        check(401, r#"{"error":"invalid_client"}"#, Err("status 401, invalid_client"));
        check(400, r#"{"error":"secret\nline"}"#, Err("status 400, an unknown error"));
    }
}
