//! Tests every warning about a resource or a file, and similar correct cases.

use serde_json::json;

use super::*;
use crate::stored::tests::TestPlugins;
use crate::{ParseOptions, parse};
use sigma_schema::plugins::NoPlugins;

/// `expected` has the places and parts of the messages.
#[track_caller]
fn check(kind: Kind, value: Value, expected: &[(&str, &str)]) {
    check_with(kind, &value, RouterKind::default(), expected);
}

#[track_caller]
fn check_with(kind: Kind, value: &Value, router: RouterKind, expected: &[(&str, &str)]) {
    let now = 1_800_000_000;
    let around = Surroundings {
        plugins: &NoPlugins,
        unknown: UnknownFields::Refuse,
        router,
        now,
        trusts_proxies: false,
    };
    let found = resource(kind, value.as_object().unwrap(), &around);
    let told: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), expected.len(), "{value}: {told:?}");
    for (problem, (place, text)) in found.iter().zip(expected) {
        assert!(problem.pointer == *place && problem.message.contains(text), "{value}: {told:?}");
    }
}

#[test]
fn patterns_that_never_match() {
    check(Kind::Route, json!({"uris": ["/a", "/*", "/a:b"], "hosts": ["a", "*.b", "[::1]"]}), &[]);
    check(Kind::Route, json!({"uri": "/a?x=1"}), &[("uri", "`/a?x=1` never matches")]);
    check(Kind::Route, json!({"uris": ["/a", "/b#c"]}), &[("uris[1]", "never matches")]);
    check(Kind::Route, json!({"uri": "/u/{id}"}), &[("uri", "braces are not parameters")]);
    check(Kind::Route, json!({"uri": "/u/:id"}), &[("uri", "this router has no parameters")]);
    let parameters = RouterKind::RadixtreeUriWithParameter;
    check_with(Kind::Route, &json!({"uri": "/u/:id"}), parameters, &[]);
    check_with(Kind::Route, &json!({"uri": "/u/{id}"}), parameters, &[("uri", "braces")]);
    check(Kind::Route, json!({"uri": "/", "host": "a:8080"}), &[("host", "without their port")]);
    check(Kind::Service, json!({"hosts": ["b", "[::1]:80"]}), &[("hosts[1]", "`[::1]:80` never matches")]);
    check_with(Kind::Route, &json!({"host": "a:8080"}), RouterKind::RadixtreeUri, &[]);
}

