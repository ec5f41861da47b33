//! Search and replace as nginx's `ngx.re.sub` and `gsub` do it.

use regex::bytes::{Captures, Regex, RegexBuilder};
use sigma_schema::validation::pcre;

/// Largest compiled form in bytes, so that a short pattern cannot take much memory.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// The result of a substitution in a path.
#[derive(Debug, PartialEq, Eq)]
pub struct NewTarget {
    /// The path, percent-encoded.
    pub path: Vec<u8>,
    /// The query without `?`; None without one.
    pub query: Option<Vec<u8>>,
    /// The values of the match's groups.
    pub groups: Vec<Vec<u8>>,
}

/// The writing of the parts of a new target.
pub struct TargetWriting<'w> {
    /// The replacement's own text before its query.
    pub literal: &'w dyn Fn(&[u8], &mut Vec<u8>),
    /// The request's text before the query.
    pub in_path: &'w dyn Fn(&[u8], &mut Vec<u8>),
    /// The request's text in the query.
    pub in_query: &'w dyn Fn(&[u8], &mut Vec<u8>),
}

/// Appends a text as it is.
pub fn verbatim(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(text);
}

/// The flags of `ngx.re`.
const FLAGS: &str = "adDijJmosuUx";

/// A pattern and the replacement of its matches.
#[derive(Debug)]
pub struct Substitution {
    regex: Regex,
    /// The pattern has a `$` for the end of the text.
    ends_text: bool,
    replacement: Vec<Piece>,
}

/// The result exceeds its limit.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

#[derive(Debug)]
enum Piece {
    Literal(Vec<u8>),
    Group(usize),
}

/// Compiles a pattern of PCRE. `flags` are the flags of `ngx.re`; those that only control its engine are ignored.
pub fn compile(pattern: &str, flags: &str) -> Result<Regex, String> {
    if let Some(flag) = flags.chars().find(|flag| !FLAGS.contains(*flag)) {
        return Err(format!("unknown flag \"{flag}\" (flags \"{flags}\")"));
    }
    let translated = pcre::translate(pattern).map_err(|reason| format!("pattern `{pattern}` {reason}"))?;
    let translated = if flags.contains('a') { format!(r"\A(?:{translated})") } else { translated };
    let build = |unicode| {
        RegexBuilder::new(&translated)
            .unicode(unicode)
            .case_insensitive(flags.contains('i'))
            .multi_line(flags.contains('m'))
            .dot_matches_new_line(flags.contains('s'))
            .ignore_whitespace(flags.contains('x'))
            .size_limit(MAX_REGEX_BYTES)
            .build()
    };
    // Bytes, as PCRE without its flag `u`; only a class with letters beyond ASCII needs the other.
    let unicode = flags.contains('u');
    let built = build(unicode).or_else(|error| if unicode { Err(error) } else { build(true) });
    built.map_err(|error| {
        // The crate's error draws the pattern over several lines; its last line is the reason.
        let text = error.to_string();
        text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
    })
}

impl Substitution {
    /// Compiles a pattern and its replacement.
    ///
    /// # Errors
    /// Returns the reason if the pattern or a flag is invalid.
    pub fn new(pattern: &str, replacement: &str, flags: &str) -> Result<Substitution, String> {
        Ok(Substitution {
            regex: compile(pattern, flags)?,
            ends_text: pattern.contains('$') && !flags.contains('m'),
            replacement: pieces(replacement)?,
        })
    }

