//! Actions that end a request: deny, return, redirect and the like.

use super::super::decision::Target;
use super::super::source::Files;
use super::format;
use super::lua;
use super::sample::Variables;

/// Maximum length of a body that is read from a file.
const MOST_BODY: usize = 256 << 10;

/// The words of a rule before its condition, and the condition.
pub(super) fn parts(words: &[String]) -> (&[String], &[String]) {
    // A condition begins at the first `if` or `unless` that is no argument of a name.
    let at = words.iter().position(|word| matches!(word.as_str(), "if" | "unless")).unwrap_or(words.len());
    words.split_at(at)
}

/// The value after a word.
fn after<'w>(words: &'w [String], name: &str) -> Option<&'w str> {
    let at = words.iter().position(|word| word == name)?;
    words.get(at + 1).map(String::as_str)
}

/// Reads `deny`, `return` and `tarpit`: status, body and fields.
pub(super) fn respond(
    words: &[String],
    default: u16,
    variables: &Variables,
    files: &dyn Files,
) -> Result<Target, String> {
    let status = after(words, "deny_status").or_else(|| after(words, "status"));
    let status =
        status.map_or(Ok(default), |text| text.parse().map_err(|_| format!("`{text}` is not a status.")))?;
    let mut headers = Vec::new();
    let mut body = None;
    for (kind, is_format) in [("string", false), ("lf-string", true)] {
        if let Some(text) = after(words, kind) {
            body = Some(if is_format { template(text, variables)? } else { text.replace('$', "\\$") });
        }
    }
    for (kind, is_format) in [("file", false), ("lf-file", true)] {
        if let Some(path) = after(words, kind) {
            let text = files.read(path).map_err(|reason| format!("{path} cannot be read: {reason}."))?;
            if text.len() > MOST_BODY {
                return Err(format!("{path} is too long for a response in the file; use static-files."));
            }
            body = Some(if is_format {
                template(text.trim_end_matches('\n'), variables)?
            } else {
                text.replace('$', "\\$")
            });
        }
    }
    if let Some(kind) = after(words, "content-type") {
        headers.push(("Content-Type".to_owned(), kind.to_owned()));
    }
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if word == "hdr"
            && let (Some(name), Some(value)) = (words.get(at + 1), words.get(at + 2))
        {
            headers.push((name.clone(), template(value, variables)?));
            at += 2;
        }
        at += 1;
    }
    if body.is_none() && words.first().is_some_and(|word| word == "return") {
        // A response without content.
        body = Some(String::new());
    }
    Ok(Target::Respond { status, body, headers })
}

fn template(text: &str, variables: &Variables) -> Result<String, String> {
    format::read(text, variables)?
        .template
        .ok_or_else(|| "The text has a value that only Lua can compute.".to_owned())
}

/// The statements of Lua for `deny` and `return` whose texts Lua has to compute.
///
/// # Errors
/// Returns a sentence if a part has no counterpart.
pub(super) fn computed_response(
    words: &[String],
    default: u16,
    variables: &Variables,
) -> Result<String, String> {
    let status = after(words, "deny_status").or_else(|| after(words, "status"));
    let status: u16 =
        status.map_or(Ok(default), |text| text.parse().map_err(|_| format!("`{text}` is not a status.")))?;
    let body = match (after(words, "lf-string"), after(words, "string")) {
        (Some(text), _) => format::read(text, variables)?.lua,
        (None, Some(text)) => lua::text(text),
        (None, None) => return Err("The body is not a text.".to_owned()),
    };
    let mut code = String::new();
    if let Some(kind) = after(words, "content-type") {
        code.push_str(&format!("  ngx.header[\"Content-Type\"] = {}\n", lua::text(kind)));
    }
    for (at, word) in words.iter().enumerate() {
        if word == "hdr"
            && let (Some(name), Some(value)) = (words.get(at + 1), words.get(at + 2))
        {
            let value = format::read(value, variables)?.lua;
            code.push_str(&format!("  ngx.header[{}] = {value}\n", lua::text(name)));
        }
    }
    code.push_str(&format!("  return {status}, {body}\n"));
    Ok(code)
}

