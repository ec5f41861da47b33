//! The end of a process, as connected clients see it: no exchange is left half done, and long-lived ones are
//! ended in the way of their protocol.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response};
use sigma_testkit::{Origin, Peer};

use crate::h2::{Node, accept_of, connect, request, within};
use crate::websocket::{BINARY, By, CLOSE, Socket, TEXT, WAYS, close, frame, masked, read_frame};
use crate::{PATIENCE, in_front_of};

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
