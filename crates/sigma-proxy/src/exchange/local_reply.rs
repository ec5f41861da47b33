//! Local replies, which the gateway makes itself: their heads and bodies.

use sigma_http::{BodyLength, HeaderId, Headers, Method};
use sigma_plugin::{Context, Entry, Reply, StreamBody, Takeover};

use super::delivery::OwnBody;
use super::{grpc, proxy_status, response_head};
use crate::worker::View;

/// A reply of the gateway before its head is made.
pub(super) struct Draft {
    pub(super) reply: Reply,
    /// The body of a reply without one of its own.
    pub(super) stream: Option<StreamBody>,
    /// The plugin that takes the connection over after the reply.
    pub(super) peer: Option<Box<dyn Takeover>>,
}

impl From<Reply> for Box<Draft> {
    fn from(reply: Reply) -> Box<Draft> {
        Box::new(Draft { reply, stream: None, peer: None })
    }
}

/// A local reply, which the gateway makes itself, with its head in [`Context::response`].
pub(super) struct LocalReply {
    pub(super) body: OwnBody,
    pub(super) length: BodyLength,
    /// The client gets no response; see [`Reply::is_silent`].
    pub(super) is_silent: bool,
}

impl LocalReply {
    /// Shows the body to header filters, in [`Context::own_body`], until [`LocalReply::take_back`].
    pub(super) fn lend(&mut self, ctx: &mut Context) {
        ctx.own_body = match &mut self.body {
            OwnBody::Bytes(bytes, 0) => Some(std::mem::take(bytes)),
            _ => None,
        };
    }

    /// Takes the body back after the header filters.
    pub(super) fn take_back(&mut self, ctx: &mut Context) {
        if let (OwnBody::Bytes(bytes, 0), Some(lent)) = (&mut self.body, ctx.own_body.take()) {
            *bytes = lent;
        }
    }
}

/// Sets the head of a local reply, in gRPC format if it ends a call; returns its body.
pub(super) fn begin(Draft { reply, stream, .. }: Draft, ctx: &mut Context, view: &View) -> LocalReply {
    let refused = grpc::is_from_caller(ctx) && !(200..300).contains(&reply.status);
    let mut reply = if refused { grpc::refusal(reply) } else { reply };
    let stream = stream.filter(|_| reply.body.is_none());
    if stream.is_some() {
        reply.body = Some(Vec::new());
    }
    let unsent = reply.unsent_length.filter(|_| ctx.request.client_method() == Method::Head);
    let is_silent = reply.is_silent;
    let body = head(reply, ctx, view);
    match stream {
        None => {
            let length = BodyLength::Known(unsent.unwrap_or(body.len() as u64));
            if unsent.is_some() {
                declare_length(&mut ctx.response.headers, length);
            }
            LocalReply { body: OwnBody::Bytes(body, 0), length, is_silent }
        }
        Some(StreamBody { length, source }) => {
            declare_length(&mut ctx.response.headers, length);
            LocalReply { body: OwnBody::Made(source), length, is_silent }
        }
    }
}

/// Makes the head; returns the body.
fn head(reply: Reply, ctx: &mut Context, view: &View) -> Vec<u8> {
    let settings = &view.snapshot.settings;
    let Reply { status, headers, body, is_passed_on, .. } = reply;
    let text = (body.is_none() && status >= 400).then(|| bare_body(status, ctx));
    let head = &mut ctx.response;
    head.start(status);
    for (name, value) in &headers {
        head.headers.append(name, value);
    }
    let (body, content_type): (Vec<u8>, &[u8]) = match (body, text) {
        (Some(body), _) if is_passed_on => (body, b""),
        (Some(body), _) => (body, b"text/plain; charset=utf-8"),
        (None, Some(text)) => (text, b"application/json"),
        (None, None) => (Vec::new(), b""),
    };
    if !content_type.is_empty() && !head.headers.has(HeaderId::ContentType) {
        head.headers.add(HeaderId::ContentType, content_type);
    }
    if !matches!(status, 204 | 304) {
        head.headers.set(HeaderId::ContentLength, itoa::Buffer::new().format(body.len()).as_bytes());
    }
    let server = settings.server_header.as_deref();
    if let Some(name) = server.or(Some("sigma")).filter(|name| !name.is_empty()) {
        head.headers.set(HeaderId::Server, name.as_bytes());
    }
    response_head::report_upstream_status(head, &ctx.record, settings.upstream_status_header);
    proxy_status::tell_status(&mut head.headers, &ctx.record, settings);
    body
}

/// Declares the length of the body in a head.
pub(super) fn declare_length(headers: &mut Headers, length: BodyLength) {
    match length {
        BodyLength::Known(bytes) => {
            headers.set(HeaderId::ContentLength, itoa::Buffer::new().format(bytes).as_bytes());
        }
        _ => headers.remove(HeaderId::ContentLength),
    }
}

/// Returns the body of a reply without one. That of an error of the server names the plugin that made it, unless the
/// client may not see reasons.
fn bare_body(status: u16, ctx: &Context) -> Vec<u8> {
    let responder = || ctx.login.responder().map(|(entry, _)| entry);
    let plugin = ctx.login.replacer().or_else(responder).map(Entry::name);
    let is_plain =
        |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let is_shown = status >= 500 && !ctx.record.hides_reason && ctx.record.fault.is_none();
    let shown = plugin.filter(|_| is_shown).filter(is_plain);
    let Some(plugin) = shown else { return plain_body(status) };
    let phrase = sigma_http::head::reason_phrase(status);
    let said = format!("{status} {phrase}");
    format!("{{\"error_msg\":\"{}\",\"reason\":\"plugin:{plugin}\"}}\n", said.trim_end()).into_bytes()
}

/// Returns the body for a status without a plugin's body.
pub(super) fn plain_body(status: u16) -> Vec<u8> {
    let said = format!("{status} {}", sigma_http::head::reason_phrase(status));
    // Not every status has a phrase.
    format!("{{\"error_msg\":\"{}\"}}\n", said.trim_end()).into_bytes()
}
