//! Heads with pseudo-fields: an accepted one is one well-formed HTTP/1 message, read back the same.
//!
//! The input is text: method, authority, path and protocol a line each (empty for none), then fields
//! as `name\tvalue`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_http::h1::{HeadLimits, encode, parse_request, request_body};
use sigma_http::{BodyLength, HeaderId, PseudoFields, RequestHead, TargetForm, Version};

const LIMITS: HeadLimits = HeadLimits { line_bytes: 1024, head_bytes: 4096, fields: 32, tolerance: sigma_http::h1::Tolerance::NONE };
/// HTTP/1 adds to the same head: separators, and the fields of an upgrade.
const LARGER: HeadLimits = HeadLimits { line_bytes: 2048, head_bytes: 8192, fields: 64, tolerance: sigma_http::h1::Tolerance::NONE };

fuzz_target!(|data: &[u8]| {
    let mut lines = data.split(|b| *b == b'\n');
    let mut part = || lines.next().filter(|line| !line.is_empty());
    let pseudo = PseudoFields {
        method: part().unwrap_or_default(),
        authority: part(),
        path: part(),
        protocol: part(),
    };
    let fields = lines.filter_map(|line| {
        let at = line.iter().position(|b| *b == b'\t')?;
        Some((&line[..at], &line[at + 1..]))
    });
    let mut head = RequestHead::default();
    if head.assemble(Version::Http2, &pseudo, fields, &LIMITS).is_err() {
        return;
    }
    let length = request_body(&head).expect("what was accepted has one length");
    assert!(pseudo.protocol.is_none() || length == BodyLength::None, "a tunnel has no length");
    let upgrade = head.headers.get(HeaderId::Upgrade).map(<[u8]>::to_vec);
    assert_eq!(upgrade.as_deref(), pseudo.protocol, "an upgrade is asked for by :protocol alone");
    let before = head.clone();
    for length in [length, BodyLength::Streamed, BodyLength::Known(3)] {
        check(&before, length, upgrade.as_deref());
    }
});

/// A head for a body of `length` is one head, which is read back with that length.
fn check(before: &RequestHead, length: BodyLength, upgrade: Option<&[u8]>) {
    let mut head = before.clone();
    let mut wire = Vec::new();
    encode::request_head(&mut head, None, length, upgrade, &mut wire);
    let mut again = RequestHead::default();
    let len = parse_request(&wire, &LARGER, &mut again).expect("what was accepted is valid HTTP/1");
    assert_eq!(len, Some(wire.len()), "one message and nothing behind it");
    assert_eq!(again.method_token(), head.method_token());
    assert_eq!(again.path_and_query(), head.path_and_query());
    assert_eq!(again.form, head.form);
    let kept = |(name, _): &(&[u8], &[u8])| {
        let framing = [HeaderId::Connection, HeaderId::Upgrade, HeaderId::TransferEncoding, HeaderId::ContentLength];
        !framing.contains(&HeaderId::of(name))
    };
    assert!(head.headers.iter().filter(kept).eq(again.headers.iter().filter(kept)), "the same fields");
    assert_eq!(request_body(&again), Ok(length));
    assert!(again.headers.get_all(HeaderId::Host).count() == 1 || again.form == TargetForm::Authority);
}
