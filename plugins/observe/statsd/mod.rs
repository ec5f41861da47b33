//! `statsd`: numbers of each request for an agent of StatsD that knows no tags, over UDP.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::Method;
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin};
use sigma_schema::described::schema_of;

use crate::shared::agent::{Agent, Latencies};
use crate::shared::matched::matched_uri;
use sigma_plugin_kit::batch::{self, BatchSettings, Batches, Limits, Processor};

const NAME: &str = "statsd";

/// Bytes of a part of a name. With it, and with the longest namespace, a line fits into the smallest datagram.
const PART_BYTES: usize = 64;

/// `statsd`.
pub(crate) static STATSD: Descriptor = Descriptor {
    name: NAME,
    priority: 494,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Log]),
    metadata_schema: Some(schema_of::<Metadata>),
    build: |build| Ok(Arc::new(StatsD::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Sends metrics of each request to a StatsD agent without tags.
///
/// The names contain the parts that other agents get as tags: `NAMESPACE.route.ROUTE.service.SERVICE`, then
/// `path.PATTERN`, `method.METHOD` and `consumer.NAME` if configured, then the measured value. In a part, each
/// character other than ASCII letters, digits, `-` and `_` becomes `_`, also the dot. A part has at most 64 bytes;
/// `none` replaces a missing part. Clients cannot create names: a request without a route has
/// `route.none.service.none`, and an unknown method is `other`.
///
/// A request is the counters `request.counter` and `response.status.CODE`, and the timers `request.latency`,
/// `upstream.latency` (if a node got the request), `gateway.latency`, `ingress.size` and `egress.size`: milliseconds
/// and bytes. Datagrams have at most `datagram_bytes` of the plugin metadata. For an agent with tags use `datadog`.
///
/// Requests never wait for it. Datagrams are sent in batches. If one fails, the rest of its batch is sent again
/// `max_retry_count` times and then dropped. Entries beyond `max_pending_entries` of the plugin metadata are dropped.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named(NAME))]
struct Config {
    /// Uses the names of route and service instead of their ids, if they have one.
    #[schemars(extend("default" = true))]
    prefer_name: bool,
    /// Adds the path pattern of the route to the names.
    #[schemars(extend("default" = false))]
    include_path: bool,
    /// Adds the method to the names.
    #[schemars(extend("default" = false))]
    include_method: bool,
    /// Adds the consumer to the names.
    #[schemars(extend("default" = false))]
    include_consumer: bool,
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
    /// Prefix of metric names, with dots between its parts; empty: no prefix.
    #[schemars(length(max = 128), regex(pattern = "^([A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*)?$"))]
    namespace: String,
    /// Maximum bytes of a datagram. 1432 fit into an Ethernet frame over IPv4 and IPv6; 8932 are usual for jumbo
    /// frames.
    #[schemars(range(min = 512, max = 65507))]
    datagram_bytes: usize,
    /// Maximum requests that wait to be reported; more are dropped.
    #[schemars(range(min = 1))]
    max_pending_entries: u64,
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata {
            host: "127.0.0.1".to_owned(),
            port: 8125,
            namespace: "sigma".to_owned(),
            datagram_bytes: 1432,
            max_pending_entries: 8192,
        }
    }
}

/// An instance.
struct StatsD {
    prefer_name: bool,
    include_path: bool,
    include_method: bool,
    include_consumer: bool,
    /// With its dot.
    namespace: String,
    processor: Arc<Processor>,
}

impl StatsD {
    fn new(build: &Build<'_>) -> Result<StatsD, String> {
        let (config, metadata): (Config, Metadata) = (build.config()?, build.metadata_as()?);
        let limits = Limits { entries: metadata.max_pending_entries, ..Limits::default() };
        let key = batch::key_with_metadata(build);
        let Metadata { host, port, datagram_bytes, .. } = metadata;
        let agent = Agent { what: NAME, host, port, datagram_bytes };
        let processor = Batches::processor(build.node, NAME, key, &config.batch, limits, || Arc::new(agent));
        let dot = if metadata.namespace.is_empty() { "" } else { "." };
        Ok(StatsD {
            prefer_name: config.prefer_name,
            include_path: config.include_path,
            include_method: config.include_method,
            include_consumer: config.include_consumer,
            namespace: metadata.namespace + dot,
            processor,
        })
    }

    /// Returns the prefix of the names of a request; it ends with a dot.
    fn prefix(&self, ctx: &Context) -> String {
        let route = ctx.route.as_deref();
        let mut prefix = self.namespace.clone();
        let mut part = |name: &str, value: &str| {
            prefix.push_str(name);
            prefix.push('.');
            push_part(&mut prefix, value);
            prefix.push('.');
        };
        let named = |name: Option<&'_ str>| name.filter(|_| self.prefer_name).map(str::to_owned);
        let of_route =
            route.map(|route| named(route.name.as_deref()).unwrap_or_else(|| route.id.to_string()));
        part("route", &of_route.unwrap_or_default());
        let of_service = route.and_then(|route| {
            named(route.service_name.as_deref()).or_else(|| route.service_id.as_deref().map(str::to_owned))
        });
        part("service", &of_service.unwrap_or_default());
        if self.include_path {
            part("path", route.map_or("", |route| matched_uri(route, &ctx.uri)));
        }
        if self.include_method {
            part(
                "method",
                match ctx.request.client_method() {
                    Method::Other => "other",
                    method => method.as_str(),
                },
            );
        }
        if self.include_consumer {
            part("consumer", ctx.consumer().map_or("", |consumer| &consumer.name));
        }
        prefix
    }

    /// The lines of a request.
    fn lines(&self, ctx: &Context) -> String {
        let (record, prefix) = (&ctx.record, self.prefix(ctx));
        let latencies = Latencies::of(record);
        let mut lines = format!("{prefix}request.counter:1|c");
        // Writing to memory cannot fail.
        if record.status != 0 {
            let _ = write!(lines, "\n{prefix}response.status.{}:1|c", record.status);
        }
        let mut timer = |name: &str, value: &str| {
            let _ = write!(lines, "\n{prefix}{name}:{value}|ms");
        };
        timer("request.latency", &latencies.total.to_string());
        if let Some(upstream) = latencies.upstream {
            timer("upstream.latency", &upstream.to_string());
        }
        timer("gateway.latency", &latencies.gateway.to_string());
        timer("ingress.size", &record.bytes_received.to_string());
        timer("egress.size", &record.bytes_sent.to_string());
        lines
    }
}

impl Plugin for StatsD {
    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        self.processor.push(self.lines(ctx).into_bytes(), &*ctx, env);
    }
}

