//! Log-format texts: `https://%[req.hdr(host)]%[path]`.

use super::lua;
use super::sample::{self, Variables};

/// A text with values of the request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Text {
    /// As a text with variables, if it can be said so.
    pub template: Option<String>,
    /// As an expression of Lua.
    pub lua: String,
}

/// Reads a text.
///
/// # Errors
/// Returns a sentence if a part of it has no counterpart.
pub(super) fn read(text: &str, variables: &Variables) -> Result<Text, String> {
    let mut template = Some(String::new());
    let mut parts: Vec<String> = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    let push = |template: &mut Option<String>, piece: Option<&str>| match (template.as_mut(), piece) {
        (Some(text), Some(piece)) => text.push_str(piece),
        _ => *template = None,
    };
    while let Some(at) = rest.find('%') {
        literal.push_str(&rest[..at]);
        push(&mut template, Some(&escaped(&rest[..at])));
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('%') {
            literal.push('%');
            push(&mut template, Some("%"));
            rest = tail;
            continue;
        }
        // Flags such as `%{+Q}` concern logs.
        let after = match after.strip_prefix('{') {
            Some(flags) => flags.split_once('}').map_or("", |(_, tail)| tail),
            None => after,
        };
        let (sample, tail) = if let Some(inner) = after.strip_prefix('[') {
            let end = closing(inner).ok_or("`%[` is not closed.")?;
            (sample::read(&inner[..end], variables)?, &inner[end + 1..])
        } else {
            let end = after.find(|char: char| !char.is_ascii_alphanumeric()).unwrap_or(after.len());
            alias(&after[..end]).map(|fetch| (fetch, end)).map_or_else(
                || Err(format!("`%{}` has no counterpart.", &after[..end])),
                |(fetch, end)| Ok((sample::read(fetch, variables)?, &after[end..])),
            )?
        };
        if !literal.is_empty() {
            parts.push(lua::text(&std::mem::take(&mut literal)));
        }
        push(&mut template, sample.text.as_deref());
        parts.push(format!("({} or \"\")", sample.lua));
        rest = tail;
    }
    literal.push_str(rest);
    push(&mut template, Some(&escaped(rest)));
    if !literal.is_empty() || parts.is_empty() {
        parts.push(lua::text(&literal));
    }
    Ok(Text { template, lua: parts.join(" .. ") })
}

fn escaped(text: &str) -> String {
    text.replace('$', "\\$")
}

/// The end of an expression: brackets within it are balanced.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'[' => depth += 1,
            b']' if depth == 0 => return Some(at),
            b']' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The fetch of a short name.
fn alias(name: &str) -> Option<&'static str> {
    Some(match name {
        "ci" | "cip" => "src",
        "cp" => "src_port",
        "fi" => "dst",
        "fp" => "dst_port",
        "HM" => "method",
        "HP" => "path",
        "HU" | "HPO" => "url",
        "HQ" => "query",
        "HV" => "req.ver",
        "ID" => "unique-id",
        "H" => "hostname",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_variables_or_lua() {
        let read = |text: &str| read(text, &Variables::new()).expect(text);
        assert_eq!(
            read("http://%[req.hdr(Host)]%[capture.req.uri]").template.as_deref(),
            Some("http://${http_host}${request_uri}")
        );
        assert_eq!(read("$1 100%%").template.as_deref(), Some("\\$1 100%"));
        let lowered = read("a%[base,lower]");
        assert_eq!(lowered.template, None);
        assert_eq!(lowered.lua, "\"a\" .. (lower(((ngx.var.http_host or \"\") .. ngx.var.uri)) or \"\")");
        assert_eq!(read("%ci").template.as_deref(), Some("${remote_addr}"));
    }
}
