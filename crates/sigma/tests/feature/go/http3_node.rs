//! A node with quic-go's HTTP/3.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Message, until};

use super::Running;
use crate::servers::server;
use crate::tls::Authority;
use crate::{PATIENCE, SIGMA};

const NAME: &str = "node.test";

/// Starts a node; its TCP port has HTTP/2 and HTTP/1.1.
fn node(root: &Authority, dir: &std::path::Path) -> (Running, u16) {
    let files = root.issue(NAME).files(dir, "node");
    let path = |kind: &str| files[kind].as_str().unwrap().to_owned();
    let mut command = Command::new(server("http3-node", ""));
    command.args(["-cert", &path("cert"), "-key", &path("key")]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Running(child), line.trim().parse().unwrap())
}

fn front(port: u16, root: &Authority, tls: Value) -> Gateway {
    let mut whole = json!({ "verify": true, "ca": root.pem });
    whole.as_object_mut().unwrap().extend(tls.as_object().unwrap().clone());
    let config = json!({
        "workers": 1,
        "listeners": [{ "address": "{listen}" }],
        "routes": [{ "id": "all", "uri": "/*", "upstream": {
            "scheme": "https", "nodes": { format!("127.0.0.1:{port}"): 1 }, "pass_host": "rewrite",
            "upstream_host": NAME, "tls": whole,
        } }],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn get(gateway: &Gateway, path: &str) -> Message {
    gateway.connect().unwrap().with_deadline(PATIENCE).get(path).unwrap()
}

#[test]
fn quic_go_is_a_node_over_http3() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let (_node, port) = node(&root, dir.path());
    let gateway = front(port, &root, json!({ "alpn": ["h3"] }));
    for _ in 0..20 {
        assert_eq!(get(&gateway, "/proto").text(), "HTTP/3.0");
    }
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    let body = vec![b'x'; 5_000_000];
    client.send(format!("POST /sum HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len())).unwrap();
    client.send(&body).unwrap();
    let answer = client.read_response("POST").unwrap();
    assert!(answer.text().starts_with("5000000 "), "{}", answer.text());
    let answer = get(&gateway, "/bytes?count=5000000");
    assert!(answer.body.len() == 5_000_000 && answer.body.iter().all(|byte| *byte == b'x'));
    client.send("GET /trailers HTTP/1.1\r\nHost: h\r\nTE: trailers\r\n\r\n").unwrap();
    let answer = client.read_response("GET").unwrap();
    assert!(answer.trailers.iter().any(|(name, value)| name == "x-end" && value == "yes"), "{answer:?}");
    client.send("HEAD /bytes?count=7 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert_eq!(client.read_response("HEAD").unwrap().head.get("content-length"), Some("7"));
    // The client sends a part of its body only, and has its response.
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send("POST /early HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\npart").unwrap();
    let answer = client.read_response("POST").unwrap();
    assert_eq!((answer.status(), &*answer.text()), (403, "early"));
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send("GET /abort HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    let all = String::from_utf8_lossy(&client.read_to_close().unwrap()).into_owned();
    assert!(!all.ends_with("0\r\n\r\n"), "the response must not look complete: {all}");
    // Many at a time on one connection.
    let mut clients: Vec<_> = (0..50).map(|_| gateway.connect().unwrap().with_deadline(PATIENCE)).collect();
    for client in &mut clients {
        client.send("GET /bytes?count=100000 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    }
    for client in &mut clients {
        assert_eq!(client.read_response("GET").unwrap().body.len(), 100_000);
    }
}

#[test]
fn quic_go_announces_http3() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let (_node, port) = node(&root, dir.path());
    let gateway = front(port, &root, json!({ "alpn": ["h2"], "alt_svc": true }));
    assert_eq!(get(&gateway, "/proto").text(), "HTTP/2.0");
    assert!(until(PATIENCE, || get(&gateway, "/proto").text() == "HTTP/3.0"), "{}", gateway.stderr());
}

#[test]
fn a_node_that_is_killed_and_comes_back() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let (node, port) = node(&root, dir.path());
    let gateway = front(port, &root, json!({ "alpn": ["h3", "h2"] }));
    assert_eq!(get(&gateway, "/proto").text(), "HTTP/3.0");
    drop(node);
    // The silence is noticed within seconds, and TCP is refused.
    assert_eq!(get(&gateway, "/proto").status(), 502);
}
