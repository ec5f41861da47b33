//! The real Kafka: `kafka-logger` fills a topic over a death of the broker, and `kafka-proxy` reads it.

use super::*;
use crate::plugins_kafka_proxy::{Message, Request, asked, place};
use crate::tls::Authority;
use crate::websocket::{By, Socket};

const VERSION: &str = "3.9.1";

/// Java needs its time.
const START: std::time::Duration = std::time::Duration::from_secs(180);

/// The folder with its jars, which Maven fetches.
fn jars() -> PathBuf {
    built("kafka", &format!("kafka-{VERSION}"), |project, draft| {
        let target = format!("-DoutputDirectory={}", draft.display());
        let mut fetch = Command::new("mvn");
        fetch.current_dir(project).args(["-q", "-B", "dependency:copy-dependencies", &target]);
        assert!(
            fetch.status().expect("Maven is there").success(),
            "`mvn dependency:copy-dependencies` failed"
        );
    })
}

fn class(name: &str) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", &format!("{}/*", jars().display()), name]);
    command
}

/// A broker that keeps its data in `dir`.
struct Broker {
    dir: tempfile::TempDir,
    /// For clients in cleartext, for those over TLS that log in, and for itself.
    ports: [u16; 3],
    process: Option<Running>,
}

impl Broker {
    fn start(root: &Authority) -> Broker {
        let dir = tempfile::tempdir().unwrap();
        let [clear, safe, own] = [(); 3].map(|()| free_port());
        let issued = root.issue("127.0.0.1");
        std::fs::write(dir.path().join("own.pem"), format!("{}{}", issued.key, issued.cert)).unwrap();
        let path = dir.path().display();
        let login = "org.apache.kafka.common.security";
        let settings = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{own}\n\
             listeners=CLEAR://127.0.0.1:{clear},SAFE://127.0.0.1:{safe},OWN://127.0.0.1:{own}\n\
             advertised.listeners=CLEAR://127.0.0.1:{clear},SAFE://127.0.0.1:{safe}\n\
             listener.security.protocol.map=CLEAR:PLAINTEXT,SAFE:SASL_SSL,OWN:PLAINTEXT\n\
             controller.listener.names=OWN\ninter.broker.listener.name=CLEAR\nlog.dirs={path}/data\n\
             offsets.topic.replication.factor=1\ngroup.initial.rebalance.delay.ms=0\nnum.partitions=1\n\
             listener.name.safe.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256\n\
             listener.name.safe.plain.sasl.jaas.config={login}.plain.PlainLoginModule required user_reader=\"readers-password\";\n\
             listener.name.safe.scram-sha-256.sasl.jaas.config={login}.scram.ScramLoginModule required;\n\
             listener.name.safe.ssl.keystore.type=PEM\nlistener.name.safe.ssl.keystore.location={path}/own.pem\n"
        );
        std::fs::write(dir.path().join("settings"), settings).unwrap();
        let mut format = class("kafka.tools.StorageTool");
        format.args(["format", "-t", "AAAAAAAAAAAAAAAAAAAAAA", "--add-scram"]);
        format.arg("SCRAM-SHA-256=[name=scrammer,password=scrammers-password]");
        let done = format.arg("-c").arg(dir.path().join("settings")).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        let mut broker = Broker { dir, ports: [clear, safe, own], process: None };
        broker.run();
        broker
    }

    fn run(&mut self) {
        let mut command = class("kafka.Kafka");
        self.process =
            Some(Running::start(command.arg(self.dir.path().join("settings")), &self.dir.path().join("log")));
        let is_up = || std::net::TcpStream::connect(("127.0.0.1", self.ports[0])).is_ok();
        assert!(until(START, is_up), "{}", self.log());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn node(&self, safe: bool) -> String {
        format!("127.0.0.1:{}", self.ports[usize::from(safe)])
    }
}

/// All messages of a partition, as far as they are there now; an error is nothing.
fn all(socket: &mut Socket, topic: &str) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    loop {
        let from = messages.last().map_or(0, |message| message.offset + 1);
        let request = Request { sequence: from, fetch: place(topic, 0, from), ..Request::default() };
        let answer = asked(socket, &request);
        match answer.fetched {
            Some(fetched) if !fetched.messages.is_empty() => messages.extend(fetched.messages),
            _ => return messages,
        }
    }
}

/// The offset at a time, or the error.
fn offset(socket: &mut Socket, topic: &str, timestamp: i64) -> Result<i64, String> {
    let answer = asked(socket, &Request { list: place(topic, 0, timestamp), ..Request::default() });
    answer
        .offset
        .map(|offset| offset.offset)
        .ok_or_else(|| answer.error.map_or_else(String::new, |error| error.message))
}

/// A gateway with a route that logs, and one for each way of reading.
fn gateway(broker: &Broker, root: &Authority, origin: &Origin) -> Gateway {
    let kafka = |id: &str, plugins: Value, safe: bool| {
        let mut upstream = json!({ "scheme": "kafka", "type": "none", "nodes": { broker.node(safe): 1 } });
        if safe {
            upstream["tls"] = json!({ "verify": true, "ca": root.pem });
        }
        json!({ "id": id, "uri": format!("/{id}"), "plugins": plugins, "upstream": upstream })
    };
    let login = |user: &str, password: &str, mechanism: &str| json!({ "kafka-proxy": { "sasl": { "username": user, "password": password, "mechanism": mechanism } } });
    let logger = json!({
        "brokers": [{ "host": "127.0.0.1", "port": broker.ports[0] }], "kafka_topic": "requests", "key": "orders",
        "log_format": { "uri": "$uri" }, "batch_max_size": 1, "producer_type": "sync", "max_retry_count": 1_000_000,
        "required_acks": -1
    });
    let log = json!({
        "id": "log", "uri": "/log/*", "plugins": { "kafka-logger": logger },
        "upstream": { "nodes": { origin.address().to_string(): 1 } }
    });
    let routes = [
        log,
        kafka("ws", json!({}), false),
        kafka("plain", login("reader", "readers-password", "PLAIN"), true),
        kafka("scram", login("scrammer", "scrammers-password", "SCRAM-SHA-256"), true),
        kafka("wrong", login("reader", "another-password", "PLAIN"), true),
    ];
    Gateway::start(SIGMA, &json!({ "listeners": [{ "address": "{listen}" }], "routes": routes }).to_string())
        .unwrap()
}

#[test]
fn kafka_takes_entries_over_a_death_and_gives_them_to_clients() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let mut broker = Broker::start(&root);
    let gateway = gateway(&broker, &root, &origin);
    let mut client = gateway.connect().unwrap();
    let mut send = |range: std::ops::Range<usize>| {
        for number in range {
            assert_eq!(client.get(&format!("/log/{number}")).unwrap().status(), 200);
        }
    };
    let mut socket = Socket::open(&gateway, By::Upgrade);
    let absent = offset(&mut socket, "absent", -1).unwrap_err();
    assert!(absent.ends_with("partition: 0, err: UNKNOWN_TOPIC_OR_PARTITION"), "{absent}");
    send(0..50);
    // The logger has the topic made, which the proxy has not.
    assert!(
        until(START, || offset(&mut socket, "requests", -1) == Ok(50)),
        "{}\n{}",
        gateway.stderr(),
        broker.log()
    );
    assert_eq!(offset(&mut socket, "requests", -2), Ok(0));
    // Killed in the middle, and back: nothing is lost. Duplicates are counted, and are the messages that were
    // in doubt.
    send(50..60);
    broker.process = None;
    send(60..100);
    broker.run();
    send(100..120);
    let uris = |messages: &[Message]| {
        let uri = |message: &Message| {
            let entry: Value = serde_json::from_slice(&message.value).unwrap();
            entry["uri"].as_str().unwrap().trim_start_matches("/log/").parse::<usize>().unwrap()
        };
        messages.iter().map(uri).collect::<Vec<_>>()
    };
    let distinct =
        |messages: &[Message]| uris(messages).into_iter().collect::<std::collections::BTreeSet<_>>();
    let is_whole = || distinct(&all(&mut Socket::open(&gateway, By::Upgrade), "requests")).len() == 120;
    assert!(until(START, is_whole), "{}\n{}", gateway.stderr(), broker.log());
    let messages = all(&mut socket, "requests");
    let twice = messages.len() - 120;
    assert!(twice <= 70, "{twice} entries came twice");
    println!("120 entries over a death of the broker: none lost, {twice} twice");
    assert!(messages.iter().enumerate().all(|(at, message)| message.offset == at as i64));
    assert!(messages.iter().all(|message| message.key == b"orders" && message.timestamp > 0));
    let [first, tenth] = [0, 10].map(|at: usize| messages[at].timestamp);
    assert!(offset(&mut socket, "requests", tenth).is_ok_and(|offset| offset <= 10));
    assert_eq!(offset(&mut socket, "requests", first), Ok(0));
    // Over TLS, by both mechanisms.
    for path in ["plain", "scram"] {
        let mut socket = Socket::open_path(&gateway, path);
        assert_eq!(all(&mut socket, "requests"), messages, "{path}: {}", gateway.stderr());
    }
    let refused = offset(&mut Socket::open_path(&gateway, "wrong"), "requests", -1).unwrap_err();
    assert!(refused.contains("failed to log in: SASL_AUTHENTICATION_FAILED"), "{refused}");
}

/// Compressed batches of Kafka's own producers are read, or refused by name.
#[test]
fn compressed_batches_of_kafkas_own_producer_are_read() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let broker = Broker::start(&root);
    let gateway = gateway(&broker, &root, &origin);
    let lines: String = (0..1000).map(|number| format!("message {number}\n")).collect();
    std::fs::write(broker.dir.path().join("lines"), &lines).unwrap();
    for method in ["none", "gzip", "zstd", "snappy", "lz4"] {
        let input = std::fs::File::open(broker.dir.path().join("lines")).unwrap();
        let mut producer = class("kafka.tools.ConsoleProducer");
        producer.args(["--bootstrap-server", &broker.node(false), "--topic", method]);
        let done = producer.args(["--compression-codec", method]).stdin(input).output().unwrap();
        assert!(done.status.success(), "{method}: {done:?}");
        let mut socket = Socket::open(&gateway, By::Upgrade);
        if matches!(method, "snappy" | "lz4") {
            let answer = asked(&mut socket, &Request { fetch: place(method, 0, 0), ..Request::default() });
            let told = format!("err: a batch is compressed with {method}; only gzip and zstd are supported");
            assert!(answer.error.is_some_and(|error| error.message.ends_with(&told)), "{method}");
            continue;
        }
        let messages = all(&mut socket, method);
        let text: String =
            messages.iter().map(|message| format!("{}\n", String::from_utf8_lossy(&message.value))).collect();
        assert!(text == lines, "{method}: {} messages, {}", messages.len(), gateway.stderr());
    }
}
