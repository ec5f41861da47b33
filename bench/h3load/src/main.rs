//! The load generator of the benchmarks for HTTP/3: `bench-h3load PORT PATH CONNECTIONS STREAMS SECONDS`.
//!
//! Each connection to the gateway on 127.0.0.1 has so many requests under way at a time until the time is over. With 0
//! streams, each request has a connection of its own. The last line is `result requests=… micros=… p50=… p99=… errors=…`:
//! whole responses with status 200, the time, the times of requests in µs, and everything else that ended a request.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Buf;
use h3::client::SendRequest;
use h3_quinn::OpenStreams;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint};
use rustls::DigitallySignedStruct;
use rustls::SignatureScheme;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::task::LocalSet;

type Failure = Box<dyn std::error::Error>;

/// How long the last requests may take after the time is over.
const GRACE: Duration = Duration::from_secs(5);

/// The figures of a run.
#[derive(Default)]
struct Figures {
    /// Times of the whole responses, in µs.
    times: Vec<u64>,
    errors: u64,
}

struct Run {
    address: SocketAddr,
    path: String,
    end: Instant,
    figures: RefCell<Figures>,
}

/// Accepts every certificate, because the one of a benchmark is self-signed. Signatures are verified, as they
/// cost time.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn client() -> Result<Endpoint, Failure> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    // A session that is resumed would be no full handshake.
    tls.resumption = rustls::client::Resumption::disabled();
    let mut endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into())?;
    endpoint.set_default_client_config(ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?)));
    Ok(endpoint)
}

type Requests = SendRequest<OpenStreams, bytes::Bytes>;

async fn connect(endpoint: &Endpoint, address: SocketAddr) -> Result<Requests, Failure> {
    let connection = endpoint.connect(address, "localhost")?.await?;
    // nginx resets a request that ends with a frame of a reserved type.
    let mut client = h3::client::builder();
    client.send_grease(false);
    let (mut driver, requests) = client.build(h3_quinn::Connection::new(connection)).await?;
    tokio::task::spawn_local(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
    Ok(requests)
}

/// Sends a request and reads its response.
async fn exchange(requests: &mut Requests, run: &Run) -> Result<(), Failure> {
    let uri = format!("https://localhost:{}{}", run.address.port(), run.path);
    let mut stream = requests.send_request(http::Request::get(uri).body(())?).await?;
    stream.finish().await?;
    let response = stream.recv_response().await?;
    while let Some(data) = stream.recv_data().await? {
        std::hint::black_box(data.remaining());
    }
    if response.status() == 200 { Ok(()) } else { Err(format!("status {}", response.status()).into()) }
}

impl Run {
    fn note(&self, begin: Instant, result: &Result<(), Failure>) {
        let mut figures = self.figures.borrow_mut();
        match result {
            Ok(()) => figures.times.push(u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX)),
            Err(error) => {
                if figures.errors == 0 {
                    eprintln!("{error}");
                }
                figures.errors += 1;
            }
        }
    }

    /// Request after request, all over one connection.
    async fn stream(&self, mut requests: Requests) {
        while Instant::now() < self.end {
            let begin = Instant::now();
            let result = exchange(&mut requests, self).await;
            self.note(begin, &result);
            if result.is_err() {
                return;
            }
        }
    }

    /// A connection with so many streams; with 0, one connection after the other with one request each.
    async fn connection(self: Rc<Self>, endpoint: Endpoint, streams: usize) {
        loop {
            let begin = Instant::now();
            let mut requests = match connect(&endpoint, self.address).await {
                Ok(requests) => requests,
                Err(error) => return self.note(begin, &Err(error)),
            };
            if streams > 0 {
                let all: Vec<_> = (0..streams)
                    .map(|_| {
                        let (run, requests) = (Rc::clone(&self), requests.clone());
                        tokio::task::spawn_local(async move { run.stream(requests).await })
                    })
                    .collect();
                for stream in all {
                    let _ = stream.await;
                }
                return;
            }
            self.note(begin, &exchange(&mut requests, &self).await);
            if Instant::now() >= self.end {
                return;
            }
        }
    }
}

async fn load(words: &[String]) -> Result<(), Failure> {
    let [port, path, connections, streams, seconds] = words else {
        return Err("bench-h3load PORT PATH CONNECTIONS STREAMS SECONDS".into());
    };
    let (connections, streams): (usize, usize) = (connections.parse()?, streams.parse()?);
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds.parse()?);
    let address = (Ipv4Addr::LOCALHOST, port.parse()?).into();
    let run = Rc::new(Run { address, path: path.clone(), end, figures: RefCell::default() });
    let endpoint = client()?;
    let all: Vec<_> = (0..connections)
        .map(|_| tokio::task::spawn_local(Rc::clone(&run).connection(endpoint.clone(), streams)))
        .collect();
    let whole = async {
        for connection in all {
            let _ = connection.await;
        }
    };
    let left = end.saturating_duration_since(Instant::now()) + GRACE;
    let in_time = tokio::time::timeout(left, whole).await.is_ok();
    let micros = begin.elapsed().as_micros();
    let mut figures = run.figures.borrow_mut();
    figures.errors += u64::from(!in_time);
    figures.times.sort_unstable();
    let at = |share: usize| figures.times.get(figures.times.len() * share / 100).copied().unwrap_or(0);
    let (requests, errors) = (figures.times.len(), figures.errors);
    println!("result requests={requests} micros={micros} p50={} p99={} errors={errors}", at(50), at(99));
    endpoint.close(0_u32.into(), b"");
    Ok(())
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, load(&words))
}
