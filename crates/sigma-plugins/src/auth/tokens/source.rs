//! Where the keys of an issuer come from, and who holds them.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sigma_plugin::{Env, Node};
use tokio::sync::watch;

use super::algorithm::Algorithm;
use super::freshness::{Advice, Freshness, History};
use super::key_set::{Found, KeySet};
use super::token::Token;
use super::verdicts::Verdicts;
use super::web::{Address, Web, WebSettings, beside};
use crate::log_throttle::LogThrottle;

/// Sources of the whole gateway that are kept although no configuration names them: until the next one does.
const MOST_IDLE: usize = 64;

/// All that tells one source from another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::auth) struct SourceSettings {
    /// Where the set of keys is.
    pub(in crate::auth) address: Address,
    /// How it is reached.
    pub(in crate::auth) web: WebSettings,
    /// From this age on keys are fetched anew.
    pub(in crate::auth) max_age: Duration,
    /// How much longer they are used where the issuer gives no new ones.
    pub(in crate::auth) stale_if_error: Duration,
    /// The least time between two fetches.
    pub(in crate::auth) cooldown: Duration,
}

/// The keys of an issuer: fetched when they are needed, one fetch at a time for the whole gateway, and kept
/// while they are young enough. Equal settings have one source, which outlives the configurations.
pub(in crate::auth) struct KeySource {
    settings: SourceSettings,
    rule: Freshness,
    web: Web,
    published: watch::Sender<Published>,
    /// Changes with the keys.
    generation: AtomicU64,
    /// Until then a token that was verified needs no second look at the keys' age; of the clock that never goes
    /// back.
    fresh_until_ms: AtomicU64,
    /// Held while keys are fetched, on the control thread.
    fetching: tokio::sync::Mutex<()>,
    /// Whether somebody fetches beside the traffic.
    refreshing: AtomicBool,
}

/// What was fetched last.
#[derive(Clone, Default)]
struct Published {
    keys: Option<Arc<KeySet>>,
    history: History,
    /// Grows with each fetch.
    attempts: u64,
    text: Arc<Vec<u8>>,
}

/// What becomes of a token.
pub(in crate::auth) enum Lookup {
    /// The issuer has signed it.
    Verified,
    /// The issuer's keys have to be fetched; then [`KeySource::verify`] is to be asked for the last time.
    Waits(Pin<Box<dyn Future<Output = ()>>>),
    /// It is refused; the text is for the log.
    Refused(&'static str),
}

/// The sources of the gateway.
#[derive(Default)]
struct Sources(Mutex<HashMap<SourceSettings, Arc<KeySource>>>);

impl KeySource {
    /// The one source with these settings. For instances to keep, not to be called per request.
    pub(in crate::auth) fn of(settings: SourceSettings, node: &Node) -> Arc<KeySource> {
        let sources = node.part(Sources::default);
        // A panic elsewhere leaves a table as good as before.
        let mut known = sources.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = known.get(&settings) {
            return Arc::clone(source);
        }
        if known.values().filter(|source| Arc::strong_count(source) == 1).count() > MOST_IDLE {
            known.retain(|_, source| Arc::strong_count(source) > 1);
        }
        let source = Arc::new(KeySource::new(settings.clone()));
        known.insert(settings, Arc::clone(&source));
        source
    }

    fn new(settings: SourceSettings) -> KeySource {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        KeySource {
            rule: Freshness {
                fresh_ms: ms(settings.max_age),
                stale_ms: ms(settings.stale_if_error),
                pause_ms: ms(settings.cooldown),
            },
            web: Web::new(settings.web.clone()),
            settings,
            published: watch::Sender::default(),
            generation: AtomicU64::new(0),
            fresh_until_ms: AtomicU64::new(0),
            fetching: tokio::sync::Mutex::default(),
            refreshing: AtomicBool::new(false),
        }
    }

