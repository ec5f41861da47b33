//! Escaping of log values, at the end of the current line.
//!
//! Values come from clients: whatever their bytes, a line stays one line and quotes stay balanced. Most values need
//! no change, which costs one scan and no copy.

use crate::line::Line;

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Returns true if no log escapes any byte from `from` on: printable ASCII except quotes and backslashes.
#[inline]
fn is_plain(line: &Line, from: usize) -> bool {
    line.words(from).all(is_plain_word)
}

/// As [`is_plain`], for eight bytes.
fn is_plain_word(word: u64) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // In the difference, the top bit of a byte is set if it borrowed, which means the byte was less. The effect on
    // higher bytes does not matter, as one hit is enough.
    let less = |word: u64, than: u8| word.wrapping_sub(ONES * u64::from(than)) & !word;
    let is = |byte: u8| less(word ^ (ONES * u64::from(byte)), 1);
    (word | less(word, 0x20) | is(b'"') | is(b'\\') | is(0x7f)) & HIGH == 0
}

/// The escaped form of one byte: itself, or up to six bytes.
struct Escaped {
    bytes: [u8; 6],
    len: usize,
}

impl Escaped {
    fn of(text: &[u8]) -> Escaped {
        let mut bytes = [0; 6];
        bytes[..text.len()].copy_from_slice(text);
        Escaped { bytes, len: text.len() }
    }
}

/// Escapes `out[from..]` as nginx does in text logs: `"`, `\` and bytes outside 32..=126 become `\xHH`.
#[inline]
pub(crate) fn text(line: &mut Line, from: usize) {
    if !is_plain(line, from) {
        line.change(from, escape_text);
    }
}

fn escape_text(out: &mut Vec<u8>) {
    expand(out, |byte| match byte {
        b'"' | b'\\' | 0..=31 | 127..=255 => {
            Some(Escaped::of(&[b'\\', b'x', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]))
        }
        _ => None,
    });
}

/// Escapes `out[from..]` as the inside of a JSON string (RFC 8259 §7); bytes that are not UTF-8 become U+FFFD.
#[inline]
pub(crate) fn json(line: &mut Line, from: usize) {
    if !is_plain(line, from) {
        line.change(from, escape_json);
    }
}

fn escape_json(out: &mut Vec<u8>) {
    if std::str::from_utf8(out).is_err() {
        *out = String::from_utf8_lossy(out).into_owned().into_bytes();
    }
    expand(out, |byte| match byte {
        b'"' => Some(Escaped::of(b"\\\"")),
        b'\\' => Some(Escaped::of(b"\\\\")),
        b'\n' => Some(Escaped::of(b"\\n")),
        b'\r' => Some(Escaped::of(b"\\r")),
        b'\t' => Some(Escaped::of(b"\\t")),
        0..=31 => {
            let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
            Some(Escaped::of(&[b'\\', b'u', b'0', b'0', high, low]))
        }
        _ => None,
    });
}

/// Replaces bytes of `out` with their escapes, from the end, so that one buffer is enough.
fn expand(out: &mut Vec<u8>, escape: impl Fn(u8) -> Option<Escaped>) {
    let added: usize = out.iter().filter_map(|&byte| escape(byte)).map(|e| e.len - 1).sum();
    if added == 0 {
        return;
    }
    let mut read = out.len();
    let mut write = read + added;
    out.resize(write, 0);
    while read > 0 {
        read -= 1;
        let byte = out[read];
        match escape(byte) {
            Some(escaped) => {
                write -= escaped.len;
                out[write..write + escaped.len].copy_from_slice(&escaped.bytes[..escaped.len]);
            }
            None => {
                write -= 1;
                out[write] = byte;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Put;

    fn check(escape: fn(&mut Line, usize), input: &[u8], expected: &str) {
        let mut out = Line::default();
        out.put(b"\"kept\" ");
        let from = out.len();
        out.put(input);
        escape(&mut out, from);
        assert_eq!(String::from_utf8_lossy(out.as_bytes()), format!("\"kept\" {expected}"), "{input:?}");
    }

    #[test]
    fn each_byte_of_a_word_is_checked() {
        for byte in 0..=255 {
            for at in 0..9 {
                let mut value = *b"plain te~";
                value[at] = byte;
                let expected = matches!(byte, 32..127) && byte != b'"' && byte != b'\\';
                let mut line = Line::default();
                line.put(&value);
                assert_eq!(is_plain(&line, 0), expected, "{byte:#x} at {at}");
            }
        }
    }

    #[test]
    fn text_escapes_as_nginx() {
        let cases: [(&[u8], &str); 7] = [
            (b"", ""),
            (b"plain ~", "plain ~"),
            (b"a\"b", r"a\x22b"),
            (b"\\", r"\x5C"),
            (b"\r\nGET", r"\x0D\x0AGET"),
            (b"\x00\x1f\x7f\xff", r"\x00\x1F\x7F\xFF"),
            ("é".as_bytes(), r"\xC3\xA9"),
        ];
        for (input, expected) in cases {
            check(text, input, expected);
        }
    }

    #[test]
    fn json_escapes_as_rfc_8259() {
        let cases: [(&[u8], &str); 7] = [
            (b"", ""),
            (b"plain \x7f", "plain \u{7f}"),
            (b"a\"b\\c", r#"a\"b\\c"#),
            (b"\r\n\t\x00\x1f", r"\r\n\t\u0000\u001F"),
            ("é\u{2028}".as_bytes(), "é\u{2028}"),
            (b"a\xffb", "a\u{fffd}b"),
            (b"\xc3\"", "\u{fffd}\\\""),
        ];
        for (input, expected) in cases {
            check(json, input, expected);
        }
    }
}
