//! HTTP/2 nodes: connections that several requests share, their limits and their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Request, Response};
use sigma_testkit::Gateway;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::h2::{Node, ask, connect, get, request, until, within};
use crate::{SIGMA, catch_all};

#[test]
fn streams_that_a_node_refuses_are_repeated() {
    within(async {
        let count = Arc::new(AtomicUsize::new(0));
        let serve = move |_: Request<RecvStream>, mut respond: SendResponse<Bytes>| {
            let n = count.fetch_add(1, Ordering::SeqCst);
            async move {
                if n.is_multiple_of(2) {
                    respond.send_reset(Reason::REFUSED_STREAM);
                } else {
                    respond.send_response(Response::new(()), true).unwrap();
                }
            }
        };
        let node = Node::start(h2::server::Builder::new(), serve).await;
        let gateway = node.gateway("");
        let (sender, _driver) = connect(&gateway).await;
        // The first is refused on a fresh connection and the only node: that is its response. After it each is refused
        // once on a connection that has served, and repeated on another, POST too.
        let (status, ..) = get(&sender, "/").await;
        assert_eq!(status, 502);
        let (status, ..) = get(&sender, "/").await;
        assert_eq!(status, 200);
        let (status, ..) =
            ask(&sender, request("POST", "/").body(()).unwrap(), Some(Bytes::from_static(b"hi"))).await;
        assert_eq!(status, 200);
    });
}

#[test]
fn streams_beyond_the_nodes_limit_get_another_connection() {
    within(async {
        let (node, gate) = Node::behind_a_gate().await;
        let gateway = node.gateway("http2: { upstream_streams: 2 }\n");
        let (sender, _driver) = connect(&gateway).await;
        let asks: Vec<_> = (0..6)
            .map(|_| {
                let sender = sender.clone();
                tokio::spawn(async move { get(&sender, "/").await.0 })
            })
            .collect();
        until(|| node.connections() >= 3).await;
        gate.send(true).unwrap();
        for ask in asks {
            assert_eq!(ask.await.unwrap(), 200);
        }
        assert_eq!(node.connections(), 3);
    });
}

/// A connection with a GOAWAY takes no new request, of any method; open streams end in their own time.
#[test]
fn a_node_that_leaves_gets_no_new_requests() {
    within(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let seen = connections.clone();
        let node = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                seen.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(socket).await.unwrap();
                    while let Some(Ok((_, mut respond))) = connection.accept().await {
                        // GOAWAY first: the response comes on a connection that is going.
                        connection.graceful_shutdown();
                        respond.send_response(Response::new(()), true).unwrap();
                    }
                });
            }
        });
        let nodes = format!("{{ \"127.0.0.1:{port}\": 1 }}");
        let config = catch_all("", &nodes, "      scheme: grpc\n");
        let gateway = Gateway::start(SIGMA, &config).unwrap();
        let (sender, _driver) = connect(&gateway).await;
        for n in 1..=4 {
            let post = request("POST", "/").body(()).unwrap();
            let (status, ..) = ask(&sender, post, Some(Bytes::from_static(b"hi"))).await;
            assert_eq!((n, status), (n, 200));
        }
        assert_eq!(connections.load(Ordering::SeqCst), 4, "each got a connection of its own");
        node.abort();
    });
}

/// A node whose first connection serves `served` requests and resets all later ones with `reason`; its other connections
/// serve all.
async fn node_that_resets(served: usize, reason: Reason) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let seen = connections.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let is_first = seen.fetch_add(1, Ordering::SeqCst) == 0;
            tokio::spawn(async move {
                let Ok(mut connection) = h2::server::handshake(socket).await else { return };
                let mut count = 0;
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    count += 1;
                    if is_first && count > served {
                        respond.send_reset(reason);
                    } else {
                        respond.send_response(Response::new(()), true).unwrap();
                    }
                }
            });
        }
    });
    (port, connections)
}

