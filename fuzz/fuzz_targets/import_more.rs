//! Conversions of Spring's properties, haproxy.cfg, kong.yml and krakend.json: none panics, each ends.
//!
//! The first byte selects the format; the rest is the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_convert::import::source::{Input, MemoryFiles, SourceFile};
use sigma_convert::import::{Format, import};

fuzz_target!(|input: &[u8]| {
    let Some((first, text)) = input.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let (format, name) = match first {
        b's' => (Format::Spring, "application.yml"),
        b'p' => (Format::Spring, "application.properties"),
        b'h' => (Format::Haproxy, "haproxy.cfg"),
        b'k' => (Format::Kong, "kong.yml"),
        _ => (Format::Krakend, "krakend.json"),
    };
    let files = [SourceFile { name: name.to_owned(), text: text.to_owned() }];
    let access = MemoryFiles::default();
    let _ = import(format, &Input { files: &files, access: &access });
});
