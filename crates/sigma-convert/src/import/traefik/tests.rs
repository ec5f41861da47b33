//! Tests of whole conversions of Traefik's files.

use serde_json::{Value, json};

use super::super::report::Verdict;
use super::super::source::{MemoryFiles, SourceFile};
use super::super::{Format, Import, import};
use super::*;

fn of(files: &[(&str, &str)]) -> Import {
    let sources: Vec<SourceFile> = files
        .iter()
        .map(|(name, text)| SourceFile { name: (*name).to_owned(), text: (*text).to_owned() })
        .collect();
    let access = MemoryFiles::default();
    import(Format::Traefik, &Input { files: &sources, access: &access }).unwrap()
}

fn routes(import: &Import) -> Vec<Value> {
    import.document["routes"].as_array().cloned().unwrap_or_default()
}

const STATIC: (&str, &str) = ("traefik.yml", "entryPoints:\n  web:\n    address: ':80'\n");

#[test]
fn longer_rules_come_first() {
    let dynamic = "
http:
  routers:
    a: { rule: 'Host(`t.test`)', service: s }
    b: { rule: 'Host(`t.test`) && PathPrefix(`/b`)', service: s }
    c: { rule: 'PathPrefix(`/c`)', priority: 100, service: s }
  services:
    s: { loadBalancer: { servers: [ { url: 'http://127.0.0.1:1' } ] } }
";
    let import = of(&[STATIC, ("dynamic.yml", dynamic)]);
    let ids: Vec<Value> = routes(&import).iter().map(|route| route["id"].clone()).collect();
    assert_eq!(ids, ["c", "b", "a"]);
    assert_eq!(import.document["upstreams"][0]["nodes"][0]["port"], 1);
    assert_eq!(import.report.count(Verdict::NotPossible), 0);
    assert_eq!(import.report.count(Verdict::Differs), 0);
}

#[test]
fn guards_that_cannot_be_converted_close_their_routers() {
    let dynamic = "
http:
  routers:
    a: { rule: 'Path(`/a`)', service: s, middlewares: [digest] }
    b: { rule: 'Path(`/b`)', service: s, middlewares: [missing] }
    c: { rule: 'Path(`/c`)', service: s, middlewares: [plugin] }
  middlewares:
    digest: { digestAuth: { users: ['a:b:c'] } }
    plugin: { plugin: { any: { x: 1 } } }
  services:
    s: { loadBalancer: { servers: [ { url: 'http://127.0.0.1:1' } ] } }
";
    let import = of(&[STATIC, ("dynamic.yml", dynamic)]);
    assert!(import.report.has_open_guards());
    for route in routes(&import) {
        assert!(route["desc"].as_str().is_some_and(|desc| desc.starts_with("closed: ")), "{route}");
        assert!(route.get("upstream_id").is_none());
    }
}

#[test]
fn labels_are_a_dynamic_configuration() {
    let compose = "
services:
  traefik:
    image: traefik:v3.3
    command:
      - --entrypoints.web.address=:8000
      - --providers.docker.exposedbydefault=false
  app:
    image: app
    labels:
      - traefik.enable=true
      - traefik.http.routers.app.rule=Host(`a.test`)
      - traefik.http.routers.app.middlewares=one,two
      - traefik.http.middlewares.one.headers.customrequestheaders.X-A=1
      - traefik.http.middlewares.two.stripprefix.prefixes=/x, /y
      - traefik.http.services.app.loadbalancer.server.port=9000
  other:
    image: other
    labels: { traefik.http.routers.other.rule: 'Host(`o.test`)' }
";
    let import = of(&[("compose.yml", compose)]);
    assert_eq!(import.document["listeners"][0]["address"], ":8000");
    let nodes = &import.document["upstreams"][0]["nodes"];
    assert_eq!(nodes, &json!([{"host": "app", "port": 9000, "weight": 1}]));
    let routes = routes(&import);
    assert_eq!(routes.len(), 3);
    assert_eq!(routes[0]["plugins"]["proxy-rewrite"]["headers"]["set"]["X-A"], "1");
    assert_eq!(routes[0]["vars"], json!([["uri", "~~", "^/x"]]));
}

#[test]
fn toml_is_the_same_as_yaml() {
    let toml = "
[http.routers.a]
  rule = \"Host(`a.test`) && !Method(`GET`)\"
  service = \"s\"
  middlewares = [\"limit\"]
[http.middlewares.limit.rateLimit]
  average = 10
  burst = 5
[[http.services.s.loadBalancer.servers]]
  url = \"https://10.0.0.1\"
";
    let import = of(&[STATIC, ("dynamic.toml", toml)]);
    let route = &routes(&import)[0];
    assert_eq!(route["plugins"]["limit-req"]["burst"], 4);
    assert_eq!(route["vars"], json!([["request_method", "~=", "GET"]]));
    assert_eq!(import.document["upstreams"][0]["scheme"], "https");
    assert_eq!(import.document["upstreams"][0]["tls"]["verify"], true);
}
