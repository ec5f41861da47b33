//! HTTP/2 on either side: streams, windows, ends and abuse. The other side is the `h2` crate.

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use sigma_testkit::{Gateway, Origin, Peer, checksum};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::{PATIENCE, SIGMA, catch_all, in_front_of, nodes};

/// Runs a test against its own clock: what takes longer has failed.
pub(crate) fn within<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("the test takes too long") })
}

pub(crate) type Driver = JoinHandle<Result<(), h2::Error>>;

pub(crate) async fn connect(gateway: &Gateway) -> (SendRequest<Bytes>, Driver) {
    connect_as(gateway, h2::client::Builder::new()).await
}

pub(crate) async fn connect_as(
    gateway: &Gateway,
    builder: h2::client::Builder,
) -> (SendRequest<Bytes>, Driver) {
    connect_at(gateway.address().port().unwrap(), builder).await
}

pub(crate) async fn connect_at(port: u16, builder: h2::client::Builder) -> (SendRequest<Bytes>, Driver) {
    let socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (sender, connection) = builder.handshake(socket).await.unwrap();
    (sender, tokio::spawn(connection))
}

pub(crate) fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(format!("http://h.example{path}"))
}

pub(crate) async fn body_of(stream: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        body.extend_from_slice(&data);
    }
    Ok(body)
}

/// Sends all of `bytes` as the window allows, and leaves the stream open.
pub(crate) async fn push(stream: &mut SendStream<Bytes>, mut bytes: Bytes) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let room = room.unwrap_or(Err(Reason::CANCEL.into()))?;
        stream.send_data(bytes.split_to(room.min(bytes.len())), false)?;
    }
    Ok(())
}

/// Sends all of `body`, and ends the stream.
async fn send_all(stream: &mut SendStream<Bytes>, body: Bytes) -> Result<(), h2::Error> {
    push(stream, body).await?;
    stream.send_data(Bytes::new(), true)
}

pub(crate) async fn ask(
    sender: &SendRequest<Bytes>,
    request: Request<()>,
    body: Option<Bytes>,
) -> (u16, HeaderMap, Vec<u8>) {
    let mut sender = sender.clone().ready().await.unwrap();
    let (response, mut stream) = sender.send_request(request, body.is_none()).unwrap();
    if let Some(body) = body {
        send_all(&mut stream, body).await.unwrap();
    }
    let (parts, mut stream) = response.await.unwrap().into_parts();
    let body = body_of(&mut stream).await.unwrap();
    (parts.status.as_u16(), parts.headers, body)
}

pub(crate) async fn get(sender: &SendRequest<Bytes>, path: &str) -> (u16, HeaderMap, Vec<u8>) {
    ask(sender, request("GET", path).body(()).unwrap(), None).await
}

/// Looks again until `condition` holds; how long, [`within`] says.
pub(crate) async fn until(mut condition: impl FnMut() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(5));
    while !condition() {
        looks.tick().await;
    }
}

/// Runs blocking work on another thread.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// The next request that a scripted origin gets, on its own connection.
async fn next_request(origin: &std::sync::Arc<Origin>) -> Peer {
    let origin = origin.clone();
    aside(move || {
        let mut peer = origin.accept().unwrap();
        peer.read_request().unwrap();
        peer
    })
    .await
}

/// An origin that speaks HTTP/2 by prior knowledge; `serve` runs for every stream.
pub(crate) struct Node {
    port: u16,
    connections: std::sync::Arc<std::sync::atomic::AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Node {
    pub(crate) async fn start<F: Future<Output = ()> + Send + 'static>(
        builder: h2::server::Builder,
        serve: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + Send + 'static,
    ) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = std::sync::Arc::<std::sync::atomic::AtomicUsize>::default();
        let seen = connections.clone();
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let (builder, serve) = (builder.clone(), serve.clone());
                tokio::spawn(async move {
                    let Ok(mut connection) = builder.handshake(socket).await else { return };
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        tokio::spawn(serve(request, respond));
                    }
                });
            }
        });
        Node { port, connections, task }
    }

    /// A node that allows two requests on a connection and answers none before the gate is opened.
    pub(crate) async fn behind_a_gate() -> (Node, watch::Sender<bool>) {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(2);
        let (gate, open) = watch::channel(false);
        let serve = move |_: Request<RecvStream>, mut respond: SendResponse<Bytes>| {
            let mut open = open.clone();
            async move {
                open.wait_for(|open| *open).await.unwrap();
                respond.send_response(Response::new(()), true).unwrap();
            }
        };
        (Node::start(builder, serve).await, gate)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(std::sync::atomic::Ordering::SeqCst)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn gateway(&self, settings: &str) -> Gateway {
        let nodes = format!("{{ \"127.0.0.1:{}\": 1 }}", self.port);
        Gateway::start(SIGMA, &catch_all(settings, &nodes, "      scheme: grpc\n")).unwrap()
    }
}

