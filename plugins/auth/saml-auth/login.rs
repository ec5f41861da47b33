//! How a browser is sent to the provider to log in, and how it comes back.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sigma_plugin::{Context, Env, Reply, Step};

use super::assertion::{Accepted, Expected, Refusal, SamlResponse};
use super::binding::{self, Kind, Message};
use super::document;
use super::messages::{Head, new_id};
use super::{Login, NAME, Party, Session, fail, redirect, refuse};
use crate::shared::policy::same_secret;
use crate::shared::way_back;

/// Seconds that a user has for a login.
const LOGIN_S: u64 = 600;

/// Logins of one browser that may be under way: beyond that the oldest are forgotten, so that the cookie does not grow.
const MOST_LOGINS: usize = 5;

/// Most bytes of a way back.
const WAY_BACK_BYTES: usize = 2_500;

/// A login that is under way.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Pending {
    /// It is secret.
    state: String,
    /// The ID of the request.
    request: String,
    /// The address for the provider's response.
    answer_to: String,
    /// Path and query that were requested.
    back: String,
    /// Seconds since 1970.
    began: u64,
}

impl Party {
    /// Sends a browser to the provider.
    pub(super) fn log_in(&self, under_way: Vec<Pending>, ctx: &Context, env: &Env<'_>) -> Step {
        let (Ok(state), Ok(request)) = (new_id(env.machine), new_id(env.machine)) else {
            return fail("cannot get random bytes");
        };
        let Some(answer_to) = self.url(&self.config.login_callback_uri.path, ctx) else {
            return Reply::new(400).text("").because("the request has no host").into();
        };
        let (now, config) = (env.unix_time().as_secs(), &self.config);
        let head = Head { id: &request, now, destination: &config.idp_uri.0, issuer: &config.sp_issuer };
        let message = head.authn_request(config.auth_protocol_binding_method, &answer_to);
        let location =
            binding::redirect(&config.idp_uri.0, Kind::Request, &message, Some(&state), &self.own_key);
        let location = match location {
            Ok(location) => location,
            Err(reason) => return fail(reason),
        };
        let back = way_back::within(WAY_BACK_BYTES, ctx);
        let pending = Pending { state, request, answer_to, back, began: now };
        let holds = |pending: &Pending| now.saturating_sub(pending.began) < LOGIN_S;
        let logins = [pending].into_iter().chain(under_way.into_iter().filter(holds)).take(MOST_LOGINS);
        match self.cookie.begin(Session::LoggingIn(logins.collect()), LOGIN_S, ctx, env) {
            Ok(cookies) => redirect(location, cookies),
            Err(reason) => fail(&reason),
        }
    }

    /// Takes a browser in that comes back.
    pub(super) fn call_back(
        self: Arc<Self>,
        session: Option<Session>,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        let Some(Session::LoggingIn(under_way)) = session else {
            return refuse(Refusal::foreign("a callback without a login of this browser"));
        };
        self.with_message(ctx, env, move |party, message, ctx, env| {
            match party.accept(message, &under_way, env) {
                Ok((accepted, back)) => party.welcome(accepted, back, ctx, env),
                Err(refusal) => refuse(refusal),
            }
        })
    }

    /// Returns the logged-in user, and the URL to go back to.
    fn accept(
        &self,
        message: &Message,
        under_way: &[Pending],
        env: &Env<'_>,
    ) -> Result<(Accepted, String), Refusal> {
        if message.kind != Kind::Response {
            return Err(Refusal::broken("the message is not a response"));
        }
        let text = document::text_of(&message.text).map_err(Refusal::broken)?;
        let document = document::parse(&text).map_err(Refusal::broken)?;
        let answer = SamlResponse::read(&document, message.is_signed, &self.provider_keys)?;
        let now = env.unix_time().as_secs();
        let state = message.relay_state.as_deref().unwrap_or_default().as_bytes();
        let is_meant = |pending: &&Pending| {
            same_secret(pending.state.as_bytes(), state) && now.saturating_sub(pending.began) < LOGIN_S
        };
        let pending = under_way.iter().find(is_meant);
        let pending = pending.ok_or(Refusal::foreign("the state matches no pending login"))?;
        let accepted = answer.accept(&Expected {
            audience: &self.config.sp_issuer,
            issuer: self.config.idp_issuer.as_deref(),
            recipient: &pending.answer_to,
            request: &pending.request,
            now,
        })?;
        let holds_for = |until: u64| Duration::from_secs(until.saturating_sub(now));
        let is_first =
            self.used.take(
                &[NAME, &accepted.user.issuer, &accepted.id],
                holds_for(accepted.stale),
                env.machine,
            ) && self.used.take(&[NAME, &pending.state], Duration::from_secs(LOGIN_S), env.machine);
        if !is_first {
            return Err(Refusal::foreign("the response was already used"));
        }
        if !way_back::is_own(pending.back.as_bytes()) {
            return Err(Refusal::foreign("the stored URL is on another host"));
        }
        Ok((accepted, pending.back.clone()))
    }

    /// Begins the session of a user.
    fn welcome(&self, accepted: Accepted, back: String, ctx: &Context, env: &Env<'_>) -> Step {
        let now = env.unix_time().as_secs();
        let Accepted { user, ends, .. } = accepted;
        match self.kept(Login { user, began: now, noted: now, ends, ending: None }, ctx, env) {
            Ok(cookies) => redirect(back, cookies),
            Err(reason) => fail(&reason),
        }
    }
}
