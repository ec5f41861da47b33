//! Encodes a body while it passes: the shared part of the compressors.

use std::rc::Rc;
use std::task::{self, Poll};

use sigma_http::{BodyLength, Chunk, Fault, FaultKind, Frame, Method};
use sigma_plugin::{BodyFilter, Context, Env, Frames, Plugin};

use sigma_plugin_kit::budget::{Budget, Share, WorkerBytes};
use sigma_plugin_kit::changed_body::{self, remove_digests};
use sigma_plugin_kit::coding::{self, Offer, Which};

/// A request to a compressor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// To take bytes, and to keep them as long as it likes.
    Take,
    /// To take bytes and to give out all that it has.
    Flush,
    /// To give out the end.
    Finish,
}

/// The result of one step of a compressor.
pub(crate) struct Did {
    /// Bytes that it took.
    pub(crate) taken: usize,
    /// Bytes that it wrote.
    pub(crate) made: usize,
    /// It has taken all, and has nothing more to write for the request.
    pub(crate) is_done: bool,
}

/// A compressor of one body. Its size is bounded by its settings, not by the body.
pub(crate) trait Compressor {
    /// Works until all is taken or `out` is full. None if it cannot continue.
    fn step(&mut self, data: &[u8], ask: Ask, out: &mut [u8]) -> Option<Did>;
}

/// The size of all compressors of one worker.
#[derive(Default)]
struct Compressors(Rc<WorkerBytes>);

/// A share of the worker's memory for a compressor of about so many bytes. None if all of them
/// would take more than the budget: the response goes out as it is.
pub(crate) fn share(env: &Env<'_>, bytes: usize, budget: Budget) -> Option<Share> {
    let mut share = budget.share(Rc::clone(&env.local.part(Compressors::default).0));
    (bytes <= share.room()).then(|| {
        share.grow(bytes);
        share
    })
}

/// Offers the coding `token` for a response that may be encoded, to clients that accept it.
pub(crate) fn offer<P: Plugin>(plugin: &P, which: &Which, token: &'static str, ctx: &mut Context) {
    if which.is_not_modified(ctx) || coding::is_encoded(ctx) || !which.takes(ctx) {
        return;
    }
    // Also for clients that do not accept it: a cache must not give them the encoded response.
    which.add_vary(&mut ctx.response.headers);
    let weight = coding::weight_or_any(&ctx.request.headers, token);
    if weight > 0 {
        coding::offer(plugin, Offer { token, weight, may: changed_body::may_be_encoded }, ctx);
    }
}

/// Announces the coding `token` in the head, and returns the filter of the body: a compressor, but for HEAD.
pub(crate) fn encode<C: Compressor + 'static>(
    compressor: C,
    share: Share,
    token: &'static str,
    ctx: &mut Context,
) -> Box<dyn BodyFilter> {
    let is_streamed = changed_body::encode_head(&mut ctx.response.headers, token);
    match ctx.request.client_method() {
        Method::Head => Box::new(Unsent),
        _ => Encoder::filter(compressor, share, is_streamed),
    }
}

/// A body on its way through a compressor, one buffer of output at a time: however much a piece becomes, the rest is
/// made when it is requested.
pub(crate) struct Encoder<C> {
    /// With its share of the worker's memory. None behind the end: a client that reads slowly does not
    /// hold it.
    compressor: Option<(C, Share)>,
    /// Each piece is forwarded at once.
    flushes: bool,
    work: Work,
}

/// The current work of the compressor.
enum Work {
    /// Nothing: the next frame, please.
    Idle,
    Piece(Chunk),
    /// The end came in, with its trailers if there are some.
    End(Frame),
}

impl<C: Compressor + 'static> Encoder<C> {
    /// As a filter; `flushes` for a body whose pieces are forwarded at once.
    pub(crate) fn filter(compressor: C, share: Share, flushes: bool) -> Box<dyn BodyFilter> {
        Box::new(Encoder { compressor: Some((compressor, share)), flushes, work: Work::Idle })
    }

    /// Does one step of the current work, and returns the output.
    fn step(&mut self) -> Result<Chunk, Fault> {
        const FAILED: Fault = Fault::new(FaultKind::ResponseCoding, "the compressor failed");
        let (data, ask) = match &self.work {
            Work::Piece(piece) if self.flushes => (&piece[..], Ask::Flush),
            Work::Piece(piece) => (&piece[..], Ask::Take),
            Work::Idle | Work::End(_) => (&[][..], Ask::Finish),
        };
        let mut out = Chunk::take();
        let (compressor, _) = self.compressor.as_mut().ok_or(FAILED)?;
        let did = compressor.step(data, ask, out.spare()).ok_or(FAILED)?;
        out.filled(did.made);
        if !did.is_done && did.taken == 0 && did.made == 0 {
            return Err(FAILED);
        }
        match &mut self.work {
            Work::Piece(_) if did.is_done => self.work = Work::Idle,
            Work::Piece(piece) => piece.advance(did.taken),
            Work::End(_) if did.is_done => self.compressor = None,
            Work::Idle | Work::End(_) => {}
        }
        Ok(out)
    }
}

