//! The configuration of a provider and its clients.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::Configuration;
use sigma_schema::Confidential;
use sigma_schema::Problem;
use sigma_schema::validation;

use super::client_config::{self, AssertionAlgorithm, AuthMethod, DpopConfig, ParConfig, ProxyConfig};
use super::session_config::{SessionConfig, Storage};
use crate::shared::tokens::{Address, Ages, Algorithm, KeyRing, Provider, ProviderSettings, WebSettings};
use sigma_plugin_kit::service::{cleartext, unverified};

/// Authenticates users and programs by OpenID Connect.
///
/// A request with a token (`Authorization: Bearer`) is accepted if the token is valid: by the keys that the provider
/// publishes (`use_jwks`), by a key (`public_key`), or by the provider's response (introspection). A browser without
/// a token is redirected to the provider to log in, and returns with a session (authorization code flow).
/// `bearer_only` disables this login.
///
/// The node gets the user in `X-Access-Token`, `X-ID-Token` and `X-Userinfo`. It never gets these fields from
/// clients, nor the cookies of the session.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Config {
    /// The client id of the gateway at the provider.
    pub(super) client_id: String,
    /// The client's secret.
    pub(super) client_secret: Option<Confidential>,
    /// The URL of the provider's document: its issuer with `/.well-known/openid-configuration`. Required, except with
    /// `bearer_only` and `public_key`.
    #[serde(default, deserialize_with = "address_or_none")]
    #[schemars(with = "Option<String>")]
    pub(super) discovery: Option<Address>,
    /// The issuer that the document must name. Default: the beginning of the document's URL. Set it if the gateway
    /// reaches the provider by another name than browsers. A final slash makes no difference. For all tenants of Entra
    /// ID it is `https://login.microsoftonline.com/{tenantid}/v2.0`.
    #[schemars(length(min = 1))]
    pub(super) issuer: Option<String>,
    /// Scopes for logins.
    #[schemars(extend("default" = "openid"))]
    pub(super) scope: String,
    /// Whether the provider's certificate is verified, by the authorities of the system.
    #[schemars(extend("default" = true))]
    pub(super) ssl_verify: bool,
    /// Timeout of each call to the provider in seconds; multiples of 1000 are milliseconds.
    #[schemars(range(min = 1), extend("default" = 3))]
    pub(super) timeout: u64,
    /// The introspection endpoint, if it differs from the provider's document.
    pub(super) introspection_endpoint: Option<Address>,
    /// The client authentication for introspection.
    #[schemars(extend("default" = "client_secret_basic"))]
    pub(super) introspection_endpoint_auth_method: AuthMethod,
    /// The client authentication at the token endpoint.
    #[schemars(extend("default" = "client_secret_basic"))]
    pub(super) token_endpoint_auth_method: AuthMethod,
    /// The private key for `private_key_jwt`, PEM: RSA, or elliptic curve with an ES algorithm.
    pub(super) client_rsa_private_key: Option<Confidential>,
    /// Id of this key at the provider (`kid`).
    #[schemars(length(min = 1))]
    pub(super) client_rsa_private_key_id: Option<String>,
    /// Signature algorithm of the gateway's client assertions. Default: RS256 or HS256, by the method.
    pub(super) client_jwt_assertion_alg: Option<AssertionAlgorithm>,
    /// Audience of the assertion; default: the called endpoint.
    #[schemars(length(min = 1))]
    pub(super) client_jwt_assertion_audience: Option<String>,
    /// Lifetime of an assertion in seconds.
    #[schemars(range(min = 1), extend("default" = 60))]
    pub(super) client_jwt_assertion_expires_in: u64,
    /// Pushed authorization requests (RFC 9126).
    pub(super) par: Option<ParConfig>,
    /// Binding of tokens to the gateway (DPoP, RFC 9449).
    pub(super) dpop: Option<DpopConfig>,
    /// HTTP proxies for calls to the provider.
    pub(super) proxy_opts: Option<ProxyConfig>,
    /// Gateways and routes with different segments do not share introspection results.
    #[schemars(length(min = 1))]
    pub(super) cache_segment: Option<String>,
    /// The realm of the challenge in `WWW-Authenticate`.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[ !#-\[\]-~]+$"), extend("default" = "apisix"))]
    pub(super) realm: String,
    /// The path that ends a session. A browser's request from a page of another site gets 403. A copy of a session in
    /// cookies stays valid until its idle timeout; a session in Redis ends.
    #[schemars(extend("default" = "/logout"))]
    pub(super) logout_path: String,
    /// The redirect URI for the provider: a URL or a path, which must lead to this route. Default: the requested path
    /// with `/.apisix/redirect` appended.
    #[schemars(length(min = 1))]
    pub(super) redirect_uri: Option<String>,
    /// Treatment of a request without a session: redirect to the login (`auth`), refusal (`deny`), or forwarding
    /// without a user (`pass`).
    #[schemars(extend("default" = "auth"))]
    pub(super) unauth_action: UnauthAction,
    /// The public key that verifies tokens, PEM.
    #[schemars(length(min = 1))]
    pub(super) public_key: Option<String>,
    /// Whether only tokens are accepted, without redirects to the login.
    #[schemars(extend("default" = false))]
    pub(super) bearer_only: bool,
    /// Whether tokens are verified with the keys that the provider publishes.
    #[schemars(extend("default" = false))]
    pub(super) use_jwks: bool,
    /// Required signature algorithm of tokens. Default: any with a public key.
    pub(super) token_signing_alg_values_expected: Option<Algorithm>,
    /// The path for logout tokens of the provider, which end sessions (OpenID Connect Back-Channel Logout). Only for
    /// sessions in Redis.
    pub(super) backchannel_logout_path: Option<String>,
    /// Redirect target after a logout.
    #[schemars(length(min = 1))]
    pub(super) post_logout_redirect_uri: Option<String>,
    /// Whether to use PKCE (RFC 7636).
    #[schemars(extend("default" = false))]
    pub(super) use_pkce: bool,
    /// Whether an ID token must contain the `nonce` of its login.
    #[schemars(extend("default" = false))]
    pub(super) use_nonce: bool,
    /// Whether a login is valid for one request. The next request is redirected to the provider, which may show its
    /// login page.
    #[schemars(extend("default" = false))]
    pub(super) force_reauthorize: bool,
    /// Whether tokens are revoked at the provider at logout (RFC 7009).
    #[schemars(extend("default" = false))]
    pub(super) revoke_tokens_on_logout: bool,
    /// Whether an ID token without a signature is accepted, if it comes from the provider itself over verified TLS.
    #[schemars(extend("default" = false))]
    pub(super) accept_none_alg: bool,
    /// Whether an ID token with an unsupported algorithm is accepted, if it comes from the provider itself over
    /// verified TLS (OpenID Connect Core §3.1.3.7).
    #[schemars(extend("default" = true))]
    pub(super) accept_unsupported_alg: bool,
    /// Without effect: a worker stores only that the signature of a token is valid, while the key is in use.
    #[serde(rename = "jwt_verification_cache_ignore")]
    #[schemars(extend("default" = false))]
    pub(super) _jwt_verification_cache_ignore: bool,
    /// Whether an expired access token is renewed with the refresh token, if the provider issued one.
    #[schemars(extend("default" = true))]
    pub(super) renew_access_token_on_expiry: bool,
    /// Whether the node gets the access token, in `X-Access-Token`.
    #[schemars(extend("default" = true))]
    pub(super) set_access_token_header: bool,
    /// Whether the node gets the claims of the ID token, in `X-ID-Token` as JSON in Base64.
    #[schemars(extend("default" = true))]
    pub(super) set_id_token_header: bool,
    /// Whether the node gets the user's claims, in `X-Userinfo` as JSON in Base64.
    #[schemars(extend("default" = true))]
    pub(super) set_userinfo_header: bool,
    /// Whether the node gets the access token in `Authorization` instead of `X-Access-Token`.
    #[schemars(extend("default" = false))]
    pub(super) access_token_in_authorization_header: bool,
    /// Whether the node gets the ID token as it is, in `X-Raw-ID-Token`.
    #[schemars(extend("default" = false))]
    pub(super) set_raw_id_token_header: bool,
    /// Whether the node gets the refresh token, in `X-Refresh-Token`.
    #[schemars(extend("default" = false))]
    pub(super) set_refresh_token_header: bool,
    /// Required claims of a token.
    pub(super) claim_validator: Option<ClaimValidator>,
    /// A JSON Schema for the claims of a token; for logged-in users, for an object with `user`, `access_token` and
    /// `id_token`.
    #[serde(default)]
    #[schemars(schema_with = "object_schema")]
    pub(super) claim_schema: Option<Value>,
    /// Required scopes: a token must have all of them.
    pub(super) required_scopes: Option<Vec<String>>,
    /// Additional parameters of the authorization request.
    #[serde(default)]
    #[schemars(schema_with = "texts_schema")]
    pub(super) authorization_params: Option<BTreeMap<String, Value>>,
    /// Lifetime of an access token in seconds, if the provider does not send it.
    #[schemars(range(min = 1), extend("default" = 3600, "own_default" = true))]
    pub(super) access_token_expires_in: u64,
    /// Seconds after which a browser is redirected to the provider again, without a login page (`prompt=none`).
    #[schemars(range(min = 1))]
    pub(super) refresh_session_interval: Option<u64>,
    /// Seconds before its expiry at which an access token counts as expired.
    #[schemars(extend("default" = 0))]
    pub(super) access_token_expires_leeway: u64,
    /// Maximum seconds for which an introspection result is used; 0: until the token expires.
    #[schemars(extend("default" = 0))]
    pub(super) introspection_interval: u64,
    /// Member of the introspection response with the expiry: `exp`, or a member with the remaining seconds.
    #[schemars(length(min = 1), extend("default" = "exp", "own_default" = true))]
    pub(super) introspection_expiry_claim: String,
    /// Request fields that the introspection endpoint gets too.
    #[schemars(length(min = 1), inner(regex(pattern = "^[^:]+$")))]
    pub(super) introspection_addon_headers: Option<Vec<String>>,
    /// Tolerated clock difference in seconds.
    #[schemars(extend("default" = 120))]
    pub(super) iat_slack: u64,
    /// Seconds after which the provider's keys are fetched again.
    #[schemars(range(min = 1), extend("default" = 86400))]
    pub(super) jwk_expires_in: u64,
    /// Additional seconds for which the keys are used if the provider returns no new ones.
    #[schemars(extend("default" = 86400, "own_default" = true))]
    pub(super) jwk_stale_if_error: u64,
    /// Minimum seconds between two fetches of the keys or of the document, regardless of clients.
    #[schemars(range(min = 1), extend("default" = 5, "own_default" = true))]
    pub(super) jwk_cooldown: u64,
    /// The sessions of logged-in users.
    pub(super) session: Option<SessionConfig>,
    /// Content of a session. Default: all of it; less makes a smaller cookie.
    #[schemars(extend("own_default" = true))]
    pub(super) session_contents: Option<SessionContents>,
}

