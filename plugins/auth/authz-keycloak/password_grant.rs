//! Tokens for a name and a password, which a client posts as a form.

use std::sync::Arc;

use serde::de::IgnoredAny;
use serde_json::{Value, json};
use sigma_http::{HeaderId, Method};
use sigma_plugin::outbound::{CallError, ServiceResponse};
use sigma_plugin::step::BodyRead;
use sigma_plugin::{Context, Env, Reply, Step};

use super::endpoints::{Endpoint, EndpointService};
use super::{Party, Then};
use crate::shared::form::{Form, fields};

fn json_reply(status: u16, message: &'static str) -> Step {
    Reply::new(status).json(&json!({ "message": message })).because(message).into()
}

impl Party {
    /// Whether a request asks for tokens.
    pub(super) fn is_password_grant(&self, ctx: &Context) -> bool {
        let Some(uri) = &self.config.password_grant_token_generation_incoming_uri else { return false };
        let media_type = ctx.request.headers.get(HeaderId::ContentType).unwrap_or_default();
        let media_type = media_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        ctx.request.method == Method::Post
            && media_type.eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
            && ctx.request_uri() == uri.as_bytes()
    }

    /// Reads the form and has Keycloak answer it.
    pub(super) fn grant_by_password(self: Arc<Self>) -> Step {
        let limit = self.config.max_req_body_size;
        let then = move |ctx: &mut Context, env: &Env<'_>, read| {
            if read == BodyRead::TooLarge {
                return Reply::new(413).text("").because("the form exceeds max_req_body_size").into();
            }
            let body = ctx.body.as_deref().filter(|body| !body.is_empty());
            let Some(form) = body.and_then(fields) else {
                return Reply::new(400).text("").because("the form is malformed").into();
            };
            let field = |name: &str| form.get(name).and_then(Value::as_str).map(str::to_owned);
            let Some(username) = field("username") else { return json_reply(422, "username is missing.") };
            let Some(password) = field("password") else { return json_reply(422, "password is missing.") };
            let party = Arc::clone(&self);
            let then: Then<Result<Arc<EndpointService>, String>> = Box::new(move |place, ctx, env| {
                let Ok(place) = place else { return json_reply(503, "Unable to determine token endpoint.") };
                let form = party.client(Form::default().with("grant_type", "password"));
                let form = form.with("username", username).with("password", password);
                let call = party.post(&place, form, ctx);
                Step::wait(env.outbound.call(call), move |answer, _, _| settle(answer))
            });
            self.endpoint(Endpoint::Token, ctx, env, then)
        };
        Step::ReadBody { limit, then: Box::new(then) }
    }
}

fn settle(answer: Result<ServiceResponse, CallError>) -> Step {
    let Ok(answer) = answer else { return json_reply(401, "Accessing token endpoint URL failed.") };
    let is_json = serde_json::from_slice::<IgnoredAny>(&answer.body).is_ok();
    if answer.status != 200 || !is_json {
        return json_reply(401, "Could not decode JSON from response.");
    }
    // Tokens are not for caches.
    Reply::new(200).header("Cache-Control", "no-store").text(answer.body).into()
}
