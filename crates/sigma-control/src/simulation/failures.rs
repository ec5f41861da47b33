//! Requests that fail leave lines in the logs that say why, and so do connections that are refused.

use serde_json::{Value, json};

use super::gateway::{ACCESS_LOG, Gateway, joined};
use super::peers::{Conversation, Held, Node};
use super::tls::{Authority, config, shake, to_node};
use super::{LISTEN, Simulation, example};

/// A node that ends its connection within the response.
fn cut(simulation: &Simulation) -> Node {
    simulation.serve(async |mut client: Conversation| {
        if client.request().await.is_ok() {
            let _ = client.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nab").await;
            // The gateway reads these bytes before it sees the end.
            client.finish();
            client.rest().await;
        }
    })
}

/// Routes whose requests fail: without a node, in the response, and by a plugin.
fn gateway(simulation: &Simulation, cut: &Node) -> (Gateway, String) {
    let refusing = simulation.free_address().to_string();
    let to = |node: &str| json!({ "nodes": { node: 1 } });
    let abort = |status: u16| json!({ "fault-injection": { "abort": { "http_status": status } } });
    let gateway = simulation.gateway(json!({ "routes": [
        { "id": "refused", "uri": "/orders/*", "upstream": to(&refusing) },
        { "id": "cut", "uri": "/cut", "upstream": to(&cut.name()) },
        { "id": "plugin", "uri": "/plugin", "plugins": abort(503), "upstream": to(&refusing) },
        { "id": "wrong", "uri": "/wrong", "plugins": abort(418), "upstream": to(&refusing) },
    ] }));
    (gateway, refusing)
}

/// The first line with all of these parts, once there is one.
fn line(simulation: &Simulation, gateway: &Gateway, parts: &[&str]) -> String {
    let find = || {
        let text = gateway.log();
        text.lines().find(|line| parts.iter().all(|part| line.contains(part))).map(str::to_owned)
    };
    assert!(simulation.until(|| find().is_some()), "{parts:?} is missing in\n{}", gateway.log());
    find().unwrap()
}

#[test]
fn a_failed_request_says_why_in_the_error_log() {
    example(|simulation| {
        let cut = cut(simulation);
        let (gateway, refusing) = gateway(simulation, &cut);
        let ask = |target: &str| {
            let mut client = gateway.connect();
            client.send(format!("GET {target} HTTP/1.1\r\nHost: shop.test\r\n\r\n"));
            assert!(client.head().starts_with("HTTP/1.1 "), "{target}");
        };
        let line = |parts: &[&str]| line(simulation, &gateway, parts);
        ask("/orders/%0a7?token=secret");
        let refused = line(&["WARN", "a request failed", "connection_refused"]);
        for part in
            ["status=502", "GET /orders/%0a7", "shop.test", "refused", "/orders/*", &refusing, "client"]
        {
            assert!(refused.contains(part), "{part} is missing in {refused}");
        }
        assert!(!refused.contains("secret"), "{refused}");
        ask("/cut");
        line(&["WARN", "a response was cut", "http_response_incomplete", "status=200", &cut.name()]);
        ask("/plugin");
        line(&["WARN", "a request failed", "reason=\"plugin\"", "plugin=\"fault-injection\"", "status=503"]);
        // Neither a refusal with 4xx nor a request without a route has a line.
        ask("/wrong");
        ask("/nowhere");
        ask("/cut");
        line(&["a response was cut", "left_out=0"]);
        assert!(!gateway.log().contains("GET /wrong") && !gateway.log().contains("GET /nowhere"));
    });
}

#[test]
fn a_storm_of_failures_has_few_lines() {
    example(|simulation| {
        let cut = cut(simulation);
        let (gateway, _) = gateway(simulation, &cut);
        let mut client = gateway.connect();
        for _ in 0..500 {
            assert_eq!(client.get("/orders/1").status(), 502);
        }
        // A line of another reason is the last one.
        gateway.get("/plugin");
        line(simulation, &gateway, &["fault-injection"]);
        let lines = gateway.log().matches("connection_refused").count();
        assert!((1..250).contains(&lines), "{lines} lines of 500 requests");
    });
}

