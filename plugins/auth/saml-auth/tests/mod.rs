//! Messages that others have signed, what attackers make of them, and the way of a browser.

mod attacks;
mod flows;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sigma_plugin::system::{Host, System};
use sigma_schema::plugins::PluginScope;

use super::assertion::{Accepted, Expected, Refusal, SamlResponse};
use super::binding::{Kind, of_form, of_query};
use super::canonical::Canonical;
use super::document;
use super::instant::seconds;
use super::keys::ProviderKeys;
use super::*;
use crate::testing::{assert_refusal, merged, warned};

const RSA_KEY: &str = include_str!("fixtures/rsa.key");
const RSA_CERT: &str = include_str!("fixtures/rsa.pem");
const EC_CERT: &str = include_str!("fixtures/ec.pem");
const SP_KEY: &str = include_str!("fixtures/sp.key");
const SP_CERT: &str = include_str!("fixtures/sp.pem");

/// Documents that xmlsec1 has signed.
const ASSERTION: &str = include_str!("fixtures/assertion.xml");
const RESPONSE: &str = include_str!("fixtures/response.xml");

/// A machine whose time is known.
#[derive(Debug)]
struct At(u64);

impl System for At {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.0)
    }

    fn uptime(&self) -> Duration {
        Duration::from_secs(self.0)
    }

    fn fill_random(&self, bytes: &mut [u8]) -> Result<(), String> {
        Host.fill_random(bytes)
    }
}

fn at(time: &str) -> u64 {
    seconds(&format!("2026-11-23T{time}Z")).unwrap()
}

/// Returns the expected values of the fixtures' documents.
fn expected() -> Expected<'static> {
    Expected {
        audience: "https://shop.test/",
        issuer: Some("https://idp.test/"),
        recipient: "https://shop.test/acs",
        request: "_q1",
        now: at("12:00:30"),
    }
}

/// Returns the result of a document from a form.
fn accept(text: &str, certificate: &str, expected: &Expected<'_>) -> Result<Accepted, Refusal> {
    let keys = ProviderKeys::of_pem(certificate).unwrap();
    let text = document::text_of(text.as_bytes()).map_err(Refusal::broken)?;
    let document = document::parse(&text).map_err(Refusal::broken)?;
    SamlResponse::read(&document, false, &keys)?.accept(expected)
}

/// Why a document that came in a form is refused.
fn refused(text: &str) -> (u16, &'static str) {
    let Refusal { status, why } =
        accept(text, RSA_CERT, &expected()).map(|accepted| accepted.user).unwrap_err();
    (status, why)
}

#[test]
fn canonical_texts_equal_those_from_other_programs() {
    let text = document::text_of(include_bytes!("fixtures/spaces.xml")).unwrap();
    let document = document::parse(&text).unwrap();
    let canonical = Canonical { without: None, inclusive: &[] }.of(document.root_element()).unwrap();
    assert_eq!(String::from_utf8(canonical).unwrap(), include_str!("fixtures/spaces.canonical"));
}

#[test]
fn listed_prefixes_are_declared_where_they_are_known() {
    let check = |inclusive: &[&str], expected: &str| {
        let text = "<a xmlns='d' xmlns:b='b' xmlns:c='c'><b:e xmlns:f='f'><g xmlns=''/></b:e></a>";
        let document = document::parse(text).unwrap();
        let inner = document.root_element().first_element_child().unwrap();
        let canonical = Canonical { without: None, inclusive }.of(inner).unwrap();
        assert_eq!(String::from_utf8(canonical).unwrap(), expected, "{inclusive:?}");
    };
    check(&[], "<b:e xmlns:b=\"b\"><g></g></b:e>");
    check(&["c", "b", "z"], "<b:e xmlns:b=\"b\" xmlns:c=\"c\"><g></g></b:e>");
    check(&["f", "#default"], "<b:e xmlns=\"d\" xmlns:b=\"b\" xmlns:f=\"f\"><g xmlns=\"\"></g></b:e>");
}

