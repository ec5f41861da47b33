//! Limits of a listener's connections, their age, and options of its TCP sockets.

use sigma_testkit::{Gateway, Origin, until};

use crate::h2::{connect, get, within};
use crate::{PATIENCE, SIGMA};

fn config(origin: &Origin, listener: &str, more: &str) -> String {
    format!(
        "workers: 2\nlisteners: [{{ address: \"{{listen}}\"{listener} }}]\n{more}\
         routes: [{{ id: r, uri: \"/*\", upstream: {{ nodes: {{ \"127.0.0.1:{}\": 1 }} }} }}]\n",
        origin.port()
    )
}

/// Both workers count together: the second connection waits, wherever it arrives.
#[test]
fn connections_beyond_the_maximum_wait() {
    let origin = Origin::echo("a").unwrap();
    let gateway = Gateway::start(SIGMA, &config(&origin, ", max_connections: 1", "")).unwrap();
    let mut first = gateway.connect().unwrap();
    assert_eq!(first.get("/").unwrap().status(), 200);
    let mut second = gateway.connect().unwrap();
    second.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let reached = || gateway.stderr().contains("listeners: max_connections");
    assert!(until(PATIENCE, reached), "{}", gateway.stderr());
    drop(first);
    assert_eq!(second.read_response("GET").unwrap().status(), 200);
}

#[test]
fn an_old_connection_over_http2_gets_goaway() {
    let origin = Origin::echo("a").unwrap();
    let more = "timeouts: { connection_age_ms: 700, connection_age_spread_percent: 0 }\n";
    let gateway = Gateway::start(SIGMA, &config(&origin, "", more)).unwrap();
    within(async {
        let (sender, driver) = connect(&gateway).await;
        assert_eq!(get(&sender, "/").await.0, 200);
        driver.await.unwrap().unwrap();
        assert!(sender.ready().await.is_err());
    });
}

/// The kernel runs a timer for probes on the connections of a listener that requests them, and for no other.
#[test]
fn a_listener_sets_options_of_its_connections() {
    let origin = Origin::echo("a").unwrap();
    let probed = |listener: &str| {
        let gateway = Gateway::start(SIGMA, &config(&origin, listener, "")).unwrap();
        let mut client = gateway.connect().unwrap();
        assert_eq!(client.get("/").unwrap().status(), 200);
        let port = gateway.address().port().unwrap();
        let of_gateway = |local: &str, peer: &str| {
            local.ends_with(&format!(":{port:04X}"))
                && peer.ends_with(&format!(":{:04X}", client.local_port()))
        };
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let mut lines = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
        let line = lines.find(|line| of_gateway(line[1], line[2])).expect("the gateway's connection");
        // The kind of timer: 2 is the one for probes.
        line[5].starts_with("02:")
    };
    assert!(probed(", tcp: { keepalive_idle_s: 60, keepalive_probes: 2 }"));
    assert!(!probed(""));
}
