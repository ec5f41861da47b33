//! Fields of responses about their way: `Proxy-Status`, `Server-Timing`.

use std::net::TcpListener;

use serde_json::{Value, json};
use sigma_testkit::{Dns, Gateway, Message, Origin, RecordKind, free_port, until};

use crate::tls::{Authority, config, to_origin};
use crate::{PATIENCE, SIGMA};

/// A gateway with these settings and a route to this port.
fn gateway(settings: &str, port: u16, rest: &str) -> Gateway {
    let config = format!(
        "listeners:\n  - address: \"{{listen}}\"\n{settings}\nroutes:\n  - id: only\n    uri: /here*\n    methods: [GET, POST]\n    {rest}\n    upstream:\n      retries: 0\n      timeout: {{ connect: 1, send: 1, read: 1 }}\n      nodes:\n        \"127.0.0.1:{port}\": 1\n"
    );
    Gateway::start(SIGMA, &config).unwrap()
}

fn ask(gateway: &Gateway, line: &str, fields: &str) -> Message {
    gateway.connect().unwrap().ask(format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).unwrap()
}

/// The gateway's own fields in its response.
fn told(gateway: &Gateway, line: &str, fields: &str) -> (u16, String) {
    let answer = ask(gateway, line, fields);
    (answer.status(), answer.head.get("proxy-status").unwrap_or_default().to_owned())
}

const NAMED: &str = "proxy_status: edge";

#[test]
fn each_failure_has_its_type() {
    let check = |port: u16, settings: &str, line: &str, fields: &str, status: u16, error: &str| {
        let gateway = gateway(settings, port, "");
        let (found, field) = told(&gateway, line, fields);
        assert_eq!(found, status, "{line}");
        let begin = format!("edge; error={error}; details=\"");
        assert!(field.starts_with(&begin) && field.ends_with('"'), "{line}: {field}");
    };
    let nobody = free_port();
    let of_client = [
        ("GET /there", "", 404, "destination_not_found"),
        ("CONNECT h:80", "", 405, "http_request_denied"),
        ("GET /here", "X: \u{1}\r\n", 400, "http_request_error"),
        ("GET /here", "Expect: 200-ok\r\n", 417, "http_request_error"),
        ("GET /here", "", 502, "connection_refused"),
    ];
    for (line, fields, status, error) in of_client {
        check(nobody, NAMED, line, fields, status, error);
    }
    let small = "proxy_status: edge\nlimits: { request_line_bytes: 64, request_body_bytes: 1 }";
    check(nobody, small, &format!("GET /here{}", "a".repeat(100)), "", 414, "http_request_error");
    check(nobody, small, "POST /here", "Content-Length: 2\r\n", 413, "http_request_error");
    // The node does not accept: the response is late, without a connection.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    check(mute.local_addr().unwrap().port(), NAMED, "GET /here", "", 504, "http_response_timeout");
    let answering = |answer: &'static str| Origin::answer(move |_| answer.as_bytes().to_vec()).unwrap();
    let odd = answering("SMTP ready\r\n\r\n");
    check(odd.port(), NAMED, "GET /here", "", 502, "http_protocol_error");
    let large = answering(
        "HTTP/1.1 200 OK\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n\r\n",
    );
    let tight = "proxy_status: edge\nlimits: { response_head_bytes: 60 }";
    check(large.port(), tight, "GET /here", "", 502, "http_response_header_section_size");
    let closing = Origin::serve(|mut peer| drop(peer.read_request())).unwrap();
    check(closing.port(), NAMED, "GET /here", "", 502, "connection_terminated");
}

/// The response, the access line and the counters of a request that reached no node.
fn unreached(upstream: Value, settings: Value, status: u16, error: &str) {
    let mut whole = json!({
        "workers": 1, "listeners": ["{listen}"], "status": { "address": "{status}" },
        "access_log": { "path": "stdout", "format": "fault=$fault", "flush_ms": 100 }, "proxy_status": "edge",
        "routes": [{ "id": "all", "uri": "/*", "upstream": upstream }],
    });
    whole.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    let gateway = Gateway::start(SIGMA, &whole.to_string()).unwrap();
    // The records are missing at first; a silent name server is still waited for then.
    let is_told = || {
        let (found, field) = told(&gateway, "GET /here", "");
        assert_eq!(found, status, "{field}");
        field.starts_with(&format!("edge; error={error}; details=\""))
    };
    assert!(until(PATIENCE, is_told), "{error}: {:?}", told(&gateway, "GET /here", ""));
    assert!(until(PATIENCE, || gateway.stdout().contains(&format!("fault={error}\n"))), "{error}");
    assert!(gateway.counter(&format!("sigma_faults_total{{kind=\"{error}\"}}")) > 0);
}

