//! `oauth2-login`: browsers log in at a provider that speaks OAuth2 (RFC 6749) without OpenID Connect.
//!
//! | file | question |
//! |---|---|
//! | `provider` | the addresses of the providers, and their differences |
//! | `exchange` | the calls that turn a code into a user |
//! | here | configuration, redirects and sessions |

mod exchange;
mod provider;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sigma_http::Method;
use sigma_plugin::credentials::Credential;
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::Service;
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Reply, Step,
};
use sigma_schema::{Confidential, Problem};

use self::provider::{Provider, Style, UserCall};
use crate::shared::code_login::USER_VARIABLE;
use crate::shared::form::Form;
use crate::shared::policy::{only_argument, same_secret};
use crate::shared::session_cookie::{SessionCookie, with_cookies};
use crate::shared::way_back;
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::service::{cleartext, unverified};

/// Logs browsers in by OAuth2.
pub(crate) static OAUTH2_LOGIN: Descriptor = Descriptor {
    name: NAME,
    priority: 2415,
    example: include_str!("example.md"),
    credentials: Some(|_| vec![Credential::argument("code")]),
    identifies: true,
    guards: true,
    phases: PhaseSet::of(&[Phase::Rewrite]),
    warnings: Some(|_, conf| warnings(conf)),
    owned_fields: Some(|_| vec![OwnedField::sole(USER_FIELD)]),
    upstreams: Some(|conf| Config::deserialize(conf).map_or_else(|_| Vec::new(), |conf| conf.upstreams())),
    build: |build| Ok(Arc::new(OAuth2Login::new(build)?)),
    ..Descriptor::of::<Config>()
};

const NAME: &str = "oauth2-login";

/// The field with the user for the node.
const USER_FIELD: &str = "X-Userinfo";

/// Seconds within which a login has to end.
const LOGIN_S: u64 = 600;

/// Most bytes of the target to which a browser returns.
const TARGET_BYTES: usize = 2048;

/// Most bytes of a user, as JSON: a cookie and a field hold it.
const USER_BYTES: usize = 8 << 10;

/// Logs browsers in at GitHub, Weibo, Weixin (WeChat), Taobao or another provider of OAuth2 (RFC 6749), and stores the
/// session in an encrypted cookie.
///
/// A GET without a session is redirected to the provider, another request gets 401. The provider sends the browser back
/// to `redirect_uri` with a code. The gateway exchanges the code for a token, reads the user, and redirects the browser
/// to its first target. A login is bound to its browser and to one code (`state`), and to a proof key (RFC 7636) if the
/// provider verifies one. Tokens are not stored. The node gets the user in `X-Userinfo`, JSON in Base64; it never gets
/// this field from a client. `acl` finds the user in the variable `external_user`. For providers with OpenID Connect
/// use `openid-connect`, which verifies a signed token.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The provider.
    provider: Provider,
    /// The id of the application at the provider.
    #[schemars(length(min = 1, max = 256))]
    client_id: String,
    /// The secret of the application.
    #[schemars(length(min = 1, max = 1024))]
    client_secret: Confidential,
    /// Secret that encrypts sessions.
    #[schemars(length(min = 16, max = 256))]
    secret: Confidential,
    /// Former values of `secret`; their sessions stay valid.
    #[serde(default)]
    #[schemars(length(max = 8), inner(length(min = 16, max = 256)))]
    secret_fallbacks: Vec<Confidential>,
    /// The URL to which the provider sends browsers back, as it is registered there. Its path must belong to the route.
    #[schemars(length(min = 1, max = 2048))]
    redirect_uri: String,
    /// The scope of the login. Default: the smallest with which the provider returns the user.
    #[schemars(length(max = 1024))]
    scope: Option<String>,
    /// The URL of the login page. Default: the provider's.
    #[schemars(length(min = 1, max = 2048))]
    authorize_url: Option<String>,
    /// The URL that returns the token for a code. Default: the provider's.
    token_url: Option<Service>,
    /// The URL that returns the user of a token. Default: the provider's.
    user_url: Option<Service>,
    /// The members of the user that session and node get. Default: all.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 256)))]
    user_fields: Option<Vec<String>>,
    /// Whether the node gets the user in `X-Userinfo`.
    #[schemars(extend("default" = true))]
    set_userinfo_header: bool,
    /// The name of the session cookie. Two configurations on one host need different names.
    #[schemars(regex(pattern = "^[A-Za-z0-9_-]{1,64}$"), extend("default" = "oauth2_session"))]
    session_cookie: String,
    /// Lifetime of a session in seconds.
    #[schemars(range(min = 1, max = 2_592_000), extend("default" = 3600))]
    session_lifetime: u64,
    /// Timeout of each call in milliseconds.
    #[schemars(range(min = 1, max = 60_000), extend("default" = 6000))]
    timeout: u64,
    /// Whether the provider's certificate is verified.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        let is_url = |url: &str| {
            Service::parse(url).is_ok() && url.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"')
        };
        if !is_url(&self.redirect_uri) || self.redirect_uri.contains('?') {
            return Err("redirect_uri: write https://host/path, without a query".to_owned());
        }
        if self.authorize_url.as_deref().is_some_and(|url| !is_url(url)) {
            return Err("authorize_url: write https://host/path".to_owned());
        }
        let style = self.provider.style();
        let missing = [
            ("authorize_url", self.authorize_url.is_some() || !style.authorize_url.is_empty()),
            ("token_url", self.token_url.is_some() || !style.token_url.is_empty()),
            ("user_url", self.user_url.is_some() || !style.user_url.is_empty() || !style.has_user_call()),
        ];
        match missing.iter().find(|(_, is_known)| !is_known) {
            Some((field, _)) => Err(format!("{field}: `provider: custom` needs it")),
            None => Ok(()),
        }
    }
}

