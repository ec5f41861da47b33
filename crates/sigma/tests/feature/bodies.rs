//! Large bodies, slow peers and expectations.

use std::io::Write;
use std::time::Duration;

use sigma_testkit::{Gateway, Origin, Peer, checksum, until};

use crate::{PATIENCE, in_front_of};

const LARGE: usize = 16 * 1024 * 1024;

/// Bytes without a short period, so that a lost or doubled block shows.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + body.len() / size * 8);
    for chunk in body.chunks(size) {
        // Writing to a vector does not fail.
        write!(out, "{:x}\r\n", chunk.len()).unwrap();
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

fn assert_memory_bounded(gateway: &Gateway, before: u64) {
    let grown = gateway.peak_memory_kib().unwrap().saturating_sub(before);
    assert!(grown < 8 * 1024, "a 16 MiB body made the gateway grow by {grown} KiB");
}

#[test]
fn large_request_bodies_arrive_whole_in_bounded_memory() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "");
    let body = noise(LARGE);
    let before = gateway.settled_memory_kib().unwrap();
    for framed in [false, true] {
        let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
        let (field, wire) = match framed {
            true => ("Transfer-Encoding: chunked".to_string(), chunked(&body, 10_007)),
            false => (format!("Content-Length: {LARGE}"), body.clone()),
        };
        client.send(format!("POST / HTTP/1.1\r\nHost: h\r\n{field}\r\n\r\n")).unwrap();
        client.send(&wire).unwrap();
        let json = client.read_response("POST").unwrap().json().unwrap();
        assert_eq!(json["body_bytes"], LARGE, "chunked: {framed}");
        assert_eq!(json["body_checksum"], checksum(&body), "chunked: {framed}");
    }
    assert_memory_bounded(&gateway, before);
}

#[test]
fn large_response_bodies_arrive_whole_in_bounded_memory() {
    let body = noise(LARGE);
    let served = body.clone();
    let origin = Origin::answer(move |request| {
        let (field, wire) = match request.head.line.contains("chunked") {
            true => ("Transfer-Encoding: chunked".to_string(), chunked(&served, 10_007)),
            false => (format!("Content-Length: {LARGE}"), served.clone()),
        };
        let mut out = format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n").into_bytes();
        out.extend(wire);
        out
    })
    .unwrap();
    let gateway = in_front_of(&origin, "");
    let before = gateway.settled_memory_kib().unwrap();
    for target in ["/length", "/chunked"] {
        let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
        let answer = client.get(target).unwrap();
        assert_eq!((answer.body.len(), checksum(&answer.body)), (LARGE, checksum(&body)), "{target}");
    }
    assert_memory_bounded(&gateway, before);
}

#[test]
fn a_client_that_does_not_read_holds_back_the_origin() {
    let origin = Origin::scripted().unwrap();
    let gateway = in_front_of(&origin, "");
    let before = gateway.settled_memory_kib().unwrap();
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut peer = origin.accept().unwrap().with_deadline(Duration::from_millis(500));
    peer.read_request().unwrap();
    peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 64 * LARGE)).unwrap();
    // Stops when the buffers of two kernels' worth of sockets are full: a gateway that kept
    // reading would take all of it.
    let block = vec![b'x'; 1 << 20];
    let taken = (0..1024).take_while(|_| peer.send(&block).is_ok()).count();
    assert!(taken < 64, "the gateway took {taken} MiB for a client that does not read");
    assert_memory_bounded(&gateway, before);
    client.read_head().unwrap();
    client.read_exactly(taken << 20).unwrap();
}

#[test]
fn a_client_that_sends_byte_by_byte_is_served() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "");
    let mut client = gateway.connect().unwrap();
    let request =
        b"POST /slow HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n";
    for byte in request {
        client.send([*byte]).unwrap();
    }
    assert_eq!(client.read_response("POST").unwrap().json().unwrap()["body_bytes"], 3);
}

#[test]
fn an_origin_that_answers_byte_by_byte_is_read() {
    let origin = Origin::serve(|mut peer: Peer| {
        while peer.read_request().is_ok() {
            let answer =
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n";
            for byte in answer {
                if peer.send([*byte]).is_err() {
                    return;
                }
            }
        }
    })
    .unwrap();
    let gateway = in_front_of(&origin, "");
    let mut client = gateway.connect().unwrap();
    for _ in 0..3 {
        let answer = client.get("/").unwrap();
        assert_eq!(answer.text(), "abc");
        assert_eq!(answer.trailers, [("A".to_string(), "b".to_string())]);
    }
}

/// The 100 may be the origin's or the gateway's: the client only needs one before it sends.
#[test]
fn an_expecting_client_gets_100_continue() {
    let origin = Origin::serve(|mut peer: Peer| {
        let Ok(head) = peer.read_head() else { return };
        if head.get("expect").is_some() && peer.send("HTTP/1.1 100 Continue\r\n\r\n").is_err() {
            return;
        }
        let body = peer.read_exactly(2).unwrap_or_default();
        // A client that is gone shows in the test itself.
        let _ = peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()));
        let _ = peer.send(body);
        let _ = peer.read_to_close();
    })
    .unwrap();
    let gateway = in_front_of(&origin, "");
    let mut client = gateway.connect().unwrap();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n").unwrap();
    assert_eq!(client.read_response("POST").unwrap().status(), 100);
    client.send("hi").unwrap();
    let mut answer = client.read_response("POST").unwrap();
    if answer.status() == 100 {
        answer = client.read_response("POST").unwrap();
    }
    assert_eq!((answer.status(), answer.text().as_str()), (200, "hi"));
}

