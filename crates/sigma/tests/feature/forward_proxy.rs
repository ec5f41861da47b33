//! Tunnels to hosts that clients name: CONNECT over HTTP/1.1 and HTTP/2, CONNECT-UDP as capsules.

use std::net::UdpSocket;

use bytes::Bytes;
use serde_json::{Value, json};
use sigma_http::capsule::put_udp;
use sigma_testkit::{Address, Gateway, Origin, Peer, free_port, until};

use crate::h2::{connect_at, request};
use crate::tls::run;
use crate::{PATIENCE, SIGMA};

/// A gateway whose routes open tunnels to these ports of this machine; `more` changes the plugin.
fn gateway(tcp: u16, udp: u16, more: Value) -> Gateway {
    gateway_with_metrics(tcp, udp, more, free_port())
}

fn gateway_with_metrics(tcp: u16, udp: u16, more: Value, metrics: u16) -> Gateway {
    let plugin = |port: u16| {
        let mut conf = json!({ "hosts": ["127.0.0.1", "localhost"], "ports": [port], "allowed_networks": ["127.0.0.0/8"] });
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        conf
    };
    let config = json!({
        "workers": 1,
        "listeners": ["{listen}"],
        "plugin_attr": { "prometheus": { "export_addr": { "port": metrics } } },
        "routes": [
            { "id": "tcp", "uri": "/*", "methods": ["CONNECT"], "upgrade_protocols": ["connect"],
              "plugins": { "forward-proxy": plugin(tcp), "prometheus": {} } },
            { "id": "udp", "uri": "/.well-known/masque/udp/*", "upgrade_protocols": ["connect-udp"],
              "plugins": { "forward-proxy": plugin(udp) } },
            { "id": "guarded", "uri": "/*", "host": "guarded.test", "methods": ["CONNECT"],
              "upgrade_protocols": ["connect"],
              "plugins": { "basic-auth": {}, "forward-proxy": plugin(tcp) } },
            { "id": "plain", "uri": "/*", "host": "plain.test", "methods": ["CONNECT"],
              "plugins": { "forward-proxy": plugin(tcp) } },
        ],
        "consumers": [
            { "username": "foo", "plugins": { "basic-auth": { "username": "foo", "password": "bar" } } },
        ],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn peer(gateway: &Gateway) -> Peer {
    gateway.connect().unwrap().with_deadline(PATIENCE)
}

/// A request for a tunnel; returns the status and the connection.
fn connect(gateway: &Gateway, target: &str, fields: &str) -> (u16, Peer) {
    let mut peer = peer(gateway);
    peer.send(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{fields}\r\n")).unwrap();
    let head = peer.read_head().unwrap();
    (head.status().unwrap(), peer)
}

fn udp_echo() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let echo = socket.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2_000];
        while let Ok((n, from)) = echo.recv_from(&mut buffer) {
            let _ = echo.send_to(&buffer[..n], from);
        }
    });
    socket
}

fn port(socket: &UdpSocket) -> u16 {
    socket.local_addr().unwrap().port()
}

#[test]
fn a_connect_opens_a_tunnel_over_http_1() {
    let origin = Origin::echo("target").unwrap();
    let metrics = free_port();
    let gateway = gateway_with_metrics(origin.port(), 1, json!({}), metrics);
    let (status, mut tunnel) = connect(&gateway, &format!("localhost:{}", origin.port()), "");
    assert_eq!(status, 200);
    let answer = tunnel.ask("GET /through HTTP/1.1\r\nHost: inner\r\n\r\n").unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.text().contains("/through"), "{}", answer.text());
    assert_eq!(origin.connections(), 1);
    // The end of one side is the end of both.
    drop(tunnel);
    assert!(until(PATIENCE, || counter(metrics, "closed") == 1), "{}", gateway.stderr());
    assert_eq!(counter(metrics, "opened"), 1);
}

/// Returns a counter of tunnels.
fn counter(metrics: u16, result: &str) -> u64 {
    let mut peer = Peer::connect(&Address::loopback(metrics)).unwrap().with_deadline(PATIENCE);
    let page = peer.get("/apisix/prometheus/metrics").unwrap().text();
    let line = page.lines().find(|line| {
        line.contains("forward_proxy_tunnels_total") && line.contains(&format!("result=\"{result}\""))
    });
    line.and_then(|line| line.rsplit(' ').next()).map_or(0, |number| number.parse().unwrap())
}

#[test]
fn targets_are_refused_unless_they_are_listed() {
    let origin = Origin::echo("target").unwrap();
    let open = gateway(origin.port(), 1, json!({}));
    let port = origin.port();
    for (target, expected) in [
        (format!("127.0.0.1:{port}"), 200),
        (format!("127.0.0.1:{}", port.wrapping_add(1).max(1)), 403),
        (format!("127.0.0.2:{port}"), 403),
        (format!("other.test:{port}"), 403),
        (format!("plain.test:{port}"), 405),
        ("127.0.0.1".to_owned(), 400),
    ] {
        assert_eq!(connect(&open, &target, "").0, expected, "{target}");
    }
    // Without a setting, this machine and private networks are closed, by name too.
    let closed = gateway(port, 1, json!({ "allowed_networks": ["192.0.2.0/24"] }));
    for target in [format!("127.0.0.1:{port}"), format!("localhost:{port}")] {
        assert_eq!(connect(&closed, &target, "").0, 403, "{target}");
    }
    assert_eq!(origin.connections(), 1);
    // Nothing behind a refusal is a request.
    let (status, mut refused) = connect(&closed, "127.0.0.1:1", "");
    assert_eq!(status, 403);
    refused.read_to_close().unwrap();
}

