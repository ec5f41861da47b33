//! The fields of a certificate as text for logs and headers.

use std::fmt::Write;

use aws_lc_rs::digest;
use webpki::EndEntityCert;

use super::CertificateDer;
use super::der::{
    BOOLEAN, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, SET, after_optional, element, element_of,
    time,
};

/// Names of attribute types, by their encoded object identifiers (RFC 4519; OpenSSL's names).
const ATTRIBUTES: &[(&[u8], &str)] = &[
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 4], "SN"),
    (&[0x55, 4, 5], "serialNumber"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 9], "street"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x55, 4, 12], "title"),
    (&[0x55, 4, 42], "GN"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1], "emailAddress"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1], "UID"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
];

/// Returns the subject's distinguished name (RFC 2253), such as `CN=client,O=Example`; `None` if the certificate is
/// malformed.
pub fn subject(certificate: &CertificateDer<'_>) -> Option<String> {
    name(EndEntityCert::try_from(certificate).ok()?.subject())
}

/// Returns the issuer's distinguished name, in the form of [`subject`].
pub fn issuer(certificate: &CertificateDer<'_>) -> Option<String> {
    name(EndEntityCert::try_from(certificate).ok()?.issuer())
}

/// Returns the serial number in upper-case hexadecimal digits.
pub fn serial(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let digits = certificate.serial();
    // A leading zero only keeps the number positive.
    let digits = if let [0, rest @ ..] = digits
        && !rest.is_empty()
    {
        rest
    } else {
        digits
    };
    Some(hex(digits, Case::Upper))
}

/// Returns the encoded serial number and the key identifier of the issuer, which identify the certificate to its
/// authority (RFC 9773 §4.1). `None` without a key identifier, or if it is malformed.
pub fn renewal_identity(certificate: &CertificateDer<'_>) -> Option<(Vec<u8>, Vec<u8>)> {
    const AUTHORITY_KEY_IDENTIFIER: &[u8] = &[0x55, 0x1d, 35];
    const KEY_IDENTIFIER: u8 = 0x80;
    let serial = EndEntityCert::try_from(certificate).ok()?.serial().to_vec();
    let (value, _) = element_of(extension(certificate, AUTHORITY_KEY_IDENTIFIER)?, SEQUENCE)?;
    Some((serial, element_of(value, KEY_IDENTIFIER)?.0.to_vec()))
}

/// Returns the value of the extension with an encoded object identifier.
pub(super) fn extension<'a>(certificate: &'a CertificateDer<'_>, kind: &[u8]) -> Option<&'a [u8]> {
    const EXTENSIONS: u8 = 0xa3;
    let (body, _) = element_of(certificate, SEQUENCE)?;
    let (mut fields, _) = element_of(body, SEQUENCE)?;
    let extensions = loop {
        let (tag, content, rest) = element(fields)?;
        if tag == EXTENSIONS {
            break content;
        }
        fields = rest;
    };
    let (mut extensions, _) = element_of(extensions, SEQUENCE)?;
    loop {
        let (extension, rest) = element_of(extensions, SEQUENCE)?;
        let (own, value) = element_of(extension, OBJECT_IDENTIFIER)?;
        if own == kind {
            // The critical flag may precede its value.
            return element_of(after_optional(value, BOOLEAN), OCTET_STRING).map(|(value, _)| value);
        }
        extensions = rest;
    }
}

/// Returns the first HTTP address of the authority's OCSP responder in a certificate (RFC 6960 §3.1).
pub(super) fn responder(certificate: &CertificateDer<'_>) -> Option<String> {
    const AUTHORITY_INFORMATION: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 1];
    const OCSP: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 48, 1];
    const URI: u8 = 0x86;
    let (mut list, _) = element_of(extension(certificate, AUTHORITY_INFORMATION)?, SEQUENCE)?;
    loop {
        let (description, rest) = element_of(list, SEQUENCE)?;
        let (method, location) = element_of(description, OBJECT_IDENTIFIER)?;
        let uri = element_of(location, URI).and_then(|(uri, _)| std::str::from_utf8(uri).ok());
        let is_http = |uri: &&str| uri.starts_with("http://") || uri.starts_with("https://");
        if let Some(uri) = uri.filter(|_| method == OCSP).filter(is_http) {
            return Some(uri.to_owned());
        }
        list = rest;
    }
}

/// Returns the SHA-1 digest of the certificate in lower-case hexadecimal digits; by custom, and unfit against
/// certificates made by an attacker.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    hex(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, certificate).as_ref(), Case::Lower)
}

