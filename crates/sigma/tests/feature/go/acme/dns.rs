//! Names that are proved by records in the DNS: wildcards too.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sigma_testkit::{Address, Peer, Zone};

use super::*;

const SECRET: &[u8] = b"known to the gateway and to its name server";

fn zone() -> Zone {
    Zone::start("test", "sigma", "hmac-sha256", SECRET).unwrap()
}

/// The setting that places records in a zone.
fn update(zone: &Zone, secret: &[u8]) -> Value {
    let server = zone.address().to_string();
    json!({
        "challenge": "dns-01",
        "dns": {
            "update": { "server": server, "key": "sigma.", "secret": STANDARD.encode(secret) },
            "servers": [server],
        },
    })
}

/// The gateway is not reachable: the name server alone proves the names, of which one is delegated elsewhere.
#[test]
fn a_wildcard_is_proved_by_updates_of_its_zone() {
    let (zone, origin) = (zone(), Origin::echo("a").unwrap());
    let pebble = Pebble::asking(Some(zone.address()), json!({}));
    zone.set_alias("_acme-challenge.shop.test", "shop.proofs.test");
    let ssls = json!({
        "ssls": [{ "id": "1", "type": "acme", "snis": ["*.a.test", "a.test", "shop.test"] }],
        "listeners": [{ "address": "{listen}", "tls": {} }],
    });
    let settings = update(&zone, SECRET);
    let gateway = Gateway::start(SIGMA, &config(&pebble, &origin, settings, json!({}), ssls)).unwrap();
    await_state(&gateway, "1", "valid");
    for name in ["a.test", "b.a.test", "shop.test"] {
        assert!(until(PATIENCE, || ask_by(&gateway, &pebble, name).is_ok()), "{}", gateway.stderr());
    }
    // Unneeded records are gone.
    for record in ["_acme-challenge.a.test", "_acme-challenge.shop.test", "shop.proofs.test"] {
        assert!(zone.texts(record).is_empty(), "{record}");
    }
    // Three came and went.
    assert_eq!(zone.updates(), 6);
    assert!(!gateway.stderr().contains(&STANDARD.encode(SECRET)));
}

/// An authority that refuses the order, and a name server that refuses the key, leave nothing behind.
#[test]
fn records_go_when_an_order_fails() {
    let (zone, origin) = (zone(), Origin::echo("a").unwrap());
    // It queries a server that does not know the record.
    let pebble = Pebble::start(json!({}));
    let ssls = json!({ "ssls": [{ "id": "1", "type": "acme", "sni": "*.a.test" }] });
    let settings = update(&zone, SECRET);
    let gateway =
        Gateway::start(SIGMA, &config(&pebble, &origin, settings, json!({}), ssls.clone())).unwrap();
    let order = await_state(&gateway, "1", "failed");
    assert!(order["last_error"].as_str().unwrap().contains("No TXT records"), "{order}");
    assert!(until(PATIENCE, || zone.updates() >= 2 && zone.texts("_acme-challenge.a.test").is_empty()));
    gateway.stop().unwrap();
    let settings = update(&zone, b"another key");
    let gateway = Gateway::start(SIGMA, &config(&pebble, &origin, settings, json!({}), ssls)).unwrap();
    let order = await_state(&gateway, "1", "failed");
    assert!(order["last_error"].as_str().unwrap().contains("refused the update"), "{order}");
}

