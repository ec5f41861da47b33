//! Connections over networks that lose, change, repeat and delay packets: cases of the QUIC interop runner.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use tokio::net::UdpSocket as Socket;

use super::*;

/// The treatment of a datagram by a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Delivered,
    Lost,
    /// One of its bytes is another one.
    Changed,
    Repeated,
    Late(Duration),
}

/// The direction of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    ToServer,
    ToClient,
}

/// Starts a network in front of a server; returns its address. `fate` gets the number of each datagram in its direction.
async fn network(server: SocketAddr, fate: impl Fn(Way, usize) -> Fate + 'static) -> SocketAddr {
    let bound = async || Rc::new(Socket::bind("127.0.0.1:0").await.unwrap());
    let (near, far) = (bound().await, bound().await);
    let addr = near.local_addr().unwrap();
    spawn_local(async move {
        let (mut client, mut to_server, mut to_client) = (None, [0; 2048], [0; 2048]);
        let mut numbers = [0; 2];
        loop {
            let (way, bytes) = tokio::select! {
                received = near.recv_from(&mut to_server) => {
                    let (length, from) = received.unwrap();
                    client = Some(from);
                    (Way::ToServer, to_server[..length].to_vec())
                }
                received = far.recv_from(&mut to_client) => {
                    (Way::ToClient, to_client[..received.unwrap().0].to_vec())
                }
            };
            let number = numbers[way as usize];
            numbers[way as usize] += 1;
            let (socket, to) = match way {
                Way::ToServer => (Rc::clone(&far), server),
                Way::ToClient => (Rc::clone(&near), client.unwrap()),
            };
            let fate = fate(way, number);
            spawn_local(async move { deliver(&socket, to, bytes, fate).await });
        }
    });
    addr
}

async fn deliver(socket: &Socket, to: SocketAddr, mut bytes: Vec<u8>, fate: Fate) {
    match fate {
        Fate::Lost => return,
        Fate::Changed => *bytes.last_mut().unwrap() ^= 1,
        Fate::Late(time) => tokio::time::sleep(time).await,
        Fate::Repeated => drop(socket.send_to(&bytes, to).await.unwrap()),
        Fate::Delivered => {}
    }
    socket.send_to(&bytes, to).await.unwrap();
}

/// Connects over a network, and has bytes echoed.
fn echo_over(what: &str, fate: impl Fn(Way, usize) -> Fate + 'static) {
    const LENGTH: usize = 100_000;
    run(async {
        let ((server, addr), client) = (server(QuicLimits::default()), client(QuicLimits::default()));
        let (between, tls) = (network(addr, fate).await, client_tls(b"h3"));
        // A client whose first packet is changed is another one for the server.
        let accepting = async {
            loop {
                if let Ok(connection) = accept(&server).await {
                    return connection;
                }
            }
        };
        let (near, far) = tokio::join!(client.connect(between, "a.test", &tls), accepting);
        let near = near.expect(what);
        let (mut to, mut from) = open(&near).await;
        let asking = async {
            send(&mut to, &pattern(LENGTH)).await.expect(what);
            to.finish();
            read_all(&mut from).await.expect(what)
        };
        let serving = async {
            let mut stream = incoming(&far, Dir::Bi).await;
            let got = read_all(&mut stream.recv).await.expect(what);
            let mut back = stream.send.take().unwrap();
            send(&mut back, &got).await.expect(what);
            back.finish();
            back
        };
        let (got, _back) = tokio::join!(asking, serving);
        assert!(got == pattern(LENGTH), "{what}: {} bytes", got.len());
        assert_eq!((near.lost(), far.lost(), server.counts().late), (None, None, 0), "{what}");
    });
}

#[test]
fn handshakes_survive_loss_and_corruption() {
    echo_over(
        "the first packets are lost",
        |_, number| if number < 2 { Fate::Lost } else { Fate::Delivered },
    );
    echo_over(
        "the first packets are changed",
        |_, number| {
            if number < 2 { Fate::Changed } else { Fate::Delivered }
        },
    );
    echo_over("the first response is lost", |way, number| match (way, number) {
        (Way::ToClient, 0..2) => Fate::Lost,
        _ => Fate::Delivered,
    });
    echo_over("every third packet is lost", |_, number| {
        if number < 12 && number % 3 == 1 { Fate::Lost } else { Fate::Delivered }
    });
}

#[test]
fn transfers_survive_loss_corruption_and_disorder() {
    let every = |nth: usize, fate: Fate| {
        move |_: Way, number: usize| if number % nth == nth - 1 { fate } else { Fate::Delivered }
    };
    echo_over("every tenth packet is lost", every(10, Fate::Lost));
    echo_over("every tenth packet is changed", every(10, Fate::Changed));
    echo_over("every packet comes twice", every(1, Fate::Repeated));
    echo_over("every third packet is late", every(3, Fate::Late(Duration::from_millis(20))));
}

#[test]
fn long_ways_and_interruptions_only_delay() {
    echo_over("a long way", |_, _| Fate::Late(Duration::from_millis(150)));
    let begin = Rc::new(Cell::new(None));
    echo_over("a network without packets for a second", move |_, number| {
        if number >= 20 && begin.get().is_none() {
            begin.set(Some(Instant::now()));
        }
        let is_dark = begin.get().is_some_and(|begin: Instant| begin.elapsed() < Duration::from_secs(1));
        if is_dark { Fate::Lost } else { Fate::Delivered }
    });
}

