//! A file, the Admin API and a store refuse the same resources: a store in the words of the Admin API, a file in its
//! own words.

use serde_json::json;

use super::bounds::smallest;
use super::*;
use crate::{ParseOptions, parse};

/// The place in a file, the message, and the remedy.
struct Refusal {
    place: String,
    words: String,
    hint: String,
}

/// Returns the first error of a file with this one resource.
fn of_file(kind: Kind, value: &Value) -> Option<Refusal> {
    let mut item = value.clone();
    let (id, _) = smallest(kind);
    if let Some(object) = item.as_object_mut().filter(|object| !object.contains_key("id")) {
        match kind {
            Kind::Consumer => {}
            Kind::Credential => drop(object.insert("id".into(), format!("jack/credentials/{id}").into())),
            _ => drop(object.insert("id".into(), id.into())),
        }
    }
    let text = json!({ kind.section(): [item] }).to_string();
    let options = ParseOptions { plugins: &TestPlugins, ..ParseOptions::default() };
    // The existence of other resources does not matter for a single one.
    let problems = parse(&text, &options).err()?;
    let first = problems.into_iter().find(|problem| problem.code != "reference")?;
    assert_eq!(first.line, Some(1), "{first}");
    let place = first.pointer.strip_prefix(&format!("{}[0]", kind.section())).expect("in the resource");
    let place = place.strip_prefix('.').unwrap_or(place).to_owned();
    Some(Refusal { place, words: first.message, hint: first.hint.unwrap_or_default() })
}

/// Checks that all three refuse `value` because of `place`; the file's remedy contains `hint`.
#[track_caller]
fn refused(kind: Kind, value: &Value, place: &str, hint: &str) {
    let (id, _) = smallest(kind);
    let written = super::super::check(kind, Some(id), value, &TestPlugins, UnknownFields::Refuse);
    let key = match kind {
        Kind::Credential => ResourceKey::new(kind, format!("jack/credentials/{id}")),
        _ => ResourceKey::new(kind, id),
    };
    let stored = read(&key, value, &TestPlugins, UnknownFields::Refuse).map(drop);
    let written = written.expect_err("the Admin API refuses it");
    assert_eq!(stored.expect_err("a store refuses it"), written, "{kind:?} {value}");
    let Some(file) = of_file(kind, value) else { panic!("a file takes {kind:?} {value}") };
    let said = format!("{} ({})", file.words, file.hint);
    assert_eq!(file.place, place, "{kind:?} {value}: {said}");
    assert!(said.contains(hint), "{kind:?} {value}: {said}");
}

/// Returns the smallest resource of a kind with these additional fields.
fn with(kind: Kind, fields: Value) -> Value {
    let (_, mut value) = smallest(kind);
    value.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    value
}

