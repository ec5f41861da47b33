//! Configuration: no text panics, and the normal form of an accepted text is accepted and means the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_config::{ParseOptions, parse};
use sigma_convert::seed::Seeds;

fuzz_target!(|text: &str| {
    let options = ParseOptions { formats: &Seeds::default(), max_bytes: 64 << 10, ..ParseOptions::default() };
    match parse(text, &options) {
        Err(problems) => assert!(!problems.is_empty(), "refused without a problem"),
        Ok(checked) => {
            let normal = checked.normalized().to_string();
            // The normal form writes every default out, so it may be far longer than the text.
            let again = parse(&normal, &ParseOptions::default());
            assert_eq!(again.map(|again| again.config), Ok(checked.config), "{normal}");
        }
    }
});
