//! Stream routes: sessions of other protocols than HTTP, with real sockets and clients.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sigma_testkit::{Address, DEADLINE, Gateway, Operator, Origin, Redis, until};

use crate::docs::{block, paste, text_of};
use crate::tls::{Authority, run, shake};
use crate::{PATIENCE, SIGMA};

/// An origin that sends its name, then sends back its input, and ends when the client does.
pub(crate) fn parrot(name: &str) -> Origin {
    let greeting = format!("{name}\r\n");
    Origin::serve(move |mut peer| {
        let mut bytes = greeting.clone().into_bytes();
        let _ = peer.send(&bytes);
        bytes = peer.read_to_close().unwrap_or_default();
        let _ = peer.send(&bytes);
    })
    .unwrap()
}

/// A configuration with one listener for streams.
pub(crate) fn config(listener: Value, rest: Value) -> String {
    let mut listener = listener;
    listener["address"] = "{listen}".into();
    let mut whole = json!({ "workers": 2, "listeners": [listener], "status": { "address": "{status}" } });
    whole.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    whole.to_string()
}

fn tcp(routes: Value) -> String {
    config(json!({ "stream": "tcp" }), json!({ "stream_routes": routes }))
}

pub(crate) fn upstream(ports: &[u16]) -> Value {
    let nodes: serde_json::Map<String, Value> =
        ports.iter().map(|port| (format!("127.0.0.1:{port}"), json!(1))).collect();
    json!({ "scheme": "tcp", "nodes": nodes })
}

/// The greeting of a session; empty if it is closed.
fn greeting(gateway: &Gateway) -> String {
    gateway.connect().unwrap().read_line().unwrap_or_default()
}

/// A session's greeting, and the response to `sent`.
pub(crate) fn talk(gateway: &Gateway, sent: &str) -> (String, String) {
    let mut peer = gateway.connect().unwrap();
    let greeting = peer.read_line().unwrap();
    peer.send(sent).unwrap();
    peer.half_close().unwrap();
    (greeting.trim_end().to_owned(), String::from_utf8(peer.read_to_close().unwrap()).unwrap())
}

/// How long a session is given to end; a test asks again until then.
const END: Duration = Duration::from_secs(2);

/// The session ends without a byte.
pub(crate) fn is_closed(gateway: &Gateway) -> bool {
    gateway.connect().unwrap().with_deadline(END).read_to_close().is_ok_and(|bytes| bytes.is_empty())
}

#[test]
fn bytes_pass_both_ways_and_each_side_ends_for_itself() {
    let origin = parrot("one");
    let gateway = Gateway::start(SIGMA, &tcp(json!([{ "upstream": upstream(&[origin.port()]) }]))).unwrap();
    assert_eq!(talk(&gateway, "hello"), ("one".to_owned(), "hello".to_owned()));
    // More than any buffer on the way holds.
    let large = "0123456789abcdef".repeat(1 << 18);
    assert_eq!(talk(&gateway, &large).1.len(), large.len());
    let counters = Operator::new(gateway.status_address());
    let counted = until(PATIENCE, || {
        let page = counters.call("GET", "/status/counters", None).unwrap().text();
        let value = |name: &str| {
            let line = page.lines().find(|line| line.starts_with(&format!("sigma_{name}")));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).unwrap_or_default()
        };
        value("stream_bytes_in") >= large.len() && value("stream_bytes_out") > large.len()
    });
    assert!(counted, "{}", counters.call("GET", "/status/counters", None).unwrap().text());
}

#[test]
fn nodes_that_refuse_are_passed_over_and_no_node_closes() {
    let (origin, dead) = (parrot("alive"), sigma_testkit::free_port());
    let routes = json!([{ "upstream": upstream(&[dead, origin.port()]) }]);
    let gateway = Gateway::start(SIGMA, &tcp(routes)).unwrap();
    for _ in 0..6 {
        assert_eq!(talk(&gateway, "x").0, "alive");
    }
    gateway.rewrite(&tcp(json!([{ "upstream": upstream(&[dead]) }]))).unwrap();
    gateway.reload().unwrap();
    assert!(until(PATIENCE, || is_closed(&gateway)), "{}", gateway.stderr());
}

