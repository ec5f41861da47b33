//! Bodies as the values that templates are about.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::arguments::{self, add, text};
use super::{xml, yaml};
use crate::json_body::{self, Unread};

/// The form of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    Xml,
    Json,
    Encoded,
    /// The arguments of the query, whatever the body is.
    Args,
    Plain,
    Multipart,
    Yaml,
}

impl Format {
    /// That of a content type, as far as it is known.
    pub(super) fn of(content_type: &str) -> Option<Format> {
        let content_type = content_type.to_ascii_lowercase();
        let known = [
            ("text/xml", Format::Xml),
            ("application/json", Format::Json),
            ("application/x-www-form-urlencoded", Format::Encoded),
            ("multipart/", Format::Multipart),
            ("application/yaml", Format::Yaml),
            ("application/x-yaml", Format::Yaml),
            ("text/yaml", Format::Yaml),
            ("text/x-yaml", Format::Yaml),
            ("+yaml", Format::Yaml),
        ];
        known.into_iter().find(|(name, _)| content_type.contains(name)).map(|(_, format)| format)
    }

    /// The value of a body, or of a query; nothing for a body that is not parsed.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the body is not of this form, or has more than `most_values` values.
    pub(super) fn read(self, body: &[u8], content_type: &str, most_values: usize) -> Result<Value, String> {
        let too_many = || format!("more than {most_values} values");
        match self {
            Format::Plain => Ok(Value::Null),
            Format::Json => json_body::read(body, most_values).map_err(|unread| match unread {
                Unread::TooMany => too_many(),
                Unread::Invalid(reason) => reason,
            }),
            Format::Xml => xml::read(text(body)?, most_values),
            Format::Encoded | Format::Args => arguments::read(body, most_values),
            Format::Multipart => multipart(body, content_type, most_values),
            Format::Yaml => yaml::read(text(body)?, most_values),
        }
    }
}

/// The parts of a form (RFC 7578) by their names.
fn multipart(body: &[u8], content_type: &str, most_values: usize) -> Result<Value, String> {
    let boundary = parameter(content_type, "boundary").filter(|boundary| (1..=70).contains(&boundary.len()));
    let boundary = boundary.ok_or("the Content-Type has no boundary")?;
    let delimiter = format!("\r\n--{boundary}");
    let body = text(body)?;
    // What stands before the first one is nobody's.
    let first =
        body.strip_prefix(&delimiter[2..]).or_else(|| body.split_once(&delimiter).map(|(_, rest)| rest));
    let mut rest = first.ok_or("the boundary is missing")?;
    let mut fields = Map::new();
    let mut count = 0;
    while !rest.starts_with("--") {
        rest = rest
            .trim_start_matches([' ', '\t'])
            .strip_prefix("\r\n")
            .ok_or("a line end behind the boundary is missing")?;
        let (part, after) = rest.split_once(&delimiter).ok_or("the last boundary is missing")?;
        // A part may have no field; then the empty line is its first.
        let (head, value) = match part.strip_prefix("\r\n") {
            Some(value) => ("", value),
            None => part.split_once("\r\n\r\n").ok_or("a part has no end of its fields")?,
        };
        let disposition = head.split("\r\n").filter_map(|line| line.split_once(':'));
        let mut disposition =
            disposition.filter(|(name, _)| name.trim().eq_ignore_ascii_case("content-disposition"));
        let name = disposition.next().and_then(|(_, value)| parameter(value, "name"));
        count += 1;
        if count > most_values {
            return Err(format!("more than {most_values} values"));
        }
        add(&mut fields, &name.ok_or("a part has no name")?, value.into());
        rest = after;
    }
    Ok(Value::Object(fields))
}

/// A parameter of a field such as `form-data; name="a"`.
fn parameter(value: &str, name: &str) -> Option<String> {
    let mut rest = value.split_once(';')?.1;
    loop {
        let (known, after) = rest.split_once('=')?;
        let is_it = known.trim().eq_ignore_ascii_case(name);
        let (found, after) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => {
                let (mut text, mut end, mut chars) = (String::new(), None, quoted.char_indices());
                while let Some((at, char)) = chars.next() {
                    match char {
                        '"' => {
                            end = Some(at + 1);
                            break;
                        }
                        '\\' => text.push(chars.next()?.1),
                        char => text.push(char),
                    }
                }
                (text, &quoted[end?..])
            }
            None => {
                let end = after.find(';').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        if is_it {
            return Some(found);
        }
        rest = after.trim_start().strip_prefix(';')?;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn formats_by_content_type() {
        let check = |content_type, expected| assert_eq!(Format::of(content_type), expected, "{content_type}");
        check("text/xml; charset=utf-8", Some(Format::Xml));
        check("application/json", Some(Format::Json));
        check("Application/X-www-form-urlencoded", Some(Format::Encoded));
        check("multipart/form-data; boundary=x", Some(Format::Multipart));
        check("application/yaml", Some(Format::Yaml));
        check("application/openapi+yaml; version=3.1", Some(Format::Yaml));
        check("text/x-yaml", Some(Format::Yaml));
        check("text/plain", None);
        check("", None);
    }

    #[test]
    fn bodies() {
        let check = |format: Format, body: &str, expected: Result<Value, &str>| {
            let found = format.read(body.as_bytes(), "multipart/form-data; boundary=\"b b\"; charset=x", 4);
            assert_eq!(found, expected.map_err(str::to_owned), "{body}");
        };
        check(Format::Json, "{\"a\":1,\"a\":2}", Ok(json!({"a": 2})));
        check(Format::Json, "[1,2,3,4]", Err("more than 4 values"));
        check(Format::Xml, "<a>1</a>", Ok(json!({"a": "1"})));
        check(Format::Encoded, "a=1&a=%20&b&c=", Ok(json!({"a": ["1", " "], "b": true, "c": ""})));
        check(Format::Args, "a=%ff", Err("it is no UTF-8"));
        check(Format::Args, "a&b&c&d&e", Err("more than 4 values"));
        check(Format::Plain, "{", Ok(Value::Null));
        check(Format::Yaml, "a: &x [1]\nb: 2", Err("line 1: more than 4 values"));
        check(Format::Yaml, "a: [1]\nb: 2", Ok(json!({"a": [1], "b": 2})));
        let part = |name: &str, value: &str| {
            format!(
                "--b b\r\nContent-Disposition: form-data; name=\"{name}\"; filename=x\r\nContent-Type: a/b\r\n\r\n{value}\r\n"
            )
        };
        let form = format!(
            "preamble\r\n{}{}{}--b b--\r\nend",
            part("a", "1\r\n2"),
            part("b\\\"", ""),
            part("a", "--b")
        );
        check(Format::Multipart, &form, Ok(json!({"a": ["1\r\n2", "--b"], "b\"": ""})));
        check(Format::Multipart, "--b b--", Ok(json!({})));
        check(Format::Multipart, "x", Err("the boundary is missing"));
        check(Format::Multipart, &part("a", "1"), Err("the last boundary is missing"));
        check(Format::Multipart, "--b b\r\n\r\n1\r\n--b b--", Err("a part has no name"));
        check(Format::Multipart, "--b b\r\nx\r\n--b b--", Err("a part has no end of its fields"));
        let many = format!("{}--b b--", part("a", "").repeat(5));
        check(Format::Multipart, &many, Err("more than 4 values"));
        assert!(Format::Multipart.read(b"", "multipart/form-data", 4).is_err());
    }
}
