//! Tests of whole conversions of Traefik's files.

use serde_json::{Value, json};

use super::super::report::Verdict;
use super::super::source::{MemoryFiles, SourceFile};
use super::super::{Format, Import, import, testing, yaml};
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

#[test]
fn the_corpus_of_files() {
    testing::corpus(Format::Traefik, "traefik", "yml");
}

#[test]
fn broken_files_are_refused_or_converted() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/traefik");
    for entry in std::fs::read_dir(folder).expect("the corpus").flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "yml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a file");
        for end in (0..text.len()).step_by(37).filter(|end| text.is_char_boundary(*end)) {
            // Cut off, and with a part missing.
            let without = format!("{}{}", &text[..end], text.get(end + 13..).unwrap_or_default());
            for text in [text[..end].to_owned(), without] {
                let files = [SourceFile { name: "traefik.yml".to_owned(), text }];
                let _ = import(Format::Traefik, &Input { files: &files, access: &MemoryFiles::default() });
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
    let page = read("docs/from-traefik.md");
    let one = |files: &[(&str, String)]| {
        let files: Vec<SourceFile> = files
            .iter()
            .map(|(name, text)| SourceFile { name: (*name).to_owned(), text: text.clone() })
            .collect();
        import(Format::Traefik, &Input { files: &files, access: &MemoryFiles::default() })
            .expect("a configuration")
    };
    let made = one(&[("traefik.yml", block(&page, "yml").to_owned())]);
    let made = yaml::text(&made.document, "x", "traefik").expect("YAML");
    let (_, made) = made.split_once('\n').expect("a first line");
    assert_eq!(made, block(&page, "yaml"));
    let large = one(&[
        ("traefik.yml", read("examples/traefik/traefik.yml")),
        ("dynamic.yml", read("examples/traefik/dynamic.yml")),
    ]);
    assert_eq!(large.report.count(Verdict::NotPossible), 0, "{}", large.report.text());
    assert!(large.probes.len() >= 100, "{}", large.probes.len());
}

#[test]
fn ten_thousand_lines_are_converted() {
    let mut text = String::from(
        "http:\n  services:\n    s: { loadBalancer: { servers: [ { url: 'http://a' } ] } }\n  routers:\n",
    );
    for number in 0..2000 {
        text.push_str(&format!(
            "    r{number}:\n      rule: Host(`h{number}.test`) && PathPrefix(`/a`)\n      service: s\n      middlewares:\n        - strip\n"
        ));
    }
    text.push_str("  middlewares:\n    strip: { stripPrefix: { prefixes: [/a] } }\n");
    assert_eq!(routes(&of(&[STATIC, ("dynamic.yml", &text)])).len(), 2000);
}
