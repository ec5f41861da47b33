//! How a browser comes back from the provider.

use std::rc::Rc;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use serde_json::{Map, Value};
use sigma_http::Method;
use sigma_plugin::counter::Shared;
use sigma_plugin::variables::pairs;
use sigma_plugin::{Context, Env, Inheritable, Reply, Step, inheritance};

use super::Party;
use super::login::{LOGIN_S, Pending, Reason, cookie_name};
use super::questions::{Tokens, user_of};
use super::random::unguessable;
use super::session::Session;
use super::session_config::SameSite;
use super::store::login_cookie;
use crate::shared::seal::only_cookie;
use crate::shared::tokens::{Algorithm, Key, Lookup, Metadata, Token, beside, is_for};
use sigma_plugin_kit::log_throttle::LogThrottle;

/// How often the provider may ask to try again.
const MOST_RETRIES: u8 = 3;

/// Errors by which a provider says that it would have to ask the user (OpenID Connect Core §3.1.2.6).
const WOULD_ASK: [&str; 4] =
    ["login_required", "interaction_required", "consent_required", "account_selection_required"];

/// Logins that came back, for as long as they might once more: for the whole gateway.
pub(super) struct Returned(Shared<bool>);

impl Inheritable for Returned {
    const NAME: &'static str = "openid-connect";

    fn leave(&self) -> Value {
        inheritance::entries(&self.0)
    }

    fn take_over(&self, left: &Value) {
        inheritance::enter(&self.0, left);
    }
}

impl Default for Returned {
    fn default() -> Self {
        Returned(Shared::with_limit(8 << 20))
    }
}

/// A login whose code was exchanged for tokens.
struct ExchangedCode {
    tokens: Tokens,
    pending: Pending,
    metadata: Arc<Metadata>,
}

/// The parameters with which a provider sends a browser back.
#[derive(Default)]
struct Returning {
    code: Option<String>,
    state: Option<String>,
    error: Option<String>,
    iss: Option<String>,
    client_id: Option<String>,
}

impl Returning {
    /// None if an argument is there twice, or is no text.
    fn of(query: &[u8]) -> Option<Returning> {
        let mut found = Returning::default();
        for (name, value) in pairs(query) {
            let place = match &*name {
                b"code" => &mut found.code,
                b"state" => &mut found.state,
                b"error" => &mut found.error,
                b"iss" => &mut found.iss,
                b"client_id" => &mut found.client_id,
                _ => continue,
            };
            if place.is_some() {
                return None;
            }
            *place = Some(String::from_utf8(value?.into_owned()).ok()?);
        }
        Some(found)
    }
}

impl Party {
    /// Completes a login, or logs why it failed.
    pub(super) fn call_back(self: &Arc<Self>, ctx: &mut Context, env: &Env<'_>) -> Step {
        if ctx.request.method != Method::Get {
            return refuse("the callback is not a GET request");
        }
        let Some(returning) = Returning::of(ctx.request.query().unwrap_or_default()) else {
            return refuse("the callback has a duplicate argument");
        };
        let pending = match self.pending(&returning, ctx, env) {
            Ok(pending) => pending,
            Err(reason) => return refuse(reason),
        };
        self.with_metadata(false, ctx, env, move |party, metadata, ctx, env| {
            let Some(metadata) = metadata else {
                return Reply::new(503).because("the provider is unreachable").into();
            };
            // From another provider, which wants its code to be sent to this one (RFC 9207).
            let is_ours = returning.iss.as_ref().is_none_or(|iss| *iss == metadata.issuer)
                && returning.client_id.as_ref().is_none_or(|id| *id == party.config.client_id);
            if !is_ours {
                return refuse("the callback is from another provider, or for another client");
            }
            match (&returning.error, &returning.code) {
                (Some(error), _) => party.provider_failed(error, &pending, ctx, env),
                (None, Some(code)) => party.exchange(code.clone(), pending, metadata, env),
                (None, None) => refuse("the callback has no code"),
            }
        })
    }

