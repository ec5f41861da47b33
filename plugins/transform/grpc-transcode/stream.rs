//! The messages of a request that is a stream: values of JSON, each a message as soon as it is whole.

use std::sync::Arc;

use prost_reflect::MessageDescriptor;
use serde_json::Value as Json;
use sigma_http::{Chunk, Fault, FaultKind, Headers};
use sigma_plugin::{Context, Pieces, Transform};
use sigma_schema::proto::http_rule::HttpRule;

use super::http_rule::{self, Captures};
use super::{Transcoder, framed, input};
use sigma_plugin_kit::budget::Share;
use sigma_plugin_kit::json_body;

const TOO_LONG: Fault = Fault::new(FaultKind::RequestBodyTooLarge, "a message exceeds max_req_body_size");
const TOO_MANY: Fault = Fault::new(FaultKind::RequestBodyTooLarge, "a message has too many values");
const WORKER_FULL: Fault =
    Fault::new(FaultKind::MemoryLimit, "the bodies that grpc-transcode buffers exceed their limit");
const NO_JSON: Fault = Fault::new(FaultKind::BadRequest, "the body is not JSON");
const UNFIT: Fault = Fault::new(FaultKind::BadRequest, "cannot convert the request to a message");

/// The fields from the head of a streaming request: they go into the first message.
pub(super) struct Bound {
    pub(super) query: Json,
    pub(super) captures: Captures,
}

impl Bound {
    fn is_empty(&self) -> bool {
        self.captures.is_empty() && self.query.as_object().is_none_or(serde_json::Map::is_empty)
    }
}

/// Makes messages of the values in a body.
pub(super) struct Messages {
    transcoder: Arc<Transcoder>,
    input: MessageDescriptor,
    /// The annotation that the request is of.
    rule: Option<Arc<HttpRule>>,
    /// For the first message, until that was made.
    bound: Option<Bound>,
    divider: Divider,
    share: Share,
}

impl Messages {
    pub(super) fn new(
        transcoder: Arc<Transcoder>,
        input: MessageDescriptor,
        rule: Option<Arc<HttpRule>>,
        bound: Bound,
        share: Share,
    ) -> Messages {
        Messages { transcoder, input, rule, bound: Some(bound), divider: Divider::default(), share }
    }

    /// The message of a value, in its frame.
    fn message(&mut self, value: &[u8]) -> Result<Vec<u8>, Fault> {
        let most = self.transcoder.config.max_body_values;
        let value = json_body::read(value, most).map_err(|unread| match unread {
            json_body::Unread::TooMany => TOO_MANY,
            json_body::Unread::Invalid(_) => NO_JSON,
        })?;
        self.made(value)
    }

    fn made(&mut self, value: Json) -> Result<Vec<u8>, Fault> {
        let value = match &self.rule {
            None => value,
            Some(rule) => {
                let Bound { query, captures } =
                    self.bound.take().unwrap_or(Bound { query: Json::Null, captures: Vec::new() });
                http_rule::input(rule, value, query, captures).map_err(|_| UNFIT)?
            }
        };
        let message = input::message(&self.input, &value).map_err(|input::Unfit(reason)| {
            tracing::debug!("grpc-transcode: cannot create a message: {reason}");
            UNFIT
        })?;
        framed(&message).ok_or(TOO_LONG)
    }

    fn take(&mut self, data: &[u8], out: &mut Pieces) -> Result<(), Fault> {
        let most = self.transcoder.config.max_req_body_size;
        let mut rest = data;
        while !rest.is_empty() {
            let before = self.divider.held.len();
            let is_whole = self.divider.next(&mut rest)?;
            let more = self.divider.held.len() - before;
            if self.divider.held.len() > most {
                return Err(TOO_LONG);
            }
            if more > self.share.room() {
                return Err(WORKER_FULL);
            }
            self.share.grow(more);
            if is_whole {
                self.pass(out)?;
            }
        }
        Ok(())
    }

    /// Passes the value on that is held.
    fn pass(&mut self, out: &mut Pieces) -> Result<(), Fault> {
        let value = std::mem::take(&mut self.divider.held);
        self.share.shrink(value.len());
        out.bytes(&self.message(&value)?);
        Ok(())
    }

