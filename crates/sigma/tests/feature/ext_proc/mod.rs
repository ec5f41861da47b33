//! External processors: every body mode, every failure, and bounds, with a scripted processor.

mod processor;

use sigma_testkit::{Gateway, Message, Origin, Peer, until};

use crate::{PATIENCE, SIGMA};
use processor::Processor;

/// An origin that responds with the body of the request, or `hello`; trailers where the path requests them.
fn origin() -> Origin {
    Origin::answer(|request| {
        let (method, target) = request.head.request_line().unwrap_or_default();
        let field = |name| request.head.get(name).unwrap_or("-").to_owned();
        let trailer = request.trailers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-t"));
        let trailer = trailer.map_or("-", |(_, value)| value);
        let head = format!(
            "HTTP/1.1 200 OK\r\nX-Method: {method}\r\nX-Seen: {}\r\nX-Length: {}\r\nX-Trailer: {trailer}\r\n",
            field("x-new"),
            field("content-length")
        );
        let body = if request.body.is_empty() { b"hello".to_vec() } else { request.body.clone() };
        let (head, end) = if target.contains("trailers") {
            (
                format!("{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", body.len()),
                "\r\n0\r\nX-T: 1\r\n\r\n",
            )
        } else {
            (format!("{head}Content-Length: {}\r\n\r\n", body.len()), "")
        };
        [head.as_bytes(), &body, end.as_bytes()].concat()
    })
    .unwrap()
}

/// The members of `ext-proc` for a route.
fn gateway(processor: &Processor, origin: &Origin) -> Gateway {
    let (port, origin) = (processor.node.port(), origin.port());
    let both = |mode: &str| {
        format!(
            "processing_mode: {{ request_body_mode: {mode}, response_body_mode: {mode}, request_trailer_mode: SEND, response_trailer_mode: SEND }}"
        )
    };
    let routes = [
        ("headers", String::new()),
        ("streamed", both("STREAMED")),
        ("buffered", format!("max_body_bytes: 4096, {}", both("BUFFERED"))),
        ("partial", format!("max_body_bytes: 4, {}", both("BUFFERED_PARTIAL"))),
        ("duplex", both("FULL_DUPLEX_STREAMED")),
        ("short", "message_timeout: 100".to_owned()),
        ("allow", "message_timeout: 100, failure_mode_allow: true".to_owned()),
        ("status", "status_on_error: 502".to_owned()),
        ("mode", "allow_mode_override: true".to_owned()),
        ("late-body", format!("message_timeout: 2000, {}", both("STREAMED"))),
        ("watch", format!("observability_mode: true, {}", both("STREAMED"))),
    ];
    let mut config = "listeners: [\"{listen}\"]\nroutes:\n".to_owned();
    for (name, more) in routes {
        let service = format!("grpc_service: {{ uri: \"http://127.0.0.1:{port}\" }}");
        let timeout = if more.contains("message_timeout") { "" } else { "message_timeout: 30000, " };
        config += &format!(
            "  - uri: /{name}*\n    plugins: {{ ext-proc: {{ {service}, {timeout}{more} }} }}\n    upstream: http://127.0.0.1:{origin}\n"
        );
    }
    let deaf = format!(
        "grpc_service: {{ uri: \"http://127.0.0.1:{port}\", initial_metadata: {{ x-deaf: \"1\" }} }}"
    );
    for (name, more) in [
        ("deaf", both("STREAMED")),
        (
            "deaf-watch",
            format!("observability_mode: true, deferred_close_timeout: 100, {}", both("STREAMED")),
        ),
    ] {
        config += &format!(
            "  - uri: /{name}*\n    plugins: {{ ext-proc: {{ {deaf}, message_timeout: 200, {more} }} }}\n    upstream: http://127.0.0.1:{origin}\n"
        );
    }
    config += &format!("  - uri: /honest\n    upstream: http://127.0.0.1:{origin}\n");
    config += "  - uri: /apisix/prometheus/metrics\n    plugins: { public-api: {} }\n";
    config += "plugin_attr: { prometheus: { enable_export_server: false } }\n";
    Gateway::start(SIGMA, &config).unwrap()
}

