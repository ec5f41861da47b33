//! Plugins that refuse requests, of any client.

mod chaitin_waf;
mod cors;
mod csrf;
mod ext_authz;
mod forward_auth;
mod inquiry;
mod ip_restriction;
mod oas_validator;
mod opa;
mod rbac;
mod referer_restriction;
mod refusal;
mod request_validation;
mod t1k;
mod ua_restriction;
mod uri_blocker;
mod user_digest;

use chaitin_waf::CHAITIN_WAF;
use cors::CORS;
use csrf::CSRF;
use ext_authz::EXT_AUTHZ;
use forward_auth::FORWARD_AUTH;
use ip_restriction::IP_RESTRICTION;
use oas_validator::OAS_VALIDATOR;
use opa::OPA;
use rbac::RBAC;
use referer_restriction::REFERER_RESTRICTION;
use request_validation::REQUEST_VALIDATION;
use ua_restriction::UA_RESTRICTION;
use uri_blocker::URI_BLOCKER;

/// Functions of the targets in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    pub use super::oas_validator::oas_validator;
    pub use super::t1k::fuzzing::t1k;
}

use sigma_plugin::Descriptor;

#[cfg(test)]
#[path = "../testing.rs"]
mod testing;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[
    &CHAITIN_WAF,
    &CORS,
    &CSRF,
    &EXT_AUTHZ,
    &FORWARD_AUTH,
    &IP_RESTRICTION,
    &OAS_VALIDATOR,
    &OPA,
    &RBAC,
    &REFERER_RESTRICTION,
    &REQUEST_VALIDATION,
    &UA_RESTRICTION,
    &URI_BLOCKER,
];
