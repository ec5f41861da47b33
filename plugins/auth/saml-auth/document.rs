//! A text becomes a tree: of elements, attributes and characters, and of nothing else.
//!
//! The sender has not logged in yet. So rare constructs are refused before parsing: declarations of a type
//! and of entities, comments, CDATA and processing instructions, which no message of SAML needs, and which
//! make two readers see different texts.

use std::borrow::Cow;
use std::collections::HashSet;

use roxmltree::{Document, Node, ParsingOptions};

/// Most elements nested in each other. A response with an assertion and its signature has ten.
const DEPTH: usize = 32;

/// Most attributes of one element, declarations of namespaces included. The parser compares each with each.
const ATTRIBUTES: usize = 32;

/// Most namespaces that are declared by an element and those around it. The parser copies all of them for each
/// element that declares another.
const NAMESPACES: usize = 64;

/// Namespaces.
pub(super) const PROTOCOL: &str = "urn:oasis:names:tc:SAML:2.0:protocol";
pub(super) const ASSERTION: &str = "urn:oasis:names:tc:SAML:2.0:assertion";
pub(super) const SIGNATURE: &str = "http://www.w3.org/2000/09/xmldsig#";
const XML: &str = "http://www.w3.org/XML/1998/namespace";

/// Line ends as a parser sees them (XML 1.0 §2.11), and no mark of byte order.
pub(super) fn text_of(message: &[u8]) -> Result<Cow<'_, str>, &'static str> {
    let text = str::from_utf8(message).map_err(|_| "the message is not UTF-8")?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.contains('\r') {
        return Ok(text.replace("\r\n", "\n").replace('\r', "\n").into());
    }
    Ok(text.into())
}

/// Reads a text.
///
/// # Errors
/// Returns an error, which is a text for the log, if it is not XML, or XML beyond the supported part.
pub(super) fn parse(text: &str) -> Result<Document<'_>, &'static str> {
    let body = without_declaration(text)?;
    scan(body)?;
    let nodes_limit = u32::try_from(text.len()).unwrap_or(u32::MAX);
    let options = ParsingOptions { allow_dtd: false, nodes_limit, entity_resolver: None };
    let document = Document::parse_with_options(body, options).map_err(|_| "the message is not XML")?;
    let mut known = HashSet::new();
    let is_plain = |node: &Node<'_, '_>| node.is_element() || node.is_text() || node.is_root();
    for node in document.descendants() {
        if !is_plain(&node) {
            return Err("the message has comments or instructions");
        }
        for attribute in node.attributes() {
            let is_id = attribute.name().eq_ignore_ascii_case("id")
                && attribute.namespace().is_none_or(|namespace| namespace == XML);
            if is_id && !known.insert(attribute.value()) {
                return Err("two elements of the message have the same ID");
            }
        }
    }
    Ok(document)
}

/// The text behind `<?xml … ?>`, which may say UTF-8 and nothing else.
fn without_declaration(text: &str) -> Result<&str, &'static str> {
    let Some(rest) = text.strip_prefix("<?xml ") else { return Ok(text) };
    let (declaration, body) = rest.split_once("?>").ok_or("the message is not XML")?;
    let declaration = declaration.to_ascii_lowercase().replace('\'', "\"");
    let is_known = declaration.contains("version=\"1.0\"")
        && (!declaration.contains("encoding") || declaration.contains("encoding=\"utf-8\""));
    is_known.then_some(body).ok_or("the message is not an XML 1.0 in UTF-8")
}

/// An element that is open while a text is scanned.
#[derive(Default)]
struct Tag {
    attributes: usize,
    namespaces: usize,
}

/// Checks a text against the limits, in one pass, so that the cost of parsing is linear in its length.
/// Well-formed text is counted right, and the parser goes no further than that.
fn scan(text: &str) -> Result<(), &'static str> {
    let mut open: Vec<usize> = Vec::new();
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte == b'<') {
        rest = &rest[at + 1..];
        match rest.first() {
            Some(b'!' | b'?') => return Err("the message has declarations, comments, CDATA or instructions"),
            Some(b'/') => {
                open.pop();
            }
            _ => {
                let (tag, end) = tag(rest)?;
                let is_empty = rest[..end].last() == Some(&b'/');
                let in_scope = open.last().copied().unwrap_or_default() + tag.namespaces;
                if tag.attributes > ATTRIBUTES || in_scope > NAMESPACES {
                    return Err("an element of the message has too many attributes or namespaces");
                }
                if open.len() >= DEPTH {
                    return Err("the elements of the message are nested too deeply");
                }
                if !is_empty {
                    open.push(in_scope);
                }
                rest = &rest[end..];
            }
        }
    }
    Ok(())
}

/// Parses a tag that begins here, and returns its end.
fn tag(text: &[u8]) -> Result<(Tag, usize), &'static str> {
    let (mut tag, mut quote, mut name) = (Tag::default(), None, 0);
    let mut has_default = false;
    for (at, &byte) in text.iter().enumerate() {
        match (quote, byte) {
            (Some(open), byte) if open == byte => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'>') => return Ok((tag, at)),
            (None, b' ' | b'\t' | b'\n') => name = at + 1,
            (None, b'=') => {
                tag.attributes += 1;
                let name = &text[name..at];
                if name == b"xmlns" {
                    // The parser takes the first of two.
                    if has_default {
                        return Err("an element of the message has two default namespaces");
                    }
                    has_default = true;
                }
                // To the parser this is a default namespace as well.
                if name.ends_with(b":xmlns") || name.is_empty() {
                    return Err("the message is not XML");
                }
                tag.namespaces += usize::from(name.starts_with(b"xmlns"));
            }
            (None, _) => {}
        }
    }
    Err("the message is not XML")
}

