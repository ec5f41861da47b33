//! TLS over loopback sockets, with generated certificates.

mod early_data;

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::pem::Pair;
use super::*;
use crate::stream::Stream;

const ECDSA: &rcgen::SignatureAlgorithm = &rcgen::PKCS_ECDSA_P256_SHA256;
const RSA: &rcgen::SignatureAlgorithm = &rcgen::PKCS_RSA_SHA256;

/// Handshakes take milliseconds; no test waits this long unless it fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `test` on a worker's kind of runtime, with its deadlines turning.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::select! {
            () = crate::deadline::drive(|_| 1) => unreachable!("the wheel turns for ever"),
            result = tokio::time::timeout(PATIENCE, test) => result.expect("the test hangs"),
        }
    })
}

/// An authority that issues certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    }

    fn root(name: &str) -> Authority {
        let (params, key) = (Authority::params(name), KeyPair::generate().unwrap());
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Returns an authority under this one.
    fn sub(&self, name: &str) -> Authority {
        let (params, key) = (Authority::params(name), KeyPair::generate().unwrap());
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Returns a certificate and its key, both PEM.
    fn issue(&self, names: &[&str], algorithm: &'static rcgen::SignatureAlgorithm) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate_for(algorithm).unwrap();
        let cert = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        (cert.pem(), key.serialize_pem())
    }

    fn pair(&self, names: &[&str], algorithm: &'static rcgen::SignatureAlgorithm) -> Pair {
        let (cert, key) = self.issue(names, algorithm);
        Pair::parse(&cert, &key, None).unwrap()
    }

    fn identity(&self, names: &[&str]) -> Identity {
        Identity {
            pairs: vec![self.pair(names, ECDSA)],
            versions: Versions::ALL,
            offer: Offer::default(),
            client_auth: None,
            resumption: Resumption::Off,
        }
    }

    fn trusted(&self) -> Trust {
        Trust::Authorities(Authorities::from_pem(&self.pem).unwrap())
    }

    fn client(&self) -> ClientTls {
        ClientTls::new(ClientSettings { trust: self.trusted(), ..ClientSettings::default() }).unwrap()
    }
}

fn table(entries: Vec<(&str, Identity)>) -> Arc<Certificates> {
    let entries = entries.into_iter().map(|(name, it)| (name, Arc::new(ServerIdentity::new(it).unwrap())));
    Arc::new(Certificates::new(entries, None))
}

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (client, server) =
        tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let (client, server) = (client.unwrap(), server.unwrap().0);
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    (client, server)
}

/// Runs both ends of a handshake.
async fn shake_with(
    client: &ClientTls,
    name: &str,
    certificates: &Arc<Certificates>,
    options: &AcceptOptions,
) -> (Result<Stream, HandshakeError>, Result<Stream, HandshakeError>) {
    let (near, far) = sockets().await;
    let handshakes = Handshakes::new(1);
    tokio::join!(
        client.connect(Stream::Tcp(near), name, 10_000),
        accept(Stream::Tcp(far), b"", options, &handshakes, |name| certificates.choose(name).cloned()),
    )
}

async fn shake(client: &ClientTls, name: &str, certificates: &Arc<Certificates>) -> (Stream, Stream) {
    let (near, far) = shake_with(client, name, certificates, &AcceptOptions::default()).await;
    (near.unwrap(), far.unwrap())
}

/// Sends a byte each way, so that all bytes of the handshake have arrived.
async fn ping(near: &mut Stream, far: &mut Stream) {
    send(near, far, b"x").await;
    send(far, near, b"y").await;
}

/// Sends a few bytes one way.
async fn send(from: &mut Stream, to: &mut Stream, bytes: &[u8]) {
    from.write_all(bytes).await.unwrap();
    from.flush().await.unwrap();
    let mut got = vec![0; bytes.len()];
    to.read_exact(&mut got).await.unwrap();
    assert_eq!(got, bytes);
}

fn facts(stream: &Stream) -> &Facts {
    stream.tls().unwrap()
}

#[test]
fn a_stream_over_loopback() {
    run(async {
        let root = Authority::root("root");
        let certificates = table(vec![("a.test", root.identity(&["a.test"]))]);
        let settings = ClientSettings {
            trust: root.trusted(),
            alpn: vec![b"two".to_vec(), b"one".to_vec()],
            ..ClientSettings::default()
        };
        let options =
            AcceptOptions { alpn: vec![b"one".to_vec(), b"two".to_vec()], ..AcceptOptions::default() };
        let client = ClientTls::new(settings).unwrap();
        let (near, far) = shake_with(&client, "a.test", &certificates, &options).await;
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        ping(&mut near, &mut far).await;
        for stream in [&near, &far] {
            let facts = facts(stream);
            assert_eq!(facts.alpn.as_deref(), Some(&b"one"[..]), "the server's preference");
            assert_eq!(facts.version, Version::Tls13);
            assert!(facts.cipher.starts_with("TLS_"), "{}", facts.cipher);
            assert_eq!(facts.key_exchange, "X25519MLKEM768");
            assert_eq!(facts.server_name.as_deref(), Some("a.test"));
            assert_eq!(facts.client_certificate, ClientCertificate::NotAsked);
            assert!(!facts.is_resumed);
        }
        assert_eq!(facts(&near).peer_chain.len(), 1);
        assert!(facts(&far).peer_chain.is_empty() && facts(&far).identity.is_some());
    });
}

