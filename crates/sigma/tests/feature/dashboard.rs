//! The dashboard, as a browser requests it, and its requests to the gateway. That it works in a browser is
//! shown by `servers::dashboard`.

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Message, Operator, Origin, free_port, until};

use crate::managed::{self, EMBEDDED, VIEWER, admin, await_answerer, route, start};
use crate::{PATIENCE, SIGMA};

/// A call without a key.
fn ask(gateway: &Gateway, method: &str, target: &str, fields: &str) -> Message {
    Operator::new(gateway.admin_address()).call_with(method, target, fields, None).unwrap()
}

#[test]
fn its_files_are_served_with_restrictions() {
    let gateway = start(EMBEDDED);
    let check = |target: &str, media_type: &str| {
        let answer = ask(&gateway, "GET", target, "");
        assert_eq!((answer.status(), answer.head.get("content-type")), (200, Some(media_type)), "{target}");
        assert!(!answer.text().is_empty(), "{target}");
        let policy = answer.head.get("content-security-policy").unwrap();
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.split("; ").any(|one| one == part), "{target}: {policy}");
        }
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cache-control", "no-cache"),
        ] {
            assert_eq!(answer.head.get(name), Some(value), "{target}");
        }
        // Pages of others may not read it.
        assert_eq!(answer.head.get("access-control-allow-origin"), None, "{target}");
    };
    check("/ui/", "text/html; charset=utf-8");
    check("/ui/index.html", "text/html; charset=utf-8");
    check("/ui/main.js", "text/javascript; charset=utf-8");
    check("/ui/views/live.js?x=1", "text/javascript; charset=utf-8");
    check("/ui/style.css", "text/css; charset=utf-8");
    check("/ui/icon.svg", "image/svg+xml");
    let moved = ask(&gateway, "GET", "/ui", "");
    assert_eq!((moved.status(), moved.head.get("location")), (308, Some("/ui/")));
    for unknown in [
        "/ui/nothing.js",
        "/ui/views/",
        "/ui/../Cargo.toml",
        "/ui/%2e%2e/Cargo.toml",
        "/ui/test/lib.test.js",
        "/uix",
    ] {
        assert_eq!(ask(&gateway, "GET", unknown, "").status(), 404, "{unknown}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let answer = ask(&gateway, method, "/ui/", "");
        assert_eq!((answer.status(), answer.head.get("allow")), (405, Some("GET, HEAD")), "{method}");
    }
}

#[test]
fn unchanged_files_are_not_sent_again() {
    let gateway = start(EMBEDDED);
    let first = ask(&gateway, "GET", "/ui/main.js", "");
    let tag = first.head.get("etag").unwrap();
    assert!(tag.starts_with('"') && tag.len() == 34, "{tag}");
    let check = |condition: &str, status: u16| {
        let answer = ask(&gateway, "GET", "/ui/main.js", &format!("If-None-Match: {condition}\r\n"));
        assert_eq!((answer.status(), answer.head.get("etag")), (status, Some(tag)), "{condition}");
        assert_eq!(answer.text().is_empty(), status == 304, "{condition}");
        assert!(answer.head.get("content-security-policy").is_some(), "{condition}");
    };
    check(tag, 304);
    check(&format!("\"other\", W/{tag}"), 304);
    check("*", 304);
    check("\"other\"", 200);
    let other = ask(&gateway, "GET", "/ui/api.js", "");
    assert_ne!(other.head.get("etag"), Some(tag));
    let head = ask(&gateway, "HEAD", "/ui/main.js", "");
    assert_eq!((head.status(), head.head.get("etag")), (200, Some(tag)));
    let length = first.text().len().to_string();
    assert_eq!((head.head.get("content-length"), &*head.text()), (Some(&*length), ""));
}

#[test]
fn names_of_strangers_and_other_peers_are_refused() {
    let gateway = start(EMBEDDED);
    let mut stranger = sigma_testkit::Peer::connect(&gateway.admin_address()).unwrap();
    let answer = stranger.ask("GET /ui/ HTTP/1.1\r\nHost: evil.example\r\n\r\n").unwrap();
    assert_eq!(answer.status(), 403);
    assert!(answer.text().contains("operators.hosts"), "{}", answer.text());
    let closed = managed::config(EMBEDDED).replace("  keys:\n", "  allow: [\"127.0.0.2\"]\n  keys:\n");
    let closed = Gateway::start(SIGMA, &closed).unwrap();
    managed::await_admin(&closed);
    let answer = ask(&closed, "GET", "/ui/", "");
    assert_eq!(answer.status(), 403);
    assert!(answer.text().contains("admin.allow"), "{}", answer.text());
}

#[test]
fn it_can_be_switched_off() {
    let off = managed::config(EMBEDDED).replace("  keys:\n", "  ui: false\n  keys:\n");
    let gateway = Gateway::start(SIGMA, &off).unwrap();
    managed::await_admin(&gateway);
    for target in ["/ui", "/ui/", "/ui/main.js"] {
        assert_eq!(ask(&gateway, "GET", target, "").status(), 404, "{target}");
    }
    assert_eq!(admin(&gateway).call("GET", "/apisix/admin/routes", None).unwrap().status(), 200);
}

