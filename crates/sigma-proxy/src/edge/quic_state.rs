//! The state of QUIC that outlives a listener: keys and queues of all workers, open ports of one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};
use sigma_net::quic::{Neighbours, QuicKeys, Steering};
use sigma_plugin::{Inheritable, Node};

/// The state of QUIC that all workers share.
#[derive(Debug, Default)]
pub(crate) struct QuicShared {
    /// Made with the first endpoint.
    keys: OnceLock<Option<Arc<QuicKeys>>>,
    /// By address. Locked only when an endpoint opens.
    neighbours: Mutex<HashMap<SocketAddr, Arc<Neighbours>>>,
    /// The sockets of each address that the kernel steers, by their numbers, in the order of their group. Locked only
    /// when sockets are bound and when an endpoint opens.
    steered: Mutex<HashMap<SocketAddr, Vec<u64>>>,
    workers: AtomicU16,
    /// The number of the process among its predecessors.
    generation: AtomicU16,
}

impl Inheritable for QuicShared {
    const NAME: &'static str = "quic";

    fn leave(&self) -> Value {
        match self.keys.get() {
            Some(Some(keys)) => json!([keys.bytes(), self.generation()]),
            _ => Value::Null,
        }
    }

    fn take_over(&self, left: &Value) {
        let Ok((bytes, generation)) = <(Vec<u8>, u16)>::deserialize(left) else { return };
        if let Ok(keys) = QuicKeys::read(&bytes) {
            self.generation.store(generation.wrapping_add(1), Ordering::Relaxed);
            let _ = self.keys.set(Some(Arc::new(keys)));
        }
    }
}

impl QuicShared {
    /// Returns the state of a process.
    pub(crate) fn of(node: &Node) -> Arc<QuicShared> {
        node.inherited(QuicShared::default)
    }

    /// Sets the number of workers, before the first endpoint.
    pub(crate) fn set_workers(&self, workers: usize) {
        self.workers.store(u16::try_from(workers).unwrap_or(u16::MAX), Ordering::Relaxed);
    }

    /// Returns the number of the process among its predecessors.
    pub(crate) fn generation(&self) -> u16 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Returns the keys; None if the system has no random bytes.
    pub(crate) fn keys(&self) -> Option<Arc<QuicKeys>> {
        let make = || QuicKeys::random().map_err(|error| tracing::error!(%error, "no HTTP/3")).ok();
        self.keys.get_or_init(|| make().map(Arc::new)).clone()
    }

    /// Returns the queues between the workers for an address.
    pub(crate) fn neighbours(&self, addr: SocketAddr) -> Arc<Neighbours> {
        let make = || Arc::new(Neighbours::new(self.workers.load(Ordering::Relaxed)));
        let mut known = self.neighbours.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(known.entry(addr).or_insert_with(make))
    }

    /// Sets the sockets of an address that the kernel steers, in the order of their group; None if it steers none.
    pub(crate) fn set_steered(&self, addr: SocketAddr, sockets: Option<Vec<u64>>) {
        let mut steered = self.steered.lock().unwrap_or_else(PoisonError::into_inner);
        match sockets {
            Some(sockets) => drop(steered.insert(addr, sockets)),
            None => drop(steered.remove(&addr)),
        }
    }

    /// Returns how the kernel chooses the socket with this number; None if it does not.
    pub(crate) fn steering(&self, addr: SocketAddr, number: u64) -> Option<Steering> {
        let steered = self.steered.lock().unwrap_or_else(PoisonError::into_inner);
        let sockets = steered.get(&addr)?;
        let own = sockets.iter().position(|known| *known == number)?;
        Some(Steering { sockets: u32::try_from(sockets.len()).ok()?, own: u32::try_from(own).ok()? })
    }
}

/// The addresses where a worker has an endpoint: responses over TCP announce them.
#[derive(Debug, Default)]
pub(crate) struct QuicPorts(RefCell<HashMap<SocketAddr, u32>>);

impl QuicPorts {
    /// Counts an endpoint in.
    pub(crate) fn add(&self, addr: SocketAddr) {
        *self.0.borrow_mut().entry(addr).or_default() += 1;
    }

    /// Counts an endpoint out.
    pub(crate) fn remove(&self, addr: SocketAddr) {
        let mut ports = self.0.borrow_mut();
        if let Some(count) = ports.get_mut(&addr) {
            *count -= 1;
            if *count == 0 {
                ports.remove(&addr);
            }
        }
    }

    /// Returns true if the worker has an endpoint for the listener on this address.
    pub(crate) fn has(&self, addr: SocketAddr) -> bool {
        self.0.borrow().contains_key(&addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_process_has_the_same_keys() {
        let before = QuicShared::default();
        let first = before.keys().unwrap();
        let (left, after) = (before.leave(), QuicShared::default());
        after.take_over(&left);
        assert_eq!(after.keys().unwrap().bytes(), first.bytes());
        assert_eq!((before.generation(), after.generation()), (0, 1));
        let fresh = QuicShared::default();
        fresh.take_over(&QuicShared::default().leave());
        fresh.take_over(&json!([[1, 2], 3]));
        assert_eq!(fresh.generation(), 0);
        assert_ne!(fresh.keys().unwrap().bytes(), first.bytes());
    }

    #[test]
    fn a_steered_socket_has_its_place_in_the_group() {
        let (shared, addr) = (QuicShared::default(), SocketAddr::from(([127, 0, 0, 1], 443)));
        assert_eq!(shared.steering(addr, 7), None);
        shared.set_steered(addr, Some(vec![9, 7]));
        assert_eq!(shared.steering(addr, 7), Some(Steering { sockets: 2, own: 1 }));
        assert_eq!(shared.steering(addr, 8), None);
        shared.set_steered(addr, None);
        assert_eq!(shared.steering(addr, 7), None);
    }

    #[test]
    fn a_port_is_announced_while_an_endpoint_is_open() {
        let (ports, addr) = (QuicPorts::default(), SocketAddr::from(([127, 0, 0, 1], 443)));
        assert!(!ports.has(addr));
        ports.add(addr);
        // A reload opens the next before it closes the one before.
        ports.add(addr);
        ports.remove(addr);
        assert!(ports.has(addr));
        ports.remove(addr);
        assert!(!ports.has(addr));
    }
}