#[test]
fn signatures_from_other_programs_are_accepted() {
    let both = format!("{EC_CERT}\n{RSA_CERT}");
    for (name, text, certificate) in [
        ("assertion", ASSERTION, RSA_CERT),
        ("response", RESPONSE, RSA_CERT),
        ("inclusive", include_str!("fixtures/inclusive.xml"), RSA_CERT),
        ("rsa-sha384", include_str!("fixtures/rsa-sha384.xml"), RSA_CERT),
        ("rsa-sha512", include_str!("fixtures/rsa-sha512.xml"), RSA_CERT),
        ("ecdsa-sha256", include_str!("fixtures/ecdsa-sha256.xml"), EC_CERT),
        ("one of two keys", ASSERTION, &both),
        ("the other of two keys", include_str!("fixtures/ecdsa-sha256.xml"), &both),
        ("line ends", &ASSERTION.replace('\n', "\r\n"), RSA_CERT),
    ] {
        let accepted = accept(text, certificate, &expected());
        let Accepted { user, ends, id, stale } =
            accepted.unwrap_or_else(|refusal| panic!("{name}: {refusal:?}"));
        assert_eq!((&*user.name.text, &*user.issuer), ("jack & Jill>", "https://idp.test/"), "{name}");
        assert_eq!(user.name.own_qualifier.as_deref(), Some("https://shop.test/&\"\t"));
        assert_eq!(user.session_index.as_deref(), Some("_s1"));
        let attrs = json!({"groups": ["staff", "ünï 😀"], "mail": "jack@shop.test"});
        assert_eq!(Value::Object(user.attrs), attrs, "{name}");
        assert_eq!((ends, &*id, stale), (Some(at("20:00:00")), "_a1", at("12:06:00")));
    }
}

#[test]
fn an_assertion_is_for_one_gateway_and_one_login_and_not_for_long() {
    let check = |change: &dyn Fn(&mut Expected<'static>), expected_why: &str| {
        let mut asked = expected();
        change(&mut asked);
        let why = accept(ASSERTION, RSA_CERT, &asked)
            .map_or_else(|refusal| (refusal.status, refusal.why), |_| (0, ""));
        assert_eq!(why, (if expected_why.is_empty() { 0 } else { 401 }, expected_why));
    };
    check(&|_| {}, "");
    check(&|asked| asked.issuer = None, "");
    check(&|asked| asked.issuer = Some("https://other.test/"), "the assertion is from another issuer");
    check(&|asked| asked.audience = "https://bank.test/", "the assertion is for another audience");
    check(&|asked| asked.audience = "https://shop.test", "the assertion is for another audience");
    check(&|asked| asked.recipient = "https://bank.test/acs", "the response is for another destination");
    check(&|asked| asked.request = "_q2", "the response is to another request");
    check(&|asked| asked.now = at("11:58:00"), "");
    check(&|asked| asked.now = at("11:57:59"), "the assertion is not valid yet");
    check(&|asked| asked.now = at("12:05:59"), "");
    check(&|asked| asked.now = at("12:06:00"), "the assertion has expired");
    // The element around the assertion is not signed: it can refuse, and can be removed.
    let bare = ASSERTION.replace(" Destination=\"https://shop.test/acs\" InResponseTo=\"_q1\"", "");
    assert_ne!(bare, ASSERTION);
    let why =
        |asked: Expected<'_>| accept(&bare, RSA_CERT, &asked).map_or_else(|refusal| refusal.why, |_| "");
    assert_eq!(why(expected()), "");
    let asked = Expected { recipient: "https://bank.test/acs", ..expected() };
    assert_eq!(why(asked), "the assertion is for another recipient");
    let asked = Expected { request: "_q2", ..expected() };
    assert_eq!(why(asked), "the assertion answers another request, or none");
}

#[test]
fn queries_from_other_programs_are_accepted() {
    let keys = ProviderKeys::of_pem(RSA_CERT).unwrap();
    let query = include_str!("fixtures/redirect.query");
    let why = |query: &str| of_query(query.as_bytes(), &keys, 1000).err().unwrap_or("");
    let message = of_query(query.as_bytes(), &keys, 11).unwrap();
    assert_eq!(
        (&*message.text, message.kind, message.is_signed),
        (&b"<Response/>"[..], Kind::Response, true)
    );
    assert_eq!(message.relay_state.as_deref(), Some("a b/"));
    assert_eq!(of_query(query.as_bytes(), &keys, 10).unwrap_err(), "the message is too large");
    let reversed: Vec<&str> = query.split('&').rev().collect();
    assert_eq!(why(&reversed.join("&")), "", "the order of what is signed is known");
    assert_eq!(why(&format!("a=b&{query}&c")), "");
    let other = "the signature is invalid";
    assert_eq!(why(&query.replace("a+b", "a%20b")), other, "what is signed is the query as it is written");
    assert_eq!(why(&query.replace("RelayState=a+b%2f&", "")), other);
    assert_eq!(why(&query.replace("SAMLResponse", "SAMLRequest")), other);
    assert_eq!(why(&query.replace("rsa-sha256", "rsa-sha512")), other);
    let algorithm = "the signature algorithm is not supported, or does not match the key";
    for name in ["rsa-sha1", "hmac-sha256", "ecdsa-sha256", "none", ""] {
        assert_eq!(why(&query.replace("rsa-sha256", name)), algorithm, "{name}");
    }
    let twice = "a parameter of the message occurs twice";
    for more in ["SAMLResponse=a", "RelayState=a", "Signature=a", "SigAlg=a"] {
        assert_eq!(why(&format!("{query}&{more}")), twice, "{more}");
        let odd = more.replacen('S', "%53", 1).replacen('R', "%52", 1);
        assert_eq!(why(&format!("{query}&{odd}")), "a parameter of the message has an invalid encoding");
    }
    assert_eq!(why(&format!("{query}&SAMLRequest=a")), "the request has no SAML message, or two");
    assert_eq!(why(""), "the request has no SAML message, or two");
    let (unsigned, _) = query.split_once("&Signature").unwrap();
    assert_eq!(why(unsigned), "the message is not signed");
    assert_eq!(why(&format!("{query}&SAMLEncoding=plain")), "the encoding of the message is not supported");
}

