//! What is kept from an upstream that has too much to do, or fails.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use sigma_schema::id::Id;

/// How important requests are: who is refused first while the gateway runs out of resources (`load_shedding`).
/// The words are those of Google's SRE book.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PriorityClass {
    /// Never refused.
    CriticalPlus,
    /// Refused last.
    #[default]
    Critical,
    /// Refused before those that people wait for: batch jobs that cannot wait for long.
    SheddablePlus,
    /// Refused first: what is tried again later.
    Sheddable,
}

/// Requests that an upstream has at a time, in the whole process. One beyond them waits for a place, or is
/// answered 503.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("anyOf" = [{ "required": ["max_requests"] }, { "required": ["max_requests_per_node"] }]))]
pub struct RequestLimits {
    /// Most requests; each counts until the last byte of its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_requests: Option<u32>,
    /// Most requests that each node has. With HTTP/1 each takes a connection, so that it bounds the connections
    /// that are in use as well. A node that has so many is passed over; its sessions wait for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_requests_per_node: Option<u32>,
    /// Where requests wait for a place; unset: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<RequestQueue>,
    /// Refuse nothing, and count what would have been refused.
    #[serde(default)]
    pub dry_run: bool,
}

/// A queue in front of an upstream: first come, first served, within a priority.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestQueue {
    /// Most requests that wait.
    #[schemars(range(min = 1))]
    pub length: u32,
    /// Seconds that one waits.
    #[serde(default = "RequestQueue::one_second")]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 3600))]
    pub timeout: f64,
    /// A variable whose value is the priority of a request, an integer: lower ones go first. Without it, and
    /// for what is no integer, 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 256))]
    pub priority: Option<Box<str>>,
}

impl RequestQueue {
    fn one_second() -> f64 {
        1.0
    }
}

/// Stops asking an upstream that fails or is slow, and tries it again after a while. The window, the state
/// and the trials are those of the whole process. The fields are Resilience4j's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CircuitBreaker {
    /// Percent of failed requests from which on it opens.
    #[schemars(range(min = 1, max = 100))]
    pub failure_rate_threshold: f64,
    /// Percent of slow requests from which on it opens.
    #[schemars(range(min = 1, max = 100))]
    pub slow_call_rate_threshold: f64,
    /// Seconds from the last byte of a request to the head of its answer from which on it is slow; unset: none
    /// is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub slow_call_duration_threshold: Option<f64>,
    /// Statuses of a node's answer that are failures, beside all answers that did not come.
    #[schemars(inner(range(min = 100, max = 599)), extend("uniqueItems" = true))]
    pub failure_status_codes: Vec<u16>,
    /// Seconds that the rates are taken over.
    #[schemars(range(min = 1, max = 3600))]
    pub sliding_window: f64,
    /// Requests in the window below which nothing is judged.
    #[schemars(range(min = 1))]
    pub minimum_number_of_calls: u32,
    /// Seconds that it stays open.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 86400))]
    pub wait_duration_in_open_state: f64,
    /// Requests that try the upstream when that time is over; their rates decide.
    #[schemars(range(min = 1, max = 1000))]
    pub permitted_number_of_calls_in_half_open_state: u32,
    /// The answer while it is open; unset: 503.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
    /// Refuse nothing, and count what would have been refused.
    pub dry_run: bool,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        CircuitBreaker {
            failure_rate_threshold: 50.0,
            slow_call_rate_threshold: 100.0,
            slow_call_duration_threshold: None,
            failure_status_codes: vec![500, 502, 503, 504],
            sliding_window: 10.0,
            minimum_number_of_calls: 20,
            wait_duration_in_open_state: 10.0,
            permitted_number_of_calls_in_half_open_state: 5,
            fallback: None,
            dry_run: false,
        }
    }
}

/// What is served while a circuit breaker is open: another upstream, or a fixed answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [{ "required": ["upstream_id"] }, { "required": ["status"] }]))]
pub struct Fallback {
    /// Another upstream. Its own limits hold, its own fallback does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_id: Option<Id>,
    /// The status of a fixed answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 200, max = 599))]
    pub status: Option<u16>,
    /// Its body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 65536))]
    pub body: Option<Box<str>>,
    /// The media type of the body; unset: `text/plain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 256), regex(pattern = MEDIA_TYPE))]
    pub content_type: Option<Box<str>>,
}

/// Visible ASCII and spaces: nothing that ends a field.
const MEDIA_TYPE: &str = "^[!-~][ -~]*$";

/// Refuses requests at random when too few succeed, the more the fewer do (Envoy's admission control). Each
/// worker judges by its own requests. A status below 500 is a success.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdmissionControl {
    /// Seconds that the rate of success is taken over.
    #[schemars(range(min = 1, max = 3600))]
    pub sampling_window: u32,
    /// Percent of requests below which some are refused.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 100))]
    pub sr_threshold: f64,
    /// Above 1, refusals begin earlier.
    #[schemars(range(min = 1, max = 100))]
    pub aggression: f64,
    /// Requests per second of a worker below which none is refused.
    pub rps_threshold: u32,
    /// Percent of requests that are refused at most.
    #[schemars(range(min = 0, max = 100))]
    pub max_rejection_probability: f64,
    /// Refuse nothing, and count what would have been refused.
    pub dry_run: bool,
}

impl Default for AdmissionControl {
    fn default() -> Self {
        AdmissionControl {
            sampling_window: 30,
            sr_threshold: 95.0,
            aggression: 1.0,
            rps_threshold: 0,
            max_rejection_probability: 80.0,
            dry_run: false,
        }
    }
}

/// Finds out how many requests at a time an upstream serves without growing slower (Envoy's gradient). Each
/// worker has a limit of its own for its own requests; one beyond it is answered 503.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdaptiveConcurrency {
    /// The limit while the best latency is measured; it never falls below it.
    #[schemars(range(min = 1, max = 100_000))]
    pub min_concurrency: u32,
    /// The limit never rises above it.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_concurrency_limit: u32,
    /// Seconds after which the limit is looked at again.
    #[schemars(range(min = 0.01, max = 60))]
    pub concurrency_update_interval: f64,
    /// Seconds after which the best latency is measured again.
    #[schemars(range(min = 1, max = 86400))]
    pub min_rtt_interval: f64,
    /// Requests by which it is measured.
    #[schemars(range(min = 1, max = 10_000))]
    pub min_rtt_request_count: u32,
    /// Percent by which latency may be above the best.
    #[schemars(range(min = 0, max = 1000))]
    pub min_rtt_buffer: f64,
    /// The percentile of latencies that stands for an interval.
    #[schemars(range(min = 1, max = 100))]
    pub sample_aggregate_percentile: f64,
    /// Refuse nothing, and count what would have been refused.
    pub dry_run: bool,
}

impl Default for AdaptiveConcurrency {
    fn default() -> Self {
        AdaptiveConcurrency {
            min_concurrency: 3,
            max_concurrency_limit: 1000,
            concurrency_update_interval: 0.1,
            min_rtt_interval: 60.0,
            min_rtt_request_count: 50,
            min_rtt_buffer: 25.0,
            sample_aggregate_percentile: 50.0,
            dry_run: false,
        }
    }
}
