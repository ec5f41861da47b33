//! How a browser is sent to the provider to log in.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sigma_plugin::variables::pairs;
use sigma_plugin::{Context, Env, Reply, Step};

use super::Party;
use super::client::Client;
use super::random::unguessable;
use super::session::Sessions;
use super::store::login_cookie;
use crate::shared::origin::origin;
use crate::shared::seal::cookies;
use crate::shared::tokens::{Address, Metadata, beside};

/// Seconds that a user has for a login.
pub(super) const LOGIN_S: u64 = 600;

/// Logins of one browser that may be under way: beyond that the oldest are forgotten, so that cookies do not pile up.
const MOST_LOGINS: usize = 5;

/// The end of the default redirect URI.
const CALLBACK: &str = "/.apisix/redirect";

/// The reason for a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reason {
    /// There is no session.
    Unknown,
    /// There is one, and the provider shall say whether it still knows the user, without a question.
    Again,
    /// The provider asked to try it again: for this target, for the n-th time.
    Retry(String, u8),
}

/// A login that is under way: what its browser keeps, sealed.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Pending {
    pub(super) state: String,
    pub(super) nonce: String,
    /// Proves who requested the code (RFC 7636).
    pub(super) verifier: String,
    /// Path and query that were requested.
    pub(super) target: String,
    pub(super) redirect_uri: String,
    /// Seconds since 1970.
    pub(super) began: u64,
    /// How often the provider asked to try again.
    pub(super) retries: u8,
    /// Whether the provider was asked not to prompt the user.
    pub(super) silent: bool,
}

/// Path and query to come back to. It never leads to another host, for any request of the client.
fn target(ctx: &Context) -> String {
    let target = String::from_utf8_lossy(ctx.request.path_and_query()).into_owned();
    let path = target.trim_start_matches(['/', '\\']);
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic());
    if is_plain { format!("/{path}") } else { "/".to_owned() }
}

/// The page to which a callback of no configured path belongs.
fn page_of(ctx: &Context) -> String {
    let target = target(ctx);
    let path = target.split('?').next().unwrap_or_default();
    match path.strip_suffix(CALLBACK) {
        Some(page) if !page.is_empty() => page.to_owned(),
        _ => "/".to_owned(),
    }
}

/// Whether a query is the provider's redirect to the callback (RFC 6749 §4.1.2). The page of the callback may
/// be one that users ask for, with arguments of its own.
fn is_returning(query: &[u8]) -> bool {
    let has = |wanted: &[u8]| pairs(query).any(|(name, _)| *name == *wanted);
    has(b"error") || has(b"code") && has(b"state")
}

/// The name of the cookie of a login.
pub(super) fn cookie_name(sessions: &Sessions, state: &str) -> String {
    let digest = digest(&SHA256, state.as_bytes());
    let name: String = digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{}_login_{name}", sessions.config.cookie_name)
}

impl Sessions {
    /// The login that a cookie holds.
    pub(super) fn pending(&self, value: &[u8]) -> Option<Pending> {
        let sealed = URL_SAFE_NO_PAD.decode(value).ok()?;
        serde_json::from_slice(&self.seal.open("login", &sealed)?).ok()
    }

    /// The names of cookies of logins that are to be forgotten before another begins.
    fn surplus(&self, ctx: &Context, now: u64) -> Vec<String> {
        let prefix = format!("{}_login_", self.config.cookie_name);
        let own = cookies(&ctx.request.headers).filter(|(name, _)| name.starts_with(prefix.as_bytes()));
        let mut logins: Vec<(u64, String)> = own
            .map(|(name, value)| {
                let began = self.pending(value).map_or(0, |pending| pending.began);
                (began, String::from_utf8_lossy(name).into_owned())
            })
            .collect();
        // The newest first.
        logins.sort_by(|a, b| b.cmp(a));
        let is_due = |at: usize, began: u64| at + 1 >= MOST_LOGINS || now.saturating_sub(began) > LOGIN_S;
        let due = logins.into_iter().enumerate().filter(|(at, (began, _))| is_due(*at, *began));
        due.map(|(_, (_, name))| name).collect()
    }
}

impl Party {
    /// Whether a request is a browser that comes back from the provider.
    pub(super) fn is_callback(&self, ctx: &Context) -> bool {
        self.is_callback_path(ctx) && is_returning(ctx.request.query().unwrap_or_default())
    }

    fn is_callback_path(&self, ctx: &Context) -> bool {
        match &self.config.redirect_uri {
            None => ctx.uri.ends_with(CALLBACK.as_bytes()),
            Some(uri) if uri.starts_with('/') => {
                uri.split('?').next().is_some_and(|path| path.as_bytes() == ctx.uri)
            }
            Some(uri) => Address::try_from(uri.clone()).is_ok_and(|uri| uri.path().as_bytes() == ctx.uri),
        }
    }

    fn redirect_uri(&self, ctx: &Context) -> Option<String> {
        match &self.config.redirect_uri {
            Some(uri) if !uri.starts_with('/') => Some(uri.clone()),
            Some(path) => Some(format!("{}{path}", origin(ctx)?)),
            None => {
                let path = String::from_utf8_lossy(ctx.request.raw_path()).into_owned();
                let path = path.strip_suffix(CALLBACK).unwrap_or(&path);
                Some(format!("{}{}{CALLBACK}", origin(ctx)?, path.trim_end_matches('/')))
            }
        }
    }

