//! Outlier detection of an upstream: nodes are judged by the results of requests and compared with each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The treatment of open sessions whose node becomes unhealthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnUnhealthy {
    /// They continue.
    Keep,
    /// They are closed, so that clients use another node. A request that may be repeated goes to another one.
    Close,
}

/// Outlier detection in Envoy's terms: nodes are judged by real requests. An outlier is ejected: it gets no requests
/// until its ejection time has ended. Each `enforcing_…` is the chance, in percent, that a node found by its rule is
/// ejected; 0 disables the rule. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OutlierDetection {
    /// Consecutive responses of 500 and above, and failed attempts, that make a node an outlier.
    #[schemars(range(min = 1))]
    pub consecutive_5xx: u32,
    /// Chance of an ejection by `consecutive_5xx`.
    #[schemars(range(max = 100))]
    pub enforcing_consecutive_5xx: u8,
    /// Consecutive responses of 502, 503 and 504, and failed attempts, that make a node an outlier.
    #[schemars(range(min = 1))]
    pub consecutive_gateway_failure: u32,
    /// Chance of an ejection by `consecutive_gateway_failure`.
    #[schemars(range(max = 100))]
    pub enforcing_consecutive_gateway_failure: u8,
    /// Whether failed connections (refused, reset, timed out) have separate rules and no longer count as responses of
    /// 502.
    pub split_external_local_origin_errors: bool,
    /// Consecutive failed attempts that make a node an outlier; with `split_external_local_origin_errors`.
    #[schemars(range(min = 1))]
    pub consecutive_local_origin_failure: u32,
    /// Chance of an ejection by `consecutive_local_origin_failure`.
    #[schemars(range(max = 100))]
    pub enforcing_consecutive_local_origin_failure: u8,
    /// Seconds between two sweeps, which compare the nodes.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 86_400))]
    pub interval: f64,
    /// Ejection time in seconds, multiplied by the number of the node's ejections. The number falls by one with each
    /// sweep in which the node is in use.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 86_400))]
    pub base_ejection_time: f64,
    /// Maximum ejection time in seconds; unset: 300, or `base_ejection_time` if that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 604_800))]
    pub max_ejection_time: Option<f64>,
    /// Maximum random addition to each ejection time in seconds, so that nodes do not return together.
    #[schemars(range(min = 0, max = 86_400))]
    pub max_ejection_time_jitter: f64,
    /// No node is ejected while this percentage of the nodes is out for any reason. One node may always be out.
    #[schemars(range(max = 100))]
    pub max_ejection_percent: u8,
    /// Minimum number of nodes with enough requests for a comparison of success rates.
    #[schemars(range(min = 1))]
    pub success_rate_minimum_hosts: u32,
    /// Minimum number of requests to a node between two sweeps for the comparison of success rates.
    #[schemars(range(min = 1))]
    pub success_rate_request_volume: u32,
    /// A node is an outlier if its success rate is below the mean by more than this many thousandths of the standard
    /// deviation.
    pub success_rate_stdev_factor: u32,
    /// Chance of an ejection by the success rate.
    #[schemars(range(max = 100))]
    pub enforcing_success_rate: u8,
    /// Chance of an ejection by the success rate of connections; with `split_external_local_origin_errors`.
    #[schemars(range(max = 100))]
    pub enforcing_local_origin_success_rate: u8,
    /// A node is an outlier if this percentage of its requests between two sweeps fails.
    #[schemars(range(min = 1, max = 100))]
    pub failure_percentage_threshold: u8,
    /// Minimum number of nodes with enough requests for this rule.
    #[schemars(range(min = 1))]
    pub failure_percentage_minimum_hosts: u32,
    /// Minimum number of requests to a node between two sweeps for this rule.
    #[schemars(range(min = 1))]
    pub failure_percentage_request_volume: u32,
    /// Chance of an ejection by the failure percentage.
    #[schemars(range(max = 100))]
    pub enforcing_failure_percentage: u8,
    /// Chance of an ejection by the percentage of failed connections; with `split_external_local_origin_errors`.
    #[schemars(range(max = 100))]
    pub enforcing_failure_percentage_local_origin: u8,
}

impl Default for OutlierDetection {
    fn default() -> Self {
        OutlierDetection {
            consecutive_5xx: 5,
            enforcing_consecutive_5xx: 100,
            consecutive_gateway_failure: 5,
            enforcing_consecutive_gateway_failure: 0,
            split_external_local_origin_errors: false,
            consecutive_local_origin_failure: 5,
            enforcing_consecutive_local_origin_failure: 100,
            interval: 10.0,
            base_ejection_time: 30.0,
            max_ejection_time: None,
            max_ejection_time_jitter: 0.0,
            max_ejection_percent: 10,
            success_rate_minimum_hosts: 5,
            success_rate_request_volume: 100,
            success_rate_stdev_factor: 1900,
            enforcing_success_rate: 100,
            enforcing_local_origin_success_rate: 100,
            failure_percentage_threshold: 85,
            failure_percentage_minimum_hosts: 5,
            failure_percentage_request_volume: 50,
            enforcing_failure_percentage: 0,
            enforcing_failure_percentage_local_origin: 0,
        }
    }
}
