//! Round trips of values, and invalid values.

use proptest::prelude::*;

use super::*;

fn read(bytes: &[u8]) -> Result<Value, &'static str> {
    let mut reader = Reader::new(bytes);
    let value = reader.value()?;
    assert!(reader.is_over(), "bytes are left of {bytes:?}");
    Ok(value)
}

fn written(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    value.write(&mut out);
    out
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

/// The examples of the specification, and the output of Java.
#[test]
fn values_match_the_specification() {
    let check = |bytes: &[u8], expected: Value| assert_eq!(read(bytes), Ok(expected), "{bytes:x?}");
    for (bytes, number) in [
        (&b"\x90"[..], 0),
        (b"\x80", -16),
        (b"\xbf", 47),
        (b"\xc8\x00", 0),
        (b"\xc0\x00", -2048),
        (b"\xcf\xff", 2047),
        (b"\xd4\x00\x00", 0),
        (b"\xd0\x00\x00", -262_144),
        (b"\xd7\xff\xff", 262_143),
        (b"I\xff\xff\xff\xff", -1),
        (b"\xe0", 0),
        (b"\xd8", -8),
        (b"\xef", 15),
        (b"\xf0\x00", -2048),
        (b"\xf7\x00", -256),
        (b"\xff\xff", 2047),
        (b"\x38\x00\x00", -262_144),
        (b"\x3f\xff\xff", 262_143),
        (b"\x59\x00\x00\x01\x2c", 300),
        (b"L\x00\x00\x00\x00\x00\x00\x01\x2c", 300),
    ] {
        check(bytes, Value::Whole(number));
    }
    for (bytes, number) in [
        (&b"\x5b"[..], 0.0),
        (b"\x5c", 1.0),
        (b"\x5d\x80", -128.0),
        (b"\x5e\x80\x00", -32768.0),
        (b"D\x40\x28\x80\x00\x00\x00\x00\x00", 12.25),
    ] {
        check(bytes, Value::Double(number));
    }
    check(b"N", Value::Null);
    check(b"T", Value::Bool(true));
    check(b"F", Value::Bool(false));
    check(b"\x4a\x00\x00\x00\xd0\x4b\x92\x84\xb8", Value::Date(894_621_091_000));
    check(b"\x4b\x00\xe3\x83\x8f", Value::Date(894_621_060_000));
    check(b"\x00", text(""));
    check(b"\x05hello", text("hello"));
    check(b"\x01\xc3\x83", text("\u{c3}"));
    check(b"\x02\xed\xa0\xbd\xed\xb8\x80", text("\u{1f600}"));
    check(b"\x02\xf0\x9f\x98\x80", text("\u{1f600}"));
    check(b"S\x00\x05hello", text("hello"));
    check(b"R\x00\x07hello, \x05world", text("hello, world"));
    check(b"\x30\x02ab", text("ab"));
    check(b"\x20", Value::Bytes(Vec::new()));
    check(b"\x23\x01\x02\x03", Value::Bytes(vec![1, 2, 3]));
    check(b"A\x00\x01aB\x00\x01b", Value::Bytes(b"ab".to_vec()));
    check(b"A\x00\x01a\x21b", Value::Bytes(b"ab".to_vec()));
    let both = || Value::List(vec![Value::Whole(0), Value::Whole(1)]);
    for bytes in [&b"V\x04[int\x92\x90\x91"[..], b"U\x04[int\x90\x91Z", b"\x57\x90\x91Z", b"\x58\x92\x90\x91"]
    {
        check(bytes, both());
    }
    check(b"\x72\x04[int\x90\x91", both());
    check(b"\x7a\x90\x91", both());
    let pair = || Value::Map(vec![(Value::Whole(1), text("fee"))]);
    check(b"H\x91\x03feeZ", pair());
    check(b"M\x08lang.Map\x91\x03feeZ", pair());
    check(b"M\x90\x91\x03feeZ", pair());
    check(b"\x79Q\x90", Value::List(vec![Value::Reference(0)]));
    let class = Rc::new(Class { name: "a.B".into(), fields: ["x".into(), "y".into()].into() });
    let object = Value::Object(class, vec![Value::Null, text("z")]);
    assert_eq!(object.field("y"), Some(&text("z")));
    check(b"C\x03a.B\x92\x01x\x01y\x60N\x01z", object.clone());
    check(b"C\x03a.B\x92\x01x\x01yO\x90N\x01z", object);
}

#[test]
fn invalid_values_are_rejected() {
    let check = |bytes: &[u8], expected: &'static str| assert_eq!(read(bytes), Err(expected), "{bytes:x?}");
    for cut in [
        &b""[..],
        b"I\0\0",
        b"\x05hell",
        b"S\0",
        b"\x23ab",
        b"H",
        b"H\x91",
        b"\x57\x90",
        b"\x7a\x90",
        b"R\0\x01a",
    ] {
        check(cut, "a Hessian value is incomplete");
    }
    check(b"\x40", "a Hessian value of unknown type");
    check(b"Z", "a Hessian value of unknown type");
    check(b"QN", "a Hessian value of unknown type");
    check(b"\x60", "a Hessian object of an undefined class");
    check(b"O\x8f", "a Hessian object of an undefined class");
    check(b"\x58\x8f", "a Hessian list with a negative length");
    check(b"\x01\xff", "a Hessian string with an invalid character");
    check(b"\x01\xc3a", "a Hessian string with an invalid character");
    check(b"\x01\xf7\xbf\xbf\xbf", "a Hessian string with an invalid character");
    check(b"R\x00\x01aN", "a malformed Hessian string");
    check(b"A\x00\x01aN", "malformed Hessian bytes");
    check(&[0x79; 65], "Hessian values are nested too deeply");
    check(&b"C\x00\x90".repeat(65), "Hessian values are nested too deeply");
    check(&[&b"\x57"[..], &b"N".repeat(1 << 16), b"Z"].concat(), "too many values");
    check(&[&b"C\x00I\x7f\xff\xff\xff"[..], &[0; 1 << 16]].concat(), "too many values");
    // No memory is reserved for an announced length.
    check(b"\x58I\x7f\xff\xff\xff", "a Hessian value is incomplete");
    assert_eq!(read(&[&[0x79; 64][..], b"N"].concat()).map(drop), Ok(()));
}

#[test]
fn texts_of_any_length() {
    for length in [0, 1, 31, 32, 1023, 1024, 0x7fff, 0x8000, 0x8001, 0x1_0001] {
        for unit in ["a", "\u{e9}", "\u{20ac}", "\u{1f600}"] {
            let value = text(&unit.repeat(length));
            assert_eq!(read(&written(&value)), Ok(value), "{length} of {unit}");
        }
    }
    assert_eq!(written(&text("hello")), b"\x05hello");
    assert_eq!(written(&text("\u{1f600}")), b"\x02\xed\xa0\xbd\xed\xb8\x80");
    // A surrogate pair stays within its chunk.
    let split = format!("a{}", "\u{1f600}".repeat(0x4000));
    assert_eq!(&written(&text(&split))[..3], b"R\x7f\xff");
    assert_eq!(read(&written(&text(&split))), Ok(text(&split)));
}

fn values() -> impl Strategy<Value = Value> {
    let plain = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Whole),
        (-3000..3000i64).prop_map(Value::Whole),
        any::<i64>().prop_map(Value::Date),
        (-1e9..1e9f64).prop_map(Value::Double),
        ".{0,40}".prop_map(Value::Text),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bytes),
        (0..100i64).prop_map(Value::Reference),
    ];
    plain.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::List),
            proptest::collection::vec((inner.clone(), inner), 0..8).prop_map(Value::Map),
        ]
    })
}

proptest! {
    #[test]
    fn values_survive_a_round_trip(value in values()) {
        prop_assert_eq!(read(&written(&value)), Ok(value));
    }

    #[test]
    fn truncated_values_are_rejected(value in values(), cut in any::<prop::sample::Index>()) {
        let bytes = written(&value);
        prop_assert!(read(&bytes[..cut.index(bytes.len())]).is_err());
    }

    #[test]
    fn no_bytes_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Reader::new(&bytes).value();
    }
}
