//! Fields of responses about their way: `Proxy-Status`, `Server-Timing`.

use std::time::Duration;

use serde_json::{Value, json};

use super::gateway::{ACCESS_LOG, Gateway, joined};
use super::peers::{Conversation, Message, Node, response};
use super::{Simulation, example};

/// A gateway with these settings, and a route with these members to this node.
fn gateway(simulation: &Simulation, node: &str, settings: Value, members: Value) -> Gateway {
    let route = json!({
        "id": "only", "uri": "/here*", "methods": ["GET", "POST"],
        "upstream": {
            "retries": 0, "timeout": { "connect": 1, "send": 1, "read": 1 }, "nodes": { node: 1 },
        },
    });
    simulation.gateway(joined(json!({ "routes": [joined(route, members)] }), settings))
}

fn ask(gateway: &Gateway, line: &str, fields: &str) -> Message {
    gateway.ask(&format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}\r\n"))
}

/// The gateway's own field in its response.
fn told(gateway: &Gateway, line: &str, fields: &str) -> (u16, String) {
    let answer = ask(gateway, line, fields);
    (answer.status(), answer.get("proxy-status").unwrap_or_default().to_owned())
}

fn named() -> Value {
    json!({ "proxy_status": "edge" })
}

/// Checks the status and the type of the failure of a request to such a node.
fn check(
    node: impl Fn(&Simulation) -> Node + Send + 'static,
    settings: Value,
    request: [&'static str; 2],
    status: u16,
    error: &'static str,
) {
    example(move |simulation| {
        let node = node(simulation);
        let gateway = gateway(simulation, &node.name(), settings, json!({}));
        let [line, fields] = request;
        let (found, field) = told(&gateway, line, fields);
        assert_eq!(found, status, "{line}");
        let begin = format!("edge; error={error}; details=\"");
        assert!(field.starts_with(&begin) && field.ends_with('"'), "{line}: {field}");
    });
}

#[test]
fn each_failure_of_a_request_has_its_type() {
    for (request, status, error) in [
        (["GET /there", ""], 404, "destination_not_found"),
        (["CONNECT h:80", ""], 405, "http_request_denied"),
        (["GET /here", "X: \u{1}\r\n"], 400, "http_request_error"),
        (["GET /here", "Expect: 200-ok\r\n"], 417, "http_request_error"),
    ] {
        check(|simulation| simulation.echo("a"), named(), request, status, error);
    }
    let limits = json!({ "limits": { "request_line_bytes": 64, "request_body_bytes": 1 } });
    let small = joined(named(), limits);
    let long =
        "GET /hereaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    let echo = |simulation: &Simulation| simulation.echo("a");
    check(echo, small.clone(), [long, ""], 414, "http_request_error");
    check(echo, small, ["POST /here", "Content-Length: 2\r\n"], 413, "http_request_error");
}

#[test]
fn each_failure_of_a_node_has_its_type() {
    const HERE: [&str; 2] = ["GET /here", ""];
    const LARGE: &str =
        "HTTP/1.1 200 OK\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n\r\n";
    let answering = |answer: &'static str| {
        move |simulation: &Simulation| simulation.answer(move |_| answer.as_bytes().to_vec())
    };
    let tight = joined(named(), json!({ "limits": { "response_head_bytes": 60 } }));
    check(|simulation| simulation.silent(), named(), HERE, 504, "http_response_timeout");
    check(answering("SMTP ready\r\n\r\n"), named(), HERE, 502, "http_protocol_error");
    check(answering(LARGE), tight, HERE, 502, "http_response_header_section_size");
    check(|simulation| simulation.closing(), named(), HERE, 502, "connection_terminated");
    example(|simulation| {
        let refusing = simulation.free_address().to_string();
        let gateway = gateway(simulation, &refusing, named(), json!({}));
        let (status, field) = told(&gateway, "GET /here", "");
        assert_eq!(status, 502);
        assert!(field.starts_with("edge; error=connection_refused; details=\""), "{field}");
        assert!(field.ends_with('"'), "{field}");
    });
}

