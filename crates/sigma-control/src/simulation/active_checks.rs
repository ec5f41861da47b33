//! Probes of nodes, and agents on them.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use super::gateway::{Gateway, catch_all, joined};
use super::peers::{Conversation, Held, Node, response};
use super::{Simulation, example};

/// A gateway in front of these nodes.
fn gateway(simulation: &Simulation, nodes: &[&Node], checks: Value) -> Gateway {
    let nodes: Value =
        nodes.iter().map(|node| (node.name(), json!(10))).collect::<serde_json::Map<_, _>>().into();
    simulation.gateway(catch_all(json!({ "nodes": nodes, "checks": checks })))
}

/// Returns a member of the node in `/v1/nodes`.
fn shown(gateway: &Gateway, node: &Node, member: &str) -> Value {
    let nodes = gateway.nodes("routes/all");
    nodes.iter().find(|shown| shown["node"] == node.name()).unwrap()[member].clone()
}

/// Waits until `/v1/nodes` shows this of the node.
fn shows(simulation: &Simulation, gateway: &Gateway, node: &Node, member: &str, want: &Value) {
    let is_shown = simulation.until(|| shown(gateway, node, member) == *want);
    assert!(is_shown, "want {member} {want}: {:?}", gateway.nodes("routes/all"));
}

fn active(kind: &str, more: Value) -> Value {
    let active = json!({
        "type": kind, "timeout": 5, "interval_jitter_percent": 10,
        "healthy": { "interval": 10, "successes": 2 },
        "unhealthy": { "interval": 10, "http_failures": 2, "tcp_failures": 2, "timeouts": 2 },
    });
    json!({ "active": joined(active, more) })
}

const GOOD: u16 = 200;

#[test]
fn a_node_goes_out_and_comes_back_after_so_many_probes() {
    example(|simulation| {
        let (node, status) = simulation.moody(GOOD);
        let other = simulation.always(GOOD);
        let gateway = gateway(simulation, &[&node, &other], active("http", json!({})));
        simulation.pass(Duration::from_secs(60));
        assert!((5..=8).contains(&node.requests()), "{} probes in a minute", node.requests());
        for (code, in_use) in [(500, false), (GOOD, true), (500, false)] {
            status.set(code);
            let probes = node.requests();
            shows(simulation, &gateway, &node, "in_use", &json!(in_use));
            assert_eq!(node.requests() - probes, 2, "both probes are needed");
            let asked = node.requests();
            assert_eq!([(); 6].map(|()| gateway.get("/").status()), [GOOD; 6]);
            assert_eq!(node.requests() > asked, in_use);
        }
    });
}

#[test]
fn a_probe_without_an_answer_is_a_timeout() {
    example(|simulation| {
        let (silent, good) = (simulation.silent(), simulation.always(GOOD));
        let gateway = gateway(simulation, &[&silent, &good], active("http", json!({})));
        shows(simulation, &gateway, &silent, "reason", &json!("active check: timeout"));
        assert_eq!([(); 4].map(|()| gateway.get("/").status()), [GOOD; 4]);
    });
}

#[test]
fn a_node_that_refuses_connections_is_found() {
    example(|simulation| {
        let (node, good) = (simulation.always(GOOD), simulation.always(GOOD));
        let gateway = gateway(simulation, &[&node, &good], active("tcp", json!({})));
        simulation.pass(Duration::from_secs(30));
        assert_eq!(shown(&gateway, &node, "in_use"), true);
        let address = node.address;
        let name = node.name();
        drop(node);
        let out = || {
            let nodes = gateway.nodes("routes/all");
            nodes.iter().any(|shown| shown["node"] == *name && shown["reason"] == "active check: tcp_failure")
        };
        assert!(simulation.until(out), "{:?}", gateway.nodes("routes/all"));
        let back = simulation.serve_at(address, async |mut client: Conversation| {
            client.rest().await;
        });
        shows(simulation, &gateway, &back, "in_use", &json!(true));
    });
}

#[test]
fn probes_send_the_configured_host_to_addresses_and_names() {
    for (host_of_node, upstream, host, want) in [
        ("localhost", json!({}), "site.test", "site.test"),
        ("127.0.0.1", json!({}), "site.test", "site.test"),
        ("localhost", json!({ "pass_host": "node" }), "site.test", "site.test"),
        ("localhost", json!({ "pass_host": "rewrite", "upstream_host": "up.test" }), "site.test", "up.test"),
        ("localhost", json!({}), "", "localhost"),
        ("127.0.0.1", json!({}), "", "127.0.0.1"),
        ("127.0.0.1", json!({ "pass_host": "rewrite", "upstream_host": "up.test" }), "", "up.test"),
    ] {
        example(move |simulation| {
            let seen = Rc::new(RefCell::new(Vec::new()));
            let probed = Rc::clone(&seen);
            let at = SocketAddr::from(([127, 0, 0, 1], 8_080));
            let _node = simulation.serve_at(at, move |mut client: Conversation| {
                let probed = Rc::clone(&probed);
                async move {
                    while let Ok(Some(request)) = client.request().await {
                        probed.borrow_mut().push(request.get("host").unwrap_or_default().to_owned());
                        let _ = client.send(response(GOOD, "", "")).await;
                    }
                }
            });
            let host = if host.is_empty() { json!({}) } else { json!({ "host": host }) };
            let checks = active("http", joined(json!({ "http_path": "/hz" }), host));
            let whole = json!({ "nodes": { format!("{host_of_node}:8080"): 1 }, "checks": checks });
            let _gateway = simulation.gateway(catch_all(joined(whole, upstream.clone())));
            assert!(simulation.until(|| !seen.borrow().is_empty()), "no probe came to {host_of_node}");
            assert_eq!(seen.borrow()[0], want, "{host_of_node} {upstream}");
        });
    }
}

