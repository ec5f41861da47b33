//! QPACK against the examples of the standard, its rules, and itself.

use proptest::prelude::*;

use super::*;
use crate::HeaderId;
use crate::field_coding::{huffman, integer};
use crate::h3::error::ErrorCode;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16).expect("hex");
    digits.chunks(2).map(byte).collect()
}

/// Decodes a section; `Err` has the code, or 0 for a section that waits.
fn decode(decoder: &mut Decoder, section: &[u8]) -> Result<Fields, u64> {
    let mut fields = Vec::new();
    let got = decoder.decode(section, |field| {
        let id = if field.name.starts_with(b":") { HeaderId::Other } else { HeaderId::of(field.name) };
        assert_eq!(field.id, id);
        fields.push((field.name.to_vec(), field.value.to_vec()));
    });
    match got {
        Ok(Decoded::Whole) => Ok(fields),
        Ok(Decoded::Waits(_)) => Err(0),
        Err(broken) => Err(broken.code.0),
    }
}

fn pairs(text: &[(&str, &str)]) -> Fields {
    text.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

/// RFC 9204, appendix B.
#[test]
fn the_examples_of_the_standard() {
    let mut decoder = Decoder::new(220);
    let b1 = bytes("0000 510b 2f69 6e64 6578 2e68 746d 6c");
    assert_eq!(decode(&mut decoder, &b1), Ok(pairs(&[(":path", "/index.html")])));

    let b2 = bytes("0381 10 11");
    assert_eq!(decode(&mut decoder, &b2), Err(0));
    let stream =
        bytes("3fbd01 c00f 7777 772e 6578 616d 706c 652e 636f 6d c10c 2f73 616d 706c 652f 7061 7468");
    for byte in stream {
        decoder.instruct(&[byte]).unwrap();
    }
    assert_eq!(decoder.inserted(), 2);
    let expected = pairs(&[(":authority", "www.example.com"), (":path", "/sample/path")]);
    assert_eq!(decode(&mut decoder, &b2), Ok(expected));

    decoder.instruct(&bytes("4a63 7573 746f 6d2d 6b65 790c 6375 7374 6f6d 2d76 616c 7565")).unwrap();
    assert_eq!(decoder.inserted(), 3);
    decoder.instruct(&bytes("02")).unwrap();
    let b4 = bytes("0500 80 c1 81");
    let expected =
        pairs(&[(":authority", "www.example.com"), (":path", "/"), ("custom-key", "custom-value")]);
    assert_eq!(decode(&mut decoder, &b4), Ok(expected));

    // The fifth entry evicts the first one.
    decoder.instruct(&bytes("810d 6375 7374 6f6d 2d76 616c 7565 32")).unwrap();
    assert_eq!(decoder.inserted(), 5);
    assert_eq!(decode(&mut decoder, &bytes("0600 80")), Ok(pairs(&[("custom-key", "custom-value2")])));
    assert_eq!(decode(&mut decoder, &bytes("0600 84")), Err(0x200), "evicted");
}

#[test]
fn invalid_sections_are_rejected() {
    for (section, why) in [
        ("", "no prefix"),
        ("00", "no base"),
        ("0000 ff24", "static index 99"),
        ("0000 ffe18a06", "a large static index"),
        ("0000 5f54 0178", "static name index 99"),
        ("0000 80", "a dynamic index without entries"),
        ("0000 10", "an index after the base without entries"),
        ("0000 00 0178", "a name after the base without entries"),
        ("0000 21 78 7f49 61 62 63", "a truncated value"),
        ("0000 ff80", "a truncated integer"),
        ("0000 ffffffffffffff", "a large integer"),
        ("0000 21 78 84 ffffffff", "the end symbol"),
        ("0000 2c ffffffff 0179", "garbage in a name"),
        ("0080", "a negative base"),
        ("ff00 00", "an insert count beyond the range"),
    ] {
        let mut decoder = Decoder::new(256);
        assert_eq!(decode(&mut decoder, &bytes(section)), Err(0x200), "{why}");
    }
    let mut without = Decoder::new(0);
    assert_eq!(decode(&mut without, &bytes("0200 80")), Err(0x200), "no table was announced");
}

#[test]
fn references_are_limited_by_the_insert_count() {
    let mut decoder = Decoder::new(4096);
    decoder.instruct(&bytes("3fe11f 43782d61 0131 43782d62 0132")).unwrap();
    assert_eq!(decoder.inserted(), 2);
    assert_eq!(decode(&mut decoder, &bytes("0300 81 80")), Ok(pairs(&[("x-a", "1"), ("x-b", "2")])));
    assert_eq!(decode(&mut decoder, &bytes("0281 10")), Err(0x200), "count 1, base 0");
    assert_eq!(decode(&mut decoder, &bytes("0201 80")), Err(0x200), "count 1, base 2: entry 1");
    assert_eq!(decode(&mut decoder, &bytes("0200 80")), Ok(pairs(&[("x-a", "1")])));
    assert_eq!(decode(&mut decoder, &bytes("0400 80")), Err(0), "an entry that has not come");
}

#[test]
fn invalid_instructions_are_rejected() {
    for (stream, why) in [
        ("3fe2 1f", "a capacity above the announced one"),
        ("ff24 0178", "static index 99"),
        ("03", "a duplicate of nothing"),
        ("80 0178", "a dynamic name of nothing"),
        ("43782d61 0131", "an entry without a capacity"),
        ("3f01 43782d61 0131", "an entry larger than the table"),
        ("ffffffffffffff", "a large integer"),
        ("3fe11f 41 78 84 ffffffff", "the end symbol"),
    ] {
        let got = Decoder::new(4096).instruct(&bytes(stream));
        assert_eq!(got.map_err(|broken| broken.code), Err(ErrorCode::QPACK_ENCODER_STREAM_ERROR), "{why}");
    }
    let mut endless = Decoder::new(64);
    let mut failed = false;
    for piece in [&bytes("3f21 7f ff7f")[..], &[b'x'; 200], &[b'x'; 200]] {
        failed |= endless.instruct(piece).is_err();
    }
    assert!(failed, "an instruction that fits no table is not kept");
    Decoder::new(0).instruct(&bytes("20 20")).unwrap();
}

/// An entry with upper case is no field of a message.
#[test]
fn an_entry_with_upper_case_is_invalid_in_messages() {
    let mut decoder = Decoder::new(4096);
    decoder.instruct(&bytes("3fe11f 43582d61 0131 00")).unwrap();
    for section in ["0200 80", "0300 80", "0300 40 0132"] {
        let fields = decode(&mut decoder, &bytes(section)).unwrap();
        assert!(!crate::pseudo_fields::is_sound(&fields[0].0, &fields[0].1), "{section}");
    }
}

#[test]
fn instructions_of_a_decoder() {
    let check = |stream: &str, expected: Option<u64>| {
        let got = Encoder::default().instruct(&bytes(stream));
        assert_eq!(got.map_err(|broken| broken.code.0).err(), expected, "{stream}");
    };
    check("40 44 7f80", None);
    check("7fffffffffff7f", Some(0x202));
    check("01", Some(0x202));
    check("00", Some(0x202));
    check("3fc9 26", Some(0x202));
    check("80", Some(0x202));
}

#[test]
fn secrets_are_never_indexed() {
    for (name, value, first) in [
        ("authorization", "x", 0x7f),
        ("set-cookie", "a=1", 0x70),
        ("cookie", "a=1", 0x70),
        ("cookie", "a long cookie that cannot be guessed", 0x50),
        ("accept", "*/*", 0xdd),
        ("proxy-authorization", "x", 0x30),
    ] {
        let mut out = Vec::new();
        Encoder::default().encode(HeaderId::of(name.as_bytes()), name.as_bytes(), value.as_bytes(), &mut out);
        assert_eq!(out[0] & if first < 0x40 { 0xf0 } else { 0xff } & first, first, "{name}: {:x}", out[0]);
    }
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..80)
}

