//! Upstreams with `scheme: kafka` and `kafka-proxy`, with brokers of the test's own, which follow a script.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use prost::Message as _;
use serde_json::{Value, json};
use sigma_testkit::{Gateway, Peer, free_port, until};

use crate::plugins_log_kafka::{Reader, put_text};
use crate::websocket::{BINARY, By, CLOSE, Socket, TEXT, WAYS, masked};
use crate::{PATIENCE, SIGMA};

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Request {
    #[prost(int64, tag = "1")]
    pub(crate) sequence: i64,
    #[prost(message, optional, tag = "31")]
    pub(crate) empty: Option<State>,
    #[prost(message, optional, tag = "32")]
    pub(crate) ping: Option<State>,
    #[prost(message, optional, tag = "33")]
    pub(crate) fetch: Option<Place>,
    #[prost(message, optional, tag = "34")]
    pub(crate) list: Option<Place>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct State {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) state: Vec<u8>,
}

/// A partition, and an offset or a time.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Place {
    #[prost(string, tag = "1")]
    pub(crate) topic: String,
    #[prost(int32, tag = "2")]
    pub(crate) partition: i32,
    #[prost(int64, tag = "3")]
    pub(crate) at: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Response {
    #[prost(int64, tag = "1")]
    pub(crate) sequence: i64,
    #[prost(message, optional, tag = "31")]
    pub(crate) error: Option<Failed>,
    #[prost(message, optional, tag = "32")]
    pub(crate) pong: Option<State>,
    #[prost(message, optional, tag = "33")]
    pub(crate) fetched: Option<Fetched>,
    #[prost(message, optional, tag = "34")]
    pub(crate) offset: Option<Offset>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Failed {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Fetched {
    #[prost(message, repeated, tag = "1")]
    pub(crate) messages: Vec<Message>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Message {
    #[prost(int64, tag = "1")]
    pub(crate) offset: i64,
    #[prost(int64, tag = "2")]
    pub(crate) timestamp: i64,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Offset {
    #[prost(int64, tag = "1")]
    pub(crate) offset: i64,
}

/// The behaviour of the brokers of a cluster.
#[derive(Default)]
struct Orders {
    /// The broker that leads the partition, as metadata say.
    leader: usize,
    /// The one that does in truth.
    true_leader: usize,
    /// Batches as they are sent; None for bytes that are no response.
    batches: Option<Vec<u8>>,
    login: Option<(&'static str, &'static str)>,
    /// Questions for messages and offsets, by broker.
    asked: Vec<usize>,
    logins: usize,
}

/// Brokers that share one topic with one partition, number 3.
struct Cluster {
    ports: Vec<u16>,
    orders: Arc<Mutex<Orders>>,
}

impl Cluster {
    fn start(brokers: usize, batches: Option<Vec<u8>>) -> Cluster {
        let servers: Vec<TcpListener> =
            (0..brokers).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = servers.iter().map(|server| server.local_addr().unwrap().port()).collect();
        let orders = Arc::new(Mutex::new(Orders { batches, ..Orders::default() }));
        for (number, server) in servers.into_iter().enumerate() {
            let (orders, ports) = (Arc::clone(&orders), ports.clone());
            std::thread::spawn(move || {
                for socket in server.incoming().map_while(Result::ok) {
                    let (orders, ports) = (Arc::clone(&orders), ports.clone());
                    // Ends with its client.
                    std::thread::spawn(move || while answer(&orders, number, &ports, &socket).is_ok() {});
                }
            });
        }
        Cluster { ports, orders }
    }

    fn orders(&self) -> std::sync::MutexGuard<'_, Orders> {
        self.orders.lock().unwrap()
    }
}

fn answer(orders: &Mutex<Orders>, number: usize, ports: &[u16], mut socket: &TcpStream) -> io::Result<()> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let mut question = vec![0; u32::from_be_bytes(length) as usize];
    socket.read_exact(&mut question)?;
    let mut asked = Reader(&question);
    let (api, version, correlation, _client) = (asked.i16(), asked.i16(), asked.i32(), asked.text());
    let mut said = correlation.to_be_bytes().to_vec();
    let mut orders = orders.lock().unwrap();
    match (api, version) {
        (3, 4) => metadata(&orders, ports, &mut asked, &mut said),
        (1, 4) => {
            orders.asked.push(number);
            asked.take(4 + 4 + 4 + 4 + 1 + 4);
            said.extend([0; 4]);
            let error = head_of_partition(&orders, number, &mut asked, &mut said);
            let Some(batches) = &orders.batches else { return socket.write_all(b"\x00\x00\x00\x06what?!") };
            said.extend(error.to_be_bytes());
            said.extend([0; 8 + 8 + 4]);
            let batches = if error == 0 { &batches[..] } else { &[] };
            said.extend((batches.len() as i32).to_be_bytes());
            said.extend(batches);
        }
        (2, 1) => {
            orders.asked.push(number);
            asked.take(4 + 4);
            let error = head_of_partition(&orders, number, &mut asked, &mut said);
            let at = i64::from_be_bytes(asked.take(8).try_into().unwrap());
            let offset: i64 = match at {
                -1 => 42,
                -2 => 5,
                _ => -1,
            };
            said.extend(error.to_be_bytes());
            said.extend([0; 8]);
            said.extend(offset.to_be_bytes());
        }
        (17, 1) => {
            let known: i16 = if asked.text() == "PLAIN" { 0 } else { 33 };
            said.extend(known.to_be_bytes());
            said.extend([0; 4]);
        }
        (36, 0) => {
            let (user, password) = orders.login.unwrap();
            let is_right = asked.bytes() == format!("\0{user}\0{password}").into_bytes();
            orders.logins += 1;
            said.extend(if is_right { 0_i16 } else { 58 }.to_be_bytes());
            put_text(&mut said, "no such user");
            said.extend([0; 4]);
        }
        other => panic!("question {other:?}"),
    }
    drop(orders);
    // In two pieces, as a network may cut it.
    let whole = [&(said.len() as u32).to_be_bytes()[..], &said].concat();
    let (first, rest) = whole.split_at(whole.len() / 2);
    socket.write_all(first)?;
    socket.flush()?;
    std::thread::yield_now();
    socket.write_all(rest)
}

/// The response up to the error of the partition, and that.
fn head_of_partition(orders: &Orders, number: usize, asked: &mut Reader<'_>, said: &mut Vec<u8>) -> i16 {
    let topic = asked.text();
    assert_eq!((topic.as_str(), asked.i32(), asked.i32()), ("orders", 1, 3));
    said.extend(1_i32.to_be_bytes());
    put_text(said, &topic);
    said.extend(1_i32.to_be_bytes());
    said.extend(3_i32.to_be_bytes());
    if number == orders.true_leader { 0 } else { 6 }
}

fn metadata(orders: &Orders, ports: &[u16], asked: &mut Reader<'_>, said: &mut Vec<u8>) {
    assert_eq!(asked.i32(), 1);
    let topic = asked.text();
    assert_eq!(asked.take(1), [0], "no topic is made");
    said.extend(0_i32.to_be_bytes());
    said.extend((ports.len() as i32).to_be_bytes());
    for (number, port) in ports.iter().enumerate() {
        said.extend((number as i32).to_be_bytes());
        put_text(said, "127.0.0.1");
        said.extend(i32::from(*port).to_be_bytes());
        said.extend((-1_i16).to_be_bytes());
    }
    said.extend((-1_i16).to_be_bytes());
    said.extend(0_i32.to_be_bytes());
    said.extend(1_i32.to_be_bytes());
    let is_known = topic == "orders";
    said.extend(if is_known { 0_i16 } else { 3 }.to_be_bytes());
    put_text(said, &topic);
    said.push(0);
    said.extend(i32::from(is_known).to_be_bytes());
    if is_known {
        said.extend(0_i16.to_be_bytes());
        for part in [3, orders.leader as i32, 0, 0] {
            said.extend(part.to_be_bytes());
        }
    }
}

fn varint(out: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// A batch of records without keys.
fn batch(base: i64, attributes: i16, values: &[&[u8]]) -> Vec<u8> {
    let mut covered = attributes.to_be_bytes().to_vec();
    covered.extend((values.len() as i32 - 1).to_be_bytes());
    covered.extend([1000_i64; 2].map(i64::to_be_bytes).concat());
    covered.extend([0xff; 8 + 2 + 4]);
    covered.extend((values.len() as i32).to_be_bytes());
    for (at, value) in values.iter().enumerate() {
        let mut record = vec![0];
        for number in [0, at as i64, -1, value.len() as i64] {
            varint(&mut record, number);
        }
        record.extend(*value);
        record.push(0);
        varint(&mut covered, record.len() as i64);
        covered.extend(record);
    }
    let sum = covered.iter().fold(!0_u32, |sum, byte| {
        (0..8).fold(
            sum ^ u32::from(*byte),
            |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 },
        )
    });
    let mut out = base.to_be_bytes().to_vec();
    out.extend((covered.len() as i32 + 9).to_be_bytes());
    out.extend([0xff; 4]);
    out.push(2);
    out.extend((!sum).to_be_bytes());
    out.extend(covered);
    out
}

/// A gateway whose route leads to these brokers.
fn start(ports: &[u16], plugins: Value, more: Value) -> Gateway {
    let nodes: serde_json::Map<String, Value> =
        ports.iter().map(|port| (format!("127.0.0.1:{port}"), json!(1))).collect();
    let mut upstream = json!({ "scheme": "kafka", "type": "none", "nodes": nodes });
    upstream.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let config = json!({
        "workers": 2,
        "listeners": [{ "address": "{listen}" }],
        "routes": [{ "id": "r", "uri": "/ws", "plugins": plugins, "upstream": upstream }],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

pub(crate) fn asked(socket: &mut Socket, request: &Request) -> Response {
    let (first, payload) = socket.ask(BINARY, &request.encode_to_vec());
    assert_eq!(first, BINARY);
    Response::decode(&payload[..]).unwrap()
}

pub(crate) fn place(topic: &str, partition: i32, at: i64) -> Option<Place> {
    Some(Place { topic: topic.to_owned(), partition, at })
}

fn fetch(sequence: i64, at: i64) -> Request {
    Request { sequence, fetch: place("orders", 3, at), ..Request::default() }
}

fn error(sequence: i64, message: &str) -> Response {
    let error = Some(Failed { code: 0, message: message.to_owned() });
    Response { sequence, error, ..Response::default() }
}

#[track_caller]
fn values(response: &Response) -> Vec<(i64, String)> {
    let fetched = response.fetched.as_ref().unwrap_or_else(|| panic!("{response:?}"));
    let text = |message: &Message| String::from_utf8(message.value.clone()).unwrap();
    fetched.messages.iter().map(|message| (message.offset, text(message))).collect()
}

#[test]
fn commands_are_answered_over_both_versions() {
    let log = [batch(5, 0, &[b"a", b"b"]), batch(7, 0x20, &[b"commit"]), batch(8, 0, &[b"c"])].concat();
    let cluster = Cluster::start(1, Some(log));
    // The scheme alone opens it.
    let gateway = start(&cluster.ports, json!({}), json!({}));
    for by in WAYS {
        let mut socket = Socket::open(&gateway, by);
        let state = Some(State { state: b"here".to_vec() });
        let ping = Request { sequence: 1, ping: state.clone(), ..Request::default() };
        let pong = Response { sequence: 1, pong: state.clone(), ..Response::default() };
        assert_eq!(asked(&mut socket, &ping), pong, "{by:?}");
        for (at, offset) in [(-1, 42), (-2, 5), (1_700_000_000_000, -1)] {
            let list = Request { sequence: 2, list: place("orders", 3, at), ..Request::default() };
            let answer = Response { sequence: 2, offset: Some(Offset { offset }), ..Response::default() };
            assert_eq!(asked(&mut socket, &list), answer, "{by:?} {at}");
        }
        let fetched = asked(&mut socket, &fetch(-3, 6));
        assert_eq!(values(&fetched), [(6, "b".to_owned()), (8, "c".to_owned())], "{by:?}");
        assert_eq!((fetched.sequence, fetched.fetched.unwrap().messages[0].timestamp), (-3, 1000));
        let empty = Request { sequence: 4, empty: state, ..Request::default() };
        assert_eq!(asked(&mut socket, &empty), error(4, "unknown command"), "{by:?}");
        // Ignored messages, and then an invalid one.
        socket.send(masked(TEXT, b"hello"));
        socket.send(masked(BINARY, &Request { sequence: 5, ..Request::default() }.encode_to_vec()));
        let (_, answer) = socket.ask(BINARY, b"\xff");
        assert_eq!(Response::decode(&answer[..]).unwrap(), error(0, "wrong command"), "{by:?}");
        // Several at once are answered in their order.
        let both = [fetch(6, 8), fetch(7, 8)].map(|request| masked(BINARY, &request.encode_to_vec()));
        socket.send(both.concat());
        for sequence in [6, 7] {
            assert_eq!(Response::decode(&socket.frame().1[..]).unwrap().sequence, sequence, "{by:?}");
        }
        assert_eq!(socket.ask(CLOSE, &1000_u16.to_be_bytes()), (CLOSE, 1000_u16.to_be_bytes().to_vec()));
        assert_eq!(socket.end(), Ok(()), "{by:?}");
    }
    assert!(gateway.stderr().contains("a text frame of a client is ignored"), "{}", gateway.stderr());
    // A message that is too long, and bytes that are no frame.
    for (bytes, code) in [(masked(BINARY, &[0; 65_537]), 1009_u16), (b"\x82\x01a".to_vec(), 1002)] {
        let mut socket = Socket::open(&gateway, By::Upgrade);
        socket.send(bytes);
        assert_eq!(socket.frame(), (CLOSE, code.to_be_bytes().to_vec()));
    }
}

#[test]
fn errors_are_reported_as_in_apisix() {
    let cluster = Cluster::start(1, Some(batch(0, 2, &[b"a"])));
    let gateway = start(&cluster.ports, json!({}), json!({}));
    let mut socket = Socket::open(&gateway, By::Upgrade);
    let snappy = "a batch is compressed with snappy; only gzip and zstd are supported";
    for (topic, partition, said) in [
        ("other", 0, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("orders", 4, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("a b", 0, "INVALID_TOPIC_EXCEPTION"),
        ("orders", 3, snappy),
    ] {
        let request = Request { sequence: 1, fetch: place(topic, partition, 0), ..Request::default() };
        let text = format!("failed to fetch message, topic: {topic}, partition: {partition}, err: {said}");
        assert_eq!(asked(&mut socket, &request), error(1, &text));
    }
    let request = Request { list: place("other", 9, -1), ..Request::default() };
    let text = "failed to list offset, topic: other, partition: 9, err: UNKNOWN_TOPIC_OR_PARTITION";
    assert_eq!(asked(&mut socket, &request), error(0, text));
    // The broker's response is invalid, again and again; the connection to the client continues.
    cluster.orders().batches = None;
    let said = asked(&mut socket, &fetch(2, 0)).error.unwrap().message;
    assert!(said.ends_with("err: the broker's response is malformed"), "{said}");
    cluster.orders().batches = Some(batch(0, 0, &[b"a"]));
    assert_eq!(values(&asked(&mut socket, &fetch(3, 0))), [(0, "a".to_owned())]);
    let mut damaged = batch(0, 0, &[b"a"]);
    *damaged.last_mut().unwrap() ^= 1;
    cluster.orders().batches = Some(damaged);
    let said = asked(&mut socket, &fetch(4, 0)).error.unwrap().message;
    assert!(said.ends_with("err: a batch is damaged: its checksum does not match"), "{said}");
}

/// Metadata lead to the leader; a former leader says so, and the new one is found.
#[test]
fn leaders_are_followed() {
    let cluster = Cluster::start(3, Some(batch(0, 0, &[b"a"])));
    (cluster.orders().leader, cluster.orders().true_leader) = (1, 1);
    // One of the nodes has no listener.
    let gateway = start(&[free_port(), cluster.ports[0]], json!({}), json!({}));
    let mut socket = Socket::open(&gateway, By::Upgrade);
    assert_eq!(values(&asked(&mut socket, &fetch(1, 0))), [(0, "a".to_owned())]);
    assert_eq!(cluster.orders().asked, [1]);
    (cluster.orders().leader, cluster.orders().true_leader) = (2, 2);
    assert_eq!(values(&asked(&mut socket, &fetch(2, 0))), [(0, "a".to_owned())]);
    assert_eq!(cluster.orders().asked, [1, 1, 2]);
    // Metadata that are wrong for longer are given up.
    cluster.orders().leader = 0;
    cluster.orders().true_leader = 0;
    cluster.orders().leader = 1;
    let said = asked(&mut socket, &fetch(3, 0)).error.unwrap().message;
    assert!(said.ends_with("err: NOT_LEADER_OR_FOLLOWER"), "{said}");
    cluster.orders().leader = 0;
    assert_eq!(values(&asked(&mut socket, &fetch(4, 0))), [(0, "a".to_owned())]);
}

#[test]
fn lost_brokers_are_reported_and_found_again() {
    let port = free_port();
    let gateway = start(&[port], json!({}), json!({ "timeout": { "connect": 1, "send": 1, "read": 1 } }));
    let mut socket = Socket::open(&gateway, By::Upgrade);
    let said = asked(&mut socket, &fetch(1, 0)).error.unwrap().message;
    assert!(said.contains("err: failed to connect to TCP server: host[127.0.0.1]"), "{said}");
    let cluster = Cluster::start(1, Some(batch(0, 0, &[b"a"])));
    // The listener at the port forwards to the broker.
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let to = cluster.ports[0];
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(("127.0.0.1", to)).unwrap();
            let (mut read, mut write) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || io::copy(&mut read, &mut write));
            std::thread::spawn(move || io::copy(&mut { far }, &mut { near }));
        }
    });
    assert_eq!(values(&asked(&mut socket, &fetch(2, 0))), [(0, "a".to_owned())]);
}

#[test]
fn the_plugin_logs_in() {
    let check = |password: &str| {
        let cluster = Cluster::start(1, Some(batch(0, 0, &[b"a"])));
        cluster.orders().login = Some(("reader", "readers-password"));
        let sasl = json!({ "sasl": { "username": "reader", "password": password } });
        let gateway = start(&cluster.ports, json!({ "kafka-proxy": sasl }), json!({}));
        let mut socket = Socket::open(&gateway, By::Upgrade);
        let answer = asked(&mut socket, &fetch(1, 0));
        // Sessions share metadata, and connections.
        let mut other = Socket::open(&gateway, By::Upgrade);
        asked(&mut other, &fetch(1, 0));
        let logins = cluster.orders().logins;
        (answer, logins)
    };
    let (answer, logins) = check("readers-password");
    assert_eq!((values(&answer), logins), (vec![(0, "a".to_owned())], 1));
    let said = check("guess").0.error.unwrap().message;
    assert!(said.ends_with("err: failed to log in: SASL_AUTHENTICATION_FAILED: no such user"), "{said}");
}

#[test]
fn plugins_before_it_hold() {
    let cluster = Cluster::start(1, Some(Vec::new()));
    let gateway =
        start(&cluster.ports, json!({ "ip-restriction": { "blacklist": ["127.0.0.0/8"] } }), json!({}));
    let ask = |peer: &mut Peer, fields: &str| {
        peer.ask(format!("GET /ws HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).unwrap().status()
    };
    const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    assert_eq!(ask(&mut gateway.connect().unwrap(), UPGRADE), 403);
    // An invalid handshake is invalid with the right plugins, too.
    let gateway = start(&cluster.ports, json!({}), json!({}));
    for fields in [
        "",
        "Connection: Upgrade\r\nUpgrade: h2c\r\n",
        &UPGRADE.replace("13", "8"),
        &UPGRADE.replace("=", ""),
    ] {
        assert_eq!(ask(&mut gateway.connect().unwrap(), fields), 400, "{fields}");
    }
    let answer = gateway
        .connect()
        .unwrap()
        .ask(format!("POST /ws HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n{UPGRADE}\r\na"));
    assert_eq!(answer.unwrap().status(), 400);
}

/// A client that leaves takes its question with it, and the gateway says good-bye when it stops.
#[test]
fn ends_are_polite() {
    let cluster = Cluster::start(1, Some(batch(0, 0, &[b"a"])));
    let gateway = start(&cluster.ports, json!({}), json!({}));
    let mut socket = Socket::open(&gateway, By::Upgrade);
    assert_eq!(values(&asked(&mut socket, &fetch(1, 0))), [(0, "a".to_owned())]);
    // Nothing there: the question is on its way when the client leaves.
    cluster.orders().batches = Some(Vec::new());
    let mut leaver = Socket::open(&gateway, By::Upgrade);
    leaver.send(masked(BINARY, &fetch(1, 7).encode_to_vec()));
    let before = cluster.orders().asked.len();
    assert!(until(PATIENCE, || cluster.orders().asked.len() >= before));
    drop(leaver);
    assert_eq!(values(&asked(&mut socket, &fetch(2, 7))), []);
    gateway.terminate().unwrap();
    assert_eq!(socket.frame(), (CLOSE, 1001_u16.to_be_bytes().to_vec()));
    socket.send(masked(CLOSE, &1001_u16.to_be_bytes()));
    assert_eq!(socket.end(), Ok(()));
}
