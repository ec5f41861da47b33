//! Tests every field of every kind at its limits: the last valid value, the text for the first invalid one, and the
//! value of an absent field.

use serde_json::{Map, json};

use super::*;

/// Returns the smallest valid resource of each kind, and its id.
pub(super) fn smallest(kind: Kind) -> (&'static str, Value) {
    let certificate = || json!({ "cert": pem("CERTIFICATE"), "key": pem("PRIVATE KEY"), "sni": "a.com" });
    match kind {
        Kind::Route => ("1", json!({ "uri": "/a", "plugins": {} })),
        Kind::Service | Kind::StreamRoute => ("1", json!({})),
        Kind::Upstream => ("1", json!({ "nodes": {} })),
        Kind::Consumer => ("jack", json!({ "username": "jack" })),
        Kind::Credential => ("c1", json!({})),
        Kind::ConsumerGroup | Kind::GlobalRule | Kind::PluginConfig => ("1", json!({ "plugins": {} })),
        Kind::PluginMetadata => ("cors", json!({ "allow_origins": {} })),
        Kind::Ssl => ("1", certificate()),
        Kind::Proto => ("1", json!({ "content": "syntax = \"proto3\";" })),
        Kind::Secret => ("vault/1", json!({ "uri": "http://127.0.0.1:8200", "prefix": "kv", "token": "t" })),
    }
}

/// Returns the smallest resource with `value` at a path such as `checks.active.port`.
fn with(kind: Kind, path: &str, value: &Value) -> Value {
    let (_, mut whole) = smallest(kind);
    let mut place = &mut whole;
    for name in path.split('.') {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        place = &mut place[name];
    }
    *place = value.clone();
    whole
}

fn verdict(kind: Kind, value: &Value) -> String {
    let (id, _) = smallest(kind);
    super::super::check(kind, Some(id), value, &TestPlugins, UnknownFields::Refuse).err().unwrap_or_default()
}

/// Checks valid and invalid values of a field. The text of an invalid one is the inner text, or the whole text if it
/// begins with `!`.
#[track_caller]
fn field(kind: Kind, path: &str, good: &[Value], bad: &[(Value, &str)]) {
    for value in good {
        assert_eq!(verdict(kind, &with(kind, path, value)), "", "{kind:?} {path}: {value}");
    }
    for (value, expected) in bad {
        let around: String =
            path.split('.').map(|name| format!("property \"{name}\" validation failed: ")).collect();
        let expected = match expected.strip_prefix('!') {
            Some(whole) => whole.to_owned(),
            None => format!("invalid configuration: {around}{expected}"),
        };
        assert_eq!(verdict(kind, &with(kind, path, value)), expected, "{kind:?} {path}: {value}");
    }
}

const NO_FORM: &str = "object matches none of the required";
const NO_CHOICE: &str = "matches none of the enum values";
const TWICE: &str = "expected unique items but items 1 and 2 are equal";

/// Kinds without the field are named by the error text.
#[test]
fn fields_that_many_kinds_have() {
    for kind in Kind::ALL {
        let absent = |name: &str| {
            let text = format!("invalid configuration: additional properties forbidden, found {name}");
            assert_eq!(verdict(kind, &with(kind, name, &json!("x"))), text, "{kind:?}");
        };
        // APISIX accepts any key in both; the plugin checks its metadata.
        if matches!(kind, Kind::PluginMetadata | Kind::Secret) {
            let text = verdict(kind, &with(kind, "further", &json!(1)));
            let expected = "invalid configuration: unknown field `further`: known fields are uri, ";
            assert!(text.starts_with(expected) || kind == Kind::PluginMetadata && text.is_empty(), "{text}");
            continue;
        }
        absent("further");
        let time = [json!(0), json!(1_700_000_000)];
        for name in ["create_time", "update_time"] {
            field(kind, name, &time, &[(json!("now"), "wrong type: expected integer, got string")]);
        }
        if kind == Kind::GlobalRule {
            ["name", "desc", "labels"].into_iter().for_each(absent);
            continue;
        }
        let too_long = |limit: usize| format!("string too long, expected at most {limit}, got {}", limit + 1);
        match kind {
            Kind::Consumer | Kind::Ssl => absent("name"),
            Kind::PluginConfig => field(kind, "name", &[json!(""), json!("n".repeat(300))], &[]),
            _ => field(
                kind,
                "name",
                &[json!("n"), json!("\u{e9}".repeat(256))],
                &[
                    (json!(""), "string too short, expected at least 1, got 0"),
                    (json!("n".repeat(257)), &too_long(256)),
                ],
            ),
        }
        field(
            kind,
            "desc",
            &[json!(""), json!("d".repeat(256))],
            &[(json!("d".repeat(257)), &too_long(256))],
        );
        let label = |text: &str| format!("failed to validate a (matching \".*\"): {text}");
        field(
            kind,
            "labels",
            &[json!({}), json!([]), json!({ "a": "b", "c d": "x".repeat(256) })],
            &[
                (json!({ "a": 1 }), &label("wrong type: expected string, got number")),
                (json!({ "a": "" }), &label("string too short, expected at least 1, got 0")),
                (json!({ "a": "x".repeat(257) }), &label(&too_long(256))),
                (json!({ "a": "b c" }), &label("failed to match pattern \"^\\\\S+$\" with \"b c\"")),
            ],
        );
    }
}