#[test]
fn fields_without_effect() {
    let upstream = |fields: Value, expected: &[(&str, &str)]| {
        check(Kind::Upstream, fields.clone(), expected);
        let inline: Vec<(String, &str)> =
            expected.iter().map(|(place, text)| (format!("upstream.{place}"), *text)).collect();
        let inline: Vec<(&str, &str)> = inline.iter().map(|(place, text)| (&**place, *text)).collect();
        check(Kind::Route, json!({"uri": "/a", "upstream": fields}), &inline);
    };
    upstream(json!({"scheme": "https", "tls": {}, "type": "chash", "key": "uri"}), &[]);
    upstream(json!({"tls": {"verify": true}}), &[("tls", "no effect with `scheme: http`")]);
    upstream(json!({"scheme": "grpc", "tls": {}}), &[("tls", "no effect with `scheme: grpc`")]);
    upstream(json!({"key": "uri", "hash_on": "vars"}), &[("key", "without `type: chash`")]);
    upstream(json!({"type": "ewma", "hash_on": "header"}), &[("hash_on", "without `type: chash`")]);
    upstream(json!({"type": "chash", "key": "hostname"}), &[("key", "one node")]);
    upstream(json!({"type": "chash", "key": "mqtt_client_id"}), &[("key", "one node")]);
    upstream(json!({"type": "chash", "hash_on": "header", "key": "hostname"}), &[]);
    upstream(json!({"upstream_host": "a"}), &[("upstream_host", "without `pass_host: rewrite`")]);
    upstream(json!({"upstream_host": "a", "pass_host": "rewrite"}), &[]);
    let states = |nodes: Value, node: &str| json!({"nodes": nodes, "node_states": {node: "drain"}});
    upstream(states(json!({"10.0.0.1:80": 1}), "10.0.0.1:80"), &[]);
    upstream(states(json!([{"host": "[::1]", "weight": 1}]), "[::1]:80"), &[]);
    upstream(states(json!({"a:80": 1}), "10.0.0.1:80"), &[]);
    let place = "node_states[\"10.0.0.2:80\"]";
    upstream(states(json!({"10.0.0.1:80": 1}), "10.0.0.2:80"), &[(place, "not one of the nodes")]);
    let active = |active: Value| json!({"checks": {"active": active}});
    let unprobed = [("checks.active", "no node is probed")];
    upstream(active(json!({"http_path": "/a"})), &unprobed);
    upstream(active(json!({"fast_interval": 1, "no_traffic_interval": 60})), &unprobed);
    upstream(json!({"checks": {"active": {"http_path": "/a"}, "passive": {}}}), &unprobed);
    upstream(active(json!({"http_path": "/a", "unhealthy": {}})), &[]);
    let active = |mut active: Value| {
        if active.get("unhealthy").is_none() {
            active["healthy"] = json!({});
        }
        json!({"checks": {"active": active}})
    };
    upstream(active(json!({"type": "tcp", "timeout": 1})), &[]);
    upstream(
        active(json!({"type": "tcp", "http_path": "/a"})),
        &[("checks.active.http_path", "`type: tcp`")],
    );
    upstream(active(json!({"type": "grpc", "grpc_service": "a", "fast_interval": 1})), &[]);
    upstream(active(json!({"grpc_service": "a"})), &[("checks.active.grpc_service", "`type: http`")]);
    upstream(
        active(json!({"type": "tcp", "http_expected_body": "a"})),
        &[("checks.active.http_expected_body", "`type: tcp`")],
    );
    upstream(
        active(json!({"no_traffic_interval": 60, "unhealthy": {}})),
        &[("checks.active.no_traffic_interval", "without `healthy`")],
    );
    let passive = json!({"fail_timeout": 5});
    upstream(json!({"checks": {"active": {}, "passive": passive}}), &[]);
    upstream(
        json!({"checks": {"active": {"unhealthy": {}}, "passive": passive}}),
        &[("checks.passive.fail_timeout", "where probes find out")],
    );
    let outliers = |rules: Value| json!({"outlier_detection": rules});
    upstream(outliers(json!({"consecutive_5xx": 3, "enforcing_consecutive_gateway_failure": 50})), &[]);
    upstream(
        outliers(json!({"consecutive_local_origin_failure": 3})),
        &[("outlier_detection.consecutive_local_origin_failure", "without `split_external")],
    );
    upstream(
        outliers(json!({"failure_percentage_threshold": 50})),
        &[("outlier_detection.failure_percentage_threshold", "without `enforcing_failure_percentage`")],
    );
    check(Kind::Route, json!({"script_id": 1}), &[("script_id", "no effect")]);
    check(
        Kind::Ssl,
        json!({"ssl_protocols": ["TLSv1.2", "TLSv1.1"]}),
        &[("ssl_protocols[1]", "not offered")],
    );
}

#[test]
fn certificates_that_are_out_of_date() {
    let certificate = include_str!("../../tests/data/2020.pem");
    assert_eq!(pem::validity(certificate), Some((1_577_836_800, 1_609_459_200)));
    check(Kind::Ssl, json!({"cert": certificate}), &[("cert", "expired 2205 days ago")]);
    check(Kind::Ssl, json!({"certs": ["", certificate]}), &[("certs[1]", "expired")]);
    check(Kind::Ssl, json!({"cert": certificate, "status": 0}), &[]);
    check(Kind::Ssl, json!({"cert": "$secret://vault/1/a"}), &[]);
}

