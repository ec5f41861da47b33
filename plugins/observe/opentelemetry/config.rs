//! The configuration.

use std::time::Duration;

use reqwest::Url;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_plugin::Configuration;

use super::export::ExportProtocol;
use crate::shared::call::Callee;
use crate::shared::otlp::{self, Protocol, Resource};
use crate::shared::post::{self, Collector};
use crate::shared::sampling::Sampler;
use sigma_plugin_kit::batch::{self, Pace};

/// Defaults of `batch_span_processor`.
const QUEUE: u64 = 2048;
const EXPORT: usize = 256;
const BATCH_TIMEOUT_S: f64 = 5.0;
const INACTIVE_TIMEOUT_S: f64 = 2.0;

/// Makes a span of each sampled request and sends it to a collector of OpenTelemetry.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Config {
    /// The rule that selects the sampled requests.
    #[schemars(extend("default" = {"name": "always_off", "options": {"fraction": 0, "root": {"name": "always_off"}}}))]
    pub(super) sampler: Rule,
    /// Variables that become attributes of the request's span, under their names.
    #[schemars(extend("items" = {"type": "string", "minLength": 1}))]
    pub(super) additional_attributes: Option<Vec<String>>,
    /// Request headers that become attributes of the request's span; a final `*` matches any suffix.
    #[schemars(extend("items" = {"type": "string", "minLength": 1}))]
    pub(super) additional_header_prefix_attributes: Option<Vec<String>>,
    /// Continues the trace of the request. `false` for untrusted clients: each request begins a new trace, and its
    /// own trace context is removed.
    #[schemars(extend("default" = true, "own_default" = true))]
    pub(super) trust_incoming: bool,
}

impl Configuration for Config {}

/// The rule that selects the sampled requests.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Rule {
    /// Sampled requests: all (`always_on`), none (`always_off`), a share (`trace_id_ratio`), or as the sender decided
    /// (`parent_base`).
    #[schemars(extend("default" = "always_off"))]
    name: RuleName,
    /// Options of the sampler.
    #[schemars(extend("default" = {"fraction": 0, "root": {"name": "always_off"}}))]
    options: RuleOptions,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum RuleName {
    AlwaysOn,
    AlwaysOff,
    TraceIdRatio,
    ParentBase,
}

#[derive(Deserialize, JsonSchema)]
struct RuleOptions {
    /// The sampled share, for `trace_id_ratio`: from 0 to 1.
    #[schemars(extend("default" = 0))]
    fraction: f64,
    /// For `parent_base`, the rule for requests without a parent.
    #[schemars(extend("default" = {"name": "always_off", "options": {"fraction": 0}}))]
    root: Root,
}

#[derive(Deserialize, JsonSchema)]
struct Root {
    /// Sampled requests: all (`always_on`), none (`always_off`), or a share (`trace_id_ratio`).
    #[schemars(extend("default" = "always_off"))]
    name: RootName,
    /// Options of the sampler.
    #[schemars(extend("default" = {"fraction": 0}))]
    options: RootOptions,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum RootName {
    AlwaysOn,
    AlwaysOff,
    TraceIdRatio,
}

#[derive(Deserialize, JsonSchema)]
struct RootOptions {
    /// The share, for `trace_id_ratio`.
    #[schemars(extend("default" = 0))]
    fraction: f64,
}

impl Rule {
    /// The sampler, and whether the parent's decision goes before it.
    pub(super) fn sampler(&self) -> (Sampler, bool) {
        let root = &self.options.root;
        match (self.name, root.name) {
            (RuleName::AlwaysOn, _) => (Sampler::Always, false),
            (RuleName::AlwaysOff, _) => (Sampler::Never, false),
            (RuleName::TraceIdRatio, _) => (Sampler::share(self.options.fraction), false),
            (RuleName::ParentBase, RootName::AlwaysOn) => (Sampler::Always, true),
            (RuleName::ParentBase, RootName::AlwaysOff) => (Sampler::Never, true),
            (RuleName::ParentBase, RootName::TraceIdRatio) => (Sampler::share(root.options.fraction), true),
        }
    }
}

/// The plugin metadata. Without them no request is traced.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Metadata {
    /// Source of the id of a new trace: random, or the request's id if it has 32 hexadecimal digits.
    #[schemars(extend("default" = "random"))]
    pub(super) trace_id_source: TraceIdSource,
    /// Resource attributes of the gateway, such as `service.name`.
    #[schemars(extend("additionalProperties" = scalar_schema()))]
    resource: Option<Map<String, Value>>,
    /// The collector that gets the spans.
    #[schemars(extend("default" = {"address": "127.0.0.1:4318", "request_timeout": 3}))]
    collector: CollectorConfig,
    /// The batches of spans.
    #[schemars(extend("default" = {}))]
    batch_span_processor: BatchConfig,
    /// Publishes the context in the variables `opentelemetry_context_traceparent`, `opentelemetry_trace_id` and
    /// `opentelemetry_span_id`, for logs.
    #[schemars(extend("default" = false))]
    pub(super) set_ngx_var: bool,
    /// Formats of trace context. The first one that a request has is read; nodes get all of them.
    #[schemars(length(min = 1), extend("default" = ["tracecontext", "baggage"], "uniqueItems" = true, "own_default" = true))]
    pub(super) propagators: Vec<Propagator>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub(super) enum TraceIdSource {
    #[serde(rename = "x-request-id")]
    RequestId,
    #[serde(rename = "random")]
    Random,
}

/// A format of trace context, by its name in `OTEL_PROPAGATORS`: `traceparent` with `tracestate`, `baggage`, `b3`, and
/// `X-B3-TraceId` with related fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Propagator {
    TraceContext,
    Baggage,
    B3,
    B3Multi,
}

