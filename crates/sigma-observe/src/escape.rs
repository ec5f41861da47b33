//! Escaping of log values, in place at the end of the line under construction.
//!
//! Values come from clients: whatever they hold, a line stays one line and a quote ends nothing.
//! Most values need no change, and those cost one scan and no copy.

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Bytes that no log escapes: printable ASCII but for quotes and backslashes.
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 32;
    while byte < 127 {
        plain[byte] = byte != b'"' as usize && byte != b'\\' as usize;
        byte += 1;
    }
    plain
};

fn is_plain(value: &[u8]) -> bool {
    value.iter().all(|&byte| PLAIN[usize::from(byte)])
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
pub(crate) fn text(out: &mut Vec<u8>, from: usize) {
    if is_plain(&out[from..]) {
        return;
    }
    expand(out, from, |byte| match byte {
        b'"' | b'\\' | 0..=31 | 127..=255 => {
            Some(Escaped::of(&[b'\\', b'x', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]))
        }
        _ => None,
    });
}

/// Escapes `out[from..]` as the inside of a JSON string (RFC 8259 §7); bytes that are not UTF-8 become U+FFFD.
pub(crate) fn json(out: &mut Vec<u8>, from: usize) {
    if is_plain(&out[from..]) {
        return;
    }
    if std::str::from_utf8(&out[from..]).is_err() {
        let lossy = String::from_utf8_lossy(&out[from..]).into_owned();
        out.truncate(from);
        out.extend_from_slice(lossy.as_bytes());
    }
    expand(out, from, |byte| match byte {
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

/// Replaces bytes of `out[from..]` by their escapes, from the end so that one buffer suffices.
fn expand(out: &mut Vec<u8>, from: usize, escape: impl Fn(u8) -> Option<Escaped>) {
    let added: usize = out[from..].iter().filter_map(|&byte| escape(byte)).map(|e| e.len - 1).sum();
    if added == 0 {
        return;
    }
    let mut read = out.len();
    let mut write = read + added;
    out.resize(write, 0);
    while read > from {
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

    fn check(escape: fn(&mut Vec<u8>, usize), input: &[u8], expected: &str) {
        let mut out = b"\"kept\" ".to_vec();
        let from = out.len();
        out.extend_from_slice(input);
        escape(&mut out, from);
        assert_eq!(String::from_utf8_lossy(&out), format!("\"kept\" {expected}"), "{input:?}");
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
