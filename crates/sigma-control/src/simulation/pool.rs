//! Connections to nodes: idle ones after a burst.

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Barrier;

use super::gateway::{Gateway, catch_all, joined};
use super::peers::{Node, nodes_of, response};
use super::{Simulation, example};

const BURST: usize = 40;
const SIZE: usize = 4;

/// A node that answers when a whole burst is there.
fn node(simulation: &Simulation) -> Node {
    let all = Rc::new(Barrier::new(BURST));
    simulation.answer_later(move |_| {
        let all = Rc::clone(&all);
        async move {
            all.wait().await;
            response(200, "", "")
        }
    })
}

fn gateway(simulation: &Simulation, node: &Node, timeouts: Value) -> Gateway {
    let upstream = json!({ "nodes": nodes_of(&[node]), "keepalive_pool": { "size": SIZE } });
    simulation.gateway(joined(catch_all(upstream), json!({ "timeouts": timeouts })))
}

fn burst(gateway: &Gateway) {
    let all: Vec<_> = (0..BURST).map(|_| gateway.begin("")).collect();
    all.into_iter().for_each(|one| assert_eq!(one.join(), 200));
}

#[test]
fn a_burst_finds_the_connections_of_the_one_before() {
    example(|simulation| {
        let node = node(simulation);
        let gateway = gateway(simulation, &node, json!({ "upstream_burst_ms": 600_000 }));
        burst(&gateway);
        assert_eq!(node.connections(), BURST);
        burst(&gateway);
        assert_eq!(node.connections(), BURST, "none was opened again");
        assert_eq!(gateway.counter("sigma_upstream_connects_total") as usize, BURST);
        assert_eq!(gateway.counter("sigma_upstream_reuses_total") as usize, BURST);
        assert_eq!(gateway.counter("sigma_upstream_closed_for_room_total"), 0);
        assert!(simulation.until(|| gateway.counter("sigma_upstream_idle_beyond_size") > 0));
        // The peak is forgotten by halves, in half a minute, and with it the room that it gave.
        simulation.pass(Duration::from_secs(45));
        assert_eq!(gateway.counter("sigma_upstream_idle") as usize, SIZE);
        assert_eq!(gateway.counter("sigma_upstream_idle_beyond_size"), 0);
        assert_eq!(gateway.counter("sigma_upstream_closed_for_room_total") as usize, BURST - SIZE);
    });
}

#[test]
fn a_short_time_is_kept_to() {
    example(|simulation| {
        let node = node(simulation);
        let gateway = gateway(simulation, &node, json!({ "upstream_burst_ms": 5_000 }));
        burst(&gateway);
        simulation.pass(Duration::from_secs(3));
        assert_eq!(gateway.counter("sigma_upstream_idle") as usize, BURST);
        simulation.pass(Duration::from_secs(4));
        assert_eq!(gateway.counter("sigma_upstream_idle") as usize, SIZE);
        assert_eq!(gateway.counter("sigma_upstream_closed_for_room_total"), 0, "they ended by themselves");
    });
}

#[test]
fn without_time_for_bursts_the_size_is_kept_to() {
    example(|simulation| {
        let node = node(simulation);
        let gateway = gateway(simulation, &node, json!({ "upstream_burst_ms": 0 }));
        burst(&gateway);
        burst(&gateway);
        assert_eq!(node.connections(), 2 * BURST - SIZE);
    });
}
