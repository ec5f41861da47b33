//! The way of PostgreSQL to TLS: a request in cleartext before the handshake, of clients and towards nodes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::json;
use sigma_net::Stream;
use sigma_net::tls::{AcceptOptions, ClientSettings, ClientTls, Handshakes, accept};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::gateway::Gateway;
use super::super::peers::Node;
use super::super::streams::{config, parrot, upstream};
use super::super::{Simulation, example};
use super::{Authority, Issued, shake};

const SSL_REQUEST: &[u8] = &[0, 0, 0, 8, 0x04, 0xD2, 0x16, 0x2F];
const GSSENC_REQUEST: &[u8] = &[0, 0, 0, 8, 0x04, 0xD2, 0x16, 0x30];
const CANCEL_REQUEST: &[u8] = &[0, 0, 0, 16, 0x04, 0xD2, 0x16, 0x2E, 0, 0, 0, 1, 0, 0, 0, 2];
const STARTUP: &[u8] = b"\0\0\0\x17\0\x03\0\0user\0postgres\0\0";

/// A new connection to the gateway, over which each piece is sent and then as many bytes are read.
async fn begun(gateway: &Gateway, pieces: &[(&[u8], &[u8])]) -> Stream {
    let mut stream = gateway.dial();
    for (sent, expected) in pieces {
        stream.write_all(sent).await.unwrap();
        let mut got = vec![0; expected.len()];
        stream.read_exact(&mut got).await.unwrap();
        assert_eq!(got, *expected, "after {sent:?}");
    }
    stream
}

/// All that comes until the gateway ends the connection.
async fn rest(mut stream: Stream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end as well: bytes of the client may be unread.
    let _ = stream.read_to_end(&mut rest).await;
    rest
}

