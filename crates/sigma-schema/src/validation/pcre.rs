//! PCRE regular expressions, as schemas and plugins of APISIX use them, matched in linear time.
//!
//! The `regex` crate does not backtrack, so no expression and no value can block a thread. Most PCRE syntax has the
//! same meaning there; the rest is rewritten:
//! * `\d`, `\w`, `\s`, `\b` are ASCII in PCRE. Brackets there may contain a bare `[`, `&&` or `--`. A brace that opens
//!   no repetition is a literal, and so is `\<`. `\h`, `\v`, `\N`, `\Q…\E` exist;
//! * a look-ahead right after a leading `^` and a look-behind right before a trailing `$` become separate expressions
//!   that must, or must not, match as well.
//!
//! Unsupported constructs (other look-around, back references, atomic groups, possessive repetitions, recursion) are
//! reported by name. One difference is intended: `$` matches only at the end, never before a final line feed, so that
//! no pattern accepts a line feed.

mod class;
mod translate;

use std::fmt;
use std::sync::OnceLock;

use regex::Regex;

pub use translate::translate;

/// Maximum length of a pattern. APISIX's PCRE also compiles at most 64 KiB.
const MAX_BYTES: usize = 64 << 10;

/// Maximum number of look-arounds in one pattern. Each costs a pass over the pattern, and real patterns have few.
const MAX_LOOK_AROUND: usize = 16;

/// The error for an unsupported or invalid pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pattern `{pattern}` {reason}")]
pub struct InvalidPattern {
    /// As written.
    pub pattern: String,
    /// The rest of a sentence whose subject is the pattern.
    pub reason: String,
}

/// A compiled pattern that matches anywhere in a text.
#[derive(Clone)]
pub struct Pattern {
    source: String,
    compiled: OnceLock<Compiled>,
}

/// The expressions that must match a text, and those that must not.
#[derive(Clone)]
struct Compiled {
    must: Vec<Regex>,
    must_not: Vec<Regex>,
}

impl Pattern {
    /// Compiles a pattern of PCRE.
    pub fn compile(source: &str) -> Result<Pattern, InvalidPattern> {
        let compiled = Compiled::of(source)?;
        Ok(Pattern { source: source.to_owned(), compiled: compiled.into() })
    }

    /// Creates a pattern of the program itself, which a test compiles. It is compiled on first use, because most are
    /// never used.
    pub(super) fn of_program(source: &str) -> Pattern {
        Pattern { source: source.to_owned(), compiled: OnceLock::new() }
    }

    /// Returns the pattern as written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns whether the pattern matches anywhere in `text`.
    #[must_use]
    pub fn is_match(&self, text: &str) -> bool {
        // A pattern without a compiled form is the program's own, and a test compiles it.
        let compiled = || Compiled::of(&self.source).expect("a pattern of the program is valid");
        let Compiled { must, must_not } = self.compiled.get_or_init(compiled);
        must.iter().all(|regex| regex.is_match(text)) && !must_not.iter().any(|regex| regex.is_match(text))
    }
}

impl Compiled {
    fn of(source: &str) -> Result<Compiled, InvalidPattern> {
        let invalid = |reason: String| InvalidPattern { pattern: source.to_owned(), reason };
        if source.len() > MAX_BYTES {
            return Err(invalid(format!("is longer than {MAX_BYTES} bytes, split it")));
        }
        let regex = |part: &str| {
            let rust = translate(part).map_err(invalid)?;
            Regex::new(&rust).map_err(|error| invalid(reason(&error)))
        };
        let parts = split(source);
        Ok(Compiled {
            must: parts.must.iter().map(|part| regex(part)).collect::<Result<_, _>>()?,
            must_not: parts.must_not.iter().map(|part| regex(part)).collect::<Result<_, _>>()?,
        })
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pattern").field(&self.source).finish()
    }
}

fn reason(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => "is too large, use smaller repetition counts".to_owned(),
        // The parser's message is a drawing of several lines; the last line is the error.
        error => {
            let text = error.to_string();
            let sentence = text.lines().last().unwrap_or_default();
            format!("is not a valid expression: {}", sentence.trim_start_matches("error: "))
        }
    }
}

/// Expressions that together are equivalent to one pattern.
#[derive(Debug, Default, PartialEq)]
struct Parts {
    must: Vec<String>,
    must_not: Vec<String>,
}

impl Parts {
    fn has_room(&self) -> bool {
        self.must.len() + self.must_not.len() < MAX_LOOK_AROUND
    }
}

/// Separates look-around at the start or the end of the pattern.
fn split(source: &str) -> Parts {
    let mut parts = Parts::default();
    let (flags, mut rest) = split_flags(source);
    if !rest.contains("(?") || Outline::of(rest).alternatives || flags.contains(['m', 'x']) {
        parts.must.push(source.to_owned());
        return parts;
    }
    let mut rest_owned;
    while let Some(inside) = rest.strip_prefix("^(?=").or_else(|| rest.strip_prefix("^(?!")) {
        let Some(close) = Outline::of(rest).close_of(1).filter(|_| parts.has_room()) else { break };
        let ahead = format!("{flags}^(?:{})", &inside[..close - 4]);
        if rest.starts_with("^(?=") { &mut parts.must } else { &mut parts.must_not }.push(ahead);
        rest_owned = format!("^{}", &rest[close + 1..]);
        rest = &rest_owned;
    }
    let mut rest = rest.to_owned();
    while let Some(open) = Outline::of(&rest)
        .open_of(rest.len().wrapping_sub(2))
        .filter(|_| rest.ends_with('$') && parts.has_room())
    {
        let group = &rest[open..rest.len() - 2];
        let Some(inside) = group.strip_prefix("(?<=").or_else(|| group.strip_prefix("(?<!")) else { break };
        let behind = format!("{flags}(?:{inside})$");
        if group.starts_with("(?<=") { &mut parts.must } else { &mut parts.must_not }.push(behind);
        rest = format!("{}$", &rest[..open]);
    }
    parts.must.push(format!("{flags}{rest}"));
    parts
}

/// Separates leading flags such as `(?i)`.
fn split_flags(source: &str) -> (&str, &str) {
    let Some(flags) = source.strip_prefix("(?") else { return ("", source) };
    match flags.find(')') {
        Some(close) if close > 0 && flags[..close].bytes().all(|byte| b"imsx".contains(&byte)) => {
            source.split_at(close + 3)
        }
        _ => ("", source),
    }
}

/// The positions of the groups of a pattern.
#[derive(Default)]
struct Outline {
    groups: Vec<(usize, usize)>,
    /// Whether there is a `|` outside all groups.
    alternatives: bool,
}

impl Outline {
    fn of(source: &str) -> Outline {
        let mut outline = Outline::default();
        let mut open = Vec::new();
        let mut chars = source.char_indices();
        while let Some((index, char)) = chars.next() {
            match char {
                '\\' => {
                    chars.next();
                }
                '[' => {
                    let skip = class::length(&source[index..]);
                    while chars.offset() < index + skip && chars.next().is_some() {}
                }
                '(' => open.push(index),
                ')' => outline.groups.extend(open.pop().map(|open| (open, index))),
                '|' if open.is_empty() => outline.alternatives = true,
                _ => {}
            }
        }
        outline
    }

    fn close_of(&self, open: usize) -> Option<usize> {
        self.groups.iter().find(|(start, _)| *start == open).map(|(_, close)| *close)
    }

    fn open_of(&self, close: usize) -> Option<usize> {
        self.groups.iter().find(|(_, end)| *end == close).map(|(open, _)| *open)
    }
}

#[cfg(test)]
mod tests;
