//! Request heads: Sigma's parser and the naive one accept the same bytes and read them the same way.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_fuzz::naive::{self, Length, Reading};
use sigma_http::h1::{HeadLimits, HeadScanner, ParseError, parse_request, request_body};
use sigma_http::{BodyLength, RequestHead, Version};

/// Wider than any input, so that both parsers judge the grammar alone.
const LIMITS: HeadLimits = HeadLimits { line_bytes: 1 << 20, head_bytes: 1 << 20, fields: 1 << 16, tolerance: sigma_http::h1::Tolerance::NONE };

fuzz_target!(|bytes: &[u8]| {
    let mut head = RequestHead::default();
    let found = parse_request(bytes, &LIMITS, &mut head);
    match (found, naive::request(bytes)) {
        (Ok(Some(length)), Reading::Whole(expected, expected_length)) => {
            assert_eq!(length, expected_length);
            assert_eq!(head.method_token(), expected.method);
            assert_eq!(head.version, if expected.minor == 0 { Version::Http10 } else { Version::Http11 });
            let fields: Vec<_> =
                head.headers.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
            assert_eq!(fields, expected.fields);
            let framing = match request_body(&head).ok() {
                Some(BodyLength::None) => Some(Length::Absent),
                Some(BodyLength::Known(length)) => Some(Length::Bytes(length)),
                Some(BodyLength::Streamed) => Some(Length::Chunked),
                Some(BodyLength::UntilClose) => panic!("a request cannot end with its connection"),
                None => None,
            };
            assert_eq!(framing, naive::length(expected.minor, &expected.fields));
            arrives_in_pieces(&bytes[..length]);
        }
        (Ok(None), Reading::Incomplete) => {}
        // A refusal may come before the head is complete.
        (Err(ParseError::Invalid(_)), Reading::Refused | Reading::Incomplete) => {}
        (found, expected) => panic!("Sigma: {found:?}; naive: {expected:?}"),
    }
});

/// A whole head that came byte by byte is seen by the scanner, and by the parser not before its last byte.
fn arrives_in_pieces(whole: &[u8]) {
    let mut scanner = HeadScanner::default();
    let mut head = RequestHead::default();
    for length in 1..whole.len() {
        scanner.ready(&whole[..length]);
        // Quadratic, so only for short heads.
        if whole.len() < 256 {
            assert_eq!(parse_request(&whole[..length], &LIMITS, &mut head), Ok(None), "at {length}");
        }
    }
    assert!(scanner.ready(whole), "the scanner missed the end");
}
