//! Ends of client connections: limits of a listener, their age, a listener that goes, and clients that leave.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use super::gateway::{Gateway, catch_all, joined};
use super::peers::{Conversation, Node, nodes_of, response};
use super::{LISTEN, Simulation, example};

const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
const SLOW: &str = "GET /slow HTTP/1.1\r\nHost: h\r\n\r\n";

/// A node that answers `/slow` after 20 s, and all else at once.
fn slow(simulation: &Simulation) -> Node {
    simulation.answer_later(|request| async move {
        if request.target() == "/slow" {
            tokio::time::sleep(Duration::from_secs(20)).await;
        }
        response(200, "", "ok")
    })
}

fn gateway(simulation: &Simulation, node: &Node, settings: Value) -> Gateway {
    simulation.gateway(joined(catch_all(json!({ "nodes": nodes_of(&[node]) })), settings))
}

fn limited(limit: Value) -> Value {
    json!({ "listeners": [joined(json!({ "address": LISTEN.to_string() }), limit)] })
}

#[test]
fn connections_beyond_the_maximum_wait() {
    example(|simulation| {
        let node = simulation.echo("a");
        let gateway = gateway(simulation, &node, limited(json!({ "max_connections": 1 })));
        let mut first = gateway.connect();
        assert_eq!(first.get("/").status(), 200);
        let mut second = gateway.connect();
        second.send(GET);
        gateway.await_log("listeners: max_connections");
        simulation.pass(Duration::from_secs(10));
        assert_eq!(node.requests(), 1);
        drop(first);
        assert_eq!(second.response("GET").unwrap().status(), 200);
    });
}

#[test]
fn connections_beyond_the_rate_wait() {
    example(|simulation| {
        let node = simulation.echo("a");
        let gateway = gateway(simulation, &node, limited(json!({ "max_connections_per_second": 1 })));
        let began_ms = simulation.now_ms();
        assert_eq!([(); 5].map(|()| gateway.get("/").status()), [200; 5]);
        let took_ms = simulation.now_ms() - began_ms;
        assert!((3_800..5_500).contains(&took_ms), "{took_ms} ms");
        assert!(gateway.log().contains("listeners: max_connections_per_second"), "{}", gateway.log());
    });
}

/// The idle connection is closed at its age. The other one, which is older, learns it from its response.
#[test]
fn an_old_connection_takes_no_further_request() {
    example(|simulation| {
        let node = slow(simulation);
        let timeouts = json!({ "connection_age_ms": 10_000, "connection_age_spread_percent": 0 });
        let gateway = gateway(simulation, &node, json!({ "timeouts": timeouts }));
        let mut busy = gateway.connect();
        busy.send(SLOW);
        let mut idle = gateway.connect();
        assert_eq!(idle.get("/").get("connection"), None);
        let began_ms = simulation.now_ms();
        assert!(idle.rest().is_empty());
        let age_ms = simulation.now_ms() - began_ms;
        assert!((9_000..12_000).contains(&age_ms), "{age_ms} ms");
        let response = busy.response("GET").unwrap();
        assert_eq!((response.status(), response.get("connection")), (200, Some("close")));
        assert!(busy.rest().is_empty());
    });
}

#[test]
fn a_listener_that_goes_takes_its_idle_connections_along() {
    example(|simulation| {
        let node = slow(simulation);
        let second = "127.0.0.1:9081";
        let gateway = gateway(simulation, &node, json!({ "listeners": [LISTEN.to_string(), second] }));
        let at_second = || simulation.connect(second.parse().unwrap()).unwrap();
        let (mut idle, mut busy, mut stays) = (at_second(), at_second(), gateway.connect());
        assert_eq!(simulation.run(idle.ask(GET)).unwrap().get("connection"), None);
        assert_eq!(simulation.run(busy.ask(GET)).unwrap().get("connection"), None);
        assert_eq!(stays.get("/").get("connection"), None);
        simulation.run(busy.send(SLOW)).unwrap();
        assert!(simulation.until(|| node.requests() == 4), "the request is on its way");
        gateway.change(catch_all(json!({ "nodes": nodes_of(&[&node]) })));
        assert!(simulation.run(idle.rest()).is_empty());
        let response = simulation.run(busy.response("GET")).unwrap();
        assert_eq!((response.status(), response.get("connection")), (200, Some("close")));
        assert!(simulation.run(busy.rest()).is_empty());
        assert_eq!(stays.get("/").get("connection"), None);
    });
}

#[test]
fn a_client_that_leaves_a_silent_response_lets_its_node_go() {
    example(|simulation| {
        let closed = Rc::new(Cell::new(0));
        let counted = Rc::clone(&closed);
        let node = simulation.serve(move |mut client: Conversation| {
            let closed = Rc::clone(&counted);
            async move {
                let Ok(Some(request)) = client.request().await else { return };
                if request.target() == "/" {
                    let _ = client.send(response(200, "", "ok")).await;
                    return;
                }
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
                let _ = client.send(format!("{head}9\r\ndata: 1\n\n\r\n")).await;
                client.rest().await;
                closed.set(closed.get() + 1);
            }
        });
        let limit =
            json!({ "limit-conn": { "conn": 1, "burst": 0, "default_conn_delay": 1, "key": "host" } });
        let route =
            json!({ "id": "r", "uri": "/*", "plugins": limit, "upstream": { "nodes": nodes_of(&[&node]) } });
        let gateway =
            simulation.gateway(json!({ "timeouts": { "half_close_ms": 5_000 }, "routes": [route] }));
        let mut client = gateway.connect();
        client.send("GET /events HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(client.head(), "HTTP/1.1 200 OK");
        client.exactly("9\r\ndata: 1\n\n\r\n".len());
        client.finish();
        assert!(simulation.until(|| closed.get() == 1));
        // The slot of limit-conn is free.
        assert_eq!(gateway.get("/").status(), 200);
    });
}