impl Style {
    fn has_user_call(&self) -> bool {
        self.user != UserCall::WithToken
    }
}

/// Names of the fields with a URL, which are also the names of the upstreams.
const TOKEN_URL: &str = "token_url";
const USER_URL: &str = "user_url";

impl Config {
    fn token_service(&self) -> Result<Service, String> {
        self.token_url.clone().map_or_else(|| Service::parse(self.provider.style().token_url), Ok)
    }

    /// The service that returns users; None if the token's response has the user.
    fn user_service(&self) -> Result<Option<Service>, String> {
        let style = self.provider.style();
        match &self.user_url {
            _ if !style.has_user_call() => Ok(None),
            Some(service) => Ok(Some(service.clone())),
            None => Service::parse(style.user_url).map(Some),
        }
    }

    fn upstreams(&self) -> Vec<InlineUpstream> {
        let services =
            [(TOKEN_URL, self.token_service().ok()), (USER_URL, self.user_service().ok().flatten())];
        let made = services.into_iter().filter_map(|(name, service)| {
            let upstream = service?.upstream(self.ssl_verify, self.timeout);
            Some(InlineUpstream { name: name.to_owned(), upstream })
        });
        made.collect()
    }
}

fn warnings(conf: &Value) -> Vec<Problem> {
    let clear = |field: &str| cleartext(conf, field, "secrets and user data are sent in cleartext");
    let clear = [TOKEN_URL, USER_URL].into_iter().filter_map(clear);
    clear.chain(unverified(conf, "another server can impersonate the provider and name any user")).collect()
}

/// The user at a provider.
type User = Map<String, Value>;

/// A login that has begun in a browser.
#[derive(Serialize, Deserialize)]
struct Begun {
    state: String,
    /// The proof key.
    verifier: String,
    /// The target to which the browser returns.
    target: String,
}

struct OAuth2Login(Arc<Logins>);

/// The state that all requests share.
struct Logins {
    config: Config,
    style: Style,
    token: Service,
    user: Option<Service>,
    token_upstream: Box<str>,
    user_upstream: Box<str>,
    sessions: SessionCookie,
    begun: SessionCookie,
    /// The path of `redirect_uri`.
    callback: String,
}

impl OAuth2Login {
    fn new(build: &Build<'_>) -> Result<OAuth2Login, String> {
        let config: Config = build.config()?;
        let cookie = |name: String, purpose: &str| {
            let older = config.secret_fallbacks.iter().map(Confidential::reveal);
            let context = [NAME, &config.client_id, &config.redirect_uri, purpose];
            SessionCookie::new(name, config.secret.reveal(), older, &context)
        };
        let callback = Service::parse(&config.redirect_uri)?.target.to_string();
        Ok(OAuth2Login(Arc::new(Logins {
            style: config.provider.style(),
            token: config.token_service()?,
            user: config.user_service()?,
            token_upstream: build.upstream_key(TOKEN_URL).into(),
            user_upstream: build.upstream_key(USER_URL).into(),
            sessions: cookie(config.session_cookie.clone(), "session"),
            begun: cookie(format!("{}_login", config.session_cookie), "login"),
            callback,
            config,
        })))
    }
}

impl Logins {
    /// Sends the browser to the provider.
    fn begin(&self, ctx: &Context, env: &Env<'_>) -> Step {
        if !matches!(ctx.request.client_method(), Method::Get | Method::Head) {
            return refuse(401, "The request has no session");
        }
        let random = || -> Result<String, String> {
            let mut bytes = [0; 32];
            env.machine.fill_random(&mut bytes)?;
            Ok(URL_SAFE_NO_PAD.encode(bytes))
        };
        let begun = random().and_then(|state| {
            Ok(Begun { state, verifier: random()?, target: way_back::within(TARGET_BYTES, ctx) })
        });
        let cookies = begun.and_then(|begun| {
            let location = self.login_page(&begun);
            self.begun.begin(begun, LOGIN_S, ctx, env).map(|cookies| (location, cookies))
        });
        match cookies {
            Ok((location, cookies)) => {
                let reply = Reply::new(302).header("Location", location).header("Cache-Control", "no-store");
                with_cookies(reply.text(""), cookies).into()
            }
            Err(reason) => {
                self.complain(&reason);
                refuse(500, "Failed to begin a login")
            }
        }
    }

