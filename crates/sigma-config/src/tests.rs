//! Tests whole configurations through [`parse`]: valid ones, and every problem of invalid ones.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::resources::table::Resource;
use crate::stored::tests::{TestPlugins, pem};
use sigma_schema::id::Id;
use sigma_schema::{described, validation};

fn options() -> ParseOptions<'static> {
    ParseOptions {
        env: &|name| (name == "PORT").then(|| "9000".to_owned()),
        plugins: &TestPlugins,
        ..ParseOptions::default()
    }
}

fn accepted(text: &str) -> Checked {
    match parse(text, &options()) {
        Ok(checked) => checked,
        Err(problems) => {
            let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
            panic!("{text}\n{}", shown.join("\n"))
        }
    }
}

const PUBLISHED: &str = r#"
workers: 1
listeners:
  - address: "127.0.0.1:9080"
access_log: "off"
upstreams:
  - { id: "1", type: roundrobin, nodes: { "127.0.0.1:9000": 1 } }
routes:
  - { id: "1", uri: "/*", upstream_id: "1" }
"#;

/// A credential belongs to one consumer, whether it is configured by the Admin API or the file.
#[test]
fn a_credential_belongs_to_one_consumer() {
    let check = |items: &str, expected: Option<(&str, &str)>| {
        let text = format!("consumers:\n{items}");
        let options = ParseOptions { plugins: &TestPlugins, ..ParseOptions::default() };
        let found = parse(&text, &options).err().unwrap_or_default();
        let found: Vec<_> = found.iter().filter(|problem| problem.code == "duplicate_credential").collect();
        assert_eq!(found.len(), usize::from(expected.is_some()), "{text}: {found:?}");
        if let (Some(problem), Some((place, words))) = (found.first(), expected) {
            assert!(problem.pointer == place && problem.message == words, "{problem}");
        }
        let standalone = ParseOptions { standalone_mode: true, ..options };
        let taken = parse(&format!("{text}#END\n"), &standalone);
        assert!(
            taken.is_ok_and(|it| it.warnings.iter().any(|problem| problem.code == "duplicate_credential")
                == expected.is_some())
        );
    };
    let consumer =
        |name: &str, key: &str| format!("- {{username: {name}, plugins: {{key-auth: {{key: {key}}}}}}}\n");
    let credential = |id: &str, key: &str| format!("- {{id: {id}, plugins: {{key-auth: {{key: {key}}}}}}}\n");
    let place = "consumers[1].plugins.key-auth.key";
    let of_jack = "duplicate key of plugin key-auth found with consumer: jack";
    check(&(consumer("jack", "k") + &consumer("jill", "k")), Some((place, of_jack)));
    check(&(consumer("jack", "k") + &consumer("jill", "l")), None);
    check(&(consumer("jack", "k") + &consumer("jill", "K")), None);
    check(&(consumer("jack", "\"1\"") + &consumer("jill", "'1'")), Some((place, of_jack)));
    let reference = "$env://KEY";
    check(&(consumer("jack", reference) + &consumer("jill", reference)), None);
    check(&(consumer("jack", "k") + &credential("jack/credentials/a", "k")), None);
    let both = consumer("jack", "k") + &consumer("jill", "l") + &credential("jill/credentials/a", "k");
    check(&both, Some(("consumers[2].plugins.key-auth.key", of_jack)));
    let of_credential = "duplicate key of plugin key-auth found with credential: a of consumer: jack";
    let both = credential("jack/credentials/a", "k") + &consumer("jack", "l") + &consumer("jill", "k");
    check(&both, Some(("consumers[2].plugins.key-auth.key", of_credential)));
    check("- {username: jack, plugins: {key-auth: {key: k}}}\n- {username: jill, plugins: {}}\n", None);
}

#[test]
fn the_published_file_works_unchanged() {
    let config = accepted(PUBLISHED).config;
    assert_eq!(config.settings.workers, settings::Workers::Count(std::num::NonZeroU16::MIN));
    assert_eq!(config.settings.access_log.path, "off");
    assert_eq!(config.settings.listeners[0].address.to_string(), "127.0.0.1:9080");
    let route = config.resources.routes.get("1").unwrap();
    assert_eq!(route.upstream_id.as_ref().map(Id::as_str), Some("1"));
    let node = &config.resources.upstreams.get("1").unwrap().nodes[0];
    assert_eq!((&*node.host, node.port, node.weight), ("127.0.0.1", Some(9000), 1));
}

