//! A network made up by a test, in place of the kernel's: byte streams of its own, and connections
//! that lead where it says.
//!
//! It stands below everything that a worker runs, so that what is simulated is the code that serves.
//! Built with the feature `simulation` only.

use std::cell::RefCell;
use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};

/// A byte stream of a test.
pub trait Wire: AsyncRead + AsyncWrite + Debug + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Debug + Send + Sync + Unpin> Wire for T {}

/// A connection on its way.
pub type Dialling = Pin<Box<dyn Future<Output = io::Result<Box<dyn Wire>>> + Send>>;

/// Where connections to nodes lead.
type Network = Box<dyn Fn(SocketAddr) -> Dialling>;

thread_local! {
    static NETWORK: RefCell<Option<Network>> = const { RefCell::new(None) };
}

/// From here on [`crate::Stream::dial_tcp`] connects as `network` says, on this thread, until the
/// result is dropped.
pub fn enter(network: impl Fn(SocketAddr) -> Dialling + 'static) -> Entered {
    NETWORK.set(Some(Box::new(network)));
    Entered(())
}

/// The thread is in a made-up network as long as this lives.
#[derive(Debug)]
#[must_use = "the network ends with it"]
pub struct Entered(());

impl Drop for Entered {
    fn drop(&mut self) {
        NETWORK.set(None);
    }
}

/// A connection in the network that this thread is in, if it is in one.
pub(crate) fn dial(addr: SocketAddr) -> Option<Dialling> {
    NETWORK.with_borrow(|network| network.as_ref().map(|network| network(addr)))
}
