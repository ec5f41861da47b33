//! Browsers that log in, and what those who attack them try.

use std::sync::Arc;

use serde_json::{Value, json};
use sigma_testkit::Redis;

use super::provider::{Provider, arguments};
use super::{Browser, Gateway};
use crate::shared::tokens::signing::{P256, P256_PUBLIC, RSA, RSA_PUBLIC, Signer, hs256, p256_jwk};
use crate::shared::tokens::{Algorithm, Key};
use crate::testing::Beside;

fn world(more: Value) -> (Provider, Gateway) {
    let (provider, beside) = (Provider::new(), Arc::new(Beside::new()));
    let gateway = Gateway::new(&provider, &beside, more);
    (provider, gateway)
}

#[test]
fn a_browser_logs_in() {
    let (provider, gateway) =
        world(json!({"use_pkce": true, "use_nonce": true, "set_raw_id_token_header": true,
        "set_refresh_token_header": true, "authorization_params": {"ui_locales": "de fr"}}));
    let mut browser = Browser::new(&gateway);
    let sent = browser.get(&gateway, "/orders?a=%31&b");
    assert_eq!(sent.status, 302);
    let asked = arguments(sent.location.split_once('?').unwrap().1);
    assert_eq!(asked["redirect_uri"], "http://shop.example:8443/orders/.apisix/redirect");
    assert_eq!((&*asked["scope"], &*asked["code_challenge_method"]), ("openid", "S256"));
    assert_eq!(asked["ui_locales"], "de fr");
    assert!(asked["state"].len() >= 32 && asked["nonce"].len() >= 32 && asked["state"] != asked["nonce"]);
    assert_eq!(browser.attributes, [" Path=/; HttpOnly; SameSite=Lax"]);
    let back = provider.agree(&sent.location, json!({"name": "Jack"}));
    let returned = browser.get(&gateway, &back);
    assert_eq!((returned.status, &*returned.location), (302, "/orders?a=%31&b"));
    assert_eq!(browser.cookies.keys().collect::<Vec<_>>(), ["session"], "the login is forgotten");
    browser.cookies.insert("own".to_owned(), "1".to_owned());
    let lies = "X-Access-Token: lie\nX-Userinfo: lie\nX-ID-Token: lie\nX-Refresh-Token: lie\n";
    assert_eq!(browser.ask(&gateway, "GET /orders", lies).status, 0);
    assert_eq!(browser.told_json("x-userinfo"), json!({"sub": "jack", "email": "jack@example"}));
    assert_eq!(browser.told_json("x-id-token")["name"], "Jack");
    assert!(browser.told("x-access-token").unwrap().starts_with("access-"));
    assert!(browser.told("x-refresh-token").unwrap().starts_with("refresh-"));
    assert_eq!(browser.told("x-raw-id-token").unwrap().split('.').count(), 3);
    assert_eq!(browser.told("cookie").as_deref(), Some("own=1"), "the node gets the session");
    assert_eq!((provider.count("/token"), provider.count("/user"), provider.count("/keys")), (1, 1, 1));
}

#[test]
fn a_callback_is_of_one_browser_and_one_login() {
    let (provider, gateway) = world(json!({}));
    let (mut jack, mut mallory) = (Browser::new(&gateway), Browser::new(&gateway));
    // Mallory has a code of her own, and sends Jack to the callback with it.
    let sent = mallory.get(&gateway, "/");
    let planted = provider.agree(&sent.location, json!({"sub": "mallory"}));
    assert_eq!(jack.get(&gateway, &planted).status, 400);
    let own = jack.get(&gateway, "/");
    assert_eq!(jack.get(&gateway, &planted).status, 400);
    let back = provider.agree(&own.location, json!({}));
    let state = |text: &str| text.split_once("state=").unwrap().1.to_owned();
    // Her code with his state, his cookie under the name of her login.
    let mixed = back.replace(&state(&back), &state(&planted));
    assert_eq!(jack.get(&gateway, &mixed).status, 400);
    let (name, value) =
        jack.cookies.iter().next().map(|(name, value)| (name.clone(), value.clone())).unwrap();
    let hers = mallory.cookies.keys().next().unwrap().clone();
    jack.cookies.insert(hers.clone(), value.clone());
    assert_eq!(jack.get(&gateway, &planted).status, 400);
    jack.cookies.remove(&hers);
    assert!(provider.count("/token") == 0, "a code was exchanged that is of nobody");
    for further in ["&state=x", "&code=x", "&iss=https://evil.example", "&client_id=bank"] {
        let mut victim = Browser::new(&gateway);
        let sent = victim.get(&gateway, "/");
        let back = provider.agree(&sent.location, json!({}));
        assert_eq!(victim.get(&gateway, &format!("{back}{further}")).status, 400, "{further}");
    }
    assert_eq!(jack.ask(&gateway, &format!("POST {back}"), "Content-Length: 0").status, 400);
    let issuer = provider.issuer();
    assert_eq!(jack.get(&gateway, &format!("{back}&iss={issuer}&client_id=shop")).status, 302);
    // Once more, also by a browser that does not forget.
    jack.cookies.insert(name, value);
    assert_eq!(jack.get(&gateway, &back).status, 400);
    assert_eq!(provider.count("/token"), 1);
    assert_eq!(jack.get(&gateway, "/").status, 0);
}

