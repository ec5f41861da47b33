//! `loggly`: entries to SolarWinds Loggly, as syslog over UDP or by its HTTP bulk endpoint.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Node};
use sigma_schema::Confidential;
use sigma_schema::Problem;
use sigma_schema::described::schema_of;
use sigma_schema::plugins::PluginScope;

use crate::shared::http_sender::{Address, Fields, HttpSender, Transport};
use crate::shared::rfc5424;
use sigma_plugin_kit::batch::{self, BatchSettings, Batches, Destination, Limits, Processor, Sending};
use sigma_plugin_kit::log_entry::{EntryConfig, Formats, Logger, Sink};
use sigma_plugin_kit::log_format::text_of;
use sigma_plugin_kit::server::{Host, ServerLocation, UdpServer};
use sigma_plugin_kit::service;

const NAME: &str = "loggly";

/// Loggly's number among the enterprises of RFC 5424, §7.2.2.
const ENTERPRISE: u32 = 41058;

/// The value that the facility user adds to a severity (RFC 5424, §6.2.1).
const USER_FACILITY: u8 = 8;

/// Bytes of a refusing response that are read.
const ANSWER_BYTES: usize = 16 << 10;

/// `loggly`.
pub(crate) static LOGGLY: Descriptor = Descriptor {
    name: NAME,
    priority: 411,
    example: include_str!("example.md"),
    metadata_schema: Some(schema_of::<Metadata>),
    warnings: Some(warnings),
    build: |build| Ok(Arc::new(logger(build)?)),
    ..super::shipper::<Config>()
};

/// Sends log entries to SolarWinds Loggly.
///
/// The plugin metadata set the server and the protocol: syslog over UDP, or HTTP. Over UDP each entry is a datagram;
/// an entry that is too long is dropped and counted. Requests never wait for the service. A failed batch is sent again
/// `max_retry_count` times and then dropped. Entries beyond `max_pending_entries` or 64 MiB are dropped.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named(NAME))]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// The token of the account.
    customer_token: Confidential,
    /// Severity of entries.
    #[schemars(extend("default" = "INFO"))]
    severity: Severity,
    /// Severity of entries by response status.
    severity_map: Option<SeverityMap>,
    /// Tags of all entries.
    #[schemars(
        length(min = 1),
        extend("items" = {"type": "string", "pattern": TAG}, "default" = ["apisix"])
    )]
    tags: Vec<String>,
    /// Checks the service's certificate if `protocol` is `https`.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    #[serde(flatten)]
    batch: BatchSettings,
}

/// Printable, and not in the form that the plugin itself gives tags.
const TAG: &str = "^(?!tag=)[ -~]*";

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        let is_tag =
            |tag: &&String| !tag.starts_with("tag=") && tag.bytes().all(|b| (b' '..=b'~').contains(&b));
        if let Some(tag) = self.tags.iter().find(|tag| !is_tag(tag)) {
            let tag = tag.escape_debug();
            return Err(format!(
                "tags: `{tag}` begins with `tag=` or has a character that is not printable ASCII"
            ));
        }
        let is_token = |b: u8| b.is_ascii_graphic() && !b"]\"\\/?#".contains(&b);
        match self.customer_token.reveal().bytes().all(is_token) {
            true => Ok(()),
            false => Err("customer_token: it is part of a URL: use letters, digits and `-`".to_owned()),
        }
    }
}

/// The severities of RFC 5424 in the words of APISIX, in upper or lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Severity(u8);

const SEVERITIES: [&str; 8] = ["EMEGR", "ALERT", "CRIT", "ERR", "WARNING", "NOTICE", "INFO", "DEBUG"];

impl<'de> Deserialize<'de> for Severity {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Severity, D::Error> {
        let name = String::deserialize(deserializer)?;
        let at = SEVERITIES.iter().position(|known| *known == name.to_ascii_uppercase());
        let at = at.ok_or_else(|| serde::de::Error::custom(format!("unknown severity `{name}`")))?;
        Ok(Severity(at as u8))
    }
}

impl JsonSchema for Severity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Severity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let lower = SEVERITIES.map(str::to_ascii_lowercase);
        let all: Vec<&str> = SEVERITIES.into_iter().chain(lower.iter().map(String::as_str)).collect();
        json_schema!({"type": "string", "enum": all})
    }
}

/// Severities by status.
#[derive(Debug, Default, Deserialize)]
struct SeverityMap(BTreeMap<String, Severity>);

impl JsonSchema for SeverityMap {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "SeverityMap".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let severity = Severity::json_schema(generator);
        json_schema!({
            "type": "object",
            "patternProperties": {"^[1-5][0-9]{2}$": severity},
            "additionalProperties": false
        })
    }
}

