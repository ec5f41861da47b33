//! Health checks of an upstream.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use sigma_schema::described::without_defaults;

/// Health checks: at least one of the three types.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(
    deny_unknown_fields,
    extend("anyOf" = [{ "required": ["active"] }, { "required": ["passive"] }, { "required": ["agent"] }])
)]
pub struct Checks {
    /// Active checks: probes that the gateway sends; unset: off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<Active>,
    /// Passive checks: judge nodes by their responses to real requests; unset: off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passive: Option<Passive>,
    /// Agent checks: ask an agent on each node for its weight and state; unset: off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
}

/// The protocol of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckType {
    /// An HTTP request.
    #[default]
    Http,
    /// An HTTP request over TLS.
    Https,
    /// A TCP connection only.
    Tcp,
    /// A call of the gRPC health service (`grpc.health.v1`), in cleartext.
    Grpc,
    /// A call of the gRPC health service over TLS.
    Grpcs,
}

/// The signals of passive checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PassiveType {
    /// Connections and response statuses.
    #[default]
    Http,
    /// Connections and response statuses.
    Https,
    /// Connections only.
    Tcp,
}

/// Active checks: probes that the gateway sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Active {
    /// The protocol of a probe.
    #[serde(rename = "type")]
    pub kind: CheckType,
    /// Timeout of a probe in seconds.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub timeout: f64,
    /// Maximum number of concurrent probes.
    #[schemars(range(min = 1))]
    pub concurrency: u32,
    /// Host header of a probe; unset: the node's host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<sigma_schema::forms::HostPattern>")]
    pub host: Option<String>,
    /// Port to probe; unset: the port of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// The service name in a probe of `type: grpc`; empty: the whole server.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub grpc_service: Option<String>,
    /// Method of a probe.
    #[schemars(with = "sigma_schema::forms::MethodName")]
    pub http_method: String,
    /// Path of a probe.
    pub http_path: String,
    /// Body of a probe; a non-empty one adds Content-Length.
    pub http_req_body: String,
    /// A text that the first 64 KiB of a successful response body must contain; unset: the body is not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub http_expected_body: Option<String>,
    /// With `https` and `grpcs`: whether the certificate of a node must be valid.
    pub https_verify_certificate: bool,
    /// Additional header lines of a probe, each `Name: value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    pub req_headers: Vec<String>,
    /// Random addition to each interval, up to this percentage, so that probes of many gateways and nodes are spread
    /// out.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(max = 100))]
    pub interval_jitter_percent: u8,
    /// Seconds between probes of a node whose state is about to change, after the first probe with another result;
    /// unset: the interval of its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub fast_interval: Option<f64>,
    /// Seconds between probes of healthy nodes when the upstream had no request for this long; unset: the normal
    /// interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub no_traffic_interval: Option<u32>,
    /// When a node becomes healthy; unset: healthy nodes are not probed (interval 0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthy: Option<ActiveHealthy>,
    /// When a node becomes unhealthy; unset: unhealthy nodes are not probed (interval 0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhealthy: Option<ActiveUnhealthy>,
}

