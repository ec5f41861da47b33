//! Probes that look closely, and agents on nodes.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sigma_net::Stream;
use sigma_net::tls::pem::Pair;
use sigma_net::tls::{AcceptOptions, Handshakes, Identity, Resumption, ServerIdentity, Versions, accept};
use sigma_testkit::{Gateway, Origin, Peer, until};

use crate::managed::await_control;
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
