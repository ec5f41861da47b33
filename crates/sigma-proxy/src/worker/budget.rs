//! The worker's budget of bytes held for clients: its limit, its counters and its log line.

use std::cell::Cell;

use sigma_buffer::held;
use sigma_config::settings::Limits;
use sigma_net::deadline;
use sigma_observe::counters::{Counter, WorkerCounters};

use crate::worker::pressure::Pressure;

/// The shortest interval of log lines about a short budget.
const TELL_MS: u64 = 10_000;

/// The state of the published counters and of the log line.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    refused: Cell<u64>,
    told_ms: Cell<Option<u64>>,
}

impl Budget {
    /// Sets the limit.
    pub(crate) fn limit(limits: &Limits, process: &Pressure) {
        let limit = limits.held_bytes_per_worker.unwrap_or_else(|| process.held_limit());
        held::set_limit(usize::try_from(limit).unwrap_or(usize::MAX));
    }

    /// Ends exchanges without progress if the budget is short, and publishes the bytes held. Call it with every tick
    /// of the worker's clock.
    pub(crate) fn tick(&self, counters: &WorkerCounters) {
        let now_ms = deadline::now_ms();
        let revoked = held::reclaim(now_ms);
        let refusals = held::refusals();
        let refused = refusals - self.refused.replace(refusals);
        counters.set(Counter::HeldBytes, held::total() as u64);
        if revoked == 0 && refused == 0 {
            return;
        }
        counters.add(Counter::HeldBytesRevoked, revoked as u64);
        counters.add(Counter::HeldBytesRefused, refused);
        if revoked > 0 {
            // Connections check their accounts when their tasks run.
            deadline::wake_all();
        }
        if self.told_ms.get().is_none_or(|told_ms| now_ms >= told_ms + TELL_MS) {
            self.told_ms.set(Some(now_ms));
            tracing::warn!(
                held_bytes = held::total(),
                revoked,
                refused,
                "the memory for clients is nearly used up (limits.held_bytes_per_worker): the gateway refuses requests, and ends requests without progress"
            );
        }
    }
}
