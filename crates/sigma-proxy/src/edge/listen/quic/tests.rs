//! A client over loopback sockets, in front of a worker.

use std::future::{Future, poll_fn};
use std::net::UdpSocket;

use rcgen::{CertificateParams, KeyPair};
use sigma_http::h1::{HeadLimits, Tolerance, parse_request};
use sigma_http::{BodyLength, Frame, Method, RequestHead, ResponseHead};
use sigma_net::listen::Claim;
use sigma_net::quic::ConnectionLost;
use sigma_net::tls::{ClientSettings, ClientTls, Versions};
use sigma_plugin::Roster;
use sigma_wire::Connection;
use sigma_wire::h2::Reused;
use sigma_wire::h3::{SharedConnection, SharedLimits};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use super::super::made_up::{compiled, serving};
use super::*;

const HEAD: HeadLimits =
    HeadLimits { line_bytes: 1_000, head_bytes: 1_000, fields: 10, tolerance: Tolerance::NONE };

const SHARED: SharedLimits = SharedLimits {
    head: HEAD,
    streams: 10,
    header_list_bytes: 1_000,
    table_bytes: 0,
    blocked_streams: 0,
    controls_per_second: u32::MAX,
    silence_ms: 60_000,
};

/// Returns a worker whose listener on `addr` has HTTP/3, and no route.
fn worker(addr: SocketAddr, limits: serde_json::Value) -> Rc<Worker> {
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["a.test".to_owned()]).unwrap().self_signed(&key).unwrap();
    let config = serde_json::json!({
        "listeners": [{ "address": addr.to_string(), "tls": true, "http3": { "alt_svc_port": 443 } }],
        "ssls": [{ "id": "1", "sni": "a.test", "cert": cert.pem(), "key": key.serialize_pem() }],
        "routes": [],
        "limits": limits,
    });
    serving(compiled(&config.to_string(), Roster::new([], None)), 7)
}

/// Sends a request without a body; returns the status and the body of the response.
async fn ask(connection: &mut Connection) -> (u16, Vec<u8>) {
    let mut head = RequestHead::default();
    parse_request(b"GET /x HTTP/1.1\r\nHost: a.test\r\n\r\n", &HEAD, &mut head).unwrap().unwrap();
    connection.send_head(&mut head, None, BodyLength::None, None);
    poll_fn(|cx| connection.poll_flush(cx)).await.unwrap();
    let mut response = ResponseHead::default();
    poll_fn(|cx| connection.poll_head(cx, Method::Get, &HEAD, &mut response)).await.unwrap();
    let mut body = Vec::new();
    while let Frame::Data(data) = poll_fn(|cx| connection.poll_frame(cx)).await.unwrap() {
        body.extend_from_slice(&data);
    }
    (response.status, body)
}

/// A worker that serves, and the tasks of its listener.
struct Serving {
    worker: Rc<Worker>,
    addr: SocketAddr,
    stop: Rc<Notify>,
    driving: JoinHandle<()>,
    accepting: JoinHandle<()>,
}

fn serve(limits: serde_json::Value) -> Serving {
    let addr = SocketAddr::from(([127, 0, 0, 1], sigma_testkit::free_port()));
    let worker = worker(addr, limits);
    QuicShared::of(&worker.node).set_workers(1);
    let socket = BoundSocket::udp(addr, Claim::First).unwrap();
    let endpoint = open_endpoint(&worker, &ListenPlace::Udp(addr), socket).unwrap();
    let driving = spawn_local(drive(Rc::clone(&worker), endpoint.clone()));
    let stop = Rc::new(Notify::new());
    let accepting = spawn_local(quic_loop(Rc::clone(&worker), endpoint, addr, None, Rc::clone(&stop)));
    Serving { worker, addr, stop, driving, accepting }
}

fn client_tls() -> ClientTls {
    let settings = ClientSettings {
        alpn: vec![b"h3".to_vec()],
        versions: Versions::ONLY_13,
        ..ClientSettings::default()
    };
    ClientTls::new(settings).unwrap()
}

/// Returns a client on an address of this machine.
fn client_on(ip: &str) -> Endpoint {
    let client = UdpSocket::bind((ip, 0)).unwrap();
    let client = Endpoint::client(client.into(), QuicLimits::default()).unwrap();
    let driven = client.clone();
    spawn_local(async move { driven.run().await });
    client
}

/// A packet with the address of another client must not use up the connections of that address.
async fn forged_addresses() {
    const VICTIM: &str = "127.0.0.2";
    let Serving { worker, addr, .. } = serve(serde_json::json!({ "connections_per_address": 2 }));
    let (relay, tls) = (tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap(), Rc::new(client_tls()));
    for _ in 0..4 {
        let (to, tls) = (relay.local_addr().unwrap(), Rc::clone(&tls));
        spawn_local(async move { client_on("127.0.0.1").connect(to, "a.test", &tls).await.is_ok() });
        let mut first = vec![0; 2048];
        // A client may send again before the next one begins; that is another forged packet.
        let length = relay.recv(&mut first).await.unwrap();
        UdpSocket::bind((VICTIM, 0)).unwrap().send_to(&first[..length], addr).unwrap();
    }
    let victim = client_on(VICTIM);
    let mut open = Vec::new();
    for number in 1..=2 {
        let shared = SharedConnection::open(victim.connect(addr, "a.test", &tls).await.unwrap(), &SHARED);
        assert_eq!(ask(&mut Connection::on_h3(&shared, Reused::No)).await.0, 404, "connection {number}");
        open.push(shared);
    }
    assert_eq!(worker.connections(), 2);
    // Its own connections count.
    let third = victim.connect(addr, "a.test", &tls).await.unwrap();
    let lost = poll_fn(|cx| third.poll_closed(cx)).await;
    assert_eq!(lost, ConnectionLost::Application(ErrorCode::EXCESSIVE_LOAD.0));
}

async fn requests_and_a_stop() {
    let Serving { worker, addr, stop, driving, accepting } = serve(serde_json::json!({}));
    let (tls, client) = (client_tls(), client_on("127.0.0.1"));
    let shared = SharedConnection::open(client.connect(addr, "a.test", &tls).await.unwrap(), &SHARED);
    for _ in 0..2 {
        let (status, body) = ask(&mut Connection::on_h3(&shared, Reused::No)).await;
        assert_eq!(status, 404, "{}", String::from_utf8_lossy(&body));
        assert!(!body.is_empty());
    }
    assert_eq!(worker.connections(), 1);
    let listener = worker.view().snapshot.listener(&ListenPlace::Tcp(addr)).cloned().unwrap();
    assert_eq!(alternative(&worker, &listener).as_deref(), Some("h3=\":443\"; ma=86400"));
    // An unknown name fails, and is no connection.
    assert!(client.connect(addr, "b.test", &tls).await.is_err());
    stop.notify_one();
    accepting.await.unwrap();
    assert_eq!(alternative(&worker, &listener), None);
    // The client gets GOAWAY and leaves; the driver ends with the last connection.
    driving.await.unwrap();
    assert_eq!(worker.connections(), 0);
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::select! {
            () = sigma_net::deadline::drive(|_| 1) => unreachable!("the wheel turns for ever"),
            done = tokio::time::timeout(Duration::from_secs(60), test) => done.unwrap(),
        }
    });
}

#[test]
fn requests_over_quic_are_served_until_a_stop() {
    run(requests_and_a_stop());
}

#[test]
fn forged_addresses_do_not_count_for_their_owner() {
    run(forged_addresses());
}
