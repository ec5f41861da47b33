//! Requests with tokens.

use std::sync::Arc;

use serde_json::{Value, json};
use sigma_plugin::Phase;
use sigma_schema::plugins::PluginScope;

use super::provider::Provider;
use super::{Browser, Gateway};
use crate::shared::tokens::signing::{Signer, hs256};
use crate::testing::Beside;

const LIES: &str =
    "X-Access-Token: lie\nX-Userinfo: lie\nX-ID-Token: lie\nX-Refresh-Token: lie\nX-Raw-ID-Token: lie\n";

const OWN: [&str; 5] = ["x-access-token", "x-userinfo", "x-id-token", "x-refresh-token", "x-raw-id-token"];

/// A request with this token.
fn with(browser: &mut Browser, gateway: &Gateway, token: &str) -> String {
    let seen = browser.ask(gateway, "GET /api", &format!("{LIES}Authorization: Bearer {token}\n"));
    match seen.status {
        0 => {
            assert_eq!(browser.told("x-access-token").as_deref(), Some(token));
            assert!(
                OWN[2..].iter().all(|name| browser.told(name).is_none()),
                "the client's fields reach the node"
            );
            "passed".to_owned()
        }
        status => {
            assert!(OWN.iter().all(|name| browser.told(name).is_none()));
            let reason = seen.challenge.split_once("error_description=").map_or("", |(_, reason)| reason);
            format!("{status} {}", if reason.is_empty() { &seen.body } else { reason })
        }
    }
}

fn bearer_only(more: Value) -> Value {
    let mut conf = json!({"bearer_only": true, "use_jwks": true, "session": null});
    conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    conf
}

#[test]
fn tokens_are_verified_by_the_providers_keys() {
    let (provider, beside) = (Provider::new(), Arc::new(Beside::new()));
    let gateway = Gateway::new(&provider, &beside, bearer_only(json!({})));
    let mut browser = Browser::new(&gateway);
    let mut check = |token: &str, expected: &str| assert_eq!(with(&mut browser, &gateway, token), expected);
    for _ in 0..3 {
        check(&provider.token(&json!({})), "passed");
    }
    check(&provider.token(&json!({"iss": "https://evil.example"})), "401 \"'iss' is another issuer\"");
    check(
        &provider.token(&json!({"iss": format!("{}/", provider.issuer())})),
        "401 \"'iss' is another issuer\"",
    );
    check(&provider.token(&json!({"iss": null})), "401 \"'iss' is another issuer\"");
    check(&provider.token(&json!({"exp": 1})), "401 \"'exp' claim expired\"");
    check(&provider.token(&json!({"exp": null})), "401 \"'exp' claim is missing\"");
    check(&provider.token(&json!({"nbf": 9_999_999_999u64})), "401 \"'nbf' claim is not reached yet\"");
    check(&provider.token(&json!({"iat": 9_999_999_999u64})), "401 \"'iat' claim is in the future\"");
    let claims = provider.claims(&json!({}));
    let evil = Signer::new("k", "ES256");
    check(&evil.token(&claims), "401 \"signature mismatch\"");
    check(&evil.token_with(&json!({"alg": "none"}), &claims), "401 \"algorithm mismatch\"");
    let jwk = provider.with(|inside| inside.signer.jwk.to_string());
    check(
        &hs256(jwk.as_bytes(), &json!({"alg": "HS256", "kid": "k"}), &claims),
        "401 \"algorithm mismatch\"",
    );
    check(
        &evil.token_with(&json!({"alg": "ES256", "kid": "other"}), &claims),
        "401 \"the issuer has no such key\"",
    );
    check("nonsense", "401 \"invalid jwt string\"");
    check("a.b.c", "401 \"invalid header\"");
    assert_eq!((provider.count("/keys"), provider.count("/.well-known")), (1, 1));
}

