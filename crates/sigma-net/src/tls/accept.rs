//! The handshake with a client.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use rustls::server::{Acceptor, UnbufferedServerConnection};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::buffer::Buffer;
use super::identity::Order;
use super::ja4;
use super::postgres;
use super::session::{RECORD_BYTES, Session, Side};
use super::stream::{TlsStream, poll_drain, poll_fill};
use super::{
    ClientAuth, ClientCertificate, Demand, EarlyHandshake, EarlyOffer, Facts, HandshakeError, Offer,
    ServerIdentity, Versions, prefers_chacha,
};
use crate::answers::Answers;
use crate::deadline::Deadline;
use crate::stream::Stream;

/// The type of the record that TLS begins with (RFC 8446 §5.1).
const HANDSHAKE: u8 = 22;

/// Alerts sent before there is a session (RFC 8446 §6.2, RFC 6066 §3).
const PROTOCOL_VERSION: u8 = 70;
const UNRECOGNIZED_NAME: u8 = 112;

/// The TLS options of a listener.
#[derive(Debug, Clone)]
pub struct AcceptOptions {
    /// Protocols above TLS, the preferred first; empty for no negotiation.
    pub alpn: Vec<Vec<u8>>,
    /// The allowed versions; an identity may allow fewer.
    pub versions: Versions,
    /// Ciphers and groups, for identities without their own choice.
    pub offer: Offer,
    /// The accepted early data; None for none.
    pub early: Option<EarlyOffer>,
    /// The largest ClientHello, record headers included. A browser with post-quantum keys sends about 2 KiB.
    pub hello_bytes: usize,
    /// Time for the whole handshake, a request for TLS in cleartext included.
    pub timeout_ms: u64,
    /// Whether clients may request TLS in cleartext, as PostgreSQL clients do.
    pub takes_requests: bool,
    /// The identity for an authority that validates a name; None where nothing is proved.
    pub proofs: Option<Arc<Proofs>>,
    /// The issuer of certificates for names without one; None if such names are rejected.
    pub issuer: Option<Arc<dyn Issuer>>,
}

/// Obtains certificates for unknown names during a handshake.
pub trait Issuer: fmt::Debug + Send + Sync {
    /// Returns an identity for a name, which is in lower case and unchecked text of the client; None without an
    /// identity.
    fn obtain<'i>(&'i self, name: &'i str) -> Obtained<'i>;

    /// Returns how long a handshake waits for it, in milliseconds.
    fn patience_ms(&self) -> u64;
}

/// The future of an [`Issuer`].
pub type Obtained<'i> = Pin<Box<dyn Future<Output = Option<Arc<ServerIdentity>>> + Send + 'i>>;

/// Identities that prove names to an authority (RFC 8737), by name in lower case.
pub type Proofs = Answers<Arc<ServerIdentity>>;

/// The only protocol in the offer of an authority that checks a proof.
const PROOF: &[u8] = b"acme-tls/1";

impl Default for AcceptOptions {
    fn default() -> Self {
        AcceptOptions {
            alpn: Vec::new(),
            versions: Versions::ALL,
            offer: Offer::default(),
            early: None,
            hello_bytes: 16 * 1024,
            timeout_ms: 10_000,
            takes_requests: false,
            proofs: None,
            issuer: None,
        }
    }
}

/// How long a client may delay a handshake while others wait for its place. Two round trips around the world,
/// doubled; it applies only when all places of a worker are taken.
const PATIENCE_MS: u64 = 500;

/// The limit of concurrent handshakes of a worker, as each holds about 30 KiB. A client counts from its complete
/// ClientHello on, so that silent ones block no others. A client that falls silent later loses its place to the next
/// one.
#[derive(Debug)]
pub struct Handshakes {
    places: Semaphore,
    /// The number of handshakes that wait for a place.
    waiting: Cell<usize>,
    /// Notified when a handshake waits.
    wanted: Notify,
}

impl Handshakes {
    /// Returns a limit of `max` handshakes at a time; others wait within their own timeout.
    pub fn new(max: usize) -> Handshakes {
        Handshakes {
            places: Semaphore::new(max.clamp(1, Semaphore::MAX_PERMITS)),
            waiting: Cell::new(0),
            wanted: Notify::new(),
        }
    }

    /// Takes a place for one handshake, given back on drop.
    pub(super) async fn place(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(place) = self.places.try_acquire() {
            return Some(place);
        }
        let _waiting = Waiting::new(&self.waiting);
        self.wanted.notify_one();
        // It is never closed.
        self.places.acquire().await.ok()
    }