/// As for requests, the error log names the route, the client and the node of a session that found no node.
#[test]
fn logs_name_a_session_whose_nodes_refuse() {
    let port = sigma_testkit::free_port();
    let gateway =
        Gateway::start(SIGMA, &tcp(json!([{ "id": "db", "upstream": upstream(&[port]) }]))).unwrap();
    assert!(is_closed(&gateway));
    let node = format!("node=127.0.0.1:{port}");
    let words = [
        "a session failed",
        "reason=\"connection_refused\"",
        "client=127.0.0.1",
        "listener=127.0.0.1:",
        "route=\"db\"",
        &node,
    ];
    let is_named = || gateway.stderr().lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(until(PATIENCE, is_named), "{}", gateway.stderr());
}

/// Databases and brokers hold their connections for days: a change of the configuration does not end them.
#[test]
fn sessions_outlive_reloads_and_the_route_that_they_came_by() {
    let (one, two) = (parrot("one"), parrot("two"));
    let to = |origin: &Origin| tcp(json!([{ "upstream": upstream(&[origin.port()]) }]));
    let gateway = Gateway::start(SIGMA, &to(&one)).unwrap();
    let mut old = gateway.connect().unwrap();
    assert_eq!(old.read_line().unwrap().trim_end(), "one");
    gateway.rewrite(&to(&two)).unwrap();
    gateway.reload().unwrap();
    assert!(until(PATIENCE, || greeting(&gateway) == "two"));
    gateway.rewrite(&tcp(json!([]))).unwrap();
    gateway.reload().unwrap();
    assert!(until(PATIENCE, || is_closed(&gateway)));
    old.send("still here").unwrap();
    old.half_close().unwrap();
    assert_eq!(old.read_to_close().unwrap(), b"still here");
}

/// A cut transfer must not look whole to the other side.
#[test]
fn a_broken_side_breaks_the_other() {
    let origin = Origin::scripted().unwrap();
    let gateway = Gateway::start(SIGMA, &tcp(json!([{ "upstream": upstream(&[origin.port()]) }]))).unwrap();
    let pair = || {
        let mut client = gateway.connect().unwrap();
        client.send("hello").unwrap();
        let mut node = origin.accept().unwrap().with_deadline(DEADLINE);
        assert_eq!(node.read_exactly(5).unwrap(), b"hello");
        (client, node)
    };
    let (mut client, mut node) = pair();
    node.send("half an ans").unwrap();
    assert_eq!(client.read_exactly(11).unwrap(), b"half an ans");
    node.reset().unwrap();
    client.expect_reset().unwrap();
    let (client, mut node) = pair();
    client.reset().unwrap();
    node.expect_reset().unwrap();
}

#[test]
fn silence_ends_a_session() {
    let origin = parrot("one");
    let mut upstream = upstream(&[origin.port()]);
    upstream["timeout"] = json!({ "connect": 1, "send": 1, "read": 0.2 });
    let gateway = Gateway::start(SIGMA, &tcp(json!([{ "upstream": upstream }]))).unwrap();
    let mut peer = gateway.connect().unwrap();
    assert_eq!(peer.read_line().unwrap().trim_end(), "one");
    peer.expect_reset().unwrap();
}

