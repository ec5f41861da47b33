//! `influxdb-logger`: entries as points of InfluxDB, in its line protocol.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env};
use sigma_schema::Confidential;

use crate::shared::http_sender::{Address, Endpoints, Fields, HttpSender, Transport};
use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Processor, Sending};
use sigma_plugin_kit::log_entry::{EntryConfig, Logger, Sink};

const NAME: &str = "influxdb-logger";

/// `influxdb-logger`.
pub(crate) static INFLUXDB_LOGGER: Descriptor = Descriptor {
    name: NAME,
    priority: 417,
    example: include_str!("example.md"),
    build: |build| Ok(Arc::new(logger(build)?)),
    ..super::shipper::<Config>()
};

/// Sends log entries in batches to InfluxDB: version 2 or 3 with `bucket`, version 1 with `database`.
///
/// Each entry is a point with the time of the end of its exchange in nanoseconds. Members of the entry that `tags`
/// names are tags, all others are fields; a member of an object is named `object.member`, and deeper ones are omitted.
/// Texts that are numbers become numbers. Requests never wait for the server. A failed batch is sent again
/// `max_retry_count` times and then dropped.
#[derive(Deserialize, JsonSchema)]
#[schemars(
    transform = batch::named(NAME),
    extend("oneOf" = [{"required": ["bucket"]}, {"required": ["database"]}])
)]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// Servers, without a path; each batch is sent to a random one.
    #[schemars(length(min = 1), inner(regex(pattern = "[^/]$")))]
    endpoint_addrs: Vec<Address>,
    /// The organization (version 2).
    #[schemars(length(min = 1, max = 256))]
    org: Option<String>,
    /// The bucket (version 2 and 3).
    #[schemars(length(min = 1, max = 256))]
    bucket: Option<String>,
    /// The database (version 1).
    #[schemars(length(min = 1, max = 256))]
    database: Option<String>,
    /// The API token, or `user:password` in version 1.
    #[schemars(length(min = 1, max = 4096))]
    token: Option<Confidential>,
    /// The measurement.
    #[schemars(length(min = 1, max = 256), extend("default" = "sigma_requests"))]
    measurement: String,
    /// The members that are tags. The server indexes them: name only members with few values.
    #[schemars(length(max = 64), extend("default" = ["route_id", "service_id", "response.status"]))]
    tags: Vec<String>,
    /// Timeout in seconds, for the connection and for the exchange.
    #[schemars(range(min = 1), extend("default" = 10))]
    timeout: u64,
    /// Checks the servers' certificates.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    #[serde(flatten)]
    batch: BatchSettings,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        self.fields()?;
        self.endpoints().map(drop)
    }
}

impl Config {
    /// The addresses that take points, with their arguments.
    fn endpoints(&self) -> Result<Endpoints, String> {
        let path = if self.database.is_some() { "/write" } else { "/api/v2/write" };
        let arguments = [("db", &self.database), ("org", &self.org), ("bucket", &self.bucket)];
        let with_arguments = |address: &Address| {
            let named = arguments.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?)));
            named.fold(address.with_argument("precision", "ns"), |address, (name, value)| {
                address.with_argument(name, value)
            })
        };
        let paths = Endpoints::at(&self.endpoint_addrs, path)?;
        Endpoints::new(paths.all().iter().map(with_arguments).collect())
    }

    fn fields(&self) -> Result<Fields, String> {
        let mut fields = Fields::default();
        fields.set("content-type", "text/plain; charset=utf-8", "headers")?;
        if let Some(token) = &self.token {
            let token = token.reveal();
            fields.set_secret("authorization", &format!("Token {token}"), token, "token")?;
        }
        Ok(fields)
    }
}

fn logger(build: &Build<'_>) -> Result<Logger<PointSink>, String> {
    let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
    let server = Server::new(&config)?;
    let pending = metadata.max_pending_entries;
    let processor = batch::processor(build, NAME, &config.batch, pending, || server);
    let sink = PointSink { measurement: name_of(&config.measurement), tags: config.tags, processor };
    Ok(Logger::new(config.entry, metadata.formats, sink))
}

struct PointSink {
    /// Escaped.
    measurement: String,
    tags: Vec<String>,
    processor: Arc<Processor>,
}

impl Sink for PointSink {
    fn take(&self, entry: Map<String, Value>, ctx: &Context, env: &Env<'_>) {
        if let Some(line) = point(&self.measurement, &self.tags, entry, env.unix_time().as_nanos()) {
            self.processor.push(line.into_bytes(), ctx, env);
        }
    }
}

/// The line of an entry; None if it has no field, which the protocol demands.
fn point(measurement: &str, tags: &[String], entry: Map<String, Value>, nanoseconds: u128) -> Option<String> {
    let members = flattened(entry);
    let mut line = measurement.to_owned();
    for tag in tags {
        let value = members.iter().find(|(name, _)| name == tag).and_then(|(_, value)| text_of(value));
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            line.push_str(&format!(",{}={}", key_of(tag), key_of(&value)));
        }
    }
    let fields = members.iter().filter(|(name, _)| !tags.contains(name));
    let fields: Vec<String> =
        fields.filter_map(|(name, value)| Some(format!("{}={}", key_of(name), field_of(value)?))).collect();
    (!fields.is_empty()).then(|| format!("{line} {} {nanoseconds}", fields.join(",")))
}

