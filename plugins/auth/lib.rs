//! Plugins of authentication and authorization.
//!
//! Each authenticating plugin reads a credential from the request and looks up its owner. The rest is the same for all of
//! them and is in [`shared::policy`].

mod acl;
#[path = "attach-consumer-label/mod.rs"]
mod attach_consumer_label;
#[path = "authz-casbin/mod.rs"]
mod authz_casbin;
#[path = "authz-casdoor/mod.rs"]
mod authz_casdoor;
#[path = "authz-keycloak/mod.rs"]
mod authz_keycloak;
#[path = "basic-auth/mod.rs"]
mod basic_auth;
#[path = "cas-auth/mod.rs"]
mod cas_auth;
#[path = "consumer-restriction/mod.rs"]
mod consumer_restriction;
#[path = "digest-auth/mod.rs"]
mod digest_auth;
#[path = "dingtalk-auth/mod.rs"]
mod dingtalk_auth;
#[path = "feishu-auth/mod.rs"]
mod feishu_auth;
#[path = "hmac-auth/mod.rs"]
mod hmac_auth;
#[path = "jwe-decrypt/mod.rs"]
mod jwe_decrypt;
#[path = "jwt-auth/mod.rs"]
mod jwt_auth;
#[path = "key-auth/mod.rs"]
mod key_auth;
#[path = "ldap-auth/mod.rs"]
mod ldap_auth;
#[path = "ldap-auth-advanced/mod.rs"]
mod ldap_auth_advanced;
#[path = "login-guard/mod.rs"]
mod login_guard;
#[path = "multi-auth/mod.rs"]
mod multi_auth;
#[path = "oauth2-login/mod.rs"]
mod oauth2_login;
#[path = "openid-connect/mod.rs"]
mod openid_connect;
#[path = "saml-auth/mod.rs"]
mod saml_auth;
mod shared;
#[path = "upstream-auth/mod.rs"]
mod upstream_auth;
#[path = "wolf-rbac/mod.rs"]
mod wolf_rbac;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

#[cfg(test)]
mod tests;

use sigma_plugin::Descriptor;

#[cfg(test)]
#[path = "../testing.rs"]
mod testing;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[
    &acl::ACL,
    &attach_consumer_label::ATTACH_CONSUMER_LABEL,
    &authz_casbin::AUTHZ_CASBIN,
    &authz_casdoor::AUTHZ_CASDOOR,
    &authz_keycloak::AUTHZ_KEYCLOAK,
    &basic_auth::BASIC_AUTH,
    &cas_auth::CAS_AUTH,
    &consumer_restriction::CONSUMER_RESTRICTION,
    &digest_auth::DIGEST_AUTH,
    &dingtalk_auth::DINGTALK_AUTH,
    &feishu_auth::FEISHU_AUTH,
    &hmac_auth::HMAC_AUTH,
    &jwe_decrypt::JWE_DECRYPT,
    &jwt_auth::JWT_AUTH,
    &key_auth::KEY_AUTH,
    &ldap_auth::LDAP_AUTH,
    &ldap_auth_advanced::LDAP_AUTH_ADVANCED,
    &login_guard::LOGIN_GUARD,
    &multi_auth::MULTI_AUTH,
    &oauth2_login::OAUTH2_LOGIN,
    &openid_connect::OPENID_CONNECT,
    &saml_auth::SAML_AUTH,
    &upstream_auth::UPSTREAM_AUTH,
    &wolf_rbac::WOLF_RBAC,
];
