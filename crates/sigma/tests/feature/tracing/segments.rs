//! Zipkin (JSON, v2) and SkyWalking (segments).

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sigma_testkit::Origin;

use super::{ask, breaking, comes, gateway};
use crate::policies::seen;

/// Requests that a collector got: the line, and the body.
type Got = Arc<Mutex<Vec<(String, Value)>>>;

fn collector() -> (Origin, Got) {
    let got = Got::default();
    let kept = Arc::clone(&got);
    let origin = Origin::answer(move |message| {
        assert_eq!(message.head.get("content-type"), Some("application/json"));
        kept.lock().unwrap().push((message.head.line.clone(), message.json().unwrap()));
        b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n".to_vec()
    });
    (origin.unwrap(), got)
}

/// Returns all elements of lists to this path.
fn listed(got: &Got, path: &str) -> Vec<Value> {
    let got = got.lock().unwrap();
    let line = format!("POST {path} HTTP/1.1");
    got.iter()
        .filter(|(to, _)| *to == line)
        .flat_map(|(_, body)| body.as_array().cloned().unwrap_or_default())
        .collect()
}

#[test]
fn zipkin_gets_spans_of_a_request_and_its_attempts() {
    let ((collector, got), origin, broken) = (collector(), Origin::echo("a").unwrap(), breaking());
    let gateway = gateway(&format!(
        r#"
plugin_attr: {{ zipkin: {{ set_ngx_var: true }} }}
access_log: {{ path: "{{dir}}/access.log", format: json }}
routes:
  - uri: /*
    plugins:
      zipkin: {{ endpoint: "http://127.0.0.1:{}/api/v2/spans", sample_ratio: 1, service_name: edge }}
    upstream: {{ nodes: {{ "127.0.0.1:{}": 1000, "127.0.0.1:{}": 1 }} }}
"#,
        collector.port(),
        broken.port(),
        origin.port()
    ));
    let trace = "80f198ee56343ba864fe8b2a57d3eff7";
    let answer =
        ask(&gateway, "/a?b=1", &format!("b3: {trace}-e457b5a2e4d86bd1-1\r\nuberctx-user: jack\r\n"));
    assert_eq!(
        (seen(&answer, "x-b3-traceid").as_str(), seen(&answer, "uberctx-user").as_str()),
        (trace, "jack")
    );
    ask(&gateway, "/unsampled", "X-B3-Sampled: 0\r\n");
    // They leave when none has come for five seconds.
    comes(&gateway, || listed(&got, "/api/v2/spans").len() >= 5);
    let spans = listed(&got, "/api/v2/spans");
    let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["apisix.request", "apisix.proxy", "apisix.response_span", "apisix.attempt", "apisix.attempt"]
    );
    let root = &spans[0];
    assert_eq!((&root["traceId"], &root["parentId"]), (&json!(trace), &json!("e457b5a2e4d86bd1")));
    assert_eq!((&root["kind"], &root["localEndpoint"]["serviceName"]), (&json!("SERVER"), &json!("edge")));
    assert_eq!(
        (&root["tags"]["http.url"], &root["tags"]["http.status_code"]),
        (&json!("/a?b=1"), &json!("200"))
    );
    // The node's parent is the span that it got.
    assert_eq!(
        (spans[1]["id"].as_str(), spans[1]["parentId"].as_str()),
        (Some(&*seen(&answer, "x-b3-spanid")), root["id"].as_str())
    );
    assert_eq!(spans[3]["remoteEndpoint"], json!({"ipv4": "127.0.0.1", "port": broken.port()}));
    assert_eq!(
        (spans[3]["tags"]["error"].as_str(), spans[4]["tags"]["retry"].as_str()),
        (Some("_OTHER"), Some("1"))
    );
    let log = std::fs::read_to_string(gateway.dir().join("access.log")).unwrap();
    assert!(log.contains(&format!("\"trace_id\":\"{trace}\",\"span_id\":{}}}", root["id"])), "{log}");
}

#[test]
fn skywalking_gets_segments_and_signs_of_life() {
    let ((collector, got), origin) = (collector(), Origin::echo("a").unwrap());
    let gateway = gateway(&format!(
        r#"
plugins: [skywalking]
plugin_attr:
  skywalking: {{ service_name: edge, service_instance_name: one, endpoint_addr: "http://127.0.0.1:{}", report_interval: 1 }}
global_rules: [ {{ id: g, plugins: {{ skywalking: {{ sample_ratio: 1 }} }} }} ]
routes:
  - uri: /*
    plugins: {{ skywalking: {{}} }}
    upstream: {{ nodes: {{ "127.0.0.1:{}": 1 }} }}
"#,
        collector.port(),
        origin.port()
    ));
    let answer = ask(&gateway, "/cart", "Request-Id: order-7\r\n");
    comes(&gateway, || !listed(&got, "/v3/segments").is_empty());
    let segments = listed(&got, "/v3/segments");
    // On the route and in a global rule, it runs once.
    assert_eq!(segments.len(), 1, "{segments:?}");
    let segment = &segments[0];
    assert_eq!(
        (&segment["traceId"], &segment["service"], &segment["serviceInstance"]),
        (&json!("order-7"), &json!("edge"), &json!("one"))
    );
    let spans = segment["spans"].as_array().unwrap();
    assert_eq!(
        (spans.len(), &spans[0]["spanType"], &spans[1]["spanType"]),
        (2, &json!("Entry"), &json!("Exit"))
    );
    let b64 = |text: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
    let own = segment["traceSegmentId"].as_str().unwrap();
    let expected = format!(
        "1-{}-{}-1-{}-{}-{}-{}",
        b64("order-7"),
        b64(own),
        b64("edge"),
        b64("one"),
        b64("/cart"),
        b64("upstream service")
    );
    assert_eq!(seen(&answer, "sw8"), expected);
    // The next gateway on the way continues with it.
    ask(&gateway, "/cart", &format!("sw8: {expected}\r\n"));
    comes(&gateway, || listed(&got, "/v3/segments").len() == 2);
    let next = &listed(&got, "/v3/segments")[1];
    assert_eq!(next["spans"][0]["refs"][0]["parentTraceSegmentId"], own);
    let told = |path: &str| {
        let line = format!("POST {path} HTTP/1.1");
        got.lock().unwrap().iter().find(|(to, _)| *to == line).map(|(_, body)| body.clone())
    };
    comes(&gateway, || told("/v3/management/keepAlive").is_some());
    assert_eq!(
        told("/v3/management/keepAlive").unwrap(),
        json!({"service": "edge", "serviceInstance": "one"})
    );
    assert_eq!(told("/v3/management/reportProperties").unwrap()["properties"][0]["key"], "language");
}
