//! What must hold of messages, whatever a browser brings.

use std::sync::LazyLock;

use super::assertion::{Answer, Expected};
use super::binding;
use super::canonical::Canonical;
use super::document;
use super::keys::ProviderKeys;

const CERTIFICATE: &str = include_str!("tests/fixtures/rsa.pem");
const SIGNED: &str = include_str!("tests/fixtures/assertion.xml");

static KEYS: LazyLock<ProviderKeys> = LazyLock::new(|| match ProviderKeys::of_pem(CERTIFICATE) {
    Ok(keys) => keys,
    Err(fault) => panic!("{fault}"),
});

/// Most bytes of a message.
const LIMIT: usize = 1 << 16;

/// A document, or the query or the body with one: it is read or refused; what is read of it has one canonical text,
/// which reads the same; and nobody else has logged in than who the provider says.
pub fn saml(input: &[u8]) {
    if let Ok(message) = binding::of_query(input, &KEYS, LIMIT) {
        assert!(message.text.len() <= LIMIT && message.is_signed);
    }
    if let Ok(message) = binding::of_form(input, LIMIT) {
        assert!(message.text.len() <= LIMIT && !message.is_signed);
    }
    let Ok(text) = document::text_of(input) else { return };
    let Ok(document) = document::parse(&text) else { return };
    let how = Canonical { without: None, inclusive: &[] };
    if let Ok(canonical) = how.of(document.root_element()) {
        let Ok(again) = std::str::from_utf8(&canonical) else { panic!("a canonical text is UTF-8") };
        // It may be larger than what it was made of.
        if let Ok(again) = document::parse(again) {
            assert_eq!(how.of(again.root_element()).as_ref(), Ok(&canonical));
        }
    }
    let expected = Expected {
        audience: "https://shop.test/",
        issuer: None,
        recipient: "https://shop.test/acs",
        request: "_q1",
        now: 1_795_435_230,
    };
    let accepted = Answer::read(&document, false, &KEYS).and_then(|answer| answer.accept(&expected));
    if let Ok(accepted) = accepted {
        assert_eq!(accepted.user.name.text, "jack & Jill>");
        assert!(SIGNED.contains(&accepted.id));
    }
}
