//! Requests to the service, and the fields of its responses.

use std::rc::Rc;
use std::sync::Arc;

use sigma_http::websocket::messages::Kind;
use sigma_http::{HeaderId, Headers, Method};
use sigma_plugin::outbound::{Call, Calling, Outbound, ServiceResponse};
use sigma_plugin::{Context, Env};

use super::Config;
use crate::shared::push::is_channel;
use crate::shared::room::Seat;
use sigma_plugin_kit::log_throttle::LogThrottle;

/// Most fields that the service has a connection remember, and their bytes together.
const META_FIELDS: usize = 16;
const META_BYTES: usize = 4096;

/// Fields of the service's responses, and of requests to it.
const CHANNEL: &[u8] = b"grip-channel";
const UNSUBSCRIBE: &[u8] = b"grip-unsubscribe";
const HOLD: &[u8] = b"grip-hold";
const SET_META: &[u8] = b"set-meta-";

/// Fields that only the gateway may write, and which clients cannot set: whole names, and prefixes of names.
const OWN_FIELDS: [&[u8]; 3] = [b"connection-id", b"connection-event", b"connection-close-code"];
const OWN_BEGINNINGS: [&[u8]; 3] = [b"grip-", b"meta-", b"set-meta-"];

/// Fields of the client's request that go with each event, not only with the first.
const KEPT_FIELDS: [&[u8]; 7] = [
    b"x-forwarded-proto",
    b"x-forwarded-host",
    b"x-forwarded-uri",
    b"x-forwarded-for",
    b"x-consumer-username",
    b"x-credential-identifier",
    b"x-consumer-custom-id",
];

/// An event of a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Connect,
    Message,
    Disconnect,
}

impl Event {
    fn as_str(self) -> &'static str {
        match self {
            Event::Connect => "connect",
            Event::Message => "message",
            Event::Disconnect => "disconnect",
        }
    }
}

/// How the service is queried about one connection.
pub(super) struct Caller {
    pub(super) config: Arc<Config>,
    upstream: Box<str>,
    outbound: Rc<dyn Outbound>,
    id: Box<str>,
    passes: Vec<u8>,
    /// Fields that go with each event.
    kept: Headers,
    /// Metadata that the service gets with each event.
    meta: Vec<(Box<str>, Vec<u8>)>,
}

impl Caller {
    pub(super) fn new(
        config: &Arc<Config>,
        upstream: &str,
        id: &str,
        ctx: &Context,
        env: &Env<'_>,
    ) -> Caller {
        let mut caller = Caller {
            config: Arc::clone(config),
            upstream: upstream.into(),
            outbound: env.outbound.kept(),
            id: id.into(),
            passes: ctx.passes(),
            kept: Headers::default(),
            meta: Vec::new(),
        };
        let first = caller.client_fields(ctx);
        for (name, value) in first.iter().filter(|(name, _)| is_one_of(name, &KEPT_FIELDS)) {
            caller.kept.append(&String::from_utf8_lossy(name), value);
        }
        caller
    }

