//! Spring's patterns of paths and hosts, and Java's regular expressions, in Sigma's syntax.

use super::super::decision::{Host, Path};

/// Maximum length of a pattern; Spring's own are short.
const MOST_BYTES: usize = 4096;

/// Returns the paths that a PathPattern matches. `slash`: one slash at the end is optional.
///
/// # Errors
/// Returns a sentence if it cannot be said.
pub(super) fn paths(pattern: &str, slash: bool) -> Result<Vec<Path>, String> {
    if pattern.len() > MOST_BYTES {
        return Err("The pattern is too long.".to_owned());
    }
    let with_slash;
    let pattern = if pattern.starts_with('/') {
        pattern
    } else {
        with_slash = format!("/{pattern}");
        &with_slash
    };
    let is_literal = |text: &str| !text.contains(['*', '?', '{', '}', '\\']);
    if let Some(base) = pattern.strip_suffix("/**").filter(|base| is_literal(base)) {
        return Ok(vec![if base.is_empty() {
            Path::Prefix("/".to_owned())
        } else {
            Path::Segments(base.to_owned())
        }]);
    }
    if is_literal(pattern) {
        let mut paths = vec![Path::Exact(pattern.to_owned())];
        if slash && !pattern.ends_with('/') {
            paths.push(Path::Exact(format!("{pattern}/")));
        }
        return Ok(paths);
    }
    let pattern = path_regex(pattern, slash)?;
    if let Err(error) = regex::Regex::new(&pattern) {
        return Err(format!("The pattern has no equivalent: {}.", last_line(&error.to_string())));
    }
    Ok(vec![Path::Regex { pattern, ignore_case: false }])
}

/// The anchored regular expression of a PathPattern; its variables are named groups.
fn path_regex(pattern: &str, slash: bool) -> Result<String, String> {
    let mut out = "^".to_owned();
    let mut ends_open = false;
    for segment in pattern[1..].split('/') {
        ends_open = false;
        match segment {
            // Zero or more segments.
            "**" => {
                out.push_str("(?:/.*)?");
                ends_open = true;
            }
            _ if segment.starts_with("{*") && segment.ends_with('}') => {
                out.push_str(&format!("(?<{}>(?:/.*)?)", group(&segment[2..segment.len() - 1])?));
                ends_open = true;
            }
            "*" => out.push_str("/[^/]+"),
            _ => {
                out.push('/');
                segment_regex(segment, &mut out)?;
            }
        }
    }
    if slash && !ends_open && !pattern.ends_with('/') {
        out.push_str("/?");
    }
    out.push('$');
    Ok(out)
}

fn segment_regex(segment: &str, out: &mut String) -> Result<(), String> {
    let mut rest = segment;
    while let Some(char) = rest.chars().next() {
        rest = &rest[char.len_utf8()..];
        match char {
            '?' => out.push_str("[^/]"),
            '*' => out.push_str("[^/]*"),
            '{' => {
                let end = closing(rest).ok_or("A brace of the pattern is not closed.")?;
                let inner = &rest[..end];
                rest = &rest[end + 1..];
                match inner.split_once(':') {
                    Some((name, regex)) => out.push_str(&format!("(?<{}>{})", group(name)?, java(regex)?)),
                    None => out.push_str(&format!("(?<{}>[^/]+)", group(inner)?)),
                }
            }
            other => out.push_str(&regex::escape(other.encode_utf8(&mut [0; 4]))),
        }
    }
    Ok(())
}

fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The name of a group, and of its variable `uri_param_NAME`: letters, digits and underscores.
pub(super) fn group(name: &str) -> Result<String, String> {
    let name = name.trim().replace('-', "_");
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if name.is_empty() || !is_word || name.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(format!("`{name}` cannot be the name of a variable."));
    }
    Ok(name)
}

/// A variable of a predicate, and the gateway's variable with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub name: String,
    pub variable: String,
}

impl Named {
    /// A variable of the path.
    pub(super) fn of_path(name: &str) -> Named {
        Named { name: name.to_owned(), variable: format!("uri_param_{name}") }
    }
}

