//! Retry policies, hedging and deadlines: repeated requests, their times and numbers, and their end.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::gateway::{Gateway, catch_all, joined};
use super::peers::{Conversation, Node, nodes_of, response};
use super::{Simulation, example};

/// A gateway in front of the nodes, with `rules` in its upstream.
fn gateway(simulation: &Simulation, nodes: &[&Node], rules: Value) -> Gateway {
    simulation.gateway(catch_all(joined(json!({ "nodes": nodes_of(nodes) }), rules)))
}

/// Always answers so.
fn always(simulation: &Simulation, status: u16, fields: &'static str) -> Node {
    simulation.answer(move |_| response(status, fields, "no"))
}

/// Responds to the first `failures` requests with 503 and `fields`, the others with 200 and the body that came.
fn recovering(simulation: &Simulation, failures: usize, fields: &'static str) -> Node {
    let seen = Cell::new(0);
    simulation.answer(move |request| {
        seen.set(seen.get() + 1);
        match seen.get() <= failures {
            true => response(503, fields, "no"),
            false => response(200, "", &request.text()),
        }
    })
}

fn ask(gateway: &Gateway, method: &str, fields: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let request = format!("{method} / HTTP/1.1\r\nHost: h\r\n{fields}Content-Length: {length}\r\n\r\n{body}");
    let message = gateway.ask(&request);
    (message.status(), message.text())
}

fn status_of(gateway: &Gateway, method: &str) -> u16 {
    ask(gateway, method, "", "").0
}

#[test]
fn statuses_are_retried_where_that_is_safe() {
    example(|simulation| {
        let (bad, good) = (simulation.always(503), simulation.always(200));
        let policy = json!({ "retry_policy": { "retry_on": ["gateway-error"] } });
        let gateway = gateway(simulation, &[&bad, &good], policy);
        assert_eq!([(); 8].map(|()| status_of(&gateway, "GET")), [200; 8]);
        let posts = [(); 8].map(|()| status_of(&gateway, "POST"));
        assert_eq!(posts.iter().filter(|status| **status == 503).count(), 4, "{posts:?}");
        assert_eq!(gateway.counter("sigma_upstream_retries_total"), bad.requests() as u64 - 4);
    });
}

#[test]
fn a_body_is_sent_again_as_it_was() {
    example(|simulation| {
        let node = recovering(simulation, 2, "");
        let policy = json!({ "retry_on": ["5xx"], "back_off": { "base_interval": 0.001 } });
        let gateway = gateway(simulation, &[&node], json!({ "retries": 2, "retry_policy": policy }));
        let body = "0123456789".repeat(3_000);
        assert_eq!(ask(&gateway, "PUT", "", &body), (200, body));
        assert_eq!(node.requests(), 3);
    });
}

#[test]
fn the_last_answer_is_the_clients() {
    example(|simulation| {
        let (one, other) =
            (always(simulation, 503, "X-Node: 1\r\n"), always(simulation, 503, "X-Node: 2\r\n"));
        let policy = json!({ "retry_on": ["5xx"], "back_off": { "base_interval": 0.001 } });
        // More attempts than nodes: each is queried again.
        let gateway = gateway(simulation, &[&one, &other], json!({ "retries": 3, "retry_policy": policy }));
        assert_eq!(ask(&gateway, "GET", "", ""), (503, "no".to_owned()));
        assert_eq!((one.requests(), other.requests()), (2, 2));
    });
}

#[test]
fn a_node_says_when_it_wants_to_be_asked_again() {
    for (fields, status, requests) in [("Retry-After: 100\r\n", 200, 2), ("Retry-After: 101\r\n", 503, 1)] {
        example(move |simulation| {
            let policy = json!({ "retry_on": ["5xx"], "max_retry_after": 100 });
            let node = recovering(simulation, 1, fields);
            let gateway = gateway(simulation, &[&node], json!({ "retries": 1, "retry_policy": policy }));
            let began_ms = simulation.now_ms();
            assert_eq!((status_of(&gateway, "GET"), node.requests()), (status, requests));
            assert_eq!(simulation.now_ms() - began_ms >= 100_000, status == 200);
        });
    }
}

