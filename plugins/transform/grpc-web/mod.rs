//! `grpc-web`: browsers call gRPC services.
//!
//! A browser sees no trailers, and can send no HTTP/2 that it chooses. So the message frames of gRPC travel as an
//! ordinary body, in base64 if the client wants text, and the trailers of the response become one more frame behind
//! them.

use std::task::{self, Poll, ready};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::{BodyLength, Chunk, Fault, FaultKind, Frame, HeaderId, Headers, Method};
use sigma_plugin::record::Source;
use sigma_plugin::variables::percent_encode_path;
use sigma_plugin::{
    BodyFilter, Configuration, Context, Descriptor, Env, Frames, Phase, PhaseSet, Plugin, Reply,
    ResponseStep, Step,
};

use sigma_plugin_kit::cross_origin::CrossOrigin;

/// The plugin.
pub(crate) static GRPC_WEB: Descriptor = Descriptor {
    name: "grpc-web",
    priority: 505,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::RequestFilter, Phase::HeaderFilter, Phase::BodyFilter]),
    ..Descriptor::itself::<GrpcWeb>()
};

/// Lets gRPC-Web clients, such as browsers, call a gRPC upstream.
///
/// The upstream has `scheme: grpc` or `grpcs`. On a route that ends in `/*`, the node gets the matched part as its
/// path; on other routes the whole path. Bodies pass piece by piece in both directions, so that the messages of a
/// server stream arrive when they are sent. Trailers of the response become the last frame of its body. Errors of the
/// gateway itself, such as no node responding, are in `grpc-status` and `grpc-message`.
#[derive(Deserialize, JsonSchema)]
struct GrpcWeb {
    /// Header fields that pages of other origins may send.
    #[schemars(regex(pattern = "^[ -~]*$"), extend("default" = "content-type,x-grpc-web,x-user-agent"))]
    cors_allow_headers: String,
    /// Maximum bytes of a request's body, as the client sends it.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    max_req_body_size: u64,
}

impl Configuration for GrpcWeb {}

/// The media types of calls, and whether their bodies are base64.
const TYPES: [(&str, bool); 4] = [
    ("application/grpc-web", false),
    ("application/grpc-web+proto", false),
    ("application/grpc-web-text", true),
    ("application/grpc-web-text+proto", true),
];

/// The variable with the part of the path that the route's `*` matches.
const REST: &str = ":ext";

const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";

/// A call that goes to a node.
#[derive(Debug, Clone, Copy)]
struct Call {
    media_type: &'static str,
    is_text: bool,
}

/// The response of a node to it.
struct GrpcWebResponse {
    call: Call,
    /// The status of the call did not stand in the head.
    owes_status: bool,
}

impl Call {
    /// The call of a request, if it is one: it has one type, without parameters.
    fn of(headers: &Headers) -> Option<Call> {
        let mut sent = headers.get_all(HeaderId::ContentType);
        let (Some(sent), None) = (sent.next(), sent.next()) else { return None };
        let known = TYPES.iter().find(|(media_type, _)| media_type.as_bytes().eq_ignore_ascii_case(sent));
        known.map(|&(media_type, is_text)| Call { media_type, is_text })
    }
}

impl GrpcWeb {
    /// Whether a length that a request announces is one that it may have.
    fn admits(&self, headers: &Headers) -> bool {
        let announced = headers.get(HeaderId::ContentLength).and_then(|text| std::str::from_utf8(text).ok());
        let announced: Option<u64> = announced.and_then(|text| text.parse().ok());
        announced.is_none_or(|bytes| (1..=self.max_req_body_size).contains(&bytes))
    }
}

/// Sets the target to the part of the path that the route's `*` matches.
fn choose_target(ctx: &mut Context) {
    let Some(rest) = ctx.params.get(REST) else { return };
    let mut target = b"/".to_vec();
    percent_encode_path(rest, &mut target);
    if let Some(query) = ctx.outgoing_query() {
        target.push(b'?');
        target.extend_from_slice(query);
    }
    ctx.target = target;
}

