//! Requests as calls.

use std::borrow::Cow;

use super::hessian::{self, Value};
use super::{Call, Form, HEADER_BYTES, PROTOCOL, flag, header, lines};
use crate::Headers;

/// The key of the body in the map of a method. A field of this name is omitted: a client could pass it off as the
/// body.
const BODY_KEY: &str = "body";

/// The size of a Hessian chunk of a body in bytes.
const CHUNK_BYTES: usize = 0xffff;

/// A call that is written while the request body arrives.
#[derive(Debug)]
pub struct DubboRequest {
    call: Call,
    /// The frame so far, with room for its header.
    wire: Vec<u8>,
    /// JSON that becomes parameters.
    json: Vec<u8>,
    body_bytes: usize,
    /// The start of the parameter lines.
    lines_at: usize,
}

/// The reason why a request cannot become a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// Its body exceeds the limit.
    TooLarge,
    /// Its body does not match the method.
    Unsayable(&'static str),
}

impl DubboRequest {
    /// Starts the call of a request with these fields.
    pub fn begin(call: Call, headers: &Headers) -> DubboRequest {
        let mut wire = vec![0; HEADER_BYTES];
        match &call.form {
            Form::Map => {
                for text in [PROTOCOL, &call.service, &call.version, &call.method, "Ljava/util/Map;"] {
                    hessian::write_text(text, &mut wire);
                }
                hessian::begin_map(&mut wire);
                write_fields(headers, &mut wire);
            }
            Form::Lines { types, .. } => {
                for text in [PROTOCOL, &call.service, &call.version, &call.method, types] {
                    lines::write_text(text, &mut wire);
                }
            }
        }
        let lines_at = wire.len();
        DubboRequest { call, wire, json: Vec::new(), body_bytes: 0, lines_at }
    }

    /// Adds a piece of the request body.
    ///
    /// # Errors
    /// Returns an error if the body exceeds its limit.
    pub fn body(&mut self, data: &[u8]) -> Result<(), Unfit> {
        let before = self.body_bytes;
        self.body_bytes += data.len();
        if self.body_bytes > self.call.body_bytes_max {
            return Err(Unfit::TooLarge);
        }
        match &self.call.form {
            Form::Lines { is_serialized: true, .. } => self.wire.extend_from_slice(data),
            Form::Lines { .. } => self.json.extend_from_slice(data),
            Form::Map => {
                if before == 0 && !data.is_empty() {
                    hessian::write_text(BODY_KEY, &mut self.wire);
                }
                data.chunks(CHUNK_BYTES).for_each(|piece| hessian::write_chunk(piece, &mut self.wire));
            }
        }
        Ok(())
    }

    /// Returns the frame of the call, with the number `id`.
    ///
    /// # Errors
    /// Returns an error if the body does not match the method.
    pub fn end(mut self, id: u64) -> Result<Vec<u8>, Unfit> {
        match &self.call.form {
            Form::Map => self.end_map(),
            Form::Lines { types, is_serialized } => {
                let expected = lines::count_types(types).map_err(Unfit::Unsayable)?;
                let count = if *is_serialized {
                    lines::end_lines(&mut self.wire, self.lines_at)
                } else if self.json.is_empty() {
                    0
                } else {
                    lines::parameters(&self.json, &mut self.wire).map_err(Unfit::Unsayable)?
                };
                if count != expected {
                    // Surplus parameters would be read as attachments, which name the called service.
                    return Err(Unfit::Unsayable(
                        "the body and the method have a different number of parameters",
                    ));
                }
                self.wire.extend_from_slice(b"{}\n");
            }
        }
        let flags = flag::REQUEST | flag::TWO_WAY | self.call.form.serialization();
        let length = self.wire.len() - HEADER_BYTES;
        if u32::try_from(length).is_err() {
            return Err(Unfit::TooLarge);
        }
        self.wire[..HEADER_BYTES].copy_from_slice(&header(flags, 0, id, length));
        Ok(self.wire)
    }

    /// Writes the end of the map after the body, and the attachments.
    fn end_map(&mut self) {
        if self.body_bytes > 0 {
            hessian::end_chunks(&mut self.wire);
        }
        hessian::end_map(&mut self.wire);
        let Call { service, version, .. } = &self.call;
        let text = |text: &str| Value::Text(text.to_owned());
        let pairs = [("path", service), ("interface", service), ("version", version)];
        Value::Map(pairs.into_iter().map(|(key, value)| (text(key), text(value))).collect())
            .write(&mut self.wire);
    }
}

/// Writes each field once; repeated fields become one list, as elsewhere in HTTP (RFC 9110 §5.3).
fn write_fields(headers: &Headers, out: &mut Vec<u8>) {
    for (at, (name, value)) in headers.iter().enumerate() {
        let is_same = |(other, _): &(&[u8], &[u8])| other.eq_ignore_ascii_case(name);
        if name.eq_ignore_ascii_case(BODY_KEY.as_bytes())
            || headers.iter().take(at).any(|pair| is_same(&pair))
        {
            continue;
        }
        hessian::write_text(&text_of(name), out);
        let separator = if name.eq_ignore_ascii_case(b"cookie") { &b"; "[..] } else { b", " };
        let others: Vec<&[u8]> =
            headers.iter().skip(at + 1).filter(is_same).map(|(_, other)| other).collect();
        if others.is_empty() {
            hessian::write_text(&text_of(value), out);
        } else {
            let all = [&[value], &others[..]].concat().join(separator);
            hessian::write_text(&text_of(&all), out);
        }
    }
}

