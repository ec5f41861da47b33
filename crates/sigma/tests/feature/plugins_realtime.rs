//! `realtime` and `realtime-publish`: a service that speaks HTTP alone has WebSockets and streams of events.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Message, Origin, Peer, free_port, until};

use crate::websocket::{BINARY, By, CLOSE, Socket, TEXT, WAYS, masked};
use crate::{PATIENCE, SIGMA};

const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

const KEY: &str = "publishers-key-1";

/// The service: it follows orders in the query or in the message, and notes its requests.
struct Service {
    origin: Origin,
    seen: Arc<Mutex<Vec<Message>>>,
}

impl Service {
    fn start() -> Service {
        let seen = Arc::<Mutex<Vec<Message>>>::default();
        let noted = Arc::clone(&seen);
        let origin = Origin::serve(move |mut peer: Peer| {
            while let Ok(request) = peer.read_request() {
                let answer = answer(&request);
                noted.lock().unwrap().push(request);
                if peer.send(answer).is_err() {
                    return;
                }
            }
        });
        Service { origin: origin.unwrap(), seen }
    }

    fn seen(&self) -> Vec<Message> {
        self.seen.lock().unwrap().clone()
    }

    /// Returns the reports of these events, in their order.
    fn told(&self, event: &str) -> Vec<Message> {
        let is_it = |message: &Message| message.head.get("connection-event") == Some(event);
        self.seen().into_iter().filter(is_it).collect()
    }
}

