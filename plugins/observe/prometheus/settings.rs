//! The settings of the plugin, and the names of metrics and labels.

use std::collections::HashMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_schema::described::schema_of;
use sigma_schema::expr::VarName;

use super::native::Scale;
use super::push::settings::PushSettings;

/// Upper bounds of latency buckets in milliseconds unless the attribute says otherwise.
const DEFAULT_BUCKETS: [f64; 15] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 30000.0, 60000.0];

/// A metric with a series per route and more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metric {
    Status,
    Latency,
    Bandwidth,
}

impl Metric {
    pub(super) const ALL: [Metric; 3] = [Metric::Status, Metric::Latency, Metric::Bandwidth];

    /// Its name after the prefix.
    pub(super) fn name(self) -> &'static str {
        match self {
            Metric::Status => "http_status",
            Metric::Latency => "http_latency",
            Metric::Bandwidth => "bandwidth",
        }
    }

    /// Its labels in order, but for `type`.
    pub(super) fn labels(self) -> &'static [Label] {
        use Label::*;
        match self {
            Metric::Status => &[
                Code,
                Route,
                MatchedUri,
                MatchedHost,
                Service,
                Consumer,
                Node,
                RequestType,
                RequestLlmModel,
                LlmModel,
                ResponseSource,
            ],
            Metric::Latency | Metric::Bandwidth => {
                &[Route, Service, Consumer, Node, RequestType, RequestLlmModel, LlmModel]
            }
        }
    }
}

/// A label that every series of a metric has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Label {
    Code,
    Route,
    MatchedUri,
    MatchedHost,
    Service,
    Consumer,
    Node,
    RequestType,
    RequestLlmModel,
    LlmModel,
    ResponseSource,
}

impl Label {
    pub(super) fn name(self) -> &'static str {
        match self {
            Label::Code => "code",
            Label::Route => "route",
            Label::MatchedUri => "matched_uri",
            Label::MatchedHost => "matched_host",
            Label::Service => "service",
            Label::Consumer => "consumer",
            Label::Node => "node",
            Label::RequestType => "request_type",
            Label::RequestLlmModel => "request_llm_model",
            Label::LlmModel => "llm_model",
            Label::ResponseSource => "response_source",
        }
    }
}

/// Metrics that APISIX has and this gateway does not, with the labels that they would have.
const FOREIGN: [(&str, &str); 10] = [
    ("llm_latency", OF_TOKENS),
    ("llm_prompt_tokens", OF_TOKENS),
    ("llm_completion_tokens", OF_TOKENS),
    (
        "llm_active_connections",
        "route route_id matched_uri matched_host service service_id consumer node request_type \
         request_llm_model llm_model",
    ),
    ("llm_prompt_tokens_dist", OF_TOKENS),
    ("llm_completion_tokens_dist", OF_TOKENS),
    ("ai_cache_hits_total", OF_CACHE),
    ("ai_cache_misses_total", OF_CACHE),
    ("ai_cache_bypasses_total", OF_CACHE),
    ("ai_cache_embedding_latency", OF_CACHE),
];
const OF_TOKENS: &str = "route_id service_id consumer node request_type request_llm_model llm_model";
const OF_CACHE: &str =
    "route route_id service service_id consumer node request_type request_llm_model llm_model";

#[derive(Default, Deserialize, JsonSchema)]
pub(super) struct Metadata {
    /// Labels that stay empty, by metric.
    #[serde(default)]
    #[schemars(schema_with = "disabled_labels")]
    disabled_labels: Option<HashMap<String, Vec<String>>>,
}

fn disabled_labels(_: &mut SchemaGenerator) -> Schema {
    let own = Metric::ALL.map(|metric| {
        let labels = metric.labels().iter().filter(|label| **label != Label::Code);
        (metric.name(), labels.map(|label| label.name()).collect::<Vec<_>>())
    });
    let foreign = FOREIGN.map(|(name, labels)| (name, labels.split(' ').collect()));
    let own = own.map(|(name, labels)| (name, labels, "Labels of this metric whose value is empty."));
    let foreign =
        foreign.map(|(name, labels)| (name, labels, "Without effect: this gateway has no such metric."));
    let list = |(name, labels, about): (&str, Vec<&str>, &str)| {
        let items = json!({"type": "string", "enum": labels});
        (name.to_owned(), json!({"type": "array", "items": items, "description": about}))
    };
    let lists: Map<String, Value> = own.into_iter().chain(foreign).map(list).collect();
    json_schema!({"type": "object", "properties": lists, "additionalProperties": false})
}

