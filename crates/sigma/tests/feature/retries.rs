//! Retry policies and deadlines: repeated requests, their times and numbers, and their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use sigma_testkit::{Address, Gateway, Origin};

use crate::SIGMA;
use crate::h2::{Node, connect, get, within};

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

fn hedging(rules: Value) -> Value {
    let mut policy = json!({ "retry_on": ["reset"], "hedging": { "delay": 0.05 } });
    policy.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
    json!({ "retry_policy": policy })
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