/// Responds with its request: fields in the head, body and trailers as they came.
async fn mirror(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let (parts, mut stream) = request.into_parts();
    let mut response = Response::builder().status(200).header("x-path", parts.uri.to_string());
    for (name, value) in &parts.headers {
        response = response.header(format!("got-{name}"), value);
    }
    let mut out = respond.send_response(response.body(()).unwrap(), false).unwrap();
    while let Some(Ok(data)) = stream.data().await {
        // Taken as it is echoed, so that the test sees the windows of both directions at work.
        stream.flow_control().release_capacity(data.len()).unwrap();
        out.reserve_capacity(data.len());
        out.send_data(data, false).unwrap();
    }
    match stream.trailers().await {
        Ok(Some(trailers)) => out.send_trailers(trailers).unwrap(),
        _ => out.send_data(Bytes::new(), true).unwrap(),
    }
}

pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(step).collect()
}

#[test]
fn streams_of_one_connection_reach_an_http1_origin() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "access_log: { path: access.log, flush_ms: 50 }");
    within(async {
        let (sender, _driver) = connect(&gateway).await;
        let asks = (0..50).map(|n| {
            let sender = sender.clone();
            tokio::spawn(async move {
                let (status, _, body) = get(&sender, &format!("/{n}?q")).await;
                let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
                assert_eq!(status, 200);
                json["target"].as_str().unwrap().to_string()
            })
        });
        let mut seen = HashSet::new();
        for task in asks.collect::<Vec<_>>() {
            seen.insert(task.await.unwrap());
        }
        assert_eq!(seen.len(), 50, "every stream got its own answer");
    });
    let log = gateway.dir().join("access.log");
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(sigma_testkit::until(PATIENCE, || lines().lines().count() == 50), "{}", lines());
    assert!(lines().contains("?q HTTP/2.0\" 200"), "{}", lines());
}

#[test]
fn large_bodies_pass_both_ways_in_bounded_memory() {
    const LARGE: usize = 16 * 1024 * 1024;
    within(async {
        let node = Node::start(h2::server::Builder::new(), mirror).await;
        let body = noise(LARGE);
        let gateway = node.gateway("");
        let before = gateway.settled_memory_kib().unwrap();
        let (sender, _driver) = connect(&gateway).await;
        let mut sender = sender.ready().await.unwrap();
        let (response, mut stream) =
            sender.send_request(request("POST", "/").body(()).unwrap(), false).unwrap();
        let sent = Bytes::from(body.clone());
        let sending = tokio::spawn(async move { send_all(&mut stream, sent).await });
        let got = body_of(&mut response.await.unwrap().into_body()).await.unwrap();
        sending.await.unwrap().unwrap();
        assert!(checksum(&got) == checksum(&body), "{} bytes came back", got.len());
        let grown = gateway.peak_memory_kib().unwrap().saturating_sub(before);
        assert!(grown < 16 * 1024, "the gateway grew by {grown} KiB");
    });
}

