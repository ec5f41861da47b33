//! Plugins that make metrics and traces.

mod metrics;
mod trace;

use sigma_plugin::Descriptor;

/// Functions of the targets in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    pub use crate::trace::fuzzing::trace_headers;
}

#[cfg(test)]
#[path = "../testing.rs"]
mod testing;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[
    &metrics::DATADOG,
    &metrics::NODE_STATUS,
    &trace::OPENTELEMETRY,
    &metrics::PROMETHEUS,
    &metrics::SERVER_INFO,
    &trace::SKYWALKING,
    &metrics::STATSD,
    &trace::ZIPKIN,
];
