//! A scripted processor of Envoy's `ext_proc`, over HTTP/2 by the `h2` crate. Its messages are written here by
//! themselves, after the same descriptions.

use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use prost::Message as _;
use tokio::runtime::Runtime;

use crate::h2::Node;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Incoming {
    #[prost(message, optional, tag = "2")]
    pub(super) request_headers: Option<Head>,
    #[prost(message, optional, tag = "3")]
    pub(super) response_headers: Option<Head>,
    #[prost(message, optional, tag = "4")]
    pub(super) request_body: Option<Body>,
    #[prost(message, optional, tag = "5")]
    pub(super) response_body: Option<Body>,
    #[prost(message, optional, tag = "6")]
    pub(super) request_trailers: Option<Trailers>,
    #[prost(message, optional, tag = "7")]
    pub(super) response_trailers: Option<Trailers>,
    #[prost(bool, tag = "10")]
    pub(super) observability_mode: bool,
}

impl Incoming {
    /// The kind of the message, and its most important content.
    fn summary(&self) -> String {
        let head = |name: &str, head: &Head| format!("{name}{}", if head.end { " end" } else { "" });
        let body = |name: &str, body: &Body| {
            let end = if body.end { " end" } else { "" };
            format!("{name} {}{end}", String::from_utf8_lossy(&body.body[..body.body.len().min(20)]))
        };
        let all = [
            self.request_headers.as_ref().map(|part| head("request_headers", part)),
            self.response_headers.as_ref().map(|part| head("response_headers", part)),
            self.request_body.as_ref().map(|part| body("request_body", part)),
            self.response_body.as_ref().map(|part| body("response_body", part)),
            self.request_trailers.as_ref().map(|_| "request_trailers".to_owned()),
            self.response_trailers.as_ref().map(|_| "response_trailers".to_owned()),
        ];
        all.into_iter().flatten().collect()
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Head {
    #[prost(message, optional, tag = "1")]
    fields: Option<Fields>,
    #[prost(bool, tag = "3")]
    end: bool,
}

impl Head {
    fn get(&self, name: &str) -> String {
        let mut fields = self.fields.iter().flat_map(|fields| &fields.all);
        let field = fields.find(|field| field.key == name);
        String::from_utf8_lossy(&field.cloned().unwrap_or_default().raw_value).into_owned()
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct Fields {
    #[prost(message, repeated, tag = "1")]
    all: Vec<Field>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Field {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "vec", tag = "3")]
    raw_value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Body {
    #[prost(bytes = "vec", tag = "1")]
    body: Vec<u8>,
    #[prost(bool, tag = "2")]
    end: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Trailers {
    #[prost(message, optional, tag = "1")]
    fields: Option<Fields>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Outgoing {
    #[prost(message, optional, tag = "1")]
    request_headers: Option<Answer>,
    #[prost(message, optional, tag = "2")]
    response_headers: Option<Answer>,
    #[prost(message, optional, tag = "3")]
    request_body: Option<Answer>,
    #[prost(message, optional, tag = "4")]
    response_body: Option<Answer>,
    #[prost(message, optional, tag = "5")]
    request_trailers: Option<TrailersAnswer>,
    #[prost(message, optional, tag = "6")]
    response_trailers: Option<TrailersAnswer>,
    #[prost(message, optional, tag = "7")]
    immediate: Option<Immediate>,
    #[prost(message, optional, tag = "9")]
    mode: Option<Mode>,
    #[prost(message, optional, tag = "11")]
    streamed: Option<StreamedReply>,
}

/// A part of a response in pieces.
#[derive(Clone, PartialEq, prost::Message)]
struct StreamedReply {
    #[prost(message, optional, tag = "1")]
    head: Option<Head>,
    #[prost(message, optional, tag = "2")]
    body: Option<Body>,
    #[prost(message, optional, tag = "3")]
    trailers: Option<Fields>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Answer {
    #[prost(message, optional, tag = "1")]
    common: Option<Common>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TrailersAnswer {
    #[prost(message, optional, tag = "1")]
    mutation: Option<Mutation>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Common {
    #[prost(int32, tag = "1")]
    status: i32,
    #[prost(message, optional, tag = "2")]
    headers: Option<Mutation>,
    #[prost(message, optional, tag = "3")]
    body: Option<BodyMutation>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Mutation {
    #[prost(message, repeated, tag = "1")]
    set: Vec<Setting>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Setting {
    #[prost(message, optional, tag = "1")]
    field: Option<Field>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct BodyMutation {
    #[prost(bytes = "vec", optional, tag = "1")]
    body: Option<Vec<u8>>,
    #[prost(message, optional, tag = "3")]
    streamed: Option<Body>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Immediate {
    #[prost(message, optional, tag = "1")]
    status: Option<Code>,
    #[prost(bytes = "vec", tag = "3")]
    body: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Code {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Mode {
    #[prost(int32, tag = "2")]
    response_headers: i32,
}

fn sets(key: &str, value: &str) -> Option<Mutation> {
    let field = Some(Field { key: key.to_owned(), raw_value: value.into() });
    Some(Mutation { set: vec![Setting { field }] })
}

fn headers(key: &str, value: &str) -> Option<Answer> {
    Some(Answer { common: Some(Common { headers: sets(key, value), ..Common::default() }) })
}

fn replaces(body: Vec<u8>) -> Option<Answer> {
    let body = Some(BodyMutation { body: Some(body), streamed: None });
    Some(Answer { common: Some(Common { body, ..Common::default() }) })
}

fn streams(body: Vec<u8>, end: bool) -> Option<Answer> {
    let body = Some(BodyMutation { body: None, streamed: Some(Body { body, end }) });
    Some(Answer { common: Some(Common { body, ..Common::default() }) })
}

fn immediate(code: i32) -> Outgoing {
    let immediate = Immediate { status: Some(Code { code }), body: b"by the processor".to_vec() };
    Outgoing { immediate: Some(immediate), ..Outgoing::default() }
}

fn streamed(part: StreamedReply) -> Outgoing {
    Outgoing { streamed: Some(part), ..Outgoing::default() }
}

fn streamed_head(status: &str) -> Outgoing {
    let field = |key: &str, value: &str| Field { key: key.to_owned(), raw_value: value.into() };
    let all = vec![field(":status", status), field("x-made", "1"), field("content-length", "99")];
    streamed(StreamedReply {
        head: Some(Head { fields: Some(Fields { all }), end: false }),
        ..StreamedReply::default()
    })
}

fn streamed_piece(body: &str, end: bool) -> Outgoing {
    streamed(StreamedReply { body: Some(Body { body: body.into(), end }), ..StreamedReply::default() })
}

/// One stream.
struct Stream {
    input: RecvStream,
    bytes: BytesMut,
    output: SendStream<Bytes>,
    log: Log,
}

/// The messages so far.
pub(super) type Log = Arc<Mutex<Vec<String>>>;

impl Stream {
    async fn next(&mut self) -> Option<Incoming> {
        loop {
            if self.bytes.len() >= 5 {
                let length = u32::from_be_bytes(self.bytes[1..5].try_into().unwrap()) as usize;
                if self.bytes.len() >= 5 + length {
                    self.bytes.advance(5);
                    let message = Incoming::decode(self.bytes.split_to(length)).unwrap();
                    self.log.lock().unwrap().push(message.summary());
                    return Some(message);
                }
            }
            let data = self.input.data().await?.ok()?;
            let _ = self.input.flow_control().release_capacity(data.len());
            self.bytes.extend_from_slice(&data);
        }
    }

    fn send(&mut self, message: &Outgoing) {
        self.send_bytes(&message.encode_to_vec());
    }

    fn send_bytes(&mut self, message: &[u8]) {
        let framed = [&[0][..], &u32::to_be_bytes(message.len() as u32), message].concat();
        let _ = self.output.send_data(Bytes::from(framed), false);
    }

    fn end(&mut self, code: &str) {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", code.parse().unwrap());
        let _ = self.output.send_trailers(trailers);
    }

    /// Responds to a message of any kind: fields are set, bodies are in capitals.
    fn answer(&mut self, message: &Incoming) {
        let capitals = |body: &Body| replaces(body.body.to_ascii_uppercase());
        self.send(&Outgoing {
            request_headers: message.request_headers.as_ref().and_then(|_| headers("x-new", "1")),
            response_headers: message.response_headers.as_ref().and_then(|_| headers("x-back", "2")),
            request_body: message.request_body.as_ref().and_then(capitals),
            response_body: message.response_body.as_ref().and_then(capitals),
            request_trailers: message
                .request_trailers
                .as_ref()
                .map(|_| TrailersAnswer { mutation: sets("x-t", "3") }),
            response_trailers: message
                .response_trailers
                .as_ref()
                .map(|_| TrailersAnswer { mutation: sets("x-t", "3") }),
            ..Outgoing::default()
        });
    }

    /// Runs full duplex: fields are answered when the whole body is here, which comes back in small pieces.
    async fn duplex(&mut self, first: Incoming) {
        let mut next = Some(first);
        while let Some(message) = next {
            let (mut body, is_request) = (Vec::new(), message.request_headers.is_some());
            let is_end = |head: &Option<Head>| head.as_ref().is_some_and(|head| head.end);
            let mut end = is_end(&message.request_headers) || is_end(&message.response_headers);
            let mut trailers = false;
            let has_body = !end;
            while !end {
                let Some(part) = self.next().await else { return };
                trailers = part.request_trailers.is_some() || part.response_trailers.is_some();
                let piece = part.request_body.or(part.response_body).unwrap_or_default();
                body.extend_from_slice(&piece.body);
                end = piece.end || trailers;
            }
            let head = Incoming { request_body: None, ..message };
            self.answer(&head);
            let side = |answer| match is_request {
                true => Outgoing { request_body: answer, ..Outgoing::default() },
                false => Outgoing { response_body: answer, ..Outgoing::default() },
            };
            for piece in body.to_ascii_uppercase().chunks(7) {
                self.send(&side(streams(piece.to_vec(), false)));
            }
            if trailers {
                let (one, other) = (Some(Trailers::default()), None);
                let (request_trailers, response_trailers) =
                    if is_request { (one, other) } else { (other, one) };
                self.answer(&Incoming { request_trailers, response_trailers, ..Incoming::default() });
            } else if has_body {
                self.send(&side(streams(Vec::new(), true)));
            }
            next = self.next().await;
        }
    }

    /// Responds in pieces.
    fn respond_in_pieces(&mut self, how: &str) {
        if how != "stream-headless" {
            self.send(&streamed_head(if how == "stream-wrong" { "no" } else { "203" }));
        }
        self.send(&streamed_piece("one ", false));
        match how {
            "stream-broken" => self.end("13"),
            "stream-trailers" => {
                let trailers = Some(Fields { all: Vec::new() });
                self.send(&streamed(StreamedReply { trailers, ..StreamedReply::default() }));
            }
            _ => {
                self.send(&streamed_piece(&"two".repeat(50_000), false));
                self.send(&streamed_piece("", true));
            }
        }
    }

    async fn run(mut self) {
        let Some(first) = self.next().await else { return };
        let script = first.request_headers.as_ref().map(|head| head.get("x-script")).unwrap_or_default();
        match &*script {
            "hang" => std::future::pending().await,
            "garbage" => {
                self.send_bytes(b"\xff\xff\xff\xff");
                std::future::pending::<()>().await;
            }
            "twice" => {
                self.answer(&first);
                self.answer(&first);
                std::future::pending::<()>().await;
            }
            "die" => return self.output.send_reset(Reason::INTERNAL_ERROR),
            "fail" => return self.end("13"),
            "close" => {
                self.answer(&first);
                return self.end("0");
            }
            "refuse" => {
                self.send(&immediate(403));
                return self.end("0");
            }
            "huge" => {
                self.send_bytes(&vec![0; 4 << 20]);
                std::future::pending::<()>().await;
            }
            how if how.starts_with("stream") && !how.ends_with("later") => {
                self.respond_in_pieces(how);
                std::future::pending::<()>().await;
            }
            "duplex" => return self.duplex(first).await,
            "replace" => {
                let common = Common {
                    status: 1,
                    body: Some(BodyMutation { body: Some(b"replaced".to_vec()), streamed: None }),
                    ..Common::default()
                };
                let request_headers = Some(Answer { common: Some(common) });
                self.send(&Outgoing { request_headers, ..Outgoing::default() });
            }
            "mode" => {
                let mode = Some(Mode { response_headers: 2 });
                self.send(&Outgoing { request_headers: headers("x-new", "1"), mode, ..Outgoing::default() });
            }
            _ => self.answer(&first),
        }
        while let Some(message) = self.next().await {
            let is = |part: bool, name: &str| part && script == name;
            if is(message.request_body.is_some(), "refuse-body")
                || is(message.response_headers.is_some(), "refuse-response")
                || is(message.response_body.is_some(), "refuse-response-body")
            {
                self.send(&immediate(403));
            } else if is(message.response_headers.is_some(), "stream-later") {
                self.respond_in_pieces("stream");
            } else if is(message.request_body.is_some(), "die-later") {
                return self.output.send_reset(Reason::INTERNAL_ERROR);
            } else if is(message.response_body.is_some(), "hang-later") {
                std::future::pending::<()>().await;
            } else {
                self.answer(&message);
            }
        }
        self.end("0");
    }
}

/// The processor.
pub(super) struct Processor {
    pub(super) runtime: Runtime,
    pub(super) node: Node,
    pub(super) log: Log,
}

impl Processor {
    pub(super) fn start() -> Processor {
        let (runtime, log) = (Runtime::new().unwrap(), Log::default());
        let shared = Arc::clone(&log);
        let serve = move |request: Request<RecvStream>, mut respond: SendResponse<Bytes>| {
            let log = Arc::clone(&shared);
            async move {
                assert_eq!(request.uri().path(), "/envoy.service.ext_proc.v3.ExternalProcessor/Process");
                if request.headers().contains_key("x-deaf") {
                    // Neither reads nor answers.
                    let _held = (request, respond);
                    return std::future::pending().await;
                }
                let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
                let Ok(output) = respond.send_response(head, false) else { return };
                Stream { input: request.into_body(), bytes: BytesMut::new(), output, log }.run().await;
            }
        };
        let node = runtime.block_on(Node::start(h2::server::Builder::new(), serve));
        Processor { runtime, node, log }
    }

    /// Takes the messages so far.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}
