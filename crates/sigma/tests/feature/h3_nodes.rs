//! Nodes that are reached over HTTP/3: the choice, the race with TCP, and the ends of requests.

mod raw;
mod records;
mod steering;
pub(crate) mod upgrades;

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Message, Origin, Peer, Relay, free_port, until};

use crate::tls::{Authority, Issued};
use crate::{PATIENCE, SIGMA};
use raw::{Act, RawNode};

/// The name of all nodes.
const NAME: &str = "node.test";

/// A gateway as a node over TLS, with or without HTTP/3, in front of `origin`. It shows in `X-Protocol` how it was
/// queried.
fn node(issued: &Issued, http3: bool, origin: &Origin, rest: Value) -> Gateway {
    let rewritten =
        json!({ "proxy-rewrite": { "headers": { "set": { "X-Protocol": "$server_protocol" } } } });
    let nodes = json!({ format!("127.0.0.1:{}", origin.port()): 1 });
    let mut whole = json!({
        "workers": 1,
        "error_log": { "level": "info" },
        "listeners": [{ "address": "{listen}", "tls": true, "http3": http3.then(|| json!({ "alt_svc_max_age": 60 })) }],
        "ssls": [issued.ssl(json!({ "id": "node", "sni": NAME }))],
        "routes": [{ "id": "all", "uri": "/*", "plugins": rewritten, "upstream": { "nodes": nodes } }],
    });
    if !http3 {
        whole["listeners"][0].as_object_mut().unwrap().remove("http3");
    }
    merge(&mut whole, rest);
    Gateway::start(SIGMA, &whole.to_string()).unwrap()
}

fn merge(whole: &mut Value, rest: Value) {
    for (key, value) in rest.as_object().unwrap() {
        whole[key] = value.clone();
    }
}

/// A gateway whose only route leads to nodes at these ports of 127.0.0.1.
fn front(ports: &[u16], tls: Value, rest: Value) -> Gateway {
    let nodes: serde_json::Map<String, Value> =
        ports.iter().map(|port| (format!("127.0.0.1:{port}"), 1.into())).collect();
    let mut whole = json!({
        "workers": 1,
        "listeners": [{ "address": "{listen}" }],
        "status": { "address": "{status}" },
        "access_log": { "path": "stdout", "format": "$status $upstream_protocol", "flush_ms": 1 },
        "http3": { "silence_timeout_ms": 20_000, "handshake_timeout_ms": 20_000, "tcp_delay_ms": 10_000 },
        "routes": [{ "id": "all", "uri": "/*", "enable_websocket": true, "upstream": {
            "scheme": "https", "nodes": nodes, "pass_host": "rewrite", "upstream_host": NAME, "tls": tls,
        } }],
    });
    merge(&mut whole, rest);
    Gateway::start(SIGMA, &whole.to_string()).unwrap()
}

/// Times for nodes without HTTP/3.
fn hasty() -> Value {
    json!({ "handshake_timeout_ms": 500, "tcp_delay_ms": 100 })
}

/// The TLS of an upstream that trusts `root`.
fn trusting(root: &Authority, alpn: Value) -> Value {
    json!({ "verify": true, "ca": root.pem, "alpn": alpn })
}

fn port_of(gateway: &Gateway) -> u16 {
    gateway.address().port().unwrap()
}

/// The value of a field of the request that an origin got.
fn got(answer: &Message, name: &str) -> Option<String> {
    let echoed = answer.json().ok()?;
    let pairs = echoed["headers"].as_array()?.clone();
    let pair =
        pairs.into_iter().find(|pair| pair[0].as_str().is_some_and(|key| key.eq_ignore_ascii_case(name)))?;
    Some(pair[1].as_str()?.to_owned())
}

fn get(gateway: &Gateway, path: &str) -> Message {
    gateway.connect().unwrap().with_deadline(PATIENCE).get(path).unwrap()
}

