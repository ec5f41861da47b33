//! WebSockets (RFC 6455), opened by `Upgrade` and over HTTP/2 by extended CONNECT (RFC 8441): data arrives as
//! it was sent, for as long as both sides want it to.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use serde_json::json;
use sigma_net::tls::{ClientSettings, ClientTls};
use sigma_testkit::{Address, Gateway, Origin, Peer, checksum, free_port, until};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::h2::{accept_of, connect_at, noise, push, request};
use crate::tls::{Authority, config, to_origin};
use crate::{PATIENCE, SIGMA, catch_all, in_front_of, nodes};

pub(crate) const TEXT: u8 = 0x81;
pub(crate) const BINARY: u8 = 0x82;
pub(crate) const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

/// Frames up to this size are kept by the node as they came.
const KEPT_BYTES: usize = 1024;

/// A frame with `first` as its first byte; a client's is masked.
pub(crate) fn frame(first: u8, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
    let masked = if mask.is_some() { 0x80 } else { 0 };
    let mut out = vec![first];
    match payload.len() {
        len @ 0..126 => out.push(masked | len as u8),
        len @ 126..65_536 => {
            out.push(masked | 126);
            out.extend((len as u16).to_be_bytes());
        }
        len => {
            out.push(masked | 127);
            out.extend((len as u64).to_be_bytes());
        }
    }
    let mask = mask.inspect(|key| out.extend(key)).unwrap_or_default();
    out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, key)| byte ^ key));
    out
}

/// A client's frame.
pub(crate) fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    frame(first, payload, Some([0x12, 0x34, 0x56, 0x78]))
}

/// First byte and payload of a close frame.
pub(crate) fn close(code: u16, reason: &str) -> (u8, Vec<u8>) {
    (CLOSE, [&code.to_be_bytes()[..], reason.as_bytes()].concat())
}

/// Reads a frame: its bytes as they came, its first byte, and its payload without the mask.
pub(crate) fn read_frame<E>(
    mut read: impl FnMut(usize) -> Result<Vec<u8>, E>,
) -> Result<(Vec<u8>, u8, Vec<u8>), E> {
    let mut raw = read(2)?;
    let extended = match raw[1] & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    raw.extend(read(extended)?);
    let number = raw[2..].iter().fold(0, |n, byte| n << 8 | usize::from(*byte));
    let len = if extended == 0 { usize::from(raw[1] & 0x7f) } else { number };
    let mask = if raw[1] & 0x80 == 0 { vec![0; 4] } else { read(4)? };
    if raw[1] & 0x80 != 0 {
        raw.extend(&mask);
    }
    let bytes = read(len)?;
    let payload = bytes.iter().zip(mask.iter().cycle()).map(|(byte, key)| byte ^ key).collect();
    let first = raw[0];
    raw.extend(bytes);
    Ok((raw, first, payload))
}

/// A node that takes WebSockets and responds to other requests with its name. Messages come back as they were framed,
/// pings get a response, `leave` makes it close with 3001 and `ask` makes it ping.
struct Node {
    origin: Origin,
    /// Small frames as they came, masks included.
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    /// WebSockets that have ended.
    over: Arc<Mutex<usize>>,
}

impl Node {
    fn start(name: &'static str) -> Node {
        let (seen, over) = (Arc::<Mutex<Vec<Vec<u8>>>>::default(), Arc::<Mutex<usize>>::default());
        let (noted, ended) = (Arc::clone(&seen), Arc::clone(&over));
        let origin = Origin::serve(move |mut peer: Peer| {
            while let Ok(request) = peer.read_request() {
                let Some(key) = request.head.get("sec-websocket-key") else {
                    let answer = format!("HTTP/1.1 200 OK\r\nX-Origin: {name}\r\nContent-Length: 0\r\n\r\n");
                    if peer.send(answer).is_err() {
                        return;
                    }
                    continue;
                };
                let answer = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {}\r\n\r\n",
                    accept_of(key, false)
                );
                if peer.send(answer).is_ok() {
                    talk(peer.with_deadline(PATIENCE), &noted);
                }
                *ended.lock().unwrap() += 1;
                return;
            }
        });
        Node { origin: origin.unwrap(), seen, over }
    }
}

