//! Whole connections served by the worker's own code, between clients and nodes that a seed determines.
//!
//! Only the gateway is real: time passes when no task is ready, tasks are polled in random order, and connections
//! move pieces of any size, make both ends wait, and break at any read or write. So one seed is one run, and always
//! the same.
//!
//! In all runs:
//! - no byte is lost, duplicated or reordered; a message arrives as a whole or is visibly cut;
//! - a response goes to the client that asked; a request that must not be repeated reaches one node at most;
//! - nothing panics, waits forever, or is polled endlessly;
//! - everything that began has ended: exchanges, connections, the requests that a balancer counts on a node.
//!
//! In calm runs, every request gets its response.

mod peers;
mod takeover;

use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use sigma_config::resources;
use sigma_net::simulation::{Dialling, Wire};
use sigma_net::{Stream, deadline};
use sigma_observe::counters::Counter;
use sigma_plugin::Roster;
use sigma_upstream::balance::{InFlight, PickContext, Tried};
use sigma_upstream::identity::EndpointId;

use super::Open;
use super::made_up::{accepted, compiled, serving};
use crate::simulation::message::STALL_MS;
use crate::simulation::stream::connection;
use crate::simulation::world::{FOR_EVER_MS, Scheduler, Spawner, World};
use crate::snapshot::Snapshot;
use crate::worker::Worker;
use peers::Play;

#[test]
fn transfers() {
    sigma_testkit::for_seeds("cargo test -p sigma-proxy --lib simulation::transfers", simulate);
}

#[test]
fn takeovers() {
    sigma_testkit::for_seeds("cargo test -p sigma-proxy --lib simulation::takeovers", takeover::simulate);
}

/// One run of a worker.
fn simulate(seed: u64) -> Result<(), String> {
    let world = World::new(seed);
    let play = Rc::new(Play::new(&world));
    let spawner = Spawner::default();
    let worker = worker(&world, seed);
    let _network = sigma_net::simulation::enter(network(&play, &spawner));
    let open = Open::default();
    let clients = 1 + world.pick(0..4);
    for number in 0..clients {
        let (near, far) = connection(&world, play.mood());
        let stream = Stream::Simulated(Box::new(near));
        spawner.spawn(format!("connection {number}"), accepted(&worker, &open, stream));
        let asks = (0..1 + world.pick(0..4)).map(|_| play.ask()).collect();
        spawner.spawn(format!("client {number}"), peers::client(Rc::clone(&play), far, asks));
    }
    let mut scheduler = Scheduler::new(&world, &spawner);
    let sweep = || worker.pools.borrow_mut().sweep(deadline::now_ms());
    scheduler.run("connection", FOR_EVER_MS, sweep)?;
    scheduler.run("client", 2 * STALL_MS, || {})?;
    play.verdict()?;
    account(&worker, clients)?;
    worker.pools.borrow_mut().clear();
    scheduler.run("node", 2 * STALL_MS, || {})
}

/// A worker with one route to some nodes.
fn worker(world: &World, seed: u64) -> Rc<Worker> {
    // Made once, as that takes longer than most simulations.
    static SNAPSHOTS: LazyLock<Vec<Arc<Snapshot>>> = LazyLock::new(snapshots);
    serving(Arc::clone(&SNAPSHOTS[world.pick(0..SNAPSHOTS.len())]), seed)
}

fn snapshots() -> Vec<Arc<Snapshot>> {
    let mut snapshots = Vec::new();
    // Not ewma: it goes by how long requests really took.
    for balance in ["least_conn", "least_conn", "roundrobin", "random", "chash"] {
        for nodes in 1..4 {
            for (buffer, kept) in [(4_096, 0), (4_096, 100), (65_536, 65_536)] {
                snapshots.push(snapshot(balance, nodes, buffer, kept));
            }
        }
    }
    snapshots
}

/// One route to nodes that are balanced so; with buffers of this size, and this much of a body kept
/// for another attempt.
fn snapshot(balance: &str, nodes: usize, buffer: usize, kept: usize) -> Arc<Snapshot> {
    let node = |n: usize| format!("{{host: 10.0.0.{}, port: 9000, weight: 1}}", n + 1);
    let text = format!(
        "listeners: [{{address: \"127.0.0.1:80\"}}]\n\
         limits: {{exchange_buffer_bytes: {buffer}, retry_body_bytes: {kept}}}\n\
         routes: [{{id: r, uri: /*, upstream: {{type: {balance}, key: uri, nodes: [{}]}}}}]\n",
        (0..nodes).map(node).collect::<Vec<_>>().join(", "),
    );
    compiled(&text, Roster::new([], None))
}

/// Returns the connections to nodes: some are refused, some are never established.
fn network(play: &Rc<Play>, spawner: &Spawner) -> impl Fn(std::net::SocketAddr) -> Dialling + use<> {
    let (play, spawner) = (Rc::clone(play), spawner.clone());
    move |addr| {
        let world = play.world.clone();
        let delay_ms = world.one_of(&[0, 0, 1, 30, 400]);
        let (refused, lost) = (!play.calm && world.chance(8), !play.calm && world.chance(4));
        let (near, far) = connection(&world, play.mood());
        if !refused && !lost {
            spawner.spawn(format!("node {addr}"), peers::node(Rc::clone(&play), far));
        }
        Box::pin(async move {
            world.sleep(delay_ms).await;
            if lost {
                std::future::pending::<()>().await;
            }
            if refused {
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
            Ok(Box::new(near) as Box<dyn Wire>)
        })
    }
}

/// Checks that everything that began has ended.
fn account(worker: &Rc<Worker>, clients: usize) -> Result<(), String> {
    let count = |counter| worker.counters.get(counter);
    let begun = (count(Counter::Requests), count(Counter::ConnectionsAccepted));
    let ended = (count(Counter::ExchangesEnded), clients as u64);
    let active = (count(Counter::ConnectionsActive), worker.connections());
    if begun != ended || active != (0, 0) {
        return Err(format!("begun {begun:?}, ended {ended:?}, still there {active:?}"));
    }
    let snapshot = Arc::clone(&worker.view().snapshot);
    let Some(upstream) = snapshot.upstream(0) else { return Err("no upstream".into()) };
    if upstream.config.balance != resources::Balance::LeastConn {
        return Ok(());
    }
    // Requests that stay are dealt out evenly only if all nodes begin with as many.
    let upstream_state = worker.upstream_state(0, upstream);
    let balancer = &upstream_state.balancer;
    let ids: Vec<EndpointId> = balancer.borrow().endpoints().endpoints.iter().map(|node| node.id()).collect();
    let (mut held, mut counts) = (Vec::new(), vec![0; ids.len()]);
    for turn in 0..2 * ids.len() {
        let context = PickContext {
            session: None,
            subset: None,
            key: None,
            tried: &Tried::default(),
            now_ms: 0,
            random: 0,
        };
        let picked = balancer.borrow_mut().pick(&context);
        let Some(place) = picked.filter(|place| counts[*place] == turn / ids.len()) else {
            return Err(format!("requests are still counted on a node: {picked:?} in turn {turn}"));
        };
        counts[place] += 1;
        held.push(InFlight::begin(balancer, ids[place], 0));
    }
    Ok(())
}
