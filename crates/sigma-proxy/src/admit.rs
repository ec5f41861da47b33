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

use crate::connection::Origin;
use crate::refusals;
use crate::snapshot::edge::{ListenerOptions, TlsOptions};
use crate::worker::Worker;

/// A connection that may send its first request.
pub(crate) struct Admitted {
    pub(crate) stream: Stream,
    /// The bytes that were read of it already.
    pub(crate) early: Chunk,
    pub(crate) origin: Origin,
    /// The client sends HTTP in cleartext to a listener of TLS.
    pub(crate) is_misplaced: bool,
}

/// Takes a connection through what its listener demands. None if it is over; a client is told as
/// far as TLS has a way.
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

/// Reads the PROXY header in front of a connection, if its listener has one, into its origin. Returns what
/// was read behind it; None if the connection is over.
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
                // A trusted peer that does this is set up wrongly.
                tracing::warn!(peer = ?origin.peer, listener = %listener.place, reason, "no PROXY header");
                return None;
            }
        }
    }
    Some(early)
}

/// The result of `work`; None once the worker is stopping. A connection without a request has
/// nothing to lose.
pub(crate) async fn unless_closing<F: Future>(worker: &Worker, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    // Those who wait with a deadline are woken when the worker begins to stop.
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
                Ok(0) | Err(_) => return Poll::Ready(Err("the connection ended before it")),
                Ok(_) => {}
            }
        }
    })
    .await?;
    input.advance(len);
    Ok(header)
}

/// The connection is from now on the one that the header tells of.
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

/// The first message of TLS did not come.
pub(crate) enum NoGreeting {
    /// A request in cleartext: the bytes that were read.
    Request(Box<[u8]>),
    /// Nothing that gets an answer.
    Nothing,
}

/// Reads the first message of a client over TLS.
pub(crate) async fn greeted(
    worker: &Worker,
    stream: &mut Stream,
    early: &[u8],
    origin: Origin,
    listener: &ListenerOptions,
    tls: &TlsOptions,
) -> Result<Greeting, NoGreeting> {
    // Boxed, as the handshake is: who is not over TLS takes no memory for it.
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

/// Shakes hands with a client. Protocols above TLS are those of the listener, or `alpn` if that has any;
/// None if there is no session.
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
        // The certificates in force now, and not those that were in force when the connection was accepted.
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

/// Notes that there is no session. A client that left before its first message was complete is not refused.
fn failed(
    worker: &Worker,
    origin: Origin,
    listener: &ListenerOptions,
    error: &HandshakeError,
    has_begun: bool,
) {
    worker.counters.add(Counter::TlsHandshakeFailures, 1);
    let kind = match error {
        HandshakeError::Cleartext(_) => EarlyRefusal::CleartextOnTls,
        HandshakeError::NoCertificate(_) => EarlyRefusal::UnknownName,
        HandshakeError::Closed | HandshakeError::TimedOut | HandshakeError::Io(_) if !has_begun => {
            tracing::debug!(peer = ?origin.peer, %error, "no TLS session with a client");
            return;
        }
        _ => EarlyRefusal::Handshake,
    };
    refusals::note(worker, kind, origin.peer, Some(&listener.place), &error.to_string());
}
