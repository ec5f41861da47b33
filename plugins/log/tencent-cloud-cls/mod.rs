//! `tencent-cloud-cls`: a sample of entries in batches to Tencent Cloud Log Service.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use aws_lc_rs::{digest, hmac};
use prost::Message;
use prost::encoding::{encode_key, encode_varint, encoded_len_varint};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_plugin::hex;
use sigma_plugin::system::{Host, System};
use sigma_plugin::{
    BodyFilter, Build, Configuration, Context, Descriptor, Env, Node, Plugin, ResponseStep, Step,
};
use sigma_schema::Confidential;
use tokio::sync::OnceCell;

use crate::shared::http_sender::{Address, Fields, HttpSender, Transport, cut};
use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Processor, Refusal, Sending};
use sigma_plugin_kit::log_entry::{EntryConfig, Logger, Sink};
use sigma_plugin_kit::log_throttle::LogThrottle;

const NAME: &str = "tencent-cloud-cls";

/// The path that entries are posted to, which is signed.
const PATH: &str = "/structuredlog";

/// Bytes of a value; the service takes no more.
const VALUE_BYTES: usize = 1 << 20;

/// Bytes of an entry, and of a request; the service takes no more.
const REQUEST_BYTES: usize = 5 << 20;

/// Seconds for which a signature is good.
const SIGNATURE_S: u64 = 60;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// `tencent-cloud-cls`.
pub(crate) static TENCENT_CLOUD_CLS: Descriptor = Descriptor {
    name: NAME,
    priority: 397,
    example: include_str!("example.md"),
    build: |build| Ok(Arc::new(Sampled::new(build)?)),
    ..super::shipper::<Config>()
};

/// Sends log entries, all or a sample of them, in batches to Tencent Cloud Log Service.
///
/// A request that another plugin ends before its upstream is chosen has no entry. A value is cut at 1 MiB, and an
/// entry of more than 5 MiB is dropped. Requests never wait for the service. A failed batch is sent again
/// `max_retry_count` times and then dropped. Entries beyond `max_pending_entries` of the plugin metadata or 64 MiB
/// are dropped. Entries refused with 401, 403, 404 or 413 are dropped at once. The timeouts are 1 second for the
/// connection and 10 seconds for the exchange.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named(NAME))]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// Host of the service, with an optional port.
    cls_host: String,
    /// The topic.
    cls_topic: String,
    /// Protocol to the service: `http` or `https`.
    #[schemars(extend("default" = "https"))]
    scheme: Scheme,
    /// The id of the secret key.
    secret_id: String,
    /// The secret key.
    secret_key: Confidential,
    /// Checks the service's certificate.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    /// The share of requests that are logged.
    #[schemars(range(min = 0.00001, max = 1), extend("default" = 1))]
    sample_ratio: f64,
    /// Additional members of each entry; they replace its own.
    global_tag: Option<Map<String, Value>>,
    #[serde(flatten)]
    batch: BatchSettings,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Scheme {
    Http,
    Https,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        if !self.secret_id.bytes().all(|b| b.is_ascii_graphic() && b != b'&') {
            return Err("secret_id: it is part of a header field: use letters and digits".to_owned());
        }
        self.address().map(drop)
    }
}

impl Config {
    fn address(&self) -> Result<Address, String> {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        let is_host = |b: u8| b.is_ascii_alphanumeric() || b".-:[]_".contains(&b);
        if self.cls_host.is_empty() || !self.cls_host.bytes().all(is_host) {
            return Err(format!(
                "cls_host: `{}` is not a host: write it without scheme and path",
                self.cls_host
            ));
        }
        let address = Address::try_from(format!("{scheme}://{}{PATH}", self.cls_host));
        Ok(address.map_err(|error| format!("cls_host: {error}"))?.with_argument("topic_id", &self.cls_topic))
    }
}

/// Makes entries of a sample of the requests.
struct Sampled {
    ratio: f64,
    logger: Logger<ClsSink>,
}

/// An exchange that is in the sample.
struct InSample;