fn post(gateway: &Gateway, body: &[u8]) -> Message {
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    let head = format!("POST /upload HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
    client.send([head.as_bytes(), body].concat()).unwrap();
    client.read_response("POST").unwrap()
}

#[test]
fn requests_share_a_connection_over_http3() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let node = node(&root.issue(NAME), true, &origin, json!({}));
    let gateway = front(&[port_of(&node)], trusting(&root, json!(["h3", "h2", "http/1.1"])), json!({}));
    for _ in 0..3 {
        let answer = get(&gateway, "/a?b=c");
        assert_eq!(answer.status(), 200);
        assert_eq!(got(&answer, "x-protocol").as_deref(), Some("HTTP/3.0"));
        assert_eq!(got(&answer, "host").as_deref(), Some(NAME));
    }
    // An upload that is larger than all windows.
    let body = vec![b'x'; 3_000_000];
    let answer = post(&gateway, &body);
    assert_eq!(answer.json().unwrap()["body_bytes"], body.len());
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send("HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert_eq!(client.read_response("HEAD").unwrap().status(), 200);
    assert_eq!(gateway.counter("sigma_upstream_quic_connects_total"), 1);
    assert_eq!(gateway.counter("sigma_upstream_quic_failures_total"), 0);
    assert!(until(PATIENCE, || gateway.stdout().lines().filter(|line| *line == "200 HTTP/3.0").count() == 5));
}

#[test]
fn a_node_without_udp_costs_one_delay() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let node = node(&root.issue(NAME), false, &origin, json!({}));
    // Each request needs a new connection.
    let upstream = json!({
        "scheme": "https", "nodes": { format!("127.0.0.1:{}", port_of(&node)): 1 },
        "pass_host": "rewrite", "upstream_host": NAME, "keepalive_pool": { "requests": 1 },
        "tls": trusting(&root, json!(["h3", "h2", "http/1.1"])),
    });
    let routes = json!([{ "id": "all", "uri": "/*", "upstream": upstream }]);
    let gateway = front(&[], json!({}), json!({ "routes": routes, "http3": hasty() }));
    for _ in 0..5 {
        assert_eq!(got(&get(&gateway, "/"), "x-protocol").as_deref(), Some("HTTP/2.0"));
    }
    assert!(until(PATIENCE, || gateway.counter("sigma_upstream_quic_failures_total") == 1));
    for _ in 0..5 {
        assert_eq!(got(&get(&gateway, "/"), "x-protocol").as_deref(), Some("HTTP/2.0"));
    }
    assert_eq!(gateway.counter("sigma_upstream_quic_failures_total"), 1, "it is not tried again");
    gateway.await_log("does not respond over QUIC");
}

#[test]
fn a_node_is_used_over_tcp_until_http3_is_back() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let node = node(&root.issue(NAME), true, &origin, json!({}));
    let http3 = json!({
        "silence_timeout_ms": 500, "handshake_timeout_ms": 500, "tcp_delay_ms": 100, "retry_after_ms": 1_000,
    });
    // A node whose TCP port leads to a server, and whose UDP port is closed at first.
    let relay = Relay::to(port_of(&node)).unwrap();
    let tls = trusting(&root, json!(["h3", "http/1.1"]));
    let gateway = front(&[relay.port()], tls, json!({ "http3": http3 }));
    assert_eq!(got(&get(&gateway, "/"), "x-protocol").as_deref(), Some("HTTP/1.1"));
    assert!(until(PATIENCE, || gateway.counter("sigma_upstream_quic_failures_total") == 1));
    let socket = std::net::UdpSocket::bind(("127.0.0.1", relay.port())).unwrap();
    let _quic = RawNode::start_on(socket, &root.issue(NAME), 100, |_| Act::Respond("raw"));
    // Requests continue over the open connection, until another one is there in the background.
    assert!(until(PATIENCE, || get(&gateway, "/").text() == "raw"), "{}", gateway.stderr());
    assert_eq!(gateway.counter("sigma_upstream_quic_connects_total"), 1);
}

