//! Reasons of refusals whose words in APISIX are about the schema alone: the field and its possible values
//! follow.

use std::cell::RefCell;

use serde_json::{Value, json};

use crate::testing::{explained_refusal, merged};

/// Refusals with other words than expected; reported when it is dropped.
#[derive(Default)]
struct Wrong(RefCell<Vec<String>>);

impl Wrong {
    fn check(&self, plugin: &str, conf: &Value, words: &str, explained: &str) {
        let reason = explained_refusal(plugin, conf);
        if !reason.starts_with(words) || !reason.contains(explained) {
            self.0.borrow_mut().push(format!("{plugin} {conf}: {reason}\n    and not {explained}"));
        }
    }
}

impl Drop for Wrong {
    fn drop(&mut self) {
        let wrong = self.0.take();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

fn limit(more: &Value) -> Value {
    merged(json!({"count": 1, "time_window": 60}), more)
}

#[test]
fn refusals_by_conditions_name_the_field() {
    let wrong = Wrong::default();
    let check = |plugin: &str, conf: Value, words: &str, explained: &str| {
        wrong.check(plugin, &conf, words, explained)
    };
    let limit = |more: Value| limit(&more);
    let redis = |more: Value| limit(merged(json!({"policy": "redis", "redis_host": "redis"}), &more));
    let then = "then clause did not match";
    check(
        "limit-count",
        redis(json!({"redis_port": "6379"})),
        then,
        "(redis_port: wrong type: expected integer",
    );
    check("limit-count", limit(json!({"policy": "redis"})), then, "redis_host");
    check(
        "limit-count",
        redis(json!({"redis_timeout": "1s"})),
        then,
        "(redis_timeout: wrong type: expected integer",
    );
    check("limit-count", redis(json!({"redis_port": 0})), then, "(redis_port: expected 0 to be at least 1)");
    let cluster = |nodes: Value| {
        limit(json!({"policy": "redis-cluster", "redis_cluster_name": "c", "redis_cluster_nodes": nodes}))
    };
    let otherwise = "else clause did not match";
    check("limit-count", cluster(json!([])), otherwise, "redis_cluster_nodes");
    check("limit-count", cluster(json!([7])), otherwise, "redis_cluster_nodes[0]");
}

#[test]
fn refusals_by_choices_name_the_field() {
    let wrong = Wrong::default();
    let check = |plugin: &str, conf: Value, words: &str, explained: &str| {
        wrong.check(plugin, &conf, words, explained)
    };
    let limit = |more: Value| limit(&more);
    let none = "value should match only one schema, but matches none";
    let count = format!("property \"count\" validation failed: {none}");
    check("limit-count", json!({"count": 0, "time_window": 60}), &count, "(count: ");
    check("limit-conn", json!({}), none, "(add `default_conn_delay`");
    let both = "value should match only one schema, but matches both schemas";
    let lists = json!({"whitelist": ["127.0.0.1"], "blacklist": ["127.0.0.1"]});
    check("ip-restriction", lists, both, "(keep one of `whitelist` and `blacklist`)");
    check(
        "redirect",
        json!({"http_to_https": true, "uri": "/a"}),
        both,
        "(keep one of `uri` and `http_to_https`)",
    );
    check(
        "redirect",
        json!({"regex_uri": ["a", "b"], "uri": "/a"}),
        both,
        "(keep one of `uri` and `regex_uri`)",
    );
    check("referer-restriction", json!({"whitelist": ["a"], "blacklist": ["b"]}), both, "keep one of");
    let words = "matches none of the enum values";
    let policy = format!("property \"policy\" validation failed: {words}");
    check("limit-count", limit(json!({"policy": "Redis"})), &policy, "(policy: did you mean `redis`?)");
    check("limit-count", limit(json!({"policy": "memory"})), &policy, "(policy: one of \"local\", \"redis\"");
    let window = format!("property \"window_type\" validation failed: {words}");
    check("limit-count", limit(json!({"window_type": "hopping"})), &window, "\"fixed\"");
    check(
        "gzip",
        json!({"http_version": 2}),
        "property \"http_version\"",
        "(http_version: one of 1.1 or 1.0)",
    );
    check(
        "consumer-restriction",
        json!({"type": "host", "whitelist": ["a"]}),
        "property \"type\"",
        "\"consumer_name\"",
    );
    check("proxy-rewrite", json!({"method": "CONNECT"}), "property \"method\"", "(method: ");
}

#[test]
fn other_refusals_stay_as_they_are() {
    let check = |plugin: &str, conf: Value, expected: &str| {
        assert_eq!(explained_refusal(plugin, &conf), expected, "{conf}");
    };
    check(
        "limit-count",
        json!({"count": 1, "time_window": 60, "rejected_code": 1}),
        "property \"rejected_code\" validation failed: expected 1 to be at least 200",
    );
    check("proxy-rewrite", json!({}), "expect object to have at least 1 properties");
    check("limit-count", json!({"count": 1, "time_window": 60}), "");
}
