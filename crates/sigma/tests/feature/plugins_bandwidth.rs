//! `limit-bandwidth`, over real sockets: slow transfers, their senders, and others that continue.
//!
//! A byte a second is so slow that waiting bytes still wait at any check, and the bytes that pass at once are
//! the burst.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sigma_testkit::{Address, Gateway, Origin, Peer, free_port, until};

use crate::streams::{config, parrot, talk, upstream};
use crate::{PATIENCE, SIGMA};

/// How long a test waits for what must not come.
const MOMENT: Duration = Duration::from_millis(50);

/// More than all buffers between two processes hold.
const MUCH: usize = 64 << 20;

/// A gateway with these rules for `/slow/*`, and none for the rest.
fn gateway(port: u16, rules: &Value, more: &Value) -> Gateway {
    let nodes = json!({ "nodes": { (format!("127.0.0.1:{port}")): 1 } });
    let plugins = json!({ "limit-bandwidth": { "rules": rules }, "prometheus": {} });
    let mut whole = json!({
        "workers": 2,
        "listeners": [{ "address": "{listen}" }],
        "routes": [
            { "id": "slow", "uri": "/slow/*", "upstream": nodes, "plugins": plugins },
            { "id": "rest", "uri": "/*", "upstream": nodes },
        ],
    });
    whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Gateway::start(SIGMA, &whole.to_string()).unwrap()
}

/// Others are served meanwhile, by all workers.
fn others_go_on(gateway: &Gateway) {
    for _ in 0..8 {
        let mut client = gateway.connect().unwrap();
        for _ in 0..5 {
            assert_eq!(client.get("/").unwrap().status(), 200);
        }
    }
}

/// Responds with as many bytes as the path says behind its last slash.
fn answering() -> Origin {
    Origin::answer(|request| {
        let target = request.head.line.split(' ').nth(1).unwrap_or_default();
        let bytes: usize = target.rsplit('/').next().and_then(|last| last.parse().ok()).unwrap_or_default();
        format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n{}", "x".repeat(bytes)).into_bytes()
    })
    .unwrap()
}

#[test]
fn an_address_has_one_rate_for_all_that_it_is_sent() {
    let origin = answering();
    let rules = json!([{ "rate": 1, "burst": 5000, "key": "remote_addr", "direction": "response" }]);
    let gateway = gateway(origin.port(), &rules, &json!({}));
    assert_eq!(gateway.connect().unwrap().get("/slow/5000").unwrap().text().len(), 5000);
    // The burst is used up, for connections of all workers.
    let clients: Vec<Peer> = (0..4)
        .map(|_| {
            let mut client = gateway.connect().unwrap();
            client.send("GET /slow/3000 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            assert_eq!(client.read_head().unwrap().status().unwrap(), 200);
            client
        })
        .collect();
    others_go_on(&gateway);
    for client in clients {
        assert!(client.with_deadline(MOMENT).read_exactly(3000).is_err(), "that takes an hour");
    }
}

/// Writes until there is no room for a while; counts the written bytes.
fn pour(mut stream: TcpStream, written: &AtomicUsize) {
    let block = [b'x'; 64 * 1024];
    while written.load(Ordering::SeqCst) < MUCH {
        match stream.write(&block) {
            Ok(bytes) if bytes > 0 => written.fetch_add(bytes, Ordering::SeqCst),
            _ => return,
        };
    }
}

/// Waiting bytes are not in the gateway's memory: their sender is held back.
#[test]
fn senders_are_held_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (from_node, from_client, at_node) =
        <(Arc<AtomicUsize>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let (written, received) = (Arc::clone(&from_node), Arc::clone(&at_node));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (written, received) = (Arc::clone(&written), Arc::clone(&received));
            std::thread::spawn(move || serve(stream, &written, &received));
        }
    });
    let rules = json!([{ "rate": 1, "burst": 1000, "direction": "each" }]);
    let gateway = gateway(port, &rules, &json!({}));
    let connect = || TcpStream::connect(("127.0.0.1", gateway.address().port().unwrap())).unwrap();

    let mut download = connect();
    download.write_all(b"GET /slow/down HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut upload = connect();
    let head = format!("POST /slow/up HTTP/1.1\r\nHost: h\r\nContent-Length: {MUCH}\r\n\r\n");
    upload.write_all(head.as_bytes()).unwrap();
    let (poured, uploading) = (Arc::clone(&from_client), upload.try_clone().unwrap());
    let client = std::thread::spawn(move || pour(uploading, &poured));
    // The client reads all that there is.
    let mut reading = download.try_clone().unwrap();
    let reader = std::thread::spawn(move || std::io::copy(&mut reading, &mut std::io::sink()));
    assert!(
        until(PATIENCE, || from_node.load(Ordering::SeqCst) > 0 && at_node.load(Ordering::SeqCst) >= 1000)
    );
    others_go_on(&gateway);
    for (side, written) in [("node", &from_node), ("client", &from_client)] {
        assert!(written.load(Ordering::SeqCst) < MUCH / 2, "the {side} is not held back");
    }
    // The bytes of a second for the time that others took.
    assert!(at_node.load(Ordering::SeqCst) < 1000 + 200, "{at_node:?}");
    for stream in [download, upload] {
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    }
    client.join().unwrap();
    let _ = reader.join().unwrap();
}

