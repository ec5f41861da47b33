//! Conversions of nginx.conf as a whole.

use serde_json::Value;

use super::super::source::{Input, MemoryFiles, SourceFile};
use super::super::{Format, import, testing};

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
