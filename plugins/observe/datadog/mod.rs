//! `datadog`: numbers of each request for an agent of DogStatsD, over UDP.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::address::{IpText, NodeAddr};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin};
use sigma_schema::described::schema_of;

use crate::shared::agent::{Agent, Latencies};
use crate::shared::matched::matched_uri;
use sigma_plugin_kit::batch::{self, BatchSettings, Batches, Limits, Processor};

const NAME: &str = "datadog";

/// Bytes of a datagram that an agent reads.
const DATAGRAM_BYTES: usize = 8192;

/// Bytes of a tag. An agent cuts it there, and a client chooses some.
const TAG_BYTES: usize = 200;

/// `datadog`.
pub(crate) static DATADOG: Descriptor = Descriptor {
    name: NAME,
    priority: 495,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Log]),
    metadata_schema: Some(schema_of::<Metadata>),
    build: |build| Ok(Arc::new(Datadog::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Sends metrics of each request to a DogStatsD agent.
///
/// A request is `request.counter`, `request.latency`, `upstream.latency` (if a node got the request),
/// `apisix.latency`, `ingress.size` and `egress.size`, with tags, in datagrams of at most 8192 bytes. The plugin
/// metadata set the agent. Characters that a tag cannot contain, such as `|` and commas in the Host of a request,
/// become `_`.
///
/// Requests never wait for it. Datagrams are sent in batches. If one fails, the rest of its batch is sent again
/// `max_retry_count` times and then dropped. Entries beyond `max_pending_entries` of the plugin metadata are dropped.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named(NAME))]
struct Config {
    /// Uses the names of route and service in tags instead of their ids, if they have one.
    #[schemars(extend("default" = true))]
    prefer_name: bool,
    /// Adds a tag with the path pattern of the route.
    #[schemars(extend("default" = false))]
    include_path: bool,
    /// Adds a tag with the method.
    #[schemars(extend("default" = false))]
    include_method: bool,
    /// Tags of all lines of this configuration.
    #[schemars(extend("items" = tag_schema(), "default" = []))]
    constant_tags: Vec<String>,
    #[serde(flatten)]
    batch: BatchSettings,
}

impl Configuration for Config {}

/// The plugin metadata.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// The agent, a name or an address.
    #[schemars(length(min = 1))]
    host: String,
    /// Port of the agent.
    port: u16,
    /// Prefix of metric names; empty: no prefix.
    namespace: String,
    /// Tags of all lines, before the tags of the route.
    #[schemars(extend("items" = tag_schema()))]
    constant_tags: Vec<String>,
    /// Maximum requests that wait to be reported; more are dropped.
    #[schemars(range(min = 1))]
    max_pending_entries: u64,
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata {
            host: "127.0.0.1".to_owned(),
            port: 8125,
            namespace: "apisix".to_owned(),
            constant_tags: vec!["source:apisix".to_owned()],
            max_pending_entries: 8192,
        }
    }
}

/// A letter first, and no colon at the end.
fn tag_schema() -> Value {
    serde_json::json!({
        "type": "string", "minLength": 1, "maxLength": 200,
        "pattern": r"^\p{L}([\p{L}\p{N}_.:/-]*[\p{L}\p{N}_./-])?$"
    })
}

/// An instance.
struct Datadog {
    prefer_name: bool,
    include_path: bool,
    include_method: bool,
    /// With its dot.
    prefix: String,
    /// With commas between them.
    constant_tags: String,
    processor: Arc<Processor>,
}

impl Datadog {
    fn new(build: &Build<'_>) -> Result<Datadog, String> {
        let (config, metadata): (Config, Metadata) = (build.config()?, build.metadata_as()?);
        let limits = Limits { entries: metadata.max_pending_entries, ..Limits::default() };
        let key = batch::key_with_metadata(build);
        let agent = Agent {
            what: "dogstatsd",
            host: metadata.host,
            port: metadata.port,
            datagram_bytes: DATAGRAM_BYTES,
        };
        let processor = Batches::processor(build.node, NAME, key, &config.batch, limits, || Arc::new(agent));
        let prefix = match &*metadata.namespace {
            "" => String::new(),
            namespace => format!("{}.", clean(namespace)),
        };
        Ok(Datadog {
            prefer_name: config.prefer_name,
            include_path: config.include_path,
            include_method: config.include_method,
            prefix,
            constant_tags: [metadata.constant_tags, config.constant_tags].concat().join(","),
            processor,
        })
    }

