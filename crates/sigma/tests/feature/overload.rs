//! Guards of upstreams: limits and queues, circuit breakers, admission control, adaptive concurrency.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, until};

use crate::{PATIENCE, SIGMA};

/// Answers on command, one request at a time; records the order in which they came.
#[derive(Default)]
pub(crate) struct Held {
    free: Mutex<usize>,
    changed: Condvar,
    seen: Mutex<Vec<String>>,
}

impl Held {
    pub(crate) fn origin(self: &Arc<Held>) -> Origin {
        let held = Arc::clone(self);
        Origin::answer(move |request| {
            held.seen.lock().unwrap().push(request.head.get("x-name").unwrap_or_default().to_owned());
            let mut free = held.changed.wait_while(held.free.lock().unwrap(), |free| *free == 0).unwrap();
            *free -= 1;
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()
        })
        .unwrap()
    }

    pub(crate) fn let_go(&self, count: usize) {
        *self.free.lock().unwrap() += count;
        self.changed.notify_all();
    }

    pub(crate) fn seen(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

/// An origin that returns 200 or 500, as set.
pub(crate) fn moody(good: &Arc<AtomicBool>) -> Origin {
    let good = Arc::clone(good);
    Origin::answer(move |_| {
        let status = if good.load(Ordering::SeqCst) { 200 } else { 500 };
        format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n").into_bytes()
    })
    .unwrap()
}

fn upstream(origin: &Origin, rules: &Value) -> Value {
    let mut upstream = json!({ "id": "u", "nodes": { format!("127.0.0.1:{}", origin.port()): 1 } });
    upstream.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
    upstream
}

fn start(workers: u32, upstreams: &Value) -> Gateway {
    let config = json!({
        "workers": workers, "listeners": ["{listen}"], "status": { "address": "{status}" },
        "timeouts": { "half_close_ms": 100 },
        "upstreams": upstreams, "routes": [{ "id": "all", "uri": "/*", "upstream_id": "u" }],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn gateway(origin: &Origin, rules: Value) -> Gateway {
    start(2, &json!([upstream(origin, &rules)]))
}

/// With one worker, a request that follows a response finds what that has changed.
fn small(origin: &Origin, rules: Value) -> Gateway {
    start(1, &json!([upstream(origin, &rules)]))
}

pub(crate) fn ask(gateway: &Gateway) -> (u16, String) {
    let answer = gateway.connect().unwrap().get("/").unwrap();
    (answer.status(), answer.text())
}

/// Asks on its own thread.
pub(crate) fn begin(gateway: &Gateway, fields: &str) -> JoinHandle<u16> {
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    std::thread::spawn(move || client.ask(request).unwrap().status())
}

#[test]
fn requests_beyond_the_limit_are_refused() {
    let held = Arc::<Held>::default();
    let origin = held.origin();
    let gateway = gateway(&origin, json!({ "limits": { "max_requests": 2 } }));
    let inside = [begin(&gateway, ""), begin(&gateway, "")];
    assert!(until(PATIENCE, || held.seen() == 2));
    let (status, text) = ask(&gateway);
    assert!(status == 503 && text.contains("upstream_overloaded"), "{status} {text}");
    held.let_go(2);
    inside.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), 200));
    held.let_go(1);
    // The slot of an answered request is free a moment later.
    assert!(until(PATIENCE, || ask(&gateway).0 == 200));
    assert!(gateway.counter("sigma_upstream_refused_limit_total") >= 1);
}

#[test]
fn requests_wait_in_order_of_their_priority() {
    let held = Arc::<Held>::default();
    let origin = held.origin();
    let queue = json!({ "length": 3, "timeout": 60, "priority": "http_x_priority" });
    let gateway = gateway(&origin, json!({ "limits": { "max_requests": 1, "queue": queue } }));
    let name = |name: &str, priority: i32| format!("X-Name: {name}\r\nX-Priority: {priority}\r\n");
    let mut all = vec![begin(&gateway, &name("first", 0))];
    assert!(until(PATIENCE, || held.seen() == 1));
    for (at, (who, priority)) in [("batch", 10), ("person", -5), ("plain", 0)].into_iter().enumerate() {
        all.push(begin(&gateway, &name(who, priority)));
        // Each is in the queue before the next one comes.
        let requests = at as u64 + 2;
        assert!(until(PATIENCE, || gateway.counter("sigma_requests_total") == requests));
    }
    let (status, text) = ask(&gateway);
    assert!(status == 503 && text.contains("queue"), "{status} {text}");
    held.let_go(4);
    all.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), 200));
    assert_eq!(*held.seen.lock().unwrap(), ["first", "person", "plain", "batch"]);
}