#[test]
fn short_forms_become_long_ones() {
    let check = |text: &str, pointer: &str, expected: Value| {
        let normalized = accepted(text).normalized();
        assert_eq!(normalized.pointer(pointer), Some(&expected), "{text}: {pointer}");
    };
    let one = "upstream: \"http://127.0.0.1:8888\"";
    let node = json!([{"host": "127.0.0.1", "port": 8888, "weight": 1, "priority": 0}]);
    check(one, "/routes/0/upstream/nodes", node.clone());
    check(one, "/routes/0/uri", json!("/*"));
    check(one, "/routes/0/id", json!("arr_1"));
    check(one, "/routes/0/status", json!(1));
    check(one, "/listeners/0/address", json!("0.0.0.0:9080"));
    check(one, "/listeners/1/address", json!("[::]:9080"));
    check("upstream: https://[::1]/", "/routes/0/upstream/scheme", json!("https"));
    check("{ /* c */ \"upstream\": \"http://127.0.0.1:8888\" } // c", "/routes/0/upstream/nodes", node);
    check("access_log: stdout", "/access_log/path", json!("stdout"));
    check("error_log: info", "/error_log/level", json!("info"));
    check("status: 127.0.0.1:7085", "/status/address", json!("127.0.0.1:7085"));
    check("listeners: [\":80\", \"unix:/run/s\"]", "/listeners/0/address", json!("0.0.0.0:80"));
    check("listeners: [\":80\", \"unix:/run/s\"]", "/listeners/2/address", json!("[::]:80"));
    check("services: [{upstream: \"http://h\"}]", "/services/0/upstream/nodes/0/host", json!("h"));
    check("upstreams: [{id: 7, nodes: {\"h:${{PORT}}\": 2}}]", "/upstreams/0/nodes/0/port", json!(9000));
    check("upstreams: [{id: 7, nodes: {}}]", "/upstreams/0/id", json!("7"));
    check("workers: ${{NONE:=3}}", "/workers", json!(3));
    check("workers: auto\nconsumers: []\n", "/workers", json!("auto"));
    check("limits: {request_headers: 50}", "/limits/request_headers", json!(50));
}

/// Checks `path@line: fragment` of every problem, in order.
fn refused(text: &str, expected: &[(&str, u32, &str)]) {
    let Err(problems) = parse(text, &options()) else { panic!("accepted:\n{text}") };
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let shown = shown.join("\n");
    assert_eq!(problems.len(), expected.len(), "{text}\n{shown}");
    for (pointer, line, fragment) in expected {
        let hit = problems.iter().any(|problem| {
            problem.pointer == *pointer
                && problem.line == Some(*line)
                && problem.to_string().contains(fragment)
        });
        assert!(hit, "{pointer} line {line}: {fragment}\nin\n{shown}");
    }
}

