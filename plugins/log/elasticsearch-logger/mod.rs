//! `elasticsearch-logger`: entries in batches to Elasticsearch, or what understands its bulk requests.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_plugin::credentials::Masked;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Node};
use sigma_schema::Confidential;
use sigma_schema::template::Template;
use tokio::sync::OnceCell;

use crate::shared::http_sender::{Address, Endpoints, Fields, HttpSender, OwnFields, Transport, cut};
use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Processor, Sending};
use sigma_plugin_kit::log_entry::{self, EntryConfig, Logger, Sink};
use sigma_plugin_kit::log_format::text_of;
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::utc::Format;

const NAME: &str = "elasticsearch-logger";

/// Bytes that the name of an index has at most.
const INDEX_BYTES: usize = 255;

/// Bytes of the response that tells the version.
const VERSION_BYTES: usize = 64 << 10;

/// Bytes of the response to a batch that are read.
const BULK_ANSWER_BYTES: usize = 4 << 20;

/// `elasticsearch-logger`.
pub(crate) static ELASTICSEARCH_LOGGER: Descriptor = Descriptor {
    name: NAME,
    priority: 413,
    example: include_str!("example.md"),
    build: |build| Ok(Arc::new(logger(build)?)),
    variables: &{
        let [format, extra, request, response] = log_entry::VARIABLES;
        [VariableField::shown("field.index", VariableForm::Template), format, extra, request, response]
    },
    ..super::shipper::<Config>()
};

/// Sends log entries in batches to Elasticsearch, versions 5 to 9, or to OpenSearch.
///
/// Each batch is one request for `/_bulk`. Requests never wait for the server. A failed batch is sent again
/// `max_retry_count` times and then dropped. Entries beyond `max_pending_entries` of the plugin metadata or 64 MiB
/// are dropped. Entries that the server refuses individually are counted as dropped and not sent again; the error log
/// has the first reason.
#[derive(Deserialize, JsonSchema)]
#[schemars(
    transform = batch::named(NAME),
    extend("oneOf" = [
        {"required": ["endpoint_addr", "field"]},
        {"required": ["endpoint_addrs", "field"]}
    ])
)]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// Servers; each batch is sent to a random one.
    #[schemars(length(min = 1), inner(regex(pattern = "[^/]$")))]
    endpoint_addrs: Option<Vec<Address>>,
    /// The server, in the former form of `endpoint_addrs`.
    #[schemars(regex(pattern = "[^/]$"))]
    endpoint_addr: Option<Address>,
    /// The index for entries.
    field: Option<Field>,
    /// Credentials for the servers.
    auth: Option<Login>,
    /// Header fields of the requests; they have precedence over the plugin's own.
    #[schemars(transform = closed)]
    headers: Option<OwnFields>,
    /// Timeout in seconds, for the connection and for the exchange.
    #[schemars(range(min = 1), extend("default" = 10))]
    timeout: u64,
    /// Checks the servers' certificates.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    #[serde(flatten)]
    batch: BatchSettings,
}

/// Only names that fields can have.
fn closed(schema: &mut Schema) {
    let values = schema.remove("additionalProperties").unwrap_or_default();
    schema.insert("minProperties".to_owned(), 1.into());
    schema.insert("patternProperties".to_owned(), serde_json::json!({"^[^:]+$": values}));
    schema.insert("additionalProperties".to_owned(), false.into());
}

