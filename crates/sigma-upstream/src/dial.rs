//! Connecting within a timeout.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::num::NonZeroU32;

use sigma_config::resources::Scheme;
use sigma_http::{Fault, FaultKind};
use sigma_net::quic::QuicLimits;
use sigma_net::tls::{BadCertificate, ClientTls, HandshakeCause, HandshakeError, postgres};
use sigma_net::{Deadline, Stream, deadline};
use sigma_wire::h2::{SharedConnection, SharedLimits};
use sigma_wire::{Connection, MultiplexedConnection, h3};
use tokio::io::AsyncWriteExt;

use crate::endpoint::Address;

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1, or HTTP/2 if TLS negotiates it; or any bytes
    Http,
    /// HTTP/2 by prior knowledge
    Http2,
    /// FastCGI
    Fcgi,
    /// Dubbo. TLS must not offer HTTP/2.
    Dubbo,
}

impl From<Scheme> for Protocol {
    fn from(scheme: Scheme) -> Protocol {
        match scheme {
            Scheme::Grpc | Scheme::Grpcs => Protocol::Http2,
            Scheme::Fcgi => Protocol::Fcgi,
            _ => Protocol::Http,
        }
    }
}

/// The way to connect to a node.
#[derive(Debug, Clone, Copy)]
pub struct Dial<'d> {
    /// The protocol.
    pub protocol: Protocol,
    /// The timeout of the connection and its handshakes.
    pub timeout_ms: u64,
    /// The timeout of the transport alone, if it is shorter.
    pub link_ms: Option<NonZeroU32>,
    /// The limits of connections for several exchanges.
    pub limits: &'d DialLimits,
    /// The TLS settings of an encrypted connection.
    pub tls: Option<DialTls<'d>>,
    /// The client whose requests alone the connection serves.
    pub owner: Owner<&'d [u8]>,
    /// Called when the transport is established, before TLS.
    pub linked: Option<Notice<'d>>,
}

/// The settings of a [`Dial`] without the parts for one client, for a connection that is opened in the background.
#[derive(Debug, Clone)]
pub(crate) struct GeneralDial {
    pub(crate) protocol: Protocol,
    pub(crate) timeout_ms: u64,
    pub(crate) link_ms: Option<NonZeroU32>,
    pub(crate) limits: DialLimits,
}

/// The limits of connections for several exchanges, the same for all nodes of a configuration.
#[derive(Debug, Clone)]
pub struct DialLimits {
    /// The limits of HTTP/2.
    pub shared: SharedLimits,
    /// The limits and times of HTTP/3.
    pub quic: QuicDial,
}

/// The client that a connection belongs to. `B` are bytes, borrowed or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner<B> {
    /// The client that these first bytes of the connection name, such as a PROXY header. Without bytes, all clients.
    Introduced(B),
    /// The client connection with this number, which logs in its connections to nodes.
    Numbered(u64),
}

impl Owner<&'static [u8]> {
    /// All clients.
    pub const ALL: Owner<&'static [u8]> = Owner::Introduced(b"");
}

impl Owner<Box<[u8]>> {
    /// Returns the same owner with borrowed bytes.
    pub fn as_ref(&self) -> Owner<&[u8]> {
        match self {
            Owner::Introduced(bytes) => Owner::Introduced(bytes),
            Owner::Numbered(number) => Owner::Numbered(*number),
        }
    }
}

impl Owner<&[u8]> {
    /// Returns the same owner with bytes of its own.
    pub(crate) fn to_owned(self) -> Owner<Box<[u8]>> {
        match self {
            Owner::Introduced(bytes) => Owner::Introduced(bytes.into()),
            Owner::Numbered(number) => Owner::Numbered(number),
        }
    }
}

/// A one-time callback.
#[derive(Clone, Copy)]
pub struct Notice<'d>(pub &'d dyn Fn());

impl std::fmt::Debug for Notice<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notice")
    }
}

