//! Settings of Nacos.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{RegistryAddress, RegistryTimeout};
use sigma_schema::Confidential;

/// Alibaba Nacos. The gateway subscribes to the services that upstreams name by gRPC (Nacos 2), and gets changes at
/// once. If gRPC is unavailable, it polls the HTTP API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nacos {
    /// Servers, `http://host:port` or `http://user:password@host:port`. They are tried in random order until one
    /// responds. With a user the gateway logs in.
    #[schemars(length(min = 1, max = 64))]
    pub host: Vec<RegistryAddress>,
    /// Path before `ns/instance/list`.
    #[serde(default = "prefix")]
    #[schemars(length(min = 1, max = 100))]
    pub prefix: String,
    /// Whether to subscribe to services.
    #[serde(default = "yes")]
    pub subscribe: bool,
    /// Offset of the gRPC port from the port in `host`.
    #[serde(default = "grpc_port_offset")]
    pub grpc_port_offset: u16,
    /// Seconds between requests without a subscription.
    #[serde(default = "fetch_interval")]
    #[schemars(range(min = 1))]
    pub fetch_interval: u32,
    /// Weight of instances without a weight.
    #[serde(default = "weight")]
    #[schemars(range(min = 1))]
    pub weight: u32,
    /// Timeouts.
    #[serde(default)]
    pub timeout: RegistryTimeout,
    /// The id of the key that signs requests (HMAC-SHA1); with `secret_key`.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub access_key: String,
    /// The key that signs requests.
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
