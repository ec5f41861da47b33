//! Uploads: a message in the parts of a multipart body (GraphQL multipart request specification).
//!
//! Servers read multipart bodies in many ways: line ends, repeated names, encodings, quotes. So only the form that
//! browsers and clients write is accepted here; any other form is ambiguous.

use std::borrow::Cow;

use serde_json::Value;

use super::{Message, NoMessage, Parts, ambiguous, is_like, member, of_json};

/// The limit of parts.
const MOST_PARTS: usize = 10_000;

/// Returns the message of a body with this `Content-Type`: in the part `operations`, or in parts for its members.
pub(super) fn message(content_type: &[u8], body: &[u8]) -> Result<Message, NoMessage> {
    let boundary =
        boundary(content_type).ok_or_else(|| ambiguous("multipart: the boundary is missing or malformed"))?;
    let (mut operations, mut parts) = (None, Parts::new("multipart"));
    for (number, part) in split(boundary, body)?.into_iter().enumerate() {
        if number == MOST_PARTS {
            return Err(ambiguous("multipart: too many parts"));
        }
        let Part { name, is_file, content } = part;
        let is_operations = is_like(&name, "operations");
        if !is_operations && member(&name).is_none() {
            continue;
        }
        if is_file || is_operations && name != "operations" {
            return Err(ambiguous("multipart: a member is a file, or is written in another form"));
        }
        if is_operations {
            if operations.replace(content).is_some() {
                return Err(ambiguous("multipart[operations] is repeated"));
            }
            continue;
        }
        let text = std::str::from_utf8(content).map_err(|_| ambiguous("multipart: a member is not UTF-8"))?;
        parts.add(&name, Value::String(text.to_owned()))?;
    }
    match operations {
        Some(_) if parts.first().is_some() => Err(ambiguous("multipart: unknown members besides operations")),
        Some(content) => of_json(content),
        None => parts.message(),
    }
}

struct Part<'b> {
    name: Cow<'b, str>,
    is_file: bool,
    content: &'b [u8],
}

/// Returns the parameter `boundary`, if it is unique and plain.
fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    let mut found = None;
    for parameter in content_type.split(|b| *b == b';').skip(1) {
        let at = parameter.iter().position(|b| *b == b'=')?;
        let value = parameter[at + 1..].trim_ascii();
        if !parameter[..at].trim_ascii().eq_ignore_ascii_case(b"boundary") {
            continue;
        }
        let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"'+_-./:=?".contains(b);
        if found.is_some() || !(1..=70).contains(&value.len()) || !value.iter().all(is_plain) {
            return None;
        }
        found = Some(value);
    }
    found
}

/// Splits a body that begins with a delimiter and ends with the last one.
fn split<'b>(boundary: &[u8], body: &'b [u8]) -> Result<Vec<Part<'b>>, NoMessage> {
    let malformed = || ambiguous("multipart: the body is not in the simple form");
    let delimiter = [b"\r\n--", boundary].concat();
    // A reader with other line ends would find other parts.
    let marks =
        body.windows(boundary.len() + 2).filter(|at| at[..2] == *b"--" && at[2..] == *boundary).count();
    let mut rest = body.strip_prefix(&delimiter[2..]).ok_or_else(malformed)?;
    let mut parts = Vec::new();
    while let Some(after) = rest.strip_prefix(b"\r\n") {
        let at = position(after, &delimiter).ok_or_else(malformed)?;
        parts.push(part(&after[..at])?);
        rest = &after[at + delimiter.len()..];
    }
    let is_closed = rest.strip_prefix(b"--").is_some_and(|rest| rest.trim_ascii().is_empty());
    if is_closed && marks == parts.len() + 1 { Ok(parts) } else { Err(malformed()) }
}

/// Parses a part: its head, an empty line, its content.
fn part(text: &[u8]) -> Result<Part<'_>, NoMessage> {
    let malformed = || ambiguous("multipart: the head of a part is not in the simple form");
    let at = position(text, b"\r\n\r\n").ok_or_else(malformed)?;
    let head = std::str::from_utf8(&text[..at]).map_err(|_| malformed())?;
    let mut disposition = None;
    for line in head.split("\r\n") {
        let (name, value) = line.split_once(':').ok_or_else(malformed)?;
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if name.is_empty() || !name.bytes().all(is_token) || value.contains(['\r', '\n', '\0']) {
            return Err(malformed());
        }
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-disposition") && disposition.replace(value).is_some() {
            return Err(malformed());
        }
        let is_plain = ["7bit", "8bit", "binary"].iter().any(|known| known.eq_ignore_ascii_case(value));
        if name.eq_ignore_ascii_case("content-transfer-encoding") && !is_plain {
            return Err(malformed());
        }
    }
    let (name, is_file) = disposition.and_then(parameters).ok_or_else(malformed)?;
    Ok(Part { name: name.into(), is_file, content: &text[at + 4..] })
}

