//! Contexts, sampling and spans of `zipkin`, request by request.

use std::time::Instant;

use sigma_plugin::Entry;
use sigma_plugin::record::Attempt;
use sigma_schema::expr::{VarName, VarValue, Variables};

use super::*;
use crate::testing::{Case, entry, refusal, summary};

const TRACE: &str = "80f198ee56343ba864fe8b2a57d3eff7";
const SPAN: &str = "e457b5a2e4d86bd1";

fn conf(more: Value) -> Value {
    let mut conf = json!({"endpoint": "http://127.0.0.1:1/api/v2/spans", "sample_ratio": 1});
    conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    conf
}

fn ask(plugin: &Entry, fields: &str) -> (Case, String) {
    let mut case = Case::new(&format!("GET /a?b=1 HTTP/1.1\nHost: h\n{fields}"));
    let reply = case.run(plugin, Phase::Rewrite);
    (case, summary(reply.as_ref()))
}

/// Trace, whether it is sampled, and the flags, as the node gets them.
fn told(case: &Case) -> (String, String, String) {
    let of = |name: &str| case.sent(name).unwrap_or_default();
    (of(b3::TRACE), of(b3::SAMPLED), of(b3::FLAGS))
}

#[test]
fn sampling_decisions() {
    let never = entry(NAME, conf(json!({"sample_ratio": 0.00001}))).unwrap();
    let always = entry(NAME, conf(json!({}))).unwrap();
    let check = |plugin: &Entry, fields: &str, sampled: &str, flags: &str| {
        let (case, said) = ask(plugin, fields);
        assert_eq!(said, "passed");
        let (trace, got, got_flags) = told(&case);
        assert_eq!((&*got, &*got_flags, case.sent("b3")), (sampled, flags, None), "{fields}");
        assert!(matches!(trace.len(), 16 | 32));
    };
    check(&always, "", "1", "");
    check(&never, "", "0", "");
    check(&always, "X-B3-Sampled: 0", "0", "");
    check(&always, "X-B3-Sampled: false", "0", "");
    check(&never, "X-B3-Sampled: true", "1", "");
    check(&never, "X-B3-Flags: 1", "1", "1");
    check(&never, "X-B3-Flags: 1\nX-B3-Sampled: 0", "0", "1");
    check(&always, "b3: 0", "0", "");
    check(&never, "b3: 1", "1", "");
    check(&never, &format!("b3: {TRACE}-{SPAN}-d"), "1", "1");
    check(&never, &format!("b3: {TRACE}-{SPAN}-1"), "1", "");
    check(&never, &format!("b3: {TRACE}-{SPAN}"), "0", "");
    let distrustful = entry(NAME, conf(json!({"sample_ratio": 0.00001, "trust_incoming": false}))).unwrap();
    check(&distrustful, &format!("b3: {TRACE}-{SPAN}-d\nX-B3-Flags: 1\nX-B3-Sampled: 1"), "0", "");
}

#[test]
fn a_trace_goes_on_or_begins() {
    let plugin = entry(NAME, conf(json!({}))).unwrap();
    let (case, _) = ask(&plugin, &format!("b3: {TRACE}-{SPAN}-1"));
    assert_eq!(told(&case).0, TRACE);
    // The parent of the node's parent is the span of the request.
    let (span, parent) = (case.sent(b3::SPAN).unwrap(), case.sent(b3::PARENT).unwrap());
    assert!(span != parent && parent != SPAN, "{span} {parent}");
    let (case, _) =
        ask(&plugin, &format!("X-B3-TraceId: 64fe8b2a57d3eff7\nX-B3-SpanId: {SPAN}\nX-B3-Sampled: 0"));
    assert_eq!((&*told(&case).0, case.sent(b3::PARENT).as_deref()), ("64fe8b2a57d3eff7", Some(SPAN)));
    for invalid in [format!("X-B3-TraceId: {TRACE}0\nX-B3-SpanId: {SPAN}"), format!("b3: {TRACE}-x-1")] {
        let (case, said) = ask(&plugin, &invalid);
        assert_eq!((said.as_str(), told(&case).0.len()), ("passed", 32));
        assert!(!told(&case).0.starts_with(TRACE), "{invalid}");
    }
    let (case, said) = ask(&plugin, &format!("b3: {TRACE}"));
    assert_eq!((said.as_str(), case.sent(b3::TRACE)), ("400", None));
    let (case, _) = ask(&plugin, "uberctx-user: jack");
    assert_eq!(case.sent("uberctx-user").as_deref(), Some("jack"));
    let distrustful = entry(NAME, conf(json!({"trust_incoming": false}))).unwrap();
    let (case, said) = ask(&distrustful, "uberctx-user: jack\nb3: nonsense");
    assert_eq!((said.as_str(), case.sent("uberctx-user")), ("passed", None));
}

/// The spans of an exchange that went through all phases.
fn spans(more: Value, prepare: impl FnOnce(&mut Case)) -> Vec<Value> {
    let conf = conf(more);
    let node = Arc::new(sigma_plugin::Node::default());
    let filled = {
        let mut filled = json!({
            "service_name": "APISIX", "span_version": 2, "trust_incoming": true
        });
        filled.as_object_mut().unwrap().extend(conf.as_object().unwrap().clone());
        filled
    };
    let plugin = Zipkin::new(&Build::new(NAME, &filled, "r", &Value::Null, &node)).unwrap();
    let mut case = Case::new("GET /a?sig=x HTTP/1.1\nHost: h");
    case.ctx.client.port = 4711;
    case.ctx.client.local = Some(([10, 0, 0, 1], 9080).into());
    case.ctx.record.started = Some(Instant::now());
    prepare(&mut case);
    let env = Env::new(&case.node, &case.local, &case.consumers);
    plugin.rewrite(&mut case.ctx, &env);
    plugin.access(&mut case.ctx, &env);
    plugin.header_filter(&mut case.ctx, &env);
    let sampled = case.ctx.take_kept::<_, Sampled>(&plugin).unwrap();
    plugin.spans(&case.ctx, &env, &sampled)
}

