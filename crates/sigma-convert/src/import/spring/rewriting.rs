//! Filters that change the path: several of them become one substitution.

use serde_json::{Map, Value, json};

use super::pattern;

/// Maximum number of segments that StripPrefix may remove.
const MOST_PARTS: u64 = 64;

/// A change of the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Removes this number of segments.
    Strip(u64),
    /// Puts a text in front; it may have variables.
    Prefix(String),
    /// Replaces the path; it may have variables.
    Set(String),
    /// Replaces the matches of a regular expression.
    Rewrite { regex: String, replacement: String },
}

/// The result: fields of proxy-rewrite, and the variable with the removed prefix.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Rewriting {
    /// Fields of proxy-rewrite.
    pub fields: Map<String, Value>,
    /// A regular expression on `$uri` whose first group Spring sends as `X-Forwarded-Prefix`.
    pub prefix: Option<String>,
}

impl Step {
    /// Reads StripPrefix.
    pub(super) fn strip(parts: Option<&str>) -> Result<Step, String> {
        let parts = parts.unwrap_or("1").trim();
        match parts.parse() {
            Ok(parts) if parts <= MOST_PARTS => Ok(Step::Strip(parts)),
            _ => Err(format!("`{parts}` is not a number of segments.")),
        }
    }

    /// Reads RewritePath.
    pub(super) fn rewrite(regexp: &str, replacement: &str) -> Result<Step, String> {
        let regex = pattern::java(regexp)?;
        let replacement = numbered(&replacement.replace("$\\", "$"), &pattern::groups(&regex))?;
        Ok(Step::Rewrite { regex, replacement })
    }
}

