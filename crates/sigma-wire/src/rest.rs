//! The rest of a response that its node has completely sent.

use std::collections::VecDeque;

use sigma_http::{Frame, Headers};

/// Frames of a response that were read from a node and are not taken yet, up to the last one.
#[derive(Debug, Default)]
pub struct Rest {
    frames: VecDeque<Frame>,
}

impl Rest {
    /// Collects the frames of `next`, up to the end of the body.
    pub(crate) fn collect(mut next: impl FnMut() -> Option<Frame>) -> Rest {
        let mut frames = VecDeque::new();
        while let Some(mut frame) = next() {
            let is_last = !matches!(frame, Frame::Data(_));
            if let Frame::Data(data) = &mut frame {
                data.shrink();
            }
            frames.push_back(frame);
            if is_last {
                break;
            }
        }
        Rest { frames }
    }

    /// Returns the next frame; after the last one the end of the body.
    pub fn next_frame(&mut self) -> Frame {
        self.frames.pop_front().unwrap_or(Frame::End)
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
        let of = |frame: &Frame| match frame {
            Frame::Data(data) => data.memory(),
            Frame::Trailers(fields) => fields.memory(),
            Frame::End => 0,
        };
        self.frames.iter().map(of).sum()
    }
}
