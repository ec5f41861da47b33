//! `realtime-publish`: what services push to the connections of `realtime`.

use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sigma_http::websocket::messages::Kind;
use sigma_http::{HeaderId, Method};
use sigma_plugin::step::BodyRead;
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};
use sigma_schema::Confidential;

use crate::shared::hub::{Busy, Hub};
use crate::shared::push::{Item, Pushed, Target, is_channel};

/// The plugin on the side of services.
pub(crate) static REALTIME_PUBLISH: Descriptor = Descriptor {
    name: "realtime-publish",
    priority: 506,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    build: |build| Ok(Arc::new(Publish::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Fewest characters of a key, so that it cannot be guessed.
const KEY_CHARACTERS: usize = 16;

/// Most items of a push; each is looked for on every worker.
const MOST_ITEMS: usize = 1000;

/// Most bytes of the reason in a close frame (RFC 6455 §5.5).
const REASON_BYTES: usize = 123;

/// Pushes messages to WebSockets and event streams of `realtime`, for callers with a key.
///
/// A POST with `Authorization: Bearer KEY` contains items, in the form of Pushpin's `/publish`:
///
/// `{"items": [{"channel": "news", "formats": {"ws-message": {"content": "rain"}, "http-stream": {"content": "data:
/// rain\n\n"}}}]}`
///
/// Each item is for a `channel`, or for one `connection`, whose name the service has from `Connection-Id`. Of
/// `formats` each connection gets its own: `ws-message` is sent as a WebSocket message. `http-stream` is sent as part
/// of an event stream and must be UTF-8; the plugin adds an empty line at its end if it is missing. `content-bin` has
/// base64 instead of `content`, and is a binary message over WebSocket. `"action": "close"` ends the connection, with
/// `code` (1000 unless set) and `reason` over WebSocket.
///
/// The response is `{"reached": [1]}`: for each item the number of connections of this gateway that have it in their
/// queue. Other gateways do not get it. Without a key the response is 401, for an invalid body 400, and 503 if too many
/// pushes wait for a worker: other workers may have it then. A caller with a key can push to every channel and
/// connection of the gateway.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The keys, at least 16 characters each; several during a key rotation.
    #[schemars(length(min = 1, max = 16))]
    keys: Vec<Confidential>,
    /// Maximum bytes of a push.
    #[schemars(range(min = 1, max = 16_777_216), extend("default" = 1_048_576))]
    max_body_bytes: usize,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        match self.keys.iter().all(|key| key.reveal().chars().count() >= KEY_CHARACTERS) {
            true => Ok(()),
            false => Err("keys: a key has at least 16 characters".to_owned()),
        }
    }
}

/// What is posted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Publication {
    items: Vec<Posted>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Posted {
    channel: Option<String>,
    connection: Option<String>,
    formats: Formats,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Formats {
    #[serde(rename = "ws-message")]
    websocket: Option<Format>,
    #[serde(rename = "http-stream")]
    events: Option<Format>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Format {
    content: Option<String>,
    content_bin: Option<String>,
    #[serde(default)]
    action: Action,
    code: Option<u16>,
    reason: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    #[default]
    Send,
    Close,
}

/// An instance.
struct Publish {
    config: Config,
    hub: Arc<Hub>,
}

impl Publish {
    fn new(build: &Build<'_>) -> Result<Publish, String> {
        Ok(Publish { config: build.config()?, hub: build.node.part(Hub::default) })
    }

    /// Whether the sender has a key. All are compared, so that time tells nothing of which.
    fn knows(&self, ctx: &Context) -> bool {
        let mut fields = ctx.request.headers.get_all(HeaderId::Authorization);
        let (Some(field), None) = (fields.next(), fields.next()) else { return false };
        let Some((scheme, key)) = field.split_at_checked(b"Bearer ".len()) else { return false };
        let is_bearer = scheme.eq_ignore_ascii_case(b"Bearer ");
        let is_one = |known: &Confidential| verify_slices_are_equal(known.reveal().as_bytes(), key).is_ok();
        let matching = self.config.keys.iter().filter(|known| is_one(known)).count();
        is_bearer && matching > 0
    }
}

impl Plugin for Publish {
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        if !self.knows(ctx) {
            let reply = Reply::new(401).header("WWW-Authenticate", "Bearer");
            return reply.json(&json!({ "message": "a key is needed" })).because("no key for pushes").into();
        }
        if ctx.request.method != Method::Post {
            return Reply::new(405).header("Allow", "POST").into();
        }
        let hub = Arc::clone(&self.hub);
        Step::ReadBody {
            limit: self.config.max_body_bytes,
            then: Box::new(move |ctx, _, read| {
                if read == BodyRead::TooLarge {
                    return Reply::new(413)
                        .json(&json!({ "message": "the push exceeds max_body_bytes" }))
                        .into();
                }
                match items(ctx.body.as_deref().unwrap_or_default()) {
                    Ok(items) => deliver(&hub, items),
                    Err(reason) => Reply::new(400).json(&json!({ "message": reason })).into(),
                }
            }),
        }
    }
}

fn deliver(hub: &Hub, items: Vec<Item>) -> Step {
    match hub.deliver(items) {
        Ok(delivery) => Step::wait(delivery, |reached, _, _| {
            Reply::new(200)
                .header("Content-Type", "application/json")
                .json(&json!({ "reached": reached }))
                .into()
        }),
        Err(Busy) => {
            let busy = json!({ "message": "too many pushes are pending" });
            Reply::new(503)
                .header("Retry-After", "1")
                .json(&busy)
                .because("too many pushes are pending")
                .into()
        }
    }
}

/// The items of a push; the error is a sentence.
fn items(body: &[u8]) -> Result<Vec<Item>, String> {
    let publication: Publication = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if publication.items.len() > MOST_ITEMS {
        return Err(format!("items: more than {MOST_ITEMS} items"));
    }
    let numbered = publication.items.into_iter().enumerate();
    numbered.map(|(at, posted)| posted.item().map_err(|reason| format!("items[{at}]: {reason}"))).collect()
}

impl Posted {
    fn item(self) -> Result<Item, String> {
        let target = match (self.channel, self.connection) {
            (Some(name), None) if is_channel(&name) => Target::Channel(name.into()),
            (Some(_), None) => return Err("channel: it is not a valid channel name".to_owned()),
            (None, Some(id)) => Target::Connection(id.into()),
            _ => return Err("write `channel` or `connection`".to_owned()),
        };
        let Formats { websocket, events } = self.formats;
        if websocket.is_none() && events.is_none() {
            return Err("formats: write `ws-message` or `http-stream`".to_owned());
        }
        let websocket = websocket.map(Format::message).transpose();
        let events = events.map(Format::part).transpose();
        Ok(Item {
            target,
            websocket: websocket.map_err(|reason| format!("ws-message: {reason}"))?,
            events: events.map_err(|reason| format!("http-stream: {reason}"))?,
        })
    }
}

impl Format {
    /// Returns the content, and whether it is text.
    fn content(self) -> Result<(Kind, Vec<u8>), String> {
        if self.code.is_some() || self.reason.is_some() {
            return Err("`code` and `reason` need the action `close`".to_owned());
        }
        match (self.content, self.content_bin) {
            (Some(text), None) => Ok((Kind::Text, text.into_bytes())),
            (None, Some(encoded)) => {
                let bytes = STANDARD.decode(encoded).map_err(|_| "content-bin: it is not base64")?;
                Ok((Kind::Binary, bytes))
            }
            _ => Err("write `content` or `content-bin`".to_owned()),
        }
    }

    fn close(self) -> Result<Pushed, String> {
        let (code, reason) = (self.code.unwrap_or(1000), self.reason.unwrap_or_default());
        if self.content.is_some() || self.content_bin.is_some() {
            return Err("the action `close` has no content".to_owned());
        }
        // The codes that a server may send (RFC 6455 §7.4).
        if !matches!(code, 1000 | 1001 | 1008 | 1011 | 1012 | 1013 | 3000..=4999) {
            return Err(format!("code: applications may not send {code}"));
        }
        if reason.len() > REASON_BYTES {
            return Err(format!("reason: it is longer than {REASON_BYTES} bytes"));
        }
        Ok(Pushed::End(code, reason.into()))
    }

    /// As a message of a WebSocket.
    fn message(self) -> Result<Pushed, String> {
        if self.action == Action::Close {
            return self.close();
        }
        let (kind, bytes) = self.content()?;
        Ok(Pushed::Message(kind, bytes.into()))
    }

    /// As part of a stream of events.
    fn part(self) -> Result<Pushed, String> {
        if self.action == Action::Close {
            return self.close();
        }
        let (_, bytes) = self.content()?;
        let Ok(mut text) = String::from_utf8(bytes) else { return Err("it is not UTF-8".to_owned()) };
        // An event ends with an empty line: without one it would become part of the next.
        let lines = if text.ends_with("\n\n") || text.ends_with("\r\n\r\n") {
            ""
        } else if text.ends_with('\n') {
            "\n"
        } else {
            "\n\n"
        };
        text.push_str(lines);
        Ok(Pushed::Message(Kind::Text, text.into_bytes().into()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::{Case, assert_refusal, entry, summary};

    #[test]
    fn configurations() {
        let check = |conf: Value, expected: &str| assert_refusal("realtime-publish", &conf, expected);
        check(json!({"keys": ["0123456789abcdef"]}), "");
        check(json!({}), "property \"keys\" is required");
        check(
            json!({"keys": []}),
            "property \"keys\" validation failed: expect array to have at least 1 items",
        );
        check(json!({"keys": ["0123456789abcdef", "short"]}), "keys: a key has at least 16 characters");
    }

    #[test]
    fn pushes_without_a_key_are_refused() {
        let entry =
            entry("realtime-publish", json!({"keys": ["0123456789abcdef", "fedcba9876543210"]})).unwrap();
        let check = |fields: &str, expected: &str| {
            let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: x{fields}"));
            let got = summary(case.run(&entry, Phase::Access).as_ref());
            assert!(got.starts_with(expected), "{fields}: {got}");
        };
        check("", "401");
        check("\nAuthorization: Bearer", "401");
        check("\nAuthorization: Bearer ", "401");
        check("\nAuthorization: Bearer 0123456789abcde", "401");
        check("\nAuthorization: Bearer 0123456789abcdef0", "401");
        check("\nAuthorization: Basic 0123456789abcdef", "401");
        check("\nAuthorization: Bearer 0123456789abcdef\nAuthorization: Bearer x", "401");
        check("\nAuthorization: bearer 0123456789abcdef", "405");
        check("\nAuthorization: Bearer fedcba9876543210", "405");
    }

    #[test]
    fn pushes_are_read() {
        let read = |item: Value| items(json!({ "items": [item] }).to_string().as_bytes());
        let message = |kind, text: &str| Some(Pushed::Message(kind, text.as_bytes().into()));
        let item = read(
            json!({"channel": "a", "formats": {"ws-message": {"content": "b"}, "http-stream": {"content": "data: c"}}}),
        );
        let expected = Item {
            target: Target::Channel("a".into()),
            websocket: message(Kind::Text, "b"),
            events: message(Kind::Text, "data: c\n\n"),
        };
        assert_eq!(item, Ok(vec![expected]));
        for (content, expected) in [
            ("data: a\n", "data: a\n\n"),
            ("data: a\n\n", "data: a\n\n"),
            ("data: a\r\n\r\n", "data: a\r\n\r\n"),
        ] {
            let item =
                read(json!({"connection": "i", "formats": {"http-stream": {"content": content}}})).unwrap();
            assert_eq!(
                (&item[0].target, &item[0].events),
                (&Target::Connection("i".into()), &message(Kind::Text, expected))
            );
        }
        let item = read(json!({"channel": "a", "formats": {"ws-message": {"content-bin": "/w=="}}})).unwrap();
        assert_eq!(item[0].websocket, Some(Pushed::Message(Kind::Binary, vec![0xff].into())));
        let close = json!({"action": "close", "code": 4000, "reason": "bye"});
        let item = read(json!({"channel": "a", "formats": {"ws-message": close}})).unwrap();
        assert_eq!(item[0].websocket, Some(Pushed::End(4000, "bye".into())));
    }

    #[test]
    fn invalid_pushes_are_refused() {
        let check = |item: Value, expected: &str| {
            let got = items(json!({ "items": [item] }).to_string().as_bytes()).unwrap_err();
            assert!(got.contains(expected), "{item}: {got}");
        };
        let text = json!({"ws-message": {"content": "a"}});
        check(json!({"formats": text}), "items[0]: write `channel` or `connection`");
        check(json!({"channel": "a", "connection": "b", "formats": text}), "write `channel` or `connection`");
        check(json!({"channel": "a b", "formats": text}), "channel: it is not a valid channel name");
        check(json!({"channel": "a", "formats": {}}), "formats: write `ws-message` or `http-stream`");
        check(json!({"channel": "a", "formats": {"http-response": {}}}), "unknown field `http-response`");
        check(json!({"channel": "a", "id": "1", "formats": text}), "unknown field `id`");
        let format = |format: Value| json!({"channel": "a", "formats": {"ws-message": format}});
        check(format(json!({})), "ws-message: write `content` or `content-bin`");
        check(format(json!({"content": "a", "content-bin": "YQ=="})), "write `content` or `content-bin`");
        check(format(json!({"content-bin": "?"})), "content-bin: it is not base64");
        check(format(json!({"content": "a", "code": 1000})), "`code` and `reason` need the action `close`");
        check(format(json!({"action": "close", "content": "a"})), "the action `close` has no content");
        check(format(json!({"action": "close", "code": 1006})), "code: applications may not send 1006");
        check(
            format(json!({"action": "close", "reason": "x".repeat(124)})),
            "reason: it is longer than 123 bytes",
        );
        check(format(json!({"action": "hint"})), "unknown variant `hint`");
        check(
            json!({"channel": "a", "formats": {"http-stream": {"content-bin": "/w=="}}}),
            "http-stream: it is not UTF-8",
        );
        let many = json!({ "items": vec![json!({"channel": "a", "formats": text}); 1001] });
        assert_eq!(items(many.to_string().as_bytes()), Err("items: more than 1000 items".to_owned()));
        assert!(items(b"").is_err() && items(b"[]").is_err() && items(b"{\"items\":7}").is_err());
    }
}
