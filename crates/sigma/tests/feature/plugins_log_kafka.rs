//! `kafka-logger` with a broker of the test's own, which follows a script.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, free_port, until};

use crate::plugins_log_sockets::{config, lost};
use crate::{PATIENCE, SIGMA};

/// Records that were produced at once.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Produced {
    partition: i32,
    acks: i16,
    /// Keys and values.
    records: Vec<(Option<String>, String)>,
}

/// A broker that leads all partitions of any topic.
struct Broker {
    port: u16,
    told: Arc<KafkaState>,
}

#[derive(Default)]
struct KafkaState {
    partitions: i32,
    /// User and password, if it requests them.
    login: Option<(&'static str, &'static str)>,
    /// The responses to the next produce requests; success, when there are no more.
    errors: Mutex<VecDeque<i16>>,
    produced: Mutex<Vec<Produced>>,
    topics: Mutex<Vec<String>>,
}

impl Broker {
    fn start(partitions: i32, login: Option<(&'static str, &'static str)>, errors: &[i16]) -> Broker {
        Broker::at(TcpListener::bind("127.0.0.1:0").unwrap(), partitions, login, errors)
    }

    fn at(
        server: TcpListener,
        partitions: i32,
        login: Option<(&'static str, &'static str)>,
        errors: &[i16],
    ) -> Broker {
        let port = server.local_addr().unwrap().port();
        let errors = Mutex::new(errors.iter().copied().collect());
        let told = Arc::new(KafkaState { partitions, login, errors, ..KafkaState::default() });
        let shared = Arc::clone(&told);
        std::thread::spawn(move || {
            for socket in server.incoming().map_while(Result::ok) {
                let told = Arc::clone(&shared);
                // Ends with its client.
                std::thread::spawn(move || while told.answer(&socket, port).is_ok() {});
            }
        });
        Broker { port, told }
    }

    fn produced(&self) -> Vec<Produced> {
        self.told.produced.lock().unwrap().clone()
    }

    /// The values of all records, in the order in which they came.
    fn values(&self) -> Vec<String> {
        self.produced().into_iter().flat_map(|one| one.records).map(|(_, value)| value).collect()
    }
}

impl KafkaState {
    fn answer(&self, mut socket: &TcpStream, port: u16) -> io::Result<()> {
        let mut length = [0; 4];
        socket.read_exact(&mut length)?;
        let mut question = vec![0; u32::from_be_bytes(length) as usize];
        socket.read_exact(&mut question)?;
        let mut asked = Reader(&question);
        let (api, version, correlation, client) = (asked.i16(), asked.i16(), asked.i32(), asked.text());
        assert_eq!(client, "sigma");
        let mut answer = correlation.to_be_bytes().to_vec();
        match (api, version) {
            (3, 4) => self.metadata(&mut asked, port, &mut answer),
            (0, 3) => {
                if self.produce(&mut asked, &mut answer) == 0 {
                    return Ok(());
                }
            }
            (17, 1) => {
                let known: i16 = if asked.text() == "PLAIN" { 0 } else { 33 };
                answer.extend(known.to_be_bytes());
                answer.extend(0_i32.to_be_bytes());
            }
            (36, 0) => {
                let (user, password) = self.login.unwrap();
                let is_right = asked.bytes() == format!("\0{user}\0{password}").into_bytes();
                answer.extend(if is_right { 0_i16 } else { 58 }.to_be_bytes());
                put_text(&mut answer, "no\nsuch user");
                answer.extend(0_i32.to_be_bytes());
            }
            other => panic!("question {other:?}"),
        }
        socket.write_all(&[&(answer.len() as u32).to_be_bytes(), &answer[..]].concat())
    }

