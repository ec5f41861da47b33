//! Shared findings about nodes between gateways on one etcd.

use serde_json::{Value, json};
use sigma_testkit::{EtcdServer, Gateway, Origin, Peer, until};

use crate::managed::{admin, etcd, start, start_again};
use crate::{PATIENCE, SIGMA};

/// Two gateways on one etcd, and four nodes, of which the first fails.
struct World {
    etcd: EtcdServer,
    gateways: [Gateway; 2],
    nodes: [Origin; 4],
}

fn node(status: u16) -> Origin {
    Origin::answer(move |_| format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n").into_bytes()).unwrap()
}

impl World {
    fn start() -> World {
        let server = EtcdServer::start().unwrap();
        let settings =
            format!("{}health_sharing: {{ ttl: 5 }}\nhealth_file: {{ path: off }}", etcd(server.port()));
        let gateways = [start(&settings), start(&settings)];
        let nodes = [node(500), node(200), node(200), node(200)];
        let each = nodes.iter().map(|node| (format!("127.0.0.1:{}", node.port()), json!(1)));
        let outliers = json!({ "consecutive_5xx": 3, "base_ejection_time": 600 });
        let upstream = json!({ "nodes": Value::Object(each.collect()), "outlier_detection": outliers });
        admin(&gateways[0]).put("upstreams/u", &upstream).unwrap();
        admin(&gateways[0]).put("routes/r", &json!({ "uri": "/*", "upstream_id": "u" })).unwrap();
        let world = World { etcd: server, gateways, nodes };
        // Of a node that is well there is nothing to tell.
        world.gateways.iter().for_each(|gateway| {
            assert!(until(PATIENCE, || world.reason(gateway) == Some(Value::Null)), "{}", gateway.stderr());
        });
        world
    }

    /// Why the node that fails is out; None if the gateway does not know it.
    fn reason(&self, gateway: &Gateway) -> Option<Value> {
        let text = Peer::connect(&gateway.control_address()).ok()?.get("/v1/healthcheck").ok()?.text();
        let health: Value = serde_json::from_str(&text).ok()?;
        let nodes = health[0]["nodes"].as_array()?;
        let shown = nodes.iter().find(|shown| shown["port"] == self.nodes[0].port())?;
        Some(shown["reason"].clone())
    }

    fn ask(gateway: &Gateway) -> u16 {
        gateway.connect().unwrap().ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap().status()
    }

    /// The first gateway serves until it knows by itself.
    fn find(&self) {
        let found = || {
            (0..10).for_each(|_| assert!(World::ask(&self.gateways[0]) > 0));
            self.reason(&self.gateways[0]) == Some(json!("outlier: consecutive_5xx"))
        };
        assert!(until(PATIENCE, found), "{:?}", self.reason(&self.gateways[0]));
    }

    fn second_knows(&self, reason: &Value) {
        let knows = || self.reason(&self.gateways[1]).as_ref() == Some(reason);
        assert!(until(PATIENCE, knows), "want {reason}: {:?}", self.reason(&self.gateways[1]));
    }
}

#[test]
fn findings_of_one_gateway_reach_the_other() {
    let mut world = World::start();
    let told = json!("other gateways");
    world.find();
    world.second_knows(&told);
    let before = world.nodes[0].requests();
    assert!((0..40).all(|_| World::ask(&world.gateways[1]) == 200));
    assert_eq!(world.nodes[0].requests(), before, "the second gateway asks the node");
    // Findings of a dead process go with its lease; the other one never adopted them.
    world.gateways[0].kill().unwrap();
    world.second_knows(&Value::Null);
    start_again(&mut world.gateways[0]);
    world.find();
    world.second_knows(&told);
    // Without the store it holds no longer, and comes back with it.
    world.etcd.kill().unwrap();
    world.second_knows(&Value::Null);
    world.etcd.run().unwrap();
    world.second_knows(&told);
    // A process that stops takes its word back at once.
    let [first, second] = world.gateways;
    first.stop().unwrap();
    let world = World { gateways: [second, start("")], ..world };
    assert!(until(PATIENCE, || world.reason(&world.gateways[0]) == Some(Value::Null)));
    assert_eq!(world.etcd.count("/apisix/data_plane/health/").unwrap(), 0);
}

#[test]
fn without_an_etcd_nothing_is_shared() {
    for (store, said) in [
        ("", "set `store.kind: etcd`"),
        ("store: { kind: embedded }\n", "set `store.kind: etcd`"),
        (
            "store: { kind: etcd, endpoints: [\"http://127.0.0.1:1\"], access: read_only }\n",
            "set `store.access: read_write`",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sigma.yaml");
        std::fs::write(&file, format!("listeners: [\"127.0.0.1:9080\"]\n{store}health_sharing: {{}}\n"))
            .unwrap();
        let checked = std::process::Command::new(SIGMA).args(["check", "-c"]).arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(!checked.status.success() && text.contains(said), "{store}: {text}");
    }
}
