//! Limits and queues of upstreams, over all workers.

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
