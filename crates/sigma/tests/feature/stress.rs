//! Stress tests: operators start and stop them, limits and failing nodes end them, and shares go back to normal.

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Operator, Origin, until};

use crate::managed::await_control;
use crate::{PATIENCE, SIGMA};

struct World {
    gateway: Gateway,
    nodes: [Origin; 2],
    /// The first node fails.
    fails: Arc<AtomicBool>,
    /// The first node takes its time.
    is_slow: Arc<AtomicBool>,
}

impl World {
    fn new(fields: &Value) -> World {
        let (fails, is_slow) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (failing, slow) = (Arc::clone(&fails), Arc::clone(&is_slow));
        let first = Origin::answer(move |_| {
            if slow.load(Ordering::SeqCst) {
                // The latency of a node cannot be anything but time.
                std::thread::sleep(Duration::from_millis(100));
            }
            let status = if failing.load(Ordering::SeqCst) { "500 Broken" } else { "200 OK" };
            format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").into_bytes()
        });
        let nodes = [first.unwrap(), Origin::echo("b").unwrap()];
        let world = World { gateway: World::start(&nodes, fields), nodes, fails, is_slow };
        await_control(&world.gateway);
        world
    }

    fn start(nodes: &[Origin; 2], fields: &Value) -> Gateway {
        Gateway::start(SIGMA, &World::config(nodes, fields)).unwrap()
    }

    fn config(nodes: &[Origin; 2], fields: &Value) -> String {
        let each = nodes.iter().map(|node| (format!("127.0.0.1:{}", node.port()), json!(1)));
        let mut upstream = json!({ "id": "u", "nodes": Value::Object(each.collect()) });
        upstream.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({
            "workers": 2, "listeners": ["{listen}"], "control": { "address": "{control}" },
            "upstreams": [upstream], "routes": [{ "id": "all", "uri": "/*", "upstream_id": "u" }],
        })
        .to_string()
    }

    fn name(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.nodes[node].port())
    }

    fn ctl(&self, args: &[&str]) -> Output {
        let control = format!("http://{}", self.gateway.control_address());
        Command::new(SIGMA).args(["ctl", "stress"]).args(args).args(["--control", &control]).output().unwrap()
    }

    fn begin(&self, more: &[&str]) -> Output {
        let node = self.name(0);
        let started = self.ctl(&[&["start", "upstreams/u", "--node", &node], more].concat());
        assert!(started.status.success(), "{started:?}");
        started
    }

    fn report(&self) -> Value {
        Operator::new(self.gateway.control_address()).get("/v1/stress/upstreams/u").unwrap()
    }

    /// Sends so many requests, and returns the percentage that the first node has got.
    fn share(&self, requests: usize) -> usize {
        let before = self.nodes[0].requests();
        let mut client = self.gateway.connect().unwrap();
        for _ in 0..requests {
            client.ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        }
        (self.nodes[0].requests() - before) * 100 / requests
    }

    /// Sends requests until the test has ended; its reason.
    fn reason(&self) -> String {
        let has_ended = || {
            self.share(20);
            self.report()["state"] == "ended"
        };
        assert!(until(PATIENCE, has_ended), "{}", self.report());
        self.report()["reason"].as_str().unwrap().to_owned()
    }

    /// Waits until both nodes get about half of the requests again.
    fn is_normal(&self) -> bool {
        until(PATIENCE, || (40..=60).contains(&self.share(200)))
    }
}

#[test]
fn share_grows_and_an_operator_stops_it() {
    let world = World::new(&json!({}));
    assert!((40..=60).contains(&world.share(200)));
    world.begin(&[
        "--start",
        "90",
        "--step",
        "10",
        "--max",
        "100",
        "--interval",
        "5",
        "--min-requests",
        "50",
    ]);
    assert!(until(PATIENCE, || world.share(300) >= 80));
    let second = || {
        world.share(50);
        world.report()["share_percent"] == 100
    };
    assert!(until(PATIENCE, second), "{}", world.report());
    let first = world.report()["steps"][0].clone();
    assert!(first["requests"].as_u64() >= Some(50) && first["p99_ms"].is_f64(), "{first}");
    let again = world.ctl(&["start", "upstreams/u", "--node", &world.name(0)]);
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("is running; stop it first"), "{again:?}");
    let stopped = world.ctl(&["stop", "upstreams/u"]);
    assert!(
        String::from_utf8_lossy(&stopped.stdout).contains("an operator has stopped the test"),
        "{stopped:?}"
    );
    assert!(world.is_normal());
    let shown = world.ctl(&["show"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("SHARE %"), "{shown:?}");
    assert!(!world.ctl(&["stop", "upstreams/u"]).status.success());
}

