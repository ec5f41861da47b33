//! Contexts and segments of `skywalking`, request by request.

use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sigma_plugin::address::NodeAddr;
use sigma_plugin::record::{Attempt, Wait};

use super::*;
use crate::testing::{Case, entry, refusal};

fn skywalking(ratio: f64) -> Skywalking {
    let node = Arc::new(sigma_plugin::Node::new(
        |_| {},
        json!({"skywalking": {"service_name": "edge", "service_instance_name": "i@$hostname"}}),
        "node1".to_owned(),
    ));
    Skywalking::new(&Build::new(NAME, &json!({ "sample_ratio": ratio }), "r", &Value::Null, &node)).unwrap()
}

fn incoming() -> String {
    let b = |text: &str| STANDARD.encode(text);
    format!("1-{}-{}-3-{}-{}-{}-{}", b("t1"), b("s1"), b("shop"), b("i1"), b("/cart"), b("edge:80"))
}

fn sent(case: &Case) -> Option<Reference> {
    Reference::parse(case.sent("sw8")?.as_bytes())
}

fn rewrite(plugin: &Skywalking, fields: &str) -> Case {
    let mut case = Case::new(&format!("GET /a%20b?c=1 HTTP/1.1\nHost: h\n{fields}"));
    let env = Env::new(&case.node, &case.local, &case.consumers);
    plugin.rewrite(&mut case.ctx, &env);
    case
}

#[test]
fn a_node_gets_its_parent() {
    let plugin = skywalking(1.0);
    let own = sent(&rewrite(&plugin, "")).unwrap();
    assert_eq!((own.segment.len(), own.span, &*own.endpoint), (36, 1, "/a b"));
    assert_eq!((&*own.service, &*own.instance, &*own.address), ("edge", "i@node1", "upstream service"));
    assert_eq!(own.trace, own.segment);
    assert_eq!(sent(&rewrite(&plugin, "Request-Id: r7")).unwrap().trace, "r7");
    let case = rewrite(&plugin, &format!("Request-Id: r7\nsw8: {}\nsw8-correlation: YQ==:MQ==", incoming()));
    assert_eq!(
        (&*sent(&case).unwrap().trace, case.sent("sw8-correlation").as_deref()),
        ("t1", Some("YQ==:MQ=="))
    );
    for wrong in ["sw8: 1-2-3\nsw8-correlation: x", "sw8: 1-2-3-4-5-6-7-8-9"] {
        let case = rewrite(&plugin, wrong);
        assert_eq!((sent(&case).unwrap().trace.len(), case.sent("sw8-correlation")), (36, None));
    }
}

#[test]
fn unsampled_requests_are_left_alone() {
    let case = rewrite(&skywalking(0.0), "sw8: anything\nsw8-correlation: x");
    assert_eq!(
        (case.sent("sw8").as_deref(), case.sent("sw8-correlation").as_deref()),
        (Some("anything"), Some("x"))
    );
}

fn made(prepare: impl FnOnce(&mut Case)) -> Value {
    let plugin = skywalking(1.0);
    let mut case = rewrite(&plugin, &format!("sw8: {}", incoming()));
    case.ctx.record.started = Some(Instant::now());
    prepare(&mut case);
    let sampled = case.ctx.take_kept::<_, Sampled>(&plugin).unwrap();
    let env = Env::new(&case.node, &case.local, &case.consumers);
    segment(&case.ctx, &env, &plugin.identity, &sampled).unwrap()
}

fn attempt(began: Option<Instant>, status: u16) -> Attempt {
    Attempt {
        addr: NodeAddr::Tcp(([127, 0, 0, 1], 1980).into()),
        host: "node.test".to_owned(),
        began,
        reused: false,
        version: None,
        linked_ms: None,
        status,
        connect_ms: None,
        sent_ms: None,
        header_ms: None,
        carried: None,
        response_ms: Some(0.5),
    }
}

#[test]
fn the_segment_of_a_request() {
    let segment = made(|case| {
        case.respond(200, "");
        case.ctx.record.attempts = vec![attempt(case.ctx.record.started, 200)];
    });
    assert_eq!(
        (&segment["traceId"], &segment["service"], &segment["serviceInstance"]),
        (&json!("t1"), &json!("edge"), &json!("i@node1"))
    );
    let [own, exit] = &segment["spans"].as_array().unwrap()[..] else { panic!("{segment}") };
    assert_eq!(
        (&own["spanId"], &own["parentSpanId"], &own["spanType"]),
        (&json!(0), &json!(-1), &json!("Entry"))
    );
    assert_eq!(
        (&own["operationName"], &own["componentId"], &own["spanLayer"]),
        (&json!("/a b"), &json!(6002), &json!("Http"))
    );
    assert_eq!(
        own["tags"],
        json!([
            {"key": "http.method", "value": "GET"},
            {"key": "http.params", "value": "http://h/a b?c=1"},
            {"key": "http.status_code", "value": "200"},
        ])
    );
    assert_eq!(
        own["refs"],
        json!([{
            "refType": "CrossProcess", "traceId": "t1", "parentTraceSegmentId": "s1", "parentSpanId": 3,
            "parentService": "shop", "parentServiceInstance": "i1", "parentEndpoint": "/cart",
            "networkAddressUsedAtPeer": "edge:80",
        }])
    );
    assert_eq!(
        (&exit["spanId"], &exit["parentSpanId"], &exit["spanType"]),
        (&json!(1), &json!(0), &json!("Exit"))
    );
    assert_eq!((&exit["peer"], &exit["isError"]), (&json!("upstream service"), &json!(false)));
    assert_eq!(exit["tags"][0], json!({"key": "http.status_code", "value": "200"}));
}

#[test]
fn retries_and_waits_have_spans_of_their_own() {
    let segment = made(|case| {
        case.respond(502, "");
        let began = case.ctx.record.started;
        case.ctx.record.attempts = vec![attempt(began, 0), attempt(began, 502)];
        let (began, ended) = (began.unwrap(), began.unwrap());
        case.ctx.record.waits = vec![Wait { plugin: "opa".into(), phase: Phase::Access, began, ended }];
    });
    let all = segment["spans"].as_array().unwrap();
    let shown: Vec<String> = all
        .iter()
        .map(|span| {
            format!(
                "{} {} {} {}",
                span["spanId"], span["parentSpanId"], span["operationName"], span["isError"]
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            "0 -1 \"/a b\" true",
            "1 0 \"/a b\" true",
            "2 1 \"attempt 127.0.0.1:1980\" true",
            "3 1 \"attempt 127.0.0.1:1980\" true",
            "4 0 \"apisix.phase.access.plugins.opa\" false",
        ]
    );
    // A request that was refused before a node was tried has no exit.
    let refused = made(|case| case.respond(401, ""));
    assert_eq!(refused["spans"].as_array().unwrap().len(), 1);
}

#[test]
fn invalid_configurations_are_refused() {
    let check =
        |ratio: Value, expected: &str| assert_eq!(refusal(NAME, &json!({ "sample_ratio": ratio })), expected);
    let wrong = "property \"sample_ratio\" validation failed: expected";
    check(json!(0), &format!("{wrong} 0 to be at least 1e-05"));
    check(json!(1.1), &format!("{wrong} 1.1 to be at most 1"));
    check(json!(0.5), "");
    assert!(entry(NAME, json!({})).is_ok());
    let identity = Identity { service: String::new(), instance: String::new() };
    let reporter = Reporter::new("ftp://h", identity, Duration::ZERO).map(drop);
    assert_eq!(reporter.unwrap_err(), "`ftp://h` is not a URL with http or https");
}
