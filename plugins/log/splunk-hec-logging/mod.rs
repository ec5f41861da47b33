//! `splunk-hec-logging`: entries in batches to Splunk's HTTP Event Collector.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Plugin};
use sigma_schema::Confidential;

use crate::shared::http_sender::{Address, Fields, HttpSender, Transport};
use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Processor, Sending};
use sigma_plugin_kit::log_entry::{self, Formats, Shape};
use sigma_plugin_kit::log_format::Bodies;

const NAME: &str = "splunk-hec-logging";

/// Bytes of a refusing response in which its text is looked for.
const ANSWER_BYTES: usize = 16 << 10;

/// `splunk-hec-logging`.
pub(crate) static SPLUNK_HEC_LOGGING: Descriptor = Descriptor {
    name: NAME,
    priority: 409,
    example: include_str!("example.md"),
    build: |build| Ok(Arc::new(SplunkHecLogging::new(build)?)),
    ..super::bodiless_shipper::<Config>()
};

/// Sends log entries in batches to Splunk's HTTP Event Collector.
///
/// Requests never wait for the collector. A failed batch is sent again `max_retry_count` times and then dropped.
/// Entries beyond `max_pending_entries` of the plugin metadata or 64 MiB are dropped.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named(NAME))]
struct Config {
    /// The collector.
    endpoint: Endpoint,
    /// Checks the collector's certificate.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    #[serde(flatten)]
    formats: Formats,
    #[serde(flatten)]
    batch: BatchSettings,
}

#[derive(Deserialize, JsonSchema)]
struct Endpoint {
    /// URL of the collector, with the path.
    uri: Address,
    /// The token, sent in `Authorization`.
    token: Confidential,
    /// The channel, sent in `X-Splunk-Request-Channel`.
    channel: Option<String>,
    /// Timeout in seconds, for the connection and for the exchange.
    #[schemars(range(min = 1), extend("default" = 10))]
    timeout: u64,
    /// Idle timeout of a connection in milliseconds.
    #[schemars(range(min = 1000), extend("default" = 60_000))]
    keepalive_timeout: u64,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        self.endpoint.fields().map(drop)
    }
}

impl Endpoint {
    fn fields(&self) -> Result<Fields, String> {
        let (mut fields, token) = (Fields::default(), self.token.reveal());
        fields.set("content-type", "application/json", "endpoint")?;
        fields.set_secret("authorization", &format!("Splunk {token}"), token, "endpoint.token")?;
        if let Some(channel) = &self.channel {
            fields.set("x-splunk-request-channel", channel, "endpoint.channel")?;
        }
        Ok(fields)
    }
}

struct SplunkHecLogging {
    shape: Shape,
    processor: Arc<Processor>,
}

impl SplunkHecLogging {
    fn new(build: &Build<'_>) -> Result<SplunkHecLogging, String> {
        let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
        let collector = Collector::new(&config)?;
        let pending = metadata.max_pending_entries;
        let processor = batch::processor(build, NAME, &config.batch, pending, || collector);
        Ok(SplunkHecLogging { shape: Shape::new(config.formats, metadata.formats), processor })
    }
}

impl Plugin for SplunkHecLogging {
    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        let event = event(&self.shape, ctx, env).to_string();
        self.processor.push(event.into_bytes(), &*ctx, env);
    }
}

fn event(shape: &Shape, ctx: &Context, env: &Env<'_>) -> Value {
    let body = log_entry::request_body(ctx);
    let bodies = Bodies { request: body.as_deref(), response: None };
    let event = shape.formatted(ctx, bodies).unwrap_or_else(|| {
        let mut event = usual(shape.usual(ctx, env, Bodies::default()));
        shape.extend(ctx, bodies, &mut event);
        event
    });
    json!({
        "time": env.unix_time().as_millis() as f64 / 1000.0,
        "host": env.node.hostname(),
        "source": "apache-apisix-splunk-hec-logging",
        "sourcetype": "_json",
        "event": event,
    })
}

