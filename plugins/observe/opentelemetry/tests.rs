//! Contexts, sampling and spans of `opentelemetry`, request by request.

use prost::Message as _;
use serde_json::json;
use sigma_plugin::address::NodeAddr;
use sigma_plugin::record::Attempt;
use sigma_plugin::{Entry, Phase};

use super::config::usual;
use super::*;
use crate::shared::otlp::{self, KeyValue, Kind, ResourceSpans, ScopeSpans, Span};
use crate::testing::{Case, entry, entry_with, refusal, warned};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn plugin(sampler: Value, metadata: Value) -> Entry {
    let mut all = usual();
    all.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    entry_with(NAME, json!({ "sampler": sampler }), Some(all)).unwrap()
}

fn always() -> Value {
    json!({"name": "always_on"})
}

/// Returns the node's `traceparent` of a request with these fields.
fn sent(plugin: &Entry, fields: &str) -> String {
    let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: h\n{fields}"));
    assert!(case.run(plugin, Phase::Rewrite).is_none());
    case.sent("traceparent").unwrap_or_default()
}

#[test]
fn a_sampler_decides() {
    let check = |sampler: Value, fields: &str, expected: &str| {
        let got = sent(&plugin(sampler.clone(), json!({})), fields);
        assert!(got.ends_with(expected), "{sampler} {fields}: {got}");
    };
    let of = |flags: &str| format!("traceparent: 00-{TRACE}-{PARENT}-{flags}");
    check(json!({}), "", "-00");
    check(json!({"name": "always_off"}), &of("01"), "-00");
    check(always(), &of("00"), "-01");
    let parent = |root: &str| json!({"name": "parent_base", "options": {"root": {"name": root}}});
    check(parent("always_off"), &of("01"), "-01");
    check(parent("always_on"), &of("00"), "-00");
    check(parent("always_on"), "", "-01");
    check(parent("always_off"), "", "-00");
    let share = |fraction: f64| json!({"name": "trace_id_ratio", "options": {"fraction": fraction}});
    check(share(0.05), &of("00"), "-01");
    check(share(0.01), &of("01"), "-00");
    let root = json!({"name": "trace_id_ratio", "options": {"fraction": 1}});
    check(json!({"name": "parent_base", "options": {"root": root}}), "", "-01");
}

#[test]
fn a_trace_goes_on_where_the_client_is_believed() {
    let of = format!("traceparent: 00-{TRACE}-{PARENT}-01\ntracestate: a=1\nbaggage: user=jack");
    let run = |conf: Value, fields: &str| {
        let plugin = entry_with(NAME, conf, Some(usual())).unwrap();
        let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: h\n{fields}"));
        case.run(&plugin, Phase::Rewrite);
        let of = |name: &str| case.sent(name).unwrap_or_default();
        (of("traceparent"), of("tracestate"), of("baggage"))
    };
    let (parent, state, baggage) = run(json!({"sampler": always()}), &of);
    assert!(parent.starts_with(&format!("00-{TRACE}-")) && !parent.contains(PARENT), "{parent}");
    assert_eq!((&*state, &*baggage), ("a=1", "user=jack"));
    let (parent, state, baggage) = run(json!({"sampler": always(), "trust_incoming": false}), &of);
    assert!(!parent.contains(TRACE), "{parent}");
    assert_eq!((&*state, &*baggage), ("", ""));
    // A state without a parent belongs to no trace, and one that is too large is removed.
    assert_eq!(run(json!({"sampler": always()}), "tracestate: a=1").1, "");
    let large = (0..33).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
    let (_, state, baggage) =
        run(json!({}), &format!("{of}\ntracestate: {large}\nbaggage: {}", "x".repeat(9000)));
    assert_eq!((&*state, &*baggage), ("", ""));
}

