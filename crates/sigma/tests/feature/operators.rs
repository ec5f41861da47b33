//! The listeners for operators against callers that mean no good.

use serde_json::json;
use sigma_testkit::{Origin, Peer};

use crate::managed::{EMBEDDED, KEY, admin, answerer, await_answerer, route, start};

/// One request of an admin, as bytes.
fn call(method: &str, target: &str, body: &str) -> String {
    format!(
        "{method} {target} HTTP/1.1\r\nHost: operator\r\nX-API-KEY: {KEY}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// What is nested a thousand times, in a path or in a body, is refused and takes no stack.
#[test]
fn depth_is_bounded_wherever_it_comes_from() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    admin(&gateway).put("routes/1", &route("/1", &origin)).unwrap();
    await_answerer(&gateway, "/1", "a");
    let path = |parts: usize| format!("/apisix/admin/routes/1{}", "/a".repeat(parts));
    let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    let object = |levels: usize| format!("{{\"desc\":{}}}", nested(levels));
    for (method, target, body) in [
        ("PATCH", path(15_000), "1".to_owned()),
        ("PATCH", path(30_000), "1".to_owned()),
        ("PATCH", path(40), nested(40)),
        ("PATCH", path(0), object(700_000)),
        ("PUT", path(0), object(700_000)),
        ("PUT", path(0), object(100)),
        ("POST", "/apisix/admin/schema/validate/routes".to_owned(), object(100)),
        ("POST", "/apisix/admin/configs/validate".to_owned(), object(100)),
    ] {
        let answer = Peer::connect(&gateway.admin_address()).unwrap().ask(call(method, &target, &body));
        let answer = answer.unwrap_or_else(|error| panic!("{method} of {} bytes: {error:#}", target.len()));
        assert_eq!(answer.status(), 400, "{method}: {}", answer.text());
    }
    let shown = admin(&gateway).get("/apisix/admin/routes/1").unwrap();
    assert_eq!(shown["value"]["a"], json!(null), "{shown}");
    assert_eq!(answerer(&gateway, "/1"), "a");
}
