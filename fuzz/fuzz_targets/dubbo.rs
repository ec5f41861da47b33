//! Responses of Dubbo providers, and bodies that become calls: no bytes break the readers, the pieces that they come
//! in change nothing, a head that is taken is fit to be forwarded, and no body has more parameters than it may.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_http::dubbo::hessian::Reader;
use sigma_http::dubbo::{Call, DubboRequest, Form, Piece, read_answer};
use sigma_http::h1::{HeadLimits, Tolerance};
use sigma_http::{Chunk, HeaderId, Headers, ResponseHead};

const LIMITS: HeadLimits =
    HeadLimits { line_bytes: 1 << 20, head_bytes: 4096, fields: 50, tolerance: Tolerance::NONE };

fn call(form: Form) -> Call {
    let [service, version, method] = ["a.B", "1.0.0", "m"].map(Box::from);
    Call { service, version, method, form, body_bytes_max: 1 << 20 }
}

fn lines(types: &str, is_serialized: bool) -> Form {
    Form::Lines { types: types.into(), is_serialized }
}

fn read(wire: &[u8], step: usize) -> Result<Vec<Piece>, &'static str> {
    let (mut frames, mut input) = (call(Form::Map).frames(1), Chunk::empty());
    let mut found = Vec::new();
    for piece in wire.chunks(step) {
        input = Chunk::copy_of(&[&input[..], piece].concat());
        // Bytes after the response belong to no one.
        while !frames.is_over() {
            match frames.next(&mut input)? {
                Some(piece) => found.push(piece),
                None => break,
            }
        }
    }
    Ok(found)
}

fn check_answer(form: &Form, status: u8, values: &[u8]) {
    let mut head = ResponseHead::default();
    if read_answer(form, status, values, &LIMITS, &mut head).is_err() {
        return;
    }
    assert!((200..=999).contains(&head.status));
    for id in [HeaderId::Connection, HeaderId::TransferEncoding, HeaderId::Upgrade, HeaderId::ContentLength] {
        assert!(!head.headers.has(id));
    }
    for (name, value) in head.headers.iter() {
        assert!(sigma_http::is_token(name));
        assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
    }
}

fn check_value(bytes: &[u8]) {
    let Ok(value) = Reader::new(bytes).value() else { return };
    let mut first = Vec::new();
    value.write(&mut first);
    // Objects have become maps, and may be too many values now; what can be read is the same again.
    if let Ok(value) = Reader::new(&first).value() {
        let mut second = Vec::new();
        value.write(&mut second);
        assert_eq!(first, second);
    }
}

fn check_body(body: &[u8], form: Form, count: usize) {
    let mut question = DubboRequest::begin(call(form), &Headers::default());
    if question.body(body).is_err() {
        return;
    }
    let Ok(frame) = question.end(1) else { return };
    assert_eq!(frame[12..16], ((frame.len() - 16) as u32).to_be_bytes());
    // As Java's readers see lines: either sign ends one, and both together do.
    let text = String::from_utf8_lossy(&frame[16..]).replace("\r\n", "\n").replace('\r', "\n");
    assert_eq!(text.lines().count(), 6 + count, "{text:?}");
    assert!(text.ends_with("\n{}\n"));
}

fuzz_target!(|input: &[u8]| {
    let whole = read(input, input.len().max(1));
    for step in [1, 3, 7] {
        assert_eq!(read(input, step), whole, "steps of {step}");
    }
    if let Some(Piece::Answer { status, body }) = whole.unwrap_or_default().pop() {
        check_answer(&Form::Map, status, &body);
    }
    check_answer(&Form::Map, 20, input);
    check_answer(&lines("", false), 20, input);
    check_value(input);
    for (types, count) in [("", 0), ("I", 1), ("I[J", 2)] {
        check_body(input, lines(types, false), count);
        check_body(input, lines(types, true), count);
    }
});
