//! Kafka, for the plugins that speak to its brokers: where partitions are, logging in, and records. Everything that waits
//! here does so on the control thread.

pub(crate) mod cluster;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
pub(crate) mod records;
pub(crate) mod sasl;
pub(crate) mod wire;

/// The longest name that a topic has.
const LONGEST_TOPIC: usize = 249;

/// Whether a topic may have this name.
pub(crate) fn is_topic(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !name.is_empty() && name.len() <= LONGEST_TOPIC && name.chars().all(is_part)
}
