//! Changing a response body while it passes.

use sigma_http::{BodyLength, Chunk, Fault, Frame, Headers};

use crate::Context;

/// Frames that a filter passes on.
#[derive(Debug, Default)]
pub struct Pieces {
    frames: Vec<Frame>,
    fault: Option<Fault>,
}

impl Pieces {
    /// Passes bytes on, in as many frames as they need.
    pub fn bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let chunk = Chunk::copy_of(&bytes[..bytes.len().min(Self::FRAME_BYTES)]);
            bytes = &bytes[chunk.len()..];
            self.frames.push(Frame::Data(chunk));
        }
    }

    /// Largest frame that [`Pieces::bytes`] makes.
    const FRAME_BYTES: usize = 16 * 1024;

    /// Passes a frame on as it is.
    pub fn frame(&mut self, frame: Frame) {
        self.frames.push(frame);
    }

    /// Gives the response up: it breaks off here, so that nobody takes it for whole. Its head is
    /// on its way already. The first fault counts.
    pub fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// Why the response is given up, if it is.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Takes the frames out, keeping the memory.
    pub fn drain(&mut self) -> impl Iterator<Item = Frame> {
        self.frames.drain(..)
    }

    /// Whether nothing is to be passed on.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

/// Sees every frame of one response body, and passes on what it likes. Filters stand in a row, in
/// the order of their plugins.
pub trait BodyFilter {
    /// The length of what leaves this filter, when a body of `length` comes in.
    fn length(&self, _length: BodyLength) -> BodyLength {
        BodyLength::Streamed
    }

    /// Whether it encodes the body for the way to the client (RFC 9110 §8.4). Such a filter stands
    /// behind all others, whatever the order of the plugins: they see the body itself.
    fn encodes(&self) -> bool {
        false
    }

    /// One piece of the body.
    fn data(&mut self, cx: &mut Context, data: Chunk, out: &mut Pieces);

    /// The end of the body, with its trailers if there are some; called once. What is still held
    /// back goes to `out` here; the end itself is passed on by the caller.
    fn end(&mut self, _cx: &mut Context, _trailers: Option<&mut Headers>, _out: &mut Pieces) {}
}
