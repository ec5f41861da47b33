//! Where the keys of an issuer come from, and who holds them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sigma_plugin::{Env, Node};

use super::algorithm::Algorithm;
use super::key_set::{KeySet, MatchingKeys};
use super::token::Token;
use super::verdicts::Verdicts;
use sigma_plugin_kit::fetched::{Document, Fetched, Turn, uptime_ms};
use sigma_plugin_kit::freshness::Freshness;
use sigma_plugin_kit::registry::Registry;
use sigma_plugin_kit::web::{Address, Web, WebSettings};

/// How long published keys are used.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Ages {
    /// From this age on it is fetched again.
    pub(crate) max_age: Duration,
    /// How much longer it is used where the issuer gives nothing new.
    pub(crate) stale_if_error: Duration,
    /// The least time between two fetches.
    pub(crate) cooldown: Duration,
}

impl Ages {
    pub(super) fn rule(&self) -> Freshness {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Freshness {
            fresh_ms: ms(self.max_age),
            stale_ms: ms(self.stale_if_error),
            pause_ms: ms(self.cooldown),
        }
    }
}

/// All that tells one source from another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SourceSettings {
    /// Where the set of keys is.
    pub(crate) address: Address,
    /// How it is reached.
    pub(crate) web: WebSettings,
    /// How long keys are used.
    pub(crate) ages: Ages,
}

/// The keys of an issuer. Equal settings have one source, which outlives the configurations.
pub(crate) struct KeySource {
    settings: SourceSettings,
    web: Web,
    keys: Fetched<KeySet>,
    /// Changes with the keys.
    generation: AtomicU64,
    /// Until then a token that was verified needs no second look at the keys' age.
    fresh_until_ms: AtomicU64,
}

/// The result of a look-up of a token's key.
pub(crate) enum Lookup {
    /// The issuer has signed it.
    Verified,
    /// The issuer's keys have to be fetched; then [`KeySource::verify`] is to be requested the last time.
    Waits(Pin<Box<dyn Future<Output = ()>>>),
    /// It is refused; the text is for the log.
    Refused(&'static str),
    /// It cannot be judged, since there are no keys; the text is for the log.
    Unavailable(&'static str),
}

/// The sources of the gateway.
pub(super) type Sources = Registry<SourceSettings, KeySource>;

impl Document for KeySet {
    type Holder = KeySource;

    const NAME: &'static str = "the keys of an issuer";

    fn cell(source: &KeySource) -> &Fetched<KeySet> {
        &source.keys
    }

    async fn fetch(source: Arc<KeySource>) -> Result<KeySet, String> {
        let address = &source.settings.address;
        let text = source.web.get(address).await?;
        let keys = KeySet::parse(text).map_err(|fault| format!("{address}: {fault}"))?;
        if keys.is_empty() {
            tracing::warn!(%address, "the issuer has no usable key");
        }
        Ok(keys)
    }

    fn taken(source: &KeySource, before: Option<&KeySet>, after: &KeySet, fresh_until_ms: u64) {
        // After the keys: who sees the new generation sees them, so that nothing that an old key has signed
        // is remembered as signed by a new one.
        if before.is_none_or(|before| before.text() != after.text()) {
            let generation = source.generation.load(Ordering::Relaxed);
            source.generation.store(generation.wrapping_add(1), Ordering::Release);
        }
        source.fresh_until_ms.store(fresh_until_ms, Ordering::Relaxed);
    }
}

impl KeySource {
    /// The one source with these settings. For instances to keep, not to be called per request.
    pub(crate) fn of(settings: SourceSettings, node: &Node) -> Arc<KeySource> {
        node.part(Sources::default).get(settings, KeySource::new)
    }

    pub(super) fn new(settings: SourceSettings) -> KeySource {
        KeySource {
            web: Web::new(settings.web.clone()),
            keys: Fetched::new(settings.ages.rule()),
            settings,
            generation: AtomicU64::new(0),
            fresh_until_ms: AtomicU64::new(0),
        }
    }

    /// Verifies a token by the issuer's keys and an algorithm of `allowed`. A signature that this worker has
    /// verified before is not verified again.
    pub(crate) fn verify(
        self: &Arc<Self>,
        token: &Token,
        allowed: &[Algorithm],
        env: &Env<'_>,
        is_last: bool,
    ) -> Lookup {
        let verdicts = env.local.part(Verdicts::<KeySource>::default);
        let generation = self.generation.load(Ordering::Acquire);
        let is_seen = verdicts.holds(token, self, generation) && token.algorithm(allowed).is_ok();
        if is_seen && uptime_ms(env.machine) < self.fresh_until_ms.load(Ordering::Relaxed) {
            return Lookup::Verified;
        }
        let read = self.keys.read();
        let none = KeySet::default();
        let found = match read.value.as_deref().unwrap_or(&none).find(token, allowed) {
            Ok(found) => found,
            Err(reason) => return Lookup::Refused(reason),
        };
        let known = match found {
            MatchingKeys::Keys(known) => Some(known),
            MatchingKeys::None => None,
        };
        match Fetched::<KeySet>::turn(self, &read, known.is_some(), is_last, env) {
            Turn::Use => {}
            Turn::Wait(fetched) => return Lookup::Waits(fetched),
            Turn::Refuse if read.value.is_none() || known.is_some() => {
                return Lookup::Unavailable("the keys of the issuer are unavailable");
            }
            Turn::Refuse => return Lookup::Refused("the issuer has no such key"),
        }
        if !is_seen {
            if !known.into_iter().flatten().any(|key| key.verify(token).is_ok()) {
                return Lookup::Refused("signature mismatch");
            }
            verdicts.add(token, self, generation);
        }
        Lookup::Verified
    }
}
