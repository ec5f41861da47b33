//! Outgoing frames: heads and control frames at once, bodies as windows and priorities allow.

use std::io::IoSlice;

use super::connection::Codec;
use super::frame::{self, FrameHeader, HEADER_BYTES, flag, kind};
use super::hpack::Pseudo as PseudoName;
use super::output::{Output, SLICES_MAX};
use super::stream::{End, StreamKey};
use crate::multiplex::RequestLine;
use crate::multiplex::fields::is_of_connection;
use crate::multiplex::priority::Priority;
use crate::{BodyLength, Chunk, HeaderId, Headers, Method, RequestHead};

/// Bytes that may wait for the socket before a peer that does not read is not read from either.
const OUT_MAX: usize = 256 * 1024;

/// The largest turn of a stream in bytes while others wait, so that they do not wait for long.
const TURN_BYTES: usize = 16 * 1024;

/// Pieces of a body of this size or more are not copied.
const LARGE_BYTES: usize = 8 * 1024;

impl Codec {
    /// Sends the head of a request; `length` says whether a body follows. Returns None if no stream can be opened.
    pub fn open(
        &mut self,
        head: &RequestHead,
        line: RequestLine<'_>,
        length: BodyLength,
    ) -> Option<StreamKey> {
        if !self.may_open() {
            return None;
        }
        let id = self.next_stream;
        self.next_stream += 2;
        self.begun += 1;
        self.frames_sent += 1;
        let key = self.streams.begin(id, self.stream_recv_window(), self.peer.initial_window);
        self.open_account(key, 0);
        let ended = length.is_empty();
        let stream = self.streams.get(key);
        stream.to_head = head.method == Method::Head;
        begin_body(stream, length, ended);
        self.write_block(id, ended, |encoder, out| {
            encoder.pseudo(PseudoName::Method, head.method_token(), out);
            encoder.pseudo(PseudoName::Scheme, line.scheme, out);
            if let Some(host) = head.headers.get(HeaderId::Host) {
                encoder.pseudo(PseudoName::Authority, host, out);
            }
            encoder.pseudo(PseudoName::Path, line.target, out);
            for (id, name, value) in head.headers.fields() {
                if id != HeaderId::Host && !is_of_connection(id) {
                    encoder.encode(id, name, value, out);
                }
            }
            // The gateway forwards trailers in every version, and gRPC needs them.
            encoder.encode(HeaderId::Te, b"te", b"trailers", out);
        });
        Some(key)
    }

    /// Sends an interim response head.
    pub fn send_interim(&mut self, key: StreamKey, status: u16, headers: &Headers) {
        if self.streams.get(key).alive {
            self.write_answer(key.id, false, status, headers, b"");
        }
    }

    /// Sends the final response head, with `date` if it lacks one. `length` is the length of the body that follows;
    /// with `ended` there is no body.
    pub fn send_answer(
        &mut self,
        key: StreamKey,
        status: u16,
        headers: &Headers,
        date: &[u8],
        length: BodyLength,
        ended: bool,
    ) {
        let stream = self.streams.get(key);
        if !stream.alive || stream.local_ended() {
            return;
        }
        begin_body(stream, length, ended);
        stream.account.grow(headers.memory());
        if let Some(value) = headers.find_other(b"priority") {
            stream.priority = stream.priority.updated(value);
        }
        let date = if headers.has(HeaderId::Date) { b"" } else { date };
        self.write_answer(key.id, ended, status, headers, date);
        self.end_if_both(key.slot);
    }

    fn write_answer(&mut self, id: u32, ended: bool, status: u16, headers: &Headers, date: &[u8]) {
        self.write_block(id, ended, |encoder, out| {
            encoder.status(status, out);
            for (id, name, value) in headers.fields() {
                if !is_of_connection(id) {
                    encoder.encode(id, name, value, out);
                }
            }
            if !date.is_empty() {
                encoder.encode(HeaderId::Date, b"date", date, out);
            }
        });
    }