#[test]
fn routes_are_refused_everywhere() {
    let check = |fields: Value, place: &str, hint: &str| {
        refused(Kind::Route, &with(Kind::Route, fields), place, hint);
    };
    check(json!({ "priority": "x" }), "priority", "");
    check(json!({ "uri": 7 }), "uri", "");
    check(json!({ "uri": null }), "uri", "the key has no value");
    check(json!({ "uris": ["/b"] }), "uris", "`uri` and `uris` exclude each other");
    check(json!({ "urii": 1 }), "urii", "did you mean `uri`?");
    check(json!({ "name": "" }), "name", "");
    check(json!({ "desc": "d".repeat(257) }), "desc", "");
    check(json!({ "labels": { "a": "b c" } }), "labels.a", "without spaces");
    check(json!({ "labels": { "a": 1 } }), "labels.a", "");
    check(json!({ "status": 2 }), "status", "allowed are 1 and 0");
    check(json!({ "methods": ["GTE"] }), "methods[0]", "did you mean `GET`?");
    check(json!({ "methods": ["GET", "GET"] }), "methods", "remove one");
    check(json!({ "host": "a b" }), "host", "for example example.com");
    check(json!({ "host": "a", "hosts": ["b"] }), "hosts", "keep one of the two");
    check(json!({ "hosts": ["a", "**"] }), "hosts[1]", "for example example.com");
    check(json!({ "remote_addr": "10.0.0.0/99" }), "remote_addr", "for example 10.0.0.0/8");
    check(json!({ "remote_addrs": [] }), "remote_addrs", "");
    check(json!({ "remote_addr": "::1/200" }), "", "");
    check(json!({ "timeout": { "connect": 1, "send": 1 } }), "timeout", "`read`");
    check(json!({ "timeout": { "connect": 0, "send": 1, "read": 1 } }), "timeout.connect", "");
    check(json!({ "upstream_id": "a b" }), "upstream_id", "1 to 64 letters");
    check(json!({ "upstream_id": {} }), "upstream_id", "expected a text or a whole number");
    check(json!({ "script": "local _M = {}" }), "", "`script` and `plugins` exclude each other");
    check(json!({ "vars": ["arg_a", "==", "1"] }), "vars", "a condition is");
    check(json!({ "plugins": { "corse": {} } }), "plugins.corse", "did you mean `cors`?");
    check(json!({ "plugins": { "limit-count": {} } }), "plugins.limit-count", "`sigma plugins");
    check(
        json!({ "plugins": { "limit-count": { "count": 1, "windows": 1 } } }),
        "plugins.limit-count.windows",
        "known fields",
    );
    check(json!({ "rewrite": { "regex": "(", "replacement": "" } }), "rewrite.regex", "see the syntax");
    check(json!({ "upstream": { "nodes": {}, "tls": { "verfy": true } } }), "upstream.tls.verfy", "`verify`");
    refused(Kind::Route, &json!({ "plugins": {} }), "", "`uri` or `uris`");
    refused(Kind::Route, &json!({ "uri": "/a" }), "", "`plugins`, `upstream`,");
}

#[test]
fn upstreams_of_members_are_refused_alike() {
    let check = |fields: Value, place: &str, hint: &str| {
        let mut value = json!({ "members": [{ "upstream_id": "a" }, { "upstream_id": 2, "weight": 3 }] });
        value.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        refused(Kind::Upstream, &value, place, hint);
    };
    check(json!({ "nodes": {} }), "members", "keep one of");
    check(json!({ "members": [] }), "members", "");
    check(json!({ "type": "random" }), "type", "at the members");
    check(json!({ "retries": 1 }), "retries", "at the members");
    check(json!({ "limits": { "max_requests": 1 } }), "limits", "at the members");
    check(json!({ "members": [{ "upstream_id": "a", "wieght": 1 }] }), "members[0].wieght", "`weight`");
    check(json!({ "members": [{ "upstream_id": "a", "weight": 0 }] }), "members", "above 0");
    let twice = json!({ "members": [{ "upstream_id": "9" }, { "upstream_id": 9, "priority": 1 }] });
    check(twice, "members[1].upstream_id", "each once");
}

#[test]
fn upstreams_of_original_destinations_are_refused_alike() {
    let check = |fields: Value, place: &str, hint: &str| {
        let mut value = json!({ "original_destination": { "networks": ["10.0.0.0/8"] } });
        value.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        refused(Kind::Upstream, &value, place, hint);
    };
    check(json!({ "nodes": {} }), "original_destination", "keep one of");
    check(json!({ "type": "random" }), "type", "remove it");
    check(json!({ "checks": { "active": {} } }), "checks", "remove it");
    check(json!({ "scheme": "udp" }), "scheme", "tcp or tls for stream routes");
    check(json!({ "scheme": "fcgi" }), "scheme", "write http, https,");
    check(
        json!({ "limits": { "max_requests_per_node": 1 } }),
        "limits.max_requests_per_node",
        "`max_requests`",
    );
    let place = "original_destination";
    check(json!({ place: {} }), place, "`networks`");
    check(json!({ place: { "networks": [] } }), "original_destination.networks", "");
    check(
        json!({ place: { "networks": ["10.0.0.0/99"] } }),
        "original_destination.networks[0]",
        "for example 10.0.0.0/8",
    );
    for port in [json!(0), json!("9-8"), json!("x")] {
        let value = json!({ place: { "networks": ["::/0"], "ports": [443, port] } });
        check(value, "original_destination.ports[1]", "");
    }
}

