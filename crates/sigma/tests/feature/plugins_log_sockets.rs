//! Plugins that send entries over sockets of their own: `tcp-logger`, `udp-logger`, `loggly`, `sls-logger`.

use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, Peer, free_port, until};

use crate::stream_plugins::TlsServer;
use crate::tls::Authority;
use crate::tls_material::with_environment;
use crate::{PATIENCE, SIGMA};

/// One route to `origin` with these plugins, and these settings.
pub(crate) fn config(origin: &Origin, plugins: Value, settings: Value) -> String {
    let mut whole = settings;
    whole["workers"] = 2.into();
    whole["listeners"] = json!([{ "address": "{listen}" }]);
    whole["status"] = json!({ "address": "{status}" });
    whole["routes"] = json!([{
        "id": "r", "uri": "/*", "plugins": plugins,
        "upstream": { "nodes": { origin.address().to_string(): 1 } },
    }]);
    whole.to_string()
}

/// The plugin with this server; the entries are short.
fn logger(name: &str, port: u16, more: Value) -> Value {
    let mut conf = json!({ "host": "127.0.0.1", "port": port, "log_format": { "uri": "$uri" } });
    conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ name: conf })
}

/// The entry of a request, with that format.
fn entry(uri: &str) -> String {
    format!("{{\"uri\":\"{uri}\",\"route_id\":\"r\"}}")
}