    fn metadata(&self, asked: &mut Reader<'_>, port: u16, answer: &mut Vec<u8>) {
        assert_eq!(asked.i32(), 1);
        let topic = asked.text();
        self.topics.lock().unwrap().push(topic.clone());
        for number in [0, 1, 7] {
            answer.extend(i32::to_be_bytes(number));
        }
        put_text(answer, "127.0.0.1");
        answer.extend(i32::from(port).to_be_bytes());
        answer.extend((-1_i16).to_be_bytes());
        answer.extend((-1_i16).to_be_bytes());
        for number in [7, 1] {
            answer.extend(i32::to_be_bytes(number));
        }
        answer.extend(0_i16.to_be_bytes());
        put_text(answer, &topic);
        answer.push(0);
        answer.extend(self.partitions.to_be_bytes());
        for partition in 0..self.partitions {
            answer.extend(0_i16.to_be_bytes());
            for number in [partition, 7, 0, 0] {
                answer.extend(number.to_be_bytes());
            }
        }
    }

    /// Returns how many are to acknowledge it.
    fn produce(&self, asked: &mut Reader<'_>, answer: &mut Vec<u8>) -> i16 {
        assert_eq!(asked.i16(), -1, "no transaction");
        let (acks, _timeout) = (asked.i16(), asked.i32());
        assert_eq!(asked.i32(), 1);
        let topic = asked.text();
        assert_eq!(asked.i32(), 1);
        let partition = asked.i32();
        let records = records(&asked.bytes());
        let error = self.errors.lock().unwrap().pop_front().unwrap_or(0);
        if error == 0 {
            self.produced.lock().unwrap().push(Produced { partition, acks, records });
        }
        answer.extend(1_i32.to_be_bytes());
        put_text(answer, &topic);
        answer.extend(1_i32.to_be_bytes());
        answer.extend(partition.to_be_bytes());
        answer.extend(error.to_be_bytes());
        answer.extend([0; 8 + 8 + 4]);
        acks
    }
}

pub(crate) struct Reader<'q>(pub(crate) &'q [u8]);

impl Reader<'_> {
    pub(crate) fn take(&mut self, length: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken.to_vec()
    }

    pub(crate) fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    pub(crate) fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub(crate) fn text(&mut self) -> String {
        let length = self.i16();
        String::from_utf8(self.take(length as usize)).unwrap()
    }

    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        let length = self.i32();
        self.take(length as usize)
    }

    fn varint(&mut self) -> i64 {
        let (mut number, mut shift) = (0_u64, 0);
        loop {
            let byte = self.take(1)[0];
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return (number >> 1) as i64 ^ -((number & 1) as i64);
            }
        }
    }
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as i16).to_be_bytes());
    out.extend(text.as_bytes());
}

/// The records of a batch.
fn records(batch: &[u8]) -> Vec<(Option<String>, String)> {
    let mut batch = Reader(batch);
    batch.take(8);
    assert_eq!(batch.i32() as usize, batch.0.len());
    batch.take(4);
    assert_eq!(batch.take(1), [2]);
    // Checksum, attributes, last offset, two times, and who produces.
    batch.take(4 + 2 + 4 + 8 + 8 + 8 + 2 + 4);
    let count = batch.i32();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (0..count)
        .map(|at| {
            let length = batch.varint();
            let whole = batch.take(length as usize);
            let mut record = Reader(&whole);
            record.take(1);
            assert_eq!((record.varint(), record.varint()), (0, i64::from(at)));
            let key = usize::try_from(record.varint()).ok().map(|length| text(record.take(length)));
            let length = record.varint();
            let value = text(record.take(length as usize));
            assert_eq!((record.varint(), record.0.len()), (0, 0));
            (key, value)
        })
        .collect()
}

/// The plugin at these brokers; the entries are short.
fn logger(port: u16, more: Value) -> Value {
    let mut conf = json!({
        "brokers": [{ "host": "127.0.0.1", "port": port }], "kafka_topic": "logs", "log_format": { "uri": "$uri" },
    });
    conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "kafka-logger": conf })
}

fn start(port: u16, more: Value) -> (Origin, Gateway) {
    let origin = Origin::echo("a").unwrap();
    let gateway = Gateway::start(SIGMA, &config(&origin, logger(port, more), json!({}))).unwrap();
    (origin, gateway)
}

fn entry(uri: &str) -> String {
    format!("{{\"uri\":\"{uri}\",\"route_id\":\"r\"}}")
}