    fn tags(&self, ctx: &Context) -> String {
        let (record, route) = (&ctx.record, ctx.route.as_deref());
        let mut tags = self.constant_tags.clone();
        let mut tag = |name: &str, value: &str| {
            if !value.is_empty() {
                let comma = if tags.is_empty() { "" } else { "," };
                // Writing to memory cannot fail.
                let _ = write!(tags, "{comma}{name}:{}", clean(value));
            }
        };
        let named = |name: Option<&str>, id: &str| name.filter(|_| self.prefer_name).unwrap_or(id).to_owned();
        if let Some(route) = route {
            tag("route_name", &named(route.name.as_deref(), &route.id));
            if self.include_path {
                tag("path", matched_uri(route, &ctx.uri));
            }
        }
        if self.include_method {
            tag("method", &String::from_utf8_lossy(ctx.request.method_token()));
        }
        match route {
            Some(route) => {
                let id = route.service_id.as_deref().unwrap_or_default();
                tag("service_name", &named(route.service_name.as_deref(), id));
            }
            None => tag("service_name", &String::from_utf8_lossy(&ctx.host_name())),
        }
        tag("consumer", ctx.consumer().map_or("", |consumer| &consumer.name));
        if let Some(NodeAddr::Tcp(addr)) = record.attempts.last().map(|attempt| &attempt.addr) {
            tag("balancer_ip", IpText::of(addr.ip()).as_str());
        }
        if record.status != 0 {
            tag("response_status", &record.status.to_string());
            tag("response_status_class", &format!("{}xx", record.status / 100));
        }
        tag("scheme", record.upstream_scheme.unwrap_or_default());
        tags
    }

    /// The lines of a request.
    fn lines(&self, ctx: &Context) -> String {
        let (record, tags, prefix) = (&ctx.record, self.tags(ctx), &self.prefix);
        let latencies = Latencies::of(record);
        let mut lines = String::new();
        let mut line = |name: &str, value: &str, kind: &str| {
            let end = if lines.is_empty() { "" } else { "\n" };
            let _ = write!(lines, "{end}{prefix}{name}:{value}|{kind}");
            if !tags.is_empty() {
                let _ = write!(lines, "|#{tags}");
            }
        };
        line("request.counter", "1", "c");
        line("request.latency", &latencies.total.to_string(), "h");
        if let Some(upstream) = latencies.upstream {
            line("upstream.latency", &upstream.to_string(), "h");
        }
        line("apisix.latency", &latencies.gateway.to_string(), "h");
        line("ingress.size", &record.bytes_received.to_string(), "ms");
        line("egress.size", &record.bytes_sent.to_string(), "ms");
        lines
    }
}

impl Plugin for Datadog {
    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        self.processor.push(self.lines(ctx).into_bytes(), &*ctx, env);
    }
}

