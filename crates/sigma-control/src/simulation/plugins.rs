//! Plugins whose rules are about time, or about a reload.

use std::time::Duration;

use serde_json::{Value, json};

use super::gateway::{Gateway, joined};
use super::peers::{Node, nodes_of, response};
use super::{Simulation, example};

/// A route for everything to a node.
fn route(node: &Node, plugins: Value) -> Value {
    json!({ "id": "all", "uri": "/*", "plugins": plugins, "upstream": { "nodes": nodes_of(&[node]) } })
}

fn gateway(simulation: &Simulation, node: &Node, plugins: Value) -> Gateway {
    simulation.gateway(json!({ "routes": [route(node, plugins)] }))
}

fn status(gateway: &Gateway, target: &str) -> u16 {
    gateway.get(target).status()
}

/// A node that returns 500 for targets with `bad`, else 200.
fn node(simulation: &Simulation) -> Node {
    simulation.answer(|request| response(if request.target().contains("bad") { 500 } else { 200 }, "", ""))
}

#[test]
fn a_breaker_opens_for_a_time() {
    example(|simulation| {
        let node = node(simulation);
        let breaker = json!({ "api-breaker": {
            "break_response_code": 502, "break_response_body": "open", "max_breaker_sec": 300,
            "break_response_headers": [{ "key": "X-Breaker", "value": "$uri" }],
            "unhealthy": { "http_statuses": [500], "failures": 2 },
            "healthy": { "http_statuses": [200], "successes": 1 },
        } });
        let gateway = gateway(simulation, &node, breaker);
        assert_eq!([status(&gateway, "/a?bad"), status(&gateway, "/a?bad")], [500, 500]);
        let open = gateway.get("/a");
        assert_eq!((open.status(), &*open.text(), open.get("x-breaker")), (502, "open", Some("/a")));
        let requests = node.requests();
        assert_eq!(status(&gateway, "/a"), 502);
        assert_eq!(node.requests(), requests, "the node is to be spared");
        simulation.pass(Duration::from_secs(3));
        assert_eq!(["/a", "/a?bad", "/a"].map(|target| status(&gateway, target)), [200, 500, 200]);
    });
}

#[test]
fn a_breaker_judges_a_node_that_refuses() {
    example(|simulation| {
        let node = node(simulation);
        let unhealthy = json!({ "http_statuses": [502], "failures": 1 });
        let breaker = json!({ "api-breaker": { "break_response_code": 599, "unhealthy": unhealthy } });
        let upstream = json!({ "nodes": { simulation.free_address().to_string(): 1 } });
        let down = joined(route(&node, breaker), json!({ "upstream": upstream }));
        let gateway = simulation.gateway(json!({ "routes": [down] }));
        assert_eq!([status(&gateway, "/"), status(&gateway, "/")], [502, 599]);
    });
}

#[test]
fn faults_are_injected_before_all_else() {
    example(|simulation| {
        let node = simulation.echo("a");
        let abort = json!({
            "http_status": 418, "body": "no $arg_what", "headers": { "X-Why": "$uri" },
            "vars": [[["arg_what", "==", "tea"]]],
        });
        let delay = json!({ "duration": 20, "vars": [[["arg_slow", "==", "1"]]] });
        let gateway =
            gateway(simulation, &node, json!({ "fault-injection": { "abort": abort, "delay": delay } }));
        let answer = gateway.get("/pot?what=tea");
        assert_eq!((answer.status(), &*answer.text(), answer.get("x-why")), (418, "no tea", Some("/pot")));
        assert_eq!(node.requests(), 0);
        let began_ms = simulation.now_ms();
        assert_eq!(status(&gateway, "/?slow=1"), 200);
        let took_ms = simulation.now_ms() - began_ms;
        assert!((20_000..20_500).contains(&took_ms), "{took_ms} ms");
    });
}

#[test]
fn answers_are_made_up() {
    example(|simulation| {
        let mocking = |uri: &str, mocking: Value| json!({ "id": uri[1..], "uri": uri, "plugins": { "mocking": mocking } });
        let schema = json!({ "properties": { "n": { "type": "integer", "example": 7 } } });
        let gateway = simulation.gateway(json!({ "routes": [
            mocking("/a", json!({
                "response_example": "{\"path\":\"$uri\"}", "response_status": 201, "response_headers": { "X-A": 1 },
            })),
            mocking("/b", json!({
                "content_type": "text/xml", "with_mock_header": false, "response_schema": schema,
            })),
        ] }));
        let answer = gateway.get("/a");
        assert_eq!((answer.status(), &*answer.text()), (201, "{\"path\":\"/a\"}"));
        assert_eq!(answer.get("content-type"), Some("application/json;charset=utf8"));
        assert!(answer.get("x-mock-by").unwrap().starts_with("Sigma/"));
        assert_eq!(answer.get("x-a"), Some("1"));
        let answer = gateway.get("/b");
        assert_eq!((&*answer.text(), answer.get("x-mock-by")), ("<data><n>7</n></data>", None));
    });
}

#[test]
fn a_reload_keeps_counts_and_a_changed_limit_starts_again() {
    example(|simulation| {
        let node = simulation.echo("a");
        let config = |count: u32, description: &str| {
            let plugins = json!({ "limit-count": { "count": count, "time_window": 1_000_000 } });
            json!({ "routes": [joined(route(&node, plugins), json!({ "desc": description }))] })
        };
        let gateway = simulation.gateway(config(2, ""));
        let statuses = || [(); 4].map(|()| status(&gateway, "/"));
        assert_eq!(statuses(), [200, 200, 503, 503]);
        gateway.change(config(3, "changed"));
        assert_eq!(statuses(), [200, 200, 200, 503]);
        // The description changes, the plugin does not.
        gateway.change(config(3, "again"));
        assert_eq!(statuses(), [503; 4]);
    });
}

#[test]
fn a_count_begins_again_after_its_window() {
    example(|simulation| {
        let node = simulation.echo("a");
        let plugins = json!({ "limit-count": { "count": 2, "time_window": 600 } });
        let gateway = gateway(simulation, &node, plugins);
        let statuses = || [(); 3].map(|()| status(&gateway, "/"));
        assert_eq!(statuses(), [200, 200, 503]);
        simulation.pass(Duration::from_secs(590));
        assert_eq!(statuses(), [503; 3]);
        simulation.pass(Duration::from_secs(20));
        assert_eq!(statuses(), [200, 200, 503]);
    });
}
