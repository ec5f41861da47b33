//! Purges by operators, on every gateway of a store.

use serde_json::{Value, json};
use sigma_testkit::{EtcdServer, Gateway, Origin, Peer, until};

use crate::managed::{KEY, admin, etcd, start};
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
