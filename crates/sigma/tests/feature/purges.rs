//! Purges by operators, on every gateway of a store.

use serde_json::{Value, json};
use sigma_testkit::{EtcdServer, Gateway, Origin, Peer, until};

use crate::managed::{EMBEDDED, KEY, admin, etcd, start};
use crate::{PATIENCE, SIGMA};

/// A node whose answers may be kept, and have tags.
fn node() -> Origin {
    Origin::answer(|request| {
        let tag = if request.head.line.contains("/red") { "red" } else { "blue" };
        format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nSurrogate-Key: all {tag}\r\nContent-Length: 2\r\n\r\nhi"
        )
        .into_bytes()
    })
    .unwrap()
}

fn serve(gateway: &Gateway, node: &Origin) {
    let upstream = json!({"nodes": {(format!("127.0.0.1:{}", node.port())): 1}});
    let route = json!({"uri": "/*", "cache": {}, "upstream": upstream});
    admin(gateway).put("routes/r", &route).unwrap();
}

/// Whether a response comes from the cache; None while the route is not there.
fn is_hit(gateway: &Gateway, path: &str) -> Option<bool> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    let answer = gateway.connect().unwrap().ask(&request).unwrap();
    (answer.status() == 200).then(|| answer.head.get("cache-status").unwrap().contains("; hit"))
}

/// Each path is kept.
fn fill(gateway: &Gateway, paths: &[&str]) {
    for path in paths {
        assert!(until(PATIENCE, || is_hit(gateway, path) == Some(true)), "{path}: {}", gateway.stderr());
    }
}

fn order(gateway: &Gateway, order: &Value) -> (u16, Value) {
    let body = order.to_string();
    let mut peer = Peer::connect(&gateway.admin_address()).unwrap();
    let answer = peer
        .ask(format!(
            "POST /apisix/admin/cache/purge HTTP/1.1\r\nHost: h\r\nX-API-KEY: {KEY}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
        .unwrap();
    (answer.status(), answer.json().unwrap())
}

#[test]
fn answers_are_purged_by_their_properties() {
    let (gateway, node) = (start(EMBEDDED), node());
    serve(&gateway, &node);
    let paths = ["/red/1", "/red/2?a=b", "/blue"];
    let check = |wanted: Value, gone: &[&str]| {
        fill(&gateway, &paths);
        assert_eq!(order(&gateway, &wanted), (200, json!({"forgotten": gone.len(), "gateways": "this"})));
        for path in paths {
            assert_eq!(is_hit(&gateway, path), Some(!gone.contains(&path)), "{wanted} {path}");
        }
    };
    check(json!({"tags": ["red"]}), &["/red/1", "/red/2?a=b"]);
    check(json!({"urls": ["http://shop.test/red/2?a=b"]}), &["/red/2?a=b"]);
    check(json!({"urls": ["http://shop.test/red/2", "other.test/blue"]}), &[]);
    check(json!({"prefixes": ["SHOP.test:80/red/"]}), &["/red/1", "/red/2?a=b"]);
    check(json!({"keys": [["/blue"]]}), &["/blue"]);
    check(json!({"all": true}), &paths);
    let refused = |wanted: Value| {
        let (status, answer) = order(&gateway, &wanted);
        (status, answer["error_msg"].as_str().unwrap().to_owned())
    };
    assert_eq!(
        refused(json!({})),
        (
            400,
            "invalid purge: the purge is empty: set `urls`, `prefixes`, `tags` or `keys`, or `all`: true"
                .into()
        )
    );
    assert_eq!(refused(json!({"urls": ["/red"]})).0, 400);
    let unused = "invalid purge: no route uses the zone `x`; zones in use: none".to_owned();
    assert_eq!(refused(json!({"all": true, "zone": "x"})), (400, unused));
    assert!(refused(json!({"everything": true})).1.contains("unknown field `everything`"));
    fill(&gateway, &paths);
}

#[test]
fn every_gateway_of_a_store_forgets() {
    let etcd_server = EtcdServer::start().unwrap();
    let settings = etcd(etcd_server.port());
    let (gateways, node) = ([start(&settings), start(&settings)], node());
    serve(&gateways[0], &node);
    gateways.iter().for_each(|gateway| fill(gateway, &["/red", "/blue"]));
    let done = order(&gateways[0], &json!({"tags": ["red"]}));
    assert_eq!(done, (200, json!({"forgotten": 1, "gateways": "all"})));
    // The other one gets the order; a new response is stored again.
    let asked = || node.requests();
    let before = asked();
    assert!(until(PATIENCE, || is_hit(&gateways[1], "/red") == Some(false)), "{}", gateways[1].stderr());
    assert_eq!((is_hit(&gateways[1], "/blue"), asked()), (Some(true), before + 1));
    // By the command line.
    let url = format!("http://{}", gateways[1].admin_address());
    let run = std::process::Command::new(SIGMA)
        .args(["ctl", "purge", "--prefix", "shop.test/", "--admin", &url, "--key", KEY])
        .output()
        .unwrap();
    let told = String::from_utf8(run.stdout).unwrap();
    assert_eq!(
        told, "purged 2 responses on this gateway; the other gateways of the store are notified\n",
        "{:?}",
        run.stderr
    );
    assert!(until(PATIENCE, || is_hit(&gateways[0], "/blue") == Some(false)), "{}", gateways[0].stderr());
}
