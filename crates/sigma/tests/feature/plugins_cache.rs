//! `proxy-cache` where many ask at once, and where memory ends.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sigma_testkit::{Gateway, Message, Origin, Peer, until};

use crate::{PATIENCE, SIGMA, nodes};

fn gateway(origin: &Origin, conf: &str, attributes: &str) -> Gateway {
    let config = format!(
        "workers: 2\nlisteners:\n  - address: \"{{listen}}\"\n{attributes}\nroutes:\n  - id: all\n    uri: \"/*\"\n    \
         plugins: {{proxy-cache: {{cache_strategy: memory, cache_zone: memory_cache{conf}}}}}\n    upstream:\n      nodes: {}\n",
        nodes(&[origin])
    );
    Gateway::start(SIGMA, &config).unwrap()
}

fn asking(gateway: &Gateway, path: &str) -> Peer {
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    peer.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).unwrap();
    peer
}

fn status(answer: &Message) -> String {
    answer.head.get("apisix-cache-status").unwrap_or_default().to_owned()
}

/// For any number of clients on any number of workers, a node gets one request, and its response is forwarded at once.
#[test]
fn one_request_fetches_for_all_and_all_read_it() {
    let origin = Origin::scripted().unwrap();
    let gateway = gateway(&origin, ", lock_timeout: 60000", "");
    let mut first = asking(&gateway, "/a");
    let mut node = origin.accept().unwrap();
    assert!(node.read_head().unwrap().line.starts_with("GET /a "));
    let mut others: Vec<Peer> = (0..40).map(|_| asking(&gateway, "/a")).collect();
    let half = "a".repeat(100_000);
    node.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 200000\r\nX-Node: 1\r\n\r\n{half}")).unwrap();
    for peer in others.iter_mut().chain([&mut first]) {
        let head = peer.read_head().unwrap();
        assert!(head.line.contains(" 200 "), "{}", head.line);
        // Before the node has sent the rest.
        assert_eq!(peer.read_exactly(50_000).unwrap(), &half.as_bytes()[..50_000]);
    }
    node.send("b".repeat(100_000)).unwrap();
    for peer in others.iter_mut().chain([&mut first]) {
        let rest = peer.read_exactly(150_000).unwrap();
        assert!(rest.starts_with(b"aaa") && rest.ends_with(b"bbb"));
    }
    let again = asking(&gateway, "/a").read_response("GET").unwrap();
    assert_eq!((status(&again).as_str(), again.body.len()), ("HIT", 200_000));
    assert_eq!(origin.connections(), 1);
}

/// A private response delays no request.
#[test]
fn unstorable_answers_are_fetched_by_each() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let origin = Origin::answer(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        b"HTTP/1.1 200 OK\r\nCache-Control: private\r\nContent-Length: 2\r\n\r\nok".to_vec()
    })
    .unwrap();
    let gateway = gateway(&origin, ", lock_timeout: 60000", "");
    let mut peers: Vec<Peer> = (0..30).map(|_| asking(&gateway, "/private")).collect();
    for peer in &mut peers {
        assert_eq!(peer.read_response("GET").unwrap().body, b"ok");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 30);
}

/// The client that fetches for all may leave, and its node may die: another one fetches.
#[test]
fn a_client_that_leaves_delays_no_other() {
    let origin = Origin::scripted().unwrap();
    let gateway = gateway(&origin, ", lock_timeout: 60000", "");
    let first = asking(&gateway, "/a");
    let mut node = origin.accept().unwrap();
    node.read_head().unwrap();
    let mut second = asking(&gateway, "/a");
    let mut third = asking(&gateway, "/a");
    drop(first);
    let mut node = origin.accept().unwrap();
    node.read_head().unwrap();
    // The response breaks off: clients notice, and nothing is stored.
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").unwrap();
    assert!(second.read_head().is_ok() && third.read_head().is_ok());
    drop(node);
    assert!(second.read_exactly(10).is_err() && third.read_exactly(10).is_err());
    let mut fourth = asking(&gateway, "/a");
    let mut node = origin.accept().unwrap();
    node.read_head().unwrap();
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole").unwrap();
    let answer = fourth.read_response("GET").unwrap();
    assert_eq!((status(&answer).as_str(), &answer.body[..]), ("MISS", &b"whole"[..]));
    let answer = asking(&gateway, "/a").read_response("GET").unwrap();
    assert_eq!((status(&answer).as_str(), &answer.body[..]), ("HIT", &b"whole"[..]));
}

/// A response that has begun is stored, though all its clients leave.
#[test]
fn an_answer_is_kept_for_those_who_come_later() {
    let origin = Origin::scripted().unwrap();
    let gateway = gateway(&origin, ", lock_timeout: 60000", "");
    let mut first = asking(&gateway, "/a");
    let mut node = origin.accept().unwrap();
    node.read_head().unwrap();
    node.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n{}", "a".repeat(100_000))).unwrap();
    first.read_head().unwrap();
    drop(first);
    node.send("b".repeat(100_000)).unwrap();
    let answer = asking(&gateway, "/a").read_response("GET").unwrap();
    assert_eq!((status(&answer).as_str(), answer.body.len()), ("HIT", 200_000));
}

/// The bytes of a version of a large file.
fn large(version: usize) -> Vec<u8> {
    (0..3_000_005).map(|at| ((at / 7 + at / 65_536 * 31 + version * 101) % 251) as u8).collect()
}