/// A text without what ends a tag, a line or a name: a client must not write metrics of its own.
fn clean(text: &str) -> String {
    let kept = |c: char| !c.is_control() && !matches!(c, '|' | ',' | '#' | '@');
    let mut end = text.len().min(TAG_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].chars().map(|c| if kept(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_plugin::context::RouteFacts;
    use sigma_plugin::record::Attempt;

    use super::*;
    use crate::testing::{Case, entry, entry_with, refusal};

    fn datadog(conf: Value, metadata: Value) -> Datadog {
        let mut filled = json!({
            "prefer_name": true, "include_path": false, "include_method": false, "constant_tags": [],
            "name": "datadog", "batch_max_size": 1, "inactive_timeout": 5, "buffer_duration": 60,
            "max_retry_count": 0, "retry_delay": 1
        });
        filled.as_object_mut().unwrap().extend(conf.as_object().unwrap().clone());
        let node = Arc::new(sigma_plugin::Node::default());
        Datadog::new(&Build::new(NAME, &filled, "r", &metadata, &node)).unwrap()
    }

    fn routed() -> Case {
        let mut case = Case::new("GET /a/b HTTP/1.1\nHost: h");
        let text = |text: &str| Some(Box::<str>::from(text));
        case.ctx.route = Some(Arc::new(RouteFacts {
            id: "r1".into(),
            name: text("orders"),
            service_id: text("s1"),
            service_name: text("shop"),
            uris: ["/a/*".into()].into(),
            ..RouteFacts::default()
        }));
        case.known("jack", &[]);
        case.ctx.record.status = 201;
        case
    }

    #[test]
    fn tags_tell_of_a_request() {
        let check = |conf: Value, metadata: Value, expected: &str| {
            let mut case = routed();
            case.ctx.record.upstream_scheme = Some("http");
            case.ctx.record.attempts = vec![Attempt {
                addr: NodeAddr::Tcp(([127, 0, 0, 1], 1980).into()),
                host: String::new(),
                began: None,
                reused: false,
                version: None,
                linked_ms: None,
                status: 201,
                sent_ms: None,
                connect_ms: None,
                header_ms: None,
                carried: None,
                response_ms: Some(2.5),
            }];
            assert_eq!(datadog(conf, metadata).tags(&case.ctx), expected);
        };
        let rest =
            "consumer:jack,balancer_ip:127.0.0.1,response_status:201,response_status_class:2xx,scheme:http";
        check(json!({}), Value::Null, &format!("source:apisix,route_name:orders,service_name:shop,{rest}"));
        check(
            json!({"prefer_name": false, "include_path": true, "include_method": true, "constant_tags": ["b:2"]}),
            json!({"constant_tags": ["a:1"]}),
            &format!("a:1,b:2,route_name:r1,path:/a/*,method:GET,service_name:s1,{rest}"),
        );
    }

    #[test]
    fn a_request_is_six_lines_or_five() {
        let shown = |lines: &str| {
            let of = |line: &str| {
                let (name, rest) = line.split_once(':').unwrap();
                let (_, kind) = rest.split_once('|').unwrap();
                format!("{name} {kind}")
            };
            lines.lines().map(of).collect::<Vec<_>>().join("\n")
        };
        let mut case = Case::new("GET / HTTP/1.1\nHost: shop.test");
        case.ctx.record.status = 404;
        let lines = datadog(json!({}), json!({"namespace": "", "constant_tags": []})).lines(&case.ctx);
        let tags = "|#service_name:shop.test,response_status:404,response_status_class:4xx";
        assert_eq!(
            shown(&lines),
            format!(
                "request.counter c{tags}\nrequest.latency h{tags}\napisix.latency h{tags}\n\
                 ingress.size ms{tags}\negress.size ms{tags}"
            )
        );
        let mut case = routed();
        case.ctx.record.attempts = vec![Attempt {
            addr: NodeAddr::Unix("/n".into()),
            host: String::new(),
            began: None,
            reused: true,
            version: None,
            linked_ms: None,
            status: 200,
            sent_ms: None,
            connect_ms: None,
            header_ms: None,
            carried: None,
            response_ms: Some(2.5),
        }];
        let lines = datadog(json!({}), Value::Null).lines(&case.ctx);
        assert_eq!(lines.lines().count(), 6);
        assert!(lines.starts_with("apisix.request.counter:1|c|#source:apisix,"), "{lines}");
        assert!(lines.contains("\napisix.upstream.latency:2.5|h|#"), "{lines}");
        assert!(lines.contains("\napisix.apisix.latency:0|h|#"), "{lines}");
    }

    #[test]
    fn a_client_writes_no_metrics() {
        let mut case = Case::new("A|c#b / HTTP/1.1\nHost: h");
        case.ctx.record.status = 400;
        let tags = datadog(json!({"include_method": true}), Value::Null).tags(&case.ctx);
        assert!(tags.starts_with("source:apisix,method:A_c_b,service_name:h,"), "{tags}");
        assert_eq!(clean("a\nb|c,d#e@f\u{7f}"), "a_b_c_d_e_f_");
        assert_eq!(clean(&"ä".repeat(200)).len(), 200);
    }

    #[test]
    fn invalid_configurations_are_refused() {
        let pattern = tag_schema()["pattern"].as_str().unwrap().replace('\\', "\\\\");
        let wrong = |tag: &str| {
            let reason = format!("failed to match pattern \"{pattern}\" with \"{tag}\"");
            format!("property \"constant_tags\" validation failed: failed to validate item 1: {reason}")
        };
        for tag in ["1a", "a:", ":a", "a|b", "a b"] {
            assert_eq!(refusal(NAME, &json!({"constant_tags": [tag]})), wrong(tag));
        }
        for tag in ["a", "a:b", "ä.b/c-d_e:1"] {
            assert_eq!(refusal(NAME, &json!({"constant_tags": [tag]})), "", "{tag}");
        }
        assert!(entry(NAME, json!({})).is_ok());
        assert!(entry_with(NAME, json!({}), Some(json!({"host": "agent.test"}))).is_ok());
    }
}