impl Plugin for GrpcWeb {
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        match ctx.request.method {
            Method::Options => return Step::status(204),
            Method::Post => {}
            _ => return Reply::new(405).header("Allow", "POST, OPTIONS").into(),
        }
        let headers = &mut ctx.request.headers;
        let Some(call) = Call::of(headers).filter(|_| self.admits(headers)) else { return Step::status(400) };
        headers.set(HeaderId::ContentType, b"application/grpc");
        choose_target(ctx);
        ctx.keep(self, call);
        Step::Next
    }

    fn request_filter(&self, ctx: &mut Context, _: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let call = *ctx.kept::<_, Call>(self)?;
        Some(Box::new(RequestBody { call, left: self.max_req_body_size, is_empty: true, held: Vec::new() }))
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        // The state of an earlier node's response, which this response replaces.
        let _ = ctx.take_kept::<_, GrpcWebResponse>(self);
        // The plugin cors has decided which origins may read the response, even if none may.
        let is_decided = ctx.has_kept::<CrossOrigin>();
        let call = ctx.kept::<_, Call>(self).copied();
        let head = &mut ctx.response.headers;
        if ctx.request.method == Method::Options {
            head.replace("Access-Control-Allow-Methods", b"POST");
            head.replace("Access-Control-Allow-Headers", self.cors_allow_headers.as_bytes());
        }
        head.replace("Access-Control-Expose-Headers", b"grpc-message,grpc-status");
        if !is_decided {
            head.replace("Access-Control-Allow-Origin", b"*");
        }
        let Some(call) = call.filter(|_| !matches!(ctx.response.status, 204 | 205 | 304)) else {
            return ResponseStep::Next;
        };
        let (is_node, owes_status) =
            (ctx.record.source == Source::Upstream, head.find(STATUS.as_bytes()).is_none());
        if is_node || !owes_status {
            head.set(HeaderId::ContentType, call.media_type.as_bytes());
            // It announces the trailers that the last frame is made of.
            head.remove_name(b"trailer");
        }
        if is_node {
            ctx.keep(self, GrpcWebResponse { call, owes_status });
        }
        ResponseStep::Next
    }

    fn body_filter(&self, ctx: &mut Context, _: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let GrpcWebResponse { call, owes_status } = ctx.take_kept(self)?;
        // A later plugin may have replaced the response.
        let stands = ctx.response.headers.get(HeaderId::ContentType) == Some(call.media_type.as_bytes());
        stands.then(|| Box::new(ResponseBody { is_text: call.is_text, owes_status, is_over: false }) as _)
    }
}

/// Passes a request's body on, decoded if it is text, as long as it keeps to the limit.
///
/// It is not read whole beforehand: that would let every client fill `max_req_body_size` of memory. A
/// node that has got the beginning of a call never sees its end if the rest is refused.
struct RequestBody {
    call: Call,
    /// Bytes that may still come.
    left: u64,
    is_empty: bool,
    /// The beginning of a group of four characters.
    held: Vec<u8>,
}

impl RequestBody {
    /// Gives the body up. The client is answered in HTTP: it did not make a call.
    fn refuse(&self, ctx: &mut Context, reason: &'static str) -> Fault {
        ctx.request.headers.set(HeaderId::ContentType, self.call.media_type.as_bytes());
        Fault::new(FaultKind::BadRequest, reason)
    }

    /// Returns the decoded piece, without the group that it ends in. Groups may be padded anywhere: clients
    /// encode message by message.
    fn decoded(&mut self, data: &[u8]) -> Result<Vec<u8>, base64::DecodeError> {
        self.held.extend_from_slice(data);
        let whole = self.held.len() / GROUP * GROUP;
        let (mut out, mut begin) = (Vec::new(), 0);
        for end in (GROUP..=whole).step_by(GROUP) {
            if self.held[end - 1] == b'=' || end == whole {
                STANDARD.decode_vec(&self.held[begin..end], &mut out)?;
                begin = end;
            }
        }
        self.held.drain(..whole);
        Ok(out)
    }

    /// A piece, as the node gets it.
    fn passed(&mut self, data: Chunk) -> Result<Chunk, &'static str> {
        self.is_empty = false;
        let left = self.left.checked_sub(data.len() as u64);
        self.left = left.ok_or("the body exceeds max_req_body_size")?;
        match self.call.is_text {
            true => {
                self.decoded(&data).map(|data| Chunk::copy_of(&data)).map_err(|_| "the body is not base64")
            }
            false => Ok(data),
        }
    }
}

/// Characters of base64 that stand for whole bytes.
const GROUP: usize = 4;

