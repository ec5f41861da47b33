//! The counts of an endpoint.

use std::cell::Cell;

/// Counts of an endpoint since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// Clients that had to prove their address first.
    pub retried: u64,
    /// Clients without a response, because too many handshakes were half-open.
    pub ignored: u64,
    /// Packets forwarded to another worker.
    pub forwarded: u64,
    /// Packets for another worker that has too many or is unknown.
    pub dropped: u64,
    /// Packets with a connection id that their open connection has retired.
    pub late: u64,
    /// Connections ended because of too many frames without data.
    pub floods: u64,
}

impl EndpointCounts {
    pub(super) fn change(counts: &Cell<EndpointCounts>, change: impl FnOnce(&mut EndpointCounts)) {
        let mut now = counts.get();
        change(&mut now);
        counts.set(now);
    }
}
