//! Conditions of routes: paths, header fields, arguments.

use serde_json::{Value, json};

use super::super::decision::{Decision, Path};
use super::super::logic::{group, negated};
use super::super::tree::Tree;
use super::fields::{field, integer, is_true, items, text};

/// Puts the conditions of a route's `match` into a decision.
pub(super) fn insert(conditions: &Tree, decision: &mut Decision) -> Result<(), String> {
    if field(conditions, "connect_matcher").is_some() {
        decision.methods = vec!["CONNECT".to_owned()];
    }
    if let Some(path) = path(conditions)? {
        decision.paths = vec![path];
    }
    for header in items(conditions, "headers") {
        let condition = header_condition(header)?;
        // A method alone is a method of the route.
        match method(header) {
            Some(method) if decision.methods.is_empty() => decision.methods = vec![method],
            _ => decision.conditions.push(condition),
        }
    }
    for argument in items(conditions, "query_parameters") {
        decision.conditions.push(argument_condition(argument)?);
    }
    if field(conditions, "grpc").is_some() {
        decision.conditions.push(json!(["http_content_type", "~~", "^application/grpc"]));
    }
    match runtime_share(conditions)? {
        Share::All => {}
        Share::None => decision.conditions.push(json!(["request_method", "==", ""])),
    }
    for name in ["tls_context", "dynamic_metadata", "cookies", "filter_state"] {
        if field(conditions, name).is_some() {
            return Err(format!("`{name}` of a match is not converted"));
        }
    }
    Ok(())
}

/// The share of requests that a `match` takes.
enum Share {
    All,
    None,
}

/// Reads `runtime_fraction`; without an override its default value holds.
fn runtime_share(conditions: &Tree) -> Result<Share, String> {
    let Some(fraction) = field(conditions, "runtime_fraction") else { return Ok(Share::All) };
    let default = field(fraction, "default_value");
    let numerator = default.and_then(|it| integer(it, "numerator")).unwrap_or(0);
    let whole = match default.and_then(|it| text(it, "denominator")) {
        Some("TEN_THOUSAND") => 10_000,
        Some("MILLION") => 1_000_000,
        _ => 100,
    };
    match numerator {
        0 => Ok(Share::None),
        share if share >= whole => Ok(Share::All),
        _ => Err("a share of requests in `runtime_fraction` is not converted: use traffic-split".to_owned()),
    }
}

/// The path of a `match`; None for all paths.
fn path(conditions: &Tree) -> Result<Option<Path>, String> {
    let ignore_case = field(conditions, "case_sensitive").and_then(Tree::boolean) == Some(false);
    let regex = |pattern: String| Path::Regex { pattern, ignore_case };
    if let Some(prefix) = text(conditions, "prefix") {
        return Ok(match (prefix, ignore_case) {
            ("/" | "", _) => None,
            (prefix, true) => Some(regex(format!("^{}", regex::escape(prefix)))),
            (prefix, false) => Some(Path::Prefix(prefix.to_owned())),
        });
    }
    if let Some(path) = text(conditions, "path") {
        return Ok(Some(match ignore_case {
            true => regex(format!("^{}$", regex::escape(path))),
            false => Path::Exact(path.to_owned()),
        }));
    }
    if let Some(path) = text(conditions, "path_separated_prefix") {
        return Ok(Some(match ignore_case {
            true => regex(format!("^{}(?:/|$)", regex::escape(path))),
            false => Path::Segments(path.to_owned()),
        }));
    }
    if let Some(pattern) = field(conditions, "safe_regex").and_then(|regex| text(regex, "regex")) {
        let pattern = checked(pattern)?;
        return Ok(Some(Path::Regex { pattern: format!("^(?:{pattern})$"), ignore_case: false }));
    }
    if let Some(template) = super::fields::at(conditions, &["path_match_policy", "typed_config"]) {
        let template = text(template, "path_template").ok_or("this `path_match_policy` is not converted")?;
        return Ok(Some(regex(path_template(template)?)));
    }
    match field(conditions, "connect_matcher") {
        Some(_) => {
            Err("`connect_matcher` is not converted: use the plugin forward-proxy for CONNECT".to_owned())
        }
        None => Err("a `match` needs a path".to_owned()),
    }
}

/// The regular expression of a URI template: `*` one segment, `**` the rest, `{name}`, `{name=pattern}`.
fn path_template(template: &str) -> Result<String, String> {
    let mut out = String::from("^");
    for segment in template.split('/').skip(1) {
        out.push('/');
        let inner = segment.strip_prefix('{').and_then(|segment| segment.strip_suffix('}'));
        let (name, pattern) = match inner {
            Some(inner) => inner.split_once('=').unwrap_or((inner, "*")),
            None => ("", segment),
        };
        let regex = match pattern {
            "*" => "[^/]+".to_owned(),
            "**" => ".*".to_owned(),
            text if !text.contains('*') => regex::escape(text),
            _ => return Err(format!("the template `{template}` is not converted")),
        };
        out.push_str(&if name.is_empty() { regex } else { format!("(?<{name}>{regex})") });
    }
    out.push('$');
    Ok(out)
}

