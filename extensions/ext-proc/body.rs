//! Filters of bodies: pieces, whole bodies and trailers go to the processor, its responses to the receiver.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{self, Poll, ready};

use sigma_buffer::held::{self, CountedBytes};
use sigma_http::{BodyLength, Chunk, Fault, Frame, Headers};
use sigma_plugin::{BodyFilter, Context, Frames, Reply};

use crate::fields::forwarded;
use crate::messages::{BodyMutation, CommonResponse, HttpBody, HttpTrailers, Mutation, Part};
use crate::mode::BodyMode;
use crate::rules::ChangeTarget;
use crate::session::{Answered, CUT, Direction, Failure, Got, Kind, Session, failed};

/// Largest piece of a body in one message, as in Envoy's full duplex.
pub(crate) const PIECE_BYTES: usize = 64 * 1024;

/// The next step of a filter.
enum State {
    /// It reads more of the body
    Reading,
    /// It waits for the response to this piece. With `true` the piece is the last one
    Piece(Vec<u8>, bool),
    /// It waits for the response to these trailers
    Trailers(Box<Headers>),
    /// The rest passes unchanged
    Passing,
    /// The rest is read and dropped
    Draining,
    /// The end has left
    Ended,
}

/// A filter that waits for a response to each message.
pub(crate) struct Lockstep {
    session: Rc<RefCell<Session>>,
    direction: Direction,
    mode: BodyMode,
    sends_trailers: bool,
    holds_head: bool,
    state: State,
    out: VecDeque<Frame>,
    /// Trailers that follow the piece for which it waits.
    trailers: Option<Box<Headers>>,
    /// The part of the body that is buffered.
    buffered: Vec<u8>,
    /// The part that passes behind a buffered beginning.
    rest: Option<Chunk>,
    /// Memory of the body in this filter.
    held: CountedBytes,
}

impl Lockstep {
    /// Returns a filter of these modes.
    pub(crate) fn new(session: &Rc<RefCell<Session>>, direction: Direction, mode: BodyMode) -> Lockstep {
        let modes = match direction {
            Direction::Request => session.borrow().mode.request(),
            Direction::Response => session.borrow().mode.response(),
        };
        let buffers = matches!(mode, BodyMode::Buffered | BodyMode::BufferedPartial);
        Lockstep {
            session: Rc::clone(session),
            direction,
            mode,
            sends_trailers: modes.trailers,
            holds_head: direction == Direction::Response && buffers,
            state: State::Reading,
            out: VecDeque::new(),
            trailers: None,
            buffered: Vec::new(),
            rest: None,
            held: CountedBytes::default(),
        }
    }

    fn send_body(&mut self, body: Vec<u8>, is_last: bool) {
        let message = HttpBody { body: body.clone(), end_of_stream: is_last && self.trailers.is_none() };
        let part = match self.direction {
            Direction::Request => Part::RequestBody(message),
            Direction::Response => Part::ResponseBody(message),
        };
        self.held.set(body.capacity());
        self.state = State::Piece(body, is_last);
        self.session.borrow_mut().queue(self.direction, Kind::Body, part, None);
    }

    /// Sends the trailers, or passes them on.
    fn send_trailers(&mut self, trailers: Box<Headers>) {
        if !self.sends_trailers {
            self.out.push_back(Frame::Trailers(trailers));
            return self.finish();
        }
        let part = trailers_part(self.direction, &trailers, &self.session.borrow());
        self.state = State::Trailers(trailers);
        self.session.borrow_mut().queue(self.direction, Kind::Trailers, part, None);
    }

    /// The end is in `out`.
    fn finish(&mut self) {
        self.state = State::Ended;
        note_done(&mut self.session.borrow_mut(), self.direction);
    }