fn request(path: &str, script: &str, body: &str) -> String {
    let (method, length) = match body {
        "" => ("GET", String::new()),
        body => ("POST", format!("Content-Length: {}\r\n", body.len())),
    };
    format!("{method} {path} HTTP/1.1\r\nHost: h\r\nX-Script: {script}\r\n{length}\r\n{body}")
}

fn ask(gateway: &Gateway, path: &str, script: &str, body: &str) -> Message {
    gateway.connect().unwrap().ask(request(path, script, body)).unwrap()
}

/// Status, `x-seen`, `x-back` and body.
fn told(answer: &Message) -> (u16, &str, &str, String) {
    let field = |name| answer.head.get(name).unwrap_or_default();
    (answer.status(), field("x-seen"), field("x-back"), answer.text())
}

#[test]
fn every_body_mode() {
    let (processor, origin) = (Processor::start(), origin());
    let gateway = gateway(&processor, &origin);
    let check = |path: &str, script: &str, body: &str, expected: &str, messages: &[&str]| {
        let answer = ask(&gateway, path, script, body);
        assert_eq!(told(&answer), (200, "1", "2", expected.to_owned()), "{path} {body}");
        assert!(until(PATIENCE, || processor.log.lock().unwrap().len() >= messages.len()));
        assert_eq!(processor.take(), messages, "{path} {body}");
    };
    check("/headers", "", "", "hello", &["request_headers end", "response_headers"]);
    check("/headers", "", "body", "body", &["request_headers", "response_headers"]);
    check(
        "/streamed",
        "",
        "body",
        "BODY",
        &[
            "request_headers",
            "request_body body",
            "request_body  end",
            "response_headers",
            "response_body BODY",
            "response_body  end",
        ],
    );
    check(
        "/buffered",
        "",
        "body",
        "BODY",
        &["request_headers", "request_body body end", "response_headers", "response_body BODY end"],
    );
    check(
        "/partial",
        "",
        "abcdefgh",
        "ABCDefgh",
        &["request_headers", "request_body abcd", "response_headers", "response_body ABCD"],
    );
    check(
        "/partial",
        "",
        "abc",
        "ABC",
        &["request_headers", "request_body abc end", "response_headers", "response_body ABC end"],
    );
    let answer = ask(&gateway, "/duplex", "duplex", "full duplex with a body");
    assert_eq!(told(&answer), (200, "1", "2", "FULL DUPLEX WITH A BODY".to_owned()));
    let answer = ask(&gateway, "/duplex", "duplex", "");
    assert_eq!(told(&answer), (200, "1", "2", "HELLO".to_owned()));
    drop(processor.runtime);
}

#[test]
fn large_bodies_in_full_duplex() {
    let (processor, origin) = (Processor::start(), origin());
    let gateway = gateway(&processor, &origin);
    let body = "a".repeat(700_000);
    let answer = ask(&gateway, "/duplex", "duplex", &body);
    assert_eq!((answer.status(), answer.body.len()), (200, body.len()));
    assert_eq!(answer.body, body.to_ascii_uppercase().as_bytes());
}

#[test]
fn trailers_in_both_directions() {
    let (processor, origin) = (Processor::start(), origin());
    let gateway = gateway(&processor, &origin);
    for path in ["/streamed-trailers", "/duplex-trailers"] {
        let script = if path.starts_with("/duplex") { "duplex" } else { "" };
        let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nTE: trailers\r\nX-Script: {script}\r\n");
        let body = "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-T: 1\r\n\r\n";
        let answer = gateway.connect().unwrap().ask(format!("{head}{body}")).unwrap();
        assert_eq!(told(&answer), (200, "1", "2", "BODY".to_owned()), "{path}");
        // In full duplex the whole request is read before the node gets its head.
        let expected = if script.is_empty() { "3" } else { "-" };
        assert_eq!(answer.head.get("x-trailer"), Some(expected), "{path}");
        let trailer = answer.trailers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-t"));
        assert_eq!(trailer.map(|(_, value)| &**value), Some("3"), "{path}");
    }
}

