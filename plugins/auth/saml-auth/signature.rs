//! Signatures of XML, in the one form that SAML has (SAML Core §5.4): of the element that they stand in, by its ID,
//! as a whole.
//!
//! XML Signature is a language in which a signature can cover any element; that the parsed element is not the
//! signed one is the oldest attack on it. Here a signature is found from the element, not the element from
//! the signature, and the only way to a [`Signed`] leads through [`verified`] or through the signature of the
//! whole message.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use roxmltree::{Document, Node};

use super::canonical::Canonical;
use super::document::{SIGNATURE, attribute, characters, children, is_named};
use super::keys::{ProviderKeys, digest_of};
use crate::shared::policy::same_secret;

const EXCLUSIVE: &str = "http://www.w3.org/2001/10/xml-exc-c14n#";
const ENVELOPED: &str = "http://www.w3.org/2000/09/xmldsig#enveloped-signature";

/// Most prefixes of `InclusiveNamespaces`.
const PREFIXES: usize = 32;

/// An element of which the provider has signed everything, and which is therefore read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signed<'a, 'd>(Node<'a, 'd>);

impl<'a, 'd> Signed<'a, 'd> {
    /// The root of a message whose text the provider has signed (SAML Bindings §3.4.4.1).
    pub(super) fn whole(document: &'a Document<'d>) -> Signed<'a, 'd> {
        Signed(document.root_element())
    }

    pub(super) fn node(self) -> Node<'a, 'd> {
        self.0
    }

    /// An element within, which is signed with it.
    pub(super) fn within(self, node: Node<'a, 'd>) -> Option<Signed<'a, 'd>> {
        node.ancestors().any(|around| around == self.0).then_some(Signed(node))
    }
}

/// An element whose own signature holds; None if it is not signed.
///
/// # Errors
/// Returns an error, which is a text for the log, if it has one that does not hold, is not of exactly this
/// element, or is in another form.
pub(super) fn verified<'a, 'd>(
    element: Node<'a, 'd>,
    keys: &ProviderKeys,
) -> Result<Option<Signed<'a, 'd>>, &'static str> {
    let mut signatures = children(element).filter(|child| is_named(*child, SIGNATURE, "Signature"));
    let Some(signature) = signatures.next() else { return Ok(None) };
    if signatures.next().is_some() {
        return Err("an element of the message has two signatures");
    }
    let parts = Parts::of(signature)?;
    let id = attribute(element, "ID").filter(|id| !id.is_empty()).ok_or("the signed element has no ID")?;
    if parts.uri.strip_prefix('#') != Some(id) {
        return Err("the signature belongs to another element than its parent");
    }
    let info = Canonical { without: None, inclusive: &parts.info_prefixes }.of(parts.info)?;
    keys.verify(parts.algorithm, &info, &parts.value)?;
    let text = Canonical { without: Some(signature.id()), inclusive: &parts.prefixes }.of(element)?;
    let digest = digest_of(parts.digest_algorithm, &text);
    let digest = digest.ok_or("the digest algorithm is not supported")?;
    if !same_secret(&digest, &parts.digest) {
        return Err("the signed element was changed");
    }
    Ok(Some(Signed(element)))
}

/// The parts of a signature.
struct Parts<'a, 'd> {
    info: Node<'a, 'd>,
    /// How `info` is canonicalised.
    info_prefixes: Vec<&'a str>,
    algorithm: &'a str,
    value: Vec<u8>,
    uri: &'a str,
    /// How the element is canonicalised.
    prefixes: Vec<&'a str>,
    digest_algorithm: &'a str,
    digest: Vec<u8>,
}

/// The message for a signature in another form.
const FORM: &str = "the signature is not in the form that SAML requires";

impl<'a, 'd> Parts<'a, 'd> {
    fn of(signature: Node<'a, 'd>) -> Result<Parts<'a, 'd>, &'static str> {
        let (info, value) = match exactly(signature)?[..] {
            [info, value] => (info, value),
            // An attacker can write a key there.
            [info, value, key] if is_named(key, SIGNATURE, "KeyInfo") => (info, value),
            _ => return Err(FORM),
        };
        expect(info, "SignedInfo")?;
        expect(value, "SignatureValue")?;
        let [method, algorithm, reference] = exactly(info)?[..] else { return Err(FORM) };
        expect(method, "CanonicalizationMethod")?;
        expect(algorithm, "SignatureMethod")?;
        expect(reference, "Reference")?;
        let [transforms, digest_algorithm, digest] = exactly(reference)?[..] else { return Err(FORM) };
        expect(transforms, "Transforms")?;
        expect(digest_algorithm, "DigestMethod")?;
        expect(digest, "DigestValue")?;
        let [enveloped, exclusive] = exactly(transforms)?[..] else { return Err(FORM) };
        expect(enveloped, "Transform")?;
        expect(exclusive, "Transform")?;
        if named_algorithm(enveloped)? != ENVELOPED {
            return Err(FORM);
        }
        let uri = attribute(reference, "URI").ok_or(FORM)?;
        Ok(Parts {
            info,
            info_prefixes: prefixes(method)?,
            algorithm: named_algorithm(algorithm)?,
            value: bytes(value)?,
            uri,
            prefixes: prefixes(exclusive)?,
            digest_algorithm: named_algorithm(digest_algorithm)?,
            digest: bytes(digest)?,
        })
    }
}

/// The children of an element between which there is nothing but space.
fn exactly<'a, 'd>(node: Node<'a, 'd>) -> Result<Vec<Node<'a, 'd>>, &'static str> {
    let is_space = |node: &Node<'_, '_>| node.text().is_some_and(|text| text.trim_ascii().is_empty());
    let mut texts = node.children().filter(Node::is_text);
    if texts.any(|text| !is_space(&text)) {
        return Err(FORM);
    }
    Ok(children(node).collect())
}

fn expect(node: Node<'_, '_>, name: &str) -> Result<(), &'static str> {
    if is_named(node, SIGNATURE, name) { Ok(()) } else { Err(FORM) }
}

/// The algorithm of an element that says nothing more of it.
fn named_algorithm<'a>(node: Node<'a, '_>) -> Result<&'a str, &'static str> {
    if !exactly(node)?.is_empty() {
        return Err(FORM);
    }
    attribute(node, "Algorithm").ok_or(FORM)
}

/// The prefixes of an exclusive canonicalisation.
fn prefixes<'a>(node: Node<'a, '_>) -> Result<Vec<&'a str>, &'static str> {
    if attribute(node, "Algorithm") != Some(EXCLUSIVE) {
        return Err("the canonicalization method is not supported");
    }
    let list = match exactly(node)?[..] {
        [] => return Ok(Vec::new()),
        [list] if is_named(list, EXCLUSIVE, "InclusiveNamespaces") => list,
        _ => return Err(FORM),
    };
    if !exactly(list)?.is_empty() {
        return Err(FORM);
    }
    let prefixes: Vec<&str> = attribute(list, "PrefixList").ok_or(FORM)?.split_ascii_whitespace().collect();
    if prefixes.len() > PREFIXES { Err(FORM) } else { Ok(prefixes) }
}

/// Returns the Base64 content of an element, which may have lines.
fn bytes(node: Node<'_, '_>) -> Result<Vec<u8>, &'static str> {
    let text: Vec<u8> = characters(node).ok_or(FORM)?.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    STANDARD.decode(text).map_err(|_| FORM)
}