/// Parts of a session.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct SessionContents {
    /// The claims of the ID token.
    #[schemars(extend("default" = false))]
    pub(super) id_token: bool,
    /// The ID token; it is sent to the provider at logout.
    #[schemars(extend("default" = false))]
    pub(super) enc_id_token: bool,
    /// User info of the provider.
    #[schemars(extend("default" = false))]
    pub(super) user: bool,
    /// The access token and the refresh token.
    #[schemars(extend("default" = false))]
    pub(super) access_token: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum UnauthAction {
    Auth,
    Deny,
    Pass,
}

/// Required claims of a token.
#[derive(Clone, Deserialize, JsonSchema)]
pub(super) struct ClaimValidator {
    /// Permitted issuers.
    pub(super) issuer: Option<IssuerValidator>,
    /// Requirements of the audience.
    pub(super) audience: Option<AudienceValidator>,
}

#[derive(Clone, Deserialize, JsonSchema)]
pub(super) struct IssuerValidator {
    /// The issuers. Default: the issuer in the document.
    #[schemars(length(min = 1))]
    pub(super) valid_issuers: Option<Vec<String>>,
}

#[derive(Clone, Deserialize, JsonSchema)]
pub(super) struct AudienceValidator {
    /// The claim with the audience.
    #[schemars(extend("default" = "aud"))]
    pub(super) claim: String,
    /// Whether the claim is required.
    #[schemars(extend("default" = false))]
    pub(super) required: bool,
    /// Whether the claim must be or contain `client_id`.
    #[schemars(extend("default" = false))]
    pub(super) match_with_client_id: bool,
}