#[test]
fn invalid_tokens_are_answered() {
    let (provider, beside) = (Provider::new(), Arc::new(Beside::new()));
    let gateway = Gateway::new(&provider, &beside, bearer_only(json!({"realm": "here"})));
    let mut browser = Browser::new(&gateway);
    let mut check = |fields: &str, status: u16, challenge: &str| {
        let seen = browser.ask(&gateway, "GET /", fields);
        assert_eq!((seen.status, &*seen.challenge), (status, challenge), "{fields}");
    };
    check("", 401, "Bearer realm=\"here\"");
    check("Authorization: Basic eA==", 401, "Bearer realm=\"here\"");
    check("Authorization: Bearer", 400, "");
    check("Authorization: x", 400, "");
    let token = provider.token(&json!({}));
    check(&format!("Authorization: Bearer {token}\nAuthorization: Bearer x"), 400, "");
    check(&format!("Authorization: bEARER {token}"), 0, "");
    // A token in another field is nothing that was verified.
    let elsewhere =
        "Bearer realm=\"here\", error=\"invalid_token\", error_description=\"no token in Authorization\"";
    check(&format!("X-Access-Token: {token}"), 401, elsewhere);
    check(&format!("Cookie: session={token}"), 401, "Bearer realm=\"here\"");
}

#[test]
fn a_wrong_or_missing_provider_denies_every_request() {
    let (provider, beside) = (Provider::new(), Arc::new(Beside::new()));
    let unavailable = "401 \"issuer validation unavailable\"";
    provider.with(|inside| inside.document.insert("issuer".to_owned(), json!("https://evil.example")));
    let gateway = Gateway::new(&provider, &beside, bearer_only(json!({})));
    let token = provider.token(&json!({}));
    assert_eq!(with(&mut Browser::new(&gateway), &gateway, &token), unavailable);
    let token = provider.token(&json!({"iss": "https://evil.example"}));
    assert_eq!(with(&mut Browser::new(&gateway), &gateway, &token), unavailable);
    let nowhere = format!("http://127.0.0.1:{}/.well-known/openid-configuration", sigma_testkit::free_port());
    let gateway = Gateway::new(&provider, &beside, bearer_only(json!({"discovery": nowhere})));
    assert_eq!(with(&mut Browser::new(&gateway), &gateway, &token), unavailable);
}

#[test]
fn tokens_are_verified_by_a_key() {
    let (provider, beside) = (Provider::new(), Arc::new(Beside::new()));
    // The public half of a key that is not used here; and a document that is not fetched.
    let pem = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEADF2bRwq+wQ9XYBmfd9v3SvRCYok0IZ13WbYqn9e0nDg=\n-----END PUBLIC KEY-----";
    let conf = json!({
        "bearer_only": true, "session": null, "public_key": pem,
        "claim_validator": {"issuer": {"valid_issuers": ["https://issuer"]}},
    });
    let gateway = Gateway::new(&provider, &beside, conf);
    let mut browser = Browser::new(&gateway);
    let claims = provider.claims(&json!({"iss": "https://issuer"}));
    for signer in [Signer::new("k", "EdDSA"), Signer::new("k", "ES256")] {
        let expected = if signer.jwk["kty"] == "OKP" { "signature mismatch" } else { "algorithm mismatch" };
        assert_eq!(with(&mut browser, &gateway, &signer.token(&claims)), format!("401 \"{expected}\""));
    }
    let confused = hs256(pem.as_bytes(), &json!({"alg": "HS256"}), &claims);
    assert_eq!(with(&mut browser, &gateway, &confused), "401 \"algorithm mismatch\"");
    // Good, but too old to say when it ends.
    const SIGNED: &str = "eyJhbGciOiJFZERTQSIsImtpZCI6ImIifQ.eyJpc3MiOiJodHRwczovL2lzc3VlciIsInN1YiI6ImphY2siLCJhdWQiOlsic2hvcCJdfQ.F2lXobjPWmqjAv4c3Jwr4bsLLRpgoYREcSC2O59I0zG7cLtklPyIjZcRdVjSc41bvNEqiewhDS-tZA4LwLJ4Bw";
    assert_eq!(with(&mut browser, &gateway, SIGNED), "401 \"'exp' claim is missing\"");
    assert_eq!(provider.origin.requests(), 0);
}

/// The types that providers give access tokens (RFC 9068 §2.1).
#[test]
fn types_of_tokens() {
    let (provider, beside) = (Provider::new(), Arc::new(Beside::new()));
    let gateway = Gateway::new(&provider, &beside, bearer_only(json!({})));
    let claims = provider.claims(&json!({}));
    for typ in [json!("JWT"), json!("at+jwt"), json!("application/at+jwt"), json!("jwt"), json!(null)] {
        let head = json!({"alg": "ES256", "kid": "k", "typ": typ});
        let token = provider.with(|inside| inside.signer.token_with(&head, &claims));
        assert_eq!(with(&mut Browser::new(&gateway), &gateway, &token), "passed", "{head}");
    }
}

