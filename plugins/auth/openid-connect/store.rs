//! Where sessions are: in the browser's cookies, or in Redis with their name in a cookie. Either way they are
//! sealed.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use redis::{Cmd, RedisResult, Value};
use serde::{Deserialize, Serialize};
use sigma_plugin::{Context, Env, Node, Step};

use super::session::{Session, Sessions};
use super::session_config::{SameSite, SessionConfig, Storage};
use crate::shared::origin::is_secure;
use crate::shared::seal::{Seal, joined, leftovers, split};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::redis::{Connections, Target};

/// The sealing purpose of a cookie with a session.
const WHOLE: &str = "session";
/// The sealing purpose of a cookie with the name of a session.
const NAME: &str = "name of a session";

/// The longest time that Redis keeps a session, in seconds.
const LONGEST_S: u64 = 366 * 86_400;

/// Where sessions are.
pub(super) enum Store {
    Cookie,
    Redis { target: Arc<Target>, prefix: String },
}

impl Store {
    pub(super) fn new(config: &SessionConfig, node: &Node) -> Store {
        match (&config.redis, config.storage) {
            (Some(redis), Storage::Redis) => {
                Store::Redis { target: redis.target().shared(node), prefix: redis.prefix.clone() }
            }
            _ => Store::Cookie,
        }
    }