/// The settings in `plugin_attr.prometheus`. A field with an underscore here is read by other code, or not at
/// all.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Attributes {
    /// The path of the metrics page.
    #[serde(rename = "export_uri")]
    #[schemars(regex(pattern = "^/"))]
    _export_uri: Option<String>,
    /// Whether the metrics page has its own listener. Default: if `export_addr` is set.
    #[serde(rename = "enable_export_server")]
    _enable_export_server: Option<bool>,
    /// The address of this listener.
    #[serde(rename = "export_addr")]
    _export_addr: Option<Address>,
    /// Prefix of metric names.
    metric_prefix: String,
    /// Seconds between two collections of the data of the control thread.
    #[serde(rename = "refresh_interval")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    _refresh_interval: f64,
    /// Upper bounds of latency buckets in milliseconds, ascending.
    #[schemars(length(min = 1))]
    default_buckets: Option<Vec<f64>>,
    /// Without effect: this gateway has no such metric.
    #[serde(rename = "llm_latency_buckets")]
    #[schemars(length(min = 1))]
    _llm_latency: Option<Vec<f64>>,
    /// Without effect: this gateway has no such metric.
    #[serde(rename = "llm_prompt_tokens_buckets")]
    #[schemars(length(min = 1))]
    _llm_prompt_tokens: Option<Vec<f64>>,
    /// Without effect: this gateway has no such metric.
    #[serde(rename = "llm_completion_tokens_buckets")]
    #[schemars(length(min = 1))]
    _llm_completion_tokens: Option<Vec<f64>>,
    /// Without effect: this gateway has no such metric.
    #[serde(rename = "ai_cache_embedding_latency_buckets")]
    #[schemars(length(min = 1))]
    _ai_cache_embedding_latency: Option<Vec<f64>>,
    /// Maximum series of one metric in one worker; requests that need more are missing from it.
    #[schemars(range(min = 1))]
    max_series: usize,
    /// Maximum series of `http_latency` with exemplars in each worker, for scrapers that accept OpenMetrics. 0: no
    /// exemplars, and all pages are in the text format.
    exemplar_series: usize,
    /// Whether `http_latency` is also a native histogram, for scrapers that accept the protobuf form of the page.
    native_histograms: bool,
    /// Resolution of native histograms: 2 to the power of this number is the number of buckets for each doubling of the
    /// latency.
    #[schemars(range(min = -4, max = 8))]
    native_histogram_schema: i32,
    /// Maximum buckets of a native histogram. A wider range of latencies makes the buckets coarser.
    #[schemars(range(min = 4, max = 4096))]
    native_histogram_max_buckets: usize,
    /// Settings of single metrics.
    #[schemars(schema_with = "metrics")]
    metrics: Option<HashMap<String, MetricSettings>>,
    /// A collector that gets the metrics. Default: none.
    otlp: Option<PushSettings>,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes {
            _export_uri: None,
            _enable_export_server: None,
            _export_addr: None,
            metric_prefix: "apisix_".to_owned(),
            _refresh_interval: 15.0,
            default_buckets: None,
            _llm_latency: None,
            _llm_prompt_tokens: None,
            _llm_completion_tokens: None,
            _ai_cache_embedding_latency: None,
            // Some 80 MiB of histograms.
            max_series: 100_000,
            exemplar_series: 0,
            native_histograms: false,
            // Each bucket ends 9 % above its beginning.
            native_histogram_schema: 3,
            // From 0.06 ms to a minute without becoming coarser.
            native_histogram_max_buckets: 160,
            metrics: None,
            otlp: None,
        }
    }
}

#[derive(Deserialize, JsonSchema)]
struct Address {
    /// IP address.
    #[serde(rename = "ip")]
    #[schemars(extend("default" = "127.0.0.1"))]
    _ip: Option<String>,
    /// Port.
    #[serde(rename = "port")]
    #[schemars(extend("default" = 9091))]
    _port: Option<u16>,
}

#[derive(Default, Deserialize, JsonSchema)]
struct MetricSettings {
    /// Additional labels, each `{name: "$variable"}`.
    #[schemars(extend("items" = {"type": "object", "additionalProperties": {"type": "string"}}))]
    extra_labels: Option<Vec<Map<String, Value>>>,
    /// Idle time in seconds after which a series is removed; 0: never.
    #[schemars(extend("default" = 0))]
    expire: Option<u64>,
}

fn metrics(_: &mut SchemaGenerator) -> Schema {
    let own = Metric::ALL.map(|metric| (metric.name(), "About this metric."));
    let foreign = ["upstream_status"].into_iter().chain(FOREIGN.map(|(name, _)| name));
    let foreign = foreign.map(|name| (name, "Without effect: this gateway has no such metric."));
    let metric = |(name, about): (&str, &str)| {
        let mut schema = schema_of::<MetricSettings>();
        schema["description"] = about.into();
        (name.to_owned(), schema)
    };
    let metrics: Map<String, Value> = own.into_iter().chain(foreign).map(metric).collect();
    json_schema!({"type": "object", "properties": metrics})
}