#[test]
fn a_client_that_does_not_read_holds_back_the_node() {
    within(async {
        let (taken_in, mut taken) = tokio::sync::watch::channel(0usize);
        let serve = move |_: Request<RecvStream>, mut respond: SendResponse<Bytes>| {
            let taken_in = taken_in.clone();
            async move {
                let mut out = respond.send_response(Response::new(()), false).unwrap();
                loop {
                    out.reserve_capacity(64 * 1024);
                    let Some(Ok(room)) = std::future::poll_fn(|cx| out.poll_capacity(cx)).await else {
                        return;
                    };
                    if out.send_data(Bytes::from(vec![b'x'; room]), false).is_err() {
                        return;
                    }
                    taken_in.send_modify(|n| *n += room);
                }
            }
        };
        let node = Node::start(h2::server::Builder::new(), serve).await;
        let gateway = node.gateway("");
        let (sender, _driver) = connect(&gateway).await;
        let mut sender = sender.ready().await.unwrap();
        let (response, _) = sender.send_request(request("GET", "/").body(()).unwrap(), true).unwrap();
        let unread = response.await.unwrap();
        // Still until the windows and buffers on the way are full, and no byte further.
        while tokio::time::timeout(Duration::from_millis(500), taken.changed()).await.is_ok() {}
        let held = *taken.borrow();
        assert!(held < 4 * 1024 * 1024, "{held} bytes were taken for a client that does not read");
        drop(unread);
    });
}

#[test]
fn trailers_and_fields_over_http2_on_both_sides() {
    within(async {
        let node = Node::start(h2::server::Builder::new(), mirror).await;
        let gateway = node.gateway("");
        let (sender, _driver) = connect(&gateway).await;
        let mut sender = sender.ready().await.unwrap();
        let ask = request("POST", "/a?b")
            .header("te", "trailers")
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .header("x-a", "1");
        let (response, mut stream) = sender.send_request(ask.body(()).unwrap(), false).unwrap();
        stream.send_data(Bytes::from_static(b"ping"), false).unwrap();
        let (parts, mut body) = response.await.unwrap().into_parts();
        let first = body.data().await.unwrap().unwrap();
        assert_eq!(&first[..], b"ping", "what is sent arrives before the request ends");
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "7".parse().unwrap());
        stream.send_trailers(trailers).unwrap();
        assert!(body.data().await.is_none());
        let trailers = body.trailers().await.unwrap().unwrap();
        assert_eq!(trailers["x-sum"], "7");
        let got = |name: &str| parts.headers.get(format!("got-{name}")).map(|v| v.to_str().unwrap());
        assert_eq!(parts.headers["x-path"], "http://h.example/a?b");
        assert_eq!((got("te"), got("cookie")), (Some("trailers"), Some("a=1; b=2")));
        assert_eq!((got("x-a"), got("host"), got("connection")), (Some("1"), None, None));
    });
}

/// HTTP/1 clients before an HTTP/2 node.
#[test]
fn an_http1_client_reaches_an_http2_node() {
    within(async {
        let node = Node::start(h2::server::Builder::new(), mirror).await;
        let gateway = node.gateway("");
        aside(move || {
            let mut client = gateway.connect().unwrap();
            let answer = client.ask("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi").unwrap();
            assert_eq!((answer.status(), answer.text().as_str()), (200, "hi"));
            assert_eq!(answer.head.get("got-content-length"), Some("2"));
            let answer = client
                .ask("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 7\r\n\r\n")
                .unwrap();
            assert_eq!(answer.text(), "hi");
            assert_eq!(answer.trailers, [("x-sum".to_string(), "7".to_string())]);
            let answer = client.get("/").unwrap();
            assert_eq!((answer.status(), answer.body.len()), (200, 0));
        })
        .await;
        assert_eq!(node.connections(), 1, "one connection serves them all");
    });
}

