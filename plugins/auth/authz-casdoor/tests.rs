//! Tests of authz-casdoor: valid configurations, and requests that are accepted.

use serde_json::json;
use sigma_http::Headers;
use sigma_schema::plugins::PluginScope;

use super::*;
use crate::testing::{Case, assert_refusal, entry, field, merged, refusal, summary, warned};

fn conf(more: Value) -> Value {
    merged(
        json!({
            "endpoint_addr": "https://casdoor/base", "callback_url": "https://shop/back", "client_id": "shop",
            "client_secret": "s3cret"
        }),
        &more,
    )
}

#[test]
fn configurations() {
    let check = |more: Value, expected: &str| {
        assert_refusal(NAME, &conf(more), expected);
    };
    check(json!({}), "");
    check(json!({"endpoint_addr": "https://casdoor/"}), "failed to match pattern");
    check(json!({"callback_url": "https://shop/a?b"}), "failed to match pattern");
    check(
        json!({"callback_url": "https://shop"}),
        "`https://shop` has no path, which browsers need to return",
    );
    check(json!({"callback_url": "/back"}), "`/back` has no scheme");
    let missing =
        json!({"endpoint_addr": "https://casdoor", "callback_url": "https://shop/b", "client_id": "a"});
    assert!(refusal(NAME, &missing).contains("property \"client_secret\" is required"));
    let clear = conf(json!({"endpoint_addr": "http://casdoor", "callback_url": "http://shop/b"}));
    assert_eq!(warned(NAME, PluginScope::Http, &clear), ["endpoint_addr", "callback_url"]);
}

#[test]
fn only_a_token_that_lives_is_one() {
    let check = |status: u16, body: &str, expected: Result<u64, &str>| {
        let answer = ServiceResponse {
            status,
            headers: Headers::default(),
            body: body.into(),
            ..ServiceResponse::default()
        };
        assert_eq!(
            granted(Ok(answer)).map_err(|reason| match reason {
                NoToken::Refused(reason) => reason.to_owned(),
                NoToken::Failed(reason) => reason,
            }),
            expected.map_err(str::to_owned),
            "{body}"
        );
    };
    check(200, r#"{"access_token":"a","expires_in":60,"more":1}"#, Ok(60));
    check(
        200,
        r#"{"access_token":"error: no such code","expires_in":0}"#,
        Err("Casdoor does not accept the code"),
    );
    check(200, r#"{"access_token":"","expires_in":60}"#, Err("Casdoor returned an empty token"));
    check(200, r#"{"access_token":"a"}"#, Err("Casdoor returned no token"));
    check(200, r#"{"access_token":"a","expires_in":0,"expires_in":60}"#, Err("Casdoor returned no token"));
    check(200, "<html>", Err("Casdoor returned no token"));
    check(302, r#"{"access_token":"a","expires_in":60}"#, Err("Casdoor answered 302"));
}

#[test]
fn browsers_are_sent_and_come_back_once() {
    let plugin = entry(NAME, conf(json!({}))).unwrap();
    let mut case =
        Case::new("GET //evil.test/a%20b?c=d HTTP/1.1\nHost: evil.test\nX-Forwarded-Host: evil.test");
    let reply = case.run(&plugin, Phase::Access).unwrap();
    let location = field(&reply, "Location").unwrap();
    let (page, query) = location.split_once('?').unwrap();
    assert_eq!((reply.status, page), (302, "https://casdoor/base/login/oauth/authorize"));
    assert!(query.ends_with("&client_id=shop&redirect_uri=https%3A%2F%2Fshop%2Fback"), "{query}");
    let state = query.split('&').find_map(|pair| pair.strip_prefix("state=")).unwrap().to_owned();
    let cookie = field(&reply, "Set-Cookie").unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let mut back = |query: &str, cookie: &str| {
        case.request(&format!("GET /back?{query} HTTP/1.1\nHost: shop\nCookie: {cookie}"));
        summary(case.run(&plugin, Phase::Access).as_ref())
    };
    let invalid = "400 failed when accessing token. Invalid code or state";
    assert_eq!(
        back(&format!("code=a&state={state}"), "a=b"),
        "400 a callback without a login of this browser"
    );
    assert_eq!(back("", &cookie), invalid);
    assert_eq!(back("code=a", &cookie), invalid);
    assert_eq!(back(&format!("code=a&code=b&state={state}"), &cookie), invalid);
    assert_eq!(back("code=a&state=1", &cookie), "400 invalid state");
    // There is no provider here.
    assert_eq!(back(&format!("code=a&state={state}"), &cookie), "503");
    assert_eq!(back(&format!("code=a&state={state}"), &cookie), "400 invalid state", "the state was used");
    // A browser on its way has not logged in.
    case.request(&format!("GET /orders HTTP/1.1\nHost: shop\nCookie: {cookie}"));
    assert_eq!(summary(case.run(&plugin, Phase::Access).as_ref()), "302");
    let other = entry(NAME, conf(json!({"client_secret": "other"}))).unwrap();
    case.request(&format!("GET /back?code=a&state={state} HTTP/1.1\nHost: shop\nCookie: {cookie}"));
    assert_eq!(
        summary(case.run(&other, Phase::Access).as_ref()),
        "400 a callback without a login of this browser"
    );
}
