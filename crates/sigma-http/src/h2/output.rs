//! The output queue, and the turns of streams.

use std::collections::VecDeque;

use sigma_buffer::small;

use super::frame::{self, FrameHeader, HEADER_BYTES, kind};
use super::stream::StreamKey;
use crate::Chunk;
use crate::multiplex::priority::{LEVELS, Priority};

/// Bytes that may wait for the socket. Above this, bodies wait with their streams, where priorities and the end of a
/// stream still apply.
pub(super) const OUT_BYTES: usize = 64 * 1024;

/// The number of frames for one piece of a body.
const FRAMES_MAX: usize = 4;

/// The largest number of slices for the socket: before a body, its frames, and after it.
pub const SLICES_MAX: usize = 2 * FRAMES_MAX + 2;

/// A large piece of a body in frames: its bytes are written without a copy.
#[derive(Debug)]
struct Body {
    chunk: Chunk,
    /// The size of each frame but the last.
    frame_bytes: usize,
    heads: [[u8; HEADER_BYTES]; FRAMES_MAX],
    frames: usize,
    /// The bytes written, including frame headers.
    written: usize,
}

impl Body {
    fn waiting(&self) -> usize {
        self.chunk.len() + self.frames * HEADER_BYTES - self.written
    }

    /// Returns the rest of it, in order.
    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let heads = self.heads[..self.frames].iter().map(|head| &head[..]);
        let parts = heads.zip(self.chunk.chunks(self.frame_bytes)).flat_map(|(head, data)| [head, data]);
        let mut skip = self.written;
        parts.filter_map(move |part| {
            let skipped = skip.min(part.len());
            skip -= skipped;
            (skipped < part.len()).then(|| &part[skipped..])
        })
    }
}

/// The output, and the streams that have more.
///
/// They leave in the order `front`, `body`, `back`.
#[derive(Debug)]
pub(super) struct Output {
    front: Vec<u8>,
    /// Bytes of `front` that were written.
    at: usize,
    /// Boxed, so that connections without large bodies stay small.
    body: Option<Box<Body>>,
    back: Vec<u8>,
    /// Bytes written since the start of the connection.
    written: u64,
    /// Bytes that the peer accepts on the connection.
    pub(super) window: i64,
    /// The streams with something to send, by urgency.
    ready: [VecDeque<StreamKey>; LEVELS],
    /// The non-empty queues of `ready`, a bit each.
    urgent: u8,
}

impl Output {
    pub(super) fn new() -> Output {
        Output {
            front: Vec::new(),
            at: 0,
            body: None,
            back: Vec::new(),
            written: 0,
            window: frame::DEFAULT_WINDOW.into(),
            ready: Default::default(),
            urgent: 0,
        }
    }

    /// Returns the buffer for frames that need not wait.
    pub(super) fn control(&mut self) -> &mut Vec<u8> {
        let end = if self.body.is_some() { &mut self.back } else { &mut self.front };
        if end.capacity() == 0 {
            *end = small::take();
        }
        end
    }

    /// Returns the bytes written since the start of the connection.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Returns the bytes that wait for the socket.
    pub(super) fn waiting(&self) -> usize {
        let body = self.body.as_ref().map_or(0, |body| body.waiting());
        self.front.len() - self.at + body + self.back.len()
    }

    /// Returns the memory of the waiting bytes.
    pub(super) fn memory(&self) -> usize {
        match self.waiting() {
            0 => 0,
            _ => {
                let body = self.body.as_ref().map_or(0, |body| body.chunk.memory());
                self.front.capacity() + body + self.back.capacity()
            }
        }
    }

    /// Returns true if bodies may leave: no large piece is waiting.
    pub(super) fn has_room(&self) -> bool {
        self.body.is_none() && self.front.len() - self.at < OUT_BYTES
    }

    /// Returns the largest piece of a body that leaves without a copy, for this frame size.
    pub(super) fn most(frame_bytes: usize) -> usize {
        FRAMES_MAX * frame_bytes
    }

