//! The configuration of a Keycloak and of the resources that it protects.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::Configuration;
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::Service;
use sigma_schema::Confidential;
use sigma_schema::Problem;

use sigma_plugin_kit::service::{self, Keepalive};

/// Authorizes requests by Keycloak's permissions (UMA).
///
/// The plugin sends the token in `Authorization` to Keycloak, with the permissions that the request needs:
/// `permissions`, or with `lazy_load_paths` the resources at Keycloak whose URI matches the path. Only an explicit
/// grant permits the request. If Keycloak is unreachable, requests are refused.
///
/// Endpoints come from the discovery document, which must be on the same host, or from the configuration. Each worker
/// caches the document and the token of the gateway's own account; requests that need one at the same time fetch it
/// once. A POST of a form with `username` and `password` to `password_grant_token_generation_incoming_uri` returns
/// tokens.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Config {
    /// The id of the protected client at Keycloak.
    #[schemars(length(min = 1, max = 100))]
    pub(super) client_id: String,
    /// Its secret.
    #[schemars(length(min = 1, max = 100))]
    pub(super) client_secret: Option<Confidential>,
    /// The URL of the realm's UMA document, `…/.well-known/uma2-configuration`.
    #[schemars(length(min = 1, max = 4096))]
    pub(super) discovery: Option<Service>,
    /// The URL of the token endpoint, instead of the one in the document.
    #[schemars(length(min = 1, max = 4096))]
    pub(super) token_endpoint: Option<Service>,
    /// The URL of the resource registration endpoint, instead of the one in the document.
    #[schemars(length(min = 1, max = 4096))]
    pub(super) resource_registration_endpoint: Option<Service>,
    /// The requested grant.
    #[schemars(extend("default" = "urn:ietf:params:oauth:grant-type:uma-ticket"))]
    pub(super) grant_type: GrantType,
    /// Treatment of a request without a required permission: refused (`ENFORCING`), or decided by Keycloak
    /// (`PERMISSIVE`).
    #[schemars(extend("default" = "ENFORCING"))]
    pub(super) policy_enforcement_mode: EnforcementMode,
    /// Permissions that each request needs: `resource` or `resource#scope`.
    #[schemars(inner(length(min = 1, max = 100)), extend("uniqueItems" = true, "default" = []))]
    pub(super) permissions: Vec<String>,
    /// Whether the resources at Keycloak whose URI matches the path are the required ones.
    #[schemars(extend("default" = false))]
    pub(super) lazy_load_paths: bool,
    /// Whether the method is the required scope.
    #[schemars(extend("default" = false))]
    pub(super) http_method_as_scope: bool,
    /// Timeout of each call in milliseconds.
    #[schemars(range(min = 1000), extend("default" = 3000))]
    pub(super) timeout: u64,
    /// Whether Keycloak's certificate is verified.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    /// Maximum lifetime of the cached document and of the gateway's own token in seconds.
    #[schemars(range(min = 1), extend("default" = 86_400))]
    pub(super) cache_ttl_seconds: u64,
    #[serde(flatten)]
    keepalive: Keepalive,
    /// Redirect target of denied requests (307), instead of a 403.
    #[schemars(length(min = 1, max = 2048))]
    pub(super) access_denied_redirect_uri: Option<String>,
    /// Lifetime in seconds of the gateway's own token, if Keycloak does not send it.
    #[schemars(range(min = 1), extend("default" = 300))]
    pub(super) access_token_expires_in: u64,
    /// Seconds before its expiry at which this token counts as expired.
    #[schemars(extend("default" = 0))]
    pub(super) access_token_expires_leeway: u64,
    /// Not used: an account requests a new token with its secret (RFC 6749 §4.4.3).
    #[serde(rename = "refresh_token_expires_in")]
    #[schemars(range(min = 1), extend("default" = 3600))]
    _refresh_token_expires_in: u64,
    /// Not used, as `refresh_token_expires_in`.
    #[serde(rename = "refresh_token_expires_leeway")]
    #[schemars(extend("default" = 0))]
    _refresh_token_expires_leeway: u64,
    /// The path, with its query if there is one, at which clients exchange a name and password for tokens.
    #[schemars(length(min = 1, max = 4096))]
    pub(super) password_grant_token_generation_incoming_uri: Option<String>,
    /// Maximum bytes of the form with name and password.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    pub(super) max_req_body_size: usize,
}

#[derive(Deserialize, JsonSchema)]
pub(super) enum GrantType {
    #[serde(rename = "urn:ietf:params:oauth:grant-type:uma-ticket")]
    UmaTicket,
}

impl GrantType {
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            GrantType::UmaTicket => "urn:ietf:params:oauth:grant-type:uma-ticket",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum EnforcementMode {
    Enforcing,
    Permissive,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        if self.discovery.is_some() {
            return Ok(());
        }
        if self.token_endpoint.is_none() {
            return Err(
                r#"object matches none of the required: ["discovery"] or ["token_endpoint"]"#.to_owned()
            );
        }
        if self.lazy_load_paths && self.resource_registration_endpoint.is_none() {
            let required = r#"["discovery"] or ["resource_registration_endpoint"]"#;
            return Err(format!("with lazy_load_paths the object matches none of the required: {required}"));
        }
        Ok(())
    }
}

/// Names of the fields with a URL, which are also the names of the upstreams.
pub(super) const DISCOVERY: &str = "discovery";
pub(super) const TOKEN_ENDPOINT: &str = "token_endpoint";
pub(super) const RESOURCES_ENDPOINT: &str = "resource_registration_endpoint";

/// The URLs of a configuration as upstreams.
pub(super) fn upstreams(conf: &Value) -> Vec<InlineUpstream> {
    let Ok(config) = Config::deserialize(conf) else { return Vec::new() };
    let urls = [
        (DISCOVERY, &config.discovery),
        (TOKEN_ENDPOINT, &config.token_endpoint),
        (RESOURCES_ENDPOINT, &config.resource_registration_endpoint),
    ];
    let found = urls.into_iter().filter_map(|(name, service)| Some((name, service.as_ref()?)));
    let found = found.map(|(name, service)| InlineUpstream {
        name: name.to_owned(),
        upstream: config.keepalive.upstream(service, config.ssl_verify, config.timeout),
    });
    found.collect()
}

pub(super) fn warnings(conf: &Value) -> Vec<Problem> {
    let urls = [DISCOVERY, TOKEN_ENDPOINT, RESOURCES_ENDPOINT];
    let mut found = service::warnings(conf, &urls, "Keycloak");
    for name in ["refresh_token_expires_in", "refresh_token_expires_leeway"] {
        if conf.get(name).is_some() {
            let message = format!("`{name}` has no effect: no refresh tokens are used");
            found.push(Problem::new(name, "no_effect", message).hint("remove it"));
        }
    }
    found
}