#[test]
fn spans_of_both_layouts() {
    let names = |version: u8| {
        let all = spans(json!({"span_version": version}), |case| case.respond(200, ""));
        let root = all[0]["id"].clone();
        for span in &all {
            assert_eq!(span["traceId"], all[0]["traceId"]);
            assert!(span["duration"].as_u64().unwrap() >= 1);
            assert_eq!(span.get("parentId").is_none(), span["id"] == root);
        }
        all.iter().map(|span| span["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(2), ["apisix.request", "apisix.proxy", "apisix.response_span"]);
    assert_eq!(
        names(1),
        ["apisix.request", "apisix.rewrite", "apisix.access", "apisix.proxy", "apisix.body_filter"]
    );
}

#[test]
fn requests_and_attempts_have_spans() {
    let all = spans(json!({"service_name": "edge", "server_addr": "10.0.0.9"}), |case| {
        case.respond(502, "");
        let attempt = Attempt {
            addr: NodeAddr::Tcp("[::1]:80".parse().unwrap()),
            host: "node.test".to_owned(),
            began: case.ctx.record.started,
            reused: false,
            version: None,
            linked_ms: Some(0.1),
            status: 0,
            connect_ms: Some(0.1),
            sent_ms: None,
            header_ms: None,
            carried: None,
            response_ms: Some(0.2),
        };
        case.ctx.record.attempts = vec![attempt];
    });
    let root = &all[0];
    assert_eq!(root["kind"], "SERVER");
    assert_eq!(root["localEndpoint"], json!({"ipv4": "10.0.0.9", "port": 9080, "serviceName": "edge"}));
    assert_eq!(root["remoteEndpoint"], json!({"ipv4": "127.0.0.1", "port": 4711}));
    let tags = &root["tags"];
    assert_eq!((&tags["http.method"], &tags["http.url"]), (&json!("GET"), &json!("/a?sig=REDACTED")));
    assert_eq!(
        (&tags["http.status_code"], &tags["apisix.response_source"]),
        (&json!("502"), &json!("apisix"))
    );
    assert!(tags.as_object().unwrap().values().all(Value::is_string), "{tags}");
    let attempt = all.last().unwrap();
    assert_eq!((&attempt["name"], &attempt["kind"]), (&json!("apisix.attempt"), &json!("CLIENT")));
    assert_eq!(attempt["remoteEndpoint"], json!({"ipv6": "::1", "port": 80}));
    assert_eq!((&attempt["tags"]["error"], &attempt["tags"]["retry"]), (&json!("_OTHER"), &json!("0")));
    assert_eq!(attempt["annotations"][0]["value"], "connected");
    assert_eq!(attempt["parentId"], all[1]["id"], "below apisix.proxy");
}

#[test]
fn variables_are_published_where_that_is_wanted() {
    let node =
        Arc::new(sigma_plugin::Node::new(|_| {}, json!({"zipkin": {"set_ngx_var": true}}), String::new()));
    let mut filled = conf(json!({"service_name": "a", "span_version": 2}));
    filled["trust_incoming"] = true.into();
    let plugin = Zipkin::new(&Build::new(NAME, &filled, "r", &Value::Null, &node)).unwrap();
    let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: h\nb3: 64fe8b2a57d3eff7-{SPAN}-0"));
    let env = Env::new(&case.node, &case.local, &case.consumers);
    plugin.rewrite(&mut case.ctx, &env);
    let of = |name: &str| match case.ctx.get(&VarName::parse(name)) {
        Some(VarValue::Text(text)) => String::from_utf8(text.into_owned()).unwrap(),
        other => panic!("{name}: {other:?}"),
    };
    let (context, span) = (of("zipkin_context_traceparent"), of("zipkin_span_id"));
    assert_eq!(context, format!("00-000000000000000064fe8b2a57d3eff7-{span}-00"));
    assert_eq!((of("zipkin_trace_id").as_str(), case.sent(b3::SPAN)), ("64fe8b2a57d3eff7", Some(span)));
}

#[test]
fn invalid_configurations_are_refused() {
    let check = |conf: Value, expected: &str| assert_eq!(refusal(NAME, &conf), expected, "{conf}");
    check(json!({"sample_ratio": 1}), "property \"endpoint\" is required");
    check(json!({"endpoint": "http://h"}), "property \"sample_ratio\" is required");
    check(conf(json!({"endpoint": "ftp://h"})), "endpoint: the scheme ftp is neither http nor https");
    check(conf(json!({"server_addr": "300.1.1.1"})), "server_addr: `300.1.1.1` is not an IPv4 address");
    check(conf(json!({"server_addr": "10.0.0.1"})), "");
    check(conf(json!({})), "");
    check(
        conf(json!({"sample_ratio": 0})),
        "property \"sample_ratio\" validation failed: expected 0 to be at least 1e-05",
    );
    check(
        conf(json!({"span_version": 3})),
        "property \"span_version\" validation failed: matches none of the enum values",
    );
}
