//! The problems of a configuration: place, reason and remedy.

use std::fmt;
use std::sync::Arc;

/// One problem of a document or a resource. Problems are reported as a list, all at once. Some problems are warnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The place in the document, e.g. `routes[0].uri`; empty for the whole document.
    pub pointer: String,
    /// The file, if the configuration has several and it is not the first one.
    pub file: Option<Arc<str>>,
    /// Line in the document, from 1. None for a value that is not from a text.
    pub line: Option<u32>,
    /// A stable word for programs, e.g. `unknown_key`.
    pub code: &'static str,
    /// One sentence for people.
    pub message: String,
    /// The remedy, if one is known.
    pub hint: Option<String>,
}

impl Problem {
    /// Creates a problem at `pointer`, without line and remedy.
    pub fn new(pointer: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        Problem { pointer: pointer.into(), file: None, line: None, code, message: message.into(), hint: None }
    }

    /// Sets the line.
    #[must_use]
    pub fn at(mut self, line: Option<u32>) -> Self {
        self.line = line;
        self
    }

    /// Prefixes the pointer with `outer`.
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        self.pointer = join(outer, &self.pointer);
        self
    }

    /// Sets the remedy.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Problem {
    /// Writes `line 7: routes[0].uri: message (hint)`. The caller adds the name of the first file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}: ")?;
        }
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.pointer.is_empty() {
            write!(f, "{}: ", self.pointer)?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

/// Returns the pointer of member `key` of the object at `parent`: `a.b`, or `a["x:1"]` for a key that is not a plain
/// word.
#[must_use]
pub fn member(parent: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    match (plain, parent.is_empty()) {
        (true, true) => key.to_owned(),
        (true, false) => format!("{parent}.{key}"),
        (false, _) => format!("{parent}[{key:?}]"),
    }
}

/// Returns the pointer of element `index` of the list at `parent`: `a[0]`.
#[must_use]
pub fn element(parent: &str, index: usize) -> String {
    format!("{parent}[{index}]")
}

/// Returns the pointer of `within`, which begins in the value at `outer`.
#[must_use]
pub fn join(outer: &str, within: &str) -> String {
    match within {
        "" => outer.to_owned(),
        within if outer.is_empty() || within.starts_with('[') => format!("{outer}{within}"),
        within => format!("{outer}.{within}"),
    }
}

/// Returns the JSON pointer (RFC 6901) of a place that [`member`] and [`element`] made, or None for another text.
#[must_use]
pub fn json_pointer(mut place: &str) -> Option<String> {
    let mut pointer = String::new();
    let mut push = |segment: &str| {
        pointer.push('/');
        pointer += &segment.replace('~', "~0").replace('/', "~1");
    };
    while !place.is_empty() {
        if let Some(quoted) = place.strip_prefix("[\"") {
            let end = quoted.find("\"]")?;
            // No field name needs a backslash escape.
            push(Some(&quoted[..end]).filter(|name| !name.contains('\\'))?);
            place = &quoted[end + 2..];
        } else if let Some(index) = place.strip_prefix('[') {
            let end = index.find(']')?;
            push(&index[..end]);
            place = &index[end + 1..];
        } else {
            let word = place.strip_prefix('.').unwrap_or(place);
            let end = word.find(['.', '[']).filter(|end| *end > 0).unwrap_or(word.len());
            push(&word[..end]);
            place = &word[end..];
        }
    }
    Some(pointer)
}

/// Returns the name in `known` of which `written` is most likely a misspelling.
pub fn closest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A long text is not a misspelt name, and the distance takes quadratic time.
    if written.len() > 64 {
        return None;
    }
    let lower = written.to_ascii_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&lower, &name.to_ascii_lowercase()), name))
        .filter(|(distance, name)| *distance <= (name.len().max(lower.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_place_reason_and_remedy() {
        let full = Problem::new("routes[0].uri", "pattern", "must start with /").at(Some(7)).hint("write /a");
        assert_eq!(full.to_string(), "line 7: routes[0].uri: must start with / (write /a)");
        assert_eq!(Problem::new("", "syntax", "empty").to_string(), "empty");
    }

    #[test]
    fn places_are_json_pointers() {
        for (place, expected) in [
            ("rules[0].actions[12][1]", Some("/rules/0/actions/12/1")),
            ("auth_plugins[0].key-auth", Some("/auth_plugins/0/key-auth")),
            ("a[\"b/c.d\"][2]", Some("/a/b~1c.d/2")),
            ("", Some("")),
            ("a[\"b", None),
            ("a[\"b\\\"\"]", None),
            ("a[0", None),
        ] {
            assert_eq!(json_pointer(place).as_deref(), expected, "{place}");
        }
    }

    #[test]
    fn pointers_quote_keys_that_are_not_words() {
        assert_eq!(member(&element(&member("", "upstreams"), 0), "nodes"), "upstreams[0].nodes");
        assert_eq!(member("nodes", "127.0.0.1:80"), "nodes[\"127.0.0.1:80\"]");
    }
}
