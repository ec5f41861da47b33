//! `saml-auth`: a browser logs in at a provider of SAML 2.0.
//!
//! | file | question |
//! |---|---|
//! | `config` | the configuration |
//! | `document` | text to tree, within limits |
//! | `canonical` | the text of an element that is signed |
//! | `keys` | who signs, and with which algorithms |
//! | `signature` | whether an element is signed, and which one |
//! | `binding` | how messages travel |
//! | `instant` | times in messages |
//! | `assertion` | the provider's assertion about a user, and its checks |
//! | `messages` | messages of the gateway, and messages that end a session |
//! | `login` | how a browser goes and comes back |
//! | `logout` | how a session ends |

mod assertion;
mod binding;
mod canonical;
mod config;
mod document;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod fuzzing;
mod instant;
mod keys;
mod login;
mod logout;
mod messages;
mod signature;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use sigma_http::Method;
use sigma_plugin::credentials::Credential;
use sigma_plugin::step::BodyRead;
use sigma_plugin::{
    Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, ResponseStep, Slot, Step,
};
use sigma_schema::Confidential;
use sigma_schema::described::schema_of;

use self::assertion::{Refusal, User};
use self::binding::Message;
use self::config::{Attributes, Binding, Config};
use self::keys::{OwnKey, ProviderKeys};
use self::login::Pending;
use crate::shared::code_login::USER_VARIABLE;
use crate::shared::origin::{is_foreign, origin, refuse_logout};
use crate::shared::session_cookie::{SessionCookie, with_cookies};
use crate::shared::used_once::Used;
use sigma_plugin_kit::log_throttle::LogThrottle;

const NAME: &str = "saml-auth";

/// Lets browsers pass that have logged in at a provider of SAML.
pub(crate) static SAML_AUTH: Descriptor = Descriptor {
    name: NAME,
    priority: 2598,
    example: include_str!("example.md"),
    identifies: true,
    credentials: Some(|_| ["SAMLResponse", "SAMLRequest"].map(Credential::argument).into()),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::HeaderFilter]),
    guards: true,
    attributes: Some(schema_of::<Attributes>),
    warnings: Some(|_, conf| config::warnings(conf)),
    build: |build| Ok(Arc::new(SamlAuth(Arc::new(Party::new(build)?)))),
    ..Descriptor::of::<Config>()
};

/// Seconds without a request after which a session ends.
const IDLE_S: u64 = 900;

/// Seconds after which a session ends, whatever happens.
const ABSOLUTE_S: u64 = 86_400;

/// A session whose use was noted less than this many seconds ago is not noted again.
const NOTED_S: u64 = 60;

struct SamlAuth(Arc<Party>);

/// The gateway as a provider knows it (a service provider), by one configuration.
struct Party {
    config: Config,
    provider_keys: ProviderKeys,
    own_key: OwnKey,
    cookie: SessionCookie,
    /// Logins and assertions that have come back.
    used: Arc<Used>,
    message_bytes: usize,
}

/// The sealed state in a browser's cookie.
#[derive(Serialize, Deserialize)]
enum Session {
    /// Logins in progress, with as many pages; the newest is first.
    LoggingIn(Vec<Pending>),
    LoggedIn(Box<Login>),
}

/// Times are seconds since 1970.
#[derive(Clone, Serialize, Deserialize)]
struct Login {
    user: User,
    /// When the user logged in.
    began: u64,
    /// When it was last noted that the session is in use.
    noted: u64,
    /// When the provider wants it to end.
    ends: Option<u64>,
    /// The ID of the request for its end that was sent.
    ending: Option<String>,
}

/// Cookies for the response to this request.
struct Cookies(Vec<String>);

/// Returns the response to a refused request; the reason is logged.
fn refuse(refusal: Refusal) -> Step {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    let Refusal { status, why } = refusal;
    if let Some(left_out) = COMPLAINT.due() {
        tracing::warn!(left_out, status, why, "saml-auth: a message was refused");
    }
    Reply::new(status).text("").because(why).into()
}

/// 500, because of something that is not the client's fault.
fn fail(reason: &str) -> Step {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    if let Some(left_out) = COMPLAINT.due() {
        tracing::error!(left_out, reason, "saml-auth: a login failed");
    }
    let message = json!({ "message": "saml authentication failed" });
    Reply::new(500).json(&message).because("the login failed").into()
}

/// Sends a browser elsewhere.
fn redirect(location: String, cookies: Vec<String>) -> Step {
    let reply = Reply::new(302).header("Location", location).header("Cache-Control", "no-store");
    with_cookies(reply.text(""), cookies).into()
}

impl Party {
    fn new(build: &Build<'_>) -> Result<Party, String> {
        let config: Config = build.config()?;
        let told = Option::<Attributes>::deserialize(build.node.attribute(build.plugin));
        let told = told.map_err(|error| format!("plugin_attr.{NAME}: {error}"))?.unwrap_or_default();
        let (provider_keys, own_key) = config.keys()?;
        let former = config.secret_fallbacks.iter().map(Confidential::reveal);
        let context = [NAME, &config.sp_issuer, &config.idp_uri.0];
        let cookie = SessionCookie::new("saml_session".to_owned(), config.secret.reveal(), former, &context);
        let cookie = match config.auth_protocol_binding_method {
            Binding::Redirect => cookie,
            Binding::Post => cookie.across_sites(),
        };
        let (used, message_bytes) = (Used::of(build.node), told.message_bytes);
        Ok(Party { config, provider_keys, own_key, cookie, used, message_bytes })
    }