#[test]
fn the_request_id_may_be_the_trace_id() {
    let check = |source: &str, fields: &str, expected: &str| {
        let plugin = plugin(always(), json!({"trace_id_source": source}));
        let got = sent(&plugin, fields);
        assert_eq!(got.contains(expected), source == "x-request-id", "{fields}: {got}");
    };
    for source in ["x-request-id", "random"] {
        check(source, &format!("X-Request-Id: {TRACE}"), TRACE);
        check(source, &format!("X-Request-Id: {}", TRACE.to_uppercase()), TRACE);
    }
    let other = |fields: &str| {
        let got = sent(&plugin(always(), json!({"trace_id_source": "x-request-id"})), fields);
        assert!(!got.contains(TRACE) && got.len() == 55, "{fields}: {got}");
    };
    other(&format!("X-Request-Id: {TRACE}\nX-Request-Id: {TRACE}"));
    other("X-Request-Id: 0af76519-16cd-43dd-8448-eb211c80319c");
    other(&format!("X-Request-Id: {}", "0".repeat(32)));
    other("X-Request-Id:");
    // Without the field it is the one that logs show.
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    case.ctx.set_request_id(TRACE);
    case.run(&plugin(always(), json!({"trace_id_source": "x-request-id"})), Phase::Rewrite);
    assert!(case.sent("traceparent").unwrap().contains(TRACE));
}

#[test]
fn other_formats_of_contexts() {
    let plugin = |propagators: Value| plugin(always(), json!({ "propagators": propagators }));
    let both = plugin(json!(["b3", "b3multi"]));
    let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: h\nb3: {TRACE}-{PARENT}-1"));
    case.run(&both, Phase::Rewrite);
    let (single, span) = (case.sent("b3").unwrap(), case.sent("x-b3-spanid").unwrap());
    assert_eq!(single, format!("{TRACE}-{span}-1"));
    assert_ne!(span, PARENT);
    assert_eq!(case.sent("x-b3-traceid").as_deref(), Some(TRACE));
    assert_eq!((case.sent("x-b3-sampled").as_deref(), case.sent("traceparent")), (Some("1"), None));
    // The first that is there counts.
    let fields = format!(
        "traceparent: 00-{}-{PARENT}-01\nX-B3-TraceId: 64fe8b2a57d3eff7\nX-B3-SpanId: {PARENT}",
        TRACE.replace('0', "1")
    );
    assert!(
        sent(&plugin(json!(["b3multi", "tracecontext"])), &fields)
            .contains("000000000000000064fe8b2a57d3eff7")
    );
    assert!(sent(&plugin(json!(["tracecontext", "b3multi"])), &fields).contains(&TRACE.replace('0', "1")));
}

#[test]
fn variables_are_published_where_that_is_wanted() {
    for (metadata, is_set) in [(json!({"set_ngx_var": true}), true), (json!({}), false)] {
        // Whether it is sampled or not.
        for sampler in [always(), json!({})] {
            let mut case = Case::new("GET / HTTP/1.1\nHost: h");
            case.run(&plugin(sampler, metadata.clone()), Phase::Rewrite);
            let sent = case.sent("traceparent").unwrap();
            let of = |name: &str| {
                let value =
                    sigma_schema::expr::Variables::get(&case.ctx, &sigma_schema::expr::VarName::parse(name));
                value.map(|value| match value {
                    sigma_schema::expr::VarValue::Text(text) => String::from_utf8(text.into_owned()).unwrap(),
                    other => panic!("{other:?}"),
                })
            };
            let expected = |value: &str| is_set.then(|| value.to_owned());
            assert_eq!(of("opentelemetry_context_traceparent"), expected(&sent));
            assert_eq!(of("opentelemetry_trace_id"), expected(&sent[3..35]));
            assert_eq!(of("opentelemetry_span_id"), expected(&sent[36..52]));
        }
    }
}

#[test]
fn without_metadata_it_does_nothing() {
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    let plugin = entry(NAME, json!({"sampler": always()})).unwrap();
    case.run(&plugin, Phase::Rewrite);
    case.log(&plugin);
    assert_eq!(case.sent("traceparent"), None);
}

