//! Tests of authz-keycloak: valid configurations, and results of Keycloak's responses.

use serde_json::{Value, json};
use sigma_schema::plugins::PluginScope;

use super::*;
use crate::testing::{Case, assert_refusal, entry, merged, summary, warned};

const NAME: &str = "authz-keycloak";

#[test]
fn configurations() {
    let check = |conf: Value, expected: &str| {
        assert_refusal(NAME, &conf, expected);
    };
    let with =
        |more: Value| merged(json!({"client_id": "shop", "token_endpoint": "https://kc/token"}), &more);
    check(with(json!({})), "");
    check(json!({"client_id": "shop", "discovery": "https://kc/uma", "lazy_load_paths": true}), "");
    check(json!({"token_endpoint": "https://kc/token"}), "property \"client_id\" is required");
    check(
        json!({"client_id": "shop"}),
        "object matches none of the required: [\"discovery\"] or [\"token_endpoint\"]",
    );
    check(with(json!({"lazy_load_paths": true})), "[\"discovery\"] or [\"resource_registration_endpoint\"]");
    check(with(json!({"grant_type": "password"})), "matches none of the enum values");
    check(with(json!({"policy_enforcement_mode": "DISABLED"})), "matches none of the enum values");
    check(with(json!({"timeout": 999})), "expected 999 to be at least 1000");
    check(with(json!({"permissions": ["a", "a"]})), "expected unique items");
    check(with(json!({"permissions": [""]})), "string too short");
    check(with(json!({"discovery": "kc"})), "has no scheme");
}

#[test]
fn warnings_name_the_place() {
    let conf = json!({
        "client_id": "shop", "token_endpoint": "http://kc/token", "discovery": "https://kc/uma",
        "ssl_verify": false, "refresh_token_expires_in": 5
    });
    let places = ["token_endpoint", "ssl_verify", "refresh_token_expires_in"];
    assert_eq!(warned(NAME, PluginScope::Http, &conf), places);
}

#[test]
fn credentials_are_one() {
    let check = |fields: &str, expected: Option<&str>| {
        let case = Case::new(&format!("GET / HTTP/1.1\nHost: h\n{fields}"));
        let sent = credentials(&case.ctx).map(|sent| String::from_utf8(sent).unwrap());
        assert_eq!(sent.as_deref(), expected, "{fields}");
    };
    check("Authorization: Bearer a", Some("Bearer a"));
    check("Authorization: bearer a", Some("bearer a"));
    check("Authorization: BEARER  a", Some("BEARER  a"));
    check("Authorization: a", Some("Bearer a"));
    check("Authorization:", None);
    check("", None);
    check("Authorization: Bearer a\nAuthorization: Bearer b", None);
}

#[test]
fn only_a_clear_grant_is_one() {
    let check = |body: &str, expected: bool| assert_eq!(is_grant(body.as_bytes()), expected, "{body}");
    check(r#"{"result":true}"#, true);
    check(r#"{"result":true,"more":1}"#, true);
    for refused in [
        r#"{"result":false}"#,
        r#"{"result":"true"}"#,
        r#"{"result":false,"result":true}"#,
        "[true]",
        "{}",
        "",
    ] {
        check(refused, false);
    }
}

#[test]
fn without_a_service_requests_are_denied() {
    let check = |more: Value, head: &str, expected: &str| {
        let mut conf =
            json!({"client_id": "shop", "token_endpoint": "https://kc/token", "permissions": ["a"]});
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let entry = entry(NAME, conf).unwrap();
        let reply = Case::new(head).run(&entry, Phase::Access);
        let told = summary(reply.as_ref());
        match expected.strip_suffix('~') {
            Some(beginning) => assert!(told.starts_with(beginning), "{more} {head}: {told}"),
            None => assert_eq!(told, expected, "{more} {head}"),
        }
    };
    let plain = "GET / HTTP/1.1\nHost: h\nAuthorization: Bearer a";
    check(json!({}), "GET / HTTP/1.1\nHost: h", r#"401 {"message":"Missing JWT token in request"}"#);
    check(json!({}), plain, "503");
    let denied = r#"403 {"error":"access_denied","error_description":"not_authorized"}"#;
    check(json!({"permissions": []}), plain, denied);
    check(json!({"permissions": [], "policy_enforcement_mode": "PERMISSIVE"}), plain, "503");
    check(json!({"permissions": [], "access_denied_redirect_uri": "https://shop/denied"}), plain, "307");
    let discovered = json!({"lazy_load_paths": true, "resource_registration_endpoint": "https://kc/r"});
    check(discovered, plain, "503 no token for the gateway's own account: ~");
    let odd = "GET#PUT / HTTP/1.1\nHost: h\nAuthorization: Bearer a";
    check(json!({"http_method_as_scope": true}), odd, "403");
}
