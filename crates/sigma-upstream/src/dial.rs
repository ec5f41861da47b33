//! Establishing a connection within a time.

use std::io;
use std::rc::Rc;

use sigma_config::resources::Scheme;
use sigma_http::{Fault, FaultKind};
use sigma_net::tls::{ClientTls, HandshakeCause, HandshakeError};
use sigma_net::{Deadline, Stream};
use sigma_wire::Connection;
use sigma_wire::h2::{SharedConnection, SharedLimits};
use tokio::io::AsyncWriteExt;

use crate::endpoint::Address;

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1, or HTTP/2 where TLS agrees on it; or bytes of any kind.
    Http,
    /// HTTP/2 by prior knowledge.
    Http2,
    /// FastCGI.
    Fcgi,
    /// Dubbo. What is offered in TLS must not be HTTP/2.
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

/// How a node is to be reached.
#[derive(Debug, Clone, Copy)]
pub struct Dial<'d> {
    /// What is spoken.
    pub protocol: Protocol,
    /// For the connection and what it takes until a request may be sent.
    pub timeout_ms: u64,
    /// If it becomes a connection for several exchanges.
    pub shared: SharedLimits,
    /// If it is to be encrypted.
    pub tls: Option<DialTls<'d>>,
    /// Bytes in front of everything else, such as a PROXY header; empty for none.
    pub introduction: &'d [u8],
    /// Told when the transport stands, before TLS.
    pub linked: Option<Notice<'d>>,
}

/// Something to be called once.
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
    /// The settings of the handshake; a node that agrees on `h2` is spoken to in HTTP/2.
    pub client: &'d ClientTls,
    /// The name that the node is asked for, without a port.
    pub name: &'d str,
}

impl Dial<'_> {
    /// The manner alone, without whom the node takes the gateway for.
    pub(crate) fn in_general(&self) -> Dial<'static> {
        let Dial { protocol, timeout_ms, shared, .. } = *self;
        Dial { protocol, timeout_ms, shared, tls: None, introduction: b"", linked: None }
    }

    /// Whether the node has the choice between connections of this kind and others.
    pub(crate) fn may_be_shared(&self) -> bool {
        self.introduction.is_empty() && self.tls.is_some_and(|tls| tls.client.offers_http2())
    }

    /// Whether connections of this kind serve several exchanges at a time, as far as can be told
    /// before they are there.
    pub fn is_shared(&self) -> bool {
        // One that speaks for a certain client is nobody else's to wait for.
        self.protocol == Protocol::Http2 && self.introduction.is_empty()
    }
}

/// A connection as it was established.
#[derive(Debug)]
pub enum Dialled {
    /// For one exchange at a time.
    Single(Connection),
    /// For several.
    Shared(Rc<SharedConnection>),
}

/// Connects to `addr` as `dial` says, for exchanges.
///
/// # Errors
/// As [`reach`].
pub async fn dial(addr: &Address, dial: &Dial<'_>) -> Result<Dialled, Fault> {
    let deadline = Deadline::new();
    deadline.set(dial.timeout_ms);
    let stream = reach(addr, dial, &deadline).await?;
    let agreed = stream.tls().and_then(|facts| facts.alpn.as_deref());
    if agreed == Some(b"h2") || (agreed.is_none() && dial.protocol == Protocol::Http2) {
        let opening = SharedConnection::open(stream, &dial.shared);
        return in_time(deadline.bound(opening).await).map(Dialled::Shared);
    }
    Ok(Dialled::Single(match dial.protocol {
        Protocol::Fcgi => Connection::fcgi(stream, deadline, &addr.to_string()),
        Protocol::Dubbo => Connection::dubbo(stream, deadline, &addr.to_string()),
        _ => Connection::single(stream, deadline),
    }))
}

/// Connects to `addr` as `dial` says, for bytes of any kind, before `deadline`.
///
/// # Errors
/// Returns an error: [`FaultKind::ConnectTimeout`], [`FaultKind::OutOfSockets`] if this machine lacks
/// something, [`FaultKind::ConnectRefused`] for every answer of the network that is not a connection,
/// or a kind that says why no TLS session came about.
pub async fn reach(addr: &Address, dial: &Dial<'_>, deadline: &Deadline) -> Result<Stream, Fault> {
    let connecting = async {
        let connected = match addr {
            Address::Tcp(addr) => Stream::dial_tcp(*addr).await,
            Address::Unix(path) => Stream::dial_unix(path).await,
        };
        let mut stream = connected.map_err(|error| refused(addr, &error))?;
        if !dial.introduction.is_empty() {
            stream.write_all(dial.introduction).await.map_err(|error| refused(addr, &error))?;
        }
        Ok(stream)
    };
    let stream = in_time(deadline.bound(connecting).await)?;
    if let Some(Notice(tell)) = dial.linked {
        tell();
    }
    let Some(tls) = &dial.tls else { return Ok(stream) };
    // One time for all of it: the handshake has what the connection left. Boxed, so that a connection in the clear
    // takes no memory for one.
    let shaken = Box::pin(async {
        let shaken = tls.client.connect(stream, tls.name, dial.timeout_ms).await;
        shaken.map_err(|error| unshaken(addr, &error))
    });
    in_time(deadline.bound(shaken).await)
}

fn in_time<T>(result: Option<Result<T, Fault>>) -> Result<T, Fault> {
    result.unwrap_or_else(|| Err(timed_out()))
}

fn refused(addr: &Address, error: &io::Error) -> Fault {
    if error.kind() == io::ErrorKind::TimedOut {
        return timed_out();
    }
    if sigma_net::limits::is_own_lack(error) {
        tracing::error!(%error, "no connection to a node can be opened; see limits on open files and ports");
        return Fault::new(
            FaultKind::OutOfSockets,
            "the gateway has no free descriptor or port for a connection",
        );
    }
    tracing::warn!(%addr, %error, "cannot connect to a node");
    Fault::new(FaultKind::ConnectRefused, "the node refused the connection or cannot be reached")
}

fn unshaken(addr: &Address, error: &HandshakeError) -> Fault {
    if matches!(error, HandshakeError::TimedOut) {
        return timed_out();
    }
    if matches!(error, HandshakeError::BadName) {
        // It was not even asked.
        return Fault::new(FaultKind::NoUpstream, "the node's host cannot be asked for over TLS");
    }
    let cause = error.cause();
    if !matches!(cause, HandshakeCause::Certificate) {
        tracing::debug!(%addr, %error, "no TLS session with a node");
    }
    match cause {
        HandshakeCause::Certificate => {
            tracing::warn!(%addr, %error, "a node's certificate is not trusted: see `tls.ca` and `tls.verify` of its upstream");
            Fault::new(FaultKind::TlsCertificate, "the node's certificate is not trusted")
        }
        HandshakeCause::Alert => Fault::new(FaultKind::TlsAlert, "the node refused the TLS handshake"),
        HandshakeCause::Protocol => {
            Fault::new(FaultKind::TlsProtocol, "the TLS handshake with the node failed")
        }
    }
}

/// The fault of a connection that does not stand in time.
pub(crate) fn timed_out() -> Fault {
    Fault::new(FaultKind::ConnectTimeout, "the node did not accept the connection in time")
}
