//! As much of PEM as it takes to tell a certificate from something else before anything is loaded.

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Checks that a text holds certificates only, each a DER sequence of its full length.
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

/// Checks that a text holds a private key.
pub(crate) fn private_key(text: &str) -> Result<(), String> {
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| match error {
        rustls_pki_types::pem::Error::NoItemsFound => "no private key in PEM".to_owned(),
        other => other.to_string(),
    })?;
    if is_sequence(key.secret_der()) { Ok(()) } else { Err("the private key is damaged".to_owned()) }
}

/// Whether `der` is one sequence (X.690 §8.9) and nothing else.
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
}