#[derive(Deserialize, JsonSchema)]
struct Field {
    /// The index. `{…}` contains a strftime format for the time in UTC; variables are allowed too.
    index: Index,
    /// Without effect: versions 5 and 6 get `_doc`.
    #[serde(rename = "type")]
    _type: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct Login {
    /// The user's name.
    #[schemars(length(min = 1))]
    username: String,
    /// The password.
    #[schemars(length(min = 1))]
    password: Confidential,
}

/// The name of an index, with times and variables.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
struct Index(#[schemars(with = "String")] Vec<Part>);

#[derive(Debug)]
enum Part {
    Text(Template),
    Time(Format),
}

impl TryFrom<String> for Index {
    type Error = String;

    fn try_from(text: String) -> Result<Index, String> {
        let (mut parts, mut rest, mut from) = (Vec::new(), &*text, 0);
        // A brace behind a dollar sign begins a variable.
        while let Some(at) = rest[from..].find('{').map(|at| from + at) {
            if rest[..at].ends_with('$') {
                from = at + 1;
                continue;
            }
            let Some(length) = rest[at..].find('}') else { break };
            let format =
                Format::parse(&rest[at + 1..at + length]).map_err(|error| format!("field.index: {error}"))?;
            parts.extend([Part::Text(Template::parse(&rest[..at])), Part::Time(format)]);
            (rest, from) = (&rest[at + length + 1..], 0);
        }
        parts.push(Part::Text(Template::parse(rest)));
        Ok(Index(parts))
    }
}

impl Index {
    fn of(&self, ctx: &Context, unix_s: u64) -> String {
        let mut name = Vec::new();
        for part in &self.0 {
            match part {
                Part::Text(template) => drop(template.render(&Masked(ctx), &mut name)),
                Part::Time(format) => name.extend_from_slice(format.text(unix_s).as_bytes()),
            }
        }
        let mut name = text_of(&name);
        cut(&mut name, INDEX_BYTES);
        name
    }
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        self.fields()?;
        self.addresses().map(drop)
    }
}

impl Config {
    fn addresses(&self) -> Result<Endpoints, String> {
        let all = self.endpoint_addrs.iter().flatten().chain(&self.endpoint_addr);
        let all: Vec<Address> = all.cloned().collect();
        // Neither may have a query.
        Endpoints::at(&all, "/_bulk")?;
        Endpoints::new(all)
    }

    fn fields(&self) -> Result<Fields, String> {
        let mut fields = Fields::default();
        fields.set("content-type", "application/x-ndjson", "headers")?;
        fields.set("accept", "application/vnd.elasticsearch+json", "headers")?;
        if let Some(Login { username, password }) = &self.auth {
            let login = STANDARD.encode(format!("{username}:{}", password.reveal()));
            fields.set_secret("authorization", &format!("Basic {login}"), &login, "auth")?;
            fields.hide(password.reveal());
        }
        if let Some(own) = &self.headers {
            fields.set_own(own)?;
        }
        Ok(fields)
    }
}

fn logger(build: &Build<'_>) -> Result<Logger<ElasticSink>, String> {
    let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
    let server = Server::new(&config, Arc::clone(build.node))?;
    let pending = metadata.max_pending_entries;
    let processor = batch::processor(build, NAME, &config.batch, pending, || server);
    let index = config.field.ok_or("property \"field\" is required")?.index;
    Ok(Logger::new(config.entry, metadata.formats, ElasticSink { index, processor }))
}

struct ElasticSink {
    index: Index,
    processor: Arc<Processor>,
}

impl Sink for ElasticSink {
    fn take(&self, entry: Map<String, Value>, ctx: &Context, env: &Env<'_>) {
        let index = self.index.of(ctx, env.unix_time().as_secs());
        self.processor.push(encoded(index, entry), ctx, env);
    }
}

/// An entry as it waits: the name of its index, and in the next line itself. JSON without spaces has no line
/// feeds.
fn encoded(index: String, entry: Map<String, Value>) -> Vec<u8> {
    format!("{}\n{}", Value::from(index), Value::Object(entry)).into_bytes()
}

/// The servers that take batches.
struct Server {
    roots: Endpoints,
    bulk: Endpoints,
    sender: HttpSender,
    /// The major version, once it is known.
    version: OnceCell<u64>,
    /// Gets the number of lost entries.
    node: Arc<Node>,
}

impl Server {
    fn new(config: &Config, node: Arc<Node>) -> Result<Server, String> {
        let roots = config.addresses()?;
        let bulk = Endpoints::at(roots.all(), "/_bulk")?;
        let transport = Transport::new(batch::seconds(config.timeout), config.ssl_verify);
        let sender = HttpSender::new(NAME, roots.all(), transport, config.fields()?);
        Ok(Server { roots, bulk, sender, version: OnceCell::new(), node })
    }