/// Cleartext HTTP/2 has prior knowledge: a node that answers otherwise has not refused the connection.
#[test]
fn a_node_without_http2_differs_from_one_that_refuses() {
    for (is_there, answer, error) in [
        (true, &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..], "http_protocol_error"),
        (true, b"", "http_protocol_error"),
        (false, b"", "connection_refused"),
    ] {
        example(move |simulation| {
            let node = simulation.serve(move |mut client: Conversation| async move {
                if !answer.is_empty() {
                    client.exactly(1).await;
                    client.send(answer).await.unwrap();
                    client.rest().await;
                }
            });
            let address = if is_there { node.name() } else { simulation.free_address().to_string() };
            let upstream = json!({ "upstream": { "nodes": { address: 1 }, "scheme": "grpc", "retries": 0 } });
            let access_log = json!({ "path": ACCESS_LOG, "format": "fault=$fault", "flush_ms": 100 });
            let settings = joined(named(), json!({ "access_log": access_log }));
            let gateway = gateway(simulation, "", settings, upstream);
            let (status, field) = told(&gateway, "GET /here", "");
            assert_eq!(status, 502, "{field}");
            assert!(field.starts_with(&format!("edge; error={error}; details=\"")), "{field}");
            gateway.await_access(&format!("fault={error}\n"));
            assert!(gateway.counter(&format!("sigma_faults_total{{kind=\"{error}\"}}")) > 0);
        });
    }
}

#[test]
fn answers_of_plugins_differ_from_answers_of_nodes() {
    let limited = json!({ "plugins": { "ip-restriction": { "blacklist": ["127.0.0.1"] } } });
    let ours = (403, "edge; error=proxy_internal_response");
    // Without a name nothing is added. A name that is no token of structured fields is a string.
    for (settings, members, line, expected) in [
        (named(), limited.clone(), "GET /here", ours),
        (named(), json!({}), "GET /here", (200, "")),
        (json!({}), limited.clone(), "GET /here", (403, "")),
        (json!({}), limited.clone(), "GET /there", (404, "")),
        (
            json!({ "proxy_status": "7.example" }),
            limited.clone(),
            "GET /here",
            (403, "\"7.example\"; error=proxy_internal_response"),
        ),
    ] {
        example(move |simulation| {
            let node = simulation.echo("a");
            let gateway = gateway(simulation, &node.name(), settings, members);
            let (status, field) = told(&gateway, line, "");
            assert_eq!((status, &*field), expected, "{line}");
        });
    }
}

/// A node that takes 20 milliseconds, and reports a time of its own.
fn timing(simulation: &Simulation) -> Node {
    simulation.answer_later(async |_| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        response(200, "Server-Timing: db;dur=5\r\n", "")
    })
}

#[test]
fn times_are_reported_where_they_are_enabled() {
    let durations = |field: &str| -> Vec<(String, f64)> {
        let entries = field.split(", ").map(|entry| entry.split_once(";dur=").unwrap());
        entries.map(|(name, ms)| (name.to_owned(), ms.parse().unwrap())).collect()
    };
    example(move |simulation| {
        let node = timing(simulation);
        let gateway = gateway(simulation, &node.name(), json!({ "server_timing": true }), json!({}));
        let answer = ask(&gateway, "GET /here", "");
        let [of_node, own] = answer.all("server-timing")[..] else { panic!("{answer:?}") };
        assert_eq!(of_node, "db;dur=5");
        let [(total, all), (upstream, waited)] = &durations(own)[..] else { panic!("{own}") };
        assert_eq!((&total[..], &upstream[..]), ("total", "upstream"));
        assert!(all >= waited && *waited > 0.0, "{own}");
        let answer = ask(&gateway, "GET /there", "");
        let [own] = answer.all("server-timing")[..] else { panic!("{answer:?}") };
        assert!(matches!(&durations(own)[..], [(name, _)] if name == "total"), "{own}");
    });
    example(|simulation| {
        let node = timing(simulation);
        let gateway = gateway(simulation, &node.name(), json!({}), json!({}));
        assert_eq!(ask(&gateway, "GET /here", "").all("server-timing"), ["db;dur=5"]);
    });
}