    /// Writes a HEADERS frame, and CONTINUATION frames as the peer's frame size requires.
    fn write_block(
        &mut self,
        stream: u32,
        ended: bool,
        fields: impl FnOnce(&mut super::hpack::Encoder, &mut Vec<u8>),
    ) {
        let most = self.peer.frame_bytes as usize;
        let out = self.out.control();
        let at = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        self.encoder.begin(out);
        fields(&mut self.encoder, out);
        let block = out.len() - at - HEADER_BYTES;
        let rest = if block > most { out.split_off(at + HEADER_BYTES + most) } else { Vec::new() };
        let end_stream = if ended { flag::END_STREAM } else { 0 };
        let end_headers = if rest.is_empty() { flag::END_HEADERS } else { 0 };
        let length = block.min(most) as u32;
        let header = FrameHeader { length, kind: kind::HEADERS, flags: end_stream | end_headers, stream };
        out[at..at + HEADER_BYTES].copy_from_slice(&header.bytes());
        let pieces = rest.chunks(most);
        let last = pieces.len();
        for (n, piece) in pieces.enumerate() {
            let flags = if n + 1 == last { flag::END_HEADERS } else { 0 };
            frame::write(out, kind::CONTINUATION, flags, stream, &[piece]);
        }
    }

    /// Sends the queued frames of a stream as far as possible; the rest follows later.
    pub fn flush(&mut self, key: StreamKey) {
        let stream = self.streams.get(key);
        if !stream.alive || stream.queued || !stream.has_output() {
            return;
        }
        // Streams that wait for their turn go first.
        if !self.out.has_ready() {
            while self.out.has_room() && self.may_send(key.slot) {
                self.send_some(key.slot);
            }
        }
        self.enqueue_if_ready(key.slot, false);
        let stream = self.streams.get(key);
        if stream.send_window <= 0 {
            // The peer decides how long it waits.
            stream.piece.shrink();
        }
        self.count_piece(key.slot);
    }

    /// Returns true if a stream can send now.
    fn may_send(&mut self, slot: u32) -> bool {
        let window = self.out.window;
        let stream = self.streams.at(slot);
        let open = stream.piece.is_empty() || (stream.send_window > 0 && window > 0);
        stream.alive && stream.has_output() && open
    }

    /// Adds a stream to its queue if it only waits for its turn. A stream that waits for its own window comes back
    /// with the window; one that waits for the connection's window keeps its place.
    pub(super) fn enqueue_if_ready(&mut self, slot: u32, next: bool) {
        let stream = self.streams.at(slot);
        let own = stream.piece.is_empty() || stream.send_window > 0;
        if stream.alive && stream.has_output() && own && !stream.queued {
            stream.queued = true;
            let (key, priority) = (StreamKey { slot, id: stream.id }, stream.priority);
            self.out.enqueue(key, priority, next);
        }
    }

