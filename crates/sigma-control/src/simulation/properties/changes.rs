//! Changes of the configuration and of nodes under traffic.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use sigma_config::resources;

use super::{Outcome, Traffic, Wrongs, for_seeds, numbered};
use crate::simulation::Simulation;
use crate::simulation::gateway::{catch_all, joined, managed};
use crate::simulation::peers::{Node, nodes_of, response};

/// A configuration of a version: its number is in its nodes, and in a field that a plugin adds.
fn versioned(version: usize, node: &Node) -> Value {
    let plugins =
        json!({ "response-rewrite": { "headers": { "set": { "X-Version": version.to_string() } } } });
    let upstream = json!({ "nodes": nodes_of(&[node]) });
    json!({ "routes": [{ "id": "all", "uri": "/*", "plugins": plugins, "upstream": upstream }] })
}

/// No accepted request is lost; each is served by one configuration as a whole, never by one that was replaced before it
/// began; a refused configuration changes nothing.
fn reloads(simulation: &Simulation) -> Result<(), String> {
    let (wrongs, in_force) = (Wrongs::default(), Rc::new(Cell::new(0)));
    let nodes: Vec<Node> = (0..8).map(|version| simulation.echo(&version.to_string())).collect();
    let gateway = simulation.gateway(versioned(0, &nodes[0]));
    let (world, seen, found) = (simulation.world.clone(), Rc::clone(&in_force), wrongs.clone());
    let traffic = Traffic::start(
        simulation,
        move |number| (numbered(&world, number), seen.get()),
        move |least: usize, outcome: Outcome| match outcome {
            Ok(answer) => {
                let version = answer.get("x-version").and_then(|version| version.parse::<usize>().ok());
                let is_whole = answer.get("x-origin") == answer.get("x-version");
                let is_right = answer.status() == 200 && is_whole && version.is_some_and(|is| is >= least);
                found.check(is_right, || format!("begun with {least}: {answer:?}"));
            }
            Err(error) => found.add(error),
        },
    );
    for (version, node) in nodes.iter().enumerate().skip(1) {
        simulation.pass(Duration::from_millis(simulation.world.one_of(&[0, 3, 50, 700])));
        if simulation.world.chance(40) {
            let unknown = json!({ "routes": [{ "id": "all", "uri": "/*", "plugins": { "no-such": {} } }] });
            gateway.rewrite(unknown);
            wrongs.check(gateway.reload().is_err(), || "an invalid file is not refused".to_owned());
        }
        gateway.change(versioned(version, node));
        in_force.set(version);
    }
    simulation.pass(Duration::from_millis(500));
    let sent = traffic.stop();
    wrongs.check(sent > 0, || "no request was sent".to_owned());
    wrongs.verdict()
}

#[test]
fn a_request_is_served_by_one_configuration_as_a_whole() {
    for_seeds("changes::a_request_is_served_by_one_configuration_as_a_whole", reloads);
}

/// The version of the list of nodes, and the nodes that have left it.
#[derive(Default)]
struct Served {
    /// The version of the list in which a node was last, by its name.
    until: RefCell<BTreeMap<String, usize>>,
    version: Cell<usize>,
}

/// Nodes that come and go by the configuration, or that operators take out: no request is lost, and none that begins
/// afterwards reaches a node that has gone.
fn removals(simulation: &Simulation) -> Result<(), String> {
    let wrongs = Wrongs::default();
    let nodes: Vec<Node> = (0..4).map(|number| simulation.echo(&number.to_string())).collect();
    let config = |members: &BTreeSet<usize>| {
        let members: Vec<&Node> = members.iter().map(|number| &nodes[*number]).collect();
        let upstream = json!({ "id": "u", "nodes": nodes_of(&members) });
        json!({ "upstreams": [upstream], "routes": [{ "id": "all", "uri": "/*", "upstream_id": "u" }] })
    };
    let all: BTreeSet<usize> = (0..nodes.len()).collect();
    let gateway = simulation.gateway(config(&all));
    let served = Rc::new(Served::default());
    let (world, at_begin, at_end, found) =
        (simulation.world.clone(), Rc::clone(&served), Rc::clone(&served), wrongs.clone());
    let traffic = Traffic::start(
        simulation,
        move |number| (numbered(&world, number), at_begin.version.get()),
        move |begun: usize, outcome: Outcome| match outcome {
            Ok(answer) => {
                let node = answer.get("x-origin").unwrap_or_default().to_owned();
                let gone = at_end.until.borrow().get(&node).copied();
                let is_right = answer.status() == 200 && gone.is_none_or(|gone| begun < gone);
                found.check(is_right, || format!("gone in {gone:?}, begun in {begun}: {answer:?}"));
            }
            Err(error) => found.add(error),
        },
    );
    for version in 1..8 {
        let mut members: BTreeSet<usize> =
            all.iter().copied().filter(|_| simulation.world.chance(50)).collect();
        members.insert(simulation.world.pick(0..nodes.len()));
        if simulation.world.chance(50) {
            gateway.change(config(&members));
        } else {
            gateway.change(config(&all));
            for (number, node) in nodes.iter().enumerate() {
                let state = if members.contains(&number) { "ready" } else { "maintenance" };
                let path = format!("/v1/nodes/upstreams/u/{}", node.name());
                let reply = gateway.control("PUT", &path, Some(&json!({ "state": state })));
                wrongs.check(reply.status == 200, || format!("{reply:?}"));
            }
        }
        served.version.set(version);
        let gone = all.difference(&members).map(|number| (number.to_string(), version));
        *served.until.borrow_mut() = gone.collect();
        simulation.pass(Duration::from_millis(simulation.world.one_of(&[10, 100, 1_500])));
        // Operators' states outlast a reload.
        for node in &nodes {
            let path = format!("/v1/nodes/upstreams/u/{}", node.name());
            gateway.control("PUT", &path, Some(&json!({ "state": "ready" })));
        }
        served.until.borrow_mut().clear();
    }
    traffic.stop();
    wrongs.verdict()
}