impl Sampled {
    fn new(build: &Build<'_>) -> Result<Sampled, String> {
        let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
        let service = Service::new(&config, Arc::clone(build.node))?;
        let pending = metadata.max_pending_entries;
        let processor = batch::processor(build, NAME, &config.batch, pending, || service);
        let sink = ClsSink { tags: config.global_tag.unwrap_or_default(), processor };
        let logger = Logger::new(config.entry, metadata.formats, sink);
        Ok(Sampled { ratio: config.sample_ratio, logger })
    }

    fn samples(&self, ctx: &mut Context) -> bool {
        ctx.kept::<_, InSample>(self).is_some()
    }
}

impl Plugin for Sampled {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        // 53 bits, as many as the fraction has.
        let random = (env.local.random() >> 11) as f64 / (1_u64 << 53) as f64;
        if random >= self.ratio {
            return Step::Next;
        }
        ctx.keep(self, InSample);
        self.logger.access(ctx, env)
    }

    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        match self.samples(ctx) {
            true => self.logger.header_filter(ctx, env),
            false => ResponseStep::Next,
        }
    }

    fn body_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        match self.samples(ctx) {
            true => self.logger.body_filter(ctx, env),
            false => None,
        }
    }

    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        if self.samples(ctx) {
            self.logger.log(ctx, env);
        }
    }
}

struct ClsSink {
    tags: Map<String, Value>,
    processor: Arc<Processor>,
}

impl Sink for ClsSink {
    fn take(&self, mut entry: Map<String, Value>, ctx: &Context, env: &Env<'_>) {
        entry.extend(self.tags.clone());
        let log = Log::of(entry, env.unix_time().as_millis() as i64).encode_to_vec();
        if log.len() <= REQUEST_BYTES {
            return self.processor.push(log, ctx, env);
        }
        env.node.lose_lines(1);
        static COMPLAINT: LogThrottle = LogThrottle::new();
        if let Some(left_out) = COMPLAINT.due() {
            tracing::warn!(
                left_out,
                bytes = log.len(),
                "{NAME}: an entry is larger than 5 MiB and is dropped"
            );
        }
    }
}

/// An entry in the words of the service.
#[derive(Clone, PartialEq, Message)]
struct Log {
    /// Unix milliseconds.
    #[prost(int64, required, tag = "1")]
    time: i64,
    #[prost(message, repeated, tag = "2")]
    contents: Vec<Content>,
}

#[derive(Clone, PartialEq, Message)]
struct Content {
    #[prost(string, required, tag = "1")]
    key: String,
    #[prost(string, required, tag = "2")]
    value: String,
}

impl Log {
    fn of(entry: Map<String, Value>, time: i64) -> Log {
        let content = |(key, value)| {
            let mut value = match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
            cut(&mut value, VALUE_BYTES);
            Content { key, value }
        };
        Log { time, contents: entry.into_iter().map(content).collect() }
    }
}

/// The service that takes batches.
struct Service {
    address: Address,
    secret_id: String,
    secret_key: Confidential,
    sender: HttpSender,
    /// The address of this machine.
    source: OnceCell<String>,
    /// Gets the number of lost entries.
    node: Arc<Node>,
}

impl Service {
    fn new(config: &Config, node: Arc<Node>) -> Result<Service, String> {
        let address = config.address()?;
        let mut fields = Fields::default();
        fields.set("content-type", "application/x-protobuf", "cls_host")?;
        fields.hide(config.secret_key.reveal());
        let transport = Transport::with_timeouts(CONNECT_TIMEOUT, EXCHANGE_TIMEOUT, config.ssl_verify);
        let sender = HttpSender::new(NAME, std::slice::from_ref(&address), transport, fields);
        let (secret_id, secret_key) = (config.secret_id.clone(), config.secret_key.clone());
        Ok(Service { address, secret_id, secret_key, sender, source: OnceCell::new(), node })
    }

    /// Returns the address of this machine, or its name if it has no address.
    async fn source(&self) -> &str {
        let asked = || async {
            let name = self.node.hostname();
            let found = tokio::net::lookup_host((name, 0)).await.ok().and_then(|mut found| found.next());
            found.map_or_else(|| name.to_owned(), |address| address.ip().to_string())
        };
        self.source.get_or_init(asked).await
    }

