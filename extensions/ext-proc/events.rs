//! The events that are counted.

use sigma_plugin_kit::tallies;

/// An event of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The processor failed, except by being late.
    Failure,
    /// The processor was late.
    Timeout,
    /// The processor responded itself.
    Immediate,
    /// A change of a field was not permitted.
    MutationRejected,
    /// A processing mode was not permitted.
    ModeRejected,
    /// The processor requested another choice of the route, which is not supported.
    RouteCache,
    /// A message for a watching processor was dropped.
    Dropped,
}

impl tallies::Event for Event {
    const METRIC: &'static str = "ext_proc_events_total";
    const HELP: &'static str = "Events of external processors";
    const LABELS: &'static [&'static [(&'static str, &'static str)]] = &[
        &[("event", "failure")],
        &[("event", "timeout")],
        &[("event", "immediate_response")],
        &[("event", "mutation_rejected")],
        &[("event", "mode_rejected")],
        &[("event", "route_cache_ignored")],
        &[("event", "message_dropped")],
    ];

    fn number(self) -> usize {
        self as usize
    }
}