/// Two ends with one table; the order of bytes on the streams is up to the test.
struct Ends {
    encoder: Encoder,
    decoder: Decoder,
    stream: u64,
}

impl Ends {
    fn new(table_bytes: u32) -> Ends {
        let mut encoder = Encoder::default();
        encoder.set_table(table_bytes.into());
        Ends { encoder, decoder: Decoder::new(table_bytes), stream: 0 }
    }

    /// Encodes a section on the next stream.
    fn encode(&mut self, fields: &Fields) -> Vec<u8> {
        let (mut section, mut out) = (Vec::new(), Vec::new());
        self.encoder.begin(self.stream, true);
        self.stream += 4;
        for (name, value) in fields {
            self.encoder.encode(HeaderId::of(name), name, value, &mut section);
        }
        self.encoder.end(&mut out);
        out.append(&mut section);
        out
    }

    /// Passes all instructions of the encoder, and acknowledges them.
    fn pass_instructions(&mut self) {
        let before = self.decoder.inserted();
        self.decoder.instruct(&std::mem::take(&mut self.encoder.instructions)).unwrap();
        let inserted = self.decoder.inserted() - before;
        if inserted > 0 {
            let mut out = Vec::new();
            integer::put(0, 6, inserted as usize, &mut out);
            self.encoder.instruct(&out).unwrap();
        }
    }

