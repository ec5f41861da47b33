//! The chunked coding: however the bytes are cut into reads, the same payload, end and trailers come out.
//!
//! The first byte is the length of a read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_http::h1::ChunkedDecoder;

#[derive(Debug, PartialEq)]
struct Body {
    payload: Vec<u8>,
    consumed: usize,
    done: bool,
    trailers: Option<Vec<(Vec<u8>, Vec<u8>)>>,
}

/// Decodes `bytes` in reads of `size`; the error says which rule was broken.
fn decode(bytes: &[u8], size: usize) -> Result<Body, &'static str> {
    let mut decoder = ChunkedDecoder::default();
    let (mut payload, mut consumed) = (Vec::new(), 0);
    for part in bytes.chunks(size) {
        let mut part = part.to_vec();
        let decoded = decoder.decode(&mut part)?;
        assert!(decoded.payload <= decoded.consumed && decoded.consumed <= part.len(), "{decoded:?}");
        payload.extend_from_slice(&part[..decoded.payload]);
        consumed += decoded.consumed;
        if decoder.is_done() {
            break;
        }
        assert_eq!(decoded.consumed, part.len(), "bytes left over before the end");
    }
    let done = decoder.is_done();
    let trailers = if done { decoder.take_trailers()? } else { None };
    let trailers =
        trailers.map(|fields| fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect());
    Ok(Body { payload, consumed, done, trailers })
}

fuzz_target!(|input: &[u8]| {
    let Some((&size, bytes)) = input.split_first() else { return };
    let whole = decode(bytes, bytes.len().max(1));
    for size in [usize::from(size).max(1), 1] {
        assert_eq!(decode(bytes, size), whole, "in reads of {size}");
    }
});
