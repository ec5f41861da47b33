//! Reloads and upgrades of a gateway whose clients speak HTTP/3. The client is another gateway.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, until};

use super::{NAME, SIGMA, got, merge, port_of, trusting};
use crate::PATIENCE;
use crate::tls::{Authority, Issued};
use crate::upgrade::{Stop, upgrade};

/// The changes of the gateway while its clients send requests.
pub(crate) struct Course {
    pub(crate) connections: usize,
    pub(crate) reloads: usize,
    pub(crate) upgrades: usize,
}

/// The gateway that is reloaded and replaced.
fn replaced(issued: &Issued, origin: &Origin) -> Gateway {
    let shown = json!({ "proxy-rewrite": { "headers": { "set": { "X-Protocol": "$server_protocol" } } } });
    let nodes = json!({ format!("127.0.0.1:{}", origin.port()): 1 });
    let whole = json!({
        "workers": 2,
        "pid_file": "{dir}/sigma.pid",
        "listeners": [{ "address": "{listen}", "tls": true, "http3": true }],
        "ssls": [issued.ssl(json!({ "id": "replaced", "sni": NAME }))],
        "routes": [{ "id": "all", "uri": "/*", "plugins": shown, "upstream": { "nodes": nodes, "retries": 0 } }],
    });
    Gateway::start(SIGMA, &whole.to_string()).unwrap()
}

/// A gateway with so many connections over HTTP/3 to the other: one for each route. It sends a request again only if
/// the other has not begun it.
fn clients(of: &Gateway, root: &Authority, connections: usize) -> Gateway {
    let route = |number: usize| {
        json!({ "id": number.to_string(), "uri": format!("/{number}/*"), "upstream": {
            "scheme": "https", "nodes": { format!("127.0.0.1:{}", port_of(of)): 1 }, "retries": 0,
            "pass_host": "rewrite", "upstream_host": NAME, "tls": trusting(root, json!(["h3"])),
        } })
    };
    let mut whole = json!({
        "workers": 1,
        "listeners": [{ "address": "{listen}" }],
        "status": { "address": "{status}" },
        "http3": { "silence_timeout_ms": 20_000, "handshake_timeout_ms": 20_000, "tcp_delay_ms": 10_000 },
    });
    let routes: Vec<Value> = (0..connections).map(route).collect();
    merge(&mut whole, json!({ "routes": routes }));
    Gateway::start(SIGMA, &whole.to_string()).unwrap()
}

/// Fails if a request is lost, or reaches the origin twice.
pub(crate) fn lose_no_request(course: &Course) {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let replaced = replaced(&root.issue(NAME), &origin);
    let front = clients(&replaced, &root, course.connections);
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for first in 0..4 {
            let (front, stop, sent) = (&front, &stop, &sent);
            scope.spawn(move || {
                let mut client = front.connect().expect("a connection").with_deadline(PATIENCE);
                for number in (first..course.connections).step_by(4).cycle() {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    // No gateway sends a POST again that a node may have seen.
                    let request =
                        format!("POST /{number}/ HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi");
                    client.send(request).expect("a request");
                    let answer = client.read_response("POST").expect("an answer");
                    assert_eq!(answer.status(), 200, "{}", answer.text());
                    assert_eq!(got(&answer, "x-protocol").as_deref(), Some("HTTP/3.0"));
                    sent.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let _stop = Stop(&stop);
        let progress = || {
            let before = sent.load(Ordering::SeqCst);
            let enough = before + 2 * course.connections;
            assert!(until(PATIENCE, || sent.load(Ordering::SeqCst) > enough), "{}", replaced.stderr());
        };
        progress();
        for _ in 0..course.reloads {
            replaced.reload().unwrap();
            progress();
        }
        for _ in 0..course.upgrades {
            upgrade(&replaced);
            progress();
        }
    });
    assert_eq!(origin.requests(), sent.load(Ordering::SeqCst));
    assert!(front.counter("sigma_upstream_quic_connects_total") as usize >= course.connections);
}

#[test]
fn reloads_and_upgrades_lose_no_request() {
    lose_no_request(&Course { connections: 20, reloads: 3, upgrades: 2 });
}
