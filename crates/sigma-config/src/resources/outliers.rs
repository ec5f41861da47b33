//! Outlier detection of an upstream: nodes are judged by what requests see of them, and compared with
//! each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What becomes of open sessions whose node goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnUnhealthy {
    /// They go on.
    Keep,
    /// They are closed, so that clients use another node. A request that may be repeated goes to another one.
    Close,
}

/// Judging nodes by real requests, in Envoy's terms. A node that stands out is ejected: it gets no
/// requests until its time is over. Each `enforcing_…` is the chance, in percent, that a node which a
/// rule has found is really ejected; 0 turns the rule off. Fields: seconds unless they say otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OutlierDetection {
    /// Answers of 500 and above in a row, and failed attempts, after which a node is found.
    #[schemars(range(min = 1))]
    pub consecutive_5xx: u32,
    /// Chance of an ejection by `consecutive_5xx`.
    #[schemars(range(max = 100))]
    pub enforcing_consecutive_5xx: u8,
    /// Answers of 502, 503 and 504 in a row, and failed attempts, after which a node is found.
    #[schemars(range(min = 1))]
    pub consecutive_gateway_failure: u32,
    /// Chance of an ejection by `consecutive_gateway_failure`.
    #[schemars(range(max = 100))]
    pub enforcing_consecutive_gateway_failure: u8,
    /// Whether attempts that failed on the connection (refused, reset, timed out) are judged by rules of
    /// their own, and no longer count as answers of 502.
    pub split_external_local_origin_errors: bool,
    /// Failed attempts in a row after which a node is found; with `split_external_local_origin_errors`.
    #[schemars(range(min = 1))]
    pub consecutive_local_origin_failure: u32,
    /// Chance of an ejection by `consecutive_local_origin_failure`.
    #[schemars(range(max = 100))]
    pub enforcing_consecutive_local_origin_failure: u8,
    /// Time between two sweeps, which compare the nodes.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 86_400))]
    pub interval: f64,
    /// How long a node is out, times the number of its ejections. The number falls by one with each sweep
    /// that finds the node in use.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 86_400))]
    pub base_ejection_time: f64,
    /// The longest time that a node is out; unset: 300, or `base_ejection_time` if that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 604_800))]
    pub max_ejection_time: Option<f64>,
    /// A random time up to this is added to each ejection, so that nodes do not come back together.
    #[schemars(range(min = 0, max = 86_400))]
    pub max_ejection_time_jitter: f64,
    /// No node is ejected while so large a part of the nodes, in percent, is out for whatever reason. One
    /// node may be out in any case.
    #[schemars(range(max = 100))]
    pub max_ejection_percent: u8,
    /// Nodes with enough requests that a comparison of success rates needs.
    #[schemars(range(min = 1))]
    pub success_rate_minimum_hosts: u32,
    /// Requests to a node between two sweeps from which on it takes part in the comparison.
    #[schemars(range(min = 1))]
    pub success_rate_request_volume: u32,
    /// A node is found whose success rate is below the mean by more than so many thousandths of the
    /// standard deviation.
    pub success_rate_stdev_factor: u32,
    /// Chance of an ejection by the success rate.
    #[schemars(range(max = 100))]
    pub enforcing_success_rate: u8,
    /// Chance of an ejection by the success rate of connecting; with `split_external_local_origin_errors`.
    #[schemars(range(max = 100))]
    pub enforcing_local_origin_success_rate: u8,
    /// A node is found that fails so many percent of its requests between two sweeps.
    #[schemars(range(min = 1, max = 100))]
    pub failure_percentage_threshold: u8,
    /// Nodes with enough requests that this rule needs.
    #[schemars(range(min = 1))]
    pub failure_percentage_minimum_hosts: u32,
    /// Requests to a node between two sweeps from which on its percentage counts.
    #[schemars(range(min = 1))]
    pub failure_percentage_request_volume: u32,
    /// Chance of an ejection by the failure percentage.
    #[schemars(range(max = 100))]
    pub enforcing_failure_percentage: u8,
    /// Chance of an ejection by the percentage of attempts that failed on the connection; with
    /// `split_external_local_origin_errors`.
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
