//! A client before and during its handshake.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Instant;

use quinn_proto::{ConnectionError, Incoming};

use super::ConnectionLost;
use super::connection::Connection;
use super::endpoint::Endpoint;
use super::session::{Early, Identities, ServerCrypto, Shaken};
use super::state::{Shared, register};
use crate::deadline::Deadline;
use crate::tls::{EarlyOffer, HandshakeError, Offer};

/// The protocol of the connections (RFC 9114 §3.1).
const H3: &[u8] = b"h3";

/// The error for a rejected client certificate after the handshake: TLS's `access_denied` has no place any more, and a
/// code of HTTP/3 has (H3_GENERAL_PROTOCOL_ERROR).
const REJECTED: u64 = 0x101;

/// A client whose first packet has come.
pub struct Arrival {
    endpoint: Endpoint,
    /// None once it is decided.
    incoming: Option<Incoming>,
    early: Option<EarlyOffer>,
}

impl std::fmt::Debug for Arrival {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrival").finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Returns the next client; None after [`Endpoint::close`].
    pub async fn next(&self) -> Option<Arrival> {
        poll_fn(|cx| {
            let mut core = self.driver.core.borrow_mut();
            if let Some(incoming) = core.clients.arrivals.pop_front() {
                return Poll::Ready(Some(Arrival::new(self.clone(), incoming)));
            }
            if core.clients.is_closing {
                return Poll::Ready(None);
            }
            register(&mut core.clients.acceptor, cx);
            Poll::Pending
        })
        .await
    }
}

impl Arrival {
    pub(super) fn new(endpoint: Endpoint, incoming: Incoming) -> Arrival {
        Arrival { endpoint, incoming: Some(incoming), early: None }
    }

    /// Offers early data: a connection with it is accepted before the end of its handshake.
    pub fn offer_early_data(&mut self, offer: &EarlyOffer) {
        self.early = Some(offer.over_quic(self.endpoint.limits.remembered()));
    }

    /// Returns the source of its first packet, which may be forged; None once it is decided.
    pub fn from(&self) -> Option<SocketAddr> {
        self.incoming.as_ref().map(Incoming::remote_address)
    }

    /// Returns true if the client has proved that it receives packets at its address, by a token.
    pub fn is_validated(&self) -> bool {
        self.incoming.as_ref().is_some_and(Incoming::remote_address_validated)
    }

    /// Returns the address that it reached.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        let bound = self.endpoint.local_addr()?;
        let ip = self.incoming.as_ref().and_then(Incoming::local_ip);
        Some(ip.map_or(bound, |ip| SocketAddr::new(ip, bound.port())))
    }

    /// Rejects the client: it may try another way at once.
    pub fn refuse(mut self) {
        let Some(incoming) = self.incoming.take() else { return };
        let driver = &self.endpoint.driver;
        let mut core = driver.core.borrow_mut();
        let mut out = Vec::new();
        let transmit = core.endpoint.refuse(incoming, &mut out);
        core.respond(driver, &transmit, &out);
    }

    /// Runs the handshake under the identities of a listener, to its end or until early data is accepted.
    ///
    /// # Errors
    /// Returns an error if the handshake fails, or is not complete in time.
    pub async fn accept(
        mut self,
        identities: Arc<dyn Identities>,
        offer: &Offer,
    ) -> Result<Connection, HandshakeError> {
        let Some(incoming) = self.incoming.take() else { return Err(HandshakeError::Closed) };
        let (peer, local) = (incoming.remote_address(), incoming.local_ip());
        let crypto = Arc::new(ServerCrypto {
            identities,
            offer: offer.clone(),
            hello_bytes: self.endpoint.limits.hello_bytes,
            alpn: vec![H3.to_vec()],
            early: self
                .early
                .take()
                .map(|offer| Early { offer, is_accepted: incoming.remote_address_validated() }),
            failure: OnceLock::new(),
        });
        let half = HalfOpenGuard::new(&self.endpoint, incoming, &crypto)?;
        let deadline = Deadline::new();
        deadline.set(self.endpoint.limits.handshake_ms);
        let shaken = poll_fn(|cx| match half.shared.poll_shaken(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(lost)) => Poll::Ready(Err(failure(&crypto, lost))),
            Poll::Pending => deadline.poll_expired(cx).map(|()| Err(HandshakeError::TimedOut)),
        });
        shaken.await?;
        let shared = half.keep();
        let bound = self.endpoint.local_addr();
        let local = bound.map(|bound| local.map_or(bound, |ip| SocketAddr::new(ip, bound.port())));
        let identity = shared.inner.borrow().machine.crypto_session().peer_identity();
        let facts = match identity.and_then(|identity| identity.downcast::<Shaken>().ok()) {
            Some(shaken) => shaken.chosen.judge(shaken.facts).await,
            None => Err(HandshakeError::Closed),
        };
        match facts {
            Ok(facts) => {
                shared.inner.borrow_mut().early.clone_from(&facts.early);
                Ok(Connection::new(shared, Some(facts), peer, local))
            }
            Err(error) => {
                shared.close(REJECTED, "the client's certificate is not trusted");
                Err(error)
            }
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        // The state machine would keep a client that is not decided.
        if let Some(incoming) = self.incoming.take()
            && let Ok(mut core) = self.endpoint.driver.core.try_borrow_mut()
        {
            core.endpoint.ignore(incoming);
        }
    }
}

