//! `skywalking-logger`: entries in batches to Apache SkyWalking, in addition to its traces.

use std::sync::Arc;

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env};

use crate::shared::http_sender::{Address, Fields, HttpSender, Transport, cut};
use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Processor, Sending};
use sigma_plugin_kit::log_entry::{self, EntryConfig, Logger, Sink};
use sigma_plugin_kit::log_format::text_of;
use sigma_plugin_kit::log_throttle::LogThrottle;

const NAME: &str = "skywalking-logger";

/// Bytes of a field that is no trace context which the error log shows.
const SHOWN_FIELD_BYTES: usize = 256;

/// `skywalking-logger`.
pub(crate) static SKYWALKING_LOGGER: Descriptor = Descriptor {
    name: NAME,
    priority: 408,
    example: include_str!("example.md"),
    build: |build| Ok(Arc::new(logger(build)?)),
    ..super::shipper::<Config>()
};

/// Sends log entries in batches to Apache SkyWalking, over HTTP.
///
/// An entry belongs to the trace that the request's field `sw8` names. Requests never wait for the server. A failed
/// batch is sent again `max_retry_count` times and then dropped. Entries beyond `max_pending_entries` of the plugin
/// metadata or 64 MiB are dropped.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named("skywalking logger"))]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// The server: scheme, host and port. Batches go to its path `/v3/logs`.
    endpoint_addr: Address,
    /// The name of the service.
    #[schemars(extend("default" = "APISIX"))]
    service_name: String,
    /// The name of this instance of the service; `$hostname` is the name of the machine.
    #[schemars(extend("default" = "APISIX Instance Name"))]
    service_instance_name: String,
    /// Timeout in seconds, for the connection and for the exchange.
    #[schemars(range(min = 1), extend("default" = 3))]
    timeout: u64,
    #[serde(flatten)]
    batch: BatchSettings,
}

impl Configuration for Config {}

fn logger(build: &Build<'_>) -> Result<Logger<SkywalkingSink>, String> {
    let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
    let server = Server::new(&config)?;
    let pending = metadata.max_pending_entries;
    let processor = batch::processor(build, NAME, &config.batch, pending, || server);
    let instance = match &*config.service_instance_name {
        "$hostname" => build.node.hostname().to_owned(),
        name => name.to_owned(),
    };
    let sink = SkywalkingSink { service: config.service_name, instance, processor };
    Ok(Logger::new(config.entry, metadata.formats, sink))
}

struct SkywalkingSink {
    service: String,
    instance: String,
    processor: Arc<Processor>,
}

impl Sink for SkywalkingSink {
    fn take(&self, entry: Map<String, Value>, ctx: &Context, env: &Env<'_>) {
        let element = element(entry, ctx, &self.service, &self.instance);
        self.processor.push(element.to_string().into_bytes(), ctx, env);
    }
}

fn element(entry: Map<String, Value>, ctx: &Context, service: &str, instance: &str) -> Value {
    let mut element = Map::new();
    if let Some(field) = ctx.request.headers.find(b"sw8") {
        match trace_context(field) {
            Some(context) => drop(element.insert("traceContext".to_owned(), context)),
            None => complain(field),
        }
    }
    let text = Value::Object(entry).to_string();
    element.insert("body".to_owned(), json!({"json": {"json": text}}));
    element.insert("service".to_owned(), service.into());
    element.insert("serviceInstance".to_owned(), instance.into());
    element.insert("endpoint".to_owned(), text_of(&ctx.uri).into());
    Value::Object(element)
}

/// The trace that a field `sw8` names, in version 3 of SkyWalking's propagation: eight parts, of which the
/// second is the trace, the third the segment and the fourth the span.
fn trace_context(field: &[u8]) -> Option<Value> {
    let parts: Vec<&str> = std::str::from_utf8(field).ok()?.split('-').collect();
    let [_, trace, segment, span, _, _, _, _] = parts[..] else { return None };
    let (trace, segment, span) = (decoded(trace)?, decoded(segment)?, span.parse::<u64>().ok()?);
    Some(json!({"traceId": trace, "traceSegmentId": segment, "spanId": span}))
}

