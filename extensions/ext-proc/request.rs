//! The request on its way to the node.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{self, Poll};

use sigma_plugin::step::{BodyRead, BodyReader, BodyStart, Resume};
use sigma_plugin::{BodyFilter, Context, Env, Reply, Step};

use crate::Shared;
use crate::attributes::values;
use crate::body::{Lockstep, Prefixed, first_piece, mutated, queue_piece};
use crate::duplex::Duplex;
use crate::fields::of_request;
use crate::messages::{CONTINUE_AND_REPLACE, CommonResponse, HttpHeaders, Part};
use crate::mode::BodyMode;
use crate::rules::ChangeTarget;
use crate::session::streamed;
use crate::session::{Answered, Direction, Failure, Got, Kind};

/// Returns true if the request has a body.
fn has_body(ctx: &Context) -> bool {
    ctx.body.as_ref().map_or(ctx.has_request_body, |body| !body.is_empty())
}

/// Sends the head of the request, if the processor gets it.
pub(crate) fn begin(session: &Shared, ctx: &mut Context, env: &Env<'_>) -> Step {
    let modes = session.borrow().mode.request();
    if !modes.headers {
        return send_body(session, ctx);
    }
    let config = std::sync::Arc::clone(&session.borrow().config);
    let headers = Some(of_request(ctx, config.forward_rules.as_ref()));
    let part = Part::RequestHeaders(HttpHeaders { headers, end_of_stream: !has_body(ctx) });
    let attributes = values(&config.request_attributes, ctx, env);
    if modes.body == BodyMode::FullDuplexStreamed && has_body(ctx) {
        session.borrow_mut().begin_duplex(Direction::Request);
        session.borrow_mut().queue(Direction::Request, Kind::Headers, part, Some(attributes));
        let reader = Box::new(DuplexReader { session: Rc::clone(session), sent: 0, has_ended: false });
        return Step::ReadAlong { limit: config.max_body_bytes, reader };
    }
    session.borrow_mut().queue(Direction::Request, Kind::Headers, part, Some(attributes));
    wait(session, |session, got, ctx| match got {
        Got::Answer(Answered::Headers(common)) => match apply_headers(session, common, ctx) {
            Ok(()) => send_body(session, ctx),
            Err(step) => step,
        },
        got => leave(session, got),
    })
}

/// Waits for the next event of the request.
fn wait(session: &Shared, then: impl FnOnce(&Shared, Got, &mut Context) -> Step + 'static) -> Step {
    let (polled, session) = (Rc::clone(session), Rc::clone(session));
    let got = poll_fn(move |task| polled.borrow_mut().poll(Direction::Request, task));
    Step::wait(got, move |got, ctx, _| then(&session, got, ctx))
}

/// Goes on without the processor, or replies.
fn leave(session: &Shared, got: Got) -> Step {
    match got {
        Got::Reply(reply) => reply.into(),
        Got::Stream(reply) => Step::Stream(Box::new(reply), streamed::body(session)),
        Got::Gone | Got::Answer(_) => Step::Next,
    }
}

/// Applies the response to the head.
///
/// # Errors
/// Returns the step of the hook if the response ends it.
pub(crate) fn apply_headers(session: &Shared, common: CommonResponse, ctx: &mut Context) -> Result<(), Step> {
    session.borrow().note_route_cache(&common);
    let applied =
        session.borrow_mut().apply(common.header_mutation.as_ref(), ChangeTarget::Request, ctx, None);
    applied.map_err(|got| leave(session, *got))?;
    if common.status == CONTINUE_AND_REPLACE {
        let body = mutated(common.body_mutation, Vec::new()).unwrap_or_default();
        replace_body(body, ctx);
        session.borrow_mut().request.is_done = true;
    }
    Ok(())
}

/// Replaces the whole body. The gateway sets the length.
fn replace_body(body: Vec<u8>, ctx: &mut Context) {
    if body.is_empty() {
        ctx.request.headers.remove(sigma_http::HeaderId::ContentLength);
    }
    ctx.body = Some(body);
}

/// Sends the body, as far as that happens before the node gets the head.
fn send_body(session: &Shared, ctx: &mut Context) -> Step {
    if session.borrow().request.is_done {
        return Step::Next;
    }
    let (modes, limit) = (session.borrow().mode.request(), session.borrow().config.max_body_bytes);
    if !has_body(ctx) {
        session.borrow_mut().request.is_done = true;
        return Step::Next;
    }
    let session = Rc::clone(session);
    match modes.body {
        BodyMode::Buffered => {
            let then = move |ctx: &mut Context, _: &Env<'_>, read: BodyRead| match read {
                BodyRead::TooLarge => Reply::new(413).text(Vec::new()).into(),
                BodyRead::Whole => send_whole(&session, ctx, true),
            };
            Step::ReadBody { limit, then: Box::new(then) }
        }
        BodyMode::BufferedPartial => {
            let then = move |ctx: &mut Context, _: &Env<'_>, start: BodyStart| match start.is_whole {
                true => send_whole(&session, ctx, false),
                false => send_start(&session, start.bytes),
            };
            Step::ReadStart { limit, then: Box::new(then) }
        }
        BodyMode::None => {
            session.borrow_mut().request.is_done = !modes.trailers;
            Step::Next
        }
        BodyMode::Streamed | BodyMode::FullDuplexStreamed => Step::Next,
    }
}

