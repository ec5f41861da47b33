//! Translates PCRE syntax to the syntax of the `regex` crate.

use std::iter::Peekable;
use std::str::Chars;

use super::class;

const DIGITS: &str = "0-9";
const WORD: &str = "0-9A-Za-z_";
const SPACE: &str = "\\t\\n\\x0B\\x0C\\r\\x20";
const HORIZONTAL: &str = "\\t\\x20";
const VERTICAL: &str = "\\n\\x0B\\x0C\\r";

/// Returns the same expression for the `regex` crate, or the rest of a sentence about the unsupported construct.
pub fn translate(pattern: &str) -> Result<String, String> {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut chars = pattern.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\\' => escape(&mut chars, &mut out)?,
            '[' => class::translate(&mut chars, &mut out)?,
            '(' => group(&mut chars, &mut out)?,
            '{' => brace(&mut chars, &mut out)?,
            '}' => out.push_str("\\}"),
            '*' | '+' | '?' => {
                out.push(char);
                repetition_end(&mut chars, &mut out)?;
            }
            _ => out.push(char),
        }
    }
    Ok(out)
}

/// Handles the sign after a repetition: `?` makes it lazy. `+` would make it possessive, but the `regex` crate reads it
/// as another repetition.
fn repetition_end(chars: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    match chars.peek() {
        Some('+') => Err(inexpressible("a possessive repetition")),
        Some('?') => {
            out.extend(chars.next());
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Handles `{`, which is a repetition only if it begins `{n}`, `{n,}` or `{n,m}`.
fn brace(chars: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    let inside: String = chars.clone().take_while(|char| char.is_ascii_digit() || *char == ',').collect();
    let closed = chars.clone().nth(inside.len()) == Some('}');
    let (low, high) = inside.split_once(',').unwrap_or((&inside, ""));
    if !closed || low.is_empty() || high.contains(',') {
        out.push_str("\\{");
        return Ok(());
    }
    out.push('{');
    out.push_str(&inside);
    out.push('}');
    for _ in 0..=inside.len() {
        chars.next();
    }
    repetition_end(chars, out)
}

fn group(chars: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    let ahead: String = chars.clone().take(4).collect();
    if ahead.starts_with('*') {
        return Err(inexpressible("a verb such as (*SKIP)"));
    }
    let Some(kind) = ahead.strip_prefix('?') else {
        out.push('(');
        return Ok(());
    };
    let rest = kind.get(1..).unwrap_or_default();
    match kind.chars().next() {
        Some('=' | '!') => Err(inexpressible("a look-ahead that does not follow a leading `^`")),
        Some('<') if rest.starts_with(['=', '!']) => {
            Err(inexpressible("a look-behind that does not precede a trailing `$`"))
        }
        Some('>') => Err(inexpressible("an atomic group")),
        Some('(') => Err(inexpressible("a conditional group")),
        Some('|') => Err(inexpressible("a group that resets group numbers")),
        Some('&' | 'R' | '0'..='9') => Err(inexpressible("recursion")),
        Some('P') if rest.starts_with(['=', '>']) => Err(inexpressible("a back reference")),
        Some('#') => {
            // A comment.
            for char in chars.by_ref() {
                if char == ')' {
                    break;
                }
            }
            Ok(())
        }
        Some('\'') => {
            // The same as (?<name>…).
            chars.next();
            chars.next();
            let name: String = chars.by_ref().take_while(|char| *char != '\'').collect();
            out.push_str(&format!("(?<{name}>"));
            Ok(())
        }
        _ => {
            out.push('(');
            out.extend(chars.next());
            Ok(())
        }
    }
}

/// Rewrites an escape outside brackets.
fn escape(chars: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    let Some(next) = chars.next() else { return Err("ends with a backslash".to_owned()) };
    if let Some(set) = named_set(next, chars)? {
        // `\p{…}` is valid without brackets, other sets need them.
        out.push_str(&set_alone(&set));
        return Ok(());
    }
    match next {
        'b' => out.push_str("(?-u:\\b)"),
        'B' | 'A' | 'z' => out.extend(['\\', next]),
        'Z' => out.push_str("(?:\\n?\\z)"),
        'R' => out.push_str("(?:\\r\\n|[\\n\\x0B\\x0C\\r])"),
        'Q' => {
            while let Some(char) = chars.next() {
                if char == '\\' && chars.next_if_eq(&'E').is_some() {
                    break;
                }
                out.push_str(&literal(char));
            }
        }
        'E' => {}
        // Three octal digits are a character code, fewer are a group number.
        '1'..='3' if chars.clone().take(2).filter(|char| ('0'..='7').contains(char)).count() == 2 => {
            out.push_str(&literal(escape_of(next, chars)?));
        }
        '1'..='9' | 'k' | 'g' => return Err(inexpressible("a back reference")),
        'K' | 'G' | 'X' | 'C' => return Err(inexpressible(&format!("`\\{next}`"))),
        _ => out.push_str(&literal(escape_of(next, chars)?)),
    }
    Ok(())
}

/// Returns the set that an escape such as `\d` means, as it is written inside brackets.
pub(super) fn named_set(letter: char, chars: &mut Peekable<Chars<'_>>) -> Result<Option<String>, String> {
    let plain = match letter {
        'd' | 'D' => DIGITS,
        'w' | 'W' => WORD,
        's' | 'S' => SPACE,
        'h' | 'H' => HORIZONTAL,
        'v' | 'V' => VERTICAL,
        'N' => return Ok(Some("[^\\n]".to_owned())),
        'p' | 'P' => {
            let name = match chars.next() {
                Some('{') => chars.by_ref().take_while(|char| *char != '}').collect::<String>(),
                Some(short) => short.to_string(),
                None => return Err("ends within `\\p`".to_owned()),
            };
            let (name, inverted) = match name.strip_prefix('^') {
                Some(name) => (name, true),
                None => (name.as_str(), false),
            };
            let letter = if inverted == (letter == 'P') { 'p' } else { 'P' };
            return Ok(Some(format!("\\{letter}{{{name}}}")));
        }
        _ => return Ok(None),
    };
    Ok(Some(if letter.is_ascii_uppercase() { format!("[^{plain}]") } else { plain.to_owned() }))
}

fn set_alone(set: &str) -> String {
    if set.starts_with("[^") || set.starts_with("\\p") || set.starts_with("\\P") {
        set.to_owned()
    } else {
        format!("[{set}]")
    }
}

/// Returns the character that an escape means, inside brackets and outside.
pub(super) fn escape_of(letter: char, chars: &mut Peekable<Chars<'_>>) -> Result<char, String> {
    Ok(match letter {
        'a' => '\u{7}',
        'e' => '\u{1b}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'x' => {
            let digits = match chars.next_if_eq(&'{') {
                Some(_) => chars.by_ref().take_while(|char| *char != '}').collect::<String>(),
                None => {
                    let mut digits = String::new();
                    while let Some(digit) = chars.next_if(|char| digits.len() < 2 && char.is_ascii_hexdigit())
                    {
                        digits.push(digit);
                    }
                    digits
                }
            };
            code_point(&digits, 16)?
        }
        'c' => {
            let Some(key) = chars.next().filter(char::is_ascii) else {
                return Err("has `\\c` without a character".to_owned());
            };
            char::from(key.to_ascii_uppercase() as u8 ^ 0x40)
        }
        '0'..='7' => {
            let mut digits = String::from(letter);
            while let Some(digit) = chars.next_if(|char| digits.len() < 3 && ('0'..='7').contains(char)) {
                digits.push(digit);
            }
            code_point(&digits, 8)?
        }
        _ if letter.is_ascii_alphanumeric() => return Err(inexpressible(&format!("`\\{letter}`"))),
        _ => letter,
    })
}

fn code_point(digits: &str, radix: u32) -> Result<char, String> {
    // `\x` without digits is the character 0.
    let digits = if digits.is_empty() { "0" } else { digits };
    let code = u32::from_str_radix(digits, radix).ok().and_then(char::from_u32);
    code.ok_or_else(|| format!("has `{digits}`, which is not a character"))
}

/// Escapes a character, so that it is a literal in brackets and outside, with and without the flag `x`.
pub(super) fn literal(char: char) -> String {
    match char {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '<' | '>' => char.to_string(),
        '!'..='~' => format!("\\{char}"),
        _ if char.is_whitespace() || char.is_control() => format!("\\x{{{:X}}}", u32::from(char)),
        _ => char.to_string(),
    }
}

fn inexpressible(what: &str) -> String {
    format!("has {what}, which needs backtracking; rewrite it without")
}
