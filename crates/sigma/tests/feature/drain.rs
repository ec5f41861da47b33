//! The end of a process, as connected clients see it: no exchange is left half done, and long-lived ones are
//! ended in the way of their protocol.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response};
use serde_json::json;
use sigma_testkit::{Gateway, Origin, Peer, until};

use crate::h2::{Node, accept_of, connect, request, within};
use crate::websocket::{BINARY, By, CLOSE, Socket, TEXT, WAYS, close, frame, masked, read_frame};
use crate::{PATIENCE, SIGMA, catch_all, in_front_of, nodes};

/// Long enough that nothing is cut at its end, which no test waits for.
const DRAIN: &str = "timeouts: { drain_ms: 20000, drain_spread_percent: 100, goodbye_ms: 19500 }\n";

/// A frame that came: its bytes, its first byte and its payload.
type Frame = (Vec<u8>, u8, Vec<u8>);

/// A node that agrees to a WebSocket and leaves it to `talk`, which may report its observations.
fn node<T: Send + 'static>(
    talk: impl Fn(&mut Peer, &Sender<T>) + Send + Sync + 'static,
) -> (Origin, std::sync::mpsc::Receiver<T>) {
    let (told, seen) = channel();
    let told = Mutex::new(told);
    let origin = Origin::serve(move |peer: Peer| {
        let mut peer = peer.with_deadline(PATIENCE);
        let Ok(request) = peer.read_request() else { return };
        let accept = accept_of(request.head.get("sec-websocket-key").unwrap(), false);
        let _ = peer.send(format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"));
        talk(&mut peer, &told.lock().unwrap().clone());
    });
    (origin.unwrap(), seen)
}

fn next(peer: &mut Peer) -> Option<Frame> {
    read_frame(|n| peer.read_exactly(n)).ok()
}

/// Both sides of a WebSocket get a close frame; when both have answered it ends, long before the deadline.
#[test]
fn both_sides_of_a_websocket_hear_that_the_gateway_goes_away() {
    for by in WAYS {
        let (origin, seen) = node(|peer, told| {
            while let Some(seen) = next(peer) {
                let (_, first, payload) = seen.clone();
                let _ = told.send(seen);
                let _ = peer.send(frame(first, &payload, None));
            }
        });
        let mut gateway = in_front_of(&origin, DRAIN);
        let mut socket = Socket::open(&gateway, by);
        assert_eq!(socket.ask(TEXT, b"hello"), (TEXT, b"hello".to_vec()), "{by:?}");
        assert_eq!(seen.recv_timeout(PATIENCE).unwrap().1, TEXT);
        gateway.terminate().unwrap();
        assert_eq!(socket.frame(), close(1001, ""), "{by:?}");
        // The node hears it in a frame that is masked, as a client's have to be.
        let (raw, first, payload) = seen.recv_timeout(PATIENCE).unwrap();
        assert_eq!(((first, payload), raw[1] & 0x80), (close(1001, ""), 0x80), "{by:?}");
        socket.send(masked(CLOSE, &1001_u16.to_be_bytes()));
        assert_eq!(socket.end(), Ok(()), "{by:?}");
        assert!(gateway.wait(PATIENCE).unwrap().success(), "{by:?}");
    }
}

/// The last word waits for the frame that is under way, and nothing follows it.
#[test]
fn a_frame_under_way_comes_to_its_end() {
    let whole = frame(BINARY, &[7; 3000], None);
    for by in WAYS {
        let halves = [whole[..1000].to_vec(), whole[1000..].to_vec()];
        let (origin, _seen) = node::<()>(move |peer, _| {
            peer.send(&halves[0]).unwrap();
            // The gateway's good-bye: the rest comes after it, with a frame that is too late.
            assert_eq!(next(peer).map(|(_, first, _)| first), Some(CLOSE));
            peer.send([&halves[1][..], &frame(TEXT, b"too late", None), &frame(CLOSE, b"", None)].concat())
                .unwrap();
            let _ = peer.read_to_close();
        });
        let mut gateway = in_front_of(&origin, DRAIN);
        let mut socket = Socket::open(&gateway, by);
        assert_eq!(socket.read(1000).unwrap(), whole[..1000], "{by:?}");
        gateway.terminate().unwrap();
        assert_eq!(socket.read(whole.len() - 1000).unwrap(), whole[1000..], "{by:?}");
        assert_eq!(socket.frame(), close(1001, ""), "{by:?}");
        socket.send(masked(CLOSE, b""));
        assert_eq!(socket.end(), Ok(()), "{by:?}");
        assert!(gateway.wait(PATIENCE).unwrap().success(), "{by:?}");
    }
}

/// A peer that does not respond delays nothing; one that sends no frames only misses the good-bye.
#[test]
fn a_websocket_without_an_answer_ends_all_the_same() {
    let settings = "timeouts: { drain_ms: 800, drain_spread_percent: 100, goodbye_ms: 300 }\n";
    for (sent, said) in [(&frame(TEXT, b"hi", None)[..], true), (b"\x83\x02no frames", false)] {
        let own = sent.to_vec();
        let (origin, _seen) = node::<()>(move |peer, _| {
            let _ = peer.send(&own);
            let _ = peer.read_to_close();
        });
        let mut gateway = in_front_of(&origin, settings);
        let mut socket = Socket::open(&gateway, By::Upgrade);
        assert_eq!(socket.read(sent.len()).unwrap(), sent);
        gateway.terminate().unwrap();
        if said {
            assert_eq!(socket.frame(), close(1001, ""));
        }
        assert_eq!(socket.end(), Ok(()));
        assert!(gateway.wait(PATIENCE).unwrap().success());
    }
}

/// A gRPC node that has responded with a head and a message, and never ends.
async fn endless(_request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let mut out = respond.send_response(head, false).unwrap();
    out.send_data(Bytes::from_static(&[0; 5]), false).unwrap();
    std::future::pending::<()>().await;
}

/// A node of calls that never responds.
async fn silent(_request: Request<RecvStream>, respond: SendResponse<Bytes>) {
    let _held = respond;
    std::future::pending::<()>().await;
}

/// Calls continue until the deadline, and end then with a code that clients take as leave to ask elsewhere.
#[test]
fn calls_end_with_a_code_that_says_try_elsewhere() {
    within(async {
        let call = || request("POST", "/s/m").header("content-type", "application/grpc").body(()).unwrap();
        let settings = "timeouts: { drain_ms: 300 }\n";
        let (streaming, waiting) = (
            Node::start(h2::server::Builder::new(), endless).await,
            Node::start(h2::server::Builder::new(), silent).await,
        );
        let gateway = streaming.gateway(settings);
        let (sender, _driver) = connect(&gateway).await;
        let (response, _out) = sender.ready().await.unwrap().send_request(call(), false).unwrap();
        let mut body = response.await.unwrap().into_body();
        assert_eq!(body.data().await.unwrap().unwrap().len(), 5);
        gateway.terminate().unwrap();
        assert!(body.data().await.is_none(), "no reset: the end is said in trailers");
        assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "14");

        let gateway = waiting.gateway(settings);
        let (sender, _driver) = connect(&gateway).await;
        let (response, _out) = sender.ready().await.unwrap().send_request(call(), false).unwrap();
        let response = tokio::spawn(response);
        crate::h2::until(|| waiting.connections() == 1).await;
        gateway.terminate().unwrap();
        let answer = response.await.unwrap().unwrap();
        assert_eq!(
            (answer.status(), &answer.headers()["grpc-status"]),
            (200.try_into().unwrap(), &"14".parse().unwrap())
        );
    });
}

