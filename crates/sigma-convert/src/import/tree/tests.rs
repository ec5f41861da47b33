//! Tests of the three readers.

use serde_json::json;

use super::*;

#[test]
fn yaml_documents_have_lines_aliases_and_merges() {
    let text = "a: &a { x: 1, y: two }\nb:\n  <<: *a\n  y: \"3\"\n---\n- p\n- q: ~\n";
    let documents = yaml(text).unwrap();
    assert_eq!(documents[0].to_json(), json!({"a": {"x": 1, "y": "two"}, "b": {"x": 1, "y": "3"}}));
    assert_eq!(documents[0].at(&["b", "y"]).unwrap().line, 4);
    assert_eq!(documents[1].to_json(), json!(["p", {"q": null}]));
    for (text, line) in [("a: [1\nb: }", 2), ("a: 1\na: 2\n", 2), ("a: *none\n", 1)] {
        assert_eq!(yaml(text).expect_err(text)[0].line, Some(line), "{text}");
    }
}

#[test]
fn yaml_brackets_need_no_indentation() {
    let text = "a:\n  b: [\n  \"x\", # [\n]\n  c: {\n  'd': 1\n  }\ne: |\n  [ {\nf: 1\n";
    let expected = json!({"a": {"b": ["x"], "c": {"d": 1}}, "e": "[ {\n", "f": 1});
    assert_eq!(yaml(text).unwrap()[0].to_json(), expected);
}

#[test]
fn json_has_lines() {
    let tree = json("{\n \"a\": [1, true, null],\n // why\n \"b\": {\"c\": \"x\\ny\"},\n}").unwrap();
    assert_eq!(tree.to_json(), json!({"a": [1, true, null], "b": {"c": "x\ny"}}));
    assert_eq!(tree.at(&["b", "c"]).unwrap().line, 4);
    for (text, line) in [("{\n\"a\" 1}", 2), ("[1 2]", 1), ("{\n\"a", 2), ("[tru]", 1)] {
        assert_eq!(json(text).expect_err(text)[0].line, Some(line), "{text}");
    }
    assert!(json(&"[".repeat(100_000)).is_err());
}

#[test]
fn toml_tables_lists_and_texts() {
    let text = r#"
title = "a \"b\" \u00e4" # why
[http.routers.one]
rule = 'Host(`a.b`)'
entryPoints = ["web",
  "secure", # last
]
[http.services]
  [[http.services.s.servers]]
  url = "http://a"
  weight = 1_000
  [[http.services.s.servers]]
  url = """
two
lines"""
[x."y.z"]
p.q = true
r = { s = 1, t.u = [1.5, -2] }
when = 1979-05-27T07:32:00Z
"#;
    let tree = toml(text).unwrap();
    let expected = json!({
        "title": "a \"b\" ä",
        "http": {
            "routers": {"one": {"rule": "Host(`a.b`)", "entryPoints": ["web", "secure"]}},
            "services": {"s": {"servers": [
                {"url": "http://a", "weight": "1_000"}, {"url": "two\nlines"}]}}
        },
        "x": {"y.z": {"p": {"q": true}, "r": {"s": 1, "t": {"u": [1.5, -2]}}, "when": "1979-05-27T07:32:00Z"}}
    });
    assert_eq!(tree.to_json(), expected);
    assert_eq!(tree.at(&["http", "routers", "one", "rule"]).unwrap().line, 4);
    assert_eq!(
        tree.at(&["http", "services", "s", "servers"]).unwrap().items()[0].get("weight").unwrap().integer(),
        Some(1000)
    );
    for (text, line) in
        [("a = 1\na = 2", 2), ("a = ", 1), ("[a\n", 1), ("\na = \"x", 2), ("a = 1 b", 1), ("= 1", 1)]
    {
        assert_eq!(toml(text).expect_err(text)[0].line, Some(line), "{text}");
    }
}
