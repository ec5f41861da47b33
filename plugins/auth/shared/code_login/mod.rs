//! `dingtalk-auth` and `feishu-auth`: a code of an open platform becomes a session.
//!
//! | file | question |
//! |---|---|
//! | `dingtalk`, `feishu` | the configuration, and the requests to the platform |
//! | here | the code of a request, the session in a cookie, and the user for the node |

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use sigma_http::Method;
use sigma_plugin::credentials::Credential;
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::{Call, CallError, Service, ServiceResponse};
use sigma_plugin::owned::texts;
use sigma_plugin::{Context, Env, Reply, ResponseStep, Slot, Step};
use sigma_schema::Confidential;
use sigma_schema::Problem;

use super::answers;
use super::policy::only_argument;
use super::session_cookie::{SessionCookie, with_cookies};
use sigma_plugin_kit::fields::is_name;
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::service::{cleartext, unverified};

/// The field with the user for the node.
pub(crate) const USER_FIELD: &str = "X-Userinfo";

/// The variable in which `acl` finds the user, as JSON.
pub(crate) const USER_VARIABLE: &str = "external_user";

/// Seconds for which a session holds at most: it is not renewed.
pub(crate) const LIVES_S: u64 = 900;

/// Most bytes of a user, as JSON: a cookie and a field hold it.
pub(crate) const USER_BYTES: usize = 8 << 10;

/// The settings that both plugins need.
pub(crate) struct Party {
    /// The plugin.
    pub(crate) name: &'static str,
    pub(crate) cookie: SessionCookie,
    /// How long a session holds.
    pub(crate) lives_s: u64,
    pub(crate) code_header: String,
    pub(crate) code_query: String,
    pub(crate) redirect_uri: String,
    pub(crate) tells_user: bool,
}

/// Cookies for the response to this request.
pub(crate) struct Cookies(Vec<String>);

/// The user of a platform.
pub(crate) type User = Map<String, Value>;

impl Party {
    /// Recognises a session.
    ///
    /// # Errors
    /// Returns an error, which is the next step, if there is no session: the code of the request, or the response.
    pub(crate) fn recognise(&self, ctx: &mut Context, env: &Env<'_>) -> Result<(), Result<String, Step>> {
        if let Some(user) = self.cookie.read::<User>(ctx, env) {
            self.cookie.hide(ctx);
            self.tell(&user, ctx);
            return Ok(());
        }
        let code = ctx.request.headers.find(self.code_header.as_bytes()).map(<[u8]>::to_vec);
        match code.or_else(|| only_argument(ctx, &self.code_query)) {
            None => {
                let reply = Reply::new(302).header("Location", self.redirect_uri.as_bytes()).text("");
                Err(Err(with_cookies(reply, self.cookie.end(ctx)).into()))
            }
            Some(code) => Err(match String::from_utf8(code) {
                Ok(code) if !code.is_empty() => Ok(code),
                _ => Err(refuse(401, "Invalid authorization code")),
            }),
        }
    }

    pub(crate) fn tell(&self, user: &User, ctx: &mut Context) {
        let user = Value::Object(user.clone()).to_string();
        ctx.mark_personal(self.name, Some(digest(&SHA256, user.as_bytes()).as_ref()));
        if self.tells_user {
            ctx.request.headers.append(USER_FIELD, STANDARD.encode(&user).as_bytes());
        }
        ctx.set_variable(USER_VARIABLE, user);
    }

    /// Begins the session of a user.
    pub(crate) fn welcome(&self, user: User, slot: Slot, ctx: &mut Context, env: &Env<'_>) -> Step {
        if Value::Object(user.clone()).to_string().len() > USER_BYTES {
            return refuse(500, "Invalid userinfo");
        }
        match self.cookie.begin(&user, self.lives_s, ctx, env) {
            Ok(cookies) => {
                self.cookie.hide(ctx);
                self.tell(&user, ctx);
                ctx.keep(slot, Cookies(cookies));
                Step::Next
            }
            Err(reason) => {
                self.complain(&reason);
                refuse(500, "Failed to save session")
            }
        }
    }