    /// Queues a large piece of a body in frames of at most `frame_bytes`, the last with `flags`. Call it while there
    /// is room, with at most [`Output::most`] bytes.
    pub(super) fn push_body(&mut self, chunk: Chunk, frame_bytes: usize, stream: u32, flags: u8) {
        let frames = chunk.len().div_ceil(frame_bytes);
        let mut heads = [[0; HEADER_BYTES]; FRAMES_MAX];
        for (n, (head, data)) in heads.iter_mut().zip(chunk.chunks(frame_bytes)).enumerate() {
            let flags = if n + 1 == frames { flags } else { 0 };
            *head = FrameHeader { length: data.len() as u32, kind: kind::DATA, flags, stream }.bytes();
        }
        self.body = Some(Box::new(Body { chunk, frame_bytes, heads, frames, written: 0 }));
    }

    /// Adds a stream to the queue of its urgency; with `next` it keeps its turn.
    pub(super) fn enqueue(&mut self, key: StreamKey, priority: Priority, next: bool) {
        let level = usize::from(priority.urgency);
        // A stream that is not incremental keeps its turn until it is done.
        if next && !priority.incremental {
            self.ready[level].push_front(key);
        } else {
            self.ready[level].push_back(key);
        }
        self.urgent |= 1 << level;
    }

    /// Returns the stream whose turn it is.
    pub(super) fn dequeue(&mut self) -> Option<StreamKey> {
        let level = self.urgent.trailing_zeros() as usize;
        let queue = self.ready.get_mut(level)?;
        let key = queue.pop_front();
        if queue.is_empty() {
            self.urgent &= !(1 << level);
        }
        key
    }

    /// Returns true if a stream waits for its turn.
    pub(super) fn has_ready(&self) -> bool {
        self.urgent != 0
    }

    /// Returns the waiting bytes, in order.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let whole = |bytes: &'_ [u8]| !bytes.is_empty();
        let front = Some(&self.front[self.at..]).filter(|bytes| whole(bytes));
        let back = Some(&self.back[..]).filter(|bytes| whole(bytes));
        front.into_iter().chain(self.body.iter().flat_map(|body| body.slices())).chain(back)
    }

    /// Removes the first `n` bytes, which were written.
    pub(super) fn advance(&mut self, n: usize) {
        self.written += n as u64;
        let mut rest = n;
        loop {
            let first = rest.min(self.front.len() - self.at);
            self.at += first;
            rest -= first;
            if self.at < self.front.len() {
                break;
            }
            self.at = 0;
            small::recycle(std::mem::take(&mut self.front));
            let Some(body) = &mut self.body else { break };
            let first = rest.min(body.waiting());
            body.written += first;
            rest -= first;
            if body.waiting() > 0 {
                break;
            }
            self.body = None;
            self.front = std::mem::take(&mut self.back);
        }
        if self.at > OUT_BYTES {
            self.front.drain(..self.at);
            self.at = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_piece_leaves_in_frames_between_others() {
        let mut output = Output::new();
        let data: Vec<u8> = (0..40_000).map(|n| n as u8).collect();
        output.control().extend_from_slice(b"in front");
        output.push_body(Chunk::copy_of(&data), 16_384, 5, 1);
        assert!(!output.has_room());
        output.control().extend_from_slice(b"behind");
        let mut expected = b"in front".to_vec();
        for (n, piece) in data.chunks(16_384).enumerate() {
            frame::write(&mut expected, kind::DATA, u8::from(n == 2), 5, &[piece]);
        }
        expected.extend_from_slice(b"behind");
        for step in [1, 7, 9, 1_000, 16_393, 50_000] {
            let (mut output, mut got) = (Output::new(), Vec::new());
            output.control().extend_from_slice(b"in front");
            output.push_body(Chunk::copy_of(&data), 16_384, 5, 1);
            output.control().extend_from_slice(b"behind");
            while output.waiting() > 0 {
                let all: Vec<u8> = output.slices().flatten().copied().collect();
                assert!(output.slices().count() <= SLICES_MAX && all.len() == output.waiting());
                let taken = step.min(all.len());
                got.extend_from_slice(&all[..taken]);
                output.advance(taken);
            }
            assert!(got == expected && output.has_room(), "{step}");
        }
    }
}