#[test]
fn id_tokens_that_lie_begin_no_session() {
    let (provider, gateway) = world(json!({"use_nonce": true}));
    let check = |claims: Value, expected: u16| {
        let mut browser = Browser::new(&gateway);
        assert_eq!(browser.log_in(&gateway, &provider, "/", claims.clone()).status, expected, "{claims}");
        assert_eq!(browser.cookies.contains_key("session"), expected == 302);
    };
    check(json!({}), 302);
    check(json!({"aud": ["shop", "bank"], "azp": "shop"}), 302);
    for lie in [
        json!({"iss": "https://evil.example"}),
        json!({"aud": "bank"}),
        json!({"aud": ["shop", "bank"], "azp": "bank"}),
        json!({"sub": null}),
        json!({"sub": ""}),
        json!({"sub": "somebody else"}),
        json!({"exp": 1}),
        json!({"exp": null}),
        json!({"iat": null}),
        json!({"iat": 9_999_999_999u64}),
        json!({"nbf": 9_999_999_999u64}),
    ] {
        check(lie, 500);
    }
    // A response of another login is a fault of the client.
    for other in [json!({"nonce": "another"}), json!({"nonce": null})] {
        check(other, 400);
    }
    provider.with(|inside| inside.user = json!({"sub": "mallory"}));
    check(json!({}), 500);
}

#[test]
fn a_login_needs_no_user_info_unless_claims_are_required() {
    let check = |conf: Value, status: u16| {
        let (provider, gateway) = world(conf);
        provider.with(|inside| inside.user = json!("a.signed.token"));
        let mut browser = Browser::new(&gateway);
        assert_eq!(browser.log_in(&gateway, &provider, "/", json!({"name": "Jack"})).status, status);
        if status == 302 {
            assert_eq!(browser.get(&gateway, "/").status, 0);
            assert_eq!(browser.told_json("x-id-token")["name"], "Jack");
            assert_eq!(browser.told("x-userinfo"), None);
        }
    };
    check(json!({}), 302);
    check(json!({"claim_schema": {"type": "object"}}), 500);
}

#[test]
fn id_tokens_are_signed_by_the_provider() {
    let (provider, gateway) = world(json!({"accept_none_alg": true}));
    let (claims, evil) = (provider.claims(&json!({})), Signer::new("k", "ES256"));
    let jwk = provider.with(|inside| inside.signer.jwk.to_string());
    let hs = json!({"alg": "HS256", "kid": "k"});
    let forged = [
        evil.token(&claims),
        // Not even where it is allowed: the provider is not reached over TLS.
        format!("{}.", evil.token_with(&json!({"alg": "none"}), &claims).rsplit_once('.').unwrap().0),
        evil.token_with(&json!({"alg": "ES256K", "kid": "k"}), &claims),
        hs256(jwk.as_bytes(), &hs, &claims),
        hs256(b"the client's: secret", &hs, &claims),
        "nonsense".to_owned(),
    ];
    for token in forged {
        provider.with(|inside| inside.id_token = Some(token.clone()));
        let seen = Browser::new(&gateway).log_in(&gateway, &provider, "/", json!({}));
        assert_eq!(seen.status, 500, "{token}");
    }
    // A secret that both sides know, where the operator says so.
    let shared =
        Gateway::new(&provider, &gateway.beside, json!({"token_signing_alg_values_expected": "HS256"}));
    for (secret, status) in [(&b"the client's: secret"[..], 302), (b"another", 500)] {
        provider.with(|inside| inside.id_token = Some(hs256(secret, &hs, &claims)));
        assert_eq!(Browser::new(&shared).log_in(&shared, &provider, "/", json!({})).status, status);
    }
}