#[test]
fn the_cheaper_cipher_is_chosen_unless_it_is_slow_for_the_client() {
    run(async {
        let root = Authority::root("root");
        let certificates = table(vec![("a.test", root.identity(&["a.test"]))]);
        let check = async |order: &[&str], versions: Versions, expected: &str| {
            let mut provider = rustls::crypto::aws_lc_rs::default_provider();
            let rank = |suite: &rustls::SupportedCipherSuite| {
                order.iter().position(|part| suite.suite().as_str().is_some_and(|name| name.contains(part)))
            };
            provider.cipher_suites.retain(|suite| rank(suite).is_some());
            provider.cipher_suites.sort_by_key(rank);
            let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
                .with_safe_default_protocol_versions()
                .unwrap()
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Only(vec![
                    rustls::SignatureScheme::ECDSA_NISTP256_SHA256,
                ])))
                .with_no_client_auth();
            let client = ClientTls::from_config(config);
            let options = AcceptOptions { versions, ..AcceptOptions::default() };
            let (near, far) = shake_with(&client, "a.test", &certificates, &options).await;
            let (near, far) = (near.unwrap(), far.unwrap());
            assert!(facts(&far).cipher.contains(expected), "{order:?}: {}", facts(&far).cipher);
            assert_eq!(facts(&near).cipher, facts(&far).cipher);
        };
        for (versions, cheap, chacha, strong) in [
            (Versions::ONLY_13, "AES_128", "CHACHA20", "AES_256"),
            (Versions::ONLY_12, "AES128", "CHACHA20", "AES256"),
        ] {
            check(&["AES_256", "AES_128", "CHACHA20"], versions, cheap).await;
            check(&["AES_256", "CHACHA20", "AES_128"], versions, cheap).await;
            check(&["CHACHA20", "AES_256", "AES_128"], versions, chacha).await;
            check(&["AES_256", "CHACHA20"], versions, strong).await;
            check(&["AES_256"], versions, strong).await;
        }
    });
}

#[test]
fn the_name_decides_the_identity() {
    let root = Authority::root("root");
    let names = ["a.test", "*.b.test", "x.b.test", "*"];
    let identities = names.map(|name| {
        let identity = Arc::new(ServerIdentity::new(root.identity(&[name])).unwrap());
        (name, identity)
    });
    let check = |fallback: Option<&str>, asked: Option<&str>, expected: Option<&str>, with_any: bool| {
        let entries = identities.iter().filter(|(name, _)| with_any || *name != "*").cloned();
        let certificates = Certificates::new(entries, fallback);
        let found = certificates.choose(asked).map(|found| {
            let (name, _) = identities.iter().find(|(_, it)| Arc::ptr_eq(it, found)).unwrap();
            *name
        });
        assert_eq!(found, expected, "{asked:?}, fallback {fallback:?}");
    };
    check(None, Some("a.test"), Some("a.test"), false);
    check(None, Some("A.TEST."), Some("a.test"), false);
    check(None, Some("x.b.test"), Some("x.b.test"), false);
    check(None, Some("y.b.test"), Some("*.b.test"), false);
    check(None, Some("y.x.b.test"), None, false);
    check(None, Some("b.test"), None, false);
    check(None, Some("c.test"), Some("*"), true);
    check(None, None, None, true);
    check(Some("a.test"), None, Some("a.test"), true);
    check(Some("A.test."), None, Some("a.test"), false);
    check(Some("none.test"), None, None, false);
    check(Some("a.test"), Some("none.test"), None, false);
    // The first of two with the same name counts.
    let (first, second) = (&identities[0].1, &identities[1].1);
    let twice = Certificates::new([("t.test", Arc::clone(first)), ("T.test", Arc::clone(second))], None);
    assert!(Arc::ptr_eq(twice.find("t.test").unwrap(), first));
}

#[test]
fn a_name_that_refuses_is_not_served_by_a_wildcard() {
    run(async {
        let root = Authority::root("root");
        let wildcard = Arc::new(ServerIdentity::new(root.identity(&["*.a.test"])).unwrap());
        let refusing = Arc::new(ServerIdentity::refusing());
        let certificates =
            Arc::new(Certificates::new([("*.a.test", wildcard), ("x.a.test", refusing)], None));
        shake(&root.client(), "y.a.test", &certificates).await;
        let (near, far) =
            shake_with(&root.client(), "x.a.test", &certificates, &AcceptOptions::default()).await;
        assert!(matches!(far, Err(HandshakeError::NoCertificate(_))), "{far:?}");
        assert!(near.is_err());
    });
}