    /// Returns the text with its first match replaced, and the values of that match's groups. None without a match.
    pub fn first(&self, text: &[u8]) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
        let captures = self.regex.captures(text)?;
        // Group 0 is there in every match.
        let whole = captures.get(0)?;
        let mut out = text[..whole.start()].to_vec();
        self.expand(&captures, &mut out);
        out.extend_from_slice(&text[whole.end()..]);
        Some((out, groups(&captures)))
    }

    /// Does the same as [`Substitution::first`] for a request target: the text after the first `?` of the replacement
    /// is a query. Each part is written as `written` says.
    pub fn target(&self, text: &[u8], written: &TargetWriting<'_>) -> Option<NewTarget> {
        let captures = self.regex.captures(text)?;
        // Group 0 is there in every match.
        let whole = captures.get(0)?;
        let (mut path, mut query) = (Vec::new(), None);
        let literal = |text: &[u8], path: &mut Vec<u8>, query: &mut Option<Vec<u8>>| match query {
            Some(query) => query.extend_from_slice(text),
            None => match text.iter().position(|byte| *byte == b'?') {
                Some(at) => {
                    (written.literal)(&text[..at], path);
                    *query = Some(text[at + 1..].to_vec());
                }
                None => (written.literal)(text, path),
            },
        };
        let matched = |text: &[u8], path: &mut Vec<u8>, query: &mut Option<Vec<u8>>| match query {
            Some(query) => (written.in_query)(text, query),
            None => (written.in_path)(text, path),
        };
        matched(&text[..whole.start()], &mut path, &mut query);
        for piece in &self.replacement {
            match piece {
                Piece::Literal(text) => literal(text, &mut path, &mut query),
                Piece::Group(number) => {
                    let text = captures.get(*number).map_or(&b""[..], |group| group.as_bytes());
                    matched(text, &mut path, &mut query);
                }
            }
        }
        matched(&text[whole.end()..], &mut path, &mut query);
        Some(NewTarget { path, query, groups: groups(&captures) })
    }

    /// Returns the text with its first `matches` matches replaced, of `limit` bytes at most.
    ///
    /// # Errors
    /// Returns an error if the result would be longer than `limit`: a replacement may be longer than a match of one
    /// byte.
    pub fn bounded(&self, text: Vec<u8>, matches: usize, limit: usize) -> Result<Vec<u8>, TooLong> {
        let (mut out, mut copied, mut at, mut left) = (Vec::new(), 0, 0, matches);
        while left > 0
            && at <= text.len()
            && let Some(captures) = self.find_in_text(&text, at)
        {
            // Group 0 is there in every match.
            let Some(whole) = captures.get(0) else { break };
            at = whole.end();
            if whole.is_empty() {
                // The next one begins further on; one that touches the match before it does not count.
                at += 1;
                if copied == whole.end() && left < matches {
                    continue;
                }
            }
            out.extend_from_slice(&text[copied..whole.start()]);
            self.expand(&captures, &mut out);
            (copied, left) = (whole.end(), left - 1);
            if out.len() > limit {
                return Err(TooLong);
            }
        }
        if left == matches {
            return Ok(text);
        }
        out.extend_from_slice(&text[copied..]);
        if out.len() > limit { Err(TooLong) } else { Ok(out) }
    }

    /// Returns the first match from `at` on. As with PCRE, a `$` also matches before a line feed at the end.
    ///
    /// This does not hold for guards, see [`pcre`]; changing a body is no guard.
    fn find_in_text<'t>(&self, text: &'t [u8], at: usize) -> Option<Captures<'t>> {
        let found = self.regex.captures_at(text, at);
        let Some(line) = text.strip_suffix(b"\n").filter(|line| self.ends_text && at <= line.len()) else {
            return found;
        };
        let start = |captures: &Captures<'t>| captures.get(0).map_or(usize::MAX, |whole| whole.start());
        match (found, self.regex.captures_at(line, at)) {
            (Some(found), Some(before)) if start(&found) <= start(&before) => Some(found),
            (found, before) => before.or(found),
        }
    }

    fn expand(&self, captures: &Captures<'_>, out: &mut Vec<u8>) {
        for piece in &self.replacement {
            match piece {
                Piece::Literal(text) => out.extend_from_slice(text),
                Piece::Group(number) => {
                    out.extend_from_slice(captures.get(*number).map_or(b"", |group| group.as_bytes()));
                }
            }
        }
    }
}

fn groups(captures: &Captures<'_>) -> Vec<Vec<u8>> {
    captures.iter().map(|group| group.map_or_else(Vec::new, |group| group.as_bytes().to_vec())).collect()
}