/// Returns why a handshake has failed.
fn failure(crypto: &ServerCrypto, lost: ConnectionLost) -> HandshakeError {
    // Each kind has a copy, as the cell is shared with the session.
    match crypto.failure.get() {
        Some(HandshakeError::NoCertificate(name)) => HandshakeError::NoCertificate(name.clone()),
        Some(HandshakeError::NoVersion) => HandshakeError::NoVersion,
        Some(HandshakeError::HelloTooLarge) => HandshakeError::HelloTooLarge,
        Some(HandshakeError::Protocol(error)) => HandshakeError::Protocol(error.clone()),
        _ => match lost {
            ConnectionLost::TimedOut => HandshakeError::TimedOut,
            ConnectionLost::Transport(code) => {
                HandshakeError::Protocol(rustls::Error::General(format!("QUIC error {code:#x}")))
            }
            _ => HandshakeError::Closed,
        },
    }
}

/// A handshake that is forgotten unless it ends well.
struct HalfOpenGuard {
    endpoint: Endpoint,
    shared: Rc<Shared>,
    is_kept: bool,
}

impl HalfOpenGuard {
    fn new(
        endpoint: &Endpoint,
        incoming: Incoming,
        crypto: &Arc<ServerCrypto>,
    ) -> Result<HalfOpenGuard, HandshakeError> {
        let mut config = (*endpoint.server).clone();
        config.crypto = Arc::clone(crypto) as _;
        let driver = &endpoint.driver;
        let mut core = driver.core.borrow_mut();
        let mut out = Vec::new();
        match core.endpoint.accept(incoming, Instant::now(), &mut out, Some(Arc::new(config))) {
            Ok((handle, machine)) => {
                let shared = core.add(driver, handle, machine);
                drop(core);
                shared.inner.borrow_mut().unread.begin(endpoint.limits.window_bytes.into());
                Ok(HalfOpenGuard { endpoint: endpoint.clone(), shared, is_kept: false })
            }
            Err(error) => {
                if let Some(transmit) = error.response {
                    core.respond(driver, &transmit, &out);
                }
                let lost = match &error.cause {
                    ConnectionError::TransportError(error) => ConnectionLost::Transport(error.code.into()),
                    other => ConnectionLost::of(other),
                };
                Err(failure(crypto, lost))
            }
        }
    }

    fn keep(mut self) -> Rc<Shared> {
        self.is_kept = true;
        Rc::clone(&self.shared)
    }
}

impl Drop for HalfOpenGuard {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let is_lost = self.shared.inner.borrow().lost.is_some();
        // A connection that has ended sends its last packet, and goes by itself.
        if !is_lost && let Ok(mut core) = self.endpoint.driver.core.try_borrow_mut() {
            core.forget(&self.shared);
        }
    }
}
