//! Events of modules that are counted.

use sigma_plugin_kit::tallies::Event as Tallied;

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A callback was aborted
    Aborted,
    /// An instance did not start
    NotStarted,
    /// A request or a response was paused for too long
    PausedTooLong,
    /// A body is too large for a pause
    TooLarge,
    /// The module has responded
    Responded,
    /// A change of a field was not permitted
    MutationRejected,
    /// A call to a service had no response
    CallFailed,
    /// The exchange went on without the module
    FailedOpen,
}

impl Tallied for Event {
    const METRIC: &'static str = "wasm_events_total";
    const HELP: &'static str = "Events of WebAssembly modules";
    const LABELS: &'static [&'static [(&'static str, &'static str)]] = &[
        &[("event", "aborted")],
        &[("event", "not_started")],
        &[("event", "paused_too_long")],
        &[("event", "too_large")],
        &[("event", "responded")],
        &[("event", "mutation_rejected")],
        &[("event", "call_failed")],
        &[("event", "failed_open")],
    ];

    fn number(self) -> usize {
        self as usize
    }
}
