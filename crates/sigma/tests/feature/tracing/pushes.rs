//! Metrics over OTLP.

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use prost::Message as _;
use sigma_testkit::{Gateway, Origin};
use tokio::runtime::Runtime;

use super::otlp::{Pair, called, shown};
use super::{ask, comes, gateway};
use crate::PATIENCE;

#[derive(Clone, PartialEq, prost::Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<Pair>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ScopeMetrics {
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "5")]
    gauge: Option<Points>,
    #[prost(message, optional, tag = "7")]
    sum: Option<Points>,
    #[prost(message, optional, tag = "9")]
    histogram: Option<Histogram>,
}

/// A gauge, or a sum.
#[derive(Clone, PartialEq, prost::Message)]
struct Points {
    #[prost(message, repeated, tag = "1")]
    points: Vec<Point>,
    #[prost(int32, tag = "2")]
    temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Point {
    #[prost(fixed64, tag = "2")]
    start: u64,
    #[prost(fixed64, tag = "3")]
    time: u64,
    #[prost(sfixed64, tag = "6")]
    number: i64,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<Pair>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Histogram {
    #[prost(message, repeated, tag = "1")]
    points: Vec<HistogramPoint>,
    #[prost(int32, tag = "2")]
    temporality: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HistogramPoint {
    #[prost(fixed64, tag = "4")]
    count: u64,
    #[prost(double, optional, tag = "5")]
    sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    buckets: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    bounds: Vec<f64>,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<Pair>,
}

/// The last request that a collector took, and its fields.
type Got = Arc<Mutex<(String, Export)>>;

/// A collector that gives these answers, one after the other, and the last one from then on.
fn collector(got: &Got, answers: &'static [&'static [u8]]) -> Origin {
    let (got, asked) = (Arc::clone(got), AtomicUsize::new(0));
    let take = move |message: &sigma_testkit::Message| {
        let field = |name: &str| message.head.get(name).unwrap_or_default().to_owned();
        let fields = format!("{} {} {}", message.head.line, field("content-type"), field("x-key"));
        *got.lock().unwrap() = (fields, Export::decode(&message.body[..]).unwrap());
        answers[asked.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1)].to_vec()
    };
    Origin::answer(take).unwrap()
}

fn metric(got: &Got, name: &str) -> Option<Metric> {
    let of_resources = &got.lock().unwrap().1.resource_metrics;
    let mut scopes = of_resources.iter().flat_map(|of| &of.scope_metrics);
    scopes.find_map(|scope| scope.metrics.iter().find(|metric| metric.name == name).cloned())
}

/// The value of a counter where an attribute is this.
fn counted(got: &Got, name: &str, key: &str, value: &str) -> Option<i64> {
    let points = metric(got, name)?.sum?.points;
    points.iter().find(|point| shown(&point.attributes, key) == value).map(|point| point.number)
}

fn start(collector: &Origin, origin: &Origin) -> Gateway {
    start_with(&format!("endpoint: \"http://127.0.0.1:{}\", interval: 1", collector.port()), origin)
}

fn start_with(otlp: &str, origin: &Origin) -> Gateway {
    gateway(&format!(
        r#"
plugin_attr:
  prometheus:
    otlp: {{ {otlp}, headers: {{ X-Key: k }}, resource: {{ service.name: edge, shard: 7 }} }}
global_rules: [{{ id: metrics, plugins: {{ prometheus: {{}} }} }}]
routes:
  - {{ id: orders, uri: /orders/*, upstream: {{ nodes: {{ "127.0.0.1:{}": 1 }} }} }}
"#,
        origin.port()
    ))
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const UNAVAILABLE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nno\n\"x";
/// Two data points are refused: `partial_success { rejected_data_points: 2, error_message: "no" }`.
const REFUSED: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n\x0a\x06\x08\x02\x12\x02no";

#[test]
fn a_collector_gets_the_metrics_of_the_page() {
    let (got, origin) = (Got::default(), Origin::echo("a").unwrap());
    let collector = collector(&got, &[OK]);
    let gateway = start(&collector, &origin);
    for _ in 0..3 {
        ask(&gateway, "/orders/1", "");
    }
    comes(&gateway, || counted(&got, "apisix_http_status", "route", "orders") == Some(3));
    assert_eq!(got.lock().unwrap().0, "POST /v1/metrics HTTP/1.1 application/x-protobuf k");
    let resource = got.lock().unwrap().1.resource_metrics[0].resource.clone().unwrap().attributes;
    assert_eq!([shown(&resource, "service.name"), shown(&resource, "shard")], ["edge", "7"]);
    let status = metric(&got, "apisix_http_status").unwrap().sum.unwrap();
    // Cumulative, and counted since the gateway started.
    assert!((status.temporality, status.is_monotonic) == (2, true));
    let point = &status.points[0];
    assert!(point.start > 0 && point.start < point.time, "{point:?}");
    let of = |key: &str| shown(&point.attributes, key);
    assert_eq!([of("code"), of("matched_uri"), of("node")], ["200", "/orders/*", "127.0.0.1"]);
    assert_eq!(of("llm_model"), "-", "a label without a value is none");
    let latency = metric(&got, "apisix_http_latency").unwrap().histogram.unwrap();
    let kinds: Vec<String> = latency.points.iter().map(|point| shown(&point.attributes, "type")).collect();
    assert_eq!((kinds, latency.temporality), (vec!["apisix".into(), "request".into(), "upstream".into()], 2));
    for point in &latency.points {
        assert_eq!((point.count, point.buckets.iter().sum::<u64>()), (3, 3), "{point:?}");
        assert_eq!((point.buckets.len(), point.bounds.len()), (16, 15));
        assert!(point.sum.is_some_and(|sum| sum >= 0.0));
        assert_eq!(shown(&point.attributes, "le"), "-");
    }
    assert!(metric(&got, "apisix_node_info").unwrap().gauge.is_some());
    // It continues, and counts itself.
    comes(&gateway, || counted(&got, "apisix_otlp_pushes_total", "outcome", "taken") >= Some(2));
    assert_eq!(counted(&got, "apisix_otlp_pushes_total", "outcome", "failed"), Some(0));
}

#[test]
fn refused_pushes_are_counted() {
    let (got, origin) = (Got::default(), Origin::echo("a").unwrap());
    let collector = collector(&got, &[UNAVAILABLE, REFUSED, OK]);
    let gateway = start(&collector, &origin);
    ask(&gateway, "/orders/1", "");
    comes(&gateway, || counted(&got, "apisix_otlp_pushes_total", "outcome", "failed") == Some(2));
    // Nothing is lost by it.
    assert_eq!(counted(&got, "apisix_http_status", "route", "orders"), Some(1));
    let port = collector.port();
    for told in [
        &format!(
            "failed to push metrics: http://127.0.0.1:{port}/v1/metrics responded with status code[503] \
             body[no\\n\\\"x]"
        ),
        &format!("failed to push metrics: http://127.0.0.1:{port}/v1/metrics refused 2 data points: no"),
    ] {
        assert!(gateway.stderr().contains(told), "{told}\n{}", gateway.stderr());
    }
}

#[test]
fn a_collector_is_pushed_by_grpc() {
    let (got, origin, runtime) = (Got::default(), Origin::echo("a").unwrap(), Runtime::new().unwrap());
    let taken = Arc::clone(&got);
    let take = move |fields: String, message: &[u8]| {
        *taken.lock().unwrap() = (fields, Export::decode(message).unwrap());
    };
    let collector = called(&runtime, take, "0");
    let settings =
        format!("endpoint: \"http://127.0.0.1:{}\", protocol: grpc, interval: 1", collector.port());
    let gateway = start_with(&settings, &origin);
    ask(&gateway, "/orders/1", "");
    comes(&gateway, || counted(&got, "apisix_http_status", "route", "orders") == Some(1));
    let method = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
    assert_eq!(got.lock().unwrap().0, format!("{method} application/grpc k"));
    comes(&gateway, || counted(&got, "apisix_otlp_pushes_total", "outcome", "taken") >= Some(1));
}

#[test]
fn refusals_by_grpc_are_reported() {
    let (origin, runtime) = (Origin::echo("a").unwrap(), Runtime::new().unwrap());
    let collector = called(&runtime, |_: String, _: &[u8]| {}, "14");
    let endpoint = format!("http://127.0.0.1:{}", collector.port());
    let gateway = start_with(&format!("endpoint: \"{endpoint}\", protocol: grpc, interval: 1"), &origin);
    let told = format!("failed to push metrics: {endpoint} responded with Unavailable");
    comes(&gateway, || gateway.stderr().contains(&told));
}

/// Counts since the former push are sent when the gateway stops.
#[test]
fn the_last_push_is_at_the_end() {
    let (got, origin) = (Got::default(), Origin::echo("a").unwrap());
    let collector = collector(&got, &[OK]);
    let settings =
        |more: &str| format!("endpoint: \"http://127.0.0.1:{}\", interval: 3600{more}", collector.port());
    let stopped = |more: &str| {
        let mut gateway = start_with(&settings(more), &origin);
        ask(&gateway, "/orders/1", "");
        gateway.terminate().unwrap();
        assert!(gateway.wait(PATIENCE).unwrap().success());
        gateway
    };
    stopped(", last_timeout: 0");
    assert_eq!(counted(&got, "apisix_http_status", "route", "orders"), None, "it is not wanted");
    stopped("");
    assert_eq!(counted(&got, "apisix_http_status", "route", "orders"), Some(1));
}

/// A collector that takes connections and says nothing does not hold the end up for longer than it may.
#[test]
fn a_last_push_that_hangs_is_given_up() {
    let (mute, origin) = (TcpListener::bind("127.0.0.1:0").unwrap(), Origin::echo("a").unwrap());
    let port = mute.local_addr().unwrap().port();
    let settings =
        format!("endpoint: \"http://127.0.0.1:{port}\", interval: 3600, timeout: 3600, last_timeout: 1");
    let mut gateway = start_with(&settings, &origin);
    gateway.terminate().unwrap();
    assert!(gateway.wait(PATIENCE).unwrap().success());
    let told = gateway.stderr();
    assert!(told.contains("the last push of metrics timed out"), "{told}");
    assert!(!told.contains("is lost"), "{told}");
}