    fn login_page(&self, begun: &Begun) -> String {
        let base = self.config.authorize_url.as_deref().unwrap_or(self.style.authorize_url);
        let scope = self.config.scope.as_deref().unwrap_or(self.style.scope);
        let mut form = Form::default()
            .with(self.style.client_id, &self.config.client_id)
            .with("redirect_uri", &self.config.redirect_uri)
            .with("response_type", "code")
            .with("state", &begun.state);
        if !scope.is_empty() {
            form = form.with("scope", scope);
        }
        if self.style.pkce {
            let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, begun.verifier.as_bytes()));
            form = form.with("code_challenge", challenge).with("code_challenge_method", "S256");
        }
        let separator = if base.contains('?') { '&' } else { '?' };
        format!("{base}{separator}{}{}", form.text(), self.style.fragment)
    }

    /// Handles the browser's return with a code.
    fn come_back(self: &Arc<Self>, ctx: &Context, env: &Env<'_>) -> Step {
        let argument = |name: &str| only_argument(ctx, name).and_then(|text| String::from_utf8(text).ok());
        let begun: Option<Begun> = self.begun.read(ctx, env);
        let state = argument("state").unwrap_or_default();
        let is_same = |begun: &Begun| same_secret(begun.state.as_bytes(), state.as_bytes());
        let Some(begun) = begun.filter(is_same) else {
            return self.refuse("the state of the login is unknown in this browser", ctx);
        };
        if let Some(error) = argument("error") {
            let shown: String = error.chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
            return self.refuse(&format!("the provider denied the login: {shown}"), ctx);
        }
        match argument("code").filter(|code| !code.is_empty()) {
            Some(code) => Arc::clone(self).ask_token(&code, begun, ctx, env),
            None => self.refuse("the request has no code", ctx),
        }
    }

    /// Begins the session of a user, and sends the browser to its first target.
    fn welcome(&self, user: User, begun: &Begun, ctx: &Context, env: &Env<'_>) -> Step {
        let Some(user) = self.narrowed(user) else {
            return self
                .refuse("the provider names no user, or the user data are too large for a cookie", ctx);
        };
        match self.sessions.begin(&user, self.config.session_lifetime, ctx, env) {
            Ok(mut cookies) => {
                cookies.extend(self.begun.end(ctx));
                let target = match way_back::is_own(begun.target.as_bytes()) {
                    true => begun.target.as_str(),
                    false => "/",
                };
                let reply = Reply::new(302).header("Location", target).header("Cache-Control", "no-store");
                with_cookies(reply.text(""), cookies).into()
            }
            Err(reason) => self.refuse(&reason, ctx),
        }
    }

    /// The wanted members of a user; None without an id, or with too many bytes.
    fn narrowed(&self, mut user: User) -> Option<User> {
        let has_id = |name: &&str| match user.get(*name) {
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Number(_)) => true,
            _ => false,
        };
        self.style.ids.iter().find(|name| has_id(name))?;
        if let Some(fields) = &self.config.user_fields {
            user.retain(|name, _| fields.contains(name) || self.style.ids.contains(&name.as_str()));
        }
        (Value::Object(user.clone()).to_string().len() <= USER_BYTES).then_some(user)
    }

    fn admit(&self, user: User, ctx: &mut Context) -> Step {
        self.sessions.hide(ctx);
        self.begun.hide(ctx);
        let user = Value::Object(user).to_string();
        ctx.mark_personal(NAME, Some(digest(&SHA256, user.as_bytes()).as_ref()));
        if self.config.set_userinfo_header {
            ctx.request.headers.append(USER_FIELD, STANDARD.encode(&user).as_bytes());
        }
        ctx.set_variable(USER_VARIABLE, user);
        Step::Next
    }

    /// Refuses a login. The browser can begin another one.
    fn refuse(&self, reason: &str, ctx: &Context) -> Step {
        self.complain(reason);
        match refuse(401, "The login has failed") {
            Step::Reply(reply) => with_cookies(*reply, self.begun.end(ctx)).into(),
            other => other,
        }
    }

    fn complain(&self, reason: &str) {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        if let Some(left_out) = COMPLAINT.due() {
            tracing::warn!(left_out, plugin = NAME, reason, "a login failed");
        }
    }
}

fn refuse(status: u16, message: &'static str) -> Step {
    Reply::new(status).json(&json!({ "message": message })).because(message).into()
}

impl Plugin for OAuth2Login {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let logins = &self.0;
        if ctx.uri == logins.callback.as_bytes() {
            return logins.come_back(ctx, env);
        }
        match logins.sessions.read::<User>(ctx, env) {
            Some(user) => logins.admit(user, ctx),
            None => logins.begin(ctx, env),
        }
    }
}
