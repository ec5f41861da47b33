//! `jwt-auth`: a signed token (RFC 7519) in a header, query argument or cookie.
//!
//! | file | role |
//! |---|---|
//! | `token` | text to header, claims and signature; the claims that have a time |
//! | `key` | what a consumer's tokens are verified with |

mod key;
mod token;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::descriptor::parsed;
use sigma_plugin::variables::cookie;
use sigma_plugin::{Auth, Configuration, Context, Descriptor, Env, Identity, Phase, PhaseSet, Plugin, Step};

use self::key::Verifier;
use self::token::{Claim, Token};
use super::policy::{AuthPolicy, FieldName, Refusal, Scheme, only_argument, remove_cookie};

/// Recognises a consumer by a JSON Web Token.
pub(crate) static JWT_AUTH: Descriptor = Descriptor {
    name: "jwt-auth",
    priority: 2510,
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Rewrite]),
    auth: Some(Auth {
        parse: |conf| Ok(Arc::new(Verifier::new(parsed(conf)?)?)),
        ..Auth::of::<key::Consumer>("key")
    }),
    warnings: Some(key::warnings),
    ..Descriptor::itself::<JwtAuth>()
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
consumers:
  - username: jack
    plugins: { jwt-auth: { key: jacks-key, secret: a-secret-of-at-least-32-characters } }
routes:
  - uri: /*
    plugins:
      jwt-auth: {}
    upstream: http://127.0.0.1:9000
```

```console
$ encoded() { base64 -w0 | tr '+/' '-_' | tr -d '='; }
$ claims=$(echo '{"alg":"HS256"}' | encoded).$(echo '{"key":"jacks-key"}' | encoded)
$ signature=$(printf %s "$claims" |
    openssl dgst -sha256 -hmac a-secret-of-at-least-32-characters -binary | encoded)
$ curl -H "Authorization: Bearer $claims.$signature" http://127.0.0.1:9080/orders
…
    "x-consumer-username": "jack",
…
$ curl -i http://127.0.0.1:9080/orders
HTTP/1.1 401 Unauthorized
WWW-Authenticate: Bearer realm="jwt"
…
{"message":"Missing JWT token in request"}
```
"#;

/// Recognises a consumer by a JSON Web Token that it signed.
///
/// The token is taken from the header, else from the query, else from a cookie. A claim names the
/// consumer's key; the consumer says the algorithm and the secret or public key, and a token with any
/// other algorithm is refused. `exp` and `nbf` are honoured where they are present.
#[derive(Deserialize, JsonSchema)]
struct JwtAuth {
    /// The header that holds the token, with or without `Bearer` before it.
    #[schemars(extend("default" = "authorization"))]
    header: FieldName,
    /// The query argument that holds the token where the header is absent.
    #[schemars(extend("default" = "jwt"))]
    query: String,
    /// The cookie that holds the token where header and argument are absent.
    #[schemars(extend("default" = "jwt"))]
    cookie: String,
    /// The claim that holds the consumer's key.
    #[schemars(length(min = 1), extend("default" = "key"))]
    key_claim_name: String,
    /// Whether later plugins find the claims, as JSON, in the variable `jwt_auth_payload`.
    #[schemars(extend("default" = false))]
    store_in_ctx: bool,
    /// Claims that must be present, and in time. If empty, those that are present must be in time.
    #[schemars(extend("uniqueItems" = true))]
    claims_to_verify: Option<Vec<Claim>>,
    #[serde(flatten)]
    policy: AuthPolicy<Self>,
}

impl Configuration for JwtAuth {}

impl Scheme for JwtAuth {
    const PLUGIN: &str = "jwt-auth";
    const NAME: &str = "Bearer";
    const REALM: &str = "jwt";
}

/// What the client is told of a token that was read and is not good.
const FAILED: &str = "failed to verify jwt";

/// What the client is told of a token that cannot be read.
const INVALID: &str = "JWT token invalid";

impl JwtAuth {
    /// The text of the token. Empty for a query argument that holds none.
    fn token(&self, ctx: &Context) -> Option<Vec<u8>> {
        const SCHEME: &[u8] = b"bearer ";
        if let Some(value) = self.header.find(&ctx.request.headers) {
            let bears = value.get(..SCHEME.len()).is_some_and(|head| head.eq_ignore_ascii_case(SCHEME));
            return Some(value[if bears { SCHEME.len() } else { 0 }..].to_vec());
        }
        only_argument(ctx, &self.query)
            .or_else(|| cookie(&ctx.request.headers, &self.cookie).map(<[u8]>::to_vec))
    }

    /// Takes the token out of the request, and what stands in its other places.
    fn hide(&self, ctx: &mut Context) {
        self.header.remove(&mut ctx.request.headers);
        ctx.hide_argument(&self.query);
        remove_cookie(&mut ctx.request.headers, &self.cookie);
    }

    fn verify<'e>(&self, token: &Token, env: &Env<'e>) -> Result<&'e Arc<Identity>, Refusal> {
        let key = match token.claims.get(&self.key_claim_name) {
            None | Some(Value::Bool(false)) => return Err(Refusal::plain("missing user key in JWT token")),
            Some(key) => key.as_str(),
        };
        const UNKNOWN: &str = "Invalid user key in JWT token";
        // A number is nobody's key, whatever its digits.
        let key = key.ok_or(Refusal { message: UNKNOWN, detail: "the user key is no text" })?;
        let identity = self
            .policy
            .find(env, key.as_bytes(), UNKNOWN)
            .map_err(|detail| Refusal { message: UNKNOWN, detail })?;
        let failed = |detail| Refusal { message: FAILED, detail };
        let verifier = identity.data::<Verifier>().ok_or(failed("the consumer has no key"))?;
        verifier.verify(token).map_err(failed)?;
        let now = env.unix_time().as_secs_f64().floor();
        let required = self.claims_to_verify.as_deref().unwrap_or_default();
        token.in_time(required, now, verifier.grace_s()).map_err(failed)?;
        Ok(identity)
    }
}

impl JwtAuth {
    fn authenticate<'e>(&self, ctx: &mut Context, env: &Env<'e>) -> Result<&'e Arc<Identity>, Refusal> {
        let text = self.token(ctx);
        if self.policy.hide_credentials {
            self.hide(ctx);
        }
        let text = text.ok_or(Refusal::plain("Missing JWT token in request"))?;
        let token = Token::parse(text).map_err(|detail| Refusal { message: INVALID, detail })?;
        let identity = self.verify(&token, env)?;
        if self.store_in_ctx {
            ctx.set_variable("jwt_auth_payload", Value::Object(token.claims).to_string());
        }
        Ok(identity)
    }
}

impl Plugin for JwtAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let found = self.authenticate(ctx, env);
        self.policy.conclude(ctx, env, found)
    }
}

#[cfg(test)]
mod tests;
