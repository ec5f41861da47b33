//! `wolf-rbac`: a wolf server knows who may do what.

mod endpoints;
mod service;
mod token;

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_http::Method;
use sigma_plugin::credentials::Credential;
use sigma_plugin::descriptor::{Endpoint, InlineUpstream};
use sigma_plugin::outbound::{CallError, Service, ServiceResponse};
use sigma_plugin::{
    Auth, Configuration, Context, Descriptor, Env, Identity, OwnedField, Phase, PhaseSet, Plugin, Reply,
    ResponseStep, Slot, Step,
};
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;

use self::service::{Verdict, WolfRequest};
use self::token::Token;
use crate::shared::form::Form;
use sigma_plugin_kit::fields::is_name;
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::service::cleartext;

const NAME: &str = "wolf-rbac";

/// Authenticates a consumer by a wolf server.
pub(crate) static WOLF_RBAC: Descriptor = Descriptor {
    name: NAME,
    priority: 2555,
    example: include_str!("example.md"),
    credentials: Some(|_| vec![Credential::argument("rbac_token"), Credential::field("X-Rbac-Token")]),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::HeaderFilter]),
    auth: Some(Auth {
        upstreams: Some(|conf| upstream(conf).into_iter().collect()),
        ..Auth::of::<WolfRbac>("appid")
    }),
    warnings: Some(warnings),
    owned_fields: Some(|_| USER_FIELDS.map(|name| OwnedField::sole(format!("X-{name}"))).into()),
    endpoints: &[
        Endpoint {
            path: "/apisix/plugin/wolf-rbac/login",
            path_setting: "login_uri",
            method: Method::Post,
            answer: endpoints::login,
        },
        Endpoint {
            path: "/apisix/plugin/wolf-rbac/change_pwd",
            path_setting: "change_pwd_uri",
            method: Method::Put,
            answer: endpoints::change_password,
        },
        Endpoint {
            path: "/apisix/plugin/wolf-rbac/user_info",
            path_setting: "user_info_uri",
            method: Method::Get,
            answer: endpoints::user_info,
        },
    ],
    ..Descriptor::itself::<WolfRbac>()
};

/// The name of the server among the upstreams of a consumer's configuration.
const SERVER: &str = "server";

/// Time limit of a permission query, in milliseconds.
const CHECK_MS: u64 = 10_000;

/// How often wolf is queried at most as long as it answers that it has failed, and the pause between.
const TRIES: u32 = 3;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// The suffixes of the names of the fields about a user.
const USER_FIELDS: [&str; 3] = ["UserId", "Username", "Nickname"];

/// Authenticates consumers by a token of a wolf server, and authorizes their requests there.
///
/// A token is `V1#appid#token`. It is read from the query (`rbac_token`), from `Authorization`, `X-Rbac-Token` and
/// the cookie `x-rbac-token`. The consumer with the token's `appid` sets the server. The plugin calls it for each
/// request with path, method and client: up to three times if it fails, with 10 s each time. Only status 200 with
/// `"ok": true` permits the request.
///
/// The node and the client get the user in `X-UserId`, `X-Username` and `X-Nickname`. The node never gets these
/// fields from a client. Inside `multi-auth` only the node gets them.
///
/// Through `public-api` clients reach `POST /apisix/plugin/wolf-rbac/login`, `PUT …/change_pwd` and `GET
/// …/user_info`, which forward the request to wolf. A body has at most 64 KiB.
#[derive(Deserialize, JsonSchema)]
struct WolfRbac {
    /// The application's id at wolf, which is part of its tokens.
    #[schemars(extend("default" = "unset"))]
    appid: String,
    /// The URL of the wolf server; its upstream belongs to the consumer.
    #[schemars(extend("default" = "http://127.0.0.1:12180"))]
    server: Service,
    /// Prefix of the names of the fields about the user.
    #[schemars(extend("default" = "X-"))]
    header_prefix: String,
    /// Whether the server's certificate is verified. Default: false.
    ssl_verify: Option<bool>,
}

impl Configuration for WolfRbac {
    fn check(&self) -> Result<(), String> {
        if self.appid.is_empty() || self.appid.contains('#') {
            return Err(format!("the appid `{}` is invalid: it is empty or contains `#`", self.appid));
        }
        if self.server.target.contains('?') {
            return Err("`server` has a query: write the URL without it".to_owned());
        }
        if !self.user_fields().iter().all(|name| is_name(name)) {
            return Err(format!("`{}` is not a valid prefix of header fields", self.header_prefix));
        }
        Ok(())
    }
}

/// The server of a consumer as an upstream.
fn upstream(conf: &Value) -> Option<InlineUpstream> {
    let config = WolfRbac::deserialize(conf).ok()?;
    let upstream = config.server.upstream(config.ssl_verify == Some(true), CHECK_MS);
    Some(InlineUpstream { name: SERVER.to_owned(), upstream })
}

