//! Requests that fail leave lines in the logs that say why, and so do connections that are refused.

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Operator, Origin, until};

use crate::overload::counted;
use crate::tls::{Authority, config, run, shake, to_origin};
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

/// A gateway with the default access line, whose route `shop` leads to this upstream.
fn shop(upstream: &Value, rest: &Value) -> Gateway {
    let mut route = json!({ "id": "shop", "uri": "/shop/*", "upstream": upstream });
    route.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    let mut whole = json!({
        "workers": 1, "listeners": ["{listen}"], "status": { "address": "{status}" },
        "access_log": { "path": "stdout", "flush_ms": 50 },
    });
    for (name, value) in rest.as_object().unwrap() {
        match name.as_str() {
            "plugins" => route[name] = value.clone(),
            _ => whole[name] = value.clone(),
        }
    }
    whole["routes"] = json!([route]);
    Gateway::start(SIGMA, &whole.to_string()).unwrap()
}

/// An upstream with this node, and other members.
fn to(port: u16, rest: Value) -> Value {
    let mut upstream = json!({ "retries": 0, "nodes": { format!("127.0.0.1:{port}"): 1 } });
    upstream.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    upstream
}

/// Waits for the counter of a kind of refusals.
fn refused(gateway: &Gateway, kind: &str, count: u64) {
    let series = format!("sigma_refusals_total{{kind=\"{kind}\"}}");
    assert!(until(PATIENCE, || counted(gateway, &series) == count), "{kind}\n{}", gateway.stderr());
}

#[test]
fn cleartext_on_a_tls_listener_is_answered_and_named() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let tls = root.issue("a.test").files(dir.path(), "a");
    let rest = json!({ "workers": 1, "status": { "address": "{status}" } });
    let gateway =
        Gateway::start(SIGMA, &config(json!({ "certificates": [tls] }), to_origin(&origin), rest)).unwrap();
    for request in
        ["GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "PUT /a HTTP/1.0\r\nContent-Length: 9\r\n\r\n123"]
    {
        let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
        client.send(request).unwrap();
        let answer = client.read_response("GET").unwrap();
        assert_eq!(answer.status(), 400, "{request}");
        let text = answer.text();
        assert!(text.contains("\"detail\":\"The plain HTTP request was sent to HTTPS port\""), "{text}");
        client.expect_closed().unwrap();
    }
    // A request line may come in pieces.
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    for part in ["G", "ET / HT", "TP/1.1\r\nHost: a\r\n\r\n"] {
        client.send(part).unwrap();
    }
    assert_eq!(client.read_response("GET").unwrap().status(), 400);
    // The beginning of PostgreSQL, and a line that is no request.
    for bytes in [&b"\0\0\0\x08\x04\xd2\x16\x2f"[..], b"HELO there\r\n"] {
        let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
        client.send(bytes).unwrap();
        let _ = client.read_to_close();
    }
    refused(&gateway, "cleartext_on_tls_listener", 5);
    let parts =
        ["WARN", "a connection was refused", "reason=\"cleartext_on_tls_listener\"", "client=127.0.0.1"];
    line(&gateway, &parts);
    line(&gateway, &["cleartext_on_tls_listener", "left_out=0", "the client sent cleartext"]);
    // The harness has looked whether the port is open.
    for kind in ["unknown_server_name", "tls_handshake_failed"] {
        refused(&gateway, kind, 0);
    }
    assert_eq!(origin.requests(), 0);
}

#[test]
fn a_storm_of_refusals_has_few_lines() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let tls = root.issue("a.test").files(dir.path(), "a");
    let rest = json!({ "workers": 1, "status": { "address": "{status}" } });
    let gateway =
        Gateway::start(SIGMA, &config(json!({ "certificates": [tls] }), to_origin(&origin), rest)).unwrap();
    for _ in 0..200 {
        let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert_eq!(client.read_response("GET").unwrap().status(), 400);
    }
    refused(&gateway, "cleartext_on_tls_listener", 200);
    let lines = gateway.stderr().matches("a connection was refused").count();
    assert!((1..100).contains(&lines), "{lines} lines of 200 refusals");
}

