//! `authz-casdoor`: a browser logs in at Casdoor.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sigma_http::Method;
use sigma_plugin::credentials::Credential;
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::{Call, CallError, Service, ServiceResponse};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};
use sigma_schema::Confidential;
use sigma_schema::Problem;

use crate::shared::answers;
use crate::shared::form::Form;
use crate::shared::pages::STOLEN_LOGIN;
use crate::shared::policy::{only_argument, same_secret};
use crate::shared::session_cookie::{SessionCookie, with_cookies};
use crate::shared::used_once::Used;
use crate::shared::way_back;
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::service::cleartext;

const NAME: &str = "authz-casdoor";

/// Lets browsers pass that have logged in at Casdoor.
pub(crate) static AUTHZ_CASDOOR: Descriptor = Descriptor {
    name: NAME,
    priority: 2559,
    example: include_str!("example.md"),
    identifies: true,
    names_persons: false,
    credentials: Some(|_| vec![Credential::argument("code")]),
    phases: PhaseSet::of(&[Phase::Access]),
    guards: true,
    warnings: Some(|_, conf| warnings(conf)),
    upstreams: Some(|conf| upstream(conf).into_iter().collect()),
    build: |build| Ok(Arc::new(AuthzCasdoor::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// The name of Casdoor among the plugin's upstreams.
const CASDOOR: &str = "casdoor";

/// Milliseconds for Casdoor's response.
const TIMEOUT_MS: u64 = 10_000;

/// Seconds for which a browser may take to log in, and for which a login holds.
const LIVES_S: u64 = 900;

/// Logs users in at Casdoor (OAuth 2.0 authorization code flow).
///
/// A browser without a session is redirected to Casdoor and returns to `callback_url`, where its code is exchanged for
/// a token. Then it is redirected to the requested path, without the query. A session ends after 15 minutes, or
/// earlier with its token. It is stored in a cookie that the node does not get, encrypted with a key derived from
/// `client_secret`. All gateways with the same configuration accept it, and so do other routes with the same
/// `client_id`. A login can be finished once at each gateway. Casdoor must respond within 10 s.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The URL of Casdoor.
    #[schemars(regex(pattern = r"^[^%?]+[^/]$"))]
    endpoint_addr: Service,
    /// The URL, on this route, to which browsers come back.
    #[schemars(regex(pattern = r"^[^%?]+[^/]$"))]
    callback_url: CallbackUrl,
    /// The id of the application at Casdoor.
    client_id: String,
    /// The secret of the application.
    client_secret: Confidential,
}

impl Configuration for Config {}

/// An absolute URL with a path.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
struct CallbackUrl {
    #[schemars(skip)]
    url: String,
    #[schemars(skip)]
    path: String,
}

impl TryFrom<String> for CallbackUrl {
    type Error = String;

    fn try_from(url: String) -> Result<CallbackUrl, String> {
        let service = Service::parse(&url)?;
        if &*service.target == "/" {
            return Err(format!("`{url}` has no path, which browsers need to return"));
        }
        Ok(CallbackUrl { url, path: service.target.into() })
    }
}

fn upstream(conf: &Value) -> Option<InlineUpstream> {
    let config = Config::deserialize(conf).ok()?;
    Some(InlineUpstream {
        name: CASDOOR.to_owned(),
        upstream: config.endpoint_addr.upstream(true, TIMEOUT_MS),
    })
}

fn warnings(conf: &Value) -> Vec<Problem> {
    ["endpoint_addr", "callback_url"]
        .iter()
        .filter_map(|field| cleartext(conf, field, STOLEN_LOGIN))
        .collect()
}

struct AuthzCasdoor(Arc<Party>);

struct Party {
    config: Config,
    upstream: Box<str>,
    cookie: SessionCookie,
    used: Arc<Used>,
}

/// The session in a browser's cookie.
#[derive(Serialize, Deserialize)]
enum Session {
    /// It is on its way to Casdoor.
    LoggingIn { state: String, back: String },
    /// It has been there.
    LoggedIn,
}

/// Casdoor's response to a code.
#[derive(Deserialize)]
struct Granted {
    access_token: String,
    expires_in: u64,
}

impl AuthzCasdoor {
    fn new(build: &Build<'_>) -> Result<AuthzCasdoor, String> {
        let config: Config = build.config()?;
        let hash = digest(&SHA256, config.client_id.as_bytes());
        let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let endpoint = format!(
            "{}://{}{}",
            config.endpoint_addr.scheme, config.endpoint_addr.host, config.endpoint_addr.target
        );
        let cookie = SessionCookie::new(
            format!("authz_casdoor_session_{hash}"),
            config.client_secret.reveal(),
            [],
            &[NAME, &endpoint, &config.client_id],
        );
        let (upstream, used) = (build.upstream_key(CASDOOR).into(), Used::of(build.node));
        Ok(AuthzCasdoor(Arc::new(Party { config, upstream, cookie, used })))
    }
}

/// Returns 503 without a body; the reason is logged.
fn unavailable(reason: &str) -> Step {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    if let Some(left_out) = COMPLAINT.due() {
        tracing::warn!(left_out, reason, "authz-casdoor: a login failed");
    }
    Reply::new(503).text("").because("the login failed").into()
}

fn refuse(message: &'static str) -> Step {
    Reply::new(400).text(message).because(message).into()
}

/// It cannot be guessed.
fn new_state(env: &Env<'_>) -> Result<String, String> {
    let mut bytes = [0; 16];
    env.machine.fill_random(&mut bytes)?;
    Ok(u128::from_le_bytes(bytes).to_string())
}

impl Party {
    /// The URL of a page at Casdoor.
    fn page(&self, path: &str) -> String {
        let Service { scheme, host, target, .. } = &self.config.endpoint_addr;
        format!("{scheme}://{host}{}{path}", target.trim_end_matches('/'))
    }

    /// Sends a browser to Casdoor.
    fn log_in(&self, ctx: &Context, env: &Env<'_>) -> Step {
        let state = match new_state(env) {
            Ok(state) => state,
            Err(reason) => return unavailable(&reason),
        };
        let query = Form::default()
            .with("response_type", "code")
            .with("scope", "read")
            .with("state", &state)
            .with("client_id", &self.config.client_id)
            .with("redirect_uri", &self.config.callback_url.url);
        let location = self.page(&format!("/login/oauth/authorize?{}", query.text()));
        let session = Session::LoggingIn { state, back: way_back::path(ctx) };
        self.redirect(location, session, LIVES_S, ctx, env)
    }

    fn redirect(
        &self,
        location: String,
        session: Session,
        lives_s: u64,
        ctx: &Context,
        env: &Env<'_>,
    ) -> Step {
        match self.cookie.begin(session, lives_s, ctx, env) {
            Ok(cookies) => {
                let reply = Reply::new(302).header("Location", location).header("Cache-Control", "no-store");
                with_cookies(reply.text(""), cookies).into()
            }
            Err(reason) => unavailable(&reason),
        }
    }

    /// Takes a browser in that comes back.
    fn call_back(self: Arc<Self>, session: Option<Session>, ctx: &mut Context, env: &Env<'_>) -> Step {
        let Some(Session::LoggingIn { state, back }) = session else {
            return refuse("a callback without a login of this browser");
        };
        let sent = |name: &str| only_argument(ctx, name).filter(|value| !value.is_empty());
        let (Some(code), Some(returned)) = (sent("code"), sent("state")) else {
            return refuse("failed when accessing token. Invalid code or state");
        };
        let lives = Duration::from_secs(LIVES_S);
        if !same_secret(&returned, state.as_bytes()) || !self.used.take(&[NAME, &state], lives, env.machine) {
            return refuse("invalid state");
        }
        let call = self.token_call(&code, ctx);
        Step::wait(env.outbound.call(call), move |answer, ctx, env| match granted(answer) {
            Ok(lives_s) if way_back::is_own(back.as_bytes()) => {
                self.redirect(back, Session::LoggedIn, lives_s.min(LIVES_S), ctx, env)
            }
            Ok(_) => unavailable("the stored URL is on another host"),
            Err(NoToken::Refused(reason)) => refuse(reason),
            Err(NoToken::Failed(reason)) => unavailable(&reason),
        })
    }

    fn token_call(&self, code: &[u8], ctx: &Context) -> Call {
        let form = Form::default()
            .with("code", code)
            .with("grant_type", "authorization_code")
            .with("client_id", &self.config.client_id)
            .with("client_secret", self.config.client_secret.reveal());
        let service = &self.config.endpoint_addr;
        let mut call = service.get(&self.upstream, ctx, TIMEOUT_MS);
        call.method = Method::Post;
        call.target =
            format!("{}/api/login/oauth/access_token", service.target.trim_end_matches('/')).into_bytes();
        call.headers.append("Content-Type", b"application/x-www-form-urlencoded");
        call.body = Some(form.text().into_bytes());
        call
    }
}

/// Why there is no token.
enum NoToken {
    /// The client's code is not good.
    Refused(&'static str),
    Failed(String),
}

/// For how many seconds Casdoor's token lives.
fn granted(answer: Result<ServiceResponse, CallError>) -> Result<u64, NoToken> {
    let body = match answer {
        Ok(ServiceResponse { status: 200, body, .. }) => body,
        Ok(ServiceResponse { status, .. }) => {
            return Err(NoToken::Failed(format!("Casdoor answered {status}")));
        }
        Err(error) => return Err(NoToken::Failed(error.to_string())),
    };
    let granted = answers::read::<Granted>(&body);
    let granted = granted.ok_or_else(|| NoToken::Failed("Casdoor returned no token".to_owned()))?;
    match granted.expires_in {
        // So it answers to a code that it does not know.
        0 => Err(NoToken::Refused("Casdoor does not accept the code")),
        _ if granted.access_token.is_empty() => {
            Err(NoToken::Failed("Casdoor returned an empty token".to_owned()))
        }
        lives_s => Ok(lives_s),
    }
}

impl Plugin for AuthzCasdoor {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let party = &self.0;
        let session = party.cookie.read(ctx, env);
        if ctx.uri == party.config.callback_url.path.as_bytes() {
            return Arc::clone(party).call_back(session, ctx, env);
        }
        match session {
            Some(Session::LoggedIn) => {
                party.cookie.hide(ctx);
                // Casdoor was not asked who it is.
                ctx.mark_personal(NAME, None);
                Step::Next
            }
            _ => party.log_in(ctx, env),
        }
    }
}

#[cfg(test)]
mod tests;
