//! Upstreams that take their nodes from registries.

use std::time::Duration;

use serde_json::{Value, json};
use sigma_config::resources;

use super::gateway::{Gateway, catch_all, joined};
use super::peers::Node;
use super::{Simulation, example};

/// The nodes of a registry's list.
fn list(nodes: &[&Node]) -> Vec<resources::Node> {
    let node = |node: &&Node| resources::Node {
        host: node.address.ip().to_string().into(),
        port: Some(node.address.port()),
        weight: 1,
        ..resources::Node::default()
    };
    nodes.iter().map(node).collect()
}

fn config(protection: Value) -> Value {
    let discovery = json!({
        "consul": { "servers": ["http://127.0.0.1:1"], "token": "hush" }, "protection": protection,
        "last_good": { "path": "off" },
    });
    let upstream = json!({ "service_name": "web", "discovery_type": "consul" });
    joined(catch_all(upstream), json!({ "discovery": discovery }))
}

fn start(simulation: &Simulation) -> Gateway {
    simulation.gateway(config(json!({ "believed_after_ms": 60_000 })))
}

/// The name of the node that responds, or the status.
fn who(gateway: &Gateway) -> String {
    let answer = gateway.get("/");
    answer.get("x-origin").map_or_else(|| answer.status().to_string(), str::to_owned)
}

/// Returns Consul's counter on the page of counters.
fn counted(gateway: &Gateway, name: &str) -> u64 {
    gateway.counter(&format!("sigma_discovery_{name}{{type=\"consul\",id=\"\"}}"))
}

#[test]
fn nodes_follow_the_registry_and_outlive_it() {
    example(|simulation| {
        let (a, b) = (simulation.echo("a"), simulation.echo("b"));
        let gateway = start(simulation);
        assert_eq!(who(&gateway), "503", "nobody has registered yet");
        simulation.registry().set("web", list(&[&a]));
        assert!(simulation.until(|| who(&gateway) == "a"));
        simulation.registry().set("web", list(&[&b]));
        assert!(simulation.until(|| who(&gateway) == "b"));

        // One that fails changes nothing, however long.
        simulation.registry().fail("it is ill");
        gateway.await_log("it is ill");
        simulation.pass(Duration::from_secs(900));
        assert_eq!(who(&gateway), "b");
        assert!(counted(&gateway, "update_failures_total") >= 25);
        simulation.registry().set("web", list(&[&a]));
        assert!(simulation.until(|| who(&gateway) == "a"), "it is followed again");

        // A list that is empty all at once changes nothing for a while.
        simulation.registry().set("web", Vec::new());
        gateway.await_log("most nodes of a service disappeared at once");
        simulation.pass(Duration::from_secs(55));
        assert_eq!((who(&gateway), counted(&gateway, "held_back_total")), ("a".to_owned(), 1));
        simulation.pass(Duration::from_secs(6));
        assert_eq!(who(&gateway), "503", "it is believed after all");
        assert_eq!(
            ["held_back_services", "services", "nodes"].map(|name| counted(&gateway, name)),
            [0, 1, 0]
        );
        assert_eq!(counted(&gateway, "stored_list"), 0);
    });
}

#[test]
fn the_data_of_a_registry_is_shown_without_its_secrets() {
    example(|simulation| {
        let node = simulation.echo("a");
        let gateway = start(simulation);
        simulation.registry().set("web", list(&[&node]));
        let dump = || gateway.control("GET", "/v1/discovery/consul/dump", None).json();
        let want = json!([{ "host": node.address.ip(), "port": 80, "weight": 1 }]);
        assert!(simulation.until(|| dump()["services"]["web"] == want), "{}", dump());
        assert_eq!(dump()["config"]["token"], "***");
        assert_eq!(gateway.control("GET", "/v1/discovery/nacos/dump", None).status, 404);
        assert!(!gateway.log().contains("hush"), "no secret is told");
    });
}

#[test]
fn a_service_of_a_registry_that_cannot_be_is_refused() {
    for (from, to, want) in [
        (
            "\"discovery_type\":\"consul\"",
            "\"discovery_type\":\"nacos\"",
            "routes[0].upstream.discovery_type: the registry `nacos` has no settings (write them at `discovery.nacos`)",
        ),
        ("\"discovery_type\":\"consul\"", "\"discovery_type\":\"consol\"", "did you mean `consul`?"),
        ("\"service_name\":\"web\"", "\"service_name\":\"consul\"", "is excluded by"),
        ("\"token\":", "\"tokn\":", "did you mean `token`?"),
        ("http://127.0.0.1:1", "127.0.0.1:1", "an address of a registry is http://host:port"),
    ] {
        example(move |simulation| {
            let text = config(json!({})).to_string();
            assert!(text.contains(from), "{text}");
            let config = serde_json::from_str(&text.replace(from, to)).unwrap();
            let error = Gateway::start(simulation, config).err().unwrap();
            assert!(error.contains(want), "{error}");
        });
    }
}

#[test]
fn nodes_are_not_where_none_may_be() {
    example(|simulation| {
        let a = simulation.echo("a");
        let names = simulation.names();
        names.set("credentials.sigma.test", &[[169, 254, 169, 254].into()]);
        names.set("web.sigma.test", &[a.address.ip()]);
        let node = |host: &str| resources::Node {
            host: host.into(),
            port: Some(80),
            weight: 1,
            ..resources::Node::default()
        };
        let told = ["169.254.169.254", "::ffff:169.254.169.254", "credentials.sigma.test", "web.sigma.test"];
        let gateway = start(simulation);
        simulation.registry().set("web", told.map(node).into());
        assert!(simulation.until(|| who(&gateway) == "a"), "{}", gateway.log());
        assert!((0..8).all(|_| who(&gateway) == "a"));
        let nodes = gateway.control("GET", "/v1/nodes/routes/all", None).text;
        assert!(!nodes.contains("169.254") && nodes.contains(&a.address.ip().to_string()), "{nodes}");
        assert!(
            gateway
                .log()
                .contains("a registry lists nodes in `discovery.refused_networks`; they are ignored")
        );
    });
}
