//! `rocketmq-logger` with a server of the test's own, which is name server and broker, and follows a script.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, free_port, until};

use crate::plugins_log_sockets::{config, lost};
use crate::streams::{self, upstream};
use crate::tls::Authority;
use crate::{PATIENCE, SIGMA};

/// The account that the server knows, if it requests one.
const ACCESS_KEY: &str = "RocketMQ";
const SECRET_KEY: &str = "a-secret-of-twelve";

/// A message that the server took.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Message {
    topic: String,
    queue: String,
    properties: BTreeMap<String, String>,
    body: String,
}

struct Server {
    port: u16,
    told: Arc<RocketmqState>,
}

#[derive(Default)]
struct RocketmqState {
    /// Where it says that the broker is.
    broker: u16,
    /// The topics that it knows, and their queues.
    topics: BTreeMap<&'static str, u32>,
    asks_for_account: bool,
    /// The responses to the next messages; success, when there are no more.
    codes: Mutex<VecDeque<u32>>,
    taken: Mutex<Vec<Message>>,
}

impl Server {
    fn start(topics: &[(&'static str, u32)], codes: &[u32]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        Server::at(
            listener,
            port,
            RocketmqState { topics: topics.iter().copied().collect(), ..RocketmqState::of(codes) },
        )
    }

    fn at(listener: TcpListener, broker: u16, told: RocketmqState) -> Server {
        let port = listener.local_addr().unwrap().port();
        let told = Arc::new(RocketmqState { broker, ..told });
        let shared = Arc::clone(&told);
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let told = Arc::clone(&shared);
                // Ends with its client.
                std::thread::spawn(move || while told.answer(&socket).is_ok() {});
            }
        });
        Server { port, told }
    }

    fn taken(&self) -> Vec<Message> {
        self.told.taken.lock().unwrap().clone()
    }

    fn bodies(&self) -> Vec<String> {
        self.taken().into_iter().map(|message| message.body).collect()
    }
}

impl RocketmqState {
    fn of(codes: &[u32]) -> RocketmqState {
        RocketmqState { codes: Mutex::new(codes.iter().copied().collect()), ..RocketmqState::default() }
    }

    fn answer(&self, mut socket: &TcpStream) -> io::Result<()> {
        let mut word = [0; 4];
        socket.read_exact(&mut word)?;
        let mut command = vec![0; u32::from_be_bytes(word) as usize];
        socket.read_exact(&mut command)?;
        let (form_and_length, rest) = command.split_first_chunk().unwrap();
        // A header in JSON: its form is 0.
        let (header, body) = rest.split_at(u32::from_be_bytes(*form_and_length) as usize);
        let header: Value = serde_json::from_slice(header).unwrap();
        assert_eq!((&header["flag"], &header["serializeTypeCurrentRPC"]), (&json!(0), &json!("JSON")));
        let fields: BTreeMap<String, String> = serde_json::from_value(header["extFields"].clone()).unwrap();
        let (code, answer) = match header["code"].as_u64().unwrap() {
            _ if !self.knows(&fields, body) => (16, String::new()),
            105 => self.route(&fields["topic"]),
            310 => (self.take(&fields, body), String::new()),
            other => panic!("question {other}"),
        };
        let remark = (code != 0).then_some("said\nby the server");
        let header = json!({ "code": code, "flag": 1, "language": "JAVA", "opaque": header["opaque"],
                             "remark": remark, "serializeTypeCurrentRPC": "JSON", "version": 475 });
        let header = header.to_string();
        let length = header.len() as u32;
        let whole = [&(4 + length + answer.len() as u32).to_be_bytes()[..], &length.to_be_bytes()].concat();
        socket.write_all(&[&whole[..], header.as_bytes(), answer.as_bytes()].concat())
    }

