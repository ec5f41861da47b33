//! Regular expressions: from PCRE to the syntax of the crate `regex`.

use regex::Regex;
use serde_json::{Value, json};

/// A regular expression.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    /// In the syntax of the crate `regex`.
    pub(super) text: String,
    pub(super) ignore_case: bool,
    regex: Regex,
}

impl Pattern {
    /// Translates an expression of nginx.
    ///
    /// # Errors
    /// Returns a sentence if it has no form without look-around and back references.
    pub(super) fn new(pcre: &str, ignore_case: bool) -> Result<Pattern, String> {
        let text = translate(pcre)?;
        let regex = regex::RegexBuilder::new(&text)
            .case_insensitive(ignore_case)
            .size_limit(1 << 20)
            .build()
            .map_err(|_| {
                format!("the regular expression `{pcre}` uses syntax that the crate `regex` lacks")
            })?;
        Ok(Pattern { text, ignore_case, regex })
    }

    /// Splits an expression `^A(?!B)`: what matches `^A`, and the exception that matches `^A(?:B)`.
    pub(super) fn with_exception(pcre: &str) -> Option<(Pattern, Pattern)> {
        let (start, rest) = pcre.split_once("(?!")?;
        let inner = rest.strip_suffix(')').filter(|_| start.starts_with('^'))?;
        let mut depth = 0i32;
        for byte in inner.bytes() {
            depth += i32::from(byte == b'(') - i32::from(byte == b')');
            if depth < 0 {
                return None;
            }
        }
        let exception = Pattern::new(&format!("{start}(?:{inner})"), false).ok()?;
        Some((Pattern::new(start, false).ok()?, exception))
    }

    /// Returns the condition that a variable does not match it.
    pub(super) fn exclusion(&self, variable: &str) -> Value {
        json!([variable, "!", if self.ignore_case { "~*" } else { "~~" }, self.text])
    }

    /// Returns the condition that a variable matches it.
    pub(super) fn condition(&self, variable: &str) -> Value {
        json!([variable, if self.ignore_case { "~*" } else { "~~" }, self.text])
    }

    /// Returns whether it matches a text.
    pub(super) fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// Returns the groups of the match in a text, the whole match first.
    pub(super) fn groups(&self, text: &str) -> Option<Vec<String>> {
        let groups = self.regex.captures(text)?;
        Some(
            groups
                .iter()
                .map(|group| group.map_or(String::new(), |group| group.as_str().to_owned()))
                .collect(),
        )
    }

    /// Returns the number of the group with this name.
    pub(super) fn group(&self, name: &str) -> Option<usize> {
        self.regex.capture_names().position(|known| known == Some(name))
    }

    /// Returns the names of its groups.
    pub(super) fn names(&self) -> Vec<String> {
        self.regex.capture_names().flatten().map(str::to_owned).collect()
    }

    /// Returns the literal text with which every match begins at the start of the subject, and whether the rest of
    /// the expression matches everything.
    pub(super) fn anchored(&self) -> Option<(String, bool)> {
        let rest = self.text.strip_prefix('^')?;
        if self.ignore_case || self.text.contains('|') {
            return None;
        }
        let (mut literal, mut chars) = (String::new(), rest.char_indices().peekable());
        while let Some((at, char)) = chars.next() {
            let (found, end) = match char {
                '\\' => match chars.next() {
                    Some((next_at, next)) if !next.is_ascii_alphanumeric() => {
                        (next, next_at + next.len_utf8())
                    }
                    _ => return Some((literal, false)),
                },
                char if ".[]()*+?{}|$".contains(char) => {
                    return Some((literal, matches!(&rest[at..], "(.*)" | "(.*)$" | ".*" | ".*$")));
                }
                char => (char, at + char.len_utf8()),
            };
            if rest[end..].starts_with(['*', '?', '{']) {
                return Some((literal, false));
            }
            literal.push(found);
        }
        Some((literal, true))
    }
}

/// Whether an expression matches a text with variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StaticMatch {
    Yes,
    No,
    Maybe,
}

/// Returns whether an expression matches a text in which `$` begins a variable.
pub(super) fn known_match(pattern: &Pattern, text: &str) -> StaticMatch {
    let Some(first) = text.find('$') else {
        return if pattern.is_match(text) { StaticMatch::Yes } else { StaticMatch::No };
    };
    let prefix = &text[..first];
    if let Some((literal, is_rest_free)) = pattern.anchored() {
        if prefix.starts_with(&literal) && is_rest_free {
            return StaticMatch::Yes;
        }
        if !prefix.starts_with(&literal) && !literal.starts_with(prefix) {
            return StaticMatch::No;
        }
        return StaticMatch::Maybe;
    }
    let suffix = literal_suffix(text);
    let is_anchored =
        pattern.text.contains('^') || pattern.text.contains("\\b") || pattern.text.contains("\\A");
    if !is_anchored && !suffix.is_empty() && pattern.is_match(suffix) {
        return StaticMatch::Yes;
    }
    StaticMatch::Maybe
}

