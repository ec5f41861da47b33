//! Properties of certificates, revocation lists and ClientHellos with any content: a function for each target in
//! `fuzz/`, which panics on a violation.

use super::certificate::{dns_names, fingerprint, issuer, renewal_identity, serial, subject, uris, validity};
use super::{CertificateDer, Crl, der, ja4};

/// A certificate: its facts are valid or absent, and their text stays within a line.
pub fn certificate(input: &[u8]) {
    if let Some((tag, content, rest)) = der::element(input) {
        // The encoding is unique.
        let length = content.len().to_be_bytes();
        let digits = &length[length.iter().take_while(|digit| **digit == 0).count()..];
        let written = match content.len() {
            short @ 0..0x80 => vec![tag, short as u8],
            _ => [&[tag, 0x80 | digits.len() as u8], digits].concat(),
        };
        assert_eq!([&written, content, rest].concat(), input);
    }
    let der = CertificateDer::from(input);
    for text in [subject(&der), issuer(&der), serial(&der)].into_iter().flatten() {
        assert!(text.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{text:?}");
    }
    if let Some(validity) = validity(&der) {
        let years_0_to_9999 = -62_167_219_200..=253_402_300_799;
        assert!(
            years_0_to_9999.contains(&validity.not_before) && years_0_to_9999.contains(&validity.not_after)
        );
    }
    let _ = (renewal_identity(&der), dns_names(&der), uris(&der));
    assert_eq!(fingerprint(&der).len(), 40);
}

/// Input: two bytes of length, a list of revoked certificates, and the authority that made it.
pub fn revocation_list(input: &[u8]) {
    let Some((&length, rest)) = input.split_first_chunk::<2>() else { return };
    let length = usize::from(u16::from_be_bytes(length));
    let (list, authority) = rest.split_at(length.min(rest.len()));
    let authority = CertificateDer::from(authority);
    let unsigned = Crl::parse(list, &[]);
    if let Ok(signed) = Crl::parse(list, std::slice::from_ref(&authority)) {
        let Ok(unsigned) = unsigned else { panic!("a list needs no authority to be one") };
        assert_eq!(signed.len(), unsigned.len());
        assert!(signed.iter().zip(&unsigned).all(|(a, b)| a.is_same(b) && a.is_of_the_same(b)));
    }
}

/// The first records of a client: the fingerprint has its form, and does not depend on the division into records.
pub fn client_hello(input: &[u8]) {
    let Some(shown) = ja4::fingerprint(input) else { return };
    let is_ja4 = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    assert!(shown.len() == 36 && shown.bytes().all(is_ja4), "{shown}");
    let Some(body) = ja4::handshake(input) else { panic!("there is a fingerprint of nothing") };
    let message = [&[1], &(body.len() as u32).to_be_bytes()[1..], &body].concat();
    let records: Vec<u8> = message.iter().flat_map(|byte| [22, 3, 1, 0, 1, *byte]).collect();
    assert_eq!(ja4::fingerprint(&records), Some(shown));
}

#[cfg(test)]
mod tests {
    use sigma_testkit::for_inputs_of as check;

    #[test]
    fn it_holds_for_the_seeds() {
        check("certificate", super::certificate);
        check("client_hello", super::client_hello);
        check("revocation_list", super::revocation_list);
    }
}