    /// Whether a question is signed as it has to be.
    fn knows(&self, fields: &BTreeMap<String, String>, body: &[u8]) -> bool {
        if !self.asks_for_account {
            return !fields.contains_key("AccessKey") && !fields.contains_key("Signature");
        }
        let signed =
            fields.iter().filter(|(name, _)| *name != "Signature").map(|(_, value)| value.as_bytes());
        let signed = signed.chain([body]).collect::<Vec<_>>().concat();
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, SECRET_KEY.as_bytes());
        fields.get("AccessKey").is_some_and(|key| key == ACCESS_KEY)
            && fields.get("Signature") == Some(&STANDARD.encode(hmac::sign(&key, &signed)))
    }

    fn route(&self, topic: &str) -> (u32, String) {
        let Some(queues) = self.topics.get(topic) else { return (17, String::new()) };
        let port = self.broker;
        // The numbers of brokers are no strings, as old name servers have it.
        let brokers = format!(
            r#"[{{"brokerAddrs":{{0:"127.0.0.1:{port}",1:"127.0.0.1:1"}},"brokerName":"b","cluster":"c"}}]"#
        );
        let queues = format!(
            r#"[{{"brokerName":"b","perm":6,"readQueueNums":{queues},"topicSysFlag":0,"writeQueueNums":{queues}}}]"#
        );
        (0, format!(r#"{{"brokerDatas":{brokers},"filterServerTable":{{}},"queueDatas":{queues}}}"#))
    }

    /// Takes a message, or responds with the next code.
    fn take(&self, fields: &BTreeMap<String, String>, body: &[u8]) -> u32 {
        let fixed = [("a", "apisixLogProducer"), ("c", "TBW102"), ("d", "4"), ("f", "0"), ("h", "0")];
        assert!(fixed.iter().all(|(name, value)| fields[*name] == *value), "{fields:?}");
        assert!(fields["g"].parse::<u64>().unwrap() > 1_000_000_000_000, "{fields:?}");
        let code = self.codes.lock().unwrap().pop_front().unwrap_or(0);
        // Messages that are there, but were not copied or written in time.
        if matches!(code, 0 | 10..=12) {
            let properties = fields["i"].split_terminator('\u{2}').map(|one| {
                let (name, value) = one.split_once('\u{1}').unwrap();
                (name.to_owned(), value.to_owned())
            });
            self.taken.lock().unwrap().push(Message {
                topic: fields["b"].clone(),
                queue: fields["e"].clone(),
                properties: properties.collect(),
                body: String::from_utf8(body.to_vec()).unwrap(),
            });
        }
        code
    }
}

/// The plugin at this name server; the entries are short.
fn start(port: u16, more: Value) -> (Origin, Gateway) {
    let mut conf = json!({
        "nameserver_list": [format!("127.0.0.1:{port}")], "topic": "logs", "log_format": { "uri": "$uri" },
    });
    conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let origin = Origin::echo("a").unwrap();
    let text = config(&origin, json!({ "rocketmq-logger": conf }), json!({}));
    let gateway = Gateway::start(SIGMA, &text).unwrap();
    (origin, gateway)
}

fn entry(uri: &str) -> String {
    format!("{{\"uri\":\"{uri}\",\"route_id\":\"r\"}}")
}

#[test]
fn a_batch_is_a_message_and_queues_take_turns() {
    let server = Server::start(&[("logs", 2)], &[]);
    // The first name server is not there.
    let servers = json!([format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", server.port)]);
    let conf = json!({ "nameserver_list": servers, "key": "orders", "tag": "edge", "batch_max_size": 2 });
    let (_origin, gateway) = start(server.port, conf);
    let mut client = gateway.connect().unwrap();
    for uri in ["/1", "/2"] {
        client.get(uri).unwrap();
    }
    assert!(until(PATIENCE, || server.taken().len() == 1), "{}", gateway.stderr());
    client.get("/3").unwrap();
    drop(client);
    // Waiting entries leave with the process.
    assert!(gateway.stop().unwrap().success());
    let properties: BTreeMap<String, String> =
        [("KEYS", "orders"), ("TAGS", "edge"), ("WAIT", "true")].map(|(a, b)| (a.into(), b.into())).into();
    let of = |(queue, body): (&str, String)| Message {
        topic: "logs".into(),
        queue: queue.into(),
        properties: properties.clone(),
        body,
    };
    let lists = [("1", format!("[{},{}]", entry("/1"), entry("/2"))), ("0", format!("[{}]", entry("/3")))];
    assert_eq!(server.taken(), lists.map(of));
}

/// An unknown topic has the queues of the one that brokers make topics after.
#[test]
fn a_topic_that_is_not_there_is_made_if_brokers_do_that() {
    let server = Server::start(&[("TBW102", 8)], &[]);
    let (_origin, gateway) = start(server.port, json!({ "batch_max_size": 1 }));
    let mut client = gateway.connect().unwrap();
    for at in 0..9 {
        client.get(&format!("/{at}")).unwrap();
    }
    assert!(until(PATIENCE, || server.taken().len() == 9), "{}", gateway.stderr());
    let queues: std::collections::BTreeSet<String> =
        server.taken().into_iter().map(|one| one.queue).collect();
    assert_eq!(queues, ["0", "1", "2", "3"].map(str::to_owned).into());
    let strict = Server::start(&[], &[]);
    let (_origin, gateway) = start(strict.port, json!({ "batch_max_size": 1 }));
    gateway.connect().unwrap().get("/1").unwrap();
    let told =
        "failed to send data to rocketmq topic: TOPIC_NOT_EXIST: said\\nby the server, nameserver_list: [";
    gateway.await_log(told);
    assert!(until(PATIENCE, || lost(&gateway) == 1));
}

#[test]
fn temporary_errors_are_retried_and_permanent_ones_reported() {
    // Busy, twice; there, but not on the disk yet; and one that no attempt helps.
    let server = Server::start(&[("logs", 1)], &[2, 14, 0, 10, 13]);
    let (_origin, gateway) = start(server.port, json!({ "batch_max_size": 1 }));
    let mut client = gateway.connect().unwrap();
    for (at, uri) in ["/1", "/2"].into_iter().enumerate() {
        client.get(uri).unwrap();
        assert!(until(PATIENCE, || server.bodies().len() == at + 1), "{}", gateway.stderr());
    }
    client.get("/3").unwrap();
    let told = format!(
        "Batch Processor[rocketmq logger] failed to process entries: failed to send data to rocketmq topic: \
         MESSAGE_ILLEGAL: said\\nby the server, nameserver_list: [\"127.0.0.1:{}\"]",
        server.port
    );
    gateway.await_log(&told);
    assert!(until(PATIENCE, || lost(&gateway) == 1));
    assert_eq!(server.bodies(), [entry("/1"), entry("/2")]);
}

#[test]
fn questions_are_signed_where_an_account_is_set() {
    let check = |secret: &str| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let told = RocketmqState {
            topics: [("logs", 1)].into(),
            asks_for_account: true,
            ..RocketmqState::default()
        };
        let server = Server::at(listener, port, told);
        let account = json!({ "access_key": ACCESS_KEY, "secret_key": secret, "batch_max_size": 1 });
        let (_origin, gateway) = start(server.port, account);
        gateway.connect().unwrap().get("/1").unwrap();
        assert!(
            until(PATIENCE, || !server.bodies().is_empty() || lost(&gateway) > 0),
            "{}",
            gateway.stderr()
        );
        (server.bodies(), gateway.stderr())
    };
    assert_eq!(check(SECRET_KEY).0, [entry("/1")]);
    let (bodies, told) = check("another-secret");
    assert!(bodies.is_empty(), "{bodies:?}");
    assert!(told.contains("failed to send data to rocketmq topic: NO_PERMISSION"), "{told}");
}

/// The server is behind a gateway that ends TLS, and names it as the broker, too.
#[test]
fn connections_are_encrypted() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let tls = json!({ "certificates": [root.issue("mq.test").files(dir.path(), "mq")] });
    let routes = json!([{ "id": "mq", "upstream": upstream(&[plain.local_addr().unwrap().port()]) }]);
    let listener = json!({ "stream": "tls", "tls": tls });
    let front =
        Gateway::start(SIGMA, &streams::config(listener, json!({ "stream_routes": routes }))).unwrap();
    let port = front.address().port().unwrap();
    let server =
        Server::at(plain, port, RocketmqState { topics: [("logs", 1)].into(), ..RocketmqState::default() });
    let (_origin, gateway) = start(port, json!({ "use_tls": true, "batch_max_size": 1 }));
    gateway.connect().unwrap().get("/1").unwrap();
    assert!(until(PATIENCE, || server.bodies() == [entry("/1")]), "{}", gateway.stderr());
    // The system trusts no authority of a test.
    let (_origin, gateway) = start(port, json!({ "use_tls": true, "ssl_verify": true, "batch_max_size": 1 }));
    gateway.connect().unwrap().get("/2").unwrap();
    let told = "failed to perform TLS handshake to TCP server";
    gateway.await_log(told);
    assert!(until(PATIENCE, || lost(&gateway) == 1));
    assert_eq!(server.bodies(), [entry("/1")]);
}

/// With another server at the port instead of a name server the gateway serves, and reports the problem.
#[test]
fn other_servers_than_name_servers_are_reported() {
    for (said, expected) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "the response is longer than 4194304 bytes"),
        (b"\x00\x00\x00\x08\x00\xff\xff\xff\x7f\xff\xff\xff", "the response of the server is malformed"),
        (b"\x00\x00\x10\x00\x00", "the connection ended during a response"),
        (b"", "unexpected end of file"),
    ] {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for mut socket in server.incoming().map_while(Result::ok) {
                // Its question first: closed over it, the connection would be reset.
                let mut question = [0; 4096];
                let _ = socket.read(&mut question).and_then(|_| socket.write_all(said));
            }
        });
        let (_origin, gateway) = start(port, json!({ "batch_max_size": 1 }));
        assert_eq!(gateway.connect().unwrap().get("/1").unwrap().status(), 200);
        gateway.await_log(expected);
        assert!(until(PATIENCE, || lost(&gateway) == 1));
    }
}

/// The head of a request instead of an entry.
#[test]
fn a_message_may_be_the_request_itself() {
    let server = Server::start(&[("logs", 1)], &[]);
    let (_origin, gateway) =
        start(server.port, json!({ "meta_format": "origin", "batch_max_size": 1, "include_req_body": true }));
    let request = "POST /p?a=1 HTTP/1.1\r\nHost: h\r\nX-A: b\r\nContent-Length: 4\r\n\r\nbody";
    gateway.connect().unwrap().ask(request).unwrap();
    assert!(until(PATIENCE, || server.bodies().len() == 1), "{}", gateway.stderr());
    let body = server.bodies().remove(0);
    assert!(body.starts_with("POST /p?a=1 HTTP/1.1\r\n") && body.ends_with("\r\n\r\nbody"), "{body}");
}
