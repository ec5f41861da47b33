//! Guards between a session of a stream route and its nodes: limits and queues, circuit breakers, session affinity.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::gateway::{Client, Gateway, joined};
use super::streams::{config, is_closed, parrot, talk, upstream};
use super::{Simulation, example};

/// A gateway whose route leads to `upstream`, with these `upstreams`.
fn gateway(simulation: &Simulation, upstream: &Value, upstreams: Value) -> Gateway {
    let rest = json!({
        "timeouts": { "half_close_ms": 100 }, "upstreams": upstreams, "stream_routes": [{ "upstream": upstream }],
    });
    simulation.gateway(config(json!({ "stream": "tcp" }), rest))
}

/// To these nodes, by these rules.
fn guarded(nodes: &[SocketAddr], rules: Value) -> Value {
    joined(upstream(nodes), rules)
}

/// As many sessions are open.
fn has_open(simulation: &Simulation, gateway: &Gateway, count: u64) -> bool {
    simulation.until(|| gateway.counter("sigma_stream_sessions_active") == count)
}

/// A session that a node has greeted.
fn greeted(gateway: &Gateway, name: &str) -> Client {
    let mut session = gateway.connect();
    assert_eq!(session.line(), name);
    session
}

/// The session ends in order, though its client is sending.
fn is_sent_away(gateway: &Gateway) -> bool {
    let mut session = gateway.connect();
    session.send("hello");
    session.whole_rest().is_ok_and(|bytes| bytes.is_empty())
}

/// One session at a time, and one in the queue for so many seconds.
fn queue(timeout: f64) -> Value {
    json!({ "limits": { "max_requests": 1, "queue": { "length": 1, "timeout": timeout } } })
}

#[test]
fn a_session_waits_for_a_place_and_loses_nothing() {
    example(|simulation| {
        let node = parrot(simulation, "one");
        let gateway = gateway(simulation, &guarded(&[node.address], queue(600.0)), json!([]));
        assert!(has_open(simulation, &gateway, 0));
        let first = greeted(&gateway, "one");
        let mut second = gateway.connect();
        second.send("sent in the queue");
        assert!(has_open(simulation, &gateway, 2));
        // The queue is full.
        assert!(is_sent_away(&gateway));
        assert_eq!(gateway.counter("sigma_upstream_refused_limit_total"), 1);
        drop(first);
        assert_eq!(second.line(), "one");
        second.finish();
        assert_eq!(second.whole_rest().unwrap(), b"sent in the queue");
        // Its place is free again.
        assert_eq!(talk(&gateway, "x").0, "one");
    });
}

#[test]
fn a_session_that_leaves_the_queue_or_times_out_gives_its_slot_back() {
    example(|simulation| {
        let node = parrot(simulation, "one");
        let patient = gateway(simulation, &guarded(&[node.address], queue(600.0)), json!([]));
        assert!(has_open(simulation, &patient, 0));
        let first = greeted(&patient, "one");
        let waits = patient.connect();
        assert!(has_open(simulation, &patient, 2));
        drop(waits);
        assert!(has_open(simulation, &patient, 1));
        let mut waits = patient.connect();
        assert!(has_open(simulation, &patient, 2));
        drop(first);
        assert_eq!(waits.line(), "one");
    });
    example(|simulation| {
        let node = parrot(simulation, "one");
        let hasty = gateway(simulation, &guarded(&[node.address], queue(0.1)), json!([]));
        assert!(has_open(simulation, &hasty, 0));
        let _first = greeted(&hasty, "one");
        assert!(is_sent_away(&hasty));
    });
}

#[test]
fn a_session_waits_for_the_node_that_is_free_first() {
    example(|simulation| {
        let (one, two) = (parrot(simulation, "one"), parrot(simulation, "two"));
        let limits = json!({ "max_requests_per_node": 1, "queue": { "length": 9, "timeout": 600 } });
        let to = guarded(&[one.address, two.address], json!({ "limits": limits }));
        let gateway = gateway(simulation, &to, json!([]));
        assert!(has_open(simulation, &gateway, 0));
        let mut held = [(); 2].map(|()| {
            let mut session = gateway.connect();
            (session.line(), session)
        });
        held.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!([&*held[0].0, &*held[1].0], ["one", "two"]);
        let mut waits = gateway.connect();
        assert!(has_open(simulation, &gateway, 3));
        let [_first, second] = held;
        drop(second);
        assert_eq!(waits.line(), "two");
    });
}

