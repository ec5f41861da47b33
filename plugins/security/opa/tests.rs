//! Inputs of an agent, and the results of its responses.

use std::cell::RefCell;
use std::sync::Arc;

use serde_json::{Value, json};
use sigma_config::resources::{Consumer, Route, Service};
use sigma_plugin::context::{RouteFacts, RouteResources};
use sigma_plugin::outbound::{Call, CallError, Calling, Outbound, ServiceResponse};
use sigma_plugin::{Build, Env, Reply, Resource};

use super::Opa;
use crate::shared::inquiry::{Outcome, told_by};
use crate::testing::{Case, entry, refusal, summary, warned};

/// An agent with a fixed response, which keeps its inputs.
struct Agent {
    answer: Result<Vec<u8>, CallError>,
    asked: RefCell<Vec<Call>>,
}

impl Outbound for Agent {
    fn call(&self, call: Call) -> Calling {
        self.asked.borrow_mut().push(call);
        let answer = self.answer.clone().map(|body| ServiceResponse {
            status: 200,
            body,
            ..ServiceResponse::default()
        });
        Box::pin(std::future::ready(answer))
    }
}

/// Queries an agent with this response; returns its input, and the result for the request.
fn asked(case: &mut Case, conf: Value, told: Result<&str, &str>) -> (Value, Option<Reply>) {
    let answer = told.map(|text| text.as_bytes().to_vec()).map_err(|error| CallError(error.to_owned()));
    let agent = Agent { answer, asked: RefCell::default() };
    let mut whole = json!({"host": "http://agent:8181", "policy": "a/b"});
    whole.as_object_mut().unwrap().extend(conf.as_object().unwrap().clone());
    let plugin = entry("opa", whole).unwrap().plugin;
    let env = Env { outbound: &agent, ..Env::new(&case.node, &case.local, &case.consumers) };
    let step = plugin.access(&mut case.ctx, &env);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reply = runtime.block_on(step.settled(&mut case.ctx, &env, case.body.clone())).unwrap();
    let call = agent.asked.borrow_mut().pop();
    let input = call.map(|call| {
        assert_eq!(call.target, b"/v1/data/a/b");
        serde_json::from_slice(&call.body.unwrap()).unwrap()
    });
    (input.unwrap_or_default(), reply)
}

