//! Path patterns of Vert.x's router, and how its order (first match in the list) is kept in Sigma's router.
//!
//! Sigma's router tries an exact path first, and then prefixes from the longest to the shortest. `priority` only orders
//! routes with the same prefix. If a wide route comes before a narrower one that matches the same requests, the
//! narrower one must not match first. So the narrower route gets the prefix of the wider one, with its own path as a
//! condition.

use regex::Regex;

/// A path pattern of Vert.x: exact, with `:parameters`, or a prefix with `*` at its end.
#[derive(Debug)]
pub(super) struct Path {
    /// The text before the first parameter or star.
    literal: String,
    /// All matching paths, if the pattern has neither parameter nor star.
    exact: Vec<String>,
    /// Whether the pattern is literal text with a `*` at the end.
    plain_prefix: bool,
    /// Equivalent patterns of Sigma's router, if any.
    native: Vec<String>,
    /// The whole pattern.
    regex: Regex,
}

/// The conditions of a route in addition to its path.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) path: Path,
    /// The host pattern of the route's router, lower-cased; none for any host.
    pub(super) host: Option<String>,
    /// Whether the route also has conditions on methods or media types.
    pub(super) conditional: bool,
}

/// How a route is expressed in Sigma's format.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Placing {
    /// As its own patterns.
    Native(Vec<String>),
    /// As a wider pattern, with a regular expression on the path.
    Under(String, String),
    /// The route never matches: the route with this index matches all its requests.
    Unreachable(usize),
}

impl Path {
    /// Parses a pattern. The error describes the fault.
    pub(super) fn parse(pattern: &str) -> Result<Path, String> {
        if !pattern.starts_with('/') {
            return Err(format!("the path `{pattern}` does not begin with `/`"));
        }
        let (body, prefix) = match pattern.strip_suffix('*') {
            Some(body) => (body, true),
            None => (pattern, false),
        };
        let literal = &body[..body.find([':', '*']).unwrap_or(body.len())];
        let (source, parameters) = regex_source(body);
        let optional_slash = !prefix && parameters == 0 && !body.ends_with('/');
        let end = match (prefix, optional_slash) {
            (true, _) => "",
            (false, true) => "/?$",
            (false, false) => "$",
        };
        let regex = Regex::new(&format!("^{source}{end}"))
            .map_err(|error| format!("the path `{pattern}` cannot be matched: {error}"))?;
        let is_literal = literal.len() == body.len();
        let exact = match (prefix || parameters > 0, optional_slash) {
            (true, _) => Vec::new(),
            // Without a trailing slash, a Vert.x path matches with and without one.
            (false, true) => vec![body.to_owned(), format!("{body}/")],
            (false, false) => vec![body.to_owned()],
        };
        let native = match (is_literal, parameters) {
            (true, _) if prefix => vec![pattern.to_owned()],
            (true, _) => exact.clone(),
            (false, 1..) if parameters_are_native(body, prefix) => vec![pattern.to_owned()],
            _ => Vec::new(),
        };
        Ok(Path { literal: literal.to_owned(), exact, plain_prefix: is_literal && prefix, native, regex })
    }

    /// Returns the precedence in Sigma's router: longer patterns first, exact paths before all.
    fn key(&self) -> usize {
        if self.is_exact() && !self.native.is_empty() { usize::MAX } else { self.literal.len() }
    }

    fn is_exact(&self) -> bool {
        !self.exact.is_empty()
    }

    /// Returns whether some path may match both patterns. The result may be a wrong yes, never a wrong no.
    fn meets(&self, other: &Path) -> bool {
        match (self.is_exact(), other.is_exact()) {
            (true, true) => self.exact.iter().any(|path| other.exact.contains(path)),
            (true, false) => self.exact.iter().any(|path| other.regex.is_match(path)),
            (false, true) => other.exact.iter().any(|path| self.regex.is_match(path)),
            (false, false) => {
                self.literal.starts_with(&other.literal) || other.literal.starts_with(&self.literal)
            }
        }
    }

    /// Returns whether every path that matches `other` matches this pattern. The result may be a wrong no, never a
    /// wrong yes.
    fn covers(&self, other: &Path) -> bool {
        if other.is_exact() {
            return other.exact.iter().all(|path| self.regex.is_match(path));
        }
        self.regex.as_str() == other.regex.as_str()
            || (self.plain_prefix && other.literal.starts_with(&self.literal))
    }
}

/// Returns the pattern as a regular expression without anchors, and its number of parameters.
fn regex_source(body: &str) -> (String, usize) {
    let mut source = String::new();
    let mut parameters = 0;
    let mut rest = body;
    while let Some(colon) = rest.find(':') {
        let (before, after) = (&rest[..colon], &rest[colon + 1..]);
        source.push_str(&regex::escape(before));
        let name = parameter_name(after);
        if name.is_empty() {
            source.push(':');
        } else {
            source.push_str("[^/]+");
            parameters += 1;
        }
        rest = &after[name.len()..];
    }
    source.push_str(&regex::escape(rest));
    (source, parameters)
}

fn parameter_name(text: &str) -> &str {
    if !text.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return "";
    }
    let end = text.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(text.len());
    &text[..end]
}

