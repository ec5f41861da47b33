//! DingTalk.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sigma_plugin::outbound::{CallError, Service, ServiceResponse};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, ResponseStep, Slot,
    Step,
};
use sigma_schema::Confidential;

use crate::shared::code_login::{
    Party, TOKEN_URL, USER_FIELD, USER_URL, User, add_cookies, check, cookie, credentials, post, read,
    refuse, upstreams, warnings, with_code,
};
use crate::shared::form::Form;
use sigma_plugin_kit::asked_once::{CachedCall, forget};
use sigma_plugin_kit::decisions::{self, Key};

/// Knows users by DingTalk.
pub(crate) static DINGTALK_AUTH: Descriptor = Descriptor {
    name: "dingtalk-auth",
    priority: 2430,
    example: include_str!("example.md"),
    identifies: true,
    credentials: Some(credentials),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::HeaderFilter]),
    guards: true,
    warnings: Some(|_, conf| warnings(conf)),
    owned_fields: Some(|_| vec![OwnedField::sole(USER_FIELD)]),
    upstreams: Some(|conf| {
        Config::deserialize(conf).map_or_else(
            |_| Vec::new(),
            |conf| upstreams(&conf.access_token_url, &conf.userinfo_url, conf.ssl_verify, conf.timeout),
        )
    }),
    build: |build| Ok(Arc::new(DingtalkAuth::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Seconds for which the application's token is used; it lives for 7200.
const TOKEN_S: u64 = 7000;

/// Logs users in with a DingTalk code, and stores the session in an encrypted cookie.
///
/// A request without a session and without a code is redirected to `redirect_uri`, where the login begins. With a code,
/// the gateway requests the user from DingTalk. The node gets the user in `X-Userinfo`, JSON in Base64; the client's
/// own field never reaches it. A session ends after 15 minutes at the latest.
///
/// The code is the only proof of a login. An attacker whose link with a code is opened in a browser logs this browser
/// in under the attacker's account (login CSRF). The page at `redirect_uri` must prevent this. Each worker keeps the
/// application's token for 7000 s.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The key of the application at DingTalk.
    #[schemars(length(min = 1))]
    app_key: String,
    /// The secret of the application.
    #[schemars(length(min = 1))]
    app_secret: Confidential,
    /// Secret that encrypts sessions.
    #[schemars(length(min = 8, max = 32))]
    secret: Confidential,
    /// Former values of `secret`; their sessions stay valid.
    #[serde(default)]
    #[schemars(inner(length(min = 8, max = 32)))]
    #[schemars(extend("own_default" = true))]
    secret_fallbacks: Vec<Confidential>,
    /// Redirect target of requests without a session and without a code.
    #[schemars(length(min = 1))]
    redirect_uri: String,
    /// The field with the code.
    #[schemars(length(min = 1), extend("default" = "X-DingTalk-Code"))]
    code_header: String,
    /// The query argument with the code, if the field is absent.
    #[schemars(length(min = 1), extend("default" = "code"))]
    code_query: String,
    /// The URL that issues the application's token.
    #[schemars(length(min = 1), extend("default" = "https://api.dingtalk.com/v1.0/oauth2/accessToken"))]
    access_token_url: Service,
    /// The URL that returns the user of a code.
    #[schemars(length(min = 1), extend("default" = "https://oapi.dingtalk.com/topapi/v2/user/getuserinfo"))]
    userinfo_url: Service,
    /// Whether the node gets the user in `X-Userinfo`.
    #[schemars(extend("default" = true))]
    set_userinfo_header: bool,
    /// Timeout of each call in milliseconds.
    #[schemars(range(min = 1), extend("default" = 6000))]
    timeout: u64,
    /// Whether DingTalk's certificate is verified.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    /// Lifetime of a session in seconds, at most 900.
    #[schemars(range(min = 1), extend("default" = 86_400))]
    cookie_expires_in: u64,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        check(&self.code_header, &self.redirect_uri)
    }
}

struct DingtalkAuth(Arc<Dingtalk>);

struct Dingtalk {
    party: Arc<Party>,
    config: Config,
    token_upstream: Box<str>,
    user_upstream: Box<str>,
    key: Key,
}

/// The application's token.
struct AppToken(Result<String, String>);

#[derive(Deserialize)]
struct Granted {
    #[serde(rename = "accessToken")]
    token: String,
}

