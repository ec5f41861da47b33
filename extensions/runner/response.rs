//! `ext-plugin-post-resp`: the runner changes responses of nodes.
//!
//! A call begins when the head of the response is known. If the runner needs the body, the head waits, and the call
//! continues in the filter of the body.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_buffer::held::{self, CountedBytes};
use sigma_http::{BodyLength, Chunk, Fault, FaultKind, Frame, HeaderId, Method};
use sigma_plugin::record::Source;
use sigma_plugin::{
    BodyFilter, Build, Configuration, Context, Descriptor, Env, Frames, Phase, PhaseSet, Plugin, Reply,
    ResponseStep, Slot,
};
use sigma_plugin_kit::changed_body::{describes_body, remove_digests};

use crate::caller::{BODY_MAX, Caller, resident, variable};
use crate::client::{Call, Event, Failure, Outcome};
use crate::config::Fields;
use crate::fields::{Field, checked, is_kept, listed};
use crate::messages::{Entry, InfoRequest, Message, ResponseReply, response_call, response_reply};

/// The plugin.
pub(crate) static EXT_PLUGIN_POST_RESP: Descriptor = Descriptor {
    name: "ext-plugin-post-resp",
    priority: -4_000,
    example: include_str!("ext-plugin-post-resp/example.md"),
    phases: PhaseSet::of(&[Phase::HeaderFilter, Phase::BodyFilter]),
    build: |build| Ok(Arc::new(PostResp(Arc::new(ResponseFilter::new(build)?)))),
    resident: Some(resident),
    ..Descriptor::of::<Config>()
};

/// Passes responses of nodes to plugins in Python, Go or Java.
///
/// The setting `ext-plugin` starts the runner, a program that contains these plugins. The gateway sends it the status
/// and the fields of each response. Variables and a body of at most 16 MB follow if a plugin reads them. The runner
/// may change status, fields and body. Fields that it sets replace all fields of the node. If it replaces only the
/// body, fields about the old body and about its type are removed.
///
/// The runner sees the response after all other plugins of the route, without a coding that the gateway adds.
#[derive(Deserialize, JsonSchema)]
struct Config {
    #[serde(flatten)]
    #[expect(dead_code, reason = "the instance reads these fields by themselves")]
    fields: Fields,
}

impl Configuration for Config {}

struct PostResp(Arc<ResponseFilter>);

struct ResponseFilter(Caller);

/// A call that waits for the body of the response.
struct Suspended(Call);

/// The filter of the body has replaced the response. The header filters run once more, for the new one.
struct Replaced;

/// The reply of a runner whose fields are sound.
struct Changes {
    status: u16,
    /// Empty: the fields stay.
    fields: Vec<Field>,
    /// Empty: the body stays.
    body: Vec<u8>,
}

impl Plugin for PostResp {
    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        let slot = Slot::from(self);
        // A call for an earlier response, which this one replaces.
        let _ = ctx.take_kept::<_, Suspended>(slot);
        let is_own = ctx.take_kept::<_, Replaced>(slot).is_some();
        if is_own || !is_of_node(ctx) || ctx.response.status < 200 {
            return ResponseStep::Next;
        }
        Arc::clone(&self.0).begin(slot, ctx, env)
    }

    fn body_filter(&self, ctx: &mut Context, _: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let Suspended(call) = ctx.take_kept(self)?;
        let filter = Arc::clone(&self.0);
        Some(Box::new(Exchange {
            filter,
            slot: Slot::from(self),
            state: State::Reading(call),
            body: Vec::new(),
            held: CountedBytes::default(),
        }))
    }
}

/// Returns true if a response is a node's: from it right now, or stored by a cache.
fn is_of_node(ctx: &Context) -> bool {
    ctx.record.source == Source::Upstream || ctx.set_by_plugin("upstream_cache_status").is_some()
}

/// Returns true if a response with this status has no body.
fn is_bodiless(status: u16) -> bool {
    matches!(status, 204 | 304)
}

impl ResponseFilter {
    fn new(build: &Build<'_>) -> Result<ResponseFilter, String> {
        Caller::new(build).map(ResponseFilter)
    }

    fn begin(self: Arc<ResponseFilter>, slot: Slot, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        match self.0.call(env, |id| message(ctx, id)) {
            Ok(call) => {
                ResponseStep::wait(call.begin(), move |outcome, ctx, _| self.go_on(slot, outcome, ctx))
            }
            Err(failure) => self.failed(&failure),
        }
    }

    /// Continues a call with the runner's question or reply.
    fn go_on(self: Arc<ResponseFilter>, slot: Slot, outcome: Outcome, ctx: &mut Context) -> ResponseStep {
        match outcome {
            Err(failure) => self.failed(&failure),
            Ok(Event::InfoRequest(call, InfoRequest::ResponseBody)) if has_body(ctx) => {
                ctx.keep(slot, Suspended(call));
                ResponseStep::Next
            }
            Ok(Event::InfoRequest(call, info_request)) => {
                let answered = answered(call, &info_request, ctx, b"");
                ResponseStep::wait(answered, move |outcome, ctx, _| self.go_on(slot, outcome, ctx))
            }
            Ok(Event::Reply(received)) => match changes(&received.payload) {
                Ok(changes) => replaced(changes, ctx),
                Err(failure) => self.failed(&failure),
            },
        }
    }