/// The validity of a certificate in Unix seconds, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Its first second.
    pub not_before: i64,
    /// Its last second.
    pub not_after: i64,
}

/// Returns the validity of a certificate; `None` if it is malformed.
pub fn validity(certificate: &CertificateDer<'_>) -> Option<Validity> {
    /// The tag of a version, which the first version omits.
    const VERSION: u8 = 0xa0;
    let (certificate, _) = element_of(certificate, SEQUENCE)?;
    let (fields, _) = element_of(certificate, SEQUENCE)?;
    let (_serial, fields) = element_of(after_optional(fields, VERSION), INTEGER)?;
    let (_signature, fields) = element_of(fields, SEQUENCE)?;
    let (_issuer, fields) = element_of(fields, SEQUENCE)?;
    let (validity, _) = element_of(fields, SEQUENCE)?;
    let (not_before, rest) = time(validity)?;
    let (not_after, rest) = time(rest)?;
    rest.is_empty().then_some(Validity { not_before, not_after })
}

/// Returns the DNS names in a certificate, including wildcards.
pub fn dns_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let certificate = EndEntityCert::try_from(certificate).ok();
    certificate.iter().flat_map(|certificate| certificate.valid_dns_names().map(str::to_owned)).collect()
}

/// Returns the URIs in a certificate, such as a SPIFFE id, with any characters.
pub fn uris(certificate: &CertificateDer<'_>) -> Vec<String> {
    let certificate = EndEntityCert::try_from(certificate).ok();
    certificate.iter().flat_map(|certificate| certificate.valid_uri_names().map(str::to_owned)).collect()
}

#[derive(Clone, Copy)]
enum Case {
    Lower,
    Upper,
}

fn hex(bytes: &[u8], case: Case) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = match case {
            Case::Lower => write!(text, "{byte:02x}"),
            Case::Upper => write!(text, "{byte:02X}"),
        };
        text
    })
}

const BMP_STRING: u8 = 0x1e;
/// UTF8String, NumericString, PrintableString, TeletexString, IA5String and VisibleString.
const BYTE_STRINGS: &[u8] = &[0x0c, 0x12, 0x13, 0x14, 0x16, 0x1a];

/// Formats a Name, without its outermost tag: the most specific part first.
fn name(mut der: &[u8]) -> Option<String> {
    let mut parts = Vec::new();
    while !der.is_empty() {
        let (mut set, rest) = element_of(der, SET)?;
        let mut part = String::new();
        while !set.is_empty() {
            let (attribute, next) = element_of(set, SEQUENCE)?;
            let (kind, value) = element_of(attribute, OBJECT_IDENTIFIER)?;
            if !part.is_empty() {
                part.push('+');
            }
            append(&mut part, kind, value)?;
            set = next;
        }
        parts.push(part);
        der = rest;
    }
    parts.reverse();
    Some(parts.join(","))
}

/// Appends `type=value`.
fn append(out: &mut String, kind: &[u8], value: &[u8]) -> Option<()> {
    let (tag, content, _) = element(value)?;
    let named = ATTRIBUTES.iter().find(|(id, _)| *id == kind).map(|(_, name)| *name);
    out.push_str(&named.map_or_else(|| dotted(kind), str::to_owned));
    out.push('=');
    if named.is_some() && BYTE_STRINGS.contains(&tag) {
        escape(out, content);
    } else if named.is_some() && tag == BMP_STRING {
        let units = content.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
        let text: String =
            char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
        escape(out, text.as_bytes());
    } else {
        out.push('#');
        out.push_str(&hex(value, Case::Upper));
    }
    Some(())
}

/// Formats an object identifier as numbers.
fn dotted(kind: &[u8]) -> String {
    let mut text = String::new();
    let mut number = 0u64;
    for byte in kind {
        number = number.wrapping_shl(7) | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            let _ = if text.is_empty() {
                let first = (number / 40).min(2);
                write!(text, "{first}.{}", number - 40 * first)
            } else {
                write!(text, ".{number}")
            };
            number = 0;
        }
    }
    text
}

