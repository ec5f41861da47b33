//! Exclusive XML canonicalisation without comments (<https://www.w3.org/TR/xml-exc-c14n/>): the one text of an
//! element that its signer and its reader both come to.

use std::borrow::Cow;
use std::collections::BTreeMap;

use roxmltree::{Attribute, Node, NodeId};

/// Which part of the document, and how.
#[derive(Clone, Copy)]
pub(super) struct Canonical<'n> {
    /// An element that is omitted with all that is in it: the signature of the element around it.
    pub(super) without: Option<NodeId>,
    /// The prefixes of `InclusiveNamespaces`; `#default` is the namespace without a prefix.
    pub(super) inclusive: &'n [&'n str],
}

/// The namespaces that the text declares around a place, by their prefixes; the default one has an empty prefix.
type Declared<'a> = BTreeMap<&'a str, &'a str>;

impl Canonical<'_> {
    /// The text of an element.
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if a prefix has no namespace.
    pub(super) fn of(self, element: Node<'_, '_>) -> Result<Vec<u8>, &'static str> {
        let mut out = Vec::with_capacity(element.range().len());
        // As deep as the document, which has a limit.
        self.write(element, &Declared::new(), &mut out)?;
        Ok(out)
    }

    fn write<'a>(
        self,
        element: Node<'a, '_>,
        around: &Declared<'a>,
        out: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        let source = element.document().input_text();
        let name = name_of(element).ok_or("an element of the message has no name")?;
        let mut attributes = Vec::new();
        for attribute in element.attributes() {
            let written = source.get(attribute.range_qname()).unwrap_or_default();
            let (prefix, local) = written.rsplit_once(':').unwrap_or(("", written));
            if local != attribute.name() {
                return Err("an attribute of the message has no name");
            }
            attributes.push((written, prefix, attribute));
        }
        let prefix = name.rsplit_once(':').map_or("", |(prefix, _)| prefix);
        let used = attributes.iter().map(|(_, prefix, _)| *prefix).filter(|prefix| !prefix.is_empty());
        let fresh = self.fresh(element, used.chain([prefix]), around)?;
        out.push(b'<');
        out.extend_from_slice(name.as_bytes());
        for (prefix, namespace) in &fresh {
            let name = if prefix.is_empty() { "xmlns".to_owned() } else { format!("xmlns:{prefix}") };
            write_attribute(&name, namespace, out);
        }
        attributes.sort_by(|(_, _, a), (_, _, b)| order(a).cmp(&order(b)));
        attributes.iter().for_each(|(name, _, attribute)| write_attribute(name, attribute.value(), out));
        out.push(b'>');
        let mut declared = Cow::Borrowed(around);
        if !fresh.is_empty() {
            declared.to_mut().extend(fresh);
        }
        for child in element.children().filter(|child| Some(child.id()) != self.without) {
            match child.text() {
                Some(text) if child.is_text() => write_text(text, out),
                _ => self.write(child, &declared, out)?,
            }
        }
        out.extend_from_slice(b"</");
        out.extend_from_slice(name.as_bytes());
        out.push(b'>');
        Ok(())
    }

    /// Returns the namespaces that an element has to declare: the ones that it uses, and the ones of the
    /// list, unless an element around it has declared them so.
    fn fresh<'a, 'p>(
        self,
        element: Node<'a, '_>,
        used: impl Iterator<Item = &'p str>,
        around: &Declared<'a>,
    ) -> Result<Declared<'a>, &'static str> {
        let mut fresh = Declared::new();
        let mut take = |prefix: &str| {
            let (prefix, namespace) = declaration(element, prefix)?;
            if prefix != "xml" && around.get(prefix).copied().unwrap_or_default() != namespace {
                fresh.insert(prefix, namespace);
            }
            Ok::<(), &'static str>(())
        };
        for prefix in used {
            take(prefix)?;
        }
        for listed in self.inclusive {
            let prefix = if *listed == "#default" { "" } else { listed };
            if prefix.is_empty() || element.lookup_namespace_uri(Some(prefix)).is_some() {
                take(prefix)?;
            }
        }
        Ok(fresh)
    }
}

/// The name of an element as it is written.
fn name_of<'d>(element: Node<'_, 'd>) -> Option<&'d str> {
    let written = element.document().input_text().get(element.range())?.strip_prefix('<')?;
    let end = written.find(|c: char| c.is_ascii_whitespace() || matches!(c, '/' | '>'))?;
    let name = &written[..end];
    let local = name.rsplit_once(':').map_or(name, |(_, local)| local);
    (local == element.tag_name().name()).then_some(name)
}

/// A prefix and its namespace, as the document declares them for an element.
fn declaration<'a>(element: Node<'a, '_>, prefix: &str) -> Result<(&'a str, &'a str), &'static str> {
    if prefix == "xml" {
        return Ok(("xml", ""));
    }
    let mut declared = element.namespaces();
    let found = declared.find(|namespace| namespace.name().unwrap_or_default() == prefix);
    match found {
        Some(namespace) if prefix.is_empty() => Ok(("", namespace.uri())),
        Some(namespace) if !namespace.uri().is_empty() => {
            Ok((namespace.name().unwrap_or_default(), namespace.uri()))
        }
        None if prefix.is_empty() => Ok(("", "")),
        _ => Err("a prefix in the message has no namespace"),
    }
}

/// By namespace, then by name (Canonical XML §2.2).
fn order<'d>(attribute: &Attribute<'_, 'd>) -> (String, &'d str) {
    (attribute.namespace().unwrap_or_default().to_owned(), attribute.name())
}

fn write_attribute(name: &str, value: &str, out: &mut Vec<u8>) {
    out.push(b' ');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"=\"");
    for byte in value.bytes() {
        match byte {
            b'&' => out.extend_from_slice(b"&amp;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            b'\t' => out.extend_from_slice(b"&#x9;"),
            b'\n' => out.extend_from_slice(b"&#xA;"),
            b'\r' => out.extend_from_slice(b"&#xD;"),
            byte => out.push(byte),
        }
    }
    out.push(b'"');
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'&' => out.extend_from_slice(b"&amp;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'\r' => out.extend_from_slice(b"&#xD;"),
            byte => out.push(byte),
        }
    }
}
