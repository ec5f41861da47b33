//! Requests that fail leave lines in the logs that say why, and so do connections that are refused.

use std::sync::Arc;

use serde_json::{Value, json};
use sigma_testkit::{Dns, Gateway, Operator, Origin, until};

use crate::overload::Held;
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
    let plugin =
        ["WARN", "a request failed", "reason=\"plugin\"", "plugin=\"fault-injection\"", "status=503"];
    line(&gateway, &plugin);
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

/// One request; the default logs then name its cause: a line of the error log has `error`, unless that is empty, and the
/// access line ends with `access`.
fn named(gateway: &Gateway, status: u16, error: &[&str], access: &str) {
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send("GET /shop/7?token=secret HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status().unwrap(), status);
    let access = format!("{access}\n");
    let is_written = || gateway.stdout().contains(&access);
    assert!(until(PATIENCE, is_written), "{access} is missing in\n{}", gateway.stdout());
    if error.is_empty() {
        assert!(!gateway.stderr().contains("a request failed"), "{}", gateway.stderr());
        return;
    }
    let found =
        line(gateway, &[&["WARN", "route=\"shop\"", "uri=\"/shop/*\"", "GET /shop/7"], error].concat());
    assert!(!found.contains("secret"), "{found}");
}

/// A node that answers so to every request.
fn answering(answer: &'static str) -> Origin {
    Origin::answer(move |_| answer.as_bytes().to_vec()).unwrap()
}

#[test]
fn logs_name_a_node_that_refuses() {
    let port = sigma_testkit::free_port();
    let node = format!("node=127.0.0.1:{port}");
    let gateway = shop(&to(port, json!({})), &json!({}));
    let end = "route=shop consumer=- fault=connection_refused";
    named(&gateway, 502, &["reason=\"connection_refused\"", &node, "the node refused the connection"], end);
}

#[test]
fn logs_name_a_node_that_closes_early() {
    let origin = Origin::serve(|mut peer| drop(peer.read_request())).unwrap();
    let gateway = shop(&to(origin.port(), json!({})), &json!({}));
    let error = ["reason=\"connection_terminated\"", "the node closed the connection"];
    named(&gateway, 502, &error, "fault=connection_terminated");
}

#[test]
fn logs_name_a_node_that_answers_garbage() {
    let origin = answering("SMTP ready\r\n\r\n");
    let gateway = shop(&to(origin.port(), json!({})), &json!({}));
    named(&gateway, 502, &["reason=\"http_protocol_error\""], "fault=http_protocol_error");
}

#[test]
fn logs_name_a_node_that_is_slow() {
    let origin = Origin::serve(|mut peer| drop(peer.read_to_close())).unwrap();
    let slow = json!({ "timeout": { "connect": 1, "send": 1, "read": 0.2 } });
    let gateway = shop(&to(origin.port(), slow), &json!({}));
    named(&gateway, 504, &["reason=\"http_response_timeout\""], "fault=http_response_timeout");
}

#[test]
fn logs_name_a_response_that_is_cut() {
    let origin = cut();
    let gateway = shop(&to(origin.port(), json!({})), &json!({}));
    let error = ["a response was cut", "reason=\"http_response_incomplete\"", "status=200"];
    named(&gateway, 200, &error, "fault=http_response_incomplete");
}

#[test]
fn logs_name_a_node_with_the_other_scheme() {
    let plain = Origin::serve(|mut peer| {
        let _ = peer.send("HTTP/1.1 400 Bad Request\r\n\r\n");
    })
    .unwrap();
    let gateway = shop(&to(plain.port(), json!({ "scheme": "https" })), &json!({}));
    named(&gateway, 502, &["reason=\"tls_protocol_error\""], "fault=tls_protocol_error");
    let dir = tempfile::tempdir().unwrap();
    let tls = Authority::new("Root").issue("h").files(dir.path(), "h");
    let node = Gateway::start(SIGMA, &config(json!({ "certificates": [tls] }), to_origin(&plain), json!({})))
        .unwrap();
    let gateway = shop(&to(node.address().port().unwrap(), json!({})), &json!({}));
    // The node is a gateway that names the mistake, as nginx does.
    let node = format!("127.0.0.1:{} 400", node.address().port().unwrap());
    let mut client = gateway.connect().unwrap();
    let answer = client.ask("GET /shop/7 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert!(answer.text().contains("The plain HTTP request was sent to HTTPS port"), "{}", answer.text());
    assert!(until(PATIENCE, || gateway.stdout().contains(&node)), "{}", gateway.stdout());
}

#[test]
fn logs_name_a_node_whose_name_is_unknown() {
    let dns = Dns::start().unwrap();
    let upstream = json!({ "nodes": { "nowhere.test:80": 1 } });
    let gateway = shop(&upstream, &json!({ "dns": { "servers": [dns.address()] } }));
    // At first the name is still requested.
    let ask = || gateway.connect().unwrap().get("/shop/1").unwrap().text().contains("\"dns_error\"");
    assert!(until(PATIENCE, ask), "{}", gateway.stderr());
    named(&gateway, 503, &["reason=\"dns_error\""], "fault=dns_error");
}

#[test]
fn logs_name_an_upstream_without_nodes() {
    let gateway = shop(&json!({ "nodes": {} }), &json!({}));
    let error = ["reason=\"destination_unavailable\"", "the upstream has no node"];
    named(&gateway, 503, &error, "fault=destination_unavailable");
}

#[test]
fn logs_name_an_upstream_in_maintenance() {
    let states = |state: &str| json!({ "node_states": { "127.0.0.1:9": state } });
    let gateway = shop(&to(9, states("maintenance")), &json!({}));
    let error = ["reason=\"destination_unavailable\"", "all nodes are in maintenance"];
    named(&gateway, 502, &error, "fault=destination_unavailable");
    let gateway = shop(&to(9, states("drain")), &json!({}));
    named(&gateway, 502, &["all nodes are draining or in maintenance"], "fault=destination_unavailable");
}

#[test]
fn logs_name_a_limit_that_is_reached() {
    let origin = Origin::echo("a").unwrap();
    let limit = json!({ "limit-count": { "count": 1, "time_window": 600, "key": "remote_addr" } });
    let gateway = shop(&to(origin.port(), json!({})), &json!({ "plugins": limit }));
    named(&gateway, 200, &[], "route=shop consumer=- fault=-");
    let error = ["reason=\"plugin\"", "plugin=\"limit-count\"", "status=503"];
    named(&gateway, 503, &error, "fault=plugin:limit-count");
    // A refusal with 4xx is named in the access line alone.
    let auth = json!({ "key-auth": {} });
    let gateway = shop(&to(origin.port(), json!({})), &json!({ "plugins": auth }));
    named(&gateway, 401, &[], "fault=plugin:key-auth");
}

/// A 5xx of a plugin without a body names the plugin, as `show_reason` says.
#[test]
fn errors_of_plugins_have_a_reason() {
    let ask = |rest: Value| {
        let gateway = shop(&to(9, json!({})), &rest);
        let answer = gateway.connect().unwrap().get("/shop/1").unwrap();
        assert_eq!(answer.status(), 503);
        answer.text()
    };
    let plugins = json!({ "fault-injection": { "abort": { "http_status": 503 } } });
    let named = "{\"error_msg\":\"503 Service Unavailable\",\"reason\":\"plugin:fault-injection\"}\n";
    assert_eq!(ask(json!({ "plugins": plugins })), named);
    let hidden = ask(json!({ "plugins": plugins, "show_reason": "never" }));
    assert_eq!(hidden, "{\"error_msg\":\"503 Service Unavailable\"}\n");
}

/// A service of authorization that is away: the line names the route, the request and the service.
#[test]
fn logs_name_an_authorization_service_that_is_away() {
    let port = sigma_testkit::free_port();
    let url = format!("http://127.0.0.1:{port}");
    for (plugin, conf, path) in [
        ("forward-auth", json!({ "uri": format!("{url}/verify?token=secret") }), "/verify"),
        ("opa", json!({ "host": url, "policy": "shop" }), "/v1/data/shop"),
    ] {
        let plugins = json!({ "plugins": { plugin: conf } });
        let gateway = shop(&to(9, json!({})), &plugins);
        named(&gateway, 403, &[], &format!("fault=plugin:{plugin}"));
        let plugin = format!("plugin=\"{plugin}\"");
        let words =
            ["ERROR", &plugin, &format!("url={url}{path} "), "resource=\"routes/shop\"", "request_id="];
        let found = line(&gateway, &words);
        assert!(!found.contains("secret"), "{found}");
    }
}

#[test]
fn logs_name_an_upstream_that_is_full() {
    let held = Arc::<Held>::default();
    let origin = held.origin();
    let gateway = shop(&to(origin.port(), json!({ "limits": { "max_requests": 1 } })), &json!({}));
    let mut first = gateway.connect().unwrap();
    first.send("GET /shop/1 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert!(until(PATIENCE, || held.seen() == 1));
    named(&gateway, 503, &["reason=\"upstream_overloaded\""], "fault=upstream_overloaded");
    held.let_go(1);
    assert_eq!(first.read_head().unwrap().status().unwrap(), 200);
}

#[test]
fn logs_name_a_route_without_an_upstream() {
    let gateway = shop(&Value::Null, &json!({ "plugins": { "request-id": {} } }));
    let error = ["reason=\"proxy_configuration_error\"", "no upstream"];
    named(&gateway, 503, &error, "fault=proxy_configuration_error");
}

/// The error log is about failures of the gateway; the access line has the node and its status.
#[test]
fn logs_name_a_node_that_answers_503() {
    let origin = answering("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");
    let gateway = shop(&to(origin.port(), json!({})), &json!({}));
    named(&gateway, 503, &[], "route=shop consumer=- fault=-");
    let node = format!("127.0.0.1:{} 503 ", origin.port());
    assert!(gateway.stdout().contains(&node), "{}", gateway.stdout());
}

/// Waits for the counter of a kind of refusals.
fn refused(gateway: &Gateway, kind: &str, count: u64) {
    let series = format!("sigma_refusals_total{{kind=\"{kind}\"}}");
    assert!(until(PATIENCE, || gateway.counter(&series) == count), "{kind}\n{}", gateway.stderr());
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
        assert!(text.contains("\"reason\":\"cleartext_on_tls_listener\""), "{text}");
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
    line(&gateway, &["reason=\"unknown_server_name\"", "no certificate for the name b.test"]);
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
    line(&gateway, &["reason=\"tls_on_cleartext_listener\"", "listener=127.0.0.1:", "the client began TLS"]);
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
    line(&gateway, &["reason=\"no_stream_route\"", "no stream route matches the TLS server name b.test"]);
    // A session of PostgreSQL without TLS.
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send(b"\0\0\0\x17\0\x03\0\0user\0postgres\0\0").unwrap();
    let _ = client.read_to_close();
    refused(&gateway, "cleartext_on_tls_listener", 1);
}

#[test]
fn clients_see_reasons_as_the_setting_says() {
    let port = sigma_testkit::free_port();
    let ask = |rest: Value, fields: &str| {
        let gateway = shop(&to(port, json!({})), &rest);
        let request = format!("GET /shop/1 HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let answer = gateway.connect().unwrap().ask(request).unwrap();
        assert_eq!(answer.status(), 502);
        line(&gateway, &["reason=\"connection_refused\""]);
        (answer.text(), answer.head.get("x-apisix-upstream-status").map(str::to_owned))
    };
    let shown = |(text, status): &(String, Option<String>)| {
        assert_eq!(text.contains("\"reason\":\"connection_refused\""), status.is_some(), "{text} {status:?}");
        if status.is_none() {
            assert_eq!(text, "{\"error_msg\":\"502 Bad Gateway\"}\n");
        }
        status.is_some()
    };
    assert!(shown(&ask(json!({}), "")));
    assert!(!shown(&ask(json!({ "show_reason": "never" }), "")));
    let always = json!({ "show_reason": "never", "upstream_status_header": "always" });
    assert!(!shown(&ask(always, "")));
    let internal = json!({
        "show_reason": "internal", "trusted_addresses": ["127.0.0.1"],
        "client_address": { "field": "X-Forwarded-For" },
    });
    assert!(shown(&ask(internal.clone(), "")));
    assert!(shown(&ask(internal.clone(), "X-Forwarded-For: 10.0.0.7\r\n")));
    assert!(!shown(&ask(internal, "X-Forwarded-For: 203.0.113.7\r\n")));
    assert!(!shown(&ask(json!({ "profile": "edge" }), "")));
}

#[test]
fn upstreams_without_nodes_are_listed() {
    let whole = json!({
        "workers": 1, "listeners": ["{listen}"], "control": { "address": "{control}" },
        "routes": [
            { "id": "none", "uri": "/none", "upstream": { "nodes": {} } },
            { "id": "some", "uri": "/some", "upstream": { "nodes": { "127.0.0.1:9": 1 } } },
            {
                "id": "unprobed", "uri": "/unprobed",
                "upstream": { "nodes": { "127.0.0.1:9": 1 }, "checks": { "active": { "http_path": "/x" } } },
            },
        ],
    });
    let gateway = Gateway::start(SIGMA, &whole.to_string()).unwrap();
    let control = format!("http://{}", gateway.control_address());
    let all = Operator::new(gateway.control_address()).get("/v1/nodes").unwrap();
    assert_eq!(
        (&all[0]["upstream"], &all[0]["reason"]),
        (&json!("routes/none"), &json!("the upstream has no node"))
    );
    assert_eq!(all[1]["nodes"][0]["status"], "unchecked");
    // Checks without an interval send no probe.
    assert_eq!(all[2]["nodes"][0]["status"], "unchecked");
    let output =
        std::process::Command::new(SIGMA).args(["ctl", "upstreams", "--control", &control]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for (upstream, word) in [
        ("routes/none", "the upstream has no node"),
        ("routes/some", "unchecked"),
        ("routes/unprobed", "unchecked"),
    ] {
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
    // As the page on troubleshooting shows it.
    let (status, text, _) = explain("connection_refused");
    assert_eq!(status, Some(0));
    let page = include_str!("../../../../docs/troubleshooting.md");
    assert!(page.contains(&format!("$ sigma explain connection_refused\n{text}```\n")), "{text}");
    let (status, text, _) = explain("plugin:limit-count");
    assert_eq!(status, Some(0));
    assert!(text.contains("rejected_code"), "{text}");
    let (status, _, error) = explain("conection_refused");
    assert_eq!(status, Some(1));
    assert!(error.contains("similar reasons: connection_refused"), "{error}");
}
