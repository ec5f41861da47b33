//! `authz-keycloak`: Keycloak says who may do what.
//!
//! | file | question |
//! |---|---|
//! | `config` | the configuration |
//! | `endpoints` | where Keycloak is asked |
//! | `permissions` | the permissions that a request needs |
//! | `password_grant` | tokens for a name and a password |

mod config;
mod endpoints;
mod password_grant;
mod permissions;

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use serde::Deserialize;
use sigma_http::{HeaderId, Method};
use sigma_plugin::outbound::{Call, CallError, ServiceResponse};
use sigma_plugin::{Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};

use self::config::{Config, EnforcementMode};
use self::endpoints::{Endpoint, EndpointService, EndpointServices};
use crate::shared::answers;
use crate::shared::form::Form;
use crate::shared::tokens::after_bearer;
use sigma_plugin_kit::decisions::{self, Key};
use sigma_plugin_kit::log_throttle::LogThrottle;

/// Authorizes requests by Keycloak.
pub(crate) static AUTHZ_KEYCLOAK: Descriptor = Descriptor {
    name: "authz-keycloak",
    priority: 2000,
    example: include_str!("example.md"),
    identifies: true,
    phases: PhaseSet::of(&[Phase::Access]),
    guards: true,
    warnings: Some(|_, conf| config::warnings(conf)),
    upstreams: Some(config::upstreams),
    build: |build| Ok(Arc::new(AuthzKeycloak::new(build)?)),
    ..Descriptor::of::<Config>()
};

struct AuthzKeycloak(Arc<Party>);

/// A Keycloak, and who the gateway is to it.
struct Party {
    config: Config,
    places: EndpointServices,
    /// A key that separates the responses to this party from other parties' responses.
    key: Key,
}

impl AuthzKeycloak {
    fn new(build: &Build<'_>) -> Result<AuthzKeycloak, String> {
        let config: Config = build.config()?;
        let places = EndpointServices::new(&config, build);
        let key = decisions::key([
            build.plugin.as_bytes(),
            build.resource.as_bytes(),
            &build.conf_hash().to_le_bytes(),
        ]);
        Ok(AuthzKeycloak(Arc::new(Party { config, places, key })))
    }
}

/// Goes on with something that could be had, or could not.
type Then<T> = Box<dyn FnOnce(T, &mut Context, &Env<'_>) -> Step>;

/// The credentials of a request, as they are sent on; None if the request has no credentials, or several of
/// which the node might read others.
fn credentials(ctx: &Context) -> Option<Vec<u8>> {
    let mut values = ctx.request.headers.get_all(HeaderId::Authorization);
    let value = values.next().filter(|value| !value.is_empty())?;
    if values.next().is_some() {
        return None;
    }
    let has_scheme = after_bearer(value).is_some();
    Some(if has_scheme { value.to_vec() } else { [b"Bearer ", value].concat() })
}

/// Returns 503 with the problem.
fn unavailable(reason: &str) -> Step {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    if let Some(left_out) = COMPLAINT.due() {
        tracing::error!(left_out, reason, "authz-keycloak: cannot reach Keycloak");
    }
    Reply::new(503).text(reason).because("cannot reach Keycloak").into()
}

impl Party {
    /// A form for Keycloak.
    fn post(&self, place: &EndpointService, form: Form, ctx: &Context) -> Call {
        let mut call = place.service.get(&place.upstream, ctx, self.config.timeout);
        call.method = Method::Post;
        call.headers.append("Content-Type", b"application/x-www-form-urlencoded");
        call.body = Some(form.text().into_bytes());
        call
    }

    /// The client at Keycloak, with its secret.
    fn client(&self, form: Form) -> Form {
        let form = form.with("client_id", &self.config.client_id);
        match &self.config.client_secret {
            Some(secret) => form.with("client_secret", secret.reveal()),
            None => form,
        }
    }

    /// Asks Keycloak whether the owner of the credentials has the permissions.
    fn decide(
        self: Arc<Self>,
        credentials: Vec<u8>,
        permissions: Vec<String>,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        if permissions.is_empty() && self.config.policy_enforcement_mode == EnforcementMode::Enforcing {
            return self.deny(Vec::from(r#"{"error":"access_denied","error_description":"not_authorized"}"#));
        }
        let party = Arc::clone(&self);
        let then = move |place: Result<Arc<EndpointService>, String>, ctx: &mut Context, env: &Env<'_>| {
            let place = match place {
                Ok(place) => place,
                Err(reason) => return unavailable(&reason),
            };
            let mut form = Form::default()
                .with("grant_type", party.config.grant_type.as_str())
                .with("audience", &party.config.client_id)
                .with("response_mode", "decision");
            for permission in permissions {
                form = form.with("permission", permission);
            }
            let mut call = party.post(&place, form, ctx);
            call.headers.append("Authorization", &credentials);
            let person = digest(&SHA256, &credentials);
            Step::wait(env.outbound.call(call), move |answer, ctx, _| {
                ctx.mark_personal("authz-keycloak", Some(person.as_ref()));
                party.settle(answer)
            })
        };
        self.endpoint(Endpoint::Token, ctx, env, Box::new(then))
    }

    /// Returns the step for Keycloak's response.
    fn settle(&self, answer: Result<ServiceResponse, CallError>) -> Step {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        let fault = match answer {
            Ok(ServiceResponse { status: 403, body, .. }) => return self.deny(body),
            Ok(ServiceResponse { status: status @ 400.., body, .. }) => {
                return Reply::new(status).text(body).because("Keycloak refuses").into();
            }
            Ok(ServiceResponse { status: 200, body, .. }) if is_grant(&body) => return Step::Next,
            Ok(ServiceResponse { status, .. }) => format!("status {status} without a decision"),
            Err(error) => error.to_string(),
        };
        if let Some(left_out) = COMPLAINT.due() {
            tracing::error!(left_out, fault, "authz-keycloak: Keycloak returned no decision");
        }
        Reply::new(503).text("").because("Keycloak returned no decision").into()
    }

    fn deny(&self, body: Vec<u8>) -> Step {
        let reply = match &self.config.access_denied_redirect_uri {
            Some(uri) => Reply::new(307).header("Location", uri.as_bytes()).text(""),
            None => Reply::new(403).text(body),
        };
        reply.because("Keycloak grants no permission").into()
    }
}

/// Whether Keycloak explicitly grants the request.
fn is_grant(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Decision {
        result: bool,
    }
    answers::read::<Decision>(body).is_some_and(|decision| decision.result)
}

impl Plugin for AuthzKeycloak {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let party = Arc::clone(&self.0);
        if party.is_password_grant(ctx) {
            return party.grant_by_password();
        }
        let Some(credentials) = credentials(ctx) else {
            let message = "Missing JWT token in request";
            return Reply::new(401).json(&serde_json::json!({ "message": message })).because(message).into();
        };
        // The scope of a method with such a character would be ambiguous.
        if party.config.http_method_as_scope && ctx.request.method_token().contains(&b'#') {
            return party.deny(Vec::new());
        }
        if party.config.lazy_load_paths {
            return party.of_path(credentials, ctx, env);
        }
        let permissions = party.scoped(&party.config.permissions, ctx);
        party.decide(credentials, permissions, ctx, env)
    }
}

#[cfg(test)]
mod tests;