#[test]
fn unknown_names_and_failed_handshakes_are_named() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let ssl = root.issue("a.test").ssl(json!({ "id": "a", "sni": "a.test" }));
    let rest = json!({ "workers": 1, "status": { "address": "{status}" }, "ssls": [ssl] });
    let gateway = Gateway::start(SIGMA, &config(json!({}), to_origin(&origin), rest)).unwrap();
    run(async {
        assert!(shake(&gateway, &root.client(None), "a.test").await.is_ok());
        assert!(shake(&gateway, &root.client(None), "b.test").await.is_err());
        // The client does not trust the certificate.
        assert!(shake(&gateway, &Authority::new("Other").client(None), "a.test").await.is_err());
    });
    refused(&gateway, "unknown_server_name", 1);
    refused(&gateway, "tls_handshake_failed", 1);
    line(&gateway, &["reason=\"unknown_server_name\"", "no certificate is for the name b.test"]);
    line(&gateway, &["reason=\"tls_handshake_failed\"", "listener="]);
    refused(&gateway, "cleartext_on_tls_listener", 0);
}

#[test]
fn tls_on_a_cleartext_listener_is_named() {
    let origin = Origin::echo("a").unwrap();
    let gateway = shop(&to(origin.port(), json!({})), &json!({}));
    run(async {
        assert!(shake(&gateway, &Authority::new("Root").client(None), "a.test").await.is_err());
    });
    refused(&gateway, "tls_on_cleartext_listener", 1);
    line(&gateway, &["reason=\"tls_on_cleartext_listener\"", "the client began TLS"]);
}

#[test]
fn sessions_without_a_stream_route_are_named() {
    let whole = json!({
        "workers": 1, "listeners": [{ "address": "{listen}", "stream": "tls" }],
        "status": { "address": "{status}" },
        "stream_routes": [{ "sni": "a.test", "upstream": { "scheme": "tcp", "nodes": { "127.0.0.1:9": 1 } } }],
    });
    let gateway = Gateway::start(SIGMA, &whole.to_string()).unwrap();
    run(async {
        assert!(shake(&gateway, &Authority::new("Root").client(None), "b.test").await.is_err());
    });
    refused(&gateway, "no_stream_route", 1);
    line(&gateway, &["reason=\"no_stream_route\"", "no stream route is for the TLS server name b.test"]);
    // A database that begins in cleartext.
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send(b"\0\0\0\x08\x04\xd2\x16\x2f").unwrap();
    let _ = client.read_to_close();
    refused(&gateway, "cleartext_on_tls_listener", 1);
}

#[test]
fn upstreams_without_nodes_are_listed() {
    let whole = json!({
        "workers": 1, "listeners": ["{listen}"], "control": { "address": "{control}" },
        "routes": [
            { "id": "none", "uri": "/none", "upstream": { "nodes": {} } },
            { "id": "some", "uri": "/some", "upstream": { "nodes": { "127.0.0.1:9": 1 } } },
        ],
    });
    let gateway = Gateway::start(SIGMA, &whole.to_string()).unwrap();
    let control = format!("http://{}", gateway.control_address());
    let all = Operator::new(gateway.control_address()).get("/v1/nodes").unwrap();
    assert_eq!((&all[0]["upstream"], &all[0]["reason"]), (&json!("routes/none"), &json!("it has no nodes")));
    assert_eq!(all[1]["nodes"][0]["status"], "unchecked");
    let output =
        std::process::Command::new(SIGMA).args(["ctl", "upstreams", "--control", &control]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for (upstream, word) in [("routes/none", "it has no nodes"), ("routes/some", "unchecked")] {
        let row = text.lines().find(|row| row.starts_with(upstream));
        assert!(row.is_some_and(|row| row.contains(word)), "{text}");
    }
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