#[test]
fn a_budget_bounds_retries() {
    example(|simulation| {
        let node = simulation.always(503);
        let policy = json!({ "retry_on": ["5xx"], "budget": { "percent": 0, "min_concurrency": 0 } });
        let gateway = gateway(simulation, &[&node], json!({ "retries": 5, "retry_policy": policy }));
        assert_eq!((status_of(&gateway, "GET"), node.requests()), (503, 1));
        assert_eq!(gateway.counter("sigma_upstream_retries_over_budget_total"), 1);
    });
}

#[test]
fn one_attempt_has_its_own_time() {
    example(|simulation| {
        let (mute, good) = (simulation.silent(), simulation.always(200));
        let policy = json!({ "retry_on": ["reset"], "per_try_timeout": 0.1 });
        let gateway = gateway(simulation, &[&mute, &good], json!({ "retry_policy": policy }));
        assert_eq!([(); 4].map(|()| status_of(&gateway, "GET")), [200; 4]);
        // A node may have carried out a POST.
        let mut posts = [(); 2].map(|()| status_of(&gateway, "POST"));
        posts.sort_unstable();
        assert_eq!(posts, [200, 504]);
    });
}

#[test]
fn a_deadline_ends_all_attempts() {
    example(|simulation| {
        let (one, other) = (simulation.silent(), simulation.silent());
        let rules = json!({
            "retries": 100, "deadline": { "timeout": 40 },
            "retry_policy": { "retry_on": ["reset"], "per_try_timeout": 10 },
        });
        let gateway = gateway(simulation, &[&one, &other], rules);
        let began_ms = simulation.now_ms();
        assert_eq!(status_of(&gateway, "GET"), 504);
        let took_ms = simulation.now_ms() - began_ms;
        assert!((40_000..40_500).contains(&took_ms), "{took_ms} ms");
        let attempts = one.requests() + other.requests();
        assert!((3..=4).contains(&attempts), "{attempts}");
    });
}

#[test]
fn no_pause_before_a_retry_goes_beyond_the_deadline() {
    example(|simulation| {
        let busy = always(simulation, 503, "Retry-After: 100\r\n");
        let policy = json!({ "retry_on": ["5xx"], "max_retry_after": 300 });
        let rules = json!({ "retries": 1, "deadline": { "timeout": 10 }, "retry_policy": policy });
        let gateway = gateway(simulation, &[&busy], rules);
        let began_ms = simulation.now_ms();
        assert_eq!(status_of(&gateway, "GET"), 504);
        assert!(simulation.now_ms() - began_ms < 10_500);
    });
}

#[test]
fn a_node_gets_the_remaining_time() {
    example(|simulation| {
        let node =
            simulation.answer(|request| response(200, "", request.get("x-time-left").unwrap_or("none")));
        let rules = json!({ "deadline": { "timeout": 60, "header": "X-Time-Left" } });
        let gateway = gateway(simulation, &[&node], rules);
        let told = |fields: &str| ask(&gateway, "GET", fields, "").1.parse::<u64>().unwrap();
        assert_eq!(told(""), 60_000);
        assert_eq!(told("X-Time-Left: 7000\r\n"), 7_000);
        // A client cannot extend its own time.
        assert_eq!(told("X-Time-Left: 70000000\r\n"), 60_000);
    });
}

#[test]
fn the_time_of_a_client_ends_its_request() {
    example(|simulation| {
        let mute = simulation.silent();
        let rules = json!({ "deadline": { "timeout": 60, "header": "X-Time-Left" } });
        let gateway = gateway(simulation, &[&mute], rules);
        assert_eq!(ask(&gateway, "GET", "X-Time-Left: 100\r\n", "").0, 504);
    });
}

#[test]
fn a_route_has_rules_of_its_own() {
    for (path, status) in [("/plain", 503), ("/own", 200)] {
        example(move |simulation| {
            let node = recovering(simulation, 1, "");
            let upstream = json!({ "nodes": nodes_of(&[&node]), "retries": 1 });
            let policy = json!({ "retry_on": ["5xx"] });
            let gateway = simulation.gateway(json!({ "routes": [
                { "id": "plain", "uri": "/plain", "upstream": upstream },
                { "id": "own", "uri": "/*", "upstream": upstream, "retry_policy": policy },
            ] }));
            assert_eq!(gateway.get(path).status(), status);
        });
    }
}

