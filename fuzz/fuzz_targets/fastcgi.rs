//! Responses of FastCGI applications: no bytes break the reader, the pieces that they come in change nothing, and a
//! head that is taken is fit to be forwarded.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_http::fcgi::{EndKind, Piece, Records, head_end, parse_head};
use sigma_http::h1::{HeadLimits, Tolerance};
use sigma_http::{Chunk, HeaderId, ResponseHead};

const LIMITS: HeadLimits =
    HeadLimits { line_bytes: 1 << 20, head_bytes: 4096, fields: 50, tolerance: Tolerance::NONE };

/// The result: the response, the log, and whether and how it ended.
type Found = (Vec<u8>, Vec<u8>, Option<EndKind>);

fn read(wire: &[u8], step: usize) -> Result<Found, &'static str> {
    let (mut records, mut input) = (Records::default(), Chunk::empty());
    let (mut out, mut log) = (Vec::new(), Vec::new());
    for piece in wire.chunks(step) {
        input = Chunk::copy_of(&[&input[..], piece].concat());
        while let Some(piece) = records.next(&mut input)? {
            match piece {
                Piece::Stdout(data) => out.extend_from_slice(&data),
                Piece::Stderr(data) => log.extend_from_slice(&data),
                Piece::StdoutEnd => {}
                // Bytes after it belong to no one.
                Piece::End(kind) => return Ok((out, log, Some(kind))),
            }
        }
    }
    Ok((out, log, None))
}

fn check_head(text: &[u8]) {
    let Some(end) = head_end(text, 0) else { return };
    // From any earlier position, the end is where it is.
    for from in 0..end {
        assert_eq!(head_end(text, from.min(end - 1)), Some(end), "looked at {from}");
    }
    let mut head = ResponseHead::default();
    if parse_head(&text[..end], &LIMITS, &mut head).is_err() {
        return;
    }
    assert!((200..=999).contains(&head.status));
    for id in [HeaderId::Connection, HeaderId::TransferEncoding, HeaderId::Upgrade] {
        assert!(!head.headers.has(id));
    }
    for (name, value) in head.headers.iter() {
        assert!(sigma_http::is_token(name));
        assert!(!name.eq_ignore_ascii_case(b"status"));
        assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
    }
}

fuzz_target!(|input: &[u8]| {
    let whole = read(input, input.len().max(1));
    if let Ok((out, log, _)) = &whole {
        assert!(out.len() + log.len() <= input.len());
        check_head(out);
    }
    for step in [1, 3, 7] {
        assert_eq!(read(input, step).ok(), whole.clone().ok(), "steps of {step}");
    }
    check_head(input);
});