#[test]
fn every_problem_is_reported_at_once() {
    let text = r#"worker: 1
limits:
  request_headers: 70000
listeners: ["127.0.0.1:80", "127.0.0.1:80", "nonsense"]
routes:
  - id: a
    uri: hello
    urii: /a
    upstream_id: "9"
  - id: a
    uri: /b
    uris: [/c]
    method: [GET]
  - uri: /d
    plugins: { corse: {}, cors: 1 }
    methods: [GTE]
    host: "a b"
    remote_addr: 10.0.0.0/99
    vars: ["arg_a", "==", "1"]
upstreams:
  - id: "1"
    type: roundrobbin
    nodes: { "h:70000": 1, "::1": 1 }
  - id: "2"
    type: chash
    pass_host: rewrite
    nodes: [{ host: h, port: 0, weight: -1 }]
    checks: {}
    tls: { client_cert: x }
    filter: 1
"#;
    refused(
        text,
        &[
            ("worker", 1, "did you mean `workers`?"),
            ("limits.request_headers", 3, "expected a number from 0 to 65535, got 70000"),
            ("listeners[1].address", 4, "already the address of listeners[0].address"),
            (
                "listeners[2].address",
                4,
                "`nonsense` is not valid (write ip:port, [v6]:port, :port or unix:/path)",
            ),
            ("routes[0].urii", 8, "unknown field `urii` (did you mean `uri`?)"),
            ("routes[0].upstream_id", 9, "there is no upstream `9`"),
            ("routes[1].id", 10, "already used by routes[0]"),
            ("routes[1].uris", 12, "`uri` and `uris` exclude each other"),
            ("routes[1]", 10, "`plugins`, `upstream`, `upstream_id` or `service_id` is required"),
            ("routes[1].method", 13, "did you mean `methods`?"),
            ("routes[2].plugins.corse", 15, "unknown plugin [corse] (did you mean `cors`?)"),
            (
                "routes[2].plugins.cors",
                15,
                "the configuration of a plugin must be an object (for example cors: {})",
            ),
            ("routes[2].methods[0]", 16, "`GTE` is not allowed here (did you mean `GET`?)"),
            ("routes[2].host", 17, "`a b` is not valid (for example example.com, *.example.com or *)"),
            ("routes[2].remote_addr", 18, "`10.0.0.0/99` is not valid (for example 10.0.0.0/8 or"),
            ("routes[2].vars", 19, "the condition is not valid: rule should be wrapped inside brackets"),
            ("upstreams[0].type", 22, "did you mean `roundrobin`?"),
            ("upstreams[0].nodes[\"h:70000\"]", 23, "invalid port 70000"),
            ("upstreams[0].nodes[\"::1\"]", 23, "must be enclosed with '[' and ']'"),
            ("upstreams[1]", 24, "`key` is required with this `type`"),
            ("upstreams[1]", 24, "`upstream_host` can't be empty when `pass_host` is `rewrite`"),
            ("upstreams[1].nodes[0].port", 27, "expected a number from 1 to 65535, got 0"),
            ("upstreams[1].nodes[0].weight", 27, "expected a number of at least 0, got -1"),
            ("upstreams[1].checks", 28, "`active`, `passive` or `agent` is required (for example active: {"),
            ("upstreams[1].tls.client_cert", 29, "`x` is not the text of a PEM file"),
            ("upstreams[1].tls", 29, "`client_key` is required"),
            ("upstreams[1].filter", 30, "unknown field `filter` (some of the fields here are nodes, type,"),
        ],
    );
}

#[test]
fn single_problems() {
    // The missing field follows from its misspelt name.
    refused("consumers: [{usernam: a}]", &[("consumers[0].usernam", 1, "did you mean `username`?")]);
    refused(
        "routes:\n- { path: /x, backend: \"http://127.0.0.1:1\", plugins: { rate-limit: {} } }",
        &[
            ("routes[0].path", 2, "did you mean `uri`?"),
            ("routes[0].backend", 2, "did you mean `upstream`?"),
            ("routes[0].plugins.rate-limit", 2, "unknown plugin [rate-limit]"),
        ],
    );
    refused("routes:\n- {uri: /, upstream: h}", &[("routes[0].upstream", 2, "has no scheme")]);
    refused(
        "routes:\n- {uri: /, upstream: 5}",
        &[("routes[0].upstream", 2, "expected a map, got `5` (for example upstream: { nodes:")],
    );
    refused("routes:\n- {upstream: \"http://h\"}", &[("routes[0]", 2, "`uri` or `uris` is required")]);
    refused("upstream: http://h\nroutes: []", &[("upstream", 1, "move it into a route")]);
    refused(
        "routes:\n- uri: /\n  upstream: \"http://h\"\n  vars: [[post_arg_a, x]]\n  plugins: { cors: { _meta: { filter: [[post_arg_b, x]] } } }",
        &[("routes[0].plugins.cors", 5, "`post_arg_b` is read from the request body")],
    );
    refused(
        "routes:\n- {uri: /, upstream: \"http://h\", vars: [[msec, within, Mon Europe/Berlin]]}",
        &[("routes[0].vars", 2, "`Europe/Berlin` in the time `Mon Europe/Berlin` is neither days")],
    );
    refused("workers: 0", &[("workers", 1, "expected a number from 1 to 65535, got 0")]);
    // A number outside 64 bits also has a place.
    refused(
        "limits: { request_body_bytes: 1e300 }",
        &[("limits.request_body_bytes", 1, "expected a number")],
    );
    refused(
        "routes:\n- { uri: /, upstream: \"http://h\", priority: -1e300 }",
        &[("routes[0].priority", 2, "expected a number")],
    );
    // A key without a value.
    refused(
        "via:",
        &[("via", 1, "the key has no value; expected a text (write a value, or remove the key)")],
    );
    refused("workers: all", &[("workers", 1, "auto")]);
    refused("\n\nstatus: x", &[("status.address", 3, "`x` is not valid (for example 127.0.0.1:7085)")]);
    refused("data_encryption: {keyring: [short]}", &[("data_encryption.keyring[0]", 1, "has 5 bytes")]);
    refused("listeners: []", &[("listeners", 1, "the list is empty")]);
    refused("a: ${{NOPE}}", &[("a", 1, "environment variable NOPE"), ("a", 1, "unknown field `a`")]);
    refused(
        "listeners: [{address: \":1\", name: public}]\nroutes:\n- {uri: /, upstream: \"http://h\", listeners: [pubic]}",
        &[("routes[0].listeners[0]", 3, "did you mean `public`?")],
    );
    refused("{\"routes\": 1}", &[("routes", 1, "expected a list, got `1` (for example routes: [{ uri:")]);
    let Err(problems) = parse("", &options()) else { panic!("the empty text was accepted") };
    assert_eq!(problems[0].code, "empty");
}

