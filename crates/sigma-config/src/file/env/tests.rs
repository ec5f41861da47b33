//! Tests of variables in documents of each format, and of the types of their values.

use serde_json::json;

use super::*;
use sigma_schema::plugins::{NoPlugins, PluginRefusal, PluginScope};

/// Plugins with the parts of the real schemas that the tests need.
struct Schemas(Value);

impl Schemas {
    fn new() -> Schemas {
        Schemas(json!({
            "key-auth": { "properties": { "key": { "type": "string" } } },
            "limit-count": { "properties": {
                "count": { "oneOf": [{ "type": "integer" }, { "type": "string" }] },
                "time_window": { "type": "integer" },
                "redis_password": { "type": "string" },
                "allow_degradation": { "type": "boolean" },
                "rules": { "type": "array", "items": { "properties": { "key": { "type": "string" } } } },
            } },
            "response-rewrite": { "properties": {
                "headers": { "anyOf": [{ "patternProperties": { "^[^:]+$": { "type": "string" } } }] },
                "status": { "type": "integer" },
            } },
            "multi-auth": { "properties": { "auth_plugins": { "type": "array" } } },
        }))
    }
}

impl PluginSchemas for Schemas {
    fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    fn schema(&self, name: &str, _: PluginScope) -> Option<&Value> {
        self.0.get(name)
    }

    fn is_auth(&self, _: &str) -> bool {
        false
    }

    fn check(&self, _: &str, _: PluginScope, _: &Value) -> Result<(), PluginRefusal> {
        Ok(())
    }

    fn unique_attribute(&self, _: &str) -> Option<&str> {
        None
    }

    fn secret_fields(&self, _: &str, _: PluginScope) -> Vec<&str> {
        Vec::new()
    }

    fn attributes(&self, name: &str) -> Option<Value> {
        let schema =
            json!({ "properties": { "prefix": { "type": "string" }, "port": { "type": "integer" } } });
        (name == "prometheus").then_some(schema)
    }

    fn children(&self, name: &str, _: PluginScope, _: &Value) -> Vec<(String, String)> {
        let child = ("/auth_plugins/0/key-auth".to_owned(), "key-auth".to_owned());
        (name == "multi-auth").then_some(child).into_iter().collect()
    }
}

fn lookup(name: &str) -> Option<String> {
    let value = match name {
        "PORT" => "9080",
        "HOST" => "example.com",
        "TRUE" => "true",
        "DIGITS" => "356002209726529540",
        "LONG" => "123456789012345678901234567890",
        "EXPONENT" => "1e5",
        "HEX" => "0x1f",
        "ZEROS" => "007",
        "NULL" => "null",
        "TILDE" => "~",
        "FALSE" => "false",
        "MINUS" => "-1",
        "HALF" => "0.5",
        "EMPTY" => "",
        _ => return None,
    };
    Some(value.to_owned())
}

fn substituted(text: &str) -> Value {
    let mut document = Document::parse(text, 10_000).unwrap();
    let plugins = Schemas::new();
    assert_eq!(substitute(&mut document, Holds::File(&plugins), &lookup), [], "{text}");
    document.value
}

#[test]
fn variables_are_replaced() {
    let check = |written: Value, expected: Value| {
        let mut document = Document { value: written, ..Document::default() };
        assert_eq!(substitute(&mut document, Holds::Foreign, &lookup), []);
        assert_eq!(document.value, expected);
    };
    check(json!("${{PORT}}"), json!(9080));
    check(json!("${{ TRUE }}"), json!(true));
    check(json!("http://${{HOST}}:${{PORT}}"), json!("http://example.com:9080"));
    check(json!("${{NONE:=7}}"), json!(7));
    check(json!("${{NONE := a b }}"), json!("a b"));
    check(json!("${{NONE:=}}"), json!(""));
    check(json!("${{EMPTY:=x}}"), json!(""));
    check(json!("9080"), json!("9080"));
    check(json!("${{open"), json!("${{open"));
    check(json!({"${{HOST}}:80": ["${{PORT}}"]}), json!({"example.com:80": [9080]}));
}

