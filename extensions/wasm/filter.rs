//! A body on its way through the module.

use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{self, Poll, ready};
use std::time::Duration;

use sigma_buffer::held::{self, CountedBytes};
use sigma_http::{BodyLength, Chunk, Fault, FaultKind, Frame};
use sigma_plugin::{BodyFilter, Context, Frames, Reply};
use tokio::time::Sleep;

use crate::current::{Hook, Parts};
use crate::events::Event;
use crate::instance::Aborted;
use crate::stream::{Direction, Effect, Stream};

/// The module ended the body.
pub(crate) const CUT: Fault = Fault::new(FaultKind::Internal, "the WebAssembly module ended the body");

/// The next step of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It reads more of the body
    Reading,
    /// The module holds the body, and more of it is read
    Holding,
    /// The module holds the whole body
    HoldingEnd,
    /// The module holds the trailers
    HoldingTrailers,
    /// The rest passes unchanged
    Passing,
    /// The end is in `out`, or has left
    Ended,
}

/// A filter of one body.
pub(crate) struct Filter {
    stream: Rc<Stream>,
    direction: Direction,
    state: State,
    parts: Parts,
    out: VecDeque<Frame>,
    /// The end of a body that is held.
    end: Option<Frame>,
    /// The longest pause.
    pause: Option<Pin<Box<Sleep>>>,
    holds_head: bool,
    held: CountedBytes,
}

impl Filter {
    pub(crate) fn new(stream: &Rc<Stream>, direction: Direction) -> Filter {
        let holds_head = direction == Direction::Response && stream.holds_response_head.get();
        Filter {
            stream: Rc::clone(stream),
            direction,
            state: State::Reading,
            parts: Parts {
                is_head_open: holds_head,
                may_respond: holds_head || direction == Direction::Request,
                ..Parts::default()
            },
            out: VecDeque::new(),
            end: None,
            pause: None,
            holds_head,
            held: CountedBytes::default(),
        }
    }

    fn body_hook(&self) -> Hook {
        match self.direction {
            Direction::Request => Hook::RequestBody,
            Direction::Response => Hook::ResponseBody,
        }
    }

    /// Returns the callback of the present state.
    fn hook(&self) -> Hook {
        match (self.state, self.direction) {
            (State::HoldingTrailers, Direction::Request) => Hook::RequestTrailers,
            (State::HoldingTrailers, Direction::Response) => Hook::ResponseTrailers,
            _ => self.body_hook(),
        }
    }

    /// Accepts a frame of the body.
    fn accept(&mut self, frame: Frame, ctx: &mut Context) -> Result<(), Fault> {
        match frame {
            Frame::Data(data) if data.is_empty() => Ok(()),
            Frame::Data(data) if !self.reads_body() => {
                self.out.push_back(Frame::Data(data));
                Ok(())
            }
            Frame::Data(data) => {
                self.buffer(&data, ctx)?;
                self.run_body(false, ctx)
            }
            Frame::End if self.reads_body() => {
                self.end = Some(Frame::End);
                self.run_body(true, ctx)
            }
            Frame::Trailers(trailers) if self.parts.body.is_empty() && !self.reads_trailers() => {
                self.out.push_back(Frame::Trailers(trailers));
                self.state = State::Ended;
                Ok(())
            }
            Frame::Trailers(trailers) => {
                self.end = Some(Frame::Trailers(trailers));
                // The last part of the body was passed already, unless the module holds it.
                if self.parts.body.is_empty() { self.run_trailers(ctx) } else { self.run_body(false, ctx) }
            }
            Frame::End => {
                self.out.push_back(Frame::End);
                self.state = State::Ended;
                Ok(())
            }
        }
    }

    fn reads_body(&self) -> bool {
        let exports = &self.stream.instance.exports;
        match self.direction {
            Direction::Request => exports.request_body.is_some(),
            Direction::Response => exports.response_body.is_some(),
        }
    }

    /// Adds bytes to those that the module sees.
    fn buffer(&mut self, data: &[u8], ctx: &mut Context) -> Result<(), Fault> {
        let limit = self.stream.instance.vm.settings.body_bytes;
        let body = &mut self.parts.body;
        let is_held = !body.is_empty();
        if is_held && body.len() + data.len() > limit {
            self.stream.instance.count(Event::TooLarge);
            let status = if self.direction == Direction::Request { 413 } else { 500 };
            return Err(self.refuse(Reply::new(status).because("the module buffers too large a body"), ctx));
        }
        if data.len() > held::body_room() {
            return Err(self.refuse(Reply::new(503).because("the memory for bodies is full"), ctx));
        }
        body.extend_from_slice(data);
        self.held.set(body.capacity());
        Ok(())
    }

    /// Runs the callback of the body.
    fn run_body(&mut self, is_end: bool, ctx: &mut Context) -> Result<(), Fault> {
        let (stream, hook) = (Rc::clone(&self.stream), self.body_hook());
        let exports = &stream.instance.exports;
        let callback = match self.direction {
            Direction::Request => &exports.request_body,
            Direction::Response => &exports.response_body,
        };
        let Some(callback) = callback else { return Ok(()) };
        let size = u32::try_from(self.parts.body.len()).unwrap_or(u32::MAX);
        let effect = stream.callback(hook, ctx, &mut self.parts, |store, _| {
            callback.call(store, (stream.id(), size, is_end.into()))
        });
        self.state = if self.end.is_some() { State::HoldingEnd } else { State::Holding };
        self.follow(effect, ctx)
    }