impl<C: Compressor + 'static> BodyFilter for Encoder<C> {
    fn encodes(&self) -> bool {
        true
    }

    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        /// Steps without output after which others have their turn: a gigabyte of zeros is little.
        const STEPS: usize = 64;
        for _ in 0..STEPS {
            match &self.work {
                Work::Idle => {
                    self.work = match task::ready!(input.poll_frame(ctx, task))? {
                        Frame::Data(piece) => Work::Piece(piece),
                        Frame::Trailers(mut trailers) => {
                            remove_digests(&mut trailers);
                            Work::End(Frame::Trailers(trailers))
                        }
                        Frame::End => Work::End(Frame::End),
                    };
                }
                Work::End(_) if self.compressor.is_none() => {
                    let Work::End(end) = std::mem::replace(&mut self.work, Work::Idle) else { continue };
                    return Poll::Ready(Ok(end));
                }
                Work::Piece(_) | Work::End(_) => {
                    let out = self.step()?;
                    if !out.is_empty() {
                        return Poll::Ready(Ok(Frame::Data(out)));
                    }
                }
            }
        }
        task.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Replaces an encoder in the response to HEAD: the head belongs to the encoded body.
pub(crate) struct Unsent;

impl BodyFilter for Unsent {
    fn length(&self, length: BodyLength) -> BodyLength {
        if length == BodyLength::None { length } else { BodyLength::Streamed }
    }

    fn encodes(&self) -> bool {
        true
    }

    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        input.poll_frame(ctx, task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes every byte a thousand times.
    struct Longer {
        left: usize,
    }

    impl Compressor for Longer {
        fn step(&mut self, data: &[u8], ask: Ask, out: &mut [u8]) -> Option<Did> {
            let taken = if self.left == 0 { data.len() } else { 0 };
            self.left += taken * 1000;
            let made = self.left.min(out.len());
            out[..made].fill(b'x');
            self.left -= made;
            let is_done = self.left == 0 && (taken == data.len() || ask == Ask::Finish);
            (!data.starts_with(b"!")).then_some(Did { taken, made, is_done })
        }
    }

    /// Gives these pieces, and counts.
    struct Given(Vec<Frame>, usize);

    impl Frames for Given {
        fn poll_frame(&mut self, _: &mut Context, _: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
            self.1 += 1;
            Poll::Ready(Ok(self.0.pop().unwrap_or(Frame::End)))
        }
    }

    #[test]
    fn pieces_are_encoded_as_they_are_taken() {
        let pieces = vec![Frame::Data(Chunk::copy_of(b"b")), Frame::Data(Chunk::copy_of(&[b'a'; 100]))];
        let (mut input, mut ctx) = (Given(pieces, 0), Context::default());
        let mut filter = Encoder::filter(Longer { left: 0 }, Share::within(0, &Rc::default()), true);
        let mut task = task::Context::from_waker(task::Waker::noop());
        let (mut most, mut sum) = (0, 0);
        while let Poll::Ready(Ok(Frame::Data(data))) = filter.poll_frame(&mut input, &mut ctx, &mut task) {
            (most, sum) = (most.max(data.len()), sum + data.len());
            assert!(sum > 100_000 || input.1 == 1, "the next piece is asked for when this one is through");
        }
        assert_eq!((sum, input.1), (101_000, 3));
        assert!(most <= Chunk::take().spare().len());
    }

    #[test]
    fn failed_encoding_breaks_off() {
        let mut input = Given(vec![Frame::Data(Chunk::copy_of(b"!"))], 0);
        let mut filter = Encoder::filter(Longer { left: 0 }, Share::within(0, &Rc::default()), false);
        let mut task = task::Context::from_waker(task::Waker::noop());
        let end = filter.poll_frame(&mut input, &mut Context::default(), &mut task);
        assert!(matches!(end, Poll::Ready(Err(_))));
    }
}
