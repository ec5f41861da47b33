//! The messages of a response, which become JSON.

use std::sync::Arc;

use prost_reflect::DynamicMessage;
use sigma_http::{Chunk, Fault, FaultKind, HeaderId, Headers};
use sigma_plugin::{Context, Pieces, Transform};

use super::{Call, FRAME_HEAD_BYTES, Transcoder, size, status};
use sigma_plugin_kit::budget::Share;
use sigma_plugin_kit::log_throttle::LogThrottle;

const UNDECODED: &str = "failed to decode response data by protobuf";
const UNENCODED: &str = "failed to json_encode response body";

const WORKER_FULL: Fault =
    Fault::new(FaultKind::MemoryLimit, "the bodies that grpc-transcode buffers exceed their limit");
const TOO_LONG: Fault = Fault::new(FaultKind::ResponseBodyTooLarge, "a message exceeds max_resp_body_size");
const BROKEN: Fault = Fault::new(FaultKind::ResponseCoding, "cannot convert a message to JSON");
const TORN: Fault = Fault::new(FaultKind::ResponseCoding, "the last message is incomplete");

impl Transcoder {
    /// A message as JSON, which takes memory of `share`.
    fn shown_json(&self, call: &Call, message: &[u8], share: &mut Share) -> Result<Vec<u8>, &'static str> {
        let desc = call.output();
        if !size::fits(&desc, message, self.config.max_body_values) {
            return Err(UNDECODED);
        }
        let message = DynamicMessage::decode(desc, message).map_err(|_| UNDECODED)?;
        let limit = share.room();
        let text = match &call.field {
            Some(field) => self.form.field(&message, field, limit),
            None => self.form.message(&message, limit),
        };
        let text = text.map_err(|_| UNENCODED)?;
        share.grow(text.len());
        Ok(text)
    }
}

fn complain(reason: &'static str) {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    if let Some(left_out) = COMPLAINT.due() {
        tracing::error!(left_out, "grpc-transcode: {reason}");
    }
}

/// The one message of a response, held back until it is whole.
pub(super) struct Whole {
    transcoder: Arc<Transcoder>,
    call: Call,
    held: Vec<u8>,
    share: Share,
    is_over: bool,
}

impl Whole {
    pub(super) fn new(transcoder: Arc<Transcoder>, call: Call, share: Share) -> Whole {
        Whole { transcoder, call, held: Vec::new(), share, is_over: false }
    }
}

/// The message in a body, without its frame; None if there is no whole one, or it is compressed.
fn message(body: &[u8], is_bare: bool) -> Option<&[u8]> {
    if is_bare {
        return Some(body);
    }
    let (head, message) = body.split_at_checked(FRAME_HEAD_BYTES)?;
    (head[0] == 0 && message.len() == length(head)).then_some(message)
}

/// The length that the head of a frame says.
fn length(head: &[u8]) -> usize {
    head[1..FRAME_HEAD_BYTES].iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
}

impl Transform for Whole {
    fn data(&mut self, _: &mut Context, data: Chunk, out: &mut Pieces) {
        let limit = self.transcoder.config.max_resp_body_size;
        self.is_over |= data.len() > limit - self.held.len();
        if self.is_over || out.fault().is_some() {
            return;
        }
        if data.len() > self.share.room() {
            return out.fail(WORKER_FULL);
        }
        self.share.grow(data.len());
        self.held.extend_from_slice(&data);
    }

    /// The status of a call may be in the trailers; until then nothing has left.
    fn holds_head(&self) -> bool {
        true
    }

    fn end(&mut self, ctx: &mut Context, trailers: Option<&mut Headers>, out: &mut Pieces) {
        let has_message = !self.held.is_empty() || self.is_over || self.call.is_bare;
        if let Some(failure) = status::Failure::of(trailers.as_deref(), has_message) {
            return out.bytes(&self.transcoder.fail_late(failure, ctx));
        }
        let shown = match message(&self.held, self.call.is_bare).filter(|_| !self.is_over) {
            Some(message) => self.transcoder.shown_json(&self.call, message, &mut self.share),
            None => Err(UNDECODED),
        };
        match shown {
            Ok(text) => out.bytes(&text),
            Err(reason) => {
                complain(reason);
                ctx.response.status = 502;
                ctx.response.headers.set(HeaderId::ContentType, b"text/plain; charset=utf-8");
                out.bytes(reason.as_bytes());
            }
        }
    }
}

/// The messages of a stream, each a line as soon as it is whole.
pub(super) struct Lines {
    transcoder: Arc<Transcoder>,
    call: Call,
    held: Vec<u8>,
    share: Share,
}

impl Lines {
    pub(super) fn new(transcoder: Arc<Transcoder>, call: Call, share: Share) -> Lines {
        Lines { transcoder, call, held: Vec::new(), share }
    }

    /// Passes on the messages that are whole.
    fn pass(&mut self, out: &mut Pieces) -> Result<(), Fault> {
        let mut at = 0;
        while let Some(head) = self.held.get(at..at + FRAME_HEAD_BYTES) {
            let (is_compressed, length) = (head[0] != 0, length(head));
            if length > self.transcoder.config.max_resp_body_size {
                return Err(TOO_LONG);
            }
            let begin = at + FRAME_HEAD_BYTES;
            let Some(message) = self.held.get(begin..begin + length) else { break };
            let line = match is_compressed {
                true => Err(UNDECODED),
                false => self.transcoder.shown_json(&self.call, message, &mut self.share),
            };
            let line = line.map_err(|reason| {
                complain(reason);
                BROKEN
            })?;
            out.bytes(&line);
            out.bytes(b"\n");
            // It is as good as on its way.
            self.share.shrink(line.len());
            at = begin + length;
        }
        self.share.shrink(at);
        self.held.drain(..at);
        Ok(())
    }
}

impl Transform for Lines {
    fn data(&mut self, _: &mut Context, data: Chunk, out: &mut Pieces) {
        if out.fault().is_some() {
            return;
        }
        if data.len() > self.share.room() {
            return out.fail(WORKER_FULL);
        }
        self.share.grow(data.len());
        self.held.extend_from_slice(&data);
        if let Err(fault) = self.pass(out) {
            out.fail(fault);
        }
    }

    fn end(&mut self, _: &mut Context, trailers: Option<&mut Headers>, out: &mut Pieces) {
        if !self.held.is_empty() {
            return out.fail(TORN);
        }
        if let Some(line) = trailers.and_then(|trailers| status::line(trailers)) {
            out.bytes(&line);
        }
    }
}