#[test]
fn identities() {
    let good =
        [json!("a"), json!("A-b_c.9"), json!("x".repeat(64)), json!(1), json!(9_007_199_254_740_991_u64)];
    let bad = [
        json!(""),
        json!("x".repeat(65)),
        json!("a b"),
        json!("a/b"),
        json!(0),
        json!(-1),
        json!(1.5),
        json!({}),
    ];
    let bad: Vec<(Value, &str)> = bad.into_iter().map(|value| (value, NO_FORM)).collect();
    for (kind, name) in [
        (Kind::Route, "upstream_id"),
        (Kind::Route, "service_id"),
        (Kind::Route, "plugin_config_id"),
        (Kind::Route, "script_id"),
        (Kind::Service, "upstream_id"),
        (Kind::Consumer, "group_id"),
        (Kind::StreamRoute, "upstream_id"),
        (Kind::StreamRoute, "service_id"),
        (Kind::Upstream, "tls.client_cert_id"),
    ] {
        field(kind, name, &good, &bad);
    }
    for kind in Kind::ALL {
        if matches!(kind, Kind::PluginMetadata | Kind::Secret | Kind::Consumer) {
            continue;
        }
        for (id, accepted) in [("x".repeat(64), true), ("x".repeat(65), false), ("a b".to_owned(), false)] {
            let text = format!("invalid configuration: property \"id\" validation failed: {NO_FORM}");
            let got =
                super::super::check(kind, Some(&id), &smallest(kind).1, &TestPlugins, UnknownFields::Refuse);
            assert_eq!(got.err(), (!accepted).then_some(text), "{kind:?} {id}");
        }
    }
    let long = |length: usize| format!("jack/credentials/{}", "c".repeat(length - 17));
    for (id, accepted) in [(long(128), true), (long(129), false), ("jack/credentials/a b".to_owned(), false)]
    {
        let got =
            super::super::check(Kind::Credential, Some(&id), &json!({}), &TestPlugins, UnknownFields::Refuse);
        assert_eq!(got.is_ok(), accepted, "{id}");
    }
}

