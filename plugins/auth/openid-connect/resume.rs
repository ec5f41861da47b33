//! Requests of those who have logged in.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sigma_plugin::{Context, Env, Reply, Slot, Step};

use super::Party;
use super::config::UnauthAction;
use super::identity::{NodeUserData, claims_of, refuse_schema, refuse_scopes};
use super::login::Reason;
use super::questions::{SingleFlights, Tokens};
use super::session::Session;
use crate::shared::seal::remove;
use crate::shared::tokens::beside;

/// Set-Cookie fields for the response to this request.
pub(super) struct Renewed(pub(super) Vec<String>);

/// Sessions whose access token is being renewed: for the whole gateway.
pub(super) type Renewals = SingleFlights<Result<Tokens, Arc<str>>>;

/// How long the new tokens of a session are handed on to requests that come with the old cookie: a page requests many
/// things at once, and a provider may take a refresh token once.
const HANDED_ON: Duration = Duration::from_secs(30);

impl Party {
    /// The way of a browser: it has a session, or gets one.
    pub(super) fn recognise(self: &Arc<Self>, slot: Slot, ctx: &mut Context, env: &Env<'_>) -> Step {
        let Some(sessions) = &self.sessions else { return Step::status(500) };
        if self.is_callback(ctx) {
            return self.call_back(ctx, env);
        }
        let party = Arc::clone(self);
        self.store.read(sessions, ctx, env, move |read, ctx, env| match read {
            Ok(Some(session)) => party.resume(slot, session, ctx, env),
            Ok(None) => party.unknown(Reason::Unknown, ctx, env),
            Err(()) => Reply::new(500).because("cannot read sessions").into(),
        })
    }

    /// Returns the step for a request without a session.
    pub(super) fn unknown(self: &Arc<Self>, reason: Reason, ctx: &mut Context, env: &Env<'_>) -> Step {
        match self.config.unauth_action {
            UnauthAction::Auth => self.log_in(reason, ctx, env),
            UnauthAction::Deny => Reply::new(401).because("the request has no session").into(),
            UnauthAction::Pass => {
                if let Some(sessions) = &self.sessions {
                    remove(&sessions.config.cookie_name, &mut ctx.request.headers);
                }
                ctx.mark_unknown();
                Step::Next
            }
        }
    }

    fn resume(self: &Arc<Self>, slot: Slot, mut session: Session, ctx: &mut Context, env: &Env<'_>) -> Step {
        let Some(sessions) = &self.sessions else { return Step::status(500) };
        let now = env.unix_time().as_secs();
        if sessions.is_over(&session, now) {
            return self.unknown(Reason::Unknown, ctx, env);
        }
        let is_first = !std::mem::replace(&mut session.has_served, true);
        if self.config.force_reauthorize && !is_first {
            return self.unknown(Reason::Unknown, ctx, env);
        }
        if let Some(interval) = self.config.refresh_session_interval
            && now.saturating_sub(session.began) >= interval
        {
            return self.unknown(Reason::Again, ctx, env);
        }
        let leeway = self.config.access_token_expires_leeway;
        let has_ended = session.access_ends.is_some_and(|ends| now.saturating_add(leeway) >= ends);
        if has_ended && self.config.renew_access_token_on_expiry {
            return match session.refresh_token.clone() {
                Some(refresh_token) => self.renew(slot, session, refresh_token, ctx, env),
                None => self.unknown(Reason::Unknown, ctx, env),
            };
        }
        let is_used_up = self.config.force_reauthorize;
        let is_changed = sessions.note_use(&mut session, now) || is_used_up;
        self.let_in(slot, session, is_changed, ctx, env)
    }

