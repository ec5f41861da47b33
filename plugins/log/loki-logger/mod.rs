//! `loki-logger`: entries in batches to Grafana Loki.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_plugin::credentials::Masked;
use sigma_plugin::system::{Host, System};
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env};
use sigma_schema::template::Template;

use crate::shared::http_sender::{Address, Endpoints, Fields, HttpSender, OwnFields, Transport, cut};
use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Processor, Sending};
use sigma_plugin_kit::log_entry::{self, EntryConfig, Logger, Sink};
use sigma_plugin_kit::log_format::text_of;
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::service::Keepalive;

const NAME: &str = "loki-logger";

/// Bytes of a label's value; Loki takes 2048.
const LABEL_BYTES: usize = 1024;

/// For how long a set of labels counts. Loki itself forgets a stream that is idle for half as long.
const SETS_KEPT: Duration = Duration::from_secs(3600);

/// The value of labels with variables in entries that exceed `max_label_sets`.
const OVERFLOW: &str = "overflow";

/// `loki-logger`.
pub(crate) static LOKI_LOGGER: Descriptor = Descriptor {
    name: NAME,
    priority: 414,
    example: include_str!("example.md"),
    build: |build| Ok(Arc::new(logger(build)?)),
    variables: &{
        let [format, extra, request, response] = log_entry::VARIABLES;
        [VariableField::shown("log_labels.*", VariableForm::Template), format, extra, request, response]
    },
    ..super::shipper::<Config>()
};

/// Sends log entries in batches to Grafana Loki.
///
/// Entries with the same labels form a stream; the time of an entry is the start of the request. Clients can
/// influence labels with variables. A value has at most 1024 bytes, and entries beyond `max_label_sets` in an hour
/// have `overflow` as the value of such labels. Requests never wait for the server. A failed batch is sent again
/// `max_retry_count` times and then dropped. Entries beyond `max_pending_entries` of the plugin metadata or 64 MiB
/// are dropped.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named("loki logger"))]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// Servers; each batch is sent to a random one.
    #[schemars(length(min = 1))]
    endpoint_addrs: Vec<Address>,
    /// The path on each server.
    #[schemars(length(min = 1), extend("default" = "/loki/api/v1/push"))]
    endpoint_uri: String,
    /// The tenant, sent in `X-Scope-OrgID`.
    #[schemars(extend("default" = "fake"))]
    tenant_id: String,
    /// Header fields of the requests, except `Content-Type` and `X-Scope-OrgID`.
    headers: Option<OwnFields>,
    /// Labels by name; values may contain variables. A value in which no variable exists is sent as configured.
    #[schemars(extend(
        "default" = {"job": "apisix"},
        "additionalProperties" = {"type": "string", "minLength": 1}
    ))]
    log_labels: BTreeMap<String, String>,
    /// Maximum sets of labels in an hour; beyond them labels with variables have the value `overflow`.
    #[schemars(range(min = 1), extend("default" = 1000, "own_default" = true))]
    max_label_sets: usize,
    /// Checks the servers' certificates.
    #[schemars(extend("default" = false))]
    ssl_verify: bool,
    /// Timeout in milliseconds, for the connection and for the exchange.
    #[schemars(range(min = 1, max = 60_000), extend("default" = 3000))]
    timeout: u64,
    #[serde(flatten)]
    keepalive: Keepalive,
    #[serde(flatten)]
    batch: BatchSettings,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        let is_name = |name: &str| {
            let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            name.bytes().all(is_word) && name.bytes().next().is_some_and(|b| !b.is_ascii_digit())
        };
        if let Some(name) = self.log_labels.keys().find(|name| !is_name(name)) {
            return Err(format!(
                "log_labels: `{name}` is not a name of a label: use letters, digits and `_`"
            ));
        }
        self.fields()?;
        Endpoints::at(&self.endpoint_addrs, &self.endpoint_uri).map(drop)
    }
}

impl Config {
    fn fields(&self) -> Result<Fields, String> {
        let mut fields = Fields::default();
        if let Some(own) = &self.headers {
            fields.set_own(own)?;
        }
        fields.set("content-type", "application/json", "headers")?;
        fields.set("x-scope-orgid", &self.tenant_id, "tenant_id")?;
        Ok(fields)
    }
}

fn logger(build: &Build<'_>) -> Result<Logger<LokiSink>, String> {
    let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
    let labels = config.log_labels.iter().map(|(name, text)| Label::new(name, text)).collect();
    let server = Server::new(&config)?;
    let pending = metadata.max_pending_entries;
    let processor = batch::processor(build, NAME, &config.batch, pending, || server);
    Ok(Logger::new(config.entry, metadata.formats, LokiSink { labels, processor }))
}

