//! Conversions of nginx.conf as a whole.

use serde_json::Value;

use super::super::report::Verdict;
use super::super::source::{Input, MemoryFiles, SourceFile};
use super::super::{Format, import, testing, yaml};

fn document(text: &str) -> Value {
    let files = [SourceFile { name: "nginx.conf".to_owned(), text: text.to_owned() }];
    import(Format::Nginx, &Input { files: &files, access: &MemoryFiles::default() })
        .expect("a configuration")
        .document
}

#[test]
fn a_proxy() {
    let document =
        document("http { server { listen 80; location /a/ { proxy_pass http://127.0.0.1:9000/; } } }");
    assert_eq!(document["listeners"][0]["address"], "0.0.0.0:80");
    assert_eq!(document["routes"][1]["uri"], "/a/*");
}

#[test]
fn texts_with_variables_have_a_limit() {
    let doubled = "set $a \"$a$a\"; ".repeat(40);
    let location = format!(
        "location / {{ set $a x; {doubled} proxy_set_header X-A $a; proxy_pass http://127.0.0.1:9000; }}"
    );
    let document = document(&format!("http {{ server {{ listen 80; {location} }} }}"));
    assert!(document.to_string().len() < 1 << 20);
}

/// Returns whether the requests of a location are closed, at least those that a condition refuses.
fn is_closed(http: &str, location: &str) -> bool {
    let text = format!(
        "http {{ {http} server {{ listen 80; location / {{ {location} proxy_pass http://127.0.0.1:9000; }} }} }}"
    );
    let document = document(&text);
    let routes = document["routes"].as_array().expect("routes");
    routes.iter().any(|route| route["desc"].as_str().is_some_and(|desc| desc.starts_with("closed: ")))
}

#[test]
fn guards_without_a_counterpart_close_their_routes() {
    for location in [
        "modsecurity on;",
        "auth_oidc on;",
        "auth_jwt_require $valid;",
        "auth_kerberos on;",
        "access_by_njs check;",
        "naxsi on;",
        "SecRulesEnabled;",
        "testcookie on;",
        // Conditions on variables that are not known.
        "if ($unknown = 1) { return 403; }",
        "if ($unknown) { return 302 /login; }",
        "if ($http_a = $unknown) { return 403; }",
        "set_by_lua_block $x { return 1 } if ($x = 1) { return 403; }",
        "set $x $unknown; if ($x = 1) { return 403; }",
        "if ($unknown) { set $x 1; } if ($x = 1) { return 403; }",
        "if ($ssl_client_v_remain = 0) { return 403; }",
        "if ($geoip_country_code = CN) { return 403; }",
        "if ($unknown) { deny all; }",
    ] {
        assert!(is_closed("", location), "{location}");
    }
    for http in [
        "map $unknown $x { default 0; 1 1; }",
        "map $http_a $x { default 0; b $unknown; }",
        "map $http_a $x { default 0; ~(?=b)b 1; }",
        "map $geoip_country_code $x { default 0; CN 1; }",
        "map $y $x { default 0; 1 1; } map $unknown $y { default 0; 1 1; }",
        "geo $x { default 0; proxy 10.0.0.0/8; 10.0.0.1 1; }",
    ] {
        assert!(is_closed(http, "if ($x) { return 403; }"), "{http}");
        assert!(is_closed(http, "set $deny $x; if ($deny = 1) { return 403; }"), "{http}");
    }
    assert!(is_closed("limit_req_zone $unknown zone=z:1m rate=1r/s;", "limit_req zone=z;"));
    assert!(is_closed("limit_conn_zone $unknown zone=z:1m;", "limit_conn z 1;"));
}