/// Returns whether Sigma's router reads the parameters of this pattern as Vert.x does: each is a whole segment, and the
/// text has no regular expression syntax.
fn parameters_are_native(body: &str, prefix: bool) -> bool {
    let is_plain =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_~%".contains(&byte));
    let fits = |segment: &str| match segment.strip_prefix(':') {
        Some(name) => !name.is_empty() && parameter_name(name) == name,
        None => is_plain(segment),
    };
    (!prefix || body.ends_with('/')) && body.split('/').all(fits)
}

/// Places routes given in the order in which Vert.x tries them.
pub(super) fn arrange(entries: &[&Entry]) -> Vec<Placing> {
    let mut keys: Vec<usize> = Vec::with_capacity(entries.len());
    let mut placings: Vec<Placing> = Vec::with_capacity(entries.len());
    for entry in entries {
        let mut key = entry.path.key();
        let mut shadow = None;
        for (index, earlier) in entries[..keys.len()].iter().enumerate() {
            if matches!(placings[index], Placing::Unreachable(_)) || !hosts_meet(earlier, entry) {
                continue;
            }
            if takes_all(earlier, entry) {
                shadow = Some(index);
                break;
            }
            if keys[index] < key && earlier.path.meets(&entry.path) {
                key = keys[index].min(entry.path.literal.len());
            }
        }
        let placing = match shadow {
            Some(index) => Placing::Unreachable(index),
            None if key == entry.path.key() && !entry.path.native.is_empty() => {
                Placing::Native(entry.path.native.clone())
            }
            None => {
                let key = key.min(entry.path.literal.len());
                Placing::Under(
                    format!("{}*", &entry.path.literal[..key]),
                    entry.path.regex.as_str().to_owned(),
                )
            }
        };
        keys.push(key);
        placings.push(placing);
    }
    placings
}

fn takes_all(earlier: &Entry, entry: &Entry) -> bool {
    let any_host = earlier.host.is_none() || earlier.host == entry.host;
    !earlier.conditional && any_host && earlier.path.covers(&entry.path)
}

fn hosts_meet(a: &Entry, b: &Entry) -> bool {
    match (&a.host, &b.host) {
        (Some(a), Some(b)) => a == b || a.contains('*') || b.contains('*'),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, host: Option<&str>, conditional: bool) -> Entry {
        Entry { path: Path::parse(path).unwrap(), host: host.map(Into::into), conditional }
    }

    fn native(patterns: &[&str]) -> Placing {
        Placing::Native(patterns.iter().map(|&pattern| pattern.to_owned()).collect())
    }

    fn under(pattern: &str, regex: &str) -> Placing {
        Placing::Under(pattern.into(), regex.into())
    }

    #[test]
    fn says_paths_in_the_patterns_of_the_router() {
        let check = |path: &str, expected: Placing| {
            assert_eq!(arrange(&[&entry(path, None, false)]), [expected], "{path}");
        };
        check("/", native(&["/"]));
        check("/*", native(&["/*"]));
        check("/test/*", native(&["/test/*"]));
        check("/test", native(&["/test", "/test/"]));
        check("/test/", native(&["/test/"]));
        check("/users/:id", native(&["/users/:id"]));
        check("/users/:id/posts/*", native(&["/users/:id/posts/*"]));
        check("/v1.0/:id", under("/v1.0/*", r"^/v1\.0/[^/]+$"));
        check("/a/:x-:y", under("/a/*", r"^/a/[^/]+\-[^/]+$"));
        check("/a/:x*", under("/a/*", r"^/a/[^/]+"));
        check("/a*b", under("/a*", r"^/a\*b/?$"));
        check("/a/:", under("/a/*", r"^/a/:/?$"));
    }

    #[test]
    fn keeps_the_order_of_the_list() {
        let check = |paths: &[(&str, Option<&str>, bool)], expected: &[Placing]| {
            let entries: Vec<Entry> =
                paths.iter().map(|&(path, host, conditional)| entry(path, host, conditional)).collect();
            assert_eq!(arrange(&entries.iter().collect::<Vec<_>>()), expected, "{paths:?}");
        };
        check(
            &[("/a/b", None, false), ("/a/*", None, false)],
            &[native(&["/a/b", "/a/b/"]), native(&["/a/*"])],
        );
        check(&[("/a/*", None, false), ("/a/b", None, false)], &[native(&["/a/*"]), Placing::Unreachable(0)]);
        check(
            &[("/a/*", None, true), ("/a/b", None, false)],
            &[native(&["/a/*"]), under("/a/*", "^/a/b/?$")],
        );
        check(
            &[("/*", None, true), ("/a/*", None, true), ("/a/b/*", None, true)],
            &[native(&["/*"]), under("/*", "^/a/"), under("/*", "^/a/b/")],
        );
        check(
            &[("/u/:id", None, false), ("/u/me", None, false)],
            &[native(&["/u/:id"]), under("/u/*", "^/u/me/?$")],
        );
        check(
            &[("/a/*", Some("x"), false), ("/a/b", Some("y"), false)],
            &[native(&["/a/*"]), native(&["/a/b", "/a/b/"])],
        );
        check(
            &[("/a/*", Some("*.x"), false), ("/a/b", None, false)],
            &[native(&["/a/*"]), under("/a/*", "^/a/b/?$")],
        );
        // `/a` also matches `/a/`, which the first route takes.
        check(&[("/a/*", None, false), ("/a", None, false)], &[native(&["/a/*"]), under("/a*", "^/a/?$")]);
    }
}