/// Checks the warnings about a whole file.
#[track_caller]
fn warned(text: &str, expected: &[&str]) {
    let options = ParseOptions { plugins: &TestPlugins, ..ParseOptions::default() };
    let checked = parse(text, &options).unwrap_or_else(|problems| panic!("{text}\n{problems:?}"));
    let found: Vec<String> = checked.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), expected.len(), "{text}\n{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{text}\n{found}");
    }
}

#[test]
fn missing_parts_of_a_file() {
    let node = "upstream: { nodes: { \"h:1\": 1 } }";
    let tls =
        format!("listeners: [{{ address: \"127.0.0.1:1\", tls: true }}]\nroutes: [{{ uri: /a, {node} }}]\n");
    warned(&tls, &["line 1: listeners[0].tls: there is no certificate"]);
    // A port alone means two listeners, but is reported once.
    warned(&tls.replace("127.0.0.1:1", ":1"), &["line 1: listeners[0].tls: there is no certificate"]);
    warned(
        &format!("{tls}store: {{ kind: embedded }}\n")
            .replace(&format!("routes: [{{ uri: /a, {node} }}]\n"), ""),
        &[],
    );
    let stream = format!("stream_routes: [{{ {node} }}]\n");
    warned(&stream, &["line 1: stream_routes: no listener accepts sessions"]);
    warned(&format!("{stream}listeners: [{{ address: \":1\", stream: tcp }}]\n"), &[]);
    let keyed = format!("routes:\n  - {{ id: r, uri: /a, {node}, plugins: {{ key-auth: {{}} }} }}\n");
    warned(&keyed, &["line 2: routes[0].plugins.key-auth: no consumer has key-auth"]);
    warned(&keyed.replace("{}", "{ anonymous_consumer: a }"), &[]);
    // The plugin has users of its own.
    warned(&keyed.replace("{}", "{ users: [\"a:$apr1$x\"] }"), &[]);
    warned(&keyed.replace("{}", "{ auth_file: /etc/users }"), &[]);
    warned(&format!("{keyed}consumers: [{{ username: a, plugins: {{ key-auth: {{ key: a }} }} }}]\n"), &[]);
}

#[test]
fn redirects_to_https_without_a_listener() {
    let node = "upstream: { nodes: { \"h:1\": 1 } }";
    let to_https =
        format!("routes:\n  - {{ uri: /a, {node}, plugins: {{ redirect: {{ http_to_https: true }} }} }}\n");
    warned(&to_https, &["line 2: routes[0].plugins.redirect.http_to_https: no listener has TLS"]);
    warned(&format!("{to_https}trusted_addresses: [10.0.0.0/8]\n"), &[]);
    warned(&to_https.replace("true", "true, _meta: { disable: true }"), &[]);
    warned(&to_https.replace("http_to_https: true", "uri: /b"), &[]);
    let tls = "listeners: [\"127.0.0.1:1\", { address: \"127.0.0.1:2\", tls: { certificates: [{ cert: a, key: b }] } }]\n";
    warned(&format!("{to_https}{tls}"), &[]);
    let rule = format!(
        "global_rules: [{{ id: g, plugins: {{ redirect: {{ http_to_https: true }} }} }}]\nroutes: [{{ uri: /a, {node} }}]\n"
    );
    warned(&rule, &["line 1: global_rules[0].plugins.redirect.http_to_https: no listener has TLS"]);
}

#[test]
fn limits_of_consumers_that_count_addresses() {
    let check = |conf: Value, expected: &[(&str, &str)]| {
        for kind in [Kind::Consumer, Kind::ConsumerGroup] {
            check(kind, json!({"plugins": {"limit-count": conf.clone()}}), expected);
        }
        check(Kind::Route, json!({"uri": "/a", "plugins": {"limit-count": conf}}), &[]);
    };
    let place = [("plugins.limit-count.key", "each address of the consumer")];
    check(json!({"count": 1, "time_window": 1}), &place);
    check(json!({"count": 1, "time_window": 1, "key": "remote_addr", "key_type": "var"}), &place);
    check(json!({"count": 1, "time_window": 1, "key": "consumer_name"}), &[]);
    check(json!({"count": 1, "time_window": 1, "key_type": "constant", "key": "a"}), &[]);
    check(json!({"rules": []}), &[]);
    check(json!({"count": 1, "time_window": 1, "_meta": {"disable": true}}), &[]);
}

