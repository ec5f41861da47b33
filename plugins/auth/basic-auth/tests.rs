//! Listed users, and addresses that need no login.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sigma_plugin::Phase;

use crate::testing::{Case, entry, refusal, summary};

const SHA: &str = "jack:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=";
const BCRYPT: &str = "jill:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a";

fn login(login: &str) -> String {
    format!("GET / HTTP/1.1\nHost: h\nX-User: forged\nAuthorization: Basic {}", STANDARD.encode(login))
}

#[test]
fn listed_users_are_admitted() {
    let conf = json!({"users": [SHA, BCRYPT], "user_field": "X-User", "hide_credentials": true});
    let entry = entry("basic-auth", conf).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    // A consumer with the same plugin is not asked.
    case.consumer("joe", "basic-auth", &json!({"username": "joe", "password": "secret"}));
    let mut check = |login_of: &str, user: Option<&str>| {
        case.request(&login(login_of));
        let reply = case.run(&entry, Phase::Rewrite);
        assert_eq!(reply.as_ref().map(|reply| reply.status), user.is_none().then_some(401), "{login_of}");
        if user.is_some() {
            assert_eq!(case.sent("X-User").as_deref(), user, "{login_of}");
            assert_eq!(case.sent("Authorization"), None, "{login_of}");
            assert!(case.ctx.personal.is_marked());
        }
    };
    check("jack:secret", Some("jack"));
    for _ in 0..2 {
        check("jill:secret", Some("jill"));
        check("jill:wrong", None);
    }
    for wrong in ["jack:", "jack:Secret", "joe:secret", ":secret", "jack :secret"] {
        check(wrong, None);
    }
}

#[test]
fn spaces_may_follow_the_scheme() {
    let entry = entry("basic-auth", json!({"users": [SHA]})).unwrap();
    let check = |field: &str, passes: bool| {
        let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: h\nAuthorization: {field}"));
        assert_eq!(case.run(&entry, Phase::Rewrite).is_none(), passes, "{field}");
    };
    let login = STANDARD.encode("jack:secret");
    for scheme in ["Basic ", "basic  ", "BASIC    "] {
        check(&format!("{scheme}{login}"), true);
    }
    check(&format!("Basic{login}"), false);
    check("Basic  ", false);
}

#[test]
fn exempt_addresses_need_no_login() {
    let check = |conf: Value, addr: &str, expected: &str| {
        let entry = entry("basic-auth", conf.clone()).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h\nX-Consumer-Username: forged");
        case.consumer("joe", "basic-auth", &json!({"username": "joe", "password": "secret"}));
        case.ctx.client.addr = addr.parse().ok();
        let reply = case.run(&entry, Phase::Rewrite);
        assert_eq!(summary(reply.as_ref()), expected, "{conf} {addr}");
    };
    const REFUSED: &str = r#"401 {"message":"Missing authorization in request"}"#;
    let conf = || json!({"exempt_addresses": ["10.0.0.0/8", "::1"]});
    check(conf(), "10.1.2.3", "passed");
    check(conf(), "::1", "passed");
    check(conf(), "192.0.2.1", REFUSED);
    check(conf(), "", REFUSED);
    check(json!({"users": [SHA], "exempt_addresses": ["0.0.0.0/0"]}), "192.0.2.1", "passed");
    check(json!({"users": [SHA]}), "10.1.2.3", REFUSED);
}

#[test]
fn lists_that_cannot_be_read_are_refused() {
    let check = |conf: Value, expected: &str| {
        let error = refusal("basic-auth", &conf);
        assert!(error.contains(expected), "{conf}: {error}");
    };
    check(json!({"users": ["jack:secret"]}), "users[0]: user `jack`: it is not a hash");
    check(json!({"users": []}), "users");
    check(json!({"user_field": "X-User"}), "user_field: it needs");
    check(json!({"exempt_addresses": ["10.0.0.0/40"]}), "10.0.0.0/40");
    // A file that is not there closes the route.
    let error = entry("basic-auth", json!({"auth_file": "/nonexistent"})).err().unwrap();
    assert!(error.contains("auth_file /nonexistent"), "{error}");
    let error = entry("basic-auth", json!({"users": ["$env://NO_SUCH"]})).err().unwrap();
    assert!(error.contains("users/0"), "{error}");
}