#[test]
fn upstreams_and_services_are_refused_alike() {
    let check = |fields: Value, place: &str, hint: &str| {
        let value = with(Kind::Upstream, fields.clone());
        refused(Kind::Upstream, &value, place, hint);
        for kind in [Kind::Service, Kind::Route] {
            let place = if place.is_empty() { "upstream".to_owned() } else { format!("upstream.{place}") };
            refused(kind, &with(kind, json!({ "upstream": value })), &place, hint);
        }
    };
    check(json!({ "type": "roundrobbin" }), "type", "did you mean `roundrobin`?");
    check(json!({ "type": "chash" }), "", "`key`");
    check(json!({ "type": "maglev" }), "", "`key`");
    check(json!({ "bounded_load": 125 }), "bounded_load", "write type: chash, maglev or rendezvous");
    check(json!({ "type": "maglev", "key": "uri", "bounded_load": 99 }), "bounded_load", "");
    check(json!({ "type": "ewma", "slow_start": { "window": 30 } }), "slow_start", "or remove it");
    check(json!({ "slow_start": { "window": 0 } }), "slow_start.window", "");
    check(json!({ "slow_start": {} }), "slow_start", "`window`");
    let affinity =
        |cookie: Value| json!({ "session_affinity": { "cookie": cookie, "secret": "0123456789abcdef" } });
    let place = "session_affinity.cookie";
    check(affinity(json!({})), place, "`name`");
    check(affinity(json!({ "name": "a b" })), &format!("{place}.name"), "");
    check(affinity(json!({ "name": "a", "path": "/;x" })), &format!("{place}.path"), "");
    check(affinity(json!({ "name": "a", "domain": "a;b" })), &format!("{place}.domain"), "");
    check(
        affinity(json!({ "name": "a", "same_site": "none" })),
        &format!("{place}.same_site"),
        "secure: true",
    );
    check(json!({ "session_affinity": { "cookie": { "name": "a" } } }), "session_affinity", "`secret`");
    let stick = |fields: Value| json!({ "stick_table": fields });
    check(stick(json!({})), "stick_table", "`cookie` and `header`");
    check(stick(json!({ "cookie": "a", "header": "b" })), "stick_table", "`cookie` and `header`");
    check(stick(json!({ "cookie": "a", "address": true })), "stick_table", "`address: true`");
    check(stick(json!({ "address": true, "match": ["$arg_a"] })), "stick_table.match", "one of the two");
    check(stick(json!({ "address": false })), "stick_table", "`address: true`");
    check(stick(json!({ "cookie": "a b" })), "stick_table.cookie", "");
    check(stick(json!({ "header": "a", "match": ["$agr_a"] })), "stick_table.match[0]", "variables");
    check(stick(json!({ "header": "a", "match": ["$arg_a", "a"] })), "stick_table.match[1]", "$arg_session");
    check(stick(json!({ "cookie": "a", "size": 1 })), "stick_table.size", "");
    let both = affinity(json!({ "name": "a" }));
    let both = json!({ "session_affinity": both["session_affinity"], "stick_table": { "cookie": "a" } });
    check(both, "stick_table", "one of the two");
    check(json!({ "type": "chash", "key": "uri", "zone_aware": {} }), "zone_aware", "another `type`");
    let subsets = |fields: Value| {
        let mut subsets = json!({ "selectors": [{ "keys": ["a"] }], "criteria": { "a": "$http_a" } });
        subsets.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({ "subsets": subsets })
    };
    check(subsets(json!({ "criteria": { "b": "$http_b" } })), "subsets.criteria.b", "`keys` of a selector");
    check(subsets(json!({ "criteria": { "a": "$htpt_a" } })), "subsets.criteria.a", "variables");
    check(subsets(json!({ "fallback": "default" })), "subsets.default", "add the other one");
    check(subsets(json!({ "default": {} })), "subsets.default", "or remove it");
    let selector = |fields: Value| {
        let mut selector = json!({ "keys": ["a", "b"] });
        selector.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        subsets(json!({ "selectors": [selector, { "keys": ["b"] }] }))
    };
    let place = "subsets.selectors[0].fallback_keys_subset";
    check(selector(json!({ "fallback": "keys_subset" })), place, "add the other one");
    check(selector(json!({ "fallback_keys_subset": ["b"] })), place, "add the other one");
    for keys in [json!(["a"]), json!(["c"]), json!(["a", "b"])] {
        let fields = json!({ "fallback": "keys_subset", "fallback_keys_subset": keys });
        check(selector(fields), place, "just these keys");
    }
    check(selector(json!({ "fallback": "default" })), "subsets.default", "add the other one");
    check(json!({ "panic_threshold": 101 }), "panic_threshold", "");
    check(json!({ "fail_traffic_on_panic": true }), "fail_traffic_on_panic", "`panic_threshold`");
    check(json!({ "overprovisioning_factor": 99 }), "overprovisioning_factor", "");
    check(json!({ "node_states": { "h:1": "asleep" } }), "node_states[\"h:1\"]", "allowed are");
    check(json!({ "node_states": { "h": "drain" } }), "node_states.h", "write host:port");
    check(json!({ "node_states": 5 }), "node_states", "");
    check(json!({ "retries": -1 }), "retries", "");
    check(json!({ "retries": 4_294_967_296_u64 }), "retries", "");
    check(json!({ "nodes": 5 }), "nodes", "expected a map or a list");
    check(json!({ "nodes": { "h": -1 } }), "nodes.h", "expected a number of at least 0, got -1");
    check(json!({ "nodes": [{ "host": "h" }] }), "nodes[0]", "`weight`");
    check(json!({ "nodes": [{ "host": "h", "weight": 1, "port": 0 }] }), "nodes[0].port", "from 1 to 65535");
    check(json!({ "nodes": [{ "host": "h", "weight": 1, "weigth": 1 }] }), "nodes[0].weigth", "did you mean");
    check(json!({ "nodes": { "h:65536": 1 } }), "nodes[\"h:65536\"]", "write host:port");
    check(json!({ "checks": {} }), "checks", "`active`");
    check(
        json!({ "checks": { "active": { "healthy": { "successes": 255 } } } }),
        "checks.active.healthy.successes",
        "",
    );
    check(json!({ "keepalive_pool": { "sise": 1 } }), "keepalive_pool.sise", "did you mean `size`?");
    check(json!({ "service_name": "a", "discovery_type": "dns" }), "service_name", "`nodes`");
    check(json!({ "pass_host": "rewrite" }), "", "`upstream_host`");
    check(json!({ "tls": { "client_cert": pem("CERTIFICATE") } }), "tls", "`client_key`");
    check(json!({ "tls": { "client_cert": "short" } }), "tls.client_cert", "");
    refused(Kind::Upstream, &json!({}), "", "`nodes`");
    refused(Kind::Service, &json!({ "hosts": [] }), "hosts", "");
    refused(Kind::Service, &json!({ "enable_websocket": 1 }), "enable_websocket", "");
}

