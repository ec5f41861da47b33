//! Nodes that real requests show to be bad, with passive checks alone and with outlier detection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, Peer, until};

use crate::{PATIENCE, SIGMA};

/// A node that answers with the status it is told.
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

/// What `/v1/healthcheck` says of the node.
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

#[test]
fn passive_checks_alone_take_a_node_out_and_give_it_back() {
    let ((bad, status), (good, _)) = (node(500), node(200));
    let passive = json!({ "unhealthy": { "http_failures": 3 }, "fail_timeout": 0.3 });
    let gateway = gateway(&[&bad, &good], json!({ "checks": { "passive": passive } }));
    requests_until(&gateway, &bad, &json!("passive check: http_failure"));
    status.store(200, Ordering::SeqCst);
    let before = bad.requests();
    let back = until(PATIENCE, || {
        assert_eq!(get(&gateway), 200);
        bad.requests() > before
    });
    assert!(back, "{}", shown(&gateway, &bad));
    requests_until(&gateway, &bad, &Value::Null);
}

#[test]
fn errors_in_a_row_eject_a_node() {
    let ((bad, _), (good, _), (other, _)) = (node(503), node(200), node(200));
    let detection = json!({ "consecutive_5xx": 4, "base_ejection_time": 3600 });
    let gateway = gateway(&[&bad, &good, &other], json!({ "outlier_detection": detection }));
    let shown = requests_until(&gateway, &bad, &json!("outlier: consecutive_5xx"));
    assert_eq!(shown["status"], "unhealthy");
    assert!(shown["ejected_until"].as_u64().unwrap() > 3600, "{shown}");
    let before = bad.requests();
    (0..50).for_each(|_| assert_eq!(get(&gateway), 200));
    assert_eq!(bad.requests(), before);
    assert!(gateway.stderr().contains("outlier: consecutive_5xx"), "{}", gateway.stderr());
}

#[test]
fn an_ejected_node_comes_back_and_a_share_of_them_stays() {
    let ((first, status), (second, _), (good, _)) = (node(500), node(500), node(200));
    let detection = json!({ "consecutive_5xx": 2, "base_ejection_time": 0.2, "max_ejection_time": 0.2 });
    let gateway = gateway(&[&first, &second, &good], json!({ "outlier_detection": detection }));
    requests_until(&gateway, &first, &json!("outlier: consecutive_5xx"));
    // One of three may be out: never both.
    for _ in 0..20 {
        (0..10).for_each(|_| assert!(get(&gateway) > 0));
        let text = Peer::connect(&gateway.control_address()).unwrap().get("/v1/healthcheck").unwrap().text();
        assert!(text.matches("outlier").count() <= 1, "{text}");
    }
    status.store(200, Ordering::SeqCst);
    requests_until(&gateway, &first, &Value::Null);
    let before = first.requests();
    assert!(until(PATIENCE, || get(&gateway) > 0 && first.requests() > before), "it gets requests again");
}

#[test]
fn a_sweep_ejects_by_the_percentage_of_failures() {
    let ((bad, _), (good, _), (other, _)) = (node(500), node(200), node(200));
    let detection = json!({
        "enforcing_consecutive_5xx": 0, "enforcing_success_rate": 0, "enforcing_failure_percentage": 100,
        "failure_percentage_minimum_hosts": 3, "failure_percentage_request_volume": 3,
        "failure_percentage_threshold": 60, "interval": 0.2, "base_ejection_time": 3600,
    });
    let gateway = gateway(&[&bad, &good, &other], json!({ "outlier_detection": detection }));
    requests_until(&gateway, &bad, &json!("outlier: failure_percentage"));
    assert_eq!(shown(&gateway, &good)["reason"], Value::Null);
}

/// Connections that are refused count as errors, or by a rule of their own.
#[test]
fn failures_on_connections_eject_a_node() {
    for (split, reason) in
        [(false, "outlier: consecutive_5xx"), (true, "outlier: consecutive_local_origin_failure")]
    {
        let (gone, _) = node(200);
        let closing = Origin::serve(|mut peer| drop(peer.read_request())).unwrap();
        let detection = json!({
            "consecutive_5xx": 3, "consecutive_local_origin_failure": 3, "base_ejection_time": 3600,
            "split_external_local_origin_errors": split,
        });
        let gateway = gateway(&[&closing, &gone], json!({ "outlier_detection": detection }));
        requests_until(&gateway, &closing, &json!(reason));
    }
}
