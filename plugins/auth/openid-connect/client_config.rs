//! Settings of the gateway's identity for a provider, and of the connection to it.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::Value;
use sigma_schema::Confidential;
use sigma_schema::Problem;

use crate::shared::tokens::{Address, Algorithm, Proxy};

/// Client authentication of the gateway at the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum AuthMethod {
    /// Name and secret in `Authorization`.
    ClientSecretBasic,
    /// Name and secret in the form.
    ClientSecretPost,
    /// A token signed with `client_rsa_private_key` (RFC 7523).
    PrivateKeyJwt,
    /// A token signed with the secret (RFC 7523).
    ClientSecretJwt,
}

impl AuthMethod {
    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            AuthMethod::ClientSecretBasic => "client_secret_basic",
            AuthMethod::ClientSecretPost => "client_secret_post",
            AuthMethod::PrivateKeyJwt => "private_key_jwt",
            AuthMethod::ClientSecretJwt => "client_secret_jwt",
        }
    }
}

/// Signature algorithms of the client assertions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum AssertionAlgorithm {
    Hs256,
    Hs512,
    Rs256,
    Rs512,
    Es256,
    Es512,
}

impl From<AssertionAlgorithm> for Algorithm {
    fn from(name: AssertionAlgorithm) -> Algorithm {
        match name {
            AssertionAlgorithm::Hs256 => Algorithm::Hs256,
            AssertionAlgorithm::Hs512 => Algorithm::Hs512,
            AssertionAlgorithm::Rs256 => Algorithm::Rs256,
            AssertionAlgorithm::Rs512 => Algorithm::Rs512,
            AssertionAlgorithm::Es256 => Algorithm::Es256,
            AssertionAlgorithm::Es512 => Algorithm::Es512,
        }
    }
}

/// Pushed authorization requests (RFC 9126): the gateway sends the authorization request to the provider first, so that
/// it cannot be read or changed on the way.
#[derive(Clone, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct ParConfig {
    /// Whether authorization requests are pushed.
    #[schemars(extend("default" = false))]
    pub(super) enabled: bool,
    /// The endpoint, if it differs from the provider's document.
    pub(super) endpoint: Option<Address>,
    /// Client authentication there; default: the same as at the token endpoint.
    pub(super) endpoint_auth_method: Option<AuthMethod>,
}

/// DPoP (RFC 9449): tokens are bound to a key of the gateway, so that a copied token is useless.
#[derive(Clone, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct DpopConfig {
    /// Whether tokens are bound to the key.
    #[schemars(extend("default" = false))]
    pub(super) enabled: bool,
    /// Signature algorithm of proofs.
    #[schemars(extend("default" = "ES256"))]
    pub(super) signing_alg: DpopAlgorithm,
    /// The private key, PEM.
    pub(super) private_key: Option<Confidential>,
    /// The public key (RFC 7517), which the provider gets.
    #[serde(default)]
    #[schemars(schema_with = "jwk_schema")]
    pub(super) public_jwk: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum DpopAlgorithm {
    Es256,
    Rs256,
    Ps256,
}

impl From<DpopAlgorithm> for Algorithm {
    fn from(name: DpopAlgorithm) -> Algorithm {
        match name {
            DpopAlgorithm::Es256 => Algorithm::Es256,
            DpopAlgorithm::Rs256 => Algorithm::Rs256,
            DpopAlgorithm::Ps256 => Algorithm::Ps256,
        }
    }
}

fn jwk_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object"})
}

/// HTTP proxies for calls to the provider.
#[derive(Clone, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct ProxyConfig {
    /// The proxy for `http` URLs.
    http_proxy: Option<Address>,
    /// The proxy for `https` URLs. It is used with CONNECT and cannot read the content.
    https_proxy: Option<Address>,
    /// `Proxy-Authorization` for `http_proxy`.
    http_proxy_authorization: Option<Confidential>,
    /// `Proxy-Authorization` for `https_proxy`.
    https_proxy_authorization: Option<Confidential>,
    /// Hosts that are reached without a proxy, separated by commas: names with their subdomains, addresses and
    /// networks; `*` for all.
    #[schemars(length(min = 1))]
    no_proxy: Option<String>,
}

impl ProxyConfig {
    /// The proxies.
    ///
    /// # Errors
    /// Returns an error, which names the field, if a setting is for no proxy or cannot be sent.
    pub(super) fn proxies(&self) -> Result<Vec<Proxy>, String> {
        let ways = [
            ("http_proxy", &self.http_proxy, &self.http_proxy_authorization),
            ("https_proxy", &self.https_proxy, &self.https_proxy_authorization),
        ];
        let mut proxies = Vec::new();
        for (name, address, authorization) in ways {
            let authorization = authorization.clone();
            let Some(address) = address else {
                match authorization {
                    None => continue,
                    Some(_) => {
                        return Err(format!(
                            "proxy_opts.{name}_authorization: it has no effect without `{name}`"
                        ));
                    }
                }
            };
            let is_field =
                |value: &Confidential| value.reveal().bytes().all(|byte| matches!(byte, b' '..=b'~'));
            if !authorization.as_ref().is_none_or(is_field) {
                return Err(format!(
                    "proxy_opts.{name}_authorization: it contains a character that a header field cannot carry"
                ));
            }
            let (address, except) = (address.clone(), self.no_proxy.clone());
            proxies.push(Proxy { address, is_for_tls: name == "https_proxy", authorization, except });
        }
        match proxies.is_empty() {
            true => Err("proxy_opts: write `http_proxy` or `https_proxy`, or remove it".to_owned()),
            false => Ok(proxies),
        }
    }
}

/// Returns warnings about settings without effect.
pub(super) fn warnings(conf: &Value) -> Vec<Problem> {
    let text = |field: &str| conf.get(field).and_then(Value::as_str);
    let is_bearer_only = conf.get("bearer_only") == Some(&Value::Bool(true));
    let mut found = Vec::new();
    for field in ["par", "dpop"] {
        let is_on = conf.get(field).and_then(|part| part.get("enabled")) == Some(&Value::Bool(true));
        if is_on && is_bearer_only {
            let message = format!("`{field}` has no effect with `bearer_only`: there are no logins");
            found.push(Problem::new(field, "no_effect", message).hint("remove it"));
        }
    }
    let methods = [
        text("token_endpoint_auth_method"),
        text("introspection_endpoint_auth_method"),
        conf.get("par").and_then(|par| par.get("endpoint_auth_method")).and_then(Value::as_str),
    ];
    let signs = |names: &[&str]| methods.iter().flatten().any(|method| names.contains(method));
    for field in ["client_rsa_private_key", "client_rsa_private_key_id"] {
        if conf.get(field).is_some() && !signs(&["private_key_jwt"]) {
            let message = format!("`{field}` has no effect: the client authentication method does not sign");
            found.push(Problem::new(field, "no_effect", message).hint("set the method to private_key_jwt"));
        }
    }
    for field in ["client_jwt_assertion_alg", "client_jwt_assertion_audience"] {
        if conf.get(field).is_some() && !signs(&["private_key_jwt", "client_secret_jwt"]) {
            let message = format!("`{field}` has no effect: the gateway signs nothing");
            let remedy = "set the method to private_key_jwt or client_secret_jwt";
            found.push(Problem::new(field, "no_effect", message).hint(remedy));
        }
    }
    found
}