#[test]
fn replies_and_replacements() {
    let (processor, origin) = (Processor::start(), origin());
    let gateway = gateway(&processor, &origin);
    for (path, script, body) in [
        ("/headers", "refuse", ""),
        ("/streamed", "refuse-body", "body"),
        ("/buffered", "refuse-body", "body"),
        ("/headers", "refuse-response", ""),
        ("/buffered", "refuse-response-body", ""),
    ] {
        let answer = ask(&gateway, path, script, body);
        assert_eq!((answer.status(), &*answer.text()), (403, "by the processor"), "{path} {script}");
    }
    let answer = ask(&gateway, "/headers", "replace", "");
    assert_eq!((answer.head.get("x-length"), &*answer.text()), (Some("8"), "replaced"));
    processor.take();
    let answer = ask(&gateway, "/mode", "mode", "");
    assert_eq!(told(&answer), (200, "1", "", "hello".to_owned()));
    assert_eq!(processor.take(), ["request_headers end"]);
    let answer = ask(&gateway, "/headers", "mode", "");
    assert_eq!(told(&answer), (200, "1", "2", "hello".to_owned()), "no override is allowed");
}

/// A processor may write its own response piece by piece.
#[test]
fn responses_in_pieces() {
    let (processor, origin) = (Processor::start(), origin());
    let gateway = gateway(&processor, &origin);
    let whole = format!("one {}", "two".repeat(50_000));
    for (path, script, body, expected) in [
        ("/headers", "stream", "", &*whole),
        ("/buffered", "stream", "body", &*whole),
        ("/headers", "stream-later", "", &*whole),
        ("/headers", "stream-trailers", "", "one "),
    ] {
        let answer = ask(&gateway, path, script, body);
        assert_eq!((answer.status(), answer.head.get("x-made")), (203, Some("1")), "{path} {script}");
        assert_eq!(answer.text(), expected, "{path} {script}");
    }
    for script in ["stream-headless", "stream-wrong"] {
        assert_eq!(ask(&gateway, "/headers", script, "").status(), 500, "{script}");
    }
    // A response that breaks off must not look whole.
    assert!(gateway.connect().unwrap().ask(request("/headers", "stream-broken", "")).is_err());
}

/// A processor with HTTP gets heads as JSON.
#[test]
fn a_processor_with_http() {
    let http = Origin::answer(|request| {
        let message = request.json().unwrap();
        let is_request = message.get("request_headers").is_some();
        let (part, key) =
            if is_request { ("request_headers", "x-new") } else { ("response_headers", "x-back") };
        let value = if is_request { "MQ==" } else { "Mg==" };
        let set = serde_json::json!([{"header": {"key": key, "raw_value": value}}]);
        let answer =
            serde_json::json!({part: {"response": {"header_mutation": {"set_headers": set}}}}).to_string();
        let (_, target) = request.head.request_line().unwrap_or_default();
        let status = if target == "/broken" { "500 Oops" } else { "200 OK" };
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{answer}", answer.len()).into_bytes()
    })
    .unwrap();
    let origin = origin();
    let mut config = "listeners: [\"{listen}\"]\nroutes:\n".to_owned();
    for path in ["works", "broken"] {
        let service = format!("http_service: {{ uri: \"http://127.0.0.1:{}/{path}\" }}", http.port());
        config += &format!(
            "  - uri: /{path}\n    plugins: {{ ext-proc: {{ {service}, message_timeout: 30000 }} }}\n    upstream: http://127.0.0.1:{}\n",
            origin.port()
        );
    }
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    assert_eq!(told(&ask(&gateway, "/works", "", "body")), (200, "1", "2", "body".to_owned()));
    assert_eq!(ask(&gateway, "/broken", "", "").status(), 500);
}

