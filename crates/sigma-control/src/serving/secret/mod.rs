//! Secrets that are kept elsewhere: from `$secret://vault/1/path/key` and `$env://NAME` to the text.
//!
//! References are looked up while a snapshot is prepared, so that no request waits for a secret manager.
//! Found values are cached for a while, and so are failures, since one change of the configuration prepares
//! all of it again. When a manager cannot be reached, the value that it gave last stays in use, however old:
//! a key that worked a minute ago is a better guess than the text of a reference. When it answers that there
//! is no such secret, or refuses, the value is forgotten.
//!
//! [`vault`], [`aws`] and [`gcp`] each speak to one manager; [`client`] is the HTTP client.

mod aws;
mod cache;
mod client;
mod gcp;
#[cfg(test)]
mod tests;
mod vault;

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use sigma_config::reference::{SecretLookup, SecretRef, is_reference};
use sigma_config::resources::{Secret, SecretProvider};
use sigma_plugin::cloud::{CloudIdentities, NoIdentity};
use tokio::task::JoinSet;

use cache::Cache;
use client::Client;

/// Lookups at the same time. Enough to hide the way to a manager, too few to burden it.
const CONCURRENCY: usize = 16;

/// Limits of the cache: the lifetime and the number of responses, and the time for one. The defaults of the settings
/// are APISIX's (`lru.secret` in its configuration file).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long a secret is kept.
    pub ttl: Duration,
    /// Secrets that are kept; beyond that the one that was not used for the longest time goes.
    pub count: usize,
    /// How long a failure is kept.
    pub negative_ttl: Duration,
    /// Failures that are kept.
    pub negative_count: usize,
    /// Time for one response of a manager.
    pub timeout: Duration,
}

impl Limits {
    /// Returns the limits of the settings.
    #[must_use]
    pub fn of(settings: &SecretLookup) -> Limits {
        let milliseconds = |number: u32| Duration::from_millis(number.into());
        Limits {
            ttl: milliseconds(settings.keep_ms),
            count: 512,
            negative_ttl: milliseconds(settings.keep_failure_ms),
            negative_count: 512,
            timeout: milliseconds(settings.timeout_ms),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits::of(&SecretLookup::default())
    }
}

/// A reference that stayed as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolved {
    /// Its place in the value, as a JSON pointer.
    pub pointer: String,
    /// The reference.
    pub reference: String,
    /// Why there is no text for it. Names no secret.
    pub reason: String,
}

/// Reads an environment variable.
pub type Environment = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Looks up references. A clone shares the cache.
#[derive(Clone)]
pub struct Secrets {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    environment: Box<Environment>,
    /// The identity of the machine at clouds.
    identities: OnceLock<Arc<CloudIdentities>>,
    state: Mutex<State>,
}

struct State {
    /// By identity, such as `vault/1`.
    accesses: HashMap<Box<str>, Arc<Secret>>,
    /// Grows with each change of the accesses; a response to an older question is not kept.
    generation: u64,
    known: Cache<String>,
    failed: Cache<Failure>,
    /// Tokens of Google Cloud by identity of the access.
    tokens: HashMap<Box<str>, gcp::Token>,
}

/// Why a lookup gave nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Failure {
    /// The response is no: asking again changes nothing.
    Refused(String),
    /// There was no response: asking later may help.
    Unreachable(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Refused(reason) | Failure::Unreachable(reason)) = self;
        f.write_str(reason)
    }
}

