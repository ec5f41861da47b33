//! Forms that strict parsing refuses, and that some peers in the field send: taken only where a setting says
//! so, and turned at once into what nobody behind can misread.

/// Forms that are taken beyond the strict grammar. None by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tolerance {
    /// A `%` in the path of a target that no two hexadecimal digits follow; it becomes `%25`.
    pub lone_percent: bool,
    /// UTF-8 in a target as it is; it becomes percent-encoded.
    pub raw_utf8: bool,
    /// A Host field without a value.
    pub empty_host: bool,
    /// Lines in the head of a node's answer that end in LF alone.
    pub bare_lf: bool,
    /// A node's Content-Length that is said several times, each time the same.
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

    /// The target as the strict grammar has it; None if there is nothing to mend, or nothing that
    /// may be.
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

    /// The head at the front of `bytes` with CRLF at the end of every line, and how many of `bytes`
    /// it is; None if it is not whole, or needs no mending.
    pub(crate) fn mended_lines(self, bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
        if !self.bare_lf {
            return None;
        }
        let (mut out, mut at, mut bare) = (Vec::new(), 0, false);
        while let Some(lf) = memchr::memchr(b'\n', &bytes[at..]).map(|i| i + at) {
            let line = &bytes[at..lf];
            bare |= !line.ends_with(b"\r");
            let text = line.strip_suffix(b"\r").unwrap_or(line);
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
            at = lf + 1;
            if text.is_empty() {
                return bare.then_some((out, at));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_mended_as_far_as_it_is_allowed() {
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
    fn lines_are_mended_once_the_head_is_whole() {
        let lf = Tolerance { bare_lf: true, ..Tolerance::NONE };
        let check = |tolerance: Tolerance, bytes: &[u8], expected: Option<(&[u8], usize)>| {
            let mended = tolerance.mended_lines(bytes);
            let mended = mended.as_ref().map(|(head, len)| (&head[..], *len));
            assert_eq!(mended, expected, "{}", bytes.escape_ascii());
        };
        check(lf, b"H 200\nA: b\r\n\nbody\n\n", Some((b"H 200\r\nA: b\r\n\r\n", 13)));
        check(lf, b"H 200\nA: b\n", None);
        check(lf, b"H 200\r\n\r\n", None);
        check(Tolerance::NONE, b"H 200\n\n", None);
    }
}
