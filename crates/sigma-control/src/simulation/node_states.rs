//! Operators take nodes out, and give them back.

use serde_json::{Value, json};

use super::gateway::{Gateway, joined};
use super::peers::{Conversation, Node, nodes_of};
use super::{Simulation, example};

struct Pair {
    gateway: Gateway,
    nodes: [Node; 2],
}

impl Pair {
    fn of(simulation: &Simulation, nodes: [Node; 2], fields: Value) -> Pair {
        let [a, b] = &nodes;
        let upstream = joined(json!({ "id": "u", "nodes": nodes_of(&[a, b]) }), fields);
        let route = json!({ "id": "all", "uri": "/*", "upstream_id": "u", "enable_websocket": true });
        let gateway = simulation.gateway(json!({ "upstreams": [upstream], "routes": [route] }));
        Pair { gateway, nodes }
    }

    fn echoing(simulation: &Simulation, fields: Value) -> Pair {
        Pair::of(simulation, [simulation.echo("a"), simulation.echo("b")], fields)
    }

    fn set(&self, node: usize, state: &str) {
        let path = format!("/v1/nodes/upstreams/u/{}", self.nodes[node].name());
        let reply = self.gateway.control("PUT", &path, Some(&json!({ "state": state })));
        assert_eq!(reply.status, 200, "{reply:?}");
    }

    /// The next requests have this status, and are served by these nodes.
    fn serves(&self, status: u16, served: [bool; 2]) {
        let before = self.nodes.each_ref().map(Node::requests);
        assert_eq!([(); 8].map(|()| self.gateway.get("/").status()), [status; 8]);
        let now = self.nodes.each_ref().map(Node::requests);
        assert_eq!([now[0] > before[0], now[1] > before[1]], served);
    }
}

#[test]
fn a_node_is_drained_maintained_and_given_back() {
    example(|simulation| {
        let pair = Pair::echoing(simulation, json!({}));
        pair.serves(200, [true, true]);
        pair.set(0, "drain");
        pair.serves(200, [false, true]);
        let nodes = pair.gateway.nodes("upstreams/u");
        let drained = nodes.iter().find(|node| node["node"] == pair.nodes[0].name()).unwrap();
        assert!(drained["state"] == "drain" && drained["reason"] == "operator: drain", "{drained}");
        // No other one is left: a node that an operator has taken out stays out.
        pair.set(1, "maintenance");
        pair.serves(502, [false, false]);
        pair.set(1, "ready");
        pair.serves(200, [false, true]);
        pair.set(0, "ready");
        pair.serves(200, [true, true]);
    });
}

