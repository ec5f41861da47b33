//! Invariants of credentials, for any input of a client.

use serde_json::json;
use sigma_http::Headers;

use super::digest_auth::credentials::DigestCredentials;
use super::hmac_auth::Signed;
use super::jwe_decrypt::{Encrypted, Secret};
pub use crate::saml_auth::fuzzing::{saml, saml_signed};
use crate::shared::message_signatures::base::{Subject, signature_base};
use crate::shared::message_signatures::structured::{Dictionary, Item, Member};
use crate::shared::message_signatures::verify::Rules;
use crate::shared::tokens::{Algorithm, Key, KeySet, MatchingKeys, Token, is_for};

/// The parts of an input, with a zero byte between them.
fn halves(input: &[u8]) -> (&[u8], &[u8]) {
    let at = input.iter().position(|byte| *byte == 0).unwrap_or(input.len());
    (&input[..at], input.get(at + 1..).unwrap_or_default())
}

/// A token, and after a zero byte the keys of its issuer: both are read or refused, and no other key verifies
/// a signature.
pub fn tokens(input: &[u8]) {
    let (text, set) = halves(input);
    let set = KeySet::parse(set.to_vec());
    if let Ok(token) = Token::parse(text.to_vec()) {
        assert_eq!(token.text(), text);
        for (algorithm, secret) in [(Algorithm::Hs256, &[7; 32][..]), (Algorithm::Hs512, &[7; 64])] {
            let Some(key) = Key::secret(algorithm, secret) else { panic!("it has secrets") };
            assert!(key.verify(&token).is_err(), "a token with another key is refused");
        }
        if let Ok(set) = &set
            && let Ok(MatchingKeys::Keys(keys)) = set.find(&token, &Algorithm::PUBLIC)
        {
            assert!(!keys.is_empty());
            for key in keys {
                let _ = key.verify(&token);
            }
        }
        let _ = token.in_time_of_issuer(1.0e9, 120.0);
        let _ = is_for(&token.claims, &["api".to_owned()]);
    }
    if let Ok((_, token)) = Encrypted::parse(text) {
        assert_eq!(Secret([7; 32].into()).open(&token), None, "a token with another key is refused");
    }
}

/// A dictionary, and after a zero byte another: after writing, it reads the same; and no text that is signed
/// has a line that comes from within a value.
pub fn structured_fields(input: &[u8]) {
    let (first, second) = halves(input);
    for text in [first, second] {
        if let Some(dictionary) = Dictionary::parse(text) {
            let written = dictionary.write();
            assert_eq!(Dictionary::parse(written.as_bytes()).as_ref(), Some(&dictionary), "{written}");
        }
        if let Some(item) = Item::parse(text) {
            assert_eq!(Item::parse(item.write().as_bytes()), Some(item));
        }
    }
    let mut headers = Headers::default();
    for (name, value) in [("Signature-Input", first), ("Signature", second)] {
        headers.append(name, value);
    }
    let rules = json!({
        "components": ["@method", "@authority", "@path", "@query"], "require_nonce": false,
        "accept_authorization": false,
    });
    let Ok(rules) = serde_json::from_value::<Rules>(rules) else { panic!("these are rules") };
    let _ = rules.claim(&headers);
    let target = [b"/", second].concat();
    let subject =
        Subject { method: b"GET", scheme: "https", authority: b"a.test", target: &target, headers: &headers };
    for (_, member) in Dictionary::parse(first).unwrap_or_default().0 {
        let Member::List(signed) = member else { continue };
        if let Ok(base) = signature_base(&subject, &signed) {
            let lines = base.split(|byte| *byte == b'\n').count();
            assert_eq!(lines, signed.items.len() + 1, "{}", String::from_utf8_lossy(&base));
        }
    }
}

/// A value of `Authorization`: it is read or refused, and a response of Digest reads the same after writing.
pub fn authorization(input: &[u8]) {
    if let Ok(signed) = Signed::parse(Some(input)) {
        for value in signed.key_id.iter().chain(&signed.signature).chain(&signed.headers) {
            assert!(!value.contains(&b'"'));
        }
    }
    let Ok(answer) = DigestCredentials::parse(input) else { return };
    let parts = [
        ("username", &answer.username),
        ("realm", &answer.realm),
        ("nonce", &answer.nonce),
        ("uri", &answer.uri),
        ("response", &answer.response),
        ("algorithm", &answer.algorithm),
        ("cnonce", &answer.cnonce),
        ("nc", &answer.nc),
    ];
    let mut written = format!("Digest qop={}, userhash={}", answer.qop.name(), answer.is_hashed).into_bytes();
    for (name, value) in parts {
        written.extend_from_slice(format!(", {name}=\"").as_bytes());
        for byte in value {
            if matches!(byte, b'"' | b'\\') {
                written.push(b'\\');
            }
            written.push(*byte);
        }
        written.push(b'"');
    }
    assert_eq!(
        DigestCredentials::parse(&written).as_ref(),
        Ok(&answer),
        "{}",
        String::from_utf8_lossy(&written)
    );
}