    pub(crate) fn complain(&self, reason: &str) {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        if let Some(left_out) = COMPLAINT.due() {
            tracing::warn!(left_out, plugin = self.name, reason, "a login failed");
        }
    }
}

pub(crate) fn refuse(status: u16, message: &'static str) -> Step {
    Reply::new(status).json(&json!({ "message": message })).because(message).into()
}

/// Adds the cookies of a new session to the response.
pub(crate) fn add_cookies(slot: Slot, ctx: &mut Context) -> ResponseStep {
    if let Some(Cookies(cookies)) = ctx.take_kept(slot) {
        cookies.iter().for_each(|cookie| ctx.response.headers.append("Set-Cookie", cookie.as_bytes()));
    }
    ResponseStep::Next
}

/// A question in JSON.
pub(crate) fn post(service: &Service, upstream: &str, body: &Value, timeout_ms: u64, ctx: &Context) -> Call {
    let mut call = service.get(upstream, ctx, timeout_ms);
    call.method = Method::Post;
    call.headers.append("Content-Type", b"application/json");
    call.body = Some(body.to_string().into_bytes());
    call
}

/// Returns the object in the body of a response. The error says that there is no `what`, and why.
pub(crate) fn read<T: DeserializeOwned>(
    answer: Result<ServiceResponse, CallError>,
    what: &str,
) -> Result<T, String> {
    match answer {
        Ok(ServiceResponse { status: 200, body, .. }) => {
            answers::read(&body).ok_or_else(|| format!("no {what} in the response"))
        }
        Ok(ServiceResponse { status, .. }) => Err(format!("no {what}: status {status}")),
        Err(error) => Err(format!("no {what}: {error}")),
    }
}

/// Names of the fields with a URL, which are also the names of the upstreams.
pub(crate) const TOKEN_URL: &str = "access_token_url";
pub(crate) const USER_URL: &str = "userinfo_url";

pub(crate) fn upstreams(
    token: &Service,
    user: &Service,
    verify: bool,
    timeout_ms: u64,
) -> Vec<InlineUpstream> {
    let both = [(TOKEN_URL, token), (USER_URL, user)];
    let made = both.map(|(name, service)| InlineUpstream {
        name: name.to_owned(),
        upstream: service.upstream(verify, timeout_ms),
    });
    made.into()
}

/// The codes of both configurations.
pub(crate) fn credentials(conf: &Value) -> Vec<Credential> {
    let fields = texts(conf, "code_header").map(Credential::field);
    fields.chain(texts(conf, "code_query").map(Credential::argument)).collect()
}

/// Checks what both configurations have.
pub(crate) fn check(code_header: &str, redirect_uri: &str) -> Result<(), String> {
    if !is_name(code_header) {
        return Err(format!("`{code_header}` is not the name of a header field"));
    }
    if !redirect_uri.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("`redirect_uri` has unencoded characters".to_owned());
    }
    Ok(())
}

pub(crate) fn warnings(conf: &Value) -> Vec<Problem> {
    let clear = |field: &str| cleartext(conf, field, "secrets and user data are sent in cleartext");
    let clear = [TOKEN_URL, USER_URL].into_iter().filter_map(clear);
    clear.chain(unverified(conf, "another server can impersonate the provider and name any user")).collect()
}

/// The cookie of a plugin with these secrets.
pub(crate) fn cookie(
    name: &str,
    app: &str,
    secret: &Confidential,
    older: &[Confidential],
    context: &[&str],
) -> SessionCookie {
    let older = older.iter().map(Confidential::reveal);
    let context: Vec<&str> = [name, app].into_iter().chain(context.iter().copied()).collect();
    SessionCookie::new(name.to_owned(), secret.reveal(), older, &context)
}

/// Goes on where there is no session yet: with the code, or with the response that is due.
pub(crate) fn with_code(
    party: &Arc<Party>,
    ctx: &mut Context,
    env: &Env<'_>,
    then: impl FnOnce(String, &mut Context, &Env<'_>) -> Step,
) -> Step {
    match party.recognise(ctx, env) {
        Ok(()) => Step::Next,
        Err(Ok(code)) => then(code, ctx, env),
        Err(Err(answer)) => answer,
    }
}

#[cfg(test)]
mod tests;