    /// Exchanges the refresh token, once for all requests of the session.
    fn renew(
        self: &Arc<Self>,
        slot: Slot,
        session: Session,
        refresh_token: String,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        self.with_metadata(false, ctx, env, move |party, metadata, _, env| {
            let endpoint = metadata.and_then(|metadata| metadata.token_endpoint.clone());
            let Some(endpoint) = endpoint else {
                return Reply::new(503).because("the provider is unreachable").into();
            };
            let key = party.digest("renewal", &[refresh_token.as_bytes()]);
            let (client, provider) = (party.client.clone(), Arc::clone(&party.provider));
            let renewals = Arc::clone(&party.renewals);
            let renewed = beside(env.node, async move {
                let work = async {
                    let pairs = [("grant_type", "refresh_token"), ("refresh_token", &*refresh_token)];
                    client.tokens(&provider, &endpoint, &pairs).await.map_err(|error| Arc::from(error.reason))
                };
                renewals.one(key, HANDED_ON, work).await
            });
            let party = Arc::clone(party);
            Step::wait(renewed, move |renewed, ctx, env| party.take_renewed(slot, session, renewed, ctx, env))
        })
    }

    fn take_renewed(
        self: &Arc<Self>,
        slot: Slot,
        mut session: Session,
        renewed: Option<Result<Tokens, Arc<str>>>,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        let Some(sessions) = &self.sessions else { return Step::status(500) };
        let tokens = match renewed {
            Some(Ok(tokens)) => tokens,
            Some(Err(error)) => {
                tracing::info!(%error, "openid-connect: cannot refresh an access token");
                return self.unknown(Reason::Unknown, ctx, env);
            }
            None => return self.unknown(Reason::Unknown, ctx, env),
        };
        // From the provider itself, so that its signature says nothing new; but of the same user
        // (OpenID Connect Core §12.2).
        if let Some(id_token) = &tokens.id_token {
            let claims = claims_of(id_token).unwrap_or_default();
            if claims.get("sub").and_then(Value::as_str) != Some(&session.sub) {
                tracing::warn!("openid-connect: the provider refreshed a token for another user");
                return self.unknown(Reason::Unknown, ctx, env);
            }
        }
        let now = env.unix_time().as_secs();
        session.take(tokens, &self.config, now);
        sessions.note_use(&mut session, now);
        self.let_in(slot, session, true, ctx, env)
    }

    /// Accepts a user with a session, if the claims are sufficient.
    fn let_in(
        self: &Arc<Self>,
        slot: Slot,
        session: Session,
        is_changed: bool,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        let Some(sessions) = &self.sessions else { return Step::status(500) };
        if let Some(refused) = self.refuse(&session) {
            return refused;
        }
        if !is_changed {
            return self.tell(&session, ctx);
        }
        let party = Arc::clone(self);
        let kept = session.clone();
        self.store.write(sessions, &kept, ctx, env, move |written, ctx, _| match written {
            Ok(cookies) => {
                ctx.keep(slot, Renewed(cookies));
                party.tell(&session, ctx)
            }
            Err(()) => Reply::new(500).because("cannot store the session").into(),
        })
    }

    fn tell(&self, session: &Session, ctx: &mut Context) -> Step {
        if let Some(sessions) = &self.sessions {
            remove(&sessions.config.cookie_name, &mut ctx.request.headers);
        }
        self.mark(Some(&session.sub), &session.id, ctx);
        let told = NodeUserData {
            access_token: session.access_token.as_deref(),
            user: session.user.as_ref(),
            id_claims: session.id_claims.as_ref(),
            id_token: session.id_token.as_deref(),
            refresh_token: session.refresh_token.as_deref(),
        };
        told.tell(&self.config, &mut ctx.request.headers);
        Step::Next
    }

    fn refuse(&self, session: &Session) -> Option<Step> {
        if let Some(schema) = &self.schema {
            let mut claims = json!({
                "user": session.user, "access_token": session.access_token, "id_token": session.id_claims,
            });
            if let Value::Object(members) = &mut claims {
                members.retain(|_, value| !value.is_null());
            }
            if let Some(refused) = refuse_schema(&self.config, Some(schema), claims) {
                return Some(refused);
            }
        }
        self.config.required_scopes.as_ref().filter(|scopes| !scopes.is_empty())?;
        let of_access = session.access_token.as_deref().and_then(claims_of);
        let scope = of_access.as_ref().and_then(|claims| claims.get("scope"));
        let scope = scope.or_else(|| session.id_claims.as_ref()?.get("scope"));
        match scope {
            None => {
                let body = json!({"error": "required scopes not present"}).to_string();
                Some(Reply::new(403).text(body).into())
            }
            scope => refuse_scopes(&self.config, scope),
        }
    }
}
