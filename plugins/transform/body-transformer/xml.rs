//! XML as a value: elements are members of the one around them.
//!
//! Prefixes of namespaces are omitted from the names of elements. Attributes are in `_attr`, text next to them or to
//! elements in `1`; an element of text alone is that text. Parsed in one pass, without declarations of types and their
//! entities, of which a few bytes make gigabytes, and files.

use serde_json::{Map, Value};

/// Elements nested in each other.
const MAX_DEPTH: usize = 100;

/// An element that is open.
struct Open<'t> {
    /// As it was written: the end has to say the same.
    name: &'t str,
    members: Map<String, Value>,
    text: String,
}

impl Open<'_> {
    fn closed(mut self) -> Value {
        let text = self.text.trim();
        if self.members.is_empty() {
            return text.into();
        }
        if !text.is_empty() {
            self.members.insert("1".to_owned(), text.into());
        }
        Value::Object(self.members)
    }
}

/// The value of a document with at most `most_values` elements and attributes.
///
/// # Errors
/// Returns an error, which is a sentence, if it is no such document.
pub(super) fn read(text: &str, most_values: usize) -> Result<Value, String> {
    let mut open = vec![Open { name: "", members: Map::new(), text: String::new() }];
    let mut left = most_values;
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    while let Some(at) = rest.find('<') {
        add_text(&mut open, &rest[..at])?;
        rest = &rest[at..];
        if let Some(inside) = rest.strip_prefix("<!--") {
            rest = behind(inside, "-->")?.1;
        } else if let Some(inside) = rest.strip_prefix("<![CDATA[") {
            let (inside, after) = behind(inside, "]]>")?;
            match open.last_mut() {
                Some(element) if !element.name.is_empty() => element.text.push_str(inside),
                _ => return Err("text outside the root element".to_owned()),
            }
            rest = after;
        } else if rest.starts_with("<!") {
            return Err("DOCTYPE declarations are not supported".to_owned());
        } else if let Some(inside) = rest.strip_prefix("<?") {
            rest = behind(inside, "?>")?.1;
        } else if let Some(inside) = rest.strip_prefix("</") {
            let (name, after) = behind(inside, ">")?;
            close(&mut open, name.trim_end())?;
            rest = after;
        } else {
            rest = element(&mut open, &rest[1..], &mut left)?;
        }
    }
    add_text(&mut open, rest)?;
    match (open.pop(), open.is_empty()) {
        (Some(document), true) if document.members.len() == 1 => Ok(Value::Object(document.members)),
        (_, false) => Err("an element is not closed".to_owned()),
        _ => Err("the document is empty".to_owned()),
    }
}

/// Returns the text before `end`, and the text after it.
fn behind<'t>(text: &'t str, end: &str) -> Result<(&'t str, &'t str), String> {
    text.split_once(end).ok_or_else(|| format!("`{end}` is missing"))
}

fn add_text(open: &mut [Open<'_>], text: &str) -> Result<(), String> {
    match open.last_mut() {
        Some(element) if !element.name.is_empty() => {
            element.text.push_str(&unescaped(text)?);
            Ok(())
        }
        _ if text.trim().is_empty() => Ok(()),
        _ => Err("text outside the root element".to_owned()),
    }
}

/// Parses a tag after its `<`; returns the rest.
fn element<'t>(open: &mut Vec<Open<'t>>, text: &'t str, left: &mut usize) -> Result<&'t str, String> {
    let is_name = |char: char| char.is_alphanumeric() || matches!(char, '_' | '-' | '.' | ':');
    let named = |text: &'t str| {
        let end = text.find(|char| !is_name(char)).unwrap_or(text.len());
        let (name, after) = text.split_at(end);
        if name.is_empty() { Err("a name is missing".to_owned()) } else { Ok((name, after)) }
    };
    let mut take = || {
        *left = left.checked_sub(1).ok_or("the document has too many elements")?;
        Ok::<_, String>(())
    };
    take()?;
    if open.len() > MAX_DEPTH {
        return Err(format!("elements are nested deeper than {MAX_DEPTH}"));
    }
    let is_second = open.len() == 1 && open.first().is_some_and(|document| !document.members.is_empty());
    if is_second {
        return Err("the document has two root elements".to_owned());
    }
    let (name, mut rest) = named(text)?;
    let mut attributes = Map::new();
    loop {
        let trimmed = rest.trim_start();
        let is_apart = trimmed.len() < rest.len();
        rest = trimmed;
        let is_empty = rest.starts_with("/>");
        if is_empty || rest.starts_with('>') {
            let mut members = Map::new();
            if !attributes.is_empty() {
                members.insert("_attr".to_owned(), Value::Object(attributes));
            }
            open.push(Open { name, members, text: String::new() });
            if is_empty {
                close(open, name)?;
            }
            return Ok(&rest[1 + usize::from(is_empty)..]);
        }
        if !is_apart {
            return Err(format!("the tag `{name}` is not well-formed"));
        }
        take()?;
        let (attribute, after) = named(rest)?;
        let value = after.trim_start().strip_prefix('=').map(str::trim_start).unwrap_or_default();
        let quote = value.chars().next().filter(|quote| matches!(quote, '"' | '\''));
        let quote = quote.ok_or_else(|| format!("the attribute `{attribute}` has no value"))?;
        let (value, after) = behind(&value[1..], if quote == '"' { "\"" } else { "'" })?;
        if value.contains('<') {
            return Err(format!("the attribute `{attribute}` contains `<`"));
        }
        if attributes.insert(attribute.to_owned(), unescaped(value)?.into()).is_some() {
            return Err(format!("the attribute `{attribute}` occurs twice"));
        }
        rest = after;
    }
}