/// The TLS of an encrypted connection.
#[derive(Debug, Clone, Copy)]
pub struct DialTls<'d> {
    /// The settings of the handshake; a node that negotiates `h2` gets HTTP/2.
    pub client: &'d ClientTls,
    /// The requested server name, without a port.
    pub name: &'d str,
    /// HTTP/3; None if the node is not to be reached over QUIC.
    pub quic: Option<DialQuic<'d>>,
}

/// The use of HTTP/3 for nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Http3Use {
    /// Every request: there is no other protocol
    Only,
    /// Before TCP, which a node without it gets
    First,
    /// Instead of TCP once the node has announced it by `Alt-Svc`, or its name by HTTPS records
    Announced,
    /// Instead of TCP once the name of the node has announced it by HTTPS records
    Recorded,
}

/// The limits and times of connections over QUIC.
#[derive(Debug, Clone, Copy)]
pub struct QuicDial {
    /// The limits of a connection.
    pub shared: h3::SharedLimits,
    /// The limits of QUIC.
    pub transport: QuicLimits,
    /// The time for QUIC alone, before TCP is tried as well.
    pub tcp_delay_ms: u64,
    /// The time for which a node without HTTP/3 is not tried again.
    pub retry_after_ms: u64,
    /// The longest time for which an announcement counts.
    pub announcement_ms: u64,
}

/// The use of HTTP/3 for a connection.
#[derive(Debug, Clone, Copy)]
pub struct DialQuic<'d> {
    /// The settings of the handshake within QUIC, with the same trust as over TCP.
    pub client: &'d ClientTls,
    /// When it is used.
    pub when: Http3Use,
    /// The UDP port that HTTPS records announce.
    pub recorded: Option<u16>,
}

impl Dial<'_> {
    /// Returns the settings that outlive the exchange.
    pub(crate) fn in_general(&self) -> GeneralDial {
        GeneralDial {
            protocol: self.protocol,
            timeout_ms: self.timeout_ms,
            link_ms: self.link_ms,
            limits: self.limits.clone(),
        }
    }

    /// Returns true if the connection belongs to one client.
    pub(crate) fn is_private(&self) -> bool {
        self.owner != Owner::ALL
    }

    /// Returns true if the node may choose a shared connection.
    pub(crate) fn may_be_shared(&self) -> bool {
        !self.is_private() && self.tls.is_some_and(|tls| tls.client.offers_http2())
    }

    /// Returns the use of HTTP/3. A PROXY header has no place in QUIC, and connections of one client are not shared.
    pub(crate) fn http3(&self) -> Option<DialQuic<'_>> {
        if self.is_private() { None } else { self.tls?.quic }
    }

    /// Returns true if connections of this kind are shared, as far as that is known in advance.
    pub fn is_shared(&self) -> bool {
        // A connection for a certain client is not for other clients to wait for.
        self.protocol == Protocol::Http2 && !self.is_private()
    }
}

/// A connection as it was established.
#[derive(Debug)]
pub enum Dialled {
    /// For one exchange at a time
    Single(Connection),
    /// For several
    Shared(MultiplexedConnection),
}

/// Connects to `addr` over TCP with `dial`, for exchanges.
///
/// # Errors
/// Returns an error in the same cases as [`reach`].
pub async fn dial(addr: &Address, dial: &Dial<'_>) -> Result<Dialled, Fault> {
    let deadline = Deadline::new();
    deadline.set(dial.timeout_ms);
    let stream = reach(addr, dial, &deadline).await?;
    let agreed = stream.tls().and_then(|facts| facts.alpn.as_deref());
    if agreed == Some(b"h2") || (agreed.is_none() && dial.protocol == Protocol::Http2) {
        let opening = SharedConnection::open(stream, &dial.limits.shared);
        let opened = in_time(deadline.bound(opening).await)?;
        return Ok(Dialled::Shared(MultiplexedConnection::H2(opened)));
    }
    Ok(Dialled::Single(match dial.protocol {
        Protocol::Fcgi => Connection::fcgi(stream, deadline, &addr.to_string()),
        Protocol::Dubbo => Connection::dubbo(stream, deadline, &addr.to_string()),
        _ => Connection::single(stream, deadline),
    }))
}