#[test]
fn fields_of_routes_and_services() {
    let route = |path: &str, good: &[Value], bad: &[(Value, &str)]| field(Kind::Route, path, good, bad);
    route(
        "uri",
        &[json!("/"), json!("u".repeat(4096))],
        &[
            (json!(""), "string too short, expected at least 1, got 0"),
            (json!("u".repeat(4097)), "string too long, expected at most 4096, got 4097"),
        ],
    );
    route(
        "priority",
        &[json!(-5), json!(0), json!(5.0)],
        &[(json!(1.5), "wrong type: expected integer, got number")],
    );
    let methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];
    route(
        "methods",
        &[json!([]), json!(methods)],
        &[
            (json!(["get"]), "failed to validate item 1: matches none of the enum values"),
            (json!(["GET", "GET"]), TWICE),
        ],
    );
    let host = |text: &str| {
        format!("failed to match pattern \"^\\\\*$|^\\\\*?[0-9a-zA-Z-._\\\\[\\\\]:]+$\" with \"{text}\"")
    };
    let hosts = ["a.com", "*", "*.a.com", "*a", "[::1]:80", "a_b-c"].map(Value::from);
    route(
        "host",
        &hosts,
        &[(json!(""), &host("")), (json!("a.*"), &host("a.*")), (json!("\u{e9}"), &host("\u{e9}"))],
    );
    for kind in [Kind::Route, Kind::Service] {
        field(
            kind,
            "hosts",
            &[json!(hosts)],
            &[
                (json!([]), "expect array to have at least 1 items"),
                (json!(["a", "a"]), TWICE),
                (json!(["a", "**"]), &format!("failed to validate item 2: {}", host("**"))),
            ],
        );
        field(
            kind,
            "enable_websocket",
            &[json!(true), json!(false)],
            &[(json!(1), "wrong type: expected boolean, got number")],
        );
    }
    let addresses = ["10.0.0.1", "10.0.0.0/0", "10.0.0.0/32", "::1", "fe80::/10", "::/128"].map(Value::from);
    let wrong: Vec<(Value, &str)> =
        ["", "10.0.0", "10.0.0.1/33", "a", "::1/"].into_iter().map(|text| (json!(text), NO_FORM)).collect();
    route("remote_addr", &addresses, &wrong);
    route(
        "remote_addrs",
        &[json!(addresses)],
        &[
            (json!([]), "expect array to have at least 1 items"),
            (json!(["::1", "::1"]), TWICE),
            (json!(["::1", "x"]), &format!("failed to validate item 2: {NO_FORM}")),
        ],
    );
    route(
        "status",
        &[json!(0), json!(1)],
        &[(json!(2), NO_CHOICE), (json!(true), "wrong type: expected integer, got boolean")],
    );
    route(
        "filter_func",
        &[],
        &[
            (json!("function"), "string too short, expected at least 10, got 8"),
            (json!("return true"), "failed to match pattern \"^function\" with \"return true\""),
        ],
    );
    for kind in [Kind::Route, Kind::Service] {
        field(
            kind,
            "script",
            &[],
            &[
                (json!("s".repeat(9)), "string too short, expected at least 10, got 9"),
                (json!("s".repeat(102_401)), "string too long, expected at most 102400, got 102401"),
            ],
        );
    }
    let uris = json!({ "plugins": {}, "uris": [] });
    assert_eq!(
        verdict(Kind::Route, &uris),
        "invalid configuration: property \"uris\" validation failed: expect array to have at least 1 items"
    );
    let both = json!({ "plugins": {}, "uri": "/a", "uris": ["/a"] });
    assert_eq!(
        verdict(Kind::Route, &both),
        "invalid configuration: allOf 1 failed: value should match only one schema, but matches both schemas 1 and 2"
    );
    let script = json!({ "uri": "/a", "script": "local _M = {}", "plugin_config_id": 1 });
    assert_eq!(verdict(Kind::Route, &script), "invalid configuration: value wasn't supposed to match schema");
    // An absent field may be empty, and one action is enough.
    for action in ["plugins", "upstream", "upstream_id", "service_id"] {
        let mut value = json!({ "uri": "/a", "upstream": { "nodes": {} }, "upstream_id": 1, "service_id": 1, "plugins": {} });
        value.as_object_mut().unwrap().retain(|name, _| name == action || name == "uri");
        assert_eq!(verdict(Kind::Route, &value), "", "{action}");
    }
    let before_body = "!failed to validate the 'vars' expression: `post_arg_a` is read from the request body, which has not arrived when this is decided";
    let graphql = "!failed to validate the 'vars' expression: `graphql_name` is read from the request body, which has not arrived when this is decided";
    route(
        "vars",
        &[
            json!([]),
            json!({}),
            json!([["arg_a", "1"]]),
            json!([["arg_b", "1"], ["post_arg_a", "1"]]),
            json!([["post_arg.a[*].b", "has", "1"]]),
            json!([["graphql_root_fields", "has", "1"]]),
            json!([["msec", "within", ["Mon-Fri 09:00-17:30 +01:00"]]]),
        ],
        &[
            (json!([["arg_a", "=", "1"]]), "!failed to validate the 'vars' expression: invalid operator '='"),
            (json!([[]]), "!failed to validate the 'vars' expression: rule too short"),
            (
                json!([["arg_a", "!", "=="]]),
                "!failed to validate the 'vars' expression: bad 'not' expression",
            ),
            (json!([["arg_a", "==", 1, 2]]), "!failed to validate the 'vars' expression: invalid expression"),
        ],
    );
    let filter = |condition: Value| json!({ "cors": { "_meta": { "filter": condition } } });
    route(
        "plugins",
        &[filter(json!([["arg_a", "1"]]))],
        &[
            (filter(json!([["post_arg_a", "1"]])), before_body),
            (filter(json!([["graphql_name", "1"]])), graphql),
        ],
    );
}

#[test]
fn timeouts() {
    for (kind, path) in
        [(Kind::Route, "timeout"), (Kind::Upstream, "timeout"), (Kind::Route, "upstream.timeout")]
    {
        let whole = |connect: Value| {
            let mut value = with(kind, path, &json!({ "connect": connect, "send": 0.001, "read": 1e6 }));
            if path.starts_with("upstream") {
                value["upstream"]["nodes"] = json!({});
            }
            verdict(kind, &value)
        };
        assert_eq!(whole(json!(0.5)), "");
        for (wrong, text) in [
            (json!(0), "expected 0 to be greater than 0"),
            (json!(-1), "expected -1 to be greater than 0"),
            (json!("1"), "wrong type: expected number, got string"),
        ] {
            let got = whole(wrong);
            assert!(got.ends_with(&format!("property \"connect\" validation failed: {text}")), "{got}");
        }
    }
}