    /// Requests the major version.
    async fn asked_version(&self) -> Result<u64, String> {
        let answer = self.sender.get(self.roots.pick()).await;
        let mut answer = answer.map_err(|failure| failure.to_string())?;
        if answer.status != 200 {
            let (status, body) = (answer.status, answer.shown_body().await);
            return Err(format!("server returned status: {status}, body: {body}"));
        }
        let about: Value = serde_json::from_slice(&answer.body(VERSION_BYTES).await).unwrap_or_default();
        let number = about.pointer("/version/number").and_then(Value::as_str);
        let major = number.and_then(|number| number.split('.').next()?.parse().ok());
        major.ok_or_else(|| "the answer has no version.number".to_owned())
    }

    /// Whether entries name a type, as versions 5 and 6 need it.
    async fn needs_type(&self) -> bool {
        match self.version.get_or_try_init(|| self.asked_version()).await {
            Ok(version) => matches!(version, 5 | 6),
            Err(reason) => {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::error!(left_out, "failed to get Elasticsearch version: {reason}");
                }
                false
            }
        }
    }

    /// Counts entries that a response of success says were refused.
    fn count_refused(&self, refused: usize, reason: &str) {
        self.node.lose_lines(refused as u64);
        static COMPLAINT: LogThrottle = LogThrottle::new();
        if let Some(left_out) = COMPLAINT.due() {
            tracing::error!(left_out, refused, "elasticsearch server refused entries of a batch: {reason}");
        }
    }
}

impl Destination for Server {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            let body = payload(entries, self.needs_type().await);
            let answer = self.sender.post(self.bulk.pick(), body).await;
            let mut answer = answer.map_err(|failure| failure.to_string())?;
            if answer.status != 200 {
                let (status, body) = (answer.status, answer.shown_body().await);
                return Err(format!("elasticsearch server returned status: {status}, body: {body}").into());
            }
            let told = answer.body(BULK_ANSWER_BYTES).await;
            if let Some((refused, reason)) = refused_entries(&told) {
                self.count_refused(refused, &answer.shown(&reason));
            }
            Ok(())
        })
    }
}