fn spans_of(case: &mut Case, sampled: &Sampled, additional: &Additional) -> Vec<Span> {
    let env = Env::new(&case.node, &case.local, &case.consumers);
    let spans = spans::spans(&case.ctx, &env, sampled, additional);
    spans.iter().map(|span| Span::decode(&span[..]).unwrap()).collect()
}

fn attribute<'s>(attributes: &'s [KeyValue], key: &str) -> Option<&'s otlp::Value> {
    let mut found = attributes.iter().filter(|known| known.key == key);
    let value = found.next()?.value.as_ref()?.value.as_ref();
    assert!(found.next().is_none(), "{key} appears twice");
    value
}

fn shown(span: &Span, key: &str) -> String {
    match attribute(&span.attributes, key) {
        None => "-".to_owned(),
        Some(otlp::Value::Text(text)) => text.clone(),
        Some(otlp::Value::Int(number)) => number.to_string(),
        Some(other) => format!("{other:?}"),
    }
}

fn sampled() -> Sampled {
    let own = SpanContext::parse(format!("00-{TRACE}-{PARENT}-01").as_bytes()).unwrap();
    Sampled { own, parent: SpanId::parse(b"1111111111111111"), attempts: Vec::new() }
}

#[test]
fn the_span_of_a_request() {
    let head = "GET /a/b?x=1&sig=secret HTTP/1.1\nHost: Shop.test:8080\nUser-Agent: curl\nX-My-A: 1\nx-my-b: 2\nx-my-b: 3\n\
                tracestate: v=1";
    let mut case = Case::new(head);
    case.ctx.record.started = Some(std::time::Instant::now());
    case.ctx.route = Some(Arc::new(sigma_plugin::context::RouteFacts {
        id: "r1".into(),
        name: Some("orders".into()),
        uris: [Box::from("/a/*")].into(),
        ..sigma_plugin::context::RouteFacts::default()
    }));
    case.respond(503, "");
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let additional =
        Additional::new(names(&["arg_x", "http_user_agent", "arg_none"]), names(&["x-my-*", "host", "none"]));
    let all = spans_of(&mut case, &sampled(), &additional);
    let [span] = &all[..] else { panic!("{all:?}") };
    assert_eq!((&*span.name, span.kind(), &*span.trace_state), ("GET /a/*", Kind::Server, "v=1"));
    assert_eq!((span.parent_span_id.len(), span.flags), (8, 0x301));
    assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    for (key, expected) in [
        ("http.method", "GET"),
        ("http.request.method", "GET"),
        ("net.host.name", "shop.test"),
        ("server.address", "shop.test"),
        ("http.scheme", "http"),
        ("url.scheme", "http"),
        ("url.path", "/a/b"),
        ("url.query", "x=1&sig=REDACTED"),
        ("http.target", "/a/b?x=1&sig=REDACTED"),
        ("user_agent.original", "curl"),
        ("http.user_agent", "curl"),
        ("network.protocol.version", "1.1"),
        ("client.address", "127.0.0.1"),
        ("http.route", "/a/*"),
        ("apisix.route_id", "r1"),
        ("apisix.route_name", "orders"),
        ("apisix.service_id", "-"),
        ("apisix.response_source", "apisix"),
        ("http.status_code", "503"),
        ("http.response.status_code", "503"),
        ("error.type", "503"),
        ("arg_x", "1"),
        ("http_user_agent", "curl"),
        ("arg_none", "-"),
        ("X-My-A", "1"),
        ("x-my-b", "2, 3"),
        ("Host", "Shop.test:8080"),
    ] {
        assert_eq!(shown(span, key), expected, "{key}");
    }
    let status = span.status.as_ref().unwrap();
    assert_eq!((&*status.message, status.code), ("apisix error: 503", 2));
}

