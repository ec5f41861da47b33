//! A part of a response that its node has sent and the client cannot take yet.

use std::collections::VecDeque;

use sigma_http::{Frame, Headers};

/// The cost of a frame besides the memory of its bytes.
const FRAME_BYTES: usize = size_of::<Frame>();

/// The largest piece that is copied to the end of the piece before it: small pieces of a node take one memory.
const COPIED_BYTES: usize = 4 * 1024;

/// Frames of a response that were read from a node and are not taken yet.
#[derive(Debug, Default)]
pub struct Rest {
    frames: VecDeque<Frame>,
    /// The memory of all frames.
    memory: usize,
    is_whole: bool,
}

impl Rest {
    /// Collects the frames of `next`, up to the end of the body.
    pub(crate) fn collect(mut next: impl FnMut() -> Option<Frame>) -> Rest {
        let mut rest = Rest::default();
        while let Some(frame) = next() {
            rest.push(frame);
            if rest.is_whole {
                break;
            }
        }
        rest
    }

    /// Appends a frame, in memory of about its size.
    pub fn push(&mut self, mut frame: Frame) {
        if let (Frame::Data(data), Some(Frame::Data(last))) = (&frame, self.frames.back_mut())
            && data.len() <= COPIED_BYTES
            && last.try_append(data)
        {
            return;
        }
        match &mut frame {
            Frame::Data(data) => data.shrink(),
            Frame::End | Frame::Trailers(_) => self.is_whole = true,
        }
        self.memory += memory_of(&frame);
        self.frames.push_back(frame);
    }

    /// Takes the next frame; None if more has to be read, and after the last one.
    pub fn pop(&mut self) -> Option<Frame> {
        let frame = self.frames.pop_front()?;
        self.memory -= memory_of(&frame);
        Some(frame)
    }

    /// Returns the next frame of a whole rest; after the last one the end of the body.
    pub fn next_frame(&mut self) -> Frame {
        self.pop().unwrap_or(Frame::End)
    }

    /// Returns true if no frame is left.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns true if the end of the body is, or was, a part of it.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Returns the trailers, if there are any.
    pub fn trailers(&self) -> Option<&Headers> {
        match self.frames.back() {
            Some(Frame::Trailers(fields)) => Some(fields),
            _ => None,
        }
    }

    /// Returns the memory of the frames in bytes.
    pub fn memory(&self) -> usize {
        self.memory
    }
}

fn memory_of(frame: &Frame) -> usize {
    FRAME_BYTES
        + match frame {
            Frame::Data(data) => data.memory(),
            Frame::Trailers(fields) => fields.memory(),
            Frame::End => 0,
        }
}

#[cfg(test)]
mod tests {
    use sigma_http::Chunk;

    use super::*;

    fn data(bytes: &[u8]) -> Frame {
        Frame::Data(Chunk::copy_of(bytes))
    }

    fn bytes(rest: &mut Rest) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(frame) = rest.pop() {
            if let Frame::Data(data) = frame {
                bytes.extend_from_slice(&data);
            }
        }
        bytes
    }

    #[test]
    fn memory_counts_all_frames_and_falls_as_they_are_taken() {
        let mut rest = Rest::default();
        assert_eq!((rest.memory(), rest.is_whole(), rest.is_empty()), (0, false, true));
        rest.push(data(&[b'x'; 50_000]));
        assert!(rest.memory() >= 50_000 && !rest.is_whole());
        rest.push(Frame::End);
        assert!(rest.is_whole() && !rest.is_empty());
        assert_eq!(bytes(&mut rest), [b'x'; 50_000]);
        assert_eq!((rest.memory(), rest.is_whole()), (0, true));
        assert!(matches!(rest.next_frame(), Frame::End));
    }

    /// A node that sends byte by byte cannot make the gateway hold a buffer for each of them.
    #[test]
    fn small_pieces_share_memory() {
        let mut rest = Rest::default();
        let sent: Vec<u8> = (0..10_000).map(|n| n as u8).collect();
        for byte in &sent {
            rest.push(data(&[*byte]));
        }
        assert!(rest.memory() < 3 * sent.len(), "{}", rest.memory());
        assert_eq!(bytes(&mut rest), sent);
        assert_eq!(rest.memory(), 0);
    }
}
