//! `otlp-logger`: entries as log records of OpenTelemetry, by OTLP over HTTP.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_plugin::credentials::Masked;
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Node};
use sigma_schema::template::Template;

use crate::shared::http_sender::{Address, Endpoints, Fields, HttpSender, OwnFields, Transport};
use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Processor, Sending};
use sigma_plugin_kit::log_entry::{EntryConfig, Logger, Sink};
use sigma_plugin_kit::log_format::text_of;
use sigma_plugin_kit::log_throttle::LogThrottle;

const NAME: &str = "otlp-logger";

/// The path of log records (OTLP specification, "OTLP/HTTP Request").
const PATH: &str = "/v1/logs";

/// Bytes of the response that are read for a partial success.
const RESPONSE_BYTES: usize = 64 << 10;

/// `otlp-logger`.
pub(crate) static OTLP_LOGGER: Descriptor = Descriptor {
    name: NAME,
    priority: 416,
    example: include_str!("example.md"),
    build: |build| Ok(Arc::new(logger(build)?)),
    ..super::shipper::<Config>()
};

/// Sends log entries in batches to a collector of OpenTelemetry: OTLP over HTTP with JSON.
///
/// Each entry is a log record: its members are attributes, the body is method, path and status. Records of requests
/// that `opentelemetry` traces have the ids of trace and span. The severity is `ERROR` from status 500 on, `WARN` from
/// 400 on, else `INFO`. Requests never wait for the collector. A failed batch is sent again `max_retry_count` times and
/// then dropped. Records that the collector rejects individually are counted as dropped.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named(NAME))]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// Collectors, without a path; each batch is sent to a random one.
    #[schemars(length(min = 1), inner(regex(pattern = "[^/]$")))]
    endpoint_addrs: Vec<Address>,
    /// Attributes of the resource. Default: `service.name` is `sigma`.
    resource: Option<Map<String, Value>>,
    /// Header fields of the requests; they have precedence over the plugin's own.
    headers: Option<OwnFields>,
    /// Timeout in seconds, for the connection and for the exchange.
    #[schemars(range(min = 1), extend("default" = 10))]
    timeout: u64,
    /// Checks the collectors' certificates.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    #[serde(flatten)]
    batch: BatchSettings,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        self.fields()?;
        Endpoints::at(&self.endpoint_addrs, PATH).map(drop)
    }
}

impl Config {
    fn fields(&self) -> Result<Fields, String> {
        let mut fields = Fields::default();
        fields.set("content-type", "application/json", "headers")?;
        if let Some(own) = &self.headers {
            fields.set_own(own)?;
        }
        Ok(fields)
    }
}

fn logger(build: &Build<'_>) -> Result<Logger<OtlpSink>, String> {
    let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
    let collector = Collector::new(&config, Arc::clone(build.node))?;
    let pending = metadata.max_pending_entries;
    let processor = batch::processor(build, NAME, &config.batch, pending, || collector);
    let ids = [Template::parse("$opentelemetry_trace_id"), Template::parse("$opentelemetry_span_id")];
    Ok(Logger::new(config.entry, metadata.formats, OtlpSink { ids, processor }))
}

struct OtlpSink {
    /// The ids of trace and span.
    ids: [Template; 2],
    processor: Arc<Processor>,
}

impl Sink for OtlpSink {
    fn take(&self, entry: Map<String, Value>, ctx: &Context, env: &Env<'_>) {
        let [trace, span] = self.ids.each_ref().map(|template| {
            let mut text = Vec::new();
            let _ = template.render(&Masked(ctx), &mut text);
            text_of(&text)
        });
        let mut record = record(entry, ctx, env.unix_time().as_nanos());
        for (name, id, digits) in [("traceId", trace, 32), ("spanId", span, 16)] {
            if id.len() == digits {
                record[name] = id.into();
            }
        }
        self.processor.push(record.to_string().into_bytes(), ctx, env);
    }
}

/// The log record of an entry.
fn record(entry: Map<String, Value>, ctx: &Context, nanoseconds: u128) -> Value {
    let (severity, text) = match ctx.response.status {
        500.. => (17, "ERROR"),
        400..=499 => (13, "WARN"),
        _ => (9, "INFO"),
    };
    let method = text_of(ctx.request.method_token());
    let body = format!("{method} {} {}", text_of(&ctx.uri), ctx.response.status);
    let time = nanoseconds.to_string();
    json!({
        "timeUnixNano": time, "observedTimeUnixNano": time, "severityNumber": severity, "severityText": text,
        "body": { "stringValue": body }, "attributes": attributes(entry),
    })
}

/// Members as attributes.
fn attributes(members: Map<String, Value>) -> Value {
    let attribute =
        |(key, value): (String, Value)| any_value(value).map(|value| json!({"key": key, "value": value}));
    members.into_iter().filter_map(attribute).collect()
}

/// A value in OTLP's form. There is no form for null. 64-bit integers are texts in the JSON of Protocol Buffers.
fn any_value(value: Value) -> Option<Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => json!({ "boolValue": value }),
        Value::String(text) => json!({ "stringValue": text }),
        Value::Number(number) => match number.as_i64() {
            Some(number) => json!({ "intValue": number.to_string() }),
            None => json!({ "doubleValue": number }),
        },
        Value::Array(values) => {
            let values: Vec<Value> = values.into_iter().filter_map(any_value).collect();
            json!({ "arrayValue": { "values": values } })
        }
        Value::Object(members) => json!({ "kvlistValue": { "values": attributes(members) } }),
    })
}

