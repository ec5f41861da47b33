//! Replacement texts: `$0`, `$1`, `${1}` are captures, `$$` is a dollar sign.

use pcre2::bytes::CaptureLocations;

enum Part {
    Text(Vec<u8>),
    Group(usize),
}

/// A replacement, ready for use.
pub(super) struct Template(Vec<Part>);

impl Template {
    /// Reads a replacement; None if a `$` has no meaning.
    pub(super) fn parse(text: &[u8]) -> Option<Template> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(place) = memchr::memchr(b'$', rest) {
            if place > 0 {
                parts.push(Part::Text(rest[..place].to_vec()));
            }
            let after = &rest[place + 1..];
            if let Some(more) = after.strip_prefix(b"$") {
                parts.push(Part::Text(b"$".to_vec()));
                rest = more;
                continue;
            }
            let inner = after.strip_prefix(b"{");
            let digits = inner.unwrap_or(after);
            let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let number = std::str::from_utf8(&digits[..length]).ok()?.parse().ok()?;
            parts.push(Part::Group(number));
            rest = &digits[length..];
            if inner.is_some() {
                rest = rest.strip_prefix(b"}")?;
            }
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_vec()));
        }
        Some(Template(parts))
    }

    /// Appends the replacement of one match.
    pub(super) fn write(&self, captures: &CaptureLocations, subject: &[u8], result: &mut Vec<u8>) {
        for part in &self.0 {
            match part {
                Part::Text(text) => result.extend_from_slice(text),
                // Groups that do not exist or have no match are empty.
                Part::Group(group) => {
                    let (from, to) = captures.get(*group).unwrap_or_default();
                    result.extend_from_slice(&subject[from..to]);
                }
            }
        }
    }
}
