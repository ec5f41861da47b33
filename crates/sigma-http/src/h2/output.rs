//! Bytes on their way out, and whose turn it is to add to them.

use std::collections::VecDeque;

use sigma_buffer::small;

use super::frame::{self, FrameHeader, HEADER_BYTES, kind};
use super::priority::{LEVELS, Priority};
use super::stream::StreamKey;
use crate::Chunk;

/// Bytes that may wait for the socket before bodies have to wait with their streams, where priorities and
/// the end of a stream can still decide over them.
pub(super) const OUT_BYTES: usize = 64 * 1024;

/// Frames that a piece of a body may leave in at once.
const FRAMES_MAX: usize = 4;

/// Most slices that wait for the socket at a time: what is in front of a body, its frames, what is behind it.
pub const SLICES_MAX: usize = 2 * FRAMES_MAX + 2;

/// A large piece of a body in frames: its bytes leave from where they are, without a copy.
#[derive(Debug)]
struct Body {
    chunk: Chunk,
    /// Bytes of each frame but for the last.
    frame_bytes: usize,
    heads: [[u8; HEADER_BYTES]; FRAMES_MAX],
    frames: usize,
    /// Bytes that were written, those of the frames' headers included.
    written: usize,
}

impl Body {
    fn waiting(&self) -> usize {
        self.chunk.len() + self.frames * HEADER_BYTES - self.written
    }

    /// What is left of it, in order.
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

/// Bytes on their way out, and the streams that have more.
///
/// They leave in the order `front`, `body`, `back`.
#[derive(Debug)]
pub(super) struct Output {
    front: Vec<u8>,
    /// Bytes of `front` that were written.
    at: usize,
    /// Boxed, so that connections without large bodies do not pay its size.
    body: Option<Box<Body>>,
    back: Vec<u8>,
    /// Bytes written since the connection began.
    written: u64,
    /// Bytes that the peer takes on the connection.
    pub(super) window: i64,
    /// The streams with something to send, by urgency.
    ready: [VecDeque<StreamKey>; LEVELS],
    /// Which of `ready` are not empty, a bit each.
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

    /// Where frames that wait for nothing are written.
    pub(super) fn control(&mut self) -> &mut Vec<u8> {
        let end = if self.body.is_some() { &mut self.back } else { &mut self.front };
        if end.capacity() == 0 {
            *end = small::take();
        }
        end
    }

    /// Bytes written since the connection began.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Bytes that wait for the socket.
    pub(super) fn waiting(&self) -> usize {
        let body = self.body.as_ref().map_or(0, |body| body.waiting());
        self.front.len() - self.at + body + self.back.len()
    }

    /// Memory of what waits for the socket.
    pub(super) fn memory(&self) -> usize {
        match self.waiting() {
            0 => 0,
            _ => {
                let body = self.body.as_ref().map_or(0, |body| body.chunk.memory());
                self.front.capacity() + body + self.back.capacity()
            }
        }
    }

    /// Whether bodies may leave: nothing large is on its way yet.
    pub(super) fn has_room(&self) -> bool {
        self.body.is_none() && self.front.len() - self.at < OUT_BYTES
    }

    /// Most bytes of a body that leave without a copy in frames of a size.
    pub(super) fn most(frame_bytes: usize) -> usize {
        FRAMES_MAX * frame_bytes
    }

    /// Lets a large piece of a body leave in frames of at most `frame_bytes`, the last with `flags`. To be called
    /// while there is room, with no more than [`Output::most`].
    pub(super) fn push_body(&mut self, chunk: Chunk, frame_bytes: usize, stream: u32, flags: u8) {
        let frames = chunk.len().div_ceil(frame_bytes);
        let mut heads = [[0; HEADER_BYTES]; FRAMES_MAX];
        for (n, (head, data)) in heads.iter_mut().zip(chunk.chunks(frame_bytes)).enumerate() {
            let flags = if n + 1 == frames { flags } else { 0 };
            *head = FrameHeader { length: data.len() as u32, kind: kind::DATA, flags, stream }.bytes();
        }
        self.body = Some(Box::new(Body { chunk, frame_bytes, heads, frames, written: 0 }));
    }

    /// Puts a stream into the queue of its urgency; with `next` it goes on where it was.
    pub(super) fn enqueue(&mut self, key: StreamKey, priority: Priority, next: bool) {
        let level = usize::from(priority.urgency);
        // One that is of no use in pieces goes on until it is done.
        if next && !priority.incremental {
            self.ready[level].push_front(key);
        } else {
            self.ready[level].push_back(key);
        }
        self.urgent |= 1 << level;
    }

    /// The stream whose turn it is.
    pub(super) fn dequeue(&mut self) -> Option<StreamKey> {
        let level = self.urgent.trailing_zeros() as usize;
        let queue = self.ready.get_mut(level)?;
        let key = queue.pop_front();
        if queue.is_empty() {
            self.urgent &= !(1 << level);
        }
        key
    }

    /// Whether a stream waits for its turn.
    pub(super) fn has_ready(&self) -> bool {
        self.urgent != 0
    }

    /// What waits for the socket, in order.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let whole = |bytes: &'_ [u8]| !bytes.is_empty();
        let front = Some(&self.front[self.at..]).filter(|bytes| whole(bytes));
        let back = Some(&self.back[..]).filter(|bytes| whole(bytes));
        front.into_iter().chain(self.body.iter().flat_map(|body| body.slices())).chain(back)
    }

    /// Takes note that the first `n` bytes were written.
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
