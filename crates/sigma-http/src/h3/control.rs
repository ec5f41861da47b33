//! The peer's control stream (RFC 9114 §6.2.1).

use super::connection::{Codec, Role};
use super::error::{Broken, ErrorCode};
use super::frame::{FrameHeader, kind};
use super::peer::EARLY_PRIORITIES;
use super::settings::PeerSettings;
use super::varint;
use crate::multiplex::budget::Glitch;
use crate::multiplex::priority::Priority;

/// The largest payload of a SETTINGS or PRIORITY_UPDATE frame.
const PAYLOAD_MAX: u64 = 4096;

const fn unexpected(reason: &'static str) -> Broken {
    Broken::connection(ErrorCode::FRAME_UNEXPECTED, reason)
}

const fn wrong_id(reason: &'static str) -> Broken {
    Broken::connection(ErrorCode::ID_ERROR, reason)
}

const fn malformed(reason: &'static str) -> Broken {
    Broken::connection(ErrorCode::FRAME_ERROR, reason)
}

impl Codec {
    /// Takes bytes of the peer's control stream.
    pub(super) fn receive_control(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let mut piece = std::mem::take(&mut self.control.piece);
        piece.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            let skipped = self.control.skip.min((piece.len() - at) as u64);
            self.control.skip -= skipped;
            at += skipped as usize;
            let Some((header, start)) = FrameHeader::take(&piece[at..]) else { break };
            let is_whole = self.check_control(header)?;
            if !is_whole {
                self.control.skip = header.length;
                at += start;
                self.spend(Glitch::Control)?;
                continue;
            }
            let start = at + start;
            let Some(payload) = piece.get(start..start + header.length as usize) else { break };
            self.take_control(header.kind, payload)?;
            at = start + header.length as usize;
        }
        piece.drain(..at);
        if piece.is_empty() {
            piece = Vec::new();
        }
        self.control.piece = piece;
        Ok(())
    }

    /// Checks the header of a frame. Returns false if its payload is ignored.
    fn check_control(&mut self, header: FrameHeader) -> Result<bool, Broken> {
        if !self.control.greeted && header.kind != kind::SETTINGS {
            return Err(Broken::connection(ErrorCode::MISSING_SETTINGS, "the first frame is not SETTINGS"));
        }
        let is_server = self.config.role == Role::Server;
        match header.kind {
            kind::SETTINGS if self.control.greeted => Err(unexpected("SETTINGS twice")),
            kind::DATA | kind::HEADERS | kind::PUSH_PROMISE => {
                Err(unexpected("a message frame on the control stream"))
            }
            kind::MAX_PUSH_ID if !is_server => Err(unexpected("MAX_PUSH_ID from a server")),
            kind::PRIORITY_UPDATE | kind::PRIORITY_UPDATE_PUSH if !is_server => {
                Err(unexpected("PRIORITY_UPDATE from a server"))
            }
            kind if kind::is_of_http2(kind) => Err(unexpected("a frame type of HTTP/2")),
            kind::CANCEL_PUSH | kind::GOAWAY | kind::MAX_PUSH_ID
                if !(1..=varint::BYTES_MAX as u64).contains(&header.length) =>
            {
                Err(malformed("a control frame has the wrong size"))
            }
            kind if !kind::is_known(kind) => Ok(false),
            _ if header.length > PAYLOAD_MAX => {
                Err(Broken::connection(ErrorCode::EXCESSIVE_LOAD, "a control frame is too large"))
            }
            _ => Ok(true),
        }
    }

    fn take_control(&mut self, kind: u64, payload: &[u8]) -> Result<(), Broken> {
        if kind == kind::SETTINGS {
            self.control.greeted = true;
            self.peer = PeerSettings::parse(payload)?;
            self.fields.encoder.set_table(self.peer.table_bytes);
            self.outputs.encoder.append(&mut self.fields.encoder.instructions);
            return Ok(());
        }
        self.spend(Glitch::Control)?;
        if matches!(kind, kind::PRIORITY_UPDATE | kind::PRIORITY_UPDATE_PUSH) {
            return self.on_priority_update(kind, payload);
        }
        let id = varint::only(payload).ok_or(malformed("a control frame has the wrong size"))?;
        match kind {
            kind::GOAWAY => self.on_goaway(id),
            kind::MAX_PUSH_ID => {
                if self.control.max_push.is_some_and(|before| id < before) {
                    return Err(wrong_id("MAX_PUSH_ID was lowered"));
                }
                self.control.max_push = Some(id);
                Ok(())
            }
            // No push was ever promised or allowed.
            _ => Err(wrong_id("CANCEL_PUSH for an unknown push")),
        }
    }

    fn on_goaway(&mut self, id: u64) -> Result<(), Broken> {
        if self.config.role == Role::Client && !id.is_multiple_of(4) {
            return Err(wrong_id("GOAWAY with the identifier of another kind of stream"));
        }
        if self.control.goaway.is_some_and(|before| id > before) {
            return Err(wrong_id("GOAWAY with a higher identifier than before"));
        }
        self.control.goaway = Some(id);
        Ok(())
    }

    /// RFC 9218 §7.2
    fn on_priority_update(&mut self, kind: u64, payload: &[u8]) -> Result<(), Broken> {
        let (id, length) = varint::take(payload).ok_or(malformed("PRIORITY_UPDATE without an identifier"))?;
        if kind == kind::PRIORITY_UPDATE_PUSH {
            return Err(wrong_id("PRIORITY_UPDATE for an unknown push"));
        }
        if !id.is_multiple_of(4) {
            return Err(wrong_id("PRIORITY_UPDATE for a stream that is not a request"));
        }
        let priority = Priority::parse(&payload[length..]);
        if id < self.next_request {
            let changed = &mut self.priorities.changed;
            changed.retain(|(other, _)| *other != id);
            // An exchange that has ended leaves its priority behind; others are taken at once.
            if changed.len() < EARLY_PRIORITIES {
                changed.push((id, priority));
            }
            return Ok(());
        }
        if (id - self.next_request) / 4 > u64::from(self.config.streams) {
            return Err(wrong_id("PRIORITY_UPDATE for a stream above the limit"));
        }
        let early = &mut self.priorities.early;
        early.retain(|(other, _)| *other != id);
        if early.len() == EARLY_PRIORITIES {
            early.remove(0);
        }
        early.push((id, priority));
        Ok(())
    }

    /// Returns the first request that the peer does not process, once it leaves (RFC 9114 §5.2).
    pub fn peer_goaway(&self) -> Option<u64> {
        self.control.goaway
    }

    /// Returns true if the SETTINGS of the peer have arrived.
    pub fn is_greeted(&self) -> bool {
        self.control.greeted
    }
}
