//! Regular expressions as path patterns: `~^/api/(?<id>[0-9]+)$`, or `~*` to ignore case.
//!
//! The expression is PCRE as far as it needs no backtracking, and is searched in the decoded, normalised path. Its
//! groups are captures: `1` to `9`, and their names.

use std::borrow::Cow;
use std::ops::Range;

use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind, Look};

use crate::validation::pcre;

/// Maximum compiled size in bytes, so that a short text cannot take much memory.
const MAX_BYTES: usize = 1 << 20;

/// The groups that have a number as their name, as `$1` to `$9` of nginx.
const MAX_NUMBERED: usize = 9;

/// A path pattern that is a regular expression, as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written<'a> {
    expression: &'a str,
    ignores_case: bool,
}

/// A compiled one.
#[derive(Debug)]
pub struct PathRegex {
    regex: Regex,
    /// The number of each group and its name; a named group is listed twice.
    groups: Vec<(usize, String)>,
}

impl<'a> Written<'a> {
    /// Returns the expression of a path pattern; None for other patterns.
    #[must_use]
    pub fn of(pattern: &'a str) -> Option<Written<'a>> {
        let expression = pattern.strip_prefix('~')?;
        Some(match expression.strip_prefix('*') {
            // A `*` without an expression before it is no expression.
            Some(expression) => Written { expression, ignores_case: true },
            None => Written { expression, ignores_case: false },
        })
    }

    /// Compiles the expression.
    ///
    /// # Errors
    /// Returns the reason if it is invalid.
    pub fn compile(self) -> Result<PathRegex, String> {
        let regex = self.builder(&self.translated()?, false).build();
        // Bytes, as paths need not be UTF-8; only a class with letters beyond ASCII needs the other.
        let regex = match regex {
            Ok(regex) => regex,
            Err(_) => self.builder(&self.translated()?, true).build().map_err(|error| sentence(&error))?,
        };
        if self.expression.is_empty() {
            return Err("the expression is empty".to_owned());
        }
        let numbered = (1..regex.captures_len().min(MAX_NUMBERED + 1)).map(|at| (at, at.to_string()));
        let named = regex.capture_names().enumerate().filter_map(|(at, name)| Some((at, name?.to_owned())));
        let groups = numbered.chain(named).collect();
        Ok(PathRegex { regex, groups })
    }

    /// Returns the literal text with which each matching path begins; empty without one.
    #[must_use]
    pub fn prefix(self) -> Cow<'static, [u8]> {
        let parsed = self.translated().ok().and_then(|expression| {
            let mut parser =
                ParserBuilder::new().utf8(false).unicode(false).case_insensitive(self.ignores_case).build();
            parser.parse(&expression).ok()
        });
        parsed.map_or(Cow::Borrowed(b""), |hir| Cow::Owned(literal_beginning(&hir)))
    }

    fn translated(self) -> Result<String, String> {
        pcre::translate(self.expression).map_err(|reason| format!("the expression {reason}"))
    }

    fn builder(self, expression: &str, unicode: bool) -> RegexBuilder {
        let mut builder = RegexBuilder::new(expression);
        builder.unicode(unicode).case_insensitive(self.ignores_case).size_limit(MAX_BYTES);
        builder
    }
}

impl PathRegex {
    /// Returns true if the expression matches anywhere in the path.
    #[must_use]
    pub fn is_match(&self, path: &[u8]) -> bool {
        self.regex.is_match(path)
    }

    /// Returns the names of the captures.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|(_, name)| name.as_str())
    }

    /// Passes the index of each name in [`PathRegex::names`] and the range of its capture to `visit`. Groups without a
    /// match are omitted.
    pub fn captures(&self, path: &[u8], mut visit: impl FnMut(usize, Range<usize>)) {
        if self.groups.is_empty() {
            return;
        }
        let mut found = self.regex.capture_locations();
        if self.regex.captures_read(&mut found, path).is_none() {
            return;
        }
        for (at, (group, _)) in self.groups.iter().enumerate() {
            if let Some((start, end)) = found.get(*group) {
                visit(at, start..end);
            }
        }
    }
}

/// Returns the literal after a `^` at the beginning.
fn literal_beginning(hir: &Hir) -> Vec<u8> {
    let HirKind::Concat(parts) = hir.kind() else { return Vec::new() };
    match parts.as_slice() {
        [start, literal, ..] if *start.kind() == HirKind::Look(Look::Start) => match literal.kind() {
            HirKind::Literal(literal) => literal.0.to_vec(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Returns the reason of an error; the parser draws the expression in the lines before it.
fn sentence(error: &regex::Error) -> String {
    let text = error.to_string();
    format!(
        "the expression is invalid: {}",
        text.lines().last().unwrap_or_default().trim_start_matches("error: ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_and_capture() {
        let check = |pattern: &str, path: &str, expected: Option<&[(&str, &str)]>| {
            let compiled = Written::of(pattern).unwrap().compile().unwrap();
            let names: Vec<&str> = compiled.names().collect();
            let mut found = Vec::new();
            compiled.captures(path.as_bytes(), |at, range| found.push((names[at], &path[range])));
            let found = compiled.is_match(path.as_bytes()).then_some(found);
            assert_eq!(found.as_deref(), expected, "{pattern} {path}");
        };
        check("~^/api/(?<id>[0-9]+)$", "/api/17", Some(&[("1", "17"), ("id", "17")]));
        check("~^/api/(?<id>[0-9]+)$", "/api/x", None);
        check("~\\.php$", "/a/b.php", Some(&[]));
        check("~\\.php$", "/a/b.PHP", None);
        check("~*\\.(gif|jpe?g)$", "/a/b.JPG", Some(&[("1", "JPG")]));
        check("~^/(a)?(b)", "/b", Some(&[("2", "b")]));
        check("~^/é$", "/é", Some(&[]));
        check("~^/[\\w\\-]+/?$", "/a-b/", Some(&[]));
    }

    #[test]
    fn prefixes_are_literal_beginnings() {
        for (pattern, expected) in [
            ("~^/api/v[0-9]", "/api/v"),
            ("~^/a\\.b/(.*)$", "/a.b/"),
            ("~^/ab?", "/a"),
            ("~^/ab*c", "/a"),
            ("~^/a|^/b", ""),
            ("~\\.php$", ""),
            ("~*^/api/", "/"),
            ("~^/(api)/", "/"),
            ("~^", ""),
            ("~^/$", "/"),
            ("~(", ""),
        ] {
            let found = Written::of(pattern).unwrap().prefix();
            assert_eq!(String::from_utf8_lossy(&found), expected, "{pattern}");
        }
    }

    #[test]
    fn other_patterns_are_refused() {
        assert_eq!(Written::of("/a~b"), None);
        assert!(Written::of("~").unwrap().compile().is_err());
        assert!(Written::of("~(").unwrap().compile().unwrap_err().starts_with("the expression"));
        assert!(Written::of("~^/(?=a)b").unwrap().compile().is_err());
    }
}