/// A node: sends much for `/slow/down`, reads the input for `/slow/up`, and answers all else with nothing.
fn serve(mut stream: TcpStream, written: &AtomicUsize, received: &AtomicUsize) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while stream.read(&mut byte).is_ok_and(|read| read == 1) {
        head.push(byte[0]);
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        if head.starts_with(b"GET /slow/down") {
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {MUCH}\r\n\r\n");
            if stream.write_all(answer.as_bytes()).is_ok() {
                pour(stream, written);
            }
            return;
        }
        if head.starts_with(b"POST /slow/up") {
            let mut buffer = [0; 4096];
            while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
                received.fetch_add(bytes, Ordering::SeqCst);
            }
            return;
        }
        head.clear();
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
            return;
        }
    }
}

/// A node is not late while its response waits here, nor is a client.
#[test]
fn timeouts_do_not_run_while_bytes_wait() {
    let origin = answering();
    // Of four that share a byte a second, each waits for three seconds between two of its own.
    let rules = json!([{ "rate": 1, "key": "remote_addr", "direction": "sum" }]);
    let upstream = json!({ "id": "1", "nodes": { (format!("127.0.0.1:{}", origin.port())): 1 },
        "timeout": { "connect": 5, "send": 2, "read": 2 } });
    let more = json!({
        "timeouts": { "request_body_ms": 2000, "response_send_ms": 2000 },
        "upstreams": [upstream],
        "routes": [{ "id": "slow", "uri": "/slow/*", "upstream_id": "1",
            "plugins": { "limit-bandwidth": { "rules": rules } } }],
    });
    let gateway = gateway(origin.port(), &json!([]), &more);
    let ask = || {
        let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
        let answer = client.ask("POST /slow/2 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab").unwrap();
        assert_eq!((answer.status(), answer.text().len()), (200, 2));
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(ask))));
}

#[test]
fn waiting_is_counted() {
    let (origin, port) = (answering(), free_port());
    let rules = json!([{ "rate": 4000, "direction": "response" }]);
    let more = json!({ "plugin_attr": { "prometheus": { "export_addr": { "port": port } } } });
    let gateway = gateway(origin.port(), &rules, &more);
    assert_eq!(gateway.connect().unwrap().get("/slow/2000").unwrap().text().len(), 2000);
    let scraped = || {
        let mut peer = Peer::connect(&Address::loopback(port)).unwrap();
        peer.get("/apisix/prometheus/metrics").unwrap().text()
    };
    let number = |name: &str| {
        let series = format!(
            "apisix_limit_bandwidth_{name}_total{{resource=\"/apisix/routes/slow#limit-bandwidth\"}} "
        );
        scraped().lines().find_map(|line| line.strip_prefix(&series)?.parse::<u64>().ok()).unwrap_or(0)
    };
    // The first piece of 500 bytes passes at once.
    let is_counted =
        || (1..=1500).contains(&number("delayed_bytes")) && (1..=750).contains(&number("delay_milliseconds"));
    assert!(until(PATIENCE, is_counted), "{}", scraped());
}

#[test]
fn sessions_of_other_protocols_are_slow_too() {
    let origin = parrot("one");
    let rules = json!([{ "rate": 1, "burst": 100, "key": "remote_addr", "direction": "request" }]);
    let routes = json!([{ "id": "r", "plugins": { "limit-bandwidth": { "rules": rules } },
        "upstream": upstream(&[origin.port()]) }]);
    let gateway =
        Gateway::start(SIGMA, &config(json!({ "stream": "tcp" }), json!({ "stream_routes": routes })))
            .unwrap();
    let hundred = "x".repeat(100);
    assert_eq!(talk(&gateway, &hundred), ("one".to_owned(), hundred));
    // The node still speaks at once, and hears of the client when that has ended.
    let mut client = gateway.connect().unwrap();
    assert_eq!(client.read_line().unwrap(), "one");
    client.send("y".repeat(1000)).unwrap();
    client.half_close().unwrap();
    for _ in 0..10 {
        assert_eq!(talk(&gateway, ""), ("one".to_owned(), String::new()));
    }
    assert!(client.is_idle());
}