#[test]
fn fields_of_upstreams() {
    let upstream = |path: &str, good: &[Value], bad: &[(Value, &str)]| field(Kind::Upstream, path, good, bad);
    let words = |words: &[&str]| words.iter().copied().map(Value::from).collect::<Vec<_>>();
    upstream("type", &words(&["roundrobin", "ewma", "least_conn", "random"]), &[(json!("robin"), NO_CHOICE)]);
    upstream(
        "scheme",
        &words(&["grpc", "grpcs", "http", "https", "tcp", "tls", "udp", "kafka", "fcgi"]),
        &[(json!("ftp"), NO_CHOICE)],
    );
    upstream(
        "hash_on",
        &words(&["vars", "header", "cookie", "consumer", "vars_combinations"]),
        &[(json!("ip"), NO_CHOICE)],
    );
    upstream("pass_host", &words(&["pass", "node"]), &[(json!("keep"), NO_CHOICE)]);
    upstream("retries", &[json!(0), json!(100)], &[(json!(-1), "expected -1 to be at least 0")]);
    upstream("retry_timeout", &[json!(0), json!(0.5)], &[(json!(-1), "expected -1 to be at least 0")]);
    upstream("keepalive_pool.size", &[json!(1)], &[(json!(0), "expected 0 to be at least 1")]);
    upstream("keepalive_pool.requests", &[json!(1)], &[(json!(0), "expected 0 to be at least 1")]);
    upstream(
        "keepalive_pool.idle_timeout",
        &[json!(0), json!(0.5)],
        &[(json!(-1), "expected -1 to be at least 0")],
    );
    upstream("tls.verify", &[json!(true)], &[(json!("yes"), "wrong type: expected boolean, got string")]);
    upstream(
        "upstream_host",
        &[json!("a.com:80")],
        &[(
            json!("a b"),
            "failed to match pattern \"^\\\\*$|^\\\\*?[0-9a-zA-Z-._\\\\[\\\\]:]+$\" with \"a b\"",
        )],
    );
    let node = |fields: Value| {
        let mut node = json!({ "host": "h", "port": 80, "weight": 1 });
        node.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!([node])
    };
    upstream(
        "nodes",
        &[
            json!({}),
            json!([]),
            json!({ "h": 0, "h:1": 1, "h:65535": 2, "[::1]:80": 3 }),
            node(json!({ "port": 1, "weight": 0, "priority": -7 })),
            node(json!({ "port": 65535, "metadata": { "any": [1] } })),
        ],
        &[
            (json!({ "h": 1.5 }), NO_FORM),
            (json!({ "h": "1" }), NO_FORM),
            (node(json!({ "port": 0 })), NO_FORM),
            (node(json!({ "port": 65536 })), NO_FORM),
            (node(json!({ "weight": -1 })), NO_FORM),
            (node(json!({ "metadata": 1 })), NO_FORM),
            (node(json!({ "priority": "high" })), NO_FORM),
            (json!([{ "host": "h", "port": 80 }]), NO_FORM),
            (json!([{ "port": 80, "weight": 1 }]), NO_FORM),
            (json!("h:80"), NO_FORM),
        ],
    );
    let (cert, key) = (pem("CERTIFICATE"), pem("PRIVATE KEY"));
    upstream(
        "tls",
        &[json!({ "client_cert": cert, "client_key": key })],
        &[
            (
                json!({ "client_key": key }),
                "failed to validate dependent schema for \"client_key\": property \"client_cert\" is required",
            ),
            (
                json!({ "client_cert": "c".repeat(127), "client_key": key }),
                "property \"client_cert\" validation failed: string too short, expected at least 128, got 127",
            ),
            (
                json!({ "client_cert": "c".repeat(65_537), "client_key": key }),
                "property \"client_cert\" validation failed: string too long, expected at most 65536, got 65537",
            ),
            (
                json!({ "client_cert": cert, "client_key": "k".repeat(63) }),
                "property \"client_key\" validation failed: string too short, expected at least 64, got 63",
            ),
            (
                json!({ "client_cert": cert, "client_key": key, "client_cert_id": 1 }),
                "failed to validate dependent schema for \"client_cert\": value wasn't supposed to match schema",
            ),
        ],
    );
}

/// Only a Kafka bridge may omit balancing.
#[test]
fn only_kafka_balances_nothing() {
    let with =
        |scheme: &str| verdict(Kind::Upstream, &json!({ "nodes": {}, "type": "none", "scheme": scheme }));
    assert_eq!(with("kafka"), "");
    assert!(with("http").contains("use it with `scheme: kafka`"), "{}", with("http"));
}