    fn failed(&self, failure: &Failure) -> ResponseStep {
        self.0.failed(failure).map_or(ResponseStep::Next, |reply| ResponseStep::Replace(Box::new(reply)))
    }
}

/// Returns true if a response has a body that the gateway reads.
fn has_body(ctx: &Context) -> bool {
    ctx.request.method != Method::Head && !is_bodiless(ctx.response.status)
}

/// Responds to a question; `body` is the body of the response.
fn answered(call: Call, info_request: &InfoRequest, ctx: &Context, body: &[u8]) -> Answering {
    match info_request {
        InfoRequest::Variable(name) => Box::pin(call.reply(variable(ctx, name).as_deref())),
        // Known only if a plugin has read it: it went to the node piece by piece.
        InfoRequest::RequestBody => Box::pin(call.reply(ctx.body.as_deref())),
        InfoRequest::ResponseBody => Box::pin(call.reply(Some(body))),
    }
}

type Answering = Pin<Box<dyn Future<Output = Outcome>>>;

/// Encodes the head of a response for the runner.
fn message(ctx: &Context, id: u32) -> Message {
    let fields = listed(&ctx.response.headers);
    let headers: Vec<Entry<'_>> =
        fields.iter().map(|(name, value)| Entry { name, value: Some(&value[..]) }).collect();
    response_call(id, ctx.response.status, &headers)
}

/// Reads and checks a reply.
fn changes(payload: &[u8]) -> Result<Changes, Failure> {
    let invalid = |reason: String| Failure(format!("the runner's reply is invalid: {reason}"));
    let reply = response_reply(payload);
    let reply = reply.map_err(|_| invalid("it is not a valid FlatBuffers table".to_owned()))?;
    let ResponseReply { status, headers, body } = reply;
    if status != 0 && !(200..=599).contains(&status) {
        return Err(invalid(format!("the status {status} is not between 200 and 599")));
    }
    Ok(Changes { status, fields: checked(&headers).map_err(invalid)?, body: body.to_vec() })
}

/// Returns the step of a reply that came before the body of the response was read.
fn replaced(changes: Changes, ctx: &mut Context) -> ResponseStep {
    let before = ctx.response.status;
    let status = if changes.status == 0 { before } else { changes.status };
    if changes.body.is_empty() && is_bodiless(before) == is_bodiless(status) {
        set_head(&changes, ctx);
        return ResponseStep::Next;
    }
    ResponseStep::Replace(Box::new(reply(changes, status, ctx)))
}

/// Returns a response with the runner's body, or with none.
fn reply(changes: Changes, status: u16, ctx: &mut Context) -> Reply {
    set_head(&Changes { body: changes.body.clone(), ..changes }, ctx);
    let fields = ctx.response.headers.iter().filter_map(|(name, value)| {
        let name = std::str::from_utf8(name).ok()?.to_owned();
        (!describes_body(&name)).then(|| (name.into(), value.to_vec()))
    });
    let headers = fields.collect();
    Reply { status, headers, body: Some(changes.body), is_passed_on: true, ..Reply::default() }
}

/// Sets status and fields of the response.
fn set_head(changes: &Changes, ctx: &mut Context) {
    if changes.status != 0 {
        ctx.response.status = changes.status;
    }
    let is_new = !changes.body.is_empty();
    let headers = &mut ctx.response.headers;
    match (changes.fields.is_empty(), is_new) {
        (true, false) => return,
        // As in APISIX: the fields that describe the old body, and some others.
        (true, true) => headers.remove_where(|_, name| {
            std::str::from_utf8(name).is_ok_and(|name| is_kept(name) || describes_body(name))
        }),
        (false, _) => headers.remove_where(|id, name| {
            let is_coding = name.eq_ignore_ascii_case(b"content-encoding");
            // The length and the coding of a body that stays.
            is_new || (id != HeaderId::ContentLength && !is_coding)
        }),
    }
    if is_new {
        remove_digests(headers);
    }
    for Field { name, value } in &changes.fields {
        let is_stale = !is_new && name.eq_ignore_ascii_case("content-encoding");
        if let Some(value) = value.as_ref().filter(|_| !is_stale) {
            headers.append(name, value);
        }
    }
}

/// The head is replaced by a response without a body, or by 503.
const REPLACED: Fault =
    Fault::new(FaultKind::BadResponse, "the runner of external plugins replaces the response");
const NO_ROOM: &str = "the worker has no memory for the response body";

/// A response body that is read for the runner. The head waits for the runner's reply.
struct Exchange {
    filter: Arc<ResponseFilter>,
    /// Where the plugin keeps values in the exchange.
    slot: Slot,
    state: State,
    /// The body so far.
    body: Vec<u8>,
    held: CountedBytes,
}