#[test]
fn a_batch_is_a_message_in_the_partition_of_its_key() {
    let broker = Broker::start(4, None, &[]);
    let conf = json!({ "producer_type": "sync", "key": "orders", "batch_max_size": 2, "required_acks": -1 });
    let (_origin, gateway) = start(broker.port, conf);
    let mut client = gateway.connect().unwrap();
    for uri in ["/1", "/2", "/3"] {
        client.get(uri).unwrap();
    }
    assert!(until(PATIENCE, || broker.produced().len() == 1), "{}", gateway.stderr());
    drop(client);
    assert!(gateway.stop().unwrap().success());
    let of = |value: String| Produced {
        // The CRC-32 of the key, divided by four.
        partition: 2,
        acks: -1,
        records: vec![(Some("orders".to_owned()), value)],
    };
    let lists = [format!("[{},{}]", entry("/1"), entry("/2")), format!("[{}]", entry("/3"))];
    assert_eq!(broker.produced(), lists.map(of));
    assert!(broker.told.topics.lock().unwrap().iter().all(|topic| topic == "logs"));
}

/// Without a key partitions take turns; asynchronous messages leave together.
#[test]
fn messages_are_collected_and_partitions_take_turns() {
    let broker = Broker::start(2, None, &[]);
    let conf = json!({ "batch_max_size": 1, "producer_batch_num": 4, "producer_time_linger": 600 });
    let (_origin, gateway) = start(broker.port, conf);
    let mut client = gateway.connect().unwrap();
    let uris = ["/1", "/2", "/3", "/4"];
    for uri in uris {
        client.get(uri).unwrap();
    }
    assert!(until(PATIENCE, || broker.values().len() == 4), "{}", gateway.stderr());
    let partitions: Vec<(i32, usize)> =
        broker.produced().iter().map(|one| (one.partition, one.records.len())).collect();
    assert_eq!(partitions, [(0, 2), (1, 2)]);
    let mut values = broker.values();
    values.sort();
    assert_eq!(values, uris.map(entry));
    // Waiting entries leave with the process.
    client.get("/5").unwrap();
    drop(client);
    assert!(gateway.stop().unwrap().success());
    assert_eq!(broker.values().last(), Some(&entry("/5")));
}

#[test]
fn temporary_errors_are_retried_and_permanent_ones_reported() {
    // The leader has moved, twice; the third error is about the message.
    let broker = Broker::start(1, None, &[6, 6, 0, 10]);
    let (_origin, gateway) = start(broker.port, json!({ "producer_type": "sync", "batch_max_size": 1 }));
    let mut client = gateway.connect().unwrap();
    client.get("/1").unwrap();
    assert!(until(PATIENCE, || broker.values() == [entry("/1")]), "{}", gateway.stderr());
    client.get("/2").unwrap();
    let told = format!(
        "Batch Processor[kafka logger] failed to process entries: failed to send data to Kafka topic: MESSAGE_TOO_LARGE, \
         brokers: [{{\"host\":\"127.0.0.1\",\"port\":{}}}]",
        broker.port
    );
    gateway.await_log(&told);
    assert!(until(PATIENCE, || lost(&gateway) == 1));
    assert_eq!(broker.values(), [entry("/1")]);
}

/// A failed login is logged in the error log without its secrets, and nothing is sent without one.
#[test]
fn a_broker_that_asks_for_a_login_gets_it() {
    // Lines are written by its own thread.
    let check = |password: &str, told: &str| {
        let broker = Broker::start(1, Some(("jack", "jacks-password")), &[]);
        let sasl = json!({ "user": "jack", "password": password });
        let brokers = json!([{ "host": "127.0.0.1", "port": broker.port, "sasl_config": sasl }]);
        let (_origin, gateway) = start(broker.port, json!({ "brokers": brokers, "batch_max_size": 1 }));
        gateway.connect().unwrap().get("/1").unwrap();
        assert!(
            until(PATIENCE, || {
                (!broker.values().is_empty() || lost(&gateway) > 0) && gateway.stderr().contains(told)
            }),
            "{}",
            gateway.stderr()
        );
        assert!(!gateway.stderr().contains(password));
        broker.values()
    };
    assert_eq!(check("jacks-password", ""), [entry("/1")]);
    let refused =
        "failed to send data to Kafka topic: failed to log in: SASL_AUTHENTICATION_FAILED: no\\nsuch user";
    assert!(check("jills-password", refused).is_empty());
}