/// The text after the last variable.
fn literal_suffix(text: &str) -> &str {
    let Some(last) = text.rfind('$') else { return text };
    let rest = &text[last + 1..];
    match rest.strip_prefix('{') {
        Some(inner) => inner.split_once('}').map_or("", |(_, rest)| rest),
        None => rest.trim_start_matches(|char: char| char.is_ascii_alphanumeric() || char == '_'),
    }
}

/// Rewrites what PCRE has and the crate `regex` lacks or spells otherwise.
fn translate(pcre: &str) -> Result<String, String> {
    let mut text = String::with_capacity(pcre.len());
    let bytes = pcre.as_bytes();
    let mut at = 0;
    let mut in_class = false;
    while at < bytes.len() {
        let rest = &pcre[at..];
        let step = match bytes[at] {
            b'\\' => {
                let next = rest[1..].chars().next().ok_or("the regular expression ends in a backslash")?;
                escape(next, &mut text)?;
                1 + next.len_utf8()
            }
            b'[' if !in_class => {
                in_class = true;
                text.push('[');
                // A bracket directly after the start is a character.
                let negation = usize::from(rest[1..].starts_with('^'));
                if negation == 1 {
                    text.push('^');
                }
                if rest[1 + negation..].starts_with(']') {
                    text.push_str("\\]");
                    2 + negation
                } else {
                    1 + negation
                }
            }
            b']' if in_class => {
                in_class = false;
                text.push(']');
                1
            }
            // Nested classes and set operations are the crate's own.
            byte @ (b'[' | b'&' | b'~') if in_class => {
                if rest.starts_with("[:") {
                    let end = rest.find(":]").ok_or("a character class is not closed")?;
                    text.push_str(&rest[..end + 2]);
                    end + 2
                } else {
                    text.push('\\');
                    text.push(char::from(byte));
                    1
                }
            }
            b'(' if !in_class => group(rest, &mut text)?,
            b'{' if !in_class && !is_repetition(rest) => {
                text.push_str("\\{");
                1
            }
            b'*' | b'+' | b'?' | b'}' if !in_class && rest[1..].starts_with('+') => {
                return Err(format!("the regular expression `{pcre}` has a possessive quantifier"));
            }
            _ => {
                let char = rest.chars().next().unwrap_or_default();
                text.push(char);
                char.len_utf8()
            }
        };
        at += step;
    }
    Ok(text)
}

fn is_repetition(rest: &str) -> bool {
    let Some((inside, _)) = rest[1..].split_once('}') else { return false };
    !inside.is_empty()
        && inside.bytes().all(|byte| byte.is_ascii_digit() || byte == b',')
        && inside.as_bytes()[0].is_ascii_digit()
}

fn escape(next: char, text: &mut String) -> Result<(), String> {
    match next {
        '1'..='9' => return Err("the regular expression has a back reference".to_owned()),
        'Z' => text.push_str("\\z"),
        'h' => text.push_str("[ \\t]"),
        'R' => text.push_str("(?:\\r\\n|\\n|\\r)"),
        'G' | 'K' | 'X' | 'C' => return Err(format!("the regular expression has `\\{next}`")),
        // Escapes without meaning are an error there.
        '/' | '"' | '\'' | ',' | ':' | ';' | '=' | '@' | '!' | '%' | '_' | '<' | '>' | '`' => text.push(next),
        next => {
            text.push('\\');
            text.push(next);
        }
    }
    Ok(())
}

/// Translates the beginning of a group, or a whole look-ahead.
fn group(rest: &str, text: &mut String) -> Result<usize, String> {
    if let Some(negative) = rest.strip_prefix("(?!") {
        return look_ahead(negative, rest, text);
    }
    for (pcre, ours) in [("(?<", "(?P<"), ("(?'", "(?P<"), ("(?P<", "(?P<")] {
        let Some(name) = rest.strip_prefix(pcre) else { continue };
        if pcre == "(?<" && name.starts_with(['=', '!']) {
            return Err("the regular expression has a look-behind".to_owned());
        }
        let end = name.find(['>', '\'']).ok_or("the name of a group is not closed")?;
        text.push_str(ours);
        text.push_str(&name[..end]);
        text.push('>');
        return Ok(pcre.len() + end + 1);
    }
    if rest.starts_with("(?=") {
        return Err("the regular expression has a look-ahead".to_owned());
    }
    if rest.starts_with("(?>") || rest.starts_with("(?|") || rest.starts_with("(?#") || rest.starts_with("(*")
    {
        return Err("the regular expression has an atomic group, a comment or a verb".to_owned());
    }
    text.push('(');
    Ok(1)
}

