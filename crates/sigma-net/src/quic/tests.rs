//! Two ends over loopback sockets in one process.

mod early_data;
mod networks;
mod steering;
mod waiting;

use std::future::{Future, poll_fn};
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustls::AlertDescription;
use sigma_buffer::Chunk;
use sigma_buffer::held::{self, Account};
use tokio::task::{LocalSet, spawn_local};

use super::ids::IdGenerator;
use super::*;
use crate::tls::pem::Pair;
use crate::tls::{
    Authorities, BadCertificate, Certificates, ClientSettings, ClientTls, HandshakeError, Identity, Offer,
    Resumption, ServerIdentity, Trust, Version, Versions,
};

/// Handshakes take milliseconds; no test waits this long unless it fails.
const PATIENCE: Duration = Duration::from_secs(20);

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::select! {
            () = crate::deadline::drive(|_| 1) => unreachable!("the wheel turns for ever"),
            result = tokio::time::timeout(PATIENCE, test) => result.expect("the test hangs"),
        }
    })
}

struct Shown(Certificates);

impl Identities for Shown {
    fn choose(&self, name: Option<&str>) -> Option<Arc<ServerIdentity>> {
        self.0.choose(name).cloned()
    }
}

/// Returns a self-signed certificate and its key.
fn certificate(name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
    (cert.pem(), key.serialize_pem())
}

fn identity(name: &str, versions: Versions) -> Arc<ServerIdentity> {
    identified(&certificate(name), versions)
}

fn identified((cert, key): &(String, String), versions: Versions) -> Arc<ServerIdentity> {
    let pairs = vec![Pair::parse(cert, key, None).unwrap()];
    let (offer, resumption) = (Offer::default(), Resumption::Off);
    let identity = Identity { pairs, versions, offer, client_auth: None, resumption };
    Arc::new(ServerIdentity::new(identity).unwrap())
}

fn shown() -> Arc<dyn Identities> {
    let names = [("a.test", Versions::ALL), ("b.test", Versions::ALL), ("old.test", Versions::ONLY_12)];
    let entries = names.map(|(name, versions)| (name, identity(name, versions)));
    Arc::new(Shown(Certificates::new(entries, None)))
}

fn client_tls(alpn: &[u8]) -> ClientTls {
    let settings = ClientSettings {
        alpn: vec![alpn.to_vec()],
        versions: Versions::ONLY_13,
        ..ClientSettings::default()
    };
    ClientTls::new(settings).unwrap()
}

fn bound() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

fn server(limits: QuicLimits) -> (Endpoint, SocketAddr) {
    let options = EndpointOptions {
        keys: Arc::new(QuicKeys::random().unwrap()),
        place: ConnectionOwner { generation: 0, worker: 0 },
        neighbours: Arc::new(Neighbours::new(1)),
        steering: None,
        limits,
    };
    let endpoint = Endpoint::server(bound().into(), options).unwrap();
    let addr = endpoint.local_addr().unwrap();
    drive(&endpoint);
    (endpoint, addr)
}

fn client(limits: QuicLimits) -> Endpoint {
    let endpoint = Endpoint::client(bound().into(), limits).unwrap();
    drive(&endpoint);
    endpoint
}

fn drive(endpoint: &Endpoint) {
    let endpoint = endpoint.clone();
    spawn_local(async move { endpoint.run().await });
}

async fn accept(server: &Endpoint) -> Result<Connection, HandshakeError> {
    server.next().await.unwrap().accept(shown(), &Offer::default()).await
}

impl Connection {
    /// Sends a PING frame in its own packet.
    fn ping_while_open(&self) -> Result<(), ConnectionLost> {
        let mut inner = self.shared().inner.borrow_mut();
        if let Some(lost) = inner.lost {
            return Err(lost);
        }
        inner.machine.ping();
        drop(inner);
        self.shared().touch();
        Ok(())
    }
}

/// Returns both ends of a connection, and their endpoints.
async fn pair(limits: QuicLimits) -> (Connection, Connection, [Endpoint; 2]) {
    let ((server, addr), client) = (server(limits), client(limits));
    let tls = client_tls(b"h3");
    let (near, far) = tokio::join!(client.connect(addr, "a.test", &tls), accept(&server));
    (near.unwrap(), far.unwrap(), [client, server])
}

