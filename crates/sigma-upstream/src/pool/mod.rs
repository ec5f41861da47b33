//! Connections of one worker that wait for requests, by endpoint: idle ones that serve one
//! exchange at a time, and shared ones that serve several.

mod demand;
mod node;
mod shared;
mod target;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sigma_http::{Fault, FaultKind, Side};
use sigma_observe::counters::{Counter, WorkerCounters};

use crate::dial::{Dialled, dial};
use crate::endpoint::Endpoint;

pub use node::InUse;
pub use target::{PoolLimits, Target};

use node::Node;

/// The connections of a worker that may be used. The most recently used goes out first, so that
/// a pool shrinks to what the traffic needs.
#[derive(Debug, Default)]
pub struct Pools {
    /// By number of the endpoint; see [`crate::identity::EndpointId::index`].
    by_endpoint: Vec<Option<Rc<Node>>>,
    counters: Arc<WorkerCounters>,
}

impl Pools {
    /// Without connections. What becomes of them is counted in `counters`.
    pub fn new(counters: Arc<WorkerCounters>) -> Pools {
        Pools { by_endpoint: Vec::new(), counters }
    }

    /// The connections to an endpoint. Whoever has the endpoint keeps it from being gone, so that another
    /// one with the same number is a former one: what is left of its connections is closed.
    fn node(&mut self, endpoint: &Endpoint) -> Rc<Node> {
        let index = endpoint.id().index();
        if self.by_endpoint.len() <= index {
            self.by_endpoint.resize_with(index + 1, || None);
        }
        match &mut self.by_endpoint[index] {
            Some(node) if node.owner.id() == endpoint.id() => Rc::clone(node),
            slot => {
                let node = Rc::new(Node::new(endpoint.lease.watch(), Arc::clone(&self.counters)));
                Rc::clone(slot.insert(node))
            }
        }
    }

    /// How many endpoints have a place here.
    pub fn endpoints(&self) -> usize {
        self.by_endpoint.iter().flatten().count()
    }

    /// Takes a place on a shared connection, or an idle connection that is still open and silent. An idle one on
    /// which bytes came that nobody asked for is closed instead: they would be read as the next
    /// answer.
    pub fn checkout(&self, target: &Target<'_>, now_ms: u64) -> Option<InUse> {
        let id = target.endpoint.id();
        let node = self.by_endpoint.get(id.index())?.as_ref().filter(|node| node.owner.id() == id)?;
        node.checkout(target, now_ms)
    }

    /// Closes connections that idled too long, that the other side closed, that are too many, or
    /// that lead to endpoints which are gone. To be called about once a second.
    pub fn sweep(&mut self, now_ms: u64) {
        let (mut idle, mut beyond) = (0, 0);
        for slot in &mut self.by_endpoint {
            // Nobody comes for the connections of an endpoint that is gone.
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

    /// Closes all.
    pub fn clear(&mut self) {
        self.by_endpoint.clear();
    }

    /// Closes what is kept beyond the pools' sizes. Whether there was any.
    fn close_beyond_sizes(&self) -> bool {
        self.by_endpoint.iter().flatten().filter(|node| node.close_beyond_size()).count() > 0
    }
}

/// Times that a node may turn out to share connections when it was expected not to, or the reverse.
const TURNS_MAX: usize = 2;

/// A connection to `target` that no earlier exchange has used, or a place on a shared one, as soon as there
/// is one. Where connections are shared, those who find no place wait for one, first come, first served:
/// one that another has left, or one on a connection that is opened for all of them. They
/// fail together if none can be opened. There are never more shared connections than the target's
/// limits allow. All of it takes no longer than the target's connect timeout.
///
/// # Errors
/// Returns an error in the cases in which [`dial`] does, [`FaultKind::ProtocolMismatch`] if the node does not
/// speak the version of HTTP that it should, and [`FaultKind::OutOfSockets`] if no place was
/// left in time and no further connection is allowed.
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
    Err(Fault::new(FaultKind::ProtocolMismatch, "the node changes the version of HTTP with each connection"))
}

async fn dial_alone(pools: &RefCell<Pools>, target: &Target<'_>) -> Result<Dialled, Fault> {
    match dial(&target.endpoint.addr, &target.dial).await {
        // This machine lacks something: what other nodes' peaks hold is given back.
        Err(fault) if fault.side() == Side::Gateway && pools.borrow().close_beyond_sizes() => {
            dial(&target.endpoint.addr, &target.dial).await
        }
        dialled => dialled,
    }
}

#[cfg(test)]
mod tests;
