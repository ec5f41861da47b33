//! HPACK against the examples of the standard, its rules, and itself.

use proptest::prelude::*;

use super::*;
use crate::HeaderId;
use crate::field_coding::{huffman, integer};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b' ').collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16).expect("hex");
    digits.chunks(2).map(byte).collect()
}

/// Parses fields from lines of `name: value`.
fn fields(text: &str) -> Fields {
    let pair = |line: &str| {
        let (name, value) = line.trim().rsplit_once(": ").expect("name and value");
        (name.as_bytes().to_vec(), value.as_bytes().to_vec())
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(pair).collect()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, HpackError> {
    let mut fields = Vec::new();
    decoder.decode(block, |field| {
        let id = if field.name.starts_with(b":") { HeaderId::Other } else { HeaderId::of(field.name) };
        assert_eq!(field.id, id, "{:?}", String::from_utf8_lossy(field.name));
        fields.push((field.name.to_vec(), field.value.to_vec()));
    })?;
    Ok(fields)
}

fn encode(encoder: &mut Encoder, fields: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut block = Vec::new();
    encoder.begin(&mut block);
    for (name, value) in fields {
        match name.as_slice() {
            b":status" => {
                let status = std::str::from_utf8(value).expect("text").parse().expect("a status");
                encoder.status(status, &mut block);
            }
            b":method" => encoder.pseudo(Pseudo::Method, value, &mut block),
            b":scheme" => encoder.pseudo(Pseudo::Scheme, value, &mut block),
            b":authority" => encoder.pseudo(Pseudo::Authority, value, &mut block),
            b":path" => encoder.pseudo(Pseudo::Path, value, &mut block),
            b":protocol" => encoder.pseudo(Pseudo::Protocol, value, &mut block),
            _ => encoder.encode(HeaderId::of(name), name, value, &mut block),
        }
    }
    block
}

/// A block of appendix C: its bytes, its fields, and the table after it with its size.
type Example = (&'static str, &'static str, &'static str, usize);

/// Each list belongs to one connection, whose table has the given size.
const EXAMPLES: &[(&str, u32, &[Example])] = &[
    (
        "C.2.1",
        4096,
        &[(
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            "custom-key: custom-header",
            "custom-key: custom-header",
            55,
        )],
    ),
    ("C.2.2", 4096, &[("040c 2f73 616d 706c 652f 7061 7468", ":path: /sample/path", "", 0)]),
    ("C.2.3", 4096, &[("1008 7061 7373 776f 7264 0673 6563 7265 74", "password: secret", "", 0)]),
    ("C.2.4", 4096, &[("82", ":method: GET", "", 0)]),
    (
        "C.3",
        4096,
        &[
            ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", REQUESTS[0], REQUEST_TABLES[0], 57),
            ("8286 84be 5808 6e6f 2d63 6163 6865", REQUESTS[1], REQUEST_TABLES[1], 110),
            (
                "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
                REQUESTS[2],
                REQUEST_TABLES[2],
                164,
            ),
        ],
    ),
    (
        "C.4",
        4096,
        &[
            ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", REQUESTS[0], REQUEST_TABLES[0], 57),
            ("8286 84be 5886 a8eb 1064 9cbf", REQUESTS[1], REQUEST_TABLES[1], 110),
            (
                "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
                REQUESTS[2],
                REQUEST_TABLES[2],
                164,
            ),
        ],
    ),
    (
        "C.5",
        256,
        &[
            (
                "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 \
                 2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 \
                 6c65 2e63 6f6d",
                ANSWERS[0],
                ANSWER_TABLES[0],
                222,
            ),
            ("4803 3330 37c1 c0bf", ANSWERS[1], ANSWER_TABLES[1], 222),
            (
                "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d \
                 54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 \
                 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e \
                 3d31",
                ANSWERS[2],
                ANSWER_TABLES[2],
                215,
            ),
        ],
    ),
    (
        "C.6",
        256,
        &[
            (
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 \
                 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
                ANSWERS[0],
                ANSWER_TABLES[0],
                222,
            ),
            ("4883 640e ffc1 c0bf", ANSWERS[1], ANSWER_TABLES[1], 222),
            (
                "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab \
                 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f \
                 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
                ANSWERS[2],
                ANSWER_TABLES[2],
                215,
            ),
        ],
    ),
];

const REQUESTS: [&str; 3] = [
    ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com",
    ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\ncache-control: no-cache",
    ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\ncustom-key: custom-value",
];
const REQUEST_TABLES: [&str; 3] = [
    ":authority: www.example.com",
    "cache-control: no-cache\n:authority: www.example.com",
    "custom-key: custom-value\ncache-control: no-cache\n:authority: www.example.com",
];
const ANSWERS: [&str; 3] = [
    ":status: 302\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:21 GMT\nlocation: https://www.example.com",
    ":status: 307\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:21 GMT\nlocation: https://www.example.com",
    ":status: 200\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:22 GMT\nlocation: https://www.example.com\n\
     content-encoding: gzip\nset-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
];
const ANSWER_TABLES: [&str; 3] = [
    "location: https://www.example.com\ndate: Mon, 21 Oct 2013 20:13:21 GMT\ncache-control: private\n:status: 302",
    ":status: 307\nlocation: https://www.example.com\ndate: Mon, 21 Oct 2013 20:13:21 GMT\ncache-control: private",
    "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1\ncontent-encoding: gzip\n\
     date: Mon, 21 Oct 2013 20:13:22 GMT",
];

/// Returns a decoder with a table of `size`.
fn decoder_of(size: u32) -> Decoder {
    let mut decoder = Decoder::new(4096);
    let mut block = Vec::new();
    integer::put(0x20, 5, size as usize, &mut block);
    assert_eq!(decode(&mut decoder, &block), Ok(vec![]), "a block of a size alone");
    decoder
}

#[test]
fn the_examples_of_the_standard() {
    for (name, size, blocks) in EXAMPLES {
        let mut decoder = decoder_of(*size);
        for (at, (block, expected, table, table_size)) in blocks.iter().enumerate() {
            let read = decode(&mut decoder, &bytes(block));
            assert_eq!(read, Ok(fields(expected)), "{name}, block {at}");
            assert_eq!(decoder.table().entries(), fields(table), "{name}, table {at}");
            assert_eq!(decoder.table().sizes().0, *table_size, "{name}, size {at}");
        }
    }
}

/// The second sighting is written as in C.4.1 and C.6.1, which add the field at once.
#[test]
fn the_encoder_matches_the_examples() {
    for (at, size, head) in [(5, 4096, REQUESTS[0]), (7, 256, ANSWERS[0])] {
        let mut encoder = Encoder::new(size);
        let first = encode(&mut encoder, &fields(head));
        let second = encode(&mut encoder, &fields(head));
        assert_eq!(second, bytes(EXAMPLES[at].2[0].0));
        assert!(first.len() >= second.len() && first != second);
        let third = encode(&mut encoder, &fields(head));
        assert_eq!(third.len(), fields(head).len(), "an index each");
    }
    let mut encoder = Encoder::new(4096);
    assert_eq!(encode(&mut encoder, &fields(":method: GET")), bytes("82"));
    assert_eq!(encode(&mut encoder, &fields("accept-encoding: gzip, deflate")), bytes("90"));
}

#[test]
fn integers() {
    let check = |bits: u32, value: usize, expected: &[u8]| {
        let mut out = Vec::new();
        integer::put(0, bits, value, &mut out);
        assert_eq!(out, expected, "{value}");
        assert_eq!(integer::length(bits, value), out.len(), "{value}");
        assert_eq!(integer::take(&mut out.as_slice(), bits), Ok(value as u32), "{value}");
    };
    // C.1
    check(5, 10, &[10]);
    check(5, 1337, &[31, 154, 10]);
    check(8 - 1, 42, &[42]);
    check(5, 31, &[31, 0]);
    check(7, 127 + 127, &[127, 127]);
    check(7, 127 + 128, &[127, 0x80, 1]);
    check(4, u32::MAX as usize, &[15, 0xf0, 0xff, 0xff, 0xff, 0x0f]);
    let take = |mut bytes: &[u8]| integer::take(&mut bytes, 4);
    assert_eq!(take(&[15, 0x80, 0x80, 0x80, 0x80, 0]), Ok(15), "five bytes are enough for every number");
    assert_eq!(take(&[15, 0x80, 0x80, 0x80, 0x80, 0x80, 0]), Err(HpackError::Integer));
    assert_eq!(take(&[15, 0xf1, 0xff, 0xff, 0xff, 0x0f]), Err(HpackError::Integer));
    assert_eq!(take(&[15, 0xff, 0xff, 0xff, 0xff, 0x7f]), Err(HpackError::Integer));
    assert_eq!(take(&[15, 0xff]), Err(HpackError::Truncated));
    assert_eq!(take(&[]), Err(HpackError::Truncated));
}

#[test]
fn invalid_blocks_are_rejected() {
    use HpackError::{Huffman, Index, Integer, LargeSize, LateSize, Truncated};
    for (what, block, error) in [
        ("index zero", "80", Index),
        ("an index behind the table", "be", Index),
        ("an index far behind the table", "ff 80ff ffff 0f", Index),
        ("an index of too many bytes", "ff 8080 8080 8000", Integer),
        ("a name behind the table", "7e 01 61", Index),
        ("a name behind the table, not added", "0f 2f 01 61", Index),
        ("no value", "41", Truncated),
        ("no name", "40", Truncated),
        ("half an index", "ff", Truncated),
        ("half a name", "40 05 6162", Truncated),
        ("half a value", "41 05 6162", Truncated),
        ("a name longer than memory", "40 7f ffff ffff 0e", Truncated),
        ("a name longer than numbers", "40 7f ffff ffff 0f", Integer),
        ("a coded name that is none", "40 81 ff 00", Huffman),
        ("a coded value that is none", "41 81 ff", Huffman),
        ("a size behind a field", "82 20", LateSize),
        ("a size above the announced", "3f e2 1f", LargeSize),
    ] {
        let mut decoder = Decoder::new(4096);
        assert_eq!(decode(&mut decoder, &bytes(block)), Err(error), "{what}");
        assert!(!error.to_string().is_empty());
    }
    let mut decoder = Decoder::new(0);
    assert_eq!(decode(&mut decoder, &bytes("20")), Ok(vec![]));
    assert_eq!(decode(&mut decoder, &bytes("21")), Err(HpackError::LargeSize));
    let mut decoder = Decoder::new(4096);
    assert_eq!(decode(&mut decoder, &bytes("3f e1 1f 20 3f e1 1f 82")), Ok(fields(":method: GET")));
}

#[test]
fn a_name_may_come_from_the_entry_that_it_evicts() {
    let mut decoder = decoder_of(60);
    let long = "7878 7878 7878 7878 7878";
    let first = format!("40 0a {long} 01 61");
    let name = vec![b'x'; 10];
    assert_eq!(decode(&mut decoder, &bytes(&first)), Ok(vec![(name.clone(), b"a".to_vec())]));
    for value in [b'b', b'c'] {
        let block = [0x7e, 0x01, value];
        let field = vec![(name.clone(), vec![value])];
        assert_eq!(decode(&mut decoder, &block), Ok(field.clone()));
        assert_eq!(decoder.table().entries(), field);
    }
    // Coded, and too large for the table, which is empty then.
    let mut block = vec![0x7e];
    huffman::put::<false>(&[b'e'; 40], &mut block);
    assert_eq!(decode(&mut decoder, &block), Ok(vec![(name, vec![b'e'; 40])]));
    assert_eq!(decoder.table().entries(), vec![]);
    assert_eq!(decode(&mut decoder, &[0xbe]), Err(HpackError::Index));
}

#[test]
fn sizes_are_announced_in_the_next_block() {
    let told = |own: u32, sizes: &[u32]| {
        let mut encoder = Encoder::new(own);
        sizes.iter().for_each(|size| encoder.set_peer_table_bytes(*size));
        let mut out = Vec::new();
        encoder.begin(&mut out);
        let written = out.len();
        encoder.begin(&mut out);
        assert_eq!(out.len(), written, "told once");
        out
    };
    assert_eq!(told(4096, &[]), b"");
    assert_eq!(told(4096, &[65536]), b"", "no more than it uses");
    assert_eq!(told(256, &[]), bytes("3f e1 01"));
    assert_eq!(told(256, &[65536]), bytes("3f e1 01"));
    assert_eq!(told(65536, &[]), b"");
    assert_eq!(told(65536, &[8192]), bytes("3f e1 3f"));
    assert_eq!(told(4096, &[0]), bytes("20"));
    assert_eq!(told(4096, &[0, 100, 4096]), bytes("20 3f e1 1f"), "the smallest and the last");
    assert_eq!(told(4096, &[100, 0, 50]), bytes("20 3f 13"));
    assert_eq!(told(4096, &[4096, 5000]), b"");
}

#[test]
fn secrets_enter_no_table() {
    let mut encoder = Encoder::new(4096);
    let head = fields(
        "authorization: Bearer abcdefghijklmnopqrstuvwxyz\nproxy-authorization: Basic abc\n\
         set-cookie: session=0123456789abcdef0123456789\ncookie: pin=1234",
    );
    for _ in 0..4 {
        let block = encode(&mut encoder, &head);
        let mut decoder = Decoder::new(4096);
        assert_eq!(decode(&mut decoder, &block).as_ref(), Ok(&head));
        assert_eq!(block[0..2], [0x1f, 23 - 15], "a literal that is never indexed");
        assert_eq!(encoder.table().entries(), vec![]);
    }
    for _ in 0..3 {
        encode(&mut encoder, &fields("cookie: session=0123456789abcdef"));
    }
    assert_eq!(encoder.table().entries().len(), 1, "a long cookie cannot be guessed");
}

#[test]
fn changing_values_enter_no_table_but_their_name_does() {
    let (mut encoder, mut decoder) = (Encoder::new(4096), Decoder::new(4096));
    let mut lengths = Vec::new();
    for number in 0..1000 {
        let head = fields(&format!("etag: {number:08}-{number:08}\nx-request-id: {:032x}", number * 7919));
        let block = encode(&mut encoder, &head);
        assert_eq!(decode(&mut decoder, &block), Ok(head));
        lengths.push(block.len());
        let is_named = block.windows(12).any(|bytes| bytes == b"x-request-id");
        assert!(!is_named || number < 2, "an index is enough");
    }
    let names: Vec<Vec<u8>> = encoder.table().entries().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [b"x-request-id".to_vec()]);
    // An index of two bytes, a length and a value each.
    assert!(lengths[999] <= (2 + 1 + 17) + (2 + 1 + 32), "{}", lengths[999]);
    assert!(lengths[10] < lengths[999], "the first ones are coded: {} against {}", lengths[10], lengths[999]);
}

#[test]
fn memory_is_taken_late_and_stays_small() {
    assert!(size_of::<Decoder>() <= 112 && size_of::<Encoder>() <= 112);
    let (mut encoder, mut decoder) = (Encoder::new(4096), Decoder::new(4096));
    let static_alone = fields(":method: GET\n:scheme: https\n:path: /");
    let block = encode(&mut encoder, &static_alone);
    decode(&mut decoder, &block).expect("a valid block");
    assert_eq!((encoder.table().sizes(), decoder.table().sizes()), ((0, 0), (0, 0)));
    let long = vec![(b"x-long".to_vec(), vec![b'a'; 100_000])];
    let block = encode(&mut encoder, &long);
    assert_eq!(decode(&mut decoder, &block), Ok(long));
    assert!(decoder.decoded_bytes() <= 2048, "one long value leaves little behind");
    let mut capacities = Vec::new();
    for round in 0..2000_u32 {
        let word = |factor: u32| round.wrapping_mul(factor) % 61;
        let head = fields(&format!("x-a: {:050}\nx-bb: {:09}\nvary: {:099}", word(7), word(11), word(13)));
        let block = encode(&mut encoder, &head);
        assert_eq!(decode(&mut decoder, &block), Ok(head));
        capacities.push((encoder.table().sizes().1, decoder.table().sizes().1, decoder.decoded_bytes()));
    }
    assert_eq!(capacities[1000..].iter().min(), capacities[1000..].iter().max(), "no allocation any more");
    assert!(capacities[1999].0 <= 6144 && capacities[1999].1 <= 6144);
}

/// An event on a connection.
#[derive(Debug, Clone)]
enum Step {
    Block(Vec<(String, Vec<u8>)>),
    Size(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let known = prop::sample::select(vec![
        "content-type",
        "Date",
        "etag",
        "vary",
        "If-Match",
        "if-range",
        "cookie",
        "authorization",
        "TE",
        "x-a",
        "X-Request-Id",
        "accept-encoding",
        ":path",
        ":authority",
        ":protocol",
    ]);
    let name = prop_oneof![8 => known.prop_map(str::to_owned), 1 => "[a-zA-Z~-]{1,40}"];
    let usual =
        prop::sample::select(vec!["", "gzip, deflate", "text/html", "0123456789abcdef0123456789abcdef"]);
    let value = prop_oneof![
        6 => usual.prop_map(|text| text.as_bytes().to_vec()),
        3 => "[a-z0-9]{0,3}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..200),
        1 => (100..3000_usize, any::<u8>()).prop_map(|(length, byte)| vec![byte; length]),
    ];
    let block = prop::collection::vec((name, value), 0..12).prop_map(Step::Block);
    let size = prop_oneof![Just(0), Just(4096), 0..5000_u32].prop_map(Step::Size);
    prop::collection::vec(prop_oneof![8 => block, 1 => size], 0..40)
}

proptest! {
    #[test]
    fn both_sides_hold_the_same_table(steps in steps(), own in prop_oneof![Just(4096), 0..6000_u32]) {
        let (mut encoder, mut decoder) = (Encoder::new(own), Decoder::new(4999));
        for step in steps {
            let fields = match step {
                Step::Size(size) => {
                    encoder.set_peer_table_bytes(size);
                    continue;
                }
                Step::Block(fields) => fields,
            };
            let given: Fields = fields.into_iter().map(|(name, value)| (name.into_bytes(), value)).collect();
            let block = encode(&mut encoder, &given);
            let small = given.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
            prop_assert_eq!(decode(&mut decoder, &block), Ok(small));
            prop_assert_eq!(encoder.table().entries(), decoder.table().entries());
            prop_assert!(decoder.table().sizes().0 <= 4999);
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_rejected(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..6)) {
        let mut decoder = Decoder::new(4096);
        for block in blocks {
            let _ = decode(&mut decoder, &block);
        }
    }
}
