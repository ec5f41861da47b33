//! What is sent again, and how much time an exchange has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use sigma_schema::forms::MethodName;

/// Which attempts on a node are followed by another one. It takes the place of the rule that holds
/// without it: a failed connection, and a request of an idempotent method that got no answer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// The conditions, each of which is enough.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("uniqueItems" = true))]
    pub retry_on: Vec<RetryOn>,
    /// Statuses of an answer that are a condition too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(range(min = 300, max = 599)), extend("uniqueItems" = true))]
    pub retriable_status_codes: Vec<u16>,
    /// Header fields of an answer that are a condition too, whatever their value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1, max = 256), regex(pattern = FIELD_NAME)))]
    pub retriable_headers: Vec<String>,
    /// Methods of requests that may be sent again although a node may have seen them; unset: the idempotent
    /// ones (RFC 9110 §9.2.2). What no node has seen is sent again in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<MethodName>", length(min = 1), extend("uniqueItems" = true))]
    pub methods: Option<Vec<String>>,
    /// Seconds that one attempt has until the head of its answer has come, connecting included; unset: as long
    /// as `timeout` lets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub per_try_timeout: Option<f64>,
    /// The pause before another attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_off: Option<BackOff>,
    /// The longest `Retry-After` in seconds that is waited for. An answer that asks for more patience is the
    /// client's. The same goes for `grpc-retry-pushback-ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 300))]
    pub max_retry_after: Option<f64>,
    /// How many requests may be in a further attempt at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<RetryBudget>,
    /// A second attempt while the first still waits for its answer; the first answer is served, and the other
    /// attempt is taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hedging: Option<Hedging>,
}

/// The name of a header field (RFC 9110 §5.1).
const FIELD_NAME: &str = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$";

/// A condition of a retry, in Envoy's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RetryOn {
    /// The connection was refused, or not there in time; TLS included.
    ConnectFailure,
    /// No answer: the connection broke, or a time-out passed.
    Reset,
    /// The connection broke before a byte of the request was sent, or the node refused the stream.
    ResetBeforeRequest,
    /// The node refused the stream of HTTP/2.
    RefusedStream,
    /// No answer, no connection, or an answer with 500 to 599.
    #[serde(rename = "5xx")]
    ServerError,
    /// An answer with 502, 503 or 504.
    GatewayError,
    /// An answer with 409.
    #[serde(rename = "retriable-4xx")]
    RetriableClientError,
    /// `grpc-status: 1` in the head of an answer.
    Cancelled,
    /// `grpc-status: 4` in the head of an answer.
    DeadlineExceeded,
    /// `grpc-status: 13` in the head of an answer.
    Internal,
    /// `grpc-status: 8` in the head of an answer.
    ResourceExhausted,
    /// `grpc-status: 14` in the head of an answer.
    Unavailable,
}

/// The pause before attempt N + 1 is a random time between 0 and `base_interval` × (2^N − 1), at most
/// `max_interval`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackOff {
    /// Seconds.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 60))]
    pub base_interval: f64,
    /// Seconds; unset: ten times the base.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 300))]
    pub max_interval: Option<f64>,
}

impl Default for BackOff {
    fn default() -> Self {
        BackOff { base_interval: 0.025, max_interval: None }
    }
}

/// Most requests of a worker that are in a further attempt at a time: a share of all that it has open to the
/// upstream, or `min_concurrency` if that is more.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryBudget {
    /// Percent of the open requests.
    #[schemars(range(min = 0, max = 100))]
    pub percent: f64,
    /// So many in any case.
    pub min_concurrency: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        RetryBudget { percent: 20.0, min_concurrency: 3 }
    }
}

/// When a request is sent to a second node: once, if it has no body and its method may be repeated, within
/// `retries` and the budget.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hedging {
    /// Seconds without an answer.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 3600))]
    pub delay: f64,
    /// Instead, this percentile of the last answers' times, which each worker measures for itself; `delay`
    /// is the least, and what holds until there are enough answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 50, max = 99.9))]
    pub percentile: Option<f64>,
}

/// The end of an exchange, whatever it is doing: all attempts and the pauses between them are within. A client
/// that gives less time (`grpc-timeout`, or `header`) is followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExchangeDeadline {
    /// Seconds from the moment when the request is ready to be sent to a node.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub timeout: f64,
    /// A header field with milliseconds: a client shortens its time with it, and a node is told in it what is
    /// left. Calls of gRPC have `grpc-timeout` for both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 256), regex(pattern = FIELD_NAME))]
    pub header: Option<Box<str>>,
}
