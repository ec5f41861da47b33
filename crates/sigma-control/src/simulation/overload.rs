//! Guards of upstreams: limits and queues, circuit breakers, admission control, adaptive concurrency.

use std::time::Duration;

use serde_json::{Value, json};

use super::gateway::{Gateway, catch_all, joined};
use super::peers::{Held, Node, nodes_of, response};
use super::{Simulation, example};

fn upstream(node: &Node, rules: Value) -> Value {
    joined(json!({ "id": "u", "nodes": nodes_of(&[node]) }), rules)
}

fn start(simulation: &Simulation, upstreams: Value) -> Gateway {
    simulation.gateway(json!({
        "timeouts": { "half_close_ms": 100 }, "upstreams": upstreams,
        "routes": [{ "id": "all", "uri": "/*", "upstream_id": "u" }],
    }))
}

fn gateway(simulation: &Simulation, node: &Node, rules: Value) -> Gateway {
    start(simulation, json!([upstream(node, rules)]))
}

/// Returns the status and the text of a response.
fn ask(gateway: &Gateway) -> (u16, String) {
    let response = gateway.get("/");
    (response.status(), response.text())
}

fn status(gateway: &Gateway) -> u16 {
    gateway.get("/").status()
}

#[test]
fn requests_beyond_the_limit_are_refused() {
    example(|simulation| {
        let (node, held) = Held::node(simulation);
        let gateway = gateway(simulation, &node, json!({ "limits": { "max_requests": 2 } }));
        let inside = [gateway.begin(""), gateway.begin("")];
        assert!(simulation.until(|| held.seen() == 2));
        let (status, text) = ask(&gateway);
        assert!(status == 503 && text.contains("upstream_overloaded"), "{status} {text}");
        held.let_go(2);
        inside.into_iter().for_each(|one| assert_eq!(one.join(), 200));
        held.let_go(1);
        assert_eq!(ask(&gateway).0, 200);
        assert_eq!(gateway.counter("sigma_upstream_refused_limit_total"), 1);
    });
}

#[test]
fn requests_wait_in_order_of_their_priority() {
    example(|simulation| {
        let (node, held) = Held::node(simulation);
        let queue = json!({ "length": 3, "timeout": 60, "priority": "http_x_priority" });
        let gateway = gateway(simulation, &node, json!({ "limits": { "max_requests": 1, "queue": queue } }));
        let name = |name: &str, priority: i32| format!("X-Name: {name}\r\nX-Priority: {priority}\r\n");
        let mut all = vec![gateway.begin(&name("first", 0))];
        assert!(simulation.until(|| held.seen() == 1));
        for (at, (who, priority)) in [("batch", 10), ("person", -5), ("plain", 0)].into_iter().enumerate() {
            all.push(gateway.begin(&name(who, priority)));
            // Each is in the queue before the next one comes.
            assert!(simulation.until(|| gateway.counter("sigma_requests_total") == at as u64 + 2));
        }
        let (status, text) = ask(&gateway);
        assert!(status == 503 && text.contains("queue"), "{status} {text}");
        held.let_go(4);
        all.into_iter().for_each(|one| assert_eq!(one.join(), 200));
        assert_eq!(held.names(), ["first", "person", "plain", "batch"]);
    });
}

#[test]
fn no_request_waits_longer_than_the_queue_allows() {
    example(|simulation| {
        let (node, held) = Held::node(simulation);
        let queue = json!({ "length": 3, "timeout": 0.1 });
        let gateway = gateway(simulation, &node, json!({ "limits": { "max_requests": 1, "queue": queue } }));
        let inside = gateway.begin("");
        assert!(simulation.until(|| held.seen() == 1));
        let (status, text) = ask(&gateway);
        assert!(status == 503 && text.contains("waited too long"), "{status} {text}");
        held.let_go(1);
        assert_eq!(inside.join(), 200);
    });
}