/// The operator adds a record once. Its name and the account are in the error of the order before.
#[test]
fn a_record_that_stays_proves_a_wildcard() {
    let (pebble, origin) = (Pebble::start(json!({})), Origin::echo("a").unwrap());
    let ssls = json!({
        "ssls": [{ "id": "1", "type": "acme", "sni": "*.a.test" }],
        "listeners": [{ "address": "{listen}", "tls": {} }],
    });
    let settings = json!({ "challenge": "dns-persist-01" });
    let gateway = Gateway::start(SIGMA, &config(&pebble, &origin, settings, json!({}), ssls)).unwrap();
    let order = await_state(&gateway, "1", "failed");
    let error = order["last_error"].as_str().unwrap();
    assert!(error.contains("_validation-persist.a.test."), "{error}");
    let account = error.split("accounturi=").nth(1).and_then(|rest| rest.split('`').next()).unwrap();
    let value = format!("pebble.letsencrypt.org; accounturi={account}; policy=wildcard");
    let body = json!({ "host": "_validation-persist.a.test.", "value": value }).to_string();
    let names = Address::Tcp(([127, 0, 0, 1], pebble.names).into());
    let request =
        format!("POST /set-txt HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    assert_eq!(Peer::connect(&names).unwrap().ask(request).unwrap().status(), 200);
    await_state(&gateway, "1", "valid");
    assert!(until(PATIENCE, || ask_by(&gateway, &pebble, "b.a.test").is_ok()), "{}", gateway.stderr());
}

/// A program of the operator's does the same.
#[test]
fn a_wildcard_is_proved_by_a_hook() {
    use std::os::unix::fs::PermissionsExt;
    let (pebble, origin) = (Pebble::start(json!({})), Origin::echo("a").unwrap());
    let hook = pebble.dir.path().join("hook");
    let script = format!(
        r#"#!/bin/sh
set -e
case "$SIGMA_ACME_ACTION" in
  present) curl -sSf http://127.0.0.1:{0}/set-txt -d "{{\"host\": \"$SIGMA_ACME_RECORD\", \"value\": \"$SIGMA_ACME_VALUE\"}}" ;;
  cleanup) curl -sSf http://127.0.0.1:{0}/clear-txt -d "{{\"host\": \"$SIGMA_ACME_RECORD\"}}" ;;
esac
echo "$SIGMA_ACME_ACTION $SIGMA_ACME_DOMAIN $1" >> {1}/told
"#,
        pebble.names,
        pebble.dir.path().display()
    );
    std::fs::write(&hook, script).unwrap();
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    let settings = json!({
        "challenge": "dns-01",
        "dns": { "hook": { "command": [hook, "a b; c"] }, "servers": [pebble.dns] },
    });
    let ssls = json!({ "ssls": [{ "id": "1", "type": "acme", "sni": "*.a.test" }] });
    let gateway = Gateway::start(SIGMA, &config(&pebble, &origin, settings, json!({}), ssls)).unwrap();
    await_state(&gateway, "1", "valid");
    assert!(until(PATIENCE, || ask_by(&gateway, &pebble, "b.a.test").is_ok()), "{}", gateway.stderr());
    let told = std::fs::read_to_string(pebble.dir.path().join("told")).unwrap();
    assert_eq!(told, "present a.test a b; c\ncleanup a.test a b; c\n");
}

/// An unprovable wildcard is refused, in a file and in a store; a holder of the Admin API's key cannot run a
/// program.
#[test]
fn unprovable_names_are_refused() {
    let config = json!({
        "listeners": ["{listen}"],
        "store": { "kind": "embedded", "path": "{dir}/data" },
        "admin": { "address": "{admin}" },
        "acme": { "terms_agreed": true, "directory": "https://127.0.0.1:1/", "storage": "{dir}/acme" },
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let key = std::fs::read_to_string(gateway.dir().join("data/admin.key")).unwrap();
    let admin = format!("http://{}", gateway.admin_address());
    let variables = [("SIGMA_ADMIN", admin.as_str()), ("SIGMA_ADMIN_KEY", key.trim())];
    let check = |ssl: Value, expected: &str| {
        let put = format!("echo '{ssl}' | sigma ctl put ssls 1 -f -");
        let text = text_of(&paste(gateway.dir(), &put, &variables));
        assert!(text.contains(expected), "{text}");
    };
    check(
        json!({ "type": "acme", "sni": "*.a.test" }),
        "a certificate for `*.a.test` cannot be ordered with the challenge `http-01`",
    );
    let by_records = json!({ "type": "acme", "sni": "*.a.test", "acme": { "challenge": "dns-01" } });
    check(by_records.clone(), "`acme.dns` is not set");
    let mut hooked = by_records;
    hooked["acme"]["dns"] = json!({ "hook": { "command": ["/bin/true"] } });
    check(hooked, "dns");
}
