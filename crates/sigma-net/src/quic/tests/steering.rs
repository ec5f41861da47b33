//! Workers whose sockets the kernel chooses by connection ids.

use tokio::sync::Notify;

use super::*;
use crate::BoundSocket;
use crate::listen::Claim;

/// Returns the endpoints of several workers that share a port, steered or not.
fn workers(count: u16, is_steered: bool) -> (Vec<Endpoint>, SocketAddr) {
    let (keys, neighbours) = (Arc::new(QuicKeys::random().unwrap()), Arc::new(Neighbours::new(count)));
    let first = BoundSocket::udp(([127, 0, 0, 1], 0).into(), Claim::First).unwrap();
    let addr = first.local_addr().unwrap();
    let further = (1..count).map(|_| BoundSocket::udp(addr, Claim::Further).unwrap());
    let sockets: Vec<BoundSocket> = std::iter::once(first).chain(further).collect();
    if is_steered {
        steer::attach(&sockets[0], count.into()).unwrap();
    }
    let endpoint = |(worker, socket): (u16, BoundSocket)| {
        let options = EndpointOptions {
            keys: Arc::clone(&keys),
            place: ConnectionOwner { generation: 0, worker },
            neighbours: Arc::clone(&neighbours),
            steering: is_steered.then_some(Steering { sockets: count.into(), own: worker.into() }),
            limits: QuicLimits::default(),
        };
        let endpoint = Endpoint::server(socket.into(), options).unwrap();
        drive(&endpoint);
        endpoint
    };
    ((0..count).zip(sockets).map(endpoint).collect(), addr)
}

/// Returns a socket of the router to the server.
async fn outside(server: SocketAddr) -> tokio::net::UdpSocket {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(server).await.unwrap();
    socket
}

/// Forwards datagrams between a client and a server from a new address after each notification, as a router does that
/// has lost its table.
async fn router(server: SocketAddr) -> (SocketAddr, Rc<Notify>) {
    let near = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (addr, change) = (near.local_addr().unwrap(), Rc::new(Notify::new()));
    let (changing, mut far) = (Rc::clone(&change), outside(server).await);
    spawn_local(async move {
        let (mut client, mut to_server, mut to_client) = (None, [0; 2048], [0; 2048]);
        loop {
            tokio::select! {
                received = near.recv_from(&mut to_server) => {
                    let (length, from) = received.unwrap();
                    client = Some(from);
                    far.send(&to_server[..length]).await.unwrap();
                }
                received = far.recv(&mut to_client) => {
                    near.send_to(&to_client[..received.unwrap()], client.unwrap()).await.unwrap();
                }
                () = changing.notified() => far = outside(server).await,
            }
        }
    });
    (addr, change)
}

/// Sends requests over several connections, each before and after changes of its address. Returns the connections
/// that each worker accepted, and the packets that workers forwarded.
async fn exchange(workers: &[Endpoint], addr: SocketAddr, connections: usize) -> (Vec<usize>, u64) {
    let accepted: Rc<[std::cell::Cell<usize>]> = workers.iter().map(|_| Default::default()).collect();
    for (number, worker) in workers.iter().enumerate() {
        let (worker, accepted) = (worker.clone(), Rc::clone(&accepted));
        spawn_local(async move {
            while let Some(arrival) = worker.next().await {
                let connection = arrival.accept(shown(), &Offer::default()).await.unwrap();
                accepted[number].set(accepted[number].get() + 1);
                spawn_local(async move {
                    while let Ok(mut stream) = poll_fn(|cx| connection.poll_accept(cx, Dir::Bi)).await {
                        let got = read_all(&mut stream.recv).await.unwrap();
                        let mut reply = stream.send.take().unwrap();
                        send(&mut reply, &got).await.unwrap();
                        reply.finish();
                    }
                });
            }
        });
    }
    let (client, tls) = (client(QuicLimits::default()), client_tls(b"h3"));
    for _ in 0..connections {
        let (between, change) = router(addr).await;
        let connection = client.connect(between, "a.test", &tls).await.unwrap();
        for _ in 0..3 {
            let (mut out, mut back) = open(&connection).await;
            send(&mut out, &pattern(3_000)).await.unwrap();
            out.finish();
            assert_eq!(read_all(&mut back).await.unwrap(), pattern(3_000));
            change.notify_one();
        }
    }
    let forwarded = workers.iter().map(|worker| worker.counts().forwarded).sum();
    assert!(workers.iter().all(|worker| worker.counts().dropped == 0));
    (accepted.iter().map(std::cell::Cell::get).collect(), forwarded)
}

#[test]
fn packets_reach_their_worker_from_any_address() {
    run(async {
        let (workers, addr) = workers(4, true);
        let (accepted, forwarded) = exchange(&workers, addr, 24).await;
        assert_eq!((accepted.iter().sum::<usize>(), forwarded), (24, 0));
        // First ids are random: all connections on one worker have a chance of 4^-23.
        assert!(accepted.iter().filter(|count| **count > 0).count() > 1, "{accepted:?}");
    });
}

/// Without the program, the same connections continue because workers forward packets.
#[test]
fn workers_forward_packets_without_steering() {
    run(async {
        let (workers, addr) = workers(4, false);
        let (accepted, forwarded) = exchange(&workers, addr, 24).await;
        assert_eq!(accepted.iter().sum::<usize>(), 24);
        assert!(forwarded > 0);
    });
}
