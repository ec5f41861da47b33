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