fn talk(mut peer: Peer, seen: &Mutex<Vec<Vec<u8>>>) {
    while let Ok((raw, first, payload)) = read_frame(|n| peer.read_exactly(n)) {
        if raw.len() <= KEPT_BYTES {
            seen.lock().unwrap().push(raw);
        }
        let answer = match (first, &payload[..]) {
            (PONG, _) => continue,
            (PING, _) => frame(PONG, &payload, None),
            (TEXT, b"leave") => frame(CLOSE, &close(3001, "bye").1, None),
            (TEXT, b"ask") => frame(PING, b"are you there", None),
            _ => frame(first, &payload, None),
        };
        if peer.send(answer).is_err() || first == CLOSE {
            return;
        }
    }
}

/// How a client opens its WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Upgrade,
    Connect,
}

pub(crate) const WAYS: [By; 2] = [By::Upgrade, By::Connect];

/// A client's end of a WebSocket.
pub(crate) enum Socket {
    Connection(Peer),
    Stream(Box<Stream>),
}

/// A stream and the runtime that its connection runs in, during any wait of the test.
pub(crate) struct Stream {
    runtime: Runtime,
    out: SendStream<Bytes>,
    input: RecvStream,
    read: Vec<u8>,
    /// A connection without a handle would be closed.
    _sender: SendRequest<Bytes>,
}

impl Stream {
    fn open(port: u16) -> Stream {
        let (response, stream) = Stream::ask(port);
        assert_eq!(response.status(), 200);
        stream
    }

    /// The head of the response to a request for a WebSocket, and the stream.
    fn ask(port: u16) -> (http::Response<()>, Stream) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let (sender, out, response) = runtime.block_on(patiently(async {
            let (sender, _driver) = connect_at(port, h2::client::Builder::new()).await;
            let mut sender = sender.ready().await.unwrap();
            crate::h2::until(|| sender.is_extended_connect_protocol_enabled()).await;
            let ask = request("CONNECT", "/ws")
                .extension(h2::ext::Protocol::from_static("websocket"))
                .header("sec-websocket-version", "13");
            let (response, out) = sender.send_request(ask.body(()).unwrap(), false).unwrap();
            (sender, out, response.await.unwrap())
        }));
        let (head, input) = response.into_parts();
        (
            http::Response::from_parts(head, ()),
            Stream { runtime, out, input, read: Vec::new(), _sender: sender },
        )
    }

    /// Reads until `n` bytes are there; false at an orderly end before that.
    fn fill(&mut self, n: usize) -> Result<bool, String> {
        let Stream { runtime, input, read, .. } = self;
        runtime.block_on(patiently(async {
            while read.len() < n {
                let Some(data) = input.data().await else { return Ok(false) };
                let data = data.map_err(|error| error.to_string())?;
                input.flow_control().release_capacity(data.len()).unwrap();
                read.extend_from_slice(&data);
            }
            Ok(true)
        }))
    }
}

async fn patiently<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("the WebSocket is stuck")
}

impl Socket {
    pub(crate) fn open(gateway: &Gateway, by: By) -> Socket {
        Socket::open_at(gateway.address().port().unwrap(), by)
    }

    /// By an upgrade, at `/<name>`.
    pub(crate) fn open_path(gateway: &Gateway, name: &str) -> Socket {
        Socket::upgrade(gateway.address().port().unwrap(), name)
    }

    fn open_at(port: u16, by: By) -> Socket {
        match by {
            By::Connect => Socket::Stream(Box::new(Stream::open(port))),
            By::Upgrade => Socket::upgrade(port, "ws"),
        }
    }

