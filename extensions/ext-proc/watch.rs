//! Observability mode: the processor gets copies, and nothing waits for it.
//!
//! A task of the worker sends the copies of one exchange. The messages of all exchanges of a worker that wait for
//! slow processors have one limit; above it they are dropped and counted.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{self, Poll, Waker};
use std::time::Duration;

use prost::Message;
use sigma_http::{BodyLength, Fault, Frame};
use sigma_plugin::outbound::{MessageStream, StreamCall};
use sigma_plugin::{BodyFilter, Context, Env, Frames, Slot};
use sigma_plugin_kit::envoy::Struct;
use sigma_plugin_kit::tallies::Tally;

use crate::ExtProc;
use crate::attributes::values;
use crate::config::ForwardRules;
use crate::events::Event;
use crate::fields::{forwarded, of_request, of_response};
use crate::messages::{
    FILTER, HttpBody, HttpHeaders, HttpTrailers, Part, ProcessingRequest, ProtocolConfiguration,
};
use crate::mode::{BodyMode, Modes};
use crate::session::Direction;

/// Bytes of the messages of one worker that wait. A part of a body is up to 64 KiB.
const WAITING_BYTES: usize = 16 << 20;

/// Bytes of the messages of one exchange that wait.
const EXCHANGE_BYTES: usize = 1 << 20;

/// Responses that one turn of the worker drops. They are ignored, but cost time.
const ANSWERS_MAX: usize = 64;

/// Streams of one worker to watching processors. A processor that hangs keeps each for `deferred_close_timeout`.
const STREAMS_MAX: usize = 1024;

/// The streams of a worker; a part of it.
#[derive(Default)]
struct WatchStreams {
    bytes: Cell<usize>,
    streams: Cell<usize>,
}

/// The messages of one exchange that wait.
struct Queue {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    waker: Option<Waker>,
    /// The exchange has ended.
    is_ended: bool,
    /// The stream has ended: copies are not made any more.
    is_closed: bool,
}

/// The sending end, kept in the exchange.
struct Watch {
    queue: Rc<RefCell<Queue>>,
    watched: Rc<WatchStreams>,
    tally: Tally<Event>,
    has_begun: Cell<bool>,
    modes: (i32, i32),
}

/// The end of the exchange: dropped with it.
struct Sender(Rc<Watch>);

impl Drop for Sender {
    fn drop(&mut self) {
        let mut queue = self.0.queue.borrow_mut();
        queue.is_ended = true;
        if let Some(waker) = queue.waker.take() {
            waker.wake();
        }
    }
}

/// One stream in the worker's count.
struct Counted(Rc<WatchStreams>, Rc<RefCell<Queue>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
        let mut queue = self.1.borrow_mut();
        self.0.bytes.set(self.0.bytes.get() - queue.bytes);
        (queue.bytes, queue.is_closed) = (0, true);
        queue.messages.clear();
    }
}

impl Watch {
    fn send(&self, part: Part, attributes: Option<Struct>) {
        if self.queue.borrow().is_closed {
            return;
        }
        let mut message = ProcessingRequest {
            request: Some(part),
            observability_mode: true,
            ..ProcessingRequest::default()
        };
        if !self.has_begun.replace(true) {
            let (request_body_mode, response_body_mode) = self.modes;
            message.protocol_config = Some(ProtocolConfiguration { request_body_mode, response_body_mode });
        }
        if let Some(attributes) = attributes.filter(|attributes| !attributes.fields.is_empty()) {
            message.attributes.insert(FILTER.to_owned(), attributes);
        }
        let message = message.encode_to_vec();
        let mut queue = self.queue.borrow_mut();
        let total = self.watched.bytes.get() + message.len();
        if total > WAITING_BYTES || queue.bytes + message.len() > EXCHANGE_BYTES {
            return self.tally.count(Event::Dropped);
        }
        self.watched.bytes.set(total);
        queue.bytes += message.len();
        queue.messages.push_back(message);
        if let Some(waker) = queue.waker.take() {
            waker.wake();
        }
    }
}

/// Begins to watch an exchange.
pub(crate) fn begin(plugin: &ExtProc, call: StreamCall, ctx: &mut Context, env: &Env<'_>) {
    let (watched, tally) = (env.local.part(WatchStreams::default), plugin.counted.tally(env.local));
    if watched.streams.get() >= STREAMS_MAX {
        return tally.count(Event::Dropped);
    }
    let queue = Rc::new(RefCell::new(Queue {
        messages: VecDeque::new(),
        bytes: 0,
        waker: None,
        is_ended: false,
        is_closed: false,
    }));
    watched.streams.set(watched.streams.get() + 1);
    let counted = Counted(Rc::clone(&watched), Rc::clone(&queue));
    let mode = &plugin.config.processing_mode;
    let modes = (mode.request_body_mode.number(), mode.response_body_mode.number());
    let watch = Rc::new(Watch { queue, watched, tally, has_begun: Cell::new(false), modes });
    if mode.request().headers {
        let headers = Some(of_request(ctx, plugin.config.forward_rules.as_ref()));
        let part = Part::RequestHeaders(HttpHeaders { headers, end_of_stream: !ctx.has_request_body });
        watch.send(part, Some(values(&plugin.config.request_attributes, ctx, env)));
    }
    let closing = Duration::from_millis(plugin.config.deferred_close_timeout);
    // The stream belongs to the worker, not to the hook: an instance to keep opens it.
    tokio::task::spawn_local(run(env.outbound.open_stream(call), counted, closing));
    ctx.keep(Slot::from(plugin), Sender(watch));
}

