//! As who the gateway asks, by its configuration; and whether that is possible.

use std::sync::Arc;

use serde_json::Value;
use sigma_plugin::descriptor::parsed;

use super::super::tokens::{Algorithm, SigningKey};
use super::client::{Assertion, Client};
use super::client_config::{AuthMethod, DpopConfig};
use super::config::Config;
use super::dpop::Dpop;

/// As who the gateway asks.
pub(super) struct Clients {
    /// About tokens.
    pub(super) introspector: Client,
    /// For tokens.
    pub(super) tokens: Client,
    /// Where questions are left before a browser is sent with them.
    pub(super) pusher: Option<Client>,
}

impl Config {
    /// As who the gateway asks.
    ///
    /// # Errors
    /// Returns an error, which names the field, if what a method needs is missing, or does not fit it.
    pub(super) fn clients(&self) -> Result<Clients, String> {
        let logs_in = !self.bearer_only;
        let asks = self.takes_tokens() && !self.verifies_signatures();
        let par = self.par.as_ref().filter(|par| par.enabled && logs_in);
        let dpop = self.dpop.as_ref().filter(|dpop| dpop.enabled);
        let dpop = dpop.map(bound_key).transpose()?.map(Arc::new);
        let client = |method, is_used: bool, dpop| {
            let assertion = if is_used { self.assertion(method)? } else { None };
            let (id, secret) = (self.client_id.clone(), self.client_secret.clone());
            Ok::<_, String>(Client { id, secret, method, assertion, dpop })
        };
        let own = self.token_endpoint_auth_method;
        let pusher = par.map(|par| client(par.endpoint_auth_method.unwrap_or(own), true, None));
        Ok(Clients {
            introspector: client(self.introspection_endpoint_auth_method, asks, None)?,
            tokens: client(own, logs_in, dpop)?,
            pusher: pusher.transpose()?,
        })
    }

    /// What a method signs with; None if it does not sign.
    fn assertion(&self, method: AuthMethod) -> Result<Option<Arc<Assertion>>, String> {
        let algorithm = self.client_jwt_assertion_alg.map(Algorithm::from);
        let unfit = |algorithm: Algorithm| {
            let (name, method) = (algorithm.name(), method.name());
            format!("client_jwt_assertion_alg: {name} does not go with {method}; leave it out")
        };
        let key = match method {
            AuthMethod::ClientSecretBasic | AuthMethod::ClientSecretPost => return Ok(None),
            AuthMethod::ClientSecretJwt => {
                let algorithm = algorithm.unwrap_or(Algorithm::Hs256);
                let secret = self.client_secret.as_ref().ok_or("property \"client_secret\" is required")?;
                SigningKey::secret(algorithm, secret.reveal().as_bytes()).ok_or_else(|| unfit(algorithm))?
            }
            AuthMethod::PrivateKeyJwt => {
                let algorithm = algorithm.unwrap_or(Algorithm::Rs256);
                if algorithm.shared().is_some() {
                    return Err(unfit(algorithm));
                }
                let pem = self.client_rsa_private_key.as_ref();
                let pem =
                    pem.ok_or("property \"client_rsa_private_key\" is required with private_key_jwt")?;
                SigningKey::of_pem(pem.reveal(), algorithm)
                    .map_err(|fault| format!("client_rsa_private_key: {fault}"))?
            }
        };
        Ok(Some(Arc::new(Assertion {
            key,
            key_id: self.client_rsa_private_key_id.clone().filter(|_| method == AuthMethod::PrivateKeyJwt),
            audience: self.client_jwt_assertion_audience.clone(),
            lives_s: self.client_jwt_assertion_expires_in,
        })))
    }
}

fn bound_key(config: &DpopConfig) -> Result<Dpop, String> {
    let required = |name: &str| format!("dpop: property \"{name}\" is required");
    let private_key = config.private_key.as_ref().ok_or_else(|| required("private_key"))?;
    let jwk = config.public_jwk.as_ref().ok_or_else(|| required("public_jwk"))?;
    Dpop::new(config.signing_alg.into(), private_key.reveal(), jwk)
}

/// Names that the library of APISIX has, and APISIX refuses: what it has in their place.
const FLAT: [(&str, &str); 7] = [
    ("use_par", "par.enabled"),
    ("pushed_authorization_request_endpoint", "par.endpoint"),
    ("pushed_authorization_request_endpoint_auth_method", "par.endpoint_auth_method"),
    ("use_dpop", "dpop.enabled"),
    ("dpop_signing_alg", "dpop.signing_alg"),
    ("dpop_private_key", "dpop.private_key"),
    ("dpop_public_jwk", "dpop.public_jwk"),
];

/// Everything but the schema.
///
/// # Errors
/// Returns an error, which is the whole reason, if the configuration is refused.
pub(super) fn check(conf: &Value) -> Result<(), String> {
    parsed::<Config>(conf)?.clients()?;
    match FLAT.iter().find(|(flat, _)| conf.get(flat).is_some()) {
        Some((flat, own)) => Err(format!("property \"{flat}\" is not allowed, use \"{own}\" instead")),
        None => Ok(()),
    }
}