    fn finish(&mut self, out: &mut Pieces) -> Result<(), Fault> {
        if self.divider.end()? {
            self.pass(out)?;
        }
        // A body without a value says nothing, but the head may.
        match &self.bound {
            Some(bound) if self.rule.is_some() && !bound.is_empty() => {
                let frame = self.made(Json::Null)?;
                out.bytes(&frame);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Transform for Messages {
    fn data(&mut self, _: &mut Context, data: Chunk, out: &mut Pieces) {
        if out.fault().is_none()
            && let Err(fault) = self.take(&data, out)
        {
            out.fail(fault);
        }
    }

    fn end(&mut self, _: &mut Context, _: Option<&mut Headers>, out: &mut Pieces) {
        if out.fault().is_none()
            && let Err(fault) = self.finish(out)
        {
            out.fail(fault);
        }
    }
}

/// Divides a text into values of JSON: the items of one array, or values that follow each other, such as lines.
#[derive(Debug, Default)]
struct Divider {
    /// The value that has begun, or has just ended.
    held: Vec<u8>,
    place: StreamPosition,
    /// Arrays and objects that are open in the value.
    depth: usize,
    is_text: bool,
    is_escaped: bool,
}

/// The position in a stream relative to its dividers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum StreamPosition {
    /// Before everything.
    #[default]
    Begin,
    /// Before a value; in an array, whether it is its first one.
    Before(Kind),
    Within(Kind),
    /// Behind an item of an array.
    Behind,
    /// Behind the array.
    End,
}

/// The form of a stream of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An array none of whose items has begun.
    EmptyArray,
    Array,
    Sequence,
}

/// White space, and what begins a text in `application/json-seq` (RFC 7464).
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0x1e)
}

impl Divider {
    /// Takes bytes until a value is whole, and holds it; false if all bytes are taken before.
    ///
    /// # Errors
    /// Returns a fault if the text there is not a value.
    fn next(&mut self, rest: &mut &[u8]) -> Result<bool, Fault> {
        while let Some((&byte, behind)) = rest.split_first() {
            if let StreamPosition::Within(kind) = self.place {
                let (taken, is_whole) = self.within(rest, kind);
                self.held.extend_from_slice(&rest[..taken]);
                *rest = &rest[taken..];
                if is_whole {
                    self.place = if kind == Kind::Sequence {
                        StreamPosition::Before(kind)
                    } else {
                        StreamPosition::Behind
                    };
                    return Ok(true);
                }
                continue;
            }
            if is_space(byte) {
                *rest = behind;
                continue;
            }
            self.place = match (self.place, byte) {
                (StreamPosition::Begin, b'[') => StreamPosition::Before(Kind::EmptyArray),
                (StreamPosition::Behind | StreamPosition::Before(Kind::EmptyArray), b']') => {
                    StreamPosition::End
                }
                (StreamPosition::Behind, b',') => StreamPosition::Before(Kind::Array),
                (StreamPosition::Begin | StreamPosition::Before(Kind::Sequence), _) => {
                    StreamPosition::Within(Kind::Sequence)
                }
                (StreamPosition::Before(_), b',' | b']')
                | (StreamPosition::Behind | StreamPosition::End, _) => return Err(NO_JSON),
                (StreamPosition::Before(_), _) => StreamPosition::Within(Kind::Array),
                (StreamPosition::Within(kind), _) => StreamPosition::Within(kind),
            };
            if !matches!(self.place, StreamPosition::Within(_)) {
                *rest = behind;
            }
        }
        Ok(false)
    }

