//! Forbidden behaviour of HTTP/2 clients, and its cost: their stream, or their connection.

use http::{Method, Request};
use sigma_testkit::{Gateway, Origin};

use crate::h2::{ask, connect, connect_as, get, request, within};
use crate::in_front_of;

/// Frames that no client library sends: kind, flags, stream, payload.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// `GET /` to `h`, as literal fields.
const GET: &[u8] = b"\x82\x86\x84\x41\x01h";

fn attack(gateway: &Gateway, mut flood: impl FnMut(u32) -> Vec<u8>, rounds: u32) {
    let mut peer = gateway.connect().unwrap();
    peer.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    peer.send(frame(4, 0, 0, &[])).unwrap();
    // The test waits for a failing send.
    let _ = (0..rounds).try_for_each(|n| peer.send(flood(n)));
    let bytes = peer.read_to_close().unwrap();
    let calm = frame(7, 0, 0, &[]);
    let goaways = bytes.windows(9).filter(|w| w[3] == calm[3] && w[4] == 0 && w[5..9] == [0; 4]).count();
    assert!(goaways > 0 || bytes.is_empty(), "no GOAWAY in {} bytes", bytes.len());
}

#[test]
fn floods_cost_their_own_connection_only() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(
        &origin,
        "http2: { control_frames_per_second: 100, resets_per_minute: 50 }\ntimeouts: { request_head_ms: 300 }\n",
    );
    within(async {
        let (sender, _driver) = connect(&gateway).await;
        assert_eq!(get(&sender, "/").await.0, 200);
        attack(&gateway, |_| frame(6, 0, 0, &[0; 8]), 2_000);
        attack(&gateway, |_| frame(4, 0, 0, &[]), 2_000);
        attack(&gateway, |_| frame(8, 0, 0, &1u32.to_be_bytes()), 2_000);
        attack(&gateway, |_| frame(2, 0, 1, &[0, 0, 0, 0, 1]), 2_000);
        let rapid_reset = |n: u32| {
            let stream = 2 * n + 1;
            [frame(1, 5, stream, GET), frame(3, 0, stream, &8u32.to_be_bytes())].concat()
        };
        attack(&gateway, rapid_reset, 2_000);
        let endless_head = |n: u32| if n == 0 { frame(1, 1, 1, GET) } else { frame(9, 0, 1, &[0; 1]) };
        attack(&gateway, endless_head, 5_000);
        attack(&gateway, |_| frame(1, 1, 1, GET), 1);
        // One reference of two bytes for a field of four thousand.
        let bomb = |n: u32| {
            let mut block = GET.to_vec();
            if n == 0 {
                block.extend(b"\x40\x01a\x7f\x81\x1e");
                block.extend(vec![b'x'; 4000]);
            }
            block.extend(vec![0xbe; 16_000]);
            frame(1, 5, 2 * n + 1, &block)
        };
        attack(&gateway, bomb, 20);
        assert_eq!(get(&sender, "/").await.0, 200, "others do not notice");
    });
}

/// A client that opens no window for its responses costs itself a timer.
#[test]
fn a_window_that_never_opens_ends_the_stream() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "timeouts: { response_send_ms: 300 }\n");
    within(async {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(0);
        let (sender, _driver) = connect_as(&gateway, builder).await;
        let mut sender = sender.ready().await.unwrap();
        let (response, _) = sender.send_request(request("GET", "/").body(()).unwrap(), true).unwrap();
        let mut stream = response.await.unwrap().into_body();
        assert!(stream.data().await.unwrap().is_err());
    });
}

#[test]
fn malformed_requests_are_refused() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(
        &origin,
        "limits: { request_line_bytes: 100, request_headers: 5, request_body_bytes: 10 }\n",
    );
    within(async {
        let (sender, _driver) = connect(&gateway).await;
        let fields = |n: usize| (0..n).fold(request("GET", "/"), |r, n| r.header(format!("x-{n}"), "1"));
        for (builder, status) in [
            (request("GET", "/").header("host", "other"), 400),
            (request("GET", &format!("/{}", "x".repeat(200))), 414),
            (fields(9), 431),
            (Request::builder().method(Method::CONNECT).uri("h.example:443"), 405),
            (request("POST", "/").header("expect", "what"), 417),
        ] {
            let (got, _, body) = ask(&sender, builder.body(()).unwrap(), None).await;
            assert_eq!(got, status, "{}", String::from_utf8_lossy(&body));
        }
        let long = request("POST", "/").header("content-length", "11").body(()).unwrap();
        let mut ready = sender.clone().ready().await.unwrap();
        let (response, _stream) = ready.send_request(long, false).unwrap();
        assert_eq!(response.await.unwrap().status(), 413);
        assert_eq!(get(&sender, "/").await.0, 200, "the connection goes on");
    });
}