/// A key that the operator has needs no provider.
#[test]
fn a_key_alone_verifies_tokens() {
    let pem = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEADF2bRwq+wQ9XYBmfd9v3SvRCYok0IZ13WbYqn9e0nDg=\n-----END PUBLIC KEY-----";
    let conf = |more: Value| {
        let base = json!({"client_id": "shop", "bearer_only": true, "public_key": pem});
        let mut conf = crate::testing::merged(base, &more);
        conf.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        conf
    };
    let check = |more: Value, reason: &str, warns: bool| {
        let conf = conf(more);
        assert_eq!(crate::testing::refusal("openid-connect", &conf), reason, "{conf}");
        if reason.is_empty() {
            let warned = crate::testing::warned("openid-connect", PluginScope::Http, &conf);
            assert_eq!(warned.iter().any(|pointer| pointer == "issuer"), warns, "{conf}: {warned:?}");
            crate::testing::entry("openid-connect", conf).unwrap();
        }
    };
    check(json!({}), "", true);
    check(json!({"discovery": ""}), "", true);
    check(json!({"discovery": null}), "", true);
    check(json!({"issuer": "https://issuer"}), "", false);
    check(json!({"claim_validator": {"issuer": {"valid_issuers": ["https://issuer"]}}}), "", false);
    check(json!({"discovery": "https://issuer/.well-known/openid-configuration"}), "", false);
    let required = "property \"discovery\" is required";
    check(json!({"public_key": null, "use_jwks": true}), required, false);
    check(
        json!({"public_key": null, "client_secret": "s", "introspection_endpoint": "https://i/"}),
        required,
        false,
    );
    check(
        json!({"bearer_only": false, "client_secret": "s", "session": {"secret": "0123456789abcdef"}}),
        required,
        false,
    );
    // The key has signed this one, which is too old to say when it ends.
    const SIGNED: &str = "eyJhbGciOiJFZERTQSIsImtpZCI6ImIifQ.eyJpc3MiOiJodHRwczovL2lzc3VlciIsInN1YiI6ImphY2siLCJhdWQiOlsic2hvcCJdfQ.F2lXobjPWmqjAv4c3Jwr4bsLLRpgoYREcSC2O59I0zG7cLtklPyIjZcRdVjSc41bvNEqiewhDS-tZA4LwLJ4Bw";
    for (more, told) in [
        (json!({}), "'exp' claim is missing"),
        (json!({"issuer": "https://issuer"}), "'exp' claim is missing"),
        (json!({"issuer": "https://other"}), "'iss' is another issuer"),
    ] {
        let entry = crate::testing::entry("openid-connect", conf(more.clone())).unwrap();
        let mut case =
            crate::testing::Case::new(&format!("GET / HTTP/1.1\nHost: h\nAuthorization: Bearer {SIGNED}"));
        let reply = case.run(&entry, Phase::Rewrite).unwrap();
        assert!(crate::testing::field(&reply, "WWW-Authenticate").unwrap().contains(told), "{more}");
    }
}

