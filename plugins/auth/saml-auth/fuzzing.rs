//! Invariants of messages, for any input of a browser.

use std::sync::LazyLock;

use super::assertion::{Expected, SamlResponse};
use super::binding;
use super::canonical::Canonical;
use super::document;
use super::keys::{OwnKey, ProviderKeys};

const CERTIFICATE: &str = include_str!("tests/fixtures/rsa.pem");
const KEY: &str = include_str!("tests/fixtures/rsa.key");
const SIGNED: &str = include_str!("tests/fixtures/assertion.xml");

static KEYS: LazyLock<ProviderKeys> = LazyLock::new(|| match ProviderKeys::of_pem(CERTIFICATE) {
    Ok(keys) => keys,
    Err(fault) => panic!("{fault}"),
});

/// Most bytes of a message.
const LIMIT: usize = 1 << 16;

/// A document, or the query or the body with one: it is read or refused; its content has one canonical text,
/// which reads the same; and the user is always the provider's.
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
        // It may be larger than its source.
        if let Ok(again) = document::parse(again) {
            assert_eq!(how.of(again.root_element()).as_ref(), Ok(&canonical));
        }
    }
    let accepted = SamlResponse::read(&document, false, &KEYS).and_then(|answer| answer.accept(&expected()));
    if let Ok(accepted) = accepted {
        assert_eq!(accepted.user.name.text, "jack & Jill>");
        assert!(SIGNED.contains(&accepted.id));
    }
}

fn expected() -> Expected<'static> {
    Expected {
        audience: "https://shop.test/",
        issuer: None,
        recipient: "https://shop.test/acs",
        request: "_q1",
        now: 1_795_435_230,
    }
}

/// Instructions for a document around the signed element, or for one within its signature; the first byte
/// selects. The user is always the signed one.
pub fn saml_signed(input: &[u8]) {
    match input.split_first() {
        Some((0, program)) => around(program),
        Some((place, text)) => within(*place, text),
        None => {}
    }
}

/// A text in three parts, of which the middle one begins and ends so.
fn cut<'t>(text: &'t str, begin: &str, end: &str) -> [&'t str; 3] {
    let from = text.find(begin).unwrap_or_default();
    let to = text.rfind(end).map_or(text.len(), |at| at + end.len());
    [&text[..from], &text[from..to], &text[to..]]
}

/// Pieces of a signed response, and of a forged one, in the order and the depth that the bytes say: forms of signature
/// wrapping (Somorovsky et al., On Breaking SAML, 2012), and whatever else comes of it.
fn around(program: &[u8]) {
    let [head, assertion, tail] = cut(SIGNED, "<saml:Assertion", "</saml:Assertion>");
    let [before, seal, after] = cut(assertion, "<ds:Signature ", "</ds:Signature>");
    let forged = format!("{before}{after}").replace("jack &amp; Jill&gt;", "admin");
    let renamed = forged.replace("ID=\"_a1\"", "ID=\"_evil\"");
    let sealed = forged.replacen("</saml:Issuer>", &format!("</saml:Issuer>{seal}"), 1);
    let inner = [
        assertion,
        &format!("{before}{after}"),
        &forged,
        &renamed,
        &sealed,
        seal,
        "<saml:Issuer>https://idp.test/</saml:Issuer>",
        "<samlp:Status><samlp:StatusCode Value=\"urn:oasis:names:tc:SAML:2.0:status:Success\"/></samlp:Status>",
    ];
    let elements = ["samlp:Extensions", "ds:Object", "saml:Advice", "saml:Assertion", "samlp:Response"];
    let (mut text, mut open) = (head.to_owned(), Vec::new());
    for byte in program.iter().take(24) {
        match usize::from(*byte) {
            number @ 0..8 => text.push_str(inner[number]),
            number @ 8..16 => {
                let name = elements[number % elements.len()];
                text.push_str(&format!(
                    "<{name} xmlns:ds=\"http://www.w3.org/2000/09/xmldsig#\" ID=\"_w{}\">",
                    text.len()
                ));
                open.push(name);
            }
            16..24 => text.extend(open.pop().map(|name| format!("</{name}>"))),
            // Forged, but for its first bytes: a signed element that is cut in two.
            number => text.push_str(assertion.get(..number * 16).unwrap_or_default()),
        }
    }
    text.extend(open.iter().rev().map(|name| format!("</{name}>")));
    text.push_str(tail);
    saml(text.as_bytes());
}

