//! Idle connections of the scripts of one worker.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::engine::outbound::Connection;

/// Idle connections by the name of their pool. Their number is bounded by the sockets of the worker.
#[derive(Default)]
pub(super) struct Pools(RefCell<HashMap<Box<str>, Vec<Idle>>>);

/// A connection that waits for its next use.
struct Idle {
    connection: Rc<RefCell<Option<Connection>>>,
    /// The task that closes it in time.
    watch: AbortHandle,
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Pools {
    /// Takes the connection of a pool that was used last, if it is still open and silent.
    pub(super) fn take(&self, pool: &str) -> Option<Connection> {
        let mut pools = self.0.borrow_mut();
        let idle = pools.get_mut(pool)?;
        let found = std::iter::from_fn(|| idle.pop()).find_map(|idle| {
            let mut connection = idle.connection.take()?;
            connection.is_quiet().then_some(connection)
        });
        if idle.is_empty() {
            pools.remove(pool);
        }
        found
    }

    /// Keeps a connection, at most so many in its pool: the oldest gives way.
    pub(super) fn put(self: &Rc<Self>, pool: &str, connection: Connection, most: usize, time: Duration) {
        let connection = Rc::new(RefCell::new(Some(connection)));
        let expiry =
            Expiry { pools: Rc::downgrade(self), pool: pool.into(), connection: Rc::downgrade(&connection) };
        let watch = tokio::task::spawn_local(expiry.close_in_time(time)).abort_handle();
        let mut pools = self.0.borrow_mut();
        let idle = pools.entry(pool.into()).or_default();
        while idle.len() >= most.max(1) {
            idle.remove(0);
        }
        idle.push(Idle { connection, watch });
    }

    /// Closes one idle connection, for a new one; whether there was one.
    pub(super) fn give_way(&self) -> bool {
        let mut pools = self.0.borrow_mut();
        let Some(name) = pools.keys().next().cloned() else { return false };
        if let Some(idle) = pools.get_mut(&name) {
            drop(idle.pop());
            if idle.is_empty() {
                pools.remove(&name);
            }
        }
        true
    }

    fn remove(&self, pool: &str, connection: &Rc<RefCell<Option<Connection>>>) {
        let mut pools = self.0.borrow_mut();
        let Some(idle) = pools.get_mut(pool) else { return };
        idle.retain(|idle| !Rc::ptr_eq(&idle.connection, connection));
        if idle.is_empty() {
            pools.remove(pool);
        }
    }
}

/// The connection of a task that closes it.
struct Expiry {
    pools: Weak<Pools>,
    pool: Box<str>,
    connection: Weak<RefCell<Option<Connection>>>,
}

impl Expiry {
    /// Closes the connection after this time, or once the peer closes it or sends something.
    async fn close_in_time(self, time: Duration) {
        let stirred = poll_fn(|cx| {
            let Some(connection) = self.connection.upgrade() else { return Poll::Ready(()) };
            let mut connection = connection.borrow_mut();
            let Some(connection) = connection.as_mut() else { return Poll::Ready(()) };
            connection.stream.poll_read(cx, &mut [0]).map(drop)
        });
        // Either way it ends.
        let _ = tokio::time::timeout(time, stirred).await;
        if let (Some(pools), Some(connection)) = (self.pools.upgrade(), self.connection.upgrade()) {
            pools.remove(&self.pool, &connection);
        }
    }
}