#[test]
fn routes_are_found_by_address_and_plugins_refuse() {
    let origin = parrot("one");
    let to = upstream(&[origin.port()]);
    let closed = json!({ "blacklist": ["127.0.0.0/8"] });
    let routes = |plugins: Value| {
        tcp(json!([
            { "id": "elsewhere", "remote_addr": "192.0.2.0/24", "upstream": upstream(&[1]) },
            { "id": "here", "server_addr": "127.0.0.1", "plugins": plugins, "upstream": to },
        ]))
    };
    let gateway = Gateway::start(SIGMA, &routes(json!({}))).unwrap();
    assert_eq!(talk(&gateway, "x").0, "one");
    let put = |plugins: Value| {
        gateway.rewrite(&routes(plugins)).unwrap();
        gateway.reload().unwrap();
    };
    put(json!({ "ip-restriction": closed }));
    assert!(until(PATIENCE, || is_closed(&gateway)), "{}", gateway.stderr());
    put(json!({ "limit-conn": { "conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr" } }));
    let mut held = gateway.connect().unwrap();
    let is_served = until(PATIENCE, || {
        // The slot of the former one is free when the gateway has seen that it left.
        held = gateway.connect().unwrap();
        held.read_line().is_ok_and(|line| line == "one")
    });
    assert!(is_served, "{}", gateway.stderr());
    assert!(is_closed(&gateway), "one at a time");
    held.half_close().unwrap();
    held.read_to_close().unwrap();
    // The place is given back when the session has ended.
    assert!(until(PATIENCE, || !is_closed(&gateway)));
}

#[test]
fn a_share_of_the_sessions_goes_elsewhere() {
    let (own, other) = (parrot("own"), parrot("other"));
    let plugins = json!({ "traffic-split": { "rules": [{
        "match": [{ "vars": [["server_port", "~~", "^[0-9]+$"]] }],
        "weighted_upstreams": [{ "upstream": upstream(&[other.port()]), "weight": 1 }, { "weight": 1 }],
    }] } });
    let routes = json!([{ "plugins": plugins, "upstream": upstream(&[own.port()]) }]);
    let gateway = Gateway::start(SIGMA, &tcp(routes)).unwrap();
    let names: Vec<String> = (0..20).map(|_| talk(&gateway, "x").0).collect();
    assert!(names.iter().any(|name| name == "own") && names.iter().any(|name| name == "other"), "{names:?}");
}

/// The packet with which a client of MQTT 3.1.1 begins.
fn mqtt_connect(client_id: &str) -> Vec<u8> {
    let mut body = b"\x00\x04MQTT\x04\x02\x00\x3c".to_vec();
    body.extend((client_id.len() as u16).to_be_bytes());
    body.extend(client_id.as_bytes());
    [vec![0x10, body.len() as u8], body].concat()
}