/// Returns the names in braces of a text that no variable has.
pub(super) fn unknown(text: &str, variables: &[Named]) -> Vec<String> {
    let parts = text.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    let names = parts.filter_map(|(name, _)| group(name).ok());
    names.filter(|name| !variables.iter().any(|known| known.name == *name)).collect()
}

/// Replaces `{name}` in a value by the variable of a predicate, if the route has it. Other dollar signs stay texts.
pub(super) fn value(text: &str, variables: &[Named]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        if char == '{'
            && let Some(end) = rest.find('}')
            && let Ok(name) = group(&rest[1..end])
            && let Some(known) = variables.iter().rev().find(|known| known.name == name)
        {
            out.push_str(&format!("${{{}}}", known.variable));
            rest = &rest[end + 1..];
            continue;
        }
        if char == '$' {
            out.push('\\');
        }
        out.push(char);
        rest = &rest[char.len_utf8()..];
    }
    out
}

/// Returns the names of a PathPattern's variables.
pub(super) fn variables(pattern: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = pattern;
    while let Some(start) = rest.find('{') {
        let inner = &rest[start + 1..];
        let Some(end) = closing(inner) else { break };
        let name = inner[..end].trim_start_matches('*').split(':').next().unwrap_or_default();
        names.extend(group(name));
        rest = &inner[end + 1..];
    }
    names
}

/// Returns the host patterns of an Ant pattern whose separator is a dot.
pub(super) fn host(pattern: &str) -> Result<Vec<Host>, String> {
    // The port is no part of the host in Sigma.
    let name = pattern.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    let name = name.map_or(pattern, |(name, _)| name).to_ascii_lowercase();
    let is_literal = |text: &str| !text.contains(['*', '?', '{', '}']);
    if let Some(base) = name.strip_prefix("**.").filter(|base| is_literal(base)) {
        return Ok(vec![Host::Exact(base.to_owned()), Host::Suffix(base.to_owned())]);
    }
    if is_literal(&name) {
        return Ok(vec![Host::Exact(name)]);
    }
    let mut regex = "^".to_owned();
    for (at, label) in name.split('.').enumerate() {
        match (at, label) {
            (0, "**") => regex.push_str("(?:.*\\.)?"),
            (_, "**") => regex.push_str("(?:\\..*)?"),
            _ => {
                if at > 0 && !regex.ends_with(")?") {
                    regex.push_str("\\.");
                }
                label_regex(label, &mut regex)?;
            }
        }
    }
    regex.push('$');
    match regex::Regex::new(&regex) {
        Ok(_) => Ok(vec![Host::Regex(regex)]),
        Err(_) => Err("The pattern has no equivalent.".to_owned()),
    }
}

fn label_regex(label: &str, out: &mut String) -> Result<(), String> {
    let mut rest = label;
    while let Some(char) = rest.chars().next() {
        rest = &rest[char.len_utf8()..];
        match char {
            '?' => out.push_str("[^.]"),
            '*' => out.push_str("[^.]*"),
            '{' => {
                let end = closing(rest).ok_or("A brace of the pattern is not closed.")?;
                let inner = &rest[..end];
                rest = &rest[end + 1..];
                // Values may name the variable.
                let (name, regex) = match inner.split_once(':') {
                    Some((name, regex)) => (name, java(regex)?),
                    None => (inner, "[^.]+".to_owned()),
                };
                match group(name) {
                    Ok(name) => out.push_str(&format!("(?<{name}>{regex})")),
                    Err(_) => out.push_str(&format!("(?:{regex})")),
                }
            }
            other => out.push_str(&regex::escape(other.encode_utf8(&mut [0; 4]))),
        }
    }
    Ok(())
}