#[test]
fn redirects_stay_on_this_host() {
    let (provider, gateway) = world(json!({}));
    for (asked, expected) in [
        ("//evil.example/x", "/evil.example/x"),
        ("///evil.example", "/evil.example"),
        ("/\\evil.example", "/evil.example"),
        ("/x?next=https://evil.example", "/x?next=https://evil.example"),
        ("/a//b", "/a//b"),
    ] {
        let mut browser = Browser::new(&gateway);
        let sent = browser.get(&gateway, asked);
        assert!(sent.location.starts_with(&format!("{}/login?", provider.issuer())), "{sent:?}");
        let back = provider.agree(&sent.location, json!({}));
        let returned = browser.get(&gateway, &format!("/{}", back.trim_start_matches('/')));
        assert_eq!((returned.status, &*returned.location), (302, expected), "{asked}");
    }
    // A Host that is no text for a URL.
    let mut browser = Browser::new(&gateway);
    let seen = browser.ask(&gateway, "GET /", "X-Forwarded-Host: evil.example/x?\n");
    assert_eq!(seen.status, 400);
    let seen =
        browser.ask(&gateway, "GET /", "X-Forwarded-Host: shop.example, other\nX-Forwarded-Proto: https\n");
    assert!(seen.location.contains("redirect_uri=https%3A%2F%2Fshop.example%2F.apisix"), "{seen:?}");
    assert_eq!(browser.attributes, [" Path=/; HttpOnly; Secure; SameSite=Lax"]);
}

#[test]
fn a_session_is_of_one_gateway_and_client() {
    let (provider, gateway) = world(json!({}));
    let mut browser = Browser::new(&gateway);
    browser.log_in(&gateway, &provider, "/", json!({}));
    assert_eq!(browser.get(&gateway, "/").status, 0);
    let good = browser.cookies["session"].clone();
    let mut check = |gateway: &Gateway, cookie: &str, fields: &str, status: u16| {
        browser.cookies = [("session".to_owned(), cookie.to_owned())].into();
        assert_eq!(browser.ask(gateway, "GET /", fields).status, status, "{cookie}");
    };
    let with = |more: Value| Gateway::new(&provider, &gateway.beside, more);
    check(&with(json!({"session": {"secret": "another secret here"}})), &good, "", 302);
    check(&with(json!({"client_id": "bank"})), &good, "", 302);
    check(&gateway, "", "", 302);
    check(&gateway, &good[..good.len() - 4], "", 302);
    check(&gateway, &sigma_testkit::damaged(&good, 40), "", 302);
    check(&gateway, &good, "", 0);
    // A second cookie of that name, which another host of the domain may have set.
    check(&gateway, &good, &format!("Cookie: session={good}\n"), 302);
    // The cookie of a login is not a session.
    let mut other = Browser::new(&gateway);
    other.get(&gateway, "/");
    let login = other.cookies.values().next().unwrap().clone();
    check(&gateway, &login, "", 302);
}

#[test]
fn without_a_session_it_depends() {
    let (provider, gateway) = world(json!({"unauth_action": "deny"}));
    assert_eq!(Browser::new(&gateway).get(&gateway, "/").status, 401);
    let passing = Gateway::new(&provider, &gateway.beside, json!({"unauth_action": "pass"}));
    let mut browser = Browser::new(&passing);
    browser.cookies.insert("session".to_owned(), "x".to_owned());
    assert_eq!(browser.ask(&passing, "GET /", "X-Userinfo: lie\nX-Access-Token: lie\n").status, 0);
    let told = ["x-userinfo", "x-access-token", "x-id-token", "cookie"].map(|name| browser.told(name));
    assert_eq!(told, [None, None, None, None]);
    // A bearer token next to browsers: a wrong one is refused, and not redirected to the login.
    let both = Gateway::new(&provider, &gateway.beside, json!({"use_jwks": true}));
    let mut browser = Browser::new(&both);
    assert_eq!(browser.ask(&both, "GET /", "Authorization: Bearer x\n").status, 401);
    let token = provider.token(&json!({}));
    assert_eq!(browser.ask(&both, "GET /", &format!("Authorization: Bearer {token}\n")).status, 0);
    assert_eq!(browser.get(&both, "/").status, 302);
}