    /// Sends a piece of a body, and the end of the message if it is the last.
    fn send_some(&mut self, slot: u32) {
        let frame_bytes = TURN_BYTES.min(self.peer.frame_bytes as usize);
        let most = if self.out.has_ready() { frame_bytes } else { Output::most(frame_bytes) } as i64;
        let stream = self.streams.at(slot);
        let id = stream.id;
        if !stream.piece.is_empty() {
            let room = most.min(stream.send_window).min(self.out.window).max(0) as usize;
            let bytes = room.min(stream.piece.len());
            let all = bytes == stream.piece.len();
            if let Some(left) = &mut stream.left {
                *left = left.saturating_sub(bytes as u64);
            }
            // A body of declared length ends with its last byte, not in a separate frame.
            let ended = all
                && match stream.end {
                    End::Open => stream.left == Some(0),
                    End::Queued(None) => true,
                    End::Queued(Some(_)) | End::Sent => false,
                };
            let flags = if ended { flag::END_STREAM } else { 0 };
            stream.send_window -= bytes as i64;
            self.out.window -= bytes as i64;
            stream.taken += bytes as u64;
            if ended {
                stream.end = End::Sent;
            }
            self.frames_sent += 1;
            if bytes >= LARGE_BYTES {
                self.out.push_body(stream.piece.split_to(bytes), frame_bytes, id, flags);
            } else {
                frame::write(self.out.control(), kind::DATA, flags, id, &[&stream.piece[..bytes]]);
                stream.piece.advance(bytes);
            }
            if !all {
                return;
            }
        }
        match std::mem::replace(&mut stream.end, End::Sent) {
            End::Open => stream.end = End::Open,
            End::Queued(None) => frame::write(self.out.control(), kind::DATA, flag::END_STREAM, id, &[]),
            End::Queued(Some(trailers)) => self.write_block(id, true, |encoder, out| {
                for (id, name, value) in trailers.fields() {
                    if !is_of_connection(id) {
                        encoder.encode(id, name, value, out);
                    }
                }
            }),
            End::Sent => {}
        }
        self.end_if_both(slot);
    }

    /// Sends bodies, as far as there is room for them.
    fn fill(&mut self) {
        while self.out.has_room() {
            let Some(key) = self.out.dequeue() else { break };
            if !self.streams.is_alive(key) {
                continue;
            }
            let slot = key.slot;
            if !self.may_send(slot) {
                let stream = self.streams.at(slot);
                if stream.alive && stream.has_output() && stream.send_window > 0 {
                    // The connection's window is used up: the stream keeps its place, as all others do.
                    let priority = stream.priority;
                    self.out.enqueue(key, Priority { incremental: false, ..priority }, true);
                    break;
                }
                stream.queued = false;
                continue;
            }
            self.send_some(slot);
            self.count_piece(slot);
            let stream = self.streams.at(slot);
            stream.queued = false;
            if stream.has_output() {
                self.enqueue_if_ready(slot, true);
            } else {
                self.woken.push(slot);
            }
        }
    }

    /// Returns the bytes to write next, in one piece; empty if there are no bytes.
    pub fn output(&mut self) -> &[u8] {
        self.fill();
        self.out.slices().next().unwrap_or_default()
    }

    /// Fills in all bytes to write, in pieces; returns their number.
    pub fn slices<'s>(&'s mut self, slices: &mut [IoSlice<'s>; SLICES_MAX]) -> usize {
        self.fill();
        let mut count = 0;
        for (slice, bytes) in slices.iter_mut().zip(self.out.slices()) {
            *slice = IoSlice::new(bytes);
            count += 1;
        }
        count
    }

    /// Removes the first `n` bytes of the output, which were written.
    pub fn advance(&mut self, n: usize) {
        self.out.advance(n);
    }

    /// Returns true if there are bytes to write, now or on demand.
    pub fn has_output(&self) -> bool {
        self.out.waiting() > 0 || (self.out.has_ready() && self.out.window > 0)
    }

    /// Returns the bytes written so far.
    pub fn bytes_written(&self) -> u64 {
        self.out.written()
    }

    /// Returns true if the peer may be read from: a peer that does not read its own responses is not read.
    pub fn may_receive(&self) -> bool {
        self.out.waiting() < OUT_MAX && self.failed.is_none()
    }

    /// Changes the priority of a stream.
    pub(super) fn prioritize(&mut self, slot: u32, priority: Priority) {
        // A waiting stream moves with its next frame.
        self.streams.at(slot).priority = priority;
    }
}

fn begin_body(stream: &mut super::stream::Stream, length: BodyLength, ended: bool) {
    stream.left = if let BodyLength::Known(n) = length { Some(n) } else { None };
    stream.piece = Chunk::empty();
    stream.end = if ended { End::Sent } else { End::Open };
}