/// A label of entries.
struct Label {
    name: String,
    /// Its value as it was written.
    text: String,
    value: Template,
}

impl Label {
    fn new(name: &str, text: &str) -> Label {
        Label { name: name.to_owned(), text: text.to_owned(), value: Template::parse(text) }
    }

    fn of(&self, ctx: &Context) -> String {
        let mut value = Vec::new();
        if self.value.render(&Masked(ctx), &mut value) == 0 {
            return self.text.clone();
        }
        let mut value = text_of(&value);
        cut(&mut value, LABEL_BYTES);
        value
    }
}

struct LokiSink {
    labels: Box<[Label]>,
    processor: Arc<Processor>,
}

impl Sink for LokiSink {
    fn take(&self, mut entry: Map<String, Value>, ctx: &Context, env: &Env<'_>) {
        entry.entry("route_id").or_insert_with(|| "no-matched".into());
        let labels = self.labels.iter().map(|label| (label.name.clone(), label.of(ctx).into())).collect();
        let entry = encoded(labels, log_entry::started_ms(ctx, env), entry);
        self.processor.push(entry, ctx, env);
    }
}

/// An entry as it waits: its labels, and in the next line its value, as both are sent. JSON without spaces has
/// no line feeds.
fn encoded(labels: Map<String, Value>, started_ms: u64, entry: Map<String, Value>) -> Vec<u8> {
    let line = Value::Object(entry).to_string();
    let value = Value::from(vec![format!("{started_ms}000000"), line]);
    format!("{}\n{value}", Value::Object(labels)).into_bytes()
}

/// The servers that take batches.
struct Server {
    endpoints: Endpoints,
    sender: HttpSender,
    sets: LabelSets,
}

impl Server {
    fn new(config: &Config) -> Result<Server, String> {
        let endpoints = Endpoints::at(&config.endpoint_addrs, &config.endpoint_uri)?;
        let timeout = Duration::from_millis(config.timeout);
        let transport = Transport::new(timeout, config.ssl_verify).keeping(&config.keepalive);
        let sender = HttpSender::new(NAME, endpoints.all(), transport, config.fields()?);
        let rest = config.log_labels.iter().map(|(name, text)| {
            let is_fixed = Template::parse(text).literal().is_some();
            (name.clone(), Value::from(if is_fixed { text } else { OVERFLOW }))
        });
        let rest = Value::Object(rest.collect()).to_string();
        let sets = LabelSets { most: config.max_label_sets, rest, known: Mutex::default() };
        Ok(Server { endpoints, sender, sets })
    }
}

impl Destination for Server {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            let now = Host.uptime();
            let body = payload(entries, |labels| self.sets.admit(labels, now));
            let answer = self.sender.post(self.endpoints.pick(), body).await;
            let mut answer = answer.map_err(|failure| failure.to_string())?;
            let status = answer.status;
            if status < 300 {
                answer.finish().await;
                return Ok(());
            }
            let body = answer.shown_body().await;
            Err(format!("loki server returned status: {status}, body: {body}").into())
        })
    }
}