/// A server over TCP, and its input, connection by connection.
struct Collector {
    port: u16,
    texts: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    fn start() -> Collector {
        Collector::at(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn at(server: TcpListener) -> Collector {
        let (port, texts) = (server.local_addr().unwrap().port(), Arc::<Mutex<Vec<String>>>::default());
        let kept = Arc::clone(&texts);
        std::thread::spawn(move || {
            for mut socket in server.incoming().map_while(Result::ok) {
                let mut text = String::new();
                socket.read_to_string(&mut text).unwrap();
                kept.lock().unwrap().push(text);
            }
        });
        Collector { port, texts }
    }

    fn texts(&self) -> Vec<String> {
        self.texts.lock().unwrap().clone()
    }
}

/// How many lines of logs were lost.
pub(crate) fn lost(gateway: &Gateway) -> u64 {
    let mut status = Peer::connect(&gateway.status_address()).unwrap().with_deadline(PATIENCE);
    let text = status.get("/status/counters").unwrap().text();
    let line = text.lines().find_map(|line| line.strip_prefix("sigma_access_lines_dropped_total "));
    line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

#[test]
fn tcp_logger_sends_lists_and_the_rest_at_the_end() {
    let (origin, server) = (Origin::echo("a").unwrap(), Collector::start());
    let plugins = logger("tcp-logger", server.port, json!({ "batch_max_size": 2, "inactive_timeout": 600 }));
    let gateway = Gateway::start(SIGMA, &config(&origin, plugins, json!({}))).unwrap();
    let mut client = gateway.connect().unwrap();
    for path in ["/1", "/2", "/3"] {
        client.get(path).unwrap();
    }
    assert!(until(PATIENCE, || server.texts().len() == 1), "{}", gateway.stderr());
    drop(client);
    assert!(gateway.stop().unwrap().success());
    let first = format!("[{},{}]", entry("/1"), entry("/2"));
    assert!(until(PATIENCE, || server.texts().len() == 2));
    assert_eq!(server.texts(), [first, format!("[{}]", entry("/3"))]);
}

/// A client's text is one value of one object, with any characters.
#[test]
fn one_entry_is_one_object_for_any_client_input() {
    let (origin, server) = (Origin::echo("a").unwrap(), Collector::start());
    let format = json!({ "batch_max_size": 1, "log_format": { "agent": "$http_user_agent" } });
    let plugins = logger("tcp-logger", server.port, format);
    let gateway = Gateway::start(SIGMA, &config(&origin, plugins, json!({}))).unwrap();
    let agent = "x\"},{\"forged\":\"\\\\\u{e9}\t]";
    let request = format!("GET / HTTP/1.1\r\nHost: h\r\nUser-Agent: {agent}\r\n\r\n");
    let mut bytes = request.into_bytes();
    // No UTF-8.
    let at = bytes.windows(2).position(|pair| pair == "\u{e9}".as_bytes()).unwrap();
    bytes[at] = 0xff;
    gateway.connect().unwrap().ask(bytes).unwrap();
    assert!(until(PATIENCE, || server.texts().len() == 1), "{}", gateway.stderr());
    let sent = server.texts().remove(0);
    let expected = agent.replace('\u{e9}', "\u{fffd}\u{fffd}");
    let value: Value = serde_json::from_str(&sent).unwrap();
    assert_eq!(value, json!({ "agent": expected, "route_id": "r" }), "{sent}");
    assert!(!sent.contains(['\t', '\n']), "{sent}");
}

#[test]
fn tcp_logger_tries_again_until_the_server_is_back() {
    let (origin, port) = (Origin::echo("a").unwrap(), free_port());
    let retried = json!({ "batch_max_size": 1, "max_retry_count": 1_000_000, "retry_delay": 1 });
    let plugins = logger("tcp-logger", port, retried);
    let gateway = Gateway::start(SIGMA, &config(&origin, plugins, json!({}))).unwrap();
    gateway.connect().unwrap().get("/1").unwrap();
    let failure = format!(
        "Batch Processor[tcp logger] failed to process entries: failed to connect to TCP server: \
         host[127.0.0.1] port[{port}] err: Connection refused"
    );
    gateway.await_log(&failure);
    let server = Collector::at(TcpListener::bind(("127.0.0.1", port)).unwrap());
    assert!(until(PATIENCE, || !server.texts().is_empty()), "{}", gateway.stderr());
    assert_eq!(server.texts(), [entry("/1")]);
    assert_eq!(lost(&gateway), 0);
}

/// A server that takes connections and reads nothing holds up no request, and no more than was said waits.
#[test]
fn entries_that_a_stalled_server_does_not_take_are_dropped_and_counted() {
    const REQUESTS: u64 = 12;
    let origin = Origin::echo("a").unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    // More than sockets hold, so that each is stuck with its first entry.
    let large =
        json!({ "batch_max_size": 1, "timeout": 600_000, "log_format": { "x": "y".repeat(8 << 20) } });
    let plugins = logger("tcp-logger", port, large);
    let metadata = json!({ "plugin_metadata": [{ "id": "tcp-logger", "max_pending_entries": 4 }] });
    let gateway = Gateway::start(SIGMA, &config(&origin, plugins, metadata)).unwrap();
    let mut client = gateway.connect().unwrap();
    for _ in 0..REQUESTS {
        assert_eq!(client.get("/").unwrap().status(), 200);
    }
    assert!(until(PATIENCE, || lost(&gateway) == REQUESTS - 4), "{}", lost(&gateway));
    let told = "max pending entries limit exceeded. discarding entry.";
    gateway.await_log(told);
    drop(server);
}

#[test]
fn tcp_logger_speaks_tls_and_only_to_the_right_server_if_that_is_asked_for() {
    let (origin, root, dir) =
        (Origin::echo("a").unwrap(), Authority::new("Root"), tempfile::tempdir().unwrap());
    let trusted = dir.path().join("root.pem");
    std::fs::write(&trusted, &root.pem).unwrap();
    let port = free_port();
    let server = TlsServer::start(port, &root.issue("logs.test").files(dir.path(), "logs"), dir.path());
    let program = with_environment(dir.path(), &[("SSL_CERT_FILE", trusted.to_str().unwrap())]);
    let check = |more: Value, uri: &str, expected: Result<(), &str>| {
        let mut conf = json!({ "tls": true, "batch_max_size": 1, "max_retry_count": 100, "retry_delay": 0 });
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let text = config(&origin, logger("tcp-logger", port, conf), json!({}));
        let gateway = Gateway::start(program.to_str().unwrap(), &text).unwrap();
        gateway.connect().unwrap().get(uri).unwrap();
        let has_come = || server.text().contains(&entry(uri));
        match expected {
            Ok(()) => assert!(until(PATIENCE, has_come), "{} {}", server.text(), gateway.stderr()),
            Err(reason) => {
                gateway.await_log(reason);
                assert!(gateway.stop().unwrap().success());
                assert!(!has_come(), "{}", server.text());
            }
        }
    };
    check(json!({ "tls_options": "logs.test", "ssl_verify": true }), "/verified", Ok(()));
    // As APISIX does it.
    check(json!({ "tls_options": "other.test" }), "/unverified", Ok(()));
    let refused =
        format!("failed to perform TLS handshake to TCP server: host[127.0.0.1] port[{port}] err: ");
    check(json!({ "tls_options": "other.test", "ssl_verify": true }), "/wrong", Err(&refused));
    check(json!({ "ssl_verify": true }), "/address", Err(&refused));
}

fn receiver() -> (UdpSocket, u16) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

fn datagram(socket: &UdpSocket) -> String {
    let mut bytes = vec![0; 1 << 16];
    let length = socket.recv(&mut bytes).unwrap();
    String::from_utf8(bytes[..length].to_vec()).unwrap()
}

#[test]
fn udp_logger_sends_a_batch_in_a_datagram() {
    let (origin, (socket, port)) = (Origin::echo("a").unwrap(), receiver());
    let plugins = logger("udp-logger", port, json!({ "batch_max_size": 2, "inactive_timeout": 600 }));
    let gateway = Gateway::start(SIGMA, &config(&origin, plugins, json!({}))).unwrap();
    let mut client = gateway.connect().unwrap();
    for path in ["/1", "/2", "/3"] {
        client.get(path).unwrap();
    }
    assert_eq!(datagram(&socket), format!("[{},{}]", entry("/1"), entry("/2")));
    drop(client);
    assert!(gateway.stop().unwrap().success());
    assert_eq!(datagram(&socket), format!("[{}]", entry("/3")));
}

/// A batch that no datagram holds leaves in several; an entry that none holds is lost, and counted.
#[test]
fn udp_logger_splits_long_batches() {
    let (origin, (socket, port)) = (Origin::echo("a").unwrap(), receiver());
    let conf = json!({ "batch_max_size": 4, "inactive_timeout": 600, "log_format": { "x": "$http_x" } });
    let plugins = logger("udp-logger", port, conf);
    let settings = json!({ "limits": { "request_head_bytes": 100_000 } });
    let gateway = Gateway::start(SIGMA, &config(&origin, plugins, settings)).unwrap();
    let mut client = gateway.connect().unwrap();
    let long = |letter: &str, length: usize| letter.repeat(length);
    for value in [long("a", 30_000), long("b", 30_000), long("c", 70_000), long("d", 30_000)] {
        let answer = client.ask(format!("GET / HTTP/1.1\r\nHost: h\r\nX: {value}\r\n\r\n")).unwrap();
        assert_eq!(answer.status(), 200);
    }
    let entry = |letter: &str| format!("{{\"x\":\"{}\",\"route_id\":\"r\"}}", long(letter, 30_000));
    assert_eq!(datagram(&socket), format!("[{},{}]", entry("a"), entry("b")));
    assert_eq!(datagram(&socket), format!("[{}]", entry("d")));
    assert!(until(PATIENCE, || lost(&gateway) == 1), "{}", lost(&gateway));
    let told = "udp-logger: entries too large for a datagram were dropped";
    gateway.await_log(told);
}

/// Datagrams to a missing server do no harm, and later ones arrive after its return.
#[test]
fn udp_logger_needs_no_server() {
    let (origin, port) = (Origin::echo("a").unwrap(), free_port());
    let plugins = logger("udp-logger", port, json!({ "batch_max_size": 1 }));
    let gateway = Gateway::start(SIGMA, &config(&origin, plugins, json!({}))).unwrap();
    assert_eq!(gateway.connect().unwrap().get("/lost").unwrap().status(), 200);
    let socket = UdpSocket::bind(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    gateway.connect().unwrap().get("/2").unwrap();
    let texts = std::iter::from_fn(|| Some(datagram(&socket)));
    let mut texts = texts.inspect(|text| assert!(*text == entry("/lost") || *text == entry("/2"), "{text}"));
    assert!(texts.any(|text| text == entry("/2")));
}

/// Each entry is a line of syslog in its own datagram, as severe as its status is, and no client forges one.
#[test]
fn loggly_sends_a_datagram_for_each_entry() {
    let (origin, (socket, port)) = (Origin::echo("a").unwrap(), receiver());
    let plugins = json!({
        "loggly": {
            "customer_token": "t0ken", "tags": ["shop", "a\"]"], "severity": "debug", "severity_map": {"404": "CRIT"},
            "log_format": {"uri": "$uri"}, "batch_max_size": 2, "inactive_timeout": 600
        },
        "fault-injection": {"abort": {"http_status": 404, "vars": [[["uri", "==", "/gone"]]]}}
    });
    let metadata = json!([{"id": "loggly", "host": "127.0.0.1", "port": port}]);
    let settings = json!({ "plugin_metadata": metadata });
    let gateway = Gateway::start(SIGMA, &config(&origin, plugins, settings)).unwrap();
    let mut client = gateway.connect().unwrap();
    assert_eq!(client.get("/1").unwrap().status(), 200);
    assert_eq!(client.ask("GET /gone HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap().status(), 404);
    for (priority, host, uri) in [(15, "localhost", "/1"), (10, "shop.test", "/gone")] {
        let datagram = datagram(&socket);
        let (version, rest) = datagram.split_once(' ').unwrap();
        assert_eq!(version, format!("<{priority}>1"));
        let (time, rest) = rest.split_once(' ').unwrap();
        assert!(time.len() == "2000-02-29T12:34:56.789Z".len() && time.ends_with('Z'), "{time}");
        let (name, rest) = rest.split_once(" apisix ").unwrap();
        assert_eq!(name, host, "{datagram}");
        let (_, rest) = rest.split_once(" - ").unwrap();
        let data = r#"[t0ken@41058 tag="shop" tag="a\"\]"]"#;
        assert_eq!(rest, format!("{data} {}", entry(uri)));
    }
}

/// Lines of two batches come over TLS, and none to a server that is not the right one.
#[test]
fn sls_logger_sends_lines_to_the_right_server() {
    let (origin, root, dir) =
        (Origin::echo("a").unwrap(), Authority::new("Root"), tempfile::tempdir().unwrap());
    let trusted = dir.path().join("root.pem");
    std::fs::write(&trusted, &root.pem).unwrap();
    let port = free_port();
    let server = TlsServer::start(port, &root.issue("localhost").files(dir.path(), "logs"), dir.path());
    let program = with_environment(dir.path(), &[("SSL_CERT_FILE", trusted.to_str().unwrap())]);
    let start = |host: &str| {
        let conf = json!({
            "host": host, "project": "p", "logstore": "l\"", "access_key_id": "i", "access_key_secret": "s3cret",
            "batch_max_size": 1, "max_retry_count": 100, "retry_delay": 0
        });
        let text = config(&origin, logger("sls-logger", port, conf), json!({}));
        Gateway::start(program.to_str().unwrap(), &text).unwrap()
    };
    let wrong = start("127.0.0.1");
    wrong.connect().unwrap().get("/wrong").unwrap();
    let refused =
        format!("failed to perform TLS handshake to TCP server: host[127.0.0.1] port[{port}] err: ");
    wrong.await_log(&refused);
    assert!(!wrong.stderr().contains("s3cret"), "{}", wrong.stderr());
    assert!(wrong.stop().unwrap().success());
    let gateway = start("localhost");
    let mut client = gateway.connect().unwrap();
    for (count, uri) in [(1, "/1"), (2, "/2")] {
        client.get(uri).unwrap();
        assert!(
            until(PATIENCE, || server.text().lines().count() == count),
            "{} {}",
            server.text(),
            gateway.stderr()
        );
        let line = server.text().lines().last().unwrap().to_owned();
        let (head, rest) = line.split_once(" localhost apisix ").unwrap();
        let time = head.strip_prefix("<46>1 ").unwrap();
        assert!(time.len() == "2000-02-29T12:34:56.789Z".len() && time.ends_with('Z'), "{time}");
        let (_, rest) = rest.split_once(" - ").unwrap();
        let data = r#"[logservice project="p" logstore="l\"" access-key-id="i" access-key-secret="s3cret"]"#;
        assert_eq!(rest, format!("{data} {}", entry(uri)));
    }
    assert!(!server.text().contains("/wrong"), "{}", server.text());
}
