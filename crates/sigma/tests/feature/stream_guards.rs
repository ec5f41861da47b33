//! Guards of sessions: a queue for datagrams, and client certificates that are trusted no longer. Other guards are in the
//! simulation of `sigma-control`.

use std::net::UdpSocket;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client_certificates::{authority, client, list};
use crate::streams::{config, parrot, upstream};
use crate::tls::{Authority, run, shake};
use crate::{PATIENCE, SIGMA};

/// As many sessions are open.
fn has_open(gateway: &Gateway, count: u64) -> bool {
    until(PATIENCE, || gateway.counter("sigma_stream_sessions_active") == count)
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
