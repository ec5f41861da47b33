//! Tests every row of the table, and similar configurations that are correct.

use serde_json::json;

use super::*;
use sigma_schema::plugins::{PluginRefusal, PluginScope, Standing};

struct Known;

impl PluginSchemas for Known {
    fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    fn schema(&self, _: &str, _: PluginScope) -> Option<&Value> {
        None
    }

    fn is_auth(&self, name: &str) -> bool {
        self.unique_attribute(name).is_some()
    }

    fn identifies(&self, name: &str) -> bool {
        ["key-auth", "openid-connect", "authz-casdoor"].contains(&name)
    }

    fn names_persons(&self, name: &str) -> bool {
        name != "authz-casdoor"
    }

    fn check(&self, _: &str, _: PluginScope, _: &Value) -> Result<(), PluginRefusal> {
        Ok(())
    }

    fn unique_attribute(&self, name: &str) -> Option<&str> {
        ["key-auth", "jwt-auth", "basic-auth"].contains(&name).then_some("key")
    }

    fn secret_fields(&self, _: &str, _: PluginScope) -> Vec<&str> {
        Vec::new()
    }

    fn standing(&self, name: &str) -> Option<Standing<'_>> {
        let priority = match name {
            "cors" => 4000,
            "key-auth" => 2500,
            "graphql-limit-count" => 1004,
            "graphql-proxy-cache" => 1009,
            "degraphql" => 509,
            _ => return None,
        };
        Some(Standing { version: "0.1", priority })
    }
}

/// `expected` has the places and parts of the messages.
#[track_caller]
fn check(value: Value, expected: &[(&str, &str)]) {
    check_where(value, &|one, _| one.is_some(), expected);
}

/// Checks the pairs with an absent part.
#[track_caller]
fn check_absent(value: Value, expected: &[(&str, &str)]) {
    check_where(value, &|one, _| one.is_none(), expected);
}

#[track_caller]
fn check_where(value: Value, are_told: &dyn Fn(Option<&str>, &str) -> bool, expected: &[(&str, &str)]) {
    let found = harmful(value.as_object().unwrap(), &Known, are_told);
    let told: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), expected.len(), "{value}: {told:?}");
    for (problem, (place, text)) in found.iter().zip(expected) {
        let hint = problem.hint.as_deref().unwrap_or_default();
        assert!(problem.pointer == *place && problem.message.contains(text), "{value}: {told:?}");
        assert!(!hint.is_empty() && !problem.message.contains('{'), "{value}: {told:?}");
    }
}

fn plugins(plugins: Value) -> Value {
    json!({ "uri": "/*", "plugins": plugins })
}

#[test]
fn there_are_rows_enough() {
    assert!(PAIRS.len() >= 10, "{}", PAIRS.len());
}

#[test]
fn caches_and_persons() {
    let shared = ("plugins.proxy-cache.consumer_isolation", "one user of key-auth");
    check(plugins(json!({"key-auth": {}, "proxy-cache": {"consumer_isolation": false}})), &[shared]);
    check(plugins(json!({"key-auth": {}, "proxy-cache": {}})), &[]);
    check(plugins(json!({"proxy-cache": {"consumer_isolation": false}})), &[]);
    let off = json!({"_meta": {"disable": true}});
    check(plugins(json!({"key-auth": off, "proxy-cache": {"consumer_isolation": false}})), &[]);
    let own = json!({"cache": {"consumer_isolation": false}, "plugins": {"openid-connect": {}}});
    check(own, &[("cache.consumer_isolation", "openid-connect")]);
    check(
        plugins(json!({"authz-casdoor": {}, "proxy-cache": {}})),
        &[("plugins.proxy-cache", "does not name users")],
    );
    check(
        plugins(json!({"authz-casdoor": {}, "graphql-proxy-cache": {"consumer_isolation": false}})),
        &[("plugins.graphql-proxy-cache.consumer_isolation", "one user of authz-casdoor")],
    );
    let cookies = ("plugins.proxy-cache.cache_set_cookie", "cookies");
    check(plugins(json!({"proxy-cache": {"cache_set_cookie": true}})), &[cookies]);
    check(plugins(json!({"proxy-cache": {"cache_set_cookie": false}})), &[]);
}

