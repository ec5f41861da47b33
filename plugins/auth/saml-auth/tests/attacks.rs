//! Documents that an attacker has made from signed ones.

use roxmltree::Node;

use super::*;
use crate::saml_auth::signature::verified;

const EVIL: &str = "admin";

/// A text in three parts, of which the middle one begins and ends so.
fn cut<'t>(text: &'t str, begin: &str, end: &str) -> (&'t str, &'t str, &'t str) {
    let from = text.find(begin).unwrap_or_else(|| panic!("no {begin}"));
    let to = from + text[from..].rfind(end).unwrap_or_else(|| panic!("no {end}")) + end.len();
    (&text[..from], &text[from..to], &text[to..])
}

fn signature_of(text: &str) -> &str {
    cut(text, "<ds:Signature ", "</ds:Signature>").1
}

fn without_signature(text: &str) -> String {
    let (before, _, after) = cut(text, "<ds:Signature ", "</ds:Signature>");
    format!("{before}{after}")
}

/// The text that an attacker wants to be read.
fn evil(text: &str) -> String {
    without_signature(text).replace("jack &amp; Jill&gt;", EVIL).replace("ID=\"_a1\"", "ID=\"_evil\"")
}

fn into(text: &str, place: &str, more: &str) -> String {
    assert_eq!(text.matches(place).count(), 1, "{place}");
    text.replacen(place, &format!("{place}{more}"), 1)
}

/// The eight forms of signature wrapping (Somorovsky et al., On Breaking SAML, 2012).
#[test]
fn the_element_that_is_read_is_the_signed_one() {
    let keys = ProviderKeys::of_pem(RSA_CERT).unwrap();
    let (response, after_issuer) =
        (cut(RESPONSE, "<samlp:Response", "</samlp:Response>").1, "</saml:Issuer>");
    let (head, assertion, tail) = cut(ASSERTION, "<saml:Assertion", "</saml:Assertion>");
    let (seal, plain) = (signature_of(ASSERTION), without_signature(assertion));
    let within =
        |signature: &str, more: &str| signature.replace("</ds:Signature>", &format!("{more}</ds:Signature>"));
    let object = |more: &str| format!("<ds:Object>{more}</ds:Object>");
    let fake = |more: &str| evil(assertion).replacen(after_issuer, &format!("{after_issuer}{more}"), 1);
    let around = |more: &str| {
        let fake = evil(response).replace("ID=\"_r1\"", "ID=\"_evilr\"");
        fake.replacen(after_issuer, &format!("{after_issuer}{more}"), 1)
    };
    let signed_response = signature_of(RESPONSE);
    let original = without_signature(response);
    let extensions = |more: &str| format!("<samlp:Extensions>{more}</samlp:Extensions>");
    for (name, text) in [
        ("1", around(&within(signed_response, &original))),
        ("1 in an object", around(&within(signed_response, &object(&original)))),
        ("2", around(&format!("{original}{signed_response}"))),
        ("3", format!("{head}{}{assertion}{tail}", evil(assertion))),
        ("3 behind", format!("{head}{assertion}{}{tail}", evil(assertion))),
        ("4", format!("{head}{}{tail}", fake(assertion))),
        ("5", format!("{head}{}{plain}{tail}", fake(seal))),
        ("6", format!("{head}{}{tail}", fake(&within(seal, &plain)))),
        ("7", format!("{}{assertion}{tail}", into(head, "</samlp:Status>", &extensions(&evil(assertion))))),
        (
            "7 the other way",
            format!("{}{}{tail}", into(head, "</samlp:Status>", &extensions(assertion)), evil(assertion)),
        ),
        ("8", format!("{head}{}{tail}", fake(&within(seal, &object(&plain))))),
        // The same ID twice: to one reader it is the first element, to another the last one.
        ("an ID twice", format!("{head}{}{assertion}{tail}", evil(assertion).replace("_evil", "_a1"))),
        ("another ID", format!("{head}{}{tail}", fake(seal))),
        ("the whole document", format!("{head}{}{tail}", fake(&seal.replace("#_a1", "")))),
        ("a pointer", format!("{head}{}{tail}", fake(&seal.replace("#_a1", "#xpointer(id('_a1'))")))),
    ] {
        assert!(document::parse(&text).is_ok() || name == "an ID twice", "{name} is not a document");
        assert!(text.contains(EVIL), "{name}");
        let accepted = accept(&text, RSA_CERT, &expected());
        assert!(accepted.is_err(), "{name}: {accepted:?}");
        // And by itself, without the rest of the document.
        let Ok(document) = document::parse(&text) else { continue };
        let is_verified = |node: &Node<'_, '_>| matches!(verified(*node, &keys), Ok(Some(_)));
        for element in document.descendants().filter(Node::is_element).filter(is_verified) {
            assert!(
                !document.input_text()[element.range()].contains(EVIL),
                "{name}: {:?}",
                element.tag_name()
            );
        }
    }
}

