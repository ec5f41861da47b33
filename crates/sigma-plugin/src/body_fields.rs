//! A request body as fields: JSON, a form, or multipart (RFC 7578), by its media type.

use serde_json::{Map, Value};
use sigma_schema::expr::{VarName, VarValue};

use crate::form::pairs;
use crate::graphql::Chosen;

/// The largest number of form fields and multipart parts that logs and templates can read.
const FIELDS_MAX: usize = 1_000;

/// The same limit for conditions that choose a route.
const DECIDING_FIELDS_MAX: usize = 10_000;

/// The fields of a request body, for conditions that are evaluated before the route is known.
#[derive(Debug, Default)]
pub struct BodyFields {
    fields: Option<Value>,
    is_form: bool,
    /// The operation of GraphQL in it, if it was parsed.
    chosen: Option<Option<Chosen>>,
}

impl BodyFields {
    /// Adds the operation of GraphQL that was found in the request.
    pub fn with_graphql(self, chosen: Option<Chosen>) -> BodyFields {
        BodyFields { chosen: Some(chosen), ..self }
    }

    /// Returns the operation of GraphQL, or None if it was not parsed yet.
    pub fn graphql(&self) -> Option<Option<&Chosen>> {
        self.chosen.as_ref().map(Option::as_ref)
    }

    /// Returns true if bodies of this type can have fields.
    pub fn are_in(content_type: &[u8]) -> bool {
        is_json(content_type) || is_form(content_type) || is_multipart(content_type)
    }

    /// Parses the fields of a body. The result is empty if the body does not match its type. None if there are more
    /// fields than the limit: a client must not hide a field behind thousands of others.
    pub fn of(content_type: &[u8], body: &[u8]) -> Option<BodyFields> {
        let most = DECIDING_FIELDS_MAX;
        let is_form = is_form(content_type);
        let fields = read_up_to(content_type, body, most);
        let is_list = is_form || is_multipart(content_type);
        let seen = fields.as_ref().and_then(Value::as_object).map_or(0, Map::len);
        if is_list && (seen >= most || is_form && pairs(body).nth(most).is_some()) {
            return None;
        }
        Some(BodyFields { fields, is_form, chosen: None })
    }

    /// Returns the value of `post_arg.PATH`, or of `post_arg_NAME` in a form.
    pub fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        let fields = self.fields.as_ref()?;
        match name {
            VarName::PostArg(field) => field.value(fields),
            VarName::Other(name) if self.is_form => match fields.get(name.strip_prefix("post_arg_")?)? {
                Value::String(text) => Some(VarValue::text(text)),
                _ => Some(VarValue::Bool(true)),
            },
            _ => None,
        }
    }
}

/// Returns true if bodies of this type are forms.
pub(crate) fn is_form(content_type: &[u8]) -> bool {
    media_type(content_type).eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
}

/// Parses the body to a value. Returns None for an unknown type or an invalid body.
pub(crate) fn read(content_type: &[u8], body: &[u8]) -> Option<Value> {
    read_up_to(content_type, body, FIELDS_MAX)
}

fn read_up_to(content_type: &[u8], body: &[u8], most: usize) -> Option<Value> {
    if is_json(content_type) {
        return serde_json::from_slice(body).ok();
    }
    if is_form(content_type) {
        return Some(form(body, most));
    }
    is_multipart(content_type).then(|| multipart(boundary(content_type)?, body, most))?
}

fn is_json(content_type: &[u8]) -> bool {
    let media_type = media_type(content_type).to_ascii_lowercase();
    media_type == b"application/json" || media_type.ends_with(b"+json")
}

fn is_multipart(content_type: &[u8]) -> bool {
    media_type(content_type).eq_ignore_ascii_case(b"multipart/form-data")
}

fn media_type(content_type: &[u8]) -> &[u8] {
    content_type.split(|b| *b == b';').next().unwrap_or_default().trim_ascii()
}

/// The first value of each name; true for a name without `=`.
fn form(body: &[u8], most: usize) -> Value {
    let mut fields = Map::new();
    for (name, value) in pairs(body).take(most) {
        let value = value.map_or(Value::Bool(true), |value| text(&value));
        fields.entry(text_of(&name)).or_insert(value);
    }
    Value::Object(fields)
}

fn text(bytes: &[u8]) -> Value {
    Value::String(text_of(bytes))
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The parameter `boundary`, 1 to 70 bytes (RFC 2046 §5.1.1).
fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    let found = parameter(content_type, b"boundary")?;
    (1..=70).contains(&found.len()).then_some(found)
}

