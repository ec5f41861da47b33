//! Probes that look closely, and agents on nodes.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sigma_net::Stream;
use sigma_net::tls::pem::Pair;
use sigma_net::tls::{AcceptOptions, Handshakes, Identity, Resumption, ServerIdentity, Versions, accept};
use sigma_testkit::{Gateway, Origin, Peer, until};

use crate::managed::await_control;
use crate::overload::{Held, ask, begin};
use crate::tls::{Authority, Issued};
use crate::{PATIENCE, SIGMA};

/// A gateway with a control listener in front of nodes at these ports.
fn gateway(ports: &[u16], checks: Value) -> Gateway {
    let each = ports.iter().map(|port| (format!("127.0.0.1:{port}"), json!(10)));
    let config = json!({
        "workers": 1, "listeners": ["{listen}"], "control": { "address": "{control}" },
        "routes": [{ "id": "all", "uri": "/*", "upstream": {
            "nodes": Value::Object(each.collect()), "checks": checks,
        } }],
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    await_control(&gateway);
    gateway
}

/// Waits until `/v1/nodes` shows this of the node.
fn shows(gateway: &Gateway, port: u16, member: &str, want: &Value) {
    let node = || {
        let text = Peer::connect(&gateway.control_address()).unwrap().get("/v1/nodes/routes/all").unwrap();
        let shown: Value = serde_json::from_str(&text.text()).unwrap();
        let nodes = shown["nodes"].as_array().unwrap();
        nodes.iter().find(|node| node["node"] == format!("127.0.0.1:{port}")).unwrap().clone()
    };
    assert!(until(PATIENCE, || node()[member] == *want), "want {member} {want}: {}", node());
}

fn active(kind: &str, more: Value) -> Value {
    let mut active = json!({
        "type": kind, "timeout": 5, "fast_interval": 0.05, "interval_jitter_percent": 10,
        "healthy": { "interval": 1, "successes": 1 },
        "unhealthy": { "interval": 1, "http_failures": 2, "tcp_failures": 2, "timeouts": 2 },
    });
    active.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "active": active })
}

#[test]
fn probes_send_the_configured_host_to_addresses_and_names() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let probed = Arc::clone(&seen);
    let origin = Origin::answer(move |request| {
        let host = request.head.get("host").unwrap_or_default().to_owned();
        probed.lock().unwrap().push(host);
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()
    })
    .unwrap();
    let checks = |host: &str| {
        let mut checks = active("http", json!({ "http_path": "/hz" }));
        if !host.is_empty() {
            checks["active"]["host"] = host.into();
        }
        checks
    };
    let port = origin.port();
    for (node, upstream, host, want) in [
        ("localhost", json!({}), "site.test", "site.test".to_owned()),
        ("127.0.0.1", json!({}), "site.test", "site.test".to_owned()),
        ("localhost", json!({ "pass_host": "node" }), "site.test", "site.test".to_owned()),
        (
            "localhost",
            json!({ "pass_host": "rewrite", "upstream_host": "up.test" }),
            "site.test",
            "up.test".to_owned(),
        ),
        ("localhost", json!({}), "", "localhost".to_owned()),
        ("127.0.0.1", json!({}), "", "127.0.0.1".to_owned()),
        (
            "127.0.0.1",
            json!({ "pass_host": "rewrite", "upstream_host": "up.test" }),
            "",
            "up.test".to_owned(),
        ),
    ] {
        let mut whole = json!({ "nodes": { format!("{node}:{port}"): 1 }, "checks": checks(host) });
        whole.as_object_mut().unwrap().extend(upstream.as_object().unwrap().clone());
        let config = json!({
            "workers": 1, "listeners": ["{listen}"],
            "routes": [{ "id": "all", "uri": "/*", "upstream": whole }],
        });
        seen.lock().unwrap().clear();
        let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
        assert!(until(PATIENCE, || !seen.lock().unwrap().is_empty()), "no probe came to {node}");
        assert_eq!(seen.lock().unwrap()[0], want, "{node} {upstream} {host}");
        drop(gateway);
    }
}

#[test]
fn probes_begin_with_the_proxy_header_that_the_node_expects() {
    const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    for (version, kind, header) in [
        ("v1", "http", &b"PROXY UNKNOWN\r\n"[..]),
        ("v1", "tcp", b"PROXY UNKNOWN\r\n"),
        ("v2", "http", V2),
        ("v2", "tcp", V2),
    ] {
        let (tell, told) = std::sync::mpsc::channel();
        let tell = Mutex::new(tell);
        let origin = Origin::serve(move |mut peer| {
            let begins = peer.read_exactly(header.len());
            let _ = tell.lock().unwrap().send(begins.unwrap_or_default());
            if peer.read_request().is_ok() {
                let _ = peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        })
        .unwrap();
        let upstream = json!({
            "nodes": { format!("127.0.0.1:{}", origin.port()): 1 }, "proxy_protocol": version,
            "checks": active(kind, json!({})),
        });
        let config = json!({
            "workers": 1, "listeners": ["{listen}"],
            "routes": [{ "id": "all", "uri": "/*", "upstream": upstream }],
        });
        let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), header, "{version} {kind}");
        drop(gateway);
    }
}

