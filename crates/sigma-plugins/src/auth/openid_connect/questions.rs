//! What the gateway asks a provider: on the control thread, while a request waits as a task.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use sigma_config::resources::Confidential;
use tokio::sync::{OnceCell, Semaphore};

use super::super::form::{Form, escaped};
use super::super::tokens::{Address, Provider, Question, Reply, object_of};
use super::config::AuthMethod;

/// Questions to all providers that are under way at once. More would not be answered sooner.
const MOST_QUESTIONS: usize = 256;

static PLACES: Semaphore = Semaphore::const_new(MOST_QUESTIONS);

/// Who the gateway is to a provider.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) id: String,
    pub(super) secret: Option<Confidential>,
    pub(super) method: AuthMethod,
}

/// What a provider gave for a code or a refresh token.
#[derive(Clone)]
pub(super) struct Tokens {
    pub(super) access_token: String,
    pub(super) id_token: Option<String>,
    pub(super) refresh_token: Option<String>,
    pub(super) expires_in: Option<u64>,
}

/// Puts a question, if not too many are under way.
async fn put(provider: &Provider, address: &Address, question: Question) -> Result<Reply, String> {
    let _place = PLACES.try_acquire().map_err(|_| "too many questions to providers are under way")?;
    provider.web.put(address, question).await
}

impl Client {
    /// A form with these pairs, signed by the client as the provider expects.
    fn question(&self, pairs: &[(&str, &str)]) -> Question {
        let secret = self.secret.as_ref().map(Confidential::reveal);
        let mut pairs = pairs.to_vec();
        let mut fields = Vec::new();
        match (self.method, secret) {
            (AuthMethod::ClientSecretBasic, Some(secret)) => {
                // Each of them as in a form (RFC 6749 §2.3.1).
                let [id, secret] = [&*self.id, secret].map(|text| escaped(text.as_bytes()));
                let login = STANDARD.encode(format!("{id}:{secret}"));
                fields.push(("Authorization".to_owned(), format!("Basic {login}").into_bytes()));
            }
            (AuthMethod::ClientSecretPost, Some(secret)) => {
                pairs.extend([("client_id", &*self.id), ("client_secret", secret)]);
            }
            (_, None) => pairs.push(("client_id", &self.id)),
        }
        let form = pairs.into_iter().fold(Form::default(), |form, (name, value)| form.with(name, value));
        Question { form: Some(form.text()), fields }
    }

    /// Exchanges a code or a refresh token.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the provider gives no tokens.
    pub(super) async fn tokens(
        &self,
        provider: &Provider,
        endpoint: &Address,
        pairs: &[(&str, &str)],
    ) -> Result<Tokens, String> {
        let reply = put(provider, endpoint, self.question(pairs)).await?;
        let answer = object_of(&reply.body).ok_or_else(|| format!("{endpoint} answered no JSON object"))?;
        let text = |name: &str| answer.get(name).and_then(Value::as_str).map(str::to_owned);
        if reply.status != 200 {
            let error = text("error").unwrap_or_default();
            let status = reply.status;
            return Err(format!("{endpoint} answered {status}: {}", error.escape_debug()));
        }
        let is_bearer = text("token_type").is_none_or(|kind| kind.eq_ignore_ascii_case("bearer"));
        let access_token = text("access_token").filter(|_| is_bearer);
        Ok(Tokens {
            access_token: access_token.ok_or_else(|| format!("{endpoint} gave no bearer token"))?,
            id_token: text("id_token"),
            refresh_token: text("refresh_token"),
            expires_in: answer.get("expires_in").and_then(seconds),
        })
    }

    /// Asks whether a token is good (RFC 7662); `fields` go along. The answer, whatever it says.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if there is none.
    pub(super) async fn introspect(
        &self,
        provider: &Provider,
        endpoint: &Address,
        token: &str,
        fields: Vec<(String, Vec<u8>)>,
    ) -> Result<Map<String, Value>, String> {
        let mut question = self.question(&[("token", token)]);
        question.fields.extend(fields);
        match put(provider, endpoint, question).await? {
            Reply { status: 200, body } => {
                object_of(&body).ok_or_else(|| format!("{endpoint} answered no JSON object"))
            }
            Reply { status, .. } => Err(format!("{endpoint} answered {status}")),
        }
    }

    /// Gives a token back (RFC 7009). That it cannot be given back is said in the log.
    pub(super) async fn revoke(&self, provider: &Provider, endpoint: &Address, token: &str, kind: &str) {
        let question = self.question(&[("token", token), ("token_type_hint", kind)]);
        match put(provider, endpoint, question).await {
            Ok(Reply { status: 200, .. }) => {}
            Ok(Reply { status, .. }) => tracing::warn!(%endpoint, status, kind, "a token is not taken back"),
            Err(error) => tracing::warn!(%error, kind, "a token is not taken back"),
        }
    }
}

/// What the provider says of the user of an access token.
///
/// # Errors
/// Returns an error, which is a sentence, if it says nothing.
pub(super) async fn user_of(
    provider: &Provider,
    endpoint: &Address,
    access_token: &str,
) -> Result<Map<String, Value>, String> {
    let fields = vec![("Authorization".to_owned(), format!("Bearer {access_token}").into_bytes())];
    match put(provider, endpoint, Question { form: None, fields }).await? {
        Reply { status: 200, body } => {
            object_of(&body).ok_or_else(|| format!("{endpoint} answered no JSON object"))
        }
        Reply { status, .. } => Err(format!("{endpoint} answered {status}")),
    }
}

/// Seconds, also where a provider writes them as a text.
pub(super) fn seconds(value: &Value) -> Option<u64> {
    let whole = |number: f64| (number >= 0.0).then_some(number as u64);
    value.as_f64().and_then(whole).or_else(|| value.as_str()?.parse().ok())
}

/// Work that is done once for all who need it at the same time, by a digest of what it is about.
pub(super) struct Flights<T>(Mutex<HashMap<[u8; 32], Arc<OnceCell<T>>>>);

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Flights(Mutex::default())
    }
}

impl<T: Clone + Send + Sync + 'static> Flights<T> {
    /// The result of `work`, or that of the same work of somebody else. It is handed on to those who come within
    /// `keep` after it as well. On the control thread.
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
        // A panic elsewhere leaves at worst a result that is handed on for ever to nobody.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
