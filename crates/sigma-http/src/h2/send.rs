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
        let id = self.ids.next;
        self.ids.next += 2;
        self.ids.begun += 1;
        self.output.frames_sent += 1;
        let key = self.streams.begin(id, self.stream_recv_window(), self.peer.settings.initial_window);
        self.open_account(key, 0);
        let ended = length.is_empty();
        let stream = self.streams.get(key);
        stream.input.to_head = head.method == Method::Head;
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
            stream.output.priority = stream.output.priority.updated(value);
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
        let most = self.peer.settings.frame_bytes as usize;
        let out = self.output.queue.control();
        let at = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        self.headers.encoder.begin(out);
        fields(&mut self.headers.encoder, out);
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
        if !stream.alive || stream.output.queued || !stream.has_output() {
            return;
        }
        // Streams that wait for their turn go first.
        if !self.output.queue.has_ready() {
            while self.output.queue.has_room() && self.may_send(key.slot) {
                self.send_some(key.slot);
            }
        }
        self.enqueue_if_ready(key.slot, false);
        let stream = self.streams.get(key);
        if stream.output.window <= 0 {
            // The peer decides how long it waits.
            stream.output.piece.shrink();
        }
        self.count_piece(key.slot);
    }

    /// Returns true if a stream can send now.
    fn may_send(&mut self, slot: u32) -> bool {
        let window = self.output.queue.window;
        let stream = self.streams.at(slot);
        let open = stream.output.piece.is_empty() || (stream.output.window > 0 && window > 0);
        stream.alive && stream.has_output() && open
    }

    /// Adds a stream to its queue if it only waits for its turn. A stream that waits for its own window comes back
    /// with the window; one that waits for the connection's window keeps its place.
    pub(super) fn enqueue_if_ready(&mut self, slot: u32, next: bool) {
        let stream = self.streams.at(slot);
        let own = stream.output.piece.is_empty() || stream.output.window > 0;
        if stream.alive && stream.has_output() && own && !stream.output.queued {
            stream.output.queued = true;
            let (key, priority) = (StreamKey { slot, id: stream.id }, stream.output.priority);
            self.output.queue.enqueue(key, priority, next);
        }
    }

    /// Sends a piece of a body, and the end of the message if it is the last.
    fn send_some(&mut self, slot: u32) {
        let frame_bytes = TURN_BYTES.min(self.peer.settings.frame_bytes as usize);
        let most = if self.output.queue.has_ready() { frame_bytes } else { Output::most(frame_bytes) } as i64;
        let stream = self.streams.at(slot);
        let id = stream.id;
        if !stream.output.piece.is_empty() {
            let room = most.min(stream.output.window).min(self.output.queue.window).max(0) as usize;
            let bytes = room.min(stream.output.piece.len());
            let all = bytes == stream.output.piece.len();
            if let Some(left) = &mut stream.output.left {
                *left = left.saturating_sub(bytes as u64);
            }
            // A body of declared length ends with its last byte, not in a separate frame.
            let ended = all
                && match stream.output.end {
                    End::Open => stream.output.left == Some(0),
                    End::Queued(None) => true,
                    End::Queued(Some(_)) | End::Sent => false,
                };
            let flags = if ended { flag::END_STREAM } else { 0 };
            stream.output.window -= bytes as i64;
            self.output.queue.window -= bytes as i64;
            stream.output.taken += bytes as u64;
            if ended {
                stream.output.end = End::Sent;
            }
            self.output.frames_sent += 1;
            if bytes >= LARGE_BYTES {
                self.output.queue.push_body(stream.output.piece.split_to(bytes), frame_bytes, id, flags);
            } else {
                frame::write(
                    self.output.queue.control(),
                    kind::DATA,
                    flags,
                    id,
                    &[&stream.output.piece[..bytes]],
                );
                stream.output.piece.advance(bytes);
            }
            if !all {
                return;
            }
        }
        match std::mem::replace(&mut stream.output.end, End::Sent) {
            End::Open => stream.output.end = End::Open,
            End::Queued(None) => {
                frame::write(self.output.queue.control(), kind::DATA, flag::END_STREAM, id, &[])
            }
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
        while self.output.queue.has_room() {
            let Some(key) = self.output.queue.dequeue() else { break };
            if !self.streams.is_alive(key) {
                continue;
            }
            let slot = key.slot;
            if !self.may_send(slot) {
                let stream = self.streams.at(slot);
                if stream.alive && stream.has_output() && stream.output.window > 0 {
                    // The connection's window is used up: the stream keeps its place, as all others do.
                    let priority = stream.output.priority;
                    self.output.queue.enqueue(key, Priority { incremental: false, ..priority }, true);
                    break;
                }
                stream.output.queued = false;
                continue;
            }
            self.send_some(slot);
            self.count_piece(slot);
            let stream = self.streams.at(slot);
            stream.output.queued = false;
            if stream.has_output() {
                self.enqueue_if_ready(slot, true);
            } else {
                self.events.woken.push(slot);
            }
        }
    }

    /// Returns the bytes to write next, in one piece; empty if there are no bytes.
    pub fn output(&mut self) -> &[u8] {
        self.fill();
        self.output.queue.slices().next().unwrap_or_default()
    }

    /// Fills in all bytes to write, in pieces; returns their number.
    pub fn slices<'s>(&'s mut self, slices: &mut [IoSlice<'s>; SLICES_MAX]) -> usize {
        self.fill();
        let mut count = 0;
        for (slice, bytes) in slices.iter_mut().zip(self.output.queue.slices()) {
            *slice = IoSlice::new(bytes);
            count += 1;
        }
        count
    }

    /// Removes the first `n` bytes of the output, which were written.
    pub fn advance(&mut self, n: usize) {
        self.output.queue.advance(n);
    }

    /// Returns true if there are bytes to write, now or on demand.
    pub fn has_output(&self) -> bool {
        self.output.queue.waiting() > 0 || (self.output.queue.has_ready() && self.output.queue.window > 0)
    }

    /// Returns the bytes written so far.
    pub fn bytes_written(&self) -> u64 {
        self.output.queue.written()
    }

    /// Returns true if the peer may be read from: a peer that does not read its own responses is not read.
    pub fn may_receive(&self) -> bool {
        self.output.queue.waiting() < OUT_MAX && self.end.failed.is_none()
    }

    /// Changes the priority of a stream.
    pub(super) fn prioritize(&mut self, slot: u32, priority: Priority) {
        // A waiting stream moves with its next frame.
        self.streams.at(slot).output.priority = priority;
    }
}

fn begin_body(stream: &mut super::stream::Stream, length: BodyLength, ended: bool) {
    stream.output.left = if let BodyLength::Known(n) = length { Some(n) } else { None };
    stream.output.piece = Chunk::empty();
    stream.output.end = if ended { End::Sent } else { End::Open };
}