#[test]
fn an_abandoned_stream_cancels_the_exchange_behind_it_alone() {
    let origin = std::sync::Arc::new(Origin::scripted().unwrap());
    let gateway = in_front_of(&origin, "");
    within(async {
        let (sender, _driver) = connect(&gateway).await;
        let mut ready = sender.clone().ready().await.unwrap();
        let (response, mut stream) =
            ready.send_request(request("GET", "/slow").body(()).unwrap(), true).unwrap();
        let mut peer = next_request(&origin).await;
        stream.send_reset(Reason::CANCEL);
        drop(response);
        aside(move || peer.expect_closed()).await.unwrap();
        let asking = tokio::spawn(async move { get(&sender, "/next").await.0 });
        let mut peer = next_request(&origin).await;
        peer.send("HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        assert_eq!(asking.await.unwrap(), 204);
    });
}

#[test]
fn a_cut_answer_is_a_reset_stream() {
    let origin = Origin::serve(|mut peer: Peer| {
        if peer.read_request().is_ok() {
            let _ = peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
        }
    })
    .unwrap();
    let gateway = in_front_of(&origin, "");
    within(async {
        let (sender, _driver) = connect(&gateway).await;
        let mut ready = sender.clone().ready().await.unwrap();
        let (response, _) = ready.send_request(request("GET", "/").body(()).unwrap(), true).unwrap();
        // Unsent data is taken back with the stream, the head included.
        let error = match response.await {
            Ok(response) => body_of(&mut response.into_body()).await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
    });
}

#[test]
fn a_websocket_over_extended_connect() {
    let origin = Origin::serve(|mut peer: Peer| {
        let Ok(head) = peer.read_head() else { return };
        assert_eq!(head.get("upgrade"), Some("websocket"));
        let key = head.get("sec-websocket-key").unwrap_or_default().to_string();
        let accept = accept_of(&key, head.line.contains("/wrong"));
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: chat\r\nSec-WebSocket-Accept: {accept}\r\n\r\nhello"
        );
        let _ = peer.send(answer);
        while let Ok(bytes) = peer.read_exactly(4) {
            let _ = peer.send(bytes);
        }
    })
    .unwrap();
    let gateway = in_front_of(&origin, "");
    within(async {
        let (sender, _driver) = connect(&gateway).await;
        let mut sender = sender.ready().await.unwrap();
        until(|| sender.is_extended_connect_protocol_enabled()).await;
        for (path, status) in [("/ws", 200), ("/wrong", 502)] {
            let ask = request("CONNECT", path)
                .extension(h2::ext::Protocol::from_static("websocket"))
                .header("sec-websocket-version", "13");
            sender = sender.ready().await.unwrap();
            let (response, mut out) = sender.send_request(ask.body(()).unwrap(), false).unwrap();
            let (parts, mut stream) = response.await.unwrap().into_parts();
            assert_eq!(parts.status, status, "{path}");
            if status != 200 {
                continue;
            }
            assert_eq!(parts.headers["sec-websocket-protocol"], "chat");
            assert!(!parts.headers.contains_key("sec-websocket-accept"));
            assert!(!parts.headers.contains_key("connection"));
            assert_eq!(&stream.data().await.unwrap().unwrap()[..], b"hello");
            out.send_data(Bytes::from_static(b"ping"), false).unwrap();
            assert_eq!(&stream.data().await.unwrap().unwrap()[..], b"ping");
            out.send_data(Bytes::new(), true).unwrap();
            assert!(stream.data().await.is_none_or(|end| end.is_err()), "the tunnel ends");
        }
    });
}

pub(crate) fn accept_of(key: &str, wrong: bool) -> String {
    use base64::Engine;
    use sha1::{Digest, Sha1};
    let guid = if wrong { "" } else { "258EAFA5-E914-47DA-95CA-C5AB0DC85B11" };
    base64::engine::general_purpose::STANDARD.encode(Sha1::digest(format!("{key}{guid}")))
}

/// A server over HTTP/2 may be requested a tunnel where none is allowed: no success may say so.
#[test]
fn a_tunnel_that_the_route_does_not_allow_is_refused() {
    let origin = Origin::echo("a").unwrap();
    let config = catch_all("", &nodes(&[&origin]), "").replace("    enable_websocket: true\n", "");
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    within(async {
        let (sender, _driver) = connect(&gateway).await;
        let mut sender = sender.ready().await.unwrap();
        let ask = request("CONNECT", "/").extension(h2::ext::Protocol::from_static("websocket"));
        let (response, _) = sender.send_request(ask.body(()).unwrap(), false).unwrap();
        assert_eq!(response.await.unwrap().status(), 501);
    });
    assert_eq!(origin.connections(), 0, "no node is asked");
}

/// The tunnel's request is written as a GET: its length would be read as a body's length, and the next
/// request on the node's connection as its bytes.
#[test]
fn an_extended_connect_brings_no_length_and_no_other_protocol() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "");
    within(async {
        let (sender, _driver) = connect(&gateway).await;
        let mut sender = sender.ready().await.unwrap();
        until(|| sender.is_extended_connect_protocol_enabled()).await;
        for (protocol, length, expected) in [
            ("websocket", Some("80"), 400),
            ("websocket", Some("0"), 400),
            ("h2c", None, 501),
            ("connect-udp", None, 501),
        ] {
            let mut ask = request("CONNECT", "/ws").extension(h2::ext::Protocol::from_static(protocol));
            if let Some(length) = length {
                ask = ask.header("content-length", length);
            }
            sender = sender.ready().await.unwrap();
            let (response, _out) = sender.send_request(ask.body(()).unwrap(), false).unwrap();
            assert_eq!(response.await.unwrap().status(), expected, "{protocol} {length:?}");
        }
    });
    assert_eq!(origin.connections(), 0, "no node is asked");
}

