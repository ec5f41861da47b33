//! `rewrite-path`: translates a Java regular expression and replacement to the dialect of the `regex` crate.

use regex::Regex;

/// Compiles a Java pattern if it has the same meaning here.
pub(super) fn pattern(java: &str) -> Result<Regex, String> {
    if has_possessive(java) {
        return Err("possessive quantifiers (`*+`, `++`, `?+`) are not supported".into());
    }
    // The crate's error draws the pattern over several lines; the last line is the reason.
    Regex::new(java).map_err(|error| {
        let text = error.to_string();
        text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
    })
}

/// Returns whether a quantifier is followed by `+`. The `regex` crate would read that as a second quantifier.
fn has_possessive(java: &str) -> bool {
    let mut previous = ' ';
    let mut class_depth = 0_u32;
    let mut chars = java.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => {
                chars.next();
                previous = ' ';
                continue;
            }
            '[' => class_depth += 1,
            ']' => class_depth = class_depth.saturating_sub(1),
            '+' if class_depth == 0 && matches!(previous, '*' | '+' | '?' | '}') => return true,
            _ => {}
        }
        previous = char;
    }
    false
}

/// Translates the replacement of Java's `Matcher.replaceAll`: `$1`, `${name}`, `\` before a literal.
///
/// The sequence `$\` means `$`, as in the original, so that `$\{name}` is `${name}`.
pub(super) fn replacement(java: &str, regex: &Regex) -> Result<String, String> {
    let java = java.replace("$\\", "$");
    let mut result = String::with_capacity(java.len());
    let mut rest = java.chars().peekable();
    while let Some(char) = rest.next() {
        match char {
            '\\' => match rest.next() {
                Some(literal) => push_literal(&mut result, literal),
                None => {
                    return Err("`\\` at the end has no effect; write `\\\\` for a backslash".into());
                }
            },
            '$' if rest.next_if_eq(&'{').is_some() => {
                let mut name = String::new();
                loop {
                    match rest.next() {
                        Some('}') => break,
                        Some(char) => name.push(char),
                        None => return Err(format!("`${{{name}` is not closed by `}}`")),
                    }
                }
                if !regex.capture_names().flatten().any(|group| group == name) {
                    return Err(format!("`regexp` has no group named `{name}`"));
                }
                result.push_str(&format!("${{{name}}}"));
            }
            '$' => result.push_str(&format!("${{{}}}", group_number(&mut rest, regex)?)),
            literal => push_literal(&mut result, literal),
        }
    }
    Ok(result)
}

fn push_literal(result: &mut String, literal: char) {
    if literal == '$' {
        result.push('$');
    }
    result.push(literal);
}

/// Java adds further digits to the number only while such a group exists.
fn group_number(rest: &mut std::iter::Peekable<std::str::Chars<'_>>, regex: &Regex) -> Result<usize, String> {
    let digit = |char: &char| char.to_digit(10).map(|digit| digit as usize);
    let Some(mut number) = rest.peek().and_then(digit) else {
        return Err(
            "`$` must be followed by a group's number or `{name}`; write `\\$` for a dollar sign".into()
        );
    };
    rest.next();
    if number >= regex.captures_len() {
        return Err(format!("`regexp` has no group {number}"));
    }
    while let Some(longer) = rest.peek().and_then(digit).map(|next| number * 10 + next) {
        if longer >= regex.captures_len() {
            break;
        }
        number = longer;
        rest.next();
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_as_java_does() {
        let check = |regexp: &str, java: &str, path: &str, expected: &str| {
            let regex = pattern(regexp).unwrap();
            let replacement = replacement(java, &regex).unwrap();
            assert_eq!(regex.replace_all(path, replacement.as_str()), expected, "{regexp} -> {java}");
        };
        check("/test/(?<segment>.*)", "/${segment}", "/test/a/b", "/a/b");
        check("/test/(?<segment>.*)", "/$\\{segment}", "/test/a", "/a");
        check("/test/(.*)", "/$1", "/test/a", "/a");
        check("/test/(.*)", "/$1x", "/test/a", "/ax");
        check("/(a)(b)", "/$21", "/ab", "/b1");
        check("/a", "/\\$0", "/a/a", "/$0/$0");
        check("a", "$0$0", "/aba", "/aabaa");
        check("a", "b\\\\", "/a", "/b\\");
    }

    #[test]
    fn refuses_what_java_refuses_or_means_otherwise() {
        let check = |regexp: &str, java: &str, expected: &str| {
            let error = pattern(regexp).and_then(|regex| replacement(java, &regex)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check("/a*+b", "", "possessive");
        check("/(?=a)", "", "look-around");
        check("(a)\\1", "", "backreferences");
        check("a", "$1", "no group 1");
        check("a", "${x}", "no group named `x`");
        check("(?<x>a)", "${x", "not closed");
        check("a", "$x", "must be followed");
        check("a", "b\\", "at the end");
    }
}
