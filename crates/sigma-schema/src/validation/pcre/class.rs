//! Bracket expressions.

use std::iter::Peekable;
use std::str::Chars;

use super::translate::{escape_of, literal, named_set};

/// Length of `:^xdigit:]`, the longest name of a set in brackets.
const LONGEST_NAME: usize = 10;

/// One element of a bracket expression.
enum Item {
    Char(char),
    /// A set of characters, as the `regex` crate writes it.
    Set(String),
}

/// Returns the number of bytes of the bracket expression at the start of `source`.
pub(super) fn length(source: &str) -> usize {
    let mut chars = source.char_indices().skip(1).peekable();
    if chars.peek().is_some_and(|(_, char)| *char == '^') {
        chars.next();
    }
    let mut first = true;
    while let Some((index, char)) = chars.next() {
        match char {
            ']' if !first => return index + 1,
            '\\' => {
                chars.next();
            }
            '[' => {
                for _ in 1..posix(&source[index..]).map_or(1, |name| name.chars().count()) {
                    chars.next();
                }
            }
            _ => {}
        }
        first = false;
    }
    source.len()
}

/// Rewrites the bracket expression after its `[`, which is already read from `chars`.
pub(super) fn translate(chars: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    out.push('[');
    if chars.next_if_eq(&'^').is_some() {
        out.push('^');
    }
    let mut first = true;
    loop {
        let Some(char) = chars.next() else { return Err("has a `[` without its `]`".to_owned()) };
        if char == ']' && !first {
            out.push(']');
            return Ok(());
        }
        first = false;
        let item = item(char, chars)?;
        let Item::Char(low) = item else {
            if let Item::Set(set) = item {
                out.push_str(&set);
            }
            continue;
        };
        out.push_str(&literal(low));
        let mut ahead = chars.clone();
        if ahead.next() != Some('-') || matches!(ahead.next(), None | Some(']')) {
            continue;
        }
        // A range, unless a set follows; then the hyphen is a character.
        chars.next();
        let Some(next) = chars.next() else { continue };
        match self::item(next, chars)? {
            Item::Char(high) => {
                out.push('-');
                out.push_str(&literal(high));
            }
            Item::Set(set) => {
                out.push_str("\\-");
                out.push_str(&set);
            }
        }
    }
}

fn item(char: char, chars: &mut Peekable<Chars<'_>>) -> Result<Item, String> {
    match char {
        '\\' => {
            let Some(next) = chars.next() else { return Err("ends with a backslash".to_owned()) };
            if next == 'b' {
                return Ok(Item::Char('\u{8}'));
            }
            if let Some(set) = named_set(next, chars)? {
                return Ok(Item::Set(set));
            }
            Ok(Item::Char(escape_of(next, chars)?))
        }
        '[' => match posix(&format!("[{}", chars.clone().take(LONGEST_NAME).collect::<String>())) {
            Some(name) => {
                for _ in 1..name.chars().count() {
                    chars.next();
                }
                Ok(Item::Set(name.to_owned()))
            }
            None => Ok(Item::Char('[')),
        },
        _ => Ok(Item::Char(char)),
    }
}

/// Returns the `[:alpha:]` at the start of `source`, which both dialects have.
fn posix(source: &str) -> Option<&str> {
    let inside = source.strip_prefix("[:")?;
    let end = inside.find(":]")?;
    let name = inside[..end].trim_start_matches('^');
    name.bytes().all(|byte| byte.is_ascii_lowercase()).then(|| &source[..end + 4])
}