/// Checks a regular expression of RE2.
pub(super) fn checked(pattern: &str) -> Result<String, String> {
    match regex::RegexBuilder::new(pattern).size_limit(1 << 20).build() {
        Ok(_) => Ok(pattern.to_owned()),
        Err(_) => Err(format!("the regular expression `{pattern}` is not supported")),
    }
}

/// Returns the variable of a header field.
pub(super) fn variable(name: &str) -> Result<String, String> {
    let name = name.to_ascii_lowercase();
    let fixed = match name.as_str() {
        ":method" => "request_method",
        ":authority" | "host" => "http_host",
        ":path" => "request_uri",
        ":scheme" => "scheme",
        _ => "",
    };
    if !fixed.is_empty() {
        return Ok(fixed.to_owned());
    }
    match !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
        true => Ok(format!("http_{}", name.replace('-', "_"))),
        false => Err(format!("`{name}` is not the name of a header field")),
    }
}

/// The method that a matcher names, if it names one.
fn method(header: &Tree) -> Option<String> {
    let known = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];
    let exact = field(header, "string_match")
        .and_then(|it| text(it, "exact"))
        .or_else(|| text(header, "exact_match"))?;
    let fits = text(header, "name") == Some(":method") && !is_true(header, "invert_match");
    (fits && known.contains(&exact)).then(|| exact.to_owned())
}

/// A condition on a header field.
pub(super) fn header_condition(header: &Tree) -> Result<Value, String> {
    let name = variable(text(header, "name").ok_or("a header matcher needs a name")?)?;
    let invert = is_true(header, "invert_match");
    if let Some(present) = field(header, "present_match") {
        let is_present = (present.boolean() != Some(false)) != invert;
        return Ok(json!([name, if is_present { "~=" } else { "==" }, null]));
    }
    let condition = if let Some(string) = field(header, "string_match") {
        string_condition(&name, string)?
    } else if let Some(value) = text(header, "exact_match") {
        json!([name, "==", value])
    } else if let Some(value) = text(header, "prefix_match") {
        json!([name, "~~", format!("^{}", regex::escape(value))])
    } else if let Some(value) = text(header, "suffix_match") {
        json!([name, "~~", format!("{}$", regex::escape(value))])
    } else if let Some(value) = text(header, "contains_match") {
        json!([name, "~~", regex::escape(value)])
    } else if let Some(pattern) = field(header, "safe_regex_match").and_then(|it| text(it, "regex")) {
        json!([name, "~~", format!("^(?:{})$", checked(pattern)?)])
    } else if let Some(range) = field(header, "range_match") {
        let (start, end) = (integer(range, "start").unwrap_or(0), integer(range, "end").unwrap_or(0));
        json!(["AND", [name, "~~", "^-?[0-9]+$"], [name, ">=", start], [name, "<", end]])
    } else {
        json!([name, "~=", null])
    };
    if is_true(header, "treat_missing_header_as_empty") {
        let empty = if invert { negated(condition) } else { condition };
        return Ok(empty);
    }
    // A missing field matches nothing, not even the opposite.
    Ok(match invert {
        true => group("AND", vec![json!([name, "~=", null]), negated(condition)]),
        false => condition,
    })
}

/// A condition on the text of a variable.
pub(super) fn string_condition(name: &str, matcher: &Tree) -> Result<Value, String> {
    let ignore_case = is_true(matcher, "ignore_case");
    let operator = if ignore_case { "~*" } else { "~~" };
    for (kind, start, end) in
        [("exact", "^", "$"), ("prefix", "^", ""), ("suffix", "", "$"), ("contains", "", "")]
    {
        if let Some(value) = text(matcher, kind) {
            return Ok(match kind == "exact" && !ignore_case {
                true => json!([name, "==", value]),
                false => json!([name, operator, format!("{start}{}{end}", regex::escape(value))]),
            });
        }
    }
    match field(matcher, "safe_regex").and_then(|regex| text(regex, "regex")) {
        Some(pattern) => Ok(json!([name, "~~", format!("^(?:{})$", checked(pattern)?)])),
        None => Err("this text matcher is not converted".to_owned()),
    }
}

/// A condition on an argument of the query: its first value counts.
fn argument_condition(argument: &Tree) -> Result<Value, String> {
    let name = format!("arg_{}", text(argument, "name").ok_or("a query matcher needs a name")?);
    match field(argument, "string_match") {
        Some(string) => string_condition(&name, string),
        None => Ok(match field(argument, "present_match").and_then(Tree::boolean) {
            Some(false) => json!([name, "==", null]),
            _ => json!([name, "~=", null]),
        }),
    }
}