/// Connects to `addr` with `dial`, for any bytes, before `deadline`.
///
/// # Errors
/// Returns an error: [`FaultKind::ConnectTimeout`], [`FaultKind::OutOfSockets`] if this machine lacks something,
/// [`FaultKind::ConnectRefused`] for every other network error, or the kind of a failed TLS handshake.
pub async fn reach(addr: &Address, dial: &Dial<'_>, deadline: &Deadline) -> Result<Stream, Fault> {
    let connecting = async {
        let connected = match addr {
            Address::Tcp(addr) => Stream::dial_tcp(*addr).await,
            Address::Unix(path) => Stream::dial_unix(path).await,
        };
        let mut stream = connected.map_err(|error| refused(addr, &error))?;
        if let Owner::Introduced(bytes) = dial.owner
            && !bytes.is_empty()
        {
            stream.write_all(bytes).await.map_err(|error| refused(addr, &error))?;
        }
        Ok(stream)
    };
    let linking = async {
        let link_ms = dial.link_ms.map(|link_ms| u64::from(link_ms.get()));
        let Some(link_ms) = link_ms.filter(|link_ms| *link_ms < dial.timeout_ms) else {
            return connecting.await;
        };
        let link = Deadline::new();
        link.set(link_ms);
        in_time(link.bound(connecting).await)
    };
    let stream = in_time(deadline.bound(linking).await)?;
    if let Some(Notice(tell)) = dial.linked {
        tell();
    }
    let Some(tls) = &dial.tls else { return Ok(stream) };
    // One timeout for all of it: the handshake has the rest after the connection. Boxed, so that a cleartext
    // connection takes no memory for it.
    let shaken = Box::pin(async {
        let shaken = tls.client.connect(stream, tls.name, dial.timeout_ms).await;
        shaken.map_err(|error| unshaken(addr, tls.name, &error))
    });
    in_time(deadline.bound(shaken).await)
}

/// Asks the node behind `stream` for TLS as PostgreSQL does, for a client that shakes hands with it itself.
///
/// # Errors
/// Returns an error if the node declines, or does not respond before `deadline`.
pub async fn request_tls(addr: &Address, stream: &mut Stream, deadline: &Deadline) -> Result<(), Fault> {
    let asking = async {
        let asked = postgres::request_tls(stream).await;
        asked.map_err(|error| unshaken(addr, "", &error))
    };
    in_time(deadline.bound(asking).await)
}

fn in_time<T>(result: Option<Result<T, Fault>>) -> Result<T, Fault> {
    result.unwrap_or_else(|| Err(timed_out()))
}

pub(crate) fn refused(addr: &Address, error: &io::Error) -> Fault {
    if error.kind() == io::ErrorKind::TimedOut {
        return timed_out();
    }
    if sigma_net::limits::is_own_lack(error) {
        tracing::error!(%error, "cannot open a connection to a node; check the limits on open files and local ports");
        return Fault::new(FaultKind::OutOfSockets, "the gateway has no free file descriptor or local port");
    }
    tracing::warn!(%addr, %error, "cannot connect to a node");
    Fault::new(FaultKind::ConnectRefused, "the node refused the connection or cannot be reached")
}

/// How often a worker logs a TLS fault of a node: each connection would log the same fault.
const COMPLAINT_MS: u64 = 10_000;

/// The number of nodes with such an interval. Others are logged without a limit.
const COMPLAINTS_MAX: usize = 256;

