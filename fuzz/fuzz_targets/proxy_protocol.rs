//! The PROXY protocol: no bytes panic, a header does not depend on how it is cut into reads, and a parsed one
//! reads the same after writing.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_http::proxy_protocol::{HEADER_BYTES, encode_v2, parse};

fuzz_target!(|bytes: &[u8]| {
    let whole = parse(bytes, HEADER_BYTES);
    for cut in 0..bytes.len() {
        match parse(&bytes[..cut], HEADER_BYTES) {
            // Not enough yet: the rest decides.
            Ok(None) => {}
            early => {
                assert_eq!(early, whole, "cut at {cut}");
                break;
            }
        }
    }
    let Ok(Some((header, len))) = whole else { return };
    assert!(len <= bytes.len());
    let mut written = Vec::new();
    encode_v2(&header, &mut written);
    assert_eq!(parse(&written, HEADER_BYTES), Ok(Some((header, written.len()))));
});
