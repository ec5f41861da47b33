//! Encoding of values.

use super::Value;

/// Units of UTF-16 in one chunk of a text.
const CHUNK_UNITS: usize = 0x8000;

/// Writes a text. Its length counts UTF-16 units, and each unit is written as its own character, as Java does.
pub fn write_text(text: &str, out: &mut Vec<u8>) {
    let mut rest = text;
    loop {
        let (mut units, mut end) = (0, 0);
        for c in rest.chars() {
            if units + c.len_utf16() > CHUNK_UNITS {
                break;
            }
            units += c.len_utf16();
            end += c.len_utf8();
        }
        let (piece, behind) = rest.split_at(end);
        let [high, low] = (units as u16).to_be_bytes();
        match units {
            _ if !behind.is_empty() => out.extend_from_slice(&[b'R', high, low]),
            0..32 => out.push(low),
            32..1024 => out.extend_from_slice(&[0x30 + high, low]),
            _ => out.extend_from_slice(&[b'S', high, low]),
        }
        for c in piece.chars() {
            if c.len_utf8() < 4 {
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                let [top, middle, bottom] = [*unit >> 12, *unit >> 6, *unit].map(|bits| bits as u8);
                out.extend_from_slice(&[0xe0 | top, 0x80 | (middle & 0x3f), 0x80 | (bottom & 0x3f)]);
            }
        }
        if behind.is_empty() {
            return;
        }
        rest = behind;
    }
}

/// Writes a chunk of bytes, at most 65535; [`end_chunks`] ends the chunks.
pub fn write_chunk(data: &[u8], out: &mut Vec<u8>) {
    debug_assert!(data.len() <= usize::from(u16::MAX), "more than a chunk holds");
    let [high, low] = (data.len() as u16).to_be_bytes();
    out.extend_from_slice(&[b'A', high, low]);
    out.extend_from_slice(data);
}

/// Writes the end of chunked bytes.
pub fn end_chunks(out: &mut Vec<u8>) {
    out.extend_from_slice(b"B\0\0");
}

/// Writes the beginning of a map; its keys and values follow.
pub fn begin_map(out: &mut Vec<u8>) {
    out.push(b'H');
}

/// Writes the end of a map.
pub fn end_map(out: &mut Vec<u8>) {
    out.push(b'Z');
}

impl Value {
    /// Writes the value. An object is written as a map of its fields, so that the reader need not know its class.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Value::Null => out.push(b'N'),
            Value::Bool(yes) => out.push(if *yes { b'T' } else { b'F' }),
            Value::Whole(number) => match i32::try_from(*number) {
                Ok(small @ -16..=47) => out.push((0x90 + small) as u8),
                Ok(number) => {
                    out.push(b'I');
                    out.extend_from_slice(&number.to_be_bytes());
                }
                Err(_) => {
                    out.push(b'L');
                    out.extend_from_slice(&number.to_be_bytes());
                }
            },
            Value::Double(number) => {
                out.push(b'D');
                out.extend_from_slice(&number.to_bits().to_be_bytes());
            }
            Value::Date(ms) => {
                out.push(0x4a);
                out.extend_from_slice(&ms.to_be_bytes());
            }
            Value::Text(text) => write_text(text, out),
            Value::Bytes(bytes) => {
                bytes.chunks(usize::from(u16::MAX)).for_each(|piece| write_chunk(piece, out));
                end_chunks(out);
            }
            Value::List(values) => {
                out.push(0x58);
                Value::Whole(values.len() as i64).write(out);
                values.iter().for_each(|value| value.write(out));
            }
            Value::Map(pairs) => {
                begin_map(out);
                for (key, value) in pairs {
                    key.write(out);
                    value.write(out);
                }
                end_map(out);
            }
            Value::Object(class, values) => {
                begin_map(out);
                for (name, value) in class.fields.iter().zip(values) {
                    write_text(name, out);
                    value.write(out);
                }
                end_map(out);
            }
            Value::Reference(number) => {
                out.push(b'Q');
                Value::Whole(*number).write(out);
            }
        }
    }
}
