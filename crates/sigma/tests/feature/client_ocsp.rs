//! Responders that report whether client certificates are revoked.

use std::path::Path;

use serde_json::{Value, json};
use sigma_net::tls::ClientTls;
use sigma_testkit::{Gateway, Origin};

use crate::SIGMA;
use crate::client_certificates::{is_served, served_in_the_end};
use crate::stapling::{Responder, material};
use crate::tls::{Authority, Issued, ask, config, run, shake, status, to_origin};

/// An authority for servers; a responder, and clients of the authority that it answers for.
struct World {
    root: Authority,
    dir: tempfile::TempDir,
    responder: Responder,
    origin: Origin,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let responder = Responder::start(dir.path());
        material(dir.path(), responder.port);
        World { root: Authority::new("Servers"), dir, responder, origin: Origin::echo("a").unwrap() }
    }

    fn client(&self, name: &str) -> ClientTls {
        let read = |kind: &str| read(self.dir.path(), &format!("{name}.{kind}"));
        self.root.client(Some(&Issued { cert: read("crt"), key: read("key") }))
    }

    /// A gateway with one worker, which a waiting handshake must not block. `b.test` requests no certificate.
    fn gateway(&self, ocsp: Value) -> Gateway {
        let ca = read(self.dir.path(), "ca.crt");
        let guarded = json!({ "id": "1", "sni": "a.test", "client": { "ca": ca, "ocsp": ocsp } });
        let ssls = json!([
            self.root.issue("a.test").ssl(guarded),
            self.root.issue("b.test").ssl(json!({ "id": "2", "sni": "b.test" })),
        ]);
        let rest = json!({ "ssls": ssls, "workers": 1 });
        let text = config(json!({ "alpn": ["http/1.1"] }), to_origin(&self.origin), rest);
        Gateway::start(SIGMA, &text).unwrap()
    }
}

fn read(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).unwrap()
}

fn told(gateway: &Gateway, said: &str) {
    gateway.await_log(said);
}

#[test]
fn revoked_clients_are_denied_and_disconnected() {
    let world = World::new();
    let gateway = world.gateway(json!({ "cache_ttl": 1, "retry_s": 1 }));
    let client = world.client("a");
    run(async {
        assert!(is_served(&gateway, &client).await, "{}", gateway.stderr());
        let mut open = shake(&gateway, &client, "a.test").await.unwrap();
        assert_eq!(status(&ask(&mut open, "a.test", "/", "").await.unwrap()), 200);
        // The session of this connection would be resumed.
        world.responder.set(|manner| manner.index = Some("revoked.txt"));
        let mut answered = 200;
        while answered == 200 {
            answered = status(&ask(&mut open, "a.test", "/", "").await.unwrap());
        }
        assert_eq!(answered, 400);
        assert!(!is_served(&gateway, &client).await);
        // While the responder is silent that stays so.
        world.responder.set(|manner| manner.index = None);
        told(&gateway, "cannot check whether client certificates are revoked");
        assert!(!is_served(&gateway, &client).await);
        world.responder.set(|manner| manner.index = Some("good.txt"));
        served_in_the_end(&gateway, &client, true).await;
    });
}

#[test]
fn without_an_answer_the_operator_decides() {
    let world = World::new();
    world.responder.set(|manner| manner.index = None);
    let client = world.client("a");
    run(async {
        let closed = world.gateway(json!({ "retry_s": 1 }));
        assert!(!is_served(&closed, &client).await);
        told(&closed, "`client.ocsp.when_missing` applies");
        world.responder.set(|manner| manner.index = Some("good.txt"));
        served_in_the_end(&closed, &client, true).await;
        told(&closed, "are available again");
        // Known answers count; others are missing, and only the responder may give them.
        world.responder.set(|manner| manner.index = None);
        assert!(is_served(&closed, &client).await);
        assert!(!is_served(&closed, &world.client("must")).await);
        world.responder.set(|manner| (manner.index, manner.signer) = (Some("good.txt"), "other"));
        let before = world.responder.asked();
        while world.responder.asked() < before + 2 {
            assert!(!is_served(&closed, &world.client("must")).await);
        }
        assert!(!is_served(&closed, &world.client("must")).await);
        drop(closed);
        world.responder.set(|manner| manner.index = None);
        let open = world.gateway(json!({ "when_missing": "allow", "retry_s": 1 }));
        assert!(is_served(&open, &client).await);
        let mut stays = shake(&open, &client, "a.test").await.unwrap();
        assert_eq!(status(&ask(&mut stays, "a.test", "/", "").await.unwrap()), 200);
        // A later response counts as well, for connections that are open already.
        world.responder.set(|manner| (manner.index, manner.signer) = (Some("revoked.txt"), "delegate"));
        while status(&ask(&mut stays, "a.test", "/", "").await.unwrap()) == 200 {}
        assert!(!is_served(&open, &client).await);
    });
}

#[test]
fn a_handshake_that_waits_for_a_responder_delays_no_other() {
    let world = World::new();
    world.responder.set(|manner| manner.holds = true);
    let gateway = world.gateway(json!({ "wait_ms": 60_000, "timeout_ms": 60_000 }));
    let (client, nobody) = (world.client("a"), world.root.client(None));
    run(async {
        let other = async {
            while !world.responder.is_asked() {
                tokio::task::yield_now().await;
            }
            let mut stream = shake(&gateway, &nobody, "b.test").await.unwrap();
            let answer = ask(&mut stream, "b.test", "/", "").await.unwrap();
            world.responder.set(|manner| manner.holds = false);
            status(&answer)
        };
        let (served, other) = tokio::join!(is_served(&gateway, &client), other);
        assert!(served && other == 200, "{}", gateway.stderr());
    });
}

#[test]
fn no_query_is_sent_about_foreign_certificates() {
    let world = World::new();
    let gateway = world.gateway(json!({ "when_missing": "allow" }));
    run(async {
        let strange = Authority::new("Root").issue("client.test");
        assert!(!is_served(&gateway, &world.root.client(Some(&strange))).await);
        assert!(!is_served(&gateway, &world.root.client(None)).await);
        assert!(!world.responder.is_asked());
        // A response is requested once, however often its certificate is shown.
        let client = world.client("a");
        for _ in 0..5 {
            assert!(is_served(&gateway, &client).await);
        }
        assert_eq!(world.responder.asked(), 1);
    });
}