#[test]
fn sessions_stay_on_a_node_that_is_drained_and_leave_one_in_maintenance() {
    example(|simulation| {
        let affinity = json!({ "cookie": { "name": "node" }, "secret": "0123456789abcdef" });
        let pair = Pair::echoing(simulation, json!({ "session_affinity": affinity }));
        let ask = |cookie: &str| {
            pair.gateway.ask(&format!("GET / HTTP/1.1\r\nHost: h\r\nCookie: {cookie}\r\n\r\n"))
        };
        let first = ask("a=b");
        let cookie = first.get("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        let name = first.get("x-origin").unwrap().to_owned();
        let at = usize::from(name == "b");
        let other = if at == 0 { "b" } else { "a" };
        let goes_to = |cookie: &str, want: &str| {
            for _ in 0..8 {
                assert_eq!(ask(cookie).get("x-origin"), Some(want));
            }
        };
        pair.set(at, "drain");
        goes_to("a=b", other);
        goes_to(&cookie, &name);
        pair.set(at, "maintenance");
        goes_to(&cookie, other);
    });
}

/// A node that changes to any protocol and sends back its input.
fn echoing(simulation: &Simulation) -> Node {
    simulation.serve(async |mut client: Conversation| {
        if !matches!(client.request().await, Ok(Some(_))) {
            return;
        }
        let answer = "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        let _ = client.send(answer).await;
        loop {
            let byte = client.exactly(1).await;
            if byte.is_empty() || client.send(byte).await.is_err() {
                return;
            }
        }
    })
}

const UPGRADE: &str = "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

#[test]
fn open_tunnels_of_a_node_that_goes_out_are_kept_or_closed() {
    for (on_unhealthy, is_closed) in [(None, false), (Some("keep"), false), (Some("close"), true)] {
        example(move |simulation| {
            let fields = on_unhealthy.map_or_else(|| json!({}), |rule| json!({ "on_unhealthy": rule }));
            let pair = Pair::of(simulation, [echoing(simulation), echoing(simulation)], fields);
            let mut client = pair.gateway.connect();
            assert_eq!(client.ask(UPGRADE).status(), 101, "{on_unhealthy:?}");
            client.send("x");
            assert_eq!(client.exactly(1), b"x");
            (0..2).for_each(|node| pair.set(node, "maintenance"));
            simulation.pass(std::time::Duration::from_secs(60));
            if is_closed {
                assert!(client.rest().is_empty());
            } else {
                client.send("x");
                assert_eq!(client.exactly(1), b"x", "{on_unhealthy:?}");
            }
        });
    }
}

/// A node that owes `/wait` its response, and sends the first part of one otherwise.
fn streaming(simulation: &Simulation, name: &'static str) -> Node {
    simulation.serve(move |mut client: Conversation| async move {
        while let Ok(Some(request)) = client.request().await {
            if !request.target().contains("wait") {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
                let _ = client.send(format!("{head}5\r\ndata:\r\n")).await;
            } else if name == "b" {
                let _ = client.send("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb").await;
                continue;
            }
            // Until the gateway gives it up.
            client.rest().await;
            return;
        }
    })
}

#[test]
fn answers_under_way_and_requests_end_with_their_node() {
    example(|simulation| {
        let nodes = [streaming(simulation, "a"), streaming(simulation, "b")];
        let pair = Pair::of(simulation, nodes, json!({ "on_unhealthy": "close" }));
        pair.set(1, "maintenance");
        let mut events = pair.gateway.connect();
        events.send("GET /events HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(events.head(), "HTTP/1.1 200 OK");
        let waiting = ["GET", "POST"].map(|method| {
            let mut client = pair.gateway.connect();
            client.send(format!("{method} /wait HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"));
            client
        });
        assert!(simulation.until(|| pair.nodes[0].connections() == 3), "the other one has some");
        pair.set(1, "ready");
        pair.set(0, "maintenance");
        // Cut off, without the end that it would have.
        assert!(!events.rest().ends_with(b"0\r\n\r\n"));
        let [mut get, mut post] = waiting;
        let answer = get.response("GET").unwrap();
        assert!(answer.status() == 200 && answer.text() == "b", "it may be repeated: {}", answer.text());
        let answer = post.response("POST").unwrap();
        assert!(answer.status() == 502 && answer.text().contains("node_withdrawn"), "{}", answer.text());
    });
}

#[test]
fn a_state_lasts_over_reloads() {
    example(|simulation| {
        let pair = Pair::echoing(simulation, json!({}));
        pair.set(1, "maintenance");
        pair.serves(200, [true, false]);
        pair.gateway.reload().unwrap();
        pair.serves(200, [true, false]);
        let nodes = pair.gateway.nodes("upstreams/u");
        let shown = nodes.iter().find(|node| node["state"] == "maintenance").unwrap();
        assert_eq!(shown["reason"], "operator: maintenance");
    });
}

#[test]
fn unknown_nodes_are_reported() {
    example(|simulation| {
        let pair = Pair::echoing(simulation, json!({}));
        let check = |path: &str, state: &str, text: &str| {
            let reply = pair.gateway.control("PUT", path, Some(&json!({ "state": state })));
            assert!(reply.status >= 400 && reply.text.contains(text), "{reply:?}");
        };
        check("/v1/nodes/upstreams/x/a:1", "drain", "upstreams/x has no upstream");
        check("/v1/nodes/upstreams/u/a:1", "drain", "upstreams/u has no node a:1");
        check(&format!("/v1/nodes/upstreams/u/{}", pair.nodes[0].name()), "asleep", "asleep");
    });
}