/// A batch.
fn payload(entries: &[Vec<u8>], needs_type: bool) -> Vec<u8> {
    let kind: &[u8] = if needs_type { br#","_type":"_doc""# } else { b"" };
    let mut out = Vec::new();
    for entry in entries {
        let end = entry.iter().position(|b| *b == b'\n').unwrap_or(entry.len());
        let (index, entry) = (&entry[..end], entry.get(end + 1..).unwrap_or_default());
        for part in [br#"{"index":{"_index":"#, index, kind, b"}}\n", entry, b"\n"] {
            out.extend_from_slice(part);
        }
    }
    out
}

/// How many entries were refused by themselves, and why the first one was; None if all were taken.
fn refused_entries(answer: &[u8]) -> Option<(usize, String)> {
    #[derive(Deserialize)]
    struct BulkResponse {
        errors: bool,
        items: Vec<Map<String, Value>>,
    }
    let told: BulkResponse = serde_json::from_slice(answer).ok().filter(|told: &BulkResponse| told.errors)?;
    let reasons = told.items.iter().filter_map(|item| item.values().next()?.get("error"));
    let (count, first) = (reasons.clone().count(), reasons.clone().next()?);
    Some((count, first.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Case, refusal};

    #[test]
    fn indices_have_times_and_variables() {
        let case = Case::new("GET /?a=x\"}&long=aaaaaaaaaa HTTP/1.1\nHost: h");
        let check = |text: &str, expected: &str| {
            let index = Index::try_from(text.to_owned()).unwrap();
            assert_eq!(index.of(&case.ctx, 951_827_696), expected, "{text}");
        };
        check("services", "services");
        check("s-{%Y.%m.%d}-$host", "s-2000.02.29-h");
        check("{%G}${host}{%V}", "2000h09");
        check("${host}-{%H}-${arg_none ?? x}", "h-12-x");
        check("$arg_a", "x\"}");
        check("a{b", "a{b");
        check(&"$arg_long".repeat(30), &"a".repeat(INDEX_BYTES));
        assert_eq!(
            Index::try_from("{%Q}".to_owned()).unwrap_err(),
            "field.index: `%Q` is not a conversion of strftime"
        );
    }

    #[test]
    fn a_batch_has_two_lines_for_each_entry() {
        let entry = serde_json::from_value::<Map<_, _>>(json!({"u": "\n\"{"})).unwrap();
        let entries = [encoded("a\"b\n".to_owned(), entry.clone()), encoded("c".to_owned(), entry)];
        let check = |needs_type: bool, kind: &str| {
            let line = r#"{"u":"\n\"{"}"#;
            let expected = format!(
                "{{\"index\":{{\"_index\":\"a\\\"b\\n\"{kind}}}}}\n{line}\n{{\"index\":{{\"_index\":\"c\"{kind}}}}}\n{line}\n"
            );
            assert_eq!(String::from_utf8(payload(&entries, needs_type)).unwrap(), expected);
        };
        check(false, "");
        check(true, ",\"_type\":\"_doc\"");
    }

    #[test]
    fn entries_that_are_refused_by_themselves_are_counted() {
        let check = |answer: Value, expected: Option<(usize, &str)>| {
            let found = refused_entries(answer.to_string().as_bytes());
            assert_eq!(found.as_ref().map(|(count, reason)| (*count, &**reason)), expected, "{answer}");
        };
        let taken = json!({"index": {"status": 201}});
        let refused = |reason: &str| json!({"index": {"status": 400, "error": {"reason": reason}}});
        check(json!({"errors": false, "items": [taken]}), None);
        check(
            json!({"errors": true, "items": [refused("a"), taken, refused("b")]}),
            Some((2, r#"{"reason":"a"}"#)),
        );
        check(json!({}), None);
        check(json!({"errors": true, "items": [{}]}), None);
    }

    #[test]
    fn bad_configurations() {
        let check = |conf: Value, expected: &str| {
            let refused = refusal(NAME, &conf);
            assert!(refused.contains(expected), "{conf}: {refused}");
        };
        let (at, field) = ("http://h:9200", json!({"index": "a"}));
        check(json!({"field": field}), "value should match only one schema, but matches none");
        check(json!({"endpoint_addr": at}), "value should match only one schema, but matches none");
        check(
            json!({"endpoint_addr": at, "endpoint_addrs": [at], "field": field}),
            "matches both schemas 1 and 2",
        );
        check(json!({"endpoint_addr": "http://h/", "field": field}), "failed to match pattern");
        check(json!({"endpoint_addrs": ["http://h/"], "field": field}), "failed to match pattern");
        check(json!({"endpoint_addr": at, "field": {}}), r#"property "index" is required"#);
        check(json!({"endpoint_addr": at, "field": {"index": "{%Q}"}}), "field.index: `%Q`");
        let with = |name: &str, value: Value| json!({"endpoint_addr": at, "field": field, name: value});
        check(with("headers", json!({})), r#"property "headers" validation failed"#);
        check(with("headers", json!({"a:b": "c"})), r#"property "headers" validation failed"#);
        check(with("headers", json!({"a": ""})), r#"property "headers" validation failed"#);
        check(with("auth", json!({"username": "a"})), r#"property "password" is required"#);
        assert_eq!(refusal(NAME, &with("field", json!({"index": "a", "type": "b"}))), "");
    }
}