#[test]
fn access_tokens_are_renewed_once() {
    let (provider, gateway) = world(json!({}));
    let mut browser = Browser::new(&gateway);
    provider.with(|inside| inside.tokens.insert("expires_in".to_owned(), json!(0)));
    browser.log_in(&gateway, &provider, "/", json!({}));
    let old = browser.cookies.clone();
    provider.with(|inside| inside.tokens.insert("expires_in".to_owned(), json!("600")));
    assert_eq!(browser.get(&gateway, "/").status, 0);
    let renewed = browser.told("x-access-token");
    assert_ne!(browser.cookies, old, "the browser does not learn of the new token");
    assert_eq!(provider.count("/token"), 2);
    assert_eq!(browser.get(&gateway, "/").status, 0);
    // A page requests many things at once, with the cookie that it had.
    browser.cookies = old.clone();
    assert_eq!((browser.get(&gateway, "/").status, browser.told("x-access-token")), (0, renewed));
    assert_eq!(provider.count("/token"), 2);
    let refused = |change: &dyn Fn(&mut super::provider::Inside)| {
        let mut browser = Browser::new(&gateway);
        provider.with(|inside| inside.tokens.insert("expires_in".to_owned(), json!(0)));
        browser.log_in(&gateway, &provider, "/", json!({}));
        provider.with(change);
        browser.get(&gateway, "/").status
    };
    assert_eq!(refused(&|inside| inside.refuses_refresh = true), 302);
    let other = provider.token(&json!({"sub": "mallory"}));
    let swap = |inside: &mut super::provider::Inside| {
        inside.refuses_refresh = false;
        inside.tokens.insert("id_token".to_owned(), json!(other));
    };
    assert_eq!(refused(&swap), 302);
    provider.with(|inside| inside.tokens = [("refresh_token".to_owned(), Value::Null)].into_iter().collect());
    assert_eq!(refused(&|_| {}), 302);
}

#[test]
fn a_session_has_an_end() {
    let (provider, gateway) = world(json!({"revoke_tokens_on_logout": true,
        "post_logout_redirect_uri": "https://shop.example/bye"}));
    let mut browser = Browser::new(&gateway);
    browser.log_in(&gateway, &provider, "/", json!({}));
    // Only the very path ends it.
    assert_eq!(browser.get(&gateway, "/logout?x").status, 0);
    let seen = browser.get(&gateway, "/logout");
    assert_eq!(seen.status, 302);
    let (at, query) = seen.location.split_once('?').unwrap();
    assert_eq!(at, format!("{}/end", provider.issuer()));
    let said = arguments(query);
    assert_eq!(said["post_logout_redirect_uri"], "https://shop.example/bye");
    assert_eq!(said["id_token_hint"].split('.').count(), 3);
    assert!(browser.cookies.is_empty());
    let revoked = || provider.count("/revoke") == 2;
    assert!(sigma_testkit::until(std::time::Duration::from_secs(20), revoked), "tokens are not given back");
    assert_eq!(browser.get(&gateway, "/").status, 302);
    provider.with(|inside| inside.document.insert("end_session_endpoint".to_owned(), Value::Null));
    let beside = Arc::new(Beside::new());
    let gateway = Gateway::new(&provider, &beside, json!({"logout_path": "/bye"}));
    let seen = Browser::new(&gateway).get(&gateway, "/bye");
    assert_eq!((seen.status, &*seen.body), (200, "<html><body>Logged Out</body></html>"));
    let seen = Browser::new(&gateway).ask(&gateway, "GET /bye", "Accept: image/png\n");
    assert!(seen.status == 200 && seen.body.contains("PNG"));
}

#[test]
fn a_provider_that_is_busy_is_asked_again() {
    let (_provider, gateway) = world(json!({}));
    let mut browser = Browser::new(&gateway);
    let mut sent = browser.get(&gateway, "/orders");
    for turn in 0..5 {
        let state = arguments(sent.location.split_once('?').unwrap().1)["state"].clone();
        let back = format!("/orders/.apisix/redirect?error=temporarily_unavailable&state={state}");
        sent = browser.get(&gateway, &back);
        if turn == 3 {
            assert_eq!(sent.status, 403);
            break;
        }
        assert_eq!(sent.status, 302, "{turn}");
        let asked = arguments(sent.location.split_once('?').unwrap().1);
        assert_eq!(asked["redirect_uri"], "http://shop.example:8443/orders/.apisix/redirect");
    }
    let mut browser = Browser::new(&gateway);
    let sent = browser.get(&gateway, "/");
    let state = arguments(sent.location.split_once('?').unwrap().1)["state"].clone();
    assert_eq!(
        browser.get(&gateway, &format!("/.apisix/redirect?error=access_denied&state={state}")).status,
        403
    );
    assert_eq!(browser.get(&gateway, "/.apisix/redirect?error=temporarily_unavailable&state=x").status, 400);
    assert_eq!(browser.get(&gateway, "/.apisix/redirect").status, 302);
}