    /// How many bytes still belong to the value, and whether that is whole with them.
    fn within(&mut self, bytes: &[u8], kind: Kind) -> (usize, bool) {
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_text => self.is_escaped = true,
                b'"' => {
                    self.is_text = !self.is_text;
                    if !self.is_text && self.depth == 0 {
                        return (at + 1, true);
                    }
                }
                _ if self.is_text => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return (at + 1, true);
                    }
                }
                // A number or a name ends where something else begins.
                b',' | b']' if self.depth == 0 && kind == Kind::Array => return (at, true),
                byte if self.depth == 0 && is_space(*byte) => return (at, true),
                _ => {}
            }
        }
        (bytes.len(), false)
    }

    /// The end of the text; whether a value is held that is whole by that.
    ///
    /// # Errors
    /// Returns a fault if something is missing.
    fn end(&self) -> Result<bool, Fault> {
        match self.place {
            StreamPosition::Begin | StreamPosition::Before(Kind::Sequence) | StreamPosition::End => Ok(false),
            // The reader decides whether it is whole.
            StreamPosition::Within(Kind::Sequence) => Ok(true),
            _ => Err(NO_JSON),
        }
    }
}

/// The values in pieces of a text, or None if that is no stream of them.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn divided(pieces: &[&[u8]]) -> Option<Vec<Vec<u8>>> {
    let (mut divider, mut found) = (Divider::default(), Vec::new());
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            if divider.next(&mut rest).ok()? {
                found.push(std::mem::take(&mut divider.held));
            }
        }
    }
    if divider.end().ok()? {
        found.push(divider.held);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// As [`super::divided`], as texts.
    fn divided(pieces: &[&[u8]]) -> Option<Vec<String>> {
        let values = super::divided(pieces)?;
        Some(values.into_iter().map(|value| String::from_utf8(value).unwrap()).collect())
    }

    #[test]
    fn streams_are_divided() {
        let check = |text: &str, expected: Option<&[&str]>| {
            let expected = expected.map(|all| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
            assert_eq!(divided(&[text.as_bytes()]), expected, "{text}");
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(divided(&bytes), expected, "{text} by bytes");
        };
        check("", Some(&[]));
        check(" \n", Some(&[]));
        check("[]", Some(&[]));
        check(" [ ] ", Some(&[]));
        check(r#"{"a":1}"#, Some(&[r#"{"a":1}"#]));
        check("{}\n{\"a\":[{}]}\r\n\n{}", Some(&["{}", "{\"a\":[{}]}", "{}"]));
        check("{}{}", Some(&["{}", "{}"]));
        check("\u{1e}{}\n\u{1e}{}\n", Some(&["{}", "{}"]));
        check(r#"[{"a":"]},\"["}, {"b":[]} ]"#, Some(&[r#"{"a":"]},\"["}"#, r#"{"b":[]}"#]));
        check(r#"[1, "a,]\\", null,[2]]"#, Some(&["1", r#""a,]\\""#, "null", "[2]"]));
        check("1 \"a b\"\ntrue", Some(&["1", "\"a b\"", "true"]));
        // The reader of the value judges it.
        check("{\"a\":", Some(&["{\"a\":"]));
        check("}", Some(&["}"]));
        for text in ["[", "[{}", "[{},", "[{},]", "[,]", "[{} {}]", "[] {}", "[]]", "[1", "[\"", "[{}] x"] {
            check(text, None);
        }
    }

    proptest! {
        /// However a stream is cut into pieces, it has the values that it was made of.
        #[test]
        fn joined_values_are_divided(
            texts in prop::collection::vec("[ -~]{0,6}", 0..5),
            is_array in any::<bool>(),
            cuts in prop::collection::vec(1_usize..9, 1..40),
        ) {
            let values: Vec<String> = texts.iter().map(|text| json!({ text.as_str(): [text] }).to_string()).collect();
            let text = if is_array { format!("[{}]", values.join(",")) } else { values.join("\n") };
            let (mut rest, mut pieces) = (text.as_bytes(), Vec::new());
            for cut in cuts {
                let (piece, behind) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = behind;
            }
            pieces.push(rest);
            prop_assert_eq!(divided(&pieces), Some(values));
        }

        #[test]
        fn no_text_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let (mut divider, mut rest) = (Divider::default(), &bytes[..]);
            while !rest.is_empty() && divider.next(&mut rest).is_ok() {
                prop_assert!(divider.held.len() <= bytes.len());
                divider.held.clear();
            }
        }
    }
}
