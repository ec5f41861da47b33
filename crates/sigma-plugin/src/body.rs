//! Filters that change a body in transit, in either direction.

use std::collections::VecDeque;
use std::task::{self, Poll};

use sigma_http::{BodyLength, Chunk, Fault, Frame, Headers};

use crate::Context;

/// Frames of one body, one after the other.
pub trait Frames {
    /// Returns the next frame. The last one is [`Frame::End`] or [`Frame::Trailers`]. After it, or after a fault, the
    /// method is not called again.
    fn poll_frame(&mut self, ctx: &mut Context, task: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>>;
}

/// Changes one body in transit. Filters run in a row, in the order of their plugins.
///
/// A filter produces frames only as fast as the next one reads them, and reads from the one before only as many as it
/// needs. So memory is bounded as long as a filter keeps little itself.
pub trait BodyFilter {
    /// Returns the length of the filtered body for an input body of `length`.
    fn length(&self, _length: BodyLength) -> BodyLength {
        BodyLength::Streamed
    }

    /// Returns true if the filter encodes the body for the client (RFC 9110 §8.4). Such a filter runs after all
    /// others, in any order of the plugins: the others get the body without the encoding.
    fn encodes(&self) -> bool {
        false
    }

    /// Returns true if the head of a response waits for the first frame of this filter. Until then the filter may
    /// drop the body and set [`Context::instead`], which the client gets as the response.
    fn holds_head(&self) -> bool {
        false
    }

    /// Returns the next frame of this filter, made of frames of `input`. It may wait. An error aborts the body, so
    /// that the client does not take it as complete.
    ///
    /// Trailers belong to the filter that gets them: it passes them on, changes or drops them.
    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>>;
}

/// Returns the next frame after all `filters`. The first filter is the nearest to `source`.
#[inline]
pub fn poll_filtered(
    filters: &mut [Box<dyn BodyFilter>],
    source: &mut dyn Frames,
    ctx: &mut Context,
    task: &mut task::Context<'_>,
) -> Poll<Result<Frame, Fault>> {
    match filters.split_last_mut() {
        None => source.poll_frame(ctx, task),
        Some((last, before)) => last.poll_frame(&mut FilteredSource { filters: before, source }, ctx, task),
    }
}

/// The source of a filter: the filters before it, and the source of the first of them.
struct FilteredSource<'r> {
    filters: &'r mut [Box<dyn BodyFilter>],
    source: &'r mut dyn Frames,
}

impl Frames for FilteredSource<'_> {
    fn poll_frame(&mut self, ctx: &mut Context, task: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
        poll_filtered(self.filters, self.source, ctx, task)
    }
}

/// Output of a [`Transform`].
#[derive(Debug, Default)]
pub struct Pieces {
    frames: VecDeque<Frame>,
    fault: Option<Fault>,
}

impl Pieces {
    /// Appends bytes, in as many frames as they need.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let mut taken = 0;
        while let Some(piece) = Chunk::next_of(bytes, &mut taken) {
            self.frames.push_back(Frame::Data(piece));
        }
    }

    /// Appends a piece unchanged.
    pub fn piece(&mut self, data: Chunk) {
        if !data.is_empty() {
            self.frames.push_back(Frame::Data(data));
        }
    }

    /// Aborts the body after the pieces appended so far. The first fault counts.
    pub fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// Returns the reason for the abort, if there is one.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Returns true if there is no output.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Takes the output.
    pub fn drain(&mut self) -> impl Iterator<Item = Frame> {
        self.frames.drain(..)
    }
}

/// A filter that turns each piece into its output at once, as most filters do. The output of one piece must be
/// bounded. If it is not, implement [`BodyFilter`] instead.
pub trait Transform {
    /// See [`BodyFilter::length`].
    fn length(&self, _length: BodyLength) -> BodyLength {
        BodyLength::Streamed
    }

    /// See [`BodyFilter::encodes`].
    fn encodes(&self) -> bool {
        false
    }

    /// See [`BodyFilter::holds_head`].
    fn holds_head(&self) -> bool {
        false
    }

    /// Handles one piece of the body.
    fn data(&mut self, ctx: &mut Context, data: Chunk, out: &mut Pieces);