    fn acknowledge(&mut self, stream: u64) {
        let mut out = Vec::new();
        integer::put(0x80, 7, stream as usize, &mut out);
        self.encoder.instruct(&out).unwrap();
    }
}

#[test]
fn repeated_fields_become_indices_once_acknowledged() {
    let mut ends = Ends::new(4096);
    let fields = pairs(&[(":status", "200"), ("x-one", "a longer value"), ("server", "sigma")]);
    let sizes: Vec<usize> = (0..5)
        .map(|round| {
            let section = ends.encode(&fields);
            // Instructions arrive later than sections: nothing waits.
            assert_eq!(decode(&mut ends.decoder, &section), Ok(fields.clone()), "{round}");
            if section[0] != 0 {
                ends.acknowledge(ends.stream - 4);
            }
            ends.pass_instructions();
            section.len()
        })
        .collect();
    assert_eq!((sizes[2], sizes[3], sizes[4]), (5, 5, 5), "prefix and three indices: {sizes:?}");
    assert!(sizes[1] > 15, "{sizes:?}");
    assert_eq!(ends.decoder.inserted(), 2);
}

#[test]
fn a_peer_that_acknowledges_nothing_gets_no_references() {
    let mut ends = Ends::new(512);
    for round in 0..40u32 {
        let fields = pairs(&[("x-a", "1234567"), ("x-b", "12345678"), ("x-c", &round.to_string())]);
        let section = ends.encode(&fields);
        assert_eq!(section[..2], [0, 0]);
        assert_eq!(decode(&mut ends.decoder, &section), Ok(fields));
    }
    ends.decoder.instruct(&ends.encoder.instructions).unwrap();
    let mut few = Ends::new(4096);
    let fields = pairs(&[("x-a", "1234567")]);
    for _ in 0..400 {
        few.encode(&fields);
        few.pass_instructions();
    }
    assert_eq!(few.encode(&fields)[..2], [0, 0], "sections are not acknowledged");
    for stream in (0..1600).step_by(4) {
        let mut cancel = Vec::new();
        integer::put(0x40, 6, stream, &mut cancel);
        few.encoder.instruct(&cancel).unwrap();
    }
    assert_ne!(few.encode(&fields)[..2], [0, 0], "they were cancelled");
}

