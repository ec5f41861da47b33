//! Nodes that speak FastCGI: their requests, and the results of their responses.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, Peer, free_port, until};

use crate::{PATIENCE, SIGMA};

/// A request as an application reads it.
#[derive(Debug, Clone, Default)]
struct Asked {
    params: BTreeMap<String, String>,
    body: Vec<u8>,
    keeps: bool,
}

impl Asked {
    fn get(&self, name: &str) -> Option<&str> {
        self.params.get(name).map(String::as_str)
    }
}

/// A record: its type and its content.
fn record(peer: &mut Peer) -> Option<(u8, Vec<u8>)> {
    let head = peer.read_exactly(8).ok()?;
    assert_eq!((head[0], &head[2..4]), (1, &[0, 1][..]), "no record of the first request");
    let content = peer.read_exactly(usize::from(u16::from_be_bytes([head[4], head[5]]))).ok()?;
    peer.read_exactly(head[6].into()).ok()?;
    Some((head[1], content))
}

/// The next request; None at the end.
fn asked(peer: &mut Peer) -> Option<Asked> {
    let mut asked = Asked::default();
    let (kind, begin) = record(peer)?;
    assert_eq!((kind, &begin[..2]), (1, &[0, 1][..]), "a responder is asked");
    asked.keeps = begin[2] & 1 == 1;
    loop {
        let (kind, content) = record(peer)?;
        match (kind, content.len()) {
            (4, 0) => {}
            // As PHP reads them: no pair continues in another record.
            (4, _) => read_params(&content, &mut asked.params),
            (5, 0) => return Some(asked),
            (5, _) => asked.body.extend_from_slice(&content),
            _ => panic!("a record of type {kind}"),
        }
    }
}

fn read_params(mut content: &[u8], params: &mut BTreeMap<String, String>) {
    while !content.is_empty() {
        let mut length = || {
            let short = content[0] < 0x80;
            let (digits, rest) = content.split_at(if short { 1 } else { 4 });
            content = rest;
            digits.iter().fold(0usize, |n, byte| n << 8 | usize::from(*byte)) & 0x7fff_ffff
        };
        let (name, value) = (length(), length());
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let before = params.insert(text(&content[..name]), text(&content[name..name + value]));
        assert_eq!(before, None, "a parameter comes twice");
        content = &content[name + value..];
    }
}

fn out(kind: u8, content: &[u8], padding: u8) -> Vec<u8> {
    let [high, low] = (content.len() as u16).to_be_bytes();
    let mut record = vec![1, kind, 0, 1, high, low, padding, 0];
    record.extend_from_slice(content);
    record.extend(std::iter::repeat_n(0, padding.into()));
    record
}

fn end(status: u8) -> Vec<u8> {
    out(3, &[0, 0, 0, 0, status, 0, 0, 0], 0)
}

fn answer(text: &str) -> Vec<u8> {
    [out(6, text.as_bytes(), 3), out(6, b"", 0), end(0)].concat()
}

/// An application that responds to each request by a function.
fn application(answer: impl Fn(&Asked) -> Vec<u8> + Send + Sync + 'static) -> Origin {
    Origin::serve(move |mut peer| {
        while let Some(asked) = asked(&mut peer) {
            if peer.send(answer(&asked)).is_err() || !asked.keeps {
                return;
            }
        }
    })
    .unwrap()
}

/// An application that notes its requests.
fn noting(text: &'static str) -> (Origin, Arc<Mutex<Vec<Asked>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let origin = application(move |asked| {
        notes.lock().unwrap().push(asked.clone());
        answer(text)
    });
    (origin, seen)
}

fn upstream(nodes: &[u16], more: Value) -> Value {
    let nodes: BTreeMap<String, u32> = nodes.iter().map(|port| (format!("127.0.0.1:{port}"), 1)).collect();
    let mut upstream = json!({ "nodes": nodes, "scheme": "fcgi" });
    upstream.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    upstream
}

