//! Bounds on the requests of each node, and guards that outlive a change of their upstream.

use std::rc::Rc;

use serde_json::{Value, json};

use super::gateway::{Gateway, joined};
use super::peers::{Held, Node, nodes_of, response};
use super::{Simulation, example};

fn config(upstream: Value) -> Value {
    json!({ "upstreams": [upstream], "routes": [{ "id": "all", "uri": "/*", "upstream_id": "u" }] })
}

/// Two nodes that answer on command.
struct Pair {
    held: [Rc<Held>; 2],
    nodes: [Node; 2],
}

impl Pair {
    fn new(simulation: &Simulation) -> Pair {
        let [(a, of_a), (b, of_b)] = [(); 2].map(|()| Held::node(simulation));
        Pair { held: [of_a, of_b], nodes: [a, b] }
    }

    fn gateway(&self, simulation: &Simulation, rules: Value) -> Gateway {
        let [a, b] = &self.nodes;
        simulation.gateway(config(joined(json!({ "id": "u", "nodes": nodes_of(&[a, b]) }), rules)))
    }

    fn seen(&self) -> [usize; 2] {
        self.held.each_ref().map(|held| held.seen())
    }
}

fn status(gateway: &Gateway) -> u16 {
    gateway.get("/").status()
}

fn requests(gateway: &Gateway) -> u64 {
    gateway.counter("sigma_requests_total")
}

#[test]
fn nodes_that_are_full_are_passed_over() {
    for balance in ["roundrobin", "random", "least_request", "chash", "maglev"] {
        example(move |simulation| {
            let pair = Pair::new(simulation);
            let rules = json!({ "type": balance, "key": "uri", "limits": { "max_requests_per_node": 2 } });
            let gateway = pair.gateway(simulation, rules);
            let inside: Vec<_> = (0..4)
                .map(|n| {
                    let one = gateway.begin("");
                    assert!(simulation.until(|| pair.seen().iter().sum::<usize>() == n + 1));
                    one
                })
                .collect();
            assert_eq!(pair.seen(), [2, 2], "{balance}");
            let refused = gateway.get("/");
            assert!(refused.status() == 503 && refused.text().contains("upstream_overloaded"), "{balance}");
            pair.held.iter().for_each(|held| held.let_go(2));
            inside.into_iter().for_each(|one| assert_eq!(one.join(), 200));
        });
    }
}

#[test]
fn a_waiting_request_gets_the_first_free_node() {
    for free in [0, 1] {
        example(move |simulation| {
            let pair = Pair::new(simulation);
            let queue = json!({ "length": 10, "timeout": 600 });
            let limits = json!({ "limits": { "max_requests_per_node": 1, "queue": queue } });
            let gateway = pair.gateway(simulation, limits);
            let mut all = vec![gateway.begin(""), gateway.begin("")];
            assert!(simulation.until(|| pair.seen() == [1, 1]));
            all.push(gateway.begin(""));
            assert!(simulation.until(|| requests(&gateway) == 3));
            pair.held[free].let_go(2);
            assert!(simulation.until(|| pair.seen()[free] == 2));
            assert_eq!(pair.seen()[1 - free], 1);
            pair.held[1 - free].let_go(1);
            all.into_iter().for_each(|one| assert_eq!(one.join(), 200));
        });
    }
}