#[test]
fn the_other_kinds_are_refused_alike() {
    let check = |kind: Kind, fields: Value, place: &str, hint: &str| {
        refused(kind, &with(kind, fields), place, hint);
    };
    check(Kind::Consumer, json!({ "username": "a b" }), "username", "letters, digits, `-` or `_`");
    check(Kind::Consumer, json!({ "name": "n" }), "name", "did you mean `username`");
    check(Kind::Consumer, json!({ "plugins": { "key-auth": {} } }), "plugins.key-auth", "`sigma plugins");
    check(Kind::Credential, json!({ "username": "jack" }), "username", "known fields are id");
    check(Kind::Credential, json!({ "plugins": { "cors": {} } }), "plugins.cors", "key-auth");
    let two = json!({ "plugins": { "key-auth": { "key": "k" }, "cors": {} } });
    check(Kind::Credential, two, "plugins", "");
    for kind in [Kind::ConsumerGroup, Kind::GlobalRule, Kind::PluginConfig] {
        check(kind, json!({ "plugins": { "x": {} } }), "plugins.x", "remove it");
        check(kind, json!({ "plugin": {} }), "plugin", "did you mean `plugins`?");
        refused(kind, &json!({}), "", "`plugins`");
    }
    refused(Kind::PluginMetadata, &json!({}), "", "`sigma plugins cors`");
    check(Kind::Ssl, json!({ "cert": "short" }), "cert", "");
    check(Kind::Ssl, json!({ "key": format!("---{}", "x".repeat(64)) }), "key", "PEM");
    check(Kind::Ssl, json!({ "sni": "a b" }), "sni", "for example example.com");
    check(Kind::Ssl, json!({ "snis": ["a"] }), "snis", "`sni` and `snis` exclude each other");
    check(Kind::Ssl, json!({ "type": "clint" }), "type", "did you mean `client`?");
    check(Kind::Ssl, json!({ "client": { "depth": 1 } }), "client", "`ca`");
    check(Kind::Ssl, json!({ "ssl_protocols": ["TLSv1.0"] }), "ssl_protocols[0]", "did you mean");
    check(Kind::Ssl, json!({ "client": { "ca": pem("CERTIFICATE"), "dept": 1 } }), "client.dept", "`depth`");
    refused(Kind::Proto, &json!({}), "", "`content`");
    check(Kind::Proto, json!({ "content": "message {}" }), "content", "write the text of one .proto file");
    check(Kind::StreamRoute, json!({ "server_port": 0 }), "server_port", "");
    check(Kind::StreamRoute, json!({ "remote_addr": "fe80::/129" }), "remote_addr", "for example 10.0.0.0/8");
    check(Kind::StreamRoute, json!({ "protocol": {} }), "protocol", "`name`");
    let logged = json!({ "protocol": { "name": "a", "logger": [{ "name": "b" }] } });
    check(Kind::StreamRoute, logged, "protocol.logger[0]", "`conf`");
    check(Kind::StreamRoute, json!({ "plugins": { "cors": {} } }), "plugins.cors", "");
    check(Kind::StreamRoute, json!({ "upstream": {} }), "upstream", "`nodes`");
    check(Kind::Secret, json!({ "uri": "x" }), "uri", "for example http://127.0.0.1:8200");
    check(Kind::Secret, json!({ "tokne": "t" }), "tokne", "did you mean `token`?");
    refused(Kind::Secret, &json!({ "uri": "http://h", "prefix": "a" }), "", "`token`");
}

