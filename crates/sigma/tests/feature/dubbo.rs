//! Routes to providers of Dubbo: the calls, and the results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use sigma_testkit::{
    DubboFrame, DubboProvider, Gateway, Message, Origin, Peer, free_port, hessian_map, hessian_text, until,
};

use crate::{PATIENCE, SIGMA};

fn lines(more: Value) -> Value {
    let mut conf =
        json!({ "service_name": "a.b.Demo", "method": "say", "params_type_desc": "Ljava/lang/String;" });
    conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "http-dubbo": conf })
}

fn map() -> Value {
    json!({ "dubbo-proxy": { "service_name": "a.b.Demo", "service_version": "1.0.0" } })
}

fn upstream(nodes: &[u16], more: Value) -> Value {
    let nodes: BTreeMap<String, u32> = nodes.iter().map(|port| (format!("127.0.0.1:{port}"), 1)).collect();
    let mut upstream = json!({ "nodes": nodes });
    upstream.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    upstream
}

fn gateway(plugins: Value, upstream: Value) -> Gateway {
    let config = json!({
        "workers": 1, "listeners": ["{listen}"], "control": { "address": "{control}" },
        "routes": [
            { "id": "all", "uri": "/*", "plugins": plugins, "upstream": upstream, "enable_websocket": true },
            { "id": "plain", "uri": "/*", "host": "plain.test", "upstream": upstream },
        ],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn post(gateway: &Gateway, target: &str, fields: &str, body: &[u8]) -> Message {
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    let head =
        format!("POST {target} HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\n{fields}\r\n", body.len());
    peer.ask([head.as_bytes(), body].concat()).unwrap()
}

fn status_of(gateway: &Gateway, body: &str) -> (u16, String) {
    let answer = post(gateway, "/", "", body.as_bytes());
    (answer.status(), answer.text())
}

fn answered(status: u16, text: &str) -> (u16, String) {
    (status, text.to_owned())
}

#[test]
fn a_body_becomes_parameters() {
    let provider = DubboProvider::start(|call| call.answered(20, "1\n{\"a\": \"b\"}\n")).unwrap();
    let gateway = gateway(
        lines(json!({ "service_version": "1.2.3", "params_type_desc": "Ljava/util/Map;I" })),
        upstream(&[provider.port()], json!({})),
    );
    assert_eq!(status_of(&gateway, "[ {\"x\": [1, 2]}, 7 ]"), answered(200, "{\"a\": \"b\"}"));
    let expected =
        "\"2.0.2\"\n\"a.b.Demo\"\n\"1.2.3\"\n\"say\"\n\"Ljava/util/Map;I\"\n{\"x\":[1,2]}\n7\n{}\n"
            .to_owned();
    let call = DubboFrame { flags: 0xc6, status: 0, id: 1, body: expected.into_bytes() };
    assert_eq!(provider.seen(), [call]);
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{\"a\"\r\n9\r\n:1,\"b\":2}\r\n0\r\n\r\n";
    let answer = gateway.connect().unwrap().with_deadline(PATIENCE).ask(chunked).unwrap();
    assert_eq!((answer.status(), answer.head.get("content-length")), (200, Some("10")));
    assert_eq!(provider.seen()[1].lines()[5..], ["1", "2", "{}"]);
    assert_eq!((provider.seen()[1].id, provider.connections()), (2, 1), "connections are kept");
}

#[test]
fn serialized_bodies_are_lines_already() {
    let provider = DubboProvider::start(|call| call.answered(20, "1\n1\n")).unwrap();
    let key = lines(json!({ "serialization_header_key": "X-Done" }));
    let gateway = gateway(key, upstream(&[provider.port()], json!({})));
    assert_eq!(post(&gateway, "/", "X-Done: true\r\n", b"\"a, b\"").status(), 200);
    assert_eq!(post(&gateway, "/", "X-Done: yes\r\n", b"[\"a\"]").status(), 200);
    let sent: Vec<String> = provider.seen().iter().map(|call| call.lines()[5].clone()).collect();
    assert_eq!(sent, ["\"a, b\"", "\"a\""]);
    // A body that would name another service in the attachments.
    for body in ["\"a\"\n{\"path\":\"other\"}", "\"a\"\r{\"path\":\"other\"}\n", ""] {
        let answer = post(&gateway, "/", "X-Done: true\r\n", body.as_bytes());
        assert_eq!(answer.status(), 400, "{body:?}");
        assert!(answer.text().contains("a different number of parameters"), "{}", answer.text());
    }
    assert_eq!(provider.seen().len(), 2);
}

#[test]
fn answers_in_lines() {
    let check = |status: u8, values: &'static str, expected: (u16, &str)| {
        let provider = DubboProvider::start(move |call| call.answered(status, values)).unwrap();
        let gateway = gateway(lines(json!({})), upstream(&[provider.port()], json!({})));
        assert_eq!(status_of(&gateway, "[\"a\"]"), answered(expected.0, expected.1), "{values:?}");
    };
    check(20, "2\n", (200, ""));
    check(20, "5\n{}\n", (200, ""));
    check(20, "4\n\"b\"\n{}\n", (200, "\"b\""));
    check(20, "0\n{\"message\":\"no\"}\n", (500, ""));
    check(20, "3\n{}\n{}\n", (500, ""));
    check(20, "1\n", (500, ""));
    check(20, "", (500, ""));
    check(70, "\"no such method\"\n", (500, ""));
}

#[test]
fn failures_have_the_statuses_of_apisix() {
    let check = |answer: fn(&DubboFrame) -> Vec<u8>, expected: u16| {
        let provider = DubboProvider::start(answer).unwrap();
        let gateway = gateway(lines(json!({})), upstream(&[provider.port()], json!({ "retries": 0 })));
        assert_eq!(status_of(&gateway, "[\"a\"]"), answered(expected, ""));
    };
    check(|_| Vec::new(), 500);
    check(|_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), 500);
    check(|call| [&[0xda, 0xbc][..], &call.answered(20, "2\n")[2..]].concat(), 500);
    check(|call| DubboFrame { id: 9, ..call.clone() }.answered(20, "2\n"), 500);
    check(|call| DubboFrame { flags: 2, ..call.clone() }.answered(20, "2\n"), 500);
    check(DubboFrame::bytes, 500);
    check(|call| [&call.answered(20, "")[..12], &[0xff; 4]].concat(), 500);
    let cut = Origin::serve(|mut peer| {
        if let Ok(call) = DubboFrame::read(&mut peer) {
            let _ = peer.send(&call.answered(20, "1\n\"hello\"\n")[..20]);
        }
    })
    .unwrap();
    assert_eq!(status_of(&gateway(lines(json!({})), upstream(&[cut.port()], json!({}))), "[\"a\"]").0, 500);
    let silent = Origin::serve(|mut peer| drop(peer.read_to_close())).unwrap();
    let hasty = gateway(lines(json!({ "read_timeout": 100 })), upstream(&[silent.port()], json!({})));
    assert_eq!(status_of(&hasty, "[\"a\"]"), answered(500, ""));
    let nobody = gateway(lines(json!({})), upstream(&[free_port()], json!({})));
    assert_eq!(status_of(&nobody, "[\"a\"]"), answered(502, ""));
}

#[test]
fn bodies_that_are_no_call_are_not_sent() {
    let provider = DubboProvider::start(|call| call.answered(20, "2\n")).unwrap();
    let gateway = gateway(lines(json!({ "max_req_body_size": 20 })), upstream(&[provider.port()], json!({})));
    for body in ["", "[]", "[1, 2]", "[1", "\"a\"", "null", "{\"a\":1,\"b\":2}", "[1, {\"path\":\"b\"}]"] {
        let (status, text) = status_of(&gateway, body);
        assert_eq!(status, 400, "{body}");
        assert!(
            text.contains("a different number of parameters") || text.contains("the body "),
            "{body}: {text}"
        );
    }
    assert_eq!(status_of(&gateway, &format!("[\"{}\"]", "x".repeat(20))), answered(413, ""));
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n15\r\n{}\r\n0\r\n\r\n",
        "[".repeat(21)
    );
    let answer = gateway.connect().unwrap().with_deadline(PATIENCE).ask(chunked).unwrap();
    assert_eq!((answer.status(), answer.text()), answered(413, ""));
    assert_eq!(provider.seen(), []);
    assert_eq!(status_of(&gateway, "[\"a\"]"), answered(200, ""));
}

#[test]
fn providers_that_look_after_connections() {
    let heartbeat = |flags: u8, id: u64| DubboFrame { flags, status: 0, id, body: b"N".to_vec() }.bytes();
    let provider = DubboProvider::start(move |call| {
        [heartbeat(0xe2, 77), call.answered(20, hessian_map(1, &[("body", "hello")]))].concat()
    })
    .unwrap();
    let gateway = gateway(map(), upstream(&[provider.port()], json!({})));
    for _ in 0..3 {
        assert_eq!(post(&gateway, "/say", "", b"").text(), "hello");
    }
    assert_eq!(provider.connections(), 1);
    let echoed = DubboFrame { flags: 0x22, status: 20, id: 77, body: b"N".to_vec() };
    let echoes = || provider.seen().iter().filter(|frame| **frame == echoed).count();
    assert!(until(PATIENCE, || echoes() == 3), "{:?}", provider.seen());

    // One that takes no further calls, and one that asks while the connection is kept.
    for behind in [heartbeat(0xa2, 1), heartbeat(0xe2, 2)] {
        let provider = DubboProvider::start(move |call| {
            let answer = call.answered(20, hessian_map(1, &[]));
            if call.id == 1 { [answer, behind.clone()].concat() } else { answer }
        })
        .unwrap();
        let gateway = self::gateway(map(), upstream(&[provider.port()], json!({})));
        for _ in 0..2 {
            assert_eq!(post(&gateway, "/say", "", b"").status(), 200);
        }
        assert_eq!(provider.connections(), 2);
    }
    let endless = DubboProvider::start(move |_| heartbeat(0xe2, 1).repeat(100)).unwrap();
    let gateway = self::gateway(map(), upstream(&[endless.port()], json!({})));
    assert_eq!(post(&gateway, "/say", "", b"").status(), 502);
}

#[test]
fn a_request_becomes_a_map() {
    let provider = DubboProvider::start(|call| {
        let pairs = [("status", "201"), ("X-A", "1"), ("body", "made"), ("Content-Length", "99")];
        call.answered(20, hessian_map(4, &pairs))
    })
    .unwrap();
    let gateway = gateway(map(), upstream(&[provider.port()], json!({})));
    let answer = post(&gateway, "/make?x=y", "X-B: 1\r\nx-b: 2\r\nBody: forged\r\n", b"hello");
    assert_eq!((answer.status(), answer.text()), answered(201, "made"));
    assert_eq!((answer.head.get("x-a"), answer.head.get("content-length")), (Some("1"), Some("4")));
    let seen = provider.seen();
    let [call] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((call.flags, call.status, call.id), (0xc2, 0, 1));
    let texts = ["2.0.2", "a.b.Demo", "1.0.0", "make", "Ljava/util/Map;"].map(hessian_text).concat();
    assert!(call.body.starts_with(&[&texts[..], b"H"].concat()), "{call:?}");
    assert!(call.has(&[hessian_text("X-B"), hessian_text("1, 2")].concat()));
    assert!(call.has(&[hessian_text("Host"), hessian_text("a.test")].concat()));
    assert!(call.has(b"\x04bodyA\x00\x05helloB\x00\x00Z"));
    assert!(!call.has(b"forged"));
    assert!(call.has(&[hessian_text("path"), hessian_text("a.b.Demo")].concat()));
}

#[test]
fn answers_of_maps() {
    let check = |status: u8, values: Vec<u8>, expected: (u16, &str)| {
        let provider = DubboProvider::start(move |call| call.answered(status, values.clone())).unwrap();
        let gateway = gateway(map(), upstream(&[provider.port()], json!({})));
        let answer = post(&gateway, "/say", "", b"");
        assert_eq!(answer.status(), expected.0, "{}", answer.text());
        assert!(answer.text().contains(expected.1), "{}", answer.text());
        gateway
    };
    check(20, hessian_map(1, &[("body", "hello")]), (200, "hello"));
    check(20, hessian_map(1, &[("status", "304"), ("body", "hello")]), (304, ""));
    check(20, b"\x91H\x04body\x23\x00\xff\x01Z".to_vec(), (200, "\0"));
    check(20, b"\x91\x05hello".to_vec(), (502, "the Dubbo method did not return a map"));
    check(20, b"\x92".to_vec(), (502, "the Dubbo method returned null instead of a map"));
    check(20, hessian_map(1, &[("status", "101")]), (502, "a Dubbo response with an invalid status"));
    check(
        20,
        hessian_map(1, &[("a", "b\r\nc: d")]),
        (502, "a field of the Dubbo response has an invalid value"),
    );
    check(20, hessian_map(1, &[])[..1].to_vec(), (502, "a Hessian value is incomplete"));
    check(31, hessian_text("late"), (504, ""));
    check(100, hessian_text("busy"), (503, ""));
    let gateway = check(70, hessian_text("no such\nmethod"), (502, ""));
    let logged = |gateway: &Gateway, text: &str| until(PATIENCE, || gateway.stderr().contains(text));
    assert!(logged(&gateway, "a provider reports an error: no such method"), "{}", gateway.stderr());
    let thrown = b"\x90C\x03a.E\x91\x0ddetailMessage\x60\x03bad".to_vec();
    let gateway = check(20, thrown, (500, ""));
    assert!(logged(&gateway, "a provider reports an error: a.E: bad"), "{}", gateway.stderr());
}

#[test]
fn paths_name_methods_except_the_ones_of_dubbo() {
    let provider = DubboProvider::start(|call| call.answered(20, hessian_map(1, &[]))).unwrap();
    let gateway = gateway(map(), upstream(&[provider.port()], json!({})));
    for path in ["/", "/a/b", "/$invoke", "/%24echo", "/a-b"] {
        assert_eq!(post(&gateway, path, "", b"").status(), 404, "{path}");
    }
    assert_eq!(post(&gateway, "/%61", "", b"").status(), 200);
    assert!(provider.seen().iter().all(|call| call.has(b"\x01a\x0fLjava/util/Map;")));
}

#[test]
fn other_nodes_are_tried_and_stale_connections_replaced() {
    let served = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&served);
    // It closes each connection after one response.
    let closing = Origin::serve(move |mut peer| {
        if let Ok(call) = DubboFrame::read(&mut peer) {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = peer.send(call.answered(20, hessian_map(1, &[("body", "hello")])));
        }
    })
    .unwrap();
    let gateway = gateway(map(), upstream(&[free_port(), closing.port()], json!({})));
    for _ in 0..6 {
        let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
        assert_eq!(peer.ask("GET /say HTTP/1.1\r\nHost: a\r\n\r\n").unwrap().text(), "hello");
    }
    assert_eq!(served.load(Ordering::SeqCst), 6);
}