/// Escapes as in RFC 2253 §2.4, and everything beyond printable ASCII, so that a value can end neither its header nor
/// its log line.
fn escape(out: &mut String, value: &[u8]) {
    for (at, &byte) in value.iter().enumerate() {
        let is_edge = at == 0 || at + 1 == value.len();
        let _ = match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => write!(out, "\\{}", char::from(byte)),
            b'#' if at == 0 => out.write_str("\\#"),
            b' ' if is_edge => out.write_str("\\ "),
            0x20..0x7f => out.write_char(char::from(byte)),
            _ => write!(out, "\\{byte:02X}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SerialNumber};

    use super::*;

    #[test]
    fn two_numbers_identify_a_certificate_to_its_authority() {
        let key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::default();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        authority.key_identifier_method = rcgen::KeyIdMethod::PreSpecified(vec![1, 2, 3]);
        let issuer = rcgen::Issuer::new(authority, key);
        let issued = |names: bool| {
            let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
            params.use_authority_key_identifier_extension = names;
            // A number whose first bit is set has a zero before it.
            params.serial_number = Some(SerialNumber::from_slice(&[0x87, 0x65]));
            params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap()
        };
        let found = renewal_identity(issued(true).der());
        assert_eq!(found, Some((vec![0, 0x87, 0x65], vec![1, 2, 3])));
        assert_eq!(renewal_identity(issued(false).der()), None);
        let whole = issued(true);
        for cut in 0..whole.der().len() {
            let damaged = CertificateDer::from(&whole.der()[..cut]);
            assert_eq!(renewal_identity(&damaged), None, "{cut}");
        }
    }

    #[test]
    fn names_and_numbers_are_shown_as_openssl_does() {
        let check = |parts: &[(DnType, DnValue)], serial_bytes: &[u8], name: &str, number: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name = rcgen::DistinguishedName::new();
            for (kind, value) in parts {
                params.distinguished_name.push(kind.clone(), value.clone());
            }
            params.serial_number = Some(SerialNumber::from_slice(serial_bytes));
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            let der = certificate.der();
            assert_eq!(subject(der).as_deref(), Some(name));
            assert_eq!(issuer(der).as_deref(), Some(name));
            assert_eq!(serial(der).as_deref(), Some(number));
            assert_eq!(fingerprint(der).len(), 40);
        };
        let text = |text: &str| DnValue::Utf8String(text.to_owned());
        check(
            &[(DnType::CountryName, text("DE")), (DnType::OrganizationName, text("Example"))],
            &[1, 0xab],
            "O=Example,C=DE",
            "01AB",
        );
        let hostile = " a,b+c\"d\\e<f>g;h\r\né ";
        check(
            &[(DnType::CommonName, text(hostile))],
            &[0xff],
            "CN=\\ a\\,b\\+c\\\"d\\\\e\\<f\\>g\\;h\\0D\\0A\\C3\\A9\\ ",
            "FF",
        );
        check(&[(DnType::CommonName, text("#1"))], &[5], "CN=\\#1", "05");
        check(
            &[(DnType::CustomDnType(vec![1, 2, 840, 113_556, 7]), text("x"))],
            &[5],
            "1.2.840.113556.7=#0C0178",
            "05",
        );
        check(&[], &[5], "", "05");
        let bmp = DnValue::BmpString("ä".try_into().unwrap());
        check(&[(DnType::OrganizationalUnitName, bmp)], &[5], "OU=\\C3\\A4", "05");
        assert_eq!(subject(&CertificateDer::from(vec![0x30, 0])), None);
    }

    #[test]
    fn validity_is_read_in_both_forms_of_time() {
        let check = |from: (i32, u8, u8), to: (i32, u8, u8), expected: (i64, i64)| {
            let mut params =
                CertificateParams::new(vec!["a.test".to_owned(), "*.b.test".to_owned()]).unwrap();
            params.not_before = rcgen::date_time_ymd(from.0, from.1, from.2);
            params.not_after = rcgen::date_time_ymd(to.0, to.1, to.2);
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            let found = validity(certificate.der()).unwrap();
            assert_eq!((found.not_before, found.not_after), expected);
            assert_eq!(dns_names(certificate.der()), ["a.test", "*.b.test"]);
            // Truncated or changed input gives a result, never a panic.
            let der = certificate.der().to_vec();
            for at in 0..der.len() {
                assert_eq!(validity(&CertificateDer::from(&der[..at])), None);
                let mut changed = der.clone();
                changed[at] ^= 0x55;
                let _ = validity(&CertificateDer::from(changed));
            }
        };
        check((1975, 1, 1), (2049, 12, 31), (157_766_400, 2_524_521_600));
        check((2024, 2, 29), (9999, 12, 31), (1_709_164_800, 253_402_214_400));
    }

    #[test]
    fn malformed_names_are_rejected() {
        for der in [&[0x31][..], &[0x30, 0], &[0x31, 2, 0x30, 1], &[0x31, 0x83, 0, 0, 0], &[0x31, 2, 0x30, 0]]
        {
            assert_eq!(name(der), None, "{der:?}");
        }
    }
}
