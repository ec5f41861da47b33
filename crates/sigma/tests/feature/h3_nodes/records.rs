//! HTTP/3 that the names of nodes announce by HTTPS records.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Value, json};
use sigma_testkit::{Dns, Gateway, HttpsRecord, Message, Origin, RecordKind, until};

use super::raw::{Act, RawNode};
use super::{NAME, PATIENCE, SIGMA, get, got, hasty, node, port_of, trusting};
use crate::tls::Authority;

const H3: (u16, &[u8]) = (1, b"\x02h3");

/// A name server that knows `NAME`, which is this machine.
fn name_server() -> Dns {
    let dns = Dns::start().unwrap();
    dns.set_addresses(NAME, &[IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    dns
}

/// Sets the records for a TCP port of `NAME`: another UDP port, and further parameters.
fn announce(dns: &Dns, tcp: u16, udp: u16, further: &[(u16, &[u8])]) {
    let port = udp.to_be_bytes();
    let params = [&[H3, (3, &port)], further].concat();
    let record = HttpsRecord { priority: 1, target: NAME, params: &params };
    dns.set_https(&format!("_{tcp}._https.{NAME}"), &[record]);
}

/// A gateway whose only route leads to a port of `NAME`.
fn front(dns: &Dns, port: u16, tls: Value) -> Gateway {
    let config = json!({
        "workers": 1,
        "listeners": [{ "address": "{listen}" }],
        "status": { "address": "{status}" },
        "dns": { "servers": [dns.address().to_string()], "ttl_max_s": 1 },
        "http3": hasty(),
        "routes": [{ "id": "all", "uri": "/*", "upstream": {
            "scheme": "https", "nodes": { format!("{NAME}:{port}"): 1 }, "pass_host": "node", "tls": tls,
        } }],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn is_over_tcp(answer: &Message) -> bool {
    answer.status() == 200 && got(answer, "x-protocol").as_deref() == Some("HTTP/2.0")
}

#[test]
fn records_lead_to_the_announced_port() {
    let (root, origin, dns) = (Authority::new("Root"), Origin::echo("a").unwrap(), name_server());
    let issued = root.issue(NAME);
    let (over_tcp, quic) =
        (node(&issued, false, &origin, json!({})), RawNode::start(&issued, 100, |_| Act::Respond("quic")));
    let port = port_of(&over_tcp);
    announce(&dns, port, quic.port, &[]);
    let mut tls = trusting(&root, json!(["h2", "http/1.1"]));
    let gateway = front(&dns, port, tls.clone());
    for _ in 0..5 {
        assert!(is_over_tcp(&get(&gateway, "/")), "records are not followed by default");
    }
    tls["https_records"] = true.into();
    let gateway = front(&dns, port, tls.clone());
    assert!(until(PATIENCE, || get(&gateway, "/").text() == "quic"), "{}", gateway.stderr());
    // A name server without a response keeps no request waiting.
    dns.silence(&[RecordKind::Https]);
    let gateway = front(&dns, port, tls);
    assert!(is_over_tcp(&get(&gateway, "/")));
    dns.silence(&[]);
    assert!(until(PATIENCE, || get(&gateway, "/").text() == "quic"), "{}", gateway.stderr());
}

/// The certificate decides, as over TCP: who can forge a record gets no request.
#[test]
fn records_cannot_lead_to_another_server() {
    let (root, other, origin, dns) =
        (Authority::new("Root"), Authority::new("Other"), Origin::echo("a").unwrap(), name_server());
    let (over_tcp, forged) = (
        node(&root.issue(NAME), false, &origin, json!({})),
        RawNode::start(&other.issue(NAME), 100, |_| Act::Respond("forged")),
    );
    let port = port_of(&over_tcp);
    announce(&dns, port, forged.port, &[]);
    let mut tls = trusting(&root, json!(["h2", "http/1.1"]));
    tls["https_records"] = true.into();
    let gateway = front(&dns, port, tls);
    let failed = || {
        assert!(is_over_tcp(&get(&gateway, "/")), "{}", gateway.stderr());
        gateway.counter("sigma_upstream_quic_failures_total") > 0
    };
    assert!(until(PATIENCE, failed), "{}", gateway.stderr());
    assert_eq!(forged.requests.load(std::sync::atomic::Ordering::SeqCst), 0);
}

/// A record that the gateway must not use leaves the node on TCP.
#[test]
fn records_with_unknown_demands_do_not_count() {
    let (root, origin, dns) = (Authority::new("Root"), Origin::echo("a").unwrap(), name_server());
    let issued = root.issue(NAME);
    let (over_tcp, quic) =
        (node(&issued, false, &origin, json!({})), RawNode::start(&issued, 100, |_| Act::Respond("quic")));
    let port = port_of(&over_tcp);
    let params: [(u16, &[u8]); 4] = [(0, &[0x02, 0x9a]), H3, (3, &quic.port.to_be_bytes()), (0x029a, b"x")];
    let record = HttpsRecord { priority: 1, target: NAME, params: &params };
    dns.set_https(&format!("_{port}._https.{NAME}"), &[record]);
    let mut tls = trusting(&root, json!(["h2", "http/1.1"]));
    tls["https_records"] = true.into();
    let gateway = front(&dns, port, tls);
    let asked = dns.asked();
    // Two further rounds of queries.
    assert!(until(PATIENCE, || {
        assert!(is_over_tcp(&get(&gateway, "/")));
        dns.asked() >= asked + 8
    }));
    assert_eq!(quic.connections.load(std::sync::atomic::Ordering::SeqCst), 0);
}
