//! The listening sockets for operators, all of them: closed to new calls while a successor takes over, and handed
//! to it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sigma_net::{BoundSocket, Sockets, TcpOptions};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How long calls in hand may take to end before a successor takes over.
const CALLS_END: Duration = Duration::from_secs(1);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(2);

/// The listening sockets for operators.
#[derive(Debug)]
pub(crate) struct Entrances {
    /// Sockets that another process has bound, until all needed ones are found.
    found: Mutex<Arc<Sockets>>,
    bound: Mutex<Vec<std::net::TcpListener>>,
    open: watch::Sender<bool>,
    in_hand: AtomicUsize,
}

impl Entrances {
    /// Returns the listeners of this process, which use sockets that are already bound, where there are any.
    pub(crate) fn new(found: Arc<Sockets>) -> Entrances {
        let open = watch::Sender::new(true);
        Entrances { found: Mutex::new(found), bound: Mutex::default(), open, in_hand: AtomicUsize::new(0) }
    }

    /// Listens at an address.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub(crate) async fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        let found = Arc::clone(&self.found.lock().unwrap_or_else(PoisonError::into_inner));
        let found =
            found.tcp(address, None, &TcpOptions::default())?.into_iter().find_map(|socket| match socket {
                BoundSocket::Tcp(socket) => Some(socket),
                _ => None,
            });
        let listener = match found {
            Some(socket) => TcpListener::from_std(socket)?,
            None => TcpListener::bind(address).await?,
        };
        let listener = listener.into_std()?;
        let handle = listener.try_clone()?;
        self.bound.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        TcpListener::from_std(listener)
    }

    /// No further listener is bound. Unused sockets of another process are closed.
    pub(super) fn are_bound(&self) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
    }

    /// Returns whether connections are accepted; the receiver is notified of changes.
    pub(super) fn open(&self) -> watch::Receiver<bool> {
        self.open.subscribe()
    }

    /// A call that is answered while the value lives.
    pub(super) fn call(self: &Arc<Self>) -> Call {
        self.in_hand.fetch_add(1, Ordering::AcqRel);
        Call(Arc::clone(self))
    }

    /// Stops accepting connections, and ends open ones after the current call. New calls wait in the kernel,
    /// for the next process that listens there. Returns when no call runs, or after a time-out.
    pub(crate) async fn pause(&self) {
        self.open.send_replace(false);
        let ended = async {
            while self.in_hand.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(LOOK).await;
            }
        };
        // Longer calls are a page of metrics or a watch; neither changes anything.
        let _ = tokio::time::timeout(CALLS_END, ended).await;
    }

    /// Takes connections again.
    pub(crate) fn resume(&self) {
        self.open.send_replace(true);
    }

    /// Handles of the sockets, for a process that continues with them.
    ///
    /// # Errors
    /// Returns an error if there are too many open files.
    pub(crate) fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        let bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        bound.iter().map(|socket| Ok(socket.try_clone()?.into())).collect()
    }
}

/// A call that gets a response.
pub(super) struct Call(Arc<Entrances>);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.in_hand.fetch_sub(1, Ordering::AcqRel);
    }
}