/// A text field gets the variable's text, quoted or not, in both formats.
#[test]
fn fields_for_texts_get_texts() {
    let variables = [
        "DIGITS", "LONG", "EXPONENT", "HEX", "ZEROS", "NULL", "TILDE", "TRUE", "FALSE", "MINUS", "HALF",
        "EMPTY", "PORT",
    ];
    for name in variables {
        let expected = json!(lookup(name).unwrap());
        let texts = [
            format!("consumers:\n- username: j\n  plugins:\n    key-auth:\n      key: \"${{{{{name}}}}}\"\n"),
            format!("consumers:\n- username: j\n  plugins:\n    key-auth:\n      key: ${{{{{name}}}}}\n"),
            format!("consumers:\n- username: j\n  plugins:\n    key-auth:\n      key: '${{{{{name}}}}}'\n"),
            format!("consumers:\n- {{username: j, plugins: {{key-auth: {{key: \"${{{{{name}}}}}\"}}}}}}\n"),
            format!(
                "{{\"consumers\": [{{\"username\": \"j\", \"plugins\": {{\"key-auth\": {{\"key\": \"${{{{{name}}}}}\"}}}}}}]}}"
            ),
            format!(
                "consumers:\n- username: j\n  plugins:\n    key-auth:\n      key: |-\n        ${{{{{name}}}}}\n"
            ),
        ];
        for text in texts {
            assert_eq!(substituted(&text)["consumers"][0]["plugins"]["key-auth"]["key"], expected, "{text}");
        }
    }
}