thread_local! {
    /// The nodes whose TLS was complained of, each with the reason and the time.
    static COMPLAINTS: RefCell<HashMap<(Address, &'static str), u64>> = RefCell::default();
}

/// Whether the reason why a node has no TLS is to be logged now.
pub(crate) fn is_news(addr: &Address, reason: &'static str) -> bool {
    let now_ms = deadline::now_ms();
    COMPLAINTS.with_borrow_mut(|complaints| {
        complaints.retain(|_, then| now_ms.saturating_sub(*then) < COMPLAINT_MS);
        let key = (addr.clone(), reason);
        if complaints.contains_key(&key) {
            return false;
        }
        if complaints.len() < COMPLAINTS_MAX {
            complaints.insert(key, now_ms);
        }
        true
    })
}

fn distrusted(addr: &Address, name: &str, error: &HandshakeError) -> Fault {
    let bad = error.bad_certificate().unwrap_or(BadCertificate::Other);
    let (reason, remedy) = match bad {
        BadCertificate::Untrusted => (
            "the node's certificate is not issued by a trusted authority, or its chain is incomplete",
            "add the authority to `tls.ca` of the upstream, or have the node send its intermediate certificates",
        ),
        BadCertificate::WrongName => (
            "the node's certificate is for another name",
            "check `pass_host` and `upstream_host` of the upstream: they set the name that the gateway expects",
        ),
        BadCertificate::Expired => ("the node's certificate has expired", "renew it"),
        BadCertificate::NotYetValid => {
            ("the node's certificate is not valid yet", "check the clocks of both machines")
        }
        BadCertificate::Revoked => ("the node's certificate is revoked", "replace it"),
        BadCertificate::Other => {
            ("the node's certificate is not trusted", "check `tls.ca` and `tls.verify` of the upstream")
        }
    };
    if is_news(addr, reason) {
        tracing::warn!(%addr, name, %error, "{reason}: {remedy}");
    }
    Fault::new(FaultKind::TlsCertificate, reason)
}

pub(crate) fn unshaken(addr: &Address, name: &str, error: &HandshakeError) -> Fault {
    if matches!(error, HandshakeError::TimedOut) {
        return timed_out();
    }
    if matches!(error, HandshakeError::BadName) {
        // It was not even contacted.
        return Fault::new(FaultKind::NoUpstream, "the node's host is not a valid TLS server name");
    }
    if let HandshakeError::Declined | HandshakeError::OtherProtocol | HandshakeError::Premature = error {
        return without_tls(addr, error);
    }
    let cause = error.cause();
    if !matches!(cause, HandshakeCause::Certificate) {
        tracing::debug!(%addr, %error, "TLS handshake with a node failed");
    }
    match cause {
        HandshakeCause::Certificate => distrusted(addr, name, error),
        HandshakeCause::Alert => Fault::new(FaultKind::TlsAlert, "the node refused the TLS handshake"),
        HandshakeCause::Protocol => {
            Fault::new(FaultKind::TlsProtocol, "the TLS handshake with the node failed")
        }
    }
}

/// The fault of a node that was requested TLS in cleartext. It is never spoken to without.
fn without_tls(addr: &Address, error: &HandshakeError) -> Fault {
    let (reason, remedy) = match error {
        HandshakeError::Declined => (
            "the node does not support TLS: it responded N to PostgreSQL's SSLRequest",
            "set `ssl = on` at the node, or write `scheme: tcp`, which sends cleartext",
        ),
        HandshakeError::Premature => (
            "the node sent extra bytes after its response to PostgreSQL's SSLRequest, before TLS began",
            "check for a device between the gateway and the node that injects data",
        ),
        _ => (
            "the node did not respond S or N to PostgreSQL's SSLRequest",
            "check `tls.starttls` of the upstream: it requires nodes that speak PostgreSQL",
        ),
    };
    if is_news(addr, reason) {
        tracing::warn!(%addr, "{reason}: {remedy}");
    }
    Fault::new(FaultKind::TlsProtocol, reason)
}

/// The fault of a connection that does not stand in time.
pub(crate) fn timed_out() -> Fault {
    Fault::new(FaultKind::ConnectTimeout, "the node did not accept the connection in time")
}
