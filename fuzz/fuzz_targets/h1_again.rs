//! Heads through both codecs and back: a head that the parser accepts is written by the encoder for any body and any
//! response so that a second reader finds exactly that body.
//!
//! The first byte chooses the length of the body; the rest is a request or a response as it came.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_http::h1::{
    HeadLimits, encode, frame_response, parse_request, parse_response, request_body, response_body,
};
use sigma_http::{BodyLength, HeaderId, Method, RequestHead, ResponseHead};

const LIMITS: HeadLimits = HeadLimits { line_bytes: 1024, head_bytes: 4096, fields: 32, tolerance: sigma_http::h1::Tolerance::NONE };
/// The fields of framing that the encoder may add.
const LARGER: HeadLimits = HeadLimits { line_bytes: 2048, head_bytes: 8192, fields: 64, tolerance: sigma_http::h1::Tolerance::NONE };

fuzz_target!(|data: &[u8]| {
    let Some((choice, wire)) = data.split_first() else { return };
    let length = match choice % 3 {
        0 => BodyLength::None,
        1 => BodyLength::Known(u64::from(choice / 3)),
        _ => BodyLength::Streamed,
    };
    request(wire, length);
    response(wire, length, choice & 0x80 != 0);
});

fn request(wire: &[u8], length: BodyLength) {
    let mut head = RequestHead::default();
    if !matches!(parse_request(wire, &LIMITS, &mut head), Ok(Some(_))) {
        return;
    }
    head.headers.remove_nominated();
    let target = head.path_and_query().to_vec();
    let mut out = Vec::new();
    encode::request_head(&mut head, None, length, None, &mut out);
    let mut again = RequestHead::default();
    let read = parse_request(&out, &LARGER, &mut again);
    if head.headers.has(HeaderId::Host) || target.is_empty() {
        assert!(matches!(read, Ok(Some(n)) if n == out.len()), "one head and nothing behind it");
        assert_eq!(request_body(&again), Ok(length));
        assert!(!again.headers.has_any(&[HeaderId::Connection, HeaderId::Upgrade, HeaderId::Te]));
        assert!(target.first() != Some(&b'?'), "an empty path is a slash");
    }
}

fn response(wire: &[u8], length: BodyLength, to_head: bool) {
    let mut head = ResponseHead::default();
    if !matches!(parse_response(wire, &LIMITS, &mut head), Ok(Some(_))) || head.status == 101 {
        return;
    }
    let follows = frame_response(&mut head, length, to_head);
    let mut out = Vec::new();
    encode::response_head(&head, &mut out);
    if follows == BodyLength::Streamed {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    out.extend_from_slice(b"\r\n");
    let mut again = ResponseHead::default();
    let read = parse_response(&out, &LARGER, &mut again);
    assert!(matches!(read, Ok(Some(n)) if n == out.len()), "one head and nothing behind it");
    let method = if to_head { Method::Head } else { Method::Get };
    let bodiless = response_body(&again, method).expect("one length");
    assert!(bodiless == follows || (follows == BodyLength::None && bodiless == BodyLength::Known(0)));
}
