//! Where Keycloak is queried: as the configuration says, or its discovery document.

use std::sync::Arc;

use serde::Deserialize;
use sigma_plugin::outbound::{CallError, Service, ServiceResponse};
use sigma_plugin::{Build, Context, Env, Step};

use super::config::{Config, DISCOVERY, RESOURCES_ENDPOINT, TOKEN_ENDPOINT};
use super::{Party, Then};
use crate::shared::answers;
use sigma_plugin_kit::asked_once::CachedCall;

/// A service with the key of the upstream that it is.
pub(super) struct EndpointService {
    pub(super) upstream: Box<str>,
    pub(super) service: Service,
}

/// The places that the configuration names.
pub(super) struct EndpointServices {
    discovery: Option<Arc<EndpointService>>,
    token: Option<Arc<EndpointService>>,
    resources: Option<Arc<EndpointService>>,
}

impl EndpointServices {
    pub(super) fn new(config: &Config, build: &Build<'_>) -> EndpointServices {
        let place = |name: &str, service: &Option<Service>| {
            let service = service.clone()?;
            Some(Arc::new(EndpointService { upstream: build.upstream_key(name).into(), service }))
        };
        EndpointServices {
            discovery: place(DISCOVERY, &config.discovery),
            token: place(TOKEN_ENDPOINT, &config.token_endpoint),
            resources: place(RESOURCES_ENDPOINT, &config.resource_registration_endpoint),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Endpoint {
    Token,
    Resources,
}

/// The parsed document; its texts are shown to clients.
pub(super) struct Discovered {
    token: Result<Arc<EndpointService>, String>,
    resources: Result<Arc<EndpointService>, String>,
}

/// The parts of the document that are read.
#[derive(Deserialize)]
struct Document {
    token_endpoint: Option<String>,
    resource_registration_endpoint: Option<String>,
}

const NO_TOKEN_ENDPOINT: &str = "Unable to determine token endpoint.";
const NO_RESOURCES_ENDPOINT: &str = "Unable to determine registration endpoint.";

impl Discovered {
    /// Reads the document that came from `from`.
    fn parse(document: &[u8], from: &EndpointService) -> Result<Discovered, String> {
        let document: Document =
            answers::read(document).ok_or_else(|| "the discovery document is malformed".to_owned())?;
        // The document may not choose whom the gateway sends its secret.
        let place = |name: &str, url: Option<String>, missing: &str| {
            let service = Service::parse(&url.ok_or_else(|| missing.to_owned())?)?;
            let of = |service: &Service| (service.scheme.clone(), service.node.clone(), service.port);
            if of(&service) != of(&from.service) {
                return Err(format!("{name} of the discovery document is on another host: set {name}"));
            }
            Ok(Arc::new(EndpointService { upstream: from.upstream.clone(), service }))
        };
        Ok(Discovered {
            token: place(TOKEN_ENDPOINT, document.token_endpoint, NO_TOKEN_ENDPOINT),
            resources: place(
                RESOURCES_ENDPOINT,
                document.resource_registration_endpoint,
                NO_RESOURCES_ENDPOINT,
            ),
        })
    }

    fn read(
        answer: Result<ServiceResponse, CallError>,
        from: &EndpointService,
    ) -> Result<Discovered, String> {
        match answer {
            Ok(ServiceResponse { status: 200, body, .. }) => Discovered::parse(&body, from),
            Ok(ServiceResponse { status, .. }) => {
                Err(format!("accessing discovery URL failed: status {status}"))
            }
            Err(error) => Err(format!("accessing discovery URL failed: {error}")),
        }
    }

    fn endpoint(&self, endpoint: Endpoint) -> Result<Arc<EndpointService>, String> {
        match endpoint {
            Endpoint::Token => self.token.clone(),
            Endpoint::Resources => self.resources.clone(),
        }
    }
}

impl Party {
    /// Goes on with an endpoint.
    pub(super) fn endpoint(
        self: &Arc<Self>,
        endpoint: Endpoint,
        ctx: &mut Context,
        env: &Env<'_>,
        then: Then<Result<Arc<EndpointService>, String>>,
    ) -> Step {
        let (written, missing) = match endpoint {
            Endpoint::Token => (&self.places.token, NO_TOKEN_ENDPOINT),
            Endpoint::Resources => (&self.places.resources, NO_RESOURCES_ENDPOINT),
        };
        if let Some(place) = written {
            return then(Ok(Arc::clone(place)), ctx, env);
        }
        let Some(discovery) = self.places.discovery.clone() else {
            return then(Err(missing.to_owned()), ctx, env);
        };
        let (timeout_ms, kept_ms) = (self.config.timeout, self.config.cache_ttl_seconds.saturating_mul(1000));
        let from = Arc::clone(&discovery);
        let question = CachedCall {
            key: self.key,
            call: move |ctx: &Context, _: &Env<'_>| {
                discovery.service.get(&discovery.upstream, ctx, timeout_ms)
            },
            read: Box::new(move |answer| {
                let read = Discovered::read(answer, &from);
                let kept_ms = read.is_ok().then_some(kept_ms);
                (read, kept_ms)
            }),
        };
        question.ask(ctx, env, move |read: &Result<Discovered, String>, ctx, env| {
            let found = read.as_ref().map_err(String::clone).and_then(|read| read.endpoint(endpoint));
            then(found, ctx, env)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_names_endpoints_at_its_own_host() {
        let from = EndpointService {
            upstream: "u".into(),
            service: Service::parse("https://kc/realms/r/x").unwrap(),
        };
        let check = |document: &str, token: &str, resources: &str| {
            let told = |place: Result<Arc<EndpointService>, String>| match place {
                Ok(place) => place.service.target.to_string(),
                Err(reason) => reason,
            };
            match Discovered::parse(document.as_bytes(), &from) {
                Ok(found) => assert_eq!((&*told(found.token), &*told(found.resources)), (token, resources)),
                Err(reason) => assert_eq!((&*reason, ""), (token, resources), "{document}"),
            }
        };
        const UNREAD: &str = "the discovery document is malformed";
        check("{}", NO_TOKEN_ENDPOINT, NO_RESOURCES_ENDPOINT);
        check(
            r#"{"token_endpoint":"https://kc:443/t","resource_registration_endpoint":"https://evil/r","x":1}"#,
            "/t",
            "resource_registration_endpoint of the discovery document is on another host: set resource_registration_endpoint",
        );
        check(
            r#"{"token_endpoint":"http://kc/t"}"#,
            "token_endpoint of the discovery document is on another host: set token_endpoint",
            NO_RESOURCES_ENDPOINT,
        );
        check(r#"{"token_endpoint":"https://kc/a","token_endpoint":"https://kc/b"}"#, UNREAD, "");
        check(r#"{"token_endpoint":7}"#, UNREAD, "");
        check("[]", UNREAD, "");
        check("", UNREAD, "");
    }
}
