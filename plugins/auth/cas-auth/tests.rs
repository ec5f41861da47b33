//! Tests of cas-auth: valid configurations, and requests that are accepted.

use serde_json::{Value, json};
use sigma_schema::plugins::PluginScope;

use super::*;
use crate::testing::{Case, assert_refusal, field, merged, summary, warned};

fn conf(more: Value) -> Value {
    merged(
        json!({
            "idp_uri": "https://cas/cas/", "cas_callback_uri": "https://shop/back", "logout_uri": "/logout",
            "cookie": {"secret": "0123456789abcdef0123456789abcdef"}
        }),
        &more,
    )
}

#[test]
fn configurations() {
    let check = |more: Value, expected: &str| {
        assert_refusal(NAME, &conf(more), expected);
    };
    let secret = "0123456789abcdef0123456789abcdef";
    check(json!({}), "");
    check(json!({"cookie": {"secret": "short"}}), "string too short");
    check(
        json!({"cookie": {"secret": secret, "samesite": "None", "secure": false}}),
        "cookie.secure must be true when cookie.samesite is \"None\"",
    );
    check(json!({"cookie": {"secret": secret, "samesite": "Strict"}}), "matches none of the enum values");
    check(json!({"idp_uri": "cas"}), "`cas` has no scheme");
    check(json!({"idp_uri": "https://cas/?a"}), "has a query");
    check(json!({"cas_callback_uri": "/a?b"}), "`/a?b` is not a path");
    check(json!({"cas_callback_uri": "back"}), "`back` has no scheme");
    check(json!({"logout_uri": "logout"}), "`logout` is not a path");
    check(json!({"logout_uri": "/back"}), "every login would end in a logout");
    let clear = json!({"idp_uri": "http://cas", "cas_callback_uri": "/back", "cookie": {"secret": secret, "secure": false}});
    assert_eq!(
        warned(NAME, PluginScope::Http, &conf(clear)),
        ["idp_uri", "cas_callback_uri", "cookie.secure"]
    );
}

fn party(more: Value, case: &Case) -> Arc<Party> {
    let mut conf = conf(more);
    conf["max_req_body_size"] = 1000.into();
    for (name, value) in [("secure", json!(true)), ("samesite", json!("Lax"))] {
        if conf["cookie"].get(name).is_none() {
            conf["cookie"][name] = value;
        }
    }
    CasAuth::new(&Build::new(NAME, &conf, "", &Value::Null, &case.node)).unwrap().0
}

#[test]
fn the_way_back_is_the_gateways() {
    let case =
        |cookie: &str| Case::new(&format!("GET /back?ticket=a HTTP/1.1\nHost: shop\nCookie: {cookie}"));
    let party = party(json!({}), &case("a=b"));
    let check = |cookie: &str, expected: Option<&str>| {
        assert_eq!(party.way_back(&case(cookie).ctx).as_deref(), expected, "{cookie}");
    };
    let signed = party.signed("/orders?a=b");
    check(&format!("CAS_REQUEST_URI={signed}"), Some("/orders?a=b"));
    check(&format!("CAS_REQUEST_URI={signed}; CAS_REQUEST_URI={signed}"), None);
    for foreign in ["//evil.test", "/\\evil.test", "https://evil.test", "/a\r\nb"] {
        check(&format!("CAS_REQUEST_URI={}", party.signed(foreign)), None);
    }
    let forged = STANDARD_NO_PAD.encode("/admin");
    check(&format!("CAS_REQUEST_URI={forged}.{}", signed.split_once('.').unwrap().1), None);
    check(&format!("CAS_REQUEST_URI={forged}"), None);
    check("a=b", None);
}

#[test]
fn the_host_of_a_whole_url_is_nobodys_choice() {
    let case = Case::new("GET /a HTTP/1.1\nHost: Evil.test:81\nX-Forwarded-Host: evil.test");
    assert_eq!(party(json!({}), &case).service(&case.ctx), "https://shop/back");
    assert_eq!(
        party(json!({"cas_callback_uri": "/back"}), &case).service(&case.ctx),
        "http://evil.test:0/back"
    );
}