/// The variables that a hash may use, and the keys for a header, a cookie, a template.
#[test]
fn keys_of_consistent_hashing() {
    let check = |hash_on: &str, key: Value, accepted: bool| {
        let value = json!({ "nodes": {}, "type": "chash", "hash_on": hash_on, "key": key });
        assert_eq!(verdict(Kind::Upstream, &value).is_empty(), accepted, "{value}");
        let unused = json!({ "nodes": {}, "hash_on": hash_on, "key": key });
        assert_eq!(verdict(Kind::Upstream, &unused).is_empty(), key.is_string(), "{unused}");
    };
    for variable in crate::rules::HASH_VARIABLES {
        check("vars", json!(variable), true);
    }
    check("vars", json!("arg_user-id_2"), true);
    for wrong in ["arg_", "cookie_a", "http_a", "uri2", "", "$uri"] {
        check("vars", json!(wrong), false);
    }
    check("header", json!("X-Session_1"), true);
    check("header", json!("x y"), false);
    check("cookie", json!("sid"), true);
    check("cookie", json!(""), false);
    check("vars_combinations", json!("${arg_x ?? none}$uri"), true);
    check("consumer", json!("anything at all"), true);
    check("vars", json!(1), false);
}

#[test]
fn fields_of_health_checks() {
    let check = |path: &str, good: &[Value], bad: &[(Value, &str)]| {
        let path = format!("checks.active.{path}");
        field(Kind::Upstream, &path, good, bad);
    };
    let count = |path: &str, lowest: u8| {
        let below = i32::from(lowest) - 1;
        let text = format!("expected {below} to be at least {lowest}");
        let bad = [(json!(below), text.as_str()), (json!(255), "expected 255 to be at most 254")];
        match path.strip_prefix("passive.") {
            None => check(path, &[json!(lowest), json!(254)], &bad),
            Some(name) => {
                let path = format!("checks.passive.{name}");
                field(Kind::Upstream, &path, &[json!(lowest), json!(254)], &bad);
            }
        }
    };
    check(
        "type",
        &[json!("http"), json!("https"), json!("tcp"), json!("grpc")],
        &[(json!("udp"), NO_CHOICE)],
    );
    check("timeout", &[json!(0.1)], &[(json!("1"), "wrong type: expected number, got string")]);
    check(
        "port",
        &[json!(1), json!(65535)],
        &[(json!(0), "expected 0 to be at least 1"), (json!(65536), "expected 65536 to be at most 65535")],
    );
    check("http_method", &[json!("HEAD"), json!("PURGE")], &[(json!("get"), NO_CHOICE)]);
    check("http_path", &[json!("/x")], &[(json!(1), "wrong type: expected string, got number")]);
    check("http_req_body", &[json!("x")], &[(json!(1), "wrong type: expected string, got number")]);
    check(
        "https_verify_certificate",
        &[json!(false)],
        &[(json!(0), "wrong type: expected boolean, got number")],
    );
    check("req_headers", &[json!(["A: b"])], &[(json!([]), "expect array to have at least 1 items")]);
    for state in ["healthy", "unhealthy"] {
        check(&format!("{state}.interval"), &[json!(1)], &[(json!(0), "expected 0 to be at least 1")]);
        check(
            &format!("{state}.http_statuses"),
            &[json!([200, 599])],
            &[
                (json!([]), "expect array to have at least 1 items"),
                (json!([199]), "failed to validate item 1: expected 199 to be at least 200"),
                (json!([600]), "failed to validate item 1: expected 600 to be at most 599"),
                (json!([200, 200]), TWICE),
            ],
        );
    }
    for name in
        ["healthy.successes", "unhealthy.http_failures", "unhealthy.tcp_failures", "unhealthy.timeouts"]
    {
        count(name, 1);
        count(&format!("passive.{name}"), 0);
    }
}

#[test]
fn fields_of_consumers() {
    let group = "wrong type: expected object, got string";
    field(Kind::Consumer, "plugins", &[json!({}), json!([])], &[(json!("x"), group)]);
    let named = |name: &str| {
        super::super::check(
            Kind::Consumer,
            Some(name),
            &json!({ "username": name }),
            &TestPlugins,
            UnknownFields::Refuse,
        )
        .err()
    };
    assert_eq!(named("A-b_9"), None);
    assert_eq!(named(&"u".repeat(256)), None);
    for (name, text) in [
        ("", "string too short, expected at least 1, got 0"),
        (&"u".repeat(257), "string too long, expected at most 256, got 257"),
        ("a.b", "failed to match pattern \"^[a-zA-Z0-9_\\\\-]+$\" with \"a.b\""),
    ] {
        let whole = format!("invalid configuration: property \"username\" validation failed: {text}");
        assert_eq!(named(name), Some(whole), "{name}");
    }
    field(
        Kind::Credential,
        "plugins",
        &[json!({})],
        &[
            (
                json!({ "key-auth": {} }),
                "!invalid plugins configuration: failed to check the configuration of plugin key-auth err: property \"key\" is required",
            ),
            (
                json!({ "key-auth": 1 }),
                "!invalid plugins configuration: invalid plugin conf 1 for plugin [key-auth]",
            ),
        ],
    );
}

