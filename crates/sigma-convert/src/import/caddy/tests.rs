//! Tests of whole conversions of Caddyfiles.

use serde_json::{Value, json};

use super::super::report::Verdict;
use super::super::source::{MemoryFiles, SourceFile};
use super::super::{Format, Import, import};
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