/// A breaker that two failures open, for this many seconds.
fn breaker(seconds: f64, rest: Value) -> Value {
    let breaker = json!({
        "minimum_number_of_calls": 2, "wait_duration_in_open_state": seconds,
        "permitted_number_of_calls_in_half_open_state": 1,
    });
    json!({ "circuit_breaker": joined(breaker, rest) })
}

#[test]
fn failed_connections_open_the_breaker_and_a_good_one_closes_it() {
    example(|simulation| {
        let address = simulation.free_address();
        let gateway = gateway(simulation, &guarded(&[address], breaker(0.2, json!({}))), json!([]));
        assert!(simulation.until(|| {
            assert!(is_sent_away(&gateway));
            gateway.counter("sigma_upstream_refused_breaker_total") >= 1
        }));
        assert!(gateway.log().contains("the circuit breaker opens"), "{}", gateway.log());
        let _node = simulation.serve_at(address, async |mut client| drop(client.rest().await));
        let mut sessions = Vec::new();
        for _ in 0..100 {
            sessions.push(gateway.connect());
            simulation.pass(super::LOOK);
        }
        assert!(gateway.log().contains("the circuit breaker closes"), "{}", gateway.log());
    });
}

#[test]
fn sessions_go_elsewhere_while_the_breaker_is_open() {
    example(|simulation| {
        let (dead, other) = (simulation.free_address(), parrot(simulation, "other"));
        let fallback = breaker(600.0, json!({ "fallback": { "upstream_id": "other" } }));
        let spare = joined(upstream(&[other.address]), json!({ "id": "other" }));
        let gateway = gateway(simulation, &guarded(&[dead], fallback), json!([spare]));
        assert!(simulation.until(|| !is_closed(&gateway)));
        assert_eq!(talk(&gateway, "x"), ("other".to_owned(), "x".to_owned()));
    });
}

#[test]
fn guards_that_sessions_lack_are_reported() {
    example(|simulation| {
        let rules = json!({
            "circuit_breaker": { "failure_status_codes": [500], "fallback": { "status": 200 } },
            "adaptive_concurrency": {}, "admission_control": {}, "stick_table": { "cookie": "a" },
        });
        let node = simulation.free_address();
        let gateway = gateway(simulation, &guarded(&[node], rules), json!([]));
        let is_reported = |field: &str| gateway.log().contains(&format!("upstream.{field}: `"));
        for field in [
            "circuit_breaker.failure_status_codes",
            "circuit_breaker.fallback.status",
            "adaptive_concurrency",
            "stick_table",
        ] {
            assert!(is_reported(field), "{field}: {}", gateway.log());
        }
        assert!(gateway.log().contains("{ address: true }"), "{}", gateway.log());
        assert!(!is_reported("admission_control"), "{}", gateway.log());
    });
}

/// A session of a client with this address, as a balancer reports it; the greeting that it gets.
fn greeting_of(gateway: &Gateway, address: &str) -> String {
    let mut session = gateway.connect();
    session.send(format!("PROXY TCP4 {address} 192.0.2.1 4000 5432\r\n"));
    session.line()
}

#[test]
fn clients_keep_to_the_node_that_took_their_first_session() {
    example(|simulation| {
        let nodes = ["a", "b", "c"].map(|name| parrot(simulation, name));
        let listener = json!({ "stream": "tcp", "proxy_protocol": { "trusted": ["127.0.0.1"] } });
        let addresses = nodes.each_ref().map(|node| node.address);
        let to = guarded(&addresses, json!({ "stick_table": { "address": true } }));
        let gateway = simulation.gateway(config(listener, json!({ "stream_routes": [{ "upstream": to }] })));
        let all = || (2..20).map(|n| greeting_of(&gateway, &format!("198.51.100.{n}"))).collect::<Vec<_>>();
        let first = all();
        assert_eq!(all(), first);
        for name in ["a", "b", "c"] {
            assert!(first.iter().any(|greeting| greeting == name), "turns are taken by clients: {first:?}");
        }
    });
}