/// Returns a Java regular expression in the syntax of the crate `regex`.
///
/// # Errors
/// Returns a sentence if it needs look-around, back-references or possessive quantifiers.
pub(super) fn java(text: &str) -> Result<String, String> {
    let unsupported = ["(?=", "(?!", "(?<=", "(?<!", "(?>", "*+", "++", "?+", "\\G", "\\k<"];
    if let Some(found) = unsupported.iter().find(|part| text.contains(*part)) {
        return Err(format!("The regular expression has `{found}`, which Sigma's engine lacks."));
    }
    // Java's `\Q…\E` quotes, and its `\h` and `\R` have no counterpart by name.
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("\\Q") {
        out.push_str(&rest[..start]);
        let quoted = &rest[start + 2..];
        let end = quoted.find("\\E").unwrap_or(quoted.len());
        out.push_str(&regex::escape(&quoted[..end]));
        rest = quoted.get(end + 2..).unwrap_or_default();
    }
    out.push_str(rest);
    let out = out.replace("\\h", "[ \\t]").replace("\\Z", "$").replace("\\p{Alpha}", "[A-Za-z]");
    match regex::Regex::new(&out) {
        Ok(_) => Ok(out),
        Err(error) => {
            Err(format!("The regular expression is not valid here: {}.", last_line(&error.to_string())))
        }
    }
}

/// A Java regular expression that must match the whole text.
pub(super) fn full(text: &str) -> Result<String, String> {
    Ok(format!("^(?:{})$", java(text)?))
}

/// The names and numbers of the groups of a regular expression.
pub(super) fn groups(text: &str) -> Vec<Option<String>> {
    regex::Regex::new(text)
        .map(|regex| regex.capture_names().map(|name| name.map(str::to_owned)).collect())
        .unwrap_or_default()
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default().trim_start_matches("error: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_patterns_match_as_in_spring() {
        for (pattern, slash, matching, others) in [
            ("/users/{id}", true, vec!["/users/1", "/users/1/"], vec!["/users", "/users/1/x", "/users/"]),
            ("/a/*/b", false, vec!["/a/x/b"], vec!["/a/b", "/a/x/b/", "/a//b"]),
            ("/x/**/y", false, vec!["/x/y", "/x/a/b/y"], vec!["/xy"]),
            ("/f/{*rest}", true, vec!["/f", "/f/a/b"], vec!["/fx"]),
            ("/v{n:[0-9]+}/?.html", false, vec!["/v12/a.html"], vec!["/va/a.html", "/v1/ab.html"]),
        ] {
            let [Path::Regex { pattern: regex, .. }] = &paths(pattern, slash).expect(pattern)[..] else {
                panic!("{pattern}");
            };
            let regex = regex::Regex::new(regex).expect(pattern);
            for path in matching {
                assert!(regex.is_match(path), "{pattern} {path}");
            }
            for path in others {
                assert!(!regex.is_match(path), "{pattern} {path}");
            }
        }
        assert_eq!(paths("/a/**", true), Ok(vec![Path::Segments("/a".to_owned())]));
        assert_eq!(paths("/**", true), Ok(vec![Path::Prefix("/".to_owned())]));
    }

    #[test]
    fn host_patterns_match_labels() {
        assert_eq!(
            host("**.S.test"),
            Ok(vec![Host::Exact("s.test".to_owned()), Host::Suffix("s.test".to_owned())])
        );
        let regex = |pattern: &str| match &host(pattern).expect(pattern)[..] {
            [Host::Regex(regex)] => regex::Regex::new(regex).expect(pattern),
            other => panic!("{other:?}"),
        };
        assert!(regex("*.a.test").is_match("x.a.test") && !regex("*.a.test").is_match("x.y.a.test"));
        assert!(regex("{sub}.a.test").is_match("x.a.test") && !regex("{sub}.a.test").is_match("a.test"));
        assert!(regex("a.**").is_match("a") && regex("a.**").is_match("a.b.c"));
    }

    #[test]
    fn values_use_variables_of_the_path() {
        let known = [Named::of_path("seg"), Named { name: "sub".to_owned(), variable: "var_s".to_owned() }];
        assert_eq!(value("one-{seg}$1{other}{sub}", &known), "one-${uri_param_seg}\\$1{other}${var_s}");
        assert_eq!(unknown("one-{seg}{other}", &known), ["other"]);
        assert_eq!(variables("/{a}/{b:[0-9]{2}}/{*rest}"), ["a", "b", "rest"]);
    }

    #[test]
    fn look_around_is_refused() {
        assert!(java("(?!x)y").is_err());
        assert_eq!(java("\\Qa.b\\E+").as_deref(), Ok("a\\.b+"));
    }
}
