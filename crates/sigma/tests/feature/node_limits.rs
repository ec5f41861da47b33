//! Bounds on the requests of each node, and guards that outlive a change of their upstream.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, until};

use crate::overload::{Held, ask, begin, moody};
use crate::{PATIENCE, SIGMA};

/// Two nodes that answer on command.
struct Pair {
    held: [Arc<Held>; 2],
    origins: [Origin; 2],
}

impl Pair {
    fn new() -> Pair {
        let held = [Arc::<Held>::default(), Arc::<Held>::default()];
        let origins = held.each_ref().map(Held::origin);
        Pair { held, origins }
    }

    fn gateway(&self, rules: &Value) -> Gateway {
        let nodes: Vec<Value> = self
            .origins
            .iter()
            .map(|origin| json!({ "host": "127.0.0.1", "port": origin.port(), "weight": 1 }))
            .collect();
        let mut upstream = json!({ "id": "u", "nodes": nodes });
        upstream.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
        Gateway::start(SIGMA, &config(2, &upstream).to_string()).unwrap()
    }

    fn seen(&self) -> [usize; 2] {
        self.held.each_ref().map(|held| held.seen())
    }
}

fn config(workers: u32, upstream: &Value) -> Value {
    json!({
        "workers": workers, "listeners": ["{listen}"], "status": { "address": "{status}" },
        "upstreams": [upstream], "routes": [{ "id": "all", "uri": "/*", "upstream_id": "u" }],
    })
}

fn requests(gateway: &Gateway) -> u64 {
    gateway.counter("sigma_requests_total")
}

#[test]
fn nodes_that_are_full_are_passed_over() {
    for balance in ["roundrobin", "random", "least_request", "chash", "maglev"] {
        let pair = Pair::new();
        let rules = json!({ "type": balance, "key": "uri", "limits": { "max_requests_per_node": 2 } });
        let gateway = pair.gateway(&rules);
        let inside: Vec<_> = (0..4)
            .map(|n| {
                let one = begin(&gateway, "");
                assert!(until(PATIENCE, || pair.seen().iter().sum::<usize>() == n + 1));
                one
            })
            .collect();
        assert_eq!(pair.seen(), [2, 2], "{balance}");
        let (status, text) = ask(&gateway);
        assert!(status == 503 && text.contains("upstream_overloaded"), "{balance}: {status} {text}");
        pair.held.iter().for_each(|held| held.let_go(2));
        inside.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), 200));
    }
}

#[test]
fn a_waiting_request_gets_the_first_free_node() {
    for free in [0, 1] {
        let pair = Pair::new();
        let queue = json!({ "length": 10, "timeout": 600 });
        let gateway = pair.gateway(&json!({ "limits": { "max_requests_per_node": 1, "queue": queue } }));
        let mut all = vec![begin(&gateway, ""), begin(&gateway, "")];
        assert!(until(PATIENCE, || pair.seen() == [1, 1]));
        all.push(begin(&gateway, ""));
        assert!(until(PATIENCE, || requests(&gateway) == 3));
        pair.held[free].let_go(2);
        assert!(until(PATIENCE, || pair.seen()[free] == 2));
        assert_eq!(pair.seen()[1 - free], 1);
        pair.held[1 - free].let_go(1);
        all.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), 200));
    }
}

