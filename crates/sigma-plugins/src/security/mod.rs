//! Which requests are let in at all, whoever sends them.

mod chaitin_waf;
mod cors;
mod csrf;
mod ext_authz;
mod forward_auth;
mod inquiry;
mod ip_restriction;
mod oas_validator;
mod opa;
mod person;
mod rbac;
mod referer_restriction;
mod refusal;
mod request_validation;
mod ua_restriction;
mod uri_blocker;

pub(crate) use chaitin_waf::CHAITIN_WAF;
pub(crate) use cors::{Asked, CORS};
pub(crate) use csrf::CSRF;
pub(crate) use ext_authz::EXT_AUTHZ;
pub(crate) use forward_auth::FORWARD_AUTH;
pub(crate) use ip_restriction::IP_RESTRICTION;
pub(crate) use oas_validator::OAS_VALIDATOR;
pub(crate) use opa::OPA;
pub(crate) use rbac::RBAC;
pub(crate) use referer_restriction::REFERER_RESTRICTION;
pub(crate) use request_validation::REQUEST_VALIDATION;
pub(crate) use ua_restriction::UA_RESTRICTION;
pub(crate) use uri_blocker::URI_BLOCKER;

/// What must hold of requests, whatever their sender writes.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    pub use super::oas_validator::oas_validator;
}