#[test]
fn callers_learn_their_permissions() {
    let gateway = start(EMBEDDED);
    assert_eq!(ask(&gateway, "GET", "/apisix/admin/caller", "").status(), 401);
    let caller = admin(&gateway).get("/apisix/admin/caller").unwrap();
    let expected = json!({"role": "admin", "key_required": true, "api_version": "v3", "streams": false});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&caller[name], value, "{name}");
    }
    let viewer = Operator::new(gateway.admin_address()).with_key(VIEWER);
    assert_eq!(viewer.get("/apisix/admin/caller").unwrap()["role"], "viewer");
    for question in ["live", "nodes", "certificates", "revision"] {
        let target = format!("/apisix/admin/{question}");
        assert_eq!(ask(&gateway, "GET", &target, "").status(), 401, "{question}");
        assert!(!viewer.get(&target).unwrap().is_null(), "{question}");
        assert_eq!(admin(&gateway).call("PUT", &target, None).unwrap().status(), 404, "{question}");
    }
    let page = admin(&gateway).call("GET", "/apisix/admin/plugins/limit-count/documentation", None).unwrap();
    assert_eq!(page.head.get("content-type"), Some("text/markdown; charset=utf-8"));
    assert!(page.text().starts_with("# limit-count\n"), "{}", page.text());
    let summaries = viewer.get("/apisix/admin/plugins/summaries").unwrap();
    let expected = json!({
        "description": "Limits requests per time window (rate limit, quota).",
        "group": "traffic",
        "priority": 1002,
        "phases": ["access", "header_filter"],
        "scopes": ["route", "metadata"],
    });
    assert_eq!(summaries["limit-count"], expected);
    let unknown = admin(&gateway).call("GET", "/apisix/admin/plugins/nothing/documentation", None).unwrap();
    assert_eq!(unknown.status(), 404);
}

/// Figures by route, by node and by consumer are counted from the first query on.
#[test]
fn requests_are_counted_while_the_dashboard_queries() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    operator.put("routes/r", &route("/x", &origin)).unwrap();
    await_answerer(&gateway, "/x", "a");
    let look = || operator.get("/apisix/admin/live").unwrap();
    let before = look();
    assert!(before["since_start"]["counters"]["requests"].as_u64().unwrap() > 0, "{before}");
    assert_eq!(before["window"]["routes"], json!([]), "{before}");
    let row = |seen: &Value, list: &str| seen["window"][list].as_array().unwrap().first().cloned();
    // Workers hear of it at their next tick.
    let is_counted = until(PATIENCE, || {
        assert_eq!(gateway.connect().unwrap().get("/x").unwrap().status(), 200);
        assert_eq!(gateway.connect().unwrap().get("/nothing").unwrap().status(), 404);
        row(&look(), "routes").is_some()
    });
    assert!(is_counted, "{}", look());
    let seen = look();
    let (route, node) = (row(&seen, "routes").unwrap(), row(&seen, "nodes").unwrap());
    assert_eq!((&route["id"], &route["client_errors"]), (&json!("r"), &json!(0)), "{seen}");
    assert_eq!(node["address"], json!(format!("127.0.0.1:{}", origin.port())), "{seen}");
    assert!(node["requests"].as_u64().unwrap() > 0 && node["p50_ms"].as_f64().unwrap() > 0.0, "{seen}");
    assert!(route["p99_ms"].as_f64().unwrap() >= route["p50_ms"].as_f64().unwrap(), "{seen}");
    assert_eq!(seen["window"]["consumers"], json!([]), "{seen}");
    let key_auth = json!({"username": "jack", "plugins": {"key-auth": {"key": "heron"}}});
    operator.put("consumers/jack", &key_auth).unwrap();
    operator
        .put(
            "routes/k",
            &json!({"uri": "/k", "plugins": {"key-auth": {}, "mocking": {"response_status": 503, "response_example": "no"}}}),
        )
        .unwrap();
    let has_consumer = until(PATIENCE, || {
        let request = "GET /k HTTP/1.1\r\nHost: h\r\napikey: heron\r\n\r\n";
        gateway.connect().unwrap().ask(request).unwrap();
        row(&look(), "consumers")
            .is_some_and(|row| row["name"] == "jack" && row["server_errors"].as_u64() > Some(0))
    });
    assert!(has_consumer, "{}", look());
    let total = &seen["window"]["total"];
    assert!(total["client_errors"].as_u64().unwrap() > 0, "those without a route count in the total: {seen}");
    let nobody = format!("127.0.0.1:{}", free_port());
    operator.put("routes/n", &json!({"uri": "/n", "upstream": {"nodes": {&nobody: 1}}})).unwrap();
    let fails = until(PATIENCE, || {
        let _ = gateway.connect().unwrap().get("/n").unwrap();
        let seen = look();
        let has_failed = |list: &str, name: &str, expected: &str| {
            let mut rows = seen["window"][list].as_array().unwrap().iter();
            rows.any(|row| row[name] == expected && row["faults"].as_u64() > Some(0))
        };
        has_failed("routes", "id", "n") && has_failed("nodes", "address", &nobody)
    });
    assert!(fails, "{}", look());
}