/// Sends a body that was read to its end.
fn send_whole(session: &Shared, ctx: &mut Context, changes_fields: bool) -> Step {
    let body = ctx.body.clone().unwrap_or_default();
    queue_piece(&mut session.borrow_mut(), Direction::Request, &body, true);
    wait(session, move |session, got, ctx| {
        session.borrow_mut().request.is_done = true;
        let Got::Answer(Answered::Body(common)) = got else { return leave(session, got) };
        session.borrow().note_route_cache(&common);
        if changes_fields {
            let mutation = common.header_mutation.as_ref();
            let applied = session.borrow_mut().apply(mutation, ChangeTarget::Request, ctx, None);
            if let Err(got) = applied {
                return leave(session, *got);
            }
        }
        match mutated(common.body_mutation, ctx.body.take().unwrap_or_default()) {
            Ok(body) => {
                replace_body(body, ctx);
                Step::Next
            }
            Err(original) => {
                ctx.body = Some(original);
                streams(session)
            }
        }
    })
}

/// Sends the beginning of a body.
fn send_start(session: &Shared, bytes: Vec<u8>) -> Step {
    queue_piece(&mut session.borrow_mut(), Direction::Request, &bytes, false);
    wait(session, move |session, got, _| {
        session.borrow_mut().request.is_done = true;
        let Got::Answer(Answered::Body(common)) = got else { return leave(session, got) };
        let skip = bytes.len();
        match mutated(common.body_mutation, bytes) {
            Ok(prefix) => {
                let progress = &mut session.borrow_mut().request;
                (progress.sent, progress.prefix) = (skip, Some(prefix));
                Step::Next
            }
            Err(_) => streams(session),
        }
    })
}

/// The processor streams a body that is not in full duplex.
fn streams(session: &Shared) -> Step {
    let reason = "the processor streams a body that is not FULL_DUPLEX_STREAMED";
    session.borrow_mut().fail(Failure::Broken, reason);
    wait(session, |session, got, _| leave(session, got))
}

/// Sends a body in full duplex until the response to the head is here.
struct DuplexReader {
    session: Shared,
    sent: usize,
    has_ended: bool,
}

impl BodyReader for DuplexReader {
    fn poll(&mut self, read: &[u8], is_whole: bool, task: &mut task::Context<'_>) -> Poll<Resume> {
        loop {
            let mut session = self.session.borrow_mut();
            if let Poll::Ready(got) = session.poll(Direction::Request, task) {
                (session.request.sent, session.request.has_ended) = (self.sent, self.has_ended);
                drop(session);
                let session = Rc::clone(&self.session);
                return Poll::Ready(Box::new(move |ctx: &mut Context, _: &Env<'_>| match got {
                    Got::Answer(Answered::Headers(common)) => {
                        apply_headers(&session, common, ctx).err().unwrap_or(Step::Next)
                    }
                    got => leave(&session, got),
                }));
            }
            if self.has_ended || !session.has_room(Direction::Request) {
                return Poll::Pending;
            }
            let piece = first_piece(&read[self.sent.min(read.len())..]);
            self.sent += piece.len();
            self.has_ended = is_whole && self.sent == read.len();
            let limit = session.config.max_body_bytes;
            let is_full = read.len() > limit && self.sent == read.len();
            if piece.is_empty() && !self.has_ended {
                // Nothing more is read before the processor responds.
                let was_owing = session.set_owing(Direction::Request, is_full);
                if is_full && !was_owing {
                    // The new timer must be polled.
                    continue;
                }
                return Poll::Pending;
            }
            queue_piece(&mut session, Direction::Request, piece, self.has_ended);
            session.set_owing(Direction::Request, self.has_ended);
        }
    }
}

/// Returns the filter of the body, if the processor has yet to get some of it.
pub(crate) fn filter(session: &Shared, ctx: &Context) -> Option<Box<dyn BodyFilter>> {
    let mut borrowed = session.borrow_mut();
    let progress = &mut borrowed.request;
    if let Some(prefix) = progress.prefix.take() {
        return Some(Box::new(Prefixed::new(progress.sent, prefix)));
    }
    let (sent, has_ended, is_done) = (progress.sent, progress.has_ended, progress.is_done);
    if is_done || borrowed.is_over() && sent == 0 || !has_body(ctx) {
        return None;
    }
    let modes = borrowed.mode.request();
    match modes.body {
        BodyMode::FullDuplexStreamed => {
            borrowed.begin_duplex(Direction::Request);
            drop(borrowed);
            Some(Box::new(Duplex::new(session, Direction::Request, sent, has_ended)))
        }
        BodyMode::Streamed => {
            drop(borrowed);
            Some(Box::new(Lockstep::new(session, Direction::Request, BodyMode::Streamed)))
        }
        _ if modes.trailers => {
            drop(borrowed);
            Some(Box::new(Lockstep::new(session, Direction::Request, BodyMode::None)))
        }
        _ => None,
    }
}
