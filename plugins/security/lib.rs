//! Plugins that refuse requests, of any client.

#[path = "chaitin-waf/mod.rs"]
mod chaitin_waf;
mod cors;
mod csrf;
#[path = "ext-authz/mod.rs"]
mod ext_authz;
#[path = "forward-auth/mod.rs"]
mod forward_auth;
#[path = "ip-restriction/mod.rs"]
mod ip_restriction;
#[path = "oas-validator/mod.rs"]
mod oas_validator;
mod opa;
mod rbac;
#[path = "referer-restriction/mod.rs"]
mod referer_restriction;
#[path = "request-validation/mod.rs"]
mod request_validation;
mod shared;
#[path = "ua-restriction/mod.rs"]
mod ua_restriction;
#[path = "uri-blocker/mod.rs"]
mod uri_blocker;

/// Functions of the targets in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    pub use super::oas_validator::oas_validator;
    pub use crate::chaitin_waf::t1k::fuzzing::t1k;
}

use sigma_plugin::Descriptor;

#[cfg(test)]
#[path = "../testing.rs"]
mod testing;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[
    &chaitin_waf::CHAITIN_WAF,
    &cors::CORS,
    &csrf::CSRF,
    &ext_authz::EXT_AUTHZ,
    &forward_auth::FORWARD_AUTH,
    &ip_restriction::IP_RESTRICTION,
    &oas_validator::OAS_VALIDATOR,
    &opa::OPA,
    &rbac::RBAC,
    &referer_restriction::REFERER_RESTRICTION,
    &request_validation::REQUEST_VALIDATION,
    &ua_restriction::UA_RESTRICTION,
    &uri_blocker::URI_BLOCKER,
];