#[test]
fn logins_do_not_pile_up() {
    let (provider, gateway) = world(json!({}));
    let mut browser = Browser::new(&gateway);
    let mut last = String::new();
    for _ in 0..20 {
        last = browser.get(&gateway, "/").location;
        assert!(browser.cookies.len() <= 5, "{}", browser.cookies.len());
    }
    let back = provider.agree(&last, json!({}));
    assert_eq!(browser.get(&gateway, &back).status, 302);
}

#[test]
fn required_claims_apply_to_logins() {
    let check = |conf: Value, claims: Value, expected: (u16, &str)| {
        let (provider, gateway) = world(conf.clone());
        let mut browser = Browser::new(&gateway);
        browser.log_in(&gateway, &provider, "/", claims.clone());
        let seen = browser.get(&gateway, "/");
        assert_eq!((seen.status, &*seen.body), expected, "{conf} {claims}");
    };
    let scopes = || json!({"required_scopes": ["read"]});
    check(scopes(), json!({"scope": "read write"}), (0, ""));
    check(scopes(), json!({"scope": "write"}), (403, r#"{"error":"required scopes read not present"}"#));
    check(scopes(), json!({}), (403, r#"{"error":"required scopes not present"}"#));
    let schema =
        json!({"claim_schema": {"properties": {"user": {"required": ["email"]}}, "required": ["user"]}});
    check(schema.clone(), json!({}), (0, ""));
    let without = json!({"session_contents": {"id_token": true}, "claim_schema": schema["claim_schema"]});
    check(without, json!({}), (401, ""));
}

#[test]
fn a_large_session_takes_several_cookies() {
    let (provider, gateway) = world(json!({}));
    let mut browser = Browser::new(&gateway);
    provider.with(|inside| inside.user["groups"] = json!("x".repeat(6000)));
    browser.log_in(&gateway, &provider, "/", json!({}));
    assert_eq!(browser.cookies.keys().collect::<Vec<_>>(), ["session", "session2", "session3"]);
    assert_eq!(browser.get(&gateway, "/").status, 0);
    assert_eq!(browser.told("cookie"), None);
    let mut torn = Browser::new(&gateway);
    torn.cookies = browser.cookies.clone();
    torn.cookies.insert("session2".to_owned(), "x".repeat(3800));
    assert_eq!(torn.get(&gateway, "/").status, 302);
    provider.with(|inside| inside.user["groups"] = json!("x".repeat(60_000)));
    assert_eq!(Browser::new(&gateway).log_in(&gateway, &provider, "/", json!({})).status, 500);
}

#[test]
fn the_gateway_signs_who_it_is() {
    let check = |more: Value, key: Key| {
        let (provider, gateway) = world(more.clone());
        provider.with(|inside| inside.client_key = Some(key));
        let mut browser = Browser::new(&gateway);
        assert_eq!(browser.log_in(&gateway, &provider, "/", json!({})).status, 302, "{more}");
        assert_eq!(browser.get(&gateway, "/").status, 0);
    };
    let pem = |pem: &str, algorithm| Key::of_pem(pem, algorithm, false).unwrap();
    let private = json!({"token_endpoint_auth_method": "private_key_jwt", "client_rsa_private_key": RSA,
        "client_rsa_private_key_id": "k", "client_secret": null});
    check(private.clone(), pem(RSA_PUBLIC, Algorithm::Rs256));
    let mut more = private;
    more["client_rsa_private_key"] = json!(P256);
    more["client_jwt_assertion_alg"] = json!("ES256");
    more["client_jwt_assertion_audience"] = json!("the audience");
    check(more, pem(P256_PUBLIC, Algorithm::Es256));
    let shared = |algorithm| Key::secret(algorithm, b"the client's: secret").unwrap();
    check(json!({"token_endpoint_auth_method": "client_secret_jwt"}), shared(Algorithm::Hs256));
    let long =
        json!({"token_endpoint_auth_method": "client_secret_jwt", "client_jwt_assertion_alg": "HS512"});
    check(long, shared(Algorithm::Hs512));
}

#[test]
fn a_question_is_left_before_the_browser_is_sent() {
    let (provider, gateway) = world(json!({"par": {"enabled": true}, "use_pkce": true, "use_nonce": true,
        "authorization_params": {"ui_locales": "de fr"}}));
    let mut browser = Browser::new(&gateway);
    let sent = browser.get(&gateway, "/orders?a=1");
    let asked = arguments(sent.location.split_once('?').unwrap().1);
    assert_eq!(asked.len(), 2, "the browser brings more than it must: {}", sent.location);
    let left = provider.with(|inside| inside.asked.iter().find(|asked| asked.starts_with("/par ")).cloned());
    let left = arguments(left.unwrap().split_once(' ').unwrap().1);
    assert_eq!(
        (&*left["client_id"], &*left["ui_locales"], &*left["code_challenge_method"]),
        ("shop", "de fr", "S256")
    );
    assert!(!left.contains_key("client_secret"), "the secret is in Authorization");
    let back = provider.agree(&sent.location, json!({}));
    assert_eq!(browser.get(&gateway, &back).location, "/orders?a=1");
    assert_eq!(browser.get(&gateway, "/orders?a=1").status, 0);
    // A provider that does not accept the pushed request, or has no endpoint for it, lets no login begin.
    provider.with(|inside| inside.client_key = Some(Key::secret(Algorithm::Hs256, b"x").unwrap()));
    assert_eq!(Browser::new(&gateway).get(&gateway, "/").status, 500);
    let (provider, gateway) = world(json!({"par": {"enabled": true}}));
    provider.with(|inside| {
        inside.document.insert("pushed_authorization_request_endpoint".to_owned(), Value::Null)
    });
    assert_eq!(Browser::new(&gateway).get(&gateway, "/").status, 500);
    // A place that the operator names goes before the document's; so does a method.
    let (provider, beside) = (Provider::new(), Arc::new(Beside::new()));
    let named = json!({"par": {"enabled": true, "endpoint": format!("{}/elsewhere", provider.issuer()),
        "endpoint_auth_method": "client_secret_post"}});
    let gateway = Gateway::new(&provider, &beside, named);
    assert_eq!(Browser::new(&gateway).get(&gateway, "/").status, 500);
    assert_eq!((provider.count("/par"), provider.count("/elsewhere")), (0, 1));
    assert!(provider.with(|inside| inside.asked.iter().any(|asked| asked.contains("client_secret="))));
}

#[test]
fn tokens_are_bound_to_a_key_of_the_gateway() {
    let conf = json!({"dpop": {"enabled": true, "private_key": P256, "public_jwk": p256_jwk()},
        "set_refresh_token_header": true});
    for nonce in [None, Some("a nonce of the provider")] {
        let (provider, gateway) = world(conf.clone());
        provider.with(|inside| {
            let key = Key::of_pem(P256_PUBLIC, Algorithm::Es256, false).unwrap();
            inside.dpop = Some((key, p256_jwk(), nonce.map(str::to_owned)));
            inside.tokens.insert("token_type".to_owned(), json!("DPoP"));
            inside.tokens.insert("expires_in".to_owned(), json!(0));
        });
        let mut browser = Browser::new(&gateway);
        assert_eq!(browser.log_in(&gateway, &provider, "/", json!({})).status, 302, "{nonce:?}");
        // The first token has ended: it is renewed with another proof.
        assert_eq!(browser.get(&gateway, "/").status, 0);
        assert_eq!(browser.told_json("x-userinfo")["sub"], "jack");
        let times = if nonce.is_some() { 2 } else { 1 };
        assert_eq!((provider.count("/token"), provider.count("/user")), (2 * times, times));
    }
    // Tokens of a kind that was not requested are invalid.
    let (provider, gateway) = world(json!({}));
    provider.with(|inside| inside.tokens.insert("token_type".to_owned(), json!("DPoP")));
    assert_eq!(Browser::new(&gateway).log_in(&gateway, &provider, "/", json!({})).status, 500);
}

#[test]
fn a_login_may_be_good_for_one_request() {
    let (provider, gateway) = world(json!({"force_reauthorize": true}));
    let mut browser = Browser::new(&gateway);
    for _ in 0..2 {
        assert_eq!(browser.log_in(&gateway, &provider, "/", json!({})).status, 302);
        assert_eq!(browser.get(&gateway, "/").status, 0);
    }
    assert_eq!(browser.get(&gateway, "/").status, 302);
    assert_eq!(provider.count("/token"), 2);
}

/// If the callback is also a page for users, only a provider's redirect counts as a callback.
#[test]
fn a_page_may_be_the_callback() {
    let (provider, gateway) = world(json!({"redirect_uri": "/orders"}));
    let check = |line: &str, expected: u16| {
        let seen = Browser::new(&gateway).ask(&gateway, line, "Content-Length: 0\n");
        assert_eq!(seen.status, expected, "{line}");
    };
    check("GET /orders", 302);
    check("GET /orders?page=2", 302);
    check("GET /orders?state=open", 302);
    check("GET /orders?code=7", 302);
    check("POST /orders", 302);
    check("GET /orders?code=x&state=y", 400);
    check("GET /orders?error=access_denied", 400);
    check("GET /orders?error=access_denied&state=y", 400);
    check("GET /orders?code=x&state=%ff", 400);
    check("GET /orders?%63ode=x&%73tate=y", 400);
    check("POST /orders?code=x&state=y", 400);
    let mut browser = Browser::new(&gateway);
    assert_eq!(browser.log_in(&gateway, &provider, "/orders?state=open", json!({})).status, 302);
    assert_eq!(browser.get(&gateway, "/orders?state=open").status, 0);
    assert_eq!(browser.get(&gateway, "/orders").status, 0);
}

/// A bookmark of the callback leads to the page that it belongs to.
#[test]
fn a_callback_without_arguments_begins_a_login() {
    let (provider, gateway) = world(json!({}));
    for (asked, page) in
        [("/.apisix/redirect", "/"), ("/a/.apisix/redirect", "/a"), ("/a/.apisix/redirect?x", "/a")]
    {
        let mut browser = Browser::new(&gateway);
        let sent = browser.get(&gateway, asked);
        let asks = arguments(sent.location.split_once('?').unwrap().1);
        let uri = format!("http://shop.example:8443{}/.apisix/redirect", page.trim_end_matches('/'));
        assert_eq!((sent.status, &*asks["redirect_uri"]), (302, &*uri), "{asked}");
        let back = provider.agree(&sent.location, json!({}));
        let returned = browser.get(&gateway, &back);
        assert_eq!((returned.status, &*returned.location), (302, page), "{asked}");
    }
}

/// No request of a client causes an error of the gateway.
#[test]
fn no_callback_of_a_client_is_answered_5xx() {
    let (provider, gateway) = world(json!({}));
    let check = |further: &str, expected: u16| {
        let mut browser = Browser::new(&gateway);
        let sent = browser.get(&gateway, "/");
        let state = arguments(sent.location.split_once('?').unwrap().1)["state"].clone();
        let back = format!("/.apisix/redirect?state={state}&{further}");
        assert_eq!(browser.get(&gateway, &back).status, expected, "{further}");
    };
    for error in ["access_denied", "login_required", "server_error", "invalid_scope", "%22%0a", "", "x%ffy"] {
        check(&format!("error={error}"), if error.contains("%ff") { 400 } else { 403 });
    }
    // A code that the provider does not know.
    check("code=guessed", 400);
    check("code=", 400);
    check("code=a&code=b", 400);
    check("code=a&iss=https://evil.example", 400);
    assert_eq!(provider.count("/token"), 2);
}

/// Tests with an installed Redis.
mod installed {
    use super::*;

    #[test]
    fn sessions_may_be_in_redis() {
        let mut redis = Redis::start(&[]).unwrap();
        let session = json!({"secret": "a secret of the gateway", "storage": "redis", "cookie_same_site": "Strict",
        "redis": {"host": "127.0.0.1", "port": redis.port(), "prefix": "s"}});
        let (provider, gateway) = world(json!({"session": session}));
        let mut browser = Browser::new(&gateway);
        provider.with(|inside| inside.user["groups"] = json!("x".repeat(60_000)));
        let back = browser.log_in(&gateway, &provider, "/a?b=\"c\"&d", json!({}));
        let page = "<meta http-equiv=\"refresh\" content=\"0;url=/a?b=&quot;c&quot;&amp;d\">";
        assert_eq!((back.status, &*back.body), (200, page));
        assert!(browser.cookies["session"].len() < 400);
        assert_eq!(browser.get(&gateway, "/").status, 0);
        assert_eq!(browser.told_json("x-userinfo")["sub"], "jack");
        let keys = redis.ask(&["keys", "s:*"]).unwrap();
        let ttl: i64 = redis.ask(&["ttl", &keys]).unwrap().parse().unwrap();
        assert!((1..=900).contains(&ttl), "{ttl}");
        // The value in Redis is sealed, and belongs to this session alone.
        assert!(!redis.ask(&["get", &keys]).unwrap().contains("jack"));
        let mut other = Browser::new(&gateway);
        other.log_in(&gateway, &provider, "/", json!({}));
        let both = redis.ask(&["keys", "s:*"]).unwrap();
        let others = both.split_whitespace().find(|key| *key != keys).unwrap();
        let old = browser.cookies.clone();
        redis.ask(&["copy", others, &keys, "replace"]).unwrap();
        assert_eq!(browser.get(&gateway, "/").status, 302);
        assert_eq!(other.get(&gateway, "/logout").status, 302);
        assert!(!redis.ask(&["keys", "s:*"]).unwrap().contains(others));
        redis.kill().unwrap();
        browser.cookies = old;
        assert_eq!(browser.get(&gateway, "/").status, 500);
    }

    #[test]
    fn the_provider_ends_sessions_by_itself() {
        let redis = Redis::start(&[]).unwrap();
        let session =
            json!({"secret": "a secret of the gateway", "storage": "redis", "redis": {"port": redis.port()}});
        let (provider, gateway) = world(json!({"session": session, "backchannel_logout_path": "/ended"}));
        let event = "http://schemas.openid.net/event/backchannel-logout";
        let logout = |more: Value| {
            let mut claims = json!({"jti": "1", "events": {event: {}}});
            claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            provider.token(&claims)
        };
        let log_in = |sid: &str| {
            let mut browser = Browser::new(&gateway);
            let seen = browser.log_in(&gateway, &provider, "/", json!({"sid": sid}));
            assert_eq!(seen.status, 302, "{seen:?}");
            browser
        };
        let post = |body: String| {
            let mut caller = Browser::new(&gateway);
            caller.body = body.into_bytes();
            caller.ask(&gateway, "POST /ended", "Content-Length: 1\n").status
        };
        let (mut one, mut other) = (log_in("one"), log_in("other"));
        let refused = [
            String::new(),
            "logout_token=x".to_owned(),
            format!("logout_token={}&logout_token=x", logout(json!({"sid": "one"}))),
            format!(
                "logout_token={}",
                Signer::new("k", "ES256").token(&provider.claims(&json!({"events": {event: {}}})))
            ),
            format!("logout_token={}", logout(json!({"sid": "one", "iss": "https://evil.example"}))),
            format!("logout_token={}", logout(json!({"sid": "one", "aud": "bank"}))),
            format!("logout_token={}", logout(json!({"sid": "one", "nonce": "x"}))),
            format!("logout_token={}", logout(json!({"sid": "one", "events": {}}))),
            format!("logout_token={}", logout(json!({"sid": "one", "events": {event: true}}))),
            format!("logout_token={}", logout(json!({"sid": "one", "exp": 1}))),
            format!("logout_token={}", logout(json!({"sid": "one", "iat": null}))),
            format!("logout_token={}", logout(json!({"sub": null}))),
            // An ID token that the browser has.
            format!("logout_token={}", provider.token(&json!({"sid": "one"}))),
        ];
        for body in refused {
            assert_eq!(post(body.clone()), 400, "{body}");
        }
        assert_eq!((one.get(&gateway, "/").status, other.get(&gateway, "/").status), (0, 0));
        assert_eq!(post(format!("logout_token={}", logout(json!({"sid": "one"})))), 200);
        assert_eq!((one.get(&gateway, "/").status, other.get(&gateway, "/").status), (302, 0));
        // Without a session all of the user's.
        assert_eq!(post(format!("logout_token={}", logout(json!({})))), 200);
        assert_eq!(other.get(&gateway, "/").status, 302);
        // Only by POST: a browser that requests the path is a browser.
        assert_eq!(other.get(&gateway, "/ended").status, 302);
    }
}
