//! How a provider ends sessions by itself (OpenID Connect Back-Channel Logout 1.0).

use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;
use sigma_http::Method;
use sigma_plugin::step::BodyRead;
use sigma_plugin::variables::pairs;
use sigma_plugin::{Context, Env, Reply, Step};

use super::Party;
use crate::shared::tokens::{Lookup, Metadata, Token, is_for};
use sigma_plugin_kit::log_throttle::LogThrottle;

/// Most bytes of a body with a logout token.
const BODY_BYTES: usize = 64 << 10;

/// The event claim of a logout token.
const EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";

/// The only `logout_token` of a form.
fn token_of(body: &[u8]) -> Option<Vec<u8>> {
    let mut tokens = pairs(body).filter(|(name, _)| &**name == b"logout_token");
    let token = tokens.next()?.1?.into_owned();
    tokens.next().is_none().then_some(token)
}

impl Party {
    /// Whether a request is the provider's, which ends a session.
    pub(super) fn is_provider(&self, ctx: &Context) -> bool {
        let path = self.config.backchannel_logout_path.as_deref();
        path.is_some_and(|path| path.as_bytes() == ctx.uri) && ctx.request.method == Method::Post
    }

    /// Ends the sessions that the provider says, if it is the provider.
    pub(super) fn end_by_provider(self: &Arc<Self>) -> Step {
        let party = Arc::clone(self);
        Step::ReadBody {
            limit: BODY_BYTES,
            then: Box::new(move |ctx, env, read| {
                let token = match read {
                    BodyRead::Whole => token_of(ctx.body.as_deref().unwrap_or_default()),
                    BodyRead::TooLarge => None,
                };
                let Some(token) = token else { return refuse("the logout token is missing") };
                match Token::parse(token) {
                    Ok(token) => {
                        let token = Rc::new(token);
                        party.with_metadata(
                            false,
                            ctx,
                            env,
                            move |party, metadata, ctx, env| match metadata {
                                Some(metadata) => party.verify_logout(token, metadata, false, ctx, env),
                                None => Reply::new(503).because("the provider is unreachable").into(),
                            },
                        )
                    }
                    Err(reason) => refuse(reason),
                }
            }),
        }
    }

    fn verify_logout(
        self: &Arc<Self>,
        token: Rc<Token>,
        metadata: Arc<Metadata>,
        is_last: bool,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        let Some(keys) = &metadata.keys else { return refuse("the provider publishes no keys") };
        match keys.verify(&token, &self.algorithms, env, is_last) {
            Lookup::Verified => {}
            Lookup::Refused(reason) | Lookup::Unavailable(reason) => return refuse(reason),
            Lookup::Waits(fetched) => {
                let party = Arc::clone(self);
                return Step::wait(fetched, move |(), ctx, env| {
                    party.verify_logout(token, metadata, true, ctx, env)
                });
            }
        }
        if let Err(reason) = self.check_logout(&token, &metadata, env) {
            return refuse(reason);
        }
        let Some(sessions) = &self.sessions else {
            return refuse("the plugin has no sessions (bearer_only)");
        };
        // Where a session is named, the user's others continue.
        let claims = ["sid", "sub"].into_iter();
        let mut whose = claims.filter_map(|claim| Some(sessions.end_of(claim, token.text_claim(claim)?)));
        let Some(whose) = whose.next() else {
            return refuse("the logout token names neither a user nor a session");
        };
        self.store.end_all(sessions, &whose, ctx, env, |ended, _, _| match ended {
            Ok(()) => Reply::new(200).header("Cache-Control", "no-store").text("").into(),
            Err(()) => Reply::new(500).because("cannot end sessions").into(),
        })
    }

    fn check_logout(&self, token: &Token, metadata: &Metadata, env: &Env<'_>) -> Result<(), &'static str> {
        let is_logout =
            token.claims.get("events").and_then(|events| events.get(EVENT)).is_some_and(Value::is_object);
        if !metadata.has_issued(&token.claims) {
            return Err("the logout token is from another issuer");
        }
        if !is_for(&token.claims, std::slice::from_ref(&self.config.client_id)) {
            return Err("the logout token is for another client");
        }
        // An ID token is not a logout token (Back-Channel Logout 1.0 §2.4).
        if !is_logout || token.claims.contains_key("nonce") {
            return Err("the token is not a logout token");
        }
        if !token.claims.contains_key("iat") {
            return Err("the logout token has no `iat`");
        }
        token.in_time_of_issuer(env.unix_time().as_secs_f64(), self.config.iat_slack as f64)
    }
}

/// 400, with the reason in the log alone.
fn refuse(reason: &'static str) -> Step {
    static REFUSED: LogThrottle = LogThrottle::new();
    if let Some(left_out) = REFUSED.due() {
        tracing::warn!(left_out, reason, "openid-connect: a logout was refused");
    }
    Reply::new(400).header("Cache-Control", "no-store").because(reason).into()
}
