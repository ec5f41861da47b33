//! HEADERS and CONTINUATION frames.

use sigma_buffer::held;

use super::{Broken, PROTOCOL, SIZE, parent};
use crate::h1::ParseError;
use crate::h2::connection::{Codec, Config, Incoming, Role};
use crate::h2::frame::{self, ErrorCode, FrameHeader, flag};
use crate::h2::hpack::{Decoder, HpackError};
use crate::h2::reading::{Block, Reading};
use crate::h2::state::GracefulEnd;
use crate::h2::stream::{Fate, StreamKey};
use crate::head::INTERIM_MAX;
use crate::multiplex::budget::Glitch;
use crate::multiplex::fields::{FieldList, RequestFields, ResponseFields, Take, TrailerFields};
use crate::multiplex::heads;
use crate::multiplex::priority::Priority;
use crate::{BodyLength, Fault, Method, ResponseHead, Version};

/// The factor of the list's limit up to which a piece of a head is kept; Huffman coding and the tables make it
/// smaller.
const BLOCK_FACTOR: usize = 4;

/// A block that cannot be decoded makes the two tables differ.
fn undecodable(_: HpackError) -> Broken {
    (ErrorCode::COMPRESSION_ERROR, "the header block cannot be decoded")
}

/// Decodes a block into `to`; a fault of the fields ends the stream, a fault of the block ends the connection.
fn decode<T: Take>(
    decoder: &mut Decoder,
    bytes: &[u8],
    list_bytes: u32,
    to: T,
) -> Result<Result<T, ParseError>, Broken> {
    let mut list = FieldList::new(to, list_bytes);
    decoder.decode(bytes, |field| list.add(&field)).map_err(undecodable)?;
    if list.is_bomb() {
        return Err((ErrorCode::ENHANCE_YOUR_CALM, "the header fields far exceed their limit"));
    }
    Ok(list.end())
}