/// A plugin that answers a tunnel's request with a success would seem to have opened the tunnel.
#[test]
fn a_plugins_success_is_no_tunnel() {
    let origin = Origin::echo("a").unwrap();
    let config = catch_all("", &nodes(&[&origin]), "    plugins: { mocking: { response_example: hi } }\n");
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    within(async {
        let (sender, _driver) = connect(&gateway).await;
        let mut sender = sender.ready().await.unwrap();
        until(|| sender.is_extended_connect_protocol_enabled()).await;
        let ask = request("CONNECT", "/").extension(h2::ext::Protocol::from_static("websocket"));
        let (response, _) = sender.send_request(ask.body(()).unwrap(), false).unwrap();
        assert_eq!(response.await.unwrap().status(), 501);
    });
}

#[test]
fn an_upgrade_to_h2c_is_answered_in_http1() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "");
    let mut client = gateway.connect().unwrap();
    let answer = client
        .ask("GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")
        .unwrap();
    assert_eq!(answer.status(), 200);
    let mut split = gateway.connect().unwrap();
    for byte in b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n" {
        split.send([*byte]).unwrap();
    }
    assert_eq!(split.read_response("PUT").unwrap().status(), 200, "P does not make a preface");
}

#[test]
fn a_stop_lets_streams_finish_and_takes_no_new_ones() {
    let origin = std::sync::Arc::new(Origin::scripted().unwrap());
    let mut gateway = in_front_of(&origin, "");
    within(async {
        let (sender, driver) = connect(&gateway).await;
        let mut ready = sender.clone().ready().await.unwrap();
        let (response, _) = ready.send_request(request("GET", "/").body(()).unwrap(), true).unwrap();
        let mut peer = next_request(&origin).await;
        gateway.terminate().unwrap();
        // The GOAWAY shows in a stream that can be begun no more.
        until(|| {
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            matches!(sender.clone().poll_ready(&mut cx), std::task::Poll::Ready(Err(_)))
        })
        .await;
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate").unwrap();
        let mut stream = response.await.unwrap().into_body();
        assert_eq!(body_of(&mut stream).await.unwrap(), b"late");
        driver.await.unwrap().unwrap();
    });
    assert!(gateway.wait(PATIENCE).unwrap().success());
}

#[test]
fn a_listener_that_goes_takes_its_idle_connections_along() {
    let origin = Origin::echo("a").unwrap();
    let config = catch_all("", &nodes(&[&origin]), "");
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    within(async {
        let (sender, driver) = connect(&gateway).await;
        assert_eq!(get(&sender, "/").await.0, 200);
        gateway.rewrite(&config.replace("{listen}", "127.0.0.1:0")).unwrap();
        gateway.reload().unwrap();
        driver.await.unwrap().unwrap();
    });
}

#[test]
fn after_its_last_request_a_connection_gets_goaway() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "limits: { keepalive_requests: 3 }\n");
    within(async {
        let (sender, driver) = connect(&gateway).await;
        for _ in 0..3 {
            assert_eq!(get(&sender, "/").await.0, 200);
        }
        driver.await.unwrap().unwrap();
    });
}

#[test]
fn an_idle_connection_gets_goaway() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "timeouts: { keepalive_ms: 200 }\n");
    within(async {
        let (sender, driver) = connect(&gateway).await;
        assert_eq!(get(&sender, "/").await.0, 200);
        driver.await.unwrap().unwrap();
    });
}
