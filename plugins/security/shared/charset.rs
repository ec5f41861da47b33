//! The charset of a body.

/// Whether a content type names no other charset than UTF-8, in which the same bytes would be another text to the
/// node: `charset=utf-7`, `charset=ibm037`.
pub(crate) fn is_utf8(media_type: &[u8]) -> bool {
    let mut parameters = media_type.split(|b| *b == b';').skip(1).filter_map(|parameter| {
        let at = parameter.iter().position(|b| *b == b'=')?;
        Some((parameter[..at].trim_ascii(), parameter[at + 1..].trim_ascii()))
    });
    parameters.all(|(name, value)| {
        let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        let is_known =
            [&b"utf-8"[..], b"utf8", b"us-ascii"].iter().any(|known| value.eq_ignore_ascii_case(known));
        !name.eq_ignore_ascii_case(b"charset") || is_known
    })
}
