//! Requests to detectors, and the results by their verdicts.

use std::cell::RefCell;

use serde_json::{Value, json};
use sigma_plugin::Env;
use sigma_plugin::outbound::{BytesAnswer, BytesCall, BytesError, Call, CallError, Calling, CallingBytes};
use sigma_plugin::outbound::{Missing, Outbound};
use sigma_schema::plugins::PluginScope;

use crate::testing::{Case, entry_with, refusal, refusal_in, roster, summary};

/// A detector with a fixed verdict, which keeps the requests that it gets.
struct Detector {
    says: Result<Vec<u8>, Missing>,
    asked: RefCell<Vec<BytesCall>>,
}

impl Outbound for Detector {
    fn call(&self, _: Call) -> Calling {
        Box::pin(std::future::ready(Err(CallError("it speaks no HTTP".to_owned()))))
    }

    fn call_bytes(&self, call: BytesCall) -> CallingBytes {
        self.asked.borrow_mut().push(call);
        let answer = self.says.clone().map(|bytes| BytesAnswer { bytes, node: "waf.test".to_owned() });
        let answer = answer.map_err(|missing| BytesError { reason: "nothing".to_owned(), missing });
        Box::pin(std::future::ready(answer))
    }
}

const PASSES: &[u8] = b"\xc1\x01\0\0\0.";

const REFUSES: &[u8] = b"\x41\x01\0\0\0?\x02\x03\0\0\x00405\x23\x1d\0\0\0X-Waf:1\nContent-Length:5\nX:\xff\n\
    \xa4\x17\0\0\0<!-- event_id: a1b2 -->";

fn metadata() -> Value {
    json!({"nodes": [{"host": "waf.test", "port": 8000}]})
}

/// Returns the result of a request: a response, its fields about the WAF, and the request to the detector.
fn outcome(
    case: &mut Case,
    conf: Value,
    metadata: Option<Value>,
    says: Result<&[u8], Missing>,
) -> (String, String, Vec<BytesCall>) {
    let detector = Detector { says: says.map(<[u8]>::to_vec), asked: RefCell::default() };
    let plugin = entry_with("chaitin-waf", conf, metadata).unwrap().plugin;
    let env = Env { outbound: &detector, ..Env::new(&case.node, &case.local, &case.consumers) };
    let step = plugin.access(&mut case.ctx, &env);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reply = runtime.block_on(step.settled(&mut case.ctx, &env, case.body.clone())).unwrap();
    let said = summary(reply.as_ref());
    case.ctx.response.start(200);
    plugin.header_filter(&mut case.ctx, &env);
    let fields = case.ctx.response.headers.iter();
    let mut fields: Vec<String> = fields
        .map(|(name, value)| {
            let name = String::from_utf8_lossy(name).into_owned();
            let value = String::from_utf8_lossy(value).into_owned();
            let name = name.trim_start_matches("X-APISIX-CHAITIN-").to_owned();
            if name == "WAF-TIME" { name } else { format!("{name}={value}") }
        })
        .collect();
    fields.sort();
    (said, fields.join(" "), detector.asked.into_inner())
}

fn check(conf: Value, says: Result<&[u8], Missing>, expected: &str, fields: &str) {
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    let (said, told, _) = outcome(&mut case, conf.clone(), Some(metadata()), says);
    assert_eq!((said.as_str(), told.as_str()), (expected, fields), "{conf} {says:?}");
}

const BLOCKED: &str = "405 {\"code\": 405, \"success\":false, \"message\": \"blocked by Chaitin SafeLine Web Application \
    Firewall\", \"event_id\": \"a1b2\"}";

#[test]
fn verdicts_are_followed() {
    let (block, monitor) = (json!({"mode": "block"}), json!({}));
    let passed = "WAF-ACTION=pass WAF-STATUS=200 WAF-TIME WAF=yes";
    check(block.clone(), Ok(PASSES), "passed", passed);
    check(monitor.clone(), Ok(PASSES), "passed", passed);
    let rejected = "WAF-ACTION=reject WAF-STATUS=405 WAF-TIME WAF=yes";
    check(monitor, Ok(REFUSES), "passed", rejected);
    // Fields of the detector's reach the client, but for those that frame the response.
    check(block, Ok(REFUSES), BLOCKED, &format!("{rejected} X-Waf=1 X=\u{fffd}"));
    check(
        json!({"mode": "block", "append_waf_resp_header": false}),
        Ok(REFUSES),
        BLOCKED,
        "X-Waf=1 X=\u{fffd}",
    );
    let debug = json!({"append_waf_debug_header": true});
    check(debug, Ok(PASSES), "passed", "WAF-ACTION=pass WAF-SERVER=waf.test WAF-STATUS=200 WAF-TIME WAF=yes");
}

