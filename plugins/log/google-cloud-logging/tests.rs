//! Entries as the service takes them, and configurations that are refused.

use super::*;
use crate::testing::{Case, refusal};

fn made(conf: Value) -> Value {
    let mut case = Case::new("GET /p?a=1 HTTP/1.1\nHost: h\nUser-Agent: \"x\\\nUser-Agent: y");
    case.respond(201, "");
    case.ctx.record.bytes_sent = 7;
    let shape = Shape::new(serde_json::from_value(conf).unwrap(), Formats::default());
    let env = Env::new(&case.node, &case.local, &case.consumers);
    let mut entry = log_entry(&shape, &json!({"type": "global"}), &case.ctx, &env);
    let (members, id) = (entry.as_object_mut().unwrap(), case.ctx.request_id());
    assert_eq!(members.remove("insertId").unwrap(), id);
    let time = members.remove("timestamp").unwrap();
    assert_eq!((time.as_str().unwrap().len(), &time.as_str().unwrap()[23..]), (24, "Z"));
    entry
}

#[test]
fn entries() {
    let wrapped = |payload: Value| {
        json!({
            "jsonPayload": payload, "labels": {"source": "apache-apisix-google-cloud-logging"},
            "resource": {"type": "global"}
        })
    };
    assert_eq!(made(json!({"log_format": {"s": "$status"}})), wrapped(json!({"s": 201})));
    let mut expected = wrapped(json!({"service_id": "h", "m": "GET", "status": "own"}));
    expected["httpRequest"] = json!({
        "requestMethod": "GET", "requestUrl": "http://h:0/p?a=1", "requestSize": 0, "status": 201,
        "responseSize": 7, "userAgent": "\"x\\", "remoteIp": "127.0.0.1", "latency": "0.000s"
    });
    let extra = json!({"log_format_extra": {"m": "$method", "service_id": "never", "status": "own"}});
    assert_eq!(made(extra), expected);
}

#[test]
fn entries_of_a_batch_get_the_name_of_the_log() {
    let entries = [br#"{"a":1}"#.to_vec(), br#"{"b":{}}"#.to_vec()];
    let body: Value = serde_json::from_slice(&payload(&entries, "projects/p\"/logs/l%2F")).unwrap();
    let name = "projects/p\"/logs/l%2F";
    let entries = json!([{"a": 1, "logName": name}, {"b": {}, "logName": name}]);
    assert_eq!(body, json!({"entries": entries, "partialSuccess": false}));
}

#[test]
fn bad_configurations() {
    let check = |conf: Value, expected: &str| {
        let refused = refusal(NAME, &conf);
        assert!(refused.contains(expected), "{conf}: {refused}");
        assert!(!refused.contains("s3cret"), "{refused}");
    };
    check(json!({}), "value should match only one schema, but matches none");
    let account = json!({"client_email": "a@b", "private_key": "s3cret", "project_id": "p"});
    check(
        json!({"auth_file": "f", "auth_config": account}),
        "value should match only one schema, but matches both schemas 1 and 2",
    );
    check(
        json!({"auth_config": account}),
        "auth_config.private_key: it is not a PEM text with a private key",
    );
    check(json!({"auth_config": {"client_email": "a"}}), "is required");
    let mut scopes = account;
    scopes["scope"] = json!([]);
    check(json!({"auth_config": scopes}), "expect array to have at least 1 items");
    check(json!({"auth_file": "f", "resource": {}}), r#"property "type" is required"#);
    assert_eq!(refusal(NAME, &json!({"auth_file": "f"})), "");
    assert_eq!(refusal(NAME, &json!({"machine_identity": {"project_id": "p"}})), "");
    check(json!({"machine_identity": {}}), r#"property "project_id" is required"#);
    check(json!({"machine_identity": {"project_id": "p"}, "auth_file": "f"}), "should match only one schema");
}