impl BodyFilter for RequestBody {
    fn length(&self, length: BodyLength) -> BodyLength {
        // A body that is empty is requested, so that it can be refused.
        if self.call.is_text || length.is_empty() { BodyLength::Streamed } else { length }
    }

    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        loop {
            let frame = match ready!(input.poll_frame(ctx, task))? {
                Frame::Data(data) => match self.passed(data) {
                    Ok(data) if data.is_empty() => continue,
                    data => data.map(Frame::Data),
                },
                _ if self.is_empty => Err("a call needs a message"),
                _ if !self.held.is_empty() => Err("the body is not base64"),
                end => Ok(end),
            };
            return Poll::Ready(frame.map_err(|reason| self.refuse(ctx, reason)));
        }
    }
}

/// Passes a response's body on, each piece encoded if the client wants text, with the trailers as its
/// last frame.
struct ResponseBody {
    is_text: bool,
    owes_status: bool,
    /// The last frame has left; only the end is still to come.
    is_over: bool,
}

impl ResponseBody {
    fn encoded(&self, data: Chunk) -> Chunk {
        if self.is_text { Chunk::copy_of(STANDARD.encode(&data[..]).as_bytes()) } else { data }
    }
}

impl BodyFilter for ResponseBody {
    fn length(&self, length: BodyLength) -> BodyLength {
        let stays = !self.owes_status && (!self.is_text || length.is_empty());
        if stays { length } else { BodyLength::Streamed }
    }

    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        if self.is_over {
            return Poll::Ready(Ok(Frame::End));
        }
        let trailers = match ready!(input.poll_frame(ctx, task))? {
            Frame::Data(data) => return Poll::Ready(Ok(Frame::Data(self.encoded(data)))),
            end if !self.owes_status => return Poll::Ready(Ok(end)),
            Frame::Trailers(trailers) => *trailers,
            Frame::End => Headers::default(),
        };
        self.is_over = true;
        let frame = Chunk::copy_of(&trailer_frame(&trailers));
        Poll::Ready(Ok(Frame::Data(self.encoded(frame))))
    }
}