/// The settings of the whole process.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// Begins every name.
    pub(super) prefix: String,
    /// Upper bounds of latency buckets, ascending.
    pub(super) buckets: Box<[f64]>,
    /// Whether any metric has labels after the built-in ones.
    pub(super) has_extra: bool,
    /// Labels after the built-in ones, by metric.
    pub(super) extra: [Vec<(String, VarName)>; 3],
    /// Milliseconds after which a series without news is forgotten; 0 for never.
    pub(super) expire_ms: [u64; 3],
    /// Series of one worker and metric; requests that would need more are not shown.
    pub(super) max_series: usize,
    /// Series of one worker that keep exemplars.
    pub(super) exemplar_series: usize,
    /// How values become buckets of native histograms; None without native histograms.
    pub(super) native: Option<Scale>,
    /// The collector of pushed metrics.
    pub(super) push: Option<PushSettings>,
}

impl Settings {
    /// Reads the attribute, which its schema has accepted. A remaining mistake causes a warning and is omitted: a
    /// mistake in monitoring must not stop the traffic.
    pub(super) fn of(attribute: &Value) -> Settings {
        let attributes = Option::<Attributes>::deserialize(attribute).unwrap_or_else(|error| {
            tracing::warn!(%error, "plugin_attr.prometheus is invalid; the defaults are used");
            None
        });
        let Attributes {
            metric_prefix,
            default_buckets,
            max_series,
            exemplar_series,
            native_histograms,
            native_histogram_schema,
            native_histogram_max_buckets,
            metrics,
            otlp: push,
            ..
        } = attributes.unwrap_or_default();
        let mut metrics = metrics.unwrap_or_default();
        let of_metrics = Metric::ALL.map(|metric| metrics.remove(metric.name()).unwrap_or_default());
        let expire_ms = of_metrics.each_ref().map(|of| of.expire.unwrap_or_default().saturating_mul(1000));
        let extra = of_metrics.map(|of| extra_labels(of.extra_labels.unwrap_or_default()));
        Settings {
            prefix: metric_prefix,
            buckets: default_buckets.map_or_else(|| DEFAULT_BUCKETS.into(), buckets),
            expire_ms,
            has_extra: extra.iter().any(|labels| !labels.is_empty()),
            extra,
            max_series,
            exemplar_series,
            native: native_histograms
                .then(|| Scale::new(native_histogram_schema, native_histogram_max_buckets)),
            push,
        }
    }
}

fn buckets(bounds: Vec<f64>) -> Box<[f64]> {
    if !bounds.is_empty() && bounds.is_sorted_by(|a, b| a < b) {
        return bounds.into();
    }
    tracing::warn!(
        "plugin_attr.prometheus.default_buckets must be a list of ascending numbers; the default is used"
    );
    DEFAULT_BUCKETS.into()
}

/// `[{label: "$variable"}, …]`.
fn extra_labels(labels: Vec<Map<String, Value>>) -> Vec<(String, VarName)> {
    let label = |(name, variable): (String, Value)| {
        if !is_label_name(&name) {
            tracing::warn!(
                name,
                "plugin_attr.prometheus: a label may only contain letters, digits and _; this one is ignored"
            );
            return None;
        }
        let variable = variable.as_str().unwrap_or_default();
        let variable = VarName::parse(variable.strip_prefix('$').unwrap_or(variable));
        if let Some(reason) = variable.unknown() {
            tracing::warn!(label = name, "plugin_attr.prometheus: {reason}");
        }
        Some((name, variable))
    };
    labels.into_iter().flatten().filter_map(label).collect()
}

fn is_label_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name != "le"
        && name != "type"
}

/// Labels whose value is not shown, as bits of [`Label`], by metric.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Disabled([u16; 3]);

impl Disabled {
    /// From `disabled_labels` of the metadata.
    pub(super) fn of(metadata: &Metadata) -> Disabled {
        let mut disabled = Disabled::default();
        for metric in Metric::ALL {
            let names = metadata.disabled_labels.as_ref().and_then(|all| all.get(metric.name()));
            for name in names.into_iter().flatten() {
                for label in metric.labels().iter().filter(|label| label.name() == name) {
                    disabled.0[metric as usize] |= 1 << *label as usize;
                }
            }
        }
        disabled
    }

    pub(super) fn has(self, metric: Metric, label: Label) -> bool {
        self.0[metric as usize] & (1 << label as usize) != 0
    }

    /// For keys.
    pub(super) fn bytes(self) -> [u8; 6] {
        let [a, b, c] = self.0.map(u16::to_le_bytes);
        [a[0], a[1], b[0], b[1], c[0], c[1]]
    }
}