#[test]
fn clients_of_mqtt_keep_to_their_broker() {
    let brokers: Vec<Origin> = ["a", "b", "c"].iter().map(|name| parrot(name)).collect();
    let ports: Vec<u16> = brokers.iter().map(Origin::port).collect();
    let mut upstream = upstream(&ports);
    (upstream["type"], upstream["key"]) = ("chash".into(), "mqtt_client_id".into());
    let routes = json!([{ "plugins": { "mqtt-proxy": { "protocol_level": 4 } }, "upstream": upstream }]);
    let gateway = Gateway::start(SIGMA, &tcp(routes)).unwrap();
    let broker_of = |client_id: &str| {
        let packet = mqtt_connect(client_id);
        let mut peer = gateway.connect().unwrap();
        // In pieces: it is looked at when it is whole, and forwarded as it was.
        packet.iter().for_each(|byte| peer.send([*byte]).unwrap());
        let name = peer.read_line().unwrap();
        peer.half_close().unwrap();
        assert_eq!(peer.read_to_close().unwrap(), packet);
        name
    };
    let first: Vec<String> = (0..12).map(|n| broker_of(&format!("sensor-{n}"))).collect();
    let again: Vec<String> = (0..12).map(|n| broker_of(&format!("sensor-{n}"))).collect();
    assert_eq!(first, again);
    assert!(first.iter().any(|name| *name != first[0]), "{first:?}");
    let mut other = gateway.connect().unwrap();
    other.send("GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(other.read_to_close().is_ok_and(|bytes| bytes.is_empty()));
}

/// A broker of MQTT.
struct Mosquitto(std::process::Child);

impl Mosquitto {
    fn start(port: u16, dir: &std::path::Path) -> Mosquitto {
        let config = dir.join("mosquitto.conf");
        std::fs::write(&config, format!("listener {port} 127.0.0.1\nallow_anonymous true\n")).unwrap();
        let installed = std::path::Path::new("/usr/sbin/mosquitto");
        let program = if installed.exists() { installed } else { std::path::Path::new("mosquitto") };
        let child = Command::new(program).arg("-c").arg(config).stderr(Stdio::null()).spawn().unwrap();
        let broker = Mosquitto(child);
        assert!(until(PATIENCE, || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()));
        broker
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        // It has ended by itself, or does now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn real_clients_of_mqtt_meet_at_their_broker() {
    let (port, dir) = (sigma_testkit::free_port(), tempfile::tempdir().unwrap());
    let _broker = Mosquitto::start(port, dir.path());
    // The levels of MQTT 3.1.1 and 5; a client of another one is not let through.
    for (level, version) in [(4, "mqttv311"), (5, "mqttv5")] {
        let plugins = json!({ "mqtt-proxy": { "protocol_name": "MQTT", "protocol_level": level } });
        let routes = json!([{ "plugins": plugins, "upstream": upstream(&[port]) }]);
        let gateway = Gateway::start(SIGMA, &tcp(routes)).unwrap();
        let to = gateway.address().port().unwrap().to_string();
        let client = |program: &str, version: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(["-h", "127.0.0.1", "-p", &to, "-V", version, "-t", "hall/1", "-q", "1"]);
            command.args(arguments).stderr(Stdio::null());
            command
        };
        // A retained message of the broker is there for later subscribers.
        let publish = |version| client("mosquitto_pub", version, &["-i", "sensor", "-r", "-m", "warm"]);
        assert!(publish(version).status().unwrap().success(), "{version}");
        let seen =
            client("mosquitto_sub", version, &["-i", "reader", "-C", "1", "-W", "30"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&seen.stdout), "warm\n", "{version}");
        let other = if level == 4 { "mqttv5" } else { "mqttv311" };
        assert!(!publish(other).status().unwrap().success(), "{other} over a route of {version}");
    }
}

#[test]
fn a_real_client_of_redis_goes_through() {
    let redis = Redis::start(&[]).unwrap();
    let gateway = Gateway::start(SIGMA, &tcp(json!([{ "upstream": upstream(&[redis.port()]) }]))).unwrap();
    let cli = |arguments: &[&str]| {
        let port = gateway.address().port().unwrap().to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(cli(&["set", "k", "v"]), "OK\n");
    assert_eq!(cli(&["get", "k"]), "v\n");
}

#[test]
fn a_database_as_the_page_says() {
    let (redis, dir) = (Redis::start(&[]).unwrap(), tempfile::tempdir().unwrap());
    let ports = [("6379", redis.port()), ("6380", sigma_testkit::free_port())];
    let put =
        |text: String| ports.iter().fold(text, |text, (port, free)| text.replace(port, &free.to_string()));
    let config = put(block("docs/streams.md", "yaml", "limit-conn"));
    std::fs::write(dir.path().join("sigma.yaml"), config).unwrap();
    let output = paste(dir.path(), &put(block("docs/streams.md", "sh", "redis-cli")), &[]);
    assert!(text_of(&output).contains("PONG"), "{}", text_of(&output));
}

/// `openssl s_server` with this certificate, which greets each client.
struct Server(std::process::Child);

impl Server {
    fn start(port: u16, files: &Value) -> Server {
        let child = Command::new("openssl")
            .args(["s_server", "-quiet", "-accept", &format!("127.0.0.1:{port}"), "-rev"])
            .args(["-cert", files["cert"].as_str().unwrap(), "-key", files["key"].as_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        assert!(until(PATIENCE, || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()));
        Server(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Names on one port: some whose TLS ends here, some whose node has the certificate.
#[test]
fn a_name_decides_where_tls_ends() {
    let (root, elsewhere) = (Authority::new("Root"), Authority::new("Elsewhere"));
    let (plain, dir, port) = (parrot("plain"), tempfile::tempdir().unwrap(), sigma_testkit::free_port());
    let _node = Server::start(port, &elsewhere.issue("deep.pass.test").files(dir.path(), "node"));
    let mut over_tls = upstream(&[port]);
    over_tls["scheme"] = "tls".into();
    let rest = json!({
        "ssls": [root.issue("here.test").ssl(json!({ "id": "here", "snis": ["here.test", "again.test"] }))],
        "stream_routes": [
            { "id": "here", "sni": "here.test", "upstream": upstream(&[plain.port()]) },
            { "id": "again", "sni": "again.test", "upstream": over_tls },
            { "id": "pass", "sni": "*.pass.test", "tls": "passthrough", "upstream": upstream(&[port]) },
            { "id": "h2", "alpn": ["made-up"], "sni": "here.test", "upstream": upstream(&[1]) },
        ],
    });
    let gateway = Gateway::start(SIGMA, &config(json!({ "stream": "tls" }), rest)).unwrap();
    run(async {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let ours = root.client(None);
        let mut stream = shake(&gateway, &ours, "here.test").await.unwrap();
        let mut greeting = [0; 7];
        stream.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting, b"plain\r\n");
        stream.write_all(b"bye").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "bye");
        // TLS ends here, and begins again towards the node, which turns lines around.
        let reversed = async |client, name| {
            let mut stream = shake(&gateway, client, name).await.unwrap();
            stream.write_all(b"abc\n").await.unwrap();
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).await.unwrap();
            answer
        };
        let root_client = root.client(None);
        let elsewhere_client = elsewhere.client(None);
        // The certificate of the ssl is for one name only.
        assert!(shake(&gateway, &root_client, "again.test").await.is_err());
        assert_eq!(&reversed(&elsewhere_client, "deep.pass.test").await, b"cba\n");
        assert!(
            shake(&gateway, &root_client, "deep.pass.test").await.is_err(),
            "it is the node's certificate"
        );
        assert!(shake(&gateway, &root_client, "nobody.test").await.is_err());
    });
}

#[test]
fn a_client_without_its_certificate_gets_no_session() {
    let (root, clients) = (Authority::new("Root"), Authority::new("Clients"));
    let origin = parrot("one");
    // The paths that a request may be for without a certificate are no paths of a session.
    let client = json!({ "ca": clients.pem, "depth": 1, "skip_mtls_uri_regex": ["/.*"] });
    let rest = json!({
        "ssls": [root.issue("a.test").ssl(json!({ "id": "a", "snis": ["a.test"], "client": client }))],
        "stream_routes": [{ "sni": "a.test", "upstream": upstream(&[origin.port()]) }],
    });
    let gateway = Gateway::start(SIGMA, &config(json!({ "stream": "tls" }), rest)).unwrap();
    run(async {
        use tokio::io::AsyncReadExt;
        let greeting = async |own| {
            let client = root.client(own);
            let Ok(mut stream) = shake(&gateway, &client, "a.test").await else { return String::new() };
            let mut bytes = [0; 5];
            match stream.read_exact(&mut bytes).await {
                Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
                Err(_) => String::new(),
            }
        };
        let (good, bad) = (clients.issue("me"), root.issue("me"));
        assert_eq!(greeting(Some(&good)).await, "one\r\n");
        assert_eq!(greeting(None).await, "");
        assert_eq!(greeting(Some(&bad)).await, "");
    });
}

#[test]
fn the_admin_api_changes_the_served_routes() {
    let (one, two) = (parrot("one"), parrot("two"));
    let rest = json!({
        "store": { "kind": "embedded", "path": "{dir}/store" },
        "admin": { "address": "{admin}", "keys": [{ "name": "admin", "key": "stream-admin-key", "role": "admin" }] },
    });
    let gateway = Gateway::start(SIGMA, &config(json!({ "stream": "tcp" }), rest)).unwrap();
    let admin = Operator::new(gateway.admin_address()).with_key("stream-admin-key");
    assert!(is_closed(&gateway), "no route is there yet");
    admin.put("upstreams/db", &upstream(&[one.port()])).unwrap();
    admin.put("stream_routes/1", &json!({ "upstream_id": "db" })).unwrap();
    assert!(until(PATIENCE, || !is_closed(&gateway)));
    assert_eq!(talk(&gateway, "x").0, "one");
    admin.put("upstreams/db", &upstream(&[two.port()])).unwrap();
    assert!(until(PATIENCE, || greeting(&gateway) == "two"));
    // One that cannot be served keeps its place: no session slips past it to the next.
    let answer = admin.call(
        "PUT",
        "/apisix/admin/stream_routes/1",
        Some(&json!({ "upstream_id": "db", "plugins": { "key-auth": {} } })),
    );
    let answer = answer.unwrap();
    assert_eq!((answer.status(), answer.text().contains("unknown plugin [key-auth]")), (400, true));
    assert_eq!(talk(&gateway, "x").0, "two");
    assert_eq!(admin.call("DELETE", "/apisix/admin/stream_routes/1", None).unwrap().status(), 200);
    assert!(until(PATIENCE, || is_closed(&gateway)));
}

/// A plugin of the service that only requests have would be missed.
#[test]
fn a_services_guards_are_not_left_out() {
    let origin = parrot("one");
    let text = |plugins: Value| {
        let rest = json!({
            "services": [{ "id": "s", "plugins": plugins, "upstream": upstream(&[origin.port()]) }],
            "stream_routes": [{ "id": "r", "service_id": "s" }],
        });
        config(json!({ "stream": "tcp" }), rest)
    };
    let gateway = Gateway::start(SIGMA, &text(json!({ "ip-restriction": { "whitelist": ["127.0.0.1"] } })));
    let gateway = gateway.unwrap();
    assert_eq!(talk(&gateway, "x").0, "one");
    gateway.rewrite(&text(json!({ "ip-restriction": { "whitelist": ["192.0.2.1"] } }))).unwrap();
    gateway.reload().unwrap();
    assert!(until(PATIENCE, || is_closed(&gateway)));
    gateway.rewrite(&text(json!({ "key-auth": {} }))).unwrap();
    gateway.reload().unwrap();
    gateway.await_log("plugin key-auth of its service needs requests");
    assert!(is_closed(&gateway), "what was served before goes on");
}

#[test]
fn proxies_say_who_the_client_is_and_the_log_has_it() {
    let origin = Origin::scripted().unwrap();
    let mut upstream = upstream(&[origin.port()]);
    upstream["proxy_protocol"] = "v1".into();
    let format = "$remote_addr $protocol $status $bytes_received $bytes_sent $upstream_addr $route_id";
    let rest = json!({
        "access_log": { "path": "stdout", "stream_format": format, "flush_ms": 100 },
        "stream_routes": [{ "id": "r", "remote_addr": "192.0.2.7", "upstream": upstream }],
    });
    let listener = json!({ "stream": "tcp", "proxy_protocol": { "trusted": ["127.0.0.1"] } });
    let gateway = Gateway::start(SIGMA, &config(listener, rest)).unwrap();
    let mut client = gateway.connect().unwrap();
    client.send("PROXY TCP4 192.0.2.7 192.0.2.1 4000 5432\r\nhello").unwrap();
    let mut node = origin.accept().unwrap();
    assert_eq!(node.read_line().unwrap().trim_end(), "PROXY TCP4 192.0.2.7 192.0.2.1 4000 5432");
    assert_eq!(node.read_exactly(5).unwrap(), b"hello");
    node.send("bye").unwrap();
    drop(node);
    assert_eq!(client.read_exactly(3).unwrap(), b"bye");
    drop(client);
    let line = format!("192.0.2.7 TCP 200 5 3 127.0.0.1:{} r\n", origin.port());
    assert!(until(PATIENCE, || gateway.stdout().contains(&line)), "{line} {}", gateway.stdout());
}

/// Hundreds of sessions that come and go at the same time leave nothing behind.
#[test]
fn many_sessions_at_a_time() {
    let origin = parrot("one");
    let gateway = Gateway::start(SIGMA, &tcp(json!([{ "upstream": upstream(&[origin.port()]) }]))).unwrap();
    let (gateway, served) = (Arc::new(gateway), Arc::new(AtomicUsize::new(0)));
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                for n in 0..15 {
                    let sent = format!("message {n}");
                    assert_eq!(talk(&gateway, &sent).1, sent);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(served.load(Ordering::Relaxed), 300);
    let status = Operator::new(gateway.status_address());
    let is_quiet = || {
        let page = status.call("GET", "/status/counters", None).unwrap().text();
        page.lines().any(|line| line.starts_with("sigma_stream_sessions_active") && line.ends_with(" 0"))
    };
    assert!(until(PATIENCE, is_quiet));
}

/// A client that never sends its first message is closed after a time.
#[test]
fn sessions_without_tls_are_closed() {
    let origin = parrot("one");
    let rest = json!({ "stream_routes": [{ "sni": "a.test", "upstream": upstream(&[origin.port()]) }] });
    let tls = json!({ "handshake_timeout_ms": 300, "hello_bytes": 1024 });
    let gateway = Gateway::start(SIGMA, &config(json!({ "stream": "tls", "tls": tls }), rest)).unwrap();
    let Address::Tcp(address) = gateway.address() else { panic!("a TCP listener") };
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff\x01", &[0x16; 4096]] {
        let mut socket = std::net::TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = std::io::Write::write_all(&mut socket, bytes);
        let mut rest = Vec::new();
        // An alert may come; the greeting of the node does not.
        let _ = socket.read_to_end(&mut rest);
        assert!(!rest.windows(3).any(|three| three == b"one"), "{rest:?}");
    }
    assert_eq!(origin.connections(), 0);
}

/// One file has both: neither replaces the other, also after a reload.
#[test]
fn requests_and_sessions_are_served_side_by_side() {
    let (node, web) = (parrot("one"), Origin::echo("web").unwrap());
    let port = sigma_testkit::free_port();
    let with = |routes: usize| {
        let route = |number: usize| json!({ "uri": format!("/{number}"), "upstream": upstream_of(&web) });
        let streams =
            [5_000, port].map(|port| json!({ "server_port": port, "upstream": upstream(&[node.port()]) }));
        json!({
            "listeners": [{ "address": "{listen}" }, { "address": format!("127.0.0.1:{port}"), "stream": "tcp" }],
            "routes": (0..routes).map(route).collect::<Vec<_>>(),
            "stream_routes": streams,
        })
        .to_string()
    };
    let gateway = Gateway::start(SIGMA, &with(2)).unwrap();
    let status = |path: &str| gateway.connect().unwrap().get(path).unwrap().status();
    let greets = || {
        let mut session = sigma_testkit::Peer::connect(&Address::loopback(port)).unwrap();
        session.read_line().unwrap().trim_end() == "one"
    };
    assert_eq!([status("/0"), status("/1"), status("/2")], [200, 200, 404]);
    assert!(greets());
    gateway.rewrite(&with(3)).unwrap();
    gateway.reload().unwrap();
    assert!(until(PATIENCE, || status("/2") == 200));
    assert_eq!([status("/0"), status("/1")], [200, 200]);
    assert!(greets());
}

fn upstream_of(origin: &Origin) -> Value {
    json!({ "nodes": { format!("127.0.0.1:{}", origin.port()): 1 } })
}
