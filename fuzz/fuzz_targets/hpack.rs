//! Field blocks: anything is decoded or refused, and a decoded block comes through an encoder and another
//! decoder unchanged.
//!
//! The first byte chooses the sizes of the tables; then blocks follow, each behind a byte of its length.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_http::HeaderId;
use sigma_http::h2::hpack::{Decoder, Encoder, HpackError};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fuzz_target!(|data: &[u8]| {
    let Some((&sizes, mut rest)) = data.split_first() else { return };
    let (own, peer) = (u32::from(sizes & 0x0f) * 400, u32::from(sizes >> 4) * 300);
    let mut first = Decoder::new(4096);
    let mut encoder = Encoder::new(own);
    let mut second = Decoder::new(peer.max(4096));
    while let Some((&length, tail)) = rest.split_first() {
        let (block, after) = tail.split_at(tail.len().min(length.into()));
        rest = after;
        let Ok(fields) = decode(&mut first, block) else { return };
        let decoded: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!(decoded <= block.len() * 4096 * 2, "no field is longer than a table or its block");
        if length & 1 != 0 {
            encoder.set_peer_table_bytes(peer);
        }
        let mut out = Vec::new();
        encoder.begin(&mut out);
        for (name, value) in &fields {
            encoder.encode(HeaderId::of(name), name, value, &mut out);
        }
        let small: Fields =
            fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
        assert_eq!(decode(&mut second, &out), Ok(small));
    }
});

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, HpackError> {
    let mut fields = Vec::new();
    decoder.decode(block, |field| {
        if !field.name.starts_with(b":") {
            assert_eq!(field.id, HeaderId::of(field.name));
        }
        fields.push((field.name.to_vec(), field.value.to_vec()));
    })?;
    Ok(fields)
}
