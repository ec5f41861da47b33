//! A minimal PEM parser that recognises certificates and keys before anything is loaded.

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sigma_schema::civil::Date;

/// Checks that a text contains only certificates, each a DER sequence of its full length.
pub(crate) fn certificates(text: &str) -> Result<(), String> {
    let mut any = false;
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        if !is_sequence(&certificate) {
            return Err("the certificate is damaged".to_owned());
        }
        any = true;
    }
    if any { Ok(()) } else { Err("no certificate in PEM".to_owned()) }
}

/// Checks that a text contains a private key.
pub(crate) fn private_key(text: &str) -> Result<(), String> {
    if is_encrypted(text) {
        return Err("the key is encrypted in OpenSSL's old form".to_owned());
    }
    // The passphrase of an encrypted key is requested when the key is loaded.
    let text = text.replace("ENCRYPTED PRIVATE KEY", "PRIVATE KEY");
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| match error {
        rustls_pki_types::pem::Error::NoItemsFound => "no private key in PEM".to_owned(),
        other => other.to_string(),
    })?;
    if is_sequence(key.secret_der()) { Ok(()) } else { Err("the private key is damaged".to_owned()) }
}

/// Returns whether a text contains a key in OpenSSL's older form of encryption, with headers.
pub(crate) fn is_encrypted(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("Proc-Type:") && line.contains("ENCRYPTED"))
}

/// Returns whether `der` is exactly one sequence (X.690 §8.9).
fn is_sequence(der: &[u8]) -> bool {
    let Some((&0x30, rest)) = der.split_first() else { return false };
    let Some((&first, rest)) = rest.split_first() else { return false };
    if first < 0x80 {
        return rest.len() == usize::from(first);
    }
    let digits = usize::from(first & 0x7f);
    if digits == 0 || digits > 4 || rest.len() < digits {
        return false;
    }
    let (length, content) = rest.split_at(digits);
    content.len() == length.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte))
}

/// Returns the validity of the first certificate in Unix seconds, or None if it cannot be parsed.
pub(crate) fn validity(text: &str) -> Option<(i64, i64)> {
    let certificate = CertificateDer::pem_slice_iter(text.as_bytes()).next()?.ok()?;
    // Certificate → tbsCertificate → [version], serial number, algorithm, issuer, validity.
    let (_, certificate, _) = element(&certificate)?;
    let (_, mut fields, _) = element(certificate)?;
    if fields.first() == Some(&0xa0) {
        fields = element(fields)?.2;
    }
    for _ in 0..3 {
        fields = element(fields)?.2;
    }
    let (_, validity, _) = element(fields)?;
    let (kind, from, rest) = element(validity)?;
    let (other_kind, to, _) = element(rest)?;
    Some((time(kind, from)?, time(other_kind, to)?))
}

/// Returns the first DER element: its tag, its content and the rest.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let digits = usize::from(first & 0x7f);
        if digits == 0 || digits > 4 || rest.len() < digits {
            return None;
        }
        let (written, content) = rest.split_at(digits);
        length = written.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
        rest = content;
    }
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Parses a UTCTime or GeneralizedTime in the only form that certificates may have (RFC 5280 §4.1.2.5).
fn time(tag: u8, text: &[u8]) -> Option<i64> {
    const UTC_TIME: u8 = 0x17;
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = text.split_at_checked(if tag == UTC_TIME { 2 } else { 4 })?;
    let year: i64 = year.parse().ok()?;
    let year = match (tag, year) {
        (UTC_TIME, 50..) => 1900 + year,
        (UTC_TIME, _) => 2000 + year,
        (_, year) => year,
    };
    let number = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
    let days = Date::new(year, number(0)?, number(2)?)?.days_since_1970();
    Some(days * 86_400 + number(4)? * 3600 + number(6)? * 60 + number(8)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_sequences_are_certificates() {
        let check = |body: &str, expected: bool| {
            let text = format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
            assert_eq!(certificates(&text).is_ok(), expected, "{body}");
            let text = text.replace("CERTIFICATE", "PRIVATE KEY");
            assert_eq!(private_key(&text).is_ok(), expected, "{body}");
        };
        check("MAMCAQE=", true);
        check("MAMCAQEA", false);
        check("MIEDAgEB", true);
        check("AAAA", false);
        check("MA", false);
        check("%%%%", false);
        assert_eq!(certificates("text"), Err("no certificate in PEM".to_owned()));
        assert_eq!(private_key("--- text"), Err("no private key in PEM".to_owned()));
    }

    /// The output of OpenSSL's commands with a passphrase.
    #[test]
    fn encrypted_keys_are_named() {
        let check = |text: &str, expected: bool| {
            assert_eq!(is_encrypted(text), expected, "{text}");
            let refused = private_key(text).expect_err(text);
            assert_eq!(refused.contains("encrypted in OpenSSL's old form"), expected, "{text}: {refused}");
        };
        let block =
            |label: &str, body: &str| format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n");
        assert_eq!(private_key(&block("ENCRYPTED PRIVATE KEY", "MAMCAQE=")), Ok(()));
        check(&block("ENCRYPTED PRIVATE KEY", "AAAA"), false);
        for label in ["RSA PRIVATE KEY", "EC PRIVATE KEY", "DSA PRIVATE KEY"] {
            let body = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nMAMCAQE=";
            check(&block(label, body), true);
        }
        check(&block("PRIVATE KEY", "AAAA"), false);
        check(&block("CERTIFICATE", "MAMCAQE="), false);
        check("--- the word ENCRYPTED alone", false);
    }

    #[test]
    fn validity_is_read() {
        let check = |tag: u8, text: &str, expected: Option<i64>| {
            assert_eq!(time(tag, text.as_bytes()), expected, "{text}");
        };
        check(0x17, "700101000000Z", Some(0));
        check(0x17, "240229120001Z", Some(1_709_208_001));
        check(0x17, "491231235959Z", Some(2_524_607_999));
        check(0x18, "20500101000000Z", Some(2_524_608_000));
        check(0x18, "99991231235959Z", Some(253_402_300_799));
        check(0x17, "2402291200", None);
        check(0x17, "", None);
        check(0x18, "ÄÄ", None);
    }
}