/// The statements of Lua for the words after `redirect`, where Lua has to compute the target.
///
/// # Errors
/// Returns a sentence if a part has no counterpart.
pub(super) fn computed_redirect(words: &[String], variables: &Variables) -> Result<String, String> {
    let status: u16 = after(words, "code")
        .map_or(Ok(302), |text| text.parse().map_err(|_| format!("`{text}` is not a status.")))?;
    // The path as the client sent it, which is valid in a field.
    let path = "string.match(ngx.var.request_uri, \"^[^?]*\")";
    let rest = if words.iter().any(|word| word == "drop-query") { path } else { "ngx.var.request_uri" };
    let kinds = ["location", "prefix", "scheme"];
    let kind = kinds.into_iter().find(|kind| after(words, kind).is_some());
    let kind = kind.ok_or("The redirect has no target.")?;
    let text = format::read(after(words, kind).unwrap_or_default(), variables)?.lua;
    let text = text.replace("ngx.var.uri", path);
    let to = match kind {
        "location" => text,
        "prefix" => format!("{text} .. {rest}"),
        _ => format!("{text} .. \"://\" .. (ngx.var.http_host or \"\") .. {rest}"),
    };
    Ok(format!("  ngx.header[\"Location\"] = {to}\n  return {status}\n"))
}

/// Reads the words after `redirect`.
///
/// # Errors
/// Returns a sentence if it cannot be said.
pub(super) fn redirect(
    words: &[String],
    variables: &Variables,
) -> Result<(Target, Option<&'static str>), String> {
    let status = after(words, "code")
        .map_or(Ok(302), |text| text.parse().map_err(|_| format!("`{text}` is not a status.")))?;
    let drops_query = words.iter().any(|word| word == "drop-query");
    let path = if drops_query { "${uri}" } else { "${request_uri}" };
    let kinds = ["location", "prefix", "scheme"];
    let at =
        words.iter().position(|word| kinds.contains(&word.as_str())).ok_or("The redirect has no target.")?;
    let kind = words[at].as_str();
    let value = words.get(at + 1).ok_or("The redirect has no target.")?;
    let text = template(value, variables)?;
    let to = match kind {
        "location" => text,
        "prefix" if text == "/" => path.to_owned(),
        "prefix" => format!("{text}{path}"),
        "scheme" => format!("{text}://${{http_host}}{path}"),
        other => return Err(format!("`redirect {other}` has no counterpart.")),
    };
    let remark = words
        .iter()
        .any(|word| matches!(word.as_str(), "set-cookie" | "clear-cookie" | "append-slash"))
        .then_some("Cookies and added slashes of redirects are not converted.");
    Ok((Target::Redirect { status, to }, remark))
}

#[cfg(test)]
mod tests {
    use super::super::super::source::MemoryFiles;
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn redirects_have_targets() {
        for (text, expected) in [
            ("scheme https code 301", "https://${http_host}${request_uri}"),
            ("prefix http://a drop-query", "http://a${uri}"),
            ("code 301 location /x%[path]", "/x${uri}"),
        ] {
            let (target, _) = redirect(&words(text), &Variables::new()).expect(text);
            let Target::Redirect { to, .. } = target else { panic!("{target:?}") };
            assert_eq!(to, expected);
        }
    }

    #[test]
    fn computed_targets_are_written_in_lua() {
        let text = "code 301 location https://%[hdr(host),regsub(^www\\.,,)]%[path]";
        assert!(redirect(&words(text), &Variables::new()).is_err());
        let code = computed_redirect(&words(text), &Variables::new()).expect("code");
        let expected = "  ngx.header[\"Location\"] = \"https://\" .. (replace(ngx.var.http_host, \"sub\", \"^www\\\\.\", \"\", \"jo\") or \"\") .. (string.match(ngx.var.request_uri, \"^[^?]*\") or \"\")\n  return 301\n";
        assert_eq!(code, expected);
        let text = "return status 200 content-type text/plain lf-string %[method,lower]";
        let code = computed_response(&words(text), 200, &Variables::new()).expect("code");
        assert!(code.ends_with("  return 200, (lower(ngx.var.request_method) or \"\")\n"), "{code}");
    }

    #[test]
    fn responses_have_status_body_and_fields() {
        let files = MemoryFiles::default();
        let text = "return status 429 content-type text/plain string slow hdr X-A b%[src]";
        let target = respond(&words(text), 200, &Variables::new(), &files).expect("a response");
        assert_eq!(
            target,
            Target::Respond {
                status: 429,
                body: Some("slow".to_owned()),
                headers: vec![
                    ("Content-Type".to_owned(), "text/plain".to_owned()),
                    ("X-A".to_owned(), "b${remote_addr}".to_owned())
                ],
            }
        );
        let denied = respond(&words("deny"), 403, &Variables::new(), &files).expect("a response");
        assert_eq!(denied, Target::Respond { status: 403, body: None, headers: Vec::new() });
    }
}
