//! Early data over TCP, with the client of rustls.

use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::*;

/// A client whose bytes are recorded.
struct EarlyClient {
    tls: ClientConnection,
    socket: TcpStream,
    sent: Vec<u8>,
}

impl EarlyClient {
    fn new(config: &Arc<rustls::ClientConfig>, socket: TcpStream) -> EarlyClient {
        let name = ServerName::try_from("a.test").unwrap();
        let tls = ClientConnection::new(Arc::clone(config), name).unwrap();
        EarlyClient { tls, socket, sent: Vec::new() }
    }

    /// Puts bytes into early data; returns false if the ticket allows none.
    fn put_early(&mut self, bytes: &[u8]) -> bool {
        use std::io::Write;
        self.tls.early_data().is_some_and(|mut early| early.write_all(bytes).is_ok())
    }

    async fn flush(&mut self) {
        let mut out = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut out).unwrap();
        }
        self.sent.extend_from_slice(&out);
        self.socket.write_all(&out).await.unwrap();
    }

    /// Reads until it has this many bytes of plaintext.
    async fn read(&mut self, length: usize) -> Vec<u8> {
        use std::io::Read;
        let mut plain = Vec::new();
        while plain.len() < length {
            let mut records = vec![0; 16 * 1024];
            let n = self.socket.read(&mut records).await.unwrap();
            assert!(n > 0, "the server has closed");
            let mut records = &records[..n];
            while !records.is_empty() {
                self.tls.read_tls(&mut records).unwrap();
                self.tls.process_new_packets().unwrap();
            }
            let mut piece = [0; 1024];
            while let Ok(n @ 1..) = self.tls.reader().read(&mut piece) {
                plain.extend_from_slice(&piece[..n]);
            }
        }
        plain
    }
}

fn client_config(root: &Authority) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    pem::parse_chain(&root.pem).unwrap().into_iter().for_each(|one| roots.add(one).unwrap());
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::clone(&PROVIDER))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.enable_early_data = true;
    Arc::new(config)
}

fn options(bytes: u32) -> AcceptOptions {
    let early = Some(EarlyOffer::new(bytes, Arc::new(SessionCache::new(100))));
    AcceptOptions { early, ..AcceptOptions::default() }
}

/// Accepts a client of [`table`].
async fn serve(
    far: TcpStream,
    certificates: &Arc<Certificates>,
    options: &AcceptOptions,
) -> Result<Stream, HandshakeError> {
    let handshakes = Handshakes::new(1);
    accept(Stream::Tcp(far), b"", options, &handshakes, |name| certificates.choose(name).cloned()).await
}

/// Runs a whole handshake, after which the client has a ticket; returns true if it allows early data.
async fn first_visit(
    config: &Arc<rustls::ClientConfig>,
    certificates: &Arc<Certificates>,
    options: &AcceptOptions,
) -> bool {
    let (near, far) = sockets().await;
    let mut client = EarlyClient::new(config, near);
    let visiting = async {
        client.flush().await;
        while client.tls.is_handshaking() {
            let mut records = vec![0; 16 * 1024];
            let n = client.socket.read(&mut records).await.unwrap();
            client.tls.read_tls(&mut &records[..n]).unwrap();
            client.tls.process_new_packets().unwrap();
            client.flush().await;
        }
        assert_eq!(client.read(2).await, b"hi");
    };
    let serving = async {
        let mut stream = serve(far, certificates, options).await.unwrap();
        assert!(stream.tls().unwrap().early.is_none());
        stream.write_all(b"hi").await.unwrap();
        stream.flush().await.unwrap();
        stream
    };
    tokio::join!(visiting, serving);
    let (near, _far) = sockets().await;
    EarlyClient::new(config, near).tls.early_data().is_some()
}

#[test]
fn early_data_is_read_before_the_end_of_the_handshake_and_never_twice() {
    run(async {
        let root = Authority::root("Root");
        let (config, options) = (client_config(&root), options(16_384));
        let certificates = table(vec![("a.test", root.identity(&["a.test"]))]);
        assert!(first_visit(&config, &certificates, &options).await);
        let (near, far) = sockets().await;
        let mut client = EarlyClient::new(&config, near);
        assert!(client.put_early(b"GET /early"));
        client.flush().await;
        // The client reads nothing, so its handshake is not complete.
        let mut stream = serve(far, &certificates, &options).await.unwrap();
        let early = stream.tls().unwrap().early.clone().unwrap();
        let mut got = [0; 10];
        stream.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"GET /early");
        stream.write_all(b"response").await.unwrap();
        stream.flush().await.unwrap();
        assert!(!early.is_complete());
        let recorded = client.sent.clone();
        assert_eq!(client.read(8).await, b"response");
        assert!(client.tls.is_early_data_accepted());
        client.flush().await;
        use std::io::Write;
        client.tls.writer().write_all(b"later").unwrap();
        client.flush().await;
        let mut got = [0; 5];
        stream.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"later");
        assert!(early.is_complete());
        poll_fn(|cx| early.poll_complete(cx)).await;
        // The same bytes again, as an attacker has recorded them: another handshake begins, without early data.
        for _ in 0..3 {
            let (mut attacker, far) = sockets().await;
            attacker.write_all(&recorded).await.unwrap();
            attacker.shutdown().await.unwrap();
            let replayed = serve(far, &certificates, &options).await;
            assert!(matches!(replayed, Err(HandshakeError::Closed)), "{replayed:?}");
        }
    });
}

#[test]
fn clients_with_certificates_have_no_early_data() {
    run(async {
        let root = Authority::root("Root");
        let (config, options) = (client_config(&root), options(16_384));
        let asked = ClientAuth::new(&root.pem, 1, Demand::Optional).unwrap();
        let identity = Identity { client_auth: Some(asked), ..root.identity(&["a.test"]) };
        let certificates = table(vec![("a.test", identity)]);
        assert!(!first_visit(&config, &certificates, &options).await);
    });
}

#[test]
fn early_data_has_a_limit() {
    run(async {
        let root = Authority::root("Root");
        let (config, options) = (client_config(&root), options(10));
        let certificates = table(vec![("a.test", root.identity(&["a.test"]))]);
        assert!(first_visit(&config, &certificates, &options).await);
        let (near, far) = sockets().await;
        let mut client = EarlyClient::new(&config, near);
        // The client keeps to the limit of its ticket.
        assert!(!client.put_early(&[7; 11]));
        client.flush().await;
        let mut stream = serve(far, &certificates, &options).await.unwrap();
        let mut got = [0; 10];
        stream.read_exact(&mut got).await.unwrap();
        assert_eq!(got, [7; 10]);
    });
}

#[test]
fn listeners_without_early_data_announce_none() {
    run(async {
        let root = Authority::root("Root");
        let config = client_config(&root);
        let resumption = Resumption::Cache(Arc::new(SessionCache::new(10)));
        let identity = Identity { resumption, ..root.identity(&["a.test"]) };
        let certificates = table(vec![("a.test", identity)]);
        assert!(!first_visit(&config, &certificates, &AcceptOptions::default()).await);
    });
}