/// The members of an event without a format.
fn usual(mut entry: Map<String, Value>) -> Map<String, Value> {
    const MEMBERS: [(&str, &str, &str); 8] = [
        ("request", "url", "request_url"),
        ("request", "method", "request_method"),
        ("request", "headers", "request_headers"),
        ("request", "querystring", "request_query"),
        ("request", "size", "request_size"),
        ("response", "headers", "response_headers"),
        ("response", "status", "response_status"),
        ("response", "size", "response_size"),
    ];
    let mut event = Map::new();
    for (of, member, name) in MEMBERS {
        if let Some(value) = entry.get_mut(of).and_then(|of| of.get_mut(member)) {
            event.insert(name.to_owned(), value.take());
        }
    }
    for name in ["latency", "upstream"] {
        event.extend(entry.remove(name).map(|value| (name.to_owned(), value)));
    }
    event
}

/// The collector that takes batches.
struct Collector {
    address: Address,
    sender: HttpSender,
}

impl Collector {
    fn new(config: &Config) -> Result<Collector, String> {
        let Endpoint { uri, timeout, keepalive_timeout, .. } = &config.endpoint;
        let transport = Transport::new(batch::seconds(*timeout), config.ssl_verify);
        let transport = transport.keeping_for(Duration::from_millis(*keepalive_timeout));
        let sender = HttpSender::new(NAME, std::slice::from_ref(uri), transport, config.endpoint.fields()?);
        Ok(Collector { address: uri.clone(), sender })
    }
}

impl Destination for Collector {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            let answer = self.sender.post(&self.address, entries.concat()).await;
            let failed = |failure| format!("failed to write log to splunk, {failure}");
            let mut answer = answer.map_err(failed)?;
            if answer.status == 200 {
                answer.finish().await;
                return Ok(());
            }
            let told: Value = serde_json::from_slice(&answer.body(ANSWER_BYTES).await).unwrap_or_default();
            Err(match told.get("text").and_then(Value::as_str) {
                Some(text) => format!("failed to send splunk, {}", answer.shown(text)),
                None => format!("failed to send splunk, http status code: {}", answer.status),
            }
            .into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, refusal};

    const ENDPOINT: &str = "http://h/services/collector";

    fn made(conf: Value) -> Value {
        let mut case = Case::new("GET /p?a=1&a=2 HTTP/1.1\nHost: H:80\nX: \"\\");
        case.respond(201, "Y: z");
        case.ctx.record.bytes_sent = 7;
        let shape = Shape::new(serde_json::from_value(conf).unwrap(), Formats::default());
        let mut event = event(&shape, &case.ctx, &Env::new(&case.node, &case.local, &case.consumers));
        assert!(event["time"].as_f64().unwrap() > 1e9);
        event.as_object_mut().unwrap().remove("time");
        event
    }

    #[test]
    fn events() {
        let wrapped = |event: Value| json!({"host": "", "source": "apache-apisix-splunk-hec-logging", "sourcetype": "_json", "event": event});
        let extra = json!({"log_format_extra": {"m": "$method", "request_url": "never", "request": "own"}});
        let expected = json!({
            "request_url": "http://h:0/p?a=1&a=2", "request_method": "GET",
            "request_headers": {"host": "H:80", "x": "\"\\"}, "request_query": {"a": ["1", "2"]},
            "request_size": 0, "response_headers": {"y": "z"}, "response_status": 201, "response_size": 7,
            "latency": 0.0, "m": "GET", "request": "own"
        });
        assert_eq!(made(extra), wrapped(expected));
        assert_eq!(made(json!({"log_format": {"s": "$status"}})), wrapped(json!({"s": 201})));
    }

    #[test]
    fn bad_configurations() {
        let check = |conf: Value, expected: &str| {
            let refused = refusal(NAME, &conf);
            assert!(refused.contains(expected), "{conf}: {refused}");
        };
        check(json!({}), r#"property "endpoint" is required"#);
        check(json!({"endpoint": {"uri": ENDPOINT}}), r#"property "token" is required"#);
        check(json!({"endpoint": {"uri": "h", "token": "t"}}), r#"failed to match pattern"#);
        check(
            json!({"endpoint": {"uri": ENDPOINT, "token": "t\n"}}),
            "endpoint.token: it contains a character that a header field cannot carry",
        );
        check(json!({"endpoint": {"uri": ENDPOINT, "token": "t", "channel": "\n"}}), "endpoint.channel: ");
        check(
            json!({"endpoint": {"uri": ENDPOINT, "token": "t", "keepalive_timeout": 1}}),
            "expected 1 to be at least 1000",
        );
    }
}