#[test]
fn a_node_that_has_gone_gets_no_new_request() {
    for_seeds("changes::a_node_that_has_gone_gets_no_new_request", removals);
}

/// Nodes of a registry appear and vanish, and the registry fails: the gateway uses its last good list.
fn registered(simulation: &Simulation) -> Result<(), String> {
    let wrongs = Wrongs::default();
    let nodes: Vec<Node> = (0..4).map(|number| simulation.echo(&number.to_string())).collect();
    let discovery = json!({
        "consul": { "servers": ["http://127.0.0.1:1"] }, "protection": { "max_vanished_percent": 100 },
        "last_good": { "path": "off" },
    });
    let upstream = json!({ "service_name": "web", "discovery_type": "consul" });
    let listed = |members: &BTreeSet<usize>| -> Vec<resources::Node> {
        let node = |number: &usize| resources::Node {
            host: nodes[*number].address.ip().to_string().into(),
            port: Some(80),
            weight: 1,
            ..resources::Node::default()
        };
        members.iter().map(node).collect()
    };
    let mut good = BTreeSet::from([simulation.world.pick(0..nodes.len())]);
    simulation.registry().set("web", listed(&good));
    let gateway = simulation.gateway(joined(catch_all(upstream), json!({ "discovery": discovery })));
    for _ in 0..10 {
        if simulation.world.chance(40) {
            simulation.registry().fail("the registry of the seed fails");
            simulation.pass(Duration::from_secs(simulation.world.one_of(&[1, 40, 400])));
        } else {
            good = (0..nodes.len()).filter(|_| simulation.world.chance(50)).collect();
            good.insert(simulation.world.pick(0..nodes.len()));
            simulation.registry().set("web", listed(&good));
            // A registry that has failed is asked again within half a minute.
            simulation.pass(Duration::from_secs(31));
        }
        let mut served = BTreeSet::new();
        for _ in 0..4 * nodes.len() {
            let answer = gateway.get("/");
            wrongs.check(answer.status() == 200, || format!("{answer:?}"));
            served.extend(answer.get("x-origin").and_then(|name| name.parse::<usize>().ok()));
        }
        wrongs.check(served == good, || format!("served by {served:?}, listed are {good:?}"));
    }
    wrongs.verdict()
}

#[test]
fn the_last_good_list_is_used() {
    for_seeds("changes::the_last_good_list_is_used", registered);
}

/// Resources of the store come into force in the order of their writes; an invalid one leaves its last good form.
fn stored(simulation: &Simulation) -> Result<(), String> {
    let (wrongs, good) = (Wrongs::default(), Rc::new(Cell::new(0)));
    let nodes: Vec<Node> = (0..8).map(|number| simulation.echo(&number.to_string())).collect();
    let gateway = simulation.gateway(managed());
    let put = |number: usize| {
        let upstream = json!({ "nodes": nodes_of(&[&nodes[number]]) });
        gateway.put("routes/r", &json!({ "uri": "/*", "upstream": upstream }));
    };
    let is_served = |number: usize| gateway.get("/").get("x-origin") == Some(&*number.to_string());
    put(0);
    wrongs.check(simulation.until(|| is_served(0)), || "the first route is not served".to_owned());
    let (world, seen, found) = (simulation.world.clone(), Rc::clone(&good), wrongs.clone());
    let traffic = Traffic::start(
        simulation,
        move |number| (numbered(&world, number), seen.get()),
        move |least: usize, outcome: Outcome| match outcome {
            Ok(answer) => {
                let number = answer.get("x-origin").and_then(|number| number.parse::<usize>().ok());
                found.check(number.is_some_and(|number| number >= least), || {
                    format!("begun with {least}: {answer:?}")
                });
            }
            Err(error) => found.add(error),
        },
    );
    for number in 1..nodes.len() {
        if simulation.world.chance(40) {
            let reply = gateway.admin("PUT", "routes/r", Some(&json!({ "uri": "/*", "upstrem": {} })));
            wrongs.check(reply.status == 400, || format!("{reply:?}"));
        }
        put(number);
        wrongs.check(simulation.until(|| is_served(number)), || format!("{number} is not served"));
        good.set(number);
        simulation.pass(Duration::from_millis(simulation.world.one_of(&[0, 10, 400])));
    }
    traffic.stop();
    wrongs.verdict()
}

