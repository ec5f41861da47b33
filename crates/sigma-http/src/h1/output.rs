//! The output queue of one connection.

use std::io::IoSlice;

use sigma_buffer::small;

use super::encode;
use crate::{BodyLength, Chunk, Frame};

/// Bodies up to this size are copied after their head, so that both leave in one plain write.
const COALESCE_BYTES: usize = 4 * 1024;

/// Small pieces of body are copied up to this size while a slow peer delays them.
const FRONT_BYTES: usize = 16 * 1024;

/// The framing of a body on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// Unchanged: the head declares the length, or the end of the stream ends it.
    #[default]
    Plain,
    /// Chunked coding.
    Chunked,
}

impl From<BodyLength> for Framing {
    /// Returns HTTP/1.1's framing for a body of unknown length.
    fn from(length: BodyLength) -> Framing {
        match length {
            BodyLength::Streamed | BodyLength::UntilClose => Framing::Chunked,
            BodyLength::None | BodyLength::Known(_) => Framing::Plain,
        }
    }
}

/// An output queue of bounded size, with at most one piece of body.
///
/// The bytes leave in the order `front`, `body`, `back`. An empty queue owns no memory.
#[derive(Debug, Default)]
pub struct Output {
    front: Vec<u8>,
    /// Bytes of `front` that were written.
    written: usize,
    /// Bytes written since the start of the connection.
    total: u64,
    body: Chunk,
    back: Vec<u8>,
    /// The framing of the current body.
    pub framing: Framing,
}

impl Output {
    /// Returns true if the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.front.is_empty() && self.body.is_empty() && self.back.is_empty()
    }

    /// Returns true if another frame may be pushed.
    pub fn has_room(&self) -> bool {
        self.body.is_empty() && self.back.is_empty() && self.front.len() - self.written < FRONT_BYTES
    }

    /// Returns the memory of the queue in bytes.
    pub fn memory(&self) -> usize {
        self.front.capacity() + self.body.memory() + self.back.capacity()
    }

    /// Returns the bytes written since the start of the connection.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Counts `n` bytes that were written after the queue and not from it.
    pub fn bypassed(&mut self, n: usize) {
        self.total += n as u64;
    }

    /// Returns the buffer for encoded heads. Use it only while [`Output::has_room`].
    pub fn front(&mut self) -> &mut Vec<u8> {
        if self.front.capacity() == 0 {
            self.front = small::take();
        }
        &mut self.front
    }

    /// Queues a frame in the current framing.
    pub fn push(&mut self, frame: Frame) {
        match (frame, self.framing) {
            (Frame::Data(data), Framing::Plain) => self.push_data(data),
            (Frame::Data(data), Framing::Chunked) => {
                let len = data.len();
                encode::chunk_size(len, self.end());
                self.push_data(data);
                self.end().extend_from_slice(b"\r\n");
            }
            (Frame::End, Framing::Chunked) => encode::last_chunk(None, self.end()),
            (Frame::Trailers(trailers), Framing::Chunked) => encode::last_chunk(Some(&trailers), self.end()),
            // A plain body cannot have trailers; RFC 9110 §6.5.1 allows to drop them.
            (Frame::End | Frame::Trailers(_), Framing::Plain) => {}
        }
    }

    fn push_data(&mut self, data: Chunk) {
        if data.len() <= COALESCE_BYTES && self.body.is_empty() && self.back.is_empty() {
            self.front().extend_from_slice(&data);
        } else {
            self.body = data;
        }
    }

    /// Returns the buffer after all queued bytes.
    fn end(&mut self) -> &mut Vec<u8> {
        if self.body.is_empty() && self.back.is_empty() { self.front() } else { &mut self.back }
    }

    /// Returns the pieces to write, in order.
    pub fn slices(&self) -> [IoSlice<'_>; 3] {
        [IoSlice::new(&self.front[self.written..]), IoSlice::new(&self.body), IoSlice::new(&self.back)]
    }

    /// Returns the bytes to write, if they are one piece.
    pub fn single(&self) -> Option<&[u8]> {
        if self.body.is_empty() && self.back.is_empty() {
            return Some(&self.front[self.written..]);
        }
        (self.front.is_empty() && self.back.is_empty()).then_some(&self.body[..])
    }

    /// Removes the first `n` bytes, which were written.
    pub fn advance(&mut self, mut n: usize) {
        self.total += n as u64;
        let front = n.min(self.front.len() - self.written);
        self.written += front;
        n -= front;
        if self.written == self.front.len() && self.written > 0 {
            small::recycle(std::mem::take(&mut self.front));
            self.written = 0;
        }
        let body = n.min(self.body.len());
        if body > 0 {
            self.body.advance(body);
        }
        self.back.drain(..n - body);
        if self.back.is_empty() {
            self.back = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_for_any_step() {
        let big = vec![b'x'; COALESCE_BYTES + 1];
        for step in [1, 3, 5000] {
            let mut out = Output { framing: Framing::Chunked, ..Output::default() };
            out.front().extend_from_slice(b"head\r\n\r\n");
            out.push(Frame::Data(Chunk::copy_of(b"ab")));
            out.push(Frame::Data(Chunk::copy_of(&big)));
            assert!(!out.has_room());
            out.push(Frame::End);
            let mut got = Vec::new();
            while !out.is_empty() {
                let all: Vec<u8> = out.slices().iter().flat_map(|s| s.to_vec()).collect();
                let n = step.min(all.len());
                got.extend_from_slice(&all[..n]);
                out.advance(n);
            }
            let expected = [b"head\r\n\r\n2\r\nab\r\n1001\r\n", &big[..], b"\r\n0\r\n\r\n"].concat();
            assert_eq!(got, expected, "steps of {step}");
        }
    }
}
