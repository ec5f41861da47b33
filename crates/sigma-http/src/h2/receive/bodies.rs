//! DATA frames.

use super::{Broken, PROTOCOL, SIZE};
use crate::Chunk;
use crate::h2::connection::{Codec, Role};
use crate::h2::frame::{ErrorCode, FrameHeader, flag};
use crate::h2::reading::{Data, Reading};
use crate::h2::stream::StreamKey;
use crate::multiplex::budget::Glitch;

impl Codec {
    pub(super) fn begin_data(&mut self, header: &FrameHeader) -> Result<(), Broken> {
        let FrameHeader { length, stream: id, .. } = *header;
        if id == 0 {
            return Err((PROTOCOL, "DATA on stream 0"));
        }
        if self.is_idle(id) {
            return Err((PROTOCOL, "DATA on an idle stream"));
        }
        if header.has(flag::PADDED) && length == 0 {
            return Err((SIZE, "padding without a length"));
        }
        if i64::from(length) > self.window.left {
            return Err((ErrorCode::FLOW_CONTROL_ERROR, "more bytes than the connection's window"));
        }
        self.window.left -= i64::from(length);
        let key = self.data_for(id, length)?;
        self.reading = Reading::Data(Data {
            key,
            left: length,
            padding: if header.has(flag::PADDED) { None } else { Some(0) },
            ends: header.has(flag::END_STREAM),
            useful: false,
        });
        Ok(())
    }

    /// Returns the stream of a DATA frame.
    fn data_for(&mut self, id: u32, length: u32) -> Result<Option<StreamKey>, Broken> {
        let Some(slot) = self.streams.find(id) else {
            // Frames in flight when this side reset the stream are ignored.
            if !self.ids.recent_resets.contains(&id) {
                self.stream_error(id, ErrorCode::STREAM_CLOSED, "DATA for a stream that has ended")?;
            }
            return Ok(None);
        };
        let stream = self.streams.at(slot);
        if stream.input.remote_ended {
            self.stream_error(id, ErrorCode::STREAM_CLOSED, "DATA after the end of a message")?;
            return Ok(None);
        }
        if self.config.role == Role::Client && !stream.input.head_done {
            self.stream_error(id, PROTOCOL, "DATA before the header block")?;
            return Ok(None);
        }
        if i64::from(length) > stream.input.window.left {
            self.stream_error(id, ErrorCode::FLOW_CONTROL_ERROR, "more bytes than the stream's window")?;
            return Ok(None);
        }
        stream.input.window.left -= i64::from(length);
        Ok(Some(StreamKey { slot, id }))
    }

    /// Takes the available part of a DATA frame; returns false if more is missing.
    pub(super) fn receive_data(&mut self, mut data: Data, input: &mut Chunk) -> Result<bool, Broken> {
        if data.padding.is_none() {
            let Some(padding) = input.first().copied() else { return Ok(false) };
            input.advance(1);
            data.left -= 1;
            if u32::from(padding) > data.left {
                return Err((PROTOCOL, "more padding than payload"));
            }
            data.padding = Some(padding.into());
            self.spare(&data, 1);
        }
        let padding = data.padding.unwrap_or_default();
        let bytes = (data.left - padding).min(input.len() as u32);
        if bytes > 0 {
            self.deliver(&data, &input[..bytes as usize])?;
            input.advance(bytes as usize);
            data.left -= bytes;
            data.useful = true;
        }
        if data.left > 0 && data.left <= padding {
            let skipped = data.left.min(input.len() as u32);
            input.advance(skipped as usize);
            data.left -= skipped;
            data.padding = Some(data.left);
            self.spare(&data, skipped);
        }
        if data.left > 0 {
            self.reading = Reading::Data(data);
            return Ok(false);
        }
        self.reading = Reading::Frame { in_head: false };
        match data.key.filter(|key| self.streams.is_alive(*key)) {
            Some(key) if data.ends => self.end_input(key)?,
            // For a stream that was reset, the end is as useless as any other empty frame.
            _ if !data.useful => self.spend(Glitch::Empty)?,
            _ => {}
        }
        Ok(true)
    }

    /// Gives back the window of ignored bytes.
    fn spare(&mut self, data: &Data, bytes: u32) {
        if let Some(key) = data.key.filter(|key| self.streams.is_alive(*key)) {
            self.credit_stream(key.slot, bytes);
        }
        self.credit(bytes);
    }

    fn deliver(&mut self, data: &Data, bytes: &[u8]) -> Result<(), Broken> {
        let length = bytes.len() as u32;
        let Some(key) = data.key.filter(|key| self.streams.is_alive(*key)) else {
            self.credit(length);
            return Ok(());
        };
        let stream = self.streams.at(key.slot);
        if let Some(expected) = &mut stream.input.expected {
            match expected.checked_sub(length.into()) {
                Some(left) => *expected = left,
                None => {
                    self.credit(length);
                    return self.stream_error(key.id, PROTOCOL, "more bytes than Content-Length declares");
                }
            }
        }
        // Small pieces share a buffer, so that a body in many frames needs no more memory than its window.
        if !stream.input.data.back_mut().is_some_and(|last| last.try_append(bytes)) {
            let chunk = Chunk::copy_of(bytes);
            stream.account.grow(chunk.memory());
            stream.input.data_held += chunk.memory();
            stream.input.data.push_back(chunk);
        }
        stream.input.received += u64::from(length);
        stream.account.moved(stream.moved());
        self.events.woken.push(key.slot);
        Ok(())
    }

    /// Handles the end of the peer's message.
    pub(super) fn end_input(&mut self, key: StreamKey) -> Result<(), Broken> {
        let stream = self.streams.at(key.slot);
        if stream.input.expected.is_some_and(|left| left > 0) {
            return self.stream_error(key.id, PROTOCOL, "fewer bytes than Content-Length declares");
        }
        stream.input.remote_ended = true;
        self.events.woken.push(key.slot);
        self.end_if_both(key.slot);
        Ok(())
    }
}