fn scalar_schema() -> Value {
    serde_json::json!({"type": ["boolean", "number", "string"]})
}

#[derive(Deserialize, JsonSchema)]
struct CollectorConfig {
    /// `host:port`, or a URL. The default path is `/v1/traces`. With `https` the certificate is verified.
    #[schemars(length(min = 1), extend("default" = "127.0.0.1:4318"))]
    address: String,
    /// Timeout of a batch in seconds.
    #[schemars(range(min = 1), extend("default" = 3))]
    request_timeout: u64,
    /// Fields that are sent with each batch.
    #[schemars(extend("additionalProperties" = scalar_schema()))]
    request_headers: Option<Map<String, Value>>,
    /// Protocol of the collector. For `grpc` the address has no path.
    #[schemars(extend("default" = "http/protobuf", "own_default" = true))]
    protocol: Protocol,
}

#[derive(Deserialize, JsonSchema)]
struct BatchConfig {
    /// Behaviour if the queue is full. `true`, the default, drops the span; `false` drops it and sends all waiting
    /// spans at once.
    drop_on_queue_full: Option<bool>,
    /// Maximum waiting spans; 2048 by default. It must be more than `max_export_batch_size`.
    #[schemars(range(min = 1))]
    max_queue_size: Option<u64>,
    /// Age in seconds of the oldest span at which a batch is sent; 5 by default.
    #[schemars(extend("exclusiveMinimum" = 0))]
    batch_timeout: Option<f64>,
    /// Seconds without a new span after which a batch is sent; 2 by default.
    #[schemars(extend("exclusiveMinimum" = 0))]
    inactive_timeout: Option<f64>,
    /// Number of spans at which a batch is sent; 256 by default.
    #[schemars(extend("exclusiveMinimum" = 0))]
    max_export_batch_size: Option<usize>,
}

/// How spans wait.
pub(super) struct Queue {
    pub(super) spans: u64,
    pub(super) drops_alone: bool,
    pub(super) pace: Pace,
}

impl Metadata {
    /// How spans wait.
    ///
    /// # Errors
    /// Returns an error if a batch is larger than what may wait.
    pub(super) fn queue(&self) -> Result<Queue, String> {
        let batches = &self.batch_span_processor;
        let spans = batches.max_queue_size.unwrap_or(QUEUE);
        let batch_max_size = batches.max_export_batch_size.unwrap_or(EXPORT);
        if spans <= batch_max_size as u64 {
            return Err(format!(
                "batch_span_processor.max_queue_size: {spans} must be greater than max_export_batch_size, which is {batch_max_size}"
            ));
        }
        let pace = Pace {
            name: super::NAME.to_owned(),
            batch_max_size,
            inactive_timeout: seconds(batches.inactive_timeout, INACTIVE_TIMEOUT_S),
            buffer_duration: seconds(batches.batch_timeout, BATCH_TIMEOUT_S),
            // The exporter knows what may be repeated.
            max_retry_count: 0,
            retry_delay: Duration::ZERO,
        };
        Ok(Queue { spans, drops_alone: batches.drop_on_queue_full.unwrap_or(true), pace })
    }

    /// The way to the collector.
    ///
    /// # Errors
    /// Returns an error if its address or a field is invalid.
    pub(super) fn way(&self) -> Result<ExportProtocol, String> {
        let CollectorConfig { address, request_timeout, request_headers, protocol } = &self.collector;
        let wrong = |reason: &str| format!("collector.address: `{address}` {reason}");
        let text = if address.contains("://") { address.clone() } else { format!("http://{address}") };
        let mut url = Url::parse(&text).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err(wrong("is not host:port or an http or https URL"));
        }
        let (headers, timeout) = (
            post::fields("collector.request_headers", request_headers.as_ref())?,
            batch::seconds(*request_timeout),
        );
        match protocol {
            Protocol::Http => {
                if matches!(url.path(), "" | "/") {
                    url.set_path("/v1/traces");
                }
                Ok(ExportProtocol::Http(Collector::new(headers, timeout), url))
            }
            Protocol::Grpc => {
                let callee = Callee::new(&url, headers, timeout);
                let callee = callee.ok_or_else(|| wrong("has a path, but gRPC uses none; remove it"))?;
                Ok(ExportProtocol::Grpc(callee))
            }
        }
    }

    /// Returns the resource of the spans.
    pub(super) fn resource(&self, hostname: &str) -> Resource {
        otlp::resource(hostname, self.resource.as_ref())
    }
}

/// So many seconds, at most thirty years: no timer goes on for longer.
fn seconds(set: Option<f64>, usual: f64) -> Duration {
    Duration::try_from_secs_f64(set.unwrap_or(usual)).unwrap_or(Duration::MAX).min(batch::seconds(u64::MAX))
}

/// The metadata where all is as usual.
#[cfg(test)]
pub(super) fn usual() -> Value {
    serde_json::json!({
        "trace_id_source": "random", "set_ngx_var": false, "propagators": ["tracecontext", "baggage"],
        "collector": {"address": "127.0.0.1:4318", "request_timeout": 3, "protocol": "http/protobuf"},
        "batch_span_processor": {},
    })
}