    /// Runs the callback of the trailers, which are in `end`.
    fn run_trailers(&mut self, ctx: &mut Context) -> Result<(), Fault> {
        let stream = Rc::clone(&self.stream);
        let exports = &stream.instance.exports;
        let callback = match self.direction {
            Direction::Request => &exports.request_trailers,
            Direction::Response => &exports.response_trailers,
        };
        let (Some(Frame::Trailers(trailers)), Some(callback)) = (self.end.take(), callback) else {
            self.state = State::Ended;
            return Ok(());
        };
        let fields = u32::try_from(trailers.len()).unwrap_or(u32::MAX);
        self.parts.trailers = Some(trailers);
        self.state = State::HoldingTrailers;
        let hook = self.hook();
        let effect = stream
            .callback(hook, ctx, &mut self.parts, |store, _| callback.call(store, (stream.id(), fields)));
        self.follow(effect, ctx)
    }

    /// Follows a callback.
    fn follow(&mut self, effect: Result<Effect, Aborted>, ctx: &mut Context) -> Result<(), Fault> {
        match effect {
            Ok(Effect::Continue) => self.release(ctx),
            Ok(Effect::Pause) => {
                let limit = Duration::from_millis(self.stream.instance.vm.settings.pause_ms);
                self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
                Ok(())
            }
            Ok(Effect::Reply(reply)) => Err(self.refuse(*reply, ctx)),
            Ok(Effect::Close) => Err(self.refuse(Reply::silent(), ctx)),
            Err(Aborted) => self.fail(ctx),
        }
    }

    /// Passes the held part on.
    fn release(&mut self, ctx: &mut Context) -> Result<(), Fault> {
        self.pause = None;
        let body = std::mem::take(&mut self.parts.body);
        let mut taken = 0;
        while let Some(piece) = Chunk::next_of(&body, &mut taken) {
            self.out.push_back(Frame::Data(piece));
        }
        self.held.set(0);
        if !self.out.is_empty() || self.end.is_some() {
            // The head leaves with the first frame.
            self.parts.is_head_open = false;
            self.parts.may_respond &= self.direction == Direction::Request;
        }
        match (self.state, self.end.take()) {
            (State::HoldingTrailers, _) => {
                self.out.extend(self.parts.trailers.take().map(Frame::Trailers));
                self.state = State::Ended;
            }
            (_, Some(Frame::Trailers(trailers))) if self.reads_trailers() => {
                self.end = Some(Frame::Trailers(trailers));
                return self.run_trailers(ctx);
            }
            (_, Some(end)) => {
                self.out.push_back(end);
                self.state = State::Ended;
            }
            (_, None) => self.state = State::Reading,
        }
        Ok(())
    }

    fn reads_trailers(&self) -> bool {
        let exports = &self.stream.instance.exports;
        match self.direction {
            Direction::Request => exports.request_trailers.is_some(),
            Direction::Response => exports.response_trailers.is_some(),
        }
    }

    /// Goes on without the module, or ends the body.
    fn fail(&mut self, ctx: &mut Context) -> Result<(), Fault> {
        self.stream.abort();
        if !self.stream.plugin.fail_open {
            return Err(self.refuse(self.stream.plugin.failure(), ctx));
        }
        self.stream.instance.count(Event::FailedOpen);
        let end = self.end.take().or_else(|| self.parts.trailers.take().map(Frame::Trailers));
        let body = std::mem::take(&mut self.parts.body);
        let mut taken = 0;
        while let Some(piece) = Chunk::next_of(&body, &mut taken) {
            self.out.push_back(Frame::Data(piece));
        }
        self.state = if end.is_some() { State::Ended } else { State::Passing };
        self.out.extend(end);
        Ok(())
    }

    /// Makes `reply` the response if that is still possible; the fault cuts the body.
    fn refuse(&self, reply: Reply, ctx: &mut Context) -> Fault {
        self.stream.abort();
        let reply = if reply.body.is_none() && !reply.is_silent { reply.text(Vec::new()) } else { reply };
        ctx.instead = Some(Box::new(reply));
        CUT
    }

    /// Returns ready when the module has ended its pause.
    fn poll_pause(&mut self, ctx: &mut Context, task: &mut task::Context<'_>) -> Poll<Result<(), Fault>> {
        if self.stream.poll_event(self.direction, task).is_ready() {
            let hook = self.hook();
            let stream = Rc::clone(&self.stream);
            let effect = stream.resume(hook, ctx, &mut self.parts);
            return Poll::Ready(self.follow(effect, ctx));
        }
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(task));
            self.stream.note_long_pause();
            return Poll::Ready(self.fail(ctx));
        }
        Poll::Pending
    }
}

impl BodyFilter for Filter {
    fn length(&self, length: BodyLength) -> BodyLength {
        if self.reads_body() { BodyLength::Streamed } else { length }
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
            match self.state {
                State::Passing => return input.poll_frame(ctx, task),
                State::Ended => return Poll::Ready(Ok(Frame::End)),
                State::HoldingEnd | State::HoldingTrailers => ready!(self.poll_pause(ctx, task))?,
                State::Holding => {
                    if let Poll::Ready(result) = self.poll_pause(ctx, task) {
                        result?;
                        continue;
                    }
                    let frame = ready!(input.poll_frame(ctx, task))?;
                    self.accept(frame, ctx)?;
                }
                State::Reading => {
                    let frame = ready!(input.poll_frame(ctx, task))?;
                    self.accept(frame, ctx)?;
                }
            }
        }
    }
}
