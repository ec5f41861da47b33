//! `echo`: text around a response body, or instead of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{self, Poll, ready};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_http::{Fault, Frame, HeaderId};
use sigma_plugin::{
    BodyFilter, Build, Configuration, Context, Descriptor, Env, Frames, Phase, PhaseSet, Pieces, Plugin,
    ResponseStep, Step,
};

use sigma_plugin_kit::changed_body::{change_head, has_content, is_part, remove_digests, replace_content};
use sigma_plugin_kit::fields::{frames, is_name, is_plain};
use sigma_plugin_kit::response_body::{Encoding, ask_for_readable, ask_for_whole};

/// The plugin.
pub(crate) static ECHO: Descriptor = Descriptor {
    name: "echo",
    priority: 412,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter, Phase::BodyFilter]),
    build: |build| Ok(Arc::new(Echo::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Adds text around the body of a response or replaces it, and sets header fields: for tests.
///
/// The node still gets the request and sets the status. If its body is used, the gateway requests none of the content
/// codings; a body that is encoded all the same gets no text around it. The request never has a range.
/// `Content-Length`, `Content-Encoding`, `Accept-Ranges`, `Last-Modified`, `ETag` and digests of the body are removed,
/// because they belong to another body.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("anyOf" = [{"required": ["before_body"]}, {"required": ["body"]}, {"required": ["after_body"]}]))]
struct Config {
    /// Text before the body.
    before_body: Option<String>,
    /// Text that replaces the body.
    body: Option<String>,
    /// Text after the body.
    after_body: Option<String>,
    /// Header fields of the response.
    headers: Option<Fields>,
}

impl Configuration for Config {}

/// Header fields with constant values.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "Map<String, Value>")]
#[schemars(
    with = "Value",
    extend(
        "type" = "object",
        "minProperties" = 1,
        "additionalProperties" = {"oneOf": [{"type": "string"}, {"type": "number"}]}
    )
)]
struct Fields(Vec<(String, String)>);

impl TryFrom<Map<String, Value>> for Fields {
    type Error = String;

    fn try_from(fields: Map<String, Value>) -> Result<Fields, String> {
        let checked = fields.into_iter().map(|(name, value)| {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match (is_name(&name), is_plain(&value)) {
                (true, true) => Ok((name, value)),
                (false, _) => Err(format!("`{name}` is not the name of a header field")),
                (_, false) => Err(format!(
                    "headers.{name}: the value contains characters that a header field cannot carry"
                )),
            }
        });
        let all: Vec<_> = checked.collect::<Result<_, _>>()?;
        Ok(Fields(all.into_iter().filter(|(name, _)| !frames(name)).collect()))
    }
}

struct Echo {
    text: Arc<Text>,
    fields: Vec<(String, String)>,
}

/// The node's content is encoded, or a part: it stays as it is.
struct Untouched;

struct Text {
    before: String,
    /// The new body; None to keep it.
    body: Option<String>,
    after: String,
}

impl Echo {
    fn new(build: &Build<'_>) -> Result<Echo, String> {
        let config: Config = build.config()?;
        let fields = config.headers.map(|Fields(fields)| fields).unwrap_or_default();
        let (before, after) = (config.before_body.unwrap_or_default(), config.after_body.unwrap_or_default());
        Ok(Echo { text: Arc::new(Text { before, body: config.body, after }), fields })
    }
}

impl Plugin for Echo {
    fn access(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        if self.text.body.is_some() {
            ask_for_whole(&mut ctx.request.headers);
        } else {
            ask_for_readable(&mut ctx.request.headers);
            ctx.request.headers.remove(HeaderId::AcceptEncoding);
        }
        Step::Next
    }

    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        if self.text.body.is_some() {
            replace_content(ctx);
        }
        // Text around encoded bytes would make them unreadable.
        let is_encoded = Encoding::of(&ctx.response.headers) != Encoding::Identity;
        if self.text.body.is_none() && (is_encoded || is_part(ctx)) {
            ctx.keep(self, Untouched);
        } else {
            change_head(&mut ctx.response.headers);
        }
        let headers = &mut ctx.response.headers;
        for (name, value) in &self.fields {
            headers.replace(name, value.as_bytes());
        }
        ResponseStep::Next
    }

    fn body_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        if ctx.take_kept::<_, Untouched>(self).is_some() || !has_content(ctx) {
            return None;
        }
        Some(Box::new(Surrounded { text: Arc::clone(&self.text), has_begun: false, ready: VecDeque::new() }))
    }
}

/// A body with text around it.
struct Surrounded {
    text: Arc<Text>,
    /// The node's body has begun, or ended without a byte: before that it may still break off.
    has_begun: bool,
    /// Frames that leave before more is taken.
    ready: VecDeque<Frame>,
}

impl Surrounded {
    fn say(&mut self, text: impl FnOnce(&Text) -> &str) {
        let mut pieces = Pieces::default();
        pieces.bytes(text(&self.text).as_bytes());
        self.ready.extend(pieces.drain());
    }