fn said(status: u16, fields: &str, body: &[u8]) -> Vec<u8> {
    let length = if status == 204 { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let head = format!("HTTP/1.1 {status} Said\r\n{fields}{length}\r\n");
    [head.as_bytes(), body].concat()
}

fn answer(request: &Message) -> Vec<u8> {
    let asked = request.head.get("x-forwarded-uri").unwrap_or_default();
    match (request.head.get("connection-event"), &request.body[..]) {
        (Some("connect"), _) if asked.contains("refuse") => {
            said(403, "X-Why: no\r\nGrip-Channel: all\r\nContent-Type: text/plain\r\n", b"not you")
        }
        (Some("connect"), _) if asked.contains("greet") => said(200, "", b"welcome"),
        (Some("connect"), _) => said(
            200,
            "Grip-Channel: all, room\r\nSet-Meta-User: 42\r\nSet-Cookie: a=b\r\nX-Other: c\r\n",
            b"",
        ),
        (Some("message"), b"quiet") => said(204, "", b""),
        (Some("message"), b"bytes") => said(200, "Content-Type: application/octet-stream\r\n", &[0xff, 0]),
        (Some("message"), b"leave room") => said(200, "Grip-Unsubscribe: room\r\n", b"left"),
        (Some("message"), b"many") => {
            said(200, "Grip-Channel: a1,a2,a3,a4\r\nGrip-Channel: bad name\r\n", b"done")
        }
        (Some("message"), b"forbidden") => said(403, "", b"no"),
        (Some("message"), b"broken") => said(500, "", b"no"),
        (Some("message"), body) => said(200, "", &[b"echo ", body].concat()),
        (Some(_), _) => said(200, "", b""),
        (None, _) if asked.contains("plain") => {
            said(404, "X-Kind: plain\r\nGrip-Channel: all\r\n", b"nothing")
        }
        (None, _) => said(
            200,
            "Grip-Hold: stream\r\nGrip-Channel: all, events\r\nX-Kind: events\r\n",
            b"data: first\n\n",
        ),
    }
}

fn start(service: &Service, more: Value, settings: Value) -> Gateway {
    let mut realtime = json!({ "uri": format!("http://{}/hook", service.origin.address()) });
    realtime.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut config = json!({
        "workers": 2,
        "listeners": [{ "address": "{listen}" }],
        "routes": [
            {
                "id": "ws", "uri": "/ws", "enable_websocket": true, "plugins": { "realtime": realtime },
                "upstream": { "nodes": { service.origin.address().to_string(): 1 } },
            },
            { "id": "publish", "uri": "/publish", "plugins": { "realtime-publish": { "keys": [KEY] } } },
        ],
    });
    config.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn publish_with(gateway: &Gateway, key: &str, body: &str) -> Message {
    let fields = format!("Authorization: Bearer {key}\r\nContent-Length: {}\r\n", body.len());
    gateway
        .connect()
        .unwrap()
        .ask(format!("POST /publish HTTP/1.1\r\nHost: h\r\n{fields}\r\n{body}"))
        .unwrap()
}

/// Pushes one item; returns how many it has reached.
fn publish(gateway: &Gateway, item: Value) -> u64 {
    let answer = publish_with(gateway, KEY, &json!({ "items": [item] }).to_string());
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.json().unwrap()["reached"][0].as_u64().unwrap()
}

fn to_all(text: &str) -> Value {
    json!({ "channel": "all", "formats": { "ws-message": { "content": text }, "http-stream": { "content": format!("data: {text}") } } })
}

fn text(text: &str) -> (u8, Vec<u8>) {
    (TEXT, text.as_bytes().to_vec())
}

fn closed(code: u16) -> (u8, Vec<u8>) {
    (CLOSE, code.to_be_bytes().to_vec())
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn ask(gateway: &Gateway, target: &str, fields: &str) -> Message {
    gateway.connect().unwrap().ask(format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).unwrap()
}

/// A stream of events, behind its head.
fn listen(gateway: &Gateway) -> Peer {
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    peer.send("GET /ws HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let head = peer.read_head().unwrap();
    assert_eq!(head.status().unwrap(), 200);
    assert_eq!(head.get("content-type"), Some("text/event-stream"));
    assert_eq!((head.get("cache-control"), head.get("x-kind")), (Some("no-cache"), Some("events")));
    assert!(head.get("grip-channel").is_none() && head.get("grip-hold").is_none());
    peer
}

/// The next chunk of a stream of events.
fn chunk(peer: &mut Peer) -> String {
    let size = peer.read_line().unwrap();
    let size = usize::from_str_radix(&size, 16).unwrap();
    let bytes = peer.read_exactly(size + 2).unwrap();
    String::from_utf8(bytes[..size].to_vec()).unwrap()
}

#[test]
fn events_of_a_websocket_are_requests() {
    let service = Service::start();
    let gateway = start(&service, json!({}), json!({}));
    for by in WAYS {
        service.seen.lock().unwrap().clear();
        let mut socket = Socket::open(&gateway, by);
        assert_eq!(socket.ask(TEXT, b"hi"), text("echo hi"), "{by:?}");
        assert_eq!(socket.ask(BINARY, b"hi"), text("echo hi"), "{by:?}");
        assert_eq!(socket.ask(TEXT, b"bytes"), (BINARY, vec![0xff, 0]), "{by:?}");
        // After a message without a response the next one is read.
        socket.send(masked(TEXT, b"quiet"));
        assert!(until(PATIENCE, || service.told("message").len() == 4), "{by:?}");
        assert_eq!(socket.ask(TEXT, b"on"), text("echo on"), "{by:?}");
        // Several at once in their order; a ping is between two peers.
        socket.send(
            [masked(TEXT, b"quiet"), masked(PING, b"?"), masked(TEXT, b"1"), masked(TEXT, b"2")].concat(),
        );
        let frames = [socket.frame(), socket.frame(), socket.frame()];
        assert_eq!(frames, [(PONG, b"?".to_vec()), text("echo 1"), text("echo 2")], "{by:?}");
        assert_eq!(socket.ask(CLOSE, &4001_u16.to_be_bytes()), closed(4001), "{by:?}");
        assert!(until(PATIENCE, || service.told("disconnect").len() == 1), "{by:?}");
        let seen = service.seen();
        let id = seen[0].head.get("connection-id").unwrap().to_owned();
        assert_eq!(id.len(), 32);
        for (at, message) in seen.iter().enumerate() {
            assert_eq!(message.head.request_line().unwrap().0, "POST");
            assert_eq!(message.head.get("connection-id"), Some(&*id));
            assert_eq!(message.head.get("x-forwarded-for"), Some("127.0.0.1"));
            assert_eq!(message.head.get("x-forwarded-uri"), Some("/ws"));
            // The metadata that the service gets again.
            assert_eq!(message.head.get("meta-user"), (at > 0).then_some("42"));
        }
        let types: Vec<_> =
            seen[1..3].iter().map(|message| message.head.get("content-type").unwrap()).collect();
        assert_eq!(types, ["text/plain; charset=utf-8", "application/octet-stream"]);
        assert_eq!(service.told("disconnect")[0].head.get("connection-close-code"), Some("4001"));
    }
}

#[test]
fn the_service_decides_who_connects() {
    let service = Service::start();
    let gateway = start(&service, json!({}), json!({}));
    let refused = ask(
        &gateway,
        "/ws?refuse",
        &format!("{UPGRADE}Connection-Id: mine\r\nMeta_User: 1\r\nCookie: c=d\r\n"),
    );
    assert_eq!((refused.status(), &*refused.text()), (403, "not you"));
    assert_eq!((refused.head.get("x-why"), refused.head.get("grip-channel")), (Some("no"), None));
    let told = &service.told("connect")[0];
    assert_ne!(told.head.get("connection-id"), Some("mine"));
    assert_eq!((told.head.get("meta_user"), told.head.get("cookie")), (None, Some("c=d")));
    assert!(told.head.get("sec-websocket-key").is_none() && told.head.get("upgrade").is_none());
    // Foreign pages are refused before the service is called.
    let before = service.seen().len();
    assert_eq!(ask(&gateway, "/ws", &format!("{UPGRADE}Origin: https://evil.example\r\n")).status(), 403);
    assert_eq!(ask(&gateway, "/ws", &UPGRADE.replace("13", "12")).status(), 400);
    assert_eq!(service.seen().len(), before);
    let opened = ask(&gateway, "/ws", &format!("{UPGRADE}Origin: http://h\r\n"));
    assert_eq!(
        (opened.status(), opened.head.get("set-cookie"), opened.head.get("x-other")),
        (101, Some("a=b"), None)
    );
    // The client is gone: that is reported, too.
    assert!(until(PATIENCE, || service.told("disconnect").len() == 1));
    assert_eq!(service.told("disconnect")[0].head.get("connection-close-code"), Some("1006"));
    let mut socket = Socket::open_path(&gateway, "ws?greet");
    assert_eq!(socket.frame(), text("welcome"));
    // Other methods are the upstream's.
    let posted = gateway
        .connect()
        .unwrap()
        .ask("POST /ws HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi")
        .unwrap();
    assert_eq!(posted.head.get("x-kind"), Some("events"));
    // A service that is not there.
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let gateway = start(&service, json!({ "uri": nowhere }), json!({}));
    for fields in [UPGRADE, ""] {
        assert_eq!(ask(&gateway, "/ws", fields).status(), 502);
    }
}

#[test]
fn invalid_answers_end_the_connection() {
    let service = Service::start();
    let gateway = start(&service, json!({ "max_message_bytes": 100 }), json!({}));
    for (message, code) in
        [(&b"forbidden"[..], 1008), (b"broken", 1011), (&[b'a'; 101], 1009), (&[b'a'; 99], 1011)]
    {
        let mut socket = Socket::open(&gateway, By::Upgrade);
        let got = socket.ask(TEXT, message);
        assert_eq!(got, closed(code), "{}", String::from_utf8_lossy(message));
        socket.send(masked(CLOSE, &code.to_be_bytes()));
        assert_eq!(socket.end(), Ok(()));
    }
    let codes = || {
        let told = service.told("disconnect").into_iter();
        told.map(|message| message.head.get("connection-close-code").unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(until(PATIENCE, || codes().len() == 4));
}

#[test]
fn pushes_reach_channels_and_connections() {
    let service = Service::start();
    let gateway = start(&service, json!({ "max_channels": 4 }), json!({}));
    let mut sockets: Vec<Socket> = (0..4).map(|_| Socket::open(&gateway, By::Upgrade)).collect();
    let mut events: Vec<Peer> = (0..2).map(|_| listen(&gateway)).collect();
    for peer in &mut events {
        assert_eq!(chunk(peer), "data: first\n\n");
    }
    assert_eq!(publish(&gateway, to_all("news")), 6);
    for socket in &mut sockets {
        assert_eq!(socket.frame(), text("news"));
    }
    for peer in &mut events {
        assert_eq!(chunk(peer), "data: news\n\n");
    }
    // One connection, by the name that the service knows.
    let ids: Vec<String> = service
        .told("connect")
        .iter()
        .map(|told| told.head.get("connection-id").unwrap().to_owned())
        .collect();
    let to_one = |formats: Value| json!({ "connection": ids[1], "formats": formats });
    assert_eq!(publish(&gateway, to_one(json!({ "ws-message": { "content-bin": "/wA=" } }))), 1);
    assert_eq!(sockets[1].frame(), (BINARY, vec![0xff, 0]));
    assert_eq!(publish(&gateway, to_one(json!({ "http-stream": { "content": "data: x" } }))), 0);
    // Channels are left and joined by the service's responses; four are enough.
    assert_eq!(sockets[0].ask(TEXT, b"leave room"), text("left"));
    let to_room = || json!({ "channel": "room", "formats": { "ws-message": { "content": "room" } } });
    assert_eq!(publish(&gateway, to_room()), 3);
    assert_eq!(sockets[1].frame(), text("room"));
    assert_eq!(sockets[0].ask(TEXT, b"many"), text("done"));
    let reached = |name: &str| {
        publish(&gateway, json!({ "channel": name, "formats": { "ws-message": { "content": name } } }))
    };
    assert_eq!(["a1", "a2", "a3", "a4"].map(reached), [1, 1, 1, 0]);
    // Ends.
    let end = json!({ "ws-message": { "action": "close", "code": 4000, "reason": "bye" } });
    assert_eq!(publish(&gateway, to_one(end)), 1);
    assert_eq!(sockets[1].frame(), (CLOSE, b"\x0f\xa0bye".to_vec()));
    sockets[1].send(masked(CLOSE, b"\x0f\xa0"));
    assert_eq!(sockets[1].end(), Ok(()));
    let end = json!({ "channel": "events", "formats": { "http-stream": { "action": "close" } } });
    assert_eq!(publish(&gateway, end), 2);
    for peer in &mut events {
        assert_eq!(peer.read_exactly(5).unwrap(), b"0\r\n\r\n");
    }
    assert!(until(PATIENCE, || publish(&gateway, to_all("last")) == 3));
}

#[test]
fn pushes_without_the_key_are_refused() {
    let service = Service::start();
    let gateway = start(&service, json!({}), json!({}));
    let body = json!({ "items": [to_all("x")] }).to_string();
    let check = |key: &str, body: &str, status: u16, expected: &str| {
        let answer = publish_with(&gateway, key, body);
        assert_eq!(answer.status(), status, "{key} {body}: {}", answer.text());
        assert!(answer.text().contains(expected), "{}", answer.text());
        answer
    };
    let answer = check("publishers-key-2", &body, 401, "a key is needed");
    assert_eq!(answer.head.get("www-authenticate"), Some("Bearer"));
    check("", &body, 401, "a key is needed");
    check(KEY, &body, 200, "{\"reached\":[0]}");
    check(KEY, "{}", 400, "missing field `items`");
    check(KEY, "", 400, "EOF while parsing");
    check(KEY, &format!("\"{}\"", "a".repeat(1 << 20)), 413, "exceeds max_body_bytes");
    assert_eq!(ask(&gateway, "/publish", &format!("Authorization: Bearer {KEY}\r\n")).status(), 405);
    // Clients join no channel by themselves.
    let mut socket = Socket::open(&gateway, By::Upgrade);
    socket.send(masked(TEXT, b"{\"type\":\"subscribe\",\"channel\":\"secret\"}"));
    socket.frame();
    assert_eq!(
        publish(&gateway, json!({ "channel": "secret", "formats": { "ws-message": { "content": "x" } } })),
        0
    );
}

/// A client that takes nothing is ended, others continue, and the gateway holds no more than it may.
#[test]
fn slow_readers_are_ended() {
    let service = Service::start();
    let gateway = start(&service, json!({ "max_queue_bytes": 100_000 }), json!({}));
    let slow = [listen(&gateway), listen(&gateway)];
    let _slow_socket = Socket::open(&gateway, By::Upgrade);
    let content = "x".repeat(90_000);
    // The capacity of the kernel, and then of the queue.
    let is_ended = || publish(&gateway, to_all(&content)) == 0;
    assert!(until(PATIENCE, is_ended));
    drop(slow);
    let mut quick = Socket::open(&gateway, By::Upgrade);
    assert_eq!(publish(&gateway, to_all("on")), 1);
    assert_eq!(quick.frame(), text("on"));
}

#[test]
fn connections_are_counted_and_kept_alive() {
    let service = Service::start();
    let settings = json!({ "workers": 1, "plugin_attr": { "realtime": { "worker_connections": 2 } } });
    let gateway = start(&service, json!({ "ping_interval": 3 }), settings);
    let mut socket = Socket::open(&gateway, By::Upgrade);
    let mut events = listen(&gateway);
    assert_eq!(ask(&gateway, "/ws", UPGRADE).status(), 503);
    assert_eq!(ask(&gateway, "/ws", "").status(), 503);
    // A client that answers stays, a silent one is gone.
    for _ in 0..2 {
        assert_eq!(socket.frame(), (PING, vec![]));
        socket.send(masked(PONG, b""));
    }
    assert_eq!(socket.frame(), (PING, vec![]));
    assert_eq!(socket.end(), Ok(()));
    assert!(until(PATIENCE, || service.told("disconnect").len() == 1));
    assert_eq!((chunk(&mut events), chunk(&mut events)), ("data: first\n\n".to_owned(), ":\n\n".to_owned()));
    // There is a slot again, also for a response that is no stream.
    let plain = ask(&gateway, "/ws?plain", "");
    assert_eq!((plain.status(), &*plain.text(), plain.head.get("x-kind")), (404, "nothing", Some("plain")));
    assert_eq!(plain.head.get("grip-channel"), None);
    Socket::open(&gateway, By::Upgrade);
}

#[test]
fn a_stop_ends_them_politely() {
    let service = Service::start();
    let gateway = start(&service, json!({}), json!({ "timeouts": { "drain_ms": 3000 } }));
    let mut sockets = WAYS.map(|by| Socket::open(&gateway, by));
    let mut events = listen(&gateway);
    assert_eq!(chunk(&mut events), "data: first\n\n");
    gateway.terminate().unwrap();
    for socket in &mut sockets {
        assert_eq!(socket.frame(), closed(1001));
        socket.send(masked(CLOSE, &1001_u16.to_be_bytes()));
        assert_eq!(socket.end(), Ok(()));
    }
    assert_eq!(events.read_exactly(5).unwrap(), b"0\r\n\r\n");
}
