//! How a session ends: because the user wants it, or because the provider says so.

use std::sync::Arc;

use sigma_plugin::{Context, Env, Step};

use super::assertion::Refusal;
use super::binding::{self, Kind, Message};
use super::document;
use super::messages::{Head, Logout, new_id};
use super::{Login, Party, Session, fail, redirect, refuse};
use sigma_plugin_kit::log_throttle::LogThrottle;

/// Most bytes of a RelayState, which goes back to the provider as it came (SAML Bindings §3.4.3).
const RELAY_STATE_BYTES: usize = 80;

const NOBODY: Refusal = Refusal { status: 401, why: "the request has no session" };

impl Party {
    /// Sends a browser to the provider, whose session is to end first.
    pub(super) fn log_out(&self, session: Option<Session>, ctx: &Context, env: &Env<'_>) -> Step {
        let Some(mut login) = Party::login(session, env) else { return refuse(NOBODY) };
        let Ok(id) = new_id(env.machine) else { return fail("cannot get random bytes") };
        let config = &self.config;
        let head = Head {
            id: &id,
            now: env.unix_time().as_secs(),
            destination: &config.idp_uri.0,
            issuer: &config.sp_issuer,
        };
        let message = head.logout_request(&login.user.name, login.user.session_index.as_deref());
        let location = binding::redirect(&config.idp_uri.0, Kind::Request, &message, None, &self.own_key);
        login.ending = Some(id);
        match (location, self.kept(login, ctx, env)) {
            (Ok(location), Ok(cookies)) => redirect(location, cookies),
            (Err(reason), _) => fail(reason),
            (_, Err(reason)) => fail(&reason),
        }
    }

    /// Processes the provider's message about the end of a session.
    pub(super) fn end(self: Arc<Self>, session: Option<Session>, ctx: &mut Context, env: &Env<'_>) -> Step {
        let Some(login) = Party::login(session, env) else { return refuse(NOBODY) };
        self.with_message(ctx, env, move |party, message, ctx, env| {
            match party.ended(message, &login, ctx, env) {
                Ok(location) => redirect(location, party.cookie.end(ctx)),
                Err(refusal) => refuse(refusal),
            }
        })
    }

    /// Where a browser goes whose session has ended.
    fn ended(
        &self,
        message: &Message,
        login: &Login,
        ctx: &Context,
        env: &Env<'_>,
    ) -> Result<String, Refusal> {
        let config = &self.config;
        let here = self.url(&config.logout_callback_uri.0, ctx);
        let here = here.ok_or(Refusal::broken("the request has no host"))?;
        let text = document::text_of(&message.text).map_err(Refusal::broken)?;
        let document = document::parse(&text).map_err(Refusal::broken)?;
        let now = env.unix_time().as_secs();
        let Message { kind, is_signed, .. } = *message;
        match Logout::read(&document, kind, is_signed, &self.provider_keys, &here, now)? {
            Logout::Response { in_response_to } => {
                if in_response_to.is_none() || in_response_to != login.ending.as_deref() {
                    return Err(Refusal::foreign("the message responds to no logout of this gateway"));
                }
                Ok(config.logout_redirect_uri.clone())
            }
            Logout::Request { id, issuer, name } => {
                warn_of_mismatch(issuer, name, login);
                let own = new_id(env.machine).map_err(|_| Refusal::useless("cannot get random bytes"))?;
                let destination = &config.idp_uri.0;
                let head = Head { id: &own, now, destination, issuer: &config.sp_issuer };
                let relay_state =
                    message.relay_state.as_deref().filter(|state| state.len() <= RELAY_STATE_BYTES);
                let response = head.logout_response(id);
                binding::redirect(destination, Kind::Response, &response, relay_state, &self.own_key)
                    .map_err(Refusal::useless)
            }
        }
    }
}

/// The browser's session ends even if the provider means another one: it is the one that it was sent with.
fn warn_of_mismatch(issuer: Option<&str>, name: Option<&str>, login: &Login) {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    let is_meant = issuer == Some(&*login.user.issuer) && name == Some(&*login.user.name.text);
    if !is_meant && let Some(left_out) = COMPLAINT.due() {
        tracing::warn!(left_out, "saml-auth: the provider ended the session of another issuer or user");
    }
}
