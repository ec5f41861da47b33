//! Nodes that real requests show to be bad, with passive checks alone and with outlier detection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, Peer, until};

use crate::h2::{Node, ask, connect, request, within};
use crate::{PATIENCE, SIGMA};

/// A node with a settable status.
fn node(status: u16) -> (Origin, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(status));
    let told = Arc::clone(&status);
    let answer = move |_: &_| {
        let status = told.load(Ordering::SeqCst);
        format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n").into_bytes()
    };
    (Origin::answer(answer).unwrap(), status)
}

/// A gateway of two workers with a control listener in front of an upstream of these nodes.
fn gateway(nodes: &[&Origin], mut upstream: Value) -> Gateway {
    let each = nodes.iter().map(|node| (format!("127.0.0.1:{}", node.port()), json!(1)));
    upstream["nodes"] = Value::Object(each.collect());
    let config = json!({
        "workers": 2, "listeners": ["{listen}"], "control": { "address": "{control}" },
        "routes": [{ "id": "all", "uri": "/*", "upstream": upstream }],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn get(gateway: &Gateway) -> u16 {
    gateway.connect().unwrap().ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap().status()
}

/// The node in `/v1/healthcheck`.
fn shown(gateway: &Gateway, node: &Origin) -> Value {
    let text = Peer::connect(&gateway.control_address()).unwrap().get("/v1/healthcheck").unwrap().text();
    let health: Value = serde_json::from_str(&text).unwrap();
    let nodes = health[0]["nodes"].as_array().unwrap();
    nodes.iter().find(|shown| shown["port"] == node.port()).unwrap().clone()
}

/// Sends requests until the reason is that one.
fn requests_until(gateway: &Gateway, node: &Origin, reason: &Value) -> Value {
    let reached = || {
        (0..10).for_each(|_| assert!(get(gateway) > 0));
        shown(gateway, node)["reason"] == *reason
    };
    assert!(until(PATIENCE, reached), "want {reason}: {}", shown(gateway, node));
    shown(gateway, node)
}

/// The file with the health of nodes, once it contains this word.
fn kept(gateway: &Gateway, word: &str) -> std::path::PathBuf {
    let path = gateway.dir().join("data/health.json");
    let says = || std::fs::read_to_string(&path).is_ok_and(|text| text.contains(word));
    assert!(until(PATIENCE, says), "{word} is not in {}:\n{}", path.display(), gateway.stderr());
    path
}

fn start_again(gateway: &mut Gateway) {
    gateway.kill().unwrap();
    gateway.start_again().unwrap();
    crate::managed::await_control(gateway);
}

#[test]
fn an_ejection_lasts_over_a_restart_and_a_damaged_file_is_ignored() {
    let ((bad, _), (good, _), (other, _)) = (node(503), node(200), node(200));
    let detection = json!({ "consecutive_5xx": 4, "base_ejection_time": 3600, "max_ejection_time": 7200 });
    let upstream = json!({ "outlier_detection": detection });
    let mut gateway = gateway(&[&bad, &good, &other], upstream);
    let before = requests_until(&gateway, &bad, &json!("outlier: consecutive_5xx"));
    kept(&gateway, "consecutive_5xx");
    start_again(&mut gateway);
    let after = shown(&gateway, &bad);
    assert_eq!((&after["reason"], &after["ejected_until"]), (&before["reason"], &before["ejected_until"]));
    let asked = bad.requests();
    (0..20).for_each(|_| assert_eq!(get(&gateway), 200));
    assert_eq!(bad.requests(), asked);
    // It is there for the one after that as well.
    let path = kept(&gateway, "consecutive_5xx");
    start_again(&mut gateway);
    assert_eq!(shown(&gateway, &bad)["reason"], before["reason"]);
    gateway.kill().unwrap();
    std::fs::write(path, "{\"version\":1,").unwrap();
    gateway.start_again().unwrap();
    crate::managed::await_control(&gateway);
    assert_eq!(shown(&gateway, &bad)["reason"], Value::Null);
    assert!(gateway.stderr().contains("cannot read the stored health of nodes"), "{}", gateway.stderr());
}

#[test]
fn nodes_that_probes_have_found_down_are_down_after_a_restart() {
    let ((bad, _), (good, _)) = (node(503), node(200));
    // No probe finds it out again within the test.
    let probes = json!({ "http_path": "/", "healthy": { "interval": 1, "successes": 1 },
        "unhealthy": { "interval": 3600, "http_failures": 1 } });
    let upstream = json!({ "checks": { "active": probes } });
    let mut gateway = gateway(&[&bad, &good], upstream);
    let is_down = |gateway: &Gateway| shown(gateway, &bad)["reason"] == "active check: http_failure";
    assert!(until(PATIENCE, || is_down(&gateway)), "{}", gateway.stderr());
    kept(&gateway, "http_failure");
    let asked = bad.requests();
    start_again(&mut gateway);
    assert!(is_down(&gateway));
    (0..20).for_each(|_| assert_eq!(get(&gateway), 200));
    assert_eq!(bad.requests(), asked);
}

/// How a node ends calls.
#[derive(Clone, Copy)]
enum Ends {
    /// With this code, after a message.
    InTrailers(&'static str),
    /// With this code in a head that is the whole response.
    AtOnce(&'static str),
    /// After a message, with this code; the response says that it is no call.
    AsPage(&'static str),
}

async fn node_of_grpc(ends: Ends) -> Node {
    let serve = move |_: Request<RecvStream>, mut respond: SendResponse<Bytes>| async move {
        let (code, kind) = match ends {
            Ends::InTrailers(code) | Ends::AtOnce(code) => (code, "application/grpc"),
            Ends::AsPage(code) => (code, "text/plain"),
        };
        let head = Response::builder().header("content-type", kind);
        if let Ends::AtOnce(code) = ends {
            respond.send_response(head.header("grpc-status", code).body(()).unwrap(), true).unwrap();
            return;
        }
        let mut out = respond.send_response(head.body(()).unwrap(), false).unwrap();
        out.send_data(Bytes::from_static(&[0; 5]), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", code.parse().unwrap());
        out.send_trailers(trailers).unwrap();
    };
    Node::start(h2::server::Builder::new(), serve).await
}

/// The verdict on a gRPC node after calls with these fields, judged by `rules`.
async fn judged(ends: Ends, fields: &[(&str, &str)], rules: &Value) -> (Value, Vec<u16>) {
    let node = node_of_grpc(ends).await;
    let mut upstream = json!({
        "id": "u", "scheme": "grpc", "nodes": { format!("127.0.0.1:{}", node.port()): 1 },
    });
    upstream.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
    let config = json!({
        "workers": 1, "listeners": ["{listen}"], "control": { "address": "{control}" },
        "upstreams": [upstream], "routes": [{ "id": "all", "uri": "/*", "upstream_id": "u" }],
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let (client, _driver) = connect(&gateway).await;
    let mut statuses = Vec::new();
    for _ in 0..6 {
        let call =
            fields.iter().fold(request("POST", "/x"), |call, (name, value)| call.header(*name, *value));
        let (status, headers, _) =
            ask(&client, call.body(()).unwrap(), Some(Bytes::from_static(&[0; 5]))).await;
        let code = headers.get("grpc-status").map_or(0, |code| code.to_str().unwrap().parse().unwrap());
        statuses.push(if status == 200 { code } else { status });
    }
    let reason = || {
        let text = Peer::connect(&gateway.control_address()).unwrap().get("/v1/healthcheck").unwrap().text();
        serde_json::from_str::<Value>(&text).unwrap()[0]["nodes"][0]["reason"].clone()
    };
    let reason = match (rules.get("circuit_breaker"), ends) {
        (Some(_), _) => Value::Null,
        (None, Ends::InTrailers("14") | Ends::AtOnce("14")) => {
            // Findings are applied by the control thread, soon.
            crate::h2::until(|| !reason().is_null()).await;
            reason()
        }
        _ => reason(),
    };
    (reason, statuses)
}

const CALL: &[(&str, &str)] = &[("content-type", "application/grpc")];

#[test]
fn a_call_is_judged_by_the_status_of_its_code() {
    let outliers = json!({ "outlier_detection": { "consecutive_5xx": 6, "base_ejection_time": 3600 } });
    let passive = json!({ "http_failures": 6, "http_statuses": [503] });
    let passive = json!({ "checks": { "passive": { "unhealthy": passive, "fail_timeout": 3600 } } });
    let (ejected, failed) = (json!("outlier: consecutive_5xx"), json!("passive check: http_failure"));
    let short = &[("content-type", "application/grpc"), ("grpc-timeout", "60S")];
    within(async {
        for (ends, fields, rules, reason) in [
            (Ends::InTrailers("14"), CALL, &outliers, &ejected),
            (Ends::AtOnce("14"), CALL, &outliers, &ejected),
            (Ends::InTrailers("14"), CALL, &passive, &failed),
            (Ends::InTrailers("0"), CALL, &outliers, &Value::Null),
            (Ends::InTrailers("5"), CALL, &outliers, &Value::Null),
            // The node has had the time that the client gave.
            (Ends::InTrailers("4"), short, &outliers, &Value::Null),
            // A response that is no call may have any code.
            (Ends::AsPage("14"), &[], &outliers, &Value::Null),
        ] {
            let (said, statuses) = judged(ends, fields, rules).await;
            assert_eq!((said, statuses.len()), (reason.clone(), 6));
        }
    });
}

#[test]
fn guards_judge_calls_by_their_codes() {
    let breaker =
        json!({ "minimum_number_of_calls": 3, "sliding_window": 3600, "wait_duration_in_open_state": 3600 });
    let rules = json!({ "circuit_breaker": breaker });
    within(async {
        let (_, statuses) = judged(Ends::InTrailers("13"), CALL, &rules).await;
        // Three end with the node's code, in trailers; the others are the gateway's responses.
        assert_eq!(statuses, [0, 0, 0, 14, 14, 14]);
        let (_, statuses) = judged(Ends::InTrailers("5"), CALL, &rules).await;
        assert_eq!(statuses, [0; 6]);
    });
}
