//! Texts of Envoy's bootstraps: each is converted or refused, without a panic, and every document has a form in YAML.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_convert::import::source::{Input, MemoryFiles, SourceFile};
use sigma_convert::import::{Format, import, yaml};

fuzz_target!(|text: &str| {
    let files = [SourceFile { name: "envoy.yaml".to_owned(), text: text.to_owned() }];
    let input = Input { files: &files, access: &MemoryFiles::default() };
    if let Ok(imported) = import(Format::Envoy, &input) {
        let _ = yaml::text(&imported.document, "envoy.yaml", "envoy");
    }
});
