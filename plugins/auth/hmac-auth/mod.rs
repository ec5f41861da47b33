//! `hmac-auth`: a request that its sender signed, with a shared secret or a private key.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_http::HeaderId;
use sigma_plugin::credentials::Credential;
use sigma_plugin::descriptor::parsed;
use sigma_plugin::step::BodyRead;
use sigma_plugin::{
    Auth, Build, Configuration, Context, Descriptor, Env, Identity, Phase, PhaseSet, Plugin, Step,
};
use sigma_schema::Confidential;
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;

use crate::shared::message_signatures::base::{self, Component};
use crate::shared::message_signatures::digest as content_digest;
use crate::shared::message_signatures::verify::{self, Claim, Nonces, Rules};
use crate::shared::policy::{AuthPolicy, Cause, Refusal, Scheme, authorization, same_secret};
use sigma_plugin_kit::key_pair::{PairAlgorithm, PublicKey, Verifier};

/// Recognises a consumer by a signature over the request.
pub(crate) static HMAC_AUTH: Descriptor = Descriptor {
    name: "hmac-auth",
    priority: 2530,
    example: include_str!("example.md"),
    credentials: Some(|_| vec![Credential::field("Signature")]),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    auth: Some(Auth {
        parse: |conf| Ok(Arc::new(Signatory::new(parsed(conf)?)?)),
        ..Auth::of::<Consumer>("key_id")
    }),
    warnings: Some(warnings),
    build: |build| Ok(Arc::new(HmacAuth::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Authenticates consumers by a signature over parts of the request (HMAC, RFC 9421).
///
/// `Authorization: Signature keyId="…",algorithm="hmac-sha256",headers="@request-target date",signature="…"`. The
/// signed text consists of lines that end in a line feed. The first line is the key id. Then each name in `headers`
/// has a line `name: value`, or for `@request-target` the method and the URI. Of a repeated field the first value is
/// signed. `Date` must be close to the gateway's time; a replay within this tolerance is not detected.
///
/// **Date, method and URI have to be signed by default. APISIX requires only `date`: an attacker who sees one signed
/// request can send any other while its date is valid**: `signed_headers: ["date"]` is for clients that cannot be
/// changed. With `validate_request_body` the body must match the SHA-256 in `Digest`; also require `digest` in
/// `signed_headers`, or it proves nothing.
///
/// With `message_signatures` requests are signed by RFC 9421 instead, in `Signature-Input` and `Signature`: with
/// `hmac-sha256` and a consumer's secret, or with the private key of a consumer's `public_key`. Method, host, path
/// and query have to be signed unless `components` says otherwise. A signature needs `keyid` and `created`; `created`
/// and `expires` are checked, and `alg`, if present, must match the key. A body whose `Content-Digest` (RFC 9530) is
/// signed must have that digest; with `validate_request_body` every body needs one. Components come from the request
/// as the client sent it, except for fields about the client that the gateway sets itself. Components of responses,
/// trailers and other requests are refused.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Permitted signature algorithms in `Authorization`.
    #[schemars(length(min = 1), extend("default" = ["hmac-sha1", "hmac-sha256", "hmac-sha512"]))]
    allowed_algorithms: Vec<Algorithm>,
    /// Seconds by which `Date`, or `created` of a message signature, may differ from the gateway's clock.
    #[schemars(range(min = 1), extend("default" = 300))]
    clock_skew: u64,
    /// Names that the client must list in `headers` of `Authorization`, in this spelling. Without `@request-target` the client
    /// may leave method and URI unsigned.
    #[schemars(inner(length(min = 1, max = 50)), extend("default" = ["date", "@request-target"]))]
    signed_headers: Vec<String>,
    /// Whether the body must match the SHA-256 in the header `Digest`; with a message signature, the digest in a
    /// signed `Content-Digest`.
    #[schemars(extend("default" = false))]
    validate_request_body: bool,
    /// Largest body that is validated, in bytes; it is held in memory.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    max_req_body_size: u64,
    /// Accepts HTTP message signatures (RFC 9421), with the components that they must cover.
    #[schemars(extend("own_default" = true))]
    message_signatures: Option<Rules>,
    #[serde(flatten)]
    policy: AuthPolicy<Self>,
}

impl Configuration for Config {}

impl Scheme for Config {
    const PLUGIN: &str = "hmac-auth";
    const NAME: &str = "hmac";
    const REALM: &str = "hmac";
}

#[derive(PartialEq, Deserialize, JsonSchema)]
enum Algorithm {
    #[serde(rename = "hmac-sha1")]
    Sha1,
    #[serde(rename = "hmac-sha256")]
    Sha256,
    #[serde(rename = "hmac-sha512")]
    Sha512,
}

impl Algorithm {
    /// That of a name, and how it is computed.
    fn of(name: &[u8]) -> Option<(Algorithm, hmac::Algorithm)> {
        match name {
            b"hmac-sha1" => Some((Algorithm::Sha1, hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY)),
            b"hmac-sha256" => Some((Algorithm::Sha256, hmac::HMAC_SHA256)),
            b"hmac-sha512" => Some((Algorithm::Sha512, hmac::HMAC_SHA512)),
            _ => None,
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[schemars(title = "work with consumer object")]
struct Consumer {
    /// The client's name; it must be unique among consumers.
    #[serde(rename = "key_id")]
    #[schemars(length(min = 1, max = 256))]
    _key_id: String,
    /// The secret that signs requests. Without it `public_key` is required.
    #[schemars(length(min = 1, max = 256))]
    secret_key: Option<Confidential>,
    /// The public key (PEM) for message signatures; `secret_key` is then not accepted for them.
    #[schemars(length(min = 1, max = 8192))]
    public_key: Option<String>,
    /// The algorithm of the public key.
    algorithm: Option<PairAlgorithm>,
}

impl Configuration for Consumer {
    fn check(&self) -> Result<(), String> {
        match (&self.secret_key, &self.public_key, &self.algorithm) {
            (None, None, _) => Err("property \"secret_key\" is required".to_owned()),
            (_, Some(_), None) => Err("property \"algorithm\" is required with a public_key".to_owned()),
            (_, None, Some(_)) => Err("algorithm: it has no effect without a public_key".to_owned()),
            _ => Ok(()),
        }
    }
}

/// The keys that verify a consumer's signatures.
struct Signatory {
    secret: Option<Confidential>,
    public_key: Option<PublicKey>,
}

impl Signatory {
    fn new(consumer: Consumer) -> Result<Signatory, String> {
        let pair = consumer.public_key.as_deref().zip(consumer.algorithm);
        let public_key = pair.map(|(pem, algorithm)| PublicKey::parse(pem, algorithm)).transpose()?;
        Ok(Signatory { secret: consumer.secret_key, public_key })
    }

    /// For message signatures. One key, for any content of the message.
    fn verifier(&self) -> Option<Verifier<'_>> {
        let secret = || self.secret.as_ref().map(|secret| Verifier::Secret(secret.reveal().as_bytes()));
        self.public_key.as_ref().map(Verifier::Public).or_else(secret)
    }
}

/// Returns warnings about parts that a configuration leaves unsigned.
fn warnings(scope: PluginScope, conf: &Value) -> Vec<Problem> {
    if scope != PluginScope::Http {
        return Vec::new();
    }
    let validates = conf.get("validate_request_body") == Some(&Value::Bool(true));
    let rules = conf.get("message_signatures");
    let components = rules.and_then(|rules| rules.get("components")).and_then(Value::as_array);
    let components = components.map(|names| {
        let names = names.iter().filter_map(Value::as_str);
        names.filter_map(|name| Component::try_from(name.to_owned()).ok()).collect::<Vec<_>>()
    });
    let signs_message = components
        .is_none_or(|names| ["@method", "@path"].iter().all(|name| base::is_settled_by(name, &names)));
    let by_field = rules.is_none_or(|rules| rules.get("accept_authorization") == Some(&Value::Bool(true)));
    let names = conf.get("signed_headers").and_then(Value::as_array);
    let signed = |name: &str| {
        let is_default = name == "@request-target";
        !by_field || names.map_or(is_default, |names| names.iter().any(|known| known == name))
    };
    let cases = [
        (
            "signed_headers",
            !signed("@request-target"),
            "\"@request-target\" in `signed_headers`",
            "method and URI may be left unsigned",
        ),
        (
            "validate_request_body",
            validates && !signed("digest"),
            "\"digest\" in `signed_headers`",
            "the digest may be left unsigned",
        ),
        (
            "message_signatures.components",
            !signs_message,
            "\"@method\" and \"@target-uri\" in `components`",
            "method or path may be left unsigned",
        ),
    ];
    let open = cases.into_iter().filter(|(_, is_open, ..)| *is_open);
    open.map(|(field, _, remedy, what)| {
        let message = format!("{what}: an attacker who sees a signed request can replace it");
        Problem::new(field, "unsigned", message).hint(format!("write {remedy}"))
    })
    .collect()
}

/// The remaining checks wait for the body, and share this.
struct HmacAuth(Arc<Shared>);

struct Shared {
    config: Config,
    /// The resource with the configuration: a nonce is used once there.
    place: Box<str>,
    nonces: Arc<Nonces>,
}

impl HmacAuth {
    fn new(build: &Build<'_>) -> Result<HmacAuth, String> {
        let (config, nonces) = (build.config()?, build.node.inherited(Nonces::default));
        Ok(HmacAuth(Arc::new(Shared { config, place: build.resource.into(), nonces })))
    }
}

/// The client's message for every fault but faults of the header's form.
const REFUSED: &str = "client request can't be validated";

const fn hidden(detail: &'static str) -> Refusal {
    Refusal::new(REFUSED, detail)
}

/// The name in `headers` for the method and the URI.
const REQUEST_TARGET: &[u8] = b"@request-target";

/// The parameters of the header.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Signed {
    pub(super) key_id: Option<Vec<u8>>,
    algorithm: Option<Vec<u8>>,
    pub(super) signature: Option<Vec<u8>>,
    /// Names of the signed parts, in order.
    pub(super) headers: Vec<Vec<u8>>,
}

impl Signed {
    pub(super) fn parse(value: Option<&[u8]>) -> Result<Signed, Refusal> {
        const MISSING: Refusal = Refusal::new(
            "client request can't be validated: missing Authorization header",
            "missing Authorization header",
        )
        .with(Cause::Absent);
        const OTHER_SCHEME: Refusal = Refusal::new(
            "client request can't be validated: Authorization header does not start with 'Signature'",
            "Authorization header does not start with 'Signature'",
        )
        .with(Cause::Absent);
        let mut rest = value.ok_or(MISSING)?.strip_prefix(b"Signature").ok_or(OTHER_SCHEME)?;
        let mut signed = Signed::default();
        while let Some((name, value, after)) = parameter(rest) {
            match name {
                b"keyId" => signed.key_id = Some(value.to_vec()),
                b"algorithm" => signed.algorithm = Some(value.to_vec()),
                b"signature" => signed.signature = Some(value.to_vec()),
                b"headers" => {
                    let names = value.split(|b| *b == b' ').filter(|name| !name.is_empty());
                    signed.headers = names.map(<[u8]>::to_vec).collect();
                }
                _ => {}
            }
            rest = after;
        }
        Ok(signed)
    }

    /// The text that the client has signed.
    fn text(&self, key_id: &[u8], ctx: &Context) -> Vec<u8> {
        let mut text = [key_id, b"\n"].concat();
        for name in &self.headers {
            if let Some(value) = ctx.request.headers.find(name) {
                text.extend_from_slice(&[name, &b": "[..], value, b"\n"].concat());
            } else if name == REQUEST_TARGET {
                let uri = ctx.request_uri();
                text.extend_from_slice(&[ctx.request.method_token(), b" ", &uri, b"\n"].concat());
            }
        }
        text
    }
}

/// Returns the first `name="value"` of a list, and the rest.
fn parameter(list: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let at = list.windows(2).position(|pair| pair == b"=\"")?;
    let name = list[..at].rsplit(|b| *b == b',').next().unwrap_or_default().trim_ascii();
    let rest = &list[at + 2..];
    let end = rest.iter().position(|b| *b == b'"')?;
    Some((name, &rest[..end], &rest[end + 1..]))
}

impl Config {
    /// Everything but the body.
    fn authenticate<'e>(&self, ctx: &Context, env: &Env<'e>) -> Result<&'e Arc<Identity>, Refusal> {
        let signed = Signed::parse(authorization(ctx))?;
        let (Some(key_id), Some(signature)) = (&signed.key_id, &signed.signature) else {
            return Err(hidden("keyId or signature missing"));
        };
        let name = signed.algorithm.as_deref().ok_or(hidden("algorithm missing"))?;
        let identity = self.policy.find(env, key_id, "Invalid key_id").map_err(hidden)?;
        let is_allowed = |(named, _): &(Algorithm, _)| self.allowed_algorithms.contains(named);
        let (_, algorithm) = Algorithm::of(name).filter(is_allowed).ok_or(hidden("Invalid algorithm"))?;
        self.check_date(ctx, env.unix_time())?;
        let lists = |name: &String| signed.headers.iter().any(|listed| listed == name.as_bytes());
        if !self.signed_headers.iter().all(lists) {
            return Err(hidden("an expected header is missing in signing"));
        }
        // The signed lines end in line feeds. One inside the decoded path would let an attacker who saw a
        // signature write lines of another field there.
        if ctx.uri.contains(&b'\n') && signed.headers.iter().any(|name| name == REQUEST_TARGET) {
            return Err(hidden("the path contains a line feed"));
        }
        const NO_SECRET: Refusal = hidden("the consumer has no secret");
        let secret = identity.data::<Signatory>().and_then(|signatory| signatory.secret.as_ref());
        let key = hmac::Key::new(algorithm, secret.ok_or(NO_SECRET)?.reveal().as_bytes());
        let signature = STANDARD.decode(signature).map_err(|_| hidden("Invalid signature"))?;
        hmac::verify(&key, &signed.text(key_id, ctx), &signature).map_err(|_| hidden("Invalid signature"))?;
        Ok(identity)
    }

    fn check_date(&self, ctx: &Context, now: Duration) -> Result<(), Refusal> {
        let date = ctx
            .request
            .headers
            .get(HeaderId::Date)
            .ok_or(hidden("Date header missing. failed to validate clock skew"))?;
        let date = std::str::from_utf8(date).ok().and_then(|date| httpdate::parse_http_date(date).ok());
        let date = date.ok_or(hidden("Invalid GMT format time"))?;
        let date = date.duration_since(UNIX_EPOCH).unwrap_or_default();
        if now.as_secs().abs_diff(date.as_secs()) > self.clock_skew {
            return Err(hidden("Clock skew exceeded"));
        }
        Ok(())
    }

    /// Lets the signer in, or refuses.
    fn end(&self, ctx: &mut Context, env: &Env<'_>, outcome: Result<&Arc<Identity>, Refusal>) -> Step {
        if self.policy.hide_credentials {
            ctx.request.headers.remove(HeaderId::Authorization);
            if self.message_signatures.is_some() {
                verify::hide(&mut ctx.request.headers);
            }
        }
        self.policy.conclude(ctx, env, outcome)
    }

    fn body_limit(&self) -> usize {
        usize::try_from(self.max_req_body_size).unwrap_or(usize::MAX)
    }

    fn too_large(&self, ctx: &Context) -> Step {
        let limit = self.max_req_body_size;
        let announced = ctx.request.headers.get(HeaderId::ContentLength);
        let announced = announced.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        // Of a body in chunks no more is known than that it did not end within the limit.
        let size = announced.unwrap_or(limit.saturating_add(1));
        let message = format!("request size {size} is greater than the maximum size {limit} allowed");
        Step::json(413, &json!({ "message": message }))
    }
}

impl Shared {
    /// Returns the owner of the message signature, after all checks but the checks of the body and the nonce.
    fn signer<'e>(
        &self,
        rules: &Rules,
        ctx: &Context,
        env: &Env<'e>,
    ) -> Result<(&'e Arc<Identity>, Claim), Refusal> {
        let claim = rules.claim(&ctx.request.headers).map_err(hidden)?;
        let found = self.config.policy.find(env, claim.key_id.as_bytes(), "Invalid key_id");
        let identity = found.map_err(hidden)?;
        let verifier = identity.data::<Signatory>().and_then(Signatory::verifier);
        let verifier = verifier.ok_or(hidden("the consumer has no key"))?;
        claim.verify(ctx, &verifier, env.unix_time().as_secs(), self.config.clock_skew).map_err(hidden)?;
        Ok((identity, claim))
    }

    fn message(self: &Arc<Self>, rules: &Rules, ctx: &mut Context, env: &Env<'_>) -> Step {
        let (identity, claim) = match self.signer(rules, ctx, env) {
            Ok((identity, claim)) => (Arc::clone(identity), claim),
            Err(refusal) => return self.config.end(ctx, env, Err(refusal)),
        };
        if !claim.binds_body() && !self.config.validate_request_body {
            return self.accept(&identity, &claim, ctx, env);
        }
        let shared = Arc::clone(self);
        let then = move |ctx: &mut Context, env: &Env<'_>, read: BodyRead| {
            let body = ctx.body.as_deref().unwrap_or_default();
            let is_signed = match claim.binds_body() {
                true => base::joined(&ctx.request.headers, "content-digest")
                    .is_some_and(|digests| content_digest::matches(&digests, body)),
                false => body.is_empty(),
            };
            match read {
                BodyRead::TooLarge => shared.config.too_large(ctx),
                BodyRead::Whole if is_signed => shared.accept(&identity, &claim, ctx, env),
                BodyRead::Whole => shared.config.end(ctx, env, Err(hidden("Invalid digest"))),
            }
        };
        Step::ReadBody { limit: self.config.body_limit(), then: Box::new(then) }
    }

    /// The last check, as it is the one that changes something: a client that fails another one must not use
    /// up the nonce of the signer.
    fn accept(&self, identity: &Arc<Identity>, claim: &Claim, ctx: &mut Context, env: &Env<'_>) -> Step {
        let is_first = claim.is_first(&self.nonces, &self.place, self.config.clock_skew);
        let outcome = if is_first { Ok(identity) } else { Err(hidden("the nonce was used before")) };
        self.config.end(ctx, env, outcome)
    }
}