    fn upgrade(port: u16, name: &str) -> Socket {
        let mut peer = Peer::connect(&Address::loopback(port)).unwrap().with_deadline(PATIENCE);
        let answer = peer.ask(upgrade_request(name)).unwrap();
        assert_eq!(answer.status(), 101);
        assert_eq!(answer.head.get("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        Socket::Connection(peer)
    }

    pub(crate) fn send(&mut self, bytes: Vec<u8>) {
        match self {
            Socket::Connection(peer) => peer.send(bytes).unwrap(),
            Socket::Stream(stream) => {
                let Stream { runtime, out, .. } = &mut **stream;
                runtime.block_on(patiently(push(out, bytes.into()))).unwrap();
            }
        }
    }

    pub(crate) fn read(&mut self, n: usize) -> Result<Vec<u8>, String> {
        match self {
            Socket::Connection(peer) => peer.read_exactly(n).map_err(|error| format!("{error:#}")),
            Socket::Stream(stream) => match stream.fill(n)? {
                true => {
                    let rest = stream.read.split_off(n);
                    Ok(std::mem::replace(&mut stream.read, rest))
                }
                false => Err("the stream has ended".to_owned()),
            },
        }
    }

    /// The next frame: its first byte and payload. No frame of a server is masked.
    pub(crate) fn frame(&mut self) -> (u8, Vec<u8>) {
        let (raw, first, payload) = read_frame(|n| self.read(n)).unwrap();
        assert_eq!(raw[1] & 0x80, 0);
        (first, payload)
    }

    /// Sends a frame and reads the one that answers it.
    pub(crate) fn ask(&mut self, first: u8, payload: &[u8]) -> (u8, Vec<u8>) {
        self.send(masked(first, payload));
        self.frame()
    }

    /// Waits for the end; an error if the other side has not sent it.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        match self {
            Socket::Connection(peer) => peer.expect_closed().map_err(|error| format!("{error:#}")),
            Socket::Stream(stream) => match stream.fill(1)? {
                true => Err(format!("more bytes: {:?}", stream.read)),
                false => Ok(()),
            },
        }
    }
}

impl Socket {
    /// Whether so many bytes have not come in a moment.
    fn falls_short_of(self, n: usize) -> bool {
        const MOMENT: Duration = Duration::from_millis(50);
        match self {
            Socket::Connection(peer) => peer.with_deadline(MOMENT).read_exactly(n).is_err(),
            Socket::Stream(mut stream) => {
                let Stream { runtime, input, read, .. } = &mut *stream;
                let all = async {
                    while read.len() < n {
                        let Some(Ok(data)) = input.data().await else { return };
                        read.extend_from_slice(&data);
                    }
                };
                runtime.block_on(async { tokio::time::timeout(MOMENT, all).await }).is_err()
            }
        }
    }
}

