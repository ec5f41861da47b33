//! Settings of Nacos.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{RegistryAddress, RegistryTimeout};
use sigma_schema::Confidential;

/// Alibaba's Nacos. The services that upstreams name are subscribed to by gRPC, as Nacos 2 offers it, and
/// their changes come at once. Where that cannot be had they are asked for at intervals, by the HTTP API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nacos {
    /// Servers, `http://host:port` or `http://user:password@host:port`; asked in random order until one
    /// answers. With a user the gateway logs in.
    #[schemars(length(min = 1, max = 64))]
    pub host: Vec<RegistryAddress>,
    /// Path before `ns/instance/list`.
    #[serde(default = "prefix")]
    #[schemars(length(min = 1, max = 100))]
    pub prefix: String,
    /// Whether services are subscribed to.
    #[serde(default = "yes")]
    pub subscribe: bool,
    /// How much higher than the port in `host` that for gRPC is.
    #[serde(default = "grpc_port_offset")]
    pub grpc_port_offset: u16,
    /// Seconds between questions, where nothing is pushed.
    #[serde(default = "fetch_interval")]
    #[schemars(range(min = 1))]
    pub fetch_interval: u32,
    /// Weight of instances that name none.
    #[serde(default = "weight")]
    #[schemars(range(min = 1))]
    pub weight: u32,
    /// Timeouts.
    #[serde(default)]
    pub timeout: RegistryTimeout,
    /// The key's name with which questions are signed (HMAC-SHA1); with `secret_key`.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub access_key: String,
    /// The key with which questions are signed.
    #[serde(default)]
    pub secret_key: Confidential,
}

fn prefix() -> String {
    "/nacos/v1/".to_owned()
}

fn yes() -> bool {
    true
}

fn grpc_port_offset() -> u16 {
    1000
}

fn fetch_interval() -> u32 {
    30
}

fn weight() -> u32 {
    100
}
