//! Configurations, redirects, and logins at providers that the tests play.

use serde_json::{Value, json};
use sigma_plugin::Phase;
use sigma_schema::plugins::PluginScope;

use crate::testing::{Case, assert_refusal, entry, field, merged, summary, warned};

fn conf(more: &Value) -> Value {
    let conf = json!({
        "provider": "github", "client_id": "shop", "client_secret": "s", "secret": "1234567890123456",
        "redirect_uri": "https://shop.test/back",
    });
    merged(conf, more)
}

#[test]
fn configurations() {
    let check = |more: Value, expected: &str| assert_refusal("oauth2-login", &conf(&more), expected);
    check(json!({}), "");
    check(json!({"provider": "weixin"}), "");
    check(json!({"provider": "taobao"}), "");
    check(json!({"provider": "custom"}), "authorize_url: `provider: custom` needs it");
    let urls =
        json!({"provider": "custom", "authorize_url": "https://a.test/x", "token_url": "https://a.test/t"});
    check(urls.clone(), "user_url: `provider: custom` needs it");
    check(merged(urls, &json!({"user_url": "https://a.test/u"})), "");
    check(json!({"redirect_uri": "/back"}), "redirect_uri: write https://host/path");
    check(json!({"redirect_uri": "https://a.test/back?a=b"}), "without a query");
    check(json!({"authorize_url": "javascript:alert(1)"}), "authorize_url: write https://host/path");
    check(json!({"secret": "short"}), "string too short");
    check(json!({"session_cookie": "a b"}), "session_cookie");
    let open = conf(&json!({"token_url": "http://a.test/t", "ssl_verify": false}));
    assert_eq!(warned("oauth2-login", PluginScope::Http, &open), ["token_url", "ssl_verify"]);
}

/// The code of a login, which its browser brings back in the query, is no matter of logs.
#[test]
fn codes_are_credentials() {
    let made = entry("oauth2-login", conf(&json!({}))).unwrap();
    let all = [std::sync::Arc::new(made.credentials.clone())];
    let shown = sigma_plugin::credentials::Masks::new(&all).target(b"/back?code=secret&state=1").into_owned();
    assert_eq!(shown, b"/back?code=***&state=1");
}

#[test]
fn browsers_without_a_session_are_sent_to_the_provider() {
    let check = |provider: &str, start: &str, parts: &[&str], end: &str| {
        let made = entry("oauth2-login", conf(&json!({ "provider": provider }))).unwrap();
        let mut case = Case::new("GET /orders?a=b HTTP/1.1\nHost: h\nX-Userinfo: root");
        let reply = case.run(&made, Phase::Rewrite).unwrap();
        assert_eq!((reply.status, case.sent("X-Userinfo")), (302, None));
        let location = field(&reply, "Location").unwrap();
        assert!(location.starts_with(start) && location.ends_with(end), "{location}");
        for part in parts {
            assert!(location.contains(part), "{location}: {part}");
        }
        let cookie = field(&reply, "Set-Cookie").unwrap();
        assert!(cookie.starts_with("oauth2_session_login=") && cookie.contains("HttpOnly"), "{cookie}");
        case.request("POST /orders HTTP/1.1\nHost: h\nContent-Length: 0");
        let reply = case.run(&made, Phase::Rewrite);
        assert_eq!(summary(reply.as_ref()), r#"401 {"message":"The request has no session"}"#);
    };
    let back = "redirect_uri=https%3A%2F%2Fshop.test%2Fback";
    check(
        "github",
        "https://github.com/login/oauth/authorize?client_id=shop&",
        &[back, "state=", "code_challenge="],
        "S256",
    );
    check("weibo", "https://api.weibo.com/oauth2/authorize?client_id=shop&", &[back, "state="], "");
    let weixin = "https://open.weixin.qq.com/connect/qrconnect?appid=shop&";
    check("weixin", weixin, &[back, "scope=snsapi_login"], "#wechat_redirect");
    check("taobao", "https://oauth.taobao.com/authorize?client_id=shop&", &[back], "");
}

/// The state and the cookie of a login that has begun.
fn begun(made: &sigma_plugin::Entry, case: &mut Case, target: &str) -> [String; 2] {
    case.request(&format!("GET {target} HTTP/1.1\nHost: h"));
    let reply = case.run(made, Phase::Rewrite).unwrap();
    let location = field(&reply, "Location").unwrap();
    let state = location.split("state=").nth(1).unwrap().split('&').next().unwrap().to_owned();
    let cookie = field(&reply, "Set-Cookie").unwrap();
    [state, cookie.split(';').next().unwrap().to_owned()]
}

#[test]
fn only_the_browser_that_began_a_login_ends_it() {
    let made = entry("oauth2-login", conf(&json!({}))).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    let [state, cookie] = begun(&made, &mut case, "/orders");
    let [other, _] = begun(&made, &mut case, "/orders");
    let mut check = |query: &str, cookie: &str| {
        case.request(&format!("GET /back?{query} HTTP/1.1\nHost: h\nCookie: {cookie}"));
        let reply = case.run(&made, Phase::Rewrite);
        assert_eq!(summary(reply.as_ref()), r#"401 {"message":"The login has failed"}"#, "{query}");
    };
    check(&format!("code=c&state={other}"), &cookie);
    check(&format!("code=c&state={state}"), "a=b");
    check(&format!("code=c&state={state}&state={state}"), &cookie);
    check("code=c", &cookie);
    check(&format!("state={state}"), &cookie);
    check(&format!("error=access_denied&state={state}"), &cookie);
    check(&format!("code=&state={state}"), &cookie);
    // No provider responds here.
    check(&format!("code=c&state={state}"), &cookie);
}