    fn end(&mut self, end: Frame) {
        self.say(|text| &text.after);
        self.ready.push_back(end);
    }
}

impl BodyFilter for Surrounded {
    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Poll::Ready(Ok(frame));
            }
            let frame = ready!(input.poll_frame(ctx, task))?;
            if !std::mem::replace(&mut self.has_begun, true) {
                self.say(|text| &text.before);
            }
            match (&self.text.body, frame) {
                (Some(_), _) => {
                    self.say(|text| text.body.as_deref().unwrap_or_default());
                    self.end(Frame::End);
                }
                (None, data @ Frame::Data(_)) => self.ready.push_back(data),
                (None, Frame::Trailers(mut trailers)) => {
                    remove_digests(&mut trailers);
                    self.end(Frame::Trailers(trailers));
                }
                (None, Frame::End) => self.end(Frame::End),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Case, assert_refusal, entry};

    #[test]
    fn bodies() {
        let check = |conf: Value, pieces: &[&[u8]], expected: &str| {
            let mut case = Case::new("GET / HTTP/1.1\nHost: h");
            case.respond(
                200,
                "Content-Length: 3\nETag: \"a\"\nContent-Encoding: identity\nLast-Modified: x\nX-A: 1",
            );
            let body = case.filter(&entry("echo", conf.clone()).unwrap(), pieces);
            assert_eq!(String::from_utf8(body).unwrap(), expected, "{conf}");
            let gone = ["content-length", "etag", "content-encoding", "last-modified"];
            assert_eq!(gone.map(|name| case.answered(name)).concat(), "");
        };
        let around = json!({"before_body": "<", "after_body": ">"});
        check(around.clone(), &[b"a", b"b"], "<ab>");
        check(around, &[], "<>");
        check(json!({"body": "x"}), &[b"a", b"b"], "x");
        check(json!({"before_body": "<", "body": "x", "after_body": ">"}), &[b"a", b"b"], "<x>");
        check(json!({"before_body": "<", "body": ""}), &[], "<");
        let long = "l".repeat(100_000);
        check(json!({ "before_body": long }), &[b"a"], &format!("{long}a"));
    }

    #[test]
    fn encoded_bodies_and_205_get_no_text() {
        let check = |conf: Value, status: u16, fields: &str, expected: &str| {
            let mut case = Case::new("GET / HTTP/1.1\nHost: h");
            case.respond(status, fields);
            let body = case.filter(&entry("echo", conf.clone()).unwrap(), &[b"a"]);
            assert_eq!(String::from_utf8(body).unwrap(), expected, "{conf} {status} {fields}");
            case.answered("Content-Encoding")
        };
        let around = json!({"before_body": "<"});
        assert_eq!(check(around.clone(), 200, "Content-Encoding: gzip", "a"), "gzip");
        assert_eq!(check(around.clone(), 200, "Content-Encoding: zstd", "a"), "zstd");
        assert_eq!(check(json!({"body": "x"}), 200, "Content-Encoding: gzip", "x"), "");
        check(around.clone(), 205, "", "a");
        check(around, 200, "", "<a");
    }

    #[test]
    fn fields_are_set() {
        let conf = json!({"body": "x", "headers": {"X-A": "$uri", "X-N": 2, "Transfer-Encoding": "x"}});
        let mut case = Case::new("GET / HTTP/1.1\nHost: h\nAccept-Encoding: gzip\nRange: bytes=0-1");
        let entry_of = |conf: Value| entry("echo", conf).unwrap();
        case.respond(200, "X-A: 1");
        case.header_filter(&entry_of(conf.clone()));
        assert_eq!(["x-a", "x-n", "transfer-encoding"].map(|name| case.answered(name)), ["$uri", "2", ""]);
        assert!(case.run(&entry_of(conf), Phase::Access).is_none());
        assert_eq!(case.sent("accept-encoding").as_deref(), Some("gzip"));
        assert!(case.run(&entry_of(json!({"after_body": "x"})), Phase::Access).is_none());
        assert_eq!((case.sent("accept-encoding"), case.sent("range")), (None, None));
    }

    #[test]
    fn bad_configurations_are_refused() {
        let check = |conf: Value, expected: &str| assert_refusal("echo", &conf, expected);
        check(
            json!({}),
            "object matches none of the required: [\"before_body\"] or [\"body\"] or [\"after_body\"]",
        );
        check(json!({"body": "a", "headers": {}}), "expect object to have at least 1 properties");
        check(
            json!({"body": "a", "headers": {"a": true}}),
            "value should match only one schema, but matches none",
        );
        check(json!({"body": "a", "headers": {"a b": "c"}}), "`a b` is not the name of a header field");
        check(json!({"body": "a", "headers": {"a": "b\nc"}}), "headers.a: the value contains");
    }
}
