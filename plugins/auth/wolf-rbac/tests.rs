//! Tests of wolf-rbac: valid configurations, and results of wolf's responses.

use serde_json::json;
use sigma_http::Headers;

use super::*;
use crate::testing::{Case, assert_reason, entry, refusal, refusal_in, summary, warned};

#[test]
fn configurations() {
    let check = |conf: Value, expected: &str| {
        for refused in [refusal(NAME, &conf), refusal_in(NAME, PluginScope::Consumer, &conf)] {
            assert_reason(&refused, &conf, expected);
        }
    };
    check(json!({}), "");
    check(
        json!({"appid": "shop", "server": "https://wolf/base/", "header_prefix": "", "ssl_verify": true}),
        "",
    );
    check(json!({"appid": "a#b"}), "the appid `a#b` is invalid: it is empty or contains `#`");
    check(json!({"appid": ""}), "the appid `` is invalid");
    check(json!({"server": "wolf"}), "`wolf` has no scheme");
    check(json!({"server": "http://wolf/?a=1"}), "`server` has a query: write the URL without it");
    check(json!({"header_prefix": "a b"}), "`a b` is not a valid prefix of header fields");
    check(json!({"ssl_verify": "no"}), "wrong type: expected boolean, got string");
}

#[test]
fn warnings_name_the_place() {
    let check =
        |scope, conf: Value, expected: &[&str]| assert_eq!(warned(NAME, scope, &conf), expected, "{conf}");
    check(PluginScope::Http, json!({}), &[]);
    check(PluginScope::Http, json!({"appid": "a", "server": "https://wolf"}), &["appid", "server"]);
    check(PluginScope::Consumer, json!({"appid": "a"}), &[]);
    check(PluginScope::Consumer, json!({"server": "http://localhost:12180"}), &[]);
    check(PluginScope::Consumer, json!({"server": "http://wolf"}), &["server"]);
    check(PluginScope::Consumer, json!({"server": "https://wolf"}), &["ssl_verify"]);
    check(PluginScope::Consumer, json!({"server": "https://wolf", "ssl_verify": true}), &[]);
}

#[test]
fn the_server_is_an_upstream_of_the_consumer() {
    let roster = crate::testing::roster();
    let inline = |scope, conf: Value| roster.upstreams(NAME, scope, conf);
    assert!(inline(PluginScope::Http, json!({})).is_empty());
    let [found] = &inline(PluginScope::Consumer, json!({"server": "https://wolf/base"}))[..] else {
        panic!()
    };
    assert_eq!(
        (&found.upstream["nodes"][0]["port"], &found.upstream["tls"]["verify"]),
        (&json!(443), &json!(false))
    );
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    case.consumer("jack", NAME, &json!({"appid": "a"}));
    let credential = sigma_plugin::Consumer { name: "jack".into(), ..Default::default() };
    case.identity(credential, Some("c1"), NAME, &json!({"appid": "b"}));
    let key = |appid: &str| case.consumers.find(NAME, appid).unwrap().upstream_key(NAME, SERVER);
    assert_eq!(key("a"), "/apisix/consumers/jack#wolf-rbac/server");
    assert_eq!(key("b"), "/apisix/consumers/jack/credentials/c1#wolf-rbac/server");
}

#[test]
fn requests_without_a_token_are_not_sent_to_wolf() {
    let plugin = entry(NAME, json!({})).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    let check = |case: &mut Case, head: &str, message: &str| {
        case.request(head);
        let reply = case.run(&plugin, Phase::Rewrite);
        assert_eq!(summary(reply.as_ref()), format!("401 {{\"message\":\"{message}\"}}"), "{head}");
    };
    let with = |field: &str| format!("GET / HTTP/1.1\nHost: h\n{field}");
    check(&mut case, &with("X-Rbac-Token: V1#shop#t"), "Missing related consumer");
    case.consumer("jack", NAME, &json!({"appid": "shop"}));
    check(&mut case, &with(""), "Missing rbac token in request");
    check(&mut case, &with("Authorization: Bearer x"), "invalid rbac token: parse failed");
    check(&mut case, &with("Authorization: x\nX-Rbac-Token: V1#shop#t"), "invalid rbac token: parse failed");
    check(&mut case, &with("X-Rbac-Token: V1#other#t"), "Invalid appid in rbac token");
    check(&mut case, &with("Cookie: a=b; x-rbac-token=V1#other#t"), "Invalid appid in rbac token");
    check(&mut case, "GET /?rbac_token=V1%23other%23t HTTP/1.1\nHost: h", "Invalid appid in rbac token");
    check(
        &mut case,
        "GET /?rbac_token=V1%23shop%23t&rbac_token=V1%23shop%23u HTTP/1.1\nHost: h",
        "invalid rbac token: parse failed",
    );
}

#[test]
fn only_a_clear_yes_lets_a_request_pass() {
    let check = |status: u16, body: &str, expected: &str| {
        let answer = ServiceResponse {
            status,
            headers: Headers::default(),
            body: body.into(),
            ..ServiceResponse::default()
        };
        let told = match Verdict::of(answer) {
            Err(error) => error,
            Ok(verdict) => match verdict.refusal() {
                None => "passes".to_owned(),
                Some((status, body)) => format!("{status} {}", Value::Object(body)),
            },
        };
        assert_eq!(told, expected, "{status} {body}");
    };
    let unread = |status: u16| {
        format!("{status} {}", json!({"message": "check permission failed! parse response json failed!"}))
    };
    check(200, r#"{"ok":true}"#, "passes");
    check(200, r#"{"ok":true,"data":{"userInfo":{"id":1,"username":"j"}}}"#, "passes");
    check(200, r#"{"ok":false,"reason":"ERR_TOKEN_INVALID"}"#, r#"403 {"message":"ERR_TOKEN_INVALID"}"#);
    check(200, "{}", "403 {}");
    check(200, r#"{"ok":"true"}"#, &unread(500));
    check(200, "", &unread(500));
    check(200, r#"{"ok":false,"ok":true}"#, &unread(500));
    check(200, r#"{"ok":true,"data":{"userInfo":{"id":1,"id":2}}}"#, &unread(500));
    check(200, "{\"ok\":true,\"data\":{\"userInfo\":{\"id\":1,\"username\":\"a\\r\\nX: y\"}}}", &unread(500));
    check(401, "<html>", &unread(401));
    check(
        403,
        r#"{"ok":false,"reason":"ERR_ACCESS_DENIED","data":{"userInfo":{"id":"7","username":"jack","nickname":"J"}}}"#,
        r#"403 {"message":"ERR_ACCESS_DENIED","username":"jack","nickname":"J"}"#,
    );
    check(204, "", "status:204");
    check(302, r#"{"ok":true}"#, "status:302");
    check(503, r#"{"ok":true}"#, "status:503");
}