    async fn post(&self, logs: &[Vec<u8>]) -> Result<(), String> {
        let now_s = Host.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let signed = authorization(&self.secret_id, self.secret_key.reveal(), now_s);
        let body = payload(logs, self.source().await);
        let answer = self.sender.post_with(&self.address, "authorization", &signed, body).await;
        let mut answer = answer.map_err(|failure| failure.to_string())?;
        let status = answer.status;
        if status == 200 {
            return Ok(());
        }
        let (fields, body) = (answer.shown_fields(), answer.shown_body().await);
        let reason = format!("got wrong status: {status}, headers: {fields}, body, {body}");
        if !matches!(status, 401 | 403 | 404 | 413) {
            return Err(reason);
        }
        // Another attempt would change nothing.
        self.node.lose_lines(logs.len() as u64);
        static COMPLAINT: LogThrottle = LogThrottle::new();
        if let Some(left_out) = COMPLAINT.due() {
            let dropped = logs.len();
            tracing::error!(left_out, dropped, "{NAME}: not retryable: {reason}");
        }
        Ok(())
    }
}

impl Destination for Service {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            let mut taken = 0;
            for logs in parts(entries, REQUEST_BYTES) {
                self.post(logs).await.map_err(|reason| Refusal { reason, taken })?;
                taken += logs.len();
            }
            Ok(())
        })
    }
}

/// The entries in runs of at most so many bytes, or one entry.
fn parts(entries: &[Vec<u8>], most: usize) -> Vec<&[Vec<u8>]> {
    let mut parts = Vec::new();
    let (mut begin, mut length) = (0, 0);
    for (at, entry) in entries.iter().enumerate() {
        length += entry.len();
        if at > begin && length > most {
            parts.push(&entries[begin..at]);
            (begin, length) = (at, entry.len());
        }
    }
    parts.push(&entries[begin..]);
    parts
}

/// A `LogGroupList` with one `LogGroup`: its logs, which are encoded already (1), and its source (4).
fn payload(logs: &[Vec<u8>], source: &str) -> Vec<u8> {
    let mut group = Vec::new();
    for log in logs {
        delimited(1, log, &mut group);
    }
    delimited(4, source.as_bytes(), &mut group);
    let mut list = Vec::with_capacity(group.len() + encoded_len_varint(group.len() as u64) + 1);
    delimited(1, &group, &mut list);
    list
}

