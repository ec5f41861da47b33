//! The end of a process, as connected clients see it: no exchange is left half done.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use super::gateway::{Gateway, catch_all, joined};
use super::peers::{Conversation, Held, Message, Node, nodes_of};
use super::{Simulation, example};

fn gateway(simulation: &Simulation, node: &Node, timeouts: Value) -> Gateway {
    simulation
        .gateway(joined(catch_all(json!({ "nodes": nodes_of(&[node]) })), json!({ "timeouts": timeouts })))
}

const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

#[test]
fn open_exchanges_finish() {
    example(|simulation| {
        let (node, held) = Held::node(simulation);
        let mut gateway = gateway(simulation, &node, json!({ "drain_ms": 20_000 }));
        let (mut idle, mut busy) = (gateway.connect(), gateway.connect());
        busy.send(GET);
        assert!(simulation.until(|| held.seen() == 1));
        gateway.terminate();
        assert!(idle.rest().is_empty());
        assert!(simulation.until(|| gateway.try_connect().is_err()), "still accepts while draining");
        simulation.pass(Duration::from_secs(15));
        held.let_go(1);
        let answer = busy.response("GET").unwrap();
        assert_eq!((answer.status(), answer.get("connection")), (200, Some("close")));
        assert!(busy.rest().is_empty());
        assert!(gateway.wait());
    });
}

/// A request without a response gets one at the deadline; a response that has begun is cut visibly.
#[test]
fn requests_that_outlast_the_drain_get_an_answer() {
    example(|simulation| {
        let begins = async |mut client: Conversation| {
            let request: Option<Message> = client.request().await.unwrap_or_default();
            if request.is_some_and(|request| request.target() == "/slow") {
                let _ = client.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n").await;
            }
            client.rest().await;
        };
        let node = simulation.serve(begins);
        let mut gateway = gateway(simulation, &node, json!({ "drain_ms": 30_000 }));
        let (mut waiting, mut reading) = (gateway.connect(), gateway.connect());
        waiting.send(GET);
        reading.send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(reading.head(), "HTTP/1.1 200 OK");
        assert!(simulation.until(|| node.connections() == 2));
        let began_ms = simulation.now_ms();
        gateway.terminate();
        let answer = waiting.response("GET").unwrap();
        assert!((30_000..31_000).contains(&(simulation.now_ms() - began_ms)));
        assert_eq!(answer.status(), 503);
        assert!(answer.text().contains("\"gateway_stopping\""), "{}", answer.text());
        assert_eq!(answer.get("connection"), Some("close"));
        let rest = reading.rest();
        assert!(!rest.ends_with(b"0\r\n\r\n"), "it does not look whole: {rest:?}");
        assert!(gateway.wait());
    });
}

/// Other protocols have no good-bye that the gateway knows: their bytes end.
#[test]
fn a_tunnel_of_another_protocol_ends_after_the_sent_bytes() {
    example(|simulation| {
        let node = simulation.serve(async |mut client: Conversation| {
            if matches!(client.request().await, Ok(Some(_))) {
                let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhi";
                let _ = client.send(head).await;
                client.rest().await;
            }
        });
        let route = json!({
            "id": "all", "uri": "/*", "upgrade_protocols": ["x"], "upstream": { "nodes": nodes_of(&[&node]) },
        });
        let timeouts = json!({ "drain_ms": 20_000, "drain_spread_percent": 100, "goodbye_ms": 19_500 });
        let mut gateway = simulation.gateway(json!({ "timeouts": timeouts, "routes": [route] }));
        let mut client = gateway.connect();
        let ask = "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
        assert_eq!(client.ask(ask).status(), 101);
        assert_eq!(client.exactly(2), b"hi");
        gateway.terminate();
        assert!(client.rest().is_empty());
        assert!(gateway.wait());
    });
}

/// A session over TCP: the node learns that its client has ended, and its last bytes still arrive.
#[test]
fn a_stream_session_ends_without_a_reset() {
    example(|simulation| {
        let ended = Rc::new(Cell::new(false));
        let told = Rc::clone(&ended);
        let node = simulation.serve(move |mut client: Conversation| {
            let told = Rc::clone(&told);
            async move {
                let _ = client.send("hello\r\n").await;
                client.rest().await;
                told.set(true);
                let _ = client.send("last words").await;
            }
        });
        let upstream = json!({ "nodes": nodes_of(&[&node]), "scheme": "tcp" });
        let mut gateway = simulation.gateway(json!({
            "listeners": [{ "address": super::LISTEN.to_string(), "stream": "tcp" }],
            "timeouts": { "drain_ms": 20_000, "drain_spread_percent": 100, "goodbye_ms": 19_500 },
            "stream_routes": [{ "upstream": upstream }],
        }));
        let mut client = gateway.connect();
        assert_eq!(client.exactly(7), b"hello\r\n");
        gateway.terminate();
        assert_eq!(client.rest(), b"last words");
        assert!(ended.get(), "the node sees an end");
        assert!(gateway.wait());
    });
}
