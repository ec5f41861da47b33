//! Requests that bring their own token.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use sigma_http::HeaderId;
use sigma_plugin::counter::Shared;
use sigma_plugin::{Context, Env, Reply, Step};

use super::Party;
use super::identity::{NodeUserData, challenge, refuse_audience, refuse_schema, refuse_scopes, scopes};
use super::questions::{SingleFlights, seconds};
use crate::shared::tokens::{Address, KeySource, Lookup, Metadata, Token, beside};
use sigma_plugin_kit::decision_service::DecisionService;
use sigma_plugin_kit::log_throttle::LogThrottle;

/// Most bytes of the cache of introspected tokens, without the claims themselves: some 50,000 tokens.
const KNOWN_BYTES: usize = 10 << 20;

/// A provider's response about a token, or the reason for its absence.
type Introspection = Result<Arc<Map<String, Value>>, Arc<str>>;

/// Results of introspection: for the whole gateway.
pub(super) struct Introspected {
    good: Shared<Option<Arc<Map<String, Value>>>>,
    asked: Arc<SingleFlights<Introspection>>,
}

impl Default for Introspected {
    fn default() -> Self {
        Introspected { good: Shared::with_limit(KNOWN_BYTES), asked: Arc::default() }
    }
}

/// A call of the introspection endpoint.
struct IntrospectionCall {
    token: String,
    /// The key of its result in the cache.
    key: [u8; 32],
    /// Fields that go along.
    along: Vec<(String, Vec<u8>)>,
}

