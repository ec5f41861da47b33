//! Endpoints for clients through `public-api`: login, change of password, and user info.

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value, json};
use sigma_http::HeaderId;
use sigma_plugin::outbound::{CallError, ServiceResponse};
use sigma_plugin::step::BodyRead;
use sigma_plugin::{Context, Env, Reply, Step};

use super::service::{WolfRequest, WolfResponse};
use super::token::Token;
use super::{NAME, Owner};
use crate::shared::{answers, form};
use sigma_plugin_kit::log_throttle::LogThrottle;

/// Milliseconds for wolf's response.
const TIMEOUT_MS: u64 = 5000;

/// Most bytes of a body; names and passwords have a few dozen.
const BODY_BYTES: usize = 64 << 10;

/// `POST /apisix/plugin/wolf-rbac/login`: a token for a name and a password.
pub(super) fn login(_: &mut Context, _: &Env<'_>) -> Step {
    with_arguments(|arguments, ctx, env| {
        let Some(appid) = arguments.get("appid").and_then(Value::as_str) else {
            return json_reply(400, json!({ "message": "appid is missing" }));
        };
        let appid = appid.to_owned();
        let owner = match owner(env, &appid) {
            Ok(owner) => owner,
            Err(refusal) => return refusal,
        };
        let question = wolf_request("/wolf/rbac/login.rest", None, Some(arguments));
        ask(&owner, question, ctx, env, move |given: Option<Login>| {
            let Login { token, user } = given?;
            Some(json!({ "rbac_token": Token::written(&appid, &token)?, "user_info": user }))
        })
    })
}

/// `PUT /apisix/plugin/wolf-rbac/change_pwd`: another password for the owner of a token.
pub(super) fn change_password(_: &mut Context, _: &Env<'_>) -> Step {
    with_arguments(|arguments, ctx, env| {
        let (token, owner) = match sender(ctx, env) {
            Ok(found) => found,
            Err(refusal) => return refusal,
        };
        let question = wolf_request("/wolf/rbac/change_pwd", Some(&token), Some(arguments));
        ask(&owner, question, ctx, env, |_: Option<Value>| {
            Some(json!({ "message": "success to change password" }))
        })
    })
}

/// `GET /apisix/plugin/wolf-rbac/user_info`: the owner of a token.
pub(super) fn user_info(ctx: &mut Context, env: &Env<'_>) -> Step {
    let (token, owner) = match sender(ctx, env) {
        Ok(found) => found,
        Err(refusal) => return refusal,
    };
    let question = wolf_request("/wolf/rbac/user_info", Some(&token), None);
    ask(&owner, question, ctx, env, |given: Option<UserInfo>| Some(json!({ "user_info": given?.user })))
}

/// Wolf's response to a login.
#[derive(Deserialize)]
struct Login {
    token: String,
    #[serde(default, rename = "userInfo")]
    user: Value,
}

#[derive(Deserialize)]
struct UserInfo {
    #[serde(rename = "userInfo")]
    user: Value,
}

fn json_reply(status: u16, body: Value) -> Step {
    // Tokens are not for caches.
    let reply =
        Reply::new(status).header("Content-Type", "application/json").header("Cache-Control", "no-store");
    reply.json(&body).into()
}

/// Reads the body as JSON or as a form and continues with its arguments.
fn with_arguments(then: impl FnOnce(Map<String, Value>, &mut Context, &Env<'_>) -> Step + 'static) -> Step {
    let then = move |ctx: &mut Context, env: &Env<'_>, read| {
        if read == BodyRead::TooLarge {
            return json_reply(413, json!({ "message": "invalid request" }));
        }
        match arguments(ctx) {
            Some(arguments) => then(arguments, ctx, env),
            None => json_reply(400, json!({ "message": "invalid request" })),
        }
    };
    Step::ReadBody { limit: BODY_BYTES, then: Box::new(then) }
}

fn arguments(ctx: &Context) -> Option<Map<String, Value>> {
    let body = ctx.body.as_deref().unwrap_or_default();
    let media_type = ctx.request.headers.get(HeaderId::ContentType).unwrap_or_default();
    let is_json = media_type.windows(16).any(|part| part.eq_ignore_ascii_case(b"application/json"));
    if is_json { serde_json::from_slice(body).ok() } else { form::fields(body) }
}

/// The consumer of an application.
fn owner(env: &Env<'_>, appid: &str) -> Result<Owner, Step> {
    Owner::find(env, appid).ok_or_else(|| match env.consumers.has_any(NAME) {
        true => json_reply(400, json!({ "message": "appid not found" })),
        false => Reply::new(500).text("").into(),
    })
}

/// The token of a request, and the consumer that it is for.
fn sender(ctx: &Context, env: &Env<'_>) -> Result<(Token, Owner), Step> {
    let token = Token::of(ctx).map_err(|reason| json_reply(401, json!({ "message": reason })))?;
    let owner = owner(env, &token.appid)?;
    Ok((token, owner))
}

fn wolf_request<'q>(
    target: &str,
    token: Option<&'q Token>,
    arguments: Option<Map<String, Value>>,
) -> WolfRequest<'q> {
    let body = arguments.map(|arguments| Value::Object(arguments).to_string().into_bytes());
    WolfRequest { target: target.to_owned(), token, body, timeout_ms: TIMEOUT_MS }
}

/// Sends a request to wolf, and responds with its converted reply.
fn ask<D: DeserializeOwned>(
    owner: &Owner,
    question: WolfRequest<'_>,
    ctx: &Context,
    env: &Env<'_>,
    made: impl FnOnce(Option<D>) -> Option<Value> + 'static,
) -> Step {
    let call = question.call(owner, ctx);
    Step::wait(env.outbound.call(call), move |answer, _, _| {
        let failed = |status| json_reply(status, json!({ "message": "request to wolf-server failed!" }));
        let given = match read(answer) {
            Ok(Some(given)) => given,
            // In APISIX's words, and with its status.
            Ok(None) => return failed(200),
            Err(error) => {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::error!(left_out, error, "wolf-rbac: wolf did not respond to a call");
                }
                return failed(500);
            }
        };
        made(given).map_or_else(|| failed(500), |body| json_reply(200, body))
    })
}

/// What wolf gives; None if it refuses.
fn read<D: DeserializeOwned>(
    answer: Result<ServiceResponse, CallError>,
) -> Result<Option<Option<D>>, String> {
    match answer.map_err(|error| error.to_string())? {
        ServiceResponse { status: 200, body, .. } => {
            let unread = || "its response is malformed".to_owned();
            // In a refusal the data may have any form.
            let said: WolfResponse<IgnoredAny> = answers::read(&body).ok_or_else(unread)?;
            if !said.is_granted() {
                return Ok(None);
            }
            let said: WolfResponse<D> = answers::read(&body).ok_or_else(unread)?;
            Ok(Some(said.data))
        }
        ServiceResponse { status, .. } => Err(format!("it answered {status}")),
    }
}
