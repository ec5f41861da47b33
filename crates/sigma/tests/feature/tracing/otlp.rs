//! OTLP, over HTTP and gRPC.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use prost::Message as _;
use sigma_testkit::{Gateway, Origin, free_port, until};
use tokio::runtime::Runtime;

use super::{PARENT, TRACE, ask, breaking, comes, gateway};
use crate::PATIENCE;
use crate::h2::{Node, body_of};
use crate::policies::seen;

#[derive(Clone, PartialEq, prost::Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<Pair>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    began: u64,
    #[prost(fixed64, tag = "8")]
    ended: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<Pair>,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Event {
    #[prost(fixed64, tag = "1")]
    at: u64,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Pair {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Value {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(bool, optional, tag = "2")]
    truth: Option<bool>,
    #[prost(int64, optional, tag = "3")]
    number: Option<i64>,
    #[prost(double, optional, tag = "4")]
    float: Option<f64>,
}

pub(super) fn shown(pairs: &[Pair], key: &str) -> String {
    let value = pairs.iter().find(|pair| pair.key == key).and_then(|pair| pair.value.clone());
    match value.unwrap_or_default() {
        Value { text: Some(text), .. } => text,
        Value { truth: Some(truth), .. } => truth.to_string(),
        Value { number: Some(number), .. } => number.to_string(),
        Value { float: Some(float), .. } => float.to_string(),
        _ => "-".to_owned(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A collector's input: fields of the last request, and all exports.
#[derive(Clone, Default)]
struct Got(Arc<Mutex<(String, Vec<Export>)>>);

impl Got {
    fn take(&self, fields: String, body: &[u8]) {
        let mut got = self.0.lock().unwrap();
        got.0 = fields;
        got.1.push(Export::decode(body).unwrap());
    }

    fn fields(&self) -> String {
        self.0.lock().unwrap().0.clone()
    }

    fn resource(&self) -> Vec<Pair> {
        self.0.lock().unwrap().1[0].resource_spans[0].resource.clone().unwrap().attributes
    }

    fn spans(&self) -> Vec<Span> {
        let got = self.0.lock().unwrap();
        let scopes = got.1.iter().flat_map(|export| &export.resource_spans).flat_map(|of| &of.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }
}

/// A collector over HTTP, which answers so.
fn collector(got: &Got, answer: &'static str) -> Origin {
    let got = got.clone();
    let take = move |message: &sigma_testkit::Message| {
        let field = |name: &str| message.head.get(name).unwrap_or_default().to_owned();
        got.take(
            format!("{} {} {}", message.head.line, field("content-type"), field("x-key")),
            &message.body,
        );
        answer.as_bytes().to_vec()
    };
    Origin::answer(take).unwrap()
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

fn config(collector: &str, more: &str, plugin: &str, nodes: &str) -> String {
    format!(
        r#"
access_log: {{ path: "{{dir}}/access.log", format: json }}
plugins: [opentelemetry, forward-auth, mocking, file-logger]
plugin_metadata:
  - id: opentelemetry
    resource: {{ service.name: edge, shard: 7, canary: true }}
    collector: {{ {collector} }}
    batch_span_processor: {{ inactive_timeout: 0.2 }}
    set_ngx_var: true
    {more}
routes:
  - id: orders
    name: all-orders
    uri: /orders/*
    plugins:
      opentelemetry: {plugin}
      file-logger: {{ path: entries.log, log_format: {{ trace: $opentelemetry_trace_id, span: $opentelemetry_span_id }} }}
    upstream: {{ nodes: {nodes} }}
"#
    )
}

const ALWAYS: &str = "{ sampler: { name: always_on }, additional_attributes: [arg_a], additional_header_prefix_attributes: [x-my-*] }";

#[test]
fn a_request_and_its_attempt_reach_a_collector_and_the_logs() {
    let (got, origin) = (Got::default(), Origin::echo("a").unwrap());
    let collector = collector(&got, OK);
    let address = format!("address: \"127.0.0.1:{}\", request_headers: {{ X-Key: k }}", collector.port());
    let nodes = format!("{{ \"127.0.0.1:{}\": 1 }}", origin.port());
    let gateway = gateway(&config(&address, "", ALWAYS, &nodes));
    let fields = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: v=1\r\nX-My-Tag: b\r\n");
    let answer = ask(&gateway, "/orders/1?a=2", &fields);
    comes(&gateway, || got.spans().len() == 2);
    assert_eq!(got.fields(), "POST /v1/traces HTTP/1.1 application/x-protobuf k");
    let resource = got.resource();
    let of = |key: &str| shown(&resource, key);
    assert_eq!([of("service.name"), of("shard"), of("canary")], ["edge", "7", "true"]);
    assert_eq!(of("telemetry.sdk.name"), "sigma");
    let spans = got.spans();
    let (own, attempt) = (&spans[0], &spans[1]);
    assert_eq!(
        (&*own.name, own.kind, hex(&own.trace), hex(&own.parent)),
        ("GET /orders/*", 2, TRACE.into(), PARENT.into())
    );
    // The node's parent is the attempt, whose parent is the request.
    let told = format!("00-{TRACE}-{}-01", hex(&attempt.id));
    assert_eq!((seen(&answer, "traceparent"), seen(&answer, "tracestate")), (told, "v=1".to_owned()));
    for (key, value) in [
        ("http.request.method", "GET"),
        ("http.route", "/orders/*"),
        ("url.path", "/orders/1"),
        ("server.address", "shop.test"),
        ("network.protocol.version", "1.1"),
        ("http.response.status_code", "200"),
        ("apisix.route_name", "all-orders"),
        ("apisix.response_source", "upstream"),
        ("arg_a", "2"),
        ("X-My-Tag", "b"),
    ] {
        assert_eq!(shown(&own.attributes, key), value, "{key}");
    }
    assert_eq!((attempt.kind, &attempt.parent, &attempt.trace), (3, &own.id, &own.trace));
    let of = |key: &str| shown(&attempt.attributes, key);
    assert_eq!(
        [of("network.peer.port"), of("sigma.connection.reused")],
        [origin.port().to_string(), "false".into()]
    );
    assert_eq!(
        (of("http.response.status_code"), of("http.request.resend_count")),
        ("200".into(), "-".into())
    );
    for time in ["connection.connect", "request.send", "response.wait"] {
        assert_ne!(of(&format!("sigma.{time}_ms")), "-", "{time}");
    }
    assert_eq!(of("sigma.connection.tls_ms"), "-", "there was no TLS");
    let events: Vec<&str> = attempt.events.iter().map(|event| &*event.name).collect();
    assert_eq!(events, ["connected", "request sent", "response head"]);
    assert!(own.began <= attempt.began && attempt.ended <= own.ended, "{own:?} {attempt:?}");
    // Logs carry the same ids.
    let line = |file: &str| std::fs::read_to_string(gateway.dir().join(file)).unwrap_or_default();
    let (trace, span) = (format!(":\"{TRACE}\""), format!(":\"{}\"", hex(&own.id)));
    comes(&gateway, || line("entries.log").contains("\"span\""));
    assert!(
        line("entries.log").contains(&trace) && line("entries.log").contains(&span),
        "{}",
        line("entries.log")
    );
    let access = || line("access.log").contains(&format!("\"trace_id\"{trace},\"span_id\"{span}}}"));
    comes(&gateway, access);
    // The next request has the connection of the first.
    ask(&gateway, "/orders/2", "");
    comes(&gateway, || got.spans().len() == 4);
    assert_eq!(shown(&got.spans()[3].attributes, "sigma.connection.reused"), "true");
}

#[test]
fn retries_have_spans_except_for_an_unsampled_client() {
    let (got, origin, broken) = (Got::default(), Origin::echo("a").unwrap(), breaking());
    let collector = collector(&got, OK);
    let address = format!("address: \"http://127.0.0.1:{}\"", collector.port());
    // The broken node comes first, by its weight.
    let nodes = format!("{{ \"127.0.0.1:{}\": 1000, \"127.0.0.1:{}\": 1 }}", broken.port(), origin.port());
    let parent_base = "{ sampler: { name: parent_base } }";
    let gateway = gateway(&config(&address, "", parent_base, &nodes));
    let with =
        |flags: &str| ask(&gateway, "/orders/1", &format!("traceparent: 00-{TRACE}-{PARENT}-{flags}\r\n"));
    let answer = with("00");
    assert_eq!(answer.status(), 200);
    assert!(seen(&answer, "traceparent").ends_with("-00"));
    assert!(seen(&ask(&gateway, "/orders/1", ""), "traceparent").ends_with("-00"));
    let answer = with("01");
    assert_eq!(answer.status(), 200);
    comes(&gateway, || got.spans().len() >= 3);
    let spans = got.spans();
    assert_eq!(spans.len(), 3, "{spans:?}");
    let of = |number: usize, key: &str| shown(&spans[number].attributes, key);
    assert_eq!(of(1, "http.response.status_code"), "-");
    assert_eq!((of(1, "error.type").as_str(), of(1, "http.request.resend_count").as_str()), ("_OTHER", "-"));
    assert_eq!(
        (of(2, "http.response.status_code").as_str(), of(2, "http.request.resend_count").as_str()),
        ("200", "1")
    );
    assert_eq!(of(0, "http.response.status_code"), "200");
    // The second node got the second attempt.
    assert_eq!(seen(&answer, "traceparent"), format!("00-{TRACE}-{}-01", hex(&spans[2].id)));
    assert_ne!(spans[1].id, spans[2].id);
}

#[test]
fn hooks_that_waited_have_spans() {
    let (got, origin, guard) = (Got::default(), Origin::echo("a").unwrap(), Origin::echo("g").unwrap());
    let collector = collector(&got, OK);
    let address = format!("address: \"127.0.0.1:{}\"", collector.port());
    let plugins = format!("{ALWAYS}\n      forward-auth: {{ uri: \"http://127.0.0.1:{}/\" }}", guard.port());
    let nodes = format!("{{ \"127.0.0.1:{}\": 1 }}", origin.port());
    let gateway = gateway(&config(&address, "", &plugins, &nodes));
    let answer = ask(&gateway, "/orders/1", "");
    assert_eq!(answer.status(), 200);
    comes(&gateway, || got.spans().len() == 3);
    let spans = got.spans();
    assert_eq!((&*spans[1].name, spans[1].kind), ("apisix.phase.access.plugins.forward-auth", 1));
    assert!(spans[1].parent == spans[0].id && spans[2].parent == spans[0].id);
    assert!(spans[1].ended <= spans[2].began, "the node was asked when the guard had answered");
    assert!(seen(&answer, "traceparent").contains(&hex(&spans[2].id)));
}

/// A collector of spans over gRPC.
fn over_grpc(runtime: &Runtime, got: &Got, code: &'static str) -> Node {
    let got = got.clone();
    called(runtime, move |fields, message| got.take(fields, message), code)
}

/// A collector over gRPC, which gives what came to `take`: path and fields, and the message. Every call is responded
/// with this status.
pub(super) fn called(
    runtime: &Runtime,
    take: impl Fn(String, &[u8]) + Clone + Send + Sync + 'static,
    code: &'static str,
) -> Node {
    let serve = move |request: Request<RecvStream>, mut respond: SendResponse<Bytes>| {
        let take = take.clone();
        async move {
            let (parts, mut stream) = request.into_parts();
            let body = body_of(&mut stream).await.unwrap();
            let field = |name: &str| {
                parts.headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
            };
            take(format!("{} {} {}", parts.uri.path(), field("content-type"), field("x-key")), &body[5..]);
            let head = Response::builder().header("content-type", "application/grpc");
            let mut out = respond.send_response(head.body(()).unwrap(), false).unwrap();
            out.send_data(Bytes::from_static(&[0, 0, 0, 0, 0]), false).unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", code.parse().unwrap());
            out.send_trailers(trailers).unwrap();
        }
    };
    runtime.block_on(Node::start(h2::server::Builder::new(), serve))
}

#[test]
fn a_collector_gets_spans_by_grpc() {
    let (got, origin, runtime) = (Got::default(), Origin::echo("a").unwrap(), Runtime::new().unwrap());
    let collector = over_grpc(&runtime, &got, "0");
    let address = format!(
        "address: \"127.0.0.1:{}\", protocol: grpc, request_headers: {{ x-key: k }}",
        collector.port()
    );
    let nodes = format!("{{ \"127.0.0.1:{}\": 1 }}", origin.port());
    let gateway = gateway(&config(&address, "", ALWAYS, &nodes));
    for _ in 0..3 {
        ask(&gateway, "/orders/1", "");
    }
    comes(&gateway, || got.spans().len() == 6);
    assert_eq!(
        got.fields(),
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export application/grpc k"
    );
    assert_eq!(shown(&got.resource(), "service.name"), "edge");
    assert_eq!(got.spans()[0].name, "GET /orders/*");
}

#[test]
fn b3_travels_where_it_is_wanted() {
    let (got, origin) = (Got::default(), Origin::echo("a").unwrap());
    let collector = collector(&got, OK);
    let address = format!("address: \"127.0.0.1:{}\"", collector.port());
    let nodes = format!("{{ \"127.0.0.1:{}\": 1 }}", origin.port());
    let gateway = gateway(&config(&address, "propagators: [b3, b3multi]", ALWAYS, &nodes));
    let answer = ask(&gateway, "/orders/1", &format!("b3: {TRACE}-{PARENT}-1\r\n"));
    comes(&gateway, || got.spans().len() == 2);
    let own = hex(&got.spans()[1].id);
    let told =
        ["b3", "x-b3-traceid", "x-b3-spanid", "x-b3-sampled", "traceparent"].map(|name| seen(&answer, name));
    assert_eq!(told, [format!("{TRACE}-{own}-1"), TRACE.to_owned(), own, "1".to_owned(), String::new()]);
}

/// How many lines of logs, and spans, plugins have lost.
fn lost(gateway: &Gateway) -> u64 {
    let page = sigma_testkit::Peer::connect(&gateway.status_address())
        .unwrap()
        .get("/status/counters")
        .unwrap()
        .text();
    let line = page.lines().find(|line| line.contains("access_lines_dropped") && !line.starts_with('#'));
    line.and_then(|line| line.rsplit(' ').next()?.trim_matches(',').parse().ok())
        .unwrap_or_else(|| panic!("{page}"))
}

/// A collector that is dead, and one that refuses, cost no request anything; losses are counted, and waiting
/// spans are bounded.
#[test]
fn a_dead_collector_is_nobodys_trouble() {
    let (origin, runtime, refusing) = (Origin::echo("a").unwrap(), Runtime::new().unwrap(), Got::default());
    let refuses = collector(&refusing, "HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno");
    let unavailable = over_grpc(&runtime, &Got::default(), "3");
    let nodes = format!("{{ \"127.0.0.1:{}\": 1 }}", origin.port());
    let dead = free_port();
    for (address, reason) in [
        (format!("address: \"127.0.0.1:{dead}\""), "failed to send to http://127.0.0.1"),
        (format!("address: \"127.0.0.1:{}\"", refuses.port()), "responded with status code[400] body[no]"),
        (
            format!("address: \"127.0.0.1:{}\", protocol: grpc", unavailable.port()),
            "responded with InvalidArgument",
        ),
    ] {
        let mut config = config(&address, "", ALWAYS, &nodes);
        config = config.replace(
            "inactive_timeout: 0.2",
            "inactive_timeout: 0.2, max_queue_size: 9, max_export_batch_size: 8",
        );
        let gateway = gateway(&format!("status: {{ address: \"{{status}}\" }}\n{config}"));
        let mut client = gateway.connect().unwrap();
        for _ in 0..20 {
            assert_eq!(client.get("/orders/1").unwrap().status(), 200);
        }
        // Two spans each, and none arrives.
        assert!(until(PATIENCE, || lost(&gateway) == 40), "{} of 40\n{}", lost(&gateway), gateway.stderr());
        comes(&gateway, || gateway.stderr().contains(reason));
    }
    // Permanently refused spans are not sent again.
    assert!(refusing.spans().len() <= 40);
}