#[test]
fn a_node_without_a_tls_session_differs_from_one_that_refuses() {
    let (root, other) = (Authority::new("Root"), Authority::new("Other"));
    let (origin, dir) = (Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let tls = root.issue("h").files(dir.path(), "h");
    let node =
        Gateway::start(SIGMA, &config(json!({ "certificates": [tls] }), to_origin(&origin), json!({})))
            .unwrap();
    let to = |port: u16, tls: Value| json!({ "nodes": { format!("127.0.0.1:{port}"): 1 }, "scheme": "https", "retries": 0, "tls": tls });
    let (port, trusting_other) = (node.address().port().unwrap(), json!({ "verify": true, "ca": other.pem }));
    unreached(to(port, trusting_other.clone()), json!({}), 502, "tls_certificate_error");
    let mut by_name = to(port, json!({ "verify": true, "ca": root.pem }));
    by_name["pass_host"] = "rewrite".into();
    by_name["upstream_host"] = "another.test".into();
    unreached(by_name, json!({}), 502, "tls_certificate_error");
    // HTTP/2 that several exchanges wait for fails for all of them with the same kind.
    let mut shared = to(port, trusting_other);
    shared["scheme"] = "grpcs".into();
    unreached(shared, json!({}), 502, "tls_certificate_error");
    let plain = Origin::serve(|mut peer| {
        peer.send("HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        drop(peer.read_to_close());
    });
    unreached(to(plain.unwrap().port(), json!({})), json!({}), 502, "tls_protocol_error");
    let closing = Origin::serve(drop).unwrap();
    unreached(to(closing.port(), json!({})), json!({}), 502, "tls_protocol_error");
    // An alert: handshake_failure.
    let refusing = Origin::serve(|mut peer| {
        peer.send(b"\x15\x03\x03\x00\x02\x02\x28").unwrap();
        drop(peer.read_to_close());
    });
    unreached(to(refusing.unwrap().port(), json!({})), json!({}), 502, "tls_alert_received");
}

#[test]
fn faults_of_a_nodes_certificate_are_reported_and_logged_once() {
    let (root, other) = (Authority::new("Root"), Authority::new("Other"));
    let (origin, dir) = (Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    for (at, (issued, trusted, name, reason)) in [
        (root.issue("h"), &other, "h", "the node's certificate is not issued by a trusted authority"),
        (root.issue("h"), &root, "another.test", "the node's certificate is for another name"),
        (root.issue_within("h", 2000..2001), &root, "h", "the node's certificate has expired"),
        (root.issue_within("h", 4000..4001), &root, "h", "the node's certificate is not valid yet"),
    ]
    .into_iter()
    .enumerate()
    {
        let files = issued.files(dir.path(), &format!("h{at}"));
        let tls = json!({ "certificates": [files] });
        let node = Gateway::start(SIGMA, &config(tls, to_origin(&origin), json!({}))).unwrap();
        let port = node.address().port().unwrap();
        let upstream = json!({
            "nodes": { format!("127.0.0.1:{port}"): 1 }, "scheme": "https", "retries": 0,
            "pass_host": "rewrite", "upstream_host": name, "tls": { "verify": true, "ca": trusted.pem },
        });
        let whole = json!({
            "workers": 1, "listeners": ["{listen}"],
            "routes": [{ "id": "all", "uri": "/*", "upstream": upstream }],
        });
        let gateway = Gateway::start(SIGMA, &whole.to_string()).unwrap();
        for _ in 0..3 {
            let response = gateway.connect().unwrap().get("/").unwrap();
            let (status, text) = (response.status(), response.text());
            assert!(status == 502 && text.contains("tls_certificate_error"), "{text}");
            assert!(text.contains(reason), "{reason}: {text}");
        }
        let log = gateway.stderr();
        // In addition to the lines about the requests there is one about the node.
        let about_node =
            log.lines().filter(|line| line.contains(reason) && !line.contains("a request failed"));
        assert_eq!(about_node.count(), 1, "{reason}: {log}");
        assert!(log.contains(&format!("127.0.0.1:{port}")), "{log}");
    }
}

#[test]
fn a_name_without_an_address_differs_from_no_node() {
    let settings = |names: &Dns| json!({ "dns": { "servers": [names.address().to_string()] } });
    let named = json!({ "nodes": { "node.sigma.test:80": 1 } });
    let without = Dns::start().unwrap();
    unreached(named.clone(), settings(&without), 503, "dns_error");
    let silent = Dns::start().unwrap();
    silent.silence(&[RecordKind::A, RecordKind::Aaaa]);
    unreached(named, settings(&silent), 503, "dns_timeout");
    // A service in DNS lacks its records; a registry has services, not names.
    let service = json!({ "discovery_type": "dns", "service_name": "service.sigma.test:80" });
    let registry =
        |names: &Dns| json!({ "discovery": { "dns": { "servers": [names.address().to_string()] } } });
    unreached(service.clone(), registry(&without), 503, "dns_error");
    unreached(service, registry(&silent), 503, "dns_timeout");
    // An upstream without a node lacks no name.
    unreached(json!({ "nodes": {} }), settings(&without), 503, "destination_unavailable");
}

/// Cleartext HTTP/2 has prior knowledge: a node that answers otherwise has not refused the connection.
#[test]
fn a_node_without_http2_differs_from_one_that_refuses() {
    let to =
        |port: u16| json!({ "nodes": { format!("127.0.0.1:{port}"): 1 }, "scheme": "grpc", "retries": 0 });
    let older =
        Origin::answer(|_| b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec()).unwrap();
    unreached(to(older.port()), json!({}), 502, "http_protocol_error");
    let closing = Origin::serve(drop).unwrap();
    unreached(to(closing.port()), json!({}), 502, "http_protocol_error");
    unreached(to(free_port()), json!({}), 502, "connection_refused");
}

#[test]
fn answers_of_plugins_differ_from_answers_of_nodes() {
    let origin = Origin::echo("a").unwrap();
    let limited = "plugins: { ip-restriction: { blacklist: [127.0.0.1] } }";
    let refusing = gateway(NAMED, origin.port(), limited);
    assert_eq!(told(&refusing, "GET /here", ""), (403, "edge; error=proxy_internal_response".into()));
    let open = gateway(NAMED, origin.port(), "");
    assert_eq!(told(&open, "GET /here", ""), (200, String::new()));
    // Without a name nothing is added.
    let silent = gateway("", origin.port(), limited);
    assert_eq!(told(&silent, "GET /here", ""), (403, String::new()));
    assert_eq!(told(&silent, "GET /there", ""), (404, String::new()));
    // A name that is no token of structured fields is a string.
    let numbered = gateway("proxy_status: \"7.example\"", origin.port(), limited);
    assert_eq!(told(&numbered, "GET /here", "").1, "\"7.example\"; error=proxy_internal_response");
}

#[test]
fn times_are_reported_where_they_are_enabled() {
    let node = "HTTP/1.1 200 OK\r\nServer-Timing: db;dur=5\r\nContent-Length: 0\r\n\r\n";
    let origin = Origin::answer(move |_| node.as_bytes().to_vec()).unwrap();
    let timings = |gateway: &Gateway, path: &str| -> Vec<String> {
        let answer = ask(gateway, &format!("GET {path}"), "");
        answer.head.all("server-timing").map(str::to_owned).collect()
    };
    let durations = |field: &str| -> Vec<(String, f64)> {
        let entries = field.split(", ").map(|entry| entry.split_once(";dur=").unwrap());
        entries.map(|(name, ms)| (name.to_owned(), ms.parse().unwrap())).collect()
    };
    let open = gateway("server_timing: true", origin.port(), "");
    let [of_node, own] = &timings(&open, "/here")[..] else { panic!() };
    assert_eq!(of_node, "db;dur=5");
    let [(total, all), (upstream, waited)] = &durations(own)[..] else { panic!("{own}") };
    assert_eq!((&total[..], &upstream[..]), ("total", "upstream"));
    assert!(all >= waited && *waited > 0.0, "{own}");
    let [own] = &timings(&open, "/there")[..] else { panic!() };
    assert!(matches!(&durations(own)[..], [(name, _)] if name == "total"), "{own}");
    let silent = gateway("", origin.port(), "");
    assert_eq!(timings(&silent, "/here"), ["db;dur=5"]);
}
