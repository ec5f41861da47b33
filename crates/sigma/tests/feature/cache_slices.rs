//! Responses in slices: requests to nodes, answers that are assembled, and answers that are not.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;
use sigma_testkit::{Gateway, Message, Origin, Peer, until};

use crate::managed::{EMBEDDED, KEY, admin, start};
use crate::{PATIENCE, SIGMA, nodes};

const SLICE: usize = 65_536;

/// A node of one file whose path sets its behaviour and the length of the file: `/ranges/200000`.
struct Node {
    origin: Origin,
    /// Its requests: the path, and `Range`.
    asked: Arc<Mutex<Vec<String>>>,
    version: Arc<AtomicUsize>,
    /// After so many requests for ranges the version is another one; 0 for never.
    changes_at: Arc<AtomicUsize>,
}

/// The bytes of a version: each place in it has one of its own.
fn byte(version: usize, at: usize) -> u8 {
    ((at / 7 + at / SLICE * 31 + version * 101) % 251) as u8
}

fn bytes(version: usize, start: usize, end: usize) -> Vec<u8> {
    (start..end).map(|at| byte(version, at)).collect()
}

fn field<'m>(request: &'m Message, name: &str) -> &'m str {
    request.head.get(name).unwrap_or_default()
}

fn answer(kind: &str, version: usize, length: usize, request: &Message) -> Vec<u8> {
    let tag = match kind {
        "weak" => format!("W/\"{version}\""),
        _ => format!("\"{version}\""),
    };
    let life = if kind == "stale" { "max-age=0" } else { "max-age=600" };
    let life = if kind == "secret" { "private" } else { life };
    let shared =
        format!("Cache-Control: {life}\r\nETag: {tag}\r\nVary: Accept-Language\r\nCache-Tag: file\r\n");
    let known = field(request, "if-none-match");
    if known == tag {
        return format!("HTTP/1.1 304 Not Modified\r\n{shared}\r\n").into_bytes();
    }
    let range = field(request, "range").strip_prefix("bytes=").and_then(|range| range.split_once('-'));
    let number = |digits: &str| digits.parse::<usize>().ok();
    let range = range.and_then(|(start, end)| Some((number(start)?, number(end).unwrap_or(usize::MAX))));
    let Some((start, end)) = range.filter(|_| kind != "deaf") else {
        let body = bytes(version, 0, length);
        return [format!("HTTP/1.1 200 OK\r\n{shared}Content-Length: {length}\r\n\r\n").into_bytes(), body]
            .concat();
    };
    if start >= length {
        let head = format!("HTTP/1.1 416 No\r\nContent-Range: bytes */{length}\r\nContent-Length: 0\r\n\r\n");
        return head.into_bytes();
    }
    let end = end.min(length - 1) + 1;
    let body = bytes(version, start, end);
    let said = match kind {
        // One byte further on than it is.
        "liar" => format!("bytes {}-{}/{}", start + 1, end, length + 1),
        _ => format!("bytes {start}-{}/{length}", end - 1),
    };
    let head = format!(
        "HTTP/1.1 206 Part\r\n{shared}Content-Range: {said}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let breaks = kind == "broken" && start == 2 * SLICE;
    let sent = if breaks { &body[..body.len() / 2] } else { &body[..] };
    [head.as_bytes(), sent].concat()
}

impl Node {
    fn start() -> Node {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let (version, changes_at): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
        let (noted, current, changes) = (Arc::clone(&asked), Arc::clone(&version), Arc::clone(&changes_at));
        let origin = Origin::serve(move |mut peer| {
            while let Ok(request) = peer.read_request() {
                let path = request.head.line.split(' ').nth(1).unwrap_or_default().to_owned();
                let range = field(&request, "range");
                noted.lock().unwrap().push(format!("{path} {range}"));
                let mut parts = path.trim_start_matches('/').split('/');
                let kind = parts.next().unwrap_or_default();
                let length = parts.next().and_then(|length| length.parse().ok()).unwrap_or(0);
                if !range.is_empty()
                    && changes.load(Ordering::SeqCst) > 0
                    && changes.fetch_sub(1, Ordering::SeqCst) == 1
                {
                    current.fetch_add(1, Ordering::SeqCst);
                }
                let answer = answer(kind, current.load(Ordering::SeqCst), length, &request);
                let whole = answer.len();
                // A broken response ends with its connection.
                let is_cut = kind == "broken"
                    && whole < SLICE
                    && range == format!("bytes={}-{}", 2 * SLICE, 3 * SLICE - 1);
                if peer.send(answer).is_err() || is_cut {
                    return;
                }
            }
        });
        Node { origin: origin.unwrap(), asked, version, changes_at }
    }

    fn gateway(&self, settings: &str) -> Gateway {
        let config = format!(
            "workers: 1\nlisteners: [\"{{listen}}\"]\n{settings}\nroutes:\n  - {{ id: all, uri: \"/*\", \
             cache: {{ slice_bytes: {SLICE}, purge: true, background_update: false }}, \
             upstream: {{ retries: 0, nodes: {} }} }}\n",
            nodes(&[&self.origin])
        );
        Gateway::start(SIGMA, &config).unwrap()
    }

    /// Returns its requests since the last call.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

fn ask(gateway: &Gateway, path: &str, fields: &str) -> Message {
    try_ask(gateway, "GET", path, fields).unwrap()
}

/// An error if the response is incomplete.
fn try_ask(gateway: &Gateway, method: &str, path: &str, fields: &str) -> Result<Message, String> {
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    peer.send(format!("{method} {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).unwrap();
    peer.read_response(method).map_err(|error| error.to_string())
}

fn range(start: usize, end: usize) -> String {
    format!("Range: bytes={start}-{end}\r\n")
}

fn slice_of(path: &str, number: usize) -> String {
    format!("{path} bytes={}-{}", number * SLICE, (number + 1) * SLICE - 1)
}

fn told(answer: &Message) -> &str {
    answer.head.get("cache-status").unwrap_or_default()
}

/// The body is these bytes of this version.
#[track_caller]
fn check(answer: &Message, status: u16, version: usize, (start, end): (usize, usize)) {
    assert_eq!(answer.status(), status, "{}", answer.head.line);
    assert!(answer.body == bytes(version, start, end), "{} bytes of {}", answer.body.len(), end - start);
}

#[test]
fn ranges_are_put_together_of_slices() {
    let node = Node::start();
    let gateway = node.gateway("");
    let path = "/ranges/200000";
    let slices = |numbers: &[usize]| numbers.iter().map(|n| slice_of(path, *n)).collect::<Vec<_>>();

    let first = ask(&gateway, path, &range(70_000, 70_009));
    check(&first, 206, 0, (70_000, 70_010));
    assert_eq!(first.head.get("content-range"), Some("bytes 70000-70009/200000"));
    assert_eq!(told(&first), "Sigma; fwd=uri-miss; stored");
    assert_eq!(node.asked(), slices(&[1]));
    // Stored slices are not requested again.
    let again = ask(&gateway, path, &range(SLICE, SLICE * 2 - 1));
    check(&again, 206, 0, (SLICE, SLICE * 2));
    assert!(told(&again).starts_with("Sigma; hit; ttl="), "{}", told(&again));
    assert!(again.head.get("age").is_some() && again.head.get("cache-tag").is_none());
    assert!(node.asked().is_empty());
    // A range that begins in it and continues.
    let across = ask(&gateway, path, &range(SLICE * 2 - 10, SLICE * 2 + 9));
    check(&across, 206, 0, (SLICE * 2 - 10, SLICE * 2 + 10));
    assert_eq!(told(&across), "Sigma; fwd=partial; stored");
    assert_eq!(node.asked(), slices(&[2]));
    // All of it, of which two are there.
    let whole = ask(&gateway, path, "");
    check(&whole, 200, 0, (0, 200_000));
    assert!(whole.head.get("content-range").is_none());
    assert_eq!(whole.head.get("content-length"), Some("200000"));
    assert_eq!(node.asked(), slices(&[0, 3]));
    // The end, the rest, several, and all: no request reaches the node.
    check(&ask(&gateway, path, "Range: bytes=-5\r\n"), 206, 0, (199_995, 200_000));
    check(&ask(&gateway, path, "Range: bytes=100000-\r\n"), 206, 0, (100_000, 200_000));
    check(&ask(&gateway, path, ""), 200, 0, (0, 200_000));
    let several = ask(&gateway, path, "Range: bytes=0-9,65530-65545\r\n");
    assert_eq!(several.status(), 206);
    let has = |part: &[u8]| several.body.windows(part.len()).any(|window| window == part);
    assert!(has(b"Content-Range: bytes 0-9/200000\r\n\r\n") && has(&bytes(0, 65_530, 65_546)));
    // Conditions of the client's own.
    let with = |field: &str| ask(&gateway, path, &format!("{}{field}\r\n", range(5, 9)));
    check(&with("If-Range: \"0\""), 206, 0, (5, 10));
    check(&with("If-Range: \"9\""), 200, 0, (0, 200_000));
    assert_eq!(with("If-None-Match: \"0\"").status(), 304);
    check(&with("If-None-Match: \"9\""), 206, 0, (5, 10));
    assert!(node.asked().is_empty());
    // The node answers for a range beyond the end: the file may be longer by now.
    let beyond = ask(&gateway, path, &range(200_000, 200_001));
    assert_eq!((beyond.status(), beyond.head.get("content-range")), (416, Some("bytes */200000")));
    assert_eq!(node.asked(), [format!("{path} bytes=200000-200001")]);
    // Responses to others are others.
    check(&ask(&gateway, path, "Accept-Language: de\r\nRange: bytes=0-0\r\n"), 206, 0, (0, 1));
    assert_eq!(node.asked(), slices(&[0]));
}

#[test]
fn small_answers_are_stored_whole() {
    let node = Node::start();
    let gateway = node.gateway("");
    for (path, asked) in [("/ranges/100", "bytes=0-65535"), ("/deaf/200000", "bytes=65536-131071")] {
        let length: usize = path.rsplit('/').next().unwrap().parse().unwrap();
        let start = if length > SLICE { SLICE + 1 } else { 10 };
        check(&ask(&gateway, path, &range(start, start + 9)), 206, 0, (start, start + 10));
        assert_eq!(node.asked(), [format!("{path} {asked}")]);
        check(&ask(&gateway, path, ""), 200, 0, (0, length));
        check(&ask(&gateway, path, "Range: bytes=-5\r\n"), 206, 0, (length - 5, length));
        assert!(node.asked().is_empty());
    }
}

#[test]
fn ranges_that_cannot_be_assembled_are_forwarded() {
    let node = Node::start();
    let gateway = node.gateway("");
    for kind in ["weak", "secret", "liar"] {
        let path = format!("/{kind}/200000");
        let answer = ask(&gateway, &path, &range(70_000, 70_009));
        check(&answer, 206, 0, (70_000, 70_010));
        assert_eq!(node.asked(), [slice_of(&path, 1), format!("{path} bytes=70000-70009")]);
        // For a while nothing else is queried.
        check(&ask(&gateway, &path, &range(5, 9)), 206, 0, (5, 10));
        assert_eq!(node.asked(), [format!("{path} bytes=5-9")]);
    }
    // There is no such slice, and so no such range.
    let beyond = ask(&gateway, "/ranges/100000", &range(SLICE * 5, SLICE * 5));
    assert_eq!((beyond.status(), beyond.head.get("content-range")), (416, Some("bytes */100000")));
    assert_eq!(node.asked(), [slice_of("/ranges/100000", 5)]);
}

#[test]
fn two_versions_are_never_put_together() {
    let node = Node::start();
    let gateway = node.gateway("");
    let path = "/ranges/300000";
    check(&ask(&gateway, path, &range(0, 9)), 206, 0, (0, 10));
    check(&ask(&gateway, path, &range(SLICE * 3, SLICE * 3 + 9)), 206, 0, (SLICE * 3, SLICE * 3 + 10));
    node.version.store(1, Ordering::SeqCst);
    // It is seen before the head is sent: all of it is requested again.
    check(&ask(&gateway, path, ""), 200, 1, (0, 300_000));
    node.asked();
    check(&ask(&gateway, path, ""), 200, 1, (0, 300_000));
    assert!(node.asked().is_empty());
    // It is seen when the head was sent: the response is incomplete, and nothing of it is believed.
    let other = "/ranges/300001";
    node.changes_at.store(4, Ordering::SeqCst);
    let cut = try_ask(&gateway, "GET", other, "");
    assert!(cut.is_err(), "{} bytes", cut.unwrap().body.len());
    check(&ask(&gateway, other, ""), 200, 2, (0, 300_001));
}

#[test]
fn an_answer_breaks_off_with_its_slice() {
    let node = Node::start();
    let gateway = node.gateway("");
    let path = "/broken/300000";
    let cut = try_ask(&gateway, "GET", path, "");
    assert!(cut.is_err(), "{} bytes", cut.unwrap().body.len());
    // Its whole slices are stored.
    node.asked();
    check(&ask(&gateway, path, &range(0, SLICE * 2 - 1)), 206, 0, (0, SLICE * 2));
    assert!(node.asked().is_empty());
    assert!(try_ask(&gateway, "GET", path, &range(SLICE * 2, SLICE * 2 + 40_000)).is_err());
}

#[test]
fn a_purge_removes_all_slices() {
    let node = Node::start();
    let gateway = node.gateway("");
    let path = "/ranges/200000";
    let all = (0..4).map(|n| slice_of(path, n)).collect::<Vec<_>>();
    for forgets in ["PURGE", "POST", "DELETE"] {
        check(&ask(&gateway, path, ""), 200, 0, (0, 200_000));
        assert_eq!(node.asked(), all, "{forgets}");
        check(&ask(&gateway, path, ""), 200, 0, (0, 200_000));
        assert!(node.asked().is_empty());
        assert_eq!(try_ask(&gateway, forgets, path, "Content-Length: 0\r\n").unwrap().status(), 200);
        node.asked();
    }
    assert_eq!(try_ask(&gateway, "PURGE", path, "").unwrap().status(), 404);
}

/// By its own tags and prefixes, all slices of a response go, and their index.
#[test]
fn orders_mean_all_slices() {
    let (gateway, node) = (start(EMBEDDED), Node::start());
    let path = "/ranges/200000";
    let upstream = json!({"nodes": {(format!("127.0.0.1:{}", node.origin.port())): 1}});
    let route = json!({"uri": "/*", "cache": {"slice_bytes": SLICE}, "upstream": upstream});
    admin(&gateway).put("routes/r", &route).unwrap();
    // Every worker has the route when it was found so often in a row.
    assert!(until(PATIENCE, || (0..20).all(|_| ask(&gateway, path, "").status() == 200)));
    let all = (0..4).map(|n| slice_of(path, n)).collect::<Vec<_>>();
    for order in [
        json!({"tags": ["file"]}),
        json!({"urls": [format!("h{path}")]}),
        json!({"prefixes": ["h/ranges/"]}),
        json!({"keys": [["h", path]]}),
        json!({"all": true}),
    ] {
        check(&ask(&gateway, path, ""), 200, 0, (0, 200_000));
        node.asked();
        let body = order.to_string();
        let told = Peer::connect(&gateway.admin_address())
            .unwrap()
            .ask(format!(
                "POST /apisix/admin/cache/purge HTTP/1.1\r\nHost: h\r\nX-API-KEY: {KEY}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ))
            .unwrap();
        assert_eq!(told.json().unwrap()["forgotten"], 5, "{order}: {}", told.text());
        check(&ask(&gateway, path, ""), 200, 0, (0, 200_000));
        assert_eq!(node.asked(), all, "{order}");
    }
}

/// However many want a slice, a node is requested it once, and who leaves when it comes takes nothing away from the
/// others.
#[test]
fn one_asks_for_all_who_want_a_slice() {
    let origin = Origin::scripted().unwrap();
    let config = format!(
        "workers: 2\nlisteners: [\"{{listen}}\"]\nroutes:\n  - {{ id: all, uri: \"/*\", cache: {{ slice_bytes: {SLICE}, \
         lock_timeout: 60000 }}, upstream: {{ nodes: {} }} }}\n",
        nodes(&[&origin])
    );
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let asking = |start: usize| {
        let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
        let range = range(start, start + 9);
        peer.send(format!("GET /a HTTP/1.1\r\nHost: h\r\n{range}\r\n")).unwrap();
        peer
    };
    let mut first = asking(SLICE);
    let mut node = origin.accept().unwrap();
    assert_eq!(node.read_head().unwrap().get("range"), Some("bytes=65536-131071"));
    let mut others: Vec<Peer> = (1..30).map(|n| asking(SLICE + n * 1000)).collect();
    node.send(
        "HTTP/1.1 206 Part\r\nCache-Control: max-age=60\r\nETag: \"1\"\r\nContent-Range: bytes 65536-131071/200000\r\n\
         Content-Length: 65536\r\n\r\n",
    )
    .unwrap();
    node.send(bytes(0, SLICE, SLICE + 40_000)).unwrap();
    // A client that leaves before the response has not fetched for others: the next one would request again.
    assert_eq!(first.read_head().unwrap().status().unwrap(), 206);
    drop(first);
    node.send(bytes(0, SLICE + 40_000, SLICE * 2)).unwrap();
    for (at, peer) in others.iter_mut().enumerate() {
        let start = SLICE + (at + 1) * 1000;
        check(&peer.read_response("GET").unwrap(), 206, 0, (start, start + 10));
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn each_stale_slice_is_requested_again() {
    let node = Node::start();
    let gateway = node.gateway("");
    let path = "/stale/150000";
    check(&ask(&gateway, path, ""), 200, 0, (0, 150_000));
    assert_eq!(node.asked().len(), 3);
    let again = ask(&gateway, path, "");
    check(&again, 200, 0, (0, 150_000));
    assert_eq!(told(&again), "Sigma; fwd=stale; fwd-status=304; stored");
    assert_eq!(node.asked(), (0..3).map(|n| slice_of(path, n)).collect::<Vec<_>>());
    // A new version replaces all of them.
    node.version.store(1, Ordering::SeqCst);
    check(&ask(&gateway, path, ""), 200, 1, (0, 150_000));
}

#[test]
fn slices_are_on_disks() {
    let node = Node::start();
    let mut gateway =
        node.gateway("cache: { memory_bytes: 4194304, disk: { path: \"{dir}/cache\" } }\nstatus: { address: \"{status}\" }");
    let ready = |gateway: &Gateway, what: &str| {
        until(PATIENCE, || {
            let mut status = Peer::connect(&gateway.status_address()).unwrap();
            status.get("/status/counters").unwrap().text().contains(what)
        })
    };
    assert!(ready(&gateway, "sigma_cache_disk_ready{zone=\"\"} 1\n"));
    let path = "/ranges/400000";
    check(&ask(&gateway, path, ""), 200, 0, (0, 400_000));
    // Seven slices, and their index.
    assert!(ready(&gateway, "sigma_cache_disk_answers{zone=\"\"} 8\n"), "{}", gateway.stderr());
    node.asked();
    gateway.kill().unwrap();
    gateway.start_again().unwrap();
    assert!(ready(&gateway, "sigma_cache_disk_ready{zone=\"\"} 1\n"));
    check(&ask(&gateway, path, &range(130_000, 140_000)), 206, 0, (130_000, 140_001));
    check(&ask(&gateway, path, ""), 200, 0, (0, 400_000));
    assert!(node.asked().is_empty(), "{}", gateway.stderr());
    assert_eq!(try_ask(&gateway, "PURGE", path, "").unwrap().status(), 200);
    check(&ask(&gateway, path, &range(0, 9)), 206, 0, (0, 10));
    assert_eq!(node.asked(), [slice_of(path, 0)]);
}

/// A file much larger than the memory passes in slices, and the last used ones stay.
#[test]
fn a_large_answer_takes_no_more_than_its_memory() {
    let node = Node::start();
    let gateway = node.gateway("cache: { memory_bytes: 4194304 }");
    let before = gateway.settled_memory_kib().unwrap();
    let length = 96 << 20;
    let path = format!("/ranges/{length}");
    let whole = ask(&gateway, &path, "");
    check(&whole, 200, 0, (0, length));
    assert_eq!(node.asked().len(), length / SLICE);
    let grown = gateway.peak_memory_kib().unwrap().saturating_sub(before);
    assert!(grown < 32 << 10, "{grown} KiB");
}
