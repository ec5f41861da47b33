//! SIGHUP and SIGTERM under traffic: clients do not notice.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sigma_testkit::{Gateway, Origin, Peer, until};

use crate::{PATIENCE, SIGMA, catch_all, in_front_of, nodes};

const UPGRADE: &str = "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Responds to requests; after an upgrade, sends back every byte.
fn serve(name: &'static str) -> impl Fn(Peer) + Send + Sync + 'static {
    move |mut peer| {
        while let Ok(request) = peer.read_request() {
            if request.head.get("upgrade").is_none() {
                if peer
                    .send(format!("HTTP/1.1 200 OK\r\nX-Origin: {name}\r\nContent-Length: 2\r\n\r\nok"))
                    .is_err()
                {
                    return;
                }
                continue;
            }
            let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n";
            if peer.send(answer).is_err() {
                return;
            }
            while let Ok(byte) = peer.read_exactly(1) {
                if peer.send(byte).is_err() {
                    return;
                }
            }
        }
    }
}

fn origin_seen(gateway: &Gateway) -> Option<String> {
    let answer = gateway.connect().ok()?.get("/").ok()?;
    answer.head.get("x-origin").map(str::to_string)
}

/// Waits until both workers answer from the new configuration: several fresh connections in a row.
fn await_origin(gateway: &Gateway, name: &str) {
    let settled = until(PATIENCE, || (0..8).all(|_| origin_seen(gateway).as_deref() == Some(name)));
    assert!(settled, "{name} does not serve after the reload");
}

#[test]
fn twenty_reloads_lose_no_request_and_no_tunnel() {
    let (a, b) = (Origin::serve(serve("a")).unwrap(), Origin::serve(serve("b")).unwrap());
    let gateway = Gateway::start(SIGMA, &catch_all("", &nodes(&[&a]), "")).unwrap();
    let mut tunnel = gateway.connect().unwrap();
    assert_eq!(tunnel.ask(UPGRADE).unwrap().status(), 101);
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
                while !stop.load(Ordering::SeqCst) {
                    let answer = client.get("/").unwrap();
                    assert_eq!(answer.status(), 200);
                    assert_ne!(answer.head.get("connection"), Some("close"), "a kept connection was ended");
                    sent.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for round in 0..20 {
            let (origin, name) = if round % 2 == 0 { (&b, "b") } else { (&a, "a") };
            gateway.rewrite(&catch_all("", &nodes(&[origin]), "")).unwrap();
            gateway.reload().unwrap();
            await_origin(&gateway, name);
            tunnel.send([round]).unwrap();
            assert_eq!(tunnel.read_exactly(1).unwrap(), [round]);
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert!(sent.load(Ordering::SeqCst) > 100);
}

/// `--watch` takes a file over when it is another one, also if it is as long as before and was written while the
/// last one was read.
#[test]
fn a_file_that_changes_is_taken_over_with_watch() {
    let (a, b) = (Origin::serve(serve("a")).unwrap(), Origin::serve(serve("b")).unwrap());
    let config = |origin: &Origin| catch_all("", &nodes(&[origin]), "");
    let gateway = Gateway::start_with(SIGMA, "--watch", &config(&a)).unwrap();
    // At once: the start may not be over.
    gateway.rewrite(&config(&b)).unwrap();
    await_origin(&gateway, "b");
    for (origin, name) in [(&a, "a"), (&b, "b"), (&a, "a")] {
        gateway.rewrite("routes: [").unwrap();
        gateway.rewrite(&config(origin)).unwrap();
        await_origin(&gateway, name);
    }
}

#[test]
fn sigterm_lets_open_exchanges_finish() {
    let origin = Origin::scripted().unwrap();
    let mut gateway = in_front_of(&origin, "timeouts:\n  drain_ms: 20000");
    let mut idle = gateway.connect().unwrap();
    let mut busy = gateway.connect().unwrap();
    busy.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut peer = origin.accept().unwrap();
    peer.read_request().unwrap();
    gateway.terminate().unwrap();
    idle.expect_closed().unwrap();
    assert!(until(PATIENCE, || gateway.connect().is_err()), "still accepts while draining");
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    let answer = busy.read_response("GET").unwrap();
    assert_eq!((answer.status(), answer.text().as_str()), (200, "ok"));
    busy.expect_closed().unwrap();
    assert!(gateway.wait(PATIENCE).unwrap().success());
}

/// Connections that the kernel has accepted, but no worker: they must not hang on a process that ends.
#[test]
fn connections_queued_in_the_kernel_end_with_the_drain() {
    let origin = Origin::scripted().unwrap();
    let mut gateway =
        in_front_of(&origin, "timeouts:\n  drain_ms: 20000\nlimits:\n  connections_per_worker: 1");
    // Two workers with one connection each; which worker gets one is the kernel's choice, so the
    // first connections are made until both are at their limit.
    let mut clients: Vec<Peer> =
        (0..16).map(|_| gateway.connect().unwrap().with_deadline(PATIENCE)).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    }
    let mut peer = origin.accept().unwrap();
    peer.read_request().unwrap();
    gateway.terminate().unwrap();
    assert!(until(PATIENCE, || gateway.connect().is_err()), "still accepts while draining");
    let serving = std::thread::spawn(move || {
        // Each exchange on its own connection, so that every one of them is accepted here.
        let ok = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
        let mut answered = 0;
        peer.send(ok).unwrap();
        answered += 1;
        while let Ok(mut peer) = origin.accept() {
            if peer.read_request().is_err() || peer.send(ok).is_err() {
                continue;
            }
            answered += 1;
        }
        answered
    });
    let mut served = 0;
    for mut client in clients {
        // A response or the end; `read_to_close` fails if neither comes.
        let bytes = client.read_to_close().unwrap();
        assert!(bytes.is_empty() || bytes.ends_with(b"\r\n\r\nok"), "{}", String::from_utf8_lossy(&bytes));
        served += usize::from(!bytes.is_empty());
    }
    assert!(gateway.wait(PATIENCE).unwrap().success());
    let answered = serving.join().unwrap();
    assert_eq!(served, answered, "an answer of the origin was lost");
    assert!(served >= 1);
}
