//! The result of the `h2` crate for a conversation.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Builder, Connection, SendResponse};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::conversation::{Conversation, Step};
use super::{End, Message, Outcome, in_order, read_output, text};

/// Both ends of a connection, in memory.
#[derive(Clone, Default)]
struct Wire {
    input: Rc<RefCell<VecDeque<u8>>>,
    output: Rc<RefCell<Vec<u8>>>,
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut input = self.input.borrow_mut();
        if input.is_empty() {
            return Poll::Pending;
        }
        let bytes = input.len().min(buffer.remaining());
        buffer.put_slice(&input.drain(..bytes).collect::<Vec<u8>>());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.output.borrow_mut().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

struct Stream {
    body: RecvStream,
    respond: SendResponse<Bytes>,
    ended: bool,
}

type Handshake = Pin<Box<dyn Future<Output = Result<Connection<Wire, Bytes>, h2::Error>>>>;

pub(super) struct Side {
    wire: Wire,
    handshake: Handshake,
    connection: Option<Connection<Wire, Bytes>>,
    streams: BTreeMap<u32, Stream>,
    outcome: Outcome,
    reads_at_once: bool,
}

impl Side {
    pub(super) fn new(conversation: &Conversation) -> Side {
        let wire = Wire::default();
        let mut builder = Builder::new();
        builder
            .initial_window_size(conversation.stream_window)
            .initial_connection_window_size(65_535)
            .max_frame_size(16_384)
            .max_concurrent_streams(conversation.streams)
            .max_header_list_size(16_384)
            .enable_connect_protocol()
            .max_pending_accept_reset_streams(1_000)
            .max_local_error_reset_streams(Some(100_000))
            .max_concurrent_reset_streams(1_000);
        Side {
            handshake: Box::pin(builder.handshake(wire.clone())),
            wire,
            connection: None,
            streams: BTreeMap::new(),
            outcome: Outcome::default(),
            reads_at_once: conversation.reads_at_once,
        }
    }

    pub(super) fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    pub(super) fn take(&mut self, step: &Step) {
        match step {
            Step::Send(bytes) => self.wire.input.borrow_mut().extend(bytes),
            Step::Answer(id) => self.answer(*id),
        }
        if self.connection.is_none() {
            match self.handshake.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(connection)) => self.connection = Some(connection),
                Poll::Ready(Err(error)) => panic!("the preface is right: {error}"),
                Poll::Pending => return,
            }
        }
        self.run();
        if self.reads_at_once {
            self.read_all();
            // Reading opens windows.
            self.run();
        }
        read_output(&mut self.wire.output.borrow_mut(), &mut self.outcome);
    }

    /// Runs until no task makes progress.
    fn run(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(accepted)) = connection.poll_accept(&mut cx) {
            let Ok((request, respond)) = accepted else { return };
            let id = respond.stream_id().as_u32();
            let (parts, body) = request.into_parts();
            self.streams.insert(id, Stream { body, respond, ended: false });
            let fields = fields_of(&parts);
            let message = Message { fields, body: Vec::new(), trailers: Vec::new(), end: End::Open };
            self.outcome.requests.insert(id, message);
        }
    }

    fn answer(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            // The stream may have ended.
            let _ = stream.respond.send_response(http::Response::new(()), true);
        }
    }

    /// Reads all received bodies.
    pub(super) fn read_all(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        for (id, stream) in &mut self.streams {
            let Some(message) = self.outcome.requests.get_mut(id) else { continue };
            while !stream.ended {
                let Poll::Ready(read) = stream.body.poll_data(&mut cx) else { break };
                match read {
                    Some(Ok(data)) => {
                        message.body.extend_from_slice(&data);
                        // Fails if the stream has ended.
                        let _ = stream.body.flow_control().release_capacity(data.len());
                        continue;
                    }
                    Some(Err(error)) => message.end = end_of(&error),
                    None => match stream.body.poll_trailers(&mut cx) {
                        Poll::Ready(Ok(trailers)) => {
                            message.trailers = pairs(&trailers.unwrap_or_default());
                            message.end = End::Complete;
                        }
                        Poll::Ready(Err(error)) => message.end = end_of(&error),
                        Poll::Pending => break,
                    },
                }
                stream.ended = true;
            }
        }
    }
}

fn end_of(error: &h2::Error) -> End {
    match error.reason() {
        Some(reason) if error.is_reset() && error.is_remote() => End::Reset(reason.into()),
        _ => End::Broken,
    }
}

fn fields_of(parts: &http::request::Parts) -> super::Fields {
    // In our codec, an extended CONNECT is the upgrade of HTTP/1.
    let protocol = parts.extensions.get::<h2::ext::Protocol>();
    let method = if protocol.is_some() { "GET" } else { parts.method.as_str() };
    let mut fields = vec![(":method".to_owned(), method.to_owned())];
    let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
    fields.push((":path".to_owned(), text(path.as_bytes())));
    // The host comes from :authority, if there is one.
    if let Some(authority) = parts.uri.authority() {
        fields.push(("host".to_owned(), authority.to_string()));
    }
    let has_authority = parts.uri.authority().is_some();
    fields.extend(pairs(&parts.headers).into_iter().filter(|(name, _)| name != "host" || !has_authority));
    if let Some(protocol) = protocol {
        fields.push(("connection".to_owned(), "upgrade".to_owned()));
        fields.push(("upgrade".to_owned(), protocol.as_str().to_owned()));
    }
    in_order(fields.into_iter())
}

fn pairs(headers: &http::HeaderMap) -> super::Fields {
    in_order(headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value.as_bytes()))))
}