impl Plugin for HmacAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let config = &self.0.config;
        if let Some(rules) = &config.message_signatures
            && (!rules.accept_authorization || verify::is_claimed(&ctx.request.headers))
        {
            return self.0.message(rules, ctx, env);
        }
        let identity = match config.authenticate(ctx, env) {
            Ok(identity) if config.validate_request_body => Arc::clone(identity),
            outcome => return config.end(ctx, env, outcome),
        };
        const INVALID: Refusal = hidden("Invalid digest");
        let Some(digest) = ctx.request.headers.find(b"digest").map(<[u8]>::to_vec) else {
            return config.end(ctx, env, Err(INVALID));
        };
        let (limit, shared) = (config.body_limit(), Arc::clone(&self.0));
        let then = move |ctx: &mut Context, env: &Env<'_>, read: BodyRead| {
            let config = &shared.config;
            if read == BodyRead::TooLarge {
                return config.too_large(ctx);
            }
            let body = ctx.body.as_deref().unwrap_or_default();
            let found = format!("SHA-256={}", STANDARD.encode(digest::digest(&digest::SHA256, body)));
            let same = same_secret(found.as_bytes(), &digest);
            config.end(ctx, env, if same { Ok(&identity) } else { Err(INVALID) })
        };
        Step::ReadBody { limit, then: Box::new(then) }
    }
}