    /// Accepts a frame of the body.
    fn accept(&mut self, frame: Frame, ctx: &mut Context) -> Result<(), Fault> {
        match (frame, self.mode) {
            (Frame::Data(data), BodyMode::None) => self.out.push_back(Frame::Data(data)),
            (Frame::Data(data), BodyMode::Buffered | BodyMode::BufferedPartial) => self.buffer(data, ctx)?,
            (Frame::Data(data), _) if data.is_empty() => {}
            (Frame::Data(data), _) => self.send_body(data.to_vec(), false),
            (Frame::End, BodyMode::None) => {
                self.out.push_back(Frame::End);
                self.finish();
            }
            (Frame::Trailers(trailers), BodyMode::None) => self.send_trailers(trailers),
            (Frame::End, _) => {
                let body = std::mem::take(&mut self.buffered);
                self.send_body(body, true);
            }
            (Frame::Trailers(trailers), BodyMode::Streamed) => self.send_trailers(trailers),
            (Frame::Trailers(trailers), _) => {
                self.trailers = Some(trailers);
                let body = std::mem::take(&mut self.buffered);
                self.send_body(body, true);
            }
        }
        Ok(())
    }

    fn buffer(&mut self, data: Chunk, ctx: &mut Context) -> Result<(), Fault> {
        let limit = self.session.borrow().config.max_body_bytes;
        if self.buffered.len() + data.len() <= limit {
            if data.len() > held::body_room() {
                return Err(refuse(ctx, Reply::new(503).text(Vec::new())));
            }
            self.buffered.extend_from_slice(&data);
            self.held.set(self.buffered.capacity());
            return Ok(());
        }
        if self.mode == BodyMode::Buffered {
            let session = self.session.borrow();
            let status =
                if self.direction == Direction::Request { 413 } else { session.config.status_on_error };
            drop(session);
            return Err(refuse(
                ctx,
                Reply::new(status).because("a body exceeds max_body_bytes").text(Vec::new()),
            ));
        }
        let room = limit - self.buffered.len();
        self.buffered.extend_from_slice(&data[..room]);
        self.rest = Some(Chunk::copy_of(&data[room..]));
        let body = std::mem::take(&mut self.buffered);
        self.send_body(body, false);
        Ok(())
    }

    /// Follows the response to a piece.
    fn answered(
        &mut self,
        common: CommonResponse,
        original: Vec<u8>,
        is_last: bool,
        ctx: &mut Context,
    ) -> Result<(), Fault> {
        self.session.borrow().note_route_cache(&common);
        if self.mode == BodyMode::Buffered && self.direction == Direction::Response {
            let mutation = common.header_mutation.as_ref();
            let applied = self.session.borrow_mut().apply(mutation, ChangeTarget::Response, ctx, None);
            if let Err(got) = applied {
                return self.leave(*got, original, is_last, ctx);
            }
        }
        match mutated(common.body_mutation, original) {
            Ok(body) => self.release(&body, is_last),
            Err(original) => {
                let reason = "the processor streams a body that is not FULL_DUPLEX_STREAMED";
                self.session.borrow_mut().fail(Failure::Broken, reason);
                return self.leave_again(original, is_last, ctx);
            }
        }
        Ok(())
    }

    /// Passes a piece on, with its followers.
    fn release(&mut self, body: &[u8], is_last: bool) {
        push(&mut self.out, body);
        if let Some(rest) = self.rest.take().filter(|rest| !rest.is_empty()) {
            self.out.push_back(Frame::Data(rest));
        }
        self.held.set(body.len());
        match (is_last, self.trailers.take()) {
            (true, Some(trailers)) => self.send_trailers(trailers),
            (true, None) => {
                self.out.push_back(Frame::End);
                self.finish();
            }
            (false, _) if self.mode == BodyMode::Streamed => self.state = State::Reading,
            (false, _) => {
                // The rest of a partial body.
                self.mode = BodyMode::None;
                self.state = State::Reading;
            }
        }
    }