#[test]
fn changed_documents_are_refused() {
    let check = |from: &str, to: &str, expected: &str| {
        let text = ASSERTION.replacen(from, to, 1);
        assert_ne!(text, ASSERTION, "{from}");
        assert_eq!(refused(&text), (400, expected), "{to}");
    };
    let changed = "the signed element was changed";
    check("jack &amp; Jill", "admin", changed);
    check("staff", "admins", changed);
    check("SessionIndex=\"_s1\"", "SessionIndex=\"_s2\"", changed);
    check("saml:Audience>https://shop", "saml:Audience>https://bank", changed);
    check("<saml:Subject>", "<saml:Subject> ", changed);
    check(
        "xmlns:saml=\"urn:oasis:names:tc:SAML:2.0:assertion\"",
        "xmlns:saml=\"urn:other\"",
        "a signature is not a child of the message or its assertion",
    );
    // A comment in a name cuts it off to some readers.
    let hidden = "the message has declarations, comments, CDATA or instructions";
    check("jack &amp; Jill", "jack<!-- -->&amp; Jill", hidden);
    check("staff", "<![CDATA[staff]]>", hidden);
    check("<samlp:Response", "<!DOCTYPE a [<!ENTITY b \"admin\">]><samlp:Response", hidden);
    check("staff", "&b;", "the message is not XML");
    // The part of a signature that names its element and its form.
    let form = "the signature is not in the form that SAML requires";
    let reference = cut(ASSERTION, "<ds:Reference", "</ds:Reference>").1;
    check("</ds:Reference>", &format!("</ds:Reference>{reference}"), form);
    check(
        "</ds:Transforms>",
        "<ds:Transform Algorithm=\"http://www.w3.org/TR/1999/REC-xslt-19991116\"/></ds:Transforms>",
        form,
    );
    check("#enveloped-signature", "#base64", form);
    check("<ds:SignedInfo>", "<ds:SignedInfo><ds:Object/>", form);
    check("<ds:SignatureValue>", "<ds:SignatureValue>!", form);
    check(
        "<ds:SignatureMethod Algorithm=\"http://www.w3.org/2001/04/xmldsig-more#rsa-sha256\"/>",
        "<ds:SignatureMethod Algorithm=\"http://www.w3.org/2001/04/xmldsig-more#rsa-sha256\"><ds:HMACOutputLength>1</ds:HMACOutputLength></ds:SignatureMethod>",
        form,
    );
    let other = "the canonicalization method is not supported";
    check("xml-exc-c14n#\"", "xml-exc-c14n#WithComments\"", other);
    check(
        "http://www.w3.org/2001/10/xml-exc-c14n#",
        "http://www.w3.org/TR/2001/REC-xml-c14n-20010315",
        other,
    );
    check("#_a1", "#_r1", "the signature belongs to another element than its parent");
    check("ID=\"_a1\"", "Id=\"_a1\"", "the signed element has no ID");
    let twice = format!("{}<saml:Subject>", signature_of(ASSERTION));
    check("<saml:Subject>", &twice, "an element of the message has two signatures");
    check(
        "<samlp:Status>",
        &format!("<x>{}</x><samlp:Status>", signature_of(ASSERTION)),
        "a signature is not a child of the message or its assertion",
    );
}

#[test]
fn only_the_configured_key_counts() {
    // The document brings the certificate of its key along.
    let other = include_str!("fixtures/other-key.xml");
    assert!(other.contains("<ds:X509Certificate>") && accept(other, SP_CERT, &expected()).is_ok());
    assert_eq!(refused(other), (400, "the signature is invalid"));
    let algorithm = "the signature algorithm is not supported, or does not match the key";
    for name in [
        "http://www.w3.org/2000/09/xmldsig#rsa-sha1",
        "http://www.w3.org/2000/09/xmldsig#hmac-sha1",
        "http://www.w3.org/2001/04/xmldsig-more#hmac-sha256",
        "http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha256",
        "none",
        "",
    ] {
        let text = ASSERTION.replace("http://www.w3.org/2001/04/xmldsig-more#rsa-sha256", name);
        assert_eq!(refused(&text), (400, algorithm), "{name}");
    }
    let ec = include_str!("fixtures/ecdsa-sha256.xml");
    assert_eq!(refused(ec), (400, algorithm));
    // Of the digest the key says nothing.
    let own = Provider::new(RSA_KEY, RSA_CERT);
    let weak = own.signed(&answer("_q1"), "_a1", "http://www.w3.org/2000/09/xmldsig#sha1");
    assert_eq!(refused(&weak), (400, "the digest algorithm is not supported"));
}