#[test]
fn fields_of_certificates() {
    let ssl = |path: &str, good: &[Value], bad: &[(Value, &str)]| field(Kind::Ssl, path, good, bad);
    let length = |name: &str, low: usize| {
        let short = format!("string too short, expected at least {low}, got {}", low - 1);
        let bad = [
            (json!("x".repeat(low - 1)), short.as_str()),
            (json!("x".repeat(65_537)), "string too long, expected at most 65536, got 65537"),
        ];
        ssl(name, &[], &bad);
    };
    length("cert", 128);
    length("key", 64);
    ssl("type", &[json!("server")], &[(json!("both"), NO_CHOICE)]);
    ssl("status", &[json!(0), json!(1)], &[(json!(2), NO_CHOICE)]);
    ssl(
        "ssl_protocols",
        &[json!([]), json!(["TLSv1.1", "TLSv1.2", "TLSv1.3"])],
        &[
            (json!(["TLSv1.3", "TLSv1.3"]), TWICE),
            (json!(["SSLv3"]), "failed to validate item 1: matches none of the enum values"),
            (json!(["TLSv1.1", "TLSv1.2", "TLSv1.3", "x"]), "expect array to have at most 3 items"),
        ],
    );
    ssl("client", &[], &[(json!({}), "property \"ca\" is required")]);
    let ca = || json!({ "ca": pem("CERTIFICATE") });
    let client = |name: &str, value: Value| {
        let mut client = ca();
        client[name] = value;
        client
    };
    let within = |name: &str, text: &str| format!("property \"{name}\" validation failed: {text}");
    ssl(
        "client",
        &[ca(), client("depth", json!(0)), client("skip_mtls_uri_regex", json!(["^/a"]))],
        &[
            (client("depth", json!(-1)), &within("depth", "expected -1 to be at least 0")),
            (
                client("skip_mtls_uri_regex", json!([])),
                &within("skip_mtls_uri_regex", "expect array to have at least 1 items"),
            ),
            (client("skip_mtls_uri_regex", json!(["a", "a"])), &within("skip_mtls_uri_regex", TWICE)),
            (
                client("skip_mtls_uri_regex", json!(["("])),
                "!invalid regex: regex parse error:\n    (\n    ^\nerror: unclosed group",
            ),
        ],
    );
    let pair = |names: Value| {
        let mut value = json!({ "cert": pem("CERTIFICATE"), "key": pem("PRIVATE KEY") });
        value.as_object_mut().unwrap().extend(names.as_object().unwrap().clone());
        verdict(Kind::Ssl, &value)
    };
    assert_eq!(pair(json!({ "snis": ["a.com", "*.b.com"] })), "");
    assert_eq!(
        pair(json!({ "sni": "a", "snis": ["b"] })),
        "invalid configuration: then clause did not match"
    );
    assert_eq!(
        pair(json!({ "snis": [] })),
        "invalid configuration: property \"snis\" validation failed: expect array to have at least 1 items"
    );
    assert_eq!(
        pair(json!({ "sni": "a", "certs": [pem("CERTIFICATE")], "keys": ["k".repeat(64)] })),
        "failed to handle cert-key pair[1]: failed to decrypt previous encrypted key"
    );
}

