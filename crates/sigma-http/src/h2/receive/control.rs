//! Control frames.

use super::{Broken, PROTOCOL, SIZE, number, parent};
use crate::h2::connection::{Codec, LEAVING, Role};
use crate::h2::frame::{self, ErrorCode, FrameHeader, MAX_31_BITS, MAX_FRAME_BYTES, flag, kind, setting};
use crate::h2::state::GracefulEnd;
use crate::h2::stream::Fate;
use crate::multiplex::budget::Glitch;
use crate::multiplex::priority::Priority;

/// The size of a SETTINGS frame, with 16 entries, that counts as one control frame. There are eight known settings.
const SETTINGS_BYTES: usize = 16 * 6;

/// The number of streams in a row that a node may reset before it sends a head. One or two may be requests that it
/// cannot serve; after the third, the connection is retired.
const RESETS_IN_A_ROW: u32 = 3;

/// The longest priority; known ones have a dozen bytes.
const PRIORITY_BYTES: usize = 1024;

impl Codec {
    pub(super) fn on_priority(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Broken> {
        if header.stream == 0 {
            return Err((PROTOCOL, "PRIORITY on stream 0"));
        }
        self.spend(Glitch::Control)?;
        if self.streams.find(header.stream).is_none() {
            // Streams that have ended, and future ones, have no priority.
            return if payload.len() == 5 && parent(payload) != header.stream {
                Ok(())
            } else {
                Err((PROTOCOL, "an invalid PRIORITY"))
            };
        }
        if payload.len() != 5 {
            return self.stream_error(header.stream, SIZE, "PRIORITY is not five bytes long");
        }
        if parent(payload) == header.stream {
            return self.stream_error(header.stream, PROTOCOL, "a stream that depends on itself");
        }
        Ok(())
    }

    pub(super) fn on_priority_update(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Broken> {
        if self.config.role == Role::Client || header.stream != 0 {
            return Err((PROTOCOL, "a misplaced PRIORITY_UPDATE"));
        }
        let (stream, value) = payload.split_at_checked(4).ok_or((SIZE, "PRIORITY_UPDATE is truncated"))?;
        self.spend(Glitch::Control)?;
        let id = u32::from_be_bytes([stream[0], stream[1], stream[2], stream[3]]) & MAX_31_BITS;
        if id == 0 {
            return Err((PROTOCOL, "PRIORITY_UPDATE for stream 0"));
        }
        // Before its request, which is rare, it would have to be stored: RFC 9218 §7.1 allows to drop it.
        if let Some(slot) = self.streams.find(id)
            && value.len() <= PRIORITY_BYTES
        {
            self.prioritize(slot, Priority::parse(value));
        }
        Ok(())
    }

    pub(super) fn on_reset(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Broken> {
        let code = ErrorCode(number(payload).ok_or((SIZE, "RST_STREAM is not four bytes long"))?);
        if header.stream == 0 || self.is_idle(header.stream) {
            return Err((PROTOCOL, "RST_STREAM on an idle stream"));
        }
        let Some(slot) = self.streams.find(header.stream) else { return self.spend(Glitch::Control) };
        let fate = match (self.config.role, code) {
            // §8.7: the request was not processed.
            (Role::Client, ErrorCode::REFUSED_STREAM) => Fate::Unprocessed,
            _ => Fate::Reset(code),
        };
        if self.config.role == Role::Client {
            self.note_reset(slot, code);
        }
        self.end_early(slot, fate);
        self.spend(Glitch::Reset)
    }

    /// Handles a reset by the node. A node that resets each new stream, or sends ENHANCE_YOUR_CALM, gets no more
    /// streams on this connection: it may serve others on another one.
    fn note_reset(&mut self, slot: u32, code: ErrorCode) {
        let stream = self.streams.at(slot);
        if !stream.input.head_done && stream.input.heads.is_empty() {
            self.ids.resets_in_a_row += 1;
        }
        if code == ErrorCode::ENHANCE_YOUR_CALM || self.ids.resets_in_a_row >= RESETS_IN_A_ROW {
            self.peer.leaves = true;
        }
    }

    pub(super) fn on_settings(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Broken> {
        if header.stream != 0 {
            return Err((PROTOCOL, "SETTINGS on a stream"));
        }
        if header.has(flag::ACK) {
            if !payload.is_empty() {
                return Err((SIZE, "a SETTINGS acknowledgement with a payload"));
            }
            return self.settle();
        }
        if !payload.len().is_multiple_of(6) {
            return Err((SIZE, "SETTINGS are truncated"));
        }
        // Each entry may affect all streams.
        for _ in 0..payload.len().div_ceil(SETTINGS_BYTES).max(1) {
            self.spend(Glitch::Control)?;
        }
        if self.peer.first_settings {
            // Without the setting there is no limit.
            self.peer.first_settings = false;
            self.peer.settings.streams = u32::MAX;
        }
        for (id, value) in frame::settings_in(payload) {
            self.set(id, value)?;
        }
        frame::write(self.output.queue.control(), kind::SETTINGS, flag::ACK, 0, &[]);
        Ok(())
    }

    /// Handles the acknowledgement of this side's settings.
    fn settle(&mut self) -> Result<(), Broken> {
        if std::mem::replace(&mut self.peer.settled, true) {
            return self.spend(Glitch::Control);
        }
        let change = i64::from(self.config.windows.stream_bytes) - i64::from(frame::DEFAULT_WINDOW);
        for slot in self.streams.alive_slots() {
            self.streams.at(slot).input.window.left += change;
        }
        Ok(())
    }

    fn set(&mut self, id: u16, value: u32) -> Result<(), Broken> {
        match id {
            setting::HEADER_TABLE_SIZE => self.headers.encoder.set_peer_table_bytes(value),
            setting::ENABLE_PUSH if value > 1 || (value == 1 && self.config.role == Role::Client) => {
                return Err((PROTOCOL, "ENABLE_PUSH has an invalid value"));
            }
            setting::MAX_CONCURRENT_STREAMS => self.peer.settings.streams = value,
            setting::INITIAL_WINDOW_SIZE => {
                if value > MAX_31_BITS {
                    return Err((ErrorCode::FLOW_CONTROL_ERROR, "a window above the maximum"));
                }
                let change = i64::from(value) - i64::from(self.peer.settings.initial_window);
                self.peer.settings.initial_window = value;
                for slot in self.streams.alive_slots() {
                    let stream = self.streams.at(slot);
                    stream.output.window += change;
                    if stream.output.window > i64::from(MAX_31_BITS) {
                        return Err((ErrorCode::FLOW_CONTROL_ERROR, "a window above the maximum"));
                    }
                    self.enqueue_if_ready(slot, false);
                }
            }
            setting::MAX_FRAME_SIZE => {
                if !(frame::DEFAULT_FRAME_BYTES..=MAX_FRAME_BYTES).contains(&value) {
                    return Err((PROTOCOL, "MAX_FRAME_SIZE has an invalid value"));
                }
                self.peer.settings.frame_bytes = value;
            }
            setting::ENABLE_CONNECT_PROTOCOL => match (value, self.peer.settings.extended_connect) {
                (1, _) => self.peer.settings.extended_connect = true,
                (0, false) => {}
                _ => return Err((PROTOCOL, "ENABLE_CONNECT_PROTOCOL has an invalid value")),
            },
            setting::NO_RFC7540_PRIORITIES if value > 1 => {
                return Err((PROTOCOL, "NO_RFC7540_PRIORITIES has an invalid value"));
            }
            // Advice on the size of heads, and unknown settings.
            _ => {}
        }
        Ok(())
    }

    pub(super) fn on_ping(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Broken> {
        if header.stream != 0 {
            return Err((PROTOCOL, "PING on a stream"));
        }
        if payload.len() != 8 {
            return Err((SIZE, "PING is not eight bytes long"));
        }
        if header.has(flag::ACK) {
            if self.end.leaving == GracefulEnd::Announced && payload == LEAVING {
                self.end.leaving = GracefulEnd::Told;
                let last = self.ids.last_of_peer;
                frame::write_go_away(self.output.queue.control(), last, ErrorCode::NO_ERROR);
                return Ok(());
            }
            return self.spend(Glitch::Control);
        }
        self.spend(Glitch::Control)?;
        frame::write(self.output.queue.control(), kind::PING, flag::ACK, 0, &[payload]);
        Ok(())
    }

    pub(super) fn on_go_away(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Broken> {
        if header.stream != 0 {
            return Err((PROTOCOL, "GOAWAY on a stream"));
        }
        let last = payload.get(..4).and_then(number).filter(|_| payload.len() >= 8);
        let last = last.ok_or((SIZE, "GOAWAY is truncated"))? & MAX_31_BITS;
        self.spend(Glitch::Control)?;
        self.peer.leaves = true;
        if self.config.role == Role::Client {
            for slot in self.streams.alive_slots() {
                if self.streams.at(slot).id > last {
                    self.end_early(slot, Fate::Unprocessed);
                }
            }
        }
        Ok(())
    }

    pub(super) fn on_window_update(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Broken> {
        let bytes = number(payload).ok_or((SIZE, "WINDOW_UPDATE is not four bytes long"))? & MAX_31_BITS;
        let id = header.stream;
        self.spend(Glitch::Window)?;
        if id == 0 {
            self.output.queue.window += i64::from(bytes);
            return match bytes {
                0 => Err((PROTOCOL, "WINDOW_UPDATE with an increment of 0")),
                _ if self.output.queue.window > i64::from(MAX_31_BITS) => {
                    Err((ErrorCode::FLOW_CONTROL_ERROR, "a window above the maximum"))
                }
                _ => Ok(()),
            };
        }
        if self.is_idle(id) {
            return Err((PROTOCOL, "WINDOW_UPDATE on an idle stream"));
        }
        let Some(slot) = self.streams.find(id) else { return Ok(()) };
        if bytes == 0 {
            return self.stream_error(id, PROTOCOL, "WINDOW_UPDATE with an increment of 0");
        }
        let stream = self.streams.at(slot);
        stream.output.window += i64::from(bytes);
        if stream.output.window > i64::from(MAX_31_BITS) {
            return self.stream_error(id, ErrorCode::FLOW_CONTROL_ERROR, "a window above the maximum");
        }
        self.enqueue_if_ready(slot, false);
        Ok(())
    }
}
