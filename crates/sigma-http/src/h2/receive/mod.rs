//! Incoming frames, checked in the order of RFC 9113, §4 to §6.

mod bodies;
mod control;
mod heads;

use super::connection::{Codec, Role};
use super::frame::{self, ErrorCode, FrameHeader, HEADER_BYTES, MAX_31_BITS, PREFACE, flag, kind};
use super::reading::{Block, Reading};
use super::stream::Fate;
use crate::multiplex::budget::{Glitch, Sent};
use crate::{Chunk, Fault, FaultKind};

/// The reason why reading stops.
type Broken = (ErrorCode, &'static str);

const SIZE: ErrorCode = ErrorCode::FRAME_SIZE_ERROR;
const PROTOCOL: ErrorCode = ErrorCode::PROTOCOL_ERROR;

impl Codec {
    /// Processes bytes of the peer as far as frames are complete; the rest stays in `input`. `now_ms` comes from any
    /// monotonic clock.
    pub fn receive(&mut self, input: &mut Chunk, now_ms: u64) {
        self.now_ms = now_ms;
        if let Err((code, reason)) = self.receive_all(input) {
            self.fail(code, reason);
        }
        if matches!(self.reading, Reading::Over) {
            input.advance(input.len());
        }
    }

    fn receive_all(&mut self, input: &mut Chunk) -> Result<(), Broken> {
        loop {
            let goes_on = match self.reading {
                Reading::Preface => self.receive_preface(input)?,
                Reading::Data(data) => self.receive_data(data, input)?,
                Reading::FirstSettings | Reading::Frame { .. } | Reading::Block(_) => {
                    self.receive_frame(input)?
                }
                Reading::Over => false,
            };
            if !goes_on {
                return Ok(());
            }
        }
    }

    fn receive_preface(&mut self, input: &mut Chunk) -> Result<bool, Broken> {
        let n = input.len().min(PREFACE.len());
        if input[..n] != PREFACE[..n] {
            return Err((PROTOCOL, "the preface is not the HTTP/2 preface"));
        }
        if n < PREFACE.len() {
            return Ok(false);
        }
        input.advance(n);
        self.reading = Reading::FirstSettings;
        Ok(true)
    }

    /// Takes one whole frame, or the beginning of a DATA frame; returns false if it is incomplete.
    fn receive_frame(&mut self, input: &mut Chunk) -> Result<bool, Broken> {
        let Some(header) = FrameHeader::parse(input) else {
            self.pause(None);
            return Ok(false);
        };
        self.check_order(&header)?;
        if header.length > self.config.frame_bytes {
            return Err((SIZE, "a frame exceeds MAX_FRAME_SIZE"));
        }
        if header.kind == kind::DATA {
            input.advance(HEADER_BYTES);
            self.begin_data(&header)?;
            return Ok(true);
        }
        let length = HEADER_BYTES + header.length as usize;
        if input.len() < length {
            input.reserve_total(length);
            self.pause(Some(header.kind));
            return Ok(false);
        }
        let block = if let Reading::Block(block) = self.reading { Some(block) } else { None };
        self.reading = Reading::Frame { in_head: false };
        self.take_frame_of(&header, block, &input[HEADER_BYTES..length])?;
        input.advance(length);
        Ok(true)
    }

    /// Waits for the rest of a frame.
    fn pause(&mut self, kind: Option<u8>) {
        if let Reading::Frame { in_head } = &mut self.reading {
            *in_head = matches!(kind, Some(kind::HEADERS | kind::CONTINUATION));
        }
    }

    /// Returns an error if such a frame is not allowed here.
    fn check_order(&self, header: &FrameHeader) -> Result<(), Broken> {
        match (&self.reading, header.kind) {
            (Reading::FirstSettings, kind::SETTINGS) if !header.has(flag::ACK) => Ok(()),
            (Reading::FirstSettings, _) => Err((PROTOCOL, "the first frame is not SETTINGS")),
            (Reading::Block(block), kind::CONTINUATION) if block.stream == header.stream => Ok(()),
            (Reading::Block(_), _) => Err((PROTOCOL, "a header block is interrupted by another frame")),
            (_, kind::CONTINUATION) => Err((PROTOCOL, "CONTINUATION without HEADERS")),
            _ => Ok(()),
        }
    }

    fn take_frame_of(
        &mut self,
        header: &FrameHeader,
        block: Option<Block>,
        payload: &[u8],
    ) -> Result<(), Broken> {
        match header.kind {
            kind::HEADERS => self.on_headers(header, payload),
            kind::CONTINUATION => match block {
                Some(block) => self.on_continuation(header, block, payload),
                None => Ok(()),
            },
            kind::PRIORITY => self.on_priority(header, payload),
            kind::RST_STREAM => self.on_reset(header, payload),
            kind::SETTINGS => self.on_settings(header, payload),
            kind::PUSH_PROMISE => Err((PROTOCOL, "an unwanted PUSH_PROMISE")),
            kind::PING => self.on_ping(header, payload),
            kind::GOAWAY => self.on_go_away(header, payload),
            kind::WINDOW_UPDATE => self.on_window_update(header, payload),
            kind::PRIORITY_UPDATE => self.on_priority_update(header, payload),
            // §5.5: unknown types are ignored.
            _ => self.spend(Glitch::Control),
        }
    }

    /// Pays for a glitch of the peer.
    pub(super) fn spend(&mut self, glitch: Glitch) -> Result<(), Broken> {
        let sent = Sent { bytes: self.output.queue.written(), frames: self.output.frames_sent };
        if self.budget.pays(glitch, self.now_ms, sent) {
            return Ok(());
        }
        Err((ErrorCode::ENHANCE_YOUR_CALM, "the peer floods the connection"))
    }

    /// Resets a stream on which the peer broke a rule.
    pub(super) fn stream_error(
        &mut self,
        id: u32,
        code: ErrorCode,
        reason: &'static str,
    ) -> Result<(), Broken> {
        match self.streams.find(id) {
            Some(slot) => self.reset_slot(slot, code, Fate::Broken(self.broken(reason))),
            None => self.send_reset(id, code),
        }
        self.spend(Glitch::StreamError)
    }

    fn broken(&self, reason: &'static str) -> Fault {
        match self.config.role {
            Role::Client => Fault::new(FaultKind::BadResponse, reason),
            Role::Server => Fault::new(FaultKind::BadRequest, reason),
        }
    }

    /// Returns true if a stream was never begun.
    pub(super) fn is_idle(&self, id: u32) -> bool {
        match (self.config.role, id % 2) {
            (Role::Server, 1) => id > self.ids.last_of_peer,
            (Role::Client, 1) => id >= self.ids.next,
            // No other frame is expected here.
            _ => true,
        }
    }

    /// Returns the initial window of a stream.
    pub(in crate::h2) fn stream_recv_window(&self) -> u32 {
        // Until the peer acknowledges the settings, the default applies.
        if self.peer.settled { self.config.windows.stream_bytes } else { frame::DEFAULT_WINDOW }
    }
}

/// Returns the stream that a priority of RFC 7540 names.
pub(super) fn parent(priority: &[u8]) -> u32 {
    priority.get(..4).and_then(number).unwrap_or_default() & MAX_31_BITS
}

pub(super) fn number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_be_bytes)
}