    /// Ready when a handshake that has been delayed for this long must make room.
    async fn wanted_after(&self, patience: Deadline) {
        poll_fn(|cx| patience.poll_expired(cx)).await;
        while self.waiting.get() == 0 {
            self.wanted.notified().await;
        }
    }
}

/// Counts one that waits, however that ends.
struct Waiting<'w>(&'w Cell<usize>);

impl<'w> Waiting<'w> {
    fn new(count: &'w Cell<usize>) -> Waiting<'w> {
        count.set(count.get() + 1);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Runs the handshake with the client of `socket`, of which the bytes `early` have been read already. `choose`
/// returns the identity for the name that the client requests, or for no name.
///
/// Session tickets are sent with the first write or read, to share its system call.
///
/// # Errors
/// Returns an error if the handshake fails for any reason. The client gets an alert where the protocol has one.
pub async fn accept(
    mut socket: Stream,
    early: &[u8],
    options: &AcceptOptions,
    handshakes: &Handshakes,
    choose: impl FnOnce(Option<&str>) -> Option<Arc<ServerIdentity>>,
) -> Result<Stream, HandshakeError> {
    let greeting = Greeting::read(&mut socket, early, options).await?;
    greeting.accept(socket, options, handshakes, choose).await
}

/// A client's ClientHello, before the response.
pub struct Greeting {
    hello: Hello,
    /// For the whole handshake.
    deadline: Deadline,
}

impl Greeting {
    /// Reads it from `socket`, after the bytes `early`.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`accept`].
    pub async fn read(
        socket: &mut Stream,
        early: &[u8],
        options: &AcceptOptions,
    ) -> Result<Greeting, HandshakeError> {
        let deadline = Deadline::new();
        deadline.set(options.timeout_ms);
        let reading = async {
            let mut bytes = Buffer::default();
            bytes.extend(early);
            let was_requested = options.takes_requests && postgres::respond(socket, &mut bytes).await?;
            let hello = read_hello(socket, bytes, options.hello_bytes).await?;
            Ok(Hello { was_requested, ..hello })
        };
        let hello = deadline.bound(reading).await;
        Ok(Greeting { hello: hello.unwrap_or(Err(HandshakeError::TimedOut))?, deadline })
    }

    /// Returns the name that the client requests.
    pub fn server_name(&self) -> Option<&Arc<str>> {
        self.hello.name.as_ref()
    }

    /// Returns the protocols above TLS that the client offers.
    pub fn alpn(&self) -> &[Vec<u8>] {
        &self.hello.alpn
    }

    /// Whether the client has requested TLS in cleartext before.
    pub fn was_requested(&self) -> bool {
        self.hello.was_requested
    }

    /// Whether it is an authority's, which wants a proof.
    pub fn asks_proof(&self) -> bool {
        matches!(&self.hello.alpn[..], [only] if only == PROOF)
    }

    /// Rejects the client with an alert: the requested name is unknown.
    pub fn refuse(self, socket: &mut Stream) {
        alert(socket, UNRECOGNIZED_NAME);
    }

    /// Returns all bytes read, for a node that runs the handshake itself.
    pub fn bytes(&self) -> &[u8] {
        self.hello.bytes.filled()
    }

    /// Runs the handshake, as [`accept`] does.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`accept`].
    pub async fn accept(
        self,
        socket: Stream,
        options: &AcceptOptions,
        handshakes: &Handshakes,
        choose: impl FnOnce(Option<&str>) -> Option<Arc<ServerIdentity>>,
    ) -> Result<Stream, HandshakeError> {
        let asks_proof = self.asks_proof();
        let Greeting { hello, deadline } = self;
        let handshake = respond(socket, hello, asks_proof, &deadline, options, handshakes, choose);
        deadline.bound(handshake).await.unwrap_or(Err(HandshakeError::TimedOut))
    }
}

/// Runs the handshake after the ClientHello.
async fn respond(
    mut socket: Stream,
    hello: Hello,
    asks_proof: bool,
    deadline: &Deadline,
    options: &AcceptOptions,
    handshakes: &Handshakes,
    choose: impl FnOnce(Option<&str>) -> Option<Arc<ServerIdentity>>,
) -> Result<Stream, HandshakeError> {
    let Hello { bytes: hello, name, order, .. } = hello;
    let mut place = handshakes.place().await;
    let proof = options.proofs.as_ref().filter(|_| asks_proof).zip(name.as_deref());
    let proof = proof.and_then(|(proofs, name)| proofs.get(&name.to_ascii_lowercase()));
    let is_proof = proof.is_some();
    let mut chosen = proof.or_else(|| choose(name.as_deref()));
    if let (None, Some(issuer), Some(name), false) = (&chosen, &options.issuer, &name, asks_proof) {
        // A handshake that waits for a certificate gives up its place.
        drop(place.take());
        deadline.set(issuer.patience_ms() + options.timeout_ms);
        // On the heap, so that other handshakes stay small.
        chosen = Box::pin(issued(&**issuer, name)).await;
        deadline.set(options.timeout_ms);
        place = handshakes.place().await;
    }
    let identity = match chosen {
        Some(identity) if !identity.refuses() => identity,
        _ => {
            alert(&mut socket, UNRECOGNIZED_NAME);
            return Err(HandshakeError::NoCertificate(name.as_deref().map(Box::from)));
        }
    };
    let versions = options.versions.and(identity.versions());
    if versions.is_empty() {
        alert(&mut socket, PROTOCOL_VERSION);
        return Err(HandshakeError::NoVersion);
    }
    let proof_alpn = [PROOF.to_vec()];
    let alpn = if is_proof { &proof_alpn[..] } else { &options.alpn };
    let early = options.early.as_ref().filter(|_| !is_proof);
    let config =
        identity.config(versions, alpn, order, &options.offer, early).map_err(HandshakeError::Protocol)?;
    let connection = UnbufferedServerConnection::new(config).map_err(HandshakeError::Protocol)?;
    let ja4 = ja4::fingerprint(hello.filled());
    let mut session = Session::new(Side::Server(connection), hello);
    // Before the verdict: later lists are newer than the verdict.
    let revision = identity.client_auth().map_or(0, ClientAuth::revision);
    let patience = Deadline::new();
    patience.set(PATIENCE_MS);
    tokio::select! {
        biased;
        shaken = shake(&mut socket, &mut session) => shaken?,
        () = handshakes.wanted_after(patience) => return Err(HandshakeError::Displaced),
    }
    if is_proof {
        // The authority has seen its proof, and nothing may follow (RFC 8737 §3).
        return Err(HandshakeError::Proved);
    }
    drop(place);
    // With early data, requests are served before the end of the handshake.
    let early = session.common().is_handshaking().then(EarlyHandshake::new);
    let mut facts = Facts { early, ..Facts::of(session.common()) };
    if let Some(auth) = identity.client_auth().filter(|auth| auth.inquires()) {
        // On the heap, so that handshakes without an inquiry stay small.
        facts.inquiry = Box::pin(auth.inquire(&facts.peer_chain)).await;
    }
    let facts = judged(&mut socket, &mut session, facts, identity, name)?;
    let facts = Facts { revision, ja4, ..facts };
    Ok(Stream::Tls(Box::new(TlsStream::new(socket, session, facts))))
}

/// Returns the issuer's identity for a name, within its time.
async fn issued(issuer: &dyn Issuer, name: &str) -> Option<Arc<ServerIdentity>> {
    let patience = Deadline::new();
    patience.set(issuer.patience_ms());
    let name = name.to_ascii_lowercase();
    patience.bound(issuer.obtain(&name)).await.unwrap_or(None)
}

/// Runs a handshake to its end, or until early data can be read.
pub(super) async fn shake(socket: &mut Stream, session: &mut Session) -> Result<(), HandshakeError> {
    poll_fn(|cx| {
        loop {
            match session.shake() {
                Ok(true) if session.may_delay() => return Poll::Ready(Ok(())),
                Ok(true) => return poll_drain(socket, session, cx).map_err(HandshakeError::from),
                Ok(false) => {
                    ready!(poll_drain(socket, session, cx))?;
                    if session.has_early_data() {
                        return Poll::Ready(Ok(()));
                    }
                    if ready!(poll_fill(socket, session, cx))? == 0 {
                        return Poll::Ready(Err(HandshakeError::Closed));
                    }
                }
                Err(error) => {
                    // It fits the socket's buffer; a peer that lets the buffer overflow misses it.
                    let _ = poll_drain(socket, session, cx);
                    return Poll::Ready(Err(HandshakeError::Protocol(error)));
                }
            }
        }
    })
    .await
}

/// A complete ClientHello.
struct Hello {
    /// All bytes read.
    bytes: Buffer,
    /// The requested name.
    name: Option<Arc<str>>,
    /// The side whose cipher order applies.
    order: Order,
    /// The offered protocols above TLS.
    alpn: Vec<Vec<u8>>,
    /// The client has requested TLS in cleartext.
    was_requested: bool,
}

/// The kind of cleartext in the first bytes of a client.
#[derive(Debug, PartialEq, Eq)]
enum Cleartext {
    /// A request line, or the preface of HTTP/2
    Http,
    /// The beginning of a possible request line
    Unclear,
    /// Other bytes
    No,
}

/// Detects the request line of HTTP/1.
fn cleartext(bytes: &[u8]) -> Cleartext {
    let line = &bytes[..bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len())];
    let method = line.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    let is_request = method > 0 && line.get(method).is_none_or(|byte| *byte == b' ');
    match line.len() < bytes.len() {
        _ if !is_request => Cleartext::No,
        true if line.windows(6).any(|part| part == b" HTTP/") => Cleartext::Http,
        true => Cleartext::No,
        false => Cleartext::Unclear,
    }
}

/// Reads until the ClientHello, of which `hello` is the beginning, is complete.
async fn read_hello(socket: &mut Stream, mut hello: Buffer, limit: usize) -> Result<Hello, HandshakeError> {
    let mut acceptor = Acceptor::default();
    let mut seen = 0;
    poll_fn(|cx| {
        loop {
            let kind = if seen == 0 { cleartext(hello.filled()) } else { Cleartext::No };
            if kind == Cleartext::Http {
                return Poll::Ready(Err(HandshakeError::Cleartext(Some(hello.filled().into()))));
            }
            // The next bytes of a possible request line decide.
            let waits = kind == Cleartext::Unclear && hello.len() < limit;
            while !waits && seen < hello.len() {
                let mut fresh = &hello.filled()[seen..];
                let n = acceptor.read_tls(&mut fresh)?;
                seen += n;
                match acceptor.accept() {
                    Ok(Some(accepted)) => {
                        let client = accepted.client_hello();
                        let order =
                            if prefers_chacha(client.cipher_suites()) { Order::Clients } else { Order::Ours };
                        let alpn =
                            client.alpn().into_iter().flatten().map(<[u8]>::to_vec).collect::<Vec<_>>();
                        let name = client.server_name().map(Arc::from);
                        return Poll::Ready(Ok((name, order, alpn)));
                    }
                    Ok(None) if n > 0 => {}
                    Ok(None) => return Poll::Ready(Err(HandshakeError::HelloTooLarge)),
                    Err((error, mut alert)) => {
                        let mut bytes = Vec::new();
                        // To memory; it cannot fail.
                        let _ = alert.write_all(&mut bytes);
                        socket.send_now(&bytes);
                        let is_record = hello.filled().first() == Some(&HANDSHAKE);
                        return Poll::Ready(Err(match is_record {
                            true => HandshakeError::Protocol(error),
                            false => HandshakeError::Cleartext(None),
                        }));
                    }
                }
            }
            if hello.len() >= limit {
                return Poll::Ready(Err(HandshakeError::HelloTooLarge));
            }
            match socket.poll_read(cx, hello.spare(RECORD_BYTES)) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(HandshakeError::Closed)),
                Poll::Ready(Ok(n)) => hello.grow(n),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending => {
                    // A silent client holds no memory.
                    hello.rest();
                    return Poll::Pending;
                }
            }
        }
    })
    .await
    .map(|(name, order, alpn)| Hello { bytes: hello, name, order, alpn, was_requested: false })
}