#[derive(Deserialize)]
struct DingtalkResponse {
    errcode: i64,
    result: Option<User>,
}

/// Codes of DingTalk for a token that it does not take (any more).
const STALE_TOKEN: [i64; 4] = [88, 40_001, 40_014, 42_001];

impl DingtalkAuth {
    fn new(build: &Build<'_>) -> Result<DingtalkAuth, String> {
        let config: Config = build.config()?;
        let party = Party {
            name: "dingtalk-auth",
            cookie: cookie(
                "dingtalk_session",
                &config.app_key,
                &config.secret,
                &config.secret_fallbacks,
                &[],
            ),
            lives_s: config.cookie_expires_in.min(crate::shared::code_login::LIVES_S),
            code_header: config.code_header.clone(),
            code_query: config.code_query.clone(),
            redirect_uri: config.redirect_uri.clone(),
            tells_user: config.set_userinfo_header,
        };
        Ok(DingtalkAuth(Arc::new(Dingtalk {
            party: Arc::new(party),
            token_upstream: build.upstream_key(TOKEN_URL).into(),
            user_upstream: build.upstream_key(USER_URL).into(),
            key: decisions::key([build.resource.as_bytes(), &build.conf_hash().to_le_bytes()]),
            config,
        })))
    }
}

impl Dingtalk {
    /// Asks who a code is of.
    fn ask(self: Arc<Self>, code: String, slot: Slot, ctx: &mut Context, env: &Env<'_>) -> Step {
        let asking = Arc::clone(&self);
        let question = CachedCall {
            key: self.key,
            call: move |ctx: &Context, _: &Env<'_>| {
                let config = &asking.config;
                let body = json!({ "appKey": config.app_key, "appSecret": config.app_secret.reveal() });
                post(&config.access_token_url, &asking.token_upstream, &body, config.timeout, ctx)
            },
            read: Box::new(|answer| {
                let token = token_of(answer);
                let kept_ms = token.is_ok().then_some(TOKEN_S * 1000);
                (AppToken(token), kept_ms)
            }),
        };
        question.ask(ctx, env, move |token: &AppToken, ctx, env| match &token.0 {
            Ok(token) => self.ask_user(token, &code, slot, ctx, env),
            Err(reason) => {
                self.party.complain(reason);
                refuse(500, "Failed to obtain access token")
            }
        })
    }

    fn ask_user(self: Arc<Self>, token: &str, code: &str, slot: Slot, ctx: &Context, env: &Env<'_>) -> Step {
        let config = &self.config;
        let body = json!({ "code": code });
        let mut call = post(&config.userinfo_url, &self.user_upstream, &body, config.timeout, ctx);
        let target = &config.userinfo_url.target;
        let separator = if target.contains('?') { '&' } else { '?' };
        let query = Form::default().with("access_token", token).text();
        call.target = format!("{target}{separator}{query}").into_bytes();
        Step::wait(env.outbound.call(call), move |answer, ctx, env| self.settle(answer, slot, ctx, env))
    }

    fn settle(
        &self,
        answer: Result<ServiceResponse, CallError>,
        slot: Slot,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        match read::<DingtalkResponse>(answer, "user") {
            Ok(DingtalkResponse { errcode: 0, result: Some(user) }) => {
                self.party.welcome(user, slot, ctx, env)
            }
            Ok(DingtalkResponse { errcode: 0, result: None }) => refuse(500, "Invalid userinfo"),
            Ok(DingtalkResponse { errcode, .. }) => {
                if STALE_TOKEN.contains(&errcode) {
                    forget::<AppToken>(&self.key, env);
                }
                refuse(401, "Invalid authorization code")
            }
            Err(reason) => {
                self.party.complain(&reason);
                refuse(503, "Failed to obtain user info from DingTalk")
            }
        }
    }
}

fn token_of(answer: Result<ServiceResponse, CallError>) -> Result<String, String> {
    const WHAT: &str = "token of the application";
    let token = read::<Granted>(answer, WHAT)?.token;
    if token.is_empty() { Err(format!("no {WHAT} in the response")) } else { Ok(token) }
}

impl Plugin for DingtalkAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let (dingtalk, slot) = (Arc::clone(&self.0), Slot::from(self));
        with_code(&self.0.party, ctx, env, |code, ctx, env| dingtalk.ask(code, slot, ctx, env))
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        add_cookies(Slot::from(self), ctx)
    }
}