#[test]
fn connection_whose_node_resets_each_new_stream_is_retired() {
    // A call for calm is enough; of other resets there are three in a row.
    for (served, reason, failures) in [
        (1, Reason::ENHANCE_YOUR_CALM, 1),
        (1, Reason::INTERNAL_ERROR, 3),
        (0, Reason::CANCEL, 3),
        (2, Reason::STREAM_CLOSED, 3),
    ] {
        within(async {
            let (port, connections) = node_that_resets(served, reason).await;
            let nodes = format!("{{ \"127.0.0.1:{port}\": 1 }}");
            let config = catch_all("", &nodes, "      scheme: grpc\n").replace("workers: 2", "workers: 1");
            let gateway = Gateway::start(SIGMA, &config).unwrap();
            let (sender, _driver) = connect(&gateway).await;
            let mut statuses = Vec::new();
            for _ in 0..served + failures + 2 {
                let post = request("POST", "/").body(()).unwrap();
                statuses.push(ask(&sender, post, Some(Bytes::from_static(b"hi"))).await.0);
            }
            let expected = [vec![200; served], vec![502; failures], vec![200; 2]].concat();
            assert_eq!(statuses, expected, "{reason:?}");
            assert_eq!(connections.load(Ordering::SeqCst), 2, "{reason:?}");
        });
    }
}

/// A node that sends what carries no part of a message, and never ends.
#[test]
fn floods_of_a_node_end_their_connection_only() {
    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let head =
            [&(payload.len() as u32).to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        [head, payload.to_vec()].concat()
    }
    let begun = frame(1, 4, 1, b"\x88");
    for (name, first, flood) in [
        ("PING", Vec::new(), frame(6, 0, 0, &[0; 8])),
        ("SETTINGS", Vec::new(), frame(4, 0, 0, &[0, 4, 0, 0, 1, 0].repeat(100))),
        ("WINDOW_UPDATE", Vec::new(), frame(8, 0, 0, &[0, 0, 0, 1])),
        ("unknown", Vec::new(), frame(0xee, 0, 0, &[])),
        ("CONTINUATION", frame(1, 1, 1, b"\x88"), frame(9, 0, 1, &[])),
        ("DATA", begun.clone(), frame(0, 0, 1, &[])),
        ("padding", begun, frame(0, 8, 1, &[3, 0, 0, 0])),
    ] {
        within(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let node = tokio::spawn(async move {
                let (mut socket, _) = listener.accept().await.unwrap();
                socket.write_all(&frame(4, 0, 0, &[])).await.unwrap();
                // Preface, SETTINGS, WINDOW_UPDATE, and the request behind them.
                let mut read = 0;
                while read < 120 {
                    read += socket.read(&mut [0; 1_024]).await.unwrap();
                }
                socket.write_all(&first).await.unwrap();
                while socket.write_all(&flood.repeat(100)).await.is_ok() {}
            });
            let nodes = format!("{{ \"127.0.0.1:{port}\": 1 }}");
            let settings = "http2: { upstream_control_frames_per_second: 100 }\n";
            let upstream = "      scheme: grpc\n      retries: 0\n";
            let gateway = Gateway::start(SIGMA, &catch_all(settings, &nodes, upstream)).unwrap();
            let (sender, _driver) = connect(&gateway).await;
            let mut sender = sender.ready().await.unwrap();
            let (answer, _) = sender.send_request(request("GET", "/").body(()).unwrap(), true).unwrap();
            // One that has begun is cut short.
            if let Ok(answer) = answer.await {
                match answer.status().as_u16() {
                    200 => assert!(crate::h2::body_of(&mut answer.into_body()).await.is_err(), "{name}"),
                    status => assert_eq!(status, 502, "{name}"),
                }
            }
            // The gateway has closed the connection.
            node.await.unwrap();
        });
    }
}