/// Returns the name in a `Content-Disposition`, and whether there is a file name. None if the header is ambiguous.
fn parameters(disposition: &str) -> Option<(&str, bool)> {
    let (mut found, mut is_file) = (None, false);
    let mut rest = disposition.strip_prefix("form-data")?;
    while !rest.is_empty() {
        let (name, after) = rest.trim_start().strip_prefix(';')?.trim_start().split_once('=')?;
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_at(after.find([';', ' ']).unwrap_or(after.len())),
        };
        // Servers differ in the meaning of these characters in a quoted text.
        if value.contains(['\\', '"']) || name == "name" && value.contains('%') {
            return None;
        }
        match name {
            "name" if found.replace(value).is_some() => return None,
            "name" => {}
            "filename" | "filename*" => is_file = true,
            _ => return None,
        }
        rest = after;
    }
    Some((found?, is_file))
}

fn position(bytes: &[u8], of: &[u8]) -> Option<usize> {
    bytes.windows(of.len()).position(|window| window == of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(content_type: &str, body: &str) -> Result<String, NoMessage> {
        message(content_type.as_bytes(), body.as_bytes()).map(|message| message.document)
    }

    const TYPE: &str = "multipart/form-data; boundary=B";

    fn upload(parts: &[(&str, &str)]) -> String {
        let part = |(head, content): &(&str, &str)| format!("--B\r\n{head}\r\n\r\n{content}\r\n");
        parts.iter().map(part).collect::<String>() + "--B--\r\n"
    }

    const FILE: (&str, &str) = (
        "Content-Disposition: form-data; name=\"0\"; filename=\"50%;.txt\"\r\nContent-Type: text/plain",
        "x",
    );
    const OPERATIONS: &str = "Content-Disposition: form-data; name=\"operations\"";

    #[test]
    fn uploads_are_read() {
        let json = r#"{"query":"{a}","variables":{"f":null}}"#;
        let map = ("Content-Disposition: form-data; name=\"map\"", r#"{"0":["variables.f"]}"#);
        assert_eq!(found(TYPE, &upload(&[(OPERATIONS, json), map, FILE])), Ok("{a}".to_owned()));
        let query = ("content-disposition: form-data; name=query", "{a}");
        assert_eq!(found("multipart/form-data; boundary=\"B\"", &upload(&[query])), Ok("{a}".to_owned()));
        assert!(matches!(found(TYPE, &upload(&[map])), Err(NoMessage::Absent(_))));
    }

    #[test]
    fn ambiguous_uploads_are_refused() {
        let check = |content_type: &str, body: &str| {
            let outcome = found(content_type, body);
            assert!(matches!(outcome, Err(NoMessage::Ambiguous(_))), "{outcome:?}: {content_type} {body}");
        };
        let json = r#"{"query":"{a}"}"#;
        let good = upload(&[(OPERATIONS, json)]);
        for content_type in [
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=C",
            "multipart/form-data; boundary=A; boundary=B",
            "multipart/form-data; boundary=B; x",
        ] {
            check(content_type, &good);
        }
        check(TYPE, &good.replace("\r\n", "\n"));
        check(TYPE, &format!("before\r\n{good}"));
        check(TYPE, &format!("{good}after"));
        check(TYPE, &good[..good.len() - 6]);
        check(TYPE, &upload(&[(OPERATIONS, json), (OPERATIONS, json)]));
        check(TYPE, &upload(&[(OPERATIONS, r#"[{"query":"{a}"}]"#)]));
        check(TYPE, &upload(&[(OPERATIONS, r#"{"query":"{a}","query":"{b}"}"#)]));
        check(TYPE, &upload(&[(OPERATIONS, json), ("Content-Disposition: form-data; name=query", "{b}")]));
        // Another reader ends the part, or its head, elsewhere.
        check(TYPE, &upload(&[(OPERATIONS, "{\"query\":\n--B\n\"{a}\"}")]));
        for head in [
            "Content-Disposition: form-data; name=\"operations\"\r\nContent-Transfer-Encoding: base64",
            "Content-Disposition: form-data; name=\"Operations\"",
            "Content-Disposition: form-data; name=\"operations[]\"",
            "Content-Disposition: form-data; name=\"query[]\"",
            "Content-Disposition: form-data; name=\"QUERY\"",
            "Content-Disposition: form-data; name=x; name=\"operations\"",
            "Content-Disposition: form-data; name*=UTF-8''operations",
            "Content-Disposition: form-data; x=\"; name=foo\"; name=\"operations\"",
            "Content-Disposition: form-data; name=\"op\\erations\"",
            "Content-Disposition: form-data; name=\"operations\"; filename=\"a\"",
            "Content-Disposition: form-data; name=\"a\"\r\nContent-Disposition: form-data; name=\"operations\"",
            "Content-Disposition: form-data;\r\n name=\"operations\"",
            "X: y",
            "",
        ] {
            check(TYPE, &upload(&[(head, json)]));
        }
    }
}
