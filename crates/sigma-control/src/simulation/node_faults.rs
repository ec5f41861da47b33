//! Faults that count against a node, and those that do not.

use serde_json::{Value, json};

use super::gateway::{Gateway, catch_all, joined};
use super::peers::{Conversation, nodes_of};
use super::{Simulation, example};

/// Checks by traffic alone: probes come once an hour.
fn passive(unhealthy: Value) -> Value {
    let active = json!({ "type": "tcp", "healthy": { "interval": 3600 }, "unhealthy": { "interval": 3600 } });
    json!({ "active": active, "passive": { "unhealthy": unhealthy } })
}

fn health(gateway: &Gateway) -> String {
    gateway.control("GET", "/v1/healthcheck", None).text
}

/// Sends GETs until the node counts as unhealthy.
fn turns_unhealthy(simulation: &Simulation, gateway: &Gateway, status: u16) {
    let unhealthy = || {
        assert_eq!(gateway.get("/").status(), status);
        health(gateway).contains("\"unhealthy\"")
    };
    assert!(simulation.until(unhealthy), "{}", health(gateway));
}

#[test]
fn the_last_attempt_counts_too() {
    for is_there in [false, true] {
        for retries in [json!({ "retries": 0 }), json!({})] {
            example(move |simulation| {
                let closing = simulation.closing();
                let name = if is_there { closing.name() } else { simulation.free_address().to_string() };
                let tcp = json!({ "tcp_failures": 2, "http_failures": 0, "timeouts": 0 });
                let upstream = json!({ "nodes": { name: 1 }, "checks": passive(tcp) });
                let gateway = simulation.gateway(catch_all(joined(upstream, retries)));
                turns_unhealthy(simulation, &gateway, 502);
            });
        }
    }
}

#[test]
fn a_timeout_of_the_last_attempt_counts() {
    example(|simulation| {
        let silent = simulation.silent();
        let gateway = simulation.gateway(catch_all(json!({
            "nodes": nodes_of(&[&silent]), "retries": 0, "timeout": { "connect": 5, "send": 5, "read": 30 },
            "checks": passive(json!({ "tcp_failures": 0, "http_failures": 0, "timeouts": 2 })),
        })));
        turns_unhealthy(simulation, &gateway, 504);
    });
}

#[test]
fn a_status_that_the_gateway_gave_for_its_node_counts() {
    example(|simulation| {
        let unhealthy =
            json!({ "http_statuses": [502], "http_failures": 2, "tcp_failures": 0, "timeouts": 0 });
        let nodes = json!({ simulation.free_address().to_string(): 1 });
        let gateway = simulation.gateway(catch_all(json!({ "nodes": nodes, "checks": passive(unhealthy) })));
        turns_unhealthy(simulation, &gateway, 502);
    });
}

/// None of it marks a node; a node that does fail marks it afterwards, so the reports had come.
#[test]
fn faults_of_a_client_do_not_count_against_a_node() {
    example(|simulation| {
        // Closes as soon as it has a head, and would be called unhealthy at once.
        let impatient = simulation.serve(async |mut client: Conversation| drop(client.head().await));
        let gateway = simulation.gateway(catch_all(json!({
            "nodes": nodes_of(&[&impatient]),
            "checks": passive(json!({ "http_statuses": [400, 408, 499, 502, 504], "http_failures": 1,
                                      "tcp_failures": 1, "timeouts": 1 })),
        })));
        for _ in 0..3 {
            let mut client = gateway.connect();
            client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab");
            assert_eq!(client.response("POST").unwrap().status(), 502);
            let bad = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
            assert_eq!(gateway.ask(bad).status(), 400);
        }
        assert!(!health(&gateway).contains("unhealthy"), "{}", health(&gateway));
        turns_unhealthy(simulation, &gateway, 502);
    });
}