/// A batch, its entries in streams by their labels.
fn payload<'e>(entries: &'e [Vec<u8>], admit: impl Fn(&'e [u8]) -> &'e [u8]) -> Vec<u8> {
    let mut streams: Vec<(&[u8], Vec<&[u8]>)> = Vec::new();
    let mut places: HashMap<&[u8], usize> = HashMap::new();
    for entry in entries {
        let end = entry.iter().position(|b| *b == b'\n').unwrap_or(entry.len());
        let (labels, value) = (admit(&entry[..end]), entry.get(end + 1..).unwrap_or_default());
        let place = *places.entry(labels).or_insert_with(|| {
            streams.push((labels, Vec::new()));
            streams.len() - 1
        });
        streams[place].1.push(value);
    }
    let streams: Vec<Vec<u8>> = streams
        .iter()
        .map(|(labels, values)| {
            [br#"{"stream":"#, *labels, br#","values":["#, &values.join(&b',')[..], b"]}"].concat()
        })
        .collect();
    [br#"{"streams":["#, &streams.join(&b',')[..], b"]}"].concat()
}

/// The sets of labels that entries had lately: a client that sends ever other values must not make ever other
/// streams, of which Loki takes a limited number from all gateways together.
struct LabelSets {
    most: usize,
    /// The set of entries that exceed it.
    rest: String,
    known: Mutex<KnownSets>,
}

#[derive(Default)]
struct KnownSets {
    sets: HashSet<Box<[u8]>>,
    /// When the first of them came, by the uptime of the process.
    since: Option<Duration>,
}

impl LabelSets {
    /// These labels, or others if there are too many.
    fn admit<'e>(&'e self, labels: &'e [u8], now: Duration) -> &'e [u8] {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.since.is_none_or(|since| now.saturating_sub(since) >= SETS_KEPT) {
            *known = KnownSets { sets: HashSet::new(), since: Some(now) };
        }
        if known.sets.contains(labels) {
            return labels;
        }
        if known.sets.len() < self.most {
            known.sets.insert(labels.into());
            return labels;
        }
        static COMPLAINT: LogThrottle = LogThrottle::new();
        if let Some(left_out) = COMPLAINT.due() {
            let most = self.most;
            tracing::warn!(
                left_out,
                most,
                "loki-logger: `max_label_sets` is reached; new label sets omit variables"
            );
        }
        self.rest.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Case, config_of, refusal};

    fn map(value: Value) -> Map<String, Value> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn labels_are_texts_for_any_client_input() {
        let mut case = Case::new("GET /?a=x\"}y&b=%0a HTTP/1.1\nHost: h");
        case.ctx.request.headers.append("X-Long", "é".repeat(600).as_bytes());
        let check = |text: &str, expected: &str| {
            assert_eq!(Label::new("l", text).of(&case.ctx), expected, "{text}");
        };
        check("gateway", "gateway");
        check("$host", "h");
        check("a-$arg_none-$host", "a--h");
        check("a-$arg_none", "a-$arg_none");
        check("$arg_a", "x\"}y");
        check("$http_x_long", &"é".repeat(512));
        let label = |text: &str| Value::from(Label::new("l", text).of(&case.ctx));
        let entry = encoded(map(json!({"l": label("$arg_a$arg_b")})), 7, map(json!({"a": "\n\"]"})));
        assert_eq!(
            String::from_utf8(entry).unwrap(),
            r#"{"l":"x\"}y\n"}"#.to_owned() + "\n" + r#"["7000000","{\"a\":\"\\n\\\"]\"}"]"#
        );
    }

    #[test]
    fn entries_with_the_same_labels_form_a_stream() {
        let entry = |label: &str, at: u64| encoded(map(json!({"l": label})), at, map(json!({"n": at})));
        let entries = [entry("a", 1), entry("b", 2), entry("a", 3)];
        let expected = concat!(
            r#"{"streams":[{"stream":{"l":"a"},"values":[["1000000","{\"n\":1}"],["3000000","{\"n\":3}"]]},"#,
            r#"{"stream":{"l":"b"},"values":[["2000000","{\"n\":2}"]]}]}"#
        );
        assert_eq!(String::from_utf8(payload(&entries, |labels| labels)).unwrap(), expected);
    }

    #[test]
    fn sets_of_labels_are_bounded_for_an_hour() {
        let conf = json!({"endpoint_addrs": ["http://h"], "max_label_sets": 2, "log_labels": {"j": "x", "u": "$uri"}});
        let server = Server::new(&config_of(conf)).unwrap();
        let now = Duration::from_secs(9);
        let check = |labels: &str, after: Duration, expected: &str| {
            let admitted = server.sets.admit(labels.as_bytes(), now + after);
            assert_eq!(std::str::from_utf8(admitted).unwrap(), expected);
        };
        for labels in [r#"{"j":"x","u":"/1"}"#, r#"{"j":"x","u":"/2"}"#, r#"{"j":"x","u":"/1"}"#] {
            check(labels, Duration::ZERO, labels);
        }
        let third = r#"{"j":"x","u":"/3"}"#;
        check(third, SETS_KEPT / 2, r#"{"j":"x","u":"overflow"}"#);
        check(third, SETS_KEPT, third);
    }

    #[test]
    fn bad_configurations() {
        let check = |conf: Value, expected: &str| {
            let refused = refusal(NAME, &conf);
            assert!(refused.contains(expected), "{conf}: {refused}");
        };
        check(json!({}), r#"property "endpoint_addrs" is required"#);
        check(json!({"endpoint_addrs": ["http://h?a=b"]}), "has a query");
        let with = |field: &str, value: Value| json!({"endpoint_addrs": ["http://h"], field: value});
        check(with("log_labels", json!({"a-b": "x"})), "log_labels: `a-b` is not a name of a label");
        check(with("log_labels", json!({"a": ""})), r#"property "log_labels" validation failed"#);
        check(
            with("headers", json!({"a": "x\ny"})),
            "headers.a: it contains a character that a header field cannot carry",
        );
        check(
            with("tenant_id", json!("a\nb")),
            "tenant_id: it contains a character that a header field cannot carry",
        );
        check(with("keepalive_timeout", json!(999)), "expected 999 to be at least 1000");
        check(with("timeout", json!(60_001)), "expected 60001 to be at most 60000");
    }
}
