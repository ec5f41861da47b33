//! The connection pools of one worker, by endpoint: idle connections for one exchange at a time, and shared ones for
//! several.

mod demand;
mod http3;
mod node;
mod race;
mod shared;
mod target;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sigma_http::{Fault, FaultKind, Side};
use sigma_observe::counters::{Counter, WorkerCounters};

use crate::dial::{Dialled, dial};
use crate::endpoint::Endpoint;
use crate::quic::QuicSockets;

pub use node::InUse;
pub use target::{PoolLimits, Target};

use node::Node;

/// The connections of a worker. The most recently used goes out first, so that a pool shrinks to the need of the
/// traffic.
#[derive(Debug, Default)]
pub struct Pools {
    /// By number of the endpoint; see [`crate::identity::EndpointId::index`].
    by_endpoint: Vec<Option<Rc<Node>>>,
    sockets: Rc<QuicSockets>,
    counters: Arc<WorkerCounters>,
}

impl Pools {
    /// Returns pools without connections. `counters` counts their events.
    pub fn new(counters: Arc<WorkerCounters>) -> Pools {
        Pools { by_endpoint: Vec::new(), sockets: Rc::default(), counters }
    }

    /// Returns the connections to an endpoint. The caller keeps the endpoint alive, so another entry with the same
    /// number is a former one, whose remaining connections are closed.
    fn node(&mut self, endpoint: &Endpoint) -> Rc<Node> {
        let index = endpoint.id().index();
        if self.by_endpoint.len() <= index {
            self.by_endpoint.resize_with(index + 1, || None);
        }
        match &mut self.by_endpoint[index] {
            Some(node) if node.owner.id() == endpoint.id() => Rc::clone(node),
            slot => {
                let (sockets, counters) = (Rc::clone(&self.sockets), Arc::clone(&self.counters));
                let node = Rc::new(Node::new(endpoint.lease.watch(), sockets, counters));
                Rc::clone(slot.insert(node))
            }
        }
    }

    /// Returns the number of endpoints with an entry.
    pub fn endpoints(&self) -> usize {
        self.by_endpoint.iter().flatten().count()
    }

    /// Takes a stream on a shared connection, or an idle connection that is still open and silent. An idle one with
    /// unsolicited bytes is closed instead: they would be read as the next response.
    pub fn checkout(&self, target: &Target<'_>, now_ms: u64) -> Option<InUse> {
        let id = target.endpoint.id();
        let node = self.by_endpoint.get(id.index())?.as_ref().filter(|node| node.owner.id() == id)?;
        node.checkout(target, now_ms)
    }

    /// Closes connections that idled too long, were closed by the peer, are too many, or lead to removed endpoints.
    /// Call it about once a second.
    pub fn sweep(&mut self, now_ms: u64) {
        let (mut idle, mut beyond) = (0, 0);
        for slot in &mut self.by_endpoint {
            // Connections of a removed endpoint are never used again.
            if let Some(node) = slot.take_if(|node| node.owner.is_over()) {
                drop(node);
            } else if let Some(node) = slot {
                let census = node.sweep(now_ms);
                idle += census.idle;
                beyond += census.beyond;
            }
        }
        let left = self.by_endpoint.iter().rposition(Option::is_some);
        self.by_endpoint.truncate(left.map_or(0, |at| at + 1));
        self.counters.set(Counter::UpstreamIdle, idle as u64);
        self.counters.set(Counter::UpstreamIdleBeyondSize, beyond as u64);
    }

    /// Closes all connections.
    pub fn clear(&mut self) {
        self.by_endpoint.clear();
    }

    /// Closes connections beyond the pools' sizes. Returns true if there were any.
    fn close_beyond_sizes(&self) -> bool {
        self.by_endpoint.iter().flatten().filter(|node| node.close_beyond_size()).count() > 0
    }
}

/// How often a node may turn out to share connections against expectation, or the reverse.
const TURNS_MAX: usize = 2;

/// Returns a new connection to `target`, or a stream on a shared one, as soon as there is one. If connections are
/// shared and full, exchanges wait, first come, first served, for a free stream, or for one on a connection that is
/// opened for all of them. They fail together if none can be opened. The target's limits bound the shared
/// connections. The total time is at most the target's connect timeout.
///
/// # Errors
/// Returns an error in the cases of [`dial`], [`FaultKind::ProtocolMismatch`] if the node has another version of HTTP
/// than expected, and [`FaultKind::OutOfSockets`] if no stream became free in time and no further connection is
/// allowed.
pub async fn connect(pools: &RefCell<Pools>, target: &Target<'_>, now_ms: u64) -> Result<InUse, Fault> {
    let node = pools.borrow_mut().node(target.endpoint);
    for _ in 0..TURNS_MAX {
        if node.is_shared(target)
            && let Some(in_use) = node.wait(target).await?
        {
            return Ok(in_use);
        }
        let dialling = node.dialling();
        let dialled = dial_alone(pools, target).await?;
        if let Some(in_use) = node.adopt(target, dialled, dialling, now_ms) {
            return Ok(in_use);
        }
    }
    Err(Fault::new(FaultKind::ProtocolMismatch, "the node selects another HTTP version on each connection"))
}

async fn dial_alone(pools: &RefCell<Pools>, target: &Target<'_>) -> Result<Dialled, Fault> {
    match dial(&target.endpoint.addr, &target.dial).await {
        // This machine lacks something: connections kept for peaks of other nodes are closed.
        Err(fault) if fault.side() == Side::Gateway && pools.borrow().close_beyond_sizes() => {
            dial(&target.endpoint.addr, &target.dial).await
        }
        dialled => dialled,
    }
}

#[cfg(test)]
mod tests;
