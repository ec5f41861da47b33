//! `proxy-buffering`: responses that are read ahead of slow clients.

use std::io::{Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response};
use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, until};

use crate::h2::{Node, within};
use crate::held_bytes::frame;
use crate::stalled_clients::Stalled;
use crate::{PATIENCE, SIGMA};

/// A gateway whose upstream takes one request at a time.
fn start(port: u16, buffering: &Value, more: &Value) -> Gateway {
    let mut config = json!({
        "workers": 1, "listeners": ["{listen}"], "status": { "address": "{status}" },
        "routes": [{
            "id": "all", "uri": "/*", "plugins": { "proxy-buffering": buffering },
            "upstream": { "nodes": { format!("127.0.0.1:{port}"): 1 }, "limits": { "max_requests": 1 } },
        }],
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn body(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

fn response(fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A node that answers every request with a body of this length.
fn node(fields: &'static str, len: usize) -> Origin {
    Origin::answer(move |_| response(fields, &body(len))).unwrap()
}

fn held(gateway: &Gateway) -> u64 {
    gateway.counter("sigma_held_bytes")
}

fn status(gateway: &Gateway) -> u16 {
    gateway.connect().unwrap().with_deadline(PATIENCE).get("/").unwrap().status()
}

fn is_node_free(gateway: &Gateway) -> bool {
    until(PATIENCE, || gateway.counter("sigma_upstream_idle") == 1)
}

/// Opens the window of the connection, which has 64 KiB.
fn open_connection(stalled: &mut Stalled) {
    stalled.socket.write_all(&frame(8, 0, 0, &1_000_000_u32.to_be_bytes())).unwrap();
}

#[test]
fn node_is_free_while_its_client_has_nothing() {
    let origin = node("", 300_000);
    let gateway = start(origin.port(), &json!({ "max_buffered_size": 1_048_576 }), &json!({}));
    let mut stalled = Stalled::ask(&gateway);
    stalled.waits_for_head();
    assert!(is_node_free(&gateway));
    assert!(held(&gateway) >= 300_000, "{}", held(&gateway));
    assert_eq!((status(&gateway), origin.connections()), (200, 1));
    open_connection(&mut stalled);
    stalled.takes(&body(300_000));
    assert!(until(PATIENCE, || held(&gateway) < 10_000));
}

/// Nothing is read ahead beyond the limit, if the node prevents it, or if it is turned off.
#[test]
fn node_waits_for_its_client_beyond_the_limit() {
    let some = json!({ "max_buffered_size": 100_000 });
    let off = json!({ "disable_proxy_buffering": true });
    let global = json!({ "global_rules": [{ "id": "all", "plugins": { "proxy-buffering": { "max_buffered_size": 1_048_576 } } }] });
    for (fields, conf, more, most) in [
        ("", &some, &json!({}), 250_000),
        ("X-Accel-Buffering: no\r\n", &json!({ "max_buffered_size": 1_048_576 }), &json!({}), 150_000),
        ("", &off, &global, 150_000),
    ] {
        // More than the buffers of sockets on the way take.
        let len = 900_000;
        let origin = Origin::scripted().unwrap();
        let gateway = start(origin.port(), conf, more);
        let mut stalled = Stalled::ask(&gateway);
        let mut node = origin.accept().unwrap().with_deadline(PATIENCE);
        node.read_request().unwrap();
        node.send(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {len}\r\n\r\n")).unwrap();
        stalled.waits_for_head();
        node.send(&body(len)[..len - 1]).unwrap();
        // The last byte may be read once all others were.
        if most > 150_000 {
            assert!(until(PATIENCE, || held(&gateway) >= 100_000));
        }
        assert_eq!(status(&gateway), 503, "the node is busy");
        assert!(held(&gateway) <= most, "{} {conf}", held(&gateway));
        node.send(&body(len)[len - 1..]).unwrap();
        open_connection(&mut stalled);
        stalled.takes(&body(len));
        assert!(is_node_free(&gateway));
        assert!(until(PATIENCE, || held(&gateway) < 10_000));
    }
}

/// Long bodies between plain connections are spliced until the client is the slower one.
#[test]
fn client_of_http1_gets_the_whole_body_after_its_node_is_free() {
    const LEN: usize = 24 << 20;
    let origin = node("", LEN);
    let more = json!({ "limits": { "held_bytes_per_worker": 1_u64 << 30 } });
    let gateway = start(origin.port(), &json!({ "max_buffered_size": 2 * LEN }), &more);
    let mut socket = TcpStream::connect(("127.0.0.1", gateway.address().port().unwrap())).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    assert!(is_node_free(&gateway));
    assert!(held(&gateway) > 0);
    let mut read = Vec::new();
    socket.read_to_end(&mut read).unwrap();
    let start = read.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    assert!(read[start..] == body(LEN), "{} bytes", read.len() - start);
    assert!(until(PATIENCE, || held(&gateway) < 10_000));
}

/// Slow clients that let responses be read ahead do not bring the worker near the limit of its budget.
#[test]
fn budget_bounds_the_sum_of_all_clients() {
    const BUDGET: u64 = 4 << 20;
    let origin = node("", 900_000);
    let mut more = json!({ "limits": { "held_bytes_per_worker": BUDGET } });
    more["routes"] = json!([{
        "id": "all", "uri": "/*", "plugins": { "proxy-buffering": { "max_buffered_size": 10_000_000 } },
        "upstream": { "nodes": { format!("127.0.0.1:{}", origin.port()): 1 } },
    }]);
    let gateway = start(origin.port(), &json!({}), &more);
    let mut clients: Vec<Stalled> = (0..6).map(|_| Stalled::ask(&gateway)).collect();
    for client in &mut clients {
        client.waits_for_head();
        assert!(held(&gateway) <= BUDGET / 2, "{}", held(&gateway));
    }
    for mut client in clients {
        open_connection(&mut client);
        client.takes(&body(900_000));
    }
    assert_eq!(gateway.counter("sigma_held_bytes_revoked_total"), 0);
}

#[test]
fn response_that_breaks_is_cut_after_the_bytes_before() {
    let origin = Origin::serve(|mut peer| {
        if peer.read_request().is_ok() {
            let whole = response("", &body(200_000));
            let _ = peer.send(&whole[..whole.len() - 1]);
        }
    })
    .unwrap();
    let gateway = start(origin.port(), &json!({ "max_buffered_size": 1_048_576 }), &json!({}));
    let mut stalled = Stalled::ask(&gateway);
    stalled.waits_for_head();
    open_connection(&mut stalled);
    stalled.takes(&body(199_999));
    assert!(until(PATIENCE, || stalled.frames().iter().any(|(kind, _)| *kind == 3)));
}

#[test]
fn stream_of_a_shared_connection_is_free_while_its_client_has_nothing() {
    within(async {
        let serve = |_: Request<RecvStream>, mut respond: SendResponse<Bytes>| async move {
            let mut out = respond.send_response(Response::new(()), false).unwrap();
            // More than the window of a stream has.
            crate::h2::push(&mut out, Bytes::from(body(600_000))).await.unwrap();
            out.send_data(Bytes::new(), true).unwrap();
        };
        let node = Node::start(h2::server::Builder::new(), serve).await;
        let more = json!({ "routes": [{
            "id": "all", "uri": "/*", "plugins": { "proxy-buffering": { "max_buffered_size": 1_048_576 } },
            "upstream": {
                "scheme": "grpc", "nodes": { format!("127.0.0.1:{}", node.port()): 1 },
                "limits": { "max_requests": 1 },
            },
        }]});
        let gateway = start(node.port(), &json!({}), &more);
        let mut stalled = Stalled::ask(&gateway);
        crate::h2::until(|| held(&gateway) >= 600_000).await;
        open_connection(&mut stalled);
        stalled.takes(&body(600_000));
        crate::h2::until(|| held(&gateway) < 10_000).await;
    });
}

/// A client that a bandwidth limit makes slow does not occupy a node either.
#[test]
fn node_is_free_while_its_bytes_wait_for_a_bandwidth_limit() {
    let origin = node("", 300_000);
    let plugins = json!({
        "proxy-buffering": { "max_buffered_size": 1_048_576 },
        "limit-bandwidth": { "rules": [{ "rate": 1000, "direction": "response" }] },
    });
    let more = json!({ "routes": [{
        "id": "all", "uri": "/*", "plugins": plugins,
        "upstream": { "nodes": { format!("127.0.0.1:{}", origin.port()): 1 }, "limits": { "max_requests": 1 } },
    }]});
    let gateway = start(origin.port(), &json!({}), &more);
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    client.read_head().unwrap();
    assert!(is_node_free(&gateway));
}
