//! Requests that fail leave a line in the error log that says why.

use sigma_testkit::{Gateway, Origin, until};

use crate::{PATIENCE, SIGMA};

fn gateway(cut: &Origin) -> Gateway {
    let cut = cut.port();
    let config = format!(
        "workers: 1\nlisteners: [{{ address: \"{{listen}}\" }}]\nroutes:\n\
         - {{ id: refused, uri: /orders/*, upstream: {{ nodes: {{ \"127.0.0.1:1\": 1 }} }} }}\n\
         - {{ id: cut, uri: /cut, upstream: {{ nodes: {{ \"127.0.0.1:{cut}\": 1 }} }} }}\n\
         - {{ id: plugin, uri: /plugin, plugins: {{ fault-injection: {{ abort: {{ http_status: 503 }} }} }}, \
         upstream: {{ nodes: {{ \"127.0.0.1:1\": 1 }} }} }}\n\
         - {{ id: wrong, uri: /wrong, plugins: {{ fault-injection: {{ abort: {{ http_status: 418 }} }} }}, \
         upstream: {{ nodes: {{ \"127.0.0.1:1\": 1 }} }} }}\n"
    );
    Gateway::start(SIGMA, &config).unwrap()
}

/// An origin that ends its connection within the response.
fn cut() -> Origin {
    Origin::serve(|mut peer| {
        if peer.read_request().is_ok() {
            let _ = peer.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nab");
        }
    })
    .unwrap()
}

/// The first line with all of these parts, once there is one.
fn line(gateway: &Gateway, parts: &[&str]) -> String {
    let find = || {
        let text = gateway.stderr();
        text.lines().find(|line| parts.iter().all(|part| line.contains(part))).map(str::to_owned)
    };
    assert!(until(PATIENCE, || find().is_some()), "{parts:?} is missing in\n{}", gateway.stderr());
    find().unwrap()
}

#[test]
fn a_failed_request_says_why_in_the_error_log() {
    let cut = cut();
    let gateway = gateway(&cut);
    let ask = |target: &str| {
        let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
        client.send(format!("GET {target} HTTP/1.1\r\nHost: shop.test\r\n\r\n")).unwrap();
        client.read_head().unwrap()
    };
    ask("/orders/%0a7?token=secret");
    let refused = line(&gateway, &["WARN", "a request failed", "connection_refused"]);
    for part in
        ["status=502", "GET /orders/%0a7", "shop.test", "refused", "/orders/*", "127.0.0.1:1", "client"]
    {
        assert!(refused.contains(part), "{part} is missing in {refused}");
    }
    assert!(!refused.contains("secret"), "{refused}");
    ask("/cut");
    let port = format!("127.0.0.1:{}", cut.port());
    line(&gateway, &["WARN", "a response was cut", "http_response_incomplete", "status=200", &port]);
    ask("/plugin");
    line(&gateway, &["WARN", "a request failed", "fault-injection", "status=503"]);
    // Neither a refusal with 4xx nor a request without a route has a line.
    ask("/wrong");
    ask("/nowhere");
    ask("/cut");
    line(&gateway, &["a response was cut", "left_out=0"]);
    assert!(!gateway.stderr().contains("GET /wrong") && !gateway.stderr().contains("GET /nowhere"));
}

#[test]
fn a_storm_of_failures_has_few_lines() {
    let cut = cut();
    let gateway = gateway(&cut);
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    for _ in 0..500 {
        client.send("GET /orders/1 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        assert_eq!(client.read_response("GET").unwrap().status(), 502);
    }
    // A line of another reason is the last one.
    let mut other = gateway.connect().unwrap().with_deadline(PATIENCE);
    other.send("GET /plugin HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    other.read_response("GET").unwrap();
    line(&gateway, &["fault-injection"]);
    let lines = gateway.stderr().matches("connection_refused").count();
    assert!((1..250).contains(&lines), "{lines} lines of 500 requests");
}

#[test]
fn a_reason_is_explained() {
    let explain = |word: &str| {
        let output = std::process::Command::new(SIGMA).args(["explain", word]).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), out, err)
    };
    let (status, text, _) = explain("plugin:limit-count");
    assert_eq!(status, Some(0));
    assert!(text.contains("rejected_code"), "{text}");
    let (status, _, error) = explain("conection_refused");
    assert_eq!(status, Some(1));
    assert!(error.contains("the nearest are connection_refused"), "{error}");
}