#[test]
fn a_body_without_the_expected_text_is_a_failure() {
    let is_ready = Arc::new(AtomicBool::new(true));
    let told = Arc::clone(&is_ready);
    let node = Origin::answer(move |_| {
        let body = if told.load(Ordering::SeqCst) { "all is ready" } else { "not yet here" };
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 12\r\n\r\n{body}").into_bytes()
    });
    let node = node.unwrap();
    let gateway = gateway(&[node.port()], active("http", json!({ "http_expected_body": "is ready" })));
    shows(&gateway, node.port(), "status", &json!("healthy"));
    is_ready.store(false, Ordering::SeqCst);
    shows(&gateway, node.port(), "reason", &json!("active check: http_failure"));
    is_ready.store(true, Ordering::SeqCst);
    shows(&gateway, node.port(), "status", &json!("healthy"));
}

/// The health service of a gRPC node, over TLS if it has a certificate, with a settable status of `shop`.
fn grpc_node(serves: Arc<AtomicBool>, issued: Option<Issued>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let identity = issued.as_ref().map(identity);
            while let Ok((stream, _)) = listener.accept().await {
                let stream = Stream::Tcp(stream);
                tokio::task::spawn_local(answer_health(stream, identity.clone(), Arc::clone(&serves)));
            }
        });
    });
    port
}

fn identity(issued: &Issued) -> Arc<ServerIdentity> {
    let identity = Identity {
        pairs: vec![Pair::parse(&issued.cert, &issued.key, None).unwrap()],
        versions: Versions::ALL,
        offer: sigma_net::tls::Offer::default(),
        client_auth: None,
        resumption: Resumption::Off,
    };
    Arc::new(ServerIdentity::new(identity).unwrap())
}

async fn answer_health(stream: Stream, identity: Option<Arc<ServerIdentity>>, serves: Arc<AtomicBool>) {
    let (stream, scheme) = match identity {
        None => (stream, "http"),
        Some(identity) => {
            let options = AcceptOptions { alpn: [b"h2".to_vec()].into(), ..AcceptOptions::default() };
            let turns = Handshakes::new(8);
            let shaken = accept(stream, b"", &options, &turns, |_| Some(identity)).await;
            let Ok(stream) = shaken else { return };
            (stream, "https")
        }
    };
    let Ok(mut connection) = ::h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let serves = Arc::clone(&serves);
        tokio::task::spawn_local(async move {
            assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
            assert_eq!(request.uri().scheme_str(), Some(scheme));
            let mut body = request.into_body();
            let asked = body.data().await.unwrap().unwrap();
            assert_eq!(&asked[..], b"\0\0\0\0\x06\x0a\x04shop");
            let head = http::Response::builder().header("content-type", "application/grpc");
            let mut sending = respond.send_response(head.body(()).unwrap(), false).unwrap();
            let status = if serves.load(Ordering::SeqCst) { 1 } else { 2 };
            sending.send_data(vec![0, 0, 0, 0, 2, 8, status].into(), false).unwrap();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
            sending.send_trailers(trailers).unwrap();
        });
    }
}

#[test]
fn the_health_service_of_grpc_is_asked() {
    let serves = Arc::new(AtomicBool::new(true));
    for over_tls in [false, true] {
        let issued = over_tls.then(|| Authority::new("Root").issue("node.test"));
        let port = grpc_node(Arc::clone(&serves), issued);
        let kind = if over_tls { "grpcs" } else { "grpc" };
        let service = json!({ "grpc_service": "shop", "https_verify_certificate": false });
        let gateway = gateway(&[port], active(kind, service));
        serves.store(false, Ordering::SeqCst);
        shows(&gateway, port, "reason", &json!("active check: http_failure"));
        serves.store(true, Ordering::SeqCst);
        shows(&gateway, port, "status", &json!("healthy"));
    }
}

#[test]
fn an_unverified_certificate_fails_the_check() {
    let port = grpc_node(Arc::new(AtomicBool::new(true)), Some(Authority::new("Root").issue("node.test")));
    let gateway = gateway(&[port], active("grpcs", json!({ "grpc_service": "shop", "host": "node.test" })));
    shows(&gateway, port, "reason", &json!("active check: tcp_failure"));
}

/// An agent that has been asked `weight?` says its line.
fn agent(line: &Arc<Mutex<String>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, line) = (listener.local_addr().unwrap().port(), Arc::clone(line));
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut asked = [0; 8];
            if stream.read_exact(&mut asked).is_ok() && &asked == b"weight?\n" {
                let line = line.lock().unwrap().clone();
                let _ = stream.write_all(line.as_bytes());
            }
        }
    });
    port
}

