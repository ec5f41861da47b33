//! `jwt-auth`: a signed token (RFC 7519) in a header, query argument or cookie.
//!
//! | file | role |
//! |---|---|
//! | `token` | text to header, claims and signature; the claims that have a time |
//! | `key` | what a consumer's tokens are verified with |

mod key;
mod token;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::variables::cookie;
use sigma_plugin::{Auth, Build, Context, Descriptor, Env, Identity, Phase, PhaseSet, Plugin, Step};

use self::key::Verifier;
use self::token::{Claim, Token};
use super::policy::{self, AuthPolicy, FieldName, Refusal, only_argument, remove_cookie};

const NAME: &str = "jwt-auth";

/// Recognises a consumer by a JSON Web Token.
pub(crate) static JWT_AUTH: Descriptor = Descriptor {
    name: NAME,
    priority: 2510,
    doc: "Recognises a consumer by a JSON Web Token that it signed.\n\n\
        The token is taken from the header, else from the query, else from a cookie. A claim names \
        the consumer's key; the consumer says the algorithm and the secret or public key, and a token \
        with any other algorithm is refused. `exp` and `nbf` are honoured where they are present.",
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Rewrite]),
    schema,
    auth: Some(Auth {
        attribute: "key",
        schema: key::schema,
        secret_fields: &["secret"],
        parse: |conf| Ok(Arc::new(Verifier::parse(conf)?)),
    }),
    warnings: Some(key::warnings),
    build: |build| Ok(Arc::new(JwtAuth::new(build)?)),
    ..Descriptor::BASE
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

fn schema() -> Value {
    policy::schema(
        "jwt",
        json!({
            "header": {
                "type": "string",
                "default": "authorization",
                "description": "The header that holds the token, with or without `Bearer` before it."
            },
            "query": {
                "type": "string",
                "default": "jwt",
                "description": "The query argument that holds the token where the header is absent."
            },
            "cookie": {
                "type": "string",
                "default": "jwt",
                "description": "The cookie that holds the token where header and argument are absent."
            },
            "key_claim_name": {
                "type": "string",
                "default": "key",
                "minLength": 1,
                "description": "The claim that holds the consumer's key."
            },
            "store_in_ctx": {
                "type": "boolean",
                "default": false,
                "description": "Whether later plugins find the claims, as JSON, in the variable `jwt_auth_payload`."
            },
            "claims_to_verify": {
                "type": "array",
                "items": {"type": "string", "enum": ["exp", "nbf"]},
                "uniqueItems": true,
                "description": "Claims that must be present, and in time. If empty, those that are present must be in time."
            }
        }),
    )
}

#[derive(Deserialize)]
struct Config {
    header: String,
    query: String,
    cookie: String,
    key_claim_name: String,
    store_in_ctx: bool,
    #[serde(default)]
    claims_to_verify: Vec<Claim>,
}

struct JwtAuth {
    policy: AuthPolicy,
    header: FieldName,
    config: Config,
}

/// What the client is told of a token that was read and is not good.
const FAILED: &str = "failed to verify jwt";

/// What the client is told of a token that cannot be read.
const INVALID: &str = "JWT token invalid";

impl JwtAuth {
    fn new(build: &Build<'_>) -> Result<JwtAuth, String> {
        let config: Config = build.config()?;
        Ok(JwtAuth {
            policy: AuthPolicy::new(NAME, "Bearer", build)?,
            header: FieldName::new(&config.header),
            config,
        })
    }

    /// The text of the token. Empty for a query argument that holds none.
    fn token(&self, ctx: &Context) -> Option<Vec<u8>> {
        const SCHEME: &[u8] = b"bearer ";
        if let Some(value) = self.header.find(&ctx.request.headers) {
            let bears = value.get(..SCHEME.len()).is_some_and(|head| head.eq_ignore_ascii_case(SCHEME));
            return Some(value[if bears { SCHEME.len() } else { 0 }..].to_vec());
        }
        only_argument(ctx, &self.config.query)
            .or_else(|| cookie(&ctx.request.headers, &self.config.cookie).map(<[u8]>::to_vec))
    }

    /// Takes the token out of the request, and what stands in its other places.
    fn hide(&self, ctx: &mut Context) {
        self.header.remove(&mut ctx.request.headers);
        ctx.hide_argument(&self.config.query);
        remove_cookie(&mut ctx.request.headers, &self.config.cookie);
    }

    fn verify<'e>(&self, token: &Token, env: &Env<'e>) -> Result<&'e Arc<Identity>, Refusal> {
        let key = match token.claims.get(&self.config.key_claim_name) {
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64().floor();
        token.in_time(&self.config.claims_to_verify, now, verifier.grace_s()).map_err(failed)?;
        Ok(identity)
    }
}

impl Plugin for JwtAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let text = self.token(ctx);
        if self.policy.hides {
            self.hide(ctx);
        }
        let Some(text) = text else {
            return self.policy.refuse(ctx, env, Refusal::plain("Missing JWT token in request"));
        };
        let token = match Token::parse(text) {
            Ok(token) => token,
            Err(detail) => return self.policy.refuse(ctx, env, Refusal { message: INVALID, detail }),
        };
        match self.verify(&token, env) {
            Ok(identity) => {
                if self.config.store_in_ctx {
                    let claims = Value::Object(token.claims).to_string();
                    ctx.set_variable("jwt_auth_payload", claims);
                }
                self.policy.admit(ctx, identity)
            }
            Err(refusal) => self.policy.refuse(ctx, env, refusal),
        }
    }
}

#[cfg(test)]
mod tests;