#[test]
fn a_client_without_a_certificate_for_its_name_gets_an_alert() {
    run(async {
        let root = Authority::root("root");
        let certificates = table(vec![("*.a.test", root.identity(&["*.a.test"]))]);
        let options = AcceptOptions::default();
        let (near, far) = shake_with(&root.client(), "x.a.test", &certificates, &options).await;
        assert!(near.is_ok() && far.is_ok());
        let (near, far) = shake_with(&root.client(), "b.test", &certificates, &options).await;
        assert!(matches!(far, Err(HandshakeError::NoCertificate(Some(name))) if &*name == "b.test"));
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::UnrecognisedName);
        assert!(matches!(near, Err(HandshakeError::Protocol(error)) if error == alert));
        // An address is not sent as a name.
        let (_, far) = shake_with(&root.client(), "127.0.0.1", &certificates, &options).await;
        assert!(matches!(far, Err(HandshakeError::NoCertificate(None))));
    });
}

/// A verifier that accepts every certificate but only some signature schemes.
#[derive(Debug)]
struct Only(Vec<rustls::SignatureScheme>);

impl rustls::client::danger::ServerCertVerifier for Only {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.clone()
    }
}

#[test]
fn the_clients_signature_schemes_choose_the_certificate() {
    use rustls::SignatureScheme::{ECDSA_NISTP256_SHA256, RSA_PSS_SHA256};
    run(async {
        let root = Authority::root("root");
        let (rsa, ecdsa) = (root.pair(&["a.test"], RSA), root.pair(&["a.test"], ECDSA));
        let [rsa_der, ecdsa_der] = [&rsa, &ecdsa].map(|pair| pair.chain()[0].clone());
        let identity = Identity { pairs: vec![rsa, ecdsa], ..root.identity(&[]) };
        let certificates = table(vec![("a.test", identity)]);
        for versions in [Versions::ONLY_12, Versions::ONLY_13] {
            let options = AcceptOptions { versions, ..AcceptOptions::default() };
            for (schemes, expected) in [
                (vec![RSA_PSS_SHA256], &rsa_der),
                (vec![ECDSA_NISTP256_SHA256], &ecdsa_der),
                (vec![RSA_PSS_SHA256, ECDSA_NISTP256_SHA256], &ecdsa_der),
            ] {
                let config = rustls::ClientConfig::builder_with_provider(Arc::clone(&PROVIDER))
                    .with_safe_default_protocol_versions()
                    .unwrap()
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(Only(schemes.clone())))
                    .with_no_client_auth();
                let client = ClientTls::from_config(config);
                let (near, far) = shake_with(&client, "a.test", &certificates, &options).await;
                far.unwrap();
                assert_eq!(&facts(&near.unwrap()).peer_chain[0], expected, "{versions:?} {schemes:?}");
            }
        }
    });
}

#[test]
fn versions_of_listener_and_identity_both_count() {
    run(async {
        let root = Authority::root("root");
        let check = async |listener: Versions, own: Versions, expected: Option<Version>| {
            let identity = Identity { versions: own, ..root.identity(&["a.test"]) };
            let certificates = table(vec![("a.test", identity)]);
            let options = AcceptOptions { versions: listener, ..AcceptOptions::default() };
            let (near, far) = shake_with(&root.client(), "a.test", &certificates, &options).await;
            assert_eq!(near.ok().map(|stream| facts(&stream).version), expected, "{listener:?} {own:?}");
            assert_eq!(far.ok().map(|stream| facts(&stream).version), expected, "{listener:?} {own:?}");
        };
        check(Versions::ALL, Versions::ALL, Some(Version::Tls13)).await;
        check(Versions::ALL, Versions::ONLY_12, Some(Version::Tls12)).await;
        check(Versions::ONLY_12, Versions::ALL, Some(Version::Tls12)).await;
        check(Versions::ONLY_12, Versions::ONLY_13, None).await;
    });
}

#[test]
fn servers_are_verified_on_demand() {
    run(async {
        let (root, other) = (Authority::root("root"), Authority::root("other"));
        let certificates = table(vec![("*", root.identity(&["a.test"]))]);
        let anyone = ClientTls::new(ClientSettings::default()).unwrap();
        let check = async |client: &ClientTls, name: &str, expected: bool| {
            let (near, _) = shake_with(client, name, &certificates, &AcceptOptions::default()).await;
            assert_eq!(near.is_ok(), expected, "{name}: {near:?}");
        };
        check(&root.client(), "a.test", true).await;
        check(&root.client(), "b.test", false).await;
        check(&other.client(), "a.test", false).await;
        check(&anyone, "b.test", true).await;
        check(&anyone, "not a name", false).await;
    });
}

