//! Retry policies and deadlines: repeated requests, their times and numbers, and their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use sigma_testkit::{Address, Gateway, Origin, until};

use crate::h2::{Node, connect, get, within};
use crate::{PATIENCE, SIGMA};

/// A gateway of one worker in front of the nodes, with `rules` in its upstream.
fn gateway(nodes: &[&Origin], rules: Value) -> Gateway {
    let mut upstream = json!({ "nodes": nodes_of(nodes) });
    upstream.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
    let routes = json!([{ "id": "all", "uri": "/*", "upstream": upstream }]);
    start(&routes)
}

fn start(routes: &Value) -> Gateway {
    let config = json!({
        "workers": 1, "listeners": ["{listen}"], "status": { "address": "{status}" }, "routes": routes,
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn nodes_of(nodes: &[&Origin]) -> Value {
    nodes
        .iter()
        .map(|node| (format!("127.0.0.1:{}", node.port()), json!(1)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn answer(status: u16, fields: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Always answers so.
fn always(status: u16, fields: &'static str) -> Origin {
    Origin::answer(move |_| answer(status, fields, "no")).unwrap()
}

/// Responds to the first `failures` requests with 503 and `fields`, the others with 200 and the body that came.
fn recovering(failures: usize, fields: &'static str) -> Origin {
    let seen = AtomicUsize::new(0);
    Origin::answer(move |request| match seen.fetch_add(1, Ordering::SeqCst) < failures {
        true => answer(503, fields, "no"),
        false => answer(200, "", &request.text()),
    })
    .unwrap()
}

/// Takes requests and answers none; counts them in `seen`.
fn silent(seen: &Arc<AtomicUsize>) -> Origin {
    let seen = Arc::clone(seen);
    Origin::serve(move |mut peer| {
        while peer.read_request().is_ok() {
            seen.fetch_add(1, Ordering::SeqCst);
        }
    })
    .unwrap()
}

fn ask(gateway: &Gateway, method: &str, fields: &str, body: &str) -> (u16, String) {
    let request =
        format!("{method} / HTTP/1.1\r\nHost: h\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len());
    let message = gateway.connect().unwrap().ask(request).unwrap();
    (message.status(), message.text())
}

fn status_of(gateway: &Gateway, method: &str) -> u16 {
    ask(gateway, method, "", "").0
}

#[test]
fn statuses_are_retried_where_that_is_safe() {
    let (bad, good) = (always(503, ""), always(200, ""));
    let gateway = gateway(&[&bad, &good], json!({ "retry_policy": { "retry_on": ["gateway-error"] } }));
    for _ in 0..8 {
        assert_eq!(status_of(&gateway, "GET"), 200);
    }
    let posts: Vec<u16> = (0..8).map(|_| status_of(&gateway, "POST")).collect();
    assert_eq!(posts.iter().filter(|status| **status == 503).count(), 4, "{posts:?}");
    assert_eq!(gateway.counter("sigma_upstream_retries_total"), bad.requests() as u64 - 4);
}

#[test]
fn a_body_is_sent_again_as_it_was() {
    let node = recovering(2, "");
    let policy = json!({ "retry_on": ["5xx"], "back_off": { "base_interval": 0.001 } });
    let gateway = gateway(&[&node], json!({ "retries": 2, "retry_policy": policy }));
    let body = "0123456789".repeat(3_000);
    assert_eq!(ask(&gateway, "PUT", "", &body), (200, body));
    assert_eq!(node.requests(), 3);
}

#[test]
fn the_last_answer_is_the_clients() {
    let (one, other) = (always(503, "X-Node: 1\r\n"), always(503, "X-Node: 2\r\n"));
    let policy = json!({ "retry_on": ["5xx"], "back_off": { "base_interval": 0.001 } });
    // More attempts than nodes: each is queried again.
    let gateway = gateway(&[&one, &other], json!({ "retries": 3, "retry_policy": policy }));
    assert_eq!(ask(&gateway, "GET", "", ""), (503, "no".to_owned()));
    assert_eq!((one.requests(), other.requests()), (2, 2));
}

#[test]
fn a_node_says_when_it_wants_to_be_asked_again() {
    let rules = |longest: u32| json!({ "retries": 1, "retry_policy": { "retry_on": ["5xx"], "max_retry_after": longest } });
    let soon = recovering(1, "Retry-After: 1\r\n");
    assert_eq!(status_of(&gateway(&[&soon], rules(1)), "GET"), 200);
    let late = recovering(1, "Retry-After: 2\r\n");
    assert_eq!(status_of(&gateway(&[&late], rules(1)), "GET"), 503);
    assert_eq!(late.requests(), 1);
}

#[test]
fn a_budget_bounds_retries() {
    let node = always(503, "");
    let policy = json!({ "retry_on": ["5xx"], "budget": { "percent": 0, "min_concurrency": 0 } });
    let gateway = gateway(&[&node], json!({ "retries": 5, "retry_policy": policy }));
    assert_eq!(status_of(&gateway, "GET"), 503);
    assert_eq!(node.requests(), 1);
    assert_eq!(gateway.counter("sigma_upstream_retries_over_budget_total"), 1);
}

#[test]
fn one_attempt_has_its_own_time() {
    let (mute, good) = (silent(&Arc::default()), always(200, ""));
    let policy = json!({ "retry_on": ["reset"], "per_try_timeout": 0.1 });
    let gateway = gateway(&[&mute, &good], json!({ "retry_policy": policy }));
    for _ in 0..4 {
        assert_eq!(status_of(&gateway, "GET"), 200);
    }
    // A node may have carried out a POST.
    let posts = [status_of(&gateway, "POST"), status_of(&gateway, "POST")];
    assert!(posts.contains(&504) && posts.contains(&200), "{posts:?}");
}

#[test]
fn a_deadline_ends_all_attempts() {
    let seen = Arc::default();
    let (one, other) = (silent(&seen), silent(&seen));
    let rules = json!({
        "retries": 100, "deadline": { "timeout": 0.4 },
        "retry_policy": { "retry_on": ["reset"], "per_try_timeout": 0.1 },
    });
    let gateway = gateway(&[&one, &other], rules);
    assert_eq!(status_of(&gateway, "GET"), 504);
    let attempts = seen.load(Ordering::SeqCst);
    assert!((1..=4).contains(&attempts), "{attempts}");
    // Neither does a pause go beyond it.
    let busy = always(503, "Retry-After: 100\r\n");
    let policy = json!({ "retry_on": ["5xx"], "max_retry_after": 300 });
    let rules = json!({ "retries": 1, "deadline": { "timeout": 0.2 }, "retry_policy": policy });
    assert_eq!(status_of(&self::gateway(&[&busy], rules), "GET"), 504);
}

#[test]
fn a_node_gets_the_remaining_time() {
    let node =
        Origin::answer(|request| answer(200, "", request.head.get("x-time-left").unwrap_or("none"))).unwrap();
    let rules = json!({ "deadline": { "timeout": 60, "header": "X-Time-Left" } });
    let gateway = gateway(&[&node], rules);
    let told = |fields: &str| ask(&gateway, "GET", fields, "").1.parse::<u64>().unwrap();
    assert_eq!(told(""), 60_000);
    assert_eq!(told("X-Time-Left: 7000\r\n"), 7_000);
    // A client cannot extend its own time.
    assert_eq!(told("X-Time-Left: 70000000\r\n"), 60_000);
    let mute = silent(&Arc::default());
    let rules = json!({ "deadline": { "timeout": 60, "header": "X-Time-Left" } });
    let gateway = self::gateway(&[&mute], rules);
    assert_eq!(ask(&gateway, "GET", "X-Time-Left: 100\r\n", "").0, 504);
}

#[test]
fn a_route_has_rules_of_its_own() {
    let node = Arc::new(recovering(1, ""));
    let upstream = json!({ "nodes": nodes_of(&[&node]), "retries": 1 });
    let policy = json!({ "retry_on": ["5xx"] });
    let gateway = start(&json!([
        { "id": "plain", "uri": "/plain", "upstream": upstream },
        { "id": "own", "uri": "/*", "upstream": upstream, "retry_policy": policy },
    ]));
    assert_eq!(gateway.connect().unwrap().get("/plain").unwrap().status(), 503);
    let node = Arc::new(recovering(1, ""));
    let upstream = json!({ "nodes": nodes_of(&[&node]), "retries": 1 });
    let gateway = start(&json!([{ "id": "own", "uri": "/*", "upstream": upstream, "retry_policy": policy }]));
    assert_eq!(gateway.connect().unwrap().get("/").unwrap().status(), 200);
}

#[test]
fn a_policy_without_effect_is_refused() {
    let config = json!({
        "listeners": ["127.0.0.1:0"],
        "routes": [{
            "id": "r", "uri": "/*",
            "upstream": { "nodes": { "127.0.0.1:1": 1 }, "retry_policy": { "per_try_timeout": 1 } },
        }],
    });
    let file = std::env::temp_dir().join(format!("sigma-retries-{}.json", std::process::id()));
    std::fs::write(&file, config.to_string()).unwrap();
    let output = std::process::Command::new(SIGMA).args(["check"]).arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    let text =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("retry_policy") && text.contains("has no condition"), "{text}");
}

fn hedging(rules: Value) -> Value {
    let mut policy = json!({ "retry_on": ["reset"], "hedging": { "delay": 0.05 } });
    policy.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
    json!({ "retry_policy": policy })
}

/// An origin that responds to no request and counts the connections that were closed on it.
fn left_alone(closed: &Arc<AtomicUsize>) -> Origin {
    let closed = Arc::clone(closed);
    Origin::serve(move |mut peer| {
        while peer.read_request().is_ok() {}
        closed.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap()
}

#[test]
fn the_first_of_two_answers_is_served_and_the_other_attempt_taken_back() {
    let closed = Arc::default();
    let (mute, good) = (left_alone(&closed), always(200, "X-Node: good\r\n"));
    let gateway = gateway(&[&mute, &good], hedging(json!({})));
    for _ in 0..6 {
        assert_eq!(status_of(&gateway, "GET"), 200);
    }
    let hedges = gateway.counter("sigma_upstream_hedges_total");
    assert!(hedges >= 3, "{hedges}");
    assert_eq!(gateway.counter("sigma_upstream_hedges_won_total"), hedges);
    assert!(until(PATIENCE, || closed.load(Ordering::SeqCst) as u64 == hedges));
    // The connection on which the second was answered is kept.
    assert_eq!(good.connections(), 1);
}

/// A node that verifies signatures, each over the Host of who was queried, and one that never responds.
#[test]
fn the_second_request_is_signed_for_its_node() {
    let (seen, good) = (Arc::default(), always(200, ""));
    let mute = silent(&seen);
    let secret = "a secret of both sides";
    let consumer =
        json!({"username": "gateway", "plugins": {"hmac-auth": {"key_id": "gateway", "secret_key": secret}}});
    let verifying = json!({
        "workers": 1, "listeners": ["{listen}"], "consumers": [consumer],
        "routes": [{
            "id": "all", "uri": "/*", "upstream": {"nodes": nodes_of(&[&good])},
            "plugins": {"hmac-auth": {"message_signatures": {"components": ["@method", "@authority", "@path", "@query"]}}},
        }],
    });
    let verifying = Gateway::start(SIGMA, &verifying.to_string()).unwrap();
    let Address::Tcp(at) = verifying.address() else { panic!("it listens on TCP") };
    let mut upstream = json!({"pass_host": "node", "nodes": {
        format!("127.0.0.1:{}", mute.port()): 1, format!("127.0.0.1:{}", at.port()): 1,
    }});
    upstream.as_object_mut().unwrap().extend(hedging(json!({})).as_object().unwrap().clone());
    let signs = json!({"upstream-auth": {"message_signature": {
        "key_id": "gateway", "secret_key": secret, "components": ["@method", "@authority", "@path", "@query"],
    }}});
    let gateway = start(&json!([{"id": "all", "uri": "/*", "plugins": signs, "upstream": upstream}]));
    for _ in 0..6 {
        assert_eq!(status_of(&gateway, "GET"), 200);
    }
    let won = gateway.counter("sigma_upstream_hedges_won_total");
    assert!(won >= 3 && seen.load(Ordering::SeqCst) as u64 >= won, "{won}");
}

#[test]
fn non_idempotent_requests_go_to_one_node() {
    let seen = Arc::default();
    let nodes = [silent(&seen), silent(&seen)];
    let nodes = [&nodes[0], &nodes[1]];
    let asked = |rules: Value, method: &str, body: &str| {
        let mut rules = hedging(rules);
        rules["deadline"] = json!({ "timeout": 0.5 });
        let gateway = gateway(&nodes, rules);
        seen.store(0, Ordering::SeqCst);
        assert_eq!(ask(&gateway, method, "", body).0, 504);
        seen.load(Ordering::SeqCst)
    };
    assert_eq!(asked(json!({}), "GET", ""), 2);
    assert_eq!(asked(json!({}), "POST", ""), 1);
    assert_eq!(asked(json!({ "methods": ["POST"] }), "POST", ""), 2);
    assert_eq!(asked(json!({}), "PUT", "a body"), 1);
    assert_eq!(asked(json!({ "budget": { "percent": 0, "min_concurrency": 0 } }), "GET", ""), 1);
}

#[test]
fn a_second_node_that_fails_leaves_the_first_its_time() {
    // The slow one answers when the other has been asked, and has closed.
    let (asked, closed) = std::sync::mpsc::channel();
    let closed = std::sync::Mutex::new(closed);
    let slow = Origin::answer(move |_| {
        closed.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        answer(200, "", "slow")
    })
    .unwrap();
    let closing = Origin::serve(move |mut peer| {
        let is_asked = peer.read_request().is_ok();
        drop(peer);
        if is_asked {
            asked.send(()).unwrap();
        }
    })
    .unwrap();
    let gateway = gateway(&[&slow, &closing], hedging(json!({})));
    for _ in 0..4 {
        // Whichever is queried first: a reset is retried, and a hedge that fails is let go.
        assert_eq!(ask(&gateway, "GET", "", ""), (200, "slow".to_owned()));
    }
}

#[test]
fn streams_are_hedged_too() {
    within(async {
        let mute = Node::start(h2::server::Builder::new(), |_, respond| async move {
            let _kept = respond;
            std::future::pending::<()>().await;
        })
        .await;
        let good = Node::start(h2::server::Builder::new(), |_, mut respond| async move {
            respond.send_response(http::Response::new(()), true).unwrap();
        })
        .await;
        let nodes =
            json!({ format!("127.0.0.1:{}", mute.port()): 1, format!("127.0.0.1:{}", good.port()): 1 });
        let mut upstream = json!({ "nodes": nodes, "scheme": "grpc" });
        upstream.as_object_mut().unwrap().extend(hedging(json!({})).as_object().unwrap().clone());
        let gateway = start(&json!([{ "id": "all", "uri": "/*", "upstream": upstream }]));
        let (sender, _driver) = connect(&gateway).await;
        for _ in 0..4 {
            assert_eq!(get(&sender, "/").await.0, 200);
        }
    });
}
