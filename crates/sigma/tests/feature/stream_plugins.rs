//! Reports of plugins about sessions: metrics, and lines to syslog servers. And which plugins sessions may
//! have.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sigma_testkit::{Address, Gateway, Origin, Peer, free_port, until};

use crate::streams::{config, is_closed, parrot, talk, upstream};
use crate::tls::Authority;
use crate::{PATIENCE, SIGMA};

/// One route with these plugins, and these settings.
fn with_plugins(origin: &Origin, plugins: Value, settings: Value) -> String {
    let mut rest = settings;
    rest["stream_routes"] = json!([{ "id": "r", "name": "database", "plugins": plugins, "upstream": upstream(&[origin.port()]) }]);
    config(json!({ "stream": "tcp" }), rest)
}

/// `promtool` reads the page; it may advise other names than APISIX's.
fn promtool_reads(page: &str) {
    let mut tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    tool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let advice = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{advice}\n{page}");
    assert!(advice.lines().all(|line| !line.contains("stream_") || line.contains("_total")), "{advice}");
}

#[test]
fn sessions_are_shown_to_prometheus() {
    let (origin, port) = (parrot("one"), free_port());
    let settings = json!({ "plugin_attr": { "prometheus": { "export_addr": { "port": port } } } });
    let text = |plugins: Value| with_plugins(&origin, plugins, settings.clone());
    let gateway = Gateway::start(SIGMA, &text(json!({ "prometheus": {} }))).unwrap();
    let scraped = || {
        let mut peer = Peer::connect(&Address::loopback(port)).unwrap();
        peer.get("/apisix/prometheus/metrics").unwrap().text()
    };
    let number = |page: &str, series: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |number| number.parse::<u64>().unwrap())
    };
    let listener = format!("listen_addr=\"127.0.0.1:{}\"", gateway.address().port().unwrap());
    let bytes = |kind, side| format!("apisix_stream_bandwidth{{{listener},type=\"{kind}\",side=\"{side}\"}}");
    let active = format!("apisix_stream_active_connections{{{listener}}}");

    // While a session is open it is seen, and so are its bytes.
    let mut held = gateway.connect().unwrap();
    held.read_line().unwrap();
    held.send("hello").unwrap();
    let is_seen = || {
        let page = scraped();
        number(&page, &active) >= 1 && number(&page, &bytes("ingress", "downstream")) >= 5
    };
    assert!(until(PATIENCE, is_seen), "{}", scraped());
    held.half_close().unwrap();
    held.read_to_close().unwrap();
    drop(held);

    let node = format!("127.0.0.1:{}", origin.port());
    let status =
        |code: u16, node: &str| format!("apisix_stream_status{{code=\"{code}\",{listener},node=\"{node}\"}}");
    let routed = "apisix_stream_connection_total{route=\"r\"}";
    let before = number(&scraped(), routed);
    assert_eq!(talk(&gateway, "x").1, "x");
    assert!(until(PATIENCE, || number(&scraped(), routed) > before), "{}", scraped());
    let page = scraped();
    assert!(number(&page, &status(200, &node)) >= 1, "{page}");
    assert!(number(&page, &bytes("egress", "upstream")) >= 6, "{page}");
    assert_eq!(number(&page, &bytes("egress", "downstream")), number(&page, &bytes("ingress", "upstream")));
    promtool_reads(&page);

    // Sessions that a plugin closes are counted with its status, under the name if that is requested.
    let refused =
        json!({ "prometheus": { "prefer_name": true }, "ip-restriction": { "blacklist": ["127.0.0.1"] } });
    gateway.rewrite(&text(refused)).unwrap();
    gateway.reload().unwrap();
    assert!(until(PATIENCE, || is_closed(&gateway)));
    assert!(until(PATIENCE, || number(&scraped(), &status(403, "")) >= 1), "{}", scraped());
    assert!(number(&scraped(), "apisix_stream_connection_total{route=\"database\"}") >= 1);
    assert!(until(PATIENCE, || number(&scraped(), &active) == 0), "{}", scraped());
}

/// The parts of a line: the text before the entry, and the entry.
fn parsed(line: &str) -> (Vec<String>, Value) {
    let mut parts = line.splitn(8, ' ');
    let head = parts.by_ref().take(7).map(str::to_owned).collect();
    (head, serde_json::from_str(parts.next().unwrap_or_default()).unwrap_or_else(|_| panic!("{line}")))
}

/// Checks the line of a session, for any transport.
fn check_session(line: &str, gateway: &Gateway, origin: &Origin) {
    let (head, entry) = parsed(line);
    let pid = gateway.pid().to_string();
    assert_eq!((&*head[0], &*head[2], &*head[3], &*head[4]), ("<46>1", "-", "apisix", &*pid));
    assert!(head[1].len() == 24 && head[1].ends_with('Z'), "{line}");
    let expected = json!({
        "client": "127.0.0.1", "status": 200, "node": format!("127.0.0.1:{}", origin.port()),
        "got": 5, "fixed": 7, "route_id": "r",
    });
    assert_eq!(entry, expected);
}

