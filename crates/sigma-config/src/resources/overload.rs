//! Overload protection of upstreams.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use sigma_schema::id::Id;

/// The importance of requests, which decides the order of refusals while the gateway runs out of resources
/// (`load_shedding`). The names are from Google's SRE book.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PriorityClass {
    /// Never refused.
    CriticalPlus,
    /// Refused last.
    #[default]
    Critical,
    /// Refused before interactive requests: batch jobs that cannot wait for long.
    SheddablePlus,
    /// Refused first: requests that are retried later.
    Sheddable,
}

/// Limits on concurrent requests to an upstream, in the whole process. A further request waits in the queue, or gets
/// 503.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("anyOf" = [{ "required": ["max_requests"] }, { "required": ["max_requests_per_node"] }]))]
pub struct RequestLimits {
    /// Maximum number of requests; each counts until the last byte of its response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_requests: Option<u32>,
    /// Maximum number of requests per node. With HTTP/1 each request takes a connection, so this also limits the
    /// connections in use. A node at its limit is skipped; requests of its sessions wait for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_requests_per_node: Option<u32>,
    /// The queue for further requests; unset: no queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<RequestQueue>,
    /// Refuse nothing, only count the requests that would be refused.
    #[serde(default)]
    pub dry_run: bool,
}

/// The queue of an upstream: first come, first served, within a priority.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestQueue {
    /// Maximum number of waiting requests.
    #[schemars(range(min = 1))]
    pub length: u32,
    /// Maximum wait in seconds.
    #[serde(default = "RequestQueue::one_second")]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 3600))]
    pub timeout: f64,
    /// A variable with the priority of a request, an integer: lower values go first. Unset, or not an integer: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 256))]
    pub priority: Option<Box<str>>,
}

impl RequestQueue {
    fn one_second() -> f64 {
        1.0
    }
}

/// A circuit breaker: stops requests to an upstream that fails or is slow, and tries it again after a while. Window,
/// state and trial requests are shared by the whole process. The fields are Resilience4j's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CircuitBreaker {
    /// Percentage of failed requests at which it opens.
    #[schemars(range(min = 1, max = 100))]
    pub failure_rate_threshold: f64,
    /// Percentage of slow requests at which it opens.
    #[schemars(range(min = 1, max = 100))]
    pub slow_call_rate_threshold: f64,
    /// Seconds from the last byte of a request to the response head at which the request is slow; unset: no request is
    /// slow.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub slow_call_duration_threshold: Option<f64>,
    /// Response statuses that count as failures, besides missing responses.
    #[schemars(inner(range(min = 100, max = 599)), extend("uniqueItems" = true))]
    pub failure_status_codes: Vec<u16>,
    /// Length of the window in seconds.
    #[schemars(range(min = 1, max = 3600))]
    pub sliding_window: f64,
    /// Minimum number of requests in the window.
    #[schemars(range(min = 1))]
    pub minimum_number_of_calls: u32,
    /// Seconds that it stays open.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 86400))]
    pub wait_duration_in_open_state: f64,
    /// Number of trial requests after that time; their rates decide.
    #[schemars(range(min = 1, max = 1000))]
    pub permitted_number_of_calls_in_half_open_state: u32,
    /// The response while it is open; unset: 503.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
    /// Refuse nothing, only count the requests that would be refused.
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

/// The response while a circuit breaker is open: of another upstream, or a fixed response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [{ "required": ["upstream_id"] }, { "required": ["status"] }]))]
pub struct Fallback {
    /// Another upstream. Its limits apply, its own fallback does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_id: Option<Id>,
    /// The status of a fixed response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 200, max = 599))]
    pub status: Option<u16>,
    /// The body of a fixed response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 65536))]
    pub body: Option<Box<str>>,
    /// The media type of the body; unset: `text/plain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 256), regex(pattern = MEDIA_TYPE))]
    pub content_type: Option<Box<str>>,
}

/// Visible ASCII and spaces, so that the text cannot end the header field.
const MEDIA_TYPE: &str = "^[!-~][ -~]*$";

/// Admission control as in Envoy: refuses requests at random if too few succeed; the lower the success rate, the more.
/// Each worker uses its own requests. A status below 500 is a success.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdmissionControl {
    /// Length of the window in seconds.
    #[schemars(range(min = 1, max = 3600))]
    pub sampling_window: u32,
    /// Success rate in percent below which requests are refused.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 100))]
    pub sr_threshold: f64,
    /// A value above 1 starts refusals earlier.
    #[schemars(range(min = 1, max = 100))]
    pub aggression: f64,
    /// Requests per second of a worker below which no request is refused.
    pub rps_threshold: u32,
    /// Maximum percentage of refused requests.
    #[schemars(range(min = 0, max = 100))]
    pub max_rejection_probability: f64,
    /// Refuse nothing, only count the requests that would be refused.
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

/// Finds the number of concurrent requests that an upstream serves without a higher latency (Envoy's gradient). Each
/// worker has its own limit for its own requests; a further request gets 503.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdaptiveConcurrency {
    /// The minimum of the limit, and the limit while the best latency is measured.
    #[schemars(range(min = 1, max = 100_000))]
    pub min_concurrency: u32,
    /// The maximum of the limit.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_concurrency_limit: u32,
    /// Seconds between two updates of the limit.
    #[schemars(range(min = 0.01, max = 60))]
    pub concurrency_update_interval: f64,
    /// Seconds between two measurements of the best latency.
    #[schemars(range(min = 1, max = 86400))]
    pub min_rtt_interval: f64,
    /// Number of requests in a measurement.
    #[schemars(range(min = 1, max = 10_000))]
    pub min_rtt_request_count: u32,
    /// Allowed latency above the best one, in percent.
    #[schemars(range(min = 0, max = 1000))]
    pub min_rtt_buffer: f64,
    /// The percentile of latencies that represents an interval.
    #[schemars(range(min = 1, max = 100))]
    pub sample_aggregate_percentile: f64,
    /// Refuse nothing, only count the requests that would be refused.
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
