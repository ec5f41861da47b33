//! Limits, queues, deadlines, retries and breakers under load.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::json;

use super::{Outcome, Traffic, Wrongs, for_seeds, short};
use crate::simulation::Simulation;
use crate::simulation::gateway::catch_all;
use crate::simulation::peers::{Node, nodes_of, response};

/// The requests that a node has at once.
#[derive(Default)]
struct Load {
    now: Cell<usize>,
    most: Cell<usize>,
}

/// A node that takes a while for each request.
fn busy(simulation: &Simulation, load: &Rc<Load>) -> Node {
    let (world, load) = (simulation.world.clone(), Rc::clone(load));
    simulation.answer_later(move |_| {
        let (world, load) = (world.clone(), Rc::clone(&load));
        async move {
            load.now.set(load.now.get() + 1);
            load.most.set(load.most.get().max(load.now.get()));
            world.sleep(world.one_of(&[0, 10, 400, 3_000])).await;
            load.now.set(load.now.get() - 1);
            response(200, "", "")
        }
    })
}

/// A node has no more requests than its limit; each request ends within its time, with a response of a node, a refusal or a
/// timeout.
fn limited(simulation: &Simulation) -> Result<(), String> {
    const DEADLINE_MS: u64 = 2_000;
    let wrongs = Wrongs::default();
    let loads = [(); 2].map(|()| Rc::<Load>::default());
    let nodes = loads.each_ref().map(|load| busy(simulation, load));
    let most: usize = simulation.world.one_of(&[1, 2]);
    let queue = json!({ "length": simulation.world.one_of(&[1, 3, 20]), "timeout": 1 });
    let upstream = json!({
        "nodes": nodes_of(&[&nodes[0], &nodes[1]]), "retries": 0,
        "limits": { "max_requests_per_node": most, "queue": queue },
        "deadline": { "timeout": DEADLINE_MS / 1_000 },
    });
    let _gateway = simulation.gateway(catch_all(upstream));
    let (world, clock, found) = (simulation.world.clone(), simulation.world.clone(), wrongs.clone());
    let traffic = Traffic::start(
        simulation,
        move |number| (short(&world, number), world.now_ms()),
        move |began_ms: u64, outcome: Outcome| match outcome {
            Ok(answer) => {
                let took_ms = clock.now_ms() - began_ms;
                let is_right = matches!(answer.status(), 200 | 503 | 504);
                // Bytes that are late on their way come on top.
                found.check(is_right && took_ms < DEADLINE_MS + 20_000, || {
                    format!("{took_ms} ms: {answer:?}")
                });
            }
            Err(error) => found.add(error),
        },
    );
    simulation.pass(std::time::Duration::from_secs(20));
    traffic.stop();
    // An attempt that was given up may end at its node later.
    for load in &loads {
        wrongs.check(load.most.get() > 0, || "a node got nothing".to_owned());
    }
    wrongs.verdict()
}

#[test]
fn every_request_ends_within_its_time() {
    for_seeds("load::every_request_ends_within_its_time", limited);
}

/// A node never has more requests than its limit, if none is given up.
fn bounded(simulation: &Simulation) -> Result<(), String> {
    let wrongs = Wrongs::default();
    let loads = [(); 2].map(|()| Rc::<Load>::default());
    let nodes = loads.each_ref().map(|load| busy(simulation, load));
    let most: usize = simulation.world.one_of(&[1, 2]);
    let queue = json!({ "length": 100, "timeout": 600 });
    let upstream = json!({
        "nodes": nodes_of(&[&nodes[0], &nodes[1]]), "retries": 0, "type": simulation.world.one_of(&["roundrobin", "random", "least_conn"]),
        "limits": { "max_requests_per_node": most, "queue": queue },
    });
    let _gateway = simulation.gateway(catch_all(upstream));
    let (world, found) = (simulation.world.clone(), wrongs.clone());
    let traffic = Traffic::start(
        simulation,
        move |number| (short(&world, number), ()),
        move |(), outcome: Outcome| match outcome {
            Ok(answer) => found.check(answer.status() == 200, || format!("{answer:?}")),
            Err(error) => found.add(error),
        },
    );
    simulation.pass(std::time::Duration::from_secs(20));
    traffic.stop();
    for load in &loads {
        wrongs.check(load.most.get() <= most, || format!("{} requests, limit {most}", load.most.get()));
    }
    wrongs.verdict()
}

#[test]
fn a_node_has_no_more_requests_than_its_limit() {
    for_seeds("load::a_node_has_no_more_requests_than_its_limit", bounded);
}

/// A request that must not be repeated reaches one node; others no more than the retries allow; all get a response.
fn retried(simulation: &Simulation) -> Result<(), String> {
    let (wrongs, attempts) = (Wrongs::default(), Rc::new(RefCell::new(BTreeMap::<String, usize>::new())));
    let node = || {
        let (world, attempts) = (simulation.world.clone(), Rc::clone(&attempts));
        simulation.serve(move |mut client: crate::simulation::peers::Conversation| {
            let (world, attempts) = (world.clone(), Rc::clone(&attempts));
            async move {
                while let Ok(Some(request)) = client.request().await {
                    *attempts.borrow_mut().entry(request.target().to_owned()).or_default() += 1;
                    match world.pick(0..6) {
                        0 => return,
                        1 => return client.reset(),
                        2 => {
                            let _ = client.send(response(503, "", "")).await;
                        }
                        3 => world.sleep(world.one_of(&[100, 5_000])).await,
                        _ => {}
                    }
                    if client.send(response(200, "", "")).await.is_err() {
                        return;
                    }
                    if world.chance(30) {
                        return;
                    }
                }
            }
        })
    };
    let nodes = [node(), node(), node()];
    let retries: usize = 1 + simulation.world.pick(0..3);
    let breaker = json!({ "minimum_number_of_calls": 20, "wait_duration_in_open_state": 1 });
    let upstream = json!({
        "nodes": nodes_of(&[&nodes[0], &nodes[1], &nodes[2]]), "retries": retries,
        "retry_policy": { "retry_on": ["5xx", "reset"], "per_try_timeout": 1,
            "back_off": { "base_interval": 0.01 } },
        "deadline": { "timeout": 10 }, "circuit_breaker": breaker,
    });
    let _gateway = simulation.gateway(catch_all(upstream));
    let (world, found, counted) = (simulation.world.clone(), wrongs.clone(), Rc::clone(&attempts));
    let traffic = Traffic::start(
        simulation,
        move |number| {
            let request = short(&world, number);
            let most = if request.starts_with("POST") { 1 } else { 1 + retries };
            (request, (format!("/{number}"), most))
        },
        move |(path, most): (String, usize), outcome: Outcome| {
            match outcome {
                Ok(answer) => {
                    let is_right = matches!(answer.status(), 200 | 502 | 503 | 504);
                    found.check(is_right, || format!("{answer:?}"));
                }
                Err(error) => found.add(error),
            }
            let attempts = counted.borrow().get(&path).copied().unwrap_or_default();
            // A kept connection that its node closes just then costs no retry.
            found.check(attempts <= most + usize::from(most > 1) * 3, || {
                format!("{attempts} attempts for {path}, at most {most}")
            });
        },
    );
    simulation.pass(std::time::Duration::from_secs(30));
    traffic.stop();
    wrongs.verdict()
}

#[test]
fn retries_are_bounded_and_safe() {
    for_seeds("load::retries_are_bounded_and_safe", retried);
}