enum State {
    /// The body is being read.
    Reading(Call),
    /// The runner has the body, or has asked something else.
    Asking(Answering, Option<Frame>),
    /// Bytes for the client; then the end, or the rest of the body.
    Sending(VecDeque<Chunk>, Rest),
}

/// The part of a body behind the bytes that are being sent.
enum Rest {
    End(Option<Frame>),
    /// It follows unchanged.
    Unread,
}

fn pieces(bytes: &[u8]) -> VecDeque<Chunk> {
    let mut taken = 0;
    std::iter::from_fn(|| Chunk::next_of(bytes, &mut taken)).collect()
}

impl Exchange {
    /// Reads one piece.
    fn take(&mut self, data: &[u8]) -> Result<(), Failure> {
        if data.len() > BODY_MAX - self.body.len() {
            return Err(Failure(format!(
                "the response body exceeds {BODY_MAX} bytes and cannot be sent to the runner"
            )));
        }
        // Twice: the message for the runner has a copy.
        if data.len().saturating_mul(2) > held::body_room() {
            held::refused();
            return Err(Failure(NO_ROOM.to_owned()));
        }
        self.body.extend_from_slice(data);
        self.held.set(self.body.capacity());
        Ok(())
    }

    /// Makes `reply` the response. Returns the fault that ends the body.
    fn replace(&self, reply: Reply, ctx: &mut Context) -> Fault {
        ctx.instead = Some(Box::new(reply));
        ctx.keep(self.slot, Replaced);
        REPLACED
    }

    /// Handles a failure: the body follows unchanged, or a response with 503.
    fn fail(&mut self, failure: &Failure, rest: Rest, ctx: &mut Context) -> Result<(), Fault> {
        if let Some(reply) = self.filter.0.failed(failure) {
            return Err(self.replace(reply, ctx));
        }
        let body = std::mem::take(&mut self.body);
        self.state = State::Sending(pieces(&body), rest);
        Ok(())
    }

    /// Handles an event of the call.
    fn go_on(&mut self, outcome: Outcome, end: Option<Frame>, ctx: &mut Context) -> Result<(), Fault> {
        let received = match outcome {
            Err(failure) => return self.fail(&failure, Rest::End(end), ctx),
            Ok(Event::InfoRequest(call, info_request)) => {
                self.state = State::Asking(answered(call, &info_request, ctx, &self.body), end);
                return Ok(());
            }
            Ok(Event::Reply(received)) => received,
        };
        let changes = match changes(&received.payload) {
            Ok(changes) => changes,
            Err(failure) => return self.fail(&failure, Rest::End(end), ctx),
        };
        if is_bodiless(changes.status) {
            let status = changes.status;
            let empty = Changes { body: Vec::new(), ..changes };
            let reply = reply(empty, status, ctx);
            return Err(self.replace(reply, ctx));
        }
        set_head(&changes, ctx);
        let old = std::mem::take(&mut self.body);
        let body = if changes.body.is_empty() { old } else { changes.body };
        self.state = State::Sending(pieces(&body), Rest::End(end));
        Ok(())
    }

    /// Moves on by one step; None to continue.
    fn step(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Option<Frame>, Fault>> {
        match &mut self.state {
            State::Reading(_) => {
                let frame = task::ready!(input.poll_frame(ctx, task))?;
                self.read(frame, ctx).map_or_else(|fault| Poll::Ready(Err(fault)), |()| Poll::Ready(Ok(None)))
            }
            State::Asking(answering, end) => {
                let outcome = task::ready!(answering.as_mut().poll(task));
                let end = end.take();
                Poll::Ready(self.go_on(outcome, end, ctx).map(|()| None))
            }
            State::Sending(pieces, rest) => match (pieces.pop_front(), rest) {
                (Some(piece), _) => Poll::Ready(Ok(Some(Frame::Data(piece)))),
                (None, Rest::End(end)) => Poll::Ready(Ok(Some(end.take().unwrap_or(Frame::End)))),
                (None, Rest::Unread) => input.poll_frame(ctx, task).map_ok(Some),
            },
        }
    }

    fn read(&mut self, frame: Frame, ctx: &mut Context) -> Result<(), Fault> {
        match frame {
            Frame::Data(data) => {
                if let Err(failure) = self.take(&data) {
                    self.fail(&failure, Rest::Unread, ctx)?;
                    if let State::Sending(pieces, _) = &mut self.state {
                        pieces.push_back(data);
                    }
                }
                Ok(())
            }
            end => {
                let sending = State::Sending(VecDeque::new(), Rest::Unread);
                if let State::Reading(call) = std::mem::replace(&mut self.state, sending) {
                    let answering = answered(call, &InfoRequest::ResponseBody, ctx, &self.body);
                    self.state = State::Asking(answering, Some(end));
                }
                Ok(())
            }
        }
    }
}

impl BodyFilter for Exchange {
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
            match task::ready!(self.step(input, ctx, task)) {
                Ok(Some(frame)) => return Poll::Ready(Ok(frame)),
                Ok(None) => {}
                Err(fault) => return Poll::Ready(Err(fault)),
            }
        }
    }
}
