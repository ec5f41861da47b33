//! `error-log-logger`: lines of the gateway's own error log.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, children, free_port, until};

use crate::plugins_log_sockets::{config, lost};
use crate::{PATIENCE, SIGMA};

/// The error line of each request: a log server is missing.
const COMPLAINT: &str =
    "ERROR Batch Processor[tcp logger] exceeded the max_retry_count[0] dropping the entries";

/// A gateway whose requests cause lines of the error log, which go where the metadata say.
fn config_of(origin: &Origin, metadata: &Value) -> String {
    let plugins = json!({"tcp-logger": {"host": "127.0.0.1", "port": free_port(), "batch_max_size": 1}});
    let mut all = json!([]);
    if !metadata.is_null() {
        all = json!([metadata]);
        all[0]["id"] = "error-log-logger".into();
    }
    config(origin, plugins, json!({"plugin_metadata": all}))
}

/// A server over TCP, and the lines that it was sent.
struct Collector(Arc<Mutex<Vec<String>>>);

impl Collector {
    fn at(server: TcpListener) -> Collector {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&lines);
        std::thread::spawn(move || {
            for socket in server.incoming().map_while(Result::ok) {
                let kept = Arc::clone(&kept);
                // Ends with its client.
                std::thread::spawn(move || {
                    for line in BufReader::new(socket).lines().map_while(Result::ok) {
                        kept.lock().unwrap().push(line);
                    }
                });
            }
        });
        Collector(lines)
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn count(&self, text: &str) -> usize {
        self.lines().iter().filter(|line| line.contains(text)).count()
    }
}

fn ask(gateway: &Gateway) {
    assert_eq!(gateway.connect().unwrap().get("/1").unwrap().status(), 200);
}

#[test]
fn lines_arrive_as_the_log_has_them() {
    let origin = Origin::echo("a").unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let collector = Collector::at(server);
    let metadata =
        json!({"tcp": {"host": "127.0.0.1", "port": port}, "level": "ERROR", "inactive_timeout": 1});
    let gateway = Gateway::start(SIGMA, &config_of(&origin, &metadata)).unwrap();
    ask(&gateway);
    assert!(until(PATIENCE, || collector.count(COMPLAINT) == 1), "{:?}", collector.lines());
    let shown = gateway.stderr();
    for line in collector.lines() {
        assert!(shown.lines().any(|shown| shown == line), "{line} is not in the log: {shown}");
        assert!(line.contains(" ERROR "), "{line}");
    }
    assert!(shown.contains(" INFO serving "), "there was one that is not shipped: {shown}");
}

