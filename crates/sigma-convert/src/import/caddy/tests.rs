//! Tests of whole conversions of Caddyfiles.

use serde_json::{Value, json};

use super::super::report::Verdict;
use super::super::source::{MemoryFiles, SourceFile};
use super::super::{Format, Import, import, testing, yaml};
use super::*;

fn of(text: &str) -> Import {
    let files = [SourceFile { name: "/etc/caddy/Caddyfile".to_owned(), text: text.to_owned() }];
    let access = MemoryFiles::default();
    import(Format::Caddy, &Input { files: &files, access: &access }).unwrap()
}

fn routes(import: &Import) -> Vec<Value> {
    import.document["routes"].as_array().cloned().unwrap_or_default()
}

#[test]
fn handles_exclude_each_other_and_the_longest_path_is_first() {
    let import = of(
        "http://a.test {\n\thandle /x/* {\n\t\trespond x\n\t}\n\thandle /x/y/* {\n\t\trespond y\n\t}\n\trespond z 404\n}\n",
    );
    let routes = routes(&import);
    assert_eq!(routes.len(), 4, "{routes:#?}");
    assert!(routes[0].to_string().contains("^/x/y/"), "{}", routes[0]);
    assert!(routes[1].to_string().contains("^/x/"), "{}", routes[1]);
    assert_eq!(routes[2]["uri"], "/*");
    assert_eq!(import.document["listeners"][0]["address"], ":80");
    assert_eq!(import.report.count(Verdict::NotPossible), 0);
}

#[test]
fn only_the_first_rewrite_runs() {
    let import = of("http://a.test {\n\trewrite /a /one\n\trewrite /b /two\n\treverse_proxy :9000\n}\n");
    let uris: Vec<Value> =
        routes(&import).iter().map(|route| route["plugins"]["proxy-rewrite"]["uri"].clone()).collect();
    assert_eq!(uris[..3], [json!("/one"), json!("/two"), Value::Null]);
}

#[test]
fn names_have_https_and_a_redirect() {
    let import = of("a.test {\n\treverse_proxy app:80\n}\n");
    let listeners = import.document["listeners"].as_array().unwrap();
    assert_eq!(listeners.len(), 2);
    assert_eq!(listeners[1]["tls"], json!({"auto": true}));
    assert_eq!(import.document["acme"]["terms_agreed"], true);
    assert!(routes(&import)[0].to_string().contains("https://$host$request_uri"));
}

#[test]
fn guards_that_cannot_be_converted_close_their_routes() {
    for line in [
        "basic_auth argon2id {\n a b\n}",
        "rate_limit x",
        "forward_auth {$X:unix//a} {\n uri /\n}",
        "crowdsec",
    ] {
        let import = of(&format!("http://a.test {{\n{line}\nreverse_proxy :9000\n}}\n"));
        assert!(import.report.has_open_guards(), "{line}");
        assert!(
            routes(&import)[0]["desc"].as_str().is_some_and(|desc| desc.starts_with("closed: ")),
            "{line}"
        );
    }
}

#[test]
fn unknown_matchers_close_their_lines() {
    let import = of(
        "http://a.test {\n\t@m expression size(1) > 2\n\thandle @m {\n\t\trespond x\n\t}\n\treverse_proxy :9000\n}\n",
    );
    assert!(import.report.has_open_guards());
    assert!(routes(&import)[0]["desc"].as_str().is_some_and(|desc| desc.starts_with("closed: ")));
}

#[test]
fn php_serves_files_and_scripts() {
    let import = of("http://a.test {\n\troot * /srv\n\tphp_fastcgi unix//run/php.sock\n\tfile_server\n}\n");
    let routes = routes(&import);
    assert_eq!(routes[0]["vars"], json!([["uri", "~~", "\\.php(?:/|$)"]]));
    assert_eq!(routes[1]["plugins"]["static-files"]["fallback"]["pass"], "/index.php$is_args$args");
    assert_eq!(import.document["upstreams"][0]["fastcgi"]["root"], "/srv");
}

#[test]
fn the_corpus_of_files() {
    testing::corpus(Format::Caddy, "caddy", "caddy");
}

#[test]
fn broken_files_are_refused_or_converted() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/caddy");
    for entry in std::fs::read_dir(folder).expect("the corpus").flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "caddy") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a file");
        for end in (0..text.len()).step_by(37).filter(|end| text.is_char_boundary(*end)) {
            // Cut off, and with a part missing.
            let without = format!("{}{}", &text[..end], text.get(end + 13..).unwrap_or_default());
            for text in [text[..end].to_owned(), without] {
                let files = [SourceFile { name: "Caddyfile".to_owned(), text }];
                let _ = import(Format::Caddy, &Input { files: &files, access: &MemoryFiles::default() });
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
    let page = read("docs/from-caddy.md");
    let one = |files: &[(&str, String)]| {
        let files: Vec<SourceFile> = files
            .iter()
            .map(|(name, text)| SourceFile { name: (*name).to_owned(), text: text.clone() })
            .collect();
        import(Format::Caddy, &Input { files: &files, access: &MemoryFiles::default() })
            .expect("a configuration")
    };
    let made = one(&[("Caddyfile", block(&page, "caddyfile").to_owned())]);
    let made = yaml::text(&made.document, "x", "caddy").expect("YAML");
    let (_, made) = made.split_once('\n').expect("a first line");
    assert_eq!(made, block(&page, "yaml"));
    let large = one(&[("Caddyfile", read("examples/caddy/Caddyfile"))]);
    assert_eq!(large.report.count(Verdict::NotPossible), 0, "{}", large.report.text());
    assert!(large.probes.len() >= 100, "{}", large.probes.len());
}

#[test]
fn ten_thousand_lines_are_converted() {
    let mut text = String::new();
    for number in 0..1000 {
        text.push_str(&format!(
            "http://h{number}.test {{\n\theader X-A a\n\thandle /a/* {{\n\t\treverse_proxy a:80\n\t}}\n\thandle /b/* {{\n\t\treverse_proxy b:80\n\t}}\n\trespond 404\n}}\n"
        ));
    }
    assert_eq!(routes(&of(&text)).len(), 3001);
}
