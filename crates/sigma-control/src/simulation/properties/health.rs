//! The health of nodes that a seed makes fail and recover.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Wrongs, for_seeds};
use crate::simulation::Simulation;
use crate::simulation::gateway::{Gateway, catch_all};
use crate::simulation::peers::{Node, nodes_of};

/// Whether a node is in use, by the Control API.
fn in_use(gateway: &Gateway, node: &Node) -> bool {
    let nodes = gateway.nodes("routes/all");
    nodes.iter().any(|shown| shown["node"] == node.name() && shown["in_use"] == true)
}

/// A node is marked when its probes fail and unmarked when they succeed; a marked one gets no request while another one is
/// in use.
fn probed(simulation: &Simulation) -> Result<(), String> {
    let wrongs = Wrongs::default();
    let nodes: Vec<_> = (0..3).map(|_| simulation.moody(200)).collect();
    let checks = json!({ "active": {
        "type": "http", "timeout": 5, "interval_jitter_percent": simulation.world.one_of(&[0, 10, 50]),
        "healthy": { "interval": 10, "successes": simulation.world.one_of(&[1, 2]) },
        "unhealthy": { "interval": 5, "http_failures": simulation.world.one_of(&[1, 2]) },
    } });
    let members: Vec<&Node> = nodes.iter().map(|(node, _)| node).collect();
    let gateway = simulation.gateway(catch_all(json!({ "nodes": nodes_of(&members), "checks": checks })));
    for _ in 0..6 {
        for (_, status) in &nodes {
            status.set(simulation.world.one_of(&[200, 200, 500]));
        }
        // Two intervals of probes with all of the jitter, and their answers.
        simulation.pass(Duration::from_secs(60));
        let good: Vec<bool> = nodes.iter().map(|(_, status)| status.get() == 200).collect();
        let marked: Vec<bool> = members.iter().map(|node| in_use(&gateway, node)).collect();
        wrongs.check(good == marked, || format!("good are {good:?}, in use are {marked:?}"));
        let before: Vec<usize> = members.iter().map(|node| node.requests()).collect();
        let statuses: Vec<u16> = (0..9).map(|_| gateway.get("/").status()).collect();
        // Probes may come meanwhile, since requests take time: at most some for each node.
        if good.contains(&true) {
            wrongs.check(statuses == [200; 9], || format!("{statuses:?} with {good:?}"));
            for (at, node) in members.iter().enumerate().filter(|(at, _)| !good[*at]) {
                let probes = node.requests() - before[at];
                wrongs.check(probes <= 2, || format!("{probes} requests to a marked node"));
            }
        }
    }
    wrongs.verdict()
}

#[test]
fn a_node_is_marked_by_its_probes() {
    for_seeds("health::a_node_is_marked_by_its_probes", probed);
}

/// Nodes that fail are ejected, but no more than the share that may be; an ejected node gets nothing while its time lasts,
/// and serves again when it is good and its time is over.
fn ejected(simulation: &Simulation) -> Result<(), String> {
    let wrongs = Wrongs::default();
    let nodes: Vec<_> = (0..4).map(|_| simulation.moody(200)).collect();
    let members: Vec<&Node> = nodes.iter().map(|(node, _)| node).collect();
    let failures: u16 = simulation.world.one_of(&[1, 2, 4]);
    let detection = json!({
        "consecutive_5xx": failures, "base_ejection_time": 30, "max_ejection_time": 30,
        "max_ejection_percent": 50, "interval": 10, "max_ejection_time_jitter": 0,
    });
    let upstream = json!({ "nodes": nodes_of(&members), "outlier_detection": detection });
    let gateway = simulation.gateway(catch_all(upstream));
    let shown = || {
        let health = gateway.control("GET", "/v1/healthcheck", None).json();
        let reason = |node: &Node| {
            let ip = Value::from(node.address.ip().to_string());
            let nodes = health[0]["nodes"].as_array().cloned().unwrap_or_default();
            nodes.iter().find(|shown| shown["ip"] == ip).is_some_and(|shown| !shown["reason"].is_null())
        };
        members.iter().map(|node| reason(node)).collect::<Vec<bool>>()
    };
    for _ in 0..4 {
        for (_, status) in &nodes {
            status.set(simulation.world.one_of(&[200, 200, 503]));
        }
        for _ in 0..40 {
            gateway.get("/");
            simulation.pass(Duration::from_millis(simulation.world.one_of(&[0, 5, 100])));
        }
        simulation.pass(Duration::from_millis(100));
        let out = shown();
        let count = out.iter().filter(|out| **out).count();
        wrongs.check(count <= 2, || format!("{count} of 4 are out"));
        let before: Vec<usize> = members.iter().map(|node| node.requests()).collect();
        (0..8).for_each(|_| drop(gateway.get("/")));
        for (at, node) in members.iter().enumerate().filter(|(at, _)| out[*at] && shown()[*at]) {
            let got = node.requests() - before[at];
            wrongs.check(got == 0, || format!("{got} requests to an ejected node"));
        }
        nodes.iter().for_each(|(_, status)| status.set(200));
        simulation.pass(Duration::from_secs(45));
        wrongs.check(shown() == [false; 4], || format!("{:?} are out after their time", shown()));
        let before: Vec<usize> = members.iter().map(|node| node.requests()).collect();
        (0..16).for_each(|_| drop(gateway.get("/")));
        let all = members.iter().zip(before).all(|(node, before)| node.requests() > before);
        wrongs.check(all, || "a node that is back gets no request".to_owned());
    }
    wrongs.verdict()
}

#[test]
fn an_ejected_node_rests_and_returns() {
    for_seeds("health::an_ejected_node_rests_and_returns", ejected);
}
