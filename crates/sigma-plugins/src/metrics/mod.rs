//! Numbers about the traffic, for monitoring systems.

mod datadog;
mod prometheus;

pub(crate) use datadog::DATADOG;
pub(crate) use prometheus::{PROMETHEUS, matched_uri};