/// For any value of a field, all three accept it or all refuse it. (`upstream` and `plugins` have short forms in
/// files.)
mod generated {
    use proptest::prelude::*;

    use super::super::generated::value;
    use super::*;

    proptest! {
        #[test]
        fn any_value_is_refused_alike(
            kind in prop::sample::select(Kind::ALL.to_vec()),
            field in "(uri|uris|methods|hosts|nodes|checks|vars|tls|cert|key|protocol|content|labels|timeout|client|desc|status|further|sni|remote_addr)",
            value in value(),
        ) {
            let mut whole = smallest(kind).1;
            whole[&field] = value;
            let (id, unknown) = (smallest(kind).0, UnknownFields::Refuse);
            let written = super::super::super::check(kind, Some(id), &whole, &TestPlugins, unknown);
            let file = of_file(kind, &whole);
            prop_assert_eq!(written.is_err(), file.is_some(), "{:?} {} {:?}", kind, whole, written);
        }
    }
}

/// All three only warn about fields without effect, if that is configured.
#[test]
fn unknown_fields_are_ignored_everywhere() {
    let value = json!({ "uri": "/a", "plugins": {}, "upstream": { "nodes": {}, "tls": { "verfy": true } } });
    let unknown = UnknownFields::Warn;
    assert_eq!(super::super::check(Kind::Route, Some("1"), &value, &TestPlugins, unknown), Ok(()));
    assert!(read(&ResourceKey::new(Kind::Route, "1"), &value, &TestPlugins, unknown).is_ok());
    let file = json!({ "compat": { "unknown_fields": "warn" }, "routes": [value] }).to_string();
    let options = ParseOptions { plugins: &TestPlugins, ..ParseOptions::default() };
    let warnings = parse(&file, &options).unwrap().warnings;
    assert!(warnings.iter().any(|problem| problem.pointer == "routes[0].upstream.tls.verfy"), "{warnings:?}");
}