#[test]
fn metrics_without_a_page() {
    let rest = "routes: [{ uri: /a, upstream: { nodes: { \"h:1\": 1 } } }]\n";
    let check = |attributes: &str, is_read: bool| {
        let text =
            format!("{attributes}global_rules: [{{ id: a, plugins: {{ prometheus: {{}} }} }}]\n{rest}");
        let (settings, resources) = parts(&text);
        let found = readers::unread_metrics(&settings, &resources);
        assert_eq!(found.is_none(), is_read, "{text}");
        assert!(found.is_none_or(|problem| problem.pointer == "global_rules/a.plugins.prometheus"), "{text}");
    };
    check("", false);
    check("plugin_attr: { prometheus: { metric_prefix: a } }\n", false);
    check("plugin_attr: { prometheus: { export_addr: { port: 1 }, enable_export_server: false } }\n", false);
    check("plugin_attr: { prometheus: { export_addr: { port: 1 } } }\n", true);
    check("plugin_attr: { prometheus: { enable_export_server: true } }\n", true);
    check("plugin_attr: { prometheus: { otlp: { endpoint: \"http://h\" } } }\n", true);
    check("services: [{ id: a, plugins: { public-api: {} } }]\n", true);
}

#[test]
fn streams_without_a_certificate() {
    let check = |listener: &str, route: &str, ssl: &str, expected: &[&str]| {
        let text = format!(
            "listeners: [{{ address: \":1\", stream: {listener} }}]\n\
            stream_routes: [{{ id: a, upstream: {{ nodes: {{ \"h:1\": 1 }} }}{route} }}]\n{ssl}"
        );
        let (settings, resources) = parts(&text);
        let mut found = Vec::new();
        streams::without_certificates(&settings, &resources, &mut found);
        let places: Vec<&str> = found.iter().map(|problem| problem.pointer.as_str()).collect();
        assert_eq!(places, expected, "{text}");
    };
    let ssl = |name: &str| format!("ssls: [{{ id: s, sni: \"{name}\", cert: a, key: a }}]\n");
    check("tls", ", sni: a.example", "", &["stream_routes/a.sni"]);
    check("tls", ", sni: a.example", &ssl("b.example"), &["stream_routes/a.sni"]);
    check("tls", ", sni: a.example", &ssl("A.example"), &[]);
    check("tls", ", sni: \"*.example\"", &ssl("*.example"), &[]);
    check("tls", ", sni: a.example", &ssl("*.example"), &[]);
    check("tls", ", sni: a.example, tls: passthrough", "", &[]);
    check("tls", "", "", &["stream_routes/a"]);
    check("tls", "", &ssl("a.example"), &[]);
    check("tcp", "", "", &[]);
}

/// Parses the settings and resources of a text without a check.
pub(super) fn parts(text: &str) -> (Settings, Resources) {
    let document = sigma_schema::document::Document::parse(text, 1 << 20).unwrap();
    let mut found = crate::check::Findings::default();
    let mut document = document;
    crate::file::shorthand::expand(&mut document, &mut found);
    let config = crate::typed(&document, &[], &mut found);
    assert_eq!(found.errors, [], "{text}");
    (config.settings, config.resources)
}