#[test]
fn no_request_waits_longer_than_the_queue_allows() {
    let held = Arc::<Held>::default();
    let origin = held.origin();
    let queue = json!({ "length": 3, "timeout": 0.1 });
    let gateway = gateway(&origin, json!({ "limits": { "max_requests": 1, "queue": queue } }));
    let inside = begin(&gateway, "");
    assert!(until(PATIENCE, || held.seen() == 1));
    let (status, text) = ask(&gateway);
    assert!(status == 503 && text.contains("waited too long"), "{status} {text}");
    held.let_go(1);
    assert_eq!(inside.join().unwrap(), 200);
}

#[test]
fn a_request_that_leaves_the_queue_makes_room() {
    let held = Arc::<Held>::default();
    let origin = held.origin();
    let queue = json!({ "length": 1, "timeout": 600 });
    let gateway = small(&origin, json!({ "limits": { "max_requests": 1, "queue": queue } }));
    let inside = begin(&gateway, "");
    assert!(until(PATIENCE, || held.seen() == 1));
    let mut leaves = gateway.connect().unwrap();
    leaves.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert!(until(PATIENCE, || gateway.counter("sigma_requests_total") == 2));
    assert_eq!(ask(&gateway).0, 503);
    drop(leaves);
    assert!(until(PATIENCE, || gateway.counter("sigma_exchanges_ended_total") == 2));
    let waits = begin(&gateway, "");
    assert!(until(PATIENCE, || gateway.counter("sigma_requests_total") == 4));
    held.let_go(2);
    assert_eq!([inside.join().unwrap(), waits.join().unwrap()], [200, 200]);
}

#[test]
fn a_breaker_opens_and_closes() {
    let good = Arc::new(AtomicBool::new(false));
    let origin = moody(&good);
    let rules = json!({
        "minimum_number_of_calls": 4, "wait_duration_in_open_state": 0.3,
        "permitted_number_of_calls_in_half_open_state": 2,
    });
    let gateway = small(&origin, json!({ "circuit_breaker": rules }));
    for _ in 0..4 {
        assert_eq!(ask(&gateway).0, 500);
    }
    let (status, text) = ask(&gateway);
    assert!(status == 503 && text.contains("circuit_breaker_open"), "{status} {text}");
    assert_eq!(origin.requests(), 4);
    good.store(true, Ordering::SeqCst);
    assert!(until(PATIENCE, || ask(&gateway).0 == 200));
    for _ in 0..20 {
        assert_eq!(ask(&gateway).0, 200);
    }
    assert!(gateway.counter("sigma_upstream_refused_breaker_total") >= 1);
}

/// An attacker may give requests so little time that they fail: that does not count against the upstream.
#[test]
fn the_clients_own_time_opens_no_breaker() {
    let held = Arc::<Held>::default();
    let origin = held.origin();
    let breaker = json!({ "minimum_number_of_calls": 2, "wait_duration_in_open_state": 600 });
    let rules = |timeout: f64| json!({ "deadline": { "timeout": timeout, "header": "X-Time" }, "circuit_breaker": breaker });
    let patient = small(&origin, rules(60.0));
    let hasty = || begin(&patient, "X-Time: 50\r\n").join().unwrap();
    assert_eq!([hasty(), hasty(), hasty(), hasty()], [504; 4]);
    held.let_go(100);
    assert_eq!(ask(&patient).0, 200);
    // The time that the operator gives is the upstream's to keep.
    let held = Arc::<Held>::default();
    let origin = held.origin();
    let strict = small(&origin, rules(0.1));
    let statuses: Vec<u16> = (0..3).map(|_| ask(&strict).0).collect();
    assert_eq!(statuses, [504, 504, 503]);
    held.let_go(100);
}

