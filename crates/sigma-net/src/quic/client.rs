//! Connections that this side opens.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use quinn_proto::{ClientConfig, ConnectError};
use rustls::AlertDescription;

use super::client_session::{ClientCrypto, Failure};
use super::connection::Connection;
use super::endpoint::{Endpoint, EndpointOptions};
use super::{ConnectionLost, ConnectionOwner, Neighbours, QuicKeys, QuicLimits};
use crate::deadline::Deadline;
use crate::tls::{ClientTls, HandshakeError};

impl Endpoint {
    /// Opens an endpoint that only connects.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn client(socket: OwnedFd, limits: QuicLimits) -> io::Result<Endpoint> {
        let keys = QuicKeys::random().map_err(|error| io::Error::other(error.to_string()))?;
        let options = EndpointOptions {
            keys: Arc::new(keys),
            place: ConnectionOwner { generation: 0, worker: 0 },
            neighbours: Arc::new(Neighbours::new(0)),
            steering: None,
            limits,
        };
        Endpoint::open(socket, options, false)
    }

    /// Connects to a server under a name, with settings that offer TLS 1.3 and `h3`.
    ///
    /// # Errors
    /// Returns an error if the handshake fails, or is not complete in time.
    pub async fn connect(
        &self,
        to: SocketAddr,
        name: &str,
        tls: &ClientTls,
    ) -> Result<Connection, HandshakeError> {
        let (crypto, failure) = ClientCrypto::new(tls);
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::clone(&self.transport));
        let shared = {
            let mut core = self.driver.core.borrow_mut();
            let opened = core.endpoint.connect(Instant::now(), config, to, name);
            let (handle, machine) = opened.map_err(|error| unopened(&error, &failure))?;
            core.add(&self.driver, handle, machine)
        };
        let connection = Connection::new(Rc::clone(&shared), None, to, self.local_addr());
        let deadline = Deadline::new();
        deadline.set(self.limits.handshake_ms);
        poll_fn(|cx| match shared.poll_shaken(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(lost)) => Poll::Ready(Err(unshaken(lost, &failure))),
            Poll::Pending => deadline.poll_expired(cx).map(|()| Err(HandshakeError::TimedOut)),
        })
        .await?;
        Ok(connection)
    }
}

/// Returns why no handshake has begun.
fn unopened(error: &ConnectError, failure: &Failure) -> HandshakeError {
    match (failure.take(), error) {
        (Some(failure), _) => failure,
        (None, ConnectError::InvalidServerName(_)) => HandshakeError::BadName,
        (None, error) => HandshakeError::Io(io::Error::other(error.to_string())),
    }
}

/// The codes of TLS alerts (RFC 9001 §4.8).
const ALERTS: std::ops::RangeInclusive<u64> = 0x100..=0x1ff;

/// Returns why a handshake has failed.
fn unshaken(lost: ConnectionLost, failure: &Failure) -> HandshakeError {
    if let Some(error) = failure.take() {
        return error;
    }
    match lost {
        ConnectionLost::TimedOut => HandshakeError::TimedOut,
        ConnectionLost::Transport(code) if ALERTS.contains(&code) => {
            let alert = AlertDescription::from((code & 0xff) as u8);
            HandshakeError::Protocol(rustls::Error::AlertReceived(alert))
        }
        _ => HandshakeError::Closed,
    }
}