#[test]
fn breakers_and_timeouts_hold_and_connections_are_apart() {
    let failing = DubboProvider::start(|call| call.answered(20, "0\n{}\n")).unwrap();
    let breaker = json!({ "minimum_number_of_calls": 2, "failure_rate_threshold": 50, "sliding_window": 60,
        "wait_duration_in_open_state": 600 });
    let broken =
        gateway(lines(json!({})), upstream(&[failing.port()], json!({ "circuit_breaker": breaker })));
    assert!(until(PATIENCE, || status_of(&broken, "[1]").0 == 503), "the breaker stays closed");
    let before = failing.seen().len();
    assert_eq!((status_of(&broken, "[1]").0, failing.seen().len()), (503, before));

    let silent = Origin::serve(|mut peer| drop(peer.read_to_close())).unwrap();
    let timeout = json!({ "timeout": { "connect": 5, "send": 5, "read": 0.1 }, "retries": 0 });
    assert_eq!(post(&gateway(map(), upstream(&[silent.port()], timeout)), "/say", "", b"").status(), 504);

    // The same node by a route that speaks HTTP: their caches are separate.
    let provider = DubboProvider::start(|call| call.answered(20, hessian_map(1, &[]))).unwrap();
    let gateway = gateway(map(), upstream(&[provider.port()], json!({ "retries": 0 })));
    for _ in 0..2 {
        assert_eq!(post(&gateway, "/say", "", b"").status(), 200);
        let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
        assert_eq!(peer.ask("GET /say HTTP/1.1\r\nHost: plain.test\r\n\r\n").unwrap().status(), 502);
    }
    assert_eq!((provider.seen().len(), provider.connections()), (2, 3));
}

