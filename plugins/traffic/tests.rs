//! Functions: refused configurations, and warnings.

use serde_json::{Value, json};
use sigma_schema::plugins::PluginScope;

use crate::testing::{assert_refusal, merged, warned};

#[test]
fn configurations_that_are_refused() {
    let function = |more: Value| merged(json!({"function_uri": "https://f.test/a"}), &more);
    for plugin in ["aws-lambda", "azure-functions", "openfunction"] {
        let check = |conf: Value, expected: &str| assert_refusal(plugin, &conf, expected);
        check(function(json!({})), "");
        check(json!({}), "property \"function_uri\" is required");
        check(json!({"function_uri": "ftp://f.test"}), "neither http nor https");
        check(
            function(json!({"timeout": 99})),
            "property \"timeout\" validation failed: expected 99 to be at least 100",
        );
        check(function(json!({"keepalive_timeout": 999})), "expected 999 to be at least 1000");
        check(function(json!({"keepalive_pool": 0})), "expected 0 to be at least 1");
        check(function(json!({"max_req_body_size": 0})), "expected 0 to be at least 1");
        check(function(json!({"ssl_verify": 1})), "wrong type: expected boolean");
    }
    let lambda = |iam: Value, expected: &str| {
        assert_refusal("aws-lambda", &function(json!({"authorization": {"iam": iam}})), expected);
    };
    lambda(json!({"accesskey": "a", "secretkey": "b"}), "");
    lambda(json!({"accesskey": "a"}), "property \"secretkey\" is required");
    lambda(json!({"secretkey": "a"}), "property \"accesskey\" is required");
    let machine = json!({"machine_identity": {"aws_region": 1}});
    assert_refusal("aws-lambda", &function(json!({"authorization": machine})), "wrong type: expected string");
}

#[test]
fn actions_that_are_refused() {
    let check = |more: Value, expected: &str| {
        let conf =
            json!({"api_host": "https://w.test", "service_token": "a:b", "namespace": "n", "action": "a"});
        assert_refusal("openwhisk", &merged(conf, &more), expected);
    };
    check(json!({}), "");
    check(json!({"action": "a b", "package": "p.q@r"}), "");
    check(json!({"action": "a/b"}), "property \"action\" validation failed: failed to match pattern");
    check(json!({"namespace": ""}), "property \"namespace\" validation failed: failed to match pattern");
    check(json!({"package": " p"}), "property \"package\" validation failed: failed to match pattern");
    check(json!({"action": "a".repeat(257)}), "string too long");
    check(json!({"timeout": 60_001}), "expected 60001 to be at most 60000");
    assert_refusal("openwhisk", &json!({"api_host": "https://w.test"}), "is required");
}

#[test]
fn risky_configurations_have_warnings() {
    let check = |plugin: &str, conf: Value, expected: &[&str]| {
        assert_eq!(warned(plugin, PluginScope::Http, &conf), expected, "{conf}");
    };
    check(
        "aws-lambda",
        json!({"function_uri": "http://f.test", "ssl_verify": false}),
        &["function_uri", "ssl_verify"],
    );
    let action =
        json!({"api_host": "http://w.test", "service_token": "a:b", "namespace": "n", "action": "a"});
    check("openwhisk", action, &["api_host"]);
}
