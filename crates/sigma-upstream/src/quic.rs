//! Connections to nodes over QUIC: the sockets of a worker, and the handshake.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::{Rc, Weak};

use sigma_http::{Fault, FaultKind};
use sigma_net::quic::{Endpoint, QuicLimits};
use sigma_net::tls::{ClientTls, HandshakeCause, HandshakeError};
use sigma_wire::h3::SharedConnection;

use crate::dial::{QuicDial, is_news, refused, unshaken};
use crate::endpoint::Address;

/// The UDP sockets of a worker for connections to nodes: one for each address family, opened when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct QuicSockets {
    v4: RefCell<Option<Bound>>,
    v6: RefCell<Option<Bound>>,
}

/// An open socket, with the limits of its connections.
#[derive(Debug)]
struct Bound {
    endpoint: Endpoint,
    limits: QuicLimits,
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Its connections continue; its driver ends with the last one.
        self.endpoint.close();
    }
}

impl QuicSockets {
    fn slot(&self, is_v4: bool) -> &RefCell<Option<Bound>> {
        if is_v4 { &self.v4 } else { &self.v6 }
    }

    /// Returns the socket for an address. Other limits, after a reload, need another socket.
    fn endpoint(self: &Rc<Self>, to: SocketAddr, limits: QuicLimits) -> io::Result<Endpoint> {
        let slot = self.slot(to.is_ipv4());
        if let Some(bound) = &*slot.borrow()
            && bound.limits == limits
        {
            return Ok(bound.endpoint.clone());
        }
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let endpoint = Endpoint::client(UdpSocket::bind((any, 0))?.into(), limits)?;
        tokio::task::spawn_local(drive(endpoint.clone(), Rc::downgrade(self), to.is_ipv4()));
        slot.replace(Some(Bound { endpoint: endpoint.clone(), limits }));
        Ok(endpoint)
    }
}

/// Drives the connections of a socket.
async fn drive(endpoint: Endpoint, sockets: Weak<QuicSockets>, is_v4: bool) {
    let Err(error) = endpoint.run().await else { return };
    tracing::error!(%error, "a QUIC socket for nodes failed; the next connection opens a new one");
    // Its connections end by their timeouts.
    if let Some(sockets) = sockets.upgrade() {
        sockets
            .slot(is_v4)
            .borrow_mut()
            .take_if(|bound| bound.endpoint.local_addr() == endpoint.local_addr());
    }
}

/// The failure of a connection over QUIC.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuicFault {
    pub(crate) fault: Fault,
    /// The node does not respond over QUIC, for any name.
    pub(crate) is_unreachable: bool,
}

/// Connects to a node over QUIC.
///
/// # Errors
/// Returns the faults of a failed connection and of a failed TLS handshake.
pub(crate) async fn connect(
    sockets: &Rc<QuicSockets>,
    to: SocketAddr,
    name: &str,
    tls: &ClientTls,
    quic: &QuicDial,
) -> Result<Rc<SharedConnection>, QuicFault> {
    let addr = Address::Tcp(to);
    let endpoint = sockets.endpoint(to, quic.transport).map_err(|error| {
        // A machine without IPv6 is no fault of the node, and TCP would say the same.
        QuicFault { fault: refused(&addr, &error), is_unreachable: false }
    })?;
    match endpoint.connect(to, name, tls).await {
        Ok(connection) => Ok(SharedConnection::open(connection, &quic.shared)),
        Err(error) => Err(failed(&addr, name, &error)),
    }
}

fn failed(addr: &Address, name: &str, error: &HandshakeError) -> QuicFault {
    // A name of a client must not make a node count as one without HTTP/3.
    let is_unreachable = match error {
        HandshakeError::TimedOut | HandshakeError::Closed | HandshakeError::Io(_) => true,
        HandshakeError::BadName => false,
        error => error.cause() == HandshakeCause::Protocol,
    };
    if is_unreachable && is_news(addr, "QUIC") {
        tracing::warn!(%addr, %error, "a node that should support HTTP/3 does not respond over QUIC");
    }
    let fault = match error {
        HandshakeError::Closed | HandshakeError::Io(_) => {
            Fault::new(FaultKind::ConnectRefused, "the node refused the connection over QUIC")
        }
        error => unshaken(addr, name, error),
    };
    QuicFault { fault, is_unreachable }
}

/// The fault of a node without an address for UDP.
pub(crate) fn without_udp() -> Fault {
    Fault::new(
        FaultKind::ConnectRefused,
        "HTTP/3 needs a node with an IP address; this node is a Unix socket",
    )
}
