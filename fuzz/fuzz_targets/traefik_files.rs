//! Texts of Traefik's dynamic files: each is converted or refused, without a panic, and every document has a form in YAML.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_convert::import::source::{Input, MemoryFiles, SourceFile};
use sigma_convert::import::{Format, import, yaml};

fuzz_target!(|text: &str| {
    // The readers of YAML, TOML and JSON, and compose files with labels, which the content shows.
    for name in ["traefik.yml", "dynamic.toml", "dynamic.json"] {
        let files = [SourceFile { name: name.to_owned(), text: text.to_owned() }];
        let input = Input { files: &files, access: &MemoryFiles::default() };
        if let Ok(imported) = import(Format::Traefik, &input) {
            let _ = yaml::text(&imported.document, name, "traefik");
        }
    }
});