/// Deserializes an address; an empty text counts as unset.
fn address_or_none<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Address>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty());
    text.map(Address::try_from).transpose().map_err(serde::de::Error::custom)
}

fn object_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object"})
}

fn texts_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}})
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        if self.discovery.is_none() && !(self.bearer_only && self.public_key.is_some()) {
            return Err("property \"discovery\" is required".to_owned());
        }
        if self.session.is_none() && !self.bearer_only {
            return Err("property \"session.secret\" is required when \"bearer_only\" is false".to_owned());
        }
        let signs = |method| method == AuthMethod::PrivateKeyJwt;
        let needs_no_secret = match self.bearer_only {
            true => self.verifies_signatures() || signs(self.introspection_endpoint_auth_method),
            false => self.use_pkce || signs(self.token_endpoint_auth_method),
        };
        if self.client_secret.is_none() && !needs_no_secret {
            return Err("property \"client_secret\" is required".to_owned());
        }
        if let Some(schema) = &self.claim_schema {
            validation::Schema::compile(schema)
                .map_err(|error| format!("check claim_schema failed: {error}"))?;
        }
        if let Some(discovery) = &self.discovery
            && self.issuer.is_none()
            && Provider::issuer_of(discovery).is_none()
        {
            return Err(format!(
                "discovery: `{discovery}` does not end with /.well-known/openid-configuration, so that the issuer is unknown; set `issuer`"
            ));
        }
        if let Some(proxies) = &self.proxy_opts {
            proxies.proxies()?;
        }
        self.check_bearer()?;
        self.check_login()
    }
}

