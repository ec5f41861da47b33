//! One UDP socket of a worker, with its connections.

use std::cell::OnceCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use quinn_proto::{EndpointConfig, ServerConfig, TransportConfig, ValidationTokenConfig};

use super::counts::EndpointCounts;
use super::driver::{Driver, Routing};
use super::ids::{ConnectionOwner, IdGenerator, QuicKeys};
use super::limits::QuicLimits;
use super::neighbours::Neighbours;
use super::session::{Identities, ServerCrypto};
use super::socket::QuicSocket;
use super::steer::Steering;
use super::tokens;
use crate::tls::{Offer, ServerIdentity};

/// The only version of QUIC (RFC 9000).
pub(super) const VERSION: u32 = 1;

/// Bytes of one client that wait before it is admitted, and of all of them: a ClientHello with early data.
const WAITING_BYTES: u64 = 32 * 1024;
const WAITING_TOTAL_BYTES: u64 = 4 * 1024 * 1024;

/// The options of an endpoint.
#[derive(Debug)]
pub struct EndpointOptions {
    /// The keys of its address.
    pub keys: Arc<QuicKeys>,
    /// The worker of the endpoint.
    pub place: ConnectionOwner,
    /// The endpoints of the address in all workers.
    pub neighbours: Arc<Neighbours>,
    /// How the kernel chooses the socket, if a program does.
    pub steering: Option<Steering>,
    /// The limits of its connections.
    pub limits: QuicLimits,
}

/// Offers no certificate: the configuration of arrivals before their admission, which only derives public keys.
struct NoIdentities;

impl Identities for NoIdentities {
    fn choose(&self, _name: Option<&str>) -> Option<Arc<ServerIdentity>> {
        None
    }
}

/// An endpoint. Copies are handles of the same one.
#[derive(Clone)]
pub struct Endpoint {
    pub(super) driver: Rc<Driver>,
    /// The configuration that each admitted client completes.
    pub(super) server: Rc<ServerConfig>,
    pub(super) transport: Arc<TransportConfig>,
    pub(super) limits: QuicLimits,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("local", &self.local_addr()).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Opens an endpoint for clients on a bound UDP socket. Call it within the worker's runtime, and
    /// [run](Endpoint::run) it.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn server(socket: OwnedFd, options: EndpointOptions) -> io::Result<Endpoint> {
        Endpoint::open(socket, options, true)
    }

    pub(super) fn open(socket: OwnedFd, options: EndpointOptions, serves: bool) -> io::Result<Endpoint> {
        let EndpointOptions { keys, place, neighbours, steering, limits } = options;
        let socket = QuicSocket::adopt(socket)?;
        let crypto = ServerCrypto {
            identities: Arc::new(NoIdentities),
            offer: Offer::default(),
            hello_bytes: limits.hello_bytes,
            alpn: Vec::new(),
            early: None,
            failure: std::sync::OnceLock::new(),
        };
        let transport = limits.transport();
        let mut server = ServerConfig::new(Arc::new(crypto), keys.tokens());
        let mut tokens = ValidationTokenConfig::default();
        tokens.lifetime(tokens::LIFETIME).sent(tokens::SENT).log(keys.used_tokens());
        server
            .validation_token_config(tokens)
            .transport_config(Arc::clone(&transport))
            .max_incoming(super::driver::ARRIVALS_MAX)
            .incoming_buffer_size(WAITING_BYTES)
            .incoming_buffer_size_total(WAITING_TOTAL_BYTES)
            .migration(true);
        let mut config = EndpointConfig::new(keys.reset());
        let ids = Arc::clone(&keys);
        config
            .supported_versions(vec![VERSION])
            .cid_generator(move || Box::new(IdGenerator { keys: Arc::clone(&ids), place, steering }));
        let offered = serves.then(|| Arc::new(server.clone()));
        let machine = quinn_proto::Endpoint::new(Arc::new(config), offered, socket.discovers_mtu(), None);
        let strays = neighbours.join(place.worker);
        let addr = socket.local_addr();
        let routing = Routing { keys, place, neighbours, addr, predecessors: OnceCell::new() };
        let driver = Driver::new(socket, machine, routing, strays, &limits);
        Ok(Endpoint { driver, server: Rc::new(server), transport, limits })
    }

    /// Drives the endpoint and its connections, until the last one has ended after [`Endpoint::close`].
    ///
    /// # Errors
    /// Returns the error of the operating system when the socket cannot be read any more.
    pub async fn run(&self) -> io::Result<()> {
        poll_fn(|cx| self.driver.poll_run(cx)).await
    }

    /// Refuses new clients from now on; connections continue.
    pub fn close(&self) {
        let acceptor = {
            let mut core = self.driver.core.borrow_mut();
            core.clients.is_closing = true;
            core.clients.acceptor.take()
        };
        acceptor.into_iter().for_each(Waker::wake);
        self.driver.queue.wake();
    }

    /// Leaves the socket to the next process, which has the same keys and a later generation: it forwards the packets
    /// of the connections of this one. New clients are refused.
    pub fn hand_over(&self) {
        let handed_over = self.driver.core.borrow_mut().hand_over();
        if let Err(error) = handed_over {
            tracing::warn!(%error, "QUIC connections end with the upgrade");
        }
        self.driver.queue.wake();
    }

    /// Returns the address that the socket is bound to.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.driver.socket.local_addr()
    }

    /// Returns the open connections, half-open and closing ones included.
    pub fn connections(&self) -> usize {
        self.driver.core.borrow().endpoint.open_connections()
    }

    /// Returns the handshakes that are not complete.
    pub fn half_open(&self) -> u32 {
        self.driver.half_open.get()
    }

    /// Returns the counts since the start.
    pub fn counts(&self) -> EndpointCounts {
        self.driver.counts.get()
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.driver.socket.as_fd()
    }
}
