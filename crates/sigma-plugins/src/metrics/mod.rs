//! Numbers about the traffic, for monitoring systems.

mod prometheus;

pub(crate) use prometheus::{PROMETHEUS, matched_uri};