#[test]
fn a_standalone_file_is_accepted_as_it_is() {
    let text = "routes:\n  -\n    uri: /a\n    upstream:\n      nodes:\n        \"127.0.0.1:1980\": 1\n      type: roundrobin\n  - {id: 1, uri: /b, upstream_id: 5}\n  - {id: 1, uri: /c, upstream_id: 5}\n#END\n";
    let standalone = ParseOptions { standalone_mode: true, ..options() };
    let Ok(checked) = parse(text, &standalone) else { panic!("refused") };
    let uris: Vec<_> = checked.config.resources.routes.iter().map(|route| route.uri.as_deref()).collect();
    assert_eq!(uris, [Some("/a"), Some("/c")]);
    assert_eq!(checked.warnings.len(), 3);
    let Err(problems) = parse(&text.replace("#END", ""), &standalone) else { panic!("accepted") };
    assert_eq!(problems[0].message, "missing valid end flag");
    accepted("routes: [{uri: /a, upstream: {nodes: {\"h:1\": 1}}}]\n#END\n");
}

#[test]
fn levels_of_the_error_log_are_a_closed_list() {
    for level in ["warn", "WARN", "off", "warn,sigma_upstream=debug", "sigma_proxy::exchange=trace, info"] {
        accepted(&format!("error_log: {{ level: \"{level}\" }}\n"));
    }
    let check = |text: &str, fragment: &str| refused(text, &[("error_log.level", 1, fragment)]);
    check("error_log: { level: eror }", "`eror` is not a level (did you mean `error`?)");
    check("error_log: warning,h2=info", "`warning` is not a level");
    check("error_log: { level: \"warn,sigma=loud\" }", "`sigma=loud` is not a level");
    check("error_log: { level: \"\" }", "levels are off, error, warn");
    check("error_log: /var/log/sigma.log", "write a file name to `path`");
}

#[test]
fn the_path_of_the_access_log_is_no_switch() {
    for path in ["off", "stdout", "access.log", "./on"] {
        accepted(&format!("access_log: {path}\n"));
    }
    let check = |text: &str, fragment: &str| refused(text, &[("access_log.path", 1, fragment)]);
    check("access_log: on", "`on` is not a path (write `stdout`, or the path of a file)");
    check("access_log: true", "`true` is not a path (write `stdout`");
    check("access_log: { path: \"Yes\" }", "`Yes` is not a path (write `stdout`");
    check("access_log: false", "`false` is not a path (write `off`");
    check("access_log: OFF", "`OFF` is not a path (write `off`");
}

#[test]
fn a_mistake_is_reported_once_and_in_words_of_the_file() {
    refused(
        "listeners: [{ address: \":443\", tls: { cert: a } }]",
        &[(
            "listeners[0].tls.cert",
            1,
            "unknown field `cert` (did you mean `certificates`? For example certificates: [{ cert:",
        )],
    );
    refused(
        "listeners: [\":80\", \"[::]:80\"]",
        &[("listeners[2].address", 1, "already the address of listeners[1].address")],
    );
    refused(
        "consumers: [{ username: jack.smith }]",
        &[("consumers[0].username", 1, "`jack.smith` is not valid (1 to 256 letters, digits, `-` or `_`)")],
    );
    let routes = |id: &str| {
        format!("upstreams: [{{ id: web, nodes: {{}} }}]\nroutes: [{{ uri: /a, upstream_id: {id} }}]\n")
    };
    refused(
        &routes("wib"),
        &[("routes[0].upstream_id", 2, "there is no upstream `wib` (did you mean `web`?)")],
    );
    refused(
        &routes("nope"),
        &[(
            "routes[0].upstream_id",
            2,
            "there is no upstream `nope` (add it to `upstreams`, or use an existing one)",
        )],
    );
    refused(
        "upstreams:\n- { id: a, nodes: {} }\n- { id: b, members: [{ upstream_id: a }, { upstream_id: c }] }\n\
         - { id: d, members: [{ upstream_id: b }] }\nroutes: [{ uri: /, upstream: { members: [{ upstream_id: x }] } }]\n",
        &[
            ("routes[0].upstream.members[0].upstream_id", 5, "there is no upstream `x`"),
            ("upstreams[1].members[1].upstream_id", 3, "there is no upstream `c` (did you mean `a`?)"),
            (
                "upstreams[2].members[0].upstream_id",
                4,
                "upstream [b] has members itself (list the members of that upstream instead)",
            ),
        ],
    );
}