#[test]
fn a_request_that_leaves_the_queue_makes_room() {
    example(|simulation| {
        let (node, held) = Held::node(simulation);
        let queue = json!({ "length": 1, "timeout": 600 });
        let gateway = gateway(simulation, &node, json!({ "limits": { "max_requests": 1, "queue": queue } }));
        let inside = gateway.begin("");
        assert!(simulation.until(|| held.seen() == 1));
        let mut leaves = gateway.connect();
        leaves.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        assert!(simulation.until(|| gateway.counter("sigma_requests_total") == 2));
        assert_eq!(ask(&gateway).0, 503);
        drop(leaves);
        assert!(simulation.until(|| gateway.counter("sigma_exchanges_ended_total") == 2));
        let waits = gateway.begin("");
        assert!(simulation.until(|| gateway.counter("sigma_requests_total") == 4));
        held.let_go(2);
        assert_eq!([inside.join(), waits.join()], [200, 200]);
    });
}

#[test]
fn a_breaker_opens_and_closes() {
    example(|simulation| {
        let (node, code) = simulation.moody(500);
        let rules = json!({
            "minimum_number_of_calls": 4, "wait_duration_in_open_state": 30,
            "permitted_number_of_calls_in_half_open_state": 2,
        });
        let gateway = gateway(simulation, &node, json!({ "circuit_breaker": rules }));
        assert_eq!([(); 4].map(|()| status(&gateway)), [500; 4]);
        let (refused, text) = ask(&gateway);
        assert!(refused == 503 && text.contains("circuit_breaker_open"), "{refused} {text}");
        code.set(200);
        simulation.pass(Duration::from_secs(28));
        assert_eq!((status(&gateway), node.requests()), (503, 4), "it is open still");
        simulation.pass(Duration::from_secs(4));
        assert_eq!([(); 20].map(|()| status(&gateway)), [200; 20]);
        assert_eq!(gateway.counter("sigma_upstream_refused_breaker_total"), 2);
    });
}

fn timed(timeout: f64) -> Value {
    let breaker = json!({ "minimum_number_of_calls": 2, "wait_duration_in_open_state": 600 });
    json!({ "deadline": { "timeout": timeout, "header": "X-Time" }, "circuit_breaker": breaker })
}

/// An attacker may give requests so little time that they fail: that does not count against the upstream.
#[test]
fn the_clients_own_time_opens_no_breaker() {
    example(|simulation| {
        let (node, held) = Held::node(simulation);
        let gateway = gateway(simulation, &node, timed(60.0));
        assert_eq!([(); 4].map(|()| gateway.begin("X-Time: 50\r\n").join()), [504; 4]);
        held.let_go(100);
        assert_eq!(status(&gateway), 200);
    });
}

/// The time that the operator gives is the upstream's to keep.
#[test]
fn the_operators_time_opens_a_breaker() {
    example(|simulation| {
        let node = simulation.silent();
        let gateway = gateway(simulation, &node, timed(0.1));
        assert_eq!([(); 3].map(|()| status(&gateway)), [504, 504, 503]);
    });
}

/// The parts of calls and of answers are late by minutes; only the node's count.
#[test]
fn only_a_slow_node_opens_the_breaker_for_slow_calls() {
    let rules = json!({
        "minimum_number_of_calls": 2, "wait_duration_in_open_state": 600, "sliding_window": 3600,
        "slow_call_duration_threshold": 60, "slow_call_rate_threshold": 1,
    });
    for is_slow in [false, true] {
        let rules = json!({ "circuit_breaker": rules });
        example(move |simulation| {
            let node = simulation.answer_later(move |_| async move {
                tokio::time::sleep(Duration::from_secs(if is_slow { 50 } else { 0 })).await;
                response(200, "", "")
            });
            let gateway = gateway(simulation, &node, rules);
            for _ in 0..3 {
                let mut client = gateway.connect();
                client.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n1");
                simulation.pass(Duration::from_secs(50));
                assert_eq!(client.ask("2").status(), 200);
            }
            assert_eq!(status(&gateway), 200);
        });
    }
    example(move |simulation| {
        let node = simulation.answer_later(|_| async {
            tokio::time::sleep(Duration::from_secs(70)).await;
            response(200, "", "")
        });
        let timeout = json!({ "timeout": { "connect": 9, "send": 9, "read": 90 } });
        let gateway = gateway(simulation, &node, joined(json!({ "circuit_breaker": rules }), timeout));
        assert_eq!([(); 4].map(|()| status(&gateway)), [200, 200, 503, 503]);
    });
}