/// A forged address gets three times the bytes that were sent in its name (RFC 9000 §8.1).
#[test]
fn an_unproved_address_gets_three_times_its_bytes() {
    run(async {
        let limits = QuicLimits { handshake_ms: 1_500, ..QuicLimits::default() };
        let ((server, addr), client) = (server(limits), client(limits));
        let counts = Rc::new(RefCell::new((0, 0)));
        let bound = async || Socket::bind("127.0.0.1:0").await.unwrap();
        let (near, victim) = (bound().await, bound().await);
        let (between, counted) = (near.local_addr().unwrap(), Rc::clone(&counts));
        // It passes packets of the client on, and nothing back.
        spawn_local(async move {
            let (mut to_server, mut to_client) = ([0; 2048], [0; 2048]);
            loop {
                tokio::select! {
                    // In this order, or a response would be counted before its cause.
                    biased;
                    received = near.recv_from(&mut to_server) => {
                        let length = received.unwrap().0;
                        counted.borrow_mut().0 += length;
                        victim.send_to(&to_server[..length], addr).await.unwrap();
                    }
                    received = victim.recv_from(&mut to_client) => {
                        counted.borrow_mut().1 += received.unwrap().0;
                    }
                }
            }
        });
        let tls = client_tls(b"h3");
        let (near, far) = tokio::join!(client.connect(between, "a.test", &tls), accept(&server));
        assert!(near.is_err() && far.is_err());
        let (sent, received) = *counts.borrow();
        assert!(received > 1_200 && received <= 3 * sent, "{received} bytes for {sent}");
    });
}

/// Returns the first packet of a client with this version.
fn first_packet(version: u32, id: u8, length: usize) -> Vec<u8> {
    let mut packet = [&[0xc3][..], &version.to_be_bytes(), &[8], &[1; 8], &[8], &[id; 8]].concat();
    packet.resize(length, 0);
    packet
}

#[test]
fn other_versions_are_offered_version_1() {
    run(async {
        let (_server, addr) = server(QuicLimits::default());
        let socket = Socket::bind("127.0.0.1:0").await.unwrap();
        // Version 2 (RFC 9369), a draft, a reserved version.
        for (id, version) in [(2, 0x6b33_43cf_u32), (3, 0xff00_001d), (4, 0x1a2a_3a4a)] {
            // A response would be larger than its cause.
            socket.send_to(&first_packet(version, 9, 40), addr).await.unwrap();
            socket.send_to(&first_packet(version, id, 1_200), addr).await.unwrap();
            let mut got = [0; 1_500];
            let length = socket.recv(&mut got).await.unwrap();
            assert!(length < 1_200);
            let (ids, versions) = got[1..length].split_at(4 + 18);
            assert!(got[0] & 0x80 != 0);
            assert_eq!(ids, [&[0; 4][..], &[8], &[id; 8], &[8], &[1; 8]].concat());
            let versions: Vec<u32> =
                versions.chunks(4).map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap())).collect();
            // Reserved ones keep clients from relying on the list.
            let is_reserved = |version: &u32| version & 0x0f0f_0f0f == 0x0a0a_0a0a;
            let offered: Vec<u32> = versions.into_iter().filter(|version| !is_reserved(version)).collect();
            assert_eq!(offered, [1]);
        }
    });
}

/// A packet from a new address that arrives together with a timeout of the old path must not end the driver.
#[test]
fn a_new_address_and_a_timeout_come_together() {
    run(async {
        let ((server, addr), client) = (server(QuicLimits::default()), client(QuicLimits::default()));
        let bound = async || Socket::bind("127.0.0.1:0").await.unwrap();
        let (near, old, new) = (bound().await, bound().await, bound().await);
        let (between, is_new) = (near.local_addr().unwrap(), Rc::new(Cell::new(false)));
        let changed = Rc::clone(&is_new);
        spawn_local(async move {
            let (mut peer, mut is_held) = (None, true);
            let (mut to_server, mut from_old, mut from_new) = ([0; 2048], [0; 2048], [0; 2048]);
            loop {
                tokio::select! {
                    received = near.recv_from(&mut to_server) => {
                        let (length, from) = received.unwrap();
                        peer = Some(from);
                        if is_new.get() && std::mem::take(&mut is_held) {
                            // No task runs meanwhile, and the timeouts of the server expire.
                            std::thread::sleep(Duration::from_millis(1_500));
                        }
                        let far = if is_new.get() { &new } else { &old };
                        far.send_to(&to_server[..length], addr).await.unwrap();
                    }
                    received = old.recv_from(&mut from_old) => {
                        let length = received.unwrap().0;
                        // Nothing arrives by the old address any more.
                        if !is_new.get() {
                            near.send_to(&from_old[..length], peer.unwrap()).await.unwrap();
                        }
                    }
                    received = new.recv_from(&mut from_new) => {
                        let length = received.unwrap().0;
                        near.send_to(&from_new[..length], peer.unwrap()).await.unwrap();
                    }
                }
            }
        });
        let tls = client_tls(b"h3");
        let (near, far) = tokio::join!(client.connect(between, "a.test", &tls), accept(&server));
        let (near, far) = (near.unwrap(), far.unwrap());
        let (mut to, mut from) = open(&near).await;
        send(&mut to, &pattern(10)).await.unwrap();
        let mut stream = incoming(&far, Dir::Bi).await;
        changed.set(true);
        let mut back = stream.send.take().unwrap();
        send(&mut back, &pattern(1_000)).await.unwrap();
        back.finish();
        // The packets of the server are on their way, and lost, before the client sends again.
        tokio::task::yield_now().await;
        send(&mut to, &pattern(1_000)).await.unwrap();
        to.finish();
        assert_eq!(read_all(&mut stream.recv).await.unwrap().len(), 1_010);
        assert_eq!(read_all(&mut from).await.unwrap(), pattern(1_000));
    });
}