#[test]
fn a_section_of_another_program_is_an_unknown_field() {
    refused("http: {}\n", &[("http", 1, "unknown field `http` (did you mean `http2`?)")]);
}

#[test]
fn attributes_of_plugins_are_known() {
    accepted("plugin_attr: { cors: { port: 1 } }");
    let check = |text: &str, place: &str, fragment: &str| refused(text, &[(place, 1, fragment)]);
    check("plugin_attr: { corse: {} }", "plugin_attr.corse", "did you mean `cors`?");
    check(
        "plugin_attr: { key-auth: {} }",
        "plugin_attr.key-auth",
        "the plugin `key-auth` has no `plugin_attr`",
    );
    check("plugin_attr: { cors: { prot: 1 } }", "plugin_attr.cors.prot", "did you mean `port`?");
    check(
        "plugin_attr: { cors: { port: a } }",
        "plugin_attr.cors.port",
        "expected a whole number, got the text `a`",
    );
    let warnings = accepted("plugin_attr: { cors: { old: 1 } }").warnings;
    assert_eq!(
        warnings[0].to_string(),
        "line 1: plugin_attr.cors.old: `old` has no effect: it is gone (remove it)"
    );
}

#[test]
fn plugins_without_fields_may_be_empty() {
    let text =
        "routes:\n  - uri: /a\n    upstream: \"http://h\"\n    plugins:\n      key-auth:\n      cors: []\n";
    let config = accepted(text).config;
    let route = config.resources.routes.get("arr_1").unwrap();
    assert!(route.plugins.values().all(|conf| **conf == json!({})), "{:?}", route.plugins);
    refused(
        &text.replace("[]", "[1]"),
        &[("routes[0].plugins.cors", 6, "must be an object (for example cors: {})")],
    );
}

#[test]
fn unknown_fields_of_resources_may_be_warned_of_only() {
    let text = "compat: { unknown_fields: warn }\nroutes:\n  - uri: /a\n    plugins: { limit-count: { count: 1, rejeted_code: 429 } }\n    upstream:\n      nodes: [{ host: h, port: 1, weight: 1, weigth: 1 }]\n      tls: { verfy: true }\n      scheme: https\n";
    let refuse = text.replace("warn", "refuse");
    refused(
        &refuse,
        &[
            ("routes[0].plugins.limit-count.rejeted_code", 4, "did you mean `rejected_code`?"),
            ("routes[0].upstream.nodes[0].weigth", 6, "did you mean `weight`?"),
            ("routes[0].upstream.tls.verfy", 7, "unknown field `verfy` (did you mean `verify`?)"),
        ],
    );
    let checked = accepted(text);
    let warnings: Vec<String> = checked.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "line 4: routes[0].plugins.limit-count.rejeted_code: unknown field `rejeted_code`, without effect (did you mean `rejected_code`?)",
            "line 6: routes[0].upstream.nodes[0].weigth: unknown field `weigth`, without effect (did you mean `weight`?)",
            "line 7: routes[0].upstream.tls.verfy: unknown field `verfy`, without effect (did you mean `verify`?)",
        ]
    );
    // Fields that APISIX refuses, and settings of the process, are still refused.
    refused(
        &format!("{text}    urii: /b\n"),
        &[("routes[0].urii", 9, "unknown field `urii` (did you mean `uri`?)")],
    );
    refused(
        "compat: { unknown_fields: warn, unknown: 1 }",
        &[("compat.unknown", 1, "unknown field `unknown` (did you mean `unknown_fields`?)")],
    );
    refused(
        "compat: { unknown_fields: ignore }",
        &[("compat.unknown_fields", 1, "`ignore` is not allowed here (allowed are refuse and warn)")],
    );
}

