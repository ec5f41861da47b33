//! Requests of the gateway to a provider: on the control thread, while a request waits as a task.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::OnceCell;

use super::client::Client;
use super::dpop::{Dpop, Proven};
use super::put::put;
use crate::shared::tokens::{Address, Provider, Reply, WebRequest, object_of};

/// The provider's response to a code or a refresh token.
#[derive(Clone)]
pub(super) struct Tokens {
    pub(super) access_token: String,
    pub(super) id_token: Option<String>,
    pub(super) refresh_token: Option<String>,
    pub(super) expires_in: Option<u64>,
}

/// Why a provider gave no tokens.
pub(super) struct NoTokens {
    pub(super) reason: String,
    /// The client's code or token is invalid (`invalid_grant`, RFC 6749 §5.2).
    pub(super) is_of_client: bool,
}

impl From<String> for NoTokens {
    fn from(reason: String) -> NoTokens {
        NoTokens { reason, is_of_client: false }
    }
}

impl Client {
    /// Exchanges a code or a refresh token.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the provider gives no tokens.
    pub(super) async fn tokens(
        &self,
        provider: &Provider,
        endpoint: &Address,
        pairs: &[(&str, &str)],
    ) -> Result<Tokens, NoTokens> {
        let reply = match &self.dpop {
            Some(dpop) => {
                let proven = Proven { method: "POST", address: endpoint, access_token: None };
                dpop.put(provider, proven, || self.web_request(endpoint, pairs)).await?
            }
            None => put(provider, endpoint, self.web_request(endpoint, pairs)?).await?,
        };
        let answer =
            object_of(&reply.body).ok_or_else(|| format!("{endpoint} did not return a JSON object"))?;
        let text = |name: &str| answer.get(name).and_then(Value::as_str).map(str::to_owned);
        if reply.status != 200 {
            let error = text("error").unwrap_or_default();
            let status = reply.status;
            let reason = format!("{endpoint} responded with {status}: {}", error.escape_debug());
            return Err(NoTokens { is_of_client: error == "invalid_grant", reason });
        }
        let is_known = |kind: String| {
            kind.eq_ignore_ascii_case("bearer") || self.dpop.is_some() && kind.eq_ignore_ascii_case("dpop")
        };
        let access_token = text("access_token").filter(|_| text("token_type").is_none_or(is_known));
        Ok(Tokens {
            access_token: access_token.ok_or_else(|| format!("{endpoint} returned no valid token"))?,
            id_token: text("id_token"),
            refresh_token: text("refresh_token"),
            expires_in: answer.get("expires_in").and_then(seconds),
        })
    }

    /// Pushes the authorization request of a browser (RFC 9126 §2), and returns the reference.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the provider does not take it.
    pub(super) async fn push(
        &self,
        provider: &Provider,
        endpoint: &Address,
        pairs: &[(&str, &str)],
    ) -> Result<String, String> {
        let reply = put(provider, endpoint, self.web_request(endpoint, pairs)?).await?;
        let answer = object_of(&reply.body).unwrap_or_default();
        let text = |name: &str| answer.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        match (reply.status, text("request_uri")) {
            (200 | 201, Some(uri)) => Ok(uri.to_owned()),
            (status, _) => {
                let error = text("error").unwrap_or_default().escape_debug();
                Err(format!("{endpoint} responded with {status}: {error}"))
            }
        }
    }

    /// Asks whether a token is good (RFC 7662); `fields` go along. Returns the response, whether the token is good or
    /// not.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if there is no response.
    pub(super) async fn introspect(
        &self,
        provider: &Provider,
        endpoint: &Address,
        token: &str,
        fields: Vec<(String, Vec<u8>)>,
    ) -> Result<Map<String, Value>, String> {
        let mut question = self.web_request(endpoint, &[("token", token)])?;
        question.fields.extend(fields);
        match put(provider, endpoint, question).await? {
            Reply { status: 200, body } => {
                object_of(&body).ok_or_else(|| format!("{endpoint} did not return a JSON object"))
            }
            Reply { status, .. } => Err(format!("{endpoint} answered {status}")),
        }
    }

    /// Gives a token back (RFC 7009). That it cannot be given back is said in the log.
    pub(super) async fn revoke(&self, provider: &Provider, endpoint: &Address, token: &str, kind: &str) {
        let question = self.web_request(endpoint, &[("token", token), ("token_type_hint", kind)]);
        let put = async { put(provider, endpoint, question?).await };
        match put.await {
            Ok(Reply { status: 200, .. }) => {}
            Ok(Reply { status, .. }) => tracing::warn!(%endpoint, status, kind, "cannot revoke a token"),
            Err(error) => tracing::warn!(%error, kind, "cannot revoke a token"),
        }
    }
}

/// Returns the provider's data about the user of an access token.
///
/// # Errors
/// Returns an error, which is a sentence, if it says nothing.
pub(super) async fn user_of(
    provider: &Provider,
    endpoint: &Address,
    access_token: &str,
    dpop: Option<&Dpop>,
) -> Result<Map<String, Value>, String> {
    let question = |scheme: &str| {
        let credential = format!("{scheme} {access_token}").into_bytes();
        WebRequest { form: None, fields: vec![("Authorization".to_owned(), credential)] }
    };
    let reply = match dpop {
        Some(dpop) => {
            let proven = Proven { method: "GET", address: endpoint, access_token: Some(access_token) };
            dpop.put(provider, proven, || Ok(question("DPoP"))).await?
        }
        None => put(provider, endpoint, question("Bearer")).await?,
    };
    match reply {
        Reply { status: 200, body } => {
            object_of(&body).ok_or_else(|| format!("{endpoint} did not return a JSON object"))
        }
        Reply { status, .. } => Err(format!("{endpoint} answered {status}")),
    }
}

/// Seconds, also where a provider writes them as a text.
pub(super) fn seconds(value: &Value) -> Option<u64> {
    let whole = |number: f64| (number >= 0.0).then_some(number as u64);
    value.as_f64().and_then(whole).or_else(|| value.as_str()?.parse().ok())
}

/// Single-flight work, by a digest of its input.
pub(super) struct SingleFlights<T>(Mutex<HashMap<[u8; 32], Arc<OnceCell<T>>>>);

impl<T> Default for SingleFlights<T> {
    fn default() -> Self {
        SingleFlights(Mutex::default())
    }
}

impl<T: Clone + Send + Sync + 'static> SingleFlights<T> {
    /// Returns the result of `work`, or of the same work of another caller. It is handed on to those who come
    /// within `keep` after it as well. On the control thread.
    pub(super) async fn one(
        self: &Arc<Self>,
        key: [u8; 32],
        keep: Duration,
        work: impl Future<Output = T>,
    ) -> T {
        let cell = self.locked(|flights| Arc::clone(flights.entry(key).or_default()));
        let mut is_first = false;
        let result = cell
            .get_or_init(|| async {
                is_first = true;
                work.await
            })
            .await
            .clone();
        if is_first && keep.is_zero() {
            self.locked(|flights| flights.remove(&key));
        } else if is_first {
            let flights = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep(keep).await;
                flights.locked(|flights| flights.remove(&key));
            });
        }
        result
    }

    fn locked<R>(&self, change: impl FnOnce(&mut HashMap<[u8; 32], Arc<OnceCell<T>>>) -> R) -> R {
        // A panic elsewhere leaves at worst a result that is never read.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
