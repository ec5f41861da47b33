//! Early data over TCP (0-RTT): served once, marked for nodes, and refused where it is not safe. The client is
//! OpenSSL.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;
use sigma_testkit::{Gateway, Message, Origin};

use crate::docs::{paste, text_of};
use crate::tls::{Authority, config, to_origin};
use crate::{PATIENCE, SIGMA};

/// An origin that notes the target of each request and its field `Early-Data`.
fn noting(seen: &Arc<Mutex<Vec<String>>>) -> Origin {
    let seen = Arc::clone(seen);
    Origin::answer(move |request: &Message| {
        let (method, target) = request.head.request_line().unwrap();
        let early: Vec<&str> = request.head.all("early-data").collect();
        let early = if early.is_empty() { "-".to_owned() } else { early.join(", ") };
        seen.lock().unwrap().push(format!("{method} {target} {early}"));
        let status = if target == "/too-early" { "425 Too Early" } else { "200 OK" };
        format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok").into_bytes()
    })
    .unwrap()
}

/// Runs `openssl s_client` with a request after the handshake; returns its output.
fn openssl(dir: &Path, port: u16, request: &str, options: &str) -> String {
    let command = format!(
        "printf '{request}' | openssl s_client -connect 127.0.0.1:{port} -servername a.test -tls1_3 -ign_eof {options}"
    );
    text_of(&paste(dir, &command, &[]))
}

const LAST: &str = "GET /last HTTP/1.1\\r\\nHost: a.test\\r\\nConnection: close\\r\\n\\r\\n";

/// Sends a request as early data, in the session of a visit before.
fn early(dir: &Path, gateway: &Gateway, through: u16, request: &str) -> String {
    let port = gateway.address().port().unwrap();
    openssl(dir, port, LAST, "-sess_out session.pem");
    std::fs::write(dir.join("early"), request).unwrap();
    openssl(dir, through, LAST, "-sess_in session.pem -early_data early")
}

/// A relay that records the bytes of its one client.
fn recorder(target: u16) -> (u16, std::thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let recorded = std::thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect(("127.0.0.1", target)).unwrap();
        let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        let back = std::thread::spawn(move || {
            let _ = std::io::copy(&mut back_from, &mut back_to);
            let _ = back_to.shutdown(Shutdown::Write);
        });
        let (mut sent, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = near.read(&mut piece) {
            sent.extend_from_slice(&piece[..n]);
            if far.write_all(&piece[..n]).is_err() {
                break;
            }
        }
        let _ = far.shutdown(Shutdown::Write);
        back.join().unwrap();
        sent
    });
    (port, recorded)
}

fn gateway(root: &Authority, dir: &Path, origin: &Origin) -> Gateway {
    let tls = json!({ "certificates": [root.issue("a.test").files(dir, "own")], "early_data_bytes": 16_384 });
    let routes = json!([
        { "id": "all", "uri": "/*", "upstream": to_origin(origin),
          "retry_policy": { "retry_on": ["5xx"], "retriable_status_codes": [425] } },
        { "id": "refusing", "uri": "/refused", "vars": [["http_early_data", "==", "1"]],
          "plugins": { "respond": { "status": 425 } } },
    ]);
    Gateway::start(SIGMA, &config(tls, to_origin(origin), json!({ "routes": routes }))).unwrap()
}

#[test]
fn recorded_early_data_is_served_once() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let seen = Arc::default();
    let origin = noting(&seen);
    let gateway = gateway(&root, dir.path(), &origin);
    let port = gateway.address().port().unwrap();
    let (through, recorded) = recorder(port);
    let output =
        early(dir.path(), &gateway, through, "GET /early HTTP/1.1\r\nHost: a.test\r\nEarly-Data: 1\r\n\r\n");
    assert!(output.contains("Early data was accepted"), "{output}");
    let recorded = recorded.join().unwrap();
    // Both workers get it some times.
    for _ in 0..8 {
        let mut attacker = TcpStream::connect(("127.0.0.1", port)).unwrap();
        attacker.set_read_timeout(Some(PATIENCE)).unwrap();
        attacker.write_all(&recorded).unwrap();
        attacker.shutdown(Shutdown::Write).unwrap();
        // The gateway ends the handshake, which fails.
        let _ = attacker.read_to_end(&mut Vec::new());
    }
    openssl(dir.path(), port, LAST, "");
    let seen = seen.lock().unwrap();
    let early: Vec<_> = seen.iter().filter(|one| one.contains("/early")).collect();
    assert_eq!(early, ["GET /early 1"], "{seen:?}");
    assert!(seen.iter().filter(|one| one.contains("/last")).all(|one| one == "GET /last -"), "{seen:?}");
}

#[test]
fn unsafe_requests_wait_for_the_handshake() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let seen = Arc::default();
    let origin = noting(&seen);
    let gateway = gateway(&root, dir.path(), &origin);
    let port = gateway.address().port().unwrap();
    let post = "POST /post HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc";
    let output = early(dir.path(), &gateway, port, post);
    assert!(output.contains("Early data was accepted"), "{output}");
    assert!(seen.lock().unwrap().contains(&"POST /post -".to_owned()), "{seen:?}");
}

#[test]
fn routes_and_nodes_refuse_early_requests() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let seen = Arc::default();
    let origin = noting(&seen);
    let gateway = gateway(&root, dir.path(), &origin);
    let port = gateway.address().port().unwrap();
    let refused = early(dir.path(), &gateway, port, "GET /refused HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(refused.contains("HTTP/1.1 425 Too Early"), "{refused}");
    // The node's 425 is the client's; the retry policy does not matter.
    let refused = early(dir.path(), &gateway, port, "GET /too-early HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(refused.contains("HTTP/1.1 425 Too Early"), "{refused}");
    let seen = seen.lock().unwrap();
    let asked: Vec<_> = seen.iter().filter(|one| one.contains("early") || one.contains("refused")).collect();
    assert_eq!(asked, ["GET /too-early 1"], "{seen:?}");
}

#[test]
fn early_data_is_off_by_default() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let seen = Arc::default();
    let origin = noting(&seen);
    let tls = json!({ "certificates": [root.issue("a.test").files(dir.path(), "own")] });
    let gateway = Gateway::start(SIGMA, &config(tls, to_origin(&origin), json!({}))).unwrap();
    let port = gateway.address().port().unwrap();
    let output = early(dir.path(), &gateway, port, "GET /early HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(!output.contains("Early data was accepted"), "{output}");
    assert!(!seen.lock().unwrap().iter().any(|one| one.contains("/early")), "{seen:?}");
}