/// Returns one item of every kind, each with references to others.
fn every_kind() -> Value {
    let (cert, key) = (pem("CERTIFICATE"), pem("PRIVATE KEY"));
    json!({
        "plugins": ["cors", "key-auth", "limit-count", { "name": "mqtt-proxy", "stream": true }],
        "data_encryption": { "enable": true, "keyring": ["0123456789abcdef"] },
        "routes": [{ "id": 1, "uri": "/a", "service_id": "s", "plugin_config_id": "p", "create_time": 5, "plugins": {} }],
        "services": [{ "id": "s", "upstream_id": "u", "plugins": { "cors": { "_meta": { "disable": true } } } }],
        "upstreams": [{ "id": "u", "nodes": { "h:1": 1 }, "tls": { "client_cert_id": "c" } }],
        "consumers": [
            { "username": "jack", "group_id": "g", "plugins": { "key-auth": { "key": "k" } } },
            { "id": "jack/credentials/c1", "name": "second", "plugins": { "key-auth": { "key": "k2" } } },
        ],
        "consumer_groups": [{ "id": "g", "plugins": { "limit-count": { "count": 1 } } }],
        "plugin_configs": [{ "id": "p", "plugins": {} }],
        "global_rules": [{ "id": "1", "plugins": { "cors": {} } }],
        "plugin_metadata": [{ "id": "cors", "allow_origins": { "a": "b" } }],
        "ssls": [
            { "id": "c", "type": "client", "cert": cert, "key": key },
            { "id": "d", "sni": "*.a.com", "cert": "$secret://vault/1/a/cert", "key": "$env://KEY", "ssl_protocols": ["TLSv1.3"] },
        ],
        "protos": [{ "id": "1", "content": "syntax = \"proto3\";" }],
        "secrets": [{ "id": "vault/1", "uri": "http://127.0.0.1:8200", "prefix": "kv", "token": "t" }],
        "stream_routes": [{ "id": "1", "server_port": 9100, "upstream_id": "u", "plugins": { "mqtt-proxy": { "protocol_name": "MQTT" } } }],
    })
}

#[test]
fn every_kind_of_resource_is_read() {
    let checked = accepted(&every_kind().to_string());
    let resources = &checked.config.resources;
    let keys: Vec<String> = resources.keys().iter().map(ToString::to_string).collect();
    assert_eq!(
        keys,
        [
            "routes/1",
            "services/s",
            "upstreams/u",
            "consumers/jack",
            "consumers/jack/credentials/c1",
            "consumer_groups/g",
            "ssls/c",
            "ssls/d",
            "global_rules/1",
            "plugin_configs/p",
            "plugin_metadata/cors",
            "protos/1",
            "stream_routes/1",
            "secrets/vault/1",
        ],
    );
    assert_eq!(resources.consumers.iter().next().map(|jack| jack.id()), Some("jack"));
    reads_back(&checked);
}

/// Includes all patterns, which the program compiles on first use.
#[test]
fn the_schemas_that_files_are_checked_with_compile() {
    for schema in [crate::bundled::of_settings(), &crate::plugins::meta_schema()] {
        assert_eq!(validation::Schema::compile(schema).err(), None);
    }
}

/// This schema has another draft than the one for checks, but is generated from the same types.
#[test]
fn the_schema_for_editors_takes_the_full_form_and_closes_every_object() {
    let schema = docs::schema();
    assert!(!schema.to_string().contains(described::CONFIDENTIAL));
    let schema = validation::Schema::compile(&schema).unwrap();
    for text in [every_kind().to_string(), PUBLISHED.to_owned()] {
        assert_eq!(schema.check(&accepted(&text).normalized()), Ok(()), "{text}");
    }
    for wrong in [
        json!({ "worker": 1 }),
        json!({ "limits": { "request_header": 1 } }),
        json!({ "upstreams": [{ "nodes": {}, "tls": { "verfy": true } }] }),
        json!({ "upstreams": [{ "nodes": {}, "checks": { "active": { "healthy": { "succeses": 1 } } } }] }),
        json!({ "ssls": [{ "type": "client", "cert": "a" }] }),
    ] {
        assert!(schema.check(&wrong).is_err(), "{wrong}");
    }
}

