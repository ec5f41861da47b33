//! Between accept and the first request: the PROXY header, then the TLS handshake.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, ready};

use sigma_config::tls::ListenerProxyProtocol;
use sigma_http::proxy_protocol::{self, Header};
use sigma_http::{Chunk, EarlyRefusal};
use sigma_net::tls::{AcceptOptions, Greeting, HandshakeError};
use sigma_net::{Deadline, Peer, Stream};
use sigma_observe::counters::Counter;

use crate::edge::connection::Origin;
use crate::edge::refusals;
use crate::snapshot::edge::{ListenerOptions, TlsOptions};
use crate::worker::Worker;

/// A connection that may send its first request.
pub(crate) struct Admitted {
    pub(crate) stream: Stream,
    /// The bytes that were read already.
    pub(crate) early: Chunk,
    pub(crate) origin: Origin,
    /// The client sends cleartext HTTP to a TLS listener.
    pub(crate) is_misplaced: bool,
}

/// Runs the steps that the listener demands of a connection. Returns None if the connection has ended; the client
/// gets an alert where TLS allows it.
pub(crate) async fn admit(
    worker: &Worker,
    mut stream: Stream,
    mut origin: Origin,
    listener: &ListenerOptions,
) -> Option<Admitted> {
    let mut early = introduced(worker, &mut stream, &mut origin, listener).await?;
    if let Some(options) = &listener.tls {
        match greeted(worker, &mut stream, &early, origin, listener, options).await {
            Ok(greeting) => stream = shaken(worker, stream, greeting, origin, listener, options, &[]).await?,
            Err(NoGreeting::Request(bytes)) => {
                let early = Chunk::copy_of(&bytes);
                return Some(Admitted { stream, early, origin, is_misplaced: true });
            }
            Err(NoGreeting::Nothing) => return None,
        }
        early = Chunk::empty();
    }
    Some(Admitted { stream, early, origin, is_misplaced: false })
}

/// Reads the PROXY header of a connection, if its listener requires one, into its origin. Returns the bytes after it;
/// None if the connection has ended.
pub(crate) async fn introduced(
    worker: &Worker,
    stream: &mut Stream,
    origin: &mut Origin,
    listener: &ListenerOptions,
) -> Option<Chunk> {
    let mut early = Chunk::empty();
    if let Some(rule) = &listener.proxy_protocol
        && origin.peer.ip().is_none_or(|ip| rule.trusted.contains(ip))
    {
        let header = unless_closing(worker, read_header(stream, &mut early, rule)).await?;
        match header {
            Ok(header) => believe(&header, origin),
            Err(reason) => {
                // A trusted peer that does this is misconfigured.
                tracing::warn!(peer = ?origin.peer, listener = %listener.place, reason, "invalid PROXY protocol header");
                return None;
            }
        }
    }
    Some(early)
}

/// Returns the result of `work`; None once the worker is stopping. A connection without a request has nothing to
/// lose.
pub(crate) async fn unless_closing<F: Future>(worker: &Worker, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    // Tasks that wait with a deadline are woken when the worker begins to stop.
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if worker.is_closing() => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}

async fn read_header(
    stream: &mut Stream,
    input: &mut Chunk,
    rule: &ListenerProxyProtocol,
) -> Result<Header, &'static str> {
    let deadline = Deadline::new();
    deadline.set(rule.timeout_ms.into());
    let limit = rule.header_bytes as usize;
    let (header, len) = poll_fn(|cx| {
        loop {
            match proxy_protocol::parse(input, limit) {
                Ok(Some(found)) => return Poll::Ready(Ok(found)),
                Ok(None) => {}
                Err(invalid) => return Poll::Ready(Err(invalid.0)),
            }
            if deadline.poll_expired(cx).is_ready() {
                return Poll::Ready(Err("it was not complete in time"));
            }
            input.make_room(limit);
            match ready!(stream.poll_fill(cx, input)) {
                Ok(0) | Err(_) => {
                    return Poll::Ready(Err("the connection ended before the PROXY protocol header"));
                }
                Ok(_) => {}
            }
        }
    })
    .await?;
    input.advance(len);
    Ok(header)
}