/// Another node would be free, but does not have the session.
#[test]
fn a_session_waits_for_its_node() {
    let pair = Pair::new();
    let rules = json!({
        "session_affinity": { "secret": "0123456789abcdef", "cookie": { "name": "node" } },
        "limits": { "max_requests_per_node": 1, "queue": { "length": 10, "timeout": 600 } },
    });
    let gateway = pair.gateway(&rules);
    pair.held.iter().for_each(|held| held.let_go(1));
    let first = gateway.connect().unwrap().get("/").unwrap();
    let cookie = first.head.get("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let own = pair.seen().iter().position(|seen| *seen == 1).unwrap();
    let cookie = format!("Cookie: {cookie}\r\n");
    let inside = begin(&gateway, &cookie);
    assert!(until(PATIENCE, || pair.seen()[own] == 2));
    let waits = begin(&gateway, &cookie);
    assert!(until(PATIENCE, || requests(&gateway) == 3));
    // One without a session is served meanwhile, by the other.
    assert_eq!(ask(&gateway).0, 200);
    assert_eq!(pair.seen()[own], 2);
    pair.held[own].let_go(2);
    assert_eq!([inside.join().unwrap(), waits.join().unwrap()], [200, 200]);
    assert_eq!(pair.seen()[own], 3);
}

/// No request waits in a queue for longer than the exchange has time, and that does not count against a node.
#[test]
fn the_deadline_holds_in_every_queue() {
    for limit in ["max_requests", "max_requests_per_node"] {
        let held = Arc::<Held>::default();
        let origin = held.origin();
        let upstream = json!({
            "id": "u", "nodes": { format!("127.0.0.1:{}", origin.port()): 1 },
            "limits": { limit: 1, "queue": { "length": 10, "timeout": 600 } },
            "deadline": { "timeout": 600, "header": "X-Time" },
            "circuit_breaker": { "minimum_number_of_calls": 2, "wait_duration_in_open_state": 600 },
        });
        let gateway = Gateway::start(SIGMA, &config(1, &upstream).to_string()).unwrap();
        let inside = begin(&gateway, "");
        assert!(until(PATIENCE, || held.seen() == 1));
        for _ in 0..3 {
            assert_eq!(begin(&gateway, "X-Time: 100\r\n").join().unwrap(), 504, "{limit}");
        }
        assert_eq!(begin(&gateway, "X-Time: 0\r\n").join().unwrap(), 504, "{limit}");
        held.let_go(2);
        assert_eq!((inside.join().unwrap(), ask(&gateway).0), (200, 200), "{limit}");
        assert_eq!(held.seen(), 2);
    }
}

/// A place is given back when its attempt has ended, not when the exchange is.
#[test]
fn attempts_that_fail_give_their_places_back() {
    let good = moody(&Arc::new(AtomicBool::new(true)));
    let nodes = json!([
        { "host": "127.0.0.1", "port": sigma_testkit::free_port(), "weight": 1, "priority": 1 },
        { "host": "127.0.0.1", "port": good.port(), "weight": 1 },
    ]);
    let upstream = json!({ "id": "u", "nodes": nodes, "limits": { "max_requests_per_node": 1 } });
    let gateway = Gateway::start(SIGMA, &config(1, &upstream).to_string()).unwrap();
    for _ in 0..20 {
        assert_eq!(ask(&gateway).0, 200);
    }
}

#[test]
fn guards_outlive_a_change_of_the_upstream() {
    let held = Arc::<Held>::default();
    let origin = held.origin();
    let nodes = json!({ format!("127.0.0.1:{}", origin.port()): 1 });
    let change = |gateway: &Gateway, upstream: &Value| {
        gateway.rewrite(&config(1, upstream).to_string()).unwrap();
        let reloads = || gateway.stderr().matches("configuration reloaded").count();
        let before = reloads();
        gateway.reload().unwrap();
        assert!(until(PATIENCE, || reloads() > before), "{}", gateway.stderr());
    };
    let limited = |max: u32, retries: u32| json!({ "id": "u", "nodes": nodes, "retries": retries, "limits": { "max_requests": max } });
    let gateway = Gateway::start(SIGMA, &config(1, &limited(1, 0)).to_string()).unwrap();
    let inside = begin(&gateway, "");
    assert!(until(PATIENCE, || held.seen() == 1));
    change(&gateway, &limited(1, 2));
    assert_eq!(ask(&gateway).0, 503, "it counts the request that was there before");
    change(&gateway, &limited(2, 2));
    let second = begin(&gateway, "");
    assert!(until(PATIENCE, || held.seen() == 2));
    held.let_go(2);
    assert_eq!([inside.join().unwrap(), second.join().unwrap()], [200, 200]);

    let bad = moody(&Arc::new(AtomicBool::new(false)));
    let broken = |calls: u32, retries: u32| {
        let breaker = json!({ "minimum_number_of_calls": calls, "wait_duration_in_open_state": 600 });
        let nodes = json!({ format!("127.0.0.1:{}", bad.port()): 1 });
        json!({ "id": "u", "nodes": nodes, "retries": retries, "circuit_breaker": breaker })
    };
    let gateway = Gateway::start(SIGMA, &config(1, &broken(2, 0)).to_string()).unwrap();
    assert_eq!([ask(&gateway).0, ask(&gateway).0, ask(&gateway).0], [500, 500, 503]);
    change(&gateway, &broken(2, 3));
    assert_eq!(ask(&gateway).0, 503, "it is open still");
    // Other rules start again.
    change(&gateway, &broken(5, 3));
    assert_eq!(ask(&gateway).0, 500);
}

#[test]
fn limits_without_a_limit_are_refused() {
    let upstream =
        json!({ "id": "u", "nodes": { "127.0.0.1:1": 1 }, "limits": { "queue": { "length": 1 } } });
    let error = Gateway::start(SIGMA, &config(1, &upstream).to_string()).map(drop).unwrap_err().to_string();
    assert!(error.contains("max_requests_per_node"), "{error}");
}
