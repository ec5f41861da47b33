//! Tests of the conversion as a whole.

use serde_json::{Value, json};

use super::super::source::{Input, MemoryFiles, SourceFile};
use super::super::{Format, Import, import};

fn converted(text: &str) -> Import {
    let files = [SourceFile { name: "kong.yml".to_owned(), text: text.to_owned() }];
    let mut access = MemoryFiles::default();
    access.variables.insert("DECK_KEY".to_owned(), "secret".to_owned());
    import(Format::Kong, &Input { files: &files, access: &access }).expect("a document")
}

const TEXT: &str = "
_format_version: \"3.0\"
services:
  - name: users
    url: http://users.internal:8080/v1
    routes:
      - { name: short, paths: [/users], methods: [GET] }
      - { name: long, paths: [/users/admin], hosts: [a.test], strip_path: false }
    plugins:
      - { name: key-auth }
      - name: rate-limiting
        config: { minute: 5, limit_by: ip }
  - name: files
    host: pool
    routes:
      - { name: expr, paths: [\"~/f/\\\\d+$\"] }
      - { name: guarded, paths: [/g], plugins: [{ name: own-auth }] }
upstreams:
  - name: pool
    algorithm: least-connections
    targets: [{ target: \"10.0.0.1:80\" }, { target: \"10.0.0.2:80\", weight: 50 }]
consumers:
  - username: jack
    keyauth_credentials: [{ key: \"${{ env \\\"DECK_KEY\\\" }}\" }]
";

#[test]
fn routes_have_the_order_of_kong() {
    let import = converted(TEXT);
    let routes = import.document["routes"].as_array().expect("routes");
    let ids: Vec<&Value> = routes.iter().map(|route| &route["id"]).collect();
    assert_eq!(ids, [&json!("long"), &json!("short"), &json!("expr"), &json!("guarded")]);
    assert_eq!(routes[1]["plugins"]["key-auth"]["headers"], json!(["apikey"]));
    assert_eq!(routes[1]["plugins"]["limit-count"]["rules"][0]["count"], 5);
    assert_eq!(routes[1]["plugins"]["proxy-rewrite"]["regex_uri"], json!(["^/users/?", "/v1/"]));
    assert!(routes[3]["desc"].as_str().is_some_and(|text| text.starts_with("closed: ")));
    assert!(import.report.has_open_guards());
}

#[test]
fn upstreams_and_consumers_are_taken_over() {
    let import = converted(TEXT);
    let upstreams = import.document["upstreams"].as_array().expect("upstreams");
    assert_eq!(upstreams[1]["type"], "least_conn");
    assert_eq!(upstreams[1]["nodes"][1], json!({"host": "10.0.0.2", "port": 80, "weight": 50}));
    assert_eq!(import.document["consumers"][1]["plugins"]["key-auth"]["key"], "secret");
    assert!(import.report.remarks.iter().all(|it| it.place.line > 0));
}

#[test]
fn the_example_of_the_page() {
    let (import, _) = super::super::testing::page_example(Format::Kong, "from-kong.md", "kong.yml");
    let route = &import.document["routes"][0];
    assert_eq!(route["plugins"]["proxy-rewrite"]["regex_uri"], json!(["^/orders/?", "/v1/"]));
    assert_eq!(route["upstream_id"], "orders");
    let consumers = import.document["consumers"].as_array().expect("consumers");
    assert!(consumers.iter().any(|consumer| consumer["plugins"]["key-auth"]["key"] == "a-key-of-the-shop"));
}

#[test]
fn a_route_with_too_many_pairs_is_closed() {
    let list = |letter: char| {
        (0..800).map(|at| format!("{letter}{at}")).collect::<Vec<_>>().join(if letter == 'h' {
            ","
        } else {
            ",/"
        })
    };
    let text = format!(
        "_format_version: '3.0'\nservices:\n- name: s\n  url: http://a\n  routes:\n  - paths: [/{}]\n    hosts: [{}]\n",
        list('p'),
        list('h')
    );
    let import = converted(&text);
    assert!(import.report.has_open_guards());
    assert_eq!(import.document["routes"].as_array().map(Vec::len), Some(1));
}

#[test]
fn plugins_of_consumers_are_theirs() {
    let import = converted(
        "_format_version: '3.0'\nservices:\n- name: s\n  url: http://a\n  routes:\n  - paths: [/a]\n- name: t\n  url: http://b\n  routes:\n  - paths: [/b]\n\
         consumers:\n- username: jo\n- username: al\n  plugins: [{ name: ip-restriction, config: { allow: [10.0.0.1] } }]\n\
         plugins:\n- { name: rate-limiting, consumer: jo, config: { minute: 5 } }\n- { name: rate-limiting, consumer: jo, service: t, config: { minute: 1 } }\n\
         consumer_groups:\n- name: g\n  plugins: [{ name: acl }]\n",
    );
    let consumers = import.document["consumers"].as_array().expect("consumers");
    assert!(consumers[0]["plugins"]["limit-count"].to_string().contains("\"count\":5"), "{consumers:?}");
    assert_eq!(consumers[1]["plugins"]["ip-restriction"]["whitelist"], json!(["10.0.0.1"]));
    let routes = import.document["routes"].as_array().expect("routes");
    let closed: Vec<bool> = routes.iter().map(|route| route.get("upstream_id").is_none()).collect();
    assert_eq!(closed, [false, true], "{routes:?}");
    assert_eq!(import.report.remarks.iter().filter(|remark| remark.guards).count(), 2);
}