/// Parses `$1`, `${1}` and `$$`; nothing else may follow a dollar sign, as with nginx.
fn pieces(replacement: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut literal = Vec::new();
    let mut rest = replacement;
    while let Some(at) = rest.find('$') {
        literal.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            literal.push(b'$');
            rest = after;
            continue;
        }
        let braced = rest.strip_prefix('{');
        let digits = braced.unwrap_or(rest);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let number = digits[..end].parse().ok();
        let after = match braced {
            Some(_) => digits[end..].strip_prefix('}'),
            None => Some(&digits[end..]),
        };
        let (Some(number), Some(after)) = (number, after) else {
            return Err(format!("attempting to use invalid replacement template: \"{replacement}\""));
        };
        if !literal.is_empty() {
            pieces.push(Piece::Literal(std::mem::take(&mut literal)));
        }
        pieces.push(Piece::Group(number));
        rest = after;
    }
    literal.extend_from_slice(rest.as_bytes());
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_are_replaced() {
        let check = |pattern: &str, replacement: &str, text: &str, first: &str, all: &str| {
            let substitution = Substitution::new(pattern, replacement, "jo").unwrap();
            let shown = |text: Option<Vec<u8>>| text.map_or("none".into(), |t| String::from_utf8(t).unwrap());
            assert_eq!(shown(substitution.first(text.as_bytes()).map(|(text, _)| text)), first, "{pattern}");
            let replaced = substitution.bounded(text.into(), usize::MAX, 100).unwrap();
            assert_eq!(String::from_utf8(replaced).unwrap(), all, "{pattern}");
        };
        check("a(.)", "<$1>", "xabac", "x<b>ac", "x<b><c>");
        check("a", "${0}${0}", "aba", "aaba", "aabaa");
        check("(a)|b", "$1!", "ba", "!a", "!a!");
        check("z", "$9", "a", "none", "a");
        check("a", "$$1", "a", "$1", "$1");
        check("a", "", "a", "", "");
        check("", "-", "ab", "-ab", "-a-b-");
        check("b*", "-", "abc", "-abc", "-a-c-");
        check("^/(?<x>.*)$", "/p/$1?q", "/é", "/p/é?q", "/p/é?q");
    }

    #[test]
    fn the_end_of_a_text_is_before_its_last_line_feed_too() {
        let check = |pattern: &str, flags: &str, text: &str, expected: &str| {
            let substitution = Substitution::new(pattern, "-", flags).unwrap();
            let replaced = substitution.bounded(text.into(), usize::MAX, 100).unwrap();
            assert_eq!(String::from_utf8(replaced).unwrap(), expected, "{pattern} {text:?}");
        };
        check("a$", "", "a\na\n", "a\n-\n");
        check("a$", "", "aa", "a-");
        check("a$", "", "a\n\n", "a\n\n");
        check("a\\s*$", "", "ba \n", "b-");
        check("a\\n$", "", "a\n", "-");
        check("a$", "m", "a\na\n", "-\n-\n");
        check(r"a\z", "", "a\n", "a\n");
    }

    #[test]
    fn results_have_a_limit() {
        let bounded = |matches, limit| {
            let substitution = Substitution::new("a", "long$0", "").unwrap();
            substitution.bounded(b"aaa".to_vec(), matches, limit).map(|text| text.len())
        };
        assert_eq!(bounded(usize::MAX, 15), Ok(15));
        assert_eq!(bounded(usize::MAX, 14), Err(TooLong));
        assert_eq!(bounded(1, 7), Ok(7));
        assert_eq!(bounded(1, 6), Err(TooLong));
    }

    #[test]
    fn invalid_replacements_are_rejected() {
        let check = |pattern: &str, replacement: &str, expected: &str| {
            let error = Substitution::new(pattern, replacement, "").unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check("a(", "", "unclosed group");
        check("a", "$x", "invalid replacement template: \"$x\"");
        check("a", "${1", "invalid replacement");
        check("(?<=a)b", "", "look-behind");
        let unknown = Substitution::new("a", "", "ijz").unwrap_err();
        assert_eq!(unknown, "unknown flag \"z\" (flags \"ijz\")");
    }

    #[test]
    fn flags_match_nginx() {
        let matches =
            |pattern: &str, flags: &str, text: &[u8]| compile(pattern, flags).unwrap().is_match(text);
        assert!(matches("A", "ijo", b"a") && !matches("A", "jo", b"a"));
        assert!(matches("a.b", "s", b"a\nb") && !matches("a.b", "", b"a\nb"));
        assert!(matches("a", "a", b"ab") && !matches("b", "a", b"ab"));
        assert!(matches("^.$", "", b"\xff"));
    }
}
