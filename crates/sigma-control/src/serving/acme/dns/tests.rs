//! Records in a zone of the tests, over real sockets.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hickory_proto::rr::Name;
use serde_json::json;
use sigma_config::acme::AcmeDns;
use sigma_testkit::Zone;

use super::Records;
use super::lookup::RecordLookup;

const SECRET: &[u8] = b"a secret of sixteen or more bytes";

fn zone() -> Zone {
    Zone::start("test", "k", "hmac-sha512", SECRET).unwrap()
}

/// Returns the records of a zone; `more` replaces settings of the update.
fn records(zone: &Zone, more: serde_json::Value) -> Records {
    let mut update = json!({
        "server": zone.address().to_string(), "key": "k.", "algorithm": "hmac-sha512", "secret": STANDARD.encode(SECRET),
    });
    update.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let settings = json!({
        "update": update, "servers": [zone.address().to_string()], "propagation_timeout_s": 1,
    });
    let settings: AcmeDns = serde_json::from_value(settings).unwrap();
    Records::new(&settings, &[]).unwrap()
}

fn proofs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

#[tokio::test]
async fn records_are_added_to_others_and_removed() {
    let zone = zone();
    // A wildcard and its base have one place, and each its value.
    let wanted = proofs(&[("*.a.test", "one"), ("a.test", "two"), ("b.test", "three")]);
    for more in [json!({}), json!({"zone": "test"})] {
        let placed = records(&zone, more);
        placed.place(&wanted).await.unwrap();
        assert_eq!(zone.texts("_acme-challenge.a.test"), ["one", "two"]);
        assert_eq!(zone.texts("_acme-challenge.b.test"), ["three"]);
        let other = records(&zone, json!({}));
        other.place(&proofs(&[("a.test", "four")])).await.unwrap();
        placed.remove().await;
        assert_eq!(zone.texts("_acme-challenge.a.test"), ["four"]);
        other.remove().await;
        assert!(zone.texts("_acme-challenge.a.test").is_empty());
    }
}

#[tokio::test]
async fn large_messages_go_over_tcp() {
    let zone = zone();
    zone.truncate();
    let placed = records(&zone, json!({}));
    placed.place(&proofs(&[("a.test", "one")])).await.unwrap();
    assert_eq!(zone.texts("_acme-challenge.a.test"), ["one"]);
    placed.remove().await;
    assert_eq!(zone.updates(), 2);
}

#[tokio::test]
async fn an_alias_is_followed_and_a_circle_is_an_error() {
    let zone = zone();
    zone.set_alias("_acme-challenge.a.test", "a.elsewhere.test");
    zone.set_alias("a.elsewhere.test", "b.elsewhere.test");
    zone.set_alias("_acme-challenge.c.test", "_acme-challenge.d.test");
    zone.set_alias("_acme-challenge.d.test", "_acme-challenge.c.test");
    let placed = records(&zone, json!({}));
    placed.place(&proofs(&[("a.test", "one")])).await.unwrap();
    assert_eq!(zone.texts("b.elsewhere.test"), ["one"]);
    let error = placed.place(&proofs(&[("c.test", "two")])).await.unwrap_err();
    assert!(error.contains("the CNAME chain is too long"), "{error}");
    placed.remove().await;
    assert!(zone.texts("b.elsewhere.test").is_empty());
}

#[tokio::test]
async fn an_update_that_is_refused_says_why() {
    let zone = zone();
    let check = async |more: serde_json::Value, expected: &str| {
        let error = records(&zone, more).place(&proofs(&[("a.test", "one")])).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("b3RoZXI") && zone.texts("_acme-challenge.a.test").is_empty(), "{error}");
    };
    check(json!({"secret": "b3RoZXI="}), "refused the update: Not authorized").await;
    check(json!({"key": "other"}), "refused the update").await;
    check(json!({"algorithm": "hmac-sha256"}), "refused the update").await;
    check(json!({"zone": "a.b"}), "_acme-challenge.a.test. is not in the zone a.b.").await;
    check(json!({"zone": "a.test"}), "refused the update").await;
    // An attacker in between reports success.
    zone.believe_all();
    let placed = records(&zone, json!({}));
    let error = placed.place(&proofs(&[("a.test", "one")])).await.unwrap_err();
    assert!(error.contains("the signature of"), "{error}");
    // It may be there all the same, and is removed.
    placed.remove().await;
    assert!(zone.texts("_acme-challenge.a.test").is_empty());
}

#[tokio::test]
async fn the_name_servers_of_a_zone_are_asked() {
    let zone = zone();
    let resolvers = [zone.address()];
    let mut lookup = RecordLookup::new(Vec::new(), &resolvers).unwrap();
    lookup.listening_at(zone.address().port());
    let record = name("_acme-challenge.a.test.");
    let short = Duration::from_millis(300);
    let error = lookup.wait(&record, "one", short).await.unwrap_err();
    assert!(error.contains(&format!("{} does not return it", zone.address())), "{error}");
    let placed = records(&zone, json!({}));
    placed.place(&proofs(&[("a.test", "one")])).await.unwrap();
    lookup.wait(&record, "one", Duration::from_secs(30)).await.unwrap();
    assert!(lookup.wait(&record, "on", short).await.is_err());
}

#[tokio::test]
async fn a_missing_answer_is_an_error() {
    // Nobody listens there.
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    let lookup = RecordLookup::new(vec![nobody], &[]).unwrap();
    let error = lookup.follow(name("_acme-challenge.a.test.")).await.unwrap_err();
    assert!(error.contains("cannot query the name server 127.0.0.1:1"), "{error}");
}
