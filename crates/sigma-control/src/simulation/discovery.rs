//! Upstreams that take their nodes from DNS, and names of nodes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};

use super::gateway::{Gateway, KEY, catch_all, joined, managed};
use super::peers::{Conversation, Node, response};
use super::{Simulation, example};

const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 1));
const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 2));

/// The name of the node that responds, or the status.
fn who(gateway: &Gateway) -> String {
    let answer = gateway.get("/");
    answer.get("x-origin").map_or_else(|| answer.status().to_string(), str::to_owned)
}

/// A node with a name at the port 80 of an address.
fn at(simulation: &Simulation, name: &'static str, ip: IpAddr) -> Node {
    simulation.serve_at(SocketAddr::new(ip, 80), move |mut client: Conversation| async move {
        while let Ok(Some(_)) = client.request().await {
            let _ = client.send(response(200, &format!("X-Origin: {name}\r\n"), "")).await;
        }
    })
}

fn check(upstream: Value, discovery: Value, failure: &'static str, missing: &'static str) {
    example(move |simulation| {
        let _nodes = [at(simulation, "a", A), at(simulation, "b", B)];
        let names = simulation.names();
        let gateway = simulation.gateway(joined(catch_all(upstream), discovery));
        assert_eq!(who(&gateway), missing, "nobody knows the service yet");
        names.set("web.sigma.test", &[A]);
        assert!(simulation.until(|| who(&gateway) == "a"));
        names.set("web.sigma.test", &[A, B]);
        assert!(simulation.until(|| who(&gateway) == "b"));
        assert!(simulation.until(|| who(&gateway) == "a"), "all addresses are used");
        names.set("web.sigma.test", &[B]);
        assert!(simulation.until(|| (0..4).all(|_| who(&gateway) == "b")));

        // A response without addresses is a fault of the name server rather than the end of a service.
        let failures = || gateway.log().matches(failure).count();
        let before = failures();
        names.set("web.sigma.test", &[]);
        assert!(simulation.until(|| failures() > before + 5), "{}", gateway.log());
        assert_eq!(who(&gateway), "b");
        names.set("web.sigma.test", &[A]);
        assert!(simulation.until(|| who(&gateway) == "a"));
        let before = failures();
        names.silence("web.sigma.test");
        assert!(simulation.until(|| failures() > before + 5), "{}", gateway.log());
        simulation.pass(Duration::from_secs(900));
        assert_eq!(who(&gateway), "a");
    });
}

#[test]
fn a_service_follows_its_addresses_and_outlives_its_name_server() {
    let upstream = json!({ "service_name": "web.sigma.test.:80", "discovery_type": "dns" });
    let discovery = json!({ "discovery": { "dns": { "servers": ["127.0.0.1:1"] } } });
    check(upstream, discovery, "failed to query the DNS server", "503");
}

#[test]
fn a_node_follows_the_addresses_of_its_name() {
    let upstream = json!({ "nodes": { "web.sigma.test:80": 1 } });
    check(upstream, json!({ "dns": { "servers": ["127.0.0.1:1"] } }), "cannot resolve upstream node", "503");
}

/// A change whose names cannot be resolved yet waits for them, and neither operators nor clients do.
#[test]
fn a_change_that_waits_for_names_holds_up_nothing_else() {
    example(|simulation| {
        let (other, named) = (simulation.echo("a"), at(simulation, "named", B));
        let settings = json!({ "dns": { "servers": ["127.0.0.1:1"], "change_wait_ms": 600_000 } });
        let gateway = simulation.gateway(joined(managed(), settings));
        assert_eq!(gateway.admin("GET", "routes", None).status, 200, "{KEY}");
        gateway.put("routes/first", &json!({ "uri": "/", "upstream": { "nodes": { other.name(): 1 } } }));
        assert!(simulation.until(|| who(&gateway) == "a"));
        simulation.names().silence("n.sigma.test");
        gateway.put("upstreams/1", &json!({ "nodes": { "n.sigma.test:80": 1 } }));
        gateway.put("routes/named", &json!({ "uri": "/named", "upstream_id": "1" }));
        assert_eq!(who(&gateway), "a");
        simulation.names().set("n.sigma.test", &[named.address.ip()]);
        let serves = || gateway.get("/named").get("x-origin") == Some("named");
        assert!(simulation.until(serves), "{}", gateway.log());
    });
}
