//! The race of a connection over QUIC with one over TCP.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use sigma_http::Fault;
use sigma_net::Deadline;
use sigma_wire::MultiplexedConnection;

use crate::dial::{Dial, Dialled, Http3Use, dial, timed_out};
use crate::endpoint::Address;
use crate::quic::{QuicFault, QuicSockets, connect, without_udp};

/// The first result of a race.
enum First {
    Quic(MultiplexedConnection),
    Tcp(Dialled),
    /// Neither is possible.
    Neither(Fault),
}

/// Connects over QUIC.
pub(super) async fn over_quic(
    sockets: &Rc<QuicSockets>,
    to: SocketAddr,
    dial: &Dial<'_>,
) -> Result<MultiplexedConnection, QuicFault> {
    let Some((tls, http3)) = dial.tls.zip(dial.http3()) else {
        return Err(QuicFault { fault: without_udp(), is_unreachable: false });
    };
    let deadline = Deadline::new();
    deadline.set(dial.timeout_ms.min(dial.limits.quic.transport.handshake_ms));
    let connecting = Box::pin(connect(sockets, to, tls.name, http3.client, &dial.limits.quic));
    match deadline.bound(connecting).await {
        Some(connected) => connected.map(MultiplexedConnection::H3),
        None => Err(QuicFault { fault: timed_out(), is_unreachable: true }),
    }
}

/// Connects over QUIC, and over TCP after a delay or at a failure. `tell` gets the first connection, or the
/// fault; then it continues with QUIC. Returns a connection over QUIC that came after one over TCP.
///
/// # Errors
/// Returns the failure of the connection over QUIC.
pub(super) async fn race(
    sockets: &Rc<QuicSockets>,
    to: SocketAddr,
    addr: &Address,
    to_dial: &Dial<'_>,
    tell: impl FnOnce(Result<Dialled, Fault>),
) -> Result<Option<MultiplexedConnection>, QuicFault> {
    let mut quic = pin!(over_quic(sockets, to, to_dial));
    if to_dial.http3().is_some_and(|http3| http3.when == Http3Use::Only) {
        let connected = quic.await;
        tell(connected.clone().map(Dialled::Shared).map_err(|failed| failed.fault));
        return connected.map(|_| None);
    }
    let delay = Deadline::new();
    delay.set(to_dial.limits.quic.tcp_delay_ms.min(to_dial.timeout_ms / 2));
    let mut failed = match delay.bound(quic.as_mut()).await {
        Some(Ok(connection)) => {
            tell(Ok(Dialled::Shared(connection)));
            return Ok(None);
        }
        Some(Err(failed)) => Some(failed),
        None => None,
    };
    let mut tcp = pin!(dial(addr, to_dial));
    let mut refused = None;
    let first = poll_fn(|cx| {
        if failed.is_none() {
            match quic.as_mut().poll(cx) {
                Poll::Ready(Ok(connection)) => return Poll::Ready(First::Quic(connection)),
                Poll::Ready(Err(fault)) => failed = Some(fault),
                Poll::Pending => {}
            }
        }
        if refused.is_none() {
            match tcp.as_mut().poll(cx) {
                Poll::Ready(Ok(dialled)) => return Poll::Ready(First::Tcp(dialled)),
                Poll::Ready(Err(fault)) => refused = Some(fault),
                Poll::Pending => {}
            }
        }
        match refused.filter(|_| failed.is_some()) {
            Some(fault) => Poll::Ready(First::Neither(fault)),
            None => Poll::Pending,
        }
    })
    .await;
    match first {
        First::Quic(connection) => {
            tell(Ok(Dialled::Shared(connection)));
            return Ok(None);
        }
        First::Tcp(dialled) => tell(Ok(dialled)),
        First::Neither(fault) => tell(Err(fault)),
    }
    match failed {
        Some(failed) => Err(failed),
        None => quic.await.map(Some),
    }
}
