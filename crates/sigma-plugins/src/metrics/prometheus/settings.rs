//! `plugin_attr.prometheus` and the names of labels.

use serde_json::{Value, json};
use sigma_config::expr::VarName;

/// Upper bounds of latency buckets in milliseconds unless the attribute says otherwise.
const DEFAULT_BUCKETS: [f64; 15] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 30000.0, 60000.0];

/// Series of one worker unless the attribute says otherwise: some 80 MiB of histograms.
const DEFAULT_MAX_SERIES: usize = 100_000;

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
    /// How many there are.
    pub(super) const COUNT: usize = Label::ResponseSource as usize + 1;

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

/// What `plugin_attr.prometheus` may say.
pub(super) fn schema() -> Value {
    const NONE: &str = "Without effect: this gateway has no such metric.";
    let bounds = |about: &str| json!({"type": "array", "minItems": 1, "items": {"type": "number"}, "description": about});
    let metric = |about: &str| {
        let labels = json!({
            "type": "array",
            "items": {"type": "object", "additionalProperties": {"type": "string"}},
            "description": "Labels after its own, each `{name: \"$variable\"}`."
        });
        let expire = json!({
            "type": "integer", "minimum": 0, "default": 0,
            "description": "Seconds after which a series without news is forgotten; 0 for never."
        });
        json!({
            "type": "object", "properties": {"extra_labels": labels, "expire": expire}, "description": about
        })
    };
    let mut metrics = serde_json::Map::new();
    for name in Metric::ALL.map(Metric::name) {
        metrics.insert(name.to_owned(), metric("About this metric."));
    }
    let foreign = [
        "upstream_status",
        "llm_latency",
        "llm_prompt_tokens",
        "llm_completion_tokens",
        "llm_active_connections",
        "llm_prompt_tokens_dist",
        "llm_completion_tokens_dist",
        "ai_cache_hits_total",
        "ai_cache_misses_total",
        "ai_cache_bypasses_total",
        "ai_cache_embedding_latency",
    ];
    for name in foreign {
        metrics.insert(name.to_owned(), metric(NONE));
    }
    json!({"type": "object", "properties": {
        "export_uri": {"type": "string", "pattern": "^/", "description": "The path of the page."},
        "enable_export_server": {"type": "boolean",
            "description": "Whether the page has a listener of its own; unset: if it has an address."},
        "export_addr": {"type": "object", "description": "The address of that listener.", "properties": {
            "ip": {"type": "string", "default": "127.0.0.1", "description": "IP address."},
            "port": {"type": "integer", "minimum": 0, "maximum": 65535, "default": 9091, "description": "Port."}
        }},
        "metric_prefix": {"type": "string", "default": "apisix_", "description": "Begins every name."},
        "refresh_interval": {"type": "integer", "minimum": 1, "default": 15,
            "description": "Seconds between two collections of what the control thread knows."},
        "default_buckets": bounds("Upper bounds of latency buckets in milliseconds, ascending."),
        "llm_latency_buckets": bounds(NONE),
        "llm_prompt_tokens_buckets": bounds(NONE),
        "llm_completion_tokens_buckets": bounds(NONE),
        "ai_cache_embedding_latency_buckets": bounds(NONE),
        "max_series": {"type": "integer", "minimum": 1, "default": DEFAULT_MAX_SERIES,
            "description": "Series of one worker and metric; requests that would need more are not shown."},
        "metrics": {"type": "object", "properties": metrics, "description": "Single metrics."}
    }})
}

/// What is the same for the whole process.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// Begins every name.
    pub(super) prefix: String,
    /// Upper bounds of latency buckets, ascending.
    pub(super) buckets: Box<[f64]>,
    /// Labels after the built-in ones, by metric.
    pub(super) extra: [Vec<(String, VarName)>; 3],
    /// Milliseconds after which a series without news is forgotten; 0 for never.
    pub(super) expire_ms: [u64; 3],
    /// Series of one worker and metric; requests that would need more are not shown.
    pub(super) max_series: usize,
}

impl Settings {
    /// Reads the attribute. What is no setting is warned of and left out: a mistake in monitoring
    /// must not stop the traffic.
    pub(super) fn of(attribute: &Value) -> Settings {
        let metric = |metric: Metric| attribute.get("metrics").and_then(|all| all.get(metric.name()));
        let expire = |of: Metric| metric(of)?.get("expire")?.as_u64();
        let extra = |of: Metric| metric(of)?.get("extra_labels").map(extra_labels);
        let max = attribute.get("max_series").and_then(Value::as_u64);
        Settings {
            prefix: attribute.get("metric_prefix").and_then(Value::as_str).unwrap_or("apisix_").to_owned(),
            buckets: buckets(attribute.get("default_buckets")),
            extra: Metric::ALL.map(|of| extra(of).unwrap_or_default()),
            expire_ms: Metric::ALL.map(|of| expire(of).unwrap_or_default().saturating_mul(1000)),
            max_series: max.map_or(DEFAULT_MAX_SERIES, |max| max as usize),
        }
    }
}

fn buckets(value: Option<&Value>) -> Box<[f64]> {
    let Some(value) = value else { return Box::new(DEFAULT_BUCKETS) };
    let bounds: Option<Vec<f64>> = value.as_array().map(|all| all.iter().filter_map(Value::as_f64).collect());
    match bounds.filter(|bounds| !bounds.is_empty() && bounds.is_sorted_by(|a, b| a < b)) {
        Some(bounds) => bounds.into(),
        None => {
            tracing::warn!(
                "plugin_attr.prometheus.default_buckets must be a list of ascending numbers; the default is used"
            );
            Box::new(DEFAULT_BUCKETS)
        }
    }
}

/// `[{label: "$variable"}, …]`.
fn extra_labels(value: &Value) -> Vec<(String, VarName)> {
    let pairs = value.as_array().into_iter().flatten().filter_map(Value::as_object).flatten();
    let mut labels = Vec::new();
    for (name, variable) in pairs {
        let variable = variable.as_str().unwrap_or_default();
        if is_label_name(name) {
            let variable = VarName::parse(variable.strip_prefix('$').unwrap_or(variable));
            if let Some(reason) = variable.unknown() {
                tracing::warn!(label = name, "plugin_attr.prometheus: {reason}");
            }
            labels.push((name.clone(), variable));
        } else {
            tracing::warn!(
                name,
                "plugin_attr.prometheus: a label is letters, digits and _; this one is left out"
            );
        }
    }
    labels
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
    pub(super) fn of(metadata: &Value) -> Disabled {
        let mut disabled = Disabled::default();
        for metric in Metric::ALL {
            let names = metadata.get("disabled_labels").and_then(|all| all.get(metric.name()));
            for name in names.and_then(Value::as_array).into_iter().flatten() {
                for label in metric.labels().iter().filter(|label| Some(label.name()) == name.as_str()) {
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
