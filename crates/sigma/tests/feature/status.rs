//! The status listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sigma_testkit::{Origin, Peer, until};

use crate::{PATIENCE, SIGMA, in_front_of};

#[test]
fn status_answers_independently_of_the_traffic() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(&origin, "status:\n  address: \"{status}\"");
    let mut client = gateway.connect().unwrap();
    for _ in 0..3 {
        assert_eq!(client.get("/").unwrap().status(), 200);
    }
    for target in ["/status", "/status/ready"] {
        let answer = Peer::connect(&gateway.status_address()).unwrap().get(target).unwrap();
        assert_eq!(answer.status(), 200, "{target}: {}", answer.text());
        answer.json().unwrap_or_else(|e| panic!("{target}: {e}: {}", answer.text()));
    }
    let counters = Peer::connect(&gateway.status_address()).unwrap().get("/status/counters").unwrap();
    assert_eq!(counters.status(), 200);
    let unknown = Peer::connect(&gateway.status_address()).unwrap().get("/nothing").unwrap();
    assert_eq!(unknown.status(), 404);
    assert!(unknown.text().contains("\n/status/ready\n"), "{}", unknown.text());
    // The traffic listener knows no status page: it is the origin's path like any other.
    assert_eq!(client.get("/status").unwrap().head.get("x-origin"), Some("a"));
}

/// A load balancer asks while open exchanges are waited for, and must learn it.
#[test]
fn a_gateway_that_drains_says_that_it_is_not_ready() {
    let (asked, may_answer) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (told, awaited) = (Arc::clone(&asked), Arc::clone(&may_answer));
    let origin = Origin::answer(move |_| {
        told.store(true, Ordering::SeqCst);
        until(PATIENCE, || awaited.load(Ordering::SeqCst));
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()
    })
    .unwrap();
    let gateway = in_front_of(&origin, "status:\n  address: \"{status}\"");
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert!(until(PATIENCE, || asked.load(Ordering::SeqCst)));
    gateway.terminate().unwrap();
    let mut last = String::new();
    let is_told = until(PATIENCE, || {
        let asked = Peer::connect(&gateway.status_address()).and_then(|mut peer| peer.get("/status/ready"));
        last = asked.map_or_else(|error| error.to_string(), |answer| answer.status().to_string());
        last == "503"
    });
    assert!(is_told, "{last}");
    // Other paths answer as before.
    let ask = |target| Peer::connect(&gateway.status_address()).unwrap().get(target).unwrap();
    let (ready, status) = (ask("/status/ready").json().unwrap(), ask("/status").json().unwrap());
    assert_eq!(ready["error"], "the process is stopping");
    assert!(status["upstreams"].is_array() && status["configuration"]["published"].is_u64(), "{status}");
    assert!(status["counters"]["connections_active"].as_u64() >= Some(1), "{status}");
    may_answer.store(true, Ordering::SeqCst);
    assert_eq!(client.read_response("GET").unwrap().status(), 200);
    assert!(gateway.stop().unwrap().success());
}

/// A configuration that could not start is refused by the check as well.
#[test]
fn listeners_in_each_others_way_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sigma.yaml");
    let verdicts = |settings: &str, port: u16| {
        let text =
            format!("listeners: [\"0.0.0.0:{port}\"]\nstatus: {{ address: \"127.0.0.1:9\" }}\n{settings}");
        std::fs::write(&file, text).unwrap();
        ["check", "run"].map(|command| {
            let said = std::process::Command::new(SIGMA).arg(command).arg("-c").arg(&file).output().unwrap();
            (said.status.success(), String::from_utf8_lossy(&said.stderr).into_owned())
        })
    };
    let pages = "plugin_attr: { prometheus: { export_addr: { ip: 0.0.0.0, port: 9 } } }";
    for (settings, port, place) in [
        (pages, 8, "plugin_attr.prometheus.export_addr"),
        ("control: { address: \"127.0.0.1:9\" }", 8, "control.address"),
        ("control: { address: \"0.0.0.0:9\" }", 8, "control.address"),
        ("", 9, "listeners[0].address"),
    ] {
        for (succeeded, said) in verdicts(settings, port) {
            let expected = format!("{place}: ");
            assert!(
                !succeeded && said.contains(&expected) && said.contains("is already the address of status"),
                "{said}"
            );
        }
    }
}