/// Answers `/big` with a MiB, and all else with two bytes; whether that was taken.
async fn big_or_small(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> bool {
    let bytes = if request.uri().path() == "/big" { 1 << 20 } else { 2 };
    let mut out = respond.send_response(Response::new(()), false).unwrap();
    let is_taken = crate::h2::push(&mut out, Bytes::from(vec![b'x'; bytes])).await.is_ok();
    let _ = out.send_data(Bytes::new(), true);
    is_taken
}

/// A gateway whose connections to `node` have a window that one response uses up.
fn with_small_windows(node: &Node, http2: &str) -> Gateway {
    let settings = format!(
        "http2: {{ stream_window_bytes: 65535, connection_window_bytes: 65535{http2} }}\n\
         timeouts: {{ response_send_ms: 3600000 }}\n"
    );
    let nodes = format!("{{ \"127.0.0.1:{}\": 1 }}", node.port());
    let config = catch_all(&settings, &nodes, "      scheme: grpc\n").replace("workers: 2", "workers: 1");
    Gateway::start(SIGMA, &config).unwrap()
}

/// The body of `/big`, whose head has come, and the connection that it comes on.
async fn asked_by_a_client_that_does_not_read(gateway: &Gateway) -> (RecvStream, SendRequest<Bytes>) {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(0);
    let (stalled, _driver) = crate::h2::connect_as(gateway, builder).await;
    let mut stalled = stalled.ready().await.unwrap();
    let (big, _) = stalled.send_request(request("GET", "/big").body(()).unwrap(), true).unwrap();
    (big.await.unwrap().into_body(), stalled)
}

/// The times after which such a response gives way are settings.
#[test]
fn response_that_is_not_read_gives_way_after_the_set_time() {
    within(async {
        let mut sides = Vec::new();
        for ms in [100, 3_600_000] {
            // Counts the streams that the gateway takes back.
            let taken_back = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&taken_back);
            let serve = move |request: Request<RecvStream>, respond: SendResponse<Bytes>| {
                let count = Arc::clone(&count);
                async move {
                    if !big_or_small(request, respond).await {
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                }
            };
            let node = Node::start(h2::server::Builder::new(), serve).await;
            let times = format!(", upstream_crowded_ms: {ms}, upstream_stalled_ms: {ms}");
            let gateway = with_small_windows(&node, &times);
            let big = asked_by_a_client_that_does_not_read(&gateway).await;
            let (sender, driver) = connect(&gateway).await;
            sides.push((node, taken_back, gateway, big, sender, driver));
        }
        let mut asks = tokio::task::JoinSet::new();
        crate::h2::until(|| {
            // Some of them come before the window is used up, and wait for nothing.
            for (.., sender, _) in &sides {
                let sender = sender.clone();
                asks.spawn(async move { get(&sender, "/small").await.0 });
            }
            sides[0].1.load(Ordering::SeqCst) > 0
        })
        .await;
        assert_eq!(sides[1].1.load(Ordering::SeqCst), 0, "the patient gateway waits on");
    });
}

/// A client that reads nothing takes no part in the connection of others.
#[test]
fn requests_do_not_wait_behind_a_response_that_is_not_read() {
    within(async {
        let serve = |request, respond| async move {
            let _ = big_or_small(request, respond).await;
        };
        let node = Node::start(h2::server::Builder::new(), serve).await;
        let gateway = with_small_windows(&node, "");
        let _big = asked_by_a_client_that_does_not_read(&gateway).await;
        let (sender, _driver) = connect(&gateway).await;
        // The first ones may be behind the other response; those that come once its connection is retired are not.
        let served = Arc::new(AtomicUsize::new(0));
        let mut asks = tokio::task::JoinSet::new();
        // Fewer than a connection has places for, so that none is opened for lack of them.
        for _ in 0..80 {
            let (sender, count) = (sender.clone(), Arc::clone(&served));
            asks.spawn(async move {
                assert_eq!(get(&sender, "/small").await.0, 200);
                count.fetch_add(1, Ordering::SeqCst);
            });
            let next = asks.join_next();
            if let Ok(Some(ended)) = tokio::time::timeout(std::time::Duration::from_millis(50), next).await {
                ended.unwrap();
            }
            if served.load(Ordering::SeqCst) > 0 && node.connections() >= 2 {
                return;
            }
        }
        panic!("{} served over {} connections", served.load(Ordering::SeqCst), node.connections());
    });
}
