//! Written tables are read again, and no bytes make the reader panic.

use proptest::prelude::*;

use super::read::{Invalid, Table};
use super::write::{Buffer, Entry, Field};

fn entry<'a>(name: &'a str, value: Option<&'a str>) -> Entry<'a> {
    Entry { name: name.as_bytes(), value: value.map(str::as_bytes) }
}

#[test]
fn tables_have_the_layout_of_the_format() {
    let buffer =
        Buffer::of(&[Field::Word(7), Field::Absent, Field::Byte(2), Field::Text(b"ab"), Field::Absent]);
    #[rustfmt::skip]
    let expected: &[u8] = &[
        16, 0, 0, 0, // the root
        12, 0, 13, 0, 4, 0, 0, 0, 12, 0, 8, 0, // the list of offsets
        12, 0, 0, 0, // the table, 12 bytes behind its list
        7, 0, 0, 0, 8, 0, 0, 0, 2, // its fields, the widest first
        0, 0, 0, 2, 0, 0, 0, b'a', b'b', 0, // the text, aligned
    ];
    assert_eq!(buffer.message(), expected);
    let table = Table::root(buffer.message()).unwrap();
    assert_eq!((table.word(0), table.byte(2), table.bytes(3)), (Ok(7), Ok(2), Ok(Some(&b"ab"[..]))));
}

#[test]
fn fields_are_read_as_they_were_written() {
    let entries = [entry("a", Some("1")), entry("flag", None), entry("", Some(""))];
    let inner = [Field::Short(503), Field::Bytes(b"\x00\xff")];
    let mut buffer = Buffer::of(&[
        Field::Later,
        Field::Entries(&entries),
        Field::Table(&inner),
        Field::Bytes(b""),
        Field::Entries(&[]),
    ]);
    buffer.set_later(0xdead_beef);
    let table = Table::root(buffer.message()).unwrap();
    assert_eq!(table.word(0), Ok(0xdead_beef));
    let read = table.tables(1).unwrap();
    let found: Vec<_> = read.iter().map(|one| (one.bytes(0).unwrap(), one.bytes(1).unwrap())).collect();
    let expected: Vec<_> = entries.iter().map(|one| (Some(one.name), one.value)).collect();
    assert_eq!(found, expected);
    let inner = table.table(2).unwrap().unwrap();
    assert_eq!((inner.short(0), inner.bytes(1)), (Ok(503), Ok(Some(&b"\x00\xff"[..]))));
    assert_eq!((table.bytes(3), table.tables(4).unwrap().len()), (Ok(Some(&b""[..])), 0));
    // A field that the writer did not know.
    assert_eq!((table.word(40), table.bytes(40)), (Ok(0), Ok(None)));
    assert!(table.table(40).unwrap().is_none());
}

#[test]
fn positions_outside_are_refused() {
    let whole = Buffer::of(&[Field::Text(b"text"), Field::Word(1)]);
    let whole = whole.message();
    for length in 0..whole.len() - 1 {
        let cut = &whole[..length];
        let text = Table::root(cut).and_then(|table| table.bytes(0));
        assert_eq!(text, Err(Invalid), "{length}");
    }
    assert_eq!(Table::root(&[]).err(), Some(Invalid));
    assert_eq!(Table::root(&[0; 64]).err(), Some(Invalid));
    assert_eq!(Table::root(&[255; 64]).err(), Some(Invalid));
    // A list that claims more tables than there may be.
    let mut many = Buffer::of(&[Field::Entries(&[])]).message().to_vec();
    let count = many.len() - 4;
    many[count..].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(Table::root(&many).unwrap().tables(0).err(), Some(Invalid));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(table) = Table::root(&bytes) {
            for number in 0..9 {
                let _ = (table.byte(number), table.short(number), table.word(number), table.bytes(number));
                let _ = (table.table(number).map(|_| ()), table.tables(number).map(|_| ()));
            }
        }
    }

    #[test]
    fn a_changed_byte_never_panics(
        at in 0usize..120, to in any::<u8>(),
        text in prop::collection::vec(any::<u8>(), 0..30),
    ) {
        let entries = [Entry { name: &text, value: Some(&text) }, Entry { name: b"b", value: None }];
        let bytes = Buffer::of(&[Field::Word(1), Field::Entries(&entries), Field::Bytes(&text)]);
        let mut bytes = bytes.message().to_vec();
        if let Some(byte) = bytes.get_mut(at) {
            *byte = to;
        }
        if let Ok(table) = Table::root(&bytes) {
            let _ = (table.word(0), table.bytes(2));
            for entry in table.tables(1).unwrap_or_default() {
                let _ = (entry.bytes(0), entry.bytes(1));
            }
        }
    }
}
