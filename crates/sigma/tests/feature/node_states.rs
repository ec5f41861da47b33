//! Operators take nodes out, and give them back.

use std::process::{Command, Output};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Operator, Origin, until};

use crate::managed::{EMBEDDED, KEY, VIEWER, admin, await_control, start, start_again, upstream};
use crate::{PATIENCE, SIGMA};

struct World {
    gateway: Gateway,
    nodes: [Origin; 2],
}

impl World {
    /// Two nodes without checks.
    fn new() -> World {
        let nodes = [Origin::echo("a").unwrap(), Origin::echo("b").unwrap()];
        let each = nodes.iter().map(|node| (format!("127.0.0.1:{}", node.port()), json!(1)));
        let upstream = json!({ "id": "u", "nodes": Value::Object(each.collect()) });
        let config = json!({
            "workers": 2, "listeners": ["{listen}"], "control": { "address": "{control}" },
            "upstreams": [upstream], "routes": [{ "id": "all", "uri": "/*", "upstream_id": "u" }],
        });
        let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
        await_control(&gateway);
        World { gateway, nodes }
    }

    fn ctl(&self, args: &[&str]) -> Output {
        let control = format!("http://{}", self.gateway.control_address());
        Command::new(SIGMA).arg("ctl").args(args).args(["--control", &control]).output().unwrap()
    }

    fn set(&self, node: usize, state: &str) {
        let node = format!("127.0.0.1:{}", self.nodes[node].port());
        let done = self.ctl(&["node-state", "upstreams/u", &node, state]);
        assert!(done.status.success(), "{done:?}");
    }

    /// Sends requests until their outcome is that one: the status, and which nodes served.
    fn serves(&self, status: u16, served: [bool; 2]) {
        let reached = || {
            let before = self.nodes.each_ref().map(Origin::requests);
            let all = (0..8).all(|_| {
                let mut client = self.gateway.connect().unwrap();
                client.ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap().status() == status
            });
            let now = self.nodes.each_ref().map(Origin::requests);
            all && [now[0] > before[0], now[1] > before[1]] == served
        };
        assert!(until(PATIENCE, reached), "want {status} by {served:?}");
    }
}

#[test]
fn a_node_is_drained_maintained_and_given_back() {
    let world = World::new();
    world.serves(200, [true, true]);
    world.set(0, "drain");
    world.serves(200, [false, true]);
    let table = String::from_utf8(world.ctl(&["upstreams", "upstreams/u"]).stdout).unwrap();
    let drained = table.lines().find(|line| line.contains(&world.nodes[0].port().to_string())).unwrap();
    assert!(drained.contains("drain") && drained.contains("operator: drain"), "{table}");
    // No other one is left: a node that an operator has taken out stays out.
    world.set(1, "maintenance");
    world.serves(502, [false, false]);
    world.set(1, "ready");
    world.serves(200, [false, true]);
    world.set(0, "ready");
    world.serves(200, [true, true]);
}

/// Requests go to these origins only, permanently.
fn is_served_by(gateway: &Gateway, origins: [&Origin; 2], served: [bool; 2]) {
    let reached = || {
        let before = origins.map(Origin::requests);
        (0..8).for_each(|_| assert!(gateway.connect().unwrap().get("/").unwrap().status() > 0));
        let now = origins.map(Origin::requests);
        [now[0] > before[0], now[1] > before[1]] == served
    };
    assert!(until(PATIENCE, reached), "want {served:?}:\n{}", gateway.stderr());
}