#[test]
fn places_without_a_database() {
    let rest = "upstream: { nodes: { \"h:1\": 1 } }";
    let routed = format!("routes: [{{ uri: /a, vars: [[geoip_country_code, ==, DE]], {rest} }}]\n");
    warned(
        &routed,
        &["line 1: routes[0].vars[0][0]: `geoip_country_code` has no value: there is no database"],
    );
    warned(&format!("geoip: {{ databases: [a.mmdb] }}\n{routed}"), &[]);
    let logged =
        format!("access_log: {{ format: \"$geoip_asn_organization\" }}\nroutes: [{{ uri: /a, {rest} }}]\n");
    warned(&logged, &["line 1: access_log.format: `geoip_asn_organization` has no value"]);
}

#[test]
fn routes_that_are_never_reached() {
    let check = |first: &str, second: &str, is_shadowed: bool| {
        let node = "upstream: { nodes: { \"h:1\": 1 } }";
        let text =
            format!("routes:\n  - {{ id: one, {first}, {node} }}\n  - {{ id: two, {second}, {node} }}\n");
        let expected = ["line 3: routes[1]: the route `one` takes all its requests"];
        warned(&text, if is_shadowed { &expected } else { &[] });
    };
    check("uri: /a", "uri: /a", true);
    check("uri: /a", "uri: /a, methods: [GET]", true);
    check("uri: /a, methods: [GET, PUT]", "uri: /a, methods: [GET]", true);
    check("uris: [/a, /b]", "uri: /b, vars: [[arg_a, ==, b]]", true);
    check("uri: /a, host: H", "uri: /a, hosts: [h]", true);
    check("uri: /a, methods: [GET]", "uri: /a", false);
    check("uri: /a, vars: [[arg_a, ==, b]]", "uri: /a", false);
    check("uri: /a, remote_addr: 10.0.0.1", "uri: /a", false);
    check("uri: /a, status: 0", "uri: /a", false);
    check("uri: /a, priority: 1", "uri: /a, vars: [[arg_a, ==, b]]", true);
    check("uri: /a", "uris: [/a, /b]", false);
    check("uri: /*", "uri: /a", false);
    check("uri: /a, host: h", "uri: /a", false);
    check("uri: /a", "uri: /a, host: h", false);
}

/// A route gets the other half of a pair from its service, its plugin config, its upstream or a global rule.
#[test]
fn pairs_of_several_resources() {
    let check = |text: &str, expected: &[(&str, &str)]| {
        let options = ParseOptions { plugins: &TestPlugins, ..ParseOptions::default() };
        let found = parse(text, &options).unwrap_or_else(|problems| panic!("{text}: {problems:?}")).warnings;
        let told: Vec<_> = found.iter().filter(|problem| problem.code == "preflight").collect();
        assert_eq!(told.len(), expected.len(), "{text}: {found:?}");
        for (problem, (place, line)) in told.iter().zip(expected) {
            assert!(
                problem.pointer == *place && problem.line.map(|at| at.to_string()).as_deref() == Some(line),
                "{problem}"
            );
        }
    };
    let route = "routes:\n- id: r\n  uri: /a\n  methods: [GET]\n";
    let nodes = "  upstream: http://a:1\n";
    check(&format!("{route}{nodes}  plugins: {{cors: {{}}}}\n"), &[("routes[0].methods", "4")]);
    check(
        &format!("{route}  service_id: s\nservices:\n- id: s\n  plugins: {{cors: {{}}}}\n{nodes}"),
        &[("routes[0].methods", "4")],
    );
    check(
        &format!(
            "{route}  plugin_config_id: p\n{nodes}plugin_configs:\n- {{id: p, plugins: {{cors: {{}}}}}}\n"
        ),
        &[("routes[0].methods", "4")],
    );
    check(
        &format!("{route}{nodes}global_rules:\n- {{id: g, plugins: {{cors: {{}}}}}}\n"),
        &[("routes[0].methods", "4")],
    );
    check(&format!("{route}{nodes}"), &[]);
    // A login of another resource is one of the route.
    let restricted = format!(
        "{route}{nodes}  plugins: {{consumer-restriction: {{whitelist: [jack]}}}}\nconsumers: [{{username: jack}}]\n"
    );
    let login = "global_rules:\n- {id: g, plugins: {key-auth: {anonymous_consumer: jack}}}\n";
    warned(
        &restricted,
        &["line 6: routes[0].plugins.consumer-restriction: consumer-restriction refuses every"],
    );
    warned(&format!("{restricted}{login}"), &[]);
    check(&format!("{route}{nodes}services:\n- {{id: s, plugins: {{cors: {{}}}}}}\n"), &[]);
}