#[test]
fn certificates_are_checked_as_over_tcp() {
    let (root, other, origin) = (Authority::new("Root"), Authority::new("Other"), Origin::echo("a").unwrap());
    let foreign = node(&other.issue(NAME), true, &origin, json!({}));
    for alpn in [json!(["h3"]), json!(["h3", "h2"])] {
        let gateway = front(&[port_of(&foreign)], trusting(&root, alpn), json!({}));
        assert_eq!(get(&gateway, "/").status(), 502);
        gateway.await_log("not issued by a trusted authority");
    }
    // Without verification it is used, over either transport.
    let gateway = front(&[port_of(&foreign)], json!({ "verify": false, "alpn": ["h3"] }), json!({}));
    assert_eq!(got(&get(&gateway, "/"), "x-protocol").as_deref(), Some("HTTP/3.0"));
    let expired = node(&root.issue_within(NAME, 2020..2021), true, &origin, json!({}));
    let gateway = front(&[port_of(&expired)], trusting(&root, json!(["h3"])), json!({}));
    assert_eq!(get(&gateway, "/").status(), 502);
    gateway.await_log("expired");
}

#[test]
fn client_certificates_are_shown_over_quic() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let issued = root.issue(NAME);
    let ssl = issued.ssl(json!({ "id": "node", "sni": NAME, "client": { "ca": root.pem, "depth": 1 } }));
    let node = node(&issued, true, &origin, json!({ "ssls": [ssl] }));
    let own = root.issue("gateway.test");
    let mut tls = trusting(&root, json!(["h3"]));
    let gateway = front(&[port_of(&node)], tls.clone(), json!({}));
    assert_ne!(get(&gateway, "/").status(), 200);
    (tls["client_cert"], tls["client_key"]) = (own.cert.as_str().into(), own.key.as_str().into());
    let gateway = front(&[port_of(&node)], tls, json!({}));
    assert_eq!(got(&get(&gateway, "/"), "x-protocol").as_deref(), Some("HTTP/3.0"));
}

#[test]
fn http3_alone_needs_no_tcp() {
    let root = Authority::new("Root");
    let node = RawNode::start(&root.issue(NAME), 100, |_| Act::Respond("raw"));
    let gateway = front(&[node.port], trusting(&root, json!(["h3"])), json!({}));
    let answer = get(&gateway, "/");
    assert_eq!((answer.status(), &*answer.text()), (200, "raw"));
    // No node at all: the handshake ends in its time.
    let gateway = front(&[free_port()], trusting(&root, json!(["h3"])), json!({ "http3": hasty() }));
    assert_eq!(get(&gateway, "/").status(), 504);
}

#[test]
fn rejected_requests_are_repeated() {
    let root = Authority::new("Root");
    let issued = root.issue(NAME);
    // The first request of each pair is rejected, on a connection that has served.
    let node = RawNode::start(&issued, 100, |n| if n % 2 == 1 { Act::Reject } else { Act::Respond("ok") });
    let gateway = front(&[node.port], trusting(&root, json!(["h3"])), json!({}));
    assert_eq!(get(&gateway, "/").status(), 200);
    assert_eq!(post(&gateway, b"once").text(), "ok");
    assert_eq!(get(&gateway, "/").text(), "ok");
    // One that was reset may have been processed: another method than GET is not repeated.
    let node = RawNode::start(&issued, 100, |n| if n == 0 { Act::Respond("ok") } else { Act::Reset });
    let gateway = front(&[node.port], trusting(&root, json!(["h3"])), json!({}));
    assert_eq!(get(&gateway, "/").status(), 200);
    assert_eq!(post(&gateway, b"once").status(), 502);
    assert_eq!(node.requests.load(Ordering::SeqCst), 2);
}