/// A text as one part of a name: it brings no part, value or line of its own.
fn push_part(out: &mut String, text: &str) {
    if text.is_empty() {
        out.push_str("none");
    }
    let kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    out.extend(text.chars().take(PART_BYTES).map(|c| if kept(c) { c } else { '_' }));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sigma_plugin::context::RouteFacts;

    use super::*;
    use crate::testing::{Case, entry, entry_with};

    fn statsd(conf: Value, metadata: Value) -> StatsD {
        let mut filled = json!({
            "prefer_name": true, "include_path": false, "include_method": false, "include_consumer": false,
            "name": "statsd", "batch_max_size": 1, "inactive_timeout": 5, "buffer_duration": 60,
            "max_retry_count": 0, "retry_delay": 1
        });
        filled.as_object_mut().unwrap().extend(conf.as_object().unwrap().clone());
        let node = Arc::new(sigma_plugin::Node::default());
        StatsD::new(&Build::new(NAME, &filled, "r", &metadata, &node)).unwrap()
    }

    fn routed(name: Option<&str>) -> Case {
        let mut case = Case::new("GET /a/b HTTP/1.1\nHost: h");
        let text = |text: &str| Some(Box::<str>::from(text));
        case.ctx.route = Some(Arc::new(RouteFacts {
            id: "r.1".into(),
            name: name.map(Box::from),
            service_id: text("s1"),
            service_name: text("shop"),
            uris: ["/a/*".into()].into(),
            ..RouteFacts::default()
        }));
        case.ctx.record.status = 201;
        case
    }

    #[test]
    fn names_tell_of_a_request() {
        let check = |conf: Value, metadata: Value, name: Option<&str>, expected: &str| {
            let mut case = routed(name);
            case.known("jack", &[]);
            assert_eq!(statsd(conf, metadata).prefix(&case.ctx), expected);
        };
        check(json!({}), Value::Null, Some("orders"), "sigma.route.orders.service.shop.");
        check(json!({}), Value::Null, None, "sigma.route.r_1.service.shop.");
        check(json!({}), json!({"namespace": ""}), Some("a.b:c|d"), "route.a_b_c_d.service.shop.");
        check(
            json!({"prefer_name": false, "include_path": true, "include_method": true, "include_consumer": true}),
            json!({"namespace": "a.b"}),
            Some("orders"),
            "a.b.route.r_1.service.s1.path._a__.method.GET.consumer.jack.",
        );
    }

    #[test]
    fn a_client_writes_no_names() {
        let all = json!({"include_path": true, "include_method": true, "include_consumer": true});
        let mut case = Case::new("BREW /x.y HTTP/1.1\nHost: h.test");
        case.ctx.record.status = 404;
        let lines = statsd(all, Value::Null).lines(&case.ctx);
        let prefix = "sigma.route.none.service.none.path.none.method.other.consumer.none.";
        assert!(lines.lines().all(|line| line.starts_with(prefix)), "{lines}");
    }

    #[test]
    fn a_request_is_counted_and_timed() {
        let lines = statsd(json!({}), json!({"namespace": ""})).lines(&routed(Some("a")).ctx);
        let shown = lines.lines().map(|line| {
            let (name, rest) = line.strip_prefix("route.a.service.shop.").unwrap().split_once(':').unwrap();
            let (value, kind) = rest.split_once('|').unwrap();
            assert!(value.parse::<f64>().is_ok_and(|value| value >= 0.0), "{line}");
            format!("{name} {kind}")
        });
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [
                "request.counter c",
                "response.status.201 c",
                "request.latency ms",
                "gateway.latency ms",
                "ingress.size ms",
                "egress.size ms"
            ]
        );
    }

    /// The longest line there is fits into the smallest datagram.
    #[test]
    fn lines_fit_into_datagrams() {
        let all = json!({"include_path": true, "include_method": true, "include_consumer": true});
        let long = "ä".repeat(300);
        let mut case = routed(Some(&long));
        case.known(&long, &[]);
        let lines = statsd(all, json!({"namespace": "n".repeat(128)})).lines(&case.ctx);
        let longest = lines.lines().map(str::len).max().unwrap();
        assert!((300..=480).contains(&longest), "{longest}");
    }

    #[test]
    fn valid_metadata() {
        let check = |metadata: Value| entry_with(NAME, json!({}), Some(metadata)).is_ok();
        assert!(entry(NAME, json!({})).is_ok());
        assert!(check(json!({"host": "agent.test", "namespace": "a.b-c", "datagram_bytes": 512})));
        for wrong in
            [json!({"namespace": "a..b"}), json!({"namespace": "a:1|c"}), json!({"datagram_bytes": 511})]
        {
            assert!(!check(wrong.clone()), "{wrong}");
        }
    }
}
