//! Damaged files: conversions end without a panic.

use super::source::{Input, MemoryFiles, SourceFile};
use super::{Format, import};

/// Characters that parsers treat specially.
const SIGNS: &[u8] = b"{}[]()<>\"'\\$%#:,=*?/|-~^ \n\t0aZ";

/// The number of damaged texts of each example; more by the variable `DAMAGED`.
const ROUNDS: usize = 15;

fn rounds() -> usize {
    std::env::var("DAMAGED").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS)
}

/// The next number of a series (xorshift).
fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as usize
}

#[test]
fn damaged_files_never_panic() {
    let examples = [
        (Format::Spring, "application.yml", include_str!("../../../../examples/import/application.yml")),
        (Format::Haproxy, "haproxy.cfg", include_str!("../../../../examples/import/haproxy.cfg")),
        (Format::Kong, "kong.yml", include_str!("../../../../examples/import/kong.yml")),
        (Format::Krakend, "krakend.json", include_str!("../../../../examples/import/krakend.json")),
    ];
    let access = MemoryFiles::default();
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for (format, name, text) in examples {
        for round in 0..rounds() {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..=round % 6 {
                let at = next(&mut state) % bytes.len();
                match next(&mut state) % 3 {
                    0 => drop(bytes.remove(at)),
                    1 => bytes.insert(at, SIGNS[next(&mut state) % SIGNS.len()]),
                    _ => bytes[at] = SIGNS[next(&mut state) % SIGNS.len()],
                }
            }
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let files = [SourceFile { name: name.to_owned(), text }];
            // A refusal is as good as a document.
            let _ = import(format, &Input { files: &files, access: &access });
        }
    }
}

#[test]
fn examples_are_converted_without_open_guards() {
    let examples = [
        (Format::Spring, "application.yml", include_str!("../../../../examples/import/application.yml")),
        (Format::Haproxy, "haproxy.cfg", include_str!("../../../../examples/import/haproxy.cfg")),
        (Format::Kong, "kong.yml", include_str!("../../../../examples/import/kong.yml")),
        (Format::Krakend, "krakend.json", include_str!("../../../../examples/import/krakend.json")),
    ];
    for (format, name, text) in examples {
        let files = [SourceFile { name: name.to_owned(), text: text.to_owned() }];
        let access = MemoryFiles::default();
        let import = import(format, &Input { files: &files, access: &access }).expect(name);
        assert!(!import.report.has_open_guards(), "{name}: {}", import.report.text());
        assert!(!import.probes.is_empty(), "{name} has no probe");
    }
}
