//! A simulated network for tests: its byte streams, connections and ports replace the kernel's.
//!
//! It is below all code of a worker, so that the simulated code is the production code. Built only with the feature
//! `simulation`. Everything belongs to the thread that has entered the network: there, workers are tasks instead of
//! threads, and the time of day follows the clock of the runtime, which a test may pause.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::listen::Claim;

/// A byte stream of a test.
pub trait Wire: AsyncRead + AsyncWrite + Debug + Send + Sync + Unpin {
    /// Makes the end of the stream a reset, as [`crate::Stream::reset`] does. A stream that has no resets ends in order.
    fn be_abrupt(&self) {}
}

impl Wire for tokio::io::DuplexStream {}

/// A connection being established.
pub type Dialling = Pin<Box<dyn Future<Output = io::Result<Box<dyn Wire>>> + Send>>;

/// Connects to nodes.
type Network = Box<dyn Fn(SocketAddr) -> Dialling>;

thread_local! {
    static NETWORK: RefCell<Option<Network>> = const { RefCell::new(None) };
    static PORTS: RefCell<BTreeMap<SocketAddr, Weak<PortState>>> = const { RefCell::new(BTreeMap::new()) };
    /// The moment at which the simulated time of day began.
    static DAY: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The time of day at which simulations begin: the first of January 2026.
const BEGIN: Duration = Duration::from_secs(1_767_225_600);

/// Makes [`crate::Stream::dial_tcp`] use `network` on this thread, until the result is dropped.
pub fn enter(network: impl Fn(SocketAddr) -> Dialling + 'static) -> Entered {
    NETWORK.set(Some(Box::new(network)));
    Entered(())
}

/// The thread is in a simulated network while this exists.
#[derive(Debug)]
#[must_use = "the network ends with it"]
pub struct Entered(());

impl Entered {
    /// Makes the time of day follow the clock of the runtime. Call it within one.
    pub fn with_time_of_day(self) -> Entered {
        DAY.set(Some(Instant::now()));
        self
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        NETWORK.set(None);
        PORTS.take();
        DAY.set(None);
    }
}

/// Returns true if this thread is in a simulated network.
pub(crate) fn is_entered() -> bool {
    NETWORK.with_borrow(Option::is_some)
}

/// Returns the time since the simulated time of day began, if there is one.
pub fn uptime() -> Option<Duration> {
    DAY.get().map(|began| began.elapsed())
}

/// Returns the simulated time of day, if there is one.
pub(crate) fn time_of_day() -> Option<SystemTime> {
    uptime().map(|uptime| SystemTime::UNIX_EPOCH + BEGIN + uptime)
}

/// Returns a connection in the simulated network of this thread, if it has one.
pub(crate) fn dial(addr: SocketAddr) -> Option<Dialling> {
    NETWORK.with_borrow(|network| network.as_ref().map(|network| network(addr)))
}

/// A connection that a port has not accepted yet.
struct Arrival {
    wire: Box<dyn Wire>,
    peer: SocketAddr,
}

/// The state of a port, for all its handles.
struct PortState {
    addr: SocketAddr,
    arrivals: Mutex<VecDeque<Arrival>>,
    arrived: Notify,
}

impl PortState {
    fn arrivals(&self) -> MutexGuard<'_, VecDeque<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle of a listening port. Connections are refused when the last one is dropped.
#[derive(Clone)]
pub struct Port(Arc<PortState>);

impl Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Port").field(&self.0.addr).finish()
    }
}

impl Port {
    /// Returns its address.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.0.addr
    }

    /// Returns the next connection, and the address of its client.
    pub(crate) async fn accept(&self) -> (Box<dyn Wire>, SocketAddr) {
        loop {
            if let Some(Arrival { wire, peer }) = self.0.arrivals().pop_front() {
                return (wire, peer);
            }
            self.0.arrived.notified().await;
        }
    }
}

/// Listens at an address in the simulated network of this thread; None outside of one.
///
/// # Errors
/// Returns an error if the address is in use, and is not to be shared.
pub fn bind(addr: SocketAddr, claim: Claim) -> Option<io::Result<Port>> {
    if !is_entered() {
        return None;
    }
    PORTS.with_borrow_mut(|ports| {
        let bound = ports.get(&addr).and_then(Weak::upgrade);
        if let Some(port) = bound {
            let in_use = || io::Error::from(io::ErrorKind::AddrInUse);
            return Some(if claim == Claim::Further { Ok(Port(port)) } else { Err(in_use()) });
        }
        let port = PortState { addr, arrivals: Mutex::default(), arrived: Notify::new() };
        let port = Arc::new(port);
        ports.insert(addr, Arc::downgrade(&port));
        Some(Ok(Port(port)))
    })
}

/// Connects a client with the address `peer` to a port of the simulated network; the port gets `wire`.
///
/// # Errors
/// Returns an error if nothing listens there.
pub fn connect(addr: SocketAddr, wire: Box<dyn Wire>, peer: SocketAddr) -> io::Result<()> {
    let port = PORTS.with_borrow(|ports| ports.get(&addr).and_then(Weak::upgrade));
    let port = port.ok_or(io::ErrorKind::ConnectionRefused)?;
    port.arrivals().push_back(Arrival { wire, peer });
    port.arrived.notify_one();
    Ok(())
}
