//! PEM (RFC 7468), as far as keys need it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Returns the first section of a text that has one of these labels, the preferred label first: its label, and its
/// content.
pub fn section<'l>(text: &str, labels: &[&'l str]) -> Option<(&'l str, Vec<u8>)> {
    labels.iter().find_map(|label| {
        let (_, rest) = text.split_once(&format!("-----BEGIN {label}-----"))?;
        let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
        Some((*label, decoded(body)?))
    })
}

/// Returns the content of all sections with this label. None if one of them is not Base64.
pub fn sections(text: &str, label: &str) -> Option<Vec<Vec<u8>>> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let bodies = text.split(&begin).skip(1);
    bodies.map(|rest| decoded(rest.split_once(&end)?.0)).collect()
}

fn decoded(body: &str) -> Option<Vec<u8>> {
    let body: Vec<u8> = body.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    STANDARD.decode(body).ok()
}
