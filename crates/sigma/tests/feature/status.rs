//! The status listener.

use sigma_testkit::{Origin, Peer};

use crate::in_front_of;

#[test]
fn status_answers_beside_the_traffic() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "status:\n  address: \"{status}\"");
    let mut client = gateway.connect().unwrap();
    for _ in 0..3 {
        assert_eq!(client.get("/").unwrap().status(), 200);
    }
    for target in ["/status", "/status/ready"] {
        let answer = Peer::connect(&gateway.status_address()).unwrap().get(target).unwrap();
        assert_eq!(answer.status(), 200, "{target}: {}", answer.text());
        answer.json().unwrap_or_else(|e| panic!("{target}: {e}: {}", answer.text()));
    }
    let counters = Peer::connect(&gateway.status_address()).unwrap().get("/status/counters").unwrap();
    assert_eq!(counters.status(), 200);
    let unknown = Peer::connect(&gateway.status_address()).unwrap().get("/nothing").unwrap();
    assert_eq!(unknown.status(), 404);
    // The traffic listener knows no status page: it is the origin's path like any other.
    assert_eq!(client.get("/status").unwrap().head.get("x-origin"), Some("a"));
}
