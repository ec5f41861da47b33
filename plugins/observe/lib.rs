//! Plugins that make metrics and traces.

mod datadog;
#[path = "node-status/mod.rs"]
mod node_status;
mod opentelemetry;
mod prometheus;
#[path = "server-info/mod.rs"]
mod server_info;
mod shared;
mod skywalking;
mod statsd;
mod zipkin;

use sigma_plugin::Descriptor;

/// Functions of the targets in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    pub use crate::shared::fuzzing::trace_headers;
}

#[cfg(test)]
#[path = "../testing.rs"]
mod testing;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[
    &datadog::DATADOG,
    &node_status::NODE_STATUS,
    &opentelemetry::OPENTELEMETRY,
    &prometheus::PROMETHEUS,
    &server_info::SERVER_INFO,
    &skywalking::SKYWALKING,
    &statsd::STATSD,
    &zipkin::ZIPKIN,
];