fn warnings(scope: PluginScope, conf: &Value) -> Vec<Problem> {
    if scope == PluginScope::Http {
        let own = ["appid", "server", "header_prefix", "ssl_verify"];
        let told = |field: &&str| {
            let message =
                format!("`{field}` has no effect on a route: the plugin uses the value of the consumer");
            Problem::new(*field, "no_effect", message).hint("set it in the consumer")
        };
        return own.iter().filter(|field| conf.get(**field).is_some()).map(told).collect();
    }
    // The default is on this machine.
    let url = conf.get(SERVER).and_then(Value::as_str).unwrap_or_default();
    if !url.starts_with("https://") {
        return cleartext(conf, SERVER, "tokens and passwords go to wolf in cleartext").into_iter().collect();
    }
    if conf.get("ssl_verify") != Some(&Value::Bool(true)) {
        let message = "another server can impersonate wolf";
        return vec![Problem::new("ssl_verify", "unverified", message).hint("write `ssl_verify: true`")];
    }
    Vec::new()
}

impl WolfRbac {
    fn user_fields(&self) -> [String; 3] {
        USER_FIELDS.map(|name| format!("{}{name}", self.header_prefix))
    }
}

/// A consumer and the server that it names.
struct Owner {
    identity: Arc<Identity>,
}

impl Owner {
    /// The one with the appid; None if no consumer has it.
    fn find(env: &Env<'_>, appid: &str) -> Option<Owner> {
        let identity =
            env.consumers.find(NAME, appid).filter(|identity| identity.data::<WolfRbac>().is_some())?;
        Some(Owner { identity: Arc::clone(identity) })
    }

    fn config(&self) -> &WolfRbac {
        let config = self.identity.data();
        // `find` has looked.
        config.unwrap_or_else(|| unreachable!("an owner has a configuration of this plugin"))
    }

    fn upstream(&self) -> String {
        self.identity.upstream_key(NAME, SERVER)
    }
}

/// A request that wolf checks.
struct AccessCheck {
    owner: Owner,
    token: Token,
    /// Where the fields for the client are kept.
    slot: Slot,
    /// How often wolf may be asked yet.
    tries: u32,
}

/// Fields about the user for the client.
struct UserFields(Vec<(String, Vec<u8>)>);

impl AccessCheck {
    fn ask(mut self, ctx: &mut Context, env: &Env<'_>) -> Step {
        self.tries -= 1;
        let query = Form::default()
            .with("appID", self.owner.config().appid.as_str())
            .with("resName", &ctx.uri)
            .with("action", ctx.request.method_token())
            .with("clientIP", ctx.remote_addr());
        let question = WolfRequest {
            target: format!("/wolf/rbac/access_check?{}", query.text()),
            token: Some(&self.token),
            body: None,
            timeout_ms: CHECK_MS,
        };
        let call = question.call(&self.owner, ctx);
        Step::wait(env.outbound.call(call), move |answer, ctx, env| match answer {
            Ok(answer) if answer.status >= 500 && self.tries > 0 => {
                Step::wait(async { tokio::time::sleep(PAUSE).await }, move |(), ctx, env| self.ask(ctx, env))
            }
            answer => self.settle(answer, ctx, env),
        })
    }

    /// Returns the step for the response.
    fn settle(self, answer: Result<ServiceResponse, CallError>, ctx: &mut Context, _: &Env<'_>) -> Step {
        let names = self.owner.config().user_fields();
        // Their prefix is the consumer's.
        names.iter().for_each(|name| ctx.claim(OwnedField::sole(&**name)));
        let verdict = match answer.map_err(|error| format!("err:{error}")).and_then(Verdict::of) {
            Ok(verdict) => verdict,
            Err(error) => {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::error!(left_out, error, "wolf-rbac: wolf did not respond");
                }
                return refuse(
                    500,
                    &format!("request to wolf-server failed, {error}"),
                    "wolf did not respond",
                );
            }
        };
        let told = verdict.user.as_ref().map(|user| user.values());
        for (name, value) in names.iter().zip(told.iter().flatten()) {
            if let Some(value) = value {
                ctx.request.headers.append(name, value);
            }
        }
        if let Some(values) = told {
            let fields = names.into_iter().zip(values);
            let fields = fields.filter_map(|(name, value)| Some((name, value?))).collect();
            ctx.keep(self.slot, UserFields(fields));
        }
        match verdict.refusal() {
            None => {
                // The consumer is an application, which many use.
                let name = digest(&SHA256, self.token.secret.as_bytes());
                ctx.mark_personal(NAME, Some(name.as_ref()));
                ctx.attach(&self.owner.identity);
                Step::Next
            }
            Some((status, body)) => {
                Reply::new(status).json(&Value::Object(body)).because("wolf refuses").into()
            }
        }
    }
}

fn refuse(status: u16, message: &str, reason: &'static str) -> Step {
    let body = Map::from_iter([("message".to_owned(), message.into())]);
    Reply::new(status).json(&Value::Object(body)).because(reason).into()
}

impl Plugin for WolfRbac {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let token = match Token::of(ctx) {
            Ok(token) => token,
            Err(reason) => return refuse(401, reason, reason),
        };
        match Owner::find(env, &token.appid) {
            Some(owner) => AccessCheck { owner, token, slot: Slot::from(self), tries: TRIES }.ask(ctx, env),
            None => {
                let known = env.consumers.has_any(NAME);
                let reason = if known { "Invalid appid in rbac token" } else { "Missing related consumer" };
                refuse(401, reason, reason)
            }
        }
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        if let Some(UserFields(fields)) = ctx.take_kept(self) {
            for (name, value) in fields {
                ctx.response.headers.remove_name(name.as_bytes());
                ctx.response.headers.append(&name, &value);
            }
        }
        ResponseStep::Next
    }
}

#[cfg(test)]
mod tests;