/// The destination and content of entries.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    #[serde(flatten)]
    formats: Formats,
    /// Host of the service; over HTTP a URL is accepted too.
    host: String,
    /// Port of the service for syslog.
    port: u16,
    /// Protocol to the service.
    protocol: Protocol,
    /// Timeout in milliseconds of each step: name resolution, connection, sending.
    #[schemars(range(min = 1))]
    timeout: u64,
    /// Maximum entries that wait to be sent; more are dropped.
    #[schemars(range(min = 1))]
    max_pending_entries: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Protocol {
    Syslog,
    Http,
    Https,
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata {
            formats: Formats::default(),
            host: "logs-01.loggly.com".to_owned(),
            port: 514,
            protocol: Protocol::Syslog,
            timeout: 5000,
            max_pending_entries: Limits::default().entries,
        }
    }
}

fn warnings(_: PluginScope, conf: &Value) -> Vec<Problem> {
    let message = "over https another server can impersonate the service and get the entries and the token";
    service::unverified(conf, message).into_iter().collect()
}

fn logger(build: &Build<'_>) -> Result<Logger<LogglySink>, String> {
    let (config, metadata): (Config, Metadata) = (build.config()?, build.metadata_as()?);
    let destination: Arc<dyn Destination> = match metadata.protocol {
        Protocol::Syslog => Arc::new(Datagrams::new(&metadata, build.node)?),
        Protocol::Http | Protocol::Https => Arc::new(Bulk::new(&config, &metadata)?),
    };
    // Entries that wait for one transport are not sent by another.
    let key = batch::key_with_metadata(build);
    let limits = Limits { entries: metadata.max_pending_entries, ..Limits::default() };
    let processor = Batches::processor(build.node, NAME, key, &config.batch, limits, || destination);
    let line = (metadata.protocol == Protocol::Syslog).then(|| Line::new(&config));
    Ok(Logger::new(config.entry, metadata.formats, LogglySink { line, processor }))
}

struct LogglySink {
    /// The form of a line of syslog; None if entries are sent as they are.
    line: Option<Line>,
    processor: Arc<Processor>,
}

impl Sink for LogglySink {
    fn take(&self, entry: Map<String, Value>, ctx: &Context, env: &Env<'_>) {
        let Some(line) = &self.line else { return self.processor.take(entry, ctx, env) };
        let unix_ms = env.unix_time().as_millis() as u64;
        let line = line.of(&ctx.host_name(), ctx.record.status, unix_ms, entry);
        self.processor.push(line.into_bytes(), ctx, env);
    }
}

/// The form of lines, RFC 5424.
struct Line {
    severity: Severity,
    by_status: BTreeMap<String, Severity>,
    /// Token and tags, as structured data.
    data: String,
}

impl Line {
    fn new(config: &Config) -> Line {
        let tags = config.tags.iter().map(|tag| format!(" tag=\"{}\"", rfc5424::escaped(tag)));
        let token = config.customer_token.reveal();
        let data = format!("[{token}@{ENTERPRISE}{}]", tags.collect::<String>());
        let by_status = config.severity_map.iter().flat_map(|map| map.0.clone()).collect();
        Line { severity: config.severity, by_status, data }
    }

    fn of(&self, host: &[u8], status: u16, unix_ms: u64, entry: Map<String, Value>) -> String {
        let Severity(severity) = *self.by_status.get(&status.to_string()).unwrap_or(&self.severity);
        rfc5424::line(USER_FACILITY + severity, host, unix_ms, &self.data, entry)
    }
}

/// The service over UDP.
struct Datagrams(UdpServer);

impl Datagrams {
    fn new(metadata: &Metadata, node: &Arc<Node>) -> Result<Datagrams, String> {
        let host =
            Host::try_from(metadata.host.clone()).map_err(|error| format!("plugin metadata: {error}"))?;
        let timeout = Duration::from_millis(metadata.timeout);
        Ok(Datagrams(UdpServer::new(
            ServerLocation { plugin: NAME, host, port: metadata.port, timeout },
            node,
        )))
    }
}

impl Destination for Datagrams {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(self.0.send(entries.iter().map(Vec::as_slice)))
    }
}

/// The service over HTTP.
struct Bulk {
    address: Address,
    sender: HttpSender,
}

