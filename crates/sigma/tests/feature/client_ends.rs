//! Ends of client connections: a listener that goes, and clients that leave.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sigma_testkit::{Address, Gateway, Origin, Peer, until};

use crate::{PATIENCE, SIGMA};

#[test]
fn a_listener_that_goes_takes_its_idle_connections_along() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (wait, asked) = (Mutex::new(wait), Arc::new(AtomicBool::new(false)));
    let is_asked = Arc::clone(&asked);
    let origin = Origin::answer(move |request| {
        if request.head.line.starts_with("GET /slow") {
            asked.store(true, Ordering::SeqCst);
            wait.lock().unwrap().recv().unwrap();
        }
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec()
    })
    .unwrap();
    let config = |more: &str| {
        format!(
            "workers: 1\nlisteners: [{{ address: \"{{listen}}\" }}{more}]\n\
             routes: [{{ id: r, uri: \"/*\", upstream: {{ nodes: {{ \"127.0.0.1:{}\": 1 }} }} }}]\n",
            origin.port()
        )
    };
    let gateway = Gateway::start(SIGMA, &config(", { address: \"unix:{dir}/second\" }")).unwrap();
    let place = Address::Unix(gateway.dir().join("second"));
    let (mut idle, mut busy) = (Peer::connect(&place).unwrap(), Peer::connect(&place).unwrap());
    let mut stays = gateway.connect().unwrap();
    for client in [&mut idle, &mut busy, &mut stays] {
        assert_eq!(client.get("/").unwrap().head.get("connection"), None);
    }
    busy.send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert!(until(PATIENCE, || is_asked.load(Ordering::SeqCst)), "the request is on its way");
    gateway.rewrite(&config("")).unwrap();
    gateway.reload().unwrap();
    idle.expect_closed().unwrap();
    go.send(()).unwrap();
    let response = busy.read_response("GET").unwrap();
    assert_eq!((response.status(), response.head.get("connection")), (200, Some("close")));
    busy.expect_closed().unwrap();
    assert_eq!(stays.get("/").unwrap().head.get("connection"), None);
}

#[test]
fn a_client_that_leaves_a_silent_response_lets_its_node_go() {
    let origin = Origin::scripted().unwrap();
    let config = format!(
        "workers: 1\nlisteners: [{{ address: \"{{listen}}\" }}]\ntimeouts: {{ half_close_ms: 100 }}\n\
         routes: [{{ id: r, uri: \"/*\", plugins: {{ limit-conn: {{ conn: 1, burst: 0, default_conn_delay: 1, key: uri }} }}, upstream: {{ nodes: {{ \"127.0.0.1:{}\": 1 }} }} }}]\n",
        origin.port()
    );
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let mut client = gateway.connect().unwrap();
    client.send("GET /events HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut node = origin.accept().unwrap();
    node.read_request().unwrap();
    node.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n")
        .unwrap();
    assert_eq!(client.read_head().unwrap().status().unwrap(), 200);
    client.read_exactly("9\r\ndata: 1\n\n\r\n".len()).unwrap();
    client.half_close().unwrap();
    node.expect_closed().unwrap();
    // The slot of limit-conn is free.
    let mut other = gateway.connect().unwrap();
    other.send("GET /events HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut node = origin.accept().unwrap();
    node.read_request().unwrap();
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    assert_eq!(other.read_response("GET").unwrap().status(), 200);
}