impl Config {
    /// Whether tokens are verified here, and not by a question.
    pub(super) fn verifies_signatures(&self) -> bool {
        self.public_key.is_some() || self.use_jwks
    }

    /// Whether requests may bring their own token.
    pub(super) fn takes_tokens(&self) -> bool {
        self.bearer_only || self.introspection_endpoint.is_some() || self.verifies_signatures()
    }

    fn check_bearer(&self) -> Result<(), String> {
        if self.public_key.is_some() && self.use_jwks {
            return Err(
                "public_key, use_jwks: only one of them can verify tokens; remove the other".to_owned()
            );
        }
        if let Some(pem) = &self.public_key {
            KeyRing::of_pem(pem, &self.algorithms()).map_err(|error| format!("public_key: {error}"))?;
        }
        let is_shared = self.token_signing_alg_values_expected.is_some_and(|name| name.shared().is_some());
        if is_shared && self.verifies_signatures() {
            return Err("token_signing_alg_values_expected: published keys are public; list public-key algorithms such as RS256 or ES256"
                .to_owned());
        }
        let fields = self.introspection_addon_headers.iter().flatten();
        match fields.into_iter().find(|name| !sigma_plugin_kit::fields::is_name(name)) {
            Some(name) => {
                Err(format!("introspection_addon_headers: `{name}` is not the name of a header field"))
            }
            None => Ok(()),
        }
    }

    fn check_login(&self) -> Result<(), String> {
        let Some(session) = self.session.as_ref().filter(|_| !self.bearer_only) else {
            return match self.backchannel_logout_path {
                Some(_) => {
                    Err("backchannel_logout_path: with `bearer_only` there are no sessions".to_owned())
                }
                None => Ok(()),
            };
        };
        session.check()?;
        let is_path = |text: &str| text.starts_with('/') && !text.starts_with("//");
        if let Some(uri) = &self.redirect_uri
            && !is_path(uri)
        {
            Address::try_from(uri.clone()).map_err(|fault| format!("redirect_uri: {fault}, nor a path"))?;
        }
        if !is_path(&self.logout_path) {
            return Err(format!("logout_path: `{}` is not a path", self.logout_path));
        }
        if let Some(path) = &self.backchannel_logout_path {
            if !is_path(path) {
                return Err(format!("backchannel_logout_path: `{path}` is not a path"));
            }
            if session.storage == Storage::Cookie {
                return Err("backchannel_logout_path: sessions in cookies cannot be ended by the provider; set `session.storage` to redis"
                    .to_owned());
            }
        }
        let reserved = self.authorization_params.iter().flat_map(BTreeMap::keys);
        match reserved.into_iter().find(|name| RESERVED.contains(&name.as_str())) {
            Some(name) => Err(format!("authorization_params: the gateway itself sets `{name}`: remove it")),
            None => Ok(()),
        }
    }

    /// The algorithms of tokens with a public key.
    pub(super) fn algorithms(&self) -> Vec<Algorithm> {
        match self.token_signing_alg_values_expected {
            Some(algorithm) => vec![algorithm],
            None => Algorithm::PUBLIC.to_vec(),
        }
    }

    fn timeout(&self) -> Duration {
        match self.timeout {
            ms if ms >= 1000 && ms % 1000 == 0 => Duration::from_millis(ms),
            seconds => Duration::from_secs(seconds),
        }
    }