    /// Goes on with the session of a request, if it has one; with an error if that cannot be known.
    pub(super) fn read(
        &self,
        sessions: &Sessions,
        ctx: &mut Context,
        env: &Env<'_>,
        then: impl FnOnce(Result<Option<Session>, ()>, &mut Context, &Env<'_>) -> Step + 'static,
    ) -> Step {
        let sealed = joined(&ctx.request.headers, &sessions.config.cookie_name);
        let Some(sealed) = sealed else { return then(Ok(None), ctx, env) };
        match self {
            Store::Cookie => then(Ok(opened(sessions, WHOLE, &sealed)), ctx, env),
            Store::Redis { prefix, .. } => {
                let name = sessions.seal.open(NAME, &sealed);
                let Some(name) = name.and_then(|text| serde_json::from_slice::<Name>(&text).ok()) else {
                    return then(Ok(None), ctx, env);
                };
                let mut get = redis::cmd("MGET");
                get.arg(key(prefix, &name.id));
                for end in &name.ends {
                    get.arg(key(prefix, end));
                }
                let seal = Arc::clone(&sessions.seal);
                self.command(get, env, move |answer, ctx, env| {
                    let values =
                        answer.and_then(|value| Ok(redis::from_redis_value::<Vec<Option<Vec<u8>>>>(value)?));
                    then(values.map(|values| session_of(&seal, &name, &values)).map_err(drop), ctx, env)
                })
            }
        }
    }

    /// Keeps a session, and continues with the cookies for its browser; with an error if it cannot be kept.
    pub(super) fn write(
        &self,
        sessions: &Sessions,
        session: &Session,
        ctx: &mut Context,
        env: &Env<'_>,
        then: impl FnOnce(Result<Vec<String>, ()>, &mut Context, &Env<'_>) -> Step + 'static,
    ) -> Step {
        let Ok(text) = serde_json::to_vec(session) else { return then(Err(()), ctx, env) };
        let cookie = match self {
            Store::Cookie => sessions.seal.seal(WHOLE, &text, env.machine),
            Store::Redis { .. } => {
                let name = Name { id: session.id.clone(), ends: sessions.ends_of(session) };
                let text = serde_json::to_vec(&name).map_err(|error| error.to_string());
                text.and_then(|text| sessions.seal.seal(NAME, &text, env.machine))
            }
        };
        let config = &sessions.config;
        let parts = cookie.map(|sealed| split(&config.cookie_name, &sealed, &ctx.request.headers));
        let parts = match parts {
            Ok(Some(parts)) => parts,
            Ok(None) => {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::error!(
                        left_out,
                        "openid-connect: a session is too large for cookies: remove parts (`session_contents`), or store sessions in Redis (`session.storage`)"
                    );
                }
                return then(Err(()), ctx, env);
            }
            Err(error) => {
                tracing::error!(%error, "openid-connect: cannot store a session");
                return then(Err(()), ctx, env);
            }
        };
        let cookies = lines(config, parts, ctx);
        let Store::Redis { prefix, .. } = self else { return then(Ok(cookies), ctx, env) };
        let Ok(sealed) = sessions.seal.seal(&of_session(&session.id), &text, env.machine) else {
            return then(Err(()), ctx, env);
        };
        let left = sessions.seconds_left(session, env.unix_time().as_secs());
        let mut set = redis::cmd("SET");
        set.arg(key(prefix, &session.id)).arg(sealed).arg("EX").arg(left.unwrap_or(LONGEST_S).min(LONGEST_S));
        self.command(set, env, move |answer, ctx, env| then(answer.map(|_| cookies).map_err(drop), ctx, env))
    }

    /// Forgets a session, and continues with the cookies that have its browser forget it; with an error if it is not
    /// forgotten.
    pub(super) fn forget(
        &self,
        sessions: &Sessions,
        session: Option<&Session>,
        ctx: &mut Context,
        env: &Env<'_>,
        then: impl FnOnce(Result<Vec<String>, ()>, &mut Context, &Env<'_>) -> Step + 'static,
    ) -> Step {
        let config = &sessions.config;
        let parts = leftovers(&config.cookie_name, 1, &ctx.request.headers);
        let cookies = lines(config, parts, ctx);
        match (self, session) {
            (Store::Redis { prefix, .. }, Some(session)) => {
                let mut del = redis::cmd("DEL");
                del.arg(key(prefix, &session.id));
                self.command(del, env, move |answer, ctx, env| {
                    then(answer.map(|_| cookies).map_err(drop), ctx, env)
                })
            }
            _ => then(Ok(cookies), ctx, env),
        }
    }

    /// Ends the sessions that began until now and have such an end; with an error if that cannot be kept.
    pub(super) fn end_all(
        &self,
        sessions: &Sessions,
        end: &str,
        ctx: &mut Context,
        env: &Env<'_>,
        then: impl FnOnce(Result<(), ()>, &mut Context, &Env<'_>) -> Step + 'static,
    ) -> Step {
        let Store::Redis { prefix, .. } = self else { return then(Err(()), ctx, env) };
        let lives = match sessions.config.absolute_s() {
            0 => LONGEST_S,
            seconds => seconds.min(LONGEST_S),
        };
        let mut set = redis::cmd("SET");
        set.arg(key(prefix, end)).arg(env.unix_time().as_secs()).arg("EX").arg(lives);
        self.command(set, env, move |answer, ctx, env| then(answer.map(drop).map_err(drop), ctx, env))
    }

    fn command(
        &self,
        command: Cmd,
        env: &Env<'_>,
        then: impl FnOnce(RedisResult<Value>, &mut Context, &Env<'_>) -> Step + 'static,
    ) -> Step {
        let Store::Redis { target, .. } = self else { return Step::status(500) };
        let connection = env.local.part(Connections::default).to(target);
        Step::wait(async move { connection.ask(&command).await }, then)
    }
}

/// The content of the cookie for a session in Redis.
#[derive(Serialize, Deserialize)]
struct Name {
    id: String,
    /// Under which names its end may be kept there.
    ends: Vec<String>,
}

/// The session with this name, by what Redis has of it and of its ends.
fn session_of(seal: &Seal, name: &Name, values: &[Option<Vec<u8>>]) -> Option<Session> {
    let (sealed, ends) = values.split_first()?;
    let text = seal.open(&of_session(&name.id), sealed.as_deref()?)?;
    let session: Session = serde_json::from_slice(&text).ok()?;
    // An end that cannot be read is one.
    let second = |end: &Vec<u8>| std::str::from_utf8(end).ok().and_then(|text| text.parse().ok());
    let is_over = ends.iter().flatten().any(|end| second(end).is_none_or(|end: u64| session.began <= end));
    (!is_over).then_some(session)
}

/// Returns the sealing purpose of a session in Redis: a writer of Redis cannot exchange one for another.
fn of_session(id: &str) -> String {
    format!("session {id}")
}

fn key(prefix: &str, id: &str) -> String {
    format!("{prefix}:{id}")
}

fn opened(sessions: &Sessions, purpose: &str, sealed: &[u8]) -> Option<Session> {
    serde_json::from_slice(&sessions.seal.open(purpose, sealed)?).ok()
}

/// Set-Cookie fields for these cookies; one without a value is to be forgotten.
fn lines(config: &SessionConfig, parts: Vec<(String, String)>, ctx: &Context) -> Vec<String> {
    let same_site = match config.cookie_same_site {
        SameSite::Strict => "; SameSite=Strict",
        SameSite::Lax => "; SameSite=Lax",
        SameSite::None => "; SameSite=None",
        SameSite::Default => "",
    };
    parts.into_iter().map(|(name, value)| cookie(config, &name, &value, same_site, ctx)).collect()
}

/// A cookie of a login that is under way: it comes back with a request that the provider's page makes.
pub(super) fn login_cookie(
    config: &SessionConfig,
    name: &str,
    sealed: Option<&[u8]>,
    ctx: &Context,
) -> String {
    let value = sealed.map(|sealed| URL_SAFE_NO_PAD.encode(sealed)).unwrap_or_default();
    let same_site =
        if config.cookie_same_site == SameSite::None { "; SameSite=None" } else { "; SameSite=Lax" };
    cookie(config, name, &value, same_site, ctx)
}

fn cookie(config: &SessionConfig, name: &str, value: &str, same_site: &str, ctx: &Context) -> String {
    let domain = config.cookie_domain.as_ref().map(|domain| format!("; Domain={domain}"));
    let ends = if value.is_empty() { "; Max-Age=0" } else { "" };
    let http_only = if config.cookie_http_only { "; HttpOnly" } else { "" };
    let secure = if config.cookie_secure.unwrap_or_else(|| is_secure(ctx)) { "; Secure" } else { "" };
    let (path, domain) = (&config.cookie_path, domain.unwrap_or_default());
    format!("{name}={value}; Path={path}{domain}{ends}{http_only}{secure}{same_site}")
}