    /// The login that a browser comes back from. Each comes back once.
    fn pending(&self, returning: &Returning, ctx: &Context, env: &Env<'_>) -> Result<Pending, &'static str> {
        let sessions = self.sessions.as_ref().ok_or("the plugin has no sessions (bearer_only)")?;
        let state = returning.state.as_deref().ok_or("the callback has no state")?;
        let cookie = only_cookie(&ctx.request.headers, &cookie_name(sessions, state));
        let cookie = cookie.ok_or("the browser has no login cookie of this gateway")?;
        let pending = sessions.pending(cookie).ok_or("the login cookie is not from this gateway")?;
        if verify_slices_are_equal(pending.state.as_bytes(), state.as_bytes()).is_err() {
            return Err("the state belongs to another login");
        }
        if env.unix_time().as_secs().saturating_sub(pending.began) > LOGIN_S {
            return Err("the login took too long");
        }
        let key = self.digest("returned", &[state.as_bytes()]);
        let now_ms = u64::try_from(env.machine.uptime().as_millis()).unwrap_or(u64::MAX);
        let is_second = self.returned.0.with(&key, now_ms, |slot| {
            slot.expires_ms = now_ms.saturating_add((LOGIN_S + 60) * 1000);
            std::mem::replace(&mut slot.value, true)
        });
        if is_second { Err("the callback was already used") } else { Ok(pending) }
    }

    /// Returns the step for a login that the provider denied.
    fn provider_failed(
        self: &Arc<Self>,
        error: &str,
        pending: &Pending,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        if pending.silent && WOULD_ASK.contains(&error) {
            return self.log_in(Reason::Retry(pending.target.clone(), pending.retries), ctx, env);
        }
        if error == "temporarily_unavailable" && pending.retries < MOST_RETRIES {
            return self.log_in(Reason::Retry(pending.target.clone(), pending.retries + 1), ctx, env);
        }
        let error: String = error.chars().take(64).flat_map(char::escape_debug).collect();
        static REFUSED: LogThrottle = LogThrottle::new();
        if let Some(left_out) = REFUSED.due() {
            tracing::warn!(left_out, error, "openid-connect: the provider denied the login");
        }
        deny("the provider denied the login")
    }

    /// Exchanges the code.
    fn exchange(
        self: &Arc<Self>,
        code: String,
        pending: Pending,
        metadata: Arc<Metadata>,
        env: &Env<'_>,
    ) -> Step {
        let Some(endpoint) = metadata.token_endpoint.clone() else {
            return fail("the provider has no token_endpoint");
        };
        let (client, provider) = (self.client.clone(), Arc::clone(&self.provider));
        let (verifier, redirect_uri) = (pending.verifier.clone(), pending.redirect_uri.clone());
        let use_pkce = self.config.use_pkce;
        let exchanged = beside(env.node, async move {
            let mut pairs = vec![
                ("grant_type", "authorization_code"),
                ("code", &*code),
                ("redirect_uri", &*redirect_uri),
            ];
            if use_pkce {
                pairs.push(("code_verifier", &*verifier));
            }
            client.tokens(&provider, &endpoint, &pairs).await
        });
        let party = Arc::clone(self);
        Step::wait(exchanged, move |exchanged, ctx, env| {
            let tokens = match exchanged {
                Some(Ok(tokens)) => tokens,
                Some(Err(error)) => {
                    let (is_of_client, error) = (error.is_of_client, error.reason);
                    tracing::error!(error, "openid-connect: the exchange of a code failed");
                    return match is_of_client {
                        true => refuse("the provider does not accept the code"),
                        false => fail("the exchange of the code failed"),
                    };
                }
                None => return fail("the exchange of the code failed"),
            };
            let Some(id_token) = tokens.id_token.clone() else {
                return fail("the provider returned no ID token");
            };
            match Token::parse(id_token.into_bytes()) {
                Ok(token) => {
                    let exchanged = ExchangedCode { tokens, pending, metadata };
                    party.verify(Rc::new(token), exchanged, false, ctx, env)
                }
                Err(reason) => fail(reason),
            }
        })
    }

    /// Verifies the ID token (OpenID Connect Core §3.1.3.7).
    fn verify(
        self: &Arc<Self>,
        token: Rc<Token>,
        exchanged: ExchangedCode,
        is_last: bool,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        match self.signature(&token, &exchanged.metadata, is_last, env) {
            Lookup::Verified => {}
            Lookup::Refused(reason) | Lookup::Unavailable(reason) => return fail(reason),
            Lookup::Waits(fetched) => {
                let party = Arc::clone(self);
                return Step::wait(fetched, move |(), ctx, env| {
                    party.verify(token, exchanged, true, ctx, env)
                });
            }
        }
        let ExchangedCode { tokens, pending, metadata } = exchanged;
        // A client may bring the code of another login.
        if self.config.use_nonce && token.text_claim("nonce") != Some(&pending.nonce) {
            return refuse("the ID token is for another login");
        }
        if let Err(reason) = self.check_id_claims(&token, &metadata, env) {
            return fail(reason);
        }
        let claims = token.claims.clone();
        let wants_user = self.config.session_contents.is_none_or(|contents| contents.user);
        let Some(endpoint) = metadata.userinfo_endpoint.clone().filter(|_| wants_user) else {
            return self.begin(claims, None, tokens, pending, ctx, env);
        };
        let (provider, access_token) = (Arc::clone(&self.provider), tokens.access_token.clone());
        let dpop = self.client.dpop.clone();
        let user =
            beside(
                env.node,
                async move { user_of(&provider, &endpoint, &access_token, dpop.as_deref()).await },
            );
        let party = Arc::clone(self);
        Step::wait(user, move |user, ctx, env| {
            let user = match user {
                // Data of another user does not apply to this one (OpenID Connect Core §5.3.2).
                Some(Ok(user)) if user.get("sub") == claims.get("sub") => Some(user),
                Some(Ok(_)) => return fail("the user info is for another user"),
                // The ID token has proved the user. Some providers have no user info for every access token: the token of
                // Entra ID is for one API, and user info may be signed (`application/jwt`).
                Some(Err(error)) => {
                    tracing::error!(%error, "openid-connect: the provider returns no user info");
                    None
                }
                None => None,
            };
            if user.is_none() && party.config.claim_schema.is_some() {
                return fail("the provider returns no user info, which `claim_schema` needs");
            }
            party.begin(claims, user, tokens, pending, ctx, env)
        })
    }

    fn signature(&self, token: &Token, metadata: &Metadata, is_last: bool, env: &Env<'_>) -> Lookup {
        let config = &self.config;
        let expected = config.token_signing_alg_values_expected;
        if let Some(algorithm) = expected.filter(|algorithm| algorithm.shared().is_some()) {
            let secret = config.client_secret.as_ref().map(|secret| secret.reveal().as_bytes());
            let key = secret.and_then(|secret| Key::secret(algorithm, secret));
            return match key.ok_or("`client_secret` is not set").and_then(|key| key.verify(token)) {
                Ok(()) => Lookup::Verified,
                Err(reason) => Lookup::Refused(reason),
            };
        }
        // A token that came from the provider over TLS needs no signature to be the provider's.
        let is_direct = config.ssl_verify
            && expected.is_none()
            && metadata.token_endpoint.as_ref().is_some_and(|endpoint| endpoint.is_encrypted());
        let named = token.header.get("alg").and_then(Value::as_str).unwrap_or_default();
        let is_unsigned = match named {
            "none" => config.accept_none_alg,
            other => config.accept_unsupported_alg && Algorithm::of(other).is_none(),
        };
        if is_direct && is_unsigned {
            return Lookup::Verified;
        }
        match &metadata.keys {
            Some(keys) => keys.verify(token, &self.algorithms, env, is_last),
            None => Lookup::Refused("the provider publishes no keys"),
        }
    }

    fn check_id_claims(&self, token: &Token, metadata: &Metadata, env: &Env<'_>) -> Result<(), &'static str> {
        let config = &self.config;
        if !metadata.has_issued(&token.claims) {
            return Err("the ID token is from another issuer");
        }
        if !is_for(&token.claims, std::slice::from_ref(&config.client_id)) {
            return Err("the ID token is for another client");
        }
        if token.claims.get("azp").is_some_and(|party| party != &*config.client_id) {
            return Err("the ID token was issued to another client");
        }
        if token.text_claim("sub").is_none_or(str::is_empty) {
            return Err("the ID token names no user");
        }
        if !token.claims.contains_key("iat") {
            return Err("the ID token has no `iat`");
        }
        token.in_time_of_issuer(env.unix_time().as_secs_f64(), config.iat_slack as f64)
    }

    /// Begins a session, and redirects the browser to its target.
    fn begin(
        self: &Arc<Self>,
        claims: Map<String, Value>,
        user: Option<Map<String, Value>>,
        tokens: Tokens,
        pending: Pending,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        let Some(sessions) = &self.sessions else { return fail("the plugin has no sessions (bearer_only)") };
        let Ok(id) = unguessable(env.machine) else { return fail("cannot get random bytes") };
        let now = env.unix_time().as_secs();
        let mut session = Session {
            // A new one with each login: who knew the browser's old one does not know this.
            id,
            began: now,
            renewed: now,
            used: now,
            sub: claims.get("sub").and_then(Value::as_str).unwrap_or_default().to_owned(),
            sid: claims.get("sid").and_then(Value::as_str).map(str::to_owned),
            id_claims: Some(claims),
            id_token: tokens.id_token.clone(),
            user,
            access_token: None,
            access_ends: None,
            refresh_token: None,
            has_served: false,
        };
        session.take(tokens, &self.config, now);
        let session = session.reduced(&self.config);
        let config = sessions.config.clone();
        let name = cookie_name(sessions, &pending.state);
        self.store.write(sessions, &session, ctx, env, move |written, ctx, _| {
            let Ok(cookies) = written else { return fail("cannot store the session") };
            let mut reply = sent_on(&pending.target, config.cookie_same_site);
            for cookie in cookies {
                reply = reply.header("Set-Cookie", cookie);
            }
            reply.header("Set-Cookie", login_cookie(&config, &name, None, ctx)).into()
        })
    }
}

/// Redirects a browser to its target.
fn sent_on(target: &str, same_site: SameSite) -> Reply {
    let reply = match same_site {
        // Browsers send such a cookie only with requests of the gateway's own pages; a redirection that began
        // at the provider does not count as one.
        SameSite::Strict => {
            let escaped = target.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
            let page = format!("<meta http-equiv=\"refresh\" content=\"0;url={escaped}\">");
            Reply::new(200).header("Content-Type", "text/html; charset=utf-8").text(page)
        }
        _ => Reply::new(302).header("Location", target),
    };
    reply.header("Cache-Control", "no-cache, no-store, max-age=0")
}

/// 400 for a callback that is no return from a login under way; the reason is in the log alone.
fn refuse(reason: &'static str) -> Step {
    static REFUSED: LogThrottle = LogThrottle::new();
    if let Some(left_out) = REFUSED.due() {
        tracing::info!(left_out, reason, "openid-connect: a callback was refused");
    }
    Reply::new(400).header("Cache-Control", "no-store").because(reason).into()
}

/// Returns 403 for a user whom the provider denied, or who cancelled.
fn deny(reason: &'static str) -> Step {
    Reply::new(403).header("Cache-Control", "no-store").because(reason).into()
}

/// 500 for a fault of the provider or of the configuration; the reason is in the log alone.
fn fail(reason: &'static str) -> Step {
    static REFUSED: LogThrottle = LogThrottle::new();
    if let Some(left_out) = REFUSED.due() {
        tracing::warn!(left_out, reason, "openid-connect: a login failed");
    }
    Reply::new(500).because(reason).into()
}