#[test]
fn without_a_verdict() {
    let both = |says: Result<&[u8], Missing>, word: &str| {
        let fields = format!("WAF-TIME WAF={word}");
        check(json!({"mode": "block"}), says, "500", &fields);
        check(json!({"mode": "monitor"}), says, "passed", &fields);
    };
    both(Err(Missing::Time), "timeout");
    both(Err(Missing::Node), "unhealthy");
    both(Err(Missing::Response), "waf-err");
    both(Ok(b"\xc1\x01\0\0\0!"), "waf-err");
    both(Ok(b"\xc2\x01\0\0\0."), "waf-err");
    let debug = json!({"append_waf_debug_header": true});
    check(debug, Err(Missing::Time), "passed", "WAF-ERROR=nothing WAF-TIME WAF=timeout");
}

#[test]
fn the_detector_is_queried_by_mode_and_match() {
    let case = |conf: Value, metadata: Option<Value>| {
        let mut case = Case::new("GET /a HTTP/1.1\nHost: h");
        let (said, fields, asked) = outcome(&mut case, conf, metadata, Ok(PASSES));
        (said, fields, asked.len())
    };
    let told = |said: &str, fields: &str, asked| (said.to_owned(), fields.to_owned(), asked);
    // Also if no detector was to be queried: APISIX has it so.
    for mode in ["off", "monitor", "block"] {
        assert_eq!(case(json!({"mode": mode}), None), told("500", "WAF=err", 0), "{mode}");
    }
    assert_eq!(case(json!({"mode": "off"}), Some(metadata())), told("passed", "WAF=off", 0));
    let mut off = metadata();
    off["mode"] = json!("off");
    assert_eq!(case(json!({}), Some(off.clone())), told("passed", "WAF=off", 0));
    assert_eq!(case(json!({"mode": "block"}), Some(off)).2, 1);
    let rule = |uri: &str| json!({"vars": [["uri", "==", uri]]});
    let matching = |rules: Value| case(json!({"mode": "block", "match": rules}), Some(metadata()));
    assert_eq!(matching(json!([rule("/b")])), told("passed", "WAF=no", 0));
    assert_eq!(matching(json!([rule("/b"), rule("/a")])).2, 1);
    assert_eq!(matching(json!([])).2, 1);
}