/// A parameter of a field value, without its quotes.
fn parameter<'v>(value: &'v [u8], name: &[u8]) -> Option<&'v [u8]> {
    let parameters = value.split(|b| *b == b';').skip(1).map(<[u8]>::trim_ascii);
    let mut found = parameters.filter_map(|parameter| {
        let at = parameter.iter().position(|b| *b == b'=')?;
        parameter[..at].trim_ascii().eq_ignore_ascii_case(name).then(|| parameter[at + 1..].trim_ascii())
    });
    let value = found.next()?;
    Some(value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value))
}

/// The first content of each name. A file is one as well: its bytes as text.
fn multipart(boundary: &[u8], body: &[u8], most: usize) -> Option<Value> {
    let line_end = line_end(boundary, body)?;
    let delimiter = [line_end, b"--", boundary].concat();
    let end_of_head = [line_end, line_end].concat();
    // The first one may be at the very beginning, without its line break.
    let mut rest = match body.strip_prefix(&delimiter[line_end.len()..]) {
        Some(rest) => rest,
        None => split_once(body, &delimiter)?.1,
    };
    let mut fields = Map::new();
    while !rest.starts_with(b"--") && fields.len() < most {
        let (part, after) = split_once(rest, &delimiter)?;
        let (head, content) = split_once(part, &end_of_head)?;
        if let Some(name) = part_name(head) {
            fields.entry(text_of(name)).or_insert_with(|| text(content));
        }
        rest = after;
    }
    Some(Value::Object(fields))
}

/// Returns the line end of a body: CRLF, or the LF of handwritten clients (RFC 2046 requires CRLF). Returns None if a
/// body has both kinds before boundaries: two readers could split it in two ways.
fn line_end<'l>(boundary: &[u8], body: &[u8]) -> Option<&'l [u8]> {
    let first = [b"--", boundary].concat();
    let line = match body.strip_prefix(&first[..]) {
        Some(line) => line,
        None => split_once(body, &[b"\n", &first[..]].concat())?.1,
    };
    let is_whole = |line: &[u8]| line.ends_with(b"\r") || line.starts_with(b"--");
    if line.split(|byte| *byte == b'\n').next().is_none_or(is_whole) {
        return Some(b"\r\n");
    }
    split_once(body, &[b"\r\n", &first[..]].concat()).is_none().then_some(b"\n")
}

/// The parameter `name` of the Content-Disposition in the head of a part.
fn part_name(head: &[u8]) -> Option<&[u8]> {
    head.split(|b| *b == b'\n').find_map(|line| {
        let at = line.iter().position(|b| *b == b':')?;
        let is_meant = line[..at].trim_ascii().eq_ignore_ascii_case(b"content-disposition");
        is_meant.then(|| parameter(&line[at + 1..], b"name"))?
    })
}