fn attempt() -> Attempt {
    Attempt {
        addr: NodeAddr::Tcp(([127, 0, 0, 1], 1980).into()),
        host: "node.test".to_owned(),
        began: Some(std::time::Instant::now()),
        reused: false,
        version: None,
        linked_ms: Some(1.0),
        status: 200,
        connect_ms: Some(3.5),
        sent_ms: Some(4.0),
        header_ms: Some(5.0),
        carried: None,
        response_ms: Some(6.0),
    }
}

/// A node's parent is the attempt on it, and no other one.
#[test]
fn each_node_gets_the_span_of_its_attempt() {
    for (propagators, name) in
        [(json!(["tracecontext"]), "traceparent"), (json!(["b3"]), "b3"), (json!(["b3multi"]), "x-b3-spanid")]
    {
        let plugin = plugin(always(), json!({ "propagators": propagators }));
        let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: h\ntraceparent: 00-{TRACE}-{PARENT}-01"));
        case.ctx.record.started = Some(std::time::Instant::now());
        case.run(&plugin, Phase::Rewrite);
        let mut told = vec![case.sent(name).unwrap()];
        for _ in 0..2 {
            // The first time comes to nothing: the node had no room, for example.
            case.run(&plugin, Phase::BeforeProxy);
            case.run(&plugin, Phase::BeforeProxy);
            told.push(case.sent(name).unwrap());
            case.ctx.record.attempts.push(attempt());
        }
        let mut sampled = case.ctx.kept_by_any::<Sampled>().unwrap().clone();
        assert_eq!(sampled.attempts.len(), 2);
        let all = spans_of(&mut case, &sampled, &Additional::default());
        let ids: Vec<String> =
            all.iter().map(|span| span.span_id.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
        assert_eq!(ids.len(), 3);
        for (told, id) in told.iter().zip(&ids) {
            assert!(told.contains(id), "{told} {ids:?}");
        }
        assert!(all[1..].iter().all(|span| span.parent_span_id == all[0].span_id));
        // Attempts without a hook before them have spans as well.
        sampled.attempts.clear();
        assert_eq!(spans_of(&mut case, &sampled, &Additional::default()).len(), 3);
    }
    let never = plugin(json!({"name": "always_off"}), json!({}));
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    case.run(&never, Phase::Rewrite);
    let told = case.sent("traceparent");
    case.run(&never, Phase::BeforeProxy);
    assert_eq!(case.sent("traceparent"), told, "nobody hears of its attempts");
}

#[test]
fn the_times_of_an_attempt_are_shown() {
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    case.ctx.record.started = Some(std::time::Instant::now());
    case.ctx.record.upstream_scheme = Some("https");
    case.ctx.record.attempts = vec![attempt(), Attempt { reused: true, ..attempt() }];
    let all = spans_of(&mut case, &sampled(), &Additional::default());
    let times = |span: &Span| {
        ["connection.connect", "connection.tls", "request.send", "response.wait"]
            .map(|name| shown(span, &format!("sigma.{name}_ms")))
    };
    assert_eq!(times(&all[1]), ["Double(1.0)", "Double(2.5)", "Double(0.5)", "Double(1.0)"]);
    assert_eq!(times(&all[2]), ["-", "-", "Double(0.5)", "Double(1.0)"]);
}

#[test]
fn an_unknown_method_names_no_span() {
    let mut case = Case::new("BREW / HTTP/1.1\nHost: h");
    case.ctx.record.started = Some(std::time::Instant::now());
    case.respond(200, "");
    let span = spans_of(&mut case, &sampled(), &Additional::default()).remove(0);
    assert_eq!((&*span.name, span.status.is_none()), ("HTTP", true));
    assert_eq!((&*shown(&span, "http.request.method"), &*shown(&span, "http.method")), ("_OTHER", "BREW"));
    assert_eq!(shown(&span, "http.request.method_original"), "BREW");
}

#[test]
fn attributes_are_bounded() {
    let many: String = (0..100).map(|n| format!("\nx-{n}: v")).collect();
    let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: h\nUser-Agent: {}{many}", "ä".repeat(4000)));
    case.ctx.record.started = Some(std::time::Instant::now());
    let additional = Additional::new(Vec::new(), vec!["x-*".to_owned()]);
    let span = spans_of(&mut case, &sampled(), &additional).remove(0);
    assert_eq!(span.attributes.iter().filter(|known| known.key.starts_with("x-")).count(), 64);
    assert!(shown(&span, "user_agent.original").len() <= 4098);
}

/// The encoding by pieces equals the encoding of the definition as a whole.
#[test]
fn a_batch_is_one_message() {
    let span = Span { name: "a".to_owned(), ..Span::default() };
    let resource = otlp::Resource::default();
    // The second one's length takes two bytes.
    let long = Span { name: "b".repeat(200), ..Span::default() };
    let request = otlp::request(resource, &[span.encode_to_vec(), long.encode_to_vec()]);
    let [encoded] = &request.resource_spans[..] else { panic!("{request:?}") };
    let of_one = ResourceSpans::decode(&encoded[..]).unwrap();
    let scope = ScopeSpans::decode(&of_one.scope_spans[0][..]).unwrap();
    assert_eq!(scope.scope.as_ref().unwrap().name, "sigma");
    assert_eq!(scope.spans.len(), 2);
    assert_eq!(Span::decode(&scope.spans[1][..]).unwrap(), long);
    let whole = ResourceSpans { scope_spans: vec![scope.encode_to_vec()], ..of_one };
    assert_eq!(whole.encode_to_vec(), encoded[..]);
}

#[test]
fn invalid_configurations_are_refused() {
    let check = |metadata: Value, expected: &str| {
        let mut all = usual();
        all.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        let made = entry_with(NAME, json!({}), Some(all)).map(drop);
        let reason = made.expect_err(expected);
        assert!(reason.contains(expected), "{reason}");
    };
    let collector = |address: &str, protocol: &str| json!({"collector": {"address": address, "request_timeout": 3, "protocol": protocol}});
    check(collector("ftp://h", "http/protobuf"), "is not host:port or an http or https URL");
    check(collector("http://", "http/protobuf"), "empty host");
    check(collector("h:4317/v1/traces", "grpc"), "has a path, but gRPC uses none");
    check(
        json!({"batch_span_processor": {"max_queue_size": 256}}),
        "max_queue_size: 256 must be greater than max_export_batch_size, which is 256",
    );
    let fields =
        json!({"address": "h:1", "request_timeout": 3, "protocol": "grpc", "request_headers": {"a b": "c"}});
    check(json!({"collector": fields}), "`a b` is not a valid header field");
    let wrong = refusal(NAME, &json!({"sampler": {"name": "always"}}));
    assert_eq!(
        wrong,
        "property \"sampler\" validation failed: property \"name\" validation failed: matches none of the enum values"
    );
    assert_eq!(warned(NAME, PluginScope::Http, &json!({})), ["sampler"]);
    assert_eq!(warned(NAME, PluginScope::Http, &json!({"sampler": always()})), [""; 0]);
}

#[test]
fn addresses_become_urls() {
    let check = |address: &str, expected: &str| {
        let mut metadata = usual();
        metadata["collector"]["address"] = address.into();
        let metadata: Metadata = serde_json::from_value(metadata).unwrap();
        let Ok(export::ExportProtocol::Http(_, url)) = metadata.way() else { panic!("{address}") };
        assert_eq!(url.as_str(), expected);
    };
    check("127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces");
    check("otel.test", "http://otel.test/v1/traces");
    check("[::1]:4318", "http://[::1]:4318/v1/traces");
    check("https://otel.test/", "https://otel.test/v1/traces");
    check("https://otel.test/in/traces", "https://otel.test/in/traces");
}
