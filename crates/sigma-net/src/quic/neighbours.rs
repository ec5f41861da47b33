//! Packets that reach another worker than the one of their connection.
//!
//! The kernel chooses the worker by the connection id ([`super::steer`]). Where it cannot, it spreads datagrams by their
//! addresses: a client that changes its address, and a change of the number of sockets, move packets to another worker.
//! That worker finds the owner in the connection id and forwards them.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use quinn_proto::EcnCodepoint;
use tokio::sync::mpsc;

use super::socket::Packet;

/// Packets that wait for a worker. More are dropped, as the kernel drops what its buffer cannot take.
const QUEUE_MAX: usize = 1024;

/// The packets for a worker.
pub(super) type Strays = mpsc::Receiver<Stray>;

/// A packet on its way to its worker.
pub(super) struct Stray {
    pub(super) from: SocketAddr,
    pub(super) to: Option<IpAddr>,
    pub(super) ecn: Option<EcnCodepoint>,
    pub(super) bytes: Box<[u8]>,
}

/// The endpoints of one address in all workers of this process.
pub struct Neighbours {
    /// By the number of the worker.
    queues: Box<[mpsc::Sender<Stray>]>,
    /// The other ends, until the worker takes its own.
    ends: Mutex<Vec<Option<Strays>>>,
}

impl std::fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Neighbours({})", self.queues.len())
    }
}

impl Neighbours {
    /// Returns the queues of this number of workers.
    pub fn new(workers: u16) -> Neighbours {
        let (queues, ends): (Vec<_>, Vec<_>) =
            (0..workers).map(|_| mpsc::channel(QUEUE_MAX)).map(|(queue, end)| (queue, Some(end))).unzip();
        Neighbours { queues: queues.into(), ends: Mutex::new(ends) }
    }

    /// Returns the packets for a worker; None if it has taken them before.
    pub(super) fn join(&self, worker: u16) -> Option<Strays> {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.get_mut(usize::from(worker))?.take()
    }

    /// Forwards a packet; returns false if its worker is unknown or has too many.
    pub(super) fn forward(&self, worker: u16, packet: &Packet) -> bool {
        let Some(queue) = self.queues.get(usize::from(worker)) else { return false };
        let Packet { from, to, ecn, bytes } = packet;
        queue.try_send(Stray { from: *from, to: *to, ecn: *ecn, bytes: bytes[..].into() }).is_ok()
    }
}
