//! Field sections of HTTP/3: anything is decoded or refused, and decoded fields come through an encoder and another
//! decoder unchanged, without a wait.
//!
//! The first byte chooses the sizes of the tables. Then pieces follow, each behind a byte of its length, which also
//! says whether the piece is a section, instructions of an encoder, or instructions of a decoder.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_http::HeaderId;
use sigma_http::h3::qpack::{Decoded, Decoder, Encoder};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fuzz_target!(|data: &[u8]| {
    let Some((&sizes, mut rest)) = data.split_first() else { return };
    let (own, peer) = (u32::from(sizes & 0x0f) * 300, u32::from(sizes >> 4) * 100);
    let mut first = Decoder::new(own);
    let mut encoder = Encoder::default();
    encoder.set_table(peer.into());
    let mut second = Decoder::new(peer);
    let mut stream = 0;
    while let Some((&length, tail)) = rest.split_first() {
        let (piece, after) = tail.split_at(tail.len().min(usize::from(length >> 2)));
        rest = after;
        match length & 3 {
            0 | 1 => {
                let Ok(Some(fields)) = decode(&mut first, piece) else { return };
                let most = piece.len() * (own as usize).max(256) * 2;
                let decoded: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
                assert!(decoded <= most, "no field is longer than the table or its section");
                stream += 4;
                pass(&mut encoder, &mut second, stream, fields, length & 1 != 0);
            }
            2 => {
                if first.instruct(piece).is_err() {
                    return;
                }
                assert!(first.memory() <= own as usize * 16 + 1024, "{} bytes", first.memory());
            }
            _ => {
                let mut other = Encoder::default();
                other.set_table(peer.into());
                let _ = other.instruct(piece);
            }
        }
    }
});

/// Sends fields from one side to the other.
fn pass(encoder: &mut Encoder, decoder: &mut Decoder, stream: u64, fields: Fields, acknowledges: bool) {
    let (mut lines, mut section) = (Vec::new(), Vec::new());
    encoder.begin(stream, true);
    for (name, value) in &fields {
        encoder.encode(HeaderId::of(name), name, value, &mut lines);
    }
    encoder.end(&mut section);
    section.append(&mut lines);
    // The section does not wait for the instructions that were written with it.
    let small: Fields = fields.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    assert_eq!(decode(decoder, &section), Ok(Some(small)));
    let before = decoder.inserted();
    decoder.instruct(&std::mem::take(&mut encoder.instructions)).expect("valid instructions");
    if acknowledges {
        if section[0] != 0 {
            encoder.instruct(&number(0x80, 0x7f, stream)).expect("a valid acknowledgement");
        }
        if decoder.inserted() > before {
            // Entries of sections before this one may be known already.
            let _ = encoder.instruct(&number(0, 0x3f, decoder.inserted() - before));
        }
    }
}

/// Writes an integer after flags (RFC 9204 §4.1.1).
fn number(flags: u8, most: u64, value: u64) -> Vec<u8> {
    if value < most {
        return vec![flags | value as u8];
    }
    let (mut out, mut left) = (vec![flags | most as u8], value - most);
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
    out
}

fn decode(decoder: &mut Decoder, section: &[u8]) -> Result<Option<Fields>, u64> {
    let mut fields = Vec::new();
    let decoded = decoder.decode(section, |field| {
        if !field.name.starts_with(b":") && !field.name.is_empty() {
            assert_eq!(field.id, HeaderId::of(field.name));
        }
        fields.push((field.name.to_vec(), field.value.to_vec()));
    });
    match decoded {
        Ok(Decoded::Whole) => Ok(Some(fields)),
        Ok(Decoded::Waits(_)) => Ok(None),
        Err(broken) => Err(broken.code.0),
    }
}