#[test]
fn fields_of_protos_secrets_and_stream_routes() {
    field(
        Kind::Proto,
        "content",
        &[json!("message M {}"), json!(format!("//{}", "c".repeat(1_048_574)))],
        &[
            (json!(""), "string too short, expected at least 1, got 0"),
            (json!("c".repeat(1_048_577)), "string too long, expected at most 1048576, got 1048577"),
            (json!(1), "wrong type: expected string, got number"),
            (
                json!("syntax = \"proto3\"; message {}"),
                "!invalid content: content:1:28: expected an identifier, but found '{'",
            ),
            (
                json!("AAAA"),
                "!invalid content: no FileDescriptorSet: failed to decode Protobuf message: invalid tag value: 0",
            ),
        ],
    );

    let uri = |text: &str| {
        format!(
            "failed to match pattern \"^[^\\\\/]+:\\\\/\\\\/([\\\\da-zA-Z.-]+|\\\\[[\\\\da-fA-F:]+\\\\])(:\\\\d+)?\" with \"{text}\""
        )
    };
    field(
        Kind::Secret,
        "uri",
        &[json!("https://vault.a.com:8200"), json!("http://[::1]"), json!("$ENV://VAULT")],
        &[(json!("vault.a.com"), &uri("vault.a.com")), (json!("://a"), &uri("://a"))],
    );
    let secret = |id: &str, value: Value, expected: &str| {
        let got = super::super::check(Kind::Secret, Some(id), &value, &TestPlugins, UnknownFields::Refuse)
            .err()
            .unwrap_or_default();
        assert_eq!(got, expected, "{value}");
    };
    let lacks = |name: &str| format!("invalid configuration: property \"{name}\" is required");
    secret("vault/1", json!({ "uri": "http://a", "prefix": "p" }), &lacks("token"));
    secret("vault/1", json!({ "uri": "http://a", "token": "t" }), &lacks("prefix"));
    secret("vault/1", json!({ "uri": "http://a", "prefix": "p", "token": "t", "namespace": "n" }), "");
    let keys = "invalid configuration: object matches none of the required: [\"access_key_id\",\"secret_access_key\"] or [\"machine_identity\"]";
    secret("aws/1", json!({ "access_key_id": "a" }), keys);
    secret("aws/1", json!({ "machine_identity": true }), "");
    secret(
        "aws/1",
        json!({ "machine_identity": false }),
        "invalid configuration: property \"machine_identity\" validation failed: matches none of the enum values",
    );
    secret("gcp/1", json!({ "machine_identity": true, "project_id": "p" }), "");
    secret(
        "aws/1",
        json!({ "access_key_id": "a", "secret_access_key": "b", "endpoint_url": "http://a", "session_token": "c" }),
        "",
    );
    let account = json!({ "client_email": "a", "private_key": "b", "project_id": "c" });
    secret("gcp/1", json!({ "auth_config": account, "ssl_verify": false }), "");
    secret("gcp/1", json!({ "auth_file": "/a" }), "");
    secret(
        "gcp/1",
        json!({ "auth_config": account, "auth_file": "/a" }),
        "invalid configuration: value should match only one schema, but matches both schemas 1 and 2",
    );
    for name in ["client_email", "private_key", "project_id"] {
        let mut account = account.clone();
        account.as_object_mut().unwrap().remove(name);
        let text = format!(
            "invalid configuration: property \"auth_config\" validation failed: property \"{name}\" is required"
        );
        secret("gcp/1", json!({ "auth_config": account }), &text);
    }

    let stream =
        |path: &str, good: &[Value], bad: &[(Value, &str)]| field(Kind::StreamRoute, path, good, bad);
    stream(
        "server_port",
        &[json!(1), json!(65535)],
        &[(json!(0), "expected 0 to be at least 1"), (json!(65536), "expected 65536 to be at most 65535")],
    );
    for name in ["remote_addr", "server_addr"] {
        // The schema accepts the second one, the address parser does not.
        stream(
            name,
            &[json!("10.0.0.0/8"), json!("::1")],
            &[(json!("x"), NO_FORM), (json!("fe80::/129"), &format!("!invalid {name}: fe80::/129"))],
        );
    }
    stream("protocol", &[], &[(json!({}), "property \"name\" is required")]);
    stream(
        "upstream",
        &[json!({ "nodes": {} })],
        &[
            (json!({}), "value should match only one schema, but matches none"),
            (
                json!({ "service_name": "a", "discovery_type": "zookeeper" }),
                "!`zookeeper` is not a service registry",
            ),
        ],
    );
    stream(
        "sni",
        &[json!("*.a.com")],
        &[(
            json!("a b"),
            "failed to match pattern \"^\\\\*$|^\\\\*?[0-9a-zA-Z-._\\\\[\\\\]:]+$\" with \"a b\"",
        )],
    );
}

#[test]
fn members_of_meta() {
    let check = |meta: Value, text: &str| {
        let value = json!({ "uri": "/a", "plugins": { "cors": { "_meta": meta } } });
        let whole = match text {
            "" => String::new(),
            text => format!(
                "failed to check the configuration of plugin cors err: property \"_meta\" validation failed: {text}"
            ),
        };
        assert_eq!(verdict(Kind::Route, &value), whole, "{value}");
    };
    check(json!({ "disable": true, "priority": -1, "error_response": "x", "filter": [] }), "");
    check(json!({ "error_response": { "a": 1 } }), "");
    check(
        json!({ "disable": 1 }),
        "property \"disable\" validation failed: wrong type: expected boolean, got number",
    );
    check(
        json!({ "priority": 1.5 }),
        "property \"priority\" validation failed: wrong type: expected integer, got number",
    );
    check(
        json!({ "error_response": 1 }),
        "property \"error_response\" validation failed: value should match only one schema, but matches none",
    );
    check(
        json!({ "filter": "x" }),
        "property \"filter\" validation failed: wrong type: expected array, got string",
    );
    check(json!(1), "wrong type: expected object, got number");
}

/// A reference to a secret is not checked against its field.
#[test]
fn references_are_not_checked() {
    for reference in ["$secret://vault/1/a/b", "$env://NAME", "$ENV://NAME/field"] {
        field(Kind::Route, "host", &[json!(reference)], &[]);
        field(Kind::Ssl, "cert", &[json!(reference)], &[]);
        field(Kind::Ssl, "key", &[json!(reference)], &[]);
        field(Kind::Secret, "uri", &[json!(reference)], &[]);
    }
}