#[test]
fn large_bodies_and_clients_that_wait_for_leave() {
    let provider = DubboProvider::start(|call| {
        call.answered(
            20,
            [&b"\x91H"[..], &hessian_text("n"), &hessian_text(&call.body.len().to_string()), b"Z"].concat(),
        )
    })
    .unwrap();
    let gateway = gateway(map(), upstream(&[provider.port()], json!({})));
    let answer = post(&gateway, "/say", "", &vec![b'x'; 3_000_000]);
    assert_eq!(answer.status(), 200);
    assert!(answer.head.get("n").unwrap().parse::<usize>().unwrap() > 3_000_000);
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    peer.send("POST /say HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n").unwrap();
    assert_eq!(peer.read_head().unwrap().status().unwrap(), 100);
    peer.send("hello").unwrap();
    assert_eq!(peer.read_response("POST").unwrap().status(), 200);
    assert!(provider.seen()[1].has(b"hello") && !provider.seen()[1].has(b"100-continue"));
    // A client that would change the protocol is served without it.
    let upgrade = "GET /say HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(gateway.connect().unwrap().with_deadline(PATIENCE).ask(upgrade).unwrap().status(), 200);
    assert!(!provider.seen()[2].has(b"websocket"));
}

#[test]
fn upstreams_of_other_schemes_take_no_calls() {
    let provider = DubboProvider::start(|call| call.answered(20, "2\n")).unwrap();
    for scheme in ["grpc", "fcgi"] {
        let gateway = gateway(map(), upstream(&[provider.port()], json!({ "scheme": scheme })));
        assert_eq!(post(&gateway, "/say", "", b"").status(), 503, "{scheme}");
    }
    assert_eq!(provider.connections(), 0);
    let checked = gateway(
        map(),
        upstream(
            &[free_port(), provider.port()],
            json!({ "checks": { "active": { "type": "tcp",
            "unhealthy": { "interval": 1, "tcp_failures": 1 } } } }),
        ),
    );
    let found = || {
        let _ = post(&checked, "/say", "", b"");
        let mut control = Peer::connect(&checked.control_address()).unwrap().with_deadline(PATIENCE);
        control.get("/v1/healthcheck").unwrap().text().contains("\"unhealthy\"")
    };
    assert!(until(PATIENCE, found), "the check finds nothing");
}
