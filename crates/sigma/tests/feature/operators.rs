//! The listeners for operators against callers that mean no good.

use std::time::Duration;

use serde_json::json;
use sigma_testkit::{Address, Gateway, Origin, Peer, until};

use crate::managed::{EMBEDDED, KEY, admin, answerer, await_answerer, route, start};
use crate::{PATIENCE, SIGMA};

/// One request of an admin, as bytes.
fn call(method: &str, target: &str, body: &str) -> String {
    format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {KEY}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Paths and bodies that are nested a thousand times are refused and take no stack.
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

const HOUR: &str = "head_timeout_ms: 3600000, body_timeout_ms: 3600000, stall_timeout_ms: 3600000";

/// All listeners for operators of a gateway.
fn doors(gateway: &Gateway) -> [(Address, &'static str); 3] {
    [
        (gateway.admin_address(), "/apisix/admin/routes"),
        (gateway.control_address(), "/v1/revision"),
        (gateway.status_address(), "/status/ready"),
    ]
}

/// A client that sends half a head, or nothing, is closed after the time-out of heads.
#[test]
fn heads_are_waited_for_so_long_and_no_longer() {
    let gateway = start(&format!("{EMBEDDED}\noperators: {{ head_timeout_ms: 300 }}"));
    for (address, target) in doors(&gateway) {
        for begin in ["", "GET ", &format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n")] {
            let mut peer = Peer::connect(&address).unwrap().with_deadline(PATIENCE);
            peer.send(begin).unwrap();
            peer.expect_closed().unwrap_or_else(|error| panic!("{target} after {begin:?}: {error:#}"));
        }
        // An idle connection as well.
        let mut peer = Peer::connect(&address).unwrap().with_deadline(PATIENCE);
        assert!(peer.ask(call("GET", target, "")).unwrap().status() < 300, "{target}");
        peer.expect_closed().unwrap();
    }
}

/// Connections that are only held open make room for those that request something.
#[test]
fn held_connections_do_not_block_others() {
    let gateway = start(&format!("{EMBEDDED}\noperators: {{ connections: 3, {HOUR} }}"));
    for (address, target) in doors(&gateway) {
        let mut held: Vec<Peer> = Vec::new();
        for begin in ["", "GET / HT", "", "GET / HTTP/1.1\r\nA: b", "", ""] {
            let mut peer = Peer::connect(&address).unwrap();
            peer.send(begin).unwrap();
            held.push(peer);
        }
        for _ in 0..3 {
            let mut peer = Peer::connect(&address).unwrap().with_deadline(PATIENCE);
            let answer = peer.ask(call("GET", target, "")).unwrap_or_else(|e| panic!("{target}: {e:#}"));
            assert!(answer.status() < 300, "{target}: {}", answer.text());
            held.push(peer);
        }
    }
    // A connection with a call in progress stays, and all the others make room for the next.
    let mut writers: Vec<Peer> = (0..2).map(|_| Peer::connect(&gateway.admin_address()).unwrap()).collect();
    let body = json!({"uri": "/slow"}).to_string();
    for writer in &mut writers {
        let whole = call("PUT", "/apisix/admin/services/s?dry_run=true", &body);
        writer.send(&whole[..whole.len() - 1]).unwrap();
    }
    for _ in 0..5 {
        let answer = Peer::connect(&gateway.admin_address()).unwrap().with_deadline(PATIENCE);
        assert_eq!({ answer }.ask(call("GET", "/apisix/admin/routes", "")).unwrap().status(), 200);
    }
    for mut writer in writers {
        writer.send("}").unwrap();
        assert_eq!(writer.with_deadline(PATIENCE).read_response("PUT").unwrap().status(), 400);
    }
}

/// A client that writes all of its body before it reads gets to know why that was refused, and may continue with the
/// same connection.
#[test]
fn refusals_can_be_read_by_who_still_writes() {
    let gateway = start(EMBEDDED);
    let large = "x".repeat(8 << 20);
    let mut peer = Peer::connect(&gateway.admin_address()).unwrap().with_deadline(PATIENCE);
    let refused = peer.ask(call("PUT", "/apisix/admin/routes/1", &large)).unwrap();
    let said = refused.text();
    assert_eq!(refused.status(), 400, "{said}");
    assert!(said.contains("request size 8388608 is greater than the maximum size 1572864 allowed"), "{said}");
    let stranger = call("PUT", "/apisix/admin/routes/1", &large).replace(KEY, "nobody");
    assert_eq!(peer.ask(stranger).unwrap().status(), 401);
    assert_eq!(peer.ask(call("GET", "/apisix/admin/routes", "")).unwrap().status(), 200);
    // In chunks the length is not known before.
    let chunked = format!(
        "PUT /apisix/admin/routes/1 HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {KEY}\r\nTransfer-Encoding: chunked\r\n\r\n800000\r\n{large}\r\n0\r\n\r\n"
    );
    assert_eq!(peer.ask(chunked).unwrap().status(), 400);
    // A client that waits for 100 Continue sends nothing.
    let waits = format!(
        "PUT /apisix/admin/routes/1 HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {KEY}\r\nExpect: 100-continue\r\nContent-Length: 8388608\r\n\r\n"
    );
    let mut peer = Peer::connect(&gateway.admin_address()).unwrap().with_deadline(PATIENCE);
    assert_eq!(peer.ask(waits).unwrap().status(), 400);
    // A body that is much too large is not read to its end.
    let gateway = start(&format!("{EMBEDDED}\noperators: {{ linger_bytes: 1000, head_bytes: 8192 }}"));
    let mut peer = Peer::connect(&gateway.admin_address()).unwrap().with_deadline(PATIENCE);
    let sent = peer.send(call("PUT", "/apisix/admin/routes/1", &large));
    assert!(sent.is_err() || peer.read_to_close().is_ok());
    let head = format!("GET /status/ready HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    for (address, _) in doors(&gateway) {
        let answer = Peer::connect(&address).unwrap().ask(&head).unwrap();
        assert_eq!(answer.status(), 431);
    }
}

/// A body that stops is waited for so long, and a client that does not read as well.
#[test]
fn bodies_and_readers_are_waited_for_so_long() {
    let gateway = start(&format!("{EMBEDDED}\noperators: {{ body_timeout_ms: 300, stall_timeout_ms: 300 }}"));
    let mut peer = Peer::connect(&gateway.admin_address()).unwrap().with_deadline(PATIENCE);
    let whole = call("PUT", "/apisix/admin/services/s", "{}");
    peer.send(&whole[..whole.len() - 1]).unwrap();
    assert_eq!(peer.read_response("PUT").unwrap().status(), 408);
    // Unread answers fill every buffer on the way; then the connection ends.
    let mut deaf = Peer::connect(&gateway.control_address()).unwrap().with_deadline(Duration::from_secs(1));
    let asked = call("GET", "/v1/schema", "");
    let left = until(PATIENCE, || deaf.send(asked.repeat(50)).is_err());
    assert!(left, "answers are written to nobody");
}

/// Resources of a file are shown as APISIX shows them.
#[test]
fn the_control_api_shows_the_resources_of_a_file() {
    let origin = Origin::echo("a").unwrap();
    let gateway = crate::in_front_of(&origin, "control: { address: \"{control}\" }");
    let ask = |line: &str| {
        let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        Peer::connect(&gateway.control_address()).unwrap().ask(request).unwrap()
    };
    let routes = ask("GET /v1/routes").json().unwrap();
    let node = json!({"host": "127.0.0.1", "port": origin.port(), "weight": 1});
    assert_eq!(
        (&routes[0]["key"], &routes[0]["value"]["upstream"]["nodes"]),
        (&json!("/routes/all"), &json!([node]))
    );
    assert_eq!(routes[0]["value"]["upstream"].get("retry_timeout"), None);
    assert_eq!(routes[0]["value"].get("method_not_allowed"), None);
    assert_eq!(ask("GET /v1/services").text(), "{}\n");
    let root = ask("GET /");
    assert!(root.status() == 404 && root.text().contains("/v1/nodes"), "{}", root.text());
    for line in ["GET /v1/plugins/reload", "POST /v1/routes", "DELETE /v1/route/all"] {
        assert_eq!(ask(line).status(), 404, "{line}");
    }
}

/// The Admin API stores and shows the written values; the Control API adds the defaults that APISIX adds.
#[test]
fn apis_show_the_defaults_that_apisix_shows() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let written = json!({"count": 2, "time_window": 60, "rejected_code": 503, "key": "remote_addr"});
    let service = json!({"plugins": {"limit-count": written},
        "upstream": {"type": "roundrobin", "nodes": {format!("127.0.0.1:{}", origin.port()): 1}}});
    let put = call("PUT", "/apisix/admin/services/5", &service.to_string());
    let stored = Peer::connect(&gateway.admin_address()).unwrap().ask(put).unwrap().json().unwrap();
    assert_eq!(stored["value"]["plugins"], json!({"limit-count": written}));
    let ask = || {
        let request = "GET /v1/service/5 HTTP/1.1\r\nHost: localhost\r\n\r\n";
        Peer::connect(&gateway.control_address()).unwrap().ask(request).unwrap()
    };
    assert!(until(PATIENCE, || ask().status() == 200));
    let shown = ask().json().unwrap();
    let limit = json!({"_meta": {}, "allow_degradation": false, "count": 2, "key": "remote_addr", "key_type": "var",
        "policy": "local", "rejected_code": 503, "show_limit_quota_header": true, "sync_interval": -1,
        "time_window": 60, "window_type": "fixed"});
    assert_eq!(shown["value"]["plugins"], json!({"limit-count": limit}));
    let nodes = json!([{"host": "127.0.0.1", "port": origin.port(), "weight": 1}]);
    let upstream = json!({"hash_on": "vars", "nodes": nodes, "pass_host": "pass", "scheme": "http",
        "type": "roundrobin"});
    assert_eq!(shown["value"]["upstream"], upstream);
}

/// A foreign page cannot change anything, nor read the served configuration.
#[test]
fn pages_of_strangers_reach_nothing() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let secret = json!({"uri": "/1", "upstream": {"nodes": {format!("127.0.0.1:{}", origin.port()): 1}},
        "plugins": {"limit-count": {"count": 9, "time_window": 9, "policy": "redis", "redis_host": "127.0.0.1",
            "redis_password": "sesame"}}});
    admin(&gateway).put("routes/1", &secret).unwrap();
    let ask = |address: &Address, fields: &str| {
        let request = format!("GET /v1/routes HTTP/1.1\r\n{fields}\r\n\r\n");
        let answer = Peer::connect(address).unwrap().ask(request).unwrap();
        (answer.status(), answer.text())
    };
    let control = gateway.control_address();
    assert!(until(PATIENCE, || ask(&control, "Host: localhost").1.contains("limit-count")));
    let (status, text) = ask(&control, &format!("Host: {control}"));
    assert_eq!(status, 200);
    assert!(text.contains("\"redis_password\":\"***\"") && !text.contains("sesame"), "{text}");
    for stranger in [
        "Host: evil.example",
        "Host: localhost\r\nOrigin: http://evil.example",
        "Host: localhost\r\nSec-Fetch-Site: cross-site",
    ] {
        let (status, text) = ask(&control, stranger);
        assert!(status == 403 && !text.contains("limit-count"), "{stranger}: {status} {text}");
    }
    let open = crate::managed::config(EMBEDDED).replace("  keys:\n", "  key_required: false\n  keys:\n");
    let gateway = Gateway::start(SIGMA, &open).unwrap();
    crate::managed::await_admin(&gateway);
    let put = |fields: &str| {
        let body = route("/1", &origin).to_string();
        let request = format!(
            "PUT /apisix/admin/routes/1 HTTP/1.1\r\n{fields}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        Peer::connect(&gateway.admin_address()).unwrap().ask(request).unwrap().status()
    };
    assert_eq!(put("Host: localhost\r\nOrigin: http://evil.example"), 403);
    assert_eq!(put("Host: evil.example\r\nOrigin: http://evil.example"), 403);
    assert_eq!(put("Host: localhost"), 201);
}