fn close(open: &mut Vec<Open<'_>>, name: &str) -> Result<(), String> {
    let closed = open.pop().filter(|element| element.name == name && !name.is_empty());
    let (Some(closed), Some(around)) = (closed, open.last_mut()) else {
        return Err(format!("`</{name}>` does not close the open element"));
    };
    let local = name.rsplit(':').next().unwrap_or_default();
    let value = closed.closed();
    match around.members.get_mut(local) {
        None => drop(around.members.insert(local.to_owned(), value)),
        Some(Value::Array(values)) => values.push(value),
        Some(first) => *first = Value::Array(vec![first.take(), value]),
    }
    Ok(())
}

/// Returns a text with references replaced by their characters.
fn unescaped(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        let (reference, after) = behind(&rest[at + 1..], ";")?;
        out.push(match reference {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            _ => character(reference).ok_or("unknown entity")?,
        });
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

fn character(reference: &str) -> Option<char> {
    let number = reference.strip_prefix('#')?;
    let code = match number.strip_prefix('x') {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => number.parse().ok()?,
    };
    char::from_u32(code).filter(|char| !char.is_control() || matches!(char, '\t' | '\n' | '\r'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn documents() {
        let check = |text: &str, expected: Value| assert_eq!(read(text, 100), Ok(expected), "{text}");
        check("<a>x</a>", json!({"a": "x"}));
        check(
            "<?xml version=\"1.0\"?>\n<!-- c --> <s:a xmlns:s='u'><s:b/><c>1</c><c> 2 </c></s:a>\n",
            json!({"a": {"_attr": {"xmlns:s": "u"}, "b": "", "c": ["1", "2"]}}),
        );
        check(
            "<a i=\"1 &amp; &#x41;&#66;\">t<![CDATA[<x>]]>&lt;</a>",
            json!({"a": {"_attr": {"i": "1 & AB"}, "1": "t<x><"}}),
        );
        check("<a></a >", json!({"a": ""}));
        check("<a><b><c/></b></a>", json!({"a": {"b": {"c": ""}}}));
    }

    #[test]
    fn invalid_documents_are_refused() {
        let check = |text: &str, expected: &str| {
            let error = read(text, 100).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("", "empty");
        check("x", "outside");
        check("<a>", "not closed");
        check("<a></b>", "does not close the open element");
        check("</a>", "does not close the open element");
        check("</>", "does not close the open element");
        check("<a/><b/>", "two root elements");
        check("<a/>x", "outside");
        check("<!DOCTYPE a [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><a>&e;</a>", "declarations");
        check("<a>&e;</a>", "unknown entity");
        check("<a>&#0;</a>", "unknown entity");
        check("<a b='1' b='2'/>", "twice");
        check("<a b/>", "no value");
        check("<a b='1'c='2'/>", "not well-formed");
        check("<a b='<'/>", "contains `<`");
        check("< a/>", "a name is missing");
        check("<a", "not well-formed");
        check("<a><!-- </a>", "`-->` is missing");
        check(&format!("<a>{}</a>", "<b/>".repeat(200)), "too many elements");
        check(&"<a>".repeat(200), "too many elements");
        assert!(read(&"<a>".repeat(200), 1000).unwrap_err().contains("nested deeper"));
    }

    proptest! {
        #[test]
        fn nothing_panics(parts in prop::collection::vec("<|</|/>|>|<!--|-->|<!\\[CDATA\\[|\\]\\]>|<\\?|\\?>|[a:=\"'&;#x0-9é ]{1,3}", 0..20)) {
            let _ = read(&parts.concat(), 100);
        }
    }
}
