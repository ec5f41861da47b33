//! The rest of a response that its node has sent whole.

use std::collections::VecDeque;

use sigma_http::{Frame, Headers};

/// Frames of a response that were read from a node and not taken yet, up to the last one.
#[derive(Debug, Default)]
pub struct Rest {
    frames: VecDeque<Frame>,
}

impl Rest {
    /// The frames that `next` returns, up to the end of the body.
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

    /// The next frame; after the last one the end of the body.
    pub fn next_frame(&mut self) -> Frame {
        self.frames.pop_front().unwrap_or(Frame::End)
    }

    /// The trailers, if there are any.
    pub fn trailers(&self) -> Option<&Headers> {
        match self.frames.back() {
            Some(Frame::Trailers(fields)) => Some(fields),
            _ => None,
        }
    }

    /// Bytes of memory that the frames hold.
    pub fn memory(&self) -> usize {
        let of = |frame: &Frame| match frame {
            Frame::Data(data) => data.memory(),
            Frame::Trailers(fields) => fields.memory(),
            Frame::End => 0,
        };
        self.frames.iter().map(of).sum()
    }
}
