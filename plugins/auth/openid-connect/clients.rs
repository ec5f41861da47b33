//! As who the gateway asks, by its configuration; and whether that is possible.

use std::sync::Arc;

use serde_json::Value;
use sigma_plugin::descriptor::parsed;

use super::client::{Assertion, Client};
use super::client_config::{AuthMethod, DpopConfig, ParConfig};
use super::config::Config;
use super::dpop::Dpop;
use crate::shared::tokens::{Algorithm, SigningKey};

/// The field with the method at the endpoint for pushed requests.
const OF_PAR: &str = "par.endpoint_auth_method";

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
    /// Returns an error, which names the field, if a setting that a method needs is missing or does not fit
    /// it.
    pub(super) fn clients(&self) -> Result<Clients, String> {
        let logs_in = !self.bearer_only;
        let asks = self.takes_tokens() && !self.verifies_signatures();
        let par = self.par.as_ref().filter(|par| par.enabled && logs_in);
        let dpop = self.dpop.as_ref().filter(|dpop| dpop.enabled);
        let dpop = dpop.map(bound_key).transpose()?.map(Arc::new);
        let client = |(method, field), is_used: bool, dpop| {
            let assertion = if is_used { self.assertion(method, field)? } else { None };
            let (id, secret) = (self.client_id.clone(), self.client_secret.clone());
            Ok::<_, String>(Client { id, secret, method, assertion, dpop })
        };
        let own = (self.token_endpoint_auth_method, "token_endpoint_auth_method");
        let introspection = (self.introspection_endpoint_auth_method, "introspection_endpoint_auth_method");
        let pushing = |par: &ParConfig| par.endpoint_auth_method.map_or(own, |method| (method, OF_PAR));
        let pusher = par.map(|par| client(pushing(par), true, None));
        Ok(Clients {
            introspector: client(introspection, asks, None)?,
            tokens: client(own, logs_in, dpop)?,
            pusher: pusher.transpose()?,
        })
    }

    /// Returns the signer of a method, which `field` names; None if it does not sign. Errors are in APISIX's
    /// words.
    fn assertion(&self, method: AuthMethod, field: &str) -> Result<Option<Arc<Assertion>>, String> {
        let algorithm = self.client_jwt_assertion_alg.map(Algorithm::from);
        let unfit = |algorithm: Algorithm| {
            let (name, method) = (algorithm.name(), method.name());
            let kind = if algorithm.shared().is_some() { "symmetric" } else { "asymmetric" };
            format!(
                "property \"client_jwt_assertion_alg\" \"{name}\" is {kind} and cannot be used with the {method} \
                selected by \"{field}\""
            )
        };
        let missing = |needed: &str, otherwise: &str| match field {
            OF_PAR => {
                let method = method.name();
                format!(
                    "property \"{field}\" \"{method}\" requires \"{needed}\" when \"par.enabled\" is true"
                )
            }
            _ => format!("property \"{needed}\" is required{otherwise}"),
        };
        let key = match method {
            AuthMethod::ClientSecretBasic | AuthMethod::ClientSecretPost => return Ok(None),
            AuthMethod::ClientSecretJwt => {
                let algorithm = algorithm.unwrap_or(Algorithm::Hs256);
                let secret = self.client_secret.as_ref().ok_or_else(|| missing("client_secret", ""))?;
                SigningKey::secret(algorithm, secret.reveal().as_bytes()).ok_or_else(|| unfit(algorithm))?
            }
            AuthMethod::PrivateKeyJwt => {
                let algorithm = algorithm.unwrap_or(Algorithm::Rs256);
                if algorithm.shared().is_some() {
                    return Err(unfit(algorithm));
                }
                let pem = self.client_rsa_private_key.as_ref();
                let pem = pem.ok_or_else(|| missing("client_rsa_private_key", " with private_key_jwt"))?;
                SigningKey::of_pem(pem.reveal(), algorithm)
                    .map_err(|fault| unfit_key(pem.reveal(), algorithm, &fault))?
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

/// Why a private key is refused, with which `fault` for the algorithm.
fn unfit_key(pem: &str, algorithm: Algorithm, fault: &str) -> String {
    let fits = |other: Algorithm| SigningKey::of_pem(pem, other).is_ok();
    let is_of_other_type = match algorithm.key_type() {
        "EC" => fits(Algorithm::Rs256),
        _ => fits(Algorithm::Es256) || fits(Algorithm::Es512),
    };
    if is_of_other_type {
        let (name, needed) = (algorithm.name(), algorithm.key_type());
        return format!(
            "property \"client_jwt_assertion_alg\" \"{name}\" requires an {needed} \"client_rsa_private_key\""
        );
    }
    format!("property \"client_rsa_private_key\" is not a valid key ({fault})")
}

fn bound_key(config: &DpopConfig) -> Result<Dpop, String> {
    let required = |name: &str| format!("dpop: property \"{name}\" is required");
    let private_key = config.private_key.as_ref().ok_or_else(|| required("private_key"))?;
    let jwk = config.public_jwk.as_ref().ok_or_else(|| required("public_jwk"))?;
    Dpop::new(config.signing_alg.into(), private_key.reveal(), jwk)
}

/// Names that the library of APISIX has, and APISIX refuses: the fields that replace them.
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