/// A self-signed certificate is formally an authority. As with OpenSSL, a server may present the trusted certificate
/// itself; its name and its validity still count.
#[test]
fn a_server_may_show_the_trusted_certificate_itself() {
    let own = |last_year: i32| {
        let mut params = CertificateParams::new(["a.test".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_after = rcgen::date_time_ymd(last_year, 1, 1);
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    };
    run(async {
        let ((valid, key), (other, _), (expired, expired_key)) = (own(4000), own(4000), own(2001));
        let root = Authority::root("root");
        let check = async |shown: (&str, &str), trusted: &str, name: &str, expected: bool| {
            let pairs = vec![Pair::parse(shown.0, shown.1, None).unwrap()];
            let certificates = table(vec![("*", Identity { pairs, ..root.identity(&[]) })]);
            let trust = Trust::Authorities(Authorities::from_pem(trusted).unwrap());
            for versions in [Versions::ONLY_12, Versions::ONLY_13] {
                let settings = ClientSettings { trust: trust.clone(), versions, ..ClientSettings::default() };
                let client = ClientTls::new(settings).unwrap();
                let (near, _) = shake_with(&client, name, &certificates, &AcceptOptions::default()).await;
                assert_eq!(near.is_ok(), expected, "{name} {versions:?}: {near:?}");
            }
        };
        check((&valid, &key), &valid, "a.test", true).await;
        check((&valid, &key), &[&*other, &valid].concat(), "a.test", true).await;
        check((&valid, &key), &valid, "b.test", false).await;
        check((&valid, &key), &other, "a.test", false).await;
        check((&valid, &key), &root.pem, "a.test", false).await;
        check((&expired, &expired_key), &expired, "a.test", false).await;
    });
}

#[test]
fn clients_show_their_certificates() {
    use ClientCertificate::{Absent, Refused, Verified};
    run(async {
        let root = Authority::root("root");
        let clients = Authority::root("clients");
        let (sub, stranger) = (clients.sub("sub"), Authority::root("stranger"));
        let direct = clients.pair(&["client"], ECDSA);
        let (cert, key) = sub.issue(&["client"], RSA);
        let deep = Pair::parse(&format!("{cert}{}", sub.pem), &key, None).unwrap();
        let strange = stranger.pair(&["client"], ECDSA);
        let check = async |demand, depth, pair: Option<&Pair>, expected: Option<ClientCertificate>| {
            for versions in [Versions::ONLY_12, Versions::ONLY_13] {
                let auth = ClientAuth::new(&clients.pem, depth, demand).unwrap();
                let identity = Identity { client_auth: Some(auth), ..root.identity(&["a.test"]) };
                let certificates = table(vec![("a.test", identity)]);
                let settings = ClientSettings {
                    trust: root.trusted(),
                    pair: pair.cloned(),
                    versions,
                    ..Default::default()
                };
                let client = ClientTls::new(settings).unwrap();
                let options = AcceptOptions::default();
                let (_near, far) = shake_with(&client, "a.test", &certificates, &options).await;
                let got = far.as_ref().ok().map(|stream| facts(stream).client_certificate);
                assert_eq!(got, expected, "{demand:?} {depth} {versions:?}: {far:?}");
                let shown = far.ok().map_or(0, |stream| facts(&stream).peer_chain.len());
                assert!(expected.is_none() || (shown > 0) == (expected != Some(Absent)));
            }
        };
        check(Demand::Required, 1, Some(&direct), Some(Verified)).await;
        check(Demand::Required, 0, Some(&direct), Some(Verified)).await;
        check(Demand::Required, 1, Some(&deep), Some(Verified)).await;
        check(Demand::Required, 0, Some(&deep), None).await;
        check(Demand::Required, 1, Some(&strange), None).await;
        check(Demand::Required, 1, None, None).await;
        check(Demand::Optional, 1, Some(&direct), Some(Verified)).await;
        check(Demand::Optional, 0, Some(&deep), Some(Refused)).await;
        check(Demand::Optional, 1, Some(&strange), Some(Refused)).await;
        check(Demand::Optional, 1, None, Some(Absent)).await;
    });
}

#[test]
fn sessions_are_resumed_under_the_same_terms_only() {
    run(async {
        let (root, clients) = (Authority::root("root"), Authority::root("clients"));
        let keys = Arc::new(TicketKeys::new(Duration::from_secs(3600)).unwrap());
        let sessions = Arc::new(SessionCache::new(100));
        let identity = |resumption: &Resumption, auth: Option<Demand>| {
            let client_auth = auth.map(|demand| ClientAuth::new(&clients.pem, 1, demand).unwrap());
            let it = Identity { client_auth, resumption: resumption.clone(), ..root.identity(&["a.test"]) };
            table(vec![("a.test", it)])
        };
        let pair = clients.pair(&["client"], ECDSA);
        for (resumption, resumes) in
            [(Resumption::Off, false), (Resumption::Tickets(keys), true), (Resumption::Cache(sessions), true)]
        {
            for versions in [Versions::ONLY_12, Versions::ONLY_13] {
                let settings = ClientSettings {
                    trust: root.trusted(),
                    pair: Some(pair.clone()),
                    versions,
                    ..ClientSettings::default()
                };
                let client = ClientTls::new(settings).unwrap();
                let connect = async |certificates: &Arc<Certificates>, expected: bool| {
                    let (mut near, mut far) = shake(&client, "a.test", certificates).await;
                    ping(&mut near, &mut far).await;
                    let what = format!("{resumption:?} {versions:?}");
                    assert_eq!(facts(&far).is_resumed, expected, "{what}");
                    assert_eq!(facts(&near).is_resumed, expected, "{what}");
                    facts(&far).client_certificate
                };
                connect(&identity(&resumption, None), false).await;
                // A new certificate with the same demands on clients needs no full handshake.
                connect(&identity(&resumption, None), resumes).await;
                // A new demand for a certificate does.
                let demanding = identity(&resumption, Some(Demand::Required));
                assert_eq!(connect(&demanding, false).await, ClientCertificate::Verified);
                assert_eq!(connect(&demanding, resumes).await, ClientCertificate::Verified);
                assert_eq!(
                    connect(&identity(&resumption, Some(Demand::Optional)), false).await,
                    ClientCertificate::Verified
                );
            }
        }
    });
}

#[test]
fn a_new_table_does_not_disturb_connections() {
    run(async {
        let root = Authority::root("root");
        let fresh = || table(vec![("a.test", root.identity(&["a.test"]))]);
        let (mut near, mut far) = shake(&root.client(), "a.test", &fresh()).await;
        let (newer, _newer_far) = shake(&root.client(), "a.test", &fresh()).await;
        assert_ne!(facts(&near).peer_chain, facts(&newer).peer_chain);
        ping(&mut near, &mut far).await;
        let options = AcceptOptions::default();
        let (near, far) = shake_with(&root.client(), "a.test", &Arc::default(), &options).await;
        assert!(near.is_err() && matches!(far, Err(HandshakeError::NoCertificate(_))));
    });
}

#[test]
fn bad_material_is_rejected_with_a_reason() {
    let root = Authority::root("root");
    let (cert, key) = root.issue(&["a.test"], ECDSA);
    let (_, other_key) = root.issue(&["a.test"], ECDSA);
    let check = |cert: &str, key: &str, expected: &str| {
        let error = Pair::parse(cert, key, None).unwrap_err().to_string();
        assert_eq!(error, expected);
    };
    check("", &key, "failed to parse cert: it contains no CERTIFICATE block");
    check("nonsense", &key, "failed to parse cert: it contains no CERTIFICATE block");
    check(&key, &key, "failed to parse cert: it contains no CERTIFICATE block");
    check(
        &cert.replace("-----END CERTIFICATE-----", ""),
        &key,
        "failed to parse cert: a block has no END line",
    );
    let garbled = "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n";
    check(garbled, &key, "failed to parse cert: a block is not base64");
    let hollow = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    check(
        hollow,
        &key,
        "failed to parse cert: certificate 1 is not an X.509 certificate: TrailingData(SignedData)",
    );
    check(
        &format!("{cert}{hollow}"),
        &key,
        "failed to parse cert: certificate 2 is not an X.509 certificate: TrailingData(SignedData)",
    );
    check(&cert, "", "failed to parse key: it contains no PRIVATE KEY block");
    check(&cert, &cert, "failed to parse key: it contains no PRIVATE KEY block");
    check(
        &cert,
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        "failed to parse key: not an RSA (2048 to 8192 bits), ECDSA (P-256, P-384, P-521) or Ed25519 key",
    );
    check(
        &cert,
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
        "failed to parse key: the key is encrypted, and no passphrase is configured; set tls.key_passphrase_files, or decrypt the key: openssl pkey -in encrypted.key -out plain.key",
    );
    check(&cert, &other_key, "the key does not belong to the certificate");
    let auth = ClientAuth::new("x", 1, Demand::Required).unwrap_err().to_string();
    assert!(auth.starts_with("failed to validate client_cert: failed to parse cert: "), "{auth}");
    let identity = Identity { pairs: Vec::new(), ..root.identity(&[]) };
    assert_eq!(ServerIdentity::new(identity).unwrap_err().to_string(), "there is no certificate");
    // Debug output does not show keys.
    let shown = format!("{:?}", Pair::parse(&cert, &key, None).unwrap());
    let digits = key.lines().nth(1).unwrap();
    assert!(!shown.contains(digits), "{shown}");
}

#[test]
fn silence_and_nonsense_end_the_handshake() {
    run(async {
        let root = Authority::root("root");
        let certificates = table(vec![("a.test", root.identity(&["a.test"]))]);
        let check = async |bytes: &[u8], close: bool, timeout_ms: u64, hello_bytes: usize, expected: &str| {
            let (mut near, far) = sockets().await;
            near.write_all(bytes).await.unwrap();
            if close {
                near.shutdown().await.unwrap();
            }
            let options = AcceptOptions { timeout_ms, hello_bytes, ..AcceptOptions::default() };
            let handshakes = Handshakes::new(1);
            let result = accept(Stream::Tcp(far), b"", &options, &handshakes, |name| {
                certificates.choose(name).cloned()
            });
            let error = result.await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(b"", false, 100, 1000, "not complete in time").await;
        check(&[22, 3, 1, 0, 100, 1], false, 100, 1000, "not complete in time").await;
        check(b"", true, 10_000, 1000, "closed the connection").await;
        check(&[22, 3, 1, 0, 100, 1], true, 10_000, 1000, "closed the connection").await;
        check(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", false, 10_000, 1000, "HTTP in cleartext").await;
        check(b"HELO there\r\n", false, 10_000, 1000, "sent cleartext").await;
        check(&[0, 0, 0, 8, 4, 210, 22, 47], false, 10_000, 1000, "sent cleartext").await;
        check(b"GET / HTT", false, 100, 1000, "not complete in time").await;
        check(b"GET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false, 10_000, 20, "sent cleartext").await;
        check(&[22, 3, 1, 0x3f, 0xff, 1, 0, 0x40, 0], false, 10_000, 8, "too large").await;
        let long = [&[22, 3, 1, 0x3f, 0xff, 1, 0, 0x7f, 0xff][..], &[0; 4000]].concat();
        check(&long, false, 10_000, 2000, "too large").await;
        // A silent server.
        let (near, _far) = sockets().await;
        let result = root.client().connect(Stream::Tcp(near), "a.test", 100).await;
        assert!(matches!(result, Err(HandshakeError::TimedOut)));
        // One handshake at a time: the second waits for the first, within its own timeout.
        let (handshakes, options) =
            (Handshakes::new(1), AcceptOptions { timeout_ms: 200, ..Default::default() });
        let turn = handshakes.place().await;
        let (near, far) = sockets().await;
        let client = root.client();
        let (_, result) = tokio::join!(
            client.connect(Stream::Tcp(near), "a.test", 1_000),
            accept(Stream::Tcp(far), b"", &options, &handshakes, |name| certificates.choose(name).cloned()),
        );
        assert!(matches!(result, Err(HandshakeError::TimedOut)));
        drop(turn);
    });
}

#[test]
fn bytes_read_before_the_handshake_count() {
    run(async {
        let root = Authority::root("root");
        let certificates = table(vec![("a.test", root.identity(&["a.test"]))]);
        let (near, mut far) = sockets().await;
        let (client, options, handshakes) = (root.client(), AcceptOptions::default(), Handshakes::new(1));
        let (near, far) = tokio::join!(client.connect(Stream::Tcp(near), "a.test", 10_000), async {
            let mut early = [0; 100];
            far.read_exact(&mut early).await.unwrap();
            accept(Stream::Tcp(far), &early, &options, &handshakes, |name| certificates.choose(name).cloned())
                .await
        });
        ping(&mut near.unwrap(), &mut far.unwrap()).await;
    });
}

#[test]
fn a_closing_alert_and_a_cut_differ() {
    run(async {
        let root = Authority::root("root");
        for versions in [Versions::ONLY_12, Versions::ONLY_13] {
            let it = Identity { versions, ..root.identity(&["a.test"]) };
            let certificates = table(vec![("a.test", it)]);
            // A clean close: everything before it arrives, and the other direction stays open.
            let (mut near, mut far) = shake(&root.client(), "a.test", &certificates).await;
            far.write_all(b"last").await.unwrap();
            far.shutdown().await.unwrap();
            let mut got = Vec::new();
            near.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, b"last");
            send(&mut near, &mut far, b"still here").await;
            assert!(far.write_all(b"more").await.is_err(), "our own side is closed");
            near.shutdown().await.unwrap();
            assert_eq!(far.read(&mut [0; 1]).await.unwrap(), 0);

            // A cut: the received bytes are delivered, then an error.
            let (mut near, mut far) = shake(&root.client(), "a.test", &certificates).await;
            far.write_all(b"last").await.unwrap();
            far.flush().await.unwrap();
            drop(far);
            let mut got = Vec::new();
            let error = near.read_to_end(&mut got).await.unwrap_err();
            assert_eq!((got.as_slice(), error.kind()), (&b"last"[..], io::ErrorKind::UnexpectedEof));
        }
    });
}

#[test]
fn forged_records_are_an_error_and_cause_an_alert() {
    run(async {
        let root = Authority::root("root");
        let certificates = table(vec![("a.test", root.identity(&["a.test"]))]);
        let (mut near, mut far) = shake(&root.client(), "a.test", &certificates).await;
        ping(&mut near, &mut far).await;
        let mut forged = vec![23, 3, 3, 0, 40];
        forged.resize(45, 7);
        let Stream::Tls(tls) = &mut near else { unreachable!() };
        tls.write_raw(&forged).await.unwrap();
        for _ in 0..2 {
            let error = far.read(&mut [0; 10]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        assert!(far.write_all(b"x").await.is_err());
        let error = near.read(&mut [0; 10]).await.unwrap_err();
        assert!(error.to_string().contains("BadRecordMac"), "{error}");
    });
}

/// Writes `total` bytes of a position-dependent pattern, in pieces of changing size.
async fn pour(stream: &mut (impl AsyncWriteExt + Unpin), total: usize) {
    let data: Vec<u8> = (0..total).map(|at| ((at * 31) >> 3) as u8).collect();
    let (mut at, mut size) = (0, 1);
    while at < total {
        let end = total.min(at + size);
        let (head, tail) = data[at..end].split_at((end - at) / 3);
        let slices = [io::IoSlice::new(head), io::IoSlice::new(&[]), io::IoSlice::new(tail)];
        at += stream.write_vectored(&slices).await.unwrap();
        size = size * 7 % 200_003;
    }
    stream.flush().await.unwrap();
    stream.shutdown().await.unwrap();
}

async fn drink(stream: &mut (impl AsyncReadExt + Unpin), total: usize) {
    let (mut at, mut size) = (0, 1);
    let mut buf = vec![0; 100_000];
    loop {
        let n = stream.read(&mut buf[..size]).await.unwrap();
        if n == 0 {
            break;
        }
        for byte in &buf[..n] {
            assert_eq!(*byte, ((at * 31) >> 3) as u8, "at {at}");
            at += 1;
        }
        size = size * 11 % 99_991;
        if at % 5 == 0 {
            // A slow reader, so that the socket becomes full.
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(at, total);
}

#[test]
fn much_flows_both_ways_at_once() {
    const TOTAL: usize = 6_000_000;
    run(async {
        let root = Authority::root("root");
        for versions in [Versions::ONLY_12, Versions::ONLY_13] {
            let it = Identity { versions, ..root.identity(&["a.test"]) };
            let certificates = table(vec![("a.test", it)]);
            let (near, far) = shake(&root.client(), "a.test", &certificates).await;
            let ((mut near_read, mut near_write), (mut far_read, mut far_write)) =
                (tokio::io::split(near), tokio::io::split(far));
            tokio::join!(
                pour(&mut near_write, TOTAL),
                pour(&mut far_write, TOTAL),
                drink(&mut near_read, TOTAL),
                drink(&mut far_read, TOTAL),
            );
        }
    });
}

/// Forwards bytes in small pieces, each separately.
async fn trickle(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    size: usize,
) {
    let mut buf = vec![0; size];
    while let Ok(n @ 1..) = from.read(&mut buf).await {
        // The far end may leave once it has everything.
        if to.write_all(&buf[..n]).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
    let _ = to.shutdown().await;
}

#[test]
fn records_may_come_in_pieces() {
    run(async {
        let root = Authority::root("root");
        let certificates = table(vec![("a.test", root.identity(&["a.test"]))]);
        for size in [1, 7, 1000] {
            let ((near, a), (b, far)) = (sockets().await, sockets().await);
            let ((a_read, a_write), (b_read, b_write)) = (a.into_split(), b.into_split());
            let (client, options, handshakes) = (root.client(), AcceptOptions::default(), Handshakes::new(1));
            let talk = async {
                let (near, far) = tokio::join!(
                    client.connect(Stream::Tcp(near), "a.test", 10_000),
                    accept(Stream::Tcp(far), b"", &options, &handshakes, |name| certificates
                        .choose(name)
                        .cloned()),
                );
                let (mut near, mut far) = (near.unwrap(), far.unwrap());
                let total = size * 30_000 % 300_000;
                tokio::join!(pour(&mut near, total), drink(&mut far, total));
                far.shutdown().await.unwrap();
            };
            tokio::join!(trickle(a_read, b_write, size), trickle(b_read, a_write, size), talk);
        }
    });
}

#[test]
fn a_writer_is_held_back_by_a_peer_that_does_not_read() {
    run(async {
        let root = Authority::root("root");
        let certificates = table(vec![("a.test", root.identity(&["a.test"]))]);
        let (near, mut far) = shake(&root.client(), "a.test", &certificates).await;
        let data = vec![0; 100_000];
        let mut written = 0;
        let blocked = poll_fn(|cx| {
            loop {
                match far.poll_write(cx, &data) {
                    Poll::Ready(n) => written += n.unwrap(),
                    Poll::Pending => return Poll::Ready(far.poll_flush(cx).is_pending()),
                }
            }
        })
        .await;
        assert!(blocked && written < 64 << 20, "{written}");
        let Stream::Tls(tls) = &far else { unreachable!() };
        assert!(tls.held_bytes() < 2 * 64 * 1024, "{}", tls.held_bytes());
        drop(near);
    });
}

#[test]
fn an_idle_stream_is_quiet_and_holds_no_buffer() {
    run(async {
        let root = Authority::root("root");
        let keys = Arc::new(TicketKeys::new(Duration::from_secs(3600)).unwrap());
        let it = Identity { resumption: Resumption::Tickets(keys), ..root.identity(&["a.test"]) };
        let (mut near, mut far) = shake(&root.client(), "a.test", &table(vec![("a.test", it)])).await;
        ping(&mut near, &mut far).await;
        send(&mut near, &mut far, &[7; 50_000]).await;
        for stream in [&mut near, &mut far] {
            assert!(stream.is_quiet());
            let Stream::Tls(tls) = stream else { unreachable!() };
            assert_eq!(tls.held_bytes(), 0);
        }
        far.write_all(b"unasked").await.unwrap();
        far.flush().await.unwrap();
        let mut nobody = [0; 0];
        assert_eq!(near.read(&mut nobody).await.unwrap(), 0);
        // Loopback delivers at once, but the reactor must poll.
        while near.is_quiet() {
            tokio::task::yield_now().await;
        }
    });
}

/// Returns its identity on a signal, for every name but one.
#[derive(Debug)]
struct Slow {
    identity: Arc<ServerIdentity>,
    told: tokio::sync::Notify,
    asked: tokio::sync::Notify,
    patience_ms: u64,
}

impl super::Issuer for Slow {
    fn obtain<'i>(&'i self, name: &'i str) -> Obtained<'i> {
        Box::pin(async move {
            self.asked.notify_one();
            self.told.notified().await;
            (name == "slow.test").then(|| Arc::clone(&self.identity))
        })
    }

    fn patience_ms(&self) -> u64 {
        self.patience_ms
    }
}

fn slow(root: &Authority, patience_ms: u64) -> (Arc<Slow>, AcceptOptions) {
    let identity = Arc::new(ServerIdentity::new(root.identity(&["slow.test"])).unwrap());
    let issuer =
        Arc::new(Slow { identity, told: Default::default(), asked: Default::default(), patience_ms });
    let options =
        AcceptOptions { issuer: Some(Arc::clone(&issuer) as Arc<dyn super::Issuer>), ..Default::default() };
    (issuer, options)
}

#[test]
fn a_wait_for_a_certificate_blocks_no_others() {
    run(async {
        let root = Authority::root("root");
        let certificates = table(vec![("a.test", root.identity(&["a.test"]))]);
        let (issuer, options) = slow(&root, 60_000);
        let (client, handshakes) = (root.client(), Handshakes::new(1));
        let choose = |name: Option<&str>| certificates.choose(name).cloned();
        let (near, far) = sockets().await;
        let waits = async {
            tokio::join!(
                client.connect(Stream::Tcp(near), "SLOW.test", 60_000),
                accept(Stream::Tcp(far), b"", &options, &handshakes, choose),
            )
        };
        let passes = async {
            issuer.asked.notified().await;
            let (near, far) = sockets().await;
            let (near, far) = tokio::join!(
                client.connect(Stream::Tcp(near), "a.test", 60_000),
                accept(Stream::Tcp(far), b"", &options, &handshakes, choose),
            );
            ping(&mut near.unwrap(), &mut far.unwrap()).await;
            issuer.told.notify_one();
        };
        let ((near, far), ()) = tokio::join!(waits, passes);
        ping(&mut near.unwrap(), &mut far.unwrap()).await;
    });
}

#[test]
fn a_late_certificate_is_not_used() {
    run(async {
        let root = Authority::root("root");
        let certificates = table(vec![("a.test", root.identity(&["a.test"]))]);
        // There is no signal in time for the first, and no identity for the second.
        for (name, patience_ms) in [("slow.test", 20), ("other.test", 60_000)] {
            let (issuer, options) = slow(&root, patience_ms);
            if patience_ms > 20 {
                issuer.told.notify_one();
            }
            let (near, far) = shake_with(&root.client(), name, &certificates, &options).await;
            assert!(near.is_err());
            assert!(matches!(far, Err(HandshakeError::NoCertificate(Some(asked))) if *asked == *name));
        }
    });
}