#[test]
fn states_in_the_store_hold_for_all_gateways_and_over_restarts() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let node = |origin: &Origin| format!("127.0.0.1:{}", origin.port());
    let mut gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    operator.put("upstreams/u", &json!({ "nodes": { node(&a): 1, node(&b): 1 } })).unwrap();
    operator.put("routes/r", &json!({ "uri": "/*", "upstream_id": "u" })).unwrap();
    let both = [&a, &b];
    is_served_by(&gateway, both, [true, true]);
    // One node by its place, then the other one too.
    let place = format!("upstreams/u/node_states/{}", node(&a));
    operator.patch(&place, &json!("maintenance")).unwrap();
    is_served_by(&gateway, both, [false, true]);
    operator.patch("upstreams/u", &json!({ "node_states": { node(&b): "drain" } })).unwrap();
    operator.patch("upstreams/u", &json!({ "node_states": { node(&a): null } })).unwrap();
    is_served_by(&gateway, both, [true, false]);
    // One process cannot bring back a node that the store takes out.
    let put = |state: &str| {
        let target = format!("/v1/nodes/upstreams/u/{}", node(&b));
        let control = Operator::new(gateway.control_address());
        control.call("PUT", &target, Some(&json!({ "state": state }))).unwrap().json().unwrap()
    };
    let held: Value = put("ready");
    assert!(held["state"] == "drain" && held["note"].as_str().unwrap().contains("node_states"), "{held}");
    let held: Value = put("maintenance");
    assert!(held["state"] == "maintenance" && held["note"].is_null(), "{held}");
    put("ready");
    let refused = operator.call(
        "PATCH",
        "/apisix/admin/upstreams/u",
        Some(&json!({ "node_states": { "127.0.0.1": "asleep" } })),
    );
    let refused = refused.unwrap();
    assert!(refused.status() == 400 && refused.text().contains("node_states"), "{}", refused.text());
    let viewer = Operator::new(gateway.admin_address()).with_key(VIEWER);
    assert_eq!(
        viewer.call("PATCH", &format!("/apisix/admin/{place}"), Some(&json!("drain"))).unwrap().status(),
        401
    );
    gateway.kill().unwrap();
    start_again(&mut gateway);
    is_served_by(&gateway, both, [true, false]);
    admin(&gateway).patch("upstreams/u", &json!({ "node_states": null })).unwrap();
    is_served_by(&gateway, both, [true, true]);
}

#[test]
fn states_of_one_process_last_over_a_restart() {
    let mut world = World::new();
    world.set(1, "maintenance");
    let kept = || std::fs::read_to_string(world.gateway.dir().join("data/health.json"));
    assert!(until(PATIENCE, || kept().is_ok_and(|text| text.contains("maintenance"))));
    world.gateway.kill().unwrap();
    world.gateway.start_again().unwrap();
    await_control(&world.gateway);
    world.serves(200, [true, false]);
    world.set(1, "ready");
    world.serves(200, [true, true]);
}

/// The Admin API sets states too, so that a gateway with a store needs no Control API; its paths are named at `/`.
#[test]
fn states_are_set_by_the_admin_api() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let writer = admin(&gateway);
    writer.put("routes/1", &json!({ "uri": "/*", "upstream": upstream(&origin) })).unwrap();
    let url = format!("http://{}", gateway.admin_address());
    let node = format!("127.0.0.1:{}", origin.port());
    let ctl = |key: &str, args: &[&str]| {
        let mut command = Command::new(SIGMA);
        command.args(["ctl", "--admin", &url]).args(args).env("SIGMA_ADMIN_KEY", key).output().unwrap()
    };
    let state = |key: &str, state: &str| ctl(key, &["node-state", "routes/1", &node, state]);
    let has = |word: &str| {
        let listed = ctl(KEY, &["upstreams", "routes/1"]);
        String::from_utf8_lossy(&listed.stdout).contains(word)
    };
    assert!(until(PATIENCE, || has(&node)), "the route is not in force");
    // The id of a route says less than its path.
    assert!(has("routes/1 (/*)"));
    let refused = state(VIEWER, "drain");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let done = state(KEY, "maintenance");
    assert!(done.status.success(), "{done:?}");
    assert!(has("maintenance"));
    let orders = ctl(KEY, &["acme"]);
    assert!(orders.status.success(), "{orders:?}");
    let missing = ctl(KEY, &["acme", "order", "a.test"]);
    assert!(
        String::from_utf8_lossy(&missing.stderr).contains("the gateway orders no certificate for `a.test`")
    );
    for path in ["/", "/apisix/admin"] {
        let answer = writer.call("GET", path, None).unwrap();
        assert_eq!(answer.status(), 404);
        assert!(answer.text().contains("the dashboard is at /ui/; the Admin API has /apisix/admin/routes"));
    }
}
