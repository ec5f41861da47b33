//! Who is told when a node goes out or comes back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who is told, beside the error log, when a checked node goes out or comes back. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HealthEvents {
    /// A service that is told by HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
}

/// A service that is told by `POST` with a JSON object: `events` is a list of what has happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// Where it is.
    #[schemars(regex(pattern = "^https?://[^/]"))]
    pub url: String,
    /// How long one call may take.
    #[serde(default = "five_seconds")]
    #[schemars(range(min = 1))]
    pub timeout_ms: u32,
    /// How often a call is repeated that has failed or was answered by another status than 200 to 299.
    #[serde(default = "three")]
    #[schemars(range(max = 100))]
    pub retries: u32,
    /// The pause before the first repetition; each further one is twice as long, up to a minute.
    #[serde(default = "one_second")]
    #[schemars(range(min = 1))]
    pub retry_delay_ms: u32,
    /// Events that may wait for the service; what is more is dropped, and the error log says so.
    #[serde(default = "thousand")]
    #[schemars(range(min = 1, max = 100_000))]
    pub queue: u32,
}

fn five_seconds() -> u32 {
    5_000
}

fn one_second() -> u32 {
    1_000
}

fn three() -> u32 {
    3
}

fn thousand() -> u32 {
    1_000
}
