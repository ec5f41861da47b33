//! The certificate chain of a client, in the formats for nodes and logs.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Characters in a line of PEM (RFC 7468 §2).
const PEM_LINE: usize = 64;

/// The length limit of a SPIFFE id (SPIFFE-ID §2.3).
const SPIFFE_MAX: usize = 2_048;

/// The certificates of a client, and the identity of the gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientChain {
    /// The certificates in DER, the client's own first.
    pub certificates: Vec<Box<[u8]>>,
    /// The URI names of the client's own certificate.
    pub uris: Vec<String>,
    /// The DNS names of the client's own certificate.
    pub dns_names: Vec<String>,
    /// The URI names of the gateway's own certificate.
    pub gateway_uris: Vec<String>,
}

impl ClientChain {
    /// Returns the client's own certificate in DER.
    pub fn own(&self) -> &[u8] {
        self.certificates.first().map_or(&[], |own| own)
    }

    /// Returns the client's SPIFFE id, if its certificate has one: its only URI.
    pub fn spiffe_id(&self) -> Option<&str> {
        match &self.uris[..] {
            [only] if is_spiffe_id(only) => Some(only),
            _ => None,
        }
    }
}

/// Returns true if a text is a SPIFFE id: a trust domain, and a path of plain segments.
fn is_spiffe_id(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("spiffe://").filter(|_| text.len() <= SPIFFE_MAX) else {
        return false;
    };
    let mut parts = rest.split('/');
    let is_domain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    let domain = parts.next().unwrap_or_default();
    let is_segment = |segment: &str| {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        !matches!(segment, "" | "." | "..") && segment.bytes().all(is_plain)
    };
    !domain.is_empty() && domain.bytes().all(is_domain) && parts.all(is_segment)
}

/// Encodes a certificate as PEM.
pub fn pem(certificate: &[u8]) -> String {
    let encoded = STANDARD.encode(certificate);
    let mut text = String::with_capacity(encoded.len() + encoded.len() / PEM_LINE + 64);
    text.push_str("-----BEGIN CERTIFICATE-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        // Base64 is ASCII: every index is a character boundary.
        let (line, more) = rest.split_at(rest.len().min(PEM_LINE));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

/// A text in which everything is percent-encoded but what URIs reserve for no purpose (RFC 3986 §2.3).
pub fn escaped(text: &str) -> String {
    percent_encoded(text, |b| b.is_ascii_alphanumeric() || b"-._~".contains(&b))
}

/// A text with all bytes percent-encoded but those that may stay.
pub fn percent_encoded(text: &str, stays: impl Fn(u8) -> bool) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    for byte in text.bytes() {
        if byte.is_ascii() && stays(byte) {
            out.push(char::from(byte));
        } else {
            let digit = |of: u8| char::from(DIGITS[usize::from(of)]);
            out.extend(['%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spiffe_id_is_the_only_uri_and_has_its_form() {
        let check = |uris: &[&str], expected: Option<&str>| {
            let uris = uris.iter().map(|uri| (*uri).to_owned()).collect();
            let chain = ClientChain { uris, ..ClientChain::default() };
            assert_eq!(chain.spiffe_id(), expected);
        };
        let good = "spiffe://example.org/ns/default/sa/web_1";
        check(&[good], Some(good));
        check(&["spiffe://example.org"], Some("spiffe://example.org"));
        check(&[good, "https://example.org"], None);
        check(&[good, good], None);
        check(&[], None);
        for bad in [
            "https://example.org/ns",
            "spiffe://",
            "spiffe:///a",
            "spiffe://Example.org/a",
            "spiffe://example.org/",
            "spiffe://example.org/a//b",
            "spiffe://example.org/a/../b",
            "spiffe://example.org:80/a",
            "spiffe://user@example.org/a",
            "spiffe://example.org/a?b",
            "spiffe://example.org/a,By=spiffe://evil",
            "spiffe://example.org/a;Hash=1",
            "spiffe://example.org/a\r\nX: 1",
            "spiffe://example.org/%61",
        ] {
            check(&[bad], None);
        }
        check(&[&format!("spiffe://example.org/{}", "a".repeat(2_048))], None);
    }

    #[test]
    fn a_certificate_is_escaped_as_in_a_query() {
        let text = pem(&[0xfb; 49]);
        assert!(text.lines().all(|line| line.len() <= 64) && text.ends_with("-----END CERTIFICATE-----\n"));
        let escaped = escaped(&text);
        assert!(escaped.starts_with("-----BEGIN%20CERTIFICATE-----%0A%2B%2Fv7"), "{escaped}");
        assert!(escaped.ends_with("%3D%3D%0A-----END%20CERTIFICATE-----%0A"), "{escaped}");
        assert_eq!(super::escaped("aZ0-._~ %\r\n\"é"), "aZ0-._~%20%25%0D%0A%22%C3%A9");
    }
}