const ALLOW: Result<&str, &str> = Ok(r#"{"result":{"allow":true}}"#);

#[test]
fn the_agent_gets_the_request() {
    let mut case = Case::new("GET /a%20b?x=1&x=2&y&z= HTTP/1.1\nHost: H.test:81\nX-A: 1\nX-a: 2\nX-B: 3");
    case.ctx.client.local = Some(([127, 0, 0, 1], 9080).into());
    case.ctx.client.port = 5;
    let (told, _) = asked(&mut case, json!({}), ALLOW);
    let mut input = told["input"].clone();
    assert!(input["var"].as_object_mut().unwrap().remove("timestamp").unwrap().is_u64());
    let expected = json!({
        "type": "http",
        "request": {
            "scheme": "http", "method": "GET", "host": "h.test", "port": 9080, "path": "/a b",
            "target": "/a%20b?x=1&x=2&y&z=",
            "headers": {"host": "H.test:81", "x-a": ["1", "2"], "x-b": "3"},
            "query": {"x": ["1", "2"], "y": true, "z": ""},
        },
        "var": {"server_addr": "127.0.0.1", "server_port": "9080", "remote_addr": "127.0.0.1", "remote_port": "5"},
    });
    assert_eq!(input, expected);
    case.body = b"a=\"1\"".to_vec();
    let (told, _) = asked(&mut case, json!({"with_body": true}), ALLOW);
    assert_eq!(told["input"]["request"]["body"], "a=\"1\"");
    // None of these exist here.
    let (told, _) =
        asked(&mut case, json!({"with_route": true, "with_service": true, "with_consumer": true}), ALLOW);
    assert_eq!(told["input"].as_object().unwrap().len(), 3);
}

#[test]
fn resources_are_shown_without_secrets() {
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    let route: Route = serde_json::from_value(json!({
        "id": "r1", "uri": "/*", "service_id": "s1", "upstream": {"nodes": {"h:1": 1}},
        "labels": {"team": "a"}, "methods": [],
        "plugins": {"csrf": {"key": "hush", "expires": 1}},
    }))
    .unwrap();
    let service: Service = serde_json::from_value(json!({
        "id": "s1", "name": "shop", "upstream": {"nodes": {"h:1": 1}},
        "plugins": {"cors": {}, "csrf": {"key": "hush", "expires": 9}, "a-stranger": {"password": "hush"}},
    }))
    .unwrap();
    let consumer: Consumer =
        serde_json::from_value(json!({"username": "jack", "plugins": {"key-auth": {"key": "hush"}}}))
            .unwrap();
    let resources = RouteResources {
        route: Some(Resource::new(Arc::new(route))),
        service: Some(Resource::new(Arc::new(service))),
        plugin_config: None,
    };
    case.ctx.route = Some(Arc::new(RouteFacts { resources, ..RouteFacts::default() }));
    let consumer = sigma_plugin::Consumer {
        name: "jack".into(),
        resource: Some(Resource::new(Arc::new(consumer))),
        ..sigma_plugin::Consumer::default()
    };
    case.ctx.attach_anonymous(&Arc::new(consumer));
    let all = json!({"with_route": true, "with_service": true, "with_consumer": true});
    for _ in 0..2 {
        let (told, _) = asked(&mut case, all.clone(), ALLOW);
        let input = &told["input"];
        assert!(!told.to_string().contains("hush"), "{told}");
        assert!(input["route"].get("upstream").is_none() && input["service"].get("upstream").is_none());
        assert_eq!((&input["route"]["id"], &input["route"]["labels"]["team"]), (&json!("r1"), &json!("a")));
        // The route's own goes before the service's.
        let plugins = &input["route"]["plugins"];
        assert_eq!((&plugins["csrf"]["expires"], plugins["cors"].is_object()), (&json!(1), true));
        assert_eq!(plugins["csrf"]["key"], "***");
        assert_eq!(
            (&input["service"]["name"], &input["consumer"]["username"]),
            (&json!("shop"), &json!("jack"))
        );
    }
}

#[test]
fn answers_become_decisions() {
    let check = |told: Result<&str, &str>, expected: &str| {
        let (_, reply) = asked(&mut Case::new("GET / HTTP/1.1\nHost: h"), json!({}), told);
        assert_eq!(summary(reply.as_ref()), expected, "{told:?}");
    };
    check(ALLOW, "passed");
    check(Ok(r#"{"result":{"allow":"yes"}}"#), "passed");
    check(Err("nobody there"), "403");
    for no_result in ["", "no JSON", "[]", "{}", r#"{"result":null}"#, r#"{"result":false}"#] {
        check(Ok(no_result), "503");
    }
    check(Ok(r#"{"result":true}"#), "500");
    for refused in [r#"{"result":{}}"#, r#"{"result":{"allow":false}}"#, r#"{"result":{"allow":null}}"#] {
        check(Ok(refused), "403");
    }
    check(Ok(r#"{"result":{"allow":false,"status_code":401,"reason":"who?"}}"#), "401 who?");
    check(Ok(r#"{"result":{"allow":false,"reason":{"why":["a"]}}}"#), r#"403 {"why":["a"]}"#);
    for status in ["0", "100", "1000", "-1", "70000", "\"401\"", "4.5"] {
        check(Ok(&format!(r#"{{"result":{{"status_code":{status}}}}}"#)), "403");
    }
    let told =
        r#"{"result":{"headers":{"X-A":"1","X-B":["2",3],"X-C":"a\r\nb","Content-Length":"5","a b":"c"}}}"#;
    let (_, reply) = asked(&mut Case::new("GET / HTTP/1.1\nHost: h"), json!({}), Ok(told));
    let mut fields: Vec<_> =
        reply.unwrap().headers.into_iter().map(|(name, value)| (name.into_owned(), value)).collect();
    fields.sort();
    let expected =
        [("X-A", "1"), ("X-B", "2"), ("X-B", "3")].map(|(name, value)| (name.to_owned(), value.into()));
    assert_eq!(fields, expected);
}

#[test]
fn fields_of_the_decision_reach_the_node() {
    let mut case = Case::new("GET / HTTP/1.1\nHost: h\nX-User: root\nX-Role: admin\nX-Other: 1");
    let conf = json!({"send_headers_upstream": ["X-User", "X-Role"]});
    let told = r#"{"result":{"allow":true,"headers":{"X-User":"jack","x-role":"user","X-More":"1"}}}"#;
    let (_, reply) = asked(&mut case, conf, Ok(told));
    assert!(reply.is_none());
    let field = |name: &str| case.ctx.request.headers.find(name.as_bytes()).map(String::from_utf8_lossy);
    let found =
        ["x-user", "x-role", "x-other", "x-more"].map(|name| field(name).map(|value| value.into_owned()));
    assert_eq!(found, [Some("jack".to_owned()), None, Some("1".to_owned()), None]);
}

#[test]
fn configurations() {
    let check = |conf: Value, expected: &str| assert_eq!(refusal("opa", &conf), expected, "{conf}");
    check(json!({"host": "http://opa:8181", "policy": "example"}), "");
    check(json!({"host": "http://opa:8181"}), "property \"policy\" is required");
    check(json!({"policy": "example"}), "property \"host\" is required");
    check(json!({"host": "http://opa?x", "policy": "a"}), "host: it has a query");
    check(json!({"host": "http://opa", "policy": "a?b"}), "policy: write a path such as `example/rules`");
    check(
        json!({"host": "http://opa", "policy": "a", "send_headers_upstream": ["Content-Length"]}),
        "send_headers_upstream: `Content-Length` cannot be set",
    );
    check(
        json!({"host": "http://opa", "policy": "a", "timeout": 0}),
        "property \"timeout\" validation failed: expected 0 to be at least 1",
    );
    check(json!({"host": "http://opa", "policy": "a", "cache": {"ttl": 10}}), "");
    check(
        json!({"host": "http://opa", "policy": "a", "cache": {}}),
        "property \"cache\" validation failed: property \"ttl\" is required",
    );
    check(
        json!({"host": "http://opa", "policy": "a", "with_body": true, "cache": {"ttl": 10}}),
        "cache: with the body, OPA must decide about each request; remove with_body or cache",
    );
    let scope = sigma_schema::plugins::PluginScope::Http;
    let conf = json!({"host": "http://opa", "policy": "a", "ssl_verify": false});
    assert_eq!(warned("opa", scope, &conf), ["host", "ssl_verify"]);
}

/// Without a key all data for the agent counts but the time.
#[test]
fn requests_with_equal_data_share_a_decision() {
    let node = Arc::new(sigma_plugin::Node::default());
    let conf = json!({"host": "http://a", "policy": "p", "ssl_verify": true, "timeout": 1, "keepalive": true,
        "keepalive_timeout": 1000, "keepalive_pool": 1, "with_route": false, "with_service": false,
        "with_consumer": false, "with_body": false, "max_req_body_size": 1, "cache": {"ttl": 1, "refusal_ttl": 0}});
    let opa = Opa::new(&Build::new("opa", &conf, "r", &Value::Null, &node)).unwrap();
    let told = |head: &str, port: u16| {
        let mut case = Case::new(&format!("{head}\nHost: h"));
        case.ctx.client.port = port;
        told_by(&*opa.0, &case)
    };
    let one = told("GET /a HTTP/1.1", 1);
    assert_eq!(one, told("GET /a HTTP/1.1", 1));
    for other in ["GET /b HTTP/1.1", "PUT /a HTTP/1.1", "GET /a?b HTTP/1.1", "GET /a HTTP/1.1\nX-A: 1"] {
        assert_ne!(one, told(other, 1), "{other}");
    }
    assert_ne!(one, told("GET /a HTTP/1.1", 2));
    // Nothing of one part can be taken for something of another.
    let alike =
        ["GET /a HTTP/1.1\nX-A: b", "GET /a HTTP/1.1\nX-Ab:", "GET /a?x-ab HTTP/1.1", "GET /ax-ab HTTP/1.1"];
    let keys: std::collections::BTreeSet<_> = alike.iter().map(|head| told(head, 1)).collect();
    assert_eq!(keys.len(), alike.len());
}

#[test]
fn a_refusal_with_a_cookie_is_for_one_client() {
    let outcome = |told: Value| {
        let Value::Object(result) = told else { panic!("{told}") };
        Outcome::of(&super::refusal(&result))
    };
    assert_eq!(outcome(json!({})), Outcome::Refused(403));
    assert_eq!(outcome(json!({"status_code": 302})), Outcome::Refused(302));
    assert_eq!(outcome(json!({"headers": {"set-cookie": "a=b"}})), Outcome::Alone);
}
