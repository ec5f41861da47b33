//! Who a request is from, and whether they may pass.
//!
//! Each authenticating plugin reads a credential out of the request and looks its owner up; what
//! happens then is the same for all of them and stands in [`policy`].

mod acl;
mod answers;
mod attach_consumer_label;
mod basic_auth;
mod cas;
mod casbin;
mod casdoor;
mod code_login;
mod consumer_restriction;
mod digest_auth;
pub(crate) mod form;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod hmac_auth;
mod jwe_decrypt;
mod jwt_auth;
mod key_auth;
mod keycloak;
pub(crate) mod label_values;
mod ldap_auth;
mod ldap_auth_advanced;
mod login_guard;
mod message_signatures;
mod multi_auth;
mod openid_connect;
mod origin;
mod pages;
mod pem;
mod policy;
mod saml;
mod seal;
mod session_cookie;
mod tokens;
mod upstream_auth;
mod used_once;
mod way_back;
mod wolf;

pub(crate) use acl::ACL;
pub(crate) use attach_consumer_label::ATTACH_CONSUMER_LABEL;
pub(crate) use basic_auth::BASIC_AUTH;
pub(crate) use cas::CAS_AUTH;
pub(crate) use casbin::AUTHZ_CASBIN;
pub(crate) use casdoor::AUTHZ_CASDOOR;
pub(crate) use code_login::{DINGTALK_AUTH, FEISHU_AUTH};
pub(crate) use consumer_restriction::CONSUMER_RESTRICTION;
pub(crate) use digest_auth::DIGEST_AUTH;
pub(crate) use hmac_auth::HMAC_AUTH;
pub(crate) use jwe_decrypt::JWE_DECRYPT;
pub(crate) use jwt_auth::JWT_AUTH;
pub(crate) use key_auth::KEY_AUTH;
pub(crate) use keycloak::AUTHZ_KEYCLOAK;
pub(crate) use ldap_auth::LDAP_AUTH;
pub(crate) use ldap_auth_advanced::LDAP_AUTH_ADVANCED;
pub(crate) use login_guard::LOGIN_GUARD;
pub(crate) use message_signatures::key::{PairAlgorithm, Signer};
pub(crate) use multi_auth::MULTI_AUTH;
pub(crate) use openid_connect::OPENID_CONNECT;
pub(crate) use saml::SAML_AUTH;
pub(crate) use upstream_auth::UPSTREAM_AUTH;
pub(crate) use wolf::WOLF_RBAC;

#[cfg(test)]
mod tests;