/// The collectors that take batches.
struct Collector {
    endpoints: Endpoints,
    sender: HttpSender,
    /// The beginning and the end of a batch.
    around: [String; 2],
    /// Gets the number of lost records.
    node: Arc<Node>,
}

impl Collector {
    fn new(config: &Config, node: Arc<Node>) -> Result<Collector, String> {
        let transport = Transport::new(batch::seconds(config.timeout), config.ssl_verify);
        let endpoints = Endpoints::at(&config.endpoint_addrs, PATH)?;
        let sender = HttpSender::new(NAME, &config.endpoint_addrs, transport, config.fields()?);
        let mut resource = config.resource.clone().unwrap_or_default();
        resource.entry("service.name").or_insert_with(|| "sigma".into());
        Ok(Collector { endpoints, sender, around: around(resource), node })
    }

    /// Counts records that a response of success rejects.
    fn count_rejected(&self, response: &[u8]) -> Option<String> {
        let response: Value = serde_json::from_slice(response).ok()?;
        let partial = response.get("partialSuccess")?;
        let rejected = match partial.get("rejectedLogRecords")? {
            Value::String(text) => text.parse().ok()?,
            number => number.as_u64()?,
        };
        self.node.lose_lines(rejected);
        let message = partial.get("errorMessage").and_then(Value::as_str).unwrap_or_default();
        (rejected > 0).then(|| format!("{rejected} records: {message}"))
    }
}

/// The text before and after the records of a batch.
fn around(resource: Map<String, Value>) -> [String; 2] {
    let attributes = attributes(resource);
    let head = format!(
        r#"{{"resourceLogs":[{{"resource":{{"attributes":{attributes}}},"scopeLogs":[{{"scope":{{"name":"sigma"}},"logRecords":["#
    );
    [head, "]}]}]}".to_owned()]
}

/// A batch.
fn payload(around: &[String; 2], records: &[Vec<u8>]) -> Vec<u8> {
    let [head, end] = around;
    [head.as_bytes(), &records.join(&b","[..]), end.as_bytes()].concat()
}

impl Destination for Collector {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            let answer = self.sender.post(self.endpoints.pick(), payload(&self.around, entries)).await;
            let mut answer = answer.map_err(|failure| failure.to_string())?;
            if answer.status != 200 {
                let (status, body) = (answer.status, answer.shown_body().await);
                return Err(format!("collector returned status: {status}, body: {body}").into());
            }
            let response = answer.body(RESPONSE_BYTES).await;
            if let Some(rejected) = self.count_rejected(&response) {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::error!(left_out, "the collector rejected {}", answer.shown(&rejected));
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, refusal};

    #[test]
    fn entries_become_records() {
        let mut case = Case::new("GET /orders HTTP/1.1\nHost: h");
        case.respond(503, "");
        let entry = json!({
            "a": "text", "b": 7, "c": 1.5, "d": true, "e": null, "f": [1, null, "x"], "g": { "h": 2 },
        });
        let record = record(serde_json::from_value(entry).unwrap(), &case.ctx, 1_700_000_000_000_000_001);
        let attribute = |key: &str, value: Value| json!({"key": key, "value": value});
        let expected = json!({
            "timeUnixNano": "1700000000000000001", "observedTimeUnixNano": "1700000000000000001",
            "severityNumber": 17, "severityText": "ERROR", "body": { "stringValue": "GET /orders 503" },
            "attributes": [
                attribute("a", json!({"stringValue": "text"})),
                attribute("b", json!({"intValue": "7"})),
                attribute("c", json!({"doubleValue": 1.5})),
                attribute("d", json!({"boolValue": true})),
                attribute("f", json!({"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "x"}]}})),
                attribute("g", json!({"kvlistValue": {"values": [attribute("h", json!({"intValue": "2"}))]}})),
            ],
        });
        assert_eq!(record, expected);
    }

    #[test]
    fn a_batch_is_one_request() {
        let resource = serde_json::from_value(json!({"service.name": "shop"})).unwrap();
        let records = [b"{\"a\":1}".to_vec(), b"{\"b\":2}".to_vec()];
        let sent: Value = serde_json::from_slice(&payload(&around(resource), &records)).unwrap();
        let logs = &sent["resourceLogs"][0];
        let name = json!([{"key": "service.name", "value": {"stringValue": "shop"}}]);
        assert_eq!(logs["resource"]["attributes"], name);
        assert_eq!(logs["scopeLogs"][0]["logRecords"], json!([{"a": 1}, {"b": 2}]));
    }

    #[test]
    fn bad_configurations() {
        let check = |conf: Value, expected: &str| {
            let refused = refusal(NAME, &conf);
            assert!(refused.contains(expected), "{conf}: {refused}");
        };
        check(json!({}), r#"property "endpoint_addrs" is required"#);
        check(json!({"endpoint_addrs": []}), "expect array to have at least 1 items");
        check(json!({"endpoint_addrs": ["http://h/"]}), "failed to match pattern");
        check(json!({"endpoint_addrs": ["http://h"], "headers": {"a": "b\n"}}), "headers");
        assert_eq!(refusal(NAME, &json!({"endpoint_addrs": ["http://h:4318"]})), "");
    }
}