#[test]
fn the_field_determines_the_type() {
    let check = |text: &str, pointer: &str, expected: Value| {
        assert_eq!(substituted(text).pointer(pointer), Some(&expected), "{text}");
    };
    let plugin = |name: &str, conf: &str| format!("routes:\n- plugins:\n    {name}:\n      {conf}\n");
    let route = |conf: &str| format!("routes:\n- {conf}\n");
    let limit = |conf: &str| plugin("limit-count", conf);
    let at = "/routes/0/plugins/limit-count";
    check(&limit("time_window: ${{PORT}}"), &format!("{at}/time_window"), json!(9080));
    // JSON has no unquoted form.
    check(&limit("time_window: \"${{PORT}}\""), &format!("{at}/time_window"), json!(9080));
    check(&limit("count: ${{PORT}}"), &format!("{at}/count"), json!(9080));
    check(&limit("count: \"${{PORT}}\""), &format!("{at}/count"), json!("9080"));
    check(&limit("allow_degradation: \"${{TRUE}}\""), &format!("{at}/allow_degradation"), json!(true));
    check(
        &limit("redis_password: ${{DIGITS}}"),
        &format!("{at}/redis_password"),
        json!("356002209726529540"),
    );
    check(&limit("rules: [{key: \"${{TRUE}}\"}]"), &format!("{at}/rules/0/key"), json!("true"));
    check(&limit("_meta: {disable: \"${{TRUE}}\"}"), &format!("{at}/_meta/disable"), json!(true));
    check(&limit("unknown: ${{PORT}}"), &format!("{at}/unknown"), json!(9080));
    check(&limit("unknown: \"${{PORT}}\""), &format!("{at}/unknown"), json!("9080"));
    check(&limit("unknown: ${{LONG}}"), &format!("{at}/unknown"), json!(lookup("LONG").unwrap()));
    let headers = plugin("response-rewrite", "headers: {X-Id: \"${{EXPONENT}}\"}");
    check(&headers, "/routes/0/plugins/response-rewrite/headers/X-Id", json!("1e5"));
    let nested = plugin("multi-auth", "auth_plugins: [{key-auth: {key: \"${{TRUE}}\"}}]");
    check(&nested, "/routes/0/plugins/multi-auth/auth_plugins/0/key-auth/key", json!("true"));
    let nested = "routes:\n- plugins:\n    multi-auth:\n      auth_plugins:\n      - key-auth:\n          key: ${{PORT}}\n";
    check(nested, "/routes/0/plugins/multi-auth/auth_plugins/0/key-auth/key", json!("9080"));
    check(&route("uri: ${{PORT}}"), "/routes/0/uri", json!("9080"));
    check(&route("desc: ${{TRUE}}"), "/routes/0/desc", json!("true"));
    check(&route("priority: \"${{PORT}}\""), "/routes/0/priority", json!(9080));
    check(&route("labels: {a: \"${{PORT}}\"}"), "/routes/0/labels/a", json!("9080"));
    check(&route("hosts: [\"${{PORT}}\"]"), "/routes/0/hosts/0", json!("9080"));
    check(&route("upstream: {nodes: {\"a:1\": \"${{PORT}}\"}}"), "/routes/0/upstream/nodes/a:1", json!(9080));
    check(
        &route("upstream: {nodes: [{host: \"${{DIGITS}}\", port: \"${{PORT}}\"}]}"),
        "/routes/0/upstream/nodes/0",
        json!({"host": "356002209726529540", "port": 9080}),
    );
    check("upstream: { retries: \"${{PORT}}\" }", "/upstream/retries", json!(9080));
    check("workers: ${{PORT}}", "/workers", json!(9080));
    check("admin: { keys: [{ key: \"${{DIGITS}}\" }] }", "/admin/keys/0/key", json!("356002209726529540"));
    check(
        "plugin_attr: { prometheus: { prefix: \"${{PORT}}\" } }",
        "/plugin_attr/prometheus/prefix",
        json!("9080"),
    );
    check(
        "plugin_attr: { prometheus: { port: \"${{PORT}}\" } }",
        "/plugin_attr/prometheus/port",
        json!(9080),
    );
    check(
        "secrets: [{ id: vault/1, token: \"${{DIGITS}}\" }]",
        "/secrets/0/token",
        json!("356002209726529540"),
    );
    check(
        "{\"routes\": [{\"uri\": \"${{PORT}}\", \"priority\": \"${{MINUS}}\"}]}",
        "/routes/0/priority",
        json!(-1),
    );
    // An alias also copies the missing quotes.
    let alias =
        "routes:\n- plugins:\n    limit-count: &c\n      count: ${{PORT}}\n- plugins:\n    limit-count: *c\n";
    check(alias, "/routes/1/plugins/limit-count/count", json!(9080));
}

/// A single resource for the Admin API follows the same rule.
#[test]
fn a_single_resource_follows_the_same_rule() {
    let check = |text: &str, pointer: &str, expected: Value| {
        let mut document = Document::parse(text, 10_000).unwrap();
        assert_eq!(substitute(&mut document, Holds::Resource(&Schemas::new()), &lookup), []);
        assert_eq!(document.value.pointer(pointer), Some(&expected), "{text}");
    };
    check(
        "plugins: {key-auth: {key: \"${{DIGITS}}\"}}",
        "/plugins/key-auth/key",
        json!("356002209726529540"),
    );
    check(
        "plugins: {limit-count: {time_window: \"${{PORT}}\"}}",
        "/plugins/limit-count/time_window",
        json!(9080),
    );
    check("username: ${{PORT}}", "/username", json!("9080"));
    check("priority: ${{PORT}}", "/priority", json!(9080));
}

#[test]
fn a_missing_variable_is_reported_with_its_line() {
    let mut document = Document::parse("a: 1\nb:\n  - ${{NOPE}} ${{NADA}}\n", 100).unwrap();
    let problems = substitute(&mut document, Holds::File(&NoPlugins), &lookup);
    assert_eq!(problems.len(), 2);
    assert_eq!((problems[0].pointer.as_str(), problems[0].line), ("b[0]", Some(3)));
    assert_eq!(problems[0].message, "can't find environment variable NOPE");
    assert_eq!(problems[0].hint.as_deref(), Some("set it, or give a default: ${{NOPE:=value}}"));
}