#[test]
fn forged_sessions_open_no_breaker() {
    example(|simulation| {
        let node = simulation.always(200);
        let rules = json!({
            "circuit_breaker": { "minimum_number_of_calls": 2, "wait_duration_in_open_state": 600 },
            "session_affinity": { "secret": "0123456789abcdef", "cookie": { "name": "node" }, "on_gone": "reject" },
        });
        let gateway = gateway(simulation, &node, rules);
        let forged = format!("Cookie: node={}\r\n", "1".repeat(32));
        assert_eq!([(); 4].map(|()| gateway.begin(&forged).join()), [503; 4]);
        assert_eq!(status(&gateway), 200);
    });
}

fn breaking(fallback: Value) -> Value {
    json!({ "circuit_breaker": {
        "minimum_number_of_calls": 2, "wait_duration_in_open_state": 600, "fallback": fallback,
    } })
}

#[test]
fn an_open_breaker_has_an_answer() {
    example(|simulation| {
        let bad = simulation.always(500);
        let answer = json!({ "status": 203, "body": "[]", "content_type": "application/json" });
        let gateway = gateway(simulation, &bad, breaking(answer));
        assert_eq!([(); 4].map(|()| status(&gateway)), [500, 500, 203, 203]);
        let message = gateway.get("/");
        assert_eq!((message.get("content-type"), &*message.text()), (Some("application/json"), "[]"));
    });
}

#[test]
fn an_open_breaker_has_another_upstream() {
    example(|simulation| {
        let (bad, good) = (simulation.always(500), simulation.always(200));
        let other = joined(upstream(&good, json!({})), json!({ "id": "other" }));
        let broken = upstream(&bad, breaking(json!({ "upstream_id": "other" })));
        let gateway = start(simulation, json!([broken, other]));
        assert_eq!([(); 4].map(|()| status(&gateway)), [500, 500, 200, 200]);
        assert_eq!(good.requests(), 2);
    });
}

#[test]
fn admission_follows_the_rate_of_success() {
    example(|simulation| {
        let node = simulation.always(500);
        let rules =
            json!({ "admission_control": { "max_rejection_probability": 100, "sampling_window": 600 } });
        let gateway = gateway(simulation, &node, rules);
        assert_eq!(status(&gateway), 500);
        // n / (n + 1) of them are refused.
        assert!(simulation.until(|| status(&gateway) == 503));
        assert!(gateway.counter("sigma_upstream_refused_admission_total") >= 1);
    });
}

#[test]
fn the_best_latency_is_measured_with_few_requests() {
    example(|simulation| {
        let (node, held) = Held::node(simulation);
        let rules = json!({ "adaptive_concurrency": { "min_concurrency": 1 } });
        let gateway = gateway(simulation, &node, rules);
        let inside = gateway.begin("");
        assert!(simulation.until(|| held.seen() == 1));
        assert_eq!(status(&gateway), 503);
        held.let_go(1);
        assert_eq!(inside.join(), 200);
        assert_eq!(gateway.counter("sigma_upstream_refused_concurrency_total"), 1);
    });
}

#[test]
fn a_dry_run_only_counts() {
    example(|simulation| {
        let bad = simulation.always(500);
        let rules = json!({
            "circuit_breaker": { "minimum_number_of_calls": 2, "wait_duration_in_open_state": 600, "dry_run": true },
            "limits": { "max_requests": 1, "dry_run": true },
            "adaptive_concurrency": { "dry_run": true }, "admission_control": { "dry_run": true },
        });
        let gateway = gateway(simulation, &bad, rules);
        assert_eq!([(); 10].map(|()| status(&gateway)), [500; 10]);
        assert!(gateway.counter("sigma_upstream_refused_dry_run_total") >= 8);
        assert_eq!(bad.requests(), 10);
    });
}

/// A response is served as it came: the slice from the client over the worker to the node and back.
#[test]
fn a_request_reaches_its_node() {
    example(|simulation| {
        let node = simulation.answer(|request| response(200, "X-A: b\r\n", request.target()));
        let gateway = simulation.gateway(catch_all(json!({ "nodes": nodes_of(&[&node]) })));
        let message = gateway.get("/a?b");
        assert_eq!((message.status(), message.get("x-a"), &*message.text()), (200, Some("b"), "/a?b"));
    });
}
