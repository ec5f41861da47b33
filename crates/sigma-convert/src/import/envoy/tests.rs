//! Tests of whole conversions of Envoy's files.

use serde_json::{Value, json};

use super::super::report::Verdict;
use super::super::source::{MemoryFiles, SourceFile};
use super::super::{Format, Import, import};
use super::*;

fn try_of(text: &str) -> Result<Import, Vec<Problem>> {
    let files = [SourceFile { name: "envoy.yaml".to_owned(), text: text.to_owned() }];
    let access = MemoryFiles::default();
    import(Format::Envoy, &Input { files: &files, access: &access })
}

/// A file with these virtual hosts and HTTP filters.
fn of(hosts: &str, filters: &str) -> Import {
    let text = format!(
        r#"
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 0.0.0.0, port_value: 8080 }} }}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: a
          normalize_path: true
          merge_slashes: true
          strip_any_host_port: true
          route_config: {{ virtual_hosts: [ {hosts} ] }}
          http_filters: [ {filters} ]
  clusters:
  - name: one
    type: STRICT_DNS
    load_assignment:
      cluster_name: one
      endpoints: [ {{ lb_endpoints: [ {{ endpoint: {{ address: {{ socket_address: {{ address: app, port_value: 80 }} }} }} }} ] }} ]
"#
    );
    try_of(&text).unwrap()
}

fn routes(import: &Import) -> Vec<Value> {
    import.document["routes"].as_array().cloned().unwrap_or_default()
}

#[test]
fn routes_keep_their_order() {
    let hosts = r#"
{ name: any, domains: ["*"], routes: [ { match: { prefix: "/" }, route: { cluster: one } } ] },
{ name: a, domains: ["a.test"], routes: [
  { match: { prefix: "/x", headers: [ { name: x-a, string_match: { exact: "1" }, invert_match: true } ] }, route: { cluster: one, prefix_rewrite: "/y" } },
  { match: { path: "/d" }, direct_response: { status: 200, body: { inline_string: "hi" } } } ] }
"#;
    let import = of(hosts, "");
    let routes = routes(&import);
    let ids: Vec<&str> = routes.iter().filter_map(|route| route["id"].as_str()).collect();
    assert_eq!(ids, ["a", "a-2", "a-none", "any"]);
    assert_eq!(routes[0]["vars"], json!([["AND", ["http_x_a", "~=", null], ["http_x_a", "~=", "1"]]]));
    assert_eq!(routes[0]["plugins"]["proxy-rewrite"]["regex_uri"], json!(["^/x(.*)$", "/y$1"]));
    assert_eq!(import.report.count(Verdict::NotPossible), 0, "{}", import.report.text());
}

#[test]
fn unknown_filters_close_all_routes() {
    let hosts =
        r#"{ name: any, domains: ["*"], routes: [ { match: { prefix: "/" }, route: { cluster: one } } ] }"#;
    for filter in ["jwt_authn.v3.JwtAuthentication", "lua.v3.Lua", "wasm.v3.Wasm", "oauth2.v3.OAuth2"] {
        let filter = format!(
            r#"{{ name: f, typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.{filter} }} }}"#
        );
        let import = of(hosts, &filter);
        assert!(import.report.has_open_guards(), "{filter}");
        assert!(
            routes(&import)[0]["desc"].as_str().is_some_and(|desc| desc.starts_with("closed: ")),
            "{filter}"
        );
    }
}

#[test]
fn old_versions_are_refused_with_their_line() {
    let text = "a:\n  '@type': type.googleapis.com/envoy.config.filter.network.http_connection_manager.v2.HttpConnectionManager\n";
    assert_eq!(try_of(text).expect_err("v2")[0].line, Some(2));
    let text = "filters:\n- name: envoy.http_connection_manager\n  config: { a: 1 }\n";
    assert_eq!(try_of(text).expect_err("v2")[0].line, Some(3));
}

#[test]
fn retries_make_an_upstream_of_the_route() {
    let hosts = r#"{ name: any, domains: ["*"], routes: [ { match: { prefix: "/" }, route: { cluster: one, timeout: 0s, retry_policy: { retry_on: "5xx,reset", num_retries: 3 } } } ] }"#;
    let import = of(hosts, "");
    let upstream = &import.document["upstreams"][1];
    assert_eq!(upstream["retries"], 3);
    assert_eq!(upstream["retry_policy"]["retry_on"], json!(["5xx", "reset"]));
    assert_eq!(routes(&import)[0]["timeout"]["read"], 3600);
}