/// The defaults of a resource with the fewest fields.
#[test]
fn absent_fields_have_a_default() {
    let check = |kind: Kind, value: Value, expected: &[(&str, Value)]| {
        let key = ResourceKey::new(kind, smallest(kind).0);
        let read = read(&key, &value, &TestPlugins, UnknownFields::Refuse).unwrap();
        let full = match &read {
            AnyResource::Route(route) => serde_json::to_value(route),
            AnyResource::Upstream(upstream) => serde_json::to_value(upstream),
            AnyResource::Ssl(ssl) => serde_json::to_value(ssl),
            AnyResource::Secret(secret) => serde_json::to_value(secret),
            other => panic!("{other:?} has no defaults"),
        };
        let full = full.unwrap();
        for (pointer, expected) in expected {
            assert_eq!(full.pointer(pointer), Some(expected), "{kind:?} {pointer} in {full}");
        }
    };
    let smallest = |kind| super::bounds::smallest(kind).1;
    check(Kind::Route, smallest(Kind::Route), &[("/priority", json!(0)), ("/status", json!(1))]);
    check(
        Kind::Upstream,
        smallest(Kind::Upstream),
        &[
            ("/type", json!("roundrobin")),
            ("/hash_on", json!("vars")),
            ("/scheme", json!("http")),
            ("/pass_host", json!("pass")),
            ("/retry_timeout", json!(0.0)),
        ],
    );
    let upstream = json!({ "nodes": [{ "host": "h", "weight": 1 }], "keepalive_pool": {}, "tls": {},
        "checks": { "active": { "healthy": {}, "unhealthy": {} }, "passive": {} } });
    let passive: Vec<u16> = (200..=208).chain([226]).chain(300..=308).collect();
    check(
        Kind::Upstream,
        upstream,
        &[
            ("/nodes/0/priority", json!(0)),
            ("/keepalive_pool", json!({ "size": 320, "idle_timeout": 60.0, "requests": 1000 })),
            ("/checks/active/type", json!("http")),
            ("/checks/active/timeout", json!(1.0)),
            ("/checks/active/concurrency", json!(10)),
            ("/checks/active/http_method", json!("GET")),
            ("/checks/active/http_path", json!("/")),
            ("/checks/active/http_req_body", json!("")),
            ("/checks/active/https_verify_certificate", json!(true)),
            ("/checks/active/healthy", json!({ "interval": 1, "http_statuses": [200, 302], "successes": 2 })),
            (
                "/checks/active/unhealthy",
                json!({
                    "interval": 1, "http_statuses": [429, 404, 500, 501, 502, 503, 504, 505],
                    "http_failures": 5, "tcp_failures": 2, "timeouts": 3,
                }),
            ),
            (
                "/checks/passive",
                json!({
                    "type": "http",
                    "healthy": { "http_statuses": passive, "successes": 5 },
                    "unhealthy": { "http_statuses": [429, 500, 503], "tcp_failures": 2, "timeouts": 7, "http_failures": 5 },
                }),
            ),
        ],
    );
    check(Kind::Ssl, smallest(Kind::Ssl), &[("/type", json!("server")), ("/status", json!(1))]);
    let mut client = smallest(Kind::Ssl);
    client["client"] = json!({ "ca": pem("CERTIFICATE") });
    check(Kind::Ssl, client, &[("/client/depth", json!(1))]);
    let account = json!({ "auth_config": { "client_email": "a", "private_key": "b", "project_id": "c" } });
    let key = ResourceKey::new(Kind::Secret, "gcp/1");
    let AnyResource::Secret(read) = read(&key, &account, &TestPlugins, UnknownFields::Refuse).unwrap() else {
        panic!("another kind")
    };
    let account = read.auth_config.as_ref().unwrap();
    assert_eq!(account.token_uri, "https://oauth2.googleapis.com/token");
    assert_eq!(account.scope, ["https://www.googleapis.com/auth/cloud-platform"]);
    assert_eq!(account.entries_uri, "https://secretmanager.googleapis.com/v1");
}

/// A kind without a row here would be untested.
#[test]
fn every_kind_has_a_smallest_form_and_one_too_small() {
    for kind in Kind::ALL {
        let (_, value) = smallest(kind);
        assert_eq!(verdict(kind, &value), "", "{kind:?}");
        assert_ne!(verdict(kind, &json!("text")), "", "{kind:?}");
        // None of its fields may be removed.
        for name in value.as_object().unwrap().keys() {
            let mut less = value.clone();
            less.as_object_mut().unwrap().remove(name);
            assert_ne!(verdict(kind, &less), "", "{kind:?} without {name}");
        }
    }
}