    /// Goes on without the processor, or ends the body.
    fn leave(&mut self, got: Got, original: Vec<u8>, is_last: bool, ctx: &mut Context) -> Result<(), Fault> {
        match got {
            Got::Reply(reply) => Err(refuse(ctx, reply)),
            Got::Stream(_) => Err(refuse_streamed(&self.session, ctx)),
            Got::Gone | Got::Answer(_) => {
                self.sends_trailers = false;
                self.release(&original, is_last);
                if !matches!(self.state, State::Ended) {
                    self.state = State::Passing;
                }
                Ok(())
            }
        }
    }

    /// As [`Lockstep::leave`], after a failure that was found here.
    fn leave_again(&mut self, original: Vec<u8>, is_last: bool, ctx: &mut Context) -> Result<(), Fault> {
        let polled = self
            .session
            .borrow_mut()
            .poll(self.direction, &mut task::Context::from_waker(task::Waker::noop()));
        match polled {
            Poll::Ready(got) => self.leave(got, original, is_last, ctx),
            Poll::Pending => Err(CUT),
        }
    }
}

impl BodyFilter for Lockstep {
    fn length(&self, length: BodyLength) -> BodyLength {
        match self.mode {
            BodyMode::None => length,
            _ => BodyLength::Streamed,
        }
    }

    fn holds_head(&self) -> bool {
        self.holds_head
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
            match &self.state {
                State::Passing => return input.poll_frame(ctx, task),
                State::Ended => return Poll::Ready(Ok(Frame::End)),
                State::Draining => {}
                State::Reading if self.session.borrow().is_over() && self.buffered.is_empty() => {
                    let reply = self.session.borrow_mut().untold_reply();
                    if let Some(reply) = reply {
                        return Poll::Ready(Err(refuse(ctx, reply)));
                    }
                    self.state = State::Passing;
                }
                State::Reading => {
                    let frame = ready!(input.poll_frame(ctx, task))?;
                    self.accept(frame, ctx)?;
                }
                State::Piece(..) | State::Trailers(_) => {
                    let got = ready!(self.session.borrow_mut().poll(self.direction, task));
                    match (std::mem::replace(&mut self.state, State::Draining), got) {
                        (State::Piece(original, is_last), Got::Answer(Answered::Body(common))) => {
                            self.answered(common, original, is_last, ctx)?;
                        }
                        (State::Piece(original, is_last), got) => self.leave(got, original, is_last, ctx)?,
                        (State::Trailers(mut trailers), got) => {
                            end_with(&self.session, self.direction, got, &mut trailers, ctx)?;
                            self.out.push_back(Frame::Trailers(trailers));
                            self.finish();
                        }
                        (state, _) => self.state = state,
                    }
                }
            }
        }
    }
}

/// Replaces a body, which is read and dropped.
pub(crate) struct Replaced {
    body: Vec<u8>,
    taken: usize,
}

impl Replaced {
    pub(crate) fn new(body: Vec<u8>) -> Replaced {
        Replaced { body, taken: 0 }
    }
}

impl BodyFilter for Replaced {
    fn length(&self, _: BodyLength) -> BodyLength {
        BodyLength::Known(self.body.len() as u64)
    }

    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        if let Some(piece) = Chunk::next_of(&self.body, &mut self.taken) {
            return Poll::Ready(Ok(Frame::Data(piece)));
        }
        while let Frame::Data(_) = ready!(input.poll_frame(ctx, task))? {}
        Poll::Ready(Ok(Frame::End))
    }
}

/// Replaces the first bytes of a body.
pub(crate) struct Prefixed {
    skip: usize,
    prefix: Vec<u8>,
    taken: usize,
}

impl Prefixed {
    pub(crate) fn new(skip: usize, prefix: Vec<u8>) -> Prefixed {
        Prefixed { skip, prefix, taken: 0 }
    }
}

impl BodyFilter for Prefixed {
    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        if let Some(piece) = Chunk::next_of(&self.prefix, &mut self.taken) {
            return Poll::Ready(Ok(Frame::Data(piece)));
        }
        loop {
            match ready!(input.poll_frame(ctx, task))? {
                Frame::Data(data) if data.len() <= self.skip => self.skip -= data.len(),
                Frame::Data(data) => {
                    let skipped = std::mem::take(&mut self.skip);
                    let data = if skipped == 0 { data } else { Chunk::copy_of(&data[skipped..]) };
                    return Poll::Ready(Ok(Frame::Data(data)));
                }
                end => return Poll::Ready(Ok(end)),
            }
        }
    }
}

