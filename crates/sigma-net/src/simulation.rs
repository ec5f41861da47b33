//! A simulated network for tests: its byte streams and connections replace the kernel's.
//!
//! It is below all code of a worker, so that the simulated code is the production code. Built only with the feature
//! `simulation`.

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

/// A connection being established.
pub type Dialling = Pin<Box<dyn Future<Output = io::Result<Box<dyn Wire>>> + Send>>;

/// Connects to nodes.
type Network = Box<dyn Fn(SocketAddr) -> Dialling>;

thread_local! {
    static NETWORK: RefCell<Option<Network>> = const { RefCell::new(None) };
}

/// Makes [`crate::Stream::dial_tcp`] use `network` on this thread, until the result is dropped.
pub fn enter(network: impl Fn(SocketAddr) -> Dialling + 'static) -> Entered {
    NETWORK.set(Some(Box::new(network)));
    Entered(())
}

/// The thread is in a simulated network while this exists.
#[derive(Debug)]
#[must_use = "the network ends with it"]
pub struct Entered(());

impl Drop for Entered {
    fn drop(&mut self) {
        NETWORK.set(None);
    }
}

/// Returns a connection in the simulated network of this thread, if it has one.
pub(crate) fn dial(addr: SocketAddr) -> Option<Dialling> {
    NETWORK.with_borrow(|network| network.as_ref().map(|network| network(addr)))
}