#[test]
fn every_kind_of_resource_is_refused_for_its_own_reason() {
    let text = r#"
plugins: [cors, key-auth, limit-cont]
routes:
  - { id: 1, uri: /a, plugin_config_id: q, plugins: { limit-count: { count: 1 } } }
  - { id: 2, uri: /a, script: "local _M = {} return _M", upstream_id: u }
services:
  - { id: s, upstream: { nodes: {}, tls: { client_cert_id: d } }, script: "local _M = {}" }
upstreams:
  - { id: u, service_name: a, discovery_type: nacos }
consumers:
  - { username: jack, group_id: h, plugins: { key-auth: {} } }
  - { id: jill/credentials/c, plugins: { key-auth: { key: k } } }
  - { id: jack/credentials/c, username: jack, plugins: { cors: {} } }
  - { id: j, username: jack2, name: n }
global_rules:
  - { id: 1, plugins: { cors: {} } }
  - { id: 2, plugins: { cors: {} } }
plugin_metadata:
  - { id: cors }
  - { id: corse }
  - { a: 1 }
ssls:
  - { id: d, cert: short, key: "$env://KEY" }
protos: [{ id: 1 }, { id: 2, content: "message {}" }, { id: 3, content: "message M {}" }]
secrets:
  - { id: vault/1, uri: x }
  - { id: volt/1 }
  - {}
stream_routes:
  - { id: 1, remote_addr: x, protocol: { name: redis, superior_id: 9 }, plugins: { cors: {} } }
"#;
    refused(
        text,
        &[
            ("plugins[2].name", 2, "unknown plugin [limit-cont] (did you mean `limit-count`?)"),
            ("routes[0].plugin_config_id", 4, "there is no plugin config `q`"),
            ("routes[0].plugins.limit-count", 4, "unknown plugin [limit-count]"),
            ("routes[1].script", 5, "it needs the Lua engine, which this build lacks"),
            (
                "services[0].upstream.tls.client_cert_id",
                7,
                "failed to fetch ssl info by ssl id [d], wrong ssl type",
            ),
            ("services[0].script", 7, "it needs the Lua engine, which this build lacks"),
            ("upstreams[0].discovery_type", 9, "the registry `nacos` has no settings"),
            ("consumers[0].group_id", 11, "there is no consumer group `h`"),
            (
                "consumers[0].plugins.key-auth",
                11,
                "`key` is required (`sigma plugins key-auth` shows all fields)",
            ),
            ("consumers[1].id", 12, "consumer not found: jill"),
            ("consumers[2].username", 13, "unknown field `username` (known fields are id, name,"),
            ("consumers[2].plugins.cors", 13, "only supports auth type plugins"),
            ("consumers[3].id", 14, "wrong username"),
            ("consumers[3].name", 14, "unknown field `name`"),
            ("global_rules[1].plugins.cors", 17, "plugin 'cors' already exists in global rule with id '1'"),
            ("plugin_metadata[0]", 19, "`allow_origins` is required"),
            ("plugin_metadata[1].id", 20, "invalid plugin name (did you mean `cors`?)"),
            ("plugin_metadata[2]", 21, "missing plugin name (add `id`, the name of the plugin)"),
            ("ssls[0]", 23, "`sni` or `snis` is required"),
            ("ssls[0].cert", 23, "`short` is not the text of a PEM file (write"),
            ("protos[0]", 24, "`content` is required"),
            ("protos[1].content", 24, "invalid content: content:1:9: expected an identifier, but found '{'"),
            ("secrets[0].uri", 26, "`x` is not valid (for example http://127.0.0.1:8200)"),
            ("secrets[0]", 26, "`prefix` and `token` are required"),
            ("secrets[1].id", 27, "invalid secret manager: volt (begin it with vault, aws or gcp"),
            ("secrets[2]", 28, "no secret id (add `id`, as in vault/1)"),
            ("stream_routes[0].remote_addr", 30, "`x` is not valid (for example 10.0.0.0/8 or"),
            ("stream_routes[0].protocol.name", 30, "unknown protocol [redis]"),
            ("stream_routes[0].protocol.superior_id", 30, "there is no stream route `9`"),
            (
                "stream_routes[0].plugins.cors",
                30,
                "unknown plugin [cors] (remove it; stream routes have no such plugin)",
            ),
        ],
    );
}

fn reads_back(checked: &Checked) {
    let again = accepted(&checked.normalized().to_string());
    assert_eq!(again.config, checked.config);
    assert_eq!(again.normalized(), checked.normalized());
}

