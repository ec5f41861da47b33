//! `jwt-auth`: a signed token (RFC 7519) in a header, query argument or cookie.
//!
//! | file | role |
//! |---|---|
//! | `consumer` | the keys that verify a consumer's tokens |
//! | `claim_fields` | claims as fields that the node gets |

mod claim_fields;
mod consumer;

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::credentials::Credential;
use sigma_plugin::descriptor::parsed;
use sigma_plugin::owned::texts;
use sigma_plugin::variables::cookie;
use sigma_plugin::{
    Auth, Build, Configuration, Context, Descriptor, Env, Identity, Phase, PhaseSet, Plugin, Step,
};
use sigma_schema::Problem;

use self::claim_fields::ClaimFields;
use self::consumer::Verifier;
use crate::shared::policy::{AuthPolicy, Cause, FieldName, Refusal, Scheme, only_argument, remove_cookie};
use crate::shared::tokens::{Claim, Lookup, Token, after_bearer, is_for};

/// Recognises a consumer by a JSON Web Token.
pub(crate) static JWT_AUTH: Descriptor = Descriptor {
    name: "jwt-auth",
    priority: 2510,
    example: include_str!("example.md"),
    credentials: Some(|conf| {
        let fields = texts(conf, "header").map(Credential::field);
        fields.chain(texts(conf, "query").map(Credential::argument)).collect()
    }),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    auth: Some(Auth {
        parse: |conf| Ok(Arc::new(Verifier::new(parsed(conf)?)?)),
        ..Auth::of::<consumer::Consumer>("key")
    }),
    warnings: Some(consumer::warnings),
    owned_fields: Some(claim_fields::owned_fields),
    build: |build| Ok(Arc::new(JwtAuth::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Authenticates consumers by a signed JSON Web Token (JWT).
///
/// The token is in the header, else in the query, else in a cookie. A claim contains the consumer's key. The consumer
/// has the algorithm and the secret or public key; a token with another algorithm is refused. `exp` and `nbf` are
/// checked if they are present.
///
/// Instead of a key a consumer may have the URL of an issuer's keys, `jwks_uri`: the issuer can then change them at
/// any time. With `key_claim_name: iss` such a consumer is an issuer, and represents all users with its tokens.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The header with the token, with or without a `Bearer` prefix.
    #[schemars(extend("default" = "authorization"))]
    header: FieldName,
    /// The query argument with the token, if the header is absent.
    #[schemars(extend("default" = "jwt"))]
    query: String,
    /// The cookie with the token, if header and argument are absent.
    #[schemars(extend("default" = "jwt"))]
    cookie: String,
    /// The claim with the consumer's key.
    #[schemars(length(min = 1), extend("default" = "key"))]
    key_claim_name: String,
    /// Whether later plugins get the claims, as JSON, in the variable `jwt_auth_payload`.
    #[schemars(extend("default" = false))]
    store_in_ctx: bool,
    /// Time claims that must be present and valid. If empty, only present ones are checked.
    #[schemars(extend("uniqueItems" = true))]
    claims_to_verify: Option<Vec<Claim>>,
    /// Whether a token must have `exp`; false by default, true with `profile: edge`. Sigma's own.
    require_exp: Option<bool>,
    /// Permitted audiences: the claim `aud` must name one of them.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    audience: Option<Vec<String>>,
    /// Claims of a valid token for the node, each with its header field: `{sub: X-User}`. The node never gets these
    /// fields from the client. Lists and objects are written as JSON.
    claims_to_headers: Option<ClaimFields>,
    #[serde(flatten)]
    policy: AuthPolicy<Bearer>,
}

impl Configuration for Config {}

/// The scheme of RFC 6750.
struct Bearer;

impl Scheme for Bearer {
    const PLUGIN: &str = "jwt-auth";
    const NAME: &str = "Bearer";
    const REALM: &str = "jwt";
}

/// The client's message for a token that was parsed and is not valid.
const FAILED: &str = "failed to verify jwt";

/// The client's message for a token that cannot be parsed.
const INVALID: &str = "JWT token invalid";

impl Config {
    /// The text of the token. Empty for a query argument that holds none.
    fn token(&self, ctx: &Context) -> Option<Vec<u8>> {
        if let Some(value) = self.header.find(&ctx.request.headers) {
            return Some(after_bearer(value).unwrap_or(value).to_vec());
        }
        only_argument(ctx, &self.query)
            .or_else(|| cookie(&ctx.request.headers, &self.cookie).map(<[u8]>::to_vec))
    }

    /// Removes the token from the request, and the values in its other places.
    fn hide(&self, ctx: &mut Context) {
        self.header.remove(&mut ctx.request.headers);
        ctx.hide_argument(&self.query);
        remove_cookie(&mut ctx.request.headers, &self.cookie);
    }

    /// The token of a request.
    fn read(&self, ctx: &mut Context) -> Result<Token, Refusal> {
        let text = self.token(ctx);
        if self.policy.hide_credentials {
            self.hide(ctx);
        }
        let text = text.ok_or(Refusal::absent("Missing JWT token in request"))?;
        Token::parse(text).map_err(|detail| Refusal::new(INVALID, detail))
    }

    /// Returns the consumer that the claim names.
    fn find<'e>(&self, token: &Token, env: &Env<'e>) -> Result<&'e Arc<Identity>, Refusal> {
        let key = match token.claims.get(&self.key_claim_name) {
            None | Some(Value::Bool(false)) => return Err(Refusal::plain("missing user key in JWT token")),
            Some(key) => key.as_str(),
        };
        const UNKNOWN: &str = "Invalid user key in JWT token";
        // A number is not a consumer's key, with any digits.
        let key = key.ok_or(Refusal::new(UNKNOWN, "the user key is not a string"))?;
        let found = self.policy.find(env, key.as_bytes(), UNKNOWN);
        found.map_err(|detail| Refusal::new(UNKNOWN, detail))
    }

    /// Lets the owner of the token in, or refuses. `is_last`: keys were fetched for it already.
    fn decide(self: &Arc<Self>, token: Token, is_last: bool, ctx: &mut Context, env: &Env<'_>) -> Step {
        let refuse = |refusal, ctx: &mut Context| self.policy.conclude(ctx, env, Err(refusal));
        let failed = |detail| Refusal::new(FAILED, detail);
        let identity = match self.find(&token, env) {
            Ok(identity) => identity,
            Err(refusal) => return refuse(refusal, ctx),
        };
        let Some(verifier) = identity.data::<Verifier>() else {
            return refuse(failed("the consumer has no key"), ctx);
        };
        match verifier.verify(&token, env, is_last) {
            Lookup::Verified => {}
            Lookup::Refused(detail) => return refuse(failed(detail), ctx),
            Lookup::Unavailable(detail) => return refuse(failed(detail).with(Cause::Unjudged), ctx),
            Lookup::Waits(fetched) => {
                let config = Arc::clone(self);
                return Step::wait(fetched, move |(), ctx, env| config.decide(token, true, ctx, env));
            }
        }
        if let Err(detail) = self.check_claims(&token, verifier.grace_s(), env) {
            return refuse(failed(detail), ctx);
        }
        self.mark(&token, ctx);
        if let Some(fields) = &self.claims_to_headers {
            fields.set(&token.claims, &mut ctx.request.headers);
        }
        if self.store_in_ctx {
            ctx.set_variable("jwt_auth_payload", Value::Object(token.claims).to_string());
        }
        self.policy.conclude(ctx, env, Ok(identity))
    }

    /// One consumer may be an issuer, whose tokens belong to many users.
    fn mark(&self, token: &Token, ctx: &mut Context) {
        match token.text_claim("sub") {
            Some(sub) => ctx.mark_personal("jwt-auth", Some(sub.as_bytes())),
            None if self.key_claim_name == "iss" => {
                ctx.mark_personal("jwt-auth token", Some(digest(&SHA256, token.text()).as_ref()));
            }
            None => {}
        }
    }

    fn check_claims(&self, token: &Token, grace_s: f64, env: &Env<'_>) -> Result<(), &'static str> {
        let now = env.unix_time().as_secs_f64().floor();
        token.in_time(self.claims_to_verify.as_deref().unwrap_or_default(), now, grace_s)?;
        if self.require_exp == Some(true) {
            token.in_time(&[Claim::Exp], now, grace_s)?;
        }
        match &self.audience {
            Some(audience) if !is_for(&token.claims, audience) => Err("'aud' does not match"),
            _ => Ok(()),
        }
    }
}

/// The warning that tokens may have no end.
fn warnings(conf: &Value) -> Vec<Problem> {
    let claims = conf.get("claims_to_verify").and_then(Value::as_array);
    let verifies = claims.is_some_and(|claims| claims.iter().any(|claim| claim == "exp"));
    if verifies || conf.get("require_exp") == Some(&Value::Bool(true)) {
        return Vec::new();
    }
    let message = "a token without `exp` is accepted forever";
    vec![Problem::new("require_exp", "no_expiry", message).hint("set `require_exp` to true")]
}

struct JwtAuth(Arc<Config>);

impl JwtAuth {
    fn new(build: &Build<'_>) -> Result<JwtAuth, String> {
        Ok(JwtAuth(Arc::new(build.config()?)))
    }
}

impl Plugin for JwtAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let config = &self.0;
        if let Some(fields) = &config.claims_to_headers {
            fields.remove(&mut ctx.request.headers);
        }
        match config.read(ctx) {
            Ok(token) => config.decide(token, false, ctx, env),
            Err(refusal) => config.policy.conclude(ctx, env, Err(refusal)),
        }
    }
}

#[cfg(test)]
mod tests;