    /// The URL of a path of the gateway, as the provider knows it.
    fn url(&self, path: &str, ctx: &Context) -> Option<String> {
        let own = self.config.login_callback_uri.origin.clone().or_else(|| origin(ctx))?;
        Some(own + path)
    }

    /// Reads the message that a browser brings from the provider, and continues with it.
    fn with_message(
        self: Arc<Self>,
        ctx: &mut Context,
        env: &Env<'_>,
        then: impl FnOnce(&Party, &Message, &mut Context, &Env<'_>) -> Step + 'static,
    ) -> Step {
        let limit = self.message_bytes;
        match ctx.request.method {
            Method::Get => {
                let query = ctx.request.query().unwrap_or_default();
                match binding::of_query(query, &self.provider_keys, limit) {
                    Ok(message) => then(&self, &message, ctx, env),
                    Err(why) => refuse(Refusal::broken(why)),
                }
            }
            // In Base64, and percent-encoded.
            Method::Post => Step::ReadBody {
                limit: limit * 2 + 1024,
                then: Box::new(move |ctx, env, read| {
                    let body = ctx.body.as_deref().filter(|_| read == BodyRead::Whole);
                    let form = body.ok_or("the form is too large");
                    match form.and_then(|form| binding::of_form(form, limit)) {
                        Ok(message) => then(&self, &message, ctx, env),
                        Err(why) => refuse(Refusal::broken(why)),
                    }
                }),
            },
            _ => {
                let reply = Reply::new(405).header("Allow", "GET, POST").text("");
                reply.because("a message must arrive by GET or POST").into()
            }
        }
    }

    /// Returns the session of a logged-in user, if it is valid.
    fn login(session: Option<Session>, env: &Env<'_>) -> Option<Login> {
        let Some(Session::LoggedIn(login)) = session else { return None };
        let now = env.unix_time().as_secs();
        let is_over =
            now >= login.began.saturating_add(ABSOLUTE_S) || login.ends.is_some_and(|ends| now >= ends);
        (!is_over).then_some(*login)
    }

    /// Returns cookies with the session of a logged-in user.
    fn kept(&self, login: Login, ctx: &Context, env: &Env<'_>) -> Result<Vec<String>, String> {
        let now = env.unix_time().as_secs();
        let ends = login.began.saturating_add(ABSOLUTE_S).min(login.ends.unwrap_or(u64::MAX));
        let lives_s = IDLE_S.min(ends.saturating_sub(now));
        self.cookie.begin(Session::LoggedIn(Box::new(login)), lives_s, ctx, env)
    }

    /// Lets a logged-in user pass.
    fn admit(&self, mut login: Login, slot: Slot, ctx: &mut Context, env: &Env<'_>) -> Step {
        let now = env.unix_time().as_secs();
        if now.saturating_sub(login.noted) >= NOTED_S {
            login.noted = now;
            match self.kept(login.clone(), ctx, env) {
                Ok(cookies) => ctx.keep(slot, Cookies(cookies)),
                Err(reason) => return fail(&reason),
            }
        }
        self.cookie.hide(ctx);
        let User { name, session_index, attrs, issuer } = login.user;
        ctx.mark_personal(&format!("saml-auth {issuer:?}"), Some(name.text.as_bytes()));
        ctx.set_variable_with(USER_VARIABLE, move || {
            let user = json!({
                "authenticated": true, "name_id": name.text, "session_index": session_index, "attrs": attrs,
                "issuer": issuer,
            });
            user.to_string().into_bytes()
        });
        Step::Next
    }
}

impl Plugin for SamlAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let party = &self.0;
        let session = party.cookie.read::<Session>(ctx, env);
        if ctx.uri == party.config.login_callback_uri.path.as_bytes() {
            return Arc::clone(party).call_back(session, ctx, env);
        }
        if ctx.uri == party.config.logout_uri.0.as_bytes() {
            if is_foreign(ctx, None) {
                return refuse_logout();
            }
            return party.log_out(session, ctx, env);
        }
        if ctx.uri == party.config.logout_callback_uri.0.as_bytes() {
            return Arc::clone(party).end(session, ctx, env);
        }
        match session {
            Some(Session::LoggingIn(pending)) => party.log_in(pending, ctx, env),
            session => match Party::login(session, env) {
                Some(login) => party.admit(login, Slot::from(self), ctx, env),
                None => party.log_in(Vec::new(), ctx, env),
            },
        }
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        if let Some(Cookies(cookies)) = ctx.take_kept(self) {
            cookies.iter().for_each(|cookie| ctx.response.headers.append("Set-Cookie", cookie.as_bytes()));
        }
        ResponseStep::Next
    }
}

#[cfg(test)]
mod tests;