/// Another node would be free, but does not have the session.
#[test]
fn a_session_waits_for_its_node() {
    example(|simulation| {
        let pair = Pair::new(simulation);
        let rules = json!({
            "session_affinity": { "secret": "0123456789abcdef", "cookie": { "name": "node" } },
            "limits": { "max_requests_per_node": 1, "queue": { "length": 10, "timeout": 600 } },
        });
        let gateway = pair.gateway(simulation, rules);
        pair.held.iter().for_each(|held| held.let_go(1));
        let first = gateway.get("/");
        let cookie = first.get("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        let own = pair.seen().iter().position(|seen| *seen == 1).unwrap();
        let cookie = format!("Cookie: {cookie}\r\n");
        let inside = gateway.begin(&cookie);
        assert!(simulation.until(|| pair.seen()[own] == 2));
        let waits = gateway.begin(&cookie);
        assert!(simulation.until(|| requests(&gateway) == 3));
        // One without a session is served meanwhile, by the other.
        assert_eq!(status(&gateway), 200);
        assert_eq!(pair.seen()[own], 2);
        pair.held[own].let_go(2);
        assert_eq!([inside.join(), waits.join()], [200, 200]);
        assert_eq!(pair.seen()[own], 3);
    });
}

/// No request waits in a queue for longer than the exchange has time, and that does not count against a node.
#[test]
fn the_deadline_holds_in_every_queue() {
    for limit in ["max_requests", "max_requests_per_node"] {
        example(move |simulation| {
            let (node, held) = Held::node(simulation);
            let gateway = simulation.gateway(config(json!({
                "id": "u", "nodes": nodes_of(&[&node]),
                "limits": { limit: 1, "queue": { "length": 10, "timeout": 600 } },
                "deadline": { "timeout": 600, "header": "X-Time" },
                "circuit_breaker": { "minimum_number_of_calls": 2, "wait_duration_in_open_state": 600 },
            })));
            let inside = gateway.begin("");
            assert!(simulation.until(|| held.seen() == 1));
            for time in [100, 100, 100, 0] {
                assert_eq!(gateway.begin(&format!("X-Time: {time}\r\n")).join(), 504, "{limit}");
            }
            held.let_go(2);
            assert_eq!((inside.join(), status(&gateway)), (200, 200), "{limit}");
            assert_eq!(held.seen(), 2);
        });
    }
}

/// A place is given back when its attempt has ended, not when the exchange is.
#[test]
fn attempts_that_fail_give_their_places_back() {
    example(|simulation| {
        let good = simulation.always(200);
        let node = |name: std::net::SocketAddr, priority: i32| json!({ "host": name.ip(), "port": name.port(), "weight": 1, "priority": priority });
        let nodes = json!([node(simulation.free_address(), 1), node(good.address, 0)]);
        let gateway = simulation
            .gateway(config(json!({ "id": "u", "nodes": nodes, "limits": { "max_requests_per_node": 1 } })));
        assert_eq!([(); 20].map(|()| status(&gateway)), [200; 20]);
    });
}

#[test]
fn a_limit_outlives_a_change_of_the_upstream() {
    example(|simulation| {
        let (node, held) = Held::node(simulation);
        let nodes = nodes_of(&[&node]);
        let limited = |max: u32, retries: u32| {
            config(
                json!({ "id": "u", "nodes": nodes, "retries": retries, "limits": { "max_requests": max } }),
            )
        };
        let gateway = simulation.gateway(limited(1, 0));
        let inside = gateway.begin("");
        assert!(simulation.until(|| held.seen() == 1));
        gateway.change(limited(1, 2));
        assert_eq!(status(&gateway), 503, "it counts the request that was there before");
        gateway.change(limited(2, 2));
        let second = gateway.begin("");
        assert!(simulation.until(|| held.seen() == 2));
        held.let_go(2);
        assert_eq!([inside.join(), second.join()], [200, 200]);
    });
}

#[test]
fn a_breaker_outlives_a_change_of_the_upstream() {
    example(|simulation| {
        let bad = simulation.answer(|_| response(500, "", ""));
        let nodes = nodes_of(&[&bad]);
        let broken = |calls: u32, retries: u32| {
            let breaker = json!({ "minimum_number_of_calls": calls, "wait_duration_in_open_state": 600 });
            config(json!({ "id": "u", "nodes": nodes, "retries": retries, "circuit_breaker": breaker }))
        };
        let gateway = simulation.gateway(broken(2, 0));
        assert_eq!([(); 3].map(|()| status(&gateway)), [500, 500, 503]);
        gateway.change(broken(2, 3));
        assert_eq!(status(&gateway), 503, "it is open still");
        // Other rules start again.
        gateway.change(broken(5, 3));
        assert_eq!(status(&gateway), 500);
    });
}

#[test]
fn limits_without_a_limit_are_refused() {
    example(|simulation| {
        let upstream =
            json!({ "id": "u", "nodes": { "127.0.0.1:1": 1 }, "limits": { "queue": { "length": 1 } } });
        let error = Gateway::start(simulation, config(upstream)).err().unwrap();
        assert!(error.contains("max_requests_per_node"), "{error}");
    });
}
