//! Sessions and their bytes by listener, counted while sessions are open.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Local, Node};

/// The sessions of one listener on one worker, the only writer.
#[derive(Debug, Default)]
pub struct Traffic {
    listener: Box<str>,
    active: AtomicU64,
    from_clients: AtomicU64,
    to_clients: AtomicU64,
}

impl Traffic {
    /// Returns this worker's counters of the listener at `address`, as the configuration writes it.
    pub fn of(node: &Node, local: &Local, address: &str) -> Arc<Traffic> {
        let own = local.part(OwnTraffic::default);
        let mut listeners = own.0.borrow_mut();
        if let Some(known) = listeners.iter().find(|known| *known.listener == *address) {
            return Arc::clone(known);
        }
        let traffic = Arc::new(Traffic { listener: address.into(), ..Traffic::default() });
        node.part(TrafficBoard::default).lock().push(Arc::clone(&traffic));
        listeners.push(Arc::clone(&traffic));
        traffic
    }

    /// Returns the address of the listener, as the configuration writes it.
    pub fn listener(&self) -> &str {
        &self.listener
    }

    /// Counts the start of a session.
    pub fn enter(&self) {
        add(&self.active, 1);
    }

    /// Counts the end of a session.
    pub fn leave(&self) {
        add(&self.active, 1_u64.wrapping_neg());
    }

    /// Counts bytes from the client to a node, and from a node to the client.
    pub fn pass(&self, from_client: u64, to_client: u64) {
        add(&self.from_clients, from_client);
        add(&self.to_clients, to_client);
    }
}

/// Only for the owning worker: two writers would lose counts.
fn add(number: &AtomicU64, n: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// The counters of one worker for all listeners.
#[derive(Default)]
struct OwnTraffic(RefCell<Vec<Arc<Traffic>>>);

/// The traffic of all listeners on all workers; a part of the [`Node`].
#[derive(Debug, Default)]
pub struct TrafficBoard(Mutex<Vec<Arc<Traffic>>>);

/// The total of one listener on all workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListenerTraffic {
    /// Its address.
    pub listener: Box<str>,
    /// Sessions open now.
    pub active: u64,
    /// Bytes from clients to nodes.
    pub from_clients: u64,
    /// Bytes from nodes to clients.
    pub to_clients: u64,
}

impl TrafficBoard {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Traffic>>> {
        // No code panics under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the totals of all listeners that had a session, in the order of their addresses.
    pub fn read(&self) -> Vec<ListenerTraffic> {
        let mut all = self.lock().clone();
        all.sort_by(|one, other| one.listener.cmp(&other.listener));
        let sum = |same: &[Arc<Traffic>]| {
            let of = |number: fn(&Traffic) -> &AtomicU64| {
                same.iter().map(|one| number(one).load(Ordering::Relaxed)).sum()
            };
            ListenerTraffic {
                listener: same[0].listener.clone(),
                active: of(|one| &one.active),
                from_clients: of(|one| &one.from_clients),
                to_clients: of(|one| &one.to_clients),
            }
        };
        all.chunk_by(|one, other| one.listener == other.listener).map(sum).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_up_workers_by_listener() {
        let (node, workers) = (Node::default(), [Local::new(0, 1), Local::new(1, 1)]);
        for (n, local) in (1..).zip(&workers) {
            for address in ["127.0.0.1:2", "127.0.0.1:1", "127.0.0.1:2"] {
                let traffic = Traffic::of(&node, local, address);
                traffic.enter();
                traffic.pass(n, 10 * n);
            }
            Traffic::of(&node, local, "127.0.0.1:1").leave();
        }
        let listener = |address: &str, active, from_clients, to_clients| ListenerTraffic {
            listener: address.into(),
            active,
            from_clients,
            to_clients,
        };
        let expected = [listener("127.0.0.1:1", 0, 3, 30), listener("127.0.0.1:2", 4, 6, 60)];
        assert_eq!(node.part(TrafficBoard::default).read(), expected);
    }
}