#[test]
fn known_guards_and_other_unknown_directives_close_no_route() {
    for (http, location) in [
        ("", "unknown_module on;"),
        ("auth_basic_user_file /users;", "access_log off;"),
        ("", "modsecurity off;"),
        ("", "if ($unknown) { return 301 /new; }"),
        ("", "if ($http_a = b) { return 403; }"),
        ("", "set $x 0; if ($http_a = b) { set $x 1; } if ($x = 1) { return 403; }"),
        ("map $http_a $x { default 0; ~^(?<group>.)b $group; }", "if ($x) { return 403; }"),
        ("geo $x { default 0; 10.0.0.0/8 1; }", "if ($x) { return 403; }"),
        ("limit_req_zone $binary_remote_addr zone=z:1m rate=1r/s;", "limit_req zone=z;"),
    ] {
        assert!(!is_closed(http, location), "{http} {location}");
    }
}

#[test]
fn the_corpus_of_files() {
    testing::corpus(Format::Nginx, "nginx", "conf");
}

/// The block of a page between a fence of this language and the next fence.
fn block<'p>(page: &'p str, language: &str) -> &'p str {
    let (_, rest) = page.split_once(&format!("```{language}\n")).expect("the block");
    rest.split_once("```").expect("its end").0
}

#[test]
fn the_example_of_the_page() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let page = std::fs::read_to_string(format!("{root}docs/from-nginx.md")).expect("the page");
    let made = yaml::text(&document(block(&page, "nginx")), "shop.conf", "nginx").expect("YAML");
    let (_, made) = made.split_once('\n').expect("a first line");
    assert_eq!(made, block(&page, "yaml"));
}

#[test]
fn the_large_example_has_no_gaps() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/nginx/nginx.conf");
    let text = std::fs::read_to_string(path).expect("the example");
    let files = [SourceFile { name: "nginx.conf".to_owned(), text }];
    let imported = import(Format::Nginx, &Input { files: &files, access: &MemoryFiles::default() });
    let imported = imported.expect("a configuration");
    assert_eq!(testing::problems(&imported.document), [""; 0]);
    assert_eq!(imported.report.count(Verdict::NotPossible), 0, "{}", imported.report.text());
    assert!(imported.probes.len() >= 100, "{}", imported.probes.len());
}

#[test]
fn ten_thousand_lines_are_converted() {
    let mut text = String::from("http {\n");
    for number in 0..1000 {
        text.push_str(&format!(
            "server {{\nlisten 80;\nserver_name s{number}.test;\nlocation /a/ {{\nproxy_pass http://10.0.0.1:80/;\n\
             proxy_set_header Host $host;\n}}\nlocation ~ x {{\ndeny all;\n}}\n}}\n"
        ));
    }
    text.push('}');
    assert_eq!(document(&text)["routes"].as_array().map(Vec::len), Some(4000));
}

#[test]
fn the_time_for_a_list_of_rewrites_grows_with_its_length_alone() {
    let list = |form: fn(usize) -> String| (0..2000).map(form).collect::<String>();
    for lines in [
        list(|number| format!("rewrite ^/old{number}$ /new{number} permanent;\n")),
        list(|number| format!("if ($arg_a = {number}) {{ return 404; }}\n")),
    ] {
        let text = format!("http {{ server {{ listen 80; {lines} location / {{ return 200 x; }} }} }}");
        assert!(document(&text)["routes"].as_array().is_some_and(|routes| routes.len() > 2000));
    }
}

#[test]
fn broken_files_are_refused_or_converted() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/nginx");
    for entry in std::fs::read_dir(folder).expect("the corpus").flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "conf") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a file");
        for end in (0..text.len()).step_by(41).filter(|end| text.is_char_boundary(*end)) {
            // Cut off, and with a part missing.
            let without = format!("{}{}", &text[..end], text.get(end + 13..).unwrap_or_default());
            for text in [text[..end].to_owned(), without] {
                let files = [SourceFile { name: "nginx.conf".to_owned(), text }];
                let _ = import(Format::Nginx, &Input { files: &files, access: &MemoryFiles::default() });
            }
        }
    }
}
