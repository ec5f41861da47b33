//! Several gateways on one etcd: one of them orders, all of them answer the authority and show the issued
//! certificates.

use sigma_testkit::EtcdServer;

use super::*;
use crate::managed::{KEY, admin, await_admin};

/// A gateway on an etcd. The authority's check reaches it or another one: they listen at the same ports.
fn gateway(pebble: &Pebble, origin: &Origin, etcd: &EtcdServer, keyring: &str) -> Gateway {
    let rest = json!({
        "listeners": [
            { "address": "{listen}", "tls": {} },
            { "address": format!("127.0.0.1:{}", pebble.http), "shared": true },
            { "address": format!("127.0.0.1:{}", pebble.tls), "tls": {}, "shared": true },
        ],
        "store": { "kind": "etcd", "endpoints": [etcd.endpoint()], "path": "{dir}/data", "watch_timeout_ms": 2_000 },
        "admin": { "address": "{admin}", "keys": [{ "key": KEY, "role": "admin" }] },
        "data_encryption": { "keyring": [keyring] },
        "error_log": { "level": "info" },
    });
    let whole = config(pebble, origin, json!({ "lease_s": 3 }), json!({}), rest);
    let mut whole: Value = serde_json::from_str(&whole).unwrap();
    for section in ["routes", "global_rules"] {
        whole.as_object_mut().unwrap().remove(section);
    }
    let gateway = Gateway::start(SIGMA, &whole.to_string()).unwrap();
    await_admin(&gateway);
    gateway
}

const OWN: &str = "the gateways own";

fn world() -> (EtcdServer, Origin) {
    (EtcdServer::start().unwrap(), Origin::echo("a").unwrap())
}

/// Has a name served and its certificate ordered.
fn put(gateway: &Gateway, origin: &Origin, id: &str, challenge: &str, names: &[&str]) {
    let route =
        json!({ "uri": "/*", "upstream": { "nodes": { format!("127.0.0.1:{}", origin.port()): 1 } } });
    admin(gateway).put("routes/all", &route).unwrap();
    let ssl = json!({ "type": "acme", "snis": names, "acme": { "challenge": challenge } });
    admin(gateway).put(&format!("ssls/{id}"), &ssl).unwrap();
}

/// How many certificates this gateway has had issued.
fn issued(gateway: &Gateway) -> usize {
    gateway.stderr().matches("a certificate was issued").count()
}

/// Waits until all show one certificate for a name, which is not `former`; its serial number.
fn await_same(gateways: &[&Gateway], pebble: &Pebble, name: &str, former: &str) -> String {
    let mut shown = Vec::new();
    let same = until(PATIENCE * 2, || {
        shown = gateways.iter().map(|gateway| ask_by(gateway, pebble, name)).collect();
        shown[0].as_ref().is_ok_and(|serial| serial != former) && shown.iter().all(|one| *one == shown[0])
    });
    assert!(same, "{shown:?}\n{}", gateways.iter().map(|gateway| gateway.stderr()).collect::<String>());
    shown.remove(0).unwrap()
}

