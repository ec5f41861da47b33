//! Numbers about the traffic, for monitoring systems.

mod agent;
mod datadog;
mod node_status;
mod prometheus;
mod server_info;
mod statsd;

pub(crate) use datadog::DATADOG;
pub(crate) use node_status::NODE_STATUS;
pub(crate) use prometheus::{PROMETHEUS, matched_uri};
pub(crate) use server_info::SERVER_INFO;
pub(crate) use statsd::STATSD;
