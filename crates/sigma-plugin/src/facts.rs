//! Facts about the whole gateway, from the control plane to plugins, for metrics.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The gateway at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// Requests since the start.
    pub requests: u64,
    /// Requests that are in flight.
    pub requests_active: u64,
    /// Client connections open now.
    pub connections_active: u64,
    /// Client connections accepted since the start.
    pub connections_accepted: u64,
    /// WebSockets opened by `Upgrade` (RFC 6455).
    pub websockets_by_upgrade: Websockets,
    /// WebSockets opened by extended CONNECT (RFC 8441).
    pub websockets_by_connect: Websockets,
    /// Bytes received in WebSockets from clients.
    pub websocket_bytes_in: u64,
    /// Bytes sent in WebSockets to clients.
    pub websocket_bytes_out: u64,
    /// The store's revision in force; None if resources are in the file.
    pub revision: Option<u64>,
    /// The highest revision among the resources of each kind, by the kind's name (`routes`).
    pub modified: Vec<(&'static str, u64)>,
    /// The store can be reached; None without a store.
    pub store_reachable: Option<bool>,
    /// The number of quarantined objects of each kind, by the kind's name.
    pub quarantined: Vec<(&'static str, u64)>,
    /// More numbers of the control plane.
    pub measures: Vec<Measure>,
    /// Nodes whose health is checked.
    pub nodes: Vec<NodeHealth>,
}

/// Current load: a few numbers that are cheap to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pulse {
    /// The id of this gateway in its store.
    pub id: Arc<str>,
    /// Requests since the start.
    pub requests: u64,
    /// Requests that are in flight.
    pub requests_active: u64,
    /// Client connections open now.
    pub connections_active: u64,
    /// Client connections accepted since the start.
    pub connections_accepted: u64,
}

/// A metric that the control plane keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measure {
    /// The name, without a prefix.
    pub name: &'static str,
    /// The help text, one sentence.
    pub help: &'static str,
    /// True if it only grows.
    pub is_counter: bool,
    /// Its series: labels, and the number.
    pub series: Vec<(Vec<(&'static str, String)>, u64)>,
}

/// WebSockets of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Websockets {
    /// Opened since the start.
    pub opened: u64,
    /// Open now.
    pub active: u64,
}

/// The health of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeHealth {
    /// The resource that contains the upstream, e.g. `/apisix/upstreams/1`.
    pub resource: String,
    /// Its address.
    pub ip: String,
    /// Its port.
    pub port: u16,
    /// True if it gets requests.
    pub healthy: bool,
    /// The reason if it gets none; else empty.
    pub reason: String,
}

/// The cell in which the control plane publishes [`Facts`]; a part of the [`crate::Node`].
#[derive(Default)]
pub struct FactsBoard {
    latest: Mutex<Arc<Facts>>,
    pulse: OnceLock<Box<dyn Fn() -> Pulse + Send + Sync>>,
}

impl std::fmt::Debug for FactsBoard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FactsBoard").field("latest", &self.latest).finish_non_exhaustive()
    }
}

impl FactsBoard {
    /// Publishes newer facts.
    pub fn post(&self, facts: Facts) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(facts);
    }

    /// Returns the latest facts.
    pub fn read(&self) -> Arc<Facts> {
        Arc::clone(&self.latest.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the function that reads the pulse, once; it must not wait.
    pub fn feel_by(&self, feel: impl Fn() -> Pulse + Send + Sync + 'static) {
        // The first call counts: there is one gateway in a process.
        let _ = self.pulse.set(Box::new(feel));
    }

    /// Returns the current load; None if nothing is served.
    pub fn pulse(&self) -> Option<Pulse> {
        self.pulse.get().map(|feel| feel())
    }
}
