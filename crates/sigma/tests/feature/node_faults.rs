//! Faults that count against a node, and the number of its connections.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};
use sigma_net::Stream;
use sigma_net::tls::pem::Pair;
use sigma_net::tls::{AcceptOptions, Handshakes, Identity, Resumption, ServerIdentity, Versions, accept};
use sigma_testkit::{Gateway, Origin, Peer};
use tokio::net::TcpListener;

use crate::tls::{Authority, plain, run};
use crate::{PATIENCE, SIGMA, h2};

/// A gateway of one worker with a control listener in front of an upstream.
fn gateway(upstream: Value) -> Gateway {
    let config = json!({
        "workers": 1, "listeners": ["{listen}"], "control": { "address": "{control}" },
        "routes": [{ "id": "all", "uri": "/*", "upstream": upstream }],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

/// Checks by traffic alone: probes come once an hour.
fn passive(unhealthy: Value) -> Value {
    let active = json!({ "type": "tcp", "healthy": { "interval": 3600 }, "unhealthy": { "interval": 3600 } });
    json!({ "active": active, "passive": { "unhealthy": unhealthy } })
}

fn health(gateway: &Gateway) -> String {
    Peer::connect(&gateway.control_address()).unwrap().get("/v1/healthcheck").unwrap().text()
}

#[test]
fn a_host_that_tls_cannot_name_is_the_requests_fault() {
    let (a, b) = (Origin::scripted().unwrap(), Origin::scripted().unwrap());
    let checks = passive(json!({ "tcp_failures": 1, "http_failures": 1, "timeouts": 1 }));
    for scheme in ["https", "grpcs"] {
        let nodes = json!({ format!("127.0.0.1:{}", a.port()): 1, format!("127.0.0.1:{}", b.port()): 1 });
        let gateway = gateway(json!({ "nodes": nodes, "scheme": scheme, "checks": checks }));
        for host in ["!", "a..b", "-", "a_.$", &"x".repeat(300)] {
            let answer =
                gateway.connect().unwrap().ask(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).unwrap();
            assert_eq!(answer.status(), 400, "{scheme} {host}");
            assert_eq!(answer.head.get("x-apisix-upstream-status"), None, "{scheme} {host}");
        }
        assert!(!health(&gateway).contains("unhealthy"), "{}", health(&gateway));
    }
    assert_eq!((a.connections(), b.connections()), (0, 0), "no node was asked");
}

/// An HTTP/2 node over TLS, and how many connections to it are open.
async fn counted_node(root: &Authority) -> (u16, Rc<Cell<usize>>) {
    let issued = root.issue("node.test");
    let identity = Identity {
        pairs: vec![Pair::parse(&issued.cert, &issued.key, None).unwrap()],
        versions: Versions::ALL,
        offer: sigma_net::tls::Offer::default(),
        client_auth: None,
        resumption: Resumption::Off,
    };
    let identity = Arc::new(ServerIdentity::new(identity).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, open) = (listener.local_addr().unwrap().port(), Rc::new(Cell::new(0)));
    let counted = Rc::clone(&open);
    tokio::task::spawn_local(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (identity, open) = (Arc::clone(&identity), Rc::clone(&counted));
            tokio::task::spawn_local(async move {
                let options = AcceptOptions { alpn: [b"h2".to_vec()].into(), ..AcceptOptions::default() };
                let turns = Handshakes::new(8);
                let choose = |_: Option<&str>| Some(identity);
                let Ok(stream) = accept(Stream::Tcp(socket), b"", &options, &turns, choose).await else {
                    return;
                };
                open.set(open.get() + 1);
                if let Ok(mut connection) = ::h2::server::handshake(stream).await {
                    while let Some(Ok((_, mut respond))) = connection.accept().await {
                        let _ = respond.send_response(http::Response::new(()), true);
                    }
                }
                open.set(open.get() - 1);
            });
        }
    });
    (port, open)
}

#[test]
fn names_that_clients_choose_share_the_room_of_the_pool() {
    const SIZE: usize = 3;
    let root = Authority::new("Root");
    run(async {
        let (port, open) = counted_node(&root).await;
        for (scheme, tls) in [("grpcs", json!({})), ("https", json!({ "alpn": ["h2"] }))] {
            let gateway = gateway(json!({
                "nodes": { format!("127.0.0.1:{port}"): 1 }, "scheme": scheme, "tls": tls,
                "keepalive_pool": { "size": SIZE },
            }));
            let mut most = 0;
            for n in 0..20 {
                assert_eq!(plain(&gateway, &format!("h{n}.test")).await, 200);
                most = most.max(open.get());
            }
            // One more while the connection of the last request replaces an older one.
            assert!(most > 0 && most <= SIZE + 2, "{scheme}: {most} connections");
            let few = h2::until(|| open.get() <= SIZE);
            tokio::time::timeout(PATIENCE, few).await.expect("surplus connections end");
            drop(gateway);
        }
    });
}

/// Requests that wait for a connection that fails, fail with it, instead of trying in turns.
#[test]
fn requests_that_wait_for_a_connection_fail_with_it() {
    let deaf = Origin::serve(|mut peer| drop(peer.read_to_close())).unwrap();
    let gateway = gateway(json!({
        "nodes": { format!("127.0.0.1:{}", deaf.port()): 1 }, "scheme": "grpcs", "retries": 0,
        "timeout": { "connect": 1, "send": 5, "read": 5 },
    }));
    h2::within(async {
        let (sender, _driver) = h2::connect(&gateway).await;
        let asks: Vec<_> = (0..8)
            .map(|_| {
                let sender = sender.clone();
                tokio::spawn(async move { h2::get(&sender, "/").await.0 })
            })
            .collect();
        for ask in asks {
            assert_eq!(ask.await.unwrap(), 504);
        }
    });
    assert_eq!(deaf.connections(), 1, "one attempt for all");
}