/// Hits of large bodies, whole and in part, on kept connections, by many clients at once; a client that is slow gets
/// the version that it asked for, though another one takes its place meanwhile.
#[test]
fn large_hits_arrive_whole() {
    let versions = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&versions);
    let origin = Origin::answer(move |request| {
        let body = large(counted.load(Ordering::SeqCst));
        let body = if request.head.line.contains("/small") { &body[..100] } else { &body };
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
    })
    .unwrap();
    let gateway = gateway(&origin, ", cache_method: [GET, HEAD]", "");
    let (old, new) = (large(0), large(1));
    let mut peer = asking(&gateway, "/a");
    assert!(peer.read_response("GET").unwrap().body == old);
    peer.send(
        "GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\nRange: bytes=70000-2000000\r\n\r\n",
    )
    .unwrap();
    let whole = peer.read_response("GET").unwrap();
    assert!(status(&whole) == "HIT" && whole.body == old);
    assert!(peer.read_response("GET").unwrap().body == old[70_000..=2_000_000]);
    let head = peer.ask("HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert_eq!((head.head.get("content-length"), head.body.len()), (Some("3000005"), 0));
    assert!(peer.get("/small").unwrap().body == old[..100]);
    // HTTP/2 reads the same bytes instead of passing them on.
    let url = format!("http://{}/a", gateway.address());
    let output =
        Command::new("curl").args(["-s", "--http2-prior-knowledge", "-H", "Host: h", &url]).output().unwrap();
    assert!(output.stdout == old, "{} bytes", output.stdout.len());

    let mut slow = asking(&gateway, "/a");
    slow.read_head().unwrap();
    let mut leaves = asking(&gateway, "/a");
    leaves.read_exactly(100_000).unwrap();
    drop(leaves);
    versions.store(1, Ordering::SeqCst);
    assert!(peer.ask("PURGE /a HTTP/1.1\r\nHost: h\r\n\r\n").unwrap().head.line.contains(" 200 "));
    assert!(peer.ask("GET /a HTTP/1.1\r\nHost: h\r\n\r\n").unwrap().body == new);
    // More than a worker has pipes.
    let mut peers: Vec<Peer> = (0..150).map(|_| asking(&gateway, "/a")).collect();
    for peer in &mut peers {
        peer.read_head().unwrap();
        assert!(peer.read_exactly(new.len()).unwrap() == new);
    }
    assert!(slow.read_exactly(old.len()).unwrap() == old);
}

/// A request that waits for too long fetches by itself.
#[test]
fn waiting_has_an_end() {
    let origin = Origin::scripted().unwrap();
    let gateway = gateway(&origin, ", lock_timeout: 50", "");
    let _first = asking(&gateway, "/a");
    let mut node = origin.accept().unwrap();
    node.read_head().unwrap();
    let mut second = asking(&gateway, "/a");
    let mut other = origin.accept().unwrap();
    other.read_head().unwrap();
    other.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother").unwrap();
    assert_eq!(second.read_response("GET").unwrap().body, b"other");
}

/// Each consumer has answers of its own, and a zone that is full forgets.
#[test]
fn memory_is_bounded_and_consumers_are_apart() {
    let origin = Origin::answer(|request| {
        let who = request.head.get("x-consumer-username").unwrap_or("nobody").to_owned();
        let body = format!("{who} {}", "x".repeat(1000));
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    })
    .unwrap();
    let config = format!(
        "workers: 2\nlisteners:\n  - address: \"{{listen}}\"\n\
         plugin_attr: {{proxy-cache: {{zones: [{{name: small, memory_size: 64k}}]}}}}\n\
         consumers:\n  - {{username: ann, plugins: {{key-auth: {{key: a}}}}}}\n  - {{username: bob, plugins: {{key-auth: {{key: b}}}}}}\n\
         routes:\n  - id: all\n    uri: \"/*\"\n    plugins: {{key-auth: {{}}, proxy-cache: {{cache_strategy: memory, cache_zone: small}}}}\n    \
         upstream:\n      nodes: {}\n",
        nodes(&[&origin])
    );
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    let mut ask = |key: &str, path: &str| {
        peer.ask(format!("GET {path} HTTP/1.1\r\nHost: h\r\napikey: {key}\r\n\r\n")).unwrap()
    };
    for (key, who) in [("a", "ann "), ("b", "bob ")] {
        for expected in ["MISS", "HIT"] {
            let answer = ask(key, "/a");
            assert_eq!(status(&answer), expected);
            assert!(answer.body.starts_with(who.as_bytes()));
        }
    }
    (0..500).for_each(|n| drop(ask("a", &format!("/{n}"))));
    let kept = (0..500).filter(|n| status(&ask("a", &format!("/{n}"))) == "HIT").count();
    assert!(kept < 64, "{kept} answers of a kilobyte in 64");
    let again = until(PATIENCE, || status(&ask("b", "/b")) == "HIT");
    assert!(again);
}

/// A zone that is not there, or is of the other kind, is refused.
#[test]
fn zones_have_to_be_there() {
    let origin = Origin::echo("a").unwrap();
    for (conf, reason) in [
        ("{cache_strategy: memory, cache_zone: nowhere}", "cache_zone nowhere not found"),
        ("{cache_strategy: memory}", "invalid or empty cache_zone for cache_strategy: memory"),
        ("{cache_zone: memory_cache}", "invalid or empty cache_zone for cache_strategy: disk"),
    ] {
        let config = format!(
            "listeners:\n  - address: \"{{listen}}\"\nroutes:\n  - id: all\n    uri: \"/*\"\n    plugins: {{proxy-cache: {conf}}}\n    \
             upstream:\n      nodes: {}\n",
            nodes(&[&origin])
        );
        let error =
            Gateway::start(SIGMA, &config).err().map(|error| format!("{error:#}")).unwrap_or_default();
        assert!(error.contains(reason), "{conf}: {error}");
    }
}