/// The frames of a question: their tags, and their texts.
fn frames(mut bytes: &[u8]) -> Vec<(u8, String)> {
    let mut all = Vec::new();
    while let Some((&[tag, a, b, c, d], rest)) = bytes.split_first_chunk::<5>() {
        let (data, rest) = rest.split_at(u32::from_le_bytes([a, b, c, d]) as usize);
        all.push((tag, String::from_utf8_lossy(data).into_owned()));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    all
}

#[test]
fn the_detector_gets_the_request() {
    let mut case = Case::new("POST /a%20b/../c?x=1 HTTP/1.1\nHost: h.test:81\nX-A: 1\nX-A: 2");
    case.ctx.client.addr = Some([192, 0, 2, 1].into());
    case.ctx.client.port = 5;
    case.ctx.client.local = Some(([127, 0, 0, 1], 9080).into());
    case.body = vec![b'a'; 1500];
    let conf = json!({"config": {"req_body_size": 1, "read_timeout": 7}});
    let (_, _, asked) = outcome(&mut case, conf.clone(), Some(metadata()), Ok(PASSES));
    let call = &asked[0];
    assert_eq!((&*call.upstream, call.timeout_ms), ("/apisix/routes/1#chaitin-waf/detectors", 2007));
    let told = frames(&call.request);
    let head = "POST /a%20b/../c?x=1 HTTP/1.1\r\nHost: h.test:81\r\nX-A: 1\r\nX-A: 2\r\n\r\n";
    assert_eq!(told[0], (0x41, head.to_owned()));
    assert_eq!(told[1], (0x02, "a".repeat(1024)));
    assert_eq!(told[2], (0x20, "Proto:2\n".to_owned()));
    let (tag, facts) = &told[3];
    assert_eq!((*tag, told.len()), (0x83, 4));
    let facts: Vec<(&str, &str)> = facts.lines().map(|line| line.split_once(':').unwrap()).collect();
    let names: Vec<&str> = facts.iter().map(|(name, _)| *name).collect();
    let expected = [
        "UUID",
        "RemoteAddr",
        "RemotePort",
        "LocalAddr",
        "LocalPort",
        "Scheme",
        "ServerName",
        "ProxyName",
        "ReqBeginTime",
        "HasRspIfOK",
        "HasRspIfBlock",
    ];
    assert_eq!(names, expected);
    let values: Vec<&str> = facts.iter().map(|(_, value)| *value).collect();
    assert_eq!(values[1..7], ["192.0.2.1", "5", "127.0.0.1", "9080", "http", "h.test"]);
    assert_eq!((values[0].len(), values[9], values[10]), (32, "n", "n"));
    let mut peer = conf;
    peer["config"]["real_client_ip"] = json!(false);
    let (_, _, asked) = outcome(&mut case, peer, Some(metadata()), Ok(PASSES));
    assert!(frames(&asked[0].request)[3].1.contains("\nRemoteAddr:127.0.0.1\n"));
    let mut bodiless = Case::new("GET / HTTP/1.1\nHost: h");
    let (_, _, asked) = outcome(&mut bodiless, json!({}), Some(metadata()), Ok(PASSES));
    let tags: Vec<u8> = frames(&asked[0].request).iter().map(|(tag, _)| *tag).collect();
    assert_eq!(tags, [0x41, 0x20, 0x83]);
}

#[test]
fn detectors_are_an_upstream() {
    let upstreams = |conf: Value, metadata: Value| {
        roster()
            .upstreams_with("chaitin-waf", PluginScope::Http, conf, metadata)
            .into_iter()
            .map(|inline| inline.upstream)
    };
    assert_eq!(upstreams(json!({}), Value::Null).count(), 0);
    let mut all = metadata();
    all["nodes"].as_array_mut().unwrap().push(json!({"host": "unix:/run/waf.sock"}));
    all["config"] = json!({"connect_timeout": 5, "keepalive_size": 7});
    let expected = json!({
        "scheme": "http",
        "nodes": [
            {"host": "waf.test", "port": 8000, "weight": 1}, {"host": "unix:/run/waf.sock", "port": 80, "weight": 1},
        ],
        "timeout": {"connect": 0.005, "send": 1.0, "read": 1.0},
        "keepalive_pool": {"size": 7, "idle_timeout": 60.0},
    });
    let made: Vec<Value> = upstreams(json!({}), all.clone()).collect();
    assert_eq!(made, [expected]);
    serde_json::from_value::<sigma_config::resources::Upstream>(made[0].clone()).unwrap();
    // The numbers of a route are a group: none of the metadata's are left.
    let own = json!({"config": {"read_timeout": 2500, "keepalive_timeout": 1000}});
    let made: Vec<Value> = upstreams(own, all).collect();
    assert_eq!(made[0]["timeout"], json!({"connect": 1.0, "send": 1.0, "read": 2.5}));
    assert_eq!(made[0]["keepalive_pool"], json!({"size": 256, "idle_timeout": 1.0}));
}

#[test]
fn configurations() {
    let check = |conf: Value, expected: &str| assert_eq!(refusal("chaitin-waf", &conf), expected, "{conf}");
    check(json!({}), "");
    check(json!({"mode": "block", "match": [{"vars": [["uri", "==", "/"]]}], "config": {}}), "");
    check(json!({"mode": "on"}), "property \"mode\" validation failed: matches none of the enum values");
    for rule in [json!({}), json!({"vars": [["uri", "no such operator", "/"]]})] {
        let refused = refusal("chaitin-waf", &json!({"match": [rule]}));
        assert!(refused.starts_with("failed to validate the 'vars' expression: "), "{refused}");
    }
    check(
        json!({"match": [{"vars": [["post_arg_a", "==", "1"]]}]}),
        "failed to validate the 'vars' expression: `post_arg_a` is read from the request body, which has not arrived \
         when this is decided",
    );
    check(
        json!({"config": {"read_timeout": 0}}),
        "property \"config\" validation failed: property \"read_timeout\" validation failed: expected 0 to be at least 1",
    );
    let metadata = |metadata: Value, expected: &str| {
        assert_eq!(refusal_in("chaitin-waf", PluginScope::Metadata, &metadata), expected, "{metadata}");
    };
    metadata(json!({"nodes": [{"host": "a"}, {"host": "[::1]", "port": 8000}, {"host": "unix:/run/a"}]}), "");
    metadata(
        json!({"nodes": []}),
        "property \"nodes\" validation failed: expect array to have at least 1 items",
    );
    metadata(json!({}), "property \"nodes\" is required");
    metadata(
        json!({"nodes": [{}]}),
        "property \"nodes\" validation failed: failed to validate item 1: property \"host\" is required",
    );
}
