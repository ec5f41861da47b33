//! Tests of the conversion as a whole.

use serde_json::json;

use super::super::source::{Input, MemoryFiles, SourceFile};
use super::super::{Format, import};

#[test]
fn endpoints_become_routes() {
    let text = r#"{
  "version": 3,
  "port": 8081,
  "host": ["http://api.internal:8000"],
  "endpoints": [
    {
      "endpoint": "/users/{id}",
      "input_headers": ["Authorization"],
      "backend": [{ "url_pattern": "/v1/users/{id}", "allow": ["name"] }],
      "extra_config": { "qos/ratelimit/router": { "client_max_rate": 5 } }
    },
    { "endpoint": "/joined", "backend": [{ "url_pattern": "/a" }, { "url_pattern": "/b" }] },
    {
      "endpoint": "/guarded",
      "output_encoding": "no-op",
      "backend": [{ "url_pattern": "/g" }],
      "extra_config": { "validation/cel": [] }
    }
  ]
}"#;
    let files = [SourceFile { name: "krakend.json".to_owned(), text: text.to_owned() }];
    let access = MemoryFiles::default();
    let import = import(Format::Krakend, &Input { files: &files, access: &access }).expect("a document");
    let routes = import.document["routes"].as_array().expect("routes");
    assert_eq!(routes[0]["uri"], "~^/users/(?<id>[^/]+)$");
    let rewrite = &routes[0]["plugins"]["proxy-rewrite"];
    assert_eq!(rewrite["uri"], "/v1/users/${uri_param_id}");
    assert_eq!(rewrite["headers"], json!({"pass": ["Authorization"]}));
    assert_eq!(rewrite["args"], json!({"pass": []}));
    assert_eq!(routes[0]["plugins"]["limit-req"]["key"], "remote_addr");
    assert_eq!(routes[0]["plugins"]["response-shaping"]["allow"], json!(["name"]));
    for at in [1, 2] {
        assert!(routes[at]["desc"].as_str().is_some_and(|text| text.starts_with("closed: ")));
    }
    assert!(import.report.has_open_guards());
    assert_eq!(import.document["listeners"][0]["address"], ":8081");
}

#[test]
fn templates_of_go_are_refused() {
    let files =
        [SourceFile { name: "krakend.tmpl".to_owned(), text: "{ \"port\": {{ .port }} }".to_owned() }];
    let access = MemoryFiles::default();
    assert!(import(Format::Krakend, &Input { files: &files, access: &access }).is_err());
}

#[test]
fn the_example_of_the_page() {
    let (import, _) = super::super::testing::page_example(Format::Krakend, "from-krakend.md", "krakend.json");
    let plugins = &import.document["routes"][0]["plugins"];
    assert_eq!(plugins["proxy-rewrite"]["args"], json!({"pass": ["lang"]}));
    assert_eq!(plugins["proxy-rewrite"]["headers"], json!({"pass": []}));
    assert_eq!(plugins["response-shaping"]["allow"], json!(["name"]));
}