fn format() -> Value {
    json!({
        "client": "$remote_addr", "status": "$status", "node": "$upstream_addr",
        "got": "$bytes_received", "fixed": 7, "absent": "$ssl_protocol",
    })
}

fn syslog(port: u16, more: Value) -> Value {
    let mut conf = json!({ "host": "127.0.0.1", "port": port, "batch_max_size": 1, "log_format": format() });
    conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "syslog": conf })
}

/// A server over TCP, which keeps the lines that it gets. It closes a connection after so many about sessions
/// that sent five bytes: the times of others are not known.
fn collector(most: usize) -> (u16, Arc<Mutex<Vec<String>>>) {
    let (server, lines) = (TcpListener::bind("127.0.0.1:0").unwrap(), Arc::<Mutex<Vec<String>>>::default());
    let (port, kept) = (server.local_addr().unwrap().port(), Arc::clone(&lines));
    std::thread::spawn(move || {
        for socket in server.incoming().map_while(Result::ok) {
            let kept = Arc::clone(&kept);
            std::thread::spawn(move || {
                let (mut reader, mut left) = (Some(BufReader::new(socket)), most);
                while let Some(open) = &mut reader {
                    let mut line = String::new();
                    if open.read_line(&mut line).unwrap_or(0) == 0 {
                        break;
                    }
                    left -= usize::from(is_of_the_session(line.trim_end()));
                    // A reader of the line sees the connection closed.
                    reader = reader.filter(|_| left > 0);
                    kept.lock().unwrap().push(line.trim_end().to_owned());
                }
            });
        }
    });
    (port, lines)
}

/// Whether a line is about the session that sent five bytes: the harness makes others.
fn is_of_the_session(line: &str) -> bool {
    parsed(line).1["got"] == 5
}

/// Three sessions, one after the other, and the lines about them.
fn check_over_tcp(lines_of_a_connection: usize) {
    let (origin, (port, lines)) = (parrot("one"), collector(lines_of_a_connection));
    let text = with_plugins(&origin, syslog(port, json!({})), json!({}));
    let gateway = Gateway::start(SIGMA, &text).unwrap();
    for count in 1..4 {
        assert_eq!(talk(&gateway, "12345").1, "12345");
        let told = || {
            let lines = lines.lock().unwrap();
            lines.iter().filter(|line| is_of_the_session(line)).cloned().collect::<Vec<String>>()
        };
        assert!(until(PATIENCE, || told().len() == count), "{:?} {}", told(), gateway.stderr());
        check_session(&told()[count - 1], &gateway, &origin);
    }
}

#[test]
fn a_syslog_server_gets_sessions_over_tcp() {
    check_over_tcp(usize::MAX);
}

/// A connection that was closed meanwhile is noticed before a line is lost on it.
#[test]
fn a_syslog_server_that_went_away_is_found_again() {
    check_over_tcp(1);
}

#[test]
fn a_syslog_server_gets_sessions_over_udp() {
    let (origin, server) = (parrot("one"), UdpSocket::bind("127.0.0.1:0").unwrap());
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    // The format of the metadata is as good as one's own.
    let mut plugins = syslog(server.local_addr().unwrap().port(), json!({ "sock_type": "udp" }));
    plugins["syslog"].as_object_mut().unwrap().remove("log_format");
    let metadata = json!({ "plugin_metadata": [{ "id": "syslog", "log_format": format() }] });
    let gateway = Gateway::start(SIGMA, &with_plugins(&origin, plugins, metadata)).unwrap();
    assert_eq!(talk(&gateway, "12345").1, "12345");
    let mut datagram = [0; 2048];
    let line = loop {
        let n = server.recv(&mut datagram).unwrap();
        let line = String::from_utf8(datagram[..n].to_vec()).unwrap();
        if is_of_the_session(&line) {
            break line;
        }
    };
    assert!(!line.ends_with('\n'));
    check_session(&line, &gateway, &origin);
}

/// `openssl s_server`, whose output is its input.
pub(crate) struct TlsServer {
    child: Child,
    output: std::path::PathBuf,
}

impl TlsServer {
    pub(crate) fn start(port: u16, files: &Value, dir: &std::path::Path) -> TlsServer {
        let output = dir.join("lines");
        let child = Command::new("openssl")
            .args(["s_server", "-quiet", "-accept", &format!("127.0.0.1:{port}")])
            .args(["-cert", files["cert"].as_str().unwrap(), "-key", files["key"].as_str().unwrap()])
            .stdin(Stdio::piped())
            .stdout(std::fs::File::create(&output).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let accepts = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        assert!(until(PATIENCE, accepts), "openssl s_server does not accept on port {port}");
        TlsServer { child, output }
    }

    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap()
    }