fn upgrade_request(name: &str) -> String {
    format!(
        "GET /{name} HTTP/1.1\r\nHost: h.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

/// Plugins see the response that opens a WebSocket as any other: they may add fields or refuse it.
#[test]
fn plugins_filter_the_response_that_opens_a_websocket() {
    let node = Node::start("a");
    let filtered = |plugins: &str| {
        let settings = format!("global_rules: [{{ id: g, plugins: {{ {plugins} }} }}]");
        let gateway = in_front_of(&node.origin, &settings);
        let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
        let upgrade = peer.ask(upgrade_request("ws")).unwrap();
        let (connect, mut stream) = Stream::ask(gateway.address().port().unwrap());
        let statuses = (upgrade.status(), connect.status().as_u16());
        if statuses == (101, 200) {
            for socket in [&mut Socket::Connection(peer), &mut Socket::Stream(Box::new(stream))] {
                assert_eq!(socket.ask(TEXT, b"hello"), (TEXT, b"hello".to_vec()));
            }
        } else {
            // No byte reaches the node's end of the tunnel.
            let _ = (peer.send(masked(TEXT, b"hello")), stream.fill(usize::MAX));
        }
        let field = |name: &str| {
            let by_connect = connect.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
            assert_eq!(upgrade.head.get(name), by_connect.as_deref(), "{name}");
            by_connect
        };
        (statuses, field("x-frame-options"), field("x-ratelimit-limit"), field("content-length"))
    };
    let fields = "response-rewrite: { headers: { set: { X-Frame-Options: DENY } }, body: no }, gzip: { types: '*' }, \
        limit-count: { count: 9, time_window: 60, key: remote_addr }";
    let expected = ((101, 200), Some("DENY".to_owned()), Some("9".to_owned()), None);
    assert_eq!(filtered(fields), expected);
    let seen = node.seen.lock().unwrap().len();
    let refuse = "serverless-pre-function: { phase: header_filter, functions: ['return function() ngx.exit(403) end'] }";
    for (plugins, expected) in [
        (refuse, (403, 403)),
        // A success of HTTP/2 would be an open tunnel.
        ("response-rewrite: { status_code: 200 }", (200, 502)),
        ("response-rewrite: { headers: { set: { Upgrade: h2c } } }", (502, 502)),
        ("response-rewrite: { headers: { remove: [Sec-WebSocket-Accept] } }", (502, 502)),
    ] {
        assert_eq!(filtered(plugins).0, expected, "{plugins}");
    }
    assert_eq!(node.seen.lock().unwrap().len(), seen);
}

/// Data to a client waits, and data from it does not.
#[test]
fn a_tunnel_is_as_slow_as_its_rate() {
    let node = Node::start("a");
    let rules = "[{ rate: 1, burst: 100, direction: response }]";
    let slow =
        format!("global_rules: [{{ id: slow, plugins: {{ limit-bandwidth: {{ rules: {rules} }} }} }}]");
    let gateway = in_front_of(&node.origin, &slow);
    for by in WAYS {
        node.seen.lock().unwrap().clear();
        let mut socket = Socket::open(&gateway, by);
        // The head of a server's frame has two bytes: 92 of the hundred pass at once.
        for len in [78, 10] {
            assert_eq!(socket.ask(TEXT, &vec![b'x'; len]), (TEXT, vec![b'x'; len]), "{by:?}");
        }
        socket.send(masked(TEXT, &[b'y'; 58]));
        assert!(until(PATIENCE, || node.seen.lock().unwrap().len() == 3), "{by:?}");
        assert!(socket.falls_short_of(60), "{by:?}: that takes the better part of a minute");
    }
}

#[test]
fn messages_of_every_size_pass_both_ways() {
    let node = Node::start("a");
    let gateway = in_front_of(&node.origin, "");
    for by in WAYS {
        let mut socket = Socket::open(&gateway, by);
        for len in [0, 1, 125, 126, 65_535, 65_536, 1024 * 1024, 16 * 1024 * 1024] {
            let sent = noise(len);
            let (first, got) = socket.ask(BINARY, &sent);
            assert_eq!((first, got.len(), checksum(&got)), (BINARY, len, checksum(&sent)), "{by:?} {len}");
        }
    }
}

/// A port whose connections continue to the gateway over TLS. Open until the tests end.
fn sealed(gateway: &Gateway, client: ClientTls) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = std::net::SocketAddr::from(([127, 0, 0, 1], gateway.address().port().unwrap()));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((mut near, _)) = listener.accept().await {
                let client = client.clone();
                tokio::task::spawn_local(async move {
                    let socket = sigma_net::Stream::connect_tcp(to).await.unwrap();
                    let mut far = client.shake(socket, "h.example").await.unwrap();
                    // The end of either side, in order or not, is an end for both.
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
    });
    port
}

#[test]
fn messages_pass_over_tls() {
    let (root, node, dir) = (Authority::new("Root"), Node::start("a"), tempfile::tempdir().unwrap());
    let tls = json!({ "certificates": [root.issue("h.example").files(dir.path(), "own")] });
    let upstream = to_origin(&node.origin);
    let routes = json!([{ "id": "all", "uri": "/*", "enable_websocket": true, "upstream": upstream }]);
    let text = config(tls, upstream, json!({ "routes": routes }));
    let gateway = Gateway::start(SIGMA, &text).unwrap();
    for (by, alpn) in [(By::Upgrade, "http/1.1"), (By::Connect, "h2")] {
        let settings =
            ClientSettings { trust: root.trust(), alpn: vec![alpn.into()], ..ClientSettings::default() };
        let mut socket = Socket::open_at(sealed(&gateway, ClientTls::new(settings).unwrap()), by);
        for len in [1, 65_536, 16 * 1024 * 1024] {
            let sent = noise(len);
            let (first, got) = socket.ask(BINARY, &sent);
            assert_eq!((first, got.len(), checksum(&got)), (BINARY, len, checksum(&sent)), "{by:?} {len}");
        }
        assert_eq!(socket.ask(TEXT, b"leave"), close(3001, "bye"), "{by:?}");
        let (first, payload) = close(3001, "bye");
        assert_eq!(socket.ask(first, &payload), (first, payload), "{by:?}");
        assert_eq!(socket.end(), Ok(()), "{by:?}");
    }
}

#[test]
fn frames_of_every_kind_are_left_as_they_are() {
    let node = Node::start("a");
    let gateway = in_front_of(&node.origin, "");
    for by in WAYS {
        node.seen.lock().unwrap().clear();
        let mut socket = Socket::open(&gateway, by);
        let mut sent = Vec::new();
        // A message in fragments with a ping amid them, one with a bit of an extension, an empty one.
        for (first, payload, answer) in [
            (0x01, "frag", Some(0x01)),
            (PING, "amid", Some(PONG)),
            (0x00, "men", Some(0x00)),
            (0x80, "ts", Some(0x80)),
            (0xc1, "deflated", Some(0xc1)),
            (PONG, "nobody asked", None),
            (BINARY, "", Some(BINARY)),
        ] {
            let bytes = masked(first, payload.as_bytes());
            // Byte by byte: no side waits for a whole frame.
            bytes.iter().for_each(|byte| socket.send(vec![*byte]));
            sent.push(bytes);
            if let Some(answer) = answer {
                assert_eq!(socket.frame(), (answer, payload.as_bytes().to_vec()), "{by:?} {payload}");
            }
        }
        assert_eq!(socket.ask(TEXT, b"ask"), (PING, b"are you there".to_vec()));
        socket.send(masked(PONG, b"are you there"));
        sent.extend([masked(TEXT, b"ask"), masked(PONG, b"are you there")]);
        assert!(until(PATIENCE, || node.seen.lock().unwrap().len() == sent.len()), "{by:?}");
        assert_eq!(*node.seen.lock().unwrap(), sent, "{by:?}");
    }
}

#[test]
fn close_codes_pass_and_the_end_follows() {
    let node = Node::start("a");
    let gateway = in_front_of(&node.origin, "");
    for by in WAYS {
        // The client's own, with a reason, with none, and without a code.
        for payload in [close(1001, "going away").1, close(4999, "").1, Vec::new()] {
            let mut socket = Socket::open(&gateway, by);
            assert_eq!(socket.ask(CLOSE, &payload), (CLOSE, payload), "{by:?}");
            assert_eq!(socket.end(), Ok(()), "{by:?}");
        }
        // The node's.
        let mut socket = Socket::open(&gateway, by);
        assert_eq!(socket.ask(TEXT, b"leave"), close(3001, "bye"), "{by:?}");
        let (first, payload) = close(3001, "bye");
        assert_eq!(socket.ask(first, &payload), (first, payload), "{by:?}");
        assert_eq!(socket.end(), Ok(()), "{by:?}");
        assert!(node.seen.lock().unwrap().contains(&masked(CLOSE, &close(3001, "bye").1)), "{by:?}");
    }
}

#[test]
fn an_idle_websocket_ends_and_one_in_use_does_not() {
    const IDLE: Duration = Duration::from_secs(1);
    let node = Node::start("a");
    let settings = format!("timeouts: {{ tunnel_idle_ms: {} }}\n", IDLE.as_millis());
    let gateway = in_front_of(&node.origin, &settings);
    for by in WAYS {
        let over = *node.over.lock().unwrap();
        let mut socket = Socket::open(&gateway, by);
        let began = Instant::now();
        while began.elapsed() < 2 * IDLE {
            assert_eq!(socket.ask(PING, b"still here"), (PONG, b"still here".to_vec()), "{by:?}");
        }
        let silent = Instant::now();
        // Over HTTP/2 an end that neither side requested is a stream taken back.
        assert_eq!(socket.end().is_ok(), by == By::Upgrade, "{by:?}");
        // The gateway's clock is coarse, and began with the response to the last ping.
        assert!(silent.elapsed() > IDLE / 2, "{by:?}: {:?}", silent.elapsed());
        assert!(until(PATIENCE, || *node.over.lock().unwrap() == over + 1), "the node is told, {by:?}");
    }
}

fn scraped(address: &Address, target: &str) -> String {
    let mut text = String::new();
    // It may listen a little later than the data plane.
    let answered = until(PATIENCE, || match Peer::connect(address).and_then(|mut peer| peer.get(target)) {
        Ok(answer) => {
            text = answer.text();
            true
        }
        Err(_) => false,
    });
    assert!(answered, "{target} is not served");
    text
}

/// Reloads, and waits until both workers send requests to the node called `name`.
fn reload_to(gateway: &Gateway, config: &str, name: &str) {
    gateway.rewrite(config).unwrap();
    gateway.reload().unwrap();
    let served = || {
        let answer = gateway.connect().ok()?.get("/").ok()?;
        answer.head.get("x-origin").map(str::to_owned)
    };
    assert!(until(PATIENCE, || (0..8).all(|_| served().as_deref() == Some(name))), "{name} does not serve");
}

#[test]
fn websockets_survive_reloads_that_leave_nothing_of_their_route() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    let to = |node: &Node| catch_all("", &nodes(&[&node.origin]), "");
    let gateway = Gateway::start(SIGMA, &to(&a)).unwrap();
    let mut sockets = WAYS.map(|by| Socket::open(&gateway, by));
    for round in 0..6 {
        let (node, name) = if round % 2 == 0 { (&b, "b") } else { (&a, "a") };
        // Another route under another id, to another node, and without leave for WebSockets.
        let config = to(node).replace("id: all", &format!("id: r{round}"));
        reload_to(&gateway, &config.replace("    enable_websocket: true\n", ""), name);
        for (socket, by) in sockets.iter_mut().zip(WAYS) {
            assert_eq!(socket.ask(TEXT, b"still here"), (TEXT, b"still here".to_vec()), "{round} {by:?}");
        }
    }
    assert_eq!(*a.over.lock().unwrap(), 0);
    assert!(b.seen.lock().unwrap().is_empty());
}

#[test]
fn websockets_are_counted_while_they_are_open() {
    let node = Node::start("a");
    let page = Address::loopback(free_port());
    let port = page.port().unwrap();
    let settings = format!(
        "status: {{ address: \"{{status}}\" }}\n\
         plugin_attr: {{ prometheus: {{ export_addr: {{ ip: 127.0.0.1, port: {port} }} }} }}\n"
    );
    let gateway = in_front_of(&node.origin, &settings);
    let check = |upgrade: [u64; 2], connect: [u64; 2], bytes: [u64; 2]| {
        let lines = [
            format!("sigma_websockets_by_upgrade_total {}", upgrade[0]),
            format!("sigma_websockets_by_upgrade_active {}", upgrade[1]),
            format!("sigma_websockets_by_connect_total {}", connect[0]),
            format!("sigma_websockets_by_connect_active {}", connect[1]),
            format!("sigma_websocket_bytes_in_total {}", bytes[0]),
            format!("sigma_websocket_bytes_out_total {}", bytes[1]),
        ];
        let metrics = [
            format!("apisix_websocket_connections_total{{by=\"upgrade\"}} {}", upgrade[0]),
            format!("apisix_websocket_connections{{by=\"upgrade\"}} {}", upgrade[1]),
            format!("apisix_websocket_connections_total{{by=\"connect\"}} {}", connect[0]),
            format!("apisix_websocket_connections{{by=\"connect\"}} {}", connect[1]),
            format!("apisix_websocket_bytes_total{{type=\"ingress\"}} {}", bytes[0]),
            format!("apisix_websocket_bytes_total{{type=\"egress\"}} {}", bytes[1]),
        ];
        let pages = [
            (gateway.status_address(), "/status/counters", lines),
            (page.clone(), "/apisix/prometheus/metrics", metrics),
        ];
        for (address, target, wanted) in pages {
            let mut text = String::new();
            let complete = until(PATIENCE, || {
                text = scraped(&address, target);
                wanted.iter().all(|line| text.lines().any(|known| known == line))
            });
            assert!(complete, "{wanted:#?}\n{text}");
        }
    };
    check([0, 0], [0, 0], [0, 0]);
    let mut sockets = [By::Upgrade, By::Upgrade, By::Connect].map(|by| Socket::open(&gateway, by));
    // Six bytes of a client's frame are its head and mask, two of a node's its head.
    let [sent, answered] = [6 + 100, 2 + 100];
    for socket in &mut sockets {
        assert_eq!(socket.ask(BINARY, &[7; 100]).1.len(), 100);
    }
    check([2, 2], [1, 1], [3 * sent, 3 * answered]);
    let [first, _second, third] = &mut sockets;
    assert_eq!(first.ask(CLOSE, &[]).0, CLOSE);
    assert_eq!(third.ask(CLOSE, &[]).0, CLOSE);
    let (received, returned) = (3 * sent + 2 * 6, 3 * answered + 2 * 2);
    check([2, 1], [1, 0], [received, returned]);
    // One that goes without a word is counted off as well.
    drop(sockets);
    check([2, 0], [1, 0], [received, returned]);
    assert!(until(PATIENCE, || *node.over.lock().unwrap() == 3), "the nodes are not told");
}

/// A reset of the node is no orderly end, and must not look like one.
#[test]
fn a_node_that_breaks_off_differs_from_one_that_closes() {
    let origin = Origin::serve(|mut peer: Peer| {
        let Ok(request) = peer.read_request() else { return };
        let accept = accept_of(request.head.get("sec-websocket-key").unwrap(), false);
        let _ = peer.send(format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"));
        let asked = read_frame(|n| peer.read_exactly(n)).map(|(_, _, payload)| payload);
        if asked.is_ok_and(|payload| payload == b"reset") {
            peer.reset().unwrap();
        }
    })
    .unwrap();
    let gateway = in_front_of(&origin, "");
    for (word, orderly) in [("close", true), ("reset", false)] {
        let mut socket = Socket::open(&gateway, By::Connect);
        socket.send(masked(TEXT, word.as_bytes()));
        assert_eq!(socket.end().is_ok(), orderly, "{word}");
    }
}

/// Other protocols may be upgraded to as well; they are no WebSockets.
#[test]
fn a_tunnel_of_another_protocol_is_not_counted() {
    let origin = Origin::serve(|mut peer: Peer| {
        if peer.read_head().is_ok() {
            let _ =
                peer.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhi");
            let _ = peer.read_to_close();
        }
    });
    let origin = origin.unwrap();
    let config = catch_all("status: { address: \"{status}\" }\n", &nodes(&[&origin]), "")
        .replace("enable_websocket: true", "upgrade_protocols: [x]");
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let mut client = gateway.connect().unwrap();
    let answer =
        client.ask("GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n").unwrap();
    assert_eq!((answer.status(), client.read_exactly(2).unwrap()), (101, b"hi".to_vec()));
    let text = scraped(&gateway.status_address(), "/status/counters");
    assert!(text.contains("sigma_websockets_by_upgrade_total 0\n"), "{text}");
}

/// A WebSocket has no response that could be cut.
#[test]
fn websocket_that_its_node_breaks_off_is_logged_as_a_connection() {
    let origin = Origin::scripted().unwrap();
    let gateway = in_front_of(&origin, "");
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n").unwrap();
    let mut node = origin.accept().unwrap().with_deadline(PATIENCE);
    node.read_request().unwrap();
    node.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status().unwrap(), 101);
    // More than sockets take, so that the gateway has bytes for the node when that goes.
    let length = 32_u64 << 20;
    let frame = [&[BINARY, 0xff][..], &length.to_be_bytes(), &[0; 4], &vec![0; 32 << 20]].concat();
    let sending = std::thread::spawn(move || client.send(frame));
    node.read_exactly(1).unwrap();
    node.reset().unwrap();
    assert!(until(PATIENCE, || gateway
        .stderr()
        .contains("an upgraded connection was cut: the node broke it")));
    assert!(!gateway.stderr().contains("a response was cut"), "{}", gateway.stderr());
    assert!(sending.join().unwrap().is_err());
}