/// A text in one of the places of an assertion, which is signed with it. It is read as the signer has written it.
fn within(place: u8, text: &[u8]) {
    static PROVIDER: LazyLock<(OwnKey, ProviderKeys)> = LazyLock::new(|| {
        let keys = (OwnKey::of_pem(KEY, CERTIFICATE), ProviderKeys::of_pem(CERTIFICATE));
        match keys {
            (Ok(own), Ok(known)) => (own, known),
            (Err(fault), _) | (_, Err(fault)) => panic!("{fault}"),
        }
    });
    let Ok(text) = document::text_of(text) else { return };
    let places = ["NAME", "GROUP", "INDEX", "QUALIFIER", "ELEMENT", "ATTRIBUTE"];
    let mut unsigned = ASSERTED.to_owned();
    for (number, name) in places.iter().enumerate() {
        let is_here = number == usize::from(place) % places.len();
        let other = if *name == "NAME" { "jack" } else { "" };
        unsigned = unsigned.replace(&format!("[{name}]"), if is_here { &text } else { other });
    }
    let Some(signed) = signed(&unsigned, &PROVIDER.0) else { return };
    let Ok(document) = document::parse(&signed) else { return };
    let answer = SamlResponse::read(&document, false, &PROVIDER.1);
    let Ok(accepted) = answer.and_then(|answer| answer.accept(&expected())) else { return };
    let name = &accepted.user.name.text;
    if usize::from(place) % places.len() == 0 {
        assert!(!text.contains('<'), "a name has no elements");
        assert!(text.contains('&') || name.trim() == text.trim(), "{name:?} was signed as {text:?}");
    } else {
        assert_eq!(name, "jack");
    }
}

/// The document with a signature of its assertion; None if it is no document.
fn signed(text: &str, key: &OwnKey) -> Option<String> {
    use aws_lc_rs::digest::{SHA256, digest};
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    let document = document::parse(text).ok()?;
    let is_assertion = |node: &roxmltree::Node<'_, '_>| document::attribute(*node, "ID") == Some("_a1");
    let assertion = document.descendants().find(is_assertion)?;
    let canonical = Canonical { without: None, inclusive: &[] }.of(assertion).ok()?;
    let info = INFO.replace("[DIGEST]", &STANDARD.encode(digest(&SHA256, &canonical)));
    let value = STANDARD.encode(key.sign(info.as_bytes()).ok()?);
    let seal = format!(
        "<ds:Signature xmlns:ds=\"http://www.w3.org/2000/09/xmldsig#\">{info}<ds:SignatureValue>{value}</ds:SignatureValue></ds:Signature>"
    );
    Some(text.replacen("</saml:Issuer>", &format!("</saml:Issuer>{seal}"), 1))
}

/// It is canonical already.
const INFO: &str = "<ds:SignedInfo xmlns:ds=\"http://www.w3.org/2000/09/xmldsig#\">\
    <ds:CanonicalizationMethod Algorithm=\"http://www.w3.org/2001/10/xml-exc-c14n#\"></ds:CanonicalizationMethod>\
    <ds:SignatureMethod Algorithm=\"http://www.w3.org/2001/04/xmldsig-more#rsa-sha512\"></ds:SignatureMethod>\
    <ds:Reference URI=\"#_a1\"><ds:Transforms>\
    <ds:Transform Algorithm=\"http://www.w3.org/2000/09/xmldsig#enveloped-signature\"></ds:Transform>\
    <ds:Transform Algorithm=\"http://www.w3.org/2001/10/xml-exc-c14n#\"></ds:Transform></ds:Transforms>\
    <ds:DigestMethod Algorithm=\"http://www.w3.org/2001/04/xmlenc#sha256\"></ds:DigestMethod>\
    <ds:DigestValue>[DIGEST]</ds:DigestValue></ds:Reference></ds:SignedInfo>";

/// A response whose assertion is to be signed.
const ASSERTED: &str = "<samlp:Response xmlns:samlp=\"urn:oasis:names:tc:SAML:2.0:protocol\" ID=\"_r1\" InResponseTo=\"_q1\" Version=\"2.0\">\
    <samlp:Status><samlp:StatusCode Value=\"urn:oasis:names:tc:SAML:2.0:status:Success\"></samlp:StatusCode></samlp:Status>\
    <saml:Assertion xmlns:saml=\"urn:oasis:names:tc:SAML:2.0:assertion\" ID=\"_a1\" Version=\"2.0\"[ATTRIBUTE]>\
    <saml:Issuer>https://idp.test/</saml:Issuer><saml:Subject><saml:NameID Format=\"[QUALIFIER]\">[NAME]</saml:NameID>\
    <saml:SubjectConfirmation Method=\"urn:oasis:names:tc:SAML:2.0:cm:bearer\"><saml:SubjectConfirmationData \
    NotOnOrAfter=\"2026-11-23T12:05:00Z\" Recipient=\"https://shop.test/acs\" InResponseTo=\"_q1\">\
    </saml:SubjectConfirmationData></saml:SubjectConfirmation></saml:Subject>\
    <saml:Conditions NotBefore=\"2026-11-23T11:59:00Z\" NotOnOrAfter=\"2026-11-23T12:05:00Z\"><saml:AudienceRestriction>\
    <saml:Audience>https://shop.test/</saml:Audience></saml:AudienceRestriction></saml:Conditions>\
    <saml:AuthnStatement SessionIndex=\"[INDEX]\"></saml:AuthnStatement><saml:AttributeStatement>\
    <saml:Attribute Name=\"groups\"><saml:AttributeValue>[GROUP]</saml:AttributeValue></saml:Attribute>\
    </saml:AttributeStatement>[ELEMENT]</saml:Assertion></samlp:Response>";