#[test]
fn the_full_form_reads_back() {
    reads_back(&accepted(PUBLISHED));
    reads_back(&accepted("upstream: http://h:1"));
    reads_back(&accepted(
        r#"{"status": "127.0.0.1:1", "trusted_addresses": ["10.0.0.0/8"], "pid_file": "/run/s.pid", "server_header": "",
        "routes": [{"uris": ["/a", "*"], "hosts": ["*.a.com"], "methods": ["GET"], "remote_addrs": ["::1"], "priority": -3,
          "vars": [["arg_a", "==", 1.5]], "timeout": {"connect": 0.5, "send": 1, "read": 2}, "labels": {"a": "b"},
          "plugins": {"cors": {}}, "status": 0, "enable_websocket": true, "upstream": {"nodes": [{"host": "h", "weight": 0}],
          "checks": {"active": {"healthy": {}}, "passive": {}}, "keepalive_pool": {}, "retries": 0, "type": "least_conn"}}]}"#,
    ));
}

fn uri() -> impl Strategy<Value = String> {
    "/[a-z:*]{0,8}"
}

proptest! {
    #[test]
    fn no_text_makes_parse_panic(text in ".{0,200}") {
        let _ = parse(&text, &options());
    }

    #[test]
    fn no_structure_makes_parse_panic(text in "[\\[\\]{}:,&*|>!#%@\"'\\-? \nabr0-9.$~]{0,120}") {
        let _ = parse(&text, &options());
        let _ = parse(&format!("{{{text}"), &options());
    }

    #[test]
    fn no_misplaced_value_makes_parse_panic(
        key in "(routes|services|upstreams|listeners|limits|workers|status|access_log|upstream|consumers|router)",
        field in "(id|uri|vars|nodes|checks|upstream|plugins|type|host|labels|timeout|address)",
        value in "(1|-1|0|1.5|null|true|x|\\[\\]|\\{\\}|\\[1\\]|\\[\\[x\\]\\]|\\{a: 1\\}|18446744073709551615|1e300)",
    ) {
        let _ = parse(&format!("{key}: {value}"), &options());
        let _ = parse(&format!("{key}: [{{{field}: {value}}}]"), &options());
        let _ = parse(&format!("{key}: {{{field}: {value}}}"), &options());
    }

    #[test]
    fn generated_configurations_read_back(
        uris in prop::collection::vec(uri(), 1..5),
        weights in prop::collection::vec((1u16.., 0u32..1000), 0..5),
        read in 0.001f64..1e6,
        priority in any::<i32>(),
        headers in any::<u16>(),
    ) {
        let nodes: Vec<Value> = weights.iter().map(|(port, weight)| json!({"host": "h", "port": port, "weight": weight})).collect();
        let routes: Vec<Value> = uris.iter().map(|uri| json!({
            "uri": uri, "priority": priority, "upstream": {"nodes": nodes},
            "timeout": {"connect": 1, "send": 2, "read": read},
        })).collect();
        reads_back(&accepted(&json!({"routes": routes, "limits": {"request_headers": headers}}).to_string()));
    }
}

/// The codec would refuse other values.
#[test]
fn http2_settings_keep_to_the_protocol() {
    refused(
        "http2:\n  frame_bytes: 1\n  connection_window_bytes: 5\n  stream_window_bytes: 3000000000\n",
        &[
            ("http2.frame_bytes", 2, "expected a number from 16384"),
            ("http2.connection_window_bytes", 3, "expected a number of at least 65535"),
            ("http2.stream_window_bytes", 4, "to 2147483647, got"),
        ],
    );
}

#[test]
fn the_pid_file_is_found_whatever_else_is_wrong() {
    let env = |name: &str| (name == "RUN").then(|| "/run/x".to_owned());
    let check = |text: &str, expected: Option<&str>| {
        let found = crate::pid_file_of(text, &env, 1 << 20);
        assert_eq!(found.as_deref(), expected.map(std::path::Path::new), "{text}");
    };
    check("pid_file: a.pid\nroutes: [{ path: /x }]\nnonsense: 1\n", Some("a.pid"));
    check("pid_file: \"${{RUN}}/a.pid\"\nworkers: none\n", Some("/run/x/a.pid"));
    check("pid_file: a.pid\nprocess: { working_folder: /srv, mode: none }\n", Some("/srv/a.pid"));
    check("{\"pid_file\": \"a.pid\", \"workers\": -1}", Some("a.pid"));
    check("workers: 1\n", None);
    check("", None);
    // Not valid YAML.
    check("routes: [\npid_file: 'a.pid' # here\n  }", Some("a.pid"));
    check("routes: [\npid_file: ${{RUN}}/a\n  }", None);
    check("routes: [\n  pid_file: a\n  }", None);
}
