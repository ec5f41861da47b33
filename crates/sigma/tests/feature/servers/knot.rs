//! A name server as it is: Knot accepts signed updates of its zone, and an authority trusts its responses.

use std::net::SocketAddr;
use std::path::Path;

use sigma_testkit::Socket;

use super::*;
use crate::go::acme::{Pebble, ask_by, await_state, config};

const SECRET: &str = "a25vd24gdG8gdGhlIGdhdGV3YXkgYW5kIHRvIGl0cyBuYW1lIHNlcnZlcg==";

/// It serves the zone `test`, which takes updates by the key `sigma.`.
fn knot(dir: &Path, port: u16) -> Running {
    let place = dir.display();
    let zone = "$ORIGIN test.\n@ 1 SOA ns ops 1 60 60 60 1\n@ 1 NS ns\nns 1 A 127.0.0.1\n";
    std::fs::write(dir.join("test.zone"), zone).unwrap();
    let settings = format!(
        "server:\n  listen: 127.0.0.1@{port}\n  rundir: {place}\n\
         database:\n  storage: {place}\n\
         key:\n  - id: sigma.\n    algorithm: hmac-sha512\n    secret: {SECRET}\n\
         acl:\n  - id: updates\n    key: sigma.\n    action: update\n\
         zone:\n  - domain: test.\n    file: {place}/test.zone\n    acl: updates\n"
    );
    std::fs::write(dir.join("knot.conf"), settings).unwrap();
    // `make test-servers` installs it.
    let running =
        Running::start(Command::new("knotd").arg("-c").arg(dir.join("knot.conf")), &dir.join("log"));
    let address = Address::Tcp(SocketAddr::from(([127, 0, 0, 1], port)));
    assert!(until(PATIENCE, || Socket::connect(&address, PATIENCE).is_ok()), "knotd does not listen");
    running
}

#[test]
fn knot_takes_the_records_that_prove_a_wildcard() {
    let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
    let _knot = knot(dir.path(), port);
    let server = SocketAddr::from(([127, 0, 0, 1], port));
    let (pebble, origin) = (Pebble::asking(Some(server), json!({})), Origin::echo("a").unwrap());
    let update = json!({ "server": server, "key": "sigma", "algorithm": "hmac-sha512", "secret": SECRET });
    let settings = json!({ "challenge": "dns-01", "dns": { "update": update, "servers": [server] } });
    let ssls = json!({ "ssls": [{ "id": "1", "type": "acme", "snis": ["*.a.test", "a.test"] }] });
    let gateway = Gateway::start(SIGMA, &config(&pebble, &origin, settings, json!({}), ssls)).unwrap();
    await_state(&gateway, "1", "valid");
    assert!(until(PATIENCE, || ask_by(&gateway, &pebble, "b.a.test").is_ok()), "{}", gateway.stderr());
}
