//! Guards between a session of a stream route and its nodes: limits and queues, circuit breakers, admission
//! control, session affinity, and certificates that are trusted no longer.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, Peer, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client_certificates::{authority, client, list};
use crate::streams::{config, is_closed, parrot, talk, upstream};
use crate::tls::{Authority, run, shake};
use crate::{PATIENCE, SIGMA};

/// A gateway with one worker, whose route leads to `upstream`, with these `upstreams`.
fn gateway(upstream: &Value, upstreams: Value) -> Gateway {
    let rest = json!({
        "workers": 1, "timeouts": { "half_close_ms": 100 },
        "upstreams": upstreams, "stream_routes": [{ "upstream": upstream }],
    });
    Gateway::start(SIGMA, &config(json!({ "stream": "tcp" }), rest)).unwrap()
}

/// To these nodes, by these rules.
fn guarded(ports: &[u16], rules: Value) -> Value {
    let mut upstream = upstream(ports);
    upstream.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
    upstream
}

/// As many sessions are open.
fn has_open(gateway: &Gateway, count: u64) -> bool {
    until(PATIENCE, || gateway.counter("sigma_stream_sessions_active") == count)
}

/// A session that a node has greeted.
fn greeted(gateway: &Gateway, name: &str) -> Peer {
    let mut session = gateway.connect().unwrap();
    assert_eq!(session.read_line().unwrap().trim_end(), name);
    session
}

/// The session ends in order, though its client is sending.
fn is_sent_away(gateway: &Gateway) -> bool {
    let mut session = gateway.connect().unwrap();
    session.send("hello").unwrap();
    session.read_to_close().is_ok_and(|bytes| bytes.is_empty())
}

#[test]
fn a_session_waits_for_a_place_and_loses_nothing() {
    let origin = parrot("one");
    let limits = json!({ "max_requests": 1, "queue": { "length": 1, "timeout": 600 } });
    let gateway = gateway(&guarded(&[origin.port()], json!({ "limits": limits })), json!([]));
    assert!(has_open(&gateway, 0));
    let first = greeted(&gateway, "one");
    let mut second = gateway.connect().unwrap().with_deadline(PATIENCE);
    second.send("sent in the queue").unwrap();
    assert!(has_open(&gateway, 2));
    // The queue is full.
    assert!(is_sent_away(&gateway));
    assert_eq!(gateway.counter("sigma_upstream_refused_limit_total"), 1);
    drop(first);
    assert_eq!(second.read_line().unwrap().trim_end(), "one");
    second.half_close().unwrap();
    assert_eq!(second.read_to_close().unwrap(), b"sent in the queue");
    // Its place is free again.
    assert!(until(PATIENCE, || talk(&gateway, "x").0 == "one"));
}

#[test]
fn a_session_that_leaves_the_queue_or_times_out_gives_its_slot_back() {
    let origin = parrot("one");
    let rules = |timeout: f64| json!({ "limits": { "max_requests": 1, "queue": { "length": 1, "timeout": timeout } } });
    let patient = gateway(&guarded(&[origin.port()], rules(600.0)), json!([]));
    assert!(has_open(&patient, 0));
    let first = greeted(&patient, "one");
    let waits = patient.connect().unwrap();
    assert!(has_open(&patient, 2));
    drop(waits);
    assert!(has_open(&patient, 1));
    let mut waits = patient.connect().unwrap().with_deadline(PATIENCE);
    assert!(has_open(&patient, 2));
    drop(first);
    assert_eq!(waits.read_line().unwrap().trim_end(), "one");
    let hasty = gateway(&guarded(&[origin.port()], rules(0.1)), json!([]));
    assert!(has_open(&hasty, 0));
    let _first = greeted(&hasty, "one");
    assert!(is_sent_away(&hasty));
}

