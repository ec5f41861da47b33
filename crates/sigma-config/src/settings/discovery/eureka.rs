//! Settings of Eureka.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RegistryAddress;

/// Netflix Eureka. It is polled, because it does not push changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Eureka {
    /// Servers, `http://host:port` or `http://user:password@host:port`. They are tried in random order until one
    /// responds.
    #[schemars(length(min = 1, max = 64))]
    pub host: Vec<RegistryAddress>,
    /// Path before `apps`, for example `/eureka/`.
    #[serde(default = "prefix")]
    #[schemars(length(min = 1, max = 256))]
    pub prefix: String,
    /// Seconds between requests.
    #[serde(default = "fetch_interval")]
    #[schemars(range(min = 1))]
    pub fetch_interval: u32,
    /// Weight of instances without `metadata.weight`.
    #[serde(default = "weight")]
    #[schemars(range(min = 0))]
    pub weight: u32,
    /// Timeouts.
    #[serde(default)]
    pub timeout: RegistryTimeout,
    /// Whether requests are for changes only. Each eleventh one is still for all instances. Eureka keeps changes for
    /// three minutes, so `fetch_interval` must be well below that.
    #[serde(default)]
    pub delta: bool,
}

/// Timeouts of registry calls in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RegistryTimeout {
    /// Connect timeout.
    #[schemars(range(min = 1))]
    pub connect: u32,
    /// Send timeout. It and `read` together limit a request and its response.
    #[schemars(range(min = 1))]
    pub send: u32,
    /// Response timeout.
    #[schemars(range(min = 1))]
    pub read: u32,
}

impl Default for RegistryTimeout {
    fn default() -> Self {
        RegistryTimeout { connect: 2_000, send: 2_000, read: 5_000 }
    }
}

fn prefix() -> String {
    "/eureka/".to_owned()
}

fn fetch_interval() -> u32 {
    30
}

fn weight() -> u32 {
    100
}