/// Members and the members of objects.
fn flattened(entry: Map<String, Value>) -> Vec<(String, Value)> {
    let mut members = Vec::new();
    for (name, value) in entry {
        match value {
            Value::Object(inner) => {
                let simple = inner.into_iter().filter(|(_, value)| !value.is_object() && !value.is_array());
                members.extend(simple.map(|(inner, value)| (format!("{name}.{inner}"), value)));
            }
            Value::Array(_) | Value::Null => {}
            value => members.push((name, value)),
        }
    }
    members
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}

/// A field's value. All numbers are floats, because a field keeps the type of its first point.
fn field_of(value: &Value) -> Option<String> {
    let number = |number: f64| number.is_finite().then(|| number.to_string());
    match value {
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(found) => number(found.as_f64()?),
        Value::String(text) => match text.parse::<f64>() {
            Ok(found) if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => number(found),
            _ => Some(format!("\"{}\"", one_line(text).replace('\\', "\\\\").replace('"', "\\\""))),
        },
        _ => None,
    }
}

/// A key, or the value of a tag. A backslash at the end would escape the next character.
fn key_of(text: &str) -> String {
    let text = one_line(text).replace(',', "\\,").replace('=', "\\=").replace(' ', "\\ ");
    text.trim_end_matches('\\').to_owned()
}

/// The name of a measurement.
fn name_of(text: &str) -> String {
    one_line(text).replace(',', "\\,").replace(' ', "\\ ")
}

/// A line end would begin another point.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The servers that take batches.
struct Server {
    endpoints: Endpoints,
    sender: HttpSender,
}

impl Server {
    fn new(config: &Config) -> Result<Server, String> {
        let transport = Transport::new(batch::seconds(config.timeout), config.ssl_verify);
        let sender = HttpSender::new(NAME, &config.endpoint_addrs, transport, config.fields()?);
        Ok(Server { endpoints: config.endpoints()?, sender })
    }
}

impl Destination for Server {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            let answer = self.sender.post(self.endpoints.pick(), entries.join(&b"\n"[..])).await;
            let mut answer = answer.map_err(|failure| failure.to_string())?;
            if !matches!(answer.status, 200 | 204) {
                let (status, body) = (answer.status, answer.shown_body().await);
                return Err(format!("influxdb returned status: {status}, body: {body}").into());
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{config_of, refusal};

    #[test]
    fn entries_become_points() {
        let tags = ["route".to_owned(), "response.status".to_owned(), "none".to_owned()];
        let check = |entry: Value, expected: Option<&str>| {
            let line = point("m", &tags, serde_json::from_value(entry.clone()).unwrap(), 5);
            assert_eq!(line.as_deref(), expected, "{entry}");
        };
        check(json!({"route": "a", "seconds": "0.25"}), Some("m,route=a seconds=0.25 5"));
        check(
            json!({"response": {"status": 200, "size": 7, "headers": {"a": "b"}}}),
            Some("m,response.status=200 response.size=7 5"),
        );
        check(json!({"route": "a b,c=d\\", "x": true}), Some("m,route=a\\ b\\,c\\=d x=true 5"));
        check(
            json!({"text": "a \"quoted\" \\ text\nm x=1"}),
            Some(r#"m text="a \"quoted\" \\ text m x=1" 5"#),
        );
        check(json!({"text": "inf", "other": "-", "n": "-1"}), Some(r#"m text="inf",other="-",n=-1 5"#));
        check(json!({"route": "", "x": 1}), Some("m x=1 5"));
        check(json!({"route": "a", "list": [1], "none": null}), None);
    }

    #[test]
    fn addresses_name_the_place() {
        let url = |conf: Value| {
            let config: Config = config_of(conf);
            config.endpoints().unwrap().all()[0].as_str().to_owned()
        };
        let at = json!(["http://h:8086"]);
        assert_eq!(
            url(json!({"endpoint_addrs": at, "org": "o p", "bucket": "b"})),
            "http://h:8086/api/v2/write?precision=ns&org=o+p&bucket=b"
        );
        assert_eq!(
            url(json!({"endpoint_addrs": at, "database": "d"})),
            "http://h:8086/write?precision=ns&db=d"
        );
    }

    #[test]
    fn bad_configurations() {
        let check = |conf: Value, expected: &str| {
            let refused = refusal(NAME, &conf);
            assert!(refused.contains(expected), "{conf}: {refused}");
        };
        let at = json!(["http://h:8086"]);
        check(json!({"bucket": "b"}), r#"property "endpoint_addrs" is required"#);
        check(json!({"endpoint_addrs": at}), "value should match only one schema, but matches none");
        check(json!({"endpoint_addrs": at, "bucket": "b", "database": "d"}), "matches both schemas 1 and 2");
        check(json!({"endpoint_addrs": ["http://h/"], "bucket": "b"}), "failed to match pattern");
        assert_eq!(refusal(NAME, &json!({"endpoint_addrs": at, "bucket": "b", "token": "t"})), "");
    }
}
