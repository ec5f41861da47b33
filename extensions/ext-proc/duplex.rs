//! The filter of bodies in full duplex.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{self, Poll, ready};

use sigma_http::{Chunk, Fault, Frame, Headers};
use sigma_plugin::{BodyFilter, Context, Frames};

use crate::body::{
    PIECE_BYTES, end_with, note_done, push, queue_piece, refuse, refuse_streamed, trailers_part,
};
use crate::messages::Mutation;
use crate::rules::ChangeTarget;
use crate::session::{Answered, Direction, Failure, Got, Kind, Session};

/// A filter that sends pieces while it passes the processor's pieces on.
pub(crate) struct Duplex {
    session: Rc<RefCell<Session>>,
    direction: Direction,
    /// Bytes of the body that were sent already.
    skip: usize,
    /// A piece that is too large for one message.
    pending: Option<(Chunk, usize)>,
    /// The end of the body was sent.
    has_ended: bool,
    trailers: Option<Box<Headers>>,
    /// The end has been forwarded.
    is_over: bool,
    /// Something of the processor was forwarded: the original can not replace it any more.
    has_begun: bool,
    /// Bytes of the original were sent here.
    has_sent: bool,
    out: VecDeque<Frame>,
}

impl Duplex {
    /// Returns a filter for the rest of a body, whose first `skip` bytes were sent, with its end if `has_ended`.
    pub(crate) fn new(
        session: &Rc<RefCell<Session>>,
        direction: Direction,
        skip: usize,
        has_ended: bool,
    ) -> Duplex {
        Duplex {
            session: Rc::clone(session),
            direction,
            skip,
            pending: None,
            has_ended,
            trailers: None,
            is_over: false,
            has_begun: false,
            has_sent: false,
            out: VecDeque::new(),
        }
    }

    /// Sends more of the body. Ready when something was sent.
    fn send(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<(), Fault>> {
        if self.has_ended || !self.session.borrow().has_room(self.direction) {
            return Poll::Pending;
        }
        if self.pending.is_none() {
            match ready!(input.poll_frame(ctx, task))? {
                Frame::Data(data) => {
                    let skipped = self.skip.min(data.len());
                    self.skip -= skipped;
                    self.pending = Some((data, skipped)).filter(|(data, at)| *at < data.len());
                }
                Frame::End => {
                    self.has_ended = true;
                    queue_piece(&mut self.session.borrow_mut(), self.direction, &[], true);
                    self.session.borrow_mut().set_owing(self.direction, true);
                }
                Frame::Trailers(trailers) => {
                    self.has_ended = true;
                    let part = trailers_part(self.direction, &trailers, &self.session.borrow());
                    self.session.borrow_mut().queue(self.direction, Kind::Trailers, part, None);
                    self.session.borrow_mut().set_owing(self.direction, true);
                    self.trailers = Some(trailers);
                }
            }
        }
        if let Some((data, at)) = &mut self.pending {
            let end = data.len().min(*at + PIECE_BYTES);
            queue_piece(&mut self.session.borrow_mut(), self.direction, &data[*at..end], false);
            (*at, self.has_sent) = (end, true);
            self.session.borrow_mut().set_owing(self.direction, false);
            self.pending.take_if(|(data, at)| *at == data.len());
        }
        Poll::Ready(Ok(()))
    }

    /// Follows an event of the session.
    fn follow(&mut self, got: Got, ctx: &mut Context) -> Result<(), Fault> {
        match got {
            Got::Answer(Answered::Headers(common)) => {
                let mutation = common.header_mutation.as_ref();
                let applied = self.session.borrow_mut().apply(mutation, ChangeTarget::Response, ctx, None);
                applied.or_else(|got| self.leave(*got, ctx))
            }
            Got::Answer(Answered::Body(common)) => {
                self.has_begun = true;
                match common.body_mutation.and_then(|body| body.mutation) {
                    Some(Mutation::Streamed(piece)) => {
                        push(&mut self.out, &piece.body);
                        if piece.end_of_stream {
                            self.out.push_back(Frame::End);
                            self.end();
                        }
                        Ok(())
                    }
                    _ => {
                        let reason =
                            "the processor responds to a FULL_DUPLEX_STREAMED body without streamed_response";
                        self.session.borrow_mut().fail(Failure::Broken, reason);
                        Err(self.cut(ctx))
                    }
                }
            }
            Got::Answer(Answered::Trailers(mutation)) => {
                let mut trailers = self.trailers.take().unwrap_or_default();
                end_with(
                    &self.session,
                    self.direction,
                    Got::Answer(Answered::Trailers(mutation)),
                    &mut trailers,
                    ctx,
                )?;
                self.out.push_back(Frame::Trailers(trailers));
                self.end();
                Ok(())
            }
            got => self.leave(got, ctx),
        }
    }

    /// The session has ended before its body is.
    fn leave(&mut self, got: Got, ctx: &mut Context) -> Result<(), Fault> {
        match got {
            Got::Reply(reply) => Err(refuse(ctx, reply)),
            Got::Stream(_) => Err(refuse_streamed(&self.session, ctx)),
            // The rest of the body is with the processor: neither its pieces nor the original are whole.
            _ if self.has_begun || self.has_sent || self.skip > 0 || self.has_ended => Err(self.cut(ctx)),
            _ => Ok(()),
        }
    }

    fn cut(&self, ctx: &mut Context) -> Fault {
        refuse(ctx, crate::session::failed(&self.session.borrow().config, Failure::Broken))
    }

    fn end(&mut self) {
        self.is_over = true;
        self.session.borrow_mut().set_owing(self.direction, false);
        note_done(&mut self.session.borrow_mut(), self.direction);
    }
}

impl BodyFilter for Duplex {
    fn holds_head(&self) -> bool {
        self.direction == Direction::Response
    }

    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        loop {
            if let Some(frame) = self.out.pop_front() {
                return Poll::Ready(Ok(frame));
            }
            if self.is_over {
                return Poll::Ready(Ok(Frame::End));
            }
            let got = self.session.borrow_mut().poll(self.direction, task);
            if let Poll::Ready(got) = got {
                let is_gone = matches!(got, Got::Gone);
                self.follow(got, ctx)?;
                if is_gone {
                    // Nothing was sent: the body passes unchanged.
                    return input.poll_frame(ctx, task);
                }
                continue;
            }
            ready!(self.send(input, ctx, task))?;
        }
    }
}
