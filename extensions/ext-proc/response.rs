//! The response on its way to the client.

use std::future::poll_fn;
use std::rc::Rc;

use sigma_plugin::{BodyFilter, Context, Env, ResponseStep};
use sigma_plugin_kit::changed_body::change_head;

use crate::Shared;
use crate::attributes::values;
use crate::body::{Lockstep, Replaced, mutated};
use crate::duplex::Duplex;
use crate::fields::of_response;
use crate::messages::{CONTINUE_AND_REPLACE, CommonResponse, HttpHeaders, Part};
use crate::mode::BodyMode;
use crate::rules::ChangeTarget;
use crate::session::streamed;
use crate::session::{Answered, Direction, Got, Kind};

/// Sends the head of the response, if the processor gets it.
pub(crate) fn begin(session: &Shared, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
    if session.borrow().is_over() {
        let got = session.borrow_mut().untold();
        return leave(session, got);
    }
    let modes = session.borrow().mode.response();
    if modes.headers {
        let config = std::sync::Arc::clone(&session.borrow().config);
        let headers = Some(of_response(ctx, config.forward_rules.as_ref()));
        let part = Part::ResponseHeaders(HttpHeaders { headers, end_of_stream: !ctx.has_response_body });
        let attributes = values(&config.response_attributes, ctx, env);
        if modes.body == BodyMode::FullDuplexStreamed && ctx.has_response_body {
            // The processor may respond after it has the body: the filter holds the head back.
            session.borrow_mut().begin_duplex(Direction::Response);
            session.borrow_mut().queue(Direction::Response, Kind::Headers, part, Some(attributes));
            return ResponseStep::Next;
        }
        session.borrow_mut().queue(Direction::Response, Kind::Headers, part, Some(attributes));
        let (polled, session) = (Rc::clone(session), Rc::clone(session));
        let got = poll_fn(move |task| polled.borrow_mut().poll(Direction::Response, task));
        return ResponseStep::wait(got, move |got, ctx, _| match got {
            Got::Answer(Answered::Headers(common)) => {
                apply_headers(&session, common, ctx).err().unwrap_or_else(|| end_head(&session, ctx))
            }
            got => leave(&session, got),
        });
    }
    end_head(session, ctx)
}

/// Ends the work on the head. Without further parts the session may end.
fn end_head(session: &Shared, ctx: &Context) -> ResponseStep {
    let mut session = session.borrow_mut();
    let modes = session.mode.response();
    let has_parts = modes.body != BodyMode::None || modes.trailers;
    session.response.is_done |= !ctx.has_response_body || !has_parts;
    session.close_if_done();
    ResponseStep::Next
}

/// Goes on without the processor, or replaces the response.
fn leave(session: &Shared, got: Got) -> ResponseStep {
    match got {
        Got::Reply(reply) => ResponseStep::Replace(Box::new(reply)),
        Got::Stream(reply) => ResponseStep::Stream(Box::new(reply), streamed::body(session)),
        Got::Gone | Got::Answer(_) => ResponseStep::Next,
    }
}

/// Applies the response to the head.
///
/// # Errors
/// Returns the step of the hook if the response ends it.
pub(crate) fn apply_headers(
    session: &Shared,
    common: CommonResponse,
    ctx: &mut Context,
) -> Result<(), ResponseStep> {
    session.borrow().note_route_cache(&common);
    let applied =
        session.borrow_mut().apply(common.header_mutation.as_ref(), ChangeTarget::Response, ctx, None);
    applied.map_err(|got| leave(session, *got))?;
    if common.status == CONTINUE_AND_REPLACE {
        let mut session = session.borrow_mut();
        session.response.is_done = true;
        // A response without a body, such as one to HEAD, gets none.
        if ctx.has_response_body {
            change_head(&mut ctx.response.headers);
            session.response.body = Some(mutated(common.body_mutation, Vec::new()).unwrap_or_default());
        }
    }
    Ok(())
}

/// Returns the filter of the body, if the processor gets or replaces it.
pub(crate) fn filter(session: &Shared, ctx: &Context) -> Option<Box<dyn BodyFilter>> {
    let mut borrowed = session.borrow_mut();
    if let Some(body) = borrowed.response.body.take() {
        return Some(Box::new(Replaced::new(body)));
    }
    // A response of the processor may wait although the session has ended.
    let is_over = borrowed.is_over() && !borrowed.expects_answer(Direction::Response);
    if is_over || borrowed.response.is_done || !ctx.has_response_body {
        return None;
    }
    let modes = borrowed.mode.response();
    if borrowed.is_duplex(Direction::Response) {
        borrowed.begin_duplex(Direction::Response);
        drop(borrowed);
        return Some(Box::new(Duplex::new(session, Direction::Response, 0, false)));
    }
    drop(borrowed);
    match modes.body {
        BodyMode::None if !modes.trailers => None,
        body => Some(Box::new(Lockstep::new(session, Direction::Response, body))),
    }
}
