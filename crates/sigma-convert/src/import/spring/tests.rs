//! Tests of the conversion as a whole.

use serde_json::{Value, json};

use super::super::report::Verdict;
use super::super::source::{Input, MemoryFiles, SourceFile};
use super::super::{Format, Import, import};

fn converted(name: &str, text: &str) -> Import {
    let files = [SourceFile { name: name.to_owned(), text: text.to_owned() }];
    let access = MemoryFiles::default();
    import(Format::Spring, &Input { files: &files, access: &access }).expect("a document")
}

fn route<'v>(document: &'v Value, id: &str) -> &'v Value {
    let routes = document["routes"].as_array().expect("routes");
    routes.iter().find(|route| route["id"] == id).unwrap_or_else(|| panic!("no route {id}: {document:#}"))
}

#[test]
fn yaml_and_properties_give_the_same_document() {
    let yaml = "
server.port: 8081
spring:
  cloud:
    gateway:
      server.webflux:
        routes:
          - id: a
            uri: ${TARGET:http://127.0.0.1:9000}/x
            predicates:
              - Path=/a/**
              - Method=GET,POST
            filters:
              - StripPrefix=1
";
    let properties = "
server.port=8081
spring.cloud.gateway.server.webflux.routes[0].id=a
spring.cloud.gateway.server.webflux.routes[0].uri=${TARGET:http://127.0.0.1:9000}/x
spring.cloud.gateway.server.webflux.routes[0].predicates[0]=Path=/a/**
spring.cloud.gateway.server.webflux.routes[0].predicates[1]=Method=GET,POST
spring.cloud.gateway.server.webflux.routes[0].filters[0].name=StripPrefix
spring.cloud.gateway.server.webflux.routes[0].filters[0].args.parts=1
";
    let (left, right) = (converted("application.yml", yaml), converted("application.properties", properties));
    assert_eq!(left.document, right.document);
    let route = route(&left.document, "a");
    assert_eq!(route["methods"], json!(["GET", "POST"]));
    assert_eq!(route["uris"], json!(["/a", "/a/*"]));
    assert_eq!(left.document["listeners"][0]["address"], ":8081");
    assert_eq!(
        left.document["upstreams"][0]["nodes"],
        json!([{"host": "127.0.0.1", "port": 9000, "weight": 1}])
    );
}

#[test]
fn unknown_filters_close_their_route() {
    let text = "
spring.cloud.gateway:
  routes:
    - id: a
      uri: http://a.example
      predicates: [ Path=/a ]
      filters: [ JwtAuthentication ]
    - id: b
      uri: http://a.example
      predicates: [ Path=/b ]
";
    let import = converted("application.yml", text);
    assert!(import.report.has_open_guards());
    let closed = route(&import.document, "a");
    assert!(closed["desc"].as_str().is_some_and(|text| text.starts_with("closed: ")), "{closed}");
    assert!(closed.get("upstream_id").is_none());
    assert_eq!(route(&import.document, "b")["upstream_id"], "a.example-80");
}

#[test]
fn profiles_replace_lists_when_active() {
    let text = "
spring.profiles.active: prod
spring.cloud.gateway.routes:
  - { id: a, uri: \"http://a\", predicates: [ Path=/a ] }
  - { id: b, uri: \"http://b\", predicates: [ Path=/b ] }
---
spring.config.activate.on-profile: prod
spring.cloud.gateway.routes:
  - { id: c, uri: \"http://c\", predicates: [ Path=/c ] }
---
spring.config.activate.on-profile: dev
spring.cloud.gateway.routes:
  - { id: d, uri: \"http://d\", predicates: [ Path=/d ] }
";
    let import = converted("application.yml", text);
    let ids: Vec<&Value> =
        import.document["routes"].as_array().expect("routes").iter().map(|it| &it["id"]).collect();
    assert_eq!(ids, [&json!("c")]);
    let remarks = &import.report.remarks;
    assert!(remarks.iter().any(|it| it.place.line == 13 && it.verdict == Verdict::NoEffect), "{remarks:?}");
}

#[test]
fn placeholders_are_replaced_within_limits() {
    let uri = |properties: &str, uri: &str| {
        let text = format!(
            "{properties}\nspring: {{ cloud: {{ gateway: {{ routes: [{{ id: x, uri: '{uri}', predicates: ['Path=/a'] }}] }} }} }}\n"
        );
        converted("application.yml", &text).document.to_string()
    };
    assert!(uri("a: ${b:http://${c}:${d:81}}\nc: host", "${a}").contains("host"));
    let ten = |name: &str| format!("${{{name}}}").repeat(10);
    // Ten times as long with each of many levels, a value of itself, and defaults within defaults.
    let levels: String = (0..30).map(|n| format!("a{n}: '{}'\n", ten(&format!("a{}", n + 1)))).collect();
    assert!(uri(&format!("{levels}a30: xxxxxxxxxx"), "${a0}").len() < 1 << 20);
    assert!(uri(&format!("a: '{}'", ten("a")), "${a}").len() < 1 << 20);
    let nested = "${x:".repeat(10_000) + &"}".repeat(10_000);
    assert!(uri("", &nested).len() < 1 << 20);
}

#[test]
fn weights_become_a_group() {
    let text = "
spring.cloud.gateway.routes:
  - { id: new, uri: \"http://new\", predicates: [ \"Path=/a\", \"Weight=g, 2\" ] }
  - { id: old, uri: \"http://old\", predicates: [ \"Path=/a\", \"Weight=g, 8\" ] }
";
    let import = converted("application.yml", text);
    assert_eq!(import.document["routes"].as_array().map(Vec::len), Some(1));
    let group =
        import.document["upstreams"].as_array().expect("upstreams").iter().find(|it| it["id"] == "group-g");
    assert_eq!(
        group.expect("a group")["members"],
        json!([{"upstream_id": "new-80", "weight": 2}, {"upstream_id": "old-80", "weight": 8}])
    );
}

#[test]
fn every_line_has_a_remark() {
    let text = "server:\n  port: 1\nlogging:\n  level:\n    root: WARN\nspring.cloud.gateway:\n  routes:\n    - id: a\n      uri: http://a\n      predicates:\n        - Path=/a/{id}\n      filters:\n        - AddRequestHeader=X-A, {id}\n";
    let import = converted("application.yml", text);
    let mut lines: Vec<u32> = import.report.remarks.iter().map(|it| it.place.line).collect();
    lines.dedup();
    assert_eq!(lines, (1..=13).collect::<Vec<_>>());
    let route = route(&import.document, "a");
    assert_eq!(route["plugins"]["proxy-rewrite"]["headers"]["add"]["X-A"], "${uri_param_id}");
}

#[test]
fn versions_are_conditions_on_their_header() {
    let text = |source: &str| {
        format!(
            "{source}
spring.cloud.gateway.server.webflux.routes:
  - {{ id: a, uri: http://127.0.0.1:9000, predicates: [Path=/a, Version=1.2+] }}
  - {{ id: b, uri: http://127.0.0.1:9000, predicates: [Path=/a, Version=1.1] }}
"
        )
    };
    let header = "spring.webflux.apiversion: { use.header: X-Version, default: 1.1.0 }";
    let document = converted("application.yml", &text(header)).document;
    assert_eq!(route(&document, "a")["vars"][0][0], "http_x_version");
    assert_eq!(route(&document, "b")["vars"][0][0], "OR");
    assert_eq!(route(&document, "b")["vars"][0][2], json!(["http_x_version", "==", null]));
    // The version is in the path, which code reads: the route is closed.
    let document =
        converted("application.yml", &text("spring.webflux.apiversion.use.path-segment: 0")).document;
    assert!(route(&document, "a").get("vars").is_none(), "{document:#}");
}

#[test]
fn the_example_of_the_page() {
    let page = "from-spring-cloud-gateway.md";
    let (import, page) = super::super::testing::page_example(Format::Spring, page, "application.yml");
    let shown = page.split("```").nth(5).expect("the report");
    for line in shown.lines().filter(|line| !line.is_empty()) {
        assert!(import.report.text().lines().any(|known| known == line), "{line}\n{}", import.report.text());
    }
    assert!(import.report.has_open_guards());
    assert_eq!(import.document["routes"][0]["id"], "orders");
    assert_eq!(import.document["routes"][1].get("upstream_id"), None);
}

#[test]
fn values_name_variables_of_the_host() {
    let yaml = "
spring.cloud.gateway.routes:
  - id: tenant-1
    uri: http://127.0.0.1:9000
    predicates: [ \"Host={sub}.shop.test,{sub}.shop.org\", \"Path=/t/{id}\" ]
    filters: [ \"AddRequestHeader=X-Tenant, {sub}-{id}\", \"AddRequestHeader=X-Other, {none}\" ]
";
    let import = converted("application.yml", yaml);
    let route = route(&import.document, "tenant-1");
    let add = &route["plugins"]["proxy-rewrite"]["headers"]["add"];
    assert_eq!(add["X-Tenant"], "${var_host_tenant_1_sub}-${uri_param_id}");
    let map = &import.document["variables"]["host_tenant_1_sub"];
    assert_eq!(map["map"], "$host");
    assert_eq!(map["regex"][1]["match"], "^(?<sub>[^.]+)\\.shop\\.org$");
    let differs = import.report.remarks.iter().filter(|remark| remark.verdict == Verdict::Differs);
    assert!(
        differs.into_iter().any(|remark| remark.text.contains("`{none}`")),
        "{:?}",
        import.report.remarks
    );
}

#[test]
fn weighted_routes_with_own_filters_have_own_routes() {
    let yaml = "
spring.cloud.gateway.routes:
  - { id: a, uri: \"http://127.0.0.1:9001\", predicates: [ \"Path=/w\", \"Weight=g, 9\" ], filters: [ \"AddResponseHeader=X-V, 1\" ] }
  - { id: b, uri: \"http://127.0.0.1:9002\", predicates: [ \"Path=/w\", \"Weight=g, 1\" ] }
";
    let import = converted("application.yml", yaml);
    let shares = &import.document["variables"]["weight_g"];
    assert_eq!(shares["shares"], json!([{"percent": 90.0, "value": "a"}]));
    assert_eq!(shares["default"], "b");
    assert_eq!(route(&import.document, "a")["vars"], json!([["var_weight_g", "==", "a"]]));
    assert_eq!(route(&import.document, "b")["vars"], json!([["var_weight_g", "==", "b"]]));
}