/// Translates a negative look-ahead for literals whose rest matches everything: texts that do not begin with one of
/// them.
fn look_ahead(negative: &str, rest: &str, text: &mut String) -> Result<usize, String> {
    let cannot = || "the regular expression has a look-ahead".to_owned();
    let end = negative.find(')').ok_or_else(cannot)?;
    let after = &negative[end + 1..];
    // Of a group that ends an alternative, the rest of the text belongs to it.
    let group_end = after.strip_prefix(".*").filter(|tail| {
        let behind = tail.trim_start_matches(')');
        tail.starts_with(')') && (behind.is_empty() || behind.starts_with('|'))
    });
    if group_end.is_none() && !matches!(after, "" | ".*" | ".*$" | "(.*)" | "(.*)$") {
        return Err(cannot());
    }
    let mut literals = Vec::new();
    for part in negative[..end].split('|') {
        let plain = part.replace("\\.", "\u{1}").replace("\\-", "-").replace("\\/", "/");
        if plain.chars().any(|char| ".[]()*+?{}|$^\\".contains(char)) || plain.is_empty() {
            return Err(cannot());
        }
        literals.push(plain.replace('\u{1}', "."));
    }
    let alternatives = not_beginning_with(&literals.iter().map(String::as_str).collect::<Vec<_>>());
    if let Some(tail) = group_end {
        text.push_str(&format!("(?:{alternatives}).*"));
        return Ok(rest.len() - tail.len());
    }
    if after.contains('(') {
        // The group captures the rest from its first character on.
        return Err(cannot());
    }
    text.push_str(&format!("(?:{alternatives})"));
    Ok(rest.len())
}

/// An expression for the start of texts that begin with none of the literals.
fn not_beginning_with(literals: &[&str]) -> String {
    let mut firsts: Vec<char> = literals.iter().filter_map(|literal| literal.chars().next()).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let class: String = firsts.iter().map(|char| regex::escape(&char.to_string())).collect();
    let mut parts = vec!["$".to_owned(), format!("[^{class}]")];
    for first in firsts {
        let rests: Vec<&str> = literals.iter().filter_map(|literal| literal.strip_prefix(first)).collect();
        if !rests.iter().any(|rest| rest.is_empty()) {
            parts.push(format!("{}(?:{})", regex::escape(&first.to_string()), not_beginning_with(&rests)));
        }
    }
    parts.join("|")
}

/// Returns the names of the groups in the text of an expression.
pub(super) fn group_names(text: &str) -> impl Iterator<Item = &str> {
    ["(?<", "(?P<", "(?'"].into_iter().flat_map(move |start| {
        let parts = text.split(start).skip(1);
        let names = parts.filter_map(|rest| Some(&rest[..rest.find(['>', '\''])?]));
        names.filter(|name| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pcre_is_translated() {
        for (pcre, yes, no) in [
            (r"\.(gif|jpg)$", "/a.gif", "/a.png"),
            (r"^/user/(?<id>\d+)$", "/user/7", "/user/x"),
            (r"^/a{2,3}$", "/aaa", "/a"),
            (r"/\.(?!well-known).*", "/.env", "/.well-known/x"),
            (r"/\.(?!well-known|ok)", "/.o", "/.okay"),
            (r"\.sql$|/(\.(?!well-known|ok).*)|^/(web\.config)$", "/.env", "/.well-known/x"),
            (r"^\/x\_y$", "/x_y", "/xy"),
            (r"[[]a", "[a", "a"),
            (r"[^/&&]+z", "az", "&z"),
        ] {
            let pattern = Pattern::new(pcre, false).expect(pcre);
            assert!(pattern.is_match(yes), "{pcre}: {} should match {yes}", pattern.text);
            assert!(!pattern.is_match(no), "{pcre}: {} should not match {no}", pattern.text);
        }
        for pcre in [r"(a)\1", r"(?<=a)b", r"a(?=b)", r"a(?!b)c", r"a++", r"(?>a)", "("] {
            assert!(Pattern::new(pcre, false).is_err(), "{pcre}");
        }
    }

    #[test]
    fn exceptions_at_the_end_are_split_off() {
        let (start, exception) = Pattern::with_exception(r"^/(?!index|ocs\/v[12]|a(b)?/c)").expect("a split");
        for (path, is_match, is_exception) in
            [("/index.php", true, true), ("/ocs/v2", true, true), ("/ab/c", true, true), ("/x", true, false)]
        {
            assert_eq!((start.is_match(path), exception.is_match(path)), (is_match, is_exception), "{path}");
        }
        for pcre in ["/(?!a)", "^/(?!a)b", "^/a", "^/(?!a)|(b)"] {
            assert!(Pattern::with_exception(pcre).is_none(), "{pcre}");
        }
    }

    #[test]
    fn matches_of_texts_with_variables() {
        for (pcre, text, expected) in [
            (r"\.php$", "/index.php", StaticMatch::Yes),
            (r"\.php$", "/x/$var_c1/index.php", StaticMatch::Yes),
            (r"\.php$", "/blog/$1", StaticMatch::Maybe),
            (r"^/chain/one$", "/blog/$1", StaticMatch::No),
            (r"^/loop/(.*)$", "/loop/x$1", StaticMatch::Yes),
            (r"^/blog/x(.*)$", "/blog/$1", StaticMatch::Maybe),
        ] {
            let pattern = Pattern::new(pcre, false).expect(pcre);
            assert_eq!(known_match(&pattern, text), expected, "{pcre} {text}");
        }
    }
}
