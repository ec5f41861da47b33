//! Connections to nodes: idle ones after a burst, and the limit of connections.

use std::sync::{Arc, Barrier};

use bytes::Bytes;
use sigma_testkit::{Gateway, Origin, Peer, until};

use crate::h2::{Node, connect, get, within};
use crate::{PATIENCE, SIGMA, nodes};

const BURST: usize = 40;
const SIZE: usize = 4;

/// An origin that answers when a whole burst is there.
fn origin() -> Origin {
    let all = Arc::new(Barrier::new(BURST));
    Origin::answer(move |_| {
        all.wait();
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()
    })
    .unwrap()
}

fn gateway(origin: &Origin, settings: &str) -> Gateway {
    let nodes = nodes(&[origin]);
    let config = format!(
        "workers: 1\nlisteners: [{{ address: \"{{listen}}\" }}]\nstatus: {{ address: \"{{status}}\" }}\n{settings}\n\
         routes: [{{ id: all, uri: \"/*\", upstream: {{ nodes: {nodes}, keepalive_pool: {{ size: {SIZE} }} }} }}]\n"
    );
    Gateway::start(SIGMA, &config).unwrap()
}

fn burst(gateway: &Gateway) {
    let mut clients: Vec<Peer> =
        (0..BURST).map(|_| gateway.connect().unwrap().with_deadline(PATIENCE)).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    }
    for client in &mut clients {
        assert_eq!(client.read_response("GET").unwrap().status(), 200);
    }
}

#[test]
fn a_burst_finds_the_connections_of_the_one_before() {
    let origin = origin();
    let gateway = gateway(&origin, "timeouts: { upstream_burst_ms: 600000 }");
    burst(&gateway);
    assert_eq!(origin.connections(), BURST);
    burst(&gateway);
    assert_eq!(origin.connections(), BURST, "none was opened again");
    assert_eq!(gateway.counter("sigma_upstream_connects_total") as usize, BURST);
    assert_eq!(gateway.counter("sigma_upstream_reuses_total") as usize, BURST);
    assert_eq!(gateway.counter("sigma_upstream_closed_for_room_total"), 0);
    assert!(until(PATIENCE, || gateway.counter("sigma_upstream_idle_beyond_size") > 0));
    // The peak is forgotten by halves, in half a minute, and with it the room that it gave.
    assert!(until(3 * PATIENCE, || gateway.counter("sigma_upstream_idle") as usize == SIZE));
    assert_eq!(gateway.counter("sigma_upstream_idle_beyond_size"), 0);
    assert_eq!(gateway.counter("sigma_upstream_closed_for_room_total") as usize, BURST - SIZE);
}

#[test]
fn a_short_time_is_kept_to() {
    let origin = origin();
    let gateway = gateway(&origin, "timeouts: { upstream_burst_ms: 1000 }");
    burst(&gateway);
    assert!(until(PATIENCE, || gateway.counter("sigma_upstream_idle") as usize == SIZE));
    assert_eq!(gateway.counter("sigma_upstream_closed_for_room_total"), 0, "they ended by themselves");
}

#[test]
fn without_time_for_bursts_the_size_is_kept_to() {
    let origin = origin();
    let gateway = gateway(&origin, "timeouts: { upstream_burst_ms: 0 }");
    burst(&gateway);
    burst(&gateway);
    assert_eq!(origin.connections(), 2 * BURST - SIZE);
}

/// A gateway in front of an HTTP/2 node that allows two requests on a connection.
fn in_front_of(node: &Node, connect_s: u32) -> Gateway {
    let config = format!(
        "workers: 1\nlisteners: [{{ address: \"{{listen}}\" }}]\n\
         routes: [{{ id: all, uri: \"/*\", upstream: {{ scheme: grpc, nodes: {{ \"127.0.0.1:{}\": 1 }}, \
         keepalive_pool: {{ size: 3 }}, timeout: {{ connect: {connect_s}, send: 60, read: 60 }} }} }}]\n",
        node.port()
    );
    Gateway::start(SIGMA, &config).unwrap()
}

#[test]
fn streams_wait_for_a_slot_and_are_answered_without_one() {
    within(async {
        let (node, gate) = Node::behind_a_gate().await;
        let (patient, hasty) = (in_front_of(&node, 100), in_front_of(&node, 1));
        let (to_patient, _driver) = connect(&patient).await;
        let (to_hasty, _driver) = connect(&hasty).await;
        let ask = |sender: &h2::client::SendRequest<Bytes>| {
            let sender = sender.clone();
            tokio::spawn(async move { get(&sender, "/").await.0 })
        };
        let waiting: Vec<_> = (0..60).map(|_| ask(&to_patient)).collect();
        let mut failing = tokio::task::JoinSet::new();
        for _ in 0..10 {
            failing.spawn(ask(&to_hasty));
        }
        for _ in 0..4 {
            let status = failing.join_next().await.unwrap().unwrap().unwrap();
            assert_eq!(status, 503, "six have places");
        }
        gate.send(true).unwrap();
        while let Some(status) = failing.join_next().await {
            assert_eq!(status.unwrap().unwrap(), 200);
        }
        for status in waiting {
            assert_eq!(status.await.unwrap(), 200);
        }
        assert_eq!(node.connections(), 6, "three of each gateway");
    });
}
