//! Nodes that real requests show to be bad, with passive checks alone and with outlier detection.

use std::cell::Cell;
use std::time::Duration;

use serde_json::{Value, json};

use super::gateway::{Gateway, catch_all, joined};
use super::peers::{Node, nodes_of, response};
use super::{Simulation, example};

fn gateway(simulation: &Simulation, nodes: &[&Node], upstream: Value) -> Gateway {
    simulation.gateway(catch_all(joined(json!({ "nodes": nodes_of(nodes) }), upstream)))
}

fn get(gateway: &Gateway) -> u16 {
    gateway.get("/").status()
}

/// The node in `/v1/healthcheck`.
fn shown(gateway: &Gateway, node: &Node) -> Value {
    let health = gateway.control("GET", "/v1/healthcheck", None).json();
    let nodes = health[0]["nodes"].as_array().unwrap();
    let is_it = |shown: &&Value| shown["ip"] == node.address.ip().to_string();
    nodes.iter().find(is_it).unwrap_or_else(|| panic!("{health}")).clone()
}

/// Sends requests until the reason is that one.
fn requests_until(simulation: &Simulation, gateway: &Gateway, node: &Node, reason: &Value) -> Value {
    let reached = || {
        (0..10).for_each(|_| assert!(get(gateway) > 0));
        simulation.pass(Duration::from_millis(500));
        shown(gateway, node)["reason"] == *reason
    };
    assert!(simulation.until(reached), "want {reason}: {}", shown(gateway, node));
    shown(gateway, node)
}

#[test]
fn passive_checks_alone_take_a_node_out_and_give_it_back() {
    example(|simulation| {
        let ((bad, status), good) = (simulation.moody(500), simulation.always(200));
        let passive = json!({ "unhealthy": { "http_failures": 3 }, "fail_timeout": 30 });
        let gateway = gateway(simulation, &[&bad, &good], json!({ "checks": { "passive": passive } }));
        requests_until(simulation, &gateway, &bad, &json!("passive check: http_failure"));
        status.set(200);
        let before = bad.requests();
        simulation.pass(Duration::from_secs(25));
        assert_eq!([(); 10].map(|()| get(&gateway)), [200; 10]);
        assert_eq!(bad.requests(), before, "it has its time out");
        simulation.pass(Duration::from_secs(10));
        let back = simulation.until(|| get(&gateway) == 200 && bad.requests() > before);
        assert!(back, "{}", shown(&gateway, &bad));
        requests_until(simulation, &gateway, &bad, &Value::Null);
    });
}

/// However fast they come, and however late they are looked at.
#[test]
fn failures_with_successes_between_them_are_no_row() {
    example(|simulation| {
        let counter = Cell::new(0);
        let moody = simulation.answer(move |_| {
            counter.set(counter.get() + 1);
            response(if counter.get() % 3 == 0 { 200 } else { 500 }, "", "")
        });
        let good = simulation.always(200);
        let passive = json!({ "unhealthy": { "http_failures": 3 }, "fail_timeout": 3600 });
        let gateway = gateway(simulation, &[&moody, &good], json!({ "checks": { "passive": passive } }));
        let mut client = gateway.connect();
        for _ in 0..600 {
            client.get("/");
        }
        assert_eq!(shown(&gateway, &moody)["reason"], Value::Null);
        let before = moody.requests();
        (0..8).for_each(|_| assert!(get(&gateway) > 0));
        assert!(moody.requests() > before);
        assert!(!gateway.log().contains("the node is unhealthy"), "{}", gateway.log());
    });
}

#[test]
fn errors_in_a_row_eject_a_node() {
    example(|simulation| {
        let [bad, good, other] = [503, 200, 200].map(|status| simulation.always(status));
        let detection = json!({ "consecutive_5xx": 4, "base_ejection_time": 3600 });
        let upstream = json!({ "outlier_detection": detection });
        let gateway = gateway(simulation, &[&bad, &good, &other], upstream);
        let shown = requests_until(simulation, &gateway, &bad, &json!("outlier: consecutive_5xx"));
        assert_eq!(shown["status"], "unhealthy");
        assert!(shown["ejected_until"].as_u64().unwrap() > 3600, "{shown}");
        let before = bad.requests();
        assert_eq!([(); 50].map(|()| get(&gateway)), [200; 50]);
        assert_eq!(bad.requests(), before);
        assert!(gateway.log().contains("outlier: consecutive_5xx"), "{}", gateway.log());
    });
}

