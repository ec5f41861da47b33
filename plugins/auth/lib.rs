//! Plugins of authentication and authorization.
//!
//! Each authenticating plugin reads a credential from the request and looks up its owner. The rest is the same for all of
//! them and is in [`policy`].

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
mod form;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod hmac_auth;
mod jwe_decrypt;
mod jwt_auth;
mod key_auth;
mod keycloak;
mod ldap_auth;
mod ldap_auth_advanced;
mod login_guard;
mod message_signatures;
mod multi_auth;
mod oauth2_login;
mod openid_connect;
mod origin;
mod pages;
mod policy;
mod saml;
mod seal;
mod session_cookie;
mod tokens;
mod upstream_auth;
mod used_once;
mod way_back;
mod wolf;

use acl::ACL;
use attach_consumer_label::ATTACH_CONSUMER_LABEL;
use basic_auth::BASIC_AUTH;
use cas::CAS_AUTH;
use casbin::AUTHZ_CASBIN;
use casdoor::AUTHZ_CASDOOR;
use code_login::{DINGTALK_AUTH, FEISHU_AUTH};
use consumer_restriction::CONSUMER_RESTRICTION;
use digest_auth::DIGEST_AUTH;
use hmac_auth::HMAC_AUTH;
use jwe_decrypt::JWE_DECRYPT;
use jwt_auth::JWT_AUTH;
use key_auth::KEY_AUTH;
use keycloak::AUTHZ_KEYCLOAK;
use ldap_auth::LDAP_AUTH;
use ldap_auth_advanced::LDAP_AUTH_ADVANCED;
use login_guard::LOGIN_GUARD;
use multi_auth::MULTI_AUTH;
use oauth2_login::OAUTH2_LOGIN;
use openid_connect::OPENID_CONNECT;
use saml::SAML_AUTH;
use upstream_auth::UPSTREAM_AUTH;
use wolf::WOLF_RBAC;

#[cfg(test)]
mod tests;

use sigma_plugin::Descriptor;

#[cfg(test)]
#[path = "../testing.rs"]
mod testing;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[
    &ACL,
    &ATTACH_CONSUMER_LABEL,
    &AUTHZ_CASBIN,
    &AUTHZ_CASDOOR,
    &AUTHZ_KEYCLOAK,
    &BASIC_AUTH,
    &CAS_AUTH,
    &CONSUMER_RESTRICTION,
    &DIGEST_AUTH,
    &DINGTALK_AUTH,
    &FEISHU_AUTH,
    &HMAC_AUTH,
    &JWE_DECRYPT,
    &JWT_AUTH,
    &KEY_AUTH,
    &LDAP_AUTH,
    &LDAP_AUTH_ADVANCED,
    &LOGIN_GUARD,
    &MULTI_AUTH,
    &OAUTH2_LOGIN,
    &OPENID_CONNECT,
    &SAML_AUTH,
    &UPSTREAM_AUTH,
    &WOLF_RBAC,
];
