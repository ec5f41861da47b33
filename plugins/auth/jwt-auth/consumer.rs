//! Keys that verify the tokens of a consumer.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::{Configuration, Env};
use sigma_schema::Confidential;
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;

use crate::shared::tokens::{
    Address, Ages, Algorithm, Key, KeyRing, KeySource, Lookup, SourceSettings, Token, WebSettings,
    short_rsa_bits,
};
use sigma_plugin_kit::service::cleartext;

/// The configuration of a consumer or credential.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Consumer {
    /// Key claim of the consumer's tokens; it must be unique among consumers.
    #[serde(rename = "key")]
    #[schemars(length(min = 1))]
    _key: String,
    /// The shared secret of the algorithms HS256, HS384 and HS512.
    #[schemars(length(min = 1))]
    secret: Option<Confidential>,
    /// The public key of all other algorithms, PEM.
    #[schemars(length(min = 1))]
    public_key: Option<String>,
    /// The signature algorithm of the consumer's tokens.
    #[schemars(extend("default" = "HS256"))]
    algorithm: Algorithm,
    /// Without effect, as in APISIX: tokens are issued elsewhere with their own `exp`.
    #[serde(rename = "exp")]
    #[schemars(range(min = 1), extend("default" = 86400))]
    _exp: u64,
    /// Whether `secret` is written in base64.
    #[schemars(extend("default" = false))]
    base64_secret: bool,
    /// Tolerated clock difference in seconds for `exp` and `nbf`.
    #[schemars(extend("default" = 0))]
    lifetime_grace_period: u64,
    /// Whether `public_key` may be an RSA key of 1,024 to 2,047 bits, for RS256 and RS512. Such keys can be forged with
    /// effort; use this only until they are replaced.
    #[schemars(extend("default" = false, "own_default" = true))]
    allow_short_rsa_key: bool,
    /// Required `iss` of the consumer's tokens.
    #[schemars(length(min = 1))]
    issuer: Option<String>,
    /// The URL of a key set (JWKS, RFC 7517), instead of `public_key`. It is fetched when a token needs it, and again
    /// when a token names a missing key. Redirects are not followed. Symmetric and private keys, RSA keys under 2,048
    /// bits, and keys that are not for signatures are ignored.
    jwks_uri: Option<Address>,
    /// Whether the certificate of `jwks_uri` is verified, by the authorities of the system; true by default.
    jwks_ssl_verify: Option<bool>,
    /// Timeout in seconds for fetching the keys; 3 by default.
    #[schemars(range(min = 1, max = 60))]
    jwks_timeout: Option<u64>,
    /// Seconds after which the keys are fetched again; 3600 by default.
    #[schemars(range(min = 1))]
    jwks_max_age: Option<u64>,
    /// Seconds for which old keys are still used if the issuer is unreachable; 86400 by default.
    jwks_stale_if_error: Option<u64>,
    /// Minimum seconds between two fetches, regardless of clients; 5 by default.
    #[schemars(range(min = 1))]
    jwks_cooldown: Option<u64>,
}

impl Configuration for Consumer {}

/// Returns warnings about the configuration of a consumer or credential.
pub(super) fn warnings(scope: PluginScope, conf: &Value) -> Vec<Problem> {
    if scope != PluginScope::Consumer {
        return super::warnings(conf);
    }
    let text = |field: &str| conf.get(field).and_then(Value::as_str).unwrap_or_default();
    let mut found = Vec::new();
    if conf.get("exp").is_some() {
        let message = "`exp` has no effect: the `exp` of the token decides";
        found.push(Problem::new("exp", "no_effect", message).hint("remove it"));
    }
    if conf.get("allow_short_rsa_key") == Some(&Value::Bool(true)) {
        let algorithm = conf.get("algorithm").and_then(|name| Algorithm::deserialize(name).ok());
        if let Some(bits) = algorithm.and_then(|algorithm| short_rsa_bits(text("public_key"), algorithm)) {
            let message = format!("an RSA key of {bits} bits is too weak");
            found
                .push(Problem::new("public_key", "weak_key", message).hint("use a key of 2048 bits or more"));
        }
    }
    let message = "the keys are fetched in cleartext: an attacker on the network path can sign tokens";
    found.extend(cleartext(conf, "jwks_uri", message));
    if conf.get("jwks_ssl_verify") == Some(&Value::Bool(false)) {
        let message = "another server can impersonate the issuer and sign tokens";
        found.push(Problem::new("jwks_ssl_verify", "unverified", message).hint("remove it"));
    }
    found
}

/// The keys that verify a consumer's tokens.
pub(super) struct Verifier {
    grace_s: f64,
    issuer: Option<String>,
    keys: Keys,
}

enum Keys {
    /// The consumer's own secret.
    Secret(Key),
    /// The consumer's own public key: its valid signatures are cached.
    Public(Arc<KeyRing>),
    /// The keys that an issuer publishes.
    Published { algorithm: Algorithm, settings: Box<SourceSettings>, source: OnceLock<Arc<KeySource>> },
}

