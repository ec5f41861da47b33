//! The budget of bytes that a worker holds for its clients: heads, bodies, and responses that wait.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, Peer, until};

use crate::h2::{connect, push, request, within};
use crate::{PATIENCE, SIGMA};

const BUDGET: u64 = 2 << 20;

/// `REFUSED_STREAM` and `ENHANCE_YOUR_CALM` (RFC 9113 §7).
const REFUSED: u32 = 7;
const CALM: u32 = 11;

fn origin() -> Origin {
    Origin::answer(|_| {
        let mut answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n".to_vec();
        answer.extend([b'a'; 1000]);
        answer
    })
    .unwrap()
}

/// A gateway whose worker has a small budget, with these plugins on its route.
fn start(origin: &Origin, plugins: &Value, timeouts: &Value) -> Gateway {
    let config = json!({
        "workers": 1, "listeners": ["{listen}"], "status": { "address": "{status}" },
        "limits": { "held_bytes_per_worker": BUDGET }, "timeouts": timeouts,
        "consumers": [{ "username": "jack", "plugins": { "key-auth": { "key": "k" } } }],
        "routes": [{
            "id": "all", "uri": "/*", "plugins": plugins,
            "upstream": { "nodes": { format!("127.0.0.1:{}", origin.port()): 1 } },
        }],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn held(gateway: &Gateway) -> u64 {
    gateway.counter("sigma_held_bytes")
}

/// Frames that no client library sends: kind, flags, stream, payload.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// `GET /` to `h`, as fields of the static table and a literal that does not enter the dynamic table.
pub(crate) const GET: &[u8] = b"\x82\x86\x84\x01\x01h";

/// A connection whose window never opens, with 127 requests of 27 kB each in 2 kB.
fn bomb(gateway: &Gateway) -> TcpStream {
    let mut socket = TcpStream::connect(("127.0.0.1", gateway.address().port().unwrap())).unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, b"\0\x04\0\0\0\0"));
    // A field of 3,900 bytes enters the table, and is named seven times in each further head.
    let field = [GET, b"\x40\x01x\x7f\xbd\x1d", &[b'y'; 3900]].concat();
    bytes.extend(frame(1, 5, 1, &field));
    for n in 1..128 {
        bytes.extend(frame(1, 5, 2 * n + 1, &[GET, &[0xbe; 7]].concat()));
    }
    socket.write_all(&bytes).unwrap();
    socket
}

/// The codes of the streams that were reset on a connection, as far as they have come.
fn resets(socket: &mut TcpStream, bytes: &mut Vec<u8>) -> Vec<u32> {
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut piece = [0; 16 * 1024];
    loop {
        match socket.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let (mut codes, mut rest) = (Vec::new(), &bytes[..]);
    while let Some((header, payload)) = rest.split_at_checked(9) {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let Some((payload, next)) = payload.split_at_checked(length) else { break };
        if header[3] == 3 {
            codes.push(u32::from_be_bytes(payload.try_into().unwrap()));
        }
        rest = next;
    }
    codes
}

#[test]
fn a_header_bomb_stays_within_the_budget() {
    let origin = origin();
    let gateway = start(&origin, &json!({}), &json!({}));
    let mut bombs: Vec<(TcpStream, Vec<u8>)> = Vec::new();
    for _ in 0..30 {
        bombs.push((bomb(&gateway), Vec::new()));
        assert!(held(&gateway) <= BUDGET + BUDGET / 8, "{}", held(&gateway));
        let answer = gateway.connect().unwrap().get("/").unwrap();
        // 30 connections ask for 130 MB. A refused request has `Retry-After`.
        assert!(answer.status() == 200 || answer.head.get("Retry-After") == Some("1"), "{}", answer.text());
    }
    let revoked = || gateway.counter("sigma_held_bytes_revoked_total");
    assert!(until(PATIENCE, || revoked() > 0));
    assert!(gateway.counter("sigma_held_bytes_refused_total") > 0);
    assert!(until(PATIENCE, || held(&gateway) < BUDGET * 3 / 4));
    for _ in 0..50 {
        assert_eq!(gateway.connect().unwrap().get("/").unwrap().status(), 200);
    }
    let mut seen = [false; 2];
    assert!(until(PATIENCE, || {
        for (socket, bytes) in &mut bombs {
            let codes = resets(socket, bytes);
            seen = [seen[0] || codes.contains(&REFUSED), seen[1] || codes.contains(&CALM)];
        }
        seen == [true, true]
    }));
    assert!(gateway.stderr().contains("the memory for clients is nearly used up"), "{}", gateway.stderr());
    drop(bombs);
    assert!(until(PATIENCE, || held(&gateway) == 0));
}

/// A window that opens by single bytes does not keep a response in memory.
#[test]
fn a_window_that_opens_by_bytes_ends_the_stream() {
    let origin = origin();
    let gateway = start(&origin, &json!({}), &json!({ "response_send_ms": 500 }));
    let mut socket = TcpStream::connect(("127.0.0.1", gateway.address().port().unwrap())).unwrap();
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    socket.write_all(&frame(4, 0, 0, b"\0\x04\0\0\0\0")).unwrap();
    socket.write_all(&frame(1, 5, 1, GET)).unwrap();
    let mut bytes = Vec::new();
    assert!(until(PATIENCE, || {
        let _ = socket.write_all(&frame(8, 0, 1, &1_u32.to_be_bytes()));
        !resets(&mut socket, &mut bytes).is_empty()
    }));
}

/// A client that does not read the 503 of load shedding has its requests in memory no longer.
#[test]
fn requests_that_are_shed_hold_nothing() {
    let origin = origin();
    let config = json!({
        "workers": 1, "listeners": ["{listen}"], "status": { "address": "{status}" },
        "load_shedding": { "memory_bytes": 1 },
        "routes": [{
            "id": "all", "uri": "/*",
            "upstream": { "nodes": { format!("127.0.0.1:{}", origin.port()): 1 } },
        }],
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    assert!(until(PATIENCE, || gateway.connect().unwrap().get("/").unwrap().status() == 503));
    let before = gateway.counter("sigma_requests_shed_total");
    let bomb = bomb(&gateway);
    assert!(until(PATIENCE, || gateway.counter("sigma_requests_shed_total") == before + 128));
    assert!(until(PATIENCE, || held(&gateway) == 0));
    drop(bomb);
}

/// A plugin that needs whole bodies.
fn validation() -> Value {
    json!({ "request-validation": { "body_schema": { "type": "object" } } })
}

fn upload(gateway: &Gateway, head: &str, bytes: usize) -> Peer {
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    peer.send(format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n{head}\r\n\r\n"))
        .unwrap();
    if bytes > 0 {
        peer.send(vec![b' '; bytes]).unwrap();
    }
    peer
}

#[test]
fn bodies_that_plugins_hold_share_the_budget() {
    let origin = origin();
    let gateway = start(&origin, &validation(), &json!({}));
    let first = upload(&gateway, "Content-Length: 900000", 800_000);
    assert!(until(PATIENCE, || held(&gateway) > 800_000));
    let mut second = upload(&gateway, "Content-Length: 900000", 0);
    let answer = second.read_response("POST").unwrap();
    assert_eq!((answer.status(), answer.head.get("Retry-After")), (503, Some("1")));
    assert!(answer.text().contains("memory_limit_reached"), "{}", answer.text());
    let answer = gateway.connect().unwrap().get("/").unwrap();
    assert_eq!(answer.status(), 400, "requests without a body reach the plugin, which wants one");
    drop(first);
    assert!(until(PATIENCE, || held(&gateway) == 0));
    let mut third = upload(&gateway, "Content-Length: 900000", 899_998);
    third.send(b"{}").unwrap();
    assert_eq!(third.read_response("POST").unwrap().status(), 200);
}

#[test]
fn a_held_body_without_progress_gives_way() {
    let origin = origin();
    let gateway = start(&origin, &validation(), &json!({}));
    let mut still = upload(&gateway, "Content-Length: 1300000", 1_250_000);
    let answer = still.read_response("POST").unwrap();
    assert_eq!(answer.status(), 503);
    assert!(answer.text().contains("memory_limit_reached"), "{}", answer.text());
}

#[test]
fn no_body_is_read_for_a_request_without_a_key() {
    let origin = origin();
    let mut plugins = validation();
    plugins["key-auth"] = json!({});
    let gateway = start(&origin, &plugins, &json!({}));
    let mut stranger = upload(&gateway, "Content-Length: 900000", 0);
    assert_eq!(stranger.read_response("POST").unwrap().status(), 401);
    let mut known = upload(&gateway, "apikey: k\r\nContent-Length: 3", 0);
    known.send(b"[1]").unwrap();
    assert_eq!(known.read_response("POST").unwrap().status(), 400, "the body is not an object");
    let mut known = upload(&gateway, "apikey: k\r\nContent-Length: 2", 0);
    known.send(b"{}").unwrap();
    assert_eq!(known.read_response("POST").unwrap().status(), 200);
}

#[test]
fn the_limit_of_client_control_holds_for_plugins_that_read_bodies() {
    let origin = origin();
    let mut plugins = validation();
    plugins["client-control"] = json!({ "max_body_size": 1000 });
    let gateway = start(&origin, &plugins, &json!({}));
    for (bytes, expected) in [(998, 200), (999, 413), (100_000, 413)] {
        let mut peer = upload(&gateway, "Transfer-Encoding: chunked", 0);
        let body = [vec![b' '; bytes], b"{}".to_vec()].concat();
        peer.send(format!("{:x}\r\n", body.len())).unwrap();
        // The gateway may respond before it has read all of it.
        let _ = peer.send(&body).and_then(|()| peer.send(b"\r\n0\r\n\r\n"));
        assert_eq!(peer.read_response("POST").unwrap().status(), expected, "{bytes}");
    }
    within(async {
        let (sender, _driver) = connect(&gateway).await;
        let request = request("POST", "/").header("content-type", "application/json").body(()).unwrap();
        let (response, mut stream) =
            sender.clone().ready().await.unwrap().send_request(request, false).unwrap();
        let _ = push(&mut stream, vec![b' '; 1001].into()).await;
        assert_eq!(response.await.unwrap().status(), 413);
    });
}

#[test]
fn a_body_below_the_least_rate_or_over_its_time_is_answered_408() {
    let origin = origin();
    for rules in [
        json!({ "request_body_min_bytes_per_second": 10_000, "request_body_grace_ms": 200 }),
        json!({ "request_body_total_ms": 500 }),
    ] {
        for plugins in [json!({}), validation()] {
            let gateway = start(&origin, &plugins, &rules);
            let mut peer =
                upload(&gateway, "Content-Length: 900000", 1000).with_deadline(Duration::from_millis(100));
            let began = Instant::now();
            let answer = loop {
                if let Ok(answer) = peer.read_response("POST") {
                    break answer;
                }
                assert!(began.elapsed() < PATIENCE && peer.send(b" ").is_ok(), "{rules}");
            };
            assert_eq!(answer.status(), 408, "{rules} {plugins}");
        }
    }
}