/// The first line of a node over TLS.
async fn greeting(stream: &mut Stream) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        match stream.read_u8().await {
            Ok(byte) => line.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

fn offering(root: &Authority, alpn: &[&str]) -> ClientTls {
    let alpn = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    ClientTls::new(ClientSettings { trust: root.trust(), alpn, ..ClientSettings::default() }).unwrap()
}

#[test]
fn a_request_for_tls_is_answered_and_the_name_finds_the_route() {
    example(|simulation| {
        let root = Authority::new("Root");
        let (one, two) = (parrot(simulation, "one"), parrot(simulation, "two"));
        let rest = json!({
            "ssls": [root.issue("*.db.test").ssl(json!({ "id": "db", "sni": "*.db.test" }))],
            "stream_routes": [
                { "sni": "one.db.test", "upstream": upstream(&[one.address]) },
                { "sni": "two.db.test", "upstream": upstream(&[two.address]) },
            ],
        });
        let gateway = simulation.gateway(config(json!({ "stream": "tls" }), rest));
        simulation.run(async {
            let openings: [&[(&[u8], &[u8])]; 5] = [
                // TLS from the first byte.
                &[],
                &[(SSL_REQUEST, b"S")],
                &[(&SSL_REQUEST[..1], b""), (&SSL_REQUEST[1..6], b""), (&SSL_REQUEST[6..], b"S")],
                &[(GSSENC_REQUEST, b"N"), (SSL_REQUEST, b"S")],
                &[(GSSENC_REQUEST, b"N")],
            ];
            for opening in openings {
                for (name, node) in [("one.db.test", "one"), ("two.db.test", "two")] {
                    let stream = begun(&gateway, opening).await;
                    let mut stream = offering(&root, &[]).shake(stream, name).await.unwrap();
                    assert_eq!(greeting(&mut stream).await, node, "{opening:?}");
                    assert_eq!(stream.tls().unwrap().alpn, None);
                }
            }
            // PostgreSQL 17 ends a session that begins with TLS and agrees on nothing.
            for opening in [&[][..], &[(SSL_REQUEST, &b"S"[..])]] {
                let stream = begun(&gateway, opening).await;
                let stream = offering(&root, &["postgresql"]).shake(stream, "one.db.test").await.unwrap();
                assert_eq!(stream.tls().unwrap().alpn.as_deref(), Some(&b"postgresql"[..]));
            }
            let other = offering(&root, &["other"]).shake(begun(&gateway, &[]).await, "one.db.test").await;
            assert_eq!(other.unwrap().tls().unwrap().alpn, None);
        });
    });
}

#[test]
fn bytes_in_cleartext_are_refused() {
    example(|simulation| {
        let (root, node) = (Authority::new("Root"), parrot(simulation, "one"));
        let whole = json!({
            "ssls": [root.issue("db.test").ssl(json!({ "id": "db", "sni": "db.test" }))],
            "stream_routes": [{ "upstream": upstream(&[node.address]) }],
        });
        let gateway = simulation.gateway(config(json!({ "stream": "tls" }), whole));
        let stuffed = |request: &[u8], more: &[u8]| [request, more].concat();
        simulation.run(async {
            // Bytes behind a request, as an attacker between client and gateway would add them.
            for bytes in [
                stuffed(SSL_REQUEST, b"Q"),
                stuffed(SSL_REQUEST, STARTUP),
                stuffed(SSL_REQUEST, &[22, 3, 1, 2, 0]),
                stuffed(GSSENC_REQUEST, SSL_REQUEST),
            ] {
                let answer = rest(begun(&gateway, &[(&bytes, b"")]).await).await;
                assert!(answer.is_empty(), "{bytes:?} {answer:?}");
            }
            // Cleartext behind the response, and requests without an end.
            let answer = rest(begun(&gateway, &[(SSL_REQUEST, b"S"), (STARTUP, b"")]).await).await;
            assert!(!answer.windows(3).any(|part| part == b"one"), "{answer:?}");
            let answer = rest(begun(&gateway, &[(SSL_REQUEST, b"S"), (SSL_REQUEST, b"")]).await).await;
            assert!(!answer.starts_with(b"S"), "{answer:?}");
            let twice: &[(&[u8], &[u8])] = &[(GSSENC_REQUEST, b"N"), (GSSENC_REQUEST, b"")];
            assert_eq!(rest(begun(&gateway, twice).await).await, b"");
            // A client without TLS gets an error with the remedy.
            for bytes in [STARTUP, CANCEL_REQUEST] {
                let answer = rest(begun(&gateway, &[(bytes, b"E")]).await).await;
                assert!(String::from_utf8_lossy(&answer).contains("sslmode=require"), "{answer:?}");
            }
        });
        let counted = || gateway.counter("sigma_refusals_total{kind=\"cleartext_on_tls_listener\"}") == 9;
        assert!(simulation.until(counted), "{}", gateway.log());
        let log = gateway.log();
        assert!(log.contains("reason=\"cleartext_on_tls_listener\""), "{log}");
        assert!(log.contains("extra bytes after PostgreSQL"), "{log}");
        assert_eq!(node.connections(), 0);
    });
}

#[test]
fn a_client_that_stalls_has_the_time_of_the_handshake() {
    example(|simulation| {
        let node = parrot(simulation, "one");
        let rest_of = json!({ "stream_routes": [{ "upstream": upstream(&[node.address]) }] });
        let listener = json!({ "stream": "tls", "tls": { "handshake_timeout_ms": 300 } });
        let gateway = simulation.gateway(config(listener, rest_of));
        simulation.run(async {
            let openings: [&[(&[u8], &[u8])]; 3] =
                [&[(&SSL_REQUEST[..5], b"")], &[(SSL_REQUEST, b"S")], &[(GSSENC_REQUEST, b"N")]];
            for opening in openings {
                assert_eq!(rest(begun(&gateway, opening).await).await, b"");
            }
        });
        assert!(simulation.until(|| gateway.counter("sigma_tls_handshake_failures_total") == 3));
        assert_eq!(node.connections(), 0);
    });
}

#[test]
fn client_certificates_are_asked_for_behind_a_request() {
    example(|simulation| {
        let (root, clients) = (Authority::new("Root"), Authority::new("Clients"));
        let node = parrot(simulation, "one");
        let client = json!({ "ca": clients.pem, "depth": 1 });
        let rest = json!({
            "ssls": [root.issue("db.test").ssl(json!({ "id": "db", "sni": "db.test", "client": client }))],
            "stream_routes": [{ "sni": "db.test", "upstream": upstream(&[node.address]) }],
        });
        let gateway = simulation.gateway(config(json!({ "stream": "tls" }), rest));
        simulation.run(async {
            let greeted = async |own: Option<&Issued>| {
                let stream = begun(&gateway, &[(SSL_REQUEST, b"S")]).await;
                match root.client(own).shake(stream, "db.test").await {
                    Ok(mut stream) => greeting(&mut stream).await,
                    Err(_) => String::new(),
                }
            };
            assert_eq!(greeted(Some(&clients.issue("me"))).await, "one");
            assert_eq!(greeted(None).await, "");
            assert_eq!(greeted(Some(&root.issue("me"))).await, "");
        });
    });
}

/// A node of PostgreSQL with TLS, which greets its clients, and the requests before TLS.
fn database(simulation: &Simulation, issued: &Issued) -> (Node, Rc<RefCell<Vec<Vec<u8>>>>) {
    let (identity, seen) = (issued.identity(None), Rc::new(RefCell::new(Vec::new())));
    let noted = Rc::clone(&seen);
    let node = simulation.serve(move |client| {
        let (identity, noted) = (Arc::clone(&identity), Rc::clone(&noted));
        async move {
            let mut socket = client.into_stream();
            let mut first = [0];
            if socket.read_exact(&mut first).await.is_err() {
                return;
            }
            let mut early = first.to_vec();
            if first == [0] {
                let mut request = [0; 7];
                socket.read_exact(&mut request).await.unwrap();
                noted.borrow_mut().push([&first[..], &request].concat());
                socket.write_all(b"S").await.unwrap();
                early.clear();
            } else {
                noted.borrow_mut().push(Vec::new());
            }
            let (turns, options) = (Handshakes::new(8), AcceptOptions::default());
            let choose = |_: Option<&str>| Some(identity);
            let Ok(mut stream) = accept(socket, &early, &options, &turns, choose).await else { return };
            let _ = stream.write_all(b"database\r\n").await;
            let _ = stream.flush().await;
            let _ = stream.read_u8().await;
        }
    });
    (node, seen)
}

#[test]
fn a_node_is_asked_for_tls_by_the_gateway() {
    example(|simulation| {
        let (root, nodes, dir) =
            (Authority::new("Root"), Authority::new("Nodes"), tempfile::tempdir().unwrap());
        let (node, seen) = database(simulation, &nodes.issue("db.own.test"));
        let tls = json!({ "starttls": "postgres", "verify": true, "ca": nodes.pem });
        let mut to = upstream(&[node.address]);
        (to["scheme"], to["tls"]) = ("tls".into(), tls);
        let mut distrusted = to.clone();
        distrusted["tls"]["ca"] = root.pem.as_str().into();
        let pair = root.issue("*.own.test").files(dir.path(), "own");
        let rest = json!({ "stream_routes": [
            { "sni": "db.own.test", "upstream": to },
            { "sni": "distrusted.own.test", "upstream": distrusted },
        ] });
        let listener = json!({ "stream": "tls", "tls": { "certificates": [pair] } });
        let gateway = simulation.gateway(config(listener, rest));
        simulation.run(async {
            let client = root.client(None);
            for opening in [&[][..], &[(SSL_REQUEST, &b"S"[..])]] {
                let mut stream = client.shake(begun(&gateway, opening).await, "db.own.test").await.unwrap();
                assert_eq!(greeting(&mut stream).await, "database");
            }
            let mut stream = shake(&gateway, &client, "distrusted.own.test").await.unwrap();
            assert_eq!(greeting(&mut stream).await, "");
        });
        assert_eq!(*seen.borrow(), [SSL_REQUEST; 3]);
    });
}

/// A node that responds with these bytes to a request, and all bytes that it got after it.
fn responding(simulation: &Simulation, response: &'static [u8]) -> (Node, Rc<RefCell<Vec<u8>>>) {
    let after = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&after);
    let node = simulation.serve(move |mut client| {
        let noted = Rc::clone(&noted);
        async move {
            assert_eq!(client.exactly(8).await, SSL_REQUEST);
            let _ = client.send(response).await;
            let more = client.rest().await;
            noted.borrow_mut().extend(more);
        }
    });
    (node, after)
}