#[test]
fn an_agent_weighs_drains_and_stops_its_node() {
    let (node, other) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let line = Arc::new(Mutex::new("50%\n".to_owned()));
    let asked = json!({ "port": agent(&line), "interval": 0.05, "timeout": 5, "send": "weight?\n" });
    let gateway = gateway(&[node.port(), other.port()], json!({ "agent": asked }));
    shows(&gateway, node.port(), "weight", &json!(5));
    let says = |text: &str| text.clone_into(&mut line.lock().unwrap());
    says("weight:3\n");
    shows(&gateway, node.port(), "weight", &json!(3));
    says("maxconn:7 weight:256\n");
    shows(&gateway, node.port(), "weight", &json!(256));
    let ignored = || gateway.stderr().matches("has no effect; set `limits.max_requests_per_node`").count();
    // Once for each node: both have this agent.
    assert!(until(PATIENCE, || ignored() == 2), "{}", gateway.stderr());
    says("drain 100%\n");
    shows(&gateway, node.port(), "reason", &json!("agent: drain"));
    shows(&gateway, node.port(), "weight", &json!(10));
    says("ready down #no disk\n");
    shows(&gateway, node.port(), "reason", &json!("agent: down"));
    says("up maxconn:7\n");
    shows(&gateway, node.port(), "in_use", &json!(true));
    assert_eq!(ignored(), 2);
}

#[test]
fn an_agent_says_how_many_requests_its_node_may_have() {
    let held = Arc::<Held>::default();
    let node = held.origin();
    let line = Arc::new(Mutex::new("maxconn:2 50%\n".to_owned()));
    let asked = json!({ "port": agent(&line), "interval": 0.05, "timeout": 5, "send": "weight?\n" });
    let config = json!({
        "workers": 1, "listeners": ["{listen}"], "control": { "address": "{control}" },
        "routes": [{ "id": "all", "uri": "/*", "upstream": {
            "nodes": { format!("127.0.0.1:{}", node.port()): 10 }, "checks": { "agent": asked },
            "limits": { "max_requests_per_node": 1 },
        } }],
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    await_control(&gateway);
    // One that has a place behind the bound.
    let enter = |place: usize| loop {
        let one = begin(&gateway, "");
        assert!(until(PATIENCE, || one.is_finished() || held.seen() == place));
        if held.seen() == place {
            return one;
        }
    };
    shows(&gateway, node.port(), "weight", &json!(5));
    let inside = [enter(1), enter(2)];
    assert_eq!(ask(&gateway).0, 503);
    "maxconn:1 30%\n".clone_into(&mut line.lock().unwrap());
    shows(&gateway, node.port(), "weight", &json!(3));
    held.let_go(2);
    inside.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), 200));
    let alone = enter(3);
    assert_eq!(ask(&gateway).0, 503);
    held.let_go(1);
    assert_eq!(alone.join().unwrap(), 200);
    assert!(!gateway.stderr().contains("maxconn"), "{}", gateway.stderr());
}

/// The service is away at first: missed events are sent again.
#[test]
fn a_service_gets_events_when_a_node_goes_out_and_comes_back() {
    let told = Arc::new(Mutex::new(Vec::<Value>::new()));
    let (calls, heard) = (AtomicBool::new(false), Arc::clone(&told));
    let service = Origin::answer(move |call| {
        if !calls.swap(true, Ordering::SeqCst) {
            return b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n".to_vec();
        }
        let body: Value = serde_json::from_slice(&call.body).unwrap();
        heard.lock().unwrap().extend(body["events"].as_array().unwrap().iter().cloned());
        b"HTTP/1.1 204 X\r\n\r\n".to_vec()
    });
    let service = service.unwrap();
    let is_up = Arc::new(AtomicBool::new(true));
    let answers = Arc::clone(&is_up);
    let node = Origin::answer(move |_| {
        let status = if answers.load(Ordering::SeqCst) { 200 } else { 500 };
        format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n").into_bytes()
    });
    let node = node.unwrap();
    let config = json!({
        "workers": 1, "listeners": ["{listen}"],
        "health_events": { "webhook": {
            "url": format!("http://127.0.0.1:{}/health", service.port()), "retry_delay_ms": 10,
        } },
        "routes": [{ "id": "all", "uri": "/*", "upstream": {
            "nodes": { format!("127.0.0.1:{}", node.port()): 1 }, "checks": active("http", json!({})),
        } }],
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let event = |reason: Value| {
        let name = format!("127.0.0.1:{}", node.port());
        json!({"upstream": "routes/all", "node": name, "address": name, "in_use": reason.is_null(), "reason": reason})
    };
    let hears = |want: &[Value]| {
        let heard = until(PATIENCE, || *told.lock().unwrap() == want);
        assert!(heard, "{:?}\n{}", told.lock().unwrap(), gateway.stderr());
    };
    is_up.store(false, Ordering::SeqCst);
    let out = event(json!("active check: http_failure"));
    hears(std::slice::from_ref(&out));
    is_up.store(true, Ordering::SeqCst);
    hears(&[out, event(Value::Null)]);
}