#[test]
fn a_client_that_sends_slowly_makes_no_upstream_slow() {
    let good = moody(&Arc::new(AtomicBool::new(true)));
    let slow = std::time::Duration::from_millis(300);
    let rules = json!({
        "minimum_number_of_calls": 2, "wait_duration_in_open_state": 600,
        "slow_call_duration_threshold": 0.25, "slow_call_rate_threshold": 1,
    });
    let gateway = small(&good, json!({ "circuit_breaker": rules }));
    for _ in 0..3 {
        let mut client = gateway.connect().unwrap();
        client.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n1").unwrap();
        let began = std::time::Instant::now();
        assert!(until(PATIENCE, || began.elapsed() > slow));
        assert_eq!(client.ask("2").unwrap().status(), 200);
    }
    assert_eq!(ask(&gateway).0, 200);
}

#[test]
fn forged_sessions_open_no_breaker() {
    let good = moody(&Arc::new(AtomicBool::new(true)));
    let rules = json!({
        "circuit_breaker": { "minimum_number_of_calls": 2, "wait_duration_in_open_state": 600 },
        "session_affinity": { "secret": "0123456789abcdef", "cookie": { "name": "node" }, "on_gone": "reject" },
    });
    let gateway = small(&good, rules);
    let forged = format!("Cookie: node={}\r\n", "1".repeat(32));
    for _ in 0..4 {
        assert_eq!(begin(&gateway, &forged).join().unwrap(), 503);
    }
    assert_eq!(ask(&gateway).0, 200);
}

#[test]
fn an_open_breaker_has_an_answer_or_another_upstream() {
    let bad = moody(&Arc::new(AtomicBool::new(false)));
    let good = moody(&Arc::new(AtomicBool::new(true)));
    let rules = |fallback: Value| {
        json!({ "circuit_breaker": {
            "minimum_number_of_calls": 2, "wait_duration_in_open_state": 600, "fallback": fallback,
        } })
    };
    let answer = json!({ "status": 203, "body": "[]", "content_type": "application/json" });
    let fixed = small(&bad, rules(answer));
    let statuses: Vec<u16> = (0..4).map(|_| ask(&fixed).0).collect();
    assert_eq!(statuses, [500, 500, 203, 203]);
    let message = fixed.connect().unwrap().get("/").unwrap();
    assert_eq!((message.head.get("content-type"), &*message.text()), (Some("application/json"), "[]"));

    let mut other = upstream(&good, &json!({}));
    other["id"] = json!("other");
    let upstreams = json!([upstream(&bad, &rules(json!({ "upstream_id": "other" }))), other]);
    let gateway = start(1, &upstreams);
    let statuses: Vec<u16> = (0..4).map(|_| ask(&gateway).0).collect();
    assert_eq!(statuses, [500, 500, 200, 200]);
    assert_eq!(good.requests(), 2);
}

#[test]
fn admission_follows_the_rate_of_success() {
    let good = Arc::new(AtomicBool::new(false));
    let origin = moody(&good);
    let rules = json!({ "admission_control": { "max_rejection_probability": 100, "sampling_window": 600 } });
    let gateway = start(1, &json!([upstream(&origin, &rules)]));
    assert_eq!(ask(&gateway).0, 500);
    // n / (n + 1) of them are refused.
    assert!(until(PATIENCE, || ask(&gateway).0 == 503));
    assert!(gateway.counter("sigma_upstream_refused_admission_total") >= 1);
}

#[test]
fn the_best_latency_is_measured_with_few_requests() {
    let held = Arc::<Held>::default();
    let origin = held.origin();
    let gateway =
        start(1, &json!([upstream(&origin, &json!({ "adaptive_concurrency": { "min_concurrency": 1 } }))]));
    let inside = begin(&gateway, "");
    assert!(until(PATIENCE, || held.seen() == 1));
    assert_eq!(ask(&gateway).0, 503);
    held.let_go(1);
    assert_eq!(inside.join().unwrap(), 200);
    assert_eq!(gateway.counter("sigma_upstream_refused_concurrency_total"), 1);
}

#[test]
fn a_dry_run_only_counts() {
    let bad = moody(&Arc::new(AtomicBool::new(false)));
    let rules = json!({
        "circuit_breaker": { "minimum_number_of_calls": 2, "wait_duration_in_open_state": 600, "dry_run": true },
        "limits": { "max_requests": 1, "dry_run": true },
        "adaptive_concurrency": { "dry_run": true }, "admission_control": { "dry_run": true },
    });
    let gateway = small(&bad, rules);
    for _ in 0..10 {
        assert_eq!(ask(&gateway).0, 500);
    }
    assert!(gateway.counter("sigma_upstream_refused_dry_run_total") >= 8);
    assert_eq!(bad.requests(), 10);
}
