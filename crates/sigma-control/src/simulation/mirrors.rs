//! `proxy-mirror`: the content of copies, that requests never wait for them, and their counters.

use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::gateway::{Gateway, joined};
use super::peers::{Message, Node, response};
use super::{Simulation, example};

/// A gateway whose routes all go to `node` through these plugins, and its metrics.
fn gateway(simulation: &Simulation, node: &Node, settings: Value, plugins: Value) -> Gateway {
    let metrics = json!({ "public-api": { "uri": "/apisix/prometheus/metrics" } });
    let whole = json!({
        "routes": [
            { "uri": "/metrics", "plugins": metrics },
            { "uri": "/*", "plugins": plugins, "upstream": { "nodes": { node.name(): 1 } } },
        ],
        "global_rules": [{ "id": "m", "plugins": { "prometheus": {} } }],
    });
    simulation.gateway(joined(whole, settings))
}

/// A node that reports each request, and answers it so.
fn telling(simulation: &Simulation, status: u16, body: &'static str) -> (Node, UnboundedReceiver<Message>) {
    let (tell, told) = unbounded_channel();
    let node = simulation.answer_later(move |request| {
        // The test may have ended.
        let _ = tell.send(request);
        async move { response(status, "", body) }
    });
    (node, told)
}

fn to(node: &Node) -> String {
    format!("http://{}", node.name())
}

/// Waits for a line of the metrics to have this.
fn counted(simulation: &Simulation, gateway: &Gateway, line: &str) {
    let page = || gateway.get("/metrics").text();
    assert!(simulation.until(|| page().contains(line)), "{line}\n{}\n{}", page(), gateway.log());
}

#[test]
fn copies_have_the_content_of_the_nodes_request() {
    example(|simulation| {
        let (node, _at_node) = telling(simulation, 200, "ok");
        let (one, at_one) = telling(simulation, 500, "");
        let (other, at_other) = telling(simulation, 200, "ok");
        let prefixed = json!({ "host": to(&other), "path": "/p", "path_concat_mode": "prefix" });
        let plugins = json!({
            "proxy-mirror": {
                "host": to(&one), "headers": { "X-Mirror": "of $host" }, "mirrors": [prefixed],
            },
            "key-auth": { "hide_credentials": true },
            "proxy-rewrite": { "headers": { "set": { "X-Set": "late" } } },
        });
        let consumer = json!({ "username": "jack", "plugins": { "key-auth": { "key": "secret" } } });
        let gateway = gateway(simulation, &node, json!({ "consumers": [consumer] }), plugins);
        let answer = gateway
            .ask("POST /a%20b?c=d&apikey=secret HTTP/1.1\r\nHost: h.test\r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!((answer.status(), &*answer.text()), (200, "ok"));
        for (mut told, target) in [(at_one, "/a%20b?c=d"), (at_other, "/p/a%20b?c=d")] {
            let copy = simulation.run(told.recv()).unwrap();
            assert_eq!((copy.method(), copy.target(), &*copy.text()), ("POST", target, "hello"));
            for (name, value) in [
                ("host", "h.test"),
                ("x-mirror", "of h.test"),
                ("x-forwarded-for", "127.0.0.1"),
                ("x-consumer-username", "jack"),
                ("x-set", "late"),
                ("content-length", "5"),
            ] {
                assert_eq!(copy.get(name), Some(value), "{name}");
            }
        }
        // A refused request has no copy: the next copy is of the next request.
        assert_eq!(gateway.get("/refused").status(), 401);
        counted(simulation, &gateway, "outcome=\"answered\"} 2");
    });
}

#[test]
fn a_mirror_that_hangs_delays_no_request() {
    example(|simulation| {
        let (node, _at_node) = telling(simulation, 200, "ok");
        let silent = simulation.silent();
        let copies = json!({ "worker_running": 1, "worker_waiting": 1, "worker_bytes": 8 });
        let settings = json!({ "plugin_attr": { "proxy-mirror": { "copies": copies } } });
        let plugins = json!({ "proxy-mirror": { "host": to(&silent), "max_req_body_size": 6 } });
        let gateway = gateway(simulation, &node, settings, plugins);
        for _ in 0..4 {
            assert_eq!(gateway.get("/").status(), 200);
        }
        counted(simulation, &gateway, "outcome=\"no_room\"} 2");
        let answer = gateway.ask("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\n\r\n1234567");
        assert_eq!(answer.status(), 200);
        counted(simulation, &gateway, "outcome=\"too_large\"} 1");
    });
}

#[test]
fn answers_are_compared() {
    example(|simulation| {
        let (node, _at_node) = telling(simulation, 200, "ok");
        let (other, _at_other) = telling(simulation, 200, "key");
        let gone = format!("http://{}", simulation.free_address());
        let mirrors = json!([{ "host": to(&node) }, { "host": gone }]);
        let plugins = json!({ "proxy-mirror": { "host": to(&other), "compare": {}, "mirrors": mirrors } });
        let gateway = gateway(simulation, &node, json!({}), plugins);
        assert_eq!(gateway.get("/").text(), "ok");
        counted(simulation, &gateway, "outcome=\"body\"} 1");
        counted(simulation, &gateway, "outcome=\"same\"} 1");
        counted(simulation, &gateway, "outcome=\"failed\"} 1");
        gateway.await_log("a body of 2 bytes, here of 3");
    });
}