fn gateway(upstream: Value) -> Gateway {
    let config = json!({
        "workers": 1, "listeners": ["{listen}"], "control": { "address": "{control}" },
        "routes": [{ "id": "all", "uri": "/*", "upstream": upstream }],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn get(gateway: &Gateway, target: &str) -> (u16, String) {
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    let answer = peer.ask(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n\r\n")).unwrap();
    (answer.status(), answer.text())
}

#[test]
fn an_application_gets_the_request() {
    let (origin, seen) = noting("Status: 201 Made\r\nX-A: 1\nContent-Type: text/plain\n\nhello");
    let fastcgi = json!({
        "root": "/srv", "split_path_info": "^(.+?\\.php)(/.*)?$", "https": "on",
        "params": { "APP": "$arg_a", "HTTP_X_USER": "gateway" },
    });
    let gateway = gateway(upstream(&[origin.port()], json!({ "fastcgi": fastcgi })));
    let request = "POST /b.php/c%20d?a=1&b HTTP/1.1\r\nHost: shop.test:81\r\nContent-Type: x/y\r\n\
        Content-Length: 3\r\nProxy: http://evil/\r\nX_User: forged\r\nX.User: forged\r\nX-User: forged\r\n\
        Content_Length: 9\r\nCookie: a=1\r\nAuthorization: Basic amFjazpw\r\nX-B: 1\r\nX-B: 2\r\n\
        Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\r\nxyz";
    let answered = gateway.connect().unwrap().with_deadline(PATIENCE).ask(request).unwrap();
    assert_eq!((answered.status(), answered.text()), (201, "hello".to_owned()));
    assert_eq!((answered.head.get("x-a"), answered.head.get("status")), (Some("1"), None));
    let seen = seen.lock().unwrap();
    let [asked] = &seen[..] else { panic!("{} requests", seen.len()) };
    assert_eq!(asked.body, b"xyz");
    assert!(!asked.keeps);
    let expected = [
        ("SCRIPT_FILENAME", "/srv/b.php"),
        ("SCRIPT_NAME", "/b.php"),
        ("PATH_INFO", "/c d"),
        ("DOCUMENT_URI", "/b.php/c d"),
        ("DOCUMENT_ROOT", "/srv"),
        ("REQUEST_METHOD", "POST"),
        ("REQUEST_URI", "/b.php/c%20d?a=1&b"),
        ("QUERY_STRING", "a=1&b"),
        ("CONTENT_TYPE", "x/y"),
        ("CONTENT_LENGTH", "3"),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("GATEWAY_INTERFACE", "CGI/1.1"),
        ("REMOTE_ADDR", "127.0.0.1"),
        ("SERVER_NAME", "shop.test"),
        ("HTTPS", "on"),
        ("REDIRECT_STATUS", "200"),
        ("APP", "1"),
        ("HTTP_X_USER", "gateway"),
        ("HTTP_HOST", "shop.test:81"),
        ("HTTP_COOKIE", "a=1"),
        ("HTTP_AUTHORIZATION", "Basic amFjazpw"),
        ("HTTP_X_B", "1, 2"),
        ("HTTP_X_FORWARDED_FOR", "127.0.0.1"),
    ];
    for (name, value) in expected {
        assert_eq!(asked.get(name), Some(value), "{name}");
    }
    for name in ["HTTP_PROXY", "HTTP_CONTENT_LENGTH", "HTTP_X_HOP", "HTTP_CONNECTION", "REMOTE_USER"] {
        assert_eq!(asked.get(name), None, "{name}");
    }
    assert!(!asked.params.values().any(|value| value == "forged"), "{asked:?}");
}

#[test]
fn no_script_that_was_uploaded_is_named() {
    let (origin, seen) = noting("A: b\n\n");
    let fixed = gateway(upstream(&[origin.port()], json!({ "fastcgi": { "root": "/srv" } })));
    assert_eq!(get(&fixed, "/upload.jpg/x.php").0, 200);
    assert_eq!(get(&fixed, "/upload.php").0, 200);
    let files: Vec<_> =
        seen.lock().unwrap().iter().map(|asked| asked.get("SCRIPT_FILENAME").unwrap().to_owned()).collect();
    assert_eq!(files, ["/srv/index.php", "/srv/index.php"]);
    let split = json!({ "root": "/srv", "split_path_info": "^(.+\\.php)(.*)$" });
    let split = gateway(upstream(&[origin.port()], json!({ "fastcgi": split })));
    for target in ["/upload.jpg/x.php", "/upload.jpg%2fx.php", "/a.php/upload/x.php"] {
        assert_eq!(get(&split, target).0, 404, "{target}");
    }
    assert_eq!(get(&split, "/upload.jpg/x.php%00.jpg").0, 400);
    for target in ["/../x.php", "/upload.jpg/%2e/x.php"] {
        assert_eq!(get(&split, target).0, 400, "{target}");
    }
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[test]
fn answers_come_in_any_pieces() {
    let whole = [
        out(7, b"notice: one\n", 5),
        out(6, b"Content-Ty", 6),
        out(6, b"pe: text/plain\n", 0),
        out(6, b"\nhel", 255),
        out(7, b"notice: two", 0),
        out(6, b"lo", 1),
        out(6, b"", 0),
        end(0),
    ]
    .concat();
    let origin = Origin::serve(move |mut peer| {
        while asked(&mut peer).is_some() {
            for byte in &whole {
                if peer.send([*byte]).is_err() {
                    return;
                }
            }
        }
    })
    .unwrap();
    let gateway = gateway(upstream(&[origin.port()], json!({ "fastcgi": { "keep_conn": true } })));
    for _ in 0..3 {
        assert_eq!(get(&gateway, "/"), (200, "hello".to_owned()));
    }
    assert_eq!(origin.connections(), 1, "connections are kept");
    let logged = || {
        let log = gateway.stderr();
        log.contains("an application reports an error: notice: one") && log.contains("notice: two")
    };
    assert!(until(PATIENCE, logged), "{}", gateway.stderr());
}

#[test]
fn heads_and_bodies_as_cgi_has_them() {
    let origin = application(|asked| {
        let path = asked.get("PATH_INFO").unwrap_or_default();
        let body = "x".repeat(if path == "/long" { 60_000 } else { 5 });
        match path {
            "/moved" => answer("Location: /other\n\n"),
            "/known" => answer("Content-Length: 5\n\nhello"),
            "/more" => answer("Content-Length: 5\n\nhello and more"),
            "/empty" => answer("Status: 204\n\nnothing of this"),
            "/long" => [out(6, b"A: b\n\n", 0), out(6, body.as_bytes(), 0).repeat(50), answer("")].concat(),
            _ => answer(&format!("A: b\n\n{body}")),
        }
    });
    let gateway = gateway(upstream(&[origin.port()], json!({ "fastcgi": { "keep_conn": true } })));
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    let mut ask =
        |method: &str, path: &str| peer.ask(format!("{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
    let moved = ask("GET", "/moved");
    assert_eq!((moved.status(), moved.head.get("location")), (302, Some("/other")));
    for path in ["/known", "/more"] {
        let known = ask("GET", path);
        assert_eq!((known.text().as_str(), known.head.get("content-length")), ("hello", Some("5")), "{path}");
    }
    assert_eq!((ask("GET", "/empty").status(), ask("HEAD", "/known").text().as_str()), (204, ""));
    let long = ask("GET", "/long");
    assert_eq!((long.text().len(), long.head.get("transfer-encoding")), (3_000_000, Some("chunked")));
    assert_eq!(ask("GET", "/").text(), "xxxxx");
}

#[test]
fn bodies_have_the_announced_length() {
    let origin = application(|asked| {
        answer(&format!("A: b\n\n{:?} {}", asked.get("CONTENT_LENGTH"), asked.body.len()))
    });
    let fastcgi = json!({ "unsized_body_bytes": 100_000, "keep_conn": true });
    let gateway = gateway(upstream(&[origin.port()], json!({ "fastcgi": fastcgi })));
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    let mut post = |fields: &str, body: &[u8]| {
        let mut request = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").into_bytes();
        request.write_all(body).unwrap();
        let answered = peer.ask(request).unwrap();
        (answered.status(), answered.text())
    };
    let long = vec![b'x'; 3_000_000];
    assert_eq!(post("Content-Length: 3000000\r\n", &long), (200, "Some(\"3000000\") 3000000".to_owned()));
    assert_eq!(post("", b""), (200, "None 0".to_owned()));
    assert_eq!(post("Content-Length: 0\r\n", b""), (200, "Some(\"0\") 0".to_owned()));
    let chunked =
        |bytes: usize| [format!("{bytes:x}\r\n").as_bytes(), &long[..bytes], b"\r\n0\r\n\r\n"].concat();
    let fields = "Transfer-Encoding: chunked\r\n";
    assert_eq!(post(fields, &chunked(100_000)), (200, "Some(\"100000\") 100000".to_owned()));
    assert_eq!(post(fields, &chunked(70_000)), (200, "Some(\"70000\") 70000".to_owned()));
    let (status, text) = post(fields, &chunked(100_001));
    assert_eq!(status, 413, "{text}");
}

#[test]
fn a_client_that_waits_for_leave_gets_it() {
    let origin =
        application(|asked| answer(&format!("A: b\n\n{} {:?}", asked.body.len(), asked.get("HTTP_EXPECT"))));
    let gateway = gateway(upstream(&[origin.port()], json!({})));
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    peer.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n").unwrap();
    assert_eq!(peer.read_head().unwrap().status().unwrap(), 100);
    peer.send("hello").unwrap();
    assert_eq!(peer.read_response("POST").unwrap().text(), "5 None");
}

#[test]
fn invalid_answers_are_faults_of_the_node() {
    let check = |sent: Vec<u8>, expected: u16| {
        let shown = String::from_utf8_lossy(&sent).into_owned();
        let origin = application(move |_| sent.clone());
        let gateway = gateway(upstream(&[origin.port()], json!({})));
        assert_eq!(get(&gateway, "/").0, expected, "{shown:?}");
    };
    check(b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), 502);
    check(end(0), 502);
    check(end(1), 502);
    check(end(2), 503);
    check(Vec::new(), 502);
    check([out(6, b"A: b\n", 0), end(0)].concat(), 502);
    check(answer("no field\n\n"), 502);
    check(answer("Status: 101\n\n"), 502);
    check(answer("Content-Length: 1\nContent-Length: 2\n\na"), 502);
    check([out(6, b"A: ", 0), out(6, &[b'x'; 40_000], 0).repeat(2), answer("\n\n")].concat(), 502);
    check(out(6, b"A: b\n\n", 0).into_iter().map(|byte| if byte == 1 { 9 } else { byte }).collect(), 502);
}

#[test]
fn an_answer_that_ends_too_early_is_cut() {
    for sent in [
        [out(6, b"A: b\n\nhello", 0)].concat(),
        [out(6, b"Content-Length: 9\n\nhello", 0), end(0)].concat(),
        [out(6, b"A: b\n\nhello", 0), end(2)].concat(),
    ] {
        let origin = application(move |_| sent.clone());
        let gateway = gateway(upstream(&[origin.port()], json!({})));
        let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
        assert!(peer.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").is_err(), "the answer looks whole");
    }
    // Instead of the last record it may close, once it has no more output.
    let origin = application(|_| [out(6, b"A: b\n\nhello", 0), out(6, b"", 0)].concat());
    assert_eq!(get(&gateway(upstream(&[origin.port()], json!({}))), "/"), (200, "hello".to_owned()));
}

#[test]
fn other_nodes_are_tried_and_stale_connections_replaced() {
    let served = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&served);
    // It closes each connection after one response, to any request.
    let closing = Origin::serve(move |mut peer| {
        if asked(&mut peer).is_some() {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = peer.send(answer("A: b\n\nhello"));
        }
    })
    .unwrap();
    let gateway = gateway(upstream(
        &[free_port(), closing.port()],
        json!({ "fastcgi": { "keep_conn": true }, "type": "roundrobin" }),
    ));
    for _ in 0..6 {
        assert_eq!(get(&gateway, "/"), (200, "hello".to_owned()));
    }
    assert_eq!(served.load(Ordering::SeqCst), 6);
}

#[test]
fn timeouts_breakers_and_checks_hold() {
    let silent = Origin::serve(|mut peer| drop(peer.read_to_close())).unwrap();
    let timeout = json!({ "connect": 5, "send": 5, "read": 0.1 });
    let more = json!({ "timeout": timeout, "retries": 0 });
    assert_eq!(get(&gateway(upstream(&[silent.port()], more)), "/").0, 504);

    let failing = application(|_| answer("Status: 500\n\n"));
    let breaker = json!({ "minimum_number_of_calls": 2, "failure_rate_threshold": 50, "sliding_window": 60,
        "wait_duration_in_open_state": 600 });
    let broken = gateway(upstream(&[failing.port()], json!({ "circuit_breaker": breaker })));
    let opens = || get(&broken, "/").0 == 503;
    assert!(until(PATIENCE, opens), "the breaker stays closed");
    let before = failing.connections();
    assert_eq!((get(&broken, "/").0, failing.connections()), (503, before));

    let checks = json!({ "active": { "type": "tcp", "healthy": { "interval": 1, "successes": 1 },
        "unhealthy": { "interval": 1, "tcp_failures": 1 } } });
    let well = application(|_| answer("A: b\n\nhello"));
    let nodes = [free_port(), well.port()];
    let checked = gateway(upstream(&nodes, json!({ "checks": checks })));
    let found = || {
        let _ = get(&checked, "/");
        let mut control = Peer::connect(&checked.control_address()).unwrap().with_deadline(PATIENCE);
        control.get("/v1/healthcheck").unwrap().text().contains("\"unhealthy\"")
    };
    assert!(until(PATIENCE, found), "the check finds nothing");
}

#[test]
fn nodes_are_reached_by_unix_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("php.sock");
    serve_at(&path);
    let mut upstream = upstream(&[], json!({}));
    upstream["nodes"] = json!([{ "host": format!("unix:{}", path.display()), "weight": 1 }]);
    assert_eq!(get(&gateway(upstream), "/a"), (200, "/a".to_owned()));
}

/// An application at a path that answers the path that it is requested, once.
fn serve_at(path: &Path) {
    let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let mut peer = Peer::over(sigma_testkit::Socket::Unix(socket));
        let asked = asked(&mut peer).unwrap();
        peer.send(answer(&format!("A: b\n\n{}", asked.get("PATH_INFO").unwrap()))).unwrap();
    });
}