#[test]
fn a_session_waits_for_the_node_that_is_free_first() {
    let (one, two) = (parrot("one"), parrot("two"));
    let limits = json!({ "max_requests_per_node": 1, "queue": { "length": 9, "timeout": 600 } });
    let gateway = gateway(&guarded(&[one.port(), two.port()], json!({ "limits": limits })), json!([]));
    assert!(has_open(&gateway, 0));
    let mut held: Vec<(String, Peer)> = (0..2)
        .map(|_| {
            let mut session = gateway.connect().unwrap();
            (session.read_line().unwrap().trim_end().to_owned(), session)
        })
        .collect();
    held.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!([&*held[0].0, &*held[1].0], ["one", "two"]);
    let mut waits = gateway.connect().unwrap().with_deadline(PATIENCE);
    assert!(has_open(&gateway, 3));
    held.pop();
    assert_eq!(waits.read_line().unwrap().trim_end(), "two");
}

/// A breaker that two failures open, for this many seconds.
fn breaker(seconds: f64, rest: Value) -> Value {
    let mut breaker = json!({
        "minimum_number_of_calls": 2, "wait_duration_in_open_state": seconds,
        "permitted_number_of_calls_in_half_open_state": 1,
    });
    breaker.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    json!({ "circuit_breaker": breaker })
}

#[test]
fn failed_connections_open_the_breaker_and_a_good_one_closes_it() {
    let port = sigma_testkit::free_port();
    let gateway = gateway(&guarded(&[port], breaker(0.2, json!({}))), json!([]));
    assert!(until(PATIENCE, || {
        assert!(is_sent_away(&gateway));
        gateway.counter("sigma_upstream_refused_breaker_total") >= 1
    }));
    assert!(gateway.stderr().contains("the circuit breaker opens"), "{}", gateway.stderr());
    // The system takes its connections.
    let _node = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut sessions = Vec::new();
    assert!(until(PATIENCE, || {
        sessions.push(gateway.connect().unwrap());
        gateway.stderr().contains("the circuit breaker closes")
    }));
}

#[test]
fn sessions_go_elsewhere_while_the_breaker_is_open() {
    let (dead, other) = (sigma_testkit::free_port(), parrot("other"));
    let fallback = breaker(600.0, json!({ "fallback": { "upstream_id": "other" } }));
    let mut spare = upstream(&[other.port()]);
    spare["id"] = "other".into();
    let gateway = gateway(&guarded(&[dead], fallback), json!([spare]));
    assert!(until(PATIENCE, || !is_closed(&gateway)));
    assert_eq!(talk(&gateway, "x"), ("other".to_owned(), "x".to_owned()));
}

#[test]
fn guards_that_sessions_lack_are_reported() {
    let rules = json!({
        "circuit_breaker": { "failure_status_codes": [500], "fallback": { "status": 200 } },
        "adaptive_concurrency": {}, "admission_control": {}, "stick_table": { "cookie": "a" },
    });
    let gateway = gateway(&guarded(&[1], rules), json!([]));
    let said = |field: &str| gateway.stderr().contains(&format!("upstream.{field}: `"));
    for field in
        ["circuit_breaker.failure_status_codes", "circuit_breaker.fallback.status", "adaptive_concurrency"]
    {
        assert!(said(field), "{field}: {}", gateway.stderr());
    }
    assert!(said("stick_table") && gateway.stderr().contains("{ address: true }"), "{}", gateway.stderr());
    assert!(!said("admission_control"), "{}", gateway.stderr());
}

/// A session of a client with this address, as a balancer says; the greeting that it gets.
fn greeting_of(gateway: &Gateway, address: &str) -> String {
    let mut session = gateway.connect().unwrap();
    session.send(format!("PROXY TCP4 {address} 192.0.2.1 4000 5432\r\n")).unwrap();
    session.read_line().unwrap().trim_end().to_owned()
}