#[test]
fn names_that_do_not_exist() {
    let node = "upstream: { nodes: { \"h:1\": 1 } }";
    let check = |conf: &str, names: &[&str]| {
        let text = format!(
            "consumers: [{{ username: jack }}]\nconsumer_groups: [{{ id: staff, plugins: {{}} }}]\n\
            services: [{{ id: shop }}]\nroutes:\n  - {{ id: r, uri: /a, {node}, plugins: {{ key-auth: {{ anonymous_consumer: jack }}, consumer-restriction: {conf} }} }}\n"
        );
        let place = "line 5: routes[0].plugins.consumer-restriction.";
        let expected: Vec<String> = names.iter().map(|rest| format!("{place}{rest}")).collect();
        warned(&text, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    };
    check("{ whitelist: [jack] }", &[]);
    check("{ whitelist: [jakc] }", &["whitelist[0]: there is no consumer `jakc`"]);
    check("{ blacklist: [jack, jill] }", &["blacklist[1]: there is no consumer `jill`"]);
    check("{ whitelist: [Jack] }", &["whitelist[0]: there is no consumer `Jack`"]);
    check(
        "{ allowed_by_methods: [{ user: jack, methods: [GET] }, { user: x, methods: [GET] }] }",
        &["allowed_by_methods[1].user: there is no consumer `x`"],
    );
    check("{ type: consumer_group_id, whitelist: [staff] }", &[]);
    check(
        "{ type: consumer_group_id, whitelist: [jack] }",
        &["whitelist[0]: there is no consumer group `jack`"],
    );
    check("{ type: service_id, whitelist: [shop] }", &[]);
    check("{ type: service_id, blacklist: [bank] }", &["blacklist[0]: there is no service `bank`"]);
    check("{ type: route_id, whitelist: [r] }", &[]);
    check("{ type: route_id, whitelist: [q] }", &["whitelist[0]: there is no route `q`"]);
    check("{ whitelist: [jakc], _meta: { disable: true } }", &[]);
}

#[test]
fn ids_in_plugins_that_no_resource_has() {
    let check = |plugin: &str, expected: &[&str]| {
        let text = format!(
            "protos: [{{ id: 7, content: \"syntax = \\\"proto3\\\";\" }}]\nupstreams: [{{ id: blue, nodes: {{ \"h:1\": 1 }} }}]\n\
            routes:\n  - {{ id: r, uri: /a, upstream_id: blue, plugins: {{ {plugin} }} }}\n"
        );
        let expected: Vec<String> =
            expected.iter().map(|rest| format!("line 4: routes[0].plugins.{rest}")).collect();
        warned(&text, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    };
    let transcode = |id: &str| format!("grpc-transcode: {{ proto_id: {id}, service: a.B, method: C }}");
    check(&transcode("7"), &[]);
    check(&transcode("'7'"), &[]);
    check(&transcode("8"), &["grpc-transcode.proto_id: there is no proto `8`"]);
    let split =
        |entries: &str| format!("traffic-split: {{ rules: [{{ weighted_upstreams: [{entries}] }}] }}");
    check(&split("{ upstream_id: blue, weight: 1 }, { weight: 1 }"), &[]);
    check(
        &split("{ upstream_id: blue }, { upstream_id: green }"),
        &["traffic-split.rules[0].weighted_upstreams[1].upstream_id: there is no upstream `green`"],
    );
    let disabled = split("{ upstream_id: green }").replace("rules", "_meta: { disable: true }, rules");
    check(&disabled, &[]);
}