#[test]
fn probes_begin_with_the_proxy_header_that_the_node_expects() {
    const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    for (version, kind, header) in [
        ("v1", "http", &b"PROXY UNKNOWN\r\n"[..]),
        ("v1", "tcp", b"PROXY UNKNOWN\r\n"),
        ("v2", "http", V2),
        ("v2", "tcp", V2),
    ] {
        example(move |simulation| {
            let seen = Rc::new(RefCell::new(None));
            let told = Rc::clone(&seen);
            let node = simulation.serve(move |mut client: Conversation| {
                let told = Rc::clone(&told);
                async move {
                    told.replace(Some(client.exactly(header.len()).await));
                    if matches!(client.request().await, Ok(Some(_))) {
                        let _ = client.send(response(GOOD, "", "")).await;
                    }
                }
            });
            let upstream = json!({
                "nodes": { node.name(): 1 }, "proxy_protocol": version, "checks": active(kind, json!({})),
            });
            let _gateway = simulation.gateway(catch_all(upstream));
            assert!(simulation.until(|| seen.borrow().is_some()));
            assert_eq!(seen.borrow().as_deref(), Some(header), "{version} {kind}");
        });
    }
}

#[test]
fn a_body_without_the_expected_text_is_a_failure() {
    example(|simulation| {
        let is_ready = Rc::new(Cell::new(true));
        let told = Rc::clone(&is_ready);
        let node = simulation.answer(move |_| {
            let body = if told.get() { "all is ready" } else { "not yet here" };
            response(GOOD, "Connection: close\r\n", body)
        });
        let gateway =
            gateway(simulation, &[&node], active("http", json!({ "http_expected_body": "is ready" })));
        shows(simulation, &gateway, &node, "status", &json!("healthy"));
        is_ready.set(false);
        shows(simulation, &gateway, &node, "reason", &json!("active check: http_failure"));
        is_ready.set(true);
        shows(simulation, &gateway, &node, "status", &json!("healthy"));
    });
}

/// An agent that has been asked `weight?` says its line. It is on the port 9000 of its node.
fn agent(simulation: &Simulation, node: &Node, line: &Rc<RefCell<String>>) -> Node {
    let line = Rc::clone(line);
    simulation.serve_at(SocketAddr::new(node.address.ip(), 9_000), move |mut client: Conversation| {
        let line = Rc::clone(&line);
        async move {
            if client.exactly(8).await == b"weight?\n" {
                let said = line.borrow().clone();
                let _ = client.send(said).await;
            }
        }
    })
}

fn asked() -> Value {
    json!({ "agent": { "port": 9000, "interval": 5, "timeout": 5, "send": "weight?\n" } })
}

#[test]
fn an_agent_weighs_drains_and_stops_its_node() {
    example(|simulation| {
        let (node, other) = (simulation.echo("a"), simulation.echo("b"));
        let line = Rc::new(RefCell::new("50%\n".to_owned()));
        let _agents = [agent(simulation, &node, &line), agent(simulation, &other, &line)];
        let gateway = gateway(simulation, &[&node, &other], asked());
        let becomes = |member: &str, want: Value| shows(simulation, &gateway, &node, member, &want);
        becomes("weight", json!(5));
        let says = |text: &str| text.clone_into(&mut line.borrow_mut());
        says("weight:3\n");
        becomes("weight", json!(3));
        says("maxconn:7 weight:256\n");
        becomes("weight", json!(256));
        let ignored = || gateway.log().matches("has no effect; set `limits.max_requests_per_node`").count();
        // Once for each node: both have this agent.
        assert!(simulation.until(|| ignored() == 2), "{}", gateway.log());
        says("drain 100%\n");
        becomes("reason", json!("agent: drain"));
        becomes("weight", json!(10));
        says("ready down #no disk\n");
        becomes("reason", json!("agent: down"));
        says("up maxconn:7\n");
        becomes("in_use", json!(true));
        assert_eq!(ignored(), 2);
    });
}

#[test]
fn an_agent_says_how_many_requests_its_node_may_have() {
    example(|simulation| {
        let (node, held) = Held::node(simulation);
        let line = Rc::new(RefCell::new("maxconn:2 50%\n".to_owned()));
        let _agent = agent(simulation, &node, &line);
        let gateway = simulation.gateway(catch_all(json!({
            "nodes": { node.name(): 10 }, "checks": asked(), "limits": { "max_requests_per_node": 1 },
        })));
        let weighs = |weight: u32| shows(simulation, &gateway, &node, "weight", &json!(weight));
        weighs(5);
        let inside = [gateway.begin(""), gateway.begin("")];
        assert!(simulation.until(|| held.seen() == 2));
        assert_eq!(gateway.get("/").status(), 503);
        "maxconn:1 30%\n".clone_into(&mut line.borrow_mut());
        weighs(3);
        held.let_go(2);
        inside.into_iter().for_each(|one| assert_eq!(one.join(), 200));
        let alone = gateway.begin("");
        assert!(simulation.until(|| held.seen() == 3));
        assert_eq!(gateway.get("/").status(), 503);
        held.let_go(1);
        assert_eq!(alone.join(), 200);
        assert!(!gateway.log().contains("maxconn"), "{}", gateway.log());
    });
}
