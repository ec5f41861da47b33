//! Purges by operators.

use std::time::Duration;

use serde_json::{Value, json};

use super::gateway::{Gateway, managed};
use super::peers::{Node, nodes_of, response};
use super::{Simulation, example};

/// A node whose answers may be kept, and have tags.
fn node(simulation: &Simulation) -> Node {
    simulation.answer(|request| {
        let tag = if request.target().starts_with("/red") { "red" } else { "blue" };
        response(200, &format!("Cache-Control: max-age=600\r\nSurrogate-Key: all {tag}\r\n"), "hi")
    })
}

fn start(simulation: &Simulation, node: &Node) -> Gateway {
    let gateway = simulation.gateway(managed());
    let route = json!({ "uri": "/*", "cache": {}, "upstream": { "nodes": nodes_of(&[node]) } });
    gateway.put("routes/r", &route);
    assert!(simulation.until(|| is_hit(&gateway, "/first").is_some()), "{}", gateway.log());
    gateway
}

/// Whether a response comes from the cache; None while the route is not there.
fn is_hit(gateway: &Gateway, path: &str) -> Option<bool> {
    let answer = gateway.ask(&format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n"));
    (answer.status() == 200).then(|| answer.get("cache-status").unwrap().contains("; hit"))
}

fn order(gateway: &Gateway, order: &Value) -> (u16, Value) {
    let reply = gateway.admin("POST", "cache/purge", Some(order));
    (reply.status, reply.json())
}

const PATHS: [&str; 3] = ["/red/1", "/red/2?a=b", "/blue"];

/// Each path is kept.
fn fill(gateway: &Gateway) {
    for path in PATHS {
        let _ = is_hit(gateway, path);
        assert_eq!(is_hit(gateway, path), Some(true), "{path}");
    }
}

#[test]
fn answers_are_purged_by_their_properties() {
    example(|simulation| {
        let node = node(simulation);
        let gateway = start(simulation, &node);
        let check = |wanted: Value, gone: &[&str]| {
            fill(&gateway);
            let (status, result) = order(&gateway, &wanted);
            assert_eq!((status, &result["gateways"]), (200, &json!("this")), "{wanted}");
            for path in PATHS {
                assert_eq!(is_hit(&gateway, path), Some(!gone.contains(&path)), "{wanted} {path}");
            }
        };
        check(json!({ "tags": ["red"] }), &["/red/1", "/red/2?a=b"]);
        check(json!({ "urls": ["http://shop.test/red/2?a=b"] }), &["/red/2?a=b"]);
        check(json!({ "urls": ["http://shop.test/red/2", "other.test/blue"] }), &[]);
        check(json!({ "prefixes": ["SHOP.test:80/red/"] }), &["/red/1", "/red/2?a=b"]);
        check(json!({ "keys": [["/blue"]] }), &["/blue"]);
        check(json!({ "all": true }), &PATHS);
        fill(&gateway);
        let forgotten = order(&gateway, &json!({ "tags": ["red"] }));
        assert_eq!(forgotten, (200, json!({ "forgotten": 2, "gateways": "this" })));
    });
}

#[test]
fn a_purge_without_a_meaning_is_refused() {
    example(|simulation| {
        let node = node(simulation);
        let gateway = start(simulation, &node);
        let refused = |wanted: Value| {
            let (status, answer) = order(&gateway, &wanted);
            (status, answer["error_msg"].as_str().unwrap().to_owned())
        };
        let empty =
            "invalid purge: the purge is empty: set `urls`, `prefixes`, `tags` or `keys`, or `all`: true";
        assert_eq!(refused(json!({})), (400, empty.into()));
        assert_eq!(refused(json!({ "urls": ["/red"] })).0, 400);
        let unused = "invalid purge: no route uses the zone `x`; zones in use: none".to_owned();
        assert_eq!(refused(json!({ "all": true, "zone": "x" })), (400, unused));
        assert!(refused(json!({ "everything": true })).1.contains("unknown field `everything`"));
        fill(&gateway);
    });
}

/// The time of day passes with the clock of the simulation.
#[test]
fn a_response_is_stale_after_its_time() {
    example(|simulation| {
        let node = node(simulation);
        let gateway = start(simulation, &node);
        fill(&gateway);
        simulation.pass(Duration::from_secs(590));
        assert_eq!(PATHS.map(|path| is_hit(&gateway, path)), [Some(true); 3]);
        simulation.pass(Duration::from_secs(20));
        assert_eq!(PATHS.map(|path| is_hit(&gateway, path)), [Some(false); 3]);
    });
}