/// The parent's lines about a dead gateway are shipped by the next one.
#[test]
fn lines_of_the_parent_are_shipped_by_the_gateway() {
    let origin = Origin::echo("a").unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let collector = Collector::at(server);
    let metadata = json!({
        "id": "error-log-logger", "tcp": {"host": "127.0.0.1", "port": port}, "level": "ERROR", "batch_max_size": 1
    });
    let settings = json!({"plugin_metadata": [metadata], "process": {"mode": "supervised"}});
    let parent = Gateway::start(SIGMA, &config(&origin, json!({}), settings)).unwrap();
    let mut gateways = Vec::new();
    let is_one = until(PATIENCE, || {
        gateways = children(parent.pid());
        gateways.len() == 1 && parent.stderr().contains("a gateway serves")
    });
    assert!(is_one, "{gateways:?} {}", parent.stderr());
    let gateway = Pid::from_raw(gateways[0].try_into().unwrap()).unwrap();
    kill_process(gateway, Signal::KILL).unwrap();
    let told = format!("the gateway, process {}, ended", gateways[0]);
    assert!(until(PATIENCE, || collector.count(&told) > 0), "{:?} {}", collector.lines(), parent.stderr());
    let shown = parent.stderr();
    for line in collector.lines() {
        assert!(line.contains(" ERROR ") && shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    assert_eq!(shown.matches(&told).count(), collector.count(&told), "each once: {shown}");
    assert!(parent.stop().unwrap().success());
}

/// While the server takes no lines, each of them makes the shipper complain, too; those complaints are never
/// shipped.
#[test]
fn its_own_complaints_are_not_shipped() {
    let (origin, port) = (Origin::echo("a").unwrap(), free_port());
    let metadata = json!({"host": "127.0.0.1", "port": port, "level": "DEBUG", "batch_max_size": 0});
    let gateway = Gateway::start(SIGMA, &config_of(&origin, &metadata)).unwrap();
    ask(&gateway);
    let own = "Batch Processor[error-log-logger] exceeded the max_retry_count[0] dropping the entries";
    gateway.await_log(own);
    let failed = format!("failed to connect to TCP server: host[127.0.0.1] port[{port}] err: ");
    assert!(gateway.stderr().contains(&failed), "{}", gateway.stderr());
    assert!(until(PATIENCE, || lost(&gateway) >= 2), "an entry of tcp-logger, and lines");
    let collector = Collector::at(TcpListener::bind(("127.0.0.1", port)).unwrap());
    assert!(until(PATIENCE, || {
        ask(&gateway);
        collector.count(COMPLAINT) >= 2
    }));
    assert_eq!(collector.count("error-log-logger"), 0, "{:?}", collector.lines());
}

/// A reload ends it, sends it elsewhere, and begins with it again.
#[test]
fn metadata_decide_while_it_runs() {
    let origin = Origin::echo("a").unwrap();
    let server = || TcpListener::bind("127.0.0.1:0").unwrap();
    let to = |server: &TcpListener| {
        let port = server.local_addr().unwrap().port();
        json!({"tcp": {"host": "127.0.0.1", "port": port}, "level": "ERROR", "batch_max_size": 1})
    };
    let (first, second) = (server(), server());
    let (to_first, to_second) = (to(&first), to(&second));
    let (first, second) = (Collector::at(first), Collector::at(second));
    let gateway = Gateway::start(SIGMA, &config_of(&origin, &to_first)).unwrap();
    ask(&gateway);
    assert!(until(PATIENCE, || first.count(COMPLAINT) == 1), "{}", gateway.stderr());
    let reload = |metadata: &Value, reloads: usize| {
        gateway.rewrite(&config_of(&origin, metadata)).unwrap();
        gateway.reload().unwrap();
        let told = || gateway.stderr().matches("configuration reloaded").count() == reloads;
        assert!(until(PATIENCE, told), "{}", gateway.stderr());
    };
    reload(&Value::Null, 1);
    ask(&gateway);
    assert!(until(PATIENCE, || gateway.stderr().matches(COMPLAINT).count() == 2), "{}", gateway.stderr());
    reload(&to_second, 2);
    ask(&gateway);
    assert!(until(PATIENCE, || second.count(COMPLAINT) == 1), "{}", gateway.stderr());
    assert_eq!(first.count(COMPLAINT), 1, "{:?}", first.lines());
}

/// SkyWalking, ClickHouse: the forms of their batches.
#[test]
fn lines_are_in_the_forms_of_their_servers() {
    let check =
        |metadata: &dyn Fn(String) -> Value, fields: &[(&str, &str)], form: &dyn Fn(&str) -> String| {
            let got = Arc::<Mutex<Vec<sigma_testkit::Message>>>::default();
            let kept = Arc::clone(&got);
            let server = Origin::answer(move |message| {
                kept.lock().unwrap().push(message.clone());
                b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()
            });
            let (server, origin) = (server.unwrap(), Origin::echo("a").unwrap());
            let mut metadata = metadata(format!("http://127.0.0.1:{}", server.port()));
            metadata["level"] = "ERROR".into();
            metadata["batch_max_size"] = 1.into();
            let gateway = Gateway::start(SIGMA, &config_of(&origin, &metadata)).unwrap();
            ask(&gateway);
            let line = || gateway.stderr().lines().find(|line| line.contains(COMPLAINT)).map(form);
            let arrived = || got.lock().unwrap().iter().any(|message| Some(message.text()) == line());
            assert!(until(PATIENCE, arrived), "{:?} {}", got.lock().unwrap(), gateway.stderr());
            for message in &*got.lock().unwrap() {
                for (name, value) in fields {
                    assert_eq!(message.head.all(name).collect::<Vec<_>>(), [*value]);
                }
            }
        };
    let skywalking = |at: String| json!({"skywalking": {"endpoint_addr": at + "/v3/logs", "service_name": "s", "service_instance_name": "i"}});
    check(&skywalking, &[("content-type", "application/json")], &|line| {
        let text = Value::from(line);
        format!(
            r#"[{{"service":"s","serviceInstance":"i","endpoint":"","body":{{"text":{{"text":{text}}}}}}}]"#
        )
    });
    let clickhouse = |at| json!({"clickhouse": {"endpoint_addr": at, "user": "u", "password": "p", "database": "d", "logtable": "t"}});
    let fields = [("x-clickhouse-user", "u"), ("x-clickhouse-key", "p"), ("x-clickhouse-database", "d")];
    check(&clickhouse, &fields, &|line| {
        format!("INSERT INTO t FORMAT JSONEachRow {}", json!({ "data": line }))
    });
}