#[test]
fn something_is_signed() {
    assert_eq!(
        refused(&without_signature(ASSERTION)),
        (400, "the response and its assertion are not signed")
    );
    // A signature of the response does not become one of another response.
    let other = RESPONSE.replacen("_r1", "_r2", 1);
    assert_eq!(refused(&other), (400, "the signature belongs to another element than its parent"));
    let bare = ASSERTION
        .replacen("<samlp:Response", "<samlp:LogoutResponse", 1)
        .replace("</samlp:Response", "</samlp:LogoutResponse");
    assert_eq!(refused(&bare), (400, "the message is not a SAML 2.0 response"));
    let (head, _, tail) = cut(RESPONSE, "<saml:Assertion", "</saml:Assertion>");
    assert_eq!(refused(&format!("{head}{tail}")), (400, "the signed element was changed"));
    let encrypted = ASSERTION.replacen("<saml:Assertion ", "<saml:EncryptedAssertion/><saml:Assertion ", 1);
    assert!(refused(&encrypted).1.starts_with("the assertion is encrypted"));
    // An unsigned part can refuse.
    let failed = ASSERTION.replace("status:Success", "status:Requester");
    assert_eq!(refused(&failed), (403, "the provider denied the login"));
}

#[test]
fn missing_parts_deny_the_login() {
    let own = Provider::new(RSA_KEY, RSA_CERT);
    let check = |from: &str, to: &str, told: (u16, &str)| {
        let text = answer("_q1").replacen(from, to, 1);
        assert!(from == to || text != answer("_q1"), "{from}");
        let text = own.signed(&text, "_a1", "http://www.w3.org/2001/04/xmlenc#sha256");
        let why = accept(&text, RSA_CERT, &expected())
            .map_or_else(|refusal| (refusal.status, refusal.why), |_| (0, ""));
        assert_eq!(why, told, "{to}");
    };
    check("", "", (0, ""));
    check(" NotOnOrAfter=\"2026-11-23T12:05:00Z\" R", " R", (401, "the assertion has no end of validity"));
    check(" Recipient=\"https://shop.test/acs\"", "", (401, "the assertion is for another recipient"));
    check(
        "InResponseTo=\"_q1\"></saml:SubjectC",
        "></saml:SubjectC",
        (401, "the assertion answers another request, or none"),
    );
    check("cm:bearer", "cm:holder-of-key", (401, "the assertion has no valid subject confirmation"));
    check(
        "<saml:Audience>https://shop.test/</saml:Audience>",
        "",
        (401, "the assertion is for another audience"),
    );
    check(
        "<saml:AudienceRestriction><saml:Audience>https://shop.test/</saml:Audience></saml:AudienceRestriction>",
        "",
        (401, "the assertion has no audience"),
    );
    check("<saml:AudienceR", "<saml:OneTimeUse></saml:OneTimeUse><saml:AudienceR", (0, ""));
    check(
        "<saml:AudienceR",
        "<saml:Moon></saml:Moon><saml:AudienceR",
        (401, "the assertion has an unknown condition"),
    );
    check(
        "<saml:NameID>jack</saml:NameID>",
        "",
        (500, "the assertion has no NameID, or one that is encrypted"),
    );
    check("jack", " ", (400, "the NameID is empty, or contains more than text"));
    check("jack", "jack<a></a>son", (400, "the NameID is empty, or contains more than text"));
    check("SessionIndex=\"_s1\"", "SessionNotOnOrAfter=\"soon\"", (500, "SessionNotOnOrAfter is malformed"));
    check(
        "SessionIndex=\"_s1\"",
        "SessionNotOnOrAfter=\"2026-11-23T12:00:00Z\"",
        (401, "the session has ended"),
    );
    check(
        "<saml:AuthnStatement SessionIndex=\"_s1\"></saml:AuthnStatement>",
        "",
        (401, "the assertion has no authentication statement"),
    );
    check(
        "<saml:Conditions NotBefore=\"2026-11-23T11:59:00Z\"",
        "<saml:Conditions NotBefore=\"then\"",
        (400, "a time of the message is malformed"),
    );
    check(
        "Version=\"2.0\"><saml:Issuer>",
        "Version=\"1.1\"><saml:Issuer>",
        (400, "the assertion does not have version 2.0"),
    );
}