#[test]
fn caches_and_versions() {
    let split = |cache: Value, rules: Value| {
        plugins(json!({"proxy-cache": cache, "traffic-split": {"rules": rules}}))
    };
    let by = |variable: &str, entries: Value| json!([{"match": [{"vars": [[variable, "==", "1"]]}], "weighted_upstreams": entries}]);
    let canary = json!([{"upstream": {"nodes": {"a:1": 1}}}]);
    let told = [("plugins.proxy-cache", "the key does not distinguish them")];
    check(split(json!({}), by("http_x_canary", canary.clone())), &told);
    let key = json!({"cache_key": ["$request_uri", "$http_x_canary"]});
    check(split(key.clone(), by("http_x_canary", canary.clone())), &[]);
    check(split(key.clone(), by("cookie_canary", canary.clone())), &told);
    check(split(json!({}), by("arg_version", canary.clone())), &[]);
    check(split(json!({}), by("uri", canary.clone())), &[]);
    let weights = json!([{"weighted_upstreams": [{"upstream_id": "1", "weight": 1}, {"weight": 9}]}]);
    check(split(key.clone(), weights.clone()), &told);
    let off = json!([{"weighted_upstreams": [{"upstream_id": "1", "weight": 0}, {"weight": 1}]}]);
    check(split(json!({}), off), &[]);
    let host = json!([{"upstream": {"nodes": {"a:1": 1}, "pass_host": "node"}}]);
    check(split(json!({}), by("http_x_canary", host)), &[]);
    let both = json!([{"match": [{"vars": ["OR", ["http_a", "==", 1], ["!AND", ["http_b", "==", 1]]]}],
        "weighted_upstreams": canary}]);
    check(split(json!({"cache_key": ["$http_a"]}), both.clone()), &told);
    check(split(json!({"cache_key": ["$http_a", "$http_b"]}), both), &[]);
    let own = json!({"cache": {"key": ["$http_x_canary"]},
        "plugins": {"traffic-split": {"rules": by("http_x_canary", canary.clone())}}});
    check(own, &[]);
    let own = json!({"cache": {}, "plugins": {"traffic-split": {"rules": by("http_x_canary", canary)}}});
    check(own, &[("cache", "traffic-split")]);
    check(split(json!({}), json!([])), &[]);
    let members = json!([{"upstream_id": "a", "weight": 1}, {"upstream_id": "b", "weight": 1}]);
    check(json!({"cache": {}, "upstream": {"members": members}}), &[("cache", "one member")]);
    check(json!({"cache": {}, "upstream": {"members": [{"upstream_id": "a"}]}}), &[]);
}

#[test]
fn logins_and_preflights() {
    check(
        plugins(json!({"key-auth": {}, "jwt-auth": {}})),
        &[("plugins.jwt-auth", "both key-auth and jwt-auth")],
    );
    check(
        plugins(json!({"key-auth": {}, "jwt-auth": {}, "basic-auth": {}})),
        &[
            ("plugins.jwt-auth", "both key-auth and jwt-auth"),
            ("plugins.basic-auth", "both key-auth and basic-auth"),
            ("plugins.basic-auth", "both jwt-auth and basic-auth"),
        ],
    );
    check(plugins(json!({"key-auth": {}, "openid-connect": {}})), &[]);
    let cors = |methods: Value| json!({"methods": methods, "plugins": {"cors": {}}});
    check(cors(json!(["GET", "POST"])), &[("methods", "preflight")]);
    check(cors(json!(["GET", "OPTIONS"])), &[]);
    check(cors(json!([])), &[]);
    check(plugins(json!({"cors": {}, "key-auth": {}})), &[]);
    let late = ("plugins.cors._meta", "key-auth runs before cors");
    check(plugins(json!({"cors": {"_meta": {"priority": 1}}, "key-auth": {}})), &[late]);
    check(plugins(json!({"cors": {}, "key-auth": {"_meta": {"priority": 5000}}})), &[late]);
}

#[test]
fn limits_and_rules_need_a_login() {
    let told = |name: &str, conf: Value, is_told: bool| {
        let place = format!("plugins.{name}");
        let expected = [(place.as_str(), "no plugin logs clients in")];
        check_absent(plugins(json!({name: conf.clone()})), if is_told { &expected } else { &[] });
        for login in ["key-auth", "openid-connect", "jwt-auth"] {
            check_absent(plugins(json!({name: conf.clone(), login: {}})), &[]);
        }
        let off = json!({"_meta": {"disable": true}});
        check_absent(plugins(json!({name: conf, "key-auth": off})), if is_told { &expected } else { &[] });
    };
    told("limit-count", json!({"key": "consumer_name"}), true);
    told("limit-req", json!({"key": "consumer_name", "key_type": "var"}), true);
    told("limit-conn", json!({"key": "$host $consumer_name", "key_type": "var_combination"}), true);
    told("limit-count", json!({"rules": [{"key": "${consumer_name}_$uri"}]}), true);
    told("limit-count", json!({"key": "consumer_name", "key_type": "constant"}), false);
    told("limit-count", json!({"key": "remote_addr"}), false);
    told("limit-count", json!({}), false);
    told("consumer-restriction", json!({"whitelist": ["a"]}), true);
    told("consumer-restriction", json!({"type": "consumer_group_id", "blacklist": ["a"]}), true);
    told("consumer-restriction", json!({"type": "service_id", "whitelist": ["a"]}), false);
    told("acl", json!({"allow_labels": {"team": ["a"]}}), true);
}

