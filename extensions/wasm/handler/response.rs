//! The call for a response.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{self, Poll, ready};

use sigma_buffer::held::{self, CountedBytes};
use sigma_http::{BodyLength, Chunk, Fault, Frame};
use sigma_plugin::{BodyFilter, Context, Frames, Reply, ResponseStep};
use sigma_plugin_kit::fields::frames;

use super::exchange::Exchange;
use crate::current::{Hook, Parts};
use crate::events::Event;
use crate::filter::CUT;

/// Handles the head. A response that the module has enabled for itself waits: its body follows, or is empty.
pub(crate) fn head(exchange: &Rc<Exchange>, ctx: &mut Context) -> ResponseStep {
    exchange.add_fields(ctx);
    let is_waiting = exchange.holds_response && !exchange.is_over();
    if ctx.has_response_body || !is_waiting && !exchange.has_start() {
        return ResponseStep::Next;
    }
    let mut parts = Parts { body: exchange.take_start(), ..Parts::open() };
    let responded = match is_waiting {
        true => exchange.respond(Hook::ResponseBody, ctx, &mut parts),
        false => Ok(None),
    };
    match responded {
        Ok(written) => match written.unwrap_or(parts.body) {
            body if body.is_empty() || !may_have_body(ctx) => ResponseStep::Next,
            body => ResponseStep::Replace(Box::new(with_body(body, ctx))),
        },
        Err(_) if exchange.plugin.fail_open => {
            exchange.count(Event::FailedOpen);
            ResponseStep::Next
        }
        Err(_) => ResponseStep::Replace(Box::new(exchange.plugin.failure())),
    }
}

fn may_have_body(ctx: &Context) -> bool {
    ctx.request.method_token() != b"HEAD" && !matches!(ctx.response.status, 204 | 205 | 304)
}

/// Returns the response with a body, which it had not.
fn with_body(body: Vec<u8>, ctx: &Context) -> Reply {
    let mut reply = Reply::new(ctx.response.status).text(body);
    reply.is_passed_on = true;
    for (name, value) in ctx.response.headers.iter() {
        if let Ok(name) = std::str::from_utf8(name)
            && !frames(&name.to_ascii_lowercase())
        {
            reply = reply.header(name.to_owned(), value);
        }
    }
    reply
}

/// Returns the filter of the body, if the response waits for the module, or has bytes before it.
pub(crate) fn filter(exchange: &Rc<Exchange>, ctx: &Context) -> Option<Box<dyn BodyFilter>> {
    let is_waiting = exchange.holds_response && !exchange.is_over();
    if !ctx.has_response_body || !is_waiting && !exchange.has_start() {
        return None;
    }
    let start = exchange.take_start();
    if !is_waiting {
        return Some(Box::new(Start { pieces: pieces(&start) }));
    }
    Some(Box::new(Filter {
        exchange: Rc::clone(exchange),
        body: start,
        held: CountedBytes::default(),
        out: VecDeque::new(),
    }))
}

/// Cuts bytes into frames.
fn pieces(bytes: &[u8]) -> VecDeque<Frame> {
    let (mut all, mut taken) = (VecDeque::new(), 0);
    while let Some(piece) = Chunk::next_of(bytes, &mut taken) {
        all.push_back(Frame::Data(piece));
    }
    all
}

/// Puts bytes before a body.
struct Start {
    pieces: VecDeque<Frame>,
}

impl BodyFilter for Start {
    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        match self.pieces.pop_front() {
            Some(piece) => Poll::Ready(Ok(piece)),
            None => input.poll_frame(ctx, task),
        }
    }
}

/// Reads the whole body, runs the module, and passes the body on.
struct Filter {
    exchange: Rc<Exchange>,
    body: Vec<u8>,
    held: CountedBytes,
    /// The frames after the call.
    out: VecDeque<Frame>,
}

impl Filter {
    /// Keeps a part of the body.
    fn keep(&mut self, data: &[u8], ctx: &mut Context) -> Result<(), Fault> {
        let limit = self.exchange.plugin.vm_use.vm.settings.body_bytes;
        if self.body.len() + data.len() > limit {
            self.exchange.count(Event::TooLarge);
            return Err(refuse(Reply::new(500).because("the module buffers too large a body"), ctx));
        }
        if data.len() > held::body_room() {
            return Err(refuse(Reply::new(503).because("the memory for bodies is full"), ctx));
        }
        self.body.extend_from_slice(data);
        self.held.set(self.body.capacity());
        Ok(())
    }

    /// Runs the module at the end of the body.
    fn run(&mut self, end: Frame, ctx: &mut Context) -> Result<(), Fault> {
        let mut trailers = match end {
            Frame::Trailers(trailers) => Some(trailers),
            _ => None,
        };
        if self.exchange.has_trailers {
            trailers.get_or_insert_default();
        }
        let body = std::mem::take(&mut self.body);
        let mut parts = Parts { body, trailers, ..Parts::open() };
        let body = match self.exchange.respond(Hook::ResponseBody, ctx, &mut parts) {
            Ok(written) => written.unwrap_or(parts.body),
            Err(_) if self.exchange.plugin.fail_open => {
                self.exchange.count(Event::FailedOpen);
                parts.body
            }
            Err(_) => return Err(refuse(self.exchange.plugin.failure(), ctx)),
        };
        self.out = pieces(&body);
        self.held.set(0);
        let trailers = parts.trailers.filter(|trailers| !trailers.is_empty());
        self.out.push_back(trailers.map_or(Frame::End, Frame::Trailers));
        Ok(())
    }
}

/// Makes `reply` the response; the fault cuts the body.
fn refuse(reply: Reply, ctx: &mut Context) -> Fault {
    let reply = if reply.body.is_none() { reply.text(Vec::new()) } else { reply };
    ctx.instead = Some(Box::new(reply));
    CUT
}

impl BodyFilter for Filter {
    fn length(&self, _: BodyLength) -> BodyLength {
        BodyLength::Streamed
    }

    fn holds_head(&self) -> bool {
        true
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
            match ready!(input.poll_frame(ctx, task))? {
                Frame::Data(data) => self.keep(&data, ctx)?,
                end => self.run(end, ctx)?,
            }
        }
    }
}
