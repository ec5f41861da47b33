//! Feishu, which is Lark elsewhere.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sigma_plugin::outbound::Service;
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Reply, ResponseStep,
    Slot, Step,
};
use sigma_schema::Confidential;

use crate::shared::code_login::{
    Party, TOKEN_URL, USER_FIELD, USER_URL, User, add_cookies, check, cookie, credentials, post, read,
    refuse, upstreams, warnings, with_code,
};
use crate::shared::session_cookie::with_cookies;

/// Knows users by Feishu.
pub(crate) static FEISHU_AUTH: Descriptor = Descriptor {
    name: "feishu-auth",
    priority: 2420,
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
    build: |build| Ok(Arc::new(FeishuAuth::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Logs users in with a Feishu (Lark) code, and stores the session in an encrypted cookie.
///
/// A request without a session and without a code is redirected to `redirect_uri`, where the login begins. With a code,
/// the gateway gets a token and its user from Feishu. The node gets the user in `X-Userinfo`, JSON in Base64. It never
/// gets this field from a client. A session ends after 15 minutes at the latest.
///
/// The code is the only proof of a login. An attacker whose link with a code is opened in a browser logs this browser
/// in under the attacker's account (login CSRF). The page at `redirect_uri` must prevent this.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The id of the application at Feishu.
    #[schemars(length(min = 1))]
    app_id: String,
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
    redirect_uri: String,
    /// The URI with which the code was requested.
    auth_redirect_uri: String,
    /// The field with the code.
    #[schemars(extend("default" = "X-Feishu-Code"))]
    code_header: String,
    /// The query argument with the code, if the field is absent.
    #[schemars(extend("default" = "code"))]
    code_query: String,
    /// The URL that returns the token for a code.
    #[schemars(extend("default" = "https://open.feishu.cn/open-apis/authen/v2/oauth/token"))]
    access_token_url: Service,
    /// The URL that returns the user of a token.
    #[schemars(extend("default" = "https://open.feishu.cn/open-apis/authen/v1/user_info"))]
    userinfo_url: Service,
    /// Whether the node gets the user in `X-Userinfo`.
    #[schemars(extend("default" = true))]
    set_userinfo_header: bool,
    /// Timeout of each call in milliseconds.
    #[schemars(range(min = 1), extend("default" = 6000))]
    timeout: u64,
    /// Whether Feishu's certificate is verified.
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

struct FeishuAuth(Arc<Feishu>);

struct Feishu {
    party: Arc<Party>,
    config: Config,
    token_upstream: Box<str>,
    user_upstream: Box<str>,
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    #[serde(rename = "expires_in")]
    _expires_in: u64,
}

#[derive(Deserialize)]
struct FeishuResponse {
    code: i64,
    data: Option<User>,
}

impl FeishuAuth {
    fn new(build: &Build<'_>) -> Result<FeishuAuth, String> {
        let config: Config = build.config()?;
        let party = Party {
            name: "feishu-auth",
            cookie: cookie("feishu_session", &config.app_id, &config.secret, &config.secret_fallbacks, &[]),
            lives_s: config.cookie_expires_in.min(crate::shared::code_login::LIVES_S),
            code_header: config.code_header.clone(),
            code_query: config.code_query.clone(),
            redirect_uri: config.redirect_uri.clone(),
            tells_user: config.set_userinfo_header,
        };
        Ok(FeishuAuth(Arc::new(Feishu {
            party: Arc::new(party),
            token_upstream: build.upstream_key(TOKEN_URL).into(),
            user_upstream: build.upstream_key(USER_URL).into(),
            config,
        })))
    }
}

impl Feishu {
    /// Asks who a code is of.
    fn ask(self: Arc<Self>, code: &str, slot: Slot, ctx: &Context, env: &Env<'_>) -> Step {
        let config = &self.config;
        let body = json!({
            "grant_type": "authorization_code",
            "client_id": config.app_id,
            "client_secret": config.app_secret.reveal(),
            "redirect_uri": config.auth_redirect_uri,
            "code": code,
        });
        let call = post(&config.access_token_url, &self.token_upstream, &body, config.timeout, ctx);
        Step::wait(env.outbound.call(call), move |answer, ctx, env| {
            let token = read::<Granted>(answer, "token").map(|granted| granted.access_token);
            let sendable =
                |token: &String| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
            match token.and_then(|token| {
                sendable(&token).then_some(token).ok_or_else(|| "no valid token".to_owned())
            }) {
                Ok(token) => self.ask_user(&token, slot, ctx, env),
                Err(reason) => self.refuse(&reason, ctx),
            }
        })
    }

    fn ask_user(self: Arc<Self>, token: &str, slot: Slot, ctx: &Context, env: &Env<'_>) -> Step {
        let config = &self.config;
        let mut call = config.userinfo_url.get(&self.user_upstream, ctx, config.timeout);
        call.headers.append("Authorization", format!("Bearer {token}").as_bytes());
        Step::wait(env.outbound.call(call), move |answer, ctx, env| {
            match read::<FeishuResponse>(answer, "user") {
                Ok(FeishuResponse { code: 0, data: Some(user) }) => self.party.welcome(user, slot, ctx, env),
                Ok(FeishuResponse { code, .. }) => self.refuse(&format!("no user: code {code}"), ctx),
                Err(reason) => self.refuse(&reason, ctx),
            }
        })
    }

    /// Refuses a code, and ends what session there was.
    fn refuse(&self, reason: &str, ctx: &Context) -> Step {
        self.party.complain(reason);
        match refuse(401, "Invalid authorization code") {
            Step::Reply(reply) => with_cookies(Reply::clone(&reply), self.party.cookie.end(ctx)).into(),
            other => other,
        }
    }
}

impl Plugin for FeishuAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let (feishu, slot) = (Arc::clone(&self.0), Slot::from(self));
        with_code(&self.0.party, ctx, env, |code, ctx, env| feishu.ask(&code, slot, ctx, env))
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        add_cookies(Slot::from(self), ctx)
    }
}
