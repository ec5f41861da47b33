//! `digest-auth`: name and password, of which only a digest is sent (RFC 7616).
//!
//! [`answer`] has the client's response, [`hashed_names`] finds names that are sent as digests.

pub(super) mod credentials;
mod hashed_names;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_http::HeaderId;
use sigma_plugin::counter::Shared;
use sigma_plugin::step::BodyRead;
use sigma_plugin::system::System;
use sigma_plugin::{
    Auth, Build, Configuration, Context, Descriptor, Env, Identity, Phase, PhaseSet, Plugin, Step,
};
use sigma_schema::Confidential;
use sigma_schema::Problem;

use self::credentials::{Algorithm, DigestCredentials, Qop};
use self::hashed_names::HashedNames;
use crate::shared::policy::{AuthPolicy, Cause, Refusal, Scheme, authorization, same_secret};
use sigma_plugin_kit::clock::process_ms;

/// Recognises a consumer by a digest of name and password.
pub(crate) static DIGEST_AUTH: Descriptor = Descriptor {
    name: "digest-auth",
    priority: 2525,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    auth: Some(Auth::of::<Consumer>("username")),
    warnings: Some(|_, conf| warnings(conf)),
    build: |build| Ok(Arc::new(DigestAuth::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Authenticates consumers by HTTP Digest authentication (RFC 7616): the client sends a digest of name and password.
///
/// Method and URI are part of the digest; with `auth-int` the body is as well. A nonce is the time with a MAC, so
/// gateways need not store nonces. For an old nonce the response has a new one and `stale=true`. The use count of a
/// nonce (`nc`) is stored, so a request cannot be repeated to the same gateway.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Offered digests, in order of preference. MD5 can be broken; it is for clients that support nothing else.
    #[schemars(length(min = 1), extend("uniqueItems" = true, "default" = ["SHA-256"]))]
    algorithms: Vec<Algorithm>,
    /// Offered scopes of the digest (`qop`): `auth` for method and URI, `auth-int` for the body as well. Clients choose
    /// one.
    #[schemars(length(min = 1), extend("uniqueItems" = true, "default" = ["auth"]))]
    qop: Vec<Qop>,
    /// Maximum bytes of a body that is part of a digest; it is held in memory. A larger one gets 413.
    #[schemars(range(min = 1), extend("default" = 1_048_576))]
    max_req_body_size: usize,
    /// Whether clients may send a digest of the name instead of the name. For a new consumer this works after some
    /// seconds.
    #[schemars(extend("default" = false))]
    userhash: bool,
    /// Lifetime of a nonce in seconds.
    #[schemars(range(min = 1, max = 86_400), extend("default" = 300))]
    nonce_lifetime: u64,
    /// Secret for nonces. Gateways with the same secret accept each other's nonces, and a request can then be repeated
    /// once to each of them. Default: a secret that the gateway generates at its start.
    #[schemars(length(min = 16))]
    nonce_secret: Option<Confidential>,
    #[serde(flatten)]
    policy: AuthPolicy<Self>,
}

impl Configuration for Config {}

impl Scheme for Config {
    const PLUGIN: &str = "digest-auth";
    const NAME: &str = "Digest";
    const REALM: &str = "digest";
}

#[derive(Deserialize, JsonSchema)]
#[schemars(title = "work with consumer object")]
struct Consumer {
    /// The name; it must be unique among consumers.
    #[schemars(length(min = 1))]
    username: String,
    /// The password.
    #[schemars(length(min = 1))]
    password: Confidential,
}

impl Configuration for Consumer {}

fn warnings(conf: &Value) -> Vec<Problem> {
    let names = conf.get("algorithms").and_then(Value::as_array);
    match names.is_some_and(|names| names.iter().any(|name| name == "MD5" || name == "MD5-sess")) {
        true => {
            let message = "an attacker can find passwords from digests of MD5";
            vec![Problem::new("algorithms", "weak", message).hint("remove MD5 when no client needs it")]
        }
        false => Vec::new(),
    }
}

/// State that all instances of this process share.
struct Common {
    /// The key of nonces where the configuration does not set one.
    key: hmac::Key,
    /// How often nonces were used.
    uses: Shared<Uses>,
}

/// The uses of one nonce: a client may have several requests under way, which overtake one another.
#[derive(Debug, Default)]
struct Uses {
    /// The highest number so far.
    highest: u32,
    /// Which of the 64 numbers up to it were used, the highest in the lowest bit.
    used: u64,
}

impl Uses {
    /// Whether this number is used for the first time; it is used up then. One that is far behind may have
    /// been used.
    fn is_first(&mut self, number: u32) -> bool {
        if number > self.highest {
            let ahead = number - self.highest;
            self.used = self.used.checked_shl(ahead).unwrap_or(0) | 1;
            self.highest = number;
            return true;
        }
        let behind = self.highest - number;
        let bit = 1u64.checked_shl(behind).unwrap_or(0);
        let is_first = bit != 0 && self.used & bit == 0;
        self.used |= bit;
        is_first
    }
}

/// The remaining checks may wait for the body, and share this.
struct DigestAuth(Arc<Verifier>);

struct Verifier {
    config: Config,
    key: hmac::Key,
    common: Arc<Common>,
}

/// The claimed identity of a client, before it is proven.
struct Claim {
    answer: DigestCredentials,
    algorithm: Algorithm,
    identity: Arc<Identity>,
}

/// Why a client has to answer another challenge.
enum Failure {
    /// Name and password are right, but the nonce is not valid any more.
    Stale,
    Refused(Refusal),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

const fn invalid_header(detail: &'static str) -> Refusal {
    Refusal::new("Invalid authorization in request", detail)
}

const fn invalid_user(detail: &'static str) -> Refusal {
    Refusal::new("Invalid user authorization", detail)
}

/// Bytes of a nonce: the second it was made in, something random, and a MAC over both.
const TIME_BYTES: usize = 8;
const RANDOM_BYTES: usize = 8;
const MAC_BYTES: usize = 16;

impl DigestAuth {
    fn new(build: &Build<'_>) -> Result<DigestAuth, String> {
        let config: Config = build.config()?;
        let mut random = [0; 32];
        sigma_plugin::system::Host.fill_random(&mut random)?;
        let common = || Common { key: hmac::Key::new(hmac::HMAC_SHA256, &random), uses: Shared::default() };
        let common = build.node.part(common);
        let key = match &config.nonce_secret {
            Some(secret) if secret.reveal().is_empty() => {
                return Err("nonce_secret: it is empty, so that anyone could make nonces".to_owned());
            }
            Some(secret) => hmac::Key::new(hmac::HMAC_SHA256, secret.reveal().as_bytes()),
            None => common.key.clone(),
        };
        Ok(DigestAuth(Arc::new(Verifier { config, key, common })))
    }
}

impl Verifier {
    fn mac(&self, said: &[u8]) -> hmac::Tag {
        hmac::sign(&self.key, &[b"digest-auth\n", self.config.policy.realm.as_bytes(), b"\n", said].concat())
    }

    /// A nonce of this second. None if cannot get random bytes.
    fn nonce(&self, env: &Env<'_>) -> Option<String> {
        let mut nonce = [0; TIME_BYTES + RANDOM_BYTES + MAC_BYTES];
        nonce[..TIME_BYTES].copy_from_slice(&env.unix_time().as_secs().to_be_bytes());
        env.machine.fill_random(&mut nonce[TIME_BYTES..TIME_BYTES + RANDOM_BYTES]).ok()?;
        let mac = self.mac(&nonce[..TIME_BYTES + RANDOM_BYTES]);
        nonce[TIME_BYTES + RANDOM_BYTES..].copy_from_slice(&mac.as_ref()[..MAC_BYTES]);
        Some(URL_SAFE_NO_PAD.encode(nonce))
    }

    /// The milliseconds for which a nonce may still be used. None if a gateway without its key made it, or if
    /// it is too old.
    fn left_ms(&self, nonce: &[u8], env: &Env<'_>) -> Option<u64> {
        let bytes = URL_SAFE_NO_PAD.decode(nonce).ok()?;
        let (said, mac) = bytes.split_at_checked(TIME_BYTES + RANDOM_BYTES)?;
        if !same_secret(&self.mac(said).as_ref()[..MAC_BYTES], mac) {
            return None;
        }
        let made = said[..TIME_BYTES].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let now = env.unix_time().as_secs();
        // The clocks of gateways that share a key differ a little.
        let age = now.saturating_sub(made);
        let is_of_now = made.saturating_sub(now) <= self.config.nonce_lifetime;
        let left = self.config.nonce_lifetime.checked_sub(age).filter(|left| *left > 0 && is_of_now)?;
        Some(left.saturating_mul(1000))
    }

    /// Checks everything but the proof.
    fn claim(&self, ctx: &Context, env: &Env<'_>) -> Result<Claim, Failure> {
        let value = authorization(ctx).ok_or(Refusal::absent("Missing authorization in request"))?;
        let answer = DigestCredentials::parse(value).map_err(invalid_header)?;
        if answer.realm != self.config.policy.realm.as_bytes() {
            return Err(invalid_header("the realm does not match").into());
        }
        let allowed = self
            .config
            .algorithms
            .iter()
            .find(|known| known.name().as_bytes().eq_ignore_ascii_case(&answer.algorithm));
        let algorithm = *allowed.ok_or(invalid_header("the algorithm is not offered"))?;
        if !self.config.qop.contains(&answer.qop) {
            return Err(invalid_header("the qop is not offered").into());
        }
        // The digest is of this method and this URI, so it must not be taken for another request.
        if answer.uri != ctx.request.sent_path_and_query() {
            return Err(invalid_header("the uri differs from the request's").into());
        }
        const UNKNOWN: &str = "failed to find user: invalid user";
        let found = match answer.is_hashed {
            false => self.config.policy.find(env, &answer.username, UNKNOWN),
            true if self.config.userhash => {
                let names = env.local.part(HashedNames::default);
                let name = names.find(&answer.username, &self.config.policy.realm, algorithm.hash(), env);
                self.config.policy.find(env, name.unwrap_or_default().as_bytes(), UNKNOWN)
            }
            true => return Err(invalid_header("hashed user names are not offered").into()),
        };
        let identity = Arc::clone(found.map_err(invalid_user)?);
        Ok(Claim { answer, algorithm, identity })
    }

    /// Whether the client knows the password, and says so about this request for the first time.
    fn prove(
        &self,
        Claim { answer, algorithm, identity }: &Claim,
        ctx: &Context,
        env: &Env<'_>,
    ) -> Result<(), Failure> {
        let consumer = identity.data::<Consumer>().ok_or(invalid_user("the consumer has no password"))?;
        let (name, password) = (consumer.username.as_bytes(), consumer.password.reveal().as_bytes());
        let body = ctx.body.as_deref().unwrap_or_default();
        let expected = answer.expected(*algorithm, name, password, ctx.request.method_token(), body);
        if !same_secret(&expected, &answer.response.to_ascii_lowercase()) {
            return Err(invalid_user("the digest is wrong").into());
        }
        let left_ms = self.left_ms(&answer.nonce, env).ok_or(Failure::Stale)?;
        let now_ms = process_ms();
        let is_first = self.common.uses.with(&answer.nonce, now_ms, |slot| {
            slot.expires_ms = slot.expires_ms.min(now_ms.saturating_add(left_ms));
            slot.value.is_first(answer.count)
        });
        if is_first { Ok(()) } else { Err(Failure::Stale) }
    }

    /// Lets the client in, or challenges it.
    fn end(&self, found: Result<Arc<Identity>, Failure>, ctx: &mut Context, env: &Env<'_>) -> Step {
        if self.config.policy.hide_credentials {
            ctx.request.headers.remove(HeaderId::Authorization);
        }
        let is_stale = matches!(found, Err(Failure::Stale));
        let found = found.map_err(|failure| match failure {
            Failure::Stale => invalid_user("the nonce is stale or was used before").with(Cause::Unjudged),
            Failure::Refused(refusal) => refusal,
        });
        let step = self.config.policy.conclude(ctx, env, found.as_ref().map_err(|refusal| *refusal));
        self.challenged(step, is_stale, env)
    }

    fn judge(&self, claim: &Claim, ctx: &mut Context, env: &Env<'_>) -> Step {
        let proven = self.prove(claim, ctx, env);
        self.end(proven.map(|()| Arc::clone(&claim.identity)), ctx, env)
    }

    /// Replaces the short challenge by the whole one of RFC 7616.
    fn challenged(&self, step: Step, is_stale: bool, env: &Env<'_>) -> Step {
        let Step::Reply(mut reply) = step else { return step };
        const CHALLENGE: &str = "WWW-Authenticate";
        reply.headers.retain(|(name, _)| !name.eq_ignore_ascii_case(CHALLENGE));
        let Some(nonce) = self.nonce(env) else { return Step::status(500) };
        let realm = &self.config.policy.realm;
        let stale = if is_stale { ", stale=true" } else { "" };
        let qop: Vec<&str> = self.config.qop.iter().map(|qop| qop.name()).collect();
        let qop = qop.join(", ");
        let hash = if self.config.userhash { ", userhash=true" } else { "" };
        let challenges = self.config.algorithms.iter().map(|algorithm| {
            let name = algorithm.name();
            format!("Digest realm=\"{realm}\", qop=\"{qop}\", algorithm={name}, nonce=\"{nonce}\", charset=UTF-8{hash}{stale}")
        });
        let reply = challenges.fold(*reply, |reply, challenge| reply.header(CHALLENGE, challenge.as_bytes()));
        reply.into()
    }
}

impl Plugin for DigestAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let verifier = &self.0;
        let claim = match verifier.claim(ctx, env) {
            Ok(claim) => claim,
            Err(failure) => return verifier.end(Err(failure), ctx, env),
        };
        if claim.answer.qop == Qop::Auth {
            return verifier.judge(&claim, ctx, env);
        }
        // Bodies are read only of those who were challenged.
        if verifier.left_ms(&claim.answer.nonce, env).is_none() {
            return verifier.end(Err(Failure::Stale), ctx, env);
        }
        let shared = Arc::clone(verifier);
        let then = move |ctx: &mut Context, env: &Env<'_>, read: BodyRead| match read {
            BodyRead::Whole => shared.judge(&claim, ctx, env),
            BodyRead::TooLarge => Step::status(413),
        };
        Step::ReadBody { limit: verifier.config.max_req_body_size, then: Box::new(then) }
    }
}
