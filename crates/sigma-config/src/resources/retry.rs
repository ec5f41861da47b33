//! Retries and deadlines.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use sigma_schema::forms::MethodName;

/// The attempts on a node that are followed by another one. It replaces the default rule: retry a failed connection,
/// and a request of an idempotent method without a response.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// The conditions; one is enough.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("uniqueItems" = true))]
    pub retry_on: Vec<RetryOn>,
    /// Response statuses that are also a condition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(range(min = 300, max = 599)), extend("uniqueItems" = true))]
    pub retriable_status_codes: Vec<u16>,
    /// Response header fields that are also a condition, with any value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1, max = 256), regex(pattern = FIELD_NAME)))]
    pub retriable_headers: Vec<String>,
    /// Methods of requests that may be repeated although a node may have received them; unset: the idempotent methods
    /// (RFC 9110 §9.2.2). A request that no node has received is always repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<MethodName>", length(min = 1), extend("uniqueItems" = true))]
    pub methods: Option<Vec<String>>,
    /// Timeout of one attempt in seconds, from connecting to the response head; unset: only `timeout` applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub per_try_timeout: Option<f64>,
    /// The pause before another attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_off: Option<BackOff>,
    /// Maximum `Retry-After` in seconds to wait for. A response with a longer one goes to the client. The same applies
    /// to `grpc-retry-pushback-ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 300))]
    pub max_retry_after: Option<f64>,
    /// Maximum number of concurrent retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<RetryBudget>,
    /// A second attempt while the first one still waits. The first response is served, and the other attempt is
    /// cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hedging: Option<Hedging>,
}

/// The name of a header field (RFC 9110 §5.1).
const FIELD_NAME: &str = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$";

/// A retry condition in Envoy's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RetryOn {
    /// The connection, including TLS, was refused or timed out.
    ConnectFailure,
    /// No response: the connection broke, or a timeout passed.
    Reset,
    /// The connection broke before the first byte of the request was sent, or the node refused the stream.
    ResetBeforeRequest,
    /// The node refused the HTTP/2 stream.
    RefusedStream,
    /// No response, no connection, or a response of 500 to 599.
    #[serde(rename = "5xx")]
    ServerError,
    /// A response of 502, 503 or 504.
    GatewayError,
    /// A response of 409.
    #[serde(rename = "retriable-4xx")]
    RetriableClientError,
    /// `grpc-status: 1` in the response head.
    Cancelled,
    /// `grpc-status: 4` in the response head.
    DeadlineExceeded,
    /// `grpc-status: 13` in the response head.
    Internal,
    /// `grpc-status: 8` in the response head.
    ResourceExhausted,
    /// `grpc-status: 14` in the response head.
    Unavailable,
}

/// The pause before attempt N + 1 is a random time between 0 and `base_interval` × (2^N − 1), at most
/// `max_interval`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackOff {
    /// The base in seconds.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 60))]
    pub base_interval: f64,
    /// The maximum in seconds; unset: ten times the base.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 300))]
    pub max_interval: Option<f64>,
}

impl Default for BackOff {
    fn default() -> Self {
        BackOff { base_interval: 0.025, max_interval: None }
    }
}

/// Maximum number of concurrent retries per worker: a share of its open requests to the upstream, or `min_concurrency`
/// if that is more.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryBudget {
    /// Percentage of the open requests.
    #[schemars(range(min = 0, max = 100))]
    pub percent: f64,
    /// Number of retries that are always allowed.
    pub min_concurrency: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        RetryBudget { percent: 20.0, min_concurrency: 3 }
    }
}

/// Hedging: a request is sent to a second node once, if it has no body and its method may be repeated, within `retries`
/// and the budget.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hedging {
    /// Seconds without a response until the second attempt.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 3600))]
    pub delay: f64,
    /// Use this percentile of recent response times instead, measured by each worker. `delay` is the minimum, and the
    /// value until there are enough responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 50, max = 99.9))]
    pub percentile: Option<f64>,
}

/// The deadline of a whole exchange: all attempts and the pauses between them. A shorter deadline of the client
/// (`grpc-timeout`, or `header`) has precedence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExchangeDeadline {
    /// Seconds from the moment when the request is ready to be sent to a node.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub timeout: f64,
    /// A header field with milliseconds: clients can shorten the deadline with it, and nodes get the remaining time in
    /// it. gRPC calls use `grpc-timeout` for both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 256), regex(pattern = FIELD_NAME))]
    pub header: Option<Box<str>>,
}