#[test]
fn a_tunnel_to_the_listener_itself_is_a_loop() {
    let own = free_port();
    let plugin = json!({ "hosts": ["*"], "ports": [own], "allowed_networks": ["127.0.0.0/8"] });
    let config = json!({
        "listeners": ["{listen}", format!("127.0.0.1:{own}")],
        "routes": [
            { "id": "tcp", "uri": "/*", "methods": ["CONNECT"], "upgrade_protocols": ["connect"],
              "plugins": { "forward-proxy": plugin } },
        ],
    });
    let _gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let mut peer = Peer::connect(&Address::loopback(own)).unwrap().with_deadline(PATIENCE);
    peer.send(format!("CONNECT 127.0.0.1:{own} HTTP/1.1\r\nHost: h\r\n\r\n")).unwrap();
    assert_eq!(peer.read_head().unwrap().status().unwrap(), 403);
}

#[test]
fn credentials_are_for_a_proxy() {
    let origin = Origin::echo("target").unwrap();
    let gateway = gateway(origin.port(), 1, json!({ "hosts": ["*"] }));
    let target = format!("guarded.test:{}", origin.port());
    let mut peer = peer(&gateway);
    peer.send(format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nAuthorization: Basic Zm9vOmJhcg==\r\n\r\n"
    ))
    .unwrap();
    let head = peer.read_head().unwrap();
    assert_eq!(head.status().unwrap(), 407);
    assert!(head.get("proxy-authenticate").is_some_and(|value| value.starts_with("Basic")), "{head:?}");
    assert_eq!(head.get("www-authenticate"), None);
    // With them, only the name is unknown.
    let (status, _) = connect(&gateway, &target, "Proxy-Authorization: Basic Zm9vOmJhcg==\r\n");
    assert_eq!(status, 502);
}

#[test]
fn tunnels_and_their_bytes_have_limits() {
    let origin = Origin::echo("target").unwrap();
    let gateway = gateway(origin.port(), 1, json!({ "max_tunnels": 1, "max_bytes": 10_000 }));
    let target = format!("127.0.0.1:{}", origin.port());
    let (status, mut first) = connect(&gateway, &target, "");
    assert_eq!(status, 200);
    assert_eq!(connect(&gateway, &target, "").0, 503);
    first
        .send(format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 20000\r\n\r\n{}", "x".repeat(20_000)))
        .unwrap();
    // The tunnel ends.
    let _ = first.read_to_close();
    assert!(until(PATIENCE, || connect(&gateway, &target, "").0 == 200));
}

#[test]
fn datagrams_pass_as_capsules_over_http_1() {
    let socket = udp_echo();
    let gateway = gateway(1, port(&socket), json!({}));
    let mut peer = peer(&gateway);
    let path = format!("/.well-known/masque/udp/127.0.0.1/{}/", port(&socket));
    peer.send(format!(
        "GET {path} HTTP/1.1\r\nHost: p\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\nCapsule-Protocol: ?1\r\n\r\n"
    ))
    .unwrap();
    let head = peer.read_head().unwrap();
    assert_eq!((head.status().unwrap(), head.get("upgrade")), (101, Some("connect-udp")));
    assert_eq!(head.get("capsule-protocol"), Some("?1"));
    for payload in [&b"one"[..], &[7; 1_200], b""] {
        let mut capsule = Vec::new();
        put_udp(payload, &mut capsule);
        peer.send(&capsule).unwrap();
        assert_eq!(peer.read_exactly(capsule.len()).unwrap(), capsule);
    }
    // A datagram beyond UDP ends the tunnel.
    peer.send([0, 0x80, 0x02, 0, 0]).unwrap();
    peer.expect_closed().unwrap();
}

#[test]
fn tunnels_are_streams_over_http_2() {
    let (origin, socket) = (Origin::echo("target").unwrap(), udp_echo());
    let gateway = gateway(origin.port(), port(&socket), json!({}));
    run(async {
        let (sender, _driver) =
            connect_at(gateway.address().port().unwrap(), h2::client::Builder::new()).await;
        let mut sender = sender.ready().await.unwrap();
        let target = format!("127.0.0.1:{}", origin.port());
        let ask = http::Request::builder().method("CONNECT").uri(&target).body(()).unwrap();
        let (response, mut out) = sender.send_request(ask, false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        out.send_data(Bytes::from_static(b"GET /over-h2 HTTP/1.1\r\nHost: inner\r\n\r\n"), false).unwrap();
        let mut body = response.into_body();
        let mut text = Vec::new();
        // The target keeps its connection open.
        while !String::from_utf8_lossy(&text).contains("/over-h2") {
            let data = body.data().await.unwrap().unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            text.extend_from_slice(&data);
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("/over-h2"), "{text}");
        // A target that is not listed.
        let mut sender = sender.ready().await.unwrap();
        let ask = http::Request::builder().method("CONNECT").uri("127.0.0.1:1").body(()).unwrap();
        let (response, _out) = sender.send_request(ask, false).unwrap();
        assert_eq!(response.await.unwrap().status(), 403);
        let mut sender = sender.ready().await.unwrap();
        crate::h2::until(|| sender.is_extended_connect_protocol_enabled()).await;
        let path = format!("/.well-known/masque/udp/127.0.0.1/{}/", port(&socket));
        let ask = request("CONNECT", &path).extension(h2::ext::Protocol::from_static("connect-udp"));
        let (response, mut out) =
            sender.send_request(ask.header("capsule-protocol", "?1").body(()).unwrap(), false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers().get("capsule-protocol").unwrap(), "?1");
        let mut capsule = Vec::new();
        put_udp(b"over two", &mut capsule);
        out.send_data(capsule.clone().into(), false).unwrap();
        assert_eq!(response.into_body().data().await.unwrap().unwrap(), capsule);
    });
}