#[test]
fn purges_are_for_operators() {
    let cached = |fields: Value| {
        let mut value = plugins(json!({"proxy-cache": {}}));
        value.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        value
    };
    let open = [("plugins.proxy-cache", "every client can remove")];
    check_absent(cached(json!({})), &open);
    check_absent(cached(json!({"methods": ["GET", "PURGE"]})), &open);
    check_absent(cached(json!({"methods": ["GET"]})), &[]);
    check_absent(cached(json!({"remote_addr": "10.0.0.1"})), &[]);
    check_absent(cached(json!({"vars": [["http_x", "==", "1"]]})), &[]);
    check_absent(plugins(json!({"proxy-cache": {}, "ip-restriction": {"whitelist": ["10.0.0.1"]}})), &[]);
    check_absent(plugins(json!({"proxy-cache": {}, "key-auth": {}})), &[]);
    check_absent(plugins(json!({"graphql-proxy-cache": {}})), &[]);
    check_absent(json!({"cache": {}}), &[]);
    check_absent(json!({"cache": {"purge": true}}), &[("cache", "every client can remove")]);
    check_absent(json!({"cache": {"purge": true}, "methods": ["GET"]}), &[]);
}

#[test]
fn open_proxies_have_warnings() {
    let proxy = |hosts: Value, more: Value| {
        let mut value = json!({"methods": ["CONNECT"], "plugins": {"forward-proxy": {"hosts": hosts}}});
        value["plugins"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        value
    };
    let open = [("plugins.forward-proxy.hosts", "an open proxy")];
    check_absent(proxy(json!(["*"]), json!({})), &open);
    check_absent(proxy(json!(["a.test", "*"]), json!({"limit-conn": {}})), &open);
    check_absent(proxy(json!(["*"]), json!({"basic-auth": {"_meta": {"disable": true}}})), &open);
    check_absent(proxy(json!(["*.a.test"]), json!({})), &[]);
    for guard in [json!({"basic-auth": {}}), json!({"openid-connect": {}}), json!({"ip-restriction": {}})] {
        check_absent(proxy(json!(["*"]), guard), &[]);
    }
    let mut guarded = proxy(json!(["*"]), json!({}));
    guarded["vars"] = json!([["ssl_client_verify", "==", "SUCCESS"]]);
    check_absent(guarded, &[]);
}

#[test]
fn other_pairs_do_harm() {
    let weights =
        json!({"rules": [{"weighted_upstreams": [{"upstream_id": "1", "weight": 1}, {"weight": 9}]}]});
    let sticky = |field: &str, split: Value| json!({"upstream": {"nodes": {"a:1": 1}, field: {}}, "plugins": {"traffic-split": split}});
    for field in ["session_affinity", "stick_table"] {
        let place = format!("upstream.{field}");
        check(sticky(field, weights.clone()), &[(&place, "chooses by weight")]);
        check(sticky(field, json!({"rules": [{"weighted_upstreams": [{"upstream_id": "1"}]}]})), &[]);
    }
    let mirrored = ("plugins.proxy-mirror", "credentials that key-auth asks");
    check(plugins(json!({"key-auth": {}, "proxy-mirror": {}})), &[mirrored]);
    check(plugins(json!({"key-auth": {"hide_credentials": true}, "proxy-mirror": {}})), &[]);
    let host = |pass_host: &str| json!({"upstream": {"pass_host": pass_host}, "plugins": {"proxy-rewrite": {"host": "a"}}});
    check(host("node"), &[("plugins.proxy-rewrite.host", "`pass_host` of the upstream decides")]);
    check(host("rewrite"), &[("plugins.proxy-rewrite.host", "decides")]);
    check(host("pass"), &[]);
    check(json!({"upstream": {"pass_host": "node"}, "plugins": {"proxy-rewrite": {"uri": "/a"}}}), &[]);
    check(plugins(json!({"grpc-transcode": {}, "grpc-web": {}})), &[("plugins.grpc-web", "responds 400")]);
    for name in ["graphql-limit-count", "graphql-proxy-cache"] {
        check(plugins(json!({name: {}, "degraphql": {}})), &[("plugins.degraphql", name)]);
        check(plugins(json!({name: {}, "degraphql": {"_meta": {"priority": 2000}}})), &[]);
    }
    let retry = |retry: Value| json!({ "retry_policy": retry });
    let hedging = json!({"delay": 1});
    let twice = json!({"hedging": hedging, "methods": ["GET", "POST"]});
    check(retry(twice.clone()), &[("retry_policy.methods", "two nodes")]);
    check(json!({"upstream": retry(twice)}), &[("upstream.retry_policy.methods", "two nodes")]);
    check(retry(json!({"hedging": hedging, "methods": ["GET", "PUT"]})), &[]);
    check(retry(json!({"methods": ["POST"]})), &[]);
}
