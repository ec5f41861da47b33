//! The limit of connections to nodes over HTTP/2.

use bytes::Bytes;
use sigma_testkit::Gateway;

use crate::SIGMA;
use crate::h2::{Node, connect, get, within};

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