#[test]
fn a_message_does_not_grow_without_end() {
    let own = OwnKey::of_pem(RSA_KEY, RSA_CERT).unwrap();
    let bomb = " ".repeat(50 << 20);
    let url = binding::redirect("", Kind::Response, &bomb, None, &own).unwrap();
    assert!(url.len() < 100_000);
    let keys = ProviderKeys::of_pem(RSA_CERT).unwrap();
    assert_eq!(of_query(&url.as_bytes()[1..], &keys, 1 << 20).unwrap_err(), "the message is too large");
    assert_eq!(of_form(b"SAMLResponse=YWJj", 2).unwrap_err(), "the message is too large");
    assert_eq!(of_form(b"SAMLResponse=Y%0AWJj", 3).unwrap().text, b"abc");
}

pub(super) fn conf(more: Value) -> Value {
    merged(
        json!({
            "sp_issuer": "https://shop.test/", "idp_uri": "https://idp.test/saml", "idp_cert": RSA_CERT,
            "sp_cert": SP_CERT, "sp_private_key": SP_KEY, "login_callback_uri": "https://shop.test/acs",
            "logout_uri": "/logout", "logout_callback_uri": "/ended", "logout_redirect_uri": "/bye",
            "auth_protocol_binding_method": "HTTP-Redirect", "secret": "0123456789abcdef",
        }),
        &more,
    )
}

#[test]
fn configurations() {
    let check = |more: Value, expected: &str| {
        assert_refusal(NAME, &conf(more), expected);
    };
    check(json!({}), "");
    check(json!({"login_callback_uri": "/acs", "auth_protocol_binding_method": "HTTP-POST"}), "");
    check(json!({"secret_fallbacks": ["0123456789"]}), "");
    check(json!({"secret_fallbacks": ["short"]}), "string too short");
    check(json!({"secret": "short"}), "string too short");
    check(json!({"secret": "x".repeat(33)}), "string too long");
    check(json!({"auth_protocol_binding_method": "HTTP-Artifact"}), "matches none of the enum values");
    check(json!({"idp_uri": "idp"}), "`idp` has no scheme");
    check(json!({"idp_uri": "https://idp.test/?a"}), "has a query");
    check(json!({"login_callback_uri": "https://shop.test"}), "has no path");
    check(json!({"login_callback_uri": "/a?b"}), "`/a?b` is not a path");
    check(json!({"logout_uri": "/acs"}), "`logout_uri` and `login_callback_uri` have the same path");
    check(
        json!({"logout_callback_uri": "/logout"}),
        "`logout_callback_uri` and `logout_uri` have the same path",
    );
    check(json!({"logout_redirect_uri": "/a b"}), "`logout_redirect_uri` has unencoded characters");
    check(json!({"idp_cert": "x"}), "idp_cert: it contains no PEM certificate");
    let odd = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----";
    check(json!({"idp_cert": odd}), "idp_cert: it contains an invalid certificate");
    check(json!({"sp_cert": RSA_CERT}), "sp_cert: it does not belong to `sp_private_key`");
    check(json!({"sp_private_key": RSA_CERT}), "sp_private_key: it is not a PEM text with a private key");
    check(
        json!({"sp_private_key": include_str!("fixtures/ec.key")}),
        "sp_private_key: it is not a private key",
    );
    let clear = json!({"idp_uri": "http://idp.test", "login_callback_uri": "http://shop.test/acs"});
    assert_eq!(warned(NAME, PluginScope::Http, &conf(clear)), ["idp_uri", "login_callback_uri"]);
}