    /// The provider.
    ///
    /// # Errors
    /// Returns an error if its issuer is not known.
    pub(super) fn provider(&self) -> Result<ProviderSettings, String> {
        let issuer = self.issuer.as_deref();
        let issuer = match &self.discovery {
            Some(discovery) => issuer.or_else(|| Provider::issuer_of(discovery)),
            None => Some(issuer.unwrap_or_default()),
        };
        let proxies = self.proxy_opts.as_ref().map(ProxyConfig::proxies).transpose()?.unwrap_or_default();
        Ok(ProviderSettings {
            issuer: issuer.ok_or("discovery: the issuer is unknown")?.to_owned(),
            discovery: self.discovery.clone(),
            web: WebSettings { proxies, ..WebSettings::new(self.timeout(), self.ssl_verify) },
            keys: Ages {
                max_age: Duration::from_secs(self.jwk_expires_in),
                stale_if_error: Duration::from_secs(self.jwk_stale_if_error),
                cooldown: Duration::from_secs(self.jwk_cooldown),
            },
        })
    }
}

/// Arguments of the question with which a browser is sent to log in that are not the operator's.
const RESERVED: [&str; 11] = [
    "client_id",
    "response_type",
    "response_mode",
    "scope",
    "redirect_uri",
    "state",
    "nonce",
    "code_challenge",
    "code_challenge_method",
    "request",
    "request_uri",
];

/// Returns warnings about a configuration.
pub(super) fn warnings(conf: &Value) -> Vec<Problem> {
    let on = |field: &str| conf.get(field) == Some(&Value::Bool(true));
    let message =
        "the provider is queried in cleartext: an attacker on the network path can log in as any user";
    let clear = ["discovery", "introspection_endpoint"].iter();
    let clear = clear.filter_map(|field| cleartext(conf, field, message));
    let mut found: Vec<_> =
        clear.chain(unverified(conf, "another server can impersonate the provider")).collect();
    if on("jwt_verification_cache_ignore") {
        let message = "`jwt_verification_cache_ignore` has no effect: only signatures are remembered";
        found.push(Problem::new("jwt_verification_cache_ignore", "no_effect", message).hint("remove it"));
    }
    if conf.get("session").and_then(|session| session.get("cookie")).is_some() {
        let message = "`session.cookie` is the old name of `session.absolute_timeout`";
        found.push(Problem::new("session.cookie", "deprecated", message).hint("write `absolute_timeout`"));
    }
    found.extend(client_config::warnings(conf));
    if on("bearer_only") && conf.get("session").is_some() {
        let message = "`session` has no effect with `bearer_only`: there are no logins";
        found.push(Problem::new("session", "no_effect", message).hint("remove it"));
    }
    found.extend(for_other_applications(conf));
    let has_text = |field: &str| conf.get(field).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    let names_issuers = conf.pointer("/claim_validator/issuer/valid_issuers").is_some();
    if !has_text("discovery") && !has_text("issuer") && !names_issuers {
        let message =
            "without a provider, every token that `public_key` verifies is accepted; `iss` is not checked";
        found.push(Problem::new("issuer", "any_issuer", message).hint("set `issuer`"));
    }
    if !on("bearer_only") && !on("use_pkce") && !on("use_nonce") {
        let message = "a stolen code or ID token can be used in another login (RFC 9700 §2.1.1)";
        found
            .push(Problem::new("use_pkce", "no_pkce", message).hint("set `use_pkce` or `use_nonce` to true"));
    }
    found
}

/// The warning that bearer tokens of the issuer for other applications are accepted.
fn for_other_applications(conf: &Value) -> Option<Problem> {
    let on = |field: &str| conf.get(field) == Some(&Value::Bool(true));
    let has = |field: &str| conf.get(field).is_some_and(|value| !value.is_null());
    let takes_tokens =
        ["public_key", "introspection_endpoint"].into_iter().any(has) || on("bearer_only") || on("use_jwks");
    let is_limited = has("claim_schema")
        || conf.get("required_scopes").and_then(Value::as_array).is_some_and(|scopes| !scopes.is_empty());
    let audience = conf.get("claim_validator").and_then(|claims| claims.get("audience"));
    let demands = |field: &str| audience.and_then(|audience| audience.get(field)) == Some(&Value::Bool(true));
    if !takes_tokens || is_limited || demands("required") && demands("match_with_client_id") {
        return None;
    }
    let message = "a bearer token for another application of the issuer is accepted (RFC 8725 §3.9)";
    let hint = "set `claim_validator: { audience: { required: true, match_with_client_id: true } }`, or \
                `required_scopes`, or `claim_schema`";
    Some(Problem::new("claim_validator", "any_audience", message).hint(hint))
}