/// Our own provider.
pub(super) struct Provider(OwnKey);

/// Returns a response to a request; it is canonical already.
pub(super) fn answer(request: &str) -> String {
    format!(
        "<samlp:Response xmlns:samlp=\"urn:oasis:names:tc:SAML:2.0:protocol\" ID=\"_r1\" InResponseTo=\"{request}\" Version=\"2.0\">\
        <samlp:Status><samlp:StatusCode Value=\"urn:oasis:names:tc:SAML:2.0:status:Success\"></samlp:StatusCode></samlp:Status>\
        <saml:Assertion xmlns:saml=\"urn:oasis:names:tc:SAML:2.0:assertion\" ID=\"_a1\" Version=\"2.0\">\
        <saml:Issuer>https://idp.test/</saml:Issuer><saml:Subject><saml:NameID>jack</saml:NameID>\
        <saml:SubjectConfirmation Method=\"urn:oasis:names:tc:SAML:2.0:cm:bearer\"><saml:SubjectConfirmationData \
        NotOnOrAfter=\"2026-11-23T12:05:00Z\" Recipient=\"https://shop.test/acs\" InResponseTo=\"{request}\">\
        </saml:SubjectConfirmationData></saml:SubjectConfirmation></saml:Subject>\
        <saml:Conditions NotBefore=\"2026-11-23T11:59:00Z\" NotOnOrAfter=\"2026-11-23T12:05:00Z\"><saml:AudienceRestriction>\
        <saml:Audience>https://shop.test/</saml:Audience></saml:AudienceRestriction></saml:Conditions>\
        <saml:AuthnStatement SessionIndex=\"_s1\"></saml:AuthnStatement><saml:AttributeStatement>\
        <saml:Attribute Name=\"groups\"><saml:AttributeValue>staff</saml:AttributeValue></saml:Attribute>\
        </saml:AttributeStatement></saml:Assertion></samlp:Response>"
    )
}

impl Provider {
    pub(super) fn new(key: &str, certificate: &str) -> Provider {
        Provider(OwnKey::of_pem(key, certificate).unwrap())
    }

    /// The query of a redirect with a message.
    pub(super) fn query(&self, kind: Kind, message: &str, relay_state: Option<&str>) -> String {
        binding::redirect("", kind, message, relay_state, &self.0).unwrap()
    }

    /// The document, with a signature of the element with this ID.
    pub(super) fn signed(&self, text: &str, id: &str, digest_algorithm: &str) -> String {
        use base64::Engine;
        let encoded = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
        let parsed = document::parse(text).unwrap();
        let assertion =
            parsed.descendants().find(|node| document::attribute(*node, "ID") == Some(id)).unwrap();
        let canonical = Canonical { without: None, inclusive: &[] }.of(assertion).unwrap();
        let digest = match digest_algorithm.rsplit_once('#').unwrap().1 {
            "sha1" => aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, &canonical),
            _ => aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &canonical),
        };
        let info = format!(
            "<ds:SignedInfo xmlns:ds=\"http://www.w3.org/2000/09/xmldsig#\">\
            <ds:CanonicalizationMethod Algorithm=\"http://www.w3.org/2001/10/xml-exc-c14n#\"></ds:CanonicalizationMethod>\
            <ds:SignatureMethod Algorithm=\"http://www.w3.org/2001/04/xmldsig-more#rsa-sha512\"></ds:SignatureMethod>\
            <ds:Reference URI=\"#{id}\"><ds:Transforms>\
            <ds:Transform Algorithm=\"http://www.w3.org/2000/09/xmldsig#enveloped-signature\"></ds:Transform>\
            <ds:Transform Algorithm=\"http://www.w3.org/2001/10/xml-exc-c14n#\"></ds:Transform></ds:Transforms>\
            <ds:DigestMethod Algorithm=\"{digest_algorithm}\"></ds:DigestMethod>\
            <ds:DigestValue>{}</ds:DigestValue></ds:Reference></ds:SignedInfo>",
            encoded(digest.as_ref())
        );
        let value = encoded(&self.0.sign(info.as_bytes()).unwrap());
        let signature = format!(
            "<ds:Signature xmlns:ds=\"http://www.w3.org/2000/09/xmldsig#\">{info}<ds:SignatureValue>{value}</ds:SignatureValue></ds:Signature>"
        );
        let place = "</saml:Issuer>";
        text.replacen(place, &format!("{place}{signature}"), 1)
    }
}
