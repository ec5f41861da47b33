//! Tests of valid and invalid documents in every format.

use serde_json::json;

use super::*;

const LARGE: usize = 1 << 20;

#[test]
fn both_formats_give_values_with_lines() {
    let yaml = "# top\nworkers: 1\nroutes:\n  - uri: /a\n    nodes: { \"h:1\": 2.0 }\n    off: off\n    s: \"1\"\n#END\n";
    let json = "// top\n{\"workers\": 1,\n\"routes\": [\n {\"uri\": \"/a\", /* x */\n \"nodes\": {\"h:1\": 2.0},\n\"off\": \"off\", \"s\": \"1\"}]}";
    for (text, lines) in [(yaml, [2, 4, 5, 6]), (json, [2, 4, 5, 6])] {
        let document = Document::parse(text, LARGE).unwrap();
        assert_eq!(
            document.value,
            json!({"workers": 1, "routes": [{"uri": "/a", "nodes": {"h:1": 2}, "off": "off", "s": "1"}]})
        );
        let pointers = ["workers", "routes[0].uri", "routes[0].nodes[\"h:1\"]", "routes[0].off"];
        for (pointer, line) in pointers.into_iter().zip(lines) {
            assert_eq!(document.line(pointer), Some(line), "{pointer}");
        }
        assert_eq!(document.line("routes[0].uri.missing[3]"), Some(4));
    }
}

/// An object on one line is YAML or JSON; its keys decide.
#[test]
fn an_object_on_one_line_may_be_yaml() {
    let expected = json!({"uri": "/a", "nodes": {"h:1": 1}});
    for text in [
        "{uri: /a, nodes: {\"h:1\": 1}}",
        "# above\n{ uri: /a,\n  nodes: { \"h:1\": 1 } }\n",
        "{\n  # inside\n  uri: /a, nodes: {h:1: 1}\n}",
        "{'uri': '/a', 'nodes': {'h:1': 1}}",
        "{\"uri\": \"/a\", /* inside */ \"nodes\": {\"h:1\": 1}}",
        " { // inside\n \"uri\": \"/a\", \"nodes\": {\"h:1\": 1}}",
    ] {
        assert_eq!(Document::parse(text, LARGE).unwrap().value, expected, "{text}");
    }
    for text in ["{}", " { } ", "{\n// none\n}"] {
        assert_eq!(Document::parse(text, LARGE).unwrap().value, json!({}), "{text}");
    }
}

#[test]
fn scalars_follow_the_core_schema() {
    let check = |text: &str, expected: serde_json::Value| {
        assert_eq!(Document::parse(&format!("v: {text}"), LARGE).unwrap().value["v"], expected, "{text}");
    };
    check("", json!(null));
    check("~", json!(null));
    check("True", json!(true));
    check("yes", json!("yes"));
    check("-12", json!(-12));
    check("+12", json!(12));
    check("0x1F", json!(31));
    check("0o17", json!(15));
    check("1.5", json!(1.5));
    check("1e3", json!(1000));
    check("18446744073709551615", json!(u64::MAX));
    check("127.0.0.1", json!("127.0.0.1"));
    check("1.2.3", json!("1.2.3"));
    check("'1'", json!("1"));
    check("!!str 1", json!("1"));
    check("|\n  a\n  b\n", json!("a\nb\n"));
    check("\n  x: &a [1]\n  y: *a\n", json!({"x": [1], "y": [1]}));
    check(
        "\n  x: &a 1\n  y: &b [*a, *a]\n  z: { w: *b }\n",
        json!({"x": 1, "y": [1, 1], "z": {"w": [1, 1]}}),
    );
    check("\n  x: &a 1\n  y: &a 2\n  z: *a\n", json!({"x": 1, "y": 2, "z": 2}));
    check("\n  \"<<\": 1\n", json!({"<<": 1}));
}

/// A problem in a value copied by an alias is reported at the alias.
#[test]
fn an_alias_has_the_line_of_its_own_place() {
    let text = "upstreams:\n  - id: a\n    nodes: &nodes\n      h: 1\n  - id: b\n    nodes: *nodes\n";
    let document = Document::parse(text, LARGE).unwrap();
    assert_eq!(document.value["upstreams"][1]["nodes"], json!({"h": 1}));
    assert_eq!(document.line("upstreams[0].nodes.h"), Some(4));
    assert_eq!(document.line("upstreams[1].nodes.h"), Some(6));
}