/// The possible issuers of a token.
enum Issuers<'a> {
    Named(&'a [String]),
    Provider(&'a Metadata),
    /// The owner of the private key of `public_key`: nothing else is known of the provider.
    OfKey,
}

/// The credentials in a request.
pub(super) enum Brought {
    Nothing,
    Token(Vec<u8>),
    /// No credentials at all.
    Broken,
}

/// The bearer token of a request (RFC 6750 §2.1).
pub(super) fn brought(ctx: &Context) -> Brought {
    let mut values = ctx.request.headers.get_all(HeaderId::Authorization);
    let Some(value) = values.next() else { return Brought::Nothing };
    // With several the node may read another one.
    let at = value.iter().position(|byte| *byte == b' ').filter(|_| values.next().is_none());
    let Some(at) = at else { return Brought::Broken };
    let (scheme, token) = (&value[..at], value[at..].trim_ascii());
    match scheme.eq_ignore_ascii_case(b"bearer") {
        true => Brought::Token(token.to_vec()),
        false => Brought::Nothing,
    }
}

impl Party {
    /// Lets a token in, or refuses it.
    pub(super) fn admit(self: &Arc<Self>, token: Vec<u8>, ctx: &mut Context, env: &Env<'_>) -> Step {
        if !self.config.verifies_signatures() {
            return self.by_question(token, ctx, env);
        }
        match Token::parse(token) {
            Ok(token) => self.by_signature(Rc::new(token), ctx, env),
            Err(reason) => self.invalid(reason),
        }
    }

    /// Refuses a token.
    fn invalid(&self, reason: &str) -> Step {
        static REFUSED: LogThrottle = LogThrottle::new();
        if let Some(left_out) = REFUSED.due() {
            tracing::info!(left_out, reason, "openid-connect: a token was refused");
        }
        challenge(&self.config, Some(reason))
    }

    /// Refuses a token that cannot be judged, since the provider does not respond.
    fn unjudged(&self, reason: &str, ctx: &mut Context) -> Step {
        ctx.mark_unjudged_credential();
        self.invalid(reason)
    }

    fn by_signature(self: &Arc<Self>, token: Rc<Token>, ctx: &mut Context, env: &Env<'_>) -> Step {
        if let (Some(ring), Some(issuers)) = (&self.ring, self.known_issuers()) {
            if let Err(reason) = ring.verify(&token, env) {
                return self.invalid(reason);
            }
            return self.judge_token(&token, &issuers, ctx, env);
        }
        self.with_metadata(false, ctx, env, move |party, metadata, ctx, env| {
            let Some(metadata) = metadata else {
                return party.unjudged("issuer validation unavailable", ctx);
            };
            if let Some(ring) = &party.ring {
                return match ring.verify(&token, env) {
                    Ok(()) => party.judge_token(&token, &Issuers::Provider(&metadata), ctx, env),
                    Err(reason) => party.invalid(reason),
                };
            }
            let Some(keys) = metadata.keys.clone() else {
                return party.unjudged("the provider publishes no keys", ctx);
            };
            party.by_keys(token, metadata, keys, false, ctx, env)
        })
    }

    fn by_keys(
        self: &Arc<Self>,
        token: Rc<Token>,
        metadata: Arc<Metadata>,
        keys: Arc<KeySource>,
        is_last: bool,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        match keys.verify(&token, &self.algorithms, env, is_last) {
            Lookup::Verified => {
                let issuers = self.issuers().map_or(Issuers::Provider(&metadata), Issuers::Named);
                self.judge_token(&token, &issuers, ctx, env)
            }
            Lookup::Refused(reason) => self.invalid(reason),
            Lookup::Unavailable(reason) => self.unjudged(reason, ctx),
            Lookup::Waits(fetched) => {
                let party = Arc::clone(self);
                Step::wait(fetched, move |(), ctx, env| party.by_keys(token, metadata, keys, true, ctx, env))
            }
        }
    }

    /// The issuers that the operator names.
    fn issuers(&self) -> Option<&[String]> {
        self.config.claim_validator.as_ref()?.issuer.as_ref()?.valid_issuers.as_deref()
    }

    /// The issuers of tokens that the operator's key verifies; None if the provider's document says it.
    fn known_issuers(&self) -> Option<Issuers<'_>> {
        if let Some(named) = self.issuers() {
            return Some(Issuers::Named(named));
        }
        match (&self.config.discovery, &self.config.issuer) {
            (Some(_), _) => None,
            (None, Some(issuer)) => Some(Issuers::Named(std::slice::from_ref(issuer))),
            (None, None) => Some(Issuers::OfKey),
        }
    }

    /// Checks a token after its signature.
    fn judge_token(&self, token: &Token, issuers: &Issuers<'_>, ctx: &mut Context, env: &Env<'_>) -> Step {
        let slack = self.config.iat_slack as f64;
        let now = env.unix_time().as_secs_f64();
        let is_known = match issuers {
            Issuers::Named(names) => {
                token.text_claim("iss").is_some_and(|name| names.iter().any(|known| known == name))
            }
            Issuers::Provider(metadata) => metadata.has_issued(&token.claims),
            Issuers::OfKey => true,
        };
        if !is_known {
            return self.invalid("'iss' is another issuer");
        }
        if let Err(reason) = token.in_time_of_issuer(now, slack) {
            return self.invalid(reason);
        }
        let text = String::from_utf8_lossy(token.text()).into_owned();
        self.judge_claims(&token.claims, &text, ctx)
    }

    fn judge_claims(&self, claims: &Map<String, Value>, token: &str, ctx: &mut Context) -> Step {
        let config = &self.config;
        let refused =
            refuse_scopes(config, scopes(claims)).or_else(|| refuse_audience(config, claims)).or_else(|| {
                let schema = self.schema.as_ref()?;
                refuse_schema(config, Some(schema), Value::Object(claims.clone()))
            });
        if let Some(refused) = refused {
            return refused;
        }
        self.mark(claims.get("sub").and_then(Value::as_str), token, ctx);
        let told = NodeUserData { access_token: Some(token), user: Some(claims), ..NodeUserData::default() };
        told.tell(config, &mut ctx.request.headers);
        Step::Next
    }

    fn by_question(self: &Arc<Self>, token: Vec<u8>, ctx: &mut Context, env: &Env<'_>) -> Step {
        // A malformed token is not sent to the provider (RFC 6750 §2.1).
        let is_token = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        let Some(token) = String::from_utf8(token).ok().filter(|text| is_token(text)) else {
            return self.invalid("invalid token");
        };
        let along = self.fields_along(ctx);
        let key = self.digest_of(&token, &along);
        let now_ms = u64::try_from(env.machine.uptime().as_millis()).unwrap_or(u64::MAX);
        if let Some(claims) = self.introspected.good.peek(&key, now_ms, |slot| slot.value.clone()).flatten() {
            return self.judge_claims(&claims, &token, ctx);
        }
        if let Some(endpoint) = self.config.introspection_endpoint.clone() {
            return self.ask(IntrospectionCall { token, key, along }, endpoint, env);
        }
        self.with_metadata(false, ctx, env, move |party, metadata, ctx, env| {
            match metadata.and_then(|metadata| metadata.introspection_endpoint.clone()) {
                Some(endpoint) => party.ask(IntrospectionCall { token, key, along }, endpoint, env),
                None => party.unjudged("cannot introspect tokens: the provider is unreachable", ctx),
            }
        })
    }

    fn ask(
        self: &Arc<Self>,
        IntrospectionCall { token, key, along }: IntrospectionCall,
        endpoint: Address,
        env: &Env<'_>,
    ) -> Step {
        let (client, provider) = (self.introspector.clone(), Arc::clone(&self.provider));
        let (asked, asking) = (Arc::clone(&self.introspected.asked), token.clone());
        let url = endpoint.without_arguments();
        let answer = beside(env.node, async move {
            let work = async {
                let answer = client.introspect(&provider, &endpoint, &asking, along).await;
                answer.map(Arc::new).map_err(Arc::<str>::from)
            };
            asked.one(key, Duration::ZERO, work).await
        });
        let party = Arc::clone(self);
        Step::wait(answer, move |answer, ctx, env| match answer {
            Some(Ok(claims)) if claims.get("active") == Some(&Value::Bool(true)) => {
                party.remember(&key, &claims, env);
                party.judge_claims(&claims, &token, ctx)
            }
            Some(Ok(_)) => party.invalid("the token is not active"),
            Some(Err(error)) => {
                static UNDECIDED: LogThrottle = LogThrottle::new();
                DecisionService { plugin: "openid-connect", url }.report(&error, ctx, &UNDECIDED);
                party.unjudged("the provider does not respond", ctx)
            }
            None => party.unjudged("the provider does not respond", ctx),
        })
    }

    /// Caches the provider's response about a good token, for the time that the provider and the operator allow.
    fn remember(&self, key: &[u8; 32], claims: &Arc<Map<String, Value>>, env: &Env<'_>) {
        let config = &self.config;
        let Some(mut left) = claims.get(&config.introspection_expiry_claim).and_then(seconds) else { return };
        if config.introspection_expiry_claim == "exp" {
            left = left.saturating_sub(env.unix_time().as_secs());
        }
        if config.introspection_interval > 0 {
            left = left.min(config.introspection_interval);
        }
        if left == 0 {
            return;
        }
        let now_ms = u64::try_from(env.machine.uptime().as_millis()).unwrap_or(u64::MAX);
        self.introspected.good.with(key, now_ms, |slot| {
            slot.value = Some(Arc::clone(claims));
            slot.expires_ms = now_ms.saturating_add(left.saturating_mul(1000));
        });
    }

    /// The fields of the request that go along with the question.
    fn fields_along(&self, ctx: &Context) -> Vec<(String, Vec<u8>)> {
        let names = self.config.introspection_addon_headers.iter().flatten();
        let fields = names.filter_map(|name| {
            let value = ctx.request.headers.find(name.as_bytes())?;
            Some((name.clone(), value.to_vec()))
        });
        fields.collect()
    }

    /// Returns the cache key of a question of this client to this provider.
    fn digest_of(&self, token: &str, along: &[(String, Vec<u8>)]) -> [u8; 32] {
        let endpoint = self.config.introspection_endpoint.as_ref().map_or("", Address::as_str);
        let mut parts = vec![endpoint.as_bytes(), token.as_bytes()];
        parts.extend(along.iter().flat_map(|(name, value)| [name.as_bytes(), &value[..]]));
        self.digest("introspection", &parts)
    }
}

/// Returns 400 for invalid credentials.
pub(super) fn broken() -> Step {
    Reply::new(400).because("Authorization has no credentials").into()
}
