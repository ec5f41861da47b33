//! Idle connections of one worker, by endpoint.

use crate::connection::Connection;
use crate::endpoint::{Address, Endpoint};

/// How long and how many idle connections are kept.
#[derive(Debug, Clone, Copy)]
pub struct PoolLimits {
    /// Most idle connections per endpoint and worker.
    pub size: usize,
    /// An idle connection is closed after this.
    pub idle_timeout_ms: u64,
    /// Requests on one connection.
    pub requests: u32,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    addr: Address,
    expires_ms: u64,
}

/// The idle connections of a worker. The most recently used goes out first, so that a pool
/// shrinks to what the traffic needs.
#[derive(Debug, Default)]
pub struct Pools {
    /// Indexed by [`Endpoint::id`], which is dense.
    by_endpoint: Vec<Vec<Idle>>,
}

impl Pools {
    /// Takes an idle connection to `endpoint` that is still open and silent. One on which bytes
    /// came that nobody asked for is closed instead: they would be read as the next answer.
    pub fn checkout(&mut self, endpoint: &Endpoint, now_ms: u64) -> Option<Connection> {
        let idle = self.by_endpoint.get_mut(endpoint.id as usize)?;
        while let Some(mut candidate) = idle.pop() {
            if candidate.expires_ms > now_ms
                && candidate.addr == endpoint.addr
                && candidate.connection.is_quiet()
            {
                return Some(candidate.connection);
            }
        }
        None
    }

    /// Keeps a connection for the next request if the exchange left it fit and there is room.
    pub fn checkin(&mut self, endpoint: &Endpoint, connection: Connection, limits: PoolLimits, now_ms: u64) {
        if !connection.is_reusable(limits.requests) {
            return;
        }
        connection.deadline().clear();
        let index = endpoint.id as usize;
        if self.by_endpoint.len() <= index {
            self.by_endpoint.resize_with(index + 1, Vec::new);
        }
        let idle = &mut self.by_endpoint[index];
        if idle.len() < limits.size {
            let expires_ms = now_ms + limits.idle_timeout_ms;
            idle.push(Idle { connection, addr: endpoint.addr.clone(), expires_ms });
        }
    }

    /// Closes connections that idled too long, or that the other side closed.
    pub fn sweep(&mut self, now_ms: u64) {
        for idle in &mut self.by_endpoint {
            idle.retain_mut(|c| c.expires_ms > now_ms && c.connection.is_quiet());
        }
    }

    /// Closes all.
    pub fn clear(&mut self) {
        self.by_endpoint.clear();
    }
}