/// A gateway with the default access line, whose route `shop` leads to this upstream.
fn shop(simulation: &Simulation, upstream: &Value, rest: &Value) -> Gateway {
    let mut route = json!({ "id": "shop", "uri": "/shop/*", "upstream": upstream });
    route.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    let mut whole = json!({ "access_log": { "path": ACCESS_LOG, "flush_ms": 50 } });
    for (name, value) in rest.as_object().unwrap() {
        match name.as_str() {
            "plugins" => route[name] = value.clone(),
            _ => whole[name] = value.clone(),
        }
    }
    whole["routes"] = json!([route]);
    simulation.gateway(whole)
}

/// An upstream with this node, and other members.
fn to(node: &str, rest: Value) -> Value {
    joined(json!({ "retries": 0, "nodes": { node: 1 } }), rest)
}

/// One request; the default logs then name its cause: a line of the error log has `error`, unless that is empty, and the
/// access line ends with `access`.
fn named(simulation: &Simulation, gateway: &Gateway, status: u16, error: &[&str], access: &str) {
    let mut client = gateway.connect();
    client.send("GET /shop/7?token=secret HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    let head = client.head();
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    gateway.await_access(&format!("{access}\n"));
    if error.is_empty() {
        assert!(!gateway.log().contains("a request failed"), "{}", gateway.log());
        return;
    }
    let of_request = ["WARN", "route=\"shop\"", "uri=\"/shop/*\"", "GET /shop/7"];
    let found = line(simulation, gateway, &[&of_request, error].concat());
    assert!(!found.contains("secret"), "{found}");
}

/// The logs name the cause of a request to such an upstream, with these settings.
fn logs_name(
    simulation: &Simulation,
    (upstream, rest): (&Value, &Value),
    status: u16,
    error: &[&str],
    access: &str,
) {
    named(simulation, &shop(simulation, upstream, rest), status, error, access);
}

/// A node that answers so to every request.
fn answering(simulation: &Simulation, answer: &'static str) -> Node {
    simulation.answer(move |_| answer.as_bytes().to_vec())
}

#[test]
fn logs_name_a_node_that_refuses() {
    example(|simulation| {
        let address = simulation.free_address().to_string();
        let node = format!("node={address}");
        let error = ["reason=\"connection_refused\"", &node, "the node refused the connection"];
        let end = "route=shop consumer=- fault=connection_refused";
        logs_name(simulation, (&to(&address, json!({})), &json!({})), 502, &error, end);
    });
}

#[test]
fn logs_name_a_node_that_closes_early() {
    example(|simulation| {
        let node = simulation.closing();
        let error = ["reason=\"connection_terminated\"", "the node closed the connection"];
        let end = "fault=connection_terminated";
        logs_name(simulation, (&to(&node.name(), json!({})), &json!({})), 502, &error, end);
    });
}

#[test]
fn logs_name_a_node_that_answers_garbage() {
    example(|simulation| {
        let node = answering(simulation, "SMTP ready\r\n\r\n");
        let error = ["reason=\"http_protocol_error\""];
        let end = "fault=http_protocol_error";
        logs_name(simulation, (&to(&node.name(), json!({})), &json!({})), 502, &error, end);
    });
}

#[test]
fn logs_name_a_node_that_is_slow() {
    example(|simulation| {
        let node = simulation.silent();
        let slow = json!({ "timeout": { "connect": 1, "send": 1, "read": 0.2 } });
        let error = ["reason=\"http_response_timeout\""];
        let end = "fault=http_response_timeout";
        logs_name(simulation, (&to(&node.name(), slow), &json!({})), 504, &error, end);
    });
}

#[test]
fn logs_name_a_response_that_is_cut() {
    example(|simulation| {
        let node = cut(simulation);
        let error = ["a response was cut", "reason=\"http_response_incomplete\"", "status=200"];
        let end = "fault=http_response_incomplete";
        logs_name(simulation, (&to(&node.name(), json!({})), &json!({})), 200, &error, end);
    });
}

#[test]
fn logs_name_a_node_with_the_other_scheme() {
    example(|simulation| {
        let plain = simulation.serve(async |mut client: Conversation| {
            let _ = client.send("HTTP/1.1 400 Bad Request\r\n\r\n").await;
            client.rest().await;
        });
        let https = to(&plain.name(), json!({ "scheme": "https" }));
        let error = ["reason=\"tls_protocol_error\""];
        logs_name(simulation, (&https, &json!({})), 502, &error, "fault=tls_protocol_error");
    });
}

#[test]
fn logs_name_a_node_whose_name_is_unknown() {
    example(|simulation| {
        let upstream = json!({ "nodes": { "nowhere.test:80": 1 } });
        let gateway = shop(simulation, &upstream, &json!({}));
        // At first the name is still requested.
        let is_unknown = || gateway.get("/shop/1").text().contains("\"dns_error\"");
        assert!(simulation.until(is_unknown), "{}", gateway.log());
        named(simulation, &gateway, 503, &["reason=\"dns_error\""], "fault=dns_error");
    });
}

#[test]
fn logs_name_an_upstream_without_nodes() {
    example(|simulation| {
        let error = ["reason=\"destination_unavailable\"", "the upstream has no node"];
        let end = "fault=destination_unavailable";
        logs_name(simulation, (&json!({ "nodes": {} }), &json!({})), 503, &error, end);
    });
}

#[test]
fn logs_name_an_upstream_in_maintenance() {
    for (state, reason) in [
        ("maintenance", "all nodes are in maintenance"),
        ("drain", "all nodes are draining or in maintenance"),
    ] {
        example(move |simulation| {
            let node = simulation.free_address().to_string();
            let upstream = to(&node, json!({ "node_states": { node.clone(): state } }));
            let error = ["reason=\"destination_unavailable\"", reason];
            let end = "fault=destination_unavailable";
            logs_name(simulation, (&upstream, &json!({})), 502, &error, end);
        });
    }
}

#[test]
fn logs_name_a_limit_that_is_reached() {
    example(|simulation| {
        let node = simulation.echo("a");
        let limit = json!({ "limit-count": { "count": 1, "time_window": 600, "key": "remote_addr" } });
        let gateway = shop(simulation, &to(&node.name(), json!({})), &json!({ "plugins": limit }));
        named(simulation, &gateway, 200, &[], "route=shop consumer=- fault=-");
        let error = ["reason=\"plugin\"", "plugin=\"limit-count\"", "status=503"];
        named(simulation, &gateway, 503, &error, "fault=plugin:limit-count");
    });
    // A refusal with 4xx is named in the access line alone.
    example(|simulation| {
        let node = simulation.echo("a");
        let auth = json!({ "plugins": { "key-auth": {} } });
        let end = "fault=plugin:key-auth";
        logs_name(simulation, (&to(&node.name(), json!({})), &auth), 401, &[], end);
    });
}

/// A 5xx of a plugin without a body names the plugin, as `show_reason` says.
#[test]
fn errors_of_plugins_have_a_reason() {
    for (rest, expected) in [
        (json!({}), "{\"error_msg\":\"503 Service Unavailable\",\"reason\":\"plugin:fault-injection\"}\n"),
        (json!({ "show_reason": "never" }), "{\"error_msg\":\"503 Service Unavailable\"}\n"),
    ] {
        example(move |simulation| {
            let plugins = json!({ "plugins": { "fault-injection": { "abort": { "http_status": 503 } } } });
            let upstream = to(&simulation.free_address().to_string(), json!({}));
            let answer = shop(simulation, &upstream, &joined(plugins, rest)).get("/shop/1");
            assert_eq!((answer.status(), &*answer.text()), (503, expected));
        });
    }
}

/// A service of authorization that is away: the line names the route, the request and the service.
#[test]
fn logs_name_an_authorization_service_that_is_away() {
    for (plugin, path) in [("forward-auth", "/verify"), ("opa", "/v1/data/shop")] {
        example(move |simulation| {
            let url = format!("http://{}", simulation.free_address());
            let conf = match plugin {
                "opa" => json!({ "host": url, "policy": "shop" }),
                _ => json!({ "uri": format!("{url}/verify?token=secret") }),
            };
            let upstream = to(&simulation.free_address().to_string(), json!({}));
            let gateway = shop(simulation, &upstream, &json!({ "plugins": { plugin: conf } }));
            named(simulation, &gateway, 403, &[], &format!("fault=plugin:{plugin}"));
            let (plugin, url) = (format!("plugin=\"{plugin}\""), format!("url={url}{path} "));
            let words = ["ERROR", &plugin, &url, "resource=\"routes/shop\"", "request_id="];
            let found = line(simulation, &gateway, &words);
            assert!(!found.contains("secret"), "{found}");
        });
    }
}

#[test]
fn logs_name_an_upstream_that_is_full() {
    example(|simulation| {
        let (node, held) = Held::node(simulation);
        let limits = json!({ "limits": { "max_requests": 1 } });
        let gateway = shop(simulation, &to(&node.name(), limits), &json!({}));
        let mut first = gateway.connect();
        first.send("GET /shop/1 HTTP/1.1\r\nHost: h\r\n\r\n");
        assert!(simulation.until(|| held.seen() == 1));
        let error = ["reason=\"upstream_overloaded\""];
        named(simulation, &gateway, 503, &error, "fault=upstream_overloaded");
        held.let_go(1);
        assert!(first.head().starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn logs_name_a_route_without_an_upstream() {
    example(|simulation| {
        let error = ["reason=\"proxy_configuration_error\"", "no upstream"];
        let plugins = json!({ "plugins": { "request-id": {} } });
        let end = "fault=proxy_configuration_error";
        logs_name(simulation, (&Value::Null, &plugins), 503, &error, end);
    });
}

/// The error log is about failures of the gateway; the access line has the node and its status.
#[test]
fn logs_name_a_node_that_answers_503() {
    example(|simulation| {
        let node = answering(simulation, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");
        let gateway = shop(simulation, &to(&node.name(), json!({})), &json!({}));
        named(simulation, &gateway, 503, &[], "route=shop consumer=- fault=-");
        gateway.await_access(&format!("{} 503 ", node.name()));
    });
}

/// Waits for the counter of a kind of refusals.
fn refused(simulation: &Simulation, gateway: &Gateway, kind: &str, count: u64) {
    let series = format!("sigma_refusals_total{{kind=\"{kind}\"}}");
    assert!(simulation.until(|| gateway.counter(&series) == count), "{kind}\n{}", gateway.log());
}

#[test]
fn cleartext_on_a_tls_listener_is_answered_and_named() {
    example(|simulation| {
        let (root, node, dir) = (Authority::new("Root"), simulation.echo("a"), tempfile::tempdir().unwrap());
        let tls = root.issue("a.test").files(dir.path(), "a");
        let gateway = simulation.gateway(config(json!({ "certificates": [tls] }), to_node(&node), json!({})));
        for request in
            ["GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "PUT /a HTTP/1.0\r\nContent-Length: 9\r\n\r\n123"]
        {
            let mut client = gateway.connect();
            client.send(request);
            let answer = client.response("GET").unwrap();
            assert_eq!(answer.status(), 400, "{request}");
            let text = answer.text();
            assert!(text.contains("\"reason\":\"cleartext_on_tls_listener\""), "{text}");
            assert!(text.contains("\"detail\":\"The plain HTTP request was sent to HTTPS port\""), "{text}");
            assert_eq!(client.whole_rest().unwrap(), b"");
        }
        // A request line may come in pieces.
        let mut client = gateway.connect();
        for part in ["G", "ET / HT", "TP/1.1\r\nHost: a\r\n\r\n"] {
            client.send(part);
        }
        assert_eq!(client.response("GET").unwrap().status(), 400);
        // The beginning of PostgreSQL, and a line that is no request.
        for request in [&b"\0\0\0\x08\x04\xd2\x16\x2f"[..], b"HELO there\r\n"] {
            let mut client = gateway.connect();
            client.send(request);
            client.rest();
        }
        refused(simulation, &gateway, "cleartext_on_tls_listener", 5);
        let parts =
            ["WARN", "a connection was refused", "reason=\"cleartext_on_tls_listener\"", "client=127.0.0.1"];
        line(simulation, &gateway, &parts);
        let parts = ["cleartext_on_tls_listener", "left_out=0", "the client sent cleartext"];
        line(simulation, &gateway, &parts);
        for kind in ["unknown_server_name", "tls_handshake_failed"] {
            refused(simulation, &gateway, kind, 0);
        }
        assert_eq!(node.requests(), 0);
    });
}

#[test]
fn a_storm_of_refusals_has_few_lines() {
    example(|simulation| {
        let (root, node, dir) = (Authority::new("Root"), simulation.echo("a"), tempfile::tempdir().unwrap());
        let tls = root.issue("a.test").files(dir.path(), "a");
        let gateway = simulation.gateway(config(json!({ "certificates": [tls] }), to_node(&node), json!({})));
        for _ in 0..200 {
            assert_eq!(gateway.get("/").status(), 400);
        }
        refused(simulation, &gateway, "cleartext_on_tls_listener", 200);
        let lines = gateway.log().matches("a connection was refused").count();
        assert!((1..100).contains(&lines), "{lines} lines of 200 refusals");
    });
}

#[test]
fn unknown_names_and_failed_handshakes_are_named() {
    example(|simulation| {
        let (root, node) = (Authority::new("Root"), simulation.echo("a"));
        let ssl = root.issue("a.test").ssl(json!({ "id": "a", "sni": "a.test" }));
        let rest = json!({ "ssls": [ssl] });
        let gateway = simulation.gateway(config(json!({}), to_node(&node), rest));
        simulation.run(async {
            assert!(shake(&gateway, &root.client(None), "a.test").await.is_ok());
            assert!(shake(&gateway, &root.client(None), "b.test").await.is_err());
            // The client does not trust the certificate.
            assert!(shake(&gateway, &Authority::new("Other").client(None), "a.test").await.is_err());
        });
        refused(simulation, &gateway, "unknown_server_name", 1);
        refused(simulation, &gateway, "tls_handshake_failed", 1);
        let parts = ["reason=\"unknown_server_name\"", "no certificate for the name b.test"];
        line(simulation, &gateway, &parts);
        line(simulation, &gateway, &["reason=\"tls_handshake_failed\"", "listener="]);
        refused(simulation, &gateway, "cleartext_on_tls_listener", 0);
    });
}

#[test]
fn tls_on_a_cleartext_listener_is_named() {
    example(|simulation| {
        let node = simulation.echo("a");
        let gateway = shop(simulation, &to(&node.name(), json!({})), &json!({}));
        let client = Authority::new("Root").client(None);
        assert!(simulation.run(shake(&gateway, &client, "a.test")).is_err());
        refused(simulation, &gateway, "tls_on_cleartext_listener", 1);
        let reason = "reason=\"tls_on_cleartext_listener\"";
        line(simulation, &gateway, &[reason, "listener=127.0.0.1:", "the client began TLS"]);
    });
}

#[test]
fn sessions_without_a_stream_route_are_named() {
    example(|simulation| {
        let upstream = json!({ "scheme": "tcp", "nodes": { simulation.free_address().to_string(): 1 } });
        let gateway = simulation.gateway(json!({
            "listeners": [{ "address": LISTEN.to_string(), "stream": "tls" }],
            "stream_routes": [{ "sni": "a.test", "upstream": upstream }],
        }));
        let client = Authority::new("Root").client(None);
        assert!(simulation.run(shake(&gateway, &client, "b.test")).is_err());
        refused(simulation, &gateway, "no_stream_route", 1);
        let reason = "reason=\"no_stream_route\"";
        line(simulation, &gateway, &[reason, "no stream route matches the TLS server name b.test"]);
        // A session of PostgreSQL without TLS.
        let mut client = gateway.connect();
        client.send(b"\0\0\0\x17\0\x03\0\0user\0postgres\0\0");
        client.rest();
        refused(simulation, &gateway, "cleartext_on_tls_listener", 1);
    });
}

#[test]
fn clients_see_reasons_as_the_setting_says() {
    let internal = json!({
        "show_reason": "internal", "trusted_addresses": ["127.0.0.1"],
        "client_address": { "field": "X-Forwarded-For" },
    });
    let always = json!({ "show_reason": "never", "upstream_status_header": "always" });
    for (rest, fields, is_shown) in [
        (json!({}), "", true),
        (json!({ "show_reason": "never" }), "", false),
        (always, "", false),
        (internal.clone(), "", true),
        (internal.clone(), "X-Forwarded-For: 10.0.0.7\r\n", true),
        (internal, "X-Forwarded-For: 203.0.113.7\r\n", false),
        (json!({ "profile": "edge" }), "", false),
    ] {
        example(move |simulation| {
            let upstream = to(&simulation.free_address().to_string(), json!({}));
            let gateway = shop(simulation, &upstream, &rest);
            let answer = gateway.ask(&format!("GET /shop/1 HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
            assert_eq!(answer.status(), 502);
            line(simulation, &gateway, &["reason=\"connection_refused\""]);
            let (text, status) = (answer.text(), answer.get("x-apisix-upstream-status"));
            assert_eq!(text.contains("\"reason\":\"connection_refused\""), is_shown, "{rest}: {text}");
            assert_eq!(status.is_some(), is_shown, "{rest}: {text} {status:?}");
            if !is_shown {
                assert_eq!(text, "{\"error_msg\":\"502 Bad Gateway\"}\n");
            }
        });
    }
}
