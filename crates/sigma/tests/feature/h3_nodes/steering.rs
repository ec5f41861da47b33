//! The worker of a packet: the kernel chooses it by the connection id, and workers forward where it does not.

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, until};

use super::{NAME, PATIENCE, SIGMA, get, got, port_of, trusting};
use crate::tls::{Authority, Issued};
use crate::upgrade::upgrade;

const NOT_STEERED: &str = "the kernel does not steer packets of HTTP/3";

/// A gateway of four workers with HTTP/3.
fn node(issued: &Issued, origin: &Origin, listener: Value) -> Gateway {
    let mut listening =
        json!({ "address": "{listen}", "tls": true, "http3": { "retry_above_handshakes": 0 } });
    super::merge(&mut listening, listener);
    let shown = json!({ "proxy-rewrite": { "headers": { "set": { "X-Protocol": "$server_protocol" } } } });
    let nodes = json!({ format!("127.0.0.1:{}", origin.port()): 1 });
    let whole = json!({
        "workers": 4,
        "pid_file": "{dir}/sigma.pid",
        "error_log": { "level": "info" },
        "status": { "address": "{status}" },
        "listeners": [listening],
        "ssls": [issued.ssl(json!({ "id": "node", "sni": NAME }))],
        "routes": [{ "id": "all", "uri": "/*", "plugins": shown, "upstream": { "nodes": nodes } }],
    });
    Gateway::start(SIGMA, &whole.to_string()).unwrap()
}

/// Sends requests over so many connections to the node, one for each route of a gateway.
fn requests(node: &Gateway, root: &Authority, connections: usize) {
    let route = |number: usize| {
        json!({ "id": number.to_string(), "uri": format!("/{number}/*"), "upstream": {
            "scheme": "https", "nodes": { format!("127.0.0.1:{}", port_of(node)): 1 },
            "pass_host": "rewrite", "upstream_host": NAME, "tls": trusting(root, json!(["h3"])),
        } })
    };
    let whole = json!({
        "workers": 1,
        "listeners": [{ "address": "{listen}" }],
        "http3": { "silence_timeout_ms": 20_000, "handshake_timeout_ms": 20_000 },
        "routes": (0..connections).map(route).collect::<Vec<Value>>(),
    });
    let front = Gateway::start(SIGMA, &whole.to_string()).unwrap();
    for _ in 0..2 {
        for number in 0..connections {
            let answer = get(&front, &format!("/{number}/"));
            assert_eq!((answer.status(), got(&answer, "x-protocol").as_deref()), (200, Some("HTTP/3.0")));
        }
    }
}

#[test]
fn packets_reach_their_worker_without_forwarding() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let node = node(&root.issue(NAME), &origin, json!({}));
    for rounds in 1..=2 {
        requests(&node, &root, 12);
        // Workers report their counts together, once a second.
        let is_reported = || node.counter("sigma_quic_retries_total") >= 12 * rounds;
        assert!(until(PATIENCE, is_reported), "{}", node.stderr());
        assert_eq!(node.counter("sigma_quic_forwarded_total"), 0);
        assert_eq!(node.counter("sigma_quic_dropped_total"), 0);
    }
    // The next process has the sockets in the same order.
    upgrade(&node);
    requests(&node, &root, 12);
    assert!(!node.stderr().contains(NOT_STEERED), "{}", node.stderr());
}

/// Sockets of other processes may be in the group, so their numbers are not known.
#[test]
fn a_shared_address_is_served_by_forwarding() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let node = node(&root.issue(NAME), &origin, json!({ "shared": true }));
    requests(&node, &root, 12);
    assert!(node.stderr().contains(NOT_STEERED), "{}", node.stderr());
    assert_eq!(node.counter("sigma_quic_dropped_total"), 0);
}
