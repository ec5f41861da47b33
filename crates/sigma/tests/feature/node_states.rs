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
        World::with(json!({}))
    }

    /// The same, with more fields of the upstream.
    fn with(fields: Value) -> World {
        World::of([Origin::echo("a").unwrap(), Origin::echo("b").unwrap()], fields)
    }

    fn of(nodes: [Origin; 2], fields: Value) -> World {
        let each = nodes.iter().map(|node| (format!("127.0.0.1:{}", node.port()), json!(1)));
        let mut upstream = json!({ "id": "u", "nodes": Value::Object(each.collect()) });
        upstream.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let config = json!({
            "workers": 2, "listeners": ["{listen}"], "control": { "address": "{control}" },
            "upstreams": [upstream], "routes": [{ "id": "all", "uri": "/*", "upstream_id": "u", "enable_websocket": true }],
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

#[test]
fn sessions_stay_on_a_node_that_is_drained_and_leave_one_in_maintenance() {
    let affinity = json!({ "cookie": { "name": "node" }, "secret": "0123456789abcdef" });
    let world = World::with(json!({ "session_affinity": affinity }));
    let ask = |cookie: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\nCookie: {cookie}\r\n\r\n");
        world.gateway.connect().unwrap().ask(request).unwrap()
    };
    let first = ask("a=b");
    let cookie = first.head.get("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let name = first.head.get("x-origin").unwrap().to_owned();
    let at = usize::from(name == "b");
    let other = if at == 0 { "b" } else { "a" };
    let goes_to = |cookie: &str, want: &str| {
        // Both workers learn of it soon.
        let all = || (0..8).all(|_| ask(cookie).head.get("x-origin") == Some(want));
        assert!(until(PATIENCE, all), "want {want}");
    };
    world.set(at, "drain");
    goes_to("a=b", other);
    goes_to(&cookie, &name);
    world.set(at, "maintenance");
    goes_to(&cookie, other);
}

/// A node that changes to any protocol and sends back its input.
fn echoing() -> Origin {
    Origin::serve(|mut peer| {
        if peer.read_head().is_err() {
            return;
        }
        let answer = "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        if peer.send(answer).is_err() {
            return;
        }
        while let Ok(byte) = peer.read_exactly(1) {
            if peer.send(byte).is_err() {
                return;
            }
        }
    })
    .unwrap()
}

#[test]
fn open_tunnels_of_a_node_that_goes_out_are_kept_or_closed() {
    for (on_unhealthy, is_closed) in [(Value::Null, false), (json!("keep"), false), (json!("close"), true)] {
        let mut upstream = json!({});
        if !on_unhealthy.is_null() {
            upstream["on_unhealthy"] = on_unhealthy.clone();
        }
        let world = World::of([echoing(), echoing()], upstream);
        let mut client = world.gateway.connect().unwrap();
        client
            .send("GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
            .unwrap();
        assert_eq!(client.read_head().unwrap().status().unwrap(), 101, "{on_unhealthy}");
        let mut echoes = || client.send("x").is_ok() && client.read_exactly(1).is_ok_and(|byte| byte == b"x");
        assert!(echoes());
        (0..2).for_each(|node| world.set(node, "maintenance"));
        match is_closed {
            true => assert!(until(PATIENCE, || !echoes()), "it stays open"),
            // Another one would have been closed meanwhile; a state that it is not has no end to wait for.
            false => assert!((0..20).all(|_| echoes()), "{on_unhealthy}"),
        }
    }
}

/// A node that owes `/wait` its response, and sends the first part of one otherwise.
fn streaming(name: &'static str) -> Origin {
    Origin::serve(move |mut peer| {
        while let Ok(request) = peer.read_request() {
            if request.head.request_line().unwrap().1.contains("wait") {
                if name == "b" {
                    let _ = peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb");
                    continue;
                }
            } else {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
                let _ = peer.send(head.to_owned() + "5\r\ndata:\r\n");
            }
            // Until the gateway gives it up.
            let _ = peer.read_exactly(1);
            return;
        }
    })
    .unwrap()
}

#[test]
fn answers_under_way_and_requests_end_with_their_node() {
    let world = World::of([streaming("a"), streaming("b")], json!({ "on_unhealthy": "close" }));
    world.set(1, "maintenance");
    let mut events = world.gateway.connect().unwrap().with_deadline(PATIENCE);
    events.send("GET /events HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert_eq!(events.read_head().unwrap().status().unwrap(), 200);
    let waiting = ["GET", "POST"].map(|method| {
        let mut client = world.gateway.connect().unwrap().with_deadline(PATIENCE);
        client.send(format!("{method} /wait HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")).unwrap();
        client
    });
    assert!(until(PATIENCE, || world.nodes[0].connections() == 3), "the other one has some");
    world.set(1, "ready");
    world.set(0, "maintenance");
    // Cut off, without the end that it would have.
    while let Ok(byte) = events.read_exactly(1) {
        assert!(!byte.is_empty());
    }
    let [mut get, mut post] = waiting;
    let answer = get.read_response("GET").unwrap();
    assert!(answer.status() == 200 && answer.text() == "b", "it may be repeated: {}", answer.text());
    let answer = post.read_response("POST").unwrap();
    assert!(answer.status() == 502 && answer.text().contains("node_withdrawn"), "{}", answer.text());
}

#[test]
fn a_state_lasts_over_reloads() {
    let world = World::new();
    world.set(1, "maintenance");
    world.serves(200, [true, false]);
    world.gateway.reload().unwrap();
    let reloaded = || world.gateway.stderr().contains("configuration reloaded");
    assert!(until(PATIENCE, reloaded), "{}", world.gateway.stderr());
    world.serves(200, [true, false]);
    let all: Value = serde_json::from_slice(&world.ctl(&["upstreams", "--output", "json"]).stdout).unwrap();
    let shown = &all[0]["nodes"].as_array().unwrap().iter().find(|node| node["state"] == "maintenance");
    assert_eq!(shown.unwrap()["reason"], "operator: maintenance", "{all}");
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

#[test]
fn unknown_nodes_are_reported() {
    let world = World::new();
    let check = |args: &[&str], word: &str| {
        let refused = world.ctl(args);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(word), "{args:?}: {said}");
    };
    check(&["node-state", "upstreams/x", "a:1", "drain"], "upstreams/x has no upstream");
    check(&["node-state", "upstreams/u", "a:1", "drain"], "upstreams/u has no node a:1");
    check(&["node-state", "upstreams/u", "a:1", "asleep"], "asleep");
    check(&["upstreams", "upstreams/x"], "upstreams/x has no upstream");
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
