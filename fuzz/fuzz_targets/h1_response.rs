//! Response heads: Sigma's parser and the naive one accept the same bytes and read them the same way.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_fuzz::naive::{self, Length, Reading};
use sigma_http::h1::{HeadLimits, ParseError, parse_response, response_body};
use sigma_http::{BodyLength, Method, ResponseHead, Version};

/// Wider than any input, so that both parsers judge the grammar alone.
const LIMITS: HeadLimits = HeadLimits { line_bytes: 1 << 20, head_bytes: 1 << 20, fields: 1 << 16, tolerance: sigma_http::h1::Tolerance::NONE };

fuzz_target!(|bytes: &[u8]| {
    let mut head = ResponseHead::default();
    let found = parse_response(bytes, &LIMITS, &mut head);
    match (found, naive::response(bytes)) {
        (Ok(Some(length)), Reading::Whole(expected, expected_length)) => {
            assert_eq!(length, expected_length);
            assert_eq!(head.status, expected.status);
            assert_eq!(head.reason(), expected.reason);
            assert_eq!(head.version, if expected.minor == 0 { Version::Http10 } else { Version::Http11 });
            let fields: Vec<_> =
                head.headers.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
            assert_eq!(fields, expected.fields);
            let bodiless = head.status < 200 || matches!(head.status, 204 | 304);
            let framing = naive::length(expected.minor, &expected.fields).map(|length| match length {
                _ if bodiless => BodyLength::None,
                Length::Absent => BodyLength::UntilClose,
                Length::Bytes(bytes) => BodyLength::Known(bytes),
                Length::Chunked => BodyLength::Streamed,
            });
            assert_eq!(response_body(&head, Method::Get).ok(), framing);
        }
        (Ok(None), Reading::Incomplete) => {}
        // A refusal may come before the head is complete.
        (Err(ParseError::Invalid(_)), Reading::Refused | Reading::Incomplete) => {}
        (found, expected) => panic!("Sigma: {found:?}; naive: {expected:?}"),
    }
});