/// Whether an element has this name in this namespace.
pub(super) fn is_named(node: Node<'_, '_>, namespace: &str, name: &str) -> bool {
    node.is_element() && node.tag_name().name() == name && node.tag_name().namespace() == Some(namespace)
}

/// The children of an element that are elements, all of them in one namespace.
pub(super) fn children<'a, 'd>(node: Node<'a, 'd>) -> impl Iterator<Item = Node<'a, 'd>> {
    node.children().filter(Node::is_element)
}

/// The child of this name; None if it does not exist.
///
/// # Errors
/// Returns an error if there are several.
pub(super) fn child<'a, 'd>(
    node: Node<'a, 'd>,
    namespace: &str,
    name: &str,
) -> Result<Option<Node<'a, 'd>>, &'static str> {
    let mut found = children(node).filter(|child| is_named(*child, namespace, name));
    match (found.next(), found.next()) {
        (first, None) => Ok(first),
        _ => Err("an element of the message occurs twice"),
    }
}

/// An attribute without a namespace.
pub(super) fn attribute<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    let mut own = node.attributes().filter(|attribute| attribute.namespace().is_none());
    own.find(|attribute| attribute.name() == name).map(|attribute| attribute.value())
}

/// The characters of an element that holds nothing else.
pub(super) fn characters<'a>(node: Node<'a, '_>) -> Option<&'a str> {
    let mut children = node.children();
    match (children.next(), children.next()) {
        (None, _) => Some(""),
        (Some(only), None) => only.text().filter(|_| only.is_text()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> &'static str {
        let text = text_of(text.as_bytes()).unwrap();
        parse(&text).err().unwrap_or("")
    }

    #[test]
    fn constructs_that_no_message_needs_are_refused() {
        let hidden = "the message has declarations, comments, CDATA or instructions";
        let broken = "the message is not XML";
        for (text, expected) in [
            ("<a x='1'>b&lt;&#65;<c/></a>", ""),
            ("\u{feff}<?xml version='1.0' encoding='UTF-8'?>\n<a/>", ""),
            ("<?xml version=\"1.0\"?><a/>", ""),
            ("<a x='>' y=\"'/>\">=</a>", ""),
            ("<?xml version='1.0' encoding='ISO-8859-1'?><a/>", "the message is not an XML 1.0 in UTF-8"),
            ("<?xml version='1.1'?><a/>", "the message is not an XML 1.0 in UTF-8"),
            ("<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>", hidden),
            ("<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><a/>", hidden),
            ("<a>admin<!-- -->.evil</a>", hidden),
            ("<a><![CDATA[b]]></a>", hidden),
            ("<a><?b c?></a>", hidden),
            ("<a>&b;</a>", broken),
            ("<a b='&c;'/>", broken),
            ("<a>&#0;</a>", broken),
            ("<a></b>", broken),
            ("<a/><b/>", broken),
            ("<a>", broken),
            ("<a", broken),
            ("a", broken),
            ("", broken),
            ("<a b='1' b='2'/>", broken),
            ("<p:a/>", broken),
            ("<a p:xmlns='b' xmlns:p='c'/>", broken),
            ("<a xmlns='b' xmlns='c'/>", "an element of the message has two default namespaces"),
            ("<a ID='1'><b Id='1'/></a>", "two elements of the message have the same ID"),
            ("<a ID='1'><b xml:id='1'/></a>", "two elements of the message have the same ID"),
            ("<a ID='1'><b ID='2'/></a>", ""),
        ] {
            assert_eq!(fault(text), expected, "{text}");
        }
        assert!(text_of(&[0xff]).is_err());
    }

    #[test]
    fn parsing_costs_are_linear() {
        let deep = |depth: usize| "<a>".repeat(depth) + &"</a>".repeat(depth);
        assert_eq!(fault(&deep(DEPTH)), "");
        assert_eq!(fault(&deep(DEPTH + 1)), "the elements of the message are nested too deeply");
        assert_eq!(fault(&"<a>".repeat(100_000)), "the elements of the message are nested too deeply");
        let many = |count: usize| {
            let attributes: Vec<String> = (0..count).map(|n| format!("a{n}='b'")).collect();
            format!("<a {}/>", attributes.join(" "))
        };
        let too_many = "an element of the message has too many attributes or namespaces";
        assert_eq!(fault(&many(ATTRIBUTES)), "");
        assert_eq!(fault(&many(ATTRIBUTES + 1)), too_many);
        let declaring = |n: usize| format!("<a xmlns:a{n}='a' xmlns:b{n}='b' xmlns:c{n}='c'>");
        let nested: String = (0..22).map(declaring).collect();
        assert_eq!(fault(&(nested + &"</a>".repeat(22))), too_many);
        let siblings: String = (0..1000).map(|n| declaring(n) + "</a>").collect();
        assert_eq!(fault(&format!("<r>{siblings}</r>")), "");
    }

    #[test]
    fn only_the_requested_child_is_found() {
        let text = "<r xmlns='n' xmlns:o='other'><a o:ID='1'>x</a><o:b/><c/><c/><d>x<e/></d></r>";
        let document = parse(text).unwrap();
        let root = document.root_element();
        let a = child(root, "n", "a").unwrap().unwrap();
        assert_eq!((attribute(a, "ID"), characters(a)), (None, Some("x")));
        assert_eq!(child(root, "n", "b"), Ok(None));
        assert!(child(root, "n", "c").is_err());
        assert_eq!(characters(child(root, "n", "d").unwrap().unwrap()), None);
        assert!(is_named(root, "n", "r") && !is_named(root, "", "r") && !is_named(root, "other", "r"));
    }
}