impl Codec {
    pub(super) fn on_headers(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Broken> {
        let id = header.stream;
        if id.is_multiple_of(2) {
            return Err((PROTOCOL, "HEADERS on a stream that a client cannot open"));
        }
        let mut fragment = payload;
        if header.has(flag::PADDED) {
            let (padding, rest) = fragment.split_first().ok_or((SIZE, "padding without a length"))?;
            let left = rest.len().checked_sub(usize::from(*padding));
            fragment = &rest[..left.ok_or((PROTOCOL, "more padding than payload"))?];
        }
        let mut own_parent = false;
        if header.has(flag::PRIORITY) {
            let (priority, rest) = fragment.split_at_checked(5).ok_or((SIZE, "a priority is truncated"))?;
            own_parent = parent(priority) == id;
            fragment = rest;
        }
        let block = Block { stream: id, ends: header.has(flag::END_STREAM), own_parent };
        if header.has(flag::END_HEADERS) {
            return self.on_block(block, fragment);
        }
        if fragment.is_empty() {
            self.spend(Glitch::Empty)?;
        }
        self.headers.block.extend_from_slice(fragment);
        self.reading = Reading::Block(block);
        Ok(())
    }

    pub(super) fn on_continuation(
        &mut self,
        header: &FrameHeader,
        block: Block,
        payload: &[u8],
    ) -> Result<(), Broken> {
        self.spend(if payload.is_empty() { Glitch::Empty } else { Glitch::Continuation })?;
        let most = (self.config.header_list_bytes as usize).saturating_mul(BLOCK_FACTOR);
        if self.headers.block.len() + payload.len() > most.max(frame::DEFAULT_FRAME_BYTES as usize) {
            return Err((ErrorCode::ENHANCE_YOUR_CALM, "a header block without end"));
        }
        self.headers.block.extend_from_slice(payload);
        if !header.has(flag::END_HEADERS) {
            self.reading = Reading::Block(block);
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.headers.block);
        self.on_block(block, &bytes)
    }

    /// Handles a whole head, or whole trailers. It is always decoded: the table belongs to the connection.
    fn on_block(&mut self, block: Block, bytes: &[u8]) -> Result<(), Broken> {
        let id = block.stream;
        let found = self.streams.find(id);
        if let Some(slot) = found {
            if self.streams.at(slot).input.remote_ended {
                return Err((ErrorCode::STREAM_CLOSED, "HEADERS after the end of a message"));
            }
            return match self.config.role {
                Role::Client if !self.streams.at(slot).input.head_done => {
                    self.on_response(slot, block, bytes)
                }
                _ => self.on_trailers(slot, block, bytes),
            };
        }
        if self.is_idle(id) {
            return match self.config.role {
                Role::Server => self.on_request(block, bytes),
                Role::Client => Err((PROTOCOL, "HEADERS on an idle stream")),
            };
        }
        self.skip(bytes)?;
        if self.config.role == Role::Client || self.ids.recent_resets.contains(&id) {
            return self.spend(Glitch::Head);
        }
        Err((ErrorCode::STREAM_CLOSED, "HEADERS on a closed stream"))
    }

    /// Decodes a block and ignores its fields.
    fn skip(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        self.headers.decoder.decode(bytes, |_| {}).map_err(undecodable)?;
        Ok(())
    }

    fn on_request(&mut self, block: Block, bytes: &[u8]) -> Result<(), Broken> {
        let id = block.stream;
        self.ids.last_of_peer = id;
        if self.end.leaving == GracefulEnd::Told {
            // The client sent it before it knew.
            self.skip(bytes)?;
            return self.spend(Glitch::Refused);
        }
        if block.own_parent {
            self.skip(bytes)?;
            return self.stream_error(id, PROTOCOL, "a stream that depends on itself");
        }
        if self.streams.alive() >= self.config.streams as usize {
            self.skip(bytes)?;
            self.send_reset(id, ErrorCode::REFUSED_STREAM);
            return self.spend(Glitch::Refused);
        }
        let most = (self.config.streams as usize).saturating_add(self.config.pending_resets);
        if self.streams.held() >= most {
            return Err((ErrorCode::ENHANCE_YOUR_CALM, "too many streams were reset"));
        }
        if !self.account.may_begin() {
            // It is not stored; the client may repeat the request.
            held::refused();
            self.skip(bytes)?;
            self.send_reset(id, ErrorCode::REFUSED_STREAM);
            return Ok(());
        }
        let mut head = heads::take_request();
        let Config { head: limits, header_list_bytes, .. } = &self.config;
        let fields = RequestFields::new(Version::Http2, &mut head, &mut self.headers.pseudo, limits);
        let fields = decode(&mut self.headers.decoder, bytes, *header_list_bytes, fields)?;
        let priority = fields.as_ref().map_or_else(|_| Priority::default(), |fields| fields.priority);
        let assembled = fields.and_then(RequestFields::end);
        let length = assembled.and_then(|()| request_length(&head, block.ends));
        self.ids.begun += 1;
        let key = self.streams.begin(id, self.stream_recv_window(), self.peer.settings.initial_window);
        self.open_account(key, head.headers.memory());
        let stream = self.streams.get(key);
        stream.output.priority = priority;
        stream.input.remote_ended = block.ends;
        stream.input.malformed = matches!(length, Err(ParseError::Invalid(_)));
        stream.input.expected = match length {
            Ok(BodyLength::Known(n)) => Some(n),
            _ => None,
        };
        let refused = length.is_err();
        let length = length.map_err(ParseError::of_request);
        self.events.incoming.push_back(Incoming { key, head, length, number: self.ids.begun });
        if refused { self.spend(Glitch::Head) } else { Ok(()) }
    }

    fn on_response(&mut self, slot: u32, block: Block, bytes: &[u8]) -> Result<(), Broken> {
        let mut head = heads::take_response();
        let Config { head: limits, header_list_bytes, .. } = &self.config;
        let fields = ResponseFields::new(Version::Http2, &mut head, limits);
        let fields = decode(&mut self.headers.decoder, bytes, *header_list_bytes, fields)?;
        let assembled = fields.and_then(ResponseFields::end).map_err(ParseError::of_response);
        let id = block.stream;
        let checked = assembled.and_then(|()| self.check_response(slot, block.ends, &head));
        if let Err(fault) = checked {
            self.reset_slot(slot, PROTOCOL, Fate::Broken(fault));
            return self.spend(Glitch::Head);
        }
        let stream = self.streams.at(slot);
        stream.input.head_done = !head.is_interim();
        stream.input.heads.push_back(head);
        self.ids.resets_in_a_row = 0;
        self.events.woken.push(slot);
        if block.ends { self.end_input(StreamKey { slot, id }) } else { Ok(()) }
    }

    fn check_response(&mut self, slot: u32, ends: bool, head: &ResponseHead) -> Result<(), Fault> {
        let stream = self.streams.at(slot);
        if head.is_interim() {
            return match ends {
                true => Err(bad_response("an interim response ends the stream")),
                false if stream.input.heads.len() >= usize::from(INTERIM_MAX) => {
                    Err(bad_response("too many interim responses"))
                }
                false => Ok(()),
            };
        }
        let method = if stream.input.to_head { Method::Head } else { Method::Get };
        let length = crate::h1::response_body(head, method).map_err(bad_response)?;
        stream.input.expected = match length {
            BodyLength::Known(n) => Some(n),
            // A response to HEAD has no body; nor has 204 or 304.
            BodyLength::None => Some(0),
            BodyLength::Streamed | BodyLength::UntilClose => None,
        };
        Ok(())
    }

    fn on_trailers(&mut self, slot: u32, block: Block, bytes: &[u8]) -> Result<(), Broken> {
        let list_bytes = self.config.header_list_bytes;
        let fields = decode(&mut self.headers.decoder, bytes, list_bytes, TrailerFields::new())?;
        let id = block.stream;
        if !block.ends {
            return self.stream_error(id, PROTOCOL, "trailers that do not end the stream");
        }
        match fields.and_then(TrailerFields::end) {
            Ok(trailers) => {
                let stream = self.streams.at(slot);
                stream.account.grow(trailers.memory());
                stream.input.trailers = Some(Box::new(trailers));
                self.end_input(StreamKey { slot, id })
            }
            Err(_) => self.stream_error(id, PROTOCOL, "a trailer field is invalid"),
        }
    }
}

/// Returns the framing of a request body.
fn request_length(head: &crate::RequestHead, ended: bool) -> Result<BodyLength, ParseError> {
    match crate::h1::request_body(head).map_err(ParseError::Invalid)? {
        BodyLength::Known(n) if ended && n > 0 => {
            Err(ParseError::Invalid("fewer bytes than Content-Length declares"))
        }
        BodyLength::None if head.method == Method::Connect || ended => Ok(BodyLength::None),
        BodyLength::None => Ok(BodyLength::Streamed),
        length => Ok(length),
    }
}

fn bad_response(reason: &'static str) -> Fault {
    ParseError::Invalid(reason).of_response()
}