#[test]
fn acknowledgements_are_checked() {
    let mut ends = Ends::new(4096);
    let fields = pairs(&[("x-a", "1234567")]);
    ends.encode(&fields);
    ends.encode(&fields);
    let code = |result: Result<(), crate::h3::error::Broken>| result.map_err(|broken| broken.code.0);
    assert_eq!(code(ends.encoder.instruct(&[2])), Err(0x202), "one entry was inserted");
    assert_eq!(code(ends.encoder.instruct(&[0])), Err(0x202));
    assert_eq!(code(ends.encoder.instruct(&[1])), Ok(()));
    assert_eq!(code(ends.encoder.instruct(&[1])), Err(0x202));
    assert_eq!(code(ends.encoder.instruct(&[0x80])), Err(0x202), "stream 0 had no reference");
    ends.encode(&fields);
    assert_eq!(code(ends.encoder.instruct(&[0x88])), Ok(()));
    assert_eq!(code(ends.encoder.instruct(&[0x88])), Err(0x202));
}

proptest! {
    /// Every section is decoded at once, in any order of acknowledgements.
    #[test]
    fn sections_never_wait_and_stay_decodable(
        table_bytes in 0u32..600,
        rounds in proptest::collection::vec((0usize..6, 0usize..12, any::<bool>(), 0u8..4), 1..120),
    ) {
        let mut ends = Ends::new(table_bytes);
        let mut late: Vec<(u64, Vec<u8>, Fields)> = Vec::new();
        for (name, value, passes, takes) in rounds {
            let fields: Fields = (0..4)
                .map(|at| {
                    let name = format!("x-{}", (name + at) % 7);
                    (name.into_bytes(), format!("{:0w$}", value + at, w = 3 * value + 1).into_bytes())
                })
                .collect();
            let stream = ends.stream;
            let section = ends.encode(&fields);
            late.push((stream, section, fields));
            if passes {
                ends.pass_instructions();
            }
            for _ in 0..takes {
                if late.is_empty() {
                    break;
                }
                let (stream, section, fields) = late.remove(value % late.len());
                prop_assert_eq!(decode(&mut ends.decoder, &section), Ok(fields));
                if section[0] != 0 {
                    ends.acknowledge(stream);
                }
            }
        }
        for (_, section, fields) in late {
            prop_assert_eq!(decode(&mut ends.decoder, &section), Ok(fields));
        }
    }

    #[test]
    fn encoded_fields_are_decoded(
        list in proptest::collection::vec((text(), text()), 0..80),
        known in proptest::collection::vec((0usize..99, text()), 0..20),
    ) {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::new(4096));
        let mut fields = list;
        for (index, value) in known {
            let fixed = super::fixed::field(index).unwrap();
            fields.push((fixed.name.to_vec(), fixed.value.to_vec()));
            fields.push((fixed.name.to_vec(), value));
        }
        fields.iter_mut().for_each(|(name, _)| name.make_ascii_lowercase());
        let mut section = Vec::new();
        encoder.end(&mut section);
        for (name, value) in &fields {
            encoder.encode(HeaderId::of(name), name, value, &mut section);
        }
        prop_assert_eq!(decode(&mut decoder, &section), Ok(fields));
    }

    #[test]
    fn strings_after_flags_are_decoded(text in text(), flags in 0u8..4) {
        for bits in [3, 5, 7] {
            let mut out = Vec::new();
            let flags = if bits == 7 { 0 } else { flags << 6 };
            huffman::put_after::<false>(flags, bits, &text, &mut out);
            prop_assert_eq!(out[0] & 0xc0 & !(0xffu16 >> (7 - bits)) as u8, flags & 0xc0 & !(0xffu16 >> (7 - bits)) as u8);
            let mut rest = out.as_slice();
            let sent = super::strings::take(&mut rest, bits).unwrap();
            prop_assert!(rest.is_empty());
            let mut strings = super::strings::Decoded::default();
            let got = strings.text(sent, 0).unwrap();
            prop_assert_eq!(strings.bytes(&got), text.as_slice());
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_rejected(stream in text(), section in text()) {
        let mut decoder = Decoder::new(512);
        let mut capacity = Vec::new();
        integer::put(0x20, 5, 512, &mut capacity);
        decoder.instruct(&capacity).unwrap();
        if decoder.instruct(&stream).is_ok() {
            let _ = decode(&mut decoder, &section);
        }
        let _ = Encoder::default().instruct(&section);
    }
}
