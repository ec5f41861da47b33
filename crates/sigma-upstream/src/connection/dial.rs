//! Establishing a connection within a time.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use sigma_http::{Fault, FaultKind};
use sigma_net::{Deadline, Stream};

use super::{Client, Connection};
use crate::endpoint::Address;

/// Connects to `addr` within `timeout_ms`.
///
/// # Errors
/// [`FaultKind::ConnectTimeout`], or [`FaultKind::ConnectRefused`] for every answer of the
/// network that is not a connection.
pub async fn dial(addr: &Address, timeout_ms: u64) -> Result<Connection, Fault> {
    let deadline = Deadline::new();
    deadline.set(timeout_ms);
    let mut connecting = pin!(async {
        match addr {
            Address::Tcp(addr) => Stream::connect_tcp(*addr).await,
            Address::Unix(path) => Stream::connect_unix(path).await,
        }
    });
    let connected = poll_fn(|cx| match connecting.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending => deadline.poll_expired(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
    })
    .await;
    match connected {
        Ok(stream) => Ok(Connection::H1(Box::new(Client::new(stream, deadline)))),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            Err(Fault::new(FaultKind::ConnectTimeout, "the node did not accept the connection in time"))
        }
        Err(error) => {
            tracing::debug!(%addr, %error, "cannot connect");
            Err(Fault::new(FaultKind::ConnectRefused, "the node refused the connection or cannot be reached"))
        }
    }
}
