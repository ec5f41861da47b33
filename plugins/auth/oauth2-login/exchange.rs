//! From a code to a user: the token's call, and the user's.

use std::sync::Arc;

use serde_json::{Map, Value};
use sigma_http::Method;
use sigma_plugin::outbound::{Call, CallError, Service, ServiceResponse};
use sigma_plugin::{Context, Env, Step};

use super::provider::UserCall;
use super::{Begun, Logins, User};
use crate::shared::answers;
use crate::shared::form::{self, Form};

impl Logins {
    /// Requests the token of a code.
    pub(super) fn ask_token(self: Arc<Self>, code: &str, begun: Begun, ctx: &Context, env: &Env<'_>) -> Step {
        let (config, style) = (&self.config, &self.style);
        let mut form = Form::default()
            .with("grant_type", "authorization_code")
            .with(style.client_id, &config.client_id)
            .with(style.client_secret, config.client_secret.reveal())
            .with("redirect_uri", &config.redirect_uri)
            .with("code", code);
        if style.pkce {
            form = form.with("code_verifier", &begun.verifier);
        }
        let mut call = self.call(&self.token, &self.token_upstream, ctx);
        match style.token_by_get {
            true => call.target = with_query(&self.token, &form.text()),
            false => {
                call.method = Method::Post;
                call.headers.append("Content-Type", b"application/x-www-form-urlencoded");
                call.body = Some(form.text().into_bytes());
            }
        }
        Step::wait(env.outbound.call(call), move |answer, ctx, env| match granted(answer) {
            Ok(granted) => self.ask_user(granted, begun, ctx, env),
            Err(reason) => self.refuse(&reason, ctx),
        })
    }

    /// Requests the user of a token.
    fn ask_user(self: Arc<Self>, granted: Granted, begun: Begun, ctx: &Context, env: &Env<'_>) -> Step {
        let Granted { token, response } = granted;
        let Some(service) = &self.user else {
            let hidden = ["access_token", "refresh_token"];
            let user: User =
                response.into_iter().filter(|(name, _)| !hidden.contains(&name.as_str())).collect();
            return self.welcome(user, &begun, ctx, env);
        };
        let mut call = self.call(service, &self.user_upstream, ctx);
        match self.style.user {
            UserCall::Query(member, argument) => {
                let Some(id) = response.get(member).and_then(text_of) else {
                    return self.refuse("the token response names no user", ctx);
                };
                let query = Form::default().with("access_token", &token).with(argument, id).text();
                call.target = with_query(service, &query);
            }
            UserCall::Bearer | UserCall::WithToken => {
                call.headers.append("Authorization", format!("Bearer {token}").as_bytes());
            }
        }
        Step::wait(env.outbound.call(call), move |answer, ctx, env| match object(answer, "user") {
            Ok(user) => self.welcome(user, &begun, ctx, env),
            Err(reason) => self.refuse(&reason, ctx),
        })
    }

    fn call(&self, service: &Service, upstream: &str, ctx: &Context) -> Call {
        let mut call = service.get(upstream, ctx, self.config.timeout);
        // Some providers respond with a form, and refuse programs without a name.
        call.headers.append("Accept", b"application/json");
        call.headers.append("User-Agent", b"sigma");
        call
    }
}

/// A token, and the response with it.
struct Granted {
    token: String,
    response: Map<String, Value>,
}

/// Reads the token. Errors are often sent with status 200.
fn granted(answer: Result<ServiceResponse, CallError>) -> Result<Granted, String> {
    let response = object(answer, "token")?;
    let token = response.get("access_token").and_then(Value::as_str).unwrap_or_default();
    if !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(Granted { token: token.to_owned(), response });
    }
    let error = ["error", "errcode", "error_code"].into_iter().find_map(|name| response.get(name));
    let error: String = error.map(Value::to_string).unwrap_or_default().chars().take(64).collect();
    Err(format!("no token in the response {error}"))
}

/// Returns the object in a response, JSON or a form.
fn object(answer: Result<ServiceResponse, CallError>, what: &str) -> Result<Map<String, Value>, String> {
    match answer {
        Ok(ServiceResponse { status: 200, body, .. }) => answers::read(&body)
            .or_else(|| form::fields(&body))
            .ok_or_else(|| format!("the {what} response is malformed")),
        Ok(ServiceResponse { status, .. }) => Err(format!("no {what}: status {status}")),
        Err(error) => Err(format!("no {what}: {error}")),
    }
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The target of a service with further arguments.
fn with_query(service: &Service, query: &str) -> Vec<u8> {
    let separator = if service.target.contains('?') { '&' } else { '?' };
    format!("{}{separator}{query}", service.target).into_bytes()
}

#[cfg(test)]
mod tests {
    use sigma_http::Headers;

    use super::*;

    fn answer(status: u16, body: &str) -> Result<ServiceResponse, CallError> {
        Ok(ServiceResponse {
            status,
            headers: Headers::default(),
            body: body.as_bytes().to_vec(),
            trailers: Headers::default(),
        })
    }

    #[test]
    fn tokens_are_read_from_json_and_forms() {
        let check = |status: u16, body: &str, expected: Result<&str, &str>| {
            let granted = granted(answer(status, body)).map(|granted| granted.token);
            assert_eq!(granted, expected.map(str::to_owned).map_err(str::to_owned), "{body}");
        };
        check(200, r#"{"access_token":"t"}"#, Ok("t"));
        check(200, "access_token=t&scope=user", Ok("t"));
        check(
            200,
            r#"{"error":"bad_verification_code"}"#,
            Err(r#"no token in the response "bad_verification_code""#),
        );
        check(200, r#"{"errcode":40029}"#, Err("no token in the response 40029"));
        check(200, r#"{"access_token":"a b"}"#, Err("no token in the response "));
        check(200, r#"{"access_token":""}"#, Err("no token in the response "));
        check(200, r#"{"access_token":"a","access_token":"b"}"#, Err("the token response is malformed"));
        check(500, r#"{"access_token":"t"}"#, Err("no token: status 500"));
    }
}
