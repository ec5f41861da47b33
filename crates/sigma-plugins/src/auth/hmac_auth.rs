//! `hmac-auth`: a request that its sender signed with a shared secret.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_config::Problem;
use sigma_config::plugins::PluginScope;
use sigma_config::resources::Confidential;
use sigma_http::HeaderId;
use sigma_plugin::step::BodyRead;
use sigma_plugin::{Auth, Configuration, Context, Descriptor, Env, Identity, Phase, PhaseSet, Plugin, Step};

use super::policy::{AuthPolicy, Refusal, Scheme, authorization, same_secret};

/// Recognises a consumer by a signature over the request.
pub(crate) static HMAC_AUTH: Descriptor = Descriptor {
    name: "hmac-auth",
    priority: 2530,
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Rewrite]),
    auth: Some(Auth::of::<Consumer>("key_id")),
    warnings: Some(warnings),
    build: |build| Ok(Arc::new(HmacAuth(Arc::new(build.config()?)))),
    ..Descriptor::of::<Config>()
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
consumers:
  - { username: jack, plugins: { hmac-auth: { key_id: jacks-id, secret_key: jacks-secret } } }
routes:
  - uri: /*
    plugins:
      hmac-auth: { signed_headers: [date, "@request-target"] }
    upstream: http://127.0.0.1:9000
```

```console
$ date=$(LC_ALL=C date -u '+%a, %d %b %Y %T GMT')
$ signature=$(printf 'jacks-id\nGET /orders\ndate: %s\n' "$date" |
    openssl dgst -sha256 -hmac jacks-secret -binary | base64)
$ parameters='keyId="jacks-id",algorithm="hmac-sha256",headers="@request-target date"'
$ curl -i http://127.0.0.1:9080/orders -H "Date: $date" \
    -H "Authorization: Signature $parameters,signature=\"$signature\""
HTTP/1.1 200 OK
…
    "x-consumer-username": "jack",
…
$ curl -i http://127.0.0.1:9080/orders
HTTP/1.1 401 Unauthorized
WWW-Authenticate: hmac realm="hmac"
…
```
"#;

/// Recognises a consumer by a signature over parts of the request.
///
/// `Authorization: Signature keyId="…",algorithm="hmac-sha256",headers="@request-target date",signature="…"`.
/// What is signed are lines that end in a line feed: the key id, then for each name in `headers` either
/// `name: value` or, for `@request-target`, the method and the URI. Of a field that is repeated the first
/// value is signed. The time of `Date` must be near; a replay within that time is not noticed.
///
/// **By default only `date` has to be signed, as in APISIX: whoever sees one signed request can send any
/// other for as long as its date is near.** Demand `signed_headers: ["date", "@request-target"]`, so that
/// method and URI are signed. With `validate_request_body` the body must have the SHA-256 that `Digest`
/// says; demand `digest` in `signed_headers` too, or it proves nothing.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Algorithms that requests may be signed with.
    #[schemars(length(min = 1), extend("default" = ["hmac-sha1", "hmac-sha256", "hmac-sha512"]))]
    allowed_algorithms: Vec<Algorithm>,
    /// Seconds by which `Date` may differ from the gateway's clock.
    #[schemars(range(min = 1), extend("default" = 300))]
    clock_skew: u64,
    /// Names that the client must list in `headers`, in this spelling. Without `@request-target` the client
    /// may leave method and URI unsigned.
    #[schemars(inner(length(min = 1, max = 50)), extend("default" = ["date"]))]
    signed_headers: Vec<String>,
    /// Whether the body must have the SHA-256 that the header `Digest` says.
    #[schemars(extend("default" = false))]
    validate_request_body: bool,
    /// Largest body that is validated, in bytes; it is held in memory.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    max_req_body_size: u64,
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
    /// What the client calls itself; no two consumers have the same one.
    #[serde(rename = "key_id")]
    #[schemars(length(min = 1, max = 256))]
    _key_id: String,
    /// The secret that the client signs with.
    #[schemars(length(min = 1, max = 256))]
    secret_key: Confidential,
}

impl Configuration for Consumer {}

/// What a configuration leaves unsigned. The defaults are those of APISIX.
fn warnings(scope: PluginScope, conf: &Value) -> Vec<Problem> {
    let names = conf.get("signed_headers").and_then(Value::as_array);
    let signed = |name: &str| names.is_some_and(|names| names.iter().any(|known| known == name));
    let validates = conf.get("validate_request_body") == Some(&Value::Bool(true));
    let cases = [
        (
            "signed_headers",
            !signed("@request-target"),
            "@request-target",
            "method and URI may be left unsigned",
        ),
        (
            "validate_request_body",
            validates && !signed("digest"),
            "digest",
            "the digest may be left unsigned",
        ),
    ];
    let open = cases.into_iter().filter(|(_, is_open, ..)| *is_open && scope == PluginScope::Http);
    open.map(|(field, _, name, what)| {
        let message = format!("{what}: whoever sees a signed request can send another in its place");
        Problem::new(field, "unsigned", message).hint(format!("write \"{name}\" in `signed_headers`"))
    })
    .collect()
}

/// What is left to do waits for the body, and shares the configuration.
struct HmacAuth(Arc<Config>);

/// What the client is told of every fault but those of the header's form.
const REFUSED: &str = "client request can't be validated";

const fn hidden(detail: &'static str) -> Refusal {
    Refusal { message: REFUSED, detail }
}

/// The name in `headers` that stands for the method and the URI.
const REQUEST_TARGET: &[u8] = b"@request-target";

/// The parameters of the header.
#[derive(Debug, Default, PartialEq)]
struct Signed {
    key_id: Option<Vec<u8>>,
    algorithm: Option<Vec<u8>>,
    signature: Option<Vec<u8>>,
    /// Names of what is signed, in order.
    headers: Vec<Vec<u8>>,
}

impl Signed {
    fn parse(value: Option<&[u8]>) -> Result<Signed, Refusal> {
        const MISSING: Refusal = Refusal {
            message: "client request can't be validated: missing Authorization header",
            detail: "missing Authorization header",
        };
        const OTHER_SCHEME: Refusal = Refusal {
            message: "client request can't be validated: Authorization header does not start with 'Signature'",
            detail: "Authorization header does not start with 'Signature'",
        };
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

/// The first `name="value"` of a list, and what follows it.
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
        // The lines of what is signed end in line feeds. One inside the decoded path would let
        // whoever saw a signature write lines of another field there.
        if ctx.uri.contains(&b'\n') && signed.headers.iter().any(|name| name == REQUEST_TARGET) {
            return Err(hidden("the path holds a line feed"));
        }
        let consumer = identity.data::<Consumer>().ok_or(hidden("the consumer has no secret"))?;
        let key = hmac::Key::new(algorithm, consumer.secret_key.reveal().as_bytes());
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
        }
        self.policy.conclude(ctx, env, outcome)
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

impl Plugin for HmacAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let config = &self.0;
        let identity = match config.authenticate(ctx, env) {
            Ok(identity) if config.validate_request_body => Arc::clone(identity),
            outcome => return config.end(ctx, env, outcome),
        };
        const INVALID: Refusal = hidden("Invalid digest");
        let Some(digest) = ctx.request.headers.find(b"digest").map(<[u8]>::to_vec) else {
            return config.end(ctx, env, Err(INVALID));
        };
        let limit = usize::try_from(config.max_req_body_size).unwrap_or(usize::MAX);
        let config = Arc::clone(config);
        let then = move |ctx: &mut Context, env: &Env<'_>, read: BodyRead| {
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