#[test]
fn syntax_errors_have_a_line() {
    let check = |text: &str, code: &str, line: Option<u32>| {
        let problems = Document::parse(text, 4096).expect_err(text);
        assert_eq!((problems[0].code, problems[0].line), (code, line), "{text}: {problems:?}");
    };
    check("a: 1\nb: 2\na: 3\n", "duplicate_key", Some(3));
    check("{\"a\": 1,\n\"a\": 2}", "duplicate_key", Some(2));
    check("a: [1\nb: }", "syntax", Some(2));
    check("{\"a\": 1,}", "syntax", Some(1));
    check("{", "syntax", Some(1));
    check("{a: 1\n", "syntax", Some(2));
    check("{\"a\": \n'x'}", "syntax", Some(2));
    check("a: 1\n---\nb: 1\n", "syntax", Some(2));
    check("? [1]\n: 2\n", "syntax", Some(1));
    check("a: &a { b: 1 }\nc:\n  <<: *a\n  d: 2\n", "merge_key", Some(3));
    check("a: *nowhere\n", "syntax", Some(1));
    check("a: &a [*a]\n", "syntax", Some(1));
    check("a: .inf", "number", Some(1));
    check("{\"a\": 1e999}", "number", Some(1));
    check(&format!("a: {}1{}", "[".repeat(80), "]".repeat(80)), "too_deep", Some(1));
    check(&format!("{{\"a\": {}1{}}}", "[".repeat(80), "]".repeat(80)), "too_deep", Some(1));
    check(&"x".repeat(5000), "too_large", None);
    let mut bomb = String::from("a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n");
    for i in 1..9 {
        bomb.push_str(&format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(",")));
    }
    check(&bomb, "too_large", Some(5));
}

/// JSON pasted after a key is read as in libyaml: indentation inside brackets has no meaning.
#[test]
fn brackets_need_no_indentation() {
    let check = |text: &str, expected: serde_json::Value| {
        let document = Document::parse(text, LARGE).unwrap_or_else(|problems| panic!("{text}: {problems:?}"));
        assert_eq!(document.value, expected, "{text}");
    };
    let cors = json!({"routes": [{"plugins": {"cors": {}}, "uri": "/a"}]});
    check("routes:\n- plugins: {\n    \"cors\": {}\n  }\n  uri: /a\n", cors.clone());
    check("routes:\n  - plugins: {\n      \"cors\": {}\n    }\n    uri: /a\n", cors.clone());
    check("routes:\n  - plugins: {\n    \"cors\": {\n    }\n    }\n    uri: /a\n", cors.clone());
    check("routes:\n- plugins: {\n\"cors\": {}\n}\n  uri: /a\n", cors.clone());
    check("routes:\n- plugins:\n    {\n  \"cors\": {}\n  }\n  uri: /a\n", cors.clone());
    check("routes: [\n{\n\"plugins\": {\"cors\": {}},\n\"uri\": \"/a\"\n}\n]\n", cors.clone());
    check("a: {\n}\nb: [\n]\n", json!({"a": {}, "b": []}));
    check("a: {\n# }\n\"x\": \"}\\\"\" # {\n}\nb: 1\n", json!({"a": {"x": "}\""}, "b": 1}));
    check(
        "a:\n  b: {\n  'x': 'it''s }',\n  y: it's\n  }\n",
        json!({"a": {"b": {"x": "it's }", "y": "it's"}}}),
    );
    check("a:\n  b: [1,\n  2,\n3]\n  c: {\n  }\n", json!({"a": {"b": [1, 2, 3], "c": {}}}));
    check(
        "a:\n  b: {\n  \"x\": \"ä\"\n  }\nc: |\n  }\n   ]\n",
        json!({"a": {"b": {"x": "ä"}}, "c": "}\n ]\n"}),
    );
    check("a:\r\n  b: {\r\n  \"x\": 1\r\n  }\r\n", json!({"a": {"b": {"x": 1}}}));
    let many: String = (0..50).map(|i| format!("k{i}:\n  v: {{\n  \"x\": 1\n  }}\n")).collect();
    assert_eq!(Document::parse(&many, LARGE).unwrap().value.as_object().unwrap().len(), 50);
}

/// Lines and columns refer to the file, also where the reader added spaces.
#[test]
fn brackets_keep_their_places() {
    let text = "a:\n  b: {\n  \"x\": 1,\n  \"y\": {\"z\": 1}\n  }\nc: 1\n";
    let document = Document::parse(text, LARGE).unwrap();
    let positions = ["a.b", "a.b.x", "a.b.y.z", "c"].map(|pointer| document.positions[pointer]);
    let expected = [(2, 3), (3, 3), (4, 9), (6, 1)].map(|(line, column)| TextPosition { line, column });
    assert_eq!(positions, expected);
    let refused = |text: &str| Document::parse(text, LARGE).expect_err(text).remove(0);
    let twice = refused("a:\n  b: {\n  \"x\": 1,\n  \"x\": 2\n  }\n");
    assert_eq!((twice.code, twice.pointer.as_str(), twice.line), ("duplicate_key", "a.b.x", Some(4)));
    for text in ["a:\n  b: {\n  \"x\": 1\nc: 1\n", "a:\n  b: {\n  x: [}\n  }\n", "a:\n  b: 1\n c: 2\n"] {
        assert_eq!(refused(text).code, "syntax", "{text}");
    }
}