/// Completes the facts; the client's certificate may be rejected.
fn judged(
    socket: &mut Stream,
    session: &mut Session,
    mut facts: Facts,
    identity: Arc<ServerIdentity>,
    name: Option<Arc<str>>,
) -> Result<Facts, HandshakeError> {
    if let Err(error) = verdict(&mut facts, &identity) {
        session.close();
        let _ = poll_drain(socket, session, &mut Context::from_waker(Waker::noop()));
        return Err(HandshakeError::Protocol(error));
    }
    facts.server_name = name;
    facts.identity = Some(identity);
    Ok(facts)
}

/// Sets the status of the client's certificate.
///
/// # Errors
/// Returns an error if a certificate is required, and this one is not trusted.
pub(super) fn verdict(facts: &mut Facts, identity: &ServerIdentity) -> Result<(), rustls::Error> {
    let Some(auth) = identity.client_auth() else { return Ok(()) };
    // A full handshake with a demand has just judged it. A resumed session is judged again: the certificate may
    // have expired since.
    facts.client_certificate = match auth.demand() {
        Demand::Required if !facts.is_resumed && !auth.inquires() => ClientCertificate::Verified,
        _ => auth.judge(&facts.peer_chain),
    };
    if auth.demand() == Demand::Required && facts.client_certificate != ClientCertificate::Verified {
        return Err(match auth.inquires() {
            true => rustls::CertificateError::UnknownRevocationStatus.into(),
            false => rustls::CertificateError::Expired.into(),
        });
    }
    Ok(())
}

/// Sends a fatal alert before there are keys.
fn alert(socket: &mut Stream, description: u8) {
    socket.send_now(&[21, 3, 3, 0, 2, 2, description]);
}