    fn lines(&self) -> Vec<String> {
        let text = self.text();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(str::to_owned).collect()
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_syslog_server_gets_lines_over_tls_and_is_verified_on_request() {
    let (origin, root, dir) = (parrot("one"), Authority::new("Root"), tempfile::tempdir().unwrap());
    let port = free_port();
    let server = TlsServer::start(port, &root.issue("logs.test").files(dir.path(), "logs"), dir.path());
    let retried = json!({ "tls": true, "max_retry_count": 1000, "retry_delay": 0 });
    let mut plugins = syslog(port, retried);
    let gateway = Gateway::start(SIGMA, &with_plugins(&origin, plugins.clone(), json!({}))).unwrap();
    assert_eq!(talk(&gateway, "12345").1, "12345");
    let has_come = || server.lines().iter().any(|line| is_of_the_session(line));
    assert!(until(PATIENCE, has_come), "{:?} {}", server.lines(), gateway.stderr());
    // The system trusts no authority of a test.
    (plugins["syslog"]["ssl_verify"], plugins["syslog"]["max_retry_count"]) = (true.into(), 0.into());
    gateway.rewrite(&with_plugins(&origin, plugins, json!({}))).unwrap();
    gateway.reload().unwrap();
    let is_refused = || {
        talk(&gateway, "x");
        gateway.stderr().contains("failed to perform TLS handshake to TCP server")
    };
    assert!(until(PATIENCE, is_refused), "{}", gateway.stderr());
}

/// The same plugin on requests: its lines have the Host, and the usual entry.
#[test]
fn a_syslog_server_gets_requests() {
    let (origin, server) = (Origin::echo("a").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let syslog = json!({
        "host": "127.0.0.1", "port": server.local_addr().unwrap().port(), "sock_type": "udp", "inactive_timeout": 1,
    });
    let text = json!({
        "listeners": [{ "address": "{listen}" }],
        "routes": [{
            "id": "r", "uri": "/*", "plugins": { "syslog": syslog },
            "upstream": { "nodes": { origin.address().to_string(): 1 } },
        }],
    });
    let gateway = Gateway::start(SIGMA, &text.to_string()).unwrap();
    let mut peer = gateway.connect().unwrap();
    peer.ask("GET /orders?a=b HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
    let mut datagram = [0; 8192];
    let n = server.recv(&mut datagram).unwrap();
    let (head, entry) = parsed(std::str::from_utf8(&datagram[..n]).unwrap());
    assert_eq!((&*head[0], &*head[2], &*head[3]), ("<46>1", "shop.test", "apisix"));
    assert_eq!((&entry["request"]["uri"], &entry["route_id"]), (&json!("/orders?a=b"), &json!("r")));
}

/// Without a format there is nothing to say, and the error log has it.
#[test]
fn without_a_format_nothing_is_sent() {
    let (origin, server) = (parrot("one"), UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut plugins = syslog(server.local_addr().unwrap().port(), json!({ "sock_type": "udp" }));
    plugins["syslog"].as_object_mut().unwrap().remove("log_format");
    let gateway = Gateway::start(SIGMA, &with_plugins(&origin, plugins, json!({}))).unwrap();
    assert_eq!(talk(&gateway, "12345").1, "12345");
    gateway.await_log("syslog's log_format is not set");
    gateway.stop().unwrap();
    server.set_nonblocking(true).unwrap();
    assert!(server.recv(&mut [0; 16]).is_err(), "the gateway has ended, and sent nothing");
}

#[test]
fn sessions_may_have_the_plugins_that_are_named_for_them() {
    let origin = parrot("one");
    let dir = tempfile::tempdir().unwrap();
    let check = |settings: Value, expected: &str| {
        let limit = json!({ "ip-restriction": { "whitelist": ["127.0.0.1"] } });
        let text = with_plugins(&origin, limit, settings).replace("{listen}", "127.0.0.1:0");
        let (text, path) = (text.replace("{status}", "127.0.0.1:0"), dir.path().join("sigma.yaml"));
        std::fs::write(&path, text).unwrap();
        let output = Command::new(SIGMA).arg("check").arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), expected.is_empty(), "{said}");
        assert!(said.contains(expected), "{expected}: {said}");
    };
    check(json!({}), "");
    check(json!({ "stream_plugins": ["mqtt-proxy", "ip-restriction"] }), "");
    check(json!({ "stream_plugins": ["mqtt-proxy"] }), "unknown plugin [ip-restriction]");
    check(json!({ "stream_plugins": ["ip-restriction", "key-auth"] }), "unknown plugin [key-auth]");
    check(json!({ "stream_plugins": ["ip-restrictoin"] }), "did you mean `ip-restriction`?");
    // The list of `plugins` alone is for both, with a mark for sessions.
    check(json!({ "plugins": ["cors"] }), "unknown plugin [ip-restriction]");
    check(json!({ "plugins": ["cors", { "name": "ip-restriction", "stream": true }] }), "");
    check(json!({ "plugins": ["cors"], "stream_plugins": ["ip-restriction"] }), "");
    // The started configuration is the checked one.
    let limit = json!({ "ip-restriction": { "whitelist": ["192.0.2.1"] } });
    let settings = json!({ "plugins": ["cors"], "stream_plugins": ["ip-restriction"] });
    let gateway = Gateway::start(SIGMA, &with_plugins(&origin, limit, settings)).unwrap();
    assert!(is_closed(&gateway), "the plugin is in force");
}