/// A text in Base64, of either alphabet, padded or not.
fn decoded(part: &str) -> Option<String> {
    let settings = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let engines = [&STANDARD, &URL_SAFE].map(|alphabet| GeneralPurpose::new(alphabet, settings));
    let bytes = engines.iter().find_map(|engine| engine.decode(part).ok())?;
    String::from_utf8(bytes).ok()
}

fn complain(field: &[u8]) {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    if let Some(left_out) = COMPLAINT.due() {
        let mut field = text_of(field);
        cut(&mut field, SHOWN_FIELD_BYTES);
        let field = field.escape_debug();
        tracing::warn!(left_out, "failed to parse trace_context header: {field}");
    }
}

/// The server that takes batches.
struct Server {
    address: Address,
    sender: HttpSender,
}

impl Server {
    fn new(config: &Config) -> Result<Server, String> {
        let address = config.endpoint_addr.at_path("/v3/logs");
        let mut fields = Fields::default();
        fields.set("host", address.host(), "endpoint_addr")?;
        fields.set("content-type", "application/json", "endpoint_addr")?;
        let transport = Transport::new(batch::seconds(config.timeout), true);
        let sender = HttpSender::new(NAME, std::slice::from_ref(&address), transport, fields);
        Ok(Server { address, sender })
    }
}

impl Destination for Server {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            let answer = self.sender.post(&self.address, log_entry::json_list(entries, false)).await;
            let answer = answer.map_err(|failure| failure.to_string())?;
            Ok(answer.below_400().await?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, refusal};

    /// The example of SkyWalking's page on its propagation.
    const SW8: &str = "1-VFJBQ0VJRA==-U0VHTUVOVElE-3-UEFSRU5UX1NFUlZJQ0U=-UEFSRU5UX0lOU1RBTkNF-UEFSRU5UX0VORFBPSU5U-SVBQT1JU";

    #[test]
    fn elements_belong_to_the_trace_of_the_request() {
        let check = |field: &str, expected: Option<Value>| {
            let case = Case::new(&format!("GET /a%22b?q HTTP/1.1\nHost: h{field}"));
            let entry = serde_json::from_value(json!({"x": "\"\n"})).unwrap();
            let mut wanted = json!({
                "body": {"json": {"json": r#"{"x":"\"\n"}"#}}, "service": "s", "serviceInstance": "i", "endpoint": "/a\"b"
            });
            if let Some(context) = expected {
                wanted["traceContext"] = context;
            }
            assert_eq!(element(entry, &case.ctx, "s", "i"), wanted, "{field}");
        };
        let context = json!({"traceId": "TRACEID", "traceSegmentId": "SEGMENTID", "spanId": 3});
        check("", None);
        check(&format!("\nsw8: {SW8}"), Some(context));
        for wrong in ["1-a-b", "1-****-U0VH-3-a-b-c-d", "1-U0VH-U0VH-x-a-b-c-d", "1-/w==-U0VH-3-a-b-c-d"] {
            check(&format!("\nsw8: {wrong}"), None);
        }
        let [url, open] =
            ["1-Pz8_-YQ-0-a-b-c-d", "1-Pz8/-YQ==-0-a-b-c-d"].map(|text| trace_context(text.as_bytes()));
        assert_eq!(url, Some(json!({"traceId": "???", "traceSegmentId": "a", "spanId": 0})));
        assert_eq!(url, open);
    }

    #[test]
    fn bad_configurations() {
        let check = |conf: Value, expected: &str| {
            let refused = refusal(NAME, &conf);
            assert!(refused.contains(expected), "{conf}: {refused}");
        };
        check(json!({}), r#"property "endpoint_addr" is required"#);
        check(json!({"endpoint_addr": "h"}), "failed to match pattern");
        check(json!({"endpoint_addr": "http://h", "timeout": 0}), "expected 0 to be at least 1");
        check(
            json!({"endpoint_addr": "http://h", "include_req_body_expr": [["a", "~", 1]]}),
            "failed to validate the 'include_req_body_expr' expression: ",
        );
    }
}
