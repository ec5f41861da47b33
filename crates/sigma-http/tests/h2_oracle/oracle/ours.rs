//! The result of this codec for a conversation.

use std::collections::BTreeMap;

use sigma_http::h1::{HeadLimits, Tolerance};
use sigma_http::h2::{Arrival, Codec, Config, Fate, FloodLimits, FlowWindows, Role, StreamKey};
use sigma_http::{BodyLength, Chunk, Frame, Headers, RequestHead};

use super::conversation::{Conversation, Step};
use super::{End, Message, Outcome, in_order, read_output, text};

const HEAD: HeadLimits =
    HeadLimits { line_bytes: 8_192, head_bytes: 16_384, fields: 100, tolerance: Tolerance::NONE };

pub(super) struct Side {
    codec: Codec,
    keys: BTreeMap<u32, StreamKey>,
    input: Vec<u8>,
    outcome: Outcome,
    reads_at_once: bool,
    piece: usize,
}

impl Side {
    pub(super) fn new(conversation: &Conversation) -> Side {
        let codec = Codec::new(Config {
            role: Role::Server,
            streams: conversation.streams,
            pending_resets: 1_000,
            windows: FlowWindows { stream_bytes: conversation.stream_window, connection_bytes: 65_535 },
            frame_bytes: 16_384,
            header_list_bytes: 16_384,
            head: HEAD,
            flood: FloodLimits::NONE,
        });
        Side {
            codec,
            keys: BTreeMap::new(),
            input: Vec::new(),
            outcome: Outcome::default(),
            reads_at_once: conversation.reads_at_once,
            piece: conversation.piece,
        }
    }

    pub(super) fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    pub(super) fn take(&mut self, step: &Step) {
        match step {
            Step::Send(bytes) => {
                for piece in bytes.chunks(self.piece) {
                    self.input.extend_from_slice(piece);
                    let mut chunk = Chunk::copy_of(&self.input);
                    self.codec.receive(&mut chunk, 1_000);
                    self.input = chunk.to_vec();
                }
            }
            Step::Answer(stream) => {
                if let Some(key) = self.keys.get(stream) {
                    self.codec.send_answer(*key, 200, &Headers::default(), b"", BodyLength::None, true);
                }
            }
        }
        while let Some(incoming) = self.codec.next_incoming() {
            // An invalid head gets a response, and then its stream is reset.
            if incoming.length.is_err() {
                self.codec.release(incoming.key);
                continue;
            }
            let id = incoming.key.id();
            self.keys.insert(id, incoming.key);
            let (body, trailers) = (Vec::new(), Vec::new());
            let message = Message { fields: fields_of(&incoming.head), body, trailers, end: End::Open };
            self.outcome.requests.insert(id, message);
        }
        if self.reads_at_once {
            self.read_all();
        }
        self.drain();
    }

    /// Reads all received bodies.
    pub(super) fn read_all(&mut self) {
        for (id, key) in &self.keys {
            let Some(message) = self.outcome.requests.get_mut(id) else { continue };
            while message.end == End::Open {
                match self.codec.take_frame(*key) {
                    Arrival::Frame(Frame::Data(data)) => message.body.extend_from_slice(&data),
                    Arrival::Frame(Frame::Trailers(trailers)) => {
                        message.trailers = pairs(&trailers);
                        message.end = End::Complete;
                    }
                    Arrival::Frame(Frame::End) => message.end = End::Complete,
                    Arrival::Cut(Fate::Reset(code)) => message.end = End::Reset(code.0),
                    Arrival::Cut(_) => message.end = End::Broken,
                    Arrival::Nothing => break,
                }
            }
        }
    }

    fn drain(&mut self) {
        let mut output = Vec::new();
        loop {
            let bytes = self.codec.output();
            if bytes.is_empty() {
                break;
            }
            output.extend_from_slice(bytes);
            let n = bytes.len();
            self.codec.advance(n);
        }
        read_output(&mut output, &mut self.outcome);
    }
}

fn fields_of(head: &RequestHead) -> super::Fields {
    let mut fields = vec![(":method".to_owned(), text(head.method_token()))];
    fields.push((":path".to_owned(), text(head.path_and_query())));
    fields.extend(pairs(&head.headers));
    in_order(fields.into_iter())
}

fn pairs(headers: &Headers) -> super::Fields {
    in_order(headers.iter().map(|(name, value)| (text(name).to_ascii_lowercase(), text(value))))
}