impl Bulk {
    fn new(config: &Config, metadata: &Metadata) -> Result<Bulk, String> {
        let host = match &*metadata.host {
            url if url.contains("://") => url.to_owned(),
            host if metadata.protocol == Protocol::Http => format!("http://{host}"),
            host => format!("https://{host}"),
        };
        let host = Address::try_from(host).map_err(|error| format!("plugin metadata: host: {error}"))?;
        let token = config.customer_token.reveal();
        let address = host.with_path(&format!("/bulk/{token}/tag/bulk"))?;
        let mut fields = Fields::default();
        fields.set("content-type", "application/json", "tags")?;
        for tag in &config.tags {
            fields.add("x-loggly-tag", tag, "tags")?;
        }
        fields.hide(token);
        let transport = Transport::new(Duration::from_millis(metadata.timeout), config.ssl_verify);
        let sender = HttpSender::new(NAME, std::slice::from_ref(&address), transport, fields);
        Ok(Bulk { address, sender })
    }

    async fn post(&self, entries: &[Vec<u8>]) -> Result<(), String> {
        let answer = self.sender.post(&self.address, entries.join(&b'\n')).await;
        let mut answer = answer.map_err(|failure| format!("failed to write log to loggly, {failure}"))?;
        if answer.status == 200 {
            return Ok(());
        }
        let body = answer.body(ANSWER_BYTES).await;
        let told = match serde_json::from_slice::<Value>(&body) {
            Ok(_) => format!(" response body: {}", answer.shown(&text_of(&body))),
            Err(_) => String::new(),
        };
        Err(format!("failed to send log to loggly, http status code: {}{told}", answer.status))
    }
}

impl Destination for Bulk {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move { Ok(self.post(entries).await?) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{config_of, refusal};

    fn conf(field: &str, value: Value) -> Value {
        let mut conf = json!({"customer_token": "t0ken"});
        conf[field] = value;
        conf
    }

    #[test]
    fn lines() {
        let check = |conf: Value, host: &[u8], status: u16, before: &str, behind: &str| {
            let entry = serde_json::from_value(json!({"a": "\n\"]"})).unwrap();
            let line = Line::new(&config_of(conf.clone())).of(host, status, 951_827_696_789, entry);
            let expected =
                format!("{before} apisix {} - {behind} {}", std::process::id(), r#"{"a":"\n\"]"}"#);
            assert_eq!(line, expected, "{conf}");
        };
        let time = "2000-02-29T12:34:56.789Z";
        check(
            conf("severity", json!("INFO")),
            b"h",
            200,
            &format!("<14>1 {time} h"),
            r#"[t0ken@41058 tag="apisix"]"#,
        );
        check(
            conf("severity", json!("emegr")),
            b"a b",
            200,
            &format!("<8>1 {time} -"),
            r#"[t0ken@41058 tag="apisix"]"#,
        );
        let tags = conf("tags", json!(["a", "b\"]\\"]));
        check(tags, b"h", 200, &format!("<14>1 {time} h"), r#"[t0ken@41058 tag="a" tag="b\"\]\\"]"#);
        let map = conf("severity_map", json!({"503": "CRIT", "404": "debug"}));
        for (status, priority) in [(503, 10), (404, 15), (200, 14)] {
            let before = format!("<{priority}>1 {time} h");
            check(map.clone(), b"h", status, &before, r#"[t0ken@41058 tag="apisix"]"#);
        }
    }

    #[test]
    fn urls() {
        let check = |host: &str, protocol: Protocol, expected: &str| {
            let metadata = Metadata { host: host.to_owned(), protocol, ..Metadata::default() };
            let bulk = Bulk::new(&config_of(conf("ssl_verify", json!(true))), &metadata).unwrap();
            assert_eq!(bulk.address.as_str(), expected);
        };
        check("logs-01.loggly.com", Protocol::Https, "https://logs-01.loggly.com/bulk/t0ken/tag/bulk");
        check("h", Protocol::Http, "http://h/bulk/t0ken/tag/bulk");
        check("http://h:81/in", Protocol::Https, "http://h:81/in/bulk/t0ken/tag/bulk");
    }

    #[test]
    fn bad_configurations() {
        let check = |conf: Value, expected: &str| {
            let refused = refusal(NAME, &conf);
            assert!(refused.contains(expected), "{conf}: {refused}");
        };
        check(json!({}), r#"property "customer_token" is required"#);
        check(conf("severity", json!("Info")), "matches none of the enum values");
        check(conf("severity_map", json!({"600": "INFO"})), r#"property "severity_map" validation failed"#);
        check(conf("severity_map", json!({"500": "x"})), r#"property "severity_map" validation failed"#);
        check(conf("tags", json!([])), "expect array to have at least 1 items");
        check(conf("tags", json!(["tag=a"])), r#"property "tags" validation failed"#);
        check(conf("tags", json!(["a\nb"])), "tags: ");
        check(conf("customer_token", json!("a/b]")), "customer_token: it is part of a URL");
    }
}