#[test]
fn a_policy_without_effect_is_refused() {
    example(|simulation| {
        let upstream = json!({ "nodes": { "127.0.0.1:1": 1 }, "retry_policy": { "per_try_timeout": 1 } });
        let refused = Gateway::start(simulation, catch_all(upstream)).err().unwrap();
        assert!(refused.contains("retry_policy") && refused.contains("has no condition"), "{refused}");
    });
}

fn hedging(rules: Value) -> Value {
    let policy = json!({ "retry_on": ["reset"], "hedging": { "delay": 0.05 } });
    json!({ "retry_policy": joined(policy, rules) })
}

#[test]
fn the_first_of_two_answers_is_served_and_the_other_attempt_taken_back() {
    example(|simulation| {
        let closed = Rc::new(Cell::new(0));
        let counted = Rc::clone(&closed);
        let mute = simulation.serve(move |mut client: Conversation| {
            let closed = Rc::clone(&counted);
            async move {
                while let Ok(Some(_)) = client.request().await {}
                closed.set(closed.get() + 1);
            }
        });
        let good = always(simulation, 200, "X-Node: good\r\n");
        let gateway = gateway(simulation, &[&mute, &good], hedging(json!({})));
        assert_eq!([(); 6].map(|()| status_of(&gateway, "GET")), [200; 6]);
        let hedges = gateway.counter("sigma_upstream_hedges_total");
        assert!(hedges >= 3, "{hedges}");
        assert_eq!(gateway.counter("sigma_upstream_hedges_won_total"), hedges);
        assert!(simulation.until(|| closed.get() == hedges));
        // The connection on which the second was answered is kept.
        assert_eq!(good.connections(), 1);
    });
}

#[test]
fn non_idempotent_requests_go_to_one_node() {
    let asked = |rules: Value, method: &'static str, body: &'static str, seen: usize| {
        example(move |simulation| {
            let (one, other) = (simulation.silent(), simulation.silent());
            let rules = joined(hedging(rules.clone()), json!({ "deadline": { "timeout": 0.5 } }));
            let gateway = gateway(simulation, &[&one, &other], rules);
            assert_eq!(ask(&gateway, method, "", body).0, 504);
            assert_eq!(one.requests() + other.requests(), seen, "{method} {body}");
        });
    };
    asked(json!({}), "GET", "", 2);
    asked(json!({}), "POST", "", 1);
    asked(json!({ "methods": ["POST"] }), "POST", "", 2);
    asked(json!({}), "PUT", "a body", 1);
    asked(json!({ "budget": { "percent": 0, "min_concurrency": 0 } }), "GET", "", 1);
}

#[test]
fn a_second_node_that_fails_leaves_the_first_its_time() {
    example(|simulation| {
        // The slow one answers when the other has been asked, and has closed.
        let closed = Rc::new(Semaphore::new(0));
        let (awaited, closes) = (Rc::clone(&closed), closed);
        let slow = simulation.answer_later(move |_| {
            let awaited = Rc::clone(&awaited);
            async move {
                awaited.acquire().await.unwrap().forget();
                response(200, "", "slow")
            }
        });
        let closing = simulation.serve(move |mut client: Conversation| {
            let closes = Rc::clone(&closes);
            async move {
                let is_asked = client.request().await.is_ok_and(|request| request.is_some());
                drop(client);
                if is_asked {
                    closes.add_permits(1);
                }
            }
        });
        let gateway = gateway(simulation, &[&slow, &closing], hedging(json!({})));
        for _ in 0..4 {
            // Whichever is queried first: a reset is retried, and a hedge that fails is let go.
            assert_eq!(ask(&gateway, "GET", "", ""), (200, "slow".to_owned()));
        }
        simulation.pass(Duration::from_secs(1));
    });
}