    /// The fields of the client's request, as the service gets them with the first event.
    fn client_fields(&self, ctx: &Context) -> Headers {
        let mut fields = ctx.request.headers.clone();
        // The call itself adds CDN-Loop, and later pushes are not encoded.
        for id in [
            HeaderId::Host,
            HeaderId::ContentLength,
            HeaderId::TransferEncoding,
            HeaderId::Expect,
            HeaderId::CdnLoop,
            HeaderId::AcceptEncoding,
        ] {
            fields.remove(id);
        }
        fields.remove_connection_fields();
        let handshake: [&[u8]; 3] =
            [b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions"];
        fields.remove_where(|_, name| {
            is_one_of(name, &handshake) || is_one_of(name, &OWN_FIELDS) || begins_own(name)
        });
        let scheme: &[u8] = if ctx.client.tls.is_some() { b"https" } else { b"http" };
        fields.replace("X-Forwarded-Proto", scheme);
        fields.replace("X-Forwarded-Host", ctx.request.authority());
        fields.replace("X-Forwarded-Uri", ctx.outgoing_target());
        fields.replace("X-Forwarded-For", ctx.remote_addr().as_bytes());
        fields
    }

    fn call(&self, method: Method, mut headers: Headers, body: Option<Vec<u8>>) -> Call {
        headers.replace("Connection-Id", self.id.as_bytes());
        for (name, value) in &self.meta {
            headers.append(name, value);
        }
        Call {
            upstream: self.upstream.clone(),
            method,
            target: self.config.uri.target.as_bytes().to_vec(),
            host: self.config.uri.host.clone(),
            headers,
            passes: self.passes.clone(),
            body,
            timeout_ms: self.config.timeout,
            limit: self.config.max_message_bytes,
        }
    }

    fn event(&self, event: Event, mut headers: Headers, body: Vec<u8>) -> Calling {
        headers.replace("Connection-Event", event.as_str().as_bytes());
        self.outbound.call(self.call(Method::Post, headers, Some(body)))
    }

    /// Asks whether a WebSocket may be opened.
    pub(super) fn connect(&self, ctx: &Context) -> Calling {
        self.event(Event::Connect, self.client_fields(ctx), Vec::new())
    }

    /// Tells a message.
    pub(super) fn message(&self, kind: Kind, bytes: Vec<u8>) -> Calling {
        let mut headers = self.kept.clone();
        let media_type: &[u8] = match kind {
            Kind::Text => b"text/plain; charset=utf-8",
            Kind::Binary => b"application/octet-stream",
        };
        headers.replace("Content-Type", media_type);
        self.event(Event::Message, headers, bytes)
    }

    /// Reports that the connection has ended.
    pub(super) fn disconnect(&self, code: u16) -> Calling {
        let mut headers = self.kept.clone();
        headers.replace("Connection-Close-Code", code.to_string().as_bytes());
        self.event(Event::Disconnect, headers, Vec::new())
    }

    /// Sends a client's request for a possible event stream to the service.
    pub(super) fn get(&self, ctx: &Context) -> Calling {
        self.outbound.call(self.call(Method::Get, self.client_fields(ctx), None))
    }

    /// Applies the fields of a response about channels and metadata.
    pub(super) fn learn(&mut self, answer: &ServiceResponse, seat: &Seat) {
        for name in names(&answer.headers, UNSUBSCRIBE) {
            seat.unsubscribe(&name);
        }
        for name in names(&answer.headers, CHANNEL) {
            if !seat.subscribe(&name) {
                warn("a channel above max_channels");
            }
        }
        for (name, value) in answer.headers.iter() {
            if begins(name, SET_META) && name.len() > SET_META.len() {
                self.remember(&String::from_utf8_lossy(&name[b"set-".len()..]), value);
            }
        }
    }

    fn remember(&mut self, name: &str, value: &[u8]) {
        self.meta.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        let bytes: usize = self.meta.iter().map(|(name, value)| name.len() + value.len()).sum();
        if self.meta.len() >= META_FIELDS || bytes + name.len() + value.len() > META_BYTES {
            warn("a Set-Meta field above the limit of 16 fields of 4096 bytes");
            return;
        }
        self.meta.push((name.into(), value.to_vec()));
    }
}

/// Whether a response is to be held open as a stream of events.
pub(super) fn is_held(headers: &Headers) -> bool {
    // A push would be no part of an encoded body.
    let is_plain = headers.find(b"content-encoding").is_none();
    is_plain && headers.find(HOLD).is_some_and(|mode| mode.trim_ascii().eq_ignore_ascii_case(b"stream"))
}

/// Whether a field of the service's is about the connection, and not for the client.
pub(super) fn is_for_gateway(name: &[u8]) -> bool {
    is_one_of(name, &OWN_FIELDS) || begins_own(name)
}

/// The channels that stand in a field.
fn names(headers: &Headers, field: &[u8]) -> Vec<String> {
    let values = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(field)).map(|(_, value)| value);
    let mut found = Vec::new();
    for name in values.flat_map(|value| value.split(|b| *b == b',')) {
        match std::str::from_utf8(name.trim_ascii()) {
            Ok("") => {}
            Ok(name) if is_channel(name) => found.push(name.to_owned()),
            _ => warn("an invalid channel name"),
        }
    }
    found
}

/// Logs that something in the service's response is ignored.
fn warn(what: &str) {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    if let Some(left_out) = COMPLAINT.due() {
        tracing::warn!(left_out, "realtime: ignored {what} in a response of the service");
    }
}

fn is_one_of(name: &[u8], names: &[&[u8]]) -> bool {
    names.iter().any(|known| known.len() == name.len() && begins(name, known))
}

fn begins_own(name: &[u8]) -> bool {
    OWN_BEGINNINGS.iter().any(|beginning| begins(name, beginning))
}

/// Whether a field's name begins so. Services may not tell `_` from `-`.
fn begins(name: &[u8], beginning: &[u8]) -> bool {
    let plain = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.len() >= beginning.len() && name.iter().zip(beginning).all(|(byte, other)| plain(byte) == *other)
}