#[test]
fn claims_are_demanded() {
    let (provider, beside) = (Provider::new(), Arc::new(Beside::new()));
    let check = |conf: Value, claims: Value, expected: &str| {
        let gateway = Gateway::new(&provider, &beside, bearer_only(conf.clone()));
        let token = provider.token(&claims);
        assert_eq!(with(&mut Browser::new(&gateway), &gateway, &token), expected, "{conf} {claims}");
    };
    let scopes = || json!({"required_scopes": ["read", "write"]});
    check(scopes(), json!({"scope": "write other read"}), "passed");
    check(scopes(), json!({"scope": ["read", "write"]}), "passed");
    let missing = r#"403 {"error":"required scopes read, write not present"}"#;
    for scope in [json!("read"), json!("readwrite"), json!("READ WRITE"), json!(null), json!(7)] {
        check(scopes(), json!({"scope": scope}), missing);
    }
    // Entra ID has one text, Okta a list, both by another name.
    check(scopes(), json!({"scp": "write read"}), "passed");
    check(scopes(), json!({"scp": ["read", "write", "x"]}), "passed");
    check(scopes(), json!({"scp": ["read"]}), missing);
    check(scopes(), json!({"scope": "read", "scp": "read write"}), missing);
    let audience = |more: Value| json!({"claim_validator": {"audience": more}});
    let absent = r#"403 {"error":"required audience claim not present"}"#;
    let mismatched = r#"403 {"error":"mismatched audience"}"#;
    check(audience(json!({"required": true})), json!({"aud": null}), absent);
    check(audience(json!({"required": true})), json!({"aud": "bank"}), "passed");
    let own = || audience(json!({"match_with_client_id": true}));
    check(own(), json!({"aud": ["bank", "shop"]}), "passed");
    check(own(), json!({"aud": ["bank"]}), mismatched);
    check(own(), json!({"aud": "shop bank"}), mismatched);
    check(own(), json!({"aud": {"shop": 1}}), mismatched);
    check(own(), json!({"aud": null}), absent);
    let azp = audience(json!({"claim": "azp", "match_with_client_id": true}));
    check(azp, json!({"azp": "other"}), mismatched);
    // Access tokens of Cognito have no `aud`.
    let cognito = || audience(json!({"claim": "client_id", "match_with_client_id": true, "required": true}));
    let of = |client: &str| json!({"aud": null, "client_id": client, "token_use": "access", "version": 2});
    check(cognito(), of("shop"), "passed");
    check(cognito(), of("bank"), mismatched);
    check(own(), of("shop"), absent);
    let schema =
        || json!({"claim_schema": {"required": ["email"], "properties": {"email": {"type": "string"}}}});
    check(schema(), json!({"email": "a@b"}), "passed");
    check(
        schema(),
        json!({"email": 7}),
        "401 \"property 'email' validation failed: wrong type: expected string, got number\"",
    );
    check(schema(), json!({}), "401 \"property 'email' is required\"");
    let issuers = json!({"claim_validator": {"issuer": {"valid_issuers": ["https://a", "https://b"]}}});
    check(issuers.clone(), json!({"iss": "https://b"}), "passed");
    check(issuers, json!({}), "401 \"'iss' is another issuer\"");
    check(json!({"token_signing_alg_values_expected": "RS256"}), json!({}), "401 \"algorithm mismatch\"");
}

#[test]
fn the_provider_is_asked_about_tokens() {
    let (provider, beside) = (Provider::new(), Arc::new(Beside::new()));
    let conf = json!({"bearer_only": true, "session": null, "introspection_addon_headers": ["X-Tenant"],
        "introspection_endpoint_auth_method": "client_secret_post"});
    let gateway = Gateway::new(&provider, &beside, conf);
    let mut browser = Browser::new(&gateway);
    let mut check = |token: &str, expected: &str, asked: usize| {
        assert_eq!(with(&mut browser, &gateway, token), expected);
        assert_eq!(provider.count("/introspect"), asked, "{token}");
    };
    check("opaque", "401 \"the token is not active\"", 1);
    check("opaque", "401 \"the token is not active\"", 2);
    let say = |answer: Value| provider.with(|inside| inside.introspection = answer);
    for lie in [json!({"active": "true"}), json!({"active": 1}), json!({}), json!({"error": "x"})] {
        say(lie);
        check("lie", "401 \"the token is not active\"", provider.count("/introspect") + 1);
    }
    // As long as it is good it is not asked about again; without an end it is.
    say(json!({"active": true, "sub": "jack"}));
    check("endless", "passed", 7);
    check("endless", "passed", 8);
    say(json!({"active": true, "sub": "jack", "exp": 9_999_999_999u64}));
    check("good", "passed", 9);
    check("good", "passed", 9);
    say(json!({"active": false}));
    check("good", "passed", 9);
    check("other", "401 \"the token is not active\"", 10);
    // Parameters that go along with the question are part of the key.
    let seen = browser.ask(&gateway, "GET /", "Authorization: Bearer good\nX-Tenant: b\n");
    assert_eq!((seen.status, provider.count("/introspect")), (401, 11));
    // Another client does not share the result of this one.
    let other =
        Gateway::new(&provider, &beside, json!({"bearer_only": true, "session": null, "client_id": "bank"}));
    assert_ne!(with(&mut Browser::new(&other), &other, "good"), "passed");
    say(json!([]));
    assert_eq!(with(&mut browser, &gateway, "new"), "401 \"the provider does not respond\"");
}
