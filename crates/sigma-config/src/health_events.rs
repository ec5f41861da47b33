//! Notifications when a node becomes unhealthy or healthy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Notifications, besides the error log, when a checked node becomes unhealthy or healthy. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HealthEvents {
    /// A service that gets notifications over HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
}

/// A webhook: a `POST` request with a JSON object whose `events` is a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// The URL.
    #[schemars(regex(pattern = "^https?://[^/]"))]
    pub url: String,
    /// Timeout of one call in milliseconds.
    #[serde(default = "five_seconds")]
    #[schemars(range(min = 1))]
    pub timeout_ms: u32,
    /// How often a failed call is repeated; a status other than 200 to 299 is a failure.
    #[serde(default = "three")]
    #[schemars(range(max = 100))]
    pub retries: u32,
    /// Pause before the first retry in milliseconds; it doubles with each further retry, up to a minute.
    #[serde(default = "one_second")]
    #[schemars(range(min = 1))]
    pub retry_delay_ms: u32,
    /// Maximum number of queued events; further events are dropped and logged.
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
