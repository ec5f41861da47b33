//! The permissions that a request needs: as written, or the resources whose URI fits its path, which Keycloak
//! lists for the gateway's own account.

use std::sync::Arc;

use serde::Deserialize;
use sigma_plugin::outbound::{CallError, ServiceResponse};
use sigma_plugin::{Context, Env, Step};

use super::endpoints::{Endpoint, EndpointService};
use super::{Party, Then, unavailable};
use crate::shared::answers;
use crate::shared::form::Form;
use sigma_plugin_kit::asked_once::{CachedCall, forget};
use sigma_plugin_kit::decisions::{self, Key};

/// Most resources of one path; more than a few are a fault at Keycloak.
const MOST_RESOURCES: usize = 1000;

/// The token of the gateway's own account.
pub(super) struct AccountToken(Result<String, String>);

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    expires_in: Option<u64>,
}

impl Party {
    /// Permissions with the method as scope, if it is one.
    pub(super) fn scoped(&self, permissions: &[String], ctx: &Context) -> Vec<String> {
        if !self.config.http_method_as_scope {
            return permissions.to_vec();
        }
        let method = String::from_utf8_lossy(ctx.request.method_token());
        let scoped = permissions.iter().map(|permission| match permission.contains('#') {
            true => format!("{permission}, {method}"),
            false => format!("{permission}#{method}"),
        });
        scoped.collect()
    }

    /// Decides by the resources of the path.
    pub(super) fn of_path(self: Arc<Self>, credentials: Vec<u8>, ctx: &mut Context, env: &Env<'_>) -> Step {
        let party = Arc::clone(&self);
        let then: Then<Result<Arc<EndpointService>, String>> =
            Box::new(move |resources, ctx, env| match resources {
                Err(reason) => unavailable(&reason),
                Ok(resources) => {
                    let asked = Arc::clone(&party);
                    let then: Then<Result<String, String>> = Box::new(move |token, ctx, env| match token {
                        Err(reason) => unavailable(&reason),
                        Ok(token) => asked.look_up(&resources, &token, credentials, ctx, env),
                    });
                    party.account_token(ctx, env, then)
                }
            });
        self.endpoint(Endpoint::Resources, ctx, env, then)
    }

    fn account_key(&self) -> Key {
        decisions::key([&self.key[..], b"account"])
    }

    /// Goes on with the token of the gateway's own account.
    fn account_token(
        self: &Arc<Self>,
        ctx: &mut Context,
        env: &Env<'_>,
        then: Then<Result<String, String>>,
    ) -> Step {
        let party = Arc::clone(self);
        let with_place: Then<Result<Arc<EndpointService>, String>> = Box::new(move |place, ctx, env| {
            let place = match place {
                Ok(place) => place,
                Err(reason) => return then(Err(reason), ctx, env),
            };
            let (asking, reading) = (Arc::clone(&party), Arc::clone(&party));
            let question = CachedCall {
                key: party.account_key(),
                call: move |ctx: &Context, _: &Env<'_>| {
                    let form = asking.client(Form::default().with("grant_type", "client_credentials"));
                    asking.post(&place, form, ctx)
                },
                read: Box::new(move |answer| reading.read_token(answer)),
            };
            question.ask(ctx, env, move |token: &AccountToken, ctx, env| then(token.0.clone(), ctx, env))
        });
        self.endpoint(Endpoint::Token, ctx, env, with_place)
    }

    /// The token of a response, and the milliseconds for which it is used.
    fn read_token(&self, answer: Result<ServiceResponse, CallError>) -> (AccountToken, Option<u64>) {
        let failed = |reason: &str| {
            (AccountToken(Err(format!("no token for the gateway's own account: {reason}"))), None)
        };
        let answer = match answer {
            Ok(ServiceResponse { status: 200, body, .. }) => body,
            Ok(ServiceResponse { status, .. }) => return failed(&format!("status {status}")),
            Err(error) => return failed(&error.0),
        };
        let Some(granted) = answers::read::<Granted>(&answer) else {
            return failed("the response is malformed");
        };
        if granted.access_token.is_empty()
            || !granted.access_token.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return failed("it contains characters that a header field cannot carry");
        }
        let config = &self.config;
        let lives_s = granted.expires_in.unwrap_or(config.access_token_expires_in);
        let lives_s = lives_s.saturating_sub(config.access_token_expires_leeway.saturating_add(1));
        let kept_ms = lives_s.min(config.cache_ttl_seconds).saturating_mul(1000);
        (AccountToken(Ok(granted.access_token)), (kept_ms > 0).then_some(kept_ms))
    }

    /// Asks which resources have a URI that fits the path, and decides by them.
    fn look_up(
        self: Arc<Self>,
        resources: &EndpointService,
        token: &str,
        credentials: Vec<u8>,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        let query = Form::default().with("uri", &ctx.uri).with("matchingUri", "true").text();
        let mut call = resources.service.get(&resources.upstream, ctx, self.config.timeout);
        let separator = if resources.service.target.contains('?') { '&' } else { '?' };
        call.target = format!("{}{separator}{query}", resources.service.target).into_bytes();
        call.headers.append("Authorization", format!("Bearer {token}").as_bytes());
        Step::wait(env.outbound.call(call), move |answer, ctx, env| {
            if answer.as_ref().is_ok_and(|answer| answer.status == 401) {
                // Keycloak does not know it any more; the next request asks for another one.
                forget::<AccountToken>(&self.account_key(), env);
            }
            match read_resources(answer) {
                Ok(resources) => {
                    let permissions = self.scoped(&resources, ctx);
                    self.decide(credentials, permissions, ctx, env)
                }
                Err(reason) => unavailable(&reason),
            }
        })
    }
}

/// The ids of resources.
fn read_resources(answer: Result<ServiceResponse, CallError>) -> Result<Vec<String>, String> {
    let body = match answer {
        Ok(ServiceResponse { status: 200, body, .. }) => body,
        Ok(ServiceResponse { status, .. }) => {
            return Err(format!("the lookup of resources failed: status {status}"));
        }
        Err(error) => return Err(format!("the lookup of resources failed: {error}")),
    };
    let resources: Vec<String> =
        serde_json::from_slice(&body).map_err(|_| "the list of resources is malformed".to_owned())?;
    match resources.len() {
        0..=MOST_RESOURCES => Ok(resources),
        _ => Err("too many resources have a matching URI".to_owned()),
    }
}
