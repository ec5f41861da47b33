//! Many connections at once, and the load generators that people try a gateway with.

use std::process::Command;

use sigma_testkit::{Gateway, Origin, Peer, allow_open_files, until};

use crate::{PATIENCE, SIGMA, catch_all, in_front_of, nodes};

#[test]
fn two_thousand_idle_connections_do_not_disturb_traffic() {
    allow_open_files(8192).unwrap();
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "");
    let mut idle: Vec<Peer> = (0..2000).map(|_| gateway.connect().unwrap()).collect();
    for client in idle.iter_mut().step_by(100) {
        assert_eq!(client.get("/warm").unwrap().status(), 200);
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
                for _ in 0..250 {
                    assert_eq!(client.get("/").unwrap().status(), 200);
                }
            });
        }
    });
    for client in idle.iter_mut().step_by(20) {
        assert!(client.is_idle(), "an idle connection was closed");
    }
    assert_eq!(idle[1999].get("/last").unwrap().status(), 200);
    let memory = gateway.peak_memory_kib().unwrap();
    assert!(memory < 256 * 1024, "{memory} KiB for 2,000 idle connections");
}

#[test]
fn half_sent_heads_hold_little() {
    const CLIENTS: u64 = 500;
    const MOST_KIB: u64 = 20;
    let origin = Origin::echo("a").unwrap();
    let config = catch_all("timeouts: { request_head_ms: 600000 }", &nodes(&[&origin]), "");
    let gateway = Gateway::start(SIGMA, &config.replace("workers: 2", "workers: 1")).unwrap();
    let mut warm = gateway.connect().unwrap().with_deadline(PATIENCE);
    assert_eq!(warm.get("/").unwrap().status(), 200);
    let before = gateway.settled_memory_kib().unwrap();
    let half = format!("GET /half HTTP/1.1\r\nHost: h\r\nX-Long: {}", "a".repeat(2_000));
    let mut clients: Vec<Peer> =
        (0..CLIENTS).map(|_| gateway.connect().unwrap().with_deadline(PATIENCE)).collect();
    clients.iter_mut().for_each(|client| client.send(&half).unwrap());
    // One after the other, so that all have been read when the last gets a response; and none is forgotten.
    for client in &mut clients {
        client.send("b").unwrap();
    }
    let mut last = gateway.connect().unwrap().with_deadline(PATIENCE);
    assert_eq!(last.get("/").unwrap().status(), 200);
    let held = gateway.peak_memory_kib().unwrap() - before;
    assert!(held <= CLIENTS * MOST_KIB, "{held} KiB for {CLIENTS} half-sent heads");
    for client in &mut clients {
        client.send("\r\n\r\n").unwrap();
        assert_eq!(client.read_response("GET").unwrap().status(), 200);
    }
}

#[test]
fn connections_over_the_limit_wait_and_are_served() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "limits:\n  connections_per_worker: 2");
    let mut clients: Vec<Peer> = (0..8).map(|_| gateway.connect().unwrap().with_deadline(PATIENCE)).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    }
    for mut client in clients {
        assert_eq!(client.read_response("GET").unwrap().status(), 200);
    }
}

/// An address has its connections over all workers and listeners; one more is closed without a word, until one goes.
#[test]
fn connections_of_one_address_are_limited() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "limits:\n  connections_per_address: 3");
    let served = |client: &mut Peer| {
        let asked = client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        asked.and_then(|()| client.read_response("GET")).is_ok_and(|answer| answer.status() == 200)
    };
    let connect = || gateway.connect().unwrap().with_deadline(PATIENCE);
    // The connection that looked whether the gateway is there counts until its end has been seen.
    let mut clients = Vec::new();
    assert!(until(PATIENCE, || {
        let mut client = connect();
        if served(&mut client) {
            clients.push(client);
        }
        clients.len() == 3
    }));
    for _ in 0..4 {
        assert!(!served(&mut connect()));
    }
    // Open ones continue.
    assert!(clients.iter_mut().all(served));
    drop(clients.pop());
    assert!(until(PATIENCE, || served(&mut connect())));
}

/// A proxy on the same machine brings the connections of others; the edge profile knows that.
#[test]
fn connections_of_loopback_addresses_are_not_limited_in_the_edge_profile() {
    let origin = Origin::echo("a").unwrap();
    for settings in [
        "limits:\n  connections_per_address: 1\n  count_loopback: false",
        "profile: edge\nlimits:\n  connections_per_address: 1",
    ] {
        let gateway = in_front_of(&origin, settings);
        let mut clients: Vec<Peer> =
            (0..4).map(|_| gateway.connect().unwrap().with_deadline(PATIENCE)).collect();
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            assert_eq!(client.read_response("GET").unwrap().status(), 200, "{settings}");
        }
    }
}

/// Peers that bring the connections of others are not counted.
#[test]
fn connections_of_trusted_addresses_are_not_limited() {
    let origin = Origin::echo("a").unwrap();
    let settings = "trusted_addresses: [127.0.0.0/8]\nlimits:\n  connections_per_address: 1";
    let gateway = in_front_of(&origin, settings);
    let mut clients: Vec<Peer> = (0..4).map(|_| gateway.connect().unwrap().with_deadline(PATIENCE)).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        assert_eq!(client.read_response("GET").unwrap().status(), 200);
    }
}

/// `ab` speaks HTTP/1.0 with `Connection: keep-alive`, an unusual but widespread client.
#[test]
fn apache_bench_with_keep_alive() {
    if Command::new("ab").arg("-V").output().is_err() {
        eprintln!("skipped: ab is not installed");
        return;
    }
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "");
    let url = format!("http://{}/", gateway.address());
    // -l: the echoed length differs with the fields of the request.
    let output = Command::new("ab").args(["-l", "-k", "-n", "2000", "-c", "10", &url]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let number = |label: &str| {
        let line =
            text.lines().find(|l| l.starts_with(label)).unwrap_or_else(|| panic!("no {label} in\n{text}"));
        line.split(':').nth(1).unwrap().split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!((number("Complete requests"), number("Failed requests")), (2000, 0), "{text}");
    assert_eq!(number("Keep-Alive requests"), 2000, "{text}");
    assert!(!text.contains("Non-2xx"), "{text}");
}
