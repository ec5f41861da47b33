//! What the control plane tells plugins of the gateway as a whole, for metrics.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The gateway at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// Requests since the start.
    pub requests: u64,
    /// Requests that are not answered yet.
    pub requests_active: u64,
    /// Client connections open now.
    pub connections_active: u64,
    /// Client connections accepted since the start.
    pub connections_accepted: u64,
    /// WebSockets opened by `Upgrade` (RFC 6455).
    pub websockets_by_upgrade: Websockets,
    /// WebSockets opened by extended CONNECT (RFC 8441).
    pub websockets_by_connect: Websockets,
    /// Bytes that passed in WebSockets from clients.
    pub websocket_bytes_in: u64,
    /// Bytes that passed in WebSockets to clients.
    pub websocket_bytes_out: u64,
    /// The store's revision that is in force; None where resources stand in the file.
    pub revision: Option<u64>,
    /// The highest revision among the resources of each kind, by the kind's name (`routes`).
    pub modified: Vec<(&'static str, u64)>,
    /// Whether the store can be reached; None where there is none.
    pub store_reachable: Option<bool>,
    /// How many objects of each kind are quarantined, by the kind's name.
    pub quarantined: Vec<(&'static str, u64)>,
    /// Numbers that the control plane knows beside these.
    pub measures: Vec<Measure>,
    /// Nodes whose health is checked.
    pub nodes: Vec<NodeHealth>,
}

/// What clients do at this moment: a few numbers that cost nothing to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pulse {
    /// What this gateway is called among those of its store.
    pub id: Arc<str>,
    /// Requests since the start.
    pub requests: u64,
    /// Requests that are not answered yet.
    pub requests_active: u64,
    /// Client connections open now.
    pub connections_active: u64,
    /// Client connections accepted since the start.
    pub connections_accepted: u64,
}

/// A metric that the control plane keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measure {
    /// What it is called, without a prefix.
    pub name: &'static str,
    /// What it counts, in a sentence.
    pub help: &'static str,
    /// Whether it only grows.
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
    /// The resource that the upstream stands in, e.g. `/apisix/upstreams/1`.
    pub resource: String,
    /// Its address.
    pub ip: String,
    /// Its port.
    pub port: u16,
    /// Whether requests are sent to it.
    pub healthy: bool,
    /// Why they are not; empty if they are.
    pub reason: String,
}

/// Where the control plane leaves [`Facts`]; a part of the [`crate::Node`].
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
    /// Puts newer facts in the place of the old ones.
    pub fn post(&self, facts: Facts) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(facts);
    }

    /// The latest facts.
    pub fn read(&self) -> Arc<Facts> {
        Arc::clone(&self.latest.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says once how the pulse is felt; it must not wait.
    pub fn feel_by(&self, feel: impl Fn() -> Pulse + Send + Sync + 'static) {
        // The first counts: there is one gateway in a process.
        let _ = self.pulse.set(Box::new(feel));
    }

    /// What clients do now; None where nothing is served.
    pub fn pulse(&self) -> Option<Pulse> {
        self.pulse.get().map(|feel| feel())
    }
}