    /// Sends the browser to the provider.
    pub(super) fn log_in(self: &Arc<Self>, reason: Reason, ctx: &mut Context, env: &Env<'_>) -> Step {
        self.with_metadata(false, ctx, env, move |party, metadata, ctx, env| {
            let Some(metadata) = metadata else {
                return Reply::new(503).because("the provider is unreachable").into();
            };
            if origin(ctx).is_none() {
                return Reply::new(400).because("the request has no host").into();
            }
            let departure = match party.depart(&metadata, &reason, ctx, env) {
                Ok(departure) => departure,
                Err(fault) => return login_failed(&fault),
            };
            match &party.pusher {
                Some(pusher) => party.push(pusher.clone(), departure, &metadata, env),
                None => departure.sent().into(),
            }
        })
    }

    /// Pushes the authorization request to the provider, and redirects the browser with its reference (RFC
    /// 9126).
    fn push(&self, pusher: Client, departure: Departure, metadata: &Metadata, env: &Env<'_>) -> Step {
        let written = self.config.par.as_ref().and_then(|par| par.endpoint.clone());
        let endpoint = written.or_else(|| metadata.pushed_authorization_request_endpoint.clone());
        let Some(endpoint) = endpoint else {
            return login_failed(
                "the provider has no pushed_authorization_request_endpoint; set `par.endpoint`",
            );
        };
        let (provider, pairs, id) = (Arc::clone(&self.provider), departure.pairs.clone(), pusher.id.clone());
        let pushed =
            beside(env.node, async move { pusher.push(&provider, &endpoint, &borrowed(&pairs)).await });
        Step::wait(pushed, move |pushed, _, _| match pushed {
            Some(Ok(uri)) => {
                let pairs = vec![("client_id".to_owned(), id), ("request_uri".to_owned(), uri)];
                Departure { pairs, ..departure }.sent().into()
            }
            Some(Err(fault)) => login_failed(&fault),
            None => login_failed("the provider is not called"),
        })
    }

    fn depart(
        &self,
        metadata: &Metadata,
        reason: &Reason,
        ctx: &Context,
        env: &Env<'_>,
    ) -> Result<Departure, String> {
        let sessions = self.sessions.as_ref().ok_or("the plugin has no sessions (bearer_only)")?;
        let endpoint = metadata.authorization_endpoint.as_ref();
        let endpoint = endpoint.ok_or("the provider has no authorization_endpoint")?;
        let now = env.unix_time().as_secs();
        let (target, retries) = match reason {
            Reason::Retry(target, retries) => (target.clone(), *retries),
            // A bookmark of the callback leads to the page that it belongs to.
            _ if self.config.redirect_uri.is_none() && self.is_callback_path(ctx) => (page_of(ctx), 0),
            _ => (target(ctx), 0),
        };
        let callback = match reason {
            // The path that is requested is the callback itself.
            Reason::Retry(..) if self.config.redirect_uri.is_none() => origin(ctx)
                .map(|origin| format!("{origin}{}", String::from_utf8_lossy(ctx.request.raw_path()))),
            _ => self.redirect_uri(ctx),
        };
        let pending = Pending {
            state: unguessable(env.machine)?,
            nonce: unguessable(env.machine)?,
            verifier: format!("{}{}", unguessable(env.machine)?, unguessable(env.machine)?),
            target,
            redirect_uri: callback.ok_or("the request has no host")?,
            began: now,
            retries,
            silent: *reason == Reason::Again,
        };
        let text = serde_json::to_vec(&pending).map_err(|error| error.to_string())?;
        let sealed = sessions.seal.seal("login", &text, env.machine)?;
        let config = &sessions.config;
        let surplus = sessions.surplus(ctx, now);
        let mut cookies: Vec<String> =
            surplus.into_iter().map(|name| login_cookie(config, &name, None, ctx)).collect();
        let name = cookie_name(sessions, &pending.state);
        cookies.push(login_cookie(config, &name, Some(&sealed), ctx));
        Ok(Departure { endpoint: endpoint.clone(), pairs: self.authorization_parameters(&pending), cookies })
    }

    /// Returns the parameters of the authorization request (OpenID Connect Core §3.1.2.1).
    fn authorization_parameters(&self, pending: &Pending) -> Vec<(String, String)> {
        let config = &self.config;
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, pending.verifier.as_bytes()));
        let mut pairs: Vec<(&str, &str)> = vec![
            ("client_id", &config.client_id),
            ("response_type", "code"),
            ("scope", &config.scope),
            ("redirect_uri", &pending.redirect_uri),
            ("state", &pending.state),
        ];
        if config.use_nonce {
            pairs.push(("nonce", &pending.nonce));
        }
        if config.use_pkce {
            pairs.extend([("code_challenge", &*challenge), ("code_challenge_method", "S256")]);
        }
        if pending.silent {
            pairs.push(("prompt", "none"));
        }
        let own = pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let further = config.authorization_params.iter().flatten();
        let further =
            further.filter(|(name, _)| !(pending.silent && *name == "prompt")).map(|(name, value)| {
                (name.clone(), value.as_str().map_or_else(|| Value::to_string(value), str::to_owned))
            });
        own.chain(further).collect()
    }
}

/// A browser that is sent to log in.
struct Departure {
    endpoint: Address,
    /// Its parameters for the provider.
    pairs: Vec<(String, String)>,
    /// What it keeps.
    cookies: Vec<String>,
}

impl Departure {
    fn sent(self) -> Reply {
        let reply = Reply::new(302)
            .header("Location", self.endpoint.with_arguments(&borrowed(&self.pairs)))
            .header("Cache-Control", "no-cache, no-store, max-age=0");
        self.cookies.into_iter().fold(reply, |reply, cookie| reply.header("Set-Cookie", cookie))
    }
}

fn borrowed(pairs: &[(String, String)]) -> Vec<(&str, &str)> {
    pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// 500, with the reason in the log alone.
fn login_failed(fault: &str) -> Step {
    tracing::error!(fault, "openid-connect: logins fail");
    Reply::new(500).because("logins fail").into()
}