#[test]
fn clients_keep_to_the_node_that_took_their_first_session() {
    let origins: Vec<Origin> = ["a", "b", "c"].iter().map(|name| parrot(name)).collect();
    let ports: Vec<u16> = origins.iter().map(Origin::port).collect();
    let listener = json!({ "stream": "tcp", "proxy_protocol": { "trusted": ["127.0.0.1"] } });
    let to = guarded(&ports, json!({ "stick_table": { "address": true } }));
    let gateway =
        Gateway::start(SIGMA, &config(listener, json!({ "stream_routes": [{ "upstream": to }] }))).unwrap();
    let all = || (2..20).map(|n| greeting_of(&gateway, &format!("198.51.100.{n}"))).collect::<Vec<_>>();
    let first = all();
    assert_eq!(all(), first);
    for name in ["a", "b", "c"] {
        assert!(first.iter().any(|greeting| greeting == name), "turns are taken by clients: {first:?}");
    }
}

#[test]
fn datagrams_wait_for_a_place_too() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let to = json!({
        "scheme": "udp", "nodes": { format!("127.0.0.1:{}", silent.local_addr().unwrap().port()): 1 },
        "limits": { "max_requests": 1, "queue": { "length": 1, "timeout": 600 } },
    });
    let whole = json!({
        "workers": 1, "status": { "address": "{status}" },
        "listeners": ["{listen}", { "address": format!("127.0.0.1:{port}"), "stream": "udp" }],
        "stream_routes": [{ "udp": { "responses": 1 }, "upstream": to }],
    });
    let gateway = Gateway::start(SIGMA, &whole.to_string()).unwrap();
    let client = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let (first, second) = (client(), client());
    let mut bytes = [0; 9];
    first.send(b"one").unwrap();
    let (_, from) = silent.recv_from(&mut bytes).unwrap();
    second.send(b"two").unwrap();
    assert!(has_open(&gateway, 2));
    silent.set_nonblocking(true).unwrap();
    assert!(silent.recv_from(&mut bytes).is_err(), "it has no place");
    silent.set_nonblocking(false).unwrap();
    silent.send_to(b"1", from).unwrap();
    assert_eq!(first.recv(&mut bytes).unwrap(), 1);
    let (len, from) = silent.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..len], b"two");
    silent.send_to(b"2", from).unwrap();
    assert_eq!(second.recv(&mut bytes).unwrap(), 1);
}

/// Of the clients with a session, one's certificate is revoked, and then no authority is trusted.
#[test]
fn an_open_session_ends_when_its_client_is_trusted_no_longer() {
    let (root, ca, origin) = (Authority::new("Root"), authority("Clients"), parrot("one"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("clients.crl");
    std::fs::write(&file, list(&ca, 2, 2090, &[])).unwrap();
    let text = |client: Value| {
        let rest = json!({
            "ssls": [root.issue("a.test").ssl(json!({ "id": "1", "sni": "a.test", "client": client }))],
            "stream_routes": [{ "sni": "a.test", "upstream": upstream(&[origin.port()]) }],
        });
        config(json!({ "stream": "tls" }), rest)
    };
    let gateway = Gateway::start(SIGMA, &text(json!({ "ca": ca.pem, "crl": { "files": [file] } }))).unwrap();
    run(async {
        let session = async |serial| {
            let mut stream =
                shake(&gateway, &root.client(Some(&client(&ca, serial))), "a.test").await.unwrap();
            let mut greeting = [0; 5];
            stream.read_exact(&mut greeting).await.unwrap();
            assert_eq!(&greeting, b"one\r\n");
            stream
        };
        let (mut one, mut two) = (session(1).await, session(2).await);
        std::fs::write(&file, list(&ca, 3, 2090, &[2])).unwrap();
        // It ends as a whole: a cut would be an error.
        assert_eq!(two.read(&mut [0; 9]).await.unwrap(), 0);
        one.write_all(b"still here").await.unwrap();
        one.flush().await.unwrap();
        gateway.rewrite(&text(json!({ "ca": Authority::new("Others").pem }))).unwrap();
        gateway.reload().unwrap();
        assert_eq!(one.read(&mut [0; 9]).await.unwrap(), 0);
    });
    assert!(until(PATIENCE, || gateway.counter("sigma_stream_sessions_distrusted_total") == 2));
}
