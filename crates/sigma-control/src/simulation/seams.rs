//! The places where a simulated process differs from a real one: its signals, the listeners of its operators, and its
//! store. They belong to the thread of the simulation; every other thread has real ones.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use tokio::signal::unix::SignalKind;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::store::Store;
use crate::store::memory::Memory;

thread_local! {
    static SEAMS: RefCell<Option<Seams>> = const { RefCell::new(None) };
}

/// The outside of the simulated process.
pub(super) struct Seams {
    /// It stays when a process ends, as a store on another machine does.
    store: Arc<Memory>,
    signals: BTreeMap<i32, UnboundedSender<()>>,
    routers: BTreeMap<SocketAddr, Router>,
}

/// Makes the processes of this thread simulated ones, until the result is dropped.
pub(super) fn enter() -> Entered {
    let (store, signals, routers) = (Arc::default(), BTreeMap::new(), BTreeMap::new());
    SEAMS.set(Some(Seams { store, signals, routers }));
    Entered(())
}

/// The processes of this thread are simulated while this exists.
pub(super) struct Entered(());

impl Drop for Entered {
    fn drop(&mut self) {
        SEAMS.set(None);
    }
}

fn with<T>(look: impl FnOnce(&mut Seams) -> T) -> Option<T> {
    SEAMS.with_borrow_mut(|seams| seams.as_mut().map(look))
}

/// Returns the receiver of a simulated signal; None outside of a simulation.
pub(crate) fn signal(kind: SignalKind) -> Option<UnboundedReceiver<()>> {
    let (send, received) = unbounded_channel();
    with(|seams| drop(seams.signals.insert(kind.as_raw_value(), send)))?;
    Some(received)
}

/// Sends the process a signal.
pub(super) fn send(kind: SignalKind) {
    // A process that has ended receives none.
    let _ = with(|seams| seams.signals.get(&kind.as_raw_value()).map(|signal| signal.send(())));
}

/// Takes the router of a listener for operators. Outside of a simulation it is returned.
pub(crate) fn listen(address: SocketAddr, router: Router) -> Option<Router> {
    let mut router = Some(router);
    with(|seams| seams.routers.extend(router.take().map(|router| (address, router))));
    router
}

/// Returns the router at an address.
pub(super) fn router(address: SocketAddr) -> Option<Router> {
    with(|seams| seams.routers.get(&address).cloned()).flatten()
}

/// Closes all listeners for operators.
pub(super) fn close() {
    with(|seams| seams.routers.clear());
}

/// Returns the store of the simulation.
pub(crate) fn store() -> Option<Arc<dyn Store>> {
    with(|seams| Arc::clone(&seams.store) as Arc<dyn Store>)
}