/// The frame that trailers become: its kind, its length, and a line for each field. The status and the message
/// are always there.
fn trailer_frame(trailers: &Headers) -> Vec<u8> {
    const KIND: u8 = 0x80;
    let status = trailers.find(STATUS.as_bytes());
    let message = trailers.find(MESSAGE.as_bytes()).unwrap_or_default();
    let (status, message) = match status {
        Some(status) => (status, message),
        None => (&b"2"[..], &b"upstream grpc status not received"[..]),
    };
    let mut frame = vec![KIND, 0, 0, 0, 0];
    let mut line = |name: &[u8], value: &[u8]| {
        frame.extend(name.iter().map(u8::to_ascii_lowercase));
        frame.push(b':');
        frame.extend_from_slice(value);
        frame.extend_from_slice(b"\r\n");
    };
    line(STATUS.as_bytes(), status);
    line(MESSAGE.as_bytes(), message);
    let is_told =
        |name: &[u8]| [STATUS, MESSAGE].iter().any(|told| name.eq_ignore_ascii_case(told.as_bytes()));
    trailers.iter().filter(|(name, _)| !is_told(name)).for_each(|(name, value)| line(name, value));
    // The limits of heads hold for trailers, so this is far below 4 GiB.
    let length = u32::try_from(frame.len() - 5).unwrap_or(u32::MAX);
    frame[1..5].copy_from_slice(&length.to_be_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use serde_json::{Value, json};
    use sigma_plugin::Entry;

    use super::*;
    use crate::testing::{Case, Given, entry, refusal, summary};

    /// Returns the output of a filter: its bytes, and whether trailers leave; or the error.
    fn passed(
        mut filter: Box<dyn BodyFilter>,
        ctx: &mut Context,
        pieces: &[&[u8]],
        trailers: &[(&str, &str)],
    ) -> Result<(Vec<u8>, bool), &'static str> {
        let mut frames: VecDeque<Frame> =
            pieces.iter().map(|piece| Frame::Data(Chunk::copy_of(piece))).collect();
        if !trailers.is_empty() {
            let mut fields = Headers::default();
            trailers.iter().for_each(|(name, value)| fields.append(name, value.as_bytes()));
            frames.push_back(Frame::Trailers(Box::new(fields)));
        }
        let (mut source, mut out) = (Given(frames), Vec::new());
        let mut task = task::Context::from_waker(task::Waker::noop());
        loop {
            match filter.poll_frame(&mut source, ctx, &mut task) {
                Poll::Ready(Ok(Frame::Data(data))) => out.extend_from_slice(&data),
                Poll::Ready(Ok(end)) => return Ok((out, matches!(end, Frame::Trailers(_)))),
                Poll::Ready(Err(fault)) => return Err(fault.reason),
                Poll::Pending => unreachable!("the source never waits"),
            }
        }
    }

    fn plugin(conf: Value) -> Entry {
        entry("grpc-web", conf).unwrap()
    }

    /// A call whose head was let through.
    fn call(entry: &Entry, media_type: &str) -> Case {
        let mut case = Case::new(&format!("POST /a.B/C HTTP/1.1\nHost: h\nContent-Type: {media_type}"));
        assert!(case.run(entry, Phase::Access).is_none(), "{media_type}");
        case
    }

    fn sent(conf: Value, media_type: &str, pieces: &[&[u8]]) -> Result<Vec<u8>, &'static str> {
        let entry = plugin(conf);
        let mut case = call(&entry, media_type);
        let env = Env::new(&case.node, &case.local, &case.consumers);
        let filter = entry.plugin.request_filter(&mut case.ctx, &env).unwrap();
        let passed = passed(filter, &mut case.ctx, pieces, &[]);
        let expected = if passed.is_ok() { "application/grpc" } else { media_type };
        assert_eq!(case.sent("content-type").as_deref(), Some(expected));
        passed.map(|(body, _)| body)
    }

    #[test]
    fn calls_are_recognised() {
        let entry = plugin(json!({"max_req_body_size": 10}));
        let check = |request: &str, expected: &str| {
            let mut case = Case::new(&format!("{request}\nHost: h"));
            assert_eq!(summary(case.run(&entry, Phase::Access).as_ref()), expected, "{request}");
        };
        for (media_type, _) in TYPES {
            check(&format!("POST / HTTP/1.1\nContent-Type: {media_type}"), "passed");
        }
        check("OPTIONS / HTTP/1.1", "204");
        check("GET / HTTP/1.1\nContent-Type: application/grpc-web", "405");
        for wrong in ["application/grpc", "application/grpc-web; charset=utf-8", ""] {
            check(&format!("POST / HTTP/1.1\nContent-Type: {wrong}"), "400");
        }
        check("POST / HTTP/1.1", "400");
        check("POST / HTTP/1.1\nContent-Type: application/grpc-web\nContent-Type: application/json", "400");
        check("POST / HTTP/1.1\nContent-Type: application/grpc-web\nContent-Length: 11", "400");
        check("POST / HTTP/1.1\nContent-Type: application/grpc-web\nContent-Length: 0", "400");
        check("POST / HTTP/1.1\nContent-Type: application/grpc-web\nContent-Length: 10", "passed");
    }

    #[test]
    fn request_bodies_pass_within_the_limit() {
        const BINARY: &str = "application/grpc-web";
        const TEXT: &str = "application/grpc-web-text+proto";
        let plain = || json!({});
        assert_eq!(sent(plain(), BINARY, &[b"\0\0\0", b"\0\x01x"]).unwrap(), b"\0\0\0\0\x01x");
        assert_eq!(sent(plain(), TEXT, &[b"AAAAAAA="]).unwrap(), [0; 5]);
        // Split anywhere, and padded in the middle.
        assert_eq!(
            sent(plain(), TEXT, &[b"A", b"AAAAA", b"A", b"=AQ==", b"AA=", b"="]).unwrap(),
            [0, 0, 0, 0, 0, 1, 0]
        );
        for wrong in [&[&b"AAAAAAA"[..]][..], &[b"AAA*"], &[b"A=AA"], &[b"AB=="], &[b"AA\r\nAA=="]] {
            assert_eq!(sent(plain(), TEXT, wrong), Err("the body is not base64"), "{wrong:?}");
        }
        for media_type in [BINARY, TEXT] {
            assert_eq!(sent(plain(), media_type, &[]), Err("a call needs a message"));
            let small = || json!({"max_req_body_size": 8});
            assert!(sent(small(), media_type, &[b"AAAA", b"AAA="]).is_ok());
            assert_eq!(
                sent(small(), media_type, &[b"AAAA", b"AAAAA"]),
                Err("the body exceeds max_req_body_size")
            );
        }
    }

    /// Returns the client's response: type and body.
    fn answer(
        media_type: &str,
        fields: &str,
        pieces: &[&[u8]],
        trailers: &[(&str, &str)],
    ) -> (String, Vec<u8>, bool) {
        let entry = plugin(json!({}));
        let mut case = call(&entry, media_type);
        case.respond(200, fields);
        case.ctx.record.source = Source::Upstream;
        case.header_filter(&entry);
        let env = Env::new(&case.node, &case.local, &case.consumers);
        let filter = entry.plugin.body_filter(&mut case.ctx, &env).unwrap();
        let (body, has_trailers) = passed(filter, &mut case.ctx, pieces, trailers).unwrap();
        (case.answered("content-type"), body, has_trailers)
    }

    #[test]
    fn trailers_become_a_frame() {
        let trailers = [("Grpc-Message", "fine"), ("Grpc-Status", "0"), ("X-Info-Bin", "AA")];
        let (kind, body, has_trailers) =
            answer("application/grpc-web", "Content-Type: application/grpc", &[b"\0\0\0\0\x02hi"], &trailers);
        assert_eq!((kind.as_str(), has_trailers), ("application/grpc-web", false));
        let lines = b"grpc-status:0\r\ngrpc-message:fine\r\nx-info-bin:AA\r\n";
        assert_eq!(body, [&b"\0\0\0\0\x02hi\x80\0\0\0"[..], &[lines.len() as u8], lines].concat());
    }

    #[test]
    fn text_is_encoded_piece_by_piece() {
        let trailers = [("grpc-status", "0"), ("grpc-message", "ok")];
        let (kind, body, _) = answer("application/grpc-web-text", "", &[b"a", b"bc"], &trailers);
        assert_eq!(kind, "application/grpc-web-text");
        assert_eq!(body, b"YQ==YmM=gAAAACBncnBjLXN0YXR1czowDQpncnBjLW1lc3NhZ2U6b2sNCg==");
    }

    #[test]
    fn a_missing_status_is_reported() {
        for trailers in [&[][..], &[("x-other", "1")]] {
            let (_, body, has_trailers) = answer("application/grpc-web", "", &[b"x"], trailers);
            let text = String::from_utf8_lossy(&body);
            assert!(
                text.contains("grpc-status:2\r\ngrpc-message:upstream grpc status not received\r\n"),
                "{text}"
            );
            assert!(!has_trailers);
        }
    }

    #[test]
    fn a_status_in_the_head_is_all_that_is_said() {
        let fields = "Content-Type: application/grpc\nGrpc-Status: 5\nGrpc-Message: gone";
        let (kind, body, _) = answer("application/grpc-web-text", fields, &[], &[]);
        assert_eq!((kind.as_str(), &body[..]), ("application/grpc-web-text", &b""[..]));
    }

    #[test]
    fn answers_of_the_gateway_are_left_alone() {
        let entry = plugin(json!({}));
        let check = |status: u16, fields: &str, expected: &str| {
            let mut case = call(&entry, "application/grpc-web");
            case.respond(status, fields);
            case.header_filter(&entry);
            let env = Env::new(&case.node, &case.local, &case.consumers);
            assert!(entry.plugin.body_filter(&mut case.ctx, &env).is_none());
            assert_eq!(case.answered("content-type"), expected);
        };
        check(400, "Content-Type: application/json", "application/json");
        // A gRPC error becomes a gRPC-Web error.
        check(200, "Content-Type: application/grpc\nGrpc-Status: 14", "application/grpc-web");
    }

    #[test]
    fn the_star_of_the_route_is_the_path() {
        let entry = plugin(json!({}));
        let check = |rest: Option<&[u8]>, expected: &str| {
            let mut case =
                Case::new("POST /p/a.B/C?q=1 HTTP/1.1\nHost: h\nContent-Type: application/grpc-web");
            rest.iter().for_each(|rest| case.ctx.params.push(REST, rest));
            assert!(case.run(&entry, Phase::Access).is_none());
            assert_eq!(case.target(), expected);
        };
        check(None, "/p/a.B/C?q=1");
        check(Some(b"a.B/C"), "/a.B/C?q=1");
        // Decoded bytes do not become another target.
        check(Some(b"a?b#c d\r\n"), "/a%3Fb%23c%20d%0D%0A?q=1");
    }

    #[test]
    fn configurations() {
        assert_eq!(refusal("grpc-web", &json!({})), "");
        assert_ne!(refusal("grpc-web", &json!({"max_req_body_size": 0})), "");
        assert_ne!(refusal("grpc-web", &json!({"cors_allow_headers": "a\r\nb: c"})), "");
    }
}