/// Sends the messages of one exchange, and drops the responses.
async fn run(mut stream: Box<dyn MessageStream>, counted: Counted, closing: Duration) {
    let queue = Rc::clone(&counted.1);
    let mut closes: Option<std::pin::Pin<Box<tokio::time::Sleep>>> = None;
    let mut is_finished = false;
    poll_fn(|task| {
        let mut answers = 0;
        loop {
            match stream.poll_message(task) {
                Poll::Ready(Ok(Some(_))) if answers < ANSWERS_MAX => {
                    answers += 1;
                    continue;
                }
                Poll::Ready(Ok(Some(_))) => {
                    task.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {}
            }
            let sent = stream.poll_sent(task);
            if matches!(sent, Poll::Ready(Err(_))) {
                return Poll::Ready(());
            }
            let mut queue = queue.borrow_mut();
            queue.waker = Some(task.waker().clone());
            if queue.is_ended {
                let closes = closes.get_or_insert_with(|| Box::pin(tokio::time::sleep(closing)));
                if closes.as_mut().poll(task).is_ready() {
                    return Poll::Ready(());
                }
            }
            if sent.is_pending() {
                return Poll::Pending;
            }
            match queue.messages.pop_front() {
                Some(message) => {
                    queue.bytes -= message.len();
                    counted.0.bytes.set(counted.0.bytes.get() - message.len());
                    stream.send(&message);
                }
                None if queue.is_ended && !std::mem::replace(&mut is_finished, true) => stream.finish(),
                None => return Poll::Pending,
            }
        }
    })
    .await;
}

fn watch_of(plugin: &ExtProc, ctx: &mut Context) -> Option<Rc<Watch>> {
    ctx.kept::<_, Sender>(plugin).map(|sender| Rc::clone(&sender.0))
}

/// Sends the head of the response.
pub(crate) fn response(plugin: &ExtProc, ctx: &mut Context, env: &Env<'_>) {
    if !plugin.config.processing_mode.response().headers {
        return;
    }
    let Some(watch) = watch_of(plugin, ctx) else { return };
    let headers = Some(of_response(ctx, plugin.config.forward_rules.as_ref()));
    let part = Part::ResponseHeaders(HttpHeaders { headers, end_of_stream: !ctx.has_response_body });
    watch.send(part, Some(values(&plugin.config.response_attributes, ctx, env)));
}

/// Returns the filter that copies a body, if the processor gets it.
pub(crate) fn filter(
    plugin: &ExtProc,
    direction: Direction,
    ctx: &mut Context,
) -> Option<Box<dyn BodyFilter>> {
    let mode = &plugin.config.processing_mode;
    let (modes, has_body) = match direction {
        Direction::Request => (mode.request(), ctx.has_request_body),
        Direction::Response => (mode.response(), ctx.has_response_body),
    };
    if !has_body || modes.body == BodyMode::None && !modes.trailers {
        return None;
    }
    let watch = watch_of(plugin, ctx)?;
    Some(Box::new(Copying { watch, direction, modes, config: std::sync::Arc::clone(&plugin.config) }))
}

/// Copies a body.
struct Copying {
    watch: Rc<Watch>,
    direction: Direction,
    modes: Modes,
    config: std::sync::Arc<crate::config::Config>,
}

impl Copying {
    fn copy(&self, frame: &Frame) {
        let sends_body = self.modes.body == BodyMode::Streamed;
        match frame {
            Frame::Data(data) if sends_body => self.send_body(data, false),
            Frame::End if sends_body => self.send_body(&[], true),
            Frame::Trailers(trailers) if self.modes.trailers => {
                let rules: Option<&ForwardRules> = self.config.forward_rules.as_ref();
                let trailers = HttpTrailers { trailers: Some(forwarded(&[], trailers, rules)) };
                let part = match self.direction {
                    Direction::Request => Part::RequestTrailers(trailers),
                    Direction::Response => Part::ResponseTrailers(trailers),
                };
                self.watch.send(part, None);
            }
            _ => {}
        }
    }

    fn send_body(&self, data: &[u8], is_last: bool) {
        let body = HttpBody { body: data.to_vec(), end_of_stream: is_last };
        let part = match self.direction {
            Direction::Request => Part::RequestBody(body),
            Direction::Response => Part::ResponseBody(body),
        };
        self.watch.send(part, None);
    }
}

impl BodyFilter for Copying {
    fn length(&self, length: BodyLength) -> BodyLength {
        length
    }

    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        let frame = task::ready!(input.poll_frame(ctx, task))?;
        self.copy(&frame);
        Poll::Ready(Ok(frame))
    }
}