impl Verifier {
    /// That of a consumer.
    ///
    /// # Errors
    /// Returns an error, worded as APISIX words it, if something is missing or wrong.
    pub(super) fn new(consumer: Consumer) -> Result<Verifier, String> {
        let algorithm = consumer.algorithm;
        let keys = match &consumer.jwks_uri {
            Some(address) => published_keys(&consumer, address)?,
            None if let Some(field) = idle_field(&consumer) => {
                return Err(format!("`{field}` has no effect without `jwks_uri`: remove it"));
            }
            None if algorithm.shared().is_some() => Keys::Secret(secret_key(&consumer)?),
            None => Keys::Public(Arc::new(public_key(&consumer)?.into())),
        };
        // The schema has no upper bound; 2^52 seconds are longer than any clock runs.
        let grace_s = consumer.lifetime_grace_period as f64;
        Ok(Verifier { grace_s, issuer: consumer.issuer, keys })
    }

    /// Seconds by which clocks may differ.
    pub(super) fn grace_s(&self) -> f64 {
        self.grace_s
    }

    /// Whether the consumer signed the token, and is who issued it. `is_last`: keys were fetched for it already.
    pub(super) fn verify(&self, token: &Token, env: &Env<'_>, is_last: bool) -> Lookup {
        if let Some(issuer) = &self.issuer
            && token.text_claim("iss") != Some(issuer)
        {
            return Lookup::Refused("'iss' is another issuer");
        }
        let judged = |verdict| match verdict {
            Ok(()) => Lookup::Verified,
            Err(reason) => Lookup::Refused(reason),
        };
        match &self.keys {
            Keys::Secret(key) => judged(key.verify(token)),
            Keys::Public(ring) => judged(ring.verify(token, env)),
            Keys::Published { algorithm, settings, source } => {
                let source = source.get_or_init(|| KeySource::of(SourceSettings::clone(settings), env.node));
                source.verify(token, &[*algorithm], env, is_last)
            }
        }
    }
}

/// A field that says something of `jwks_uri`.
fn idle_field(consumer: &Consumer) -> Option<&'static str> {
    let fields = [
        ("jwks_ssl_verify", consumer.jwks_ssl_verify.is_some()),
        ("jwks_timeout", consumer.jwks_timeout.is_some()),
        ("jwks_max_age", consumer.jwks_max_age.is_some()),
        ("jwks_stale_if_error", consumer.jwks_stale_if_error.is_some()),
        ("jwks_cooldown", consumer.jwks_cooldown.is_some()),
    ];
    fields.into_iter().find(|(_, is_set)| *is_set).map(|(field, _)| field)
}

fn published_keys(consumer: &Consumer, address: &Address) -> Result<Keys, String> {
    let algorithm = consumer.algorithm;
    if algorithm.shared().is_some() {
        return Err("jwks_uri: published keys are public; set `algorithm` to a public-key algorithm of the issuer, such as RS256 or ES256"
            .to_owned());
    }
    for (field, is_set) in [
        ("public_key", consumer.public_key.is_some()),
        ("secret", consumer.secret.is_some()),
        ("base64_secret", consumer.base64_secret),
        ("allow_short_rsa_key", consumer.allow_short_rsa_key),
    ] {
        if is_set {
            return Err(format!("`{field}` has no effect together with `jwks_uri`: remove one of them"));
        }
    }
    let seconds = |written: Option<u64>, usual| Duration::from_secs(written.unwrap_or(usual));
    let settings = SourceSettings {
        address: address.clone(),
        web: WebSettings::new(seconds(consumer.jwks_timeout, 3), consumer.jwks_ssl_verify.unwrap_or(true)),
        ages: Ages {
            max_age: seconds(consumer.jwks_max_age, 3600),
            stale_if_error: seconds(consumer.jwks_stale_if_error, 86_400),
            cooldown: seconds(consumer.jwks_cooldown, 5),
        },
    };
    Ok(Keys::Published { algorithm, settings: Box::new(settings), source: OnceLock::new() })
}

fn secret_key(consumer: &Consumer) -> Result<Key, String> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    const MISSING: &str = "property \"secret\" is required when using HS based algorithms";
    let secret = consumer.secret.as_ref().map(Confidential::reveal).ok_or(MISSING)?;
    if !consumer.base64_secret {
        return Key::secret(consumer.algorithm, secret.as_bytes()).ok_or_else(|| MISSING.to_owned());
    }
    let secret = LENIENT
        .decode(secret)
        .map_err(|_| "base64_secret required but the secret is not in base64 format")?;
    if secret.is_empty() {
        return Err("property \"secret\" validation failed: it is empty after decoding".to_owned());
    }
    Key::secret(consumer.algorithm, &secret).ok_or_else(|| MISSING.to_owned())
}

fn public_key(consumer: &Consumer) -> Result<Key, String> {
    let pem = consumer.public_key.as_deref().ok_or(
        "failed to validate dependent schema for \"algorithm\": \
        value should match only one schema, but matches none",
    )?;
    Key::of_pem(pem, consumer.algorithm, consumer.allow_short_rsa_key)
}
