//! Kafka, for the plugins that use its brokers: places of partitions, authentication, and records. Everything that
//! waits here does so on the control thread.

pub mod cluster;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod records;
pub mod sasl;
pub mod wire;

/// The longest name that a topic has.
const LONGEST_TOPIC: usize = 249;

/// Returns true if this is a valid name of a topic.
pub fn is_topic(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !name.is_empty() && name.len() <= LONGEST_TOPIC && name.chars().all(is_part)
}
