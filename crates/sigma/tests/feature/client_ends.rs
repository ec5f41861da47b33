//! Ends of client connections: a listener that goes.

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
