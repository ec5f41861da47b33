//! Responses of providers as HTTP responses.

use super::hessian::{Reader, Value};
use super::{Form, status};
use crate::h1::HeadLimits;
use crate::h1::bytes::is_value;
use crate::{HeaderId, ResponseHead, Version, is_token};

/// The rest of a response besides its head.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DubboResponse {
    /// The body.
    pub body: Vec<u8>,
    /// The error text of the provider, for the log; clients do not get it.
    pub complaint: Option<Vec<u8>>,
}

/// The results of a method; the second of each pair has attachments after the value.
mod ended {
    pub(super) const THREW: [i64; 2] = [0, 3];
    pub(super) const GAVE: [i64; 2] = [1, 4];
    pub(super) const GAVE_NOTHING: [i64; 2] = [2, 5];
}

/// Converts a response with this status and these values into `head`, for a call in this form.
///
/// An error of the provider is a response as well: 500 for a call in lines. For a call with a map it is 504 after a
/// timeout, 503 if the provider is busy, 500 if the method threw an exception, and otherwise 502.
///
/// # Errors
/// Returns an error if it is not a response to such a call, or exceeds `limits`.
pub fn read_answer(
    form: &Form,
    answered: u8,
    values: &[u8],
    limits: &HeadLimits,
    head: &mut ResponseHead,
) -> Result<DubboResponse, &'static str> {
    head.clear();
    head.version = Version::Http11;
    match form {
        Form::Lines { .. } => read_lines(answered, values, head),
        Form::Map => read_map(answered, values, limits, head),
    }
}

fn read_lines(answered: u8, values: &[u8], head: &mut ResponseHead) -> Result<DubboResponse, &'static str> {
    let mut lines = values.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    if answered != status::OK {
        head.status = 500;
        return Ok(DubboResponse { body: Vec::new(), complaint: Some(first.to_vec()) });
    }
    let second = lines.next();
    head.status = 200;
    match first.first() {
        Some(b'2' | b'5') => Ok(DubboResponse::default()),
        Some(b'1' | b'4') => {
            let value = second.filter(|line| !line.is_empty()).ok_or("a Dubbo response without a value")?;
            Ok(DubboResponse { body: value.to_vec(), complaint: None })
        }
        _ => {
            head.status = 500;
            Ok(DubboResponse { body: Vec::new(), complaint: Some(second.unwrap_or(first).to_vec()) })
        }
    }
}

fn read_map(
    answered: u8,
    values: &[u8],
    limits: &HeadLimits,
    head: &mut ResponseHead,
) -> Result<DubboResponse, &'static str> {
    let mut values = Reader::new(values);
    if answered != status::OK {
        head.status = match answered {
            status::CLIENT_TIMEOUT | status::SERVER_TIMEOUT => 504,
            status::THREADS_EXHAUSTED => 503,
            _ => 502,
        };
        let complaint = match values.value() {
            Ok(Value::Text(text)) => text,
            _ => format!("status {answered}"),
        };
        return Ok(DubboResponse { body: Vec::new(), complaint: Some(complaint.into_bytes()) });
    }
    let Value::Whole(ended) = values.value()? else { return Err("a Dubbo response without a result type") };
    if ended::THREW.contains(&ended) {
        head.status = 500;
        let complaint = values.value().map_or_else(str::to_owned, |thrown| complaint(&thrown));
        return Ok(DubboResponse { body: Vec::new(), complaint: Some(complaint.into_bytes()) });
    }
    if ended::GAVE_NOTHING.contains(&ended) {
        return Err("the Dubbo method returned null instead of a map");
    }
    if !ended::GAVE.contains(&ended) {
        return Err("a Dubbo response without a result type");
    }
    let Value::Map(pairs) = values.value()? else { return Err("the Dubbo method did not return a map") };
    head.status = 200;
    let mut body = Vec::new();
    let mut bytes = 0;
    for (key, value) in pairs {
        let Value::Text(key) = key else { return Err("a key of the Dubbo response is not a string") };
        match &*key {
            "status" => head.status = status_code(&value)?,
            "body" => body = body_of(value)?,
            name => add_field(name, value, &mut bytes, head)?,
        }
        if bytes > limits.head_bytes || head.headers.len() > limits.fields {
            return Err("the fields of the Dubbo response exceed their limit");
        }
    }
    head.headers.remove(HeaderId::ContentLength);
    head.headers.remove_hop_by_hop();
    Ok(DubboResponse { body, complaint: None })
}