#[test]
fn a_node_that_leaves_gets_no_new_requests() {
    let root = Authority::new("Root");
    let node = RawNode::start(&root.issue(NAME), 100, |n| match n {
        0 => Act::Respond("first"),
        1 => Act::Leave,
        _ => Act::Respond("again"),
    });
    let gateway = front(&[node.port], trusting(&root, json!(["h3"])), json!({}));
    assert_eq!(get(&gateway, "/").text(), "first");
    // The excluded request goes to another connection, whatever its method.
    assert_eq!(post(&gateway, b"body").text(), "again");
    assert_eq!(get(&gateway, "/").text(), "again");
    assert_eq!(node.connections.load(Ordering::SeqCst), 2);
}

#[test]
fn trailers_early_responses_and_cuts() {
    let root = Authority::new("Root");
    let issued = root.issue(NAME);
    let node = RawNode::start(&issued, 100, |n| match n {
        0 => Act::Trailer,
        1 => Act::Early,
        _ => Act::Cut,
    });
    let gateway = front(&[node.port], trusting(&root, json!(["h3"])), json!({}));
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send("GET / HTTP/1.1\r\nHost: h\r\nTE: trailers\r\n\r\n").unwrap();
    let answer = client.read_response("GET").unwrap();
    assert_eq!(answer.text(), "hi");
    assert!(answer.trailers.iter().any(|(name, value)| name == "x-end" && value == "yes"), "{answer:?}");
    // The client sends only a part of its body, and has its response.
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\npart").unwrap();
    assert_eq!(client.read_response("POST").unwrap().text(), "early");
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    let all = String::from_utf8_lossy(&client.read_to_close().unwrap()).into_owned();
    assert!(!all.ends_with("0\r\n\r\n"), "the response must not look complete: {all}");
}

#[test]
fn a_node_that_vanishes_is_noticed_at_once() {
    let root = Authority::new("Root");
    let issued = root.issue(NAME);
    let gone = RawNode::start(&issued, 100, |n| if n == 0 { Act::Respond("first") } else { Act::Vanish });
    let http3 = json!({ "silence_timeout_ms": 3_000, "handshake_timeout_ms": 3_000 });
    let gateway = front(&[gone.port], trusting(&root, json!(["h3"])), json!({ "http3": http3 }));
    assert_eq!(get(&gateway, "/").text(), "first");
    // The read timeout is a minute; the handshake of the second connection fails in its time.
    assert_eq!(get(&gateway, "/").status(), 504);
    assert_eq!(gateway.counter("sigma_upstream_quic_failures_total"), 1);
}

#[test]
fn a_node_that_thinks_for_long_keeps_its_connection() {
    let root = Authority::new("Root");
    let node = RawNode::start(&root.issue(NAME), 100, |_| Act::Hang);
    let upstream = json!({
        "scheme": "https", "nodes": { format!("127.0.0.1:{}", node.port): 1 }, "pass_host": "rewrite",
        "upstream_host": NAME, "tls": trusting(&root, json!(["h3"])),
        "timeout": { "connect": 20, "send": 20, "read": 5 },
    });
    let routes = json!([{ "id": "all", "uri": "/*", "upstream": upstream }]);
    let http3 = json!({ "silence_timeout_ms": 2_500, "handshake_timeout_ms": 20_000 });
    let gateway = front(&[], json!({}), json!({ "routes": routes, "http3": http3 }));
    // Twice the time of silence: its acknowledgements show that it is alive, and the read timeout ends the wait.
    assert_eq!(get(&gateway, "/").status(), 504);
    assert_eq!(get(&gateway, "/").status(), 504);
    assert_eq!(node.connections.load(Ordering::SeqCst), 1);
}