#[test]
fn a_write_comes_into_force_and_stays() {
    for_seeds("changes::a_write_comes_into_force_and_stays", stored);
}

/// A response that was stored before a purge is not served to a request that begins after it.
fn purges(simulation: &Simulation) -> Result<(), String> {
    let (wrongs, generation) = (Wrongs::default(), Rc::new(Cell::new(0_usize)));
    let made = Rc::clone(&generation);
    let node = simulation.answer(move |request| {
        let fields =
            format!("Cache-Control: max-age=600\r\nSurrogate-Key: all\r\nX-Made: {}\r\n", made.get());
        response(200, &fields, request.target())
    });
    let gateway = simulation.gateway(managed());
    let route = json!({ "uri": "/*", "cache": {}, "upstream": { "nodes": nodes_of(&[&node]) } });
    gateway.put("routes/r", &route);
    wrongs.check(simulation.until(|| gateway.get("/0").status() == 200), || "no route".to_owned());
    let purged = Rc::new(Cell::new(0_usize));
    let (world, seen, found) = (simulation.world.clone(), Rc::clone(&purged), wrongs.clone());
    let traffic = Traffic::start(
        simulation,
        move |_| {
            let path = world.pick(0..3);
            (format!("GET /{path} HTTP/1.1\r\nHost: h\r\n\r\n"), (seen.get(), path))
        },
        move |(least, path), outcome: Outcome| match outcome {
            Ok(answer) => {
                let made = answer.get("x-made").and_then(|made| made.parse::<usize>().ok());
                let is_right = made.is_some_and(|made| made >= least) && answer.text() == format!("/{path}");
                found.check(is_right, || format!("purged before {least}: {answer:?}"));
            }
            Err(error) => found.add(error),
        },
    );
    for round in 1..10 {
        simulation.pass(Duration::from_millis(simulation.world.one_of(&[0, 20, 500])));
        // Responses of the generation before are on their way; their requests have begun before the purge.
        generation.set(round);
        simulation.pass(Duration::from_secs(5));
        let wanted = simulation.world.pick(0..2);
        let wanted = [json!({ "all": true }), json!({ "tags": ["all"] })][wanted].clone();
        let reply = gateway.admin("POST", "cache/purge", Some(&wanted));
        wrongs.check(reply.status == 200, || format!("{reply:?}"));
        purged.set(round);
    }
    traffic.stop();
    wrongs.verdict()
}

#[test]
fn a_purged_response_is_not_served() {
    for_seeds("changes::a_purged_response_is_not_served", purges);
}

/// A request that has reached a node gets its whole response, also while the process ends; the process ends in order.
fn stops(simulation: &Simulation) -> Result<(), String> {
    let (wrongs, seen) = (Wrongs::default(), Rc::new(RefCell::new(BTreeSet::<String>::new())));
    let (world, noted) = (simulation.world.clone(), Rc::clone(&seen));
    let node = simulation.answer_later(move |request| {
        noted.borrow_mut().insert(request.target().to_owned());
        let world = world.clone();
        async move {
            world.sleep(world.one_of(&[0, 10, 400, 3_000])).await;
            response(200, "", request.target())
        }
    });
    let config = catch_all(json!({ "nodes": nodes_of(&[&node]) }));
    let mut gateway = simulation.gateway(joined(config, json!({ "timeouts": { "drain_ms": 60_000 } })));
    let (world, found, is_stopping) = (simulation.world.clone(), wrongs.clone(), Rc::new(Cell::new(false)));
    let stopping = Rc::clone(&is_stopping);
    let traffic = Traffic::start(
        simulation,
        move |number| (numbered(&world, number), format!("/{number}")),
        move |target: String, outcome: Outcome| match outcome {
            Ok(answer) => {
                found.check(answer.status() == 200 && answer.text() == target, || format!("{answer:?}"));
            }
            // A connection may end before the gateway has read a request from it.
            Err(error) => {
                let is_lost = !stopping.get() || seen.borrow().contains(&target);
                found.check(!is_lost, || error);
            }
        },
    );
    simulation.pass(Duration::from_millis(simulation.world.one_of(&[1, 300, 2_000])));
    is_stopping.set(true);
    gateway.terminate();
    wrongs.check(gateway.wait(), || "the process ended with an error".to_owned());
    traffic.stop();
    wrongs.verdict()
}

#[test]
fn no_exchange_is_left_half_done_at_the_end() {
    for_seeds("changes::no_exchange_is_left_half_done_at_the_end", stops);
}