/// Only final statuses are valid: the request did not ask for another protocol.
fn status_code(value: &Value) -> Result<u16, &'static str> {
    let code = match value {
        Value::Whole(number) => u16::try_from(*number).ok(),
        Value::Text(text) if text.len() == 3 => text.parse().ok(),
        _ => None,
    };
    code.filter(|code| (200..=999).contains(code)).ok_or("a Dubbo response with an invalid status")
}

fn body_of(value: Value) -> Result<Vec<u8>, &'static str> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Text(text) => Ok(text.into_bytes()),
        Value::Bytes(bytes) => Ok(bytes),
        _ => Err("the body of the Dubbo response is not a string or bytes"),
    }
}

/// Adds a field; a list becomes several fields.
fn add_field(
    name: &str,
    value: Value,
    bytes: &mut usize,
    head: &mut ResponseHead,
) -> Result<(), &'static str> {
    if !is_token(name.as_bytes()) {
        return Err("a field of the Dubbo response has an invalid name");
    }
    let values = match value {
        Value::List(values) => values,
        value => vec![value],
    };
    for value in values {
        let text = match value {
            Value::Null => continue,
            Value::Text(text) => text,
            Value::Whole(number) => number.to_string(),
            Value::Double(number) => number.to_string(),
            Value::Bool(yes) => yes.to_string(),
            _ => return Err("a field of the Dubbo response is not a string"),
        };
        let text = text.trim_matches([' ', '\t']);
        if !is_value(text.as_bytes()) {
            return Err("a field of the Dubbo response has an invalid value");
        }
        *bytes += name.len() + text.len();
        head.headers.append(name, text.as_bytes());
    }
    Ok(())
}

