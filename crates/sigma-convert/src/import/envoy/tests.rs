//! Tests of whole conversions of Envoy's files.

use serde_json::{Value, json};

use super::super::report::Verdict;
use super::super::source::{MemoryFiles, SourceFile};
use super::super::{Format, Import, import, testing, yaml};
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

#[test]
fn the_corpus_of_files() {
    testing::corpus(Format::Envoy, "envoy", "yaml");
}

#[test]
fn broken_files_are_refused_or_converted() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/envoy");
    for entry in std::fs::read_dir(folder).expect("the corpus").flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a file");
        for end in (0..text.len()).step_by(37).filter(|end| text.is_char_boundary(*end)) {
            // Cut off, and with a part missing.
            let without = format!("{}{}", &text[..end], text.get(end + 13..).unwrap_or_default());
            for text in [text[..end].to_owned(), without] {
                let files = [SourceFile { name: "envoy.yaml".to_owned(), text }];
                let _ = import(Format::Envoy, &Input { files: &files, access: &MemoryFiles::default() });
            }
        }
    }
}

/// The block of a page between a fence of this language and the next fence.
fn block<'p>(page: &'p str, language: &str) -> &'p str {
    let (_, rest) = page.split_once(&format!("```{language}\n")).expect("the block");
    rest.split_once("```").expect("its end").0
}

/// The example of the page, and the large one.
#[test]
fn examples_of_the_documents() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let read = |path: &str| std::fs::read_to_string(format!("{root}{path}")).expect("a file");
    let page = read("docs/from-envoy.md");
    let one = |files: &[(&str, String)]| {
        let files: Vec<SourceFile> = files
            .iter()
            .map(|(name, text)| SourceFile { name: (*name).to_owned(), text: text.clone() })
            .collect();
        import(Format::Envoy, &Input { files: &files, access: &MemoryFiles::default() })
            .expect("a configuration")
    };
    let made = one(&[("envoy.yaml", block(&page, "yml").to_owned())]);
    let made = yaml::text(&made.document, "x", "envoy").expect("YAML");
    let (_, made) = made.split_once('\n').expect("a first line");
    assert_eq!(made, block(&page, "yaml"));
    let large = one(&[("envoy.yaml", read("examples/envoy/envoy.yaml"))]);
    assert_eq!(large.report.count(Verdict::NotPossible), 0, "{}", large.report.text());
    assert!(large.probes.len() >= 100, "{}", large.probes.len());
}

#[test]
fn ten_thousand_lines_are_converted() {
    let mut hosts = String::new();
    for number in 0..2000 {
        hosts.push_str(&format!(
            "{{\nname: h{number},\ndomains: [\"h{number}.test\"],\nroutes: [\n{{ match: {{ prefix: \"/\" }}, route: {{ cluster: one }} }} ] }},\n"
        ));
    }
    assert_eq!(routes(&of(&hosts, "")).len(), 2000);
}
