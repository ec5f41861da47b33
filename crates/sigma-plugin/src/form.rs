//! Forms and query strings: `a=1&b=%20`.

use std::borrow::Cow;

/// Returns the pairs of a query string or form, percent-decoded; None for a name without `=`.
pub fn pairs(query: &[u8]) -> impl Iterator<Item = (Cow<'_, [u8]>, Option<Cow<'_, [u8]>>)> {
    query.split(|b| *b == b'&').filter(|pair| !pair.is_empty()).map(|pair| {
        match pair.iter().position(|b| *b == b'=') {
            Some(at) => (percent_decoded(&pair[..at]), Some(percent_decoded(&pair[at + 1..]))),
            None => (percent_decoded(pair), None),
        }
    })
}

/// Decodes a form component: `+` is a space; an invalid escape stays unchanged.
pub fn percent_decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|b| matches!(b, b'%' | b'+')) {
        return Cow::Borrowed(text);
    }
    let hex = |b: Option<&u8>| b.and_then(|b| (*b as char).to_digit(16));
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match (text[at], hex(text.get(at + 1)), hex(text.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 2;
            }
            (b'+', ..) => out.push(b' '),
            (byte, ..) => out.push(byte),
        }
        at += 1;
    }
    Cow::Owned(out)
}
