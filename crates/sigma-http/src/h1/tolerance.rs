//! Deviations from the strict grammar by peers in the field. A setting accepts them, and they are converted at once
//! to an unambiguous form.

/// Accepted deviations from the strict grammar. None by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tolerance {
    /// A `%` in the path of a target without two hexadecimal digits after it; it becomes `%25`.
    pub lone_percent: bool,
    /// Raw UTF-8 in a target; it becomes percent-encoded.
    pub raw_utf8: bool,
    /// A Host field without a value.
    pub empty_host: bool,
    /// Lines in a node's response head that end in LF alone.
    pub bare_lf: bool,
    /// A repeated Content-Length of a node, each time with the same value.
    pub equal_lengths: bool,
}

impl Tolerance {
    /// The strict grammar.
    pub const NONE: Tolerance = Tolerance {
        lone_percent: false,
        raw_utf8: false,
        empty_host: false,
        bare_lf: false,
        equal_lengths: false,
    };

    /// Returns the target in the strict grammar; None if no repair is needed or allowed.
    pub(crate) fn mended_target(self, target: &[u8]) -> Option<Vec<u8>> {
        if !(self.lone_percent || self.raw_utf8) {
            return None;
        }
        let utf8 = self.raw_utf8 && !target.is_ascii() && std::str::from_utf8(target).is_ok();
        let path = memchr::memchr(b'?', target).unwrap_or(target.len());
        let escapes = |at: usize| {
            let digits = target.get(at + 1..at + 3);
            digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        };
        let mut out = Vec::with_capacity(target.len() + 8);
        for (at, byte) in target.iter().enumerate() {
            let lone = self.lone_percent && *byte == b'%' && at < path && !escapes(at);
            if lone || (utf8 && !byte.is_ascii()) {
                const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
                let digit = |value: u8| DIGITS[usize::from(value & 0xf)];
                out.extend_from_slice(&[b'%', digit(byte >> 4), digit(*byte)]);
            } else {
                out.push(*byte);
            }
        }
        (out != target).then_some(out)
    }

    /// Returns the response head at the front of `bytes` in the strict grammar, and its original length; None if it
    /// is incomplete, or needs no repair.
    ///
    /// White space before the colon of a field is removed, and a folded line is joined to the line before it, as RFC
    /// 9112 §5.1 and §5.2 require of a proxy. Lines that end in LF alone are accepted if a setting allows it.
    pub(crate) fn mended_response(self, bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
        self.mended_lines(bytes, 0)
    }

    /// As [`Tolerance::mended_response`], for the trailers of a response.
    pub(crate) fn mended_trailers(self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.mended_lines(bytes, 1).map(|(mended, _)| mended)
    }

    /// Repairs lines; `lines` is the number of lines before them: none, or the status line.
    fn mended_lines(self, bytes: &[u8], mut lines: usize) -> Option<(Vec<u8>, usize)> {
        let (mut out, mut at, mut is_mended) = (Vec::new(), 0, false);
        while let Some(lf) = memchr::memchr(b'\n', &bytes[at..]).map(|i| i + at) {
            let line = &bytes[at..lf];
            let text = match line.strip_suffix(b"\r") {
                Some(text) => text,
                None if self.bare_lf => {
                    is_mended = true;
                    line
                }
                None => return None,
            };
            // The status line is not a field: no line can be folded into it.
            match text {
                [b' ' | b'\t', ..] if lines > 1 => {
                    is_mended = true;
                    out.truncate(trimmed_end(&out[..out.len() - 2]).len());
                    out.push(b' ');
                    out.extend_from_slice(trimmed(text));
                }
                _ if lines > 0 => is_mended |= push_field(text, &mut out),
                _ => out.extend_from_slice(text),
            }
            out.extend_from_slice(b"\r\n");
            (at, lines) = (lf + 1, lines + 1);
            if text.is_empty() {
                return is_mended.then_some((out, at));
            }
        }
        None
    }
}

/// Appends a field line without the white space before its colon. Returns true if there was any.
fn push_field(line: &[u8], out: &mut Vec<u8>) -> bool {
    let colon = memchr::memchr(b':', line).unwrap_or_default();
    let name = trimmed_end(&line[..colon]);
    out.extend_from_slice(name);
    out.extend_from_slice(&line[colon..]);
    name.len() < colon && !name.is_empty()
}

fn trimmed_end(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| !matches!(byte, b' ' | b'\t'));
    &text[..end.map_or(0, |end| end + 1)]
}

fn trimmed(text: &[u8]) -> &[u8] {
    let text = trimmed_end(text);
    let start = text.iter().position(|byte| !matches!(byte, b' ' | b'\t'));
    &text[start.unwrap_or(text.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_repaired_as_far_as_allowed() {
        let all = Tolerance { lone_percent: true, raw_utf8: true, ..Tolerance::NONE };
        let check = |tolerance: Tolerance, target: &[u8], expected: Option<&str>| {
            let mended = tolerance.mended_target(target);
            assert_eq!(mended.as_deref(), expected.map(str::as_bytes), "{}", target.escape_ascii());
        };
        check(Tolerance::NONE, b"/100%", None);
        check(all, b"/a%20b?x=100%", None);
        check(all, b"/100%", Some("/100%25"));
        check(all, b"/%zz%4?%", Some("/%25zz%254?%"));
        check(all, "/ä?ö".as_bytes(), Some("/%C3%A4?%C3%B6"));
        check(all, b"/\xff", None);
        check(Tolerance { lone_percent: true, ..Tolerance::NONE }, "/ä%".as_bytes(), Some("/ä%25"));
    }

    #[test]
    fn responses_are_repaired_once_the_head_is_complete() {
        let lf = Tolerance { bare_lf: true, ..Tolerance::NONE };
        let check = |tolerance: Tolerance, bytes: &[u8], expected: Option<(&[u8], usize)>| {
            let mended = tolerance.mended_response(bytes);
            let mended = mended.as_ref().map(|(head, len)| (&head[..], *len));
            assert_eq!(mended, expected, "{}", bytes.escape_ascii());
        };
        check(lf, b"H 200\nA: b\r\n\nbody\n\n", Some((b"H 200\r\nA: b\r\n\r\n", 13)));
        check(lf, b"H 200\nA: b\n", None);
        check(lf, b"H 200\r\n\r\n", None);
        check(Tolerance::NONE, b"H 200\n\n", None);
        check(Tolerance::NONE, b"H\r\nA : b\r\n\r\nrest", Some((b"H\r\nA: b\r\n\r\n", 12)));
        check(Tolerance::NONE, b"H\r\nA\t \t:b\r\n\r\n", Some((b"H\r\nA:b\r\n\r\n", 13)));
        check(Tolerance::NONE, b"H\r\nA: b \r\n \tc \r\n\r\n", Some((b"H\r\nA: b c\r\n\r\n", 18)));
        check(Tolerance::NONE, b"H\r\nA:\r\n b\r\n\tc\r\n\r\n", Some((b"H\r\nA: b c\r\n\r\n", 17)));
        check(lf, b"H\nA : b\n c\n\n", Some((b"H\r\nA: b c\r\n\r\n", 12)));
        // No repair is needed or allowed.
        check(Tolerance::NONE, b"H\r\nA: b : c\r\n\r\n", None);
        check(Tolerance::NONE, b"H\r\n A: b\r\n\r\n", None);
        check(Tolerance::NONE, b"H\r\n : b\r\n\r\n", None);
        check(Tolerance::NONE, b"H\r\nA : b\r\n", None);
        check(Tolerance::NONE, b"H\r\nA : b\n\r\n", None);
    }
}
