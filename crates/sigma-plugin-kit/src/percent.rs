//! Percent-encoding of texts that become parts of a URI.

/// Writes the bytes that `is_escaped` names as `%XX`.
pub fn percent_encoded(text: &[u8], is_escaped: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        if is_escaped(byte) {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            out.push(byte);
        }
    }
    out
}

/// Writes decoded text so that it is one part of a query, and the same when it is decoded again.
pub fn encode_component(text: &[u8], out: &mut Vec<u8>) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:@!$'()*,?".contains(&byte);
    out.extend(percent_encoded(text, |byte| !is_plain(byte)));
}