#[test]
fn failures_of_the_processor() {
    let (processor, origin) = (Processor::start(), origin());
    let gateway = gateway(&processor, &origin);
    let check = |path: &str, script: &str, body: &str, expected: u16| {
        let answer = ask(&gateway, path, script, body);
        assert_eq!(answer.status(), expected, "{path} {script}");
        assert_eq!(gateway.connect().unwrap().get("/honest").unwrap().text(), "hello");
    };
    check("/short", "hang", "", 504);
    check("/allow", "hang", "", 200);
    check("/headers", "garbage", "", 500);
    check("/status", "garbage", "", 502);
    check("/allow", "garbage", "", 200);
    check("/headers", "die", "", 500);
    check("/allow", "die", "", 200);
    check("/headers", "fail", "", 500);
    check("/headers", "huge", "", 500);
    check("/headers", "close", "", 200);
    check("/streamed", "close", "body", 200);
    check("/streamed", "die-later", "body", 500);
    check("/buffered", "die-later", "body", 500);
    // The second response is found when the response comes, at the latest.
    check("/headers", "twice", "", 500);
    check("/buffered", "", &"b".repeat(5000), 413);
    check("/deaf", "", &"b".repeat(1 << 20), 504);
}

/// The head has left: the client must not take the body as complete.
#[test]
fn a_late_answer_to_a_response_body_cuts_it() {
    let (processor, origin) = (Processor::start(), origin());
    let gateway = gateway(&processor, &origin);
    let mut client = gateway.connect().unwrap();
    client.send(request("/late-body", "hang-later", "")).unwrap();
    assert!(client.read_head().unwrap().status().is_ok_and(|status| status == 200));
    let rest = String::from_utf8_lossy(&client.read_to_close().unwrap_or_default()).into_owned();
    assert!(!rest.contains("0\r\n\r\n"), "{rest}");
}

#[test]
fn a_watching_processor_gets_copies() {
    let (processor, origin) = (Processor::start(), origin());
    let gateway = gateway(&processor, &origin);
    for script in ["", "garbage", "refuse", "hang"] {
        let answer = ask(&gateway, "/watch", script, "body");
        assert_eq!(told(&answer), (200, "-", "", "body".to_owned()), "{script}");
    }
    let expected = ["request_headers", "request_body body", "response_headers", "response_body  end"];
    let has_all = || {
        let log = processor.log.lock().unwrap();
        expected.iter().all(|message| log.iter().any(|known| known == message))
    };
    assert!(until(PATIENCE, has_all), "{:?}", processor.log.lock().unwrap());
}

/// Copies for a processor that reads nothing are dropped and counted; memory has a bound.
#[test]
fn copies_for_a_deaf_processor_are_bounded() {
    let (processor, origin) = (Processor::start(), origin());
    let gateway = gateway(&processor, &origin);
    let body = "b".repeat(8 << 20);
    let mut clients: Vec<Peer> = (0..8).map(|_| gateway.connect().unwrap()).collect();
    for client in &mut clients {
        let answer = client.ask(request("/deaf-watch", "", &body)).unwrap();
        assert_eq!((answer.status(), answer.body.len()), (200, body.len()));
    }
    let metrics = || gateway.connect().unwrap().get("/apisix/prometheus/metrics").unwrap().text();
    let dropped = || {
        let page = metrics();
        page.lines().any(|line| line.contains("ext_proc_events_total") && line.contains("message_dropped"))
    };
    assert!(until(PATIENCE, dropped), "{}", metrics());
    assert!(gateway.peak_memory_kib().unwrap() < 200 << 10);
    drop(processor);
}