fn delimited(tag: u32, bytes: &[u8], out: &mut Vec<u8>) {
    encode_key(tag, prost::encoding::WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Returns the value of `Authorization` for a request that is made now.
fn authorization(secret_id: &str, secret_key: &str, now_s: u64) -> String {
    let time = format!("{now_s};{}", now_s + SIGNATURE_S);
    let sign_key = hex_hmac(secret_key.as_bytes(), &time);
    let request = format!("post\n{PATH}\n\n\n");
    let request = hex::text(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, request.as_bytes()).as_ref());
    let signature = hex_hmac(sign_key.as_bytes(), &format!("sha1\n{time}\n{request}\n"));
    format!(
        "q-sign-algorithm=sha1&q-ak={secret_id}&q-sign-time={time}&q-key-time={time}&q-header-list=\
         &q-url-param-list=&q-signature={signature}"
    )
}

fn hex_hmac(key: &[u8], text: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key);
    hex::text(hmac::sign(&key, text.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_plugin::Phase;

    use super::*;
    use crate::testing::{Case, config_of, refusal};
    use sigma_plugin_kit::batch::{Batches, Limits};

    fn conf(field: &str, value: Value) -> Value {
        let mut conf = json!({"cls_host": "h:81", "cls_topic": "t&x", "secret_id": "i", "secret_key": "k"});
        conf[field] = value;
        conf
    }

    #[test]
    fn values_are_texts() {
        let entry =
            json!({"a": "x\"", "b": 7, "c": true, "d": {"e": ["f"]}, "g": "é".repeat(VALUE_BYTES / 2 + 1)});
        let log = Log::of(serde_json::from_value(entry).unwrap(), 5);
        let values: Vec<(&str, &str)> =
            log.contents.iter().map(|content| (&*content.key, &*content.value)).collect();
        let long = "é".repeat(VALUE_BYTES / 2);
        let expected = [("a", "x\""), ("b", "7"), ("c", "true"), ("d", r#"{"e":["f"]}"#), ("g", &*long)];
        assert_eq!((log.time, &values[..]), (5, &expected[..]));
    }

    #[test]
    fn a_batch_is_a_list_of_one_group() {
        #[derive(Clone, PartialEq, Message)]
        struct List {
            #[prost(message, repeated, tag = "1")]
            groups: Vec<Group>,
        }
        #[derive(Clone, PartialEq, Message)]
        struct Group {
            #[prost(message, repeated, tag = "1")]
            logs: Vec<Log>,
            #[prost(string, optional, tag = "2")]
            context_flow: Option<String>,
            #[prost(string, optional, tag = "4")]
            source: Option<String>,
        }
        let log =
            |n: i64| Log { time: n, contents: vec![Content { key: "k".to_owned(), value: "v".repeat(300) }] };
        let logs = [log(0), log(-1), log(2)];
        let encoded: Vec<Vec<u8>> = logs.iter().map(Message::encode_to_vec).collect();
        let group = Group { logs: logs.into(), context_flow: None, source: Some("10.0.0.1".to_owned()) };
        assert_eq!(payload(&encoded, "10.0.0.1"), List { groups: vec![group] }.encode_to_vec());
    }

    #[test]
    fn requests_are_cut() {
        let check = |lengths: &[usize], expected: &[usize]| {
            let entries: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0; *length]).collect();
            let parts: Vec<usize> = parts(&entries, 10).iter().map(|part| part.len()).collect();
            assert_eq!(parts, expected, "{lengths:?}");
        };
        check(&[5, 5, 1], &[2, 1]);
        check(&[11, 1, 9, 1], &[1, 2, 1]);
        check(&[10], &[1]);
    }

    /// As Python's `hmac` has it.
    #[test]
    fn requests_are_signed() {
        let expected = "q-sign-algorithm=sha1&q-ak=id&q-sign-time=1000;1060&q-key-time=1000;1060&q-header-list=\
                        &q-url-param-list=&q-signature=ffa38d6624ef3b7f047910aba858c0dbc7ddc01d";
        assert_eq!(authorization("id", "key", 1000), expected);
    }

    /// So many of a thousand requests are in the sample.
    fn sampled(ratio: f64) -> usize {
        let config: Config = config_of(conf("sample_ratio", json!(ratio)));
        let case = &mut Case::new("GET / HTTP/1.1\nHost: h");
        let service = Service::new(&config, Arc::clone(&case.node)).unwrap();
        let processor =
            Batches::processor(&case.node, NAME, 0, &config.batch, Limits::default(), || Arc::new(service));
        let sink = ClsSink { tags: Map::new(), processor };
        let logger = Logger::new(config.entry, Default::default(), sink);
        let plugin = Sampled { ratio: config.sample_ratio, logger };
        let requests = (0..1000).filter(|_| {
            case.request("GET / HTTP/1.1\nHost: h");
            case.ctx.drop_kept();
            let env = Env::new(&case.node, &case.local, &case.consumers);
            plugin.access(&mut case.ctx, &env);
            plugin.samples(&mut case.ctx)
        });
        requests.count()
    }

    #[test]
    fn a_share_is_sampled() {
        assert_eq!(sampled(1.0), 1000);
        assert!((100..400).contains(&sampled(0.25)));
        assert!(sampled(0.00001) < 3);
        assert!(TENCENT_CLOUD_CLS.phases.contains(Phase::Access));
    }

    #[test]
    fn bad_configurations() {
        let check = |conf: Value, expected: &str| {
            let refused = refusal(NAME, &conf);
            assert!(refused.contains(expected), "{conf}: {refused}");
        };
        check(json!({}), "is required");
        check(conf("scheme", json!("ftp")), "matches none of the enum values");
        check(conf("sample_ratio", json!(0)), "expected 0 to be at least 1e-05");
        check(conf("sample_ratio", json!(1.1)), "expected 1.1 to be at most 1");
        check(conf("cls_host", json!("http://h")), "cls_host: `http://h` is not a host");
        check(conf("secret_id", json!("a\r\nb")), "secret_id: it is part of a header field");
        let config: Config = config_of(conf("scheme", json!("http")));
        assert_eq!(config.address().unwrap().as_str(), "http://h:81/structuredlog?topic_id=t%26x");
    }
}