#[test]
fn limits_of_latency_and_errors_end_it() {
    let world = World::new(&json!({}));
    let order = ["--start", "60", "--max", "60", "--interval", "5", "--min-requests", "10"];
    world.fails.store(true, Ordering::SeqCst);
    world.begin(&[&order[..], &["--errors", "5"]].concat());
    assert_eq!(world.reason(), "the limit of error_percent was passed with a share of 60 %");
    assert!(world.is_normal());
    world.fails.store(false, Ordering::SeqCst);
    world.is_slow.store(true, Ordering::SeqCst);
    world.begin(&[&order[..], &["--mean", "50"]].concat());
    assert_eq!(world.reason(), "the limit of mean_ms was passed with a share of 60 %");
    assert_eq!(world.report()["highest_share_percent_within_limits"], Value::Null);
}

#[test]
fn unhealthy_node_ends_it() {
    let checks = json!({ "checks": { "active": {
        "type": "http", "http_path": "/", "healthy": { "interval": 1 },
        "unhealthy": { "interval": 1, "http_failures": 1 },
    }}});
    let world = World::new(&checks);
    world.begin(&["--start", "90", "--max", "90", "--errors", "100"]);
    assert!(until(PATIENCE, || world.share(100) >= 80));
    world.fails.store(true, Ordering::SeqCst);
    assert!(world.reason().contains("is not usable"), "{}", world.report());
    assert!(until(PATIENCE, || world.share(50) == 0));
}

#[test]
fn changed_upstream_ends_it_and_another_change_does_not() {
    let world = World::new(&json!({}));
    world.begin(&["--start", "90", "--max", "90"]);
    assert!(until(PATIENCE, || world.share(100) >= 80));
    let mut other: Value = serde_json::from_str(&World::config(&world.nodes, &json!({}))).unwrap();
    other["routes"][0]["desc"] = "changed".into();
    world.gateway.rewrite(&other.to_string()).unwrap();
    world.gateway.reload().unwrap();
    let control = Operator::new(world.gateway.control_address());
    let is_in_force = || control.get("/v1/route/all").is_ok_and(|route| route["value"]["desc"] == "changed");
    assert!(until(PATIENCE, is_in_force));
    assert!(world.share(100) >= 80);
    assert_eq!(world.report()["state"], "running");
    world.gateway.rewrite(&World::config(&world.nodes, &json!({ "retries": 1 }))).unwrap();
    world.gateway.reload().unwrap();
    assert_eq!(world.reason(), "the upstream was changed");
    assert!(world.is_normal());
}

#[test]
fn invalid_orders_are_refused() {
    let world = World::new(&json!({}));
    let refused = |args: &[&str], part: &str| {
        let output = world.ctl(&[&["start"], args].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(part), "{said}");
    };
    refused(&["upstreams/none", "--node", "a:80"], "upstreams/none has no upstream");
    refused(&["upstreams/u", "--node", "a:80"], "upstreams/u has no node a:80");
    refused(
        &["upstreams/u", "--node", "a:80", "--interval", "1"],
        "`interval`: write a number of seconds from 5",
    );
    let (first, second) = (world.name(0), world.name(1));
    let both = ["upstreams/u", "--node", &first, "--node", &second];
    refused(&both, "needs a usable node outside of the test");
    let affinity = json!({ "session_affinity": { "cookie": { "name": "c" }, "secret": "0123456789abcdef" } });
    let world = World::new(&affinity);
    let output = world.ctl(&["start", "upstreams/u", "--node", &world.name(0)]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("has `session_affinity`"), "{output:?}");
}
