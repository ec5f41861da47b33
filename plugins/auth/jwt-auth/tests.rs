//! Tokens of every algorithm, and those that must not pass.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512,
    RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaKeyPair,
};
use aws_lc_rs::{encoding::PublicKeyX509Der, hmac};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use sigma_plugin::{Consumer, Phase};
use sigma_schema::plugins::PluginScope;
use std::sync::Arc;

use crate::shared::tokens::signing::{Signer, set_of};
use crate::testing::{Beside, Case, entry, field, merged, refusal_in, summary, warned};

/// Signs with one algorithm.
type Sign<'s> = &'s dyn Fn(&[u8]) -> Vec<u8>;

fn token(header: &Value, claims: &Value, sign: Sign<'_>) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(header), part(claims));
    let signature = URL_SAFE_NO_PAD.encode(sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn hs(algorithm: hmac::Algorithm, secret: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(algorithm, secret), text).as_ref().to_vec()
}

/// A token of the user `user` with these claims besides.
fn hs256(mut claims: Value) -> String {
    if claims.get("key").is_none() {
        claims["key"] = json!("user");
    }
    token(&json!({"alg": "HS256"}), &claims, &|text| hs(hmac::HMAC_SHA256, b"secret", text))
}

/// A gateway with one consumer of this configuration, and an anonymous consumer.
fn knowing(conf: &Value) -> Case {
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    case.consumer("jack", "jwt-auth", conf);
    case.consumers.put(Arc::new(Consumer { name: "anyone".into(), ..Consumer::default() }));
    case
}

/// Returns the consumer of the request, or the response.
fn told(case: &mut Case, conf: &Value, request: &str) -> String {
    case.request(request);
    let entry = entry("jwt-auth", conf.clone()).unwrap();
    match case.run(&entry, Phase::Rewrite) {
        Some(reply) => {
            let challenge = field(&reply, "www-authenticate");
            assert_eq!(challenge.as_deref(), Some("Bearer realm=\"jwt\""));
            summary(Some(&reply))
        }
        None => case.sent("x-consumer-username").unwrap_or_default(),
    }
}

fn refused(message: &str) -> String {
    format!("401 {{\"message\":\"{message}\"}}")
}

fn pem(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let lines: Vec<&str> =
        body.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

fn spki<K: AsDer<PublicKeyX509Der<'static>>>(key: &K) -> String {
    pem("PUBLIC KEY", key.as_der().unwrap().as_ref())
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

/// A consumer with `key` takes the token that `sign` made with `algorithm`, and nothing else.
fn check_algorithm(algorithm: &str, key: (&str, &str), sign: Sign<'_>) {
    let mut conf = json!({"key": "user", "algorithm": algorithm});
    conf[key.0] = json!(key.1);
    let mut case = knowing(&conf);
    let mut check = |token: &str, expected: &str| {
        let request = format!("GET / HTTP/1.1\nHost: h\nAuthorization: Bearer {token}");
        assert_eq!(told(&mut case, &json!({}), &request), expected, "{algorithm} {token}");
    };
    let claims = json!({"key": "user"});
    let good = token(&json!({"alg": algorithm, "typ": "JWT"}), &claims, sign);
    check(&good, "jack");
    let failed = refused("failed to verify jwt");
    let (signed, signature) = good.rsplit_once('.').unwrap();
    check(&format!("{signed}."), &failed);
    check(&format!("{signed}.{}", &signature[..signature.len() - 4]), &failed);
    check(&format!("{signed}.AAAA{signature}"), &failed);
    check(&format!("{signed}.{}", "A".repeat(signature.len())), &failed);
    check(&token(&json!({"alg": "none"}), &claims, sign), &failed);
    check(&token(&json!({"alg": algorithm.to_lowercase() + "x"}), &claims, sign), &failed);
    check(&token(&json!({"alg": algorithm, "crit": ["x"], "x": 1}), &claims, sign), &failed);
    // A public key must never serve as a secret (RFC 8725 §2.1).
    let confused = |text: &[u8]| hs(hmac::HMAC_SHA256, key.1.as_bytes(), text);
    if algorithm != "HS256" {
        check(&token(&json!({"alg": "HS256"}), &claims, &confused), &failed);
        check(&token(&json!({"alg": algorithm}), &claims, &confused), &failed);
    }
}

#[test]
fn shared_secrets_verify() {
    for (name, algorithm) in
        [("HS256", hmac::HMAC_SHA256), ("HS384", hmac::HMAC_SHA384), ("HS512", hmac::HMAC_SHA512)]
    {
        check_algorithm(name, ("secret", "my secret"), &|text| hs(algorithm, b"my secret", text));
    }
    let mut case =
        knowing(&json!({"key": "user", "secret": STANDARD.encode("secret"), "base64_secret": true}));
    let request = format!("GET / HTTP/1.1\nHost: h\nAuthorization: {}", hs256(json!({})));
    assert_eq!(told(&mut case, &json!({}), &request), "jack");
}

#[test]
fn elliptic_keys_verify() {
    let random = SystemRandom::new();
    for (name, algorithm) in [
        ("ES256", &ECDSA_P256_SHA256_FIXED_SIGNING),
        ("ES384", &ECDSA_P384_SHA384_FIXED_SIGNING),
        ("ES512", &ECDSA_P521_SHA512_FIXED_SIGNING),
    ] {
        let pair = EcdsaKeyPair::generate(algorithm).unwrap();
        let sign = |text: &[u8]| pair.sign(&random, text).unwrap().as_ref().to_vec();
        check_algorithm(name, ("public_key", &spki(pair.public_key())), &sign);
    }
    let pair = Ed25519KeyPair::generate().unwrap();
    let sign = |text: &[u8]| pair.sign(text).as_ref().to_vec();
    check_algorithm("EdDSA", ("public_key", &spki(pair.public_key())), &sign);
}

#[test]
fn rsa_keys_verify() {
    let random = SystemRandom::new();
    let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let public = spki(pair.public_key());
    let pkcs1 = pem("RSA PUBLIC KEY", pair.public_key().as_ref());
    for (name, encoding) in [
        ("RS256", &RSA_PKCS1_SHA256 as &'static dyn aws_lc_rs::signature::RsaEncoding),
        ("RS384", &RSA_PKCS1_SHA384),
        ("RS512", &RSA_PKCS1_SHA512),
        ("PS256", &RSA_PSS_SHA256),
        ("PS384", &RSA_PSS_SHA384),
        ("PS512", &RSA_PSS_SHA512),
    ] {
        let sign = |text: &[u8]| {
            let mut signature = vec![0; pair.public_modulus_len()];
            pair.sign(encoding, &random, text, &mut signature).unwrap();
            signature
        };
        check_algorithm(name, ("public_key", &public), &sign);
        check_algorithm(name, ("public_key", &pkcs1), &sign);
    }
}

#[test]
fn claims_are_in_time() {
    let check = |consumer: Value, conf: Value, claims: Value, good: bool| {
        let mut known = json!({"key": "user", "secret": "secret"});
        known.as_object_mut().unwrap().extend(consumer.as_object().unwrap().clone());
        let request = format!("GET / HTTP/1.1\nHost: h\nAuthorization: {}", hs256(claims.clone()));
        let expected = if good { "jack".to_owned() } else { refused("failed to verify jwt") };
        assert_eq!(told(&mut knowing(&known), &conf, &request), expected, "{known} {conf} {claims}");
    };
    let plain = || json!({});
    check(plain(), plain(), json!({"exp": now() + 60, "nbf": now() - 60}), true);
    check(plain(), plain(), json!({"exp": now() as f64 + 60.5}), true);
    check(plain(), plain(), json!({"exp": now() - 60}), false);
    check(plain(), plain(), json!({"nbf": now() + 60}), false);
    for bad in [json!("1"), json!(null), json!([])] {
        check(plain(), plain(), json!({"exp": bad}), false);
        check(plain(), plain(), json!({"nbf": bad}), false);
    }
    let grace = || json!({"lifetime_grace_period": 100});
    check(grace(), plain(), json!({"exp": now() - 60, "nbf": now() + 60}), true);
    check(grace(), plain(), json!({"exp": now() - 160}), false);
    let listed = |names: &[&str]| json!({"claims_to_verify": names});
    check(plain(), listed(&[]), json!({"exp": now() - 60}), false);
    check(plain(), listed(&["exp"]), json!({}), false);
    check(plain(), listed(&["nbf"]), json!({}), false);
    check(plain(), listed(&["nbf"]), json!({"nbf": now() - 1, "exp": now() - 60}), true);
    check(plain(), listed(&["exp", "nbf"]), json!({"exp": now() + 60}), false);
}

#[test]
fn tokens_are_found_and_hidden() {
    let mut case = knowing(&json!({"key": "user", "secret": "secret"}));
    let token = hs256(json!({}));
    let mut check = |conf: Value, request: &str, expected: &str| {
        let request = request.replace("TOKEN", &token);
        assert_eq!(told(&mut case, &conf, &request), expected, "{conf} {request}");
        let gone = |text: Option<String>| text.map_or("-".into(), |text| text.replace(&token, "TOKEN"));
        let target = gone(Some(case.target()));
        format!("{target} {} {}", gone(case.sent("authorization")), gone(case.sent("cookie")))
    };
    let invalid = refused("JWT token invalid");
    check(json!({}), "GET / HTTP/1.1\nHost: h", &refused("Missing JWT token in request"));
    for value in ["TOKEN", "Bearer TOKEN", "bearer TOKEN", "BEARER   TOKEN"] {
        check(json!({}), &format!("GET / HTTP/1.1\nHost: h\nAuthorization: {value}"), "jack");
    }
    for value in ["Basic x", "", "a.b", "a.b.c.d", "e30.W10.x", "W10.e30.x", "e30=.e30.x"] {
        let request = format!("GET /?jwt=TOKEN HTTP/1.1\nHost: h\nAuthorization: {value}");
        check(json!({}), &request, &invalid);
    }
    check(json!({}), "GET /?jwt=TOKEN HTTP/1.1\nHost: h", "jack");
    check(json!({}), "GET /?jwt=TOKEN&jwt=TOKEN HTTP/1.1\nHost: h", &invalid);
    check(json!({}), "GET /?jwt HTTP/1.1\nHost: h", &invalid);
    check(json!({}), "GET / HTTP/1.1\nHost: h\nCookie: a=b; jwt=TOKEN", "jack");
    let own = json!({"header": "x-a", "query": "t", "cookie": "c"});
    check(own.clone(), "GET / HTTP/1.1\nHost: h\nX-A: TOKEN", "jack");
    check(own.clone(), "GET /?t=TOKEN HTTP/1.1\nHost: h", "jack");
    check(own, "GET / HTTP/1.1\nHost: h\nCookie: c=TOKEN", "jack");
    let hidden = || json!({"hide_credentials": true});
    let seen = check(hidden(), "GET /?jwt=TOKEN HTTP/1.1\nHost: h\nAuthorization: Bearer TOKEN", "jack");
    assert_eq!(seen, "/ - -");
    let seen = check(hidden(), "GET /a?x&jwt=TOKEN&y=1 HTTP/1.1\nHost: h", "jack");
    assert_eq!(seen, "/a?x&y=1 - -");
    let seen = check(hidden(), "GET / HTTP/1.1\nHost: h\nCookie: a=\"b/c\"; jwt=TOKEN;d=e", "jack");
    assert_eq!(seen, "/ - a=\"b/c\"; d=e");
    let anyone = json!({"hide_credentials": true, "anonymous_consumer": "anyone"});
    assert_eq!(check(anyone, "GET / HTTP/1.1\nHost: h\nCookie: jwt=x", "anyone"), "/ - -");
    // Values in the other places of tokens are tokens as well.
    let all = "GET /?jwt=TOKEN&a HTTP/1.1\nHost: h\nAuthorization: TOKEN\nCookie: jwt=TOKEN; b=c";
    assert_eq!(check(hidden(), all, "jack"), "/?a - b=c");
}

#[test]
fn the_key_claim_names_the_consumer() {
    let mut case = knowing(&json!({"key": "user", "secret": "secret"}));
    let mut check = |conf: Value, claims: Value, expected: &str| {
        let signed = token(&json!({"alg": "HS256"}), &claims, &|text| hs(hmac::HMAC_SHA256, b"secret", text));
        let request = format!("GET / HTTP/1.1\nHost: h\nAuthorization: Bearer {signed}");
        assert_eq!(told(&mut case, &conf, &request), expected, "{conf} {claims}");
    };
    check(json!({}), json!({}), &refused("missing user key in JWT token"));
    for claim in [json!("other"), json!(1), json!(null), json!(["user"])] {
        check(json!({}), json!({"key": claim}), &refused("Invalid user key in JWT token"));
    }
    let named = json!({"key_claim_name": "iss", "store_in_ctx": true});
    check(named, json!({"iss": "user", "n": 1}), "jack");
    let name = sigma_schema::expr::VarName::parse("jwt_auth_payload");
    let kept = sigma_schema::expr::Variables::get(&case.ctx, &name);
    assert!(format!("{kept:?}").contains("Text"), "{kept:?}");
}

#[test]
fn bad_consumers_are_refused() {
    let check = |conf: Value, expected: &str| {
        assert_eq!(refusal_in("jwt-auth", PluginScope::Consumer, &conf), expected, "{conf}");
    };
    check(json!({}), "property \"key\" is required");
    check(json!({"key": "a"}), "property \"secret\" is required when using HS based algorithms");
    check(
        json!({"key": "a", "secret": "a$", "base64_secret": true}),
        "base64_secret required but the secret is not in base64 format",
    );
    check(json!({"key": "a", "secret": "$secret://vault/1/a/b", "base64_secret": true}), "");
    let elliptic = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let elliptic = spki(elliptic.public_key());
    check(json!({"key": "a", "algorithm": "ES256", "public_key": elliptic}), "");
    for algorithm in ["RS256", "PS512", "ES384", "EdDSA"] {
        check(
            json!({"key": "a", "algorithm": algorithm}),
            "failed to validate dependent schema for \"algorithm\": \
            value should match only one schema, but matches none",
        );
        check(json!({"key": "a", "algorithm": algorithm, "public_key": "x"}), "missing valid public key");
        check(
            json!({"key": "a", "algorithm": algorithm, "public_key": elliptic}),
            "missing valid public key",
        );
        check(json!({"key": "a", "algorithm": algorithm, "public_key": "$env://K"}), "");
    }
    check(
        json!({"key": "a", "algorithm": "none"}),
        "property \"algorithm\" validation failed: matches none of the enum values",
    );
    let short = |algorithm: &str, allowed: bool| json!({"key": "a", "algorithm": algorithm, "public_key": SHORT_KEY, "allow_short_rsa_key": allowed});
    check(
        short("RS256", false),
        "missing valid public key: an RSA key needs 2048 to 8192 bits, but this one has 1024; `allow_short_rsa_key` allows 1024 or more",
    );
    check(short("RS256", true), "");
    assert_eq!(warned("jwt-auth", PluginScope::Consumer, &short("RS256", true)), ["public_key"]);
    check(short("RS512", true), "");
    check(
        short("PS256", true),
        "missing valid public key: an RSA key of 1024 bits can be used with RS256 and RS512 only",
    );
}

/// The public half of a key of 1024 bits.
const SHORT_KEY: &str = "-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQCppXn9nUOdWbARVPbpXRKIT//+
0QREynAorwJFvI4NHIZGcPVPkb37GdVJLJKwLzwp1iUzi+zwVX0+b7prc6wnh05V
R0hvYWnQafJg06LyantjSTS44xwwXYZG/DXmGn26uQpVsVHBXWC00kX+ggqYgiGM
Z4hhPjxTrUyR2YuGkQIDAQAB
-----END PUBLIC KEY-----";

/// Signed by that key: `{"alg":"RS256"}` and `{"key":"user"}`.
const SHORT_TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJrZXkiOiJ1c2VyIn0.\
    j7fZyMeFWll6lSgzmKTLwrpeAyGytysSaaUZi-I9aavMJW97fxIgiSwWM4cIwEz4SLkQdjOHFhx8rgvPvZF8f1HdZH\
    URpQCetS-zcWjjC3AQzdA70VkmlkbaDPZS3MzDUnF_-Q_8BcQUrkr9nr6s1J0-gilLZ0zAD9dZWDbh8p0";

#[test]
fn short_rsa_keys_verify_where_they_are_allowed() {
    let conf =
        json!({"key": "user", "algorithm": "RS256", "public_key": SHORT_KEY, "allow_short_rsa_key": true});
    let mut case = knowing(&conf);
    let request = |token: &str| format!("GET / HTTP/1.1\nHost: h\nAuthorization: Bearer {token}");
    assert_eq!(told(&mut case, &json!({}), &request(SHORT_TOKEN)), "jack");
    let (signed, signature) = SHORT_TOKEN.rsplit_once('.').unwrap();
    let forged = format!("{signed}.{}", sigma_testkit::damaged(signature, 2));
    assert_eq!(told(&mut case, &json!({}), &request(&forged)), refused("failed to verify jwt"));
}

#[test]
fn an_issuer_publishes_its_keys() {
    let (signer, evil) = (Signer::new("k", "ES256"), Signer::new("k", "ES256"));
    let set = set_of(&[&signer.jwk]);
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{set}", set.len());
    let origin = sigma_testkit::Origin::answer(move |_| answer.clone().into_bytes()).unwrap();
    let beside = Beside::new();
    let mut case = knowing(&json!({
        "key": "https://login.example", "algorithm": "ES256", "issuer": "https://login.example",
        "jwks_uri": format!("http://127.0.0.1:{}/keys", origin.port()), "jwks_timeout": 20
    }));
    case.node = Arc::clone(&beside.node);
    let conf = json!({"key_claim_name": "iss", "audience": ["shop"],
        "claims_to_headers": {"sub": "X-User", "roles": "X-Roles", "odd": "X-Odd", "none": "X-None"}});
    let mut check = |token: &str, expected: &str| {
        let lies = "X-User: root\nX-Roles: lies\nX-Odd: lies\nX-None: lies";
        let request = format!("GET / HTTP/1.1\nHost: h\n{lies}\nAuthorization: Bearer {token}");
        assert_eq!(told(&mut case, &conf, &request), expected, "{token}");
        ["x-user", "x-roles", "x-odd", "x-none"].map(|name| case.sent(name).unwrap_or_default())
    };
    let claims = |more: Value| {
        merged(
            json!({"iss": "https://login.example", "aud": "shop", "sub": "jill", "exp": now() + 60}),
            &more,
        )
    };
    let good = signer.token(&claims(json!({"roles": ["a", 1], "odd": "a\r\nX-User: root"})));
    for _ in 0..3 {
        assert_eq!(check(&good, "jack"), ["jill", "[\"a\",1]", "", ""]);
    }
    let failed = refused("failed to verify jwt");
    let nothing = ["", "", "", ""];
    assert_eq!(check(&evil.token(&claims(json!({}))), &failed), nothing);
    for wrong in
        [json!({"aud": "bank"}), json!({"aud": null}), json!({"exp": now() - 60}), json!({"nbf": now() + 60})]
    {
        assert_eq!(check(&signer.token(&claims(wrong)), &failed), nothing);
    }
    let other = signer.token(&claims(json!({"iss": "https://evil.example"})));
    assert_eq!(check(&other, &refused("Invalid user key in JWT token")), nothing);
    assert_eq!(origin.requests(), 1);
}

#[test]
fn the_issuer_of_a_consumer_is_compared() {
    let mut case = knowing(&json!({"key": "user", "secret": "secret", "issuer": "a"}));
    let mut check = |claims: Value, expected: &str| {
        let request = format!("GET / HTTP/1.1\nHost: h\nAuthorization: {}", hs256(claims));
        assert_eq!(told(&mut case, &json!({}), &request), expected);
    };
    check(json!({"iss": "a"}), "jack");
    for claims in [json!({"iss": "a/"}), json!({"iss": "A"}), json!({"iss": ["a"]}), json!({})] {
        check(claims, &refused("failed to verify jwt"));
    }
}

#[test]
fn invalid_issuers_are_refused() {
    let check = |more: Value, expected: &str| {
        let conf = merged(
            json!({"key": "a", "algorithm": "ES256", "jwks_uri": "https://login.example/keys"}),
            &more,
        );
        assert_eq!(refusal_in("jwt-auth", PluginScope::Consumer, &conf), expected, "{conf}");
        conf
    };
    let conf = check(json!({}), "");
    assert!(warned("jwt-auth", PluginScope::Consumer, &conf).is_empty());
    let conf = check(json!({"jwks_uri": "http://login.example", "jwks_ssl_verify": false}), "");
    assert_eq!(warned("jwt-auth", PluginScope::Consumer, &conf), ["jwks_uri", "jwks_ssl_verify"]);
    check(
        json!({"algorithm": "HS256"}),
        "jwks_uri: published keys are public; set `algorithm` to a public-key algorithm of the issuer, such as RS256 or ES256",
    );
    check(
        json!({"public_key": "x"}),
        "`public_key` has no effect together with `jwks_uri`: remove one of them",
    );
    check(json!({"secret": "x"}), "`secret` has no effect together with `jwks_uri`: remove one of them");
    for uri in ["file:///etc/passwd", "login.example", "https://a:b@login.example/"] {
        let conf = json!({"key": "a", "algorithm": "ES256", "jwks_uri": uri});
        assert_ne!(refusal_in("jwt-auth", PluginScope::Consumer, &conf), "", "{uri}");
    }
    let idle = json!({"key": "a", "secret": "s", "jwks_max_age": 60});
    let refusal = refusal_in("jwt-auth", PluginScope::Consumer, &idle);
    assert_eq!(refusal, "`jwks_max_age` has no effect without `jwks_uri`: remove it");
    let route =
        |fields: Value| refusal_in("jwt-auth", PluginScope::Http, &json!({"claims_to_headers": fields}));
    assert!(route(json!({"sub": "a b"})).contains("`a b` is not the name of a header field"));
    assert!(route(json!({"sub": "Host"})).contains("the gateway itself sets `Host`: remove it"));
    assert!(route(json!({"a": "X-A", "b": "x-a"})).contains("two claims set `x-a`"));
    assert_ne!(route(json!({})), "");
}

/// Another method may succeed where this one fails: the fields that it sets are not the client's then either.
#[test]
fn fields_of_claims_are_written_by_the_gateway_only() {
    let mut case = knowing(&json!({"key": "user", "secret": "secret"}));
    case.consumer("jill", "key-auth", &json!({"key": "jills"}));
    let conf =
        json!({"auth_plugins": [{"jwt-auth": {"claims_to_headers": {"sub": "X-User"}}}, {"key-auth": {}}]});
    let entry = entry("multi-auth", conf).unwrap();
    case.request("GET / HTTP/1.1\nHost: h\nX-User: root\nAuthorization: Bearer x\napikey: jills");
    assert!(case.run(&entry, Phase::Rewrite).is_none());
    assert_eq!((case.sent("x-consumer-username").as_deref(), case.sent("x-user")), (Some("jill"), None));
}

#[test]
fn tokens_without_an_end_are_warned_of_and_can_be_refused() {
    let check = |conf: Value, expected: &[&str]| {
        assert_eq!(warned("jwt-auth", PluginScope::Http, &conf), expected, "{conf}");
    };
    check(json!({}), &["require_exp"]);
    check(json!({"claims_to_verify": ["nbf"]}), &["require_exp"]);
    check(json!({"claims_to_verify": ["exp"]}), &[]);
    check(json!({"require_exp": true}), &[]);
}