#[test]
fn one_orders_and_all_answer_and_show() {
    let ((etcd, origin), pebble) = (world(), Pebble::start(json!({})));
    let [one, two] = [OWN; 2].map(|keyring| gateway(&pebble, &origin, &etcd, keyring));
    put(&one, &origin, "web", "http-01", &["a.test", "b.test", "c.test", "d.test"]);
    put(&two, &origin, "shop", "tls-alpn-01", &["shop.test", "e.test", "f.test"]);
    for gateway in [&one, &two] {
        await_state(gateway, "web", "valid");
        await_state(gateway, "shop", "valid");
    }
    await_same(&[&one, &two], &pebble, "a.test", "");
    let first = await_same(&[&one, &two], &pebble, "shop.test", "");
    let (orders, follows) = if issued(&one) > 0 { (&one, &two) } else { (&two, &one) };
    assert_eq!((issued(orders), issued(follows)), (2, 0), "{}\n{}", one.stderr(), two.stderr());
    // Neither a key nor the account is there for everybody to read.
    let all = Command::new("etcdctl").args(["--endpoints", &etcd.endpoint(), "get", "--prefix", ""]).output();
    let all = text_of(&all.unwrap());
    assert!(
        all.contains("data_plane/acme/certificates/shop") && all.contains("data_plane/acme/account-"),
        "{all}"
    );
    assert!(
        !all.contains("PRIVATE KEY") && !all.contains("key_pkcs8") && !all.contains(".test\",\"token"),
        "{all}"
    );
    // One that comes later shows the ordered certificates, and orders nothing.
    let later = gateway(&pebble, &origin, &etcd, OWN);
    await_same(&[&later], &pebble, "a.test", "");
    assert_eq!(await_same(&[&later], &pebble, "shop.test", ""), first);
    // An operator asks one that does not order.
    let order = format!("sigma ctl acme order shop.test --control http://{}", follows.control_address());
    let told = paste(follows.dir(), &order, &[]);
    assert!(text_of(&told).contains("ssls/shop: ordering"), "{}", text_of(&told));
    await_same(&[&one, &two, &later], &pebble, "shop.test", &first);
    assert_eq!((issued(orders), issued(follows) + issued(&later)), (3, 0));
}

/// The one that orders is killed while it does; another one continues, and there is one certificate in the end.
#[test]
fn another_takes_over_in_the_midst_of_an_order() {
    let ((etcd, origin), pebble) = (world(), Pebble::start(json!({})));
    let mut gateways = [OWN; 2].map(|keyring| gateway(&pebble, &origin, &etcd, keyring));
    let names: Vec<String> = (0..12).map(|n| format!("n{n}.test")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // The order cannot end before the gateway does.
    pebble.signal(Signal::STOP);
    put(&gateways[0], &origin, "web", "http-01", &names);
    let ordering = || gateways.iter().position(|gateway| standing(gateway, "web")["state"] == "ordering");
    let mut orders = None;
    assert!(until(PATIENCE, || {
        orders = ordering();
        orders.is_some()
    }));
    let [first, second] = &mut gateways;
    let (dead, other) = if orders == Some(0) { (first, second) } else { (second, first) };
    dead.kill().unwrap();
    pebble.signal(Signal::CONT);
    assert_eq!(issued(dead), 0, "{}", dead.stderr());
    await_state(other, "web", "valid");
    let serial = await_same(&[other], &pebble, names[0], "");
    dead.start_again().unwrap();
    await_admin(dead);
    assert_eq!(await_same(&[dead, other], &pebble, names[0], ""), serial);
    assert_eq!(issued(other), 1, "{}", other.stderr());
    assert_eq!(issued(dead), 0, "{}", dead.stderr());
}

/// A gateway with another keyring would order all again, and so would the others after it.
#[test]
fn a_gateway_that_cannot_read_the_keys_orders_nothing() {
    let ((etcd, origin), pebble) = (world(), Pebble::start(json!({})));
    let one = gateway(&pebble, &origin, &etcd, OWN);
    put(&one, &origin, "web", "http-01", &["a.test"]);
    let serial = await_same(&[&one], &pebble, "a.test", "");
    let stranger = gateway(&pebble, &origin, &etcd, "of another group");
    one.stop().unwrap();
    // The certificate or the account, whichever it looks at first.
    let refusal = "no key of `data_encryption.keyring` decrypts";
    stranger.await_log(refusal);
    assert!(ask_by(&stranger, &pebble, "a.test").is_err());
    // One that can read them goes on where the first has stopped.
    let two = gateway(&pebble, &origin, &etcd, OWN);
    assert_eq!(await_same(&[&two], &pebble, "a.test", ""), serial);
    let takes_over = || two.stderr().contains("this gateway orders certificates for all");
    assert!(until(PATIENCE, takes_over), "{}", two.stderr());
    assert_eq!(issued(&stranger) + issued(&two), 0);
}