impl Default for Active {
    fn default() -> Self {
        Active {
            kind: CheckType::Http,
            timeout: 1.0,
            concurrency: 10,
            host: None,
            port: None,
            grpc_service: None,
            http_method: "GET".into(),
            http_path: "/".into(),
            http_req_body: String::new(),
            http_expected_body: None,
            https_verify_certificate: true,
            req_headers: Vec::new(),
            interval_jitter_percent: 0,
            fast_interval: None,
            no_traffic_interval: None,
            healthy: None,
            unhealthy: None,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(n: &u8) -> bool {
    *n == 0
}

impl Active {
    /// Returns the thresholds for becoming healthy: as written, or the defaults with interval 0, which means that nodes
    /// in this state are not probed.
    #[must_use]
    pub fn healthy(&self) -> ActiveHealthy {
        self.healthy.clone().unwrap_or(ActiveHealthy { interval: 0, ..ActiveHealthy::default() })
    }

    /// Returns the thresholds for becoming unhealthy, with the same rule.
    #[must_use]
    pub fn unhealthy(&self) -> ActiveUnhealthy {
        self.unhealthy.clone().unwrap_or(ActiveUnhealthy { interval: 0, ..ActiveUnhealthy::default() })
    }
}

/// When probes make a node healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ActiveHealthy {
    /// Seconds between probes of a healthy node.
    #[schemars(range(min = 1))]
    pub interval: u32,
    /// Statuses that count as success.
    #[schemars(length(min = 1), inner(range(min = 200, max = 599)), extend("uniqueItems" = true))]
    pub http_statuses: Vec<u16>,
    /// Consecutive successes that make a node healthy.
    #[schemars(range(min = 1, max = 254))]
    pub successes: u8,
}

impl Default for ActiveHealthy {
    fn default() -> Self {
        ActiveHealthy { interval: 1, http_statuses: vec![200, 302], successes: 2 }
    }
}

/// When probes make a node unhealthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ActiveUnhealthy {
    /// Seconds between probes of an unhealthy node.
    #[schemars(range(min = 1))]
    pub interval: u32,
    /// Statuses that count as a failure.
    #[schemars(length(min = 1), inner(range(min = 200, max = 599)), extend("uniqueItems" = true))]
    pub http_statuses: Vec<u16>,
    /// HTTP failures that make a node unhealthy.
    #[schemars(range(min = 1, max = 254))]
    pub http_failures: u8,
    /// Connection failures that make a node unhealthy.
    #[schemars(range(min = 1, max = 254))]
    pub tcp_failures: u8,
    /// Timeouts that make a node unhealthy.
    #[schemars(range(min = 1, max = 254))]
    pub timeouts: u8,
}

impl Default for ActiveUnhealthy {
    fn default() -> Self {
        ActiveUnhealthy {
            interval: 1,
            http_statuses: vec![429, 404, 500, 501, 502, 503, 504, 505],
            http_failures: 5,
            tcp_failures: 2,
            timeouts: 3,
        }
    }
}

/// Passive checks: nodes are judged by their responses to real requests.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = without_defaults("healthy unhealthy"))]
pub struct Passive {
    /// Whether responses are judged, or only connections.
    #[serde(rename = "type")]
    pub kind: PassiveType,
    /// Seconds after which an unhealthy node gets requests again, if no active check probes it. The first failure then
    /// makes it unhealthy again. Unset: 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 86_400))]
    pub fail_timeout: Option<f64>,
    /// When a node becomes healthy again.
    pub healthy: PassiveHealthy,
    /// When a node becomes unhealthy.
    pub unhealthy: PassiveUnhealthy,
}

/// When responses make a node healthy. A threshold of 0 disables its counter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PassiveHealthy {
    /// Statuses that count as success.
    #[schemars(length(min = 1), inner(range(min = 200, max = 599)), extend("uniqueItems" = true))]
    pub http_statuses: Vec<u16>,
    /// Consecutive successes that make a node healthy.
    #[schemars(range(min = 0, max = 254))]
    pub successes: u8,
}

impl Default for PassiveHealthy {
    fn default() -> Self {
        let http_statuses = (200..=208).chain([226]).chain(300..=308).collect();
        PassiveHealthy { http_statuses, successes: 5 }
    }
}

/// When responses make a node unhealthy. A threshold of 0 disables its counter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PassiveUnhealthy {
    /// Statuses that count as a failure.
    #[schemars(length(min = 1), inner(range(min = 200, max = 599)), extend("uniqueItems" = true))]
    pub http_statuses: Vec<u16>,
    /// Connection failures that make a node unhealthy.
    #[schemars(range(min = 0, max = 254))]
    pub tcp_failures: u8,
    /// Timeouts that make a node unhealthy.
    #[schemars(range(min = 0, max = 254))]
    pub timeouts: u8,
    /// HTTP failures that make a node unhealthy.
    #[schemars(range(min = 0, max = 254))]
    pub http_failures: u8,
}

impl Default for PassiveUnhealthy {
    fn default() -> Self {
        PassiveUnhealthy {
            http_statuses: vec![429, 500, 503],
            tcp_failures: 2,
            timeouts: 7,
            http_failures: 5,
        }
    }
}

/// Agent checks: ask an agent on each node, in the format of HAProxy's agent-check. It sends one line such as `75%`,
/// `weight:30`, `drain`, `maint`, `ready`, `up`, `down`, or `maxconn:30`, which replaces
/// `limits.max_requests_per_node`. An unreachable agent changes nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Agent {
    /// Port of the agent, on the address of the node.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// Seconds between two calls.
    #[serde(default = "two_seconds")]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 86_400))]
    pub interval: f64,
    /// Timeout of one call in seconds.
    #[serde(default = "one_second")]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 3600))]
    pub timeout: f64,
    /// Text that is sent first, including a line end if the agent needs one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub send: String,
}

fn two_seconds() -> f64 {
    2.0
}

fn one_second() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_section_is_not_probed_and_a_present_one_is() {
        let checks: Checks = serde_json::from_str(r#"{"active": {"healthy": {}}}"#).unwrap();
        let active = checks.active.unwrap();
        assert_eq!(active.healthy().interval, 1);
        assert_eq!(active.unhealthy().interval, 0);
        assert_eq!(active.unhealthy().timeouts, 3);
        assert!(checks.passive.is_none() && checks.agent.is_none());
        let alone: Checks = serde_json::from_str(r#"{"passive": {}}"#).unwrap();
        assert!(alone.active.is_none() && alone.passive.is_some());
    }
}