    /// Handles the end of the body, with its trailers if there are some; called once. Bytes held back go to `out`;
    /// the end itself follows them.
    fn end(&mut self, _cx: &mut Context, _trailers: Option<&mut Headers>, _out: &mut Pieces) {}

    /// Converts it to a filter.
    fn filter(self) -> Box<dyn BodyFilter>
    where
        Self: Sized + 'static,
    {
        Box::new(Transformed { transform: self, pieces: Pieces::default(), end: None })
    }
}

/// A [`Transform`] as a filter.
struct Transformed<T> {
    transform: T,
    pieces: Pieces,
    /// The end of the input, until the output before it is read.
    end: Option<Frame>,
}

impl<T: Transform> BodyFilter for Transformed<T> {
    fn length(&self, length: BodyLength) -> BodyLength {
        self.transform.length(length)
    }

    fn encodes(&self) -> bool {
        self.transform.encodes()
    }

    fn holds_head(&self) -> bool {
        self.transform.holds_head()
    }

    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        loop {
            if let Some(frame) = self.pieces.frames.pop_front() {
                return Poll::Ready(Ok(frame));
            }
            if let Some(fault) = self.pieces.fault {
                return Poll::Ready(Err(fault));
            }
            if let Some(end) = self.end.take() {
                return Poll::Ready(Ok(end));
            }
            match task::ready!(input.poll_frame(ctx, task))? {
                Frame::Data(data) => self.transform.data(ctx, data, &mut self.pieces),
                Frame::Trailers(mut trailers) => {
                    self.transform.end(ctx, Some(&mut trailers), &mut self.pieces);
                    self.end = Some(Frame::Trailers(trailers));
                }
                Frame::End => {
                    self.transform.end(ctx, None, &mut self.pieces);
                    self.end = Some(Frame::End);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source of fixed frames, one a poll.
    struct Given(VecDeque<Frame>);

    impl Frames for Given {
        fn poll_frame(&mut self, _: &mut Context, _: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
            Poll::Ready(Ok(self.0.pop_front().unwrap_or(Frame::End)))
        }
    }

    /// Doubles every piece, holds the last byte of the body back, and aborts at an `!`.
    #[derive(Default)]
    struct Doubled(Vec<u8>);

    impl Transform for Doubled {
        fn data(&mut self, _cx: &mut Context, data: Chunk, out: &mut Pieces) {
            out.bytes(&self.0);
            out.bytes(&data);
            self.0 = data.to_vec();
            if data.contains(&b'!') {
                out.fail(Fault::new(sigma_http::FaultKind::ResponseCoding, "an exclamation"));
            }
        }

        fn end(&mut self, _cx: &mut Context, _trailers: Option<&mut Headers>, out: &mut Pieces) {
            out.bytes(&self.0);
        }
    }

    fn passed(pieces: &[&str], filters: usize) -> (String, bool) {
        let frames = pieces.iter().map(|piece| Frame::Data(Chunk::copy_of(piece.as_bytes())));
        let mut source = Given(frames.collect());
        let mut filters: Vec<_> = (0..filters).map(|_| Doubled::default().filter()).collect();
        let mut task = task::Context::from_waker(task::Waker::noop());
        let (mut ctx, mut text) = (Context::default(), String::new());
        loop {
            match poll_filtered(&mut filters, &mut source, &mut ctx, &mut task) {
                Poll::Ready(Ok(Frame::Data(data))) => text += std::str::from_utf8(&data).unwrap(),
                Poll::Ready(Ok(_)) => return (text, true),
                Poll::Ready(Err(_)) => return (text, false),
                Poll::Pending => unreachable!("the source never waits"),
            }
        }
    }

    #[test]
    fn filters_in_a_row() {
        let check = |pieces: &[&str], filters, expected: &str, whole| {
            assert_eq!(passed(pieces, filters), (expected.to_owned(), whole), "{pieces:?} {filters}");
        };
        check(&["a", "b"], 0, "ab", true);
        check(&["a", "b"], 1, "aabb", true);
        check(&["a"], 2, "aaaa", true);
        check(&[], 2, "", true);
        // Output before the fault is sent; bytes held back are lost.
        check(&["a", "b!", "c"], 1, "aab!", false);
    }
}