#[test]
fn a_node_that_declines_tls_gets_no_session() {
    for (response, reason) in [
        (&b"N"[..], "the node does not support TLS: it responded N to PostgreSQL"),
        (b"E\0\0\0\x09S\0\0", "the node did not respond S or N to PostgreSQL"),
        (b"SR\0\0\0\x08\0\0\0\0", "response to PostgreSQL"),
    ] {
        example(move |simulation| {
            let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
            let pair = root.issue("*.own.test").files(dir.path(), "own");
            let listener = json!({ "stream": "tls", "tls": { "certificates": [pair] } });
            let (node, after) = responding(simulation, response);
            let mut to = upstream(&[node.address]);
            (to["scheme"], to["tls"]) = ("tls".into(), json!({ "starttls": "postgres" }));
            let passed = upstream(&[node.address]);
            let rest = json!({ "stream_routes": [
                { "sni": "ends.own.test", "upstream": to },
                { "sni": "passes.own.test", "tls": "passthrough", "upstream": passed },
            ] });
            let gateway = simulation.gateway(config(listener, rest));
            simulation.run(async {
                let client = root.client(None);
                let mut stream = shake(&gateway, &client, "ends.own.test").await.unwrap();
                // The session may have ended already.
                let _ = stream.write_all(b"secret").await;
                let _ = stream.flush().await;
                assert_eq!(greeting(&mut stream).await, "");
                let stream = begun(&gateway, &[(SSL_REQUEST, b"S")]).await;
                assert!(client.shake(stream, "passes.own.test").await.is_err());
            });
            assert!(simulation.until(|| node.connections() >= 2), "{}", gateway.log());
            gateway.await_log(reason);
            assert!(after.borrow().is_empty(), "{:?}", after.borrow());
        });
    }
}

#[test]
fn a_node_that_shakes_hands_itself_gets_the_request_of_its_client() {
    example(|simulation| {
        let nodes = Authority::new("Nodes");
        let (node, seen) = database(simulation, &nodes.issue("db.test"));
        let to = upstream(&[node.address]);
        let rest = json!({ "stream_routes": [{ "sni": "db.test", "tls": "passthrough", "upstream": to }] });
        let gateway = simulation.gateway(config(json!({ "stream": "tls" }), rest));
        simulation.run(async {
            let client = nodes.client(None);
            for opening in [&[(SSL_REQUEST, &b"S"[..])][..], &[]] {
                let mut stream = client.shake(begun(&gateway, opening).await, "db.test").await.unwrap();
                assert_eq!(greeting(&mut stream).await, "database");
            }
        });
        // Clients that begin with TLS are forwarded as they are.
        assert_eq!(*seen.borrow(), [SSL_REQUEST.to_vec(), Vec::new()]);
    });
}