impl Secrets {
    /// Knows no access yet. `environment` reads the environment of the process. Cannot fail: the HTTP
    /// client, which could, is built when the first reference needs it.
    pub fn new(
        limits: Limits,
        environment: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Secrets, Infallible> {
        let state = State {
            accesses: HashMap::new(),
            generation: 0,
            known: Cache::new(limits.count, limits.ttl),
            failed: Cache::new(limits.negative_count, limits.negative_ttl),
            tokens: HashMap::new(),
        };
        let shared = Shared {
            client: Client::new(limits.timeout),
            environment: Box::new(environment),
            identities: OnceLock::new(),
            state: Mutex::new(state),
        };
        Ok(Secrets { shared: Arc::new(shared) })
    }

    /// Adds the identity of the machine at clouds, once. Without it accesses with `machine_identity` are refused.
    pub(crate) fn use_identities(&self, identities: Arc<CloudIdentities>) {
        let _ = self.shared.identities.set(identities);
    }

    /// Replaces the accesses to secret managers. If any differs from before, everything that was
    /// looked up is forgotten.
    pub fn set_accesses(&self, accesses: impl IntoIterator<Item = Arc<Secret>>) {
        let accesses: HashMap<_, _> =
            accesses.into_iter().map(|access| (access.id.clone(), access)).collect();
        let mut state = self.shared.state();
        if state.accesses != accesses {
            state.accesses = accesses;
            state.generation += 1;
            state.known.clear();
            state.failed.clear();
            state.tokens.clear();
        }
    }

    /// Replaces every text within `value` that is a reference by its secret. A reference without a value
    /// stays, is logged, and is returned in the order of the value.
    pub async fn resolve(&self, value: &mut Value) -> Vec<Unresolved> {
        let mut references = HashSet::new();
        each_text(value, "", &mut |text, _| {
            if is_reference(text) {
                references.insert(text.clone());
            }
        });
        if references.is_empty() {
            return Vec::new();
        }
        let outcomes = self.look_up_all(references).await;
        let mut unresolved = Vec::new();
        each_text(value, "", &mut |text, pointer| match outcomes.get(text) {
            Some(Ok(secret)) => secret.clone_into(text),
            Some(Err(failure)) => unresolved.push(Unresolved {
                pointer: pointer.to_owned(),
                reference: text.clone(),
                reason: failure.to_string(),
            }),
            None => {}
        });
        for Unresolved { pointer, reference, reason } in &unresolved {
            tracing::warn!(
                pointer,
                reference,
                reason,
                "cannot resolve a secret; the objects that use it are refused"
            );
        }
        unresolved
    }

    /// Looks up unknown and old values, so that [`Secrets::resolve`] need not wait for them.
    pub async fn look_ahead(&self, references: impl IntoIterator<Item = String>) {
        self.look_up_all(references.into_iter().collect()).await;
    }

    async fn look_up_all(&self, references: HashSet<String>) -> HashMap<String, Result<String, Failure>> {
        let mut outcomes = HashMap::with_capacity(references.len());
        let mut tasks = JoinSet::new();
        let silent = Arc::new(Mutex::new(HashSet::new()));
        for reference in references {
            if tasks.len() >= CONCURRENCY
                && let Some(Ok((reference, outcome))) = tasks.join_next().await
            {
                outcomes.insert(reference, outcome);
            }
            let (shared, silent) = (self.shared.clone(), silent.clone());
            tasks.spawn(async move {
                let outcome = shared.look_up(&reference, &silent).await;
                (reference, outcome)
            });
        }
        while let Some(joined) = tasks.join_next().await {
            // A lookup that panicked leaves its reference as it is; the panic itself is logged.
            if let Ok((reference, outcome)) = joined {
                outcomes.insert(reference, outcome);
            }
        }
        outcomes
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `silent` holds the accesses that did not respond during this call: no other reference waits for them again.
    async fn look_up(&self, reference: &str, silent: &Mutex<HashSet<Box<str>>>) -> Result<String, Failure> {
        match SecretRef::parse(reference) {
            Some(SecretRef::Env { name, field }) => self.variable(name, field).and_then(not_empty),
            Some(SecretRef::Secret { provider, id, key }) => {
                self.secret(reference, provider, id, key, silent).await
            }
            None => Err(Failure::Refused(
                "it is not a reference: write `$secret://<vault|aws|gcp>/<id>/<key>` or `$env://<name>`"
                    .to_owned(),
            )),
        }
    }

    /// The text of an environment variable, or of a member of the JSON object in it.
    fn variable(&self, name: &str, field: Option<&str>) -> Result<String, Failure> {
        let Some(text) = (self.environment)(name) else {
            return Err(Failure::Refused(format!("the environment variable `{name}` is not set")));
        };
        match field {
            None => Ok(text),
            Some(field) => member_of(&text, field).map_err(|why| why.of(&format!("variable `{name}`"))),
        }
    }

    async fn secret(
        &self,
        reference: &str,
        manager: SecretProvider,
        id: &str,
        key: &str,
        silent: &Mutex<HashSet<Box<str>>>,
    ) -> Result<String, Failure> {
        let access_id = format!("{}/{id}", manager.name());
        let (access, generation, stale) = {
            let mut state = self.state();
            let Some(access) = state.accesses.get(access_id.as_str()).cloned() else {
                return Err(Failure::Refused(format!(
                    "the secret resource `{access_id}` does not exist: create it"
                )));
            };
            let now = Instant::now();
            let stale = match state.known.get(reference, now) {
                Some((secret, true)) => return Ok(secret.clone()),
                known => known.map(|(secret, _)| secret.clone()),
            };
            if let Some((failure, true)) = state.failed.get(reference, now) {
                return choose(reference, failure.clone(), stale);
            }
            (access, state.generation, stale)
        };
        let is_silent = silent.lock().unwrap_or_else(PoisonError::into_inner).contains(&access.id);
        let outcome = match is_silent {
            true => Err(Failure::Unreachable(format!("`{access_id}` did not respond"))),
            false => self.fetch(&access, manager, key).await.and_then(not_empty),
        };
        if let Err(Failure::Unreachable(_)) = &outcome {
            silent.lock().unwrap_or_else(PoisonError::into_inner).insert(access.id.clone());
        }
        self.keep(reference, generation, &outcome);
        outcome.or_else(|failure| choose(reference, failure, stale))
    }

    fn keep(&self, reference: &str, generation: u64, outcome: &Result<String, Failure>) {
        let mut state = self.state();
        if state.generation != generation {
            return;
        }
        let now = Instant::now();
        match outcome {
            Ok(secret) => {
                state.known.put(reference, secret.clone(), now);
                state.failed.remove(reference);
            }
            Err(failure) => {
                if let Failure::Refused(_) = failure {
                    state.known.remove(reference);
                }
                state.failed.put(reference, failure.clone(), now);
            }
        }
    }

    async fn fetch(&self, access: &Secret, manager: SecretProvider, key: &str) -> Result<String, Failure> {
        match manager {
            SecretProvider::Vault => vault::fetch(self, access, key).await,
            SecretProvider::Aws => aws::fetch(self, access, key).await,
            SecretProvider::Gcp => gcp::fetch(self, access, key).await,
        }
    }

    /// Returns the identities of the machine that the settings allow.
    fn identities(&self) -> Arc<CloudIdentities> {
        self.identities.get().cloned().unwrap_or_default()
    }

    /// A field of an access, which may itself stand in the environment.
    fn plain(&self, access: &Secret, name: &str, text: Option<&str>) -> Result<String, Failure> {
        let Some(text) = text else {
            return Err(Failure::Refused(format!("secret resource `{}`: set `{name}`", access.id)));
        };
        match SecretRef::parse(text) {
            Some(SecretRef::Env { name, field }) => self.variable(name, field),
            Some(SecretRef::Secret { .. }) => Err(Failure::Refused(format!(
                "`{name}` of secret resource `{}` refers to a secret; only `$env://` is possible there",
                access.id
            ))),
            None => Ok(text.to_owned()),
        }
    }
}

impl From<NoIdentity> for Failure {
    fn from(reason: NoIdentity) -> Failure {
        match reason {
            NoIdentity::Refused(reason) => Failure::Refused(reason),
            NoIdentity::Unavailable(reason) => Failure::Unreachable(reason),
        }
    }
}

/// An empty secret is refused: a client with an empty field would have it.
fn not_empty(secret: String) -> Result<String, Failure> {
    if secret.is_empty() {
        return Err(Failure::Refused("the secret is empty".to_owned()));
    }
    Ok(secret)
}

/// Returns the value to use after a failure.
fn choose(reference: &str, failure: Failure, stale: Option<String>) -> Result<String, Failure> {
    match (failure, stale) {
        (Failure::Unreachable(reason), Some(secret)) => {
            tracing::warn!(reference, reason, "cannot read a secret again; its last value stays in use");
            Ok(secret)
        }
        (failure, _) => Err(failure),
    }
}

/// Why a text has no such member.
enum NoMember {
    NotJson,
    Absent(String),
    NoText(String),
}

impl NoMember {
    fn of(self, what: &str) -> Failure {
        Failure::Refused(match self {
            NoMember::NotJson => format!("{what} is not a JSON object"),
            NoMember::Absent(name) => format!("{what} has no member `{name}`"),
            NoMember::NoText(name) => format!("member `{name}` of {what} is not a string or a number"),
        })
    }
}

fn member_of(text: &str, name: &str) -> Result<String, NoMember> {
    let Ok(Value::Object(map)) = serde_json::from_str(text) else { return Err(NoMember::NotJson) };
    match map.get(name) {
        Some(value) => text_of(value).ok_or_else(|| NoMember::NoText(name.to_owned())),
        None => Err(NoMember::Absent(name.to_owned())),
    }
}

/// A scalar as text: managers hold `5432` where a field wants `"5432"`.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Calls `visit` with every text in `value` and the JSON pointer of its place.
fn each_text(value: &mut Value, pointer: &str, visit: &mut dyn FnMut(&mut String, &str)) {
    match value {
        Value::String(text) => visit(text, pointer),
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                each_text(item, &format!("{pointer}/{index}"), visit);
            }
        }
        Value::Object(map) => {
            for (key, member) in map.iter_mut() {
                let key = key.replace('~', "~0").replace('/', "~1");
                each_text(member, &format!("{pointer}/{key}"), visit);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