/// Returns class and message of the exception.
fn complaint(thrown: &Value) -> String {
    let class = match thrown {
        Value::Object(class, _) => &*class.name,
        _ => "",
    };
    match thrown.field("detailMessage") {
        Some(Value::Text(message)) => format!("{class}: {message}"),
        _ => class.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::Tolerance;

    const LIMITS: HeadLimits =
        HeadLimits { line_bytes: 100, head_bytes: 200, fields: 4, tolerance: Tolerance::NONE };

    /// Status, fields, body and error text.
    type All = (u16, String, String, Option<String>);

    fn read(form: &Form, status: u8, values: &[u8]) -> Result<All, &'static str> {
        let mut head = ResponseHead::default();
        let said = read_answer(form, status, values, &LIMITS, &mut head)?;
        let mut fields = Vec::new();
        head.headers.write_to(&mut fields);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok((head.status, text(fields), text(said.body), said.complaint.map(text)))
    }

    #[test]
    fn lines() {
        let form = Form::Lines { types: "".into(), is_serialized: false };
        let check = |answered: u8, values: &str, code: u16, body: &str, complaint: Option<&str>| {
            let expected = (code, String::new(), body.to_owned(), complaint.map(str::to_owned));
            assert_eq!(read(&form, answered, values.as_bytes()), Ok(expected), "{answered} {values:?}");
        };
        check(20, "2\n", 200, "", None);
        check(20, "5\n{}\n", 200, "", None);
        check(20, "1\n\"a\"\n", 200, "\"a\"", None);
        check(20, "4\n{\"a\":1}\n{}\n", 200, "{\"a\":1}", None);
        check(20, "1\n7", 200, "7", None);
        check(20, "0\n{\"message\":\"x\"}\n", 500, "", Some("{\"message\":\"x\"}"));
        check(20, "3\n{}\n{}\n", 500, "", Some("{}"));
        check(20, "9", 500, "", Some("9"));
        check(20, "", 500, "", Some(""));
        check(70, "\"oh\"\n", 500, "", Some("\"oh\""));
        assert_eq!(read(&form, 20, b"1\n"), Err("a Dubbo response without a value"));
    }

    fn answer(ended: i64, value: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        Value::Whole(ended).write(&mut out);
        value.write(&mut out);
        out
    }

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    fn map(pairs: &[(&str, Value)]) -> Value {
        Value::Map(pairs.iter().map(|(key, value)| (text(key), value.clone())).collect())
    }

    #[test]
    fn maps() {
        let check = |value: &Value, code: u16, fields: &str, body: &str| {
            for ended in [1, 4] {
                let expected = (code, fields.to_owned(), body.to_owned(), None);
                assert_eq!(read(&Form::Map, 20, &answer(ended, value)), Ok(expected), "{value:?}");
            }
        };
        check(&map(&[]), 200, "", "");
        check(
            &map(&[("status", text("201")), ("a", text("b")), ("body", text("hé"))]),
            201,
            "a: b\r\n",
            "hé",
        );
        check(&map(&[("status", Value::Whole(404)), ("body", Value::Bytes(b"x".to_vec()))]), 404, "", "x");
        check(
            &map(&[("n", Value::Whole(-1)), ("t", Value::Bool(true)), ("d", Value::Double(1.5))]),
            200,
            "n: -1\r\nt: true\r\nd: 1.5\r\n",
            "",
        );
        check(&map(&[("a", Value::Null), ("body", Value::Null)]), 200, "", "");
        let list = Value::List(vec![text("a=1"), text("b=2")]);
        check(&map(&[("Set-Cookie", list)]), 200, "Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n", "");
        check(
            &map(&[
                ("Content-Length", text("99")),
                ("Transfer-Encoding", text("chunked")),
                ("Connection", text("x-a")),
                ("x-a", text("1")),
            ]),
            200,
            "",
            "",
        );
    }

    #[test]
    fn invalid_maps_are_rejected() {
        let check = |value: &Value, expected: &'static str| {
            assert_eq!(read(&Form::Map, 20, &answer(1, value)), Err(expected), "{value:?}");
        };
        check(&text("hello"), "the Dubbo method did not return a map");
        check(&Value::Null, "the Dubbo method did not return a map");
        check(
            &Value::Map(vec![(Value::Whole(1), Value::Null)]),
            "a key of the Dubbo response is not a string",
        );
        for code in ["", "20", "101", "2x0", "+20", "99", "1000"] {
            check(&map(&[("status", text(code))]), "a Dubbo response with an invalid status");
        }
        for code in [0, 101, 1000, -1, 65_736] {
            check(&map(&[("status", Value::Whole(code))]), "a Dubbo response with an invalid status");
        }
        check(&map(&[("a b", text("c"))]), "a field of the Dubbo response has an invalid name");
        check(&map(&[("", text("c"))]), "a field of the Dubbo response has an invalid name");
        check(&map(&[("a", text("b\r\nc: d"))]), "a field of the Dubbo response has an invalid value");
        check(&map(&[("a", map(&[]))]), "a field of the Dubbo response is not a string");
        check(
            &map(&[("a", Value::List(vec![Value::Reference(0)]))]),
            "a field of the Dubbo response is not a string",
        );
        check(&map(&[("body", map(&[]))]), "the body of the Dubbo response is not a string or bytes");
        check(
            &map(&[("body", Value::Reference(0))]),
            "the body of the Dubbo response is not a string or bytes",
        );
        check(&map(&[("a", text(&"x".repeat(200)))]), "the fields of the Dubbo response exceed their limit");
        let many = Value::List(vec![text("x"); 5]);
        check(&map(&[("a", many)]), "the fields of the Dubbo response exceed their limit");
        let check = |values: &[u8], expected: &'static str| {
            assert_eq!(read(&Form::Map, 20, values), Err(expected), "{values:?}");
        };
        check(b"", "a Hessian value is incomplete");
        check(b"N", "a Dubbo response without a result type");
        check(b"\x96", "a Dubbo response without a result type");
        check(b"\x92", "the Dubbo method returned null instead of a map");
        check(b"\x95H\x00\x00Z", "the Dubbo method returned null instead of a map");
        check(b"\x91H", "a Hessian value is incomplete");
    }

    #[test]
    fn errors_become_statuses() {
        let check = |answered: u8, values: &[u8], code: u16, complaint: &str| {
            let expected = (code, String::new(), String::new(), Some(complaint.to_owned()));
            assert_eq!(read(&Form::Map, answered, values), Ok(expected), "{answered} {values:?}");
        };
        check(30, b"\x02no", 504, "no");
        check(31, b"\x02no", 504, "no");
        check(100, b"\x02no", 503, "no");
        check(70, b"\x02no", 502, "no");
        check(60, b"", 502, "status 60");
        let thrown = b"C\x03a.E\x92\x0ddetailMessage\x05cause\x60\x03badQ\x90";
        check(20, &[b"\x90", &thrown[..]].concat(), 500, "a.E: bad");
        check(20, &[b"\x93", &thrown[..], b"HZ"].concat(), 500, "a.E: bad");
        check(20, b"\x90", 500, "a Hessian value is incomplete");
        check(20, b"\x90N", 500, "");
    }
}