#[test]
fn requests_beyond_the_nodes_limit_wait_or_get_another_connection() {
    let root = Authority::new("Root");
    let node = RawNode::start(&root.issue(NAME), 1, |_| Act::Respond("ok"));
    let upstream = json!({
        "scheme": "https", "nodes": { format!("127.0.0.1:{}", node.port): 1 }, "pass_host": "rewrite",
        "upstream_host": NAME, "tls": trusting(&root, json!(["h3"])), "keepalive_pool": { "size": 2 },
    });
    let routes = json!([{ "id": "all", "uri": "/*", "upstream": upstream }]);
    let gateway = front(&[], json!({}), json!({ "routes": routes }));
    let mut clients: Vec<Peer> =
        (0..20).map(|_| gateway.connect().unwrap().with_deadline(PATIENCE)).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    }
    for client in &mut clients {
        assert_eq!(client.read_response("GET").unwrap().text(), "ok");
    }
    assert!(node.connections.load(Ordering::SeqCst) <= 2);
}

#[test]
fn announcements_are_followed_where_they_count() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let node = node(&root.issue(NAME), true, &origin, json!({}));
    let mut tls = trusting(&root, json!(["h2", "http/1.1"]));
    let gateway = front(&[port_of(&node)], tls.clone(), json!({}));
    for _ in 0..5 {
        assert_eq!(
            got(&get(&gateway, "/"), "x-protocol").as_deref(),
            Some("HTTP/2.0"),
            "it is off by default"
        );
    }
    tls["alt_svc"] = true.into();
    let gateway = front(&[port_of(&node)], tls, json!({}));
    assert_eq!(got(&get(&gateway, "/"), "x-protocol").as_deref(), Some("HTTP/2.0"));
    let is_over_quic = || got(&get(&gateway, "/"), "x-protocol").as_deref() == Some("HTTP/3.0");
    assert!(until(PATIENCE, is_over_quic), "{}", gateway.stderr());
    assert!(is_over_quic());
}

#[test]
fn slow_clients_do_not_stop_other_responses() {
    let root = Authority::new("Root");
    let origin = Origin::answer(|request| {
        let bytes = if request.head.request_line().unwrap().1 == "/large" { 2_000_000 } else { 10 };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
        [head.into_bytes(), vec![b'x'; bytes]].concat()
    });
    let origin = origin.unwrap();
    let node = node(&root.issue(NAME), true, &origin, json!({}));
    let gateway = front(&[port_of(&node)], trusting(&root, json!(["h3"])), json!({}));
    let mut slow: Vec<Peer> = (0..30).map(|_| gateway.connect().unwrap().with_deadline(PATIENCE)).collect();
    for client in &mut slow {
        client.send("GET /large HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        // Its response has begun, and is not read any further.
        assert_eq!(client.read_head().unwrap().status().unwrap(), 200);
    }
    for _ in 0..5 {
        assert_eq!(get(&gateway, "/small").text().len(), 10);
    }
    assert_eq!(gateway.counter("sigma_upstream_quic_connects_total"), 1);
    for client in &mut slow {
        assert_eq!(client.read_exactly(2_000_000).unwrap().len(), 2_000_000);
    }
}

#[test]
fn a_reload_changes_the_protocol() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let node = node(&root.issue(NAME), true, &origin, json!({}));
    let config = |alpn: Value| {
        json!({
            "workers": 1,
            "listeners": [{ "address": "{listen}" }],
            "routes": [{ "id": "all", "uri": "/*", "upstream": {
                "scheme": "https", "nodes": { format!("127.0.0.1:{}", port_of(&node)): 1 },
                "pass_host": "rewrite", "upstream_host": NAME, "tls": trusting(&root, alpn),
            } }],
        })
        .to_string()
    };
    let gateway = Gateway::start(SIGMA, &config(json!(["http/1.1"]))).unwrap();
    let protocol = || got(&get(&gateway, "/"), "x-protocol").unwrap();
    assert_eq!(protocol(), "HTTP/1.1");
    for (alpn, expected) in [(json!(["h3", "h2"]), "HTTP/3.0"), (json!(["h2"]), "HTTP/2.0")] {
        gateway.rewrite(&config(alpn)).unwrap();
        gateway.reload().unwrap();
        assert!(until(PATIENCE, || protocol() == expected), "{expected}: {}", gateway.stderr());
    }
}