/// Replaces `${name}` by the number of the group.
pub(super) fn numbered(replacement: &str, groups: &[Option<String>]) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = replacement;
    while let Some(at) = rest.find(['$', '\\']) {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if rest[at..].starts_with('\\') {
            // A backslash makes the next character a text.
            let Some(char) = after.chars().next() else { break };
            out.push_str(if char == '$' { "$$" } else { "" });
            if char != '$' {
                out.push(char);
            }
            rest = &after[char.len_utf8()..];
            continue;
        }
        if let Some(inner) = after.strip_prefix('{') {
            let end = inner.find('}').ok_or("A brace of the replacement is not closed.")?;
            let name = &inner[..end];
            let number = groups
                .iter()
                .position(|group| group.as_deref() == Some(name))
                .or_else(|| name.parse().ok().filter(|number| *number < groups.len()))
                .ok_or_else(|| format!("The replacement names the group `{name}`, which does not exist."))?;
            out.push_str(&format!("${{{number}}}"));
            rest = &inner[end + 1..];
        } else {
            let digits = after.bytes().take_while(u8::is_ascii_digit).count();
            // As in Java, further digits belong to the number while there is such a group.
            let mut length = digits.min(1);
            while length < digits && after[..=length].parse().is_ok_and(|number: usize| number < groups.len())
            {
                length += 1;
            }
            match after[..length].parse::<usize>() {
                Ok(number) if number < groups.len() => out.push_str(&format!("${{{number}}}")),
                _ => return Err("The replacement names a group that does not exist.".to_owned()),
            }
            rest = &after[length..];
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Joins the steps of a route.
///
/// # Errors
/// Returns a sentence if they cannot be one substitution.
pub(super) fn joined(steps: &[Step]) -> Result<Rewriting, String> {
    let steps = simplified(steps);
    match &steps[..] {
        [] => Ok(Rewriting::default()),
        [Step::Set(template)] => Ok(uri(template, false)),
        [Step::Prefix(prefix)] if has_variables(prefix) => Ok(uri(&format!("{prefix}$request_uri"), true)),
        [Step::Prefix(prefix)] => Ok(substitution(&[("^/", &format!("{}/", literal(prefix)))], None)),
        [Step::Strip(parts)] => {
            let prefix = format!("^((?:/[^/]+){{1,{parts}}})");
            Ok(substitution(&[(&stripping(*parts), "/")], Some(prefix)))
        }
        [Step::Strip(parts), Step::Prefix(prefix)] if !has_variables(prefix) => {
            Ok(substitution(&[(&stripping(*parts), &format!("{}/", literal(prefix)))], None))
        }
        [Step::Rewrite { regex, replacement }] => {
            let (on_target, query) = without_query(regex);
            let written = with_query(replacement, query);
            let prefix = removed_prefix(regex, replacement);
            if on_target.starts_with('^') {
                return Ok(substitution(&[(&on_target, &written)], prefix));
            }
            // The match begins in the path, not in the query.
            let written = format!("${{1}}{}", shifted(&written));
            Ok(substitution(&[(&format!("^([^?]*?)(?:{on_target})"), &written)], prefix))
        }
        [Step::Rewrite { regex, replacement }, Step::Prefix(prefix)] if !has_variables(prefix) => {
            let (on_target, query) = without_query(&anchored(regex));
            let first = format!("{}{}", literal(prefix), with_query(replacement, query));
            Ok(substitution(&[(&on_target, &first), ("^/", &format!("{}/", literal(prefix)))], None))
        }
        [Step::Strip(parts), Step::Rewrite { regex, replacement }] if starts_with_slash(regex) => {
            let (on_target, query) = without_query(regex.trim_start_matches('^'));
            let first = format!("^(?:/[^/?]+){{0,{parts}}}{on_target}");
            Ok(substitution(&[(&first, &with_query(replacement, query)), (&stripping(*parts), "/")], None))
        }
        _ => Err("Several filters change the path in a way that is not one substitution: join them in one \
                  RewritePath."
            .to_owned()),
    }
}

fn stripping(parts: u64) -> String {
    format!("^(?:/[^/?]+){{0,{parts}}}/*")
}

/// Joins neighbours of one kind.
fn simplified(steps: &[Step]) -> Vec<Step> {
    let mut out: Vec<Step> = Vec::new();
    for step in steps {
        match (out.last_mut(), step) {
            (_, Step::Set(_)) => out = vec![step.clone()],
            (_, Step::Strip(0)) => {}
            (Some(Step::Strip(before)), Step::Strip(parts)) => *before += parts,
            (Some(Step::Prefix(before)), Step::Prefix(prefix)) => *before = format!("{prefix}{before}"),
            (Some(Step::Set(template)), Step::Prefix(prefix)) => *template = format!("{prefix}{template}"),
            (Some(Step::Prefix(before)), Step::Strip(parts)) if !has_variables(before) => {
                let segments: Vec<&str> = before.split('/').filter(|it| !it.is_empty()).collect();
                let parts = *parts as usize;
                let (left, rest) =
                    (segments.get(parts..).unwrap_or_default(), parts.saturating_sub(segments.len()));
                let prefix: String = left.iter().map(|segment| format!("/{segment}")).collect();
                out.pop();
                if !prefix.is_empty() {
                    out.push(Step::Prefix(prefix));
                } else if rest > 0 {
                    out.push(Step::Strip(rest as u64));
                }
            }
            _ => out.push(step.clone()),
        }
    }
    out
}

/// Whether a text has a variable of the gateway.
fn has_variables(text: &str) -> bool {
    text.contains("${uri_param_")
}

/// A text as part of a replacement.
fn literal(text: &str) -> String {
    text.replace("\\$", "$").replace('$', "$$").trim_end_matches('/').to_owned()
}

fn uri(template: &str, raw: bool) -> Rewriting {
    let mut fields = Map::new();
    fields.insert("uri".to_owned(), template.into());
    if raw {
        fields.insert("use_real_request_uri_unsafe".to_owned(), true.into());
    }
    Rewriting { fields, prefix: None }
}

/// Substitutions in the target as it came, of which the first matching one applies.
fn substitution(pairs: &[(&str, &str)], prefix: Option<String>) -> Rewriting {
    let mut fields = Map::new();
    let list: Vec<&str> = pairs.iter().flat_map(|(regex, replacement)| [*regex, *replacement]).collect();
    fields.insert("regex_uri".to_owned(), json!(list));
    fields.insert("use_real_request_uri_unsafe".to_owned(), true.into());
    Rewriting { fields, prefix }
}

fn anchored(regex: &str) -> String {
    if regex.starts_with('^') { regex.to_owned() } else { format!("^{regex}") }
}

fn starts_with_slash(regex: &str) -> bool {
    regex.trim_start_matches('^').starts_with('/')
}

/// A regular expression on a path as one on a target: nothing of it matches the query. With the number of the group
/// that has the query, if it ends in `$`.
fn without_query(regex: &str) -> (String, Option<usize>) {
    let mut out = String::new();
    let mut chars = regex.chars().peekable();
    let mut in_class = false;
    while let Some(char) = chars.next() {
        match char {
            '\\' => {
                let next = chars.next().unwrap_or('\\');
                out.push_str(&match next {
                    'S' | 'D' | 'W' if !in_class => format!("[^?\\{}]", next.to_ascii_lowercase()),
                    _ => format!("\\{next}"),
                });
            }
            '[' if !in_class => {
                in_class = true;
                out.push('[');
                if chars.peek() == Some(&'^') {
                    chars.next();
                    out.push_str("^?");
                }
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '.' if !in_class => out.push_str("[^?]"),
            other => out.push(other),
        }
    }
    match out.strip_suffix('$').filter(|rest| !rest.ends_with('\\')) {
        Some(rest) => {
            let groups = pattern::groups(rest).len();
            (format!("{rest}(\\?.*)?$"), Some(groups))
        }
        None => (out, None),
    }
}

/// The replacement for one more group in front.
fn shifted(replacement: &str) -> String {
    let mut out = String::new();
    let mut rest = replacement;
    while let Some(at) = rest.find("${") {
        let end = rest[at..].find('}').map_or(rest.len(), |end| at + end);
        let number: usize = rest.get(at + 2..end).and_then(|text| text.parse().ok()).unwrap_or(0);
        out.push_str(&rest[..at]);
        out.push_str(&format!("${{{}}}", number + 1));
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

fn with_query(replacement: &str, query: Option<usize>) -> String {
    match query {
        Some(group) => format!("{replacement}${{{group}}}"),
        None => replacement.to_owned(),
    }
}

/// The prefix that a substitution removes: Spring sends it if the old path ends in the new one.
fn removed_prefix(regex: &str, replacement: &str) -> Option<String> {
    let text = regex.trim_start_matches('^').trim_end_matches('$');
    // The rest of the path is the last group: `(?<x>.*)` or `(.*)`.
    let body = text.strip_suffix(')')?;
    let open = body.rfind('(')?;
    let inner = &body[open + 1..];
    let inner = match inner.strip_prefix("?<").or_else(|| inner.strip_prefix("?P<")) {
        Some(named) => named.split_once('>')?.1,
        None => inner,
    };
    let head = &text[..open];
    if !matches!(inner, ".*" | ".+") || head.contains('(') {
        return None;
    }
    let added = replacement.split("${1}").next().filter(|_| replacement.contains("${1}"))?;
    // Without a slash that must be there, the prefix may be the whole path.
    let end = if head.ends_with("/?") { "(?:/|$)" } else { "/" };
    let head = head.strip_suffix("/?").or_else(|| head.strip_suffix('/'))?;
    let added = added.strip_suffix('/')?;
    let removed = match added {
        "" => head,
        added if !added.contains('$') => head.strip_suffix(added)?,
        _ => return None,
    };
    (!removed.is_empty()).then(|| format!("^({removed}){end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies the substitution as proxy-rewrite does.
    fn applied(steps: &[Step], target: &str) -> String {
        let rewriting = joined(steps).expect("a substitution");
        let list = rewriting.fields["regex_uri"].as_array().cloned().unwrap_or_default();
        for pair in list.chunks(2) {
            let regex = regex::Regex::new(pair[0].as_str().expect("a text")).expect("a regex");
            if regex.is_match(target) {
                return regex.replace(target, pair[1].as_str().expect("a text")).into_owned();
            }
        }
        target.to_owned()
    }

    fn rewrite(regexp: &str, replacement: &str) -> Step {
        Step::rewrite(regexp, replacement).expect("a rewriting")
    }

    #[test]
    fn steps_change_paths_as_in_spring() {
        let prefix = |text: &str| Step::Prefix(text.to_owned());
        for (steps, target, expected) in [
            (vec![Step::Strip(2)], "/strip/one/two?x=/a/b", "/two?x=/a/b"),
            (vec![Step::Strip(2)], "/strip/one?x", "/?x"),
            (vec![Step::Strip(1)], "/a%20b/c%2Fd/e", "/c%2Fd/e"),
            (vec![prefix("/api")], "/x?y", "/api/x?y"),
            (vec![Step::Strip(1), prefix("/v1")], "/api/x", "/v1/x"),
            (vec![prefix("/a/b"), Step::Strip(1)], "/x", "/b/x"),
            (vec![rewrite("/rw/(?<segment>.*)", "/$\\{segment}")], "/rw/a/b?c=d", "/a/b?c=d"),
            (vec![rewrite("/rw/(?<segment>.*)", "/$\\{segment}")], "/rw?x=/rw/", "/rw?x=/rw/"),
            (vec![rewrite("^/a/(.*)$", "/b/$1")], "/a/x?y=1", "/b/x?y=1"),
            (vec![rewrite("^/a/(.*)/z$", "/b/$1")], "/a/x/z?y=1", "/b/x?y=1"),
            (vec![rewrite("/a/?(?<r>.*)", "/${r}")], "/a?y", "/?y"),
            (vec![rewrite("/a/(?<r>.*)", "/${r}"), prefix("/p")], "/a/x", "/p/x"),
            (vec![Step::Strip(1), rewrite("/a/(?<r>.*)", "/b/${r}")], "/s/a/x", "/b/x"),
        ] {
            assert_eq!(applied(&steps, target), expected, "{steps:?} {target}");
        }
        assert!(joined(&[prefix("/a"), rewrite("/a", "/b")]).is_err());
    }

    #[test]
    fn removed_prefixes_are_known() {
        let prefix = |step: Step| joined(&[step]).expect("a rewriting").prefix;
        assert_eq!(prefix(rewrite("/rw/(?<s>.*)", "/$\\{s}")).as_deref(), Some("^(/rw)/"));
        assert_eq!(prefix(rewrite("/api/v1/(?<s>.*)", "/v1/$\\{s}")).as_deref(), Some("^(/api)/"));
        assert_eq!(prefix(rewrite("/a/?(?<s>.*)", "/$\\{s}")).as_deref(), Some("^(/a)(?:/|$)"));
        assert_eq!(prefix(rewrite("/api/(?<s>.*)", "/v1/$\\{s}")), None);
        assert_eq!(prefix(Step::Strip(2)).as_deref(), Some("^((?:/[^/]+){1,2})"));
    }
}