#[test]
fn sessions_are_of_one_configuration() {
    let mut case = Case::new("GET / HTTP/1.1\nHost: shop");
    let (one, other) = (party(json!({}), &case), party(json!({"idp_uri": "https://cas2"}), &case));
    let (node, local, consumers) =
        (case.node.clone(), case.local.clone(), sigma_plugin::Consumers::default());
    let env = Env::new(&node, &local, &consumers);
    assert!(one.sessions.begin(&one.fingerprint, "ST-1", &env));
    assert!(!one.sessions.begin(&one.fingerprint, "ST-1", &env), "a ticket is taken once");
    let mut ask = |party: &Arc<Party>, line: &str, cookie: &str, body: &str| {
        case.request(&format!("{line} HTTP/1.1\nHost: shop\nCookie: {cookie}"));
        case.body = body.into();
        let step = CasAuth(Arc::clone(party)).access(&mut case.ctx, &env);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let reply = runtime.block_on(step.settled(&mut case.ctx, &env, case.body.clone())).unwrap();
        let cookies =
            reply.iter().flat_map(|reply| &reply.headers).filter(|(name, _)| name == "Set-Cookie").count();
        let location = reply.as_ref().and_then(|reply| field(reply, "Location")).unwrap_or_default();
        (summary(reply.as_ref()), cookies, location)
    };
    let with = |party: &Party, ticket: &str| format!("{}={ticket}", party.session_cookie);
    let login = |cookies| {
        ("302".to_owned(), cookies, "https://cas/cas/login?service=https%3A%2F%2Fshop%2Fback".to_owned())
    };
    let plain = |text: &str, cookies| (text.to_owned(), cookies, String::new());
    assert_eq!(ask(&one, "GET /a", &with(&one, "ST-1"), ""), plain("passed", 0));
    assert_eq!(ask(&one, "GET /a", &with(&one, "ST-2"), ""), login(2));
    assert_eq!(ask(&one, "GET /a", "x=y", ""), login(1));
    assert_eq!(ask(&one, "GET /a?ticket=ST-1", "x=y", ""), login(1), "not the callback");
    assert_eq!(ask(&other, "GET /a", &with(&other, "ST-1"), "").0, "302");
    assert_eq!(ask(&one, "GET /logout", "x=y", ""), plain("401", 0));
    let no_ticket = r#"400 {"message":"invalid logout request from IdP, no ticket"}"#;
    assert_eq!(ask(&one, "POST /back", "x=y", "hello"), plain(no_ticket, 0));
    let ended = "<samlp:SessionIndex>ST-1</samlp:SessionIndex>";
    assert_eq!(ask(&other, "POST /back", "x=y", ended), plain("200", 0));
    assert_eq!(ask(&one, "GET /a", &with(&one, "ST-1"), ""), plain("passed", 0), "of another server");
    assert_eq!(
        ask(&one, "POST /back", "x=y", &ended.repeat(50)),
        plain(no_ticket, 0),
        "too large, and ambiguous"
    );
    assert_eq!(ask(&one, "POST /back", "x=y", ended), plain("200", 0));
    assert_eq!(ask(&one, "GET /a", &with(&one, "ST-1"), ""), login(2));
    assert!(one.sessions.begin(&one.fingerprint, "ST-3", &env));
    let out = ask(&one, "GET /logout", &with(&one, "ST-3"), "");
    assert_eq!(out, ("302".to_owned(), 1, "https://cas/cas/logout".to_owned()));
    assert_eq!(ask(&one, "GET /a", &with(&one, "ST-3"), ""), login(2));
    let state = r#"401 {"message":"invalid callback state"}"#;
    assert_eq!(ask(&one, "GET /back?ticket=ST-9", "x=y", ""), plain(state, 0));
    let back = format!("CAS_REQUEST_URI={}", one.signed("/a"));
    let invalid = r#"401 {"message":"invalid ticket"}"#;
    assert_eq!(ask(&one, "GET /back?ticket=ST-9%26service%3Dx", &back, ""), plain(invalid, 0));
    assert_eq!(ask(&one, "GET /back?ticket=ST-9", &back, ""), plain(invalid, 0), "nobody can be asked");
}