async fn open(connection: &Connection) -> (SendStream, RecvStream) {
    poll_fn(|cx| connection.poll_open_bidi(cx)).await.unwrap()
}

async fn incoming(connection: &Connection, dir: Dir) -> IncomingStream {
    poll_fn(|cx| connection.poll_accept(cx, dir)).await.unwrap()
}

async fn send(stream: &mut SendStream, bytes: &[u8]) -> Result<(), SendError> {
    let mut chunk = Chunk::copy_of(bytes);
    poll_fn(|cx| stream.poll_send(cx, &mut chunk)).await
}

async fn read_all(stream: &mut RecvStream) -> Result<Vec<u8>, RecvError> {
    let mut all = Vec::new();
    loop {
        let mut chunk = Chunk::empty();
        match poll_fn(|cx| stream.poll_fill(cx, &mut chunk)).await? {
            0 => return Ok(all),
            n => {
                assert_eq!(chunk.len(), n);
                all.extend_from_slice(&chunk);
            }
        }
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn unread_bytes_of_a_client_are_counted() {
    run(async {
        let (near, far, _endpoints) = pair(QuicLimits::default()).await;
        far.count_unread_in(Account::of_connection());
        let sent = pattern(100_000);
        let (mut stream, _) = open(&near).await;
        send(&mut stream, &sent).await.unwrap();
        stream.finish();
        let mut got = incoming(&far, Dir::Bi).await;
        // The first bytes may come before the others: wait for all of them.
        while held::total() < 90_000 {
            tokio::task::yield_now().await;
        }
        assert!(held::total() <= 100_000, "{}", held::total());
        assert_eq!(read_all(&mut got.recv).await.unwrap(), sent);
        assert!(held::total() < 5_000, "{}", held::total());
        drop(got);
        assert_eq!(held::total(), 0);
    });
}

#[test]
fn stream_that_the_client_stops_before_it_is_accepted_is_reset_then() {
    run(async {
        let (near, far, _endpoints) = pair(QuicLimits::default()).await;
        far.count_unread_in(Account::of_connection());
        near.set_default_code(9);
        let (mut to, from) = open(&near).await;
        drop(from);
        to.put(b"x".to_vec());
        let is_stopped = || {
            let inner = far.shared().inner.borrow();
            inner.streams.values().any(|stream| stream.stopped.is_some())
        };
        while !is_stopped() {
            tokio::task::yield_now().await;
        }
        // An earlier reset would be acknowledged with these bytes.
        send(&mut to, &pattern(100_000)).await.unwrap();
        while held::total() < 90_000 {
            tokio::task::yield_now().await;
        }
        let resets = || far.shared().inner.borrow().machine.stats().frame_tx.reset_stream;
        assert_eq!(resets(), 0);
        let mut stream = incoming(&far, Dir::Bi).await;
        let send_back = stream.send.as_mut().unwrap();
        assert_eq!(poll_fn(|cx| send_back.poll_stopped(cx)).await, Stopped::Code(9));
        while resets() == 0 {
            tokio::task::yield_now().await;
        }
        // The connection serves on.
        let (mut to, mut from) = open(&near).await;
        to.put(b"y".to_vec());
        let mut stream = incoming(&far, Dir::Bi).await;
        stream.send.as_mut().unwrap().put(b"z".to_vec());
        stream.send.as_mut().unwrap().finish();
        assert_eq!(read_all(&mut from).await.unwrap(), b"z");
    });
}

#[test]
fn streams_carry_bytes_both_ways() {
    run(async {
        let (near, far, _endpoints) = pair(QuicLimits::default()).await;
        let facts = far.facts().unwrap();
        assert_eq!(facts.alpn.as_deref(), Some(&b"h3"[..]));
        assert_eq!((facts.server_name.as_deref(), facts.version), (Some("a.test"), Version::Tls13));
        assert!(facts.ja4.as_deref().unwrap().starts_with("q13d"), "{:?}", facts.ja4);
        assert!(!far.is_early() && !far.is_client() && near.is_client());
        let body = pattern(700_000);
        let expected = body.clone();
        let echo = spawn_local(async move {
            let mut stream = incoming(&far, Dir::Bi).await;
            let mut send_back = stream.send.take().unwrap();
            loop {
                let mut chunk = Chunk::empty();
                if poll_fn(|cx| stream.recv.poll_fill(cx, &mut chunk)).await.unwrap() == 0 {
                    break;
                }
                poll_fn(|cx| send_back.poll_send(cx, &mut chunk)).await.unwrap();
            }
            send_back.finish();
            assert_eq!(poll_fn(|cx| send_back.poll_stopped(cx)).await, Stopped::Finished);
            far
        });
        let (mut to, mut from) = open(&near).await;
        let sending = async {
            for piece in body.chunks(50_000) {
                send(&mut to, piece).await.unwrap();
            }
            to.put(b"end".to_vec());
            to.finish();
        };
        let (back, ()) = tokio::join!(read_all(&mut from), sending);
        assert_eq!(back.unwrap(), [&expected[..], b"end"].concat());
        let far = echo.await.unwrap();
        near.close(0x100, "done");
        assert_eq!(poll_fn(|cx| far.poll_closed(cx)).await, ConnectionLost::Application(0x100));
        assert_eq!(near.lost(), Some(ConnectionLost::Local(0x100)));
        assert!(far.bytes_received() > 700_000 && far.bytes_sent() > 700_000);
    });
}

#[test]
fn the_name_decides_the_identity() {
    run(async {
        let ((server, addr), client) = (server(QuicLimits::default()), client(QuicLimits::default()));
        let tls = client_tls(b"h3");
        let (near, far) = tokio::join!(client.connect(addr, "b.test", &tls), accept(&server));
        let (_near, far) = (near.unwrap(), far.unwrap());
        assert_eq!(far.facts().unwrap().server_name.as_deref(), Some("b.test"));
        let (near, far) = tokio::join!(client.connect(addr, "c.test", &tls), accept(&server));
        assert_alert(&near, AlertDescription::UnrecognisedName);
        assert!(matches!(far, Err(HandshakeError::NoCertificate(Some(name))) if &*name == "c.test"));
        let (near, far) = tokio::join!(client.connect(addr, "old.test", &tls), accept(&server));
        assert!(near.is_err() && matches!(far, Err(HandshakeError::NoVersion)));
        let other = client_tls(b"h2");
        let (near, far) = tokio::join!(client.connect(addr, "a.test", &other), accept(&server));
        assert_alert(&near, AlertDescription::NoApplicationProtocol);
        assert!(far.is_err());
        assert_eq!(server.half_open(), 0);
    });
}

fn assert_alert(connected: &Result<Connection, HandshakeError>, expected: AlertDescription) {
    let Err(HandshakeError::Protocol(rustls::Error::AlertReceived(alert))) = connected else {
        panic!("{connected:?}");
    };
    assert_eq!(*alert, expected);
}

#[test]
fn a_client_rejects_the_same_certificates_as_over_tcp() {
    run(async {
        let ((server, addr), client) = (server(QuicLimits::default()), client(QuicLimits::default()));
        let trusting = |pem: &str| {
            let authorities = Authorities::from_pem(pem).unwrap();
            let settings = ClientSettings {
                trust: Trust::Authorities(authorities),
                alpn: vec![b"h3".to_vec()],
                versions: Versions::ONLY_13,
                ..ClientSettings::default()
            };
            ClientTls::new(settings).unwrap()
        };
        let (mine, other) = (certificate("a.test"), certificate("c.test"));
        let identities: Arc<dyn Identities> = {
            let entries = ["a.test", "b.test"].map(|name| (name, identified(&mine, Versions::ALL)));
            Arc::new(Shown(Certificates::new(entries, Some("a.test"))))
        };
        let accept =
            async || server.next().await.unwrap().accept(Arc::clone(&identities), &Offer::default()).await;
        let tls = trusting(&mine.0);
        let (near, _far) = tokio::join!(client.connect(addr, "a.test", &tls), accept());
        assert!(near.is_ok());
        let (near, _far) = tokio::join!(client.connect(addr, "b.test", &tls), accept());
        let error = near.unwrap_err();
        assert_eq!(error.bad_certificate(), Some(BadCertificate::WrongName), "{error:?}");
        let tls = trusting(&other.0);
        let (near, _far) = tokio::join!(client.connect(addr, "a.test", &tls), accept());
        let error = near.unwrap_err();
        // Both authorities have the same name, so the signature shows that it is another one.
        assert_eq!(error.bad_certificate(), Some(BadCertificate::Other), "{error:?}");
        let settings = ClientSettings { versions: Versions::ONLY_12, ..ClientSettings::default() };
        let old = ClientTls::new(settings).unwrap();
        assert!(client.connect(addr, "a.test", &old).await.is_err());
        assert!(matches!(client.connect(addr, "a b", &tls).await, Err(HandshakeError::BadName)));
    });
}

#[test]
fn streams_end_with_codes() {
    run(async {
        let (near, far, _endpoints) = pair(QuicLimits::default()).await;
        let (mut to, mut from) = open(&near).await;
        to.put(b"x".to_vec());
        let mut stream = incoming(&far, Dir::Bi).await;
        stream.recv.stop(7);
        stream.send.as_mut().unwrap().reset(8);
        assert_eq!(poll_fn(|cx| to.poll_stopped(cx)).await, Stopped::Code(7));
        assert_eq!(send(&mut to, b"more").await, Err(SendError::Stopped(7)));
        assert_eq!(read_all(&mut from).await, Err(RecvError::Reset(8)));
        // Dropped halves have the code of the connection.
        far.set_default_code(9);
        let (mut to, mut from) = open(&near).await;
        to.put(b"y".to_vec());
        drop(incoming(&far, Dir::Bi).await);
        assert_eq!(poll_fn(|cx| to.poll_stopped(cx)).await, Stopped::Code(9));
        assert_eq!(poll_fn(|cx| from.poll_reset(cx)).await, RecvError::Reset(9));
        // One way.
        let mut one = poll_fn(|cx| far.poll_open_uni(cx)).await.unwrap();
        one.put(b"control".to_vec());
        one.finish();
        let mut stream = incoming(&near, Dir::Uni).await;
        assert!(stream.send.is_none());
        assert_eq!(read_all(&mut stream.recv).await.unwrap(), b"control");
        // The drop of the last handle closes.
        drop(far);
        assert_eq!(poll_fn(|cx| near.poll_closed(cx)).await, ConnectionLost::Application(9));
        assert!(matches!(send(&mut one, b"z").await, Err(SendError::Lost(_))));
    });
}

#[test]
fn a_sender_waits_for_a_peer_that_does_not_read() {
    run(async {
        let limits = QuicLimits { stream_window_bytes: 10_000, ..QuicLimits::default() };
        let (near, far, _endpoints) = pair(limits).await;
        let (mut to, _from) = open(&near).await;
        let mut chunk = Chunk::copy_of(&pattern(30_000));
        let mut sending = Box::pin(poll_fn(|cx| to.poll_send(cx, &mut chunk)));
        let blocked = poll_fn(|cx| std::task::Poll::Ready(sending.as_mut().poll(cx).is_pending())).await;
        assert!(blocked && near.held_bytes() == 20_000);
        drop(sending);
        assert!(chunk.is_empty() && !to.has_room());
        // The end is queued behind it, and the handle is not needed any more.
        to.finish();
        drop(to);
        let mut stream = incoming(&far, Dir::Bi).await;
        assert_eq!(read_all(&mut stream.recv).await.unwrap(), pattern(30_000));
        assert_eq!(near.held_bytes(), 0);
    });
}

#[test]
fn many_streams_share_a_connection() {
    run(async {
        let limits = QuicLimits { streams: 5, ..QuicLimits::default() };
        let (near, far, _endpoints) = pair(limits).await;
        let serving = spawn_local(async move {
            for _ in 0..40 {
                let mut stream = incoming(&far, Dir::Bi).await;
                spawn_local(async move {
                    let got = read_all(&mut stream.recv).await.unwrap();
                    let mut back = stream.send.unwrap();
                    send(&mut back, &got).await.unwrap();
                    back.finish();
                });
            }
            far
        });
        let asking: Vec<_> = (0..40_u32)
            .map(|n| {
                let near = near.clone();
                spawn_local(async move {
                    let mut halves = poll_fn(|cx| near.poll_open_bidi(cx)).await;
                    let (to, from) = halves.as_mut().unwrap();
                    to.put(n.to_be_bytes().to_vec());
                    to.finish();
                    assert_eq!(read_all(from).await.unwrap(), n.to_be_bytes());
                })
            })
            .collect();
        for one in asking {
            tokio::time::timeout(Duration::from_secs(5), one).await.expect("each gets its stream").unwrap();
        }
        drop(serving.await);
    });
}

#[test]
fn clients_prove_their_address_when_many_are_half_open() {
    run(async {
        let limits = QuicLimits { retry_above: 0, ..QuicLimits::default() };
        let (near, far, [_, server]) = pair(limits).await;
        // A ClientHello with post-quantum keys has two packets, and each gets a Retry.
        assert!(server.counts().retried >= 1);
        assert_eq!(far.peer().ip(), near.local_addr().map(|addr| addr.ip()));
        let limits = QuicLimits { retry_above: 1_000, half_open: 0, handshake_ms: 300, ..limits };
        let ((server, addr), client) = (self::server(limits), client(limits));
        let error = client.connect(addr, "a.test", &client_tls(b"h3")).await.unwrap_err();
        assert!(matches!(error, HandshakeError::TimedOut), "{error}");
        assert!(server.counts().ignored > 0 && server.connections() == 0);
    });
}

#[test]
fn a_flood_of_pings_ends_its_connection_alone() {
    run(async {
        let limits = QuicLimits { controls_per_second: 20, ..QuicLimits::default() };
        let ((server, addr), client) = (server(limits), client(limits));
        let tls = client_tls(b"h3");
        let (near, far) = tokio::join!(client.connect(addr, "a.test", &tls), accept(&server));
        let (flooder, flooded) = (near.unwrap(), far.unwrap());
        let (near, far) = tokio::join!(client.connect(addr, "a.test", &tls), accept(&server));
        let (honest, served) = (near.unwrap(), far.unwrap());
        let flood = async {
            for _ in 0..10_000 {
                if flooder.ping_while_open().is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
            panic!("the flood goes on");
        };
        let ended = poll_fn(|cx| flooded.poll_closed(cx));
        assert_eq!(tokio::join!(flood, ended).1, ConnectionLost::Local(0x107));
        assert_eq!(poll_fn(|cx| flooder.poll_closed(cx)).await, ConnectionLost::Application(0x107));
        assert_eq!(server.counts().floods, 1);
        let (mut to, _from) = open(&honest).await;
        to.put(b"x".to_vec());
        to.finish();
        assert_eq!(read_all(&mut incoming(&served, Dir::Bi).await.recv).await.unwrap(), b"x");
        assert_eq!((honest.lost(), served.lost()), (None, None));
    });
}

#[test]
fn half_open_handshakes_end_in_time_and_cost_little() {
    run(async {
        let limits =
            QuicLimits { handshake_ms: 200, retry_above: 10_000, half_open: 10_000, ..QuicLimits::default() };
        let (server, addr) = server(limits);
        // A client that never hears its server: its socket is not read.
        let deaf = Endpoint::client(bound().into(), limits).unwrap();
        let tls = client_tls(b"h3");
        let connect = deaf.connect(addr, "a.test", &tls);
        let first = async {
            // Only the first packet is sent.
            let turn = poll_fn(|cx| {
                let _ = deaf.driver.poll_run(cx);
                std::task::Poll::Ready(())
            });
            turn.await;
        };
        let shaking = tokio::join!(biased_first(connect, first), accept(&server));
        assert!(matches!(shaking.1, Err(HandshakeError::TimedOut)));
        assert_eq!((server.half_open(), server.connections()), (0, 0));
    });
}

/// Polls `start` once, then `rest`, then `start` no more.
async fn biased_first<T>(start: impl Future<Output = T>, rest: impl Future<Output = ()>) {
    let mut start = std::pin::pin!(start);
    poll_fn(|cx| {
        let is_pending = start.as_mut().poll(cx).is_pending();
        assert!(is_pending);
        std::task::Poll::Ready(())
    })
    .await;
    rest.await;
    // It stays alive for the server's time limit.
    tokio::time::sleep(Duration::from_millis(500)).await;
}

/// Forwards datagrams between a client and a server; returns its address. It keeps the client's first packet with `length`
/// bytes or more and sends it again when it is notified.
async fn repeater(server: SocketAddr, length: usize) -> (SocketAddr, Rc<tokio::sync::Notify>) {
    let near = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let far = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    far.connect(server).await.unwrap();
    let (addr, again) = (near.local_addr().unwrap(), Rc::new(tokio::sync::Notify::new()));
    let told = Rc::clone(&again);
    spawn_local(async move {
        let (mut client, mut kept) = (None, Vec::new());
        let (mut to_server, mut to_client) = ([0; 2048], [0; 2048]);
        loop {
            tokio::select! {
                received = near.recv_from(&mut to_server) => {
                    let (got, from) = received.unwrap();
                    client = Some(from);
                    if kept.is_empty() && got >= length && to_server[0] & 0x80 == 0 {
                        kept.extend_from_slice(&to_server[..got]);
                    }
                    far.send(&to_server[..got]).await.unwrap();
                }
                received = far.recv(&mut to_client) => {
                    near.send_to(&to_client[..received.unwrap()], client.unwrap()).await.unwrap();
                }
                () = told.notified() => { far.send(&kept).await.unwrap(); }
            }
        }
    });
    (addr, again)
}

/// A reset would end the connection of a client that has only changed its address.
#[test]
fn packet_with_a_retired_id_gets_no_reset_while_its_connection_is_open() {
    run(async {
        let limits = QuicLimits::default();
        let ((server, addr), client) = (server(limits), client(limits));
        let (between, again) = repeater(addr, 400).await;
        let tls = client_tls(b"h3");
        let (near, far) = tokio::join!(client.connect(between, "a.test", &tls), accept(&server));
        let (near, far) = (near.unwrap(), far.unwrap());
        let echo = async || {
            let (mut out, mut back) = open(&near).await;
            send(&mut out, &pattern(500)).await.unwrap();
            out.finish();
            let mut stream = incoming(&far, Dir::Bi).await;
            let got = read_all(&mut stream.recv).await.unwrap();
            let mut reply = stream.send.take().unwrap();
            send(&mut reply, &got).await.unwrap();
            reply.finish();
            assert_eq!(read_all(&mut back).await.unwrap(), pattern(500));
        };
        echo().await;
        near.shared().inner.borrow_mut().machine.local_address_changed();
        near.shared().touch();
        let retired = || far.shared().inner.borrow().machine.stats().frame_rx.retire_connection_id;
        while retired() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        again.notify_one();
        while server.counts().late == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        echo().await;
    });
}

#[test]
fn packets_of_another_worker_are_forwarded() {
    run(async {
        let keys = Arc::new(QuicKeys::random().unwrap());
        let neighbours = Arc::new(Neighbours::new(2));
        let endpoints: Vec<Endpoint> = (0..2)
            .map(|worker| {
                let options = EndpointOptions {
                    keys: Arc::clone(&keys),
                    place: ConnectionOwner { generation: 0, worker },
                    neighbours: Arc::clone(&neighbours),
                    steering: None,
                    limits: QuicLimits::default(),
                };
                let endpoint = Endpoint::server(bound().into(), options).unwrap();
                drive(&endpoint);
                endpoint
            })
            .collect();
        let place = ConnectionOwner { generation: 0, worker: 1 };
        let mut ids = IdGenerator { keys, place, steering: None };
        let id = quinn_proto::ConnectionIdGenerator::generate_cid(&mut ids);
        let packet = [&[0x41], &id[..], &[0; 30]].concat();
        let socket = bound();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let socket = Rc::new(socket);
        socket.send_to(&packet, endpoints[0].local_addr().unwrap()).unwrap();
        while endpoints[0].counts().forwarded == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The owner does not know the connection: it sends a stateless reset from its own address.
        let received = tokio::task::spawn_blocking({
            let socket = socket.try_clone().unwrap();
            move || socket.recv_from(&mut [0; 100]).unwrap()
        });
        let (length, from) = received.await.unwrap();
        assert_eq!(Some(from), endpoints[1].local_addr());
        assert!(length < packet.len());
    });
}
