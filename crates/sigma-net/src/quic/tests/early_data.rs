//! Early data over QUIC, with a relay that records the packets of the client.

use std::cell::RefCell;
use std::time::Instant;

use quinn_proto::crypto::rustls::QuicClientConfig;
use tokio::net::UdpSocket as AsyncSocket;

use super::*;
use crate::tls::{EarlyOffer, SessionCache};

/// A relay between one client and the server.
struct Recorder {
    socket: AsyncSocket,
    server: SocketAddr,
    sent: RefCell<Vec<Vec<u8>>>,
}

impl Recorder {
    async fn before(server: SocketAddr) -> Rc<Recorder> {
        let socket = AsyncSocket::bind("127.0.0.1:0").await.unwrap();
        let recorder = Rc::new(Recorder { socket, server, sent: RefCell::default() });
        let relay = Rc::clone(&recorder);
        spawn_local(async move {
            let (mut client, mut buffer) = (None, vec![0; 65_536]);
            while let Ok((n, from)) = relay.socket.recv_from(&mut buffer).await {
                let to = if from == relay.server { client } else { Some(relay.server) };
                if from != relay.server {
                    client = Some(from);
                    relay.sent.borrow_mut().push(buffer[..n].to_vec());
                }
                if let Some(to) = to {
                    relay.socket.send_to(&buffer[..n], to).await.unwrap();
                }
            }
        });
        recorder
    }

    fn addr(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }
}

fn early_config() -> quinn_proto::ClientConfig {
    let mut tls = (*client_tls(b"h3").quic_config()).clone();
    tls.enable_early_data = true;
    tls.resumption = rustls::client::Resumption::in_memory_sessions(16);
    let suite = crate::tls::quic::initial_suite();
    let crypto = QuicClientConfig::with_initial(Arc::new(tls), suite).unwrap();
    let mut config = quinn_proto::ClientConfig::new(Arc::new(crypto));
    config.transport_config(QuicLimits::default().transport());
    config
}

/// Begins a connection; it may have early data.
fn connect(client: &Endpoint, config: &quinn_proto::ClientConfig, to: SocketAddr) -> Connection {
    let mut core = client.driver.core.borrow_mut();
    let (handle, machine) = core.endpoint.connect(Instant::now(), config.clone(), to, "a.test").unwrap();
    let shared = core.add(&client.driver, handle, machine);
    drop(core);
    Connection::new(shared, None, to, client.local_addr())
}

async fn established(connection: &Connection) -> Result<(), ConnectionLost> {
    poll_fn(|cx| connection.shared().poll_shaken(cx)).await
}

async fn accept_early(
    server: &Endpoint,
    shown: &Arc<dyn Identities>,
    offer: &EarlyOffer,
) -> Result<Connection, HandshakeError> {
    let mut arrival = server.next().await.unwrap();
    arrival.offer_early_data(offer);
    arrival.accept(Arc::clone(shown), &Offer::default()).await
}

/// A first visit, after which the client has a ticket and a token.
async fn visit(
    server: &Endpoint,
    client: &Endpoint,
    config: &quinn_proto::ClientConfig,
    through: SocketAddr,
    (shown, offer): (&Arc<dyn Identities>, &EarlyOffer),
) {
    let near = connect(client, config, through);
    let (shaken, far) = tokio::join!(established(&near), accept_early(server, shown, offer));
    shaken.unwrap();
    let far = far.unwrap();
    assert!(far.facts().unwrap().early.is_none());
    // Ticket and token come before the response.
    let (mut to, mut from) = open(&near).await;
    to.put(b"x".to_vec());
    to.finish();
    let stream = incoming(&far, Dir::Bi).await;
    let mut send_back = stream.send.unwrap();
    send_back.put(b"y".to_vec());
    send_back.finish();
    assert_eq!(read_all(&mut from).await.unwrap(), b"y");
    near.close(0x100, "");
    poll_fn(|cx| far.poll_closed(cx)).await;
}

#[test]
fn early_requests_come_before_the_end_of_the_handshake_and_never_twice() {
    run(async {
        let limits = QuicLimits { handshake_ms: 500, ..QuicLimits::default() };
        let ((server, addr), client) = (server(limits), client(QuicLimits::default()));
        let (shown, config) = (shown(), early_config());
        let offer = EarlyOffer::new(1, Arc::new(SessionCache::new(100)));
        let recorder = Recorder::before(addr).await;
        visit(&server, &client, &config, recorder.addr(), (&shown, &offer)).await;
        recorder.sent.borrow_mut().clear();
        let near = connect(&client, &config, recorder.addr());
        let (mut to, mut from) = open(&near).await;
        to.put(b"early".to_vec());
        to.finish();
        let far = accept_early(&server, &shown, &offer).await.unwrap();
        let early = far.facts().unwrap().early.clone().unwrap();
        assert!(!early.is_complete() && far.is_early() && far.facts().unwrap().is_resumed);
        assert_eq!(server.half_open(), 0, "it counts as a connection");
        let mut stream = incoming(&far, Dir::Bi).await;
        assert!(stream.is_early);
        assert_eq!(read_all(&mut stream.recv).await.unwrap(), b"early");
        let recorded = recorder.sent.borrow().clone();
        let mut send_back = stream.send.take().unwrap();
        send_back.put(b"response".to_vec());
        send_back.finish();
        assert_eq!(read_all(&mut from).await.unwrap(), b"response");
        poll_fn(|cx| early.poll_complete(cx)).await;
        assert!(early.is_complete() && !far.is_early());
        assert_eq!((far.lost(), near.lost()), (None, None));
        // The ids of the packets lead to their connection as long as it lives.
        near.close(0x100, "");
        while server.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The same packets from another socket: the token is used up, and so is the session.
        for _ in 0..3 {
            let attacker = AsyncSocket::bind("127.0.0.1:0").await.unwrap();
            for packet in &recorded {
                attacker.send_to(packet, addr).await.unwrap();
            }
            let replayed = accept_early(&server, &shown, &offer).await;
            assert!(matches!(replayed, Err(HandshakeError::TimedOut)), "{replayed:?}");
        }
    });
}

#[test]
fn a_client_that_has_not_proved_its_address_has_no_early_data() {
    run(async {
        let ((server, addr), client) = (server(QuicLimits::default()), client(QuicLimits::default()));
        let (shown, mut config) = (shown(), early_config());
        config.token_store(Arc::new(quinn_proto::NoneTokenStore));
        let offer = EarlyOffer::new(1, Arc::new(SessionCache::new(100)));
        visit(&server, &client, &config, addr, (&shown, &offer)).await;
        let near = connect(&client, &config, addr);
        let (mut to, _from) = open(&near).await;
        to.put(b"request".to_vec());
        to.finish();
        let far = accept_early(&server, &shown, &offer).await.unwrap();
        assert!(far.facts().unwrap().early.is_none() && far.facts().unwrap().is_resumed);
        // The client sends it again, within the same time.
        established(&near).await.unwrap();
        let (mut to, _again) = open(&near).await;
        to.put(b"again".to_vec());
        to.finish();
        let mut stream = incoming(&far, Dir::Bi).await;
        assert!(!stream.is_early);
        assert_eq!(read_all(&mut stream.recv).await.unwrap(), b"again");
    });
}
