//! Requests that are refused while the gateway runs out of memory, descriptors or time.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, until};

use crate::{PATIENCE, SIGMA};

const CLASSES: [&str; 4] = ["sheddable", "sheddable_plus", "critical", "critical_plus"];

/// A route of each class, one that says nothing, and one that says otherwise than its service.
fn start(origin: &Origin, rules: &Value) -> Gateway {
    let mut routes: Vec<Value> = CLASSES
        .iter()
        .map(|class| json!({ "id": class, "uri": format!("/{class}"), "upstream_id": "u", "priority_class": class }))
        .collect();
    routes.push(json!({ "id": "plain", "uri": "/plain", "upstream_id": "u" }));
    routes.push(json!({ "id": "of-service", "uri": "/of-service", "service_id": "batch" }));
    routes.push(
        json!({ "id": "own", "uri": "/own", "service_id": "batch", "priority_class": "critical_plus" }),
    );
    let config = json!({
        "workers": 1, "listeners": ["{listen}"], "status": { "address": "{status}" }, "load_shedding": rules,
        "upstreams": [{ "id": "u", "nodes": { format!("127.0.0.1:{}", origin.port()): 1 } }],
        "services": [{ "id": "batch", "upstream_id": "u", "priority_class": "sheddable" }],
        "routes": routes,
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn origin() -> Origin {
    Origin::answer(|_| b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()).unwrap()
}

fn status(gateway: &Gateway, path: &str) -> u16 {
    gateway.connect().unwrap().get(path).unwrap().status()
}

fn pressure(gateway: &Gateway, resource: &str) -> u64 {
    gateway.counter(&format!("sigma_pressure_percent{{resource=\"{resource}\"}}"))
}

#[test]
fn without_memory_only_the_most_important_are_served() {
    let origin = origin();
    let gateway = start(&origin, &json!({ "memory_bytes": 1 }));
    assert!(until(PATIENCE, || status(&gateway, "/sheddable") == 503));
    for (path, expected) in [
        ("/sheddable", 503),
        ("/sheddable_plus", 503),
        ("/critical", 503),
        ("/plain", 503),
        ("/critical_plus", 200),
        ("/of-service", 503),
        ("/own", 200),
        // A request without a route gets 404.
        ("/none", 404),
    ] {
        assert_eq!(status(&gateway, path), expected, "{path}");
    }
    let text = gateway.connect().unwrap().get("/plain").unwrap().text();
    assert!(text.contains("gateway_overloaded"), "{text}");
    assert!(gateway.counter("sigma_requests_shed_total") >= 6);
    assert!(pressure(&gateway, "memory") > 100);
    assert!(gateway.stderr().contains("under pressure"), "{}", gateway.stderr());
}

#[test]
fn with_enough_memory_no_request_is_refused() {
    let origin = origin();
    let gateway = start(&origin, &json!({ "memory_bytes": 1_u64 << 40 }));
    assert!(until(PATIENCE, || pressure(&gateway, "descriptors") < 80));
    for class in CLASSES {
        assert_eq!(status(&gateway, &format!("/{class}")), 200);
    }
    assert_eq!(gateway.counter("sigma_requests_shed_total"), 0);
}

#[test]
fn a_dry_run_counts_without_refusing() {
    let origin = origin();
    let gateway = start(&origin, &json!({ "memory_bytes": 1, "dry_run": true }));
    let shed = || gateway.counter("sigma_requests_shed_dry_run_total");
    assert!(until(PATIENCE, || status(&gateway, "/plain") == 200 && shed() > 0));
    assert_eq!(gateway.counter("sigma_requests_shed_total"), 0);
}

#[test]
fn it_is_turned_off() {
    let origin = origin();
    let gateway = start(&origin, &json!({ "memory_bytes": 1, "enabled": false }));
    let began = Instant::now();
    assert!(until(PATIENCE, || {
        assert_eq!(status(&gateway, "/sheddable"), 200);
        began.elapsed() > Duration::from_secs(2)
    }));
}

/// A worker that does not come to its work: here because the process is stopped for a while.
#[test]
fn a_worker_that_is_late_refuses_what_can_wait() {
    let origin = origin();
    let rules = json!({ "queue_time_ms": 10, "sheddable_percent": 100, "sheddable_plus_percent": 100, "critical_percent": 100 });
    let gateway = start(&origin, &rules);
    assert!(until(PATIENCE, || {
        gateway.pause().unwrap();
        let stopped = Instant::now();
        let was_stopped = until(PATIENCE, || stopped.elapsed() > Duration::from_millis(300));
        gateway.resume().unwrap();
        was_stopped && status(&gateway, "/plain") == 503
    }));
    assert_eq!(status(&gateway, "/critical_plus"), 200);
    assert!(until(PATIENCE, || status(&gateway, "/plain") == 200));
}

#[test]
fn the_less_important_go_first() {
    let origin = origin();
    let config = json!({
        "listeners": ["{listen}"], "load_shedding": { "sheddable_percent": 96 },
        "upstreams": [{ "id": "u", "nodes": { format!("127.0.0.1:{}", origin.port()): 1 } }],
    });
    let error = Gateway::start(SIGMA, &config.to_string()).map(drop).unwrap_err().to_string();
    assert!(
        error.contains("`sheddable_percent` is 96, above `sheddable_plus_percent`, which is 90"),
        "{error}"
    );
}
