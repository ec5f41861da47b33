//! Tests of dingtalk-auth and feishu-auth: valid configurations, and behaviour without a platform.

use serde_json::{Value, json};
use sigma_plugin::Phase;
use sigma_schema::plugins::PluginScope;

use crate::testing::{Case, assert_refusal, entry, field, merged, refusal, summary, warned};

const PLUGINS: [&str; 2] = ["dingtalk-auth", "feishu-auth"];

fn conf(plugin: &str, more: &Value) -> Value {
    let mut conf = json!({"app_secret": "s", "secret": "12345678", "redirect_uri": "https://shop/login"});
    match plugin {
        "dingtalk-auth" => conf["app_key"] = json!("shop"),
        _ => {
            conf["app_id"] = json!("shop");
            conf["auth_redirect_uri"] = json!("https://shop/back");
        }
    }
    merged(conf, more)
}

#[test]
fn configurations() {
    for plugin in PLUGINS {
        let check = |more: Value, expected: &str| {
            assert_refusal(plugin, &conf(plugin, &more), expected);
        };
        check(json!({}), "");
        check(json!({"secret": "1234567"}), "string too short");
        check(json!({"secret_fallbacks": ["1234567"]}), "string too short");
        check(json!({"code_header": "a b"}), "`a b` is not the name of a header field");
        check(json!({"redirect_uri": "/a\r\nb"}), "`redirect_uri` has unencoded characters");
        check(json!({"userinfo_url": "user"}), "`user` has no scheme");
        check(json!({"timeout": 0}), "expected 0 to be at least 1");
        assert!(refusal(plugin, &json!({})).contains("is required"));
        let open = json!({"access_token_url": "http://a/t", "ssl_verify": false});
        assert_eq!(
            warned(plugin, PluginScope::Http, &conf(plugin, &open)),
            ["access_token_url", "ssl_verify"]
        );
    }
}

#[test]
fn without_a_code_a_browser_is_sent_elsewhere() {
    for plugin in PLUGINS {
        let made = entry(plugin, conf(plugin, &json!({}))).unwrap();
        let mut case = Case::new("GET /?code= HTTP/1.1\nHost: h\nX-Userinfo: root");
        let mut ask = |head: &str| {
            case.request(head);
            let reply = case.run(&made, Phase::Rewrite).unwrap();
            assert_eq!(case.sent("X-Userinfo"), None);
            let location = field(&reply, "Location").unwrap_or_default();
            format!("{} {location}", summary(Some(&reply)))
        };
        let session = plugin.replace("-auth", "_session");
        assert_eq!(ask("GET / HTTP/1.1\nHost: h\nX-Userinfo: root"), "302 https://shop/login");
        assert_eq!(
            ask(&format!("GET / HTTP/1.1\nHost: h\nCookie: {session}=AAAA")),
            "302 https://shop/login"
        );
        let invalid = "401 {\"message\":\"Invalid authorization code\"} ";
        assert_eq!(ask("GET /?code= HTTP/1.1\nHost: h"), invalid);
        assert_eq!(ask("GET /?code=a&code=b HTTP/1.1\nHost: h"), invalid);
        // There is no platform here.
        let away = if plugin == "feishu-auth" {
            invalid
        } else {
            "500 {\"message\":\"Failed to obtain access token\"} "
        };
        assert_eq!(ask("GET /?code=a HTTP/1.1\nHost: h"), away);
        assert_eq!(ask("GET / HTTP/1.1\nHost: h\nX-Other: a"), "302 https://shop/login");
    }
}

#[test]
fn acl_knows_the_user() {
    let party = super::Party {
        name: "dingtalk-auth",
        cookie: super::SessionCookie::new("s".to_owned(), "12345678", [], &[]),
        lives_s: 900,
        code_header: "X-Code".to_owned(),
        code_query: "code".to_owned(),
        redirect_uri: "/".to_owned(),
        tells_user: false,
    };
    let check = |groups: Value, expected: &str| {
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        party.tell(&super::User::from_iter([("groups".to_owned(), groups)]), &mut case.ctx);
        let acl = entry("acl", json!({"allow_labels": {"groups": ["staff"]}})).unwrap();
        assert!(summary(case.run(&acl, Phase::Access).as_ref()).starts_with(expected));
    };
    check(json!(["staff", "board"]), "passed");
    check(json!(["guests"]), "403");
}