#[test]
fn an_unenforced_rule_counts_ejections() {
    example(|simulation| {
        let [bad, good, other] = [503, 200, 200].map(|status| simulation.always(status));
        let detection = json!({ "consecutive_5xx": 2, "enforcing_consecutive_5xx": 0 });
        let upstream = json!({ "outlier_detection": detection });
        let gateway = gateway(simulation, &[&bad, &good, &other], upstream);
        let counted = || {
            (0..10).for_each(|_| assert!(get(&gateway) > 0));
            let nodes = gateway.nodes("routes/all");
            let of = |node: &Node| {
                nodes.iter().find(|shown| shown["node"] == node.name()).unwrap()["not_ejected"].clone()
            };
            (of(&bad)["consecutive_5xx"].as_u64().unwrap_or_default(), of(&good))
        };
        assert!(simulation.until(|| counted().0 > 1), "{:?}", counted());
        assert_eq!(counted().1, Value::Null);
        let (before, shown) = (bad.requests(), shown(&gateway, &bad));
        assert_eq!((&shown["status"], &shown["reason"]), (&json!("healthy"), &Value::Null));
        assert!(simulation.until(|| get(&gateway) > 0 && bad.requests() > before), "it gets requests");
    });
}

#[test]
fn an_ejected_node_comes_back_and_a_share_of_them_stays() {
    example(|simulation| {
        let ((first, status), second, good) =
            (simulation.moody(500), simulation.always(500), simulation.always(200));
        let detection = json!({ "consecutive_5xx": 2, "base_ejection_time": 20, "max_ejection_time": 20 });
        let upstream = json!({ "outlier_detection": detection });
        let gateway = gateway(simulation, &[&first, &second, &good], upstream);
        requests_until(simulation, &gateway, &first, &json!("outlier: consecutive_5xx"));
        // One of three may be out: never both.
        for _ in 0..60 {
            (0..10).for_each(|_| assert!(get(&gateway) > 0));
            simulation.pass(Duration::from_secs(1));
            let text = gateway.control("GET", "/v1/healthcheck", None).text;
            assert!(text.matches("outlier").count() <= 1, "{text}");
        }
        status.set(200);
        requests_until(simulation, &gateway, &first, &Value::Null);
        let before = first.requests();
        assert!(
            simulation.until(|| get(&gateway) > 0 && first.requests() > before),
            "it gets requests again"
        );
    });
}

#[test]
fn a_sweep_ejects_by_the_percentage_of_failures() {
    example(|simulation| {
        let [bad, good, other] = [500, 200, 200].map(|status| simulation.always(status));
        let detection = json!({
            "enforcing_consecutive_5xx": 0, "enforcing_success_rate": 0, "enforcing_failure_percentage": 100,
            "failure_percentage_minimum_hosts": 3, "failure_percentage_request_volume": 3,
            "failure_percentage_threshold": 60, "interval": 10, "base_ejection_time": 3600,
        });
        let upstream = json!({ "outlier_detection": detection });
        let gateway = gateway(simulation, &[&bad, &good, &other], upstream);
        requests_until(simulation, &gateway, &bad, &json!("outlier: failure_percentage"));
        assert_eq!(shown(&gateway, &good)["reason"], Value::Null);
    });
}

/// Connections that are refused count as errors, or by their own rule.
#[test]
fn failures_on_connections_eject_a_node() {
    for (split, reason) in
        [(false, "outlier: consecutive_5xx"), (true, "outlier: consecutive_local_origin_failure")]
    {
        example(move |simulation| {
            let (closing, good) = (simulation.closing(), simulation.always(200));
            let detection = json!({
                "consecutive_5xx": 3, "consecutive_local_origin_failure": 3, "base_ejection_time": 3600,
                "split_external_local_origin_errors": split,
            });
            let gateway = gateway(simulation, &[&closing, &good], json!({ "outlier_detection": detection }));
            requests_until(simulation, &gateway, &closing, &json!(reason));
        });
    }
}