    /// Verifies a token by the issuer's keys and an algorithm of `allowed`. A signature that this worker has
    /// verified before is not verified again.
    pub(in crate::auth) fn verify(
        self: &Arc<Self>,
        token: &Token,
        allowed: &[Algorithm],
        env: &Env<'_>,
        is_last: bool,
    ) -> Lookup {
        let verdicts = env.local.part(Verdicts::<KeySource>::default);
        let generation = self.generation.load(Ordering::Acquire);
        let now_ms = uptime_ms(env);
        let is_seen = verdicts.holds(token, self, generation) && token.algorithm(allowed).is_ok();
        if is_seen && now_ms < self.fresh_until_ms.load(Ordering::Relaxed) {
            return Lookup::Verified;
        }
        let Published { keys, history, attempts, .. } = self.published.borrow().clone();
        let keys = keys.unwrap_or_default();
        let found = match keys.find(token, allowed) {
            Ok(found) => found,
            Err(reason) => return Lookup::Refused(reason),
        };
        let known = match found {
            Found::Keys(known) => Some(known),
            Found::None => None,
        };
        match self.rule.advise(history, now_ms, known.is_some()) {
            Advice::Wait if !is_last => {
                let source = Arc::clone(self);
                let fetched = beside(env.node, async move { source.fetch(attempts).await });
                return Lookup::Waits(Box::pin(async move { fetched.await.unwrap_or_default() }));
            }
            Advice::Wait | Advice::Refuse if history.keys_ms.is_none() => {
                return Lookup::Refused("the keys of the issuer are not to be had");
            }
            Advice::Wait | Advice::Refuse => return Lookup::Refused("the issuer has no such key"),
            Advice::UseAndFetch => self.refresh(env.node, attempts),
            Advice::Use => {}
        }
        if !is_seen {
            if !known.into_iter().flatten().any(|key| key.verify(token).is_ok()) {
                return Lookup::Refused("signature mismatch");
            }
            verdicts.add(token, self, generation);
        }
        Lookup::Verified
    }

    /// Fetches beside the traffic, unless somebody does.
    fn refresh(self: &Arc<Self>, node: &Node, attempts: u64) {
        // Read first: workers must not write to what others read with every request.
        if self.refreshing.load(Ordering::Relaxed) || self.refreshing.swap(true, Ordering::Relaxed) {
            return;
        }
        let source = Arc::clone(self);
        node.spawn(async move {
            source.fetch(attempts).await;
            source.refreshing.store(false, Ordering::Relaxed);
        });
    }

    /// Fetches the keys, unless somebody has since `attempts` fetches were made.
    async fn fetch(&self, attempts: u64) {
        let _one = self.fetching.lock().await;
        let before = self.published.borrow().clone();
        if before.attempts != attempts {
            return;
        }
        let fetched = self.web.get(&self.settings.address).await;
        let now_ms = machine_ms();
        let parsed = fetched.and_then(|text| {
            let keys = KeySet::parse(&text).map_err(|fault| format!("{}: {fault}", self.settings.address))?;
            Ok((text, keys))
        });
        let mut after = Published { attempts: before.attempts.wrapping_add(1), ..before };
        let (mut is_new, mut fresh_until_ms) = (false, None);
        after.history.tried_ms = Some(now_ms);
        match parsed {
            Ok((text, keys)) => {
                if keys.is_empty() {
                    tracing::warn!(address = %self.settings.address, "the issuer has no key that can be used");
                }
                after.history.keys_ms = Some(now_ms);
                is_new = after.keys.is_none() || *after.text != text;
                (after.keys, after.text) = (Some(Arc::new(keys)), Arc::new(text));
                fresh_until_ms = Some(now_ms.saturating_add(self.rule.fresh_ms));
            }
            Err(error) => {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::warn!(left_out, %error, "the keys of an issuer cannot be fetched");
                }
            }
        }
        self.published.send_replace(after);
        // In this order: who sees the new generation sees the new keys, so that nothing that an old key has
        // signed is remembered as signed by a new one.
        if is_new {
            let generation = self.generation.load(Ordering::Relaxed);
            self.generation.store(generation.wrapping_add(1), Ordering::Release);
        }
        if let Some(until) = fresh_until_ms {
            self.fresh_until_ms.store(until, Ordering::Relaxed);
        }
    }
}

fn uptime_ms(env: &Env<'_>) -> u64 {
    u64::try_from(env.machine.uptime().as_millis()).unwrap_or(u64::MAX)
}

/// The same clock, on the control thread.
fn machine_ms() -> u64 {
    use sigma_plugin::machine::{Host, Machine};
    u64::try_from(Host.uptime().as_millis()).unwrap_or(u64::MAX)
}