fn split_once<'b>(bytes: &'b [u8], by: &[u8]) -> Option<(&'b [u8], &'b [u8])> {
    let at = bytes.windows(by.len()).position(|window| window == by)?;
    Some((&bytes[..at], &bytes[at + by.len()..]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_by_name() {
        let check = |content_type: &str, body: &str, name: &str, expected: Option<&str>| {
            let fields = BodyFields::of(content_type.as_bytes(), body.as_bytes()).unwrap();
            let value = fields.get(&VarName::parse(name));
            assert_eq!(value, expected.map(VarValue::text), "{content_type} {name}");
        };
        let (form, json) = ("application/x-www-form-urlencoded;charset=utf-8", "application/json");
        check(form, "a=1&b=%20x&a=2", "post_arg_a", Some("1"));
        check(form, "a=1&b=%20x&a=2", "post_arg.b", Some(" x"));
        check(json, r#"{"a":{"b":1}}"#, "post_arg.a.b", Some("1"));
        check(json, r#"{"a":"1"}"#, "post_arg_a", None);
        check(json, r#"{"a":"#, "post_arg.a", None);
        check(json, r#"{"a":1}"#, "arg_a", None);
        let (many, parts) = ("a&".repeat(DECIDING_FIELDS_MAX), |n: usize| {
            let part = |n| format!("--B\r\nContent-Disposition: form-data; name=f{n}\r\n\r\nx\r\n");
            (0..n).map(part).collect::<String>() + "--B--"
        });
        let is_read =
            |content_type: &str, body: &str| BodyFields::of(content_type.as_bytes(), body.as_bytes());
        assert!(is_read(form, many.trim_end_matches('&')).is_some());
        assert!(is_read(form, &format!("{many}b=1")).is_none());
        assert!(is_read("multipart/form-data; boundary=B", &parts(DECIDING_FIELDS_MAX - 1)).is_some());
        assert!(is_read("multipart/form-data; boundary=B", &parts(DECIDING_FIELDS_MAX)).is_none());
        for (content_type, expected) in [
            (form, true),
            (json, true),
            ("a/b+json", true),
            ("multipart/form-data; boundary=x", true),
            ("text/plain", false),
            ("", false),
        ] {
            assert_eq!(BodyFields::are_in(content_type.as_bytes()), expected, "{content_type}");
        }
    }

    #[test]
    fn multipart_lines_must_end_alike() {
        let check = |body: &str, expected: Option<&str>| {
            let content_type = b"multipart/form-data; boundary=b";
            let fields = read(content_type, body.as_bytes());
            let value = fields.as_ref().and_then(|fields| fields.get("a")?.as_str());
            assert_eq!(value, expected, "{body:?}");
        };
        let part = "Content-Disposition: form-data; name=a";
        check(&format!("--b\r\n{part}\r\n\r\n1\r\n--b--\r\n"), Some("1"));
        check(&format!("--b\n{part}\n\n1\n--b--\n"), Some("1"));
        check(&format!("--b\n{part}\n\n1\n--b--"), Some("1"));
        check(&format!("preamble\n--b\n{part}\n\n1\n2\n--b--"), Some("1\n2"));
        check(&format!("preamble\r\n--b\r\n{part}\r\n\r\n1\r\n--b--"), Some("1"));
        check(&format!("--b \n{part}\n\n1\n--b--"), Some("1"));
        check(&format!("--b\nX: y\n{part}\n\n\n--b--"), Some(""));
        check(&format!("--b\n{part}\n\n1\n--b\n{part}\n\n2\n--b--"), Some("1"));
        check(&format!("--b\n{part}\n\n1\r2\n--b--"), Some("1\r2"));
        // Content may contain the other line break, but not before a boundary.
        check(&format!("--b\r\n{part}\r\n\r\n1\n2\r\n--b--"), Some("1\n2"));
        check(&format!("--b\n{part}\n\n1\r\n2\n--b--"), Some("1\r\n2"));
        check(&format!("--b\n{part}\n\n1\r\n--b--\n--b--"), None);
        check(&format!("--b\r\n{part}\n\n1\n--b--"), None);
        check(&format!("--b\n{part}\r\n\r\n1\n--b--"), None);
        check(&format!("--b\n{part}\n\n1"), None);
        check("--b--\n", None);
        check("", None);
    }

    #[test]
    fn bodies_as_fields() {
        let check = |content_type: &str, body: &str, expected: Value| {
            let read = read(content_type.as_bytes(), body.as_bytes());
            assert_eq!(read.unwrap_or_default(), expected, "{content_type}: {body}");
        };
        check("application/json", r#"{"a":[1]}"#, json!({"a": [1]}));
        check("Application/JSON; charset=utf-8", r#"{"a":1}"#, json!({"a": 1}));
        check("application/problem+json", r#"{"a":1}"#, json!({"a": 1}));
        check("application/json", r#"{"a":"#, Value::Null);
        check("application/json", &"[".repeat(100_000), Value::Null);
        check("text/plain", "{}", Value::Null);
        check(
            "application/x-www-form-urlencoded",
            "a=1&b=%20x&a=2&c",
            json!({"a": "1", "b": " x", "c": true}),
        );
        let parts = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n2\r\n--B\r\n\
            content-disposition: form-data; name=f; filename=\"x\"\r\nContent-Type: text/plain\r\n\r\n\
            \r\n--B--\r\n";
        check("multipart/form-data; boundary=B", parts, json!({"a": "1\r\n2", "f": ""}));
        check(
            "multipart/form-data; boundary=\"B\"",
            &format!("before\r\n{parts}after"),
            json!({"a": "1\r\n2", "f": ""}),
        );
        // Cut off, without a boundary, and with another one.
        check("multipart/form-data; boundary=B", &parts[..60], Value::Null);
        check("multipart/form-data", parts, Value::Null);
        check("multipart/form-data; boundary=", parts, Value::Null);
        check("multipart/form-data; boundary=C", parts, Value::Null);
        check("multipart/form-data; boundary=B", "--B--", json!({}));
    }
}
