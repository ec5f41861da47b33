//! Settings of Eureka.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RegistryAddress;

/// Netflix' Eureka. It is asked at intervals: it tells nothing by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Eureka {
    /// Servers, `http://host:port` or `http://user:password@host:port`; asked in random order until one
    /// answers.
    #[schemars(length(min = 1, max = 64))]
    pub host: Vec<RegistryAddress>,
    /// Path before `apps`, for example `/eureka/`.
    #[serde(default = "prefix")]
    #[schemars(length(min = 1, max = 256))]
    pub prefix: String,
    /// Seconds between questions.
    #[serde(default = "fetch_interval")]
    #[schemars(range(min = 1))]
    pub fetch_interval: u32,
    /// Weight of instances that name none in `metadata.weight`.
    #[serde(default = "weight")]
    #[schemars(range(min = 0))]
    pub weight: u32,
    /// Timeouts.
    #[serde(default)]
    pub timeout: RegistryTimeout,
    /// Whether only changes are asked for, but for each eleventh time. Eureka remembers them for three
    /// minutes, so that `fetch_interval` must be well below.
    #[serde(default)]
    pub delta: bool,
}

/// How long a registry may take, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RegistryTimeout {
    /// To connect.
    #[schemars(range(min = 1))]
    pub connect: u32,
    /// To take a question; it and `read` together bound a question and its answer.
    #[schemars(range(min = 1))]
    pub send: u32,
    /// To answer.
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