/// Replaces the addresses of the connection with those in the header.
fn believe(header: &Header, origin: &mut Origin) {
    match header {
        Header::Ip { source, destination, .. } => {
            origin.peer = Peer::from_tcp(*source);
            origin.local = Some(*destination);
            origin.is_proxied = true;
        }
        Header::Unix { .. } => origin.peer = Peer::Unix,
        Header::Own => {}
    }
}

/// The reason for a missing ClientHello.
pub(crate) enum NoGreeting {
    /// A cleartext request: the bytes that were read
    Request(Box<[u8]>),
    /// Bytes that get no response
    Nothing,
}

/// Reads the ClientHello of a client.
pub(crate) async fn greeted(
    worker: &Worker,
    stream: &mut Stream,
    early: &[u8],
    origin: Origin,
    listener: &ListenerOptions,
    tls: &TlsOptions,
) -> Result<Greeting, NoGreeting> {
    // Boxed, like the handshake, so that cleartext connections need no memory for it.
    let read = Box::pin(unless_closing(worker, Greeting::read(stream, early, &tls.options))).await;
    let error = match read.ok_or(NoGreeting::Nothing)? {
        Ok(greeting) => return Ok(greeting),
        Err(error) => error,
    };
    failed(worker, origin, listener, &error, false);
    Err(match error {
        HandshakeError::Cleartext(Some(bytes)) => NoGreeting::Request(bytes),
        _ => NoGreeting::Nothing,
    })
}

/// Runs the handshake with a client. Protocols above TLS are the listener's, or `alpn` if it is not empty; Returns
/// None without a session.
pub(crate) async fn shaken(
    worker: &Worker,
    stream: Stream,
    greeting: Greeting,
    origin: Origin,
    listener: &ListenerOptions,
    tls: &TlsOptions,
    alpn: &[Vec<u8>],
) -> Option<Stream> {
    let handshakes = worker.handshakes();
    let choose = |name: Option<&str>| {
        // The current certificates, not the ones at the accept.
        let view = worker.view();
        let named = view.snapshot.certificates.by_name.choose(name);
        named.or(tls.own.as_ref()).cloned()
    };
    let own = (!alpn.is_empty()).then(|| AcceptOptions { alpn: alpn.to_vec(), ..tls.options.clone() });
    let options = own.as_ref().unwrap_or(&tls.options);
    let shaking = Box::pin(greeting.accept(stream, options, &handshakes, choose));
    match unless_closing(worker, shaking).await? {
        Ok(stream) => {
            worker.counters.add(Counter::TlsHandshakes, 1);
            Some(stream)
        }
        Err(HandshakeError::Proved) => {
            worker.counters.add(Counter::TlsHandshakes, 1);
            None
        }
        Err(error) => {
            failed(worker, origin, listener, &error, true);
            None
        }
    }
}

/// Counts a failed handshake. A client that left before its ClientHello was complete does not count.
pub(crate) fn failed(
    worker: &Worker,
    origin: Origin,
    listener: &ListenerOptions,
    error: &HandshakeError,
    has_begun: bool,
) {
    worker.counters.add(Counter::TlsHandshakeFailures, 1);
    let kind = match error {
        HandshakeError::Cleartext(_) | HandshakeError::Premature => EarlyRefusal::CleartextOnTls,
        HandshakeError::NoCertificate(_) => EarlyRefusal::UnknownName,
        HandshakeError::Closed | HandshakeError::TimedOut | HandshakeError::Io(_) if !has_begun => {
            tracing::debug!(peer = ?origin.peer, %error, "TLS handshake with a client failed");
            return;
        }
        _ => EarlyRefusal::Handshake,
    };
    refusals::note(worker, kind, origin.peer, Some(&listener.place), &error.to_string());
}