/// Decodes bytes as UTF-8, or else as ISO 8859-1.
fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => bytes.iter().map(|byte| char::from(*byte)).collect::<String>().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeaderId;

    fn call(form: Form, body_bytes_max: usize) -> Call {
        let [service, version, method] = ["a.b.Demo", "1.0.0", "say"].map(Box::from);
        Call { service, version, method, form, body_bytes_max }
    }

    fn lines(types: &str, is_serialized: bool) -> Form {
        Form::Lines { types: types.into(), is_serialized }
    }

    fn asked(call: Call, headers: &Headers, pieces: &[&[u8]]) -> Result<Vec<u8>, Unfit> {
        let mut question = DubboRequest::begin(call, headers);
        for piece in pieces {
            question.body(piece)?;
        }
        question.end(1)
    }

    #[test]
    fn parameters_in_lines() {
        let check = |form: Form, body: &str, expected: Result<&str, Unfit>| {
            let pieces: Vec<&[u8]> = body.as_bytes().chunks(3).collect();
            let found = asked(call(form.clone(), 50), &Headers::default(), &pieces);
            let Form::Lines { types, .. } = &form else { unreachable!() };
            let expected = expected.map(|parameters| {
                let text =
                    format!("\"2.0.2\"\n\"a.b.Demo\"\n\"1.0.0\"\n\"say\"\n\"{types}\"\n{parameters}{{}}\n");
                let mut frame = vec![0xda, 0xbb, 0xc6, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, text.len() as u8];
                frame.extend_from_slice(text.as_bytes());
                String::from_utf8_lossy(&frame).into_owned()
            });
            assert_eq!(found.map(|frame| String::from_utf8_lossy(&frame).into_owned()), expected, "{body}");
        };
        let count = Err(Unfit::Unsayable("the body and the method have a different number of parameters"));
        check(lines("", false), "", Ok(""));
        check(lines("", true), "", Ok(""));
        check(lines("I", true), "1", Ok("1\n"));
        check(lines("I", true), "1\n", Ok("1\n"));
        check(lines("ILjava/lang/String;", true), "1\n\"a\"", Ok("1\n\"a\"\n"));
        check(lines("ILjava/lang/String;", false), "[1, \"a\"]", Ok("1\n\"a\"\n"));
        check(
            lines("Ljava/util/Map;[J", false),
            "{\"a\": {\"b\" : 1}, \"c\": [1, 2]}",
            Ok("{\"b\":1}\n[1,2]\n"),
        );
        check(lines("I", false), "[]", count);
        check(lines("I", false), "", count);
        check(lines("I", false), "[1, {\"path\": \"other\"}]", count);
        check(lines("I", true), "1\n{\"path\": \"other\"}\n", count);
        check(lines("I", true), "1\r{\"path\": \"other\"}\n", count);
        check(lines("I", true), "1\r\n", Ok("1\r\n"));
        check(lines("I", false), "[1", Err(Unfit::Unsayable("the body is not JSON")));
        check(lines("I", false), &" ".repeat(51), Err(Unfit::TooLarge));
    }

    #[test]
    fn fields_and_body_in_a_map() {
        let mut headers = Headers::default();
        headers.append("Host", b"a.test");
        headers.append("X-A", b"1");
        headers.append("Body", b"forged");
        headers.append("cookie", b"a=1");
        headers.append("x-a", b"\xff");
        headers.append("Cookie", b"b=2");
        assert!(headers.has(HeaderId::Host));
        let long = vec![b'x'; 70_000];
        let frame = asked(call(Form::Map, 80_000), &headers, &[b"he", &long, b""]).expect("a call");
        assert_eq!(frame[..12], [0xda, 0xbb, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(frame[12..16], ((frame.len() - 16) as u32).to_be_bytes());
        let mut values = hessian::Reader::new(&frame[16..]);
        let mut said = Vec::new();
        for _ in 0..7 {
            said.push(values.value().expect("a value"));
        }
        let text = |text: &str| Value::Text(text.to_owned());
        assert_eq!(said[..5], ["2.0.2", "a.b.Demo", "1.0.0", "say", "Ljava/util/Map;"].map(text));
        let body = [b"he", &long[..]].concat();
        let pairs = [("Host", "a.test"), ("X-A", "1, \u{ff}"), ("cookie", "a=1; b=2")];
        let mut pairs: Vec<_> = pairs.into_iter().map(|(key, value)| (text(key), text(value))).collect();
        pairs.push((text("body"), Value::Bytes(body)));
        assert_eq!(said[5], Value::Map(pairs));
        let Value::Map(attachments) = &said[6] else { panic!("{:?}", said[6]) };
        assert_eq!(attachments[0], (text("path"), text("a.b.Demo")));
        assert!(values.is_over());

        let frame = asked(call(Form::Map, 0), &Headers::default(), &[]).expect("a call");
        let mut values = hessian::Reader::new(&frame[16..]);
        let said: Vec<_> = (0..6).map(|_| values.value().expect("a value")).collect();
        assert_eq!(said[5], Value::Map(Vec::new()), "no body, no key");
        let too_large = asked(call(Form::Map, 1), &Headers::default(), &[b"a", b"b"]);
        assert_eq!(too_large, Err(Unfit::TooLarge));
    }
}