#[test]
fn an_expecting_client_may_be_refused_before_its_body() {
    let origin = Origin::serve(|mut peer: Peer| {
        if peer.read_head().is_ok() {
            let _ = peer.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
            let _ = peer.read_to_close();
        }
    })
    .unwrap();
    let gateway = in_front_of(&origin, "");
    let mut client = gateway.connect().unwrap();
    let answer = client
        .ask("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        .unwrap();
    assert_eq!(answer.status(), 403);
}

/// Bytes of one small chunk on the wire.
const SMALL_CHUNK: &[u8] = b"20\r\n0123456789abcdef0123456789abcdef\r\n";
/// Small chunks sent in one go, so that the test is not bound by its own system calls.
const BATCH: usize = 256;

/// Sends small chunks until `peer` takes no more; gives the number of bytes that went.
fn fill_with_small_chunks(peer: &mut Peer) -> usize {
    let batch = SMALL_CHUNK.repeat(BATCH);
    // Sixteen times what a_client_that_does_not_read allows in large pieces.
    let most = (64 << 20) / batch.len();
    (0..most).take_while(|_| peer.send(&batch).is_ok()).count() * batch.len()
}

/// Reads chunks of any size until all that went in `wire_bytes` of small chunks has come, in order.
fn assert_digits_arrive(peer: &mut Peer, wire_bytes: usize) {
    let mut left = wire_bytes / SMALL_CHUNK.len() * 32;
    let mut at = 0;
    while left > 0 {
        let size = usize::from_str_radix(&peer.read_line().unwrap(), 16).unwrap();
        let chunk = peer.read_exactly(size + 2).unwrap();
        for &byte in &chunk[..size] {
            assert_eq!(byte, b"0123456789abcdef"[at % 16], "after {at} bytes");
            at += 1;
        }
        left = left.saturating_sub(size);
    }
}

/// Many small pieces must not cost a buffer each: a count of pieces, or a limit on bytes alone, would let the
/// memory grow.
#[test]
fn small_chunks_to_a_client_that_does_not_read_are_held_back() {
    let origin = Origin::scripted().unwrap();
    let gateway = in_front_of(&origin, "");
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut peer = origin.accept().unwrap().with_deadline(Duration::from_millis(500));
    peer.read_request().unwrap();
    let before = gateway.settled_memory_kib().unwrap();
    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    let taken = fill_with_small_chunks(&mut peer);
    assert!(taken < 32 << 20, "the gateway took {taken} bytes for a client that does not read");
    assert_memory_bounded(&gateway, before);
    assert_eq!(client.read_head().unwrap().status().unwrap(), 200);
    assert_digits_arrive(&mut client, taken);
}

#[test]
fn small_chunks_to_an_origin_that_does_not_read_are_held_back() {
    let origin = Origin::scripted().unwrap();
    let gateway = in_front_of(&origin, "");
    let mut client = gateway.connect().unwrap().with_deadline(Duration::from_millis(500));
    client.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    client.send(SMALL_CHUNK).unwrap();
    let mut peer = origin.accept().unwrap().with_deadline(PATIENCE);
    let before = gateway.settled_memory_kib().unwrap();
    let taken = fill_with_small_chunks(&mut client);
    assert!(taken < 32 << 20, "the gateway took {taken} bytes for an origin that does not read");
    assert_memory_bounded(&gateway, before);
    assert_eq!(peer.read_head().unwrap().get("transfer-encoding"), Some("chunked"));
    assert_digits_arrive(&mut peer, taken);
}

#[test]
fn a_client_that_does_not_read_is_given_up() {
    let origin = Origin::scripted().unwrap();
    let gateway = in_front_of(
        &origin,
        "timeouts:\n  response_send_ms: 300\naccess_log:\n  path: \"{dir}/access.log\"\n  format: '$status $fault'\n  flush_ms: 50",
    );
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut peer = origin.accept().unwrap().with_deadline(PATIENCE);
    peer.read_request().unwrap();
    peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 64 * LARGE)).unwrap();
    let block = vec![b'x'; 1 << 20];
    // Without the deadline the origin would wait for as long as the client does.
    let sent = (0..1024).take_while(|_| peer.send(&block).is_ok()).count();
    assert!(sent < 64, "{sent} MiB went to a client that does not read");
    let got = client.read_to_close().unwrap().len();
    assert!(got < 64 << 20, "{got} bytes came after all");
    let log = gateway.dir().join("access.log");
    let line = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(until(PATIENCE, || line().starts_with("200 ")), "{:?}", line());
    assert_ne!(line().trim_end(), "200 -", "the exchange is logged as if it had ended well");
}
