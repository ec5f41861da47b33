//! Clients that do not take their responses: nodes that have sent theirs serve others meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response};
use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, Peer, until};

use crate::h2::{Node, connect, get, within};
use crate::held_bytes::{GET, frame};
use crate::{PATIENCE, SIGMA};

/// A gateway whose upstream takes one request at a time.
fn start(port: u16, upstream: &Value) -> Gateway {
    start_with(port, upstream, &json!({}))
}

fn start_with(port: u16, upstream: &Value, plugins: &Value) -> Gateway {
    let mut whole = json!({ "nodes": { format!("127.0.0.1:{port}"): 1 }, "limits": { "max_requests": 1 } });
    whole.as_object_mut().unwrap().extend(upstream.as_object().unwrap().clone());
    let config = json!({
        "workers": 1, "listeners": ["{listen}"], "status": { "address": "{status}" },
        "http2": { "upstream_streams": 1 },
        "routes": [{ "id": "all", "uri": "/*", "plugins": plugins, "upstream": whole }],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

/// A client whose window is closed, and the bytes that it has read.
pub(crate) struct Stalled {
    pub(crate) socket: TcpStream,
    read: Vec<u8>,
}

impl Stalled {
    /// Asks `GET /`.
    pub(crate) fn ask(gateway: &Gateway) -> Stalled {
        let mut socket = TcpStream::connect(("127.0.0.1", gateway.address().port().unwrap())).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, 0, 0, b"\0\x04\0\0\0\0"));
        bytes.extend(frame(1, 5, 1, GET));
        socket.write_all(&bytes).unwrap();
        Stalled { socket, read: Vec::new() }
    }

    /// Kinds and payloads of the frames of its stream that have come.
    pub(crate) fn frames(&mut self) -> Vec<(u8, Vec<u8>)> {
        self.receive();
        self.received().map(|(kind, payload)| (kind, payload.to_vec())).collect()
    }

    /// Reads the bytes that have come.
    fn receive(&mut self) {
        let mut piece = [0; 64 * 1024];
        match self.socket.read(&mut piece) {
            Ok(n) => self.read.extend_from_slice(&piece[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Kinds and payloads of the whole frames of its stream.
    fn received(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let mut rest = &self.read[..];
        let frames = std::iter::from_fn(move || {
            let (header, payload) = rest.split_at_checked(9)?;
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            let (payload, next) = payload.split_at_checked(length)?;
            rest = next;
            Some((header[8], header[3], payload))
        });
        frames.filter(|(stream, ..)| *stream == 1).map(|(_, kind, payload)| (kind, payload))
    }

    pub(crate) fn waits_for_head(&mut self) {
        assert!(until(PATIENCE, || self.frames().iter().any(|(kind, _)| *kind == 1)));
        assert!(self.frames().iter().all(|(kind, _)| *kind == 1), "{:?}", self.frames());
    }

    /// Opens its window, and reads `body` and what ends the stream: an END_STREAM flag of DATA, or trailers.
    pub(crate) fn takes(&mut self, body: &[u8]) {
        self.socket.write_all(&frame(8, 0, 1, &1_000_000_u32.to_be_bytes())).unwrap();
        let is_data = |(kind, _): &(u8, &[u8])| *kind == 0;
        let has_all = until(PATIENCE, || {
            self.receive();
            self.received().filter(is_data).map(|(_, data)| data.len()).sum::<usize>() >= body.len()
        });
        let lengths: Vec<_> = self.received().map(|(kind, payload)| (kind, payload.len())).collect();
        assert!(has_all, "kinds and lengths of the frames: {lengths:?}");
        let data = self.received().filter(is_data).flat_map(|(_, data)| data);
        assert!(data.eq(body), "other bytes than those of the body in {lengths:?}");
    }
}

const WHOLE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n";

/// Its limit of requests has a place again, and its connection serves the next one.
#[test]
fn kept_connection_of_an_http1_node_serves_others_while_the_client_stalls() {
    let together = format!("{CHUNKED}0\r\n\r\n");
    for (first, last, body) in [
        (WHOLE, "", "body"),
        (&together, "", "body"),
        (CHUNKED, "0\r\n\r\n", "body"),
        (CHUNKED, "0\r\nA: b\r\n\r\n", "body"),
        (CHUNKED, "4\r\nmore\r\n0\r\n\r\n", "bodymore"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nbody", "more", "bodymore"),
    ] {
        let origin = Origin::scripted().unwrap();
        let gateway = start(origin.port(), &json!({}));
        let mut stalled = Stalled::ask(&gateway);
        let mut node = origin.accept().unwrap().with_deadline(PATIENCE);
        node.read_request().unwrap();
        node.send(first).unwrap();
        stalled.waits_for_head();
        node.send(last).unwrap();
        assert!(until(PATIENCE, || gateway.counter("sigma_upstream_idle") == 1), "{first:?} {last:?}");
        let mut other = gateway.connect().unwrap().with_deadline(PATIENCE);
        other.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        node.read_request().unwrap();
        node.send(WHOLE).unwrap();
        assert_eq!(other.read_response("GET").unwrap().text(), "body");
        assert_eq!(origin.connections(), 1);
        stalled.takes(body.as_bytes());
    }
}

#[test]
fn connection_that_is_not_kept_is_closed_while_the_client_stalls() {
    for (answer, closes) in [
        ("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody", false),
        ("HTTP/1.1 200 OK\r\n\r\nbody", true),
    ] {
        let origin = Origin::scripted().unwrap();
        let gateway = start(origin.port(), &json!({}));
        let mut stalled = Stalled::ask(&gateway);
        let mut node = origin.accept().unwrap().with_deadline(PATIENCE);
        node.read_request().unwrap();
        node.send(answer).unwrap();
        stalled.waits_for_head();
        if closes {
            node.half_close().unwrap();
        }
        node.expect_closed().unwrap();
        // The place within the limit is free as soon as the connection is.
        let mut other: Peer = gateway.connect().unwrap().with_deadline(PATIENCE);
        other.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let mut node = origin.accept().unwrap().with_deadline(PATIENCE);
        node.read_request().unwrap();
        node.send(WHOLE).unwrap();
        assert_eq!(other.read_response("GET").unwrap().text(), "body");
        stalled.takes(b"body");
    }
}

/// A node that goes on sending is held back: one small read ahead is all that the gateway takes for such a client.
#[test]
fn node_with_more_to_send_waits_for_the_client() {
    let origin = Origin::scripted().unwrap();
    let gateway = start(origin.port(), &json!({}));
    let mut stalled = Stalled::ask(&gateway);
    let mut node = origin.accept().unwrap().with_deadline(PATIENCE);
    node.read_request().unwrap();
    node.send(CHUNKED).unwrap();
    stalled.waits_for_head();
    let piece = "x".repeat(100_000);
    node.send(format!("186a0\r\n{piece}\r\n0\r\n\r\n")).unwrap();
    let mut other = gateway.connect().unwrap().with_deadline(PATIENCE);
    assert_eq!(other.get("/").unwrap().status(), 503, "the node is busy");
    let whole = format!("body{piece}");
    // The window of the connection has 64 KiB.
    stalled.socket.write_all(&frame(8, 0, 0, &1_000_000_u32.to_be_bytes())).unwrap();
    stalled.takes(whole.as_bytes());
    assert!(until(PATIENCE, || gateway.counter("sigma_upstream_idle") == 1));
}

/// The response that waits for the client counts among the bytes that are held.
#[test]
fn stream_of_a_shared_connection_serves_others_while_the_client_stalls() {
    within(async {
        let serve = |request: Request<RecvStream>, mut respond: SendResponse<Bytes>| async move {
            let bytes = if request.headers().contains_key("small") { 4 } else { 50_000 };
            let mut out = respond.send_response(Response::new(()), false).unwrap();
            crate::h2::push(&mut out, Bytes::from(vec![b'x'; bytes])).await.unwrap();
            out.send_data(Bytes::new(), true).unwrap();
        };
        let node = Node::start(h2::server::Builder::new(), serve).await;
        let limits = json!({ "max_requests": 1, "queue": { "length": 1, "timeout": 60 } });
        let upstream = json!({ "scheme": "grpc", "keepalive_pool": { "size": 1 }, "limits": limits });
        let gateway = start(node.port(), &upstream);
        let held = || gateway.counter("sigma_held_bytes");
        let mut stalled = Stalled::ask(&gateway);
        crate::h2::until(|| held() >= 50_000).await;
        let (sender, _driver) = connect(&gateway).await;
        let small = crate::h2::request("GET", "/").header("small", "1").body(()).unwrap();
        assert_eq!(crate::h2::ask(&sender, small, None).await.0, 200);
        assert!(held() >= 50_000, "{}", held());
        assert_eq!(node.connections(), 1);
        assert_eq!(get(&sender, "/").await.2.len(), 50_000);
        stalled.takes(&[b'x'; 50_000]);
        crate::h2::until(|| held() < 10_000).await;
    });
}

/// A plugin that counts requests counts clients' requests.
#[test]
fn limit_conn_counts_until_the_client_has_its_response() {
    let origin = Origin::answer(|_| WHOLE.into()).unwrap();
    let limit =
        json!({ "conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "uri", "rejected_code": 429 });
    let gateway = start_with(origin.port(), &json!({}), &json!({ "limit-conn": limit }));
    let mut stalled = Stalled::ask(&gateway);
    assert!(until(PATIENCE, || gateway.counter("sigma_upstream_idle") == 1));
    let status = || gateway.connect().unwrap().get("/").unwrap().status();
    assert_eq!(status(), 429);
    stalled.takes(b"body");
    assert!(until(PATIENCE, || status() == 200));
}

/// The deadline of an exchange holds for its client as well.
#[test]
fn deadline_ends_a_response_that_its_node_has_sent() {
    let origin = Origin::answer(|_| WHOLE.into()).unwrap();
    let gateway = start(origin.port(), &json!({ "deadline": { "timeout": 0.3 } }));
    let mut stalled = Stalled::ask(&gateway);
    assert!(until(PATIENCE, || stalled.frames().iter().any(|(kind, _)| *kind == 3)));
}
