//! Rules that change the path, the query or the method.

use serde_json::{Map, Value, json};

use super::chain::Scope;
use super::effects::PathRule;
use super::expr::{Expr, Subject};
use super::format;
use super::lua;

/// A change of the path, the query or the method.
pub(super) fn rule(name: &str, words: &[String], condition: Expr, scope: &Scope) -> Result<PathRule, String> {
    if condition
        .has(|subject| matches!(subject, Subject::Above { .. } | Subject::Credentials(_) | Subject::Response))
    {
        return Err("The condition cannot select a path.".to_owned());
    }
    let mut fields = Map::new();
    let mut changed = None;
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let template = |text: &str| -> Result<String, String> {
        format::read(text, &scope.variables)?
            .template
            .ok_or_else(|| "The text has a value that only Lua can compute.".to_owned())
    };
    match name {
        "set-method" => drop(fields.insert("method".to_owned(), word(1).into())),
        "set-path" => {
            // The path as it came, not decoded and encoded again.
            let text = template(word(1))?.replace("${uri}", "${request_uri}");
            fields.insert("uri".to_owned(), text.into());
            fields.insert("use_real_request_uri_unsafe".to_owned(), true.into());
        }
        "replace-path" | "replace-pathq" | "replace-uri" => {
            let by = word(2);
            let by = if by.contains("%[") { template(by)? } else { lua::replacement(by) };
            if by.contains("${remote") || by.contains("${http") {
                return Err("The replacement has a value of the request.".to_owned());
            }
            let all = name != "replace-path";
            changed = super::acl::path_regex(word(1)).filter(|_| !all);
            fields.insert("regex_uri".to_owned(), json!([on_target(word(1), all)?, by]));
            fields.insert("use_real_request_uri_unsafe".to_owned(), true.into());
        }
        "set-query" => {
            let text = template(word(1))?;
            // The client's query follows in any case.
            if let Some(own) = text.strip_suffix("&${args}").filter(|own| !own.contains("${args}")) {
                fields.insert("regex_uri".to_owned(), json!(["^(.*)$", format!("$1?{own}")]));
                fields.insert("keep_escapes".to_owned(), true.into());
                return Ok(PathRule { condition, changed, fields });
            }
            if text.contains("${args}") {
                fields.insert("regex_uri".to_owned(), json!(["^([^?]*)\\??(.*)$", with_old_query(&text)?]));
                fields.insert("use_real_request_uri_unsafe".to_owned(), true.into());
                return Ok(PathRule { condition, changed, fields });
            }
            let set: Map<String, Value> = text
                .split('&')
                .filter(|pair| !pair.is_empty())
                .map(|pair| {
                    pair.split_once('=')
                        .map_or((pair.to_owned(), "".into()), |(key, value)| (key.to_owned(), value.into()))
                })
                .collect();
            fields.insert("args".to_owned(), json!({"pass": [], "set": set}));
        }
        "set-uri" => {
            let text = template(word(1))?;
            if !text.starts_with('/') || text.contains("${args}") {
                return Err("The new target is not a fixed path.".to_owned());
            }
            fields.insert("uri".to_owned(), text.into());
            fields.insert("args".to_owned(), json!({"pass": []}));
        }
        other => return Err(format!("`{other}` has no counterpart.")),
    }
    Ok(PathRule { condition, changed, fields })
}

/// A query with the old one in it, as a replacement of the target: group 1 is the path, group 2 the old query.
fn with_old_query(text: &str) -> Result<String, String> {
    let by = text.replace("${args}", "${2}");
    match by.replace("${2}", "").contains("${") {
        true => Err("The new query has a value of the request.".to_owned()),
        false => Ok(format!("${{1}}?{by}")),
    }
}

/// A regular expression on a path as one on a target, whose match is the whole path. With `all` it includes the query.
fn on_target(regex: &str, all: bool) -> Result<String, String> {
    let regex = if all { regex.to_owned() } else { regex.replace('.', "[^?]").replace("\\[^?]", "\\.") };
    let any = if all { ".*" } else { "[^?]*" };
    let body = regex.strip_prefix('^');
    let start = if body.is_some() { "^".to_owned() } else { format!("^{any}?") };
    let body = body.unwrap_or(&regex);
    let (body, end) = match body.strip_suffix('$').filter(|it| !it.ends_with('\\')) {
        Some(body) => (body, if all { "$" } else { "" }),
        None => (body, any),
    };
    let whole = format!("{start}(?:{body}){end}");
    regex::Regex::new(&whole).map_err(|_| "The regular expression is not supported.")?;
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_replaced_as_a_whole() {
        for (regex, by, target, expected) in [
            ("^/a/(.*)", "/b/\\1", "/a/x?y=1", "/b/x?y=1"),
            ("/a/(.*)$", "/b/\\1", "/z/a/x?y", "/b/x?y"),
            ("(.*)", "/p\\1", "/x.y?q=/a", "/p/x.y?q=/a"),
            ("\\.php$", "/x", "/a.php?b", "/x?b"),
        ] {
            let compiled = regex::Regex::new(&on_target(regex, false).expect(regex)).expect(regex);
            assert_eq!(compiled.replace(target, lua::replacement(by)), expected, "{regex}");
        }
    }
}