#[test]
fn a_broker_that_is_back_gets_waiting_entries() {
    let port = free_port();
    let conf = json!({ "producer_type": "sync", "batch_max_size": 1, "max_retry_count": 1_000_000 });
    let (_origin, gateway) = start(port, conf);
    gateway.connect().unwrap().get("/1").unwrap();
    let told =
        format!("failed to connect to TCP server: host[127.0.0.1] port[{port}] err: Connection refused");
    gateway.await_log(&told);
    let broker = Broker::at(TcpListener::bind(("127.0.0.1", port)).unwrap(), 1, None, &[]);
    assert!(until(PATIENCE, || broker.values() == [entry("/1")]), "{}", gateway.stderr());
    assert_eq!(lost(&gateway), 0);
}

/// With another server at the port instead of a broker the gateway serves, and reports the problem.
#[test]
fn other_servers_than_brokers_are_reported() {
    for (said, expected) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "the response is longer than 4194304 bytes"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x01\x7f\xff\xff\xff", "the broker's response is malformed"),
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
        let (_origin, gateway) = start(port, json!({ "producer_type": "sync", "batch_max_size": 1 }));
        assert_eq!(gateway.connect().unwrap().get("/1").unwrap().status(), 200);
        gateway.await_log(expected);
        assert!(until(PATIENCE, || lost(&gateway) == 1));
    }
}

/// The head of a request instead of an entry.
#[test]
fn a_message_may_be_the_request_itself() {
    let broker = Broker::start(1, None, &[]);
    let conf = json!({
        "meta_format": "origin", "batch_max_size": 1, "include_req_body": true, "log_format": { "uri": "$uri" },
    });
    let (_origin, gateway) = start(broker.port, conf);
    let request = "POST /p?a=1 HTTP/1.1\r\nHost: h\r\nX-A: b\r\nContent-Length: 4\r\n\r\nbody";
    gateway.connect().unwrap().ask(request).unwrap();
    assert!(until(PATIENCE, || broker.values().len() == 1), "{}", gateway.stderr());
    let value = broker.values().remove(0);
    assert!(value.starts_with("POST /p?a=1 HTTP/1.1\r\n") && value.ends_with("\r\n\r\nbody"), "{value}");
    assert!(value.contains("\r\nx-a: b\r\n"), "{value}");
}

/// A line of the error log is its own message, a JSON string.
#[test]
fn lines_of_the_error_log_are_messages() {
    for acks in [1, 0] {
        let (origin, broker) = (Origin::echo("a").unwrap(), Broker::start(1, None, &[]));
        let plugins = json!({"tcp-logger": {"host": "127.0.0.1", "port": free_port(), "batch_max_size": 1}});
        let kafka = json!({
            "brokers": [{"host": "127.0.0.1", "port": broker.port}], "kafka_topic": "t", "key": "k", "required_acks": acks
        });
        let metadata =
            json!({"id": "error-log-logger", "kafka": kafka, "level": "ERROR", "inactive_timeout": 1});
        let settings = json!({"plugin_metadata": [metadata]});
        let gateway = Gateway::start(SIGMA, &config(&origin, plugins, settings)).unwrap();
        gateway.connect().unwrap().get("/1").unwrap();
        let shown = || {
            let shown = gateway.stderr();
            let lines = shown.lines().filter(|line| line.contains(" ERROR "));
            lines.map(|line| Value::from(line).to_string()).collect::<Vec<_>>()
        };
        let arrived = || shown().len() == 2 && broker.values() == shown();
        assert!(until(PATIENCE, arrived), "{:?} {}", broker.values(), gateway.stderr());
        assert!(broker.produced().iter().all(|one| one.acks == acks), "{:?}", broker.produced());
        assert!(
            broker.produced().iter().flat_map(|one| &one.records).all(|(key, _)| key.as_deref() == Some("k"))
        );
    }
}
