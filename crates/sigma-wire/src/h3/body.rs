//! One message of the peer on its stream.

use std::task::{Context, Poll};

use sigma_http::h3::{Broken, ErrorCode, Event, Message, Scope};
use sigma_http::{Chunk, Frame};
use sigma_net::quic::{RecvError, RecvStream};

use super::common::Common;

/// The spare room of the input buffer below which an incomplete frame moves to its front.
const LEAST_SPARE_BYTES: usize = 4 * 1024;

/// The reading of one message.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) message: Message,
    recv: RecvStream,
    input: Chunk,
    /// No bytes follow those in `input`.
    ended: bool,
    /// The message was read to its end.
    complete: bool,
    /// The reason why it is not read any further.
    cut: Option<Cut>,
}

/// The reason why a message is not read any further.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cut {
    /// The peer has reset the stream, with this code.
    Reset(ErrorCode),
    /// The connection has ended.
    Lost,
    /// The peer broke a rule.
    Broken(Broken),
}

impl Receiving {
    pub(super) fn new(message: Message, recv: RecvStream) -> Receiving {
        Receiving { message, recv, input: Chunk::empty(), ended: false, complete: false, cut: None }
    }

    /// Returns the memory of the bytes that were read and not taken.
    pub(super) fn memory(&self) -> usize {
        self.input.memory() + self.message.memory()
    }

    /// Returns true if the peer has nothing more to send.
    pub(super) fn is_complete(&self) -> bool {
        self.complete || (self.ended && self.input.is_empty())
    }

    /// Reads as many bytes as there are and fit.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Cut>> {
        if !self.input.is_empty() && self.input.spare().len() < LEAST_SPARE_BYTES {
            self.input.compact();
        }
        match self.recv.poll_fill(cx, &mut self.input) {
            Poll::Ready(Ok(0)) => self.ended = true,
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(cut(error))),
            Poll::Pending => return Poll::Pending,
        }
        Poll::Ready(Ok(()))
    }

    /// Reads the bytes that are there before the first event: the end of the stream decides on the framing of a message.
    pub(super) fn fill_first(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Cut>> {
        // Nothing is read behind a head that waits for the dynamic table.
        while !self.message.is_blocked()
            && !self.ended
            && (self.input.is_empty() || !self.input.spare().is_empty())
        {
            match self.fill(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Pending if !self.input.is_empty() => break,
                other => return other,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns the next event, other than a need for more bytes. A field section that waits for the dynamic table
    /// wakes the task.
    pub(super) fn poll_event(&mut self, cx: &mut Context<'_>, common: &Common) -> Poll<Result<Event, Cut>> {
        if let Some(cut) = self.cut {
            return Poll::Ready(Err(cut));
        }
        if self.complete {
            return Poll::Ready(Ok(Event::End));
        }
        let event = self.read_event(cx, common);
        if let Poll::Ready(Err(cut)) = event {
            self.cut = Some(cut);
        }
        event
    }

    fn read_event(&mut self, cx: &mut Context<'_>, common: &Common) -> Poll<Result<Event, Cut>> {
        loop {
            let event = common.with(|codec| codec.read(&mut self.message, &mut self.input, self.ended));
            match event {
                Ok(Event::Nothing) => match self.fill(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(cut)) => return Poll::Ready(Err(cut)),
                    Poll::Pending => {
                        // The peer decides how long that takes.
                        self.input.shrink();
                        return Poll::Pending;
                    }
                },
                Ok(Event::Blocked) => {
                    common.wait_for_entries(cx);
                    // A cancelled stream gives its place to another one.
                    if !self.ended
                        && let Poll::Ready(error) = self.recv.poll_reset(cx)
                    {
                        return Poll::Ready(Err(cut(error)));
                    }
                    return Poll::Pending;
                }
                Ok(event) => {
                    self.complete = matches!(event, Event::End | Event::Trailers(_));
                    return Poll::Ready(Ok(event));
                }
                Err(broken) => {
                    if broken.scope == Scope::Connection {
                        common.fail(broken);
                    }
                    return Poll::Ready(Err(Cut::Broken(broken)));
                }
            }
        }
    }

    /// Returns the next frame of the body.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>, common: &Common) -> Poll<Result<Frame, Cut>> {
        loop {
            return Poll::Ready(Ok(match self.poll_event(cx, common) {
                Poll::Ready(Ok(Event::Data(data))) => Frame::Data(data),
                Poll::Ready(Ok(Event::Trailers(trailers))) => Frame::Trailers(trailers),
                Poll::Ready(Ok(Event::End)) => Frame::End,
                // Heads come before the body.
                Poll::Ready(Ok(_)) => continue,
                Poll::Ready(Err(cut)) => return Poll::Ready(Err(cut)),
                Poll::Pending => return Poll::Pending,
            }));
        }
    }

    /// Ready when the peer has cancelled the message or the connection has ended.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.recv.poll_reset(cx) {
            // It was stopped here: the other direction decides.
            Poll::Ready(RecvError::Stopped) | Poll::Pending => Poll::Pending,
            Poll::Ready(RecvError::Reset(_) | RecvError::Lost(_)) => Poll::Ready(()),
        }
    }

    /// Reads no further.
    pub(super) fn stop(&mut self, common: &Common, code: ErrorCode) {
        if self.is_complete() {
            return;
        }
        self.complete = true;
        self.recv.stop(code.0);
        let id = self.message.id();
        common.with(|codec| codec.abandon(id));
    }
}

fn cut(error: RecvError) -> Cut {
    match error {
        RecvError::Reset(code) => Cut::Reset(ErrorCode(code)),
        RecvError::Stopped | RecvError::Lost(_) => Cut::Lost,
    }
}