/// Queues a piece of a body.
pub(crate) fn queue_piece(session: &mut Session, direction: Direction, piece: &[u8], is_last: bool) {
    let body = HttpBody { body: piece.to_vec(), end_of_stream: is_last };
    let part = match direction {
        Direction::Request => Part::RequestBody(body),
        Direction::Response => Part::ResponseBody(body),
    };
    session.queue(direction, Kind::Body, part, None);
}

/// Returns the first piece of `bytes`.
pub(crate) fn first_piece(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(PIECE_BYTES)]
}

/// Returns the body after a mutation; the original as an error if the mutation is one of full duplex.
pub(crate) fn mutated(mutation: Option<BodyMutation>, original: Vec<u8>) -> Result<Vec<u8>, Vec<u8>> {
    match mutation.and_then(|mutation| mutation.mutation) {
        None | Some(Mutation::Clear(false)) => Ok(original),
        Some(Mutation::Body(body)) => Ok(body),
        Some(Mutation::Clear(true)) => Ok(Vec::new()),
        Some(Mutation::Streamed(_)) => Err(original),
    }
}

/// Appends bytes, in as many frames as they need.
pub(crate) fn push(out: &mut VecDeque<Frame>, bytes: &[u8]) {
    let mut taken = 0;
    while let Some(piece) = Chunk::next_of(bytes, &mut taken) {
        out.push_back(Frame::Data(piece));
    }
}

/// Returns the message with these trailers.
pub(crate) fn trailers_part(direction: Direction, trailers: &Headers, session: &Session) -> Part {
    let trailers =
        HttpTrailers { trailers: Some(forwarded(&[], trailers, session.config.forward_rules.as_ref())) };
    match direction {
        Direction::Request => Part::RequestTrailers(trailers),
        Direction::Response => Part::ResponseTrailers(trailers),
    }
}

/// Applies the response to trailers.
pub(crate) fn end_with(
    session: &Rc<RefCell<Session>>,
    direction: Direction,
    got: Got,
    trailers: &mut Headers,
    ctx: &mut Context,
) -> Result<(), Fault> {
    let place = match direction {
        Direction::Request => ChangeTarget::RequestTrailers,
        Direction::Response => ChangeTarget::ResponseTrailers,
    };
    let got = match got {
        Got::Answer(Answered::Trailers(mutation)) => {
            match session.borrow_mut().apply(Some(&mutation), place, ctx, Some(trailers)) {
                Ok(()) => return Ok(()),
                Err(got) => *got,
            }
        }
        got => got,
    };
    match got {
        Got::Reply(reply) => Err(refuse(ctx, reply)),
        Got::Stream(_) => Err(refuse_streamed(session, ctx)),
        Got::Gone | Got::Answer(_) => Ok(()),
    }
}

/// A response in pieces comes too late: the other message is on its way.
pub(crate) fn refuse_streamed(session: &Rc<RefCell<Session>>, ctx: &mut Context) -> Fault {
    let mut session = session.borrow_mut();
    session.break_streamed("the processor streams a response after the gateway began to send one");
    refuse(ctx, failed(&session.config, Failure::Broken))
}

/// Notes that nothing more of a direction is sent.
pub(crate) fn note_done(session: &mut Session, direction: Direction) {
    match direction {
        Direction::Request => session.request.is_done = true,
        Direction::Response => session.response.is_done = true,
    }
    session.close_if_done();
}

/// Makes `reply` the response if that is still possible; the fault cuts the body.
pub(crate) fn refuse(ctx: &mut Context, reply: Reply) -> Fault {
    ctx.instead = Some(Box::new(reply));
    CUT
}