/// A request without a response gets one at the deadline; a response that has begun is cut visibly.
#[test]
fn requests_that_outlast_the_drain_get_an_answer() {
    let origin = Origin::scripted().unwrap();
    let mut gateway = in_front_of(&origin, "timeouts: { drain_ms: 300 }");
    let ask = || {
        let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let mut peer = origin.accept().unwrap();
        peer.read_request().unwrap();
        (client, peer)
    };
    let ((mut waiting, _silent), (mut reading, mut slow)) = (ask(), ask());
    slow.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n").unwrap();
    assert_eq!(reading.read_head().unwrap().get("transfer-encoding"), Some("chunked"));
    gateway.terminate().unwrap();
    let answer = waiting.read_response("GET").unwrap();
    assert_eq!(answer.status(), 503);
    assert!(answer.text().contains("\"gateway_stopping\""), "{}", answer.text());
    assert_eq!(answer.head.get("connection"), Some("close"));
    let rest = reading.read_to_close().unwrap_or_default();
    assert!(!rest.ends_with(b"0\r\n\r\n"), "it does not look whole: {rest:?}");
    assert!(gateway.wait(PATIENCE).unwrap().success());
}

/// A session over TCP: the node learns that its client has ended, and its last bytes still arrive.
#[test]
fn a_stream_session_ends_without_a_reset() {
    let (told, heard) = channel();
    let told = Mutex::new(told);
    let origin = Origin::serve(move |mut peer: Peer| {
        let _ = peer.send("hello\r\n");
        let bytes = peer.read_to_close();
        let _ = told.lock().unwrap().send(bytes.is_ok());
        let _ = peer.send("last words");
    });
    let origin = Arc::new(origin.unwrap());
    let config = json!({
        "workers": 2,
        "listeners": [{ "address": "{listen}", "stream": "tcp" }],
        "timeouts": { "drain_ms": 20_000, "drain_spread_percent": 100, "goodbye_ms": 19_500 },
        "stream_routes": [{ "upstream": { "nodes": { format!("127.0.0.1:{}", origin.port()): 1 }, "scheme": "tcp" } }],
    });
    let mut gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    assert_eq!(client.read_line().unwrap(), "hello");
    gateway.terminate().unwrap();
    assert!(heard.recv_timeout(PATIENCE).unwrap(), "the node sees an end, not a reset");
    assert_eq!(client.read_to_close().unwrap(), b"last words");
    assert!(gateway.wait(PATIENCE).unwrap().success());
}

/// Other protocols have no good-bye that the gateway knows: their bytes end.
#[test]
fn a_tunnel_of_another_protocol_ends_after_the_sent_bytes() {
    let origin = Origin::serve(|mut peer: Peer| {
        if peer.read_head().is_ok() {
            let _ =
                peer.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhi");
            let _ = peer.read_to_close();
        }
    })
    .unwrap();
    let config =
        catch_all(DRAIN, &nodes(&[&origin]), "").replace("enable_websocket: true", "upgrade_protocols: [x]");
    let mut gateway = Gateway::start(SIGMA, &config).unwrap();
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    let ask = "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
    assert_eq!(client.ask(ask).unwrap().status(), 101);
    assert_eq!(client.read_exactly(2).unwrap(), b"hi");
    gateway.terminate().unwrap();
    assert!(client.read_to_close().unwrap().is_empty());
    assert!(until(PATIENCE, || gateway.connect().is_err()));
    assert!(gateway.wait(PATIENCE).unwrap().success());
}
